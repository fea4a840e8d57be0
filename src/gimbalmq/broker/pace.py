"""Gives the event loop away now and then during a long coroutine.

Answers about ten thousand topics or groups take longer than a loop may be held. Their tables are walked over and
encoded a few hundred rows at a time. A thread would not help, because it would hold the interpreter just as long.
Work that is no coroutine is written as steps (``_steps``) and run by ``transport.turns``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from gimbalmq.protocol import fastjson

_STEP = 256
"""Pieces of work, of some ten microseconds each, between two turns of the others."""

_ENCODED = 64


class Pace:
    """Counts the pieces of work that a coroutine has done."""

    def __init__(self, size: int = _STEP) -> None:
        self._size = size
        self._done = 0

    async def did(self, pieces: int = 1) -> None:
        """Notes that so many pieces are done; others have a turn now if that makes a step."""
        self._done += pieces
        if self._done >= self._size:
            self._done = 0
            await asyncio.sleep(0)


async def json_object(rows: Iterable[tuple[str, object]], pace: Pace) -> bytes:
    """``fastjson.dumps`` of a dict with these items, a step at a time.

    Args:
        rows: computed while it is walked over, a step at a time.
    """
    parts: list[bytes] = []
    chunk: dict[str, object] = {}
    for key, value in rows:
        chunk[key] = value
        if len(chunk) == _ENCODED:
            parts.append(fastjson.dumps(chunk)[1:-1])
            chunk = {}
            await pace.did(_ENCODED)
    if chunk:
        parts.append(fastjson.dumps(chunk)[1:-1])
        await pace.did(len(chunk))
    return b"{" + b",".join(parts) + b"}"
