from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gimbalmq.errors import LocalProtocolError, MessageIllegalError
from gimbalmq.model.batch import BatchItem, encode_alike, encode_batch, split_batch

VECTOR = bytes.fromhex(
    "00000036 00000000 00000000 00000000 00000005 68656c6c6f 001b"
    "4b455953016b310257414954017472756502544147530154616741"
)
ITEM = (0, b"hello", b"KEYS\x01k1\x02WAIT\x01true\x02TAGS\x01TagA")
items = st.lists(
    st.tuples(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=40), st.binary(max_size=40)), max_size=5
)


def test_the_bytes_java_writes() -> None:
    assert encode_batch([ITEM]) == VECTOR
    assert split_batch(VECTOR) == [BatchItem(*ITEM)]


@given(items)
def test_round_trip(messages: list[tuple[int, bytes, bytes]]) -> None:
    assert split_batch(encode_batch(messages)) == messages


def test_alike_ones_are_written_as_others_are() -> None:
    alike = [(7, b"b%d" % n, b"a\x01%d\x02" % n) for n in range(5)]
    assert encode_batch(alike) == b"".join(encode_batch([item]) for item in alike)
    for odd in ((8, b"b5", b"a\x015\x02"), (7, b"b", b"a\x015\x02"), (7, b"b5", b"")):
        assert split_batch(encode_batch([*alike, odd])) == [*alike, odd]


@pytest.mark.parametrize(("count", "size"), [(1, 1), (2, 100), (3, 70_000)])
def test_items_of_one_size_are_written_as_others_are(count: int, size: int) -> None:
    bodies = [bytes([n]) * size for n in range(count)]
    ids = [f"{n:032X}" for n in range(count)]
    items = [(0, body, f"I\x01{name}\x02W\x01t\x02".encode()) for body, name in zip(bodies, ids, strict=True)]
    assert encode_alike(bodies, "I\x01", ids, "\x02W\x01t\x02") == encode_batch(items)


def test_every_cut_is_noticed() -> None:
    data = encode_batch([ITEM, ITEM])
    for end in range(1, len(data)):
        if end != len(VECTOR):
            with pytest.raises(MessageIllegalError):
                split_batch(data[:end])


@given(st.binary(max_size=80))
def test_garbage_never_escapes_as_another_error(data: bytes) -> None:
    try:
        split_batch(data)
    except MessageIllegalError:
        pass


def test_properties_that_do_not_fit() -> None:
    with pytest.raises(LocalProtocolError):
        encode_batch([(0, b"", b"x" * 32768)])


@pytest.mark.parametrize("flag", [2**31, -(2**31) - 1])
def test_a_flag_that_does_not_fit(flag: int) -> None:
    for others in (0, 1):
        with pytest.raises(LocalProtocolError, match=str(flag)):
            encode_batch([ITEM] * others + [(flag, b"x", b"")])
