"""How brokers are reached: the options that source and sink have in common.

What the options leave open comes from a client file, and what that leaves open from the environment, as with the
commands. A secret in a client file or a ``secretKeyFile`` is read by each process that needs it and never travels.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from gimbalmq.client.client_file import VARIABLE, ClientFile, read_client_file, said
from gimbalmq.client.config import parse_addresses
from gimbalmq.errors import ConfigError
from gimbalmq.spark.declared import Given, option, options_of, read_values
from gimbalmq.spark.option_values import BOOLEAN, TEXT, Kind, choice, duration
from gimbalmq.transport.tls import SYSTEM, client_tls
from gimbalmq.transport.whole_files import read_secret, stamp_of

_ADDRESSES: Final = Kind("addresses", lambda _name, text: ";".join(parse_addresses(text)))
_TLS: Final = choice(
    {"off": "off", "trust": "trust", "verify": "verify"}, also={"true": "verify", "false": "off"}
)
NO_FILE: Final = "none"
"""As ``clientFile``: not even the one that the environment names."""


def _path(_name: str, text: str) -> str:
    # Executors work in other folders than the driver.
    return text if text.lower() == NO_FILE else str(Path(text).expanduser().absolute())


_PATH: Final = Kind("file", _path)
_TRUST: Final = Kind("file", lambda name, text: text if text == SYSTEM else _path(name, text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """How brokers are reached; travels to executors, which read files and build the TLS context themselves."""

    namesrv: str = option(
        _ADDRESSES,
        "name servers, `host:port;host:port`; needed, unless the client file or `$NAMESRV_ADDR` says it",
        needed="host:9876;host:9876",
    )
    connect_timeout: float = option(duration(), "how long making a connection may take", default="3s")
    client_file: str | None = option(
        _PATH,
        "file with name servers, keys and TLS, for what the options leave open, at the same place on every machine; "
        f"unset: `${VARIABLE}`; `none`: not even that",
    )
    access_key: str | None = option(TEXT, "ACL user; with `secretKeyFile` or `secretKey`")
    secret_key: str | None = option(
        TEXT, "ACL password; a file is safer (see [secrets](#secrets))", secret=True
    )
    secret_key_file: str | None = option(
        _PATH, "file that holds the ACL password and nothing else, at the same place on every machine"
    )
    security_token: str | None = option(TEXT, "ACL token of temporary keys", secret=True)
    tls: str | None = option(
        _TLS,
        "`off`, `verify` (or true), or `trust` to believe any certificate, as Java's client does; unset: `verify` if "
        "an option, the client file or the environment says anything of TLS",
    )
    tls_trust_file: str | None = option(_TRUST, "certificates to believe instead of the system's")
    tls_cert_file: str | None = option(_PATH, "our own certificate, for brokers that ask for one")
    tls_key_file: str | None = option(_PATH, "the key of that certificate")
    tls_key_password: str | None = option(TEXT, "password of an encrypted key", secret=True)
    tls_check_host: bool = option(
        BOOLEAN, "with `verify`: a certificate must be for the address it is met at", default="true"
    )

    @classmethod
    def read(cls, given: Given, environment: Mapping[str, str] | None = None) -> Connection:
        """Raises ConfigError naming the option that is wrong."""
        environment = os.environ if environment is None else environment
        given.otherwise("clientFile", environment.get(VARIABLE))
        named = given.text(_NAMED["clientFile"])
        file = _read_file(_path("", named)) if named and named.lower() != NO_FILE else None
        given.otherwise("namesrv", file.namesrv if file else None)
        given.otherwise("namesrv", environment.get("NAMESRV_ADDR"))
        found = cls(**read_values(cls, given))
        if found.client_file == NO_FILE:
            found = replace(found, client_file=None)
        found = found._with_keys(file, environment)._with_tls(file, environment)
        found._check()
        return found

    def _with_keys(self, file: ClientFile | None, environment: Mapping[str, str]) -> Connection:
        """With what the environment says of keys, if nothing else does."""
        if self.secret_key is not None and self.secret_key_file is not None:
            raise ConfigError(
                "secretKeyFile", self.secret_key_file, "secretKey is given, too; give one of them"
            )
        has_secret = self.secret_key is not None or self.secret_key_file is not None
        if self.access_key is None:
            if (
                has_secret
                or (file is not None and file.access_key)
                or not environment.get("ROCKETMQ_ACCESS_KEY")
            ):
                return self
            found = replace(self, access_key=environment["ROCKETMQ_ACCESS_KEY"])
        else:
            found = self
        if has_secret:
            return found
        return replace(found, secret_key=environment.get("ROCKETMQ_SECRET_KEY") or None)

    def _with_tls(self, file: ClientFile | None, environment: Mapping[str, str]) -> Connection:
        """With what the environment says of TLS, if nothing else does."""
        if self.tls is not None or (file is not None and file.speaks_tls):
            return self
        if self.tls_trust_file or self.tls_cert_file:
            return replace(self, tls="verify")
        trusted = environment.get("ROCKETMQ_TLS_CA") or None
        cert = environment.get("ROCKETMQ_TLS_CERT") or None
        any_cert = trusted is None and said(environment, "ROCKETMQ_TLS_ANY_CERT")
        if not (trusted or cert or any_cert or said(environment, "ROCKETMQ_TLS")):
            return self
        key = environment.get("ROCKETMQ_TLS_KEY") or None
        return replace(
            self,
            tls="trust" if any_cert else "verify",
            tls_trust_file=trusted and _TRUST.read("", trusted),
            tls_cert_file=cert and _path("", cert),
            tls_key_file=key and _path("", key),
            tls_key_password=environment.get("ROCKETMQ_TLS_KEY_PASSWORD") or None,
            tls_check_host=self.tls_check_host and not said(environment, "ROCKETMQ_TLS_ANY_HOST"),
        )

    def _check(self) -> None:
        has_secret = self.secret_key is not None or self.secret_key_file is not None
        if (self.access_key is None) == has_secret:
            raise ConfigError(
                "accessKey", self.access_key, "give accessKey and secretKeyFile (or secretKey) together"
            )
        if self.security_token is not None and self.access_key is None:
            raise ConfigError(
                "accessKey", None, "a security token is given; give the keys it belongs to, too"
            )
        if self.tls == "trust" and self.tls_trust_file:
            raise ConfigError(
                "tlsTrustFile", self.tls_trust_file, "tls=trust believes any certificate; say tls=verify"
            )
        if self.tls_key_file and not self.tls_cert_file:
            raise ConfigError("tlsKeyFile", self.tls_key_file, "give tlsCertFile, too")

    # -- in the process that connects ------------------------------------------------------

    def client_options(self) -> dict[str, Any]:
        """Options for any ``ClientConfig``; reads the files.

        Raises:
            ConfigError: a file cannot be used.
        """
        file = None if self.client_file is None else _read_file(self.client_file)
        return {
            "namesrv": self.namesrv,
            "tls": self._tls_context(file),
            "connect_timeout": self.connect_timeout,
            **self._keys(file),
        }

    def stamp(self) -> tuple[object, ...]:
        """Differs from what it was before if a file with a secret has changed since."""
        return tuple(stamp_of(path) for path in (self.client_file, self.secret_key_file) if path is not None)

    def _keys(self, file: ClientFile | None) -> dict[str, str | None]:
        if self.access_key is None and file is not None:
            return {
                "access_key": file.access_key,
                "secret_key": file.secret_key,
                "security_token": file.security_token,
            }
        secret = self.secret_key
        if self.secret_key_file is not None:
            secret = read_secret(
                self.secret_key_file, "secretKeyFile", "; every machine that runs Spark needs it"
            )
        return {
            "access_key": self.access_key,
            "secret_key": secret,
            "security_token": self.security_token,
        }

    def _tls_context(self, file: ClientFile | None) -> ssl.SSLContext | None:
        if self.tls == "off" or (self.tls is None and not (file is not None and file.speaks_tls)):
            return None
        cert, key = self.tls_cert_file, self.tls_key_file
        password = self.tls_key_password
        trusted, check_host = self.tls_trust_file, self.tls_check_host
        if file is not None:
            if cert is None:
                cert, key, password = file.tls_cert, file.tls_key, password or file.tls_key_password
            trusted, check_host = trusted or file.tls_ca, check_host and not file.tls_any_host
        believes_any = self.tls is None and file is not None and file.tls_any_cert and trusted is None
        verify = self.tls != "trust" and not believes_any
        return client_tls(
            trusted if verify else None,
            cert,
            key,
            password,
            verify=verify,
            check_host=check_host,
            options=("tlsTrustFile", "tlsCertFile", "tlsKeyPassword"),
        )


CONNECTION_OPTIONS: Final = options_of(Connection)
_NAMED: Final = {each.name: each for each in CONNECTION_OPTIONS}


def _read_file(path: str) -> ClientFile:
    if not os.path.exists(path):
        raise ConfigError(
            "clientFile",
            path,
            f"{socket.gethostname()} has no such file; every machine that runs Spark needs it at the same place",
        )
    return read_client_file(path)
