"""The end of clients: cancelled, in trouble, left by an exception, forgotten. Nothing is lost, nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from gimbalmq import ConsumeFromWhere, Message, MessageQueue, MessageView, sync
from gimbalmq.client.instance import ClientInstance
from gimbalmq.client.producer import Producer
from gimbalmq.client.pull_consumer import PullConsumer
from gimbalmq.client.push_consumer import PushConsumer
from gimbalmq.errors import RocketMQError, StateError
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.rpc import groups
from gimbalmq.testing import LocalCluster, MemoryNetwork, VirtualClock, run_virtual
from tests.client.group_peers import GroupCluster, in_virtual_time
from tests.client.scripted import ScriptedCluster
from tests.client.test_consumer_cluster import World, in_world, send_all
from tests.support import run

ROOT = Path(__file__).resolve().parents[2]
UPDATE = RequestCode.UPDATE_CONSUMER_OFFSET
PULL = RequestCode.PULL_MESSAGE
UNREGISTER = RequestCode.UNREGISTER_CLIENT
Q0 = MessageQueue("T", "broker-a", 0)
Q1 = MessageQueue("T", "broker-a", 1)


def silence(cluster: GroupCluster, *codes: int) -> None:
    """The brokers take these requests and answer nothing."""
    for broker in cluster.brokers.values():
        for code in codes:
            broker.handlers.by_code[code] = lambda channel, request: None


def others_than_mine() -> set[asyncio.Task[Any]]:
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


async def slow(message: MessageView) -> None:
    await asyncio.sleep(30)


# --- a close that is cancelled ---------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("handover", ["java", "lease"])
def test_a_cancelled_close_can_be_repeated_and_leaves_nothing_running(handover: str, ordered: bool) -> None:
    async def scenario(world: World) -> None:
        producer = await world.producer()
        await world.topic("T", 2, producer)
        await send_all(producer, "T", 2, 2)
        await asyncio.sleep(1)
        before = others_than_mine()
        consumer = await world.push(slow, ordered=ordered, handover=handover)
        await asyncio.sleep(1)
        assert len(consumer.assignment["T"]) == 2
        instance = consumer.instance
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await consumer.close()
        began = world.clock.monotonic()
        await consumer.close()
        assert world.clock.monotonic() - began < 1, (
            "who has cancelled a close does not wait for handlers any more"
        )
        assert not consumer.running and consumer.assignment == {}
        assert instance.closed and "g" not in instance.consumers
        with pytest.raises(RocketMQError, match="no consumer for this group"):
            await groups.member_ids(producer.instance, world.cluster.broker.address, "g")
        await asyncio.sleep(0.1)
        left = {
            task for task in others_than_mine() - before if "10.3.0.2" in repr(task) or ":g:" in repr(task)
        }
        assert not left
        got: list[str] = []

        async def note(message: MessageView) -> None:
            got.append(message.body.decode())

        await world.push(note, handover=handover)
        await asyncio.sleep(1)
        assert sorted(got) == ["0-0", "0-1", "1-0", "1-1"]

    in_world(scenario)


@pytest.mark.parametrize("handover", ["java", "lease"])
def test_a_close_that_is_cancelled_and_not_repeated_ends_by_itself(handover: str) -> None:
    """The others have its queues soon, although nobody calls close() again."""

    async def scenario(world: World) -> None:
        producer = await world.producer()
        await world.topic("T", 2, producer)
        await send_all(producer, "T", 2, 1)
        consumer = await world.push(slow, handover=handover)
        await asyncio.sleep(1)
        closing = asyncio.ensure_future(consumer.close())
        await asyncio.sleep(0.1)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        got: list[str] = []

        async def note(message: MessageView) -> None:
            got.append(message.body.decode())

        await world.push(note, handover=handover)
        await asyncio.sleep(2)
        assert sorted(got) == ["0-0", "1-0"]

    in_world(scenario)


def test_a_close_can_be_cancelled_at_any_moment() -> None:
    """At every one of its waits, by the hundredth of a second; the repeated one ends it."""

    def at(moment: float) -> bool:
        ended_in_time = False

        async def scenario(cluster: GroupCluster) -> None:
            nonlocal ended_in_time
            cluster.topic("T", 2)
            cluster.broker.put("T", 0, "a")
            cluster.broker.from_start(Q0, Q1)

            async def short(message: MessageView) -> None:
                await asyncio.sleep(0.005)

            consumer = cluster.push(handover="lease")
            consumer.subscribe("T", "*", short)
            await cluster.launch(consumer)
            instance = consumer.instance
            await asyncio.sleep(0.003)
            try:
                async with asyncio.timeout(moment):
                    await consumer.close()
                ended_in_time = True
            except TimeoutError:
                await consumer.close()
            assert instance.closed and not consumer.running
            assert cluster.broker.members["g"] == {}
            assert cluster.broker.locks == {}
            await consumer.close()

        in_virtual_time(scenario)
        return ended_in_time

    moments = [number * 0.0003 for number in range(60)]
    ends = [at(moment) for moment in moments]
    assert not ends[1] and ends[-1]


def test_two_closes_at_once_end_together() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.put("T", 0, "a")
        cluster.broker.from_start(Q0)
        done: list[str] = []

        async def short(message: MessageView) -> None:
            await asyncio.sleep(0.5)
            done.append("a")

        consumer = cluster.push()
        consumer.subscribe("T", "*", short)
        await cluster.launch(consumer)
        await asyncio.sleep(0.1)
        first, second = asyncio.ensure_future(consumer.close()), asyncio.ensure_future(consumer.close())
        await asyncio.sleep(0.1)
        first.cancel()
        await asyncio.wait([first, second])
        assert first.cancelled() and second.exception() is None
        assert cluster.broker.members["g"] == {}
        with pytest.raises(StateError):
            await consumer.start()

    in_virtual_time(scenario)


def test_a_cancelled_start_leaves_nothing_behind_and_can_be_repeated() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        for step in range(1, 12):
            consumer = cluster.push(f"c{step}#1")
            consumer.subscribe("T", "*", slow)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(step * 0.0004):
                    await cluster.launch(consumer)
            assert not consumer.running
            await asyncio.sleep(0.01)
            assert cluster.broker.members.get("g", {}) == {}
        await cluster.launch(consumer)
        assert consumer.assignment == {"T": [Q0]}

    in_virtual_time(scenario)


def test_a_close_during_the_start_ends_both() -> None:
    """At every wait of the start: close() leaves nothing behind, start() says what has happened."""

    def at(moment: float) -> str:
        told = ""

        async def scenario(cluster: GroupCluster) -> None:
            nonlocal told
            cluster.topic("T", 2)
            cluster.broker.from_start(Q0, Q1)
            consumer = cluster.push(handover="lease")
            consumer.subscribe("T", "*", slow)
            starting = asyncio.ensure_future(cluster.launch(consumer))
            await asyncio.sleep(moment)
            await consumer.close()
            await asyncio.wait([starting])
            told = str(starting.exception() or "started")
            assert not consumer.running and consumer.assignment == {}
            await asyncio.sleep(0.1)
            assert cluster.broker.members.get("g", {}) == {}
            assert cluster.broker.locks == {}
            assert not [task for task in others_than_mine() if "consumer g" in task.get_name()]

        in_virtual_time(scenario)
        return told

    told = [at(number * 0.0005) for number in range(1, 40)]
    assert told[0] == "consumer g was closed while it started"
    assert told[-1] == "started"
    assert set(told) == {told[0], told[-1]}


def test_a_cancelled_start_that_is_closed_too_leaves_nothing_behind() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        consumer = cluster.push()
        consumer.subscribe("T", "*", slow)
        starting = asyncio.ensure_future(cluster.launch(consumer))
        await asyncio.sleep(0.002)
        closing = asyncio.ensure_future(consumer.close())
        starting.cancel()
        await asyncio.wait([starting, closing])
        assert starting.cancelled() and closing.exception() is None
        await asyncio.sleep(0.1)
        assert cluster.broker.members.get("g", {}) == {}

    in_virtual_time(scenario)


def test_a_handler_that_takes_no_notice_of_its_cancellation_does_not_hold_up_the_close(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.put("T", 0, "a")
        cluster.broker.from_start(Q0)
        enough = asyncio.Event()

        async def stubborn(message: MessageView) -> None:
            while not enough.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await enough.wait()

        consumer = cluster.push(await_termination=1.0)
        consumer.subscribe("T", "*", stubborn)
        await cluster.launch(consumer)
        await asyncio.sleep(0.5)
        began = cluster.clock.monotonic()
        await consumer.close()
        assert cluster.clock.monotonic() - began < 1.0 + 3.0 + 0.2
        assert cluster.broker.members["g"] == {}
        assert cluster.broker.committed(Q0) == 0
        enough.set()
        await asyncio.sleep(0.1)

    in_virtual_time(scenario)
    assert "consumer g:consume" in caplog.text


def test_an_async_handler_may_close_its_consumer() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.put("T", 0, *"ab")
        cluster.broker.from_start(Q0)
        began: list[str] = []
        consumer = cluster.push(await_termination=1.0, consume_threads=1)

        async def last(message: MessageView) -> None:
            began.append(message.body.decode())
            await consumer.close()

        consumer.subscribe("T", "*", last)
        await cluster.launch(consumer)
        await asyncio.sleep(5)
        assert began == ["a"]
        assert not consumer.running
        assert cluster.broker.members["g"] == {}
        assert cluster.broker.committed(Q0) == 0

    in_virtual_time(scenario)


# --- producers -------------------------------------------------------------------------------------


async def _traced(cluster: ScriptedCluster, network: Any, lines: int, **options: Any) -> Producer:
    cluster.add_topic("T")
    cluster.add_topic("RMQ_SYS_TRACE_TOPIC")
    producer = Producer("p", cluster.namesrv, trace=True, network=network, **options)
    await producer.start()
    await asyncio.gather(*(producer.send(Message("T", b"x")) for _ in range(lines)))
    return producer


def test_close_with_trace_and_a_silent_broker_ends_within_its_time_limit() -> None:
    """A send_timeout for the traces, however many there are, then an api_timeout for the farewell."""

    async def work(clock: VirtualClock) -> None:
        network = MemoryNetwork(1).host("127.0.0.1")
        async with ScriptedCluster(network=network) as cluster:
            producer = await _traced(cluster, network, 1000)
            instance = producer.instance
            cluster.broker.on_send = lambda channel, request: None
            cluster.broker.on_heartbeat = lambda channel, request: None
            cluster.broker.handlers.by_code[UNREGISTER] = lambda channel, request: None
            began = clock.monotonic()
            await producer.close()
            assert clock.monotonic() - began <= 3.0 + 3.0 + 0.1
            assert instance.closed
            with pytest.raises(StateError):
                await producer.send(Message("T", b"x"))

    run_virtual(work)


def test_a_farewell_waits_for_heartbeats_within_its_own_time_limit() -> None:
    async def work(clock: VirtualClock) -> None:
        network = MemoryNetwork(1).host("127.0.0.1")
        async with ScriptedCluster(network=network) as cluster:
            cluster.add_topic("T")
            producer = Producer("p", cluster.namesrv, network=network)
            await producer.start()
            await producer.send(Message("T", b"x"))
            cluster.broker.on_heartbeat = lambda channel, request: None
            cluster.broker.handlers.by_code[UNREGISTER] = lambda channel, request: None
            beating = asyncio.ensure_future(producer.instance.heartbeat())
            await asyncio.sleep(0.1)
            began = clock.monotonic()
            await producer.close()
            assert clock.monotonic() - began <= 3.0 + 0.1
            await asyncio.wait([beating])

    run_virtual(work)


def test_close_with_trace_sends_the_traces() -> None:
    async def work(clock: VirtualClock) -> None:
        network = MemoryNetwork(1).host("127.0.0.1")
        async with ScriptedCluster(network=network) as cluster:
            producer = await _traced(cluster, network, 20)
            await producer.close()
            bodies = [bytes(request.body) for request in cluster.broker.sends]
            assert sum(body.count(b"Pub\x01") for body in bodies) == 20

    run_virtual(work)


def test_a_cancelled_close_of_a_producer_can_be_repeated() -> None:
    async def work(clock: VirtualClock) -> None:
        network = MemoryNetwork(1).host("127.0.0.1")
        async with ScriptedCluster(network=network) as cluster:
            producer = await _traced(cluster, network, 10)
            instance = producer.instance
            cluster.broker.on_send = lambda channel, request: None
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await producer.close()
            await producer.close()
            assert instance.closed and not instance.producers
            assert len(cluster.broker.of(UNREGISTER)) == 1
            await producer.close()
            await producer.start()
            await producer.close()

    run_virtual(work)


def test_a_cancelled_close_of_an_instance_can_be_repeated() -> None:
    async def work(clock: VirtualClock) -> None:
        network = MemoryNetwork(1).host("127.0.0.1")
        async with ScriptedCluster(network=network) as cluster:
            cluster.add_topic("T")
            async with Producer("p", cluster.namesrv, network=network) as producer:
                instance: ClientInstance = producer.instance
                await producer.send(Message("T", b"x"))
                address = cluster.broker.address
                assert instance.pool.existing(address) is not None
                closing = asyncio.ensure_future(instance.close())
                await asyncio.sleep(0)
                closing.cancel()
                await asyncio.wait([closing])
                await instance.close()
                assert instance.pool.existing(address) is None

    run_virtual(work)


# --- commits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["push", "pull"])
def test_the_progress_of_a_lost_queue_is_committed_and_answered(kind: str) -> None:
    """A one-way commit may be handled after the next owner has asked where to begin."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        for number in (0, 1):
            cluster.broker.put("T", number, *"abc")
        cluster.broker.from_start(Q0, Q1)

        async def nothing(message: MessageView) -> None:
            return None

        first: PushConsumer | PullConsumer
        if kind == "push":
            first = cluster.push("c1#1", persist_interval=1000.0)
            first.subscribe("T", "*", nothing)
            await cluster.launch(first)
            await asyncio.sleep(0.5)
        else:
            first = cluster.pull("c1#1", persist_interval=1000.0)
            first.subscribe("T")
            await cluster.launch(first)
            while len(await first.poll(0.1)):
                pass
        second = cluster.push("c2#1")
        second.subscribe("T", "*", nothing)
        await cluster.launch(second)
        await asyncio.sleep(0.5)
        assert first.assignment["T"] == [Q0]
        commits = [
            (request.fields["commitOffset"], request.oneway)
            for request in cluster.broker.of(UPDATE)
            if request.fields["queueId"] == "1"
        ]
        assert commits == [("3", False)]

    in_virtual_time(scenario)


def test_a_pull_carries_no_progress_that_was_only_read() -> None:
    """A member that was away would set back whoever has read on in the meantime."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.put("T", 0, *"abc")
        cluster.broker.offsets["g", "T", 0] = 2

        async def nothing(message: MessageView) -> None:
            return None

        consumer = cluster.push("c1#1", persist_interval=1000.0)
        consumer.subscribe("T", "*", nothing)
        await cluster.launch(consumer)
        await asyncio.sleep(0.5)
        cluster.broker.put("T", 0, "d")
        await asyncio.sleep(0.5)
        first, *_, last = (
            (pull.fields["queueOffset"], pull.fields["commitOffset"]) for pull in cluster.broker.of(PULL)
        )
        assert (first, last) == (("2", "0"), ("4", "3"))

    in_virtual_time(scenario)


def test_a_broker_that_answers_no_commit_holds_a_round_up_for_three_seconds_at_most() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 4)
        queues = [MessageQueue("T", "broker-a", number) for number in range(4)]
        cluster.broker.notify_changes = False
        for number in range(4):
            cluster.broker.put("T", number, "a")
        cluster.broker.from_start(*queues)

        async def nothing(message: MessageView) -> None:
            return None

        members = []
        for name in ("c1#1", "c2#1"):
            member = cluster.push(name, persist_interval=1000.0, rebalance_interval=1000.0)
            member.subscribe("T", "*", nothing)
            await cluster.launch(member)
            members.append(member)
            await asyncio.sleep(0.5)
        silence(cluster, UPDATE)
        began = cluster.clock.monotonic()
        await members[0].rebalance("test")
        assert 2.9 < cluster.clock.monotonic() - began < 3.1
        assert members[0].assignment["T"] == queues[:2]

    in_virtual_time(scenario)


def test_unsubscribing_commits_what_was_done() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.topic("U", 1)
        cluster.broker.put("T", 0, *"abc")
        cluster.broker.from_start(Q0)

        async def nothing(message: MessageView) -> None:
            return None

        consumer = cluster.push(persist_interval=1000.0)
        consumer.subscribe("T", "*", nothing)
        consumer.subscribe("U", "*", nothing)
        await cluster.launch(consumer)
        await asyncio.sleep(0.5)
        consumer.unsubscribe("T")
        await asyncio.sleep(0.5)
        assert cluster.broker.committed(Q0) == 3
        assert "T" not in consumer.assignment

    in_virtual_time(scenario)


@pytest.mark.parametrize("handover", ["java", "lease"])
@pytest.mark.parametrize("ordered", [False, True])
def test_a_close_with_a_silent_broker_ends_within_its_time_limit(ordered: bool, handover: str) -> None:
    """The handlers' await_termination, 3 s for commits, 1 s for locks, an api_timeout for the farewell."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 8)
        queues = [MessageQueue("T", "broker-a", number) for number in range(8)]
        for number in range(8):
            cluster.broker.put("T", number, "a")
        cluster.broker.from_start(*queues)

        async def first_quick(message: MessageView) -> None:
            if message.queue_id == 0:
                await asyncio.sleep(1000)

        consumer = cluster.push(await_termination=2.0, handover=handover)
        consumer.subscribe("T", "*", first_quick, ordered=ordered)
        await cluster.launch(consumer)
        await asyncio.sleep(0.5)
        silence(cluster, *cluster.broker.handlers.by_code)
        began = cluster.clock.monotonic()
        await consumer.close()
        assert cluster.clock.monotonic() - began < 2.0 + 3.0 + 1.0 + 3.0 + 0.1
        assert not consumer.running

    in_virtual_time(scenario)


# --- pull consumers --------------------------------------------------------------------------------


class Unusable(Exception):
    pass


def test_an_exception_after_a_poll_commits_nothing_past_the_failed_batch() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.put("T", 0, *(str(number) for number in range(25)))
        cluster.broker.from_start(Q0)

        def new(name: str) -> PullConsumer:
            consumer = cluster.pull(name, persist_interval=1000.0)
            consumer.subscribe("T")
            return consumer

        async def polled(consumer: PullConsumer) -> list[str]:
            return [message.body.decode() for message in await consumer.poll(5.0)]

        with pytest.raises(Unusable):
            async with new("c1#1") as consumer:
                await polled(consumer)
                raise Unusable
        assert cluster.broker.committed(Q0) == 0
        with pytest.raises(Unusable):
            async with new("c2#1") as consumer:
                assert (await polled(consumer))[0] == "0"
                assert (await polled(consumer))[0] == "10"
                raise Unusable
        assert cluster.broker.committed(Q0) == 10, "what was done before is committed"
        with pytest.raises(Unusable):
            async with new("c3#1") as consumer:
                assert (await polled(consumer))[0] == "10"
                await consumer.commit()
                raise Unusable
        assert cluster.broker.committed(Q0) == 20, "what was committed by hand stays"
        async with new("c4#1") as consumer:
            assert await polled(consumer) == ["20", "21", "22", "23", "24"]
        assert cluster.broker.committed(Q0) == 25, "a clean end counts the last batch as done"

    in_virtual_time(scenario)


def test_a_cancelled_worker_commits_nothing_of_its_batch() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.put("T", 0, "a")
        cluster.broker.from_start(Q0)

        async def work() -> None:
            async with cluster.pull(persist_interval=1000.0) as consumer:
                consumer.subscribe("T")
                assert await consumer.poll(5.0)
                await asyncio.sleep(1000)

        worker = asyncio.ensure_future(work())
        await asyncio.sleep(2)
        worker.cancel()
        with pytest.raises(asyncio.CancelledError):
            await worker
        assert cluster.broker.committed(Q0) == 0

    in_virtual_time(scenario)


@pytest.mark.parametrize("way", ["exception", "break"])
def test_leaving_an_iteration_commits_up_to_the_message_at_hand(way: str) -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.put("T", 0, *"abcdef")
        cluster.broker.from_start(Q0)
        try:
            async with cluster.pull(persist_interval=1000.0) as consumer:
                consumer.subscribe("T")
                async for message in consumer:
                    if message.body == b"c":
                        if way == "break":
                            break
                        raise Unusable
        except Unusable:
            pass
        assert cluster.broker.committed(Q0) == 2

    in_virtual_time(scenario)


def test_a_seek_inside_an_iteration_is_not_overwritten_by_what_was_fetched_before() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.put("T", 0, *"abcdef")
        cluster.broker.from_start(Q0)
        seen: list[str] = []
        async with cluster.pull(persist_interval=1000.0) as consumer:
            consumer.subscribe("T")
            async for message in consumer:
                seen.append(message.body.decode())
                if seen == ["a", "b", "c"]:
                    await consumer.seek(Q0, 1)
                elif len(seen) == 5:
                    assert consumer.position(Q0) == 2
                    break
        assert seen == ["a", "b", "c", "b", "c"]
        assert cluster.broker.committed(Q0) == 2

    in_virtual_time(scenario)


def test_a_commit_that_fails_inside_a_poll_does_not_fail_the_poll() -> None:
    """The next one may succeed, and the messages are there."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.put("T", 0, *(str(number) for number in range(25)))
        cluster.broker.from_start(Q0)
        consumer = cluster.pull(persist_interval=1000.0, auto_commit_interval=1.0, connect_timeout=0.5)
        consumer.subscribe("T")
        await cluster.launch(consumer)
        assert await consumer.poll(5.0)
        await asyncio.sleep(2)
        await cluster.broker.close()
        await asyncio.sleep(0.1)
        assert (await consumer.poll(5.0))[0].body == b"10"

    in_virtual_time(scenario)


def test_a_blocking_consumer_left_by_an_exception_commits_nothing_past_the_failed_batch() -> None:
    with LocalCluster.in_thread() as cluster:
        with sync.Producer("p", cluster.namesrv) as producer:
            producer.send(Message("T", b"x"))

        def once(*, fail: bool) -> list[bytes]:
            with sync.PullConsumer(
                "g", cluster.namesrv, consume_from_where=ConsumeFromWhere.FIRST_OFFSET
            ) as consumer:
                consumer.subscribe("T")
                got = [message.body for message in consumer.poll(20)]
                if fail:
                    raise Unusable
                return got

        with pytest.raises(Unusable):
            once(fail=True)
        assert once(fail=False) == [b"x"]


def test_a_blocking_close_that_ctrl_c_interrupts_can_be_repeated() -> None:
    with LocalCluster.in_thread() as cluster:
        with sync.Producer("p", cluster.namesrv) as producer:
            producer.send(Message("T", b"x"))
        begun, finish = threading.Event(), threading.Event()

        def handler(message: MessageView) -> None:
            begun.set()
            finish.wait(30)

        consumer = sync.PushConsumer(
            "g", cluster.namesrv, consume_from_where=ConsumeFromWhere.FIRST_OFFSET, await_termination=30.0
        )
        consumer.subscribe("T", "*", handler)
        consumer.start()
        assert begun.wait(20)
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            timer = threading.Timer(0.3, signal.pthread_kill, [threading.get_ident(), signal.SIGINT])
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                consumer.close()
        finally:
            signal.signal(signal.SIGINT, before)
        timer.join()
        finish.set()
        consumer.close()
        assert not consumer.running
        with sync.PullConsumer("g", cluster.namesrv) as reader:
            committed = [reader.committed(queue) for queue in reader.queues("T")]
        assert 1 in committed


# --- the end of the program ------------------------------------------------------------------------


def test_an_unclosed_broadcasting_consumer_writes_its_progress_at_exit(tmp_path: Path) -> None:
    script = """
import queue, sys
from gimbalmq import ConsumeFromWhere, Message, MessageModel, sync
namesrv, folder = sys.argv[1:]
producer = sync.Producer("p", namesrv)
producer.start()
producer.send(Message("T", b"x"))
done = queue.Queue()
consumer = sync.PushConsumer(
    "g", namesrv, consume_from_where=ConsumeFromWhere.FIRST_OFFSET, instance_name="lazy",
    message_model=MessageModel.BROADCASTING, local_offset_folder=folder, persist_interval=1000.0,
)
consumer.subscribe("T", "*", lambda message: done.put(message.body))
consumer.on_event(lambda event: None)
consumer.on_queues_changed(lambda *_: None)
consumer.start()
print(done.get(timeout=30))
"""
    with LocalCluster.in_thread() as cluster:
        ended = subprocess.run(
            [sys.executable, "-c", script, cluster.namesrv, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
        )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "b'x'\n", "")
    (file,) = tmp_path.rglob("offsets.json")
    assert "}:1" in file.read_text().replace("\n", "").replace("\t", "")


def test_whoever_starts_while_the_last_member_of_an_instance_leaves_gets_one_that_lives() -> None:
    """The end of an instance begins a turn of the loop after it was found to be unused."""

    async def scenario() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            for turns in range(8):
                leaving = Producer("first", cluster.namesrv, instance_name="shared")
                coming = Producer("second", cluster.namesrv, instance_name="shared")
                await leaving.start()

                async def start_later(producer: Producer = coming, turns: int = turns) -> None:
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    await producer.start()

                await asyncio.gather(leaving.close(), start_later())
                await coming.send(Message("T", b"x"))
                await coming.close()

    run(scenario())


def test_a_consumer_can_start_while_the_last_member_of_its_instance_leaves() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        for turns in range(8):
            options = cluster.client_options("shared")
            leaving = Producer("p", cluster.nameserver.address, **options)
            coming = PullConsumer("g", cluster.nameserver.address, **options)
            coming.subscribe("T")
            await leaving.start(instance=ClientInstance.shared(leaving.config, clock=cluster.clock))

            async def start_later(consumer: PullConsumer = coming, turns: int = turns) -> None:
                for _ in range(turns):
                    await asyncio.sleep(0)
                await cluster.launch(consumer)

            await asyncio.gather(leaving.close(), start_later())
            await coming.close()

    in_virtual_time(scenario)
