"""Tag expressions: ``*``, or tags joined by ``||``.

The broker compares hashes only, so a consumer that must be exact looks at the tags again.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from gimbalmq.model.javahash import tag_hash

ALL = "*"


class TagFilter(NamedTuple):
    """What passes; None for both means everything."""

    tags: frozenset[str] | None
    codes: frozenset[int] | None

    def accepts(self, tag: str | None) -> bool:
        return self.tags is None or (tag is not None and tag in self.tags)


EVERYTHING = TagFilter(None, None)


MAX_EXPRESSION = 16_384
MAX_TAGS = 1024
"""The longest expression, in letters and in tags, repeated ones too: who waits with one makes the broker keep it."""

_SHORT = 256
_OR = "||"


def parse_tags(expression: str) -> TagFilter:
    """Reads an expression; raises ValueError if no tag is left of it, or if it is too long."""
    # Nearly all are short and repeat; few of the long ones are kept, for they are large once read.
    return _read_short(expression) if len(expression) <= _SHORT else _read_long(expression)


def check_tags(expression: str) -> None:
    """Raises what ``parse_tags`` raises, for a fraction of its time: heartbeats may have thousands of expressions."""
    if len(expression) > MAX_EXPRESSION:
        raise ValueError(
            f"the expression has {len(expression)} letters; at most {MAX_EXPRESSION} are read: "
            "use * and look at the tags when the messages have come"
        )
    count = expression.count(_OR) + 1
    if count > MAX_TAGS:
        raise ValueError(f"the expression names {count} tags; at most {MAX_TAGS} are looked for")
    if count > 1 and not expression.replace(_OR, "").strip():
        raise ValueError(f"{expression!r} names no tag; use * or TagA || TagB")


def _read(expression: str) -> TagFilter:
    check_tags(expression)
    if expression.strip() in ("", ALL):
        return EVERYTHING
    tags = frozenset(part.strip() for part in expression.split(_OR) if part.strip())
    return TagFilter(tags, frozenset(map(tag_hash, tags)))


_read_short = lru_cache(maxsize=1024)(_read)
_read_long = lru_cache(maxsize=64)(_read)
