"""Pipelined sends a second: 4 connections, 2000 requests in flight, bodies of 100 B and 1 KB.

The generator needs about 1 microsecond of processor a message, kernel included, so the broker is what is
measured. Both brokers get 1.2 million messages first: until then Apache's compilers have not settled.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.loadgen.runner import run_c
from benchmarks.report import Options, Row, main
from benchmarks.subjects import awake, chosen, measure, running

SHAPE = {"topic": "send", "queues": 8, "connections": 4, "window": 2000}


def run(options: Options) -> list[Row]:
    small = Row("pipelined sends, 100 B", "1/s", goal=(">=", 2.0))
    large = Row("pipelined sends, 1 KB", "1/s", goal=(">=", 2.0))
    keyed = Row("pipelined sends, 100 B with a key and a tag", "1/s")
    cases: tuple[tuple[Row, dict[str, object]], ...] = (
        (small, {"body": 100}),
        (large, {"body": 1024}),
        (keyed, {"body": 100, "keys": True, "tags": True}),
    )
    cost = Row("broker CPU for a send, 100 B", "us")
    refused = Row("refused (busy) while measured", "1/s")
    memory = Row("memory afterwards, without mapped files", "MB")
    seconds = options.pick(4, 2)
    with running(chosen(options.only)) as subjects:
        for subject in subjects.values():
            with awake(subject):
                subject.create_topics(["send"], queues=8)
                until = {"count": int(options.pick(1_200_000, 100_000)), "seconds": options.pick(40, 3)}
                run_c("send", port=subject.port, **until, **SHAPE)
        for _ in range(options.rounds):
            for row, extra in cases:
                for name, subject in subjects.items():
                    shape = {**SHAPE, **extra, "seconds": seconds, "warmup": 1}
                    load = measure(subject, partial(run_c, "send", port=subject.port, **shape), options.tries)
                    row.add(name, load.per_second)
                    refused.add(name, load.refused / seconds)
                    if row is small:
                        cost.add(name, load.subject_cpu / load.raw["answered"] * 1e6)
        for name, subject in subjects.items():
            memory.add(name, subject.memory().anonymous)
    return [small, large, keyed, cost, refused, memory]


if __name__ == "__main__":
    main(run, __doc__, "send")
