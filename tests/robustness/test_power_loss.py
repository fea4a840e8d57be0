"""A crash at any moment loses nothing that was promised, and brings back nothing that was deleted.

Killing a process leaves its writes in the system's cache, so it cannot show what a loss of power does. Here the
file layer notes every operation of a run, and can write down what the end of the process or of the machine
before any of them would have left. See tests/robustness/crash_run.py for what is checked.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.robustness.crash_run import check, record

FLUSHES = ("SYNC_FLUSH", "ASYNC_FLUSH")


def crash(folder: Path, flush: str, *, rounds: int, stride: int, seeds: int, first: int = 0) -> int:
    """Crashes at every ``stride``-th operation, once by a kill and ``seeds`` times by a loss of power."""
    disk, run = record(folder / "run", flush, rounds)
    moments = range(first, len(disk.operations) + 1, stride)
    left = folder / "left"
    for moment in moments:
        for seed in range(-1, seeds):
            if seed < 0:
                disk.killed(moment, left)
            else:
                disk.power_lost(moment, left, seed)
            try:
                check(left, run, moment, flush, power_lost=seed >= 0)
            except BaseException as error:
                how = "killed" if seed < 0 else f"power lost with seed {seed}"
                error.add_note(f"{flush}, {how} before operation {moment} of {len(disk.operations)}")
                raise
            shutil.rmtree(left)
    print(f"\n{flush}: {len(disk.operations)} operations, {len(moments) * (1 + seeds)} crashes")
    return len(moments)


@pytest.mark.parametrize("flush", FLUSHES)
def test_a_crash_now_and_then_loses_nothing(tmp_path: Path, flush: str) -> None:
    assert crash(tmp_path, flush, rounds=1, stride=11, seeds=1) > 10


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("flush", FLUSHES)
def test_a_crash_at_every_operation_loses_nothing(tmp_path: Path, flush: str) -> None:
    assert crash(tmp_path, flush, rounds=2, stride=1, seeds=3) > 500
