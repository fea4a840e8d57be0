"""Administration of consumer groups: settings, progress, connections, offsets, live clients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gimbalmq._steps import Steps, for_each
from gimbalmq.broker.clients import ConsumerGroup, Consumers, Member, Producers
from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.consumer_offsets import ConsumerOffsets
from gimbalmq.broker.groups import Groups
from gimbalmq.broker.locks import QueueLocks
from gimbalmq.broker.longpoll import LongPoll
from gimbalmq.broker.message_time import message_time
from gimbalmq.broker.stats import Stats
from gimbalmq.broker.stored import stored_record
from gimbalmq.broker.tables_text import Parts, json_object
from gimbalmq.broker.topics import Topics
from gimbalmq.broker.values import check_group
from gimbalmq.errors import (
    ConsumerNotOnlineError,
    InvalidParameterError,
    RequestTimeoutError,
    ResponseError,
    SubscriptionGroupNotExistError,
    TopicNotExistError,
    TransportError,
)
from gimbalmq.model.ids import parse_offset_id, unpack_host
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.topics import retry_topic
from gimbalmq.protocol import fastjson
from gimbalmq.protocol.bodies import ConsumerConnections, GroupConfig, ProducerConnections
from gimbalmq.protocol.codes import RequestCode, ResponseCode, version_name
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers import management as headers
from gimbalmq.protocol.headers.groups import GroupOnly
from gimbalmq.protocol.signing import unsigned_fields
from gimbalmq.protocol.status_bodies import ConsumerStatusBody
from gimbalmq.store.message_store import MessageStore
from gimbalmq.transport.channel import Answer, Channel, Handlers
from gimbalmq.transport.turns import Turns

_RUNNING_INFO_VERSION = 62
_RELAY_SECONDS = 10.0
_CHANGES = {
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    RequestCode.CLONE_GROUP_OFFSET,
}
"""Requests that change something: what they have begun completes, whoever hangs up."""

_LARGE = {
    RequestCode.GET_CONSUME_STATS,
    RequestCode.GET_BROKER_CONSUME_STATS,
    RequestCode.QUERY_CONSUME_TIME_SPAN,
    RequestCode.QUERY_CORRECTION_OFFSET,
}
"""What walks over whole tables."""


class GroupAdminHandlers:
    """Java: the group part of AdminBrokerProcessor."""

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        consumers: Consumers,
        producers: Producers,
        locks: QueueLocks,
        long_poll: LongPoll,
        live: LiveConfig,
        stats: Stats,
        turns: Turns,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._consumers = consumers
        self._producers = producers
        self._locks = locks
        self._long_poll = long_poll
        self._live = live
        self._stats = stats
        self._turns = turns

    def register(self, handlers: Handlers) -> None:
        for code, handler in {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.put,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.put_list,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.one_group,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete,
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: self.forbid,
            RequestCode.GET_CONSUME_STATS: self.progress,
            RequestCode.GET_BROKER_CONSUME_STATS: self.progress_of_all,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumer_connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producer_connections,
            RequestCode.GET_ALL_PRODUCER_INFO: self.all_producers,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.client_offsets,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
            RequestCode.QUERY_CORRECTION_OFFSET: self.correction,
            RequestCode.CLONE_GROUP_OFFSET: self.clone,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.time_span,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription,
        }.items():
            handlers.add(code, handler, completes=code in _CHANGES, large=code in _LARGE)

    # -- settings ----------------------------------------------------------------------

    async def put(self, channel: Channel, request: RemotingCommand) -> Answer:
        return await self._store_groups(request, [GroupConfig.of_request(request.body)])

    async def put_list(self, channel: Channel, request: RemotingCommand) -> Answer:
        return await self._store_groups(request, GroupConfig.rows_of_request(request.body, "groupConfigList"))

    async def _store_groups(self, request: RemotingCommand, wanted: Iterable[GroupConfig]) -> Answer:
        configs: list[GroupConfig] = []

        def take(config: GroupConfig) -> None:
            check_group(config)
            configs.append(config)

        await self._turns.run(for_each(take, wanted))
        self._groups.put(*configs)
        await self._groups.saving.saved()
        return request.reply()

    def one_group(self, channel: Channel, request: RemotingCommand) -> Answer:
        name = headers.GroupField.from_ext(request.ext_fields).group
        found = self._groups.known(name)
        if found is None:
            raise SubscriptionGroupNotExistError(f"subscription group [{name}] does not exist")
        return request.reply(body=found.dump())

    async def delete(self, channel: Channel, request: RemotingCommand) -> Answer:
        header = headers.GroupName.from_ext(request.ext_fields)
        self._groups.remove(header.group_name)
        self._locks.forget(header.group_name)
        self._stats.forget_group(header.group_name)
        if header.clean_offset or header.remove_offset:
            self._offsets.forget_group(header.group_name)
        await self._groups.saving.saved()
        return request.reply()

    async def forbid(self, channel: Channel, request: RemotingCommand) -> Answer:
        header = headers.GroupForbidden.from_ext(request.ext_fields)
        if header.readable is not None:
            self._groups.require(header.group)
            if header.topic not in self._topics:
                raise TopicNotExistError(f"topic[{header.topic}] not exist")
            self._groups.set_readable(header.group, header.topic, header.readable)
            await self._groups.saving.saved()
        readable = self._groups.may_read(header.group, header.topic)
        body = {"group": header.group, "readable": readable, "topic": header.topic}
        return request.reply(body=fastjson.dumps(body))

    # -- progress ----------------------------------------------------------------------

    async def progress(self, channel: Channel, request: RemotingCommand) -> Answer:
        header = headers.GetConsumeStats.from_ext(request.ext_fields)
        group = header.consumer_group
        chosen: Iterable[str] = self._offsets.topics_of(group)
        if header.topic:
            chosen = [header.topic]
        elif header.topic_list:
            chosen = {topic for topic in header.topic_list.split(";") if topic}
        body, _ = await self._turns.run(self._progress(group, chosen))
        return request.reply(body=body)

    def _progress(self, group: str, chosen: Iterable[str]) -> Steps[tuple[bytes, int | None]]:
        """A group's progress as JSON, and how many messages it has before it; None if it has no queue here."""
        behind: int | None = None
        rate = 0.0

        def rows() -> Iterator[tuple[str, dict[str, int]]]:
            nonlocal behind, rate
            for topic in sorted(chosen):
                config = self._topics.find(topic)
                online = self._consumers.group(group)
                if config is None:
                    continue
                if online is not None and topic not in online.subscriptions and online.subscriptions:
                    continue
                counter = self._stats.find("GROUP_GET_NUMS", f"{topic}@{group}")
                if counter is not None:
                    rate += self._stats.view(counter)["statsMinute"]["tps"]
                for queue_id in range(config.read_queue_nums):
                    row = self._queue_progress(group, topic, queue_id)
                    behind = (behind or 0) + row["brokerOffset"] - row["consumerOffset"]
                    yield self._key(topic, queue_id), row

        table = yield from json_object(rows(), queue_keys=True)
        return b'{"consumeTps":%b,"offsetTable":%b}' % (fastjson.dumps(rate), table), behind

    def _queue_progress(self, group: str, topic: str, queue_id: int) -> dict[str, int]:
        queue = self._store.find_queue(topic, queue_id)
        newest = 0 if queue is None else queue.max_offset
        consumed = max(0, self._offsets.get(group, topic, queue_id))
        last = message_time(self._store, topic, queue_id, consumed - 1) if consumed > 0 else 0
        return {
            "brokerOffset": newest,
            "consumerOffset": consumed,
            "lastTimestamp": max(0, last),
            "pullOffset": max(consumed, self._offsets.pulled(group, topic, queue_id)),
        }

    def _key(self, topic: str, queue_id: int) -> str:
        return fastjson.queue_text(MessageQueue(topic, self._live.now.broker_name, queue_id))

    def _address(self) -> str:
        host, port = unpack_host(self._store.config.store_host)
        return f"{host}:{port}"

    async def progress_of_all(self, channel: Channel, request: RemotingCommand) -> Answer:
        return request.reply(body=await self._turns.run(self._progress_of_all()))

    def _progress_of_all(self) -> Steps[bytes]:
        found = Parts()
        total = 0
        for group in sorted(self._offsets.all_groups()):
            body, behind = yield from self._progress(group, self._offsets.topics_of(group))
            if behind is not None:
                found.add(b"{%b:[%b]}" % (fastjson.dumps(group), body))
                total += behind
            yield
        return b'{"brokerAddr":%b,"consumeStatsList":[%b],"totalDiff":%d,"totalInflightDiff":0}' % (
            fastjson.dumps(self._address()),
            found.joined(),
            total,
        )

    async def time_span(self, channel: Channel, request: RemotingCommand) -> Answer:
        header = headers.GroupTopic.from_ext(request.ext_fields)
        config = self._topics.find(header.topic)
        if config is None:
            raise TopicNotExistError(f"topic[{header.topic}] not exist")
        spans: list[bytes] = []
        await self._turns.run(
            for_each(
                lambda queue_id: spans.append(fastjson.dumps(self._queue_span(header, queue_id))),
                range(config.write_queue_nums),
            )
        )
        return request.reply(body=b'{"consumeTimeSpanSet":[%b]}' % b",".join(spans))

    def _queue_span(self, header: headers.GroupTopic, queue_id: int) -> dict[str, object]:
        queue = self._store.find_queue(header.topic, queue_id)
        newest = 0 if queue is None else queue.max_offset
        oldest = 0 if queue is None else queue.min_offset
        consumed = self._offsets.get(header.group, header.topic, queue_id)
        last = message_time(self._store, header.topic, queue_id, newest - 1)
        done = message_time(self._store, header.topic, queue_id, consumed - 1)
        waiting = message_time(self._store, header.topic, queue_id, max(consumed, oldest))
        return {
            "consumeTimeStamp": max(0, done),
            "delayTime": max(0, last - waiting) if waiting > 0 and consumed < newest else 0,
            "maxTimeStamp": max(0, last),
            "messageQueue": {
                "brokerName": self._live.now.broker_name,
                "queueId": queue_id,
                "topic": header.topic,
            },
            "minTimeStamp": max(0, message_time(self._store, header.topic, queue_id, oldest)),
        }

    async def correction(self, channel: Channel, request: RemotingCommand) -> Answer:
        """The smallest progress of some groups, for one that should not run ahead of them."""
        header = headers.CorrectionOffset.from_ext(request.ext_fields)
        excluded = set((header.filter_groups or "").split(","))
        compared = self._offsets.queues(header.compare_group, header.topic)
        lowest: dict[str, int] = {}

        def compare(group: str) -> None:
            for queue_id, offset in self._offsets.queues(group, header.topic).items():
                if queue_id in compared and compared[queue_id] < offset:
                    lowest[str(queue_id)] = min(offset, lowest.get(str(queue_id), offset))

        groups = self._offsets.groups_of(header.topic) - excluded
        await self._turns.run(for_each(compare, groups))
        return request.reply(body=fastjson.dumps({"correctionOffsets": lowest}))

    async def clone(self, channel: Channel, request: RemotingCommand) -> Answer:
        header = headers.CloneGroupOffset.from_ext(request.ext_fields)
        self._groups.require(header.dest_group)
        topics = [header.topic] if header.topic else self._offsets.topics_of(header.src_group)

        def clone(topic: str) -> None:
            if topic in self._topics and topic != retry_topic(header.src_group):
                self._offsets.clone(header.src_group, header.dest_group, topic)

        await self._turns.run(for_each(clone, topics))
        return request.reply()

    # -- connections -------------------------------------------------------------------

    def consumer_connections(self, channel: Channel, request: RemotingCommand) -> Answer:
        name = GroupOnly.from_ext(request.ext_fields).consumer_group
        group = self._online(name)
        body = ConsumerConnections(
            connection_set=[member.view() for member in group.members.values()],
            consume_from_where=group.consume_from_where,
            consume_type=group.consume_type,
            message_model=group.message_model,
            subscription_table=group.subscriptions,
        )
        return request.reply(body=body.dump())

    def producer_connections(self, channel: Channel, request: RemotingCommand) -> Answer:
        name = headers.ProducerGroup.from_ext(request.ext_fields).producer_group
        members = self._producers.group(name)
        if not members:
            raise ResponseError(f"the producer group[{name}] not exist")
        body = ProducerConnections(connection_set=[member.view() for member in members])
        return request.reply(body=body.dump())

    def all_producers(self, channel: Channel, request: RemotingCommand) -> Answer:
        data = {
            name: [
                {
                    "clientId": member.client_id,
                    "language": member.language,
                    "remoteIP": member.channel.address.rpartition(":")[0],
                    "version": member.version,
                    "lastUpdateTimestamp": 0,
                }
                for member in members
            ]
            for name, members in self._producers.groups().items()
        }
        return request.reply(body=fastjson.dumps({"data": data}))

    def subscription(self, channel: Channel, request: RemotingCommand) -> Answer:
        header = headers.GroupTopic.from_ext(request.ext_fields)
        group = self._consumers.group(header.group)
        found = None if group is None else group.subscriptions.get(header.topic)
        body: dict[str, object] = {"group": header.group, "topic": header.topic}
        if found is not None:
            body["subscriptionData"] = found
        return request.reply(body=fastjson.dumps(body))

    def _online(self, name: str) -> ConsumerGroup:
        group = self._consumers.group(name)
        if group is None:
            raise ConsumerNotOnlineError(f"the consumer group[{name}] not online")
        return group

    # -- acting on groups --------------------------------------------------------------

    async def reset(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Moves a group to a moment or an offset; its pulls, those that wait included, are sent there."""
        header = headers.ResetOffset.from_ext(request.ext_fields)
        config = self._topics.find(header.topic)
        if config is None:
            raise TopicNotExistError(f"Topic {header.topic} does not exist")
        if self._groups.known(header.group) is None:
            raise SubscriptionGroupNotExistError(f"Group {header.group} does not exist")
        one = header.queue_id is not None and header.queue_id >= 0
        if one and not 0 <= (header.queue_id or 0) < config.read_queue_nums:
            raise InvalidParameterError(
                f"queueId {header.queue_id} is not one of topic {header.topic}'s "
                f"{config.read_queue_nums} queues"
            )
        chosen = [header.queue_id or 0] if one else range(config.read_queue_nums)
        table: dict[str, int] = {}

        def reset(queue_id: int) -> None:
            target = self._reset_target(header, queue_id)
            current = self._offsets.get(header.group, header.topic, queue_id)
            # Without force a reset only goes back: skipping messages must be asked for.
            if not header.is_force and 0 <= current < target:
                target = current
            self._offsets.reset(header.group, header.topic, queue_id, target)
            self._long_poll.wake_group(header.group, header.topic, queue_id)
            table[self._key(header.topic, queue_id)] = target

        await self._turns.run(for_each(reset, chosen))
        text = await self._turns.run(json_object(table.items(), queue_keys=True))
        return request.reply(body=b'{"offsetTable":%b}' % text)

    def _reset_target(self, header: headers.ResetOffset, queue_id: int) -> int:
        queue = self._store.find_queue(header.topic, queue_id)
        low, high = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
        if header.offset is not None and header.offset >= 0:
            target = header.offset
        elif header.timestamp == -1:
            target = high
        else:
            target = self._store.search_offset(header.topic, queue_id, header.timestamp)
        return max(low, min(target, high))

    async def client_offsets(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Asks the live consumers how far they are."""
        header = headers.ConsumerStatus.from_ext(request.ext_fields)
        group = self._online(header.group)
        table: dict[str, dict[str, int]] = {}
        for member in list(group.members.values()):
            if header.client_addr and header.client_addr != member.client_id:
                continue
            answer = await self._relay(
                member, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, header.to_ext(), b""
            )
            if answer.code == ResponseCode.SUCCESS and answer.body:
                table[member.client_id] = ConsumerStatusBody.parse(answer.body).message_queue_table
        return request.reply(body=ConsumerStatusBody(consumer_table=table).dump())

    async def running_info(self, channel: Channel, request: RemotingCommand) -> Answer:
        header = headers.RunningInfo.from_ext(request.ext_fields)
        member = self._member(header.consumer_group, header.client_id)
        answer = await self._relay(
            member, RequestCode.GET_CONSUMER_RUNNING_INFO, unsigned_fields(request), b""
        )
        return request.reply(answer.code, answer.remark, answer.ext_fields, answer.body)

    async def consume_directly(self, channel: Channel, request: RemotingCommand) -> Answer:
        header = headers.ConsumeDirectly.from_ext(request.ext_fields)
        member = self._member(header.consumer_group, header.client_id)
        try:
            place = parse_offset_id(header.msg_id or "")
        except ValueError:
            raise InvalidParameterError(f"msgId {header.msg_id!r} is no offset message id") from None
        record = stored_record(self._store, place.commitlog_offset)
        if record is None:
            raise ResponseError(f"no message lies at the offset of {header.msg_id}")
        fields = unsigned_fields(request) | {"brokerName": self._live.now.broker_name}
        answer = await self._relay(member, RequestCode.CONSUME_MESSAGE_DIRECTLY, fields, record)
        return request.reply(answer.code, answer.remark, answer.ext_fields, answer.body)

    def _member(self, group: str, client_id: str | None) -> Member:
        found = self._consumers.group(group)
        for member in found.members.values() if found is not None else ():
            if client_id in (None, "", member.client_id):
                if member.version < _RUNNING_INFO_VERSION:
                    raise ResponseError(
                        f"The Consumer <{member.client_id}> Version <{version_name(member.version)}> "
                        "too low to finish, please upgrade it to V3_1_8_SNAPSHOT"
                    )
                return member
        raise ResponseError(f"The Consumer <{group}> <{client_id}> not online")

    async def _relay(self, member: Member, code: int, fields: dict[str, str], body: bytes) -> RemotingCommand:
        try:
            return await member.channel.call(RemotingCommand(code, fields, body), _RELAY_SECONDS)
        except RequestTimeoutError as error:
            raise ResponseError(
                f"consumer {member.client_id} did not answer in time", code=ResponseCode.CONSUME_MSG_TIMEOUT
            ) from error
        except TransportError as error:
            raise ResponseError(
                f"consumer {member.client_id} went away before it answered: {error}"
            ) from error
