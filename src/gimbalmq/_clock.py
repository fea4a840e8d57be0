"""The only module that reads the time; everything else is handed a Clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two readings: one that never steps, one that people and disks use."""

    def monotonic(self) -> float:
        """Seconds that only grow."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as RocketMQ writes them."""
        ...


class SystemClock:
    """The machine's own clocks."""

    __slots__ = ()

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


SYSTEM_CLOCK = SystemClock()
