"""Reading, entry by entry: by queue offset, by time, by key. Only what is committed is ever seen.

``read_vectors`` takes thousands of entries at a time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from operator import add
from typing import Literal

from gimbalmq.model import properties as prop
from gimbalmq.model.flags import HOST_BITS
from gimbalmq.model.queue_entry import ENTRY, ENTRY_BYTES, FILLER_SIZE, places_and_sizes
from gimbalmq.model.record import HOST_BITS_AT, MIN_RECORD, STORE_TIMESTAMP_AT, decode_record
from gimbalmq.store.commitlog import CommitLog
from gimbalmq.store.config import StoreConfig
from gimbalmq.store.consumequeue import QueueFiles, QueueLog
from gimbalmq.store.results import Buffer, GetResult, GetStatus

_SCAN_ENTRIES = 800

FEW = 256
"""Up to so many records are taken without numpy, whose calls cost more than the records do."""
LOOK = 128
"""The same for entries that are looked at one by one."""
MANY = 8192
"""Entries looked at in one go: enough to make a call cheap, few enough to stay in the processor's cache."""
_PIECES = 8
"""More pieces of the log than this are copied together."""
_VIEW_FROM = 65_536
"""Pieces of the log from this size on are not copied."""
_COPIES_BELOW = 16_384
"""A few records of fewer bytes in all are copied twice sooner than seen through views and copied once."""

_UNPACK = [places_and_sizes(count).unpack for count in range(FEW + 1)]
"""Places and sizes of so many entries; their tags are left out."""


class Reader:
    """The read side of a store; shares its parts and changes none of them."""

    def __init__(
        self, config: StoreConfig, log: CommitLog, queue_files: QueueFiles, memory_bytes: int
    ) -> None:
        self._config = config
        self._log = log
        self._queue_files = queue_files
        self._memory_bytes = memory_bytes
        self.limit: int | None = None
        """Records that end behind this offset of the log are not shown; None shows all."""

    def is_in_memory(self, commitlog_offset: int) -> bool:
        return self._log.position - commitlog_offset <= self._memory_bytes

    def get(
        self,
        queue: QueueLog | None,
        offset: int,
        max_count: int,
        max_bytes: int | None,
        tags: frozenset[int] | None,
        predicate: Callable[[memoryview], bool] | None,
    ) -> GetResult:
        if queue is None:
            return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        low = queue.min_offset
        every = not self._config.sync_flush and self.limit is None
        high = queue.max_offset if every else self.readable_max(queue)
        if low <= offset < high:
            return self._collect(queue, offset, high, max_count, max_bytes, tags, predicate)
        if queue.max_offset == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
        if offset < low:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
        if offset <= queue.max_offset:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high)

    def readable_max(self, queue: QueueLog) -> int:
        """First offset of a queue that readers do not get yet.

        With ``sync_flush`` that is the first whose record is not on the disk: a power cut may still take it back, and
        another message would get its offset, which a reader that had seen it would pass over. The same holds for what
        too few replicas have, which is what ``limit`` is for.
        """
        low, high, end = queue.min_offset, queue.max_offset, self._log.position
        shown = self._log.flushed if self._config.sync_flush else end
        if self.limit is not None and self.limit < shown:
            shown = self.limit
        if low >= high or shown >= end:
            return high

        def waits(entry: tuple[int, int, int]) -> bool:
            return entry[1] != FILLER_SIZE and entry[0] + entry[1] > shown

        back = 1  # those that wait are the last few
        while back < high - low and (entry := self._queue_files.entry(queue, high - back)) and waits(entry):
            back *= 2
        return self._queue_files.first_where(queue, max(low, high - back), high, waits)

    def _collect(
        self,
        queue: QueueLog,
        offset: int,
        high: int,
        max_count: int,
        max_bytes: int | None,
        tags: frozenset[int] | None,
        predicate: Callable[[memoryview], bool] | None,
    ) -> GetResult:
        config = self._config
        max_count = max(max_count, 1)
        # Limits of a reader near the log's end and of one far behind it.
        near = far = (max_count, max_bytes or 0)
        if max_bytes is None:
            near = min(max_count, config.max_transfer_count_memory), config.max_transfer_bytes_memory
            far = min(max_count, config.max_transfer_count_disk), config.max_transfer_bytes_disk
        if tags is None and predicate is None and near[0] <= FEW:
            found = self._take_all(queue, offset, high, near[0], near[1])
            if found is not None:
                return found
        scan_end = min(high, offset + max(_SCAN_ENTRIES, max_count))
        return self._walk(queue, offset, high, scan_end, near, far, tags, predicate)

    def _take_all(
        self, queue: QueueLog, offset: int, high: int, max_count: int, max_bytes: int
    ) -> GetResult | None:
        """The next few records if nothing speaks against any of them, else None.

        Most pulls are such, and a loop would be half of their cost: here each step is one for all entries.
        """
        count = min(max_count, high - offset)
        data = self._queue_files.read(queue, offset, count)
        if len(data) != count * ENTRY_BYTES:
            return None
        fields = _UNPACK[count](data)
        starts, sizes = fields[::2], fields[1::2]
        size, largest = sum(sizes), max(sizes)
        if size > max_bytes:
            if largest == FILLER_SIZE:
                return None
            count = bisect_right(list(accumulate(sizes)), max_bytes) or 1  # the first is always taken
            starts, sizes = starts[:count], sizes[:count]
            size = sum(sizes)
        log = self._log
        segments, log_end = log.segments, log.position
        low, end = min(starts), max(starts) + largest
        if end > log_end:  # not so, mostly: a record somewhere is larger than the last one
            end = max(map(add, starts, sizes))
        if low < segments.first_base or low < log_end - self._memory_bytes or end > log_end:
            return None
        segment = segments.at(low)
        base = segment.base
        if end > base + segments.size:
            return None
        parts: Sequence[Buffer]
        if starts[-1] + sizes[-1] - starts[0] == size and _adjacent(starts, sizes):
            parts = (self._piece(low, low + size),)
        else:
            mapped = segments.map(segment)
            file = mapped if size < _COPIES_BELOW else memoryview(mapped)
            parts = [
                file[(at := start - base) : at + long] for start, long in zip(starts, sizes, strict=True)
            ]
        return GetResult(GetStatus.FOUND, offset + count, queue.min_offset, high, count, size, parts)

    def _walk(
        self,
        queue: QueueLog,
        offset: int,
        high: int,
        scan_end: int,
        near: tuple[int, int],
        far: tuple[int, int],
        tags: frozenset[int] | None,
        predicate: Callable[[memoryview], bool] | None,
    ) -> GetResult:
        """Entry by entry; if there are many, thousands at a time.

        Args:
            near, far: count and bytes that a reader near the log's end may be given, and one far behind it.
        """
        log = self._log
        log_min, log_end = log.min_offset, log.position
        memory_floor = log_end - self._memory_bytes
        near_count, near_bytes = near
        far_count, far_bytes = far
        # A filter that lets most through needs few entries; what comes later is looked at in one go.
        step = min(near_count, MANY) if tags is None and predicate is None else LOOK
        status = GetStatus.NO_MATCHED_MESSAGE
        parts: list[Buffer] = []
        starts: list[int] = []  # records that follow each other in the log are taken as one piece
        ends: list[int] = []
        end = -1
        count = total = 0
        position = offset
        full = False
        while position < scan_end and not full:
            data = self._queue_files.read(queue, position, min(step, scan_end - position))
            if not data:
                per_file = self._queue_files.per_file
                position += per_file - position % per_file
                status = GetStatus.OFFSET_FOUND_NULL
                break
            step = MANY
            if len(data) > LOOK * ENTRY_BYTES and predicate is None:
                from gimbalmq.store import read_vectors

                seen = read_vectors.scan(data, tags, log_min, log_end, memory_floor, near, far, count, total)
                position += seen.entries
                count += seen.records
                total += seen.size
                full = seen.full
                if seen.removing:
                    status = GetStatus.MESSAGE_WAS_REMOVING
                if len(seen.starts) > _PIECES:
                    parts += map(self._piece, starts, ends)
                    starts, ends = [], []
                    parts += read_vectors.read(log.segments, seen.starts, seen.ends)
                    end = int(seen.ends[-1])
                    continue
                for start, stop in zip(seen.starts.tolist(), seen.ends.tolist(), strict=True):
                    if starts and start == end:
                        end = ends[-1] = stop
                    else:
                        starts.append(start)
                        ends.append(end := stop)
                continue
            for place, size, code in ENTRY.iter_unpack(data):
                if count >= near_count:
                    full = True
                    break
                if place < log_min or size == FILLER_SIZE or place + size > log_end:
                    status = GetStatus.MESSAGE_WAS_REMOVING
                    position += 1
                    continue
                if place >= memory_floor:
                    if count and total + size > near_bytes:
                        full = True
                        break
                elif count and (count >= far_count or total + size > far_bytes):
                    full = True
                    break
                position += 1
                if tags is not None and code not in tags:
                    continue
                if predicate is not None and not self._passes(predicate, place, size):
                    continue
                count += 1
                total += size
                if starts and place == end:
                    end = ends[-1] = place + size
                else:
                    starts.append(place)
                    ends.append(end := place + size)
            full = full or count >= near_count
        on_disk = memory_floor > 0 and position > offset and self._is_behind_memory(queue, position - 1)
        if count == 0:
            return GetResult(status, position, queue.min_offset, high, on_disk=on_disk)
        parts += map(self._piece, starts, ends)
        return GetResult(GetStatus.FOUND, position, queue.min_offset, high, count, total, parts, on_disk)

    def _is_behind_memory(self, queue: QueueLog, offset: int) -> bool:
        entry = self._queue_files.entry(queue, offset)
        return entry is not None and entry[1] != FILLER_SIZE and not self.is_in_memory(entry[0])

    def _piece(self, start: int, end: int) -> Buffer:
        segments, size = self._log.segments, end - start
        return segments.read(start, size) if size < _VIEW_FROM else segments.view(start, size)

    def _passes(self, predicate: Callable[[memoryview], bool], place: int, size: int) -> bool:
        # a copy, so that a predicate that keeps the view cannot pin the file's map
        return predicate(memoryview(self._log.read(place, size)))

    def entries(self, queue: QueueLog | None, start: int, count: int) -> list[tuple[int, int, int]]:
        if queue is None:
            return []
        start = max(start, queue.min_offset)
        return list(self._queue_files.iterate(queue, start, min(start + count, queue.max_offset)))

    def record_at_queue(self, queue: QueueLog | None, queue_offset: int) -> bytes | None:
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return None
        entry = self._queue_files.entry(queue, queue_offset)
        return None if entry is None or entry[1] == FILLER_SIZE else self._log.record_at(entry[0])

    # --- by time -----------------------------------------------------------------------------

    def store_time(self, commitlog_offset: int) -> int:
        """Store time of the record there, -1 if it is gone."""
        if not self._log.min_offset <= commitlog_offset < self._log.position:
            return -1
        head = self._log.read(commitlog_offset, MIN_RECORD)
        start = STORE_TIMESTAMP_AT[head[HOST_BITS_AT] & HOST_BITS]
        return int.from_bytes(head[start : start + 8], "big", signed=True)

    def search_offset(
        self, queue: QueueLog | None, timestamp_ms: int, boundary: Literal["lower", "upper"]
    ) -> int:
        if queue is None:
            return 0
        low, high = queue.min_offset, queue.max_offset
        if boundary == "lower":
            return self._queue_files.first_where(
                queue, low, high, lambda e: self.store_time(e[0]) >= timestamp_ms
            )
        later = self._queue_files.first_where(
            queue, low, high, lambda e: self.store_time(e[0]) > timestamp_ms
        )
        return max(later - 1, low)

    def earliest_store_time(self, queue: QueueLog | None) -> int:
        if queue is None or queue.min_offset >= queue.max_offset:
            return -1
        entry = self._queue_files.entry(queue, queue.min_offset)
        return -1 if entry is None else self.store_time(entry[0])

    # --- by key ------------------------------------------------------------------------------

    def holders_of(
        self, offsets: Iterable[int], topic: str, key: str, begin_ms: int, end_ms: int
    ) -> Iterator[bytes | None]:
        """For each place the index named: the record, if it is one of the topic and the time with that key."""
        for offset in offsets:
            data = self._log.record_at(offset)
            if data is None:
                yield None
                continue
            record = decode_record(data)
            keys = record.properties.get(prop.KEYS, "").split(" ")
            named = key in keys or record.properties.get(prop.UNIQ_KEY) == key
            right = named and record.topic == topic and begin_ms <= record.store_timestamp <= end_ms
            yield data if right else None


def _adjacent(starts: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
    return starts[1:] == tuple(map(add, starts[:-1], sizes))
