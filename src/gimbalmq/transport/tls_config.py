"""Apache's ``tls.*`` keys, which the broker and the name server have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from gimbalmq._options import Configuration, did_you_mean, option, options_by_key
from gimbalmq.errors import ConfigError
from gimbalmq.protocol import properties_text

FILE_KEY = "tls.config.file"

_NOT_IN_THE_FILE = ("tls.server.mode", "tls.enable", FILE_KEY)
"""Apache's servers take these from the command line only, whatever their file says."""


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
    tls_server_auth_client: bool | None = option(
        None,
        "`false` says that clients' certificates are not checked; they always are, so it only fits `none` "
        "and `optional`, which then asks for none",
        key="tls.server.authClient",
        fixed=True,
    )
    tls_test_mode_enable: bool = option(
        False,
        "`true`, which has Apache's servers make up a certificate, is refused",
        key="tls.test.mode.enable",
        fixed=True,
    )
    tls_enable: bool | None = option(
        None,
        "whether the server's own connections use TLS; unset: if plain peers are refused",
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
    tls_client_check_host: bool | None = option(
        None,
        "whether a server's certificate must be for the address it is met at; unset: only if no more than the "
        "system's authorities vouch for it",
        key="tls.client.checkHost",
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

    tls_config_file: str | None = option(
        None,
        "Apache's `tls.properties`, a file with the keys above except `tls.server.mode` and `tls.enable`",
        key=FILE_KEY,
        fixed=True,
    )

    @classmethod
    def from_properties(
        cls, properties: Mapping[str, str], base: Self | None = None
    ) -> tuple[Self, list[str]]:
        named = properties.get(FILE_KEY, "").strip()
        # A running server is not told anew what it was started with.
        if named and (base is None or base.tls_config_file != named):
            properties = {**properties, **_keys_of_file(named, properties)}
        return super().from_properties(properties, base)

    def check(self) -> None:
        super().check()
        if self.tls_test_mode_enable:
            raise ConfigError(
                "tls.test.mode.enable",
                True,
                "no certificate is made up here; make one with `gimbalmq cert` and name it by tls.server.certPath",
            )
        self._check_client_certificates()
        if self.refuses_plain and not self.tls_server_cert_path:
            asks = "enforcing mode" if self.enforcing else "tls.server.need.client.auth=require"
            raise ConfigError(
                "tls.server.certPath", self.tls_server_cert_path, f"name the certificate; {asks} needs one"
            )
        for owner in ("server", "client"):
            if getattr(self, f"tls_{owner}_key_path") and not getattr(self, f"tls_{owner}_cert_path"):
                raise ConfigError(f"tls.{owner}.certPath", None, "name the certificate of the key as well")

    def _check_client_certificates(self) -> None:
        asked = self.tls_server_need_client_auth
        if asked == "require" and self.tls_server_mode == "disabled":
            raise ConfigError(
                "tls.server.need.client.auth",
                asked,
                "a plain peer has no certificate; set tls.server.mode to enforcing or permissive",
            )
        if asked == "require" and self.tls_server_auth_client is False:
            raise ConfigError(
                "tls.server.authClient",
                False,
                "tls.server.need.client.auth=require would mean nothing; leave it out, or say true",
            )
        if self.client_certificates != "none" and not self.tls_server_trust_cert_path:
            raise ConfigError(
                "tls.server.trustCertPath",
                self.tls_server_trust_cert_path,
                f"name the authorities of clients' certificates; tls.server.need.client.auth={asked} needs them",
            )

    @property
    def enforcing(self) -> bool:
        return self.tls_server_mode == "enforcing"

    @property
    def client_certificates(self) -> str:
        """``none``, ``optional`` or ``require``; one that would not be checked is not asked for."""
        return "none" if self.tls_server_auth_client is False else self.tls_server_need_client_auth

    @property
    def refuses_plain(self) -> bool:
        """Whether only TLS peers are served: a plain one cannot show the certificate that is required."""
        return self.enforcing or self.client_certificates == "require"

    @property
    def connects_by_tls(self) -> bool:
        return self.refuses_plain if self.tls_enable is None else self.tls_enable


def _keys_of_file(name: str, beside: Mapping[str, str]) -> dict[str, str]:
    """What Apache's ``tls.properties`` says.

    Raises:
        ConfigError: it cannot be read, has a key that means nothing there, or contradicts ``beside``.
    """
    try:
        found = properties_text.loads(Path(name).read_text("utf-8"))
    except OSError as error:
        raise ConfigError(FILE_KEY, name, f"cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(FILE_KEY, name, f"is no file of properties: {error}") from error
    known = options_by_key(TlsConfig)
    for key, text in found.items():
        if key in _NOT_IN_THE_FILE:
            raise ConfigError(
                FILE_KEY, name, f"Apache's servers do not read {key} from it; say it in the server's own file"
            )
        if key not in known:
            raise ConfigError(
                FILE_KEY, name, f"it has {key}, which is no key of TLS{did_you_mean(key, known)}"
            )
        if beside.get(key, text).strip() != text.strip():
            raise known[key].refused(beside[key], f"{name} says something else; say it in one place")
    return found
