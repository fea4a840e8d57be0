"""Headers of sends that are alike, read by vectors: hundreds of them with a few calls of numpy.

A producer's headers differ in few places: opaque, queue, time, unique key, keys and tag. Those that are equally long
have these at the same places. So of headers of one length the first is read as JSON, and of the others it is only asked
whether they differ from it in such places alone, and whether digits and letters stand there. If so, each says what the
first one says, with other values. Those that differ in more may be of another kind, of which there may be several in a
run.

What is where in a header is guessed and then tried out: the first header is read once more with other values in those
places, and the guess was right if exactly these values have changed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from gimbalmq.broker.handlers.send_answers import AnswerLetters, Letters
from gimbalmq.broker.handlers.send_header import SendHeader, decode_header
from gimbalmq.model import properties as prop
from gimbalmq.model.javahash import hash_rows, key_prefix
from gimbalmq.protocol.command import ONEWAY_FLAG
from gimbalmq.store.append_vectors import Part, Run, Single
from gimbalmq.store.consumequeue import QueueLog
from gimbalmq.store.vectors import Numbers

_Span = tuple[int, int]

_LETTER = rb"[!#-\[\]-~]"
"""What JSON text may hold as it is, of ASCII, without the space that ends a key."""
_OPAQUE = re.compile(rb'"opaque":(0|[1-9]\d{0,9})[,}]')
_QUEUE = re.compile(rb'"e":"(0|[1-9]\d{0,3})"')
_BORN = re.compile(rb'"g":"([1-9]\d{0,17})"')
_UNIQUE = re.compile(rb"UNIQ_KEY\\u0001(" + _LETTER + rb"+)\\u0002")
_KEYS = re.compile(rb'(?:\\u0002|")KEYS\\u0001((?:' + _LETTER + rb"| )+)\\u0002")
_TAG = re.compile(rb"\\u0002TAGS\\u0001(" + _LETTER + rb'+)(?:\\u0002|")')
_KEY = re.compile(rb"[^ ]+")
_IN_UNIQUE, _IN_KEYS, _IN_TAGS = (
    f"{prop.PROPERTY_END}{name}{prop.NAME_END}".encode() for name in (prop.UNIQ_KEY, prop.KEYS, prop.TAGS)
)

_LETTERS = bytes(code for code in range(256) if re.fullmatch(_LETTER, bytes((code,))))
_IS_LETTER = np.isin(np.arange(256), list(_LETTERS))
_OTHER = bytes(0x34 if code == 0x33 else 0x33 for code in range(256))
"""For each letter another one, which may stand for a digit."""

_MOST_KEYS = 16
"""Keys of one message in a run: each costs a few calls, however few the messages are."""
_LEAST_PART = 24
"""So many headers of a run are read by vectors if they are alike; fewer sooner one by one."""
_MOST_TRIES = 16
"""So often headers of a run are compared with one of them: a peer whose headers only look alike must not cost much."""
_SHAPES_KEPT = 256
_LONGEST_KEPT = 2048
"""Bytes of a header whose shape is kept: a peer that sends only others must not fill our memory."""


class Ordinary(NamedTuple):
    """What a header that asks for nothing but being stored means for the store.

    Attributes:
        properties: as they are stored.
        unique_at: where in them the unique key begins.
    """

    header: SendHeader
    properties: bytes
    unique_at: int
    unique: str
    tags_code: int
    waits: bool


class _Spans(NamedTuple):
    """Where in a header the values stand that may differ."""

    opaque: _Span
    queue: _Span
    born: _Span
    unique: _Span
    keys: tuple[_Span, ...]
    tag: _Span | None

    def all(self) -> list[_Span]:
        found = [self.opaque, self.queue, self.born, self.unique, *self.keys]
        return found if self.tag is None else [*found, self.tag]

    def texts(self) -> list[_Span]:
        """Those that stand in the properties, in their order."""
        return sorted(self.all()[3:])


def find_spans(raw: bytes) -> _Spans | None:
    opaque, queue, born = _OPAQUE.search(raw), _QUEUE.search(raw), _BORN.search(raw)
    unique = _UNIQUE.search(raw)
    if opaque is None or queue is None or born is None or unique is None:
        return None
    found, tag = _KEYS.search(raw), _TAG.search(raw)
    keys = tuple(key.span() for key in _KEY.finditer(raw, *found.span(1))) if found is not None else ()
    if len(keys) > _MOST_KEYS:
        return None
    return _Spans(
        opaque.span(1),
        queue.span(1),
        born.span(1),
        unique.span(1),
        keys,
        None if tag is None or raw.count(b"TAGS\\u0001") > 1 else tag.span(1),
    )


class Shape:
    """What headers have in common that differ only in their spans."""

    def __init__(self, raw: bytes, spans: _Spans, first: Ordinary, places: dict[_Span, int]) -> None:
        self.spans = spans
        self.first = first
        self._row = np.frombuffer(raw, np.uint8)
        self._fixed = np.full(len(raw), 255, np.uint8)
        for start, stop in spans.all():
            self._fixed[start:stop] = 0
        numbers = spans.opaque, spans.queue, spans.born
        self._digits = np.array([column for span in numbers for column in range(*span)])
        self._numbers: list[tuple[slice, Numbers]] = []
        begins: list[int] = []
        at = 0
        for start, stop in numbers:
            width = stop - start
            self._numbers.append((slice(at, at + width), 10 ** np.arange(width - 1, -1, -1)))
            begins += [at] if width > 1 else []
            at += width
        self._begins = np.array(begins, np.int64)
        self._texts = np.array([column for span in spans.texts() for column in range(*span)])
        self._properties = np.frombuffer(first.properties, np.uint8)
        self._places = places
        self._prefix = key_prefix(first.header.extFields.b)

    def match(self, rows: Letters) -> tuple[NDArray[np.bool_] | None, Letters]:
        """Which rows have this shape, None if all; and the digits of all."""
        other = rows ^ self._row
        other &= self._fixed
        digits = rows.take(self._digits, 1)
        digits -= 0x30
        letters = rows.take(self._texts, 1)
        zeros = digits[:, self._begins] == 0  # no number of several digits begins with one
        if (
            not other.max()
            and digits.max() <= 9
            and not letters.tobytes().translate(None, _LETTERS)
            and not zeros.any()
        ):
            return None, digits
        wrong = other.any(1) | (digits > 9).any(1) | ~_IS_LETTER[letters].all(1) | zeros.any(1)
        return ~wrong, digits

    def number(self, which: int, digits: Letters) -> Numbers:
        columns, powers = self._numbers[which]
        return digits[:, columns].astype(np.int64) @ powers

    def properties(self, rows: Letters) -> Letters:
        made = np.empty((len(rows), len(self._properties)), np.uint8)
        made[:] = self._properties
        for (start, stop), place in self._places.items():
            made[:, place : place + stop - start] = rows[:, start:stop]
        return made

    def tags_codes(self, rows: Letters) -> NDArray[np.int32] | int:
        span = self.spans.tag
        if span is None or not (rows[:, slice(*span)] != self._row[slice(*span)]).any():
            return self.first.tags_code
        return hash_rows(rows[:, slice(*span)])

    def keys(self, rows: Letters) -> NDArray[np.int32]:
        """Hashes of ``topic#key``: of the unique key, then of the other keys."""
        spans = (self.spans.unique, *self.spans.keys)
        found = np.empty((len(rows), len(spans)), np.int32)
        for column, span in enumerate(spans):
            found[:, column] = hash_rows(rows[:, slice(*span)], self._prefix)
        return found


def make_shape(raw: bytes, spans: _Spans, first: Ordinary) -> Shape | None:
    """The shape of a header, if its spans are what they seem to be."""
    changed = bytearray(raw)
    for start, stop in spans.all():
        changed[start:stop] = raw[start:stop].translate(_OTHER)
    try:
        other = decode_header(changed)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    header = first.header
    before, after = header.extFields.i.encode(), other.extFields.i.encode()
    numbers = [int(changed[slice(*span)]) for span in (spans.opaque, spans.queue, spans.born)]
    if numbers != [other.opaque, other.extFields.e, other.extFields.g] or len(before) != len(after):
        return None
    # All else is as it was.
    fields = msgspec.structs.replace(
        other.extFields, e=header.extFields.e, g=header.extFields.g, i=header.extFields.i
    )
    if msgspec.structs.replace(other, opaque=header.opaque, extFields=fields) != header:
        return None
    places: dict[_Span, int] = {}
    at = 0
    for start, stop in spans.texts():
        at = next((n for n in range(at, len(before)) if before[n] != after[n]), len(before))
        end = at + stop - start
        if before[at:end] != raw[start:stop] or after[at:end] != changed[start:stop]:
            return None
        places[start, stop] = at
        at = end
    if before[at:] != after[at:] or places[spans.unique] != first.unique_at:
        return None
    # The index looks for these names; each has to be where it is expected, and only there.
    named = prop.PROPERTY_END.encode() + before
    if named.count(_IN_UNIQUE) != 1 or named.count(_IN_KEYS) > 1:
        return None
    keys = named.partition(_IN_KEYS)[2].partition(prop.PROPERTY_END.encode())[0].split(b" ")
    if [raw[slice(*span)] for span in spans.keys] != [key for key in keys if key]:
        return None
    if spans.tag is not None and named.count(_IN_TAGS) != 1:
        return None
    return Shape(raw, spans, first, places)


class Shapes:
    """Shapes seen lately.

    Args:
        read: what a header means for the store; None if it asks for more than being stored.
    """

    def __init__(self, read: Callable[[bytes], Ordinary | None]) -> None:
        self._read = read
        self._known: dict[tuple[_Spans, bytes], Shape] = {}
        self._usual: dict[int, Shape] = {}
        """Shapes that all headers of a length had when they last came."""

    def find(self, raw: bytes) -> Shape | None:
        """The shape of a header, if it can have one."""
        spans = find_spans(raw)
        if spans is None:
            return None
        fixed = bytearray(raw)
        for start, stop in spans.all():
            fixed[start:stop] = bytes(stop - start)
        name = (spans, bytes(fixed))
        shape = self._known.get(name)
        if shape is None:
            first = self._read(raw)
            shape = make_shape(raw, spans, first) if first is not None else None
            if shape is not None and len(raw) <= _LONGEST_KEPT:
                if len(self._known) >= _SHAPES_KEPT:
                    self._known.clear()
                    self._usual.clear()
                self._known[name] = shape
        return shape

    def sort(self, headers: Sequence[bytes]) -> Sorted | None:
        """Headers by what they have in common; None if most are like no others."""
        parts: list[HeaderPart] = []
        classes, others = _by_size(headers)
        tries = _MOST_TRIES
        for numbers in classes:
            if len(others) * 2 > len(headers):
                return None
            chosen = headers if len(numbers) == len(headers) else itemgetter(*numbers.tolist())(headers)
            rows = np.frombuffer(b"".join(chosen), np.uint8).reshape(len(numbers), -1)
            usual = self._usual.pop(rows.shape[1], None)
            while len(numbers) >= _LEAST_PART and tries:
                tries -= 1
                shape = usual or self.find(headers[numbers[0]])
                if shape is None:
                    others.append(int(numbers[0]))
                    numbers, rows = numbers[1:], rows[1:]
                    continue
                alike, digits = shape.match(rows)
                if alike is None:
                    parts.append(HeaderPart(shape, numbers, rows, digits))
                    if rows.shape[1] <= _LONGEST_KEPT and len(self._usual) < _SHAPES_KEPT:
                        self._usual[rows.shape[1]] = shape
                    numbers = numbers[:0]
                    break
                if usual is not None:
                    usual = None
                    continue
                if np.count_nonzero(alike) < _LEAST_PART:
                    others += numbers[alike].tolist()
                else:
                    parts.append(HeaderPart(shape, numbers[alike], rows[alike], digits[alike]))
                numbers, rows = numbers[~alike], rows[~alike]
            others += numbers.tolist()
        return Sorted(parts, sorted(others)) if len(others) * 2 <= len(headers) else None


def _by_size(headers: Sequence[bytes]) -> tuple[list[Numbers], list[int]]:
    """The numbers of those that are as long as many others, and of the rest."""
    sizes = list(map(len, headers))
    if sizes.count(sizes[0]) == len(sizes):
        return [np.arange(len(sizes))], []
    often = {size for size, count in Counter(sizes).items() if count >= _LEAST_PART}
    rest = [number for number, size in enumerate(sizes) if size not in often]
    known = np.array(sizes)
    return [np.flatnonzero(known == size) for size in often], rest


class Sorted(NamedTuple):
    """The headers of a run: those that are alike, and the numbers of the others, which are to be read one by one."""

    parts: list[HeaderPart]
    others: list[int]

    def before(self, number: int) -> list[HeaderPart]:
        """The parts, without the run's headers from this one on."""
        return [part for part in (part.before(number) for part in self.parts) if len(part)]


class HeaderPart:
    """Headers of one shape among those of a run.

    Attributes:
        numbers: which of the run's they are, ascending.
        first: what one of their shape means.
    """

    def __init__(self, shape: Shape, numbers: Numbers, rows: Letters, digits: Letters) -> None:
        self.shape = shape
        self.first = shape.first
        self.topic = shape.first.header.extFields.b
        self.numbers = numbers
        self._rows = rows
        self._digits = digits

    def __len__(self) -> int:
        return len(self.numbers)

    def before(self, number: int) -> HeaderPart:
        """Those of the run's first headers, so many of them."""
        kept = int(self.numbers.searchsorted(number))
        if kept == len(self):
            return self
        return HeaderPart(self.shape, self.numbers[:kept], self._rows[:kept], self._digits[:kept])

    @property
    def queue_ids(self) -> Numbers:
        return self.shape.number(1, self._digits)

    @property
    def born_timestamps(self) -> Numbers:
        return self.shape.number(2, self._digits)

    @property
    def opaques(self) -> list[int]:
        found: list[int] = self.shape.number(0, self._digits).tolist()
        return found

    @property
    def properties(self) -> Letters:
        return self.shape.properties(self._rows)

    @property
    def tags_codes(self) -> NDArray[np.int32] | int:
        return self.shape.tags_codes(self._rows)

    @property
    def keys(self) -> NDArray[np.int32]:
        return self.shape.keys(self._rows)

    def letters(self) -> AnswerLetters:
        spans = self.shape.spans
        return AnswerLetters(
            *(self._rows[:, slice(*span)].copy() for span in (spans.opaque, spans.queue, spans.unique))
        )


class Sends:
    """The messages of a run: those that are alike in parts, the others by their numbers."""

    def __init__(
        self,
        parts: list[HeaderPart],
        singles: list[tuple[int, Ordinary]],
        bodies: Sequence[bytes],
        sizes: Numbers,
    ) -> None:
        self.parts = parts
        self._singles = singles
        self._bodies = bodies
        self._sizes = sizes

    def run(self, queue_of: Callable[[tuple[str, int]], QueueLog | None], born_host: bytes) -> Run | None:
        """The same for the store; None if one goes to a queue that is not there."""
        count = len(self._bodies)
        queues: dict[QueueLog, int] = {}
        queue_numbers = np.empty(count, np.int64)
        parts: list[Part] = []
        singles: list[Single] = []
        for part in self.parts:
            of = part.first.header.extFields
            queue_ids = part.queue_ids
            there = np.bincount(queue_ids)
            queue = None
            for queue_id in np.flatnonzero(there).tolist():
                queue = queue_of((of.b, queue_id))
                if queue is None:
                    return None
                there[queue_id] = queues.setdefault(queue, len(queues))
            if queue is None:
                return None
            numbers = part.numbers if len(part) < count else slice(None)
            queue_numbers[numbers] = there[queue_ids]
            parts.append(
                Part(
                    numbers,
                    queue,
                    part.properties,
                    part.tags_codes,
                    part.keys,
                    of.h,
                    of.f,
                    part.born_timestamps,
                    of.j,
                )
            )
        for number, single in self._singles:
            of = single.header.extFields
            queue = queue_of((of.b, of.e))
            if queue is None:
                return None
            queue_numbers[number] = queues.setdefault(queue, len(queues))
            singles.append(Single(number, queue, single.properties, single.tags_code, of.h, of.f, of.g, of.j))
        return Run(list(queues), queue_numbers, self._bodies, self._sizes, born_host, parts, singles)

    def opaques(self) -> list[int]:
        """Of those that are to be answered, in their order."""
        found: list[tuple[int, int]] = []
        for part in self.parts:
            if not part.first.header.flag & ONEWAY_FLAG:
                found += zip(part.numbers.tolist(), part.opaques, strict=True)
        for number, single in self._singles:
            if not single.header.flag & ONEWAY_FLAG:
                found.append((number, single.header.opaque))
        return [opaque for _, opaque in sorted(found)]

    def counts(self) -> dict[str, tuple[int, int]]:
        """By topic: how many messages, and how many bytes of bodies."""
        found: dict[str, tuple[int, int]] = {}
        for part in self.parts:
            number, size = found.get(part.topic, (0, 0))
            found[part.topic] = number + len(part), size + int(self._sizes[part.numbers].sum())
        for at, single in self._singles:
            number, size = found.get(single.header.extFields.b, (0, 0))
            found[single.header.extFields.b] = number + 1, size + len(self._bodies[at])
        return found


def sizes_of(bodies: Sequence[bytes]) -> Numbers:
    return np.fromiter(map(len, bodies), np.int64, len(bodies))


def first_outside(sizes: Numbers, most: int) -> int:
    """The number of the first body that is empty or has more bytes than these; how many there are if none has."""
    if sizes.min() > 0 and sizes.max() <= most:
        return len(sizes)
    return int(((sizes <= 0) | (sizes > most)).argmax())


def joined_letters(parts: Sequence[HeaderPart]) -> list[tuple[AnswerLetters, Numbers]]:
    """What the answers to some parts repeat, and the numbers of their messages; together if they are equally long."""
    found: dict[tuple[int, ...], list[tuple[AnswerLetters, Numbers]]] = {}
    for part in parts:
        letters = part.letters()
        found.setdefault(tuple(column.shape[1] for column in letters), []).append((letters, part.numbers))
    joined: list[tuple[AnswerLetters, Numbers]] = []
    for equal in found.values():
        if len(equal) > 1:
            columns = zip(*(letters for letters, _ in equal), strict=True)
            letters = AnswerLetters(*map(np.concatenate, columns))
            equal = [(letters, np.concatenate([numbers for _, numbers in equal]))]
        joined += equal
    return joined
