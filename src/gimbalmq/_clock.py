"""The clocks: servers and clients are handed one, and outside of Spark no other module imports ``time``."""

from __future__ import annotations

import sys
import time
from typing import Protocol


class Clock(Protocol):
    """Two readings: one that never steps, one that people and disks use."""

    def monotonic(self) -> float:
        """Seconds that only grow, also while the machine is suspended."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as RocketMQ writes them."""
        ...


class SystemClock:
    """The machine's own clocks.

    A lease must not outlive a laptop's lid or a virtual machine's pause, so time counts while the machine is
    suspended. ``time.monotonic`` stands still then on Linux and macOS; CLOCK_BOOTTIME and macOS's CLOCK_MONOTONIC
    go on. On Windows ``time.monotonic`` does so by itself.
    """

    __slots__ = ()

    if sys.platform == "linux":

        def monotonic(self) -> float:
            return time.clock_gettime(time.CLOCK_BOOTTIME)

    elif sys.platform == "darwin":

        def monotonic(self) -> float:
            return time.clock_gettime(time.CLOCK_MONOTONIC)

    else:

        def monotonic(self) -> float:
            return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


SYSTEM_CLOCK = SystemClock()
