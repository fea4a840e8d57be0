"""How far timers have come: what was entered, what was delivered, and which records that is about.

What survives a crash is the check of the files as they were last saved, and the commit log. Records that came since are
entered again; messages delivered since are told by their marks (``store/marks``) and not delivered again.
"""

from __future__ import annotations

from gimbalmq._clock import Clock
from gimbalmq._steps import Steps
from gimbalmq.broker.delay_levels import PIECE_SECONDS
from gimbalmq.broker.timer_records import due_ms
from gimbalmq.model import topics
from gimbalmq.model.record import Record, decode_record
from gimbalmq.store.message_store import MessageStore
from gimbalmq.store.timer_files import TimerCheck, TimerFiles

_TIMER_TOPIC = topics.TIMER_TOPIC.encode()


def end_of_piece(clock: Clock) -> float:
    """Until when a piece of work may take."""
    return clock.monotonic() + PIECE_SECONDS / 2


class TimerProgress:
    """Written by those who enter, deliver and move timers.

    Attributes:
        queue_offset: records of the timer topic before this one are entered.
        fill_until: records before this queue offset are entered again because the files were lost. Those of them that
            were due before ``filled_from`` had been delivered.
        second: every timer of a second before this one was delivered.
        marks_from: marks of what was delivered of this second lie in the log from here on.
        pending: how many wait.
        known: records that were delivered, or put again, between the last save of progress and the last crash, and
            those that were put again since.
        known_from: the marks of ``known`` begin here in the log; -1 if none of its records can turn up any more.
        known_until: no record of ``known`` is due after this second.
        known_queue: no record of ``known`` lies at this queue offset or behind it.
        moved_below: timers whose records lie before this offset of the log were put again.
        move_to: those before this one are to be.
        move_at: how far the timer log has been looked through for them.
        move_marks: where the marks of a move that is not saved yet begin; -1 if there is none.
    """

    def __init__(self, files: TimerFiles, store: MessageStore) -> None:
        self._wheel, self._log = files.wheel, files.log
        self._store = store
        self.queue_offset = 0
        self.fill_until = self.filled_from = 0
        self.second = 0
        self.marks_from = 0
        self.pending = 0
        self.known: set[int] = set()
        self.known_from = -1
        self.known_until = self.known_queue = 0
        self.moved_below = self.move_to = self.move_at = 0
        self.move_marks = -1

    def begin(self, second: int) -> None:
        """Nothing is known but that every timer before this second was delivered."""
        self.second = second
        self.marks_from = self._store.max_commitlog_offset
        self.known.clear()
        self.known_from = self.move_marks = -1
        self.known_until = self.known_queue = self.move_to = self.move_at = 0

    def go_on_from(self, check: TimerCheck) -> Steps[None]:
        """Finds out what has been delivered already."""
        if self._log.end or self.pending:
            self.second = check.read_ms // 1000
        # Else the wheel is empty, and nothing lies between then and now.
        self.queue_offset = check.queue_offset
        self.moved_below = check.moved_below
        self.fill_until, self.filled_from = check.fill_until, check.filled_from_ms
        if check.log_end >= 0:
            self._catch_up_queue()
        else:
            self.queue_offset = 0
            self.fill_until = max(check.queue_offset, check.fill_until)
            self.filled_from = check.filled_from_ms or check.read_ms
        if check.marks_from >= 0:
            yield from self._find_marks(check.marks_from)

    def _catch_up_queue(self) -> None:
        """The queue offset behind the newest timer of the log, if that is further than the note says."""
        newest = self._log.newest()
        record = None if newest is None else self._timer_at(newest.offset)
        if record is not None:
            self.queue_offset = max(self.queue_offset, record.queue_offset + 1)

    def _find_marks(self, start: int) -> Steps[None]:
        self.marks_from = start
        for found in self._store.marks_since(start):
            if found is None:
                yield
                continue
            topic, source = found
            record = self._timer_at(source)
            if record is None:
                continue
            self.known.add(source)
            if topic == _TIMER_TOPIC:
                # Timers were being put again: that is finished first.
                self.move_marks = start
                self.move_to = max(self.move_to, source + 1)
                self.move_at = self._log.first
            else:
                self.known_from = start
                self.known_until = max(self.known_until, self.second, due_ms(record) // 1000)
        queue = self._store.find_queue(topics.TIMER_TOPIC, 0)
        self.known_queue = 0 if queue is None else queue.max_offset

    def _timer_at(self, offset: int) -> Record | None:
        raw = self._store.record_at(offset)
        record = None if raw is None else decode_record(raw)
        return record if record is not None and record.topic == topics.TIMER_TOPIC else None

    def check(self) -> TimerCheck:
        """What is to be saved of it."""
        needed = [start for start in (self.known_from, self.move_marks) if start >= 0]
        filling = self.queue_offset < self.fill_until
        return TimerCheck(
            read_ms=self.second * 1000,
            log_end=self._log.end,
            queue_offset=self.queue_offset,
            marks_from=min([self.marks_from, *needed]),
            moved_below=self.moved_below,
            fill_until=self.fill_until if filling else 0,
            filled_from_ms=self.filled_from if filling else 0,
        )

    def go_to(self, second: int) -> None:
        """Every timer before this second was delivered."""
        self.second = second
        self.marks_from = self._store.max_commitlog_offset
        if second > self.known_until and self.queue_offset >= self.known_queue:
            self.known_from = -1
            if self.move_marks < 0:
                self.known.clear()

    def is_over(self, offset: int) -> bool:
        """Whether the timer of this record was delivered or put again."""
        return offset < self.moved_below or offset in self.known

    def waits(self, second: int, position: int) -> bool:
        """Whether a timer of the log is in the wheel: not if it was delivered, even if the clock was set back since."""
        slot = self._wheel.at(second) if second > self.second else None
        return slot is not None and slot.second == second and slot.first <= position <= slot.last

    def next_record(self) -> int:
        """Where in the log the next record lies that is to be entered; the log's end if there is none."""
        entries = self._store.entries(topics.TIMER_TOPIC, 0, self.queue_offset, 1)
        return entries[0][0] if entries else self._store.max_commitlog_offset
