"""Queue locks of ordered consumers (Java: RebalanceLockManager).

A lock lives in memory, belongs to a client id and dies 60 s after its last renewal. Clients of this library may
ask for the lock of one that is no member of the group any more; Java's never do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from gimbalmq._clock import Clock
from gimbalmq.broker.config import BrokerConfig, LiveConfig
from gimbalmq.model.queues import MessageQueue

log = logging.getLogger(__name__)

LOCK_SECONDS = 60.0


class QueueLocks:
    def __init__(
        self, clock: Clock, live_seconds: float = LOCK_SECONDS, live: LiveConfig | None = None
    ) -> None:
        self._clock = clock
        self._began = clock.monotonic()
        self._live_seconds = live_seconds
        self._live = live or LiveConfig(BrokerConfig())
        self._is_full = False
        self._held: dict[str, dict[MessageQueue, tuple[str, float]]] = {}
        self._by_age: dict[tuple[str, MessageQueue], float] = {}
        """When each was last renewed; the one that was renewed last stands last."""

    def __len__(self) -> int:
        return len(self._by_age)

    @property
    def forgotten_seconds(self) -> float | None:
        """How long ago all locks were forgotten, by a restart; None once the last of them would have ended."""
        seconds = self._clock.monotonic() - self._began
        return seconds if seconds <= self._live_seconds else None

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
        held = self._held.get(group, {})
        granted = []
        for queue in queues:
            owner = held.get(queue)
            if owner is None and not self._has_room():
                continue
            if (
                owner is None
                or owner[0] == client_id
                or now - owner[1] > self._live_seconds
                or gone(owner[0])
            ):
                held[queue] = (client_id, now)
                self._by_age.pop((group, queue), None)
                self._by_age[group, queue] = now
                granted.append(queue)
        if held:
            self._held[group] = held
        return granted

    def _has_room(self) -> bool:
        most = self._live.now.max_queue_locks
        if len(self._by_age) < most:
            self._is_full = False
        elif not self._is_full:
            self._is_full = True
            log.warning("%d queues are locked, and no more will be: raise maxQueueLocks", most)
        return not self._is_full

    def expire(self) -> None:
        """Forgets locks that were not renewed in time."""
        now = self._clock.monotonic()
        dead = []
        for place, since in self._by_age.items():
            if now - since <= self._live_seconds:
                break
            dead.append(place)
        for group, queue in dead:
            self._drop(group, queue)

    def _drop(self, group: str, queue: MessageQueue) -> None:
        held = self._held[group]
        del held[queue], self._by_age[group, queue]
        if not held:
            del self._held[group]

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        held = self._held.get(group, {})
        for queue in queues:
            owner = held.get(queue)
            if owner is not None and owner[0] == client_id:
                self._drop(group, queue)

    def any_locked(self, group: str) -> bool:
        """True while an ordered consumer of the group is alive."""
        now = self._clock.monotonic()
        return any(now - since <= self._live_seconds for _, since in self._held.get(group, {}).values())

    def forget_all(self) -> None:
        """As after a restart: somebody else gives locks from now on, or we do again."""
        self._held.clear()
        self._by_age.clear()
        self._began = self._clock.monotonic()

    def forget(self, group: str) -> None:
        for queue in list(self._held.get(group, ())):
            self._drop(group, queue)
