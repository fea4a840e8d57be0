"""Configurations of servers: an option is declared once, and everything else follows from its declaration.

A configuration is a frozen dataclass whose fields are made by ``option``::

    @dataclass(frozen=True, kw_only=True)
    class BrokerConfig(Configuration):
        listen_port: int = option(10911, "port to listen on", between=(0, 65535), fixed=True)

The declaration gives the key in RocketMQ's files, how a text is read and written, the check of the value, the words of
the error, whether a running server takes a change, and the row of the table in the documentation. Configurations may
inherit options from several others. They never read the environment.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Self, TypeVar, cast, get_type_hints

from gimbalmq.errors import ConfigError

T = TypeVar("T")

JAVA_INT = (1 << 31) - 1
"""The most that a key can be which is an int in Java."""

_MAX_TEXT = 4096
_DECLARED = "option"


@dataclass(frozen=True, slots=True)
class _Declaration:
    meaning: str
    between: tuple[int, int] | None
    choices: tuple[str, ...]
    key: str | None
    also: tuple[str, ...]
    fixed: bool


def option(
    default: T,
    meaning: str,
    *,
    between: tuple[int, int] | None = None,
    choices: tuple[str, ...] = (),
    key: str | None = None,
    also: tuple[str, ...] = (),
    fixed: bool = False,
    secret: bool = False,
) -> T:
    """Declares a field of a ``Configuration``.

    Args:
        meaning: what the documentation says of it.
        between: the least and the most that a number may be; every number has them.
        choices: the only texts that can be used.
        key: RocketMQ's key; by default the field's name in camelCase.
        also: other keys of it, which other versions of RocketMQ have.
        fixed: it is read once, at the start, so a running server refuses to change it.
        secret: its value is never shown.
    """
    declared = _Declaration(meaning, between, choices, key, also, fixed)
    made: Any = field(default=default, repr=not secret, metadata={_DECLARED: declared})
    return made  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class ConfigOption:
    """One option of a configuration.

    Attributes:
        name: the field.
        key: RocketMQ's name of it.
        kind: its type.
        default: its value unless told otherwise.
        meaning: what the documentation says of it.
        low, high: the least and the most that a number may be.
        choices: the only texts that can be used; empty if any can.
        also: other keys of it, which are read but never written.
        fixed: it is read once, at the start.
        secret: its value is never shown.
    """

    name: str
    key: str
    kind: object
    default: object
    meaning: str
    low: int
    high: int
    choices: tuple[str, ...]
    also: tuple[str, ...]
    fixed: bool
    secret: bool

    def read(self, text: str) -> object:
        """The value that a text stands for; it is checked when the configuration is built.

        Raises:
            ConfigError: the text stands for none.
        """
        try:
            return self.chosen(_KINDS[self.kind].read(text.strip()))
        except ValueError:
            raise self.refused(text) from None

    def chosen(self, value: object) -> object:
        """The choice that a value stands for, whose letter case does not matter; any other value stays as it is."""
        lowered = value.lower() if isinstance(value, str) else value
        return next((choice for choice in self.choices if choice.lower() == lowered), value)

    def write(self, value: object) -> str:
        """The text of a value, as RocketMQ's files have it."""
        return _KINDS[self.kind].write(value)

    def check(self, value: object) -> None:
        """Raises ConfigError if the value cannot be used."""
        if not _KINDS[self.kind].fits(value):
            raise self.refused(value)
        if self.choices and value not in self.choices:
            raise self.refused(value)
        if isinstance(value, str):
            if not value and self.kind is not str:
                raise self.refused(value, "give it a value, or leave the option out")
            if len(value) > _MAX_TEXT or not value.isprintable():
                raise self.refused(value[:40], f"use at most {_MAX_TEXT} printable characters")
        elif self.kind in (int, float) and not self.low <= cast(float, value) <= self.high:
            raise self.refused(value)

    def refused(self, value: object, why: str = "") -> ConfigError:
        """The error for a value; it does not tell a secret."""
        return ConfigError(self.key, "..." if self.secret else value, why or f"use {self.allowed}")

    @property
    def allowed(self) -> str:
        """What can be used, in words."""
        if self.choices:
            *most, last = self.choices
            return f"{', '.join(most)} or {last}" if most else last
        if self.kind in (int, float):
            number = "whole number" if self.kind is int else "number"
            return f"a {number}, {self.low} to {self.high}"
        return _KINDS[self.kind].words


@dataclass(frozen=True, slots=True)
class _Kind:
    read: Callable[[str], object]
    write: Callable[[Any], str]
    fits: Callable[[object], bool]
    words: str


def _read_boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError
    return text.lower() == "true"


def _read_number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number


def _write_number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _write_boolean(value: bool) -> str:
    return str(value).lower()


def _read_list(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(";") if name.strip())


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_whole(value) or isinstance(value, float)


def _is_list(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(item, str) for item in value)


def _or_none(kind: _Kind) -> _Kind:
    return _Kind(
        lambda text: kind.read(text) if text else None,
        lambda value: "" if value is None else kind.write(value),
        lambda value: value is None or kind.fits(value),
        kind.words,
    )


_TEXT = _Kind(str, str, lambda value: isinstance(value, str), "a text")
_BOOLEAN = _Kind(_read_boolean, _write_boolean, lambda value: isinstance(value, bool), "true or false")
_KINDS: dict[object, _Kind] = {
    int: _Kind(int, str, _is_whole, "a whole number"),
    float: _Kind(_read_number, _write_number, _is_number, "a number"),
    bool: _BOOLEAN,
    bool | None: _or_none(_BOOLEAN),
    str: _TEXT,
    str | None: _or_none(_TEXT),
    tuple[str, ...]: _Kind(_read_list, ";".join, _is_list, "texts with ; between them"),
}


class Configuration:
    """Base of what servers can be told; checked when built."""

    def __post_init__(self) -> None:
        for known in options(type(self)).values():
            if known.choices:
                object.__setattr__(self, known.name, known.chosen(getattr(self, known.name)))
        self.check()

    def check(self) -> None:
        """Raises ConfigError for the first value that cannot be used; classes with rules of their own extend it."""
        for known in options(type(self)).values():
            known.check(getattr(self, known.name))

    @classmethod
    def from_properties(
        cls, properties: Mapping[str, str], base: Self | None = None
    ) -> tuple[Self, list[str]]:
        """Reads RocketMQ's keys over ``base``; also returns the keys that mean nothing here.

        Raises:
            ConfigError: a value is not of its key's type or out of range.
        """
        known = options_by_key(cls)
        changes: dict[str, object] = {}
        for key, text in properties.items():
            if key not in known:
                continue
            name, value = known[key].name, known[key].read(text)
            if changes.setdefault(name, value) != value:
                raise known[key].refused(
                    text, f"{_first_key(known[key], properties)} says otherwise: give one of them"
                )
        start: Any = cls() if base is None else base
        return replace(start, **changes), [key for key in properties if key not in known]

    def changed(self, properties: Mapping[str, str]) -> tuple[Self, list[str]]:
        """The configuration of a running server with these changes, and the keys that mean nothing here.

        Raises:
            ConfigError: a value is wrong, or the key can only be set at the start.
        """
        known = options_by_key(type(self))
        for key, text in properties.items():
            if key in known and known[key].fixed and known[key].read(text) != getattr(self, known[key].name):
                raise known[key].refused(text, "it can only be set when the server starts")
        return type(self).from_properties(properties, self)

    def to_properties(self) -> dict[str, str]:
        """All options that have a value as RocketMQ's files have them; secrets are left out."""
        return {
            known.key: known.write(getattr(self, known.name))
            for known in options(type(self)).values()
            if not known.secret and getattr(self, known.name) is not None
        }


_FOUND: dict[type[Configuration], dict[str, ConfigOption]] = {}


def options(configuration: type[Configuration]) -> dict[str, ConfigOption]:
    """Every option of a class by the field's name: its own first, then those of its bases."""
    if configuration not in _FOUND:
        _FOUND[configuration] = _find(configuration)
    return _FOUND[configuration]


def _find(configuration: type[Configuration]) -> dict[str, ConfigOption]:
    hints = get_type_hints(configuration)
    declared: Any = configuration
    by_name = {known.name: known for known in fields(declared)}
    found = {}
    for name in (name for base in configuration.__mro__ for name in inspect.get_annotations(base)):
        if name in found:
            continue  # declared again by a class further down, which counts
        known = by_name[name]
        words: _Declaration = known.metadata[_DECLARED]
        assert known.default is not MISSING and hints[name] in _KINDS, name
        assert (hints[name] in (int, float)) == (words.between is not None), f"{name}: a number has a range"
        low, high = words.between or (0, 0)
        found[name] = ConfigOption(
            name=name,
            key=words.key or _camel_case(name),
            kind=hints[name],
            default=known.default,
            meaning=words.meaning,
            low=low,
            high=high,
            choices=words.choices,
            also=words.also,
            fixed=words.fixed,
            secret=not known.repr,
        )
    assert len({known.key for known in found.values()}) == len(found), "two options have one key"
    return found


def options_by_key(configuration: type[Configuration]) -> dict[str, ConfigOption]:
    """The same by RocketMQ's key, and by its other keys."""
    return {key: known for known in options(configuration).values() for key in (known.key, *known.also)}


def key_of(configuration: type[Configuration], name: str) -> str:
    """RocketMQ's key of a field."""
    return options(configuration)[name].key


def _first_key(known: ConfigOption, properties: Mapping[str, str]) -> str:
    return next(key for key in properties if key in (known.key, *known.also))


def _camel_case(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


# -- misspelt keys ---------------------------------------------------------------------

_SLIP = 1
"""So many letters wrong, missing or too many make a known key misspelt. No key of Apache's servers that means nothing
here is so near to one of ours; with 2 there would be one."""


def misspelt(key: str, known: Iterable[str]) -> str | None:
    """The known key that this one is but for a slip; None if it may well be another one, of Apache's servers."""
    plain = _plain(key)
    for candidate in known:
        if _plain(candidate) == plain or _distance(key, candidate) <= _SLIP:
            return candidate
    return None


def did_you_mean(key: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown key: a question if one of the known keys is like it, else nothing."""
    from difflib import get_close_matches  # large, and most servers never need it

    by_plain = {_plain(candidate): candidate for candidate in known}
    near = get_close_matches(_plain(key), by_plain, n=1, cutoff=0.7)
    return f"; did you mean {by_plain[near[0]]}?" if near else ""


def _plain(key: str) -> str:
    return key.lower().replace("_", "").replace("-", "").replace(".", "")


def _distance(one: str, other: str) -> int:
    """Letters to change, add or remove, and neighbours to swap; more than ``_SLIP`` means many."""
    if abs(len(one) - len(other)) > _SLIP:
        return _SLIP + 1
    before: list[int] = []
    row = list(range(len(other) + 1))
    for place, letter in enumerate(one, 1):
        before, last, row = row, before, [place]
        for column, wanted in enumerate(other, 1):
            cost = min(before[column] + 1, row[-1] + 1, before[column - 1] + (letter != wanted))
            if place > 1 < column and letter == other[column - 2] and one[place - 2] == wanted:
                cost = min(cost, last[column - 2] + 1)
            row.append(cost)
    return row[-1]
