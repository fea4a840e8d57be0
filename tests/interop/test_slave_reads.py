"""Reading from slaves: our consumers with Apache's masters and slaves, Java's with ours.

The masters call nothing in memory (0 percent), so that readers are sent to the slave for every message and back by the
slave; then the master is killed, and it comes back.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gimbalmq import sync
from gimbalmq.client.consumer_config import ConsumeFromWhere
from gimbalmq.client.producer import Producer
from gimbalmq.client.push_consumer import PushConsumer
from gimbalmq.errors import RocketMQError
from gimbalmq.model.message import Message
from gimbalmq.model.queues import MessageQueue
from gimbalmq.protocol.bodies import GroupConfig, TopicConfig
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.rpc import management
from gimbalmq.rpc import messages as message_calls
from gimbalmq.testing import LocalCluster
from gimbalmq.testing.cluster import ThreadCluster
from gimbalmq.transport.channel import Channel
from tests.interop.apache_cluster import SEND_SECONDS, Inbox, off, run, until
from tests.peers.driver import JavaClient, JavaPushConsumer, eventually
from tests.peers.replicas import NEW, OLD, Kind, Replica, ReplicaSet, caught_up

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TOPIC = "Reads"
QUEUES = 2
WATCH_SECONDS = 3.0
"""How long consumers that have nothing to read are watched for the questions they ask."""


# --- our consumers, Apache's pairs ---------------------------------------------------------------


@pytest.fixture(params=[pytest.param(OLD, id="4.9.7"), pytest.param(NEW, id="5.5.0")])
def apache_pair(
    request: pytest.FixtureRequest, java_is_here: None, tmp_path: Path
) -> Iterator[tuple[Replica, Replica, str]]:
    """A master with the topic, and a slave that knows the topic from the start: 5.5.0 copies topics every minute."""
    version: Kind = request.param
    with ReplicaSet(tmp_path, f"reads-{version}") as replicas:
        master = replicas.master(version, extra={"accessMessageInMemoryMaxRatio": 0})
        slave = replicas.replica(version, 1)
        run(_prepare(replicas.namesrv, master.address))
        shutil.copytree(master.store / "config", slave.store / "config")
        slave.start()
        yield master, slave, replicas.namesrv


async def _prepare(namesrv: str, master: str) -> None:
    async with Producer("prepare", namesrv) as producer:
        config = TopicConfig(topic_name=TOPIC, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
        await management.create_topic(producer.instance, master, config)
        await management.update_group(producer.instance, master, GroupConfig(group_name="ours"))


async def _send(producer: Producer, broker: str, sent: list[str], count: int) -> None:
    """To a master that may have come up a moment ago."""
    deadline = time.monotonic() + 60
    for _ in range(count):
        queue = MessageQueue(TOPIC, broker, len(sent) % QUEUES)
        while True:
            try:
                await producer.send(Message(TOPIC, str(len(sent))), queue=queue)
                break
            except RocketMQError:
                assert time.monotonic() < deadline
        sent.append(str(len(sent)))


@pytest.mark.apart
def test_our_consumer_reads_on_at_an_apache_slave(
    apache_pair: tuple[Replica, Replica, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes to the slave and comes back; with the master dead it goes on within seconds and asks no more than once
    a second, though a 5.5.0 slave answers at once; with the master back nothing has come twice."""
    master, slave, namesrv = apache_pair
    asked: list[str] = []
    plain = message_calls.pull

    async def pull(caller: Any, address: str, *arguments: Any, **options: Any) -> Any:
        asked.append(address)
        return await plain(caller, address, *arguments, **options)

    monkeypatch.setattr(message_calls, "pull", pull)

    async def work() -> None:
        inbox, sent = Inbox(), list[str]()
        consumer = PushConsumer(
            "ours",
            namesrv,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            pull_batch_size=2,
            # The way back to the master is to take seconds.
            broker_suspend=3.0,
            poll_namesrv_interval=3.0,
        )
        consumer.subscribe(TOPIC, "*", inbox)
        async with Producer("senders", namesrv, send_timeout=SEND_SECONDS) as producer:
            await _send(producer, master.name_of_broker, sent, 20)
            await off(caught_up, master, slave)
            async with consumer:
                await inbox.wait_for(20)
                assert asked.count(master.address) >= 2 and asked.count(slave.address) >= 2
                consumer.suspend()
                await _send(producer, master.name_of_broker, sent, 40)
                await off(caught_up, master, slave)
                await off(master.kill)
                consumer.resume()
                killed = time.monotonic()
                await inbox.wait_for(60)
                print(f"{master.name}: read on after {time.monotonic() - killed:.1f} s")
                assert time.monotonic() - killed < 15
                await _quiet(asked)
                await off(master.start)
                await until(lambda: asked, lambda seen: master.address in seen, "pulls at the master again")
                await _send(producer, master.name_of_broker, sent, 10)
                await inbox.wait_for(70)
            assert sorted(inbox.bodies, key=int) == sent, "each of them, and once"

    run(work())


async def _quiet(asked: list[str]) -> None:
    """Nothing is to be read, and few questions are asked."""
    await off(time.sleep, 2.0)  # the pauses have grown by then
    asked.clear()
    await off(time.sleep, WATCH_SECONDS)
    queues = QUEUES + 1  # the retry topic has one
    assert len(asked) <= queues * (WATCH_SECONDS + 1), asked
    asked.clear()


# --- Java's consumers, our pair ------------------------------------------------------------------


class CountedPulls:
    """Which group pulled at which of our brokers."""

    def __init__(self) -> None:
        self.seen: Counter[tuple[str, int]] = Counter()

    def of(self, group: str, broker_id: int) -> int:
        return self.seen[group, broker_id]

    def at(self, cluster: ThreadCluster, broker_id: int) -> None:
        broker = cluster.replica(0, broker_id)
        handlers = broker.handlers
        for code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
            plain = handlers.by_code[code]

            def counted(channel: Channel, request: RemotingCommand, plain: Any = plain) -> Any:
                self.seen[(request.ext_fields or {})["consumerGroup"], broker_id] += 1
                return plain(channel, request)

            handlers.by_code[code] = counted
        handlers.batches.clear()


def test_java_consumers_read_on_at_our_slave(both: list[JavaClient]) -> None:
    """Members that live through the death of the master, and members that come while it is dead; in a moment, without a
    busy loop, and without a message twice when it is back."""
    pulls = CountedPulls()
    sent: list[str] = []

    def send(producer: sync.Producer, count: int) -> None:
        for _ in range(count):
            producer.send(
                Message(TOPIC, str(len(sent))), queue=MessageQueue(TOPIC, "broker-a", len(sent) % QUEUES)
            )
            sent.append(str(len(sent)))

    def staying(java: JavaClient) -> str:
        return f"staying-{java.version[0]}"

    def coming(java: JavaClient) -> str:
        return f"coming-{java.version[0]}"

    with LocalCluster.in_thread(replicas=2, properties={"slaveReadEnable": True}) as cluster:
        for broker_id in (0, 1):
            pulls.at(cluster, broker_id)
        cluster.replica(0).store._reader._memory_bytes = 0
        create_topic_at(both[0], cluster)
        slave = cluster.replica(0, 1)
        with sync.Producer("senders", cluster.namesrv) as producer:
            send(producer, 20)
            cluster.in_step()
            eventually(lambda: slave.topics.find(TOPIC), bool, "the topic at the slave")
            stay = [java.push(staying(java), TOPIC, namesrv=cluster.namesrv) for java in both]
            come = [java.push(coming(java), TOPIC, namesrv=cluster.namesrv) for java in both]
            for consumer in (*stay, *come):
                consumer.wait_for(20)
                consumer.wait_until_done(TOPIC, 20)
            for java in both:
                assert min(pulls.of(staying(java), broker_id) for broker_id in (0, 1)) >= 2, pulls.seen
            for java, consumer in zip(both, come, strict=True):
                consumer.shutdown()
                eventually(partial(_progress, slave, coming(java)), (20).__eq__, "progress at the slave")
            send(producer, 20)
            for consumer in stay:
                consumer.wait_for(40)
            cluster.in_step()
            cluster.kill_broker()
            killed = time.monotonic()
            come = [java.push(coming(java), TOPIC, namesrv=cluster.namesrv) for java in both]
            for consumer in come:
                assert _bodies(consumer, 20) == sent[20:]
            print(f"Java: read on {time.monotonic() - killed:.1f} s after the kill")
            for java in both:
                eventually(partial(pulls.of, staying(java), 1), bool, "who stays asks the slave")
            time.sleep(2)
            pulls.seen.clear()
            time.sleep(WATCH_SECONDS)
            assert max(pulls.seen.values(), default=0) <= 2 * (QUEUES + 1), pulls.seen
            cluster.start_broker()
            pulls.at(cluster, 0)
            for java in both:
                eventually(partial(pulls.of, staying(java), 0), bool, "pulls at the master again")
            send(producer, 10)
            for consumer in stay:
                assert _bodies(consumer, 50) == sent
            for consumer in come:
                assert _bodies(consumer, 30) == sent[20:]
            for java in both:
                java.abandon_all()


def create_topic_at(java: JavaClient, cluster: ThreadCluster) -> None:
    where = ("-b", cluster.replica(0).address, "-t", TOPIC)
    java.admin("updateTopic", *where, "-r", str(QUEUES), "-w", str(QUEUES), namesrv=cluster.namesrv)


def _progress(broker: Any, group: str) -> int:
    return sum(max(0, broker.offsets.get(group, TOPIC, queue_id)) for queue_id in range(QUEUES))


def _bodies(consumer: JavaPushConsumer, count: int) -> list[str]:
    return sorted((message.body.decode() for message in consumer.wait_for(count)), key=int)
