"""Keys and tags found by vectors are those that are found record by record."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gimbalmq.model.javahash import java_hash, key_prefix
from gimbalmq.model.record import find_property
from gimbalmq.store.property_vectors import Texts, texts_in, texts_of

NAMES = ["UNIQ_KEY", "KEYS", "TAGS", "KEY", "UNIQ_KEYS", "XKEYS", ""]
VALUES = [
    "",
    "a",
    "k1 k2",
    " k1  k2 ",
    "KEYS",
    "0" * 32,
    "1" * 32,
    "\u00e9t\u00e9",
    "\u4e2d \u6587",
    "x" * 200,
    "a\u0001b",
]
properties = st.lists(
    st.tuples(
        st.sampled_from(NAMES), st.sampled_from(VALUES), st.sampled_from(["\u0002", "\u0002\u0002", ""])
    ),
    max_size=4,
).map(lambda parts: "".join(f"{name}\u0001{value}{end}" for name, value, end in parts).encode())


def one_by_one(text: bytes) -> list[str]:
    keys = [find_property(text, b"UNIQ_KEY") or b"", *(find_property(text, b"KEYS") or b"").split(b" ")]
    return [key.decode() for key in keys if key]


def both_ways(records: list[bytes]) -> list[Texts]:
    data = b"".join(len(text).to_bytes(2, "big") + text for text in records)
    sizes = np.array([len(text) for text in records], np.int64)
    return [texts_of(records), texts_in(data, np.cumsum(sizes + 2) - sizes, sizes)]


@given(st.lists(properties, min_size=1, max_size=8))
def test_keys_and_tags_are_those_of_each_record(records: list[bytes]) -> None:
    expected = [
        (number, java_hash(f"topic{number % 2}#{key}"))
        for number, text in enumerate(records)
        for key in one_by_one(text)
    ]
    tags = {
        number: java_hash(tag.decode())
        for number, text in enumerate(records)
        if (tag := find_property(text, b"TAGS"))
    }
    prefixes = np.array([key_prefix(f"topic{number % 2}") for number in range(len(records))], np.int64)
    for texts in both_ways(records):
        keys, found = texts.keys(), texts.values("TAGS")
        hashes = texts.hashes(keys, prefixes).tolist()
        assert list(zip(keys.records.tolist(), hashes, strict=True)) == expected
        assert dict(zip(found.records.tolist(), texts.hashes(found).tolist(), strict=True)) == tags


@pytest.mark.parametrize("tail", [b"", b"\x02"])
def test_a_value_ends_with_its_record(tail: bytes) -> None:
    for texts in both_ways([b"UNIQ_KEY\x01ab" + tail, b"KEYS\x01c d" + tail, b"", b"UNIQ_KEY"]):
        keys = texts.keys()
        pieces = zip(keys.starts.tolist(), keys.sizes.tolist(), strict=True)
        assert [texts.units[at : at + size].tobytes() for at, size in pieces] == [b"ab", b"c", b"d"]
        assert keys.records.tolist() == [0, 1, 1]


@pytest.mark.parametrize("text", [b"k " * 10_000, b" " * 20_000, b"k" + b" " * 20_000 + b"l"])
def test_thousands_of_words_are_found_without_sorting(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    # To sort them took most of the time that the index had, and that held up the loop.
    monkeypatch.setattr("gimbalmq.store.property_vectors.np.sort", None)
    for texts in both_ways([b"KEYS\x01" + text + b"\x02"] * 3):
        keys = texts.keys()
        assert keys.records.tolist() == [n for n in range(3) for _ in text.split()]
        pieces = zip(keys.starts.tolist(), keys.sizes.tolist(), strict=True)
        assert [texts.units[at : at + size].tobytes() for at, size in pieces] == text.split() * 3
