"""Many queue entries at once, and the records they point to: what a large pull is made of.

Python's price for a step is the same whatever the step does, so here thousands of entries are one step of
numpy. It pays from some hundreds of entries on; the reader takes fewer by itself. The module is imported when
first needed, because numpy is 13 MB and 80 ms that a broker of small pulls never pays.
"""

from __future__ import annotations

import mmap
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gimbalmq.store.consumequeue import ENTRY_BYTES, FILLER_SIZE
from gimbalmq.store.results import Buffer
from gimbalmq.store.segments import Segments

Numbers = NDArray[np.int64]
Source = mmap.mmap | NDArray[np.uint8]

_ENTRY = np.dtype([("place", ">i8"), ("size", ">i4"), ("code", ">i8")])
assert _ENTRY.itemsize == ENTRY_BYTES

_SLICES_BELOW = 48
"""So few pieces are sliced sooner than numpy has begun."""
_MIXED_SLICES_BELOW = 512
"""The same for pieces of different sizes, which take a few rounds."""
_LARGE = 4096
"""Pieces of this mean size and above: what costs is the copy itself."""

# The C library gives large blocks back to the kernel at once, and getting them anew, page by page, costs more than
# filling them. It keeps blocks of a size it has seen freed; so it is shown one.
np.empty(16 << 20, np.uint8)


class Scan(NamedTuple):
    """What a run of queue entries comes to.

    Attributes:
        entries: how many were looked at.
        full: whether the next one was left for another pull.
        removing: whether some stand for no record, or for one that is gone.
        records, size: how many were taken, and their bytes.
        starts, ends: where they lie in the log; records that follow each other there are one piece.
    """

    entries: int
    full: bool
    removing: bool
    records: int
    size: int
    starts: Numbers
    ends: Numbers


def scan(
    data: bytes,
    tags: frozenset[int] | None,
    log_min: int,
    log_end: int,
    memory_floor: int,
    near: tuple[int, int],
    far: tuple[int, int],
    count: int,
    total: int,
) -> Scan:
    """Takes records from queue entries until the limits are met, as ``Reader`` does one by one.

    Args:
        memory_floor: ``near`` holds for records from this place on, ``far`` for those before it.
        near, far: how many records and bytes may be taken.
        count, total: records and bytes taken from earlier entries.
    """
    entries = np.frombuffer(data, _ENTRY)
    places = entries["place"].astype(np.int64)
    sizes = entries["size"].astype(np.int64)
    ends = places + sizes
    lowest = int(places.min())
    intact = lowest >= log_min and int(ends.max()) <= log_end and int(sizes.max()) != FILLER_SIZE
    if tags is None and intact and (near == far or lowest >= memory_floor):
        sums = np.cumsum(sizes)
        fitting = int(np.searchsorted(sums, near[1] - total, side="right"))
        taken = min(fitting, near[0] - count)
        if count == 0:
            taken = max(taken, 1)  # the first is always taken
        taken = max(min(taken, len(sums)), 0)
        size = int(sums[taken - 1]) if taken else 0
        starts, ends = _pieces(places[:taken], ends[:taken])
        return Scan(taken, taken < len(sums), False, taken, size, starts, ends)
    valid = (places >= log_min) & (ends <= log_end) & (sizes != FILLER_SIZE)
    chosen = valid if tags is None else valid & _with_tags(entries["code"], tags)
    chosen_sizes = np.where(chosen, sizes, 0)
    counts = np.cumsum(chosen) - chosen + count  # before each entry, as the limits are asked
    totals = np.cumsum(chosen_sizes) - chosen_sizes + total
    behind = places < memory_floor
    too_many = behind & (counts >= far[0])
    too_much = totals + sizes > np.where(behind, far[1], near[1])
    stops = (counts >= near[0]) | valid & (counts > 0) & (too_many | too_much)
    stop = int(stops.argmax())
    full = bool(stops[stop])
    looked = stop if full else len(places)
    picked = np.flatnonzero(chosen[:looked])
    starts, ends = _pieces(places[picked], ends[picked])
    size = int(chosen_sizes[:looked].sum())
    return Scan(looked, full, not bool(valid[:looked].all()), len(picked), size, starts, ends)


def _with_tags(codes: NDArray[np.void], tags: frozenset[int]) -> NDArray[np.bool_]:
    if len(tags) == 1:
        return np.asarray(codes == next(iter(tags)))
    return np.isin(codes, np.fromiter(tags, np.int64, len(tags)))


def _pieces(starts: Numbers, ends: Numbers) -> tuple[Numbers, Numbers]:
    if len(starts) < 2:
        return starts, ends
    breaks = np.flatnonzero(starts[1:] != ends[:-1])
    if len(breaks) == len(starts) - 1:
        return starts, ends
    return starts[np.append(0, breaks + 1)], ends[np.append(breaks, len(ends) - 1)]


def read(segments: Segments, starts: Numbers, ends: Numbers) -> list[Buffer]:
    """The pieces [start, end) of the log, joined; each lies in one file."""
    files = (starts - segments.first_base) // segments.size
    if files[0] == files[-1] and bool((files == files[0]).all()):
        segment = segments[int(files[0])]
        return [gather(segments.map(segment), starts - segment.base, ends - starts)]
    found: list[Buffer] = []
    for number in np.unique(files).tolist():
        segment, chosen = segments[number], files == number
        found.append(gather(segments.map(segment), starts[chosen] - segment.base, (ends - starts)[chosen]))
    return found


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
