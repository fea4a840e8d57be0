"""Guessing gets slower and slower; nobody is kept out for long by others."""

from __future__ import annotations

import pytest

from gimbalmq.dashboard import login_limits as module
from gimbalmq.dashboard.login_limits import (
    FORGET_SECONDS,
    FREE_TRIES,
    LONGEST_OF_ADDRESS,
    LONGEST_OF_USER,
    LoginLimits,
    place_of,
)
from tests.support import ManualClock

HOME, AWAY = "192.0.2.1", "192.0.2.2"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def limits(clock: ManualClock) -> LoginLimits:
    return LoginLimits(clock)


def test_few_tries_are_free_and_then_each_costs_twice_as_much(
    limits: LoginLimits, clock: ManualClock
) -> None:
    assert [limits.begin(HOME, f"user-{number}") for number in range(FREE_TRIES)] == [0.0] * FREE_TRIES
    pauses = []
    for number in range(12):
        pauses.append(limits.begin(HOME, f"other-{number}"))
        assert limits.begin(HOME, "again") == pauses[-1], "asking while one has to wait is not counted"
        clock.advance(pauses[-1])
        assert limits.begin(HOME, f"other-{number}") == 0.0
    assert pauses[:4] == [2.0, 4.0, 8.0, 16.0]
    assert pauses[-1] == LONGEST_OF_ADDRESS
    assert limits.begin(AWAY, "user-0") == 0.0


def test_a_name_tried_from_everywhere_has_short_pauses_only(limits: LoginLimits, clock: ManualClock) -> None:
    for number in range(30):
        clock.advance(limits.begin(f"198.51.100.{number}", "alice"))
    wait = limits.begin("203.0.113.9", "alice") or limits.begin("203.0.113.9", "alice")
    assert 0 < wait <= LONGEST_OF_USER
    assert limits.begin("203.0.113.9", "bob") == 0.0


def test_nobody_is_kept_out_of_where_they_have_logged_in_before(
    limits: LoginLimits, clock: ManualClock
) -> None:
    """Somebody who tries a name again and again, from anywhere, would else keep its user out for ever."""
    assert limits.begin(HOME, "alice") == 0.0
    limits.was_right(HOME, "alice")
    for number in range(30):
        limits.begin(f"198.51.100.{number}", "alice")
    assert limits.begin(AWAY, "alice") > 0
    assert limits.begin(HOME, "alice") == 0.0
    for _ in range(FREE_TRIES):
        limits.begin(HOME, "alice")
    assert limits.begin(HOME, "alice") > 0, "the address has its own limit all the same"


def test_one_who_has_a_login_guesses_no_faster_for_it(limits: LoginLimits) -> None:
    """If a right login wiped the slate clean, one could be put between any two guesses."""
    for number in range(FREE_TRIES - 1):
        assert limits.begin(HOME, f"victim-{number}") == 0.0
        assert limits.begin(HOME, "mallory") == 0.0
        limits.was_right(HOME, "mallory")
    assert limits.begin(HOME, "victim-x") == 0.0
    assert limits.begin(HOME, "mallory") > 0


def test_right_logins_and_clusters_that_are_away_cost_nothing(limits: LoginLimits) -> None:
    for _ in range(50):
        assert limits.begin(HOME, "alice") == 0.0
        limits.was_right(HOME, "alice")
        assert limits.begin(HOME, "bob") == 0.0
        limits.was_nothing(HOME, "bob")


def test_many_tries_at_once_are_counted_before_any_has_failed(limits: LoginLimits) -> None:
    assert sum(limits.begin(HOME, "alice") == 0.0 for _ in range(100)) == FREE_TRIES


def test_what_was_wrong_is_forgotten(limits: LoginLimits, clock: ManualClock) -> None:
    for _ in range(FREE_TRIES):
        limits.begin(HOME, "alice")
    assert limits.begin(HOME, "alice") > 0
    clock.advance(FORGET_SECONDS + 2)
    assert [limits.begin(HOME, "alice") for _ in range(FREE_TRIES)] == [0.0] * FREE_TRIES


def test_the_tables_are_bounded_and_names_cannot_push_addresses_out(
    limits: LoginLimits, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_ENTRIES", 20)
    for number in range(200):
        limits.begin(HOME, f"user-{number}")
        clock.advance(1)
    assert limits.begin(HOME, "anybody") > 0
    for number in range(200):
        limits.begin(f"198.51.100.{number}", f"user-{number}")
    assert len(limits._addresses) == len(limits._users) == 20
    for number in range(200):
        limits.was_right(HOME, f"user-{number}")
    assert len(limits._homes) == 20
    limits.begin("203.0.113.1", "x" * 10_000)
    assert max(map(len, limits._users._tries)) == module.MOST_LETTERS


def test_who_counts_as_one() -> None:
    assert place_of("2001:db8:1:2::1") == place_of("2001:db8:1:2:ffff::") != place_of("2001:db8:1:3::1")
    assert place_of("::ffff:192.0.2.1") == "192.0.2.1"
    assert place_of("fe80::1%eth0") == "fe80::/64"
    assert place_of("nowhere") == "nowhere"
