"""What brokers know of a queue's offsets, and where a group begins to read it."""

from __future__ import annotations

from gimbalmq.client.consumer_config import ConsumeFromWhere, ConsumerConfig
from gimbalmq.client.consuming.offsets import OffsetStore, ReadFrom
from gimbalmq.client.instance import ClientInstance
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.topics import RETRY_PREFIX
from gimbalmq.rpc import groups as group_calls


async def _master(instance: ClientInstance, queue: MessageQueue) -> str:
    return (await instance.locate_broker(queue.topic, queue.broker_name)).address


async def max_offset(instance: ClientInstance, queue: MessageQueue) -> int:
    """One past the newest message of a queue."""
    return await group_calls.max_offset(instance, await _master(instance, queue), queue)


async def min_offset(instance: ClientInstance, queue: MessageQueue) -> int:
    """The oldest message of a queue that is still there."""
    return await group_calls.min_offset(instance, await _master(instance, queue), queue)


async def offset_for_time(instance: ClientInstance, queue: MessageQueue, timestamp_ms: int) -> int:
    """The first message stored at or after a time, ms since 1970."""
    return await group_calls.search_offset(instance, await _master(instance, queue), queue, timestamp_ms)


class Starts:
    """Where to begin: at kept progress if there is any, else by ``consume_from_where``.

    Args:
        started_ms: when the consumer was started; "half an hour ago" counts from there.
    """

    def __init__(
        self, instance: ClientInstance, config: ConsumerConfig, offsets: OffsetStore, started_ms: int
    ) -> None:
        self._instance = instance
        self._config = config
        self._offsets = offsets
        self._started_ms = started_ms

    async def of(self, queue: MessageQueue, source: ReadFrom) -> int:
        """Raises RocketMQError if it cannot be known now."""
        kept = await self._offsets.read(queue, source)
        if kept is not None and kept >= 0:
            return kept
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        where = self._config.consume_from_where
        if where is ConsumeFromWhere.FIRST_OFFSET:
            return 0
        if where is ConsumeFromWhere.TIMESTAMP:
            if is_retry:
                return await max_offset(self._instance, queue)
            return await offset_for_time(
                self._instance, queue, self._config.consume_timestamp_ms(self._started_ms)
            )
        return 0 if is_retry else await max_offset(self._instance, queue)
