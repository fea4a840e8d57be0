"""Declared options: texts and values, what is inherited, what a running server takes, misspelt keys."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gimbalmq._options import (
    ConfigOption,
    Configuration,
    did_you_mean,
    misspelt,
    option,
    options,
    options_by_key,
)
from gimbalmq.broker.config import BrokerConfig
from gimbalmq.errors import ConfigError
from gimbalmq.nameserver.config import NameServerConfig
from gimbalmq.transport.limits import ServerLimits
from gimbalmq.transport.tls_config import TlsConfig

APACHES = (Path(__file__).parent / "golden" / "config_keys.txt").read_text().split()
"""Every key that Apache's broker and name server, 4.9.7 and 5.5.0, have a setter for."""

SERVERS: tuple[type[Configuration], ...] = (BrokerConfig, NameServerConfig)
KNOWN = {key for server in SERVERS for key in options_by_key(server)}


@dataclass(frozen=True, kw_only=True)
class Kettle(Configuration):
    litres: int = option(2, "how much it holds", between=(1, 10), fixed=True)
    degrees: float = option(99.5, "how hot", between=(0, 100))
    whistles: bool = option(True, "whether it tells")
    colour: str = option("RED", "of its lid", choices=("RED", "BLUE"))
    owner: str | None = option(None, "whose it is")
    stove: bool | None = option(None, "whether it stands on one")
    teas: tuple[str, ...] = option((), "for which it is used")
    code: str = option("", "of its lock", key="lock.code", secret=True, fixed=True)


def test_every_kind_is_read_and_written() -> None:
    texts = {
        "litres": "3",
        "degrees": "80",
        "whistles": "FALSE",
        "colour": "blue",
        "owner": "Ann",
        "stove": "true",
        "teas": "mint; black",
        "lock.code": "123",
        "spout": "long",
    }
    kettle, unknown = Kettle.from_properties(texts)
    expected = Kettle(
        litres=3,
        degrees=80.0,
        whistles=False,
        colour="BLUE",
        owner="Ann",
        stove=True,
        teas=("mint", "black"),
        code="123",
    )
    assert (kettle, unknown) == (expected, ["spout"])
    shown = kettle.to_properties()
    assert shown == {
        "litres": "3",
        "degrees": "80",
        "whistles": "false",
        "colour": "BLUE",
        "owner": "Ann",
        "stove": "true",
        "teas": "mint;black",
    }
    assert "123" not in repr(kettle)
    assert Kettle.from_properties({**shown, "lock.code": "123"}) == (kettle, [])
    assert Kettle.from_properties({"owner": "", "stove": ""}, kettle)[0].owner is None


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("litres", 11, "litres=11 cannot be used: use a whole number, 1 to 10"),
        ("litres", 1.5, "litres=1.5 cannot be used: use a whole number, 1 to 10"),
        ("litres", True, "litres=True cannot be used"),
        ("degrees", float("nan"), "degrees=nan cannot be used: use a number, 0 to 100"),
        ("whistles", "yes", "whistles='yes' cannot be used: use true or false"),
        ("colour", "GREEN", "colour='GREEN' cannot be used: use RED or BLUE"),
        ("owner", "", "leave the option out"),
        ("owner", "a\x00", "printable"),
        ("teas", "mint", "texts with ; between them"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_with_what_can(name: str, value: object, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Kettle(**{name: value})  # type: ignore[arg-type]
    assert words in str(caught.value)


def test_errors_do_not_tell_a_secret() -> None:
    with pytest.raises(ConfigError) as caught:
        Kettle().changed({"lock.code": "sesame"})
    assert "lock.code" in str(caught.value) and "sesame" not in str(caught.value)


def test_a_running_server_takes_what_is_not_fixed() -> None:
    kettle = Kettle(litres=4)
    assert kettle.changed({"degrees": "50", "litres": " 4 ", "spout": "1"}) == (
        Kettle(litres=4, degrees=50),
        ["spout"],
    )
    with pytest.raises(
        ConfigError, match="litres='5' cannot be used: it can only be set when the server starts"
    ):
        kettle.changed({"litres": "5"})


@pytest.mark.parametrize("server", SERVERS)
def test_servers_inherit_limits_and_tls_without_declaring_them_again(server: type[Configuration]) -> None:
    for shared in (ServerLimits, TlsConfig):
        assert options(shared).items() <= options(server).items()


@given(st.data())
def test_every_option_of_the_servers_comes_back_from_its_text(data: st.DataObject) -> None:
    for server in SERVERS:
        for known in options(server).values():
            if known.kind in (int, float):
                value = data.draw(st.integers(known.low, known.high), known.key)
                assert known.read(known.write(value)) == value
            assert known.read(known.write(known.default)) == known.default, known.key


@pytest.mark.parametrize("known", [known for server in SERVERS for known in options(server).values()])
def test_every_option_says_what_it_means(known: ConfigOption) -> None:
    assert len(known.meaning) > 5 and not known.meaning.endswith(".")
    known.check(known.default)


# -- misspelt keys -----------------------------------------------------------------------


def test_no_key_of_apaches_servers_counts_as_misspelt() -> None:
    """A file of Apache's must not be refused for what only a server in Java has."""
    assert len(APACHES) > 500 and len(KNOWN & set(APACHES)) > 50
    assert {key: misspelt(key, KNOWN) for key in APACHES if key not in KNOWN and misspelt(key, KNOWN)} == {}


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("flushDiskTyp", "flushDiskType"),
        ("flushDiskTpye", "flushDiskType"),
        ("flushDiskkType", "flushDiskType"),
        ("FlushDiskType", "flushDiskType"),
        ("flush_disk_type", "flushDiskType"),
        ("autoCreateTopicEnabled", "autoCreateTopicEnable"),
        ("tls.server.certpath", "tls.server.certPath"),
    ],
)
def test_slips_are_recognised(wrong: str, right: str) -> None:
    assert misspelt(wrong, KNOWN) == right
    assert did_you_mean(wrong, KNOWN) == f"; did you mean {right}?"


def test_only_what_is_alike_is_suggested() -> None:
    assert did_you_mean("maxMsgSize", KNOWN) == "; did you mean maxMessageSize?"
    assert misspelt("maxMsgSize", KNOWN) is None
    assert did_you_mean("nonsense", KNOWN) == ""
