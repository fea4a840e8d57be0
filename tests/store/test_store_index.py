from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gimbalmq.model.javahash import java_hash
from gimbalmq.model.record import decode_record, encode_properties
from gimbalmq.store.files import Files
from gimbalmq.store.index import KeyIndex
from tests.store.helpers import NOON, FakeClock, index_content, open_store, put

SLOTS, ENTRIES = 8, 20


class NaiveIndex:
    """One key at a time, as the format describes it."""

    def __init__(self) -> None:
        self.files: list[tuple[list[int], list[int], list[tuple[int, int, int, int]]]] = []

    def put(self, key: str, offset: int, time_ms: int) -> None:
        if not self.files or len(self.files[-1][2]) == ENTRIES - 1:
            self.files.append(([time_ms, 0, offset, 0, 0, 1], [0] * SLOTS, []))
        header, slots, entries = self.files[-1]
        value = abs(java_hash(key))
        value = 0 if value > 0x7FFFFFFF else value
        slot = value % SLOTS
        header[4] += slots[slot] == 0
        entries.append((value, offset, max(0, (time_ms - header[0]) // 1000), slots[slot]))
        slots[slot] = len(entries)
        header[1], header[3], header[5] = time_ms, offset, len(entries) + 1


keys = st.sampled_from(["", "k1", "k2", "k1 k2 k3", "钥匙", "a  b", "polygenelubricants", "x" * 150])
messages = st.lists(
    st.tuples(st.sampled_from(["t", "u"]), keys, st.booleans(), st.integers(0, 3000)), max_size=40
)


@settings(max_examples=60, deadline=None)
@given(messages, st.integers(1, 12))
def test_batches_give_the_same_files_as_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, sent: list[tuple[str, str, bool, int]], batch: int
) -> None:
    folder = tmp_path_factory.mktemp("index")
    index = KeyIndex(folder, SLOTS, ENTRIES, Files(), lambda: NOON)
    index.load([])
    naive = NaiveIndex()
    now = NOON
    for number, (topic, key, unique, step) in enumerate(sent):
        now += step
        properties = {"A": "b", "KEYS": key or None, "UNIQ_KEY": f"ID{number}" if unique else None}
        index.pending.append(
            (topic, encode_properties(properties, trailing=number % 2 == 0), number * 100, now)
        )
        for part in ([f"ID{number}"] if unique else []) + key.split():
            naive.put(f"{topic}#{part}", number * 100, now)
    while index.build(batch):
        pass
    assert index.pending == []
    index.close()
    assert len(list(folder.iterdir())) == len(naive.files)
    for path, (header, slots, entries) in zip(sorted(folder.iterdir()), naive.files, strict=True):
        got_header, got_slots, got_entries = index_content(path, SLOTS, ENTRIES)
        assert list(got_header) == header
        assert got_slots == b"".join(value.to_bytes(4, "big") for value in slots)
        assert got_entries == entries


def found(store_answer: list[bytes]) -> list[bytes]:
    return [decode_record(r).body for r in store_answer]


def test_query(tmp_path: Path) -> None:
    clock = FakeClock()
    store = open_store(tmp_path, clock, index_slots=1)  # one chain for everything
    for n in range(80):
        clock.now_ms = NOON + n * 700
        put(store, "t", 0, b"%d" % n, KEYS=f"k{n % 10} same", UNIQ_KEY=f"id-{n}")
    end = clock.now_ms
    assert store.dispatch_behind_bytes == store.max_commitlog_offset
    answer = store.query_by_key("t", "k3", 64, 0, end)
    assert found(answer.records) == [b"%d" % n for n in range(73, 0, -10)]
    assert answer.index_last_update_timestamp == end
    assert answer.index_last_update_phyoffset == store.entries("t", 0, 79, 1)[0][0]
    assert store.dispatch_behind_bytes == 0
    assert len(list((tmp_path / "index").iterdir())) == 4
    assert found(store.query_by_key("t", "id-7", 9, 0, end).records) == [b"7"]
    assert store.query_by_key("other", "k3", 9, 0, end).records == []
    assert store.query_by_key("t", "k", 9, 0, end).records == []
    assert len(store.query_by_key("t", "same", 999, 0, end).records) == 64
    assert store.query_by_key("t", "same", 0, 0, end).records == []
    # exact to the millisecond, although the index knows seconds only
    window = store.query_by_key("t", "same", 64, NOON + 7 * 700, NOON + 9 * 700).records
    assert found(window) == [b"9", b"8", b"7"]
    store.close()


def test_colliding_keys_are_told_apart(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert java_hash("t#Aa") == java_hash("t#BB")
    put(store, "t", 0, b"first", KEYS="Aa")
    put(store, "t", 0, b"second", KEYS="BB")
    assert found(store.query_by_key("t", "Aa", 1, 0, NOON).records) == [b"first"]
    store.close()


def test_pending_is_bounded_and_the_switch_works(tmp_path: Path) -> None:
    store = open_store(tmp_path / "on", index_pending_limit=10)
    for n in range(35):
        put(store, "t", 0, b"", KEYS=f"k{n}")
        assert store._index is not None and len(store._index.pending) <= 10
    assert store.build_index(2) == 2
    store.close()
    store = open_store(tmp_path / "off", message_index_enable=False)
    put(store, "t", 0, b"", KEYS="k")
    assert store.build_index() == 0
    assert store.query_by_key("t", "k", 9, 0, NOON).records == []
    store.close()
    assert not (tmp_path / "off" / "index").exists()


def test_messages_without_keys_need_no_index_file(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, "t", 0, b"", TAGS="only")
    assert store.build_index() == 1
    assert list((tmp_path / "index").iterdir()) == []
    store.close()
