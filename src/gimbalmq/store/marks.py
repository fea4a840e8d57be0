"""Marks in the commit log: they tell which delayed messages have been delivered.

Whatever is stored in place of a delayed message (the message at its time, or a copy that waits further on)
names that message: the field for the prepared transaction, which only transactions use otherwise, holds the
complement of its commit-log offset, a negative number. So after a crash nobody has to guess what was
delivered since progress was saved: one walk over the log's newest records tells. A half message that is stored
anew names its first place in the same way.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from mmap import mmap

from gimbalmq.model.flags import HOST_BITS
from gimbalmq.model.record import (
    BLANK_BYTES,
    BODY_SIZE_AT,
    HEADS,
    HOST_BITS_AT,
    MAGIC_BLANK,
    MAGIC_V1,
    PREPARED_AT,
    START,
)
from gimbalmq.store.commitlog import CommitLog

_PREPARED = struct.Struct(">q")
_INT = struct.Struct(">i")
_STEP = 256


def mark_for(commitlog_offset: int) -> int:
    """What the record put in place of the one at this offset carries as prepared offset."""
    return ~commitlog_offset


def source_of(mark: int) -> int:
    """The offset of the record that this mark names."""
    return ~mark


def marks_since(log: CommitLog, start: int) -> Iterator[tuple[bytes, int] | None]:
    """(topic of a record, offset of the one it stands for), for the log's records from ``start`` on.

    ``start`` is where a record begins; before the log's first, it is the first. After every few hundred records there
    is a None, so that nobody has to wait for the end of a long log.
    """
    segments = log.segments
    position = max(start, log.min_offset)
    seen = 0
    while position < log.position:
        segment = segments.at(position)
        view = segments.map(segment)
        base = segment.base
        end = min(base + segments.size, log.position) - base
        at = position - base
        while at + BLANK_BYTES <= end:
            size, magic = START.unpack_from(view, at)
            if magic == MAGIC_BLANK:
                break
            bits = view[at + HOST_BITS_AT] & HOST_BITS if at + HOST_BITS_AT < end else 0
            if size < HEADS[bits].size or at + size > end:
                return  # no record begins here: nothing can be told
            value = _PREPARED.unpack_from(view, at + PREPARED_AT[bits])[0]
            if value < 0:
                yield _topic(view, at + BODY_SIZE_AT[bits], magic), source_of(value)
            at += size
            seen += 1
            if seen % _STEP == 0:
                yield None
                view = segments.map(segment)
        position = base + segments.size


def _topic(view: mmap, at: int, magic: int) -> bytes:
    """The topic's name; at is where the body's size stands."""
    at += 4 + _INT.unpack_from(view, at)[0]
    if magic == MAGIC_V1:
        return view[at + 1 : at + 1 + view[at]]
    return view[at + 2 : at + 2 + (view[at] << 8 | view[at + 1])]
