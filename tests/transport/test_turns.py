"""Long work on the loop takes turns."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq._steps import Steps, run_through
from gimbalmq.transport.turns import Turns
from tests.support import ManualClock, run, until


def counting(seen: list[str], name: str, steps: int, clock: ManualClock) -> Steps[str]:
    for _ in range(steps):
        seen.append(name)
        clock.advance(0.002)
        yield
    return name


def test_all_steps_run_and_the_result_comes_back() -> None:
    seen: list[str] = []
    assert run_through(counting(seen, "a", 3, ManualClock())) == "a"
    assert run(Turns(SYSTEM_CLOCK).run(counting(seen, "b", 5, ManualClock()))) == "b"
    assert seen == ["a"] * 3 + ["b"] * 5


def test_the_loop_is_given_back_after_some_milliseconds_and_pieces_alternate() -> None:
    async def work() -> None:
        clock, seen = ManualClock(), list[str]()
        turns = Turns(clock)
        slices: list[int] = []

        async def look() -> None:
            while len(seen) < 30:
                slices.append(len(seen))
                await asyncio.sleep(0)

        names = await asyncio.gather(
            turns.run(counting(seen, "a", 10, clock)),
            turns.run(counting(seen, "b", 10, clock)),
            turns.run(counting(seen, "c", 10, clock)),
            look(),
        )
        assert [*names[:3]] == ["a", "b", "c"]
        # two steps of 2 ms are a slice; never two slices in one turn of the loop
        assert max(b - a for a, b in pairwise(slices)) <= 2
        assert "".join(seen[2:14]) == "aabbccaabbcc"

    run(work())


def test_a_clock_that_stands_still_does_not_keep_the_loop() -> None:
    async def work() -> None:
        def endless() -> Steps[None]:
            while True:
                yield

        task = asyncio.ensure_future(Turns(ManualClock()).run(endless()))
        for _ in range(10):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(work())


def test_an_error_or_a_cancelled_wait_lets_the_next_one_in() -> None:
    async def work() -> None:
        turns = Turns(ManualClock())
        seen: list[str] = []

        def failing() -> Steps[None]:
            yield
            raise OSError("a test")

        async def hold() -> None:
            await turns.run(counting(seen, "held", 1000, ManualClock()))

        holder = asyncio.ensure_future(hold())
        await until(lambda: seen)
        waiting = [asyncio.ensure_future(turns.run(failing())) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert [type(result) for result in results[1:]] == [OSError, OSError]
        await holder
        with pytest.raises(OSError, match="a test"):
            await turns.run(failing())

    run(work())
