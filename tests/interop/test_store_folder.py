"""One store folder, opened by our broker and by Apache's in turn: whoever wrote it, the other reads everything.

Each scene starts a first broker, writes, ends it (stopped or killed), and starts the other kind on the same folder
and port. Stopped and killed are spread over the scenes, since a Java broker needs up to 13 s to stop.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.interop.conftest import create_topic, wait_for_route
from tests.peers import subject
from tests.peers.apache import ApacheBroker
from tests.peers.driver import JavaClient, Outgoing, Received, Sent, eventually
from tests.peers.ours import OurBroker
from tests.peers.process import Process, free_port
from tests.peers.subject import APACHE_VERSION, SETTINGS, Cluster

pytestmark = pytest.mark.interop

Broker = OurBroker | ApacheBroker
Watch = Callable[[Process], None]
# Small, so that commit log and consume queue span several files.
SMALL: Mapping[str, object] = {
    "mappedFileSizeCommitLog": 65_536,
    "mappedFileSizeConsumeQueue": 2_000,
    "flushConsumerOffsetInterval": 1_000,
    "transactionCheckMax": 1_000,
}


def written_offsets(file: Path, topic: str, group: str) -> dict[int, int]:
    """A group's offsets as a broker wrote them down; nothing while there is no file, or Java is exchanging it."""
    try:
        text = file.read_text("utf-8")
        # fastjson does not quote numeric keys.
        table = json.loads(re.sub(r"([{,]\s*)(\d+)\s*:", r'\1"\2":', text))["offsetTable"]
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return {int(queue): offset for queue, offset in table.get(f"{topic}@{group}", {}).items()}


@dataclass
class Scene:
    """A folder and a port that brokers take over from each other, and what was sent so far."""

    name: str
    folder: Path
    cluster: Cluster
    java: JavaClient
    watch: Watch

    def __post_init__(self) -> None:
        self.port = free_port()
        self.store = self.folder / "store"
        self.topic = f"{self.name}-topic"
        self.later = f"{self.name}-later"
        self.group = f"{self.name}-group"
        self.transactions = f"{self.name}-transactions"
        self.sent: dict[str, tuple[Outgoing, Sent]] = {}
        self.brokers = 0

    @property
    def settings(self) -> dict[str, object]:
        return {**SETTINGS, **SMALL, "brokerName": self.name}

    def ours(self) -> Broker:
        self.brokers += 1
        folder = self.folder / f"ours-{self.brokers}"
        namesrv = self.cluster.namesrv
        return self._shown(
            subject.broker(folder, namesrv=namesrv, store=self.store, port=self.port, extra=self.settings)
        )

    def apache(self, version: str) -> Broker:
        self.brokers += 1
        folder = self.folder / f"apache-{self.brokers}"
        namesrv = self.cluster.namesrv
        return self._shown(
            ApacheBroker(
                version, folder, namesrv=namesrv, store=self.store, port=self.port, extra=self.settings
            )
        )

    def _shown(self, broker: Broker) -> Broker:
        self.watch(broker)
        return broker

    def write(self, broker: Broker, label: str, count: int = 150) -> None:
        """Messages of every kind; two hundred of them so that files roll."""
        create_topic(self.java, broker.address, self.topic, 2)
        producer = self.java.producer(f"{self.name}-producers")
        plain = [
            Outgoing(
                self.topic,
                f"{label} {i} 消息".encode() + b"." * 300,
                tags=f"t{i % 3}",
                keys=f"{self.name}-{label}-{i}",
                properties={"label": label},
            )
            for i in range(count)
        ]
        special = [
            Outgoing(
                self.topic, f"{label} compressed ".encode() * 900, tags="big", keys=f"{self.name}-{label}-big"
            )
        ]
        for message, result in zip(plain + special, producer.send(*plain, *special), strict=True):
            self.sent[result.message_id] = (message, result)
        batch = [Outgoing(self.topic, f"{label} batch {i}".encode(), tags="b") for i in range(6)]
        joined = producer.send_batch(*batch)
        for i, (message, message_id) in enumerate(zip(batch, joined.message_id.split(","), strict=True)):
            place = Sent(
                joined.status,
                message_id,
                None,
                joined.broker,
                joined.queue_id,
                joined.queue_offset + i,
                None,
                None,
                None,
            )
            self.sent[message_id] = (message, place)
        producer.shutdown()

    def read_all(self) -> list[Received]:
        """A Java consumer reads every message sent so far, each once and as it was sent."""
        wait_for_route(self.java, self.topic)
        reader = self.java.lite_pull(f"{self.name}-reader-{self.brokers}")
        reader.assign(eventually(lambda: reader.fetch_queues(self.topic), bool, "queues"))
        got = reader.poll_for(len(self.sent))
        reader.abandon()
        assert (
            len({(message.queue_id, message.queue_offset) for message in got}) == len(got) == len(self.sent)
        )
        for received in got:
            message, sent = self.sent[received.message_id]
            assert received.body == message.body
            assert (received.tags, received.keys) == (message.tags, message.keys)
            assert (received.queue_id, received.queue_offset) == (sent.queue_id, sent.queue_offset)
            assert dict(message.properties).items() <= dict(received.properties).items()
            if sent.offset_id is not None:
                assert received.offset_id == sent.offset_id
        return got

    def leave_open(self, broker: Broker) -> None:
        """What a broker must carry on with: a delayed message, an open transaction, and a group half way."""
        create_topic(self.java, broker.address, self.later, 1)
        producer = self.java.producer(self.transactions, transactional=True)
        producer.send(Outgoing(self.later, b"delayed", delay_level=7, keys="d"))
        producer.send_in_transaction(
            Outgoing(self.later, b"open", keys="o", properties={"local": "unknown", "check": "commit"})
        )
        producer.shutdown()
        with self.java.lite_pull(self.group, manual_commit=True) as consumer:
            queues = consumer.fetch_queues(self.topic)
            consumer.assign(queues)
            got = consumer.poll_for(len(self.sent))
            assert len(got) == len(self.sent)
            consumer.commit()
            # Of a group's first commits that come at once Apache's broker may keep one; the next ones are kept all.
            consumer.commit()
            ends = {queue.queue_id: consumer.committed(queue) for queue in queues}
        assert sum(ends.values()) == len(self.sent)
        # A broker writes offsets down every few seconds, the first time after ten; a killed one keeps those only.
        file = self.store / "config" / "consumerOffset.json"
        eventually(
            lambda: written_offsets(file, self.topic, self.group),
            lambda offsets: offsets == ends,
            f"{ends} in {file}",
        )

    def carry_on(self) -> None:
        """The delayed message comes, the transaction is checked and committed, the group is where it was."""
        checked = self.java.producer(self.transactions, transactional=True)
        checked.send(Outgoing(self.later, b"so that the producer is known"))
        later = self.java.push(f"{self.name}-later-{self.brokers}", self.later)
        bodies = {b"delayed", b"open", b"so that the producer is known"}
        eventually(later.received, lambda got: {m.body for m in got} == bodies, f"messages {bodies}")
        self.java.shutdown(checked, later, background=True)

        producer = self.java.producer(f"{self.name}-producers")
        consumer = self.java.push(self.group, self.topic)
        message = Outgoing(self.topic, b"next", tags="n")
        (sent,) = producer.send(message)
        self.sent[sent.message_id] = (message, sent)
        assert [received.body for received in consumer.wait_for(1)] == [b"next"]
        self.java.shutdown(producer, consumer)

    def find_by_key(self, label: str) -> None:
        """The key index works: messages of the first and the last file are found."""
        by_key = {message.keys: sent for message, sent in self.sent.values()}
        for i in (0, 149):
            key = f"{self.name}-{label}-{i}"
            query = partial(self.java.try_admin, "queryMsgByKey", "-t", self.topic, "-k", key)
            printed = eventually(query, bool, f"key {key}")
            assert str(printed).count(by_key[key].message_id) == 1


@pytest.fixture
def java(java_clients: dict[str, JavaClient]) -> JavaClient:
    """One client version is enough here: 4.9.8, whose shutdown is quick."""
    return java_clients["4.9.8"]


def end(broker: Broker, how: str) -> None:
    if how == "stopped":
        broker.stop()
    else:
        broker.kill()


# A Java broker that opens a killed broker's folder drops the newest index file and fills it only in part again, so
# keys are looked up where the folder was closed cleanly, or where we opened it.
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("version", "how", "apache_how"), [("5.5.0", "stopped", "killed"), ("4.9.7", "killed", "stopped")]
)
def test_java_broker_opens_our_folder_and_we_open_it_again(
    version: str, how: str, apache_how: str, cluster: Cluster, java: JavaClient, watch: Watch, tmp_path: Path
) -> None:
    scene = Scene(f"folder-o{version[0]}", tmp_path, cluster, java, watch)
    with scene.ours() as ours:
        scene.write(ours, "first")
        scene.leave_open(ours)
        end(ours, how)
    with scene.apache(version) as apache:
        scene.read_all()
        scene.carry_on()
        if how == "stopped":
            scene.find_by_key("first")
        scene.write(apache, "second")
        end(apache, apache_how)
    with scene.ours():
        scene.read_all()
        if apache_how == "stopped" or APACHE_VERSION is None:
            scene.find_by_key("second")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("version", "how", "our_how"), [("5.5.0", "killed", "stopped"), ("4.9.7", "stopped", "killed")]
)
def test_we_open_a_java_brokers_folder_and_java_opens_it_again(
    version: str, how: str, our_how: str, cluster: Cluster, java: JavaClient, watch: Watch, tmp_path: Path
) -> None:
    scene = Scene(f"folder-j{version[0]}", tmp_path, cluster, java, watch)
    with scene.apache(version) as apache:
        scene.write(apache, "first")
        scene.leave_open(apache)
        end(apache, how)
    with scene.ours() as ours:
        scene.read_all()
        scene.carry_on()
        if how == "stopped" or APACHE_VERSION is None:
            scene.find_by_key("first")
        scene.write(ours, "second")
        end(ours, our_how)
    with scene.apache(version):
        scene.read_all()
        if our_how == "stopped":
            scene.find_by_key("second")
