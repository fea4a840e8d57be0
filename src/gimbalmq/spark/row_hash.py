"""Hashes of rows by whole columns, and a table that knows which of them it has met.

A row's hash has two numbers of 64 bits. It is the same in every process and on every machine. It is made for
telling rows apart, not for keeping secrets: each eight bytes are mixed with their place and added up, so that
vectors can do it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Numbers = NDArray[np.uint64]

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)
_STEPS: Final = ((np.uint64(30), _FIRST), (np.uint64(27), _SECOND))
_LAST_BITS: Final = np.uint64(31)
_WORD: Final = 8
_CHUNK_WORDS: Final = 1 << 13
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
    """Hashes of what the columns hold together; a column is binary, or a number for each row."""
    high = np.full(rows, seed & 0xFFFFFFFFFFFFFFFF, np.uint64)
    low = np.full(rows, rows and 1, np.uint64)
    for column in columns:
        if isinstance(column, pa.Array):
            first, second = _hash_bytes(column)
        else:
            first, second = mixed(column + _GOLDEN), mixed(column ^ _SECOND)
        # What came before is mixed again, so that two columns with each other's values are another row.
        high = mixed(high + first)
        low = mixed(low * _GOLDEN + second)
    return RowHashes(high, low)


def _hash_bytes(column: pa.Array) -> tuple[Numbers, Numbers]:
    rows = len(column)
    offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + rows + 1]
    starts = offsets.astype(np.int64)
    lengths = np.diff(starts)
    origin, end = int(starts[0]), int(starts[-1])
    # A word may begin at any byte, and the last one of all may reach beyond the end.
    data = np.zeros(end - origin + _WORD, np.uint8)
    buffer = column.buffers()[2]
    if buffer is not None and end > origin:
        data[: end - origin] = np.frombuffer(buffer, np.uint8, end - origin, origin)
    words = np.ndarray((len(data) - _WORD + 1,), "<u8", data, strides=(1,))
    counts = -(-lengths // _WORD)
    first = lengths.astype(np.uint64)
    second = first * _FIRST
    at = starts[:-1] - origin
    edges = np.concatenate(([0], np.cumsum(counts)))
    low = 0
    while low < rows:
        high = max(low + 1, int(np.searchsorted(edges, edges[low] + _CHUNK_WORDS, "right")) - 1)
        part = slice(low, high)
        _add_words(words, at[part], lengths[part], counts[part], first[part], second[part])
        low = high
    return first, second


def _add_words(
    words: Numbers,
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    counts: NDArray[np.int64],
    first: Numbers,
    second: Numbers,
) -> None:
    """Adds the mixed words of some rows to their sums."""
    most = int(counts.max())
    if most == 0:
        return
    keys = mixed(np.arange(1, most + 1, dtype=np.uint64) * _GOLDEN)
    weights = mixed(keys) | np.uint64(1)
    if int(counts.min()) == most:
        found = words[starts[:, None] + np.arange(0, most * _WORD, _WORD)]
        _cut_tails(found[:, -1], lengths - (most - 1) * _WORD)
        found += keys
        _mix(found, np.empty_like(found))
        first += found.sum(axis=1)
        found *= weights
        second += found.sum(axis=1)
        return
    filled = np.flatnonzero(counts)
    ends = np.cumsum(counts)
    place = np.arange(int(ends[-1])) - np.repeat(ends - counts, counts)
    found = words[np.repeat(starts, counts) + place * _WORD]
    last = ends[filled] - 1
    tails = found[last]
    _cut_tails(tails, lengths[filled] - (counts[filled] - 1) * _WORD)
    found[last] = tails
    found += keys[place]
    _mix(found, np.empty_like(found))
    begin = (ends - counts)[filled]
    first[filled] += np.add.reduceat(found, begin)
    found *= weights[place]
    second[filled] += np.add.reduceat(found, begin)


def _cut_tails(tails: Numbers, used: NDArray[np.int64]) -> None:
    """Clears what lies behind the end of a row in its last word, of which ``used`` bytes are its own."""
    tails &= np.uint64(0xFFFFFFFFFFFFFFFF) >> ((_WORD - used) * 8).astype(np.uint64)


class Met:
    """Which hashes have come before, and how often.

    A table with room to spare: it takes 33 to 66 bytes for each different hash. Rows are found by the first number of
    their hash; the second one tells apart what shares the first by chance.
    """

    def __init__(self) -> None:
        self._bits = 12
        self._allot()

    def _allot(self) -> None:
        size = 1 << self._bits
        self._high = np.zeros(size, np.uint64)
        self._low = np.zeros(size, np.uint64)
        self._counts = np.zeros(size, np.int32)
        self.size = 0

    def occurrences(self, hashes: RowHashes) -> NDArray[np.int64]:
        """How often each row's hash has come before, in earlier calls and in earlier rows of this one.

        Rows that share the first number count as equal.
        """
        return self._count(hashes)[0]

    def are_new(self, hashes: RowHashes) -> NDArray[np.bool_]:
        """Which rows have a hash that has not come before."""
        found, known = self._count(hashes)
        new: NDArray[np.bool_] = (found == 0) | ~known
        return new

    def have(self, hashes: RowHashes) -> NDArray[np.bool_]:
        """Which rows' hashes have come before; nothing is added."""
        high = np.maximum(hashes.high, np.uint64(1))
        mask = len(self._high) - 1
        places = (high >> np.uint64(64 - self._bits)).astype(np.int64)
        found = np.zeros(len(high), bool)
        waiting = np.arange(len(high))
        while len(waiting):
            at = places[waiting]
            held = self._high[at]
            same = held == high[waiting]
            found[waiting[same]] = self._low[at[same]] == hashes.low[waiting[same]]
            waiting = waiting[~same & (held != 0)]
            places[waiting] = (places[waiting] + 1) & mask
        return found

    def _count(self, hashes: RowHashes) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Occurrences before each row, and whether the hash that lies in the table is the row's own."""
        rows = len(hashes.high)
        # Sorted, so that the table is walked through from its beginning to its end; zero is an empty place.
        order = np.argsort(hashes.high)
        high, low = np.maximum(hashes.high[order], np.uint64(1)), hashes.low[order]
        begins = np.flatnonzero(np.diff(high, prepend=np.uint64(0)))
        while (self.size + len(begins)) * 5 > len(self._high) * 3:
            self._grow()
        if len(begins) == rows:
            places = self._put(high, low)
            before = self._counts[places]
            if not before.any():
                self._counts[places] = 1
                return np.zeros(rows, np.int64), np.ones(rows, bool)
            self._counts[places] += 1
        else:
            # The sort has to keep the order of equal ones from here on: the first is number 0.
            order = np.argsort(hashes.high, kind="stable")
            low = hashes.low[order]
            sizes = np.diff(begins, append=rows)
            first = self._put(high[begins], low[begins])
            places = np.repeat(first, sizes)
            before = self._counts[places] + np.arange(rows) - np.repeat(begins, sizes)
            self._counts[first] += sizes.astype(np.int32)
        found = np.empty(rows, np.int64)
        found[order] = before
        known = np.empty(rows, bool)
        known[order] = self._low[places] == low
        return found, known

    def _put(self, high: Numbers, low: Numbers) -> NDArray[np.int64]:
        """The places of hashes that all differ; those that are new are put there."""
        mask = len(self._high) - 1
        places = (high >> np.uint64(64 - self._bits)).astype(np.int64)
        waiting = np.arange(len(high))
        while len(waiting):
            at, wanted = places[waiting], high[waiting]
            free = self._high[at] == 0
            if free.any():
                self._high[at[free]] = wanted[free]  # of several for one place the last has it
            settled = self._high[at] == wanted
            new = waiting[free & settled]
            self._low[places[new]] = low[new]
            self.size += len(new)
            waiting = waiting[~settled]
            places[waiting] = (places[waiting] + 1) & mask
        return places

    def _grow(self) -> None:
        high, low, counts = self._high, self._low, self._counts
        used = np.flatnonzero(high)
        self._bits += 1
        self._allot()
        self._counts[self._put(high[used], low[used])] = counts[used]
