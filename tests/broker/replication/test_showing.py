"""Held pulls hear of queues when readers see what is new there."""

from __future__ import annotations

from collections.abc import Iterable

from gimbalmq.broker.replication.showing import _MOST, Showing
from gimbalmq.store.consumequeue import QueueLog


def test_queues_are_shown_when_they_are_confirmed() -> None:
    shown: list[set[QueueLog]] = []

    def show(queues: Iterable[QueueLog]) -> None:
        shown.append(set(queues))

    showing = Showing(show)
    one, two = QueueLog("T", 0, None), QueueLog("T", 1, None)
    showing.grown([one], 100)
    showing.grown([two], 200)
    showing.grown([one], 300)
    showing.confirmed(99)
    assert not shown
    showing.confirmed(200)
    assert shown == [{one, two}]
    showing.confirmed(250)
    assert len(shown) == 1
    showing.confirmed(300)
    assert shown[1:] == [{one}]


def test_what_is_never_confirmed_takes_no_more_memory() -> None:
    shown: list[set[QueueLog]] = []
    showing = Showing(lambda queues: shown.append(set(queues)))
    queues = [QueueLog("T", number, None) for number in range(10)]
    for number in range(3 * _MOST):
        showing.grown([queues[number % 10]], number + 1)
    assert len(showing._held) <= _MOST + 1
    showing.confirmed(3 * _MOST)
    assert shown == [set(queues)]
