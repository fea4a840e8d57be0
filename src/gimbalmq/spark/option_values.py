"""Reading options: names that may be misspelt, and texts that mean numbers, sizes, times, choices.

Spark hands options over as text under lower-cased names; here they get their spelling back, and every
error says which option, what it held and what would do.
"""

from __future__ import annotations

import difflib
import re
import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from gimbalmq.client.config import parse_addresses
from gimbalmq.errors import ConfigError
from gimbalmq.transport.tls import SYSTEM, client_tls

_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_SIZE_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)
_DURATION_UNITS: Final = {
    "": 0.001,
    "ms": 0.001,
    "s": 1.0,
    "sec": 1.0,
    "second": 1.0,
    "seconds": 1.0,
    "m": 60.0,
    "min": 60.0,
    "minute": 60.0,
    "minutes": 60.0,
    "h": 3600.0,
    "hour": 3600.0,
    "hours": 3600.0,
    "d": 86_400.0,
    "day": 86_400.0,
    "days": 86_400.0,
}


_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname", "outputmode"})


def is_sparks_own(name: str) -> bool:
    """Whether it is an option of Spark's that reaches sources and sinks along with theirs."""
    lowered = name.lower().lstrip("_")
    return lowered in _SPARKS_OWN or lowered.startswith(("asyncprogresstracking", "spark."))


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant, in its own spelling."""
    spelt = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), spelt, n=1, cutoff=0.6)
    return spelt[close[0]] if close else None


def check_names(given: Iterable[str], known: Sequence[str], *, what: str) -> None:
    """Refuses the first name that is none of ``known``, whatever its case.

    Args:
        what: whose options they are, for the error: "the sink".

    Raises:
        ConfigError: naming the nearest known one, else all of them.
    """
    spelt = {name.lower() for name in known}
    for name in given:
        if name.lower() not in spelt:
            close = nearest(name, known)
            hint = f"did you mean {close}?" if close else f"there are {', '.join(sorted(known))}"
            raise ConfigError("option", name, f"{what} has no such option; {hint}")


class OptionReader:
    """Options by their camelCase names, whatever mapping they came in.

    >>> OptionReader({"sendtimeout": "5s"}).duration("sendTimeout", 3.0)
    5.0
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): str(value) for name, value in options.items()}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def text(self, name: str, default: str | None = None) -> str | None:
        """The text; None, the default, also where it is blank."""
        value = self._values.get(name.lower())
        return default if value is None or not value.strip() else value.strip()

    def needed(self, name: str, example: str) -> str:
        value = self.text(name)
        if value is None:
            raise ConfigError(name, self._values.get(name.lower()), f"it is needed: {example}")
        return value

    def boolean(self, name: str, default: bool) -> bool:
        value = self.text(name)
        return default if value is None else read_boolean(name, value)

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        value = self.text(name)
        return default if value is None else read_integer(name, value, low, high)

    def optional_integer(self, name: str, low: int, high: int) -> int | None:
        value = self.text(name)
        return None if value is None else read_integer(name, value, low, high)

    def size(self, name: str, default: int, low: int, high: int) -> int:
        value = self.text(name)
        return default if value is None else read_size(name, value, low, high)

    def duration(self, name: str, default: float, low: float = 0.001, high: float = 86_400.0) -> float:
        value = self.text(name)
        return default if value is None else read_duration(name, value, low, high)

    def choice(self, name: str, default: str, choices: Sequence[str]) -> str:
        value = self.text(name)
        return default if value is None else read_choice(name, value, choices)

    def listed(self, name: str) -> tuple[str, ...]:
        """Comma-separated items, blanks around them dropped, each once."""
        return tuple(
            dict.fromkeys(part.strip() for part in (self.text(name) or "").split(",") if part.strip())
        )

    def time_ms(self, name: str) -> int | None:
        value = self.text(name)
        return None if value is None else read_time_ms(name, value)


def read_boolean(name: str, text: str) -> bool:
    value = text.lower()
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise ConfigError(name, text, "use true or false")


def read_integer(name: str, text: str, low: int, high: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ConfigError(name, text, f"use a whole number from {low} to {high}") from None
    if not low <= value <= high:
        raise ConfigError(name, text, f"use {low} to {high}")
    return value


def read_size(name: str, text: str, low: int, high: int) -> int:
    """Bytes: ``65536``, ``64k``, ``1.5 MiB`` (all units are powers of 1024)."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ConfigError(name, text, "use a number of bytes such as 65536, 64k or 1m")
    value = int(float(found[1]) * _SIZE_UNITS[found[2].lower()])
    if not low <= value <= high:
        raise ConfigError(name, text, f"use {low} to {high} bytes")
    return value


def read_duration(name: str, text: str, low: float = 0.001, high: float = 86_400.0) -> float:
    """Seconds, from ``500ms``, ``10s``, ``5m``; a bare number is milliseconds, as in RocketMQ's settings."""
    found = _DURATION.fullmatch(text.strip())
    unit = None if found is None else _DURATION_UNITS.get(found[2].lower())
    if found is None or unit is None:
        raise ConfigError(name, text, "use a time such as 500ms, 10s or 5m")
    value = float(found[1]) * unit
    if not low <= value <= high:
        raise ConfigError(name, text, f"use {low:g} s to {high:g} s")
    return value


def read_choice(name: str, text: str, choices: Sequence[str]) -> str:
    for choice in choices:
        if choice.lower() == text.lower():
            return choice
    raise ConfigError(name, text, f"use one of {', '.join(choices)}")


def read_time_ms(name: str, text: str) -> int:
    """Milliseconds since 1970, from such a number or an ISO time; without a zone it is UTC."""
    if text.lstrip("-").isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            name, text, "use milliseconds since 1970 or an ISO time such as 2024-05-01T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


# --- what every connection is told ---------------------------------------------------------------

CONNECTION_OPTIONS: Final = (
    "namesrv",
    "accessKey",
    "secretKey",
    "securityToken",
    "tls",
    "tlsTrustFile",
    "tlsCertFile",
    "tlsKeyFile",
    "tlsKeyPassword",
    "tlsCheckHost",
    "connectTimeout",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """How brokers are reached; travels to executors, which build the TLS context themselves.

    Attributes:
        namesrv: ``host:port;host:port``.
        tls: ``off``, ``trust`` (any certificate, as Java's default) or ``verify``.
        tls_trust_file: certificates to believe under ``verify``, instead of the system's.
        tls_cert_file, tls_key_file, tls_key_password: our own, if brokers ask for one.
        tls_check_host: under ``verify`` a certificate must be for the address it is met at.
    """

    namesrv: str
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    security_token: str | None = field(default=None, repr=False)
    tls: str = "off"
    tls_trust_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_key_password: str | None = field(default=None, repr=False)
    tls_check_host: bool = True
    connect_timeout: float = 3.0

    @classmethod
    def read(cls, options: OptionReader) -> Connection:
        """Raises ConfigError naming the option that is wrong."""
        namesrv = ";".join(parse_addresses(options.needed("namesrv", "host:9876;host:9876")))
        access, secret = options.text("accessKey"), options.text("secretKey")
        if (access is None) != (secret is None):
            raise ConfigError("accessKey", access, "give accessKey and secretKey together")
        tls = options.text("tls", "off") or "off"
        tls = {"true": "verify", "false": "off"}.get(tls.lower(), tls)
        trust_file = options.text("tlsTrustFile")
        return cls(
            namesrv=namesrv,
            access_key=access,
            secret_key=secret,
            security_token=options.text("securityToken"),
            tls=read_choice("tls", tls, ("off", "trust", "verify")),
            tls_trust_file=trust_file,
            tls_cert_file=options.text("tlsCertFile"),
            tls_key_file=options.text("tlsKeyFile"),
            tls_key_password=options.text("tlsKeyPassword"),
            tls_check_host=options.boolean("tlsCheckHost", True),
            connect_timeout=options.duration("connectTimeout", 3.0),
        )

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
