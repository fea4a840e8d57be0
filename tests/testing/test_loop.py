"""Virtual time: waits cost nothing and runs repeat."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from gimbalmq.testing.loop import EPOCH_MS, VirtualClock, VirtualLoop, run_virtual


def test_an_hour_passes_in_no_time() -> None:
    async def main(clock: VirtualClock) -> tuple[float, int]:
        await asyncio.sleep(3600)
        return clock.monotonic(), clock.wall_ms()

    begun = time.monotonic()
    assert run_virtual(main) == (3600.0, EPOCH_MS + 3_600_000)
    assert time.monotonic() - begun < 5


def test_timers_fire_in_the_order_of_their_times() -> None:
    async def main(_: VirtualClock) -> list[int]:
        seen: list[int] = []

        async def one(number: int) -> None:
            await asyncio.sleep(number)
            seen.append(number)

        await asyncio.gather(*(one(number) for number in (5, 1, 3, 2, 4)))
        return seen

    assert run_virtual(main) == [1, 2, 3, 4, 5]


def _trace(seed: int) -> list[tuple[float, int]]:
    async def main(clock: VirtualClock) -> list[tuple[float, int]]:
        rng = random.Random(seed)
        seen: list[tuple[float, int]] = []

        async def worker(number: int) -> None:
            for _ in range(20):
                await asyncio.sleep(rng.random())
                seen.append((clock.monotonic(), number))

        await asyncio.gather(*(worker(number) for number in range(10)))
        return seen

    return run_virtual(main)


def test_timers_of_one_instant_fire_in_the_order_they_were_made() -> None:
    """Whatever lies in the heap beside them: cancelled timers come and go."""

    async def main(_: VirtualClock) -> list[int]:
        loop = asyncio.get_running_loop()
        fired: list[int] = []
        others = [loop.call_later(number % 7, fired.append, -1) for number in range(50)]
        for number in range(100):
            loop.call_at(10.0, fired.append, number)
            if number % 2:
                others.pop().cancel()
        for other in others:
            other.cancel()
        await asyncio.sleep(11)
        return fired

    assert run_virtual(main) == list(range(100))


def test_equal_seeds_give_equal_traces() -> None:
    assert _trace(7) == _trace(7)
    assert _trace(7) != _trace(8)


def test_timeouts_count_virtual_seconds() -> None:
    async def main(clock: VirtualClock) -> float:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 30)
        return clock.monotonic()

    assert run_virtual(main) == 30.0


def test_executor_work_runs_in_place() -> None:
    async def main(clock: VirtualClock) -> tuple[int, float]:
        found = await asyncio.get_running_loop().run_in_executor(None, lambda base: base + 1, 41)
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        return found, clock.monotonic()

    assert run_virtual(main) == (42, 0.0)


def test_a_wait_that_cannot_end_is_an_error_not_a_hang() -> None:
    async def main(_: VirtualClock) -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="nothing will ever happen"):
        run_virtual(main)


def test_what_blocks_the_loop_costs_everybody_and_in_an_executor_only_its_caller() -> None:
    async def main(clock: VirtualClock) -> list[float]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        seen: list[float] = []

        async def other() -> None:
            await asyncio.sleep(1)
            seen.append(clock.monotonic())

        beside = asyncio.create_task(other())
        await loop.run_in_executor(None, loop.stall, 3.0)
        await beside
        seen.append(clock.monotonic())
        beside = asyncio.create_task(other())
        await asyncio.sleep(0)
        loop.stall(5.0)
        await beside
        return seen

    assert run_virtual(main) == [1.0, 3.0, 8.0]
