"""Queue locks of the broker, and the handover that is built on them.

A broker grants a queue to one client id of a group at a time, for 60 s after each request (41), until it is
given back (42). Java uses that for ordered consumers only. With ``handover="lease"`` every kind of consumer
does: the loser of a queue finishes what it has begun, commits and waits for the answer, and gives the lock
back; the gainer begins with the lock in its hand and reads the offset after that. So on a planned change no
message is delivered twice, and no queue has two readers. It needs nothing of the broker that Apache's does
not have; members that do not use leases are not held back by them.

A lock alone does not stop anybody. So a member also keeps account of until when a lock is surely its own: three
seconds (``lease_margin``) from the moment its last successful renewal was sent. After that it begins and commits
nothing of the queue (it is *fenced*) until the lock is renewed. Nobody else begins the queue of a member that has
left without a word before it is missing at the queue's broker for five seconds (``lease_orphan_grace``). A member
that comes back later than that cannot know whether somebody did: it drops the queue, gives the lock back, and
asks for it like anybody else once whoever may have the queue has had the time to renew it.

Brokers keep locks in memory only. After a connection broke, which is how a restart looks from here, the locks
that were held are asked for at once, and for the length of the grace no others: their holders do the same.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from gimbalmq._clock import Clock
from gimbalmq.client.offsets import OffsetStore
from gimbalmq.client.process_queue import LOCK_LIVE_SECONDS, ProcessQueue
from gimbalmq.errors import RocketMQError
from gimbalmq.model.queues import MessageQueue, sort_queues

log = logging.getLogger(__name__)

BROKER_LOCK_SECONDS = 60.0
"""How long a broker keeps a lock that is not renewed."""
_COMMIT_TRIES = 3


class LockCalls(Protocol):
    """41 and 42 to the master of a broker; raise RocketMQError where there is none or no answer."""

    async def lock(self, broker_name: str, queues: Collection[MessageQueue]) -> set[MessageQueue]: ...

    async def take_over(
        self, broker_name: str, queues: Collection[MessageQueue]
    ) -> set[MessageQueue] | None: ...

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
        self._failing: set[str] = set()
        self._ours: set[MessageQueue] = set()
        self._calls = calls
        self._table = table
        self._clock = clock
        self._lost = lost

    async def lock(self, queue: MessageQueue) -> bool:
        """Asks for one queue; whether it is ours."""
        sent = self._clock.monotonic()
        try:
            granted = await self._calls.lock(queue.broker_name, [queue])
        except RocketMQError as error:
            log.warning("the lock of %s could not be asked for: %s", queue, error)
            return False
        self._note(granted, sent)
        return queue in granted

    def withheld(self, queue: MessageQueue) -> str | None:
        """Why a queue is not asked for now; None where it may be."""
        return None

    async def renew(self, only: str | None = None) -> None:
        """Asks for every held queue, one request per broker; those not granted count as not locked.

        Args:
            only: the queues of this broker.
        """
        brokers: dict[str, list[MessageQueue]] = {}
        for queue, item in self._table().items():
            if self._counts(item) and only in (None, queue.broker_name):
                brokers.setdefault(queue.broker_name, []).append(queue)
        await asyncio.gather(*(self._renew(name, queues) for name, queues in brokers.items()))

    def _counts(self, item: ProcessQueue) -> bool:
        """Whether a queue needs its lock."""
        return not item.dropped

    async def _renew(self, broker_name: str, queues: list[MessageQueue]) -> None:
        sent = self._clock.monotonic()
        try:
            granted = await self._calls.lock(broker_name, queues)
        except RocketMQError as error:
            level = logging.DEBUG if broker_name in self._failing else logging.WARNING
            log.log(level, "locks at %s could not be renewed: %s", broker_name, error)
            self._failing.add(broker_name)
            self._check_age(queues)
            return
        self._failing.discard(broker_name)
        self._note(granted, sent)
        table = self._table()
        for queue in queues:
            item = table.get(queue)
            if item is not None and queue not in granted:
                self._refused(item, sent)

    def _refused(self, item: ProcessQueue, sent: float) -> None:
        had = item.locked
        item.locked = False
        log.warning("the broker has not renewed the lock of %s", item.queue)
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
                self._expired(item)

    def _expired(self, item: ProcessQueue) -> None:
        item.locked = False
        if self._lost is not None:
            self._lost(item)

    def _note(self, granted: Collection[MessageQueue], sent: float) -> None:
        table = self._table()
        for queue in granted:
            self._ours.add(queue)
            item = table.get(queue)
            if item is not None:
                self._granted(item, sent)

    def _granted(self, item: ProcessQueue, sent: float) -> None:
        item.locked = True
        item.overridden = False
        if sent > item.last_lock:
            item.last_lock = sent

    async def unlock(self, queue: MessageQueue, *, wait: bool = False) -> None:
        self._ours.discard(queue)
        try:
            await self._calls.unlock(queue.broker_name, [queue], wait=wait)
        except RocketMQError as error:
            log.warning("%s could not be unlocked, its lock ends by itself within 60 s: %s", queue, error)

    async def unlock_all(self, *, wait: bool = False) -> None:
        """Gives every lock back, those of queues that were not begun too; one request per broker."""
        brokers: dict[str, list[MessageQueue]] = {}
        for item in self._table().values():
            item.locked = False
        for queue in sort_queues({*self._table(), *self._ours}):
            brokers.setdefault(queue.broker_name, []).append(queue)
        self._ours.clear()
        for name, queues in brokers.items():
            try:
                await self._calls.unlock(name, queues, wait=wait)
            except RocketMQError as error:
                log.warning("locks at %s could not be given back, they end within 60 s: %s", name, error)


class LeaseHost(Protocol):
    """Who is told what becomes of leases."""

    def lease_lost(self, item: ProcessQueue) -> None:
        """The lock is somebody else's, or may have been: drop the queue, commit nothing."""

    def lease_fenced(self, item: ProcessQueue, reason: str) -> None:
        """Nothing of the queue may be begun or committed for now."""

    def lease_confirmed(self, item: ProcessQueue, seconds: float) -> None:
        """A fenced queue's lock was ours all the time: go on."""


class Leases(QueueLocks):
    """The locks of a consumer that hands queues over by lease.

    Args:
        margin: seconds after a successful renewal was sent that the lock is surely ours.
        grace: seconds after its holder has gone that somebody else may begin a queue.
    """

    def __init__(
        self,
        calls: LockCalls,
        table: Callable[[], Mapping[MessageQueue, ProcessQueue]],
        clock: Clock,
        host: LeaseHost,
        live: float,
        *,
        margin: float,
        grace: float,
    ) -> None:
        super().__init__(calls, table, clock, host.lease_lost, live)
        self._host = host
        self._margin = margin
        self._grace = grace
        self._back_at: dict[str, float] = {}
        self._unreleased: dict[MessageQueue, float] = {}

    # -- asking ----------------------------------------------------------------------

    def withheld(self, queue: MessageQueue) -> str | None:
        now = self._clock.monotonic()
        if now < self._unreleased.get(queue, 0.0):
            return "it was ours before; whoever may have it now is given time to renew its lock"
        if now < self._back_at.get(queue.broker_name, -math.inf) + self._grace:
            return "its broker may have been restarted and have forgotten whose it is"
        return None

    async def lock(self, queue: MessageQueue) -> bool:
        item = self._table().get(queue)
        if item is None or item.dropped:
            if self._unreleased.get(queue) == math.inf:
                await self._release(queue)
            if self.withheld(queue) is not None:
                return False
            self._unreleased.pop(queue, None)
        return await super().lock(queue)

    async def take_over(self, queue: MessageQueue) -> bool | None:
        """Asks for the lock of a member that is gone.

        Returns:
            Whether it is ours; False means that its holder is there, None that the broker knows no such thing.
        """
        sent = self._clock.monotonic()
        try:
            granted = await self._calls.take_over(queue.broker_name, [queue])
        except RocketMQError as error:
            log.debug("the lock of %s could not be taken over: %s", queue, error)
            return False
        if granted is None:
            return None
        self._note(granted, sent)
        return queue in granted

    async def _release(self, queue: MessageQueue) -> None:
        """Gives back the lock of a queue that was dropped without a word."""
        try:
            await self._calls.unlock(queue.broker_name, [queue], wait=True)
        except RocketMQError as error:
            log.warning("the old lock of %s could not be given back: %s", queue, error)
        else:
            self._unreleased[queue] = self._clock.monotonic() + self._margin

    def _counts(self, item: ProcessQueue) -> bool:
        return not item.dropped and item.holds_until < math.inf  # the others were assigned by hand

    def _granted(self, item: ProcessQueue, sent: float) -> None:
        if self._in_time(item):
            self._confirm(item, sent)
            super()._granted(item, sent)

    def _refused(self, item: ProcessQueue, sent: float) -> None:
        if not item.overridden or sent > item.override_ends:
            super()._refused(item, sent)
        elif self._in_time(item):
            # The lock of a member that is gone, which ends by itself; the broker knows us, and so do the others.
            self._confirm(item, sent)

    def _in_time(self, item: ProcessQueue) -> bool:
        """Whether nobody else can have begun the queue since its last renewal; if not, it is dropped."""
        if not item.dropped and self._clock.monotonic() - item.last_lock >= self._grace:
            self.abandon(item)
            return False
        return True

    def _confirm(self, item: ProcessQueue, sent: float) -> None:
        now = self._clock.monotonic()
        if now > item.holds_until:
            self._announce_fence(item, now)  # where nobody has looked since
        doubt = now - item.last_lock
        item.last_lock = max(item.last_lock, sent)
        item.holds_until = max(item.holds_until, sent + self._margin)
        if item.fenced and now <= item.holds_until:
            item.fenced = False
            self._host.lease_confirmed(item, doubt)

    def _expired(self, item: ProcessQueue) -> None:
        self.abandon(item)

    def abandon(self, item: ProcessQueue) -> None:
        """Drops a queue whose lock may be in our name at the broker while another is at work on it."""
        item.locked = False
        self._unreleased[item.queue] = math.inf
        self._host.lease_lost(item)

    # -- fencing ---------------------------------------------------------------------

    def check(self) -> None:
        """Says which queues' locks have not been renewed in time."""
        now = self._clock.monotonic()
        for item in list(self._table().values()):
            if now > item.holds_until and not item.dropped:
                self._announce_fence(item, now)

    def _announce_fence(self, item: ProcessQueue, now: float) -> None:
        if not item.fenced:
            self._fence(item, f"its lock was not renewed for {now - item.last_lock:.1f} s")

    def _fence(self, item: ProcessQueue, reason: str) -> None:
        item.fenced = True
        item.holds_until = -math.inf
        self._host.lease_fenced(item, reason)

    def connection_lost(self, broker_name: str) -> None:
        """The broker may have been restarted: what is held counts only once it is granted again."""
        self._back_at[broker_name] = math.inf
        for queue, item in list(self._table().items()):
            if queue.broker_name == broker_name and self._counts(item) and not item.fenced:
                self._fence(item, "the connection to its broker broke")

    async def connection_back(self, broker_name: str) -> None:
        if broker_name in self._back_at:
            self._back_at[broker_name] = self._clock.monotonic()
        await self.renew(broker_name)


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
