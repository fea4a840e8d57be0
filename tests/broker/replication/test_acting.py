"""A slave that stands in for its master, read only, and the master that comes back (enableSlaveActingMaster)."""

from __future__ import annotations

import asyncio

import pytest

from gimbalmq.broker.replication.masters import Master
from gimbalmq.broker.transactions import COMMIT, ROLLBACK
from gimbalmq.model import properties as prop
from gimbalmq.model.flags import PERM_WRITE, TRANSACTION_PREPARED
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.record import decode_record
from gimbalmq.model.topics import HALF_TOPIC, TRANS_GROUP
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.rpc import groups, nameserver
from tests.broker.desk import send_fields
from tests.broker.replication.pairs import Body, Pair, delivered, half, pair

QUEUE = MessageQueue("T", "broker-a", 0)
OFFSET = {"consumerGroup": "g", "topic": "T", "queueId": "0"}


def acting_pair(body: Body, brokers: int = 1, **properties: object) -> None:
    pair(
        body,
        brokers=brokers,
        namesrv={"supportActingMaster": True},
        properties={
            "enableSlaveActingMaster": True,
            "slaveReadEnable": True,
            "totalReplicas": 2,
            **properties,
        },
    )


async def commit(pair: Pair, at: int, offset: int) -> None:
    broker = pair.cluster.find(at)
    await pair.ask(broker, RequestCode.UPDATE_CONSUMER_OFFSET, OFFSET | {"commitOffset": str(offset)})


async def begin(pair: Pair) -> None:
    """Messages, progress, and a slave that knows of both."""
    await pair.until(lambda: pair.master.acting_mode is not None and pair.master.acting_mode.living == 2)
    await pair.send(*(f"{number}" for number in range(10)))
    await commit(pair, 0, 3)
    await pair.copied()
    await pair.until(lambda: pair.slave.offsets.get("g", "T", 0) == 3)
    await pair.until(lambda: pair.slave.topics.find("T"))


@pytest.mark.parametrize("compatible", [True, False])
def test_the_slave_stands_in_read_only_until_the_master_is_back(compatible: bool) -> None:
    async def body(pair: Pair) -> None:
        await begin(pair)
        slave = pair.slave
        assert not slave.roles.now.acting
        with pytest.raises(Exception, match="locks no queues"):
            await groups.lock_queues(pair.pool, slave.address, "g", "me", [QUEUE])
        await pair.cluster.kill_broker(0)
        await pair.until(lambda: slave.roles.now.acting)
        # It is shown in the master's place, without the right to write.
        route = await nameserver.route(pair.pool, pair.cluster.namesrv, "T")
        assert route.broker_datas[0].broker_addrs == {0: slave.address}
        assert not route.queue_datas[0].perm & PERM_WRITE
        assert await groups.lock_queues(pair.pool, slave.address, "g", "me", [QUEUE]) == {QUEUE}
        answer = await pair.ask(slave, RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"body")
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        await commit(pair, 1, 8)
        # Whoever says now that it is the master: its tables may be older than ours.
        slave.replication.master.aim(Master("10.0.0.77:1", "10.0.0.77:2"))
        assert slave.copies.master is None
        # The master comes back with what it had saved, and takes back what the slave has learned.
        master = await pair.cluster.start_broker(0)
        await pair.until(lambda: master.roles.now.online)
        assert master.offsets.get("g", "T", 0) == 8
        await pair.until(lambda: not slave.roles.now.acting)
        await pair.send("new")
        await pair.copied()
        assert slave.offsets.get("g", "T", 0) == 8
        with pytest.raises(Exception, match="locks no queues"):
            await groups.lock_queues(pair.pool, slave.address, "g", "me", [QUEUE])
        route = await nameserver.route(pair.pool, pair.cluster.namesrv, "T")
        assert route.broker_datas[0].broker_addrs == {0: master.address, 1: slave.address}
        assert route.queue_datas[0].perm & PERM_WRITE

    acting_pair(body, compatibleWithOldNameSrv=compatible)


def test_a_master_that_is_not_online_takes_nothing_and_gives_no_tables() -> None:
    async def body(pair: Pair) -> None:
        await begin(pair)
        await pair.cluster.kill_broker(0)
        await pair.until(lambda: pair.slave.roles.now.acting)
        # It cannot be reached by its master, so that one may not serve.
        pair.network.cut("10.0.0.11", "10.0.0.12")
        master = await pair.cluster.start_broker(0)
        await asyncio.sleep(5.0)
        assert not master.roles.now.online
        assert master.acting_mode is not None and master.acting_mode.trouble is not None
        assert await pair.addresses() == {1: pair.slave.address}
        answer = await pair.ask(master, RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"body")
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "not online yet" in (answer.remark or "")
        for code in (RequestCode.GET_ALL_CONSUMER_OFFSET, RequestCode.GET_ALL_DELAY_OFFSET):
            assert (await pair.ask(master, code)).code == ResponseCode.SYSTEM_ERROR
        pair.network.mend()
        await pair.until(lambda: master.roles.now.online)
        await pair.send("new")

    acting_pair(body)


def test_skip_pre_online_serves_at_once() -> None:
    async def body(pair: Pair) -> None:
        assert pair.master.roles.now.online
        await pair.send("one")
        await pair.cluster.kill_broker(0)
        await pair.until(lambda: pair.slave.roles.now.acting)
        assert (await pair.cluster.start_broker(0)).roles.now.online

    acting_pair(body, skipPreOnline=True)


def test_a_master_counts_the_replicas_that_live() -> None:
    async def body(pair: Pair) -> None:
        await begin(pair)
        await pair.until(lambda: pair.master.acting_mode is not None and pair.master.acting_mode.living == 2)
        await pair.send("both")
        await pair.cluster.kill_broker(1)
        await pair.until(lambda: pair.master.acting_mode is not None and pair.master.acting_mode.living == 1)
        answer = await pair.ask(pair.master, RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"alone")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "in-sync replicas not enough" in (answer.remark or "")

    acting_pair(body, brokerRole="SYNC_MASTER", inSyncReplicas=2)


def test_delayed_messages_go_to_another_broker_and_come_once() -> None:
    async def body(pair: Pair) -> None:
        other = pair.cluster.find(("broker-b", 0))
        await pair.until(lambda: other.roles.now.online)
        await begin(pair)
        await pair.send("warm", to=other)
        level, timer = {prop.DELAY: "3"}, {prop.TIMER_DELAY_SEC: "11"}
        await pair.send(*(f"level {number}" for number in range(40)), properties=level)
        await pair.send(*(f"timer {number}" for number in range(5)), properties=timer)
        await pair.send("much later", properties={prop.DELAY: "5"})
        await pair.copied()
        await asyncio.sleep(3.0)
        await pair.cluster.kill_broker(0)
        await pair.until(lambda: pair.slave.roles.now.acting)
        await pair.until(lambda: len(delivered(other)) == 46)
        assert set(delivered(other).values()) == {1}
        await asyncio.sleep(2.0)
        assert pair.slave.store.is_following
        # The master comes back, and delivers none of them once more, but what is due later.
        master = await pair.cluster.start_broker(0)
        await pair.until(lambda: delivered(master)["much later"])
        assert [name for name in delivered(master) if "level" in name or "timer" in name] == []
        assert set(delivered(other).values()) == {1} and "much later" not in delivered(other)

    acting_pair(body, brokers=2, enableRemoteEscape=True)


def test_open_transactions_go_to_another_broker_and_are_ended_there_once() -> None:
    async def body(pair: Pair) -> None:
        other = pair.cluster.find(("broker-b", 0))
        await pair.until(lambda: other.roles.now.online)
        await begin(pair)
        await pair.send("warm", to=other)
        ended = await pair.send("rolled back", sys_flag=TRANSACTION_PREPARED, properties=half(0))
        await pair.end(pair.master, ended, ROLLBACK)
        # The master has saved how far it was itself.
        await pair.until(lambda: pair.master.offsets.get(TRANS_GROUP, HALF_TOPIC, 0) == 1)
        await pair.master.offsets._saving.saved()
        for number, name in enumerate(("open", "second"), 1):
            await pair.send(name, sys_flag=TRANSACTION_PREPARED, properties=half(number))
        await pair.copied()
        await pair.cluster.kill_broker(0)
        await pair.until(lambda: pair.slave.roles.now.acting)
        await pair.until(lambda: {"open", "second"} <= delivered(other, HALF_TOPIC).keys())
        # The other broker asks about them, and so stores them anew from time to time.
        assert "rolled back" not in delivered(other, HALF_TOPIC)
        raw = other.store.record_at_queue(HALF_TOPIC, 0, 0)
        assert raw is not None
        place = decode_record(raw).commitlog_offset
        await pair.end(other, {"queueOffset": "0", "msgId": f"{place:016x}"}, COMMIT)
        assert delivered(other)["open"] == 1
        assert pair.slave.store.is_following
        # The master comes back, and asks nobody about what others have.
        master = await pair.cluster.start_broker(0)
        await pair.until(lambda: master.roles.now.online)
        await asyncio.sleep(10.0)
        assert delivered(master, HALF_TOPIC) == {"rolled back": 1, "open": 1, "second": 1}

    acting_pair(body, brokers=2, enableRemoteEscape=True)


def test_a_transaction_that_nobody_takes_does_not_hold_up_those_behind_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(pair: Pair) -> None:
        other = pair.cluster.find(("broker-b", 0))
        await pair.until(lambda: other.roles.now.online)
        await begin(pair)
        await pair.send("warm", to=other)
        for number, (name, topic) in enumerate(
            (("stuck", "OnlyHere"), ("open", "T"), ("stuck, too", "OnlyHere"))
        ):
            await pair.send(name, topic=topic, sys_flag=TRANSACTION_PREPARED, properties=half(number))
        await pair.copied()
        await pair.cluster.kill_broker(0)
        await pair.until(lambda: pair.slave.roles.now.acting)
        await pair.until(lambda: delivered(other, HALF_TOPIC)["open"])
        await asyncio.sleep(20.0)
        assert delivered(other, HALF_TOPIC).keys() == {"open"}
        assert pair.slave.offsets.get(TRANS_GROUP, HALF_TOPIC, 0) <= 0
        assert [line for line in caplog.messages if "finds no other broker" in line][1:] == []
        # It finds one later, and then all three are passed.
        await pair.send("warm", to=other, topic="OnlyHere")
        await pair.until(lambda: {"stuck", "stuck, too"} <= delivered(other, HALF_TOPIC).keys())
        await pair.until(lambda: pair.slave.offsets.get(TRANS_GROUP, HALF_TOPIC, 0) == 3)
        assert pair.slave.store.is_following

    acting_pair(body, brokers=2, enableRemoteEscape=True)


def test_without_another_broker_transactions_wait_for_the_master() -> None:
    async def body(pair: Pair) -> None:
        await begin(pair)
        await pair.send("open", sys_flag=TRANSACTION_PREPARED, properties=half(0))
        await pair.copied()
        await pair.cluster.kill_broker(0)
        await pair.until(lambda: pair.slave.roles.now.acting)
        await asyncio.sleep(20.0)
        assert pair.slave.offsets.get(TRANS_GROUP, HALF_TOPIC, 0) <= 0
        master = await pair.cluster.start_broker(0)
        await pair.until(lambda: delivered(master, HALF_TOPIC)["open"] > 1)  # it is asked about again

    acting_pair(body, enableRemoteEscape=True)


def test_without_another_broker_delayed_messages_wait_for_the_master() -> None:
    async def body(pair: Pair) -> None:
        await begin(pair)
        await pair.send("waits", properties={prop.DELAY: "2"})
        await pair.copied()
        await pair.cluster.kill_broker(0)
        await pair.until(lambda: pair.slave.roles.now.acting)
        await asyncio.sleep(20.0)
        assert not delivered(pair.slave)["waits"]
        master = await pair.cluster.start_broker(0)
        await pair.until(lambda: delivered(master)["waits"])
        await asyncio.sleep(10.0)
        assert delivered(master)["waits"] == 1

    acting_pair(body, enableRemoteEscape=True)
