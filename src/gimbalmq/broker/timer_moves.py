"""Timers put again: what waits in files of the log that are to go gets a new place at its end."""

from __future__ import annotations

import logging

from gimbalmq._clock import Clock
from gimbalmq.broker.redelivery import Deliverer, waiting_copy
from gimbalmq.broker.timer_delivery import BATCH, BATCH_BYTES
from gimbalmq.broker.timer_progress import TimerProgress, end_of_piece
from gimbalmq.broker.timer_records import due_ms
from gimbalmq.broker.writer import Draft
from gimbalmq.model import topics
from gimbalmq.store.marks import source_of
from gimbalmq.store.message_store import MessageStore
from gimbalmq.store.timer_files import TimerFiles

log = logging.getLogger(__name__)


class TimerMoves:
    """Makes room in the log."""

    def __init__(
        self,
        files: TimerFiles,
        store: MessageStore,
        deliverer: Deliverer,
        progress: TimerProgress,
        clock: Clock,
    ) -> None:
        self._files, self._log = files, files.log
        self._store = store
        self._deliverer = deliverer
        self._progress = progress
        self._clock = clock
        self._lap_end = 0
        """Timers put again since ``_lap_bytes`` was 0 lie behind this offset of the log."""
        self._lap_bytes = 0
        self._lap_timers = 0
        self._lap_told = False

    def keep(self, limit: int) -> int:
        """Asked before the log's files below ``limit`` go: below which offset no timer waits.

        What waits below is put again in the next ticks; its old place may go when that is saved.
        """
        progress = self._progress
        queue = self._store.find_queue(topics.TIMER_TOPIC, 0)
        if queue is None:
            return limit
        kept = min(limit, progress.next_record())
        first = self._log.unit(self._log.first)
        if first is None or first.offset >= limit or self._files.saved.moved_below >= limit:
            return kept
        limit = self._worth_moving(limit)
        if limit > progress.move_to:
            progress.move_to = limit
            progress.move_at = self._log.first
        return min(kept, max(self._files.saved.moved_below, self._store.min_commitlog_offset))

    def move_on(self) -> bool:
        """Puts timers again whose records lie where the log is to end; True if there are more."""
        progress = self._progress
        if progress.moved_below >= progress.move_to:
            return False
        if progress.move_marks < 0:
            progress.move_marks = self._store.max_commitlog_offset
        until = end_of_piece(self._clock)
        while True:
            units: list[tuple[int, Draft]] = []
            size = 0
            position = self._log.skip_blank(progress.move_at)
            finished = reached_end = False
            while len(units) < BATCH and size < BATCH_BYTES:
                unit = self._log.unit(position)
                if position >= self._log.end:
                    reached_end = True
                    finished = progress.next_record() >= progress.move_to
                    break
                if unit is not None and unit.offset >= progress.move_to:
                    finished = True
                    break
                if unit is None:
                    log.error("the timer log has no timer at %d; passed over", position)
                    position = self._log.after(position)
                    continue
                second = unit.due_ms // 1000
                if second == progress.second:
                    break  # it is being delivered
                if progress.waits(second, position) and not progress.is_over(unit.offset):
                    record = self._deliverer.record(unit.offset, topics.TIMER_TOPIC)
                    if record is not None:
                        units.append((unit.size, waiting_copy(record, due_ms(record))))
                        size += unit.size
                position = self._log.after(position)
            settled = self._deliverer.put([draft for _, draft in units], making_room=True) if units else 0
            progress.known.update(source_of(draft.prepared_offset) for _, draft in units[:settled])
            self._lap_timers += settled
            self._lap_bytes += sum(size for size, _ in units[:settled])
            if settled < len(units):
                return False
            if finished:
                progress.moved_below = progress.move_to
                return False
            if position == progress.move_at or reached_end:
                progress.move_at = position
                return False  # goes on when the second is over, or when those still in the queue were entered
            progress.move_at = position
            if self._clock.monotonic() > until:
                return True

    def _worth_moving(self, limit: int) -> int:
        """Up to where putting timers again makes room: not if most of what would go is what was put again before.

        Else a disk that others fill would have all pending timers written again, round after round.
        """
        if limit <= self._lap_end:
            return limit
        still = min(self._lap_timers, self._progress.pending) / self._lap_timers if self._lap_timers else 0.0
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
