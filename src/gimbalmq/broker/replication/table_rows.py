"""Tables out of a master's answers, in steps: ten thousand rows must not hold the loop.

Apache writes numbers as bare keys (``{0:5}``). In tables of offsets these are quoted piece by piece first. Whatever is
stranger goes to the tolerant reader, in a thread.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, TypeVar

import msgspec

from gimbalmq._steps import Steps
from gimbalmq.broker.pairs import Pairs
from gimbalmq.errors import RemoteProtocolError
from gimbalmq.protocol import fastjson
from gimbalmq.protocol.bodies import Body, DataVersion
from gimbalmq.transport.turns import Turns

T = TypeVar("T", bound=Body)

Parts = dict[str, msgspec.Raw]
Offsets = dict[tuple[str, str], dict[int, int]]

_read_parts = msgspec.json.Decoder(Parts).decode
_read_numbers = msgspec.json.Decoder(dict[int, int], strict=False).decode

_AT_ONCE = 32
_PIECE_BYTES = 32 * 1024
_BARE_NUMBER = re.compile(rb"(?<=[{,])(-?\d+)(?=:)")
"""Names of topics and groups have no braces, commas or colons in them."""


async def parts_of(body: bytes | bytearray | memoryview, turns: Turns) -> Parts:
    """The parts of an answer that is a JSON object, each not read yet.

    Raises:
        RemoteProtocolError: it is none.
    """
    text = bytes(body)
    if not fastjson.has_references(text):
        try:
            return _read_parts(text)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            pass
        try:
            return _read_parts(await turns.run(_quoted(text)))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            pass
    return await asyncio.to_thread(_tolerantly, text)


def _tolerantly(text: bytes) -> Parts:
    found = fastjson.loads(text, limit=None)
    if not isinstance(found, dict):
        raise RemoteProtocolError("the answer is no JSON object")
    return {str(key): msgspec.Raw(fastjson.dumps(value)) for key, value in found.items()}


def _quoted(text: bytes) -> Steps[bytes]:
    pieces: list[bytes] = []
    start = 0
    while start < len(text):
        # A piece ends behind a row, so that no number is cut in two, or from what stands before it.
        end = text.find(b"}", start + _PIECE_BYTES) + 1 or len(text)
        pieces.append(_BARE_NUMBER.sub(rb'"\1"', text[start:end]))
        start = end
        yield
    return b"".join(pieces)


def version_in(parts: Parts) -> DataVersion | None:
    """The table's version; None if the master has told none, as 4.9 does for offsets."""
    raw = parts.get("dataVersion")
    return None if raw is None else DataVersion.parse(bytes(raw))


def names_in(parts: Parts, key: str) -> list[str]:
    raw = parts.get(key)
    return [] if raw is None else msgspec.json.decode(raw, type=list[str])


def _rows(parts: Parts, key: str) -> Parts:
    raw = parts.get(key)
    try:
        return {} if raw is None else _read_parts(raw)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"{key} is no table: {error}") from error


def rows_in(parts: Parts, key: str, kind: type[T]) -> Steps[dict[str, T]]:
    """The rows of one table, by name."""
    found: dict[str, T] = {}
    for number, (name, raw) in enumerate(_rows(parts, key).items(), 1):
        found[name] = kind.parse(bytes(raw))
        if number % _AT_ONCE == 0:
            yield
    return found


def masks_in(parts: Parts, key: str) -> Steps[dict[str, dict[str, int]]]:
    """Numbers by two names, as of the topics that groups may not read."""
    found: dict[str, dict[str, int]] = {}
    for number, (name, raw) in enumerate(_rows(parts, key).items(), 1):
        found[name] = _convert(raw, dict[str, int])
        if number % _AT_ONCE == 0:
            yield
    return found


def offsets_in(parts: Parts) -> Steps[Offsets]:
    """Offsets by topic and group, then by queue; if only changes came, an empty row is one that is gone."""
    found: Offsets = {}
    for number, (key, raw) in enumerate(_rows(parts, "offsetTable").items(), 1):
        topic, _, group = key.partition("@")
        try:
            found[topic, group] = _read_numbers(raw)
        except msgspec.MsgspecError as error:
            raise RemoteProtocolError(f"the offsets of {key[:100]} are no numbers: {error}") from error
        if number % _AT_ONCE == 0:
            yield
    return found


def pairs_of(offsets: Offsets) -> Steps[Pairs]:
    """The same as a table of the broker's own."""
    pairs = Pairs()
    for number, ((topic, group), numbers) in enumerate(offsets.items(), 1):
        if numbers:
            pairs.put_all(topic, group, numbers)
        if number % _AT_ONCE == 0:
            yield
    return pairs


def _convert(raw: msgspec.Raw, kind: Any) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind, strict=False)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"a row of the table is wrong: {error}") from error
