"""Source, stream and sink on Spark clusters of several processes, and through Spark Connect.

Nothing is registered and nothing is shipped: executors find the formats by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest

from gimbalmq.spark import columns
from gimbalmq.spark.java import find_java
from gimbalmq.testing.cluster import ThreadCluster
from tests.peers.process import HOST, Process, free_port
from tests.spark.conftest import Topic
from tests.spark.submit import Job, spark_environment
from tests.spark.test_sink import read_topic

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

COUNT = 200


@pytest.fixture(scope="module")
def topic(shared_cluster: ThreadCluster) -> Topic:
    topic = Topic(shared_cluster, "clusters")
    topic.send(COUNT, tags=["A", "B"])
    return topic


def check_everything(topic: Topic, folder: Path, master: str, **options: object) -> dict[str, Any]:
    """The whole job; who ran it, for those who want to know."""
    batch_topic, stream_topic = f"{folder.name}-batch", f"{folder.name}-stream"
    namesrv = topic.cluster.namesrv
    with Job(
        "everything",
        folder,
        master=master,
        namesrv=namesrv,
        topic=topic.name,
        batch_topic=batch_topic,
        stream_topic=stream_topic,
        **options,
    ) as job:
        found: dict[str, Any] = job.result()
    assert found["columns"] == list(columns.DEFAULT)
    assert found["batch"] == list(range(COUNT))
    assert found["stream"] == list(range(COUNT))
    for name in (batch_topic, stream_topic):
        views = read_topic(namesrv, name, COUNT)
        assert sorted(int(view.body) for view in views) == list(range(COUNT))
        assert all(view.keys == (f"k{int(view.body)}",) for view in views)
        assert all(view.tags == "AB"[int(view.body) % 2] for view in views)
        assert len({view.get("SPARK_ROW_ID") for view in views}) == COUNT
    return found


@pytest.mark.soak  # its executors are those of a master with workers; test_faults.py has it in the short form
def test_a_local_cluster_of_two_executors(topic: Topic, tmp_path: Path) -> None:
    found = check_everything(topic, tmp_path / "local", "local-cluster[2,1,1024]")
    assert len(found["places"]) == 2, "both executors have read"


class SparkServer(Process):
    """A master or a worker of Spark's own cluster manager."""

    def __init__(self, folder: Path, kind: str, ready: str, *words: object, host: str = HOST) -> None:
        java = {"JAVA_HOME": str(find_java().home), "SPARK_LOCAL_IP": host}
        more = {
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_WORKER_DIR": str(folder / "work"),
            "SPARK_NO_DAEMONIZE": "1",
        }
        super().__init__(
            kind,
            [
                str(Path(pyspark.__path__[0]) / "bin" / "spark-class"),
                f"org.apache.spark.deploy.{kind}",
                *("--host", host, "--webui-port", "0"),
                *map(str, words),
            ],
            log=folder / "log",
            ready=ready,
            environment=spark_environment(folder) | java | more,
        )


@contextmanager
def master_with_workers(folder: Path, *hosts: str) -> Iterator[str]:
    """A master, and a worker of one core for each host, from the pip package."""
    port = free_port()
    address = f"spark://{HOST}:{port}"
    master = SparkServer(folder / "master", "master.Master", "New state: ALIVE", "--port", port)
    workers = [
        SparkServer(
            folder / f"worker-{number}",
            "worker.Worker",
            "Successfully registered with master",
            *("--cores", 1, "--memory", "1g", address),
            host=host,
        )
        for number, host in enumerate(hosts)
    ]
    servers = [master, *workers]
    try:
        for server in servers:
            server.start()
        yield address
    finally:
        for server in reversed(servers):
            server.stop()


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[str]:
    with master_with_workers(tmp_path, HOST, HOST) as address:
        yield address


def test_a_master_with_two_workers(topic: Topic, standalone: str, tmp_path: Path) -> None:
    found = check_everything(topic, tmp_path / "standalone", standalone)
    executors = {Path(place).parent.parent for place in found["places"]}
    assert executors == {tmp_path / f"worker-{number}" / "work" for number in range(2)}


def test_spark_connect(topic: Topic, tmp_path: Path) -> None:
    check_everything(topic, tmp_path / "connect", "local[2]", remote=True)
