"""Pipelined sends a second: 4 connections, 2000 requests in flight, bodies of 100 B and 1 KB.

The generator needs about 1 microsecond of processor a message, kernel included, so the broker is what is
measured. Each broker first gets messages until it does not get faster any more (warming.py). Only accepted sends count.

With --auth or --tls the brokers are first measured open, then secured, and the difference is printed. Signed sends are
64 for each queue, over and over, because signing each would cost the generator more than sending it.
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
from benchmarks.warming import MOST_MESSAGES, warm

SHAPE = {"topic": "send", "queues": 8, "connections": 4, "window": 2000}
SMALL, LARGE, KEYED = (
    "pipelined sends, 100 B",
    "pipelined sends, 1 KB",
    "pipelined sends, 100 B with a key and a tag",
)
COST = "broker CPU for a send, 100 B"
BODIES: dict[str, dict[str, object]] = {SMALL: {"body": 100}, LARGE: {"body": 1024}}


def run(options: Options) -> list[Row]:
    if not options.security:
        return _rows(options, OPEN, {**BODIES, KEYED: {"body": 100, "keys": True, "tags": True}}, goal=2.0)
    before = {row.what: row for row in _rows(options, OPEN, {SMALL: BODIES[SMALL]}, goal=None)}
    after = _rows(options, options.security, BODIES, goal=1.5)
    return _told(before, after, options.security)


def _rows(
    options: Options, security: Security, bodies: dict[str, dict[str, object]], goal: float | None
) -> list[Row]:
    rows = {what: Row(what, "1/s", goal=None if goal is None else (">=", goal)) for what in bodies}
    if KEYED in rows:
        rows[KEYED].goal = None
    costs = {what: Row(COST if what == SMALL else f"{what}: broker CPU for each", "us") for what in bodies}
    refused = Row("refused (busy) while measured", "1/s")
    memory = Row("memory afterwards, without mapped files", "MB")
    seconds = options.pick(4, 2)
    shape = {**SHAPE, **security.load()}
    # 4.9 knows neither users nor policies of this kind.
    versions = APACHE[:1] if security.auth else APACHE
    with running(chosen(options.only, versions), security) as subjects:
        for subject in subjects.values():
            with awake(subject):
                subject.create_topics(["send"], queues=8)
                for what, extra in bodies.items():
                    count = int(options.pick(250_000, 50_000))
                    window = partial(run_c, "send", port=subject.port, **shape, **extra, count=count)
                    # The first kind of load warms the broker, the others what is different in them.
                    most = MOST_MESSAGES if what == SMALL else MOST_MESSAGES // 4
                    warm(subject, what, window, quick=options.quick, most_messages=most)
        for _ in range(options.rounds):
            for what, extra in bodies.items():
                for name, subject in subjects.items():
                    load_of = partial(
                        run_c, "send", port=subject.port, **shape, **extra, seconds=seconds, warmup=1
                    )
                    load = measure(subject, load_of, options.tries)
                    rows[what].add(name, load.per_second)
                    refused.add(name, load.refused / seconds)
                    costs[what].add(name, load.cpu_us)
        for name, subject in subjects.items():
            memory.add(name, subject.memory().anonymous)
    return [*rows.values(), *costs.values(), refused, memory]


def _told(before: dict[str, Row], after: list[Row], security: Security) -> list[Row]:
    """The secured brokers, then what the open ones did, then the difference for one send."""
    rows: list[Row] = []
    for row in after:
        now, row.what = row.what, f"{security.words}: {row.what}"
        rows.append(row)
        if now not in (SMALL, COST):
            continue
        open_row = before[now]
        open_row.what, open_row.goal = f"open: {now}", None
        rows.append(open_row)
        if now == COST:
            more = Row(f"cost of a send {security.words} instead of open", "us")
            for name in row.values:
                secured_cost, open_cost = row.value(name), open_row.value(name)
                if secured_cost is not None and open_cost is not None:
                    more.add(name, secured_cost - open_cost)
            rows.append(more)
    return rows


if __name__ == "__main__":
    main(run, __doc__, "send", secured=True)
