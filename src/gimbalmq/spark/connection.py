"""How brokers are reached: the options that source and sink have in common."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any, Final

from gimbalmq.client.config import parse_addresses
from gimbalmq.errors import ConfigError
from gimbalmq.spark.declared import Given, option, options_of, read_values
from gimbalmq.spark.option_values import BOOLEAN, TEXT, Kind, choice, duration
from gimbalmq.transport.tls import SYSTEM, client_tls

_ADDRESSES: Final = Kind("addresses", lambda _name, text: ";".join(parse_addresses(text)))
_TLS: Final = choice(
    {"off": "off", "trust": "trust", "verify": "verify"}, also={"true": "verify", "false": "off"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """How brokers are reached; travels to executors, which build the TLS context themselves."""

    namesrv: str = option(
        _ADDRESSES, "name servers, `host:port;host:port`; needed", needed="host:9876;host:9876"
    )
    connect_timeout: float = option(duration(), "how long making a connection may take", default="3s")
    access_key: str | None = option(TEXT, "ACL user; with `secretKey`")
    secret_key: str | None = option(TEXT, "ACL password", secret=True)
    security_token: str | None = option(TEXT, "ACL token of temporary keys", secret=True)
    tls: str = option(
        _TLS,
        "`off`, `verify` (or true), or `trust` to believe any certificate, as Java's client does",
        default="off",
    )
    tls_trust_file: str | None = option(TEXT, "certificates to believe instead of the system's")
    tls_cert_file: str | None = option(TEXT, "our own certificate, for brokers that ask for one")
    tls_key_file: str | None = option(TEXT, "the key of that certificate")
    tls_key_password: str | None = option(TEXT, "password of an encrypted key", secret=True)
    tls_check_host: bool = option(
        BOOLEAN, "with `verify`: a certificate must be for the address it is met at", default="true"
    )

    @classmethod
    def read(cls, given: Given) -> Connection:
        """Raises ConfigError naming the option that is wrong."""
        found = cls(**read_values(cls, given))
        if (found.access_key is None) != (found.secret_key is None):
            raise ConfigError("accessKey", found.access_key, "give accessKey and secretKey together")
        return found

    def client_options(self) -> dict[str, Any]:
        """Options for any ``ClientConfig``."""
        return {
            "namesrv": self.namesrv,
            "access_key": self.access_key,
            "secret_key": self.secret_key,
            "security_token": self.security_token,
            "tls": self._tls_context(),
            "connect_timeout": self.connect_timeout,
        }

    def _tls_context(self) -> ssl.SSLContext | None:
        if self.tls == "off":
            return None
        return client_tls(
            None if self.tls == "trust" else self.tls_trust_file or SYSTEM,
            self.tls_cert_file,
            self.tls_key_file,
            self.tls_key_password,
            check_host=self.tls_check_host,
            options=("tlsTrustFile", "tlsCertFile", "tlsKeyPassword"),
        )


CONNECTION_OPTIONS: Final = options_of(Connection)
