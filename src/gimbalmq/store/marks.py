"""Which delayed messages have been put where they belong: told from the commit log itself.

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

from gimbalmq.model.record import MAGIC_BLANK, MAGIC_V1
from gimbalmq.store.commitlog import CommitLog

_HEAD = struct.Struct(">iI")
_FLAG_AT = 36
_PREPARED_AT = 76
_PREPARED = struct.Struct(">q")
_INT = struct.Struct(">i")


def mark_for(commitlog_offset: int) -> int:
    """What the record put in place of the one at this offset carries as prepared offset."""
    return ~commitlog_offset


def source_of(mark: int) -> int:
    """The offset of the record that this mark names."""
    return ~mark


def marks_since(log: CommitLog, start: int) -> Iterator[tuple[bytes, int]]:
    """(topic of a record, offset of the one it stands for), for the log's records from ``start`` on.

    ``start`` is where a record begins; before the log's first, it is the first.
    """
    segments = log.segments
    position = max(start, log.min_offset)
    while position < log.position:
        segment = segments.at(position)
        view = segments.map(segment)
        base = segment.base
        end = min(base + segments.size, log.position) - base
        at = position - base
        while at + 8 <= end:
            size, magic = _HEAD.unpack_from(view, at)
            if magic == MAGIC_BLANK:
                break
            if size <= _PREPARED_AT + 8 or at + size > end:
                return  # no record begins here: nothing can be told
            flags = view[at + _FLAG_AT + 3]
            prepared = at + _PREPARED_AT + (12 if flags & 0x10 else 0) + (12 if flags & 0x20 else 0)
            value = _PREPARED.unpack_from(view, prepared)[0]
            if value < 0:
                yield _topic(view, prepared + 8, magic), source_of(value)
            at += size
        position = base + segments.size


def _topic(view: mmap, at: int, magic: int) -> bytes:
    """The topic's name; at is where the body's size stands."""
    at += 4 + _INT.unpack_from(view, at)[0]
    if magic == MAGIC_V1:
        return view[at + 1 : at + 1 + view[at]]
    return view[at + 2 : at + 2 + (view[at] << 8 | view[at + 1])]
