from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gimbalmq.errors import ConfigError, StateError, StoreError
from gimbalmq.model.ids import pack_host
from gimbalmq.model.queue_entry import ENTRY_BYTES
from gimbalmq.model.record import MAGIC_BLANK, MAGIC_V2, decode_record
from gimbalmq.store import GetStatus, StoreConfig, parse_delay_levels
from tests.store.helpers import (
    BORN,
    LOG_FILE,
    NOON,
    QUEUE_FILE,
    add,
    bodies,
    config_for,
    open_store,
    put,
    read_all,
)


def test_a_record_comes_back_as_it_was_put(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    group = store.group()
    queue = store.queue("TopicA", 3)
    place = group.add(queue, memoryview(b"hello"), b"TAGS\x01TagA", 2598919, 7, 1, 123, BORN, 2, 55)
    assert group.commit() == [queue]
    assert place == (0, 0)
    record = decode_record(store.record_at(0) or b"", check_crc=True)
    assert (record.body, record.topic, record.queue_id, record.flag, record.sys_flag) == (
        b"hello",
        "TopicA",
        3,
        7,
        1,
    )
    assert (record.born_timestamp, record.store_timestamp, record.reconsume_times) == (123, NOON, 2)
    assert (record.born_host, record.store_host) == (("10.1.2.3", 5555), ("127.0.0.1", 10911))
    assert record.prepared_transaction_offset == 55
    assert store.entries("TopicA", 3, 0, 9) == [(0, 111, 2598919)]
    assert store.record_at_queue("TopicA", 3, 0) == store.record_at(0)
    assert store.record_at_queue("TopicA", 3, 1) is store.record_at(1) is None
    store.close()


def test_nothing_shows_before_commit_and_nothing_remains_of_an_abort(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, "t", 0, b"first")
    end = store.max_commitlog_offset
    group = store.group()
    with pytest.raises(StateError):
        store.group()
    assert add(group, store, "t", 0, b"second")[1] == 1
    assert add(group, store, "t", 0, b"third")[1] == 2
    assert store.get("t", 0, 1, 32).status is GetStatus.OFFSET_OVERFLOW_ONE
    assert store.max_commitlog_offset == end
    group.abort()
    with pytest.raises(StateError):
        group.commit()
    assert put(store, "t", 0, b"other") == (end, 1)
    assert bodies(store, "t", 0) == [b"first", b"other"]
    store.close()


def test_with_statement(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with store.group() as group:
        add(group, store, "t", 0, b"kept")
    with pytest.raises(RuntimeError), store.group() as group:
        add(group, store, "t", 0, b"lost")
        raise RuntimeError
    assert bodies(store, "t", 0) == [b"kept"]
    store.close()


def test_a_value_that_does_not_fit_leaves_the_group_usable(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with store.group() as group:
        queue = store.queue("t", 0)
        with pytest.raises(struct.error):
            group.add(queue, b"x", b"", 0, 2**40, 0, 0, BORN, 0, 0)
        with pytest.raises(StoreError):
            group.add(queue, b"x", bytes(40_000), 0, 0, 0, 0, BORN, 0, 0)
        with pytest.raises(StoreError):
            group.add(queue, bytes(LOG_FILE), b"", 0, 0, 0, 0, BORN, 0, 0)
        add(group, store, "t", 0, b"fine")
    assert bodies(store, "t", 0) == [b"fine"]
    store.close()


def test_a_group_over_file_borders(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    group = store.group()
    places = [add(group, store, "t", n % 3, bytes([n]) * 700) for n in range(20)]
    touched = group.commit()
    assert {queue.queue_id for queue in touched} == {0, 1, 2}
    files = sorted((tmp_path / "commitlog").iterdir())
    assert [int(f.name) for f in files] == [n * LOG_FILE for n in range(len(files))]
    assert len(files) == 4 and {f.stat().st_size for f in files} == {LOG_FILE}
    sizes = [e[1] for e in store.entries("t", 0, 0, 1)]
    first = files[0].read_bytes()
    used = LOG_FILE // sizes[0] * sizes[0]
    assert struct.unpack_from(">iI", first, used) == (LOG_FILE - used, MAGIC_BLANK)
    for queue_id in range(3):
        assert bodies(store, "t", queue_id) == [bytes([n]) * 700 for n in range(queue_id, 20, 3)]
    for number, (offset, queue_offset) in enumerate(places):
        record = decode_record(store.record_at(offset) or b"")
        assert (record.body[0], record.queue_offset, record.commitlog_offset) == (
            number,
            queue_offset,
            offset,
        )
    store.close()


@pytest.mark.parametrize("spare", range(12))
def test_room_for_the_blank_mark_always_remains(tmp_path: Path, spare: int) -> None:
    store = open_store(tmp_path)
    fixed = put(store, "t", 0, b"")[0] + store.max_commitlog_offset
    rest = LOG_FILE - store.max_commitlog_offset
    offset, _ = put(store, "t", 0, bytes(rest - fixed - spare))
    assert (offset == fixed) == (spare >= 8)
    put(store, "t", 0, b"next")
    store.close()
    store = open_store(tmp_path)
    assert len(read_all(store, "t", 0)) == 3
    store.close()


def test_half_and_rollback_records_stay_out_of_the_queue(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, "t", 0, b"plain", KEYS="k")
    half, zero = put(store, "t", 0, b"half", sys_flag=4, KEYS="k")
    back, _ = put(store, "t", 0, b"rollback", sys_flag=12, KEYS="k")
    put(store, "t", 0, b"commit", sys_flag=8, KEYS="k")
    assert zero == 0
    assert bodies(store, "t", 0) == [b"plain", b"commit"]
    assert decode_record(store.record_at(half) or b"").queue_offset == 0
    found = store.query_by_key("t", "k", 9, 0, NOON).records
    assert [decode_record(r).body for r in found] == [b"commit", b"half", b"plain"]
    assert store.record_at(back) is not None
    store.close()


def test_long_topics_and_ipv6(tmp_path: Path) -> None:
    host = pack_host("fd00::1", 10911)
    store = open_store(tmp_path, store_host=host)
    topic = "%RETRY%" + "g" * 200
    with store.group() as group:
        group.add(store.queue(topic, 0), b"x", b"", 0, 0, 0, 0, pack_host("fd00::2", 9), 0, 0)
        group.add(store.queue(topic, 0), b"y", b"", 0, 0, 0x30, 0, BORN, 0, 0)
    first, second = read_all(store, topic, 0)
    assert first.magic == MAGIC_V2 and first.topic == topic
    assert (first.sys_flag, first.born_host, first.store_host) == (0x30, ("fd00::2", 9), ("fd00::1", 10911))
    assert (second.sys_flag, second.born_host) == (0x20, ("10.1.2.3", 5555))
    assert store.search_offset(topic, 0, NOON) == 0
    store.close()
    store = open_store(tmp_path, store_host=host)
    assert [r.body for r in read_all(store, topic, 0)] == [b"x", b"y"]
    store.close()


def test_queue_files_have_full_size_and_names_by_byte(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for n in range(25):
        put(store, "t", 1, b"%d" % n)
    folder = tmp_path / "consumequeue" / "t" / "1"
    assert not folder.exists()
    assert store.flush_queues() == 1
    assert store.flush_queues() == 0
    assert [f.name for f in sorted(folder.iterdir())] == [f"{n * QUEUE_FILE:020d}" for n in range(3)]
    assert {f.stat().st_size for f in folder.iterdir()} == {QUEUE_FILE}
    put(store, "t", 1, b"25")
    assert bodies(store, "t", 1) == [b"%d" % n for n in range(26)]
    store.close()


def test_a_long_tail_is_written_by_the_commit(tmp_path: Path) -> None:
    store = open_store(tmp_path, queue_tail_bytes=100, queue_tails_total_bytes=1000)
    for n in range(6):
        put(store, "t", 0, b"%d" % n)
    assert store.queue("t", 0).written == 6
    for n in range(60):
        put(store, f"t{n}", 0, b"")
    unwritten = sum(1 - store.queue(f"t{n}", 0).written for n in range(60))
    assert unwritten * ENTRY_BYTES <= 1000, "the sum of all tails passed its bound, and some were written"
    store.close()


@pytest.mark.parametrize("count", [1600, pytest.param(10_000, marks=pytest.mark.soak)])
def test_many_queues_with_few_descriptors(tmp_path: Path, count: int) -> None:
    options: dict[str, Any] = {
        "queue_file_descriptors": 8,
        "commitlog_file_bytes": 1 << 24,
        "message_index_enable": False,
    }
    store = open_store(tmp_path, **options)
    with store.group() as group:
        for n in range(count):
            add(group, store, f"topic{n // 8}", n % 8, b"%d" % n)
    while store.flush_queues(500):
        assert store._queue_files.open_descriptors <= 8
    with store.group() as group:
        add(group, store, "topic7", 3, b"more")
    store.close()
    store = open_store(tmp_path, **options)
    assert len(store.topics()) == count // 8
    assert bodies(store, f"topic{count // 8 - 1}", 7) == [b"%d" % (count - 1)]
    assert bodies(store, "topic7", 3) == [b"59", b"more"]
    assert store._queue_files.open_descriptors <= 8
    store.close()


def test_names_and_options_that_cannot_be(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for topic in ("", ".", "..", "a/b", "a\0"):
        with pytest.raises(StoreError):
            store.queue(topic, 0)
    with pytest.raises(StoreError):
        store.queue("t", -1)
    store.close()
    with pytest.raises(StateError):
        store.group()
    for bad in (
        {"store_host": b"x"},
        {"queue_file_bytes": 30},
        {"commitlog_file_bytes": 1},
        {"index_slots": 0},
    ):
        with pytest.raises(ConfigError):
            config_for(tmp_path, **bad)
    with pytest.raises(ConfigError):
        parse_delay_levels("1s 5x")
    levels = StoreConfig(root=tmp_path).delay_levels_ms
    assert (levels[1], levels[5], levels[18]) == (1000, 60_000, 7_200_000)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 1), st.integers(0, 900)), max_size=6),
        max_size=8,
    ),
    st.sampled_from(["flush", "reopen", "none"]),
)
def test_any_sequence_of_groups_reads_back(
    tmp_path_factory: pytest.TempPathFactory, groups: list[list[tuple[str, int, int]]], between: str
) -> None:
    root = tmp_path_factory.mktemp("any")
    store = open_store(root)
    expected: dict[tuple[str, int], list[bytes]] = {}
    for number, messages in enumerate(groups):
        with store.group() as group:
            for topic, queue_id, size in messages:
                body = bytes([number]) * size
                add(group, store, topic, queue_id, body)
                expected.setdefault((topic, queue_id), []).append(body)
        if between == "flush":
            store.flush_queues()
        elif between == "reopen":
            store.close()
            store.load()
    for (topic, queue_id), wanted in expected.items():
        assert bodies(store, topic, queue_id) == wanted
    store.close()
