"""From the log to queues and index: how a record found on disk gets its entries again.

A running store does this as part of the commit, with what the sender gave. Here the same is derived
from the record alone, for recovery and for whatever else reads the log in order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import NamedTuple
from zlib import crc32

from gimbalmq.model.flags import enters_index, enters_queue
from gimbalmq.model.javahash import tag_hash
from gimbalmq.model.record import CRC_MASK, MAGIC_BLANK, MAGIC_V1, check_record, find_property
from gimbalmq.store.consumequeue import QueueFiles, QueueLog
from gimbalmq.store.index import KeyIndex
from gimbalmq.store.segments import Segments

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
_FLUSH_EVERY = 100_000
_BLANK = MAGIC_BLANK.to_bytes(4, "big")
_HEAD = struct.Struct(">iIIiiqqiq8sq8siqi")


class Found(NamedTuple):
    """What the dispatcher needs to know of a record."""

    commitlog_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp: int
    properties: bytes


class LogScanner:
    """Walks the log from an offset to its end: the first place that holds no valid record.

    Attributes:
        end: after the walk, the first offset behind the valid records.
        reason: after the walk, why it ended there.
    """

    def __init__(self, segments: Segments, start: int) -> None:
        self._segments = segments
        self.end = start
        self.reason = ""
        self.records = 0

    def __iter__(self) -> Iterator[Found]:
        segments = self._segments
        while self.end < segments.end:
            segment = segments.at(self.end)
            with memoryview(segments.map(segment)) as view:
                if not (yield from self._scan_file(view, segment.base)):
                    return
            self.end = segment.base + segments.size
        self.reason = "end of the last file"

    def _scan_file(self, view: memoryview, base: int) -> Generator[Found, None, bool]:
        """Yields the file's records; True if a blank mark ended it."""
        position = self.end - base
        room = len(view)
        while position + 8 <= room:
            offset = base + position
            if view[position + 4 : position + 8] == _BLANK:
                return True
            found = _read_plain(view, position, offset) if position + _HEAD.size < room else None
            if found is None:
                why = check_record(view, position, commitlog_offset=offset)
                if why is not None:
                    self.reason = why
                    return False
                found = read_found(view, position, offset)
            position += found.size
            if _fades_out(found) and not any(view[position : position + 64]):
                self.reason = "the last record ends in zeros"
                return False
            self.records += 1
            yield found
            self.end = base + position
        return True


def _fades_out(found: Found) -> bool:
    """Whether the record's end is zeros, where text is expected.

    The crc covers the body only, so a record torn in its topic or properties passes every check. No
    sender ends a property with NUL; if nothing follows either, the rest never reached the disk.
    """
    return found.properties.endswith(b"\0") or found.topic.endswith("\0")


def _read_plain(view: memoryview, position: int, offset: int) -> Found | None:
    """Checks and reads the usual record (V1, IPv4 hosts) in one go; None if it is not one, or not valid.

    A scan is as long as the log written since the last checkpoint: this makes it twice as fast.
    """
    (size, magic, crc, queue_id, _, queue_offset, says, sys_flag, _, _, stored, _, _, _, body_size) = (
        _HEAD.unpack_from(view, position)
    )
    end = position + size
    topic_at = position + _HEAD.size + body_size
    if magic != MAGIC_V1 or says != offset or sys_flag & 0x30 or body_size < 0 or end > len(view):
        return None
    if topic_at + 3 > end:
        return None
    topic_end = topic_at + 1 + view[topic_at]
    if topic_end + 2 > end or topic_end + 2 + (view[topic_end] << 8 | view[topic_end + 1]) != end:
        return None
    if crc32(view[position + _HEAD.size : topic_at]) & CRC_MASK != crc:
        return None
    topic = str(view[topic_at + 1 : topic_end], "utf-8", "replace")
    properties = bytes(view[topic_end + 2 : end])
    return Found(offset, size, topic, queue_id, queue_offset, sys_flag, stored, properties)


def read_found(view: bytes | memoryview, position: int, offset: int) -> Found:
    """The fields of a record that was checked before."""
    get = int.from_bytes
    head = bytes(view[position : position + 124])
    size = get(head[0:4], "big")
    sys_flag = get(head[36:40], "big", signed=True)
    born = 12 if sys_flag & 0x10 else 0
    body_at = 84 + born + (12 if sys_flag & 0x20 else 0)
    topic_at = position + body_at + 4 + get(head[body_at : body_at + 4], "big")
    if get(head[4:8], "big") == MAGIC_V1:
        topic_end = topic_at + 1 + view[topic_at]
        topic = str(view[topic_at + 1 : topic_end], "utf-8", "replace")
    else:
        topic_end = topic_at + 2 + get(view[topic_at : topic_at + 2], "big")
        topic = str(view[topic_at + 2 : topic_end], "utf-8", "replace")
    return Found(
        offset,
        size,
        topic,
        get(head[12:16], "big", signed=True),
        get(head[20:28], "big", signed=True),
        sys_flag,
        get(head[56 + born : 64 + born], "big", signed=True),
        bytes(view[topic_end + 2 : position + size]),
    )


def tags_code(topic: str, properties: bytes, store_timestamp: int, delay_levels_ms: Mapping[int, int]) -> int:
    """The last field of a queue entry: hash of the tag, or in the schedule topic the delivery time."""
    if topic == SCHEDULE_TOPIC:
        level = find_property(properties, b"DELAY")
        if level is not None and level.isdigit() and int(level) > 0 and delay_levels_ms:
            number = min(int(level), max(delay_levels_ms))
            return store_timestamp + delay_levels_ms.get(number, 1000)
    tag = find_property(properties, b"TAGS")
    return tag_hash(tag.decode("utf-8", "replace")) if tag else 0


class Dispatcher:
    """Gives records their queue entries and index keys; doing it twice changes nothing."""

    def __init__(
        self,
        queue: Callable[[str, int], QueueLog],
        queue_files: QueueFiles,
        index: KeyIndex | None,
        delay_levels_ms: Mapping[int, int],
        *,
        index_batch: int,
    ) -> None:
        self._queue = queue
        self._queue_files = queue_files
        self._index = index
        self._levels = delay_levels_ms
        self._index_batch = index_batch
        self._dirty: set[QueueLog] = set()
        self._unwritten = 0
        self.added = 0
        self.last_timestamp = 0

    def dispatch(self, found: Found) -> None:
        self.last_timestamp = found.store_timestamp
        if enters_queue(found.sys_flag):
            queue = self._queue(found.topic, found.queue_id)
            code = tags_code(found.topic, found.properties, found.store_timestamp, self._levels)
            place = (found.queue_offset, found.commitlog_offset, found.size, code)
            if self._queue_files.append(queue, *place):
                self.added += 1
                self._dirty.add(queue)
                self._unwritten += 1
                if self._unwritten > _FLUSH_EVERY:
                    self.write()
        if self._index is not None and enters_index(found.sys_flag):
            item = (found.topic, found.properties, found.commitlog_offset, found.store_timestamp)
            self._index.pending.append(item)
            if len(self._index.pending) >= self._index_batch:
                self._index.build()

    def write(self) -> None:
        """Brings the queues' tails to their files."""
        for queue in self._dirty:
            self._queue_files.write_tail(queue)
        self._dirty.clear()
        self._unwritten = 0
