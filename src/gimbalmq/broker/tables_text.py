"""Large tables as JSON, in steps.

Answers about ten thousand topics or groups take longer than a loop may be held. Their tables are walked over and
encoded a few dozen rows at a time. A thread would not help, because it would hold the interpreter just as long.
"""

from __future__ import annotations

from collections.abc import Iterable

from gimbalmq._steps import Steps
from gimbalmq.errors import ResponseError
from gimbalmq.protocol import fastjson
from gimbalmq.protocol.frames import MAX_FRAME_BYTES

_ROWS = 64
"""Of some ten microseconds each."""


def json_object(rows: Iterable[tuple[str, object]], *, queue_keys: bool = False) -> Steps[bytes]:
    """``fastjson.dumps`` of a dict with these items.

    Args:
        rows: computed while it is walked over, a step at a time.
        queue_keys: as of ``fastjson.dumps``.

    Raises:
        ResponseError: the table is too large for an answer.
    """
    parts = Parts()
    chunk: dict[str, object] = {}
    for key, value in rows:
        chunk[key] = value
        if len(chunk) == _ROWS:
            parts.add(fastjson.dumps(chunk, queue_keys=queue_keys)[1:-1])
            chunk = {}
            yield
    if chunk:
        parts.add(fastjson.dumps(chunk, queue_keys=queue_keys)[1:-1])
        yield
    return parts.joined(b"{", b"}")


class Parts:
    """Rows of an answer; whoever gathers more than any peer can be sent is stopped before they fill the memory."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, part: bytes) -> None:
        """Raises ResponseError if all of them together are too large for an answer."""
        self._size += len(part)
        if self._size > MAX_FRAME_BYTES:
            raise ResponseError(
                f"the answer would be larger than the largest frame, {MAX_FRAME_BYTES} bytes: "
                "ask for one topic or group at a time"
            )
        self._parts.append(part)

    def joined(self, before: bytes = b"", after: bytes = b"") -> bytes:
        """All of them with commas between."""
        return b"".join((before, b",".join(self._parts), after)) if self._parts else before + after
