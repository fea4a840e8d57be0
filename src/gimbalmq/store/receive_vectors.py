"""Following by vectors: thousands of a master's records are checked, and given their queue entries, at once.

``following`` does the same one by one. A run is records of one kind (magic, kinds of hosts) that lie one behind the
other, as nearly all do. Python takes a step for each of them only for what nothing else can: its size, the crc of its
body, its topic's name and its properties. The module is imported when first needed, because numpy is 13 MB and 80 ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from gimbalmq.model import properties as prop
from gimbalmq.model.flags import (
    HOST_BITS,
    INNER_BATCH,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
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
from gimbalmq.store.append import IndexItem
from gimbalmq.store.dispatcher import LIKELY_TIMES, entry_code
from gimbalmq.store.vectors import Numbers, crcs, overlapping

_MOST = 8192
"""Records in one run: enough to make a call cheap."""
_TAGS = f"{prop.TAGS}\x01".encode()


class Run(NamedTuple):
    """Whole and valid records of one kind; none is a topic's deletion, or one that only Apache's brokers understand.

    Attributes:
        size: bytes of all of them.
        last: where in the log the last one begins.
        names: of their topics.
        places: where in the log each begins.
        unqueued: whether it enters no queue.
    """

    size: int
    last: int
    names: list[str]
    properties: list[bytes]
    queue_ids: list[int]
    queue_offsets: Numbers
    places: Numbers
    sizes: Numbers
    times: Numbers
    unqueued: np.ndarray[tuple[int], np.dtype[np.bool_]]
    may_have_tags: bool

    def index_items(self) -> list[IndexItem]:
        return list(zip(self.names, self.properties, self.places.tolist(), self.times.tolist(), strict=True))


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


def read_run(data: bytes, position: int, offset: int, file_end: int) -> Run | None:
    """The records that begin at ``position`` and are all of one kind; None if there are none.

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
        data, position, min(len(data), position + file_end - offset - BLANK_BYTES), kind.itemsize
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
    count = _leading(valid)
    starts, sizes, body_sizes = starts[:count], sizes[:count], body_sizes[:count]
    topics = starts + kind.itemsize + body_sizes + width
    topic_sizes = _unsigned(data, width)[topics - width].astype(np.int64)
    fits = topics + topic_sizes + 2 <= starts + sizes
    count = _leading(fits)
    topics, topic_ends = topics[:count], (topics + topic_sizes)[:count]
    ends = (starts + sizes)[:count]
    fits = topic_ends + 2 + _unsigned(data, 2)[topic_ends] == ends
    count = _leading(fits)
    if not count:
        return None
    bodies = starts[:count] + kind.itemsize
    crc = crcs(data, bodies, body_sizes[:count]) & np.uint32(CRC_MASK)
    count = _leading(crc == heads["body_crc"][:count])
    if not count:
        return None
    known: dict[bytes, str] = {}
    names = [data[a:b] for a, b in zip(topics[:count].tolist(), topic_ends[:count].tolist(), strict=True)]
    for name in set(names):
        known[name] = str(name, "utf-8", "replace")
    texts = zip((topic_ends[:count] + 2).tolist(), ends[:count].tolist(), strict=True)
    begin, end = int(starts[0]), int(ends[count - 1])
    places = starts[:count] + (offset - position)
    return Run(
        size=end - begin,
        last=int(places[-1]),
        names=[known[name] for name in names],
        properties=[data[a:b] for a, b in texts],
        queue_ids=heads["queue_id"][:count].tolist(),
        queue_offsets=heads["queue_offset"][:count].astype(np.int64),
        places=places,
        sizes=sizes[:count],
        times=times[:count],
        unqueued=flags[:count] & TRANSACTION_PREPARED != 0,
        may_have_tags=data.find(_TAGS, begin, end) >= 0,
    )


def _starts(data: bytes, position: int, end: int, head_bytes: int) -> Numbers:
    """Where whole records begin, if their sizes are believed."""
    found: list[int] = []
    unpack = START.unpack_from
    least = head_bytes + 3
    while position + least <= end and len(found) < _MOST:
        size, _ = unpack(data, position)
        if size < least or position + size > end:
            break
        found.append(position)
        position += size
    return np.array(found, np.int64)


def _unsigned(data: bytes, width: int) -> np.ndarray[tuple[int], np.dtype[np.unsignedinteger]]:
    """Numbers of one or two bytes, one from each byte on."""
    return np.ndarray((len(data) - width + 1,), f">u{width}", data, strides=(1,))


def _leading(true: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int:
    """How many of the first are true."""
    return len(true) if bool(true.all()) else int(true.argmin())


def by_queue(run: Run, delay_levels_ms: Mapping[int, int]) -> list[QueueRun]:
    """The run's records queue by queue."""
    entries = np.zeros(len(run.sizes), entry_dtype())
    entries["place"] = run.places
    entries["size"] = run.sizes
    if run.may_have_tags or SCHEDULE_TOPIC in run.names:
        facts = zip(run.names, run.properties, run.times.tolist(), strict=True)
        entries["code"] = [entry_code(topic, text, time, delay_levels_ms) for topic, text, time in facts]
    known: dict[tuple[str, int], int] = {}
    labels = np.array(
        [known.setdefault(key, len(known)) for key in zip(run.names, run.queue_ids, strict=True)], np.int32
    )
    order = np.argsort(labels, kind="stable")
    if bool(run.unqueued.any()):
        order = order[~run.unqueued[order]]
    offsets = run.queue_offsets[order]
    sorted_labels = labels[order]
    bounds = np.searchsorted(sorted_labels, np.arange(len(known) + 1))
    breaks = np.flatnonzero((offsets[1:] - offsets[:-1] != 1) & (sorted_labels[1:] == sorted_labels[:-1]))
    torn = set(sorted_labels[breaks].tolist())
    raw = entries[order].tobytes()
    width = entries.itemsize
    stops = bounds.tolist()
    found: list[QueueRun] = []
    for (topic, queue_id), label in known.items():
        a, b = stops[label], stops[label + 1]
        if a < b:
            piece = raw[a * width : b * width]
            found.append(QueueRun(topic, queue_id, int(offsets[a]), label not in torn, piece, offsets[a:b]))
    return found
