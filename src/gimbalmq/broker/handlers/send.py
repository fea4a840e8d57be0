"""Sending: 310, 320, 10, replies (325, 324), and messages sent back (36).

Two ways in. ``batch`` takes a run of raw frames off one socket read: plain messages to known
topics, which is what nearly all traffic is, are appended in one group and answered in one
write, with the header decoded once, straight into a struct. Whatever is not plain (a new
topic, a delay, a transaction, a retry, another encoding) goes the general way, ``send``,
one message at a time; both end in the same store and the same answer.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import struct
from collections.abc import Awaitable, Callable

import msgspec

from gimbalmq._clock import Clock
from gimbalmq.broker.clients import Producers
from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.creations import Creations
from gimbalmq.broker.flush import GroupCommit
from gimbalmq.broker.locks import QueueLocks
from gimbalmq.broker.metadata import UNIT_FLAG, Topics
from gimbalmq.broker.redelivery import copied
from gimbalmq.broker.stats import Stats
from gimbalmq.broker.stored import stored_record
from gimbalmq.broker.transactions import Transactions
from gimbalmq.broker.writer import MAX_PROPERTIES_BYTES, Draft, Placed, Writer
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
from gimbalmq.model.flags import PERM_WRITE
from gimbalmq.model.ids import UniqueIdGenerator, ip_text, offset_id, pack_host
from gimbalmq.model.javahash import tag_hash
from gimbalmq.model.record import decode_record
from gimbalmq.protocol.bodies import TopicConfig
from gimbalmq.protocol.codes import OUR_VERSION, V3_4_9, RequestCode, ResponseCode
from gimbalmq.protocol.command import ONEWAY_FLAG, RemotingCommand
from gimbalmq.protocol.frames import Frame
from gimbalmq.protocol.headers.messages import (
    ReplyMessage,
    SendBack,
    SendMessage,
    SendMessageReply,
    SendMessageV2,
)
from gimbalmq.store.append import AppendGroup
from gimbalmq.store.consumequeue import QueueLog
from gimbalmq.store.message_store import MessageStore
from gimbalmq.transport.channel import Answer, Channel, Handlers

log = logging.getLogger(__name__)

_BULK_BYTES = 8192
"""Batches from here on are stored all at once."""

_SPECIAL_NAMES = (
    prop.DELAY,
    prop.TIMER_DELAY_SEC,
    prop.TIMER_DELAY_MS,
    prop.TIMER_DELIVER_MS,
    prop.TIMER_OUT_MS,
    prop.TRAN_MSG,
    prop.CLUSTER,
)
"""Properties that ask for more than being stored."""

_PLAIN_FLAGS = 0x701
"""System-flag bits a plain message may have: compression and its kind."""


class _FastFields(msgspec.Struct, gc=False):
    b: str
    e: int
    f: int
    g: int
    h: int
    i: str = ""
    j: int = 0
    m: bool = False


class _FastHeader(msgspec.Struct, gc=False):
    code: int
    opaque: int
    extFields: _FastFields
    flag: int = 0


_decode_fast = msgspec.json.Decoder(_FastHeader, strict=False).decode


_Answered = tuple[int, int, str, bool, int, int]
"""Opaque, queue id, unique key, waits for the disk, commit-log offset, queue offset."""

_GENERAL_PER_RUN = 32
"""So many frames of a run may go the general way, which takes ten times as long, before others have their turn."""

_Tail = tuple[bool, bytes, int, bool]
"""Of the properties behind the unique key: whether they are plain, their bytes, tags code, WAIT."""

_TAILS_KEPT = 4096
_TAIL_LENGTH_KEPT = 512
"""Long ones seldom repeat, and a peer that sends only such must not fill our memory."""


class SendHandlers:
    """Java: SendMessageProcessor, ReplyMessageProcessor."""

    def __init__(
        self,
        store: MessageStore,
        writer: Writer,
        topics: Topics,
        producers: Producers,
        creations: Creations,
        locks: QueueLocks,
        transactions: Transactions,
        commit: GroupCommit,
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
        self._producers = producers
        self._creations = creations
        self._locks = locks
        self._transactions = transactions
        self._commit = commit
        self._live = live
        self._stats = stats
        self._store_host = store_host
        self._unique_ids = unique_ids
        self._announced = announced
        self._clock = clock
        self._id_prefix = store_host.hex().upper()
        self._plain: dict[tuple[str, int], QueueLog] = {}
        self._tails: dict[str, _Tail] = {}
        self._plain_of = (-1, -1)
        self._answer_head = ""
        self._answer_tail = f',"serializeTypeCurrentRPC":"JSON","version":{OUR_VERSION}}}'
        self._cluster_property = f"{prop.CLUSTER}\x01{live.now.broker_cluster_name}\x02"

    def register(self, handlers: Handlers) -> None:
        handlers.add(RequestCode.SEND_MESSAGE, self.send)
        handlers.add(RequestCode.SEND_MESSAGE_V2, self.send)
        handlers.add(RequestCode.SEND_BATCH_MESSAGE, self.send)
        handlers.add(RequestCode.SEND_REPLY_MESSAGE, self.reply)
        handlers.add(RequestCode.SEND_REPLY_MESSAGE_V2, self.reply)
        handlers.add(RequestCode.CONSUMER_SEND_MSG_BACK, self.send_back)
        handlers.add_batch(RequestCode.SEND_MESSAGE_V2, self.batch)

    # -- the fast way ------------------------------------------------------------------

    def batch(self, channel: Channel, frames: list[Frame]) -> int:
        """A run of 310 frames of one connection, in order; how many of them are done."""
        config = self._live.now
        sync = config.sync_flush
        limit = config.max_message_size
        host = channel.peer_bytes
        if self._plain_of != (self._topics.generation, self._live.version):
            self._plain.clear()
            self._plain_of = (self._topics.generation, self._live.version)
            region, trace = json.dumps(config.region_id), str(config.trace_on).lower()
            self._answer_head = f'"extFields":{{"MSG_REGION":{region},"TRACE_ON":"{trace}","msgId":"'
        plain, tails = self._plain, self._tails
        group: AppendGroup | None = None
        done: list[_Answered] = []
        counts: dict[str, list[int]] = {}
        counted, count = "", [0, 0]
        general = 0
        for number, frame in enumerate(frames, 1):
            body = frame[2]
            queue = None
            try:
                header = _decode_fast(frame[1])
                fields = header.extFields
                text = fields.i
                topic = fields.b
                key = (topic, fields.e)
                unique_at = text.find("UNIQ_KEY\x01")
                unique_end = text.find("\x02", unique_at)
                if (
                    header.code == 310
                    and not fields.m
                    and not fields.f & ~_PLAIN_FLAGS
                    and unique_end > unique_at + 9 > 8
                    and 0 < len(body) <= limit
                    and len(text) < MAX_PROPERTIES_BYTES // 4
                ):
                    end = text[unique_end:]
                    tail = tails.get(end) or self._read_tail(end)
                    if tail[0] and (not unique_at or _plain_head(text[:unique_at])):
                        queue = plain.get(key) or self._find_plain(key)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                pass
            if queue is not None and group is None:
                try:
                    group = self._store.group()
                except StoreError:
                    # The general way says it to the client in the protocol's words.
                    queue = None
            if queue is None or group is None:
                if group is not None:
                    self._finish(channel, group, done, counts)
                    group, done, counted = None, [], ""
                channel.handle_frame(frame)
                general += 1
                if general == _GENERAL_PER_RUN:
                    return number
                continue
            try:
                commitlog_offset, queue_offset = group.add(
                    queue,
                    body,
                    text[:unique_end].encode() + tail[1],
                    tail[2],
                    fields.h,
                    fields.f,
                    fields.g,
                    host,
                    fields.j,
                    0,
                )
            except (StoreError, struct.error):
                # It fits no record. The general way says why; the group so far stands.
                self._finish(channel, group, done, counts)
                group, done, counted = None, [], ""
                channel.handle_frame(frame)
                continue
            except BaseException:  # out of memory, for one: an open group would refuse all others
                group.abort()
                raise
            if topic != counted:
                count = counts.setdefault(topic, [0, 0])
                counted = topic
            count[0] += 1
            count[1] += len(body)
            if not header.flag & ONEWAY_FLAG:
                unique = text[unique_at + 9 : unique_end]
                waits = sync and tail[3]
                done.append((header.opaque, fields.e, unique, waits, commitlog_offset, queue_offset))
        if group is not None:
            self._finish(channel, group, done, counts)
        return len(frames)

    def _read_tail(self, text: str) -> _Tail:
        """Properties from the end of the unique key on; they repeat, so each is read once."""
        if len(self._tails) >= _TAILS_KEPT:
            self._tails.clear()
        plain = _no_special(text) and "\x02UNIQ_KEY\x01" not in text
        closed = text if text[-1] == "\x02" else text + "\x02"
        tag = prop.find(text, prop.TAGS)
        waits = prop.find(text, prop.WAIT) != "false"
        tail = (
            plain,
            (closed + self._cluster_property).encode() if plain else b"",
            tag_hash(tag) if tag else 0,
            waits,
        )
        if len(text) <= _TAIL_LENGTH_KEPT:
            self._tails[text] = tail
        return tail

    def _find_plain(self, key: tuple[str, int]) -> QueueLog | None:
        """The queue of a topic that needs no further thought; None sends the message the other way."""
        topic, queue_id = key
        config = self._topics.find(topic)
        if (
            config is not None
            and config.perm & PERM_WRITE
            and self._live.now.broker_permission & PERM_WRITE
            and 0 <= queue_id < max(config.write_queue_nums, config.read_queue_nums)
            and topic not in names.FORBIDDEN_TO_SEND
            and topic != names.TIMER_TOPIC
            and names.topic_problem(topic) is None
            and not topic.startswith(names.RETRY_PREFIX)
        ):
            queue = self._plain[key] = self._store.queue(topic, queue_id)
            return queue
        return None

    def _finish(
        self,
        channel: Channel,
        group: AppendGroup,
        done: list[_Answered],
        counts: dict[str, list[int]],
    ) -> None:
        """Commits a group and answers its messages, now or when they are durable."""
        try:
            touched = group.commit()
        except StoreError as error:
            log.error("%d messages could not be stored: %s", len(done), error)
            for opaque, *_ in done:
                channel.send(
                    RemotingCommand(
                        ResponseCode.SERVICE_NOT_AVAILABLE,
                        self._trace_fields(),
                        opaque=opaque,
                        flag=1,
                        remark=f"service not available now: {error}",
                    )
                )
            counts.clear()
            return
        for topic, (count, size) in counts.items():
            self._stats.put(topic, count, size)
        counts.clear()
        waiting = [item for item in done if item[3]] if self._live.now.sync_flush else []
        if waiting:
            done = [item for item in done if not item[3]]
            durable = self._commit.wait(self._store.max_commitlog_offset)
            channel.began(len(waiting))
            asyncio.get_running_loop().create_task(self._answer_later(channel, waiting, durable))
        if done:
            channel.send_bytes(self._answers(done, 0))
        self._writer.arrived(touched)

    async def _answer_later(
        self, channel: Channel, done: list[_Answered], durable: asyncio.Future[bool]
    ) -> None:
        try:
            code = await self._durability(durable)
            channel.send_bytes(self._answers(done, code))
        finally:
            channel.finished(len(done))

    async def _durability(self, durable: asyncio.Future[bool]) -> int:
        try:
            on_disk = await asyncio.wait_for(durable, self._live.now.sync_flush_timeout / 1000)
        except TimeoutError:
            on_disk = False
        return 0 if on_disk else ResponseCode.FLUSH_DISK_TIMEOUT

    def _answers(self, done: list[_Answered], code: int) -> bytes:
        """The answers of a group as bytes, from a template: encoding each would cost more than storing it."""
        head = f'{{"code":{code},{self._answer_head}{self._id_prefix}'
        tail = self._answer_tail
        parts: list[str] = []
        prefixes = _FRAME_PREFIXES
        for opaque, queue_id, unique, _, commitlog_offset, queue_offset in done:
            if not (unique.isascii() and unique.isalnum()):
                unique = json.dumps(unique)[1:-1]
            header = (
                f'{head}{commitlog_offset:016X}","queueId":"{queue_id}","queueOffset":"{queue_offset}",'
                f'"transactionId":"{unique}"}},"flag":1,"language":"PYTHON","opaque":{opaque}{tail}'
            )
            length = len(header)
            parts += (prefixes[length] if length < 1024 else _prefix(length), header)
        # All of it is ASCII but the length words, so one encoding of the whole serves.
        return "".join(parts).encode("latin-1")

    # -- the general way ---------------------------------------------------------------

    def send(self, channel: Channel, request: RemotingCommand) -> Answer | asyncio.Future[Answer]:
        """One request of 310, 320 or 10, of any kind."""
        try:
            return self._send(channel, request)
        except ResponseError as error:
            return request.reply(error.code, error.remark, self._trace_fields())
        except StoreError as error:
            return request.reply(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"service not available now: {error}",
                self._trace_fields(),
            )

    def _send(self, channel: Channel, request: RemotingCommand) -> Answer | asyncio.Future[Answer]:
        header = _send_header(request)
        known = header.topic in self._topics
        topic = self._topic_for(channel, header)
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = random.randrange(max(1, topic.write_queue_nums))
        properties = prop.parse(header.properties)
        target, queue_id, dead = self._retry_target(channel, header, request, topic.topic_name, queue_id)
        if dead:
            properties.pop(prop.DELAY, None)
        plain = self._put_plain_batch(channel, request, header, target, queue_id) if header.batch else None
        if plain is not None:
            answer, end = plain
            return self._when_durable(answer, end, properties, announce=not known)
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
        answer = self._answer(request, places, queue_id, properties.get(prop.UNIQ_KEY))
        return self._when_durable(answer, places[-1].end, properties, announce=not known)

    def _when_durable(
        self, answer: RemotingCommand, end: int, properties: dict[str, str], *, announce: bool
    ) -> Answer | asyncio.Future[Answer]:
        durable = None
        if self._live.now.sync_flush and properties.get(prop.WAIT) != "false":
            durable = self._commit.wait(end)
        if durable is None and not announce:
            return answer
        return asyncio.ensure_future(self._answer_when(answer, durable, announce=announce))

    async def _answer_when(
        self, answer: RemotingCommand, durable: asyncio.Future[bool] | None, *, announce: bool
    ) -> Answer:
        """The first message of a new topic is answered when others can find the topic, too."""
        if announce:
            await self._announced()
        if durable is not None:
            answer.code = await self._durability(durable)
        return answer

    def _topic_for(self, channel: Channel, header: SendMessage | SendMessageV2) -> TopicConfig:
        """The topic's configuration, made on the spot where that is allowed."""
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

    def _create(self, header: SendMessage | SendMessageV2) -> TopicConfig | None:
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
        header: SendMessage | SendMessageV2,
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
        header: SendMessage | SendMessageV2,
        topic: str,
        queue_id: int,
        properties: dict[str, str],
    ) -> Draft:
        body = bytes(request.body)
        self._check_body(body)
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

    def _put_plain_batch(
        self,
        channel: Channel,
        request: RemotingCommand,
        header: SendMessage | SendMessageV2,
        topic: str,
        queue_id: int,
    ) -> tuple[RemotingCommand, int] | None:
        """Stores a batch in which nothing asks for more than being stored, all messages at once.

        None: too few for that to pay, or something special; message by message it says what is wrong, too.
        """
        data = bytes(request.body)
        if (
            len(data) < _BULK_BYTES
            or len(topic) > names.MAX_TOPIC_LENGTH
            or header.topic.startswith(names.RETRY_PREFIX)
            or header.sys_flag & ~_PLAIN_FLAGS
        ):
            return None
        # Here, because numpy is memory that a broker without batches never pays.
        from gimbalmq.store import bulk_append

        items = bulk_append.read_items(data)
        if (
            items is None
            or items.may_have(*_SPECIAL_NAMES)
            or int(items.body_sizes.max()) > self._live.now.max_message_size
        ):
            return None
        group = self._store.group()
        try:
            places, queue_offset = bulk_append.add_items(
                group,
                self._store.queue(topic, queue_id),
                items,
                self._cluster_property.encode(),
                header.sys_flag,
                header.born_timestamp,
                channel.peer_bytes,
            )
        except BaseException:
            group.abort()
            raise
        touched = group.commit()
        self._stats.put(topic, len(places), int(items.body_sizes.sum()))
        self._writer.arrived(touched)
        host = self._store_host
        reply = SendMessageReply(
            msg_id=bulk_append.offset_ids(host, places),
            queue_id=queue_id,
            queue_offset=queue_offset,
            transaction_id=prop.find(header.properties, prop.UNIQ_KEY),
        )
        answer = request.reply(0, None, reply.to_ext() | self._trace_fields())
        return answer, self._store.max_commitlog_offset

    def _batch_drafts(
        self,
        channel: Channel,
        request: RemotingCommand,
        header: SendMessage | SendMessageV2,
        topic: str,
        queue_id: int,
    ) -> list[Draft]:
        if len(topic) > names.MAX_TOPIC_LENGTH or header.topic.startswith(names.RETRY_PREFIX):
            raise MessageIllegalError(f"batch request does not support topic[{header.topic}]")
        drafts = []
        for item in split_batch(bytes(request.body)):
            self._check_body(item.body)
            properties = prop.parse(item.properties.decode("utf-8", "replace"))
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
        return request.reply(0, None, header.to_ext() | self._trace_fields())

    def _trace_fields(self) -> dict[str, str]:
        config = self._live.now
        return {prop.MSG_REGION: config.region_id, prop.TRACE_ON: str(config.trace_on).lower()}

    # -- replies and retries -----------------------------------------------------------

    def reply(self, channel: Channel, request: RemotingCommand) -> Answer | asyncio.Future[Answer]:
        """A reply goes straight to the client that asked; it is not stored."""
        header = _send_header(request)
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
            store_host=_host_text(self._store_host),
            store_timestamp=now,
        )
        command = RemotingCommand(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, push.to_ext(), bytes(request.body)
        )
        return asyncio.ensure_future(self._push_reply(target, command, request))

    async def _push_reply(
        self, target: Channel, command: RemotingCommand, request: RemotingCommand
    ) -> Answer:
        answer = await target.call(command, 3.0)
        header = SendMessageReply(msg_id="", queue_id=0, queue_offset=0)
        return request.reply(answer.code, answer.remark, header.to_ext() | self._trace_fields())

    def send_back(self, channel: Channel, request: RemotingCommand) -> Answer:
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
        self._writer.put(draft)
        original = properties[prop.RETRY_TOPIC]
        if original not in self._topics:
            # The client may have written anything there; statistics are of topics.
            original = record.topic
        self._stats.item("SNDBCK_PUT_NUMS", f"{original}@{header.group}").add()
        return request.reply()


def _is_retry(header: SendMessage | SendMessageV2, properties: dict[str, str]) -> bool:
    """A consumer before 4.6.1 sends a failed message back with all its properties, this one included."""
    return bool(header.reconsume_times) and prop.DELAY in properties


def _send_header(request: RemotingCommand) -> SendMessage | SendMessageV2:
    if request.code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE):
        return SendMessage.from_ext(request.ext_fields)
    return SendMessageV2.from_ext(request.ext_fields)


def _host_text(packed: bytes) -> str:
    return f"{ip_text(packed[:-4])}:{int.from_bytes(packed[-4:], 'big')}"


def _prefix(header_bytes: int) -> str:
    return ((header_bytes + 4).to_bytes(4, "big") + header_bytes.to_bytes(4, "big")).decode("latin-1")


_FRAME_PREFIXES = tuple(map(_prefix, range(1024)))
"""Length words of a frame without body, as text, by the length of its header."""


def _no_special(text: str) -> bool:
    """Nothing in these properties asks for more than being stored; a false alarm only costs time."""
    return (
        "DELAY\x01" not in text
        and "TIMER_" not in text
        and "TRAN_MSG\x01" not in text
        and "CLUSTER\x01" not in text
        and "\x01\x02" not in text
        and text[-1] != "\x01"
    )


def _plain_head(text: str) -> bool:
    """The same of what stands before the unique key; what decides elsewhere must stand behind it."""
    return text[-1] == "\x02" and "TAGS\x01" not in text and "WAIT\x01" not in text and _no_special(text)
