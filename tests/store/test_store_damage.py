"""Folders that a crash or a bad disk left: they open, and what is damaged costs itself only."""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from gimbalmq._steps import run_through
from gimbalmq.errors import DiskFullError, StoreError, StoreIOError
from gimbalmq.model import topics
from gimbalmq.model.queue_entry import FILLER_SIZE
from gimbalmq.model.record import encode_record
from gimbalmq.store import MessageStore
from gimbalmq.store.checkpoint import Checkpoint
from gimbalmq.store.results import RecoveryReport
from tests.store.helpers import (
    LOG_FILE,
    QUEUE_FILE,
    FailingFiles,
    FakeClock,
    bodies,
    config_for,
    open_store,
    put,
    snapshot,
)


def load(root: Path, **options: object) -> tuple[MessageStore, RecoveryReport]:
    store = MessageStore(config_for(root, **options), FakeClock(), FailingFiles())
    return store, store.load()


def log_file(root: Path, number: int = 0) -> Path:
    return root / "commitlog" / f"{number * LOG_FILE:020d}"


def patch(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [topics.dlq_topic("g" * 255), "a/b", "..", ".", "nul\0", "", "\ufffd" * 100], ids=repr
)
@pytest.mark.parametrize("crashed", [True, False])
def test_a_record_whose_topic_cannot_name_a_folder_costs_its_queue_entry(
    tmp_path: Path, name: str, crashed: bool
) -> None:
    store = open_store(tmp_path)
    put(store, "t", 0, b"before")
    end = store.max_commitlog_offset
    store.abandon() if crashed else store.close()
    record = encode_record(topic=name, body=b"x", commitlog_offset=end, store_timestamp=1)
    after = encode_record(
        topic="t", body=b"after", commitlog_offset=end + len(record), queue_offset=1, store_timestamp=2
    )
    patch(log_file(tmp_path), end, record + after)
    store, report = load(tmp_path)
    assert any(f"offset {end} has no queue entry" in note and "folder" in note for note in report.notes)
    assert store.read_only_reason is None and store.topics() == ["t"]
    assert bodies(store, "t", 0) == [b"before", b"after"]
    put(store, "t", 0, b"new")
    store.flush_queues()
    store.close()
    store, report = load(tmp_path)
    assert report.notes == [] and len(bodies(store, "t", 0)) == 3
    store.close()


def test_a_topic_that_cannot_name_a_folder_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for name in (topics.dlq_topic("g" * 255), "a/b", "", "x\0", "\ud800"):
        with pytest.raises(StoreError, match="cannot name a folder"):
            store.queue(name, 0)
    for queue_id in (-1, 65_536):
        with pytest.raises(StoreError, match="ids are 0 to 65535"):
            store.queue("t", queue_id)
    assert store.topics() == [] and store.max_commitlog_offset == 0
    store.close()


def test_folders_that_are_no_queues_are_left_alone(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, "t", 0, b"x")
    store.close()
    queues = tmp_path / "consumequeue"
    os.mkdir(os.fsencode(queues) + b"/bad\xff")
    (queues / "t" / "\u00b2").mkdir()  # a digit to str.isdigit, not to int
    (queues / "t" / "99999999").mkdir()
    (queues / "t" / "1").write_text("a file")
    (queues / "t" / "0" / "\u00b3").write_text("?")
    (queues / "file").write_text("?")
    (tmp_path / "commitlog" / ("\u00b2" * 20)).write_text("?")
    store, report = load(tmp_path)
    assert len(report.notes) == 2 and all("left alone" in note for note in report.notes)
    assert store.topics() == ["t"] and bodies(store, "t", 0) == [b"x"]
    store.close()


# --- a kill between the two steps of a cut ----------------------------------------------------------


@pytest.mark.parametrize("files", [1, 2])
@pytest.mark.parametrize("crashed", [True, False])
@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_log_file_cut_short_grows_again(
    tmp_path: Path, files: int, crashed: bool, checkpoint: bool
) -> None:
    store = open_store(tmp_path)
    count = 0
    while len(store.log.segments) < files:
        put(store, "t", 0, b"%d" % count * 300)
        count += 1
    end, last = store.max_commitlog_offset, store.log.segments[-1]
    store.abandon() if crashed else store.close()
    if not checkpoint:
        (tmp_path / "checkpoint").unlink()
    os.truncate(last.path, end - last.base)
    store, report = load(tmp_path, commitlog_file_bytes=LOG_FILE)
    assert any(f"grown to {LOG_FILE}" in note for note in report.notes)
    assert store.log.segments.size == LOG_FILE == last.path.stat().st_size
    assert len(bodies(store, "t", 0)) == count and store.max_commitlog_offset == end
    put(store, "t", 0, bytes(3000))
    store.close()
    store, report = load(tmp_path)
    assert report.notes == [] and len(bodies(store, "t", 0)) == count + 1
    store.close()


def test_a_whole_single_file_of_another_size_is_the_folders_size(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, "t", 0, b"x")
    store.close()
    for with_checkpoint in (True, False):
        if not with_checkpoint:
            (tmp_path / "checkpoint").unlink()
        store, report = load(tmp_path, commitlog_file_bytes=1 << 20)
        assert store.log.segments.size == LOG_FILE and "4096" in report.notes[0]
        store.close()


@pytest.mark.parametrize("short", [0, 1, 20, 100, QUEUE_FILE - 1])
@pytest.mark.parametrize("queues", [1, 3])
def test_a_queue_file_cut_short_grows_again(tmp_path: Path, short: int, queues: int) -> None:
    store = open_store(tmp_path)
    for n in range(15):
        for queue_id in range(queues):
            put(store, "t", queue_id, b"%d" % n)
    store.checkpoint()
    store.abandon()
    os.truncate(tmp_path / "consumequeue" / "t" / "0" / f"{QUEUE_FILE:020d}", short)
    store, _ = load(tmp_path)
    for queue_id in range(queues):
        assert bodies(store, "t", queue_id) == [b"%d" % n for n in range(15)]
    store.close()
    assert {p.stat().st_size for p in (tmp_path / "consumequeue").rglob("0*") if p.is_file()} == {QUEUE_FILE}


# --- deleted topics ---------------------------------------------------------------------------------


def _old_and_new(store: MessageStore) -> None:
    for n in range(20):
        put(store, "T", n % 2, b"old %d" % n, KEYS=f"k{n}")
        put(store, "other", 0, b"%d" % n)
    store.delete_topic("T")
    for n in range(5):
        put(store, "T", 0, b"new %d" % n)


def _expect_new(store: MessageStore) -> None:
    assert bodies(store, "T", 0) == [b"new %d" % n for n in range(5)]
    assert bodies(store, "T", 1) == []
    assert bodies(store, "other", 0) == [b"%d" % n for n in range(20)]
    assert store.query_by_key("T", "k3", 9, 0, 1 << 60).records == []


@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize("checkpoint_before", [True, False])
def test_a_deleted_topic_stays_deleted_and_its_successor_is_readable(
    tmp_path: Path, flushed: bool, checkpoint_before: bool
) -> None:
    store = open_store(tmp_path / "live")
    if checkpoint_before:
        put(store, "T", 1, b"older")
        store.checkpoint()
    _old_and_new(store)
    if flushed:
        store.flush_queues()
    dead = snapshot(tmp_path / "live", tmp_path / "dead")
    _expect_new(store)
    store.close()
    store, report = load(dead)
    _expect_new(store)
    assert not any("whole log" in note for note in report.notes)  # its queues are not missed
    store.close()


@pytest.mark.parametrize(
    "lost", ["consumequeue", "consumequeue/other", "consumequeue/T/0", "checkpoint", "index"]
)
@pytest.mark.parametrize("crashed", [True, False])
def test_reading_the_log_from_before_a_deletion_gives_the_same_queues(
    tmp_path: Path, lost: str, crashed: bool
) -> None:
    store = open_store(tmp_path)
    _old_and_new(store)
    store.checkpoint()
    store.abandon() if crashed else store.close()
    path = tmp_path / lost
    path.unlink() if path.is_file() else shutil.rmtree(path)
    store, _ = load(tmp_path)
    _expect_new(store)
    store.close()


def test_deleted_twice_since_the_checkpoint(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, "T", 0, b"first")
    store.checkpoint()
    for _ in range(2):
        put(store, "T", 0, b"again")
        put(store, "T", 1, b"again")
        store.delete_topic("T")
    put(store, "T", 0, b"kept")
    store.abandon()
    store, report = load(tmp_path)
    assert bodies(store, "T", 0) == [b"kept"] and bodies(store, "T", 1) == [] and report.notes == []
    store.close()


def test_a_deletion_that_cannot_be_written_does_not_happen(tmp_path: Path) -> None:
    files = FailingFiles()
    store = open_store(tmp_path, files=files)
    put(store, "T", 0, b"x")
    files.room = 0
    with pytest.raises(DiskFullError):
        store.delete_topic("T")
    files.room = None
    assert bodies(store, "T", 0) == [b"x"]
    store.close()


# --- what the checkpoint speaks of is gone -----------------------------------------------------------


@pytest.mark.parametrize("lost", ["consumequeue", "consumequeue/t", "consumequeue/t/1", "index", "both"])
@pytest.mark.parametrize("crashed", [True, False])
def test_queues_and_index_that_are_gone_are_made_again(tmp_path: Path, lost: str, crashed: bool) -> None:
    store = open_store(tmp_path)
    for n in range(30):
        put(store, "t", n % 2, b"%d" % n, KEYS=f"k{n}")
        put(store, "u", 0, b"%d" % n)
    store.checkpoint()
    put(store, "u", 1, b"after")
    store.abandon() if crashed else store.close()
    for folder in ("consumequeue", "index") if lost == "both" else (lost,):
        shutil.rmtree(tmp_path / folder)
    store, report = load(tmp_path)
    assert any("whole log is read" in note for note in report.notes)
    for queue_id in (0, 1):
        assert bodies(store, "t", queue_id) == [b"%d" % n for n in range(queue_id, 30, 2)]
    assert bodies(store, "u", 0) == [b"%d" % n for n in range(30)] and bodies(store, "u", 1) == [b"after"]
    for n in range(30):
        assert len(store.query_by_key("t", f"k{n}", 9, 0, 1 << 60).records) == 1
    store.close()
    store, report = load(tmp_path)
    assert report.notes == [] and report.records_scanned == 0
    store.close()


def test_a_queue_file_gone_from_the_middle_is_made_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for n in range(35):
        put(store, "t", 0, b"%d" % n)
    store.close()
    (tmp_path / "consumequeue" / "t" / "0" / f"{QUEUE_FILE:020d}").unlink()
    store, report = load(tmp_path)
    assert any("made again" in note for note in report.notes)
    assert bodies(store, "t", 0) == [b"%d" % n for n in range(35)]
    store.close()


# --- damaged fields -----------------------------------------------------------------------------------


FIELDS = {
    "size": (0, 4),
    "magic": (4, 4),
    "crc": (8, 4),
    "queue id": (12, 4),
    "queue offset": (20, 8),
    "place": (28, 8),
    "sys flag": (36, 4),
    "store time": (56, 8),
    "body size": (84, 4),
    "body": (88, 1),
    "topic length": (88 + 6, 1),
    "topic": (88 + 7, 1),
    "properties length": (88 + 8, 2),
}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("how", ["below the checkpoint", "behind the checkpoint", "queues rebuilt"])
def test_a_flipped_bit_costs_its_record_not_the_start(tmp_path: Path, field: str, how: str) -> None:
    store = open_store(tmp_path / "live")
    for n in range(12):
        put(store, "t", 0, b"body%02d" % n, KEYS=f"k{n}")
    places = [entry[0] for entry in store.entries("t", 0, 0, 99)]
    if how != "behind the checkpoint":
        store.checkpoint()
    dead = snapshot(tmp_path / "live", tmp_path / "dead")
    store.close()
    start, size = FIELDS[field]
    for victim in (0, 5, 11):
        for bit in range(0, size * 8, 5):  # every bit was tried once
            root = tmp_path / f"{victim}-{bit}"
            shutil.copytree(dead, root)
            if how == "queues rebuilt":
                shutil.rmtree(root / "consumequeue")
            at = places[victim] + start + bit // 8
            old = log_file(root).read_bytes()[at]
            patch(log_file(root), at, bytes((old ^ 1 << bit % 8,)))
            store, _ = load(root)
            found = {body for queue_id in store.queue_ids("t") for body in _readable(store, "t", queue_id)}
            lost = {b"body%02d" % n for n in range(12)} - found
            if how != "behind the checkpoint":  # there a bad record may be where the writing stopped
                assert lost <= {b"body%02d" % victim}, (victim, bit)
            else:
                assert lost <= {b"body%02d" % n for n in range(victim, 12)}, (victim, bit)
            offset = put(store, "t", 0, b"new")[1]
            assert offset < 12 + 1100, (victim, bit)
            size_on_disk = sum(p.stat().st_blocks * 512 for p in root.rglob("*") if p.is_file())
            assert size_on_disk < 1 << 20
            store.close()
            shutil.rmtree(root)


def _readable(store: MessageStore, topic: str, queue_id: int) -> list[bytes]:
    """Bodies a consumer gets, which passes over what has no record."""
    found = []
    queue = store.queue(topic, queue_id)
    for offset in range(queue.min_offset, queue.max_offset):
        raw = store.record_at_queue(topic, queue_id, offset)
        if raw is not None:
            size = struct.unpack_from(">i", raw, 84)[0]
            found.append(raw[88 : 88 + size])
    offset = queue.min_offset
    while offset < queue.max_offset:
        result = store.get(topic, queue_id, offset, 32)
        assert result.next_offset > offset
        offset = result.next_offset
    return found


def test_a_queue_that_begins_anywhere_begins_there_if_its_log_does(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for n in range(40):
        put(store, "t", 0, b"%d" % n * 100)
    put(store, "once", 0, b"x")
    store.close()
    shutil.rmtree(tmp_path / "consumequeue")
    log_file(tmp_path).unlink()
    store, report = load(tmp_path)
    assert not any("no queue entry" in note for note in report.notes)
    queue = store.queue("t", 0)
    assert queue.max_offset == 40 and 0 < queue.min_offset < 40
    assert bodies(store, "once", 0) == [b"x"]
    store.close()


def test_a_large_hole_that_is_true_drops_what_was_before(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, "t", 0, b"before")
    end = store.max_commitlog_offset
    store.abandon()
    for number in range(3):
        record = encode_record(
            topic="t",
            body=b"%d" % number,
            commitlog_offset=end,
            queue_offset=10**9 + number,
            store_timestamp=1,
        )
        patch(log_file(tmp_path), end, record)
        end += len(record)
    store, report = load(tmp_path)
    assert any("dropped" in note for note in report.notes)
    queue = store.queue("t", 0)
    assert (queue.min_offset, queue.max_offset) == (10**9, 10**9 + 3)
    assert bodies(store, "t", 0) == [b"0", b"1", b"2"]
    store.close()
    store, _ = load(tmp_path)
    assert bodies(store, "t", 0) == [b"0", b"1", b"2"]
    store.close()


def test_a_small_hole_is_filled(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, "t", 0, b"before")
    end = store.max_commitlog_offset
    store.abandon()
    record = encode_record(topic="t", body=b"x", commitlog_offset=end, queue_offset=3, store_timestamp=1)
    patch(log_file(tmp_path), end, record)
    store, _ = load(tmp_path)
    assert [e[1] == FILLER_SIZE for e in store.entries("t", 0, 0, 9)] == [False, True, True, False]
    assert put(store, "t", 0, b"next")[1] == 4
    store.close()


@pytest.mark.parametrize("digits", [20, 5000])
def test_a_delay_level_of_any_length(tmp_path: Path, digits: int) -> None:
    store = open_store(tmp_path, commitlog_file_bytes=1 << 14)
    put(store, "SCHEDULE_TOPIC_XXXX", 0, b"x", DELAY="9" * digits)
    store.abandon()
    store, _ = load(tmp_path)
    assert bodies(store, "SCHEDULE_TOPIC_XXXX", 0) == [b"x"]
    store.close()


SMALL_FILES: dict[str, Callable[[Path], Path]] = {
    "checkpoint": lambda root: root / "checkpoint",
    "abort": lambda root: root / "abort",
    "queue": lambda root: root / "consumequeue" / "t" / "0" / f"{0:020d}",
    "index": lambda root: next((root / "index").iterdir()),
    "lock": lambda root: root / "lock",
}


@pytest.mark.parametrize("what", SMALL_FILES)
@pytest.mark.parametrize("seed", range(25))
def test_garbage_in_any_other_file_opens(tmp_path: Path, what: str, seed: int) -> None:
    rng = random.Random(seed)
    store = open_store(tmp_path)
    for n in range(25):
        put(store, "t", n % 2, b"%d" % n, KEYS=f"k{n % 3}")
    store.checkpoint()
    store.abandon() if what == "abort" or seed % 2 else store.close()
    path = SMALL_FILES[what](tmp_path)
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 3, 50))):
        if data:
            data[rng.randrange(len(data) if seed % 3 else min(len(data), 60))] = rng.randrange(256)
    if seed == 24:
        data = data[: len(data) // 2]
    path.write_bytes(data)
    store, _ = load(tmp_path)
    for n in range(3):
        store.query_by_key("t", f"k{n}", 64, 0, 1 << 60)
    for queue_id in store.queue_ids("t"):
        _readable(store, "t", queue_id)
    put(store, "t", 0, b"new")
    if what != "queue":
        assert bodies(store, "t", 1) == [b"%d" % n for n in range(1, 25, 2)]
    store.close()


# --- durability ---------------------------------------------------------------------------------------


def test_after_a_failed_sync_nothing_is_called_durable(tmp_path: Path) -> None:
    files = FailingFiles()
    store = open_store(tmp_path, files=files)
    put(store, "t", 0, b"x")
    store.checkpoint()
    before = Checkpoint.load(tmp_path / "checkpoint")
    put(store, "t", 0, b"y")
    finish = run_through(store.checkpoint_steps(store.begin_checkpoint()))
    store.flush()
    files.sync_fails = True  # of the queues' files now
    with pytest.raises(StoreIOError):
        finish()
    files.sync_fails = False
    with pytest.raises(StoreIOError):
        store.checkpoint()
    assert Checkpoint.load(tmp_path / "checkpoint") == before
    store.abandon()


def test_a_failed_sync_of_the_log_is_not_believed_later(tmp_path: Path) -> None:
    files = FailingFiles()
    store = open_store(tmp_path, files=files)
    put(store, "t", 0, b"x")
    files.sync_fails = True
    with pytest.raises(StoreIOError):
        store.flush()
    files.sync_fails = False
    with pytest.raises(StoreIOError):
        store.flush()
    assert store.flushed_offset == 0
    store.abandon()


@pytest.mark.parametrize("durable", [False, True])
def test_a_sector_that_never_reached_the_disk(tmp_path: Path, durable: bool) -> None:
    """In the middle of properties, which have no check sum, with further records behind it.

    After a power cut the log ends before that record, or a slave's log would differ from its master's for good. What
    was on the disk once is not cut.
    """
    store = open_store(tmp_path)
    put(store, "t", 0, b"before")
    place, _ = put(store, "t", 0, b"torn", long="x" * 1500)
    put(store, "t", 0, b"behind")
    if durable:
        store.checkpoint()
    store.abandon()
    assert place + 200 < 1024 and place + 1500 > 1536
    patch(log_file(tmp_path), 1024, bytes(512))
    store, report = load(tmp_path)
    if durable:
        assert bodies(store, "t", 0) == [b"before", b"torn", b"behind"]
    else:
        assert bodies(store, "t", 0) == [b"before"]
        assert store.max_commitlog_offset == place and f"record at {place}" in report.end_reason
    store.close()
