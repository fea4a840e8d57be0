"""The unmodified Java client 5.5.0 against both: async and sync sends, push consuming in batches of 32.

On two cores the Java client takes more processor than any broker, so these ratios lie closer to one than
those of the C generator: they say what a Java user would see.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.loadgen.runner import CannotMeasure, Load, build_java, run_c, run_java
from benchmarks.report import Options, Row, main
from benchmarks.subjects import Subject, Wire, awake, chosen, measure, running, why_not

QUEUES = 8


def await_route(subject: Subject, topic: str) -> None:
    """Until the name server knows the topic: a broker that came up first registers again when one is made."""
    deadline = time.monotonic() + 60
    with Wire(subject.namesrv_port) as wire:
        while wire.call(105, {"topic": topic})["code"] != 0:
            if time.monotonic() > deadline:
                raise CannotMeasure(f"{subject.name}: the name server never learnt of topic {topic}")
            time.sleep(0.2)


def run(options: Options) -> list[Row]:
    reason = why_not("apache")
    if reason:
        raise CannotMeasure(reason)
    build_java()
    rows: list[Row] = []
    times = {"seconds": options.pick(5, 2), "warmup": options.pick(4, 1)}
    filling = int(options.pick(1_000_000, 100_000))

    def java(subject: Subject, mode: str, **shape: object) -> Load:
        client = partial(run_java, mode, namesrv=subject.namesrv, home=subject.folder, **shape)
        return measure(subject, client, options.tries)

    with running(chosen(options.only)) as subjects:
        for subject in subjects.values():
            with awake(subject):
                subject.create_topics(["java100", "java1024", "full100"], queues=QUEUES)
                await_route(subject, "full100")
                shape = {"topic": "full100", "queues": QUEUES, "connections": 4, "window": 400}
                run_c("send", port=subject.port, count=filling, tags=True, **shape)
        for body, label in ((100, "100 B"), (1024, "1 KB")):
            sends = Row(f"Java client, async sends, {label}", "1/s", goal=(">=", 1.0))
            rows.append(sends)
            for _ in range(min(2, options.rounds)):
                for name, subject in subjects.items():
                    load = java(subject, "async", topic=f"java{body}", window=2000, body=body, **times)
                    sends.add(name, load.per_second)
        for threads in (1, 8):
            label = f"Java client, sync sends, {threads} thread{'s' if threads > 1 else ''}"
            p50 = Row(f"{label}: p50", "us", goal=("<=", 1.0))
            p99 = Row(f"{label}: p99", "us")
            rate = Row(f"{label}: rate", "1/s")
            rows += [p50, p99, rate]
            for _ in range(min(2, options.rounds)):
                for name, subject in subjects.items():
                    load = java(subject, "sync", topic="java100", threads=threads, **times)
                    p50.add(name, load.p50_us)
                    p99.add(name, load.p99_us)
                    rate.add(name, load.per_second)
        consumed = Row("Java push consumer, batches of 32, 100 B", "1/s", goal=(">=", 1.0))
        rows.append(consumed)
        for _ in range(options.rounds):
            for name, subject in subjects.items():
                load = java(subject, "consume", topic="full100", count=filling - 1000, batch=32)
                consumed.add(name, load.per_second)
    return rows


if __name__ == "__main__":
    main(run, __doc__, "javaclient")
