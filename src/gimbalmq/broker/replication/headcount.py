"""How many slaves a master may have, for whoever promotes one of them.

A slave whose connection broke is back soon, mostly. What is answered then may be at that slave only, and another one
that is cut off by then does not hear that it is back. So one that has gone counts for a while, at the master and at
the slaves that have heard of it.
"""

from __future__ import annotations

from collections import deque

from gimbalmq._clock import Clock

_SECONDS = 60.0


class Headcount:
    """The largest of the numbers that were noted within the last minute."""

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self._noted: deque[tuple[float, int]] = deque()
        """When, and how many; what a later number hides is not there, so they become smaller."""

    def note(self, number: int) -> None:
        noted = self._noted
        while noted and noted[-1][1] <= number:
            noted.pop()
        noted.append((self._now(), number))

    @property
    def most(self) -> int:
        """0 if nothing was noted."""
        noted, now = self._noted, self._now()
        while noted and now - noted[0][0] >= _SECONDS:
            noted.popleft()
        return noted[0][1] if noted else 0

    def forget(self) -> None:
        self._noted.clear()
