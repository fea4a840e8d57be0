"""Background work with an owner."""

from __future__ import annotations

import asyncio
import logging

import pytest

from gimbalmq.transport.tasks import Tasks
from tests.support import run


def test_loop_goes_on_after_a_failing_step(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        tasks = Tasks("owner")
        third = asyncio.Event()
        calls = 0

        async def step() -> None:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise ValueError("once")
            if calls == 3:
                third.set()

        tasks.every(0.0, step, "steps")
        await third.wait()
        await tasks.close()

    with caplog.at_level(logging.ERROR):
        run(work())
    assert [record.getMessage() for record in caplog.records] == ["owner: steps failed and goes on"]


def test_broken_invariant_ends_the_loop_loudly(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        tasks = Tasks("owner")

        def step() -> None:
            raise AssertionError("never")

        task = tasks.every(0.0, step, "steps")
        await asyncio.wait([task])
        assert isinstance(task.exception(), AssertionError)
        await tasks.close()

    with caplog.at_level(logging.ERROR):
        run(work())
    assert [record.getMessage() for record in caplog.records] == ["owner:steps ended by an error"]


def test_first_pause_and_changing_pauses_are_kept() -> None:
    async def work() -> None:
        tasks = Tasks("owner")
        done = asyncio.Event()
        pauses = iter([0.0, 0.0, 3600.0])
        calls = 0

        def step() -> None:
            nonlocal calls
            calls += 1
            if calls == 3:
                done.set()

        tasks.every(lambda: next(pauses), step, "steps", first=0.0)
        await done.wait()
        assert calls == 3
        await tasks.close()

    run(work())


def test_close_ends_everything_even_from_inside() -> None:
    async def work() -> None:
        tasks = Tasks("owner")
        other = tasks.spawn(asyncio.Event().wait(), "other")

        async def closes() -> str:
            await tasks.close()
            return "closed"

        assert await tasks.spawn(closes(), "closer") == "closed"
        assert other.cancelled()

    run(work())
