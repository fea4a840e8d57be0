"""What a broker says when it registers: the body of request 103 in all its historical forms.

version < 37           the bare topic table as JSON
plain                  {"filterServerList": [...], "topicConfigSerializeWrapper": {...}}
compressed             one zlib stream: int32 length + data version as JSON; int32 count of
                       topics, each int32 length + "name read write perm filter[ attributes]";
                       int32 length + filter servers as JSON; and from 5.0.0 on
                       int32 count of queue mappings, each int32 length + JSON
no body                an empty table
"""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from msgspec import field as struct_field

from gimbalmq._steps import Steps
from gimbalmq.errors import InvalidParameterError, RemoteProtocolError, ResponseError
from gimbalmq.protocol import fastjson
from gimbalmq.protocol.bodies import Body, DataVersion, TopicConfig, TopicTable
from gimbalmq.protocol.codes import V3_0_11, V5_0_0, ResponseCode
from gimbalmq.protocol.headers.nameserver import PART_OF_A_TABLE, RegisterBroker

T = TypeVar("T")

ZLIB_BYTE = 0x78
"""First of every zlib stream with the usual window; JSON never begins so."""

MOST_TOPICS = 200_000
"""Of one registration, unless the name server knows more."""

MAX_NAME_CHARACTERS = 512
"""Of a cluster, broker, zone, address or topic; Apache's own bounds are 127 and 255."""

_AT_ONCE_BYTES = fastjson.REQUEST_LIMIT
"""JSON up to this size is read in one step, whatever its dialect."""

_ENTRY_BYTES = 72 * 1024
"""Most bytes of one topic or one queue mapping; brokers of ours keep 64 KB of settings for a topic."""

_MAPPING_BYTES = 2 * 1024 * 1024
_ROWS_AT_ONCE = 200
_BYTES_AT_ONCE = 512 * 1024
_INFLATE_BYTES = 64 * 1024

_TOPICS = re.compile(rb'"topicConfigTable"\s*+:\s*+\{')
_MAPPINGS = re.compile(rb'"topicQueueMappingInfoMap"\s*+:\s*+\{')
_SPACE = re.compile(rb"\s*+")
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_FLAT = rb"(?:[^{}\"]++|" + _STRING + rb")*+"
_ENTRY = re.compile(
    rb"("
    + _STRING
    + rb")\s*+:\s*+(\{(?:"
    + rb"[^{}\"]++|"
    + _STRING
    + rb"|\{"
    + _FLAT
    + rb"\})*+\}|null)\s*+(,?)",
    re.DOTALL,
)
"""One row of a table: its name, its settings (objects in it have no objects in them), and a comma.

No part of it is tried twice, so hostile text takes no longer than any other."""
_END = re.compile(rb"\s*+\}")

_read_topic = msgspec.json.Decoder(TopicConfig, strict=False).decode
_read_name = msgspec.json.Decoder(str).decode


class _MappedTopicTable(TopicTable):
    """With the static topics of 5.x (Java: TopicConfigAndMappingSerializeWrapper)."""

    topic_queue_mapping_info_map: dict[str, Any] = struct_field(default_factory=dict)


class _RegisterBody(Body):
    topic_config_serialize_wrapper: _MappedTopicTable = struct_field(default_factory=_MappedTopicTable)


@dataclass(frozen=True, slots=True)
class ReadingLimits:
    """What one registration may bring."""

    topics: int = MOST_TOPICS
    inflated_bytes: int = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """One broker's announcement.

    Attributes:
        enable_acting_master: None if the broker is too old to say.
        expiry: seconds of silence it asks to be allowed; None leaves that to the name server.
        queue_mappings: by topic, of static topics.
        part: whether the broker says that it has more topics than these.
    """

    cluster: str
    broker_name: str
    broker_addr: str
    broker_id: int = 0
    ha_server_addr: str = ""
    zone_name: str | None = None
    enable_acting_master: bool | None = None
    expiry: float | None = None
    data_version: DataVersion = field(default_factory=DataVersion)
    topics: dict[str, TopicConfig] = field(default_factory=dict)
    queue_mappings: dict[str, Any] = field(default_factory=dict)
    part: bool = False

    def __post_init__(self) -> None:
        for name, value in (
            ("clusterName", self.cluster),
            ("brokerName", self.broker_name),
            ("brokerAddr", self.broker_addr),
        ):
            if not value.strip():
                raise InvalidParameterError(f"{name} {value!r} is blank", code=ResponseCode.SYSTEM_ERROR)
        host, colon, port = self.broker_addr.rpartition(":")
        if not (host and colon and port.isdecimal() and int(port) <= 65535):
            raise InvalidParameterError(
                f"brokerAddr {self.broker_addr!r} is not of the form ip:port", code=ResponseCode.SYSTEM_ERROR
            )
        for name, text in (
            ("clusterName", self.cluster),
            ("brokerName", self.broker_name),
            ("brokerAddr", self.broker_addr),
            ("haServerAddr", self.ha_server_addr),
            ("zoneName", self.zone_name or ""),
        ):
            if len(text) > MAX_NAME_CHARACTERS:
                raise InvalidParameterError(
                    f"{name} has {len(text)} characters; {MAX_NAME_CHARACTERS} are allowed",
                    code=ResponseCode.SYSTEM_ERROR,
                )


def reading(
    header: RegisterBroker, body: bytes, version: int, limits: ReadingLimits | None = None
) -> Steps[Registration]:
    """Header and body of request 103 in small steps: a table may have tens of thousands of topics.

    Raises:
        ResponseError: the check sum is wrong.
        RemoteProtocolError: the body cannot be read, or brings more than it may.
        InvalidParameterError: a value is out of range.
    """
    limits = limits or ReadingLimits()
    if header.body_crc32:
        check_sum = 0
        for start in range(0, len(body), _BYTES_AT_ONCE):
            check_sum = zlib.crc32(memoryview(body)[start : start + _BYTES_AT_ONCE], check_sum)
            yield
        if check_sum & 0x7FFFFFFF != header.body_crc32:
            raise ResponseError("crc32 not match")
    table = yield from _read_table(header, body, version, limits)
    topics: dict[str, TopicConfig] = {}
    for number, (key, topic) in enumerate(table.topic_config_table.items()):
        name = topic.topic_name or key
        _check_topic(name, topic)
        # Every broker brings the same names: one copy of each serves all.
        topics[sys.intern(name)] = topic
        if number % _ROWS_AT_ONCE == _ROWS_AT_ONCE - 1:
            yield
    mappings = table.topic_queue_mapping_info_map
    return Registration(
        cluster=header.cluster_name,
        broker_name=header.broker_name,
        broker_addr=header.broker_addr,
        broker_id=header.broker_id,
        ha_server_addr=header.ha_server_addr,
        zone_name=header.zone_name,
        enable_acting_master=header.enable_acting_master,
        expiry=None if header.heartbeat_timeout_millis is None else header.heartbeat_timeout_millis / 1000,
        data_version=table.data_version,
        topics=topics,
        queue_mappings={topic: mapping for topic, mapping in mappings.items() if topic != PART_OF_A_TABLE},
        part=PART_OF_A_TABLE in mappings,
    )


def _check_topic(name: str, topic: TopicConfig) -> None:
    if len(name) > MAX_NAME_CHARACTERS:
        raise InvalidParameterError(
            f"topic {name[:40]!r}... has {len(name)} characters; {MAX_NAME_CHARACTERS} are allowed",
            code=ResponseCode.SYSTEM_ERROR,
        )
    if topic.read_queue_nums < 0 or topic.write_queue_nums < 0:
        raise InvalidParameterError(
            f"topic {name!r} has {topic.read_queue_nums} read and {topic.write_queue_nums} write "
            "queues; neither may be negative",
            code=ResponseCode.SYSTEM_ERROR,
        )


def _read_table(
    header: RegisterBroker, body: bytes, version: int, limits: ReadingLimits
) -> Steps[_MappedTopicTable]:
    if not body:
        return _MappedTopicTable()
    # Apache 5.x brokers with compressedRegister compress the body and say in the header that it is not.
    if version >= V3_0_11 and (header.compressed or body[0] == ZLIB_BYTE):
        return (yield from _inflate(body, with_mappings=version >= V5_0_0, limits=limits))
    topics: dict[str, TopicConfig] | None = None
    mappings: dict[str, Any] = {}
    if len(body) > _AT_ONCE_BYTES:
        topics, body = yield from _cut(body, _TOPICS, "topic", _read_topic, limits, len(body))
        # Apache writes the numbers of queues as bare keys, in which a long text would not be read at once.
        if _MAPPINGS.search(body) is not None:
            mappings, body = yield from _cut(
                body, _MAPPINGS, "queue mapping", fastjson.loads, limits, _MAPPING_BYTES
            )
    if version < V3_0_11:
        table = _MappedTopicTable.of_request(body)
    else:
        table = _RegisterBody.of_request(body).topic_config_serialize_wrapper
    if topics is not None:
        table.topic_config_table = topics
    table.topic_queue_mapping_info_map.update(mappings)
    return table


def _cut(
    body: bytes,
    table: re.Pattern[bytes],
    what: str,
    read: Callable[[bytes], T],
    limits: ReadingLimits,
    most_bytes: int,
) -> Steps[tuple[dict[str, T], bytes]]:
    """A table of a long body, read a few rows at a time, and the body without its rows."""
    start = table.search(body)
    if start is None:
        raise RemoteProtocolError(f"the registration of {len(body)} bytes has no topicConfigTable")
    rows: dict[str, T] = {}
    position = stepped = yield from _behind_spaces(body, start.end())
    count = 0
    while entry := _ENTRY.match(body, position, position + _ENTRY_BYTES):
        try:
            name = _read_name(entry.group(1))
            if entry.group(2) != b"null":
                rows[name] = read(entry.group(2))
        except (msgspec.MsgspecError, RemoteProtocolError) as error:
            raise RemoteProtocolError(
                f"{what} {entry.group(1)[:40]!r} of the registration cannot be read: {error}"
            ) from error
        count += 1
        _check_count(count, what, limits)
        _check_bytes(entry.end() - start.end(), what, most_bytes)
        if count % _ROWS_AT_ONCE == 0 or entry.end() - stepped >= _AT_ONCE_BYTES:
            stepped = entry.end()
            yield
        position = yield from _behind_spaces(body, entry.end())
        if not entry.group(3):
            break
    end = _END.match(body, position)
    if end is None:
        raise RemoteProtocolError(
            f"the registration is no JSON at byte {position}, or has a {what} of more than {_ENTRY_BYTES} bytes "
            f"there: {body[position : position + 20]!r}"
        )
    return rows, body[: start.end()] + body[end.end() - 1 :]


def _check_bytes(size: int, what: str, most: int) -> None:
    if size > most:
        raise RemoteProtocolError(f"the registration has {size} bytes of {what}s or more; {most} are read")


def _behind_spaces(body: bytes, position: int) -> Steps[int]:
    while True:
        space = _SPACE.match(body, position, position + _BYTES_AT_ONCE)
        assert space is not None
        if space.end() < position + _BYTES_AT_ONCE:
            return space.end()
        position = space.end()
        yield


def _check_count(count: int, what: str, limits: ReadingLimits) -> None:
    if count > limits.topics:
        raise RemoteProtocolError(
            f"the registration has {count} {what}s or more and this name server reads {limits.topics}: "
            "register in parts, or raise maxTopicNums"
        )


def _inflate(body: bytes, *, with_mappings: bool, limits: ReadingLimits) -> Steps[_MappedTopicTable]:
    inflater = zlib.decompressobj()
    data = bytearray()
    for start in range(0, len(body), _INFLATE_BYTES):
        rest = body[start : start + _INFLATE_BYTES]
        while rest:
            try:
                data += inflater.decompress(rest, _BYTES_AT_ONCE)
            except zlib.error as error:
                raise RemoteProtocolError(
                    f"the compressed registration cannot be inflated: {error}"
                ) from error
            if len(data) > limits.inflated_bytes:
                raise RemoteProtocolError(
                    f"the compressed registration inflates past {limits.inflated_bytes} bytes; register in "
                    "parts, or raise maxInflatedRegistrationSize of the name server"
                )
            rest = inflater.unconsumed_tail
            yield
    reader = _Reader(data)
    version = DataVersion.of_request(reader.block("data version"), limit=_AT_ONCE_BYTES)
    topics: dict[str, TopicConfig] = {}
    for number in range(reader.count("topic", limits)):
        topic = _topic_from_text(reader.text("topic"))
        topics[topic.topic_name] = topic
        if number % _ROWS_AT_ONCE == _ROWS_AT_ONCE - 1:
            yield
    reader.block("filter server list")
    mappings: dict[str, Any] = {}
    if with_mappings:
        size = 0
        for number in range(reader.count("queue mapping", limits)):
            text = reader.block("queue mapping")
            size += len(text)
            if len(text) > _ENTRY_BYTES:
                raise RemoteProtocolError(
                    f"a queue mapping of the registration has {len(text)} bytes; {_ENTRY_BYTES} are read"
                )
            _check_bytes(size, "queue mapping", _MAPPING_BYTES)
            mapping = fastjson.loads(text)
            if not isinstance(mapping, dict) or not isinstance(mapping.get("topic"), str):
                raise RemoteProtocolError(f"queue mapping {str(mapping)[:100]} names no topic")
            mappings[mapping["topic"]] = mapping
            if number % _ROWS_AT_ONCE == _ROWS_AT_ONCE - 1 or len(text) * _ROWS_AT_ONCE > _BYTES_AT_ONCE:
                yield
    return _MappedTopicTable(
        data_version=version, topic_config_table=topics, topic_queue_mapping_info_map=mappings
    )


def _topic_from_text(text: str) -> TopicConfig:
    parts = text.split(" ", 5)
    try:
        name, reads, writes, perm, filter_type = parts[:5]
        topic = TopicConfig(
            topic_name=name,
            read_queue_nums=int(reads),
            write_queue_nums=int(writes),
            perm=int(perm),
            topic_filter_type=filter_type,
        )
    except ValueError:
        raise RemoteProtocolError(f"topic {text[:100]!r} is not 'name reads writes perm filter'") from None
    # The attributes are not for us; what a broker sends there cannot spoil its registration.
    return topic


class _Reader:
    """Lengths and blocks, one after the other."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytearray) -> None:
        self._data = memoryview(data)
        self._position = 0

    def count(self, what: str, limits: ReadingLimits) -> int:
        number = int.from_bytes(self._take(4, f"count of {what}s"), "big", signed=True)
        if number < 0:
            raise RemoteProtocolError(f"the compressed registration has {number} {what}s")
        _check_count(number, what, limits)
        return number

    def block(self, what: str) -> bytes:
        length = int.from_bytes(self._take(4, f"length of a {what}"), "big", signed=True)
        return self._take(length, what)

    def text(self, what: str) -> str:
        try:
            return self.block(what).decode()
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"a {what} of the registration is not UTF-8: {error}") from error

    def _take(self, length: int, what: str) -> bytes:
        end = self._position + length
        if length < 0 or end > len(self._data):
            raise RemoteProtocolError(
                f"the compressed registration ends within a {what}: {length} bytes wanted at "
                f"{self._position} of {len(self._data)}"
            )
        taken = bytes(self._data[self._position : end])
        self._position = end
        return taken
