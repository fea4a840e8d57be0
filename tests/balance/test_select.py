"""balance.select: rotation, avoidance on retry, choice by key and by function."""

from __future__ import annotations

from random import Random

import pytest

from gimbalmq.balance.select import (
    PublishQueues,
    Rotation,
    select_by_function,
    select_by_hash,
)
from gimbalmq.errors import ConfigError, NoWritableQueueError
from gimbalmq.model.queues import MessageQueue

A = [MessageQueue("T", "A", number) for number in range(4)]
B = [MessageQueue("T", "B", number) for number in range(4)]


def topic(queues: list[MessageQueue], start: int = 0) -> PublishQueues:
    return PublishQueues("T", queues, Rotation(Random(0), start=start))


def test_sends_go_round_the_list() -> None:
    """S0-01, S0-03: A0, A1, ... B3 and again A0; one step per pick."""
    queues = topic(A + B)
    assert [queues.next_queue_avoiding(None) for _ in range(10)] == [*A, *B, *A[:2]]


def test_the_index_is_the_count_modulo_the_list() -> None:
    """S0-03."""
    assert topic(A + B, start=21).next_queue() == (A + B)[21 % 8]


def test_callers_and_topics_rotate_independently() -> None:
    """S0-04: a counter per caller and per publish info."""
    queues, other = topic(A), topic(B)
    assert [queues.next_queue("one") for _ in range(3)] == A[:3]
    assert queues.next_queue("two") == A[0]
    assert other.next_queue("one") == B[0]
    assert queues.next_queue("one") == A[3]


def test_a_callers_start_is_drawn_from_the_generator() -> None:
    """S0-04: callers begin at different queues."""
    rotation = Rotation(Random(7))
    firsts = {rotation.next(caller) for caller in range(20)}
    assert len(firsts) == 20
    assert all(first >= 0 for first in firsts)


@pytest.mark.parametrize("start", [0x7FFFFFFE, -1, -(2**31), 2**32 - 2])
def test_the_count_is_never_negative(start: int) -> None:
    """S0-05: also when it wraps."""
    rotation = Rotation(Random(0), start=start)
    counts = [rotation.next() for _ in range(4)]
    assert all(0 <= count < 2**31 for count in counts)
    assert topic(A, start).next_queue() in A


def test_a_retry_leaves_the_failed_broker() -> None:
    """S0-06: the first queue of another broker in rotation."""
    queues = topic(A + B, start=1)
    assert queues.next_queue_avoiding("A") == B[0]
    assert queues.next_queue_avoiding("A") == B[1]


def test_a_retry_with_a_single_broker_just_rotates() -> None:
    """S0-07: no error."""
    queues = topic(A)
    assert [queues.next_queue_avoiding("A") for _ in range(2)] == [A[0], A[1]]


def test_a_topic_without_queues_cannot_be_sent_to() -> None:
    with pytest.raises(NoWritableQueueError, match="T"):
        topic([])


def test_write_queues_are_counted_unless_given() -> None:
    assert topic(A + B[:1]).write_queue_counts == {"A": 4, "B": 1}
    given = PublishQueues("T", A, Rotation(Random(0)), write_queue_counts={"A": 2})
    assert given.write_queue_counts == {"A": 2}


def test_a_key_chooses_by_javas_hash() -> None:
    """abs(hashCode) mod n; "polygenelubricants" hashes to -2**31, the value whose abs overflows in Java."""
    assert select_by_hash(A, "a") == A[97 % 4]
    assert select_by_hash(A[:3], "polygenelubricants") == A[2**31 % 3]
    assert select_by_hash(A + B, "order-1") == select_by_hash(A + B, "order-1")


def test_choice_from_nothing_is_refused() -> None:
    with pytest.raises(ConfigError):
        select_by_hash([], "a")


def test_the_callers_function_sees_queues_message_and_argument() -> None:
    assert select_by_function(A, lambda queues, message, shift: queues[len(message) + shift], "ab", 1) == A[3]
    with pytest.raises(ConfigError, match="selector"):
        select_by_function(A, lambda queues, message, argument: B[0], "m", None)
