"""Joined records to columns one record at a time: the plain statement of what ``decode`` gives.

Everything that has to be judged is judged here: which bytes are a record, what is left of a damaged
one, which rows a reader asked for. The vector path asks these functions about the few records that
are out of the ordinary and must agree with them on all others.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa

from gimbalmq.errors import CorruptRecordError, RemoteProtocolError
from gimbalmq.model import properties as property_names
from gimbalmq.model.crc import crc32
from gimbalmq.model.flags import HOST_BITS, enters_queue
from gimbalmq.model.ids import offset_id, pack_host
from gimbalmq.model.message import MessageView, decode_views
from gimbalmq.model.record import (
    ANY_MAGIC,
    BLANK_BYTES,
    BODY_SIZE_AT,
    CRC_MASK,
    HEADS,
    HOST_BITS_AT,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD,
    START,
    check_record,
    decode_properties,
)
from gimbalmq.spark.columns import ROW_ID_PROPERTY, TYPES, arrow_schema

Data = bytes | bytearray | memoryview
OnError = Literal["fail", "skip", "keep"]

MAX_DATA: Final = 512 * 1024 * 1024
"""More at once could outgrow Arrow's 32-bit offsets: a broken byte becomes a three-byte U+FFFD."""
MAX_COLUMN: Final = 2**31 - 1
MAX_MS: Final = (2**63 - 1) // 1000
"""Beyond it, on either side, a time has no microseconds in 64 bits; such a time is null."""

_INT: Final = struct.Struct(">i")
_BODY_COLUMNS: Final = frozenset({"body", "decodeError"})
_PROPERTY_COLUMNS: Final = frozenset({"key", "tags", "msgId", "properties", "rowId"})


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows are asked for; bounds are ``low <= value < high``, None bounds nothing."""

    low: int | None = None
    high: int | None = None
    topics: frozenset[str] | None = None
    tags: frozenset[str] | None = None
    store_low_ms: int | None = None
    store_high_ms: int | None = None
    born_low_ms: int | None = None
    born_high_ms: int | None = None
    skip_unborn: bool = False

    def takes(self, reading: Reading) -> bool:
        """Whether a row is asked for; what could not be read of a damaged one excludes nothing."""
        view = reading.view
        if view is None:
            return True
        unread = reading.unread
        return (
            _within(view.queue_offset, self.low, self.high)
            and _within(view.store_timestamp, self.store_low_ms, self.store_high_ms)
            and _within(view.born_timestamp, self.born_low_ms, self.born_high_ms)
            and (not self.skip_unborn or enters_queue(view.sys_flag))
            and (self.topics is None or "topic" in unread or view.topic in self.topics)
            and (self.tags is None or "tags" in unread or view.tags in self.tags)
        )


def _within(value: int, low: int | None, high: int | None) -> bool:
    return (low is None or low <= value) and (high is None or value < high)


# --- where records start -------------------------------------------------------------------------


class Frame(NamedTuple):
    """The bytes of one record, or of one stretch that is none."""

    start: int
    stop: int
    fault: str | None = None
    framed: bool = True
    """Of a damaged one: whether its size was right, so that only this record is concerned."""


def frames(data: Data, position: int = 0, *, base: int | None = None) -> Iterator[Frame]:
    """Every record of joined records and what is damaged between them, in order.

    Filler behind a blank mark and zeros up to the end (a file's unwritten rest) are no frames. A
    damaged record whose size leads to a sound one is a frame of that size. Where it does not, the
    frame reaches to the next record that passes all checks, or to the end.

    Args:
        base: what the physical offset at byte 0 must be, in a commit log; None in a pull's answer.
    """
    end = len(data)
    while position < end:
        fault = fault_at(data, position, base)
        if fault is None:
            size: int = _INT.unpack_from(data, position)[0]
            yield Frame(position, position + size)
            position += size
        elif blank := blank_size(data, position):
            position += blank
        elif is_unwritten(data, position):
            return
        else:
            size = _INT.unpack_from(data, position)[0] if end - position >= 4 else 0
            framed = MIN_RECORD <= size <= end - position and starts_soundly(data, position + size, base)
            if framed:
                stop = position + size
            else:
                found = find_record_start(data, position + 1, base=base)
                stop = end if found is None else found
            yield Frame(position, stop, fault, framed)
            position = stop


def fault_at(data: Data, position: int, base: int | None) -> str | None:
    """Why no record starts here; its body's CRC is not looked at."""
    place = None if base is None else base + position
    return check_record(_readable(data), position, commitlog_offset=place, check_crc=False)


def blank_size(data: Data, position: int) -> int:
    """Bytes from a blank mark to the end of its file, which may lie beyond the data; 0: no such mark."""
    if len(data) - position < BLANK_BYTES:
        return 0
    size, magic = START.unpack_from(data, position)
    return size if magic == MAGIC_BLANK and size >= BLANK_BYTES else 0


def is_unwritten(data: Data, position: int) -> bool:
    """Whether only zeros follow, as in a file made at full length."""
    step = 4096
    view = memoryview(data)
    return not any(bytes(view[at : at + step]).strip(b"\0") for at in range(position, len(data), step))


def starts_soundly(data: Data, position: int, base: int | None) -> bool:
    """Whether what starts here can follow a record: another one, filler, or nothing."""
    return (
        position == len(data)
        or fault_at(data, position, base) is None
        or blank_size(data, position) > 0
        or is_unwritten(data, position)
    )


def find_record_start(data: Data, position: int = 0, *, base: int | None = None) -> int | None:
    """The first true start of a record at or after ``position``; None if there is none.

    A body may hold bytes that look like a record, so more than the magic is asked: the lengths must
    add up to the size, and the record must lie where it says (``base`` given) or else have the right
    body CRC. The whole record must be in ``data``.

    Args:
        base: physical offset of byte 0 of ``data``, for a commit log.
    """
    readable = _readable(data)
    search = ANY_MAGIC.search
    found = search(data, position + 4)
    while found:
        start = found.start() - 4
        place = None if base is None else base + start
        if check_record(readable, start, commitlog_offset=place, check_crc=base is None) is None:
            return start
        found = search(data, found.start() + 1)
    return None


def _readable(data: Data) -> bytes | memoryview:
    return memoryview(data) if isinstance(data, bytearray) else data


# --- what one record says ------------------------------------------------------------------------


class Reading(NamedTuple):
    """A record as far as it could be read."""

    view: MessageView | None
    """None: not even the head."""
    stored_body: bytes = b""
    unread: frozenset[str] = frozenset()
    """Columns that could not be read although the head could."""


_NOTHING_READ: Final = Reading(None)


def read_frame(data: Data, frame: Frame, broker: str) -> Reading:
    """The record of a frame; of a damaged one, what its lengths still give."""
    raw = bytes(memoryview(data)[frame.start : frame.stop])
    if frame.fault is None:
        view = decode_views(raw, broker_name=broker)[0]
        head_size = HEADS[view.sys_flag & HOST_BITS].size
        return Reading(view, raw[head_size : head_size + view.body_size])
    return _salvage(raw, frame.framed, broker)


def _salvage(raw: bytes, framed: bool, broker: str) -> Reading:
    """What can be read is put together again as a record that is sound."""
    if len(raw) < MIN_RECORD:
        return _NOTHING_READ
    bits = raw[HOST_BITS_AT] & HOST_BITS
    head_size = HEADS[bits].size
    magic = START.unpack_from(raw)[1]
    # Where neither magic nor size is right, nothing says that this was a record at all.
    if len(raw) < head_size or not (framed or magic in (MAGIC_V1, MAGIC_V2)):
        return _NOTHING_READ
    unread = {"body", "topic"} | _PROPERTY_COLUMNS
    width = 2 if magic == MAGIC_V2 else 1
    body = topic = properties = b""
    body_size = _INT.unpack_from(raw, BODY_SIZE_AT[bits])[0]
    at = head_size + body_size
    if body_size >= 0 and at <= len(raw):
        body = raw[head_size:at]
        unread.discard("body")
        found = _sized(raw, at, width)
        if found is not None:
            topic = found
            unread.discard("topic")
            found = _sized(raw, at + width + len(topic), 2)
            if found is not None:
                properties = found
                unread -= _PROPERTY_COLUMNS
    size = head_size + len(body) + width + len(topic) + 2 + len(properties)
    mended = (
        START.pack(size, MAGIC_V2 if width == 2 else MAGIC_V1),
        raw[START.size : BODY_SIZE_AT[bits]],
        _INT.pack(len(body)),
        body,
        len(topic).to_bytes(width, "big"),
        topic,
        len(properties).to_bytes(2, "big"),
        properties,
    )
    return Reading(decode_views(b"".join(mended), broker_name=broker)[0], body, frozenset(unread))


def _sized(raw: bytes, at: int, width: int) -> bytes | None:
    """The bytes that a length of ``width`` bytes stands before, if they are there."""
    start = at + width
    size = int.from_bytes(raw[at:start], "big", signed=width > 1)
    return raw[start : start + size] if size >= 0 and start + size <= len(raw) else None


def body_fault(reading: Reading, *, check_crc: bool, unpack: bool) -> str | None:
    """Why a sound record's body cannot be given; a body that can is unpacked in the view."""
    view = reading.view
    assert view is not None
    if check_crc:
        crc = crc32(reading.stored_body) & CRC_MASK
        if crc != view.body_crc:
            return f"body crc is {crc}, stored {view.body_crc}"
    if unpack:
        try:
            view.body  # noqa: B018 - asking unpacks it
        except RemoteProtocolError as error:
            return str(error)
    return None


def needs_body(names: Sequence[str]) -> bool:
    """Whether bodies must be unpacked for these columns."""
    return not _BODY_COLUMNS.isdisjoint(names)


def corrupt(broker: str, start: int, base: int | None, fault: str, reading: Reading) -> CorruptRecordError:
    """The error for a damaged record, with all that tells the user which one it is and what to do."""
    view = reading.view
    about = ""
    if view is not None:
        topic = "unknown" if "topic" in reading.unread else view.topic
        about = f" (topic {topic}, queue {view.queue_id}, offset {view.queue_offset})"
    source = f"records of broker {broker}" if base is None else f"commit log of {broker}"
    remedy = (
        "to read on, set the option onDecodeError to skip (leave it out) or keep (see column decodeError)"
    )
    return CorruptRecordError(source, (base or 0) + start, f"{fault}{about}; {remedy}")


def microseconds(milliseconds: int) -> int | None:
    return milliseconds * 1000 if -MAX_MS <= milliseconds <= MAX_MS else None


def column_value(name: str, reading: Reading, broker: str, fault: str | None) -> Any:
    """What one record gives for one column; None is null."""
    if name == "broker":
        return broker
    if name == "decodeError":
        return fault
    view = reading.view
    if view is None or name in reading.unread:
        return None
    return _value(name, view, reading, fault)


def _value(name: str, view: MessageView, reading: Reading, fault: str | None) -> Any:
    match name:
        case "topic":
            return view.topic
        case "queueId":
            return view.queue_id
        case "offset":
            return view.queue_offset
        case "flag":
            return view.flag
        case "key":
            return view.get(property_names.KEYS)
        case "tags":
            return view.tags
        case "body":
            return view.body if fault is None else reading.stored_body
        case "bornTimestamp":
            return microseconds(view.born_timestamp)
        case "storeTimestamp":
            return microseconds(view.store_timestamp)
        case "msgId":
            return view.get(property_names.UNIQ_KEY) or _place_id(view)
        case "reconsumeTimes":
            return view.reconsume_times
        case "properties":
            # Not all_properties, which is the same table: the view would keep it although nobody asks again.
            return list(decode_properties(view.properties_bytes).items())
        case "rowId":
            return view.get(ROW_ID_PROPERTY)
    raise KeyError(name)


def _place_id(view: MessageView) -> str:
    # view.offset_msg_id, were it not that a damaged head may hold numbers which that refuses.
    return offset_id(pack_host(*view.store_host), view.commitlog_offset % 2**64)


# --- all of them ---------------------------------------------------------------------------------


def check_request(data: Data, names: Sequence[str], on_error: str) -> None:
    """Raises ValueError: an unknown column or mode, or more data than one batch can hold."""
    unknown = [name for name in names if name not in TYPES]
    if unknown:
        raise ValueError(f"no such column: {', '.join(unknown)}; there are {', '.join(TYPES)}")
    if on_error not in ("fail", "skip", "keep"):
        raise ValueError(f"on_error is {on_error!r}; use fail, skip or keep")
    if len(data) > MAX_DATA:
        raise ValueError(
            f"{len(data)} bytes of records; one batch holds at most {MAX_DATA}: give it in parts"
        )


def check_column(size: int) -> None:
    """Raises OverflowError: bodies grew beyond what one Arrow array holds."""
    if size > MAX_COLUMN:
        raise OverflowError(
            f"unpacked bodies of {size} bytes do not fit one batch: decode fewer records at once"
        )


def build(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """Rows of Python values to a batch."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    for name, column in zip(names, columns, strict=True):
        if name == "body":
            check_column(sum(len(body) for body in column if body is not None))
    arrays = [pa.array(column, TYPES[name]) for name, column in zip(names, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(names))


def decode_slowly(
    data: Data,
    names: Sequence[str],
    *,
    broker: str,
    selection: Selection,
    on_error: OnError = "fail",
    check_crc: bool = False,
    base: int | None = None,
) -> pa.RecordBatch:
    """What ``decode.decode`` gives, by the simplest means."""
    check_request(data, names, on_error)
    unpack = needs_body(names)
    rows: list[list[Any]] = []
    for frame in frames(data, base=base):
        reading = read_frame(data, frame, broker)
        fault = frame.fault
        # A damaged head cannot be trusted to say that it is none of our business.
        if fault is not None and on_error == "fail":
            raise corrupt(broker, frame.start, base, fault, reading)
        if not selection.takes(reading):
            continue
        if fault is None:
            fault = body_fault(reading, check_crc=check_crc, unpack=unpack)
        if fault is not None and on_error == "fail":
            raise corrupt(broker, frame.start, base, fault, reading)
        if fault is not None and on_error == "skip":
            continue
        rows.append([column_value(name, reading, broker, fault) for name in names])
    return build(names, rows)
