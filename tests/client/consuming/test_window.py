"""The window of pulled messages: order, what may be committed, ordered work."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from gimbalmq.client.consuming.window import Window
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue

QUEUE = MessageQueue("T", "broker-a", 0)


def view(offset: int, size: int = 10) -> MessageView:
    return MessageView.build("T", b"x" * size, queue=QUEUE, queue_offset=offset)


def views(*offsets: int) -> list[MessageView]:
    return [view(offset) for offset in offsets]


def filled(*offsets: int) -> Window:
    window = Window()
    window.put(views(*offsets))
    return window


def test_progress_is_bound_by_the_oldest_unfinished_message() -> None:
    """S3-27: with 10 pending, finishing {20, 40} and {50, 70} commits 10; finishing 10 then commits 100."""
    window = filled(10, 20, 40, 50, 70, 100)
    assert window.remove(views(20, 40)) == 10
    assert window.remove(views(50, 70)) == 10
    assert window.remove(views(10)) == 100
    assert window.remove(views(100)) == 101


def test_removing_from_an_empty_window_says_so() -> None:
    window = Window()
    assert window.remove(views(3)) == -1
    window.put(views(3))
    assert window.remove(views(3)) == 4
    assert window.remove(views(3)) == -1


def test_messages_are_kept_by_offset_whatever_order_they_come_in() -> None:
    """S3-35: ordered by offset, removed by offset."""
    window = Window()
    window.put(views(5, 9))
    window.put(views(7, 2, 9))
    assert [message.queue_offset for message in window.oldest(10)] == [2, 5, 7, 9]
    assert (window.min_offset, window.max_offset, window.span) == (2, 9, 7)
    assert window.count == 4
    assert window.remove(views(2, 9)) == 5
    assert window.remove(views(5, 7)) == 10


def test_an_offset_that_is_there_already_is_not_added_again() -> None:
    window = filled(1, 2)
    window.put(views(2, 3))
    assert window.count == 3
    assert window.body_bytes == 30


def test_cached_bytes_follow_the_messages() -> None:
    window = Window()
    window.put([view(0, 100), view(1, 50)])
    assert window.body_bytes == 150
    window.remove([view(0, 100)])
    assert window.body_bytes == 50
    window.remove([view(1, 50)])
    assert (window.count, window.body_bytes) == (0, 0)


@given(st.lists(st.integers(0, 60), min_size=1, max_size=40, unique=True), st.randoms(use_true_random=False))
def test_the_committable_offset_never_passes_an_unfinished_message(
    offsets: list[int], rng: random.Random
) -> None:
    """S3-27, any order of finishing."""
    window = Window()
    window.put(views(*sorted(offsets)))
    left = set(offsets)
    order = list(offsets)
    rng.shuffle(order)
    for offset in order:
        left.discard(offset)
        assert window.remove(views(offset)) == (min(left) if left else max(offsets) + 1)


def test_only_an_idle_queue_asks_for_a_run() -> None:
    window = Window()
    assert window.put(views(0)) is True
    assert window.put(views(1)) is False
    assert [message.queue_offset for message in window.take(10)] == [0, 1]
    assert window.take(10) == []
    assert window.put(views(2)) is True


def test_ordered_work_is_taken_from_the_front_and_committed_after_the_last() -> None:
    window = filled(3, 4, 5)
    assert [message.queue_offset for message in window.take(2)] == [3, 4]
    assert window.in_work == 2
    assert window.count == 3
    assert window.commit() == 5
    assert window.count == 1
    assert window.commit() == -1


def test_ordered_work_can_be_put_back() -> None:
    window = filled(3, 4, 5)
    window.take(2)
    window.rollback()
    assert [message.queue_offset for message in window.take(3)] == [3, 4, 5]
    window.put_back(views(4))
    assert [message.queue_offset for message in window.take(1)] == [4]
    assert window.commit() == 6


def test_ordered_work_that_was_settled_or_forgotten_is_not_put_back() -> None:
    window = filled(3, 4)
    work = window.take(1)
    assert window.commit() == 4
    window.put_back(work)
    assert (window.count, window.body_bytes, window.min_offset) == (1, 10, 4)
    work = window.take(1)
    window.clear()
    window.put_back(work)
    assert (window.count, window.body_bytes, window.min_offset) == (0, 0, None)
