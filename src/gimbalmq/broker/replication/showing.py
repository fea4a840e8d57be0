"""Queues that have grown by messages which are not confirmed yet: pulls that wait hear of them when they are."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from gimbalmq.store.consumequeue import QueueLog

_MOST = 4096


class Showing:
    """Holds back news of queues until the log is confirmed so far.

    Args:
        show: is given the queues that have more to read.
    """

    def __init__(self, show: Callable[[Iterable[QueueLog]], None]) -> None:
        self._show = show
        self._held: deque[tuple[int, set[QueueLog]]] = deque()

    def grown(self, queues: Iterable[QueueLog], end: int) -> None:
        """Queues have grown; what they have lies before ``end`` in the log."""
        held = self._held
        if len(held) >= _MOST:
            # Nothing has been confirmed for long. With one entry for all of them some pulls wait longer than need be.
            together = set().union(*(some for _, some in held))
            held.clear()
            held.append((end, together))
        held.append((end, set(queues)))

    def confirmed(self, offset: int) -> None:
        """Readers see the log up to ``offset``."""
        held = self._held
        if not held or held[0][0] > offset:
            return
        grown: set[QueueLog] = set()
        while held and held[0][0] <= offset:
            grown |= held.popleft()[1]
        self._show(grown)

    def forget(self) -> None:
        self._held.clear()
