"""Which queues a consumer holds, and how they come and go.

Every member of a group computes its own share from the same two sorted lists (queues of the route, client ids
from a broker). A round compares that share with the table of held queues; what is lost is dropped and
committed, what is gained gets a start offset and is read from there. Nobody hands out assignments.

``Rebalancer`` is one consumer's table and its rounds; ``RebalanceLoop`` calls the rounds of all consumers of
a client instance: by timer, and at once when something changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

from gimbalmq._clock import Clock
from gimbalmq.balance.allocate import AllocatesAll, AllocateStrategy, ConsistentHash, share, shares
from gimbalmq.balance.plan import plan
from gimbalmq.client import events
from gimbalmq.client.consumer_config import ConsumerConfig
from gimbalmq.client.events import BalanceEvent
from gimbalmq.client.instance import ClientInstance
from gimbalmq.client.lease import BROKER_LOCK_SECONDS
from gimbalmq.client.process_queue import ProcessQueue
from gimbalmq.errors import RocketMQError
from gimbalmq.model.queues import MessageQueue, sort_client_ids, sort_queues
from gimbalmq.model.topics import RETRY_PREFIX
from gimbalmq.transport.tasks import Tasks, ends_task

log = logging.getLogger(__name__)

_HISTORY = 16
_NO_ROUTE = "no route for the topic is known"
CLAIM_LEASE_SECONDS = (0.02, 0.2)
CLAIM_ORDERED_SECONDS = 0.5
"""When a refused queue lock is asked for again: leases at first and at most, ordered consumers as 5.x does."""
PRESENT_SECONDS = 0.15
"""How long a broker's list of members serves for all queues that wait for somebody's lock."""


class BalanceHost(Protocol):
    """What balancing needs of its consumer."""

    @property
    def group(self) -> str: ...
    @property
    def client_id(self) -> str: ...
    @property
    def config(self) -> ConsumerConfig: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def needs_lock(self) -> bool:
        """Whether a queue is only taken with the broker's lock on it: ordered handlers, and leases."""

    @property
    def drops_idle(self) -> bool:
        """Whether a queue that is not pulled is dropped and taken again; push consumers only."""

    def topics(self) -> Sequence[str]:
        """Everything subscribed, the retry topic included."""

    def subscribed_queues(self, topic: str) -> Collection[MessageQueue] | None:
        """The readable queues of the cached route; None where there is no route."""

    async def member_ids(self, topic: str) -> list[str] | None:
        """Client ids of the group, from one broker of the topic; None where nobody could be asked."""

    async def lock_queue(self, queue: MessageQueue) -> bool: ...

    async def unlock_queue(self, queue: MessageQueue) -> None: ...

    async def take_over(self, queue: MessageQueue) -> bool | None:
        """Has the broker give us the lock of a member that is gone; False where its holder is there, None
        where the broker knows no such thing."""

    def lock_withheld(self, queue: MessageQueue) -> str | None:
        """Why a queue's lock is not asked for now; None where it may be."""

    async def members_at(self, queue: MessageQueue) -> list[str] | None:
        """Client ids that the queue's own broker knows of; None where it could not be asked."""

    async def start_offset(self, queue: MessageQueue) -> int:
        """Where to begin; raises RocketMQError where that cannot be known now."""

    def forget_offset(self, queue: MessageQueue) -> None: ...

    def begin(self, process_queue: ProcessQueue, offset: int) -> None:
        """Starts reading."""

    async def remove(self, process_queue: ProcessQueue) -> bool:
        """Gives a dropped queue up; False where that must be tried again next round."""

    def stop(self, process_queue: ProcessQueue) -> None:
        """Stops reading at once."""

    async def queues_changed(
        self, topic: str, queues: Collection[MessageQueue], mine: Collection[MessageQueue], reason: str
    ) -> None:
        """The held queues of a topic are others than before."""

    def emit(self, event: BalanceEvent) -> None: ...

    def wake(self, reason: str, delay: float = 0.0) -> None:
        """Asks for a round."""


class Rebalancer:
    """One consumer's queues (Java: RebalanceImpl).

    Attributes:
        table: process queue of each held queue. Dropped ones that could not be given up yet are in it too.
    """

    def __init__(self, host: BalanceHost, tasks: Tasks, strategy: AllocateStrategy) -> None:
        self._host = host
        self._tasks = tasks
        self._strategy = strategy
        self._busy = asyncio.Lock()
        self._allotted: dict[str, frozenset[MessageQueue]] = {}
        self._all: dict[str, tuple[MessageQueue, ...]] = {}
        self._wanted: dict[MessageQueue, float] = {}
        self._gone_since: dict[MessageQueue, float] = {}
        self._present: dict[str, tuple[float, list[str] | None]] = {}
        self._asking = asyncio.Lock()
        self._claiming: asyncio.Task[None] | None = None
        self._vanished: dict[str, float] = {}
        self._members: list[str] = []
        self._former: deque[tuple[list[str], dict[str, tuple[MessageQueue, ...]]]] = deque(maxlen=_HISTORY)
        self._twins_seen = False
        self._closed = False
        self.table: dict[MessageQueue, ProcessQueue] = {}

    @property
    def held(self) -> list[MessageQueue]:
        """Queues that are being consumed now, sorted."""
        return sort_queues(queue for queue, item in self.table.items() if not (item.dropped or item.draining))

    @property
    def members(self) -> list[str]:
        """The group as of the last round, sorted."""
        return list(self._members)

    def all_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        return self._all.get(topic, ())

    # -- rounds ----------------------------------------------------------------------

    async def run(self, reason: str) -> bool:
        """One round over all topics, never two at a time; True when every queue that is ours is held."""
        async with self._busy:
            host = self._host
            began = host.clock.monotonic()
            before = set(self.held)
            host.emit(events.RoundStarted(group=host.group, reason=reason))
            changed: list[str] = []
            balanced = True
            if self._takes_all_topics:
                balanced = await self._all_topics(reason, changed)
            else:
                for topic in list(host.topics()):
                    try:
                        balanced = await self._one_topic(topic, reason, changed) and balanced
                    except AssertionError:
                        raise
                    except Exception as error:
                        balanced = False
                        self._skip(topic, f"{type(error).__name__}: {error}", error)
            await self._drop_unsubscribed()
            held = self.held
            host.emit(
                events.RoundFinished(
                    group=host.group,
                    reason=reason,
                    balanced=balanced,
                    changed=tuple(changed),
                    kept=tuple(queue for queue in held if queue in before),
                    seconds=host.clock.monotonic() - began,
                )
            )
            if not balanced and host.config.unbalanced_delay is not None:
                host.wake("the last round left the group unbalanced", host.config.unbalanced_delay)
            return balanced

    @property
    def _takes_all_topics(self) -> bool:
        strategy = self._strategy
        return (
            isinstance(strategy, AllocatesAll)
            and not isinstance(strategy, ConsistentHash)  # the same by topic and over all
            and not self._host.config.broadcasting
        )

    async def _one_topic(self, topic: str, reason: str, changed: list[str]) -> bool:
        host = self._host
        queues = host.subscribed_queues(topic)
        if host.config.broadcasting:
            if queues is None:
                self._skip(topic, _NO_ROUTE)
                return True
            return await self._apply(topic, queues, queues, reason, changed)
        if queues is None:
            self._skip(topic, _NO_ROUTE)
            return True
        members = await self._member_ids(topic)
        if members is None:
            self._skip(topic, "the group's members could not be read from a broker")
            return False
        mine = share(self._strategy, host.group, host.client_id, queues, members)
        return await self._apply(topic, queues, mine, reason, changed)

    async def _all_topics(self, reason: str, changed: list[str]) -> bool:
        host = self._host
        known: dict[str, Collection[MessageQueue]] = {}
        balanced = True
        for topic in host.topics():
            queues = host.subscribed_queues(topic)
            if queues is None:
                self._skip(topic, _NO_ROUTE)
            else:
                known[topic] = queues
        members = None
        for topic in known:
            members = await self._member_ids(topic)
            if members is not None:
                break
        everything = [queue for queues in known.values() for queue in queues]
        if not everything:
            return balanced
        if members is None:
            for topic in known:
                self._skip(topic, "the group's members could not be read from a broker")
            return False
        try:
            mine = share(self._strategy, host.group, host.client_id, everything, members)
        except Exception as error:
            for topic in known:
                self._skip(topic, f"the strategy failed: {type(error).__name__}: {error}", error)
            return False
        for topic, queues in known.items():
            part = [queue for queue in mine if queue.topic == topic]
            balanced = await self._apply(topic, queues, part, reason, changed) and balanced
        return balanced

    async def _member_ids(self, topic: str) -> list[str] | None:
        try:
            found = await self._host.member_ids(topic)
        except RocketMQError as error:
            log.debug("members of %s: %s", self._host.group, error)
            found = None
        if not found:
            return None
        found = self._with_vanished(found)
        self._look_for_twins(found)
        ordered = sort_client_ids(found)
        if ordered != self._members:
            self._remember()
            self._members = ordered
        return found

    def _remember(self) -> None:
        """Keeps the group and its queues as they are, before one of them changes."""
        if self._members and self._all:
            self._former.append((self._members, dict(self._all)))

    def _with_vanished(self, found: list[str]) -> list[str]:
        """Adds members with a fixed name that are gone for less than the grace time: they are restarting."""
        grace = self._host.config.member_grace
        if not grace:
            return found
        now = self._host.clock.monotonic()
        for client_id in found:
            self._vanished.pop(client_id, None)
        for client_id in self._members:
            if client_id not in found and "#" not in client_id and client_id not in self._vanished:
                self._vanished[client_id] = now + grace
                self._host.wake(f"{client_id} did not come back", grace + 0.05)
        self._vanished = {client_id: end for client_id, end in self._vanished.items() if end > now}
        return [*found, *self._vanished]

    def _look_for_twins(self, found: list[str]) -> None:
        """Our id listed twice, twice in a row: once may be our own connection that was made anew."""
        host = self._host
        count = found.count(host.client_id)
        if count > 1 and self._twins_seen:
            log.error(
                "group %s: %d connections use the client id %s, so both members read the same queues. Give "
                "each process its own instance_name or member_name",
                host.group,
                count,
                host.client_id,
            )
            host.emit(events.EqualClientIds(group=host.group, client_id=host.client_id, count=count))
        elif count > 1:
            host.wake("our client id is listed twice", 1.0)
        self._twins_seen = count > 1

    def _skip(self, topic: str, reason: str, error: BaseException | None = None) -> None:
        if topic.startswith(RETRY_PREFIX):
            log.debug("rebalance of %s: %s skipped: %s", self._host.group, topic, reason)
        else:
            log.warning("rebalance of %s: %s skipped: %s", self._host.group, topic, reason, exc_info=error)
        self._host.emit(events.TopicSkipped(group=self._host.group, topic=topic, reason=reason))

    # -- the table -------------------------------------------------------------------

    async def _apply(
        self,
        topic: str,
        queues: Collection[MessageQueue],
        mine: Collection[MessageQueue],
        reason: str,
        changed: list[str],
    ) -> bool:
        """Makes the table hold ``mine`` of a topic (updateProcessQueueTableInRebalance)."""
        host = self._host
        self._allotted[topic] = frozenset(mine)
        ordered = tuple(sort_queues(queues))
        if self._all.get(topic) != ordered:
            self._remember()
            self._all[topic] = ordered
        now = host.clock.monotonic()
        held = [queue for queue in self.table if queue.topic == topic]
        stale = [queue for queue in held if self._is_stale(self.table[queue], now)]
        todo = plan(held, mine, stale)
        any_change = await self._drop_all(todo.drop, set(mine), reason)
        for queue in [queue for queue in self._wanted if queue.topic == topic and queue not in todo.take]:
            self._unwant(queue)
        any_change = await self._take_all(todo.take, reason) or any_change
        if any_change:
            changed.append(topic)
            await host.queues_changed(topic, queues, sort_queues(mine), reason)
        return set(mine) == {queue for queue in self.held if queue.topic == topic}

    def _is_stale(self, item: ProcessQueue, now: float) -> bool:
        if item.dropped or item.draining:
            return True
        if self._host.drops_idle and item.pull_expired(now, self._host.config.pull_idle):
            log.error(
                "%s: no pull begun for %.0f s; this is a bug, the queue is dropped and taken again",
                item.queue,
                now - item.last_pull,
            )
            return True
        return False

    async def _drop_all(self, queues: Sequence[MessageQueue], mine: set[MessageQueue], reason: str) -> bool:
        items = [self.table[queue] for queue in queues]
        handed_over = False
        for item in items:
            if not (item.dropped or item.draining):
                why = "no pull was begun for too long" if item.queue in mine else reason
                self.mark_dropped(item, why)
                handed_over |= item.draining
        removed = await asyncio.gather(*(self._remove(item) for item in items))
        return any(removed) or handed_over

    def mark_dropped(self, item: ProcessQueue, reason: str) -> None:
        """From here on nothing of the queue is begun; with leases what runs may still settle."""
        host = self._host
        host.emit(
            events.QueueDropped(
                group=host.group, queue=item.queue, reason=reason, cached=item.count, offset=item.min_offset
            )
        )
        if host.config.handover == "lease" and host.needs_lock:
            item.draining = True
        else:
            item.dropped = True
        host.stop(item)

    async def _remove(self, item: ProcessQueue) -> bool:
        if not await self._host.remove(item):
            return False
        if self.table.get(item.queue) is item:
            del self.table[item.queue]
        return True

    async def _take_all(self, queues: Iterable[MessageQueue], reason: str) -> bool:
        taken = await asyncio.gather(*(self._take(queue, reason) for queue in queues))
        return any(taken)

    async def _take(self, queue: MessageQueue, reason: str) -> bool:
        """Takes one queue; False where it must wait for another round."""
        host = self._host
        if queue in self.table or self._closed:
            return False  # given up, but not free yet
        now = host.clock.monotonic()
        since = self._wanted.setdefault(queue, now)
        overridden = False
        if host.needs_lock and not await host.lock_queue(queue):
            now = host.clock.monotonic()
            taken = await host.take_over(queue) if await self._overrides(queue) else False
            if taken is False:
                why = host.lock_withheld(queue) or "its lock is held by another"
                host.emit(events.QueueSkipped(group=host.group, queue=queue, reason=why))
                self._claim_later()
                return False
            overridden = taken is None
            host.emit(events.LeaseOverridden(group=host.group, queue=queue, waited=now - since))
            log.warning(
                "%s: begun though its lock was not given back; the member that held it is gone", queue
            )
        host.forget_offset(queue)
        item = ProcessQueue(queue, now=host.clock.monotonic())
        try:
            offset = await host.start_offset(queue)
        except RocketMQError as error:
            log.warning("%s is not taken this round: its start offset is unknown: %s", queue, error)
            offset = -1
        if offset < 0:
            if host.needs_lock:
                await host.unlock_queue(queue)  # by the next round it may be another's
            host.emit(
                events.QueueSkipped(group=host.group, queue=queue, reason="its start offset is unknown")
            )
            return False
        if queue in self.table or self._closed:
            return False
        item.override_ends = self._gone_since.get(queue, 0.0) + BROKER_LOCK_SECONDS
        self._unwant(queue)
        item.acquired_at = since
        item.overridden = overridden
        if host.needs_lock and host.config.handover == "lease":
            item.last_lock = now  # from before it was asked for
            item.holds_until = now + host.config.lease_margin
        self.table[queue] = item
        host.emit(events.QueueTaken(group=host.group, queue=queue, offset=offset, reason=reason))
        host.begin(item, offset)
        return True

    async def _overrides(self, queue: MessageQueue) -> bool:
        """Leases only: whether the lock belongs to a member that is gone and can release nothing any more.

        Gone means: missing at the queue's own broker, where the lock is renewed, for the whole of the grace;
        another broker may have been restarted and not know all members yet.
        """
        host = self._host
        if host.config.handover != "lease":
            return False
        if host.lock_withheld(queue) is not None or not await self._holder_is_gone(queue, fresh=False):
            self._gone_since.pop(queue, None)
            return False
        now = host.clock.monotonic()
        if now - self._gone_since.setdefault(queue, now) < host.config.lease_orphan_grace:
            return False
        return await self._holder_is_gone(queue, fresh=True)

    async def _holder_is_gone(self, queue: MessageQueue, *, fresh: bool) -> bool:
        """A broker does not say who holds a lock. But shares can be computed for the members and queues of a
        while ago too: the last one before us who had the queue is its holder."""
        host = self._host
        present = await self._members_at(queue, fresh=fresh)
        if not present:
            return False
        if set(present) == {host.client_id}:
            return True
        here = {*present, *self._members}
        if all(here.issuperset(members) for members, _ in self._former):
            return False
        for members, listed in reversed(self._former):
            queues = listed.get(queue.topic, ())
            if queue not in queues:
                continue
            if self._takes_all_topics:
                queues = tuple(other for part in listed.values() for other in part)
            try:
                parts = shares(self._strategy, host.group, queues, members)
            except Exception as error:
                log.debug("former shares could not be computed: %s", error)
                return False
            holder = next((client_id for client_id, part in parts.items() if queue in part), None)
            if holder is not None and holder != host.client_id:
                return holder not in here
        return False

    async def _members_at(self, queue: MessageQueue, *, fresh: bool) -> list[str] | None:
        """Who the queue's broker knows of; ``fresh`` means asked from now on. Queues of a broker share answers."""
        now = self._host.clock.monotonic()
        oldest = now if fresh else now - PRESENT_SECONDS
        async with self._asking:
            asked, present = self._present.get(queue.broker_name, (-math.inf, None))
            if asked >= oldest:
                return present
            asked = self._host.clock.monotonic()
            try:
                present = await self._host.members_at(queue)
            except RocketMQError as error:
                log.debug("members at the broker of %s: %s", queue, error)
                present = None
            self._present[queue.broker_name] = (asked, present)
            return present

    def _unwant(self, queue: MessageQueue) -> None:
        self._wanted.pop(queue, None)
        self._gone_since.pop(queue, None)

    def _claim_later(self) -> None:
        if self._claiming is None or self._claiming.done():
            self._claiming = self._tasks.spawn(self._claim(), "claim queues")

    async def _claim(self) -> None:
        """Asks again for locks that were refused, without a whole round."""
        pause, longest = CLAIM_LEASE_SECONDS
        if self._host.config.handover != "lease":
            pause = longest = CLAIM_ORDERED_SECONDS
        while self._wanted:
            await asyncio.sleep(pause)
            pause = min(longest, pause * 1.5)
            async with self._busy:
                for topic in dict.fromkeys(queue.topic for queue in self._wanted):
                    mine = self._allotted.get(topic, frozenset())
                    queues = [queue for queue in self._wanted if queue.topic == topic and queue in mine]
                    for queue in [
                        queue for queue in self._wanted if queue.topic == topic and queue not in mine
                    ]:
                        self._unwant(queue)
                    reason = "its lock has become free"
                    if await self._take_all(queues, reason):
                        await self._host.queues_changed(
                            topic, self.all_queues(topic), sort_queues(mine), reason
                        )

    async def _drop_unsubscribed(self) -> None:
        topics = set(self._host.topics())
        for queue, item in list(self.table.items()):
            if queue.topic in topics:
                continue
            if not (item.dropped or item.draining):
                self.mark_dropped(item, "its topic is no longer subscribed")
            await self._remove(item)  # others may still want it
        for topic in [topic for topic in self._allotted if topic not in topics]:
            del self._allotted[topic]
            self._all.pop(topic, None)
        for queue in [queue for queue in self._wanted if queue.topic not in topics]:
            self._unwant(queue)

    async def discard(self, queue: MessageQueue, reason: str) -> None:
        """Drops one queue outside a round: its offset was illegal, or set anew."""
        item = self.table.get(queue)
        if item is None:
            return
        if not item.dropped:
            self.mark_dropped(item, reason)
            item.draining, item.dropped = False, True
        await self._remove(item)

    def release(self, item: ProcessQueue) -> None:
        """A handed-over queue is free: out of the table, and a round may take it again."""
        if self.table.get(item.queue) is item:
            del self.table[item.queue]
        if item.queue in self._allotted.get(item.queue.topic, ()):
            self._host.wake("a queue that was handed over is ours again")

    def close(self) -> None:
        """Takes no more queues; a round under way ends without."""
        self._closed = True

    def drop_everything(self) -> None:
        """The end: all cached messages are forgotten."""
        for item in self.table.values():
            item.dropped = True
            self._host.stop(item)
        self.table.clear()
        self._wanted.clear()
        self._gone_since.clear()


class Balanced(Protocol):
    """What the loop needs of a consumer."""

    @property
    def group(self) -> str: ...
    @property
    def config(self) -> ConsumerConfig: ...

    async def rebalance(self, reason: str) -> bool: ...


class RebalanceLoop:
    """Calls the rounds of every consumer of a client instance (Java: RebalanceService)."""

    def __init__(self, tasks: Tasks, clock: Clock) -> None:
        self._tasks = tasks
        self._clock = clock
        self._consumers: list[Balanced] = []
        self._woken = asyncio.Event()
        self._reason = ""
        self._last_end: float | None = None
        self._started = False

    @staticmethod
    def of(instance: ClientInstance) -> RebalanceLoop:
        """The instance's loop; the first to ask makes it."""
        found = _loops.get(instance)
        if found is None:
            found = _loops[instance] = RebalanceLoop(instance.tasks, instance.clock)
        return found

    def join(self, consumer: Balanced) -> None:
        self._consumers.append(consumer)
        if not self._started:
            self._started = True
            self._tasks.spawn(self._run(), "rebalance")
        else:
            self.wake(f"a consumer of group {consumer.group} joined")

    def leave(self, consumer: Balanced) -> None:
        if consumer in self._consumers:
            self._consumers.remove(consumer)

    def wake(self, reason: str) -> None:
        """A round of all consumers as soon as possible."""
        if not self._woken.is_set():
            self._reason = reason
            self._woken.set()

    async def _run(self) -> None:
        while True:
            interval = min((consumer.config.rebalance_interval for consumer in self._consumers), default=20.0)
            with contextlib.suppress(TimeoutError):
                # Not wait_for: it loses a cancellation that comes together with the event.
                async with asyncio.timeout(interval):
                    await self._woken.wait()
            pause = max((consumer.config.rebalance_min_interval for consumer in self._consumers), default=0.0)
            if self._last_end is not None and self._last_end + pause > self._clock.monotonic():
                await asyncio.sleep(self._last_end + pause - self._clock.monotonic())
            reason = self._reason if self._woken.is_set() else "timer"
            self._woken.clear()
            self._reason = ""
            await self.round(reason)
            self._last_end = self._clock.monotonic()

    async def round(self, reason: str) -> None:
        """Every consumer's round; one that fails does not stop the others."""
        for consumer in list(self._consumers):
            try:
                await consumer.rebalance(reason)
            except AssertionError:
                raise
            except BaseException as error:
                if ends_task(error):
                    raise
                log.exception("rebalance of group %s failed; the next round tries again", consumer.group)


_loops: WeakKeyDictionary[ClientInstance, RebalanceLoop] = WeakKeyDictionary()
