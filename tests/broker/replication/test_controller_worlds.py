"""Three replicas with a controller under kills, cuts and stops, by seed: what was answered 0 is never lost.

Promises of every world:

* a message that was answered with success is in the log of every master elected later, and in the end in all logs;
* in the end all logs, and all lists of epochs, are the same;
* no two brokers ever took messages in the same epoch.

``GIMBALMQ_CONTROLLER_WORLDS=200`` runs the long form, from the seed ``GIMBALMQ_CONTROLLER_FIRST`` on.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
from pathlib import Path

import pytest

from gimbalmq.broker.broker import Broker
from gimbalmq.errors import RocketMQError
from gimbalmq.testing.loop import VirtualClock, run_virtual
from tests.broker.replication.test_controller_mode import NAME, TOPIC, Set, epochs, log_of, replicas, until

WORLDS = int(os.environ.get("GIMBALMQ_CONTROLLER_WORLDS", "3"))
FIRST = int(os.environ.get("GIMBALMQ_CONTROLLER_FIRST", "0"))
MISFORTUNES = 5 if WORLDS < 10 else 12
NUMBERS = (1, 2, 3)


class World:
    """One set of replicas, its senders and its misfortunes."""

    def __init__(self, made: Set, seed: int) -> None:
        self.made = made
        self.rng = random.Random(seed)
        self.masters: dict[int, str] = {}
        """By epoch, who took messages in it."""
        self.history: list[str] = []
        self.sending = True

    def hosts(self, *numbers: int) -> list[str]:
        return [f"10.0.0.{number}" for number in numbers]

    async def send(self, name: int) -> None:
        """Sends to whoever takes messages, one at a time."""
        made = self.made
        while self.sending:
            for number in NUMBERS:
                broker = made.brokers.get(number)
                if broker is None or not broker.roles.is_master:
                    continue
                epoch = broker.roles.now.epoch
                try:
                    code = await made.send_to(broker.address, self.rng.choice((60, 300, 3000)))
                except RocketMQError:
                    continue
                if code == 0:
                    assert self.masters.setdefault(epoch, broker.address) == broker.address
            await asyncio.sleep(self.rng.uniform(0.0, 0.2))

    async def misfortune(self) -> None:
        """One thing that goes wrong, and is mended after a while."""
        rng, made = self.rng, self.made
        what = rng.choice(
            ("kill", "kill master", "cut replicas", "cut controller", "stop", "elect", "controller")
        )
        number = rng.choice(NUMBERS)
        self.history.append(f"{asyncio.get_running_loop().time():.2f} {what} {number}")
        seconds = rng.choice((0.05, 0.5, 3.0, 12.0))
        if what == "kill master":
            known = made.controller.replicas[NAME].master
            number = next(
                (n for n, broker in made.brokers.items() if _id(broker) == known and known is not None),
                number,
            )
        if what.startswith("kill"):
            if number in made.brokers:
                await made.kill(number)
                await asyncio.sleep(seconds)
                await made.begin(number)
        elif what == "cut replicas":
            others = [each for each in NUMBERS if each != number]
            made.network.cut(self.hosts(number), self.hosts(*others))
            await asyncio.sleep(seconds)
            made.network.mend()
        elif what == "cut controller":
            made.network.cut(self.hosts(number), ["10.0.0.101"])
            if rng.random() < 0.5:
                made.controller.missed(NAME, _id(made.brokers[number]))
            await asyncio.sleep(seconds)
            made.network.mend()
        elif what == "stop":
            host = self.hosts(number)[0]
            made.network.stop(host)
            if rng.random() < 0.5:
                made.controller.missed(NAME, _id(made.brokers[number]))
            await asyncio.sleep(seconds)
            made.network.go_on(host)
        elif what == "elect":
            in_sync = sorted(made.controller.replicas[NAME].in_sync & made.controller.alive[NAME].keys())
            if in_sync:
                made.controller.elect(NAME, rng.choice(in_sync))
        else:
            made.network.reset("10.0.0.101")
            await asyncio.sleep(seconds)

    async def check_masters(self) -> None:
        """Whoever is elected has all that was answered."""
        while self.sending:
            for number, broker in list(self.made.brokers.items()):
                known = self.made.controller.replicas[NAME]
                leads = broker.roles.is_master and known.master == _id(broker)
                if leads and broker.roles.now.epoch == known.master_epoch:
                    self.lacks_nothing(broker, f"the master {number} of epoch {known.master_epoch}")
            await asyncio.sleep(1.0)

    def lacks_nothing(self, broker: Broker, who: str) -> None:
        there = set(re.findall(rb"#\d{8}#", log_of(broker)))
        lost = [body[:10].decode() for body in self.made.accepted if body[:10] not in there]
        assert not lost, f"{who} lacks {len(lost)} of {len(self.made.accepted)}: {lost[:5]}\n{self.history}"


def _id(broker: Broker) -> int:
    assert broker.controller_mode is not None
    return broker.controller_mode.elections.own_id or -1


@pytest.mark.parametrize("seed", range(FIRST, FIRST + WORLDS))
def test_nothing_answered_is_lost(tmp_path: Path, seed: int) -> None:
    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, *NUMBERS, seed=seed) as made:
            world = World(made, seed)
            await made.in_sync(1, 2, 3)
            tasks = [asyncio.ensure_future(world.send(each)) for each in range(2)]
            tasks.append(asyncio.ensure_future(world.check_masters()))
            for _ in range(MISFORTUNES):
                await asyncio.sleep(world.rng.uniform(0.0, 4.0))
                await world.misfortune()
                for task in tasks:
                    if task.done():
                        await task
            await asyncio.sleep(5.0)
            before = len(made.accepted)
            await until(lambda: len(made.accepted) > before + 20, 300.0)
            world.sending = False
            await asyncio.gather(*tasks)
            await until(lambda: len(made.controller.replicas[NAME].in_sync) == 3, 300.0)
            await until(lambda: len({made.brokers[n].store.max_commitlog_offset for n in NUMBERS}) == 1, 60.0)
            for number in NUMBERS:
                world.lacks_nothing(made.brokers[number], f"replica {number}")
            logs = [log_of(made.brokers[number]) for number in NUMBERS]
            assert logs[0] == logs[1] == logs[2], world.history
            assert len({epochs(made.brokers[number]) for number in NUMBERS}) == 1, world.history
            ends = [
                [
                    queue.max_offset
                    for each in range(4)
                    if (queue := made.brokers[n].store.find_queue(TOPIC, each))
                ]
                for n in NUMBERS
            ]
            assert ends[0] == ends[1] == ends[2]

    run_virtual(work)
