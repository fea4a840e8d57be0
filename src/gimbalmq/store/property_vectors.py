"""Properties by vectors: the keys and tags of thousands of records at once, without a step of Python for each.

Each record's properties are put behind a U+0002, one record behind the other. Then every property lies between two of
these marks, whichever record it belongs to, and a name is found by looking behind the marks only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gimbalmq.model import properties as prop
from gimbalmq.model.javahash import hash_and_power_pieces
from gimbalmq.store.vectors import Numbers, copy

_MARK = 2
_SPACE = 32
_PADDING = 16
"""Bytes behind the last record, so that a name may be looked for behind every mark."""


class Values(NamedTuple):
    """Values of one property: which record has it, where it lies, how long it is. None is empty."""

    records: Numbers
    starts: Numbers
    sizes: Numbers


class Texts(NamedTuple):
    """The properties of many records.

    Attributes:
        units: those of all records, as UTF-8.
        marks: where the marks are.
        ends: where the property behind each mark ends.
        records: which record it belongs to.
    """

    units: NDArray[np.uint8]
    marks: Numbers
    ends: Numbers
    records: Numbers

    def values(self, name: str) -> Values:
        """The values of one property; of a name that a record has twice the last counts that is not empty."""
        wanted = name.encode() + b"\x01"
        at = np.flatnonzero(self.units[self.marks + 1] == wanted[0])  # most are ruled out by a letter
        starts, done = self.marks[at] + 1, 0
        while done < len(wanted) and len(at):
            width = next(width for width in (8, 4, 2, 1) if width <= len(wanted) - done)
            words = np.ndarray((self.units.size - width + 1,), f">u{width}", self.units, strides=(1,))
            same = words[starts] == int.from_bytes(wanted[done : done + width], "big")
            done += width
            at, starts = at[same], starts[same] + width
        at, starts = at[starts < self.ends[at]], starts[starts < self.ends[at]]
        records, ends = self.records[at], self.ends[at]
        if len(records) > 1 and not bool((last := records[1:] != records[:-1]).all()):
            last = np.append(last, True)
            records, starts, ends = records[last], starts[last], ends[last]
        return Values(records, starts, ends - starts)

    def keys(self) -> Values:
        """What the index knows a record by: UNIQ_KEY first, then each of KEYS. Records come in their order."""
        ids, named = self.values(prop.UNIQ_KEY), self._words(self.values(prop.KEYS))
        if not len(named.records) or not len(ids.records):
            return ids if len(ids.records) else named
        records, starts, sizes = map(np.concatenate, zip(ids, named, strict=True))
        order = np.argsort(records, kind="stable")
        return Values(records[order], starts[order], sizes[order])

    def _words(self, values: Values) -> Values:
        """The words of values that spaces divide."""
        if not len(values.records):
            return values
        # Only inside the values: other properties may be large, and all spaces.
        before = np.cumsum(values.sizes) - values.sizes
        places = np.arange(int(values.sizes.sum())) + np.repeat(values.starts - before, values.sizes)
        inside = self.units[places] != _SPACE
        if bool(inside.all()):
            return values
        # Two neighbours of one word are inside, and of one value. No sorting: a value may be thousands of words.
        joined = inside[1:] & inside[:-1]
        joined[before[1:] - 1] = False
        first = np.flatnonzero(inside & ~np.append(False, joined))
        last = np.flatnonzero(inside & ~np.append(joined, False))
        numbers = np.searchsorted(before, first, "right") - 1
        return Values(values.records[numbers], places[first], last - first + 1)

    def hashes(self, values: Values, prefixes: Numbers | None = None) -> NDArray[np.int32]:
        """The hash of each value; behind a prefix, if the hash of the one of each record is given."""
        hashes, powers = hash_and_power_pieces(self.units, values.starts, values.sizes)
        if prefixes is None:
            return hashes
        powers = powers * prefixes[values.records].astype(np.uint32)
        powers += hashes.view(np.uint32)
        return powers.view(np.int32)


def texts_in(data: bytes, starts: Numbers, sizes: Numbers) -> Texts:
    """The properties that lie at these places, behind two bytes each that tell how long they are."""
    ends = np.cumsum(sizes + 1)
    begins = ends - sizes - 1
    units = np.zeros(int(ends[-1]) + _PADDING, np.uint8)
    copy(np.frombuffer(data, np.uint8), starts - 1, sizes + 1, units, begins)
    units[begins] = _MARK
    return _texts(units, begins)


def texts_of(properties: Sequence[bytes]) -> Texts:
    """The properties of each record."""
    sizes = np.fromiter(map(len, properties), np.int64, len(properties)) + 1
    units = np.frombuffer(b"\x02" + b"\x02".join(properties) + bytes(_PADDING), np.uint8)
    return _texts(units, np.cumsum(sizes) - sizes)


def _texts(units: NDArray[np.uint8], begins: Numbers) -> Texts:
    marks = np.flatnonzero(units == _MARK)
    ends = np.append(marks[1:], units.size - _PADDING)
    return Texts(units, marks, ends, np.searchsorted(begins, marks, "right") - 1)
