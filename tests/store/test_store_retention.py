from __future__ import annotations

import errno
import os
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from gimbalmq.errors import DiskFullError, ResourceShortageError
from gimbalmq.model.queue_entry import ENTRY, FILLER_SIZE
from gimbalmq.store import GetStatus, MessageStore
from gimbalmq.store.consumequeue import QueueFiles, QueueLog
from gimbalmq.store.retention import files_to_drop
from tests.store.helpers import (
    LOG_FILE,
    NOON,
    QUEUE_FILE,
    FailingFiles,
    FakeClock,
    bodies,
    config_for,
    open_store,
    put,
)

HOUR = 3_600_000
NIGHT = int(datetime(2026, 11, 15, 4, 30).timestamp() * 1000)  # noqa: DTZ001
DAY = int(datetime(2026, 11, 15, 12, 30).timestamp() * 1000)  # noqa: DTZ001
OLD, YOUNG = 100 * HOUR, 10 * HOUR


@pytest.mark.parametrize(
    ("now", "ages", "usage", "manual", "drop"),
    [
        (DAY, [OLD, OLD, OLD], 0.5, False, 0),  # not the hour
        (NIGHT, [OLD, OLD, OLD], 0.5, False, 2),  # never the last
        (NIGHT, [OLD, YOUNG, OLD], 0.5, False, 1),  # stops at the first that is not expired
        (DAY, [OLD, OLD, OLD], 0.5, True, 2),
        (DAY, [OLD, YOUNG, YOUNG], 0.8, False, 1),  # filling up: any hour
        (DAY, [YOUNG, YOUNG, YOUNG], 0.87, False, 2),  # too full: any age
        (DAY, [YOUNG, YOUNG, YOUNG], 0.95, False, 2),
        (DAY, [OLD] * 30, 0.95, False, 10),  # ten a round
        (NIGHT, [OLD], 0.95, False, 0),
        (NIGHT, [], 0.1, False, 0),
    ],
)
def test_decision(tmp_path: Path, now: int, ages: list[int], usage: float, manual: bool, drop: int) -> None:
    modified = [now - age for age in ages]
    assert files_to_drop(modified, now, usage, config_for(tmp_path), manual=manual) == drop


def aged(root: Path, count: int, now: int) -> MessageStore:
    store = open_store(root, FakeClock(now))
    for n in range(count):
        put(store, "t", 0, bytes([n]) * 400, KEYS=f"k{n}")
        put(store, "quiet", 0, b"") if n == 0 else None
    store.flush_queues()
    store.build_index()
    for path in (root / "commitlog").iterdir():
        os.utime(path, (now / 1000 - 80 * 3600, now / 1000 - 80 * 3600))
    return store


def test_files_go_and_what_pointed_there_follows(tmp_path: Path) -> None:
    store = aged(tmp_path, 100, DAY)
    assert store.delete_expired(DAY).commitlog_files == 0
    before = len(list((tmp_path / "commitlog").iterdir()))
    report = store.delete_expired(DAY, manual=True)
    assert report.commitlog_files == 10 and report.queue_files > 3 and report.index_files >= 1
    assert len(list((tmp_path / "commitlog").iterdir())) == before - 10
    assert store.min_commitlog_offset == 10 * LOG_FILE
    queue = store.queue("t", 0)
    assert queue.first <= queue.min_offset < queue.first + 10
    kept = bodies(store, "t", 0)
    assert kept == [bytes([n]) * 400 for n in range(queue.min_offset, 100)]
    assert store.get("t", 0, 0, 32).status is GetStatus.OFFSET_TOO_SMALL
    assert store.earliest_message_time() == DAY
    quiet = store.queue("quiet", 0)
    assert quiet.min_offset == quiet.max_offset == 1
    assert store.record_at(0) is None
    assert store.query_by_key("t", "k0", 9, 0, DAY).records == []
    low = queue.min_offset
    assert store.delete_expired(DAY, manual=True).commitlog_files > 0
    put(store, "t", 0, b"new")
    low = store.queue("t", 0).min_offset
    store.close()
    store = open_store(tmp_path)
    assert store.queue("t", 0).min_offset == low
    assert bodies(store, "t", 0)[-1] == b"new"
    assert put(store, "quiet", 0, b"")[1] == 1
    store.close()


def test_the_last_file_stays(tmp_path: Path) -> None:
    store = aged(tmp_path, 3, NIGHT)
    assert store.delete_expired(NIGHT).commitlog_files == 0
    assert len(bodies(store, "t", 0)) == 3
    store.close()


def test_an_overfull_disk_refuses_writes_until_it_is_not(tmp_path: Path) -> None:
    usage = [0.95]
    store = open_store(tmp_path, FakeClock(DAY), disk_usage=lambda: usage[0])
    put(store, "t", 0, b"x")
    store.delete_expired(DAY)
    assert store.read_only_reason is not None
    with pytest.raises(DiskFullError, match="95%"):
        store.group()
    assert not store.probe_writable()
    usage[0] = 0.6
    store.delete_expired(DAY)
    assert put(store, "t", 0, b"y")[1] == 1
    store.close()
    assert not (tmp_path / "abort").exists()


class ShortFiles(FailingFiles):
    """Real files; descriptors run out for one kind of work."""

    short = ""

    def sync_folder(self, folder: Path | str) -> None:
        if self.short == "folder" and str(folder).endswith("commitlog"):
            raise OSError(errno.EMFILE, "injected")

    def open(self, path: Path | str, *, create: bool = False) -> int:
        if self.short == "queue" and "/consumequeue/" in str(path):
            raise OSError(errno.EMFILE, "injected")
        return super().open(path, create=create)


@pytest.mark.parametrize("short", ["folder", "queue"])
def test_what_could_not_be_removed_is_removed_the_next_time(tmp_path: Path, short: str) -> None:
    files = ShortFiles()
    store = open_store(tmp_path, files=files, disk_usage=lambda: 0.87, queue_file_descriptors=1)
    for n in range(200):
        put(store, "t", n % 2, bytes(100))
    store.checkpoint()
    files.short = short
    with pytest.raises(ResourceShortageError):
        store.delete_expired(NOON)
    files.short = ""
    for _ in range(10):
        store.delete_expired(NOON)
    left = sorted(int(path.name) for path in (tmp_path / "commitlog").iterdir())
    assert len(left) == len(store.log.segments) == 1 and left[0] == store.min_commitlog_offset > 0
    for queue_id in range(2):
        queue = store.queue("t", queue_id)
        assert store.entries("t", queue_id, 0, 1)[0][0] >= store.min_commitlog_offset
        assert queue.first <= queue.min_offset < queue.first + QUEUE_FILE // 20
    store.close()
    store = open_store(tmp_path)
    assert store.min_commitlog_offset == left[0]
    store.close()


def test_expired_queue_files_are_removed_one_by_one(tmp_path: Path) -> None:
    class CountingFiles(FailingFiles):
        removed = 0

        def remove(self, path: Path | str) -> None:
            self.removed += "/consumequeue/" in str(path)
            super().remove(path)

    files = CountingFiles()
    store = open_store(tmp_path, files=files, disk_usage=lambda: 0.87)
    for _ in range(200):
        put(store, "t", 0, bytes(100))
    store.checkpoint()
    steps = store.expire_steps(NOON)
    seen = [0]
    try:
        while True:
            next(steps)
            seen.append(files.removed)
    except StopIteration as end:
        end.value[1]()
    assert seen[-1] > 10 and all(after - before <= 1 for before, after in pairwise(seen))
    store.close()


@pytest.mark.parametrize("holes", [{1000}, {999}, {1999}, set(range(100, 1500)), set(range(1000, 2000))])
def test_entries_that_stand_for_nothing_hide_no_message(tmp_path: Path, holes: set[int]) -> None:
    files = QueueFiles(tmp_path, 20 * 1000, FailingFiles(), 8)
    queue = QueueLog("t", 0)
    real = [n for n in range(2001) if n not in holes]
    for n in real:
        files.append(queue, n, n * 100, 100, 0)
    files.write_tail(queue)
    for log_min in (0, 50, 20_000, 99_900, 100_000, 100_050, 150_000, 199_900, 200_000):
        files.correct_min(queue, log_min)
        assert queue.min_offset == next(n for n in real if n * 100 >= log_min)
        while files.drop_expired(queue):
            pass
        assert queue.first <= queue.min_offset
    files.close()


def test_a_search_by_time_is_not_led_astray_by_holes(tmp_path: Path) -> None:
    clock = FakeClock()
    store = open_store(tmp_path, clock, message_index_enable=False)
    for n in range(12):
        clock.now_ms = NOON + n
        put(store, "t", 0, b"%d" % n)
    tail = store.queue("t", 0).tail
    for n in (5, 6, 7):  # as recovery leaves them for damaged records
        tail[n * 20 : n * 20 + 20] = ENTRY.pack(0, FILLER_SIZE, 0)
    for n in (0, 2, 4, 8, 9, 11):
        assert store.search_offset("t", 0, NOON + n) == n
    store.close()
