"""The log on its way from a master to its slaves: whole, in order, whatever happens to the connection."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from gimbalmq.broker.replication.follower import State
from gimbalmq.testing.loop import VirtualClock
from gimbalmq.transport.network import Network
from tests.broker.replication.scene import (
    Line,
    MasterEnd,
    SlaveEnd,
    assert_same,
    cut_back,
    drop_files,
    fill,
    log_of,
    memory_of,
    pair,
    until,
    virtual,
)
from tests.store.helpers import FailingFiles


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


@pytest.mark.parametrize("cut", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 40])
def test_cut_of_what_the_slave_reports(cut: int, tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        def line(network: Network) -> Line:
            return Line(network, to_master=[cut, cut], piece=1000)

        async with pair(tmp_path, clock, count=40, line=line) as (master, slave):
            await slave.caught_up(master)
            assert_same(master.store, slave.store)
            assert isinstance(slave.network, Line)
            made, replicas = slave.network.made, master.source.replicas
            await until(lambda: len(made) == 3 and bool(replicas))
            await until(lambda: replicas[-1].acked == master.store.max_commitlog_offset)

    virtual(work)


def test_stream_byte_by_byte(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with pair(tmp_path, clock, count=20, line=lambda inner: Line(inner, piece=1)) as (
            master,
            slave,
        ):
            await slave.caught_up(master)
            assert_same(master.store, slave.store)

    virtual(work)


def test_slave_killed_anywhere_goes_on_where_its_log_ends(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with pair(tmp_path, clock, count=5) as (master, slave):
            for round_number in range(25):
                fill(master.store, 4, start=10 * round_number)
                await asyncio.sleep(0.0003 * (round_number % 7))
                await slave.kill()
                slave.open()
                await slave.follow(master)
            await slave.caught_up(master)
            assert_same(master.store, slave.store)
            # No entry twice, none left out.
            for topic in master.store.topics():
                for queue_id in master.store.queue_ids(topic):
                    ours, theirs = (end.store.find_queue(topic, queue_id) for end in (slave, master))
                    assert ours is not None and theirs is not None and ours.max_offset == theirs.max_offset

    virtual(work)


def test_restarted_master_is_copied_from_where_the_slave_is(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with pair(tmp_path, clock, count=30) as (master, slave):
            await slave.caught_up(master)
            ports = (master.server.port, master.source.port)
            for round_number in range(1, 4):
                await master.stop()
                await until(lambda: slave.follower.state is State.SEEKING)
                master.open()
                fill(master.store, 10, start=100 * round_number)
                await master.start(*ports)
                await slave.caught_up(master)
            assert_same(master.store, slave.store)

    virtual(work)


def test_two_slaves_one_of_which_joins_under_load(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with pair(tmp_path, clock, count=10) as (master, slave):
            late = SlaveEnd(tmp_path / "late", slave.network, clock)

            async def load() -> None:
                for number in range(300):
                    fill(master.store, 1, start=number)
                    await asyncio.sleep(0.0002)

            loading = asyncio.ensure_future(load())
            await asyncio.sleep(0.02)
            await late.follow(master)
            await loading
            for end in (slave, late):
                await end.caught_up(master)
                assert_same(master.store, end.store)
            end_of_log = master.store.max_commitlog_offset
            await until(lambda: master.source.acks.reached(2) == end_of_log)
            assert master.source.acks.in_sync(1) == 2 and all(r.in_sync for r in master.source.replicas)
            await late.stop()
            await until(lambda: len(master.source.replicas) == 1)

    virtual(work)


def test_sends_leave_at_once(tmp_path: Path) -> None:
    """Not at the next look of some clock: a message is confirmed after one way there and one back."""

    async def work(clock: VirtualClock) -> None:
        async with pair(tmp_path, clock, count=3) as (master, slave):
            await slave.caught_up(master)
            await asyncio.sleep(1)
            fill(master.store, 1)
            begun = clock.monotonic()
            await master.source.acks.wait(master.store.max_commitlog_offset, 1)
            assert clock.monotonic() - begun < 0.0025  # a way takes at most a millisecond

    virtual(work)


def test_a_slave_that_waits_gets_it_within_the_append_and_a_busy_one_at_the_end_of_the_turn(
    tmp_path: Path,
) -> None:
    async def work(clock: VirtualClock) -> None:
        async with pair(tmp_path, clock, count=3) as (master, slave):
            await slave.caught_up(master)
            await asyncio.sleep(1)
            (replica,) = master.source.replicas
            fill(master.store, 1)
            first = master.store.max_commitlog_offset
            assert replica.sent == first
            fill(master.store, 1)
            fill(master.store, 1)
            assert replica.sent == first
            await asyncio.sleep(0)
            assert replica.sent == master.store.max_commitlog_offset

    virtual(work)


def test_the_master_hears_of_messages_before_they_have_queue_entries(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with pair(tmp_path, clock, count=3) as (master, slave):
            await slave.caught_up(master)
            link, following = slave.follower._link, slave.store._following
            assert link is not None and following is not None
            committed, reported = following._dispatcher._committed, []

            def note(*args: Any) -> None:
                reported.append(link._reported)
                committed(*args)

            following._dispatcher._committed = note
            fill(master.store, 1)
            await slave.caught_up(master)
            assert reported == [master.store.max_commitlog_offset]

    virtual(work)


# -- silence ---------------------------------------------------------------------------------


def test_heartbeats_keep_an_idle_connection(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with pair(tmp_path, clock, count=3) as (master, slave):
            await slave.caught_up(master)
            replica = master.source.replicas[0]
            await asyncio.sleep(95)
            assert master.source.replicas == [replica] and slave.follower.state is State.FOLLOWING
            now = clock.wall_ms()
            assert now - slave.follower.last_read_ms <= 6000 and now - slave.follower.last_write_ms <= 6000

    virtual(work)


@pytest.mark.parametrize("silent", ["10.0.0.11", "10.0.0.12"])
@pytest.mark.parametrize("borne", [3, 20])
def test_silence_ends_the_connection_at_the_side_that_hears_nothing(
    silent: str, borne: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A stalled end takes nothing in; the other one hears nothing of it and lets go within the time allowed."""

    async def work(clock: VirtualClock) -> None:
        short: dict[str, object] = {"haSendHeartbeatInterval": 500, "haHousekeepingInterval": 1000 * borne}
        scene = pair(tmp_path, clock, count=3, master_properties=short, slave_properties=short)
        async with scene as (master, slave):
            await slave.caught_up(master)
            memory = memory_of(slave.network)
            memory.cut("10.0.0.11", "10.0.0.12")
            begun = clock.monotonic()
            if silent == "10.0.0.11":
                await until(lambda: slave.follower.trouble is not None)
                assert f"said nothing for {borne}000 ms" in str(slave.follower.trouble)
            else:
                await until(lambda: not master.source.replicas)
                assert f"said nothing for {borne}000 ms" in caplog.text
            assert borne - 0.1 < clock.monotonic() - begun < borne + 1
            await asyncio.sleep(25 - borne)
            memory.mend()
            fill(master.store, 10)
            await slave.caught_up(master)
            assert_same(master.store, slave.store)
            assert len(master.source.replicas) == 1

    virtual(work)


@pytest.mark.parametrize("silent", ["10.0.0.11", "10.0.0.12"])
def test_a_stall_of_one_way_ends_the_connection_and_counts_nothing(
    silent: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """For 25 s nothing arrives that one end sends, and the other way is open. What is stored meanwhile counts as copied
    when the next connection has said so, also if the slave had it long before."""

    async def work(clock: VirtualClock) -> None:
        async with pair(tmp_path, clock, count=3) as (master, slave):
            await slave.caught_up(master)
            await until(lambda: master.source.acks.reached(1) == master.store.max_commitlog_offset)
            (first,) = master.source.replicas
            memory, begun = memory_of(slave.network), clock.monotonic()
            memory.cut(silent, "10.0.0.11" if silent == "10.0.0.12" else "10.0.0.12", one_way=True)
            fill(master.store, 10)
            wait = master.source.acks.wait(master.store.max_commitlog_offset, 1)
            if silent == "10.0.0.12":
                await slave.caught_up(master)
            await until(lambda: not master.source.replicas)
            said = str(slave.follower.trouble) if silent == "10.0.0.11" else caplog.text
            assert "said nothing for 20000 ms (haHousekeepingInterval)" in said
            assert 15 < clock.monotonic() - begun < 22  # the last heartbeat may be a while ago
            await asyncio.sleep(begun + 25 - clock.monotonic())
            assert not wait.ended
            memory.mend()
            assert await wait
            assert_same(master.store, slave.store)
            assert slave.store.max_commitlog_offset == master.store.max_commitlog_offset
            assert len(master.source.replicas) == 1 and first not in master.source.replicas

    virtual(work)


def test_pause_between_attempts_grows_and_starts_anew_after_data(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with pair(tmp_path, clock, count=3) as (master, slave):
            await slave.caught_up(master)
            ports = (master.server.port, master.source.port)
            await master.stop()
            trace = memory_of(slave.network).trace
            del trace[:]
            await asyncio.sleep(60)
            times = [at for at, _, _, what in trace if what == f"refused {ports[1]}"]
            pauses = [later - at for at, later in pairwise(times)]
            assert pauses[0] < 0.5 and max(pauses) < 5.1 < pauses[-1] + 0.2 and len(times) < 25
            master.open()
            await master.start(*ports)
            fill(master.store, 3)
            await slave.caught_up(master)

    virtual(work)


# -- what is refused -------------------------------------------------------------------------


def test_slave_ahead_is_refused_and_says_by_how_much(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(clock: VirtualClock) -> None:
        async with pair(tmp_path, clock, count=10) as (master, slave):
            await slave.caught_up(master)
            ports = (master.server.port, master.source.port)
            last = master.store.last_record()
            assert last is not None
            await master.stop()
            cut_back(master, last[0])
            await master.start(*ports)
            await until(lambda: slave.follower.state is State.REFUSED)
            ours, theirs = slave.store.max_commitlog_offset, master.store.max_commitlog_offset
            assert theirs == last[0]
            assert f"our log ends at {ours}" in str(slave.follower.trouble)
            assert f"our last {ours - theirs} bytes" in str(slave.follower.trouble)
            assert "broker rejoin" in str(slave.follower.trouble) and "broker promote" in caplog.text
            # It is looked at again and again, and neither acknowledged nor changed.
            asked = len(master.asked)
            await asyncio.sleep(20)
            assert 3 <= len(master.asked) - asked <= 10
            assert slave.store.max_commitlog_offset == ours and not master.source.acks.connected
            # The master writes something else there and beyond: that is another log.
            fill(master.store, 12, start=50)
            assert master.store.max_commitlog_offset > ours
            await until(lambda: "different records" in str(slave.follower.trouble))
            assert slave.follower.state is State.REFUSED and str(last[0]) in str(slave.follower.trouble)

    virtual(work)


def test_slave_behind_the_masters_first_file_is_refused(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with pair(tmp_path, clock, count=5) as (master, slave):
            await slave.caught_up(master)
            await slave.follower.close()
            fill(master.store, 60)
            master.store.flush()
            drop_files(master.store, 2)
            await slave.follow(master)
            await until(lambda: slave.follower.state is State.REFUSED)
            ours, begin = slave.store.max_commitlog_offset, master.store.min_commitlog_offset
            assert ours < begin == 2 * 4096
            assert f"ends at {ours}" in str(slave.follower.trouble)
            assert f"begins at {begin}" in str(slave.follower.trouble)
            assert "empty its store folder" in str(slave.follower.trouble)

    virtual(work)


def test_file_deleted_under_a_slave_that_is_connected_is_noticed(tmp_path: Path) -> None:
    """Apache's master would send heartbeats for ever."""

    async def work(clock: VirtualClock) -> None:
        async with pair(tmp_path, clock, count=5) as (master, slave):
            await slave.caught_up(master)
            memory = memory_of(slave.network)
            memory.cut("10.0.0.11", "10.0.0.12")
            master.store.appended = None
            fill(master.store, 60)
            master.store.flush()
            drop_files(master.store, 2)
            memory.mend()
            await until(lambda: slave.follower.state is State.REFUSED)
            assert f"begins at {2 * 4096}" in str(slave.follower.trouble)

    virtual(work)


def test_empty_slave_of_a_master_that_deleted_files_begins_with_its_first(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with pair(tmp_path, clock) as (master, slave):
            await slave.follower.close()
            fill(master.store, 60)
            master.store.flush()
            drop_files(master.store, 2)
            await slave.follow(master)
            await slave.caught_up(master)
            assert slave.store.min_commitlog_offset == master.store.min_commitlog_offset == 2 * 4096
            assert_same(master.store, slave.store)

    virtual(work)


def test_torn_record_of_another_master_is_given_up(tmp_path: Path) -> None:
    """What is left of a record may not be completed by the bytes of a different one."""

    async def work(clock: VirtualClock) -> None:
        async with pair(tmp_path, clock, count=5) as (master, slave):
            await slave.caught_up(master)
            await slave.follower.close()
            end = slave.store.max_commitlog_offset
            fill(master.store, 1, start=20)
            whole = bytes(master.store.log_bytes(end, 1000))
            slave.store.receive(end, whole[:60])
            assert slave.store.received_offset == end + 60
            cut_back(master, end, running=True)
            await asyncio.sleep(1)
            fill(master.store, 4, start=40)
            begun = clock.monotonic()
            await slave.follow(master)
            await slave.caught_up(master)
            assert_same(master.store, slave.store)
            assert clock.monotonic() - begun < 1  # nothing had to be refused before

    virtual(work)


def test_full_disk_of_a_slave_passes(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with pair(tmp_path, clock, count=5) as (master, slave):
            await slave.caught_up(master)
            files = slave.store.files
            assert isinstance(files, FailingFiles)
            files.room = 500
            fill(master.store, 20, start=30)
            await until(lambda: slave.follower.trouble is not None and slave.store.read_only_reason)
            assert "append at commit-log offset" in str(slave.follower.trouble)
            await asyncio.sleep(10)
            assert slave.store.max_commitlog_offset < master.store.max_commitlog_offset
            files.room = None
            assert slave.store.probe_writable()
            await slave.caught_up(master)
            assert_same(master.store, slave.store)

    virtual(work)


# -- whom it copies --------------------------------------------------------------------------


async def copy_of(master: MasterEnd, folder: Path, clock: VirtualClock) -> MasterEnd:
    """Another broker that has the same log and serves slaves, too."""
    other = MasterEnd(folder, memory_of(master.network).host("10.0.0.55"), clock)
    other.store.follow()
    other.store.receive(0, log_of(master.store, 0, master.store.max_commitlog_offset))
    other.store.lead()
    await other.start()
    return other


def test_another_master_is_taken_at_once_and_none_too(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with pair(tmp_path, clock, count=5) as (master, slave):
            await slave.caught_up(master)
            slave.follower.aim(None, None)
            await until(lambda: not master.source.replicas)
            assert slave.follower.state is State.SEEKING
            await asyncio.sleep(30)
            assert not master.source.replicas
            slave.follower.aim(master.ha_address, master.address)
            begun = clock.monotonic()
            await until(lambda: slave.follower.is_connected)
            assert clock.monotonic() - begun < 0.1
            replica = master.source.replicas[-1]
            slave.follower.aim(master.ha_address, master.address)  # the same again changes nothing
            await asyncio.sleep(5)
            assert master.source.replicas == [replica]

    virtual(work)


def test_connection_that_was_under_way_when_another_master_was_named_is_not_used(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with pair(tmp_path, clock, count=5) as (master, slave):
            await slave.caught_up(master)
            old = await copy_of(master, tmp_path / "old", clock)
            connect = slave.network.connect

            async def renamed_meanwhile(make: Any, host: str, *rest: Any) -> Any:
                link = await connect(make, host, *rest)
                slave.follower.aim(master.ha_address, master.address)
                return link

            with patch.object(slave.network, "connect", renamed_meanwhile):
                slave.follower.aim(old.ha_address, old.address)
                async with asyncio.timeout(10):
                    await until(lambda: master.source.replicas and slave.follower.is_connected)
            assert not old.source.replicas
            fill(master.store, 3, start=50)
            await slave.caught_up(master)
            await old.stop()

    virtual(work)


def test_log_of_another_broker_than_the_one_that_was_asked_is_noticed(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with pair(tmp_path, clock, count=5) as (master, slave):
            await slave.caught_up(master)
            other = await copy_of(master, tmp_path / "other", clock)
            # As if haMasterAddress named a broker that the name servers do not call the master any more.
            slave.follower.aim(master.ha_address, other.address)
            await until(lambda: slave.follower.is_connected)
            fill(other.store, 20, start=100)
            fill(master.store, 3, start=50)
            async with asyncio.timeout(10):
                await until(lambda: slave.follower.state is State.REFUSED)
            assert "have different records at" in (slave.follower.trouble or "")
            await other.stop()

    virtual(work)


def test_a_slave_that_cannot_be_served_costs_no_message(tmp_path: Path) -> None:
    """It is sent the log within the commit, which must go on."""

    async def work(clock: VirtualClock) -> None:
        async with pair(tmp_path, clock) as (master, slave):
            await until(lambda: slave.follower.state is State.FOLLOWING)
            replica = master.source.replicas[0]
            await until(lambda: replica.is_idle)
            with patch.object(replica.dialect, "head", side_effect=ValueError("no such epoch")):
                fill(master.store, 3)
                assert master.store.queue("orders", 0).max_offset == 1
                await until(lambda: replica not in master.source.replicas)
            await slave.caught_up(master)
            assert_same(master.store, slave.store)

    virtual(work)
