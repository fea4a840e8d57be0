"""Consumers of a real master and a real slave of ours, in virtual time: where they read, and what comes again."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

from gimbalmq.broker.broker import Broker
from gimbalmq.client.consumer_config import ConsumeFromWhere
from gimbalmq.client.instance import ClientInstance
from gimbalmq.client.producer import Producer
from gimbalmq.client.push_consumer import PushConsumer
from gimbalmq.errors import RocketMQError
from gimbalmq.model.message import Message, MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.testing import LocalCluster, MemoryNetwork, VirtualClock, run_virtual
from gimbalmq.transport.channel import Channel
from tests.client.group_peers import until

QUEUES = 2


class Pair:
    """A master with a slave, a producer, and consumers that keep what they were given."""

    def __init__(self, cluster: LocalCluster, network: MemoryNetwork, clock: VirtualClock) -> None:
        self.cluster = cluster
        self.network = network
        self.clock = clock
        self.clients: list[Any] = []
        self.sent: list[str] = []
        self.pulls: Counter[int] = Counter()
        """Pulls that each replica was asked, by broker id."""

    @property
    def slave(self) -> Broker:
        return self.cluster.replica(0, 1)

    def count_pulls(self, broker: Broker) -> None:
        handlers, broker_id = broker.handlers, broker.live.now.broker_id
        plain = handlers.by_code[RequestCode.PULL_MESSAGE]

        def counted(channel: Channel, request: RemotingCommand) -> Any:
            self.pulls[broker_id] += 1
            return plain(channel, request)

        handlers.by_code[RequestCode.PULL_MESSAGE] = counted
        handlers.batches.clear()

    async def _start(self, client: Any) -> Any:
        self.clients.append(client)
        await client.start(instance=ClientInstance.shared(client.config, clock=self.clock))
        return client

    def _options(self) -> dict[str, Any]:
        host = f"10.3.0.{len(self.clients) + 1}"
        return {"client_ip": host, "network": self.network.host(host)}

    async def producer(self) -> Producer:
        made: Producer = await self._start(Producer("p", self.cluster.namesrv, **self._options()))
        return made

    async def consumer(
        self, handler: Any, *, group: str = "g", ordered: bool | None = None, **options: Any
    ) -> PushConsumer:
        consumer = PushConsumer(
            group,
            self.cluster.namesrv,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            **self._options(),
            **options,
        )
        consumer.subscribe("T", "*", handler, ordered=ordered)
        made: PushConsumer = await self._start(consumer)
        return made

    async def send(self, producer: Producer, count: int) -> None:
        for _ in range(count):
            body = str(len(self.sent))
            await producer.send(
                Message("T", body), queue=MessageQueue("T", "broker-a", len(self.sent) % QUEUES)
            )
            self.sent.append(body)

    async def restart_master(self) -> None:
        self.count_pulls(await self.cluster.start_broker(0))


class Bodies(list[str]):
    async def __call__(self, message: MessageView) -> None:
        self.append(message.body.decode())

    @property
    def again(self) -> int:
        """How many came that had come before."""
        return len(self) - len(set(self))


Scenario = Callable[[Pair, Producer], Coroutine[Any, Any, None]]


def with_pair(scenario: Scenario, namesrv: Mapping[str, object] | None = None, **properties: object) -> None:
    async def main(clock: VirtualClock) -> None:
        network = MemoryNetwork()
        shown: Mapping[str, object] = {
            "autoCreateTopicEnable": True,
            "defaultTopicQueueNums": QUEUES,
            **properties,
        }
        async with LocalCluster(
            replicas=2, properties=shown, namesrv_properties=namesrv, network=network, clock=clock
        ) as cluster:
            pair = Pair(cluster, network, clock)
            for broker in cluster.brokers:
                pair.count_pulls(broker)
            try:
                producer = await pair.producer()
                await pair.send(producer, 10)
                await cluster.in_step()
                await until(lambda: pair.slave.topics.find("T") is not None, 0.1)
                await scenario(pair, producer)
            finally:
                network.mend()
                for client in pair.clients:
                    await client.close()

    run_virtual(main)


def test_far_behind_means_the_slave_and_caught_up_the_master() -> None:
    """S3-18: the master's memory is full at once (0 percent), the slave's never, and readers are sent to and fro."""

    async def scenario(pair: Pair, producer: Producer) -> None:
        master = pair.cluster.replica(0)
        master.store._reader._memory_bytes = 0
        bodies = Bodies()
        await pair.consumer(bodies, pull_batch_size=1)
        await until(lambda: len(bodies) == 10, 0.1)
        await asyncio.sleep(1)
        assert sorted(bodies) == sorted(pair.sent)
        assert pair.pulls[0] >= 2 and pair.pulls[1] >= 2
        assert pair.pulls[0] + pair.pulls[1] == pytest.approx(10 + QUEUES, abs=QUEUES + 1), "none in vain"

    with_pair(scenario, slaveReadEnable=True)


@pytest.mark.parametrize("enabled", [True, False])
def test_reading_goes_on_without_the_master(enabled: bool) -> None:
    """What the slave has is read within seconds, with few questions; nothing comes again when the master is back."""

    async def scenario(pair: Pair, producer: Producer) -> None:
        bodies = Bodies()
        consumer = await pair.consumer(bodies)
        await until(lambda: len(bodies) == 10, 0.1)
        consumer.suspend()
        await asyncio.sleep(20)
        await pair.send(producer, 20)
        await pair.cluster.in_step()
        await pair.cluster.kill_broker(0)
        consumer.resume()
        begun = pair.clock.monotonic()
        await until(lambda: len(bodies) == 30, 0.1)
        assert pair.clock.monotonic() - begun < 5
        pair.pulls.clear()
        await asyncio.sleep(120)
        assert pair.pulls[1] <= QUEUES * 2 * 120 / consumer.config.broker_suspend, (
            "questions are kept at the slave"
        )
        await pair.restart_master()
        await asyncio.sleep(40)
        await pair.send(producer, 10)
        await until(lambda: len(set(bodies)) == 40, 0.1)
        assert bodies.again == 0
        await asyncio.sleep(20)
        assert pair.pulls[0]

    with_pair(scenario, slaveReadEnable=enabled)


def test_pulls_held_at_the_slave_are_answered_when_bytes_arrive() -> None:
    """A group that always reads at the slave (its brokerId is 1) gets each message as soon as it has been copied."""

    async def scenario(pair: Pair, producer: Producer) -> None:
        bodies, times = Bodies(), list[float]()

        async def handler(message: MessageView) -> None:
            times.append(pair.clock.monotonic())
            await bodies(message)

        for broker in pair.cluster.brokers:
            group = broker.groups.find("g")
            assert group is not None
            group.broker_id = 1
        await pair.consumer(handler)
        await until(lambda: len(bodies) == 10, 0.1)
        await asyncio.sleep(1)
        pair.pulls.clear()
        await asyncio.sleep(5)
        assert not pair.pulls, "both questions are held"
        sent = pair.clock.monotonic()
        await pair.send(producer, 1)
        await until(lambda: len(bodies) == 11, 0.01)
        assert times[-1] - sent < 0.1
        assert pair.pulls[0] == 0 and pair.pulls[1] >= 1

    with_pair(scenario, slaveReadEnable=True)


def test_what_comes_again_around_the_death_of_a_master_under_load() -> None:
    """Members that live through it go on from where they are, at the slave and then at the master, whose offsets are as
    old as its death: nothing comes again, and nothing is passed over, also if it had not been copied."""

    async def scenario(pair: Pair, producer: Producer) -> None:
        bodies = Bodies()
        for _ in range(2):
            await pair.consumer(bodies)
        await asyncio.sleep(5)
        again = bodies.again  # the second member takes a queue over
        stop = asyncio.Event()

        async def load() -> None:
            while not stop.is_set():
                with contextlib.suppress(RocketMQError):
                    await pair.send(producer, 1)
                await asyncio.sleep(0.1)

        loading = asyncio.ensure_future(load())
        await asyncio.sleep(10)
        before = len(bodies)
        await pair.cluster.kill_broker(0)
        await asyncio.sleep(30)
        await pair.restart_master()
        await asyncio.sleep(60)
        stop.set()
        await loading
        await asyncio.sleep(20)
        assert before > 90 and len(pair.sent) > before + 250
        assert set(bodies) >= set(pair.sent), "at least once"
        assert bodies.again == again

    with_pair(scenario)


def test_readers_ahead_of_the_slave_wait_there_without_haste() -> None:
    """The slave lacks what the group has read from the master. It says so rarely, and moves nobody back."""

    async def scenario(pair: Pair, producer: Producer) -> None:
        bodies = Bodies()
        await pair.consumer(bodies)
        await until(lambda: len(bodies) == 10, 0.1)
        await until(lambda: pair.slave.topics.find("%RETRY%g") is not None, 0.1)
        hosts = [broker.live.now.bind_address for broker in (pair.cluster.replica(0), pair.slave)]
        pair.network.cut(*hosts)
        pair.network.reset(hosts[1])
        await pair.send(producer, 6)
        await until(lambda: len(bodies) == 16, 0.1)
        await pair.cluster.kill_broker(0)
        pair.network.mend()
        await asyncio.sleep(10)
        pair.pulls.clear()
        await asyncio.sleep(60)
        assert 0 < pair.pulls[1] <= QUEUES * 60
        await pair.restart_master()
        await asyncio.sleep(40)
        await pair.send(producer, 4)
        await until(lambda: len(set(bodies)) == 20, 0.1)
        assert bodies.again == 0

    with_pair(scenario)


def test_who_leaves_while_the_master_is_away_leaves_its_progress_at_the_slave() -> None:
    """And there it is found, until the master is back: its offsets are older, and they count. So what was consumed
    meanwhile comes again, to the last message, and no more than that."""

    async def scenario(pair: Pair, producer: Producer) -> None:
        bodies = Bodies()
        first = await pair.consumer(bodies)
        await until(lambda: len(bodies) == 10, 0.1)
        await asyncio.sleep(6)
        first.suspend()
        await asyncio.sleep(20)
        await pair.send(producer, 20)
        await pair.cluster.in_step()
        await pair.cluster.kill_broker(0)
        first.resume()
        await until(lambda: len(bodies) == 30, 0.1)
        await first.close()
        second = await pair.consumer(bodies)
        await asyncio.sleep(10)
        assert bodies.again == 0, "at the slave it goes on where the first one ended"
        await second.close()
        await pair.restart_master()
        await asyncio.sleep(5)
        await pair.consumer(bodies)
        await asyncio.sleep(20)
        assert bodies.again == 20

    with_pair(scenario)


def test_ordered_and_leased_consumers_wait_for_the_master() -> None:
    """Their locks are the master's. They go on in order when it is back."""

    async def scenario(pair: Pair, producer: Producer) -> None:
        ordered, leased = Bodies(), Bodies()
        await pair.consumer(ordered, group="in-order", ordered=True)
        await pair.consumer(leased, group="leased", handover="lease")
        await until(lambda: len(ordered) == len(leased) == 10, 0.1)
        await asyncio.sleep(12)  # until it is committed, and saved by the master
        await pair.cluster.kill_broker(0)
        await asyncio.sleep(60)
        seen = len(ordered), len(leased)
        assert len(pair.slave.locks) == 0
        await pair.restart_master()
        await asyncio.sleep(40)
        await pair.send(producer, 10)
        await asyncio.sleep(20)
        assert seen == (10, 10)
        for bodies in (ordered, leased):
            assert set(bodies) == set(pair.sent) and bodies.again == 0
            for queue in range(QUEUES):
                own = [body for body in bodies if int(body) % QUEUES == queue]
                assert own == sorted(own, key=int) or bodies is leased

    with_pair(scenario)


def test_slave_that_stands_in_keeps_order_and_progress() -> None:
    """Ordered consumers go on at a slave that stands in, and what was committed there the master takes back: a consumer
    that left meanwhile finds its place."""

    async def scenario(pair: Pair, producer: Producer) -> None:
        ordered, left = Bodies(), Bodies()
        await pair.consumer(ordered, group="in-order", ordered=True)
        leaver = await pair.consumer(left)
        await until(lambda: len(ordered) == len(left) == 10, 0.1)
        await asyncio.sleep(12)
        leaver.suspend()
        await asyncio.sleep(20)
        await pair.send(producer, 20)
        await pair.cluster.in_step()
        await pair.cluster.kill_broker(0)
        await until(lambda: pair.slave.roles.now.acting, 0.1)
        leaver.resume()
        await asyncio.sleep(60)
        assert len(ordered) == len(left) == 30
        assert len(pair.slave.locks) == QUEUES + 1, "the slave gives locks, of the retry topic's queue too"
        await leaver.close()
        await pair.restart_master()
        await until(lambda: pair.cluster.replica(0).roles.now.online, 0.1)
        await pair.consumer(left)
        await asyncio.sleep(40)
        await pair.send(producer, 10)
        await asyncio.sleep(10)
        for bodies in (ordered, left):
            assert set(bodies) == set(pair.sent)
            assert bodies.again == 0
        assert len(pair.cluster.replica(0).locks) == QUEUES + 1

    with_pair(
        scenario,
        {"supportActingMaster": True},
        enableSlaveActingMaster=True,
        totalReplicas=2,
        slaveReadEnable=True,
    )


def test_all_kinds_of_consumers_follow_a_promoted_slave() -> None:
    """It has a copy of the offsets, and gives locks from then on: each kind goes on where it was."""

    async def scenario(pair: Pair, producer: Producer) -> None:
        concurrent, ordered, leased = Bodies(), Bodies(), Bodies()
        await pair.consumer(concurrent)
        await pair.consumer(ordered, group="in-order", ordered=True)
        await pair.consumer(leased, group="leased", handover="lease")
        await until(lambda: len(concurrent) == len(ordered) == len(leased) == 10, 0.1)
        await asyncio.sleep(12)
        await pair.cluster.kill_broker(0)
        await asyncio.sleep(10)
        await pair.cluster.promote_broker(("broker-a", 1))
        promoted, before = pair.clock.monotonic(), len(pair.sent)
        while len(pair.sent) == before:
            with contextlib.suppress(RocketMQError):
                await pair.send(producer, 1)
            await asyncio.sleep(0.1)
        seconds = pair.clock.monotonic() - promoted
        assert seconds < 5
        await pair.send(producer, 19)
        await asyncio.sleep(60)
        for bodies in (concurrent, ordered, leased):
            assert set(bodies) == set(pair.sent)
            assert bodies.again == 0
        assert len(pair.slave.locks) == 2 * (QUEUES + 1)

    with_pair(scenario)
