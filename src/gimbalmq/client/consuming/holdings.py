"""The queues a member has, and the ways in and out.

``take`` is the way in. A queue goes by ``let_go`` (a round says that it is another's; ``give_up`` or ``hand_over``
follow), by ``discard`` (its offset was illegal, or set anew) or by ``abandon`` (it may be another's already). All of
them end in ``_remove``: the queue is out of the table, and its lock is given back or soon will be.
"""

from __future__ import annotations

import asyncio
import logging

from gimbalmq.client import events
from gimbalmq.client.consuming.duplicates import Duplicates
from gimbalmq.client.consuming.ground import Ground
from gimbalmq.client.consuming.held_queue import CLAIMED, DRAINING, DROPPED, READING, HeldQueue
from gimbalmq.client.consuming.locks import BROKER_LOCK_SECONDS
from gimbalmq.client.consuming.puller import Puller
from gimbalmq.errors import RocketMQError
from gimbalmq.model.queues import MessageQueue, sort_queues

log = logging.getLogger(__name__)

_COMMIT_TRIES = 3


class Holdings:
    """One consumer's queues.

    Args:
        duplicates: hears how far queues were finished; None for consumers that do not finish in order.
        handler_wait: how long a handler at work may put off the end of a locked queue until a later round.

    Attributes:
        table: each queue that is read or being given up. Dropped ones whose handlers are still at work are in
            it too.
    """

    def __init__(
        self, ground: Ground, puller: Puller, duplicates: Duplicates | None, *, handler_wait: float
    ) -> None:
        self._clock = ground.clock
        self._config = ground.config
        self._offsets = ground.offsets
        self._locks = ground.locks
        self._events = ground.events
        self._puller = puller
        self._duplicates = duplicates
        self._handler_wait = handler_wait
        self.table: dict[MessageQueue, HeldQueue] = {}

    @property
    def held(self) -> list[MessageQueue]:
        """Queues that are being consumed now, sorted."""
        return sort_queues(queue for queue, item in self.table.items() if item.state is READING)

    def all(self) -> list[HeldQueue]:
        return list(self.table.values())

    def with_progress(self) -> list[HeldQueue]:
        """Queues that are read, and those being handed over: what still runs there will be committed."""
        return [item for item in self.table.values() if not item.dropped]

    # -- in --------------------------------------------------------------------------

    def claim(self, queue: MessageQueue) -> HeldQueue:
        """A queue that is ours by the strategy, or by hand; it is not in the table yet."""
        return HeldQueue(queue, self._clock, self._offsets)

    def take(self, held: HeldQueue, offset: int | None, reason: str, *, unknown: int = 0) -> None:
        """Reads a claimed queue from now on.

        Args:
            offset: where to begin; None lets the reader find out.
            unknown: what the event tells then (Java's pull consumers: 0).
        """
        assert held.queue not in self.table, f"{held} is there already"
        held.start()
        self.table[held.queue] = held
        self._events.emit(
            events.QueueTaken(
                group=self._config.group,
                queue=held.queue,
                offset=unknown if offset is None else offset,
                reason=reason,
            )
        )
        self._puller.start(held, offset)

    # -- out -------------------------------------------------------------------------

    def let_go(self, held: HeldQueue, reason: str) -> None:
        """From here on nothing of the queue is begun; with leases what runs may still settle."""
        if held.leased:
            self._say_dropped(held, reason)
            held.drain()
        else:
            self.drop(held, reason)

    async def give_up(self, held: HeldQueue) -> bool:
        """Commits a dropped queue and leaves it; False if a handler at work puts that off to a later round."""
        assert held.state is not READING and held.state is not CLAIMED, f"{held} was not let go"
        if held.state is not DROPPED:
            return False
        try:
            # Answered, though Java's goes one-way: the next owner may ask for it as soon as we are through.
            await held.commit(wait=True)
        except (RocketMQError, OSError) as error:
            log.warning("the offset of %s could not be committed: %s", held.queue, error)
        except Exception:  # an offset store of the user's; the queue must get free all the same
            log.exception("the offset of %s could not be committed", held.queue)
        if held.state is not DROPPED:
            return True  # somebody else was quicker
        self._offsets.forget(held.queue)
        if self._duplicates is not None:
            self._duplicates.left(held)
        if held.locked and not await self._handlers_are_through(held):
            return False
        if held.state is DROPPED:
            await self._leave(held)
        return True

    async def _handlers_are_through(self, held: HeldQueue) -> bool:
        try:
            async with asyncio.timeout(self._handler_wait):
                await held.quiet()
        except TimeoutError:
            held.give_up_tries += 1
            seconds = self._clock.monotonic() - held.dropped_at
            if seconds >= BROKER_LOCK_SECONDS:
                log.error("%s is given up though a handler has been at work for %.0f s", held.queue, seconds)
                return True
            log.warning(
                "%s is still being consumed; it is given up in a later round (try %d)",
                held.queue,
                held.give_up_tries,
            )
            return False
        return True

    async def hand_over(self, held: HeldQueue) -> bool:
        """Finishes, commits and leaves a queue that is draining; False if it was lost or dropped meanwhile."""
        began = self._clock.monotonic()
        try:
            async with asyncio.timeout(self._config.handover_wait):
                await held.quiet()
        except TimeoutError:
            log.warning(
                "%s is handed over though a handler has been at work on it for more than %g s (handover_wait); what "
                "it does is not committed, and its messages come again at the next owner",
                held.queue,
                self._config.handover_wait,
            )
        for attempt in range(_COMMIT_TRIES):
            if held.state is not DRAINING:
                return False
            try:
                await held.commit(wait=True)
                break
            except Exception as error:  # an offset store of the user's may raise anything
                log.warning(
                    "the offset of %s could not be committed before its handover: %r", held.queue, error
                )
                if attempt + 1 < _COMMIT_TRIES:
                    await asyncio.sleep(0.1 * 2**attempt)
        if held.state is not DRAINING:
            return False
        offset = self._offsets.remembered(held.queue)
        held.drop()
        self._offsets.forget(held.queue)
        await self._leave(held, wait=True)
        seconds = self._clock.monotonic() - began
        self._events.emit(
            events.QueueReleased(group=self._config.group, queue=held.queue, offset=offset, seconds=seconds)
        )
        return True

    async def discard(self, queue: MessageQueue, reason: str) -> None:
        """Drops one queue outside a round: its offset was illegal, or set anew."""
        held = self.table.get(queue)
        if held is None:
            return
        if not held.dropped:
            self.drop(held, reason)
        await self.give_up(held)

    def drop(self, held: HeldQueue, reason: str) -> None:
        """From here on nothing of the queue is begun or noted; what runs is not waited for."""
        self._say_dropped(held, reason)
        held.drop()

    def set_aside(self, held: HeldQueue) -> None:
        """Takes a dropped queue out of the table before it is given up: it may be claimed again at once."""
        assert held.dropped, f"{held} was not dropped"
        del self.table[held.queue]

    def abandon(self, held: HeldQueue, reason: str) -> None:
        """Drops a queue at once and without a commit; others may be further with it than we are."""
        if not held.dropped:
            self.drop(held, reason)
        self._offsets.forget(held.queue)
        if held.leased:
            assert self._locks is not None
            self._locks.give_back_when_quiet(held)
        elif held.locked:
            return  # the next round gives it up, once its handler is through
        self._remove(held)

    async def _leave(self, held: HeldQueue, *, wait: bool = False) -> None:
        if self._locks is not None and (held.locked or self._locks.may_be_ours(held.queue)):
            if held.window.count and not held.leased:
                self._locks.give_back_later(held.queue, self._config.unlock_delay)
            else:
                await self._locks.give_back(held.queue, wait=wait)
        if held.state is DROPPED:
            self._remove(held)

    def _remove(self, held: HeldQueue) -> None:
        held.give_up()
        if self.table.get(held.queue) is held:
            del self.table[held.queue]

    def _say_dropped(self, held: HeldQueue, reason: str) -> None:
        self._events.emit(
            events.QueueDropped(
                group=self._config.group,
                queue=held.queue,
                reason=reason,
                cached=held.window.count,
                offset=held.window.min_offset,
            )
        )

    # -- progress --------------------------------------------------------------------

    async def persist(self) -> None:
        """Writes progress of all held queues away; those whose lease is in doubt wait."""
        held = self.with_progress()
        if self._locks is None or not self._locks.leased:
            await self._offsets.persist_all([item.queue for item in held])
            return
        for item in held:
            if not item.in_doubt:
                try:
                    await item.commit()
                except Exception as error:  # an offset store of the user's may raise anything
                    log.warning("%s could not be committed, next try in a while: %r", item.queue, error)

    # -- the end ---------------------------------------------------------------------

    def drain(self) -> None:
        """The consumer closes: nothing is begun any more."""
        for item in self.table.values():
            if item.state is READING:
                item.drain()

    async def quiet(self) -> None:
        """Waits for handlers at work."""
        for item in self.all():
            await item.quiet()

    async def persist_finally(self) -> None:
        """Commits everything, and waits for the answers."""
        if self._config.broadcasting:
            await self.persist()
            return
        # Answered, though Java's goes one-way: brokers work requests off in several threads, and the next
        # owner, told by our leaving, might read its offset before this one is stored.
        found = await asyncio.gather(
            *(item.commit(wait=True) for item in self.with_progress() if not item.in_doubt),
            return_exceptions=True,
        )
        for error in found:
            if isinstance(error, BaseException):
                raise error

    def end(self) -> None:
        """Forgets all queues; their locks were given back together."""
        for item in list(self.table.values()):
            if not item.dropped:
                item.drop()
            self._remove(item)
