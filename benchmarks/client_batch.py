"""Async sends with automatic batching: our producer beside Java's, on the same broker, in one run.

python benchmarks/client_batch.py [--quick] [--broker both|apache|ours] [--only ours|apache] [--json FILE]

Each has its own defaults: both wait up to 10 ms for a batch, ours of 128 KB and Java's 5.x client of 32 KB. Java's with
batches of our size, and our producer without batches, stand beside them. So does `send_many`, two calls at a time, each
of half as many messages as Java's has in flight.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.client_common import Limit, Plan, in_turn, main, one_broker
from benchmarks.client_send import send
from benchmarks.loadgen.runner import run_c
from benchmarks.report import Row
from benchmarks.subjects import awake
from gimbalmq.client.config import ProducerConfig

QUEUES = 8
WINDOW = 4000
SIZE = ProducerConfig.batch_max_bytes


def run(plan: Plan) -> list[Row]:
    options = plan.options
    clients = plan.clients()
    rows: list[Row] = []
    times = {"seconds": options.pick(5, 2), "warmup": options.pick(5, 2), "window": WINDOW}
    with one_broker(plan, {"send100": QUEUES, "send1024": QUEUES}) as subject:
        with awake(subject):
            run_c(
                "send",
                port=subject.port,
                topic="send100",
                connections=4,
                queues=QUEUES,
                window=2000,
                seconds=options.pick(14, 3),
                body=100,
            )
        for body in (100, 1024):
            rate = Row(f"async sends in batches, {WINDOW} in flight, {body} B", "1/s", goal=(">=", 1.0))
            even = Row(f"the same, both with batches of {SIZE >> 10} KB, {body} B", "1/s", goal=(">=", 1.0))
            many = Row(f"the same, ours in calls of {WINDOW // 2}, {body} B", "1/s", goal=(">=", 1.0))
            many_cost = Row(f"our processor time for each, in calls of {WINDOW // 2}, {body} B", "us")
            cost = Row(f"our processor time for each, in batches, {body} B", "us")
            served = Row(f"the broker's for each, in batches, {body} B", "us")
            single = Row(f"async sends one by one, {body} B", "1/s")
            single_cost = Row(f"our processor time for each, one by one, {body} B", "us")
            single_served = Row(f"the broker's for each, one by one, {body} B", "us")
            gain = Limit(f"in batches, times the rate one by one, {body} B", "x", goal=(">=", 3.0))
            saving = Limit(
                f"our processor time one by one, times that in batches, {body} B", "x", goal=(">=", 3.0)
            )
            both = Limit(f"the same with the broker's, {body} B", "x", goal=(">=", 3.0))
            rows += [
                rate,
                many,
                even,
                cost,
                many_cost,
                served,
                single,
                single_cost,
                single_served,
                gain,
                saving,
                both,
            ]
            shape: dict[str, object] = {"topic": f"send{body}", "body": body, **times}
            for turn in range(options.rounds):
                for client in in_turn(clients, turn):
                    gathered = send(plan, subject, client, "async", autobatch=1, **shape)
                    rate.add(client, gathered.per_second)
                    served.add(client, gathered.cpu_us)
                    if client == "apache":
                        many.add(client, gathered.per_second)
                        large = send(plan, subject, client, "async", autobatch=1, batchbytes=SIZE, **shape)
                        even.add(client, large.per_second)
                    else:
                        even.add(client, gathered.per_second)
                        called = send(plan, subject, client, "many", **shape)
                        many.add(client, called.per_second)
                        many_cost.add(client, called.generator_us)
                        alone = send(plan, subject, client, "async", **shape)
                        cost.add(client, gathered.generator_us)
                        single.add(client, alone.per_second)
                        single_cost.add(client, alone.generator_us)
                        gain.add(client, gathered.per_second / alone.per_second)
                        single_served.add(client, alone.cpu_us)
                        saving.add(client, alone.generator_us / gathered.generator_us)
                        alone_us, gathered_us = (
                            load.generator_us + load.cpu_us for load in (alone, gathered)
                        )
                        both.add(client, alone_us / gathered_us)
    return rows


if __name__ == "__main__":
    main(run, __doc__, "client_batch")
