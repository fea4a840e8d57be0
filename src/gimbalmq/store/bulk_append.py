"""A whole batch request into one group at once: what ``AppendGroup.add`` does, for thousands of messages.

A record is pieces that lie elsewhere already: a head, the body, the topic, a length, the properties and what
the broker adds to them. All pieces of all records are one list of places and sizes, and ``bulk.gather`` copies
such a list without a step of Python for each. What is left for each message is the crc of its body.
"""

from __future__ import annotations

import struct
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from gimbalmq.errors import StoreError
from gimbalmq.model.flags import BORN_HOST_V6
from gimbalmq.model.javahash import tag_hash
from gimbalmq.model.record import MAX_PROPERTIES, find_property
from gimbalmq.store.append import AppendGroup
from gimbalmq.store.bulk import gather
from gimbalmq.store.commitlog import BLANK_BYTES
from gimbalmq.store.consumequeue import QueueLog

Numbers = NDArray[np.int64]

_HEAD_BYTES = 20
_FIXED = _HEAD_BYTES + 2
_SIZE = struct.Struct(">i")
_RUN = 4096
_SHORT_RUN = 16
_SINGLES = 64
_ENTRY = np.dtype([("place", ">i8"), ("size", ">i4"), ("code", ">i8")])


class Items(NamedTuple):
    """Where the parts of a batch's messages lie in its bytes."""

    data: bytes
    flags: Numbers
    bodies: Numbers
    body_sizes: Numbers
    properties: Numbers
    property_sizes: Numbers


def read_items(data: bytes) -> Items | None:
    """The items of a batch body; None where it is not the plain thing, for whoever reads it item by item."""
    starts = _starts(data)
    if starts is None:
        return None
    raw = np.frombuffer(data, np.uint8)
    heads = raw[starts[:, None] + np.arange(_HEAD_BYTES)].view(">i4").astype(np.int64)
    body_sizes = heads[:, 4]
    bodies = starts + _HEAD_BYTES
    lengths_at = bodies + body_sizes
    if int(body_sizes.min()) <= 0 or int((lengths_at + 2).max()) > len(data):
        return None
    property_sizes = raw[lengths_at].astype(np.int64) << 8 | raw[lengths_at + 1]
    properties = lengths_at + 2
    ends = properties + property_sizes
    if not bool((ends == starts + heads[:, 0]).all()):
        return None
    # Properties that do not end as ours do would run into what is added to them.
    closed = (property_sizes == 0) | (raw[ends - 1] == 2)
    if not bool(closed.all()):
        return None
    return Items(data, heads[:, 3], bodies, body_sizes, properties, property_sizes)


def _starts(data: bytes) -> Numbers | None:
    """Where items begin: each says how long it is, so one follows from the other, but equal ones come in runs."""
    end = len(data)
    pieces: list[Numbers] = []
    position = 0
    while position < end:
        if end - position < _FIXED:
            return None
        size = _SIZE.unpack_from(data, position)[0]
        if size < _FIXED:
            return None
        words = np.ndarray(((end - position - 4) // size + 1,), ">i4", data, position, (size,))[:_RUN]
        equal = words == size
        run = len(words) if bool(equal.all()) else int(equal.argmin())
        if run * size > end - position:
            return None
        pieces.append(np.arange(position, position + run * size, size, dtype=np.int64))
        position += run * size
        if run < _SHORT_RUN:  # of all sizes: for a while one by one is quicker
            found: list[int] = []
            unpack = _SIZE.unpack_from
            while len(found) < _SINGLES and position <= end - _FIXED:
                found.append(position)
                size = unpack(data, position)[0]
                if size < _FIXED:
                    return None
                position += size
            pieces.append(np.array(found, np.int64))
    return np.concatenate(pieces) if pieces and position == end else None


def add_items(
    group: AppendGroup,
    queue: QueueLog,
    items: Items,
    added: bytes,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
) -> tuple[Numbers, int]:
    """Adds all of them; their commit-log offsets, and the queue offset of the first.

    Raises:
        StoreError: one fits no record; the group is to be aborted then.
    """
    count = len(items.bodies)
    data = items.data
    property_sizes = items.property_sizes + len(added)
    if int(property_sizes.max()) > MAX_PROPERTIES:
        raise StoreError(f"properties of {int(property_sizes.max())} bytes; at most {MAX_PROPERTIES} fit")
    store_host = group._store_host
    bits = group._store_bits | (BORN_HOST_V6 if len(born_host) == 20 else 0)
    head = np.dtype(
        [
            ("size", ">i4"),
            ("magic", ">u4"),
            ("crc", ">u4"),
            ("queue", ">i4"),
            ("flag", ">i4"),
            ("offset", ">i8"),
            ("place", ">i8"),
            ("sys_flag", ">i4"),
            ("born", ">i8"),
            ("born_host", "u1", (len(born_host),)),
            ("stored", ">i8"),
            ("store_host", "u1", (len(store_host),)),
            ("again", ">i4"),
            ("prepared", ">i8"),
            ("body", ">i4"),
        ]
    )
    sizes = head.itemsize + items.body_sizes + len(queue.topic_field) + 2 + property_sizes
    places = _place(group, sizes)
    first = queue.next_offset
    heads = np.zeros(count, head)
    heads["size"] = sizes
    heads["magic"] = queue.magic
    ends = (items.bodies + items.body_sizes).tolist()
    crcs = map(crc32, map(data.__getitem__, map(slice, items.bodies.tolist(), ends)))
    heads["crc"] = np.fromiter(crcs, np.uint32, count) & np.uint32(0x7FFFFFFF)
    heads["queue"] = queue.queue_id
    heads["flag"] = items.flags
    heads["offset"] = np.arange(first, first + count)
    heads["place"] = places
    heads["sys_flag"] = sys_flag & ~0x30 | bits
    heads["born"] = born_timestamp
    heads["born_host"] = np.frombuffer(born_host, np.uint8)
    heads["stored"] = group.store_timestamp
    heads["store_host"] = np.frombuffer(store_host, np.uint8)
    heads["body"] = items.body_sizes
    _write(group, queue, items, heads, property_sizes, added, sizes, places)
    entries = np.zeros(count, _ENTRY)
    entries["place"] = places
    entries["size"] = sizes
    if b"TAGS\x01" in data:
        entries["code"] = [_tags_code(text) for text in _properties(items)]
    queue.tail += entries.tobytes()
    if first == queue.max_offset:
        group._touched.append(queue)
    queue.next_offset = first + count
    if group._index is not None and (b"KEYS\x01" in data or b"UNIQ_KEY\x01" in data):
        stored = group.store_timestamp
        group._index += [
            (queue.topic, text, place, stored)
            for text, place in zip(_properties(items), places.tolist(), strict=True)
        ]
    return places, first


def offset_ids(store_host: bytes, places: Numbers) -> str:
    """The offset ids of records, joined by commas (``model.ids.offset_id``)."""
    ids = np.zeros(len(places), np.dtype([("host", "u1", (len(store_host),)), ("place", ">i8")]))
    ids["host"] = np.frombuffer(store_host, np.uint8)
    ids["place"] = places
    return ids.tobytes().hex(",", ids.itemsize).upper()


def _properties(items: Items) -> list[bytes]:
    return [
        items.data[start : start + size]
        for start, size in zip(items.properties.tolist(), items.property_sizes.tolist(), strict=True)
    ]


def _tags_code(properties: bytes) -> int:
    tag = find_property(properties, b"TAGS")
    return tag_hash(tag.decode("utf-8", "replace")) if tag else 0


def _place(group: AppendGroup, sizes: Numbers) -> Numbers:
    """Where the records will lie; files that are full end in between."""
    ends = np.cumsum(sizes)
    places = ends - sizes
    file_bytes = group._store.log.segments.size
    if int(sizes.max()) + BLANK_BYTES > file_bytes:
        raise StoreError(
            f"a record of {int(sizes.max())} bytes does not fit a commit-log file of {file_bytes}"
        )
    position, file_end, done = group._position, group._file_end, 0
    while True:
        begun = int(ends[done - 1]) if done else 0
        fitting = int(np.searchsorted(ends, file_end - BLANK_BYTES - position + begun, "right"))
        places[done:fitting] += position - begun
        if fitting == len(sizes):
            return places
        position, file_end, done = file_end, file_end + file_bytes, fitting


def _write(
    group: AppendGroup,
    queue: QueueLog,
    items: Items,
    heads: NDArray[np.void],
    property_sizes: Numbers,
    added: bytes,
    sizes: Numbers,
    places: Numbers,
) -> None:
    """Puts the records together and hands them to the group, file by file."""
    count = len(sizes)
    parts = (
        items.data,
        heads.tobytes(),
        property_sizes.astype(">u2").tobytes(),
        queue.topic_field,
        added,
    )
    source = np.frombuffer(b"".join(parts), np.uint8)
    heads_at, lengths_at, topic_at, added_at, _ = np.cumsum([len(part) for part in parts]).tolist()
    numbers = np.arange(count)
    starts = np.empty((count, 6), np.int64)
    widths = np.empty((count, 6), np.int64)
    starts[:, 0] = heads_at + numbers * heads.itemsize
    widths[:, 0] = heads.itemsize
    starts[:, 1] = items.bodies
    widths[:, 1] = items.body_sizes
    starts[:, 2] = topic_at
    widths[:, 2] = len(queue.topic_field)
    starts[:, 3] = lengths_at + numbers * 2
    widths[:, 3] = 2
    starts[:, 4] = items.properties
    widths[:, 4] = items.property_sizes
    starts[:, 5] = added_at
    widths[:, 5] = len(added)
    start_list, width_list = starts.ravel(), widths.ravel()
    if not items.property_sizes.all() or not added:
        there = width_list > 0
        start_list, width_list = start_list[there], width_list[there]
    made = memoryview(gather(source, start_list, width_list))
    at = 0
    while at < count:
        rolled = int(places[at]) != group._position
        if rolled:
            group._roll(int(sizes[at]))
        stop = int(np.searchsorted(places, group._file_end))
        begin = int(sizes[:at].sum())
        length = int(sizes[at:stop].sum())
        group._parts.append(made[begin : begin + length])
        group._position += length
        at = stop
