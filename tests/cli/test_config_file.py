"""Configuration files: Java's properties syntax and TOML."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gimbalmq.cli.config_file import parse_toml, read
from gimbalmq.errors import ConfigError
from gimbalmq.protocol import properties_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("a=b", {"a": "b"}),
        ("a = b", {"a": "b"}),
        ("a:b", {"a": "b"}),
        ("a b", {"a": "b"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("a==b", {"a": "=b"}),
        ("a = = b", {"a": "= b"}),
        ("a : b:c", {"a": "b:c"}),
        ("  a=b  ", {"a": "b  "}),
        ("# c\n! c\n\n   \na=b", {"a": "b"}),
        ("# c \\\na=b", {"a": "b"}),
        ("a=b # not a comment", {"a": "b # not a comment"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=x,\\\n    y,\\\n\t z", {"a": "x,y,z"}),
        ("a=x\\\n# y", {"a": "x# y"}),
        ("a=x\\\\\nb=y", {"a": "x\\", "b": "y"}),
        ("a=x\\", {"a": "x"}),
        ("a\\ b\\=c\\:d=e", {"a b=c:d": "e"}),
        ("a=\\u4e2d\\u6587", {"a": "中文"}),
        ("a=\\ud83d\\ude80", {"a": "🚀"}),
        ("a=\\t\\n\\r\\f\\q", {"a": "\t\n\r\fq"}),
        ("a=1\na=2", {"a": "2"}),
        ("=x", {"": "x"}),
        ("namesrvAddr=10.0.0.1:9876;10.0.0.2:9876", {"namesrvAddr": "10.0.0.1:9876;10.0.0.2:9876"}),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, expected: dict[str, str]) -> None:
    assert properties_text.loads(text) == expected


def test_a_broken_escape_is_named_with_its_line() -> None:
    with pytest.raises(ValueError, match="line 2"):
        properties_text.loads("a=b\nc=\\u12")


def _java_escaped(text: str, key: bool) -> str:
    """As java.util.Properties.store writes a key or a value."""
    out = []
    for position, char in enumerate(text):
        if char in "\\=:#!" or (char == " " and (key or position == 0)):
            out.append("\\" + char)
        elif char in "\t\n\r\f":
            out.append("\\" + {"\t": "t", "\n": "n", "\r": "r", "\f": "f"}[char])
        elif 0x20 <= ord(char) < 0x7F:
            out.append(char)
        else:
            units = char.encode("utf-16-be")
            out += [f"\\u{units[i]:02X}{units[i + 1]:02X}" for i in range(0, len(units), 2)]
    return "".join(out)


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.dictionaries(_TEXT.filter(bool), _TEXT, max_size=6))
def test_what_java_stores_is_read_back(table: dict[str, str]) -> None:
    text = "".join(f"{_java_escaped(k, True)}={_java_escaped(v, False)}\n" for k, v in table.items())
    assert properties_text.loads(text) == table


def test_toml_has_the_same_keys() -> None:
    text = """
        brokerName = "broker-b"
        listenPort = 20911
        autoCreateTopicEnable = false
        fileReservedTime = 1.5
        namesrvAddr = ["10.0.0.1:9876", "10.0.0.2:9876"]
        [tls.server]
        mode = "enforcing"
    """
    assert parse_toml(text) == {
        "brokerName": "broker-b",
        "listenPort": "20911",
        "autoCreateTopicEnable": "false",
        "fileReservedTime": "1.5",
        "namesrvAddr": "10.0.0.1:9876;10.0.0.2:9876",
        "tls.server.mode": "enforcing",
    }


def test_toml_values_that_no_option_has_are_refused() -> None:
    with pytest.raises(ValueError, match="when is neither"):
        parse_toml("when = 2026-01-01")


def test_file_is_chosen_by_its_ending(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('brokerName = "x"')
    (tmp_path / "a.properties").write_text('brokerName = "x"')
    assert read(tmp_path / "a.toml") == {"brokerName": "x"}
    assert read(tmp_path / "a.properties") == {"brokerName": '"x"'}


def test_unusable_files_are_config_errors_with_their_name(tmp_path: Path) -> None:
    missing = tmp_path / "missing.conf"
    with pytest.raises(ConfigError, match=r"missing\.conf.*No such file"):
        read(missing)
    binary = tmp_path / "binary.conf"
    binary.write_bytes(b"a=\xff")
    with pytest.raises(ConfigError, match="byte 2 is not UTF-8"):
        read(binary)
    broken = tmp_path / "broken.toml"
    broken.write_text("a = ")
    with pytest.raises(ConfigError, match=r"broken\.toml"):
        read(broken)


@pytest.mark.parametrize("beside", ["plain_acl.yml", "acl/team.yml"])
def test_accounts_of_4_x_are_looked_for_beside_the_file(tmp_path: Path, beside: str) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("aclEnable=true")
    assert read(conf) == {"aclEnable": "true"}
    accounts = tmp_path / beside
    accounts.parent.mkdir(exist_ok=True)
    accounts.touch()
    assert read(conf) == {"aclEnable": "true", "aclConfigPath": str(tmp_path)}
    for key in ("aclConfigPath", "rocketmqHome"):
        conf.write_text(f"{key}=elsewhere")
        assert read(conf) == {key: "elsewhere"}


def test_a_secret_that_everybody_may_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    file = tmp_path / "broker.conf"
    file.write_text('initAuthenticationUser={"username":"a","password":"hush"}\nmetricsTokenFile=t\n')
    file.chmod(0o600)
    read(file)
    assert not caplog.records
    file.chmod(0o644)
    read(file)
    (told,) = caplog.messages
    assert "in initAuthenticationUser; say chmod 600" in told and "hush" not in told
    file.write_text("metricsTokenFile=t\n")
    read(file)
    assert len(caplog.records) == 1
