"""Sends a second: our producer beside Java's, on the same broker, in one run.

python benchmarks/client_send.py [--quick] [--broker both|apache|ours] [--only ours|apache] [--json FILE]
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.client_common import Plan, in_turn, main, one_broker, run_ours
from benchmarks.loadgen.runner import Load, run_c, run_java
from benchmarks.report import Row
from benchmarks.subjects import Subject, awake, measure
from benchmarks.warming import MOST_MESSAGES, warm

QUEUES = 8


def send(plan: Plan, subject: Subject, client: str, mode: str, **shape: object) -> Load:
    if client == "ours":
        load = partial(run_ours, mode, namesrv=subject.namesrv, **shape)
    else:
        settle = 0 if plan.options.quick else MOST_MESSAGES
        load = partial(run_java, mode, namesrv=subject.namesrv, home=subject.folder, settle=settle, **shape)
    return measure(subject, load, plan.options.tries)


def run(plan: Plan) -> list[Row]:
    options = plan.options
    clients = plan.clients()
    rows: list[Row] = []
    # Both clients and the broker are warm before a figure counts. Java's client is asked to go on until it does not
    # get faster (`settle`); ours has nothing to compile.
    times = {"seconds": options.pick(5, 2), "warmup": options.pick(5, 2)}
    with one_broker(plan, {"send100": QUEUES, "send1024": QUEUES}) as subject:
        # A cold Apache broker takes a third of what a warm one does: whoever came first would pay for it.
        with awake(subject):
            warming = {"topic": "send100", "connections": 4, "queues": QUEUES, "window": 2000}
            warming["count"] = int(options.pick(250_000, 50_000))
            window = partial(run_c, "send", port=subject.port, **warming)
            warm(subject, "sends", window, quick=options.quick)
        for body in (100, 1024):
            rate = Row(f"async sends, 2000 in flight, {body} B", "1/s", goal=(">=", 1.0))
            cost = Row(f"our processor time for each, {body} B", "us")
            rows += [rate, cost]
            for turn in range(options.rounds):
                for client in in_turn(clients, turn):
                    load = send(
                        plan, subject, client, "async", topic=f"send{body}", body=body, window=2000, **times
                    )
                    rate.add(client, load.per_second)
                    if client == "ours":
                        cost.add(client, load.generator_us)
        for threads in (1, 8):
            each = "one at a time" if threads == 1 else f"{threads} at a time"
            p50 = Row(f"synchronous send, {each}, p50", "us", goal=("<=", 1.0))
            p99 = Row(f"synchronous send, {each}, p99", "us")
            rate = Row(f"synchronous send, {each}", "1/s", goal=(">=", 1.0))
            cost = Row(f"our processor time for each, {each}", "us")
            rows += [p50, p99, rate, cost]
            for turn in range(options.rounds):
                for client in in_turn(clients, turn):
                    load = send(plan, subject, client, "sync", topic="send100", threads=threads, **times)
                    p50.add(client, load.p50_us)
                    p99.add(client, load.p99_us)
                    rate.add(client, load.per_second)
                    if client == "ours":
                        cost.add(client, load.generator_us)
    return rows


if __name__ == "__main__":
    main(run, __doc__, "client_send")
