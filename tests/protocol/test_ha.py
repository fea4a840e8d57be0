"""The replication stream in any pieces: nothing is lost, held back or made up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gimbalmq.errors import RemoteProtocolError
from gimbalmq.protocol.ha import (
    HEAD_BYTES,
    REPORT_BYTES,
    PacketReader,
    ReportReader,
    encode_head,
    encode_report,
    join_pieces,
)


def in_pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def test_bytes_are_those_of_the_wire() -> None:
    assert encode_report(1234) == bytes.fromhex("00000000000004d2")
    assert encode_head(1234, 5) == bytes.fromhex("00000000000004d2 00000005")
    assert (REPORT_BYTES, HEAD_BYTES) == (8, 12)


@given(st.lists(st.integers(0, 2**62), min_size=1), st.lists(st.integers(0, 1000)))
def test_last_whole_report_counts(ends: list[int], cuts: list[int]) -> None:
    reader = ReportReader()
    data = b"".join(map(encode_report, ends))
    heard = 0
    for piece in in_pieces(data, cuts):
        heard += len(piece)
        whole = heard // REPORT_BYTES
        found = reader.feed(piece)
        before = (heard - len(piece)) // REPORT_BYTES
        assert found == (ends[whole - 1] if whole > before else None)


def test_report_in_any_two_parts_is_heard_with_its_last_byte() -> None:
    data = encode_report(0x0102030405060708)
    for cut in range(REPORT_BYTES):
        reader = ReportReader()
        assert reader.feed(data[:cut]) is None
        assert reader.feed(data[cut:]) == 0x0102030405060708


def test_negative_report_is_no_slaves() -> None:
    with pytest.raises(RemoteProtocolError, match="-1"):
        ReportReader().feed(encode_report(-1))


@given(
    st.lists(st.binary(max_size=40), min_size=1),
    st.integers(0, 2**40),
    st.lists(st.integers(0, 10_000), max_size=30),
)
def test_packets_bring_every_byte_to_its_place(bodies: list[bytes], start: int, cuts: list[int]) -> None:
    data, offset = b"", start
    for body in bodies:
        data += encode_head(offset, len(body)) + body
        offset += len(body)
    for ways in (iter, join_pieces):
        reader = PacketReader()
        got, heartbeats, at = b"", 0, start
        for piece in in_pieces(data, cuts):
            for found in ways(reader.feed(piece)):
                assert found.offset == at
                heartbeats += not found.data
                got += found.data
                at += len(found.data)
        assert got == b"".join(bodies)
        assert heartbeats == sum(not body for body in bodies)


def test_pieces_are_joined_as_far_as_they_follow_each_other() -> None:
    packets = [(10, b"ab"), (12, b"cd"), (14, b""), (14, b"ef"), (90, b"gh"), (10, b"ij")]
    data = b"".join(encode_head(offset, len(body)) + body for offset, body in packets) + b"\xff" * HEAD_BYTES
    joined = join_pieces(PacketReader().feed(data))
    found = [next(joined) for _ in range(5)]
    assert [(piece.offset, bytes(piece.data)) for piece in found] == [
        (10, b"abcd"),
        (14, b""),
        (14, b"ef"),
        (90, b"gh"),
        (10, b"ij"),
    ]
    with pytest.raises(RemoteProtocolError):
        next(joined)


def test_one_whole_packet_is_its_piece_and_nothing_else_is() -> None:
    reader = PacketReader()
    packet, beat = encode_head(7, 3) + b"abc", encode_head(7, 0)
    piece = reader.whole(packet)
    assert piece is not None and (piece.offset, bytes(piece.data)) == (7, b"abc")
    for other in (
        packet[:-1],
        packet + b"d",
        packet + beat,
        beat,
        packet[:HEAD_BYTES],
        b"",
        encode_head(-1, 1) + b"a",
    ):
        assert reader.whole(other) is None, other
    for cut in (1, HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + 1):
        begun = list(reader.feed(packet[:cut]))
        assert reader.whole(packet) is None  # what comes now belongs to the packet that has begun
        rest = list(reader.feed(packet[cut:]))
        assert b"".join(bytes(piece.data) for piece in begun + rest) == b"abc"


def test_bytes_are_handed_on_before_the_packet_is_whole() -> None:
    reader = PacketReader()
    first = [(piece.offset, bytes(piece.data)) for piece in reader.feed(encode_head(100, 10) + b"abc")]
    rest = [(piece.offset, bytes(piece.data)) for piece in reader.feed(b"defghij" + encode_head(110, 0))]
    assert first == [(100, b"abc")]
    assert rest == [(103, b"defghij"), (110, b"")]


@pytest.mark.parametrize(("offset", "size"), [(-1, 4), (4, -1)])
def test_impossible_packet_ends_the_stream(offset: int, size: int) -> None:
    with pytest.raises(RemoteProtocolError, match="replication port"):
        list(PacketReader().feed(encode_head(offset, size)))
