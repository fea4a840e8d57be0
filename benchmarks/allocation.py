"""Queue allocation: time of each strategy, and how many queues a changing group moves.

    python benchmarks/allocation.py

Times are one member's own call, best of several. Moves are AVG and STICKY through the same joins and
leaves around 32 members, 1024 queues; the ratio of the two is printed last.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from gimbalmq.balance.by_name import strategy_by_name
from gimbalmq.balance.simulate import Event, Report, simulate
from gimbalmq.model.queues import MessageQueue, sort_client_ids, sort_queues

TIMED = ("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "STICKY")


def queues_of(count: int, topics: int = 1) -> list[MessageQueue]:
    return [
        MessageQueue(f"topic-{topic}", f"broker-{number % 4}", number // 4)
        for topic in range(topics)
        for number in range(count // topics)
    ]


def ids_of(rng: Random, count: int) -> list[str]:
    return [f"10.0.{n // 250}.{n % 250}@{rng.randrange(65536)}#{rng.getrandbits(47)}" for n in range(count)]


def best_ms(name: str, queues: list[MessageQueue], members: list[str], rounds: int = 7) -> float:
    strategy, took = strategy_by_name(name), []
    for _ in range(rounds):
        start = time.perf_counter()
        strategy.allocate("group", members[len(members) // 2], queues, members)
        took.append(time.perf_counter() - start)
    return min(took) * 1000


def exchanges(rng: Random, members: list[str], newcomers: list[str]) -> list[Event]:
    """Each newcomer replaces somebody: one leave, one join."""
    present, schedule = list(members), []
    for turn, newcomer in enumerate(newcomers):
        leaver = present.pop(rng.randrange(len(present)))
        present.append(newcomer)
        schedule += [Event(2 * turn, "leave", leaver), Event(2 * turn + 1, "join", newcomer)]
    return schedule


def worst(report: Report) -> float:
    return max(outcome.moved / outcome.minimum for outcome in report.outcomes if outcome.minimum)


def main() -> None:
    rng = Random(1)
    queues, members = sort_queues(queues_of(10_000, topics=10)), sort_client_ids(ids_of(rng, 1000))
    print("10,000 queues, 1,000 members, one call")
    for name in TIMED:
        print(f"  {name:16} {best_ms(name, queues, members):8.2f} ms")

    ids = ids_of(rng, 32 + 200)
    schedule = exchanges(rng, ids[:32], ids[32:])
    print(f"1,024 queues, 32 members, {len(schedule)} joins and leaves: moved / minimum")
    reports = {}
    for name in ("AVG", "STICKY"):
        reports[name] = report = simulate(strategy_by_name(name), queues_of(1024), schedule, members=ids[:32])
        print(
            f"  {name:16} {report.ratio:8.2f} mean {worst(report):8.2f} worst, spread {report.worst_spread}"
        )
    print(f"  AVG moves {reports['AVG'].moved / reports['STICKY'].moved:.1f} times as many queues as STICKY")


if __name__ == "__main__":
    main()
