"""Timers out of the wheel: the timers of a second are looked up when it begins, and delivered at their millisecond."""

from __future__ import annotations

import heapq
import logging

from gimbalmq._clock import Clock
from gimbalmq.broker.redelivery import Deliverer, waiting_copy
from gimbalmq.broker.stats import Counter
from gimbalmq.broker.timer_progress import TimerProgress, end_of_piece
from gimbalmq.broker.timer_records import deleted_by, due_ms, is_deleted
from gimbalmq.broker.timer_second import OpenSecond
from gimbalmq.broker.writer import Draft
from gimbalmq.errors import StoreError
from gimbalmq.model import topics
from gimbalmq.store.timer_files import TimerFiles
from gimbalmq.store.timer_log import DELETE, ROLL, Unit

log = logging.getLogger(__name__)

BATCH = 32
BATCH_BYTES = 256 * 1024
"""So many messages, or bytes of them, are stored at once."""
_LATER_MS = 60_000
"""A message that turns out to be due so little later waits in memory."""
_SOON_MS = 1_000
"""So little later that it holds up others hardly; what is due after that waits in the wheel if its place is free."""


class TimerDelivery:
    """Delivers what is due.

    Attributes:
        slot: the second that is being delivered; None between two.
        only_own_topic: a message takes back only timers of its own topic. In Apache's broker it takes back that of any
            topic.
    """

    def __init__(
        self,
        files: TimerFiles,
        deliverer: Deliverer,
        progress: TimerProgress,
        delivered: Counter,
        clock: Clock,
    ) -> None:
        self._wheel, self._log = files.wheel, files.log
        self._deliverer = deliverer
        self._progress = progress
        self._delivered = delivered
        self._clock = clock
        self.slot: OpenSecond | None = None
        self.only_own_topic = False

    def deliver_due(self) -> bool:
        """Delivers what is due; True if more is due now."""
        progress = self._progress
        until = end_of_piece(self._clock)
        while True:
            now = self._clock.wall_ms()
            second = now // 1000
            # A clock that was set back: what this second holds was due already.
            set_back = second < progress.second - 1
            if self.slot is None and not self._open_next(second, set_back):
                return False
            slot = self.slot
            if slot is None:
                if self._clock.monotonic() > until:
                    return True
                continue
            if not self._walk(slot, until):
                return True
            slot.refused = False
            if not self._deliver(slot, (slot.second + 2) * 1000 if set_back else now, until):
                return not slot.refused
            if slot.times or slot.late or not (set_back or progress.second < second):
                return False  # the rest of the second is yet to come
            self._wheel.clear(slot.second)
            self._settled(slot, slot.count)
            self.slot = None
            progress.go_to(progress.second + 1)

    def _open_next(self, second: int, set_back: bool) -> bool:
        """Goes on to the next second that has timers, at most to the present one; False if that has none."""
        progress = self._progress
        if set_back:
            progress.go_to(second)
        if progress.second > second:
            return False
        if progress.second < second:
            empty = self._wheel.empty_until(progress.second)
            if empty:
                progress.go_to(min(progress.second + empty, second))
                return True
        found = self._wheel.at(progress.second)
        if found is not None and found.second <= progress.second:
            self.slot = OpenSecond(found)
        elif progress.second < second:
            progress.go_to(progress.second + 1)
        else:
            return False
        return True

    def _walk(self, slot: OpenSecond, until: float) -> bool:
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

    def _settled(self, slot: OpenSecond, count: int) -> None:
        slot.count -= count
        self._progress.pending -= count

    def _take(self, slot: OpenSecond, unit: Unit, due: int) -> None:
        if self._progress.is_over(unit.offset):
            self._settled(slot, 1)
            return
        if unit.magic & DELETE and not unit.magic & ROLL:
            record = self._deliverer.record(unit.offset, topics.TIMER_TOPIC)
            if record is not None:
                slot.deleted.add(deleted_by(record, only_own_topic=self.only_own_topic))
            self._settled(slot, 1)
            return
        slot.add(due, unit.offset)

    def _deliver(self, slot: OpenSecond, now: int, until: float) -> bool:
        """Delivers what of the second is due; False if time ran out or the store refuses."""
        while slot.times and slot.times[0] <= now:
            offsets = slot.due[slot.times[0]]
            drafts: list[Draft] = []
            ends: list[int] = []
            size, end = 0, slot.at
            unread: StoreError | None = None
            while end < len(offsets) and len(drafts) < BATCH and size < BATCH_BYTES:
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
            self._delivered.add(settled)
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

    def _draft(self, slot: OpenSecond, offset: int, now: int) -> Draft | None:
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
        if slot.deleted and is_deleted(record, slot.deleted):
            return None
        return self._deliverer.draft(record)
