"""Delays by level: each level has a queue of the schedule topic in which messages fall due in the order they came.

So one offset for each level is all the state there is (delayOffset.json). A queue entry of that topic holds the due
time in place of a tag's hash, so no record is read before it is due. After a crash the commit log tells what was
delivered since the offsets were saved (``store/marks``).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gimbalmq._clock import Clock
from gimbalmq._steps import Steps
from gimbalmq.broker.json_file import JsonFile
from gimbalmq.broker.redelivery import Deliverer, waiting_copy
from gimbalmq.broker.versions import next_version
from gimbalmq.broker.writer import Draft, Writer
from gimbalmq.errors import StoreError
from gimbalmq.model import topics
from gimbalmq.model.queue_entry import FILLER_SIZE
from gimbalmq.model.record import decode_record
from gimbalmq.protocol.bodies import DataVersion
from gimbalmq.store.consumequeue import QueueLog
from gimbalmq.store.message_store import MessageStore

log = logging.getLogger(__name__)

PIECE_SECONDS = 0.004
"""How long the loop may be kept at a time."""
_BATCH = 32
_BATCH_BYTES = 256 * 1024
_MARKS_BEHIND = 64 << 20


def _read(document: Any) -> tuple[dict[int, int], int]:
    table = {int(level): int(offset) for level, offset in (document.get("offsetTable") or {}).items()}
    return table, int(document.get("marksFrom", -1))


def _read_all(document: Any) -> tuple[dict[int, int], int, DataVersion]:
    version = document.get("dataVersion") or {}
    return *_read(document), version if isinstance(version, DataVersion) else DataVersion.of(version)


def _written(offsets: dict[int, int]) -> dict[str, int]:
    return {str(level): offsets[level] for level in sorted(offsets)}


class DelayLevels:
    """The levels of messageDelayLevel (Java: ScheduleMessageService)."""

    def __init__(
        self, folder: Path, store: MessageStore, writer: Writer, deliverer: Deliverer, clock: Clock
    ) -> None:
        self._file = JsonFile(folder / "delayOffset.json", store.files)
        self._store = store
        self._writer = writer
        self._deliverer = deliverer
        self._clock = clock
        self._offsets: dict[int, int] = {}
        self._version = DataVersion(timestamp=clock.wall_ms())
        self._versioned: dict[int, int] = {}
        """The offsets of that version."""
        self._saved: tuple[dict[int, int], int] = ({}, -1)
        self._rests_from: int | None = None
        """Set while nothing is delivered here: marks of what the master has delivered beyond ``_offsets`` lie in the
        log from there on."""
        self._delivered: set[int] = set()
        """Commit-log offsets of messages delivered before the last crash, as far as offsets do not say so."""
        self._check_until: dict[int, int] = {}
        """Level to the queue offset behind the last of these."""
        self._set_back: dict[int, float] = {}
        """Level to the moment at which its next message was seen to be due too late: the clock was set back."""
        self._moved_from = 0
        self._moved_end = 0
        """Messages from the one offset on were put again, and end at the other."""
        self._move_to = 0
        """What waits before this offset of the log is to be put again; 0 if nothing is."""

    def load(self) -> None:
        """Takes up the note of the folder; nothing is delivered before ``go_on``."""
        loaded = self._file.load(_read_all)
        if loaded is not None:
            self._take(loaded)
        self._rests_from = self._saved[1]

    def _take(self, progress: tuple[dict[int, int], int, DataVersion]) -> None:
        self._offsets, marks_from, self._version = progress
        self._versioned = dict(self._offsets)
        self._saved = (dict(self._offsets), marks_from)

    def go_on(self, *, promoted: bool = False) -> Steps[None]:
        """Finds out what has been delivered already, in steps; then ``tick`` delivers the rest.

        Args:
            promoted: this was a slave. If it has never heard how far its master had come, the whole log tells.
        """
        assert self._rests_from is not None
        start = max(self._rests_from, 0 if promoted else -1)
        if start > self._store.max_commitlog_offset:
            # The log was cut: what is noted as delivered may have gone with its end. The log tells.
            self._offsets, start, promoted = {}, 0, True
        self._delivered.clear()
        self._check_until.clear()
        if start >= 0:
            yield from self._find_marks(start)
        self._rests_from = None
        if start < 0 or promoted:
            self._saved = (dict(self._offsets), start)
            self._note_marks()

    def rest(self) -> None:
        """Delivers nothing from now on; somebody else may."""
        if self._rests_from is None:
            self._rests_from = self._marks_from()
        self._set_back.clear()
        self._moved_from = self._moved_end = self._move_to = 0

    @property
    def version(self) -> DataVersion:
        """Of the offsets as they are now; it grows when somebody asks for it and they have changed."""
        if self._versioned != self._offsets:
            self._versioned = dict(self._offsets)
            self._version = next_version(self._version, self._clock)
        return self._version

    def new_term(self, state_version: int) -> None:
        """The broker was made master by a controller: its offsets are newer than those of any master before it."""
        self._version = next_version(self.version, self._clock, state_version)

    def copy(self, document: Mapping[str, object]) -> None:
        """While it rests: takes the progress of the master, whose log this broker has, in the place of its own.

        It is what is saved from now on, and what ``go_on`` goes on from. What the master delivered later has marks from
        ``marksFrom`` on.
        """
        assert self._rests_from is not None, "only one that rests may be told"
        self._take(_read_all(document))
        self._rests_from = self._saved[1]

    def _find_marks(self, start: int) -> Steps[None]:
        for found in self._store.marks_since(start):
            if found is None:
                yield
                continue
            source = found[1]
            raw = self._store.record_at(source)
            record = None if raw is None else decode_record(raw)
            if record is None or record.topic != topics.SCHEDULE_TOPIC:
                continue
            level = record.queue_id + 1
            if record.queue_offset >= self._offsets.get(level, 0):
                self._delivered.add(source)
                self._check_until[level] = max(self._check_until.get(level, 0), record.queue_offset + 1)

    def _note_marks(self) -> None:
        """From here on marks tell what was delivered; that is noted before the first delivery."""
        try:
            self.save(self.document())
        except StoreError as error:
            log.error("%s; tried again", error)

    def document(self) -> dict[str, object]:
        """To be saved as soon as the commit log is durable up to where it is now."""
        offsets = {level: self._offsets[level] for level in sorted(self._offsets)}
        marks_from = self._marks_from() if self._rests_from is None else self._rests_from
        return {"dataVersion": self.version, "marksFrom": marks_from, "offsetTable": _written(offsets)}

    def _marks_from(self) -> int:
        """From where on the log has to be looked through for deliveries that the offsets do not tell."""
        if self._check_until:
            return self._saved[1]  # the offsets have not passed all that was delivered before the last crash
        end, (offsets, marks_from) = self._store.max_commitlog_offset, self._saved
        if self._offsets == offsets and marks_from >= 0 and end - marks_from < _MARKS_BEHIND:
            return marks_from  # not worth a write
        return end

    def save(self, document: dict[str, object]) -> None:
        self._file.save(document)
        self._saved = _read(document)

    def progress(self) -> dict[int, tuple[int, int]]:
        """Level to (delivered offset, newest offset)."""
        return {level: (self._offsets.get(level, 0), queue.max_offset) for level, queue in self._queues()}

    def _queues(self) -> list[tuple[int, QueueLog]]:
        """Also those of levels that messageDelayLevel no longer has."""
        found = []
        for queue_id in self._store.queue_ids(topics.SCHEDULE_TOPIC):
            queue = self._store.find_queue(topics.SCHEDULE_TOPIC, queue_id)
            if queue is not None:
                found.append((queue_id + 1, queue))
        return found

    # -- delivering --------------------------------------------------------------------

    def tick(self) -> bool:
        """Delivers what has fallen due, for a few milliseconds at most; True if more may be due now."""
        if self._rests_from is not None or self._saved[1] < 0:
            return False  # the next save says that marks tell what was delivered
        more = self._deliver_due()
        return self._move_on() or more

    def _deliver_due(self) -> bool:
        until = self._clock.monotonic() + PIECE_SECONDS
        busy = {
            level: queue for level, queue in self._queues() if self._offsets.get(level, 0) != queue.max_offset
        }
        while busy:
            for level in list(busy):
                if not self._deliver(level, busy[level]):
                    del busy[level]
                if self._clock.monotonic() > until:
                    return bool(busy)
        return False

    def _deliver(self, level: int, queue: QueueLog) -> bool:
        """One batch of one level; True if more may be due."""
        offset = self._clamped(level, queue)
        now = self._clock.wall_ms()
        drafts: list[Draft] = []
        ends: list[int] = []
        """Behind which queue offset each draft's message lies."""
        size = 0
        position = offset
        entries = self._store.entries(topics.SCHEDULE_TOPIC, level - 1, offset, _BATCH)
        for commitlog_offset, entry_size, due in entries:
            if now < due and not self._overdue(level, due, now):
                break
            position += 1
            if entry_size == FILLER_SIZE or commitlog_offset in self._delivered:
                continue
            record = self._deliverer.record(commitlog_offset, topics.SCHEDULE_TOPIC)
            draft = None if record is None else self._deliverer.draft(record)
            if draft is not None:
                drafts.append(draft)
                ends.append(position)
                size += entry_size
                if size > _BATCH_BYTES:
                    break
        settled = self._deliverer.put(drafts) if drafts else 0
        if settled < len(drafts):
            self._passed(level, ends[settled - 1] if settled else offset)
            return False
        self._passed(level, position)
        return position < queue.max_offset and position - offset > 0

    def _clamped(self, level: int, queue: QueueLog) -> int:
        offset = max(queue.min_offset, min(self._offsets.get(level, 0), queue.max_offset))
        self._passed(level, offset)
        return offset

    def _overdue(self, level: int, due: int, now: int) -> bool:
        """Whether a message that is not due by the clock has waited as long as its level says.

        Nothing can be due later than now and the level's delay, unless the clock was set back: then it waits for
        that long from the moment this shows.
        """
        delay_ms = self._writer.delay_levels.get(level)
        if delay_ms is None or due <= now + delay_ms:
            self._set_back.pop(level, None)
            return False
        since = self._set_back.setdefault(level, self._clock.monotonic())
        return self._clock.monotonic() - since >= delay_ms / 1000

    def _passed(self, level: int, offset: int) -> None:
        """The level has come to this queue offset."""
        self._offsets[level] = offset
        if offset >= self._check_until.get(level, offset + 1):
            del self._check_until[level]
            if not self._check_until:
                self._delivered.clear()

    # -- making room -------------------------------------------------------------------

    def keep(self, limit: int) -> int:
        """Asked before the log's files below ``limit`` go: below which offset nothing waits.

        What waits below is put again, in this and the next ticks, as a timer for the same moment, which can wait
        further on in the log; its old place may go when that is durable.
        """
        if self._rests_from is not None:
            return limit
        if self._store.flushed_offset >= self._moved_end:
            self._moved_from = limit
        self._move_to = limit
        self._move_on()
        lowest = min((self._lowest(level, queue) for level, queue in self._queues()), default=limit)
        return min(limit, lowest, self._moved_from)

    def _move_on(self) -> bool:
        """Puts messages again that wait where the log is to end, for a few milliseconds; True if there are more."""
        until = self._clock.monotonic() + PIECE_SECONDS
        for level, queue in self._queues() if self._move_to else ():
            while (lowest := self._lowest(level, queue)) < self._move_to:
                if self._clock.monotonic() > until:
                    return True
                if not self._move(level, self._move_to):
                    return False
                self._moved_from = min(self._moved_from, lowest)
                self._moved_end = self._store.max_commitlog_offset
        self._move_to = 0
        return False

    def _lowest(self, level: int, queue: QueueLog) -> int:
        """Where the level's next message lies in the log."""
        entries = self._store.entries(topics.SCHEDULE_TOPIC, level - 1, self._clamped(level, queue), 1)
        return entries[0][0] if entries else self._store.max_commitlog_offset

    def _move(self, level: int, limit: int) -> bool:
        """Puts a few of the level's messages below ``limit`` again; False if the store refuses."""
        offset = position = self._offsets[level]
        drafts: list[Draft] = []
        ends: list[int] = []
        for commitlog_offset, size, due in self._store.entries(
            topics.SCHEDULE_TOPIC, level - 1, offset, _BATCH
        ):
            if commitlog_offset >= limit and size != FILLER_SIZE:
                break
            position += 1
            if size == FILLER_SIZE or commitlog_offset in self._delivered:
                continue
            record = self._deliverer.record(commitlog_offset, topics.SCHEDULE_TOPIC)
            if record is not None:
                drafts.append(waiting_copy(record, due))
                ends.append(position)
        settled = self._deliverer.put(drafts, making_room=True) if drafts else 0
        if settled < len(drafts):
            self._passed(level, ends[settled - 1] if settled else offset)
            return False
        self._passed(level, position)
        return True
