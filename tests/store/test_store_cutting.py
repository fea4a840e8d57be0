"""The end of a log taken back: what stays is as if the rest had never been received, whenever a crash comes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from gimbalmq._steps import Steps, run_through
from gimbalmq.errors import OutOfStepError, StateError, StoreError, StoreIOError
from gimbalmq.model.flags import TRANSACTION_PREPARED
from gimbalmq.store import MessageStore
from gimbalmq.store.checkpoint import Checkpoint
from gimbalmq.store.dispatcher import LogScanner
from gimbalmq.testing import RecordedDisk
from tests.store.following_helpers import (
    always,
    assert_same,
    fill_all_kinds,
    follower,
    log_of,
    queues_of,
    send,
)
from tests.store.helpers import FailingFiles, bodies, index_content, open_store, put

FILE = 1024


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MessageStore]:
    store = open_store(tmp_path_factory.mktemp("cutting") / "master", commitlog_file_bytes=FILE)
    fill_all_kinds(store, 10)
    yield store
    store.abandon()


def records_of(store: MessageStore) -> list[tuple[int, str]]:
    scanner = LogScanner(store.log.segments, 0, store.max_commitlog_offset)
    return [(found.commitlog_offset, found.topic) for found in scanner]


def begin_of(master: MessageStore, folder: Path, end: int, begin: int = 0) -> MessageStore:
    """A store that has received the master's log only up to there."""
    store = follower(folder, commitlog_file_bytes=FILE)
    data = log_of(master)[:end]
    for start in range(begin, end, FILE):
        store.receive(start, data[start : min(start + FILE, end)])
    assert store.max_commitlog_offset == end
    return store


def full(master: MessageStore, folder: Path, checkpoint_at: float | None = None) -> MessageStore:
    """A store with all of the master's log, and a checkpoint taken somewhere on the way."""
    store = follower(folder, commitlog_file_bytes=FILE)
    limit = 0 if checkpoint_at is None else checkpoint_at * master.max_commitlog_offset
    is_done = checkpoint_at is None
    while store.received_offset < master.max_commitlog_offset:
        offset = store.received_offset
        store.receive(offset, master.log_bytes(offset, 300))
        if not is_done and offset >= limit:
            store.checkpoint()
            is_done = True
    return store


@pytest.mark.parametrize("checkpoint_at", [None, 0.5, 0.99])
def test_what_stays_is_as_if_the_rest_had_never_come(
    master: MessageStore, tmp_path: Path, checkpoint_at: float | None
) -> None:
    """At every record's begin, in one store, from the end backwards; now and then opened anew."""
    store = full(master, tmp_path / "store", checkpoint_at)
    whole = records_of(master)
    places = [place for place, _ in whole]
    for number, place in enumerate(reversed(places)):
        before = store.max_commitlog_offset
        gone = [topic for at, topic in whole if place <= at < before]
        report = store.cut(place)
        assert (report.begin, report.end, report.records) == (place, before, len(gone))
        assert report.topics == {topic: gone.count(topic) for topic in gone}
        assert store.received_offset == store.max_commitlog_offset == place
        if number % 9 == 0 or number > len(places) - 3:
            wanted = begin_of(master, tmp_path / f"wanted{place}", place)
            assert_same(store, wanted)
            last, known = store.last_record(), wanted.last_record()
            assert last == known
            wanted.abandon()
        if number % 5 == 4:
            queues = queues_of(store)
            store.abandon() if number % 2 else store.close()
            store = follower(tmp_path / "store", commitlog_file_bytes=FILE)
            assert store.max_commitlog_offset == place and queues_of(store) == queues
    assert not any(queues_of(store))
    send(store, master, always(400))
    assert_same(store, master)
    store.close()


@pytest.mark.parametrize("written", [False, True])
def test_a_log_that_begins_late_is_cut(master: MessageStore, tmp_path: Path, written: bool) -> None:
    begin = 5 * FILE
    store = begin_of(master, tmp_path / "store", master.max_commitlog_offset, begin)
    places = [place for place, _ in records_of(master) if place > begin]
    for place in reversed(places[::7]):
        if written:
            store.flush_queues()
        store.cut(place)
        wanted = begin_of(master, tmp_path / f"wanted{place}", place, begin)
        assert_same(store, wanted)
        wanted.abandon()
    send(store, master, always(500))
    wanted = begin_of(master, tmp_path / "wanted", master.max_commitlog_offset, begin)
    assert_same(store, wanted)
    wanted.abandon()
    store.close()


def test_another_log_follows_a_cut(master: MessageStore, tmp_path: Path) -> None:
    """What a new master has instead, also in fewer or more bytes and other topics."""
    place = [place for place, topic in records_of(master) if topic == "A"][-6]
    other = begin_of(master, tmp_path / "other", place)
    other.lead()
    for number in range(20):
        put(other, "A", number % 2, b"other %d" % number, KEYS="k1")
        put(other, "new", 0, b"x" * number)
    store = full(master, tmp_path / "store", 0.99)
    store.cut(place)
    send(store, other, always(333))
    assert_same(store, other)
    store.abandon()
    store = open_store(tmp_path / "store", commitlog_file_bytes=FILE)
    assert_same(store, other)
    store.close()
    other.abandon()


def test_a_cut_at_the_blank_end_of_a_file(master: MessageStore, tmp_path: Path) -> None:
    """The old master has rolled there, the new one has a record that fits."""
    places = [place for place, _ in records_of(master)]
    first = next(place for place in places if place >= 2 * FILE)
    before = max(place for place in places if place < first)
    blank = before + int.from_bytes(log_of(master)[before : before + 4], "big")
    store = full(master, tmp_path / "store")
    assert first == 2 * FILE and store.cut(blank).begin == blank
    store.lead()
    assert put(store, "A", 0, b"")[0] == blank
    store.close()


@pytest.mark.parametrize("by", [1, 20, 4711 << 20, -1])
def test_only_records_begins_are_cut_at(master: MessageStore, tmp_path: Path, by: int) -> None:
    store = full(master, tmp_path / "store")
    place = records_of(master)[7][0]
    offset = -1 if by < 0 else place + by
    outside = by < 0 or by > 1000
    with pytest.raises(OutOfStepError if outside else StoreError, match=f"offset {offset}"):
        store.cut(offset)
    assert_same(store, master)
    store.lead()
    with pytest.raises(StateError, match="leads"):
        store.cut(place)
    store.close()


def test_a_record_that_is_not_whole_goes_with_the_cut(master: MessageStore, tmp_path: Path) -> None:
    store = full(master, tmp_path / "store")
    end = store.max_commitlog_offset
    record = bytes(master.log_bytes(0, 60))[:28] + end.to_bytes(8, "big") + b"\0" * 20
    store.receive(end, record)
    assert store.received_offset == end + len(record)
    assert store.cut(end).records == 0
    assert store.received_offset == end
    assert_same(store, master)
    store.close()


def test_confirmed_is_never_behind_the_end(master: MessageStore, tmp_path: Path) -> None:
    store = full(master, tmp_path / "store", 0.99)
    place = records_of(master)[-2][0]
    store.confirm_offset = store.max_commitlog_offset
    store.cut(place)
    assert store.confirm_offset == place
    point = Checkpoint.load(tmp_path / "store" / "checkpoint")
    assert (point.safe_offset, point.confirm) == (place, place)
    store.close()


def test_a_checkpoint_begun_before_the_cut_is_void(master: MessageStore, tmp_path: Path) -> None:
    store = full(master, tmp_path / "store", 0.99)
    place = records_of(master)[-2][0]
    begun = store.begin_checkpoint()
    finish = run_through(store.checkpoint_steps(begun))
    store.cut(place)
    finish()
    assert Checkpoint.load(tmp_path / "store" / "checkpoint").safe_offset == place
    begun = store.begin_checkpoint()
    run_through(store.checkpoint_steps(begun))()
    store.abandon()
    store = open_store(tmp_path / "store", commitlog_file_bytes=FILE)
    assert store.max_commitlog_offset == place
    store.close()


def test_a_checkpoint_whose_steps_a_cut_meets_ends(master: MessageStore, tmp_path: Path) -> None:
    """Keys it waited for are gone; it must not wait for ever."""
    store = full(master, tmp_path / "store")
    begun = store.begin_checkpoint()
    store.cut(0)
    run_through(store.checkpoint_steps(begun))()
    send(store, master, always(500))
    assert_same(store, master)
    store.close()


@pytest.mark.parametrize("late", [False, True])
def test_entries_copied_before_the_cut_are_not_written(
    master: MessageStore, tmp_path: Path, late: bool
) -> None:
    store = full(master, tmp_path / "store")
    copies = run_through(store.copy_tails())
    if late:
        copies.write()
    place = records_of(master)[5][0]
    store.cut(place)
    queues = queues_of(store)
    if not late:
        copies.write()
    run_through(store.tails_written(copies))
    assert queues_of(store) == queues
    store.lead()
    while store.max_commitlog_offset < master.max_commitlog_offset:
        put(store, "other", 0, b"x" * 500)  # what was copied would point to these
    store.close()
    store = open_store(tmp_path / "store", commitlog_file_bytes=FILE)
    assert {name: found for name, found in queues_of(store).items() if name[0] != "other"} == queues
    store.close()


def test_keys_of_records_that_are_gone_leave_the_files(tmp_path: Path) -> None:
    """Also from slots and headers: Apache's broker reads these."""
    slots, entries = 4, 30
    store = open_store(tmp_path / "store", index_slots=slots, index_entries=entries)
    places = [put(store, "A", 0, b"x", KEYS=f"k{number % 7}")[0] for number in range(80)]
    store.build_index()
    store.follow()
    store.cut(places[40])
    store.close()
    files = sorted((tmp_path / "store" / "index").iterdir())
    kept = [index_content(path, slots, entries) for path in files]
    assert [entry[1] for _, _, used in kept for entry in used] == places[:40]
    header, table, used = kept[-1]
    assert header[3] == places[39] and header[5] == len(used) + 1
    numbers = [int.from_bytes(table[at : at + 4], "big") for at in range(0, len(table), 4)]
    assert max(numbers) == len(used)


def test_a_full_disk_while_cutting(master: MessageStore, tmp_path: Path) -> None:
    """It may be tried again, and the store is whole meanwhile."""
    files = FailingFiles()
    store = follower(tmp_path / "store", files, commitlog_file_bytes=FILE)
    send(store, master, always(600))
    store.checkpoint()
    place = records_of(master)[4][0]
    files.room = 0
    with pytest.raises(StoreError):
        store.cut(place)
    assert_same(store, master)
    files.room = None
    store.cut(place)
    wanted = begin_of(master, tmp_path / "wanted", place)
    assert_same(store, wanted)
    store.close()
    wanted.abandon()


@pytest.mark.parametrize("part", [0.3, 0.8])
def test_a_crash_at_any_operation(tmp_path: Path, part: float) -> None:
    """The folder opens with the log up to the cut, or to its old end, or something between; and goes on from there."""
    master = open_store(tmp_path / "master", commitlog_file_bytes=FILE)
    fill_all_kinds(master, 5)
    whole = log_of(master)
    records = records_of(master)
    place = records[int(len(records) * part)][0]
    disk = RecordedDisk(tmp_path / "live")
    store = follower(tmp_path / "live", disk, commitlog_file_bytes=FILE)
    while store.received_offset < len(whole):
        offset = store.received_offset
        store.receive(offset, bytes(master.log_bytes(offset, 500)))
        if store.max_commitlog_offset <= len(whole) * 0.6:
            store.checkpoint()
    store.flush()
    first = disk.now
    store.cut(place)
    done = disk.now
    offset = store.received_offset
    store.receive(offset, bytes(master.log_bytes(offset, 100)))
    store_end = store.max_commitlog_offset
    store.close()
    wanted: dict[int, MessageStore] = {}
    for moment in range(first, disk.now + 1):
        for kind, seed in (("killed", 0), ("power", 1), ("power", 2)):
            folder = tmp_path / f"{kind}{seed}-{moment}"
            disk.killed(moment, folder) if kind == "killed" else disk.power_lost(moment, folder, seed)
            opened = follower(folder, commitlog_file_bytes=FILE)
            end = opened.max_commitlog_offset
            assert place <= end <= (len(whole) if moment < done else place + 100), (kind, moment)
            assert whole.startswith(log_of(opened)), (kind, moment)
            if end not in wanted:
                wanted[end] = begin_of(master, tmp_path / f"wanted{end}", end)
            assert_same(opened, wanted[end])
            opened.cut(place)
            assert opened.max_commitlog_offset == place
            send(opened, master, always(1000))
            assert_same(opened, master)
            opened.abandon()
            shutil.rmtree(folder)
    for seed in range(12):  # closed, and then without power
        disk.power_lost(disk.now, tmp_path / f"closed{seed}", seed)
        opened = open_store(tmp_path / f"closed{seed}", commitlog_file_bytes=FILE)
        end = opened.max_commitlog_offset
        assert end == store_end
        assert_same(opened, wanted[end])
        opened.abandon()
    for store in wanted.values():
        store.abandon()
    master.abandon()


def test_the_last_record_after_a_cut(tmp_path: Path) -> None:
    """Places noted before it are not where records begin in what comes instead."""
    store = open_store(tmp_path / "store", commitlog_file_bytes=1 << 16)
    places = [put(store, "A", 0, b"x" * 100, sys_flag=TRANSACTION_PREPARED)[0] for _ in range(30)]
    for number in (10, 20, 29):
        store.checkpoint()
        store.follow()
        store.cut(places[number - 5])
        store.lead()
        found = store.last_record()
        assert found is not None and found[0] == places[number - 6]
        del places[number - 5 :]
        while store.max_commitlog_offset < 8000:
            places.append(put(store, "A", 0, b"y" * 77, sys_flag=TRANSACTION_PREPARED)[0])
        store.checkpoint()
        found = store.last_record()
        assert found is not None and found[0] == places[-1]
        store.log.wipe_behind(places[-3])
        del places[-3:]
        places += [put(store, "A", 0, b"z" * 333, sys_flag=TRANSACTION_PREPARED)[0] for _ in range(3)]
        found = store.last_record()
        assert found is not None and found[0] == places[-1]
    store.close()


def test_steps_leave_a_whole_store(master: MessageStore, tmp_path: Path) -> None:
    """Readers have their turns between the steps: what they see is a begin of the queue."""
    store = full(master, tmp_path / "store", 0.5)
    before = [bodies(store, "A", queue_id) for queue_id in (0, 1)]
    place = records_of(master)[10][0]
    steps = store.cut_steps(place)
    seen = 0
    try:
        while True:
            next(steps)
            seen += 1
            for queue_id in (0, 1):
                now = bodies(store, "A", queue_id)
                assert before[queue_id][: len(now)] == now
    except StopIteration as end:
        assert end.value.begin == place
    assert seen > 3
    store.close()


@pytest.mark.parametrize("where", ["index", "log"])
@pytest.mark.parametrize("end", ["close", "checkpoint"])
def test_a_cut_that_a_bad_disk_stops_is_no_checkpoint(
    master: MessageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, end: str
) -> None:
    """Queues are cut then and the log is not: the next start must give its records their entries again."""
    store = full(master, tmp_path / "store", 0.99)
    part = store._index if where == "index" else store.log

    def fail(offset: int) -> Steps[None]:
        raise StoreIOError("injected")

    with monkeypatch.context() as patched:
        patched.setattr(part, "cut" if where == "index" else "cut_steps", fail)
        with pytest.raises(StoreIOError):
            store.cut(records_of(master)[4][0])
    if end == "close":
        store.close()
    else:
        store.checkpoint()
        store.abandon()
    opened = follower(tmp_path / "store", commitlog_file_bytes=FILE)
    assert_same(opened, master)
    opened.abandon()


def test_a_cut_behind_one_that_failed_does_not_make_the_store_whole(
    master: MessageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = full(master, tmp_path / "store", 0.99)
    records = records_of(master)

    def fail(offset: int) -> Steps[None]:
        raise StoreIOError("injected")

    with monkeypatch.context() as patched:
        patched.setattr(store.log, "cut_steps", fail)
        with pytest.raises(StoreIOError):
            store.cut(records[4][0])
    store.cut(records[8][0])
    with pytest.raises(StoreIOError, match=f"at offset {records[4][0]} half-way"):
        store.lead()
    store.close()
    opened = follower(tmp_path / "store", commitlog_file_bytes=FILE)
    wanted = begin_of(master, tmp_path / "wanted", records[8][0])
    assert_same(opened, wanted)
    opened.cut(records[4][0])
    opened.lead()
    opened.close()
    again = open_store(tmp_path / "store", commitlog_file_bytes=FILE)
    assert again.max_commitlog_offset == records[4][0]
    again.close()
    wanted.abandon()


@pytest.mark.parametrize("late", [False, True], ids=["ends meanwhile", "ends later"])
def test_a_checkpoint_begun_during_the_cut_is_void(master: MessageStore, tmp_path: Path, late: bool) -> None:
    """Between any two steps of the cut: queues may be cut then, and the log not yet."""
    place = records_of(master)[4][0]
    wanted = begin_of(master, tmp_path / "wanted", place)
    for number in count():
        folder = tmp_path / f"store-{number}"
        store = full(master, folder, 0.99)
        begun_at = None
        for step, _ in enumerate(store.cut_steps(place)):
            if step == number:
                finish = run_through(store.checkpoint_steps(store.begin_checkpoint()))
                begun_at = step
                if not late:
                    finish()
        if begun_at is None:
            store.abandon()
            break
        if late:
            finish()
        store.abandon()
        assert Checkpoint.load(folder / "checkpoint").safe_offset <= place
        opened = follower(folder, commitlog_file_bytes=FILE)
        assert_same(opened, wanted)
        opened.abandon()
    assert number > 3
    wanted.abandon()
