"""Replicated brokers in virtual time: what was answered is on enough replicas, and all logs are one in the end.

More of the same: ``make sim RUNS=1000 ARGS=--replicated``. A seed found there becomes a test at the end of this file,
with its schedule cut down to the faults it needs.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from gimbalmq.broker.replication.acknowledging import Acknowledging
from gimbalmq.protocol.codes import ResponseCode
from tests.sim.replica_promises import REPLICATED
from tests.sim.replica_world import ReplicaReport, run_replicas
from tests.sim.run import main


def kept(report: ReplicaReport) -> ReplicaReport:
    """Fails with the seed and everything that happened if a promise was broken."""
    assert not report.problems, str(report)
    return report


@pytest.mark.parametrize("name", list(REPLICATED))
def test_replicas_keep_their_promises(name: str) -> None:
    report = kept(run_replicas(1, replace(REPLICATED[name], faults=4, span=4.0)))
    assert report.sums["acknowledged"] > 10


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_ten_thousand_worlds_of_replicas_keep_their_promises() -> None:
    assert main(["--replicated", "--runs", "10000", "--seed", "1000"]) == 0


# --- the simulation itself ---------------------------------------------------------------------------


def test_equal_seeds_give_equal_runs() -> None:
    settings = replace(REPLICATED["all of three"], faults=3, span=2.0)
    assert run_replicas(5, settings).digest == run_replicas(5, settings).digest


def broken(name: str, seed: int) -> str:
    return "; ".join(run_replicas(seed, REPLICATED[name]).problems)


@pytest.mark.parametrize("name", ["by hand", "all of three"])
def test_a_master_that_does_not_wait_is_noticed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(Acknowledging, "_copied", lambda *_: ResponseCode.SUCCESS)
    assert "answered with success up to" in broken(name, 1)
