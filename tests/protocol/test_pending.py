"""Waiting calls: numbers, answers and deadlines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gimbalmq.protocol.pending import PendingCalls


def test_numbers_are_fresh_and_never_negative() -> None:
    calls: PendingCalls[str] = PendingCalls()
    assert [calls.next_opaque() for _ in range(3)] == [0, 1, 2]
    calls._next_opaque = 0x7FFFFFFF
    assert [calls.next_opaque() for _ in range(2)] == [0x7FFFFFFF, 0]


def test_answer_takes_its_call_once() -> None:
    calls: PendingCalls[str] = PendingCalls()
    calls.add(7, "a", 0.0, 3.0)
    assert calls.take(8) is None
    assert calls.take(7) == "a"
    assert calls.take(7) is None
    assert calls.next_deadline() is None
    assert calls.expire(100.0) == []


def test_shorter_timeout_made_later_expires_first() -> None:
    calls: PendingCalls[str] = PendingCalls()
    calls.add(1, "slow", 0.0, 30.0)
    calls.add(2, "fast", 1.0, 3.0)
    assert calls.next_deadline() == 4.0
    assert calls.expire(3.9) == []
    assert calls.expire(4.0) == ["fast"]
    assert calls.next_deadline() == 30.0
    assert calls.expire(31.0) == ["slow"]
    assert calls.next_deadline() is None


def test_lost_connection_drains_everything() -> None:
    calls: PendingCalls[str] = PendingCalls()
    calls.add(1, "a", 0.0, 3.0)
    calls.add(2, "b", 0.0, 5.0)
    assert sorted(calls.drain()) == ["a", "b"]
    assert len(calls) == 0
    assert calls.next_deadline() is None


def test_answered_calls_leave_no_trace_before_their_deadline() -> None:
    calls: PendingCalls[int] = PendingCalls()
    for number in range(10_000):
        calls.add(number, number, 0.0, 30.0)
        calls.take(number)
    assert sum(map(len, calls._queues.values())) <= 2


@given(st.lists(st.tuples(st.floats(0, 5), st.sampled_from([1.0, 3.0, 30.0]), st.booleans()), max_size=40))
def test_every_unanswered_call_expires_at_its_deadline(
    plan: list[tuple[float, float, bool]],
) -> None:
    calls: PendingCalls[int] = PendingCalls()
    deadlines: dict[int, float] = {}
    now = 0.0
    for number, (pause, timeout, answered) in enumerate(plan):
        now += pause
        for expired in calls.expire(now):
            assert deadlines.pop(expired) <= now
        calls.add(number, number, now, timeout)
        if answered:
            assert calls.take(number) == number
        else:
            deadlines[number] = now + timeout
        assert calls.next_deadline() == min(deadlines.values(), default=None)
    assert sorted(calls.expire(1000.0)) == sorted(deadlines)
