"""Appending by vectors: a whole batch request, or a run of requests that are alike, into one group at once.

It does for thousands of messages what ``AppendGroup.add`` (store/append) does for one. The pieces of a record lie
elsewhere already: a head, the body, the topic, a length, the properties and what the broker adds to them. Each kind of
piece is copied for all records by one call of ``vectors.copy``, without a step of Python for each. What is left
for each message is the crc of its body.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gimbalmq.errors import StoreError
from gimbalmq.model import properties as prop
from gimbalmq.model.batch import ITEM_BYTES, ITEM_HEAD_BYTES
from gimbalmq.model.crc import crc32
from gimbalmq.model.flags import HOST_BITS
from gimbalmq.model.javahash import key_prefix
from gimbalmq.model.queue_entry import ENTRY_BYTES, entry_dtype
from gimbalmq.model.record import (
    BLANK_BYTES,
    CRC_MASK,
    HEADS,
    MAX_PROPERTIES,
    head_dtype,
    host_bits,
)
from gimbalmq.store.append import AppendGroup, KeyRun
from gimbalmq.store.batch_items import Items
from gimbalmq.store.consumequeue import QueueLog
from gimbalmq.store.index_keys import hashed_singles
from gimbalmq.store.property_vectors import Texts, texts_in
from gimbalmq.store.vectors import Numbers, at_every, copy, crcs, overlapping

_KEYS_TOGETHER = 4096
"""So many keys of a batch are indexed in one go, in a millisecond or two."""
_SMALL = 512
"""Bytes of a body that is copied once more sooner than an object of Python is made for each part of its record."""


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

    Args:
        added: to the properties of each.

    Raises:
        StoreError: one fits no record; the group is to be aborted then.
    """
    count = len(items.bodies)
    if not items.closed:
        added = prop.PROPERTY_END.encode() + added
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
    index: list[KeyRun] = []
    tagged, keyed = items.may_have(prop.TAGS), group.indexes and items.may_have(prop.KEYS, prop.UNIQ_KEY)
    if tagged or keyed:
        texts = texts_in(items.data, items.properties, items.property_sizes)
        if tagged:
            tags = texts.values(prop.TAGS)
            entries["code"][tags.records] = texts.hashes(tags)
        if keyed:
            index = _item_keys(queue.topic, texts, places, group.store_timestamp)
    put_together = _alike_records if items.alike else _records
    records = put_together(items, one, columns, queue.topic_field, property_sizes, added)
    group.add_made([(queue, entries.tobytes())], _cut_by_file(records, places, sizes, group.position), index)
    return places, first


def _item_keys(topic: str, texts: Texts, places: Numbers, timestamp: int) -> list[KeyRun]:
    """What the index is to know of a batch's messages."""
    keys = texts.keys()
    if not len(keys.records):
        return []
    hashes = texts.hashes(keys, np.full(len(places), key_prefix(topic), np.int64))
    keyed, times = places[keys.records], np.full(len(hashes), timestamp, np.int64)
    # A run is indexed as a whole, and a record's keys are not to be in two: the index goes on behind a record.
    begins = np.append(np.flatnonzero(np.diff(keyed)) + 1, len(keyed))
    wanted = np.arange(_KEYS_TOGETHER, len(keyed), _KEYS_TOGETHER)
    bounds = [0, *np.unique(begins[np.searchsorted(begins, wanted)]).tolist(), len(keyed)]
    return [KeyRun(hashes[a:b], keyed[a:b], times[a:b]) for a, b in pairwise(bounds) if a < b]


class Part(NamedTuple):
    """Messages of a run that have one topic and equally long properties.

    Attributes:
        numbers: which messages of the run they are, ascending; a slice if they are all.
        queue: one of those that they go to.
        properties: encoded; a row is one message's.
        tags_codes: of each, or one that all have.
        keys: hashes of ``topic#key``; a row has the keys of a message.
    """

    numbers: Numbers | slice
    queue: QueueLog
    properties: NDArray[np.uint8]
    tags_codes: NDArray[np.int32] | int
    keys: NDArray[np.int32]
    flag: int
    sys_flag: int
    born_timestamps: Numbers
    reconsume_times: int


class Single(NamedTuple):
    """A message of a run that is like no other one in it; ``number`` says which."""

    number: int
    queue: QueueLog
    properties: bytes
    tags_code: int
    flag: int
    sys_flag: int
    born_timestamp: int
    reconsume_times: int


class Run(NamedTuple):
    """Messages that came together: what ``AppendGroup.add`` is told of one, told of all of them.

    Attributes:
        queues: those that they go to, each once.
        queue_numbers: which of these each message goes to.
        parts, singles: every message is in one of them; there is a part at least.
    """

    queues: Sequence[QueueLog]
    queue_numbers: Numbers
    bodies: Sequence[bytes]
    body_sizes: Numbers
    born_host: bytes
    parts: Sequence[Part]
    singles: Sequence[Single] = ()

    @property
    def single_numbers(self) -> list[int]:
        return [single.number for single in self.singles]


def add_run(group: AppendGroup, run: Run) -> tuple[Numbers, Numbers]:
    """Adds all of them in their order; their commit-log offsets and their queue offsets.

    Raises:
        StoreError: one fits no record; nothing was added then.
    """
    count = len(run.bodies)
    widths = [part.properties.shape[1] for part in run.parts]
    widths += [len(single.properties) for single in run.singles]
    if max(widths) > MAX_PROPERTIES:
        raise StoreError(f"properties of {max(widths)} bytes; at most {MAX_PROPERTIES} fit a record")
    queues = run.queues
    order = np.argsort(run.queue_numbers, kind="stable")
    numbers = np.bincount(run.queue_numbers, minlength=len(queues))
    ends = np.cumsum(numbers)
    firsts = np.array([queue.next_offset for queue in queues], np.int64)
    offsets = np.empty(count, np.int64)
    offsets[order] = np.arange(count) + np.repeat(firsts - (ends - numbers), numbers)

    bits = host_bits(run.born_host, group.store_host)
    heads = _run_heads(group, run, bits)
    rests, rest_sizes = _run_rests(run)
    sizes = run.body_sizes + rest_sizes
    sizes += heads.itemsize
    places = _place(group, sizes)
    heads["total_size"] = sizes
    heads["body_crc"] = np.fromiter(map(crc32, run.bodies), np.uint32, count) & np.uint32(CRC_MASK)
    heads["queue_id"] = np.array([queue.queue_id for queue in queues])[run.queue_numbers]
    heads["queue_offset"] = offsets
    heads["commitlog_offset"] = places
    heads["body_size"] = run.body_sizes
    pieces = _cut_by_file(_run_records(run, heads, rests), places, sizes, group.position)

    entries = np.empty(count, entry_dtype())
    entries["place"] = places
    entries["size"] = sizes
    for part in run.parts:
        entries["code"][part.numbers] = part.tags_codes
    if run.singles:
        entries["code"][run.single_numbers] = [single.tags_code for single in run.singles]
    data = entries[order].tobytes()
    stops = (ends * ENTRY_BYTES).tolist()
    portions = [data[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]
    group.add_made(
        zip(queues, portions, strict=True), pieces, _run_keys(run, places, group) if group.indexes else []
    )
    return places, offsets


def _run_heads(group: AppendGroup, run: Run, bits: int) -> NDArray[np.void]:
    """The heads of a run's records, without what follows from the others: places, sizes, queues and crc."""
    kind, count = head_dtype(bits), len(run.bodies)

    def pack(of: Part | Single, born_timestamp: int) -> bytes:
        return HEADS[bits].pack(
            0,
            of.queue.magic,
            0,
            0,
            of.flag,
            0,
            0,
            of.sys_flag & ~HOST_BITS | bits,
            born_timestamp,
            run.born_host,
            group.store_timestamp,
            group.store_host,
            of.reconsume_times,
            0,
            0,
        )

    made = bytearray(pack(run.parts[0], 0) * count)
    heads = np.frombuffer(made, kind)
    whole = np.frombuffer(made, np.dtype((np.void, kind.itemsize)))
    for number, part in enumerate(run.parts):
        if number:
            whole[part.numbers] = np.void(pack(part, 0))
        heads["born_timestamp"][part.numbers] = part.born_timestamps
    if run.singles:
        packed = b"".join([pack(single, single.born_timestamp) for single in run.singles])
        whole[run.single_numbers] = np.frombuffer(packed, whole.dtype)
    return heads


def _run_records(run: Run, heads: NDArray[np.void], rests: NDArray[np.uint8] | list[bytes]) -> memoryview:
    """The records put together, one behind the other."""
    if isinstance(rests, np.ndarray):
        size, count = int(run.body_sizes[0]), len(heads)
        if size <= _SMALL and bool((run.body_sizes == size).all()):
            bodies = np.frombuffer(b"".join(run.bodies), np.uint8).reshape(count, size)
            table = np.concatenate((heads.view(np.uint8).reshape(count, -1), bodies, rests), 1)
            return table.reshape(-1).data
        rests = _rows(rests)
    # Bodies are objects of Python already, of any sizes; joined with rows made so, they need no copy of their own.
    return memoryview(b"".join(chain.from_iterable(zip(_rows(heads), run.bodies, rests, strict=True))))


def _run_rests(run: Run) -> tuple[NDArray[np.uint8] | list[bytes], Numbers]:
    """What stands behind the bodies of a run: topic and properties; and how long that is. A table if all are alike."""
    count = len(run.bodies)
    sizes = np.empty(count, np.int64)
    rests: list[bytes] = []
    for part in run.parts:
        rows, width = part.properties.shape
        middle = part.queue.topic_field + width.to_bytes(2, "big")
        table = np.empty((rows, len(middle) + width), np.uint8)
        table[:, : len(middle)] = np.frombuffer(middle, np.uint8)
        table[:, len(middle) :] = part.properties
        sizes[part.numbers] = table.shape[1]
        if rows == count:
            return table, sizes
        if not rests:
            rests = [b""] * count
        for number, rest in zip(np.arange(count)[part.numbers].tolist(), _rows(table), strict=True):
            rests[number] = rest
    for single in run.singles:
        length = len(single.properties).to_bytes(2, "big")
        rests[single.number] = single.queue.topic_field + length + single.properties
    if run.singles:
        sizes[run.single_numbers] = [len(rests[single.number]) for single in run.singles]
    return rests, sizes


def _run_keys(run: Run, places: Numbers, group: AppendGroup) -> list[KeyRun]:
    """What the index is to know of a run, in the order of the records."""
    hashes = [part.keys.ravel() for part in run.parts]
    keyed = [np.repeat(places[part.numbers], part.keys.shape[1]) for part in run.parts]
    if run.singles:
        at = places[run.single_numbers].tolist()
        found = hashed_singles(
            [(of.queue.topic, of.properties, place, 0) for of, place in zip(run.singles, at, strict=True)]
        )
        if found is not None:
            hashes.append(found[0])
            keyed.append(found[1])
    all_hashes, all_places = np.concatenate(hashes), np.concatenate(keyed)
    if not len(all_hashes):
        return []
    if len(hashes) > 1:
        order = np.argsort(all_places, kind="stable")
        all_hashes, all_places = all_hashes[order], all_places[order]
    return [KeyRun(all_hashes, all_places, np.full(len(all_hashes), group.store_timestamp, np.int64))]


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
