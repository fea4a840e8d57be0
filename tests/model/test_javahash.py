from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gimbalmq.model.javahash import hash_and_power, hash_and_power_utf8, java_hash, tag_hash

KNOWN = [
    ("TagA", 2598919),
    ("a", 97),
    ("中文", 646394),
    ("Tag-with-long-name-0123456789", 1152515914),
    ("", 0),
    ("\N{GRINNING FACE}", 0xD83D * 31 + 0xDE00),
    ("polygenelubricants", -(2**31)),  # the classic string whose hash has no absolute value
]
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@pytest.mark.parametrize(("text", "value"), KNOWN)
def test_values_java_gives(text: str, value: int) -> None:
    assert java_hash(text) == tag_hash(text) == value


def test_many_agree_with_one_by_one() -> None:
    texts = [text for text, _ in KNOWN]
    assert hash_and_power(texts)[0].tolist() == [value for _, value in KNOWN]
    assert hash_and_power([])[0].tolist() == []
    assert hash_and_power(["", ""])[0].tolist() == [0, 0]


@given(st.lists(words, max_size=12))
def test_many_of_any_text(texts: list[str]) -> None:
    expected = [java_hash(text) for text in texts]
    assert hash_and_power(texts)[0].tolist() == expected
    assert hash_and_power_utf8([text.encode() for text in texts])[0].tolist() == expected


@given(st.lists(st.text("abz09-", max_size=300), max_size=6))
def test_long_words_take_the_other_path(texts: list[str]) -> None:
    assert hash_and_power(texts)[0].tolist() == [java_hash(text) for text in texts]


@given(words, st.lists(words, min_size=1, max_size=5))
def test_a_prefix_is_joined_by_arithmetic(prefix: str, texts: list[str]) -> None:
    hashes, powers = hash_and_power(texts)
    head = java_hash(prefix) & 0xFFFFFFFF
    for text, low, power in zip(texts, hashes.tolist(), powers.tolist(), strict=True):
        assert (head * power + low - java_hash(prefix + text)) % 2**32 == 0
