"""Positions as JSON, rate limits, and what is lost between two looks at a queue."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gimbalmq.errors import RemoteProtocolError
from gimbalmq.model.queues import MessageQueue
from gimbalmq.spark.offsets import (
    Bounds,
    after_losses,
    begun_at,
    count_between,
    from_json,
    limit_bytes,
    limit_rows,
    loss_error,
    losses,
    proportional,
    to_json,
)

Q = [MessageQueue("t", "broker-a", number) for number in range(12)]

queues = st.builds(
    MessageQueue, st.sampled_from(["orders", "t", "%DLQ%g"]), st.sampled_from(["a", "b"]), st.integers(0, 20)
)
positions = st.dictionaries(queues, st.integers(0, 2**62), max_size=12)


@given(positions)
def test_positions_come_back_from_json(found: dict[MessageQueue, int]) -> None:
    assert from_json(json.loads(json.dumps(to_json(found)))) == found


@given(positions, st.randoms())
def test_equal_positions_are_equal_text(found: dict[MessageQueue, int], random: object) -> None:
    items = list(found.items())
    random.shuffle(items)  # type: ignore[attr-defined]
    assert json.dumps(to_json(dict(items))) == json.dumps(to_json(found))


def test_queues_stand_in_the_order_of_their_numbers() -> None:
    assert list(to_json({Q[10]: 1, Q[2]: 1})["t"]["broker-a"]) == ["2", "10"]


def test_an_end_can_say_where_the_stream_began() -> None:
    end = json.loads(json.dumps(to_json({Q[0]: 9}, {Q[0]: 4})))
    assert from_json(end) == {Q[0]: 9}
    assert begun_at(end) == {Q[0]: 4}
    assert begun_at(to_json({Q[0]: 9})) is None


@pytest.mark.parametrize("text", ['{"t": 5}', '{"t": {"a": 5}}', '{"t": {"a": {"x": 5}}}'])
def test_a_checkpoint_of_another_source_is_told(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="another source"):
        from_json(json.loads(text))


# --- rate limits ---------------------------------------------------------------------------------

backlog = st.dictionaries(st.sampled_from(Q), st.tuples(st.integers(0, 1000), st.integers(0, 10**6)))


@given(backlog, st.integers(1, 10**6))
def test_a_limit_is_kept_and_starves_nobody(waiting: dict[MessageQueue, tuple[int, int]], rows: int) -> None:
    start = {queue: low for queue, (low, _) in waiting.items()}
    end = {queue: low + count for queue, (low, count) in waiting.items()}
    limited = limit_rows(start, end, rows)
    busy = [queue for queue in end if end[queue] > start[queue]]
    assert set(limited) == set(end)
    assert all(start[queue] <= limited[queue] <= end[queue] for queue in end)
    assert all(limited[queue] > start[queue] for queue in busy)
    read = count_between(start, limited)
    assert read <= max(rows, len(busy))
    if count_between(start, end) >= rows >= len(busy):
        assert read == rows


@given(backlog, st.integers(1, 10**6))
def test_limited_batches_reach_the_end(waiting: dict[MessageQueue, tuple[int, int]], rows: int) -> None:
    start = {queue: low for queue, (low, _) in waiting.items()}
    end = {queue: low + min(count, 50) for queue, (low, count) in waiting.items()}
    for _ in range(51):
        start = limit_rows(start, end, rows)
    if rows >= 12 * 50:
        assert start == end
    assert all(start[queue] <= end[queue] for queue in end)


def test_shares_go_by_what_waits() -> None:
    assert proportional({Q[0]: 900, Q[1]: 90, Q[2]: 9, Q[3]: 1, Q[4]: 0}, 100) == {
        Q[0]: 88,
        Q[1]: 9,
        Q[2]: 2,
        Q[3]: 1,
    }


def test_a_limit_beyond_what_waits_takes_everything() -> None:
    assert limit_rows({Q[0]: 5}, {Q[0]: 8, Q[1]: 2}, 100) == {Q[0]: 8, Q[1]: 2}


@given(backlog, st.integers(1, 10**7), st.floats(1, 10**5))
def test_a_limit_of_bytes_starves_nobody(
    waiting: dict[MessageQueue, tuple[int, int]], size: int, message_bytes: float
) -> None:
    start = {queue: low for queue, (low, _) in waiting.items()}
    end = {queue: low + count for queue, (low, count) in waiting.items()}
    busy = [queue for queue in end if end[queue] > start[queue]]
    limited = limit_bytes(start, end, size, dict.fromkeys(end, message_bytes))
    assert all(start[queue] <= limited[queue] <= end[queue] for queue in end)
    assert all(limited[queue] > start[queue] for queue in busy)
    assert count_between(start, limited) * message_bytes <= max(size, 0) + (len(busy) + 1) * message_bytes


# --- losses --------------------------------------------------------------------------------------


def test_positions_within_the_bounds_lose_nothing() -> None:
    bounds = {Q[0]: Bounds(3, 9)}
    assert not losses({Q[0]: 3}, bounds)
    assert not losses({Q[0]: 9}, bounds)
    assert not losses({Q[1]: 5}, bounds)


def test_retention_that_overtook_is_a_loss_with_its_size() -> None:
    bounds = {Q[0]: Bounds(30, 90)}
    (loss,) = losses({Q[0]: 10}, bounds)
    assert "next offset is 10" in str(loss)
    assert "begins at 30; 20 messages" in str(loss)
    assert "failOnDataLoss=false" in str(loss_error([loss]))
    assert after_losses({Q[0]: 10}, bounds) == {Q[0]: 30}


def test_a_topic_made_anew_is_a_loss() -> None:
    bounds = {Q[0]: Bounds(0, 4)}
    (loss,) = losses({Q[0]: 10}, bounds)
    assert "ends at 4" in str(loss)
    assert after_losses({Q[0]: 10, Q[1]: 3}, bounds) == {Q[0]: 0, Q[1]: 3}
