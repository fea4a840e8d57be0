"""What size costs: topics, connected clients, stored messages; the price of a message should not know of them.

Three questions, each to a new broker that grows:

- 1, 100, 10,000 and 50,000 topics of 4 queues, one message in each;
- 1, 100, 1,000 and 5,000 consumers that heartbeat and have a pull parked (`crowd.py`), while others send;
- 1 and 20 million stored messages.

At every size: sends by 8 connections that wait for each answer (p99, the slowest, processor time each), memory
that is the broker's own, and for topics and messages the time from a restart to the first accepted send. Of our broker
also its watchdog: turns of the event loop of 20 ms or more, and the longest.

Apache's broker keeps a file open and mapped for each queue in use: with 50,000 it meets the limits of most
systems, so it is asked for 10,000. What cannot be measured is noted in its row, the rest goes on; after
``--minutes`` nothing new is begun. Every figure is in ``--json FILE`` (default results/scale.json) as soon as it
is there.

    python benchmarks/broker_scale.py [--quick] [--only ours|apache] [--part topics|clients|messages] [--minutes 25]
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.loadgen.runner import CannotMeasure, Load, LoadFailed, run_c
from benchmarks.report import (
    RESULTS,
    Options,
    Row,
    disturbance,
    judged,
    parser,
    plain_table,
    settle,
    write_json,
)
from benchmarks.subjects import APACHE, Subject, Wire, chosen, encode, measure, one
from benchmarks.warming import warm
from tests.peers.process import PeerError

QUEUES = 4
PAUSE_MILLIS = 20
APACHE_TOPICS = 10_000
PARTS = ("topics", "clients", "messages")
TROUBLE = (PeerError, LoadFailed, OSError, ConnectionError, subprocess.SubprocessError, KeyError, ValueError)
_RUNTIME_INFO = 28
_STOOD_STILL = re.compile(r"event loop stood still for (\d+) ms")


class Figures:
    """Rows by size and sort, in the order in which they were first met; written down after each figure."""

    def __init__(self, file: Path, options: Options, minutes: float) -> None:
        self.rows: dict[str, Row] = {}
        self.stacks: list[str] = []
        self._file = file
        self._options = options
        self._end = time.monotonic() + 60 * minutes

    def add(self, what: str, unit: str, subject: str, value: float, note: str = "") -> None:
        row = self.rows.setdefault(what, Row(what, unit))
        row.add(subject, value)
        if note:
            row.note = note
        write_json(self._file, {"scale": judged(list(self.rows.values()), self._options)}, {})

    def missing(self, what: str, subject: str, reason: object) -> None:
        row = self.rows.setdefault(what, Row(what, ""))
        row.note = f"{subject}: {str(reason).strip().splitlines()[0][:90]}"
        print(f"{subject}, {what}: not measured: {reason}", file=sys.stderr, flush=True)

    @property
    def late(self) -> bool:
        return time.monotonic() > self._end


def runtime(subject: Subject) -> dict[str, str]:
    """What the broker says of itself (request 28)."""
    with Wire(subject.port) as wire:
        wire.write(encode(_RUNTIME_INFO, {}))
        table: dict[str, str] = json.loads(wire.answer()[1])["table"]
        return table


def under_load(
    figures: Figures, subject: Subject, size: str, shape: dict[str, object], options: Options
) -> None:
    """Sends at one size, and what they say of it."""
    name = subject.name
    shape = {"connections": 8, "window": 8, **shape}
    shape |= {"seconds": options.pick(10, 2), "warmup": options.pick(3, 0.5)}
    tries: list[tuple[Load, dict[str, str], dict[str, str], int]] = []

    def send() -> Load:
        """Around each try: between them the broker is frozen, which its watchdog takes for a pause."""
        before, logged = runtime(subject), subject.log.stat().st_size
        found = run_c("send", port=subject.port, **shape)
        tries.append((found, before, runtime(subject), logged))
        return found

    load = measured(subject, send, options)
    before, after, logged = next((first, last, at) for found, first, last, at in tries if found is load)
    figures.add(f"{size}: send, p99", "us", name, load.p99_us)
    figures.add(f"{size}: slowest send", "ms", name, load.max_us / 1000)
    sent = load.ok + int(load.raw.get("warmup_ok", 0))
    figures.add(f"{size}: processor time of a send", "us", name, 1e6 * load.subject_cpu / max(1, sent))
    figures.add(f"{size}: memory without mapped files", "MB", name, subject.memory().anonymous)
    if "loopPauses" in after:
        pauses = int(after["loopPauses"]) - int(before["loopPauses"])
        figures.add(f"{size}: turns of the loop over {PAUSE_MILLIS} ms", "", name, pauses)
        if pauses:
            seen = stacks(subject, size, logged)
            figures.stacks += seen
            longest, earlier = (int(table["loopLongestPauseMillis"]) for table in (after, before))
            told = [int(found[1]) for text in seen if (found := _STOOD_STILL.search(text))]
            if longest > earlier:
                figures.add(f"{size}: longest of them", "ms", name, longest)
            elif told:
                figures.add(f"{size}: longest of them", "ms", name, max(told), "as logged, one in 10 s")
            else:
                most = min(longest, load.max_us / 1000)
                figures.add(f"{size}: longest of them", "ms", name, most, "at most")


def measured(subject: Subject, load: Callable[[], Load], options: Options) -> Load:
    """One load, cold or disturbed ones repeated as everywhere; the subject is awake before and after."""
    found = measure(subject, load, options.tries)
    subject.resume()
    return found


def stacks(subject: Subject, size: str, start: int) -> list[str]:
    """What our broker's watchdog has logged since: what the loop did when it stood still."""
    lines = subject.log.read_bytes()[start:].decode(errors="replace").splitlines()
    found = []
    for index, line in enumerate(lines):
        if _STOOD_STILL.search(line):
            rest = [text for text in lines[index + 1 : index + 60] if text.startswith((" ", "\t"))]
            found.append("\n".join([f"{size}: {line}", *rest[-8:]]))
    return found


def restarted(figures: Figures, subject: Subject, size: str, topic: str, options: Options) -> None:
    """Stops, starts, and warms it up: Apache's compilers have forgotten everything."""
    subject.stop()
    figures.add(f"{size}: restart to first accepted send", "s", subject.name, subject.start(topic))
    warmed(subject, options)


def warmed(subject: Subject, options: Options) -> None:
    shape = {"connections": 4, "window": 2000, "topic": "warm", "queues": QUEUES}
    shape["count"] = int(options.pick(250_000, 2_000))
    warm(subject, "sends", partial(run_c, "send", port=subject.port, **shape), quick=options.quick)


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' if count != 1 else ''}"


# ---- topics ----


def topics(figures: Figures, subject: Subject, options: Options) -> None:
    known = 0
    subject.start()
    for count in (1, 100, 500) if options.quick else (1, 100, 10_000, 50_000):
        size = counted(count, "topic")
        if figures.late:
            figures.missing(size, subject.name, "the time was over")
            return
        if subject.name in APACHE and count > APACHE_TOPICS:
            figures.missing(size, subject.name, "needs an open, mapped file for each queue in use")
            return
        begun = time.monotonic()
        names = [f"topic{number:05d}" for number in range(known, count)]
        subject.create_topics(names, QUEUES, budget=options.pick(10, 2))
        if known:
            rate = (count - known) / (time.monotonic() - begun)
            figures.add(f"{size}: created, by lists after 10 s", "1/s", subject.name, rate)
        known = count
        spread: dict[str, object] = {
            "topic": "topic" if count > 1 else "topic00000",
            "topics": count,
            "queues": 1,
        }
        run_c("send", port=subject.port, connections=1, window=32, count=count, **spread)
        restarted(figures, subject, size, "topic00000", options)
        under_load(figures, subject, size, spread, options)


# ---- clients ----


@contextmanager
def crowd(subject: Subject, count: int) -> Iterator[dict[str, int]]:
    """Consumers from one other process; what they said when they left is in the mapping afterwards."""
    here = Path(__file__).resolve().parent / "crowd.py"
    command = [sys.executable, str(here), "--port", str(subject.port), "--clients", str(count)]
    told: dict[str, int] = {}
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        word, _, number = child.stdout.readline().partition(" ")
        if word != "ready" or int(number) < count:
            raise LoadFailed(f"only {number.strip() or 0} of {count} clients could connect")
        yield told
        out, _ = child.communicate("", timeout=60)
        told.update(json.loads(out.splitlines()[-1]))
    finally:
        child.kill()
        child.wait()


def clients(figures: Figures, subject: Subject, options: Options) -> None:
    subject.start()
    subject.create_topics(["crowd", "load"], QUEUES)
    warmed(subject, options)
    shape: dict[str, object] = {"topic": "load", "queues": QUEUES}
    for count in (1, 100, 300) if options.quick else (1, 100, 1_000, 5_000):
        size = counted(count, "client")
        if figures.late:
            figures.missing(size, subject.name, "the time was over")
            return
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if count + 200 > limit:
            figures.missing(size, subject.name, f"only {limit} files may be open here (ulimit -Hn)")
            return
        begun = time.monotonic()
        with crowd(subject, count) as told:
            figures.add(f"{size}: all connected after", "s", subject.name, time.monotonic() - begun)
            under_load(figures, subject, size, shape, options)
        if told.get("lost") or told.get("refused"):
            row = figures.rows[f"{size}: all connected after"]
            row.note = f"{subject.name}: {told['lost']} lost, {told['refused']} requests refused"


# ---- messages ----


def messages(figures: Figures, subject: Subject, options: Options) -> None:
    stored = 0
    subject.start("stored")
    for count in (20_000, 100_000) if options.quick else (1_000_000, 20_000_000):
        size = counted(count, "message")
        shape: dict[str, object] = {"topic": "stored", "queues": QUEUES}
        while stored < count:
            if figures.late:
                figures.missing(size, subject.name, "the time was over")
                return
            # By the million, so that the end of the time is noticed.
            more = min(1_000_000, count - stored)
            run_c("send", port=subject.port, connections=4, window=2000, count=more, **shape)
            stored += more
        restarted(figures, subject, size, "stored", options)
        under_load(figures, subject, size, shape, options)


# ---- all of it ----


def grow(figures: Figures, part: str, name: str, options: Options) -> None:
    """One question to one broker; what goes wrong ends this only."""
    step = {"topics": topics, "clients": clients, "messages": messages}[part]
    with one(name) as subject:
        if name == "ours":
            subject.log_level = "info"
            subject.settings = (
                f"loopPauseLogMillis={PAUSE_MILLIS}",
            )  # the stack of each pause that is counted
        try:
            step(figures, subject, options)
        except TROUBLE as error:
            figures.missing(f"{part}: the rest", name, error)


def flat(figures: Figures) -> str:
    """Cost per message at the largest size over that at the smallest."""
    lines = []
    for part in ("topic", "client", "message"):
        rows = [
            row for row in figures.rows.values() if f"{part}" in row.what and "processor time" in row.what
        ]
        for name in ("ours", *APACHE):
            costs = [cost for row in rows if (cost := row.value(name)) is not None]
            if len(costs) > 1:
                lines.append(
                    f"{part}s, {name}: cost of a send at the largest size {costs[-1] / costs[0]:.2f} x the first"
                )
    return "\n".join(lines)


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--part", choices=PARTS, action="append", help="this question only")
    made.add_argument("--minutes", type=float, default=25.0, help="begin nothing new after so long")
    asked = made.parse_args()
    settle(asked)
    options = Options(asked.quick, asked.only)
    file = asked.json or RESULTS / "scale.json"
    figures = Figures(file, options, asked.minutes)
    try:
        names = chosen(options.only, APACHE[:1])
    except CannotMeasure as error:
        print(f"skipped: {error}")
        return
    begun = time.monotonic()
    for part in asked.part or PARTS:
        for name in names:
            print(f"{part}, {name} ({time.monotonic() - begun:.0f} s)", file=sys.stderr, flush=True)
            grow(figures, part, name, options)
    print(plain_table(figures.rows.values()))
    print(flat(figures))
    for stack in figures.stacks[:5]:
        print(f"\n{stack}")
    print(disturbance())
    print(f"{time.monotonic() - begun:.0f} s in all; every figure is in {file}")


if __name__ == "__main__":
    main()
