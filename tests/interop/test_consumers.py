"""Unmodified Java consumers: push (concurrent, orderly, broadcasting), retry until dead letter, lite pull."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from functools import partial

import pytest

from tests.interop.conftest import MakeGroup, MakeTopic, wait_for_route
from tests.peers.driver import JavaClient, JavaError, Outgoing, Queue, Received, eventually

pytestmark = pytest.mark.interop


def bodies(messages: list[Received]) -> list[bytes]:
    return [message.body for message in messages]


def numbered(topic: str, count: int, *, start: int = 0) -> list[Outgoing]:
    return [Outgoing(topic, f"{i:04d}".encode()) for i in range(start, start + count)]


def test_concurrent_consumer_gets_every_message_once_with_all_it_was_sent_with(
    java: JavaClient, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    topic, group = make_topic(queues=4), make_group()
    messages = [
        Outgoing(topic, f"{i:04d}".encode(), tags=f"t{i % 3}", keys=f"k{i} shared", properties={"i": str(i)})
        for i in range(100)
    ]
    sent = java.producer(make_group()).send(*messages[:50])
    consumer = java.push(group, topic)
    sent += java.producer(make_group()).send(*messages[50:])

    got = {message.message_id: message for message in consumer.wait_for(100)}
    assert len(consumer.received()) == 100
    for message, result in zip(messages, sent, strict=True):
        seen = got[result.message_id]
        assert (seen.body, seen.tags, seen.keys) == (message.body, message.tags, message.keys)
        assert seen.properties["i"] == message.properties["i"]
        assert (seen.topic, seen.queue_id, seen.queue_offset) == (topic, result.queue_id, result.queue_offset)
        assert seen.reconsume_times == 0


def test_tag_expression_lets_only_its_tags_through(
    java: JavaClient, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    topic = make_topic(queues=2)
    java.producer(make_group()).send(
        *(Outgoing(topic, f"{tag}{i}".encode(), tags=tag) for i in range(10) for tag in ("a", "b", "c")),
        Outgoing(topic, b"untagged"),
        Outgoing(topic, b"last", tags="c"),
    )
    consumer = java.push(make_group(), topic, tags="a || c")
    got = consumer.wait_for(21)
    assert sorted(bodies(got)) == sorted(
        [f"{tag}{i}".encode() for i in range(10) for tag in ("a", "c")] + [b"last"]
    )


def test_waiting_pull_is_answered_as_soon_as_a_message_arrives(
    java: JavaClient, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    """S3-01: the broker holds a pull that finds nothing."""
    topic, group = make_topic(queues=1), make_group()
    consumer = java.push(group, topic)
    producer = java.producer(make_group())
    producer.send(Outgoing(topic, b"warm up"))
    consumer.wait_for(1)

    delays = []
    for i in range(5):
        begin = time.monotonic()
        producer.send(Outgoing(topic, f"{i}".encode()))
        consumer.wait_for(i + 2)
        delays.append(time.monotonic() - begin)
    # A busy machine costs some tenths; a pull that nothing woke would wait for a timer: 5 s at Apache's broker.
    assert statistics.median(delays) < 2.0, delays


def test_orderly_consumer_gets_each_queue_in_order_even_when_it_fails(
    java: JavaClient, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    """Each message fails once: it is tried again at once, before any later one of its queue."""
    topic = make_topic(queues=3)
    java.producer(make_group()).send(
        *(Outgoing(topic, f"{i:04d}".encode(), order=str(i % 5)) for i in range(30))
    )
    consumer = java.push(make_group(), topic, orderly=True, failures=1)

    by_queue: dict[int, list[int]] = defaultdict(list)
    for message in consumer.wait_for(60):
        by_queue[message.queue_id].append(message.queue_offset)
    assert sum(map(len, by_queue.values())) == 60
    for offsets in by_queue.values():
        assert offsets == [offset for i in range(len(offsets) // 2) for offset in (i, i)]


def test_broadcasting_gives_every_member_every_message(
    java: JavaClient, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    """S3-09: every member holds all queues."""
    topic, group = make_topic(queues=4), make_group()
    members = [java.push(group, topic, broadcasting=True) for _ in range(2)]
    for member in members:
        eventually(partial(member.queues, topic), lambda held: len(held) == 4, "all queues")
    messages = numbered(topic, 40)
    java.producer(make_group()).send(*messages)

    for member in members:
        assert sorted(bodies(member.wait_for(40))) == [message.body for message in messages]
        assert len(member.queues(topic)) == 4


def test_failed_message_comes_back_after_its_delay_under_its_own_topic(
    java: JavaClient, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    """S3-23, S3-33, S3-34: sent back to the broker, delayed there, then given to the same group once more."""
    topic, group = make_topic(queues=1), make_group(retrying=True)
    producer = java.producer(make_group())
    (sent,) = producer.send(Outgoing(topic, b"again", tags="t", keys="k", properties={"p": "v"}))
    consumer = java.push(group, topic, failures=1)

    first, second = consumer.wait_for(2)
    assert first.message_id == second.message_id == sent.message_id
    assert (first.reconsume_times, second.reconsume_times) == (0, 1)
    assert (second.topic, second.body, second.tags, second.keys) == (topic, b"again", "t", "k")
    assert second.properties["p"] == "v"
    assert second.properties["RETRY_TOPIC"] == topic
    assert second.properties["ORIGIN_MESSAGE_ID"] == sent.offset_id
    assert second.store_timestamp - first.store_timestamp >= 900
    consumer.wait_until_done(f"%RETRY%{group}", 1)
    consumer.shutdown()

    successor = java.push(group, topic)
    producer.send(Outgoing(topic, b"next"))
    assert bodies(successor.wait_for(1)) == [b"next"]


def test_message_that_always_fails_ends_as_dead_letter(
    java: JavaClient, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    """Three attempts with two retries allowed, then %DLQ% and never again."""
    topic, group = make_topic(queues=1), make_group(retrying=True)
    producer = java.producer(make_group())
    (sent,) = producer.send(Outgoing(topic, b"poison", tags="t", keys="k", properties={"p": "v"}))
    consumer = java.push(group, topic, failures=-1, max_reconsume_times=2)

    got = consumer.wait_for(3)
    assert [message.reconsume_times for message in got] == [0, 1, 2]
    assert {message.message_id for message in got} == {sent.message_id}

    dead_letters = f"%DLQ%{group}"
    wait_for_route(java, dead_letters)
    reader = java.lite_pull(make_group())
    queues = reader.fetch_queues(dead_letters)
    assert [queue.queue_id for queue in queues] == [0]
    reader.assign(queues)
    (dead,) = reader.poll_for(1)
    assert (dead.body, dead.tags, dead.keys, dead.message_id) == (b"poison", "t", "k", sent.message_id)
    assert dead.properties["p"] == "v"
    assert dead.properties["RETRY_TOPIC"] == topic
    assert len(consumer.received()) == 3


def test_clean_shutdown_means_nothing_is_consumed_again(
    java: JavaClient, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    """S1-25, S3-31: the next member continues exactly where the last one stopped."""
    topic, group = make_topic(queues=4), make_group()
    producer = java.producer(make_group())
    producer.send(*numbered(topic, 40))
    first = java.push(group, topic)
    first.wait_for(40)
    first.wait_until_done(topic, 40)
    first.shutdown()

    producer.send(*numbered(topic, 12, start=40))
    second = java.push(group, topic)
    assert sorted(bodies(second.wait_for(12))) == [message.body for message in numbered(topic, 12, start=40)]


def test_new_group_reads_a_young_topic_from_its_beginning_even_if_told_to_start_last(
    java: JavaClient, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    """S2-36, S2-38: while offset 0 is still in memory the broker answers 0 for an unknown group."""
    topic = make_topic(queues=1)
    producer = java.producer(make_group())
    producer.send(*numbered(topic, 5))
    consumer = java.push(make_group(), topic, from_where="CONSUME_FROM_LAST_OFFSET")
    assert sorted(bodies(consumer.wait_for(5))) == [message.body for message in numbered(topic, 5)]


def test_sql_subscription_is_refused_at_start_where_the_broker_does_not_filter(
    java: JavaClient, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    """S1-21: CHECK_CLIENT_CONFIG fails the start with the broker's reason."""
    with pytest.raises(JavaError, match="The broker does not support consumer to filter message by SQL92"):
        java.push(make_group(), make_topic(queues=1), sql="a > 1")


def test_lite_pull_subscription_polls_everything_and_continues_where_it_committed(
    java: JavaClient, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    """S1-17: offsets go to the broker and come back."""
    topic, group = make_topic(queues=4), make_group()
    producer = java.producer(make_group())
    producer.send(*numbered(topic, 40))
    with java.lite_pull(group, topic, manual_commit=True) as consumer:
        assert sorted(bodies(consumer.poll_for(40))) == [message.body for message in numbered(topic, 40)]
        queues = consumer.assignment()
        assert [queue.queue_id for queue in queues] == [0, 1, 2, 3]
        consumer.commit()
        eventually(
            lambda: [consumer.committed(queue) for queue in queues], lambda got: got == [10] * 4, "commits"
        )

    producer.send(*numbered(topic, 8, start=40))
    got = java.lite_pull(group, topic).poll_for(8)
    assert sorted(bodies(got)) == [message.body for message in numbered(topic, 8, start=40)]


def test_lite_pull_filters_by_tag(java: JavaClient, make_topic: MakeTopic, make_group: MakeGroup) -> None:
    topic = make_topic(queues=2)
    java.producer(make_group()).send(*(Outgoing(topic, f"{i}".encode(), tags="ab"[i % 2]) for i in range(20)))
    consumer = java.lite_pull(make_group(), topic, tags="b")
    assert sorted(map(int, bodies(consumer.poll_for(10)))) == list(range(1, 20, 2))


def test_lite_pull_assigned_queues_can_be_sought_by_offset_and_by_time(
    java: JavaClient, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    topic = make_topic(queues=2)
    producer = java.producer(make_group())
    queue = Queue(topic, producer.queues(topic)[0].broker, 1)
    producer.send(*(Outgoing(topic, f"{i}".encode(), queue=queue) for i in range(10)))
    consumer = java.lite_pull(make_group(), manual_commit=True)
    consumer.assign([queue])
    first = consumer.poll_for(10)
    assert bodies(first) == [f"{i}".encode() for i in range(10)]
    assert {message.queue_id for message in first} == {1}

    consumer.seek(queue, 7)
    again = consumer.poll_for(3)
    assert [(message.queue_offset, message.body) for message in again] == [(7, b"7"), (8, b"8"), (9, b"9")]

    # In one millisecond there may be several: the first message stored at that time is meant.
    wanted = first[5].store_timestamp
    expected = next(message.queue_offset for message in first if message.store_timestamp >= wanted)
    assert consumer.offset_for_timestamp(queue, wanted) == expected
    assert consumer.offset_for_timestamp(queue, first[0].store_timestamp - 60_000) == 0
