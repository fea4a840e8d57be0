"""All broker benchmarks in one go (`make bench`), and the table each of them prints.

Every goal is a ratio of two brokers measured in the same run, in turn, on the same machine, by the same
generator. Absolute figures are printed for orientation and never asserted: this is a report, not a test.

    python benchmarks/report.py [--quick] [--only ours|apache] [--json FILE] [names ...]
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import memory, subjects, warming
from benchmarks.loadgen.runner import CannotMeasure, LoadFailed
from benchmarks.security import OPEN, Security
from tests.peers.process import PeerError

RESULTS = Path(__file__).resolve().parent / "results"
NAMES = ("startup", "memory", "send", "latency", "pull", "cores", "topics", "timers", "javaclient")


@dataclass
class Row:
    """One figure of ours and of its peers. A ratio is always ours over a peer's.

    The goal is a bound on the ratio to the peer that is best at this.
    """

    what: str
    unit: str
    values: dict[str, list[float]] = field(default_factory=dict)
    goal: tuple[Literal[">=", "<="], float] | None = None
    note: str = ""

    def add(self, subject: str, value: float) -> None:
        self.values.setdefault(subject, []).append(value)

    def value(self, subject: str) -> float | None:
        seen = self.values.get(subject)
        return statistics.median(seen) if seen else None

    @property
    def others(self) -> list[str]:
        return [name for name in self.values if name != "ours"]

    @property
    def ratios(self) -> dict[str, float]:
        """Ours over each peer's."""
        ours = self.value("ours")
        found = {name: self.value(name) for name in self.others}
        return {name: ours / other for name, other in found.items() if ours is not None and other}

    @property
    def ratio(self) -> float | None:
        """Ours over the best peer's; without a goal nobody knows which is best, and the first one counts."""
        ratios = list(self.ratios.values())
        if not ratios:
            return None
        if self.goal is None:
            return ratios[0]
        return min(ratios) if self.goal[0] == ">=" else max(ratios)

    @property
    def reached(self) -> bool | None:
        """None when there is no goal or no ratio."""
        if self.goal is None or self.ratio is None:
            return None
        bound, limit = self.goal
        return self.ratio >= limit if bound == ">=" else self.ratio <= limit

    def as_json(self) -> dict[str, object]:
        return {
            **asdict(self),
            "medians": {name: self.value(name) for name in self.values},
            "ratios": self.ratios,
            "ratio": self.ratio,
            "reached": self.reached,
        }


@dataclass(frozen=True)
class Options:
    """What a benchmark may be told."""

    quick: bool = False
    only: str | None = None
    security: Security = OPEN
    brokers: int = 0  # of our server; 0 for as many as there are cores

    def pick(self, normal: float, quick: float) -> float:
        return quick if self.quick else normal

    @property
    def rounds(self) -> int:
        return 1 if self.quick else 3

    @property
    def tries(self) -> int:
        """How often a measurement that others disturb is taken."""
        return 1 if self.quick else 2


Run = Callable[[Options], list[Row]]


def number(value: float | None) -> str:
    """A figure with three digits that matter."""
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}" if value >= 0.2 else f"{value:.3f}"


def cells(row: Row, others: Sequence[str]) -> tuple[str, ...]:
    goal = "-" if row.goal is None else f"{row.goal[0]} {row.goal[1]:g}"
    reached = {True: "yes", False: "NO", None: "-"}[row.reached]
    figures = [number(row.value(name)) for name in ("ours", *others)]
    ratios = [_ratio(row.ratios.get(name)) for name in others]
    return (row.what, row.unit, *figures, *ratios, goal, reached, row.note)


def plain_table(rows: Iterable[Row]) -> str:
    """A table that reads the same in a terminal and in a log."""
    rows = list(rows)
    others = list(dict.fromkeys(name for row in rows for name in row.others)) or ["peer"]
    titles = [name.capitalize() if name.isalpha() else name for name in others]
    heads = ["ratio"] if len(others) == 1 else [f"/ {title}" for title in titles]
    lines: list[tuple[str, ...]] = [("what", "unit", "ours", *titles, *heads, "goal", "reached", "note")]
    lines += [cells(row, others) for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    made = []
    for line in lines:
        padded = [
            cell.rjust(width) if 2 <= column <= 2 + 2 * len(others) else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        made.append("  ".join(padded).rstrip())
    made.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(made)


def disturbance() -> str:
    """What other processes took while the figures were measured."""
    if not subjects.foreign_cores:
        return ""
    middle, worst = statistics.median(subjects.foreign_cores), max(subjects.foreign_cores)
    return f"other processes took {middle:.2f} cores (median), {worst:.2f} (worst) while load was measured"


def machine() -> dict[str, object]:
    with open("/proc/meminfo") as file:
        kilobytes = int(file.readline().split()[1])
    return {
        "cores": os.cpu_count(),
        "memory_gb": round(kilobytes / 1e6, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def write_json(file: Path, results: dict[str, list[Row]], failures: dict[str, str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
        "benchmarks": {name: [row.as_json() for row in rows] for name, rows in results.items()},
        "foreign_cores": subjects.foreign_cores,
        "warmed": [asdict(found) for found in warming.warmed],
        "not_measured": failures,
    }
    file.write_text(json.dumps(content, indent=1) + "\n")


def parser(text: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help="one short round: is it working, not how fast")
    made.add_argument(
        "--only",
        choices=["ours", "apache", *subjects.APACHE],
        help="measure these brokers, no ratios to ours",
    )
    made.add_argument("--heap", default="2g", metavar="SIZE", help="heap of each of Apache's brokers (2g)")
    made.add_argument(
        "--patience",
        type=float,
        default=0,
        metavar="S",
        help="wait so long for others to leave the machine alone",
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file")
    return made


def settle(asked: argparse.Namespace) -> None:
    """What `parser` reads that is the same for all subjects."""
    subjects.patience = asked.patience
    subjects.apache_heap = asked.heap
    memory.wanted = not asked.quick


def judged(rows: list[Row], options: Options) -> list[Row]:
    """The rows; after a quick run without goals, because cold brokers prove nothing."""
    if options.quick:
        for row in rows:
            row.goal = None
    return rows


def main(run: Run, text: str | None, name: str, *, secured: bool = False, many: bool = False) -> None:
    """The command line of one benchmark; `secured` ones know `--auth` and `--tls`, `many` ones `--brokers`."""
    made = parser(text)
    if secured:
        made.add_argument("--auth", action="store_true", help="both brokers check signatures and policies")
        made.add_argument("--tls", action="store_true", help="the load comes by TLS")
    if many:
        made.add_argument(
            "--brokers", type=int, default=0, metavar="N", help="of our server (as many as cores)"
        )
    asked = made.parse_args()
    settle(asked)
    security = Security(asked.auth, asked.tls) if secured else OPEN
    options = Options(asked.quick, asked.only, security, asked.brokers if many else 0)
    try:
        rows = judged(run(options), options)
    except CannotMeasure as error:
        print(f"skipped: {error}")
        return
    print(plain_table(rows))
    print("\n".join(filter(None, (warming.warmth(), disturbance()))))
    if asked.json:
        write_json(asked.json, {name: rows}, {})


def run_all(names: Sequence[str], options: Options) -> tuple[dict[str, list[Row]], dict[str, str]]:
    results: dict[str, list[Row]] = {}
    failures: dict[str, str] = {}
    for name in names:
        run: Run = importlib.import_module(f"benchmarks.broker_{name}").run
        begun = time.monotonic()
        try:
            results[name] = judged(run(options), options)
            print(f"\n== {name} ({time.monotonic() - begun:.0f} s)\n{plain_table(results[name])}", flush=True)
        except (CannotMeasure, LoadFailed, PeerError) as error:
            failures[name] = str(error)
            print(f"\n== {name}: not measured: {error}", flush=True)
    return results, failures


def report() -> None:
    made = parser(__doc__)
    made.add_argument("names", nargs="*", metavar="name", help=f"which: {', '.join(NAMES)} (all)")
    asked = made.parse_args()
    unknown = set(asked.names) - set(NAMES)
    if unknown:
        made.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    settle(asked)
    begun = time.monotonic()
    results, failures = run_all(asked.names or NAMES, Options(asked.quick, asked.only))
    goals = [row for rows in results.values() for row in rows if row.goal]
    if goals:
        print(f"\n== goals\n{plain_table(goals)}")
        missed = [row for row in goals if row.reached is False]
        print(f"\n{len([row for row in goals if row.reached])} goals reached, {len(missed)} not.")
    print("\n".join(filter(None, (warming.warmth(), disturbance()))))
    file = asked.json or RESULTS / "latest.json"
    write_json(file, results, failures)
    print(f"{time.monotonic() - begun:.0f} s in all; every figure is in {file}")


if __name__ == "__main__":
    report()
