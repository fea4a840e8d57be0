"""Ranges into partitions: every message once, split and joined as asked."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gimbalmq.model.queues import MessageQueue
from gimbalmq.spark.planning import Partition, QueueRange, plan, plan_by_number, ranges_between

Q = [MessageQueue("t", "broker-a", number) for number in range(8)]

some_ranges = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 5000)), max_size=8).map(
    lambda found: [QueueRange(Q[index], low, low + count) for index, (low, count) in enumerate(found)]
)
maybe = st.none() | st.integers(1, 40)


def _messages(partitions: list[Partition]) -> int:
    return sum(piece.length for partition in partitions for piece in partition)


@given(some_ranges, maybe, st.none() | st.integers(1, 6000), st.sampled_from([None, 0, 1, 100, 4000]))
def test_every_message_is_in_exactly_one_partition(
    ranges: list[QueueRange], least: int | None, most: int | None, min_records: int | None
) -> None:
    planned = plan(ranges, min_partitions=least, max_records=most, min_records=min_records)
    pieces = [piece for partition in planned for piece in partition]
    assert all(piece.length > 0 for piece in pieces)
    for wanted in ranges:
        mine = [piece for piece in pieces if piece.queue == wanted.queue]
        assert sum(piece.length for piece in mine) == wanted.length
        if mine:
            assert mine[0].start == wanted.start
            assert mine[-1].end == wanted.end
            assert all(one.end == two.start for one, two in pairwise(mine))
    if most is not None:
        assert all(sum(piece.length for piece in partition) <= most for partition in planned)
    if least is not None:
        assert len(planned) >= min(least, _messages(planned))


@given(some_ranges, st.integers(1, 6000))
def test_a_partition_of_several_ranges_is_about_as_long_as_asked(
    ranges: list[QueueRange], wanted: int
) -> None:
    for partition in plan(ranges, min_records=wanted):
        lengths = [piece.length for piece in partition]
        assert len(lengths) == 1 or sum(lengths) <= wanted + (lengths[0] + lengths[-1]) / 2


def test_a_batch_has_few_large_tasks_and_a_small_one_enough_for_the_cores() -> None:
    def sizes(each: int, queues: int = 16, cores: int = 2) -> list[int]:
        # Shares of a backlog are never quite equal.
        ranges = [
            QueueRange(MessageQueue("t", "broker-a", number), 0, each + (-1) ** number * (each // 100))
            for number in range(queues)
        ]
        return [len(partition) for partition in plan(ranges, cores=cores)]

    assert sizes(62_500) == [4] * 4, "a million messages, two tasks for each core"
    assert sizes(62_500, cores=8) == [2] * 8, "no core without a task"
    assert sizes(62_500, cores=64) == [1] * 16
    assert sizes(125_000) == [2] * 8, "large ones are enough"
    assert sizes(250_000) == [1] * 16, "queues that are long have a task each"
    assert sizes(5000) == [4] * 4
    assert sizes(1000, cores=8) == [4] * 4, "fewer tasks if they would be short"
    assert sizes(100) == [16]
    assert sizes(10_000, queues=4) == [1] * 4


def test_short_ranges_share_a_partition() -> None:
    ranges = [QueueRange(queue, 5, 15) for queue in Q]
    assert plan(ranges) == [tuple(ranges)]
    assert len(plan(ranges, min_records=0)) == 8
    assert len(plan(ranges, min_partitions=4)) == 4


def test_the_longest_range_is_split_first() -> None:
    planned = plan([QueueRange(Q[0], 0, 100), QueueRange(Q[1], 0, 10)], min_partitions=4, min_records=0)
    assert [partition[0] for partition in planned] == [
        QueueRange(Q[0], 0, 33),
        QueueRange(Q[0], 33, 66),
        QueueRange(Q[0], 66, 100),
        QueueRange(Q[1], 0, 10),
    ]


def test_ranges_between_two_positions() -> None:
    start = {Q[0]: 3, Q[1]: 5, Q[2]: 90}
    end = {Q[0]: 7, Q[1]: 5, Q[2]: 10, Q[3]: 12}
    assert ranges_between(start, end, {Q[2]: 4, Q[3]: 2}) == [
        QueueRange(Q[0], 3, 7),
        QueueRange(Q[2], 4, 10),
        QueueRange(Q[3], 2, 12),
    ]


def test_queues_of_one_number_are_read_together_to_find_duplicates() -> None:
    """Also those in which nothing is new: a first copy may lie before."""

    def queue(broker: str, number: int, topic: str = "t") -> MessageQueue:
        return MessageQueue(topic, broker, number)

    ranges = [
        QueueRange(queue("a", 0), 5, 9),
        QueueRange(queue("a", 1), 3, 3),
        QueueRange(queue("b", 0), 7, 7),
        QueueRange(queue("b", 1), 4, 4),
        QueueRange(queue("b", 0, "u"), 1, 2),
    ]
    assert plan_by_number(ranges) == [(ranges[0], ranges[2]), (ranges[4],)]
