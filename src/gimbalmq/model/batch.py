"""Batch bodies (request 320): several messages of one topic in one request.

An item is a record without its fixed part: size, magic 0, crc 0, flag, body, properties. The
broker computes the rest and stores N ordinary records.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from gimbalmq.errors import LocalProtocolError, MessageIllegalError
from gimbalmq.model.record import MAX_PROPERTIES

_HEAD = struct.Struct(">iIIii")
ITEM_HEAD_BYTES = _HEAD.size
"""Size, magic, crc, flag and the body's size; the body follows."""
ITEM_BYTES = ITEM_HEAD_BYTES + 2
"""What an item takes beside its body and properties: the head, and the properties' size behind the body."""


class BatchItem(NamedTuple):
    flag: int
    body: bytes
    properties: bytes


def encode_batch(items: Iterable[tuple[int, bytes | memoryview, bytes]]) -> bytes:
    """One body out of (flag, body, encoded properties) items.

    Raises:
        LocalProtocolError: an item's properties do not fit their 16-bit length.
    """
    parts: list[bytes | memoryview] = []
    last_flag = last_body = last_properties = -1
    head = properties_size = b""
    for flag, body, properties in items:
        # Those of one producer are often alike.
        if len(properties) != last_properties or len(body) != last_body or flag != last_flag:
            last_flag, last_body, last_properties = flag, len(body), len(properties)
            if last_properties > MAX_PROPERTIES:
                raise LocalProtocolError(
                    f"properties of {last_properties} bytes; at most {MAX_PROPERTIES} fit"
                )
            head = _HEAD.pack(ITEM_BYTES + last_body + last_properties, 0, 0, flag, last_body)
            properties_size = last_properties.to_bytes(2, "big")
        parts += (head, body, properties_size, properties)
    return b"".join(parts)


def split_batch(data: bytes) -> list[BatchItem]:
    """The items of a batch body.

    Raises:
        MessageIllegalError: lengths that contradict each other or the body's end.
    """
    items: list[BatchItem] = []
    position, end = 0, len(data)
    while position < end:
        if end - position < ITEM_BYTES:
            raise MessageIllegalError(f"batch item at byte {position} is cut off")
        total, _, _, flag, body_size = _HEAD.unpack_from(data, position)
        body_start = position + _HEAD.size
        properties_start = body_start + body_size + 2
        if body_size < 0 or properties_start > end:
            raise MessageIllegalError(
                f"batch item at byte {position}: body of {body_size} bytes does not fit"
            )
        properties_size = data[properties_start - 2] << 8 | data[properties_start - 1]
        stop = properties_start + properties_size
        if stop - position != total or stop > end or properties_size > MAX_PROPERTIES:
            raise MessageIllegalError(
                f"batch item at byte {position}: says {total} bytes, holds {stop - position}"
            )
        items.append(BatchItem(flag, data[body_start : body_start + body_size], data[properties_start:stop]))
        position = stop
    return items
