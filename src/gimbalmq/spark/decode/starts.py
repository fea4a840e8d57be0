"""Where records begin in bytes that are nothing but records, and what is damaged between them."""

from __future__ import annotations

import struct
from collections.abc import Container
from typing import Final, Literal, NamedTuple

import numpy as np

from gimbalmq.model.record import ANY_MAGIC, MAGIC_AT, MAGIC_BLANK, MIN_RECORD
from gimbalmq.spark.decode.layout import Layout
from gimbalmq.spark.decode.pieces import Ints
from gimbalmq.spark.decode.slowly import (
    Data,
    Frame,
    blank_size,
    fault_at,
    frames,
    is_unwritten,
    starts_soundly,
)

_SIZE: Final = struct.Struct(">I")
_FEW: Final = 64


class RecordStarts(NamedTuple):
    """The whole records at the front of some bytes."""

    starts: Ints
    end: int
    """Where they end, filler included: read on from here. Beyond the data if filler says so."""
    rest: Literal["nothing", "partial", "unwritten", "damaged"]
    """What is there: nothing; a record that goes on behind the data, or whose size is wrong; zeros; no record."""


def record_starts(data: Data, *, base: int | None = None) -> RecordStarts:
    """Where the records at the front of a piece of a commit log start, and how far they reach.

    For a reader of files: decode what is whole (``decode(..., starts=found)``) and begin the next
    piece at ``end``. If the rest is "partial", that piece must be longer; if it was long enough for any
    record, or the rest is "damaged", the damage reaches from ``end`` to ``find_record_start(data,
    end + 1)``: decode those bytes by themselves and they fail, vanish or make a row as ``on_error`` says.
    """
    pieces: list[Ints] = []
    begin = 0
    while True:
        base_here = None if base is None else base + begin
        starts, end, rest = _records_up_to_filler(memoryview(data)[begin:], base_here)
        pieces.append(starts + begin)
        begin += end
        if rest != "filler" or begin >= len(data):
            break
    return RecordStarts(np.concatenate(pieces), begin, "nothing" if rest == "filler" else rest)


def _records_up_to_filler(
    data: Data, base: int | None
) -> tuple[Ints, int, Literal["nothing", "partial", "unwritten", "damaged", "filler"]]:
    starts, reached = chain(data)
    layout = Layout(data, starts, base)
    filler = layout.magic == MAGIC_BLANK
    sound = layout.sound | filler
    if not sound.all():
        first = int(np.argmin(sound))
        return starts[:first][~filler[:first]], int(starts[first]), "damaged"
    starts = starts[~filler]
    if blank := blank_size(data, reached):
        return starts, reached + blank, "filler"
    room = len(data) - reached
    if not room:
        return starts, reached, "nothing"
    if is_unwritten(data, reached):
        return starts, reached, "unwritten"
    cut = room < MIN_RECORD
    if not cut and ANY_MAGIC.match(data, reached + MAGIC_AT):
        cut = room < _SIZE.unpack_from(data, reached)[0] < 2**31
    return starts, reached, "partial" if cut else "damaged"


def lay_out(data: Data, base: int | None, known: RecordStarts | None) -> tuple[Layout, list[Frame]]:
    """The layout of all sound records, and the damaged stretches between them."""
    if known is not None:
        starts, reached = known.starts, len(data)
    else:
        starts, reached = chain(data)
    layout = Layout(data, starts, base)
    if reached == len(data) and layout.all_sound:
        return layout, []
    # A damaged record whose size leads to a sound one stands alone; behind any other the chain of
    # sizes proves nothing, and from there on each start is looked for and checked.
    sound = layout.sound | (layout.magic == MAGIC_BLANK)
    followed = np.append(sound[1:], starts_soundly(data, reached, base))
    broken = np.flatnonzero(~(sound | followed))
    cut, resume = (int(broken[0]), int(starts[broken[0]])) if broken.size else (starts.size, reached)
    damaged = []
    for row in np.flatnonzero(~sound[:cut]).tolist():
        start = int(starts[row])
        damaged.append(Frame(start, int(layout.stop[row]), fault_at(data, start, base)))
    rest = list(frames(data, resume, base=base))
    damaged += [frame for frame in rest if frame.fault is not None]
    more = np.array([frame.start for frame in rest if frame.fault is None], np.int64)
    return Layout(data, np.concatenate([starts[:cut][layout.sound[:cut]], more]), base), damaged


def chain(data: Data) -> tuple[Ints, int]:
    """Positions that lead to each other by size alone, from 0, and the first that leads nowhere.

    A walk from record to record is one Python step for each. Records of one size come in runs that are seen
    at once; what begins with short runs is walked from many places side by side.
    """
    end = len(data)
    pieces: list[Ints] = []
    position = 0
    while end - position >= MIN_RECORD:
        size = _SIZE.unpack_from(data, position)[0]
        if not MIN_RECORD <= size <= end - position:
            break
        sizes = np.ndarray(((end - position - 4) // size + 1,), ">u4", data, position, (size,))
        equal = sizes == size
        run = sizes.size if equal.all() else int(equal.argmin())
        if run * size > end - position:
            run -= 1  # the last one is cut off
        if run < _FEW and position + run * size < end:
            starts, reached = _walk_from_many(memoryview(data)[position:])
            return np.concatenate([*pieces, starts + position]), reached + position
        pieces.append(np.arange(position, position + run * size, size))
        position += run * size
    return np.concatenate(pieces) if pieces else np.empty(0, np.int64), position


def _walk_from_many(data: Data) -> tuple[Ints, int]:
    """The same: starts are guessed all over the data, by the magic, and walked from side by side.

    A guess counts only if the walk before it ends on it exactly.
    """
    end = len(data)
    last = end - MIN_RECORD  # no record starts behind it
    expected = end // max(_SIZE.unpack_from(data, 0)[0], MIN_RECORD)
    if expected < _FEW:
        return _walk(data, 0, frozenset())
    lanes = _guesses(data, end // int((8 * expected) ** 0.5), last)
    limits = np.append(lanes[1:], last + 1)
    sizes = np.ndarray((last + 1,), ">u4", data, strides=(1,))
    longest = int((limits - lanes).max()) // MIN_RECORD + 8
    current = lanes
    walked = [current]
    while not (current >= limits).all():
        if len(walked) > longest:  # only sizes below the least take so many steps
            return _walk(data, 0, frozenset())
        for _ in range(4):
            current = current + sizes[np.minimum(current, last)]
            walked.append(current)
    paths = np.array(walked).T
    inside = paths < limits[:, None]
    counts = inside.sum(axis=1)
    # The walk goes on in multiples of four steps, so each path has at least one position behind its limit.
    landed = paths[np.arange(lanes.size), counts]
    if (landed[:-1] == limits[:-1]).all():
        starts = paths[inside]
        reached = int(landed[-1])
    else:
        starts, reached = _joined(data, paths, counts, landed)
    if reached > end:
        starts, reached = starts[:-1], int(starts[-1])
    if starts.size and int(np.diff(starts, append=reached).min()) < MIN_RECORD:
        return _walk(data, 0, frozenset())
    return starts, reached


def _guesses(data: Data, step: int, last: int) -> Ints:
    """Where records probably start, about one for each ``step`` bytes; 0 for certain."""
    lanes = [0]
    search = ANY_MAGIC.search
    for position in range(step, last, step):
        found = search(data, position)
        if found is None:
            break
        start = found.start() - MAGIC_AT
        if lanes[-1] < start <= last:
            lanes.append(start)
    return np.array(lanes, np.int64)


def _joined(data: Data, paths: Ints, counts: Ints, landed: Ints) -> tuple[Ints, int]:
    """Paths put together if some guesses were wrong: from the end of one path on to the next true guess."""
    guesses = {start: lane for lane, start in enumerate(paths[:, 0].tolist())}
    pieces: list[Ints] = []
    reached = 0
    while (lane := guesses.get(reached)) is not None:
        pieces.append(paths[lane, : counts[lane]])
        reached = int(landed[lane])
        if reached not in guesses:
            steps, reached = _walk(data, reached, guesses.keys())
            pieces.append(steps)
    return np.concatenate(pieces), reached


def _walk(data: Data, position: int, until: Container[int]) -> tuple[Ints, int]:
    """The same record by record, up to any of ``until``."""
    starts = []
    last = len(data) - MIN_RECORD
    while position <= last and position not in until:
        size = _SIZE.unpack_from(data, position)[0]
        if not MIN_RECORD <= size <= len(data) - position:
            break
        starts.append(position)
        position += size
    return np.array(starts, np.int64), position
