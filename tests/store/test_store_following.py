"""A store that follows another one: any cut of the master's log into packets gives the same log, queues and index."""

from __future__ import annotations

import errno
import logging
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gimbalmq.errors import (
    DamagedCopyError,
    DiskFullError,
    OutOfStepError,
    StateError,
    StoreFollowsError,
    StoreIOError,
)
from gimbalmq.model.flags import INNER_BATCH, TRANSACTION_PREPARED
from gimbalmq.model.queue_entry import FILLER_SIZE
from gimbalmq.model.record import BLANK_BYTES, encode_properties, encode_record, iter_records
from gimbalmq.store import GetStatus, MessageStore, following, receive_vectors
from gimbalmq.store.checkpoint import Checkpoint
from gimbalmq.store.receive_vectors import Run
from gimbalmq.testing import RecordedDisk
from tests.store.following_helpers import (
    ALWAYS,
    always,
    assert_same,
    fill_all_kinds,
    follower,
    log_of,
    queues_of,
    send,
)
from tests.store.helpers import (
    LOG_FILE,
    NOON,
    FailingFiles,
    FakeClock,
    add,
    bodies,
    config_for,
    index_content,
    open_store,
    put,
)


@pytest.fixture(params=["one by one", "by vectors"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records one by one, or all that can be by vectors, however few they are."""
    monkeypatch.setattr(following, "_VECTORS_FROM", 0 if request.param == "by vectors" else 1 << 40)
    monkeypatch.setattr(following, "_SINGLES", 0)


both_ways = pytest.mark.usefixtures("way")


@pytest.fixture
def master(tmp_path: Path) -> Iterator[MessageStore]:
    store = open_store(tmp_path / "master", FakeClock())
    yield store
    store.abandon()


@pytest.fixture
def filled(master: MessageStore) -> MessageStore:
    fill_all_kinds(master)
    assert master.max_commitlog_offset > 3 * LOG_FILE
    return master


@both_ways
@pytest.mark.parametrize("size", [1, 7, 8, 100, 1000, LOG_FILE, 1 << 20])
def test_any_packets_give_the_same_store(filled: MessageStore, tmp_path: Path, size: int) -> None:
    slave = follower(tmp_path / "slave")
    send(slave, filled, always(size))
    assert_same(slave, filled)
    slave.close()
    again = open_store(tmp_path / "slave")
    assert_same(again, filled)
    again.close()


@both_ways
@pytest.mark.parametrize("steps", [1, 5, 9])
def test_a_call_takes_few_records_and_the_rest_comes_again(
    filled: MessageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    monkeypatch.setattr(following, "_MOST_STEPS", steps)
    monkeypatch.setattr(following, "_SINGLE_STEPS", 1)
    slave = follower(tmp_path / "slave")
    data, before, most = log_of(filled), 0, 0
    while (at := slave.received_offset) < len(data):
        slave.receive(at, data[at:])
        entered = sum(len(entries) for _, entries in queues_of(slave).values())
        before, most = entered, max(most, entered - before)
        # All that counts as received is written.
        assert at < slave.received_offset == slave.max_commitlog_offset
    assert 0 < most <= steps
    assert_same(slave, filled)
    slave.close()


@both_ways
def test_two_names_that_are_no_utf8_are_one_topic(tmp_path: Path) -> None:
    """A name that cannot be read is read the same way whichever bytes it had."""
    slave = follower(tmp_path / "slave")
    data, places = b"", []
    for number in range(4):
        places.append(len(data))
        record = encode_record(
            topic="ab", body=b"x", queue_offset=number, commitlog_offset=len(data), store_timestamp=NOON
        )
        data += record.replace(b"\x02ab", b"\x02a\xff" if number % 2 else b"\x02a\xfe")
    slave.receive(0, data)
    (entries,) = [entries for _, entries in queues_of(slave).values()]
    assert [place for place, _, _ in entries] == places
    slave.close()


# --- any log, any packets ------------------------------------------------------------------------


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[tuple[str, int, int, int]], list[int], list[int]]:
    """Messages (topic, queue, size, kind), sizes of packets, after how many packets the slave is killed or closed."""
    messages = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["A", "B", "gone", "C" * 130]),
                st.integers(0, 2),
                st.integers(0, 1500),
                st.integers(0, 9),
            ),
            min_size=1,
            max_size=40,
        )
    )
    packets = draw(st.lists(st.integers(1, 3000), min_size=1, max_size=30))
    ends = draw(st.lists(st.integers(1, 12), max_size=4))
    return messages, packets, ends


@both_ways
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(worlds())
def test_any_log_in_any_packets_with_any_restarts(
    world: tuple[list[tuple[str, int, int, int]], list[int], list[int]],
) -> None:
    messages, packets, ends = world
    with tempfile.TemporaryDirectory() as folder:
        master = open_store(Path(folder) / "master")
        for number, (topic, queue_id, size, kind) in enumerate(messages):
            if kind == 9:
                master.delete_topic("gone")
            flag = TRANSACTION_PREPARED if kind == 8 else 0
            put(master, topic, queue_id, b"x" * size, sys_flag=flag, KEYS=f"k{number % 3}", TAGS=f"t{kind}")
        slave = follower(Path(folder) / "slave")
        turn = 0
        while slave.received_offset < master.max_commitlog_offset:
            offset = slave.received_offset
            slave.receive(offset, bytes(master.log_bytes(offset, packets[turn % len(packets)])))
            turn += 1
            if ends and turn == ends[0]:
                turn, *ends = 0, *ends[1:]
                slave.abandon() if len(ends) % 2 else slave.close()
                whole = log_of(master)
                slave = follower(Path(folder) / "slave")
                assert whole.startswith(log_of(slave))
        assert_same(slave, master)
        slave.abandon()
        slave = open_store(Path(folder) / "slave")
        assert_same(slave, master)
        slave.close()
        master.abandon()


def test_a_long_log_in_large_packets(tmp_path: Path) -> None:
    """Runs of thousands of records, with others between them."""
    sizes: dict[str, Any] = {
        "commitlog_file_bytes": 1 << 20,
        "queue_file_bytes": 20_000,
        "index_entries": 50_000,
    }
    master, slave = open_store(tmp_path / "master", **sizes), follower(tmp_path / "slave", **sizes)
    rng = random.Random(13)
    for _ in range(60):
        group = master.group()
        for number in range(rng.choice((1, 40, 200))):
            topic, queue_id, tag = rng.choice("ABC"), rng.randrange(3), rng.choice(("", "t1", "t2"))
            add(group, master, topic, queue_id, b"x" * rng.randrange(400), KEYS=f"k{number % 5}", TAGS=tag)
        group.commit()
        kind = rng.random()
        if kind < 0.3:
            fill_all_kinds(master, 1)
        elif kind < 0.4:
            master.delete_topic("B")
    send(slave, master, always(200_000))
    assert_same(slave, master)
    slave.close()
    master.abandon()


def test_both_ways_agree_about_damage(
    filled: MessageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a byte is wrong, records one by one and by vectors end at the same place with the same queues."""
    whole = log_of(filled)[:LOG_FILE]
    rng = random.Random(13)
    monkeypatch.setattr(following, "_SINGLES", 0)
    for turn in range(150):
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        ends = []
        for limit in (0, 1 << 40):
            monkeypatch.setattr(following, "_VECTORS_FROM", limit)
            slave = follower(tmp_path / f"{turn}-{limit}", message_index_enable=False)
            try:
                slave.receive(0, data)
            except DamagedCopyError as error:
                ends.append((str(error), slave.received_offset, queues_of(slave)))
            else:
                ends.append(("", slave.received_offset, queues_of(slave)))
            slave.abandon()
        assert ends[0] == ends[1]


# --- where a log may begin, and how it must go on ------------------------------------------------


@both_ways
@pytest.mark.parametrize("how", ["close", "abandon"])
def test_an_empty_store_begins_at_any_file(filled: MessageStore, tmp_path: Path, how: str) -> None:
    slave = follower(tmp_path / "slave")
    start = 2 * LOG_FILE
    assert slave.receive(start, b"") == [] and slave.received_offset == 0  # a heartbeat
    part = filled.log_bytes(start, 300)
    slave.receive(start, part)
    assert slave.min_commitlog_offset == start and slave.received_offset == start + 300
    send(slave, filled, always(777))
    whole = queues_of(filled)

    def check(store: MessageStore) -> None:
        assert log_of(store) == log_of(filled, start)
        for name, (begin, entries) in queues_of(store).items():
            wanted = [entry for entry in whole[name][1] if entry[0] >= start]
            assert entries == wanted
            assert begin == whole[name][0] + len(whole[name][1]) - len(wanted)

    check(slave)
    slave.checkpoint()
    getattr(slave, how)()
    again = MessageStore(config_for(tmp_path / "slave"), FakeClock(), FailingFiles())
    report = again.load()
    assert (
        report.scan_start == filled.max_commitlog_offset and not report.notes
    )  # the checkpoint is borne out
    check(again)
    put(again, "A", 0, b"led")  # and goes on from there
    assert bodies(again, "A", 0)[-1] == b"led"
    assert queues_of(again)["A", 0][1][-1][0] == filled.max_commitlog_offset
    again.close()


def test_an_empty_store_takes_only_a_files_begin(filled: MessageStore, tmp_path: Path) -> None:
    slave = follower(tmp_path / "slave")
    with pytest.raises(OutOfStepError, match=f"offset {LOG_FILE + 1}: .*from 0 to 0"):
        slave.receive(LOG_FILE + 1, filled.log_bytes(LOG_FILE + 1, 100))
    assert slave.received_offset == 0 and slave.max_commitlog_offset == 0
    send(slave, filled, always(1000))
    assert_same(slave, filled)
    slave.close()


@pytest.mark.parametrize("by", [-200, -1, 1, LOG_FILE])
def test_bytes_that_are_not_the_next_ones_are_refused(filled: MessageStore, tmp_path: Path, by: int) -> None:
    slave = follower(tmp_path / "slave")
    slave.receive(0, filled.log_bytes(0, 1000))
    before = log_of(slave), queues_of(slave)
    with pytest.raises(OutOfStepError) as caught:
        slave.receive(1000 + by, filled.log_bytes(1000 + by, 500))
    assert (caught.value.offset, caught.value.begin, caught.value.end) == (1000 + by, 0, 1000)
    assert slave.received_offset == 1000 and (log_of(slave), queues_of(slave)) == before
    send(slave, filled, always(500))
    assert_same(slave, filled)
    slave.close()


def test_first_part_of_a_record_is_not_yet_a_begin(filled: MessageStore, tmp_path: Path) -> None:
    """Before the first record is whole nothing is on the disk; who gives it up may begin at another file."""
    slave = follower(tmp_path / "slave")
    slave.receive(LOG_FILE, filled.log_bytes(LOG_FILE, 50))
    assert (slave.received_offset, slave.max_commitlog_offset) == (LOG_FILE + 50, LOG_FILE)
    slave.lead()
    assert (slave.received_offset, slave.min_commitlog_offset) == (0, 0)
    slave.follow()
    send(slave, filled, always(50))
    assert_same(slave, filled)
    slave.close()


def test_part_of_a_record_can_be_given_up(filled: MessageStore, tmp_path: Path) -> None:
    slave = follower(tmp_path / "slave")
    slave.receive(0, filled.log_bytes(0, 1000))
    assert slave.received_offset == 1000
    slave.forget_partial()
    assert slave.received_offset == slave.max_commitlog_offset < 1000
    send(slave, filled, always(100))
    assert_same(slave, filled)
    slave.close()


@both_ways
def test_a_queue_that_begins_late_shows_its_only_message(tmp_path: Path) -> None:
    """It lies behind a checkpoint, and nothing follows it in its queue: neither now nor after a crash is it dropped."""
    master, slave = open_store(tmp_path / "master"), follower(tmp_path / "slave")
    for _ in range(1300):
        put(master, "late", 0, b"x" * 600)
    start = master.max_commitlog_offset - master.max_commitlog_offset % LOG_FILE
    while master.max_commitlog_offset < start + LOG_FILE:
        put(master, "other", 0, b"y" * 500)
    start += LOG_FILE
    slave.receive(start, master.log_bytes(start, LOG_FILE))
    slave.checkpoint()
    put(master, "late", 0, b"the only one")
    offset = slave.received_offset
    grown = slave.receive(offset, master.log_bytes(offset, LOG_FILE))
    assert [(queue.topic, queue.min_offset, queue.max_offset) for queue in grown] == [("late", 1300, 1301)]
    slave.abandon()
    slave = open_store(tmp_path / "slave")
    assert bodies(slave, "late", 0) == [b"the only one"]
    assert slave.queue("late", 0).next_offset == 1301
    slave.close()
    master.abandon()


# --- leading and following -----------------------------------------------------------------------


def test_a_store_that_follows_takes_no_groups(filled: MessageStore, tmp_path: Path) -> None:
    slave = follower(tmp_path / "slave")
    assert slave.is_following
    with pytest.raises(StoreFollowsError):
        slave.group()
    with pytest.raises(StoreFollowsError):
        slave.delete_topic("A")
    slave.receive(0, filled.log_bytes(0, 1000))
    assert slave.received_offset == 1000 > slave.max_commitlog_offset
    end = slave.max_commitlog_offset
    slave.lead()
    assert not slave.is_following and slave.received_offset == slave.max_commitlog_offset == end
    number = slave.queue("A", 0).max_offset
    assert put(slave, "A", 0, b"mine") == (end, number)
    with pytest.raises(StateError):
        slave.receive(slave.received_offset, b"x")
    slave.close()
    again = open_store(tmp_path / "slave")
    assert bodies(again, "A", 0)[-1] == b"mine"
    again.close()


def test_who_follows_must_be_loaded_and_have_no_open_group(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    group = store.group()
    with pytest.raises(StateError, match="group"):
        store.follow()
    group.abort()
    store.follow()
    store.follow()
    store.close()
    with pytest.raises(StateError, match="not loaded"):
        store.follow()


def test_appended_is_told_of_every_growth(filled: MessageStore, tmp_path: Path) -> None:
    slave = follower(tmp_path / "slave")
    seen: list[int] = []
    slave.appended = lambda: seen.append(slave.max_commitlog_offset)
    send(slave, filled, always(64))
    assert seen == sorted(seen) and seen[-1] == slave.max_commitlog_offset
    assert {at // LOG_FILE * LOG_FILE for at in seen} - set(seen) == {
        0
    }  # blank ends of files are growth, too
    slave.lead()
    put(slave, "A", 0, b"one")
    assert seen[-1] == slave.max_commitlog_offset
    slave.close()


def test_whoever_waits_for_the_log_is_told_before_queues_grow(filled: MessageStore, tmp_path: Path) -> None:
    slave = follower(tmp_path / "slave")
    told: list[tuple[int, int]] = []
    data = log_of(filled)
    while (at := slave.received_offset) < len(data):
        end = slave.max_commitlog_offset
        before = slave.queue("A", 0).max_offset

        def written(before: int = before) -> None:
            assert slave.queue("A", 0).max_offset == before
            told.append((slave.max_commitlog_offset, slave.received_offset))

        slave.receive(at, data[at : at + 1000], written)
        assert (end == slave.max_commitlog_offset) or told[-1] == (
            slave.max_commitlog_offset,
            slave.received_offset,
        )
    assert told[-1][0] == len(data)
    slave.close()


def test_a_report_that_fails_costs_no_queue_entry(filled: MessageStore, tmp_path: Path) -> None:
    slave = follower(tmp_path / "slave")

    def written() -> None:
        raise ValueError("the line is broken")

    data = log_of(filled)
    while (at := slave.received_offset) < len(data):
        with pytest.raises(ValueError, match="broken"):
            slave.receive(at, data[at : at + LOG_FILE], written)
    assert_same(filled, slave)
    slave.close()


def test_pieces_of_the_log_lie_in_one_file(filled: MessageStore) -> None:
    end = filled.max_commitlog_offset
    assert bytes(filled.log_bytes(end, 100)) == b""
    assert len(filled.log_bytes(LOG_FILE - 10, 100)) == 10
    assert len(filled.log_bytes(end - 10, 100)) == 10
    for wrong in (-1, end + 1):
        with pytest.raises(OutOfStepError, match=f"offset {wrong}: our log is from 0 to {end}"):
            filled.log_bytes(wrong, 100)


def test_the_last_record_is_known_in_every_state(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    assert store.last_record() is None
    places: list[int] = []

    def check(store: MessageStore) -> None:
        found = store.last_record()
        assert found is not None and found[0] == places[-1]
        assert found[1] == store.record_at(places[-1])

    for number in range(30):
        flag = TRANSACTION_PREPARED if number % 3 == 2 else 0
        places.append(put(store, "A", 0, b"x" * (number * 40), sys_flag=flag)[0])
        if number % 4 == 1:
            store.checkpoint()
        check(store)
        check(store)
        if number % 7 == 3:
            store.close() if number % 2 else store.abandon()
            store = open_store(tmp_path / "store")
            check(store)
    slave = follower(tmp_path / "slave")
    send(slave, store, always(100))
    check(slave)
    slave.close()
    store.close()


def test_the_last_record_is_not_far_behind_a_checkpoint(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", commitlog_file_bytes=1 << 16)
    places = []
    for _ in range(3):
        places += [put(store, "A", 0, b"x")[0] for _ in range(20)]
        store.checkpoint()
    assert store.log.hint == places[40]
    store.close()


def test_the_last_record_is_found_behind_damage(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    first = [put(store, "A", 0, b"x" * 100)[0] for _ in range(6)]
    file = tmp_path / "store" / "commitlog" / f"{0:020d}"
    with open(file, "r+b") as raw:
        raw.seek(first[2])
        raw.write(bytes(60))
    found = store.last_record()
    assert found is not None and found[0] == first[-1]
    store.abandon()


def test_readers_see_nothing_behind_their_limit(filled: MessageStore) -> None:
    queue = filled.queue("A", 0)
    entries = filled.entries("A", 0, 0, 1000)
    for number in (0, 1, len(entries) // 2, len(entries) - 1):
        place, size, _ = entries[number]
        for limit, high in ((place, number), (place + size - 1, number), (place + size, number + 1)):
            filled.reader_limit = limit
            assert filled.readable_max(queue) == high
            found = filled.get("A", 0, max(high - 1, 0), 32)
            assert (found.status is GetStatus.FOUND, found.max_offset) == (high > 0, high)
            assert filled.get("A", 0, high, 32).status is not GetStatus.FOUND
    filled.reader_limit = None
    assert filled.readable_max(queue) == len(entries)


def test_checkpoints_keep_what_replication_notes(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    put(store, "A", 0, b"x")
    store.confirm_offset, store.master_flushed_offset = 17, 4711
    store.close()
    point = Checkpoint.load(tmp_path / "store" / "checkpoint")
    assert (point.confirm, point.master_flushed) == (17, 4711)
    store = open_store(tmp_path / "store")
    assert (store.confirm_offset, store.master_flushed_offset) == (17, 4711)
    store.close()


# --- what is no log ------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize("size", [40, 10_000])
@pytest.mark.parametrize("at", [0, 2, 4, 7, 30, 84, 95])
def test_damage_stops_the_copy_before_it(master: MessageStore, tmp_path: Path, at: int, size: int) -> None:
    """In size, magic, offset, body size and body of the third of five records."""
    for number in range(5):
        put(master, "A", 0, b"a body of some length %d" % number)
    place = master.entries("A", 0, 2, 1)[0][0]
    slave = follower(tmp_path / "slave")
    damaged = bytearray(log_of(master))
    damaged[place + at] ^= 0x55
    told: list[int] = []
    with pytest.raises(DamagedCopyError, match=f"offset {place} ") as caught:
        while slave.received_offset < len(damaged):
            offset = slave.received_offset
            slave.receive(offset, damaged[offset : offset + size], lambda: told.append(slave.received_offset))
    assert size == 40 or not told
    assert caught.value.offset == place == slave.received_offset == slave.max_commitlog_offset
    assert [body[-1:] for body in bodies(slave, "A", 0)] == [b"0", b"1"]
    assert log_of(slave) == log_of(master)[:place]
    send(slave, master, always(size))  # the bytes were damaged on their way
    assert_same(slave, master)
    slave.close()


@pytest.mark.parametrize(
    ("ours", "theirs"), [(LOG_FILE, 2 * LOG_FILE), (2 * LOG_FILE, LOG_FILE), (LOG_FILE, 5000)]
)
@both_ways
@pytest.mark.parametrize("size", [50, 1 << 20])
def test_other_sizes_of_files_are_noticed(tmp_path: Path, ours: int, theirs: int, size: int) -> None:
    master = open_store(tmp_path / "master", commitlog_file_bytes=theirs)
    for _ in range(100):
        put(master, "A", 0, b"x" * 150)
    slave = follower(tmp_path / "slave", commitlog_file_bytes=ours)
    with pytest.raises(DamagedCopyError, match="mappedFileSizeCommitLog"):
        send(slave, master, always(size))
    assert slave.max_commitlog_offset <= min(ours, theirs)
    assert log_of(master).startswith(log_of(slave))
    slave.close()
    master.abandon()


def test_a_large_record_is_looked_at_when_it_begins(tmp_path: Path) -> None:
    """Not when its last byte has come: megabytes would wait in memory for that."""
    slave = follower(tmp_path / "slave")
    record = encode_record(topic="A", body=b"x" * 2000, commitlog_offset=17)
    with pytest.raises(DamagedCopyError, match="lies at 17"):
        slave.receive(0, record[:100])
    assert slave.received_offset == 0
    slave.close()


def test_fewer_bytes_than_a_blank_mark_at_a_files_end(tmp_path: Path) -> None:
    """No broker leaves them; who sends such a log has files of another size."""
    slave = follower(tmp_path / "slave")
    body = b"x" * (LOG_FILE - BLANK_BYTES // 2 - len(encode_record(topic="A", body=b"")))
    with pytest.raises(DamagedCopyError, match="do not fit"):
        slave.receive(0, encode_record(topic="A", body=body))
    slave.close()


@both_ways
def test_queues_only_apache_reads_are_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Records of Apache's batch queues stay in the log, get no entry, and that is said."""
    slave = follower(tmp_path / "slave")
    text = encode_properties({"INNER_NUM": "3", "KEYS": "k"})
    inner = encode_record(
        topic="Batch", body=b"b", properties=text, sys_flag=INNER_BATCH, store_timestamp=NOON
    )
    after = encode_record(topic="A", body=b"a", commitlog_offset=len(inner), store_timestamp=NOON)
    with caplog.at_level(logging.WARNING):
        slave.receive(0, inner + after)
    assert "Batch has batch queues" in caplog.text
    assert queues_of(slave).keys() == {("A", 0)}
    assert log_of(slave) == inner + after
    slave.abandon()
    again = open_store(tmp_path / "slave")
    assert queues_of(again).keys() == {("A", 0)} and log_of(again) == inner + after
    again.close()


@both_ways
def test_topics_that_cannot_be_folders_are_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    slave = follower(tmp_path / "slave")
    with caplog.at_level(logging.WARNING):
        assert slave.receive(0, encode_record(topic="a/b", body=b"b", store_timestamp=NOON)) == []
    assert "cannot name a folder" in caplog.text
    slave.close()


@both_ways
def test_a_queue_that_cannot_be_costs_its_topic_no_other_key(tmp_path: Path) -> None:
    slave = follower(tmp_path / "slave")
    data = b""
    for queue_id, flag in ((0, 0), (-1, 0), (-1, TRANSACTION_PREPARED), (1, 0)):
        data += encode_record(
            topic="A",
            body=b"b",
            properties=b"KEYS\x01k1\x02",
            queue_id=queue_id,
            sys_flag=flag,
            commitlog_offset=len(data),
            store_timestamp=NOON,
        )
    slave.receive(0, data)
    found = slave.query_by_key("A", "k1", 64, 0, ALWAYS).records
    places = [(record.queue_id, record.sys_flag) for raw in found for record in iter_records(raw)]
    assert sorted(places) == [(-1, TRANSACTION_PREPARED), (0, 0), (1, 0)]
    slave.close()


def test_records_of_two_kinds_are_not_read_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run ends with its kind: if each one looked at all that follows, a call would take as long as many calls."""
    looked_at, read_run = 0, receive_vectors.read_run

    def counted(data: bytes, position: int, offset: int, file_end: int, most: int) -> Run | None:
        nonlocal looked_at
        looked_at += most
        return read_run(data, position, offset, file_end, most)

    monkeypatch.setattr(receive_vectors, "read_run", counted)
    data = b""
    for number in range(2000):
        data += encode_record(
            topic="A",
            body=b"b",
            queue_offset=number,
            commitlog_offset=len(data),
            store_timestamp=NOON,
            born_host=("2001:db8::17", 1) if number % 100 == 99 else ("10.1.1.1", 1),
        )
    slave = follower(tmp_path / "slave", commitlog_file_bytes=1 << 20, queue_file_bytes=200_000)
    slave.receive(0, data)
    assert following._MOST_STEPS < looked_at < 3 * following._MOST_STEPS
    while (at := slave.received_offset) < len(data):
        slave.receive(at, data[at:])
    assert slave.queue("A", 0).max_offset == 2000
    slave.close()


def test_a_call_takes_few_large_properties(tmp_path: Path) -> None:
    """A megabyte of them may be half a million keys, which takes a tenth of a second."""
    data = b""
    for number in range(100):
        data += encode_record(
            topic="A",
            body=b"b",
            properties=b"KEYS\x01" + b"k " * 5000,
            queue_offset=number,
            commitlog_offset=len(data),
            store_timestamp=NOON,
        )
    slave = follower(tmp_path / "slave", commitlog_file_bytes=2 << 20, message_index_enable=False)
    slave.receive(0, data)
    assert 0 < slave.received_offset <= 600_000
    while (at := slave.received_offset) < len(data):
        slave.receive(at, data[at:])
    assert slave.queue("A", 0).max_offset == 100
    slave.close()


@both_ways
@pytest.mark.parametrize("crash", [False, True])
def test_a_topic_that_counts_anew(tmp_path: Path, crash: bool) -> None:
    """Apache's broker leaves no record of a topic's deletion; the first two messages of the new one tell."""
    slave = follower(tmp_path / "slave")
    numbers = [0, 1, 2, 3, 0, 1, 2]
    for number in numbers:
        offset = slave.received_offset
        slave.receive(
            offset,
            encode_record(topic="A", body=b"%d" % offset, queue_offset=number, commitlog_offset=offset),
        )
    assert slave.queue("A", 0).max_offset == 3
    assert len(bodies(slave, "A", 0)) == 3
    entries = slave.entries("A", 0, 0, 10)
    slave.abandon() if crash else slave.close()
    again = open_store(tmp_path / "slave")
    assert again.entries("A", 0, 0, 10) == entries
    again.close()


@both_ways
@pytest.mark.parametrize("time", [0, NOON])
def test_one_odd_number_costs_no_other_record(tmp_path: Path, time: int) -> None:
    """Only the body has a check sum: a damaged queue offset of 0 must not empty the queue."""
    slave = follower(tmp_path / "slave")
    for number in [0, 1, 2, 0, 3, 1, 4, 5000, 5, 5001]:
        offset = slave.received_offset
        slave.receive(
            offset,
            encode_record(
                topic="A",
                body=b"%d" % number,
                queue_offset=number,
                commitlog_offset=offset,
                store_timestamp=time,
            ),
        )
    assert bodies(slave, "A", 0) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    slave.close()


def test_a_number_that_waits_goes_with_its_topic(tmp_path: Path) -> None:
    """5000 is not believed before 5001 follows; meanwhile the topic is dropped."""
    slave = follower(tmp_path / "slave")
    for number in [0, 1, 5000]:
        offset = slave.received_offset
        slave.receive(
            offset, encode_record(topic="A", body=b"x", queue_offset=number, commitlog_offset=offset)
        )
    assert slave.drop_queues("A")
    offset = slave.received_offset
    slave.receive(offset, encode_record(topic="B", body=b"x", commitlog_offset=offset))
    assert queues_of(slave).keys() == {("B", 0)}
    slave.close()
    assert not (tmp_path / "slave" / "consumequeue" / "A").exists()


@both_ways
def test_holes_and_odd_times_within_a_packet(tmp_path: Path) -> None:
    """A hole is filled with entries that stand for nothing; without a likely time a record has that of the last one."""
    slave = follower(tmp_path / "slave")
    data = b""
    for number, time in [
        (0, NOON),
        (1, NOON + 1000),
        (5, NOON + 2000),
        (6, 0),
        (7, NOON + 9000),
        (8, 1 << 50),
        (9, NOON + 9000),
    ]:
        text = encode_properties({"KEYS": "k"})
        data += encode_record(
            topic="A",
            body=b"x",
            properties=text,
            queue_offset=number,
            commitlog_offset=len(data),
            store_timestamp=time,
        )
    slave.receive(0, data)
    queue = slave.queue("A", 0)
    entries = slave.entries("A", 0, 0, 20)
    assert (queue.min_offset, queue.max_offset) == (0, 10)
    assert [number for number, entry in enumerate(entries) if entry[1] == FILLER_SIZE] == [2, 3, 4]
    slave.close()
    (file,) = (tmp_path / "slave" / "index").iterdir()
    header, _, used = index_content(file, 16, 64)
    assert header[:2] == (NOON, NOON + 9000)
    assert [entry[2] for entry in used] == [0, 1, 2, 2, 9, 9, 9]


# --- trouble of the disk -------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize("room", [0, 1, 300, 1500, 4000])
def test_a_full_disk_stops_the_copy_until_there_is_room(
    filled: MessageStore, tmp_path: Path, room: int
) -> None:
    files = FailingFiles()
    slave = follower(tmp_path / "slave", files)
    slave.receive(0, filled.log_bytes(0, 1000))
    files.room = room
    failed = 0
    with pytest.raises(DiskFullError):
        while True:
            failed = slave.received_offset
            slave.receive(failed, filled.log_bytes(failed, 700))
    assert slave.received_offset == failed and slave.read_only_reason is not None
    with pytest.raises(DiskFullError, match="read-only"):
        slave.receive(failed, filled.log_bytes(failed, 700))
    assert slave.received_offset == failed
    files.room = None
    assert slave.probe_writable()
    send(slave, filled, always(700))
    assert_same(slave, filled)
    slave.close()


class NoNewFiles(FailingFiles):
    """A disk that, while it is full, gives a new file no size either."""

    def truncate(self, fd: int, size: int) -> None:
        if self.room == 0 and size:
            raise OSError(errno.ENOSPC, "injected")
        super().truncate(fd, size)


@pytest.mark.parametrize("files", [FailingFiles, NoNewFiles])
def test_a_full_disk_at_the_first_byte(
    filled: MessageStore, tmp_path: Path, files: type[FailingFiles]
) -> None:
    disk = files()
    slave = follower(tmp_path / "slave", disk)
    disk.room = 0
    with pytest.raises(DiskFullError):
        slave.receive(LOG_FILE, filled.log_bytes(LOG_FILE, 1000))
    # a file that was made stays, and is empty: then the log has begun
    assert slave.received_offset == (0 if files is NoNewFiles else LOG_FILE)
    disk.room = None
    assert slave.probe_writable()
    send(slave, filled, always(700))
    assert slave.max_commitlog_offset == filled.max_commitlog_offset
    slave.close()


def test_a_full_disk_refuses_groups_but_not_copies(filled: MessageStore, tmp_path: Path) -> None:
    """The master refuses messages if its disk is too full. A slave that refused copies would only fall behind."""
    slave = follower(tmp_path / "slave", disk_usage=lambda: 0.95)
    slave.judge_disk()
    assert slave.read_only_reason is not None
    send(slave, filled, always(700))
    assert_same(slave, filled)
    slave.close()


def test_a_failing_disk_stops_the_copy_for_good(filled: MessageStore, tmp_path: Path) -> None:
    files = FailingFiles()
    slave = follower(tmp_path / "slave", files)
    files.room, files.error = 0, 5
    for _ in range(2):
        with pytest.raises(StoreIOError):
            slave.receive(0, filled.log_bytes(0, 1000))
    assert not slave.probe_writable()
    slave.abandon()


# --- crashes -------------------------------------------------------------------------------------


def test_a_crash_at_any_operation(tmp_path: Path) -> None:
    """Killed or without power at every change of the disk: what is left is a begin of the master's log, and goes on."""
    master = open_store(tmp_path / "master", commitlog_file_bytes=1024)
    fill_all_kinds(master, 2)
    master.delete_topic("gone")
    put(master, "gone", 0, b"again")
    whole = log_of(master)
    disk = RecordedDisk(tmp_path / "live")
    slave = follower(tmp_path / "live", disk, commitlog_file_bytes=1024)
    rng = random.Random(13)
    written = [(0, 0)]  # from which operation on a process that ends leaves so much, and one without power
    flushed = [(0, 0)]
    while slave.received_offset < len(whole):
        offset = slave.received_offset
        slave.receive(offset, bytes(master.log_bytes(offset, rng.choice((17, 90, 400, 1300)))))
        written.append((disk.now, slave.max_commitlog_offset))
        step = rng.choice(("", "", "", "flush", "flush_queues", "build_index", "checkpoint"))
        if step:
            getattr(slave, step)()
        if step in ("flush", "checkpoint"):
            flushed.append((disk.now, slave.max_commitlog_offset))
    slave.close()
    first = next(i for i, operation in enumerate(disk.operations) if operation.path.startswith("commitlog/"))
    for moment in range(first, disk.now + 1):
        for kind, certain in (("killed", written), ("power", flushed)):
            folder = tmp_path / f"{kind}{moment}"
            disk.killed(moment, folder) if kind == "killed" else disk.power_lost(moment, folder, 7)
            opened = follower(folder, commitlog_file_bytes=1024)
            assert opened.received_offset >= max(end for at, end in certain if at <= moment), (kind, moment)
            assert whole.startswith(log_of(opened)), (kind, moment)
            send(opened, master, always(1000))
            assert_same(opened, master)
            opened.abandon()
            shutil.rmtree(folder)
    master.abandon()
