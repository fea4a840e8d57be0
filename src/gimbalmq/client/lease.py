"""Queue locks of the broker, and the handover that is built on them.

A broker grants a queue to one client id of a group at a time, for 60 s after each request (41), until it is
given back (42). Java uses that for ordered consumers only. With ``handover="lease"`` every kind of consumer
does: the loser of a queue finishes what it has begun, commits and waits for the answer, and gives the lock
back; the gainer begins with the lock in its hand and reads the offset after that. So on a planned change no
message is delivered twice, and no queue has two readers. It needs nothing of the broker that Apache's does
not have; members that do not use leases are not held back by them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from gimbalmq._clock import Clock
from gimbalmq.client.offsets import OffsetStore
from gimbalmq.client.process_queue import LOCK_LIVE_SECONDS, ProcessQueue
from gimbalmq.errors import RocketMQError
from gimbalmq.model.queues import MessageQueue

log = logging.getLogger(__name__)

_COMMIT_TRIES = 3


class LockCalls(Protocol):
    """41 and 42 to the master of a broker; raise RocketMQError where there is none or no answer."""

    async def lock(self, broker_name: str, queues: Collection[MessageQueue]) -> set[MessageQueue]: ...

    async def unlock(self, broker_name: str, queues: Collection[MessageQueue], *, wait: bool) -> None: ...


class QueueLocks:
    """The locks of one consumer's queues.

    Args:
        table: the consumer's process queues.
        lost: told of a held queue that the broker has given to another, or may do soon.
        live: seconds after its last renewal that a lock counts.
    """

    def __init__(
        self,
        calls: LockCalls,
        table: Callable[[], Mapping[MessageQueue, ProcessQueue]],
        clock: Clock,
        lost: Callable[[ProcessQueue], None] | None = None,
        live: float = LOCK_LIVE_SECONDS,
    ) -> None:
        self._live = live
        self._calls = calls
        self._table = table
        self._clock = clock
        self._lost = lost

    async def lock(self, queue: MessageQueue) -> bool:
        """Asks for one queue; whether it is ours."""
        try:
            granted = await self._calls.lock(queue.broker_name, [queue])
        except RocketMQError as error:
            log.warning("the lock of %s could not be asked for: %s", queue, error)
            return False
        self._note(granted)
        return queue in granted

    async def renew(self) -> None:
        """Asks for every held queue, one request per broker; those not granted count as not locked."""
        brokers: dict[str, list[MessageQueue]] = {}
        for queue, item in self._table().items():
            if not item.dropped:
                brokers.setdefault(queue.broker_name, []).append(queue)
        await asyncio.gather(*(self._renew(name, queues) for name, queues in brokers.items()))

    async def _renew(self, broker_name: str, queues: list[MessageQueue]) -> None:
        try:
            granted = await self._calls.lock(broker_name, queues)
        except RocketMQError as error:
            log.warning("locks at %s could not be renewed: %s", broker_name, error)
            self._check_age(queues)
            return
        self._note(granted)
        table = self._table()
        for queue in queues:
            item = table.get(queue)
            if item is not None and queue not in granted and item.overridden:
                item.last_lock = (
                    self._clock.monotonic()
                )  # the lock of a member that is gone; it ends by itself
            elif item is not None and queue not in granted:
                had = item.locked
                item.locked = False
                log.warning("the broker has not renewed the lock of %s", queue)
                if had and self._lost is not None:
                    self._lost(item)

    def _check_age(self, queues: list[MessageQueue]) -> None:
        """Locks nobody has renewed for long: the broker may soon give them to others."""
        now = self._clock.monotonic()
        for queue in queues:
            item = self._table().get(queue)
            if (
                item is not None
                and item.locked
                and item.lock_expired(now, self._live)
                and self._lost is not None
            ):
                item.locked = False
                self._lost(item)

    def _note(self, granted: Collection[MessageQueue]) -> None:
        table = self._table()
        now = self._clock.monotonic()
        for queue in granted:
            item = table.get(queue)
            if item is not None:
                item.locked = True
                item.overridden = False
                item.last_lock = now

    async def unlock(self, queue: MessageQueue, *, wait: bool = False) -> None:
        try:
            await self._calls.unlock(queue.broker_name, [queue], wait=wait)
        except RocketMQError as error:
            log.warning("%s could not be unlocked, its lock ends by itself within 60 s: %s", queue, error)

    async def unlock_all(self, *, wait: bool = False) -> None:
        """Gives every lock back, one request per broker."""
        brokers: dict[str, list[MessageQueue]] = {}
        for queue, item in self._table().items():
            item.locked = False
            brokers.setdefault(queue.broker_name, []).append(queue)
        for name, queues in brokers.items():
            try:
                await self._calls.unlock(name, queues, wait=wait)
            except RocketMQError as error:
                log.warning("locks at %s could not be given back, they end within 60 s: %s", name, error)


async def hand_over(item: ProcessQueue, offsets: OffsetStore, locks: QueueLocks) -> int | None:
    """Finishes, commits and releases a queue that is draining.

    Returns:
        The committed offset, None where there was no progress.
    """
    assert item.draining, "only a queue that begins nothing new can be handed over"
    await item.quiet()
    queue = item.queue
    for attempt in range(_COMMIT_TRIES):
        try:
            await offsets.persist(queue, wait=True)
            break
        except RocketMQError as error:
            log.warning("the offset of %s could not be committed before its handover: %s", queue, error)
            if attempt + 1 < _COMMIT_TRIES:
                await asyncio.sleep(0.1 * 2**attempt)
    offset = offsets.remembered(queue)
    item.dropped = True
    offsets.forget(queue)
    await locks.unlock(queue, wait=True)
    item.locked = False
    return offset
