"""All cores: several brokers of one `gimbalmq server --brokers N` beside one broker, and beside Apache's.

The load is that of broker_send.py for each broker: 4 connections, 2000 requests in flight, one generator for all. To
one topic the sends are as alike as can be, and a broker of ours takes them by vectors; of ten topics each send is for
another one than that before it.
Of N brokers each has the topics and gets its share, as a producer's route would have it. Apache's brokers use all cores
in one process, so each of them is asked alone.

A measurement takes two seconds, five of each: two brokers write a gigabyte a second, and after some four the kernel
would let the disk set the pace.

The generator shares the cores with the brokers. "What the cores allow" is the rate at which the processor time of both
for a send would use all cores up, or the brokers their own. The ratio of two such figures is the most that several
brokers can be ahead of one by.

    python benchmarks/broker_cores.py [--brokers N] [--quick] [--only ours|apache] [--json FILE]
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.loadgen.runner import CannotMeasure, Load, run_c
from benchmarks.report import Options, Row, main
from benchmarks.subjects import (
    APACHE,
    Ours,
    Subject,
    Wire,
    awake,
    chosen,
    encode,
    measure,
    running,
    scratch_folder,
)
from benchmarks.warming import MOST_MESSAGES, warm

TOPIC = "cores"
QUEUES = 8
WINDOW = 2000
CLUSTER_INFO = 106
TOPICS = 10
LOADS: dict[str, dict[str, int]] = {
    "100 B": {"body": 100},
    "1 KB": {"body": 1024},
    "100 B, ten topics": {"body": 100, "topics": TOPICS},
    "1 KB, ten topics": {"body": 1024, "topics": TOPICS},
}
NAMES = (TOPIC, *(f"{TOPIC}{number:05d}" for number in range(TOPICS)))  # as the generator spells them
ONE = "1 broker"


class Many(Ours):
    """Our server with several brokers."""

    def __init__(self, folder: Path, brokers: int) -> None:
        super().__init__(folder)
        self.brokers = brokers
        self.options = ("--brokers", str(brokers))

    def ports(self) -> list[int]:
        """Where its brokers listen, as the name server tells clients; waits until all are there."""
        deadline = time.monotonic() + 30
        while True:
            with Wire(self.namesrv_port) as wire:
                wire.write(encode(CLUSTER_INFO, {}))
                _, body = wire.answer()
            text = re.sub(r"([{,])(\d+):", r'\1"\2":', body.decode())  # fastjson writes numbers as keys
            table = json.loads(text)["brokerAddrTable"]
            found = [int(row["brokerAddrs"]["0"].rpartition(":")[2]) for _, row in sorted(table.items())]
            if len(found) >= self.brokers:
                return found
            if time.monotonic() > deadline:
                raise CannotMeasure(f"only {len(found)} of {self.brokers} brokers have registered in 30 s")
            time.sleep(0.1)


@contextmanager
def _many(brokers: int) -> Iterator[Many]:
    """Started, then frozen."""
    with scratch_folder() as folder:
        subject = Many(folder / "ours", brokers)
        try:
            subject.start()
            for port in subject.ports():
                with Wire(port) as wire:
                    for topic in NAMES:
                        answer = wire.call(17, _topic(topic))
                        if answer["code"] != 0:
                            raise CannotMeasure(f"the broker at port {port} makes no topic: {answer}")
            subject.freeze()
            yield subject
        finally:
            subject.kill()


def _topic(name: str) -> dict[str, object]:
    shape: dict[str, object] = {"readQueueNums": QUEUES, "writeQueueNums": QUEUES, "perm": 6, "topic": name}
    return shape | {
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
        "defaultTopic": "TBW102",
    }


def _allowed(load: Load, brokers: int) -> float:
    """Sends a second if no core were ever idle or busy with anything else. A broker uses one core at most."""
    cores = len(os.sched_getaffinity(0))
    return min(brokers / load.cpu_us, cores / (load.cpu_us + load.generator_us)) * 1e6


def run(options: Options) -> list[Row]:
    brokers = options.brokers or len(os.sched_getaffinity(0))
    seconds = options.pick(2, 1)
    names = chosen(options.only)
    rows: list[Row] = []
    with ExitStack() as stack:
        found: dict[str, Subject] = dict(stack.enter_context(running(names)))
        if "ours" in found:
            found = {ONE: found.pop("ours"), "ours": stack.enter_context(_many(brokers)), **found}
            found[ONE].name = ONE
        shapes: dict[str, dict[str, Any]] = {}
        for name, subject in found.items():
            with awake(subject):
                ports = subject.ports() if isinstance(subject, Many) else [subject.port]
                if not isinstance(subject, Many):
                    subject.create_topics(NAMES, queues=QUEUES)
                shapes[name] = {
                    "port": ",".join(map(str, ports)),
                    "topic": TOPIC,
                    "queues": QUEUES,
                    "connections": 4 * len(ports),
                    "window": WINDOW * len(ports),
                }
                for what, sends in LOADS.items():
                    count = int(options.pick(250_000, 50_000))
                    window = partial(run_c, "send", **shapes[name], **sends, count=count)
                    most = MOST_MESSAGES if what == "100 B" else MOST_MESSAGES // 4
                    warm(subject, f"sends, {what}", window, quick=options.quick, most_messages=most)
        for what, sends in LOADS.items():
            title = f"sends, {what}, {brokers} brokers"
            more = Row(f"{title}, beside one", "1/s", goal=(">=", 1.7))
            rate = Row(f"{title}, beside Apache", "1/s", goal=(">=", 2.0))
            cost = Row(f"{title}: broker CPU for each", "us")
            made = Row(f"{title}: generator's CPU for each", "us")
            bound = Row(f"{title}: what the cores allow", "1/s")
            refused = Row(f"{title}: refused", "1/s")
            rows += [more, rate, cost, made, bound, refused]
            for _ in range(int(options.pick(5, 1))):
                for name, subject in found.items():
                    load_of = partial(run_c, "send", **shapes[name], **sends, seconds=seconds, warmup=0.5)
                    load = measure(subject, load_of, options.tries)
                    for row in (more, rate):
                        if name == "ours" or (name in APACHE) == (row is rate):
                            row.add(name, load.per_second)
                    cost.add(name, load.cpu_us)
                    made.add(name, load.generator_us)
                    if name not in APACHE:
                        bound.add(name, _allowed(load, 1 if name == ONE else brokers))
                    refused.add(name, load.refused / seconds)
    return rows


if __name__ == "__main__":
    main(run, __doc__, "cores", many=True)
