"""Async sends with automatic batching: our producer beside Java's, on the same broker, in one run.

python benchmarks/client_batch.py [--quick] [--broker both|apache|ours] [--only ours|apache] [--json FILE]

Both wait up to 10 ms for a batch of 32 KB, the defaults of Java's 5.x client. Our producer without batches stands
beside them.
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

QUEUES = 8
WINDOW = 4000


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
            cost = Row(f"our processor time for each, in batches, {body} B", "us")
            single = Row(f"async sends one by one, {body} B", "1/s")
            single_cost = Row(f"our processor time for each, one by one, {body} B", "us")
            gain = Limit(f"in batches, times the rate one by one, {body} B", "x", goal=(">=", 3.0))
            saving = Limit(f"one by one, times the processor time in batches, {body} B", "x")
            rows += [rate, cost, single, single_cost, gain, saving]
            shape: dict[str, object] = {"topic": f"send{body}", "body": body, **times}
            for turn in range(options.rounds):
                for client in in_turn(clients, turn):
                    gathered = send(plan, subject, client, "async", autobatch=1, **shape)
                    rate.add(client, gathered.per_second)
                    if client == "ours":
                        alone = send(plan, subject, client, "async", **shape)
                        cost.add(client, gathered.generator_us)
                        single.add(client, alone.per_second)
                        single_cost.add(client, alone.generator_us)
                        gain.add(client, gathered.per_second / alone.per_second)
                        saving.add(client, alone.generator_us / gathered.generator_us)
    return rows


if __name__ == "__main__":
    main(run, __doc__, "client_batch")
