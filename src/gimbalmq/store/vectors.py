"""Pieces of memory moved by vectors: thousands of them with a few calls of numpy, without a step of Python for each.

Python's price for a step is the same whatever the step does, so what is done for thousands of records is done for all
of them at once. Whatever works by vectors in the store is made of this.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gimbalmq.model.crc import crc32
from gimbalmq.store.results import Buffer

Numbers = NDArray[np.int64]
Source = mmap.mmap | NDArray[np.uint8]

_SLICES_BELOW = 48
"""So few pieces are sliced sooner than numpy has begun."""
_MIXED_SLICES_BELOW = 512
"""The same for pieces of different sizes, which take a few rounds."""
_RUN = 4096
"""Items that are looked at together."""
_LARGE = 4096
"""Pieces of this mean size and above: what costs is the copy itself."""

# The C library gives large blocks back to the kernel at once, and getting them anew, page by page, costs more than
# filling them. It keeps blocks of a size it has seen freed, up to 32 MB, and twice as much free memory; so it is
# shown one of nearly that.
np.empty((32 << 20) - (64 << 10), np.uint8)


def gather(file: Source, starts: Numbers, sizes: Numbers) -> Buffer:
    """Pieces of one mapped file (or other memory), copied behind each other without a step of Python for each.

    Records of one queue lie scattered between those of all other queues. A slice for each costs several times
    what its copy costs. numpy copies items of one width by a list of places, and the places may be any: the
    file is seen as items that begin at every byte and overlap.
    """
    count = len(starts)
    smallest, largest = int(sizes.min()), int(sizes.max())
    if count >= _SLICES_BELOW and 0 < smallest == largest < _LARGE:
        return overlapping(file, largest)[starts].view(np.uint8).data
    if count < _MIXED_SLICES_BELOW or smallest < 1 or int(sizes.sum()) >= _LARGE * count:
        view = memoryview(file)  # type: ignore[arg-type]  # arrays have buffers; the types say so from 3.12 on
        return b"".join([view[a:b] for a, b in zip(starts.tolist(), (starts + sizes).tolist(), strict=True)])
    ends = np.cumsum(sizes)
    made = np.empty(int(ends[-1]), np.uint8)
    copy(file, starts, sizes, made, ends - sizes)
    return made.data


def copy(source: Source, starts: Numbers, sizes: Numbers, made: NDArray[np.uint8], targets: Numbers) -> None:
    """Copies pieces of one memory to places in another; a piece of no bytes is none."""
    smallest, largest = int(sizes.min()), int(sizes.max())
    if smallest == largest:
        if largest:
            overlapping(made, largest)[targets] = overlapping(source, largest)[starts]
        return
    if smallest < 1:
        there = np.flatnonzero(sizes)
        starts, sizes, targets = starts[there], sizes[there], targets[there]
    # A piece of 2^k to 2^(k+1) bytes is two items of 2^k: its first bytes and its last, which overlap.
    powers = np.frexp(sizes)[1] - 1
    lowest, highest = int(powers.min()), int(powers.max())
    for power in range(lowest, highest + 1):
        begin, target, size = starts, targets, sizes
        if lowest != highest:
            chosen = np.flatnonzero(powers == power)
            if not len(chosen):
                continue
            begin, target, size = starts[chosen], targets[chosen], sizes[chosen]
        width = 1 << power
        items, goal = overlapping(source, width), overlapping(made, width)
        goal[target] = items[begin]
        rest = size - width
        goal[target + rest] = items[begin + rest]


def overlapping(memory: Source | bytes, width: int) -> NDArray[np.void]:
    """Items of ``width`` bytes, one from each byte on."""
    return np.ndarray((len(memory) - width + 1,), np.dtype((np.void, width)), buffer=memory, strides=(1,))


def at_every(
    memory: bytes | bytearray, kind: np.dtype[Any], start: int, step: int, count: int
) -> NDArray[Any]:
    """Items of a kind that lie so many bytes behind each other."""
    return np.ndarray((count,), kind, memory, start, (step,))


def equal_sizes(data: bytes, position: int, size: int) -> int:
    """How many items from ``position`` on begin with this size, each lying so many bytes behind the one before it."""
    words = np.ndarray(((len(data) - position - 4) // size + 1,), ">i4", data, position, (size,))[:_RUN]
    return leading(words == size)


def leading(true: NDArray[np.bool_]) -> int:
    """How many of the first are true."""
    return len(true) if bool(true.all()) else int(true.argmin())


def crcs(data: bytes, starts: Numbers, sizes: Numbers) -> NDArray[np.uint32]:
    """The crc of each piece; those of one size that lie equally far behind each other are the quickest to get at."""
    size, count = int(sizes[0]), len(sizes)
    pieces: Iterable[bytes]
    if size > 0 and bool((sizes == size).all()):
        step = int(starts[1] - starts[0]) if count > 1 else size
        regular = int(starts[-1]) == int(starts[0]) + step * (count - 1) and bool(
            (np.diff(starts) == step).all()
        )
        kind = np.dtype((np.void, size))
        pieces = (
            at_every(data, kind, int(starts[0]), step, count) if regular else overlapping(data, size)[starts]
        ).tolist()
    else:
        ends = (starts + sizes).tolist()
        pieces = [data[start:end] for start, end in zip(starts.tolist(), ends, strict=True)]
    return np.frombuffer(struct.pack(f"{count}I", *map(crc32, pieces)), np.uint32)
