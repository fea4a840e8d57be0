"""Reads: by queue offset, by time, by key. Only what is committed is ever seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from gimbalmq.model.record import SYS_FLAG_AT, decode_record
from gimbalmq.store.commitlog import CommitLog
from gimbalmq.store.config import StoreConfig
from gimbalmq.store.consumequeue import ENTRY, ENTRY_BYTES, FILLER_SIZE, QueueFiles, QueueLog
from gimbalmq.store.index import KeyIndex
from gimbalmq.store.results import GetResult, GetStatus, QueryResult

_SCAN_ENTRIES = 800
_HEAD_BYTES = 76


class Reader:
    """The read side of a store; shares its parts and changes none of them."""

    def __init__(
        self, config: StoreConfig, log: CommitLog, queue_files: QueueFiles, memory_bytes: int
    ) -> None:
        self._config = config
        self._log = log
        self._queue_files = queue_files
        self._memory_bytes = memory_bytes

    def is_in_memory(self, commitlog_offset: int) -> bool:
        return self._log.position - commitlog_offset <= self._memory_bytes

    def get(
        self,
        queue: QueueLog | None,
        offset: int,
        max_count: int,
        max_bytes: int,
        tags: frozenset[int] | None,
        predicate: Callable[[memoryview], bool] | None,
    ) -> GetResult:
        if queue is None:
            return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        low, high = queue.min_offset, queue.max_offset
        if low <= offset < high:
            return self._collect(queue, offset, max_count, max_bytes, tags, predicate)
        if high == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
        if offset < low:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
        if offset == high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high)

    def _collect(
        self,
        queue: QueueLog,
        offset: int,
        max_count: int,
        max_bytes: int,
        tags: frozenset[int] | None,
        predicate: Callable[[memoryview], bool] | None,
    ) -> GetResult:
        log, config = self._log, self._config
        log_min, log_end = log.min_offset, log.position
        memory_floor = log_end - self._memory_bytes
        max_count = max(max_count, 1)
        # Limits of a reader near the log's end and of one far behind it; found once, not for each entry.
        near_count = min(max_count, config.max_transfer_count_memory)
        near_bytes = min(max_bytes, config.max_transfer_bytes_memory)
        far_count = min(max_count, config.max_transfer_count_disk)
        far_bytes = min(max_bytes, config.max_transfer_bytes_disk)
        read = log.segments.read
        scan_end = min(queue.max_offset, offset + max(_SCAN_ENTRIES, max_count))
        step = min(max_count, config.max_transfer_count_memory) if tags is None and predicate is None else 256
        status = GetStatus.NO_MATCHED_MESSAGE
        parts: list[bytes] = []
        run_start = run_end = -1  # records that follow each other in the log are taken as one slice
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
            for place, size, code in ENTRY.iter_unpack(data):
                if place < log_min or size == FILLER_SIZE or place + size > log_end:
                    status = GetStatus.MESSAGE_WAS_REMOVING
                    position += 1
                    continue
                if place >= memory_floor:
                    if count and (count >= near_count or total + size > near_bytes):
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
                if place == run_end:
                    run_end += size
                else:
                    if run_end >= 0:
                        parts.append(read(run_start, run_end - run_start))
                    run_start, run_end = place, place + size
            if not full and count >= max_count:
                full = True
        if count == 0:
            return GetResult(status, position, queue.min_offset, queue.max_offset)
        parts.append(read(run_start, run_end - run_start))
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        on_disk = run_end < memory_floor
        return GetResult(GetStatus.FOUND, position, queue.min_offset, queue.max_offset, count, body, on_disk)

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
        head = self._log.read(commitlog_offset, _HEAD_BYTES)
        start = 68 if head[SYS_FLAG_AT + 3] & 0x10 else 56
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

    def query_by_key(
        self, index: KeyIndex, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int
    ) -> QueryResult:
        records: list[bytes] = []
        seen: set[int] = set()
        limit = min(max_num, self._config.max_query_records)
        for offset in index.find(topic, key, begin_ms, end_ms) if limit > 0 else ():
            if offset in seen:  # the same key twice in one message
                continue
            seen.add(offset)
            data = self._log.record_at(offset)
            if data is None:
                continue
            record = decode_record(data)
            keys = record.properties.get("KEYS", "").split(" ")
            named = key in keys or record.properties.get("UNIQ_KEY") == key
            if named and record.topic == topic and begin_ms <= record.store_timestamp <= end_ms:
                records.append(data)
                if len(records) >= limit:
                    break
        return QueryResult(records, index.end_ms, max(index.end_offset, 0))


assert ENTRY.size == ENTRY_BYTES
