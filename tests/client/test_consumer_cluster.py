"""Consumers with our own name server and broker: whole paths, mostly in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from itertools import pairwise
from typing import Any

import pytest

from gimbalmq.client.consumer_config import ConsumeFromWhere
from gimbalmq.client.events import BalanceEvent, MemberExpelled
from gimbalmq.client.instance import ClientInstance
from gimbalmq.client.producer import Producer
from gimbalmq.client.pull_consumer import PullConsumer
from gimbalmq.client.push_consumer import PushConsumer
from gimbalmq.model.message import Message, MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.protocol.bodies import TopicConfig
from gimbalmq.rpc import groups, management
from gimbalmq.testing import LocalCluster, MemoryNetwork, VirtualClock, run_virtual
from tests.client.group_peers import until
from tests.support import run


class World:
    """A cluster, its network and clock, and clients on hosts of their own."""

    def __init__(self, cluster: LocalCluster, network: MemoryNetwork, clock: VirtualClock) -> None:
        self.cluster = cluster
        self.network = network
        self.clock = clock
        self.clients: list[Any] = []
        self.hosts: dict[Any, str] = {}

    async def _start(
        self, kind: Callable[..., Any], group: str, prepare: Callable[[Any], None], **options: Any
    ) -> Any:
        host = f"10.3.0.{len(self.clients) + 1}"
        client = kind(group, self.cluster.namesrv, client_ip=host, network=self.network.host(host), **options)
        prepare(client)
        self.clients.append(client)
        self.hosts[client] = host
        await client.start(instance=ClientInstance.shared(client.config, clock=self.clock))
        return client

    async def producer(self) -> Producer:
        made: Producer = await self._start(Producer, "p", lambda client: None)
        return made

    async def push(self, handler: Any, topic: str = "T", group: str = "g", **options: Any) -> PushConsumer:
        ordered = options.pop("ordered", None)
        options.setdefault("consume_from_where", ConsumeFromWhere.FIRST_OFFSET)
        made: PushConsumer = await self._start(
            PushConsumer,
            group,
            lambda client: client.subscribe(topic, "*", handler, ordered=ordered),
            **options,
        )
        return made

    async def pull(self, topic: str, group: str = "g", **options: Any) -> PullConsumer:
        options.setdefault("consume_from_where", ConsumeFromWhere.FIRST_OFFSET)
        made: PullConsumer = await self._start(
            PullConsumer, group, lambda client: client.subscribe(topic), **options
        )
        return made

    async def topic(self, name: str, queues: int, producer: Producer) -> None:
        """Creates a topic, or gives it another number of queues."""
        config = TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)
        for broker in self.cluster.brokers:
            await management.create_topic(producer.instance, broker.address, config)
        await asyncio.sleep(0.5)

    def kill(self, client: PushConsumer) -> None:
        """The client's host is gone without a word."""
        self.network.reset(self.hosts[client])
        self.network.cut(self.hosts[client], [self.cluster.namesrv.split(":")[0], "10.0.0.11"])


def in_world(
    scenario: Callable[[World], Coroutine[Any, Any, None]], brokers: int | Sequence[str] = 1
) -> None:
    async def main(clock: VirtualClock) -> None:
        network = MemoryNetwork()
        async with LocalCluster(brokers=brokers, network=network, clock=clock) as cluster:
            world = World(cluster, network, clock)
            try:
                await scenario(world)
            finally:
                network.mend()
                for client in world.clients:
                    await client.close()

    run_virtual(main)


async def send_all(producer: Producer, topic: str, queues: int, each: int) -> list[str]:
    bodies = []
    for number in range(queues):
        for item in range(each):
            body = f"{number}-{item}"
            await producer.send(Message(topic, body), queue=MessageQueue(topic, "broker-a", number))
            bodies.append(body)
    return bodies


def held(consumer: PushConsumer, topic: str = "T") -> list[int]:
    return [queue.queue_id for queue in consumer.assignment.get(topic, [])]


def test_failed_messages_come_again_after_10_30_and_60_seconds_and_end_as_dead_letters() -> None:
    """S3-22, S3-23, S3-33, S3-34: through the retry topic with growing delays, original topic shown."""

    async def scenario(world: World) -> None:
        producer = await world.producer()
        await world.topic("T", 2, producer)
        await send_all(producer, "T", 2, 3)
        tries: list[tuple[float, str, int]] = []

        async def handler(message: MessageView) -> bool:
            if message.body == b"1-1":
                tries.append((world.clock.monotonic(), message.topic, message.reconsume_times))
            return message.body != b"1-1"

        await world.push(handler, max_reconsume_times=3)
        await asyncio.sleep(150)
        assert [(topic, times) for _, topic, times in tries] == [("T", 0), ("T", 1), ("T", 2), ("T", 3)]
        pauses = [round(later[0] - earlier[0]) for earlier, later in pairwise(tries)]
        assert pauses == [10, 30, 60]
        dead = await world.pull("%DLQ%g", group="tools")
        letters = await dead.poll(5.0)
        assert [(letter.body, letter.all_properties["RETRY_TOPIC"]) for letter in letters] == [(b"1-1", "T")]

    in_world(scenario)


def test_sixteen_queues_are_shared_by_members_as_they_come_and_go() -> None:
    """S1-07, S0-54, S1-32, S4-03, S4-12, S4-13: 16 queues, 1 to 3 members, each message to one of them."""

    async def scenario(world: World) -> None:
        producer = await world.producer()
        await world.topic("T", 16, producer)
        got: dict[str, list[str]] = {}
        members: list[PushConsumer] = []

        async def join(name: str) -> None:
            got[name] = []

            async def handler(message: MessageView) -> None:
                got[name].append(message.body.decode())

            members.append(await world.push(handler))
            await asyncio.sleep(0.5)

        await join("a")
        assert held(members[0]) == list(range(16))
        await join("b")
        assert [held(member) for member in members] == [list(range(8)), list(range(8, 16))]
        await join("c")
        assert [held(member) for member in members] == [
            list(range(6)),
            list(range(6, 11)),
            list(range(11, 16)),
        ]
        bodies = await send_all(producer, "T", 16, 2)
        await asyncio.sleep(1)
        assert sorted(got["a"] + got["b"] + got["c"]) == sorted(bodies)
        assert {int(body.split("-")[0]) for body in got["b"]} == set(range(6, 11))
        await members[0].close()
        await asyncio.sleep(0.5)
        assert held(members[1]) == list(range(8))
        world.kill(members[1])
        await asyncio.sleep(0.5)
        assert held(members[2]) == list(range(16))

    in_world(scenario)


def test_a_clean_stop_repeats_nothing_and_a_kill_at_most_five_seconds() -> None:
    """S3-30, S3-31, S1-25: a handler of 0.4 s, one at a time. After the stop the next member goes on exactly there;
    after the kill, 4.8 s after the last commit, the 12 messages of these 4.8 s come again, and no other."""

    async def scenario(world: World) -> None:
        producer = await world.producer()
        await world.topic("T", 1, producer)

        async def member() -> tuple[PushConsumer, list[str]]:
            begun: list[str] = []

            async def handler(message: MessageView) -> None:
                begun.append(message.body.decode())
                await asyncio.sleep(0.4)

            # All are pulled at once: pulls that follow would carry progress with them.
            return await world.push(handler, consume_threads=1, pull_batch_size=100), begun

        bodies = await send_all(producer, "T", 1, 60)
        first, begun = await member()
        await asyncio.sleep(3.9)
        await first.close()
        assert begun == bodies[:10]
        second, begun = await member()
        await asyncio.sleep(9.8)
        killed_after = len(begun) + 10 - 1
        assert begun == bodies[10 : killed_after + 1]
        queue = MessageQueue("T", "broker-a", 0)
        committed = await groups.query_offset(producer.instance, world.cluster.broker.address, "g", queue)
        assert committed is not None
        world.kill(second)
        await asyncio.sleep(0.2)
        _, begun = await member()
        await asyncio.sleep(30)
        assert begun == bodies[committed:]
        assert 11 <= killed_after - committed <= 12

    in_world(scenario)


def test_every_broker_lists_all_members() -> None:
    """S1-10, S1-13: consumers register with every broker of their topics, so each gives the same complete list."""

    async def scenario(world: World) -> None:
        producer = await world.producer()
        for broker, topics in zip(world.cluster.brokers, ("TU", "T", "TV"), strict=True):
            for topic in topics:
                config = TopicConfig(topic_name=topic, read_queue_nums=2, write_queue_nums=2)
                await management.create_topic(producer.instance, broker.address, config)
        await asyncio.sleep(0.5)

        async def nothing(message: MessageView) -> None:
            return None

        async def lists() -> list[list[str]]:
            return [
                sorted(await groups.member_ids(producer.instance, broker.address, "g") or [])
                for broker in world.cluster.brokers
            ]

        members: list[PushConsumer | PullConsumer] = [await world.push(nothing) for _ in range(3)]
        members.append(await world.pull("T"))
        everybody = sorted(member.client_id for member in members)
        assert len(set(everybody)) == 4
        assert await lists() == [everybody] * 3
        gone = members.pop(1)
        left = sorted(member.client_id for member in members)
        await gone.close()
        assert await lists() == [left] * 3
        await world.cluster.restart_broker(1)
        await asyncio.sleep(20)
        assert await lists() == [left] * 3

    in_world(scenario, brokers=3)


def test_a_resized_topic_is_shared_anew_without_a_restart() -> None:
    """S1-06, S4-17 in the client: more queues, then a stop and start of the broker, nothing else changed."""

    async def scenario(world: World) -> None:
        producer = await world.producer()
        await world.topic("T", 2, producer)
        got: list[str] = []

        async def handler(message: MessageView) -> None:
            got.append(message.body.decode())

        consumer = await world.push(handler, poll_namesrv_interval=5.0)
        assert held(consumer) == [0, 1]
        await world.topic("T", 6, producer)
        await asyncio.sleep(6)
        assert held(consumer) == list(range(6))
        bodies = await send_all(producer, "T", 6, 1)
        await asyncio.sleep(1)
        assert sorted(got) == bodies

    in_world(scenario)


def test_a_broker_that_goes_and_comes_takes_its_queues_with_it() -> None:
    """S1-06, S1-09: two masters of 8 queues; with one gone the other's 8 are shared, later all 16 again."""

    async def scenario(world: World) -> None:
        producer = await world.producer()
        config = TopicConfig(topic_name="T", read_queue_nums=8, write_queue_nums=8)
        for broker in world.cluster.brokers:
            await management.create_topic(producer.instance, broker.address, config)
        await asyncio.sleep(0.5)
        got: list[str] = []

        async def handler(message: MessageView) -> None:
            got.append(message.body.decode())

        consumers = [await world.push(handler, poll_namesrv_interval=5.0) for _ in range(2)]
        await asyncio.sleep(1)
        assert [len(consumer.assignment["T"]) for consumer in consumers] == [8, 8]
        await world.cluster.stop_broker(1)
        await asyncio.sleep(7)
        assert [len(consumer.assignment["T"]) for consumer in consumers] == [4, 4]
        assert {queue.broker_name for one in consumers for queue in one.assignment["T"]} == {"broker-a"}
        await world.cluster.start_broker(1)
        await asyncio.sleep(12)
        assert [len(consumer.assignment["T"]) for consumer in consumers] == [8, 8]
        for name in ("broker-a", "broker-b"):
            for number in range(8):
                queue = MessageQueue("T", name, number)
                await producer.send(Message("T", f"{name} {number}"), queue=queue)
        await asyncio.sleep(2)
        assert len(got) == len(set(got)) == 16

    in_world(scenario, brokers=2)


def test_a_restarted_broker_is_consumed_from_again_within_seconds() -> None:
    """Connection lost, membership forgotten by the broker: the member comes back and goes on where it was."""

    async def scenario(world: World) -> None:
        producer = await world.producer()
        await world.topic("T", 2, producer)
        got: list[str] = []

        async def handler(message: MessageView) -> None:
            got.append(message.body.decode())

        consumer = await world.push(handler)
        await send_all(producer, "T", 2, 3)
        await asyncio.sleep(6)
        await world.cluster.restart_broker()
        await asyncio.sleep(5)
        await producer.send(Message("T", "after"), queue=MessageQueue("T", "broker-a", 1))
        await asyncio.sleep(2)
        assert got[-1] == "after"
        assert len(got) == 7
        assert held(consumer) == [0, 1]

    in_world(scenario)


@pytest.mark.parametrize("handover", ["java", "lease"])
def test_a_member_that_falls_silent_is_noticed_in_seconds_and_may_come_back(handover: str) -> None:
    """As a stopped process is: its connection stands, but nothing comes. It goes on where the others are."""

    async def scenario(world: World) -> None:
        producer = await world.producer()
        await world.topic("T", 2, producer)
        at_work: list[tuple[float, str, str]] = []

        def handler(name: str) -> Any:
            async def handle(message: MessageView) -> None:
                at_work.append((world.clock.monotonic(), name, message.body.decode()))
                await asyncio.sleep(0.02)

            return handle

        first = await world.push(handler("first"), handover=handover)
        second = await world.push(handler("second"), handover=handover)
        told: list[BalanceEvent] = []
        second.on_event(told.append)
        await until(lambda: len(held(first)) == len(held(second)) == 1)
        lost = held(second)[0]
        await asyncio.sleep(6)
        world.network.cut(world.hosts[second], "10.0.0.11")
        silent = world.clock.monotonic()
        await until(lambda: held(first) == [0, 1])
        assert 6.0 < world.clock.monotonic() - silent < (12.0 if handover == "java" else 17.0)
        await send_all(producer, "T", 2, 5)
        await asyncio.sleep(6)
        handled = {body for _, name, body in at_work if name == "first"}
        assert len(handled) == 10
        world.network.mend()
        await until(lambda: any(isinstance(event, MemberExpelled) for event in told))
        await until(lambda: held(second) == [lost] and held(first) == [1 - lost])
        await asyncio.sleep(2)
        await producer.send(Message("T", "after"), queue=MessageQueue("T", "broker-a", lost))
        await until(lambda: at_work[-1][2] == "after")
        assert [body for _, name, body in at_work if name == "second"] == ["after"]

    in_world(scenario)


def test_a_member_may_do_without_signs_of_life() -> None:
    async def scenario(world: World) -> None:
        producer = await world.producer()
        await world.topic("T", 2, producer)
        first = await world.push(print)
        second = await world.push(print, liveness_interval=0.0)
        await until(lambda: len(held(first)) == len(held(second)) == 1)
        world.network.cut(world.hosts[second], "10.0.0.11")
        await asyncio.sleep(60)
        assert len(held(first)) == 1
        await until(lambda: held(first) == [0, 1])
        world.network.mend()

    in_world(scenario)


@pytest.mark.parametrize("handover", ["java", "lease"])
def test_no_queue_is_silent_for_more_than_tens_of_milliseconds_when_members_join_and_leave(
    handover: str,
) -> None:
    """A message every 44 ms for each queue, a handler of 20 ms; a pull refused with 24 or 25 would cost 1 s."""

    async def scenario(world: World) -> None:
        producer = await world.producer()
        queues = 8
        await world.topic("T", queues, producer)
        handled: dict[int, list[float]] = {number: [] for number in range(queues)}

        async def handler(message: MessageView) -> None:
            handled[message.queue_id].append(world.clock.monotonic())
            await asyncio.sleep(0.02)

        async def source() -> None:
            while True:
                for number in range(queues):
                    await producer.send(Message("T", "x"), queue=MessageQueue("T", "broker-a", number))
                    await asyncio.sleep(0.005)

        members = [await world.push(handler, handover=handover)]
        sending = asyncio.ensure_future(source())
        await asyncio.sleep(2)
        for _ in range(3):
            members.append(await world.push(handler, handover=handover))
            await asyncio.sleep(2)
        await members.pop().close()
        await asyncio.sleep(2)
        sending.cancel()
        longest = max(later - earlier for times in handled.values() for earlier, later in pairwise(times))
        print(f"\n{handover}: {1000 * longest:.0f} ms")
        assert longest < 0.12

    in_world(scenario)


def test_leases_on_our_broker_deliver_each_message_once() -> None:
    """Three joins and a leave under load; ordered by queue, every message exactly once."""

    async def scenario(world: World) -> None:
        producer = await world.producer()
        await world.topic("T", 6, producer)
        bodies = await send_all(producer, "T", 6, 60)
        done: list[str] = []

        async def handler(message: MessageView) -> None:
            await asyncio.sleep(0.05)
            done.append(message.body.decode())

        members = []
        for _ in range(3):
            members.append(await world.push(handler, handover="lease", consume_threads=4, strategy="STICKY"))
            await asyncio.sleep(0.6)
        await members[0].close()
        await until(lambda: len(done) >= len(bodies))
        await asyncio.sleep(2)
        assert sorted(done) == sorted(bodies)

    in_world(scenario)


def test_a_waiting_pull_is_answered_as_soon_as_a_message_arrives() -> None:
    """S3-01, S0-26: real sockets, real time; well under the 15 s after which the client would ask again."""

    async def scenario() -> None:
        async with LocalCluster() as cluster, Producer("p", cluster.namesrv) as producer:
            await producer.send(Message("T", "first"))
            got: list[str] = []
            arrived = asyncio.Event()

            async def handler(message: MessageView) -> None:
                got.append(message.body.decode())
                arrived.set()

            consumer = PushConsumer("g", cluster.namesrv, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
            consumer.subscribe("T", "*", handler)
            async with consumer:
                await arrived.wait()
                await asyncio.sleep(0.2)
                for number in range(5):
                    arrived.clear()
                    await producer.send(Message("T", str(number)))
                    await asyncio.wait_for(arrived.wait(), 5.0)
            assert got == ["first", "0", "1", "2", "3", "4"]

    run(scenario())
