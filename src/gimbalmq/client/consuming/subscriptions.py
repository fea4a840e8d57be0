"""What a consumer wants, and how brokers hear of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from gimbalmq.client.consumer_config import TAG, subscription_for
from gimbalmq.client.instance import ClientInstance
from gimbalmq.errors import ConfigError, RocketMQError, RouteError
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.topics import RETRY_PREFIX, topic_problem
from gimbalmq.protocol.bodies import Subscription
from gimbalmq.rpc import groups as group_calls
from gimbalmq.transport.tasks import Tasks

log = logging.getLogger(__name__)

_HEARTBEAT_TRIES = 200
_ROUTE_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 12.0)


class Subscriptions:
    """Subscribed topics, or queues that were assigned by hand.

    Attributes:
        by_topic: what brokers are told.
        by_hand: queues taken without the group's sharing; None if the group shares them out.
        asked_for: topics that the caller reads without a subscription; only their routes are wanted.
    """

    def __init__(self) -> None:
        self.by_topic: dict[str, Subscription] = {}
        self.by_hand: dict[MessageQueue, Subscription] | None = None
        self.asked_for: set[str] = set()

    def set(self, topic: str, expression: str | None, version: int, expression_type: str = TAG) -> None:
        """Raises ConfigError."""
        problem = topic_problem(topic)
        if problem is not None:
            raise ConfigError("topic", topic, problem)
        self.by_topic[topic] = subscription_for(topic, expression, version, expression_type)

    def date(self, now_ms: int) -> None:
        """Gives those that were noted before the start their version."""
        for data in self.by_topic.values():
            data.sub_version = data.sub_version or now_ms

    def renew(self, topic: str, now_ms: int) -> None:
        """A new version, by which brokers hear that the held queues have changed."""
        data = self.by_topic.get(topic)
        if data is not None:
            data.sub_version = max(now_ms, data.sub_version + 1)

    def of(self, queue: MessageQueue) -> Subscription | None:
        if self.by_hand is not None:
            return self.by_hand.get(queue)
        return self.by_topic.get(queue.topic)

    def topics(self) -> list[str]:
        """Everything whose routes are wanted, the retry topic included."""
        if not (self.by_hand or self.asked_for):
            return list(self.by_topic)
        return sorted({*self.by_topic, *self.asked_for, *(queue.topic for queue in self.by_hand or ())})

    def texts(self) -> dict[str, str]:
        """Topic to expression; the retry topic left out."""
        return {
            topic: data.sub_string or "*"
            for topic, data in self.by_topic.items()
            if not topic.startswith(RETRY_PREFIX)
        }


def expressions(subscriptions: Iterable[Subscription]) -> dict[str, str]:
    """Topic to expression, tags in one order, without the retry topic."""
    return {
        data.topic: " || ".join(sorted(data.tags_set)) or data.sub_string or "*"
        for data in subscriptions
        if not data.topic.startswith(RETRY_PREFIX)
    }


class Announcer:
    """Tells brokers of changed subscriptions, and finds the routes of what is subscribed."""

    def __init__(
        self, instance: ClientInstance, group: str, subscriptions: Subscriptions, tasks: Tasks
    ) -> None:
        self._instance = instance
        self._group = group
        self._subscriptions = subscriptions
        self._tasks = tasks
        self._task: asyncio.Task[None] | None = None
        self._again = False

    async def announce(self) -> None:
        """Tells all brokers of our subscriptions."""
        for _ in range(_HEARTBEAT_TRIES):
            if await self._instance.heartbeat():
                break
            await asyncio.sleep(0.005)  # another is under way and may carry what was before

    def soon(self) -> None:
        """The same behind the scenes: a broker that does not answer must not hold up a round."""
        self._again = True
        if self._task is None or self._task.done():
            self._task = self._tasks.spawn(self._keep_announcing(), "announce")

    async def _keep_announcing(self) -> None:
        while self._again:
            self._again = False
            await self.announce()

    async def refresh_routes(self) -> None:
        await asyncio.gather(*(self._refresh(topic) for topic in self._subscriptions.topics()))

    async def _refresh(self, topic: str) -> None:
        try:
            await self._instance.refresh_route(topic)
        except RocketMQError as error:
            level = logging.DEBUG if topic.startswith(RETRY_PREFIX) else logging.WARNING
            log.log(level, "no route for %s yet: %s", topic, error)

    async def find_missing_routes(self) -> None:
        """Brokers make the retry topic when they first hear of the group: its route comes a moment later."""
        for pause in _ROUTE_PAUSES:
            await asyncio.sleep(pause)
            topics: Iterable[str] = self._subscriptions.topics()
            missing = [topic for topic in topics if self._instance.route(topic) is None]
            if not missing:
                return
            for topic in missing:
                try:
                    await self._instance.refresh_route(topic)
                except RocketMQError as error:
                    log.debug("no route for %s yet: %s", topic, error)

    async def introduce(self, topic: str) -> None:
        """A topic was subscribed while we run."""
        await self.announce()
        try:
            await self._instance.refresh_route(topic)
        except RocketMQError as error:
            log.warning("no route for %s yet: %s", topic, error)

    async def check_filters(self) -> None:
        """Asks one broker of each topic whether it can filter so; tags every broker can.

        Raises:
            ResponseError: it cannot.
        """
        for data in list(self._subscriptions.by_topic.values()):
            if data.expression_type in (None, TAG):
                continue
            try:
                address = await self._instance.any_broker_of(data.topic)
            except RouteError:
                continue
            await group_calls.check_client_config(
                self._instance, address, self._instance.client_id, self._group, data
            )
