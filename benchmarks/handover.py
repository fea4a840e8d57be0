"""What a planned change costs a group: queues moved, messages delivered twice, pause of the moved queues.

    python benchmarks/handover.py [--quick]

A real name server, two real brokers and eight real consumers on a network in memory, in virtual time, under load.
Every half minute one member leaves (close) or one joins. Both ways to hand a queue over ("java": at once, the
default; "lease": the loser finishes and commits first) and both strategies (AVG, the default; STICKY) go through
the same changes. The ratios are printed last. Figures do not depend on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from gimbalmq.client.events import QueueDropped, QueueStarted
from gimbalmq.model.queues import MessageQueue
from gimbalmq.testing import run_virtual
from tests.sim.world import Settings, World

MEMBERS, BROKERS, QUEUES = 8, 2, 16
BETWEEN = 30.0


@dataclass
class Result:
    """One way through all changes.

    Attributes:
        moved: queues that changed their owner.
        repeated: messages delivered twice.
        overlaps: messages begun while another member still held the queue.
        pauses: seconds from the last owner's giving up to the new owner's first pull, per moved queue.
    """

    handover: str
    strategy: str
    changes: int
    moved: int
    repeated: int
    overlaps: int
    pauses: list[float]
    lost: int
    consumed: int

    def row(self) -> tuple[str, ...]:
        return (
            self.handover,
            self.strategy,
            str(self.changes),
            f"{self.moved / self.changes:.1f}",
            f"{self.repeated / self.changes:.1f}",
            str(self.overlaps),
            f"{1000 * statistics.median(self.pauses):.0f}",
            f"{1000 * max(self.pauses):.0f}",
            str(self.consumed),
            str(self.lost),
        )


HEADINGS = (
    "handover", "strategy", "changes", "moved each", "twice each", "overlaps", "pause ms", "worst ms", "consumed",
    "lost",
)  # fmt: skip


async def measure(handover: Literal["java", "lease"], strategy: str, changes: int, folder: Path) -> Result:
    settings = Settings(
        handover=handover,
        strategy=strategy,
        members=MEMBERS,
        brokers=BROKERS,
        topics=("T",),
        queues=QUEUES,
        producers=4,
        pause=(0.02, 0.08),
        work=(0.05, 0.3),
    )
    world = World(1, settings, folder, asyncio.get_running_loop())
    await world.start()
    await asyncio.sleep(25)
    owners = world.owners()
    begun, moved = world.now, 0
    for number in range(changes):
        if number % 2:
            await world.join()
        else:
            await world.living[number % 5].leave()
        await asyncio.sleep(BETWEEN)
        now = world.owners()
        moved += sum(now[queue] != owner for queue, owner in owners.items() if queue.topic == "T")
        owners = now
    world.stop_sending()
    while world.account.lost:  # noqa: ASYNC110
        await asyncio.sleep(1)
    account = world.account
    result = Result(
        handover,
        strategy,
        changes,
        moved,
        len(account.repeated),
        len(world.desk.overlaps),
        pauses(world, begun),
        len(account.lost),
        len(account.deliveries),
    )
    await world.close()
    return result


def pauses(world: World, since: float) -> list[float]:
    """Time between two owners' pulls of each moved queue. A closing member tells nothing: from its leaving on."""
    given_up: dict[MessageQueue, float] = {}
    found = []
    for at, event in world.events:
        if at < since:
            continue
        if isinstance(event, QueueDropped):
            given_up[event.queue] = at
        elif isinstance(event, QueueStarted) and event.queue.topic == "T":
            found.append(at - given_up.pop(event.queue, at - event.paused))
    return [max(0.0, seconds) for seconds in found]


def table(rows: list[tuple[str, ...]]) -> str:
    lines = [HEADINGS, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="four changes instead of ten")
    changes = 4 if parser.parse_args().quick else 10
    logging.getLogger("gimbalmq").setLevel(logging.CRITICAL)
    results: dict[tuple[str, str], Result] = {}
    ways: tuple[Literal["java", "lease"], ...] = ("java", "lease")
    for strategy in ("AVG", "STICKY"):
        for handover in ways:
            with tempfile.TemporaryDirectory() as folder:
                results[handover, strategy] = run_virtual(
                    lambda _: measure(handover, strategy, changes, Path(folder))  # noqa: B023
                )
    print(f"{MEMBERS} members, {BROKERS * QUEUES} queues, {changes} planned changes, all values virtual time")
    print(table([result.row() for result in results.values()]))
    java, lease = results["java", "AVG"], results["lease", "AVG"]
    print(f"delivered twice, java : lease = {java.repeated} : {lease.repeated}")
    sticky = results["lease", "STICKY"]
    print(f"queues moved, AVG / STICKY = {lease.moved / sticky.moved:.2f}")
    middle = {way: statistics.median(results[way, "AVG"].pauses) for way in ways}
    print(f"median pause of a moved queue, lease / java = {middle['lease'] / max(middle['java'], 1e-4):.1f}")


if __name__ == "__main__":
    main()
