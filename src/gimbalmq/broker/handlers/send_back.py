"""Sending back: replies to the client that asked (325, 324), and messages that a consumer failed to handle (36)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable

from gimbalmq._clock import Clock
from gimbalmq.broker.clients import Producers
from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.creations import Creations
from gimbalmq.broker.handlers.send import send_header, trace_fields
from gimbalmq.broker.redelivery import copied
from gimbalmq.broker.replication.acknowledging import Acknowledging
from gimbalmq.broker.stats import Stats
from gimbalmq.broker.stored import stored_record
from gimbalmq.broker.topics import Topics
from gimbalmq.broker.writer import Writer
from gimbalmq.errors import NoPermissionError, ResponseError, TransportError
from gimbalmq.model import properties as prop
from gimbalmq.model import topics as names
from gimbalmq.model.flags import PERM_WRITE
from gimbalmq.model.ids import offset_id, pack_host, unpack_host
from gimbalmq.model.record import decode_record
from gimbalmq.protocol.codes import V3_4_9, RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.messages import ReplyMessage, SendBack, SendMessageReply
from gimbalmq.store.message_store import MessageStore
from gimbalmq.transport.channel import Answer, Channel, Handlers

_REPLY_SECONDS = 3.0
"""A client that asked has so long to take the reply."""


class SendBackHandlers:
    """Java: ReplyMessageProcessor, and the part of SendMessageProcessor for messages that come back."""

    def __init__(
        self,
        store: MessageStore,
        writer: Writer,
        topics: Topics,
        producers: Producers,
        creations: Creations,
        live: LiveConfig,
        stats: Stats,
        store_host: bytes,
        acknowledging: Acknowledging,
        clock: Clock,
    ) -> None:
        self._store = store
        self._writer = writer
        self._topics = topics
        self._producers = producers
        self._creations = creations
        self._live = live
        self._stats = stats
        self._store_host = "{}:{}".format(*unpack_host(store_host))
        self._acknowledging = acknowledging
        self._clock = clock

    def register(self, handlers: Handlers) -> None:
        handlers.add(RequestCode.SEND_REPLY_MESSAGE, self.reply)
        handlers.add(RequestCode.SEND_REPLY_MESSAGE_V2, self.reply)
        handlers.add(RequestCode.CONSUMER_SEND_MSG_BACK, self.send_back)

    def reply(self, channel: Channel, request: RemotingCommand) -> Answer | asyncio.Future[Answer]:
        """A reply goes straight to the client that asked; it is not stored."""
        header = send_header(request)
        client_id = prop.find(header.properties, prop.REPLY_TO_CLIENT)
        target = None if client_id is None else self._producers.find_client(client_id)
        if target is None:
            raise ResponseError(f"push reply message fail, channel of <{client_id}> not found.")
        now = self._clock.wall_ms()
        properties = prop.parse(header.properties)
        properties[prop.PUSH_REPLY_TIME] = str(now)
        push = ReplyMessage(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            properties=prop.dump(properties),
            reconsume_times=header.reconsume_times or 0,
            unit_mode=bool(header.unit_mode),
            born_host=channel.address,
            store_host=self._store_host,
            store_timestamp=now,
        )
        command = RemotingCommand(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, push.to_ext(), bytes(request.body)
        )
        return asyncio.ensure_future(self._push_reply(target, command, request))

    async def _push_reply(
        self, target: Channel, command: RemotingCommand, request: RemotingCommand
    ) -> Answer:
        try:
            answer = await target.call(command, _REPLY_SECONDS)
        except TransportError as error:
            raise ResponseError(f"push reply message to {target.address} fail: {error}") from error
        header = SendMessageReply(msg_id="", queue_id=0, queue_offset=0)
        return request.reply(answer.code, answer.remark, header.to_ext() | trace_fields(self._live.now))

    def send_back(self, channel: Channel, request: RemotingCommand) -> Answer | asyncio.Future[Answer]:
        """A consumer failed: store the message for its group again, later, or give it up."""
        header = SendBack.from_ext(request.ext_fields)
        config = self._live.now
        group = self._creations.require(channel, header.group)
        if not config.broker_permission & PERM_WRITE:
            raise NoPermissionError(f"the broker[{config.broker_ip1}] sending message is forbidden")
        if group.retry_queue_nums <= 0:
            return request.reply()
        raw = stored_record(self._store, header.offset)
        if raw is None:
            raise ResponseError(f"look message by offset failed, {header.offset}")
        record = decode_record(raw)
        properties = dict(record.properties)
        properties.setdefault(prop.RETRY_TOPIC, record.topic)
        properties[prop.WAIT] = "false"
        properties.setdefault(
            prop.ORIGIN_MESSAGE_ID, offset_id(pack_host(*record.store_host), record.commitlog_offset)
        )
        most = group.retry_max_times
        if request.version >= V3_4_9 and header.max_reconsume_times is not None:
            most = header.max_reconsume_times
        properties.pop(prop.DELAY, None)
        if record.reconsume_times >= most or header.delay_level < 0:
            topic, queue_id = names.dlq_topic(header.group), 0
            self._topics.ensure(topic, 1)
            properties.setdefault(prop.DLQ_ORIGIN_TOPIC, properties[prop.RETRY_TOPIC])
            properties.setdefault(prop.DLQ_ORIGIN_MESSAGE_ID, properties[prop.ORIGIN_MESSAGE_ID])
        else:
            topic = names.retry_topic(header.group)
            # The topic's own number, in case the group's has been raised since: nobody pulls from other queues.
            made = self._topics.ensure(topic, group.retry_queue_nums)
            queue_id = random.randrange(max(1, min(made.read_queue_nums, made.write_queue_nums)))
            properties[prop.DELAY] = str(header.delay_level or 3 + record.reconsume_times)
        draft = copied(record, topic, queue_id, properties)
        draft.reconsume_times += 1
        place = self._writer.put(draft)[0]
        original = properties[prop.RETRY_TOPIC]
        if original not in self._topics:
            # The client may have written anything there; statistics are of topics.
            original = record.topic
        self._stats.item("SNDBCK_PUT_NUMS", f"{original}@{header.group}").add()
        settled = self._acknowledging.settle_silently(place.end)
        return request.reply() if settled is None else asyncio.ensure_future(_reply_when(settled, request))


async def _reply_when(settled: Awaitable[object], request: RemotingCommand) -> Answer:
    await settled
    return request.reply()
