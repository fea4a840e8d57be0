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


@lru_cache(maxsize=1024)
def parse_tags(expression: str) -> TagFilter:
    """Reads an expression; raises ValueError where no tag is left of it."""
    if expression.strip() in ("", ALL):
        return EVERYTHING
    tags = frozenset(part.strip() for part in expression.split("||") if part.strip())
    if not tags:
        raise ValueError(f"{expression!r} names no tag; use * or TagA || TagB")
    return TagFilter(tags, frozenset(map(tag_hash, tags)))
