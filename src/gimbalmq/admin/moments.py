"""Times as people write them on a command line."""

from __future__ import annotations

import re
from datetime import datetime

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.errors import ConfigError

_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)")
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_JAVA = re.compile(r"(\d{4}-\d\d-\d\d)#(\d\d:\d\d:\d\d)(?::(\d{3}))?")


def parse_moment(option: str, text: str, now_ms: int | None = None) -> int:
    """Milliseconds since 1970.

    ``now``; ``15m`` (ago; ms, s, m, h, d, w); ``2026-11-15 12:00`` or any ISO form, local unless it says
    otherwise; milliseconds since 1970; mqadmin's ``2026-11-15#12:00:00:000``.

    >>> parse_moment("--since", "90s", now_ms=100_000)
    10000

    Raises:
        ConfigError: it is none of these.
    """
    text = text.strip()
    if text == "now":
        return _now(now_ms)
    if text.isdigit():
        return int(text)
    ago = _AGO.fullmatch(text)
    if ago:
        return _now(now_ms) - int(float(ago[1]) * _UNITS[ago[2]])
    java = _JAVA.fullmatch(text)
    if java:
        text = f"{java[1]} {java[2]}.{java[3] or '000'}"
    try:
        return int(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except ValueError:
        raise ConfigError(
            option, text, "use now, 15m (ago), 2026-11-15 12:00 or milliseconds since 1970"
        ) from None


def _now(now_ms: int | None) -> int:
    return SYSTEM_CLOCK.wall_ms() if now_ms is None else now_ms
