"""Unmodified Java producers, every way they can send."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from tests.interop.conftest import MakeGroup, MakeTopic
from tests.peers.driver import JavaClient, JavaError, Outgoing, Received, eventually
from tests.peers.subject import Cluster

pytestmark = pytest.mark.interop


def read(java: JavaClient, group: str, topic: str, count: int) -> list[Received]:
    """The first messages of a topic, by queue and offset."""
    consumer = java.lite_pull(group)
    consumer.assign(consumer.fetch_queues(topic))
    messages = consumer.poll_for(count)
    consumer.abandon()
    return sorted(messages, key=lambda message: (message.queue_id, message.queue_offset))


def address_and_offset(offset_id: str) -> tuple[str, int]:
    """An offset message id says where the message is: 4 bytes of address, 4 of port, 8 of commit log offset."""
    data = bytes.fromhex(offset_id)
    host = ".".join(map(str, data[:4]))
    return f"{host}:{int.from_bytes(data[4:8])}", int.from_bytes(data[8:])


def test_sync_send_tells_where_the_message_is_stored(
    java: JavaClient, cluster: Cluster, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    topic = make_topic(queues=4)
    bodies = [f"sync-{i}".encode() for i in range(12)]
    sent = java.producer(make_group()).send(
        *(Outgoing(topic, body, tags="t", keys=f"k{i}") for i, body in enumerate(bodies))
    )

    assert {result.status for result in sent} == {"SEND_OK"}
    assert {result.broker for result in sent} == {cluster.broker_name}
    assert len({result.message_id for result in sent}) == 12
    places = sorted((result.queue_id, result.queue_offset) for result in sent)
    assert places == [(queue, offset) for queue in range(4) for offset in range(3)]

    got = {message.message_id: message for message in read(java, make_group(), topic, 12)}
    for body, result in zip(bodies, sent, strict=True):
        message = got[result.message_id]
        assert (message.body, message.tags, message.topic) == (body, "t", topic)
        assert (message.queue_id, message.queue_offset) == (result.queue_id, result.queue_offset)
        assert message.offset_id == result.offset_id
        assert address_and_offset(message.offset_id) == (cluster.broker, message.commitlog_offset)
        assert message.store_host == cluster.broker
        assert message.properties["UNIQ_KEY"] == result.message_id


def test_async_sends_all_arrive_exactly_once(
    java: JavaClient, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    topic = make_topic(queues=4)
    messages = [Outgoing(topic, f"async-{i}".encode()) for i in range(300)]
    sent = java.producer(make_group()).send_async(*messages)

    assert [result.status for result in sent] == ["SEND_OK"] * 300
    assert len({(result.queue_id, result.queue_offset) for result in sent}) == 300
    got = read(java, make_group(), topic, 300)
    assert sorted(message.body for message in got) == sorted(message.body for message in messages)


def test_oneway_sends_are_stored(java: JavaClient, make_topic: MakeTopic, make_group: MakeGroup) -> None:
    topic = make_topic(queues=2)
    messages = [Outgoing(topic, f"oneway-{i}".encode(), tags="way") for i in range(50)]
    java.producer(make_group()).send_oneway(*messages)

    got = read(java, make_group(), topic, 50)
    assert sorted(message.body for message in got) == sorted(message.body for message in messages)
    assert {message.tags for message in got} == {"way"}


def test_batch_lands_in_one_queue_with_an_id_for_each_message(
    java: JavaClient, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    topic = make_topic(queues=4)
    messages = [Outgoing(topic, f"batch-{i}".encode(), tags=f"t{i}", keys=f"b{i}") for i in range(10)]
    sent = java.producer(make_group()).send_batch(*messages)

    assert sent.status == "SEND_OK"
    assert sent.queue_offset == 0
    got = read(java, make_group(), topic, 10)
    assert [message.body for message in got] == [message.body for message in messages]
    assert [message.tags for message in got] == [message.tags for message in messages]
    assert [message.keys for message in got] == [message.keys for message in messages]
    assert [(message.queue_id, message.queue_offset) for message in got] == [
        (sent.queue_id, i) for i in range(10)
    ]
    assert [message.message_id for message in got] == sent.message_id.split(",")
    assert sent.offset_id is not None
    assert [message.offset_id for message in got] == sent.offset_id.split(",")


def test_messages_with_one_order_key_keep_their_order_in_one_queue(
    java: JavaClient, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    topic = make_topic(queues=4)
    messages = [
        Outgoing(topic, f"{i}".encode(), order=f"customer-{i % 5}", tags=f"customer-{i % 5}")
        for i in range(40)
    ]
    java.producer(make_group()).send(*messages)

    by_customer: dict[str | None, list[Received]] = defaultdict(list)
    for message in read(java, make_group(), topic, 40):
        by_customer[message.tags].append(message)
    assert len(by_customer) == 5
    for customer, got in by_customer.items():
        assert len({message.queue_id for message in got}) == 1
        assert [message.body for message in got] == [m.body for m in messages if m.tags == customer]


def test_delayed_message_appears_after_its_delay_and_not_before(
    java: JavaClient, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    topic = make_topic(queues=1)
    consumer = java.push(make_group(), topic)
    producer = java.producer(make_group())
    # Level 7 is 3 s: time enough for the other message, even where the machine stands still for a moment.
    delayed, plain = producer.send(
        Outgoing(topic, b"later", tags="d", keys="dk", delay_level=7), Outgoing(topic, b"now")
    )
    assert delayed.status == plain.status == "SEND_OK"

    first, second = consumer.wait_for(2)
    assert (first.body, second.body) == (b"now", b"later")
    assert (second.topic, second.queue_id, second.queue_offset) == (topic, 0, 1)
    assert (second.tags, second.keys, second.message_id) == ("d", "dk", delayed.message_id)
    assert second.reconsume_times == 0
    waited = second.store_timestamp - second.born_timestamp
    assert 2900 <= waited < 20_000  # the next longer level is 4 min


def test_compressed_body_is_stored_compressed_and_read_whole(
    java: JavaClient, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    topic = make_topic(queues=1)
    body = b"compress me please " * 2000
    java.producer(make_group()).send(Outgoing(topic, body))

    (message,) = read(java, make_group(), topic, 1)
    assert message.body == body
    assert message.store_size < 2000


def test_body_below_the_compression_limit_is_stored_as_it_is(
    java: JavaClient, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    topic = make_topic(queues=1)
    body = random.Random(1).randbytes(30_000)
    java.producer(make_group(), compress_over=1 << 20).send(Outgoing(topic, body))

    (message,) = read(java, make_group(), topic, 1)
    assert message.body == body
    assert message.store_size > 30_000


def test_text_of_every_script_survives_in_body_tag_key_and_property(
    java: JavaClient, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    topic = make_topic(queues=1)
    text = "消息 – ünïcödé 🚀"
    java.producer(make_group()).send(
        Outgoing(
            topic,
            text.encode(),
            tags="标签",
            keys="钥匙 ключ",
            flag=42,
            properties={"作者": "Ünï 🚀", "a": "x=y&z"},
        )
    )

    (message,) = read(java, make_group(), topic, 1)
    assert message.body.decode() == text
    assert (message.tags, message.keys, message.flag) == ("标签", "钥匙 ключ", 42)
    assert (message.properties["作者"], message.properties["a"]) == ("Ünï 🚀", "x=y&z")


def test_message_over_the_brokers_limit_is_refused(
    java: JavaClient, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    topic = make_topic(queues=1)
    producer = java.producer(make_group(), compress_over=1 << 30, retries=0)
    with pytest.raises(JavaError) as refused:
        producer.send(Outgoing(topic, random.Random(2).randbytes(70_000)))
    assert refused.value.code == 13

    producer.send(Outgoing(topic, b"the connection still works"))
    (message,) = read(java, make_group(), topic, 1)
    assert message.body == b"the connection still works"


def test_first_send_to_an_unknown_topic_creates_it_with_four_queues(
    java: JavaClient, make_group: MakeGroup
) -> None:
    topic = f"born-by-sending-{make_group()}"
    producer = java.producer(make_group())
    (sent,) = producer.send(Outgoing(topic, b"first"))
    assert sent.status == "SEND_OK"

    queues = eventually(lambda: producer.queues(topic), lambda known: len(known) == 4, f"queues of {topic}")
    assert [queue.queue_id for queue in queues] == [0, 1, 2, 3]
    (message,) = read(java, make_group(), topic, 1)
    assert message.body == b"first"
    assert message.message_id == sent.message_id
