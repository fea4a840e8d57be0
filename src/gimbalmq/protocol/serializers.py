"""The two header encodings: JSON as fastjson writes it, and RocketMQ's own binary form.

Decoding is as tolerant as Java's (unknown keys, numbers in place of strings, missing keys);
encoding is strict: alphabetical keys, every ext-field a string, nulls left out.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import msgspec

from gimbalmq.errors import LocalProtocolError, RemoteProtocolError
from gimbalmq.protocol.codes import LANGUAGES
from gimbalmq.protocol.command import BINARY_HEADER, JSON_HEADER, RemotingCommand
from gimbalmq.protocol.frames import MAX_FRAME_BYTES


class _Received(RemotingCommand):
    """What a well-behaved peer sends; anything else takes the slow road.

    The header says nothing of the body and the encoding: names with a blank are in no header.
    """

    code: int = 0
    ext_fields: dict[str, str] | None = msgspec.field(default=None, name="extFields")
    body: Any = msgspec.field(default=b"", name=" body")
    language: str | None = "JAVA"
    version: int = 0
    serialize_type: int = msgspec.field(default=JSON_HEADER, name=" serialize_type")
    empty_fields: Any = msgspec.field(default=(), name=" empty_fields")


class _OrderedJson(msgspec.Struct):
    """Field order is the wire's: alphabetical."""

    code: int
    extFields: Mapping[str, str] | msgspec.UnsetType
    flag: int
    language: str | msgspec.UnsetType
    opaque: int
    remark: str | msgspec.UnsetType
    serializeTypeCurrentRPC: str
    version: int


_typed_decoder = msgspec.json.Decoder(_Received)
_any_decoder = msgspec.json.Decoder()
_encode = msgspec.json.Encoder().encode

_WORDS = struct.Struct(">II")
_FIXED = struct.Struct(">hbhiii")
_I32 = struct.Struct(">i")
_I16 = struct.Struct(">h")


def encode_frame(command: RemotingCommand) -> bytes:
    """The whole frame, length word included."""
    if command.serialize_type == BINARY_HEADER and -32768 <= command.code <= 32767:
        header = _encode_binary(command)
        kind = BINARY_HEADER
    else:
        # Codes above 32767 do not fit the binary form; a JSON header is always understood.
        header = _encode_json(command)
        kind = JSON_HEADER
    return join_frame(command.code, header, command.body, kind)


def join_frame(
    code: int, header: bytes, body: bytes | bytearray | memoryview, kind: int = JSON_HEADER
) -> bytes:
    """The frame of a header that is encoded already."""
    header_length, length = len(header), len(header) + len(body)
    if 8 + length > MAX_FRAME_BYTES:
        # A peer would close the connection, and every other call on it would fail.
        raise LocalProtocolError(
            f"code {code} with a header of {header_length} and a body of {len(body)} bytes "
            f"exceeds the largest frame, {MAX_FRAME_BYTES} bytes"
        )
    return b"".join((_WORDS.pack(4 + length, kind << 24 | header_length), header, body))


TEXT, NUMBER = "\0", "\1"
"""Stand in a template for an ext-field of which each request has its own value."""


def header_template(code: int, ext_fields: Mapping[str, str]) -> bytes:
    """The JSON header of requests that differ in a few ext-fields only, as a format.

    It wants their values in the header's order (texts as JSON), then flag and opaque.
    """
    header = _encode_json(RemotingCommand(code, ext_fields, flag=-1, opaque=-1)).replace(b"%", b"%%")
    for mark, form in (
        (b'"\\u0000"', b"%b"),
        (b'"\\u0001"', b'"%d"'),
        (b'"flag":-1', b'"flag":%d'),
        (b'"opaque":-1', b'"opaque":%d'),
    ):
        header = header.replace(mark, form)
    return header


def _encode_json(command: RemotingCommand) -> bytes:
    unset = msgspec.UNSET
    return _encode(
        _OrderedJson(
            command.code,
            unset if command.ext_fields is None else command.ext_fields,
            command.flag,
            unset if command.language is None else command.language,
            command.opaque,
            unset if command.remark is None else command.remark,
            "JSON",
            command.version,
        )
    )


def _encode_binary(command: RemotingCommand) -> bytes:
    remark = command.remark.encode() if command.remark else b""
    parts = [b"", remark, b""]
    ext_length = 0
    for key, value in (command.ext_fields or {}).items():
        raw_key = key.encode()
        raw_value = value.encode()
        if len(raw_key) > 32767:
            raise LocalProtocolError(f"ext-field name of {len(raw_key)} bytes does not fit 16 bits")
        parts += (_I16.pack(len(raw_key)), raw_key, _I32.pack(len(raw_value)), raw_value)
        ext_length += 6 + len(raw_key) + len(raw_value)
    language = LANGUAGES.index(command.language) if command.language in LANGUAGES else 7
    parts[0] = _FIXED.pack(command.code, language, command.version, command.opaque, command.flag, len(remark))
    parts[2] = _I32.pack(ext_length)
    return b"".join(parts)


def decode_command(kind: int, header: bytes, body: bytes = b"") -> RemotingCommand:
    """A frame's parts as a command.

    Raises:
        RemoteProtocolError: the header cannot be read; the connection must close.
    """
    if kind == JSON_HEADER:
        try:
            command = _typed_decoder.decode(header)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return _decode_loose_json(header, body)
        command.body = body
        return command
    if kind == BINARY_HEADER:
        return _decode_binary(header, body)
    raise RemoteProtocolError(f"header encoding {kind} is unknown: 0 (JSON) and 1 (ROCKETMQ) are legal")


def _decode_loose_json(header: bytes, body: bytes) -> RemotingCommand:
    try:
        raw = _any_decoder.decode(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"the JSON header cannot be read: {error}") from error
    if not isinstance(raw, dict):
        raise RemoteProtocolError(f"the JSON header is {type(raw).__name__}, not an object")
    ext = raw.get("extFields")
    if ext is not None and not isinstance(ext, dict):
        raise RemoteProtocolError(f"extFields is {type(ext).__name__}, not an object")
    language = raw.get("language", "JAVA")
    if isinstance(language, int) and not isinstance(language, bool):
        language = LANGUAGES[language] if 0 <= language < len(LANGUAGES) else None
    remark = raw.get("remark")
    return RemotingCommand(
        _int32(raw, "code"),
        None if ext is None else {key: _text(value) for key, value in ext.items() if value is not None},
        body,
        opaque=_int32(raw, "opaque"),
        flag=_int32(raw, "flag"),
        remark=None if remark is None else _text(remark),
        language=language if isinstance(language, str) else None,
        version=_int32(raw, "version"),
        empty_fields=() if ext is None else tuple(key for key, value in ext.items() if value is None),
    )


def _int32(raw: dict[str, Any], key: str) -> int:
    value = raw.get(key, 0)
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise RemoteProtocolError(f"{key} is {value!r}, not a number") from error
    if not -0x80000000 <= number <= 0x7FFFFFFF:
        raise RemoteProtocolError(f"{key} is {number}, which does not fit 32 bits")
    return number


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return _encode(value).decode()


def _decode_binary(header: bytes, body: bytes) -> RemotingCommand:
    try:
        code, language, version, opaque, flag, remark_length = _FIXED.unpack_from(header)
        position = _FIXED.size
        if not 0 <= remark_length <= len(header) - position:
            raise RemoteProtocolError(f"remark length {remark_length} exceeds the header")
        remark = header[position : position + remark_length].decode() or None
        position += remark_length
        (ext_length,) = _I32.unpack_from(header, position)
        position += 4
        if not 0 <= ext_length <= len(header) - position:
            raise RemoteProtocolError(f"ext-fields length {ext_length} exceeds the header")
        empty: list[str] = []
        ext = _decode_entries(header, position, position + ext_length, empty) if ext_length else None
    except (struct.error, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"the binary header cannot be read: {error}") from error
    return RemotingCommand(
        code,
        ext,
        body,
        opaque=opaque,
        flag=flag,
        remark=remark,
        language=LANGUAGES[language] if 0 <= language < len(LANGUAGES) else None,
        version=version,
        serialize_type=BINARY_HEADER,
        empty_fields=tuple(empty),
    )


def _decode_entries(header: bytes, position: int, end: int, empty: list[str]) -> dict[str, str]:
    ext: dict[str, str] = {}
    while position < end:
        (key_length,) = _I16.unpack_from(header, position)
        position += 2
        if not 0 <= key_length <= end - position:
            raise RemoteProtocolError(f"ext-field name length {key_length} exceeds the header")
        key = header[position : position + key_length].decode()
        position += key_length
        (value_length,) = _I32.unpack_from(header, position)
        position += 4
        if not 0 <= value_length <= end - position:
            raise RemoteProtocolError(f"ext-field value length {value_length} exceeds the header")
        # An empty key or value is Java's null: the entry says nothing.
        if key and value_length:
            ext[key] = header[position : position + value_length].decode()
        elif key:
            empty.append(key)
        position += value_length
    return ext
