"""Handover by lease: nothing delivered twice on a planned change, no queue with two readers."""

from __future__ import annotations

import asyncio
from typing import Any

from gimbalmq.client.events import BalanceEvent, LeaseLost, LeaseOverridden, QueueReleased, QueueTaken
from gimbalmq.client.push_consumer import PushConsumer
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.protocol.codes import RequestCode
from tests.client.group_peers import GroupCluster, in_virtual_time, until

LOCK = RequestCode.LOCK_BATCH_MQ
UNLOCK = RequestCode.UNLOCK_BATCH_MQ
UPDATE = RequestCode.UPDATE_CONSUMER_OFFSET
QUERY = RequestCode.QUERY_CONSUMER_OFFSET
PULL = RequestCode.PULL_MESSAGE
Q0 = MessageQueue("T", "broker-a", 0)
Q1 = MessageQueue("T", "broker-a", 1)


class Worker:
    """A handler that takes its time, and knows what it has begun and when."""

    def __init__(self, cluster: GroupCluster, name: str, seconds: float = 0.02) -> None:
        self.cluster = cluster
        self.name = name
        self.seconds = seconds
        self.done: list[str] = []
        self.begun: list[str] = []

    async def __call__(self, message: MessageView) -> None:
        self.begun.append(message.body.decode())
        await asyncio.sleep(self.seconds)
        self.done.append(message.body.decode())


async def joined(cluster: GroupCluster, worker: Any, **options: Any) -> PushConsumer:
    options.setdefault("handover", "lease")
    consumer = cluster.push(worker.name, persist_interval=1000.0, **options)
    consumer.subscribe("T", "*", worker)
    await cluster.launch(consumer)
    return consumer


def feed(cluster: GroupCluster, queues: int, each: int) -> list[str]:
    bodies: list[str] = []
    for number in range(queues):
        cluster.broker.offsets.setdefault(("g", "T", number), 0)
        named = [f"{number}-{item}" for item in range(each)]
        cluster.broker.put("T", number, *named)
        bodies += named
    return bodies


def test_joins_and_leaves_deliver_nothing_twice() -> None:
    """The harm "duplicates after a move": three joins and a leave under load, every message exactly once."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 8)
        bodies = feed(cluster, 8, 400)
        workers = [Worker(cluster, f"c{number}#1") for number in range(4)]
        consumers = []
        for worker in workers:
            consumers.append(await joined(cluster, worker, consume_threads=5))
            await asyncio.sleep(0.7)
        await consumers[1].close()
        await until(lambda: sum(len(worker.done) for worker in workers) >= len(bodies))
        await asyncio.sleep(1)
        done = [body for worker in workers for body in worker.done]
        assert sorted(done) == sorted(bodies)

    in_virtual_time(scenario)


def test_the_same_moves_without_leases_do_deliver_some_twice() -> None:
    """What Java does, and what the lease removes: the comparison for the test above."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 8)
        bodies = feed(cluster, 8, 400)
        workers = [Worker(cluster, f"c{number}#1") for number in range(4)]
        for worker in workers:
            await joined(cluster, worker, consume_threads=5, handover="java")
            await asyncio.sleep(0.7)
        await until(lambda: len({body for worker in workers for body in worker.done}) == len(bodies))
        assert sum(len(worker.done) for worker in workers) > len(bodies)

    in_virtual_time(scenario)


def test_the_loser_finishes_commits_and_releases_in_this_order() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        cluster.broker.from_start(Q0, Q1)
        cluster.broker.put("T", 1, *(f"1-{item}" for item in range(50)))
        slow = Worker(cluster, "c1#1", 3.0)
        first = await joined(cluster, slow, consume_threads=2)
        told: list[BalanceEvent] = []
        first.on_event(told.append)
        await asyncio.sleep(1)
        assert slow.begun == ["1-0", "1-1"]
        quick = Worker(cluster, "c2#1")
        second = await joined(cluster, quick)
        await asyncio.sleep(0.5)
        assert second.assignment.get("T", []) == []  # the first one is not done yet
        assert first.assignment["T"] == [Q0]
        await asyncio.sleep(3)
        assert second.assignment["T"] == [Q1]
        released = [event for event in told if isinstance(event, QueueReleased)]
        assert [event.queue for event in released] == [Q1]
        assert released[0].offset == 2
        assert slow.begun == sorted(slow.done) == ["1-0", "1-1"]
        codes = [
            request.code
            for request in cluster.broker.asked
            if request.code in (UPDATE, UNLOCK) and not request.oneway
        ]
        assert codes == [UPDATE, UNLOCK]
        assert quick.begun[0] == "1-2"

    in_virtual_time(scenario)


def test_a_long_handover_outlives_the_commit_timer() -> None:
    """The timer forgets queues that are not held; one being handed over is not forgotten, nor at close."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        cluster.broker.from_start(Q0, Q1)
        cluster.broker.put("T", 1, *(f"1-{item}" for item in range(10)))

        async def handler(message: MessageView) -> None:
            await asyncio.sleep(12.0 if message.body == b"1-3" else 0.1)

        first = cluster.push("c1#1", handover="lease", consume_threads=1, persist_interval=2.0)
        first.subscribe("T", "*", handler)
        await cluster.launch(first)
        await asyncio.sleep(1)
        quick = Worker(cluster, "c2#1")
        await joined(cluster, quick)
        await asyncio.sleep(13)
        assert quick.begun[0] == "1-4"
        assert cluster.broker.committed(Q1) is not None

    in_virtual_time(scenario)


def test_the_gainer_reads_the_offset_only_with_the_lock_in_its_hand() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.locks[("g", "T", 0)] = "somebody"
        consumer = await joined(cluster, Worker(cluster, "c1#1"), lease_orphan_grace=1000.0)
        await asyncio.sleep(2)
        assert consumer.assignment == {}
        assert cluster.broker.of(QUERY) == cluster.broker.of(PULL) == []
        assert len(cluster.broker.of(LOCK)) > 10
        cluster.broker.offsets[("g", "T", 0)] = 7
        cluster.broker.put("T", 0, *(str(item) for item in range(9)))
        del cluster.broker.locks[("g", "T", 0)]
        await asyncio.sleep(0.3)
        assert cluster.broker.of(PULL)[0].fields["queueOffset"] == "7"
        codes = cluster.broker.codes()
        assert codes.index(QUERY) > codes.index(LOCK)

    in_virtual_time(scenario)


def test_the_lock_of_a_vanished_member_is_not_waited_for_forever() -> None:
    """A crash: the lock stays at an Apache broker for 60 s, but its holder is no member any more."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        first = await joined(cluster, Worker(cluster, "c1#1"))
        second = await joined(cluster, Worker(cluster, "c2#1"))
        await asyncio.sleep(0.5)
        assert second.assignment["T"] == [Q1]
        told: list[BalanceEvent] = []
        first.on_event(told.append)
        assert cluster.network is not None
        host = cluster.client_host("c2#1")
        cluster.network.reset(host)
        cluster.network.cut(host, cluster.broker.address.split(":")[0])
        began = cluster.clock.monotonic()
        await until(lambda: Q1 in first.assignment["T"])
        assert 5.0 <= cluster.clock.monotonic() - began < 7.0
        assert [event.queue for event in told if isinstance(event, LeaseOverridden)] == [Q1]
        cluster.network.mend()

    in_virtual_time(scenario)


def test_only_a_gone_members_lock_is_overridden_not_a_busy_ones() -> None:
    """Three members: one vanishes, one takes long to finish; the gainer tells them apart."""

    async def scenario(cluster: GroupCluster) -> None:
        queues = cluster.topic("T", 6)
        cluster.broker.from_start(*queues)
        consumers = {}
        for name in ("c1#1", "c2#1", "c3#1"):
            consumers[name] = await joined(cluster, Worker(cluster, name, 30.0))
            await asyncio.sleep(0.5)
        held = {name: [queue.queue_id for queue in one.assignment["T"]] for name, one in consumers.items()}
        assert held == {"c1#1": [0, 1], "c2#1": [2, 3], "c3#1": [4, 5]}
        told: list[BalanceEvent] = []
        consumers["c1#1"].on_event(told.append)
        cluster.broker.put("T", 2, "slow")  # at c2, which will have to give queue 2 to c1
        await asyncio.sleep(0.5)
        assert cluster.network is not None
        host = cluster.client_host("c3#1")
        cluster.network.reset(host)
        cluster.network.cut(host, cluster.broker.address.split(":")[0])
        await asyncio.sleep(8)
        assert [queue.queue_id for queue in consumers["c1#1"].assignment["T"]] == [0, 1]
        assert [queue.queue_id for queue in consumers["c2#1"].assignment["T"]] == [3, 4, 5]
        await asyncio.sleep(25)
        assert [queue.queue_id for queue in consumers["c1#1"].assignment["T"]] == [0, 1, 2]
        assert not [event for event in told if isinstance(event, LeaseOverridden)]
        cluster.network.mend()

    in_virtual_time(scenario)


def test_a_lease_given_to_another_is_dropped_without_a_commit() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        feed(cluster, 1, 5)
        worker = Worker(cluster, "c1#1")
        consumer = await joined(cluster, worker, lease_orphan_grace=1000.0)
        told: list[BalanceEvent] = []
        consumer.on_event(told.append)
        await asyncio.sleep(2)
        item = consumer.balance.table[Q0]
        await asyncio.sleep(14)  # the pull that waits carries the progress, and the next one goes out at 15 s
        cluster.broker.locks[("g", "T", 0)] = "somebody"
        await asyncio.sleep(6)
        assert item.dropped
        assert [event.queue for event in told if isinstance(event, LeaseLost)] == [Q0]
        assert consumer.assignment == {}
        assert consumer.offsets.remembered(Q0) is None
        await consumer.close()
        assert cluster.broker.of(UPDATE) == []

    in_virtual_time(scenario)


def test_leases_that_nobody_can_renew_are_given_up_in_time() -> None:
    """Cut off from the broker: given up before the broker's 60 s are over."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        consumer = await joined(cluster, Worker(cluster, "c1#1"))
        await asyncio.sleep(2)
        item = consumer.balance.table[Q0]
        assert cluster.network is not None
        cluster.network.cut(cluster.client_host("c1#1"), cluster.broker.address.split(":")[0])
        began = cluster.clock.monotonic()
        await until(lambda: item.dropped)
        assert 30 < cluster.clock.monotonic() - began < 58
        cluster.network.mend()

    in_virtual_time(scenario)


def test_a_queue_that_comes_back_while_it_is_handed_over_is_taken_again() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        feed(cluster, 2, 40)
        slow = Worker(cluster, "c1#1", 3.0)
        first = await joined(cluster, slow, consume_threads=2)
        await asyncio.sleep(1)
        second = await joined(cluster, Worker(cluster, "c2#1"))
        await asyncio.sleep(0.5)
        await second.close()
        await asyncio.sleep(0.5)
        taken: list[BalanceEvent] = []
        first.on_event(lambda event: taken.append(event) if isinstance(event, QueueTaken) else None)
        await asyncio.sleep(5)
        assert first.assignment["T"] == [Q0, Q1]
        assert len(slow.begun) == len(set(slow.begun))

    in_virtual_time(scenario)


def test_listeners_hear_of_a_handover_and_an_ended_subscription_frees_its_locks() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        cluster.topic("U", 1)
        first = cluster.push("c1#1", handover="lease")
        told: list[list[MessageQueue]] = []
        first.on_queues_changed(lambda topic, every, mine, why: told.append(list(mine)))
        worker = Worker(cluster, "c1#1")
        first.subscribe("T", "*", worker)
        first.subscribe("U", "*", worker)
        await cluster.launch(first)
        assert ("g", "U", 0) in cluster.broker.locks
        first.unsubscribe("U")
        await asyncio.sleep(0.5)
        assert ("g", "U", 0) not in cluster.broker.locks
        told.clear()
        await joined(cluster, Worker(cluster, "c2#1"))
        await asyncio.sleep(0.5)
        assert told == [[Q0]]

    in_virtual_time(scenario)


def test_ordered_consumers_hand_over_by_lease_too() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        bodies = feed(cluster, 2, 60)
        workers = [Worker(cluster, "c1#1", 0.05), Worker(cluster, "c2#1", 0.05)]
        for worker in workers:
            consumer = cluster.push(worker.name, handover="lease")
            consumer.subscribe("T", "*", worker, ordered=True)
            await cluster.launch(consumer)
            await asyncio.sleep(1)
        await until(lambda: sum(len(worker.done) for worker in workers) >= len(bodies))
        done = [body for worker in workers for body in worker.done]
        assert sorted(done) == sorted(bodies)
        moved = [body for body in done if body.startswith("1-")]
        assert moved == [f"1-{item}" for item in range(60)]

    in_virtual_time(scenario)


def test_a_pull_consumer_hands_over_when_the_next_poll_says_that_it_is_done() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        feed(cluster, 2, 30)
        first = cluster.pull("c1#1", handover="lease")
        first.subscribe("T")
        await cluster.launch(first)
        got = [message.body.decode() for message in await first.poll()]
        while not got[-1].startswith("1-"):
            got += [message.body.decode() for message in await first.poll()]
        second = cluster.pull("c2#1", handover="lease")
        second.subscribe("T")
        await cluster.launch(second)
        await asyncio.sleep(3)
        assert second.assignment == {}  # what the first one polled last may still be at work
        got += [message.body.decode() for message in await first.poll(0.5)]
        await asyncio.sleep(0.5)
        assert second.assignment["T"] == [Q1]
        rest: list[str] = []
        while batch := await second.poll(1.0):
            rest += [message.body.decode() for message in batch]
        while batch := await first.poll(1.0):
            got += [message.body.decode() for message in batch]
        assert sorted(got + rest) == sorted(f"{number}-{item}" for number in (0, 1) for item in range(30))

    in_virtual_time(scenario)
