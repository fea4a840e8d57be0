"""Cutting a byte stream into frames, however it arrives."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gimbalmq.errors import RemoteProtocolError
from gimbalmq.protocol import frames as protocol_frames
from gimbalmq.protocol.command import BINARY_HEADER, JSON_HEADER, RemotingCommand
from gimbalmq.protocol.frames import MAX_FRAME_BYTES, Frame, FrameReader
from gimbalmq.protocol.serializers import decode_command, encode_frame

STREAM = [
    RemotingCommand(10, {"topic": "T"}, b"x" * 50, opaque=1),
    RemotingCommand(11, None, b"", opaque=2),
    RemotingCommand(12, {"k": "v"}, b"body", opaque=3, serialize_type=BINARY_HEADER, remark="r"),
    RemotingCommand(0, {}, bytes(range(256)) * 40, opaque=4, flag=1),
]
ENCODED = b"".join(encode_frame(command) for command in STREAM)


def frame(kind: int, header: bytes, body: bytes) -> bytes:
    word = (kind << 24 | len(header)).to_bytes(4, "big")
    return (4 + len(header) + len(body)).to_bytes(4, "big") + word + header + body


def head(length: int, header_length: int = 0, kind: int = 0) -> bytes:
    return (length & 0xFFFFFFFF).to_bytes(4, "big") + (kind << 24 | header_length).to_bytes(4, "big")


def test_stream_cut_in_two_at_every_byte_gives_the_same_frames() -> None:
    whole = FrameReader().feed(ENCODED)
    assert [decode_command(*found).code for found in whole] == [10, 11, 12, 0]
    for cut in range(len(ENCODED) + 1):
        reader = FrameReader()
        assert reader.feed(ENCODED[:cut]) + reader.feed(ENCODED[cut:]) == whole
        assert reader.held_bytes == 0


def test_stream_fed_byte_by_byte_gives_the_same_frames() -> None:
    reader = FrameReader()
    found = [piece for byte in ENCODED for piece in reader.feed(bytes([byte]))]
    assert found == FrameReader().feed(ENCODED)


bodies = st.binary(max_size=300)
frames = st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=60), bodies), max_size=8)


@pytest.mark.parametrize("large", [20, 65_536])
@given(parts=frames, sizes=st.lists(st.integers(0, 200), max_size=40))
@example(parts=[(0, b"", b"")], sizes=[1, 0])
def test_frames_do_not_depend_on_chunks(
    large: int, parts: list[tuple[int, bytes, bytes]], sizes: list[int]
) -> None:
    with patch.object(protocol_frames, "_LARGE", large):
        _check_chunks(parts, sizes)


def _check_chunks(parts: list[tuple[int, bytes, bytes]], sizes: list[int]) -> None:
    stream = b"".join(frame(*part) for part in parts)
    reader = FrameReader()
    found: list[Frame] = []
    position = 0
    for size in sizes:
        found += reader.feed(stream[position : position + size])
        position += size
        held = min(position, len(stream)) - sum(8 + len(cut[1]) + len(cut[2]) for cut in found)
        assert held <= reader.held_bytes <= 65 * held, "memory, counted with what small pieces cost"
    found += reader.feed(stream[position:])
    assert found == [tuple(part) for part in parts]


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(head(0), id="zero"),
        pytest.param(head(3), id="shorter than the header word"),
        pytest.param(head(-1), id="minus one"),
        pytest.param(head(-0x80000000), id="smallest int32"),
        pytest.param(head(0x7FFFFFFF), id="largest int32"),
        pytest.param(head(MAX_FRAME_BYTES - 3), id="one over the limit"),
        pytest.param(head(10, 7), id="header longer than the frame"),
        pytest.param(head(4, 0xFFFFFF), id="largest header in the smallest frame"),
    ],
)
def test_illegal_length_is_refused_before_its_bytes_are_awaited(wrong: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        FrameReader().feed(wrong)
    with pytest.raises(RemoteProtocolError):
        FrameReader().feed(ENCODED + wrong)


def test_largest_frame_is_accepted() -> None:
    data = head(MAX_FRAME_BYTES - 4, 2) + bytes(MAX_FRAME_BYTES - 8)
    (found,) = FrameReader().feed(data)
    assert len(found[2]) == MAX_FRAME_BYTES - 10


def test_smallest_frame_has_neither_header_nor_body() -> None:
    assert FrameReader().feed(head(4)) == [(0, b"", b"")]


@given(st.lists(st.binary(max_size=64), max_size=20))
def test_random_bytes_end_in_frames_or_a_protocol_error(chunks: list[bytes]) -> None:
    reader = FrameReader()
    try:
        for chunk in chunks:
            for found in reader.feed(chunk):
                decode_command(*found)
    except RemoteProtocolError:
        pass


@given(st.sampled_from([JSON_HEADER, BINARY_HEADER, 2, 255]), st.binary(max_size=80), bodies)
def test_random_headers_decode_or_are_a_protocol_error(kind: int, header: bytes, body: bytes) -> None:
    try:
        command = decode_command(kind, header, body)
    except RemoteProtocolError:
        return
    assert bytes(command.body) == body


runs = st.lists(
    st.tuples(st.integers(0, 255), st.integers(0, 20), st.integers(0, 30), st.sampled_from([1, 2, 17, 40])),
    max_size=6,
)


@given(runs, st.integers(0, 2000))
def test_frames_of_equal_lengths_are_cut_as_others_are(
    parts: list[tuple[int, int, int, int]], cut: int
) -> None:
    sent = [
        (kind, bytes([number % 256]) * header, bytes([number % 251]) * body)
        for kind, header, body, count in parts
        for number in range(count)
    ]
    stream = b"".join(frame(*part) for part in sent)
    reader = FrameReader()
    assert reader.feed(stream[:cut]) + reader.feed(stream[cut:]) == sent
    assert (reader.held_bytes, reader.wanted_bytes) == (0, 8)


def test_an_illegal_length_behind_equal_frames_is_found() -> None:
    good = frame(0, b"header", b"body")
    with pytest.raises(RemoteProtocolError, match="frame length -1"):
        FrameReader().feed(good * 50 + head(-1) + good * 50)
    with pytest.raises(RemoteProtocolError, match="header length 20 exceeds"):
        FrameReader().feed(good * 50 + head(14, 20) + good * 50)
