"""One pull: which replica is asked, with which header, and what of the answer was wanted."""

from __future__ import annotations

from gimbalmq.client.consumer_config import TAG
from gimbalmq.client.consuming.ground import Ground
from gimbalmq.client.routes import BrokerAddress
from gimbalmq.errors import ResponseError, RocketMQError
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.results import PullResult, PullStatus
from gimbalmq.model.route import MASTER_ID
from gimbalmq.protocol.bodies import Subscription
from gimbalmq.protocol.codes import ResponseCode
from gimbalmq.protocol.headers.messages import PullMessage
from gimbalmq.rpc import messages as message_calls

_UNKNOWN_HERE = (int(ResponseCode.SUBSCRIPTION_NOT_EXIST), int(ResponseCode.SUBSCRIPTION_NOT_LATEST))
"""Answers of a broker that was restarted, or to which our heartbeat did not come through."""

DOUBT_SECONDS = 2.0
"""For so long after messages came from one replica, another is not believed that its queue ends before them."""


class Pulls:
    """Asks brokers for messages of one group's queues (Java: PullAPIWrapper)."""

    def __init__(self, ground: Ground) -> None:
        self._instance = ground.instance
        self._clock = ground.clock
        self._group = ground.group
        self._suggested: dict[MessageQueue, int] = {}
        self._found: dict[MessageQueue, tuple[str, float]] = {}
        """Who gave messages of a queue last, and when."""

    async def replica(self, queue: MessageQueue) -> BrokerAddress:
        """The replica that the broker last suggested, or one that is there; raises TopicRouteNotFoundError."""
        instance, broker_id = self._instance, self._suggested.get(queue, MASTER_ID)
        found = instance.find_reader(queue.broker_name, broker_id)
        if found is None:
            found = await instance.locate_broker(queue.topic, queue.broker_name, broker_id)
        return found

    async def ask(
        self,
        found: BrokerAddress,
        queue: MessageQueue,
        data: Subscription,
        offset: int,
        *,
        count: int,
        wait: float | None,
        timeout: float,
        with_subscription: bool,
        max_bytes: int | None = None,
        progress: int = 0,
        commits: bool = False,
    ) -> PullResult:
        """One pull; a broker that does not know us hears of us, and is asked once more.

        Args:
            found: whom to ask.
            count: messages wanted, at most.
            wait: seconds that the broker may keep the question if there is nothing; None is an answer at once.
            timeout: seconds until the answer must be here.
            with_subscription: the pull carries the expression; else the broker knows it by heartbeat.
            max_bytes: of the answer.
            progress, commits: what the group has settled, and whether the broker is to note it.
        """
        instance = self._instance
        sys_flag = 0 if wait is None else message_calls.PULL_SUSPEND
        if commits:
            sys_flag |= message_calls.PULL_COMMIT_OFFSET
        if with_subscription:
            sys_flag |= message_calls.PULL_SUBSCRIPTION
        header = PullMessage(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=count,
            sys_flag=sys_flag,
            commit_offset=progress,
            suspend_timeout_millis=int((wait or 0.0) * 1000),
            subscription=data.sub_string if with_subscription else None,
            sub_version=instance.heartbeats.version_known(found.address, self._group, queue.topic),
            expression_type=data.expression_type,
            max_msg_bytes=max_bytes,
            bname=queue.broker_name,
        )
        try:
            result = await self._call(found.address, header, queue, timeout)
        except RocketMQError:
            # A slave that is gone, or lets nobody read (Apache's 5.x, with code 2), is not asked for ever.
            self._suggested.pop(queue, None)
            raise
        self._suggested[queue] = result.suggested_broker_id
        self._look_at_end(found.address, queue, offset, result)
        if data.tags_set and data.expression_type in (None, TAG) and result.messages:
            # The broker compares hashes; different tags may share one.
            wanted = set(data.tags_set)
            result.messages = [message for message in result.messages if message.tags in wanted]
        return result

    def _look_at_end(self, address: str, queue: MessageQueue, offset: int, result: PullResult) -> None:
        """Replicas need not end at the same offset; what is not there yet is neither passed over nor lost."""
        now = self._clock.monotonic()
        if result.status is PullStatus.FOUND:
            self._found[queue] = (address, now)
        elif result.status is PullStatus.OFFSET_ILLEGAL and result.next_offset == result.max_offset < offset:
            giver, when = self._found.get(queue, (address, 0.0))
            if giver != address and now - when < DOUBT_SECONDS:
                # Apache's masters may show a message to readers later than their slaves do.
                result.status, result.next_offset = PullStatus.NO_NEW_MSG, offset

    async def _call(
        self, address: str, header: PullMessage, queue: MessageQueue, timeout: float
    ) -> PullResult:
        instance, sent = self._instance, self._clock.monotonic()
        try:
            return await message_calls.pull(instance, address, header, queue, timeout=timeout)
        except ResponseError as error:
            if error.code not in _UNKNOWN_HERE or not await instance.heartbeats.introduce(address, sent):
                raise
        return await message_calls.pull(instance, address, header, queue, timeout=timeout)
