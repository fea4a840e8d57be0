"""Sending: the request on the wire, where it goes, and what is done when it fails."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import lz4.frame
import pytest
import zstandard

from gimbalmq._clock import SYSTEM_CLOCK, Clock
from gimbalmq.client.config import ProducerConfig
from gimbalmq.client.instance import ClientInstance
from gimbalmq.client.producer import Producer
from gimbalmq.client.sending.prepare import prepare_batches
from gimbalmq.client.sending.rules import RETRY_CODES
from gimbalmq.errors import (
    ConfigError,
    ConnectionLostError,
    MessageIllegalError,
    NoPermissionError,
    NoWritableQueueError,
    RequestTimeoutError,
    ResponseError,
    RocketMQError,
    SendFailedError,
    StateError,
    TopicRouteNotFoundError,
)
from gimbalmq.model import properties as names
from gimbalmq.model.batch import split_batch
from gimbalmq.model.ids import UniqueIdGenerator, parse_unique_id
from gimbalmq.model.message import Message
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.results import SendStatus
from gimbalmq.protocol.codes import OUR_VERSION, RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.signing import signature
from gimbalmq.testing import MemoryNetwork, VirtualClock, run_virtual
from gimbalmq.transport.channel import Channel
from tests.client.scripted import ScriptedCluster, until
from tests.support import run


def fields_of(request: RemotingCommand) -> dict[str, str]:
    return dict(request.ext_fields or {})


def refuse(code: int) -> Callable[[Channel, RemotingCommand], RemotingCommand]:
    return lambda channel, request: request.reply(code, "no")


# --- the request -----------------------------------------------------------------------------------


def test_send_fills_every_field_of_the_header_and_returns_the_place() -> None:
    async def work() -> None:
        async with ScriptedCluster("broker-a") as cluster:
            cluster.add_topic("T")
            async with Producer("pg", cluster.namesrv) as producer:
                message = Message(
                    "T", b"hello", tags="TagA", keys=["k1", "k2"], properties={"own": "1"}, flag=7
                )
                result = await producer.send(message)
                assert result.status is SendStatus.SEND_OK
                assert result.msg_id == message.msg_id
                assert result.queue.broker_name == "broker-a"
                assert result.queue_offset == 0
                assert result.offset_msg_id.startswith("7F000001")
            (request,) = cluster.broker.sends
            fields = fields_of(request)
            properties = names.parse(fields.pop("i"))
            assert int(fields.pop("g")) > 1_700_000_000_000
            assert fields == {
                "a": "pg",
                "b": "T",
                "c": "TBW102",
                "d": "4",
                "e": str(result.queue.queue_id),
                "f": "0",
                "h": "7",
                "j": "0",
                "k": "false",
                "m": "false",
                "n": "broker-a",
            }
            assert properties == {
                "KEYS": "k1 k2",
                "TAGS": "TagA",
                "WAIT": "true",
                "UNIQ_KEY": result.msg_id,
                "own": "1",
            }
            assert (request.body, request.language, request.version) == (b"hello", "PYTHON", OUR_VERSION)

    run(work())


def test_properties_with_any_text_survive_the_template() -> None:
    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            async with Producer("pg", cluster.namesrv) as producer:
                own = {"text": 'quote " back \\ percent %d 中文 \U0001f600'}
                await producer.send(Message("T", b"x", properties=own))
            assert names.parse(fields_of(cluster.broker.sends[0])["i"])["text"] == own["text"]

    run(work())


def test_second_send_of_a_message_keeps_its_id() -> None:
    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            async with Producer("pg", cluster.namesrv) as producer:
                message = Message("T", b"x")
                assert (await producer.send(message)).msg_id == (await producer.send(message)).msg_id

    run(work())


def test_oneway_sets_the_flag_and_waits_for_nothing() -> None:
    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            async with Producer("pg", cluster.namesrv) as producer:
                await producer.send_oneway(Message("T", b"x"))
                await until(lambda: cluster.broker.sends)
            assert cluster.broker.sends[0].flag == 2

    run(work())


@pytest.mark.parametrize(
    ("method", "bits", "unpack"),
    [
        ("zlib", 0x301, zlib.decompress),
        ("lz4", 0x101, lz4.frame.decompress),
        ("zstd", 0x201, lambda body: zstandard.ZstdDecompressor().decompressobj().decompress(body)),
    ],
)
def test_bodies_of_the_threshold_and_more_are_compressed(
    method: str, bits: int, unpack: Callable[[bytes], bytes]
) -> None:
    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            async with Producer("pg", cluster.namesrv, compression=method) as producer:
                below, at = Message("T", b"a" * 4095), Message("T", b"a" * 4096)
                await producer.send(below)
                await producer.send(at)
            plain, packed = cluster.broker.sends
            assert (fields_of(plain)["f"], plain.body) == ("0", below.body)
            assert int(fields_of(packed)["f"]) == bits
            assert unpack(bytes(packed.body)) == at.body == b"a" * 4096

    run(work())


def test_retry_topic_moves_its_counts_into_the_header() -> None:
    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("%RETRY%g")
            async with Producer("pg", cluster.namesrv) as producer:
                message = Message("%RETRY%g", b"x")
                message.system_properties[names.RECONSUME_TIME] = "3"
                message.system_properties[names.MAX_RECONSUME_TIMES] = "16"
                await producer.send(message)
            fields = fields_of(cluster.broker.sends[0])
            assert (fields["j"], fields["l"]) == ("3", "16")
            assert "RECONSUME_TIME" not in fields["i"] and "MAX_RECONSUME_TIMES" not in fields["i"]

    run(work())


def test_delays_travel_as_properties() -> None:
    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            async with Producer("pg", cluster.namesrv) as producer:
                await producer.send(Message("T", b"x", delay_level=3))
                await producer.send(Message("T", b"x", deliver_at=1_800_000_000.5))
                await producer.send(Message("T", b"x", delay=1.5))
            told = [names.parse(fields_of(request)["i"]) for request in cluster.broker.sends]
            assert told[0]["DELAY"] == "3"
            assert told[1]["TIMER_DELIVER_MS"] == "1800000000500"
            assert told[2]["TIMER_DELAY_MS"] == "1500"

    run(work())


def test_requests_are_signed_where_keys_are_given() -> None:
    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            options: dict[str, Any] = {
                "access_key": "RocketMQ",
                "secret_key": "12345678",
                "security_token": "tok",
            }
            async with Producer("pg", cluster.namesrv, **options) as producer:
                await producer.send(Message("T", b"body"))
            for request in cluster.broker.requests:
                fields = fields_of(request)
                assert fields["AccessKey"] == "RocketMQ" and fields["SecurityToken"] == "tok"
                assert fields["Signature"] == signature(fields, request.body, "12345678")

    run(work())


# --- batches ---------------------------------------------------------------------------------------


def test_batch_is_one_request_of_items_with_their_own_ids() -> None:
    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            async with Producer("pg", cluster.namesrv) as producer:
                messages = [Message("T", b"b%d" % index, keys=f"k{index}") for index in range(3)]
                (result,) = await producer.send_batch(messages)
            (request,) = cluster.broker.of(RequestCode.SEND_BATCH_MESSAGE)
            fields = fields_of(request)
            assert fields["m"] == "true" and fields["f"] == "0"
            # A 4.9 broker appends these to every message: an id here would hide theirs.
            assert names.parse(fields["i"]) == {"WAIT": "true"}
            items = split_batch(bytes(request.body))
            assert [item.body for item in items] == [b"b0", b"b1", b"b2"]
            ids = [names.parse(item.properties.decode())["UNIQ_KEY"] for item in items]
            assert result.msg_id == ",".join(ids) and len(set(ids)) == 3

    run(work())


def test_ids_of_a_batch_of_any_length_have_the_time_of_each() -> None:
    """Beside its time an id has 16 bits: the ids of a batch of 65,537 messages would not all differ."""
    ids, times = UniqueIdGenerator(bytes(4), 1, 1), count(1_000_000)
    clock = SimpleNamespace(wall_ms=lambda: next(times))
    instance: Any = SimpleNamespace(clock=clock, unique_ids=ids)
    messages = [Message("T", b"x") for _ in range(3)]
    prepare_batches(messages, instance, ProducerConfig(group="pg", namesrv="127.0.0.1:9876"))
    assert len({parse_unique_id(message.msg_id or "").month_ms for message in messages}) == 3


def test_batch_is_split_where_it_grows_too_large() -> None:
    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            async with Producer("pg", cluster.namesrv, max_message_size=1000) as producer:
                results = await producer.send_batch(Message("T", b"x" * 300) for _ in range(5))
            requests = cluster.broker.of(RequestCode.SEND_BATCH_MESSAGE)
            assert len(results) == len(requests) == 3
            assert [len(split_batch(bytes(request.body))) for request in requests] == [2, 2, 1]
            assert all(len(request.body) <= 1000 for request in requests)

    run(work())


def test_batches_go_to_the_queues_of_their_keys() -> None:
    async def work() -> None:
        async with ScriptedCluster("a", "b") as cluster:
            cluster.add_topic("T", write=2)
            async with Producer("pg", cluster.namesrv) as producer:
                keys = ("k", None, "l", "k", "m", None, "l")
                messages = [Message("T", str(number), sharding_key=key) for number, key in enumerate(keys)]
                await producer.send_batch(messages)
                alone = {
                    key: (await producer.send(Message("T", b"x", sharding_key=key))).queue for key in "klm"
                }
            found: dict[str, MessageQueue] = {}
            for name, broker in cluster.brokers.items():
                for request in broker.of(RequestCode.SEND_BATCH_MESSAGE):
                    queue = MessageQueue("T", name, int(fields_of(request)["e"]))
                    bodies = [item.body.decode() for item in split_batch(bytes(request.body))]
                    assert bodies == sorted(bodies)
                    found |= dict.fromkeys(bodies, queue)
            assert len(found) == 7
            for number, key in enumerate(keys):
                assert key is None or found[str(number)] == alone[key]

    run(work())


def test_batches_of_keys_are_tried_once() -> None:
    async def work() -> None:
        async with ScriptedCluster("a", "b") as cluster:
            cluster.add_topic("T", write=1)
            for broker in cluster.brokers.values():
                broker.on_send = lambda channel, request: request.reply(1, "not now")
            async with Producer("pg", cluster.namesrv) as producer:
                with pytest.raises(ResponseError, match="not now"):
                    await producer.send_batch([Message("T", b"x", sharding_key="k")])
            assert (
                sum(len(broker.of(RequestCode.SEND_BATCH_MESSAGE)) for broker in cluster.brokers.values())
                == 1
            )

    run(work())


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [Message("T", b"x"), Message("U", b"x")],
        [Message("T", b"x", sharding_key="k"), Message("U", b"x", sharding_key="l")],
        [Message("T", b"x"), Message("T", b"x", wait_store_ok=False)],
        [Message("T", b"x", delay_level=1)],
        [Message("%RETRY%g", b"x")],
        [Message("T", b"")],
    ],
    ids=["empty", "two topics", "two topics by key", "two ways to wait", "delayed", "retry topic", "no body"],
)
def test_batch_refuses_what_cannot_go_together(messages: list[Message]) -> None:
    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            async with Producer("pg", cluster.namesrv) as producer:
                with pytest.raises(MessageIllegalError):
                    await producer.send_batch(messages)

    run(work())


# --- queues ----------------------------------------------------------------------------------------


def test_sends_rotate_over_all_queues() -> None:
    """S0-01, S0-03: A0 A1 A2 A3 B0 ... and round again, one step per send."""

    async def work() -> None:
        async with ScriptedCluster("a", "b") as cluster:
            cluster.add_topic("T", write=4)
            async with Producer("pg", cluster.namesrv) as producer:
                results = [await producer.send(Message("T", b"x")) for _ in range(17)]
                queues = await producer.publish_queues("T")
            assert [(queue.broker_name, queue.queue_id) for queue in queues] == [
                (name, index) for name in "ab" for index in range(4)
            ]
            start = queues.index(results[0].queue)
            assert [result.queue for result in results] == [queues[(start + step) % 8] for step in range(17)]

    run(work())


def test_order_topic_uses_the_name_servers_list() -> None:
    async def work() -> None:
        async with ScriptedCluster("a", "b") as cluster:
            cluster.add_topic("T", write=4).order_topic_conf = "b:1;a:2"
            async with Producer("pg", cluster.namesrv) as producer:
                assert [(q.broker_name, q.queue_id) for q in await producer.publish_queues("T")] == [
                    ("b", 0),
                    ("a", 0),
                    ("a", 1),
                ]

    run(work())


def test_bound_sends_go_where_they_are_told_and_are_not_repeated() -> None:
    async def work() -> None:
        async with ScriptedCluster("a", "b") as cluster:
            cluster.add_topic("T", write=4)
            async with Producer("pg", cluster.namesrv) as producer:
                queue = MessageQueue("T", "b", 2)
                assert (await producer.send(Message("T", b"x"), queue=queue)).queue == queue
                chosen = await producer.send(
                    Message("T", b"x"), selector=lambda queues, message, index: queues[index], argument=5
                )
                assert chosen.queue == MessageQueue("T", "b", 1)
                # "a" hashes to 97; 97 mod 8 = 1
                assert (await producer.send(Message("T", b"x", sharding_key="a"))).queue == MessageQueue(
                    "T", "a", 1
                )
                cluster.brokers["b"].on_send = refuse(1)
                before = len(cluster.all_sends())
                with pytest.raises(ResponseError, match="code 1"):
                    await producer.send(Message("T", b"x"), queue=queue)
                assert len(cluster.all_sends()) == before + 1
                with pytest.raises(ConfigError, match="selector"):
                    await producer.send(
                        Message("T", b"x"),
                        selector=lambda queues, message, argument: MessageQueue("T", "z", 0),
                    )
                with pytest.raises(MessageIllegalError, match="topic"):
                    await producer.send(Message("T", b"x"), queue=MessageQueue("U", "a", 0))

    run(work())


def test_unknown_topic_uses_the_template_topics_route() -> None:
    async def work() -> None:
        async with ScriptedCluster("a") as cluster:
            cluster.add_topic("TBW102", write=8)
            async with Producer("pg", cluster.namesrv) as producer:
                await producer.send(Message("New", b"x"))
                assert len(await producer.publish_queues("New")) == 4
            assert cluster.nameserver.asked[:2] == ["New", "TBW102"]
            fields = fields_of(cluster.broker.sends[0])
            assert (fields["b"], fields["c"], fields["d"]) == ("New", "TBW102", "4")

    run(work())


def test_topic_without_any_route_is_refused_by_name() -> None:
    async def work() -> None:
        async with ScriptedCluster("a") as cluster, Producer("pg", cluster.namesrv) as producer:
            with pytest.raises(TopicRouteNotFoundError, match="no route info of topic New"):
                await producer.send(Message("New", b"x"))
            cluster.add_topic("ReadOnly", perm=4)
            with pytest.raises(NoWritableQueueError, match="ReadOnly"):
                await producer.send(Message("ReadOnly", b"x"))
            # and found as soon as it exists
            cluster.add_topic("New")
            await producer.send(Message("New", b"x"))

    run(work())


# --- failures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", sorted(RETRY_CODES))
def test_answer_that_another_broker_may_mend_is_tried_three_times(code: int) -> None:
    async def work() -> None:
        async with ScriptedCluster("a") as cluster:
            cluster.add_topic("T")
            cluster.broker.on_send = refuse(code)
            async with Producer("pg", cluster.namesrv) as producer:
                with pytest.raises(SendFailedError) as caught:
                    await producer.send(Message("T", b"x"))
            assert len(cluster.broker.sends) == len(caught.value.attempts) == 3
            assert len({request.opaque for request in cluster.broker.sends}) == 3
            causes = [cause for _, cause in caught.value.attempts]
            assert all(isinstance(cause, ResponseError) and cause.code == code for cause in causes)

    run(work())


@pytest.mark.parametrize("code", [13, 15, 26, 29, 604])
def test_any_other_answer_is_final(code: int) -> None:
    async def work() -> None:
        async with ScriptedCluster("a", "b") as cluster:
            cluster.add_topic("T")
            for broker in cluster.brokers.values():
                broker.on_send = refuse(code)
            async with Producer("pg", cluster.namesrv) as producer:
                with pytest.raises(ResponseError) as caught:
                    await producer.send(Message("T", b"x"))
            assert caught.value.code == code and caught.value.remark == "no"
            assert len(cluster.all_sends()) == 1

    run(work())


def test_retry_passes_over_the_broker_that_failed() -> None:
    """S0-06: with the latency switch off, the next attempt takes another broker's queue."""

    async def work() -> None:
        async with ScriptedCluster("a", "b") as cluster:
            cluster.add_topic("T", write=4)
            cluster.brokers["a"].on_send = refuse(1)
            async with Producer("pg", cluster.namesrv) as producer:
                for _ in range(8):
                    assert (await producer.send(Message("T", b"x"))).queue.broker_name == "b"
            failed = len(cluster.brokers["a"].sends)
            assert 1 <= failed <= 8 and len(cluster.brokers["b"].sends) == 8

    run(work())


def test_retry_with_one_broker_stays_there() -> None:
    """S0-07: nothing else to take is no error."""

    async def work() -> None:
        async with ScriptedCluster("a") as cluster:
            cluster.add_topic("T")
            count = 0

            def second_time(channel: Channel, request: RemotingCommand) -> RemotingCommand:
                nonlocal count
                count += 1
                return request.reply(14, "no") if count == 1 else cluster.broker.stored(request)

            cluster.broker.on_send = second_time
            async with Producer("pg", cluster.namesrv) as producer:
                assert (await producer.send(Message("T", b"x"))).status is SendStatus.SEND_OK
            first, second = cluster.broker.sends
            assert fields_of(first)["e"] != fields_of(second)["e"]
            assert first.opaque != second.opaque

    run(work())


def test_dead_broker_is_left_for_a_living_one() -> None:
    async def work() -> None:
        async with ScriptedCluster("a", "b") as cluster:
            cluster.add_topic("T")
            await cluster.brokers["a"].close()
            async with Producer("pg", cluster.namesrv) as producer:
                results = await asyncio.gather(*(producer.send(Message("T", b"x")) for _ in range(16)))
            assert {result.queue.broker_name for result in results} == {"b"}

    run(work())


@pytest.mark.parametrize("code", [10, 11, 12])
def test_stored_but_not_safe_is_a_status(code: int) -> None:
    async def work() -> None:
        async with ScriptedCluster("a", "b") as cluster:
            cluster.add_topic("T")
            for broker in cluster.brokers.values():
                broker.on_send = lambda channel, request, broker=broker: broker.stored(request, code)  # type: ignore[misc]
            async with Producer("pg", cluster.namesrv) as producer:
                assert (await producer.send(Message("T", b"x"))).status == SendStatus(code)
                assert len(cluster.all_sends()) == 1
            options: dict[str, Any] = {"retry_another_broker_when_not_store_ok": True}
            async with Producer("pg", cluster.namesrv, **options) as producer:
                assert (await producer.send(Message("T", b"x"))).status == SendStatus(code)
                assert len(cluster.all_sends()) == 4

    run(work())


def test_timeout_covers_the_whole_call() -> None:
    async def work(clock: VirtualClock) -> None:
        network = MemoryNetwork(1).host("127.0.0.1")
        async with ScriptedCluster("a", "b", network=network) as cluster:
            cluster.add_topic("T")
            for broker in cluster.brokers.values():
                broker.on_send = lambda channel, request: None
            async with Producer("pg", cluster.namesrv, network=network) as producer:
                started = clock.monotonic()
                with pytest.raises(RequestTimeoutError, match="outcome is unknown"):
                    await producer.send(Message("T", b"x"))
                assert clock.monotonic() - started == pytest.approx(3.0, abs=0.01)
            assert len(cluster.all_sends()) == 1

    run_virtual(work)


def test_remaining_time_is_given_to_the_next_attempt() -> None:
    async def work(clock: VirtualClock) -> None:
        network = MemoryNetwork(1).host("127.0.0.1")
        async with ScriptedCluster("a", "b", network=network) as cluster:
            cluster.add_topic("T")

            async def slow_no(channel: Channel, request: RemotingCommand) -> RemotingCommand:
                await asyncio.sleep(2.0)
                return request.reply(1, "slow no")

            for broker in cluster.brokers.values():
                broker.on_send = slow_no
            async with Producer("pg", cluster.namesrv, network=network) as producer:
                started = clock.monotonic()
                with pytest.raises(RequestTimeoutError, match="slow no"):
                    await producer.send(Message("T", b"x"))
                assert clock.monotonic() - started == pytest.approx(3.0, abs=0.01)
            assert sorted(cluster.all_sends()) == ["a", "b"]

    run_virtual(work)


def test_send_soon_does_not_repeat_an_error_answer() -> None:
    async def work() -> None:
        async with ScriptedCluster("a", "b") as cluster:
            cluster.add_topic("T")
            async with Producer("pg", cluster.namesrv) as producer:
                await producer.send(Message("T", b"first"))
                for broker in cluster.brokers.values():
                    broker.on_send = refuse(16)
                before = len(cluster.all_sends())
                with pytest.raises(NoPermissionError):
                    await producer.send_soon(Message("T", b"x"))
                assert len(cluster.all_sends()) == before + 1

    run(work())


def test_send_soon_repeats_a_lost_request_at_another_broker_with_the_same_queue_id() -> None:
    async def work() -> None:
        async with ScriptedCluster("a", "b") as cluster:
            cluster.add_topic("T", write=4)
            async with Producer("pg", cluster.namesrv) as producer:
                for _ in range(8):
                    await producer.send(Message("T", b"first"))

                def hang_up(channel: Channel, request: RemotingCommand) -> None:
                    channel.abort()

                cluster.brokers["a"].on_send = hang_up
                for broker in cluster.brokers.values():
                    broker.requests.clear()
                results = await asyncio.gather(
                    *(producer.send_soon(Message("T", b"x%d" % i)) for i in range(8))
                )
                assert {result.queue.broker_name for result in results} == {"b"}
                lost = {request.body: fields_of(request)["e"] for request in cluster.brokers["a"].sends}
                got = {request.body: fields_of(request)["e"] for request in cluster.brokers["b"].sends}
                assert lost and all(got[body] == queue_id for body, queue_id in lost.items())

    run(work())


def test_send_soon_gives_up_after_two_more_attempts() -> None:
    async def work() -> None:
        async with ScriptedCluster("a") as cluster:
            cluster.add_topic("T")
            async with Producer("pg", cluster.namesrv) as producer:
                await producer.send(Message("T", b"first"))
                cluster.broker.requests.clear()
                cluster.broker.on_send = lambda channel, request: channel.abort()
                with pytest.raises(SendFailedError) as caught:
                    await producer.send_soon(Message("T", b"x"))
                assert len(caught.value.attempts) == len(cluster.broker.sends) == 3

    run(work())


@pytest.mark.parametrize(
    "how",
    [{"queue": MessageQueue("T", "a", 2)}, {"selector": lambda queues, message, argument: queues[2]}, {}],
    ids=["queue", "selector", "sharding key"],
)
def test_send_soon_of_a_bound_message_is_not_repeated_elsewhere(how: dict[str, Any]) -> None:
    """Another queue would be another order, and a later attempt could come behind later messages."""

    async def work() -> None:
        async with ScriptedCluster("a", "b") as cluster:
            cluster.add_topic("T", write=4)
            async with Producer("pg", cluster.namesrv) as producer:
                await producer.send(Message("T", b"first"), queue=MessageQueue("T", "a", 0))
                cluster.brokers["a"].requests.clear()
                cluster.brokers["a"].on_send = lambda channel, request: channel.abort()
                key = None if how else "b"  # hashes to 98: queue 2 of 8
                with pytest.raises(ConnectionLostError):
                    await producer.send_soon(Message("T", b"x", sharding_key=key), **how)
                assert [fields_of(request)["e"] for request in cluster.brokers["a"].sends] == ["2"]
                assert cluster.brokers["b"].sends == []

    run(work())


def test_bound_messages_leave_in_the_order_of_the_calls_while_connections_are_made() -> None:
    """Those that come when the connection is just there do not overtake those that have waited for it."""

    async def scenario() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            async with Producer("p", cluster.namesrv) as producer:
                sent = []
                for number in range(200):
                    sent.append(producer.send_soon(Message("T", str(number), sharding_key="k")))
                    await asyncio.sleep(0)
                await asyncio.gather(*sent)
                assert not producer.sending.lines
                assert [int(bytes(request.body)) for request in cluster.broker.sends] == list(range(200))

    run(scenario())


def test_a_bound_message_that_is_given_up_lets_nobody_overtake() -> None:
    async def scenario() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            async with Producer("p", cluster.namesrv) as producer:
                sent = [
                    producer.send_soon(Message("T", str(number), sharding_key="k")) for number in range(6)
                ]
                sent[0].cancel()
                await asyncio.sleep(0)
                sent[3].cancel()
                found = await asyncio.gather(*sent, return_exceptions=True)
                assert [isinstance(one, BaseException) for one in found] == [
                    True,
                    False,
                    False,
                    True,
                    False,
                    False,
                ]
                assert not producer.sending.lines
                assert [bytes(request.body) for request in cluster.broker.sends] == [b"1", b"2", b"4", b"5"]

    run(scenario())


def test_bound_messages_that_wait_end_with_their_time_or_with_the_producer() -> None:
    async def scenario() -> None:
        async with ScriptedCluster() as cluster:
            cluster.nameserver.silent = True
            producer = Producer("p", cluster.namesrv)
            await producer.start()
            late = [producer.send_soon(Message("T", "x", sharding_key="k"), timeout=0.05) for _ in range(5)]
            assert all(
                isinstance(one, RequestTimeoutError)
                for one in await asyncio.gather(*late, return_exceptions=True)
            )
            ended = [producer.send_soon(Message("T", "x", sharding_key="k"), timeout=60.0) for _ in range(5)]
            await asyncio.sleep(0.01)
            await producer.close()
            assert all(
                isinstance(one, StateError | asyncio.CancelledError)
                for one in await asyncio.gather(*ended, return_exceptions=True)
            )
            assert not producer.sending.lines

    run(scenario())


def test_send_soon_repeats_only_at_brokers_that_have_the_queue() -> None:
    async def work() -> None:
        async with ScriptedCluster("a", "b") as cluster:
            cluster.add_topic("T", write=4).queue_datas[1].write_queue_nums = 1
            async with Producer("pg", cluster.namesrv) as producer:
                queues = await producer.publish_queues("T")
                assert len(queues) == 5
                await producer.send(Message("T", b"first"), queue=queues[0])
                cluster.brokers["a"].on_send = lambda channel, request: channel.abort()
                outcomes = await asyncio.gather(
                    *(producer.send_soon(Message("T", b"x")) for _ in range(5)), return_exceptions=True
                )
            assert {fields_of(request)["e"] for request in cluster.brokers["b"].sends} == {"0"}
            assert sum(isinstance(outcome, SendFailedError) for outcome in outcomes) == 3

    run(work())


# --- the latency switch ----------------------------------------------------------------------------


class FromZero(random.Random):
    """Starts every rotation at the first queue."""

    def getrandbits(self, k: int) -> int:
        return 0


async def rotating_from_first(config: ProducerConfig, clock: Clock = SYSTEM_CLOCK) -> Producer:
    producer = Producer(config=config)
    await producer.start(instance=ClientInstance(config, "test@1", clock=clock, rng=FromZero()))
    return producer


def test_latency_switch_is_off_and_records_nothing() -> None:
    """S0-02, S0-10."""

    async def work() -> None:
        async with ScriptedCluster("a", "b") as cluster:
            cluster.add_topic("T")
            assert ProducerConfig(group="g", namesrv="a:1").latency_fault is False
            async with (
                Producer("pg", cluster.namesrv) as off,
                Producer("pg2", cluster.namesrv, latency_fault=True) as on,
            ):
                await off.send(Message("T", b"x"))
                used = (await on.send(Message("T", b"x"))).queue.broker_name
                assert off.sending.targets.faults.table.items == {}
                assert on.sending.targets.faults.table.items.keys() == {used}

    run(work())


def attempts_by_rule(rule: str) -> list[list[str]]:
    """Brokers tried by the first two sends where whichever broker came first fails for good."""

    async def work() -> list[list[str]]:
        async with ScriptedCluster("a", "b") as cluster:
            cluster.add_topic("T", write=4)
            tried: list[str] = []
            bad: list[str] = []

            def script(name: str) -> Callable[[Channel, RemotingCommand], RemotingCommand]:
                def answer(channel: Channel, request: RemotingCommand) -> RemotingCommand:
                    tried.append(name)
                    if not bad:
                        bad.append(name)
                    return request.reply(1, "no") if name in bad else cluster.brokers[name].stored(request)

                return answer

            for name, broker in cluster.brokers.items():
                broker.on_send = script(name)
            config = ProducerConfig(group="pg", namesrv=cluster.namesrv, latency_fault=True, fault_rule=rule)
            producer = await rotating_from_first(config)
            rounds: list[list[str]] = []
            for _ in range(2):
                tried.clear()
                try:
                    await producer.send(Message("T", b"x"))
                except SendFailedError:
                    pass
                rounds.append(["first" if name in bad else "other" for name in tried])
            await producer.close()
            return rounds

    return run(work())


def test_first_retry_sticks_to_the_failed_broker_by_the_seed_rule() -> None:
    """S0-22: retried on the failed broker although the other is free; the next message goes there."""
    assert attempts_by_rule("seed") == [["first", "first", "first"], ["other"]]


@pytest.mark.parametrize("rule", ["4.8", "5.1.4"])
def test_later_rules_leave_the_failed_broker_at_once(rule: str) -> None:
    """S0-25."""
    assert attempts_by_rule(rule) == [["first", "other"], ["other"]]


def seed_trace(*, fail: bool, sends: int, attempts: int) -> list[list[str]]:
    """Brokers tried per send in virtual time, where one broker answers in 30 s and the other in 50 s."""
    latencies = {"broker1": 30.0, "broker2": 50.0}

    async def work(clock: VirtualClock) -> list[list[str]]:
        network = MemoryNetwork(1).host("127.0.0.1")
        async with ScriptedCluster("broker1", "broker2", network=network) as cluster:
            cluster.add_topic("T", write=4)
            tried: list[str] = []

            def script(name: str) -> Callable[[Channel, RemotingCommand], Any]:
                async def answer(channel: Channel, request: RemotingCommand) -> RemotingCommand:
                    tried.append(name)
                    await asyncio.sleep(latencies[name])
                    return request.reply(1, "no") if fail else cluster.brokers[name].stored(request)

                return answer

            for name, broker in cluster.brokers.items():
                broker.on_send = script(name)
            config = ProducerConfig(
                group="pg",
                namesrv=cluster.namesrv,
                latency_fault=True,
                fault_rule="seed",
                send_timeout=1000.0,
                retry_times=attempts - 1,
                network=network,
            )
            producer = await rotating_from_first(config, clock)
            rounds: list[list[str]] = []
            for _ in range(sends):
                tried.clear()
                try:
                    await producer.send(Message("T", b"x"))
                except SendFailedError:
                    pass
                rounds.append(list(tried))
            await producer.close()
            return rounds

    return run_virtual(work)


def test_trace_of_successful_sends() -> None:
    """S0-20: broker1, broker2, then broker1 for all later sends."""
    assert seed_trace(fail=False, sends=6, attempts=2) == [["broker1"], ["broker2"]] + [["broker1"]] * 4


def test_trace_of_failing_sends() -> None:
    """S0-21: (broker1, broker1), (broker2, broker1), then (broker1, broker1) always."""
    assert seed_trace(fail=True, sends=5, attempts=2) == [
        ["broker1", "broker1"],
        ["broker2", "broker1"],
        ["broker1", "broker1"],
        ["broker1", "broker1"],
        ["broker1", "broker1"],
    ]


# --- many at once, and life ------------------------------------------------------------------------


def test_thousands_of_sends_in_flight_are_answered() -> None:
    async def work() -> None:
        async with ScriptedCluster("a", "b") as cluster:
            cluster.add_topic("T")
            async with Producer("pg", cluster.namesrv, send_timeout=20.0) as producer:
                results = await asyncio.gather(*(producer.send(Message("T", b"x")) for _ in range(2000)))
                soon = await asyncio.gather(*(producer.send_soon(Message("T", b"x")) for _ in range(1000)))
            assert cluster.nameserver.asked == ["T"]
            assert len({result.msg_id for result in results + soon}) == 3000
            assert len(cluster.all_sends()) == 3000

    # without asyncio's debug mode, in which each of these tasks would cost a millisecond
    asyncio.run(work())


def test_sends_above_the_limit_wait_their_turn() -> None:
    async def work() -> None:
        async with ScriptedCluster("a") as cluster:
            cluster.add_topic("T")
            out = most = 0

            async def answer(channel: Channel, request: RemotingCommand) -> RemotingCommand:
                nonlocal out, most
                out += 1
                most = max(most, out)
                await asyncio.sleep(0.002)
                out -= 1
                return cluster.broker.stored(request)

            cluster.broker.on_send = answer
            async with Producer("pg", cluster.namesrv, max_in_flight=10) as producer:
                await producer.send(Message("T", b"first"))
                await asyncio.gather(
                    *(producer.send(Message("T", b"x")) for _ in range(50)),
                    *(producer.send_soon(Message("T", b"x")) for _ in range(50)),
                )
                assert producer.sending.attempts.count == 0
            assert len(cluster.broker.sends) == 101 and most <= 10

    run(work())


def test_a_turn_that_comes_too_late_is_the_next_ones() -> None:
    async def work() -> None:
        async with ScriptedCluster("a") as cluster:
            cluster.add_topic("T")
            async with Producer("pg", cluster.namesrv, max_in_flight=1, send_timeout=20.0) as producer:
                await producer.send(Message("T", b"first"))
                attempts = producer.sending.attempts
                held: list[tuple[Channel, RemotingCommand]] = []
                cluster.broker.on_send = lambda channel, request: held.append((channel, request))
                under_way = asyncio.ensure_future(producer.send(Message("T", b"1")))
                await until(lambda: held)
                given_up = asyncio.ensure_future(producer.send(Message("T", b"2")))
                waiting = asyncio.ensure_future(producer.send(Message("T", b"3")))
                await until(lambda: len(attempts._waiting) == 2)
                cluster.broker.on_send = lambda channel, request: cluster.broker.stored(request)
                # In one step of the loop: the turn is given to the second, which is cancelled.
                attempts.landed()
                attempts.count += 1
                given_up.cancel()
                await waiting
                with pytest.raises(asyncio.CancelledError):
                    await given_up
                channel, request = held[0]
                channel.send(cluster.broker.stored(request))
                await under_way
                assert attempts.count == 0

    run(work())


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (Message("", b"x"), "blank"),
        (Message("a b", b"x"), "illegal characters"),
        (Message("T" * 128, b"x"), "max length 127"),
        (Message("SCHEDULE_TOPIC_XXXX", b"x"), "forbidden"),
        (Message("T", b""), "length is zero"),
        (Message("T", b"x" * 101), "over max value"),
    ],
)
def test_messages_that_cannot_be_sent_are_refused_here(message: Message, words: str) -> None:
    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            async with Producer("pg", cluster.namesrv, max_message_size=100) as producer:
                with pytest.raises(MessageIllegalError, match=words):
                    await producer.send(message)
                with pytest.raises(MessageIllegalError, match=words):
                    producer.send_soon(message)
            assert cluster.broker.sends == []

    run(work())


@pytest.mark.parametrize(
    "options",
    [
        {"group": ""},
        {"group": "a b"},
        {"group": "DEFAULT_PRODUCER"},
        {"namesrv": ""},
        {"namesrv": "nowhere"},
        {"send_timeout": 0},
        {"retry_times": -1},
        {"compression": "brotli"},
        {"fault_rule": "4.9"},
        {"access_key": "only"},
        {"no_such_option": 1},
    ],
)
def test_options_that_cannot_be_used_are_named(options: dict[str, Any]) -> None:
    given = {"group": "pg", "namesrv": "127.0.0.1:9876", **options}
    with pytest.raises(ConfigError):
        Producer(**given)


def test_producer_before_start_and_after_close_says_so() -> None:
    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            producer = Producer("pg", cluster.namesrv)
            with pytest.raises(StateError, match="not running"):
                await producer.send(Message("T", b"x"))
            await producer.start()
            await producer.send(Message("T", b"x"))
            with pytest.raises(StateError, match="before"):
                await producer.start()
            await producer.close()
            await producer.close()
            with pytest.raises(StateError, match="not running"):
                await producer.send(Message("T", b"x"))

    run(work())


@pytest.mark.parametrize("trace", [False, True])
def test_a_start_that_failed_leaves_nothing_behind_and_can_be_repeated(trace: bool) -> None:
    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            async with Producer("other", cluster.namesrv, instance_name="shared") as other:
                await other.send(Message("T", b"x"))
                asked = asyncio.Event()
                cluster.broker.on_heartbeat = lambda channel, request: asked.set()
                producer = Producer("pg", cluster.namesrv, instance_name="shared", trace=trace)
                starting = asyncio.ensure_future(producer.start())
                await asked.wait()
                starting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await starting
                assert list(other.instance.producers) == ["other"]
                with pytest.raises(StateError, match="not running"):
                    await producer.send(Message("T", b"x"))
                cluster.broker.on_heartbeat = lambda channel, request: request.reply()
                await producer.start()
                await producer.send(Message("T", b"x"))
                await producer.close()

    run(work())


def test_close_ends_sends_that_wait() -> None:
    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            producer = Producer("pg", cluster.namesrv, max_in_flight=1)
            await producer.start()
            await producer.send(Message("T", b"first"))
            cluster.broker.on_send = lambda channel, request: None
            sends = [asyncio.ensure_future(producer.send(Message("T", b"x"), timeout=10.0)) for _ in range(2)]
            soon = producer.send_soon(Message("T", b"x"), timeout=10.0)
            await until(lambda: len(cluster.broker.sends) == 2)
            await producer.close()
            outcomes = await asyncio.gather(*sends, soon, return_exceptions=True)
            assert all(isinstance(outcome, RocketMQError | asyncio.CancelledError) for outcome in outcomes)

    run(work())


def test_a_close_that_was_cancelled_can_be_repeated_and_leaves_nothing_behind() -> None:
    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            producer = Producer("pg", cluster.namesrv)
            await producer.start()
            await producer.send(Message("T", b"x"))
            instance = producer.instance
            asked = asyncio.Event()
            cluster.broker.on_goodbye = lambda channel, request: asked.set()
            closing = asyncio.ensure_future(producer.close())
            await asked.wait()
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            assert not instance.closed
            await producer.close()
            assert instance.closed
            with pytest.raises(StateError, match="not running"):
                await producer.send(Message("T", b"x"))

    run(work())


def test_close_with_traces_ends_in_the_time_of_a_send_if_the_broker_is_silent() -> None:
    async def work(clock: VirtualClock) -> None:
        network = MemoryNetwork(1).host("127.0.0.1")
        async with ScriptedCluster("a", network=network) as cluster:
            cluster.add_topic("T")
            cluster.add_topic("RMQ_SYS_TRACE_TOPIC")
            producer = Producer("pg", cluster.namesrv, network=network, trace=True)
            await producer.start()
            await asyncio.gather(*(producer.send(Message("T", b"x")) for _ in range(500)))
            cluster.broker.on_send = lambda channel, request: None
            began = clock.monotonic()
            await producer.close()
            assert clock.monotonic() - began == pytest.approx(3.0, abs=0.1)

    run_virtual(work)
