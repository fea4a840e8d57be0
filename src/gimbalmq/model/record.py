"""Byte layout of one stored message; commit log, pull answers and queries all carry these bytes.

A record is a fixed head, then body, topic and properties with their lengths. Only two things move
the head's fields: an IPv6 born host or store host is 12 bytes longer (system-flag bits 4 and 5), and
magic V2 gives the topic a 16-bit length. So the flag, which lies before both hosts, is looked at
first and picks one of four structs that read the whole head in one call.

``Head`` and the letters behind it are the one place that says which fields there are, in which order and how
wide. The structs, the places of single fields and the numpy type follow from them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from gimbalmq.errors import CorruptRecordError, LocalProtocolError
from gimbalmq.model.crc import crc32
from gimbalmq.model.flags import BORN_HOST_V6, HOST_BITS, STORE_HOST_V6
from gimbalmq.model.ids import V6_HOST_BYTES, pack_host, unpack_host

if TYPE_CHECKING:
    import numpy as np

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
MAGIC_BLANK: Final = 0xCBD43194
MAGIC_START: Final = b"\xda\xa3\x20"
"""The bytes with which the magics of both kinds of records begin."""
ANY_MAGIC: Final = re.compile(MAGIC_START + rb"[\xa7\xab]")
CRC_MASK: Final = 0x7FFFFFFF
MAX_PROPERTIES: Final = 0x7FFF
MAX_TOPIC_V1: Final = 127

# --- the head ----------------------------------------------------------------------------------


class Head(NamedTuple):
    """The fixed part of a record. Hosts are packed: 4 or 16 address bytes and an int32 port."""

    total_size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    commitlog_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body_size: int


_LETTERS: Final = ("i", "I", "I", "i", "i", "q", "q", "i", "q", "8s", "q", "8s", "i", "q", "i")
_FIELDS: Final = dict(zip(Head._fields, _LETTERS, strict=True))
"""Name and struct's letter of each field, with IPv4 hosts."""

_KINDS: Final = (0, BORN_HOST_V6, STORE_HOST_V6, HOST_BITS)
"""The four kinds of heads, by their system flag's host bits."""


def _letters(host_bits: int) -> dict[str, str]:
    letters = dict(_FIELDS)
    if host_bits & BORN_HOST_V6:
        letters["born_host"] = f"{V6_HOST_BYTES}s"
    if host_bits & STORE_HOST_V6:
        letters["store_host"] = f"{V6_HOST_BYTES}s"
    return letters


def head_subset(*names: str) -> dict[int, struct.Struct]:
    """Structs that read only these fields of a head, and pass over the others; by host bits."""
    return {
        bits: struct.Struct(
            ">"
            + "".join(
                letter if name in names else f"{struct.calcsize(f'>{letter}')}x"
                for name, letter in _letters(bits).items()
            )
        )
        for bits in _KINDS
    }


def places(name: str) -> dict[int, int]:
    """Where in a head a field begins; by host bits."""
    found: dict[int, int] = {}
    for bits in _KINDS:
        letters = _letters(bits)
        before = list(letters).index(name)
        found[bits] = struct.calcsize(">" + "".join(list(letters.values())[:before]))
    return found


@cache
def head_dtype(host_bits: int) -> np.dtype[np.void]:
    """The same head for numpy, under the same names; hosts are plain bytes."""
    import numpy as np  # here, not above: 13 MB and 80 ms that most processes never pay

    kinds = {"i": ">i4", "I": ">u4", "q": ">i8"}
    return np.dtype(
        [
            (name, kinds.get(letter) or f"V{letter.removesuffix('s')}")
            for name, letter in _letters(host_bits).items()
        ]
    )


HEADS: Final = head_subset(*Head._fields)
HEAD_BYTES: Final = HEADS[0].size
"""Of a head with two IPv4 hosts."""

START: Final = struct.Struct(">iI")
"""Size and magic: what a record begins with, and all there is of a blank mark."""
BLANK_BYTES: Final = START.size
"""A blank mark ends a commit-log file; there is always room for it."""

MAGIC_AT: Final = places("magic")[0]
CRC_AT: Final = places("body_crc")[0]
QUEUE_ID_AT: Final = places("queue_id")[0]
PHYSICAL_OFFSET_AT: Final = places("commitlog_offset")[0]
SYS_FLAG_AT: Final = places("sys_flag")[0]
HOST_BITS_AT: Final = SYS_FLAG_AT + 3
"""The byte of the system flag that has the host bits."""
STORE_TIMESTAMP_AT: Final = places("store_timestamp")
STORE_HOST_AT: Final = places("store_host")
PREPARED_AT: Final = places("prepared_transaction_offset")
BODY_SIZE_AT: Final = places("body_size")

_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_SHORT = struct.Struct(">h")
MIN_RECORD: Final = HEAD_BYTES + 1 + 2

Host = tuple[str, int]


@dataclass(slots=True)
class Record:
    """One decoded record (Java's ``MessageExt`` as it lies on disk; the body is not decompressed)."""

    total_size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    commitlog_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: Host
    store_timestamp: int
    store_host: Host
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: str
    properties_bytes: bytes
    properties: dict[str, str]


# --- properties --------------------------------------------------------------------------------


def encode_properties(properties: Mapping[str, str | None], *, trailing: bool = True) -> bytes:
    """``name U+0001 value U+0002`` for each; None values are left out.

    Args:
        trailing: whether the last U+0002 is written (4.9.1-4.9.8 and 5.0-5.1.4 do not).
    """
    items = [f"{name}\x01{value}" for name, value in properties.items() if value is not None]
    text = "\x02".join(items)
    return (text + "\x02" if trailing and items else text).encode("utf-8", "surrogatepass")


def decode_properties(data: bytes) -> dict[str, str]:
    """Both written forms; items without a name or without a value vanish, as in Java."""
    properties: dict[str, str] = {}
    for item in data.decode("utf-8", "replace").split("\x02"):
        name, _, value = item.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def find_property(data: bytes, name: bytes) -> bytes | None:
    """One property's value without decoding the others; None if absent or empty.

    Of a name that is there twice the last counts, as in ``decode_properties`` and Java: brokers of 4.x
    store a batch's own id behind the id of each of its messages.
    """
    mark = name + b"\x01"
    at = data.rfind(mark)
    while at >= 0:
        if not at or data[at - 1] == 2:  # else the mark lies inside another property's name or value
            start = at + len(mark)
            end = data.find(b"\x02", start)
            value = data[start:] if end < 0 else data[start:end]
            if value:
                return value
        at = data.rfind(mark, 0, at)
    return None


# --- records -----------------------------------------------------------------------------------


def encode_record(
    *,
    topic: str,
    body: bytes,
    properties: bytes = b"",
    queue_id: int = 0,
    flag: int = 0,
    queue_offset: int = 0,
    commitlog_offset: int = 0,
    sys_flag: int = 0,
    born_timestamp: int = 0,
    born_host: Host = ("127.0.0.1", 0),
    store_timestamp: int = 0,
    store_host: Host = ("127.0.0.1", 10911),
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> bytes:
    """Builds one record; for tools and tests (the commit log builds its own, in groups).

    Raises:
        LocalProtocolError: topic or properties do not fit their length fields.
    """
    born, store = pack_host(*born_host), pack_host(*store_host)
    sys_flag = sys_flag & ~HOST_BITS | host_bits(born, store)
    if len(properties) > MAX_PROPERTIES:
        raise LocalProtocolError(f"properties of {len(properties)} bytes; at most {MAX_PROPERTIES} fit")
    magic, named = topic_field(topic)
    head = HEADS[sys_flag & HOST_BITS]
    total = head.size + len(body) + len(named) + 2 + len(properties)
    packed = head.pack(
        total,
        magic,
        crc32(body) & CRC_MASK,
        queue_id,
        flag,
        queue_offset,
        commitlog_offset,
        sys_flag,
        born_timestamp,
        born,
        store_timestamp,
        store,
        reconsume_times,
        prepared_transaction_offset,
        len(body),
    )
    return b"".join((packed, body, named, _SHORT.pack(len(properties)), properties))


def host_bits(born_host: bytes, store_host: bytes) -> int:
    """The system-flag bits that say of what kind two packed hosts are."""
    return (BORN_HOST_V6 if len(born_host) == V6_HOST_BYTES else 0) | (
        STORE_HOST_V6 if len(store_host) == V6_HOST_BYTES else 0
    )


def topic_field(topic: str) -> tuple[int, bytes]:
    """The magic that a topic's length calls for, and the topic with its length before it.

    Raises:
        LocalProtocolError: longer than even V2 can say.
    """
    raw = topic.encode()
    if len(raw) <= MAX_TOPIC_V1:
        return MAGIC_V1, bytes((len(raw),)) + raw
    if len(raw) > 0x7FFF:
        raise LocalProtocolError(f"a topic of {len(raw)} bytes does not fit a record")
    return MAGIC_V2, _SHORT.pack(len(raw)) + raw


def decode_record(data: bytes | memoryview, offset: int = 0, *, check_crc: bool = False) -> Record:
    """Decodes the record that starts at ``offset``.

    Raises:
        CorruptRecordError: with the reason; ``position`` is the offset.
    """
    # Lengths are checked against the data here, in line: a call of check_record would double the cost.
    end = len(data)
    try:
        sys_flag = _INT.unpack_from(data, offset + SYS_FLAG_AT)[0]
        head = HEADS[sys_flag & HOST_BITS]
        (
            total,
            magic,
            body_crc,
            queue_id,
            flag,
            queue_offset,
            commitlog_offset,
            _,
            born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            reconsume_times,
            prepared,
            body_size,
        ) = head.unpack_from(data, offset)
        body_start = offset + head.size
        topic_at = body_start + body_size
        if magic == MAGIC_V1:
            topic_start = topic_at + 1
            topic_end = topic_start + data[topic_at]
        elif magic == MAGIC_V2:
            topic_start = topic_at + 2
            topic_end = topic_start + _SHORT.unpack_from(data, topic_at)[0]
        else:
            topic_start = topic_end = end
        properties_start = topic_end + 2
        stop = properties_start + _SHORT.unpack_from(data, topic_end)[0]
    except (struct.error, IndexError):
        total = stop = body_size = properties_start = -1
    if body_size < 0 or stop - offset != total or not properties_start <= stop <= end:
        reason = check_record(data, offset) or "lengths contradict each other"
        raise CorruptRecordError("record", offset, reason)
    body = bytes(data[body_start:topic_at])
    if check_crc and crc32(body) & CRC_MASK != body_crc:
        raise CorruptRecordError("record", offset, "body crc differs")
    raw = bytes(data[properties_start:stop])
    return Record(
        total,
        magic,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        commitlog_offset,
        sys_flag,
        born_timestamp,
        unpack_host(born_host),
        store_timestamp,
        unpack_host(store_host),
        reconsume_times,
        prepared,
        body,
        str(data[topic_start:topic_end], "utf-8", "replace"),
        raw,
        decode_properties(raw),
    )


def iter_records(data: bytes | memoryview, *, check_crc: bool = False) -> Iterator[Record]:
    """The records of a pull or query answer, which follow each other without gaps.

    Raises:
        CorruptRecordError: when reached; records before it have been given out.
    """
    position, end = 0, len(data)
    while position < end:
        record = decode_record(data, position, check_crc=check_crc)
        yield record
        position += record.total_size


def check_record(
    data: bytes | memoryview, offset: int = 0, *, commitlog_offset: int | None = None, check_crc: bool = True
) -> str | None:
    """Why the bytes at ``offset`` are no valid record; None when they are one.

    Args:
        commitlog_offset: where the record must say it lies; None asks nothing.
    """
    room = len(data) - offset
    if room < MIN_RECORD:
        return f"only {room} bytes are left, a record has at least {MIN_RECORD}"
    total = _INT.unpack_from(data, offset)[0]
    magic = _INT.unpack_from(data, offset + MAGIC_AT)[0] & 0xFFFFFFFF
    if magic == MAGIC_BLANK:
        return "a blank mark: the rest of the file is empty"
    if magic not in (MAGIC_V1, MAGIC_V2):
        return f"magic {magic:#010x} is no message"
    if not MIN_RECORD <= total <= room:
        return f"size {total} is not between {MIN_RECORD} and the {room} bytes that are left"
    says = _LONG.unpack_from(data, offset + PHYSICAL_OFFSET_AT)[0]
    if commitlog_offset is not None and says != commitlog_offset:
        return f"says it lies at {says}, found at {commitlog_offset}"
    head = HEADS[_INT.unpack_from(data, offset + SYS_FLAG_AT)[0] & HOST_BITS]
    end = offset + total
    topic_at = body_start = offset + head.size
    if body_start + 3 > end:
        return f"size {total} has no room for the head"
    body_size = _INT.unpack_from(data, body_start - 4)[0]
    width = 1 if magic == MAGIC_V1 else 2
    topic_at += body_size
    if body_size < 0 or topic_at + width + 2 > end:
        return f"body of {body_size} bytes does not fit size {total}"
    topic_size = data[topic_at] if width == 1 else _SHORT.unpack_from(data, topic_at)[0]
    properties_at = topic_at + width + topic_size
    if topic_size < 0 or properties_at + 2 > end:
        return f"topic of {topic_size} bytes does not fit size {total}"
    properties_size = _SHORT.unpack_from(data, properties_at)[0]
    if properties_size < 0 or properties_at + 2 + properties_size != end:
        return f"the lengths give {properties_at + 2 + properties_size - offset} bytes, the size says {total}"
    if check_crc:
        crc = crc32(data[body_start:topic_at]) & CRC_MASK
        stored = _INT.unpack_from(data, offset + CRC_AT)[0]
        if crc != stored:
            return f"body crc is {crc}, stored {stored}"
    return None
