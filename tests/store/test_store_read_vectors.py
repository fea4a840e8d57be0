"""Large reads: the same outcome as entry by entry, whatever the entries are."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gimbalmq.model.javahash import java_hash
from gimbalmq.model.queue_entry import FILLER_SIZE
from gimbalmq.model.record import iter_records
from gimbalmq.store import GetStatus, MessageStore, reader, vectors
from tests.store.helpers import add, open_store

A, B, C = (java_hash(tag) for tag in "ABC")
Outcome = tuple[GetStatus, int, int, bool, bytes]


def one_by_one(
    store: MessageStore, offset: int, max_count: int, max_bytes: int | None, tags: frozenset[int] | None
) -> Outcome:
    """The rule, as Apache's broker writes it: status, next offset, count, on disk, body."""
    config, log = store.config, store.log
    queue = store.find_queue("t", 0)
    assert queue is not None and queue.min_offset <= offset < queue.max_offset
    floor = log.position - int((config.physical_memory_bytes or 0) * config.memory_ratio)
    max_count = max(max_count, 1)
    most_at_all = max_count if max_bytes is not None else min(max_count, config.max_transfer_count_memory)
    entries = store.entries("t", 0, offset, max(800, max_count))
    status, place, size = GetStatus.NO_MATCHED_MESSAGE, 0, 0
    body: list[bytes] = []
    total = 0
    far = False
    for place, size, code in entries:
        if len(body) >= most_at_all:
            break
        if place < log.min_offset or size == FILLER_SIZE or place + size > log.position:
            status = GetStatus.MESSAGE_WAS_REMOVING
        else:
            count_limit, bytes_limit = max_count, max_bytes
            if bytes_limit is None:
                near = place >= floor
                most = config.max_transfer_count_memory if near else config.max_transfer_count_disk
                count_limit = min(max_count, most)
                bytes_limit = config.max_transfer_bytes_memory if near else config.max_transfer_bytes_disk
            if body and (len(body) >= count_limit or total + size > bytes_limit):
                break
            if tags is None or code in tags:
                body.append(log.read(place, size))
                total += size
        far = size != FILLER_SIZE and place < floor
        offset += 1
    if not body:
        return status, offset, 0, far, b""
    return GetStatus.FOUND, offset, len(body), far, b"".join(body)


def fill(store: MessageStore, bodies: list[int], others: list[int], hole_at: int) -> None:
    """A queue whose records lie between those of another one; with a hole in it, if it is long enough."""
    for number, size in enumerate(bodies):
        with store.group() as group:
            for _ in range(others[number % len(others)] if others else 0):
                add(group, store, "t", 1, b"other")
            place, _ = add(group, store, "t", 0, bytes([number % 256]) * size, TAGS="AABAC"[size % 5])
        if number == hole_at:
            queue = store.queue("t", 0)
            length = int.from_bytes(store.log.read(place, 4), "big")
            store._queue_files.append(queue, queue.next_offset + 3, place, length, C)


@contextmanager
def small_steps(few: int) -> Iterator[None]:
    """Many is nine, large is small: nothing big is needed to meet every way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "FEW", few)
        patch.setattr(reader, "LOOK", 2)
        patch.setattr(reader, "MANY", 9)
        patch.setattr(reader, "_PIECES", 1)
        patch.setattr(reader, "_VIEW_FROM", 600)
        patch.setattr(vectors, "_SLICES_BELOW", 3)
        patch.setattr(vectors, "_MIXED_SLICES_BELOW", 4)
        yield


@settings(max_examples=100, deadline=None)
@given(
    bodies=st.one_of(
        st.lists(st.integers(1, 300), min_size=1, max_size=50),
        st.lists(st.sampled_from([100, 101]), min_size=1, max_size=50),
        st.integers(1, 50).map(lambda count: [100] * count),
    ),
    others=st.lists(st.integers(0, 2), max_size=4),
    hole_at=st.integers(-20, 40),
    memory=st.sampled_from([1 << 30, 20_000, 5_000]),
    flush=st.booleans(),
    few=st.sampled_from([2, 33, 64]),
    reads=st.lists(
        st.tuples(
            st.integers(0, 60),
            st.sampled_from([0, 1, 2, 3, 8, 31, 32, 33, 1000]),
            st.sampled_from([None, None, 1, 500, 2500, 100_000]),
            st.sampled_from([None, frozenset({A}), frozenset({B, C}), frozenset({7})]),
        ),
        min_size=1,
        max_size=12,
    ),
)
@example([100] * 40, [], -1, 1 << 30, True, 2, [(0, 1000, 100_000, None), (0, 32, None, None)])
def test_outcome_is_that_of_entry_by_entry(
    tmp_path_factory: pytest.TempPathFactory,
    bodies: list[int],
    others: list[int],
    hole_at: int,
    memory: int,
    flush: bool,
    few: int,
    reads: list[tuple[int, int, int | None, frozenset[int] | None]],
) -> None:
    store = open_store(tmp_path_factory.mktemp("vectors"), physical_memory_bytes=memory)
    fill(store, bodies, others, hole_at)
    if flush:
        store.flush_queues()
    high = store.queue("t", 0).max_offset
    for offset, count, size, tags in reads:
        offset %= high
        with small_steps(few):
            found = store.get("t", 0, offset, count, size, tags)
        told = (found.status, found.next_offset, found.count, found.on_disk, found.body)
        assert told == one_by_one(store, offset, count, size, tags)
        assert (found.min_offset, found.max_offset, found.size) == (0, high, len(found.body))
        del found
    store.close()


@pytest.mark.parametrize("others", [0, 15])
@pytest.mark.parametrize("sizes", [[100], [100, 90, 310, 20, 1000]])
def test_thousands_in_one_read(tmp_path: Path, others: int, sizes: list[int]) -> None:
    options: dict[str, Any] = {"commitlog_file_bytes": 1 << 20, "queue_file_bytes": 20_000}
    store = open_store(tmp_path, message_index_enable=False, **options)
    count = 9000 if others == 0 else 2500
    for start in range(0, count, 100):
        with store.group() as group:
            for number in range(start, start + 100):
                add(group, store, "t", 0, number.to_bytes(4, "big") * (sizes[number % len(sizes)] // 4))
                for queue_id in range(1, others + 1):
                    add(group, store, "t", queue_id, b"x" * 50)
    assert len(store.log.segments) > 1
    everything = store.get("t", 0, 0, 65_536, 64 << 20)
    assert (everything.count, everything.next_offset) == (count, count)
    records = list(iter_records(everything.body, check_crc=True))
    assert [r.queue_offset for r in records] == list(range(count))
    assert [r.body[:4] for r in records] == [n.to_bytes(4, "big") for n in range(count)]
    if not others:
        assert len(everything.parts) == len(store.log.segments), "neighbours are one piece"
    assert store.get("t", 0, 5, 1234, 64 << 20).count == 1234
    for limit in (1, 500, 65_000, 300_000):
        part = store.get("t", 0, 7, 65_536, limit)
        expected = one_by_one(store, 7, 65_536, limit, None)
        assert (part.count, part.body) == (expected[2], expected[4])
        assert part.size <= limit or part.count == 1
    assert store.get("t", 0, 0, 65_536).count == 32, "without a size Apache's limits hold"
    del everything, part
    store.close()


def test_many_unwanted_entries_are_passed_over_in_one_read(tmp_path: Path) -> None:
    store = open_store(tmp_path, commitlog_file_bytes=1 << 20)
    with store.group() as group:
        for number in range(1500):
            add(group, store, "t", 0, b"%d" % number, TAGS="B" if number % 300 == 299 else "A")
    found = store.get("t", 0, 0, 2000, 1 << 20, tags=frozenset({B}))
    assert (found.count, found.next_offset) == (5, 1500)
    found = store.get("t", 0, 0, 32, tags=frozenset({B}))
    assert (found.count, found.next_offset) == (2, 800)
    found = store.get("t", 0, 0, 32, tags=frozenset({C}))
    assert (found.status, found.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 800)
    store.close()


def test_answer_on_its_way_outlives_the_file_it_lies_in(tmp_path: Path) -> None:
    store = open_store(tmp_path, commitlog_file_bytes=1 << 18, queue_file_bytes=20_000)
    for _ in range(3):
        with store.group() as group:
            for _ in range(200):
                add(group, store, "t", 0, b"x" * 1000)
    found = store.get("t", 0, 0, 200, 1 << 20)
    assert any(isinstance(part, memoryview) for part in found.parts)
    before = found.body
    assert store.delete_expired(4_000_000_000_000, manual=True).commitlog_files
    assert store.get("t", 0, 0, 1).status is GetStatus.OFFSET_TOO_SMALL
    store.close()
    assert found.body == before


@given(
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 700)), min_size=1, max_size=40)
    | st.lists(st.tuples(st.integers(0, 5000), st.just(33)), min_size=1, max_size=40)
)
def test_pieces_of_a_file(pieces: list[tuple[int, int]]) -> None:
    data = bytes(np.random.default_rng(1).integers(0, 256, 6000, np.uint8))
    with mmap.mmap(-1, len(data)) as file:
        file[:] = data
        starts, sizes = (np.array(column, np.int64) for column in zip(*pieces, strict=True))
        expected = b"".join(data[start : start + size] for start, size in pieces)
        assert vectors.gather(file, starts, sizes) == expected
        made = np.empty(len(expected), np.uint8)
        vectors.copy(file, starts, sizes, made, np.cumsum(sizes) - sizes)
        assert made.tobytes() == expected
