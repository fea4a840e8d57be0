"""Our source and sink on our broker beside Spark's own Kafka source and sink on Kafka, in one run.

The same rows, the same machine, one side after the other, each with its broker and a Spark of its own
(local[2], the driver with 2 GB); medians of three rounds after a warm-up. Ours runs on the PySpark of this
environment, Kafka's on the newest release whose connector Maven Central has in full. Kafka's source is
given `fetch.max.wait.ms=10` and `max.poll.records=50000`: with its defaults it waits half a second at the end
of each partition. Ours has its defaults, and Spark the one setting that docs/spark.md advises.

Beside each rate stands the processor time that a row took, by broker, JVM and Python: it suffers least from
other programs on the machine.

    python benchmarks/spark_kafka.py [--quick] [--goals] [--rows N] [--only ours|kafka] [--json FILE]
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
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import kafka_peer
from benchmarks.report import Row, machine, number, plain_table
from benchmarks.subjects import Ours, scratch_folder

ROOT = Path(__file__).resolve().parents[1]
QUEUES = 16
TWO = "offset bigint, body binary"
UNIX_SOCKETS = {"spark.python.unix.domain.socket.enabled": "true"}
STREAMING = "org.apache.spark.sql.execution.streaming"
RENAMES = {  # the other of Spark's two ways to write a checkpoint, under its name in both of their releases
    "ours": f"{STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager",
    "kafka": f"{STREAMING}.FileSystemBasedCheckpointFileManager",
}
ACKS_1 = {"kafka.acks": "1", "kafka.linger.ms": "5", "kafka.batch.size": "131072"}
BUSY, LABOURED = 0.5, 4.0  # load averages of a machine with other things to do: before a run, and in one

Step = tuple[str, str, dict[str, Any]]  # its name in the results, the method of the side, its arguments
Figures = dict[str, list[dict[str, float]]]


class Scale:
    """How much of everything."""

    def __init__(self, rows: int, quick: bool, goals: bool) -> None:
        self.goals = goals
        self.small = 100_000 if quick else rows  # of 100 B
        self.large = self.small // 4  # of 1 KB
        self.grown = self.small // 2  # of about 100 B; of 100 B in 1 and in 4 partitions
        self.each = min(1_000_000, self.small // 2)  # of a micro-batch when catching up
        self.written = min(1_000_000, self.small)
        self.rounds = 1 if quick else 3
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
    return [("fill", "fill", dict(zip(names, shape, strict=True))) for shape in shapes]


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


def checkpoints(side: str) -> dict[str, str]:
    return {"spark.sql.streaming.checkpointFileManagerClass": RENAMES[side]}


def run_side(side: str, python: Path, steps: Sequence[Step], scale: Scale, **asked: Any) -> Figures:
    """A process that does the steps; what it printed."""
    asked = {"side": side, "steps": steps, "rounds": scale.rounds, "seconds": scale.seconds, **asked}
    asked = {"cores": 2, "settings": {}, "jars": [], "partitions": QUEUES, **asked}
    environment = {**os.environ}
    environment.pop("PYTHONPATH", None)
    if side == "ours":
        environment["PYTHONPATH"] = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    command = [str(python), str(ROOT / "benchmarks" / "spark_side.py"), json.dumps(asked)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, timeout=3600)
    found: Figures = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            found |= json.loads(line)
    if done.returncode != 0:
        print(f"the side {side} ended early, with status {done.returncode}", file=sys.stderr, flush=True)
    return found


def measure_ours(folder: Path, scale: Scale) -> Figures:
    subject = Ours(folder / "ours")
    try:
        subject.start()
        shared = {"server": subject.namesrv, "broker": subject.pids}
        python, small = Path(sys.executable), {"topic": "small", "count": scale.small}
        store = {**small, "path": str(subject.store)}
        advised = {**shared, "settings": UNIX_SOCKETS}
        small_fill, varied_fill, large_fill, *fewer = fills(scale)
        goals: list[Step] = [
            varied_fill,
            large_fill,
            *reads(scale),
            ("sink", "sink", {"topic": "sink", "count": scale.written, "body": 100}),
            ("micro-batch", "micro_batch", {"topic": "slow"}),
            ("python side", "python_side", {"topic": "slow"}),
        ]
        renaming = {**shared, "settings": UNIX_SOCKETS | checkpoints("ours")}
        quicker: list[Step] = [("micro-batch, renamed", "micro_batch", {"topic": "slow"})]
        if scale.goals:
            found = run_side("ours", python, [small_fill, *goals], scale, **advised)
            return found | run_side("ours", python, quicker, scale, **renaming)
        # The folder is read while it has nothing but this topic, so that the rows are all there is in it.
        steps: list[Step] = [
            small_fill,
            ("store", "read", store),
            ("store, two", "read", {**store, "schema": TWO}),
        ]
        found = run_side("ours", python, steps, scale, **advised)
        steps = [("one core, store", "read", store), *fewer, *growth(scale, "one core")]
        found |= run_side("ours", python, steps, scale, cores=1, **advised)
        mixed = {"count": scale.large, "topic": "mixed"}
        steps = [
            *goals,
            *growth(scale, "two cores"),
            ("read 100 B, two", "read", {**small, "schema": TWO}),
            ("read 1 KB, two", "read", {"topic": "large", "count": scale.large, "schema": TWO}),
            ("fill", "fill_mixed", {**mixed, "body": 100, "port": subject.port}),
            ("read mixed", "read", {**mixed, "topic": "mixed00000,mixed00001"}),
        ]
        found |= run_side("ours", python, steps, scale, **advised)
        found |= run_side("ours", python, quicker, scale, **renaming)
        steps = [("micro-batch, default", "micro_batch", {"topic": "slow"})]
        return found | run_side("ours", python, steps, scale, **shared)
    finally:
        subject.kill()


def measure_kafka(folder: Path, scale: Scale) -> Figures:
    broker = kafka_peer.Kafka(folder / "kafka", QUEUES)
    python, jars = kafka_peer.spark_python(), [str(jar) for jar in kafka_peer.connector_jars()]
    try:
        broker.start()
        shared = {"server": broker.address, "broker": broker.pids, "jars": jars}
        written = {"topic": "sink", "count": scale.written, "body": 100}
        small_fill, varied_fill, large_fill, *fewer = fills(scale)
        steps: list[Step] = [
            small_fill,
            varied_fill,
            large_fill,
            *reads(scale),
            ("sink", "sink", written),
            ("sink, tuned", "sink", {**written, "topic": "sink1", **ACKS_1}),
            ("micro-batch", "micro_batch", {"topic": "slow"}),
        ]
        quicker: list[Step] = [("micro-batch, renamed", "micro_batch", {"topic": "slower"})]
        renamed = run_side("kafka", python, quicker, scale, settings=checkpoints("kafka"), **shared)
        if scale.goals:
            return renamed | run_side("kafka", python, steps, scale, **shared)
        steps += [*fewer, *growth(scale, "two cores")]
        found = renamed | run_side("kafka", python, steps, scale, **shared)
        return found | run_side("kafka", python, growth(scale, "one core"), scale, cores=1, **shared)
    finally:
        broker.kill()


PARTS = ("broker", "jvm", "python")
MEASURES = {"ours": measure_ours, "kafka": measure_kafka}

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
        row = Row(what, "rows/s", goal=(">=", 1) if wanted and judge else None, other="kafka")
        cost = Row("  processor of a row", "us", other="kafka")
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
            row = Row(f"micro-batch, {what}" if whole else f"  {part}", "ms", other="kafka")
            if whole and judge and name != "micro-batch, default":
                row.goal = ("<=", 1)
            for side, figures in (("ours", ours), ("kafka", kafka)):
                for one in figures:
                    row.add(side, one.get(part, 0.0))
            rows.append(row)
    for part in ("latestOffset", "partitions", "read"):
        row = Row(f"micro-batch, our code without Spark: {part}", "ms", other="kafka")
        for one in found.get("ours", {}).get("python side", []):
            row.add("ours", one[part])
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="few rows, one round: does it work, not how fast"
    )
    parser.add_argument("--goals", action="store_true", help="only what has a goal, in a third of the time")
    parser.add_argument("--rows", type=int, default=4_000_000, metavar="N", help="rows of 100 B to read")
    parser.add_argument("--only", choices=sorted(MEASURES), help="measure one side, no ratios")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file")
    asked = parser.parse_args()
    scale = Scale(asked.rows, asked.quick, asked.goals)
    sides = [asked.only] if asked.only else ["ours", "kafka"]
    if "kafka" in sides and (reason := kafka_peer.why_not()) is not None:
        print(f"kafka: not measured: {reason}", file=sys.stderr)
        sides.remove("kafka")
    found: dict[str, Figures] = {}
    loads = [os.getloadavg()[0]]
    began = time.monotonic()
    for side in sides:
        with scratch_folder() as folder:
            found[side] = MEASURES[side](folder, scale)
        loads.append(os.getloadavg()[0])
    print(plain_table(rows_of(found, judge=not asked.quick)))
    shown = ", ".join(f"{load:.1f} after {side}" for side, load in zip(sides, loads[1:], strict=True))
    print(
        f"{time.monotonic() - began:.0f} s; load average {loads[0]:.1f} before, {shown}; {os.cpu_count()} processors"
    )
    if loads[0] > BUSY or max(loads) > LABOURED:
        print("WARNING: the machine was busy: the rates are too low and the ratios doubtful")
    if asked.json:
        content = {"machine": machine(), "loads": loads, "figures": found}
        asked.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
