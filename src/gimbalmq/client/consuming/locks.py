"""Queue locks of the broker: asked for, renewed, given back.

A broker grants a queue to one client id of a group at a time, for 60 s after each request (41), until it is
given back (42). Java uses that for ordered consumers only; with ``handover="lease"`` every kind of consumer does
(see ``leases``).

Brokers keep locks in memory only. After a connection broke, which is how a restart looks from here, the locks
that were held are asked for at once, and for the length of the grace no others: their holders do the same. The
same goes for a broker that comes back at another address, and for one that says that it was started a moment ago. A
queue whose lease was lost is not asked for again before its old lock has been given back, and whoever may have it
has had the time to renew its own.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Collection, Iterable

from gimbalmq.client.consuming.held_queue import CLAIMED, HeldQueue
from gimbalmq.client.instance import ClientInstance
from gimbalmq.errors import RocketMQError, StateError, TopicRouteNotFoundError
from gimbalmq.model.queues import MessageQueue, sort_queues
from gimbalmq.rpc import groups as group_calls
from gimbalmq.transport.tasks import Tasks

log = logging.getLogger(__name__)

BROKER_LOCK_SECONDS = 60.0
"""How long a broker keeps a lock that is not renewed."""


class Locks:
    """The locks of one member of a group.

    Args:
        margin: leases: seconds after a successful renewal was sent that a lock is surely ours; 0 is no leases.
        grace: leases: seconds after its holder has gone that somebody else may begin a queue.
        handler_wait: leases: how long handlers at work may keep us from giving a lost lock back.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        tasks: Tasks,
        *,
        margin: float = 0.0,
        grace: float = 0.0,
        handler_wait: float = 0.0,
    ) -> None:
        self._instance = instance
        self._group = group
        self._tasks = tasks
        self._clock = instance.clock
        self.margin = margin
        self.grace = grace
        self._handler_wait = handler_wait
        self._ours: set[MessageQueue] = set()
        self._unanswered: set[MessageQueue] = set()
        self._due: dict[MessageQueue, asyncio.Task[None]] = {}
        self._failing: set[str] = set()
        self._back_at: dict[str, float] = {}
        self._lost: dict[MessageQueue, float] = {}
        self._giving_back: set[MessageQueue] = set()
        self._returning: set[MessageQueue] = set()
        self._questions: dict[asyncio.Event, frozenset[MessageQueue]] = {}

    @property
    def leased(self) -> bool:
        """Whether queues are held by lease."""
        return self.margin > 0

    # -- asking ----------------------------------------------------------------------

    async def lock(self, held: HeldQueue) -> bool:
        """Asks for one queue; whether it is ours."""
        queue = held.queue
        if held.state is CLAIMED and not await self._may_ask(queue):
            return False
        self._keep(queue)
        sent = self._clock.monotonic()
        try:
            granted = await self._ask(queue.broker_name, [queue])
        except RocketMQError as error:
            self._say_failing(queue.broker_name, f"the lock of {queue} could not be asked for", error)
            return False
        self._failing.discard(queue.broker_name)
        return self._note(held, queue in granted, sent)

    async def take_over(self, held: HeldQueue) -> bool | None:
        """Asks for the lock of a member that is gone.

        Returns:
            Whether it is ours; False means that its holder is there, None that the broker knows no such thing.
        """
        queue = held.queue
        self._keep(queue)
        sent = self._clock.monotonic()
        self._unanswered.add(queue)
        try:
            granted = await group_calls.take_over_locks(
                self._instance,
                self._known_master(queue.broker_name),
                self._group,
                self._instance.client_id,
                [queue],
            )
        except RocketMQError as error:
            log.debug("the lock of %s could not be taken over: %s", queue, error)
            return False
        self._unanswered.discard(queue)
        if granted is None:
            return None
        return self._note(held, queue in granted, sent)

    def _note(self, held: HeldQueue, granted: bool, sent: float) -> bool:
        if granted:
            self._ours.add(held.queue)
            held.lock_granted(sent)
        return granted

    def _keep(self, queue: MessageQueue) -> None:
        """A lock that is asked for is not given back: the broker would work that off after the question."""
        due = self._due.pop(queue, None)
        if due is not None:
            due.cancel()

    async def ask_again(self, broker_name: str, queues: Collection[MessageQueue]) -> set[MessageQueue] | None:
        """Asks for queues that are held; those granted, None if the broker did not answer."""
        try:
            granted = await self._ask(broker_name, queues)
        except RocketMQError as error:
            self._say_failing(broker_name, f"locks at {broker_name} could not be renewed", error)
            return None
        self._failing.discard(broker_name)
        self._ours |= granted
        return granted

    def _say_failing(self, broker_name: str, what: str, error: RocketMQError) -> None:
        """Once for each broker: without a master everything is tried again several times a second."""
        level = logging.DEBUG if broker_name in self._failing else logging.WARNING
        log.log(level, "%s: %s", what, error)
        self._failing.add(broker_name)

    async def renew(self, held: Iterable[HeldQueue]) -> None:
        """Asks for every queue, one request per broker; those not granted count as not locked."""
        await asyncio.gather(*(self._renew(name, part) for name, part in by_broker(held).items()))

    async def _renew(self, broker_name: str, held: list[HeldQueue]) -> None:
        sent = self._clock.monotonic()
        granted = await self.ask_again(broker_name, [item.queue for item in held])
        for item in held:
            if granted is None or item.dropped:
                continue
            if item.queue in granted:
                item.lock_granted(sent)
            else:
                item.lock_refused()
                log.warning("the broker has not renewed the lock of %s", item.queue)

    async def _ask(self, broker_name: str, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        # Until the broker answers, and if it never does, a lock may be ours without our knowing it.
        self._unanswered.update(queues)
        ended = asyncio.Event()
        self._questions[ended] = frozenset(queues)
        try:
            granted = await group_calls.lock_queues(
                self._instance,
                self._known_master(broker_name),
                self._group,
                self._instance.client_id,
                sort_queues(queues),
            )
        finally:
            del self._questions[ended]
            ended.set()
        self._unanswered.difference_update(queues)
        return granted

    def _master(self, broker_name: str) -> str:
        address = self._instance.master_address(broker_name)
        if address is None:
            raise TopicRouteNotFoundError(f"the broker {broker_name} has no master")
        return address

    def _known_master(self, broker_name: str) -> str:
        """Leases: the master must have answered a heartbeat first, and again after its connection broke or its
        address changed. Until then it is not known whether it was restarted and has forgotten whose locks it had."""
        address = self._master(broker_name)
        if self.leased and not self._instance.heartbeats.knows_master(broker_name, address):
            raise StateError(f"the master of {broker_name} at {address} has not answered a heartbeat yet")
        return address

    # -- when not to ask -------------------------------------------------------------

    def withheld(self, queue: MessageQueue) -> str | None:
        """Why a queue is not asked for now; None if it may be."""
        now = self._clock.monotonic()
        if now < self._lost.get(queue, 0.0):
            return "it was ours before; whoever may have it now is given time to renew its lock"
        name = queue.broker_name
        back_at = max(self._back_at.get(name, -math.inf), self._instance.heartbeats.up_since(name))
        if now < back_at + self.grace:
            return "its broker may have been restarted and have forgotten whose it is"
        return None

    async def _may_ask(self, queue: MessageQueue) -> bool:
        if self._lost.get(queue) == math.inf and queue not in self._giving_back:
            await self._give_back_lost(queue)
        if self.withheld(queue) is not None:
            return False
        self._lost.pop(queue, None)
        return True

    def connection_lost(self, broker_name: str) -> None:
        self._back_at[broker_name] = math.inf

    def connection_back(self, broker_name: str) -> None:
        if broker_name in self._back_at:
            self._back_at[broker_name] = self._clock.monotonic()

    # -- giving back -----------------------------------------------------------------

    def may_be_ours(self, queue: MessageQueue) -> bool:
        """Whether the broker may have the lock in our name; also if it has not answered."""
        return queue in self._ours or queue in self._unanswered

    def is_returning(self, queue: MessageQueue) -> bool:
        """Whether its lock is being given back. A renewal now would have the broker keep it in our name."""
        return queue in self._returning

    async def give_back(self, queue: MessageQueue, *, wait: bool = False) -> None:
        self._returning.add(queue)
        try:
            # Apache's brokers work off the requests of one connection in any order.
            for ended in [ended for ended, queues in self._questions.items() if queue in queues]:
                await ended.wait()
            self._ours.discard(queue)
            await self._unlock(queue.broker_name, [queue], wait=wait)
        except RocketMQError as error:
            log.warning("%s could not be unlocked, its lock ends by itself within 60 s: %s", queue, error)
        finally:
            self._returning.discard(queue)

    def give_back_later(self, queue: MessageQueue, delay: float) -> None:
        """After a pause, unless the queue is asked for again by then."""
        self._due[queue] = self._tasks.spawn(self._after(queue, delay), "unlock later")

    async def _after(self, queue: MessageQueue, delay: float) -> None:
        await asyncio.sleep(delay)
        self._due.pop(queue, None)
        await self.give_back(queue)

    def give_back_when_quiet(self, held: HeldQueue) -> None:
        """The lease was lost: the lock may be in our name while another is at work on the queue.

        What our own handlers have begun there cannot be stopped; they are waited for, for a while.
        """
        self._lost[held.queue] = math.inf
        self._giving_back.add(held.queue)
        self._tasks.spawn(self._when_quiet(held), "give a lost lock back")

    async def _when_quiet(self, held: HeldQueue) -> None:
        try:
            async with asyncio.timeout(self._handler_wait):
                await held.quiet()
        except TimeoutError:
            log.warning("%s: a handler is at work for long; its lock is given back all the same", held.queue)
        self._giving_back.discard(held.queue)
        await self._give_back_lost(held.queue)

    async def _give_back_lost(self, queue: MessageQueue) -> None:
        try:
            await self._unlock(queue.broker_name, [queue], wait=True)
        except RocketMQError as error:
            self._say_failing(queue.broker_name, f"the old lock of {queue} could not be given back", error)
        else:
            self._ours.discard(queue)
            self._lost[queue] = self._clock.monotonic() + self.margin

    async def give_back_all(self, *, wait: bool = False) -> None:
        """Gives every lock back, those of queues that were not begun too; one request per broker."""
        brokers: dict[str, list[MessageQueue]] = {}
        for queue in sort_queues({*self._ours, *self._due, *self._unanswered}):
            brokers.setdefault(queue.broker_name, []).append(queue)

        async def give_back(name: str, queues: list[MessageQueue]) -> None:
            try:
                await self._unlock(name, queues, wait=wait)
            except RocketMQError as error:
                log.warning("locks at %s could not be given back, they end within 60 s: %s", name, error)
            self._ours.difference_update(queues)
            self._unanswered.difference_update(queues)

        await asyncio.gather(*(give_back(name, queues) for name, queues in brokers.items()))

    async def _unlock(self, broker_name: str, queues: list[MessageQueue], *, wait: bool) -> None:
        call = group_calls.unlock_queues if wait else group_calls.unlock_queues_oneway
        await call(self._instance, self._master(broker_name), self._group, self._instance.client_id, queues)


def by_broker(held: Iterable[HeldQueue]) -> dict[str, list[HeldQueue]]:
    """Queues by the broker they lie on."""
    brokers: dict[str, list[HeldQueue]] = {}
    for item in held:
        brokers.setdefault(item.queue.broker_name, []).append(item)
    return brokers
