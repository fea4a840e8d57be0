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

import zlib
from dataclasses import dataclass, field
from typing import Any

from msgspec import field as struct_field

from gimbalmq.errors import InvalidParameterError, RemoteProtocolError, ResponseError
from gimbalmq.protocol import fastjson
from gimbalmq.protocol.bodies import Body, DataVersion, TopicConfig, TopicTable
from gimbalmq.protocol.codes import V3_0_11, V5_0_0
from gimbalmq.protocol.headers.nameserver import RegisterBroker

MAX_INFLATED_BYTES = 256 * 1024 * 1024
"""A compressed table larger than this is refused: no real one comes near."""

ZLIB_BYTE = 0x78
"""First of every zlib stream with the usual window; JSON never begins so."""


class _MappedTopicTable(TopicTable):
    """With the static topics of 5.x (Java: TopicConfigAndMappingSerializeWrapper)."""

    topic_queue_mapping_info_map: dict[str, Any] = struct_field(default_factory=dict)


class _RegisterBody(Body):
    topic_config_serialize_wrapper: _MappedTopicTable = struct_field(default_factory=_MappedTopicTable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """One broker's announcement.

    Attributes:
        enable_acting_master: None where the broker is too old to say.
        expiry: seconds of silence it asks to be allowed; None leaves that to the name server.
        queue_mappings: by topic, of static topics.
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

    def __post_init__(self) -> None:
        for name, value in (
            ("clusterName", self.cluster),
            ("brokerName", self.broker_name),
            ("brokerAddr", self.broker_addr),
        ):
            if not value.strip():
                raise InvalidParameterError(f"{name} {value!r} is blank", code=1)
        host, colon, port = self.broker_addr.rpartition(":")
        if not (host and colon and port.isdecimal() and int(port) <= 65535):
            raise InvalidParameterError(f"brokerAddr {self.broker_addr!r} is not of the form ip:port", code=1)
        for name, topic in self.topics.items():
            if topic.read_queue_nums < 0 or topic.write_queue_nums < 0:
                raise InvalidParameterError(
                    f"topic {name!r} has {topic.read_queue_nums} read and {topic.write_queue_nums} write "
                    "queues; neither may be negative",
                    code=1,
                )


def read_registration(header: RegisterBroker, body: bytes, version: int) -> Registration:
    """Header and body of request 103, sent by a broker of this version.

    Raises:
        ResponseError: the check sum is wrong.
        RemoteProtocolError: the body cannot be read.
    """
    if header.body_crc32 and zlib.crc32(body) & 0x7FFFFFFF != header.body_crc32:
        raise ResponseError("crc32 not match")
    table = _read_table(header, body, version)
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
        topics={topic.topic_name or key: topic for key, topic in table.topic_config_table.items()},
        queue_mappings=table.topic_queue_mapping_info_map,
    )


def _read_table(header: RegisterBroker, body: bytes, version: int) -> _MappedTopicTable:
    if not body:
        return _MappedTopicTable()
    if version < V3_0_11:
        return _MappedTopicTable.parse(body)
    # Apache 5.x brokers with compressedRegister compress the body and say in the header that it is not.
    if header.compressed or body[0] == ZLIB_BYTE:
        return _inflate(body, with_mappings=version >= V5_0_0)
    return _RegisterBody.parse(body).topic_config_serialize_wrapper


def _inflate(body: bytes, *, with_mappings: bool) -> _MappedTopicTable:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, MAX_INFLATED_BYTES)
    except zlib.error as error:
        raise RemoteProtocolError(f"the compressed registration cannot be inflated: {error}") from error
    if inflater.unconsumed_tail:
        raise RemoteProtocolError(f"the compressed registration inflates past {MAX_INFLATED_BYTES} bytes")
    reader = _Reader(data)
    version = DataVersion.parse(reader.block("data version"))
    topics = [_topic_from_text(reader.text("topic")) for _ in range(reader.count("topic"))]
    reader.block("filter server list")
    mappings: dict[str, Any] = {}
    if with_mappings:
        for _ in range(reader.count("queue mapping")):
            mapping = fastjson.loads(reader.block("queue mapping"))
            if not isinstance(mapping, dict) or not isinstance(mapping.get("topic"), str):
                raise RemoteProtocolError(f"queue mapping {mapping!r} names no topic")
            mappings[mapping["topic"]] = mapping
    return _MappedTopicTable(
        data_version=version,
        topic_config_table={topic.topic_name: topic for topic in topics},
        topic_queue_mapping_info_map=mappings,
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
        raise RemoteProtocolError(f"topic {text!r} is not 'name reads writes perm filter'") from None
    # The attributes are not for us; what a broker sends there cannot spoil its registration.
    return topic


class _Reader:
    """Lengths and blocks, one after the other."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def count(self, what: str) -> int:
        number = int.from_bytes(self._take(4, f"count of {what}s"), "big", signed=True)
        if number < 0:
            raise RemoteProtocolError(f"the compressed registration has {number} {what}s")
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
        taken = self._data[self._position : end]
        self._position = end
        return taken
