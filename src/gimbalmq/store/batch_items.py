"""Where the parts of a batch request's messages lie in its bytes, found for all of them at once.

Most batches are of one kind: bodies of one length and properties of one length. Then every part lies as far behind
the same part of the message before it, and a column of them is a view. Others are looked up item by item.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gimbalmq.model import properties as prop
from gimbalmq.model.batch import ITEM_BYTES, ITEM_HEAD_BYTES
from gimbalmq.store.vectors import Numbers, at_every, equal_sizes, gather, overlapping

_SIZE = struct.Struct(">i")
_HEAD = struct.Struct(">5i")
_WORD = np.dtype(">i4")
_LENGTH = np.dtype(">u2")
_END = np.dtype(">u4")
_FLAG_AT = 12
_BODY_SIZE_AT = 16
_SHORT_RUN = 64
_SINGLES = 64
_MOST_SINGLES = 4096
_END_BYTES = 4
_MOST_NAMES = 64
_NAME_END = 1
_VALUE_END = 2
_ZEROS = prop.ZEROS.encode()


class Items(NamedTuple):
    """Where the parts of a batch's messages lie in its bytes.

    Attributes:
        name_ends: the last four bytes, as a number, of the names that any property has; each once or more.
        closed: whether the properties of all items end with U+0002, as far as there are any; if not, those of none do.
        alike: bytes of every item if all of them have bodies of one length and properties of one length; else 0.
    """

    data: bytes
    flags: Numbers
    bodies: Numbers
    body_sizes: Numbers
    properties: Numbers
    property_sizes: Numbers
    name_ends: NDArray[np.uint32]
    closed: bool
    alike: int = 0

    def may_have(self, *names: str) -> bool:
        """Whether a property may have one of these names, of four letters or more; if not, none has."""
        # Others may end as it does: without a second look a property ERROR_MSG would be taken for TRAN_MSG.
        return any(
            bool((self.name_ends == _end_of(name)).any()) and name.encode() + b"\x01" in self.data
            for name in names
        )


@cache
def _end_of(name: str) -> int:
    return int.from_bytes(name.encode()[-_END_BYTES:], "big")


def read_items(data: bytes) -> Items | None:
    """The items of a batch body; None if it is not plain, and has to be read item by item."""
    return _read_alike(data) or _read_mixed(data)


def _read_alike(data: bytes) -> Items | None:
    """The items if all of them are alike; None if they are not, or if one of them is not plain."""
    if len(data) < ITEM_BYTES:
        return None
    size, _, _, _, body = _HEAD.unpack_from(data)
    told = size - ITEM_BYTES - body
    if size < ITEM_BYTES or body <= 0 or told < 0 or len(data) % size:
        return None
    count = len(data) // size
    length_at = ITEM_HEAD_BYTES + body
    alike = (
        (at_every(data, _WORD, 0, size, count) == size).all()
        and (at_every(data, _WORD, _BODY_SIZE_AT, size, count) == body).all()
        and (at_every(data, _LENGTH, length_at, size, count) == told).all()
    )
    if not alike:
        return None
    properties = at_every(data, np.dtype((np.void, told)), ITEM_BYTES + body, size, count).tobytes()
    closed = properties[told - 1 :: told].count(_VALUE_END) if told else count
    if 0 < closed < count or _ZEROS in properties:
        return None
    starts = np.arange(0, len(data), size)
    return Items(
        data,
        at_every(data, _WORD, _FLAG_AT, size, count),
        starts + ITEM_HEAD_BYTES,
        np.full(count, body),
        starts + (ITEM_BYTES + body),
        np.full(count, told),
        _name_ends_alike(properties, told, count),
        closed > 0,
        size,
    )


def _read_mixed(data: bytes) -> Items | None:
    starts = _starts(data)
    if starts is None:
        return None
    heads = overlapping(data, ITEM_HEAD_BYTES)[starts].view(_WORD).reshape(-1, 5).astype(np.int64)
    body_sizes = heads[:, 4]
    bodies = starts + ITEM_HEAD_BYTES
    lengths_at = bodies + body_sizes
    if int(body_sizes.min()) <= 0 or int((lengths_at + 2).max()) > len(data):
        return None
    property_sizes = at_every(data, _LENGTH, 0, 1, len(data) - 1)[lengths_at].astype(np.int64)
    properties = lengths_at + 2
    ends = properties + property_sizes
    if not bool((ends == starts + heads[:, 0]).all()):
        return None
    raw = np.frombuffer(data, np.uint8)
    # What is added to properties goes behind a U+0002. Clients of 4.9.1 to 5.1.4 write none behind the last value.
    closed = (property_sizes == 0) | (raw[ends - 1] == _VALUE_END)
    if bool(closed.any()) and not bool(closed.all()):
        return None
    told = np.flatnonzero(property_sizes)
    names = gather(raw, properties[told], property_sizes[told]) if len(told) else b""
    if _ZEROS in data and _ZEROS in bytes(names):
        return None
    found = _name_ends(np.frombuffer(names, np.uint8))
    return Items(data, heads[:, 3], bodies, body_sizes, properties, property_sizes, found, bool(closed[0]))


def _name_ends(properties: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Of names in properties that lie one behind the other: they end before a U+0001."""
    at = np.flatnonzero(properties == _NAME_END)
    at = at[at >= _END_BYTES] - _END_BYTES
    if not at.size:
        return np.empty(0, np.uint32)
    words = np.ndarray((properties.size - _END_BYTES + 1,), _END, properties, strides=(1,))
    found = words[at].astype(np.uint32)
    # Most batches are of one kind. Those of others are not sorted: that costs more than to look for a few names.
    return found[:1] if bool((found == found[0]).all()) else found


def _name_ends_alike(properties: bytes, told: int, count: int) -> NDArray[np.uint32]:
    """The same for properties of one length: names mostly end in the same places, so a few columns tell."""
    raw = np.frombuffer(properties, np.uint8)
    places = [at for at, letter in enumerate(properties[:told]) if letter == _NAME_END]
    few = len(places) <= _MOST_NAMES and (not places or places[0] >= _END_BYTES)
    if few and np.count_nonzero(raw == _NAME_END) == len(places) * count:
        columns = [at_every(properties, _END, at - _END_BYTES, told, count) for at in places]
        if all(
            properties[at::told].count(_NAME_END) == count and bool((column == column[0]).all())
            for at, column in zip(places, columns, strict=True)
        ):
            return np.array([column[0] for column in columns], np.uint32)
    return _name_ends(raw)


def _starts(data: bytes) -> Numbers | None:
    """Where items begin: each says how long it is, so one follows from the other, but equal ones come in runs."""
    end = len(data)
    pieces: list[Numbers] = []
    position = 0
    singles = _SINGLES
    while position < end:
        if end - position < ITEM_BYTES:
            return None
        size = _SIZE.unpack_from(data, position)[0]
        if size < ITEM_BYTES:
            return None
        run = equal_sizes(data, position, size)
        if run * size > end - position:
            return None
        pieces.append(np.arange(position, position + run * size, size, dtype=np.int64))
        position += run * size
        if run < _SHORT_RUN:  # of all sizes: for a while one by one is quicker, and for longer each time
            found: list[int] = []
            unpack, last = _SIZE.unpack_from, end - ITEM_BYTES
            for _ in range(singles):
                if position > last:
                    break
                found.append(position)
                size = unpack(data, position)[0]
                if size < ITEM_BYTES:
                    return None
                position += size
            pieces.append(np.array(found, np.int64))
            singles = min(singles * 2, _MOST_SINGLES)
        else:
            singles = _SINGLES
    return np.concatenate(pieces) if pieces and position == end else None
