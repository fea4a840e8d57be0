"""Reading by vectors: many queue entries at once, and the records they point to. Large pulls are made of this.

``reader`` does the same one by one, and is quicker up to some hundreds of entries; behind that it asks here. The module
is imported when first needed, because numpy is 13 MB and 80 ms that a broker of small pulls never pays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gimbalmq.model.queue_entry import FILLER_SIZE, entry_dtype
from gimbalmq.store.results import Buffer
from gimbalmq.store.segments import Segments
from gimbalmq.store.vectors import Numbers, gather


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
    entries = np.frombuffer(data, entry_dtype())
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
