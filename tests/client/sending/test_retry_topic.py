"""Messages that a consumer sends to its retry topic by itself."""

from __future__ import annotations

import asyncio

from gimbalmq.client.config import ProducerConfig
from gimbalmq.client.instance import ClientInstance
from gimbalmq.client.producer import Producer
from gimbalmq.client.sending.retry_topic import RetryTopic
from gimbalmq.model import properties as names
from gimbalmq.model.message import Message, MessageView
from gimbalmq.testing import LocalCluster
from tests.client.scripted import ScriptedCluster
from tests.client.test_producer import fields_of, refuse
from tests.client.test_producer_cluster import first_read
from tests.support import run


async def stored_message() -> MessageView:
    async with LocalCluster() as cluster, Producer("pg", cluster.namesrv) as producer:
        await producer.send(Message("T", b"poison", tags="t", keys="k", flag=5))
        (view,) = await first_read(producer, "T")
        return view


def retrying(cluster: ScriptedCluster) -> tuple[ClientInstance, RetryTopic]:
    config = ProducerConfig(group="pg", namesrv=cluster.namesrv)
    instance = ClientInstance(config, "test@1")
    return instance, RetryTopic(instance, "g", max_times=16)


def test_a_failed_message_goes_to_the_retry_topic_with_its_count() -> None:
    async def work() -> None:
        message = await stored_message()
        async with ScriptedCluster("a", "b") as cluster:
            cluster.add_topic("%RETRY%g", write=1)
            instance, retry = retrying(cluster)
            assert await retry.send(message, 3)
            (request,) = [one for broker in cluster.brokers.values() for one in broker.sends]
            fields = fields_of(request)
            assert (fields["a"], fields["b"]) == ("CLIENT_INNER_PRODUCER", "%RETRY%g")
            assert (fields["h"], fields["j"], fields["l"]) == ("5", "3", "16")
            told = names.parse(fields["i"])
            assert told["RETRY_TOPIC"] == "T" and told["DELAY"] == "3" and told["KEYS"] == "k"
            assert told["ORIGIN_MESSAGE_ID"] == message.msg_id and "WAIT" not in told
            assert request.body == b"poison"
            retry.close()
            await instance.close()

    run(work())


def test_it_is_tried_three_times_at_other_brokers_and_then_reported_as_not_sent() -> None:
    async def work() -> None:
        message = await stored_message()
        async with ScriptedCluster("a", "b") as cluster:
            cluster.add_topic("%RETRY%g", write=1)
            cluster.brokers["a"].on_send = refuse(1)
            instance, retry = retrying(cluster)
            assert all(await asyncio.gather(*(retry.send(message, 1) for _ in range(4))))
            assert len(cluster.brokers["b"].sends) == 4
            cluster.brokers["b"].on_send = refuse(215)
            before = len(cluster.all_sends())
            assert not await retry.send(message, 1)
            assert len(cluster.all_sends()) == before + 3
            retry.close()
            await instance.close()

    run(work())


def test_without_a_retry_topic_it_is_reported_as_not_sent() -> None:
    async def work() -> None:
        message = await stored_message()
        async with ScriptedCluster("a") as cluster:
            instance, retry = retrying(cluster)
            assert not await retry.send(message, 1)
            retry.close()
            await instance.close()

    run(work())
