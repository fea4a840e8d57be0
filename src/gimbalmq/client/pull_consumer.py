"""A consumer you ask for messages (Java: DefaultLitePullConsumer).

Either subscribe topics, and the group shares out their queues, or assign queues by hand. One loop per queue
reads ahead into a window of bounded size; ``poll`` takes from there. A message counts as done when the next
one is asked for: what ``poll`` returned last is committed no earlier than in the next call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from gimbalmq.client.consumer import Consumer
from gimbalmq.client.consumer_config import TAG, PullConsumerConfig, subscription_for
from gimbalmq.client.consuming.assigned import Assigned
from gimbalmq.client.consuming.engine import Engine
from gimbalmq.client.consuming.ground import Ground
from gimbalmq.client.consuming.held_queue import READING, HeldQueue, Work
from gimbalmq.client.consuming.member import Member
from gimbalmq.client.consuming.offsets import OffsetStore, ReadFrom
from gimbalmq.client.consuming.polled import Polled
from gimbalmq.client.consuming.puller import Manner
from gimbalmq.client.consuming.requests import PullRequests
from gimbalmq.client.instance import ClientInstance
from gimbalmq.errors import ConfigError, RocketMQError, StateError
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue

log = logging.getLogger(__name__)


class PullConsumer(Consumer[PullConsumerConfig]):
    """Hands out the messages of its queues when asked.

    >>> async with PullConsumer("orders", "127.0.0.1:9876") as consumer:      # doctest: +SKIP
    ...     consumer.subscribe("TopicTest")
    ...     async for message in consumer:
    ...         print(message.body)

    Args:
        group: the consumer group's name.
        namesrv: name servers, ``host:port;host:port``.
        config: a whole configuration instead of the two and the options.
        offset_store: where progress is kept, instead of the broker or the local file.
        options: any field of ``PullConsumerConfig``; ``profile="4.9"`` for RocketMQ 4.9's defaults.
    """

    def __init__(
        self,
        group: str = "",
        namesrv: str | list[str] | tuple[str, ...] = "",
        *,
        config: PullConsumerConfig | None = None,
        offset_store: OffsetStore | None = None,
        **options: Any,
    ) -> None:
        config = PullConsumerConfig.given(config, group=group, namesrv=namesrv, **options)
        super().__init__(config, offset_store)
        self._polled: Polled | None = None
        self._assigned: Assigned | None = None
        self._next_commit: float | None = None

    # -- which queues ----------------------------------------------------------------

    def subscribe(self, topic: str, expression: str = "*", *, expression_type: str = TAG) -> None:
        """Joins the group's sharing of a topic's queues.

        Raises:
            StateError: queues have been assigned by hand.
        """
        if self._subscriptions.by_hand is not None:
            raise StateError("queues have been assigned by hand; a consumer either subscribes or is assigned")
        self._subscribe(topic, expression, expression_type)

    def assign(self, queues: Iterable[MessageQueue], expression: str = "*") -> None:
        """Takes exactly these queues, whoever else reads them; a later call replaces them.

        Raises:
            StateError: a topic has been subscribed.
        """
        if self._subscriptions.by_topic:
            raise StateError("topics have been subscribed; a consumer either subscribes or is assigned")
        first_time = self._subscriptions.by_hand is None
        self._subscriptions.by_hand = {
            queue: subscription_for(queue.topic, expression, 0) for queue in queues
        }
        if self._assigned is not None and self.member.joined:
            if first_time:
                self.member.stop_sharing()
            self._tasks.spawn(self._assigned.settle(self._assigned.apply()), "assign")

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """All readable queues of a topic, asked of a name server now."""
        return await self.instance.fetch_subscribe_queues(topic)

    # -- composing -------------------------------------------------------------------

    def _check_start(self) -> None:
        """Topics may be subscribed, and queues assigned, after the start too."""

    def _compose(self, instance: ClientInstance) -> Member:
        config = self.config
        ground = Ground(
            instance,
            config,
            self._subscriptions,
            self._events,
            self._tasks,
            self._offset_store,
            ordered=False,
        )
        self._polled = Polled(ground.clock, self._tasks, notes=config.auto_commit)
        manner = Manner(
            with_subscription=True,
            pause_delay=config.pause_delay,
            start_delay=config.offset_failure_delay,
            all_messages=config.pull_threshold_for_all,
        )
        engine = Engine(ground, manner, self._polled, None, self._queue_listeners, pushes=False)
        self._assigned = Assigned(engine)
        return Member(engine, PullRequests(engine, self._polled))

    async def _join(self, member: Member) -> None:
        await super()._join(member)
        if self._assigned is not None and not member.shares:
            await self._assigned.settle(self._assigned.apply())

    def _decompose(self) -> None:
        self._assigned = None

    @property
    def _waiting(self) -> Polled:
        if self._polled is None:
            raise StateError(f"consumer {self.group} is not running: use it in `async with`, or call start()")
        return self._polled

    async def __aexit__(self, *exc: object) -> None:
        if self._polled is not None and exc and exc[0] is not None:
            self._polled.let_go_handed()  # the block was left in the middle of what it had been given
        await self.close()

    # -- polling ---------------------------------------------------------------------

    async def poll(self, timeout: float | None = None) -> list[MessageView]:
        """The next messages of one queue; an empty list when none came in time.

        Asking again means that what was returned before is done, and so does close(). Leaving ``async with``
        by an exception does not: these messages come again.

        Args:
            timeout: seconds to wait; left out, it is the config's ``poll_timeout``.
        """
        work = await self._next(self.config.poll_timeout if timeout is None else timeout)
        if work is None:
            return []
        work.held.position = _offset_after(work)
        return work.messages

    def take_back(self, messages: list[MessageView]) -> None:
        """What ``poll`` has returned has reached nobody: it comes again, as after a ``seek``."""
        held = self._waiting.take_back(messages)
        if held is not None:
            self.member.engine.puller.start(held, messages[0].queue_offset)

    async def __aiter__(self) -> AsyncIterator[MessageView]:
        """Messages one by one, until the consumer is closed."""
        while self.running:
            # One by one, so that a loop that is left leaves behind what it has not been given.
            work = await self._next(None, single=True)
            if work is None:
                continue
            held, (message,) = work.held, work.messages
            following = _offset_after(work)
            held.position = None if following is None else min(message.queue_offset, following)
            yield message
            if self._waiting.is_out(work):  # no seek has moved the queue elsewhere meanwhile
                held.position = following

    async def _next(self, timeout: float | None, *, single: bool = False) -> Work | None:
        if not self.running:
            raise StateError(f"consumer {self.group} is not running: use it in `async with`, or call start()")
        self._waiting.finish_handed()
        await self._commit_when_due()
        return await self._waiting.next(timeout, single=single)

    # -- progress --------------------------------------------------------------------

    async def _commit_when_due(self) -> None:
        if not self.config.auto_commit:
            return
        now = self.clock.monotonic()
        if self._next_commit is None:
            self._next_commit = now + self.config.auto_commit_interval
        elif now >= self._next_commit:
            self._next_commit = now + self.config.auto_commit_interval
            try:
                await self.commit(wait=False)
            except RocketMQError as error:
                log.warning("progress of %s could not be committed, next try soon: %s", self.group, error)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None, *, wait: bool = True) -> None:
        """Writes progress away.

        Args:
            offsets: these, instead of everything handed out so far.
            wait: until the brokers have answered.
        """
        concerned = []
        for held in self.holdings.with_progress():
            offset = held.position if offsets is None else offsets.get(held.queue)
            if offset is None or offset < 0 or (offsets is None and held.in_doubt):
                continue
            held.done_to(offset)
            concerned.append(held)
        await asyncio.gather(*(held.commit(wait=wait) for held in concerned))

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's progress in a queue; None if it has none."""
        return await self.offsets.read(queue, ReadFrom.MEMORY_FIRST_THEN_STORE)

    def position(self, queue: MessageQueue) -> int | None:
        """The offset that ``commit`` would write for a queue; None if nothing has been handed out yet."""
        held = self._member.holdings.table.get(queue) if self._member is not None else None
        return held.position if held is not None else None

    async def _lag_of(self, queue: MessageQueue) -> int:
        position = self.position(queue)
        if position is None:
            return await super()._lag_of(queue)
        return max(0, await self.max_offset(queue) - position)

    # -- moving and holding ----------------------------------------------------------

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Goes on from another offset of a held queue.

        Raises:
            StateError: the queue is not held.
            ConfigError: the queue does not reach there.
        """
        low, high = await asyncio.gather(self.min_offset(queue), self.max_offset(queue))
        held = self._held(queue)
        if not low <= offset <= high:
            raise ConfigError("offset", offset, f"{queue} reaches from {low} to {high}")
        self._waiting.move(held, offset)
        self.member.engine.puller.start(held, offset)

    def _held(self, queue: MessageQueue) -> HeldQueue:
        held = self.holdings.table.get(queue)
        if held is None or held.state is not READING:
            raise StateError(f"{queue} is not among the queues of this consumer")
        return held

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        await self.seek(queue, await self.min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        await self.seek(queue, await self.max_offset(queue))

    async def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Goes on from the first message stored at or after a time, ms since 1970."""
        await self.seek(queue, await self.offset_for_time(queue, timestamp_ms))

    def pause(self, *queues: MessageQueue) -> None:
        """Hands out nothing of these queues until they are resumed; they stay ours."""
        for queue in queues:
            held = self.holdings.table.get(queue)
            if held is not None:
                held.paused = True

    def resume(self, *queues: MessageQueue) -> None:
        for queue in queues:
            held = self.holdings.table.get(queue)
            if held is not None:
                held.paused = False
        self._waiting.wake()


def _offset_after(work: Work) -> int | None:
    """Where its queue goes on once these messages have left the window; None if it was made anew since they came."""
    offset = work.held.window.remove(work.messages)
    return None if offset < 0 else offset
