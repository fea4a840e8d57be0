"""Declaring options: a name, a kind of value, a default and a meaning, each said once.

An option is declared as a field of the frozen settings it becomes. The parser, the tables of the
documentation and the errors are all made from that declaration.

>>> from gimbalmq.spark.option_values import duration
>>> @dataclass(frozen=True, kw_only=True)
... class Settings:
...     send_timeout: float = option(duration(), "how long an attempt may take", default="10s")
>>> read_values(Settings, Given({"sendtimeout": "500ms"}, options_of(Settings), what="the sink"))
{'send_timeout': 0.5}
>>> Settings().send_timeout
10.0
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Final, Generic, Literal, TypeVar, overload

from gimbalmq.errors import ConfigError
from gimbalmq.spark.option_values import Kind, nearest

T = TypeVar("T")

Use = Literal["", "batch", "stream"]

_DECLARED: Final = "gimbalmq.option"
_PARTS: Final = "gimbalmq.parts"
_NESTED: Final = "gimbalmq.nested"


@dataclass(frozen=True, slots=True)
class Option(Generic[T]):
    """One option as its user meets it.

    Attributes:
        name: in camelCase; the field's name decides if it is empty.
        default: as a user would write it; empty if there is none.
        said_default: what the documentation shows if the default depends on something.
        use: the kind of query it is for; empty means both.
        needed: an example for the error if it is missing; empty if it may be.
        aliases: other names for the same option.
        secret: whether the value is kept out of ``repr``.
    """

    name: str
    kind: Kind[T]
    meaning: str
    default: str = ""
    said_default: str = ""
    use: Use = ""
    needed: str = ""
    aliases: tuple[str, ...] = ()
    secret: bool = False

    @property
    def shown_default(self) -> str:
        return self.said_default or self.default


@overload
def option(
    kind: Kind[T],
    meaning: str,
    *,
    default: str,
    name: str = ...,
    use: Use = ...,
    aliases: tuple[str, ...] = ...,
) -> T: ...


@overload
def option(
    kind: Kind[T], meaning: str, *, needed: str, name: str = ..., aliases: tuple[str, ...] = ...
) -> T: ...


@overload
def option(
    kind: Kind[T],
    meaning: str,
    *,
    name: str = ...,
    use: Use = ...,
    aliases: tuple[str, ...] = ...,
    secret: bool = ...,
) -> T | None: ...


def option(
    kind: Kind[Any],
    meaning: str,
    *,
    default: str = "",
    name: str = "",
    use: Use = "",
    needed: str = "",
    aliases: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    """A field that is one option. Without a default its value is None if the user does not give it."""
    declared = Option(
        name, kind, meaning, default=default, use=use, needed=needed, aliases=aliases, secret=secret
    )
    value = MISSING if needed else kind.read(name, default) if default else None
    return field(default=value, metadata={_DECLARED: declared}, repr=not secret)


def made_of(*parts: Option[Any], otherwise: Any = MISSING) -> Any:
    """A field that is worked out from several options.

    Args:
        otherwise: the field's value in settings that were built without it; it is needed if nothing is given.
    """
    return field(default=otherwise, metadata={_PARTS: parts})


def nested(settings: type[Any]) -> Any:
    """A field that holds other settings with options of their own."""
    return field(metadata={_NESTED: settings})


def options_of(settings: type[Any]) -> tuple[Option[Any], ...]:
    """All options of a class of settings, in the order of its fields."""
    found: list[Option[Any]] = []
    for item in fields(settings):
        if _DECLARED in item.metadata:
            found.append(_named(item.name, item.metadata[_DECLARED]))
        elif _NESTED in item.metadata:
            found += options_of(item.metadata[_NESTED])
        else:
            found += item.metadata.get(_PARTS, ())
    return tuple(found)


def _named(field_name: str, declared: Option[Any]) -> Option[Any]:
    first, *others = field_name.split("_")
    return replace(declared, name=declared.name or first + "".join(word.capitalize() for word in others))


_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname", "outputmode"})


def is_sparks_own(name: str) -> bool:
    """Whether it is an option of Spark's that reaches sources and sinks along with theirs."""
    lowered = name.lower().lstrip("_")
    return lowered in _SPARKS_OWN or lowered.startswith(("asyncprogresstracking", "spark."))


class Given:
    """What a user gave, under the declared names; Spark hands names over in lower case.

    Args:
        what: whose options they are, for errors: "the sink".

    Raises:
        ConfigError: a name is unknown, or two names of one option say different things.
    """

    def __init__(self, options: Mapping[str, str], declared: Sequence[Option[Any]], *, what: str) -> None:
        own = {name.lower(): each.name.lower() for each in declared for name in (each.name, *each.aliases)}
        secret = {each.name.lower() for each in declared if each.secret}
        self._values: dict[str, str] = {}
        said: dict[str, str] = {}
        for name, value in options.items():
            if is_sparks_own(name):
                continue
            if name.lower() not in own:
                raise ConfigError("option", name, f"{what} has no such option; {_hint(name, declared)}")
            meant, text = own[name.lower()], str(value)
            if meant in self._values and self._values[meant] != text:
                other = said[meant] if meant in secret else f"{said[meant]}={self._values[meant]!r}"
                raise ConfigError(name, text, f"{other} says the same thing; give one of them")
            self._values[meant], said[meant] = text, name

    def otherwise(self, name: str, text: str | None) -> None:
        """Says what an option is if the user has said nothing, or only blanks."""
        if text and not self._values.get(name.lower(), "").strip():
            self._values[name.lower()] = text

    def __contains__(self, declared: Option[Any]) -> bool:
        return declared.name.lower() in self._values

    def text(self, declared: Option[Any]) -> str | None:
        """What was written; None if that is nothing or blank."""
        value = self._values.get(declared.name.lower(), "").strip()
        return value or None

    def value(self, declared: Option[T]) -> T | None:
        """What it means; the default's meaning if the option was not given.

        Raises:
            ConfigError: the text is none of the option's kind, or the option is needed.
        """
        text = self.text(declared) or declared.default
        if text:
            return declared.kind.read(declared.name, text)
        if declared.needed:
            written = self._values.get(declared.name.lower())
            raise ConfigError(declared.name, written, f"it is needed: {declared.needed}")
        return None


def _hint(name: str, declared: Iterable[Option[Any]]) -> str:
    names = [each.name for each in declared]
    close = nearest(name, names)
    return f"did you mean {close}?" if close else f"there are {', '.join(sorted(names))}"


def read_values(settings: type[Any], given: Given) -> dict[str, Any]:
    """The fields that are one option each, by field name."""
    return {
        item.name: given.value(_named(item.name, item.metadata[_DECLARED]))
        for item in fields(settings)
        if _DECLARED in item.metadata
    }
