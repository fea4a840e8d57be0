from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import pytest

from gimbalmq.errors import DiskFullError
from gimbalmq.store import GetStatus, MessageStore
from gimbalmq.store.retention import Verdict, decide
from tests.store.helpers import LOG_FILE, FakeClock, bodies, config_for, open_store, put

HOUR = 3_600_000
NIGHT = int(datetime(2026, 11, 15, 4, 30).timestamp() * 1000)  # noqa: DTZ001
DAY = int(datetime(2026, 11, 15, 12, 30).timestamp() * 1000)  # noqa: DTZ001
OLD, YOUNG = 100 * HOUR, 10 * HOUR


@pytest.mark.parametrize(
    ("now", "ages", "usage", "manual", "drop", "reject"),
    [
        (DAY, [OLD, OLD, OLD], 0.5, False, 0, False),  # not the hour
        (NIGHT, [OLD, OLD, OLD], 0.5, False, 2, False),  # never the last
        (NIGHT, [OLD, YOUNG, OLD], 0.5, False, 1, False),  # stops at the first that is not expired
        (DAY, [OLD, OLD, OLD], 0.5, True, 2, False),
        (DAY, [OLD, YOUNG, YOUNG], 0.8, False, 1, False),  # filling up: any hour
        (DAY, [YOUNG, YOUNG, YOUNG], 0.87, False, 2, False),  # too full: any age
        (DAY, [YOUNG, YOUNG, YOUNG], 0.95, False, 2, True),
        (DAY, [OLD] * 30, 0.95, False, 10, True),  # ten a round
        (NIGHT, [OLD], 0.95, False, 0, True),
        (NIGHT, [], 0.1, False, 0, False),
    ],
)
def test_decision(
    tmp_path: Path, now: int, ages: list[int], usage: float, manual: bool, drop: int, reject: bool
) -> None:
    modified = [now - age for age in ages]
    verdict = decide(modified, now, usage, config_for(tmp_path), manual=manual)
    assert verdict == Verdict(drop, reject)


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
