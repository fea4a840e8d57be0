"""One Spark for the whole session, and clusters of ours for it to read."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pip install 'gimbalmq[spark]'")

from pyspark.sql import SparkSession

from gimbalmq import sync
from gimbalmq.model.message import Message
from gimbalmq.model.queues import MessageQueue
from gimbalmq.protocol.bodies import TopicConfig
from gimbalmq.rpc import management
from gimbalmq.spark.connection import Connection
from gimbalmq.spark.wire import Wire, close_process_wires
from gimbalmq.testing import LocalCluster
from gimbalmq.testing.cluster import ThreadCluster
from tests.spark.jobs import QUICK

# Workers are started as `python3` from PATH unless told otherwise.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """local[2], set as the documentation advises; shuffles small because the data is."""
    folder = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", QUICK)
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[ThreadCluster]:
    """For tests that only need topics of their own."""
    with LocalCluster.in_thread() as cluster:
        yield cluster


@pytest.fixture
def cluster() -> Iterator[ThreadCluster]:
    """For tests that stop brokers or change settings."""
    with LocalCluster.in_thread() as cluster:
        yield cluster


@pytest.fixture(scope="module", autouse=True)
def no_connections_left() -> Iterator[None]:
    yield
    close_process_wires()


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


class Topic:
    """A topic with messages whose bodies are their numbers, spread evenly over its queues."""

    def __init__(self, cluster: ThreadCluster, name: str, queues: int = 4) -> None:
        self.cluster = cluster
        self.name = name
        self.sent = 0
        self.queues = queues
        self.set_queues(queues)

    def set_queues(self, count: int) -> None:
        self.queues = count
        config = TopicConfig(topic_name=self.name, read_queue_nums=count, write_queue_nums=count)
        self.admin(lambda wire, address: wire.run(management.create_topic(wire, address, config)))

    def delete(self) -> None:
        """As mqadmin does it: at the broker and at the name server."""
        self.admin(lambda wire, address: wire.run(management.delete_topic(wire, address, self.name)))

    def admin(self, work: Callable[[Wire, str], object]) -> None:
        wire = Wire(Connection(namesrv=self.cluster.namesrv))
        try:
            for broker in self.cluster.brokers:
                if broker.roles.is_master:
                    work(wire, broker.address)
        finally:
            wire.close()

    def queue(self, queue_id: int) -> MessageQueue:
        return MessageQueue(self.name, self.cluster.broker.live.now.broker_name, queue_id)

    def send(
        self,
        count: int,
        *,
        tags: Sequence[str] | None = None,
        body: Callable[[int], bytes] = lambda number: str(number).encode(),
        row_ids: Sequence[str] | None = None,
    ) -> None:
        """Messages number, number + 1, ...: each to the queue its number says."""
        by_queue: dict[int, list[Message]] = {}
        for index, number in enumerate(range(self.sent, self.sent + count)):
            by_queue.setdefault(number % self.queues, []).append(
                Message(
                    self.name,
                    body(number),
                    tags=None if tags is None else tags[number % len(tags)],
                    keys=[f"k{number}"],
                    properties=None if row_ids is None else {"SPARK_ROW_ID": row_ids[index]},
                )
            )
        self.sent += count
        with sync.Producer("tests", self.cluster.namesrv) as producer:
            for queue_id, messages in by_queue.items():
                producer.send_batch(messages, queue=self.queue(queue_id))


_numbers = itertools.count()


@pytest.fixture
def new_topic() -> Callable[..., Topic]:
    """Makes topics under names of their own."""

    def make(cluster: ThreadCluster, queues: int = 4, name: str | None = None) -> Topic:
        return Topic(cluster, name or f"topic-{next(_numbers)}", queues)

    return make
