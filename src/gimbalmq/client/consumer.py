"""What push and pull consumers share: a place in the client instance, subscriptions, progress, balance.

A consumer is a member of its client instance (``ConsumerMember``), which hands on what brokers say, and the
host of a ``Rebalancer``, which calls back when queues come and go.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Self, TypeVar

import msgspec

from gimbalmq._clock import Clock
from gimbalmq.client import events
from gimbalmq.client.config import DEFAULT_INSTANCE
from gimbalmq.client.consumer_calls import ConsumerCalls, LockCallsToMasters
from gimbalmq.client.consumer_config import TAG, ConsumeFromWhere, ConsumerConfig, subscription_for
from gimbalmq.client.consumer_report import expressions, running_properties, stacks
from gimbalmq.client.events import BalanceEvent, Events
from gimbalmq.client.events import Callback as EventCallback
from gimbalmq.client.instance import ClientInstance
from gimbalmq.client.lease import Leases, QueueLocks, hand_over
from gimbalmq.client.offsets import (
    LocalOffsets,
    OffsetStore,
    ReadFrom,
    RemoteOffsets,
    local_offset_folder,
)
from gimbalmq.client.process_queue import ProcessQueue
from gimbalmq.client.rebalance import RebalanceLoop, Rebalancer
from gimbalmq.errors import (
    ConfigError,
    RocketMQError,
    RouteError,
    StateError,
)
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.route import subscribe_queues
from gimbalmq.model.topics import RETRY_PREFIX, topic_problem
from gimbalmq.protocol.bodies import ConsumerData, Subscription, TopicRoute
from gimbalmq.protocol.fastjson import queue_text
from gimbalmq.protocol.status_bodies import ConsumeDirectlyResult, ConsumeRates, ConsumerRunningInfo
from gimbalmq.rpc import groups as group_calls
from gimbalmq.rpc import management as management_calls
from gimbalmq.transport.tasks import Ending, Tasks, ends_task

log = logging.getLogger(__name__)

C = TypeVar("C", bound=ConsumerConfig)

QueueListener = Callable[
    [str, Collection[MessageQueue], Collection[MessageQueue], str], Awaitable[object] | object
]
"""Called with the topic, all its queues, our queues of it, and why they changed."""

_HEARTBEAT_TRIES = 200
_CANCEL_SECONDS = 3.0
"""How long close() waits for a handler that takes no notice of its cancellation."""
_ROUTE_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 12.0)


class Consumer(ConsumerCalls[C]):
    """Base of PushConsumer and PullConsumer; not for applications."""

    consume_type = ""

    def __init__(self, config: C, offset_store: OffsetStore | None = None) -> None:
        if config.member_name is not None and config.instance_name == DEFAULT_INSTANCE:
            config = replace(config, instance_name=config.member_name)
        self.config: C = config
        self.group = config.group
        self._instance: ClientInstance | None = None
        self._closed = False
        self._left_by_error = False
        self._ready = False
        self._suspended = False
        self._ending = Ending()
        self._tasks = Tasks(f"consumer {config.group}")
        self._events = Events()
        self._queue_listeners: list[QueueListener] = []
        self._subscriptions: dict[str, Subscription] = {}
        self._given_offsets = offset_store
        self._offsets: OffsetStore | None = offset_store
        self._balance: Rebalancer | None = None
        self._locks: QueueLocks | None = None
        self._loop: RebalanceLoop | None = None
        self._suggested: dict[MessageQueue, int] = {}
        self._started_ms = 0
        self._handing_over: set[int] = set()
        self._unlocks_due: set[MessageQueue] = set()
        self._announcer: asyncio.Task[None] | None = None
        self._announce_again = False
        self._unequal: dict[str, str] | None = None

    # -- state -----------------------------------------------------------------------

    @property
    def instance(self) -> ClientInstance:
        """The client instance; raises StateError before start and after close."""
        if self._instance is None:
            raise StateError(f"consumer {self.group} is not running: use it in `async with`, or call start()")
        return self._instance

    @property
    def offsets(self) -> OffsetStore:
        if self._offsets is None:
            raise StateError(f"consumer {self.group} is not running")
        return self._offsets

    @property
    def balance(self) -> Rebalancer:
        """The table of held queues."""
        if self._balance is None:
            raise StateError(f"consumer {self.group} is not running")
        return self._balance

    @property
    def locks(self) -> QueueLocks:
        if self._locks is None:
            raise StateError(f"consumer {self.group} is not running")
        return self._locks

    @property
    def running(self) -> bool:
        return self._instance is not None and not self._closed

    @property
    def assignment(self) -> dict[str, list[MessageQueue]]:
        """The queues held now, by topic."""
        held: dict[str, list[MessageQueue]] = {}
        for queue in self._held_queues():
            held.setdefault(queue.topic, []).append(queue)
        return held

    def _held_queues(self) -> list[MessageQueue]:
        return self._balance.held if self._balance is not None else []

    def _queues_with_progress(self) -> list[MessageQueue]:
        """Held queues, and those being handed over: what still runs there will be committed."""
        return [queue for queue, item in self.balance.table.items() if not item.dropped]

    @property
    def members(self) -> list[str]:
        """Client ids of the group as of the last round."""
        return self.balance.members

    @property
    def subscriptions(self) -> dict[str, str]:
        """Topic to expression; the retry topic left out."""
        return {
            topic: data.sub_string or "*"
            for topic, data in self._subscriptions.items()
            if not topic.startswith(RETRY_PREFIX)
        }

    async def lag(self) -> dict[MessageQueue, int]:
        """Messages behind the newest, for every held queue."""
        queues = self._held_queues()
        return dict(
            zip(queues, await asyncio.gather(*(self._lag_of(queue) for queue in queues)), strict=True)
        )

    async def _lag_of(self, queue: MessageQueue) -> int:
        newest = await self.max_offset(queue)
        offset = await self.offsets.read(queue, ReadFrom.MEMORY_FIRST_THEN_STORE)
        if offset is None:
            item = self.balance.table.get(queue)
            offset = newest if item is None or item.min_offset is None else item.min_offset
        return max(0, newest - offset)

    def events(self) -> AsyncIterator[BalanceEvent]:
        """Balance events from now on."""
        return self._events.stream()

    def on_event(self, callback: EventCallback) -> Callable[[], None]:
        """Calls back with every balance event; the result ends that."""
        return self._events.on_event(callback)

    def on_queues_changed(self, listener: QueueListener) -> None:
        """Calls back when the held queues of a topic changed (Java: MessageQueueListener)."""
        self._queue_listeners.append(listener)

    def emit(self, event: BalanceEvent) -> None:
        self._events.emit(msgspec.structs.replace(event, at_ms=self.clock.wall_ms()))

    # -- life ------------------------------------------------------------------------

    async def start(self, *, instance: ClientInstance | None = None) -> None:
        """Joins the group and takes its share of the queues.

        Args:
            instance: join this client instance instead of the one of the config's client id.

        Raises:
            StateError: started before, or the group has a consumer in this instance already.
            ResponseError: a broker refuses a subscription (SQL92 is not enabled there).
        """
        if self._instance is not None or self._closed:
            raise StateError(f"consumer {self.group} has been started before")
        self._check_start()
        joined = instance or ClientInstance.shared(self.config, keep_instance_name=self.config.broadcasting)
        self._instance = joined
        try:
            self._started_ms = joined.clock.wall_ms()
            self._add_own_subscriptions()
            self._balance = Rebalancer(self, self._tasks, self.config.allocate_strategy())
            self._locks = self._make_locks(joined.clock)
            self._offsets = self._given_offsets or self._make_offsets()
            await self._offsets.load()
            await self._start_parts()
            joined.register_consumer(self.group, self)
            await joined.start()
            await self._refresh_routes()
            await self._check_subscriptions()
            await self._announce()
            self._start_timers()
            self._ready = True
            if self.is_balanced_by_group:
                self._loop = RebalanceLoop.of(joined)
                await self.rebalance("start")
                self._loop.join(self)
            await self._after_start()
            self._tasks.spawn(self._find_missing_routes(), "missing routes")
        except BaseException:
            await self._ending.run(lambda: self._undo_start(joined), self._hurry)
            raise

    def _start_timers(self) -> None:
        config = self.config
        every = self._tasks.every
        every(config.persist_interval, self.persist_offsets, "persist offsets")
        if isinstance(self._locks, Leases):
            every(config.lease_margin / 3, self._locks.renew, "renew leases")
            every(config.lease_margin / 6, self._locks.check, "check leases")
        elif self.needs_lock:
            every(config.lock_interval, self.locks.renew, "renew locks", first=config.lock_first_delay)
        if config.check_group_interval and not config.broadcasting:
            every(config.check_group_interval, self.check_group, "check group")

    async def _undo_start(self, instance: ClientInstance) -> None:
        """Leaves nothing behind of a start that failed, so that it can be tried again."""
        self._closed = True
        if instance.consumers.get(self.group) is self:
            await self._leave(instance)
        else:
            await self._tasks.close()
            await self._close_parts()
            await instance.close_if_unused()
        self._instance = self._balance = self._locks = self._loop = None
        self._offsets = self._given_offsets
        self._closed = self._ready = False

    async def close(self) -> None:
        """Lets running handlers finish, commits, leaves the group; the next owner goes on exactly there.

        If it is cancelled, handlers are not waited for any longer, and the rest is done in the background; a
        repeated call waits for its end.
        """
        await self._ending.run(self._end, self._hurry)

    async def _end(self) -> None:
        if self._instance is None:
            return
        self._closed = True
        await self._leave(self._instance)
        self._events.close()
        self._instance = None

    def _hurry(self) -> None:
        """Whoever called close() does not want to wait any longer."""

    async def _leave(self, instance: ClientInstance) -> None:
        if self._loop is not None:
            self._loop.leave(self)
        self.balance.close()
        await self._stop_consuming()
        await self._persist_at_close()
        if self.needs_lock:
            await self.locks.unlock_all(wait=self.config.handover == "lease")
            await asyncio.gather(*(self.locks.unlock(queue) for queue in self._unlocks_due))
        await self._tasks.close(_CANCEL_SECONDS)
        await self._close_parts()
        await instance.unregister_consumer(self.group)
        self.balance.drop_everything()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self._left_by_error = kind is not None
        await self.close()

    async def _persist_at_close(self) -> None:
        if self.config.broadcasting:
            try:
                await self.persist_offsets()
            except (RocketMQError, OSError) as error:
                log.warning("progress of %s could not be written at close: %s", self.group, error)
            return
        # Answered, where Java's goes one-way: brokers work requests off in several threads, and the next
        # owner, told by our leaving, might read its offset before this one is stored.
        queues = [queue for queue in self._queues_with_progress() if not self._in_doubt(queue)]
        await asyncio.gather(*(self._commit_for_good(queue) for queue in queues))

    async def _commit_for_good(self, queue: MessageQueue) -> None:
        """Commits a queue that is given up, and waits for the answer: the next owner asks for it soon."""
        try:
            await self.offsets.persist(queue, wait=True)
        except (RocketMQError, OSError) as error:
            log.warning("the offset of %s could not be committed: %s", queue, error)

    def _check_start(self) -> None: ...

    def _add_own_subscriptions(self) -> None: ...

    async def _start_parts(self) -> None: ...

    async def _after_start(self) -> None: ...

    async def _stop_consuming(self) -> None: ...

    async def _close_parts(self) -> None: ...

    def _make_locks(self, clock: Clock) -> QueueLocks:
        calls = LockCallsToMasters(self)
        if self.config.handover != "lease" or not self.needs_lock:
            return QueueLocks(calls, lambda: self.balance.table, clock, live=self.config.lock_live)
        return Leases(
            calls,
            lambda: self.balance.table,
            clock,
            self,
            self.config.lock_live,
            margin=self.config.lease_margin,
            grace=self.config.lease_orphan_grace,
        )

    def _make_offsets(self) -> OffsetStore:
        if self.config.broadcasting:
            folder = local_offset_folder(self.config.local_offset_folder, self.client_id, self.group)
            return LocalOffsets(folder)
        return RemoteOffsets(self._fetch_offset, self._commit_offset)

    @property
    def is_balanced_by_group(self) -> bool:
        """Whether the group shares the queues; not when they were assigned by hand."""
        return True

    async def _refresh_routes(self) -> None:
        async def refresh(topic: str) -> None:
            try:
                await self.instance.refresh_route(topic)
            except RocketMQError as error:
                level = logging.DEBUG if topic.startswith(RETRY_PREFIX) else logging.WARNING
                log.log(level, "no route for %s yet: %s", topic, error)

        await asyncio.gather(*(refresh(topic) for topic in self.subscribed_topics()))

    async def _find_missing_routes(self) -> None:
        """Brokers make the retry topic when they first hear of the group: its route comes a moment later."""
        for pause in _ROUTE_PAUSES:
            await asyncio.sleep(pause)
            missing = [topic for topic in self.subscribed_topics() if self.instance.route(topic) is None]
            if not missing:
                return
            for topic in missing:
                try:
                    await self.instance.refresh_route(topic)
                except RocketMQError as error:
                    log.debug("no route for %s yet: %s", topic, error)

    async def _check_subscriptions(self) -> None:
        """Asks one broker of each topic whether it can filter so; tags every broker can."""
        for data in list(self._subscriptions.values()):
            if data.expression_type in (None, TAG):
                continue
            try:
                address = await self.instance.any_broker_of(data.topic)
            except RouteError:
                continue
            await group_calls.check_client_config(self.instance, address, self.client_id, self.group, data)

    async def _announce(self) -> None:
        """Tells all brokers of our subscriptions."""
        for _ in range(_HEARTBEAT_TRIES):
            if await self.instance.heartbeat():
                break
            await asyncio.sleep(0.005)  # another is under way and may carry what was before

    def _announce_soon(self) -> None:
        """The same behind the scenes: a broker that does not answer must not hold up a round."""
        if self._closed:
            return  # a round that was under way
        self._announce_again = True
        if self._announcer is None or self._announcer.done():
            self._announcer = self._tasks.spawn(self._keep_announcing(), "announce")

    async def _keep_announcing(self) -> None:
        while self._announce_again:
            self._announce_again = False
            await self._announce()

    # -- subscriptions ---------------------------------------------------------------

    def _set_subscription(self, topic: str, expression: str | None, expression_type: str) -> Subscription:
        problem = topic_problem(topic)
        if problem is not None:
            raise ConfigError("topic", topic, problem)
        now = self.instance.clock.wall_ms() if self._instance is not None else 0
        data = subscription_for(topic, expression, now, expression_type)
        self._subscriptions[topic] = data
        if self._ready and not self._closed:
            self._tasks.spawn(self._subscribe_now(topic), "subscribe")
        return data

    async def _subscribe_now(self, topic: str) -> None:
        await self._announce()
        try:
            await self.instance.refresh_route(topic)
        except RocketMQError as error:
            log.warning("no route for %s yet: %s", topic, error)
        self.wake(f"{topic} was subscribed")

    def unsubscribe(self, topic: str) -> None:
        """Ends a subscription; its queues are dropped in the next round, which comes at once."""
        self._subscriptions.pop(topic, None)
        if self._ready and not self._closed:
            self._tasks.spawn(self._announce(), "unsubscribe")
            self.wake(f"{topic} was unsubscribed")

    # -- member of the client instance -----------------------------------------------

    def heartbeat_data(self) -> ConsumerData:
        return ConsumerData(
            consume_from_where=self.config.consume_from_where.value,
            consume_type=self.consume_type,
            group_name=self.group,
            message_model=self.config.message_model.value,
            subscription_data_set=list(self._subscriptions.values()),
            unit_mode=self.config.unit_mode,
        )

    def subscribed_topics(self) -> Iterable[str]:
        return list(self._subscriptions)

    def route_changed(self, topic: str, route: TopicRoute) -> None:
        if not self._ready or self._closed or topic not in self._subscriptions:
            return
        if self.config.rebalance_on_route_change and self.is_balanced_by_group:
            known = self.balance.all_queues(topic)
            if set(known) != set(subscribe_queues(topic, route)):
                self._tasks.spawn(self._announce_and_wake(f"the queues of {topic} changed"), "route changed")

    async def _announce_and_wake(self, reason: str) -> None:
        await self._announce()  # a broker that is new to the topic does not know us yet
        self.wake(reason)

    @property
    def liveness_interval(self) -> float:
        return 0.0 if self.config.broadcasting else self.config.liveness_interval

    def connection_lost(self, broker_name: str) -> None:
        if isinstance(self._locks, Leases):
            self._locks.connection_lost(broker_name)

    def connection_back(self, broker_name: str) -> None:
        if isinstance(self._locks, Leases) and not self._closed:
            self._tasks.spawn(self._locks.connection_back(broker_name), "renew leases at once")

    def expelled(self, broker_name: str) -> None:
        """Others were told that we are gone, and may have our queues of this broker: we begin anew with them."""
        if not self.is_balanced_by_group or self._balance is None or self._closed:
            return
        log.error(
            "broker %s heard nothing of this member of group %s for three times liveness_interval (%g s) and told "
            "the others that it is gone; it joins again. Was the process stopped, or its event loop blocked? "
            "Run handlers that compute for long as plain functions, or set liveness_interval higher",
            broker_name,
            self.group,
            self.config.liveness_interval,
        )
        self.emit(events.MemberExpelled(group=self.group, broker_name=broker_name))
        for queue, item in list(self._balance.table.items()):
            if queue.broker_name == broker_name and not item.dropped:
                if isinstance(self._locks, Leases):
                    self._locks.abandon(item)
                else:
                    self._drop_uncommitted(item, "a broker took this member for hung")
        self.wake("a broker took this member for hung")

    def wake_rebalance(self) -> None:
        self.wake("a broker said that members changed")

    def wake(self, reason: str, delay: float = 0.0) -> None:
        """Asks for a round of all consumers of the instance."""
        if self._loop is None or self._closed:
            return
        if delay:
            self._tasks.spawn(self._wake_later(reason, delay), "wake later")
        else:
            self._loop.wake(reason)

    async def _wake_later(self, reason: str, delay: float) -> None:
        await asyncio.sleep(delay)
        self.wake(reason)

    async def rebalance(self, reason: str = "asked for") -> bool:
        """One round now; True when every queue that is ours is held."""
        if self._suspended or self._closed or not self._ready:
            return False
        return await self.balance.run(reason)

    async def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        """221: progress in memory."""
        return self.offsets.clone(topic)

    async def running_info(self, jstack: bool) -> ConsumerRunningInfo:
        """307."""
        now, wall_ms = self.clock.monotonic(), self.clock.wall_ms()
        rows = {
            queue: item.info(self.offsets.remembered(queue) or 0, now, wall_ms)
            for queue, item in self.balance.table.items()
        }
        info = ConsumerRunningInfo(
            properties=running_properties(
                self.config,
                ordered=self.ordered,
                threads=self._thread_count(),
                started_ms=self._started_ms,
                consume_type=self.consume_type,
                nameservers=self.instance.nameservers,
            ),
            subscription_set=list(self._subscriptions.values()),
            status_table={topic: self._rates(topic) for topic in self._subscriptions},
            user_consumer_info={events.RECENT_KEY: self._events.recent_json()},
        )
        info.mq_table = {queue_text(queue): row for queue, row in sorted(rows.items())}
        if jstack:
            info.jstack = stacks()
        return info

    def _rates(self, topic: str) -> ConsumeRates:
        return ConsumeRates()

    def _thread_count(self) -> int:
        return 0

    @abstractmethod
    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """220: go on from these offsets."""

    @abstractmethod
    async def consume_directly(self, message: MessageView, broker_name: str | None) -> ConsumeDirectlyResult:
        """309."""

    # -- host of the rebalancer ------------------------------------------------------

    @property
    def ordered(self) -> bool:
        """Whether each queue's messages are consumed one after the other."""
        return False

    @property
    def needs_lock(self) -> bool:
        return not self.config.broadcasting and (self.ordered or self.config.handover == "lease")

    @property
    def drops_idle(self) -> bool:
        return False

    def topics(self) -> Sequence[str]:
        return list(self._subscriptions)

    def subscribed_queues(self, topic: str) -> Collection[MessageQueue] | None:
        return self.instance.subscribe_queues(topic)

    async def lock_queue(self, queue: MessageQueue) -> bool:
        return await self.locks.lock(queue)

    async def take_over(self, queue: MessageQueue) -> bool | None:
        return await self.locks.take_over(queue) if isinstance(self.locks, Leases) else None

    async def unlock_queue(self, queue: MessageQueue) -> None:
        await self.locks.unlock(queue)

    def lock_withheld(self, queue: MessageQueue) -> str | None:
        return self.locks.withheld(queue)

    def forget_offset(self, queue: MessageQueue) -> None:
        self.offsets.forget(queue)

    async def start_offset(self, queue: MessageQueue) -> int:
        return await self.computed_start(queue, ReadFrom.STORE)

    async def computed_start(self, queue: MessageQueue, source: ReadFrom) -> int:
        """Kept progress where there is any, else by ``consume_from_where``."""
        kept = await self.offsets.read(queue, source)
        if kept is not None and kept >= 0:
            return kept
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        where = self.config.consume_from_where
        if where is ConsumeFromWhere.FIRST_OFFSET:
            return 0
        if where is ConsumeFromWhere.TIMESTAMP:
            if is_retry:
                return await self.max_offset(queue)
            return await self.offset_for_time(queue, self.config.consume_timestamp_ms(self._started_ms))
        return 0 if is_retry else await self.max_offset(queue)

    @abstractmethod
    def begin(self, process_queue: ProcessQueue, offset: int) -> None: ...

    @abstractmethod
    def stop(self, process_queue: ProcessQueue) -> None: ...

    async def remove(self, process_queue: ProcessQueue) -> bool:
        """Gives a dropped queue up: commits it, releases its lock; False where it must wait."""
        queue = process_queue.queue
        if process_queue.draining and not process_queue.dropped:
            # A round may still be under way while the consumer closes, which gives up all queues by itself.
            if id(process_queue) not in self._handing_over and not self._closed:
                self._handing_over.add(id(process_queue))
                self._tasks.spawn(self._hand_over(process_queue), "hand over")
            return False
        await self._commit_for_good(queue)
        self.offsets.forget(queue)
        return True

    async def _hand_over(self, item: ProcessQueue) -> None:
        began = self.clock.monotonic()
        try:
            offset = await hand_over(item, self.offsets, self.locks)
        finally:
            self._handing_over.discard(id(item))
        seconds = self.clock.monotonic() - began
        self.emit(events.QueueReleased(group=self.group, queue=item.queue, offset=offset, seconds=seconds))
        self.balance.release(item)

    # -- host of the leases ----------------------------------------------------------

    def lease_lost(self, item: ProcessQueue) -> None:
        if item.dropped or self._closed:
            return
        log.error(
            "the lease of %s is lost; it is dropped, and what runs will not be committed. Was this process "
            "stopped or cut off for long, or the broker restarted?",
            item.queue,
        )
        self.emit(events.LeaseLost(group=self.group, queue=item.queue))
        self._drop_uncommitted(item, "its lease was lost")

    def lease_fenced(self, item: ProcessQueue, reason: str) -> None:
        log.warning("%s is fenced, nothing of it is begun or committed: %s", item.queue, reason)
        self.emit(events.LeaseFenced(group=self.group, queue=item.queue, reason=reason))

    def lease_confirmed(self, item: ProcessQueue, seconds: float) -> None:
        log.info("the lease of %s is confirmed after %.1f s; it goes on", item.queue, seconds)
        self.emit(events.LeaseConfirmed(group=self.group, queue=item.queue, seconds=seconds))
        self._resume(item)

    def _resume(self, item: ProcessQueue) -> None:
        """A fenced queue goes on."""

    def _drop_uncommitted(self, item: ProcessQueue, reason: str) -> None:
        """Drops a queue at once; others may be further with it than we are."""
        self.balance.mark_dropped(item, reason)
        item.draining, item.dropped = False, True
        self.offsets.forget(item.queue)
        self.balance.release(item)

    async def queues_changed(
        self, topic: str, queues: Collection[MessageQueue], mine: Collection[MessageQueue], reason: str
    ) -> None:
        """New subscription version, new limits, heartbeat, listeners (Java: messageQueueChanged)."""
        data = self._subscriptions.get(topic)
        if data is not None:
            data.sub_version = max(self.clock.wall_ms(), data.sub_version + 1)
        self._adjust_limits()
        self._announce_soon()
        for listener in list(self._queue_listeners):
            try:
                result = listener(topic, queues, mine, reason)
                if inspect.isawaitable(result):
                    await result
            except BaseException as error:
                if ends_task(error):
                    raise
                log.exception("a queue listener failed on %s", topic)

    def _adjust_limits(self) -> None: ...

    # -- the group's health ----------------------------------------------------------

    async def check_group(self) -> None:
        """Compares the group's subscriptions at a broker with ours; says so loudly where they differ."""
        topic = next(iter(self.subscriptions), None)
        if topic is None:
            return
        try:
            address = await self.instance.any_broker_of(topic)
            found = await management_calls.consumer_connections(self.instance, address, self.group)
        except RocketMQError as error:
            log.debug("the group's connections could not be read: %s", error)
            return
        ours = expressions(self._subscriptions.values())
        theirs = expressions(found.subscription_table.values())
        if theirs == ours or not theirs:
            self._unequal = None
            return
        if theirs != self._unequal:
            log.error(
                "members of group %s subscribe differently: here %s, elsewhere %s. Queues are shared out "
                "among all members, so some will be read by nobody. Give all members the same subscriptions, "
                "or those with others another group",
                self.group,
                ours,
                theirs,
            )
            self.emit(events.UnequalSubscriptions(group=self.group, ours=ours, theirs=theirs))
        self._unequal = theirs

    # -- offsets ---------------------------------------------------------------------

    async def persist_offsets(self) -> None:
        """Writes progress of all held queues away."""
        await self.offsets.persist_all(self._queues_with_progress())

    def _in_doubt(self, queue: MessageQueue) -> bool:
        """Whether a queue is fenced: its lease may be another's."""
        item = self._balance.table.get(queue) if self._balance is not None else None
        return item is not None and self.clock.monotonic() > item.holds_until
