"""Queue locks of ordered consumers (Java: RebalanceLockManager).

A lock lives in memory, belongs to a client id and dies 60 s after its last renewal. Clients of this library may
ask for the lock of one that is no member of the group any more; Java's never do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gimbalmq._clock import Clock
from gimbalmq.model.queues import MessageQueue

LOCK_SECONDS = 60.0


class QueueLocks:
    def __init__(self, clock: Clock, live_seconds: float = LOCK_SECONDS) -> None:
        self._clock = clock
        self._live_seconds = live_seconds
        self._held: dict[str, dict[MessageQueue, tuple[str, float]]] = {}

    def lock(
        self,
        group: str,
        client_id: str,
        queues: Iterable[MessageQueue],
        gone: Callable[[str], bool] = lambda owner: False,
    ) -> list[MessageQueue]:
        """Takes or renews what it can; returns the queues the client holds now.

        Args:
            gone: whether a client's lock may be taken over.
        """
        now = self._clock.monotonic()
        held = self._held.setdefault(group, {})
        granted = []
        for queue in queues:
            owner = held.get(queue)
            if (
                owner is None
                or owner[0] == client_id
                or now - owner[1] > self._live_seconds
                or gone(owner[0])
            ):
                held[queue] = (client_id, now)
                granted.append(queue)
        return granted

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        held = self._held.get(group, {})
        for queue in queues:
            owner = held.get(queue)
            if owner is not None and owner[0] == client_id:
                del held[queue]
        if not held:
            self._held.pop(group, None)

    def any_locked(self, group: str) -> bool:
        """True while an ordered consumer of the group is alive."""
        now = self._clock.monotonic()
        return any(now - since <= self._live_seconds for _, since in self._held.get(group, {}).values())

    def forget(self, group: str) -> None:
        self._held.pop(group, None)
