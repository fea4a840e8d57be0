"""Frames that Java wrote: we read every one and write it back the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gimbalmq.protocol.command import BINARY_HEADER, JSON_HEADER, RemotingCommand
from gimbalmq.protocol.frames import FrameReader
from gimbalmq.protocol.serializers import encode_frame
from tests.golden.frames import Exchange, decode, exchanges, one_frame

FRAMES = [
    (f"{exchange}-{kind}", data)
    for exchange in exchanges()
    for kind, data in (("request", exchange.request), ("response", exchange.response))
    if data is not None
]
every_frame = pytest.mark.parametrize("data", [data for _, data in FRAMES], ids=[name for name, _ in FRAMES])


def test_record_covers_both_encodings_and_all_directions() -> None:
    kinds = {one_frame(exchange.request)[0] for exchange in exchanges()}
    assert kinds == {JSON_HEADER, BINARY_HEADER}
    assert {(exchange.sender, exchange.receiver) for exchange in exchanges()} == {
        ("client", "broker"),
        ("client", "namesrv"),
        ("broker", "namesrv"),
        ("broker", "client"),
    }


@pytest.mark.parametrize("exchange", exchanges(), ids=str)
def test_exchange_decodes_and_answer_belongs_to_request(exchange: Exchange) -> None:
    request = decode(exchange.request)
    assert request.code == exchange.code
    assert not request.is_response
    assert request.language == "JAVA"
    assert request.version in (409, 513)
    if exchange.response is None:
        return
    response = decode(exchange.response)
    assert response.is_response
    assert not request.is_oneway
    assert response.opaque == request.opaque


@every_frame
def test_frame_written_back_is_equal_field_by_field(data: bytes) -> None:
    frame = one_frame(data)
    written = encode_frame(decode(data))
    again = one_frame(written)
    assert again[0] == frame[0]
    assert again[2] == frame[2]
    assert len(written) == 8 + len(again[1]) + len(again[2])
    if frame[0] == JSON_HEADER:
        assert _in_order(again[1]) == _in_order(frame[1])
    else:
        assert _fields(decode(written)) == _fields(decode(data))
        assert sorted(_entries(again[1])) == sorted(_entries(frame[1]))
        assert again[1][:21] == frame[1][:21]
        assert len(again[1]) == len(frame[1])


def _in_order(header: bytes) -> tuple[list[str], dict[str, Any]]:
    raw = json.loads(header)
    return list(raw), raw


def _fields(command: RemotingCommand) -> tuple[object, ...]:
    return (
        command.code,
        command.opaque,
        command.flag,
        command.remark,
        command.ext_fields,
        command.language,
        command.version,
        bytes(command.body),
    )


def _entries(header: bytes) -> list[bytes]:
    """The raw ext-field entries of a binary header without a remark."""
    assert header[13:17] == bytes(4)
    position, entries = 21, []
    while position < len(header):
        start = position
        position += 2 + int.from_bytes(header[position : position + 2], "big")
        position += 4 + int.from_bytes(header[position : position + 4], "big")
        entries.append(header[start:position])
    return entries


def test_whole_record_reads_as_one_stream_in_small_pieces() -> None:
    stream = b"".join(data for _, data in FRAMES)
    reader = FrameReader()
    frames = []
    for start in range(0, len(stream), 777):
        frames += reader.feed(stream[start : start + 777])
    assert frames == [one_frame(data) for _, data in FRAMES]
    assert reader.held_bytes == 0
