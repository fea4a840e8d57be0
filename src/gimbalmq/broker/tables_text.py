"""Large tables as JSON, in steps.

Answers about ten thousand topics or groups take longer than a loop may be held. Their tables are walked over and
encoded a few dozen rows at a time. A thread would not help, because it would hold the interpreter just as long.
"""

from __future__ import annotations

from collections.abc import Iterable

from gimbalmq._steps import Steps
from gimbalmq.protocol import fastjson

_ROWS = 64
"""Of some ten microseconds each."""


def json_object(rows: Iterable[tuple[str, object]], *, queue_keys: bool = False) -> Steps[bytes]:
    """``fastjson.dumps`` of a dict with these items.

    Args:
        rows: computed while it is walked over, a step at a time.
        queue_keys: as of ``fastjson.dumps``.
    """
    parts: list[bytes] = []
    chunk: dict[str, object] = {}
    for key, value in rows:
        chunk[key] = value
        if len(chunk) == _ROWS:
            parts.append(fastjson.dumps(chunk, queue_keys=queue_keys)[1:-1])
            chunk = {}
            yield
    if chunk:
        parts.append(fastjson.dumps(chunk, queue_keys=queue_keys)[1:-1])
        yield
    return b"{" + b",".join(parts) + b"}"
