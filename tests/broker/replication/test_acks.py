"""Waits for slaves: who is enough, who is freed, what is kept."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from gimbalmq.broker.replication.acks import Need, ReplicaAcks
from tests.support import run


@dataclass
class Slave:
    acked: int = -1
    slave_id: int | None = None
    is_sure: bool = True


def test_one_report_frees_all_that_it_reaches_in_order() -> None:
    async def work() -> None:
        slave = Slave(0)
        acks = ReplicaAcks([slave], lambda: 500)
        waits = [acks.wait(end, 1) for end in (100, 200, 300)]
        freed: list[int] = []
        for number, wait in enumerate(waits):
            wait.then(lambda _, number=number: freed.append(number))  # type: ignore[misc]
        slave.acked = 250
        acks.changed()
        assert [wait.ended for wait in waits] == [True, True, False]
        assert freed == [0, 1] and waits[0].result and acks.waiting == 1
        assert acks.wait(250, 1).result
        assert not acks.wait(251, 1).ended

    run(work())


def test_slave_that_has_not_reported_is_none() -> None:
    async def work() -> None:
        slaves = [Slave(), Slave(0)]
        acks = ReplicaAcks(slaves, lambda: 1000)
        assert (acks.connected, acks.in_sync(1001), acks.in_sync(1000)) == (1, 1, 0)
        assert acks.wait(0, 1).ended and not acks.wait(0, 2).ended
        # Less than the gap behind, not as much as that.
        slaves[0].acked = 900
        assert (acks.in_sync(100), acks.in_sync(101)) == (0, 1)

    run(work())


def test_as_many_as_needed_whoever_they_are() -> None:
    async def work() -> None:
        slaves = [Slave(100), Slave(300), Slave(200)]
        acks = ReplicaAcks(slaves, lambda: 300)
        assert [acks.reached(need) for need in (1, 2, 3, 4)] == [300, 200, 100, -1]
        wait = acks.wait(250, 2)
        slaves.pop(1)
        acks.changed()
        assert not wait.ended
        slaves[1].acked = slaves[0].acked = 250
        acks.changed()
        assert wait.result

    run(work())


def test_named_slaves_are_all_waited_for() -> None:
    async def work() -> None:
        slaves = [Slave(100, 1), Slave(300, 2), Slave(500, 9), Slave(500)]
        acks = ReplicaAcks(slaves, lambda: 500)
        both, absent = frozenset({1, 2}), frozenset({1, 3})
        assert (acks.reached(both), acks.reached(absent)) == (100, -1)
        wait = acks.wait(200, both)
        slaves[0].acked = 200
        acks.changed()
        assert wait.result
        # A connection that is being replaced may still be there: the further one counts.
        slaves.append(Slave(150, 1))
        assert acks.reached(both) == 200

    run(work())


def test_waits_of_one_kind_do_not_hold_up_another() -> None:
    async def work() -> None:
        slave = Slave(0)
        acks = ReplicaAcks([slave], lambda: 500)
        two, one = acks.wait(100, 2), acks.wait(200, 1)
        slave.acked = 200
        acks.changed()
        assert one.ended and not two.ended

    run(work())


def test_waits_that_were_given_up_are_not_kept() -> None:
    async def work() -> None:
        acks = ReplicaAcks([], lambda: 0)
        for end in range(1000):
            acks.wait(end, 1).end(False)
        assert acks.waiting == 0
        assert sum(map(len, acks._waits.values())) == 1
        left = acks.wait(5000, 1)
        acks.give_up()
        assert left.result is False and not acks._waits

    run(work())


@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from([1, 2, 3]))),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9))),
)
def test_nobody_is_freed_early_or_forgotten(
    asked: list[tuple[int, Need]], moves: list[tuple[int, int]]
) -> None:
    async def work() -> None:
        slaves = [Slave(), Slave(), Slave(), Slave()]
        acks = ReplicaAcks(slaves, lambda: 10)
        waits = [(end, need, acks.wait(end, need)) for end, need in sorted(asked, key=lambda item: item[0])]
        best: dict[Need, int] = {1: -1, 2: -1, 3: -1}
        for which, acked in moves:
            slaves[which].acked = max(slaves[which].acked, acked)
            acks.changed()
            for need in best:
                best[need] = max(best[need], acks.reached(need))
        for end, need, wait in waits:
            assert wait.ended == (best[need] >= end)

    asyncio.run(work())
