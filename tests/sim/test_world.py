"""Whole clusters in virtual time: whatever befalls them, nothing acknowledged is lost and all comes to rest.

More of the same: ``make sim SEED=1 RUNS=100``; the long form is ``make sim RUNS=10000 ARGS=--small``. A seed found
there becomes a test at the end of this file, with its schedule cut down to the faults it needs.
"""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gimbalmq.client.consumer_config import PushConsumerConfig
from gimbalmq.client.consuming.held_queue import HeldQueue
from gimbalmq.client.consuming.locks import Locks
from gimbalmq.client.consuming.rounds import Rounds
from gimbalmq.testing import VirtualClock, run_virtual
from gimbalmq.transport.tasks import Tasks
from tests.sim.promises import WORLDS, broken, small
from tests.sim.run import cut_down, main
from tests.sim.schedule import KINDS, Fault, draw
from tests.sim.world import Report, Settings, run_world

ROOT = Path(__file__).resolve().parents[2]
LEASE = Settings(handover="lease")


def kept(report: Report) -> Report:
    """Fails with the seed and everything that happened where a promise was broken."""
    problems = broken(report)
    assert not problems, f"{'; '.join(problems)}\n{report}"
    return report


@pytest.mark.parametrize("name", list(WORLDS))
def test_small_world_keeps_its_promises(name: str) -> None:
    for seed in (2, 3):
        report = kept(run_world(seed, small(WORLDS[name])))
        print(f"\n{name}, seed {seed}: {report.account}; at rest after {report.settled} s")
        # A broker that has moved is sent to again when its route is known, up to 30 s later.
        assert len(report.account.acknowledged) > (30 if "broker move" in WORLDS[name].kinds else 60)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_ten_thousand_worlds_keep_their_promises() -> None:
    assert main(["--small", "--runs", "10000", "--seed", "1000"]) == 0


# --- the simulation itself ---------------------------------------------------------------------------


def test_equal_seeds_give_equal_runs_in_any_process() -> None:
    """Not even the order of sets, which differs from process to process, shows."""
    program = (
        "from tests.sim.promises import WORLDS, small; from tests.sim.world import Settings, run_world; "
        "print(run_world(7, Settings(handover='lease', span=60.0, faults=8)).digest); "
        "print(run_world(3, small(WORLDS['servers in the dark'])).digest)"
    )
    digests = [
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONHASHSEED": salt},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        for salt in ("1", "2")
    ]
    assert len(digests[0].split()) == 2
    assert digests[0] == digests[1]


def test_schedules_repeat_by_their_seed_and_differ_by_it() -> None:
    assert draw(5, KINDS, 20, 100.0) == draw(5, KINDS, 20, 100.0)
    assert draw(5, KINDS, 20, 100.0) != draw(6, KINDS, 20, 100.0)
    assert {fault.kind for seed in range(20) for fault in draw(seed, KINDS, 20, 100.0)} == set(KINDS)


def test_a_schedule_is_cut_down_to_what_is_needed() -> None:
    """Here a crash is called a failure; the joins around it are not needed for that."""
    schedule = [Fault(1.0, "join", 0.5), Fault(2.0, "crash", 0.5), Fault(3.0, "join", 0.5)]
    short = replace(LEASE, producers=1, topics=("T",), queues=1)

    def crashes(fewer: Sequence[Fault]) -> bool:
        return any("crash" in line for line in run_world(1, short, fewer).happened)

    needed = cut_down(schedule, crashes)
    assert needed == [Fault(2.0, "crash", 0.5)]


def test_a_promise_that_is_broken_is_noticed() -> None:
    """The account is no rubber stamp: members that move queues as Java does repeat messages and overlap."""
    report = run_world(3, replace(WORLDS["leases, planned"], handover="java"))
    assert report.account.repeated
    assert not broken(report)
    report.settings = WORLDS["leases, planned"]
    assert broken(report)
    report.account.acknowledged.add(b"never sent")
    assert any("never sent" in problem for problem in broken(report))


AWAY_FOR_LONG = [Fault(5.0, "partition", 0.6, 30.0), Fault(50.0, "clock", 0.99, 1.0)]
"""A member reaches nobody for so long that another takes its queues. Worlds heal after their last fault."""
ASLEEP = [Fault(5.0, "sleep", 0.2, 30.0), Fault(50.0, "clock", 0.99, 1.0)]
RESTART = [Fault(5.0, "broker restart", 0.2, 0.05), Fault(5.2, "join", 0.2), Fault(20.0, "clock", 0.99, 1.0)]
JOINS = [Fault(5.0, "join", 0.5), Fault(10.0, "join", 0.5)]
BUSY = replace(small(WORLDS["leases, pauses"]), pause=(0.1, 0.2))


def test_the_check_notices_members_that_are_not_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    kept(run_world(1, BUSY, AWAY_FOR_LONG))
    lease = HeldQueue.lease
    monkeypatch.setattr(HeldQueue, "lease", lambda held, sent, until: lease(held, sent, math.inf))
    monkeypatch.setattr(HeldQueue, "fence", lambda held: None)
    found = broken(run_world(1, BUSY, AWAY_FOR_LONG))
    assert any("c01#1 took itself for the owner" in problem for problem in found)


def test_the_check_notices_a_clock_that_stands_still_while_the_machine_sleeps() -> None:
    """As ``time.monotonic`` does on Linux: a member that wakes takes its leases for fresh, and others have them."""
    kept(run_world(1, BUSY, ASLEEP))
    found = broken(run_world(1, replace(BUSY, sleep_counts=False), ASLEEP))
    assert any("two handlers were at work" in problem for problem in found)


def test_the_check_notices_locks_that_are_taken_right_after_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = replace(BUSY, work=(1.0, 1.9))
    kept(run_world(4, slow, RESTART))
    monkeypatch.setattr(Locks, "withheld", lambda locks, queue: None)
    found = broken(run_world(4, slow, RESTART))
    assert any("two handlers were at work" in problem for problem in found)


def test_the_check_notices_a_handover_that_does_not_wait() -> None:
    world = replace(small(WORLDS["leases, planned"]), pause=(0.1, 0.2), work=(0.1, 0.5))
    kept(run_world(1, world, JOINS))
    found = broken(run_world(1, replace(world, options=(("handover_wait", 0.0),)), JOINS))
    assert any("two handlers were at work" in problem for problem in found)
    assert any("repeated by planned changes" in problem for problem in found)


# --- what was found, one test each --------------------------------------------------------------------


def test_a_lock_is_not_overridden_when_only_the_number_of_queues_changed() -> None:
    """Seeds 113 and 212: members learn of a resize up to 30 s apart. The first to know wanted a queue that a
    living member held, and after 5 s took the lock for that of somebody who had left long before."""
    schedule = [
        Fault(8.245, "leave", 0.5831603859327821),
        Fault(9.265, "join", 0.6866787273866818),
        Fault(31.153, "leave", 0.04566095988456309),
        Fault(32.054, "leave", 0.46670317119650606),
        Fault(65.406, "join", 0.5770272054514323),
        Fault(84.389, "join", 0.3875717972952688),
        Fault(104.347, "join", 0.6399076199559823),
        Fault(110.136, "leave", 0.6036636202274194),
        Fault(132.225, "resize", 0.05554297508765038),
    ]
    report = kept(run_world(212, WORLDS["leases, planned"], schedule))
    assert report.overridden == 0


def test_the_queue_of_a_crashed_member_is_overridden_once_and_then_kept() -> None:
    """Its lock stays at the broker for 60 s. The renewal after 20 s was refused, the queue dropped and its
    progress forgotten, and 5 s later it was taken again: three pauses and repeats for one crash."""
    report = kept(run_world(1, LEASE, [Fault(1.0, "crash", 0.5), Fault(90.0, "join", 0.5)]))
    assert report.leases_lost == 0
    assert 0 < report.overridden <= 6


def test_a_round_under_way_when_a_consumer_closes_starts_nothing_after_it() -> None:
    """Seed 206: its heartbeat was sent from a task that outlived the consumer and failed."""
    schedule = [
        Fault(26.591, "leave", 0.5070562228041009),
        Fault(60.583, "resize", 0.9382820933836554),
        Fault(95.116, "join", 0.5157604650965782),
        Fault(194.422, "join", 0.18490651500145772),
    ]
    kept(run_world(206, WORLDS["leases, planned"], schedule))


def test_a_member_that_overrode_a_lock_and_was_cut_off_does_not_go_on_as_if_nothing_had_been() -> None:
    """Seed 5: the gone member's lock ended meanwhile, a third one had it, and the refusal was taken for the
    gone member's."""
    schedule = [
        Fault(0.355, "reset", 0.8714047447242821),
        Fault(14.386, "crash", 0.6179261849630812),
        Fault(49.811, "reset", 0.05185325369909766),
        Fault(49.866, "tear", 0.7311837167794242),
        Fault(71.707, "partition", 0.6904468457583358, 9.329),
        Fault(93.814, "crash", 0.24657283261983032),
        Fault(183.269, "late", 0.7657254516291417, 7.734),
        Fault(184.465, "resize", 0.029005228283614737),
        Fault(192.025, "vanish", 0.16585644239491049),
        Fault(192.296, "crash", 0.5392234688708106),
    ]
    report = kept(run_world(5, WORLDS["leases"], schedule))
    assert not report.desk.overlaps


def test_members_that_see_different_routes_do_not_share_a_queue_after_an_override() -> None:
    """Seed 14: a name server came back without all brokers. Members that lost a broker from their routes sent it
    no signs of life and were taken for hung there, and of two that wanted an overridden queue both got it."""
    schedule = [
        Fault(23.68, "late", 0.22326611631224957, 26.159),
        Fault(32.21, "name server", 0.6654320632219244, 27.387),
        Fault(51.155, "vanish", 0.7340593641446967),
        Fault(52.08, "loss", 0.8042812841588886, 9.487),
        Fault(54.811, "loss", 0.8540790824443066, 5.027),
        Fault(93.324, "name server", 0.8728219747295501, 21.024),
        Fault(128.173, "partition", 0.8861548908913989, 3.864),
        Fault(130.34, "hang", 0.12302634563166248, 23.537),
        Fault(151.041, "leave", 0.5271119023885755),
        Fault(198.087, "late", 0.4386480517418042, 10.703),
    ]
    report = kept(run_world(14, WORLDS["leases, brokers stay"], schedule))
    assert not report.desk.overlaps


def test_of_two_members_that_want_the_queue_of_a_gone_one_only_the_first_overrides_its_lock() -> None:
    """Seed 11: after a resize they saw different routes, and the second took the first one's lock for the gone
    member's."""
    schedule = [
        Fault(12.633, "join", 0.03565278045988274),
        Fault(16.998, "reset", 0.6548016390067555),
        Fault(18.134, "reset", 0.8096445343671775),
        Fault(103.825, "partition", 0.6402917079191771, 71.839),
        Fault(117.477, "reset", 0.18466034385487662),
        Fault(119.087, "resize", 0.39615997645823486),
        Fault(122.792, "tear", 0.18617368559631298),
        Fault(123.113, "reset", 0.15749409514016244),
        Fault(155.622, "vanish", 0.32629335254826475),
        Fault(171.373, "reset", 0.7812180553797637),
    ]
    report = kept(run_world(11, WORLDS["leases, brokers stay"], schedule))
    assert not report.desk.overlaps


def test_a_member_that_closes_and_has_nothing_at_work_does_not_count_as_an_owner() -> None:
    """Seed 200406, which the simulator had wrong: the answer to the goodbye was lost on its way, and another member
    began the queue with the lock that was given back."""
    schedule = [
        Fault(7.137, "join", 0.9693533141240293),
        Fault(20.83, "leave", 0.7070275878121594),
        Fault(37.83, "loss", 0.6578407584498007, 5.363),
        Fault(37.94, "leave", 0.7005316704655359),
    ]
    kept(run_world(200406, small(WORLDS["leases, bad lines"]), schedule))


def test_a_world_does_not_end_before_the_last_message_that_is_on_its_way() -> None:
    """Seed 200335, which the simulator had wrong: a sender that waited for its topic to be made again sent one more
    message after everybody had been told to stop, and the world ended before it was consumed."""
    schedule = [
        Fault(3.914, "delete topic", 0.9055419473690176, 10.473),
        Fault(6.553, "broker kill", 0.5147152991687624, 4.422),
        Fault(32.966, "reset", 0.20914608898730003),
    ]
    kept(run_world(200335, small(WORLDS["topics wiped"]), schedule))


@pytest.mark.parametrize("turns", range(4))
def test_a_member_that_is_woken_while_it_closes_does_close(turns: int) -> None:
    """Seed 12, in some processes: the loop of rounds waited with ``wait_for``, which in Python 3.11 loses a
    cancellation that comes together with the event, and close() never returned."""

    class Idle:
        group = "g"
        config = PushConsumerConfig(group="g", namesrv="10.0.0.1:9876")

        async def run(self, reason: str) -> bool:
            return True

    async def main(clock: VirtualClock) -> None:
        tasks = Tasks("member")
        rounds = Rounds(tasks, clock)
        rounds.join(Idle())
        await asyncio.sleep(1)
        rounds.wake("a member joined")
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(10):
            await tasks.close()

    run_virtual(main)
