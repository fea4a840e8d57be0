"""A consumer whose caller names queue and offset and keeps its own progress (Java: DefaultMQPullConsumer).

It is a member of its group, and the group shares out the queues of topics that it subscribes, but nothing is ever read
ahead: a round only tells which queues are ours. ``PullConsumer`` is the other kind (Java: DefaultLitePullConsumer),
which reads ahead, hands messages out in turn and knows by itself where it is.
"""

from __future__ import annotations

import math
from typing import Any

from gimbalmq.client.consumer import Consumer
from gimbalmq.client.consumer_config import TAG, QueuePullConsumerConfig, subscription_for
from gimbalmq.client.consuming.by_caller import ByCaller
from gimbalmq.client.consuming.engine import Engine
from gimbalmq.client.consuming.ground import Ground
from gimbalmq.client.consuming.held_queue import HeldQueue
from gimbalmq.client.consuming.member import Member
from gimbalmq.client.consuming.offsets import OffsetStore, ReadFrom
from gimbalmq.client.consuming.puller import Manner
from gimbalmq.client.consuming.requests import CallerRequests
from gimbalmq.client.consuming.send_back import Returns
from gimbalmq.client.instance import ClientInstance
from gimbalmq.errors import ConfigError, StateError
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.results import PullResult

_MOST_MESSAGES = 2**31 - 1
_LONGEST_WAIT = 3600.0


class QueuePullConsumer(Consumer[QueuePullConsumerConfig]):
    """Pulls what it is asked for: a queue, an offset, a number.

    >>> async with QueuePullConsumer("audit", "127.0.0.1:9876") as consumer:  # doctest: +SKIP
    ...     for queue in await consumer.queues("orders"):
    ...         offset = await consumer.committed(queue) or 0
    ...         result = await consumer.pull(queue, offset, max_messages=100)
    ...         print(result.status, len(result.messages))
    ...         await consumer.commit(queue, result.next_offset)

    Args:
        group: the consumer group's name.
        namesrv: name servers, ``host:port;host:port``.
        config: a whole configuration instead of the two and the options.
        offset_store: where progress is kept, instead of the broker or the local file.
        options: any field of ``QueuePullConsumerConfig``; ``profile="4.9"`` for RocketMQ 4.9's defaults.
    """

    def __init__(
        self,
        group: str = "",
        namesrv: str | list[str] | tuple[str, ...] = "",
        *,
        config: QueuePullConsumerConfig | None = None,
        offset_store: OffsetStore | None = None,
        **options: Any,
    ) -> None:
        config = QueuePullConsumerConfig.given(config, group=group, namesrv=namesrv, **options)
        super().__init__(config, offset_store)
        self._by_caller: ByCaller | None = None
        self._returns: Returns | None = None

    # -- which queues ----------------------------------------------------------------

    def subscribe(self, topic: str) -> None:
        """Joins the group's sharing of a topic's queues (Java: registerTopics).

        ``assignment`` has our share, ``on_queues_changed`` tells of changes. Nothing is read because of that, and a
        pull may ask for any queue.
        """
        self._subscribe(topic, "*", TAG)

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """All readable queues of a topic, asked of a name server now; raises TopicRouteNotFoundError."""
        found = await self.instance.fetch_subscribe_queues(topic)
        self._subscriptions.asked_for.add(topic)
        return found

    # -- composing -------------------------------------------------------------------

    def _check_start(self) -> None:
        """Whatever is wanted is asked for after the start."""

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
        self._by_caller = ByCaller(ground)
        self._returns = Returns(instance, config, max_times=config.max_reconsume_times)
        manner = Manner(by_itself=False)
        engine = Engine(ground, manner, self._by_caller, None, self._queue_listeners, pushes=False)
        return Member(engine, CallerRequests(engine))

    def _decompose(self) -> None:
        if self._returns is not None:
            self._returns.close()

    def _check_running(self) -> None:
        if not self.running:
            raise StateError(f"consumer {self.group} is not running: use it in `async with`, or call start()")

    # -- pulling ---------------------------------------------------------------------

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_messages: int = 32,
        expression: str = "*",
        expression_type: str = TAG,
        wait: float = 0.0,
    ) -> PullResult:
        """Asks the queue's broker once, and tells what it answers.

        The next pull goes on at ``next_offset`` of the result, whatever its status: FOUND; NO_NEW_MSG (the queue ends
        here); NO_MATCHED_MSG (the expression matched nothing of what was looked at); OFFSET_ILLEGAL (the queue does
        not reach there, ``min_offset`` and ``max_offset`` are its ends).

        Args:
            queue: any queue; whether it is ours by the group's sharing is up to the caller.
            max_messages: fewer may come although there are more: brokers have limits of their own.
            expression: ``*`` for all, ``a || b`` for tags, or a condition if the type is SQL92.
            wait: seconds the broker may wait for a message if there is none (Java: pullBlockIfNotFound, 20); 0 is an
                answer at once.

        Raises:
            ConfigError: an argument cannot be used.
            StateError: the consumer does not run, or was closed meanwhile.
            RocketMQError: there is no such broker, it refused, or it did not answer.
        """
        _check_queue(queue)
        _check_number("offset", offset, 0, 2**63 - 1)
        _check_number("max_messages", max_messages, 1, _MOST_MESSAGES)
        if not (isinstance(wait, int | float) and math.isfinite(wait) and 0 <= wait <= _LONGEST_WAIT):
            raise ConfigError("wait", wait, f"seconds, 0 to {_LONGEST_WAIT:g}")
        self._check_running()
        data = subscription_for(queue.topic, expression, 0, expression_type)
        assert self._by_caller is not None
        result = await self._by_caller.pull(
            queue,
            data,
            offset,
            count=max_messages,
            wait=wait or None,
            timeout=wait + self.config.pull_timeout,
        )
        self._subscriptions.asked_for.add(queue.topic)
        return result

    async def send_back(self, message: MessageView, delay_level: int = 0) -> None:
        """Has a message that could not be handled come again, in the retry topic of the group.

        Nobody reads that topic by itself: it is ``%RETRY%`` and the group's name, one more topic to pull.

        Args:
            delay_level: when: 0 is the broker's choice, -1 is never (a dead letter), else a delay level.

        Raises:
            RocketMQError: neither its broker took it back nor another one; nothing has changed.
        """
        _check_number("delay_level", delay_level, -1, 2**31 - 1)
        self._check_running()
        if self.config.broadcasting:
            raise StateError("a broadcasting group has no retry topic: nothing can be sent back")
        assert self._returns is not None
        await self._returns.give_back(message, delay_level, message.queue)

    # -- progress --------------------------------------------------------------------

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Notes that the group is done with everything before an offset, which may also be a smaller one than before.

        Of a queue that is ours by the group's sharing this is written away every ``persist_interval``, when the queue
        goes to another member, and at close. Of a topic that is not subscribed it is written away at once.

        Raises:
            StateError: the topic is subscribed, and the queue is not ours now: its owner keeps the progress.
        """
        _check_queue(queue)
        _check_number("offset", offset, 0, 2**63 - 1)
        self._check_running()
        held = self._held(queue)
        if held is not None:
            held.position = offset
            held.done_to(offset)
        elif queue.topic in self._subscriptions.by_topic:
            raise StateError(
                f"{queue} is not among the queues of this consumer now, so another member keeps its progress; "
                "on_queues_changed tells of such changes"
            )
        else:
            self.offsets.update(queue, offset, increase_only=False)
            try:
                await self.offsets.persist(queue, wait=True)
            finally:
                self.offsets.forget(queue)

    async def committed(self, queue: MessageQueue, *, from_store: bool = False) -> int | None:
        """The group's progress in a queue; None if it has none.

        Args:
            from_store: what the broker, or the file, has; else of our own queues what was noted last.
        """
        _check_queue(queue)
        self._check_running()
        offsets, held = self.offsets, self._held(queue)
        if held is not None and not from_store:
            return await offsets.read(queue, ReadFrom.MEMORY_FIRST_THEN_STORE)
        found = await offsets.read(queue, ReadFrom.STORE)
        held = self._held(queue)
        if held is None:
            offsets.forget(queue)  # whoever owns it moves it on
        elif held.position is not None:
            held.done_to(held.position)  # reading has put the stored one in its place
        return found

    def _held(self, queue: MessageQueue) -> HeldQueue | None:
        held = self.holdings.table.get(queue)
        return None if held is None or held.dropped else held

    async def _lag_of(self, queue: MessageQueue) -> int:
        newest, done = await self.max_offset(queue), await self.committed(queue)
        return max(0, newest - (await self.min_offset(queue) if done is None else done))


def _check_queue(queue: MessageQueue) -> None:
    if not isinstance(queue, MessageQueue):
        raise ConfigError("queue", queue, "a MessageQueue, such as queues(topic) gives")


def _check_number(name: str, value: int, low: int, high: int) -> None:
    if not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(name, value, f"a number of {low} to {high}")
