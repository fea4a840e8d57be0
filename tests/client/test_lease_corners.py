"""Corners of the lease: brokers that move, leases lost while they are handed over, handlers that hang."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gimbalmq.client.events import BalanceEvent, LeaseLost, QueueReleased, QueueTaken
from gimbalmq.client.instance import ClientInstance
from gimbalmq.client.push_consumer import PushConsumer
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.topics import retry_topic
from gimbalmq.protocol.bodies import TopicConfig
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.testing import LocalCluster, MemoryNetwork, VirtualClock, run_virtual
from tests.client.group_peers import GroupCluster, in_virtual_time, until

LOCK = RequestCode.LOCK_BATCH_MQ
UNLOCK = RequestCode.UNLOCK_BATCH_MQ
Q0 = MessageQueue("T", "broker-a", 0)
Q1 = MessageQueue("T", "broker-a", 1)


class Member:
    """A consumer with leases, and what its handler has begun and ended.

    Attributes:
        slow: bodies whose handlers end only when ``go_on`` is set.
    """

    def __init__(self, cluster: GroupCluster, name: str, *slow: str, **options: Any) -> None:
        self.cluster = cluster
        self.slow = slow
        self.go_on = asyncio.Event()
        self.begun: list[str] = []
        self.done: list[str] = []
        self.told: list[BalanceEvent] = []
        self.failing: set[str] = set()
        self.consumer: PushConsumer = cluster.push(
            name, handover="lease", **{"persist_interval": 1000.0, **options}
        )
        self.consumer.subscribe("T", "*", self.handle)
        self.consumer.on_event(self.told.append)

    async def handle(self, message: MessageView) -> bool:
        body = message.body.decode()
        self.begun.append(body)
        if body in self.slow:
            await self.go_on.wait()
        self.done.append(body)
        if body in self.failing:
            self.failing.discard(body)
            return False
        return True

    async def join(self) -> None:
        await self.cluster.launch(self.consumer)

    @property
    def held(self) -> list[MessageQueue]:
        return self.consumer.assignment.get("T", [])

    def saw(self, kind: type[BalanceEvent]) -> list[MessageQueue]:
        return [event.queue for event in self.told if isinstance(event, kind) and hasattr(event, "queue")]


async def soon(condition: Callable[[], object], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        await until(condition)


def holder(cluster: GroupCluster, queue: MessageQueue) -> str:
    """Whose lock the broker has, without the address."""
    return cluster.broker.locks.get(("g", queue.topic, queue.queue_id), "").rpartition("@")[2]


def refuse_locks_of(cluster: GroupCluster, name: str) -> None:
    """Lock requests of one member fail; others get theirs."""
    broker = cluster.broker

    def answer(request: RemotingCommand) -> RemotingCommand | None:
        return request.reply(1, "no") if name.encode() in bytes(request.body) else None

    broker.overrides[LOCK] = answer


def test_a_broker_that_comes_back_at_another_address_is_the_same_broker() -> None:
    """Its locks are asked for again right after it is found; and those of others after the grace, not never."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        cluster.broker.from_start(Q0, Q1)
        cluster.broker.put("T", 0, "before")
        first = Member(cluster, "c1#1", poll_namesrv_interval=2.0)
        second = Member(cluster, "c2#1", poll_namesrv_interval=2.0)
        await first.join()
        await second.join()
        await soon(lambda: first.held == [Q0] and second.held == [Q1] and first.done)
        before = cluster.broker.address
        await cluster.move_broker("broker-a")
        assert cluster.broker.address != before
        cluster.broker.put("T", 0, "after")
        await soon(lambda: first.done == ["before", "after"])
        await second.consumer.close()
        cluster.broker.put("T", 1, "to the other")
        await soon(lambda: "to the other" in first.done)
        assert first.held == [Q0, Q1]
        assert holder(cluster, Q0) == holder(cluster, Q1) == "c1#1"

    in_virtual_time(scenario)


def test_a_lost_lease_gives_its_lock_back_though_the_queue_is_not_wanted_again() -> None:
    """By the time its lease was lost the queue was another's share. Nobody asked for it here any more, and so its
    lock stayed until the broker's 60 s were over."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        cluster.broker.from_start(Q0, Q1)
        cluster.broker.notify_changes = False
        first = Member(cluster, "c1#1")
        await first.join()
        await soon(lambda: first.held == [Q0, Q1])
        refuse_locks_of(cluster, "c1#1")
        second = Member(cluster, "c2#1")
        await second.join()
        await asyncio.sleep(6)
        del cluster.broker.overrides[LOCK]
        await soon(lambda: Q1 in first.saw(LeaseLost))
        await soon(lambda: second.held == [Q1], 5.0)
        await soon(lambda: first.held == [Q0])
        assert holder(cluster, Q1) == "c2#1"

    in_virtual_time(scenario)


def test_the_lock_of_a_lost_lease_is_kept_while_a_handler_is_at_work() -> None:
    """Somebody may have begun the queue already; but nobody else has to."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        cluster.broker.from_start(Q0, Q1)
        cluster.broker.put("T", 1, "slow")
        first = Member(cluster, "c1#1", "slow")
        await first.join()
        await soon(lambda: first.begun)
        second = Member(cluster, "c2#1")
        await second.join()
        await soon(lambda: first.held == [Q0])
        refuse_locks_of(cluster, "c1#1")
        await asyncio.sleep(6)
        del cluster.broker.overrides[LOCK]
        await soon(lambda: Q1 in first.saw(LeaseLost))
        await asyncio.sleep(5)
        assert holder(cluster, Q1) == "c1#1"
        assert second.begun == []
        first.go_on.set()
        await soon(lambda: second.held == [Q1], 5.0)
        await soon(lambda: second.begun == ["slow"])
        assert holder(cluster, Q1) == "c2#1"

    in_virtual_time(scenario)


def test_a_handover_that_waits_touches_nothing_of_a_queue_that_was_lost_and_taken_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        cluster.broker.from_start(Q0, Q1)
        cluster.broker.put("T", 1, "slow")
        first = Member(cluster, "c1#1", "slow", handover_wait=10.0)
        await first.join()
        await soon(lambda: first.begun)
        second = Member(cluster, "c2#1")
        await second.join()
        await soon(lambda: first.held == [Q0])
        refuse_locks_of(cluster, "c1#1")
        await asyncio.sleep(6)
        del cluster.broker.overrides[LOCK]
        await soon(lambda: Q1 in first.saw(LeaseLost))
        await second.consumer.close()
        first.slow = ()
        await soon(lambda: first.held == [Q0, Q1] and len(first.begun) == 2)
        cluster.broker.put("T", 1, "next")
        await soon(lambda: "next" in first.done)
        assert first.consumer.offsets.remembered(Q1) == 2
        cluster.broker.asked.clear()
        released = len(first.saw(QueueReleased))
        first.go_on.set()
        await asyncio.sleep(2)
        assert first.done.count("slow") == 2
        assert first.held == [Q0, Q1]
        assert first.consumer.offsets.remembered(Q1) == 2
        assert not cluster.broker.of(UNLOCK)
        assert holder(cluster, Q1) == "c1#1"
        assert len(first.saw(QueueReleased)) == released
        assert "ended by an error" not in caplog.text

    in_virtual_time(scenario)


def test_a_failed_message_that_cannot_be_sent_back_does_not_meet_the_groups_own_locks() -> None:
    """Apache's 5.x brokers and ours take a plain send to the retry topic of a group with locks for one of an
    ordered consumer, and put it among the dead letters. A lease is such a lock."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.topic(retry_topic("g"), 1)
        cluster.broker.from_start(Q0)
        cluster.broker.overrides[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda request: request.reply(1, "no")
        first = Member(cluster, "c1#1")
        first.failing = {"bad"}
        await first.join()
        cluster.broker.put("T", 0, "bad", "good")
        await soon(lambda: first.done.count("bad") == 2)
        assert cluster.broker.of(RequestCode.SEND_MESSAGE_V2) == []
        await soon(lambda: first.consumer.offsets.remembered(Q0) == 2)

    in_virtual_time(scenario)


def test_one_that_fails_too_often_becomes_a_dead_letter_all_the_same() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.topic(retry_topic("g"), 1)
        cluster.broker.from_start(Q0)
        cluster.broker.overrides[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda request: request.reply(1, "no")
        tried: list[int] = []

        async def handler(message: MessageView) -> bool:
            tried.append(message.reconsume_times)
            return False

        consumer = cluster.push("c1#1", handover="lease", max_reconsume_times=3)
        consumer.subscribe("T", "*", handler)
        await cluster.launch(consumer)
        cluster.broker.put("T", 0, "bad")
        await soon(lambda: cluster.broker.of(RequestCode.SEND_MESSAGE_V2))
        assert tried == [0, 1, 2, 3]
        [sent] = cluster.broker.of(RequestCode.SEND_MESSAGE_V2)
        assert sent.fields["j"] == "4"  # reconsumeTimes: more than maxReconsumeTimes, so a dead letter
        await soon(lambda: consumer.offsets.remembered(Q0) == 1)

    in_virtual_time(scenario)


def test_a_hung_handler_delays_a_handover_by_handover_wait_and_no_longer() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        cluster.broker.from_start(Q0, Q1)
        cluster.broker.put("T", 1, "one", "hung", "three")
        first = Member(cluster, "c1#1", "hung", handover_wait=20.0, consume_threads=1)
        await first.join()
        await soon(lambda: "hung" in first.begun)
        second = Member(cluster, "c2#1", handover_wait=20.0)
        began = cluster.clock.monotonic()
        await second.join()
        await soon(lambda: second.held == [Q1])
        assert 20.0 <= cluster.clock.monotonic() - began < 21.0
        await soon(lambda: second.done == ["hung", "three"])
        assert first.done == ["one"]
        assert first.saw(QueueReleased) == [Q1]
        # What it did comes too late to count.
        first.go_on.set()
        await asyncio.sleep(1)
        assert first.held == [Q0]
        assert second.consumer.offsets.remembered(Q1) == 3

    in_virtual_time(scenario)


def test_close_ends_handlers_that_hang_before_it_gives_the_locks_back() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.from_start(Q0)
        cluster.broker.put("T", 0, "hung")
        ended: list[float] = []

        async def handler(message: MessageView) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(cluster.clock.monotonic())

        consumer = cluster.push("c1#1", handover="lease", await_termination=2.0)
        consumer.subscribe("T", "*", handler)
        await cluster.launch(consumer)
        second = Member(cluster, "c2#1")
        await second.join()
        await asyncio.sleep(1)
        await consumer.close()
        await soon(lambda: second.begun == ["hung"])
        [unlocked] = [asked.at for asked in cluster.broker.of(UNLOCK)][:1]
        assert ended
        assert ended[0] <= unlocked
        assert second.saw(QueueTaken)

    in_virtual_time(scenario)


def test_a_member_that_joins_right_after_a_brokers_restart_leaves_the_locks_to_their_holders() -> None:
    """The broker has forgotten whose they were, and the newcomer had no connection to it that could have broken."""

    async def main(clock: VirtualClock) -> None:
        network = MemoryNetwork()

        async def member(host: str) -> PushConsumer:
            consumer = PushConsumer(
                "g", cluster.namesrv, client_ip=host, network=network.host(host), handover="lease"
            )
            consumer.subscribe("T", "*", lambda message: None)
            await consumer.start(instance=ClientInstance.shared(consumer.config, clock=clock))
            return consumer

        async with LocalCluster(network=network, clock=clock) as cluster:
            cluster.broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2))
            first = await member("10.3.0.1")
            await soon(lambda: len(first.assignment.get("T", [])) == 2)
            network.cut("10.3.0.1", "10.0.0.11")
            await cluster.restart_broker()
            back = clock.monotonic()
            second = await member("10.3.0.2")
            await soon(lambda: len(second.assignment.get("T", [])) == 2)
            assert 5.0 <= clock.monotonic() - back < 7.0
            network.mend()
            await second.close()
            await first.close()

    run_virtual(main)


def test_a_broker_that_moves_while_the_old_connection_hangs_was_restarted_all_the_same() -> None:
    """The route names the new address before anybody sees the old connection break. The new broker grants every lock
    to whoever asks first: nobody asks before it has answered a heartbeat, nor for others' locks before the grace."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        cluster.broker.from_start(Q0, Q1)
        first = Member(cluster, "c1#1", poll_namesrv_interval=2.0)
        second = Member(cluster, "c2#1", poll_namesrv_interval=2.0)
        await first.join()
        await second.join()
        await soon(lambda: first.held == [Q0] and second.held == [Q1])
        assert cluster.network is not None
        old = cluster.broker
        for name in ("c1#1", "c2#1"):
            cluster.network.cut(cluster.client_host(name), old.address.split(":")[0])
        new = await cluster.add_broker("broker-a")
        new.offsets = old.offsets
        cluster.network.cut(cluster.client_host("c1#1"), new.address.split(":")[0])
        new.overrides[RequestCode.HEART_BEAT] = lambda request: request.reply(1, "not yet")
        await soon(lambda: new.of(RequestCode.HEART_BEAT))
        await asyncio.sleep(2)
        assert new.of(LOCK) == []
        del new.overrides[RequestCode.HEART_BEAT]
        await soon(lambda: new.clients("g"))
        heard = cluster.clock.monotonic()
        await second.consumer.rebalance("the first one is not there yet")
        await soon(lambda: Q0 in second.held)
        assert 4.9 <= cluster.clock.monotonic() - heard < 7.0
        cluster.network.mend()
        await old.close()

    in_virtual_time(scenario)
