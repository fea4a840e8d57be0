"""Sending, the plain way: one request of 310, 320 or 10 at a time, of any kind.

New topics, delays, transactions, retries and every encoding are served here. Runs of ordinary messages take the fast
way (send_fast.py); replies, and what consumers could not handle, are in send_back.py.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from gimbalmq._clock import Clock
from gimbalmq.broker.config import BrokerConfig, LiveConfig
from gimbalmq.broker.creations import Creations
from gimbalmq.broker.locks import QueueLocks
from gimbalmq.broker.replication.acknowledging import Acknowledging, Settled
from gimbalmq.broker.stats import Stats
from gimbalmq.broker.topics import UNIT_FLAG, Topics
from gimbalmq.broker.transactions import Transactions
from gimbalmq.broker.writer import Draft, Placed, Writer
from gimbalmq.errors import (
    InvalidParameterError,
    MessageIllegalError,
    NoPermissionError,
    ResponseError,
    StoreError,
    TopicNotExistError,
)
from gimbalmq.model import properties as prop
from gimbalmq.model import topics as names
from gimbalmq.model.batch import split_batch
from gimbalmq.model.flags import COMPRESSED, COMPRESSION_MASK, INNER_BATCH, PERM_WRITE
from gimbalmq.model.ids import UniqueIdGenerator, offset_id
from gimbalmq.protocol.bodies import TopicConfig
from gimbalmq.protocol.codes import V3_4_9, RequestCode, ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.messages import (
    SendMessage,
    SendMessageReply,
    SendMessageV2,
)
from gimbalmq.store.message_store import MessageStore
from gimbalmq.transport.channel import Answer, Channel, Handlers

_VECTORS_FROM = 48
"""A batch of so many messages is stored by vectors, all at once; fewer are quicker one by one."""

_VECTORS_FROM_BYTES = 65_536
"""So is one of so many bytes: if only its first message is large, there may be thousands of others."""

_SPECIAL_NAMES = (*prop.DELAYS, prop.TIMER_OUT_MS, prop.TRAN_MSG, prop.CLUSTER)
"""Properties that ask for more than being stored."""

ORDINARY_FLAGS = COMPRESSED | COMPRESSION_MASK
"""System-flag bits a message may have that asks for nothing but being stored: compression and its kind."""

AnySendHeader = SendMessage | SendMessageV2


class SendHandlers:
    """Java: SendMessageProcessor."""

    def __init__(
        self,
        store: MessageStore,
        writer: Writer,
        topics: Topics,
        creations: Creations,
        locks: QueueLocks,
        transactions: Transactions,
        acknowledging: Acknowledging,
        live: LiveConfig,
        stats: Stats,
        store_host: bytes,
        unique_ids: UniqueIdGenerator,
        announced: Callable[[], Awaitable[None]],
        clock: Clock,
    ) -> None:
        self._store = store
        self._writer = writer
        self._topics = topics
        self._creations = creations
        self._locks = locks
        self._transactions = transactions
        self._acknowledging = acknowledging
        self._live = live
        self._stats = stats
        self._store_host = store_host
        self._unique_ids = unique_ids
        self._announced = announced
        self._clock = clock
        self._cluster_property = cluster_property(live.now).encode()

    def register(self, handlers: Handlers) -> None:
        handlers.add(RequestCode.SEND_MESSAGE, self.send)
        handlers.add(RequestCode.SEND_MESSAGE_V2, self.send)
        handlers.add(RequestCode.SEND_BATCH_MESSAGE, self.send)

    def send(self, channel: Channel, request: RemotingCommand) -> Answer | asyncio.Future[Answer]:
        """One request of 310, 320 or 10, of any kind."""
        try:
            return self._send(channel, request)
        except ResponseError as error:
            return request.reply(error.code, error.remark, trace_fields(self._live.now))
        except StoreError as error:
            return request.reply(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"service not available now: {error}",
                trace_fields(self._live.now),
            )

    def _send(self, channel: Channel, request: RemotingCommand) -> Answer | asyncio.Future[Answer]:
        header = send_header(request)
        if header.sys_flag & INNER_BATCH:
            # Found on disk again, by recovery or a slave, such a record gets no queue entry.
            raise MessageIllegalError(
                f"sysFlag {header.sys_flag} says that the message is a batch in one record, "
                "which only Apache's batch queues hold"
            )
        known = header.topic in self._topics
        topic = self._topic_for(channel, header)
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = random.randrange(max(1, topic.write_queue_nums))
        properties = prop.parse(header.properties)
        target, queue_id, dead = self._retry_target(channel, header, request, topic.topic_name, queue_id)
        if dead:
            properties.pop(prop.DELAY, None)
        waits = properties.get(prop.WAIT) != "false"
        refusal = self._acknowledging.refusal() if waits else None
        if refusal is not None:
            raise refusal
        stored = self._put_by_vectors(channel, request, header, target, queue_id) if header.batch else None
        if stored is not None:
            answer, end = stored
            return self._when_settled(answer, end, waits=waits, announce=not known)
        drafts = (
            self._batch_drafts(channel, request, header, target, queue_id)
            if header.batch
            else [self._draft(channel, request, header, target, queue_id, properties)]
        )
        if properties.get(prop.TRAN_MSG) == "true" and not header.batch and not _is_retry(header, properties):
            if self._live.now.reject_transaction_message:
                raise NoPermissionError(
                    f"the broker[{self._live.now.broker_ip1}] sending transaction message is forbidden"
                )
            places = [self._transactions.prepare(drafts[0])]
        else:
            places = self._writer.put(*drafts)
        named = places[:1] if _first_only(header) else places
        answer = self._answer(request, named, queue_id, properties.get(prop.UNIQ_KEY))
        return self._when_settled(answer, places[-1].end, waits=waits, announce=not known)

    def _when_settled(
        self, answer: RemotingCommand, end: int, *, waits: bool, announce: bool
    ) -> Answer | asyncio.Future[Answer]:
        code = self._acknowledging.settle(end) if waits else ResponseCode.SUCCESS
        if isinstance(code, ResponseCode):
            answer.code = code
            if not announce:
                return answer
        return asyncio.ensure_future(self._answer_when(answer, code, announce=announce))

    async def _answer_when(self, answer: RemotingCommand, code: Settled, *, announce: bool) -> Answer:
        """The first message of a new topic is answered when others can find the topic, too."""
        if announce:
            await self._announced()
        if not isinstance(code, ResponseCode):
            answer.code = await code
        return answer

    def _topic_for(self, channel: Channel, header: AnySendHeader) -> TopicConfig:
        """The topic's configuration, made on the spot if that is allowed."""
        topic = header.topic
        config = self._live.now
        problem = names.topic_problem(topic)
        if problem is not None:
            raise InvalidParameterError(problem)
        if topic in names.FORBIDDEN_TO_SEND or topic == names.TIMER_TOPIC:
            raise NoPermissionError(f"Sending message to topic[{topic}] is forbidden.")
        found = self._topics.find(topic)
        if not config.broker_permission & PERM_WRITE and (found is None or found.order):
            raise NoPermissionError(f"the broker[{config.broker_ip1}] sending message is forbidden")
        if found is None:
            found = self._creations.topic(channel, topic, lambda: self._create(header))
        if found is None:
            raise TopicNotExistError(
                f"topic[{topic}] not exist, apply first please! Create it, or set autoCreateTopicEnable=true"
            )
        if not found.perm & PERM_WRITE:
            raise NoPermissionError(f"the topic[{topic}] sending message is forbidden")
        most = max(found.write_queue_nums, found.read_queue_nums)
        if header.queue_id >= most:
            raise InvalidParameterError(
                f"request queueId[{header.queue_id}] is illegal, topic[{topic}] has queues 0 to {most - 1}"
            )
        return found

    def _create(self, header: AnySendHeader) -> TopicConfig | None:
        flag = UNIT_FLAG if header.unit_mode else 0
        found = self._topics.create_for_send(
            header.topic, header.default_topic, header.default_topic_queue_nums, flag
        )
        if found is None and header.topic.startswith(names.RETRY_PREFIX):
            found = self._topics.ensure(header.topic, 1)
        return found

    def _retry_target(
        self,
        channel: Channel,
        header: AnySendHeader,
        request: RemotingCommand,
        topic: str,
        queue_id: int,
    ) -> tuple[str, int, bool]:
        """Where a message for a retry topic goes: there, or among the dead letters."""
        if not topic.startswith(names.RETRY_PREFIX):
            return topic, queue_id, False
        group = topic.removeprefix(names.RETRY_PREFIX)
        config = self._creations.require(channel, group)
        most = config.retry_max_times
        if request.version >= V3_4_9 and header.max_reconsume_times is not None:
            most = header.max_reconsume_times
        if (header.reconsume_times or 0) > most or self._locks.any_locked(group):
            dead = names.dlq_topic(group)
            self._topics.ensure(dead, 1)
            return dead, 0, True
        return topic, queue_id, False

    def _draft(
        self,
        channel: Channel,
        request: RemotingCommand,
        header: AnySendHeader,
        topic: str,
        queue_id: int,
        properties: dict[str, str],
    ) -> Draft:
        body = bytes(request.body)
        self._check_body(body)
        _check_properties(header.properties)
        properties.setdefault(prop.UNIQ_KEY, self._unique_ids.next(self._clock.wall_ms()))
        properties[prop.CLUSTER] = self._live.now.broker_cluster_name
        return Draft(
            topic=topic,
            queue_id=queue_id,
            body=body,
            properties=properties,
            flag=header.flag,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            born_host=channel.peer_bytes,
            reconsume_times=header.reconsume_times or 0,
        )

    def _check_body(self, body: bytes) -> None:
        """What a client may send; a limit lowered later must not stop what is stored already."""
        limit = self._live.now.max_message_size
        if not body:
            raise MessageIllegalError("the message body is empty")
        if len(body) > limit:
            raise MessageIllegalError(f"the message's body is {len(body)} bytes; maxMessageSize is {limit}")

    def _put_by_vectors(
        self,
        channel: Channel,
        request: RemotingCommand,
        header: AnySendHeader,
        topic: str,
        queue_id: int,
    ) -> tuple[RemotingCommand, int] | None:
        """Stores a batch in which nothing asks for more than being stored, all messages at once.

        None: too few for that to pay, or something special; message by message it says what is wrong, too.
        """
        data = bytes(request.body)
        if (
            # If all are as long as the first.
            len(data) < min(_VECTORS_FROM * int.from_bytes(data[:4], "big"), _VECTORS_FROM_BYTES)
            or len(topic) > names.MAX_TOPIC_LENGTH
            or header.topic.startswith(names.RETRY_PREFIX)
            or header.sys_flag & ~ORDINARY_FLAGS
        ):
            return None
        # Here, because numpy is memory that a broker without batches never pays.
        from gimbalmq.store import append_vectors, batch_items

        items = batch_items.read_items(data)
        if (
            items is None
            or items.may_have(*_SPECIAL_NAMES)
            or int(items.body_sizes.max()) > self._live.now.max_message_size
        ):
            return None
        group = self._store.group()
        try:
            places, queue_offset = append_vectors.add_items(
                group,
                self._store.queue(topic, queue_id),
                items,
                self._cluster_property,
                header.sys_flag,
                header.born_timestamp,
                channel.peer_bytes,
            )
        except (StoreError, OverflowError):  # one fits no record
            group.abort()
            return None
        except BaseException:
            group.abort()
            raise
        touched = group.commit()
        self._stats.put(topic, len(places), int(items.body_sizes.sum()))
        self._writer.arrived(touched)
        reply = SendMessageReply(
            msg_id=append_vectors.offset_ids(self._store_host, places[:1] if _first_only(header) else places),
            queue_id=queue_id,
            queue_offset=queue_offset,
            transaction_id=prop.find(header.properties, prop.UNIQ_KEY),
        )
        answer = request.reply(ResponseCode.SUCCESS, None, reply.to_ext() | trace_fields(self._live.now))
        return answer, self._store.max_commitlog_offset

    def _batch_drafts(
        self,
        channel: Channel,
        request: RemotingCommand,
        header: AnySendHeader,
        topic: str,
        queue_id: int,
    ) -> list[Draft]:
        if len(topic) > names.MAX_TOPIC_LENGTH or header.topic.startswith(names.RETRY_PREFIX):
            raise MessageIllegalError(f"batch request does not support topic[{header.topic}]")
        drafts = []
        for item in split_batch(bytes(request.body)):
            self._check_body(item.body)
            text = item.properties.decode("utf-8", "replace")
            _check_properties(text)
            properties = prop.parse(text)
            if prop.DELAY in properties:
                raise MessageIllegalError("delayed messages cannot be sent in a batch")
            properties[prop.CLUSTER] = self._live.now.broker_cluster_name
            drafts.append(
                Draft(
                    topic=topic,
                    queue_id=queue_id,
                    body=item.body,
                    properties=properties,
                    flag=item.flag,
                    sys_flag=header.sys_flag,
                    born_timestamp=header.born_timestamp,
                    born_host=channel.peer_bytes,
                )
            )
        if not drafts:
            raise MessageIllegalError("the batch is empty")
        return drafts

    def _answer(
        self, request: RemotingCommand, places: list[Placed], queue_id: int, unique: str | None
    ) -> RemotingCommand:
        header = SendMessageReply(
            msg_id=",".join(offset_id(self._store_host, place.commitlog_offset) for place in places),
            queue_id=queue_id,
            queue_offset=places[0].queue_offset,
            transaction_id=unique,
        )
        return request.reply(ResponseCode.SUCCESS, None, header.to_ext() | trace_fields(self._live.now))


def _check_properties(text: str) -> None:
    if prop.ZEROS in text:
        raise MessageIllegalError(
            f"the message's properties have {len(prop.ZEROS)} NUL characters in a row: give such data in the body"
        )


def _is_retry(header: AnySendHeader, properties: dict[str, str]) -> bool:
    """A consumer before 4.6.1 sends a failed message back with all its properties, this one included."""
    return bool(header.reconsume_times) and prop.DELAY in properties


def _first_only(header: AnySendHeader) -> bool:
    return isinstance(header, SendMessageV2) and bool(header.first_id_only)


def send_header(request: RemotingCommand) -> AnySendHeader:
    if request.code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE):
        return SendMessage.from_ext(request.ext_fields)
    return SendMessageV2.from_ext(request.ext_fields)


def trace_fields(config: BrokerConfig) -> dict[str, str]:
    """What every answer to a send says besides its place."""
    return {prop.MSG_REGION: config.region_id, prop.TRACE_ON: str(config.trace_on).lower()}


def cluster_property(config: BrokerConfig) -> str:
    """The property that the broker adds to every message."""
    return f"{prop.CLUSTER}\x01{config.broker_cluster_name}\x02"
