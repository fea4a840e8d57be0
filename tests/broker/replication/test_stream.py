"""The log on its way from a master to its slaves: whole, in order, whatever happens to the connection."""

from __future__ import annotations

from pathlib import Path

import pytest

from gimbalmq.broker.replication.follower import State
from gimbalmq.testing.loop import VirtualClock
from gimbalmq.transport.network import Network
from tests.broker.replication.scene import Line, assert_same, fill, pair, until, virtual


def test_empty_slave_of_an_empty_master_follows(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with pair(tmp_path, clock) as (master, slave):
            await until(lambda: slave.follower.state is State.FOLLOWING)
            fill(master.store, 40)
            await slave.caught_up(master)
            assert_same(master.store, slave.store)
            assert slave.store.min_commitlog_offset == 0
            await until(lambda: master.source.replicas[0].acked == master.store.max_commitlog_offset)
            assert master.source.acks.connected == 1 and slave.grown

    virtual(work)


def test_empty_slave_gets_every_file_of_its_master(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with pair(tmp_path, clock, count=60) as (master, slave):
            assert master.store.max_commitlog_offset > 3 * 4096
            await slave.caught_up(master)
            assert slave.store.min_commitlog_offset == 0
            assert_same(master.store, slave.store)

    virtual(work)


def test_slave_that_wants_the_last_file_only_gets_that(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        only_last: dict[str, object] = {"syncFromLastFile": "true"}
        async with pair(tmp_path, clock, count=60, slave_properties=only_last) as (master, slave):
            await slave.caught_up(master)
            end = master.store.max_commitlog_offset
            assert slave.store.min_commitlog_offset == end - end % 4096 > 0
            assert_same(master.store, slave.store)

    virtual(work)


@pytest.mark.parametrize("cut", [*range(30), 712, 713, 724, 4090, 4096, 4160, 4170, 4180, 4300, 9000])
def test_cut_of_what_the_master_sends(cut: int, tmp_path: Path) -> None:
    """In the header, between header and body, in a record, at the end of a file, in the blank behind its records."""

    async def work(clock: VirtualClock) -> None:
        def line(network: Network) -> Line:
            return Line(network, to_slave=[cut, cut + 1])

        async with pair(tmp_path, clock, count=40, line=line) as (master, slave):
            await slave.caught_up(master)
            assert_same(master.store, slave.store)
            assert isinstance(slave.network, Line) and len(slave.network.made) == 3

    virtual(work)
