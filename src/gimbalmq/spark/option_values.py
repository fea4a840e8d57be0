"""Kinds of values that options have: texts that mean numbers, sizes, times, choices, names.

Every error names the option, what it held and what would do.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Generic, TypeVar

from gimbalmq.errors import ConfigError
from gimbalmq.filter.tags import parse_tags
from gimbalmq.model.topics import group_problem, topic_problem

T = TypeVar("T")

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


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """A kind of value.

    Attributes:
        type: its name in the documentation.
        read: an option's name and its text in, the value out; raises ConfigError.
    """

    type: str
    read: Callable[[str, str], T]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant, in its own spelling."""
    spelt = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), spelt, n=1, cutoff=0.6)
    return spelt[close[0]] if close else None


# --- plain values --------------------------------------------------------------------------------


def _text(_name: str, text: str) -> str:
    return text


def _boolean(name: str, text: str) -> bool:
    value = text.lower()
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise ConfigError(name, text, "use true or false")


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


def _listed(_name: str, text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


TEXT: Final = Kind("text", _text)
BOOLEAN: Final = Kind("boolean", _boolean)
TIME_MS: Final = Kind("time", read_time_ms)
LISTED: Final = Kind("list", _listed)
"""Items between commas, blanks around them dropped, each once."""


def integer(low: int, high: int = 2**63 - 1) -> Kind[int]:
    def read(name: str, text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ConfigError(name, text, f"use a whole number from {low} to {high}") from None
        if not low <= value <= high:
            raise ConfigError(name, text, f"use {low} to {high}")
        return value

    return Kind("number", read)


def size(low: int, high: int = 2**63 - 1, *, off: int | None = None) -> Kind[int]:
    """Bytes: ``65536``, ``64k``, ``1.5 MiB`` (all units are powers of 1024).

    Args:
        off: what `off`, `never` and `none` mean; None if they mean nothing.
    """

    def read(name: str, text: str) -> int:
        if off is not None and text.lower() in ("off", "never", "none"):
            return off
        found = _SIZE.fullmatch(text.strip())
        if found is None:
            raise ConfigError(name, text, "use a number of bytes such as 65536, 64k or 1m")
        value = int(float(found[1]) * _SIZE_UNITS[found[2].lower()])
        if not low <= value <= high:
            raise ConfigError(name, text, f"use {low} to {high} bytes")
        return value

    return Kind("bytes", read)


def duration(low: float = 0.001, high: float = 86_400.0) -> Kind[float]:
    """Seconds, from ``500ms``, ``10s``, ``5m``; a bare number is milliseconds, as in RocketMQ's settings."""

    def read(name: str, text: str) -> float:
        found = _DURATION.fullmatch(text.strip())
        unit = None if found is None else _DURATION_UNITS.get(found[2].lower())
        if found is None or unit is None:
            raise ConfigError(name, text, "use a time such as 500ms, 10s or 5m")
        value = float(found[1]) * unit
        if not low <= value <= high:
            raise ConfigError(name, text, f"use {low:g} s to {high:g} s")
        return value

    return Kind("duration", read)


def choice(values: Mapping[str, T], *, also: Mapping[str, str] | None = None) -> Kind[T]:
    """One of some words, whatever their case.

    Args:
        values: what each word means.
        also: other words for some of them, which errors do not offer.
    """
    others = dict(also or {})

    def read(name: str, text: str) -> T:
        word = others.get(text.lower(), text).lower()
        for each, value in values.items():
            if each.lower() == word:
                return value
        raise ConfigError(name, text, f"use one of {', '.join(values)}")

    return Kind("choice", read)


def word(*words: str) -> Kind[str]:
    """One of some words, as itself."""
    return choice({each: each for each in words})


# --- names and expressions -----------------------------------------------------------------------


def _pattern(name: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(name, text, f"no regular expression: {error}") from None
    return text


def _group(name: str, text: str) -> str:
    problem = group_problem(text)
    if problem is not None:
        raise ConfigError(name, text, problem)
    return text


def _tags(name: str, text: str) -> str:
    try:
        parse_tags(text)
    except ValueError as error:
        raise ConfigError(name, text, str(error)) from None
    return text


def _topics(name: str, text: str) -> tuple[str, ...]:
    named = _listed(name, text)
    for topic in named:
        problem = topic_problem(topic)
        if problem is not None:
            raise ConfigError(name, topic, problem)
    if not named:
        raise ConfigError(name, text, "name at least one topic")
    return named


PATTERN: Final = Kind("pattern", _pattern)
GROUP: Final = Kind("group", _group)
TAGS: Final = Kind("tags", _tags)
TOPICS: Final = Kind("topics", _topics)


def json_object(name: str, text: str, shape: str) -> dict[str, Any]:
    """A JSON object; what it holds is for the caller to look at.

    Args:
        shape: what the error says would do.
    """
    try:
        found = json.loads(text)
    except ValueError:
        raise ConfigError(name, text, shape) from None
    if not isinstance(found, dict):
        raise ConfigError(name, text, shape)
    return found
