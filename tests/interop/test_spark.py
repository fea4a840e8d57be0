"""Spark's source, sink and store source against Apache's name server and broker, 5.5.0 and 4.9.7.

Java producers write what the source reads, Java consumers read what the sink writes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pip install 'gimbalmq[spark]'")

from pyspark.sql import DataFrame, Row, SparkSession

from gimbalmq.model.queues import MessageQueue
from gimbalmq.rpc import groups
from gimbalmq.spark.connection import Connection
from gimbalmq.spark.wire import Wire
from tests.interop.apache_cluster import NEWEST, OLDEST, ApacheServer
from tests.interop.conftest import create_topic
from tests.peers.apache import ApacheBroker
from tests.peers.driver import JavaClient, JavaProducer, Outgoing, Received
from tests.peers.process import Process
from tests.peers.subject import SETTINGS, Cluster
from tests.spark.conftest import spark

__all__ = ["spark"]

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]
pytest_plugins = ["tests.interop.apache_fixtures"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# What Java's client adds when a message arrives.
ADDED = {"MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME", "CLUSTER"}


def new_topic(apache: ApacheServer, queues: int = 4) -> str:
    return asyncio.run(apache.topic(queues))


def read(spark: SparkSession, apache: ApacheServer, topic: str, **options: object) -> list[Row]:
    given: dict[str, Any] = {"namesrv": apache.namesrv, "includeProperties": "true", "checkCrc": "true"}
    return spark.read.format("rocketmq").options(**given | options).load(topic).collect()


def send_all_kinds(producer: JavaProducer, topic: str, count: int = 200) -> int:
    """Plain, compressed, delayed by a second and in a batch: how many."""
    producer.send(
        *(
            Outgoing(
                topic,
                f"plain {number} 消息".encode(),
                tags="AB"[number % 2],
                keys=f"k{number} all",
                properties={"number": str(number), "名": "值"},
            )
            for number in range(count)
        ),
        Outgoing(topic, b"compressed " * 900, tags="C", keys="big"),
        Outgoing(topic, b"delayed", tags="D", delay_level=1),
        Outgoing(topic, b"flagged", flag=7),
    )
    producer.send_batch(*(Outgoing(topic, b"batch %d" % n, tags="B") for n in range(20)))
    return count + 23


def check_rows(rows: Iterable[Row], received: Iterable[Received], broker: str) -> None:
    """Every row as Java's consumer has it, and none beside.

    Ids may be there more than once: a batch of Java's 5.x client has an id itself, and brokers of 4.x store it
    behind each message's own, where it counts as the id of all of them.
    """
    found = {(row.queueId, row.offset): row for row in rows}
    expected = {(message.queue_id, message.queue_offset): message for message in received}
    assert sorted(found) == sorted(expected)
    for place, message in expected.items():
        row = found[place]
        assert bytes(row.body) == message.body
        assert (row.topic, row.broker) == (message.topic, broker)
        assert (row.key, row.tags) == (message.keys, message.tags)
        assert row.msgId == message.message_id
        assert row.bornTimestamp == moment(message.born_timestamp)
        assert row.storeTimestamp == moment(message.store_timestamp)
        assert row.reconsumeTimes == message.reconsume_times
        theirs = {name: value for name, value in message.properties.items() if name not in ADDED}
        assert {name: value for name, value in row.properties.items() if name not in ADDED} == theirs


def moment(milliseconds: int) -> datetime:
    # Spark gives naive times of the machine's zone.
    return (EPOCH + timedelta(milliseconds=milliseconds)).astimezone().replace(tzinfo=None)


# --- source --------------------------------------------------------------------------------------


def test_what_java_sends_is_read_as_java_receives_it(
    spark: SparkSession, apache: ApacheServer, java_550: JavaClient
) -> None:
    topic = new_topic(apache)
    producer = java_550.producer(apache.group(), namesrv=apache.namesrv, compress_over=1000)
    count = send_all_kinds(producer, topic)
    received = java_550.push(apache.group(), topic, namesrv=apache.namesrv).wait_for(count)
    rows = read(spark, apache, topic, minPartitions=3)
    check_rows(rows, received, apache.broker_name)
    (large,) = [message for message in received if message.keys == "big"]
    assert large.store_size < len(large.body) / 4, "it was compressed"
    by_tags = read(spark, apache, topic, tags="A || C")
    check_rows(by_tags, [m for m in received if m.tags in ("A", "C")], apache.broker_name)


def committed(apache: ApacheServer, group: str, topic: str, queues: int) -> list[int | None]:
    wire = Wire(Connection(namesrv=apache.namesrv))
    try:
        return [
            wire.run(
                groups.query_offset(
                    wire,
                    apache.broker,
                    group,
                    MessageQueue(topic, apache.broker_name, queue_id),
                    set_zero_if_not_found=False,
                )
            )
            for queue_id in range(queues)
        ]
    finally:
        wire.close()


def test_a_stream_goes_on_where_it_was_and_tells_its_group(
    spark: SparkSession, apache: ApacheServer, java_550: JavaClient, tmp_path: Path
) -> None:
    topic, group = new_topic(apache, 2), apache.group()
    producer = java_550.producer(apache.group(), namesrv=apache.namesrv)
    found: list[list[Row]] = []

    def keep(batch: DataFrame, _: int) -> None:
        found.append(batch.collect())

    def run() -> None:
        found.clear()
        stream = spark.readStream.format("rocketmq").options(
            namesrv=apache.namesrv,
            startingOffsets="earliest",
            includeProperties="true",
            maxOffsetsPerTrigger=80,
            consumerGroup=group,
        )
        query = (
            stream.load(topic)
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    producer.send(*(Outgoing(topic, b"%d" % number) for number in range(150)))
    received = java_550.push(apache.group(), topic, namesrv=apache.namesrv)
    first = received.wait_for(150)
    run()
    assert [len(rows) for rows in found] == [80, 70]
    check_rows([row for rows in found for row in rows], first, apache.broker_name)
    assert committed(apache, group, topic, 2) == [75, 75]

    producer.send(*(Outgoing(topic, b"%d" % number) for number in range(150, 160)))
    every = received.wait_for(160)
    run()
    check_rows([row for rows in found for row in rows], every[150:], apache.broker_name)
    assert committed(apache, group, topic, 2) == [80, 80]
    # Java goes on from there.
    producer.send(Outgoing(topic, b"for Java"))
    member = java_550.push(group, topic, namesrv=apache.namesrv)
    assert [message.body for message in member.wait_for(1)] == [b"for Java"]


def test_a_time_is_found_to_the_message(
    spark: SparkSession, apache: ApacheServer, java_550: JavaClient
) -> None:
    topic = new_topic(apache, 2)
    producer = java_550.producer(apache.group(), namesrv=apache.namesrv)
    producer.send(*(Outgoing(topic, b"%d" % number) for number in range(50)))
    time.sleep(0.1)  # the times of two halves must differ
    producer.send(*(Outgoing(topic, b"%d" % number) for number in range(50, 100)))
    received = java_550.push(apache.group(), topic, namesrv=apache.namesrv).wait_for(100)
    times = {int(message.body): message.store_timestamp for message in received}
    for edge in (times[50], (times[49] + times[50]) // 2, times[20], times[99], times[0], times[0] - 5000):
        later = sorted(number for number, stored in times.items() if stored >= edge)
        options = {"startingOffsetsByTimestampStrategy": "latest"}
        rows = read(spark, apache, topic, startingTimestamp=edge, **options)
        assert sorted(int(row.body) for row in rows) == later
        rows = read(spark, apache, topic, endingTimestamp=edge)
        assert sorted(int(row.body) for row in rows) == sorted(set(range(100)).difference(later))


# --- sink ----------------------------------------------------------------------------------------


def test_what_the_sink_writes_is_what_java_receives(
    spark: SparkSession, apache: ApacheServer, java_550: JavaClient, tmp_path: Path
) -> None:
    """A table, and a stream that copies it to another topic."""
    count = 1000
    topic, copy = new_topic(apache), new_topic(apache)
    large = "if(id % 100 = 0, repeat('compressible ', 800), '')"
    rows = spark.range(0, count, 1, 3).selectExpr(
        f"concat(cast(id as string), ' ', {large}, '消息') body",
        "concat('k', id) key",
        "if(id % 2 = 0, 'even', 'odd') tags",
        "map('n', cast(id as string)) properties",
        "if(id % 3 = 0, concat('customer', id % 7), null) shardingKey",
        "if(id in (5, 6), 1, null) delayLevel",
    )
    rows.write.format("rocketmq").mode("append").options(namesrv=apache.namesrv, topic=topic).save()
    received = java_550.push(apache.group(), topic, namesrv=apache.namesrv).wait_for(count)
    assert len(received) == count
    queues: dict[str, set[int]] = {}
    for message in received:
        number, _, rest = message.body.decode().partition(" ")
        n = int(number)
        assert rest == ("compressible " * 800 if n % 100 == 0 else "") + "消息"
        assert (message.keys, message.tags) == (f"k{n}", "odd" if n % 2 else "even")
        assert message.properties["n"] == number
        if n % 3 == 0:
            queues.setdefault(f"customer{n % 7}", set()).add(message.queue_id)
        if n in (5, 6):
            assert message.store_timestamp - message.born_timestamp > 900
    assert all(len(found) == 1 for found in queues.values()), "a sharding key has one queue"
    assert len({message.properties["SPARK_ROW_ID"] for message in received}) == count
    theirs = java_550.producer(apache.group(), namesrv=apache.namesrv)
    sent = theirs.send(*(Outgoing(topic, b"java", order=key) for key in queues))
    assert [{one.queue_id} for one in sent] == list(queues.values()), "the one Java would choose"

    stream = spark.readStream.format("rocketmq").options(namesrv=apache.namesrv, startingOffsets="earliest")
    query = (
        stream.load(topic)
        .select("body", "key", "tags")
        .writeStream.format("rocketmq")
        .options(namesrv=apache.namesrv, topic=copy)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    copied = java_550.push(apache.group(), copy, namesrv=apache.namesrv).wait_for(count + len(queues))
    assert {message.body for message in copied} == {message.body for message in received} | {b"java"}
    once = read(spark, apache, copy, dropDuplicates="true")
    assert len(once) == len(copied) == count + len(queues)


# --- store source --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [NEWEST, OLDEST])
def test_a_stopped_brokers_folder_is_what_java_received(
    spark: SparkSession,
    cluster: Cluster,
    java_550: JavaClient,
    watch: Callable[[Process], None],
    tmp_path: Path,
    version: str,
) -> None:
    settings = {**SETTINGS, "brokerName": f"spark-{version}", "mappedFileSizeCommitLog": 65_536}
    broker = ApacheBroker(version, tmp_path, namesrv=cluster.namesrv, extra=settings)
    watch(broker)
    topic = f"spark-store-{version.replace('.', '-')}"
    with broker:
        create_topic(java_550, broker.address, topic, 4)
        producer = java_550.producer("spark-store", compress_over=1000)
        count = send_all_kinds(producer, topic)
        received = java_550.push(f"{topic}-readers", topic).wait_for(count)
        broker.stop()
    for way in ("log", "queues"):
        rows = (
            spark.read.format("rocketmq-store")
            .options(
                subscribe=topic, includeProperties="true", checkCrc="true", readThrough=way, minPartitions=4
            )
            .options(brokerName=f"spark-{version}")
            .load(str(broker.store))
        )
        check_rows(rows.collect(), received, f"spark-{version}")
