"""Bytes of joined records to one Arrow batch, by vectors: no Python for each ordinary message.

The way of a buffer: ``record_starts`` finds where records begin; ``_Layout`` gathers all heads at
once and works out where each part of each record lies, for both magics and all kinds of hosts; the
selection drops rows by what the heads say; then every wanted column is built by itself, so that a
column nobody asked for costs nothing. What vectors cannot do is done for the few rows concerned and
put into the finished column: compressed bodies, properties that are not plainly
``name U+0001 value U+0002``, text that is not UTF-8, and damaged records. ``decode_slowly`` says
what is right for them and gives the same rows for any bytes.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Container, Sequence
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gimbalmq.errors import RemoteProtocolError
from gimbalmq.model import properties as property_names
from gimbalmq.model.compression import decompress
from gimbalmq.model.flags import BORN_HOST_V6, COMPRESSED, STORE_HOST_V6, TRANSACTION_PREPARED
from gimbalmq.model.record import (
    CRC_MASK,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD,
    decode_properties,
    find_property,
)
from gimbalmq.spark.columns import ROW_ID_PROPERTY, TYPES, arrow_schema
from gimbalmq.spark.decode_slowly import (
    ANY_MAGIC,
    HEAD_SIZE,
    MAX_MS,
    Data,
    Frame,
    OnError,
    Selection,
    blank_size,
    build,
    check_column,
    check_request,
    column_value,
    corrupt,
    fault_at,
    find_record_start,
    frames,
    is_unwritten,
    needs_body,
    read_frame,
    starts_soundly,
)

__all__ = ["RecordStarts", "decode", "find_record_start", "record_starts"]

# glibc gives freed memory at the end of its heap back at once, and every decode would fault it in again,
# page by page, which costs more than the decoding. From a large block that was freed it learns to keep some.
np.empty(30 * 1024 * 1024, np.uint8)

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]


def decode(
    data: Data,
    names: Sequence[str],
    *,
    broker: str,
    low: int | None = None,
    high: int | None = None,
    topics: frozenset[str] | None = None,
    tags: frozenset[str] | None = None,
    store_low_ms: int | None = None,
    store_high_ms: int | None = None,
    born_low_ms: int | None = None,
    born_high_ms: int | None = None,
    on_error: OnError = "fail",
    check_crc: bool = False,
    skip_unborn: bool = False,
    base: int | None = None,
    starts: RecordStarts | None = None,
) -> pa.RecordBatch:
    """The wanted columns of the wanted records, in the order of the bytes.

    Every row is what ``MessageView`` says of the record; what a record lacks is null. Times that
    have no microseconds in 64 bits are null too. The batch shares no memory with ``data``.

    Args:
        data: records, one after the other; at most 512 MiB.
        names: columns of ``columns.TYPES``, in the order wanted.
        broker: whose records they are: the column of that name.
        low, high: queue offsets, ``low <= offset < high``; the bounds of times are meant alike.
        topics, tags: exact names; a record without a tag has none of them.
        on_error: what becomes of a damaged record: an error, no row, or a row of what could be read
            with the reason in ``decodeError`` and the body as stored. Such a row is left out only if
            what could be read says that it was not asked for.
        check_crc: whether bodies of wanted rows are compared with their CRC.
        skip_unborn: leave out prepared and rolled back messages, which only a commit log has.
        base: physical offset of the first byte in a commit log: every record must then lie where it
            says, and reading finds its way again behind damage with certainty.
        starts: what ``record_starts`` gave for ``data`` (and ``base``), to save walking it again; only
            the bytes up to its end are decoded.

    A body is unpacked, and found damaged if it cannot be, when ``body`` or ``decodeError`` is wanted.

    Raises:
        CorruptRecordError: ``on_error`` is "fail" and a record is damaged; the first one is named.
        OverflowError: the bodies unpack to more than one Arrow array holds.
    """
    check_request(data, names, on_error)
    if starts is not None:
        data = memoryview(data)[: starts.end]
    if not data:
        return build(names, [])
    selection = Selection(
        low, high, topics, tags, store_low_ms, store_high_ms, born_low_ms, born_high_ms, skip_unborn
    )
    layout, damaged = _frame(data, base, starts)
    rows = _Rows(data, layout).chosen(selection)
    faults: dict[int, str] = {}
    if check_crc:
        faults = rows.crc_faults()
    if needs_body(names):
        faults = rows.unpack_bodies() | faults
    if faults or damaged:
        if on_error == "fail":
            raise _first_error(data, rows, faults, damaged, broker, base)
        if on_error == "skip":
            rows = rows.without(sorted(faults))
            faults = {}
            damaged = []
    batch = pa.RecordBatch.from_arrays(
        [rows.column(name, broker, faults) for name in names], schema=arrow_schema(names)
    )
    return _with_damaged(batch, rows.layout.start, data, damaged, selection, broker) if damaged else batch


def _first_error(
    data: Data, rows: _Rows, faults: dict[int, str], damaged: list[Frame], broker: str, base: int | None
) -> Exception:
    """The damage that lies first, whatever kind it is."""
    start, stop = rows.layout.start, rows.layout.stop
    found = [(Frame(int(start[row]), int(stop[row])), fault) for row, fault in faults.items()]
    found += [(frame, frame.fault or "") for frame in damaged]
    frame, fault = min(found)
    return corrupt(broker, frame.start, base, fault, read_frame(data, frame, broker))


def _with_damaged(
    batch: pa.RecordBatch, starts: Ints, data: Data, damaged: list[Frame], selection: Selection, broker: str
) -> pa.RecordBatch:
    """The batch with rows for damaged records, each in its place."""
    names = batch.schema.names
    kept = [
        (frame, reading) for frame in damaged if selection.takes(reading := read_frame(data, frame, broker))
    ]
    rows = [[column_value(name, reading, broker, frame.fault) for name in names] for frame, reading in kept]
    order = np.argsort(np.concatenate([starts, np.array([frame.start for frame, _ in kept], np.int64)]))
    indices = pa.array(order)
    slow = build(names, rows)
    columns = [
        pa.concat_arrays([fast, extra]).take(indices)
        for fast, extra in zip(batch.columns, slow.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


# --- where records start -------------------------------------------------------------------------

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
    starts, reached = _chain(data)
    layout = _Layout(data, starts, base)
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
    if not cut and ANY_MAGIC.match(data, reached + 4):
        cut = room < _SIZE.unpack_from(data, reached)[0] < 2**31
    return starts, reached, "partial" if cut else "damaged"


def _frame(data: Data, base: int | None, known: RecordStarts | None) -> tuple[_Layout, list[Frame]]:
    """The layout of all sound records, and the damaged stretches between them."""
    if known is not None:
        starts, reached = known.starts, len(data)
    else:
        starts, reached = _chain(data)
    layout = _Layout(data, starts, base)
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
    return _Layout(data, np.concatenate([starts[:cut][layout.sound[:cut]], more]), base), damaged


def _chain(data: Data) -> tuple[Ints, int]:
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
        start = found.start() - 4
        if lanes[-1] < start <= last:
            lanes.append(start)
    return np.array(lanes, np.int64)


def _joined(data: Data, paths: Ints, counts: Ints, landed: Ints) -> tuple[Ints, int]:
    """Paths put together where some guesses were wrong: from the end of one path on to the next true guess."""
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


# --- where the parts of records lie --------------------------------------------------------------

_HOST_BITS: Final = BORN_HOST_V6 | STORE_HOST_V6
_STORE_HOST_AT: Final = 64  # 12 more with an IPv6 born host
_PHYSICAL_OFFSET_AT: Final = 28


def _head_type(bits: int) -> np.dtype[np.void]:
    born, store = (20 if bits & side else 8 for side in (BORN_HOST_V6, STORE_HOST_V6))
    fields = [("size", ">u4"), ("magic", ">u4"), ("crc", ">u4"), ("queueId", ">i4"), ("flag", ">i4")]
    fields += [("offset", ">i8"), ("physical", ">i8"), ("sysFlag", ">i4")]
    fields += [("born", ">i8"), ("bornHost", f"V{born}"), ("store", ">i8"), ("storeHost", f"V{store}")]
    fields += [("reconsume", ">i4"), ("prepared", ">i8"), ("bodySize", ">i4")]
    return np.dtype(fields)


_HEADS: Final = {bits: _head_type(bits) for bits in (0, BORN_HOST_V6, STORE_HOST_V6, _HOST_BITS)}
assert _HEADS[0].itemsize == HEAD_SIZE


def _windows(buffer: Any, dtype: Any) -> npt.NDArray[Any]:
    """A value of the type at every byte, nothing copied; indexing it gathers."""
    kind = np.dtype(dtype)
    return np.ndarray((max(0, len(buffer) - kind.itemsize + 1),), kind, buffer, strides=(1,))


def _all_equal(buffer: Any, at: Ints, same: bytes) -> bool:
    """Whether the same bytes stand at all the positions."""
    # Two long strings are compared far faster than many short rows of an array.
    return bool(_windows(buffer, f"V{len(same)}")[at].tobytes() == same * at.size)


class _Layout:
    """Where the parts of many records lie, each part an array of positions; and what their heads say."""

    def __init__(self, data: Data, starts: Ints, base: int | None) -> None:
        self.base = base
        self.start = starts
        self.bytes: Bytes = np.frombuffer(data, np.uint8)
        self._plain = _windows(data, f"V{HEAD_SIZE}")[starts].view(_HEADS[0])
        self._wide: list[tuple[Ints, npt.NDArray[np.void]]] = []
        """Heads with an IPv6 host: other fields lie further on in them."""
        self.magic = self._plain["magic"].astype(np.uint32)
        self.stop: Ints = starts + self.field("size")
        self.flags = self.field("sysFlag")
        body_at: Ints = starts + HEAD_SIZE
        known = (self.magic == MAGIC_V1) | (self.magic == MAGIC_V2)
        if (self.flags & _HOST_BITS).any():
            body_at, fits = self._widen(data, body_at)
            known &= fits
        if base is not None:
            known &= self.field("physical") == starts + base
        self._find_parts(data, body_at, known)

    def _widen(self, data: Data, body_at: Ints) -> tuple[Ints, Mask]:
        fits = np.ones(body_at.size, np.bool_)
        kinds = self.flags & _HOST_BITS
        for bits, head in _HEADS.items():
            of_kind = kinds == bits
            if bits and of_kind.any():
                body_at = body_at + of_kind * (head.itemsize - HEAD_SIZE)
                fits &= ~of_kind | (body_at + 3 <= self.stop)
                rows = np.flatnonzero(of_kind & fits)
                heads = _windows(data, f"V{head.itemsize}")[self.start[rows]].view(head)
                self._wide.append((rows, heads))
        return body_at, fits

    def _find_parts(self, data: Data, body_at: Ints, known: Mask) -> None:
        """Follows the lengths; where they lead out of a record, that record is not sound."""
        body_size = self.field("bodySize")
        two_wide = self.magic == MAGIC_V2
        any_two_wide = bool(two_wide.any())
        width: Any = 1 + two_wide if any_two_wide else 1
        topic_field = body_at + body_size
        sound = known & (body_size >= 0) & (topic_field + (2 + width) <= self.stop)
        self.all_sound = bool(sound.all())
        if not self.all_sound:
            topic_field = np.where(sound, topic_field, self.start)
        topic_size = self.bytes[topic_field].astype(np.int64)
        shorts = _windows(data, ">i2")
        if any_two_wide:
            rows = np.flatnonzero(two_wide)
            topic_size[rows] = shorts[topic_field[rows]]
            sound &= topic_size >= 0
        topic_at = topic_field + width
        topic_stop = topic_at + topic_size
        sound &= topic_stop + 2 <= self.stop
        self.all_sound = bool(sound.all())
        if not self.all_sound:
            topic_stop = np.where(sound, topic_stop, self.start)
        properties_size = shorts[topic_stop].astype(np.int64)
        properties_at = topic_stop + 2
        sound &= (properties_size >= 0) & (properties_at + properties_size == self.stop)
        self.all_sound = bool(sound.all())
        self.sound: Mask = sound
        self.body_at, self.body_stop = body_at, topic_field
        self.topic_at, self.topic_stop = topic_at, topic_stop
        self.properties_at = properties_at

    def field(self, name: str) -> npt.NDArray[Any]:
        """A number of the heads, in this machine's order."""
        found = self._plain[name]
        values = found.astype(found.dtype.newbyteorder("="))
        for rows, heads in self._wide:
            values[rows] = heads[name]
        return values


# --- columns -------------------------------------------------------------------------------------

_NUMBERS: Final = {"queueId": "queueId", "offset": "offset", "reconsumeTimes": "reconsume"}
_TIMES: Final = {"bornTimestamp": "born", "storeTimestamp": "store"}
_PROPERTIES: Final = {
    "key": property_names.KEYS,
    "tags": property_names.TAGS,
    "msgId": property_names.UNIQ_KEY,
    "rowId": ROW_ID_PROPERTY,
}
_HEX: Final = np.frombuffer(np.arange(1 << 16, dtype=np.uint16).tobytes().hex().upper().encode(), np.uint32)
"""Four digits for each two bytes as they lie in memory: half as many look-ups as by single bytes."""


class _Rows:
    """Sound records, to be chosen from and turned into columns."""

    def __init__(self, data: Data, layout: _Layout) -> None:
        self.data = data
        self.layout = layout
        self.count = layout.start.size
        self._unpacked: dict[int, bytes] = {}
        """Bodies that were compressed, by the start of their record."""

    def only(self, keep: Mask) -> _Rows:
        if keep.all():
            return self
        rows = _Rows(self.data, _Layout(self.data, self.layout.start[keep], self.layout.base))
        rows._unpacked = self._unpacked
        return rows

    def without(self, rows: list[int]) -> _Rows:
        keep = np.ones(self.count, np.bool_)
        keep[rows] = False
        return self.only(keep)

    def chosen(self, selection: Selection) -> _Rows:
        layout = self.layout
        keep = np.ones(self.count, np.bool_)
        bounds = (
            ("offset", selection.low, selection.high),
            ("store", selection.store_low_ms, selection.store_high_ms),
            ("born", selection.born_low_ms, selection.born_high_ms),
        )
        for name, low, high in bounds:
            if low is not None or high is not None:
                values = layout.field(name)
                if low is not None:
                    keep &= values >= low
                if high is not None:
                    keep &= values < high
        if selection.skip_unborn:
            keep &= layout.flags & TRANSACTION_PREPARED == 0
        rows = self.only(keep)
        if selection.topics is not None and rows.count:
            rows = rows.only(_is_one_of(rows.topic_column(), selection.topics))
        if selection.tags is not None and rows.count:
            rows = rows.only(_is_one_of(rows.properties.column(property_names.TAGS), selection.tags))
        return rows

    def crc_faults(self) -> dict[int, str]:
        layout = self.layout
        view = memoryview(self.data)
        bounds = zip(layout.body_at.tolist(), layout.body_stop.tolist(), strict=True)
        found = np.array([crc32(view[at:stop]) for at, stop in bounds], np.uint32) & CRC_MASK
        stored = layout.field("crc")
        wrong = np.flatnonzero(found != stored).tolist()
        return {row: f"body crc is {found[row]}, stored {stored[row]}" for row in wrong}

    def unpack_bodies(self) -> dict[int, str]:
        """Unpacks what is compressed; answers with what cannot be, and why."""
        layout = self.layout
        view = memoryview(self.data)
        faults = {}
        total = 0
        rows = np.flatnonzero(layout.flags & COMPRESSED)
        parts = (rows, layout.start[rows], layout.body_at[rows], layout.body_stop[rows], layout.flags[rows])
        for row, start, at, stop, flag in zip(*(part.tolist() for part in parts), strict=True):
            try:
                body = decompress(bytes(view[at:stop]), flag)
            except RemoteProtocolError as error:
                faults[row] = str(error)
            else:
                self._unpacked[start] = body
                total += len(body)
                check_column(total)
        return faults

    # -- one column each --------------------------------------------------------------

    def column(self, name: str, broker: str, faults: dict[int, str]) -> pa.Array:
        if name in _NUMBERS:
            return pa.array(self.layout.field(_NUMBERS[name]))
        if name in _TIMES:
            return self._time_column(_TIMES[name])
        if name == "topic":
            return self.topic_column()
        if name == "broker":
            return pa.repeat(pa.scalar(broker, pa.string()), self.count)
        if name == "body":
            return self._body_column(faults)
        if name == "decodeError":
            return _patched(pa.nulls(self.count, pa.string()), faults)
        if not self.count:
            return pa.nulls(0, TYPES[name])
        if name == "properties":
            return self.properties.table()
        values = self.properties.column(_PROPERTIES[name])
        return self._with_places(values) if name == "msgId" and values.null_count else values

    @cached_property
    def properties(self) -> _Properties:
        return _Properties(self.data, self.layout)

    def _time_column(self, name: str) -> pa.Array:
        values = self.layout.field(name)
        beyond = None
        if values.size and (values.min() < -MAX_MS or values.max() > MAX_MS):
            beyond = (values < -MAX_MS) | (values > MAX_MS)
            values[beyond] = 0
        values *= 1000
        return pa.array(values, mask=beyond).view(TYPES["bornTimestamp"])

    def topic_column(self) -> pa.Array:
        layout = self.layout
        at, stop = layout.topic_at, layout.topic_stop
        if not self.count:
            return pa.nulls(0, pa.string())
        first = bytes(memoryview(self.data)[at[0] : stop[0]])
        if first and (stop - at == len(first)).all() and _all_equal(self.data, at, first):
            text = first.decode("utf-8", "replace")
            return pa.repeat(pa.scalar(text, pa.string()), self.count)
        return _as_text(_pieces(self.data, at, stop, pa.binary()))

    def _body_column(self, faults: dict[int, str]) -> pa.Array:
        layout = self.layout
        at, stop = layout.body_at, layout.body_stop
        packed = np.flatnonzero(layout.flags & COMPRESSED)
        starts = zip(packed.tolist(), layout.start[packed].tolist(), strict=True)
        bodies = {row: self._unpacked[start] for row, start in starts if row not in faults}
        if bodies:
            stop = stop.copy()
            unpacked = list(bodies)
            stop[unpacked] = at[unpacked]
            check_column(int((stop - at).sum()) + sum(map(len, bodies.values())))
        return _patched(_pieces(self.data, at, stop, pa.binary()), bodies)

    def _with_places(self, ids: pa.Array) -> pa.Array:
        """Offset ids where producers gave no id: store host and physical offset in hexadecimal."""
        layout = self.layout
        if ids.null_count == self.count and not (layout.flags & _HOST_BITS).any():
            return self._places(layout.start, layout.start + _STORE_HOST_AT, 8)
        missing = ids.is_null().to_numpy(zero_copy_only=False)
        host_at = layout.start + _STORE_HOST_AT + np.where(layout.flags & BORN_HOST_V6, 12, 0)
        store_v6 = (layout.flags & STORE_HOST_V6) != 0
        for rows, width in ((missing & ~store_v6, 8), (missing & store_v6, 20)):
            if not rows.any():
                continue
            texts = self._places(layout.start[rows], host_at[rows], width)
            ids = texts if len(texts) == self.count else pc.replace_with_mask(ids, pa.array(rows), texts)
        return ids

    def _places(self, start: Ints, host_at: Ints, width: int) -> pa.Array:
        hosts = _windows(self.data, f"V{width}")[host_at].view(np.uint16).reshape(-1, width // 2)
        places = _windows(self.data, "V8")[start + _PHYSICAL_OFFSET_AT].view(np.uint16).reshape(-1, 4)
        digits = np.empty((start.size, width // 2 + 4), np.uint32)
        digits[:, :-4] = _HEX[hosts[0]] if (hosts == hosts[0]).all() else _HEX.take(hosts)
        digits[:, -4:] = _HEX.take(places)
        return _equal_pieces(digits, 2 * (width + 8), pa.string())


# --- properties ----------------------------------------------------------------------------------


class _Properties:
    """The properties of many records: those that are alike by one means, the rest by another."""

    def __init__(self, data: Data, layout: _Layout) -> None:
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
        """One property of every record; null where it is absent or empty."""
        return self._both(lambda found: found.column(name))

    def table(self) -> pa.Array:
        """All properties of every record as a map."""
        return self._both(lambda found: found.table())

    def _both(self, ask: Callable[[_AlikeProperties | _CutProperties], pa.Array]) -> pa.Array:
        if self._alike is None:
            assert self._rest is not None
            return ask(self._rest)
        column = ask(self._alike)
        return column if self._rest is None else _replaced(column, self._rest_rows, ask(self._rest))


class _AlikeProperties:
    """Properties that differ in nothing but values, the lengths of one of them included.

    So are those of most producers' messages. A record is taken as the pattern: bytes that should be the
    same in all records are compared, a run of them at a time, and what lies between must be values without
    separators. Where all of it is so, nothing is left to be searched for. Nothing is said of other records.
    """

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
        found = cls(data, at, stop)
        return found if found._match() and np.count_nonzero(found.alike) * 2 > found._count else None

    def _match(self) -> bool:
        # Both the longest and the shortest tell which value changes its length.
        sizes = self._stop - self._at
        samples = {int(sizes.argmin()), int(sizes.argmax()), *range(0, self._count, self._count // 8 + 1)}
        patterns = [items for row in sorted(samples) if (items := _plain_items(self._raw(row)))]
        votes = Counter(tuple(name for name, _ in items) for items in patterns)
        if not votes:
            return False
        names = votes.most_common(1)[0][0]
        values = [
            [value for _, value in items] for items in patterns if tuple(name for name, _ in items) == names
        ]
        columns = list(zip(*values, strict=True))
        varying = {place for place, column in enumerate(columns) if len(set(column)) > 1}
        resized = [place for place, column in enumerate(columns) if len(set(map(len, column))) > 1]
        if len(resized) > 1:
            return False
        self._names = [name.decode() for name in names]
        self._compare(
            list(zip(names, values[0], strict=True)), varying, resized[0] if resized else len(names)
        )
        return True

    def _compare(self, items: list[tuple[bytes, bytes]], varying: set[int], resized: int) -> None:
        """Finds out which records are as ``items``, where values at ``varying`` places may be others."""
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

    def _exclude(self, unlike: Mask) -> None:
        if unlike.any():
            self.alike = self.alike & ~unlike

    def _expect(self, at: Ints, same: bytes) -> None:
        if not same:
            return
        last = len(self._data) - len(same)
        if int(at.max()) > last:
            self._exclude(at > last)
            at = np.minimum(at, last)
        if not _all_equal(self._data, at, same):
            found = _windows(self._data, f"V{len(same)}")[at].view(np.uint8).reshape(-1, len(same))
            self._exclude((found != np.frombuffer(same, np.uint8)).any(axis=1))

    def _inside_record(self, at: Ints, stop: Ints) -> tuple[Ints, Ints]:
        """The same positions; none at all in records that are not alike."""
        self._exclude((stop <= at) | (stop > self._stop))
        if self.alike.all():
            return at, stop
        return np.where(self.alike, at, self._at), np.where(self.alike, stop, self._at)

    def _plain_column(self, at: Ints, stop: Ints) -> pa.Array:
        """The values as text; records whose value holds a separator or is no UTF-8 are not alike."""
        column = _pieces(self._data, at, stop, pa.string())
        begins, text = _inside(column)
        wrong = _broken_text(column.view(pa.binary()), text)
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
        values = _pieces(self._data, at.ravel(), stop.ravel(), pa.string())
        keys = _repeated([name.encode() for name in self._names], self._count)
        offsets = np.arange(0, each * self._count + 1, each, dtype=np.int32)
        return pa.MapArray.from_arrays(pa.array(offsets), keys, values)

    def _raw(self, row: int) -> bytes:
        return bytes(memoryview(self._data)[self._at[row] : self._stop[row]])


def _plain_items(raw: bytes) -> list[tuple[bytes, bytes]] | None:
    """Names and values, if that is plainly what they are and no name is there twice."""
    items = []
    for item in raw.split(b"\2"):
        name, _, value = item.partition(b"\1")
        if not name or not value or b"\1" in value:
            return None
        items.append((name, value))
    unlike = len(dict(items)) == len(items)
    return items if unlike and _is_text(raw) else None


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
        copied = _pieces(self._data, at - 1, stop if whole else stop[rows], pa.binary())
        begins, text = _inside(copied)
        text[begins[:-1]] = 2
        separators = np.flatnonzero(text < 3)
        codes = text[separators]
        if codes.size % 2 or (codes.view("<u2") != 0x0102).any():
            return _irregular(begins, separators, codes, _broken_text(copied, text))
        broken = _broken_text(copied, text)
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
        """One property of every record; null where it is absent or empty."""
        wanted = name.encode()
        items = np.flatnonzero(self._name_sizes == len(wanted))
        for width, place in _covering(len(wanted)):
            kind = f"<u{width}"
            found = _windows(self._text, kind)[self._name_at[items] + place]
            items = items[found == int.from_bytes(wanted[place : place + width], "little")]
        filled = self._value_stop[items] > self._value_at[items]
        if not filled.all():
            items = items[filled]
        rows = self._rows_of(items)
        if rows.size > 1:
            last = np.append(rows[1:] != rows[:-1], True)  # of equal names in one record the last counts
            if not last.all():
                rows, items = rows[last], items[last]
        values = _pieces(self._text, self._value_at[items], self._value_stop[items], pa.string())
        values = _scattered(values, rows, self._count)
        odd = {row: _text_or_none(find_property(self._raw(row), wanted)) for row in self._odd.tolist()}
        return _patched(values, odd)

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
        keys = _pieces(self._text, self._name_at[keep], self._name_stop[keep], pa.string())
        values = _pieces(self._text, self._value_at[keep], self._value_stop[keep], pa.string())
        offsets = np.zeros(self._count + 1, np.int32)
        np.cumsum(np.bincount(rows, minlength=self._count), out=offsets[1:])
        table = pa.MapArray.from_arrays(pa.array(offsets), keys, values)
        return _patched(table, {row: list(decode_properties(self._raw(row)).items()) for row in odd.tolist()})

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
        words = _windows(padded, "<u8")
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


def _broken_text(pieces: pa.Array, text: Bytes) -> Ints:
    """Places of the pieces that are no UTF-8."""
    if not text.size or text.max() < 0x80:
        return np.empty(0, np.int64)
    try:
        pieces.cast(pa.string())
    except pa.ArrowInvalid:
        begins, _ = _inside(pieces)
        places = np.unique(np.searchsorted(begins, np.flatnonzero(text >= 0x80), side="right") - 1)
        return np.array([place for place in places.tolist() if not _is_text(pieces[place].as_py())], np.int64)
    return np.empty(0, np.int64)


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _text_or_none(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode("utf-8", "replace")


def _covering(size: int) -> list[tuple[int, int]]:
    """Width and place of the few integers that together cover so many bytes, each within them."""
    width = next(width for width in (8, 4, 2, 1) if width <= size)
    return [(width, min(place, size - width)) for place in range(0, size, width)]


# --- Arrow ---------------------------------------------------------------------------------------


def _pieces(buffer: Any, at: Ints, stop: Ints, kind: pa.DataType) -> pa.Array:
    """The bytes between two positions each, ascending and not overlapping, copied into one array."""
    count = at.size
    if not count:
        return pa.array([], kind)
    sizes = stop - at
    size = int(sizes[0])
    if size and (sizes == size).all():
        return _equal_pieces(_windows(buffer, f"V{size}")[at], size, kind)
    return _unlike_pieces(buffer, at, stop, kind).take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


def _equal_pieces(joined: npt.NDArray[Any], size: int, kind: pa.DataType) -> pa.Array:
    count = joined.nbytes // size
    offsets = np.arange(0, joined.nbytes + 1, size, dtype=np.int32)
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(offsets), pa.py_buffer(joined)])


def _unlike_pieces(buffer: Any, at: Ints, stop: Ints, kind: pa.DataType) -> pa.Array:
    """An array over the buffer itself in which every other item is a piece, and the rest what lies between."""
    offsets = np.empty(2 * at.size, np.int32)
    offsets[0::2] = at
    offsets[1::2] = stop
    return pa.Array.from_buffers(kind, 2 * at.size - 1, [None, pa.py_buffer(offsets), pa.py_buffer(buffer)])


def _repeated(texts: Sequence[bytes], count: int) -> pa.Array:
    """All the texts, then all of them again, so many times."""
    joined = b"".join(texts)
    ends = np.cumsum([len(text) for text in texts])
    offsets = np.zeros(len(texts) * count + 1, np.int32)
    offsets[1:] = np.add.outer(np.arange(count) * len(joined), ends).ravel()
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(joined * count)]
    return pa.Array.from_buffers(pa.string(), len(texts) * count, buffers)


def _inside(pieces: pa.Array) -> tuple[npt.NDArray[np.int32], Bytes]:
    """Offsets and bytes of an array that ``_pieces`` made, not copied: they may be written to."""
    if not len(pieces):
        return np.zeros(1, np.int32), np.empty(0, np.uint8)
    _, offsets, joined = pieces.buffers()
    begins = np.frombuffer(offsets, np.int32)[: len(pieces) + 1]
    return begins, np.frombuffer(joined, np.uint8)[: begins[-1]]


def _scattered(values: pa.Array, rows: Ints, count: int) -> pa.Array:
    """The values at these rows, null at all others."""
    if rows.size == count:
        return values
    if not rows.size:
        return pa.nulls(count, values.type)
    places = np.zeros(count, np.int32)
    places[rows] = np.arange(rows.size)
    absent = np.ones(count, np.bool_)
    absent[rows] = False
    return values.take(pa.array(places, mask=absent))


def _patched(column: pa.Array, values: dict[int, Any]) -> pa.Array:
    """The column with other values at some rows."""
    if not values:
        return column
    rows = sorted(values)
    return _replaced(column, np.array(rows), pa.array([values[row] for row in rows], column.type))


def _replaced(column: pa.Array, rows: Ints, new: pa.Array) -> pa.Array:
    """The column with new values at these rows, which ascend."""
    if len(new) == len(column):
        return new
    if rows.size * 64 < len(column) and column.nbytes > 512 * len(column):
        # A few among long bodies: the stretches between them are copied whole, and once less.
        parts = []
        after = 0
        for number, row in enumerate(rows.tolist()):
            parts += [column.slice(after, row - after), new.slice(number, 1)]
            after = row + 1
        return pa.concat_arrays([*parts, column.slice(after)])
    places = np.arange(len(column))
    places[rows] = len(column) + np.arange(rows.size)
    return pa.concat_arrays([column, new]).take(pa.array(places))


def _as_text(raw: pa.Array) -> pa.Array:
    """Bytes to text; what is no UTF-8 gets U+FFFD, as Python puts it."""
    broken = _broken_text(raw, _inside(raw)[1]).tolist()
    mended = {row: raw[row].as_py().decode("utf-8", "replace").encode() for row in broken}
    return _patched(raw, mended).cast(pa.string())


def _is_one_of(column: pa.Array, texts: frozenset[str]) -> Mask:
    found: Mask = pc.is_in(column, value_set=pa.array(sorted(texts), pa.string())).to_numpy(
        zero_copy_only=False
    )
    return found
