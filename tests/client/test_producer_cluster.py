"""The producer and the typed calls against our own name server and broker, over sockets."""

from __future__ import annotations

import asyncio

import pytest

from gimbalmq.client import request_reply
from gimbalmq.client.instance import ClientInstance
from gimbalmq.client.producer import Producer
from gimbalmq.client.transaction import TransactionProducer
from gimbalmq.errors import (
    ConsumerNotOnlineError,
    TopicRouteNotFoundError,
)
from gimbalmq.model.ids import parse_offset_id
from gimbalmq.model.message import Message, MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.results import PullResult, PullStatus, TransactionState
from gimbalmq.protocol.bodies import GroupConfig, TopicConfig
from gimbalmq.protocol.headers.messages import PullMessage
from gimbalmq.rpc import groups, management
from gimbalmq.rpc import messages as calls
from gimbalmq.testing import LocalCluster
from tests.client.scripted import until
from tests.support import run


async def pull(instance: ClientInstance, queue: MessageQueue, queue_offset: int = 0) -> PullResult:
    address = instance.master_address(queue.broker_name)
    assert address is not None
    header = PullMessage(
        consumer_group="TOOLS_CONSUMER",
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=queue_offset,
        max_msg_nums=32,
        sys_flag=calls.PULL_SUBSCRIPTION,
        subscription="*",
    )
    return await calls.pull(instance, address, header, queue)


async def read_all(producer: Producer, topic: str) -> list[MessageView]:
    await producer.instance.refresh_route(topic)
    found: list[MessageView] = []
    for queue in producer.instance.subscribe_queues(topic) or ():
        result = await pull(producer.instance, queue)
        found += result.messages
    return found


async def first_read(producer: Producer, topic: str, count: int = 1) -> list[MessageView]:
    """What a topic holds, as soon as it exists and holds so many."""
    async with asyncio.timeout(30):
        while True:
            try:
                found = await read_all(producer, topic)
            except TopicRouteNotFoundError:
                found = []
            if len(found) >= count:
                return found
            await asyncio.sleep(0.01)


def test_what_is_sent_can_be_read_by_offset_key_and_id() -> None:
    async def work() -> None:
        async with LocalCluster() as cluster, Producer("pg", cluster.namesrv) as producer:
            message = Message("T", b"hello", tags="TagA", keys=["k1", "k2"], properties={"own": "1"})
            sent = await producer.send(message)
            await producer.send(Message("T", b"z" * 5000), queue=sent.queue)
            await producer.send_batch([Message("T", b"b%d" % index) for index in range(3)], queue=sent.queue)
            instance = producer.instance
            address = instance.master_address(sent.queue.broker_name)
            assert address is not None

            result = await pull(instance, sent.queue)
            assert result.status is PullStatus.FOUND and result.next_offset == result.max_offset == 5
            bodies = [view.body for view in result.messages]
            assert bodies == [b"hello", b"z" * 5000, b"b0", b"b1", b"b2"]
            first = result.messages[0]
            assert (first.msg_id, first.tags, first.keys) == (sent.msg_id, "TagA", ("k1", "k2"))
            assert first.properties == {"own": "1"} and first.offset_msg_id == sent.offset_msg_id
            assert (await pull(instance, sent.queue, 5)).status is PullStatus.NO_NEW_MSG
            assert (await pull(instance, sent.queue, 99)).status is PullStatus.OFFSET_ILLEGAL

            place = parse_offset_id(sent.offset_msg_id)
            viewed = await calls.view_message(instance, address, place.commitlog_offset)
            assert viewed.msg_id == sent.msg_id
            for key, unique in (("k1", False), ("k2", False), (sent.msg_id, True)):
                (found,) = await calls.query_message(instance, address, "T", key, unique=unique)
                assert found.msg_id == sent.msg_id
            assert await calls.query_message(instance, address, "T", "nothing") == []

    run(work())


def test_offsets_and_locks() -> None:
    async def work() -> None:
        async with LocalCluster() as cluster, Producer("pg", cluster.namesrv) as producer:
            queue = (await producer.send(Message("T", b"x"))).queue
            instance = producer.instance
            address = (await instance.locate_broker("T", queue.broker_name)).address
            await producer.instance.refresh_route("T")
            assert await groups.max_offset(instance, address, queue) == 1
            assert await groups.min_offset(instance, address, queue) == 0
            assert await groups.search_offset(instance, address, queue, 0) == 0
            await management.update_group(instance, address, GroupConfig(group_name="g"))
            await groups.update_offset(instance, address, "g", queue, 1)
            assert await groups.query_offset(instance, address, "g", queue) == 1
            await groups.update_offset_oneway(instance, address, "g", queue, 0)
            assert await groups.query_offset(instance, address, "g", queue) == 0
            assert await groups.lock_queues(instance, address, "g", "one", [queue]) == {queue}
            assert await groups.lock_queues(instance, address, "g", "two", [queue]) == set()
            await groups.unlock_queues(instance, address, "g", "one", [queue])
            assert await groups.lock_queues(instance, address, "g", "two", [queue]) == {queue}

    run(work())


def test_administration() -> None:
    async def work() -> None:
        async with LocalCluster() as cluster, Producer("pg", cluster.namesrv) as producer:
            queue = (await producer.send(Message("T", b"x"))).queue
            instance = producer.instance
            address = (await instance.locate_broker("T", queue.broker_name)).address
            await until(lambda: instance.broker_versions)

            made = TopicConfig(topic_name="Made", read_queue_nums=3, write_queue_nums=2, perm=6)
            await management.create_topic(instance, address, made)
            table = (await management.all_topic_configs(instance, address)).topic_config_table
            assert table["Made"].write_queue_nums == 2
            await management.delete_topic(instance, address, "Made")
            assert "Made" not in (await management.all_topic_configs(instance, address)).topic_config_table

            await management.update_group(instance, address, GroupConfig(group_name="g", retry_max_times=3))
            known = (await management.all_group_configs(instance, address)).subscription_group_table
            assert known["g"].retry_max_times == 3
            with pytest.raises(ConsumerNotOnlineError):
                await management.consumer_connections(instance, address, "g")

            await groups.update_offset(instance, address, "g", queue, 0)
            stats = (await management.consume_stats(instance, address, "g", topic="T")).queues[queue]
            assert (stats.broker_offset, stats.consumer_offset) == (1, 0)
            assert (await management.topic_stats(instance, address, "T")).queues[queue].max_offset == 1
            assert await management.groups_of_topic(instance, address, "T") == ["g"]
            await management.delete_group(instance, address, "g")
            assert "g" not in (await management.all_group_configs(instance, address)).subscription_group_table

            (connection,) = (await management.producer_connections(instance, address, "pg")).connection_set
            assert (connection.client_id, connection.language) == (producer.client_id, "PYTHON")
            assert "brokerVersionDesc" in await management.runtime_info(instance, address)
            assert (await management.broker_config(instance, address))["brokerName"] == queue.broker_name

    run(work())


def test_transaction_is_seen_when_committed_only() -> None:
    async def work() -> None:
        async def check(view: MessageView) -> TransactionState:
            return TransactionState.UNKNOWN

        async with (
            LocalCluster() as cluster,
            TransactionProducer("tg", cluster.namesrv, check=check) as producer,
        ):
            states = {b"yes": TransactionState.COMMIT, b"no": TransactionState.ROLLBACK}
            for body, state in states.items():
                result = await producer.send_in_transaction(
                    Message("T", body), lambda message: states[message.body]
                )
                assert result.state is state
            seen = await first_read(producer, "T")
            assert [view.body for view in seen] == [b"yes"]

    run(work())


def test_request_of_a_producer_that_has_just_sent_is_answered() -> None:
    """It knows the route but no broker has had a heartbeat of it yet."""

    async def work() -> None:
        async with LocalCluster() as cluster, Producer("answerer", cluster.namesrv) as answerer:
            await answerer.send(Message("T", b"makes the topic"))
            async with Producer("asker", cluster.namesrv) as asker:
                await asker.send(Message("T", b"just sent"))
                waiting = asyncio.ensure_future(
                    request_reply.request(asker, Message("T", b"ping"), timeout=30.0)
                )
                seen = [view for view in await first_read(answerer, "T", 3) if view.body == b"ping"]
                await request_reply.reply(answerer, seen[0], b"pong")
                assert (await waiting).body == b"pong"

    run(work())


def test_reply_finds_its_way_through_the_broker() -> None:
    async def work() -> None:
        async with (
            LocalCluster() as cluster,
            Producer("asker", cluster.namesrv) as asker,
            Producer("answerer", cluster.namesrv) as answerer,
        ):
            waiting = asyncio.ensure_future(request_reply.request(asker, Message("T", b"ping"), timeout=30.0))
            seen = await first_read(answerer, "T")
            await request_reply.reply(answerer, seen[0], b"pong")
            assert (await waiting).body == b"pong"

    run(work())
