"""What the loss of one broker of N costs those who send and read, in virtual time.

    python benchmarks/broker_loss.py [--brokers 1,2,4,8] [--json FILE]

A cluster of N brokers in memory, with the clients of this library: ten producers that each send ten messages a second
and wait for every answer, and four consumers of one group. After 20 seconds one broker is lost, in one of two ways: its
process is killed and back after a second, as ``gimbalmq server --brokers N`` starts it again; or its machine falls
silent, so that nobody refuses a connection, and is back after 30 seconds. The clock is the loop's, so nothing depends
on this machine, and each row is the same in every run. No processor is measured: a message takes no time but that of
the network, 0.2 to 1 ms a way.

- failed: sends that raised an error, of all; those that went to another broker at the second try have not.
- slowest: the longest that a send took.
- late: the longest that a message lay between its acknowledgement and its consumer, and how many lay over a second.
- lost: acknowledged and never consumed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from gimbalmq.client.consumer_config import ConsumeFromWhere, PushConsumerConfig
from gimbalmq.client.instance import ClientInstance
from gimbalmq.client.producer import Producer
from gimbalmq.client.push_consumer import PushConsumer
from gimbalmq.errors import RocketMQError
from gimbalmq.model.message import Message, MessageView
from gimbalmq.protocol.bodies import TopicConfig
from gimbalmq.rpc import management
from gimbalmq.testing import LocalCluster, MemoryNetwork, VirtualClock
from gimbalmq.testing.cluster import NAMESERVER_HOST
from gimbalmq.testing.loop import run_virtual
from gimbalmq.transport.pool import ChannelPool

TOPIC, GROUP = "orders", "readers"
QUEUES = 8
PRODUCERS, CONSUMERS = 10, 4
PERIOD = 0.1
BEFORE, AFTER = 20.0, 60.0
LATE = 1.0


WAYS = {"process": 1.0, "machine": 30.0}
"""What is lost, and for how many seconds."""


@dataclass
class Loss:
    """One row; times are virtual seconds."""

    brokers: int
    way: str
    sent: int = 0
    failed: int = 0
    slowest: float = 0.0
    latest: float = 0.0
    late: int = 0
    lost: int = 0


class Scene:
    """A cluster, its clients, and what they have seen."""

    def __init__(self, loss: Loss, folder: Path, clock: VirtualClock) -> None:
        self.loss = loss
        self.clock = clock
        self.network = MemoryNetwork()
        small = {"mappedFileSizeCommitLog": 1 << 22, "maxHashSlotNum": 500, "maxIndexNum": 2000}
        self.cluster = LocalCluster(
            brokers=loss.brokers, network=self.network, clock=clock, store=folder, properties=small
        )
        self.acknowledged: dict[bytes, float] = {}
        self.consumed: set[bytes] = set()
        self.sending = True

    async def produce(self, producer: Producer, number: int) -> None:
        loss, clock = self.loss, self.clock
        await asyncio.sleep(PERIOD * number / PRODUCERS)
        count = 0
        while self.sending:
            begun = clock.monotonic()
            body = f"{number}-{count}".encode()
            count += 1
            try:
                await producer.send(Message(TOPIC, body))
                self.acknowledged[body] = clock.monotonic()
            except RocketMQError:
                loss.failed += 1
            took = clock.monotonic() - begun
            loss.slowest = max(loss.slowest, took)
            await asyncio.sleep(max(0.0, PERIOD - took))
        loss.sent += count

    async def consume(self, message: MessageView) -> None:
        if message.body in self.consumed:
            return
        self.consumed.add(message.body)
        now = self.clock.monotonic()
        took = now - self.acknowledged.get(message.body, now)
        self.loss.latest = max(self.loss.latest, took)
        self.loss.late += took > LATE


async def scene(loss: Loss, folder: Path, clock: VirtualClock) -> None:
    made = Scene(loss, folder, clock)
    cluster = made.cluster
    async with cluster:
        pool = ChannelPool(network=made.network.host("10.9.0.1"))
        for broker in cluster.brokers:
            config = TopicConfig(topic_name=TOPIC, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
            await management.create_topic(pool, broker.address, config)
        consumers = [_consumer(made, number) for number in range(CONSUMERS)]
        producers = [_producer(made, number) for number in range(PRODUCERS)]
        clients: list[Producer | PushConsumer] = [*consumers, *producers]
        for number, client in enumerate(clients):
            shared = ClientInstance.shared(client.config, clock=clock, rng=Random(number))
            await client.start(instance=shared)
        sending = [asyncio.create_task(made.produce(one, number)) for number, one in enumerate(producers)]
        await asyncio.sleep(BEFORE)
        lost, everybody = _host(cluster, 0), [_host(cluster, number) for number in range(1, loss.brokers)]
        everybody += [NAMESERVER_HOST, *(client.config.client_ip or "" for client in clients)]
        if loss.way == "machine":
            made.network.cut(lost, everybody)
        await cluster.kill_broker(0)
        await asyncio.sleep(WAYS[loss.way])
        made.network.mend()
        await cluster.start_broker(0)
        await asyncio.sleep(AFTER)
        made.sending = False
        await asyncio.gather(*sending)
        await asyncio.sleep(AFTER)
        loss.lost = len(made.acknowledged.keys() - made.consumed)
        for client in reversed(clients):
            await client.close()
        await pool.close()


def _host(cluster: LocalCluster, number: int) -> str:
    return cluster.brokers[number].address.partition(":")[0]


def _producer(made: Scene, number: int) -> Producer:
    host = f"10.3.0.{number + 1}"
    return Producer(
        f"p{number}",
        made.cluster.namesrv,
        client_ip=host,
        instance_name=f"p{number}",
        network=made.network.host(host),
    )


def _consumer(made: Scene, number: int) -> PushConsumer:
    host = f"10.2.0.{number + 1}"
    consumer = PushConsumer(
        config=PushConsumerConfig(
            group=GROUP,
            namesrv=made.cluster.namesrv,
            client_ip=host,
            instance_name=f"c{number}",
            network=made.network.host(host),
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        )
    )
    consumer.subscribe(TOPIC, "*", made.consume)
    return consumer


def measured(brokers: int, way: str) -> Loss:
    loss = Loss(brokers, way)
    with tempfile.TemporaryDirectory(prefix="loss-") as folder:
        run_virtual(lambda clock: scene(loss, Path(folder), clock))
    return loss


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--brokers", type=_numbers, default=[1, 2, 4, 8])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(words)
    logging.disable(logging.CRITICAL)
    print("| lost | brokers | sends | failed | slowest send | latest message | over 1 s late | lost |")
    print("|---|---|---|---|---|---|---|---|")
    rows = []
    for way, seconds in WAYS.items():
        for brokers in args.brokers:
            loss = measured(brokers, way)
            rows.append(asdict(loss))
            print(
                f"| a {way}, {seconds:.0f} s | {brokers} | {loss.sent} | {loss.failed} "
                f"| {loss.slowest * 1000:,.0f} ms | {loss.latest * 1000:,.0f} ms | {loss.late} | {loss.lost} |",
                flush=True,
            )
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
