"""Headers of sends that are alike, read by vectors: hundreds of them with a few calls of numpy.

A producer's headers differ in few places: opaque, queue, time, unique key, keys and tag. Those that are equally long
have these at the same places. So of a run of headers the first is read as JSON, and of the others it is only asked
whether they differ from it in such places alone, and whether digits and letters stand there. If so, each says what the
first one says, with other values. Answers are made in the same way: they differ in few places, too.

What is where in a header is guessed and then tried out: the first header is read once more with other values in those
places, and the guess was right if exactly these values have changed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from gimbalmq.broker.handlers.send_header import SendHeader, decode_header
from gimbalmq.model import properties as prop
from gimbalmq.model.javahash import hash_rows, java_hash

Letters = NDArray[np.uint8]
"""A row for each message, a column for each letter."""
Numbers = NDArray[np.int64]
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

_IS_LETTER = np.zeros(256, bool)
_IS_LETTER[[code for code in range(256) if re.fullmatch(_LETTER, bytes((code,)))]] = True
_OTHER = bytes(0x34 if code == 0x33 else 0x33 for code in range(256))
"""For each letter another one, which may stand for a digit."""

_MOST_KEYS = 16
"""Keys of one message in a run: each costs a few calls, however few the messages are."""
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
    tags_code: int
    waits: bool


class _Spans(NamedTuple):
    """Where values stand that may differ."""

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
        begins = [0]
        for start, stop in numbers:
            begins.append(begins[-1] + stop - start)
        self._numbers = list(pairwise(begins))
        self._begins = np.array([begin for begin, end in self._numbers if end - begin > 1], np.int64)
        self._texts = np.array([column for span in spans.texts() for column in range(*span)])
        self._properties = np.frombuffer(first.properties, np.uint8)
        self._places = places
        self._prefix = java_hash(first.header.extFields.b + "#")

    def match(self, rows: Letters) -> tuple[int, Letters]:
        """How many of the first rows have this shape, and the digits of all."""
        other = rows ^ self._row
        other &= self._fixed
        digits = rows.take(self._digits, 1)
        digits -= 0x30
        letters = _IS_LETTER.take(rows.take(self._texts, 1))
        zeros = digits[:, self._begins] == 0  # no number of several digits begins with one
        if not other.any() and int(digits.max()) <= 9 and bool(letters.all()) and not zeros.any():
            return len(rows), digits
        wrong = other.any(1) | (digits > 9).any(1) | ~letters.all(1) | zeros.any(1)
        return int(wrong.argmax()), digits

    def number(self, which: int, digits: Letters) -> Numbers:
        start, stop = self._numbers[which]
        made = digits[:, start].astype(np.int64)
        for column in range(start + 1, stop):
            made *= 10
            made += digits[:, column]
        return made

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
    """Shapes seen lately."""

    def __init__(self) -> None:
        self._known: dict[tuple[_Spans, bytes], Shape] = {}

    def find(self, raw: bytes) -> tuple[Shape | None, tuple[_Spans, bytes] | None]:
        """The shape of a header if it was seen; if not, under which name to ``keep`` it, if it can have one."""
        spans = find_spans(raw)
        if spans is None:
            return None, None
        fixed = bytearray(raw)
        for start, stop in spans.all():
            fixed[start:stop] = bytes(stop - start)
        name = (spans, bytes(fixed))
        return self._known.get(name), name

    def keep(self, name: tuple[_Spans, bytes], raw: bytes, first: Ordinary) -> Shape | None:
        shape = make_shape(raw, name[0], first)
        if shape is not None and len(raw) <= _LONGEST_KEPT:
            if len(self._known) >= _SHAPES_KEPT:
                self._known.clear()
            self._known[name] = shape
        return shape


class HeaderRun:
    """The headers of one shape at the begin of a list."""

    def __init__(self, shape: Shape, headers: Sequence[bytes]) -> None:
        rows = np.frombuffer(b"".join(headers), np.uint8).reshape(len(headers), -1)
        self.count, digits = shape.match(rows)
        self._rows, self._digits = rows[: self.count], digits[: self.count]
        self.shape = shape

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


class AnswerLetters(NamedTuple):
    """What an answer repeats of its request."""

    opaques: Letters
    queues: Letters
    uniques: Letters


class AnswerTexts(NamedTuple):
    """What stands between the values of an answer.

    Before the offset id's last half, the queue id, the queue offset, the unique key and the opaque; and at the end.
    """

    head: str
    queue_id: str
    queue_offset: str
    unique: str
    opaque: str
    end: str


def answers(texts: AnswerTexts, letters: AnswerLetters, places: Numbers, offsets: Numbers) -> bytes:
    """The frames of answers; those whose queue offset has as many digits are made together."""
    low, high = len(str(int(offsets.min()))), len(str(int(offsets.max())))
    if low == high:
        return _equal_answers(texts, letters, places, offsets, low)
    made: list[bytes] = []
    for width in range(low, high + 1):
        chosen = np.flatnonzero((offsets < 10**width) & (offsets >= (10 ** (width - 1) if width > 1 else 0)))
        if len(chosen):
            some = AnswerLetters(*(part[chosen] for part in letters))
            made.append(_equal_answers(texts, some, places[chosen], offsets[chosen], width))
    return b"".join(made)


def _equal_answers(
    texts: AnswerTexts, letters: AnswerLetters, places: Numbers, offsets: Numbers, width: int
) -> bytes:
    hexadecimal = places.astype(">i8").tobytes().hex().upper().encode()
    values = (
        np.frombuffer(hexadecimal, np.uint8).reshape(-1, 16),
        letters.queues,
        _decimal(offsets, width),
        letters.uniques,
        letters.opaques,
    )
    length = sum(map(len, texts)) + sum(value.shape[1] for value in values)
    row = (length + 4).to_bytes(4, "big") + length.to_bytes(4, "big") + texts.head.encode()
    columns: list[tuple[int, Letters]] = []
    for text, value in zip(texts[1:], values, strict=True):
        columns.append((len(row), value))
        row += bytes(value.shape[1]) + text.encode()
    made = np.empty((len(places), len(row)), np.uint8)
    made[:] = np.frombuffer(row, np.uint8)
    for at, value in columns:
        made[:, at : at + value.shape[1]] = value
    return made.tobytes()


def _decimal(numbers: Numbers, width: int) -> Letters:
    made = np.empty((len(numbers), width), np.uint8)
    for column in range(width - 1, 0, -1):
        rest = numbers // 10
        made[:, column] = numbers - rest * 10
        numbers = rest
    made[:, 0] = numbers
    made += 0x30
    return made
