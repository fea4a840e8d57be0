"""Timers: what two million that fall due over three days cost, and many that fall due in the same moment.

Sends are pipelined over one connection; the cost of a timer counts everything until the broker has entered it
(`timerOffsetBehind` is 0). Then some more are sent for one moment a little later: how long the last is late, what
each costs, and how long a client's request had to wait meanwhile.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.report import Options, Row, main
from benchmarks.subjects import APACHE, Subject, Wire, chosen, encode, one

TOPIC = "timers"
WINDOW = 500
DAYS = 3
BODY = bytes(100)
RUNTIME, MAX_OFFSET = 28, 30


def request(number: int, due_ms: int) -> bytes:
    fields: dict[str, object] = {
        "a": "bench_group",
        "b": TOPIC,
        "c": "TBW102",
        "d": 4,
        "e": 0,
        "f": 0,
        "g": int(time.time() * 1000),
        "h": 0,
        "j": 0,
        "k": "false",
        "m": "false",
        "n": "broker-a",
        "i": f"UNIQ_KEY\x010A000002{number:024X}\x02TIMER_DELIVER_MS\x01{due_ms}\x02",
    }
    return encode(310, fields, BODY)


def send(subject: Subject, dues: list[int]) -> None:
    """Sends a timer for each moment; one that the broker is too busy for is sent again."""
    with Wire(subject.port) as wire:
        while dues:
            refused: list[int] = []
            for start in range(0, len(dues), WINDOW):
                part = dues[start : start + WINDOW]
                wire.write(b"".join(request(start + number, due) for number, due in enumerate(part)))
                refused += [due for due in part if wire.answer()[0]["code"] != 0]
            dues = refused


def runtime(wire: Wire) -> dict[str, str]:
    wire.write(encode(RUNTIME, {}))
    table: dict[str, str] = json.loads(wire.answer()[1])["table"]
    return table


def entered(subject: Subject, seconds: float = 600.0) -> None:
    """Waits until every timer that was sent is in the wheel."""
    deadline = time.monotonic() + seconds
    with Wire(subject.port) as wire:
        while int(runtime(wire)["timerOffsetBehind"]) > 0:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{subject.name} does not enter its timers")
            time.sleep(0.2)


def delivered(wire: Wire) -> int:
    return int(wire.call(MAX_OFFSET, {"topic": TOPIC, "queueId": 0})["extFields"]["offset"])


def run(options: Options) -> list[Row]:
    count, burst = (20_000, 5_000) if options.quick else (2_000_000, 200_000)
    rows = [
        own := Row(f"memory for each of {count:,} waiting timers, without mapped files", "B"),
        disk := Row("wheel and timer log on disk, each", "B"),
        enter := Row("processor time to take and enter a timer", "us"),
        restart := Row(f"restart with {count:,} waiting to first accepted send", "s"),
        late := Row(f"{burst:,} due in one moment: the last comes so much later", "s"),
        deliver := Row("processor time to deliver one of them", "us"),
        wait := Row("longest request meanwhile", "ms"),
    ]
    chance = random.Random(7)
    for name in chosen(options.only, APACHE[:1]):  # 4.9 has no timers
        with one(name) as subject:
            subject.start(TOPIC)
            send(subject, [int(time.time() * 1000) + 3_600_000] * 1000)  # what is loaded lazily is loaded
            entered(subject)
            before, cpu = subject.memory().anonymous, subject.cpu_seconds()
            begin = int(time.time() * 1000) + 3_600_000
            end = begin + (DAYS * 24 - 2) * 3_600_000
            send(subject, [chance.randrange(begin, end) for _ in range(count)])
            entered(subject)
            enter.add(name, (subject.cpu_seconds() - cpu) / count * 1e6)
            own.add(name, (subject.memory().anonymous - before) * (1 << 20) / count)
            files = [subject.store / "timerwheel", *(subject.store / "timerlog").iterdir()]
            disk.add(name, sum(file.stat().st_blocks * 512 for file in files) / count)
            subject.stop()
            restart.add(name, subject.start(TOPIC))
            with Wire(subject.port) as wire:
                known = delivered(wire)
                due = int((time.time() + options.pick(60, 20)) * 1000)
                send(subject, [due] * burst)
                entered(subject)
                time.sleep(max(0.0, due / 1000 - time.time()))
                cpu, longest = subject.cpu_seconds(), 0.0
                while delivered(wire) < known + burst:
                    asked = time.monotonic()
                    wire.call(MAX_OFFSET, {"topic": TOPIC, "queueId": 0})
                    longest = max(longest, time.monotonic() - asked)
                    time.sleep(0.005)
                late.add(name, time.time() - due / 1000)
                deliver.add(name, (subject.cpu_seconds() - cpu) / burst * 1e6)
                wait.add(name, longest * 1000)
    return rows


if __name__ == "__main__":
    main(run, __doc__, "timers")
