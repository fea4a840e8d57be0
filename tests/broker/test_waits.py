"""Waits whose end is told at once."""

from __future__ import annotations

import asyncio

import pytest

from gimbalmq.broker.waits import Wait, ended, limited
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


def test_limit_ends_it_and_goes_with_it() -> None:
    async def work(clock: VirtualClock) -> None:
        slow = limited(Wait(), 500)
        quick: Wait[bool] = Wait()
        assert limited(quick, 500) is quick
        quick.end(True)
        assert not limited(ended(False), 500).result
        begun = clock.monotonic()
        assert await slow is False
        assert clock.monotonic() - begun == pytest.approx(0.5)
        assert quick.result

    run_virtual(work)
