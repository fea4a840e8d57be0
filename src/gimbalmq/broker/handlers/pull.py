"""Pulling: 11 and 361, with long polling."""

from __future__ import annotations

import logging

from gimbalmq.broker.clients import Consumers
from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.longpoll import LongPoll, Parked
from gimbalmq.broker.metadata import ConsumerOffsets, Groups, Topics
from gimbalmq.broker.stats import Stats
from gimbalmq.errors import (
    InvalidParameterError,
    NoPermissionError,
    ResponseError,
    SubscriptionGroupNotExistError,
    TopicNotExistError,
)
from gimbalmq.filter.tags import TagFilter, parse_tags
from gimbalmq.model.flags import PERM_READ
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import ONEWAY_FLAG, RemotingCommand
from gimbalmq.protocol.headers.messages import PullMessage, PullMessageReply
from gimbalmq.store.message_store import MessageStore
from gimbalmq.store.results import GetResult, GetStatus
from gimbalmq.transport.channel import Answer, Channel, Handlers, error_reply

log = logging.getLogger(__name__)

COMMIT_OFFSET = 1
SUSPEND = 2
SUBSCRIPTION = 4

_CODES = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}


class PullHandlers:
    """Java: PullMessageProcessor."""

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        consumers: Consumers,
        offsets: ConsumerOffsets,
        long_poll: LongPoll,
        live: LiveConfig,
        stats: Stats,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._offsets = offsets
        self._long_poll = long_poll
        self._live = live
        self._stats = stats

    def register(self, handlers: Handlers) -> None:
        handlers.add(RequestCode.PULL_MESSAGE, self.pull)
        handlers.add(RequestCode.LITE_PULL_MESSAGE, self.pull)

    def pull(self, channel: Channel, request: RemotingCommand) -> Answer:
        header = PullMessage.from_ext(request.ext_fields)
        return self._serve(channel, request, header, may_wait=True)

    def _serve(
        self, channel: Channel, request: RemotingCommand, header: PullMessage, *, may_wait: bool
    ) -> Answer:
        wanted = self._admit(header)
        if may_wait and header.sys_flag & COMMIT_OFFSET:
            self._offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        reset = self._offsets.take_reset(header.consumer_group, header.topic, header.queue_id)
        if reset is not None:
            return self._moved(request, header, reset)
        result = self._store.get(
            header.topic,
            header.queue_id,
            header.queue_offset,
            max(1, header.max_msg_nums),
            header.max_msg_bytes or 0x7FFFFFFF,
            wanted.codes,
        )
        code = _CODES.get(result.status)
        if code is None:
            # No queue yet, or an empty one: only offset 0 makes sense there.
            moved = header.queue_offset != 0
            code = ResponseCode.PULL_OFFSET_MOVED if moved else ResponseCode.PULL_NOT_FOUND
        if code == ResponseCode.PULL_NOT_FOUND and may_wait and header.sys_flag & SUSPEND:
            self._park(channel, request, header, wanted)
            return None
        self._count(header, result)
        return request.reply(
            code,
            result.status.name,
            _reply_fields(result.next_offset, result.min_offset, result.max_offset),
            result.body,
        )

    def _admit(self, header: PullMessage) -> TagFilter:
        """Who may pull what; raises the protocol's refusals, in Apache's order."""
        config = self._live.now
        if not config.broker_permission & PERM_READ:
            raise NoPermissionError(f"the broker[{config.broker_ip1}] pulling message is forbidden")
        group = self._groups.find(header.consumer_group)
        if group is None:
            raise SubscriptionGroupNotExistError(
                f"subscription group [{header.consumer_group}] does not exist; create it, "
                "or set autoCreateSubscriptionGroup=true"
            )
        if not group.consume_enable:
            raise NoPermissionError(f"subscription group no permission, {header.consumer_group}")
        topic = self._topics.find(header.topic)
        if topic is None:
            raise TopicNotExistError(f"topic[{header.topic}] not exist, apply first please!")
        if not topic.perm & PERM_READ or not self._groups.may_read(header.consumer_group, header.topic):
            raise NoPermissionError(f"the topic[{header.topic}] pulling message is forbidden")
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise InvalidParameterError(
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}]"
            )
        if header.sys_flag & SUBSCRIPTION:
            return self._filter(header.expression_type, header.subscription)
        return self._registered_filter(header, group.consume_broadcast_enable)

    def _registered_filter(self, header: PullMessage, broadcast_allowed: bool) -> TagFilter:
        group = self._consumers.group(header.consumer_group)
        if group is None:
            raise ResponseError(
                f"the consumer's group info not exist: {header.consumer_group}",
                code=ResponseCode.SUBSCRIPTION_NOT_EXIST,
            )
        if not broadcast_allowed and group.message_model == "BROADCASTING":
            raise NoPermissionError(
                f"the consumer group[{header.consumer_group}] can not consume by broadcast way"
            )
        subscription = group.subscriptions.get(header.topic)
        if subscription is None:
            raise ResponseError(
                f"the consumer's subscription not exist: {header.topic}",
                code=ResponseCode.SUBSCRIPTION_NOT_EXIST,
            )
        if subscription.sub_version < header.sub_version:
            raise ResponseError(
                f"the consumer's subscription not latest: {subscription.sub_version} "
                f"is older than {header.sub_version}",
                code=ResponseCode.SUBSCRIPTION_NOT_LATEST,
            )
        return self._filter(subscription.expression_type, subscription.sub_string)

    def _filter(self, kind: str | None, expression: str | None) -> TagFilter:
        if kind not in (None, "", "TAG"):
            raise ResponseError(f"The broker does not support consumer to filter message by {kind}")
        try:
            return parse_tags(expression or "*")
        except ValueError as error:
            raise ResponseError(
                f"parse the consumer's subscription failed: {error}",
                code=ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            ) from error

    def _park(
        self, channel: Channel, request: RemotingCommand, header: PullMessage, wanted: TagFilter
    ) -> None:
        config = self._live.now
        millis = header.suspend_timeout_millis
        if not config.long_polling_enable:
            millis = config.short_polling_time_mills

        def resume() -> None:
            if channel.closed:
                return
            try:
                answer = self._serve(channel, request, header, may_wait=False)
            except ResponseError as error:
                answer = error_reply(request, error)
            if answer is not None and not request.flag & ONEWAY_FLAG:
                channel.send(answer)

        self._long_poll.park(
            Parked((header.topic, header.queue_id), wanted.codes, header.queue_offset, resume),
            max(0.0, millis / 1000),
        )

    def _moved(self, request: RemotingCommand, header: PullMessage, offset: int) -> RemotingCommand:
        queue = self._store.find_queue(header.topic, header.queue_id)
        low, high = (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)
        return request.reply(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", _reply_fields(offset, low, high))

    def _count(self, header: PullMessage, result: GetResult) -> None:
        self._offsets.note_pull(header.consumer_group, header.topic, header.queue_id, result.next_offset)
        if result.count:
            self._stats.got(header.topic, header.consumer_group, result.count, len(result.body))
        else:
            self._stats.get_miss.add()


def _reply_fields(next_offset: int, min_offset: int, max_offset: int) -> dict[str, str]:
    return PullMessageReply(
        suggest_which_broker_id=0,
        next_begin_offset=next_offset,
        min_offset=min_offset,
        max_offset=max_offset,
    ).to_ext()
