"""One side of `spark_kafka.py`, in a process and a Python environment of its own.

Takes its settings as JSON in its only argument, and then steps, each a line of JSON on standard input: a method
and its arguments. Each is answered with a line of figures. So the two sides can take turns. It must run where
gimbalmq is not installed, beside the Spark that Kafka's connector needs, so ours is imported late.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

TICKS = os.sysconf("SC_CLK_TCK")


class Cpu:
    """Processor seconds so far: of the broker, of Spark's JVM, and of its Python workers."""

    def __init__(self, broker: list[int]) -> None:
        self._broker = broker

    def now(self) -> dict[str, float]:
        used = {"broker": sum(map(_seconds, self._broker)), "jvm": 0.0, "python": 0.0}
        waiting = _children(os.getpid())
        while waiting:
            pid = waiting.pop()
            waiting += _children(pid)
            try:
                name = Path(f"/proc/{pid}/comm").read_text().strip()
            except OSError:
                continue
            used["jvm" if name == "java" else "python"] += _seconds(pid)
            used["python"] += _seconds(pid, ended=True)  # planners and idle workers do not last
        return used


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    except OSError:
        pass  # it has ended
    return found


def _seconds(pid: int, *, ended: bool = False) -> float:
    """Of a process, or of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    user, system = (13, 14) if ended else (11, 12)
    return (int(fields[user]) + int(fields[system])) / TICKS


class Side:
    """What both sides can do, in the words of one."""

    def __init__(self, spark: SparkSession, asked: Mapping[str, Any]) -> None:
        self.spark = spark
        self.server = str(asked["server"])
        self.cpu = Cpu(asked["broker"])
        self.partitions = int(asked["partitions"])
        self.seconds = float(asked["seconds"])
        self._to_write: dict[str, DataFrame] = {}

    def rows(self, count: int, body: int, spread: int = 0) -> DataFrame:
        """Bodies of so many bytes, give or take the spread."""
        size = f"{body - spread} + cast(id * 7919 % {2 * spread + 1} as int)"
        text = f"cast(rpad(cast(id as string), {size}, 'x') as binary)"
        return self.spark.range(0, count, 1, 4).selectExpr("id", f"{text} as body")

    def table(self, topic: str, **options: str) -> DataFrame:
        raise NotImplementedError

    def stream(self, topic: str, **options: str) -> DataFrame:
        raise NotImplementedError

    def save(self, frame: DataFrame, topic: str, **options: str) -> None:
        raise NotImplementedError

    def create(self, topic: str, partitions: int) -> None:
        raise NotImplementedError

    def feeding(self, topic: str) -> Any:
        """A context in which about a hundred messages a second are sent."""
        raise NotImplementedError

    def timed(self, count: int, action: Callable[[], object]) -> dict[str, float]:
        """Rows a second, and microseconds of processor for each."""
        before, began = self.cpu.now(), time.perf_counter()
        action()
        seconds, after = time.perf_counter() - began, self.cpu.now()
        return {"rate": count / seconds, **spent(before, after, count)}

    # -- what is measured: one round ---------------------------------------------------

    def fill(self, topic: str, count: int, body: int, partitions: int, spread: int = 0) -> dict[str, float]:
        self.create(topic, partitions)
        self.save(self.rows(count, body, spread), topic)
        found = self.table(topic).count()
        assert found == count, f"{topic}: {found} rows, {count} were sent"
        return {}

    def read(self, topic: str, count: int, **options: str) -> dict[str, float]:
        frame = self.table(topic, **options)
        return self.timed(count, lambda: to_noop(frame))

    def sink(self, topic: str, count: int, body: int, **options: str) -> dict[str, float]:
        if topic not in self._to_write:
            self.create(topic, self.partitions)
            self._to_write[topic] = self.rows(count, body).select("body").cache()
            self._to_write[topic].count()
        return self.timed(count, lambda: self.save(self._to_write[topic], topic, **options))

    def catch_up(self, topic: str, count: int, each: int) -> dict[str, float]:
        """By the durations of the micro-batches; starting a query is not among them."""
        frame = self.stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger=str(each))
        before = self.cpu.now()
        with tempfile.TemporaryDirectory() as folder:
            writing = frame.writeStream.format("noop").option("checkpointLocation", folder)
            query = writing.trigger(availableNow=True).start()
            query.awaitTermination()
            batches = [dict(one) for one in query.recentProgress if one["numInputRows"]]
        after = self.cpu.now()
        found = sum(one["numInputRows"] for one in batches)
        assert found == count, f"{found} rows came, {count} were sent"
        seconds = sum(one["durationMs"]["triggerExecution"] for one in batches) / 1000
        return {"rate": count / seconds, "batches": len(batches), **spent(before, after, count)}

    def micro_batch(self, topic: str) -> dict[str, float]:
        """Milliseconds of a micro-batch, and of its parts, at about a hundred messages a second: medians."""
        self.create(topic, self.partitions)
        frame = self.stream(topic, startingOffsets="latest")
        with self.feeding(topic), tempfile.TemporaryDirectory() as folder:
            query = frame.writeStream.format("noop").option("checkpointLocation", folder).start()
            time.sleep(self.seconds / 2 + 3)
            warm = query.lastProgress["batchId"] if query.lastProgress else -1
            time.sleep(self.seconds)
            seen = [dict(one) for one in query.recentProgress]
            query.stop()
        parts = [one["durationMs"] for one in seen if one["batchId"] > warm and one["numInputRows"]]
        assert parts, "no micro-batch had a row"
        names = sorted({name for one in parts for name in one})
        middle = {name: float(statistics.median(one.get(name, 0) for one in parts)) for name in names}
        return {"batches": len(parts), **middle}


def spent(before: Mapping[str, float], after: Mapping[str, float], count: int) -> dict[str, float]:
    return {name: (after[name] - before[name]) / count * 1e6 for name in after}


def to_noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("append").save()


class OurSide(Side):
    def table(self, topic: str, **options: str) -> DataFrame:
        schema = options.pop("schema", None)
        reader = self.spark.read if schema is None else self.spark.read.schema(schema)
        path = options.pop("path", None)
        if path is not None:
            return reader.format("rocketmq-store").options(subscribe=topic, **options).load(path)
        return reader.format("rocketmq").options(namesrv=self.server, **options).load(topic)

    def stream(self, topic: str, **options: str) -> DataFrame:
        reader = self.spark.readStream.format("rocketmq")
        return reader.options(namesrv=self.server, **options).load(topic)

    def save(self, frame: DataFrame, topic: str, **options: str) -> None:
        writing = frame.select("body").write.format("rocketmq").mode("append")
        writing.options(namesrv=self.server, topic=topic, sendTimeout="60s", **options).save()

    def create(self, topic: str, partitions: int) -> None:
        from gimbalmq import sync

        with sync.Admin(self.server) as admin:
            admin.topics.create(topic, queues=partitions)

    def fill_mixed(self, topic: str, count: int, body: int, port: int) -> dict[str, float]:
        """Single sends to all queues of two topics in turn, in the Java client's bytes: neighbours in a queue
        lie apart in the log."""
        from benchmarks.loadgen.runner import run_c

        for number in range(2):
            self.create(f"{topic}{number:05d}", self.partitions // 2)
        shape = {"topic": topic, "topics": 2, "queues": self.partitions // 2, "body": body, "count": count}
        run_c("send", port=port, connections=4, window=400, **shape)
        return {}

    @contextmanager
    def feeding(self, topic: str) -> Iterator[None]:
        from gimbalmq import Message, sync

        with sync.Producer("feeder", self.server) as producer:

            def ten() -> None:
                for number in range(10):
                    producer.send(Message(topic, b"x" * 100, keys=str(number)))

            with repeating(ten):
                yield

    def python_side(self, topic: str) -> dict[str, float]:
        """Milliseconds that a micro-batch spends in our code, without Spark: plan on the driver, read in a task."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable

        from gimbalmq.spark.columns import DEFAULT, arrow_schema
        from gimbalmq.spark.options import SourceSettings
        from gimbalmq.spark.source import StreamReader

        settings = SourceSettings.read({"namesrv": self.server, "subscribe": topic}, streaming=True)
        reader = StreamReader(settings, arrow_schema(DEFAULT))
        made: list[dict[str, float]] = []
        with self.feeding(topic):
            start = reader.initialOffset()
            while len(made) < 30:
                time.sleep(0.1)
                began = time.perf_counter()
                end = reader.latestOffset(start, ReadAllAvailable())
                planned = time.perf_counter()
                parts = reader.partitions(start, end)
                cut = time.perf_counter()
                rows = sum(batch.num_rows for part in parts for batch in reader.read(part))
                done = time.perf_counter()
                if rows:
                    made.append(
                        {
                            "latestOffset": (planned - began) * 1000,
                            "partitions": (cut - planned) * 1000,
                            "read": (done - cut) * 1000,
                        }
                    )
                start = end
        reader.stop()
        return {name: statistics.median(one[name] for one in made[10:]) for name in made[0]}


TUNED = {"kafka.fetch.max.wait.ms": "10", "kafka.max.poll.records": "50000"}


class KafkaSide(Side):
    def __init__(self, spark: SparkSession, asked: Mapping[str, Any]) -> None:
        super().__init__(spark, asked)
        self._partitions_of: dict[str, int] = {}

    def table(self, topic: str, **options: str) -> DataFrame:
        return self._reading(self.spark.read, topic, options)

    def stream(self, topic: str, **options: str) -> DataFrame:
        return self._reading(self.spark.readStream, topic, options)

    def _reading(self, reader: Any, topic: str, options: dict[str, str]) -> DataFrame:
        whole = {"kafka.bootstrap.servers": self.server, "subscribe": topic, **TUNED, **options}
        frame: DataFrame = reader.format("kafka").options(**whole).load()
        return frame

    def save(self, frame: DataFrame, topic: str, **options: str) -> None:
        columns = ["body as value"]
        if "id" in frame.columns:  # spread evenly, as ours are
            columns.append(f"cast(id div 4000 % {self._partitions_of[topic]} as int) as partition")
        writing = frame.selectExpr(*columns).write.format("kafka").mode("append")
        writing.options(**{"kafka.bootstrap.servers": self.server, "topic": topic, **options}).save()

    def create(self, topic: str, partitions: int) -> None:
        self._partitions_of[topic] = partitions
        jvm: Any = self.spark._jvm
        properties = jvm.java.util.Properties()
        properties.put("bootstrap.servers", self.server)
        admin = jvm.org.apache.kafka.clients.admin.Admin.create(properties)
        try:
            new = jvm.org.apache.kafka.clients.admin.NewTopic(topic, partitions, 1)
            asked = jvm.java.util.ArrayList()
            asked.add(new)
            admin.createTopics(asked).all().get()
        finally:
            admin.close()

    @contextmanager
    def feeding(self, topic: str) -> Iterator[None]:
        jvm: Any = self.spark._jvm
        properties = jvm.java.util.Properties()
        properties.put("bootstrap.servers", self.server)
        for kind in ("key", "value"):
            name = "org.apache.kafka.common.serialization.StringSerializer"
            properties.put(f"{kind}.serializer", name)
        producer = jvm.org.apache.kafka.clients.producer.KafkaProducer(properties)
        record = jvm.org.apache.kafka.clients.producer.ProducerRecord

        def ten() -> None:
            for number in range(10):
                producer.send(record(topic, str(number), "x" * 100))

        try:
            with repeating(ten):
                yield
        finally:
            producer.close()


@contextmanager
def repeating(action: Callable[[], None]) -> Iterator[None]:
    """Does it ten times a second, in a thread, until the context ends."""
    over = threading.Event()

    def go() -> None:
        while not over.wait(0.1):
            action()

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def start_spark(asked: Mapping[str, Any]) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.sql.session.timeZone": "UTC",
        **asked["settings"],
    }
    submit = "".join(f"--conf {name}={value} " for name, value in settings.items())
    jars = f"--jars {','.join(asked['jars'])} " if asked["jars"] else ""
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--master local[{asked['cores']}] {jars}{submit}pyspark-shell"
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main() -> None:
    asked = json.loads(sys.argv[1])
    spark = start_spark(asked)
    side = {"ours": OurSide, "kafka": KafkaSide}[asked["side"]](spark, asked)
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        step, arguments = json.loads(line)
        print(json.dumps(getattr(side, step)(**arguments)), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
