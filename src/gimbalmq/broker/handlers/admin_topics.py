"""Administration of topics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gimbalmq._steps import for_each
from gimbalmq.broker.clients import Consumers
from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.consumer_offsets import ConsumerOffsets
from gimbalmq.broker.message_time import message_time
from gimbalmq.broker.replication.acknowledging import Acknowledging
from gimbalmq.broker.stats import Stats
from gimbalmq.broker.tables_text import json_object
from gimbalmq.broker.topics import Topics, is_reserved_topic
from gimbalmq.broker.values import check_topic
from gimbalmq.errors import InvalidParameterError, StoreIOError, TopicNotExistError
from gimbalmq.model.queues import MessageQueue
from gimbalmq.protocol import fastjson
from gimbalmq.protocol.bodies import TopicConfig, TopicList
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.management import CreateTopic, DeleteTopic, GroupField, QueryConsumeQueue
from gimbalmq.store.message_store import MessageStore
from gimbalmq.transport.channel import Answer, Channel, Handlers
from gimbalmq.transport.turns import Turns


class TopicAdminHandlers:
    """Java: the topic part of AdminBrokerProcessor."""

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        offsets: ConsumerOffsets,
        consumers: Consumers,
        live: LiveConfig,
        stats: Stats,
        turns: Turns,
        announced: Callable[[], Awaitable[None]],
        acknowledging: Acknowledging,
    ) -> None:
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._consumers = consumers
        self._live = live
        self._stats = stats
        self._turns = turns
        self._announced = announced
        self._acknowledging = acknowledging

    def register(self, handlers: Handlers) -> None:
        handlers.add(RequestCode.UPDATE_AND_CREATE_TOPIC, self.create, completes=True)
        handlers.add(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, self.create_list, completes=True)
        handlers.add(RequestCode.DELETE_TOPIC_IN_BROKER, self.delete, completes=True)
        handlers.add(RequestCode.GET_TOPIC_CONFIG, self.one_topic)
        handlers.add(RequestCode.GET_TOPIC_STATS_INFO, self.stats, large=True)
        handlers.add(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, self.system_topics)
        handlers.add(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, self.consumed_by)
        handlers.add(RequestCode.QUERY_TOPICS_BY_CONSUMER, self.topics_of_group)
        handlers.add(RequestCode.QUERY_CONSUME_QUEUE, self.consume_queue)
        handlers.add(RequestCode.CLEAN_UNUSED_TOPIC, self.clean_unused, completes=True)

    async def create(self, channel: Channel, request: RemotingCommand) -> Answer:
        header = CreateTopic.from_ext(request.ext_fields)
        config = TopicConfig(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag or 0,
            order=bool(header.order),
            attributes=_attributes(header.attributes, self._topics.find(header.topic)),
        )
        self._check(config)
        self._topics.put(config)
        await self._announced()
        return request.reply()

    async def create_list(self, channel: Channel, request: RemotingCommand) -> Answer:
        configs: list[TopicConfig] = []

        def take(config: TopicConfig) -> None:
            self._check(config)
            configs.append(config)

        await self._turns.run(for_each(take, TopicConfig.rows_of_request(request.body, "topicConfigList")))
        self._topics.put(*configs)
        await self._announced()
        return request.reply()

    def _check(self, config: TopicConfig) -> None:
        check_topic(config)
        if is_reserved_topic(config.topic_name, self._live.now):
            raise InvalidParameterError(f"The topic[{config.topic_name}] is conflict with system topic.")

    async def delete(self, channel: Channel, request: RemotingCommand) -> Answer:
        topic = DeleteTopic.from_ext(request.ext_fields).topic
        if not topic.strip():
            raise InvalidParameterError("The specified topic is blank.")
        if is_reserved_topic(topic, self._live.now):
            raise InvalidParameterError(f"The topic[{topic}] is conflict with system topic.")
        # First, because a disk that takes no record of the deletion refuses it.
        self._store.delete_topic(topic)
        self._topics.remove(topic)
        self._offsets.forget_topic(topic)
        self._stats.forget_topic(topic)
        self._offsets.save()
        written = self._store.max_commitlog_offset
        await self._announced()
        if not await self._acknowledging.settle_change(written, f"the deletion of {topic}"):
            raise StoreIOError(f"the deletion of {topic} is not on the disk: {self._store.read_only_reason}")
        return request.reply()

    def one_topic(self, channel: Channel, request: RemotingCommand) -> Answer:
        topic = DeleteTopic.from_ext(request.ext_fields).topic
        return request.reply(body=self._require(topic).dump())

    def _require(self, topic: str) -> TopicConfig:
        found = self._topics.find(topic)
        if found is None:
            raise TopicNotExistError(f"topic[{topic}] not exist")
        return found

    async def stats(self, channel: Channel, request: RemotingCommand) -> Answer:
        topic = DeleteTopic.from_ext(request.ext_fields).topic
        config = self._require(topic)
        count = max(config.read_queue_nums, config.write_queue_nums)
        rows = (self._queue_stats(topic, queue_id) for queue_id in range(count))
        table = await self._turns.run(json_object(rows, queue_keys=True))
        counter = self._stats.find("TOPIC_PUT_NUMS", topic)
        rate = 0.0 if counter is None else self._stats.view(counter)["statsMinute"]["tps"]
        return request.reply(body=b'{"offsetTable":%b,"topicPutTps":%b}' % (table, fastjson.dumps(rate)))

    def _queue_stats(self, topic: str, queue_id: int) -> tuple[str, dict[str, int]]:
        queue = self._store.find_queue(topic, queue_id)
        newest = 0 if queue is None else queue.max_offset
        return fastjson.queue_text(MessageQueue(topic, self._live.now.broker_name, queue_id)), {
            "lastUpdateTimestamp": message_time(self._store, topic, queue_id, newest - 1),
            "maxOffset": newest,
            "minOffset": 0 if queue is None else queue.min_offset,
        }

    async def system_topics(self, channel: Channel, request: RemotingCommand) -> Answer:
        found: list[str] = []

        def note(config: TopicConfig) -> None:
            if is_reserved_topic(config.topic_name, self._live.now):
                found.append(config.topic_name)

        await self._turns.run(for_each(note, self._topics.all()))
        return request.reply(body=TopicList(topic_list=sorted(found)).dump())

    def consumed_by(self, channel: Channel, request: RemotingCommand) -> Answer:
        topic = DeleteTopic.from_ext(request.ext_fields).topic
        found = self._consumers.subscribers_of(topic) | self._offsets.groups_of(topic)
        return request.reply(body=fastjson.dumps({"groupList": sorted(found)}))

    def topics_of_group(self, channel: Channel, request: RemotingCommand) -> Answer:
        group = GroupField.from_ext(request.ext_fields).group
        found = self._offsets.topics_of(group)
        return request.reply(body=TopicList(topic_list=sorted(found)).dump())

    def consume_queue(self, channel: Channel, request: RemotingCommand) -> Answer:
        header = QueryConsumeQueue.from_ext(request.ext_fields)
        queue = self._store.find_queue(header.topic, header.queue_id)
        if queue is None:
            raise InvalidParameterError(
                f"{header.queue_id}@{header.topic} is not exist!", code=ResponseCode.SYSTEM_ERROR
            )
        entries = self._store.entries(
            header.topic, header.queue_id, header.index, max(0, min(header.count, 4096))
        )
        group = None if header.consumer_group is None else self._consumers.group(header.consumer_group)
        subscription = None if group is None else group.subscriptions.get(header.topic)
        body: dict[str, object] = {
            "maxQueueIndex": queue.max_offset,
            "minQueueIndex": queue.min_offset,
            "queueData": [
                {"eval": False, "physicOffset": offset, "physicSize": size, "tagsCode": tags}
                for offset, size, tags in entries
            ],
        }
        if subscription is not None:
            body["subscriptionData"] = subscription
        return request.reply(body=fastjson.dumps(body))

    async def clean_unused(self, channel: Channel, request: RemotingCommand) -> Answer:
        """Queue folders of topics nobody knows any more."""
        unknown = [
            topic
            for topic in self._store.topics()
            if topic not in self._topics and not is_reserved_topic(topic, self._live.now)
        ]

        def delete(topic: str) -> None:
            if topic not in self._topics:  # it may have been made meanwhile
                self._store.delete_topic(topic)

        await self._turns.run(for_each(delete, unknown, at_once=1))
        return request.reply()


def _attributes(text: str | None, before: TopicConfig | None) -> dict[str, str]:
    """``+key=value,-key`` over what the topic had."""
    found = dict(before.attributes) if before is not None else {}
    for item in (text or "").split(","):
        item = item.strip()
        if not item:
            continue
        key, equals, value = item[1:].partition("=")
        if item[0] == "+" and equals and key:
            found[key] = value
        elif item[0] == "-" and not equals and key:
            found.pop(key, None)
        else:
            raise InvalidParameterError(f"attribute {item!r} is wrong; use +key=value or -key")
    return found
