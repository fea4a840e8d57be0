"""Following by vectors: thousands of a master's records are checked, and given their queue entries, at once.

``following`` does the same one by one. A run is records of one kind (magic, kinds of hosts) that lie one behind the
other, as nearly all do. Python takes a step for each of them for the crc of its body, for its size unless its
neighbours have the same one, and for its topic's name unless the whole run has one topic. The module is imported when
first needed, because numpy is 13 MB and 80 ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gimbalmq.model import properties as prop
from gimbalmq.model.flags import (
    HOST_BITS,
    INNER_BATCH,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from gimbalmq.model.javahash import key_prefix
from gimbalmq.model.queue_entry import entry_dtype
from gimbalmq.model.record import (
    BLANK_BYTES,
    CRC_MASK,
    HOST_BITS_AT,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD,
    START,
    head_dtype,
)
from gimbalmq.model.topics import SCHEDULE_TOPIC
from gimbalmq.store.append import KeyRun
from gimbalmq.store.dispatcher import LIKELY_TIMES, entry_code
from gimbalmq.store.property_vectors import Texts, texts_in
from gimbalmq.store.vectors import Numbers, crcs, equal_sizes, leading, overlapping

_SHORT_RUN = 16
_SINGLES = 64
STEP_BYTES = 256
"""So many bytes of properties cost as much as a record with few of them."""


class Run(NamedTuple):
    """Whole and valid records of one kind; none is a topic's deletion, or one that only Apache's brokers understand.

    Attributes:
        size: bytes of all of them.
        topics: the names of their topics, each once.
        topic_numbers: which of them each record has.
        places: where in the log each begins.
        unqueued: whether it enters no queue.
        data, properties: where each one's properties lie.
    """

    size: int
    topics: list[str]
    topic_numbers: Numbers
    queue_ids: Numbers
    queue_offsets: Numbers
    places: Numbers
    sizes: Numbers
    times: Numbers
    unqueued: NDArray[np.bool_]
    texts: Texts
    data: bytes
    properties: tuple[Numbers, Numbers]

    @property
    def last(self) -> int:
        """Where in the log the last one begins."""
        return int(self.places[-1])

    def keys(self, without: list[int]) -> KeyRun | None:
        """What the index is to know of them, except of those that lie at some places; None if that is nothing."""
        keys = self.texts.keys()
        prefixes = np.array([key_prefix(topic) for topic in self.topics], np.int64)
        hashes, records = self.texts.hashes(keys, prefixes[self.topic_numbers]), keys.records
        if without:
            kept = ~np.isin(self.places[records], without)
            hashes, records = hashes[kept], records[kept]
        return KeyRun(hashes, self.places[records], self.times[records]) if len(records) else None


class QueueRun(NamedTuple):
    """Those of a run's records that enter one queue, in their order.

    Attributes:
        first: queue offset of the first one.
        follow: whether the others follow it without a hole.
        entries: theirs, one behind the other.
        offsets: their queue offsets.
    """

    topic: str
    queue_id: int
    first: int
    follow: bool
    entries: bytes
    offsets: Numbers


def read_run(data: bytes, position: int, offset: int, file_end: int, most: int) -> Run | None:
    """The records that begin at ``position`` and are all of one kind, at most so many; None if there are none.

    Args:
        offset: where in the log ``position`` lies.
        file_end: where the log's file ends.
    """
    magic = int.from_bytes(data[position + 4 : position + 8], "big")
    if magic not in (MAGIC_V1, MAGIC_V2) or position + MIN_RECORD > len(data):
        return None
    bits = data[position + HOST_BITS_AT] & HOST_BITS
    kind = head_dtype(bits)
    starts = _starts(
        data, position, min(len(data), position + file_end - offset - BLANK_BYTES), kind.itemsize + 3, most
    )
    if not starts.size:
        return None
    heads = overlapping(data, kind.itemsize)[starts].view(kind)
    sizes = heads["total_size"].astype(np.int64)
    flags = heads["sys_flag"]
    times = heads["store_timestamp"].astype(np.int64)
    body_sizes = heads["body_size"].astype(np.int64)
    width = 1 if magic == MAGIC_V1 else 2
    fits = (body_sizes >= 0) & (kind.itemsize + body_sizes + width + 2 <= sizes)
    valid = (heads["magic"] == magic) & (flags & HOST_BITS == bits) & fits
    valid &= heads["commitlog_offset"] == starts + (offset - position)
    valid &= (flags & INNER_BATCH == 0) & (flags & TRANSACTION_MASK != TRANSACTION_ROLLBACK)
    valid &= (times > LIKELY_TIMES[0]) & (times < LIKELY_TIMES[1])
    count = leading(valid)
    starts, sizes, body_sizes = starts[:count], sizes[:count], body_sizes[:count]
    topics = starts + kind.itemsize + body_sizes + width
    topic_sizes = _unsigned(data, width)[topics - width].astype(np.int64)
    fits = topics + topic_sizes + 2 <= starts + sizes
    count = leading(fits)
    topics, topic_ends = topics[:count], (topics + topic_sizes)[:count]
    ends = (starts + sizes)[:count]
    fits = topic_ends + 2 + _unsigned(data, 2)[topic_ends] == ends
    count = leading(fits)
    # Properties are looked at byte by byte: of large ones fewer records are enough.
    count = min(count, 1 + leading(np.cumsum(ends[:count] - topic_ends[:count]) < most * STEP_BYTES))
    if not count:
        return None
    bodies = starts[:count] + kind.itemsize
    crc = crcs(data, bodies, body_sizes[:count]) & np.uint32(CRC_MASK)
    count = leading(crc == heads["body_crc"][:count])
    if not count:
        return None
    topics, topic_ends, ends = topics[:count], topic_ends[:count], ends[:count]
    names, numbers = _names(data, topics, topic_ends)
    texts_at = topic_ends + 2, ends - topic_ends - 2
    return Run(
        size=int(ends[-1]) - position,
        topics=names,
        topic_numbers=numbers,
        queue_ids=heads["queue_id"][:count].astype(np.int64),
        queue_offsets=heads["queue_offset"][:count].astype(np.int64),
        places=starts[:count] + (offset - position),
        sizes=sizes[:count],
        times=times[:count],
        unqueued=flags[:count] & TRANSACTION_PREPARED != 0,
        texts=texts_in(data, *texts_at),
        data=data,
        properties=texts_at,
    )


def _starts(data: bytes, position: int, end: int, least: int, most: int) -> Numbers:
    """Where whole records begin, at most so many, if their sizes are believed."""
    pieces: list[Numbers] = []
    unpack = START.unpack_from
    while most > 0 and position + least <= end:
        size, _ = unpack(data, position)
        if size < least or position + size > end:
            break
        run = min(equal_sizes(data, position, size), (end - position) // size, most)
        pieces.append(np.arange(position, position + run * size, size, dtype=np.int64))
        position += run * size
        most -= run
        if run < _SHORT_RUN:  # of all sizes: for a while one by one is quicker
            found: list[int] = []
            while len(found) < min(_SINGLES, most) and position + least <= end:
                size, _ = unpack(data, position)
                if size < least or position + size > end:
                    break
                found.append(position)
                position += size
            pieces.append(np.array(found, np.int64))
            most -= len(found)
    return np.concatenate(pieces) if pieces else np.empty(0, np.int64)


def _names(data: bytes, starts: Numbers, ends: Numbers) -> tuple[list[str], Numbers]:
    """The names of topics, each once, and which one each record has."""
    size = int(ends[0] - starts[0])
    if bool((ends - starts == size).all()):
        letters = np.frombuffer(data, np.uint8)[starts[:, None] + np.arange(size)]
        if bool((letters == letters[0]).all()):
            return [str(letters[0].tobytes(), "utf-8", "replace")], np.zeros(len(starts), np.int64)
    known: dict[bytes, int] = {}
    places = zip(starts.tolist(), ends.tolist(), strict=True)
    numbers = [known.setdefault(data[start:end], len(known)) for start, end in places]
    names = [str(name, "utf-8", "replace") for name in known]
    once = list(dict.fromkeys(names))  # what is no UTF-8 may have given two the same name
    return once, np.array([once.index(name) for name in names], np.int64)[numbers]


def _unsigned(data: bytes, width: int) -> NDArray[np.unsignedinteger[Any]]:
    """Numbers of one or two bytes, one from each byte on."""
    return np.ndarray((len(data) - width + 1,), f">u{width}", data, strides=(1,))


def by_queue(run: Run, delay_levels_ms: Mapping[int, int]) -> list[QueueRun]:
    """The run's records queue by queue."""
    entries = np.zeros(len(run.sizes), entry_dtype())
    entries["place"] = run.places
    entries["size"] = run.sizes
    tags = run.texts.values(prop.TAGS)
    if len(tags.records):
        entries["code"][tags.records] = run.texts.hashes(tags)
    if SCHEDULE_TOPIC in run.topics:
        _set_delivery_times(entries["code"], run, delay_levels_ms)
    labels = run.topic_numbers << 32 | run.queue_ids & 0xFFFFFFFF
    order = np.argsort(labels, kind="stable")
    if bool(run.unqueued.any()):
        order = order[~run.unqueued[order]]
    offsets = run.queue_offsets[order]
    labels = labels[order]
    others = labels[1:] != labels[:-1]
    bounds = [0, *(np.flatnonzero(others) + 1).tolist(), len(labels)]
    breaks = np.flatnonzero((offsets[1:] - offsets[:-1] != 1) & ~others)
    raw, width = entries[order].tobytes(), entries.itemsize
    found: list[QueueRun] = []
    for start, end in pairwise(bounds if len(labels) else ()):
        record = int(order[start])
        torn = int(np.searchsorted(breaks, start)) < int(np.searchsorted(breaks, end - 1))
        found.append(
            QueueRun(
                run.topics[int(run.topic_numbers[record])],
                int(run.queue_ids[record]),
                int(offsets[start]),
                not torn,
                raw[start * width : end * width],
                offsets[start:end],
            )
        )
    return found


def _set_delivery_times(codes: NDArray[np.int64], run: Run, delay_levels_ms: Mapping[int, int]) -> None:
    """The codes of delayed messages, of which there are few: one by one."""
    starts, sizes = run.properties
    for record in np.flatnonzero(run.topic_numbers == run.topics.index(SCHEDULE_TOPIC)).tolist():
        text = run.data[starts[record] : starts[record] + sizes[record]]
        codes[record] = entry_code(SCHEDULE_TOPIC, text, int(run.times[record]), delay_levels_ms)
