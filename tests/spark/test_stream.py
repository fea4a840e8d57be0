"""Streams: where they begin, how far a batch goes, what changes while they run; then under Spark."""

from __future__ import annotations

import json
import pickle
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from gimbalmq.errors import ConfigError, DataLossError
from gimbalmq.protocol.bodies import GroupConfig
from gimbalmq.rpc import groups, management
from gimbalmq.spark.source import RocketMQDataSource, StreamReader, TopicPartition
from gimbalmq.testing import LocalCluster
from gimbalmq.testing.cluster import ThreadCluster
from tests.spark.conftest import Topic
from tests.spark.test_fetch import SMALL_FILES, remove_old_messages

NewTopic = Callable[..., Topic]


class Driver:
    """Does with a stream reader what Spark does: each call's JSON goes out and comes back as text."""

    def __init__(self, topic: Topic, **options: object) -> None:
        given = CaseInsensitiveDict(
            {
                "namesrv": topic.cluster.namesrv,
                "metadataTtl": "0",
                "retryInterval": "1ms",
                "fetchRetries": "3",
            }
        )
        if "subscribePattern" not in options:
            given["subscribe"] = topic.name
        given.update({key: str(value) for key, value in options.items()})
        source = RocketMQDataSource(given)
        reader = source.streamReader(schema=source.schema())
        assert isinstance(reader, StreamReader)
        self.reader = reader
        self.position: dict[str, Any] = {}

    def begin(self) -> Driver:
        self.position = _through_text(self.reader.initialOffset())
        return self

    def latest(self, limit: ReadLimit | None = None) -> dict[str, Any]:
        wanted = limit or self.reader.getDefaultReadLimit()
        return _through_text(self.reader.latestOffset(self.position, wanted))

    def rows(self, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
        found: list[int] = []
        for partition in self.reader.partitions(start, end):
            executor = pickle.loads(pickle.dumps(self.reader))
            for batch in executor.read(pickle.loads(pickle.dumps(partition))):
                found += map(int, batch.column("body").to_pylist())
        return sorted(found)

    def batch(self, limit: ReadLimit | None = None) -> list[int]:
        """One micro-batch: the numbers it reads."""
        end = self.latest(limit)
        found = self.rows(self.position, end)
        self.position = end
        return found


def _through_text(found: dict[str, Any]) -> dict[str, Any]:
    back: dict[str, Any] = json.loads(json.dumps(found))
    assert list(back) == list(found)
    return back


@pytest.fixture
def driver() -> Iterator[Callable[..., Driver]]:
    made: list[Driver] = []

    def make(topic: Topic, **options: object) -> Driver:
        made.append(Driver(topic, **options))
        return made[-1]

    yield make
    for each in made:
        each.reader.stop()


MakeDriver = Callable[..., Driver]


@pytest.fixture
def topic(shared_cluster: ThreadCluster, new_topic: NewTopic) -> Topic:
    return new_topic(shared_cluster)


# --- where it begins -----------------------------------------------------------------------------


def test_a_stream_begins_at_the_end_unless_told(topic: Topic, driver: MakeDriver) -> None:
    topic.send(8)
    stream = driver(topic).begin()
    same = driver(topic, startingOffsets="latest").begin()
    assert stream.batch() == same.batch() == []
    topic.send(4)
    assert stream.batch() == same.batch() == [8, 9, 10, 11]
    assert stream.batch() == []


def test_or_at_the_beginning_or_where_a_group_is_or_at_a_time(topic: Topic, driver: MakeDriver) -> None:
    topic.send(8)
    moment = round(time.time() * 1000) + 10
    time.sleep(0.05)
    topic.send(4)
    assert driver(topic, startingOffsets="earliest").begin().batch() == list(range(12))
    start = json.dumps({topic.name: {"broker-a": {"0": 2, "1": -1, "2": -2, "3": 3}}})
    assert driver(topic, startingOffsets=start).begin().batch() == [2, 6, 8, 10]
    assert driver(topic, startingTimestamp=moment).begin().batch() == [8, 9, 10, 11]

    def commit(wire: Any, address: str) -> None:
        wire.run(groups.update_offset(wire, address, "reader", topic.queue(1), 2))

    topic.admin(commit)
    stream = driver(topic, startingOffsets="group", consumerGroup="reader").begin()
    assert stream.batch() == [0, 2, 3, 4, 6, 7, 8, 9, 10, 11]


def test_a_first_batch_that_is_repeated_begins_where_it_began(topic: Topic, driver: MakeDriver) -> None:
    """Spark asks for the initial position again, and "latest" has moved meanwhile."""
    topic.send(4)
    first = driver(topic).begin()
    topic.send(4)
    end = first.latest()
    assert first.rows(first.position, end) == [4, 5, 6, 7]
    topic.send(4)
    second = driver(topic).begin()
    assert second.position != first.position
    assert second.rows(second.position, end) == [4, 5, 6, 7]
    second.position = end
    assert second.batch() == [8, 9, 10, 11]


@pytest.mark.parametrize("start", ["latest", "earliest"])
def test_a_stream_restarted_before_its_first_message_begins_where_it_first_began(
    topic: Topic, driver: MakeDriver, start: str
) -> None:
    sent = 0 if start == "earliest" else 4
    topic.send(sent)
    first = driver(topic, startingOffsets=start).begin()
    end = first.latest()
    assert end != first.position, "or Spark plans no batch, and the checkpoint holds nothing"
    assert first.batch() == []
    assert first.latest() == first.position, "one empty batch is enough"
    topic.send(4)
    second = driver(topic, startingOffsets=start)
    second.position = end  # from the checkpoint
    assert second.batch() == list(range(sent, sent + 4))


def test_a_stream_that_cannot_be_made_says_why_when_it_is_first_asked(topic: Topic) -> None:
    """Spark's runner would bury an error that comes earlier under one of its own."""
    given = {"namesrv": topic.cluster.namesrv, "subscribe": topic.name, "startingOffsets": "yesterday"}
    reader = RocketMQDataSource(CaseInsensitiveDict(given)).streamReader(schema=StructType([]))
    with pytest.raises(ConfigError, match="startingOffsets='yesterday' cannot be used"):
        reader.initialOffset()
    reader.stop()


def test_nothing_new_is_the_same_text(topic: Topic, driver: MakeDriver) -> None:
    topic.send(4)
    stream = driver(topic, startingOffsets="earliest").begin()
    stream.batch()
    assert json.dumps(stream.latest()) == json.dumps(stream.position)
    topic.send(1)
    stream.batch()
    assert "@from" not in stream.position
    assert json.dumps(stream.latest()) == json.dumps(stream.position)


# --- how far a batch goes ------------------------------------------------------------------------


def test_a_limit_of_messages(topic: Topic, driver: MakeDriver) -> None:
    topic.send(40)
    stream = driver(topic, startingOffsets="earliest", maxOffsetsPerTrigger=12).begin()
    assert stream.reader.getDefaultReadLimit() == ReadMaxRows(12)
    sizes = [len(stream.batch()) for _ in range(5)]
    assert sizes == [12, 12, 12, 4, 0]
    # Spark may want everything, whatever the options say.
    topic.send(40)
    assert len(stream.batch(ReadAllAvailable())) == 40


def test_a_limit_starves_no_queue(topic: Topic, driver: MakeDriver) -> None:
    topic.send(4)
    topic.queues = 1
    topic.send(400)
    stream = driver(topic, startingOffsets="earliest", maxOffsetsPerTrigger=10).begin()
    found = stream.batch()
    assert len(found) == 10
    assert {1, 2, 3} <= set(found)


def test_a_batch_waits_for_enough_messages_but_not_for_ever(topic: Topic, driver: MakeDriver) -> None:
    stream = driver(
        topic, startingOffsets="earliest", minOffsetsPerTrigger=6, maxTriggerDelay="200ms"
    ).begin()
    assert stream.reader.getDefaultReadLimit() == ReadMinRows(6)
    topic.send(1)
    assert stream.batch() == [0]
    topic.send(2)
    assert stream.batch() == []
    topic.send(4)
    assert stream.batch() == [1, 2, 3, 4, 5, 6]
    topic.send(1)
    assert stream.batch() == []
    time.sleep(0.25)
    assert stream.batch() == [7]


def test_a_limit_of_bytes(topic: Topic, driver: MakeDriver) -> None:
    topic.send(40, body=lambda number: b"%06d" % number + b" " * 1000)
    stream = driver(topic, startingOffsets="earliest", maxBytesPerTrigger="12k").begin()
    assert stream.reader.getDefaultReadLimit() == ReadMaxBytes(12 * 1024)
    sizes: list[int] = []
    while sum(sizes) < 40:
        sizes.append(len(stream.batch()))
    assert max(sizes) <= 12
    assert min(sizes) > 0


def test_available_now_stops_where_it_was_when_it_began(topic: Topic, driver: MakeDriver) -> None:
    topic.send(20)
    stream = driver(topic, startingOffsets="earliest", maxOffsetsPerTrigger=8, minOffsetsPerTrigger=8)
    stream.reader.prepareForTriggerAvailableNow()
    stream.begin()
    topic.send(20)
    assert [len(stream.batch()) for _ in range(4)] == [8, 8, 4, 0]


def test_the_newest_position_is_reported(topic: Topic, driver: MakeDriver) -> None:
    topic.send(20)
    stream = driver(topic, startingOffsets="earliest", maxOffsetsPerTrigger=4).begin()
    assert stream.reader.reportLatestOffset() is None
    stream.batch()
    assert stream.reader.reportLatestOffset() == {topic.name: {"broker-a": {"0": 5, "1": 5, "2": 5, "3": 5}}}


def test_small_batches_are_one_task_and_large_ones_as_many_as_asked(topic: Topic, driver: MakeDriver) -> None:
    topic.send(40)
    stream = driver(topic, startingOffsets="earliest", maxRecordsPerPartition=4).begin()
    end = stream.latest()
    partitions = stream.reader.partitions(stream.position, end)
    assert len(partitions) == 12
    assert all(isinstance(partition, TopicPartition) for partition in partitions)
    assert stream.reader.partitions(end, end) == []


# --- what changes while it runs ------------------------------------------------------------------


def test_a_new_queue_is_read_from_its_beginning(topic: Topic, driver: MakeDriver) -> None:
    topic.send(4)
    stream = driver(topic).begin()
    assert stream.batch() == []
    topic.set_queues(6)
    assert stream.latest() == stream.position  # empty queues are no reason for a batch
    topic.send(6)
    assert stream.batch() == [4, 5, 6, 7, 8, 9]
    assert len(stream.position[topic.name]["broker-a"]) == 6


def test_a_new_topic_of_a_pattern_is_read_from_its_beginning(
    shared_cluster: ThreadCluster, new_topic: NewTopic, driver: MakeDriver
) -> None:
    one = new_topic(shared_cluster, 1, "pattern-one")
    one.send(2)
    stream = driver(one, subscribePattern="pattern-.*").begin()
    two = new_topic(shared_cluster, 1, "pattern-two")
    two.send(3)
    one.send(1)
    assert stream.batch() == [0, 1, 2, 2]
    assert set(stream.position) >= {"pattern-one", "pattern-two"}


def test_a_stream_may_begin_before_any_topic_matches(
    shared_cluster: ThreadCluster, driver: MakeDriver
) -> None:
    stream = Driver(_Nobody(shared_cluster), subscribePattern="later-.*").begin()  # type: ignore[arg-type]
    assert stream.batch() == []
    topic = Topic(shared_cluster, "later-one", 1)
    topic.send(2)
    assert stream.batch() == [0, 1]
    stream.reader.stop()


class _Nobody:
    def __init__(self, cluster: ThreadCluster) -> None:
        self.cluster = cluster


def test_a_broker_that_is_away_keeps_its_place(new_topic: NewTopic, driver: MakeDriver) -> None:
    with LocalCluster.in_thread(brokers=2) as cluster:
        topic = new_topic(cluster, 1)
        topic.send(3)
        stream = driver(topic, startingOffsets="earliest").begin()
        assert stream.batch() == [0, 1, 2]
        place = stream.position[topic.name]["broker-a"]
        cluster.stop_broker(0)
        assert stream.batch() == []
        assert stream.position[topic.name]["broker-a"] == place
        cluster.start_broker(0)
        topic.send(2)
        assert stream.batch() == [3, 4]


def test_a_broker_that_comes_back_with_an_empty_disk_is_data_loss(
    new_topic: NewTopic, driver: MakeDriver, caplog: pytest.LogCaptureFixture
) -> None:
    with LocalCluster.in_thread(brokers=2) as cluster:
        topic = new_topic(cluster, 1)
        topic.send(3)
        strict = driver(topic, startingOffsets="earliest").begin()
        careless = driver(topic, startingOffsets="earliest", failOnDataLoss="false").begin()
        for stream in (strict, careless):
            stream.batch()
        disk = cluster.broker.live.now.store_path_root_dir
        cluster.stop_broker(0)
        for stream in (strict, careless):
            assert stream.batch() == []
        shutil.rmtree(disk)
        cluster.start_broker(0)
        with pytest.raises(DataLossError, match="was deleted"):
            strict.batch()
        caplog.clear()
        assert careless.batch() == careless.batch() == []
        assert [record.message for record in caplog.records if "was deleted" in record.message] != []
        caplog.clear()
        assert careless.batch() == []
        assert not caplog.records, "it is said once"


def test_a_slave_that_is_behind_its_master_is_no_loss(topic: Topic, driver: MakeDriver) -> None:
    topic.send(8)
    stream = driver(topic, startingOffsets="earliest").begin()
    stream.batch()
    ahead = json.loads(json.dumps(stream.position).replace(": 2", ": 3"))
    stream.position = ahead
    with pytest.raises(DataLossError, match="ends at 2"):
        stream.latest()
    stream.reader.cluster.may_be_behind = lambda queue: True  # type: ignore[method-assign]
    assert stream.latest() == ahead


def test_a_broker_restarted_between_batches_is_no_matter(
    cluster: ThreadCluster, new_topic: NewTopic, driver: MakeDriver
) -> None:
    topic = new_topic(cluster, 2)
    topic.send(4)
    stream = driver(topic, startingOffsets="earliest", metadataTtl="1m").begin()
    assert stream.batch() == [0, 1, 2, 3]
    cluster.restart_broker()
    topic.send(2)
    assert stream.batch() == [4, 5]


# --- what is lost --------------------------------------------------------------------------------


@pytest.fixture
def short_lived(new_topic: NewTopic) -> Iterator[Topic]:
    with LocalCluster.in_thread(properties=SMALL_FILES) as cluster:
        yield new_topic(cluster, 1)


def _large(number: int) -> bytes:
    return b"%06d" % number + b" " * 1000


def test_retention_that_overtakes_fails_the_query(short_lived: Topic, driver: MakeDriver) -> None:
    short_lived.send(5, body=_large)
    stream = driver(short_lived, startingOffsets="earliest").begin()
    stream.batch()
    short_lived.send(300, body=_large)
    remove_old_messages(short_lived)
    with pytest.raises(
        DataLossError, match=r"next offset is 5, but the broker begins at \d+.*failOnDataLoss"
    ):
        stream.batch()


@pytest.mark.parametrize("ttl", ["0", "1h"])
def test_or_the_query_goes_on_from_the_earliest(short_lived: Topic, driver: MakeDriver, ttl: str) -> None:
    """Also when the reader believes an older beginning: then the task notices."""
    short_lived.send(5, body=_large)
    stream = driver(short_lived, startingOffsets="earliest", failOnDataLoss="false", metadataTtl=ttl).begin()
    stream.batch()
    short_lived.send(300, body=_large)
    remove_old_messages(short_lived)
    found = stream.batch()
    assert found == list(range(found[0], 305))
    assert found[0] > 5
    assert stream.batch() == []


def test_a_batch_planned_before_a_restart_is_checked_too(short_lived: Topic, driver: MakeDriver) -> None:
    short_lived.send(300, body=_large)
    before = driver(short_lived, startingOffsets="earliest").begin()
    end = before.latest()
    remove_old_messages(short_lived)
    with pytest.raises(DataLossError, match="next offset is 0"):
        driver(short_lived, startingOffsets="earliest").rows(before.position, end)
    careless = driver(short_lived, startingOffsets="earliest", failOnDataLoss="false")
    assert careless.rows(before.position, end)[-1] == 299


def test_a_topic_made_anew_is_told_from_one_that_went_on(
    cluster: ThreadCluster, new_topic: NewTopic, driver: MakeDriver
) -> None:
    topic = new_topic(cluster, 1)
    topic.send(10)
    strict = driver(topic, startingOffsets="earliest").begin()
    careless = driver(topic, startingOffsets="earliest", failOnDataLoss="false").begin()
    assert strict.batch() == careless.batch() == list(range(10))
    topic.delete()
    topic.set_queues(1)
    topic.sent = 0
    topic.send(3)
    with pytest.raises(DataLossError, match=r"next offset is 10, but the broker ends at 3"):
        strict.batch()
    assert careless.batch() == [0, 1, 2]
    topic.send(1)
    assert careless.batch() == [3]


def test_a_deleted_topic_is_data_loss(
    cluster: ThreadCluster, new_topic: NewTopic, driver: MakeDriver
) -> None:
    topic = new_topic(cluster, 1)
    other = new_topic(cluster, 1)
    topic.send(10)
    strict = driver(topic, startingOffsets="earliest", subscribe=f"{topic.name},{other.name}").begin()
    careless = driver(
        topic, startingOffsets="earliest", subscribe=f"{topic.name},{other.name}", failOnDataLoss="false"
    ).begin()
    strict.batch()
    careless.batch()
    topic.delete()
    other.send(2)
    with pytest.raises(DataLossError, match="was deleted"):
        strict.batch()
    assert careless.batch() == [0, 1]


# --- progress ------------------------------------------------------------------------------------


def committed(topic: Topic, group: str) -> dict[int, int | None]:
    found: dict[int, int | None] = {}

    def ask(wire: Any, address: str) -> None:
        for queue_id in range(topic.queues):
            found[queue_id] = wire.run(
                groups.query_offset(wire, address, group, topic.queue(queue_id), set_zero_if_not_found=False)
            )

    topic.admin(ask)
    return found


def test_progress_is_committed_when_the_next_batch_is_asked_for(topic: Topic, driver: MakeDriver) -> None:
    topic.send(8)
    stream = driver(topic, startingOffsets="earliest", consumerGroup="watched").begin()
    stream.batch()
    assert committed(topic, "watched") == dict.fromkeys(range(4), 0)
    stream.latest()
    assert committed(topic, "watched") == dict.fromkeys(range(4), 2)


def test_progress_that_could_not_be_committed_is_committed_later(
    new_topic: NewTopic, driver: MakeDriver
) -> None:
    with LocalCluster.in_thread(properties={"autoCreateSubscriptionGroup": False}) as cluster:
        topic = new_topic(cluster, 1)
        topic.send(3)
        stream = driver(topic, startingOffsets="earliest", consumerGroup="late").begin()
        stream.position = stream.latest()
        assert stream.latest() == stream.position
        config = GroupConfig(group_name="late")
        topic.admin(lambda wire, address: wire.run(management.update_group(wire, address, config)))
        assert committed(topic, "late") == {0: None}
        stream.latest()
        assert committed(topic, "late") == {0: 3}


def test_nothing_is_committed_without_a_group(topic: Topic, driver: MakeDriver) -> None:
    topic.send(4)
    stream = driver(topic, startingOffsets="earliest").begin()
    stream.batch()
    stream.batch()
    assert set(committed(topic, "spark-rocketmq-source").values()) == {None}


# --- under Spark ---------------------------------------------------------------------------------


def stream_of(spark: SparkSession, topic: Topic, **options: Any) -> DataFrame:
    given = {"namesrv": topic.cluster.namesrv, "startingOffsets": "earliest", "metadataTtl": "0"} | options
    return spark.readStream.format("rocketmq").options(**given).load(topic.name)


def run_once(frame: DataFrame, checkpoint: str, found: list[int]) -> StreamingQuery:
    """Everything that is there now, in batches."""

    def keep(batch: DataFrame, _: int) -> None:
        found.extend(sorted(int(row.body) for row in batch.select("body").collect()))

    query = (
        frame.writeStream.option("checkpointLocation", checkpoint)
        .foreachBatch(keep)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_query_goes_on_from_its_checkpoint(spark: SparkSession, topic: Topic, checkpoint: str) -> None:
    topic.send(10)
    found: list[int] = []
    frame = stream_of(spark, topic, maxOffsetsPerTrigger=6, consumerGroup="checked")
    query = run_once(frame, checkpoint, found)
    assert sorted(found) == list(range(10))
    assert [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]] == [
        6,
        4,
    ]
    assert json.loads(query.recentProgress[0]["sources"][0]["latestOffset"])[topic.name]["broker-a"]["0"] == 3
    assert committed(topic, "checked") == {0: 3, 1: 3, 2: 2, 3: 2}
    found.clear()
    topic.set_queues(5)
    topic.send(10)
    run_once(frame, checkpoint, found)
    assert sorted(found) == list(range(10, 20))
    # A batch that was not finished is done again, with the same rows.
    commits = sorted((int(path.name), path) for path in (Path(checkpoint) / "commits").glob("[0-9]*"))
    commits[-1][1].unlink()
    for crc in (Path(checkpoint) / "commits").glob(f".{commits[-1][0]}.crc"):
        crc.unlink()
    again: list[int] = []
    run_once(frame, checkpoint, again)
    assert again
    assert set(again) < set(range(10, 20))


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_query_that_began_at_the_end_and_found_nothing_misses_nothing(
    spark: SparkSession, topic: Topic, checkpoint: str
) -> None:
    topic.send(5)
    found: list[int] = []
    frame = stream_of(spark, topic, startingOffsets="latest")
    run_once(frame, checkpoint, found)
    assert found == []
    topic.send(5)  # while nothing runs
    run_once(frame, checkpoint, found)
    topic.send(5)
    run_once(frame, checkpoint, found)
    assert sorted(found) == list(range(5, 15))


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_running_query_survives_its_broker(
    spark: SparkSession, cluster: ThreadCluster, new_topic: NewTopic, checkpoint: str
) -> None:
    topic = new_topic(cluster, 2)
    topic.send(4)
    query = (
        stream_of(spark, topic)
        .selectExpr("cast(cast(body as string) as int) as number")
        .writeStream.option("checkpointLocation", checkpoint)
        .format("memory")
        .queryName("survivor")
        .start()
    )
    try:
        query.processAllAvailable()
        cluster.restart_broker()
        topic.send(4)
        query.processAllAvailable()
        rows = spark.sql("select number from survivor").collect()
    finally:
        query.stop()
    assert sorted(row.number for row in rows) == list(range(8))


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_query_that_lost_messages_says_so(spark: SparkSession, short_lived: Topic, checkpoint: str) -> None:
    short_lived.send(5, body=_large)
    found: list[int] = []
    run_once(stream_of(spark, short_lived), checkpoint, found)
    short_lived.send(300, body=_large)
    remove_old_messages(short_lived)
    with pytest.raises(StreamingQueryException, match="failOnDataLoss=false"):
        run_once(stream_of(spark, short_lived), checkpoint, found)
    run_once(stream_of(spark, short_lived, failOnDataLoss="false"), checkpoint, found)
    assert found[:5] == list(range(5))
    assert found[-1] == 304
