"""Stretches of a buffer to Arrow arrays, all of a column at once; and columns with some of their values replaced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

# glibc gives freed memory at the end of its heap back at once, and every decode would fault it in again,
# page by page, which costs more than the decoding. From a large block that was freed it learns to keep some.
np.empty(30 * 1024 * 1024, np.uint8)

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]


def windows(buffer: Any, dtype: Any) -> npt.NDArray[Any]:
    """A value of the type at every byte, nothing copied; indexing it gathers."""
    kind = np.dtype(dtype)
    return np.ndarray((max(0, len(buffer) - kind.itemsize + 1),), kind, buffer, strides=(1,))


def all_equal(buffer: Any, at: Ints, same: bytes) -> bool:
    """Whether the same bytes stand at all the positions."""
    # Two long strings are compared far faster than many short rows of an array.
    return bool(windows(buffer, f"V{len(same)}")[at].tobytes() == same * at.size)


def pieces(buffer: Any, at: Ints, stop: Ints, kind: pa.DataType) -> pa.Array:
    """The bytes between two positions each, ascending and not overlapping, copied into one array."""
    count = at.size
    if not count:
        return pa.array([], kind)
    sizes = stop - at
    size = int(sizes[0])
    if size and (sizes == size).all():
        return equal_pieces(windows(buffer, f"V{size}")[at], size, kind)
    return _unlike_pieces(buffer, at, stop, kind).take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


def equal_pieces(joined: npt.NDArray[Any], size: int, kind: pa.DataType) -> pa.Array:
    count = joined.nbytes // size
    offsets = np.arange(0, joined.nbytes + 1, size, dtype=np.int32)
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(offsets), pa.py_buffer(joined)])


def _unlike_pieces(buffer: Any, at: Ints, stop: Ints, kind: pa.DataType) -> pa.Array:
    """An array over the buffer itself in which every other item is a piece, and the rest what lies between."""
    offsets = np.empty(2 * at.size, np.int32)
    offsets[0::2] = at
    offsets[1::2] = stop
    return pa.Array.from_buffers(kind, 2 * at.size - 1, [None, pa.py_buffer(offsets), pa.py_buffer(buffer)])


def repeated(texts: Sequence[bytes], count: int) -> pa.Array:
    """All the texts, then all of them again, so many times."""
    joined = b"".join(texts)
    ends = np.cumsum([len(text) for text in texts])
    offsets = np.zeros(len(texts) * count + 1, np.int32)
    offsets[1:] = np.add.outer(np.arange(count) * len(joined), ends).ravel()
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(joined * count)]
    return pa.Array.from_buffers(pa.string(), len(texts) * count, buffers)


def inside(pieces: pa.Array) -> tuple[npt.NDArray[np.int32], Bytes]:
    """Offsets and bytes of an array that ``pieces`` made, not copied: they may be written to."""
    if not len(pieces):
        return np.zeros(1, np.int32), np.empty(0, np.uint8)
    _, offsets, joined = pieces.buffers()
    begins = np.frombuffer(offsets, np.int32)[: len(pieces) + 1]
    return begins, np.frombuffer(joined, np.uint8)[: begins[-1]]


def scattered(values: pa.Array, rows: Ints, count: int) -> pa.Array:
    """The values at these rows, null at all others."""
    if rows.size == count:
        return values
    if not rows.size:
        return pa.nulls(count, values.type)
    places = np.zeros(count, np.int32)
    places[rows] = np.arange(rows.size)
    absent = np.ones(count, np.bool_)
    absent[rows] = False
    return values.take(pa.array(places, mask=absent))


def patched(column: pa.Array, values: dict[int, Any]) -> pa.Array:
    """The column with other values at some rows."""
    if not values:
        return column
    rows = sorted(values)
    return replaced(column, np.array(rows), pa.array([values[row] for row in rows], column.type))


def replaced(column: pa.Array, rows: Ints, new: pa.Array) -> pa.Array:
    """The column with new values at these rows, which ascend."""
    if len(new) == len(column):
        return new
    if rows.size * 64 < len(column) and column.nbytes > 512 * len(column):
        # A few among long bodies: the stretches between them are copied whole, and once less.
        parts = []
        after = 0
        for number, row in enumerate(rows.tolist()):
            parts += [column.slice(after, row - after), new.slice(number, 1)]
            after = row + 1
        return pa.concat_arrays([*parts, column.slice(after)])
    places = np.arange(len(column))
    places[rows] = len(column) + np.arange(rows.size)
    return pa.concat_arrays([column, new]).take(pa.array(places))


def as_text(raw: pa.Array) -> pa.Array:
    """Bytes to text; what is no UTF-8 gets U+FFFD, as Python puts it."""
    broken = broken_text(raw, inside(raw)[1]).tolist()
    mended = {row: raw[row].as_py().decode("utf-8", "replace").encode() for row in broken}
    return patched(raw, mended).cast(pa.string())


def is_one_of(column: pa.Array, texts: frozenset[str]) -> Mask:
    found: Mask = pc.is_in(column, value_set=pa.array(sorted(texts), pa.string())).to_numpy(
        zero_copy_only=False
    )
    return found


def broken_text(pieces: pa.Array, text: Bytes) -> Ints:
    """Places of the pieces that are no UTF-8."""
    if not text.size or text.max() < 0x80:
        return np.empty(0, np.int64)
    try:
        pieces.cast(pa.string())
    except pa.ArrowInvalid:
        begins, _ = inside(pieces)
        places = np.unique(np.searchsorted(begins, np.flatnonzero(text >= 0x80), side="right") - 1)
        return np.array([place for place in places.tolist() if not is_text(pieces[place].as_py())], np.int64)
    return np.empty(0, np.int64)


def is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
