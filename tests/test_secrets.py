"""No secret is shown: not by the repr of anything that holds one, not by an error about it, not by a server's keys.

New classes and options are found by themselves; what decides is the name of a field or an option.
"""

from __future__ import annotations

import dataclasses
import importlib
import pickle
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

import gimbalmq
from gimbalmq._options import Configuration, options
from gimbalmq.client.config import ClientConfig, ProducerConfig
from gimbalmq.errors import ConfigError, names_a_secret
from gimbalmq.protocol.signing import Signer

CANARY = "canary-that-nobody-may-see"

_TRANSIENT = {
    "_SignedFields",  # the fields of one request while its signature is verified
}
"""What lives inside one function, and is shown to nobody."""

_TEMPLATES = "gimbalmq.spark.pipelines."


def modules() -> Iterator[Any]:
    for found in pkgutil.walk_packages(gimbalmq.__path__, "gimbalmq."):
        if found.name.startswith(_TEMPLATES) and "-" in found.name:
            continue
        if found.name == "gimbalmq.__main__":
            continue
        try:
            yield importlib.import_module(found.name)
        except ImportError as error:  # of an extra that is not installed
            if (error.name or "").startswith("gimbalmq"):
                raise


def classes() -> list[type[Any]]:
    found = {
        value
        for module in modules()
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__.startswith("gimbalmq")
    }
    return sorted(found, key=lambda each: (each.__module__, each.__qualname__))


CLASSES = classes()


def _filled(cls: type[Any]) -> object | None:
    """One with a canary in every field that holds a secret; None if the class has no such field."""
    if dataclasses.is_dataclass(cls):
        names = {item.name: item.type for item in dataclasses.fields(cls)}
    elif issubclass(cls, msgspec.Struct):
        names = {item.name: item.type for item in msgspec.structs.fields(cls)}
    else:
        return None
    secret = [name for name, kind in names.items() if names_a_secret(name) and kind not in ("bool", bool)]
    if not secret or cls.__qualname__ in _TRANSIENT:
        return None
    values = {name: CANARY if name in secret else "-" for name in names}
    if issubclass(cls, msgspec.Struct):
        return cls(**values)
    made: object = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


HOLDERS = {
    f"{cls.__module__}.{cls.__qualname__}": made for cls in CLASSES if (made := _filled(cls)) is not None
}


def test_those_that_hold_secrets_are_found() -> None:
    assert {
        "gimbalmq.client.config.ClientConfig",
        "gimbalmq.client.client_file.ClientFile",
        "gimbalmq.broker.config.BrokerConfig",
        "gimbalmq.nameserver.config.NameServerConfig",
        "gimbalmq.transport.tls_config.TlsConfig",
    } <= HOLDERS.keys()


@pytest.mark.parametrize("name", HOLDERS)
def test_nothing_that_holds_a_secret_shows_it(name: str) -> None:
    made = HOLDERS[name]
    for shown in (repr(made), str(made), f"{[made]}", f"{made!r:.10000}"):
        assert CANARY not in shown


@pytest.mark.parametrize("cls", [cls for cls in CLASSES if issubclass(cls, Configuration)])
def test_every_option_that_is_secret_is_declared_so(cls: type[Configuration]) -> None:
    if not dataclasses.is_dataclass(cls):
        return
    for known in options(cls).values():
        assert known.secret == names_a_secret(known.key), f"{cls.__name__}: {known.key}"
        if known.secret:
            for told in (f"{CANARY}\a{CANARY}", CANARY * 500):
                with pytest.raises(ConfigError) as caught:
                    cls.from_properties({known.key: told})
                assert CANARY not in str(caught.value) and CANARY not in repr(caught.value)
                assert caught.value.option == known.key


def test_every_spark_option_that_is_secret_is_declared_so() -> None:
    pytest.importorskip("pyspark", reason="pip install 'gimbalmq[spark]'")
    from gimbalmq.spark.connection import CONNECTION_OPTIONS
    from gimbalmq.spark.declared import Given
    from gimbalmq.spark.sink_options import SinkSettings

    assert {each.name for each in CONNECTION_OPTIONS if each.secret} == {
        each.name for each in CONNECTION_OPTIONS if names_a_secret(each.name)
    }
    settings = SinkSettings.read(
        {"namesrv": "h:1", "accessKey": "me", "secretKey": CANARY, "tlsKeyPassword": CANARY}
    )
    assert CANARY not in repr(settings)
    assert pickle.loads(pickle.dumps(settings)) == settings
    for told in ({"secretKey": CANARY, "SECRETKEY": "another"}, {"secretKye": CANARY}):
        with pytest.raises(ConfigError) as caught:
            Given(told, CONNECTION_OPTIONS, what="the sink")
        assert CANARY not in str(caught.value) and "another" not in str(caught.value)


WRONG: dict[str, Callable[[], object]] = {
    "a misspelt option of a client": lambda: ClientConfig.of(namesrv="h:1", secret_kye=CANARY),
    "a secret without its key": lambda: ClientConfig.of(namesrv="h:1", secret_key=CANARY),
    "a token where a key should be": lambda: ProducerConfig.of(
        group="g", namesrv="h:1", secret_key=CANARY, security_tokn=CANARY
    ),
    "a value of the wrong kind": lambda: ConfigError("tls.server.keyPassword", [CANARY], "no"),
}


@pytest.mark.parametrize("what", WRONG)
def test_an_error_about_a_secret_does_not_tell_it(what: str) -> None:
    try:
        error: object = WRONG[what]()
    except ConfigError as raised:
        error = raised
    assert isinstance(error, ConfigError)
    assert CANARY not in str(error) and CANARY not in repr(error) and CANARY not in str(vars(error))


def test_the_name_of_a_misspelt_option_is_told() -> None:
    error = ConfigError("option", "secretKye", "the sink has no such option; did you mean secretKey?")
    assert "option='secretKye'" in str(error)


def test_the_signer_shows_nothing() -> None:
    signer = Signer("me", CANARY, CANARY)
    assert CANARY not in repr(signer) and CANARY not in str(signer)


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("secretKey", True),
        ("tls.server.keyPassword", True),
        ("tls.server.keyPasword", True),
        ("tls_key_password of /home/me/client.toml", True),
        ("tls_ca of /home/token/client.toml", False),
        ("securityToken", True),
        ("innerClientAuthenticationCredentials", True),
        ("initAuthenticationUser", True),
        ("--secret-key-file", False),
        ("secretKeyFile", False),
        ("accessKey", False),
        ("tls.server.keyPath", False),
    ],
)
def test_what_names_a_secret(name: str, secret: bool) -> None:
    assert names_a_secret(name) == secret
