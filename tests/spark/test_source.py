"""Batch reads: places, partitions, columns, filters; on our own first, then under Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark.sql.types import LongType, StringType, StructField, StructType

from gimbalmq.errors import ConfigError, DataLossError, TopicRouteNotFoundError
from gimbalmq.model.queues import MessageQueue
from gimbalmq.rpc import groups
from gimbalmq.spark import columns
from gimbalmq.spark.cluster import Cluster
from gimbalmq.spark.options import SourceSettings
from gimbalmq.spark.source import (
    BatchReader,
    PushdownReader,
    RocketMQDataSource,
    TopicPartition,
    checked_schema,
)
from gimbalmq.spark.wire import Wire
from gimbalmq.testing import LocalCluster
from gimbalmq.testing.cluster import ThreadCluster
from tests.spark.conftest import Topic

NewTopic = Callable[..., Topic]


@pytest.fixture(scope="module")
def topic(shared_cluster: ThreadCluster) -> Topic:
    """Four queues of 25 messages, and a pause in the middle of each."""
    topic = Topic(shared_cluster, "source-batch")
    topic.send(40, tags=["A", "B"])
    time.sleep(0.05)
    topic.send(60, tags=["A", "B"])
    return topic


def source(
    topic: Topic | None, cluster: ThreadCluster | None = None, **options: object
) -> RocketMQDataSource:
    namesrv = (topic.cluster if topic is not None else cluster).namesrv  # type: ignore[union-attr]
    given = CaseInsensitiveDict({"namesrv": namesrv, "fetchRetries": "1", "retryInterval": "1ms"})
    if topic is not None and not {"assign", "subscribe", "subscribePattern"} & set(options):
        given["subscribe"] = topic.name
    given.update({key: str(value) for key, value in options.items()})
    return RocketMQDataSource(given)


def rows(reader: BatchReader, partitions: Any = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for partition in reader.partitions() if partitions is None else partitions:
        for batch in reader.read(partition):
            assert batch.schema.equals(reader.arrow_schema)
            found += batch.to_pylist()
    return found


def batch_reader(topic: Topic | None, **options: Any) -> BatchReader:
    made = source(topic, **options)
    reader = made.reader(schema=made.schema())
    assert isinstance(reader, BatchReader)
    return reader


def numbers(topic: Topic | None, **options: Any) -> list[int]:
    return sorted(int(row["body"]) for row in rows(batch_reader(topic, **options)))


def by_queue(topic: Topic, value: Callable[[int], object]) -> str:
    return json.dumps({topic.name: {"broker-a": {str(number): value(number) for number in range(4)}}})


def numbers_of(start: Callable[[int], int], end: Callable[[int], int]) -> list[int]:
    """What lies between offsets, by the way messages are spread over the queues."""
    return sorted(
        4 * offset + queue_id for queue_id in range(4) for offset in range(start(queue_id), end(queue_id))
    )


# --- places --------------------------------------------------------------------------------------


def test_everything_that_is_there_by_default(topic: Topic) -> None:
    found = rows(batch_reader(topic, includeProperties="true"))
    assert sorted(int(row["body"]) for row in found) == list(range(100))
    row = next(row for row in found if row["body"] == b"41")
    assert (row["topic"], row["broker"], row["queueId"], row["offset"]) == (topic.name, "broker-a", 1, 10)
    assert (row["key"], row["tags"], row["reconsumeTimes"]) == ("k41", "B", 0)
    assert row["storeTimestamp"] >= row["bornTimestamp"]
    assert dict(row["properties"])["KEYS"] == "k41"


def test_offsets_by_queue(topic: Topic) -> None:
    start = by_queue(topic, lambda queue_id: [-2, 3, 7, 25][queue_id])
    end = by_queue(topic, lambda queue_id: [2, -1, 9, 25][queue_id])
    found = numbers(topic, startingOffsets=start, endingOffsets=end)
    assert found == numbers_of(lambda q: [0, 3, 7, 25][q], lambda q: [2, 25, 9, 25][q])


def test_an_offset_for_a_whole_topic(topic: Topic) -> None:
    assert numbers(topic, startingOffsets=json.dumps({topic.name: 24})) == [96, 97, 98, 99]


def test_an_end_beyond_the_end_is_the_end(topic: Topic) -> None:
    assert len(numbers(topic, endingOffsets=json.dumps({topic.name: 10**6}))) == 100


def test_queues_that_are_forgotten_are_named(topic: Topic) -> None:
    some = json.dumps({topic.name: {"broker-a": {"0": 1}}})
    with pytest.raises(ConfigError, match=r"queue 1; name them all"):
        numbers(topic, startingOffsets=some)
    with pytest.raises(ConfigError, match="no such topic is read"):
        numbers(topic, startingOffsets=json.dumps({topic.name: 1, "other": 2}))


@pytest.mark.parametrize("offset", [26, 1000])
def test_a_start_beyond_the_end_is_data_loss(topic: Topic, offset: int) -> None:
    start = json.dumps({topic.name: offset})
    with pytest.raises(DataLossError, match=f"next offset is {offset}"):
        numbers(topic, startingOffsets=start)
    assert numbers(topic, startingOffsets=start, failOnDataLoss="false") == []


def test_where_a_group_is(topic: Topic) -> None:
    def commit(wire: Any, address: str) -> None:
        for queue_id, offset in ((0, 5), (2, 20)):
            wire.run(groups.update_offset(wire, address, "where-it-is", topic.queue(queue_id), offset))

    topic.admin(commit)
    found = numbers(topic, startingOffsets="group", consumerGroup="where-it-is")
    assert found == numbers_of(lambda q: [5, 0, 20, 0][q], lambda q: 25)
    found = numbers(topic, endingOffsets="group", consumerGroup="where-it-is")
    assert found == numbers_of(lambda q: 0, lambda q: [5, 0, 20, 0][q])


def stored_at(topic: Topic, number: int) -> datetime:
    found: list[datetime] = [
        row["storeTimestamp"] for row in rows(batch_reader(topic)) if int(row["body"]) == number
    ]
    return found[0]


def test_times(topic: Topic) -> None:
    middle = stored_at(topic, 39) + timedelta(milliseconds=20)
    ms = round(middle.timestamp() * 1000)
    assert numbers(topic, startingTimestamp=ms) == list(range(40, 100))
    assert numbers(topic, startingTimestamp=middle.isoformat()) == list(range(40, 100))
    assert numbers(topic, endingTimestamp=ms) == list(range(40))
    each = by_queue(topic, lambda queue_id: 0 if queue_id == 3 else ms)
    found = numbers(topic, startingOffsetsByTimestamp=each)
    assert found == numbers_of(lambda q: 0 if q == 3 else 10, lambda q: 25)
    found = numbers(topic, endingOffsetsByTimestamp=each)
    assert found == numbers_of(lambda q: 0, lambda q: 0 if q == 3 else 10)


def test_a_time_that_nothing_was_stored_after(topic: Topic) -> None:
    later = round(time.time() * 1000) + 3_600_000
    with pytest.raises(ConfigError, match="startingOffsetsByTimestampStrategy=latest"):
        numbers(topic, startingTimestamp=later)
    assert numbers(topic, startingTimestamp=later, startingOffsetsByTimestampStrategy="latest") == []
    assert len(numbers(topic, endingTimestamp=later)) == 100


def test_a_time_among_large_messages_of_which_a_pull_brings_one(
    shared_cluster: ThreadCluster, new_topic: NewTopic
) -> None:
    """Looked for from before, the first one that is late enough is the first of its answer."""
    topic = new_topic(shared_cluster, 1)
    topic.send(20, body=lambda number: str(number).rjust(300_000).encode())
    middle = stored_at(topic, 19) + timedelta(milliseconds=1)
    while time.time() <= middle.timestamp():
        time.sleep(0.001)
    topic.send(4, body=lambda number: str(number).rjust(300_000).encode())
    assert numbers(topic, startingTimestamp=round(middle.timestamp() * 1000)) == [20, 21, 22, 23]


# --- topics --------------------------------------------------------------------------------------


def test_several_topics_a_pattern_and_queues(shared_cluster: ThreadCluster) -> None:
    one, two = Topic(shared_cluster, "many-one", 1), Topic(shared_cluster, "many-two", 2)
    one.send(3)
    two.send(4)
    assert numbers(one, subscribe="many-one,many-two") == [0, 0, 1, 1, 2, 2, 3]
    assert numbers(one, subscribePattern="many-.*") == [0, 0, 1, 1, 2, 2, 3]
    assert numbers(one, subscribePattern="many-t.o") == [0, 1, 2, 3]
    assert numbers(one, subscribePattern="none-.*") == []
    assert numbers(one, assign='{"many-two": {"broker-a": [1]}}') == [1, 3]


def test_what_is_not_there_is_said(topic: Topic) -> None:
    with pytest.raises(TopicRouteNotFoundError, match="knows no topic nowhere"):
        numbers(topic, subscribe="nowhere")
    with pytest.raises(ConfigError, match="no such queue"):
        numbers(topic, assign=json.dumps({topic.name: {"broker-a": [77]}}))


def test_topics_of_two_brokers(new_topic: NewTopic) -> None:
    with LocalCluster.in_thread(brokers=2) as cluster:
        topic = new_topic(cluster, 2)
        topic.send(20)
        topic.queue = lambda queue_id: MessageQueue(topic.name, "broker-b", queue_id)  # type: ignore[method-assign]
        topic.send(20)
        assert numbers(topic) == list(range(40))
        found = rows(batch_reader(topic, assign=json.dumps({topic.name: {"broker-b": [0]}})))
        assert {row["broker"] for row in found} == {"broker-b"}


# --- partitions ----------------------------------------------------------------------------------


def lengths(topic: Topic, **options: Any) -> list[int]:
    partitions = batch_reader(topic, **options).partitions()
    found: list[int] = []
    for partition in partitions:
        assert isinstance(partition, TopicPartition)
        found.append(sum(wanted.length for wanted in partition.ranges))
    return found


def test_partitions_as_asked(topic: Topic) -> None:
    assert lengths(topic) == [100]
    assert lengths(topic, minRecordsPerPartition=0) == [25] * 4
    assert lengths(topic, minPartitions=2) == [50, 50]
    assert len(lengths(topic, minPartitions=8)) == 8
    assert max(lengths(topic, maxRecordsPerPartition=10)) <= 10
    assert len(numbers(topic, maxRecordsPerPartition=7)) == 100
    assert len(numbers(topic, minPartitions=30)) == 100


def test_an_empty_plan_reads_nothing(topic: Topic) -> None:
    reader = batch_reader(topic)
    assert list(reader.read(InputPartition(None))) == []


# --- columns -------------------------------------------------------------------------------------


def test_columns_in_any_choice_and_order(topic: Topic) -> None:
    schema = StructType([StructField("body", columns_type("body")), StructField("offset", LongType(), False)])
    reader = source(topic).reader(schema=schema)
    assert isinstance(reader, BatchReader)
    found = rows(reader)
    assert list(found[0]) == ["body", "offset"]
    assert not reader.arrow_schema.field("offset").nullable


def columns_type(name: str) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(columns.arrow_schema([name])).fields[0].dataType


def test_every_column_may_be_asked_for(topic: Topic) -> None:
    schema = StructType([StructField(name, columns_type(name)) for name in columns.TYPES])
    reader = source(topic).reader(schema=schema)
    assert isinstance(reader, BatchReader)
    assert len(rows(reader)) == 100


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("boddy", StringType(), "did you mean body"),
        ("BODY", StringType(), "did you mean body"),
        ("xyz", StringType(), "there are topic, broker"),
        ("body", StringType(), "the column is binary"),
        ("offset", StringType(), "the column is bigint"),
    ],
)
def test_columns_there_are_none_of(name: str, kind: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        checked_schema(StructType([StructField(name, kind)]))


# --- filters -------------------------------------------------------------------------------------


def pushed(topic: Topic, *filters: Filter, **options: str) -> tuple[list[int], int, list[Filter]]:
    """Numbers read, messages pulled for them, filters left to Spark."""
    settings = SourceSettings.read(
        {"namesrv": topic.cluster.namesrv, "subscribe": topic.name} | options, streaming=False
    )
    reader = PushdownReader(settings, columns.arrow_schema(("body", "queueId", "offset", "storeTimestamp")))
    left = list(reader.pushFilters(list(filters)))
    partitions = list(reader.partitions())
    planned = sum(
        wanted.length
        for partition in partitions
        if isinstance(partition, TopicPartition)
        for wanted in partition.ranges
    )
    return sorted(int(row["body"]) for row in rows(reader, partitions)), planned, left


def test_filters_on_the_queue_leave_out_queues(topic: Topic) -> None:
    found, planned, left = pushed(topic, EqualTo(("queueId",), 2))
    assert found == list(range(2, 100, 4))
    assert (planned, left) == (25, [])
    assert pushed(topic, In(("queueId",), (0, 3)))[1] == 50
    assert pushed(topic, GreaterThan(("queueId",), 2))[1] == 25
    assert pushed(topic, EqualTo(("topic",), "another"))[0] == []
    assert pushed(topic, In(("topic",), (topic.name, "another")))[1] == 100
    assert pushed(topic, EqualTo(("broker",), "broker-b"))[1] == 0


def test_filters_on_offsets_cut_ranges(topic: Topic) -> None:
    low, high = GreaterThanOrEqual(("offset",), 5), LessThan(("offset",), 8)
    found, planned, left = pushed(topic, low, high)
    assert found == list(range(20, 32))
    assert (planned, left) == (12, [])
    assert pushed(topic, GreaterThan(("offset",), 5), LessThanOrEqual(("offset",), 8))[0] == list(
        range(24, 36)
    )
    assert pushed(topic, EqualTo(("offset",), 24))[0] == [96, 97, 98, 99]
    assert pushed(topic, In(("offset",), (0, 24, 99)), EqualTo(("queueId",), 1))[0] == [1, 97]
    assert pushed(topic, EqualTo(("offset",), 3), EqualTo(("offset",), 4))[0] == []


def test_several_offsets_are_left_to_spark_where_copies_are_dropped(
    shared_cluster: ThreadCluster, new_topic: NewTopic
) -> None:
    """On the way back from the second one, the first would be met before it is read, and be taken for a copy."""
    topic = new_topic(shared_cluster, 1)
    topic.send(8, row_ids=[f"q-0-0-{number}" for number in (1, 2, 1, 3, 4, 5, 6, 7)])
    some = In(("offset",), (1, 2, 6))
    found, planned, left = pushed(topic, some, dropDuplicates="true")
    assert set(found) >= {1, 6} and 2 not in found
    assert (planned, left) == (8, [some])
    assert pushed(topic, EqualTo(("offset",), 6), dropDuplicates="true") == ([6], 1, [])
    assert pushed(topic, some) == ([1, 2, 6], 3, [])


def test_filters_on_the_store_time_become_offsets_and_stay(topic: Topic) -> None:
    moment = stored_at(topic, 39) + timedelta(milliseconds=20)
    late, early = GreaterThanOrEqual(("storeTimestamp",), moment), LessThan(("storeTimestamp",), moment)
    found, planned, left = pushed(topic, late)
    assert (found, planned, left) == (list(range(40, 100)), 60, [late])
    found, planned, left = pushed(topic, early)
    assert (found, planned, left) == (list(range(40)), 40, [early])
    assert pushed(topic, late, early)[0] == []
    exact = stored_at(topic, 39)
    assert 39 in pushed(topic, EqualTo(("storeTimestamp",), exact))[0]
    assert 39 in pushed(topic, LessThanOrEqual(("storeTimestamp",), exact))[0]
    assert 39 in pushed(topic, GreaterThan(("storeTimestamp",), exact - timedelta(microseconds=1)))[0]
    assert pushed(topic, GreaterThan(("storeTimestamp",), datetime(2100, 1, 1, tzinfo=UTC)))[0] == []


def test_no_range_begins_behind_its_end(topic: Topic) -> None:
    """The way back to first copies begins where a range does: what lies between end and begin is no copy before it."""
    settings = SourceSettings.read(
        {
            "namesrv": topic.cluster.namesrv,
            "subscribe": topic.name,
            "endingOffsets": by_queue(topic, lambda _: 5),
            "dropDuplicates": "true",
        },
        streaming=False,
    )
    late = GreaterThanOrEqual(("storeTimestamp",), stored_at(topic, 39) + timedelta(milliseconds=20))
    for some in (late, GreaterThan(("offset",), 20), GreaterThan(("offset",), 1000)):
        reader = PushdownReader(settings, columns.arrow_schema(("body",)))
        list(reader.pushFilters([some]))
        wire = Wire(settings.connection)
        ranges = reader._ranges(Cluster(settings, wire))
        wire.close()
        assert [(start, end) for _, start, end in ranges] == [(5, 5)] * 4


def test_other_filters_are_left_to_spark(topic: Topic) -> None:
    others: list[Filter] = [
        IsNotNull(("topic",)),
        Not(EqualTo(("queueId",), 1)),
        EqualTo(("key",), "k1"),
        StringStartsWith(("topic",), "x"),
        EqualTo(("properties", "a"), "b"),
    ]
    found, planned, left = pushed(topic, *others)
    assert (planned, left) == (100, others)
    assert len(found) == 100


def test_filters_are_only_taken_where_spark_pushes_them(topic: Topic) -> None:
    assert type(batch_reader(topic)) is BatchReader


# --- under Spark ---------------------------------------------------------------------------------


def frame(spark: SparkSession, topic: Topic, schema: str | None = None, **options: Any) -> DataFrame:
    reader = spark.read.format("rocketmq").option("namesrv", topic.cluster.namesrv).options(**options)
    if schema is not None:
        reader = reader.schema(schema)
    return reader.load(topic.name)


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_spark_reads_a_topic(spark: SparkSession, topic: Topic) -> None:
    """Found by its name, with nothing registered; all columns arrive as they are."""
    found = frame(spark, topic, minPartitions=3, includeProperties=True).collect()
    assert sorted(int(row.body) for row in found) == list(range(100))
    assert found[0].asDict().keys() == {*columns.DEFAULT, "properties"}
    assert {row.properties["KEYS"] for row in found} == {f"k{number}" for number in range(100)}
    local = {row["msgId"]: row["storeTimestamp"] for row in rows(batch_reader(topic))}
    assert {row.msgId: row.storeTimestamp.replace(tzinfo=UTC) for row in found} == local


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_spark_pulls_less_when_it_filters(spark: SparkSession, topic: Topic) -> None:
    transferred = topic.cluster.broker.stats.get_transferred
    before = transferred.value
    few = frame(spark, topic).where("queueId = 1 and offset between 3 and 6 and tags = 'B'")
    assert sorted(int(row.body) for row in few.collect()) == [13, 17, 21, 25]
    assert 0 < transferred.value - before <= 4


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_spark_honours_a_schema_and_refuses_a_wrong_one(spark: SparkSession, topic: Topic) -> None:
    found = frame(spark, topic, "body binary, offset bigint not null", tags="A")
    assert found.columns == ["body", "offset"]
    assert sorted(int(row.body) for row in found.collect()) == list(range(0, 100, 2))
    with pytest.raises(PySparkException, match="did you mean body"):
        frame(spark, topic, "boddy binary").collect()
    with pytest.raises(PySparkException, match="did you mean startingOffsets"):
        frame(spark, topic, startingOffset="earliest").collect()


def test_registering_by_hand_names_all_sources() -> None:
    from gimbalmq.spark import register

    class Session:
        registered: list[str] = []  # noqa: RUF012

        @property
        def dataSource(self) -> Session:
            return self

        def register(self, kind: Any) -> None:
            self.registered.append(kind.name())

    session = Session()
    register(session)  # type: ignore[arg-type]
    assert session.registered == ["rocketmq", "rocketmq-archive", "rocketmq-store"]
