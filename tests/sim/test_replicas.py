"""Replicated brokers in virtual time: what was answered is on enough replicas, and all logs are one in the end.

More of the same: ``make sim RUNS=1000 ARGS=--replicated``. A seed found there becomes a test at the end of this file,
with its schedule cut down to the faults it needs.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gimbalmq.broker.replication.acknowledging import Acknowledging
from gimbalmq.protocol.codes import ResponseCode
from tests.sim.replica_checks import Answer, Checks
from tests.sim.replica_promises import REPLICATED
from tests.sim.replica_world import ReplicaReport, run_replicas
from tests.sim.run import main
from tests.sim.schedule import Fault
from tests.support import run


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


@pytest.mark.parametrize("name", list(REPLICATED))
def test_equal_seeds_give_equal_runs(name: str) -> None:
    settings = replace(REPLICATED[name], faults=3, span=2.0)
    first = run_replicas(5, settings)
    elsewhere = [object() for _ in range(1001)]  # the second world lies in other places of the memory
    assert run_replicas(5, settings).digest == first.digest, str(first)
    del elsewhere


def test_nothing_that_was_answered_is_cut() -> None:
    async def work() -> None:
        mark = b"#00000001#"
        old: Any = SimpleNamespace(number=1, log=lambda begin=0, end=None: mark[begin:end])
        checks = Checks([old], needed=1, must_have=list, may_answer=lambda _: None, kept=True)
        checks.accepted(Answer(mark, 0, 0, 0, 0.0))
        checks.cuts(old, 10, 20)
        assert not checks.problems
        checks.cuts(old, 0, 10)
        assert "1 cuts its log from 0 on, and 1 answered" in checks.problems[0]

    run(work())


def broken(name: str, seed: int) -> str:
    return "; ".join(run_replicas(seed, REPLICATED[name]).problems)


@pytest.mark.parametrize("name", ["by hand", "all of three"])
def test_a_master_that_does_not_wait_is_noticed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(Acknowledging, "_copied", lambda *_: ResponseCode.SUCCESS)
    assert "answered with success up to" in broken(name, 1)


def test_what_a_machine_without_power_had_alone_is_noticed() -> None:
    async def work() -> None:
        mark = b"#00000001#"
        full: Any = SimpleNamespace(number=1, log=lambda begin=0, end=None: mark)
        poor: Any = SimpleNamespace(number=2, log=lambda begin=0, end=None: b"")
        checks = Checks([full, poor], needed=2, must_have=list, may_answer=lambda _: None, kept=True)
        checks.accepted(Answer(mark, 0, 0, 0, 0.0))
        checks.goes_dark(poor)
        assert not checks.problems
        checks.goes_dark(full)
        assert "nobody but 1, which loses power, has 1" in checks.problems[0]

    run(work())


# --- found by seeds ----------------------------------------------------------------------------------


def test_a_term_that_a_new_master_only_heard_of_does_not_get_its_bytes() -> None:
    """Two replicas had different bytes in one epoch, and the slave could not be cut to where they part."""
    kept(run_replicas(60199, REPLICATED["two of three"]))


def test_the_oldest_term_stays_if_it_has_no_bytes() -> None:
    """A new master with an empty log shared no term with a slave that had bytes of the first one."""
    kept(run_replicas(95107, REPLICATED["all of three, dark"]))


def test_a_slave_without_power_is_elected_while_the_controller_does_not_hear_the_master() -> None:
    """It came back without its last messages, led, and had the others cut them."""
    kept(run_replicas(106399, REPLICATED["all of three, dark"]))


def test_a_master_that_comes_back_in_its_term_shows_no_more_than_before() -> None:
    """Its last message was on no other replica; readers saw it, and then another master put one in its place."""
    schedule = [
        Fault(3.026, "replica in the dark", 0.6498863154291751, 0.281),
        Fault(3.386, "replica in the dark", 0.724391502169599, 1.026),
    ]
    kept(run_replicas(401407, REPLICATED["all of three, dark"], schedule))


def test_a_slave_that_lost_power_is_not_level_yet_when_its_master_stops() -> None:
    """It was elected, and lacked what the third one had."""
    schedule = [
        Fault(0.473, "slow replica", 0.5672532072758446, 5.781),
        Fault(2.18, "replica in the dark", 0.40069722058703927, 0.134),
        Fault(3.161, "replica restarted", 0.201433051371402, 0.183),
    ]
    kept(run_replicas(310104, REPLICATED["all of three, dark"], schedule))


def test_a_slave_that_never_heard_of_another_one_is_not_promoted_in_its_place() -> None:
    """The other's connections had broken when it came, and it was cut off before they were there again."""
    kept(run_replicas(341715, REPLICATED["by hand, dark"]))


def test_a_slave_that_is_not_listed_for_a_moment_is_waited_for() -> None:
    """The one that was promoted had heard of its master before the other slave came, and not again."""
    kept(run_replicas(355355, REPLICATED["by hand, dark"]))


def test_a_slave_that_goes_between_two_looks_is_not_forgotten() -> None:
    """It had more, and was listed when the operator's tool looked first."""
    kept(run_replicas(360090, REPLICATED["by hand, dark"]))
