"""balance.simulate: what a group's changes would move."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from gimbalmq.balance.by_name import strategy_by_name
from gimbalmq.balance.compare import minimum_moves, moves_between
from gimbalmq.balance.simulate import Event, Report, day_of_changes, simulate
from gimbalmq.errors import ConfigError
from gimbalmq.model.queues import MessageQueue

Q = [MessageQueue("T", "b", number) for number in range(16)]
AVG = strategy_by_name("AVG")


def test_a_second_member_takes_two_of_five() -> None:
    """S1-01, with what it moves."""
    (outcome,) = simulate(AVG, Q[:5], [Event(60, "join", "b")], members=["a"]).outcomes
    assert (outcome.at, outcome.moved, outcome.minimum, outcome.spread, outcome.idle) == (60, 2, 2, 1, 0)


def test_the_surplus_member_is_idle_until_another_stops() -> None:
    """S1-02, and the allocation side of S4-15."""
    report = simulate(AVG, Q[:2], [Event(1, "join", "c"), Event(2, "leave", "a")], members=["a", "b"])
    assert [outcome.idle for outcome in report.outcomes] == [1, 0]


def test_avg_moves_more_than_it_must() -> None:
    """16 queues, 3 to 4 members: blocks of 6,5,5 become 4,4,4,4; 2, 3 and 4 queues slide on."""
    (outcome,) = simulate(AVG, Q, [Event(0, "join", "d")], members=["a", "b", "c"]).outcomes
    assert (outcome.moved, outcome.minimum) == (9, 4)


def test_a_lost_host_is_noticed_late_and_its_queues_wait() -> None:
    report = simulate(AVG, Q, [Event(10, "lost", "a"), Event(20, "crash", "b")], members=["a", "b", "c"])
    first, second = report.outcomes
    assert (first.event.kind, first.at, first.waited, first.unserved) == ("crash", 20, 0, 5)
    assert (second.event.kind, second.at, second.waited) == ("lost", 130, 120)
    assert report.unserved_seconds == 120 * second.unserved == 120 * 8


def test_a_resize_counts_only_queues_that_existed_before() -> None:
    (outcome,) = simulate(AVG, Q[:4], [Event(0, "resize", queues=tuple(Q[:8]))], members=["a", "b"]).outcomes
    assert (outcome.at, outcome.moved, outcome.minimum, outcome.queues) == (30, 2, 0, 8)


def test_the_last_member_leaving_moves_nothing() -> None:
    (outcome,) = simulate(AVG, Q, [Event(0, "leave", "a")], members=["a"]).outcomes
    assert (outcome.moved, outcome.members, outcome.spread) == (0, 0, 0)


def test_a_stranger_cannot_leave() -> None:
    with pytest.raises(ConfigError, match="must have joined"):
        simulate(AVG, Q, [Event(0, "leave", "x")], members=["a"])


def test_the_minimum_is_the_best_of_all_balanced_assignments() -> None:
    """By trying every assignment of 5 queues for every starting one."""
    queues, members = Q[:5], ("a", "b", "c")
    for held in (
        ("a", "a", "b", "b", "b"),
        ("a",) * 5,
        ("a", "b", "gone", "gone", "c"),
        ("a", "a", "a", "b", "c"),
    ):
        before = dict(zip(queues, held, strict=True))
        for size in (1, 2, 3):
            for present in combinations(members, size):
                balanced = (
                    dict(zip(queues, owners, strict=True))
                    for owners in product(present, repeat=5)
                    if max(map(owners.count, present)) - min(map(owners.count, present)) <= 1
                )
                best = min(len(moves_between(before, after)) for after in balanced)
                assert minimum_moves(before, queues, present) == best


def test_equal_seeds_give_equal_days_and_different_seeds_do_not() -> None:
    days = [day_of_changes(seed, Q, ["a", "b"]) for seed in (1, 1, 2)]
    assert days[0] == days[1] != days[2]
    assert {event.kind for event in days[0]} == {"join", "leave", "crash", "lost", "resize"}
    assert all(0 <= event.at < 86_400 for event in days[0])


def test_a_day_runs_with_every_strategy_and_sticky_moves_least_of_the_even_ones() -> None:
    members = [f"10.1.0.{number}@1" for number in range(12)]
    day = day_of_changes(
        5, Q * 1 + [MessageQueue("U", "b", n) for n in range(240)], members, largest_group=16
    )
    queues = Q + [MessageQueue("U", "b", n) for n in range(240)]
    reports = {
        name: simulate(strategy_by_name(name), queues, day, members=members)
        for name in ("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "STICKY")
    }
    assert reports["STICKY"].worst_spread <= 1
    assert reports["STICKY"].moved < min(reports["AVG"].moved, reports["AVG_BY_CIRCLE"].moved) / 2
    assert reports["CONSISTENT_HASH"].worst_spread > 10


def test_a_report_of_nothing() -> None:
    assert Report("AVG", ()).ratio == 1.0
    assert Report("AVG", ()).worst_spread == 0
