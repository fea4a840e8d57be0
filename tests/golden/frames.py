"""Recorded exchanges of Apache's own programs (frames.jsonl), ready to use."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.frames import Frame, FrameReader
from gimbalmq.protocol.serializers import decode_command

FILE = Path(__file__).with_name("frames.jsonl")


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request, and its answer where there is one on record.

    Attributes:
        line: of the file, from 1.
        peers: who recorded it, with version and header encoding.
    """

    line: int
    peers: str
    sender: str
    receiver: str
    code: int
    request: bytes
    response: bytes | None

    def __str__(self) -> str:
        return f"line{self.line}-{self.sender}-{self.receiver}-{self.code}"


@cache
def exchanges() -> tuple[Exchange, ...]:
    found = []
    for number, line in enumerate(FILE.read_text().splitlines(), 1):
        raw = json.loads(line)
        response = raw.get("response")
        found.append(
            Exchange(
                number,
                raw["peers"],
                raw["from"],
                raw["to"],
                raw["code"],
                bytes.fromhex(raw["request"]),
                None if response is None else bytes.fromhex(response),
            )
        )
    return tuple(found)


def one_frame(data: bytes) -> Frame:
    """The only frame of some bytes."""
    (frame,) = FrameReader().feed(data)
    return frame


def decode(data: bytes) -> RemotingCommand:
    return decode_command(*one_frame(data))
