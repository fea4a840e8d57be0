"""Handover by lease: nothing delivered twice on a planned change, no queue with two readers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gimbalmq.client.events import (
    BalanceEvent,
    LeaseConfirmed,
    LeaseFenced,
    LeaseLost,
    LeaseOverridden,
    QueueReleased,
    QueueTaken,
)
from gimbalmq.client.push_consumer import PushConsumer
from gimbalmq.errors import ConfigError, StateError
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.transport.channel import Channel
from tests.client.group_peers import GroupCluster, in_virtual_time, on_sockets, until
from tests.support import run

HEART_BEAT = RequestCode.HEART_BEAT
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


def test_a_lock_that_is_being_given_back_is_not_renewed_meanwhile() -> None:
    """The broker would keep it for the loser, which has left the queue, and nobody would have it for a minute."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        unlock = cluster.broker.handlers.by_code[UNLOCK]

        def refuse_the_other(request: RemotingCommand) -> RemotingCommand | None:
            return request.reply(1, "later") if b"c2#1" in bytes(request.body) else None

        async def answer_late(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            answer = unlock(channel, request)
            cluster.broker.overrides[LOCK] = refuse_the_other
            await asyncio.sleep(0.98)  # leases are renewed every second
            del cluster.broker.overrides[LOCK]
            assert isinstance(answer, RemotingCommand)
            return answer

        cluster.broker.handlers.by_code[UNLOCK] = answer_late
        first = await joined(cluster, Worker(cluster, "c1#1"))
        await asyncio.sleep(0.5)
        assert first.assignment["T"] == [Q0, Q1]
        second = await joined(cluster, Worker(cluster, "c2#1"))
        await asyncio.sleep(4)
        assert (first.assignment["T"], second.assignment["T"]) == ([Q0], [Q1])
        assert cluster.broker.locks["g", "T", 1].endswith("c2#1")

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
        item = consumer.holdings.table[Q0]
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
        item = consumer.holdings.table[Q0]
        assert cluster.network is not None
        cluster.network.cut(cluster.client_host("c1#1"), cluster.broker.address.split(":")[0])
        began = cluster.clock.monotonic()
        await until(lambda: item.dropped)
        assert 28 < cluster.clock.monotonic() - began < 58
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


# --- in doubt: cut off, restarted, hung ---------------------------------------------------------------


class Noting(Worker):
    """A handler that notes when it began which queue's message."""

    def __init__(self, cluster: GroupCluster, name: str, seconds: float = 0.1) -> None:
        super().__init__(cluster, name, seconds)
        self.times: list[tuple[float, str]] = []

    async def __call__(self, message: MessageView) -> None:
        body = message.body.decode()
        self.times.append((self.cluster.clock.monotonic(), body))
        await super().__call__(message)

    def began(self, queue: MessageQueue) -> list[float]:
        return [at for at, body in self.times if body.startswith(f"{queue.queue_id}-")]


async def busy(
    cluster: GroupCluster, worker: Worker, *, ordered: bool = False, **options: Any
) -> tuple[PushConsumer, list[BalanceEvent]]:
    """A member that commits often, and what it tells."""
    consumer = cluster.push(
        worker.name,
        handover="lease",
        consume_threads=4,
        persist_interval=0.5,
        **{"pull_batch_size": 4, "pull_threshold_for_queue": 4, **options},
    )
    consumer.subscribe("T", "*", worker, ordered=ordered)
    told: list[BalanceEvent] = []
    consumer.on_event(told.append)
    await cluster.launch(consumer)
    return consumer, told


def of_kind(told: list[BalanceEvent], kind: type[BalanceEvent]) -> list[MessageQueue]:
    return [event.queue for event in told if isinstance(event, kind) and hasattr(event, "queue")]


def cut_off(cluster: GroupCluster, name: str) -> None:
    """From now on nothing passes between a member and the broker, and the broker knows it for gone."""
    assert cluster.network is not None
    cluster.network.cut(cluster.client_host(name), cluster.broker.address.split(":")[0])
    for channel, client_id in list(cluster.broker.members["g"].items()):
        if client_id.endswith(name):
            cluster.broker._gone(channel)


def restart(cluster: GroupCluster) -> None:
    """The broker is back at once, and has forgotten locks and members."""
    assert cluster.network is not None
    cluster.broker.locks.clear()
    cluster.broker.members.clear()
    cluster.network.reset(cluster.broker.address.split(":")[0])


@pytest.mark.parametrize("ordered", [False, True])
def test_a_member_that_cannot_renew_begins_and_commits_nothing_more(ordered: bool) -> None:
    """Three seconds after its last renewal was sent, before anybody else may begin; then it goes on."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        feed(cluster, 1, 1000)
        worker = Noting(cluster, "c1#1")
        consumer, told = await busy(cluster, worker, ordered=ordered, lease_orphan_grace=20.0)
        await asyncio.sleep(2)
        cluster.broker.overrides[LOCK] = lambda request: request.reply(1, "no")
        began = cluster.clock.monotonic()
        await until(lambda: of_kind(told, LeaseFenced))
        assert 2.0 <= cluster.clock.monotonic() - began <= 3.6
        assert 1.9 < worker.times[-1][0] - began <= 3.1
        await asyncio.sleep(0.2)
        committed = cluster.broker.committed(Q0)
        begun = len(worker.begun)
        assert begun > 10
        await asyncio.sleep(1.0)
        assert len(worker.begun) == begun
        assert cluster.broker.committed(Q0) == committed
        with pytest.raises(StateError, match="in doubt"):
            await consumer.holdings.table[Q0].commit()
        del cluster.broker.overrides[LOCK]
        await until(lambda: of_kind(told, LeaseConfirmed))
        await asyncio.sleep(2)
        assert len(worker.begun) > begun + 10
        assert sorted(worker.begun) == sorted(set(worker.begun))
        assert (cluster.broker.committed(Q0) or 0) > (committed or 0)
        assert not of_kind(told, LeaseLost)

    in_virtual_time(scenario)


def test_fenced_handlers_in_threads_begin_nothing_either() -> None:
    """Not even where the event loop has had no time to say so: threads look at the clock themselves."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.from_start(Q0)
        seen: list[bytes] = []
        consumer = cluster.push("c1#1", handover="lease")
        consumer.subscribe("T", "*", lambda message: seen.append(message.body))
        await cluster.launch(consumer)
        cluster.broker.overrides[LOCK] = lambda request: request.reply(1, "no")
        item = consumer.holdings.table[Q0]
        item.holds_until = cluster.clock.monotonic() - 1.0
        cluster.broker.put("T", 0, "a", "b")
        await until(lambda: len(item.shelved) == 2)
        assert seen == []
        del cluster.broker.overrides[LOCK]
        assert consumer.member.leases is not None
        await consumer.member.leases.renew()
        await until(lambda: len(seen) == 2)

    run(on_sockets(scenario))


def test_nothing_of_a_fenced_queue_is_polled() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        feed(cluster, 1, 100)
        consumer = cluster.pull("c1#1", handover="lease", lease_orphan_grace=20.0)
        consumer.subscribe("T")
        await cluster.launch(consumer)
        assert await consumer.poll()
        cluster.broker.overrides[LOCK] = lambda request: request.reply(1, "no")
        await asyncio.sleep(3.6)
        assert await consumer.poll(0.5) == []
        await consumer.commit()
        assert not cluster.broker.of(UPDATE)
        del cluster.broker.overrides[LOCK]
        assert len(await consumer.poll(2.0)) == 10
        await consumer.commit()
        assert cluster.broker.of(UPDATE)

    in_virtual_time(scenario)


def test_nobody_begins_a_queue_while_one_that_was_cut_off_may_still_be_at_it() -> None:
    """The harm "two members read one queue": the broker sees its connection break, the member does not."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        feed(cluster, 2, 5000)
        mine, other = Noting(cluster, "c1#1"), Noting(cluster, "c2#1")
        first, _ = await busy(cluster, mine)
        second, told = await busy(cluster, other, pull_batch_size=32, pull_threshold_for_queue=1000)
        await until(lambda: second.assignment.get("T") == [Q1])
        await asyncio.sleep(1)
        cut = cluster.clock.monotonic()
        cut_off(cluster, "c2#1")
        await until(lambda: Q1 in first.assignment["T"])
        await asyncio.sleep(1)
        again = min(at for at in mine.began(Q1) if at > cut)
        assert cut + 1.9 < max(other.began(Q1)) < cut + 3.1
        assert cut + 5.0 <= again < cut + 6.0
        assert of_kind(told, LeaseFenced) == [Q1]
        assert cluster.network is not None
        cluster.network.mend()

    in_virtual_time(scenario)


def test_one_that_comes_back_late_gives_its_old_lock_back_and_asks_like_anybody_else() -> None:
    """Its lock is still in its name, but another has begun the queue without it, and may be at work."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        feed(cluster, 2, 5000)
        mine, other = Noting(cluster, "c1#1", 0.3), Noting(cluster, "c2#1", 0.3)
        first, _ = await busy(cluster, mine)
        second, told = await busy(cluster, other)
        await until(lambda: second.assignment.get("T") == [Q1])
        await asyncio.sleep(1)
        cut_off(cluster, "c2#1")
        await until(lambda: Q1 in first.assignment["T"])
        await asyncio.sleep(5)
        fenced_until = len(other.begun)
        assert cluster.network is not None
        cluster.network.mend()
        cluster.network.reset(cluster.client_host("c2#1"))
        await until(lambda: of_kind(told, LeaseLost))
        await until(lambda: second.assignment.get("T") == [Q1])
        await asyncio.sleep(2)
        back = other.times[fenced_until][0]
        assert max(mine.began(Q1)) + 0.3 <= back
        numbers = [int(body[2:]) for _, body in other.times[fenced_until:]]
        assert min(numbers) >= max(int(body[2:]) for body in mine.begun if body.startswith("1-"))

    in_virtual_time(scenario)


def test_a_holder_locks_anew_before_it_goes_on_after_its_connection_broke() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        feed(cluster, 1, 5000)
        worker = Noting(cluster, "c1#1", 0.05)
        consumer, told = await busy(cluster, worker)
        await asyncio.sleep(2)
        cluster.broker.asked.clear()
        broke = cluster.clock.monotonic()
        restart(cluster)
        await until(lambda: of_kind(told, LeaseConfirmed))
        assert cluster.clock.monotonic() - broke < 0.1
        assert of_kind(told, LeaseFenced) == [Q0]
        codes = cluster.broker.codes()
        assert codes.index(HEART_BEAT) < codes.index(LOCK)
        granted = cluster.broker.of(LOCK)[0].at
        assert not [at for at in worker.began(Q0) if broke + 0.005 < at < granted]
        await asyncio.sleep(1)
        assert [at for at in worker.began(Q0) if at > granted]
        assert consumer.assignment["T"] == [Q0]
        assert len(worker.begun) == len(set(worker.begun))

    in_virtual_time(scenario)


def test_after_a_broker_came_back_no_others_queue_is_begun_before_the_grace_is_over() -> None:
    """It grants every lock to whoever asks first, and lists only who has come back already."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        feed(cluster, 2, 5000)
        mine, other = Noting(cluster, "c1#1"), Noting(cluster, "c2#1")
        first, _ = await busy(cluster, mine)
        second, _ = await busy(cluster, other)
        await until(lambda: second.assignment.get("T") == [Q1])
        await asyncio.sleep(1)
        before = cluster.clock.monotonic()
        assert cluster.network is not None
        cluster.network.cut(cluster.client_host("c2#1"), cluster.broker.address.split(":")[0])
        restart(cluster)
        await first.rebalance("only the first has come back")
        assert Q1 not in first.assignment["T"]
        await until(lambda: Q1 in first.assignment["T"])
        assert 5.0 <= cluster.clock.monotonic() - before < 6.5
        await asyncio.sleep(1)
        again = min(at for at in mine.began(Q1) if at > before)
        assert max(other.began(Q1)) + other.seconds < again
        cluster.network.mend()

    in_virtual_time(scenario)


def test_the_margin_must_end_before_the_grace() -> None:
    with pytest.raises(ConfigError, match="lease_orphan_grace, which is 2"):
        PushConsumer("g", "127.0.0.1:1", handover="lease", lease_orphan_grace=2.0)
    PushConsumer("g", "127.0.0.1:1", lease_orphan_grace=2.0)
