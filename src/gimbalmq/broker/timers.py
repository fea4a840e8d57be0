"""Messages for a moment of the client's choice, on Apache 5.x's own files: a wheel of seconds over a log of timers.

A record of the timer topic is entered into the wheel once. When its second comes, the timers of that second are
looked up and delivered, each at its millisecond (``timer_delivery``). Nothing is kept in memory for a timer before its
second begins. All work is done in pieces of a few milliseconds, and whatever the store refuses is tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from gimbalmq._clock import Clock
from gimbalmq._steps import Steps
from gimbalmq.broker.redelivery import Deliverer
from gimbalmq.broker.stats import Stats
from gimbalmq.broker.timer_delivery import BATCH, TimerDelivery
from gimbalmq.broker.timer_moves import TimerMoves
from gimbalmq.broker.timer_progress import TimerProgress, end_of_piece
from gimbalmq.broker.timer_records import due_ms
from gimbalmq.broker.versions import next_version
from gimbalmq.errors import StoreError
from gimbalmq.model import properties as prop
from gimbalmq.model import topics
from gimbalmq.model.javahash import java_hash
from gimbalmq.model.queue_entry import FILLER_SIZE
from gimbalmq.protocol.bodies import DataVersion
from gimbalmq.store.message_store import MessageStore
from gimbalmq.store.timer_files import TimerCheck, TimerFiles
from gimbalmq.store.timer_log import DELETE, PLAIN, ROLL, Unit
from gimbalmq.store.timer_wheel import SLOTS, Slot

log = logging.getLogger(__name__)

SAVE_SECONDS = 1.0
_WINDOW_SECONDS = SLOTS // 2 - 60
"""A timer further away than that waits in two stages."""
_MAX_UNSAVED_BYTES = 8 << 20
_NEIGHBOURS = 60
_MARKS_BEHIND = 64 << 20
_READ_BEHIND_MS = 10_000
"""How much further a master may have come before its slave writes that down."""


class Timers:
    """Java: TimerMessageStore."""

    def __init__(
        self, root: Path, store: MessageStore, deliverer: Deliverer, stats: Stats, clock: Clock
    ) -> None:
        self._files = TimerFiles(root, store.files)
        self._wheel, self._log = self._files.wheel, self._files.log
        self._store = store
        self._deliverer = deliverer
        self._clock = clock
        self.entered = stats.item("TIMER_ENQUEUE_NUMS", "timers")
        self.delivered = stats.item("TIMER_DEQUEUE_NUMS", "timers")
        self._progress = TimerProgress(self._files, store)
        self._delivery = TimerDelivery(self._files, deliverer, self._progress, self.delivered, clock)
        self._moves = TimerMoves(self._files, store, deliverer, self._progress, clock)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="timers")
        self._saving = False
        self._save_failed = False
        self._is_resting = True
        self._rests: TimerCheck | None = None
        """While it rests: from where on it would go on; None if nobody has said."""
        self._version = DataVersion(timestamp=clock.wall_ms())
        self._versioned = (0, 0)

    def __len__(self) -> int:
        """How many wait."""
        return self._progress.pending

    def delete_only_in_own_topic(self, wanted: bool) -> None:
        """Whether a message takes back only timers of its own topic. In Apache's broker it takes back that of any."""
        self._delivery.only_own_topic = wanted

    # -- life --------------------------------------------------------------------------

    def load(self) -> None:
        """Takes up the files of the folder; nothing is entered or delivered before ``go_on``."""
        self._rests, self._progress.pending = self._files.load()
        self._is_resting = True
        # What was saved is no progress of this start: somebody else may have come further meanwhile.
        check = self._check()
        self._versioned = (check.read_ms, check.queue_offset)

    def go_on(self, *, promoted: bool = False) -> Steps[None]:
        """Finds out what has been delivered already, in steps; then ``tick`` does the rest.

        Args:
            promoted: this was a slave. If it has never heard how far its master had come, the whole log tells.
        """
        check = self._rests
        if check is None and promoted:
            check = TimerCheck(marks_from=0)
        if check is not None and check.marks_from > self._store.max_commitlog_offset:
            # The log was cut: what is noted as delivered may have gone with its end. The log tells.
            self._files.empty()
            self._progress.pending = 0
            check = TimerCheck(marks_from=0)
        self._progress.begin(self._clock.wall_ms() // 1000)
        if check is not None:
            yield from self._progress.go_on_from(check)
        self._is_resting, self._rests = False, None
        if check is None or check.marks_from < 0:
            self._note_marks()

    def rest(self) -> None:
        """Neither enters nor delivers anything from now on; somebody else may."""
        if not self._is_resting:
            self._rests = self._check()
            self._is_resting = True
            self._delivery.slot = None

    def _note_marks(self) -> None:
        """From here on marks tell what was delivered; that is noted before the first delivery."""
        write = self._files.prepare_save(self._check())
        if write is not None:
            done = False
            try:
                write()
                done = True
            except StoreError as error:
                log.error("%s; tried again", error)
            finally:
                self._files.ended(done)

    # -- replicas ----------------------------------------------------------------------

    @property
    def is_resting(self) -> bool:
        """Whether somebody else is the master and delivers."""
        return self._is_resting

    def progress(self) -> TimerCheck:
        """How far timers have come, for a slave; at a slave, how far its master had."""
        return self._check()

    @property
    def version(self) -> DataVersion:
        """Of the progress as it is now; it grows when somebody asks for it and there is some."""
        check = self._check()
        if self._versioned != (check.read_ms, check.queue_offset):
            self._versioned = (check.read_ms, check.queue_offset)
            self._version = next_version(self._version, self._clock)
        return self._version

    def copy(self, check: TimerCheck) -> bool:
        """While it rests: takes the progress of the master, whose log this broker has, in the place of its own.

        The master's wheel is not copied: ``go_on`` fills ours from the queue again.

        Returns:
            Whether it was taken; not while files are being saved.

        Raises:
            StoreError: the files cannot be emptied.
        """
        progress = self._progress
        assert self._is_resting, "only one that rests may be told"
        if self._log.end or progress.pending:
            if self._files.is_saving:
                return False
            self._files.empty()
            progress.pending = 0
        self._rests = replace(
            check,
            queue_offset=0,
            log_end=0,
            fill_until=max(check.queue_offset, check.fill_until),
            filled_from_ms=check.filled_from_ms or check.read_ms,
        )
        return True

    def waiting_by_topic(self, names: Iterable[str]) -> Steps[dict[str, int]]:
        """How many timers of each of these topics wait."""
        hashes: dict[int, str] = {}
        for number, name in enumerate(names, 1):
            hashes[java_hash(name)] = name
            if number % 64 == 0:
                yield
        counts: dict[str, int] = {}
        position, steps = self._log.skip_blank(self._log.first), 0
        while position < self._log.end:
            unit = self._log.unit(position)
            topic = None if unit is None else hashes.get(unit.topic)
            if unit is not None and topic is not None and self._progress.waits(unit.due_ms // 1000, position):
                counts[topic] = counts.get(topic, 0) + 1
            position = self._log.after(position)
            steps += 1
            if steps % 64 == 0:
                yield
        return counts

    def _check(self) -> TimerCheck:
        if self._is_resting:
            return self._rests or self._files.saved
        return self._progress.check()

    async def save(self, flush: Callable[[], Awaitable[object]]) -> None:
        """Saves how far timers have come; what that relies on in the commit log is made durable by ``flush`` first."""
        if self._saving or not self._worth_saving():
            return
        write = self._files.prepare_save(self._check())
        if write is None:
            return
        self._saving = True
        try:
            await flush()
            await asyncio.get_running_loop().run_in_executor(self._executor, write)
        except StoreError as error:
            if not self._save_failed:
                log.error("the progress of timers cannot be saved: %s; tried again", error)
            self._save_failed = True
        else:
            self._save_failed = False
        # Not after a cancellation: the thread may be at it still, and ``close`` waits for it.
        self._saved(not self._save_failed)

    def _worth_saving(self) -> bool:
        """Whether anything came or went, or so much else was stored that looking for marks would take long."""
        progress = self._progress
        saved = self._files.saved
        if self._is_resting:
            resting = self._rests or saved
            return (
                resting.fill_until != saved.fill_until
                or resting.read_ms - saved.read_ms > _READ_BEHIND_MS
                or resting.marks_from - saved.marks_from > _MARKS_BEHIND
            )
        return (
            saved.marks_from < 0
            or self._log.waiting > 0
            or self._wheel.changes > 0
            or progress.queue_offset != saved.queue_offset
            or progress.moved_below != saved.moved_below
            or progress.marks_from - saved.marks_from > _MARKS_BEHIND
        )

    def _saved(self, done: bool) -> None:
        progress = self._progress
        self._saving = False
        self._files.ended(done)
        if done:
            if self._files.saved.moved_below >= progress.move_to:
                progress.move_marks = -1
            self._log.drop_before(self._store.min_commitlog_offset)

    def close(self) -> None:
        """Saves; raises StoreError if that fails."""
        self._executor.shutdown(wait=True)
        try:
            if self._saving:
                self._saved(False)  # it was cancelled; what it wrote is written again
            self._store.flush()
            write = self._files.prepare_save(self._check())
            if write is not None:
                write()
                self._files.ended(True)
        finally:
            self._files.close()

    def abandon(self) -> None:
        """Lets go without writing."""
        self._executor.shutdown(wait=True)
        self._files.close()

    # -- what brokerStatus shows -------------------------------------------------------

    @property
    def seconds_behind(self) -> int:
        if self._is_resting:
            return 0
        return max(0, self._clock.wall_ms() // 1000 - self._progress.second)

    @property
    def offsets_behind(self) -> int:
        queue = self._store.find_queue(topics.TIMER_TOPIC, 0)
        return 0 if queue is None else max(0, queue.max_offset - self._progress.queue_offset)

    # -- work --------------------------------------------------------------------------

    def tick(self) -> bool:
        """Works for a few milliseconds at most; True if there is more to do now."""
        if self._is_resting:
            return False
        more = self._enter_new()
        if self._files.saved.marks_from < 0:
            return more  # the next save says that marks tell what was delivered
        more = self._delivery.deliver_due() or more
        return self._moves.move_on() or more

    # -- into the wheel ----------------------------------------------------------------

    def _enter_new(self) -> bool:
        """Enters new records of the timer topic; True if there are more."""
        progress = self._progress
        queue = self._store.find_queue(topics.TIMER_TOPIC, 0)
        if queue is None:
            return False
        progress.queue_offset = max(queue.min_offset, min(progress.queue_offset, queue.max_offset))
        until = end_of_piece(self._clock)
        while progress.queue_offset < queue.max_offset:
            if self._log.waiting > _MAX_UNSAVED_BYTES:
                return False
            entries = self._store.entries(topics.TIMER_TOPIC, 0, progress.queue_offset, BATCH)
            for offset, size, _ in entries:
                if size != FILLER_SIZE and not self._enter(offset, size):
                    return False
                progress.queue_offset += 1
            if not entries:
                progress.queue_offset += 1  # its file is gone
            if self._clock.monotonic() > until:
                return progress.queue_offset < queue.max_offset
        return False

    def _enter(self, offset: int, size: int) -> bool:
        """Enters one record; False if its place in the wheel is taken by another round's."""
        progress = self._progress
        record = self._deliverer.record(offset, topics.TIMER_TOPIC)
        if record is None or progress.is_over(offset):
            return True
        due = due_ms(record)
        if progress.queue_offset < progress.fill_until and due < progress.filled_from:
            return True
        wanted = min(max(due // 1000, progress.second), progress.second + _WINDOW_SECONDS)
        for second in range(wanted, max(progress.second, wanted - _NEIGHBOURS) - 1, -1):
            slot = self._wheel.at(second)
            if slot is None or slot.second == second:
                break
        else:
            return False
        magic = PLAIN
        if due // 1000 > second:
            magic |= ROLL
        if prop.TIMER_DELETE_UNIQ_KEY in record.properties:
            magic |= DELETE
        when = due if due // 1000 == second else second * 1000
        topic = java_hash(record.properties.get(prop.REAL_TOPIC, ""))
        now = min(self._clock.wall_ms(), when)
        previous = -1 if slot is None else slot.last
        position = self._log.append(previous, magic, max(now, when - 0x7FFFFFFF), when, offset, size, topic)
        if slot is None:
            self._wheel.put(Slot(second, position, position, 1, 0))
        else:
            self._wheel.put(slot._replace(last=position, number=slot.number + 1))
        progress.pending += 1
        self.entered.add()
        being_delivered = self._delivery.slot
        if being_delivered is not None and being_delivered.second == second:
            being_delivered.late.append((due, Unit(previous, magic, when, offset, size)))
            being_delivered.count += 1
        return True

    # -- making room -------------------------------------------------------------------

    def keep(self, limit: int) -> int:
        """Asked before the log's files below ``limit`` go: below which offset no timer waits.

        What waits below is put again in the next ticks; its old place may go when that is saved.
        """
        return limit if self._is_resting else self._moves.keep(limit)
