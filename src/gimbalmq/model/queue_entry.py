"""Byte layout of a consume queue's entry: where in the commit log a message lies, how long it is, its tags code.

An entry's place in its file is its number, which is the message's queue offset. A number for which there is no
record has an entry all the same, with the size ``FILLER_SIZE``.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING, Final

from gimbalmq.model import properties as prop
from gimbalmq.model.javahash import tag_hash
from gimbalmq.model.record import find_property

if TYPE_CHECKING:
    import numpy as np

_TAGS = prop.TAGS.encode()

ENTRY: Final = struct.Struct(">qiq")
ENTRY_BYTES: Final = ENTRY.size
FILLER_SIZE: Final = 0x7FFFFFFF
FILLER: Final = ENTRY.pack(0, FILLER_SIZE, 0)

Entry = tuple[int, int, int]
"""Commit-log offset, size, tags code."""


def tags_code(properties: bytes) -> int:
    """The Java hash of a message's tag, by which brokers filter; 0 without one."""
    tag = find_property(properties, _TAGS)
    return tag_hash(tag.decode("utf-8", "replace")) if tag else 0


def places_and_sizes(count: int) -> struct.Struct:
    """Reads so many entries at once, without their tags codes."""
    return struct.Struct(">" + "qi8x" * count)


@cache
def entry_dtype() -> np.dtype[np.void]:
    """The same entry for numpy: ``place``, ``size`` and ``code``."""
    import numpy as np  # here, not above: 13 MB and 80 ms that most processes never pay

    return np.dtype([("place", ">i8"), ("size", ">i4"), ("code", ">i8")])
