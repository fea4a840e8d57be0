"""What a consumer asks of brokers: pulls, offsets, members, locks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Generic, TypeVar

from gimbalmq._clock import Clock
from gimbalmq.client.consumer_config import TAG, ConsumerConfig
from gimbalmq.client.instance import ClientInstance
from gimbalmq.errors import ResponseError, StateError, TopicRouteNotFoundError
from gimbalmq.model.queues import MessageQueue, sort_queues
from gimbalmq.model.results import PullResult
from gimbalmq.protocol.bodies import Subscription
from gimbalmq.protocol.codes import ResponseCode
from gimbalmq.protocol.headers.messages import PullMessage
from gimbalmq.rpc import groups as group_calls
from gimbalmq.rpc import messages as message_calls

C = TypeVar("C", bound=ConsumerConfig)

_UNKNOWN_HERE = (int(ResponseCode.SUBSCRIPTION_NOT_EXIST), int(ResponseCode.SUBSCRIPTION_NOT_LATEST))
"""Answers of a broker that was restarted, or to which our heartbeat did not come through."""


class ConsumerCalls(ABC, Generic[C]):
    """The part of a consumer that talks to brokers."""

    config: C
    group: str
    _suggested: dict[MessageQueue, int]

    @property
    @abstractmethod
    def instance(self) -> ClientInstance:
        """The client instance; raises StateError before start and after close."""

    @property
    def client_id(self) -> str:
        return self.instance.client_id

    @property
    def clock(self) -> Clock:
        return self.instance.clock

    @abstractmethod
    def _in_doubt(self, queue: MessageQueue) -> bool:
        """Whether a queue is fenced: its lease may be another's."""

    # -- the group -------------------------------------------------------------------

    async def member_ids(self, topic: str) -> list[str] | None:
        address = await self.instance.any_broker_of(topic)
        return await group_calls.member_ids(
            self.instance, address, self.group, timeout=self.config.api_timeout
        )

    async def members_at(self, queue: MessageQueue) -> list[str] | None:
        address = await self._master(queue)
        return await group_calls.member_ids(
            self.instance, address, self.group, timeout=self.config.api_timeout
        )

    # -- offsets ---------------------------------------------------------------------

    async def _fetch_offset(self, queue: MessageQueue) -> int | None:
        found = await self.instance.locate_broker(queue.topic, queue.broker_name)
        return await group_calls.query_offset(self.instance, found.address, self.group, queue)

    async def _commit_offset(self, queue: MessageQueue, offset: int, wait: bool) -> None:
        if self._in_doubt(queue):
            raise StateError(
                f"the lease of {queue} is in doubt; offset {offset} is committed once it is ours"
            )
        found = await self.instance.locate_broker(queue.topic, queue.broker_name)
        if wait:
            await group_calls.update_offset(
                self.instance, found.address, self.group, queue, offset, timeout=self.config.api_timeout
            )
        else:
            await group_calls.update_offset_oneway(self.instance, found.address, self.group, queue, offset)

    async def max_offset(self, queue: MessageQueue) -> int:
        """One past the newest message of a queue."""
        return await group_calls.max_offset(self.instance, await self._master(queue), queue)

    async def min_offset(self, queue: MessageQueue) -> int:
        """The oldest message of a queue that is still there."""
        return await group_calls.min_offset(self.instance, await self._master(queue), queue)

    async def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first message stored at or after a time, ms since 1970."""
        return await group_calls.search_offset(self.instance, await self._master(queue), queue, timestamp_ms)

    async def _master(self, queue: MessageQueue) -> str:
        return (await self.instance.locate_broker(queue.topic, queue.broker_name)).address

    # -- pulling ---------------------------------------------------------------------

    async def _pull(
        self,
        queue: MessageQueue,
        data: Subscription,
        offset: int,
        *,
        count: int,
        sys_flag: int,
        commit_offset: int = 0,
        max_bytes: int | None = None,
    ) -> PullResult:
        """One pull from the replica the broker last suggested."""
        instance = self.instance
        broker_id = self._suggested.get(queue, 0)
        found = instance.find_broker(queue.broker_name, broker_id)
        if found is None:
            found = await instance.locate_broker(queue.topic, queue.broker_name, broker_id)
        if found.is_slave or self._in_doubt(queue):
            sys_flag &= ~message_calls.PULL_COMMIT_OFFSET
        with_subscription = sys_flag & message_calls.PULL_SUBSCRIPTION
        header = PullMessage(
            consumer_group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=count,
            sys_flag=sys_flag,
            commit_offset=commit_offset,
            suspend_timeout_millis=int(self.config.broker_suspend * 1000),
            subscription=data.sub_string if with_subscription else None,
            sub_version=instance.heartbeats.version_known(found.address, self.group, queue.topic),
            expression_type=data.expression_type,
            max_msg_bytes=max_bytes,
            bname=queue.broker_name,
        )
        sent = self.clock.monotonic()
        timeout = self.config.pull_timeout
        try:
            result = await message_calls.pull(instance, found.address, header, queue, timeout=timeout)
        except ResponseError as error:
            if error.code not in _UNKNOWN_HERE or not await instance.heartbeats.introduce(
                found.address, sent
            ):
                raise
            result = await message_calls.pull(instance, found.address, header, queue, timeout=timeout)
        self._suggested[queue] = result.suggested_broker_id
        if data.tags_set and data.expression_type in (None, TAG) and result.messages:
            # The broker compares hashes; different tags may share one.
            wanted = set(data.tags_set)
            result.messages = [message for message in result.messages if message.tags in wanted]
        return result


class LockCallsToMasters(Generic[C]):
    """41 and 42 to masters, for a consumer."""

    def __init__(self, consumer: ConsumerCalls[C]) -> None:
        self._consumer = consumer

    def _master(self, broker_name: str) -> str:
        address = self._consumer.instance.master_address(broker_name)
        if address is None:
            raise TopicRouteNotFoundError(f"the broker {broker_name} has no master")
        return address

    async def lock(self, broker_name: str, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        consumer = self._consumer
        return await group_calls.lock_queues(
            consumer.instance,
            self._master(broker_name),
            consumer.group,
            consumer.client_id,
            sort_queues(queues),
        )

    async def take_over(self, broker_name: str, queues: Collection[MessageQueue]) -> set[MessageQueue] | None:
        consumer = self._consumer
        return await group_calls.take_over_locks(
            consumer.instance,
            self._master(broker_name),
            consumer.group,
            consumer.client_id,
            sort_queues(queues),
        )

    async def unlock(self, broker_name: str, queues: Collection[MessageQueue], *, wait: bool) -> None:
        consumer = self._consumer
        call = group_calls.unlock_queues if wait else group_calls.unlock_queues_oneway
        await call(
            consumer.instance,
            self._master(broker_name),
            consumer.group,
            consumer.client_id,
            sort_queues(queues),
        )
