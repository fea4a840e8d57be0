"""Clients: heartbeats, leaving, member lists, queue locks."""

from __future__ import annotations

import logging

from gimbalmq.access.gate import Gate
from gimbalmq.broker.clients import LIVENESS_MILLIS, Consumers, Producers, size_of
from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.creations import Creations
from gimbalmq.broker.groups import Groups
from gimbalmq.broker.locks import QueueLocks
from gimbalmq.broker.longpoll import LongPoll
from gimbalmq.broker.notices import GroupNotices
from gimbalmq.broker.topics import UNIT_SUB_FLAG, Topics
from gimbalmq.errors import InvalidParameterError, NoPermissionError, ResponseError, SystemBusyError
from gimbalmq.filter.tags import MAX_TAGS, check_tags
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.topics import MAX_GROUP_LENGTH, retry_topic
from gimbalmq.protocol.bodies import (
    CheckClientConfig,
    ConsumerData,
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

MAX_CLIENT_ID_LENGTH = 1024


class ClientHandlers:
    """Java: ClientManageProcessor, ConsumerManageProcessor's list, the lock requests."""

    def __init__(
        self,
        consumers: Consumers,
        producers: Producers,
        topics: Topics,
        groups: Groups,
        locks: QueueLocks,
        long_poll: LongPoll,
        creations: Creations,
        live: LiveConfig,
        gate: Gate | None = None,
    ) -> None:
        self._consumers = consumers
        self._producers = producers
        self._topics = topics
        self._groups = groups
        self._locks = locks
        self._long_poll = long_poll
        self._creations = creations
        self._live = live
        self._gate = gate
        self.notices = GroupNotices(consumers)

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
        most = self._live.now.max_heartbeat_bytes
        if len(request.body) > most:
            raise InvalidParameterError(
                f"the heartbeat has {len(request.body)} bytes; at most {most} are read (maxHeartbeatBytes): "
                "spread the groups over several clients"
            )
        beat = Heartbeat.of_request(request.body, limit=most)
        self._check(channel, beat)
        refused: ResponseError | None = None
        user = None
        producers = beat.producer_data_set
        try:
            user = self._user(channel, request, beat)
        except NoPermissionError as error:
            # Its consumers are no worse for it: else anybody could keep them out of their groups by taking their id.
            refused, producers = error, []
        liveness = HeartbeatRequest.from_ext(request.ext_fields).liveness_millis
        if liveness is not None:
            low, high = LIVENESS_MILLIS
            liveness = min(high, max(low, liveness))
        for data in beat.consumer_data_set:
            try:
                known = self._join(channel, data, beat)
            except ResponseError as error:
                # The other groups are no worse for it.
                refused = refused or error
                continue
            if not known:
                log.warning(
                    "heartbeat of %s passed over: group %s does not exist and is not created by itself",
                    beat.client_id,
                    data.group_name,
                )
                continue
            changed = self._consumers.heartbeat(
                data,
                channel,
                beat.client_id,
                request,
                keep_subscriptions=beat.without_sub,
                liveness_millis=liveness,
            )
            if changed:
                self._tell(data.group_name)
        for producer in producers:
            self._producers.heartbeat(producer.group_name, channel, beat.client_id, request, user)
        if refused is not None:
            raise refused
        if liveness is None:
            return request.reply()
        expelled = sorted(self._consumers.expelled(channel).items())
        reply = HeartbeatReply(
            liveness_millis=liveness,
            expelled_groups=",".join(f"{group}={count}" for group, count in expelled) or None,
            uptime_millis=self._forgotten_millis(beat),
        )
        return request.reply(ext_fields=reply.to_ext())

    def _user(self, channel: Channel, request: RemotingCommand, beat: Heartbeat) -> str | None:
        """Who the producers of a heartbeat belong to, if that is checked.

        Raises:
            NoPermissionError: another user's producers have this client id, to which replies are sent.
        """
        if self._gate is None or not beat.producer_data_set:
            return None
        user = self._gate.who(channel, request)
        name = None if user is None else user.name
        if self._gate.is_strict and self._producers.is_of_another(beat.client_id, name):
            raise NoPermissionError(
                f"the client id {beat.client_id} is in use by producers of another user; give each client its own"
            )
        return name

    def _forgotten_millis(self, beat: Heartbeat) -> int | None:
        """How long ago locks of the sender's groups were forgotten; None if there can have been none."""
        seconds = self._locks.forgotten_seconds
        if seconds is None or not any(
            self._groups.was_there_before(data.group_name) for data in beat.consumer_data_set
        ):
            return None
        return int(seconds * 1000)

    def _check(self, channel: Channel, beat: Heartbeat) -> None:
        """What a client may make the broker keep by heartbeats; raises before anything is kept."""
        config = self._live.now
        if len(beat.client_id) > MAX_CLIENT_ID_LENGTH:
            raise InvalidParameterError(
                f"the client id has {len(beat.client_id)} letters; at most {MAX_CLIENT_ID_LENGTH} are kept"
            )
        consumed = {data.group_name for data in beat.consumer_data_set}
        produced = {data.group_name for data in beat.producer_data_set}
        longest = max(map(len, produced), default=0)
        if longest > MAX_GROUP_LENGTH:
            raise InvalidParameterError(
                f"a producer group has {longest} letters; at most {MAX_GROUP_LENGTH} are kept"
            )
        new = len(consumed.difference(own := self._consumers.groups_of(channel)))
        new += len(produced.difference(also := self._producers.groups_of(channel)))
        if len(own) + len(also) + new > config.max_groups_per_connection:
            raise InvalidParameterError(
                f"this connection would be in {len(own) + len(also) + new} groups; at most "
                f"{config.max_groups_per_connection} are kept (maxGroupsPerConnection): use several clients"
            )
        if new and len(self._consumers) + len(self._producers) + new > config.max_group_members:
            raise SystemBusyError(
                f"[OVERLOAD]all groups together have {len(self._consumers) + len(self._producers)} members "
                "already (maxGroupMembers)"
            )
        if not beat.without_sub:
            size = sum(size_of(data.subscription_data_set) for data in beat.consumer_data_set)
            before = sum(
                group.size for name in consumed if (group := self._consumers.group(name)) is not None
            )
            if size > before and self._consumers.size - before + size > config.max_subscription_bytes:
                raise SystemBusyError(
                    f"[OVERLOAD]all subscriptions together take {self._consumers.size} bytes already "
                    "(maxSubscriptionBytes)"
                )

    def _join(self, channel: Channel, data: ConsumerData, beat: Heartbeat) -> bool:
        """Makes what a group needs; False if it does not exist and must not be made.

        Raises:
            ResponseError: the connection has made too many, or an expression is too long.
        """
        for subscription in data.subscription_data_set:
            if subscription.expression_type in (None, "", "TAG"):
                _check_tags(subscription.sub_string)
            most = max(len(subscription.tags_set), len(subscription.code_set))
            if most > MAX_TAGS:
                raise ResponseError(
                    f"the subscription of {subscription.topic} names {most} tags; at most {MAX_TAGS} are looked for",
                    code=ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                )
        settings = self._creations.group(channel, data.group_name)
        if settings is None:
            return False
        self._topics.ensure(
            retry_topic(data.group_name),
            settings.retry_queue_nums,
            sys_flag=UNIT_SUB_FLAG if data.unit_mode else 0,
        )
        return True

    def expel_silent(self) -> None:
        """Tells groups of members that hang."""
        for group in self._consumers.expel_silent():
            self._tell(group.name)

    def unregister(self, channel: Channel, request: RemotingCommand) -> Answer:
        header = UnregisterClient.from_ext(request.ext_fields)
        if header.producer_group is not None:
            self._producers.leave(header.producer_group, channel)
        group = header.consumer_group
        if group is not None and self._consumers.leave(group, channel) is not None:
            self._tell(group)
        return request.reply()

    def disconnected(self, channel: Channel) -> None:
        """A broken connection takes its memberships and its waiting pulls with it."""
        self._long_poll.disconnected(channel)
        self._producers.disconnected(channel)
        for group in self._consumers.disconnected(channel):
            self._tell(group.name)

    def _tell(self, group: str) -> None:
        settings = self._groups.known(group)
        wanted = settings is None or settings.notify_consumer_ids_changed_enable
        if wanted and self._live.now.notify_consumer_ids_changed_enable:
            self.notices.tell(group)

    def check_config(self, channel: Channel, request: RemotingCommand) -> Answer:
        """46: may a consumer subscribe like this?"""
        wanted = CheckClientConfig.of_request(request.body).subscription_data
        if wanted.expression_type not in (None, "", "TAG"):
            raise ResponseError(
                f"The broker does not support consumer to filter message by {wanted.expression_type}"
            )
        _check_tags(wanted.sub_string)
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
        queues = self._lockable(wanted)
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

    def _lockable(self, wanted: LockRequest) -> list[MessageQueue]:
        """Queues that exist here, for groups that do: a lock of anything else would only be kept."""
        if self._groups.known(wanted.consumer_group) is None or len(wanted.client_id) > MAX_CLIENT_ID_LENGTH:
            return []
        found = []
        for queue in _queues(wanted):
            topic = self._topics.find(queue.topic)
            most = 0 if topic is None else max(topic.read_queue_nums, topic.write_queue_nums)
            if queue.broker_name == self._live.now.broker_name and 0 <= queue.queue_id < most:
                found.append(queue)
        return found

    def unlock(self, channel: Channel, request: RemotingCommand) -> Answer:
        wanted = LockRequest.of_request(request.body)
        self._locks.unlock(wanted.consumer_group, wanted.client_id, _queues(wanted))
        return request.reply()


def _check_tags(expression: str | None) -> None:
    try:
        check_tags(expression or "*")
    except ValueError as error:
        raise ResponseError(str(error), code=ResponseCode.SUBSCRIPTION_PARSE_FAILED) from error


def _queues(request: LockRequest) -> list[MessageQueue]:
    return [MessageQueue(queue.topic, queue.broker_name, queue.queue_id) for queue in request.mq_set]
