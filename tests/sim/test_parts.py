"""The parts of the simulator that judge and stop others."""

from __future__ import annotations

import asyncio

from gimbalmq.model.queues import MessageQueue
from gimbalmq.testing import MemoryNetwork
from tests.sim.processes import Process, ProcessLoop
from tests.sim.work import Desk

QUEUE = MessageQueue("T", "broker-a", 0)


class Someone:
    def __init__(self, name: str, *claimed: MessageQueue) -> None:
        self.name = name
        self.claimed = claimed

    def claims(self, queue: MessageQueue) -> bool:
        return queue in self.claimed


def test_handlers_side_by_side_are_told_with_time_and_place() -> None:
    ada, ben = Someone("ada", QUEUE), Someone("ben")
    desk = Desk(2.0, alone=False)
    first = desk.begin(1.0, ada, QUEUE, 7, [ada, ben])
    desk.begin(1.1, ada, QUEUE, 8, [ada, ben])
    assert desk.overlaps == desk.claims == []
    desk.begin(1.5, ben, QUEUE, 7, [ada, ben])
    assert [str(overlap) for overlap in desk.overlaps] == [
        "1.500 s: ben began T/broker-a/0 at 7 while ada had a handler at work on it since 1.000 s",
        "1.500 s: ben began T/broker-a/0 at 7 while ada had a handler at work on it since 1.100 s",
    ]
    assert desk.claims == []
    desk.end(first)
    desk.begin(9.0, Someone("cyd"), MessageQueue("T", "broker-a", 1), 0, [ada, ben])
    assert len(desk.overlaps) == 2


def test_an_owner_without_a_handler_is_told_and_one_that_takes_very_long_is_excused() -> None:
    ada, ben = Someone("ada", QUEUE), Someone("ben")
    desk = Desk(2.0, alone=False)
    desk.end(desk.begin(1.0, ada, QUEUE, 7, [ada, ben]))
    desk.end(desk.begin(1.5, ben, QUEUE, 7, [ada, ben]))
    assert [str(claim) for claim in desk.claims] == [
        "1.500 s: ben began T/broker-a/0 at 7 while ada took itself for the owner"
    ]
    desk.begin(2.0, ben, QUEUE, 8, [])
    desk.begin(5.0, ada, QUEUE, 8, [ada, ben])
    assert not desk.overlaps
    assert [overlap.since for overlap in desk.excused] == [2.0]


def test_a_member_in_order_has_one_handler_at_work() -> None:
    ada = Someone("ada")
    desk = Desk(2.0, alone=True)
    desk.begin(1.0, ada, QUEUE, 7, [ada])
    desk.begin(1.1, ada, QUEUE, 8, [ada])
    assert len(desk.overlaps) == 1


async def _ticking(times: list[float], pause: float) -> None:
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(pause)
        times.append(round(loop.time(), 3))


async def _stopped_for(asleep: bool) -> list[float]:
    """When something that is done every second is done, in a process that is stopped from 2.5 s to 12.5 s."""
    process = Process(asyncio.get_running_loop(), MemoryNetwork(), "10.0.0.1")
    times: list[float] = []
    task = asyncio.create_task(process.do(_ticking(times, 1.0)))
    await asyncio.sleep(2.5)
    process.stop(asleep=asleep)
    await asyncio.sleep(10)
    assert len(times) == 2
    process.go_on()
    await asyncio.sleep(2.2)
    task.cancel()
    return times


def _run(asleep: bool) -> list[float]:
    with asyncio.Runner(loop_factory=ProcessLoop) as runner:
        return runner.run(_stopped_for(asleep))


def test_a_stopped_process_does_nothing_and_then_what_is_due() -> None:
    assert _run(asleep=False) == [1.0, 2.0, 12.5, 13.5, 14.5]


def test_timers_of_a_machine_that_slept_have_as_long_to_go_as_before() -> None:
    assert _run(asleep=True) == [1.0, 2.0, 13.0, 14.0]


def test_a_timer_that_is_cancelled_as_soon_as_the_process_goes_on_does_not_fire() -> None:
    """What it guarded came in time, as far as the process can see."""

    async def guarded(done: asyncio.Event) -> str:
        try:
            async with asyncio.timeout(5):
                await done.wait()
        except TimeoutError:
            return "too late"
        return "in time"

    async def main() -> str:
        process = Process(asyncio.get_running_loop(), MemoryNetwork(), "10.0.0.1")
        done = asyncio.Event()
        task = asyncio.create_task(process.do(guarded(done)))
        await asyncio.sleep(1)
        process.stop(asleep=False)
        done.set()
        await asyncio.sleep(10)
        process.go_on()
        return await task

    with asyncio.Runner(loop_factory=ProcessLoop) as runner:
        assert runner.run(main()) == "in time"
