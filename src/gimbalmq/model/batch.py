"""Batch bodies (request 320): several messages of one topic in one request.

An item is a record without its fixed part: size, magic 0, crc 0, flag, body, properties. The
broker computes the rest and stores N ordinary records.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from typing import NamedTuple

from gimbalmq.errors import LocalProtocolError, MessageIllegalError
from gimbalmq.model.record import MAX_PROPERTIES

_HEAD = struct.Struct(">iIIii")
ITEM_HEAD_BYTES = _HEAD.size
"""Size, magic, crc, flag and the body's size; the body follows."""
ITEM_BYTES = ITEM_HEAD_BYTES + 2
"""What an item takes beside its body and properties: the head, and the properties' size behind the body."""

Body = bytes | memoryview


class BatchItem(NamedTuple):
    flag: int
    body: bytes
    properties: bytes


def encode_batch(items: Iterable[tuple[int, Body, bytes]]) -> bytes:
    """One body out of (flag, body, encoded properties) items; see ``encode_columns``."""
    rows = list(items)
    return encode_columns(
        [flag for flag, _, _ in rows], [body for _, body, _ in rows], [found for _, _, found in rows]
    )


def encode_columns(flags: Sequence[int], bodies: Sequence[Body], properties: Sequence[bytes]) -> bytes:
    """One body out of the flags, bodies and encoded properties of as many items.

    Raises:
        LocalProtocolError: an item's properties do not fit their 16-bit length, or its flag 32 bits.
    """
    sizes, property_sizes, kinds = set(map(len, bodies)), set(map(len, properties)), set(flags)
    if property_sizes and (longest := max(property_sizes)) > MAX_PROPERTIES:
        raise LocalProtocolError(f"properties of {longest} bytes; at most {MAX_PROPERTIES} fit")
    if len(sizes) == len(property_sizes) == len(kinds) == 1:  # those of one producer often are alike
        (size,), (property_size,), (flag,) = sizes, property_sizes, kinds
        head, behind = _frame(flag, size, property_size)
        return b"".join(chain.from_iterable(zip(repeat(head), bodies, repeat(behind), properties)))
    parts: list[Body] = []
    alike: dict[tuple[int, int, int], tuple[bytes, bytes]] = {}
    for flag, body, found in zip(flags, bodies, properties, strict=True):
        kind = flag, len(body), len(found)
        frame = alike.get(kind)
        if frame is None:
            frame = alike[kind] = _frame(*kind)
        parts += (frame[0], body, frame[1], found)
    return b"".join(parts)


def encode_alike(bodies: Sequence[Body], before: str, names: Sequence[str], behind: str) -> bytes:
    """One body out of items of equal size that differ in their bodies and in one part of their properties.

    All but the bodies is one text, which is cut then: no item takes a step of Python.

    Args:
        names: the parts that differ, all of one length.
        before, behind: what stands before and behind each in its item's properties. All of these are ASCII.
    """
    property_size = len(before) + len(names[0]) + len(behind)
    head, properties_head = _frame(0, len(bodies[0]), property_size)
    start = properties_head.decode("latin-1") + before
    stop = behind + head.decode("latin-1")
    text = f"{start}{f'{stop}{start}'.join(names)}{stop}".encode("latin-1")
    parts = struct.iter_unpack(f"{len(text) // len(names)}s", text)
    pieces: list[Body] = [head, *chain.from_iterable(zip(bodies, chain.from_iterable(parts), strict=True))]
    pieces[-1] = pieces[-1][: -len(head)]  # no item follows
    return b"".join(pieces)


def _frame(flag: int, size: int, property_size: int) -> tuple[bytes, bytes]:
    """What stands before an item's body, and behind it."""
    try:
        head = _HEAD.pack(ITEM_BYTES + size + property_size, 0, 0, flag, size)
    except struct.error as error:
        raise LocalProtocolError(f"a flag of {flag} and a body of {size} bytes: {error}") from error
    return head, property_size.to_bytes(2, "big")


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
