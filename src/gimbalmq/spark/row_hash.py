"""Hashes of rows by whole columns, and a table that knows which of them it has met.

A row's hash has two numbers of 64 bits. It is the same in every process and on every machine. It is made for
telling rows apart, not for keeping secrets: each eight bytes are mixed with their place and added up, so that
vectors can do it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gimbalmq.store.vectors import overlapping

Numbers = NDArray[np.uint64]

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)
_STEPS: Final = ((np.uint64(30), _FIRST), (np.uint64(27), _SECOND))
_LAST_BITS: Final = np.uint64(31)
_WORD: Final = 8
_ALL_BITS: Final = np.uint64(0xFFFFFFFFFFFFFFFF)
_CHUNK_WORDS: Final = 1 << 15
"""So many words are mixed at a time: their numbers stay in the processor's cache."""


class RowHashes(NamedTuple):
    """One pair of numbers for each row."""

    high: Numbers
    low: Numbers


def mixed(numbers: Numbers) -> Numbers:
    """Each number shuffled into another; no two give the same (the end of SplitMix64)."""
    found = numbers.copy()
    _mix(found, np.empty_like(found))
    return found


def _mix(numbers: Numbers, space: Numbers) -> None:
    """As ``mixed``, in place and without new memory: for many numbers that is most of the time."""
    for bits, factor in _STEPS:
        np.right_shift(numbers, bits, out=space)
        np.bitwise_xor(numbers, space, out=numbers)
        np.multiply(numbers, factor, out=numbers)
    np.right_shift(numbers, _LAST_BITS, out=space)
    np.bitwise_xor(numbers, space, out=numbers)


def hash_rows(columns: Iterable[pa.Array | Numbers], rows: int, seed: int = 0) -> RowHashes:
    """Hashes of what the columns hold together; a column is binary, or a number for each row.

    A column of one value says the same of every row.
    """
    high = np.full(1, seed & 0xFFFFFFFFFFFFFFFF, np.uint64)
    low = np.ones(1, np.uint64)
    for column in columns:
        if isinstance(column, pa.Array):
            first, second = _hash_bytes(column)
        else:
            first, second = mixed(column + _GOLDEN), mixed(column ^ _SECOND)
        # What came before is mixed again, so that two columns with each other's values are another row.
        high = high + first
        low = low * _GOLDEN + second
        space = np.empty_like(high)
        _mix(high, space)
        _mix(low, space)
    if len(high) != rows:
        high, low = np.repeat(high, rows), np.repeat(low, rows)
    return RowHashes(high, low)


def _hash_bytes(column: pa.Array) -> tuple[Numbers, Numbers]:
    rows = len(column)
    starts = np.frombuffer(column.buffers()[1], np.int32)[column.offset :][: rows + 1].astype(np.int64)
    lengths = np.diff(starts)
    counts = (lengths + (_WORD - 1)) // _WORD
    buffer = column.buffers()[2]
    data = np.zeros(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)
    first = lengths.astype(np.uint64)
    second = first * _FIRST
    # A row is read by whole words. The last ones may end behind the data, so they are read from a copy with some room.
    beyond = np.flatnonzero(starts[:-1] + counts * _WORD > len(data))
    inside = int(beyond[0]) if len(beyond) else rows
    _add_rows(data, starts[:inside], lengths[:inside], counts[:inside], first[:inside], second[:inside])
    if inside < rows:
        at = int(starts[inside])
        rest = np.append(data[at : int(starts[-1])], np.zeros(_WORD, np.uint8))
        _add_rows(
            rest, starts[inside:-1] - at, lengths[inside:], counts[inside:], first[inside:], second[inside:]
        )
    return first, second


def _add_rows(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    counts: NDArray[np.int64],
    first: Numbers,
    second: Numbers,
) -> None:
    """Adds the mixed words of rows to their sums; those of equally many words together, in pieces the cache holds."""
    order = np.argsort(counts, kind="stable")
    edges = [0, *(np.flatnonzero(np.diff(counts[order])) + 1).tolist(), len(counts)]
    for low, high in pairwise(edges):
        count = int(counts[order[low]]) if high > low else 0
        step = max(1, _CHUNK_WORDS // max(1, count))
        keys, weights = _keys_of(count)
        for begin in range(low, high if count else low, step):
            some: slice | NDArray[np.int64] = slice(begin, min(begin + step, high))
            if len(edges) > 2:
                some = order[some]
            words = _words(data, starts[some], lengths[some], count)
            words += keys
            _mix(words, np.empty_like(words))
            first[some] += words.sum(axis=0)
            words *= weights
            second[some] += words.sum(axis=0)


def _keys_of(count: int) -> tuple[Numbers, Numbers]:
    """By place of a word, what is added to it, and what its share of the second sum is multiplied by."""
    keys = mixed(np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN)[:, None]
    return keys, mixed(keys) | np.uint64(1)


def _words(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], count: int
) -> Numbers:
    """The words of rows that have so many, a line for each word: lines are added up faster than columns."""
    rows = len(starts)
    step = int(starts[-1] - starts[0]) // (rows - 1) if rows > 1 else _WORD
    if rows > 1 and bool((np.diff(starts) == step).all()):
        found = np.ndarray((count, rows), "<u8", data.data, int(starts[0]), (_WORD, step))
    else:
        found = overlapping(data, count * _WORD)[starts].view("<u8").reshape(-1, count).T
    words = found.copy("C")
    # The last word goes on behind the end of its row.
    words[-1] &= _ALL_BITS >> ((count * _WORD - lengths) * 8).astype(np.uint64)
    return words


class _Places:
    """A table of numbers with room to spare: each number has a place in it.

    Attributes:
        size: how many different numbers it holds.
    """

    def __init__(self) -> None:
        self._bits = 12
        self.size = 0
        self._numbers = np.zeros(1 << self._bits, np.uint64)

    def __len__(self) -> int:
        return len(self._numbers)

    def find(self, numbers: Numbers) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The place of each number, or of the end of the search for it; and whether it is there."""
        table = self._numbers
        mask = len(table) - 1
        numbers = np.maximum(numbers, np.uint64(1))
        places = (numbers >> np.uint64(64 - self._bits)).astype(np.int64)
        there = np.zeros(len(numbers), bool)
        waiting = np.arange(len(numbers))
        while len(waiting):
            held = table[places[waiting]]
            same = held == numbers[waiting]
            there[waiting[same]] = True
            waiting = waiting[~same & (held != 0)]
            places[waiting] = (places[waiting] + 1) & mask
        return places, there

    def put(self, numbers: Numbers) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The place of each number, and whether it was not there before; of equal ones the first is new.

        There must be room (``grow``).
        """
        table = self._numbers
        mask = len(table) - 1
        numbers = np.maximum(numbers, np.uint64(1))  # zero is an empty place
        places = (numbers >> np.uint64(64 - self._bits)).astype(np.int64)
        new = np.zeros(len(numbers), bool)
        waiting, at, wanted = np.arange(len(numbers)), places, numbers
        while len(waiting):
            held = table[at]
            settled = held == wanted
            free = np.flatnonzero(held == 0)
            # Several may want one place. Each leaves its mark, the first one's stays, and that one has the place.
            marks, goal = free.astype(np.uint64), at[free]
            table[goal[::-1]] = marks[::-1]
            won = table[goal] == marks
            winners = free[won]
            table[at[winners]] = wanted[winners]
            settled[winners] = True
            new[waiting[winners]] = True
            self.size += len(winners)
            # Those who lost look again: what has the place now may be their equal.
            beaten = np.zeros(len(waiting), bool)
            beaten[free] = ~won
            left = ~settled
            waiting, beaten = waiting[left], beaten[left]
            at = at[left]
            at[~beaten] = (at[~beaten] + 1) & mask
            places[waiting] = at
            wanted = wanted[left]
        return places, new

    def put_new(self, numbers: Numbers) -> bool:
        """Puts numbers that are all different and not there yet, in a fraction of the time; if they are not, puts none.

        There must be room (``grow``).
        """
        # Sorted numbers want places one behind the other, and those that want one place are neighbours.
        return self._put_sorted(np.sort(np.maximum(numbers, np.uint64(1))))

    def _put_sorted(self, wanted: Numbers) -> bool:
        if bool((wanted[1:] == wanted[:-1]).any()):
            return False
        table, count = self._numbers, len(wanted)
        mask = len(table) - 1
        at = (wanted >> np.uint64(64 - self._bits)).astype(np.int64)
        before: list[tuple[NDArray[np.int64], Numbers]] = []
        while len(at):
            held = table[at]
            if bool((held == wanted).any()):
                for places, numbers in reversed(before):
                    table[places] = numbers
                return False
            before.append((at, held))
            taken = held != 0
            table[at] = np.where(taken, held, wanted)
            # Of several that want one place the last one has got it. The others look one place further, and so they
            # stay in the order of their places.
            taken[:-1] |= at[:-1] == at[1:]
            left = np.flatnonzero(taken)
            at, wanted = (at[left] + 1) & mask, wanted[left]
        self.size += count
        return True

    def must_grow(self, more: int) -> bool:
        return (self.size + more) * 2 > len(self._numbers)

    def grow(self) -> Numbers:
        """Four times the table; the one before it, whose numbers have other places now (``find``)."""
        before, size = self._numbers, self.size
        self._bits += 2
        self.size = 0
        self._numbers = np.zeros(1 << self._bits, np.uint64)
        self._put_sorted(np.sort(before)[len(before) - size :])
        return before


class Occurrences:
    """How often numbers have come before: 16 to 64 bytes for each different one, more if any comes twice."""

    def __init__(self) -> None:
        self._places = _Places()
        self._again: NDArray[np.int32] | None = None
        """By place: how often its number came after the first time; there when the first one has."""

    def before(self, numbers: Numbers) -> NDArray[np.int64] | None:
        """For each number how often it has come, in earlier calls and earlier in this one; None if none has."""
        while self._places.must_grow(len(numbers)):
            table = self._places.grow()
            if self._again is not None:
                used = np.flatnonzero(table)
                again, self._again = self._again, self._nothing()
                self._again[self._places.find(table[used])[0]] = again[used]
        if self._again is None and self._places.put_new(numbers):
            return None
        places, new = self._places.put(numbers)
        if new.all():
            return None
        if self._again is None:
            self._again = self._nothing()
        found = np.zeros(len(numbers), np.int64)
        rows = np.flatnonzero(~new)
        rows = rows[np.argsort(places[rows], kind="stable")]
        at = places[rows]
        begins = np.flatnonzero(np.diff(at, prepend=-1))
        sizes = np.diff(begins, append=len(at))
        found[rows] = 1 + self._again[at] + np.arange(len(at)) - np.repeat(begins, sizes)
        self._again[at[begins]] += sizes.astype(np.int32)
        return found

    def _nothing(self) -> NDArray[np.int32]:
        return np.zeros(len(self._places), np.int32)


class Met:
    """Which hashes have come before: 32 to 128 bytes for each different one.

    Rows are found by the first number of their hash; the second one tells apart what shares the first by chance.
    """

    def __init__(self) -> None:
        self._places = _Places()
        self._low = np.zeros(len(self._places), np.uint64)

    @property
    def size(self) -> int:
        return self._places.size

    def are_new(self, hashes: RowHashes) -> NDArray[np.bool_]:
        """Which rows have a hash that has not come before, in earlier calls or earlier in this one."""
        while self._places.must_grow(len(hashes.high)):
            table = self._places.grow()
            used = np.flatnonzero(table)
            low, self._low = self._low, np.zeros(len(self._places), np.uint64)
            self._low[self._places.find(table[used])[0]] = low[used]
        places, new = self._places.put(hashes.high)
        self._low[places[new]] = hashes.low[new]
        unknown: NDArray[np.bool_] = new | (self._low[places] != hashes.low)
        return unknown

    def have(self, hashes: RowHashes) -> NDArray[np.bool_]:
        """Which rows' hashes have come before; nothing is added."""
        places, there = self._places.find(hashes.high)
        found: NDArray[np.bool_] = there & (self._low[places] == hashes.low)
        return found
