"""Worlds without end: ``python -m tests.sim.run --seed 1 --runs 100`` (``make sim``).

Every seed is run in each kind of world that the tests know, or in the one named. A seed that breaks a promise is
printed with its schedule, cut down to the faults that are needed, ready to become a test.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence

from tests.sim.promises import WORLDS, broken
from tests.sim.schedule import Fault
from tests.sim.world import Report, Settings, run_world


def cut_down(
    seed: int,
    settings: Settings,
    schedule: Sequence[Fault],
    fails: Callable[[Report], bool],
    limit: int = 60,
) -> list[Fault]:
    """A schedule that still fails and from which no single fault can be left out."""
    needed = list(schedule)
    index = runs = 0
    while index < len(needed) and runs < limit:
        fewer = needed[:index] + needed[index + 1 :]
        runs += 1
        if fails(run_world(seed, settings, fewer)):
            needed = fewer
        else:
            index += 1
    return needed


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--runs", type=int, default=20, help="how many")
    parser.add_argument("--world", choices=sorted(WORLDS), help="this kind only")
    parser.add_argument("--no-cut", action="store_true", help="print failing schedules as they are")
    parser.add_argument("--verbose", action="store_true", help="print every run in full")
    asked = parser.parse_args(arguments)
    names = [asked.world] if asked.world else list(WORLDS)
    failed: list[tuple[int, str]] = []
    totals: dict[str, list[Report]] = {name: [] for name in names}
    begun = time.monotonic()
    for seed in range(asked.seed, asked.seed + asked.runs):
        for name in names:
            report = run_world(seed, WORLDS[name])
            totals[name].append(report)
            problems = broken(report)
            if asked.verbose:
                print(report, flush=True)
            if problems:
                failed.append((seed, name))
                print(f"FAILED seed {seed} in world {name!r}: {'; '.join(problems)}\n{report}", flush=True)
                if not asked.no_cut:
                    needed = cut_down(seed, WORLDS[name], report.schedule, lambda again: bool(broken(again)))
                    print("enough for it:", *needed, sep="\n    ", flush=True)
    print(f"\n{asked.runs * len(names)} worlds in {time.monotonic() - begun:.0f} s")
    for name, reports in totals.items():
        print(f"{name:>22}: {summary(reports)}")
    for seed, name in failed:
        print(f"failed: python -m tests.sim.run --seed {seed} --runs 1 --world '{name}'")
    return 1 if failed else 0


def summary(reports: Sequence[Report]) -> str:
    """Sums over runs: what was promised, and what was not but is counted."""
    accounts = [report.account for report in reports]
    settled = sorted(report.settled for report in reports if report.settled is not None)
    middle = f"{settled[len(settled) // 2]:.1f} s, worst {settled[-1]:.1f} s" if settled else "never"
    return (
        f"{sum(len(account.acknowledged) for account in accounts)} acknowledged, "
        f"{sum(len(account.lost) for account in accounts)} lost, "
        f"{sum(len(account.repeated) for account in accounts)} repeated, "
        f"{sum(account.stored_twice for account in accounts)} stored twice, "
        f"{sum(len(account.overlaps) for account in accounts)} overlaps, at rest after {middle}"
    )


if __name__ == "__main__":
    sys.exit(main())
