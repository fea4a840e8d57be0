"""Pull requests (11 and 361), with long polling."""

from __future__ import annotations

import logging
import math
import struct

import msgspec

from gimbalmq.access.gate import Gate, NotAdmitted
from gimbalmq.broker.clients import Consumers
from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.consumer_offsets import ConsumerOffsets
from gimbalmq.broker.creations import Creations
from gimbalmq.broker.groups import Groups
from gimbalmq.broker.longpoll import LongPoll, Parked
from gimbalmq.broker.replication.config import MASTER_ID
from gimbalmq.broker.replication.reading import OUT_OF_RANGE_SECONDS, ReadRules
from gimbalmq.broker.stats import Stats
from gimbalmq.broker.topics import Topics
from gimbalmq.errors import (
    InvalidParameterError,
    LocalProtocolError,
    NoPermissionError,
    ResponseError,
    TopicNotExistError,
)
from gimbalmq.filter.tags import TagFilter, parse_tags
from gimbalmq.model.flags import PERM_READ
from gimbalmq.protocol.bodies import GroupConfig
from gimbalmq.protocol.codes import OUR_VERSION, RequestCode, ResponseCode
from gimbalmq.protocol.command import JSON_HEADER, ONEWAY_FLAG, RESPONSE_FLAG, RemotingCommand
from gimbalmq.protocol.frames import MAX_FRAME_BYTES, Frame
from gimbalmq.protocol.headers.messages import PullMessage, PullMessageReply
from gimbalmq.store.message_store import MessageStore
from gimbalmq.store.results import GetResult, GetStatus
from gimbalmq.transport.channel import GATHER_BYTES, Channel, Handlers, error_reply

log = logging.getLogger(__name__)

COMMIT_OFFSET = 1
SUSPEND = 2
SUBSCRIPTION = 4

_NO_LIMIT = 0x7FFFFFFF
"""What Java's pull consumers (5.x) send as maxMsgBytes when the application set none."""

_FEW_MESSAGES = 32

_CODES = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}


_REMARKS = {status: status.name for status in GetStatus}
_PULLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
_LARGEST_BODY = MAX_FRAME_BYTES - 1024

_JSON_ANSWER = (
    '{"code":%d,"extFields":{"suggestWhichBrokerId":"%d","nextBeginOffset":"%d","minOffset":"%d","maxOffset":"%d"},'
    '"flag":1,"language":"PYTHON","opaque":%d,"remark":"%s","serializeTypeCurrentRPC":"JSON",'
    f'"version":{OUR_VERSION}}}'
)
_WORDS = struct.Struct(">II").pack
"""A frame's length, and its header's: in JSON, whose number is 0."""


class _JsonPull(msgspec.Struct, gc=False):
    """A pull as nearly all clients send it, decoded in one go."""

    code: int
    opaque: int
    extFields: PullMessage
    flag: int = 0


class _SignedPull(msgspec.Struct, gc=False):
    """The same with its fields as they were signed."""

    code: int
    opaque: int
    extFields: dict[str, str]
    flag: int = 0
    version: int = 0


_decode = msgspec.json.Decoder(_JsonPull, strict=False).decode
_decode_signed = msgspec.json.Decoder(_SignedPull).decode
_Request = RemotingCommand | _JsonPull


def _admitted(gate: Gate, channel: Channel, frame: Frame) -> _JsonPull:
    """A signed pull that the gate lets pass; it is read from the fields that were signed."""
    signed = _decode_signed(frame[1])
    command = RemotingCommand(signed.code, signed.extFields, frame[2], version=signed.version)
    if not gate.knows(channel, command):
        raise NotAdmitted
    header = msgspec.convert(signed.extFields, PullMessage, strict=False)
    return _JsonPull(signed.code, signed.opaque, header, signed.flag)


class PullHandlers:
    """Java: PullMessageProcessor."""

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        creations: Creations,
        consumers: Consumers,
        offsets: ConsumerOffsets,
        long_poll: LongPoll,
        live: LiveConfig,
        stats: Stats,
        rules: ReadRules,
        gate: Gate | None = None,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._creations = creations
        self._consumers = consumers
        self._offsets = offsets
        self._long_poll = long_poll
        self._live = live
        self._stats = stats
        self._rules = rules
        self._gate = gate

    def register(self, handlers: Handlers) -> None:
        handlers.add(RequestCode.PULL_MESSAGE, self.pull)
        handlers.add(RequestCode.LITE_PULL_MESSAGE, self.pull)
        for code in _PULLS:
            handlers.add_batch(code, self.raw_pull, single=True, checks=self._gate is not None)

    def raw_pull(self, channel: Channel, frames: list[Frame]) -> int:
        """A pull with a JSON header, which is decoded in one go; one that is odd goes through ``pull``."""
        for frame in frames:
            try:
                request = _decode(frame[1]) if self._gate is None else _admitted(self._gate, channel, frame)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, NotAdmitted):
                channel.handle_frame(frame)
                continue
            if request.code not in _PULLS or request.flag & RESPONSE_FLAG:
                channel.handle_frame(frame)
                continue
            try:
                self._serve(channel, request, request.extFields, may_wait=True)
            except AssertionError:
                raise
            except Exception as error:
                _refuse(channel, request, error)
        return len(frames)

    def pull(self, channel: Channel, request: RemotingCommand) -> None:
        self._serve(channel, request, PullMessage.from_ext(request.ext_fields), may_wait=True)

    def _serve(self, channel: Channel, request: _Request, header: PullMessage, *, may_wait: bool) -> None:
        """Answers, now or later; raises what the channel is to tell the peer instead."""
        group, wanted = self._admit(channel, header)
        rules = self._rules
        if may_wait and header.sys_flag & COMMIT_OFFSET and rules.notes_progress:
            self._offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        reset = self._offsets.take_reset(header.consumer_group, header.topic, header.queue_id)
        if reset is not None:
            queue = self._store.find_queue(header.topic, header.queue_id)
            low, high = (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)
            place = GetResult(GetStatus.OFFSET_TOO_SMALL, reset, low, high)
            advice = rules.next_replica(group, far_behind=False)
            _answer(channel, request, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", place, advice)
            return
        max_count, max_bytes = self._limits(channel, header)
        result = self._store.get(
            header.topic, header.queue_id, header.queue_offset, max_count, max_bytes, wanted.codes
        )
        status = result.status
        code = _CODES.get(status)
        if code is None:
            # No queue yet, or an empty one: only offset 0 makes sense there.
            moved = header.queue_offset != 0
            code = ResponseCode.PULL_OFFSET_MOVED if moved else ResponseCode.PULL_NOT_FOUND
        advice = rules.next_replica(group, far_behind=result.on_disk)
        longest = math.inf if code == ResponseCode.PULL_NOT_FOUND else 0.0
        if code == ResponseCode.PULL_OFFSET_MOVED and not rules.corrects_offsets:
            code, advice = ResponseCode.PULL_RETRY_IMMEDIATELY, group.broker_id
            result.next_offset = header.queue_offset
            longest = OUT_OF_RANGE_SECONDS
        if longest and may_wait and header.sys_flag & SUSPEND:
            self._park(channel, request, header, wanted, longest)
            return
        self._offsets.note_pull(header.consumer_group, header.topic, header.queue_id, result.next_offset)
        if result.count:
            self._stats.got(header.topic, header.consumer_group, result.count, result.size)
        else:
            self._stats.get_miss.add()
        _answer(channel, request, code, _REMARKS[status], result, advice)

    def _ask_again(self, channel: Channel, request: _Request, header: PullMessage) -> None:
        """Answers a pull that has waited as if nothing had come."""
        queue = self._store.find_queue(header.topic, header.queue_id)
        low, high = (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)
        status = GetStatus.OFFSET_OVERFLOW_ONE
        nothing = GetResult(status, header.queue_offset, low, high)
        group = self._groups.known(header.consumer_group)
        advice = MASTER_ID if group is None else self._rules.next_replica(group, far_behind=False)
        _answer(channel, request, ResponseCode.PULL_NOT_FOUND, _REMARKS[status], nothing, advice)

    def _limits(self, channel: Channel, header: PullMessage) -> tuple[int, int | None]:
        """How many messages and bytes the answer may have; None leaves Apache's limits in force.

        A reader that names the bytes it can take gets as many, under the broker's own ceiling. Apache's broker
        looks at neither; a Java reader that names none sends the largest number there is. While much waits
        to be written, Apache's limits serve all, and in the end less than them.
        """
        size, load = header.max_msg_bytes, channel.load
        crowded = load is not None and load.waiting_bytes > 0 and load.crowded
        if crowded and load is not None and (small := load.small_answer_bytes) is not None:
            return min(header.max_msg_nums, _FEW_MESSAGES), small
        if crowded or size is None or not 0 < size < _NO_LIMIT:
            return header.max_msg_nums, None
        config = self._live.now
        return min(header.max_msg_nums, config.max_pull_msg_nums), min(size, config.max_pull_msg_bytes)

    def _admit(self, channel: Channel, header: PullMessage) -> tuple[GroupConfig, TagFilter]:
        """Who may pull what; raises the protocol's refusals, in Apache's order."""
        config = self._live.now
        if not config.broker_permission & PERM_READ:
            raise NoPermissionError(f"the broker[{config.broker_ip1}] pulling message is forbidden")
        group = self._groups.known(header.consumer_group) or self._creations.require(
            channel, header.consumer_group
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
            return group, self._filter(header.expression_type, header.subscription)
        return group, self._registered_filter(header, group.consume_broadcast_enable)

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
        self, channel: Channel, request: _Request, header: PullMessage, wanted: TagFilter, longest: float
    ) -> None:
        config = self._live.now
        millis = min(header.suspend_timeout_millis, config.long_polling_max_time_mills)
        if not config.long_polling_enable:
            millis = config.short_polling_time_mills
        header.bname = None
        if isinstance(request, RemotingCommand):
            # Whatever else the request had is not kept for as long as it waits.
            request = RemotingCommand(
                request.code, opaque=request.opaque, flag=request.flag, serialize_type=request.serialize_type
            )

        gate = self._gate
        revision = 0 if gate is None else gate.revision

        def answer() -> None:
            try:
                if gate is not None and gate.revision != revision:
                    # Whether the reader still may is found out when it asks again.
                    self._ask_again(channel, request, header)
                else:
                    self._serve(channel, request, header, may_wait=False)
            except AssertionError:
                raise
            except Exception as error:  # none of this is for who woke it
                _refuse(channel, request, error)

        def resume() -> None:
            if not channel.closed:
                channel.when_writable(answer)

        self._long_poll.park(
            Parked(
                (header.topic, header.queue_id),
                header.consumer_group,
                wanted.codes,
                header.queue_offset,
                channel,
                resume,
            ),
            min(longest, max(0.0, millis / 1000)),
        )


def _answer(
    channel: Channel, request: _Request, code: int, remark: str, result: GetResult, advice: int
) -> None:
    """Answers with what was found; ``advice`` is the broker id of the replica to ask next."""
    if request.flag & ONEWAY_FLAG:
        return
    if result.size > _LARGEST_BODY:
        raise LocalProtocolError(f"a message of {result.size} bytes exceeds the largest frame")
    if isinstance(request, RemotingCommand) and request.serialize_type != JSON_HEADER:
        fields = PullMessageReply(
            suggest_which_broker_id=advice,
            next_begin_offset=result.next_offset,
            min_offset=result.min_offset,
            max_offset=result.max_offset,
        )
        channel.send(request.reply(code, remark, fields.to_ext(), result.body))
        return
    # From a template: encoding it would cost more than finding the messages.
    header = _JSON_ANSWER % (
        code,
        advice,
        result.next_offset,
        result.min_offset,
        result.max_offset,
        request.opaque,
        remark,
    )
    words = _WORDS(4 + len(header) + result.size, len(header))
    if result.size < GATHER_BYTES:
        channel.send_bytes(b"".join((words, header.encode(), *result.parts)))
        return
    channel.send_bytes(words + header.encode())
    for part in result.parts:
        channel.send_bytes(part)


def _refuse(channel: Channel, request: _Request, error: Exception) -> None:
    if request.flag & ONEWAY_FLAG:
        return
    command = request if isinstance(request, RemotingCommand) else RemotingCommand(request.code)
    command.opaque = request.opaque
    channel.send(error_reply(command, error))
