"""Where messages go: the queues a topic can be sent to, and which of them is next."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Sequence
from contextvars import ContextVar
from typing import Any, Final

from gimbalmq.balance.latency import FaultStrategy, FaultTable
from gimbalmq.balance.select import PublishQueues, Rotation, select_by_function, select_by_hash
from gimbalmq.client.config import ProducerConfig
from gimbalmq.client.instance import ClientInstance
from gimbalmq.client.sending.rules import Place
from gimbalmq.errors import (
    MessageIllegalError,
    NoWritableQueueError,
    RequestTimeoutError,
    StateError,
    TopicRouteNotFoundError,
)
from gimbalmq.model.message import Message
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.route import publish_queues, write_queue_counts
from gimbalmq.protocol.bodies import TopicRoute

log = logging.getLogger(__name__)

CALLER: Final[ContextVar[Hashable]] = ContextVar("gimbalmq_caller", default=None)
"""Whose rotation a send continues. Blocking producers set it to the calling thread; a loop is one caller."""

Selector = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue]


class Targets:
    """The queues of topics that one sender sends to.

    Attributes:
        known: by topic.
        unwritable: topics that had queues, and have none that may be written: their masters are away. Their routes are
            kept fresh, so that heartbeats reach who becomes the master, and it can ask about transactions.
        records: whether slow and failing brokers are avoided for a while (``latency_fault``).
        faults: how brokers have done, if that counts.
    """

    def __init__(self, instance: ClientInstance, config: ProducerConfig) -> None:
        self._instance = instance
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._searches: dict[str, asyncio.Task[PublishQueues]] = {}
        self._closed = False
        self.known: dict[str, PublishQueues] = {}
        self.unwritable: set[str] = set()
        instance.route_listeners.append(self._route_changed)
        self.records = config.latency_fault
        self.faults = FaultStrategy(
            FaultTable(instance.rng), enabled=config.latency_fault, rule=config.fault_rule
        )

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._instance.route_listeners.remove(self._route_changed)
        for search in self._searches.values():
            search.cancel()

    # -- the queues of a topic ----------------------------------------------------------

    def _route_changed(self, topic: str, route: TopicRoute) -> None:
        if topic in self.known or topic in self.unwritable:
            self._take_route(topic, route)

    def _take_route(self, topic: str, route: TopicRoute) -> PublishQueues | None:
        queues = publish_queues(topic, route)
        if not queues:
            # The next send asks again.
            log.warning("the route of %s has no queue that may be written", topic)
            if self.known.pop(topic, None) is not None:
                self.unwritable.add(topic)
            return None
        self.unwritable.discard(topic)
        rotation = Rotation(self._instance.rng)
        made = PublishQueues(topic, queues, rotation, write_queue_counts=write_queue_counts(route))
        self.known[topic] = made
        return made

    async def find(self, topic: str, limit: float) -> PublishQueues:
        """The topic's queues, asked for: its own, or those of the topic that new ones are made after.

        A thousand first sends of a topic wait for one search.
        """
        if self._closed:
            raise self._was_closed()
        searching = self._searches.get(topic)
        if searching is None:
            searching = self._searches[topic] = self._loop.create_task(self._search(topic))
            searching.add_done_callback(lambda task: self._searched(topic, task))
        done, _ = await asyncio.wait((searching,), timeout=limit)
        if not done:
            raise RequestTimeoutError(
                f"no name server told the route of {topic} within {limit:g} s; this message was not sent"
            )
        if searching.cancelled():
            raise self._was_closed()
        return searching.result()

    def _was_closed(self) -> StateError:
        return StateError(f"producer {self._config.group} was closed; this message was not sent")

    def _searched(self, topic: str, task: asyncio.Task[PublishQueues]) -> None:
        self._searches.pop(topic, None)
        if not task.cancelled():
            task.exception()  # every sender may have given up; asyncio would complain of an unread error

    async def _search(self, topic: str) -> PublishQueues:
        instance = self._instance
        try:
            await instance.refresh_route(topic)
        except TopicRouteNotFoundError:
            if instance.route(topic) is None:
                await self._use_default_route(topic)
        route = instance.route(topic)
        found = None if route is None else self._take_route(topic, route)
        if found is None:
            raise NoWritableQueueError(f"topic {topic} has no queue that may be written")
        return found

    async def _use_default_route(self, topic: str) -> None:
        try:
            await self._instance.refresh_route(
                topic,
                default_topic=self._config.create_topic_key,
                default_queue_nums=self._config.default_topic_queue_nums,
            )
        except TopicRouteNotFoundError as error:
            raise TopicRouteNotFoundError(
                f"no route info of topic {topic}: create it, or let the broker create topics by itself"
            ) from error

    # -- one of them --------------------------------------------------------------------

    def choose(
        self,
        publish: PublishQueues,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        argument: Any,
    ) -> MessageQueue:
        """The queue a message is bound to: given, selected, by its sharding key; else the next one."""
        if queue is not None:
            if queue.topic != message.topic:
                raise MessageIllegalError(
                    f"the message's topic {message.topic} is not the queue's, {queue.topic}"
                )
            return queue
        if selector is not None:
            return select_by_function(publish.queues, selector, message, argument)
        if message.sharding_key is not None:
            return select_by_hash(publish.queues, message.sharding_key)
        return self.next(publish, None) if self.records else publish.next_queue(CALLER.get())

    def next(self, publish: PublishQueues, last_broker: str | None) -> MessageQueue:
        """Any queue, of another broker than the last one if there is one."""
        if not self.records:
            return publish.next_queue_avoiding(last_broker, CALLER.get())
        return self.faults.select(
            publish,
            now_ms=self._loop.time() * 1000,
            rng=self._instance.rng,
            last_broker=last_broker,
            caller=CALLER.get(),
        )

    def another(self, topic: str, failed: MessageQueue | None, place: Place) -> MessageQueue:
        """Where to go after an attempt that failed."""
        assert failed is not None, "an attempt has a queue"
        publish = self.known.get(topic)
        if place is Place.SAME_QUEUE or publish is None:
            return failed
        other = self.next(publish, failed.broker_name)
        if place is Place.ANYWHERE:
            return other
        same_id = MessageQueue(topic, other.broker_name, failed.queue_id)
        if same_id in publish.queues:
            return same_id
        found = publish.next_queue_where(
            lambda queue: queue.queue_id == failed.queue_id and queue.broker_name != failed.broker_name,
            CALLER.get(),
        )
        return failed if found is None else found

    def record(self, broker_name: str, started: float, *, failed: bool, reachable: bool = True) -> None:
        """Notes how a broker did at something that began at ``started``."""
        if self.records:
            now = self._loop.time()
            self.faults.record(
                broker_name,
                (now - started) * 1000,
                failed=failed,
                now_ms=now * 1000,
                reachable=reachable,
            )
