"""Tools while a broker has no master: its slave answers questions, and nothing is changed that would be lost."""

from __future__ import annotations

import asyncio

import pytest

from gimbalmq import ConsumeFromWhere, Message, MessageQueue, MessageView, Producer, PushConsumer
from gimbalmq.admin.admin import Admin
from gimbalmq.errors import ConnectError, QueryNotFoundError, StateError
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.testing import LocalCluster
from tests.client.group_peers import GroupCluster, in_virtual_time
from tests.support import run, until


def test_slave_answers_and_changes_nothing() -> None:
    async def work() -> None:
        async with LocalCluster(replicas=2) as cluster, Admin(cluster.namesrv) as admin:
            await admin.topics.create("orders", queues=1)
            async with Producer("senders", cluster.namesrv) as producer:
                sent = [
                    await producer.send(Message("orders", f"body-{n}", keys=f"key-{n}")) for n in range(3)
                ]
            got: list[MessageView] = []
            consumer = PushConsumer(
                "readers",
                cluster.namesrv,
                consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
                persist_interval=0.1,
            )
            consumer.subscribe("orders", "*", lambda message: got.append(message))
            slave = cluster.replica(0, 1)
            async with consumer:
                await until(lambda: len(got) == 3)
                await until(lambda: slave.offsets.get("readers", "orders", 0) == 3)
                await cluster.in_step()
                await cluster.kill_broker()
                while any(view.broker_id == 0 for view in await admin.clusters.brokers()):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                await _questions(admin, cluster, sent[1].offset_msg_id or "", consumer.client_id)
                await _changes(admin)

    run(work())


async def _questions(admin: Admin, cluster: LocalCluster, offset_id: str, member: str) -> None:
    assert [view.topic for view in await admin.topics.all()] == ["orders"]
    assert [(item.queue.queue_id, item.max_offset) for item in await admin.topics.stats("orders")] == [(0, 3)]
    assert "readers" in await admin.topics.groups("orders")
    assert "readers" in await admin.groups.names()
    assert [view.client_id for view in (await admin.groups.connections("readers")).members] == [member]
    progress = await admin.groups.progress("readers", topic="orders")
    assert [(item.queue.queue_id, item.lag) for item in progress.queues] == [(0, 0)]
    assert list(await admin.groups.config("readers")) == ["broker-a"]
    assert (await admin.messages.by_key("orders", "key-1"))[0].body == b"body-1"
    # Its id names the master that stored it.
    assert (await admin.messages.by_id(offset_id)).body == b"body-1"
    with pytest.raises(QueryNotFoundError, match="which is not here"):
        await admin.messages.by_id(offset_id[:-16] + f"{7:016X}")
    queue = MessageQueue("orders", "broker-a", 0)
    assert (await admin.messages.by_offset(queue, 2)).body == b"body-2"
    slave = cluster.replica(0, 1).address
    assert [(view.broker_id, view.address) for view in await admin.clusters.brokers()] == [(1, slave)]


async def _changes(admin: Admin) -> None:
    for change in (
        admin.groups.reset("readers", "orders", "earliest"),
        admin.groups.clone_offsets("readers", "others", "orders"),
        admin.topics.resize("orders", 4),
        admin.topics.delete("orders"),
    ):
        with pytest.raises(StateError, match="broker-a, which has topic orders, has no master now"):
            await change
    with pytest.raises(ConnectError, match="no broker has a master now, only slaves"):
        await admin.topics.create("more")
    # What a reset would do can be seen all the same.
    (planned,) = await admin.groups.plan_reset("readers", "orders", "earliest")
    assert (planned.before, planned.after) == (3, 0)


def test_following_a_queue_is_no_busy_loop_where_questions_are_not_kept() -> None:
    """As a slave may answer: "once more", at once, at the end of what it has."""

    async def scenario(cluster: GroupCluster) -> None:
        (queue,) = cluster.topic("T", 1)
        ends = {"suggestWhichBrokerId": "0", "nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0"}
        cluster.broker.overrides[RequestCode.PULL_MESSAGE] = lambda request: request.reply(20, "", ends)
        assert cluster.network is not None
        async with Admin(cluster.nameserver.address, network=cluster.network.host("10.9.0.1")) as admin:
            following = admin.messages.read("T", {queue: (0, None)})
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(20):
                    await anext(following)
            await following.aclose()  # type: ignore[attr-defined]
            assert 15 <= len(cluster.broker.of(RequestCode.PULL_MESSAGE)) <= 25
            # What is asked for up to an offset ends there.
            assert [view async for view in admin.messages.read("T", {queue: (0, 5)})] == []

    in_virtual_time(scenario)
