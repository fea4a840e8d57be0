"""Pulls of 32 messages from 8 queues, one pull in flight on each, as push consumers send them.

The queues are filled first and read from the start, over and over; every record's length and magic number and
every answer's next offset are checked. Nothing reads the messages: this is the broker's side of consuming.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.loadgen.runner import run_c
from benchmarks.report import Options, Row, main
from benchmarks.subjects import awake, chosen, measure, running
from benchmarks.warming import MOST_MESSAGES, warm

QUEUES = 8
CASES = ((100, 4), (100, 1), (1024, 4))  # bytes in a body, connections


def run(options: Options) -> list[Row]:
    rows: list[Row] = []
    filling = int(options.pick(320_000, 80_000))
    with running(chosen(options.only)) as subjects:
        for subject in subjects.values():
            with awake(subject):
                for body in (100, 1024):
                    shape = {"topic": f"pull{body}", "queues": QUEUES, "connections": 4}
                    subject.create_topics([f"pull{body}"], queues=QUEUES)
                    run_c("send", port=subject.port, body=body, window=400, count=filling, tags=True, **shape)
                    shape |= {"group": "pull_warm", "seconds": options.pick(2, 1)}
                    window = partial(run_c, "pull", port=subject.port, **shape)
                    # Messages, not requests: there are 32 in an answer.
                    limits = {"most_messages": 32 * MOST_MESSAGES, "most_seconds": 30}
                    warm(subject, f"pulls, {body} B", window, quick=options.quick, **limits)
        for body, connections in CASES:
            what = f"pulled messages, {body} B, {connections} connection{'s' if connections > 1 else ''}"
            rate = Row(what, "1/s", goal=(">=", 1.0))
            volume = Row(f"{what}: volume", "MB/s")
            cost = Row(f"{what}: broker CPU for a pull of 32", "us")
            rows += [rate, volume, cost]
            shape = {"topic": f"pull{body}", "queues": QUEUES, "connections": connections}
            shape |= {"group": "pull_group", "seconds": options.pick(3, 2), "warmup": 0.5}
            for _ in range(options.rounds):
                for name, subject in subjects.items():
                    load = measure(subject, partial(run_c, "pull", port=subject.port, **shape), options.tries)
                    rate.add(name, load.per_second)
                    volume.add(name, load.mb_per_second)
                    cost.add(name, load.cpu_us)
    return rows


if __name__ == "__main__":
    main(run, __doc__, "pull")
