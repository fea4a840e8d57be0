"""Replicated brokers in virtual time: what was answered is on enough replicas, and all logs are one in the end.

More of the same: ``make sim RUNS=1000 ARGS=--replicated``. A seed found there becomes a test at the end of this file,
with its schedule cut down to the faults it needs.
"""

from __future__ import annotations

import pytest

from tests.sim.replica_promises import REPLICATED
from tests.sim.replica_world import ReplicaReport, run_replicas
from tests.sim.run import main


def kept(report: ReplicaReport) -> ReplicaReport:
    """Fails with the seed and everything that happened if a promise was broken."""
    assert not report.problems, str(report)
    return report


@pytest.mark.parametrize("name", list(REPLICATED))
def test_replicas_keep_their_promises(name: str) -> None:
    report = kept(run_replicas(1, REPLICATED[name]))
    assert report.sums["acknowledged"] > 20


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_ten_thousand_worlds_of_replicas_keep_their_promises() -> None:
    assert main(["--replicated", "--runs", "10000", "--seed", "1000"]) == 0


# --- the simulation itself ---------------------------------------------------------------------------


def test_equal_seeds_give_equal_runs() -> None:
    name = "all of three"
    assert run_replicas(5, REPLICATED[name]).digest == run_replicas(5, REPLICATED[name]).digest


def broken(name: str, *seeds: int) -> str:
    """What the first of these worlds finds that finds anything."""
    for seed in seeds:
        problems = run_replicas(seed, REPLICATED[name]).problems
        if problems:
            return "; ".join(problems)
    return ""


def test_a_master_that_does_not_wait_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Acknowledging, "_copied", lambda *_: ResponseCode.SUCCESS)
    assert "answered with success up to" in broken("by hand", 1)
    assert "answered with success up to" in broken("all of three", 1)
