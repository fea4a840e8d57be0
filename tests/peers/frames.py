"""Requests to any server, written and signed byte by byte here and not with our own protocol code.

`ask` sends many on one connection without waiting for each answer: a broker answers some thousands in a second.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

JAVA = 0
VERSION = 477
"""The version number a 5.x client names; rules of older clients hold below 400."""

BUSY = 2
WINDOW = 48
_ANSWER = 1


@dataclass(frozen=True)
class Keys:
    """Who signs."""

    access: str
    secret: str = field(repr=False)


@dataclass(frozen=True)
class Frame:
    """One request; `binary` ones have RocketMQ's own header form instead of JSON."""

    code: int
    fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    keys: Keys | None = None
    binary: bool = False

    def encoded(self, opaque: int) -> bytes:
        fields = dict(self.fields)
        if self.keys is not None:
            fields["AccessKey"] = self.keys.access
            fields["Signature"] = signature(fields, self.body, self.keys.secret)
        header = self._binary(fields, opaque) if self.binary else self._json(fields, opaque)
        form = 1 if self.binary else 0
        return (
            struct.pack(">iI", 4 + len(header) + len(self.body), form << 24 | len(header))
            + header
            + self.body
        )

    def _json(self, fields: Mapping[str, str], opaque: int) -> bytes:
        header: dict[str, Any] = {
            "code": self.code,
            "language": "JAVA",
            "version": VERSION,
            "opaque": opaque,
            "flag": 0,
        }
        if fields:
            header["extFields"] = fields
        return json.dumps(header).encode()

    def _binary(self, fields: Mapping[str, str], opaque: int) -> bytes:
        pairs = b"".join(
            struct.pack(">H", len(name.encode()))
            + name.encode()
            + struct.pack(">I", len(value.encode()))
            + value.encode()
            for name, value in fields.items()
        )
        fixed = struct.pack(">HBHIII", self.code, JAVA, VERSION, opaque, 0, 0)
        return fixed + struct.pack(">I", len(pairs)) + pairs


def signature(fields: Mapping[str, str], body: bytes, secret: str) -> str:
    """Apache's AclClientRPCHook: the values in the order of their names, then the body."""
    text = "".join(fields[name] for name in sorted(fields) if name != "Signature").encode()
    return base64.b64encode(hmac.digest(secret.encode(), text + body, hashlib.sha1)).decode()


@dataclass(frozen=True)
class Answer:
    """What a server said: its code, its remark and the fields and body of the answer."""

    code: int
    remark: str
    fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise ConnectionError("the server closed the connection")
        data += piece
    return bytes(data)


def _read(connection: socket.socket) -> tuple[int, Answer]:
    """The next answer and the number of its request; what the server asks or tells by itself is skipped."""
    while True:
        flag, number, answer = _frame(connection)
        if flag & _ANSWER:
            return number, answer


def _frame(connection: socket.socket) -> tuple[int, int, Answer]:
    (length,) = struct.unpack(">i", _exactly(connection, 4))
    frame = _exactly(connection, length)
    (marked,) = struct.unpack_from(">I", frame)
    end = 4 + (marked & 0xFFFFFF)
    head, body = frame[4:end], frame[end:]
    if marked >> 24:
        return _binary_answer(head, body)
    header = json.loads(head)
    answer = Answer(header["code"], header.get("remark") or "", header.get("extFields") or {}, body)
    return header["flag"], header["opaque"], answer


def _binary_answer(head: bytes, body: bytes) -> tuple[int, int, Answer]:
    code, _language, _version, opaque, flag, size = struct.unpack_from(">HBHIII", head)
    place = 17 + size
    remark = head[17:place].decode()
    (left,) = struct.unpack_from(">I", head, place)
    fields, place = {}, place + 4
    end = place + left
    while place < end:
        (size,) = struct.unpack_from(">H", head, place)
        name, place = head[place + 2 : place + 2 + size].decode(), place + 2 + size
        (size,) = struct.unpack_from(">I", head, place)
        fields[name], place = head[place + 4 : place + 4 + size].decode(), place + 4 + size
    return flag, opaque, Answer(code, remark, fields, body)


def ask(
    address: str,
    frames: Iterable[Frame],
    *,
    source: str = "127.0.0.1",
    window: int = WINDOW,
    timeout: float = 60.0,
) -> list[Answer]:
    """The answers to all of them, in the order of the requests; one that found a server too busy is asked again."""
    host, port = address.rsplit(":", 1)
    requests = dict(enumerate(frames, 1))
    waiting = deque(requests)
    asked: set[int] = set()
    found: dict[int, Answer] = {}
    deadline = time.monotonic() + timeout
    with socket.create_connection((host, int(port)), timeout, (source, 0)) as connection:
        while len(found) < len(requests):
            while waiting and len(asked) < window:
                asked.add(number := waiting.popleft())
                connection.sendall(requests[number].encoded(number))
            number, answer = _read(connection)
            asked.remove(number)
            if answer.code == BUSY and time.monotonic() < deadline:
                waiting.append(number)
            else:
                found[number] = answer
    return [found[number] for number in requests]


def one(address: str, frame: Frame, **options: Any) -> Answer:
    (answer,) = ask(address, [frame], **options)
    return answer


def refused(answer: Answer) -> bool:
    """Did the server's access control say no? Handlers use code 16 too, for users and policies that are not there."""
    return answer.code == 16 and any(words in answer.remark for words in REFUSALS)


REFUSALS: Sequence[str] = (
    "username cannot be null",
    "is not found.",
    "is disabled.",
    "check signature failed",
    "has no permission to access",
    "has no permission to send request",
    "is not allowed from",
    "needs its client certificate",
    "Authorization failed",
    "parse authorization context error",
)
