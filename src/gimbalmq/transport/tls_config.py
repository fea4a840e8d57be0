"""Apache's ``tls.*`` keys, which the broker and the name server have in common."""

from __future__ import annotations

from dataclasses import dataclass, field

from gimbalmq.errors import ConfigError

TLS_PROPERTY_NAMES = {
    "tls_server_mode": "tls.server.mode",
    "tls_server_cert_path": "tls.server.certPath",
    "tls_server_key_path": "tls.server.keyPath",
    "tls_server_key_password": "tls.server.keyPassword",
    "tls_server_trust_cert_path": "tls.server.trustCertPath",
    "tls_server_need_client_auth": "tls.server.need.client.auth",
    "tls_enable": "tls.enable",
    "tls_client_auth_server": "tls.client.authServer",
    "tls_client_trust_cert_path": "tls.client.trustCertPath",
    "tls_client_cert_path": "tls.client.certPath",
    "tls_client_key_path": "tls.client.keyPath",
    "tls_client_key_password": "tls.client.keyPassword",
}
"""RocketMQ's key of each field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """How a server is reached by TLS, and how it reaches others.

    Attributes:
        tls_server_mode: ``disabled``, ``permissive`` (plain and TLS on one port) or ``enforcing``.
        tls_server_cert_path: certificate, PEM, with those between it and its authority behind it.
        tls_server_key_path: key of the certificate, PEM; unset if the certificate's file has it.
        tls_server_key_password: password of an encrypted key; never shown.
        tls_server_trust_cert_path: authorities that clients' certificates are checked against, PEM.
        tls_server_need_client_auth: ``none``, ``optional`` or ``require``; a certificate shown is always checked.
        tls_enable: whether the server's own connections use TLS; unset: if the mode is ``enforcing``.
        tls_client_auth_server: ``false`` believes every server; unset or ``true`` believes those below.
        tls_client_trust_cert_path: authorities of the servers to believe, PEM, besides the own certificate.
        tls_client_cert_path: certificate shown to servers; unset: the server's own.
        tls_client_key_path: key of that certificate, PEM.
        tls_client_key_password: password of that key; never shown.
    """

    tls_server_mode: str = "permissive"
    tls_server_cert_path: str | None = None
    tls_server_key_path: str | None = None
    tls_server_key_password: str | None = field(default=None, repr=False)
    tls_server_trust_cert_path: str | None = None
    tls_server_need_client_auth: str = "none"
    tls_enable: bool | None = None
    tls_client_auth_server: bool | None = None
    tls_client_trust_cert_path: str | None = None
    tls_client_cert_path: str | None = None
    tls_client_key_path: str | None = None
    tls_client_key_password: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, allowed in (
            ("tls_server_mode", ("disabled", "permissive", "enforcing")),
            ("tls_server_need_client_auth", ("none", "optional", "require")),
        ):
            value = getattr(self, name)
            if value.lower() not in allowed:
                *most, last = allowed
                raise ConfigError(TLS_PROPERTY_NAMES[name], value, f"use {', '.join(most)} or {last}")
        if self.enforcing and not self.tls_server_cert_path:
            raise ConfigError(
                "tls.server.certPath",
                self.tls_server_cert_path,
                "name the certificate; enforcing mode needs one",
            )
        for owner in ("server", "client"):
            if getattr(self, f"tls_{owner}_key_path") and not getattr(self, f"tls_{owner}_cert_path"):
                raise ConfigError(f"tls.{owner}.certPath", None, "name the certificate of the key as well")
        asked = self.tls_server_need_client_auth.lower()
        if asked != "none" and not self.tls_server_trust_cert_path:
            raise ConfigError(
                "tls.server.trustCertPath",
                self.tls_server_trust_cert_path,
                f"name the authorities of clients' certificates; tls.server.need.client.auth={asked} needs them",
            )

    @property
    def enforcing(self) -> bool:
        return self.tls_server_mode.lower() == "enforcing"

    @property
    def connects_by_tls(self) -> bool:
        return self.enforcing if self.tls_enable is None else self.tls_enable
