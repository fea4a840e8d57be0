"""The watchdog of the event loop, on both kinds of loop."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import sys
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

import pytest
import uvloop

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.errors import StateError
from gimbalmq.transport.watchdog import LoopWatchdog

Run = Callable[[Coroutine[Any, Any, None]], None]


def _on_uvloop(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


@pytest.fixture(params=[asyncio.run, _on_uvloop], ids=["asyncio", "uvloop"])
def run_on(request: pytest.FixtureRequest) -> Run:
    run: Run = request.param
    return run


def compute_for(seconds: float) -> None:
    end = SYSTEM_CLOCK.monotonic() + seconds
    while SYSTEM_CLOCK.monotonic() < end:
        pass


def hold_the_lock_for(seconds: float) -> None:
    ctypes.PyDLL(None).usleep(round(seconds * 1e6))  # PyDLL: the interpreter lock is not let go


async def pause_until(enough: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not enough():
            await asyncio.sleep(0.03)
            compute_for(0.06)


def block_for(seconds: float) -> None:
    threading.Event().wait(seconds)  # as a file operation does: the lock is free meanwhile


@pytest.mark.parametrize("work", [compute_for, hold_the_lock_for, block_for])
def test_a_long_turn_is_measured_and_its_stack_told(
    run_on: Run, work: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        watchdog = LoopWatchdog(0.15, 0.15)
        watchdog.start()
        async with asyncio.timeout(20):
            # On a busy machine the watchdog's thread may come late, and see nothing of a turn.
            while watchdog.longest is None or watchdog.longest.seconds <= 0.35 or not watchdog.longest.stack:
                watchdog.longest, watchdog._silent_until = None, 0.0
                await asyncio.sleep(0.05)
                work(0.4)
                await asyncio.sleep(0.05)
        watchdog.close()
        assert work.__name__ in watchdog.longest.stack

    with caplog.at_level(logging.WARNING):
        run_on(main())
    assert "stood still for" in caplog.text
    assert work.__name__ in caplog.text


def test_a_loop_that_waits_is_not_blamed_and_nobody_looks_at_it(
    run_on: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look takes the interpreter from the loop: 50 of them a second cost a busy broker 5 % of its time."""
    looks = []

    def look() -> dict[int, FrameType]:
        looks.append(1)
        return {}

    monkeypatch.setattr(sys, "_current_frames", look)

    async def main() -> None:
        watchdog = LoopWatchdog(10, 10)
        watchdog.start()
        await asyncio.sleep(0.5)
        watchdog.close()
        assert watchdog.pauses == 0
        assert not looks

    run_on(main())


def test_a_pause_that_is_not_logged_is_counted_without_a_look(run_on: Run) -> None:
    async def main() -> None:
        watchdog = LoopWatchdog(0.02, 60.0)
        watchdog.start()
        await asyncio.sleep(0.03)
        block_for(0.5)  # with the lock free, so that a look would not be kept waiting
        await pause_until(lambda: watchdog.pauses >= 1)
        watchdog.close()
        assert watchdog.longest is not None
        assert watchdog.longest.seconds > 0.3
        assert watchdog.longest.stack == ""

    run_on(main())


def test_many_long_turns_are_few_lines(run_on: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        watchdog = LoopWatchdog(0.02, 0.02)
        watchdog.start()
        await pause_until(lambda: watchdog.pauses >= 5)
        watchdog.close()

    with caplog.at_level(logging.WARNING):
        run_on(main())
    assert caplog.text.count("stood still") == 1


def test_a_loop_that_ends_first_ends_the_watch() -> None:
    watchdog = LoopWatchdog()

    async def main() -> None:
        watchdog.start()

    asyncio.run(main())
    watchdog.close()
    assert watchdog.pauses == 0


def test_beats_go_on_whatever_a_pause_brings(run_on: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        watchdog = LoopWatchdog(0.02, 60.0)
        noted = []

        def fail(pause: object) -> None:
            noted.append(pause)
            raise RuntimeError("the log's disk is full")

        monkeypatch.setattr(watchdog, "_note", fail)
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        watchdog.start()
        await pause_until(lambda: len(noted) >= 2)
        watchdog.close()
        with pytest.raises(StateError):
            watchdog.start()

    run_on(main())
