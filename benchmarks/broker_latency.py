"""Synchronous sends: one connection with one request in flight, and eight such connections at once."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.loadgen.runner import run_c
from benchmarks.report import Options, Row, main
from benchmarks.subjects import awake, chosen, measure, running


def run(options: Options) -> list[Row]:
    rows: list[Row] = []
    with running(chosen(options.only)) as subjects:
        for subject in subjects.values():
            with awake(subject):
                subject.create_topics(["latency"], queues=8)
                for window, count in ((400, options.pick(400_000, 40_000)), (8, options.pick(60_000, 5_000))):
                    shape = {"topic": "latency", "queues": 8, "connections": 8, "window": window}
                    run_c("send", port=subject.port, count=int(count), seconds=20, **shape)
        for clients, body in ((1, 100), (8, 1024)):
            what = f"synchronous send, {clients} connection{'s' if clients > 1 else ''}, {body} B"
            p50 = Row(f"{what}: p50", "us", goal=("<=", 1.0))
            p99 = Row(f"{what}: p99", "us", goal=("<=", 1.0))
            rate = Row(f"{what}: rate", "1/s")
            cost = Row(f"{what}: broker CPU for a send", "us")
            rows += [p50, p99, rate, cost]
            shape = {"topic": "latency", "queues": 8, "connections": clients, "window": clients}
            shape |= {"body": body, "seconds": options.pick(3, 2), "warmup": 1}
            for _ in range(options.rounds):
                for name, subject in subjects.items():
                    load = measure(subject, partial(run_c, "send", port=subject.port, **shape), options.tries)
                    p50.add(name, load.p50_us)
                    p99.add(name, load.p99_us)
                    rate.add(name, load.per_second)
                    cost.add(name, load.subject_cpu / load.raw["answered"] * 1e6)
    return rows


if __name__ == "__main__":
    main(run, __doc__, "latency")
