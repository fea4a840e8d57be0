"""Automatic batches: what goes together, what comes of each message, order, bounds and the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from gimbalmq.client.producer import Producer
from gimbalmq.errors import (
    ConfigError,
    MessageIllegalError,
    NoPermissionError,
    RequestTimeoutError,
    RocketMQError,
    StateError,
    TopicRouteNotFoundError,
)
from gimbalmq.model import properties as names
from gimbalmq.model.batch import split_batch
from gimbalmq.model.ids import parse_unique_id
from gimbalmq.model.message import Message
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.results import SendResult, SendStatus
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.testing import MemoryNetwork, VirtualClock, run_virtual
from gimbalmq.transport.channel import Channel
from tests.client.scripted import ScriptedBroker, ScriptedCluster, until

LONG = 30.0
"""No test waits for a batch that waits so long."""

BATCH = int(RequestCode.SEND_BATCH_MESSAGE)
SINGLE = int(RequestCode.SEND_MESSAGE_V2)


def bodies(request: RemotingCommand) -> list[bytes]:
    """Of the messages of one send, of either kind."""
    if request.code == BATCH:
        return [item.body for item in split_batch(bytes(request.body))]
    return [bytes(request.body)]


def sends(broker: ScriptedBroker) -> list[RemotingCommand]:
    return [request for request in broker.requests if request.code in (BATCH, SINGLE)]


def received(broker: ScriptedBroker) -> list[list[bytes]]:
    return [bodies(request) for request in sends(broker)]


def with_producer(
    work: Callable[[ScriptedCluster, Producer], Awaitable[None]],
    brokers: tuple[str, ...] = (),
    **options: Any,
) -> None:
    """Runs ``work`` with a producer that gathers, knows topic T and is connected."""

    async def scenario(_: VirtualClock) -> None:
        network = MemoryNetwork(1).host("127.0.0.1")
        async with ScriptedCluster(*brokers, network=network) as cluster:
            cluster.add_topic("T")
            options.setdefault("batch_max_delay", LONG)
            options.setdefault("auto_batch", True)
            async with Producer("pg", cluster.namesrv, network=network, **options) as producer:
                for queue in {one.broker_name: one for one in await producer.publish_queues("T")}.values():
                    await producer.sending.attempts.connect(queue, 3.0)
                await work(cluster, producer)
                await producer._gathering.close()
                assert (producer._gathering.held, producer.sending.attempts.count) == (0, 0)
                assert not producer.sending.lines

    run_virtual(scenario)


def flush(producer: Producer) -> None:
    assert producer._batches is not None
    producer._batches.flush()


def soon(producer: Producer, *texts: str, **how: Any) -> list[asyncio.Future[SendResult]]:
    return [producer.send_soon(Message("T", text), **how) for text in texts]


# --- together --------------------------------------------------------------------------------------


def test_messages_leave_in_one_request_and_each_has_its_own_result() -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        messages = [Message("T", f"b{n}", tags=f"t{n}", keys=f"k{n}", flag=n) for n in range(3)]
        futures = [producer.send_soon(message) for message in messages]
        cluster.broker.next_offset = 40
        flush(producer)
        results = await asyncio.gather(*futures)
        (request,) = sends(cluster.broker)
        items = split_batch(bytes(request.body))
        assert [(item.body, item.flag) for item in items] == [(b"b0", 0), (b"b1", 1), (b"b2", 2)]
        for n, (item, message, result) in enumerate(zip(items, messages, results, strict=True)):
            properties = names.parse(item.properties.decode())
            assert properties == {
                "UNIQ_KEY": message.msg_id,
                "WAIT": "true",
                "TAGS": f"t{n}",
                "KEYS": f"k{n}",
            }
            assert result.status is SendStatus.SEND_OK
            assert (result.msg_id, result.queue_offset) == (message.msg_id, 40 + n)
            assert result.queue == results[0].queue
        assert len({result.offset_msg_id for result in results}) == 3
        assert all(len(result.offset_msg_id) == 32 for result in results)
        # A batch's own properties are appended to those of every message by some brokers.
        assert (request.ext_fields or {})["i"] == "WAIT\x01true\x02"

    with_producer(work)


@pytest.mark.parametrize("own", [("a" * 31, "a" * 33), ("ü" * 32, "a" * 32)])
def test_ids_of_any_length_and_letters_are_kept(own: tuple[str, str]) -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        messages = [Message("T", f"b{n}") for n in range(4)]
        for message, msg_id in zip(messages[1:], own, strict=False):
            message.msg_id = msg_id
        futures = [producer.send_soon(message) for message in messages]
        flush(producer)
        results = await asyncio.gather(*futures)
        assert [result.msg_id for result in results[1:3]] == list(own)
        (request,) = sends(cluster.broker)
        for item, message in zip(split_batch(bytes(request.body)), messages, strict=True):
            assert names.parse(item.properties.decode()) == {"UNIQ_KEY": message.msg_id, "WAIT": "true"}

    with_producer(work)


@pytest.mark.parametrize(
    "options",
    [
        [{}, {"tags": "t"}, {}],
        [{"tags": "t"}, {}, {"tags": "t"}],
        [{"tags": "t"}] * 3,
        [{"tags": "t"}, {"tags": "u"}, {"tags": "t"}],
        [{"msg_id": "a" * 31}, {"msg_id": "b" * 30}, {"msg_id": "c" * 34}],
        [{"msg_id": "ü" * 32}] * 3,
        [{"tags": "ü"}] * 3,
        [{"flag": 1}, {}, {}],
    ],
)
def test_bodies_of_one_size_keep_what_is_theirs(options: list[dict[str, Any]]) -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        messages = [Message("T", f"b{n}", **option) for n, option in enumerate(options)]
        futures = [producer.send_soon(message) for message in messages]
        flush(producer)
        await asyncio.gather(*futures)
        (request,) = sends(cluster.broker)
        for item, message in zip(split_batch(bytes(request.body)), messages, strict=True):
            assert (item.body, item.flag) == (message.body, message.flag)
            assert names.parse(item.properties.decode()) == message.all_properties()

    with_producer(work)


def test_an_id_tells_the_time_of_its_message_after_a_long_pause() -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        ids, now_ms = producer.instance.unique_ids, producer.instance.clock.wall_ms
        ids.next(now_ms() - 3_600_000)
        again, message = Message("T", b"again"), Message("T", b"new")
        again.msg_id = "a" * 32
        futures = [producer.send_soon(each) for each in (again, message)]
        flush(producer)
        await asyncio.gather(*futures)
        told = [parse_unique_id(each).month_ms for each in (message.msg_id or "", ids.next(now_ms()))]
        assert 0 <= told[1] - told[0] < 60_000

    with_producer(work)


def test_awaited_sends_of_many_tasks_share_a_request() -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        results = await asyncio.gather(*(producer.send(Message("T", str(n))) for n in range(5)))
        assert received(cluster.broker) == [[b"0", b"1", b"2", b"3", b"4"]]
        assert [result.queue_offset for result in results] == list(range(5))

    with_producer(work, batch_max_delay=0.01)


def test_a_message_without_company_is_a_plain_send_when_its_time_is_up() -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        clock = asyncio.get_running_loop().time
        begun = clock()
        result = await producer.send(Message("T", b"alone"))
        assert clock() - begun == pytest.approx(5.0, abs=0.1)
        (request,) = sends(cluster.broker)
        assert (request.code, bytes(request.body)) == (SINGLE, b"alone")
        assert names.parse((request.ext_fields or {})["i"])["UNIQ_KEY"] == result.msg_id

    with_producer(work, batch_max_delay=5.0)


def test_a_batch_of_its_size_waits_no_longer() -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        futures = [producer.send_soon(Message("T", b"x" * 300)) for _ in range(7)]
        await asyncio.gather(*futures[:6])
        assert [len(one) for one in received(cluster.broker)] == [2, 2, 2]
        assert all(len(request.body) <= 1000 for request in sends(cluster.broker))
        assert not futures[6].done()
        flush(producer)
        await futures[6]

    with_producer(work, batch_max_bytes=1000)


def test_bytes_are_counted_not_letters() -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        futures = [producer.send_soon(Message("T", b"x", properties={"p": "ü" * 200})) for _ in range(4)]
        flush(producer)
        await asyncio.gather(*futures)
        assert all(len(request.body) <= 1000 for request in sends(cluster.broker))

    with_producer(work, batch_max_bytes=1000)


def test_what_differs_in_topic_or_waiting_is_not_mixed() -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        cluster.add_topic("U")
        futures = [
            producer.send_soon(Message(topic, f"{topic}{wait}", wait_store_ok=wait))
            for _ in range(2)
            for topic in ("T", "U")
            for wait in (True, False)
        ]
        flush(producer)
        await asyncio.gather(*futures)
        assert sorted(map(tuple, received(cluster.broker))) == [
            (name, name) for name in (b"TFalse", b"TTrue", b"UFalse", b"UTrue")
        ]
        waits = {bodies(request)[0]: (request.ext_fields or {})["i"] for request in sends(cluster.broker)}
        assert waits[b"TFalse"] == "WAIT\x01false\x02"

    with_producer(work)


@pytest.mark.parametrize(
    ("message", "how"),
    [
        (Message("T", b"x", delay_level=3), {}),
        (Message("T", b"x", delay=5.0), {}),
        (Message("T", b"x", deliver_at=4e9), {}),
        (Message("T", b"x" * 5000), {}),  # compressed
        (Message("T", bytes(range(256)) * 4), {}),  # larger than a batch
        (Message("T", b"x"), {"timeout": 2.0}),
        (Message("%RETRY%g", b"x"), {}),
    ],
    ids=["level", "delay", "moment", "compressed", "large", "own time", "retry topic"],
)
def test_what_cannot_wait_or_cannot_be_in_a_batch_leaves_at_once(
    message: Message, how: dict[str, Any]
) -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        cluster.add_topic("%RETRY%g")
        waiting = soon(producer, "a", "b")
        await producer.send_soon(message, **how)
        await producer.send(message, **how)
        assert [request.code for request in sends(cluster.broker)] == [SINGLE, SINGLE]
        assert not any(future.done() for future in waiting)
        flush(producer)
        await asyncio.gather(*waiting)

    with_producer(work, batch_max_bytes=1000)


@pytest.mark.parametrize("name", [names.TRAN_MSG, names.CORRELATION_ID])
def test_halves_and_requests_leave_at_once(name: str) -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        message = Message("T", b"x")
        message.system_properties[name] = "true"
        await producer.send(message)

    with_producer(work)


def test_each_batch_goes_to_the_next_queue() -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        futures = []
        for n in range(4):
            futures += soon(producer, f"{n}a", f"{n}b")
            flush(producer)
        queues = [result.queue.queue_id for result in await asyncio.gather(*futures)]
        assert queues[::2] == queues[1::2]
        assert sorted(queues[::2]) == [0, 1, 2, 3]

    with_producer(work)


def test_what_is_changed_after_the_call_is_sent_as_it_was() -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        message = Message("T", b"first")
        futures = [producer.send_soon(message)]
        message.body = b"second"
        futures += [producer.send_soon(message)]
        flush(producer)
        await asyncio.gather(*futures)
        assert received(cluster.broker) == [[b"first", b"second"]]

    with_producer(work)


# --- order -----------------------------------------------------------------------------------------


def test_bound_messages_keep_their_order_whatever_kind_they_are() -> None:
    """Small, large, waiting or not, with a time of their own, awaited or not: one queue, one order."""

    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        queue = MessageQueue("T", "broker-a", 2)
        kinds: list[tuple[dict[str, Any], dict[str, Any]]] = [
            ({}, {}),
            ({}, {}),
            ({"wait_store_ok": False}, {}),
            ({}, {"timeout": 9.0}),
            ({"delay_level": 1}, {}),
            ({"properties": {"p": "x" * 900}}, {}),
        ]
        sent = []
        for n in range(60):
            shape, how = kinds[n * 7 % 6]
            message = Message("T", b"%02d" % n, **shape)
            if n % 5:
                sent.append(producer.send_soon(message, queue=queue, **how))
            else:
                sent.append(asyncio.ensure_future(producer.send(message, queue=queue, **how)))
                await asyncio.sleep(0)
        flush(producer)
        results = await asyncio.gather(*sent)
        assert b"".join(body for request in received(cluster.broker) for body in request) == b"".join(
            b"%02d" % n for n in range(60)
        )
        assert {result.queue for result in results} == {queue}
        batches = [request for request in sends(cluster.broker) if request.code == BATCH]
        assert batches
        for request in batches:
            waits = {
                names.parse(item.properties.decode())["WAIT"] for item in split_batch(bytes(request.body))
            }
            assert f"WAIT\x01{'+'.join(waits)}\x02" == (request.ext_fields or {})["i"]

    with_producer(work, batch_max_bytes=1000)


def test_order_holds_while_route_and_connection_are_found() -> None:
    async def scenario(_: VirtualClock) -> None:
        network = MemoryNetwork(1).host("127.0.0.1")
        async with ScriptedCluster(network=network) as cluster:
            cluster.add_topic("T")
            options: dict[str, Any] = {"batch_max_delay": 0.0, "batch_max_bytes": 400, "network": network}
            async with Producer("pg", cluster.namesrv, auto_batch=True, **options) as producer:
                sent = []
                for number in range(200):
                    how: dict[str, Any] = {"timeout": 9.0} if number % 7 == 0 else {}
                    sent.append(producer.send_soon(Message("T", b"%03d" % number, sharding_key="k"), **how))
                    if number % 3:
                        await asyncio.sleep(0)
                await asyncio.gather(*sent)
                assert not producer.sending.lines
                got = [body for request in received(cluster.broker) for body in request]
                assert got == [b"%03d" % n for n in range(200)]

    run_virtual(scenario)


def test_sharding_keys_and_selectors_choose_the_queue_of_the_batch() -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        keyed = [
            producer.send_soon(Message("T", f"{key}{n}", sharding_key=key)) for n in range(3) for key in "ab"
        ]
        chosen = soon(producer, "c0", "c1", selector=lambda queues, _, at: queues[at], argument=3)
        flush(producer)
        results = await asyncio.gather(*keyed)
        assert {result.queue for result in results[::2]} != {result.queue for result in results[1::2]}
        assert {result.queue.queue_id for result in await asyncio.gather(*chosen)} == {3}
        assert sorted(received(cluster.broker)) == [
            [b"a0", b"a1", b"a2"],
            [b"b0", b"b1", b"b2"],
            [b"c0", b"c1"],
        ]

    with_producer(work)


def test_what_waits_for_a_connection_is_not_overtaken_once_there_is_one() -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        attempts, queue = producer.sending.attempts, MessageQueue("T", "broker-a", 0)
        connect, asked, gate = attempts.connect, asyncio.Event(), asyncio.Event()

        async def connect_late(chosen: MessageQueue, timeout: float) -> Channel:
            channel = await connect(chosen, timeout)
            if not asked.is_set():
                asked.set()
                await gate.wait()
            return channel

        attempts.connect = connect_late  # type: ignore[method-assign]
        channel = await connect(queue, 3.0)
        channel.close()
        sent = soon(producer, "a", queue=queue)
        flush(producer)
        await asked.wait()
        for text in "bc":
            sent += soon(producer, text, queue=queue)
            flush(producer)
        await asyncio.sleep(0.1)
        gate.set()
        await asyncio.gather(*sent)
        assert received(cluster.broker) == [[b"a"], [b"b"], [b"c"]]

    with_producer(work)


def picky(broker: ScriptedBroker) -> None:
    """The broker likes all but one."""

    def answer(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return request.reply(13, "no") if b"bad" in bodies(request) else broker.stored(request)

    broker.on_send = answer


def test_the_next_batch_of_a_queue_leaves_when_the_one_before_has_its_answer() -> None:
    """Apache's brokers store two requests of a connection in any order."""

    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        gate = asyncio.Event()

        async def answer(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            if bodies(request)[0] == b"a":
                await gate.wait()
            return cluster.broker.stored(request)

        cluster.broker.on_send = answer
        queue, other = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)
        sent = []
        for one, texts in ((queue, "ab"), (queue, "cd"), (other, "xy")):
            sent += soon(producer, *texts, queue=one)
            flush(producer)
        await asyncio.gather(*sent[4:])
        assert received(cluster.broker) == [[b"a", b"b"], [b"x", b"y"]]
        gate.set()
        await asyncio.gather(*sent)
        assert received(cluster.broker)[2:] == [[b"c", b"d"]]

    with_producer(work)


def slow(broker: ScriptedBroker, seconds: float) -> None:
    """Each answer takes so long."""

    async def answer(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        await asyncio.sleep(seconds)
        return broker.stored(request)

    broker.on_send = answer


def test_a_queue_of_a_broker_far_away_gets_few_large_batches_and_nothing_is_late() -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        slow(cluster.broker, 0.1)
        queue = MessageQueue("T", "broker-a", 0)
        sent: list[asyncio.Future[SendResult]] = []
        for n in range(100):
            sent += soon(producer, f"{n}", queue=queue)
            await asyncio.sleep(0.01)
        assert (await asyncio.gather(*sent))[-1].queue_offset == 99
        arrived = received(cluster.broker)
        assert [body for batch in arrived for body in batch] == [f"{n}".encode() for n in range(100)]
        assert len(arrived) < 15, "what waits for an answer gathers meanwhile"
        assert producer._batches is not None and not producer._batches._stored

    with_producer(work, batch_max_delay=0.01, send_timeout=0.3)


def test_whoever_waits_in_a_line_that_gets_on_is_not_late() -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        slow(cluster.broker, 0.1)
        queue = MessageQueue("T", "broker-a", 0)
        sent: list[asyncio.Future[SendResult]] = []
        for n in range(10):
            sent += soon(producer, f"{n}", queue=queue)
            flush(producer)
        assert [result.queue_offset for result in await asyncio.gather(*sent)] == [*range(10)]

    with_producer(work, send_timeout=0.3)


@pytest.mark.parametrize("delay", [0.01, LONG])
def test_the_time_limit_holds_behind_one_with_a_longer_limit(delay: float) -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        slow(cluster.broker, 60)
        queue = MessageQueue("T", "broker-a", 0)
        first = producer.send_soon(Message("T", "first"), queue=queue, timeout=20)
        (second,) = soon(producer, "second", queue=queue)
        if delay == LONG:
            flush(producer)
        loop = asyncio.get_running_loop()
        started = loop.time()
        with pytest.raises(RequestTimeoutError, match="was not sent"):
            await second
        assert loop.time() - started < 4
        slow(cluster.broker, 0)
        (third,) = soon(producer, "third", queue=queue)
        flush(producer)
        with pytest.raises(RequestTimeoutError, match="was not sent"):
            await third  # one that gave up lets nobody overtake the first
        with pytest.raises(RequestTimeoutError, match="unknown"):
            await first
        (fourth,) = soon(producer, "fourth", queue=queue)
        flush(producer)
        await fourth
        assert received(cluster.broker) == [[b"first"], [b"fourth"]]

    with_producer(work, batch_max_delay=delay)


def test_good_ones_of_a_refused_batch_arrive_before_later_ones_of_their_queue() -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        picky(cluster.broker)
        queue = MessageQueue("T", "broker-a", 0)
        sent = soon(producer, "a", "bad", "c", queue=queue)
        flush(producer)
        sent += soon(producer, "d", "e", queue=queue)
        flush(producer)
        await asyncio.gather(*sent, return_exceptions=True)
        assert received(cluster.broker)[1:] == [[b"a"], [b"bad"], [b"c"], [b"d", b"e"]]
        assert [future.exception() is None for future in sent] == [True, False, True, True, True]

    with_producer(work)


# --- failures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize(
    "odd", [{"flag": 2**31}, {"flag": -(2**31) - 1}, {"properties": {"p": "x" * 40_000}}]
)
def test_what_a_batch_cannot_carry_leaves_alone(odd: dict[str, Any], bound: bool) -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        queue = MessageQueue("T", "broker-a", 0) if bound else None
        sent = soon(producer, "a", "b", queue=queue)
        sent.append(producer.send_soon(Message("T", "odd", **odd), queue=queue))
        sent += soon(producer, "c", "d", queue=queue)
        flush(producer)
        await asyncio.wait_for(asyncio.gather(*sent), 60)
        together = [[b"a", b"b"], [b"c", b"d"]] if bound else [[b"a", b"b", b"c", b"d"]]
        assert sorted(received(cluster.broker)) == [*together, [b"odd"]]

    with_producer(work, batch_max_bytes=1_000_000)


def test_text_that_cannot_be_written_takes_up_no_room() -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        for queue in (None, MessageQueue("T", "broker-a", 0)):
            with pytest.raises(UnicodeEncodeError):
                soon(producer, "a")
                producer.send_soon(Message("T", b"x", properties={"p": "\ud800"}), queue=queue)
        flush(producer)

    with_producer(work)  # which looks at what is under way at the end


def test_a_fault_of_our_own_is_the_error_of_each() -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        futures = soon(producer, "a", "b")
        producer._batches._open["T", True, False].bodies[0] = "text"  # type: ignore
        flush(producer)
        errors = await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), 60)
        assert [type(error) for error in errors] == [TypeError] * 2

    with_producer(work)


def test_an_error_is_the_error_of_each() -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        cluster.broker.on_send = lambda channel, request: request.reply(16, "no permission")
        futures = soon(producer, "a", "b", "c")
        flush(producer)
        errors = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(error) for error in errors] == [NoPermissionError] * 3
        assert len(sends(cluster.broker)) == 1

    with_producer(work)


def test_only_the_message_that_a_broker_does_not_like_fails() -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        broker = cluster.broker

        def picky(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            if b"bad" in bodies(request):
                return request.reply(13, "a body it does not like")
            return broker.stored(request)

        broker.on_send = picky
        for queue in (None, MessageQueue("T", "broker-a", 1)):
            broker.requests.clear()
            futures = soon(producer, "a", "bad", "c", queue=queue)
            flush(producer)
            first, bad, last = await asyncio.gather(*futures, return_exceptions=True)
            assert isinstance(bad, MessageIllegalError)
            assert isinstance(first, SendResult)
            assert isinstance(last, SendResult)
            assert last.queue_offset == first.queue_offset + 1
            assert received(broker) == [[b"a", b"bad", b"c"], [b"a"], [b"bad"], [b"c"]]

    with_producer(work)


@pytest.mark.parametrize("bound", [False, True])
def test_good_ones_of_a_refused_batch_are_not_late_however_many_they_are(bound: bool) -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        async def picky(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            await asyncio.sleep(producer.config.send_timeout / 4)
            if b"bad" in bodies(request):
                return request.reply(13, "a body it does not like")
            return cluster.broker.stored(request)

        cluster.broker.on_send = picky
        queue = MessageQueue("T", "broker-a", 1) if bound else None
        futures = soon(producer, *"abc", "bad", *"defg", queue=queue)
        flush(producer)
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        assert [n for n, one in enumerate(outcomes) if not isinstance(one, SendResult)] == [3]

    with_producer(work)


def test_ones_of_a_refused_batch_wait_for_a_broker_that_falls_silent_once() -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        broker = cluster.broker
        broker.on_send = lambda channel, request: request.reply(13, "no") if request.code == BATCH else None
        futures = soon(producer, *"abcd", queue=MessageQueue("T", "broker-a", 1))
        flush(producer)
        started = asyncio.get_running_loop().time()
        for error in await asyncio.gather(*futures, return_exceptions=True):
            assert isinstance(error, RequestTimeoutError)
        assert asyncio.get_running_loop().time() - started < 1.5 * producer.config.send_timeout

    with_producer(work)


def test_batches_follow_the_rules_of_how_they_were_sent() -> None:
    """Awaited ones go to another broker after most errors; of the others an error answer is final."""

    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        for broker in cluster.brokers.values():
            broker.on_send = lambda channel, request: request.reply(2, "busy")
        awaited = [asyncio.ensure_future(producer.send(Message("T", f"a{n}"))) for n in range(2)]
        await asyncio.sleep(0)
        started = soon(producer, "s0", "s1")
        flush(producer)
        for error in await asyncio.gather(*awaited, *started, return_exceptions=True):
            assert isinstance(error, RocketMQError)
        tried = [one for broker in cluster.brokers.values() for one in received(broker)]
        assert sorted(tried) == [[b"a0", b"a1"]] * 3 + [[b"s0", b"s1"]]

    with_producer(work, brokers=("broker-a", "broker-b"))


def test_a_topic_without_a_route_fails_each() -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        futures = [producer.send_soon(Message("nowhere", b"x")) for _ in range(2)]
        futures += [producer.send_soon(Message("nowhere", b"x", sharding_key="k")) for _ in range(2)]
        flush(producer)
        errors = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(error) for error in errors] == [TopicRouteNotFoundError] * 4

    with_producer(work)


def test_an_answer_with_one_id_is_the_id_of_all() -> None:
    """A broker that stores the batch as one record has one id for it; the places in the queue are still one each."""

    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        fields = {"msgId": "AB" * 16, "queueId": "0", "queueOffset": "7"}
        cluster.broker.on_send = lambda channel, request: request.reply(ext_fields=fields)
        futures = soon(producer, "a", "b")
        flush(producer)
        results = await asyncio.gather(*futures)
        assert [(one.offset_msg_id, one.queue_offset) for one in results] == [("AB" * 16, 7), ("AB" * 16, 8)]

    with_producer(work)


# --- given up --------------------------------------------------------------------------------------


def test_a_send_that_is_given_up_while_it_waits_is_never_sent() -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        futures = soon(producer, "a", "b", "c")
        task = asyncio.ensure_future(producer.send(Message("T", "awaited")))
        await asyncio.sleep(0)
        futures[1].cancel()
        task.cancel()
        flush(producer)
        first, last = await asyncio.gather(futures[0], futures[2])
        assert received(cluster.broker) == [[b"a", b"c"]]
        assert last.queue_offset == first.queue_offset + 1
        given_up = soon(producer, "d", "e")
        for future in given_up:
            future.cancel()

    with_producer(work)


def test_what_is_given_up_takes_nothing_of_its_neighbours() -> None:
    """A flag, a tag and an id of its own stay with their message if others of the batch go."""

    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        messages = [
            Message(
                "T", f"b{n}", flag=n % 3, tags="t" if n % 2 else None, properties={"p": "ä"} if n == 5 else {}
            )
            for n in range(8)
        ]
        messages[4].msg_id = "own"
        messages[6].msg_id = "ü" * 3
        futures = [producer.send_soon(message) for message in messages]
        futures[0].cancel()
        futures[3].cancel()
        flush(producer)
        kept = [n for n in range(8) if n not in (0, 3)]
        results = await asyncio.gather(*(futures[n] for n in kept))
        (request,) = sends(cluster.broker)
        items = split_batch(bytes(request.body))
        assert [(item.body, item.flag) for item in items] == [(b"b%d" % n, n % 3) for n in kept]
        for n, item, result in zip(kept, items, results, strict=True):
            assert names.parse(item.properties.decode()) == messages[n].all_properties()
            assert result.msg_id == messages[n].msg_id
        assert [messages[n].msg_id for n in (4, 6)] == ["own", "ü" * 3]

    with_producer(work)


def test_a_send_that_is_given_up_on_its_way_changes_nothing_for_others() -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        gate = silent_until(cluster.broker)
        futures = soon(producer, "a", "b", "c", "d")
        flush(producer)
        await until(lambda: sends(cluster.broker))
        assert futures[0].cancel()
        assert futures[2].cancel()
        gate.set()
        results = await asyncio.gather(futures[1], futures[3])
        assert [result.queue_offset for result in results] == [1, 3]

    with_producer(work)


# --- bounds ----------------------------------------------------------------------------------------


def silent_until(broker: ScriptedBroker) -> asyncio.Event:
    """The broker answers nothing before the event is set."""
    gate = asyncio.Event()

    async def answer(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        await gate.wait()
        return broker.stored(request)

    broker.on_send = answer
    return gate


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize(
    "option", [{"total_batch_max_bytes": 1000}, {"max_in_flight": 4}, {"max_in_flight": 2}]
)
def test_messages_above_the_bound_wait_until_others_are_answered(option: dict[str, Any], bound: bool) -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        gate = silent_until(cluster.broker)
        queue = MessageQueue("T", "broker-a", 0) if bound else None
        futures = [producer.send_soon(Message("T", b"%03d" % n * 80), queue=queue) for n in range(20)]
        await until(lambda: sends(cluster.broker))
        await asyncio.sleep(0.01)
        assert producer._batches is not None
        assert producer._batches.held < 2000
        seen = [body for request in received(cluster.broker) for body in request]
        assert len(seen) <= 4
        gate.set()
        await asyncio.gather(*futures)
        seen = [body[:3] for request in received(cluster.broker) for body in request]
        assert (seen if bound else sorted(seen)) == [b"%03d" % n for n in range(20)]

    with_producer(work, batch_max_bytes=1000, **option)


def test_a_message_that_leaves_alone_does_not_wait_for_those_that_wait_for_company() -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        waiting = soon(producer, "a", "b")
        await producer.send(Message("T", b"later", delay_level=1))
        await asyncio.gather(*waiting)

    with_producer(work, max_in_flight=2)


def test_a_message_that_finds_no_room_in_time_says_which_bound_it_was() -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        gate = silent_until(cluster.broker)
        first = [producer.send_soon(Message("T", b"x" * 400)) for _ in range(3)]
        flush(producer)
        await asyncio.sleep(0.06)
        late = producer.send_soon(Message("T", b"late"))
        with pytest.raises(RequestTimeoutError, match=r"total_batch_max_bytes is 1000.*was not sent"):
            await producer._batches.wait_room(0.01)  # type: ignore[union-attr]
        gate.set()
        await asyncio.gather(*first, late)

    with_producer(work, batch_max_bytes=1000, total_batch_max_bytes=1000)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_max_delay": -0.1},
        {"batch_max_delay": 31.0},
        {"batch_max_bytes": 0},
        {"batch_max_bytes": 17_000_000},
        {"total_batch_max_bytes": 100},
    ],
)
def test_options_that_cannot_be_used_are_named(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ConfigError, match=name):
        Producer("pg", "127.0.0.1:9876", auto_batch=True, **options)


# --- the end ---------------------------------------------------------------------------------------


def closing(work: Callable[[ScriptedCluster, Producer], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def scenario(_: VirtualClock) -> None:
        network = MemoryNetwork(1).host("127.0.0.1")
        async with ScriptedCluster(network=network) as cluster:
            cluster.add_topic("T")
            producer = Producer(
                "pg", cluster.namesrv, auto_batch=True, batch_max_delay=LONG, network=network, **options
            )
            await producer.start()
            await work(cluster, producer)

    run_virtual(scenario)


def test_close_sends_what_waits_and_waits_for_the_answers() -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        unbound = soon(producer, "a", "b")
        bound = [producer.send_soon(Message("T", "c", sharding_key="k"))]
        many = [producer.send_soon(Message("T", b"x" * 400)) for _ in range(9)]
        begun = asyncio.get_running_loop().time()
        await producer.close()
        assert asyncio.get_running_loop().time() - begun < 1.0
        assert all(future.done() and future.exception() is None for future in (*unbound, *bound, *many))
        assert sorted(len(one) for one in received(cluster.broker))[-1] > 1

    closing(work, batch_max_bytes=1000, total_batch_max_bytes=1000)


def test_close_ends_in_the_time_of_a_send_if_the_broker_is_silent() -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        await producer.publish_queues("T")
        silent_until(cluster.broker)
        futures = soon(producer, "a", "b")
        begun = asyncio.get_running_loop().time()
        await producer.close()
        assert asyncio.get_running_loop().time() - begun < 4.5
        for error in await asyncio.gather(*futures, return_exceptions=True):
            assert isinstance(error, StateError | RequestTimeoutError)

    closing(work)


def test_sends_that_close_ends_fail_and_are_not_cancelled() -> None:
    """A task that awaits one would end without a word."""

    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        silent_until(cluster.broker)
        how = {"queue": MessageQueue("T", "broker-a", 0), "timeout": 60.0}
        awaited = asyncio.ensure_future(producer.send(Message("T", "a"), **how))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        started = soon(producer, "b", **how)
        await producer.close()
        errors = await asyncio.gather(awaited, *started, return_exceptions=True)
        assert [type(error) for error in errors] == [StateError] * 2

    closing(work)


def test_each_message_of_a_batch_is_traced() -> None:
    async def work(cluster: ScriptedCluster, producer: Producer) -> None:
        cluster.add_topic("RMQ_SYS_TRACE_TOPIC")
        results = soon(producer, "a", "b")
        await producer.close()
        traces = [body.decode() for one in received(cluster.broker) for body in one if b"Pub" in body]
        for future in results:
            result = future.result()
            (line,) = [line for text in traces for line in text.split("\x02") if result.msg_id in line]
            assert line.split("\x01")[-2:] == [result.offset_msg_id, "true"]

    closing(work, trace=True)
