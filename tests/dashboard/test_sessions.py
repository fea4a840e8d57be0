"""Logins end: by themselves, by somebody's will, and to make room."""

from __future__ import annotations

import pytest

from gimbalmq.dashboard import sessions as module
from gimbalmq.dashboard.sessions import Session, Sessions
from tests.support import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ended() -> list[Session[str]]:
    return []


@pytest.fixture
def logins(clock: ManualClock, ended: list[Session[str]]) -> Sessions[str]:
    return Sessions(clock, idle=600, longest=3600, ended=ended.append)


def test_a_login_ends_if_nothing_is_done(
    logins: Sessions[str], clock: ManualClock, ended: list[Session[str]]
) -> None:
    session = logins.begin("alice", "account")
    clock.advance(599)
    assert logins.find(session.token) is session  # looking at it is not doing something
    clock.advance(1)
    assert logins.find(session.token) is None
    assert session.over and ended == [session] and len(logins) == 0


def test_a_login_ends_whatever_is_done(logins: Sessions[str], clock: ManualClock) -> None:
    session = logins.begin("alice", "account")
    for _ in range(7):
        clock.advance(500)
        logins.use(session)
        assert logins.lives(session)
    clock.advance(100)
    logins.use(session)
    assert not logins.lives(session)
    logins.use(session)
    assert not logins.lives(session), "what is over stays over"


def test_what_nobody_asks_for_is_swept_away(
    logins: Sessions[str], clock: ManualClock, ended: list[Session[str]]
) -> None:
    first = logins.begin("alice", "account")
    clock.advance(400)
    second = logins.begin("bob", "account")
    clock.advance(300)
    logins.sweep()
    assert ended == [first] and list(logins) == [second]


def test_tokens_are_long_different_and_the_only_way_in(logins: Sessions[str]) -> None:
    session, other = logins.begin("alice", "account"), logins.begin("alice", "account")
    assert len(session.token) >= 43 and session.token != other.token
    assert session.token not in repr(session)
    for wrong in (None, "", 0, session.token[:-1], "alice", ["x"]):
        assert logins.find(wrong) is None
    logins.end(session)
    assert logins.find(session.token) is None and logins.find(other.token) is other


def test_logins_are_bounded_and_the_least_used_goes(
    logins: Sessions[str],
    clock: ManualClock,
    ended: list[Session[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_SESSIONS", 4)
    monkeypatch.setattr(module, "MOST_OF_ONE_USER", 2)
    bob = logins.begin("bob", "account")
    made = []
    for _ in range(5):
        clock.advance(1)
        made.append(logins.begin("mallory", "account"))
    assert ended == made[:3], "one user pushes nobody else out"
    clock.advance(1)
    logins.use(bob)
    logins.begin("carol", "account")
    logins.begin("dave", "account")
    assert ended == made[:4] and len(logins) == 4
    assert logins.lives(bob)
