"""Bytes of joined records to one Arrow batch, by vectors: no Python for each ordinary message.

The way of a buffer: ``record_starts`` finds where records begin; ``Layout`` gathers all heads at
once and works out where each part of each record lies, for both magics and all kinds of hosts; the
selection drops rows by what the heads say; then every wanted column is built by itself, so that a
column nobody asked for costs nothing. What vectors cannot do is done for the few rows concerned and
put into the finished column: compressed bodies, properties that are not plainly
``name U+0001 value U+0002``, text that is not UTF-8, and damaged records. ``slowly`` says
what is right for them and gives the same rows for any bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gimbalmq.errors import RemoteProtocolError
from gimbalmq.model import properties as property_names
from gimbalmq.model.compression import decompress
from gimbalmq.model.crc import crc32
from gimbalmq.model.flags import BORN_HOST_V6, COMPRESSED, HOST_BITS, STORE_HOST_V6, TRANSACTION_PREPARED
from gimbalmq.model.ids import V4_HOST_BYTES, V6_HOST_BYTES
from gimbalmq.model.record import CRC_MASK, PHYSICAL_OFFSET_AT, STORE_HOST_AT
from gimbalmq.spark.columns import ROW_ID_PROPERTY, TYPES, arrow_schema
from gimbalmq.spark.decode.layout import Layout
from gimbalmq.spark.decode.pieces import (
    Ints,
    Mask,
    as_text,
    equal_pieces,
    is_one_of,
    patched,
    pieces,
    windows,
)
from gimbalmq.spark.decode.properties import Properties
from gimbalmq.spark.decode.slowly import (
    MAX_MS,
    Data,
    Frame,
    OnError,
    Selection,
    build,
    check_column,
    check_request,
    column_value,
    corrupt,
    needs_body,
    read_frame,
)
from gimbalmq.spark.decode.starts import RecordStarts, lay_out


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
    layout, damaged = lay_out(data, base, starts)
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


# --- columns -------------------------------------------------------------------------------------

_NUMBERS: Final = {
    "queueId": "queue_id",
    "offset": "queue_offset",
    "reconsumeTimes": "reconsume_times",
    "flag": "flag",
}
_TIMES: Final = {"bornTimestamp": "born_timestamp", "storeTimestamp": "store_timestamp"}
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

    def __init__(self, data: Data, layout: Layout) -> None:
        self.data = data
        self.layout = layout
        self.count = layout.start.size
        self._unpacked: dict[int, bytes] = {}
        """Bodies that were compressed, by the start of their record."""

    def only(self, keep: Mask) -> _Rows:
        if keep.all():
            return self
        rows = _Rows(self.data, Layout(self.data, self.layout.start[keep], self.layout.base))
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
            ("queue_offset", selection.low, selection.high),
            ("store_timestamp", selection.store_low_ms, selection.store_high_ms),
            ("born_timestamp", selection.born_low_ms, selection.born_high_ms),
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
            rows = rows.only(is_one_of(rows.topic_column(), selection.topics))
        if selection.tags is not None and rows.count:
            rows = rows.only(is_one_of(rows.properties.column(property_names.TAGS), selection.tags))
        return rows

    def crc_faults(self) -> dict[int, str]:
        layout = self.layout
        view = memoryview(self.data)
        bounds = zip(layout.body_at.tolist(), layout.body_stop.tolist(), strict=True)
        found = np.array([crc32(view[at:stop]) for at, stop in bounds], np.uint32) & CRC_MASK
        stored = layout.field("body_crc")
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
            return patched(pa.nulls(self.count, pa.string()), faults)
        if not self.count:
            return pa.nulls(0, TYPES[name])
        if name == "properties":
            return self.properties.table()
        values = self.properties.column(_PROPERTIES[name])
        return self._with_places(values) if name == "msgId" and values.null_count else values

    @cached_property
    def properties(self) -> Properties:
        return Properties(self.data, self.layout)

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
        if not self.count:
            return pa.nulls(0, pa.string())
        if layout.topic is not None:
            text = layout.topic.decode("utf-8", "replace")
            return pa.repeat(pa.scalar(text, pa.string()), self.count)
        return as_text(pieces(self.data, layout.topic_at, layout.topic_stop, pa.binary()))

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
        return patched(pieces(self.data, at, stop, pa.binary()), bodies)

    def _with_places(self, ids: pa.Array) -> pa.Array:
        """Offset ids if producers gave no id: store host and physical offset in hexadecimal."""
        layout = self.layout
        if ids.null_count == self.count and not (layout.flags & HOST_BITS).any():
            hosts = layout.plain_heads(STORE_HOST_AT[0], f"V{V4_HOST_BYTES}")
            return _places(hosts, layout.plain_heads(PHYSICAL_OFFSET_AT, "<u8"), V4_HOST_BYTES)
        missing = ids.is_null().to_numpy(zero_copy_only=False)
        host_at = layout.start + np.where(
            layout.flags & BORN_HOST_V6, STORE_HOST_AT[BORN_HOST_V6], STORE_HOST_AT[0]
        )
        store_v6 = (layout.flags & STORE_HOST_V6) != 0
        for rows, width in ((missing & ~store_v6, V4_HOST_BYTES), (missing & store_v6, V6_HOST_BYTES)):
            if not rows.any():
                continue
            hosts = windows(self.data, f"V{width}")[host_at[rows]]
            offsets = windows(self.data, "<u8")[layout.start[rows] + PHYSICAL_OFFSET_AT]
            texts = _places(hosts, offsets, width)
            ids = texts if len(texts) == self.count else pc.replace_with_mask(ids, pa.array(rows), texts)
        return ids


def _places(hosts: npt.NDArray[Any], offsets: npt.NDArray[Any], width: int) -> pa.Array:
    """Hosts of so many bytes and physical offsets, as they lie in records, in hexadecimal."""
    # Neighbours were stored by one host, and their offsets differ only in the lower half: what is the same is
    # written down once and copied.
    count = offsets.size
    halves = np.ascontiguousarray(offsets).view(np.uint32)
    upper, lower = halves[0::2], halves[1::2].copy()
    alike = hosts.tobytes() == hosts[:1].tobytes() * count
    if alike and (upper == upper[0]).all():
        beginning = _digits(hosts[:1].copy()).tobytes() + _digits(upper[:1].copy()).tobytes()
        texts = np.frombuffer(bytearray((beginning + bytes(8)) * count), np.uint64).reshape(count, -1)
        texts[:, -1] = _digits(lower).view(np.uint64)
    else:
        texts = np.concatenate(
            [
                _digits(np.ascontiguousarray(hosts)).view(np.uint64).reshape(count, -1),
                _digits(upper.copy()).view(np.uint64).reshape(count, 1),
                _digits(lower).view(np.uint64).reshape(count, 1),
            ],
            axis=1,
        )
    return equal_pieces(texts, 2 * (width + 8), pa.string())


def _digits(raw: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """The bytes of an array in hexadecimal."""
    return _HEX.take(raw.view(np.uint16))
