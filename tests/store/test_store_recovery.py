from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gimbalmq.errors import StoreError, StoreLockedError
from gimbalmq.model.flags import TRANSACTION_PREPARED
from gimbalmq.model.record import decode_record
from gimbalmq.store import MessageStore
from gimbalmq.store.checkpoint import Checkpoint
from gimbalmq.testing import RecordedDisk
from tests.store.helpers import (
    LOG_FILE,
    NOON,
    QUEUE_FILE,
    FailingFiles,
    FakeClock,
    add,
    bodies,
    config_for,
    open_store,
    put,
    snapshot,
)


def fill(store: MessageStore, count: int, start: int = 0) -> None:
    for n in range(start, start + count):
        put(store, "t", n % 2, b"body-%d" % n, KEYS=f"k{n}", TAGS=f"T{n % 3}")


def expect(store: MessageStore, count: int) -> None:
    """Exactly the first ``count`` messages: readable, right entries, found by key."""
    for queue_id in range(2):
        assert bodies(store, "t", queue_id) == [b"body-%d" % n for n in range(queue_id, count, 2)]
    for n in range(count):
        found = store.query_by_key("t", f"k{n}", 9, 0, NOON * 2).records
        assert [decode_record(r).body for r in found] == [b"body-%d" % n]
    assert store.query_by_key("t", f"k{count}", 9, 0, NOON * 2).records == []


def test_a_closed_store_opens_clean_without_scanning(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert (tmp_path / "abort").read_text() == str(os.getpid())
    fill(store, 90)
    end = store.max_commitlog_offset
    store.close()
    assert not (tmp_path / "abort").exists()
    assert (tmp_path / "checkpoint").stat().st_size == 4096
    store = MessageStore(config_for(tmp_path), FakeClock())
    report = store.load()
    assert (report.clean, report.scan_start, report.records_scanned, report.truncated_bytes) == (
        True,
        end,
        0,
        0,
    )
    assert store.max_commitlog_offset == store.flushed_offset == end
    expect(store, 90)
    fill(store, 5, 90)
    expect(store, 95)
    store.close()


def test_records_outside_queues_at_the_end_are_kept(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, "t", 0, b"plain")
    half, _ = put(store, "t", 0, b"half", sys_flag=TRANSACTION_PREPARED)
    end = store.max_commitlog_offset
    store.close()
    store = open_store(tmp_path)
    assert store.max_commitlog_offset == end and store.record_at(half) is not None
    store.close()


@pytest.mark.parametrize("checkpoint_at", [None, 0, 17, 40])
def test_killed_with_entries_only_in_memory(tmp_path: Path, checkpoint_at: int | None) -> None:
    store = open_store(tmp_path / "live")
    for n in range(40):
        fill(store, 1, n)
        if n == checkpoint_at:
            store.checkpoint()
        if n == 25:
            store.flush_queues()
            store.build_index()
    if checkpoint_at == 40:
        store.checkpoint()
    dead = snapshot(tmp_path / "live", tmp_path / "dead")
    store.close()
    store = MessageStore(config_for(dead), FakeClock())
    report = store.load()
    assert not report.clean and report.truncated_bytes == 0
    assert report.records_scanned == {None: 40, 0: 39, 17: 22, 40: 0}[checkpoint_at]
    expect(store, 40)
    fill(store, 3, 40)
    expect(store, 43)
    store.close()
    store = open_store(dead)
    expect(store, 43)
    store.close()


def test_a_process_that_dies(tmp_path: Path) -> None:
    code = f"""
import os
from pathlib import Path
from tests.store.helpers import open_store
from tests.store.test_store_recovery import fill
store = open_store(Path({str(tmp_path)!r}))
fill(store, 30)
os._exit(9)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])}
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, env=environment, check=False)
    assert done.returncode == 9
    store = open_store(tmp_path)
    expect(store, 30)
    store.close()


def test_a_tail_torn_at_every_byte(tmp_path: Path) -> None:
    store = open_store(tmp_path / "live")
    fill(store, 8)
    store.checkpoint()
    fill(store, 3, 8)
    before = store.max_commitlog_offset
    fill(store, 1, 11)
    end = store.max_commitlog_offset
    dead = snapshot(tmp_path / "live", tmp_path / "dead")
    store.close()
    log = (dead / "commitlog" / f"{0:020d}").read_bytes()
    for cut in range(before, end + 1):
        root = tmp_path / f"cut{cut}"
        shutil.copytree(dead, root)
        (root / "commitlog" / f"{0:020d}").write_bytes(log[:cut].ljust(LOG_FILE, b"\0"))
        store = MessageStore(config_for(root), FakeClock(), FailingFiles())
        report = store.load()
        # the last byte of the record is the trailing separator, never a zero: every cut is visible
        whole = cut == end
        assert store.max_commitlog_offset == (end if whole else before)
        assert report.truncated_bytes == (0 if whole else len(log[before:cut].rstrip(b"\0")))
        assert [len(bodies(store, "t", q)) for q in (0, 1)] == ([6, 6] if whole else [6, 5])
        assert bodies(store, "t", 1)[:5] == [b"body-%d" % n for n in range(1, 11, 2)]
        store.close()
        kept = (root / "commitlog" / f"{0:020d}").read_bytes()
        assert kept == log[: end if whole else before].ljust(LOG_FILE, b"\0")
        shutil.rmtree(root)


def test_files_behind_a_broken_record_go_and_are_not_revived(tmp_path: Path) -> None:
    store = open_store(tmp_path / "live")
    store.checkpoint()
    for n in range(12):
        put(store, "t", 0, bytes([n]) * 900)
    offsets = [e[0] for e in store.entries("t", 0, 0, 99)]
    dead = snapshot(tmp_path / "live", tmp_path / "dead")
    store.close()
    victim = offsets[5]
    path = dead / "commitlog" / f"{victim // LOG_FILE * LOG_FILE:020d}"
    data = bytearray(path.read_bytes())
    data[victim % LOG_FILE + 100] ^= 1  # in the body: only the crc tells
    path.write_bytes(data)
    store = MessageStore(config_for(dead), FakeClock())
    report = store.load()
    assert report.records_scanned == 5 and "crc" in report.end_reason
    assert report.truncated_bytes > LOG_FILE
    assert store.max_commitlog_offset == victim
    assert len(list((dead / "commitlog").iterdir())) == 2
    put(store, "t", 0, b"new")
    end = store.max_commitlog_offset
    again = snapshot(dead, tmp_path / "again")
    store.close()
    store = open_store(again)
    assert store.max_commitlog_offset == end
    assert bodies(store, "t", 0) == [bytes([n]) * 900 for n in range(5)] + [b"new"]
    store.close()


def test_lost_pages_of_queue_files_are_written_again(tmp_path: Path) -> None:
    store = open_store(tmp_path / "live")
    fill(store, 10)
    store.checkpoint()
    fill(store, 40, 10)
    store.flush_queues()
    dead = snapshot(tmp_path / "live", tmp_path / "dead")
    store.close()
    # power loss: of what was written after the checkpoint, an early page is gone, a later one is not
    path = dead / "consumequeue" / "t" / "0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[100:QUEUE_FILE] = bytes(QUEUE_FILE - 100)
    path.write_bytes(data)
    store = open_store(dead)
    expect(store, 50)
    store.close()


def test_deleted_queues_and_index_are_rebuilt(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 30)
    entries = store.entries("t", 0, 0, 99)
    store.close()
    shutil.rmtree(tmp_path / "consumequeue")
    shutil.rmtree(tmp_path / "index")
    store = MessageStore(config_for(tmp_path), FakeClock())
    report = store.load()
    assert report.clean and report.redispatched == 30
    assert store.entries("t", 0, 0, 99) == entries
    expect(store, 30)
    store.close()


def test_a_queue_that_begins_late_is_filled_up(tmp_path: Path) -> None:
    clock = FakeClock()
    store = open_store(tmp_path, clock)
    for n in range(30):
        put(store, "t", 0, bytes([n]) * 500)
    store.close()
    shutil.rmtree(tmp_path / "consumequeue")
    for path in sorted((tmp_path / "commitlog").iterdir())[:2]:
        path.unlink()
    store = open_store(tmp_path)
    queue = store.queue("t", 0)
    assert store.min_commitlog_offset == 2 * LOG_FILE
    assert queue.first == 10 and queue.min_offset > 10 and queue.max_offset == 30
    first = bodies(store, "t", 0)[0]
    assert first[0] == queue.min_offset
    assert store.search_offset("t", 0, 0) == queue.min_offset
    low = queue.min_offset
    store.close()
    raw = (tmp_path / "consumequeue" / "t" / "0" / f"{QUEUE_FILE:020d}").read_bytes()
    assert raw[:20] == bytes(8) + b"\x7f\xff\xff\xff" + bytes(8)
    store = open_store(tmp_path)
    assert store.queue("t", 0).min_offset == low
    store.close()


def test_without_a_log_the_queues_are_destroyed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 4)
    store.close()
    shutil.rmtree(tmp_path / "commitlog")
    store = MessageStore(config_for(tmp_path), FakeClock())
    assert store.load().is_shorter
    assert store.topics() == [] and store.max_commitlog_offset == 0
    assert not (tmp_path / "consumequeue" / "t").exists()
    fill(store, 4)
    expect(store, 4)
    store.close()


def test_a_log_that_was_shorter_once_is_so_until_somebody_has_noted_it(tmp_path: Path) -> None:
    """Whoever opened it first, and however that ended; a checkpoint of the next start speaks of less."""
    store = open_store(tmp_path)
    fill(store, 4)
    store.close()
    shutil.rmtree(tmp_path / "commitlog")
    for end in (MessageStore.close, MessageStore.abandon, MessageStore.close):
        store = MessageStore(config_for(tmp_path), FakeClock())
        assert store.load().is_shorter
        fill(store, 4)
        store.checkpoint()
        end(store)
    store = MessageStore(config_for(tmp_path), FakeClock())
    assert store.load().is_shorter
    store.forget_shorter()
    store.abandon()
    for _ in range(2):
        store = MessageStore(config_for(tmp_path), FakeClock())
        assert not store.load().is_shorter
        store.close()


def test_schedule_entries_get_their_delivery_time_back(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, "SCHEDULE_TOPIC_XXXX", 2, b"x", DELAY="3", TAGS="ignored")
    put(store, "SCHEDULE_TOPIC_XXXX", 17, b"x", DELAY="99")
    store.close()
    shutil.rmtree(tmp_path / "consumequeue")
    store = open_store(tmp_path)
    assert store.entries("SCHEDULE_TOPIC_XXXX", 2, 0, 1)[0][2] == NOON + 10_000
    assert store.entries("SCHEDULE_TOPIC_XXXX", 17, 0, 1)[0][2] == NOON + 7_200_000
    store.close()


def test_sizes_of_the_folder_win(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 30)
    store.close()
    other = config_for(tmp_path, commitlog_file_bytes=1 << 20, queue_file_bytes=4000)
    store = MessageStore(other, FakeClock())
    report = store.load()
    assert len(report.notes) == 2 and "4096" in report.notes[0] and "200" in report.notes[1]
    fill(store, 30, 30)
    expect(store, 60)
    store.close()
    assert {f.stat().st_size for f in (tmp_path / "commitlog").iterdir()} == {LOG_FILE}
    store = MessageStore(config_for(tmp_path, index_entries=100), FakeClock())
    assert "left alone" in store.load().notes[0]
    store.close()


def test_folders_that_cannot_be_understood(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for n in range(12):
        put(store, "t", 0, bytes([n]) * 900)
    store.close()
    files = sorted((tmp_path / "commitlog").iterdir())
    empty = tmp_path / "commitlog" / f"{len(files) * LOG_FILE:020d}"
    empty.touch()  # a crash between making a file and giving it its size
    open_store(tmp_path).close()
    assert not empty.exists()
    files[1].rename(tmp_path / "aside")
    with pytest.raises(StoreError, match="missing"):
        open_store(tmp_path)
    with (tmp_path / "aside").open("r+b") as file:
        file.truncate(100)
    (tmp_path / "aside").rename(files[1])
    with pytest.raises(StoreError, match="sizes"):
        open_store(tmp_path)


def test_one_owner_at_a_time(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(StoreLockedError, match="this process"):
        open_store(tmp_path)
    code = f"""
from pathlib import Path
from gimbalmq.errors import StoreLockedError
from tests.store.helpers import open_store
try:
    open_store(Path({str(tmp_path)!r}))
except StoreLockedError as error:
    print(error)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])}
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=environment, check=True, capture_output=True, text=True
    )
    assert str(tmp_path) in done.stdout and str(os.getpid()) in done.stdout
    fill(store, 2)
    store.close()
    open_store(tmp_path).close()


def test_checkpoint_fields(tmp_path: Path) -> None:
    clock = FakeClock()
    store = open_store(tmp_path, clock)
    fill(store, 3)
    clock.now_ms += 5000
    fill(store, 1, 3)
    store.checkpoint()
    path = tmp_path / "checkpoint"
    point = Checkpoint.load(path)
    assert (point.log_ms, point.queues_ms, point.index_ms) == (NOON + 5000,) * 3
    assert point.min_ms == NOON + 2000
    assert point.safe_offset == store.max_commitlog_offset == store.flushed_offset
    data = bytearray(path.read_bytes())
    data[7] ^= 1  # as if a Java broker had gone on from here: our own part no longer holds
    path.write_bytes(data)
    assert Checkpoint.load(path).safe_offset == -1
    path.write_bytes(b"")
    assert Checkpoint.load(path) == Checkpoint()
    store.close()


def test_a_crash_of_java_is_scanned_by_whole_files(tmp_path: Path) -> None:
    clock = FakeClock()
    store = open_store(tmp_path / "live", clock)
    for n in range(40):
        fill(store, 1, n)
        clock.now_ms += 1000
    store.checkpoint()
    dead = snapshot(tmp_path / "live", tmp_path / "dead")
    store.close()
    point = dead / "checkpoint"
    point.write_bytes(point.read_bytes()[:40] + bytes(4056))  # Java's fields only
    store = MessageStore(config_for(dead), clock)
    report = store.load()
    assert report.scan_start % LOG_FILE == 0 and report.records_scanned > 0
    expect(store, 40)
    store.close()


def test_an_empty_group_and_an_aborted_roll(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with store.group():
        pass
    assert store.max_commitlog_offset == 0 and not list((tmp_path / "commitlog").iterdir())
    group = store.group()
    for _ in range(9):
        add(group, store, "t", 0, bytes(900))
    group.abort()
    assert not list((tmp_path / "commitlog").iterdir())
    store.close()


def test_a_log_that_nobody_flushed_begins_at_its_beginning_after_a_loss_of_power(tmp_path: Path) -> None:
    """The name of its second file may be on the disk and that of its first not: the log seemed to begin there."""
    disk = RecordedDisk(tmp_path / "live")
    store = open_store(tmp_path / "live", files=disk, commitlog_file_bytes=1024)
    fill(store, 12)
    assert len(store.log.segments) > 1
    moment = disk.now
    store.abandon()
    for seed in range(20):
        disk.power_lost(moment, tmp_path / str(seed), seed)
        opened = open_store(tmp_path / str(seed), commitlog_file_bytes=1024)
        assert opened.min_commitlog_offset == 0
        fill(opened, 3)
        opened.close()
