"""JSON bodies: heartbeats, routes, topic tables, connections, statistics.

Structs carry the wire's names in camelCase through ``rename``; parsing goes through the
tolerant reader, so a body of either JSON dialect fits.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, ClassVar, TypeVar

import msgspec
from msgspec import field

from gimbalmq.errors import InvalidParameterError, RemoteProtocolError
from gimbalmq.protocol import fastjson
from gimbalmq.protocol.codes import ResponseCode

T = TypeVar("T", bound="Body")

REQUEST_BODY_BYTES = 2 * 1024 * 1024
"""Most bytes of a JSON body in a request to a server, unless its handler says otherwise: read in some 10 ms."""

LIST_BODY_BYTES = 8 * 1024 * 1024
"""Of a body that is a list, which is read row by row: 10,000 groups take 4 MB."""

_ROW_BYTES = 128 * 1024

_read_parts = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_rows = msgspec.json.Decoder(list[msgspec.Raw]).decode


@cache
def _decoder(cls: type[T]) -> msgspec.json.Decoder[T]:
    return msgspec.json.Decoder(cls, strict=False)


def _wrong(cls: type[Body], error: msgspec.ValidationError) -> RemoteProtocolError:
    return RemoteProtocolError(f"the body is no {cls.__name__}: {error}")


def check_length(data: bytes | bytearray | memoryview, limit: int) -> None:
    if len(data) > limit:
        raise InvalidParameterError(
            f"the request has a body of {len(data)} bytes and may have {limit}: shorten it, or use several requests",
            code=ResponseCode.SYSTEM_ERROR,
        )


class Body(msgspec.Struct, rename="camel", kw_only=True):
    """Base of all JSON bodies."""

    queue_keys: ClassVar[bool] = False
    """Whether tables in it have queues as keys."""

    @classmethod
    def parse(
        cls: type[T], data: bytes | bytearray | memoryview | str, *, dialect_limit: int | None = None
    ) -> T:
        """Reads a body; ``dialect_limit`` bounds one that is not standard JSON.

        Raises:
            RemoteProtocolError: the text is no such body.
        """
        text = data if isinstance(data, str) else bytes(data)
        if not fastjson.has_references(text):
            try:
                decoder: msgspec.json.Decoder[T] = _decoder(cls)
                return decoder.decode(text)
            except msgspec.ValidationError as error:
                raise _wrong(cls, error) from error
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                pass  # the other dialect, or no JSON at all
        return cls.of(fastjson.loads(text, limit=dialect_limit))

    @classmethod
    def of_request(
        cls: type[T], data: bytes | bytearray | memoryview, *, limit: int = REQUEST_BODY_BYTES
    ) -> T:
        """As ``parse``, for what anybody may send to a server: neither long nor slow to read.

        Raises:
            InvalidParameterError: it is longer than ``limit`` bytes.
            RemoteProtocolError: the text is no such body.
        """
        check_length(data, limit)
        return cls.parse(data, dialect_limit=fastjson.REQUEST_LIMIT)

    @classmethod
    def rows_of_request(
        cls: type[T], data: bytes | bytearray | memoryview, name: str, *, limit: int = LIST_BODY_BYTES
    ) -> Iterator[T]:
        """The list of such bodies under ``name`` in a request; each is read when it is asked for.

        Raises:
            InvalidParameterError: the request is longer than ``limit`` bytes.
            RemoteProtocolError: the text has no such list.
        """
        check_length(data, limit)
        text = bytes(data)
        rows: Any = None
        if not fastjson.has_references(text):
            try:
                rows = _read_rows(_read_parts(text).get(name, b"[]"))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                pass  # the other dialect, or no JSON at all
        if rows is not None:
            return (cls.of_request(bytes(row), limit=_ROW_BYTES) for row in rows)
        found = fastjson.loads(text)
        rows = found.get(name, []) if isinstance(found, dict) else None
        if not isinstance(rows, list):
            raise RemoteProtocolError(f"the body has no list {name}")
        return (cls.of(row) for row in rows)

    @classmethod
    def of(cls: type[T], raw: Any) -> T:
        try:
            return msgspec.convert(raw, cls, strict=False)
        except msgspec.ValidationError as error:
            raise _wrong(cls, error) from error

    def dump(self) -> bytes:
        """Compact JSON; what is None is left out, as Java does."""
        text = fastjson.dumps(self, queue_keys=self.queue_keys)
        if b"null" not in text:
            return text
        return fastjson.dumps(without_nulls(msgspec.to_builtins(self)), queue_keys=self.queue_keys)


def without_nulls(value: Any) -> Any:
    """Plain values without what is None, as Java writes them."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


class DataVersion(Body, frozen=True, gc=False):  # type: ignore[misc]
    """Grows with every change of a table; equal versions mean equal tables."""

    counter: int = 0
    state_version: int = 0
    timestamp: int = 0


class Subscription(Body):
    """What a group wants of one topic (Java: SubscriptionData)."""

    class_filter_mode: bool = False
    code_set: list[int] = field(default_factory=list)
    expression_type: str | None = "TAG"
    sub_string: str | None = "*"
    sub_version: int = 0
    tags_set: list[str] = field(default_factory=list)
    topic: str = ""


class ConsumerData(Body):
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    consume_type: str = "CONSUME_PASSIVELY"
    group_name: str = ""
    message_model: str = "CLUSTERING"
    subscription_data_set: list[Subscription] = field(default_factory=list)
    unit_mode: bool = False


class ProducerData(Body):
    group_name: str = ""


class Heartbeat(Body):
    """34 HEART_BEAT (Java: HeartbeatData)."""

    client_id: str = field(name="clientID", default="")
    consumer_data_set: list[ConsumerData] = field(default_factory=list)
    heartbeat_fingerprint: int = 0
    producer_data_set: list[ProducerData] = field(default_factory=list)
    without_sub: bool = False


class TopicConfig(Body, gc=False):
    """A topic's settings. Tables hold many thousands; the garbage collector need not look at them again and again."""

    attributes: dict[str, str] = field(default_factory=dict)
    order: bool = False
    perm: int = 6
    read_queue_nums: int = 16
    topic_filter_type: str = "SINGLE_TAG"
    topic_name: str = ""
    topic_sys_flag: int = 0
    write_queue_nums: int = 16


class GroupConfig(Body, gc=False):
    """A consumer group's settings (Java: SubscriptionGroupConfig)."""

    attributes: dict[str, str] = field(default_factory=dict)
    broker_id: int = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_message_orderly: bool = False
    consume_timeout_minute: int = 15
    group_name: str = ""
    group_retry_policy: dict[str, Any] = field(default_factory=lambda: {"type": "CUSTOMIZED"})
    group_sys_flag: int = 0
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: int = 16
    retry_queue_nums: int = 1
    subscription_data_set: Any = msgspec.UNSET
    """Not used here; kept as it came. Unset, so that a large table has no null to be left out one by one."""
    which_broker_when_consume_slowly: int = 1


class BrokerData(Body):
    broker_addrs: dict[int, str] = field(default_factory=dict)
    broker_name: str = ""
    cluster: str = ""
    enable_acting_master: bool = False
    zone_name: str | None = None


class QueueData(Body, gc=False):
    broker_name: str = ""
    perm: int = 6
    read_queue_nums: int = 0
    topic_sys_flag: int = 0
    write_queue_nums: int = 0


class TopicRoute(Body):
    """105's answer (Java: TopicRouteData)."""

    broker_datas: list[BrokerData] = field(default_factory=list)
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)
    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = field(default_factory=list)


class ClusterInfo(Body):
    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = field(default_factory=dict)


class TopicTable(Body):
    """A broker's topics (Java: TopicConfigSerializeWrapper)."""

    data_version: DataVersion = field(default_factory=DataVersion)
    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)


class RegisterBrokerBody(Body):
    filter_server_list: list[str] = field(default_factory=list)
    topic_config_serialize_wrapper: TopicTable = field(default_factory=TopicTable)


class GroupTable(Body):
    data_version: DataVersion = field(default_factory=DataVersion)
    forbidden_table: dict[str, dict[str, int]] = field(default_factory=dict)
    subscription_group_table: dict[str, GroupConfig] = field(default_factory=dict)


class TopicList(Body):
    broker_addr: str | None = None
    topic_list: list[str] = field(default_factory=list)


class KvTable(Body):
    table: dict[str, str] = field(default_factory=dict)


class ConsumerIdList(Body):
    consumer_id_list: list[str] = field(default_factory=list)


class QueueObject(Body):
    """A MessageQueue as a JSON object."""

    broker_name: str
    queue_id: int
    topic: str


class LockRequest(Body):
    """41 and 42."""

    client_id: str = ""
    consumer_group: str = ""
    mq_set: list[QueueObject] = field(default_factory=list)
    only_this_broker: bool = False


class LockReply(Body):
    lock_ok_mq_set: list[QueueObject] = field(name="lockOKMQSet", default_factory=list)


class ClientConnection(Body):
    client_addr: str
    client_id: str
    language: str | None
    version: int


class ConsumerConnections(Body):
    """203's answer (Java: ConsumerConnection)."""

    connection_set: list[ClientConnection] = field(default_factory=list)
    consume_from_where: str | None = None
    consume_type: str | None = None
    message_model: str | None = None
    subscription_table: dict[str, Subscription] = field(default_factory=dict)


class ProducerConnections(Body):
    connection_set: list[ClientConnection] = field(default_factory=list)


class CheckClientConfig(Body):
    """46 CHECK_CLIENT_CONFIG."""

    client_id: str | None = None
    group: str | None = None
    namespace: str | None = None
    subscription_data: Subscription = field(default_factory=Subscription)
