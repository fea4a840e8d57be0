"""Synchronous sends: one connection with one request in flight, and eight such connections at once.

With --auth or --tls the brokers are first measured open, then secured, and the difference is printed.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.loadgen.runner import run_c
from benchmarks.report import Options, Row, main
from benchmarks.security import OPEN, Security
from benchmarks.subjects import APACHE, awake, chosen, measure, running
from benchmarks.warming import warm

CASES = ((1, 100), (8, 1024))
P50, CPU = "p50", "broker CPU for a send"


def run(options: Options) -> list[Row]:
    if not options.security:
        return _rows(options, OPEN, CASES)
    before = _rows(options, OPEN, CASES[:1])
    after = _rows(options, options.security, CASES)
    rows: list[Row] = []
    for row in after:
        open_row = next((known for known in before if known.what == row.what), None)
        what, row.what = row.what, f"{options.security.words}: {row.what}"
        rows.append(row)
        if open_row is None or not what.endswith((P50, CPU)):
            continue
        more = Row(f"  more than open: {what}", row.unit)
        for name in row.values:
            now, then = row.value(name), open_row.value(name)
            if now is not None and then is not None:
                more.add(name, now - then)
        rows.append(more)
    return rows


def _rows(options: Options, security: Security, cases: tuple[tuple[int, int], ...]) -> list[Row]:
    rows: list[Row] = []
    secured = security.load()
    # 4.9 knows neither users nor policies of this kind.
    versions = APACHE[:1] if security.auth else APACHE
    with running(chosen(options.only, versions), security) as subjects:
        for subject in subjects.values():
            with awake(subject):
                subject.create_topics(["latency"], queues=8)
                warming = {"topic": "latency", "queues": 8, "connections": 8, **secured}
                warming["count"] = int(options.pick(250_000, 40_000))
                many = partial(run_c, "send", port=subject.port, window=400, **warming)
                warm(subject, "sends, 400 in flight", many, quick=options.quick)
                warming["count"] = int(options.pick(20_000, 5_000))
                few = partial(run_c, "send", port=subject.port, window=8, **warming)
                warm(subject, "sends, 8 in flight", few, quick=options.quick, most_seconds=20)
        for clients, body in cases:
            what = f"synchronous send, {clients} connection{'s' if clients > 1 else ''}, {body} B"
            p50 = Row(f"{what}: {P50}", "us", goal=("<=", 1.0))
            p99 = Row(f"{what}: p99", "us", goal=("<=", 1.0))
            rate = Row(f"{what}: rate", "1/s")
            cost = Row(f"{what}: {CPU}", "us")
            rows += [p50, p99, rate, cost]
            shape = {"topic": "latency", "queues": 8, "connections": clients, "window": clients}
            shape |= {"body": body, "seconds": options.pick(3, 2), "warmup": 1}
            for _ in range(options.rounds):
                for name, subject in subjects.items():
                    load_of = partial(run_c, "send", port=subject.port, **shape, **secured)
                    load = measure(subject, load_of, options.tries)
                    p50.add(name, load.p50_us)
                    p99.add(name, load.p99_us)
                    rate.add(name, load.per_second)
                    cost.add(name, load.cpu_us)
    return rows


if __name__ == "__main__":
    main(run, __doc__, "latency", secured=True)
