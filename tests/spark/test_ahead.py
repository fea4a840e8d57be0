"""Pulling ahead: what is laid down comes once and unchanged, is bounded, and is never needed."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from gimbalmq.model.queues import MessageQueue
from gimbalmq.spark import ahead, pulled_ahead
from gimbalmq.spark.ahead import Ahead, Expectations, is_of
from gimbalmq.spark.options import SourceSettings
from gimbalmq.spark.planning import Partition, QueueRange
from gimbalmq.spark.pulled_ahead import Puller, Work, lay, take, take_head
from gimbalmq.spark.source import TopicPartition
from gimbalmq.testing.cluster import ThreadCluster
from tests.spark.conftest import Topic
from tests.spark.test_stream import Driver

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the system has no memfd")

QUEUE = MessageQueue("t", "b", 0)
ABOVE = ahead._above()[0][0]
"""Some process that this one belongs to, in the place of Spark's JVM."""
NAMES = ("queueId", "offset", "body")


def rows(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"offset": pa.array(range(first, first + count), pa.int64())})


@pytest.fixture
def laying(tmp_path: Path) -> Iterator[Callable[[pa.RecordBatch, QueueRange], str]]:
    held: list[int] = []

    def put(batch: pa.RecordBatch, wanted: QueueRange) -> str:
        path, memory = lay(str(tmp_path), batch, wanted)
        held.append(memory)
        return path

    yield put
    for memory in held:
        os.close(memory)


Laying = Callable[[pa.RecordBatch, QueueRange], str]
T = TypeVar("T")


# --- what lies in a folder -----------------------------------------------------------------------


def test_what_is_laid_down_is_taken_once(tmp_path: Path, laying: Laying) -> None:
    laying(rows(10, 5), QueueRange(QUEUE, 10, 15))
    found = take(str(tmp_path), QueueRange(QUEUE, 10, 100))
    assert found is not None and found == (rows(10, 5), 15)
    assert found[0].schema.metadata is None
    assert take(str(tmp_path), QueueRange(QUEUE, 10, 100)) is None
    assert not list(tmp_path.iterdir())


def test_it_is_there_for_other_processes(tmp_path: Path, laying: Laying) -> None:
    laying(rows(10, 5), QueueRange(QUEUE, 10, 15))
    program = (
        "import sys; from gimbalmq.spark.pulled_ahead import take;"
        "from gimbalmq.model.queues import MessageQueue; from gimbalmq.spark.planning import QueueRange;"
        "print(take(sys.argv[1], QueueRange(MessageQueue('t', 'b', 0), 10, 99))[0].column(0).to_pylist())"
    )
    told = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], check=True, capture_output=True, text=True
    )
    assert told.stdout.strip() == "[10, 11, 12, 13, 14]"


def test_a_range_that_turned_out_shorter_gets_what_is_in_it(tmp_path: Path, laying: Laying) -> None:
    laying(rows(10, 5), QueueRange(QUEUE, 10, 15))
    assert take(str(tmp_path), QueueRange(QUEUE, 10, 12)) == (rows(10, 2), 12)
    laying(rows(10, 4), QueueRange(QUEUE, 10, 15))  # one offset of them has no row: nobody knows which
    assert take(str(tmp_path), QueueRange(QUEUE, 10, 12)) is None


def test_a_link_to_anything_else_is_passed_over(tmp_path: Path, laying: Laying) -> None:
    wanted = QueueRange(QUEUE, 10, 99)
    path = laying(rows(10, 5), wanted)
    other = laying(rows(20, 5), QueueRange(QUEUE, 20, 25))
    os.replace(other, path)
    assert take(str(tmp_path), wanted) is None
    (tmp_path / "file").write_bytes(b"x" * 100)
    os.mkfifo(tmp_path / "pipe")
    for target in (tmp_path / "file", tmp_path / "pipe", tmp_path, "/proc/1/fd/999999"):
        os.symlink(target, path)
        assert take(str(tmp_path), wanted) is None
        Path(path).unlink(missing_ok=True)


def test_the_beginning_of_a_partition_is_taken_up_to_the_first_gap(tmp_path: Path, laying: Laying) -> None:
    second = MessageQueue("t", "b", 1)
    partition = (QueueRange(QUEUE, 0, 4), QueueRange(second, 7, 20))
    laying(rows(0, 3), QueueRange(QUEUE, 0, 3))
    laying(rows(3, 1), QueueRange(QUEUE, 3, 4))
    laying(rows(7, 2), QueueRange(second, 7, 9))
    laying(rows(12, 2), QueueRange(second, 12, 14))
    taken, left = take_head(str(tmp_path), partition)
    assert [batch.num_rows for batch in taken] == [3, 1, 2]
    assert left == (QueueRange(second, 9, 20),)
    assert take_head(str(tmp_path / "later"), partition) == ([], partition)
    assert take_head("/proc/nowhere", partition) == ([], partition)


def test_memory_of_another_query_is_passed_over(tmp_path: Path) -> None:
    """Which a link leads to if its process has gone, and a later one has its number."""
    wanted = QueueRange(QUEUE, 10, 15)
    mine, others = tmp_path / "mine", tmp_path / "others"
    mine.mkdir()
    others.mkdir()
    _, memory = lay(str(others), rows(10, 5), wanted)
    try:
        os.symlink(f"/proc/{os.getpid()}/fd/{memory}", pulled_ahead._path(str(mine), QUEUE, 10))
        assert take(str(mine), wanted) is None
        assert take(str(others), wanted) == (rows(10, 5), 15)
    finally:
        os.close(memory)


def test_a_link_that_leads_to_no_memory_of_ours_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100)
    with open(tmp_path / "file", "rb") as file:
        os.symlink(f"/proc/{os.getpid()}/fd/{file.fileno()}", pulled_ahead._path(str(tmp_path), QUEUE, 10))
        opened: list[object] = []
        monkeypatch.setattr("os.open", lambda *told: opened.append(told))
        assert take(str(tmp_path), QueueRange(QUEUE, 10, 15)) is None
    assert not opened


def test_folders_do_not_gather_if_nobody_pulls(tmp_path: Path) -> None:
    for number in range(1, 6):
        take_head(str(tmp_path / "query" / str(number)), (QueueRange(QUEUE, 0, 4),))
    assert sorted(path.name for path in (tmp_path / "query").iterdir()) == ["4", "5"]
    assert (tmp_path / "query").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_spark_has_removed_stays_away(tmp_path: Path) -> None:
    partition = (QueueRange(QUEUE, 0, 4),)
    assert take_head(str(tmp_path / "gone" / "query" / "1"), partition) == ([], partition)
    assert not list(tmp_path.iterdir())


# --- a worker that pulls -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def filled(shared_cluster: ThreadCluster) -> Topic:
    topic = Topic(shared_cluster, "ahead-filled")
    topic.send(4000, body=lambda number: str(number).encode().rjust(100))
    return topic


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Pulling:
    """A puller, and what it is told."""

    def __init__(self, topic: Topic, folder: Path, **options: object) -> None:
        given = {
            "namesrv": topic.cluster.namesrv,
            "subscribe": topic.name,
            "pullBytes": "16k",
            "fetchRetries": 1,
        }
        self.settings = SourceSettings.read(
            {key: str(value) for key, value in (given | options).items()}, streaming=True
        )
        self.clock = Clock()
        self.puller = Puller(self.clock)
        self.heads: tuple[Partition, ...] = tuple(
            (QueueRange(topic.queue(number), 0, 1000),) for number in range(4)
        )
        addresses = {topic.queue(0).broker_name: topic.cluster.broker.address}
        self.folder = folder / "query" / "1"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.ahead = Ahead(str(self.folder), self.heads, addresses, ABOVE)

    def pull(self) -> None:
        self.puller.task_ended(Work(self.settings, NAMES, self.ahead))
        assert self.puller.wait_until_done(10)

    def taken(self, number: int) -> tuple[list[int], Partition]:
        batches, left = take_head(str(self.folder), self.heads[number])
        return [offset for batch in batches for offset in batch.column("offset").to_pylist()], left


def test_a_worker_without_a_task_pulls_what_comes_next(filled: Topic, tmp_path: Path) -> None:
    pulling = Pulling(filled, tmp_path)
    pulling.pull()
    assert [pulling.taken(number) for number in range(4)] == [(list(range(1000)), ())] * 4


def test_no_more_than_it_may_hold(filled: Topic, tmp_path: Path) -> None:
    pulling = Pulling(filled, tmp_path, pullAheadBytes="60k")
    pulling.pull()
    assert 40_000 < pulling.puller.held_bytes <= 60 << 10
    offsets, left = pulling.taken(0)
    assert 300 < len(offsets) < 1000
    assert offsets == list(range(len(offsets)))
    assert left == (QueueRange(filled.queue(0), len(offsets), 1000),)
    pulling.pull()  # what was taken makes room, but the first head is in work
    assert pulling.taken(0)[0] == []
    assert pulling.taken(1)[0][:3] == [0, 1, 2]


def test_descriptors_are_left_for_the_tasks(filled: Topic, tmp_path: Path) -> None:
    pulling = Pulling(filled, tmp_path, pullBytes="1k")
    pulling.pull()
    assert len(pulling.puller._held) == pulled_ahead.MOST_HELD


def test_pulls_larger_than_what_may_be_held_are_made_smaller(filled: Topic, tmp_path: Path) -> None:
    pulling = Pulling(filled, tmp_path, pullBytes="8m", pullAheadBytes="100k")
    pulling.pull()
    assert 50_000 < pulling.puller.held_bytes <= 100 << 10
    assert pulling.taken(0)[0][:3] == [0, 1, 2]


def test_a_machine_without_threads_pulls_nothing_ahead(
    filled: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulling = Pulling(filled, tmp_path)

    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as now:
        now.setattr(threading.Thread, "start", no_thread)
        pulling.pull()
    assert not list(pulling.folder.iterdir())
    pulling.pull()  # there is one again
    assert len(pulling.taken(0)[0]) == 1000


def test_two_workers_pull_different_heads(filled: Topic, tmp_path: Path) -> None:
    first, second = (Pulling(filled, tmp_path, pullAheadBytes="60k") for _ in range(2))
    first.pull()
    first.pull()  # it has no room for more, and leaves that to others
    second.pull()
    assert first.taken(0)[0] and first.taken(1)[0]
    assert not first.taken(2)[0]


class Watched(threading.Condition):
    """Says when the thread waits whether another task comes."""

    def __init__(self) -> None:
        super().__init__()
        self.resting = threading.Event()

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        if threading.current_thread().name == "gimbalmq-ahead":
            self.resting.set()
        return super().wait_for(predicate, timeout)


def test_a_task_that_comes_at_once_is_not_disturbed(
    filled: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulled_ahead, "REST_SECONDS", 0.1)
    pulling, later = Pulling(filled, tmp_path / "first"), Pulling(filled, tmp_path / "second")
    pulling.puller._changed = watched = Watched()
    pulling.puller.task_ended(Work(pulling.settings, NAMES, pulling.ahead))
    assert watched.resting.wait(10)
    pulling.puller.task_begins()
    pulling.puller.task_ended(Work(later.settings, NAMES, later.ahead))
    assert pulling.puller.wait_until_done(10)
    assert not list(pulling.folder.iterdir())
    assert len(later.taken(0)[0]) == 1000


def test_a_task_that_begins_ends_it(filled: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pulling = Pulling(filled, tmp_path)
    laid: list[QueueRange] = []

    def lay_and_begin(folder: str, batch: pa.RecordBatch, wanted: QueueRange) -> tuple[str, int]:
        laid.append(wanted)
        pulling.puller._turn += 1  # as task_begins does, which would wait for this
        return lay(folder, batch, wanted)

    monkeypatch.setattr(pulled_ahead, "lay", lay_and_begin)
    pulling.pull()
    assert len(laid) == 1
    offsets, _ = pulling.taken(0)
    assert offsets == list(range(laid[0].start, laid[0].end))


def test_what_a_task_reads_already_is_not_pulled(filled: Topic, tmp_path: Path) -> None:
    pulling = Pulling(filled, tmp_path)
    assert pulling.taken(0) == ([], pulling.heads[0])
    pulling.pull()
    assert pulling.taken(0)[0] == []
    assert len(pulling.taken(1)[0]) == 1000


def test_what_nobody_takes_is_given_up_and_not_tried_again(filled: Topic, tmp_path: Path) -> None:
    pulling = Pulling(filled, tmp_path)
    pulling.pull()
    pulling.clock.now = pulled_ahead.KEPT_SECONDS
    pulling.pull()
    assert pulling.puller.held_bytes == 0
    assert not [path for path in pulling.folder.iterdir() if path.is_symlink()]
    pulling.folder = tmp_path / "query" / "2"
    pulling.folder.mkdir()
    pulling.ahead = pulling.ahead._replace(folder=str(pulling.folder))
    pulling.pull()
    assert not list(pulling.folder.iterdir())


def test_a_broker_that_is_away_is_the_task_s_to_tell(
    filled: Topic, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pulling = Pulling(filled, tmp_path, connectTimeout="1s")
    pulling.ahead = pulling.ahead._replace(addresses={filled.queue(0).broker_name: "127.0.0.1:1"})
    pulling.pull()
    assert pulling.taken(0)[0] == []
    assert not caplog.records


def test_messages_that_are_gone_are_the_task_s_to_tell(
    filled: Topic, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pulling = Pulling(filled, tmp_path, failOnDataLoss="false")
    pulling.heads = ((QueueRange(filled.queue(0), 5000, 6000),),)
    pulling.ahead = pulling.ahead._replace(heads=pulling.heads)
    pulling.pull()
    assert pulling.taken(0)[0] == []
    assert not caplog.records


# --- the planner ---------------------------------------------------------------------------------


def test_processes_are_told_from_later_ones_of_their_number() -> None:
    assert is_of(ABOVE)
    assert not is_of(ABOVE._replace(started=ABOVE.started + 1))


def test_a_planner_of_no_spark_expects_nothing() -> None:
    assert Expectations().expect([(QueueRange(QUEUE, 0, 10),)], {}) is None


@pytest.fixture
def spark_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ahead, "spark_above", lambda: ABOVE)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")


def test_a_folder_is_below_the_first_of_spark_s_and_only_in_its_own_workers(
    spark_here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Expectations().expect([(QueueRange(QUEUE, 0, 10),)], {})
    assert told is not None
    found = pulled_ahead.here(told)
    assert found is not None and found.folder == f"{tmp_path}/{told.folder}"
    assert pulled_ahead.here(told._replace(spark=ABOVE._replace(started=1))) is None
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    assert pulled_ahead.here(told) is None


def test_folders_go_when_their_batch_has_been_read(filled: Topic, tmp_path: Path) -> None:
    pulling = Pulling(filled, tmp_path)
    for number in (1, 2, 3):
        pulling.folder = tmp_path / "query" / str(number)
        pulling.ahead = pulling.ahead._replace(folder=str(pulling.folder))
        pulling.pull()
    assert sorted(path.name for path in (tmp_path / "query").iterdir()) == ["2", "3"]


@pytest.fixture
def driving(filled: Topic) -> Iterator[Callable[..., Driver]]:
    made: list[Driver] = []

    def make(**options: object) -> Driver:
        made.append(Driver(filled, startingOffsets="earliest", **options))
        return made[-1]

    yield make
    for each in made:
        each.reader.stop()


def all_planned(driver: Driver) -> list[Ahead | None]:
    driver.begin()
    found: list[Ahead | None] = []
    for part in driver.reader.partitions(driver.position, driver.latest()):
        assert isinstance(part, TopicPartition)
        found.append(part.ahead)
    return found


def planned_ahead(driver: Driver) -> Ahead | None:
    return all_planned(driver)[-1]


def test_only_those_that_end_last_pull_ahead(
    spark_here: None, driving: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is another task of the same batch for a worker that ends an earlier one."""
    monkeypatch.setattr("gimbalmq.spark.source.LEAST_ROWS", 100)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    found = all_planned(driving(maxOffsetsPerTrigger=3000, minPartitions=8))
    assert [one is not None for one in found] == [False] * 5 + [True] * 3


def test_only_what_waits_is_expected(
    spark_here: None, driving: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gimbalmq.spark.source.LEAST_ROWS", 100)
    found = planned_ahead(driving(maxOffsetsPerTrigger=3000))
    assert found is not None
    assert sum(wanted.length for head in found.heads for wanted in head) == 1000
    assert {wanted.start for head in found.heads for wanted in head} == {750}
    assert planned_ahead(driving(maxOffsetsPerTrigger=3950)) is None  # not worth a task
    for without in (
        {},
        {"maxOffsetsPerTrigger": 3000, "pullAheadBytes": 0},
        {"maxOffsetsPerTrigger": 3000, "tags": "A"},
        {"maxOffsetsPerTrigger": 3000, "dropDuplicates": "true"},
        {"maxBytesPerTrigger": "10k"},
    ):
        assert planned_ahead(driving(**without)) is None, without


def test_a_batch_takes_what_was_pulled_for_it(
    spark_here: None, driving: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message comes once, whether it was pulled ahead or not."""
    monkeypatch.setattr("gimbalmq.spark.source.LEAST_ROWS", 100)
    driver = driving(maxOffsetsPerTrigger=1500, minPartitions=4, pullBytes="16k")
    driver.begin()
    found = driver.batch()
    puller = pulled_ahead.process_puller()
    assert puller.wait_until_done(10)
    assert puller.held_bytes > 100_000
    expected = driver.reader._expected
    assert expected is not None
    taken: list[int] = []

    def counted(folder: str, partition: Partition) -> tuple[list[pa.RecordBatch], Partition]:
        batches, left = take_head(folder, partition)
        taken.append(sum(batch.num_rows for batch in batches))
        return batches, left

    monkeypatch.setattr(pulled_ahead, "take_head", counted)
    found += driver.batch()
    assert sum(taken) == 1500
    assert puller.wait_until_done(10)
    found += driver.batch()
    assert sorted(found) == list(range(4000))
    assert pickle.loads(pickle.dumps(expected[1])) == expected[1]


def test_spark_reads_each_message_once(spark: SparkSession, filled: Topic, checkpoint: str) -> None:
    big = Topic(filled.cluster, "ahead-spark")
    for _ in range(4):
        big.send(8000)
    stream = (
        spark.readStream.format("rocketmq")
        .options(namesrv=filled.cluster.namesrv, startingOffsets="earliest", maxOffsetsPerTrigger="8000")
        .load("ahead-spark")
    )
    query = (
        stream.selectExpr("cast(cast(body as string) as int) as number")
        .writeStream.format("memory")
        .queryName("ahead")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    numbers = [row.number for row in spark.sql("select number from ahead").collect()]
    assert sorted(numbers) == list(range(32_000))
