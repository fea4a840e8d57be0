"""The schema of JSON bodies, worked out from a sample of them once and then written down.

A stream's table keeps the schema it began with, so what is inferred must not change with the next sample.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final

SAMPLE: Final = 1000
"""Newest messages that are looked at, of each topic."""

_PLAIN: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_TEXT: Final = "STRING"

Shape = str | dict[str, Any] | list[Any] | None
"""A type's name; fields; a list with the shape of its items; None if only null was seen."""


def infer(bodies: Iterable[bytes]) -> str | None:
    """Spark's words for the fields of all bodies that are JSON objects; None if there is no such body."""
    whole: Shape = None
    for body in bodies:
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and value:
            whole = _merged(whole, _shape(value))
    return _fields(whole, " ") if isinstance(whole, dict) else None


def _shape(value: object) -> Shape:
    if isinstance(value, dict):
        return {name: _shape(inner) for name, inner in value.items()}
    if isinstance(value, list):
        items: Shape = None
        for inner in value:
            items = _merged(items, _shape(inner))
        return [items]
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        return "BIGINT" if -(2**63) <= value < 2**63 else "DOUBLE"
    if isinstance(value, float):
        return "DOUBLE"
    return None if value is None else _TEXT


def _merged(one: Shape, other: Shape) -> Shape:
    """What holds both; text if they have nothing in common, for Spark then keeps the JSON as it is."""
    if one is None or one == other:
        return other
    if other is None:
        return one
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: _merged(one.get(name), other.get(name)) for name in one | other}
    if isinstance(one, list) and isinstance(other, list):
        return [_merged(one[0], other[0])]
    return "DOUBLE" if {str(one), str(other)} == {"BIGINT", "DOUBLE"} else _TEXT


def _fields(shape: dict[str, Any], between: str) -> str:
    return ", ".join(f"{_quoted(name)}{between}{_told(inner)}" for name, inner in shape.items())


def _told(shape: Shape) -> str:
    if isinstance(shape, dict):
        return f"STRUCT<{_fields(shape, ': ')}>" if shape else _TEXT
    if isinstance(shape, list):
        return f"ARRAY<{_told(shape[0])}>"
    return shape or _TEXT


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else "`" + name.replace("`", "``") + "`"
