"""What a command and the brokers that it has started say to each other, in frames on the brokers' stdin and stdout.

The broker is given its configuration, and then numbers, each of which asks for its metrics. It says that it is ready,
or why it is not, and answers with metrics. The end of its stdin tells it that the command is gone.
"""

from __future__ import annotations

import asyncio
import os
import struct
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gimbalmq.access.config import Credentials
from gimbalmq.broker.config import BrokerConfig
from gimbalmq.broker.metrics_page import Family

_LENGTH = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Birth:
    """All that a broker is told; it is pickled, because the configuration has secrets that no command line may show.

    Attributes:
        of_the_run: what all servers of the command sign their calls with, unless the configuration says otherwise.
    """

    config: BrokerConfig
    of_the_run: Credentials
    log_level: str
    log_file: Path | None
    debug: bool


class Ready(msgspec.Struct, tag=True, frozen=True):
    """The broker serves."""

    line: str
    port: int


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The broker could not start, and ends.

    Attributes:
        code: the exit code that this error has.
    """

    text: str
    code: int


class Metrics(msgspec.Struct, tag=True, frozen=True):
    """The answer to a number."""

    number: int
    families: list[Family]


Said = Ready | Failed | Metrics
"""What brokers say."""

encode = msgspec.json.encode
decode = msgspec.json.Decoder(Said).decode


def frame(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def write_frame(descriptor: int, data: bytes) -> None:
    """Returns when the pipe has all of it; raises OSError if nobody reads it any more."""
    rest = memoryview(frame(data))
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def read_frame(descriptor: int) -> bytes | None:
    """The next frame; None at the end of the pipe."""
    head = _read_exactly(descriptor, _LENGTH.size)
    return None if head is None else _read_exactly(descriptor, _LENGTH.unpack(head)[0])


def _read_exactly(descriptor: int, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        more = os.read(descriptor, size - len(data))
        if not more:
            return None
        data += more
    return data


async def next_frame(reader: asyncio.StreamReader) -> bytes | None:
    """The same without waiting in place."""
    try:
        head = await reader.readexactly(_LENGTH.size)
        return await reader.readexactly(_LENGTH.unpack(head)[0])
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
