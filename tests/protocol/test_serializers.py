"""Both header encodings: Java's vectors, its tolerance, and round trips."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gimbalmq.errors import LocalProtocolError, RemoteProtocolError
from gimbalmq.protocol.codes import LANGUAGES, OUR_VERSION
from gimbalmq.protocol.command import BINARY_HEADER, JSON_HEADER, RemotingCommand
from gimbalmq.protocol.frames import MAX_FRAME_BYTES, FrameReader
from gimbalmq.protocol.serializers import (
    NUMBER,
    TEXT,
    decode_command,
    encode_frame,
    header_template,
    join_frame,
)


def header_of(command: RemotingCommand) -> bytes:
    (frame,) = FrameReader().feed(encode_frame(command))
    return frame[1]


def read_json(**fields: Any) -> RemotingCommand:
    return decode_command(JSON_HEADER, json.dumps(fields).encode())


def test_json_header_is_written_as_java_writes_it() -> None:
    minimal = RemotingCommand(0, opaque=1, flag=1, language="JAVA", version=0)
    assert header_of(minimal) == (
        b'{"code":0,"flag":1,"language":"JAVA","opaque":1,"serializeTypeCurrentRPC":"JSON","version":0}'
    )
    request = RemotingCommand(11, {"queueId": "1", "topic": "TopicA"}, language="JAVA", version=435)
    assert header_of(request) == (
        b'{"code":11,"extFields":{"queueId":"1","topic":"TopicA"},"flag":0,"language":"JAVA","opaque":0,'
        b'"serializeTypeCurrentRPC":"JSON","version":435}'
    )


def test_control_characters_are_escaped_and_other_text_is_raw() -> None:
    header = header_of(RemotingCommand(10, {"i": "KEYS\x01k\x02", "b": "主题"}))
    assert rb"KEYS\u0001k\u0002" in header
    assert "主题".encode() in header


def test_binary_header_is_written_as_java_writes_it() -> None:
    command = RemotingCommand(
        11, {"queueId": "1"}, language="JAVA", version=435, serialize_type=BINARY_HEADER
    )
    assert header_of(command).hex() == (
        "000b0001b3000000000000000000000000" + "0000000e" + "000771756575654964" + "0000000131"
    )


def test_unknown_keys_are_passed_over_and_missing_ones_have_defaults() -> None:
    command = read_json(surprise=[1, {"a": None}])
    assert (command.code, command.flag, command.opaque, command.version) == (0, 0, 0, 0)
    assert (command.language, command.ext_fields, command.remark) == ("JAVA", None, None)


def test_numbers_and_booleans_among_ext_fields_become_strings() -> None:
    command = read_json(code=10, extFields={"a": 1, "b": True, "c": False, "d": None, "e": "x", "f": 1.5})
    assert command.ext_fields == {"a": "1", "b": "true", "c": "false", "e": "x", "f": "1.5"}


@pytest.mark.parametrize(
    ("given_language", "name"), [(3, "PYTHON"), (0, "JAVA"), (99, None), (True, None), ("COBOL", "COBOL")]
)
def test_language_may_be_a_number(given_language: object, name: str | None) -> None:
    assert read_json(code=1, language=given_language).language == name


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"code":"eleven"}',
        b'{"code":4294967296,"extFields":{"a":1}}',
        b'{"code":null}',
        b'{"extFields":[1]}',
        b'{"extFields":"text"}',
        b'\xff{"code":1}',
        b"[" * 5000,
    ],
)
def test_unreadable_json_header_is_a_protocol_error(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_command(JSON_HEADER, header)


def test_unknown_encoding_is_a_protocol_error() -> None:
    with pytest.raises(RemoteProtocolError, match="encoding 2 is unknown"):
        decode_command(2, b"{}")


@pytest.mark.parametrize(
    "header",
    [
        bytes(20),
        bytes(13) + (1).to_bytes(4, "big") + bytes(4),
        bytes(13) + (-1 & 0xFFFFFFFF).to_bytes(4, "big") + bytes(4),
        bytes(17) + (5).to_bytes(4, "big"),
        bytes(17) + (3).to_bytes(4, "big") + b"\x00\x09k",
        bytes(17) + (7).to_bytes(4, "big") + b"\x00\x01k\x00\x00\x00\x09",
        bytes(17) + (8).to_bytes(4, "big") + b"\x00\x01\xff\x00\x00\x00\x01x",
        bytes(17) + (1).to_bytes(4, "big") + b"\x00",
    ],
)
def test_unreadable_binary_header_is_a_protocol_error(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_command(BINARY_HEADER, header)


def test_key_written_twice_counts_the_last_time_and_empty_entries_are_null() -> None:
    entries = b"\0\1k\0\0\0\1a" + b"\0\1k\0\0\0\1b" + b"\0\0\0\0\0\1x" + b"\0\1n\0\0\0\0"
    header = bytes(17) + len(entries).to_bytes(4, "big") + entries
    assert decode_command(BINARY_HEADER, header).ext_fields == {"k": "b"}


def test_code_beyond_16_bits_leaves_as_json_whatever_was_asked() -> None:
    frame = encode_frame(RemotingCommand(200050, {"a": "b"}, serialize_type=BINARY_HEADER))
    assert frame[4] == JSON_HEADER
    assert frame[8:].startswith(b'{"code":200050')


def test_reply_keeps_number_and_encoding_and_says_our_version() -> None:
    request = RemotingCommand(10, {"a": "b"}, opaque=77, flag=0, serialize_type=BINARY_HEADER, version=399)
    reply = request.reply(17, "no", {"x": "y"}, b"body")
    assert (reply.opaque, reply.flag, reply.serialize_type, reply.version) == (77, 1, 1, OUR_VERSION)
    assert (reply.code, reply.remark, reply.ext_fields, reply.body) == (17, "no", {"x": "y"}, b"body")
    assert "code=17" in repr(reply)


def test_frame_over_the_limit_is_never_built() -> None:
    with pytest.raises(LocalProtocolError, match=str(MAX_FRAME_BYTES)):
        encode_frame(RemotingCommand(10, None, bytes(MAX_FRAME_BYTES)))
    room = MAX_FRAME_BYTES - len(encode_frame(RemotingCommand(10)))
    assert len(encode_frame(RemotingCommand(10, None, bytes(room)))) == MAX_FRAME_BYTES


def test_ext_field_name_beyond_16_bits_does_not_fit_the_binary_form() -> None:
    with pytest.raises(LocalProtocolError, match="16 bits"):
        encode_frame(RemotingCommand(10, {"k" * 32768: "v"}, serialize_type=BINARY_HEADER))


def test_a_filled_template_is_what_the_encoder_writes() -> None:
    fields = {"a": '100 %d "group"', "f": "7", "i": "KEYS\x01ü %b\x02", "n": "broker-a"}
    template = header_template(310, fields | {"f": NUMBER, "i": TEXT})
    header = template % (7, json.dumps(fields["i"], ensure_ascii=False).encode(), 2, 99)
    whole = RemotingCommand(310, fields, b"body", flag=2, opaque=99)
    assert join_frame(310, header, b"body") == encode_frame(whole)


def test_a_header_cannot_name_what_is_not_in_it() -> None:
    found = read_json(code=1, body="forged", serialize_type=1)
    assert (found.body, found.serialize_type) == (b"", JSON_HEADER)


texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
commands = st.builds(
    RemotingCommand,
    st.integers(-32768, 32767),
    st.none() | st.dictionaries(texts, texts, min_size=1, max_size=5),
    st.binary(max_size=50),
    opaque=st.integers(-(2**31), 2**31 - 1),
    flag=st.integers(0, 3),
    remark=st.none() | texts,
    language=st.sampled_from(LANGUAGES),
    version=st.integers(0, 612),
    serialize_type=st.sampled_from([JSON_HEADER, BINARY_HEADER]),
)


@given(commands)
def test_every_command_survives_the_wire(command: RemotingCommand) -> None:
    (frame,) = FrameReader().feed(encode_frame(command))
    again = decode_command(*frame)
    for attribute in RemotingCommand.__struct_fields__:
        assert getattr(again, attribute) == getattr(command, attribute), attribute
