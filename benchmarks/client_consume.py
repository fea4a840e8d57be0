"""Messages consumed a second: our push consumer beside Java's, on the same broker, in one run; and decoding alone.

    python benchmarks/client_consume.py [--quick] [--broker both|apache|ours] [--only ours|apache] [--json FILE]

Both pull 32 at a time. Java decodes a message in full when it arrives; ours when a field is asked for, so
decoding is shown twice: as it arrives, and with body, id, tags, properties and time read.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.client_common import Plan, in_turn, main, one_broker, run_java_consumer, run_ours
from benchmarks.loadgen.runner import CannotMeasure, Load, run_c
from benchmarks.report import Row
from benchmarks.subjects import Subject, Wire, awake, encode, measure

QUEUES = 8


def consume(plan: Plan, subject: Subject, client: str, **shape: object) -> Load:
    if client == "ours":
        load = partial(run_ours, "consume", namesrv=subject.namesrv, **shape)
    else:
        shape.pop("plain", None)
        load = partial(run_java_consumer, "consume", home=subject.folder, namesrv=subject.namesrv, **shape)
    return measure(subject, load, plan.options.tries)


def pulled_body(subject: Subject, topic: str) -> bytes:
    """The body of one pull of 32 messages."""
    fields = {
        "consumerGroup": "bench_decode",
        "topic": topic,
        "queueId": 0,
        "queueOffset": 0,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subscription": "*",
        "subVersion": 0,
        "expressionType": "TAG",
    }
    with Wire(subject.port) as wire:
        wire.write(encode(11, fields))
        header, body = wire.answer()
    if header["code"] != 0:
        raise CannotMeasure(f"the broker has nothing to decode: {header}")
    return body


def run(plan: Plan) -> list[Row]:
    options = plan.options
    clients = plan.clients()
    rows: list[Row] = []
    with one_broker(plan, {"full100": QUEUES}) as subject:
        count = int(options.pick(800_000, 80_000))
        with awake(subject):
            filled = 0
            while filled < count + 40_000:
                filled += run_c(
                    "send",
                    port=subject.port,
                    topic="full100",
                    connections=4,
                    queues=QUEUES,
                    window=1000,
                    seconds=options.pick(4, 1),
                    body=100,
                ).ok
            body = pulled_body(subject, "full100")
        shapes: list[tuple[str, dict[str, object]]] = [
            ("handlers of 32 messages", {"batch": 32}),
            ("handlers of 32 messages, ours plain functions in threads", {"batch": 32, "plain": True}),
            ("handlers of one message", {"batch": 1}),
            ("handlers of one message, ours plain functions in threads", {"batch": 1, "plain": True}),
        ]
        made = {
            what: (
                Row(f"consumed, {what}", "1/s", goal=(">=", 1.0)),
                Row(f"our processor time, {what}", "us"),
            )
            for what, _ in shapes
        }
        rows += [row for pair in made.values() for row in pair]
        for turn in range(options.rounds):
            for what, shape in shapes:
                for client in in_turn(clients, turn):
                    load = consume(plan, subject, client, topic="full100", count=count, **shape)
                    made[what][0].add(client, load.per_second)
                    if client == "ours":
                        made[what][1].add(client, load.generator_us)
        rows += decoding(plan, subject, clients, body)
    return rows


def decoding(plan: Plan, subject: Subject, clients: list[str], body: bytes) -> list[Row]:
    file = subject.folder / "pulled"
    file.write_bytes(body)
    lazy = Row(
        "decoded as it arrives", "1/s", goal=(">=", 1.0), note="one thread; Java reads all, ours on demand"
    )
    full = Row(
        "decoded and every field read", "1/s", note="one thread; what a handler asks for is what it costs"
    )
    seconds = plan.options.pick(3, 1)
    for _ in range(plan.options.rounds):
        for client in clients:
            if client == "ours":
                for row, read in ((lazy, False), (full, True)):
                    load = run_ours("decode", namesrv=subject.namesrv, file=file, seconds=seconds, read=read)
                    row.add(client, load.per_second)
            else:
                load = run_java_consumer("decode", home=subject.folder, file=file, seconds=seconds)
                lazy.add(client, load.per_second)
                full.add(client, load.per_second)
    return [lazy, full]


if __name__ == "__main__":
    main(run, __doc__, "client_consume")
