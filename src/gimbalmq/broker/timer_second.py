"""The second whose timers are being delivered."""

from __future__ import annotations

import heapq
from array import array
from collections import deque

from gimbalmq.store.timer_log import Unit
from gimbalmq.store.timer_wheel import Slot


class OpenSecond:
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
