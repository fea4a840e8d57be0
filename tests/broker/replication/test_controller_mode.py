"""Brokers with a controller, which is scripted; in virtual time, over a network in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import pytest

from gimbalmq.broker.broker import Broker
from gimbalmq.broker.replication.figures import figures
from gimbalmq.broker.replication.follower import State
from gimbalmq.errors import ResponseError, RocketMQError
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.ha_epochs import Epoch
from gimbalmq.protocol.replication_bodies import EpochTable
from gimbalmq.rpc import management, replication
from gimbalmq.testing.loop import VirtualClock, run_virtual
from tests.broker.replication.controlled import (
    NAME,
    TOPIC,
    Set,
    has_all,
    log_of,
    replicas,
    stored,
    trouble,
    until,
)


def epochs(broker: Broker) -> tuple[Epoch, ...]:
    assert broker.controller_mode is not None
    return broker.controller_mode.epochs.entries


def test_sends_wait_for_all_of_the_set(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            first, second = made.brokers[1], made.brokers[2]
            assert first.roles.is_master and not second.roles.is_master
            await made.in_sync(1, 2)
            assert await made.send(first, 20) == [0] * 20
            # What was answered is there without waiting.
            assert has_all(second, made.accepted)
            assert second.store.max_commitlog_offset == first.store.max_commitlog_offset
            assert epochs(first) == epochs(second) == (Epoch(1, 0),)
            assert await made.send(second) == [ResponseCode.SERVICE_NOT_AVAILABLE]

    run_virtual(work)


def test_the_slave_goes_on_when_the_master_dies(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            await made.send(made.brokers[1], 10)
            await made.kill(1)
            second = made.brokers[2]
            await until(lambda: second.roles.is_master)
            assert second.roles.now.epoch == 2
            assert await made.send(second, 5) == [0] * 5
            assert has_all(second, made.accepted)
            assert [entry.epoch for entry in epochs(second)] == [1, 2]
            first = await made.start(1)
            assert not first.roles.is_master
            await made.in_sync(1, 2)
            assert has_all(first, made.accepted) and epochs(first) == epochs(second)

    run_virtual(work)


def test_a_slave_that_loses_its_master_does_not_wait_for_a_notice(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            made.controller.notify = lambda _: None
            await asyncio.sleep(5.0)
            moment = clock.monotonic()
            await made.kill(1)
            await until(lambda: made.brokers[2].roles.is_master)
            assert clock.monotonic() - moment < 2.0

    run_virtual(work)


@pytest.mark.parametrize("since", [0, 4], ids=["its log is the longer one", "its log is the shorter one"])
def test_an_old_master_cuts_what_nobody_else_has(tmp_path: Path, since: int) -> None:
    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            first, second = made.brokers[1], made.brokers[2]
            await made.send(first, 3)
            # The slave is gone for the master and not for the controller: nothing more is confirmed.
            await second.replication.follower.close()
            made.controller.refuse[RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET] = 2001
            codes = await made.send(first, 1)
            assert codes == [ResponseCode.FLUSH_SLAVE_TIMEOUT] or codes == [0]
            lost = first.store.max_commitlog_offset - second.store.max_commitlog_offset
            assert lost > 0
            made.controller.replicas[NAME].in_sync = {1, 2}
            await made.kill(1)
            await until(lambda: second.roles.is_master)
            made.accepted = [body for body in made.accepted if body in b"".join(stored(second))]
            await made.send(second, since)
            first = await made.start(1)
            await made.in_sync(1, 2)
            assert log_of(first) == log_of(second)
            assert epochs(first) == epochs(second)

    run_virtual(work)


@pytest.mark.parametrize(("alone", "since"), [(1, 5), (3, 1)], ids=["shorter", "longer"])
def test_a_term_without_data_does_not_hide_that_logs_differ(tmp_path: Path, alone: int, since: int) -> None:
    """Apache's brokers would take the two logs for the same: epoch and start are equal, and bytes are not."""

    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            first, second = made.brokers[1], made.brokers[2]
            await made.send(first, 2)
            await second.replication.follower.close()
            made.controller.refuse[RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET] = 2001
            await made.send(first, alone, size=200)
            made.controller.replicas[NAME].in_sync = {1, 2}
            await made.kill(1)
            await until(lambda: second.roles.is_master)
            mode = second.controller_mode
            assert mode is not None
            # As if the new term had begun where the old one did: it leaves no entry.
            mode.epochs.cut(1)
            await made.send(second, since, size=70)
            first = await made.start(1)
            await made.in_sync(1, 2)
            assert log_of(first) == log_of(second)

    run_virtual(work)


def test_what_the_first_master_wrote_alone_is_not_taken_for_its_successors(tmp_path: Path) -> None:
    """Nothing was written in the first term when it ended, so both terms begin at the same place."""

    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            first, second = made.brokers[1], made.brokers[2]
            await until(lambda: epochs(second) == (Epoch(1, 0),))
            made.network.cut("10.0.0.1", "10.0.0.2")
            made.network.cut("10.0.0.1", "10.0.0.101")
            assert await made.send(first, 3, size=300) == [ResponseCode.FLUSH_SLAVE_TIMEOUT] * 3
            made.controller.missed(NAME, 1)
            await until(lambda: second.roles.is_master)
            await made.send(second, 3, size=70)
            made.network.mend()
            await made.in_sync(1, 2)
            assert log_of(first) == log_of(second)
            assert epochs(first) == epochs(second) == (Epoch(1, 0), Epoch(2, 0))

    run_virtual(work)


def test_the_controllers_death_changes_nothing(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            await made.controller.close()
            assert await made.send(made.brokers[1], 5) == [0] * 5
            assert made.brokers[1].roles.is_master and has_all(made.brokers[2], made.accepted)

    run_virtual(work)


def test_a_slave_that_leaves_is_waited_for_until_the_controller_knows(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            await made.kill(2)
            assert await made.send(made.brokers[1]) == [0]
            assert made.controller.replicas[NAME].in_sync == {1}

    run_virtual(work)


def test_a_master_cut_off_from_its_slave_goes_on_alone_and_nobody_else_is_elected(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            made.network.cut("10.0.0.1", "10.0.0.2")
            await made.in_sync(1)
            assert await made.send(made.brokers[1], 3) == [0] * 3
            await made.kill(1)
            # What the first one took alone is on its disk only: whoever lacks it is not elected.
            await asyncio.sleep(60.0)
            assert not made.brokers[2].roles.is_master
            made.network.mend()
            first = await made.start(1)
            assert first.roles.is_master and has_all(first, made.accepted)
            await made.in_sync(1, 2)
            assert has_all(made.brokers[2], made.accepted)

    run_virtual(work)


def test_a_master_that_its_controller_does_not_hear_either_answers_nothing_that_is_cut(
    tmp_path: Path,
) -> None:
    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            first, second = made.brokers[1], made.brokers[2]
            await made.send(first, 3)
            for host in ("10.0.0.2", "10.0.0.101", "10.0.0.100"):
                made.network.cut("10.0.0.1", host)
            assert await made.send(first, 3) == [ResponseCode.FLUSH_SLAVE_TIMEOUT] * 3
            made.controller.missed(NAME, 1)
            await until(lambda: second.roles.is_master)
            assert await made.send(first) == [ResponseCode.FLUSH_SLAVE_TIMEOUT]
            assert await made.send(second, 2) == [0] * 2
            made.network.mend()
            await until(lambda: not first.roles.is_master)
            await made.in_sync(1, 2)
            assert has_all(second, made.accepted) and log_of(first) == log_of(second)

    run_virtual(work)


def test_a_master_alone_refuses_sends_if_more_must_be_in_sync(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2, inSyncReplicas=2, minInSyncReplicas=2) as made:
            await made.in_sync(1, 2)
            made.network.cut("10.0.0.1", "10.0.0.2")
            await made.in_sync(1)
            first = made.brokers[1]
            end = first.store.max_commitlog_offset
            assert await made.send(first, 2) == [ResponseCode.SYSTEM_ERROR] * 2
            assert first.store.max_commitlog_offset == end and first.roles.is_master

    run_virtual(work)


def test_a_slave_that_the_controller_does_not_hear_does_not_keep_an_old_question_alive(
    tmp_path: Path,
) -> None:
    """It is asked for, and refused, again and again; nothing of that tells what became of the question."""

    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 3) as made:
            first, third = made.brokers[1], made.brokers[3]
            await made.in_sync(1, 2)
            for host in ("10.0.0.1", "10.0.0.101"):
                made.network.cut("10.0.0.3", host)
            made.controller.missed(NAME, 2)
            await made.in_sync(1)
            made.controller.late[RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET] = asyncio.Event()
            await made.start(2)
            await until(lambda: not made.controller.late)
            await made.kill(2)
            made.network.mend()
            made.network.cut("10.0.0.3", "10.0.0.101")
            await until(lambda: len(first.source.replicas) == 1)
            assert await made.send(first) == [ResponseCode.FLUSH_SLAVE_TIMEOUT]
            moment = clock.monotonic()
            while await made.send(first) != [ResponseCode.SUCCESS]:
                assert clock.monotonic() - moment < 15.0, "the one that is gone counts for ever"
            assert made.controller.replicas[NAME].in_sync == {1}
            assert log_of(third) == log_of(first)

    run_virtual(work)


@pytest.mark.parametrize("left_before", [False, True], ids=["a member", "one that joins"])
def test_a_slave_that_the_controller_does_not_hear_does_not_keep_a_dead_one_in_the_set(
    tmp_path: Path, left_before: bool
) -> None:
    """The controller takes no set with somebody in it whom it does not hear."""

    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2, 3) as made:
            await made.in_sync(1, 2, 3)
            made.network.cut("10.0.0.3", "10.0.0.101")
            if left_before:
                made.network.cut("10.0.0.3", "10.0.0.1")
                await made.in_sync(1, 2)
            made.controller.missed(NAME, 3)
            made.network.mend()
            made.network.cut("10.0.0.3", "10.0.0.101")
            first, third = made.brokers[1], made.brokers[3]
            await until(lambda: third.store.max_commitlog_offset == first.store.max_commitlog_offset)
            await until(lambda: len(first.source.replicas) == 2)
            await made.kill(2)
            await made.in_sync(1)
            assert await made.send(first) == [ResponseCode.SUCCESS]
            made.network.mend()
            await made.in_sync(1, 3)
            assert has_all(third, made.accepted)

    run_virtual(work)


def test_tools_hear_that_a_master_has_lost_its_controller(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1) as made:
            first = made.brokers[1]
            assert (await replication.ha_status(made.pool, first.address)).trouble is None
            await made.controller.close()
            await until(lambda: trouble(first))
            status = await replication.ha_status(made.pool, first.address)
            assert status.master and "stay as they are" in (status.trouble or "")
            shown = {figure.name: figure.rows for figure in figures(first.replication.status(), 0)}
            assert shown["replication_trouble"] == [((), 1)]

    run_virtual(work)


def test_readers_see_what_is_confirmed(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            first, second = made.brokers[1], made.brokers[2]
            await made.send(first, 4)
            await second.replication.follower.close()
            made.controller.refuse[RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET] = 2001
            confirmed = first.store.max_commitlog_offset
            sending = asyncio.ensure_future(made.send(first, 1))
            await until(lambda: first.store.max_commitlog_offset > confirmed)
            assert first.store.reader_limit == confirmed
            assert first.replication.waiting == 1
            assert (
                sum(
                    first.store.readable_max(queue)
                    for queue_id in range(4)
                    if (queue := first.store.find_queue(TOPIC, queue_id)) is not None
                )
                == 4
            )
            await sending
            await until(lambda: first.store.reader_limit == first.store.max_commitlog_offset)

    run_virtual(work)


def test_after_a_crash_readers_do_not_see_what_was_not_confirmed(tmp_path: Path) -> None:
    """Also if it comes before the first checkpoint: nothing tells then what was confirmed."""

    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            first, second = made.brokers[1], made.brokers[2]
            await made.send(first, 4)
            await second.replication.follower.close()
            made.controller.refuse[RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET] = 2001
            confirmed = first.store.max_commitlog_offset
            sending = asyncio.ensure_future(made.send(first, 1))
            await until(lambda: first.store.max_commitlog_offset > confirmed)
            await made.kill(1)
            await asyncio.wait([sending])
            assert isinstance(sending.exception(), RocketMQError)
            again = await made.begin(1)
            assert again.store.max_commitlog_offset > confirmed >= (again.store.reader_limit or 0)
            assert again.store.reader_limit is not None

    run_virtual(work)


def test_epochs_are_told(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1) as made:
            await made.send(made.brokers[1])
            answer = await made.pool.call(
                made.brokers[1].address, RemotingCommand(RequestCode.GET_BROKER_EPOCH_CACHE), 3.0
            )
            table = EpochTable.parse(answer.body)
            assert (table.broker_id, table.broker_name) == (1, NAME)
            end = made.brokers[1].store.max_commitlog_offset
            assert [(e.epoch, e.start_offset, e.end_offset) for e in table.epoch_list] == [(1, 0, end)]

    run_virtual(work)


def test_a_slave_behind_by_files_catches_up_and_joins(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1) as made:
            await made.send(made.brokers[1], 60, size=50_000)
            second = await made.start(2)
            await made.in_sync(1, 2)
            assert second.store.min_commitlog_offset == 0
            await until(lambda: second.replication.follower.state is State.FOLLOWING)
            assert log_of(second) == log_of(made.brokers[1])

    run_virtual(work)


@pytest.mark.parametrize(
    ("times", "words"), [(0, "the master would go on at"), (2, "bytes came at commit-log offset")]
)
def test_a_packet_that_is_lost_or_comes_twice_ends_the_connection(
    times: int, words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What comes behind it is of another place, and not even looked at; the next connection brings it. Behind a lost
    packet that is a heartbeat here, because sends wait."""

    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            first, second = made.brokers[1], made.brokers[2]
            assert await made.send(first, 10) == [0] * 10
            (replica,) = first.replication.source.replicas
            transport = replica._transport
            assert transport is not None
            write, meant = transport.writelines, list[int]()

            def otherwise(packets: Sequence[bytes | memoryview]) -> None:
                for _ in range(1 if meant else times):
                    write(packets)
                meant.append(len(packets))

            with patch.object(transport, "writelines", otherwise):
                assert set(await made.send(first, 10)) <= {0, ResponseCode.FLUSH_SLAVE_TIMEOUT}
                await until(lambda: replica not in first.replication.source.replicas)
            assert meant and words in caplog.text
            await made.in_sync(1, 2)
            assert await made.send(first, 1) == [0]
            assert log_of(second) == log_of(first) and has_all(second, made.accepted)
            assert stored(second) == stored(first) and epochs(second) == epochs(first)

    run_virtual(work)


def test_a_restart_of_all_finds_everything(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            await made.send(made.brokers[1], 10)
            await made.kill(2)
            await made.send(made.brokers[1], 2)
            await made.kill(1)
            # Only 1 has everything; 2 waits for it.
            second = await made.begin(2)
            await until(lambda: "none of those that have everything" in trouble(second))
            assert not second.roles.is_master
            first = await made.start(1)
            assert first.roles.is_master
            await made.in_sync(1, 2)
            assert has_all(made.brokers[2], made.accepted)

    run_virtual(work)


async def started_again_unnoticed(made: Set) -> Broker:
    """The master's process is killed and started again, and the controller hears it all the time."""
    made.controller.forget_connections()
    await made.kill(1)
    again = await made.start(1)
    assert again.roles.is_master and epochs(again) == (Epoch(1, 0),)
    assert made.controller.replicas[NAME].master_epoch == 1
    return again


def test_what_a_killed_master_asked_may_be_granted_to_the_next_process(tmp_path: Path) -> None:
    """The question is of the same term and set. Whoever gets into the set by it must have all that is answered."""

    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1) as made:
            arrives = made.controller.late[RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET] = asyncio.Event()
            await made.start(2)
            await until(lambda: not made.controller.late)
            made.network.cut("10.0.0.1", "10.0.0.2")
            again = await started_again_unnoticed(made)
            confirmed = again.store.reader_limit or 0
            await made.send(again, 2)
            assert again.store.max_commitlog_offset > confirmed == again.store.reader_limit
            arrives.set()
            await until(lambda: made.controller.replicas[NAME].in_sync == {1, 2})
            made.controller.missed(NAME, 1)
            await until(lambda: made.brokers[2].roles.is_master)
            assert has_all(made.brokers[2], made.accepted)

    run_virtual(work)


def test_what_a_killed_master_asked_in_a_term_without_data_may_be_granted_to_the_next_process(
    tmp_path: Path,
) -> None:
    """The epochs of the log do not name such a term if the one before has no data, either."""

    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1) as made:
            first, known = made.brokers[1], made.controller.replicas[NAME]
            await made.send(first, 2)
            for _ in range(2):
                # Nobody else is in the set, so the one that was missed is elected once more.
                epoch = known.master_epoch
                made.controller.missed(NAME, 1)
                await until(lambda epoch=epoch: first.roles.now.epoch > epoch and first.roles.is_master)  # type: ignore[misc]
            term = known.master_epoch
            assert epochs(first)[-1].epoch < term
            arrives = made.controller.late[RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET] = asyncio.Event()
            await made.start(2)
            await until(lambda: not made.controller.late)
            made.network.cut("10.0.0.1", "10.0.0.2")
            made.controller.forget_connections()
            await made.kill(1)
            again = await made.start(1)
            assert again.roles.is_master and known.master_epoch == term
            await made.send(again, 2)
            arrives.set()
            await until(lambda: known.in_sync == {1, 2})
            made.controller.missed(NAME, 1)
            await until(lambda: made.brokers[2].roles.is_master)
            assert has_all(made.brokers[2], made.accepted)

    run_virtual(work)


def test_a_master_alone_that_was_started_again_answers_after_ten_seconds(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1) as made:
            await made.send(made.brokers[1], 3)
            again = await started_again_unnoticed(made)
            moment = clock.monotonic()
            while await made.send(again) != [0]:
                assert clock.monotonic() - moment < 15.0, "what the process before asked counts for ever"
            assert 10.0 <= clock.monotonic() - moment < 12.0
            assert again.store.reader_limit == again.store.max_commitlog_offset

    run_virtual(work)


def test_what_the_process_before_asked_is_void_when_a_slave_has_joined(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1) as made:
            arrives = made.controller.late[RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET] = asyncio.Event()
            await made.start(2)
            await until(lambda: not made.controller.late)
            again = await started_again_unnoticed(made)
            moment = clock.monotonic()
            await made.in_sync(1, 2)
            assert await made.send(again) == [0] and clock.monotonic() - moment < 6.0
            arrives.set()
            await until(lambda: made.controller.denied_late)
            assert made.controller.denied_late == [ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED]

    run_virtual(work)


def test_a_role_cannot_be_given_by_hand(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1) as made:
            try:
                await management.update_broker_config(
                    made.pool, made.brokers[1].address, {"brokerRole": "SLAVE", "brokerId": "1"}
                )
            except ResponseError as error:
                assert "controller" in error.remark
            else:
                raise AssertionError("the role was changed by hand")

    run_virtual(work)
