"""What a production cluster does to a query: drivers, executors, tasks and brokers that die, queues that come,
messages that go.

The long form of the killing is marked ``soak``. The seed of what is random is in the test's name.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from gimbalmq import sync
from gimbalmq.model.message import Message
from gimbalmq.model.queues import MessageQueue
from gimbalmq.protocol.bodies import TopicConfig
from gimbalmq.rpc import groups, management
from gimbalmq.spark.connection import Connection
from gimbalmq.spark.wire import Wire
from gimbalmq.testing import LocalCluster
from gimbalmq.testing.cluster import ThreadCluster
from tests.peers.driver import eventually
from tests.peers.ours import OurServer
from tests.spark.conftest import Topic
from tests.spark.submit import PATIENCE, Job
from tests.spark.test_clusters import master_with_workers
from tests.spark.test_fetch import SMALL_FILES, remove_old_messages
from tests.spark.test_stream import stream_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

NewTopic = Callable[..., Topic]


def create(namesrv: str, broker: str, name: str, queues: int = 4) -> None:
    wire = Wire(Connection(namesrv=namesrv))
    try:
        config = TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)
        wire.run(management.create_topic(wire, broker, config))
    finally:
        wire.close()


# --- the driver ----------------------------------------------------------------------------------


class Sending:
    """A producer that does not stop for anything; messages are numbered by their bodies."""

    def __init__(self, namesrv: str, topic: str) -> None:
        self.count = 0
        self._namesrv = namesrv
        self._topic = topic
        self._enough = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            with sync.Producer("sending", self._namesrv) as producer:
                while not self._enough.wait(0.1):
                    numbers = range(self.count, self.count + 10)
                    producer.send_batch([Message(self._topic, b"%d" % n, keys=f"k{n}") for n in numbers])
                    self.count += 10
        except BaseException as error:
            self._failure = error

    def __enter__(self) -> Sending:
        self._thread.start()
        return self

    def stop(self) -> int:
        """How many there are, once no more will come."""
        self._enough.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self.count

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join()


def batches_done(checkpoint: Path) -> int:
    """By the newest: Spark keeps the last hundred."""
    names = (entry.name for entry in (checkpoint / "commits").glob("*"))
    return 1 + max((int(name) for name in names if name.isdigit()), default=-1)


def run_and_kill(job: Job, folder: Path, chance: random.Random) -> bool:
    """Ends the driver somewhere in a batch, after each query has finished some that it did not know before.

    False where the machine was too busy for Spark to start: no kill, but one more driver that died.
    """
    more = chance.randint(1, 4)
    checkpoints = [folder / "table-checkpoint", folder / "copy-checkpoint"]
    before = [batches_done(checkpoint) for checkpoint in checkpoints]

    def moved_on() -> bool:
        if job.starved:
            return True
        assert job.running, job.said()
        return all(
            batches_done(checkpoint) >= seen + more
            for checkpoint, seen in zip(checkpoints, before, strict=True)
        )

    eventually(moved_on, bool, "batches of both queries", timeout=PATIENCE, every=0.01)
    if job.starved:
        return False
    # Not a wait for anything: this is the random point.
    time.sleep(chance.uniform(0.0, 1.0))
    assert job.running, job.said()
    job.kill()
    return True


@pytest.mark.parametrize(
    ("kills", "seed"),
    [
        pytest.param(2, 7),
        pytest.param(20, 1, marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)
def test_a_driver_killed_again_and_again_loses_and_repeats_nothing(
    cluster: ThreadCluster, tmp_path: Path, kills: int, seed: int
) -> None:
    """Exactly once in a table; in a topic at least once, and once with ``dropDuplicates``."""
    chance = random.Random(seed)
    told: dict[str, Any] = {
        "namesrv": cluster.namesrv,
        "topic": "endless",
        "copy": "endlessCopy",
        "limit": 30,
    }
    for name in ("endless", "endlessCopy"):
        create(cluster.namesrv, cluster.broker.address, name)
    with Sending(cluster.namesrv, "endless") as sending:
        killed = starts = 0
        while killed < kills:
            starts += 1
            assert starts <= kills + 5, "this machine is too busy for Spark"
            with Job("copying", tmp_path, finish=False, **told) as job:
                killed += run_and_kill(job, tmp_path, chance)
        count = sending.stop()
    with Job("copying", tmp_path, finish=True, **told) as job:
        found = job.result()
    every = list(range(count))
    assert found["table"] == every, f"seed {seed}: {differences(found['table'], count)}"
    check_copies(found, count, f"seed {seed}")


def differences(found: list[int], count: int) -> str:
    times = Counter(found)
    missing = [number for number in range(count) if number not in times]
    twice = [number for number, seen in times.items() if seen > 1]
    return f"{len(missing)} missing {missing[:9]}, {len(twice)} repeated {twice[:9]} of {count}"


def check_copies(found: dict[str, Any], count: int, what: str) -> int:
    """A topic that the sink wrote: nothing is missing, and what is there twice is the same row. How many are."""
    numbers = [number for number, _ in found["copies"]]
    assert set(numbers) == set(range(count)), f"{what}: {differences(numbers, count)}"
    pairs = {(number, row_id) for number, row_id in found["copies"]}
    assert len(pairs) == len({row_id for _, row_id in pairs}) == count, f"{what}: a row has one id"
    assert found["once"] == list(range(count)), f"{what}: {differences(found['once'], count)}"
    return len(numbers) - count


# --- executors and tasks -------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_executors_and_workers_that_die_cost_no_row_and_repeat_none(
    cluster: ThreadCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    """While a topic is read; and while one is written, where only repeated rows may be left of it."""
    count = 4000
    topic = new_topic(cluster)
    topic.send(count, body=lambda number: b"%-2000d" % number)
    create(cluster.namesrv, cluster.broker.address, "afterAll")
    told = {"namesrv": cluster.namesrv, "topic": topic.name, "copy": "afterAll"}
    with Job("hurting", tmp_path, master="local-cluster[2,1,1024]", **told) as job:
        found = job.result()
    kinds = ("executor", "failure", "workers", "writers")
    assert found["marks"] == [f"{kind}-again" for kind in kinds], "all of it has happened"
    assert found["workers"] == list(range(count)), differences(found["workers"], count)
    assert found["executor"] == list(range(count)), differences(found["executor"], count)
    assert check_copies(found, count, "tasks that failed") > 0, "a task that failed had sent something"


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(40_000, id="40000"),
        pytest.param(1_000_000, id="1000000", marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)
def test_rows_written_again_in_another_order_come_once_without_duplicates(tmp_path: Path, count: int) -> None:
    """Tasks fail, are killed and are overtaken by copies of themselves, on two brokers, one of which crashes in the
    middle and comes back; a tenth of the rows are there twice from the start, and stay so."""
    # Spark begins a copy of a slow task only on another host.
    with (
        LocalCluster.in_thread(brokers=2) as cluster,
        master_with_workers(tmp_path, "127.0.0.1", "127.0.0.2") as master,
    ):
        for broker in cluster.brokers:
            create(cluster.namesrv, broker.address, "repeated")
        told = {"namesrv": cluster.namesrv, "copy": "repeated", "count": count}
        with Job("repeating", tmp_path, master=master, **told) as job:
            moved = crash_in_mid_write(cluster, job, tmp_path)
            found = job.result(1800.0)
    assert found["marks"] == ["failure-again", "killed-again", "slow-again"], "all of it has happened"
    assert found["brokers"] == 2
    assert moved > 0, "rows were written while a broker was away"
    assert found["messages"] > count, "tasks that ended early had sent something"
    assert found["ids"] == count and found["ids_of_two_rows"] == 0
    assert (found["once"], found["different"], found["wrong"]) == (count, count - count // 10, [])


def crash_in_mid_write(cluster: ThreadCluster, job: Job, folder: Path) -> int:
    """The second broker is away from when a first task is repeated until the other has got more; how many."""

    def written() -> int:
        return stored(cluster.namesrv, cluster.brokers[0].address, "repeated")

    def repeated() -> bool:
        assert job.running, job.said()
        return any(folder.glob("*-again"))

    eventually(repeated, bool, "a repeated task", timeout=PATIENCE, every=0.01)
    cluster.kill_broker(1)
    before = written()
    after = eventually(written, lambda now: now > before, "rows at the other broker", timeout=PATIENCE)
    cluster.start_broker(1)
    return after - before


def stored(namesrv: str, broker: str, topic: str, queues: int = 4) -> int:
    wire = Wire(Connection(namesrv=namesrv))
    try:
        asked = (groups.max_offset(wire, broker, MessageQueue(topic, "", number)) for number in range(queues))
        return sum(found for found in wire.gather(asked) if isinstance(found, int))
    finally:
        wire.close()


# --- the broker ----------------------------------------------------------------------------------


def memory_query(frame: DataFrame, checkpoint: str, name: str) -> StreamingQuery:
    return (
        frame.selectExpr("cast(cast(body as string) as int) number")
        .writeStream.format("memory")
        .queryName(name)
        .option("checkpointLocation", checkpoint)
        .start()
    )


@contextmanager
def stopped_at_the_end(query: StreamingQuery) -> Iterator[StreamingQuery]:
    try:
        yield query
    finally:
        query.stop()


def seen(spark: SparkSession, name: str) -> list[int]:
    return sorted(row.number for row in spark.sql(f"select number from {name}").collect())


def wait_for_rows(spark: SparkSession, query: StreamingQuery, name: str, count: int) -> list[int]:
    def look() -> list[int]:
        failure = query.exception()
        if failure is not None:
            raise failure
        return seen(spark, name)

    return eventually(look, lambda found: len(found) >= count, f"{count} rows", timeout=PATIENCE)


def test_a_broker_killed_in_mid_stream_is_waited_for(
    spark: SparkSession, tmp_path: Path, checkpoint: str
) -> None:
    with OurServer(tmp_path / "server") as server:
        create(server.namesrv, server.address, "shaken")
        frame = (
            spark.readStream.format("rocketmq")
            .options(namesrv=server.namesrv, startingOffsets="earliest", maxOffsetsPerTrigger=200)
            .options(requestTimeout="2s", pullTimeout="2s", fetchRetries=30, pullBytes="4k")
            .load("shaken")
        )
        sent = 0

        def send(count: int) -> None:
            nonlocal sent
            with sync.Producer("shaking", server.namesrv) as producer:
                for start in range(sent, sent + count, 100):
                    producer.send_batch([Message("shaken", b"%d" % n) for n in range(start, start + 100)])
            sent += count

        send(1000)
        with stopped_at_the_end(memory_query(frame, checkpoint, "shaken")) as query:
            for _ in range(3):
                wait_for_rows(spark, query, "shaken", sent - 900)
                server.kill()
                server.start()
                send(1000)
            assert wait_for_rows(spark, query, "shaken", sent) == list(range(sent))
            query.processAllAvailable()
            assert seen(spark, "shaken") == list(range(sent))


def test_queues_added_while_a_query_runs_are_read_from_their_beginning(
    spark: SparkSession, shared_cluster: ThreadCluster, new_topic: NewTopic, checkpoint: str
) -> None:
    topic = new_topic(shared_cluster, 2)
    topic.send(10)
    frame = stream_of(spark, topic, metadataTtl="200ms")
    with stopped_at_the_end(memory_query(frame, checkpoint, "growing")) as query:
        wait_for_rows(spark, query, "growing", 10)
        for queues in (3, 8):
            topic.set_queues(queues)
            topic.send(20)
            wait_for_rows(spark, query, "growing", topic.sent)
        query.processAllAvailable()
        assert seen(spark, "growing") == list(range(topic.sent))


# --- retention -----------------------------------------------------------------------------------


class Overtaken:
    """A query of small batches, and retention that comes when batch 1 is about to be read, or was read."""

    def __init__(self, frame: DataFrame, topic: Topic, checkpoint: str, *, before: bool) -> None:
        self.found: list[int] = []
        self._topic = topic
        self._before = before
        self.query = (
            frame.select("body")
            .writeStream.foreachBatch(self._keep)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )

    def _keep(self, batch: DataFrame, number: int) -> None:
        if number == 1 and self._before:
            remove_old_messages(self._topic)
        self.found += sorted(int(row.body) for row in batch.collect())
        if number == 1 and not self._before:
            remove_old_messages(self._topic)


@pytest.mark.parametrize("before", [True, False], ids=["in a batch", "between batches"])
def test_retention_that_overtakes_a_running_query_fails_it_or_is_passed_over_as_told(
    spark: SparkSession, new_topic: NewTopic, tmp_path: Path, before: bool
) -> None:
    with LocalCluster.in_thread(properties=SMALL_FILES) as cluster:
        for strict in (True, False):
            topic = new_topic(cluster, 1)
            topic.send(300, body=lambda number: b"%-1000d" % number)
            frame = stream_of(
                spark, topic, maxOffsetsPerTrigger=10, failOnDataLoss="true" if strict else "false"
            )
            running = Overtaken(frame, topic, str(tmp_path / f"strict-{strict}"), before=before)
            read = 10 if before else 20
            if strict:
                with pytest.raises(
                    StreamingQueryException, match=r"DataLossError.*retention.*failOnDataLoss=false"
                ):
                    running.query.awaitTermination()
                assert running.found == list(range(read))
            else:
                running.query.awaitTermination()
                assert running.found[:read] == list(range(read))
                rest = running.found[read:]
                assert rest == list(range(rest[0], 300)) and rest[0] > read
