"""A message to send, and a message received.

Received ones come by the million a second, so a ``MessageView`` is made from a record with as little as can be:
what every consumer needs is unpacked, the record is one slice, and what it means (body, times, hosts, properties, ids)
is worked out when it is asked for. Properties that one producer writes are alike but for the message's id, so the table
behind the id is read once for all messages that have the same. Nothing in a view is a container that the garbage
collector would have to look at.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gimbalmq.errors import CorruptRecordError, MessageIllegalError
from gimbalmq.model import properties as names
from gimbalmq.model.compression import decompress
from gimbalmq.model.flags import COMPRESSED, HOST_BITS
from gimbalmq.model.ids import offset_id, pack_host, unpack_host
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.record import (
    HEADS,
    HOST_BITS_AT,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD,
    QUEUE_ID_AT,
    STORE_TIMESTAMP_AT,
    Head,
    Host,
    check_record,
    decode_properties,
    find_property,
    head_subset,
    host_bits,
)

MAX_BODY_BYTES: Final = 4 * 1024 * 1024

SYSTEM_PROPERTIES: Final = frozenset(
    {
        names.KEYS,
        names.TAGS,
        names.WAIT,
        names.DELAY,
        names.UNIQ_KEY,
        names.RETRY_TOPIC,
        names.REAL_TOPIC,
        names.REAL_QUEUE_ID,
        names.TRAN_MSG,
        names.PRODUCER_GROUP,
        names.MIN_OFFSET,
        names.MAX_OFFSET,
        names.ORIGIN_MESSAGE_ID,
        names.RECONSUME_TIME,
        names.MAX_RECONSUME_TIMES,
        names.CONSUME_START_TIME,
        names.TRANSACTION_ID,
        names.CHECK_TIMES,
        names.CHECK_IMMUNITY_SECONDS,
        names.TRAN_PREPARED_QUEUE_OFFSET,
        names.CLUSTER,
        names.INSTANCE_ID,
        names.SHARDING_KEY,
        names.MSG_REGION,
        names.TRACE_ON,
        names.CORRELATION_ID,
        names.REPLY_TO_CLIENT,
        names.MESSAGE_TYPE,
        names.TTL,
        names.ARRIVE_TIME,
        names.PUSH_REPLY_TIME,
        names.TIMER_DELAY_SEC,
        names.TIMER_DELAY_MS,
        names.TIMER_DELIVER_MS,
        names.TIMER_OUT_MS,
        names.DLQ_ORIGIN_TOPIC,
        names.DLQ_ORIGIN_MESSAGE_ID,
        "TIMER_ROLL_TIMES",
        "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS",
        "TIMER_DEL_UNIQKEY",
        "TIMER_DELAY_LEVEL",
        "BUYER_ID",
        "TRANSFER_FLAG",
        "CORRECTION_FLAG",
        "MQ2_FLAG",
        "DUP_INFO",
        "EXTEND_UNIQ_INFO",
        "INNER_NUM",
        "INNER_BASE",
        "INNER_MULTI_DISPATCH",
        "INNER_MULTI_QUEUE_OFFSET",
        "POP_CK",
        "POP_CK_OFFSET",
        "1ST_POP_TIME",
        "__BORNHOST",
        "BORN_TIMESTAMP",
        "__CRC32#",
    }
)
"""Names RocketMQ keeps for itself (Java: MessageConst.STRING_HASH_SET)."""


def _body(given: Any) -> bytes:
    if isinstance(given, str):
        return given.encode()
    try:
        return bytes(memoryview(given))  # bytes() of a number would be as many zeros
    except TypeError:
        raise MessageIllegalError(
            f"a body is bytes or text, not {type(given).__name__}: encode {given!r:.100} first, as json.dumps() does"
        ) from None


class _Addressed(msgspec.Struct, eq=False, gc=False):
    topic: str
    body: bytes


class Message(_Addressed, eq=False, gc=False, kw_only=True):
    """A message to send (Java: Message).

    It is made in one step of C, and most that it could have is absent from most: what its options mean is worked out
    when it is sent.

    Args:
        topic: where to.
        body: bytes; text is encoded as UTF-8.
        tags: one tag, which consumers may filter by.
        keys: one key or several, by which the message can be found again; no blanks in them.
        properties: the application's own; names RocketMQ keeps for itself are refused.
        delay_level: 1 to 18, as the broker's table of levels has it; 0 delivers at once.
        deliver_at: a moment to deliver at: seconds since 1970 or a datetime (5.x brokers).
        delay: seconds to wait before delivery (5.x brokers).
        sharding_key: messages of equal keys go to one queue, in order.
        flag: a number of the application's own.
        wait_store_ok: whether the answer waits for the flush and replication the broker is set to.
        msg_id: the unique id; the first send gives one if there is none, and a second send keeps it.

    Attributes:
        system: ``system_properties`` if there are any.

    Raises:
        MessageIllegalError: the body is neither bytes nor text, a property name is reserved, a value empty, or a text
            holds a separator.
    """

    tags: str | None = None
    keys: tuple[str, ...] = ()
    properties: dict[str, str] = None  # type: ignore[assignment]  # never: see ``__post_init__``
    delay_level: int = 0
    deliver_at: float | datetime | None = None
    delay: float | None = None
    sharding_key: str | None = None
    flag: int = 0
    wait_store_ok: bool = True
    msg_id: str | None = None
    system: dict[str, str] | None = None

    if TYPE_CHECKING:  # what may be given is more than what is kept

        def __init__(
            self,
            topic: str,
            body: bytes | bytearray | memoryview | str,
            *,
            tags: str | None = None,
            keys: str | Sequence[str] | None = None,
            properties: Mapping[str, str] | None = None,
            delay_level: int = 0,
            deliver_at: float | datetime | None = None,
            delay: float | None = None,
            sharding_key: str | None = None,
            flag: int = 0,
            wait_store_ok: bool = True,
            msg_id: str | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        if type(self.body) is not bytes:
            self.body = _body(self.body)
        if self.keys != ():
            words: str | Sequence[str] = self.keys or ()
            self.keys = tuple((words if isinstance(words, str) else " ".join(words)).split())
        table = self.properties
        self.properties = _checked(table) if table else {}  # its own, also if an empty one is given
        if self.tags or self.keys or self.sharding_key or self.msg_id:
            self._check_texts()
        if self.delay_level or self.deliver_at is not None or self.delay is not None:
            self._check_delay()

    def _check_texts(self) -> None:
        texts = {
            "tags": self.tags,
            "keys": " ".join(self.keys),
            "sharding_key": self.sharding_key,
            "msg_id": self.msg_id,
        }
        for option, text in texts.items():
            if text and names.PROPERTY_END in text:
                raise MessageIllegalError(f"{option} {text!r} holds U+0002, which ends a property")

    def _check_delay(self) -> None:
        if bool(self.delay_level) + (self.deliver_at is not None) + (self.delay is not None) > 1:
            raise MessageIllegalError("give one of delay_level, deliver_at and delay")
        if self.delay_level < 0:
            raise MessageIllegalError(f"delay_level is {self.delay_level}; levels start at 1")
        if self.delay is not None and self.delay < 0:
            raise MessageIllegalError(
                f"delay is {self.delay} s; a message cannot be delivered before it is sent"
            )
        self._other_properties()  # what is no time fails here, not when it is sent

    @property
    def system_properties(self) -> dict[str, str]:
        """What RocketMQ itself reads and no other attribute says, by name. The client's own modules write here;
        applications need not."""
        if self.system is None:
            self.system = {}
        return self.system

    @property
    def plain(self) -> bool:
        """Whether it has no properties but its id and whether to wait."""
        return not (
            self.properties
            or self.tags
            or self.keys
            or self.system
            or self.delay_level
            or self.sharding_key is not None
            or self.deliver_at is not None
            or self.delay is not None
        )

    @property
    def delayed(self) -> bool:
        """Whether it is delivered later."""
        return bool(self.delay_level) or self.deliver_at is not None or self.delay is not None

    def all_properties(self) -> dict[str, str]:
        """All that travel, by name."""
        found = self._other_properties()
        if self.msg_id is not None:
            found[names.UNIQ_KEY] = self.msg_id
        return found

    def _other_properties(self) -> dict[str, str]:
        known: dict[str, str] = {}
        if self.keys:
            known[names.KEYS] = " ".join(self.keys)
        known[names.WAIT] = "true" if self.wait_store_ok else "false"
        if self.tags:
            known[names.TAGS] = self.tags
        if self.sharding_key is not None:
            known[names.SHARDING_KEY] = self.sharding_key
        if self.delay_level:
            known[names.DELAY] = str(self.delay_level)
        elif self.deliver_at is not None:
            moment = self.deliver_at
            seconds = moment.timestamp() if isinstance(moment, datetime) else moment
            known[names.TIMER_DELIVER_MS] = str(int(seconds * 1000))
        elif self.delay is not None:
            known[names.TIMER_DELAY_MS] = str(round(self.delay * 1000))
        if self.system:
            known |= self.system
        known |= self.properties
        return known

    def properties_text(self) -> str:
        """All properties but the id, as they travel."""
        text = ""  # a handful at most: a loop is quicker than a join
        for name, value in self._other_properties().items():
            text += f"{name}\x01{value}\x02"
        return text

    def __repr__(self) -> str:
        told = "".join(f", {name}={value!r}" for name, value in self.all_properties().items())
        return f"Message({self.topic!r}, {len(self.body)} bytes{told})"


def _checked(given: Mapping[str, str]) -> dict[str, str]:
    """An application's properties, of which it may keep the table."""
    for name, value in given.items():
        if name in SYSTEM_PROPERTIES:
            raise MessageIllegalError(f"The Property<{name}> is used by system, input another please")
        if not name or not value or not name.strip() or not value.strip():
            raise MessageIllegalError(
                f"The name or value of property {name!r} can not be null or blank string!"
            )
        if "\x01" in name or "\x02" in name or "\x01" in value or "\x02" in value:
            raise MessageIllegalError(f"property {name!r} holds U+0001 or U+0002, which separate properties")
    return dict(given)


# --- received ------------------------------------------------------------------------------------

_USED_AT_ONCE: Final = head_subset(
    "total_size", "magic", "queue_offset", "sys_flag", "reconsume_times", "body_size"
)


class Table(msgspec.Struct, frozen=True):
    """Properties as many messages have them, all but their ids; nobody changes it.

    Attributes:
        own: the application's.
        later_id: an id behind the first one, which counts instead: brokers of 4.x store a batch's own id behind the id
            of each of its messages.
    """

    all: dict[str, str]
    own: dict[str, str]
    tags: str | None
    later_id: str | None

    @classmethod
    def read(cls, raw: bytes) -> Table:
        found = decode_properties(raw)
        return cls(found, _own(found), found.get(names.TAGS), found.get(names.UNIQ_KEY))


def _own(properties: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if name not in SYSTEM_PROPERTIES}


_TABLES: Final[dict[bytes, Table]] = {}
"""Tables by their bytes; all are forgotten once there are too many."""
_MOST_TABLES = 1024
_LONGEST_KEPT = 512
_ID_START: Final = names.UNIQ_KEY.encode() + b"\x01"
_ID_START_BYTES: Final = len(_ID_START)

_HEAD_BYTES: Final = {bits: form.size for bits, form in _USED_AT_ONCE.items()}
_STORED_AT: Final = STORE_TIMESTAMP_AT[0]
_LONG: Final = struct.Struct(">q")

_LARGE_BODY = 4096
"""From so many bytes on, a body that was read is not kept within the record as well."""


class MessageView(msgspec.Struct, eq=False, gc=False):
    """A message received (Java: MessageExt).

    Attributes:
        topic: as stored; the push consumer puts ``original_topic`` here before a handler sees it.
        queue: the queue it was read from.
        queue_offset: its place in that queue.
        reconsume_times: how often it came back before.
        body_size: bytes of the body as stored, without unpacking it.
    """

    topic: str
    queue: MessageQueue
    queue_offset: int
    reconsume_times: int
    body_size: int
    _record: bytes
    _properties_at: int
    _body: bytes | None = None
    _id: str | None = None
    _table: Table | None = None
    _properties: dict[str, str] | None = None

    @classmethod
    def build(
        cls,
        topic: str,
        body: bytes,
        *,
        queue: MessageQueue | None = None,
        properties: Mapping[str, str] | None = None,
        queue_id: int = 0,
        flag: int = 0,
        queue_offset: int = 0,
        commitlog_offset: int = 0,
        sys_flag: int = 0,
        born_timestamp: int = 0,
        born_host: Host = ("127.0.0.1", 0),
        store_timestamp: int = 0,
        store_host: Host = ("127.0.0.1", 0),
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
    ) -> MessageView:
        """One that did not come as a record: replies pushed by a broker, and tests."""
        raw = names.dump(properties or {}).encode()
        queue = queue or MessageQueue(topic, "", queue_id)
        born, stored = pack_host(*born_host), pack_host(*store_host)
        bits = host_bits(born, stored)
        head = HEADS[bits].pack(
            MIN_RECORD + len(body) + len(topic) + len(raw),
            MAGIC_V1,
            0,
            queue.queue_id,
            flag,
            queue_offset,
            commitlog_offset,
            sys_flag & ~HOST_BITS | bits,
            born_timestamp,
            born,
            store_timestamp,
            stored,
            reconsume_times,
            prepared_transaction_offset,
            len(body),
        )
        record = head + body + raw  # nothing asks a view for its record's topic and lengths
        return cls(topic, queue, queue_offset, reconsume_times, len(body), record, len(record) - len(raw))

    # -- the record's own fields ------------------------------------------------------

    @property
    def body(self) -> bytes:
        """The application's bytes, unpacked if they were compressed.

        Raises:
            RemoteProtocolError: they were, and cannot be unpacked.
        """
        body = self._body
        if body is not None:
            return body
        record, size = self._record, self.body_size
        flags = record[HOST_BITS_AT]
        start = _HEAD_BYTES[flags & HOST_BITS]
        body = record[start : start + size]
        if flags & COMPRESSED:
            body = decompress(body, self.sys_flag)
        if size >= _LARGE_BODY:
            self._record = record[:start] + record[start + size :]
            self._properties_at -= size
        self._body = body
        return body

    def _fields(self) -> Head:
        record = self._record
        return Head._make(HEADS[record[HOST_BITS_AT] & HOST_BITS].unpack_from(record))

    @property
    def store_size(self) -> int:
        """Bytes of the whole record."""
        return self._fields().total_size

    @property
    def queue_id(self) -> int:
        return self._fields().queue_id

    @property
    def sys_flag(self) -> int:
        """System bits; the compression bit is as stored, whatever ``body`` has done."""
        return self._fields().sys_flag

    @property
    def broker_name(self) -> str:
        return self.queue.broker_name

    @property
    def flag(self) -> int:
        return self._fields().flag

    @property
    def body_crc(self) -> int:
        return self._fields().body_crc

    @property
    def commitlog_offset(self) -> int:
        return self._fields().commitlog_offset

    @property
    def born_timestamp(self) -> int:
        """When the producer made it, ms since 1970."""
        return self._fields().born_timestamp

    @property
    def born_host(self) -> Host:
        return unpack_host(self._fields().born_host)

    @property
    def store_timestamp(self) -> int:
        """When the broker stored it, ms since 1970."""
        record = self._record
        if record[HOST_BITS_AT] & HOST_BITS:
            return self._fields().store_timestamp
        stored: int = _LONG.unpack_from(record, _STORED_AT)[0]
        return stored

    @property
    def store_host(self) -> Host:
        return unpack_host(self._fields().store_host)

    @property
    def prepared_transaction_offset(self) -> int:
        return self._fields().prepared_transaction_offset

    # -- its properties ---------------------------------------------------------------

    @property
    def all_properties(self) -> dict[str, str]:
        """Every property, RocketMQ's own included; the table may be changed."""
        if self._properties is None:
            table = self._table or self._read_table()
            found = {} if self._id is None else {names.UNIQ_KEY: self._id}
            found.update(table.all)
            self._properties = found
        return self._properties

    @property
    def properties(self) -> dict[str, str]:
        """The application's properties, without RocketMQ's own."""
        if self._properties is not None:
            return _own(self._properties)
        return (self._table or self._read_table()).own.copy()

    def get(self, name: str) -> str | None:
        """One property, RocketMQ's own included, without reading the others."""
        if self._properties is not None:
            return self._properties.get(name)
        found = find_property(self.properties_bytes, name.encode())
        return None if found is None else found.decode("utf-8", "replace")

    def _read_table(self) -> Table:
        """Reads the id, and the table of what is behind it."""
        raw = self._record[self._properties_at :]
        first, end, behind = raw.partition(b"\x02")
        if end and first.startswith(_ID_START) and len(first) > _ID_START_BYTES:
            raw = behind
            try:
                # This is quicker than with "replace", which hardly any id needs.
                self._id = first[_ID_START_BYTES:].decode()
            except UnicodeDecodeError:
                self._id = first[_ID_START_BYTES:].decode("utf-8", "replace")
        table = _TABLES.get(raw)
        if table is None:
            table = Table.read(raw)
            if len(raw) <= _LONGEST_KEPT:
                if len(_TABLES) >= _MOST_TABLES:
                    _TABLES.clear()
                _TABLES[raw] = table
        self._table = table
        return table

    @property
    def properties_bytes(self) -> bytes:
        """The properties as they came."""
        return self._record[self._properties_at :]

    @property
    def tags(self) -> str | None:
        if self._properties is not None:
            return self._properties.get(names.TAGS)
        return (self._table or self._read_table()).tags

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple((self.get(names.KEYS) or "").split())

    @property
    def sharding_key(self) -> str | None:
        return self.get(names.SHARDING_KEY)

    @property
    def delay_level(self) -> int:
        return int(self.get(names.DELAY) or 0)

    @property
    def transaction_id(self) -> str | None:
        return self.get(names.TRANSACTION_ID) or self.get(names.UNIQ_KEY)

    @property
    def offset_msg_id(self) -> str:
        """The id by which a broker finds the record."""
        return offset_id(self._fields().store_host, self.commitlog_offset)

    @property
    def msg_id(self) -> str:
        """The producer's unique id if there is one, else the offset id."""
        if self._properties is not None:
            return self._properties.get(names.UNIQ_KEY) or self.offset_msg_id
        table = self._table or self._read_table()
        return table.later_id or self._id or self.offset_msg_id

    @property
    def original_topic(self) -> str:
        """Where the application sent it: of a retried message, the topic before ``%RETRY%``."""
        return self.get(names.RETRY_TOPIC) or self.topic

    def __repr__(self) -> str:
        return f"<MessageView {self.msg_id} {self.topic} queue {self.queue_id} at {self.queue_offset}>"


def decode_views(data: bytes, queue: MessageQueue | None = None, broker_name: str = "") -> list[MessageView]:
    """The messages of a pull, view or query answer.

    Args:
        data: records, one after the other.
        queue: the queue they all belong to; without it each gets the queue its record names.
        broker_name: whose records they are, for queues made here.

    Raises:
        CorruptRecordError: with the byte it was found at.
    """
    views: list[MessageView] = []
    append = views.append
    new = MessageView
    unpack_plain, plain_size = _USED_AT_ONCE[0].unpack_from, _USED_AT_ONCE[0].size
    last_name = tail = b""  # tail: what stands between body and properties, if it is as in the record before
    tail_size = properties_size = 0
    topic = ""
    owner: Any = queue
    # Of the record before: its sizes and flags, and from where to where in it the tail is. Most records are like it.
    last_size = last_body = last_flag = -1
    tail_from = tail_to = 0
    plain_magic = MAGIC_V1
    position, end = 0, len(data)
    while position < end:
        try:
            size, magic, offset, sys_flag, times, body_size = unpack_plain(data, position)
            if (
                size == last_size
                and body_size == last_body
                and sys_flag == last_flag
                and magic == plain_magic
                and data[position + tail_from : position + tail_to] == tail
                and (stop := position + size) <= end
            ):
                append(new(topic, owner, offset, times, body_size, data[position:stop], tail_to))
                position = stop
                continue
            topic_at = position + plain_size + body_size
            if sys_flag & HOST_BITS:
                form = _USED_AT_ONCE[sys_flag & HOST_BITS]
                _, _, _, _, times, body_size = form.unpack_from(data, position)
                topic_at = position + form.size + body_size
            if magic == MAGIC_V1 and tail and data[topic_at : topic_at + tail_size] == tail:
                properties_at = topic_at + tail_size
            else:
                if magic == MAGIC_V1:
                    name_at = topic_at + 1
                    name_end = name_at + data[topic_at]
                elif magic == MAGIC_V2:
                    name_at = topic_at + 2
                    name_end = name_at + (data[topic_at] << 8 | data[topic_at + 1])
                else:
                    raise _corrupt(data, position)
                name = data[name_at:name_end]
                if name != last_name:
                    last_name = name
                    topic = name.decode("utf-8", "replace")
                properties_at = name_end + 2
                properties_size = data[name_end] << 8 | data[name_end + 1]
                tail = data[topic_at:properties_at] if magic == MAGIC_V1 else b""
                tail_size = len(tail)
                last_size = -1  # this tail is not that one's
            stop = properties_at + properties_size
        except (struct.error, IndexError):
            stop = end + 1
        if stop > end or stop - position != size or body_size < 0:
            raise _corrupt(data, position)
        if queue is None:
            at = position + QUEUE_ID_AT
            queue_id = int.from_bytes(data[at : at + 4], "big", signed=True)
            if owner != (topic, broker_name, queue_id):
                owner = MessageQueue(topic, broker_name, queue_id)
        elif tail and not sys_flag & HOST_BITS:
            last_size, last_body, last_flag = size, body_size, sys_flag
            tail_from, tail_to = topic_at - position, properties_at - position
        append(new(topic, owner, offset, times, body_size, data[position:stop], properties_at - position))
        position = stop
    return views


def _corrupt(data: bytes, position: int) -> CorruptRecordError:
    reason = check_record(data, position, check_crc=False) or "lengths contradict each other"
    return CorruptRecordError("answer", position, reason)
