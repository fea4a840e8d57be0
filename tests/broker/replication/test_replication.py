"""A change of the role while requests, waiting sends and slaves of the slave are under way."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gimbalmq.broker.replication import replication
from gimbalmq.broker.replication.follower import State
from gimbalmq.model import properties as prop
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.ha import encode_report
from gimbalmq.transport.network import split_address
from gimbalmq.transport.pool import ChannelPool
from tests.broker.desk import send_fields
from tests.broker.replication.pairs import Pair, bodies, pair


class RawSlave(asyncio.Protocol):
    """A connection to a replication port that says what the test wants."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True

    def report(self, end: int) -> None:
        self.transport.write(encode_report(end))


async def raw_slave(pair: Pair, ha_address: str, own: str = "10.0.0.77") -> RawSlave:
    host, port = split_address(ha_address)
    found = await pair.network.host(own).connect(RawSlave, host, port, 1.0)
    assert isinstance(found, RawSlave)
    return found


def test_nothing_is_taken_before_the_new_master_is_one() -> None:
    async def body(pair: Pair) -> None:
        await pair.send("one")
        await pair.copied()
        await pair.until(lambda: "T" in pair.slave.topics)
        await pair.cluster.kill_broker(0)
        slave = pair.slave
        begun, go_on = asyncio.Event(), asyncio.Event()
        run = slave.replication._turns.run

        async def slowly(steps: Any) -> Any:
            begun.set()
            await go_on.wait()
            return await run(steps)

        slave.replication._turns = SimpleNamespace(run=slowly)  # type: ignore[assignment]
        changing = asyncio.ensure_future(pair.set(slave, brokerRole="SYNC_MASTER", brokerId=0))
        await begun.wait()
        fields = send_fields("T", 0, {prop.UNIQ_KEY: "early"})
        for _ in range(3):
            answer = await pair.ask(slave, RequestCode.SEND_MESSAGE_V2, fields, b"early")
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE, answer
        go_on.set()
        await changing
        assert bodies(slave, "T") == ["one"]
        answer = await pair.ask(slave, RequestCode.SEND_MESSAGE_V2, fields, b"later")
        assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE

    pair(body)


def test_who_waits_for_slaves_of_a_master_that_is_one_no_more_is_not_told_that_they_have_it() -> None:
    async def body(pair: Pair) -> None:
        first = pair.master
        await pair.send("one")
        await pair.copied()
        await pair.set(first, brokerRole="SYNC_MASTER", slaveTimeout=600_000)
        slow = await raw_slave(pair, first.replication.ha_address)
        slow.report(first.store.max_commitlog_offset)
        await pair.until(lambda: first.source.acks.connected == 2)
        pair.network.cut("10.0.0.11", "10.0.0.12")
        channel = asyncio.ensure_future(
            pair.ask(first, RequestCode.SEND_MESSAGE_V2, send_fields("T", 0, {prop.UNIQ_KEY: "w"}), b"waits")
        )
        await pair.until(lambda: first.source.acks.waiting)
        await pair.set(first, brokerRole="SLAVE", brokerId=2)
        # Somebody who copies the slave has other bytes there by now.
        again = await raw_slave(pair, first.replication.ha_address)
        again.report(first.store.max_commitlog_offset)
        answer = await channel
        assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert not first.source.acks.waiting

    pair(body)


def test_whoever_copies_a_slave_that_is_cut_has_to_begin_anew() -> None:
    async def body(pair: Pair) -> None:
        await pair.send("one", "two", "three")
        await pair.copied()
        slave = pair.slave
        end = slave.store.max_commitlog_offset
        chained = await raw_slave(pair, slave.replication.ha_address)
        chained.report(end)
        await pair.until(lambda: slave.source.acks.connected)
        await slave.replication.follower.close()
        assert slave.replication.follower.state is State.STOPPED
        last = slave.store.last_record()
        assert last is not None
        await slave.replication.cut(last[0])
        await pair.until(lambda: chained.is_lost, 5.0)
        assert not slave.source.replicas

    pair(body)


def test_nothing_is_taken_before_it_is_known_whether_there_is_another_master(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body(pair: Pair) -> None:
        await pair.send("one")
        await pair.copied()
        await pair.cluster.kill_broker(0)
        answers: list[RemotingCommand] = []

        async def send_meanwhile(caller: object, config: object, own_address: str) -> None:
            fields = send_fields("T", 0, {prop.UNIQ_KEY: "early"})
            pool = ChannelPool(network=pair.network.host("10.0.0.98"))
            requests = (
                RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, b"early"),
                RemotingCommand(RequestCode.SEND_BATCH_MESSAGE, fields, b"early"),
            )
            answers.extend([await pool.call(own_address, request, 5.0) for request in requests])
            await pool.close()

        monkeypatch.setattr(replication, "require_no_other", send_meanwhile)
        again = await pair.cluster.start_broker(0)
        assert [answer.code for answer in answers] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
        await pair.pool.close()
        pair.pool = ChannelPool(network=pair.network.host("10.0.0.98"))
        await pair.send("two", to=again)
        assert bodies(again, "T") == ["one", "two"]

    pair(body)


def test_a_slave_that_comes_again_is_not_two() -> None:
    async def body(pair: Pair) -> None:
        master = pair.master
        await pair.send("one")
        await pair.cluster.stop_broker(1)
        await pair.set(master, brokerRole="SYNC_MASTER", inSyncReplicas=3, slaveTimeout=600_000)
        first = await raw_slave(pair, master.replication.ha_address)
        first.report(master.store.max_commitlog_offset)
        await pair.until(lambda: master.source.acks.connected == 1)
        sending = asyncio.ensure_future(pair.send("two"))
        await pair.until(lambda: master.source.acks.waiting)
        end = master.store.max_commitlog_offset
        first.report(end)
        await pair.until(lambda: master.source.replicas[0].acked == end)
        again = await raw_slave(pair, master.replication.ha_address)
        again.report(end)
        await pair.until(lambda: [slave.acked for slave in master.source.replicas] == [end, end])
        await asyncio.sleep(1.0)
        assert not sending.done()
        # Who reports again lives: then there are two, on one machine.
        first.report(end)
        await sending

    pair(body)
