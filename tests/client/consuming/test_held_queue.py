"""One held queue: its states, its progress, its lock, what runs on it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gimbalmq._clock import Clock
from gimbalmq.client.consuming.held_queue import HeldQueue, State, Work
from gimbalmq.client.consuming.offsets import RemoteOffsets
from gimbalmq.client.consuming.report import row_of
from gimbalmq.errors import StateError
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue

QUEUE = MessageQueue("T", "broker-a", 0)


class HandClock(Clock):
    """A clock that the test moves."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)


def offsets() -> RemoteOffsets:
    return RemoteOffsets(cast(Any, None), "g")


def view(offset: int) -> MessageView:
    return MessageView.build("T", b"x", queue=QUEUE, queue_offset=offset)


def reading(clock: Clock | None = None) -> HeldQueue:
    held = HeldQueue(QUEUE, clock or HandClock(), offsets())
    held.start()
    return held


# --- states ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "step"),
    [
        ((), "drain"),
        ((), "give_up"),
        (("start",), "start"),
        (("start",), "give_up"),
        (("start", "drain"), "start"),
        (("start", "drain"), "drain"),
        (("start", "drain"), "give_up"),
        (("drop",), "start"),
        (("drop",), "drop"),
        (("drop", "give_up"), "drop"),
        (("drop", "give_up"), "give_up"),
    ],
)
def test_a_transition_that_makes_no_sense_is_refused(before: tuple[str, ...], step: str) -> None:
    held = HeldQueue(QUEUE, HandClock(), offsets())
    for name in before:
        getattr(held, name)()
    with pytest.raises(AssertionError):
        getattr(held, step)()


@pytest.mark.parametrize("step", ["drain", "drop"])
def test_leaving_reading_stops_the_reader(step: str) -> None:
    async def scenario() -> None:
        held = reading()
        reader = asyncio.ensure_future(asyncio.Event().wait())
        held.read_by(cast(Any, reader))
        getattr(held, step)()
        await asyncio.wait([reader])
        assert reader.cancelled()

    asyncio.run(scenario())


def test_a_second_reader_takes_the_place_of_the_first() -> None:
    async def scenario() -> None:
        held = reading()
        readers: list[Any] = [asyncio.ensure_future(asyncio.Event().wait()) for _ in range(2)]
        for reader in readers:
            held.read_by(reader)
        await asyncio.wait(readers, return_when=asyncio.FIRST_COMPLETED)
        assert [reader.cancelled() for reader in readers] == [True, False]
        held.drop()
        await asyncio.wait(readers)

    asyncio.run(scenario())


def test_a_reader_that_drops_its_own_queue_is_not_cancelled() -> None:
    async def scenario() -> None:
        held = reading()

        async def read() -> str:
            held.drop()
            await asyncio.sleep(0)
            return "to the end"

        task: Any = asyncio.ensure_future(read())
        held.read_by(task)
        assert await task == "to the end"

    asyncio.run(scenario())


class Life(RuleBasedStateMachine):
    """Any order of pulls, settlements, transitions, renewals and doubts.

    Whatever happens: progress never passes a message that no handler has finished, nothing is noted after the
    queue was dropped, nothing is committed in doubt, and states follow each other in one direction.
    """

    ORDER = (State.CLAIMED, State.READING, State.DRAINING, State.DROPPED, State.GIVEN_UP)

    @initialize(leased=st.booleans())
    def claim(self, leased: bool) -> None:
        self.clock = HandClock()
        self.store = offsets()
        self.held = HeldQueue(QUEUE, self.clock, self.store)
        self.next = 0
        self.begun: list[Work] = []
        self.finished: set[int] = set()
        self.delivered: set[int] = set()
        self.last = State.CLAIMED
        self.noted_when_dropped: int | None = None
        if leased:
            self.held.lease(self.clock.now, self.clock.now + 3)

    def pulls(self) -> bool:
        return self.held.state is State.READING

    @precondition(lambda self: self.held.state is State.CLAIMED)
    @rule()
    def start(self) -> None:
        self.held.start()

    @precondition(pulls)
    @rule(count=st.integers(1, 4), gap=st.integers(0, 3))
    def pull(self, count: int, gap: int) -> None:
        first = self.next + gap
        self.held.window.put([view(first + number) for number in range(count)])
        self.delivered.update(range(first, first + count))
        self.next = first + count

    @precondition(pulls)
    @rule(gap=st.integers(1, 5))
    def pull_nothing(self, gap: int) -> None:
        self.next += gap
        self.held.advance(self.next)

    @precondition(lambda self: self.pulls() and not self.held.in_doubt)
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        busy = {message.queue_offset for work in self.begun for message in work.messages}
        free = [one for one in self.held.window.oldest(100) if one.queue_offset not in busy]
        if free:
            work = Work(self.held, [data.draw(st.sampled_from(free))])
            self.held.begin(work)
            self.begun.append(work)

    @precondition(lambda self: self.begun)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        work = self.begun.pop(data.draw(st.integers(0, len(self.begun) - 1)))
        self.finished.update(message.queue_offset for message in work.messages)
        self.held.settle(work.messages)
        self.held.end(work)

    @rule(seconds=st.floats(0.1, 4))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds

    @precondition(lambda self: self.held.leased and not self.held.dropped)
    @rule(ago=st.floats(0, 2))
    def renew(self, ago: float) -> None:
        sent = self.clock.now - ago
        self.held.lease(sent, sent + 3)
        assert not self.held.fenced and not self.held.in_doubt

    @precondition(lambda self: self.held.leased and not self.held.dropped)
    @rule()
    def fence(self) -> None:
        self.held.fence()
        assert self.held.in_doubt

    @precondition(lambda self: self.begun and self.pulls())
    @rule()
    def drain(self) -> None:
        self.held.drain()

    @precondition(lambda self: self.begun and not self.held.dropped)
    @rule()
    def drop(self) -> None:
        """With something in work: what becomes of that is the question."""
        self.held.drop()
        self.noted_when_dropped = self.store.remembered(QUEUE)

    @precondition(lambda self: self.held.state is State.DROPPED)
    @rule()
    def give_up(self) -> None:
        self.held.give_up()

    @precondition(lambda self: self.held.in_doubt)
    @rule()
    def commit_in_doubt(self) -> None:
        with pytest.raises(StateError, match="in doubt"):
            asyncio.run(self.held.commit())

    @invariant()
    def progress_never_passes_what_is_unfinished(self) -> None:
        noted = self.store.remembered(QUEUE)
        if noted is not None:
            assert {offset for offset in self.delivered if offset < noted} <= self.finished

    @invariant()
    def nothing_is_noted_after_the_drop(self) -> None:
        if self.held.dropped:
            assert self.store.remembered(QUEUE) == self.noted_when_dropped

    @invariant()
    def states_go_one_way(self) -> None:
        assert self.ORDER.index(self.held.state) >= self.ORDER.index(self.last)
        self.last = self.held.state

    @invariant()
    def what_runs_is_known(self) -> None:
        assert list(self.held.running.values()) == self.begun


TestLife = Life.TestCase


# --- progress ----------------------------------------------------------------------------------------------


def test_what_is_settled_while_draining_still_counts_and_afterwards_does_not() -> None:
    held = reading()
    store = held._offsets
    held.window.put([view(0), view(1), view(2)])
    held.settle([view(0)])
    held.drain()
    held.settle([view(1)])
    assert store.remembered(QUEUE) == 2
    held.drop()
    held.settle([view(2)])
    assert store.remembered(QUEUE) == 2


def test_an_empty_answer_is_progress_only_if_nothing_is_pending() -> None:
    held = reading()
    held.window.put([view(4)])
    held.advance(9)
    assert held._offsets.remembered(QUEUE) is None
    held.settle([view(4)])
    held.advance(9)
    assert held._offsets.remembered(QUEUE) == 9


def test_ordered_work_is_noted_when_it_is_settled() -> None:
    held = reading()
    held.window.put([view(4), view(5)])
    held.window.take(1)
    held.settle_work()
    assert held._offsets.remembered(QUEUE) == 5


# --- locks and leases --------------------------------------------------------------------------------------


def test_pull_and_lock_expire_by_the_clock() -> None:
    """S2-17 (the 120 s) and the lock's 30 s: strictly later, not at."""
    held = reading(HandClock(100.0))
    assert not held.pull_expired(220.0)
    assert held.pull_expired(220.1)
    assert not held.lock_expired(130.0)
    assert held.lock_expired(130.1)


def test_a_lease_is_waited_for_until_it_is_sure() -> None:
    async def scenario() -> None:
        clock = HandClock()
        held = reading(clock)
        held.lease(100.0, 103.0)
        await held.until_sure()
        clock.now = 104.0
        waiter = asyncio.ensure_future(held.until_sure())
        await asyncio.sleep(0)
        held.lease(100.5, 103.5)  # an answer that came too late
        await asyncio.sleep(0)
        assert not waiter.done()
        held.lease(103.9, 106.9)
        await waiter

    asyncio.run(scenario())


def test_whoever_waits_for_a_lease_hears_of_the_queues_end() -> None:
    async def scenario() -> None:
        held = reading()
        held.lease(100.0, 103.0)
        held.fence()
        waiter = asyncio.ensure_future(held.until_sure())
        await asyncio.sleep(0)
        assert not waiter.done()
        held.drop()
        await waiter

    asyncio.run(scenario())


def test_quiet_waits_for_what_runs() -> None:
    async def scenario() -> None:
        held = reading()
        work = Work(held, [view(1)])
        held.begin(work)
        waiter = asyncio.ensure_future(held.quiet())
        await asyncio.sleep(0)
        assert not waiter.done()
        held.end(work)
        await waiter

    asyncio.run(scenario())


# --- what is told ------------------------------------------------------------------------------------------


def test_the_307_row_tells_the_window() -> None:
    held = reading(HandClock(0.0))
    held.window.put([view(4), view(5), view(6)])
    held.window.take(1)
    row = row_of(held, 4, now=10.0, wall_ms=1_000_000)
    assert (row.cached_msg_count, row.cached_msg_min_offset, row.cached_msg_max_offset) == (2, 5, 6)
    assert (row.transaction_msg_count, row.transaction_msg_min_offset) == (1, 4)
    assert row.last_pull_timestamp == 990_000
