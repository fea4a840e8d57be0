"""Our source and sink on our broker beside Spark's own Kafka source and sink on Kafka, in one run.

The same rows, the same machine, each side with its broker and a Spark of its own (local[2], the driver with
2 GB). The sides take turns, round by round, because the machine is faster in one minute than in the next; medians
of five rounds after a warm-up. Ours runs on the PySpark of this
environment, Kafka's on the newest release whose connector Maven Central has in full. Kafka's source is
given `fetch.max.wait.ms=10` and `max.poll.records=50000`: with its defaults it waits half a second at the end
of each partition. Ours has its defaults, and Spark the one setting that docs/spark.md advises.

Beside each rate stands the processor time that a row took, by broker, JVM and Python: it suffers least from
other programs on the machine.

Before each round everything of the round before is written to the disk, and what memory is free becomes file cache,
as it is on a machine that has run for a day (`memory.py`).

    python benchmarks/spark_kafka.py [--quick] [--goals] [--part NAME] [--rows N] [--only ours|kafka] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import kafka_peer, memory
from benchmarks.report import Row, machine, number, plain_table
from benchmarks.subjects import Ours, scratch_folder, settle_machine

ROOT = Path(__file__).resolve().parents[1]
QUEUES = 16
TWO = "offset bigint, body binary"
UNIX_SOCKETS = {"spark.python.unix.domain.socket.enabled": "true"}
CHECKPOINTS = "spark.sql.streaming.checkpointFileManagerClass"
STREAMING = "org.apache.spark.sql.execution.streaming"
RENAMES = {  # the other of Spark's two ways to write a checkpoint, under its name in both of their releases
    "ours": f"{STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager",
    "kafka": f"{STREAMING}.FileSystemBasedCheckpointFileManager",
}
ACKS_1 = {"kafka.acks": "1", "kafka.linger.ms": "5", "kafka.batch.size": "131072"}
BUSY, LABOURED = 0.5, 4.0  # load averages of a machine with other things to do: before a run, and in one

Step = tuple[str, str, dict[str, Any]]  # its name in the results, the method of the side, its arguments
Figures = dict[str, list[dict[str, float]]]

GOALS = ("read 100 B", "read varied", "read 1 KB", "catch up", "sink", "sink, tuned", "micro-batch")

ONCE = frozenset({"fill", "fill_mixed", "micro_batch", "python_side"})
"""Methods that have no rounds: they prepare, or take their median themselves."""


class Scale:
    """How much of everything."""

    def __init__(self, rows: int, quick: bool, goals: bool, parts: Sequence[str] = ()) -> None:
        self.goals = goals
        self.parts = parts  # names of steps; all if there are none
        self.small = 100_000 if quick else rows  # of 100 B
        self.large = self.small // 4  # of 1 KB
        self.grown = self.small // 2  # of about 100 B; of 100 B in 1 and in 4 partitions
        self.each = min(1_000_000, self.small // 2)  # of a micro-batch when catching up
        self.written = self.small
        self.rounds = 1 if quick else 5
        self.seconds = 3.0 if quick else 20.0


def fills(scale: Scale) -> list[Step]:
    shapes = (
        ("small", scale.small, 100, QUEUES, 0),
        ("varied", scale.grown, 100, QUEUES, 50),
        ("large", scale.large, 1024, QUEUES, 0),
        ("in1", scale.grown, 100, 1, 0),
        ("in4", scale.grown, 100, 4, 0),
    )
    names = ("topic", "count", "body", "partitions", "spread")
    return [(f"fill {shape[0]}", "fill", dict(zip(names, shape, strict=True))) for shape in shapes]


def reads(scale: Scale) -> list[Step]:
    small = {"topic": "small", "count": scale.small}
    large = {"topic": "large", "count": scale.large}
    return [
        ("read 100 B", "read", small),
        ("read varied", "read", {"topic": "varied", "count": scale.grown}),
        ("read 1 KB", "read", large),
        ("catch up", "catch_up", {**small, "each": scale.each}),
    ]


def growth(scale: Scale, cores: str) -> list[Step]:
    """The same in fewer partitions."""
    counts = {"in1": scale.grown, "in4": scale.grown}
    if cores == "one core":
        counts["small"] = scale.small
    return [(f"{cores}, {topic}", "read", {"topic": topic, "count": n}) for topic, n in counts.items()]


class Side:
    """A broker, and a Spark at a time that does steps with it."""

    def __init__(
        self, name: str, server: str, broker: Sequence[int], python: Path, jars: Sequence[Path]
    ) -> None:
        self.name = name
        self.found: Figures = {}
        self._python = python
        self._asked = {
            "side": name,
            "server": server,
            "broker": list(broker),
            "jars": list(map(str, jars)),
            "partitions": QUEUES,
        }
        self._process: subprocess.Popen[str] | None = None

    def start(self, cores: int, settings: Mapping[str, str], seconds: float) -> None:
        environment = {**os.environ}
        environment.pop("PYTHONPATH", None)
        if self.name == "ours":
            environment["PYTHONPATH"] = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
        asked = {**self._asked, "cores": cores, "settings": dict(settings), "seconds": seconds}
        self._process = subprocess.Popen(
            [str(self._python), str(ROOT / "benchmarks" / "spark_side.py"), json.dumps(asked)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._answer()

    def do(self, method: str, arguments: Mapping[str, Any]) -> dict[str, float]:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps([method, arguments]) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, float]:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, float] = json.loads(line)
                return answer
        raise SystemExit(f"the side {self.name} ended, with status {self._process.wait()}")

    def stop(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
            self._process = None


def measure(
    sides: Sequence[Side],
    steps: Mapping[str, Sequence[Step]],
    scale: Scale,
    *,
    cores: int = 2,
    settings: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> None:
    """Has the sides do their steps in turns, each in a Spark of its own; steps of one name are one step of both."""
    steps = {side: chosen(these, scale.parts) for side, these in steps.items()}
    taking = [side for side in sides if steps.get(side.name)]
    try:
        for side in taking:
            side.start(cores, settings.get(side.name, {}), scale.seconds)
        # What only ours does may come last, so the order is the other side's.
        names = dict.fromkeys(name for side in reversed(taking) for name, _, _ in steps[side.name])
        for name in names:
            began = time.perf_counter()
            doing = {side: step for side in taking for step in steps[side.name] if step[0] == name}
            for number in range(1 + scale.rounds):
                for side, (_, method, arguments) in doing.items():
                    once = method in ONCE
                    if once and number:
                        continue
                    settle_machine()
                    figures = side.do(method, arguments)
                    if figures and (number or once):
                        side.found.setdefault(name, []).append(figures)
            print(f"{name}: {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
    finally:
        for side in taking:
            side.stop()


def chosen(steps: Sequence[Step], parts: Sequence[str]) -> list[Step]:
    """The steps of these names, and those that fill the topics which they read."""
    wanted = [step for step in steps if not parts or step[0] in parts]
    read = {step[2]["topic"] for step in wanted}
    return [step for step in steps if step in wanted or (step[1] == "fill" and step[2]["topic"] in read)]


def measure_all(sides: Sequence[Side], ours: Ours | None, scale: Scale) -> None:
    unix = {"ours": UNIX_SOCKETS}
    small = {"topic": "small", "count": scale.small}
    sink = {"topic": "sink", "count": scale.written, "body": 100}
    small_fill, varied_fill, large_fill, *fewer = fills(scale)
    if not scale.goals and ours is not None:
        # The folder is read while it has nothing but this topic, so that the rows are all there is in it.
        store = {**small, "path": str(ours.store)}
        steps: list[Step] = [
            small_fill,
            ("store", "read", store),
            ("store, two", "read", {**store, "schema": TWO}),
        ]
        measure(sides, {"ours": steps}, scale, settings=unix)
        measure(sides, {"ours": [("one core, store", "read", store)]}, scale, cores=1, settings=unix)
    both: list[Step] = [
        varied_fill,
        large_fill,
        *reads(scale),
        ("sink", "sink", sink),
    ]
    slow: Step = ("micro-batch", "micro_batch", {"topic": "slow"})
    theirs: list[Step] = [
        small_fill,
        *both,
        ("sink, tuned", "sink", {**sink, "topic": "sink1", **ACKS_1}),
        slow,
    ]
    mine: list[Step] = [*both, slow, ("python side", "python_side", {"topic": "slow"})]
    if scale.goals:
        mine.insert(0, small_fill)
    else:
        theirs += [*fewer, *growth(scale, "two cores")]
        mine += [
            *fewer,
            *growth(scale, "two cores"),
            ("read 100 B, two", "read", {**small, "schema": TWO}),
            ("read 1 KB, two", "read", {"topic": "large", "count": scale.large, "schema": TWO}),
        ]
        if ours is not None:
            mixed = {"count": scale.large, "topic": "mixed"}
            mine.append(("fill mixed", "fill_mixed", {**mixed, "body": 100, "port": ours.port}))
            mine.append(("read mixed", "read", {**mixed, "topic": "mixed00000,mixed00001"}))
    measure(sides, {"ours": mine, "kafka": theirs}, scale, settings=unix)
    renamed = {side: {CHECKPOINTS: name} for side, name in RENAMES.items()}
    renamed["ours"] |= UNIX_SOCKETS
    again: list[Step] = [("micro-batch, renamed", "micro_batch", {"topic": "slower"})]
    measure(sides, {"ours": again, "kafka": again}, scale, settings=renamed)
    if not scale.goals:
        one = growth(scale, "one core")
        measure(sides, {"ours": one, "kafka": one}, scale, cores=1, settings=unix)
        default: list[Step] = [("micro-batch, default", "micro_batch", {"topic": "slowest"})]
        measure(sides, {"ours": default}, scale)


PARTS = ("broker", "jvm", "python")

# What is shown, where ours has it, where Kafka has it, and whether Kafka's is to be reached.
LINES: tuple[tuple[str, str, str | None, bool], ...] = (
    ("batch read, 100 B", "read 100 B", "read 100 B", True),
    ("batch read, 50 to 150 B", "read varied", "read varied", True),
    ("batch read, 1 KB", "read 1 KB", "read 1 KB", True),
    ("batch read, 100 B, two columns", "read 100 B, two", "read 100 B", False),
    ("batch read, 1 KB, two columns", "read 1 KB, two", "read 1 KB", False),
    ("batch read, 100 B, single sends to queues in turn", "read mixed", "read 100 B", False),
    ("streaming catch-up, 100 B", "catch up", "catch up", True),
    ("sink, 100 B; Kafka acks=all", "sink", "sink", True),
    ("sink, 100 B; Kafka acks=1 and larger batches", "sink", "sink, tuned", False),
    ("store folder, 100 B", "store", None, False),
    ("store folder, 100 B, two columns", "store, two", None, False),
    ("store folder, 100 B, one core", "one core, store", None, False),
    ("batch read, 1 partition, one core", "one core, in1", "one core, in1", False),
    ("batch read, 4 partitions, one core", "one core, in4", "one core, in4", False),
    ("batch read, 16 partitions, one core", "one core, small", "one core, small", False),
    ("batch read, 1 partition, two cores", "two cores, in1", "two cores, in1", False),
    ("batch read, 4 partitions, two cores", "two cores, in4", "two cores, in4", False),
)


def rows_of(found: Mapping[str, Figures], judge: bool) -> list[Row]:
    rows: list[Row] = []
    for what, ours, kafka, wanted in LINES:
        row = Row(what, "rows/s", goal=(">=", 1) if wanted and judge else None)
        cost = Row("  processor of a row", "us")
        notes: list[str] = []
        for side, name in (("ours", ours), ("kafka", kafka)):
            figures = found.get(side, {}).get(name or "", [])
            for one in figures:
                row.add(side, one["rate"])
                cost.add(side, sum(one[part] for part in PARTS))
            if figures:
                middle = [number(statistics.median(one[part] for one in figures)) for part in PARTS]
                notes.append(f"{side} {' + '.join(middle)}")
        cost.note = f"{'; '.join(notes)} ({', '.join(PARTS)})"
        rows += [row, cost]
    shown = rows + micro_rows(found, judge)
    return [row for row in shown if "ours" in row.values or (row.values and "ours" not in found)]


def micro_rows(found: Mapping[str, Figures], judge: bool) -> list[Row]:
    rows: list[Row] = []
    for what, name, other in (
        ("as advised", "micro-batch", "micro-batch"),
        ("checkpoints renamed", "micro-batch, renamed", "micro-batch, renamed"),
        ("Spark's defaults", "micro-batch, default", "micro-batch"),
    ):
        ours = found.get("ours", {}).get(name, [])
        kafka = found.get("kafka", {}).get(other, [])
        for part in ("triggerExecution", "latestOffset", "walCommit", "addBatch", "commitOffsets"):
            whole = part == "triggerExecution"
            row = Row(f"micro-batch, {what}" if whole else f"  {part}", "ms")
            if whole and judge and name != "micro-batch, default":
                row.goal = ("<=", 1)
            for side, figures in (("ours", ours), ("kafka", kafka)):
                for one in figures:
                    row.add(side, one.get(part, 0.0))
            rows.append(row)
    for part in ("latestOffset", "partitions", "read"):
        row = Row(f"micro-batch, our code without Spark: {part}", "ms")
        for one in found.get("ours", {}).get("python side", []):
            row.add("ours", one[part])
        rows.append(row)
    return rows


def run_sides(wanted: Sequence[str], folder: Path, scale: Scale) -> dict[str, Figures]:
    """Starts the brokers, measures, stops them."""
    ours = Ours(folder / "ours") if "ours" in wanted else None
    kafka = kafka_peer.Kafka(folder / "kafka", QUEUES) if "kafka" in wanted else None
    sides: list[Side] = []
    try:
        if ours is not None:
            ours.start()
            sides.append(Side("ours", ours.namesrv, ours.pids, Path(sys.executable), ()))
        if kafka is not None:
            python, jars = kafka_peer.spark_python(), list(kafka_peer.connector_jars())
            kafka.start()
            sides.append(Side("kafka", kafka.address, kafka.pids, python, jars))
        measure_all(sides, ours, scale)
    finally:
        for broker in (ours, kafka):
            if broker is not None:
                broker.kill()
    return {side.name: side.found for side in sides}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="few rows, one round: does it work, not how fast"
    )
    parser.add_argument("--goals", action="store_true", help="only what has a goal, in a third of the time")
    parser.add_argument(
        "--part",
        action="append",
        default=[],
        choices=GOALS,
        help="only this step of --goals; repeatable",
    )
    parser.add_argument("--rows", type=int, default=4_000_000, metavar="N", help="rows of 100 B to read")
    parser.add_argument("--only", choices=("ours", "kafka"), help="measure one side, no ratios")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file")
    asked = parser.parse_args()
    if asked.part and not asked.goals:
        parser.error("--part chooses among the steps of --goals: write --goals, too")
    memory.wanted = not asked.quick
    scale = Scale(asked.rows, asked.quick, asked.goals, asked.part)
    wanted = [asked.only] if asked.only else ["ours", "kafka"]
    if "kafka" in wanted and (reason := kafka_peer.why_not()) is not None:
        print(f"kafka: not measured: {reason}", file=sys.stderr)
        wanted.remove("kafka")
    load = os.getloadavg()[0]
    began = time.monotonic()
    with scratch_folder() as folder:
        found = run_sides(wanted, folder, scale)
    loads = [load, os.getloadavg()[0]]
    print(plain_table(rows_of(found, judge=not asked.quick)))
    seconds = time.monotonic() - began
    print(
        f"{seconds:.0f} s; load average {loads[0]:.1f} before, {loads[1]:.1f} after; {os.cpu_count()} processors"
    )
    if loads[0] > BUSY or max(loads) > LABOURED:
        print("WARNING: the machine was busy: the rates are too low and the ratios doubtful")
    if asked.json:
        content = {"machine": machine(), "loads": loads, "figures": found}
        asked.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
