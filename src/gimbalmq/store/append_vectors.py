"""Appending by vectors: a whole batch request, or a run of requests that are alike, into one group at once.

It does for thousands of messages what ``AppendGroup.add`` (store/append) does for one. The pieces of a record lie
elsewhere already: a head, the body, the topic, a length, the properties and what the broker adds to them. Each kind of
piece is copied for all records by one call of ``vectors.copy``, without a step of Python for each. What is left
for each message is the crc of its body.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gimbalmq.errors import StoreError
from gimbalmq.model import properties as prop
from gimbalmq.model.batch import ITEM_BYTES, ITEM_HEAD_BYTES
from gimbalmq.model.crc import crc32
from gimbalmq.model.flags import HOST_BITS
from gimbalmq.model.queue_entry import ENTRY_BYTES, entry_dtype, tags_code
from gimbalmq.model.record import (
    BLANK_BYTES,
    CRC_MASK,
    HEADS,
    MAX_PROPERTIES,
    head_dtype,
    host_bits,
)
from gimbalmq.store.append import AppendGroup, IndexItem, KeyRun
from gimbalmq.store.batch_items import Items
from gimbalmq.store.consumequeue import QueueLog
from gimbalmq.store.vectors import Numbers, at_every, copy, crcs, overlapping


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
    property_sizes = items.property_sizes + len(added)
    if int(property_sizes.max()) > MAX_PROPERTIES:
        raise StoreError(f"properties of {int(property_sizes.max())} bytes; at most {MAX_PROPERTIES} fit")
    bits = host_bits(born_host, group.store_host)
    kind = head_dtype(bits)
    sizes = kind.itemsize + items.body_sizes + len(queue.topic_field) + 2 + property_sizes
    places = _place(group, sizes)
    first = queue.next_offset
    # What is the same in every record is written once and repeated; the rest are columns.
    one = np.zeros(1, kind)
    one["magic"] = queue.magic
    one["queue_id"] = queue.queue_id
    one["sys_flag"] = sys_flag & ~HOST_BITS | bits
    one["born_timestamp"] = born_timestamp
    one["born_host"] = np.void(born_host)
    one["store_timestamp"] = group.store_timestamp
    one["store_host"] = np.void(group.store_host)
    columns = {
        "total_size": sizes,
        "body_crc": crcs(items.data, items.bodies, items.body_sizes) & np.uint32(CRC_MASK),
        "flag": items.flags,
        "queue_offset": np.arange(first, first + count),
        "commitlog_offset": places,
        "body_size": items.body_sizes,
    }
    entries = np.zeros(count, entry_dtype())
    entries["place"] = places
    entries["size"] = sizes
    if items.may_have(prop.TAGS):
        entries["code"] = [tags_code(text) for text in _properties(items)]
    index: list[IndexItem] = []
    if group.indexes and items.may_have(prop.KEYS, prop.UNIQ_KEY):
        keyed = zip(_properties(items), places.tolist(), strict=True)
        index = [(queue.topic, text, place, group.store_timestamp) for text, place in keyed]
    put_together = _alike_records if items.alike else _records
    records = put_together(items, one, columns, queue.topic_field, property_sizes, added)
    group.add_made([(queue, entries.tobytes())], _cut_by_file(records, places, sizes, group.position), index)
    return places, first


class Run(NamedTuple):
    """Messages of one topic that came together: what ``AppendGroup.add`` is told of one, told of all of them.

    Attributes:
        queues: those that they go to, by id.
        queue_ids: the one of each message.
        properties: encoded; those of all messages are equally long, a row is one message's.
        tags_codes: of each, or one that all have.
        keys: hashes of ``topic#key``; a row has the keys of a message.
    """

    queues: Mapping[int, QueueLog]
    queue_ids: Numbers
    bodies: Sequence[bytes]
    properties: NDArray[np.uint8]
    tags_codes: NDArray[np.int32] | int
    keys: NDArray[np.int32]
    flag: int
    sys_flag: int
    born_timestamps: Numbers
    born_host: bytes
    reconsume_times: int


def add_run(group: AppendGroup, run: Run) -> tuple[Numbers, Numbers]:
    """Adds all of them in their order; their commit-log offsets and their queue offsets.

    Raises:
        StoreError: one fits no record; nothing was added then.
    """
    count, width = run.properties.shape
    if width > MAX_PROPERTIES:
        raise StoreError(f"properties of {width} bytes; at most {MAX_PROPERTIES} fit a record")
    order = np.argsort(run.queue_ids, kind="stable")
    numbers = np.bincount(run.queue_ids)
    there = np.flatnonzero(numbers)
    queues = [run.queues[queue_id] for queue_id in there.tolist()]
    numbers = numbers[there]
    ends = np.cumsum(numbers)
    firsts = np.array([queue.next_offset for queue in queues], np.int64)
    offsets = np.empty(count, np.int64)
    offsets[order] = np.arange(count) + np.repeat(firsts - (ends - numbers), numbers)

    topic = queues[0].topic_field
    bits = host_bits(run.born_host, group.store_host)
    kind = head_dtype(bits)
    body_sizes = np.fromiter(map(len, run.bodies), np.int64, count)
    sizes = body_sizes + (kind.itemsize + len(topic) + 2 + width)
    places = _place(group, sizes)
    one = HEADS[bits].pack(
        0,
        queues[0].magic,
        0,
        0,
        run.flag,
        0,
        0,
        run.sys_flag & ~HOST_BITS | bits,
        0,
        run.born_host,
        group.store_timestamp,
        group.store_host,
        run.reconsume_times,
        0,
        0,
    )
    heads = np.frombuffer(bytearray(one * count), kind)
    heads["total_size"] = sizes
    heads["body_crc"] = np.fromiter(map(crc32, run.bodies), np.uint32, count) & np.uint32(CRC_MASK)
    heads["queue_id"] = run.queue_ids
    heads["queue_offset"] = offsets
    heads["commitlog_offset"] = places
    heads["born_timestamp"] = run.born_timestamps
    heads["body_size"] = body_sizes
    middle = topic + width.to_bytes(2, "big")
    rests = np.empty((count, len(middle) + width), np.uint8)
    rests[:, : len(middle)] = np.frombuffer(middle, np.uint8)
    rests[:, len(middle) :] = run.properties
    # Bodies are objects of Python already, of any sizes; joined with rows made so, they need no copy of their own.
    made = b"".join(chain.from_iterable(zip(_rows(heads), run.bodies, _rows(rests), strict=True)))
    pieces = _cut_by_file(memoryview(made), places, sizes, group.position)

    entries = np.empty(count, entry_dtype())
    entries["place"] = places
    entries["size"] = sizes
    entries["code"] = run.tags_codes
    data = entries[order].tobytes()
    stops = (ends * ENTRY_BYTES).tolist()
    portions = [data[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]
    keys = [_key_run(run.keys, places, group.store_timestamp)] if group.indexes and run.keys.size else []
    group.add_made(zip(queues, portions, strict=True), pieces, keys)
    return places, offsets


def _key_run(rows: NDArray[np.int32], places: Numbers, timestamp: int) -> KeyRun:
    return KeyRun(rows.ravel(), np.repeat(places, rows.shape[1]), np.full(rows.size, timestamp, np.int64))


def _rows(table: NDArray[Any]) -> list[bytes]:
    """Each row of a table, or each item of a list, as bytes."""
    size = table.nbytes // len(table)
    rows: list[Any] = table.view(np.uint8).reshape(-1).view(np.dtype((np.void, size))).tolist()
    return rows


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


def _place(group: AppendGroup, sizes: Numbers) -> Numbers:
    """Where the records will lie; files that are full end in between."""
    ends = np.cumsum(sizes)
    places = ends - sizes
    file_bytes = group.file_bytes
    if int(sizes.max()) + BLANK_BYTES > file_bytes:
        raise StoreError(
            f"a record of {int(sizes.max())} bytes does not fit a commit-log file of {file_bytes}"
        )
    position, file_end, done = group.position, group.file_end, 0
    while True:
        begun = int(ends[done - 1]) if done else 0
        fitting = int(np.searchsorted(ends, file_end - BLANK_BYTES - position + begun, "right"))
        places[done:fitting] += position - begun
        if fitting == len(sizes):
            return places
        position, file_end, done = file_end, file_end + file_bytes, fitting


def _records(
    items: Items,
    one: NDArray[np.void],
    columns: Mapping[str, NDArray[Any]],
    topic: bytes,
    property_sizes: Numbers,
    added: bytes,
) -> memoryview:
    """The records put together, one behind the other.

    Args:
        one: the head of a record; ``columns`` are its fields that differ.
        property_sizes: of what was sent and of what is added to it.
    """
    heads = np.repeat(one, len(property_sizes))
    for name, values in columns.items():
        heads[name] = values
    sizes = columns["total_size"]
    ends = np.cumsum(sizes)
    made = np.empty(int(ends[-1]), np.uint8)
    raw = np.frombuffer(items.data, np.uint8)
    at = ends - sizes
    overlapping(made, heads.itemsize)[at] = heads.view(np.dtype((np.void, heads.itemsize)))
    at += heads.itemsize
    copy(raw, items.bodies, items.body_sizes, made, at)
    at += items.body_sizes
    middle = np.empty(len(sizes), [("topic", np.void, len(topic)), ("length", ">u2")])
    middle["topic"] = np.void(topic)
    middle["length"] = property_sizes
    overlapping(made, middle.itemsize)[at] = middle.view(np.dtype((np.void, middle.itemsize)))
    at += middle.itemsize
    copy(raw, items.properties, items.property_sizes, made, at)
    if added:
        overlapping(made, len(added))[ends - len(added)] = np.void(added)
    return made.data


def _alike_records(
    items: Items,
    one: NDArray[np.void],
    columns: Mapping[str, NDArray[Any]],
    topic: bytes,
    property_sizes: Numbers,
    added: bytes,
) -> memoryview:
    """The same if all items have parts of the same lengths: then so have the records, and no place is looked up."""
    body, told = int(items.body_sizes[0]), int(items.property_sizes[0])
    behind = topic + int(property_sizes[0]).to_bytes(2, "big")
    made = bytearray(one.tobytes() + bytes(body) + behind + bytes(told) + added) * len(property_sizes)
    count, size, item = len(property_sizes), int(columns["total_size"][0]), items.alike
    fields = one.dtype.fields
    assert fields is not None
    for name, values in columns.items():
        kind, at = fields[name][:2]
        at_every(made, kind, at, size, count)[:] = values
    bodies, properties = np.dtype((np.void, body)), np.dtype((np.void, told))
    at_every(made, bodies, one.itemsize, size, count)[:] = at_every(
        items.data, bodies, ITEM_HEAD_BYTES, item, count
    )
    if told:
        at = one.itemsize + body + len(behind)
        at_every(made, properties, at, size, count)[:] = at_every(
            items.data, properties, ITEM_BYTES + body, item, count
        )
    return memoryview(made)


def _cut_by_file(made: memoryview, places: Numbers, sizes: Numbers, position: int) -> list[memoryview]:
    """The records of each commit-log file: one that does not follow the one before it begins another."""
    if len(made) == int(places[-1] + sizes[-1]) - position:
        return [made]
    follows = np.append(position, places[:-1] + sizes[:-1])
    cuts = np.flatnonzero(places != follows)
    ends = np.cumsum(sizes)
    at = (ends - sizes)[cuts].tolist()
    return [made[a:b] for a, b in zip([0, *at], [*at, len(made)], strict=True)]
