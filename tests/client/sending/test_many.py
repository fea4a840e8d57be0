"""``send_many``: one call for messages of any kind; an outcome for each, bounds, order and the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from gimbalmq.client.producer import Producer
from gimbalmq.errors import MessageIllegalError, RequestTimeoutError, SendFailedError, StateError
from gimbalmq.model.message import Message
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.results import SendResult
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.transport.channel import Channel
from tests.client.scripted import ScriptedCluster, until
from tests.client.sending.test_batches import (
    BATCH,
    bodies,
    closing,
    received,
    sends,
    silent_until,
    with_producer,
)

Q0 = MessageQueue("T", "broker-a", 0)


def numbered(count: int, **options: Any) -> list[Message]:
    return [Message("T", b"%03d" % n, **options) for n in range(count)]


@pytest.mark.parametrize("auto", [True, False])
def test_results_are_in_the_order_of_messages_of_any_kind(auto: bool) -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        cluster.add_topic("U")
        messages = [
            Message("T", b"plain 0"),
            Message("T", b"tagged", tags="t", keys=["k"], properties={"own": "v"}, flag=3),
            Message("U", b"other topic"),
            Message("T", b"plain 1"),
            Message("T", b"bound 0", sharding_key="s"),
            Message("T", b"later", delay_level=1),
            Message("T", b"no waiting", wait_store_ok=False),
            Message("T", b"own id", msg_id="a" * 30),
            Message("T", b"x" * 5000),
            Message("T", b"bound 1", sharding_key="s"),
            Message("T", b"plain 2"),
            Message("T", "umlaut", tags="ü"),
        ]
        results = await producer.send_many(iter(messages))
        assert [result.msg_id for result in results] == [message.msg_id for message in messages]
        assert len({result.queue_offset for result in results}) == len(messages)
        assert [result.queue.topic for result in results] == [message.topic for message in messages]
        places = dict(zip((message.body for message in messages), results, strict=True))
        alike = [body for body in places if body.startswith(b"plain")]
        (shared,) = [request for request in sends(cluster.broker) if b"plain 0" in bodies(request)]
        assert shared.code == BATCH and set(alike) <= set(bodies(shared))
        assert places[b"bound 0"].queue == places[b"bound 1"].queue
        assert places[b"bound 0"].queue_offset < places[b"bound 1"].queue_offset

    with_producer(work, auto_batch=auto)


@pytest.mark.parametrize("how", [{}, {"sharding_key": "s"}])
def test_a_call_does_not_wait_for_company(how: dict[str, Any]) -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        begun = asyncio.get_running_loop().time()
        assert await producer.send_many([]) == []
        await producer.send_many(numbered(3, **how))
        assert asyncio.get_running_loop().time() - begun < 1.0
        assert received(cluster.broker) == [[b"000", b"001", b"002"]]

    with_producer(work)


def test_each_message_has_its_own_error_and_the_others_are_stored() -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        broker = cluster.broker

        def picky(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            return request.reply(13, "no") if b"bad" in bodies(request) else broker.stored(request)

        broker.on_send = picky
        given = [
            Message("T", "a"),
            Message("T", ""),
            Message("T", "bad"),
            Message("no topic", "b"),
            Message("T", "c"),
        ]
        given.append(Message("T", "d", tags="\ud800"))
        outcomes = await producer.send_many(given, return_exceptions=True)
        kinds = [type(outcome) for outcome in outcomes]
        illegal = MessageIllegalError
        assert kinds == [SendResult, illegal, illegal, illegal, SendResult, UnicodeEncodeError]
        stored = [body for request in received(broker) for body in request]
        assert {b"a", b"c"} <= set(stored)
        with pytest.raises(MessageIllegalError, match="length is zero"):
            await producer.send_many([Message("T", "e"), Message("T", ""), Message("T", "f")])
        assert [b"e", b"f"] in received(broker)
        broker.on_send = lambda channel, request: request.reply(16, "no permission")
        with pytest.raises(SendFailedError):
            await producer.send_many(numbered(2))

    with_producer(work)


@pytest.mark.parametrize("how", [{}, {"sharding_key": "s"}, {"delay_level": 1}, {"tags": "t"}])
@pytest.mark.parametrize("option", [{"total_batch_max_bytes": 1000}, {"max_in_flight": 4}])
def test_a_long_iterable_is_read_as_fast_as_brokers_answer(
    option: dict[str, Any], how: dict[str, Any]
) -> None:
    read = 0

    def messages() -> Iterator[Message]:
        nonlocal read
        for message in [Message("T", b"%03d" % n * 80, **how) for n in range(200)]:
            read += 1
            yield message

    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        gate = silent_until(cluster.broker)
        call = asyncio.ensure_future(producer.send_many(messages()))
        await until(lambda: sends(cluster.broker))
        await asyncio.sleep(0.01)
        assert read < 60
        gate.set()
        results = await call
        assert read == len(results) == len({result.queue_offset for result in results}) == 200

    with_producer(work, batch_max_bytes=1000, **option)


@pytest.mark.parametrize("option", [{"total_batch_max_bytes": 1000}, {"max_in_flight": 4}])
def test_a_long_iterable_is_not_read_on_while_its_topic_is_looked_for(option: dict[str, Any]) -> None:
    read = 0

    def messages() -> Iterator[Message]:
        nonlocal read
        for message in [Message("U", b"%03d" % n * 80, sharding_key="s") for n in range(400)]:
            read += 1
            yield message

    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        cluster.add_topic("U")
        gate = silent_until(cluster.broker)
        call = asyncio.ensure_future(producer.send_many(messages()))
        await until(lambda: sends(cluster.broker))
        assert read < 60
        gate.set()
        assert len(await call) == 400

    with_producer(work, batch_max_bytes=1000, batch_max_delay=0.01, **option)


@pytest.mark.parametrize(("queue", "topic"), [(None, "no topic!"), (Q0, "no topic!"), (Q0, "T")])
def test_calls_that_wait_for_the_same_room_all_end(queue: MessageQueue | None, topic: str) -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        gate = silent_until(cluster.broker)
        first = asyncio.ensure_future(producer.send_many([Message("T", b"x" * 990)]))
        await until(lambda: producer._gathering.full)
        calls = [
            asyncio.ensure_future(
                producer.send_many([Message(topic, b"y"), *numbered(9)], queue=queue, return_exceptions=True)
            )
            for _ in range(2)
        ]
        await until(lambda: len(producer._gathering._waiting) == len(calls))
        gate.set()
        await first
        expected: type[object] = SendResult if topic == "T" else MessageIllegalError
        for call in calls:
            first_of_call, *others = await asyncio.wait_for(call, 60)
            assert isinstance(first_of_call, expected)
            assert all(isinstance(outcome, SendResult) for outcome in others)

    with_producer(work, batch_max_bytes=1000, total_batch_max_bytes=1000, batch_max_delay=0.01)


def test_messages_for_one_queue_arrive_in_their_order() -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        messages = numbered(100)
        messages[50].delay_level = 1
        results = await producer.send_many(messages, queue=Q0)
        assert [body for request in received(cluster.broker) for body in request] == [
            m.body for m in messages
        ]
        assert {result.queue for result in results} == {Q0}
        assert len(sends(cluster.broker)) < 20

    with_producer(work, batch_max_bytes=1000, batch_max_delay=0.01)


@pytest.mark.parametrize("how", [{}, {"sharding_key": "s"}])
def test_what_has_not_left_when_the_call_is_given_up_is_never_sent(how: dict[str, Any]) -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        def messages() -> Iterator[Message]:
            yield from numbered(3, **how)
            raise LookupError("no more")

        with pytest.raises(LookupError):
            await producer.send_many(messages())
        producer._gathering.flush()
        await producer.send_many([Message("T", "last")])
        assert received(cluster.broker) == [[b"last"]]

    with_producer(work)


@pytest.mark.parametrize("how", [{}, {"sharding_key": "s"}, {"delay_level": 1}])
def test_a_call_that_is_cancelled_sends_no_more(how: dict[str, Any]) -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        gate = silent_until(cluster.broker)
        call = asyncio.ensure_future(producer.send_many(numbered(100, **how)))
        await until(lambda: sends(cluster.broker))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        gate.set()
        await producer.send_many([Message("T", "last")])
        assert sum(map(len, received(cluster.broker))) <= 21

    with_producer(work, max_in_flight=20)


def test_close_ends_a_call_that_waits() -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        silent_until(cluster.broker)
        kinds = [*numbered(2), *numbered(2, delay_level=1), *numbered(2, sharding_key="s")]
        call = asyncio.ensure_future(producer.send_many(kinds, return_exceptions=True))
        await until(lambda: sends(cluster.broker))
        await producer.close()
        for outcome in await asyncio.wait_for(call, 60):
            assert isinstance(outcome, StateError | RequestTimeoutError)
        with pytest.raises(StateError):
            await producer.send_many(numbered(1))

    closing(work)


def test_close_ends_a_call_that_has_much_to_read() -> None:
    read = 0

    def messages() -> Iterator[Message]:
        nonlocal read
        for read in range(1, 3001):
            yield Message("T", b"%04d" % read * 60)

    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        silent_until(cluster.broker)
        call = asyncio.ensure_future(producer.send_many(messages()))
        await until(lambda: sends(cluster.broker))
        await producer.close()
        with pytest.raises(StateError):
            await asyncio.wait_for(call, 60)
        assert read < 300

    closing(work, batch_max_bytes=1000, total_batch_max_bytes=1000)


def test_each_of_many_is_traced() -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        cluster.add_topic("RMQ_SYS_TRACE_TOPIC")
        results = await producer.send_many(numbered(3))
        await producer.close()
        traces = [body.decode() for one in received(cluster.broker) for body in one if b"Pub" in body]
        for result in results:
            assert sum(result.msg_id in text for text in "\x02".join(traces).split("\x02")) == 1

    closing(work, trace=True)
