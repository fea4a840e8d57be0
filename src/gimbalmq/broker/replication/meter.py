"""Bytes a second of one connection, and a limit to them."""

from __future__ import annotations

from gimbalmq._clock import Clock

_WINDOW_SECONDS = 1.0
_PARTS_OF_SECOND = 10


class Meter:
    """Counts bytes; the rate is that of the last whole second or so."""

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self._since = self._now()
        self._count = 0
        self._rate = 0
        self.total = 0

    def add(self, size: int) -> None:
        self.total += size
        self._count += size
        self._roll()

    def _roll(self) -> None:
        now = self._now()
        passed = now - self._since
        if passed >= _WINDOW_SECONDS:
            self._rate = int(self._count / passed)
            self._since, self._count = now, 0

    @property
    def per_second(self) -> int:
        self._roll()
        return self._rate


class Pace:
    """How much may leave now, so that a second has no more than its limit."""

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self._since = self._now()
        self._used = 0

    def allowed(self, per_second: int) -> int:
        now = self._now()
        if now - self._since >= 1 / _PARTS_OF_SECOND:
            self._since, self._used = now, 0
        return max(1, per_second // _PARTS_OF_SECOND) - self._used

    def used(self, size: int) -> None:
        self._used += size

    def wait_seconds(self) -> float:
        """Until more is allowed."""
        return max(0.0, self._since + 1 / _PARTS_OF_SECOND - self._now())
