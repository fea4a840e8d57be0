"""Messages on their way out: checked, stamped with an id, and in the form that all attempts send."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator
from reprlib import repr as short

import msgspec

from gimbalmq.client.config import ProducerConfig
from gimbalmq.client.instance import ClientInstance
from gimbalmq.errors import MessageIllegalError
from gimbalmq.model import properties as names
from gimbalmq.model.batch import ITEM_BYTES, Body, encode_batch
from gimbalmq.model.compression import Compression, compress
from gimbalmq.model.flags import COMPRESSED, TRANSACTION_PREPARED
from gimbalmq.model.message import Message
from gimbalmq.model.topics import DLQ_PREFIX, FORBIDDEN_TO_SEND, RETRY_PREFIX, topic_problem
from gimbalmq.protocol.codes import RequestCode

log = logging.getLogger(__name__)

SEND = int(RequestCode.SEND_MESSAGE_V2)
SEND_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)
_SEND_REPLY = int(RequestCode.SEND_REPLY_MESSAGE_V2)

WAITS = f"{names.WAIT}\x01true\x02"
DOES_NOT_WAIT = f"{names.WAIT}\x01false\x02"

_NOT_IN_BATCHES = frozenset({*names.DELAYS, names.TRAN_MSG})


class Prepared(msgspec.Struct, gc=False):
    """One message, or one batch, as all its attempts send it."""

    code: int
    topic: str
    body: Body
    properties: str
    sys_flag: int
    flag: int
    msg_id: str
    born_ms: int
    reconsume: int = 0
    max_reconsume: int | None = None
    first_id_only: bool | None = None
    """Of a batch: whoever reads the answer looks at no message id but the first."""


def refusal(given: object, error: AttributeError, which: str = "this") -> Exception:
    """What to raise for an error that came of sending something: of a Message, the error itself.

    Nothing looks at what is given before it is sent: that would cost every message.

    Args:
        which: how the error calls it.
    """
    if isinstance(given, Message):
        return error
    return MessageIllegalError(
        f"{which} is no Message but {short(given)} of type {type(given).__name__}; pass gimbalmq.Message(topic, body)"
    )


def items_of(messages: Iterable[Message]) -> Iterator[Message]:
    """Several messages, one after the other.

    Raises:
        MessageIllegalError: it is nothing that has items, such as one message.
    """
    try:
        return iter(messages)
    except TypeError:
        if isinstance(messages, Iterable):
            raise
    raise MessageIllegalError(
        f"{short(messages)} of type {type(messages).__name__} has no items; pass a list of gimbalmq.Message, or send "
        "one message by send()"
    )


def prepare(
    message: Message, instance: ClientInstance, config: ProducerConfig, known_topics: Container[str]
) -> Prepared:
    """Puts a message into the form that travels; its id is noted in the message, too.

    Args:
        known_topics: names that need no check.

    Raises:
        MessageIllegalError: no topic, no body, too long.
    """
    body = message.body
    if message.topic not in known_topics:
        _check_topic(message.topic)
    if not 0 < len(body) <= config.max_message_size:
        raise _wrong_size(len(body), config.max_message_size)
    known = message.system_properties
    now_ms = instance.clock.wall_ms()
    msg_id, rest = stamp(message, instance.unique_ids.next, now_ms)
    sys_flag = 0
    if len(body) >= config.compress_over:
        assert isinstance(config.compression, Compression)
        body = compress(body, config.compression, config.compression_level)
        sys_flag = COMPRESSED | config.compression
    if names.TRAN_MSG in known:
        sys_flag |= TRANSACTION_PREPARED
    code = SEND if known.get(names.MESSAGE_TYPE) != "reply" else _SEND_REPLY
    properties = with_id(msg_id, rest)
    prepared = Prepared(code, message.topic, body, properties, sys_flag, message.flag, msg_id, now_ms)
    if message.topic.startswith(RETRY_PREFIX):
        _move_retry_fields(message, prepared)
    return prepared


def stamp(message: Message, next_id: Callable[[int], str], now_ms: int) -> tuple[str, str]:
    """The message's id, which is noted in it, and its other properties as they travel."""
    msg_id = message.msg_id
    if msg_id is None:
        message.msg_id = msg_id = next_id(now_ms)
    if message.plain:  # most messages of most producers
        return msg_id, WAITS if message.wait_store_ok else DOES_NOT_WAIT
    return msg_id, message.properties_text()


def with_id(msg_id: str, rest: str) -> str:
    """A message's properties. The id goes first, as in Java's sends: what follows repeats, and our broker reads it
    only once."""
    return f"UNIQ_KEY\x01{msg_id}\x02{rest}"


def _move_retry_fields(message: Message, prepared: Prepared) -> None:
    """A consumer's own resend tells its counts in the header, not in the properties."""
    told = message.all_properties()
    prepared.reconsume = int(told.pop(names.RECONSUME_TIME, "0"))
    most = told.pop(names.MAX_RECONSUME_TIMES, None)
    prepared.max_reconsume = None if most is None else int(most)
    prepared.properties = names.dump(told)


def prepare_batches(
    messages: list[Message], instance: ClientInstance, config: ProducerConfig
) -> list[Prepared]:
    """Puts messages of one topic into as few requests as their size allows.

    Raises:
        MessageIllegalError: they differ in topic or in waiting, are delayed, or go to a retry topic.
    """
    if not messages:
        raise MessageIllegalError("a batch needs at least one message")
    try:
        return _in_batches(messages, instance, config)
    except AttributeError as error:
        for place, message in enumerate(messages):
            if not isinstance(message, Message):
                raise refusal(message, error, f"item {place}") from None
        raise


def _in_batches(messages: list[Message], instance: ClientInstance, config: ProducerConfig) -> list[Prepared]:
    first = messages[0]
    _check_topic(first.topic)
    if first.topic.startswith(RETRY_PREFIX):
        raise MessageIllegalError("Retry Group is not supported for batching")
    limit = config.max_message_size
    pieces: list[list[tuple[int, Body, bytes]]] = [[]]
    ids: list[list[str]] = [[]]
    size = 0
    now_ms = instance.clock.wall_ms()
    for message in messages:
        if message.topic != first.topic:
            raise MessageIllegalError("The topic of the messages in one batch should be the same")
        if message.wait_store_ok != first.wait_store_ok:
            raise MessageIllegalError("The waitStoreMsgOK of the messages in one batch should the same")
        if message.delayed or not _NOT_IN_BATCHES.isdisjoint(message.system_properties):
            raise MessageIllegalError("TimeDelayLevel is not supported for batching")
        # The time of each: no more than 65,536 ids of one time differ.
        msg_id, rest = stamp(message, instance.unique_ids.next, instance.clock.wall_ms())
        properties = with_id(msg_id, rest).encode()
        item_bytes = ITEM_BYTES + len(message.body) + len(properties)
        if not message.body or item_bytes > limit:
            raise _wrong_size(item_bytes if message.body else 0, limit)
        if size + item_bytes > limit:
            pieces.append([])
            ids.append([])
            size = 0
        pieces[-1].append((message.flag, message.body, properties))
        ids[-1].append(msg_id)
        size += item_bytes
    wait = WAITS if first.wait_store_ok else DOES_NOT_WAIT
    return [
        batch_request(first.topic, encode_batch(items), ",".join(item_ids), wait, now_ms)
        for items, item_ids in zip(pieces, ids, strict=True)
    ]


def batch_request(topic: str, body: bytes, ids: str, wait: str, born_ms: int) -> Prepared:
    """One request of many messages.

    Args:
        body: the messages, see ``model.batch``.
        ids: of all of them, if the request's result shall name them.
        wait: what all of them say about waiting for the flush: WAITS or DOES_NOT_WAIT.
    """
    # No id of the batch's own: a 4.9 broker appends these properties to those of every message.
    return Prepared(SEND_BATCH, topic, body, wait, 0, 0, ids, born_ms)


def _check_topic(topic: str) -> None:
    problem = topic_problem(topic)
    if problem is not None:
        raise MessageIllegalError(problem)
    if topic in FORBIDDEN_TO_SEND:
        raise MessageIllegalError(f"Sending message to topic[{topic}] is forbidden.")
    if topic.startswith(DLQ_PREFIX):
        log.debug("sending to the dead-letter topic %s", topic)


def _wrong_size(size: int, limit: int) -> MessageIllegalError:
    if size == 0:
        return MessageIllegalError("the message body length is zero")
    return MessageIllegalError(f"the message body size over max value, MAX: {limit}, this one has {size}")
