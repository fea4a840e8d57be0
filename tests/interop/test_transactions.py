"""Java transaction producers: commit, rollback, and the broker's check-back."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.interop.conftest import MakeGroup, MakeTopic
from tests.peers.driver import (
    JavaClient,
    JavaProducer,
    JavaPushConsumer,
    Outgoing,
    Received,
    TransactionEvent,
    eventually,
)

pytestmark = pytest.mark.interop


def checks_of(producer: JavaProducer, body: bytes) -> list[TransactionEvent]:
    return [e for e in producer.transaction_events() if e.event == "check" and e.body == body]


def seen_by(consumer: JavaPushConsumer, bodies: set[bytes]) -> dict[bytes, Received]:
    """What a consumer got, by body, once all of these are there."""
    return eventually(
        lambda: {message.body: message for message in consumer.received()},
        lambda seen: bodies <= set(seen),
        f"messages {bodies}",
    )


def test_committed_message_appears_and_rolled_back_one_never_does(
    java: JavaClient, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    topic = make_topic(queues=2)
    consumer = java.push(make_group(), topic)
    producer = java.producer(make_group(), transactional=True)
    committed, rolled_back, after = producer.send_in_transaction(
        Outgoing(topic, b"commit", tags="t", keys="k", properties={"local": "commit", "p": "v"}),
        Outgoing(topic, b"rollback", properties={"local": "rollback"}),
        Outgoing(topic, b"after", properties={"local": "commit"}),
    )
    assert [committed.status, rolled_back.status, after.status] == ["SEND_OK"] * 3
    assert committed.local_state == "COMMIT_MESSAGE"
    assert rolled_back.local_state == "ROLLBACK_MESSAGE"

    got = {message.body: message for message in consumer.wait_for(2)}
    assert set(got) == {b"commit", b"after"}
    message = got[b"commit"]
    assert (message.topic, message.tags, message.keys) == (topic, "t", "k")
    assert message.message_id == committed.message_id
    assert message.properties["p"] == "v"
    assert message.properties["PGROUP"]
    assert message.transaction_offset >= 0
    assert [e.event for e in producer.transaction_events()] == ["local"] * 3


def test_undecided_transactions_are_checked_back_until_decided(
    java: JavaClient, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    topic = make_topic(queues=2)
    consumer = java.push(make_group(), topic)
    producer = java.producer(make_group(), transactional=True)
    sent = producer.send_in_transaction(
        Outgoing(topic, b"check says commit", keys="k", properties={"local": "unknown", "check": "commit"}),
        Outgoing(topic, b"check says rollback", properties={"local": "unknown", "check": "rollback"}),
        Outgoing(topic, b"local throws", properties={"local": "throw", "check": "commit"}),
        Outgoing(
            topic, b"second check", properties={"local": "unknown", "check": "commit", "checkAfter": "2"}
        ),
    )
    assert {result.local_state for result in sent} == {"UNKNOW"}

    decided = {b"check says commit", b"local throws", b"second check"}
    got = seen_by(consumer, decided)
    assert got[b"check says commit"].message_id == sent[0].message_id
    assert got[b"check says commit"].keys == "k"

    # One more whole round of checks: what was rolled back stays away. (Apache's broker may check and commit twice.)
    producer.send_in_transaction(
        Outgoing(topic, b"later", properties={"local": "unknown", "check": "commit"})
    )
    assert set(seen_by(consumer, decided | {b"later"})) == decided | {b"later"}
    events = producer.transaction_events()
    checks = Counter(event.body for event in events if event.event == "check")
    assert set(checks) == decided | {b"check says rollback", b"later"}
    assert checks[b"second check"] >= 2
    for event in events:
        if event.message is not None:
            assert event.message.topic == topic
            assert event.message.properties["TRAN_MSG"] == "true"
    ids = {result.transaction_id for result in sent}
    assert {event.transaction_id for event in events if event.body != b"later"} == ids


def test_another_member_of_the_group_is_asked_when_the_sender_is_gone(
    java: JavaClient, make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    topic, group = make_topic(queues=1), make_group()
    consumer = java.push(make_group(), topic)
    # Whatever the sender is asked before it has gone, the message must be left for the other to decide.
    sender = java.producer(group, transactional=True, undecided=True)
    (sent,) = sender.send_in_transaction(
        Outgoing(topic, b"orphan", properties={"local": "unknown", "check": "commit"})
    )
    heir = java.producer(group, transactional=True)
    heir.send(Outgoing(topic, b"so that it is connected"))
    sender.shutdown()

    eventually(lambda: checks_of(heir, b"orphan"), bool, "a check at the other producer")
    assert seen_by(consumer, {b"orphan"})[b"orphan"].message_id == sent.message_id
