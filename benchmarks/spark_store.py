"""Rows a second out of a store folder: by the store source, and through the broker that owns it.

The same messages, the same columns, the same Spark (local[2]), in turn. Without Spark the store source's own
cost is measured as CPU time of one process; `partitions` shows how it grows with tasks.

    python benchmarks/spark_store.py [--quick] [--messages N]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pyarrow as pa

from benchmarks.spark_sink import start_spark
from benchmarks.subjects import awake, running
from gimbalmq.spark import columns, sink, sink_send
from gimbalmq.spark.sink_options import SinkSettings
from gimbalmq.spark.store_source import StoreReader, StoreSettings

TWO = ("offset", "body")
SHAPES = {"two columns": TWO, "all but the map": columns.DEFAULT, "all": (*columns.DEFAULT, "properties")}
DDL = {
    "two columns": "offset bigint, body binary",
    "all but the map": None,
}


def fill(namesrv: str, messages: int) -> None:
    """Nine tenths in one topic, one tenth in another, mixed in the log as two jobs would mix them."""
    body = pa.array([b"x" * 100] * 10_000, pa.binary())
    topics = pa.array(["small" if n % 10 == 0 else "big" for n in range(10_000)])
    batch = pa.record_batch([body, topics], names=["body", "topic"])
    options = {"namesrv": namesrv, "sendTimeout": "60s", "batchSize": "500"}
    writer = sink.SinkWriter(SinkSettings.read(options), {"body": 0, "topic": 1}, "0" * 32)
    writer.write(iter([batch] * (messages // 10_000)))
    for sender in list(sink_send.Sender._shared.values()):
        sender.close()


def read_part(
    path: str, names: tuple[str, ...], number: int, parts: int, topic: str | None
) -> tuple[int, float]:
    """Rows and CPU seconds of every ``parts``-th partition."""
    options = {"path": path} | ({} if topic is None else {"subscribe": topic})
    reader = StoreReader(StoreSettings.read(options), columns.arrow_schema(names))
    began = time.process_time()
    rows = sum(batch.num_rows for part in reader.partitions()[number::parts] for batch in reader.read(part))
    return rows, time.process_time() - began


def alone(path: str, rounds: int) -> None:
    for label, names in SHAPES.items():
        seen = [read_part(path, names, 0, 1, None) for _ in range(rounds)]
        rate = median(rows / seconds for rows, seconds in seen)
        print(f"store source alone, {label}: {rate / 1e6:.2f} M rows in a second of CPU", flush=True)
    for topic in ("small", "big"):
        rows, seconds = read_part(path, TWO, 0, 1, topic)
        print(f"store source alone, topic {topic}: {rows / seconds / 1e6:.2f} M rows in a second of CPU")
    with get_context("spawn").Pool(2) as pool:
        pool.starmap(read_part, [(path, TWO, number, 2, "none") for number in range(2)])
        for processes in (1, 2):
            began = time.perf_counter()
            found = pool.starmap(read_part, [(path, TWO, n, processes, None) for n in range(processes)])
            seconds = time.perf_counter() - began
            total = sum(rows for rows, _ in found)
            print(f"store source, {processes} processes: {total / seconds / 1e6:.2f} M rows/s by the clock")


def timed(action: Callable[[], object], rounds: int) -> float:
    action()
    times: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return median(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few messages, one round")
    parser.add_argument("--messages", type=int, default=2_000_000)
    asked = parser.parse_args()
    messages = 200_000 if asked.quick else asked.messages
    rounds = 1 if asked.quick else 3
    with running(["ours"]) as subjects:
        subject = subjects["ours"]
        with awake(subject):
            subject.create_topics(["big", "small"], queues=8)
            fill(subject.namesrv, messages)
            spark = start_spark()
            alone(str(subject.store), rounds)
            for label, ddl in DDL.items():
                one, other = (spark.read if ddl is None else spark.read.schema(ddl) for _ in range(2))
                through = one.format("rocketmq").option("namesrv", subject.namesrv).load("big,small")
                folder = other.format("rocketmq-store").load(str(subject.store))
                for name, frame in (("through the broker", through), ("from the folder", folder)):
                    seconds = timed(lambda: frame.write.format("noop").mode("append").save(), rounds)  # noqa: B023
                    print(f"Spark, {label}, {name}: {messages / seconds / 1e6:.2f} M rows/s", flush=True)
            spark.stop()


if __name__ == "__main__":
    main()
