"""The machine's clocks."""

from __future__ import annotations

import sys
import time

import pytest

from gimbalmq._clock import SYSTEM_CLOCK


@pytest.mark.skipif(sys.platform not in ("linux", "darwin"), reason="time.monotonic counts sleep elsewhere")
def test_time_goes_on_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour of sleep, as the two clocks of a machine show it."""
    awake, slept = time.monotonic, 3600.0
    counting = time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC
    before = SYSTEM_CLOCK.monotonic()
    read = time.clock_gettime

    def clock_gettime(clock: int) -> float:
        return read(clock) + (slept if clock == counting else 0.0)

    monkeypatch.setattr(time, "clock_gettime", clock_gettime)
    monkeypatch.setattr(time, "monotonic", awake)
    assert slept <= SYSTEM_CLOCK.monotonic() - before < slept + 60


def test_time_only_grows() -> None:
    seen = [SYSTEM_CLOCK.monotonic() for _ in range(1000)]
    assert seen == sorted(seen)
    assert SYSTEM_CLOCK.wall_ms() > 1_700_000_000_000
