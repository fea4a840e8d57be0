"""Rows that the sink wrote twice: which are dropped, and how far back their first copies are looked for."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from gimbalmq.model.queues import MessageQueue
from gimbalmq.spark import duplicates
from gimbalmq.spark.duplicates import Duplicates, LookbackError
from gimbalmq.spark.planning import QueueRange
from gimbalmq.spark.pushdown import Limit
from gimbalmq.spark.row_ids import Group, batch_query_id, group_of

A, B = MessageQueue("T", "a", 0), MessageQueue("T", "b", 0)
STREAM = "0f0e0d0c-0000-4000-8000-000000000001"


def row_id(number: int, batch: int = 5, query: str = STREAM, partition: int = 0) -> str:
    return f"{query}-{batch}-{partition}-{number:024x}"


class Topic:
    """Queues as lists of row ids, the store time of each message its offset in minutes."""

    def __init__(self, *, begins: int = 0, **queues: list[str | None]) -> None:
        self.queues = {MessageQueue("T", name, 0): rows for name, rows in queues.items()}
        self.begins = begins
        self.looked = 0

    def look(self, back: QueueRange) -> tuple[list[pa.RecordBatch], int]:
        first = max(back.start, self.begins)
        rows = self.queues[back.queue][first : back.end]
        self.looked += len(rows)
        times = pa.array([60_000_000 * n for n in range(first, first + len(rows))], pa.timestamp("us", "UTC"))
        batch = pa.record_batch([pa.array(rows, pa.string()), times], names=["rowId", "storeTimestamp"])
        return [batch], first

    def read(self, *ranges: QueueRange, lookback: int = 100, step: int = 7) -> list[str | None]:
        """The rows of one task that are kept."""
        finding = Duplicates(ranges, self.look, lookback)
        kept: list[str | None] = []
        for queue, start, end in ranges:
            for low in range(start, end, step):
                ids = self.queues[queue][low : min(end, low + step)]
                new = finding.first_copies(pa.array(ids, pa.string()))
                kept += [row for row, first in zip(ids, new, strict=True) if first]
        return kept


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "_AT_LEAST", 10)


def foreign(count: int) -> list[str | None]:
    return [None] * count


def test_ids_tell_their_batch() -> None:
    assert group_of(f"{STREAM}-12-3") == Group(STREAM, 12, None)
    assert group_of(f"{STREAM}-12-3.44") == Group(STREAM, 12, None)
    query = batch_query_id(1_700_000_000_000, 5)
    assert group_of(f"{query}-0-3") == Group(query, 0, 1_700_000_000_000)
    assert group_of("something else") is None and group_of("") is None


def test_a_second_copy_is_dropped_in_the_range_and_before_it() -> None:
    rows = [row_id(n) for n in (1, 2, 1, 3, 2, 4)]
    topic = Topic(a=[*rows, None, None])
    assert topic.read(QueueRange(A, 0, 8)) == [row_id(1), row_id(2), row_id(3), row_id(4), None, None]
    assert topic.read(QueueRange(A, 2, 6)) == [row_id(3), row_id(4)]


def test_copies_at_another_broker_are_found_in_any_order_of_the_micro_batches() -> None:
    topic = Topic(a=[row_id(1), row_id(2)], b=[row_id(2), row_id(3), row_id(1)])
    assert topic.read(QueueRange(A, 0, 2), QueueRange(B, 0, 3)) == [row_id(1), row_id(2), row_id(3)]
    # First what a has, then what b has; and the other way round: each row once in both together.
    assert topic.read(QueueRange(A, 0, 2), QueueRange(B, 0, 0)) == [row_id(1), row_id(2)]
    assert topic.read(QueueRange(A, 2, 2), QueueRange(B, 0, 3)) == [row_id(3)]
    assert topic.read(QueueRange(A, 0, 0), QueueRange(B, 0, 3)) == [row_id(2), row_id(3), row_id(1)]
    assert topic.read(QueueRange(A, 0, 2), QueueRange(B, 3, 3)) == []


def test_a_batch_longer_than_the_lookback_is_followed_to_its_beginning() -> None:
    first = [row_id(n) for n in range(5000)]
    older = [row_id(n, batch=4) for n in range(300)]
    topic = Topic(a=[*older, *first, *first])
    assert topic.read(QueueRange(A, 5300, 10_300), lookback=20) == []


def test_a_replay_behind_messages_of_others_is_recognised_up_to_the_lookback() -> None:
    old = [row_id(n, batch=4) for n in range(3)]
    rows = [row_id(n) for n in range(10)]
    topic = Topic(a=[*foreign(1000), *old, *rows, *foreign(90), *rows])
    assert topic.read(QueueRange(A, 1103, 1113), lookback=100) == []
    topic = Topic(a=[*foreign(1000), *old, *rows, *foreign(300), *rows])
    with pytest.raises(
        LookbackError, match=rf"no older batch of the query {STREAM}.*raise duplicateLookback"
    ):
        topic.read(QueueRange(A, 1313, 1323), lookback=100)
    assert topic.read(QueueRange(A, 1313, 1323), lookback=500) == []


def test_the_way_back_begins_where_the_queue_ends_if_a_filter_begins_behind_it() -> None:
    """What is not there counts as no message of others, and older batches lie right before the end."""
    older = [row_id(n, batch=4) for n in range(500)]
    newer = [row_id(n) for n in range(10)]
    topic = Topic(a=[*older[:200], newer[3]], b=[*older[200:], *newer])
    late = Limit(low=300)
    ranges = [piece for queue, end in ((A, 201), (B, 310)) for piece in late.cut(QueueRange(queue, 0, end))]
    assert [(start, end) for _, start, end in ranges] == [(201, 201), (300, 310)]
    assert topic.read(*ranges, lookback=50) == [row for row in newer if row != newer[3]]


def test_an_older_batch_ends_the_way_back() -> None:
    older = [row_id(n, batch=4) for n in range(5000)]
    topic = Topic(a=[*older, *(row_id(n) for n in range(10))])
    assert len(topic.read(QueueRange(A, 5000, 5010), lookback=4000)) == 10
    assert topic.looked <= 10


def test_a_late_row_of_the_batch_before_does_not_end_it_too_early() -> None:
    rows = [row_id(n) for n in range(5)]
    topic = Topic(a=[*foreign(50), row_id(1, batch=4), *rows, row_id(2, batch=4), *rows])
    assert topic.read(QueueRange(A, 57, 62)) == []


def test_the_beginning_of_a_queue_ends_it_also_if_retention_has_moved_it() -> None:
    rows = [row_id(n) for n in range(5)]
    topic = Topic(begins=900, a=[*foreign(1000), *rows])
    assert topic.read(QueueRange(A, 1000, 1005), lookback=200) == rows
    assert topic.looked == 100


def test_a_batch_write_is_looked_for_until_before_it_began() -> None:
    minute = 60_000
    query = batch_query_id(1000 * minute, 7)
    rows = [row_id(n, batch=0, query=query) for n in range(5)]
    topic = Topic(a=[*foreign(1010), *rows, *foreign(60), *rows])
    assert topic.read(QueueRange(A, 1075, 1080), lookback=100_000) == []
    assert topic.looked < 400, "clocks may differ by ten minutes, no more is read"


def test_the_first_batch_of_a_stream_has_no_older_one() -> None:
    rows = [row_id(n, batch=0) for n in range(5)]
    topic = Topic(a=[*foreign(1000), *rows])
    assert topic.read(QueueRange(A, 1000, 1005), lookback=100) == rows


def test_what_can_come_again_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "REMEMBERED", 50)
    newest = [row_id(n, batch=9) for n in range(20)]
    others = [row_id(n, batch=0, query=batch_query_id(n // 40, 1)) for n in range(2000)]
    topic = Topic(a=[*newest, *others, *newest])
    assert topic.read(QueueRange(A, 0, 2040), lookback=30) == [*newest, *others]


@pytest.mark.parametrize("query", [STREAM, batch_query_id(1_700_000_000_000, 5)])
def test_a_batch_is_remembered_as_a_whole_while_its_rows_come(
    query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a batch write as a stream's newest one, however many tables its ids fill."""
    monkeypatch.setattr(duplicates, "REMEMBERED", 50)
    rows = [row_id(n, batch=0, query=query) for n in range(300)]
    topic = Topic(a=[*rows[:250], *rows])
    assert topic.read(QueueRange(A, 0, 550), lookback=30) == rows


def test_rows_in_any_order_with_any_crash_come_once() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        queues: dict[str, list[str | None]] = {"a": [], "b": []}
        expected: set[str] = set()
        for batch in range(1, 6):
            rows = [row_id(n, batch=batch) for n in range(chance.randint(1, 30))]
            expected.update(rows)
            for attempt in range(chance.randint(1, 3), 0, -1):
                chance.shuffle(rows)
                for row in rows[: len(rows) if attempt == 1 else chance.randint(0, len(rows))]:
                    queues[chance.choice("ab")].append(row)
        topic = Topic(a=queues["a"], b=queues["b"])
        at = {A: 0, B: 0}
        found: list[str | None] = []
        while any(at[queue] < len(topic.queues[queue]) for queue in at):
            to = {queue: min(len(topic.queues[queue]), at[queue] + chance.randint(0, 40)) for queue in at}
            found += topic.read(*(QueueRange(queue, at[queue], to[queue]) for queue in (A, B)), lookback=1000)
            at = to
        assert sorted(row or "" for row in found) == sorted(expected), f"seed {seed}"
