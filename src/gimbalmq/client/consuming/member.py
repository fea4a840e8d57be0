"""One running member of a consumer group: its parts, its life, and what the client instance asks of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Protocol

from gimbalmq.client import events
from gimbalmq.client.consuming.engine import Engine
from gimbalmq.client.consuming.group_check import FIRST_LOOK, GroupCheck
from gimbalmq.client.consuming.held_queue import HeldQueue
from gimbalmq.client.consuming.offsets import RemoteOffsets
from gimbalmq.client.consuming.report import row_of, running_properties, stacks
from gimbalmq.client.rates import SAMPLE_SECONDS
from gimbalmq.errors import RocketMQError
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.route import subscribe_queues
from gimbalmq.protocol.bodies import ConsumerData, TopicRoute
from gimbalmq.protocol.fastjson import queue_text
from gimbalmq.protocol.status_bodies import ConsumeDirectlyResult, ConsumerRunningInfo, ProcessQueueInfo

log = logging.getLogger(__name__)

_CANCEL_SECONDS = 3.0
"""How long leaving waits for a handler that takes no notice of its cancellation."""


class Requests(Protocol):
    """What brokers ask of one kind of consumer."""

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """220: go on from these offsets."""

    async def consume_directly(self, message: MessageView, broker_name: str | None) -> ConsumeDirectlyResult:
        """309: run the handler on this message now."""


class Member:
    """Joins a group with its parts, and leaves it; for the client instance it is a ``ConsumerMember``.

    Args:
        requests: answers what brokers ask of this kind of consumer.
        close_wait: how long leaving waits for handlers at work.
        threads: handlers that run at the same time, as the report tells.
    """

    def __init__(
        self, engine: Engine, requests: Requests, *, close_wait: float = 0.0, threads: int = 0
    ) -> None:
        self.ground = engine.ground
        self.engine = engine
        self.holdings = engine.holdings
        self.balancer = engine.balancer
        self.leases = engine.leases
        self.group_check = GroupCheck(engine.ground)
        self._requests = requests
        self._consume_type = "CONSUME_PASSIVELY" if engine.pushes else "CONSUME_ACTIVELY"
        self._close_wait = close_wait
        self._threads = threads
        self._announced = False
        self._leaving = False
        self._hurried = asyncio.Event()

    # -- life ------------------------------------------------------------------------

    @property
    def shares(self) -> bool:
        """Whether the group shares the queues out; not if they were assigned by hand."""
        return self.ground.subscriptions.by_hand is None

    @property
    def joined(self) -> bool:
        """Whether brokers know of us, and we do not leave."""
        return self._announced and not self._leaving

    def register(self) -> None:
        """Takes its place in the client instance, which then stays open: others may be about to leave it.

        Raises:
            StateError: the group has a consumer in this instance already.
        """
        ground = self.ground
        ground.subscriptions.date(ground.started_ms)
        ground.instance.register_consumer(ground.group, self)

    async def join(self) -> None:
        """Becomes a member of the group, and takes its share of the queues."""
        ground = self.ground
        await ground.offsets.load()
        await ground.instance.start()
        await ground.announcer.refresh_routes()
        await ground.announcer.check_filters()
        await ground.announcer.announce()
        self._start_timers()
        self._announced = True
        if self.shares:
            ground.wakes.open = True
            await self.balancer.run("start")
            ground.rounds.join(self.balancer)
        ground.tasks.spawn(ground.announcer.find_missing_routes(), "missing routes")

    def _start_timers(self) -> None:
        ground, config = self.ground, self.ground.config
        every = ground.tasks.every
        every(config.persist_interval, self.holdings.persist, "persist offsets")
        every(SAMPLE_SECONDS, lambda: ground.rates.sample(ground.clock.monotonic()), "sample rates")
        if self.leases is not None:
            every(config.lease_margin / 3, self.leases.renew, "renew leases")
            every(config.lease_margin / 6, self.leases.check, "check leases")
        elif ground.locks is not None:
            every(config.lock_interval, self.renew_locks, "renew locks", first=config.lock_first_delay)
        if config.check_group_interval and not config.broadcasting:
            first = min(FIRST_LOOK, config.check_group_interval)
            every(config.check_group_interval, self.group_check.run, "check group", first=first)

    async def renew_locks(self) -> None:
        """Ordered consumers without leases."""
        assert self.ground.locks is not None
        held = [item for item in self.holdings.all() if not item.dropped]
        await self.ground.locks.renew(held)

    def stop_sharing(self) -> None:
        """Takes no more part in the rounds: queues are assigned by hand from now on."""
        self.ground.rounds.leave(self.balancer)

    def hurry(self) -> None:
        """Whoever waits for the end does not want to wait for handlers any longer."""
        self._hurried.set()

    async def leave(self) -> None:
        """Lets handlers finish, commits, gives locks back, says goodbye. Each of these has a time limit."""
        ground = self.ground
        self._leaving = True
        ground.wakes.open = False
        ground.rounds.leave(self.balancer)
        self.balancer.close()
        self.holdings.drain()
        self.engine.worker.close()
        await self._quiet()
        try:
            await self.holdings.persist_finally()
        except (RocketMQError, OSError) as error:
            log.warning("progress of %s could not be committed at close: %s", ground.group, error)
        except Exception:  # an offset store of the user's; the rest must be done all the same
            log.exception("progress of %s could not be committed at close", ground.group)
        # Handlers that still run are ended before others may have their queues.
        await ground.tasks.close(_CANCEL_SECONDS)
        if ground.locks is not None:
            await ground.locks.give_back_all(wait=ground.locks.leased)
        if ground.instance.consumers.get(ground.group) is self:
            await ground.instance.unregister_consumer(ground.group)
        else:
            await ground.instance.close_if_unused()
        self.holdings.end()

    async def _quiet(self) -> None:
        """Waits for handlers at work, but no longer than the user wants to."""
        waiting = [
            asyncio.ensure_future(self.holdings.quiet()),
            asyncio.ensure_future(self._hurried.wait()),
        ]
        try:
            await asyncio.wait(waiting, timeout=self._close_wait, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiting:
                waiter.cancel()

    # -- subscriptions ---------------------------------------------------------------

    def subscribed(self, topic: str) -> None:
        """A topic was subscribed while we run."""
        if self.joined:
            self.ground.tasks.spawn(self._subscribe(topic), "subscribe")

    async def _subscribe(self, topic: str) -> None:
        await self.ground.announcer.introduce(topic)
        self.ground.wakes.wake(f"{topic} was subscribed")

    def unsubscribed(self, topic: str) -> None:
        if self.joined:
            self.ground.tasks.spawn(self.ground.announcer.announce(), "unsubscribe")
            self.ground.wakes.wake(f"{topic} was unsubscribed")

    # -- what the client instance asks -----------------------------------------------

    @property
    def liveness_interval(self) -> float:
        config = self.ground.config
        return 0.0 if config.broadcasting else config.liveness_interval

    def heartbeat_data(self) -> ConsumerData:
        config = self.ground.config
        return ConsumerData(
            consume_from_where=config.consume_from_where.value,
            consume_type=self._consume_type,
            group_name=config.group,
            message_model=config.message_model.value,
            subscription_data_set=list(self.ground.subscriptions.by_topic.values()),
            unit_mode=config.unit_mode,
        )

    def subscribed_topics(self) -> Iterable[str]:
        return self.ground.subscriptions.topics()

    def route_changed(self, topic: str, route: TopicRoute) -> None:
        ground = self.ground
        if not self.joined or topic not in ground.subscriptions.by_topic:
            return
        if ground.config.rebalance_on_route_change and self.shares:
            known = self.balancer.view.queues.get(topic, ())
            if set(known) != set(subscribe_queues(topic, route)):
                reason = f"the queues of {topic} changed"
                ground.tasks.spawn(self._announce_and_wake(reason), "route changed")

    async def _announce_and_wake(self, reason: str) -> None:
        await self.ground.announcer.announce()  # a broker that is new to the topic does not know us yet
        self.ground.wakes.wake(reason)

    def connection_lost(self, broker_name: str) -> None:
        if self.leases is not None:
            self.leases.connection_lost(broker_name)

    def connection_back(self, broker_name: str) -> None:
        if self._leaving:
            return
        if self.leases is not None:
            self.ground.tasks.spawn(self.leases.connection_back(broker_name), "renew leases at once")
        elif isinstance(self.ground.offsets, RemoteOffsets):
            self.ground.tasks.spawn(self.ground.offsets.tell_master(broker_name), "progress for a master")

    def expelled(self, broker_name: str) -> None:
        """Others were told that we are gone, and may have our queues of this broker: we begin anew with them."""
        ground = self.ground
        if not self.shares or self._leaving:
            return
        log.error(
            "broker %s heard nothing of this member of group %s for three times liveness_interval (%g s) and told "
            "the others that it is gone; it joins again. Was the process stopped, or its event loop blocked? "
            "Run handlers that compute for long as plain functions, or set liveness_interval higher",
            broker_name,
            ground.group,
            ground.config.liveness_interval,
        )
        ground.events.emit(events.MemberExpelled(group=ground.group, broker_name=broker_name))
        for item in self.holdings.all():
            if item.queue.broker_name == broker_name and not item.dropped:
                if self.leases is not None:
                    self.leases.lose(item)
                else:
                    self.holdings.abandon(item, "a broker took this member for hung")
        ground.wakes.wake("a broker took this member for hung")

    def wake_rebalance(self) -> None:
        self.ground.wakes.wake("a broker said that members changed")

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        await self._requests.reset_offsets(topic, offsets)

    async def consume_directly(self, message: MessageView, broker_name: str | None) -> ConsumeDirectlyResult:
        return await self._requests.consume_directly(message, broker_name)

    async def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        """221: progress in memory."""
        return self.ground.offsets.clone(topic)

    async def running_info(self, jstack: bool) -> ConsumerRunningInfo:
        """307."""
        ground = self.ground
        info = ConsumerRunningInfo(
            properties=running_properties(
                ground.config,
                ordered=self.engine.ordered,
                threads=self._threads,
                started_ms=ground.started_ms,
                consume_type=self._consume_type,
                nameservers=ground.instance.nameservers,
            ),
            subscription_set=list(ground.subscriptions.by_topic.values()),
            status_table={
                topic: ground.rates.of(topic, ground.clock.monotonic())
                for topic in ground.subscriptions.by_topic
            },
            user_consumer_info={events.RECENT_KEY: ground.events.recent_json()},
        )
        held = sorted(self.holdings.all(), key=lambda item: item.queue)
        info.mq_table = {queue_text(item.queue): self._row(item) for item in held}
        if jstack:
            info.jstack = stacks()
        return info

    def _row(self, item: HeldQueue) -> ProcessQueueInfo:
        clock = self.ground.clock
        return row_of(
            item, self.ground.offsets.remembered(item.queue) or 0, clock.monotonic(), clock.wall_ms()
        )
