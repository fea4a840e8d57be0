"""Rows a second from a Spark table into a topic: the same sink, our broker and Apache's in turn.

Spark runs as local[2] on the machine of the broker, so both share its cores; what counts beside the rate is
the CPU time a row takes in the broker, which other processes do not disturb. `noop` is Spark without a sink.
What a task itself costs (encode and send, no Spark) is measured apart, on our broker.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from benchmarks.report import Options, Row, main
from benchmarks.subjects import Subject, awake, chosen, running
from gimbalmq.spark import sink, sink_send
from gimbalmq.spark.sink_options import SinkSettings

QUEUES = 16
CASES = ((100, 1_000_000), (1024, 200_000))


def start_spark() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def table(spark: SparkSession, rows: int, body: int) -> DataFrame:
    made = spark.range(0, rows, 1, 4).selectExpr(
        f"cast(rpad(cast(id as string), {body}, 'x') as binary) as body"
    )
    return made.cache()


def save(frame: DataFrame, subject: Subject, topic: str) -> tuple[float, float]:
    """Seconds, and seconds of the broker's CPU."""
    began, used = time.perf_counter(), subject.cpu_seconds()
    writing = frame.write.format("rocketmq").mode("append")
    writing.option("namesrv", subject.namesrv).option("topic", topic).option("sendTimeout", "60s").save()
    return time.perf_counter() - began, subject.cpu_seconds() - used


def task_alone(subject: Subject, body: int, rows: int) -> tuple[float, float]:
    """CPU seconds of one task without Spark, and of the broker."""
    batches = [_distinct(body, first) for first in range(0, rows, 10_000)]
    options = {"namesrv": subject.namesrv, "topic": f"task{body}", "sendTimeout": "60s"}
    writer = sink.SinkWriter(SinkSettings.read(options), {"body": 0}, "0" * 32)
    writer.write(iter(batches[:1]))
    began, used = time.process_time(), subject.cpu_seconds()
    writer.write(iter(batches))
    return time.process_time() - began, subject.cpu_seconds() - used


def _distinct(body: int, first: int) -> pa.RecordBatch:
    """Rows as a query has them: those that say the same would all be numbered."""
    bodies = [b"%d" % number for number in range(first, first + 10_000)]
    return pa.record_batch(
        [pa.array([text.ljust(body, b"x") for text in bodies], pa.binary())], names=["body"]
    )


def run(options: Options) -> list[Row]:
    rows: list[Row] = []
    with running(chosen(options.only)) as subjects:
        spark = start_spark()
        for body, full in CASES:
            count = full // 10 if options.quick else full
            frame = table(spark, count, body)
            frame.count()
            rate = Row(f"rows written, {body} B", "1/s")
            cost = Row(f"rows written, {body} B: broker CPU for a row", "us")
            task = Row(f"rows written, {body} B: a task's own CPU for a row", "us")
            bare = Row(f"rows to noop, {body} B", "1/s", note="Spark alone; the same for both")
            rows += [rate, cost, task, bare]
            for subject in subjects.values():
                with awake(subject):
                    subject.create_topics([f"sink{body}", f"task{body}"], queues=QUEUES)
                    save(frame.limit(10_000), subject, f"sink{body}")
            for _ in range(options.rounds):
                began = time.perf_counter()
                frame.write.format("noop").mode("append").save()
                noop = time.perf_counter() - began
                for name, subject in subjects.items():
                    with awake(subject):
                        seconds, broker = save(frame, subject, f"sink{body}")
                        own, _ = task_alone(subject, body, max(20_000, count // 5))
                    rate.add(name, count / seconds)
                    cost.add(name, broker / count * 1e6)
                    task.add(name, own / max(20_000, count // 5) * 1e6)
                    bare.add(name, count / noop)
            frame.unpersist()
        for sender in list(sink_send.Sender._shared.values()):
            sender.close()
        spark.stop()
    return rows


if __name__ == "__main__":
    main(run, __doc__, "spark_sink")
