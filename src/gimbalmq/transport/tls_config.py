"""Apache's ``tls.*`` keys, which the broker and the name server have in common."""

from __future__ import annotations

from dataclasses import dataclass

from gimbalmq._options import Configuration, option
from gimbalmq.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class TlsConfig(Configuration):
    """How a server is reached by TLS, and how it reaches others."""

    tls_server_mode: str = option(
        "permissive",
        "`disabled`, `permissive` (plain and TLS on one port) or `enforcing`",
        choices=("disabled", "permissive", "enforcing"),
        key="tls.server.mode",
        fixed=True,
    )
    tls_server_cert_path: str | None = option(
        None,
        "certificate, PEM, with those between it and its authority behind it",
        key="tls.server.certPath",
        fixed=True,
    )
    tls_server_key_path: str | None = option(
        None,
        "key of the certificate, PEM; unset if the certificate's file has it",
        key="tls.server.keyPath",
        fixed=True,
    )
    tls_server_key_password: str | None = option(
        None,
        "password of an encrypted key; never shown",
        key="tls.server.keyPassword",
        fixed=True,
        secret=True,
    )
    tls_server_trust_cert_path: str | None = option(
        None,
        "authorities that clients' certificates are checked against, PEM",
        key="tls.server.trustCertPath",
        fixed=True,
    )
    tls_server_need_client_auth: str = option(
        "none",
        "`none`, `optional` or `require`; a certificate shown is always checked",
        choices=("none", "optional", "require"),
        key="tls.server.need.client.auth",
        fixed=True,
    )
    tls_enable: bool | None = option(
        None,
        "whether the server's own connections use TLS; unset: if the mode is `enforcing`",
        key="tls.enable",
        fixed=True,
    )
    tls_client_auth_server: bool | None = option(
        None,
        "`false` believes every server; unset or `true` believes those below",
        key="tls.client.authServer",
        fixed=True,
    )
    tls_client_trust_cert_path: str | None = option(
        None,
        "authorities of the servers to believe, PEM, besides the own certificate",
        key="tls.client.trustCertPath",
        fixed=True,
    )
    tls_client_cert_path: str | None = option(
        None,
        "certificate shown to servers; unset: the server's own",
        key="tls.client.certPath",
        fixed=True,
    )
    tls_client_key_path: str | None = option(
        None,
        "key of that certificate, PEM",
        key="tls.client.keyPath",
        fixed=True,
    )
    tls_client_key_password: str | None = option(
        None,
        "password of that key; never shown",
        key="tls.client.keyPassword",
        fixed=True,
        secret=True,
    )

    def check(self) -> None:
        super().check()
        if self.enforcing and not self.tls_server_cert_path:
            raise ConfigError(
                "tls.server.certPath",
                self.tls_server_cert_path,
                "name the certificate; enforcing mode needs one",
            )
        for owner in ("server", "client"):
            if getattr(self, f"tls_{owner}_key_path") and not getattr(self, f"tls_{owner}_cert_path"):
                raise ConfigError(f"tls.{owner}.certPath", None, "name the certificate of the key as well")
        asked = self.tls_server_need_client_auth
        if asked != "none" and not self.tls_server_trust_cert_path:
            raise ConfigError(
                "tls.server.trustCertPath",
                self.tls_server_trust_cert_path,
                f"name the authorities of clients' certificates; tls.server.need.client.auth={asked} needs them",
            )

    @property
    def enforcing(self) -> bool:
        return self.tls_server_mode == "enforcing"

    @property
    def connects_by_tls(self) -> bool:
        return self.enforcing if self.tls_enable is None else self.tls_enable
