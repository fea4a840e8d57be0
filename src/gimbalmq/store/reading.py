"""What a store answers: messages by queue offset, by time and by key, and how far its log reaches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from gimbalmq._steps import Steps
from gimbalmq.store.commitlog import CommitLog
from gimbalmq.store.config import StoreConfig
from gimbalmq.store.consumequeue import QueueFiles, QueueLog
from gimbalmq.store.index import KeyIndex
from gimbalmq.store.marks import marks_since
from gimbalmq.store.query import KeyQuery, begin_of
from gimbalmq.store.reader import Reader
from gimbalmq.store.results import GetResult, QueryResult


class StoreReading:
    """The half of a ``MessageStore`` that changes nothing."""

    config: StoreConfig
    log: CommitLog
    _queue_files: QueueFiles
    _index: KeyIndex | None
    _reader: Reader
    _topics: dict[str, dict[int, QueueLog]]

    def find_queue(self, topic: str, queue_id: int) -> QueueLog | None:
        """The queue, or None if it was never written to or asked for."""
        queues = self._topics.get(topic)
        return None if queues is None else queues.get(queue_id)

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int | None = None,
        tags: frozenset[int] | None = None,
        predicate: Callable[[memoryview], bool] | None = None,
    ) -> GetResult:
        """Records of a queue from ``offset`` on; at least one, if there is any.

        Args:
            max_count: at most so many records.
            max_bytes: at most so many bytes, and then ``max_count`` is the only other limit; None puts the
                configured limits for memory and disk in force, which are Apache's.
            tags: only entries with one of these tags codes; None takes all.
            predicate: asked about each whole record that the tags let through.
        """
        queues = self._topics.get(topic)
        queue = None if queues is None else queues.get(queue_id)
        return self._reader.get(queue, offset, max_count, max_bytes, tags, predicate)

    def readable_max(self, queue: QueueLog) -> int:
        """First offset of a queue that ``get`` does not show; with SYNC_FLUSH what is not on the disk is not shown."""
        return self._reader.readable_max(queue)

    def record_at(self, commitlog_offset: int) -> bytes | None:
        """The record that starts there, checked; None if none does."""
        return self.log.record_at(commitlog_offset)

    def marks_since(self, commitlog_offset: int) -> Iterator[tuple[bytes, int] | None]:
        """Records from there on that were stored in place of another: (topic, offset of the other)."""
        return marks_since(self.log, commitlog_offset)

    def record_at_queue(self, topic: str, queue_id: int, queue_offset: int) -> bytes | None:
        return self._reader.record_at_queue(self.find_queue(topic, queue_id), queue_offset)

    def entries(self, topic: str, queue_id: int, start: int, count: int) -> list[tuple[int, int, int]]:
        """(commit-log offset, size, tags code) of queue offsets from ``start`` (or the first left) on."""
        return self._reader.entries(self.find_queue(topic, queue_id), start, count)

    def store_time(self, commitlog_offset: int) -> int:
        """Store time of the record that starts there, -1 if it is gone."""
        return self._reader.store_time(commitlog_offset)

    def search_offset(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: Literal["lower", "upper"] = "lower"
    ) -> int:
        """Queue offset by time.

        ``lower``: the first message stored at or after the time, else the queue's max offset.
        ``upper``: the last one stored at or before it, else the queue's min offset.
        """
        return self._reader.search_offset(self.find_queue(topic, queue_id), timestamp_ms, boundary)

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """Store time of the queue's first message, -1 if it has none."""
        return self._reader.earliest_store_time(self.find_queue(topic, queue_id))

    def earliest_message_time(self) -> int:
        """Store time of the oldest record in the log, -1 if it is empty."""
        return self._reader.store_time(self.log.min_offset)

    def query(self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int) -> Steps[KeyQuery]:
        """``MessageStore.query_by_key`` in turns; records that wait for the index are not found."""
        limit = min(max_num, self.config.max_query_records) if self._index is not None else 0
        queues = self._topics.get(topic, {}).values()
        floor = (yield from begin_of(queues, self._queue_files, self.log.position)) if limit > 0 else 0
        found = self._index.search(topic, key, begin_ms, end_ms) if self._index is not None else ()
        return KeyQuery(found, self._reader, topic, key, limit, begin_ms, end_ms, floor)

    def answered(self, query: KeyQuery) -> QueryResult:
        """What a query found, and how far the index reaches."""
        if self._index is None:
            return QueryResult([], 0, 0)
        return QueryResult(query.records, self._index.end_ms, max(self._index.end_offset, 0))

    def is_in_memory(self, commitlog_offset: int) -> bool:
        """Whether the record there is near enough to the log's end to be in the page cache."""
        return self._reader.is_in_memory(commitlog_offset)

    def topics(self) -> list[str]:
        return list(self._topics)

    def queue_ids(self, topic: str) -> list[int]:
        return sorted(self._topics.get(topic, ()))

    @property
    def min_commitlog_offset(self) -> int:
        return self.log.min_offset

    @property
    def max_commitlog_offset(self) -> int:
        return self.log.position

    @property
    def flushed_offset(self) -> int:
        return self.log.flushed

    @property
    def dispatch_behind_bytes(self) -> int:
        """How much of the log waits to be indexed; queue entries never wait."""
        place = self._index.first_waiting if self._index is not None else None
        return self.log.position - place if place is not None else 0
