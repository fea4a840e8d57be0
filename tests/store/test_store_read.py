from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gimbalmq.model.javahash import java_hash
from gimbalmq.model.record import decode_record, iter_records
from gimbalmq.store import GetStatus, MessageStore
from gimbalmq.store.files import Files
from tests.store.helpers import NOON, FakeClock, add, bodies, config_for, open_store, put


def test_every_status(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert store.get("t", 0, 0, 32).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    store.queue("t", 0)
    found = store.get("t", 0, 5, 32)
    assert (found.status, found.next_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)
    for n in range(5):
        put(store, "t", 0, b"%d" % n, TAGS="A" if n % 2 else "B")
    for offset, status, following in [
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
        (5, GetStatus.OFFSET_OVERFLOW_ONE, 5),
        (6, GetStatus.OFFSET_OVERFLOW_BADLY, 5),
        (0, GetStatus.FOUND, 5),
    ]:
        found = store.get("t", 0, offset, 32)
        assert (found.status, found.next_offset, found.min_offset, found.max_offset) == (
            status,
            following,
            0,
            5,
        )
    nothing = store.get("t", 0, 1, 32, tags=frozenset({java_hash("C")}))
    assert (nothing.status, nothing.next_offset, nothing.body) == (GetStatus.NO_MATCHED_MESSAGE, 5, b"")
    store.close()


def test_tags_and_predicate(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for n in range(30):
        put(store, "t", 0, b"%d" % n, TAGS="ABC"[n % 3])
    found = store.get("t", 0, 0, 4, tags=frozenset({java_hash("B"), java_hash("C")}))
    assert [r.body for r in iter_records(found.body)] == [b"1", b"2", b"4", b"5"]
    assert (found.count, found.next_offset) == (4, 6)
    kept: list[memoryview] = []

    def small(view: memoryview) -> bool:
        kept.append(view)
        return int(decode_record(view).body) > 20

    found = store.get("t", 0, 0, 32, tags=frozenset({java_hash("A")}), predicate=small)
    assert [r.body for r in iter_records(found.body)] == [b"21", b"24", b"27"]
    assert found.next_offset == 30
    store.close()  # views that a predicate kept do not hold the map


def test_limits(tmp_path: Path) -> None:
    options: dict[str, Any] = {"commitlog_file_bytes": 1 << 20, "queue_file_bytes": 20_000}
    store = open_store(tmp_path, physical_memory_bytes=100_000, **options)
    with store.group() as group:
        for _ in range(60):
            add(group, store, "t", 0, bytes(1000))
    size = store.entries("t", 0, 0, 1)[0][1]
    end = store.max_commitlog_offset
    assert not store.is_in_memory(0) and store.is_in_memory(end)
    disk = store.get("t", 0, 0, 32)
    assert (disk.count, disk.on_disk, disk.next_offset) == (8, True, 8)
    memory = store.get("t", 0, 40, 32)
    assert (memory.count, memory.on_disk) == (20, False)
    assert store.get("t", 0, 40, 7).count == 7
    assert store.get("t", 0, 40, 0).count == 1
    assert store.get("t", 0, 40, 32, max_bytes=3 * size).count == 3
    assert store.get("t", 0, 40, 32, max_bytes=1).count == 1  # the first is always taken
    store.close()


def test_at_most_800_entries_are_looked_at(tmp_path: Path) -> None:
    store = open_store(tmp_path, commitlog_file_bytes=1 << 20)
    with store.group() as group:
        for _ in range(1000):
            add(group, store, "t", 0, b"", TAGS="A")
        add(group, store, "t", 0, b"", TAGS="B")
    wanted = frozenset({java_hash("B")})
    first = store.get("t", 0, 0, 32, tags=wanted)
    assert (first.status, first.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 800)
    second = store.get("t", 0, first.next_offset, 32, tags=wanted)
    assert (second.count, second.next_offset) == (1, 1001)
    store.close()


def test_entries_half_in_files_half_in_memory(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for n in range(17):
        put(store, "t", 0, b"%d" % n)
    store.flush_queues()
    for n in range(17, 35):
        put(store, "t", 0, b"%d" % n)
    places = store.entries("t", 0, 0, 99)
    assert len(places) == 35 and [p[0] for p in places] == sorted(p[0] for p in places)
    assert store.entries("t", 0, 15, 4) == places[15:19]
    assert store.entries("t", 9, 0, 4) == store.entries("t", 0, 35, 4) == []
    found = store.get("t", 0, 12, 20)
    assert [r.body for r in iter_records(found.body)] == [b"%d" % n for n in range(12, 32)]
    store.close()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=30), st.integers(-2, 60), st.booleans())
def test_search_by_time(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], since: int, flush: bool
) -> None:
    clock = FakeClock()
    store = open_store(tmp_path_factory.mktemp("time"), clock)
    times = []
    for step in steps:
        clock.now_ms += step
        put(store, "t", 0, b"")
        times.append(clock.now_ms)
    if flush:
        store.flush_queues()
    when = NOON + since
    lower = next((n for n, time in enumerate(times) if time >= when), len(times))
    upper = max((n for n, time in enumerate(times) if time <= when), default=0)
    assert store.search_offset("t", 0, when) == lower
    assert store.search_offset("t", 0, when, "upper") == upper
    assert store.earliest_store_time("t", 0) == (times[0] if times else -1)
    assert store.earliest_message_time() == (times[0] if times else -1)
    store.close()


def test_deleting_a_topic(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for n in range(30):
        put(store, "gone", n % 2, b"%d" % n)
        put(store, "stays", 0, b"%d" % n)
    store.flush_queues()
    put(store, "gone", 0, b"in memory")
    assert store.queue_ids("gone") == [0, 1]
    assert store.delete_topic("gone") and not store.delete_topic("gone")
    assert store.topics() == ["stays"]
    assert not (tmp_path / "consumequeue" / "gone").exists()
    assert put(store, "gone", 0, b"anew")[1] == 0
    store.close()
    store = open_store(tmp_path)
    assert bodies(store, "gone", 0) == [b"anew"]
    assert len(bodies(store, "stays", 0)) == 30
    store.delete_topic("gone")
    store.close()
    store = open_store(tmp_path)
    assert store.topics() == ["stays"]  # the log still ends with a record of "gone"
    store.close()


class _NoRemoval(Files):
    """A disk on which the removal of a folder would take long."""

    removed = 0
    moves = True

    def remove_folder(self, folder: Path | str) -> None:
        self.removed += 1
        super().remove_folder(folder)

    def replace(self, source: Path | str, target: Path | str) -> None:
        if not self.moves and Path(source).is_dir():
            raise OSError(errno.EXDEV, "injected")
        super().replace(source, target)


def test_files_of_a_deleted_topic_are_removed_later(tmp_path: Path) -> None:
    files = _NoRemoval()
    store = MessageStore(config_for(tmp_path), FakeClock(), files)
    store.load()
    assert not store.has_trash
    for n in range(3):
        put(store, "gone", 0, b"%d" % n)
        put(store, "gone", 1, b"%d" % n)
        store.flush_queues()
        store.delete_topic("gone")
        assert not (tmp_path / "consumequeue" / "gone").exists() and store.has_trash
    put(store, "gone", 0, b"anew")
    store.flush_queues()
    assert files.removed == 0, "a deletion does not wait for the disk"
    trash = tmp_path / "consumequeue.deleted"
    assert len(list(trash.iterdir())) == 3
    store.abandon()
    store = MessageStore(config_for(tmp_path), FakeClock(), files)
    store.load()
    assert store.topics() == ["gone"] and bodies(store, "gone", 0) == [b"anew"] and store.has_trash
    before = len(list(trash.iterdir()))
    store.delete_topic("gone")
    assert len(list(trash.iterdir())) == before + 1 and files.removed == 0
    store.empty_trash()
    assert not store.has_trash and list(trash.iterdir()) == []
    put(store, "gone", 0, b"again")
    store.flush_queues()
    store.delete_topic("gone")
    store.close()
    assert list(trash.iterdir()) == []


def test_a_topic_that_cannot_be_moved_is_removed_at_once(tmp_path: Path) -> None:
    files = _NoRemoval()
    files.moves = False
    store = MessageStore(config_for(tmp_path), FakeClock(), files)
    store.load()
    put(store, "gone", 0, b"x")
    store.flush_queues()
    store.delete_topic("gone")
    assert not (tmp_path / "consumequeue" / "gone").exists() and not store.has_trash
    store.close()


@pytest.mark.parametrize("tags", [None, frozenset({java_hash("A")})])
def test_with_sync_flush_nobody_reads_what_a_power_cut_can_take_back(
    tmp_path: Path, tags: frozenset[int] | None
) -> None:
    """A reader that had seen such a message would pass over the one that gets its offset after the cut."""
    store = open_store(tmp_path, sync_flush=True)
    for n in range(300):
        put(store, "t", 0, b"%d" % n, TAGS="A")
    queue = store.queue("t", 0)
    nothing = store.get("t", 0, 0, 32, tags=tags)
    assert (nothing.status, nothing.next_offset, nothing.max_offset) == (GetStatus.OFFSET_OVERFLOW_ONE, 0, 0)
    store.flush()
    put(store, "t", 0, b"300", TAGS="A")
    put(store, "other", 0, b"")
    assert store.readable_max(queue) == 300
    found = store.get("t", 0, 290, 32, tags=tags)
    assert (found.status, found.count, found.next_offset, found.max_offset) == (GetStatus.FOUND, 10, 300, 300)
    assert store.get("t", 0, 300, 32, tags=tags).status is GetStatus.OFFSET_OVERFLOW_ONE
    store.flush()
    assert store.get("t", 0, 300, 32, tags=tags).count == 1
    store.close()


def test_without_it_readers_do_not_wait_for_the_disk(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, "t", 0, b"at once")
    assert store.flushed_offset == 0
    assert store.get("t", 0, 0, 32).count == 1
    store.close()
