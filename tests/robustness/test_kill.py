"""Nothing acknowledged is lost when the broker is killed without warning, again and again."""

from __future__ import annotations

import asyncio
import itertools
import random
from pathlib import Path

import pytest

from tests.robustness.load import Account, BrokerProcess, read_everything, send_until_broken

SMALL_FILES = (
    "mappedFileSizeCommitLog=1048576",
    "mappedFileSizeConsumeQueue=20000",
    "maxHashSlotNum=1000",
    "maxIndexNum=4000",
)


def kill_rounds(folder: Path, rounds: int, seed: int) -> Account:
    """Load, kill -9 at a random moment, restart, count; the folder lives through all rounds."""
    rng = random.Random(seed)
    account = Account()
    broker = BrokerProcess(folder, "flushDiskType=SYNC_FLUSH", *SMALL_FILES)
    names = (b"%08d" % number for number in itertools.count())
    broker.start()
    try:
        for number in range(rounds):

            async def one_round() -> None:
                load = asyncio.create_task(send_until_broken(broker.address, names, account))
                enough = len(account.acknowledged) + rng.randrange(1, 400)
                while len(account.acknowledged) < enough:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                await asyncio.to_thread(broker.kill)
                await load

            asyncio.run(one_round())
            broker.start()
            asyncio.run(read_everything(broker.address, account))
            assert not account.lost, f"round {number} with seed {seed}: {account}"
            assert not account.repeated, f"round {number} with seed {seed}: {account}"
    finally:
        broker.stop()
    print(f"\n{rounds} rounds of kill -9: {account}")
    return account


def test_nothing_acknowledged_is_lost_in_five_kills(tmp_path: Path) -> None:
    account = kill_rounds(tmp_path / "store", 5, seed=1)
    assert len(account.acknowledged) >= 5


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_nothing_acknowledged_is_lost_in_two_hundred_kills(tmp_path: Path) -> None:
    account = kill_rounds(tmp_path / "store", 200, seed=2026)
    assert len(account.acknowledged) >= 200
