"""What producers are told by a master that waits for its slaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.model import properties as prop
from gimbalmq.model.batch import encode_batch
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.ha import encode_report
from gimbalmq.protocol.serializers import encode_frame
from tests.broker.desk import Desk, fields, open_desk, send_fields
from tests.broker.replication.test_ends import RawSlave
from tests.support import run, until

OK = ResponseCode.SUCCESS
NO_DISK = ResponseCode.FLUSH_DISK_TIMEOUT
NO_SLAVE = ResponseCode.SLAVE_NOT_AVAILABLE
SLOW_SLAVE = ResponseCode.FLUSH_SLAVE_TIMEOUT
FAST, PLAIN, BATCH = (
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_BATCH_MESSAGE,
)
CODES = (FAST, PLAIN, BATCH)


@asynccontextmanager
async def sync_master(folder: Path, **properties: object) -> AsyncIterator[Desk]:
    async with open_desk(folder, SYSTEM_CLOCK, brokerRole="SYNC_MASTER", **properties) as desk:
        await desk.create("T")
        yield desk


@asynccontextmanager
async def slave_of(desk: Desk) -> AsyncIterator[RawSlave]:
    """A slave that has everything and confirms nothing by itself."""
    slave = RawSlave(*await asyncio.open_connection("127.0.0.1", desk.broker.source.port))
    slave.say(encode_report(desk.broker.store.max_commitlog_offset))
    await until(lambda: desk.broker.source.acks.connected)
    try:
        yield slave
    finally:
        await slave.close()


def confirm(desk: Desk, slave: RawSlave) -> None:
    slave.say(encode_report(desk.broker.store.max_commitlog_offset))


async def confirmed(desk: Desk, end: int) -> None:
    await until(lambda: desk.broker.source.replicas[0].acked == end)


async def send(desk: Desk, code: int, **properties: str) -> RemotingCommand:
    if code == BATCH:
        text = prop.dump({prop.UNIQ_KEY: "U1", **properties})
        body = encode_batch([(0, b"one", b""), (0, b"two", b"")])
        return await desk.client.ask(code, send_fields("T", 0, None, text, batch=True), body)
    return await desk.client.send(code=code, properties=properties)


def test_send_is_answered_when_the_slave_has_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with sync_master(tmp_path, slaveTimeout=60_000) as desk, slave_of(desk) as slave:
            for code in CODES:
                sending = asyncio.ensure_future(send(desk, code))
                await until(lambda: desk.broker.source.acks.waiting)
                almost = desk.broker.store.max_commitlog_offset - 1
                slave.say(encode_report(almost))
                await confirmed(desk, almost)
                await desk.client.ok(RequestCode.GET_BROKER_RUNTIME_INFO)
                assert not sending.done()
                confirm(desk, slave)
                answer = await sending
                assert answer.code == OK and "queueOffset" in fields(answer)

    run(work())


def test_report_answers_all_that_it_ends_before_the_turn_is_over(tmp_path: Path) -> None:
    async def work() -> None:
        async with sync_master(tmp_path, slaveTimeout=60_000) as desk, slave_of(desk):
            broker, clients = desk.broker, (desk.client, desk.new_client())
            sends = []
            for client in clients * 2:
                waiting = broker.source.acks.waiting
                sends.append(asyncio.ensure_future(client.send(properties={prop.WAIT: "true"})))
                await until(lambda: broker.source.acks.waiting > waiting)  # noqa: B023
            channels = [channel for channel in broker._server.channels if channel._in_flight]
            assert len(channels) == 2
            with ExitStack() as stack:
                lines = [
                    stack.enter_context(patch.object(channel, "_transport", wraps=channel._transport))
                    for channel in channels
                ]
                replica, end = broker.source.replicas[0], broker.store.max_commitlog_offset
                await until(lambda: replica.sent == end)
                replica.data_received(encode_report(end))
                assert [line.write.call_count for line in lines] == [1, 1]
                assert [answer.code for answer in await asyncio.gather(*sends)] == [OK] * 4
                assert [line.write.call_count for line in lines] == [1, 1]

    run(work())


@pytest.mark.parametrize(
    ("properties", "connected", "expected"),
    [
        ({}, False, NO_SLAVE),
        ({}, True, SLOW_SLAVE),
        ({"replicaRule": "4.9"}, False, NO_SLAVE),
        ({"replicaRule": "4.9"}, True, SLOW_SLAVE),
        ({"replicaRule": "5.x"}, False, OK),
        ({"replicaRule": "5.x"}, True, OK),
        ({"replicaRule": "5.x", "inSyncReplicas": 2}, False, SLOW_SLAVE),
        ({"flushDiskType": "SYNC_FLUSH"}, True, SLOW_SLAVE),
    ],
)
def test_status_of_a_message_that_is_stored_here_only(
    properties: dict[str, object], connected: bool, expected: int, tmp_path: Path
) -> None:
    async def work() -> None:
        async with sync_master(tmp_path, slaveTimeout=20, **properties) as desk:
            async with slave_of(desk) if connected else no_slave():
                for code in CODES:
                    stored = len(desk.messages("T"))
                    answer = await send(desk, code)
                    assert answer.code == expected, code
                    # It is stored, and the answer says where.
                    assert fields(answer)["queueOffset"] == str(stored) and fields(answer)["msgId"]
                    assert len(desk.messages("T")) > stored
                    assert (await send(desk, code, WAIT="false")).code == OK
            assert not desk.broker.source.acks.waiting

    run(work())


@asynccontextmanager
async def no_slave() -> AsyncIterator[None]:
    yield


def test_too_few_replicas_store_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        options: dict[str, object] = {"minInSyncReplicas": 2, "inSyncReplicas": 2, "slaveTimeout": 60_000}
        async with sync_master(tmp_path, **options) as desk:
            for code in CODES:
                stored = len(desk.messages("T"))
                answer = await send(desk, code)
                assert answer.code == 1 and "in-sync replicas not enough" in str(answer.remark)
                assert len(desk.messages("T")) == stored
                assert (await send(desk, code, WAIT="false")).code == OK
            async with slave_of(desk) as slave:
                for code in CODES:
                    sending = asyncio.ensure_future(send(desk, code))
                    await until(lambda: desk.broker.source.acks.waiting)
                    confirm(desk, slave)
                    assert (await sending).code == OK

    run(work())


def test_run_of_sends_waits_once_and_later_ones_do_not_wait_for_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with sync_master(tmp_path, slaveTimeout=60_000) as desk, slave_of(desk) as slave:
            channel = await desk.client.channel()
            frames = b"".join(
                encode_frame(RemotingCommand(FAST, send_fields("T", 0), b"body", opaque=1000 + number))
                for number in range(200)
            )
            acks = desk.broker.source.acks
            assert channel._transport is not None
            channel._transport.write(frames)
            await until(lambda: len(desk.messages("T")) == 200)
            waits = acks.waiting
            assert 1 <= waits < 20  # a run each, not a message each
            # More is stored and sent while these wait.
            sending = asyncio.ensure_future(desk.client.send())
            await until(lambda: acks.waiting == waits + 1)
            got = 0
            while got < desk.broker.store.max_commitlog_offset:
                offset, data = await slave.packet()
                got = offset + len(data)
            confirm(desk, slave)
            assert (await sending).code == OK and not acks.waiting

    run(work())


def test_half_message_waits_too_and_its_end_does_not(tmp_path: Path) -> None:
    async def work() -> None:
        async with sync_master(tmp_path, slaveTimeout=20) as desk, slave_of(desk):
            half = await desk.client.send(properties={prop.TRAN_MSG: "true", prop.PRODUCER_GROUP: "p"})
            assert half.code == SLOW_SLAVE

    run(work())


def test_deleted_topic_is_answered_without_slaves_after_a_while(tmp_path: Path) -> None:
    async def work() -> None:
        async with sync_master(tmp_path, slaveTimeout=20) as desk:
            await desk.client.send(properties={"WAIT": "false"})
            await desk.client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
            async with slave_of(desk):
                await desk.create("U")
                await desk.client.send("U", properties={"WAIT": "false"})
                await desk.client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "U"})
            assert "U" not in desk.broker.store.topics()

    run(work())


def test_message_that_comes_back_is_answered_when_the_slave_has_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with sync_master(tmp_path, slaveTimeout=60_000) as desk, slave_of(desk) as slave:
            stored = await desk.client.send(properties={"WAIT": "false"})
            place = int(fields(stored)["msgId"][16:], 16)
            back = {"offset": str(place), "group": "g", "delayLevel": "0"}
            returning = asyncio.ensure_future(desk.client.ok(RequestCode.CONSUMER_SEND_MSG_BACK, back))
            await until(lambda: desk.broker.source.acks.waiting)
            assert not returning.done()
            confirm(desk, slave)
            await returning
            # Apache's rules do not wait for it.
            await desk.client.ok(RequestCode.UPDATE_BROKER_CONFIG, None, b"replicaRule=4.9\n")
            await desk.client.ok(RequestCode.CONSUMER_SEND_MSG_BACK, back)
        # A slave that is not there is not waited for, and the answer is the same.
        async with sync_master(tmp_path / "alone") as desk:
            stored = await desk.client.send(properties={"WAIT": "false"})
            place = int(fields(stored)["msgId"][16:], 16)
            await desk.client.ok(
                RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": str(place), "group": "g", "delayLevel": "0"}
            )

    run(work())


def test_rule_changes_at_run_time(tmp_path: Path) -> None:
    async def work() -> None:
        async with sync_master(tmp_path) as desk:
            assert (await desk.client.send()).code == NO_SLAVE
            await desk.client.ok(RequestCode.UPDATE_BROKER_CONFIG, None, b"replicaRule=5.x\n")
            assert (await desk.client.send()).code == OK

    run(work())
