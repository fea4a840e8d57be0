"""What is no message is refused with a word on what it is and what to pass, by every way to send."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from gimbalmq import request, sync
from gimbalmq.client.producer import Producer
from gimbalmq.client.transaction import TransactionProducer
from gimbalmq.errors import MessageIllegalError
from gimbalmq.model.message import Message, MessageView
from gimbalmq.model.queues import MessageQueue
from tests.client.scripted import ScriptedCluster, until
from tests.client.sending.test_batches import with_producer

REMEDY = r"; pass gimbalmq\.Message\(topic, body\)"
VIEW = MessageView.build("T", b"x")
NO_MESSAGES = [
    ("x", "'x' of type str"),
    (b"x", "b'x' of type bytes"),
    (None, "None of type NoneType"),
    (VIEW, "<MessageView .* of type MessageView"),
    ({"body": b"x"}, r"\{'body': b'x'\} of type dict"),
]


@pytest.mark.parametrize("auto", [True, False])
@pytest.mark.parametrize(("given", "told"), NO_MESSAGES)
def test_what_is_no_message_is_refused_by_name(given: Any, told: str, auto: bool) -> None:
    async def work(_: ScriptedCluster, producer: Producer) -> None:
        await producer.send(Message("T", b"first"))  # the topic is known, and there may be an open batch
        under_way = producer.send_soon(Message("T", b"second"))
        one = rf"this is no Message but {told}{REMEDY}"
        many = rf"item 1 is no Message but {told}{REMEDY}"
        ways: list[dict[str, Any]] = [{}, {"queue": MessageQueue("T", "broker-a", 0)}]
        for options in ways:
            with pytest.raises(MessageIllegalError, match=one):
                await producer.send(given, **options)
            with pytest.raises(MessageIllegalError, match=one):
                producer.send_soon(given, **options)
            with pytest.raises(MessageIllegalError, match=one):
                await producer.send_oneway(given, **options)
            with pytest.raises(MessageIllegalError, match=many):
                await producer.send_batch([Message("T", b"a"), given], **options)
            with pytest.raises(MessageIllegalError, match=many):
                await producer.send_many([Message("T", b"a"), given], **options)
        with pytest.raises(MessageIllegalError, match=one):
            await request(producer, given)
        with pytest.raises(MessageIllegalError, match=one):
            await TransactionProducer.send_in_transaction(producer, given, lambda _: None)  # type: ignore[arg-type]
        await under_way
        await until(lambda: producer.sending.attempts.count == 0)

    with_producer(work, auto_batch=auto)


def test_others_of_the_same_call_are_stored() -> None:
    async def work(_: ScriptedCluster, producer: Producer) -> None:
        given: list[Any] = [b"x", Message("T", b"a"), None, Message("T", b"b"), "y"]
        outcomes = await producer.send_many(given, return_exceptions=True)
        assert [isinstance(outcome, MessageIllegalError) for outcome in outcomes] == [True, False] * 2 + [
            True
        ]
        assert "item 4 is no Message but 'y'" in str(outcomes[4])

    with_producer(work)


@pytest.mark.parametrize("given", [Message("T", b"x"), None, 5])
def test_what_has_no_items_is_refused(given: Any) -> None:
    async def work(_: ScriptedCluster, producer: Producer) -> None:
        told = rf"of type {type(given).__name__} has no items; pass a list of gimbalmq\.Message, or send one"
        with pytest.raises(MessageIllegalError, match=told):
            await producer.send_many(given)
        with pytest.raises(MessageIllegalError, match=told):
            await producer.send_batch(given)

    with_producer(work)


def test_errors_of_the_applications_own_code_stay_what_they_are() -> None:
    def generated() -> Iterator[Message]:
        yield Message("T", b"x")
        raise AttributeError("the application's own")

    def selector(*_: object) -> MessageQueue:
        raise AttributeError("the selector's own")

    async def work(_: ScriptedCluster, producer: Producer) -> None:
        for send in (producer.send_many, producer.send_batch):
            with pytest.raises(AttributeError, match="the application's own"):
                await send(generated())
        with pytest.raises(AttributeError, match="the selector's own"):
            await producer.send(Message("T", b"x"), selector=selector)

    with_producer(work, auto_batch=True)


def test_blocking_producers_refuse_alike() -> None:
    async def serve(ready: Any) -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            await asyncio.to_thread(ready, cluster.namesrv)

    def use(namesrv: str) -> None:
        wrong: Any = "x"
        one: Any = Message("T", b"x")
        with sync.Producer("pg", namesrv) as producer:
            for send in (
                producer.send,
                producer.send_oneway,
                lambda given: producer.send_soon(given).result(9),
            ):
                with pytest.raises(
                    MessageIllegalError, match=rf"this is no Message but 'x' of type str{REMEDY}"
                ):
                    send(wrong)
            for send_several in (producer.send_many, producer.send_batch):
                with pytest.raises(
                    MessageIllegalError, match=rf"item 0 is no Message but 'x' of type str{REMEDY}"
                ):
                    send_several([wrong])
                with pytest.raises(MessageIllegalError, match="has no items; pass a list"):
                    send_several(one)

    asyncio.run(serve(use))
