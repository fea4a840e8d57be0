"""Long work on the loop, done in steps: after each, everybody else has a turn.

Answers about ten thousand topics or groups take longer than a loop may be held. Their tables are walked over and
encoded a few hundred rows at a time; a thread would not help, because it would hold the interpreter just as long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from gimbalmq.protocol import fastjson

STEP = 256
"""Pieces of work, of some ten microseconds each, between two turns of the others."""

_ENCODED = 64


class Steps:
    """Counts pieces of work."""

    def __init__(self, size: int = STEP) -> None:
        self._size = size
        self._done = 0

    async def did(self, pieces: int = 1) -> None:
        """So many pieces are done; others have a turn now if a step is full."""
        self._done += pieces
        if self._done >= self._size:
            self._done = 0
            await asyncio.sleep(0)


async def json_object(rows: Iterable[tuple[str, object]], steps: Steps) -> bytes:
    """``fastjson.dumps`` of a dict with these items, in steps.

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
            await steps.did(_ENCODED)
    if chunk:
        parts.append(fastjson.dumps(chunk)[1:-1])
        await steps.did(len(chunk))
    return b"{" + b",".join(parts) + b"}"
