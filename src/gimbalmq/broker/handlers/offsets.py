"""Offsets: what groups have consumed, and where queues begin and end."""

from __future__ import annotations

from gimbalmq.broker.consumer_offsets import MAX_QUEUE_OFFSET, ConsumerOffsets
from gimbalmq.broker.creations import Creations
from gimbalmq.broker.topics import Topics
from gimbalmq.errors import (
    InvalidParameterError,
    QueryNotFoundError,
    TopicNotExistError,
)
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.groups import (
    OffsetReply,
    QueryConsumerOffset,
    QueueOnly,
    SearchOffset,
    TimestampReply,
    UpdateConsumerOffset,
)
from gimbalmq.store.message_store import MessageStore
from gimbalmq.transport.channel import Answer, Channel, Handlers

NOT_FOUND = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


class OffsetHandlers:
    """Java: ConsumerManageProcessor and the offset part of AdminBrokerProcessor."""

    def __init__(
        self, store: MessageStore, offsets: ConsumerOffsets, topics: Topics, creations: Creations
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._topics = topics
        self._creations = creations

    def register(self, handlers: Handlers) -> None:
        handlers.add(RequestCode.QUERY_CONSUMER_OFFSET, self.query)
        handlers.add(RequestCode.UPDATE_CONSUMER_OFFSET, self.update)
        handlers.add(RequestCode.GET_MAX_OFFSET, self.newest)
        handlers.add(RequestCode.GET_MIN_OFFSET, self.oldest)
        handlers.add(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, self.search)
        handlers.add(RequestCode.GET_EARLIEST_MSG_STORETIME, self.earliest)

    def query(self, channel: Channel, request: RemotingCommand) -> Answer:
        """The stored offset. A new group on a young topic starts at 0, whatever it asked for: its first messages are
        still at hand, and skipping them would surprise. So does one on an empty queue, as with 4.9: if it were sent
        to the end, it would miss a message stored between this question and the next."""
        header = QueryConsumerOffset.from_ext(request.ext_fields)
        offset = self._offsets.get(header.consumer_group, header.topic, header.queue_id)
        if offset < 0:
            queue = self._store.find_queue(header.topic, header.queue_id)
            if header.set_zero_if_not_found is False or (queue is not None and queue.min_offset > 0):
                raise QueryNotFoundError(NOT_FOUND)
            first = self._store.entries(header.topic, header.queue_id, 0, 1)
            if first and not self._store.is_in_memory(first[0][0]):
                raise QueryNotFoundError(NOT_FOUND)
            offset = 0
        return request.reply(ext_fields=OffsetReply(offset=offset).to_ext())

    def update(self, channel: Channel, request: RemotingCommand) -> Answer:
        header = UpdateConsumerOffset.from_ext(request.ext_fields)
        self._creations.require(channel, header.consumer_group)
        config = self._topics.find(header.topic)
        if config is None:
            raise TopicNotExistError(f"Topic {header.topic} not exist!")
        count = max(config.read_queue_nums, config.write_queue_nums)
        # A queue beyond the count is one of a topic that had more: its last messages are still consumed.
        known = (
            0 <= header.queue_id < count or self._store.find_queue(header.topic, header.queue_id) is not None
        )
        if not known:
            raise InvalidParameterError(
                f"queueId[{header.queue_id}] is illegal, topic[{header.topic}] has queues 0 to {count - 1}"
            )
        if not 0 <= header.commit_offset <= MAX_QUEUE_OFFSET:
            raise InvalidParameterError(
                f"commitOffset is {header.commit_offset}; use 0 to {MAX_QUEUE_OFFSET}"
            )
        self._offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        return request.reply()

    def newest(self, channel: Channel, request: RemotingCommand) -> Answer:
        header = QueueOnly.from_ext(request.ext_fields)
        queue = self._store.find_queue(header.topic, header.queue_id)
        offset = 0 if queue is None else self._store.readable_max(queue)
        return request.reply(ext_fields=OffsetReply(offset=offset).to_ext())

    def oldest(self, channel: Channel, request: RemotingCommand) -> Answer:
        header = QueueOnly.from_ext(request.ext_fields)
        queue = self._store.find_queue(header.topic, header.queue_id)
        offset = 0 if queue is None else queue.min_offset
        return request.reply(ext_fields=OffsetReply(offset=offset).to_ext())

    def search(self, channel: Channel, request: RemotingCommand) -> Answer:
        header = SearchOffset.from_ext(request.ext_fields)
        upper = (header.boundary_type or "lower").lower() == "upper"
        offset = self._store.search_offset(
            header.topic, header.queue_id, header.timestamp, "upper" if upper else "lower"
        )
        return request.reply(ext_fields=OffsetReply(offset=offset).to_ext())

    def earliest(self, channel: Channel, request: RemotingCommand) -> Answer:
        header = QueueOnly.from_ext(request.ext_fields)
        timestamp = self._store.earliest_store_time(header.topic, header.queue_id)
        return request.reply(ext_fields=TimestampReply(timestamp=timestamp).to_ext())
