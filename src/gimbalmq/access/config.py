"""Apache's keys of authentication and authorisation, and ours, which the broker and the name server have in common."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from gimbalmq._options import Configuration, key_of, option
from gimbalmq.access.trusted_servers import TrustedServers
from gimbalmq.errors import ConfigError, InvalidParameterError

_IGNORED = "Apache's; accepted and without effect here"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A name and its secret, as an option gives them."""

    name: str
    secret: str

    def __repr__(self) -> str:
        return f"Credentials({self.name!r})"


@dataclass(frozen=True, kw_only=True)
class AccessConfig(Configuration):
    """Who is let in. Nothing of it changes while a server runs: request 25 must not open a door."""

    authentication_enabled: bool = option(
        False, "every request must carry the signature of an enabled user", fixed=True
    )
    authorization_enabled: bool = option(
        False, "users other than Super ones may only do what their policies allow", fixed=True
    )
    authorization_rules: str = option(
        "strict",
        "ours: `strict`, or `apache`, which leaves open what Apache's broker leaves open (see auth.md)",
        choices=("strict", "apache"),
        fixed=True,
    )
    access_mode: str = option(
        "enforcing",
        "ours: `enforcing`, or `permissive`: what would be refused is served and noted in the audit log, except for "
        "requests that only administrators may send; for the time in which clients are given their keys",
        choices=("enforcing", "permissive"),
        fixed=True,
    )
    authentication_whitelist: str = option(
        "",
        "numbers of requests that need no signature, with commas between them; those for administrators and servers "
        "need one all the same",
        fixed=True,
    )
    authorization_whitelist: str = option(
        "", "numbers of requests that need no policy, with commas between them", fixed=True
    )
    init_authentication_user: str | None = option(
        None,
        'first administrator, `{"username":"...","password":"..."}`; made at the start if there is no user of this '
        "name, and never changed later; never shown",
        fixed=True,
        secret=True,
    )
    inner_client_authentication_credentials: str | None = option(
        None,
        'what servers sign their own calls with, `{"accessKey":"...","secretKey":"..."}`; all servers of a cluster '
        "have the same; made a Super user at the start if there is no user of this name; never shown",
        fixed=True,
        secret=True,
    )
    auth_config_path: str | None = option(
        None,
        "folder of `users.json` and `acls.json`; unset: the broker's `config` folder, the name server's folder of "
        "`kvConfigPath`. Apache's broker overwrites it",
        fixed=True,
    )
    authentication_metadata_provider: str | None = option(
        None,
        "Apache's class; here any text means that users are kept, and requests 3001-3010 served, also while "
        "authentication is off: anybody may then make users",
        fixed=True,
    )
    authorization_metadata_provider: str | None = option(None, _IGNORED, fixed=True)
    authentication_provider: str | None = option(None, _IGNORED, fixed=True)
    authorization_provider: str | None = option(None, _IGNORED, fixed=True)
    authentication_strategy: str | None = option(None, f"{_IGNORED}: every signature is verified", fixed=True)
    authorization_strategy: str | None = option(
        None, f"{_IGNORED}: a decision is kept until users or policies change", fixed=True
    )
    acl_enable: bool = option(
        False, "the accounts of `plain_acl.yml` (4.x) count, and both checks are on", fixed=True
    )
    acl_config_path: str | None = option(
        None,
        "ours: `plain_acl.yml`, or the folder that holds it and `acl/`, Apache's `conf`; unset: `conf` in "
        "`rocketmqHome`, else the folder of the file given by `-c`, if it holds one of them, else `conf` in the folder "
        "of the server's data",
        fixed=True,
    )
    rocketmq_home: str | None = option(
        None, "Apache's folder; its `conf` holds `plain_acl.yml`, and nothing else of it is used", fixed=True
    )
    routes_public: bool = option(True, "ours, name server: routes are told without a signature", fixed=True)
    trusted_servers: tuple[str, ...] = option(
        (),
        "ours, name server: servers whose registration needs no signature, separated by `;`: addresses, CIDR, or "
        "client certificates (`CN=name`, or the SHA-256 fingerprint); for brokers that do not sign",
        fixed=True,
    )

    audit_log_format: str = option(
        "text", "ours: form of audit lines, `text` or `json`", choices=("text", "json"), fixed=True
    )
    audit_log_path: str | None = option(
        None, "ours: file that audit lines go to, besides the server's log", fixed=True
    )
    auth_failures_free: int = option(
        10, "ours: refusals of one address that are answered at once", between=(0, 1_000_000), fixed=True
    )
    auth_failure_delay_millis: int = option(
        100,
        "ours: ms by which the next one is delayed; twice as many each time; 0 is never",
        between=(0, 60_000),
        fixed=True,
    )
    auth_failure_max_delay_millis: int = option(
        2_000,
        "ours: most ms by which a refusal is delayed; Java's clients wait 3,000 for an answer",
        between=(0, 60_000),
        fixed=True,
    )
    auth_failure_forget_seconds: int = option(
        60,
        "ours: s without a refusal after which an address has a clean sheet",
        between=(1, 86_400),
        fixed=True,
    )
    auth_guesses_per_minute: int = option(
        300,
        "ours: wrong signatures of one user from one address that are looked at in a minute, ten times as many of all "
        "users together; beyond that no new connection from there is believed until the minute is over; 0 is no bound",
        between=(0, 1_000_000),
        fixed=True,
    )
    max_auth_failure_addresses: int = option(
        10_000,
        "ours: addresses whose refusals are counted, also by user; the longest silent goes first",
        between=(1, 1_000_000),
        fixed=True,
    )

    def check(self) -> None:
        super().check()
        for name in ("authentication_whitelist", "authorization_whitelist"):
            _codes(name, getattr(self, name))
        self.first_user()
        self.inner_credentials()
        self.trusted()
        if self.authorization_enabled and not self.authenticates and self.authorization_rules == "strict":
            raise ConfigError(
                key_of(AccessConfig, "authorization_enabled"),
                True,
                "a name without a signature proves nothing: set authenticationEnabled=true as well "
                "(or authorizationRules=apache, to believe names as Apache's broker does)",
            )

    @property
    def authenticates(self) -> bool:
        """Whether requests must be signed."""
        return self.authentication_enabled or self.acl_enable

    @property
    def authorizes(self) -> bool:
        """Whether what users may do is looked at."""
        return self.authorization_enabled or self.acl_enable

    @property
    def keeps_users(self) -> bool:
        """Whether there is a table of users."""
        return self.authenticates or self.authorizes or bool(self.authentication_metadata_provider)

    def unsigned_codes(self) -> frozenset[int]:
        """Requests that need no signature."""
        return _codes("authentication_whitelist", self.authentication_whitelist)

    def unchecked_codes(self) -> frozenset[int]:
        """Requests that need no policy."""
        return _codes("authorization_whitelist", self.authorization_whitelist)

    def first_user(self) -> Credentials | None:
        return _credentials("init_authentication_user", self.init_authentication_user, "username", "password")

    def inner_credentials(self) -> Credentials | None:
        return _credentials(
            "inner_client_authentication_credentials",
            self.inner_client_authentication_credentials,
            "accessKey",
            "secretKey",
        )

    def trusted(self) -> TrustedServers:
        try:
            return TrustedServers(self.trusted_servers)
        except InvalidParameterError as error:
            raise ConfigError(
                key_of(AccessConfig, "trusted_servers"),
                ";".join(self.trusted_servers),
                f"{error.remark} (or CN=name of a client certificate, or its SHA-256 fingerprint)",
            ) from None


def _codes(name: str, text: str) -> frozenset[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if not (word.isascii() and word.isdigit() and len(word) <= 9):
            raise ConfigError(
                key_of(AccessConfig, name),
                word,
                "use numbers of requests with commas between them, as 105,34",
            )
    return frozenset(map(int, words))


def _credentials(name: str, text: str | None, user: str, secret: str) -> Credentials | None:
    if text is None or not text.strip():
        return None
    # What cannot be read may still be a secret: the error shows none of it.
    refused = ConfigError(key_of(AccessConfig, name), "...", f'use {{"{user}":"...","{secret}":"..."}}')
    try:
        raw = msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.MsgspecError, UnicodeEncodeError):
        raise refused from None
    if set(raw) != {user, secret} or not raw[user].strip() or not raw[secret].strip():
        raise refused
    return Credentials(raw[user], raw[secret])
