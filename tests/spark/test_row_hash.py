"""Hashes of rows, and the table of those that have come."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gimbalmq.spark import row_hash
from gimbalmq.spark.row_hash import Met, Occurrences, RowHashes, hash_rows

ALL_BITS = 2**64 - 1


def slow_mixed(number: int) -> int:
    number = ((number ^ number >> 30) * 0xBF58476D1CE4E5B9) & ALL_BITS
    number = ((number ^ number >> 27) * 0x94D049BB133111EB) & ALL_BITS
    return number ^ number >> 31


def slow_hash(data: bytes) -> tuple[int, int]:
    """The hash of one binary column, word by word."""
    first, second = len(data), len(data) * 0xBF58476D1CE4E5B9
    for place in range(0, len(data), 8):
        key = slow_mixed((place // 8 + 1) * 0x9E3779B97F4A7C15 & ALL_BITS)
        word = slow_mixed((int.from_bytes(data[place : place + 8], "little") + key) & ALL_BITS)
        first += word
        second += word * (slow_mixed(key) | 1)
    return (
        slow_mixed(first & ALL_BITS),
        slow_mixed((0x9E3779B97F4A7C15 + second) & ALL_BITS),
    )


def pairs(hashes: RowHashes) -> list[tuple[int, int]]:
    return list(zip(hashes.high.tolist(), hashes.low.tolist(), strict=True))


@given(
    st.lists(st.binary(max_size=40), min_size=1, max_size=30),
    st.integers(1, 40),
    st.sampled_from([0, 5, 1000]),
)
@settings(max_examples=200)
def test_vectors_hash_as_a_loop_does(rows: list[bytes], chunk: int, row_cost: int) -> None:
    column = pa.array([b"before", *rows, b"after"], pa.binary()).slice(1, len(rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_hash, "_CHUNK_WORDS", chunk)
        assert pairs(hash_rows([column], len(rows))) == [slow_hash(row) for row in rows]


def test_a_value_given_once_is_every_rows() -> None:
    bodies = pa.array([b"one", b"", b"three"])
    often = [pa.array([b"T"] * 3), np.full(3, 7, np.uint64), bodies, pa.array([b""] * 3)]
    once = [pa.array([b"T"]), np.full(1, 7, np.uint64), bodies, pa.array([b""])]
    assert pairs(hash_rows(often, 3)) == pairs(hash_rows(once, 3))
    assert pairs(hash_rows(once[:1], 3)) == pairs(hash_rows(often[:1], 3))


def test_columns_that_change_places_are_another_row() -> None:
    one, two = pa.array([b"one"]), pa.array([b"two"])
    assert len({*pairs(hash_rows([one, two], 1)), *pairs(hash_rows([two, one], 1))}) == 2


def test_many_similar_rows_have_different_hashes() -> None:
    rows = [b"%d" % n for n in range(100_000)] + [b"customer-%08d;" % n * 2 for n in range(100_000)]
    hashes = hash_rows([pa.array(rows, pa.binary())], len(rows))
    assert len(np.unique(hashes.high)) == len(np.unique(hashes.low)) == len(rows)
    for bit in range(64):
        assert abs(int((hashes.high >> np.uint64(bit) & np.uint64(1)).sum()) - 100_000) < 2_000


@given(st.lists(st.lists(st.integers(1, 30), max_size=60), max_size=8), st.integers(0, 2))
@settings(max_examples=200)
def test_occurrences_are_counted_over_all_calls(calls: list[list[int]], spread: int) -> None:
    met, occurrences, seen = Met(), Occurrences(), Counter[int]()
    for numbers in calls:
        known = [number in seen for number in numbers]
        expected = []
        for number in numbers:
            expected.append(seen[number])
            seen[number] += 1
        keys = np.array(numbers, np.uint64) << np.uint64(20 * spread)
        hashes = RowHashes(keys, keys)
        assert met.have(hashes).tolist() == known
        assert met.are_new(hashes).tolist() == [before == 0 for before in expected]
        found = occurrences.before(keys)
        assert ([0] * len(numbers) if found is None else found.tolist()) == expected
    assert met.size == len(seen)


def test_occurrences_are_kept_when_the_table_grows() -> None:
    occurrences = Occurrences()
    numbers = hash_rows([pa.array([b"%d" % n for n in range(30_000)], pa.binary())], 30_000).high
    assert occurrences.before(numbers[:100]) is None
    assert occurrences.before(np.repeat(numbers[:50], 2)) is not None
    assert occurrences.before(numbers[100:]) is None
    found = occurrences.before(numbers)
    assert found is not None and found.tolist() == [3] * 50 + [1] * 29_950


@pytest.mark.parametrize(
    "low", [0, 2**64 - 2000], ids=["first places", "behind the last place comes the first"]
)
def test_new_numbers_are_put_all_or_none(low: int) -> None:
    """Neighbours, so that hundreds of them want one place and look for another one behind it."""
    numbers = np.arange(low, low + 1500, dtype=np.uint64) | np.uint64(1)
    there, more = np.unique(numbers)[:500], np.unique(numbers)[500:]
    free = (np.arange(1, 100, dtype=np.uint64) << np.uint64(54)) + np.uint64(10_000)
    more = np.concatenate([more, free, free + np.uint64(1)])
    places = row_hash._Places()
    assert places.put_new(there[::-1])
    before = places._numbers.copy()
    assert not places.put_new(np.append(more, more[7]))
    assert not places.put_new(np.append(more, there[0]))
    assert not places.put_new(np.append(more, there[-1]))
    assert places.size == 500 and (places._numbers == before).all()
    assert places.put_new(more)
    assert places.size == 948 and places.find(np.append(there, more))[1].all()
    assert not places.find(np.array([low + 4000 & ALL_BITS], np.uint64))[1].any()
    places.grow()
    assert places.size == 948 and places.find(np.append(there, more))[1].all()


def test_the_table_grows_and_forgets_nothing() -> None:
    met = Met()
    rows = [b"%d" % n for n in range(50_000)]
    hashes = hash_rows([pa.array(rows, pa.binary())], len(rows))
    for low in range(0, len(rows), 7_000):
        part = RowHashes(hashes.high[low : low + 7_000], hashes.low[low : low + 7_000])
        assert met.are_new(part).all()
    assert met.size == len(rows)
    assert not met.are_new(hashes).any() and met.have(hashes).all()


def test_hashes_that_share_a_number_by_chance_are_told_apart() -> None:
    met = Met()
    same, other = np.array([7], np.uint64), np.array([8], np.uint64)
    assert met.are_new(RowHashes(same, same)).all()
    assert met.are_new(RowHashes(same, other)).all(), "no row is dropped for another"
    assert not met.are_new(RowHashes(same, same)).any()
