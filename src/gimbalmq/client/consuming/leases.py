"""Handover by lease, built on the broker's queue locks.

With ``handover="lease"`` the loser of a queue finishes what it has begun, commits and waits for the answer, and
gives the lock back; the gainer begins with the lock in its hand and reads the offset after that. So on a planned
change no message is delivered twice, and no queue has two readers. It needs nothing of the broker that Apache's
does not have; members that do not use leases are not held back by them.

A lock alone does not stop anybody. So a member also keeps account of until when a lock is surely its own: three
seconds (``lease_margin``) from the moment its last successful renewal was sent. After that it begins and commits
nothing of the queue (it is *fenced*) until the lock is renewed. Nobody else begins the queue of a member that has
left without a word before it is missing at the queue's broker for five seconds (``lease_orphan_grace``). A member
that comes back later than that cannot know whether somebody did: it drops the queue, gives the lock back, and
asks for it like anybody else once whoever may have the queue has had the time to renew it.
"""

from __future__ import annotations

import asyncio
import logging

from gimbalmq.client import events
from gimbalmq.client.consuming.ground import Ground
from gimbalmq.client.consuming.held_queue import GIVEN_UP, HeldQueue
from gimbalmq.client.consuming.holdings import Holdings
from gimbalmq.client.consuming.locks import by_broker

log = logging.getLogger(__name__)


class Leases:
    """Renews the leases of a consumer's queues, fences those in doubt, and drops those that are lost."""

    def __init__(self, ground: Ground, holdings: Holdings) -> None:
        assert ground.locks is not None, "leases are built on locks"
        self._clock = ground.clock
        self._config = ground.config
        self._locks = ground.locks
        self._events = ground.events
        self._wakes = ground.wakes
        self._holdings = holdings

    def _held(self, broker_name: str | None = None) -> list[HeldQueue]:
        """Queues held by lease, also those that are being given up; those assigned by hand are not."""
        return [
            item
            for item in self._holdings.all()
            if item.leased and broker_name in (None, item.queue.broker_name)
        ]

    # -- renewing --------------------------------------------------------------------

    async def renew(self, only: str | None = None) -> None:
        """Asks for every leased queue, one request per broker.

        Args:
            only: the queues of this broker.
        """
        held = [item for item in self._held(only) if not self._locks.is_returning(item.queue)]
        await asyncio.gather(*(self._renew(name, part) for name, part in by_broker(held).items()))

    async def _renew(self, broker_name: str, held: list[HeldQueue]) -> None:
        sent = self._clock.monotonic()
        granted = await self._locks.ask_again(broker_name, [item.queue for item in held])
        for item in held:
            if item.state is GIVEN_UP:
                continue
            if granted is None:
                self._unanswered(item)
            elif item.queue in granted:
                self._granted(item, sent)
            else:
                self._refused(item, sent)

    def _granted(self, item: HeldQueue, sent: float) -> None:
        if self._in_time(item):
            self._confirm(item, sent)
            item.lock_granted(sent)

    def _refused(self, item: HeldQueue, sent: float) -> None:
        if not item.overridden or sent > item.override_ends:
            had = item.locked
            item.lock_refused()
            log.warning("the broker has not renewed the lock of %s", item.queue)
            if had or item.overridden:
                self.lose(item)
        elif self._in_time(item):
            # The lock of a member that is gone, which ends by itself; the broker knows us, and so do the others.
            self._confirm(item, sent)

    def _unanswered(self, item: HeldQueue) -> None:
        """A lock nobody has renewed for long: the broker may soon give it to another."""
        ours = item.locked or item.overridden
        if ours and item.lock_expired(self._clock.monotonic(), self._config.lock_live):
            self.lose(item)

    def _in_time(self, item: HeldQueue) -> bool:
        """Whether nobody else can have begun the queue since its last renewal; if not, it is dropped."""
        if self._clock.monotonic() - item.last_lock >= self._locks.grace:
            self.lose(item)
            return False
        return True

    def _confirm(self, item: HeldQueue, sent: float) -> None:
        now = self._clock.monotonic()
        if now > item.holds_until:
            self._say_fenced(item, now)  # nobody has looked since
        was_fenced, doubt = item.fenced, now - item.last_lock
        item.lease(sent, sent + self._locks.margin)
        if was_fenced and not item.fenced:
            log.info("the lease of %s is confirmed after %.1f s; it goes on", item.queue, doubt)
            self._events.emit(
                events.LeaseConfirmed(group=self._config.group, queue=item.queue, seconds=doubt)
            )

    def lose(self, item: HeldQueue) -> None:
        """Drops a queue whose lock may be in our name at the broker while another is at work on it."""
        if item.dropped:
            self._holdings.abandon(item, "its lease was lost")
            return
        log.error(
            "the lease of %s is lost; it is dropped, and what runs will not be committed. Was this process "
            "stopped or cut off for long, or the broker restarted?",
            item.queue,
        )
        self._events.emit(events.LeaseLost(group=self._config.group, queue=item.queue))
        self._holdings.abandon(item, "its lease was lost")
        self._wakes.wake("a lease was lost")

    # -- fencing ---------------------------------------------------------------------

    def check(self) -> None:
        """Says which queues' locks have not been renewed in time."""
        now = self._clock.monotonic()
        for item in self._held():
            if now > item.holds_until:
                self._say_fenced(item, now)

    def _say_fenced(self, item: HeldQueue, now: float) -> None:
        if not item.fenced:
            self._fence(item, f"its lock was not renewed for {now - item.last_lock:.1f} s")

    def _fence(self, item: HeldQueue, reason: str) -> None:
        item.fence()
        log.warning("%s is fenced, nothing of it is begun or committed: %s", item.queue, reason)
        self._events.emit(events.LeaseFenced(group=self._config.group, queue=item.queue, reason=reason))

    def connection_lost(self, broker_name: str) -> None:
        """The broker may have been restarted: what is held counts only once it is granted again."""
        self._locks.connection_lost(broker_name)
        for item in self._held(broker_name):
            if not item.fenced:
                self._fence(item, "the connection to its broker broke")

    async def connection_back(self, broker_name: str) -> None:
        self._locks.connection_back(broker_name)
        await self.renew(broker_name)
