"""Waits whose end is told at once."""

from __future__ import annotations

import asyncio
from unittest.mock import patch
from weakref import ref

import pytest

from gimbalmq.broker.waits import TimeLimits, Wait, ended
from gimbalmq.testing.loop import VirtualClock, run_virtual
from tests.support import run


def test_end_is_told_at_once_in_order_and_once() -> None:
    wait: Wait[int] = Wait()
    told: list[object] = []
    wait.then(told.append)
    wait.then(lambda result: told.append(f"again {result}"))
    wait.end(1)
    wait.end(2)
    assert told == [1, "again 1"] and wait.ended and wait.result == 1
    wait.then(told.append)
    assert told[-1] == 1


def test_one_that_fails_keeps_nobody_waiting(caplog: pytest.LogCaptureFixture) -> None:
    wait: Wait[bool] = Wait()
    told: list[bool] = []
    wait.then(lambda _: 1 // 0)
    wait.then(told.append)
    wait.end(True)
    assert told == [True] and "ZeroDivisionError" in caplog.text


def test_it_can_be_awaited_by_several_and_given_up_by_one() -> None:
    async def work() -> None:
        wait: Wait[str] = Wait()

        async def ask() -> str:
            return await wait

        tasks = [asyncio.create_task(ask()) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.sleep(0)
        wait.end("now")
        assert await asyncio.gather(*tasks[1:]) == ["now", "now"]
        assert tasks[0].cancelled()
        assert await ended("before") == "before"

    run(work())


def test_limits_end_waits_each_at_its_time() -> None:
    async def work(clock: VirtualClock) -> None:
        limits, begun, told = TimeLimits(), clock.monotonic(), list[tuple[str, bool, float]]()

        def limited(name: str, milliseconds: int) -> Wait[bool]:
            wait: Wait[bool] = Wait()
            assert limits.limit(wait, milliseconds) is wait
            wait.then(lambda result: told.append((name, result, round(clock.monotonic() - begun, 3))))
            return wait

        limited("first", 500)
        quick = limited("quick", 500)
        limited("short", 200)
        assert not limits.limit(ended(False), 500).result
        await asyncio.sleep(0.1)
        quick.end(True)
        limited("second", 500)
        await asyncio.sleep(1)
        limited("after all", 500)
        await asyncio.sleep(1)
        assert told == [
            ("quick", True, 0.1),
            ("short", False, 0.2),
            ("first", False, 0.5),
            ("second", False, 0.6),
            ("after all", False, 1.6),
        ]

    run_virtual(work)


class Noticed(Wait[bool]):
    """One of which it can be told whether somebody keeps it."""


def test_limits_of_many_waits_cost_one_timer_and_keep_none_that_has_ended() -> None:
    async def work(clock: VirtualClock) -> None:
        loop, limits, gone = asyncio.get_running_loop(), TimeLimits(), []
        with patch.object(loop, "call_at", wraps=loop.call_at) as timer:
            for _ in range(100):
                wait = Noticed()
                limits.limit(wait, 500).end(True)
                gone.append(ref(wait))
                del wait
        assert timer.call_count == 1
        assert [kept() for kept in gone[:-1]] == [None] * 99  # the next one lets go of the last
        await asyncio.sleep(1)
        assert gone[-1]() is None

    run_virtual(work)
