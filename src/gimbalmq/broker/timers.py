"""Messages for a moment of the client's choice, on Apache 5.x's own files: a wheel of seconds over a log of timers.

A record of the timer topic is entered into the wheel once (``_enter``). When its second comes, the timers of that
second are looked up (``_walk``) and delivered, each at its millisecond. Nothing is kept in memory for a timer before
its second begins. All work is done in pieces of a few milliseconds, and whatever the store refuses is tried again.

What survives a crash: the files as they were last saved, and the commit log. Records that came since are entered
again; messages delivered since are told by their marks (``store/marks``) and not delivered again.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from array import array
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from gimbalmq._clock import Clock
from gimbalmq._steps import Steps
from gimbalmq.broker.delay_levels import PIECE_SECONDS
from gimbalmq.broker.redelivery import Deliverer, waiting_copy
from gimbalmq.broker.stats import Stats
from gimbalmq.broker.versions import next_version
from gimbalmq.broker.writer import Draft
from gimbalmq.errors import StoreError
from gimbalmq.model import properties as prop
from gimbalmq.model import topics
from gimbalmq.model.javahash import java_hash
from gimbalmq.model.queue_entry import FILLER_SIZE
from gimbalmq.model.record import Record, decode_record
from gimbalmq.protocol.bodies import DataVersion
from gimbalmq.store.marks import source_of
from gimbalmq.store.message_store import MessageStore
from gimbalmq.store.timer_files import TimerCheck, TimerFiles
from gimbalmq.store.timer_log import DELETE, PLAIN, ROLL, Unit
from gimbalmq.store.timer_wheel import SLOTS, Slot

log = logging.getLogger(__name__)

SAVE_SECONDS = 1.0
_BATCH = 32
_BATCH_BYTES = 256 * 1024
_WINDOW_SECONDS = SLOTS // 2 - 60
"""A timer further away than that waits in two stages."""
_MAX_UNSAVED_BYTES = 8 << 20
_LATER_MS = 60_000
"""A message that turns out to be due so little later waits in memory."""
_SOON_MS = 1_000
"""So little later that it holds up others hardly; what is due after that waits in the wheel if its place is free."""
_NEIGHBOURS = 60
_MARKS_BEHIND = 64 << 20
_READ_BEHIND_MS = 10_000
"""How much further a master may have come before its slave writes that down."""
_TIMER_TOPIC = topics.TIMER_TOPIC.encode()


class Timers:
    """Java: TimerMessageStore."""

    def __init__(
        self, root: Path, store: MessageStore, deliverer: Deliverer, stats: Stats, clock: Clock
    ) -> None:
        self._files = TimerFiles(root, store.files)
        self._wheel, self._log = self._files.wheel, self._files.log
        self._store = store
        self._deliverer = deliverer
        self.only_own_topic = False
        """A message takes back only timers of its own topic. In Apache's broker it takes back that of any topic."""
        self._clock = clock
        self.entered = stats.item("TIMER_ENQUEUE_NUMS", "timers")
        self.delivered = stats.item("TIMER_DEQUEUE_NUMS", "timers")
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="timers")
        self._saving = False
        self._save_failed = False
        self._queue_offset = 0
        self._fill_until = 0
        """Records before this queue offset are entered again because the files were lost. Those of them that were due
        before ``_filled_from`` had been delivered."""
        self._filled_from = 0
        self._second = 0
        """Every timer of a second before this one was delivered."""
        self._marks_from = 0
        """Marks of what was delivered of this second lie in the log from here on."""
        self._pending = 0
        self._known: set[int] = set()
        """Records that were delivered, or put again, between the last save of progress and the last crash."""
        self._known_from = -1
        """The marks of ``_known`` begin here in the log; -1 if none of its records can turn up any more."""
        self._known_until = 0
        """No record of ``_known`` is due after this second."""
        self._known_queue = 0
        """No record of ``_known`` lies at this queue offset or behind it."""
        self._slot: _OpenSlot | None = None
        self._is_resting = True
        self._rests: TimerCheck | None = None
        """While it rests: from where on it would go on; None if nobody has said."""
        self._moved_below = 0
        self._move_to = 0
        self._move_at = 0
        """How far the timer log has been looked through for timers to move."""
        self._move_marks = -1
        """Where the marks of a move that is not saved yet begin."""
        self._lap_end = 0
        """Timers put again since ``_lap_bytes`` was 0 lie behind this offset of the log."""
        self._lap_bytes = 0
        self._lap_timers = 0
        self._lap_told = False
        self._version = DataVersion(timestamp=clock.wall_ms())
        self._versioned = (0, 0)

    def __len__(self) -> int:
        """How many wait."""
        return self._pending

    # -- life --------------------------------------------------------------------------

    def load(self) -> None:
        """Takes up the files of the folder; nothing is entered or delivered before ``go_on``."""
        self._rests, self._pending = self._files.load()
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
            self._pending = 0
            check = TimerCheck(marks_from=0)
        self._second = self._clock.wall_ms() // 1000
        self._marks_from = self._store.max_commitlog_offset
        self._known.clear()
        self._known_from = self._move_marks = -1
        self._known_until = self._known_queue = self._move_to = self._move_at = 0
        if check is not None:
            yield from self._go_on_from(check)
        self._is_resting, self._rests = False, None
        if check is None or check.marks_from < 0:
            self._note_marks()

    def rest(self) -> None:
        """Neither enters nor delivers anything from now on; somebody else may."""
        if not self._is_resting:
            self._rests = self._check()
            self._is_resting = True
            self._slot = None

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

    def _go_on_from(self, check: TimerCheck) -> Steps[None]:
        if self._log.end or self._pending:
            self._second = check.read_ms // 1000
        # Else the wheel is empty, and nothing lies between then and now.
        self._queue_offset = check.queue_offset
        self._moved_below = check.moved_below
        self._fill_until, self._filled_from = check.fill_until, check.filled_from_ms
        if check.log_end >= 0:
            self._catch_up_queue()
        else:
            self._queue_offset = 0
            self._fill_until = max(check.queue_offset, check.fill_until)
            self._filled_from = check.filled_from_ms or check.read_ms
        if check.marks_from >= 0:
            yield from self._find_marks(check.marks_from)

    def _catch_up_queue(self) -> None:
        """The queue offset behind the newest timer of the log, if that is further than the note says."""
        newest = self._log.newest()
        record = None if newest is None else self._timer_at(newest.offset)
        if record is not None:
            self._queue_offset = max(self._queue_offset, record.queue_offset + 1)

    def _find_marks(self, start: int) -> Steps[None]:
        self._marks_from = start
        for found in self._store.marks_since(start):
            if found is None:
                yield
                continue
            topic, source = found
            record = self._timer_at(source)
            if record is None:
                continue
            self._known.add(source)
            if topic == _TIMER_TOPIC:
                # Timers were being put again: that is finished first.
                self._move_marks = start
                self._move_to = max(self._move_to, source + 1)
                self._move_at = self._log.first
            else:
                self._known_from = start
                self._known_until = max(self._known_until, self._second, due_ms(record) // 1000)
        queue = self._store.find_queue(topics.TIMER_TOPIC, 0)
        self._known_queue = 0 if queue is None else queue.max_offset

    def _timer_at(self, offset: int) -> Record | None:
        raw = self._store.record_at(offset)
        record = None if raw is None else decode_record(raw)
        return record if record is not None and record.topic == topics.TIMER_TOPIC else None

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
        assert self._is_resting, "only one that rests may be told"
        if self._log.end or self._pending:
            if self._files.is_saving:
                return False
            self._files.empty()
            self._pending = 0
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
            if unit is not None and topic is not None and self._waits(unit.due_ms // 1000, position):
                counts[topic] = counts.get(topic, 0) + 1
            position = self._log.after(position)
            steps += 1
            if steps % 64 == 0:
                yield
        return counts

    def _check(self) -> TimerCheck:
        if self._is_resting:
            return self._rests or self._files.saved
        needed = [start for start in (self._known_from, self._move_marks) if start >= 0]
        filling = self._queue_offset < self._fill_until
        return TimerCheck(
            read_ms=self._second * 1000,
            log_end=self._log.end,
            queue_offset=self._queue_offset,
            marks_from=min([self._marks_from, *needed]),
            moved_below=self._moved_below,
            fill_until=self._fill_until if filling else 0,
            filled_from_ms=self._filled_from if filling else 0,
        )

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
            or self._queue_offset != saved.queue_offset
            or self._moved_below != saved.moved_below
            or self._marks_from - saved.marks_from > _MARKS_BEHIND
        )

    def _saved(self, done: bool) -> None:
        self._saving = False
        self._files.ended(done)
        if done:
            if self._files.saved.moved_below >= self._move_to:
                self._move_marks = -1
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
        return max(0, self._clock.wall_ms() // 1000 - self._second)

    @property
    def offsets_behind(self) -> int:
        queue = self._store.find_queue(topics.TIMER_TOPIC, 0)
        return 0 if queue is None else max(0, queue.max_offset - self._queue_offset)

    # -- work --------------------------------------------------------------------------

    def tick(self) -> bool:
        """Works for a few milliseconds at most; True if there is more to do now."""
        if self._is_resting:
            return False
        more = self._enter_new()
        if self._files.saved.marks_from < 0:
            return more  # the next save says that marks tell what was delivered
        more = self._deliver_due() or more
        return self._move_on() or more

    def _until(self) -> float:
        return self._clock.monotonic() + PIECE_SECONDS / 2

    # -- into the wheel ----------------------------------------------------------------

    def _enter_new(self) -> bool:
        """Enters new records of the timer topic; True if there are more."""
        queue = self._store.find_queue(topics.TIMER_TOPIC, 0)
        if queue is None:
            return False
        self._queue_offset = max(queue.min_offset, min(self._queue_offset, queue.max_offset))
        until = self._until()
        while self._queue_offset < queue.max_offset:
            if self._log.waiting > _MAX_UNSAVED_BYTES:
                return False
            entries = self._store.entries(topics.TIMER_TOPIC, 0, self._queue_offset, _BATCH)
            for offset, size, _ in entries:
                if size != FILLER_SIZE and not self._enter(offset, size):
                    return False
                self._queue_offset += 1
            if not entries:
                self._queue_offset += 1  # its file is gone
            if self._clock.monotonic() > until:
                return self._queue_offset < queue.max_offset
        return False

    def _enter(self, offset: int, size: int) -> bool:
        """Enters one record; False if its place in the wheel is taken by another round's."""
        record = self._deliverer.record(offset, topics.TIMER_TOPIC)
        if record is None or offset < self._moved_below or offset in self._known:
            return True
        due = due_ms(record)
        if self._queue_offset < self._fill_until and due < self._filled_from:
            return True
        wanted = min(max(due // 1000, self._second), self._second + _WINDOW_SECONDS)
        for second in range(wanted, max(self._second, wanted - _NEIGHBOURS) - 1, -1):
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
        self._pending += 1
        self.entered.add()
        if self._slot is not None and self._slot.second == second:
            self._slot.late.append((due, Unit(previous, magic, when, offset, size)))
            self._slot.count += 1
        return True

    # -- out of the wheel --------------------------------------------------------------

    def _deliver_due(self) -> bool:
        """Delivers what is due; True if more is due now."""
        until = self._until()
        while True:
            now = self._clock.wall_ms()
            second = now // 1000
            # A clock that was set back: what this second holds was due already.
            set_back = second < self._second - 1
            if self._slot is None and not self._open_next(second, set_back):
                return False
            slot = self._slot
            if slot is None:
                if self._clock.monotonic() > until:
                    return True
                continue
            if not self._walk(slot, until):
                return True
            slot.refused = False
            if not self._deliver(slot, (slot.second + 2) * 1000 if set_back else now, until):
                return not slot.refused
            if slot.times or slot.late or not (set_back or self._second < second):
                return False  # the rest of the second is yet to come
            self._wheel.clear(slot.second)
            self._settled(slot, slot.count)
            self._slot = None
            self._go_to(self._second + 1)

    def _go_to(self, second: int) -> None:
        self._second = second
        self._marks_from = self._store.max_commitlog_offset
        if second > self._known_until and self._queue_offset >= self._known_queue:
            self._known_from = -1
            if self._move_marks < 0:
                self._known.clear()

    def _open_next(self, second: int, set_back: bool) -> bool:
        """Goes on to the next second that has timers, at most to the present one; False if that has none."""
        if set_back:
            self._go_to(second)
        if self._second > second:
            return False
        if self._second < second:
            empty = self._wheel.empty_until(self._second)
            if empty:
                self._go_to(min(self._second + empty, second))
                return True
        found = self._wheel.at(self._second)
        if found is not None and found.second <= self._second:
            self._slot = _OpenSlot(found)
        elif self._second < second:
            self._go_to(self._second + 1)
        else:
            return False
        return True

    def _walk(self, slot: _OpenSlot, until: float) -> bool:
        """Looks up the timers of the second, newest first; False if time ran out."""
        steps = 0
        while slot.next >= 0:
            unit = self._log.unit(slot.next)
            if unit is None:
                if slot.next >= self._log.first:
                    log.error("the timer log has no timer at %d; those before it are passed over", slot.next)
                slot.next = -1
                break
            self._take(slot, unit, unit.due_ms)
            slot.next = unit.previous if unit.previous < slot.next else -1
            steps += 1
            if steps % 64 == 0 and self._clock.monotonic() > until:
                return False
        if not slot.walked:
            slot.walked = True
            for offsets in slot.due.values():
                offsets.reverse()
        while slot.late:
            due, unit = slot.late[0]
            self._take(slot, unit, due)
            slot.late.popleft()
        return True

    def _settled(self, slot: _OpenSlot, count: int) -> None:
        slot.count -= count
        self._pending -= count

    def _take(self, slot: _OpenSlot, unit: Unit, due: int) -> None:
        if unit.offset < self._moved_below or unit.offset in self._known:
            self._settled(slot, 1)
            return
        if unit.magic & DELETE and not unit.magic & ROLL:
            record = self._deliverer.record(unit.offset, topics.TIMER_TOPIC)
            if record is not None:
                slot.deleted.add(self._deleted_by(record))
            self._settled(slot, 1)
            return
        slot.add(due, unit.offset)

    def _deleted_by(self, record: Record) -> str:
        """The key of the timer that a message takes back."""
        key = record.properties.get(prop.TIMER_DELETE_UNIQ_KEY, "")
        of_topic = f"{record.properties.get(prop.REAL_TOPIC)}+"
        return f"{of_topic}{key}" if self.only_own_topic and not key.startswith(of_topic) else key

    def _deliver(self, slot: _OpenSlot, now: int, until: float) -> bool:
        """Delivers what of the second is due; False if time ran out or the store refuses."""
        while slot.times and slot.times[0] <= now:
            offsets = slot.due[slot.times[0]]
            drafts: list[Draft] = []
            ends: list[int] = []
            size, end = 0, slot.at
            unread: StoreError | None = None
            while end < len(offsets) and len(drafts) < _BATCH and size < _BATCH_BYTES:
                try:
                    draft = self._draft(slot, offsets[end], now)
                except StoreError as error:
                    unread = error  # after those before it, which must not be looked at again
                    break
                end += 1
                if draft is not None:
                    drafts.append(draft)
                    ends.append(end)
                    size += len(draft.body)
            settled = self._deliverer.put(drafts) if drafts else 0
            self.delivered.add(settled)
            if settled < len(drafts):
                end = ends[settled - 1] if settled else slot.at
            self._settled(slot, end - slot.at)
            slot.at = end
            if settled < len(drafts):
                slot.refused = True
                return False
            if unread is not None:
                raise unread
            if end == len(offsets):
                del slot.due[heapq.heappop(slot.times)]
                slot.at = 0
            if self._clock.monotonic() > until:
                return not slot.times
        return True

    def _draft(self, slot: _OpenSlot, offset: int, now: int) -> Draft | None:
        record = self._deliverer.record(offset, topics.TIMER_TOPIC)
        if record is None:
            return None
        due = due_ms(record)
        if due > now:
            place = self._wheel.at(due // 1000)
            is_free = place is None or place.second == due // 1000
            if due <= now + (_SOON_MS if is_free else _LATER_MS):
                slot.add(due, offset)
                self._settled(slot, -1)
                return None
            return waiting_copy(record, due)
        if slot.deleted and _is_deleted(record, slot.deleted):
            return None
        return self._deliverer.draft(record)

    # -- making room -------------------------------------------------------------------

    def keep(self, limit: int) -> int:
        """Asked before the log's files below ``limit`` go: below which offset no timer waits.

        What waits below is put again in the next ticks; its old place may go when that is saved.
        """
        queue = self._store.find_queue(topics.TIMER_TOPIC, 0)
        if queue is None or self._is_resting:
            return limit
        kept = min(limit, self._next_record())
        first = self._log.unit(self._log.first)
        if first is None or first.offset >= limit or self._files.saved.moved_below >= limit:
            return kept
        limit = self._worth_moving(limit)
        if limit > self._move_to:
            self._move_to = limit
            self._move_at = self._log.first
        return min(kept, max(self._files.saved.moved_below, self._store.min_commitlog_offset))

    def _move_on(self) -> bool:
        """Puts timers again whose records lie where the log is to end; True if there are more."""
        if self._moved_below >= self._move_to:
            return False
        if self._move_marks < 0:
            self._move_marks = self._store.max_commitlog_offset
        until = self._until()
        while True:
            units: list[tuple[int, Draft]] = []
            size = 0
            position = self._log.skip_blank(self._move_at)
            finished = reached_end = False
            while len(units) < _BATCH and size < _BATCH_BYTES:
                unit = self._log.unit(position)
                if position >= self._log.end:
                    reached_end = True
                    finished = self._next_record() >= self._move_to
                    break
                if unit is not None and unit.offset >= self._move_to:
                    finished = True
                    break
                if unit is None:
                    log.error("the timer log has no timer at %d; passed over", position)
                    position = self._log.after(position)
                    continue
                second = unit.due_ms // 1000
                if second == self._second:
                    break  # it is being delivered
                if (
                    self._waits(second, position)
                    and unit.offset >= self._moved_below
                    and unit.offset not in self._known
                ):
                    record = self._deliverer.record(unit.offset, topics.TIMER_TOPIC)
                    if record is not None:
                        units.append((unit.size, waiting_copy(record, due_ms(record))))
                        size += unit.size
                position = self._log.after(position)
            settled = self._deliverer.put([draft for _, draft in units], making_room=True) if units else 0
            self._known.update(source_of(draft.prepared_offset) for _, draft in units[:settled])
            self._lap_timers += settled
            self._lap_bytes += sum(size for size, _ in units[:settled])
            if settled < len(units):
                return False
            if finished:
                self._moved_below = self._move_to
                return False
            if position == self._move_at or reached_end:
                self._move_at = position
                return False  # goes on when the second is over, or when those still in the queue were entered
            self._move_at = position
            if self._clock.monotonic() > until:
                return True

    def _worth_moving(self, limit: int) -> int:
        """Up to where putting timers again makes room: not if most of what would go is what was put again before.

        Else a disk that others fill would have all pending timers written again, round after round.
        """
        if limit <= self._lap_end:
            return limit
        still = min(self._lap_timers, self._pending) / self._lap_timers if self._lap_timers else 0.0
        end = self._store.max_commitlog_offset
        if 2 * self._lap_bytes * still > end - self._lap_end:
            if not self._lap_told:
                log.warning(
                    "most of the log are timers that wait: its files stay, since putting these again makes no room; "
                    "free the disk or add to it"
                )
            self._lap_told = True
            return self._lap_end
        self._lap_end, self._lap_bytes, self._lap_timers, self._lap_told = end, 0, 0, False
        return limit

    def _next_record(self) -> int:
        """Where in the log the next record lies that is to be entered; the log's end if there is none."""
        entries = self._store.entries(topics.TIMER_TOPIC, 0, self._queue_offset, 1)
        return entries[0][0] if entries else self._store.max_commitlog_offset

    def _waits(self, second: int, position: int) -> bool:
        """Whether a timer of the log is in the wheel: not if it was delivered, even if the clock was set back since."""
        slot = self._wheel.at(second) if second > self._second else None
        return slot is not None and slot.second == second and slot.first <= position <= slot.last


class _OpenSlot:
    """The second that is being delivered: its timers by millisecond, 8 bytes each."""

    __slots__ = ("at", "count", "deleted", "due", "late", "next", "refused", "second", "times", "walked")

    def __init__(self, slot: Slot) -> None:
        self.second = slot.second
        self.next = slot.last
        self.count = slot.number
        self.walked = False
        self.times: list[int] = []
        self.due: dict[int, array[int]] = {}
        self.at = 0
        """How many of the first millisecond's are settled."""
        self.late: deque[tuple[int, Unit]] = deque()
        """Came while the second was being walked or delivered."""
        self.deleted: set[str] = set()
        self.refused = False
        """The store takes nothing now."""

    def add(self, due: int, offset: int) -> None:
        offsets = self.due.get(due)
        if offsets is None:
            offsets = self.due[due] = array("q")
            if self.at and due < self.times[0]:
                # The first millisecond is under way: what comes for an earlier one joins it.
                del self.due[due]
                offsets = self.due[self.times[0]]
            else:
                heapq.heappush(self.times, due)
        offsets.append(offset)


def due_ms(record: Record) -> int:
    """When the record's message is due; 0 if it does not say.

    Apache's broker notes the second in which it looks at the timer, which is up to a second before the time the
    client gave: that time counts.
    """
    properties = record.properties
    due = _number(properties.get(prop.TIMER_OUT_MS))
    exact = _number(properties.get(prop.TIMER_DELIVER_MS))
    if not exact:
        delay = _number(properties.get(prop.TIMER_DELAY_SEC)) * 1000 or _number(
            properties.get(prop.TIMER_DELAY_MS)
        )
        exact = record.store_timestamp + delay if delay else 0
    return exact if due < exact <= due + 1000 else due


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 19 else 0


def _is_deleted(record: Record, deleted: set[str]) -> bool:
    key = record.properties.get(prop.UNIQ_KEY, "")
    return key in deleted or f"{record.properties.get(prop.REAL_TOPIC)}+{key}" in deleted
