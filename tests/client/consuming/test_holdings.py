"""How queues come and go, seen from the broker: locks, commits, and what is left behind."""

from __future__ import annotations

import asyncio

import pytest

from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.status_bodies import QueueOffsets
from tests.client.group_peers import GroupCluster, in_virtual_time, until

Q0 = MessageQueue("T", "broker-a", 0)


async def nothing(message: MessageView) -> None:
    return None


@pytest.mark.parametrize("handover", ["java", "lease"])
def test_a_topic_that_is_unsubscribed_leaves_its_locks(handover: str) -> None:
    """Ordered queues kept them for 60 s, and the next owner waited."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        cluster.topic("U", 1)
        consumer = cluster.push(handover=handover)
        for topic in ("T", "U"):
            consumer.subscribe(topic, "*", nothing, ordered=True)
        await cluster.launch(consumer)
        assert {key[1] for key in cluster.broker.locks} == {"T", "U"}
        consumer.unsubscribe("T")
        await until(lambda: {key[1] for key in cluster.broker.locks} == {"U"})

    in_virtual_time(scenario)


def test_an_offset_that_is_reset_by_request_is_committed_with_leases_too() -> None:
    """Nobody renewed the lease while the reset waited, so its commit was refused and the reset lost."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.from_start(Q0)
        cluster.broker.put("T", 0, *"abcde")
        seen: list[str] = []

        async def note(message: MessageView) -> None:
            seen.append(message.body.decode())

        consumer = cluster.push(handover="lease")
        consumer.subscribe("T", "*", note)
        await cluster.launch(consumer)
        await until(lambda: len(seen) == 5)
        fields = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true"}
        body = QueueOffsets.of_queues({Q0: 2}).dump()
        cluster.broker.tell("g", RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body)
        await asyncio.sleep(15)
        assert seen == [*"abcde", *"cde"]

    in_virtual_time(scenario)


def test_a_lock_is_not_given_back_while_a_handler_is_at_work() -> None:
    """An offset that is reset drops the queue; whoever is next must not begin beside our handler."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.from_start(Q0)
        cluster.broker.put("T", 0, "a")
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def slow(message: MessageView) -> None:
            begun.set()
            await go_on.wait()

        consumer = cluster.push(handover="lease", unbalanced_delay=1.0)
        consumer.subscribe("T", "*", slow)
        await cluster.launch(consumer)
        await begun.wait()
        held = consumer.holdings.table[Q0]
        await consumer.holdings.discard(Q0, "test")
        await asyncio.sleep(20)
        assert ("g", "T", 0) in cluster.broker.locks
        assert consumer.holdings.table[Q0] is held and held.dropped
        assert held.give_up_tries >= 1
        go_on.set()
        await until(lambda: consumer.assignment.get("T") == [Q0])
        assert consumer.holdings.table[Q0] is not held

    in_virtual_time(scenario)


def test_a_handler_that_never_ends_puts_the_end_of_its_queue_off_for_a_minute() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.from_start(Q0)
        cluster.broker.put("T", 0, "a")
        begun = asyncio.Event()

        async def hung(message: MessageView) -> None:
            begun.set()
            await asyncio.Event().wait()

        consumer = cluster.push(handover="lease", await_termination=0.0)
        consumer.subscribe("T", "*", hung)
        await cluster.launch(consumer)
        await begun.wait()
        held = consumer.holdings.table[Q0]
        dropped_at = cluster.clock.monotonic()
        await consumer.holdings.discard(Q0, "test")
        await until(lambda: consumer.holdings.table.get(Q0) is not held, 0.5)
        assert 60 <= cluster.clock.monotonic() - dropped_at < 65

    in_virtual_time(scenario)


def test_a_close_that_was_cut_short_can_be_repeated() -> None:
    """The second call did nothing; the member stayed in the group with its queues."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.from_start(Q0)
        cluster.broker.put("T", 0, "a")
        begun = asyncio.Event()

        async def slow(message: MessageView) -> None:
            begun.set()
            await asyncio.sleep(30)

        consumer = cluster.push(handover="lease", await_termination=100.0)
        consumer.subscribe("T", "*", slow)
        await cluster.launch(consumer)
        instance = consumer.instance
        await begun.wait()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await consumer.close()
        assert not consumer.running
        await consumer.close()
        assert cluster.broker.committed(Q0) == 0, "who cuts a close short does not wait for handlers"
        assert not cluster.broker.locks and not cluster.broker.clients("g")
        assert instance.closed and not consumer._tasks._tasks
        await consumer.close()

    in_virtual_time(scenario)


def test_what_was_fetched_of_a_queue_goes_with_the_queue() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        for number in (0, 1):
            cluster.broker.put("T", number, *"abc")
            cluster.broker.from_start(MessageQueue("T", "broker-a", number))
        consumer = cluster.pull()
        consumer.subscribe("T")
        await cluster.launch(consumer)
        table = consumer.holdings.table
        await until(lambda: len(table) == 2 and all(held.window.count == 3 for held in table.values()))
        await consumer.holdings.discard(Q0, "test")
        got = [*await consumer.poll(0.0), *await consumer.poll(0.0)]
        assert [message.queue_id for message in got] == [1, 1, 1]
        assert consumer._polled is not None and not consumer._polled._fetched

    in_virtual_time(scenario)


def test_a_consumer_that_is_suspended_before_its_start_begins_suspended() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        consumer = cluster.push()
        consumer.subscribe("T", "*", nothing)
        consumer.suspend()
        await cluster.launch(consumer)
        await asyncio.sleep(30)
        assert consumer.suspended and consumer.assignment == {}
        consumer.resume()
        await until(lambda: consumer.assignment == {"T": [Q0]})

    in_virtual_time(scenario)
