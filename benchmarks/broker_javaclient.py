"""The unmodified Java client 5.5.0 against both: async and sync sends, push consuming in batches of 32.

On two cores the Java client takes as much processor as any broker, so these ratios lie closer to one than those
of the C generator: they say what a Java user would see. The broker is warmed by the C generator, and the client goes on
in one process until it does not get faster.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.loadgen.runner import JAVA_VERSION, CannotMeasure, Load, build_java, run_c, run_java
from benchmarks.report import Options, Row, main
from benchmarks.subjects import Subject, Wire, awake, chosen, measure, running, why_not
from benchmarks.warming import MOST_MESSAGES, warm

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
    reason = why_not(JAVA_VERSION)
    if reason:
        raise CannotMeasure(reason)
    build_java()
    filling = int(options.pick(1_000_000, 100_000))
    producing = {"topic": "java", "window": 2000, "seconds": options.pick(5, 2)}
    producing["settle"] = int(options.pick(MOST_MESSAGES, 0))
    small = Row("Java client, async sends, 100 B", "1/s", goal=(">=", 1.0))
    large = Row("Java client, async sends, 1 KB", "1/s", goal=(">=", 1.0))
    refused = Row("Java client, async sends refused (busy)", "1/s")
    rows = [small, large, refused]
    sync: dict[str, tuple[Row, Row, Row]] = {}
    for phase, label in (("sync1", "1 thread"), ("sync8", "8 threads")):
        sync[phase] = (
            Row(f"Java client, sync sends, {label}: p50", "us", goal=("<=", 1.0)),
            Row(f"Java client, sync sends, {label}: p99", "us"),
            Row(f"Java client, sync sends, {label}: rate", "1/s"),
        )
        rows += sync[phase]
    consumed = Row("Java push consumer, batches of 32, 100 B", "1/s", goal=(">=", 1.0))
    rows.append(consumed)

    def java(subject: Subject, mode: str, **shape: object) -> Load:
        client = partial(run_java, mode, namesrv=subject.namesrv, home=subject.folder, **shape)
        return measure(subject, client, options.tries)

    with running(chosen(options.only)) as subjects:
        for subject in subjects.values():
            with awake(subject):
                subject.create_topics(["java", "full"], queues=QUEUES)
                await_route(subject, "full")
                shape = {"queues": QUEUES, "connections": 4}
                count = int(options.pick(250_000, 50_000))
                window = partial(
                    run_c, "send", port=subject.port, topic="java", window=2000, count=count, **shape
                )
                warm(subject, "sends", window, quick=options.quick)
                run_c("send", port=subject.port, topic="full", window=400, count=filling, tags=True, **shape)
        for _ in range(min(2, options.rounds)):
            for name, subject in subjects.items():
                phases = java(subject, "produce", **producing).raw["phases"]
                small.add(name, phases["async100"]["per_second"])
                large.add(name, phases["async1024"]["per_second"])
                for phase in ("async100", "async1024"):
                    refused.add(name, phases[phase]["codes"]["1"] / phases[phase]["seconds"])
                for phase, (p50, p99, rate) in sync.items():
                    p50.add(name, phases[phase]["latency_us"]["p50"])
                    p99.add(name, phases[phase]["latency_us"]["p99"])
                    rate.add(name, phases[phase]["per_second"])
            for name, subject in subjects.items():
                load = java(subject, "consume", topic="full", count=filling - 1000, batch=32)
                consumed.add(name, load.per_second)
    return rows


if __name__ == "__main__":
    main(run, __doc__, "javaclient")
