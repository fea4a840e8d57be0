"""Two brokers of one name: the slave is a copy, refuses what it must, becomes the master, and the old one comes back.

Everything runs in virtual time, over a network in memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest

from gimbalmq._steps import Steps
from gimbalmq.broker.broker import Broker
from gimbalmq.broker.replication import replication
from gimbalmq.broker.replication.follower import State
from gimbalmq.broker.transactions import COMMIT, ROLLBACK
from gimbalmq.client.instance import ClientInstance
from gimbalmq.client.transaction import TransactionProducer
from gimbalmq.errors import ConfigError, InvalidParameterError
from gimbalmq.model import properties as prop
from gimbalmq.model import topics as names
from gimbalmq.model.flags import TRANSACTION_PREPARED
from gimbalmq.model.message import Message
from gimbalmq.model.results import SendStatus, TransactionState
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.rpc import management
from gimbalmq.rpc import replication as calls
from gimbalmq.store.cutting import CutReport
from gimbalmq.transport.network import split_address
from tests.broker.desk import send_fields
from tests.broker.replication.pairs import FILE, Pair, bodies, delivered, half, log_of, pair
from tests.peers.folders import Log


def test_a_slave_is_a_copy_of_its_master_byte_by_byte() -> None:
    async def body(pair: Pair) -> None:
        await pair.send(*(f"{number:04} " * 100 for number in range(200)))
        await pair.copied()
        assert pair.master.store.max_commitlog_offset > 3 * FILE
        assert log_of(pair.slave) == log_of(pair.master)
        assert bodies(pair.slave, "T") == bodies(pair.master, "T") != []
        assert await pair.addresses() == {0: pair.master.address, 1: pair.slave.address}
        status = pair.slave.replication.status()
        assert (status.master, status.master_ha) == (
            pair.master.address,
            pair.master.replication.ha_address,
        )
        assert (status.lag, status.trouble, status.state) == (0, None, "following")
        [slave] = pair.master.replication.status().slaves
        assert (slave.acked, slave.behind, slave.in_sync) == (pair.master.store.max_commitlog_offset, 0, True)

    pair(body)


def test_what_both_ends_tell_of_the_copy_is_what_their_files_hold() -> None:
    """Also while the slave is behind: the files are read by another reader than the brokers'."""

    async def body(pair: Pair) -> None:
        def file_end(broker: Broker) -> int:
            return Log.read(Path(broker.live.now.store_path_root_dir)).end

        for number in range(3):
            # Half a record is in the slave's file already when the line is cut within it.
            pair.network.tear("10.0.0.12" if number == 1 else "nobody")
            await pair.send(*(f"{number} {each:04} " * 100 for each in range(60)))
            await pair.copied()
            await pair.until(lambda: pair.master.replication.source.acks.reached(1) == file_end(pair.slave))
            if number == 2:
                pair.network.cut("10.0.0.11", "10.0.0.12")
                await pair.send("more")
            master = await calls.ha_status(pair.pool, pair.master.address)
            slave = await calls.ha_status(pair.pool, pair.slave.address)
            assert master.master and not slave.master
            assert master.master_commit_log_max_offset == file_end(pair.master) > (number + 1) * FILE
            assert slave.ha_client_runtime_info.max_offset == file_end(pair.slave)
            (link,) = master.ha_connection_info
            assert link.slave_ack_offset == file_end(pair.slave)
            assert link.diff == file_end(pair.master) - file_end(pair.slave)
            assert (link.diff > 0) == (number == 2)

    pair(body)


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE])
def test_a_slave_takes_no_messages_and_says_who_does(code: int) -> None:
    async def body(pair: Pair) -> None:
        await pair.send("one")
        await pair.copied()
        end = pair.slave.store.max_commitlog_offset
        for name in ("T", "Unknown"):
            answer = await pair.ask(pair.slave, code, send_fields(name), b"body")
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert pair.master.address in (answer.remark or "")
        assert pair.slave.store.received_offset == end
        assert "Unknown" not in pair.slave.topics

    pair(body)


def test_a_slave_refuses_what_its_master_would_overwrite() -> None:
    async def body(pair: Pair) -> None:
        await pair.send("one")
        await pair.copied()
        for code, expected, words in (
            (RequestCode.CONSUMER_SEND_MSG_BACK, ResponseCode.SYSTEM_ERROR, "no master available along with"),
            (RequestCode.END_TRANSACTION, ResponseCode.SLAVE_NOT_AVAILABLE, "transaction"),
            (RequestCode.UPDATE_AND_CREATE_TOPIC, ResponseCode.SYSTEM_ERROR, "from slave broker"),
            (RequestCode.DELETE_TOPIC_IN_BROKER, ResponseCode.SYSTEM_ERROR, "from slave broker"),
            (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, ResponseCode.SYSTEM_ERROR, "from slave broker"),
            (RequestCode.DELETE_SUBSCRIPTIONGROUP, ResponseCode.SYSTEM_ERROR, "from slave broker"),
            (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ResponseCode.SYSTEM_ERROR, "Can not reset offset"),
            (RequestCode.LOCK_BATCH_MQ, ResponseCode.SYSTEM_ERROR, "locks no queues"),
        ):
            answer = await pair.ask(pair.slave, code, {"topic": "T"})
            assert (answer.code, words in (answer.remark or "")) == (expected, True), code
            assert pair.master.address in (answer.remark or "")

    pair(body)


def test_a_promoted_slave_goes_on_where_the_master_stopped() -> None:
    async def body(pair: Pair) -> None:
        await pair.send(*(f"before {number}" for number in range(20)))
        queue = {"consumerGroup": "g", "topic": "T", "queueId": "0"}
        await pair.ask(pair.master, RequestCode.UPDATE_CONSUMER_OFFSET, queue | {"commitOffset": "7"})
        await pair.copied()
        await pair.until(lambda: pair.slave.offsets.get("g", "T", 0) == 7, seconds=1.0)
        old = pair.master.address
        await pair.cluster.kill_broker(0)
        await pair.set(pair.slave, brokerRole="ASYNC_MASTER", brokerId=0)
        new = pair.slave
        await pair.until(lambda: new.roles.is_master)
        async with asyncio.timeout(2.0):  # long before it registers by the clock
            while await pair.addresses() != {0: new.address}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert old != new.address
        answer = await pair.send("after", to=new)
        assert answer["queueOffset"] == "20"
        asked = await pair.ask(new, RequestCode.QUERY_CONSUMER_OFFSET, queue)
        assert asked.ext_fields == {"offset": "7"}
        assert bodies(new, "T")[-2:] == ["before 19", "after"]
        assert (await management.broker_config(pair.pool, new.address))["brokerRole"] == "ASYNC_MASTER"

    pair(body)


def test_delayed_messages_and_timers_are_delivered_once_over_a_promotion() -> None:
    async def body(pair: Pair) -> None:
        sent = []
        for round_number in range(6):
            for kind in ({prop.DELAY: "2"}, {prop.TIMER_DELAY_SEC: "5"}, {prop.TIMER_DELAY_SEC: "12"}):
                sent.append(f"{round_number} {kind}")
                await pair.send(sent[-1], properties=kind)
            await asyncio.sleep(1.0)
        await pair.until(lambda: len(bodies(pair.master, "T")) >= 4)
        # What the master has delivered now is told by marks in the log, not yet by tables.
        await pair.copied()
        before = delivered(pair.slave)
        assert before and len(before) < len(sent)
        await pair.cluster.kill_broker(0)
        await pair.cluster.promote_broker(1)
        await pair.until(lambda: len(delivered(pair.slave)) == len(sent))
        await asyncio.sleep(30.0)
        assert delivered(pair.slave) == Counter(sent)

    pair(body)


def test_a_slave_that_never_heard_of_progress_finds_it_in_the_log() -> None:
    async def body(pair: Pair) -> None:
        await pair.send(*(f"old {number}" for number in range(5)), properties={prop.DELAY: "1"})
        await pair.send("timer", properties={prop.TIMER_DELAY_SEC: "2"})
        await pair.until(lambda: len(bodies(pair.master, "T")) == 6)
        await pair.send("waits", properties={prop.DELAY: "3"})
        await pair.copied()
        slave = pair.slave
        slave.copies.aim(None)
        slave.delays.copy({})  # as if it had been asked for nothing yet
        slave.timers._rests = None
        await pair.cluster.kill_broker(0)
        await pair.cluster.promote_broker(1)
        await pair.until(lambda: len(delivered(slave)) == 7)
        await asyncio.sleep(30.0)
        assert set(delivered(slave).values()) == {1}

    pair(body)


def test_half_messages_are_ended_and_asked_about_after_a_promotion() -> None:
    async def body(pair: Pair) -> None:
        answers = [
            await pair.send(f"half {number}", sys_flag=TRANSACTION_PREPARED, properties=half(number))
            for number in range(4)
        ]
        await pair.end(pair.master, answers[0], COMMIT)
        await pair.end(pair.master, answers[1], ROLLBACK)
        await pair.copied()
        await pair.cluster.kill_broker(0)
        await pair.cluster.promote_broker(1)
        new = pair.slave
        # Ended before: once more changes nothing. Open: it can be committed here.
        await pair.end(new, answers[0], COMMIT)
        await pair.end(new, answers[2], COMMIT)
        assert delivered(new) == {"half 0": 1, "half 2": 1}
        # The last one is still open, and is asked about again and again until it is given up.
        queue = new.store.find_queue(names.HALF_TOPIC, 0)
        assert queue is not None and queue.max_offset == 4
        await pair.until(lambda: queue.max_offset >= 6)

    pair(body)


@pytest.mark.parametrize(
    ("slave", "status"),
    [("gone", SendStatus.SLAVE_NOT_AVAILABLE), ("stalled", SendStatus.FLUSH_SLAVE_TIMEOUT)],
)
def test_a_transaction_whose_half_was_not_copied_is_rolled_back_for_good(
    slave: str, status: SendStatus
) -> None:
    """Its function does not run. The slave gets the half message and its end, so nobody reads the message or is asked
    about it, also when that slave is the master."""

    async def body(pair: Pair) -> None:
        await pair.send("before")
        await pair.copied()
        await pair.set(pair.master, brokerRole="SYNC_MASTER", slaveTimeout=200)
        if slave == "gone":
            await pair.cluster.kill_broker(1)
            await pair.until(lambda: not pair.master.replication.source.replicas)
        else:
            pair.network.cut("10.0.0.11", "10.0.0.12")
        asked: list[object] = []

        def commits(message: object) -> TransactionState:
            asked.append(message)
            return TransactionState.COMMIT

        host = "10.0.0.98"
        options: dict[str, Any] = {"client_ip": host, "network": pair.network.host(host)}
        producer = TransactionProducer("p", pair.cluster.namesrv, check=commits, **options)
        await producer.start(instance=ClientInstance.shared(producer.config, clock=pair.clock))
        try:
            result = await producer.send_in_transaction(Message("T", b"not safe"), commits)
            assert (result.send.status, result.state) == (status, TransactionState.ROLLBACK)
            pair.network.mend()
            if slave == "gone":
                await pair.cluster.start_broker(1)
            ended = pair.master.store.queue(names.OP_HALF_TOPIC, 0)
            await pair.until(lambda: ended.max_offset)
            await pair.copied()
            await asyncio.sleep(30.0)
            await pair.cluster.kill_broker(0)
            await pair.cluster.promote_broker(1)
            await asyncio.sleep(30.0)
            assert delivered(pair.slave) == {"before": 1} and not asked
        finally:
            await producer.close()

    pair(body)


def test_the_old_master_comes_back_as_a_slave_and_cuts_its_tail_only_when_told_to(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(pair: Pair) -> None:
        await pair.send(*(f"both {number:03} " * 40 for number in range(60)))
        await pair.copied()
        common = pair.master.store.max_commitlog_offset
        # The master goes on alone: nobody has these.
        pair.network.cut("10.0.0.11", "10.0.0.12")
        await pair.send("alone 1", "alone 2")
        tail = pair.master.store.max_commitlog_offset
        await pair.cluster.kill_broker(0)
        pair.network.mend()
        await pair.cluster.promote_broker(1)
        await pair.send("new 1", "new 2", "new 3", to=pair.slave)
        await pair.cluster.demote_broker(0, 2)
        old = await pair.cluster.start_broker(0)
        await pair.until(lambda: old.replication.follower.state is State.REFUSED)
        status = old.replication.status()
        assert status.trouble is not None and str(tail) in status.trouble
        await asyncio.sleep(20.0)
        assert old.store.max_commitlog_offset == tail and bodies(old, "T")[-1] == "alone 2"
        # Not from there: what was seen to be lost is less than that.
        await pair.set(old, haCutTailFrom=common + 1)
        await pair.until(lambda: old.live.now.ha_cut_tail_from == -1)
        assert old.store.max_commitlog_offset == tail
        with caplog.at_level(logging.WARNING):
            await pair.set(old, haCutTailFrom=common)
            await pair.until(lambda: old.store.received_offset == pair.slave.store.max_commitlog_offset)
        assert "2 records are lost (T: 2)" in caplog.text
        assert old.live.now.ha_cut_tail_from == -1
        assert log_of(old) == log_of(pair.slave)
        assert bodies(old, "T")[-4:] == ["both 059 " * 40, "new 1", "new 2", "new 3"]

    pair(body)


def test_a_cut_that_has_begun_is_finished_when_the_broker_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the log would keep records that are in no queue any more."""

    async def body(pair: Pair) -> None:
        await pair.send("both")
        await pair.copied()
        common = pair.master.store.max_commitlog_offset
        pair.network.cut("10.0.0.11", "10.0.0.12")
        await pair.send("alone 1", "alone 2")
        await pair.cluster.kill_broker(0)
        pair.network.mend()
        await pair.cluster.promote_broker(1)
        await pair.cluster.demote_broker(0, 2)
        old = await pair.cluster.start_broker(0)
        await pair.until(lambda: old.replication.follower.state is State.REFUSED)
        cut_steps, begun = old.store.cut_steps, asyncio.Event()

        def slowly(offset: int) -> Steps[CutReport]:
            steps = cut_steps(offset)
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    return cast(CutReport, end.value)
                if "alone 2" not in bodies(old, "T"):
                    begun.set()
                    for _ in range(10_000):
                        yield

        monkeypatch.setattr(old.store, "cut_steps", slowly)
        await pair.set(old, haCutTailFrom=0)
        await begun.wait()
        assert old.store.max_commitlog_offset > common, "the queues go first"
        await old.replication.close()
        assert old.store.max_commitlog_offset == common

    pair(body)


def test_a_master_that_becomes_a_slave_stops_at_once_and_follows() -> None:
    async def body(pair: Pair) -> None:
        first, second = pair.master, pair.slave
        await pair.send("one")
        await pair.send("later", properties={prop.DELAY: "3"})
        await pair.copied()
        await pair.set(first, brokerRole="SLAVE", brokerId=1)
        answer = await pair.ask(first, RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"late")
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        await pair.set(second, brokerRole="SYNC_MASTER", brokerId=0)
        await pair.until(lambda: first.replication.follower.state is State.FOLLOWING)
        # A SYNC_MASTER answers when its slave has it, so that slave is there.
        await pair.send("two", to=second)
        assert first.store.received_offset == second.store.max_commitlog_offset
        await pair.until(lambda: delivered(second)["later"])
        await asyncio.sleep(20.0)
        assert delivered(second) == delivered(first) == {"one": 1, "two": 1, "later": 1}
        assert await pair.addresses() == {0: second.address, 1: first.address}

    pair(body)


def test_a_role_given_by_hand_outlives_a_restart_until_the_configuration_changes() -> None:
    async def body(pair: Pair) -> None:
        await pair.send("one")
        await pair.copied()
        await pair.cluster.stop_broker(0)
        await pair.set(pair.slave, brokerRole="ASYNC_MASTER", brokerId=0)
        again = await pair.cluster.restart_broker(1)
        assert again.roles.is_master
        await pair.send("two", to=again)
        # Its configuration still said SLAVE with id 1; now somebody changes it.
        await pair.cluster.stop_broker(1)
        await pair.cluster.demote_broker(1, 5)
        changed = await pair.cluster.start_broker(1)
        assert not changed.roles.is_master and changed.roles.now.broker_id == 5

    pair(body)


def test_a_second_master_of_the_name_does_not_start() -> None:
    async def body(pair: Pair) -> None:
        await pair.send("one")
        await pair.copied()
        await pair.cluster.kill_broker(0)
        await pair.cluster.promote_broker(1)
        await asyncio.sleep(1.0)
        with pytest.raises(ConfigError, match="is the master of broker-a now"):
            await pair.cluster.start_broker(0)
        await pair.cluster.stop_broker(1)
        await pair.cluster.start_broker(0)  # now it may

    pair(body)


def test_a_role_that_cannot_be_is_refused_and_nothing_changes() -> None:
    async def body(pair: Pair) -> None:
        wrongs: tuple[tuple[dict[str, object], str], ...] = (
            ({"brokerRole": "ASYNC_MASTER"}, "has the id 0"),
            ({"brokerId": 0}, "use 1, 2"),
            ({"brokerRole": "QUEEN", "brokerId": 0}, "ASYNC_MASTER, SYNC_MASTER or SLAVE"),
        )
        for wrong, word in wrongs:
            with pytest.raises(InvalidParameterError, match=word):
                await pair.set(pair.slave, **wrong)
        assert pair.slave.roles.now.broker_id == 1 and pair.slave.live.now.broker_role == "SLAVE"
        await pair.send("one")
        await pair.copied()

    pair(body)


def test_no_slave_of_a_living_master_becomes_one_unless_it_is_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(pair: Pair) -> None:
        first, slave = pair.master, pair.slave
        leads = {"brokerRole": "SYNC_MASTER", "brokerId": "0"}
        with pytest.raises(
            InvalidParameterError, match=f"{first.address} is the master of broker-a and lives"
        ):
            await management.update_broker_config(pair.pool, slave.address, leads)
        # Nobody answers, but the log still comes.
        with monkeypatch.context() as patch:
            patch.setattr(replication, "other_master", nobody)
            with pytest.raises(InvalidParameterError, match="and lives"):
                await management.update_broker_config(pair.pool, slave.address, leads)
        # There is no stream, and name servers are silent: the slave asks the master that it knows.
        await slave.replication.follower.close()
        pair.network.cut("10.0.0.12", split_address(pair.cluster.namesrv)[0])
        with pytest.raises(InvalidParameterError, match="and lives"):
            await management.update_broker_config(pair.pool, slave.address, leads)
        assert slave.roles.now.broker_id == 1
        await management.update_broker_config(pair.pool, slave.address, leads, forces_role=True)
        assert slave.roles.is_master

    pair(body)


async def nobody(*_: object) -> None:
    return None


def test_a_slave_remembers_what_its_master_promised_and_how_many_copied_it(tmp_path: Path) -> None:
    async def body(pair: Pair) -> None:
        slave = pair.slave
        await pair.until(lambda: slave.replication.status().master_role == "ASYNC_MASTER")
        await pair.set(pair.master, brokerRole="SYNC_MASTER")
        await pair.until(lambda: slave.replication.status().master_role == "SYNC_MASTER")
        assert slave.replication.status().master_slaves == 1
        await pair.cluster.kill_broker(0)
        await pair.cluster.stop_broker(1)
        slave = await pair.cluster.start_broker(1)
        status = await calls.ha_status(pair.pool, slave.address)
        heard = status.ha_client_runtime_info
        assert (heard.master_role, heard.master_slaves) == ("SYNC_MASTER", 1)
        # What it heard as a slave says nothing of the master it may have after its own term.
        await pair.cluster.promote_broker(1)
        await pair.cluster.demote_broker(1, 1)
        assert slave.replication.status().master_role == ""

    pair(body, store=tmp_path)


def test_a_slave_keeps_files_that_its_master_still_has() -> None:
    async def body(pair: Pair) -> None:
        await pair.send(*(f"{number:04} " * 100 for number in range(200)))
        await pair.copied()
        slave = pair.slave
        await pair.until(lambda: slave.replication.master.begin is not None)
        assert slave.replication.keep(2 * FILE) == 0
        slave.replication.master.begin = FILE
        assert slave.replication.keep(2 * FILE) == FILE
        assert pair.master.replication.keep(2 * FILE) == 2 * FILE

    pair(body)


def test_offsets_that_are_ahead_of_the_log_are_moved_back_by_a_promotion() -> None:
    async def body(pair: Pair) -> None:
        await pair.send("one", "two")
        await pair.copied()
        await pair.cluster.kill_broker(0)
        # Its master had more, which nobody has copied; a group had consumed that.
        pair.slave.offsets.take("g", "T", 0, 9)
        await pair.cluster.promote_broker(1)
        assert pair.slave.offsets.get("g", "T", 0) == 2
        assert "T" in pair.slave.topics

    pair(body)


def test_a_note_of_progress_that_is_newer_than_a_cut_log_is_not_believed() -> None:
    async def body(pair: Pair) -> None:
        await pair.send("level", properties={prop.DELAY: "1"})
        await pair.send("timer", properties={prop.TIMER_DELAY_SEC: "1"})
        await pair.copied()
        cut = pair.slave.store.max_commitlog_offset
        await pair.until(lambda: len(delivered(pair.slave)) == 2)
        # The slave has heard that both were delivered, and then its log loses the deliveries.
        slave = pair.slave
        await pair.until(lambda: slave.delays._offsets.get(1) == 1)
        slave.delays._rests_from = slave.store.max_commitlog_offset
        await pair.cluster.kill_broker(0)
        await slave.replication.follower.close()
        slave.copies.aim(None)
        slave.store.cut(cut)
        assert not delivered(slave)
        await pair.cluster.promote_broker(1)
        await pair.until(lambda: delivered(slave) == {"level": 1, "timer": 1})

    pair(body)


def test_what_falls_due_while_there_is_no_master_is_delivered_by_the_next_one() -> None:
    async def body(pair: Pair) -> None:
        await pair.send("level", properties={prop.DELAY: "2"})
        await pair.send("timer", properties={prop.TIMER_DELAY_SEC: "5"})
        await pair.copied()
        first = pair.master
        await pair.cluster.demote_broker(0, 3)
        await asyncio.sleep(20.0)
        assert not delivered(first)
        await pair.cluster.promote_broker(0)
        await pair.until(lambda: delivered(first) == {"level": 1, "timer": 1})

    pair(body)


def test_a_slave_that_has_gone_counts_at_its_master_for_a_minute() -> None:
    """Another slave, which may come just now, has to know that it is not the only one."""

    async def body(pair: Pair) -> None:
        source = pair.master.replication.source
        await pair.send("one")
        await pair.copied()
        await pair.until(lambda: source.replicas[0].acked > 0)
        await pair.cluster.kill_broker(1)
        await pair.until(lambda: not source.replicas)
        assert pair.master.replication.status().slave_count == 1
        await asyncio.sleep(61)
        assert pair.master.replication.status().slave_count == 0
        # Whoever connects and says nothing is no slave.
        host, port = split_address(pair.master.replication.ha_address)
        await pair.network.host("10.0.0.77").connect(asyncio.Protocol, host, port, 1.0)
        assert len(source.replicas) == 1
        source.drop_all()
        await pair.until(lambda: not source.replicas)
        assert pair.master.replication.status().slave_count == 0

    pair(body)


def test_a_new_master_counts_the_slaves_that_may_come(tmp_path: Path) -> None:
    """Those of the master before it, and that one itself, may come at any moment; who comes first has to know it."""

    async def body(pair: Pair) -> None:
        slave = pair.slave
        await pair.until(lambda: slave.replication.status().master_slaves == 1)
        await pair.cluster.kill_broker(0)
        await pair.cluster.promote_broker(1)
        assert slave.replication.status().slave_count == 1
        await asyncio.sleep(61)
        assert slave.replication.status().slave_count == 0

    pair(body, store=tmp_path)
