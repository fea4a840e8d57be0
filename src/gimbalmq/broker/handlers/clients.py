"""Clients: heartbeats, leaving, member lists, queue locks."""

from __future__ import annotations

import logging

from gimbalmq.broker.clients import LIVENESS_MILLIS, ConsumerGroup, Consumers, Producers, notify_changed
from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.locks import QueueLocks
from gimbalmq.broker.metadata import UNIT_SUB_FLAG, Groups, Topics
from gimbalmq.errors import ResponseError
from gimbalmq.filter.tags import parse_tags
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.topics import retry_topic
from gimbalmq.protocol.bodies import (
    CheckClientConfig,
    ConsumerIdList,
    Heartbeat,
    LockReply,
    LockRequest,
    QueueObject,
)
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.groups import (
    GroupOnly,
    HeartbeatReply,
    HeartbeatRequest,
    LockQueues,
    UnregisterClient,
)
from gimbalmq.transport.channel import Answer, Channel, Handlers

log = logging.getLogger(__name__)


class ClientHandlers:
    """Java: ClientManageProcessor, ConsumerManageProcessor's list, the lock requests."""

    def __init__(
        self,
        consumers: Consumers,
        producers: Producers,
        topics: Topics,
        groups: Groups,
        locks: QueueLocks,
        live: LiveConfig,
    ) -> None:
        self._consumers = consumers
        self._producers = producers
        self._topics = topics
        self._groups = groups
        self._locks = locks
        self._live = live

    def register(self, handlers: Handlers) -> None:
        handlers.add(RequestCode.HEART_BEAT, self.heartbeat)
        handlers.add(RequestCode.UNREGISTER_CLIENT, self.unregister)
        handlers.add(RequestCode.CHECK_CLIENT_CONFIG, self.check_config)
        handlers.add(RequestCode.GET_CONSUMER_LIST_BY_GROUP, self.members)
        handlers.add(RequestCode.LOCK_BATCH_MQ, self.lock)
        handlers.add(RequestCode.UNLOCK_BATCH_MQ, self.unlock)
        assert handlers.closed is None, "somebody else listens for closed connections"
        handlers.closed = self.disconnected

    def heartbeat(self, channel: Channel, request: RemotingCommand) -> Answer:
        beat = Heartbeat.of_request(request.body)
        liveness = HeartbeatRequest.from_ext(request.ext_fields).liveness_millis
        if liveness is not None:
            low, high = LIVENESS_MILLIS
            liveness = min(high, max(low, liveness))
        for data in beat.consumer_data_set:
            settings = self._groups.find(data.group_name)
            if settings is None:
                log.warning(
                    "heartbeat of %s passed over: group %s does not exist and is not created by itself",
                    beat.client_id,
                    data.group_name,
                )
                continue
            self._topics.ensure(
                retry_topic(data.group_name),
                settings.retry_queue_nums,
                sys_flag=UNIT_SUB_FLAG if data.unit_mode else 0,
            )
            changed = self._consumers.heartbeat(
                data,
                channel,
                beat.client_id,
                request,
                keep_subscriptions=beat.without_sub,
                liveness_millis=liveness,
            )
            if changed:
                group = self._consumers.group(data.group_name)
                if group is not None:
                    self._tell(group)
        for producer in beat.producer_data_set:
            self._producers.heartbeat(producer.group_name, channel, beat.client_id, request)
        if liveness is None:
            return request.reply()
        expelled = sorted(self._consumers.expelled(channel).items())
        reply = HeartbeatReply(
            liveness_millis=liveness,
            expelled_groups=",".join(f"{group}={count}" for group, count in expelled) or None,
        )
        return request.reply(ext_fields=reply.to_ext())

    def expel_silent(self) -> None:
        """Tells groups of members that hang."""
        for group in self._consumers.expel_silent():
            self._tell(group)

    def unregister(self, channel: Channel, request: RemotingCommand) -> Answer:
        header = UnregisterClient.from_ext(request.ext_fields)
        if header.producer_group is not None:
            self._producers.leave(header.producer_group, channel)
        if header.consumer_group is not None:
            group = self._consumers.leave(header.consumer_group, channel)
            if group is not None:
                self._tell(group)
        return request.reply()

    def disconnected(self, channel: Channel) -> None:
        """A broken connection takes its memberships with it."""
        self._producers.disconnected(channel)
        for group in self._consumers.disconnected(channel):
            self._tell(group)

    def _tell(self, group: ConsumerGroup) -> None:
        settings = self._groups.known(group.name)
        wanted = settings is None or settings.notify_consumer_ids_changed_enable
        if wanted and self._live.now.notify_consumer_ids_changed_enable:
            notify_changed(group)

    def check_config(self, channel: Channel, request: RemotingCommand) -> Answer:
        """46: may a consumer subscribe like this?"""
        wanted = CheckClientConfig.of_request(request.body).subscription_data
        if wanted.expression_type not in (None, "", "TAG"):
            raise ResponseError(
                f"The broker does not support consumer to filter message by {wanted.expression_type}"
            )
        try:
            parse_tags(wanted.sub_string or "*")
        except ValueError as error:
            raise ResponseError(str(error), code=ResponseCode.SUBSCRIPTION_PARSE_FAILED) from error
        return request.reply()

    def members(self, channel: Channel, request: RemotingCommand) -> Answer:
        header = GroupOnly.from_ext(request.ext_fields)
        group = self._consumers.group(header.consumer_group)
        if group is None or not group.members:
            raise ResponseError(f"no consumer for this group, {header.consumer_group}")
        ids = [member.client_id for member in group.members.values()]
        return request.reply(body=ConsumerIdList(consumer_id_list=ids).dump())

    def lock(self, channel: Channel, request: RemotingCommand) -> Answer:
        wanted = LockRequest.of_request(request.body)
        queues = _queues(wanted)
        take_over = LockQueues.from_ext(request.ext_fields).take_over
        if take_over:
            group = self._consumers.group(wanted.consumer_group)
            present = {member.client_id for member in group.members.values()} if group is not None else set()
            granted = self._locks.lock(
                wanted.consumer_group, wanted.client_id, queues, lambda owner: owner not in present
            )
        else:
            granted = self._locks.lock(wanted.consumer_group, wanted.client_id, queues)
        answer = LockReply(
            lock_ok_mq_set=[
                QueueObject(topic=queue.topic, broker_name=queue.broker_name, queue_id=queue.queue_id)
                for queue in granted
            ]
        )
        ext = LockQueues(take_over=True).to_ext() if take_over else None
        return request.reply(ext_fields=ext, body=answer.dump())

    def unlock(self, channel: Channel, request: RemotingCommand) -> Answer:
        wanted = LockRequest.of_request(request.body)
        self._locks.unlock(wanted.consumer_group, wanted.client_id, _queues(wanted))
        return request.reply()


def _queues(request: LockRequest) -> list[MessageQueue]:
    return [MessageQueue(queue.topic, queue.broker_name, queue.queue_id) for queue in request.mq_set]
