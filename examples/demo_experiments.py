"""How queues are shared, with real consumer processes and a picture of it: the demo's first part.

    python examples/demo_experiments.py --namesrv 127.0.0.1:9876

16 queues with one, two and three consumers, one of which is then killed; one queue with two consumers;
two queues with three. More consumers than queues, and the surplus waits.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from gimbalmq import Admin, MessageQueue

NAMES = ("anna", "ben", "carla")
COLOURS = {"anna": 34, "ben": 33, "carla": 32}
EXPERIMENTS = (("sixteen", 16, 3), ("single", 1, 2), ("pair", 2, 3))
"""Topic, its queues, and how many consumers join one after the other."""


async def run(namesrv: str) -> None:
    async with Admin(namesrv, client_file=os.environ.get("GIMBALMQ_CLIENT_FILE")) as admin:
        for topic, queues, members in EXPERIMENTS:
            await experiment(admin, namesrv, topic, queues, members)


async def experiment(admin: Admin, namesrv: str, topic: str, queues: int, members: int) -> None:
    await admin.topics.create(topic, queues=queues)
    group = f"readers-of-{topic}"
    print(f"\ntopic {topic}: {queues} queue{'s' if queues > 1 else ''}", flush=True)
    async with AsyncExitStack() as stack:
        running: dict[str, asyncio.subprocess.Process] = {}
        for name in NAMES[:members]:
            running[name] = await member(stack, namesrv, group, topic, name)
            await settled(admin, group, topic, queues, list(running), f"{name} joins")
        if members == 3 and queues > 3:
            lost = running.pop("ben")
            lost.kill()
            await settled(admin, group, topic, queues, list(running), "ben is killed (kill -9)")


async def member(
    stack: AsyncExitStack, namesrv: str, group: str, topic: str, name: str
) -> asyncio.subprocess.Process:
    """A consumer in a process of its own, ended with the experiment."""
    script = Path(__file__).with_name("demo_member.py")
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(script), namesrv, group, topic, name, stderr=asyncio.subprocess.DEVNULL
    )

    async def end() -> None:
        if process.returncode is None:
            process.terminate()
        await process.wait()

    stack.push_async_callback(end)
    return process


async def settled(
    admin: Admin, group: str, topic: str, queues: int, names: list[str], what: str, seconds: float = 30.0
) -> None:
    """Waits until every queue has one owner and shares differ by at most one, then draws them."""
    for _ in range(int(seconds / 0.1)):
        owners = {
            queue: client_id.partition("@")[2]
            for queue, client_id in (await admin.groups.owners(group)).items()
            if queue.topic == topic
        }
        counts = [list(owners.values()).count(name) for name in names]
        if len(owners) == queues == sum(counts) and max(counts) - min(counts) <= 1:
            print(f"  {what}\n{picture(owners, names)}", flush=True)
            return
        await asyncio.sleep(0.1)
    raise SystemExit(f"demo: the queues of {topic} were not shared out within {seconds:g} s")


def picture(owners: Mapping[MessageQueue, str], names: list[str]) -> str:
    """A row for each member, a cell for each queue."""
    coloured = sys.stdout.isatty()
    lines = []
    for name in names:
        cells = " ".join("■" if owner == name else "·" for _, owner in sorted(owners.items()))
        if coloured:
            cells = f"\x1b[{COLOURS[name]}m{cells}\x1b[0m"
        count = list(owners.values()).count(name)
        lines.append(f"    {name:<6} {cells}   {count or 'waits'}")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namesrv", default="127.0.0.1:9876", help="name server of the cluster")
    asyncio.run(run(parser.parse_args().namesrv))
    print(flush=True)
