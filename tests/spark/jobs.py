"""What runs in a Spark driver of its own: ``python -m tests.spark.jobs NAME JSON``. ``submit`` starts it.

Functions that tasks run stand in this module and nowhere else: as the main module it is sent to executors by
value.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import sys
import time
import traceback
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from gimbalmq.spark.java import ensure_java

# What runs for seconds is not worth the time of Java's better compiler.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

Arguments = dict[str, Any]


def session(told: Arguments, **more: str) -> SparkSession:
    """A session on ``master``; with ``remote`` it is Spark Connect's."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "768m",
        "spark.executor.memory": "512m",
        "spark.driver.extraJavaOptions": QUICK,
        "spark.executor.extraJavaOptions": QUICK,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": f"{told['folder']}/warehouse",
        # Both executors are there before the first task is given to either.
        "spark.cores.max": "2",
        "spark.executor.cores": "1",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "180s",
    }
    ensure_java()
    builder = SparkSession.builder.appName("tests")
    builder = builder.remote(told["master"]) if told.get("remote") else builder.master(told["master"])
    for name, value in (settings | more).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def topic(spark: SparkSession, told: Arguments, name: str, **options: object) -> DataFrame:
    given = {"namesrv": told["namesrv"]} | options
    return spark.read.format("rocketmq").options(**given).load(name)


def stream(spark: SparkSession, told: Arguments, **options: object) -> DataFrame:
    given = {"namesrv": told["namesrv"], "startingOffsets": "earliest"} | options
    return spark.readStream.format("rocketmq").options(**given).load(told["topic"])


def numbers(frame: DataFrame) -> list[int]:
    return sorted(
        row.number for row in frame.selectExpr("cast(cast(body as string) as int) number").collect()
    )


def end(query: StreamingQuery) -> None:
    query.awaitTermination()
    failure = query.exception()
    if failure is not None:
        raise failure


def place(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows as they are, and the folder of the executor that has them."""
    for batch in batches:
        yield pa.RecordBatch.from_arrays(
            [batch.column("body"), pa.array([os.getcwd()] * batch.num_rows)], names=["body", "place"]
        )


# --- on every kind of cluster --------------------------------------------------------------------


def everything(told: Arguments) -> dict[str, Any]:
    """A topic read at once and as a stream, and written to two other topics; formats by name alone."""
    spark = session(told)
    folder = Path(told["folder"])
    rows = topic(spark, told, told["topic"], minPartitions=4)
    placed = rows.select("body").mapInArrow(place, "body binary, place string").cache()
    found: dict[str, Any] = {
        "batch": numbers(placed),
        "places": sorted(row.place for row in placed.select("place").distinct().collect()),
        "columns": rows.columns,
    }
    rows.select("body", "key", "tags").write.format("rocketmq").mode("append").options(
        namesrv=told["namesrv"], topic=told["batch_topic"]
    ).save()
    streamed = stream(spark, told, minPartitions=4, maxOffsetsPerTrigger=60)
    written = streamed.select("body").writeStream.format("parquet")
    end(
        written.option("checkpointLocation", str(folder / "table-checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "table"))
    )
    found["stream"] = numbers(spark.read.parquet(str(folder / "table")))
    sent = streamed.select("body", "key", "tags").writeStream.format("rocketmq")
    end(
        sent.options(namesrv=told["namesrv"], topic=told["stream_topic"])
        .option("checkpointLocation", str(folder / "topic-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    spark.stop()
    return found


# --- secrets -------------------------------------------------------------------------------------


TALKATIVE = """\
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n%ex
logger.sql.name = org.apache.spark.sql
logger.sql.level = debug
"""
"""Of Spark's SQL everything but its traces."""


def keeping_secrets(told: Arguments) -> dict[str, Any]:
    """Queries that are given secrets as options; every text that Spark has about them afterwards."""
    folder = Path(told["folder"])
    (folder / "events").mkdir()
    logging = folder / "log4j2.properties"
    logging.write_text(TALKATIVE)
    spark = session(
        told,
        **{
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": (folder / "events").as_uri(),
            "spark.eventLog.compress": "false",
            "spark.driver.extraJavaOptions": f"{QUICK} -Dlog4j2.configurationFile={logging.as_uri()}",
            "spark.ui.enabled": "true",
            "spark.ui.port": "0",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
        },
    )
    secrets = json.loads(Path(told["secrets"]).read_text())
    texts: list[str] = []

    def shown(frame: DataFrame) -> None:
        for mode in ("simple", "extended", "codegen", "cost", "formatted"):
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                frame.explain(mode=mode)
            texts.append(out.getvalue())

    rows = topic(spark, told, told["topic"], **secrets)
    shown(rows)
    found: dict[str, Any] = {"rows": rows.count()}
    target = {"namesrv": told["namesrv"], "topic": told["target"], **secrets}
    rows.select("body").write.format("rocketmq").mode("append").options(**target).save()
    rows.createOrReplaceTempView("kept")
    shown(spark.sql("SELECT count(*) FROM kept"))
    streamed = stream(spark, told, **secrets).select("body").writeStream.format("rocketmq").options(**target)
    query = (
        streamed.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    )
    end(query)
    texts += [json.dumps(query.lastProgress, default=str), query._jsq.explainInternal(True)]
    for wrong in (
        {**secrets, "secretKye": secrets["secretKey"]},
        {**secrets, "subscribe": "no-such-topic"},
        {**secrets, "namesrv": "127.0.0.1:1", "fetchRetries": "0"},
    ):
        try:
            topic(spark, told, told["topic"], **wrong).count()
        except Exception as error:
            texts.append(f"{error}\n{traceback.format_exc()}")
        else:
            raise AssertionError("it should have failed")
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    page = f"{spark.sparkContext.uiWebUrl}/api/v1/applications/{spark.sparkContext.applicationId}"
    for part in (
        "sql?details=true&planDescription=true&length=1000",
        "environment",
        "jobs",
        "stages?details=true",
    ):
        with urllib.request.urlopen(f"{page}/{part}", timeout=30) as answer:
            texts.append(answer.read().decode())
    for number in range(len(json.loads(texts[-4]))):
        with urllib.request.urlopen(
            f"{spark.sparkContext.uiWebUrl}/SQL/execution/?id={number}", timeout=30
        ) as answer:
            texts.append(answer.read().decode())
    (folder / "texts").write_text("\n".join(texts))
    spark.stop()
    return found


# --- faults --------------------------------------------------------------------------------------


def begun(query: StreamingQuery) -> StreamingQuery:
    """The query, when its source has begun.

    All Python sources of a session share one map of environment variables, and Spark 4.3 fills it without a lock as
    a query begins. Two at the same moment leave it with a wrong size, and no task can be sent any more.
    """
    while query.isActive and query.status["message"].startswith("Initializing"):
        time.sleep(0.01)
    return query


def copying(told: Arguments) -> dict[str, Any]:
    """A topic into a table and into another topic, until killed; or to the end, and then what is there."""
    spark = session(told)
    folder = Path(told["folder"])
    finish = bool(told["finish"])
    limit = 1_000_000 if finish else told["limit"]
    rows = stream(spark, told, maxOffsetsPerTrigger=limit, minPartitions=3, metadataTtl="500ms")
    table = (
        rows.selectExpr("cast(cast(body as string) as int) number")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "table-checkpoint"))
    )
    copy = (
        rows.select("body", "key")
        .writeStream.format("rocketmq")
        .options(namesrv=told["namesrv"], topic=told["copy"], batchSize=20)
        .option("checkpointLocation", str(folder / "copy-checkpoint"))
    )
    if finish:
        table, copy = table.trigger(availableNow=True), copy.trigger(availableNow=True)
    queries = [begun(table.start(str(folder / "table"))), copy.start()]
    for query in queries:
        end(query)
    held = spark.read.parquet(str(folder / "table"))
    found = {"table": sorted(row.number for row in held.collect())} | copies_in(spark, told)
    spark.stop()
    return found


def copies_in(spark: SparkSession, told: Arguments) -> dict[str, Any]:
    """What the sink has written: numbers with their row ids, and what is left without duplicates."""
    reader = spark.read.format("rocketmq").schema("body binary, rowId string")
    reader = reader.option("namesrv", told["namesrv"])
    pairs = [(int(bytes(row.body)), row.rowId) for row in reader.load(told["copy"]).collect()]
    once = numbers(reader.option("dropDuplicates", "true").load(told["copy"]))
    return {"copies": sorted(pairs), "once": once}


def hurting(told: Arguments) -> dict[str, Any]:
    """Workers, then executors, killed while a topic is read; a task that fails, and a worker that is killed,
    while a topic is written."""
    # A task that is hurt has done something and has something left to do: batches are small, and so is what the
    # sockets between Java and Python hold.
    small = {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
        "spark.python.unix.domain.socket.enabled": "true",
    }
    spark = session(told, **small)
    folder = Path(told["folder"])

    def first(mark: str) -> bool:
        """Whether this is the first call with this mark, in all processes."""
        try:
            (folder / mark).open("x").close()
        except FileExistsError:
            return False
        return True

    def hurt(batches: Iterator[pa.RecordBatch], harm: dict[int, str]) -> Iterator[pa.RecordBatch]:
        """Rows as they are; partitions that are named come to harm once, and leave a mark when they come again."""
        context = TaskContext.get()
        assert context is not None
        kind = harm.get(context.partitionId())
        if kind is not None and context.attemptNumber() > 0:
            first(f"{kind}-again")
        for index, batch in enumerate(batches):
            yield batch
            if index != 2 or kind is None or not first(kind):
                continue
            if kind == "failure":
                raise RuntimeError("as the test asked")
            for process in [parent(os.getppid())] if kind == "executor" else other_workers():
                os.kill(process, signal.SIGKILL)

    def other_workers() -> list[int]:
        """The other Python workers of this executor: those that read and write for its tasks."""
        executor = parent(os.getppid())
        found: list[int] = []
        for process in [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]:
            try:
                if process != os.getpid() and parent(parent(process)) == executor:
                    found.append(process)
            except (FileNotFoundError, ProcessLookupError):
                pass
        return found

    def parent(process: int) -> int:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])

    rows = topic(spark, told, told["topic"], minPartitions=4, pullBytes="32k").select("body")

    def hurt_by(**harm: int) -> DataFrame:
        by_partition = {partition: kind for kind, partition in harm.items()}
        return rows.mapInArrow(lambda batches: hurt(batches, by_partition), "body binary")

    found: dict[str, Any] = {
        "workers": numbers(hurt_by(workers=1)),
        "executor": numbers(hurt_by(executor=0)),
    }
    written = hurt_by(failure=0, writers=1).write.format("rocketmq").mode("append")
    written.options(namesrv=told["namesrv"], topic=told["copy"], batchSize=20, sendsInFlight=2).save()
    found |= copies_in(spark, told)
    found["marks"] = sorted(entry.name for entry in folder.glob("*-again"))
    spark.stop()
    return found


def repeating(told: Arguments) -> dict[str, Any]:
    """A table written by tasks that fail, are killed and are overtaken by a copy of themselves, and that give their
    rows in another order each time; then what is in the topic, and what is left without duplicates."""
    speculation = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.1",
        "spark.speculation.minTaskRuntime": "200ms",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.task.maxFailures": "8",
    }
    spark = session(told, **speculation)
    folder, count = Path(told["folder"]), int(told["count"])
    different = count - count // 10

    def first(mark: str) -> bool:
        try:
            (folder / mark).open("x").close()
        except FileExistsError:
            return False
        return True

    def disturbed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All rows of a partition in an order of this attempt's own; some attempts come to harm on the way."""
        context = TaskContext.get()
        assert context is not None
        partition, again = context.partitionId(), context.attemptNumber() > 0
        rows = pa.Table.from_batches(list(batches)).combine_chunks()
        order = list(range(rows.num_rows))
        random.SystemRandom().shuffle(order)
        shuffled = rows.take(pa.array(order))
        kind = ("failure", "killed", "slow", "quiet")[partition % 4]
        if again:
            first(f"{kind}-again")
        pieces = shuffled.to_batches(max_chunksize=max(1, rows.num_rows // 10))
        for index, piece in enumerate(pieces):
            yield piece
            if index != len(pieces) // 2 or again:
                continue
            if kind == "failure":
                raise RuntimeError("as the test asked")
            if kind == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if kind == "slow":
                # Until Spark has begun a copy of this task, which then writes at the same time.
                for _ in range(1200):
                    if (folder / "slow-again").exists():
                        break
                    time.sleep(0.05)

    numbers_of = spark.range(0, count, 1, 8).selectExpr(
        f"rpad(cast(id % {different} as string), 500, ' ') as body"
    )
    written = numbers_of.mapInArrow(disturbed, "body string").write.format("rocketmq").mode("append")
    written.options(namesrv=told["namesrv"], topic=told["copy"], batchSize=500, sendsInFlight=4).save()

    reader = spark.read.format("rocketmq").schema("body binary, rowId string, broker string")
    reader = reader.option("namesrv", told["namesrv"])
    copies = reader.load(told["copy"]).cache()
    contents = copies.select("rowId", "body").distinct().groupBy("rowId").count()
    once = reader.option("dropDuplicates", "true").load(told["copy"])
    times = once.selectExpr("cast(trim(cast(body as string)) as int) number").groupBy("number").count()
    wrong = times.where(f"count != if(number < {count - different}, 2, 1)")
    found = {
        "messages": copies.count(),
        "brokers": copies.select("broker").distinct().count(),
        "ids": copies.select("rowId").distinct().count(),
        "ids_of_two_rows": contents.where("count > 1").count(),
        "once": once.count(),
        "different": times.count(),
        "wrong": [(row.number, row["count"]) for row in wrong.limit(9).collect()],
        "marks": sorted(entry.name for entry in folder.glob("*-again")),
    }
    spark.stop()
    return found


JOBS = {job.__name__: job for job in (everything, keeping_secrets, copying, hurting, repeating)}

if __name__ == "__main__":
    print(json.dumps(JOBS[sys.argv[1]](json.loads(sys.argv[2]))), flush=True)
