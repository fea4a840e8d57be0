"""Which queues a consumer holds: the rounds.

Every member of a group computes its own share from the same two sorted lists (queues of the route, client ids
from a broker). A round compares that share with the held queues; what is lost is let go and committed, what is
gained is claimed: it gets its lock, if it needs one, and a start offset, and is read from there. Nobody hands out
assignments.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any

from gimbalmq.balance.allocate import AllocatesAll, ConsistentHash, share
from gimbalmq.balance.plan import plan
from gimbalmq.client import events
from gimbalmq.client.consuming.ground import Ground
from gimbalmq.client.consuming.group_view import GroupView
from gimbalmq.client.consuming.held_queue import DRAINING, READING, HeldQueue
from gimbalmq.client.consuming.holdings import Holdings
from gimbalmq.client.consuming.locks import BROKER_LOCK_SECONDS, Locks
from gimbalmq.client.consuming.offsets import ReadFrom
from gimbalmq.client.consuming.puller import Puller
from gimbalmq.errors import RocketMQError
from gimbalmq.model.queues import MessageQueue, sort_queues
from gimbalmq.model.topics import RETRY_PREFIX
from gimbalmq.transport.tasks import ends_task

log = logging.getLogger(__name__)

QueueListener = Callable[
    [str, Collection[MessageQueue], Collection[MessageQueue], str], Awaitable[object] | object
]
"""Called with the topic, all its queues, our queues of it, and why they changed."""

_NO_ROUTE = "no route for the topic is known"
CLAIM_LEASE_SECONDS = (0.02, 0.2)
CLAIM_ORDERED_SECONDS = 0.5
"""When a refused queue lock is asked for again: leases at first and at most, ordered consumers as 5.x does."""


async def _all(works: Iterable[Coroutine[Any, Any, bool]]) -> list[bool]:
    """Waits for all of them, also if one fails: none may go on behind the round's back, beside the next round."""
    found = await asyncio.gather(*works, return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return [one for one in found if one is True]


class Balancer:
    """One consumer's rounds (Java: RebalanceImpl).

    Args:
        finds_starts: whether a round finds out where a queue begins; else its reader does.
        drops_idle: whether a queue that is not pulled is dropped and taken again.
        listeners: told when the held queues of a topic are others than before.

    Attributes:
        view: who is in the group.
        suspended: no rounds for now.
    """

    def __init__(
        self,
        ground: Ground,
        holdings: Holdings,
        puller: Puller,
        listeners: Sequence[QueueListener],
        *,
        finds_starts: bool,
        drops_idle: bool,
    ) -> None:
        self.config = config = ground.config
        self.group = ground.group
        self._instance = ground.instance
        self._clock = ground.clock
        self._subscriptions = ground.subscriptions
        self._locks = ground.locks
        self._offsets = ground.offsets
        self._starts = ground.starts if finds_starts else None
        self._announcer = ground.announcer
        self._wakes = ground.wakes
        self._events = ground.events
        self._tasks = ground.tasks
        self._holdings = holdings
        self._puller = puller
        self._listeners = listeners
        self._drops_idle = drops_idle
        self._strategy = config.allocate_strategy()
        self.view = GroupView(ground)
        self.suspended = False
        self._closed = False
        self._busy = asyncio.Lock()
        self._allotted: dict[str, frozenset[MessageQueue]] = {}
        self._claims: dict[MessageQueue, HeldQueue] = {}
        self._claiming: asyncio.Task[None] | None = None
        self._handing_over: set[HeldQueue] = set()

    # -- rounds ----------------------------------------------------------------------

    async def run(self, reason: str) -> bool:
        """One round over all topics, never two at a time; True if every queue that is ours is held."""
        if self._subscriptions.by_hand is not None:
            return True  # whoever assigned them says which queues are ours
        if self.suspended or self._closed:
            return False
        async with self._busy:
            began = self._clock.monotonic()
            before = set(self._holdings.held)
            self._events.emit(events.RoundStarted(group=self.group, reason=reason))
            changed: list[str] = []
            if self._takes_all_topics:
                balanced = await self._all_topics(reason, changed)
            else:
                balanced = await self._topic_by_topic(reason, changed)
            await self._let_go_of_unsubscribed()
            self._events.emit(
                events.RoundFinished(
                    group=self.group,
                    reason=reason,
                    balanced=balanced,
                    changed=tuple(changed),
                    kept=tuple(queue for queue in self._holdings.held if queue in before),
                    seconds=self._clock.monotonic() - began,
                )
            )
            if not balanced and self.config.unbalanced_delay is not None:
                self._wakes.wake("the last round left the group unbalanced", self.config.unbalanced_delay)
            return balanced

    def close(self) -> None:
        """Takes no more queues; a round under way ends without."""
        self._closed = True

    @property
    def _takes_all_topics(self) -> bool:
        strategy = self._strategy
        return (
            isinstance(strategy, AllocatesAll)
            and not isinstance(strategy, ConsistentHash)  # the same by topic and over all
            and not self.config.broadcasting
        )

    async def _topic_by_topic(self, reason: str, changed: list[str]) -> bool:
        balanced = True
        for topic in list(self._subscriptions.by_topic):
            try:
                balanced = await self._one_topic(topic, reason, changed) and balanced
            except AssertionError:
                raise
            except Exception as error:
                balanced = False
                self._skip(topic, f"{type(error).__name__}: {error}", error)
        return balanced

    async def _one_topic(self, topic: str, reason: str, changed: list[str]) -> bool:
        queues = self._instance.subscribe_queues(topic)
        if queues is None:
            self._skip(topic, _NO_ROUTE)
            return True
        if self.config.broadcasting:
            return await self._apply(topic, queues, queues, reason, changed)
        members = await self.view.ask(topic)
        if members is None:
            self._skip(topic, "the group's members could not be read from a broker")
            return False
        mine = share(self._strategy, self.group, self._instance.client_id, queues, members)
        return await self._apply(topic, queues, mine, reason, changed)

    async def _all_topics(self, reason: str, changed: list[str]) -> bool:
        known: dict[str, Collection[MessageQueue]] = {}
        for topic in list(self._subscriptions.by_topic):
            found = self._instance.subscribe_queues(topic)
            if found is None:
                self._skip(topic, _NO_ROUTE)
            else:
                known[topic] = found
        members = None
        for topic in known:
            members = await self.view.ask(topic)
            if members is not None:
                break
        everything = [queue for queues in known.values() for queue in queues]
        if not everything:
            return True
        if members is None:
            for topic in known:
                self._skip(topic, "the group's members could not be read from a broker")
            return False
        try:
            mine = share(self._strategy, self.group, self._instance.client_id, everything, members)
        except Exception as error:
            for topic in known:
                self._skip(topic, f"the strategy failed: {type(error).__name__}: {error}", error)
            return False
        balanced = True
        for topic, queues in known.items():
            part = [queue for queue in mine if queue.topic == topic]
            balanced = await self._apply(topic, queues, part, reason, changed) and balanced
        return balanced

    def _skip(self, topic: str, reason: str, error: BaseException | None = None) -> None:
        if topic.startswith(RETRY_PREFIX):
            log.debug("rebalance of %s: %s skipped: %s", self.group, topic, reason)
        else:
            log.warning("rebalance of %s: %s skipped: %s", self.group, topic, reason, exc_info=error)
        self._events.emit(events.TopicSkipped(group=self.group, topic=topic, reason=reason))

    # -- one topic -------------------------------------------------------------------

    async def _apply(
        self,
        topic: str,
        queues: Collection[MessageQueue],
        mine: Collection[MessageQueue],
        reason: str,
        changed: list[str],
    ) -> bool:
        """Makes us hold ``mine`` of a topic (updateProcessQueueTableInRebalance)."""
        self._allotted[topic] = frozenset(mine)
        self.view.note_queues(topic, queues)
        now = self._clock.monotonic()
        table = self._holdings.table
        held = [queue for queue in table if queue.topic == topic]
        stale = [queue for queue in held if self._is_stale(table[queue], now)]
        todo = plan(held, mine, stale)
        any_change = await self._let_go_of(todo.drop, set(mine), reason)
        for queue in [queue for queue in self._claims if queue.topic == topic and queue not in todo.take]:
            del self._claims[queue]
        # The first of them is read before the last one is taken, and may not have the others' part of the limits.
        self._puller.share_limits(len(self._holdings.held) + len(todo.take))
        try:
            any_change = await self._take_all(todo.take, reason) or any_change
        finally:
            self._puller.share_limits(len(self._holdings.held))
        if any_change:
            changed.append(topic)
            await self._tell_changed(topic, queues, sort_queues(mine), reason)
        return set(mine) == {queue for queue in self._holdings.held if queue.topic == topic}

    def _is_stale(self, held: HeldQueue, now: float) -> bool:
        if held.state is not READING:
            return True
        if self._drops_idle and held.pull_expired(now, self.config.pull_idle):
            log.error(
                "%s: no pull begun for %.0f s; this is a bug, the queue is dropped and taken again",
                held.queue,
                now - held.last_pull,
            )
            return True
        return False

    async def _tell_changed(
        self, topic: str, queues: Collection[MessageQueue], mine: Collection[MessageQueue], reason: str
    ) -> None:
        """New subscription version, new limits, heartbeat, listeners (Java: messageQueueChanged)."""
        self._subscriptions.renew(topic, self._clock.wall_ms())
        self._puller.share_limits(len(self._holdings.held))
        if not self._closed:
            self._announcer.soon()
        for listener in list(self._listeners):
            try:
                result = listener(topic, queues, mine, reason)
                if inspect.isawaitable(result):
                    await result
            except BaseException as error:
                if ends_task(error):
                    raise
                log.exception("a queue listener failed on %s", topic)

    # -- letting go ------------------------------------------------------------------

    async def _let_go_of(self, queues: Sequence[MessageQueue], mine: set[MessageQueue], reason: str) -> bool:
        items = [self._holdings.table[queue] for queue in queues]
        any_draining = False
        for item in items:
            if item.state is READING:
                why = "no pull was begun for too long" if item.queue in mine else reason
                self._holdings.let_go(item, why)
                any_draining |= item.state is DRAINING
        removed = await _all(self._give_up(item) for item in items)
        return any(removed) or any_draining

    async def _give_up(self, held: HeldQueue) -> bool:
        if held.state is not DRAINING:
            return held.dropped and await self._holdings.give_up(held)
        # A round may still be under way while the consumer closes, which gives up all queues by itself.
        if held not in self._handing_over and not self._closed:
            self._handing_over.add(held)
            self._tasks.spawn(self._hand_over(held), "hand over")
        return False

    async def _hand_over(self, held: HeldQueue) -> None:
        try:
            released = await self._holdings.hand_over(held)
        finally:
            self._handing_over.discard(held)
        if released and held.queue in self._allotted.get(held.queue.topic, ()):
            self._wakes.wake("a queue that was handed over is ours again")

    async def _let_go_of_unsubscribed(self) -> None:
        topics = set(self._subscriptions.by_topic)
        items = [held for held in self._holdings.all() if held.queue.topic not in topics]
        for held in items:
            if held.state is READING:
                self._holdings.let_go(held, "its topic is no longer subscribed")
        await _all(self._give_up(held) for held in items)
        for topic in [topic for topic in self._allotted if topic not in topics]:
            del self._allotted[topic]
            self.view.forget(topic)
        for queue in [queue for queue in self._claims if queue.topic not in topics]:
            del self._claims[queue]

    # -- claiming --------------------------------------------------------------------

    async def _take_all(self, queues: Iterable[MessageQueue], reason: str) -> bool:
        return any(await _all(self._take(queue, reason) for queue in queues))

    async def _take(self, queue: MessageQueue, reason: str) -> bool:
        """Takes one queue; False if it must wait for another round."""
        if queue in self._holdings.table or self._closed:
            return False  # given up, but not free yet
        held = self._claims.get(queue)
        if held is None:
            held = self._claims[queue] = self._holdings.claim(queue)
        if self._locks is not None and not await self._get_lock(held, self._locks):
            self._claim_later()
            return False
        self._offsets.forget(queue)
        offset = await self._start_offset(held)
        if offset is not None and offset < 0:
            if held.locked and self._locks is not None:
                held.lock_refused()
                await self._locks.give_back(queue)  # by the next round it may be another's
            self._say_skipped(queue, "its start offset is unknown")
            return False
        if self._closed:
            if held.locked and self._locks is not None:
                await self._locks.give_back(queue)  # closing has given the others back
            return False
        self._claims.pop(queue, None)
        self._holdings.take(held, offset, reason)
        return True

    async def _start_offset(self, held: HeldQueue) -> int | None:
        """Where to begin; -1 if that is not known now, None if the reader is to find out."""
        if self._starts is None:
            return None
        try:
            return await self._starts.of(held.queue, ReadFrom.STORE)
        except RocketMQError as error:
            log.warning("%s is not taken this round: its start offset is unknown: %s", held.queue, error)
            return -1

    async def _get_lock(self, held: HeldQueue, locks: Locks) -> bool:
        """Asks for the lock of a claimed queue; with leases also for that of a member that is gone."""
        queue = held.queue
        asked = self._clock.monotonic()
        if not await locks.lock(held):
            asked = self._clock.monotonic()
            taken = await locks.take_over(held) if await self._overrides(held, locks) else False
            if taken is False:
                self._say_skipped(queue, locks.withheld(queue) or "its lock is held by another")
                return False
            if taken is None:
                held.override((held.gone_since or 0.0) + BROKER_LOCK_SECONDS)
            self._events.emit(
                events.LeaseOverridden(group=self.group, queue=queue, waited=asked - held.claimed_at)
            )
            log.warning(
                "%s: begun though its lock was not given back; the member that held it is gone", queue
            )
        if locks.leased:
            held.lease(asked, asked + locks.margin)
        return True

    async def _overrides(self, held: HeldQueue, locks: Locks) -> bool:
        """Leases only: whether the lock belongs to a member that is gone and can release nothing any more.

        Gone means: missing at the queue's own broker, where the lock is renewed, for the whole of the grace;
        another broker may have been restarted and not know all members yet.
        """
        if not locks.leased:
            return False
        if locks.withheld(held.queue) is not None or not await self._holder_is_gone(held, fresh=False):
            held.gone_since = None
            return False
        now = self._clock.monotonic()
        if held.gone_since is None:
            held.gone_since = now
        if now - held.gone_since < locks.grace:
            return False
        return await self._holder_is_gone(held, fresh=True)

    async def _holder_is_gone(self, held: HeldQueue, *, fresh: bool) -> bool:
        return await self.view.holder_is_gone(
            held.queue, self._strategy, over_all_topics=self._takes_all_topics, fresh=fresh
        )

    def _say_skipped(self, queue: MessageQueue, reason: str) -> None:
        self._events.emit(events.QueueSkipped(group=self.group, queue=queue, reason=reason))

    def _claim_later(self) -> None:
        if not self._closed and (self._claiming is None or self._claiming.done()):
            self._claiming = self._tasks.spawn(self._claim_again(), "claim queues")

    async def _claim_again(self) -> None:
        """Asks again for locks that were refused, without a whole round."""
        pause, longest = CLAIM_LEASE_SECONDS
        if self._locks is None or not self._locks.leased:
            pause = longest = CLAIM_ORDERED_SECONDS
        while self._claims:
            await asyncio.sleep(pause)
            pause = min(longest, pause * 1.5)
            async with self._busy:
                for topic in dict.fromkeys(queue.topic for queue in self._claims):
                    mine = self._allotted.get(topic, frozenset())
                    claimed = [queue for queue in self._claims if queue.topic == topic]
                    for queue in claimed:
                        if queue not in mine:
                            del self._claims[queue]
                    reason = "its lock has become free"
                    if await self._take_all([queue for queue in claimed if queue in mine], reason):
                        queues = self.view.queues.get(topic, ())
                        await self._tell_changed(topic, queues, sort_queues(mine), reason)
