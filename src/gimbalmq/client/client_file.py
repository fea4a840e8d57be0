"""The client file: where a cluster is, who asks, and whom to believe, in one file that only its owner reads.

It is TOML. Every key may be left out, and paths are relative to the file::

    namesrv = "127.0.0.1:9876"
    access_key = "admin"
    secret_key = "..."
    tls_ca = "ca.pem"
    tls_cert = "client.pem"
    tls_key = "client.key"

Apache's ``conf/tools.yml``, which has ``accessKey`` and ``secretKey``, is read as well. No error tells what a file
holds: it names the file, the key and the remedy.
"""

from __future__ import annotations

import json
import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from gimbalmq._options import did_you_mean
from gimbalmq.errors import ConfigError
from gimbalmq.transport.network import split_address
from gimbalmq.transport.tls import SYSTEM, client_tls
from gimbalmq.transport.whole_files import write_whole

VARIABLE = "GIMBALMQ_CLIENT_FILE"
"""The environment variable that names the file."""

CREDENTIALS = ("access_key", "secret_key", "security_token")
"""The options of a client that say who asks."""

_MOST_BYTES = 65_536
_YAML_KEYS = {"accessKey": "access_key", "secretKey": "secret_key", "securityToken": "security_token"}
_SECRETS = frozenset({"secret_key", "security_token", "tls_key_password"})
_PATHS = ("tls_ca", "tls_cert", "tls_key")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFile:
    """What a client file says; a key that it does not have is None.

    Attributes:
        path: the file.
        namesrv: name servers, ``host:port;host:port``.
        access_key, secret_key, security_token: who asks; both keys or none.
        tls: whether to speak TLS; a file that names authorities or a certificate need not say it.
        tls_ca: authorities of the servers to believe, a file of PEM; without it, or with ``system``, those of the
            operating system.
        tls_cert, tls_key, tls_key_password: the client's own certificate.
        tls_any_host: whether a certificate need not be for the address it is met at.
        tls_any_cert: whether any certificate is believed, so that anybody may stand in for a server.
    """

    path: str
    namesrv: str | None = None
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    security_token: str | None = field(default=None, repr=False)
    tls: bool | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_key_password: str | None = field(default=None, repr=False)
    tls_any_host: bool = False
    tls_any_cert: bool = False

    @property
    def speaks_tls(self) -> bool:
        return bool(self.tls or self.tls_ca or self.tls_cert or self.tls_any_cert)

    def options(self) -> dict[str, Any]:
        """The options of a client that it stands for.

        Raises:
            ConfigError: a certificate or an authority cannot be loaded.
        """
        told: dict[str, Any] = {
            name: value for name in ("namesrv", *CREDENTIALS) if (value := getattr(self, name)) is not None
        }
        if self.speaks_tls:
            told["tls"] = client_tls(
                self.tls_ca,
                self.tls_cert,
                self.tls_key,
                self.tls_key_password,
                verify=not self.tls_any_cert,
                check_host=not self.tls_any_host,
                options=(
                    f"tls_ca of {self.path}",
                    f"tls_cert of {self.path}",
                    f"tls_key_password of {self.path}",
                ),
            )
        return told


_KEYS = frozenset(item.name for item in fields(ClientFile)) - {"path"}


def with_client_file(options: Mapping[str, Any], path: str | os.PathLike[str] | None) -> dict[str, Any]:
    """A client's options and, for what they leave open, those of a client file.

    A client that was told no name server asks the environment for the file. One that was told any does not: what
    stands in a program is not changed by a variable.

    Args:
        path: the file, if the client was told one; its namesrv counts unless another was told.
    """
    given = {name for name, value in options.items() if value not in (None, "")}
    if path is None and "namesrv" not in given:
        path = named_client_file()
    if path is None:
        return dict(options)
    told = client_options(path)
    if given.intersection(CREDENTIALS):  # never one party's name with another's secret
        told = {name: value for name, value in told.items() if name not in CREDENTIALS}
    return {**options, **{name: value for name, value in told.items() if name not in given}}


def named_client_file(environment: Mapping[str, str] | None = None) -> str | None:
    """The file that the environment variable names; None if it names none."""
    environment = os.environ if environment is None else environment
    return environment.get(VARIABLE) or None


def said(environment: Mapping[str, str], variable: str) -> bool:
    """Whether a variable of the environment says yes; raises ConfigError if it says neither yes nor no."""
    text = environment.get(variable, "").lower()
    if text not in ("", "true", "1", "false", "0"):
        raise ConfigError(f"${variable}", text, "use true or false")
    return text in ("true", "1")


def client_options(path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """The options that a client file stands for, ``namesrv`` among them, for any client of this package.

    >>> Producer("orders", **client_options("client.toml"))  # doctest: +SKIP

    Args:
        path: the file; by default the one that the environment variable ``GIMBALMQ_CLIENT_FILE`` names.

    Raises:
        ConfigError: no file is named, or it cannot be used.
    """
    named = named_client_file() if path is None else path
    if not named:
        raise ConfigError(f"${VARIABLE}", None, "name a client file; gimbalmq server --secure DIR makes one")
    return read_client_file(named).options()


def read_client_file(path: str | os.PathLike[str]) -> ClientFile:
    """Reads a client file; Apache's tools.yml if its name ends in ``.yml`` or ``.yaml``.

    Raises:
        ConfigError: it cannot be read, others may read or write it, or a key or a value is wrong.
    """
    if not isinstance(path, str | os.PathLike):
        raise ConfigError("client_file", path, "use the path of a client file")
    file = Path(path).expanduser()
    text, mode = _text(file)
    is_yaml = file.suffix in (".yml", ".yaml")
    told = _from_yaml(file, text) if is_yaml else _from_toml(file, text)
    _check_mode(file, mode, secret=bool(_SECRETS & told.keys()))
    made = _Reader(file, told)
    namesrv = made.addresses()
    found = ClientFile(
        path=str(file),
        namesrv=namesrv,
        **{name: made.text(name) for name in CREDENTIALS},
        **{name: made.path(name) for name in _PATHS},
        tls_key_password=made.text("tls_key_password"),
        tls=made.switch("tls"),
        tls_any_host=bool(made.switch("tls_any_host")),
        tls_any_cert=bool(made.switch("tls_any_cert")),
    )
    if (found.access_key is None) != (found.secret_key is None):
        missing = "access_key" if found.access_key is None else "secret_key"
        raise ConfigError(f"{missing} of {file}", None, "give access_key and secret_key together")
    if found.tls_key and not found.tls_cert:
        raise ConfigError(f"tls_cert of {file}", None, "name the certificate of tls_key as well")
    if found.tls is False and found.speaks_tls:
        raise ConfigError(f"tls of {file}", False, "leave it out, or the other keys of TLS")
    if found.tls_any_cert and found.tls_ca:
        raise ConfigError(
            f"tls_any_cert of {file}", True, "leave it out, or tls_ca, which would count for nothing"
        )
    return found


def write_client_file(
    path: Path, told: Mapping[str, str | bool], *, about: str = "Keep it to yourself: it lets you in."
) -> None:
    """Writes a client file that only its owner reads; the one before is replaced at once or not at all."""
    assert told.keys() <= _KEYS, "a key that nobody would read"
    assert all(isinstance(value, bool) or value.isprintable() for value in told.values())
    # Texts, true and false of JSON are TOML's, too, if nothing is written as a surrogate pair.
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in told.items()]
    write_whole(path, f"# {about}\n" + "\n".join(lines) + "\n")


# -- reading ---------------------------------------------------------------------------


def _text(file: Path) -> tuple[str, int]:
    """The file's text, and its mode at the moment it was opened."""
    try:
        with open(file, "rb") as source:
            mode = os.fstat(source.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise ConfigError("client file", str(file), "it is no file")
            raw = source.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError("client file", str(file), f"cannot be read: {error.strerror or error}") from None
    if len(raw) > _MOST_BYTES:
        raise ConfigError(
            "client file", str(file), f"it has more than {_MOST_BYTES} bytes; is it another file?"
        )
    try:
        return raw.decode(), mode
    except UnicodeDecodeError as error:
        raise ConfigError("client file", str(file), f"byte {error.start} is not UTF-8") from None


def _check_mode(file: Path, mode: int, *, secret: bool) -> None:
    # A group may read it, because that is how containers mount secrets for a user that is not root.
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError("client file", str(file), f"others may change it; say chmod 600 {file}")
    if secret and mode & stat.S_IROTH:
        raise ConfigError(
            "client file", str(file), f"everybody may read the secret in it; say chmod 600 {file}"
        )


def _from_toml(file: Path, text: str) -> dict[str, object]:
    try:
        told: dict[str, object] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # Only the place: the words of the error may have letters of a secret in them.
        at = str(error).rpartition("(at ")[2].rstrip(")") if "(at " in str(error) else "some place"
        raise ConfigError(
            "client file", str(file), f'not TOML at {at}; write lines like key = "text"'
        ) from None
    for name in told:
        if name not in _KEYS:
            meant = did_you_mean(name, _KEYS) or f"; there are {', '.join(sorted(_KEYS))}"
            raise ConfigError(name, "...", f"{file} may not have this key{meant}")
    return told


def _from_yaml(file: Path, text: str) -> dict[str, object]:
    import yaml  # only for those who have such a file

    try:
        # Every scalar stays the text it is: a secret of digits is a secret, not a number.
        told = yaml.load(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = "some place" if mark is None else f"line {mark.line + 1}"
        raise ConfigError("client file", str(file), f"not YAML at {at}") from None
    if not isinstance(told, dict) or not told.keys() & _YAML_KEYS.keys():
        raise ConfigError(
            "client file", str(file), "give accessKey and secretKey, as in Apache's conf/tools.yml"
        )
    return {_YAML_KEYS[name]: value for name, value in told.items() if name in _YAML_KEYS}


class _Reader:
    """Values of one file, each checked; ConfigError does not show secrets, which it knows by their names."""

    def __init__(self, file: Path, told: Mapping[str, object]) -> None:
        self._file = file
        self._told = told

    def text(self, name: str) -> str | None:
        value = self._told.get(name)
        if value is None or (isinstance(value, str) and value.strip() and value.isprintable()):
            return value
        raise self._refused(name, "a text that is not empty")

    def switch(self, name: str) -> bool | None:
        value = self._told.get(name)
        if value is None or isinstance(value, bool):
            return value
        raise self._refused(name, "true or false")

    def path(self, name: str) -> str | None:
        text = self.text(name)
        if text is None or (name == "tls_ca" and text == SYSTEM):
            return text
        return str(self._file.absolute().parent / Path(text).expanduser())

    def addresses(self) -> str | None:
        value = self._told.get("namesrv")
        if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
            value = ";".join(value)
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip():
            raise self._refused("namesrv", 'a text, "host:port;host:port"')
        for address in value.replace(",", ";").split(";"):
            if address.strip():
                split_address(address.strip())
        return value

    def _refused(self, name: str, allowed: str) -> ConfigError:
        return ConfigError(f"{name} of {self._file}", self._told[name], f"use {allowed}")
