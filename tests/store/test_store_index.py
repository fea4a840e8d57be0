from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gimbalmq.model.javahash import java_hash
from gimbalmq.model.record import decode_record, encode_properties
from gimbalmq.store import MessageStore, key_search
from gimbalmq.store.append import KeyRun
from gimbalmq.store.files import Files
from gimbalmq.store.index import KeyIndex
from tests.store.helpers import NOON, FailingFiles, FakeClock, index_content, open_store, put

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


def test_pending_is_bounded(tmp_path: Path) -> None:
    store = open_store(tmp_path / "on", index_pending_limit=10, index_entries=1000)
    assert store._index is not None
    for n in range(100):
        put(store, "t", 0, b"", KEYS=f"k{n}")
    assert len(store._index.pending) == 100  # they wait for somebody to make a file ...
    for n in range(100, 170):
        put(store, "t", 0, b"", KEYS=f"k{n}")
        assert len(store._index.pending) <= 160  # ... but not for ever
    for n in range(170, 200):
        put(store, "t", 0, b"", KEYS=f"k{n}")
    assert len(store._index.pending) <= 10
    for n in range(0, 200, 17):
        assert len(store.query_by_key("t", f"k{n}", 9, 0, NOON).records) == 1
    for _ in range(3):
        put(store, "t", 0, b"", KEYS="k")
    assert store.build_index(2) == 2
    store.close()
    assert not (tmp_path / "on" / ".next-index").exists()


@pytest.mark.parametrize(("size", "indexed"), [(1, 512), (100, 800), (700, 4096)])
def test_a_commit_indexes_by_its_own_size(tmp_path: Path, size: int, indexed: int) -> None:
    """A few sends that wait are not kept waiting for the keys of thousands; many at once are cheaper together."""
    store = open_store(tmp_path)
    assert store._index is not None
    put(store, "t", 0, b"", KEYS="first")
    store.build_index()  # so that there is a file
    _put_keys(store, 4096)
    assert store._index.waiting == 4096
    _put_keys(store, size)
    assert store._index.waiting == 4096 + size - indexed
    store.close()


def test_slaves_are_sent_messages_before_their_keys_are_indexed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert store._index is not None
    index, seen = store._index, []
    store.appended = lambda: seen.append((store.max_commitlog_offset, index.waiting))
    _put_keys(store, 3)
    assert seen == [(store.max_commitlog_offset, 0)] and index.waiting == 3
    store.close()


def test_messages_show_although_slaves_could_not_be_sent_them(tmp_path: Path) -> None:
    """A queue that is left behind its messages would never show them, nor any that come later."""
    store = open_store(tmp_path)

    def fail() -> None:
        raise RuntimeError("no slave takes it")

    store.appended = fail
    with pytest.raises(RuntimeError):
        _put_keys(store, 3)
    store.appended = None
    assert store.queue("t", 0).max_offset == 3
    _put_keys(store, 2)
    assert store.queue("t", 0).max_offset == 5
    store.close()


def _put_keys(store: MessageStore, count: int) -> None:
    group = store.group()
    queue = store.queue("t", 0)
    for number in range(count):
        group.add(queue, b"x", b"KEYS\x01k%d\x02" % number, 0, 0, 0, 0, b"\x7f\0\0\1\0\0\0\1", 0, 0)
    group.commit()


def test_a_file_made_ahead_is_taken(tmp_path: Path) -> None:
    store = open_store(tmp_path, index_entries=64)
    assert store.prepare_index() is None  # no key, no file
    for n in range(60):
        put(store, "t", 0, b"%d" % n, KEYS=f"k{n}")
    prepare = store.prepare_index()
    assert prepare is not None
    prepare()
    assert store.prepare_index() is None
    assert list((tmp_path / "index").iterdir()) == []
    store.build_index()
    assert not (tmp_path / ".next-index").exists()
    prepare = store.prepare_index()  # the first is nearly full
    assert prepare is not None
    prepare()
    for n in range(60, 100):
        put(store, "t", 0, b"%d" % n, KEYS=f"k{n}")
    assert found(store.query_by_key("t", "k99", 9, 0, NOON).records) == [b"99"]
    assert len(list((tmp_path / "index").iterdir())) == 2
    store.abandon()
    (tmp_path / ".next-index").write_bytes(b"what a crash left")
    store = open_store(tmp_path, index_entries=64)
    for n in (0, 62, 63, 99):
        assert found(store.query_by_key("t", f"k{n}", 9, 0, NOON).records) == [b"%d" % n]
    store.close()


def test_the_switch_works(tmp_path: Path) -> None:
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


class CountingFiles(Files):
    reads = 0

    def read_at(self, fd: int, size: int, position: int) -> bytes:
        self.reads += 1
        return super().read_at(fd, size, position)


def test_a_key_that_repeats_costs_few_reads(tmp_path: Path) -> None:
    files = CountingFiles()
    index = KeyIndex(tmp_path / "index", 1000, 200_010, files, lambda: NOON)
    index.load([])
    old = NOON - 100_000_000
    index.pending = [("T", b"KEYS\x01same\x02", 100 * n, old if n < 3 else NOON) for n in range(200_000)]
    index.build()
    files.reads = 0
    assert list(index.search("T", "same", 0, old + 1000)) == [200, 100, 0]
    assert list(index.search("T", "same", old + 50_000, NOON - 50_000)) == []
    assert files.reads < 10_000  # one read for each of 200,000 entries, twice, without blocks
    files.reads = 0
    newest = index.search("T", "same", 0, NOON)
    assert [place for place, _ in zip(newest, range(64), strict=False)] == [
        100 * n for n in range(199_999, 199_935, -1)
    ]
    assert files.reads < 100
    index.close()


@pytest.mark.parametrize("steps", [0, 1, 7, 4096])
def test_long_and_short_chains_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    monkeypatch.setattr(key_search, "_CHAIN_STEPS", steps)
    monkeypatch.setattr(key_search, "_BLOCK_ENTRIES", 10)
    index = KeyIndex(tmp_path / "index", 3, 100, Files(), lambda: NOON)
    index.load([])
    records = [(n * 100, NOON + n * 400, f"k{n % 5}") for n in range(250)]
    for place, stored, key in records[:200]:
        index.pending.append(("t", encode_properties({"KEYS": key}), place, stored))
    index.build()
    before = index.search("t", "k3", 0, NOON * 2)
    for place, stored, key in records[200:]:
        index.pending.append(("t", encode_properties({"KEYS": key}), place, stored))
    index.build()
    wanted = [place for place, _, key in reversed(records) if key == "k3"]
    assert list(index.search("t", "k3", 0, NOON * 2)) == wanted
    assert list(before) == [place for place in wanted if place < 200 * 100]  # as it was when it was asked
    begin, end = NOON + 20_000, NOON + 40_000
    found = list(index.search("t", "k3", begin, end))
    assert set(found) >= {place for place, stored, key in records if key == "k3" and begin <= stored <= end}
    assert all(begin - 2000 <= NOON + place * 4 <= end + 1000 for place in found)
    index.close()


def test_a_search_does_not_mind_a_file_that_went(tmp_path: Path) -> None:
    index = KeyIndex(tmp_path / "index", 3, 20, Files(), lambda: NOON)
    index.load([])
    for n in range(50):
        index.pending.append(("t", encode_properties({"KEYS": "k"}), n * 100, NOON + n * 1000))
    index.build()
    search = index.search("t", "k", 0, NOON * 2)
    for file in index.drop_expired(3000):
        file.remove()
    assert list(search) == [n * 100 for n in range(49, 18, -1)]
    index.close()


def test_an_answer_is_bounded(tmp_path: Path) -> None:
    store = open_store(tmp_path, commitlog_file_bytes=1 << 26, index_entries=10_000)
    for n in range(5000):
        put(store, "t", 0, b"%d" % n, KEYS="BB")  # the same hash as "Aa"
    put(store, "t", 0, b"large", KEYS="k")
    for _ in range(5):
        put(store, "t", 0, bytes(3_000_000), KEYS="k")
    assert len(store.query_by_key("t", "k", 9, 0, NOON).records) == 2  # 8 MB of 15
    put(store, "t", 0, b"newest", KEYS="Aa")
    assert found(store.query_by_key("t", "Aa", 9, 0, NOON).records) == [b"newest"]
    assert store.query_by_key("t", "C#", 9, 0, NOON).records == []  # 4,096 looked at, not 5,001
    store.close()


def test_a_question_reads_the_queues_of_a_topic_in_short_steps_and_once(tmp_path: Path) -> None:
    class CountingFiles(FailingFiles):
        read = 0

        def read_at(self, fd: int, size: int, position: int) -> bytes:
            self.read += 1
            return super().read_at(fd, size, position)

    files = CountingFiles()
    store = open_store(tmp_path, files=files)
    put(store, "t", 0, b"old", KEYS="k")
    store.delete_topic("t")
    for n in range(100):
        put(store, "t", n, b"%d" % n, KEYS="k")
    store.checkpoint()
    files.read = 0
    seen = [0, *(files.read for _ in store.query("t", "k", 9, 0, 1 << 62))]
    assert files.read == 100 and all(after - before <= 1 for before, after in pairwise(seen))
    for _ in store.query("t", "k", 9, 0, 1 << 62):
        pass
    assert files.read == 100
    assert len(store.query_by_key("t", "k", 1000, 0, 1 << 62).records) == 64
    store.close()


@pytest.mark.parametrize("limit", [1, 5, 7, None])
def test_runs_give_the_same_files_as_items(tmp_path: Path, limit: int | None) -> None:
    """Runs and single items in turn, over the ends of files."""
    indexes = [KeyIndex(tmp_path / name, SLOTS, ENTRIES, Files(), lambda: NOON) for name in ("items", "runs")]
    made = [f"k{number}" for number in range(50)]
    for each in indexes:
        each.load([])
    items, runs = indexes
    items.add(
        [("t", f"UNIQ_KEY\x01{key}\x02KEYS\x01same\x02".encode(), n * 10, NOON) for n, key in enumerate(made)]
    )
    for start in range(0, 50, 10):
        if start == 20:
            runs.add(items.pending[20:30])
            continue
        hashes = [[java_hash(f"t#{key}"), java_hash("t#same")] for key in made[start : start + 10]]
        places = np.arange(start, start + 10, dtype=np.int64).repeat(2) * 10
        runs.add([KeyRun(np.array(hashes, np.int32).ravel(), places, np.full(20, NOON))])
        assert runs.first_waiting == 0
    assert (items.waiting, runs.waiting) == (50, 90)
    for each, left in zip(indexes, (50, 90), strict=True):
        while done := each.build(limit):
            left -= done
            assert each.waiting == left
        assert (left, each.pending, each.first_waiting) == (0, [], None)
        each.close()
    files = [sorted((tmp_path / name).iterdir()) for name in ("items", "runs")]
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]


def test_a_step_takes_few_large_properties(tmp_path: Path) -> None:
    """They are looked at byte by byte: hundreds of megabytes and a second for the properties of 512 messages."""
    index = KeyIndex(tmp_path, 800, 2000, Files(), lambda: NOON)
    index.load([])
    large = b"KEYS\x01k\x02X\x01" + b" " * 32_000
    index.add([("T", large, place, NOON) for place in range(20)])
    done = [index.build(512), index.build(512)]
    assert done[0] == done[1] < 10
    assert index.build() == 20 - sum(done) and index.files[0].count == 21
    index.close()


def test_a_step_takes_few_runs(tmp_path: Path) -> None:
    index = KeyIndex(tmp_path, 800, 2000, Files(), lambda: NOON)
    index.load([])
    for number in range(10):
        places = np.arange(number * 100, number * 100 + 100, dtype=np.int64)
        index.add([KeyRun(np.ones(100, np.int32), places, np.full(100, NOON))])
    assert [index.build(150) for _ in range(5)] == [200] * 5
    index.close()


def test_a_run_of_which_a_part_was_written_before_a_failure_is_finished(tmp_path: Path) -> None:
    files = FailingFiles()
    index = KeyIndex(tmp_path, SLOTS, ENTRIES, files, lambda: NOON)
    index.load([])
    hashes = np.arange(1, 31, dtype=np.int32)
    index.add([KeyRun(hashes, np.arange(30, dtype=np.int64) * 10, np.full(30, NOON))])
    files.room = 500  # one file and its entries, not a second one
    with pytest.raises(OSError, match="injected"):
        index.build()
    files.room = None
    assert (index.end_offset, index.waiting) == (180, 30)
    index.build()
    assert [file.count for file in index.files] == [20, 12]
    assert (index.end_offset, index.waiting) == (290, 0)
    index.close()
