"""Batches stored all at once: the same bytes as message by message."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from gimbalmq.errors import StoreError
from gimbalmq.model.batch import encode_batch, split_batch
from gimbalmq.model.ids import offset_id
from gimbalmq.model.javahash import tag_hash
from gimbalmq.model.record import find_property
from gimbalmq.store.append import KeyRun
from gimbalmq.store.append_vectors import Part, Run, add_items, add_run, offset_ids
from gimbalmq.store.batch_items import read_items
from gimbalmq.store.config import StoreConfig
from gimbalmq.store.message_store import MessageStore
from gimbalmq.store.vectors import at_every
from tests.support import ManualClock

HOST = b"\x7f\0\0\1\0\0\0\x07"
ADDED = b"CLUSTER\x01c\x02"


def open_store(folder: Path) -> MessageStore:
    store = MessageStore(
        StoreConfig(
            root=folder, commitlog_file_bytes=20_000, queue_file_bytes=2000, index_slots=50, index_entries=200
        ),
        ManualClock(),
    )
    store.load()
    return store


def same_files(folder: Path, *parts: str) -> None:
    """The stores ``one`` and ``other`` have the same log and queues, and these parts."""
    for part in ("commitlog", "consumequeue", *parts):
        for path in sorted((folder / "one" / part).rglob("[0-9]*")):
            if path.is_file():
                twin = folder / "other" / path.relative_to(folder / "one")
                assert path.read_bytes() == twin.read_bytes(), path.relative_to(folder)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("host", [HOST, bytes(16) + HOST[4:]])
def test_a_batch_at_once_is_stored_as_message_by_message(seed: int, host: bytes, tmp_path: Path) -> None:
    rng = random.Random(seed)
    one, other = open_store(tmp_path / "one"), open_store(tmp_path / "other")
    for _ in range(3):
        equal, alike = rng.random() < 0.3, seed % 3 == 0
        kinds = [b"", b"a\x01b\x02", b"TAGS\x01x\x02KEYS\x01k k2\x02", b"UNIQ_KEY\x01u\x02"]
        kinds += ["TAGS\x01標籤\x02KEYS\x01é 😀  b\x02".encode(), b"TAGS\x01a\x02TAGS\x01b\x02TAGS\x01\x02"]
        if alike:
            kinds = rng.choice(
                [
                    [b""],
                    [b"TAGS\x01%d\x02" % tag for tag in range(9)],
                    [b"KEYS\x01k%d\x02" % key for key in range(9)],
                    [b"TAGS\x01KEYS\x02", b"KEYS\x01TAGS\x02", b"a\x01\x01bcdefg\x02"],
                ]
            )
        closed = rng.random() < 0.6
        if not closed:  # as clients of 4.9.1 to 5.1.4 write them
            kinds = [kind.removesuffix(b"\x02") for kind in kinds if kind] or [b"a\x01b"]
        items = [
            (
                rng.randrange(5),
                rng.randbytes(50 if equal or alike else rng.choice([1, 2, 3, 40, 300, 5000])),
                rng.choice(kinds),
            )
            for _ in range(rng.choice([1, 3, 40, 200]))
        ]
        data = encode_batch(items)
        found = read_items(data)
        assert found is not None
        assert bool(found.alike) >= alike
        with one.group() as group:
            places, first = add_items(group, one.queue("T", 1), found, ADDED, 0x101, 5, host)
        expected = []
        added = ADDED if closed else b"\x02" + ADDED
        with other.group() as group:
            for flag, body, properties in split_batch(data):
                tag = find_property(properties, b"TAGS")
                code = tag_hash(tag.decode()) if tag else 0
                queue = other.queue("T", 1)
                expected.append(group.add(queue, body, properties + added, code, flag, 0x101, 5, host, 0, 0))
        assert (places.tolist(), first) == ([place for place, _ in expected], expected[0][1])
        ids = offset_ids(HOST, places).split(",")
        assert ids == [offset_id(HOST, place) for place, _ in expected]
    for store in (one, other):
        store.close()
    same_files(tmp_path, "index")


@pytest.mark.parametrize("keys", [1, 3, 999, 5000])
def test_keys_of_a_large_batch_are_indexed_in_pieces_and_those_of_a_record_together(
    keys: int, tmp_path: Path
) -> None:
    # All in one go, they held up everybody else for as long as all the rest of a batch takes.
    store = open_store(tmp_path)
    text = b"KEYS\x01" + b" ".join([b"k"] * keys) + b"\x02"
    data = encode_batch([(0, b"m", text)] * (20_000 // keys))
    found = read_items(data)
    assert found is not None
    group = store.group()
    places, _ = add_items(group, store.queue("T", 0), found, b"", 0, 5, HOST)
    runs = [run for run in group._index or () if isinstance(run, KeyRun)]
    assert max(map(len, runs)) < 4096 + keys
    ends = [(int(run.places[0]), int(run.places[-1])) for run in runs]
    assert all(last < first for (_, last), (first, _) in pairwise(ends))
    assert np.concatenate([run.places for run in runs]).tolist() == np.repeat(places, keys).tolist()
    assert {len(run.hashes) == len(run.places) == len(run.times) for run in runs} == {True}
    group.abort()
    store.close()


@pytest.mark.parametrize("seed", range(200))
def test_bytes_that_are_no_batch_are_left_to_whoever_can_say_why(seed: int) -> None:
    rng = random.Random(seed)
    good = encode_batch(
        [(0, b"x" * rng.randrange(1, 30), b"a\x01b\x02") for _ in range(rng.randrange(1, 60))]
    )
    bad = bytearray(good)
    for _ in range(rng.randrange(1, 4)):
        bad[rng.randrange(len(bad))] = rng.randrange(256)
    cut = bytes(bad[: rng.randrange(len(bad) + 1)])
    found = read_items(cut)
    if found is not None:
        assert [item.body for item in split_batch(cut)] == [
            cut[a : a + n] for a, n in zip(found.bodies.tolist(), found.body_sizes.tolist(), strict=True)
        ]


def test_names_that_only_some_of_equally_long_properties_have_are_found() -> None:
    for some in (b"DELAY\x011\x02", b"KEYS\x01ab\x02", b"a\x01b\x02c\x01d\x02", b"abcd\x01\x01\x01\x02"):
        told = [b"WAITX\x01y\x02"] * 40
        told[17] = some
        found = read_items(encode_batch([(0, b"body", each) for each in told]))
        assert found is not None and found.alike
        assert found.may_have("WAITX")
        assert found.may_have("DELAY") == some.startswith(b"DELAY")
        assert found.may_have("KEYS") == some.startswith(b"KEYS")


def test_a_name_is_not_taken_for_another_that_ends_as_it_does() -> None:
    for body in (b"x" * 20, b"x" * 21):
        told = b"MASTER\x01y\x02ERROR_MSG\x01z\x02RELAY\x01z\x02SENT_MS\x01z"
        found = read_items(encode_batch([(0, b"x" * 20, told), (0, body, told)] * 40))
        assert found is not None
        assert not found.may_have("CLUSTER", "TRAN_MSG", "DELAY", "TIMER_OUT_MS")
        assert found.may_have("CLUSTER", "SENT_MS")


def test_thousands_of_names_take_no_step_each(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[object] = []

    def noted(*arguments: object) -> object:
        steps.append(arguments)
        return at_every(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("gimbalmq.store.batch_items.at_every", noted)
    found = read_items(encode_batch([(0, b"x", b"TAGS\x01" + b"\x01" * 20_000 + b"\x02")] * 50))
    assert found is not None and found.alike
    assert found.may_have("TAGS") and not found.may_have("KEYS")
    assert len(steps) < 200


def test_items_of_all_sizes_without_properties_take_no_step_each(monkeypatch: pytest.MonkeyPatch) -> None:
    # To gather pieces of no bytes takes a slice for each.
    monkeypatch.setattr("gimbalmq.store.batch_items.gather", None)
    found = read_items(encode_batch([(0, b"x" * (1 + number % 3), b"") for number in range(100)]))
    assert found is not None and not found.alike
    assert not found.may_have("TAGS")


def test_equally_long_items_that_are_cut_differently_are_not_alike() -> None:
    items = [(0, b"x" * 30, b"abcd\x01efgh\x02"), (0, b"x" * 36, b"a\x01b\x02"), (0, b"x" * 40, b"")] * 20
    data = encode_batch(items)
    found = read_items(data)
    assert found is not None and not found.alike
    assert found.body_sizes.tolist() == [len(body) for _, body, _ in items]
    for odd in ((0, b"x", b"a\x01bc"), (0, b"xy", b"a\x01b")):
        open_ended = encode_batch([(0, b"x", b"a\x01b\x02")] * 20 + [odd])
        assert read_items(open_ended) is None, "what is added would become part of the last value"


def made_run(
    store: MessageStore, bodies: list[bytes], queue_ids: list[int], properties: bytes, host: bytes
) -> Run:
    count = len(bodies)
    rows = np.frombuffer(properties * count, np.uint8).reshape(count, -1)
    there = sorted(set(queue_ids))
    queues = [store.queue("T", queue_id) for queue_id in there]
    part = Part(
        slice(None),
        queues[0],
        rows,
        np.arange(count, dtype=np.int32) - 3,
        np.zeros((count, 1), np.int32),
        7,
        0x101,
        np.arange(count) + 1_700_000_000_000,
        2,
    )
    numbers = np.array([there.index(queue_id) for queue_id in queue_ids])
    return Run(queues, numbers, bodies, np.array(list(map(len, bodies))), host, [part])


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("host", [HOST, bytes(16) + HOST[4:]])
def test_a_run_at_once_is_stored_as_message_by_message(seed: int, host: bytes, tmp_path: Path) -> None:
    rng = random.Random(seed)
    one, other = open_store(tmp_path / "one"), open_store(tmp_path / "other")
    for _ in range(4):
        count = rng.choice([1, 3, 40, 200])
        bodies = [rng.randbytes(rng.choice([1, 2, 40, 300, 2000])) for _ in range(count)]
        queue_ids = [rng.randrange(5) for _ in range(count)]
        properties = b"a\x01" + b"b" * rng.randrange(300) + b"\x02"
        with one.group() as group:
            places, offsets = add_run(group, made_run(one, bodies, queue_ids, properties, host))
        expected = []
        with other.group() as group:
            for number, (body, queue_id) in enumerate(zip(bodies, queue_ids, strict=True)):
                queue, born = other.queue("T", queue_id), 1_700_000_000_000 + number
                expected.append(group.add(queue, body, properties, number - 3, 7, 0x101, born, host, 2, 0))
        assert list(zip(places.tolist(), offsets.tolist(), strict=True)) == expected
    for store in (one, other):
        store.close()
    same_files(tmp_path)


def test_a_run_that_fits_no_record_leaves_the_group_as_it_was(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    group = store.group()
    for bodies, properties in ([b"x", b"y" * 20_000], b"a\x01b\x02"), ([b"x", b"y"], b"a" * 40_000):
        with pytest.raises(StoreError):
            add_run(group, made_run(store, bodies, [0, 1], properties, HOST))
    assert group.position == 0
    assert not group.commit()
    store.close()
