"""Delayed messages: eighteen levels, and any moment by a timer.

Levels: each has a queue of the schedule topic in which messages fall due in the order they
came, so one offset per level is all the state there is (delayOffset.json). A queue entry of
that topic holds the due time where others hold a tag's hash, so looking costs no record.

Timers: messages of all delays share one queue, so the order of falling due is kept in a heap
in memory. On disk there is the first offset not yet delivered and the later ones that are
(config/timerOffset.json); at start the heap is filled by reading on from there.
"""

from __future__ import annotations

import heapq
import logging
from pathlib import Path
from typing import Any

from gimbalmq._clock import Clock
from gimbalmq.broker.json_file import JsonFile
from gimbalmq.broker.writer import Draft, Writer
from gimbalmq.errors import StoreError
from gimbalmq.model import properties as prop
from gimbalmq.model import topics
from gimbalmq.model.ids import pack_host
from gimbalmq.model.record import Record, decode_record
from gimbalmq.store.message_store import MessageStore

log = logging.getLogger(__name__)

TICK_SECONDS = 0.1
_BATCH = 64


def redelivery(record: Record) -> Draft | None:
    """A delayed or half message as the one it really is; None where it does not say which."""
    properties = dict(record.properties)
    topic = properties.pop(prop.REAL_TOPIC, None)
    queue_id = properties.pop(prop.REAL_QUEUE_ID, None)
    if topic is None or queue_id is None or not queue_id.isdigit():
        return None
    properties[prop.WAIT] = "false"
    return Draft(
        topic=topic,
        queue_id=int(queue_id),
        body=record.body,
        properties=properties,
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_timestamp=record.born_timestamp,
        born_host=pack_host(*record.born_host),
        reconsume_times=record.reconsume_times,
    )


def _read_levels(document: Any) -> dict[int, int]:
    return {int(level): int(offset) for level, offset in (document.get("offsetTable") or {}).items()}


def _read_timers(document: Any) -> tuple[int, set[int]]:
    return int(document.get("first", 0)), {int(offset) for offset in document.get("delivered", [])}


class DelayLevels:
    """The levels of messageDelayLevel (Java: ScheduleMessageService)."""

    def __init__(self, folder: Path, store: MessageStore, writer: Writer, clock: Clock) -> None:
        self._file = JsonFile(folder / "delayOffset.json")
        self._store = store
        self._writer = writer
        self._clock = clock
        self._offsets: dict[int, int] = {}

    def load(self) -> None:
        self._offsets = self._file.load(_read_levels) or {}

    def save(self) -> None:
        self._file.save(self.document())

    def document(self) -> dict[str, object]:
        return {"offsetTable": {str(level): offset for level, offset in sorted(self._offsets.items())}}

    def progress(self) -> dict[int, tuple[int, int]]:
        """Level to (delivered offset, newest offset)."""
        found = {}
        for level in self._writer.delay_levels:
            queue = self._store.find_queue(topics.SCHEDULE_TOPIC, level - 1)
            if queue is not None:
                found[level] = (self._offsets.get(level, 0), queue.max_offset)
        return found

    def tick(self) -> None:
        """Delivers what has fallen due on every level."""
        for level, delay_ms in self._writer.delay_levels.items():
            while self._deliver(level, delay_ms):
                pass

    def _deliver(self, level: int, delay_ms: int) -> bool:
        """One batch of one level; True where more may be due."""
        queue = self._store.find_queue(topics.SCHEDULE_TOPIC, level - 1)
        if queue is None:
            return False
        offset = self._offsets.get(level, 0)
        if not queue.min_offset <= offset <= queue.max_offset:
            offset = max(queue.min_offset, min(offset, queue.max_offset))
            self._offsets[level] = offset
        if offset == queue.max_offset:
            return False
        now = self._clock.wall_ms()
        drafts: list[Draft] = []
        entries = self._store.entries(topics.SCHEDULE_TOPIC, level - 1, offset, _BATCH)
        looked = 0
        for commitlog_offset, _, due in entries:
            # A clock that was set back must not keep a message longer than its level.
            if now < due <= now + delay_ms:
                break
            looked += 1
            draft = self._load(commitlog_offset)
            if draft is not None:
                drafts.append(draft)
        if drafts:
            self._writer.put(*drafts)
        self._offsets[level] = offset + looked
        return looked == _BATCH

    def _load(self, commitlog_offset: int) -> Draft | None:
        raw = self._store.record_at(commitlog_offset)
        if raw is None:
            log.error("the delayed message at commit-log offset %d is gone", commitlog_offset)
            return None
        draft = redelivery(decode_record(raw))
        if draft is None:
            log.error("the delayed message at %d names no real topic; passed over", commitlog_offset)
            return None
        draft.properties.pop(prop.DELAY, None)
        return draft


class Timers:
    """Messages for a moment of the client's choice (Java: TimerMessageStore)."""

    def __init__(self, folder: Path, store: MessageStore, writer: Writer, clock: Clock) -> None:
        self._file = JsonFile(folder / "timerOffset.json")
        self._store = store
        self._writer = writer
        self._clock = clock
        self._heap: list[tuple[int, int]] = []
        self._read_to = 0
        self._first = 0
        """Everything before it has been delivered."""
        self._delivered: set[int] = set()
        """Delivered ones behind ``_first``."""

    def __len__(self) -> int:
        return len(self._heap)

    def load(self) -> None:
        first, self._delivered = self._file.load(_read_timers) or (0, set())
        self._first = self._read_to = first

    def save(self) -> None:
        self._file.save({"first": self._first, "delivered": sorted(self._delivered)})

    def tick(self) -> None:
        self._read_new()
        now = self._clock.wall_ms()
        while self._heap and self._heap[0][0] <= now:
            batch: list[int] = []
            drafts: list[Draft] = []
            while self._heap and self._heap[0][0] <= now and len(batch) < _BATCH:
                offset = heapq.heappop(self._heap)[1]
                batch.append(offset)
                draft = self._load(offset)
                if draft is not None:
                    drafts.append(draft)
            try:
                if drafts:
                    self._writer.put(*drafts)
            except StoreError:
                for offset in batch:
                    heapq.heappush(self._heap, (now, offset))
                raise
            self._delivered.update(batch)
            while self._first in self._delivered:
                self._delivered.discard(self._first)
                self._first += 1

    def _read_new(self) -> None:
        queue = self._store.find_queue(topics.TIMER_TOPIC, 0)
        if queue is None:
            return
        if not queue.min_offset <= self._read_to <= queue.max_offset:
            self._read_to = max(queue.min_offset, min(self._read_to, queue.max_offset))
            self._first = max(self._first, queue.min_offset)
        while self._read_to < queue.max_offset:
            offset = self._read_to
            self._read_to += 1
            if offset in self._delivered:
                continue
            raw = self._store.record_at_queue(topics.TIMER_TOPIC, 0, offset)
            due = None if raw is None else decode_record(raw).properties.get(prop.TIMER_OUT_MS)
            heapq.heappush(self._heap, (int(due) if due and due.isdigit() else 0, offset))

    def _load(self, queue_offset: int) -> Draft | None:
        raw = self._store.record_at_queue(topics.TIMER_TOPIC, 0, queue_offset)
        draft = None if raw is None else redelivery(decode_record(raw))
        if draft is None:
            log.error("the timer message at queue offset %d cannot be delivered; passed over", queue_offset)
            return None
        for name in (prop.TIMER_OUT_MS, prop.TIMER_DELAY_SEC, prop.TIMER_DELAY_MS, prop.TIMER_DELIVER_MS):
            draft.properties.pop(name, None)
        return draft
