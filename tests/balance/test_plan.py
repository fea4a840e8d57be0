"""balance.plan: the difference between held and allotted queues."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gimbalmq.balance.plan import Plan, plan
from gimbalmq.model.queues import MessageQueue

Q = [MessageQueue("T", "b", number) for number in range(12)]
some_queues = st.sets(st.sampled_from(Q))


def test_the_worked_example() -> None:
    """S2-16 (which queues go), S2-17 (an expired queue is dropped and taken again)."""
    assert plan([Q[0], Q[1], Q[2]], [Q[3], Q[2], Q[1]], [Q[2]]) == Plan(
        keep=(Q[1],), drop=(Q[0], Q[2]), take=(Q[2], Q[3])
    )


def test_a_pull_consumer_passes_no_expired_queues_and_keeps_them() -> None:
    """S2-17: pull leaves it."""
    unchanged = plan(Q[:3], Q[:3])
    assert unchanged == Plan(keep=tuple(Q[:3]))
    assert not unchanged.changes


def test_an_empty_share_drops_everything() -> None:
    assert plan(Q[:2], []) == Plan(drop=(Q[0], Q[1]))


def test_an_expired_queue_that_is_not_ours_is_only_dropped() -> None:
    assert plan([Q[0]], [], [Q[0], Q[5]]) == Plan(drop=(Q[0],))


@settings(deadline=None)
@given(some_queues, some_queues, some_queues)
def test_carrying_out_the_plan_gives_the_allotted_queues(
    held: set[MessageQueue], allotted: set[MessageQueue], expired: set[MessageQueue]
) -> None:
    todo = plan(held, allotted, expired)
    assert (held - set(todo.drop)) | set(todo.take) == allotted
    assert set(todo.keep) == (held & allotted) - expired
    assert todo.changes == (held != allotted or bool(held & expired))
    assert not set(todo.keep) & (set(todo.drop) | set(todo.take))
