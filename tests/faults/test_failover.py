"""Replicas under load whose machines and cables fail: nothing that was acknowledged is lost or out of order.

All sends wait for a slave (SYNC_MASTER), and an operator does what the tools say: a slave is promoted when the master
is gone, and the old master comes back as a slave after its unconfirmed end was cut.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gimbalmq.broker.replication.role_file import forget_role
from tests.faults.ground import happens
from tests.faults.replica_set import Member, ReplicaProcesses, check, replica_processes
from tests.peers.process import PeerError
from tests.support import run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs a second loopback address")

Fault = Callable[[ReplicaProcesses, random.Random], Awaitable[None]]
BEFORE, AFTER = 60, 40
"""Messages acknowledged before a fault and after it."""


async def master_killed(group: ReplicaProcesses, chance: random.Random) -> None:
    """kill -9 of the master; the fullest slave is promoted; the old one comes back.

    Before that somebody starts it as what it was: it sees that there is another master, and ends.
    """
    old = group.master
    await old.kill()
    await group.promote()
    with pytest.raises(PeerError, match="is the master of replicated now"):
        await old.start(master=True)
    old.is_master = False
    await back(group, old)


async def master_killed_while_a_slave_catches_up(group: ReplicaProcesses, chance: random.Random) -> None:
    """The slave lacks what was stored while it was away, none of which was acknowledged unless another slave has it."""
    old, late = group.master, chance.choice(group.slaves)
    await late.kill()
    await group.at_work(20)
    await asyncio.sleep(chance.random() * 0.3)
    await late.start(master=False)
    await old.kill()
    # The only slave may still lack what was stored without it. Nobody was told that it was, and the tool would wait.
    await group.promote(force=len(group.members) == 2)
    await back(group, old)


async def slave_killed(group: ReplicaProcesses, chance: random.Random) -> None:
    slave = chance.choice(group.slaves)
    await slave.kill()
    await asyncio.sleep(chance.random() * 0.3)
    await slave.start(master=False)


async def cables_cut(group: ReplicaProcesses, chance: random.Random) -> None:
    """The replication connections break again and again."""
    for _ in range(6):
        for member in group.members:
            member.cut()
        await asyncio.sleep(chance.random() * 0.2)


async def cables_cut_inside_packets(group: ReplicaProcesses, chance: random.Random) -> None:
    cable = group.master.proxies[1]
    for _ in range(6):
        cuts = cable.cuts
        cable.cut_inside("to client", chance.randrange(1, 200))
        await happens(lambda: cable.cuts > cuts, "a packet was cut")  # noqa: B023


async def cables_stall(group: ReplicaProcesses, chance: random.Random) -> None:
    """Silence, shorter or longer than both sides bear; sends are answered with 12, then with 11."""
    group.master.stall()
    await asyncio.sleep(chance.choice([0.3, 1.2, 2.0]))
    group.master.resume()


async def slave_paused(group: ReplicaProcesses, chance: random.Random) -> None:
    slave = chance.choice(group.slaves)
    os.kill(slave.process.pid, signal.SIGSTOP)
    await asyncio.sleep(chance.choice([0.3, 1.2, 2.0]))
    os.kill(slave.process.pid, signal.SIGCONT)


async def master_cut_off(group: ReplicaProcesses, chance: random.Random) -> None:
    """The network breaks: nobody but two of the senders reaches the master, which goes on. A slave is promoted all the
    same, and takes the others' messages."""
    old = group.master
    old.stall()
    old.cut()
    group.senders.stale = {0: old.near, 1: old.near}
    await group.promote(force=True)
    await group.at_work(AFTER)
    group.senders.stale = {}
    await old.kill()
    old.resume()
    # Somebody starts it as a slave without `rejoin`: it copies nothing behind what it has alone.
    forget_role(old.store)
    await old.start(master=False)
    await group.refused(old, "have different records at")
    await old.kill()
    await back(group, old)


async def master_cut_off_for_a_while(group: ReplicaProcesses, chance: random.Random) -> None:
    """The same, and the network is mended while both are masters: the old one acknowledges nothing any more."""
    old = group.master
    old.stall()
    old.cut()
    group.senders.stale = {0: old.near, 1: old.near}
    await group.promote(force=True)
    await group.at_work(AFTER)
    old.resume()
    await asyncio.sleep(2.0)
    group.senders.stale = {}
    await old.kill()
    await back(group, old)


async def master_paused(group: ReplicaProcesses, chance: random.Random) -> None:
    """The master stands still, is taken for dead, and goes on after another one was made."""
    old = group.master
    os.kill(old.process.pid, signal.SIGSTOP)
    old.cut()
    group.senders.stale = {0: old.near}
    await group.promote(force=True)
    await group.at_work(AFTER)
    os.kill(old.process.pid, signal.SIGCONT)
    await asyncio.sleep(chance.random() * 0.5)
    group.senders.stale = {}
    await old.kill()
    await back(group, old)


async def back(group: ReplicaProcesses, old: Member) -> None:
    """The old master becomes a slave, while the new one is at work."""
    if len(group.members) == 2:
        await group.senders.some_fail(5, "without a slave")
    else:
        await group.at_work(AFTER)
    await group.rejoin(old)


FAULTS: list[Fault] = [
    master_killed,
    cables_cut,
    slave_killed,
    master_cut_off,
    cables_stall,
    master_killed_while_a_slave_catches_up,
    cables_cut_inside_packets,
    master_paused,
    slave_paused,
    master_cut_off_for_a_while,
]


async def story(folder: Path, replicas: int, faults: list[Fault], seed: int) -> None:
    chance = random.Random(seed)
    async with replica_processes(folder, replicas) as group:
        async with group.senders:
            for number, fault in enumerate(faults, 1):
                await group.senders.more(BEFORE, f"before {fault.__name__}, round {number}")
                await fault(group, chance)
                await group.senders.more(AFTER, f"after {fault.__name__}, round {number}")
                await group.followed()
        await group.level()
        master = group.master
        for member in group.members:
            await asyncio.to_thread(member.process.stop)
        copies = [member.store for member in group.members if member is not master]
        print(
            f"\n{replicas} replicas, {len(faults)} rounds, seed {seed}: {check(group, master.store, copies)}"
        )


def drawn(rounds: int, seed: int) -> list[Fault]:
    """Each kind as often as the others, in an order of chance."""
    chance = random.Random(seed)
    drawn: list[Fault] = []
    while len(drawn) < rounds:
        drawn += chance.sample(FAULTS, len(FAULTS))
    return drawn[:rounds]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("replicas", "faults"),
    [
        pytest.param(2, [master_killed, cables_cut, master_cut_off, slave_killed, master_paused], id="2"),
        pytest.param(
            3,
            [
                master_killed,
                cables_stall,
                master_killed_while_a_slave_catches_up,
                cables_cut_inside_packets,
                master_cut_off_for_a_while,
            ],
            id="3",
        ),
    ],
)
def test_nothing_acknowledged_is_lost(replicas: int, faults: list[Fault], tmp_path: Path) -> None:
    run(story(tmp_path, replicas, faults, seed=1), 200.0)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("seed", range(1, 6))
def test_nothing_acknowledged_is_lost_in_200_rounds(replicas: int, seed: int, tmp_path: Path) -> None:
    """20 rounds each."""
    run(story(tmp_path, replicas, drawn(20, seed), seed), 3600.0)
