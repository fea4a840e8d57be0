"""Worlds without end: ``python -m tests.sim.run --seed 1 --runs 100`` (``make sim``).

Kinds of worlds take turns, each world has the next seed, and two processes share the work. What broke a promise is
printed with its seed, and at the end there is a table: how many worlds ran, what befell them, what was found. The
first of each sort of finding is run again with fewer and fewer faults, until it is ready to become a test.

``--small`` runs worlds of a third of a second each: 10,000 of them in less than an hour. ``--replicated`` runs worlds
of replicated brokers instead, which are small in any case.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import signal
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import FrameType

from tests.sim.promises import EXCLUSIVE, GROUPS, SERVERS, WORLDS, broken, small
from tests.sim.replica_promises import REPLICATED
from tests.sim.replica_world import ReplicaSettings, run_replicas
from tests.sim.schedule import KINDS, REPLICA_KINDS, SERVER_KINDS, Fault, draw
from tests.sim.world import Report, Settings, run_world

STUCK_SECONDS = 120
"""Of processor time: a world that takes longer will never end."""
STANDING_SECONDS = 1800
"""Of real time: a world that waits for something real never ends, either. A loaded machine may stand still for long."""
WORLDS_OF_A_PROCESS = 40
"""Then it ends: what worlds leave behind in it grows, and each world is slower than the one before."""
CUT_DOWN = 5
"""So many findings, each of another sort, are cut down."""


@dataclass
class Outcome:
    """What one world has to say, in a form that goes from process to process."""

    name: str
    seed: int
    small: bool
    without: Sequence[str] = ()
    problems: list[str] = field(default_factory=list)
    text: str = ""
    faults: Counter[str] = field(default_factory=Counter)
    sums: Counter[str] = field(default_factory=Counter)
    settled: float | None = None

    @property
    def command(self) -> str:
        options = " --replicated" if self.name in REPLICATED else " --small" if self.small else ""
        options += "".join(f" --without '{kind}'" for kind in self.without)
        return f"python -m tests.sim.run --seed {self.seed} --runs 1{options} --world '{self.name}'"

    @property
    def sort(self) -> str:
        """Findings that differ in numbers and names only are of one sort."""
        return re.sub(r"\d+", "#", re.sub(r"/\S+|\S+-\d+(, )?", "", self.problems[0]))[:80]


Task = tuple[str, int, bool, Sequence[str]]
"""World, seed, whether it is small, and the kinds of faults it is spared."""


def settings_of(name: str, is_small: bool, without: Sequence[str]) -> Settings | ReplicaSettings:
    if name in REPLICATED:
        replicated = REPLICATED[name]
        return replace(replicated, kinds=tuple(kind for kind in replicated.kinds if kind not in without))
    settings = small(WORLDS[name]) if is_small else WORLDS[name]
    return replace(settings, kinds=tuple(kind for kind in settings.kinds if kind not in without))


def problems_of(seed: int, settings: Settings | ReplicaSettings, schedule: Sequence[Fault]) -> list[str]:
    """What a world breaks if this befalls it."""
    if isinstance(settings, ReplicaSettings):
        return run_replicas(seed, settings, schedule).problems
    return broken(run_world(seed, settings, schedule))


def one(task: Task) -> Outcome:
    """Runs a world; whatever happens to it becomes an outcome."""
    name, seed, is_small, without = task
    outcome = Outcome(name, seed, is_small, without)
    signal.signal(signal.SIGALRM, _stuck)
    signal.signal(signal.SIGPROF, _stuck)
    signal.alarm(STANDING_SECONDS)
    signal.setitimer(signal.ITIMER_PROF, STUCK_SECONDS)
    try:
        settings = settings_of(name, is_small, without)
        if isinstance(settings, ReplicaSettings):
            replicas = run_replicas(seed, settings)
            outcome.problems, outcome.sums = replicas.problems, replicas.sums
            outcome.text, schedule = str(replicas), replicas.schedule
            outcome.settled = replicas.settled
        else:
            report = run_world(seed, settings)
            outcome.problems, outcome.sums = broken(report), sums(report)
            outcome.text = str(report) if outcome.problems else str(report.account)
            outcome.settled, schedule = report.settled, report.schedule
        outcome.faults = Counter(fault.kind for fault in schedule)
    except Exception as error:
        outcome.problems = [f"the world ended by {error!r}"]
        outcome.text = traceback.format_exc()
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
    return outcome


def _stuck(number: int, frame: FrameType | None) -> None:
    how = f"{STANDING_SECONDS} s of real" if number == signal.SIGALRM else f"{STUCK_SECONDS} s of processor"
    raise RuntimeError(f"stuck for {how} time")


def sums(report: Report) -> Counter[str]:
    account = report.account
    return Counter(
        {
            "acknowledged": len(account.acknowledged),
            "lost": len(account.lost),
            "repeated": len(account.repeated),
            "stored twice": account.stored_twice,
            "overlaps": len(report.desk.overlaps),
            "claims": len(report.desk.claims),
            "excused": len(report.desk.excused),
            "delayed": len(account.due),
            "delayed twice": len(account.in_several_places(account.due)),
            "committed": len(account.committed),
            "committed twice": len(account.in_several_places(account.committed)),
        }
    )


def cut_down(
    schedule: Sequence[Fault], fails: Callable[[Sequence[Fault]], object], limit: int = 60
) -> list[Fault]:
    """A schedule that still fails and from which no single fault can be left out."""
    needed = list(schedule)
    index = runs = 0
    while index < len(needed) and runs < limit:
        fewer = needed[:index] + needed[index + 1 :]
        runs += 1
        if fails(fewer):
            needed = fewer
        else:
            index += 1
    return needed


def tasks(
    names: Sequence[str], seed: int, runs: int, is_small: bool, without: Sequence[str]
) -> Iterator[Task]:
    """Every world has a seed of its own."""
    for number in range(runs):
        yield names[number % len(names)], seed + number, is_small, without


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--runs", type=int, default=100, help="how many worlds")
    parser.add_argument(
        "--world",
        choices=sorted([*WORLDS, *REPLICATED, "groups", "servers", "exclusive"]),
        help="this kind only, or one of the families: groups, servers, exclusive (one handler on a queue)",
    )
    parser.add_argument("--small", action="store_true", help="small worlds: the form for thousands")
    parser.add_argument("--replicated", action="store_true", help="worlds of replicated brokers")
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        choices=[*KINDS, *SERVER_KINDS, *REPLICA_KINDS],
        help="leave this fault out",
    )
    parser.add_argument("--minutes", type=float, default=600.0, help="stop then, however many there were")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--no-cut", action="store_true", help="do not cut down what failed")
    parser.add_argument("--verbose", action="store_true", help="print every run in full")
    asked = parser.parse_args(arguments)
    families = {
        "groups": list(GROUPS),
        "servers": list(SERVERS),
        "exclusive": EXCLUSIVE,
        None: list(REPLICATED) if asked.replicated else [*GROUPS, *SERVERS, *SERVERS],
    }
    names = families.get(asked.world, [asked.world])
    work = tasks(names, asked.seed, asked.runs, asked.small, asked.without)
    begun = shown = time.monotonic()
    end = begun + 60 * asked.minutes
    seen: list[Outcome] = []
    processes = max(1, min(asked.jobs, asked.runs))
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=WORLDS_OF_A_PROCESS) as pool:
        for outcome in pool.imap_unordered(one, work):
            seen.append(outcome)
            if outcome.problems:
                print(
                    f"FAILED seed {outcome.seed} in world {outcome.name!r}: {outcome.problems[0]}", flush=True
                )
            if asked.verbose or (outcome.problems and asked.runs <= 10):
                print(outcome.text, flush=True)
            now = time.monotonic()
            if now - shown > 15:
                shown = now
                failed = sum(bool(outcome.problems) for outcome in seen)
                rate = len(seen) / (now - begun)
                print(f"{len(seen)} of {asked.runs} worlds, {rate:.1f} a second, {failed} failed", flush=True)
            if now > end:
                pool.terminate()
                break
    print(table(seen, time.monotonic() - begun))
    if not asked.no_cut:
        show_needed(seen)
    return 1 if any(outcome.problems for outcome in seen) else 0


def show_needed(seen: Sequence[Outcome]) -> None:
    """Cuts down the first of each sort of finding."""
    sorts = {outcome.sort: outcome for outcome in reversed(seen) if outcome.problems}
    for outcome in list(sorts.values())[:CUT_DOWN]:
        settings = settings_of(outcome.name, outcome.small, outcome.without)
        schedule = draw(outcome.seed, settings.kinds, settings.faults, settings.span)
        needed = cut_down(schedule, partial(problems_of, outcome.seed, settings))
        print(f"enough for seed {outcome.seed} in {outcome.name!r}:", *needed, sep="\n    ", flush=True)


def table(seen: Sequence[Outcome], seconds: float) -> str:
    """What ran, what befell it, what was found."""
    faults: Counter[str] = Counter()
    for outcome in seen:
        faults += outcome.faults
    failed = [outcome for outcome in seen if outcome.problems]
    lines = [
        "",
        f"{len(seen)} worlds in {seconds:.0f} s, {len(seen) / seconds:.1f} a second; {len(failed)} broke a promise",
        "faults: " + ", ".join(f"{kind} {count}" for kind, count in sorted(faults.items())),
        *(
            f"{name:>22}: {summary([outcome for outcome in seen if outcome.name == name])}"
            for name in dict.fromkeys(outcome.name for outcome in seen)
        ),
    ]
    sorts: defaultdict[str, list[Outcome]] = defaultdict(list)
    for outcome in failed:
        sorts[outcome.sort].append(outcome)
    for same in sorted(sorts.values(), key=len, reverse=True):
        lines.append(f"found {len(same)} times: {same[0].problems[0]}")
        lines += [f"    {outcome.command}" for outcome in same[:5]]
    return "\n".join(lines)


def summary(outcomes: Sequence[Outcome]) -> str:
    """Sums over runs: what was promised, and what was not but is counted."""
    totals: Counter[str] = Counter()
    for outcome in outcomes:
        totals += outcome.sums
    settled = sorted(outcome.settled for outcome in outcomes if outcome.settled is not None)
    middle = f"{settled[len(settled) // 2]:.1f} s, worst {settled[-1]:.1f} s" if settled else "never"
    told = ", ".join(f"{count} {what}" for what, count in totals.items() if count or what == "lost")
    return f"{len(outcomes)} worlds: {told}, at rest after {middle}"


if __name__ == "__main__":
    sys.exit(main())
