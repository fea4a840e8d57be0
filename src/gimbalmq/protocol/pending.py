"""Calls that wait for an answer: numbers out, answers matched, deadlines kept. No I/O.

Nearly every call of a connection has one of a few timeouts, and calls with equal timeouts
expire in the order they were made. So each timeout has its own queue and the earliest
deadline is always at the front of one of them: making, answering and expiring a call cost
no heap and no timer of their own.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

W = TypeVar("W")


class PendingCalls(Generic[W]):
    """Waiters by opaque, with deadlines; W is whatever the caller waits with."""

    __slots__ = ("_next_opaque", "_queues", "_waiters")

    def __init__(self) -> None:
        self._next_opaque = 0
        self._waiters: dict[int, W] = {}
        self._queues: dict[float, deque[tuple[float, int]]] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    def next_opaque(self) -> int:
        """A fresh number; 31 bits, so that it never turns negative on the wire."""
        opaque = self._next_opaque
        self._next_opaque = (opaque + 1) & 0x7FFFFFFF
        return opaque

    def add(self, opaque: int, waiter: W, now: float, timeout: float) -> None:
        waiters = self._waiters
        waiters[opaque] = waiter
        queue = self._queues.get(timeout)
        if queue is None:
            queue = self._queues[timeout] = deque()
        # Answered calls leave from the front, two for each that comes: no queue outgrows its waiters
        # for long, however large the timeout.
        elif queue and queue[0][1] not in waiters:
            queue.popleft()
            if queue and queue[0][1] not in waiters:
                queue.popleft()
        queue.append((now + timeout, opaque))

    def take(self, opaque: int) -> W | None:
        """The waiter an answer belongs to; None if nobody waits (any more)."""
        return self._waiters.pop(opaque, None)

    def next_deadline(self) -> float | None:
        """When ``expire`` should be called next; None while nothing waits."""
        earliest: float | None = None
        for timeout in list(self._queues):
            queue = self._queues[timeout]
            while queue and queue[0][1] not in self._waiters:
                queue.popleft()
            if not queue:
                del self._queues[timeout]
            elif earliest is None or queue[0][0] < earliest:
                earliest = queue[0][0]
        return earliest

    def expire(self, now: float) -> list[W]:
        """Takes out every waiter whose deadline has come."""
        expired: list[W] = []
        for queue in self._queues.values():
            while queue and queue[0][0] <= now:
                waiter = self._waiters.pop(queue.popleft()[1], None)
                if waiter is not None:
                    expired.append(waiter)
        return expired

    def drain(self) -> list[W]:
        """Takes out everything, for a connection that is gone."""
        waiters = list(self._waiters.values())
        self._waiters.clear()
        self._queues.clear()
        return waiters
