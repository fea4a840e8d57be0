"""The properties of many records: one of them as a column, or all as a map."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gimbalmq.model.record import decode_properties, find_property
from gimbalmq.spark.decode.layout import Layout
from gimbalmq.spark.decode.pieces import (
    Bytes,
    Ints,
    Mask,
    all_equal,
    broken_text,
    inside,
    is_text,
    patched,
    pieces,
    repeated,
    replaced,
    scattered,
    windows,
)
from gimbalmq.spark.decode.slowly import Data


class Properties:
    """The properties of many records: those that are alike by one means, the rest by another."""

    def __init__(self, data: Data, layout: Layout) -> None:
        at, stop = layout.properties_at, layout.stop
        # Some versions write a separator behind the last property and some do not.
        cut = stop - (layout.bytes[stop - 1] == 2)
        self._alike = _AlikeProperties.of(data, at, cut)
        self._rest: _CutProperties | None = None
        if self._alike is None:
            self._rest = _CutProperties(data, at, stop, cut)
        elif (rows := np.flatnonzero(~self._alike.alike)).size:
            self._rest_rows = rows
            self._rest = _CutProperties(data, at[rows], stop[rows], cut[rows])

    def column(self, name: str) -> pa.Array:
        """One property of every record; null if it is absent or empty."""
        return self._both(lambda found: found.column(name))

    def table(self) -> pa.Array:
        """All properties of every record as a map."""
        return self._both(lambda found: found.table())

    def _both(self, ask: Callable[[_AlikeProperties | _CutProperties], pa.Array]) -> pa.Array:
        if self._alike is None:
            assert self._rest is not None
            return ask(self._rest)
        column = ask(self._alike)
        return column if self._rest is None else replaced(column, self._rest_rows, ask(self._rest))


class _Pattern(NamedTuple):
    """What records are like.

    Attributes:
        items: names and values.
        varying: places of values that may be others.
        resized: the place of the one value that may have another length; behind the last if none has.
    """

    items: tuple[tuple[bytes, bytes], ...]
    varying: frozenset[int]
    resized: int


class _AlikeProperties:
    """Properties that differ in nothing but values, the lengths of one of them included.

    So are those of most producers' messages. A record is taken as the pattern: bytes that should be the
    same in all records are compared, a run of them at a time, and what lies between must be values without
    separators. If all of it is so, nothing is left to be searched for. Nothing is said of other records.
    """

    _recent: ClassVar[_Pattern | None] = None
    """What all records of the last buffer were like: those of the next one mostly are, too."""

    def __init__(self, data: Data, at: Ints, stop: Ints) -> None:
        self._data = data
        self._count = at.size
        self._at, self._stop = at, stop
        self.alike: Mask = stop > at
        self._names: list[str] = []
        self._values: list[str | pa.Array] = []
        """For each name the one value of all records, or a column."""
        self._bounds: list[tuple[Ints, Ints]] = []
        """For each name where the values lie."""

    @classmethod
    def of(cls, data: Data, at: Ints, stop: Ints) -> _AlikeProperties | None:
        """None if it is not worth while: many differ, or the pattern itself is not plainly written."""
        recent = _AlikeProperties._recent
        if recent is not None:
            found = cls(data, at, stop)
            found._compare(recent)
            if found.alike.all():
                return found
        pattern = _AlikeProperties._recent = _pattern_of(data, at, stop)
        if pattern is None:
            return None
        found = cls(data, at, stop)
        found._compare(pattern)
        if not found.alike.all():
            _AlikeProperties._recent = None
        return found if np.count_nonzero(found.alike) * 2 > at.size else None

    def _compare(self, pattern: _Pattern) -> None:
        """Finds out which records are like the pattern."""
        items, varying, resized = pattern
        self._names = [name.decode() for name, _ in items]
        self._exclude_sizes(pattern)
        same = b""  # what is to be found next in every record
        at = self._at
        following = sum(len(name) + len(value) + 2 for name, value in items[resized + 1 :])
        for place, (name, value) in enumerate(items):
            same += (b"\2" if place else b"") + name + b"\1"
            value_at = at + len(same)
            stop = self._stop - following if place == resized else value_at + len(value)
            if place in varying:
                self._expect(at, same)
                same = b""
                value_at, stop = self._inside_record(value_at, stop)
                self._values.append(self._plain_column(value_at, stop))
                at = stop
            else:
                self._values.append(value.decode())
                same += value
            self._bounds.append((value_at, stop))
        self._expect(at, same)
        self._exclude(at + len(same) != self._stop)

    def _exclude_sizes(self, pattern: _Pattern) -> None:
        """Records that are too short, or not as long: what is compared after this lies within the others."""
        items, _, resized = pattern
        sizes = self._stop - self._at
        size = sum(len(name) + len(value) + 2 for name, value in items) - 1
        if resized < len(items):
            self._exclude(sizes <= size - len(items[resized][1]))
        else:
            self._exclude(sizes != size)

    def _exclude(self, unlike: Mask) -> None:
        if unlike.any():
            self.alike = self.alike & ~unlike

    def _expect(self, at: Ints, same: bytes) -> None:
        """Only of those that may still be alike: a pattern may be far longer than other records."""
        if not same:
            return
        rows = None if self.alike.all() else np.flatnonzero(self.alike)
        if rows is not None:
            at = at[rows]
        if at.size and not all_equal(self._data, at, same):
            found = windows(self._data, f"V{len(same)}")[at].view(np.uint8).reshape(-1, len(same))
            unlike = (found != np.frombuffer(same, np.uint8)).any(axis=1)
            self.alike = self.alike.copy()
            self.alike[unlike if rows is None else rows[unlike]] = False

    def _inside_record(self, at: Ints, stop: Ints) -> tuple[Ints, Ints]:
        """The same positions; none at all in records that are not alike."""
        self._exclude((stop <= at) | (stop > self._stop))
        if self.alike.all():
            return at, stop
        return np.where(self.alike, at, self._at), np.where(self.alike, stop, self._at)

    def _plain_column(self, at: Ints, stop: Ints) -> pa.Array:
        """The values as text; records whose value holds a separator or is no UTF-8 are not alike."""
        column = pieces(self._data, at, stop, pa.string())
        begins, text = inside(column)
        if text.size and text.view(np.int8).min() > 2:
            return column  # ASCII, and no separator
        wrong = broken_text(column.view(pa.binary()), text)
        if text.size and text.min() < 3:
            wrong = np.append(wrong, np.searchsorted(begins, np.flatnonzero(text < 3), side="right") - 1)
        if wrong.size:
            self.alike = self.alike.copy()
            self.alike[wrong] = False
        return column

    def column(self, name: str) -> pa.Array:
        if name not in self._names:
            return pa.nulls(self._count, pa.string())
        value = self._values[self._names.index(name)]
        return pa.repeat(pa.scalar(value, pa.string()), self._count) if isinstance(value, str) else value

    def table(self) -> pa.Array:
        each = len(self._names)
        at = np.empty((self._count, each), np.int64)
        stop = np.empty((self._count, each), np.int64)
        for place, (value_at, value_stop) in enumerate(self._bounds):
            at[:, place] = value_at
            stop[:, place] = value_stop
        if not self.alike.all():
            other = np.flatnonzero(~self.alike)
            at[other] = stop[other] = self._at[other, None]
        values = pieces(self._data, at.ravel(), stop.ravel(), pa.string())
        keys = repeated([name.encode() for name in self._names], self._count)
        offsets = np.arange(0, each * self._count + 1, each, dtype=np.int32)
        return pa.MapArray.from_arrays(pa.array(offsets), keys, values)


def _pattern_of(data: Data, at: Ints, stop: Ints) -> _Pattern | None:
    """What most of some sample records are like; None if they are not plainly written."""
    # Both the longest and the shortest tell which value changes its length.
    sizes = stop - at
    rows = {int(sizes.argmin()), int(sizes.argmax()), *range(0, at.size, at.size // 8 + 1)}
    view = memoryview(data)
    samples = [items for row in sorted(rows) if (items := _plain_items(bytes(view[at[row] : stop[row]])))]
    votes = Counter(tuple(name for name, _ in items) for items in samples)
    if not votes:
        return None
    names = votes.most_common(1)[0][0]
    samples = [items for items in samples if tuple(name for name, _ in items) == names]
    columns = list(zip(*([value for _, value in items] for items in samples), strict=True))
    varying = frozenset(place for place, column in enumerate(columns) if len(set(column)) > 1)
    resized = [place for place, column in enumerate(columns) if len(set(map(len, column))) > 1]
    if len(resized) > 1:
        return None
    return _Pattern(tuple(samples[0]), varying, resized[0] if resized else len(names))


def _plain_items(raw: bytes) -> list[tuple[bytes, bytes]] | None:
    """Names and values, if that is plainly what they are and no name is there twice."""
    items = []
    for item in raw.split(b"\2"):
        name, _, value = item.partition(b"\1")
        if not name or not value or b"\1" in value:
            return None
        items.append((name, value))
    unlike = len(dict(items)) == len(items)
    return items if unlike and is_text(raw) else None


class _CutProperties:
    """Properties of any kind, cut at their separators.

    Each record's properties are copied with a U+0002 before them and none behind. So all of them
    together read U+0002 name U+0001 value, over and over: separators alternate and each piece ends
    where the next separator is. Rows that break the rule, or are no UTF-8, are left to Python.
    """

    def __init__(self, data: Data, at: Ints, stop: Ints, cut: Ints) -> None:
        self._data = data
        self._count = at.size
        self._at, self._stop = at, stop
        rows = np.flatnonzero(cut > at)
        self._odd: Ints = np.empty(0, np.int64)
        odd = self._cut(rows, cut)
        if odd.size:
            self._odd = rows[odd]
            self._cut(np.delete(rows, odd), cut)

    def _cut(self, rows: Ints, stop: Ints) -> Ints:
        """Finds the pieces; answers with the places, among these rows, of those that do not keep to the rule."""
        whole = rows.size == self._count
        at = self._at if whole else self._at[rows]
        copied = pieces(self._data, at - 1, stop if whole else stop[rows], pa.binary())
        begins, text = inside(copied)
        text[begins[:-1]] = 2
        separators = np.flatnonzero(text < 3)
        codes = text[separators]
        if codes.size % 2 or (codes.view("<u2") != 0x0102).any():
            return _irregular(begins, separators, codes, broken_text(copied, text))
        broken = broken_text(copied, text)
        if broken.size:
            return broken
        self._rows = None if whole else rows
        self._begins = begins[:-1]
        self._text = text
        self._name_at = separators[0::2] + 1
        self._name_stop = separators[1::2]
        self._value_at = separators[1::2] + 1
        self._value_stop = np.append(separators[2::2], text.size)
        self._name_sizes = self._name_stop - self._name_at
        return broken

    @cached_property
    def _first_items(self) -> Ints:
        """For each record that was cut, its first item."""
        items, rows = self._name_at.size, self._begins.size
        each = items // max(rows, 1)
        if each and each * rows == items and (self._name_at[::each] == self._begins + 1).all():
            return np.arange(0, items, each)
        found: Ints = np.searchsorted(self._name_at, self._begins)
        return found

    def _rows_of(self, items: Ints) -> Ints:
        first = self._first_items
        if items.size == first.size and bool((items >= first).all() and (items[:-1] < first[1:]).all()):
            rows = np.arange(items.size)  # one in each
        else:
            rows = np.searchsorted(first, items, side="right") - 1
        return rows if self._rows is None else self._rows[rows]

    def column(self, name: str) -> pa.Array:
        """One property of every record; null if it is absent or empty."""
        wanted = name.encode()
        items = np.flatnonzero(self._name_sizes == len(wanted))
        for width, place in _covering(len(wanted)):
            kind = f"<u{width}"
            found = windows(self._text, kind)[self._name_at[items] + place]
            items = items[found == int.from_bytes(wanted[place : place + width], "little")]
        filled = self._value_stop[items] > self._value_at[items]
        if not filled.all():
            items = items[filled]
        rows = self._rows_of(items)
        if rows.size > 1:
            last = np.append(rows[1:] != rows[:-1], True)  # of equal names in one record the last counts
            if not last.all():
                rows, items = rows[last], items[last]
        values = pieces(self._text, self._value_at[items], self._value_stop[items], pa.string())
        values = scattered(values, rows, self._count)
        odd = {row: _text_or_none(find_property(self._raw(row), wanted)) for row in self._odd.tolist()}
        return patched(values, odd)

    def table(self) -> pa.Array:
        """All properties of every record as a map."""
        rows = self._rows_of_all()
        odd = self._odd
        keep = np.ones(rows.size, np.bool_)
        doubtful = rows[(self._name_sizes == 0) | (self._value_stop == self._value_at)]
        doubtful = np.concatenate([doubtful, self._repeating(rows)])
        if doubtful.size:
            is_odd = np.zeros(self._count, np.bool_)
            is_odd[doubtful] = is_odd[odd] = True
            odd = np.flatnonzero(is_odd)
            keep = ~is_odd[rows]
            rows = rows[keep]
        keys = pieces(self._text, self._name_at[keep], self._name_stop[keep], pa.string())
        values = pieces(self._text, self._value_at[keep], self._value_stop[keep], pa.string())
        offsets = np.zeros(self._count + 1, np.int32)
        np.cumsum(np.bincount(rows, minlength=self._count), out=offsets[1:])
        table = pa.MapArray.from_arrays(pa.array(offsets), keys, values)
        return patched(table, {row: list(decode_properties(self._raw(row)).items()) for row in odd.tolist()})

    def _rows_of_all(self) -> Ints:
        counts = np.diff(self._first_items, append=self._name_at.size)
        rows = np.repeat(np.arange(counts.size), counts)
        return rows if self._rows is None else self._rows[rows]

    def _repeating(self, rows: Ints) -> Ints:
        """Records in which a name may occur twice: names are compared by a print of their ends and length."""
        if not rows.size:
            return rows
        padded = np.zeros(self._text.size + 16, np.uint8)
        padded[8:-8] = self._text
        words = windows(padded, "<u8")
        spare = (8 * np.maximum(8 - self._name_sizes, 0)).astype(np.uint64)
        spare[spare == 64] = 63
        prints = (words[self._name_at + 8] << spare) * np.uint64(0x9E3779B97F4A7C15)
        prints ^= words[self._name_stop] >> spare
        prints += self._name_sizes.astype(np.uint64)
        prints *= np.uint64(0xD6E8FEB86659FD93)
        keys = (rows.astype(np.uint64) << np.uint64(32)) | (prints >> np.uint64(32))
        keys.sort()
        twice: Ints = (keys[1:][keys[1:] == keys[:-1]] >> np.uint64(32)).astype(np.int64)
        return twice

    def _raw(self, row: int) -> bytes:
        return bytes(memoryview(self._data)[self._at[row] : self._stop[row]])


def _irregular(begins: npt.NDArray[np.int32], separators: Ints, codes: Bytes, broken: Ints) -> Ints:
    """Places of the records whose separators do not alternate, and of the ``broken`` ones."""
    first = np.searchsorted(separators, begins)
    counts = np.diff(first)
    place = np.repeat(np.arange(counts.size), counts)
    expected = 2 - (np.arange(codes.size) - first[place]) % 2
    irregular = np.zeros(counts.size, np.bool_)
    irregular[place[codes != expected]] = True
    irregular[counts % 2 == 1] = True
    irregular[broken] = True
    return np.flatnonzero(irregular)


def _text_or_none(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode("utf-8", "replace")


def _covering(size: int) -> list[tuple[int, int]]:
    """Width and place of the few integers that together cover so many bytes, each within them."""
    width = next(width for width in (8, 4, 2, 1) if width <= size)
    return [(width, min(place, size - width)) for place in range(0, size, width)]
