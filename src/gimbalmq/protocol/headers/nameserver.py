"""Headers of the name server's requests."""

from __future__ import annotations

from msgspec import field

from gimbalmq.protocol.headers.base import Header

PART_OF_A_TABLE = "rmq_sys_PART_OF_A_TABLE"
"""A registration that brings only some of a broker's topics has a queue mapping of this name.

There is no such topic. Apache's name server with deleteTopicWithBrokerRegistration takes every table for the
whole and forgets all topics that it does not list, unless the table has queue mappings."""


class RegisterBroker(Header):
    """103 REGISTER_BROKER."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str = ""
    broker_id: int = 0
    compressed: bool = False
    body_crc32: int = 0
    enable_acting_master: bool | None = None
    heartbeat_timeout_millis: int | None = None
    zone_name: str | None = field(name="__ZONE_NAME", default=None)


class RegisterBrokerReply(Header):
    ha_server_addr: str | None = None
    master_addr: str | None = None


class BrokerIdentity(Header):
    """104 UNREGISTER_BROKER, 322 QUERY_DATA_VERSION, 904 BROKER_HEARTBEAT."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: int = 0


class DataVersionReply(Header):
    changed: bool


class GetRoute(Header):
    """105 GET_ROUTEINFO_BY_TOPIC."""

    topic: str
    accept_standard_json_only: bool | None = None
    zone_name: str | None = field(name="__ZONE_NAME", default=None)
    zone_mode: str | None = field(name="__ZONE_MODE", default=None)


class KvConfig(Header):
    """100, 101, 102, 219: a name space, and a key and value if they belong to it."""

    namespace: str
    key: str = ""
    value: str = ""


class KvReply(Header):
    value: str | None = None


class TopicOnly(Header):
    topic: str
    cluster_name: str | None = None


class ClusterOnly(Header):
    cluster: str


class BrokerNameOnly(Header):
    broker_name: str
    cluster_name: str | None = None


class WipeReply(Header):
    wipe_topic_count: int | None = None
    add_topic_count: int | None = None
