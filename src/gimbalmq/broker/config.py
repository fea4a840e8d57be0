"""What a broker can be told, under RocketMQ's own names.

Each field is declared once in Python's spelling; its property is the camelCase of it
(``broker_cluster_name`` is ``brokerClusterName``) unless ``_PROPERTY_NAMES`` says otherwise.
Configurations are frozen; ``LiveConfig`` holds the one in force, so that a change at run time
swaps the whole value and every part sees it at its next look.
"""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_type_hints

from gimbalmq.errors import ConfigError
from gimbalmq.model import topics
from gimbalmq.model.ids import pack_host
from gimbalmq.protocol.frames import MAX_FRAME_BYTES
from gimbalmq.store.config import StoreConfig, parse_delay_levels
from gimbalmq.transport.descriptors import DescriptorBudget
from gimbalmq.transport.limits import LIMIT_RANGES, ServerLimits
from gimbalmq.transport.tls_config import TLS_PROPERTY_NAMES, TlsConfig

_PROPERTY_NAMES = {
    "broker_ip1": "brokerIP1",
    "broker_ip2": "brokerIP2",
    **TLS_PROPERTY_NAMES,
}

_FIXED_AT_START = frozenset(
    {
        "broker_cluster_name",
        "broker_name",
        "broker_id",
        "broker_ip1",
        "broker_ip2",
        "bind_address",
        "listen_port",
        "namesrv_addr",
        "store_path_root_dir",
        "mapped_file_size_commit_log",
        "mapped_file_size_consume_queue",
        "max_hash_slot_num",
        "max_index_num",
        "message_index_enable",
        "message_delay_level",
        "loop_pause_warn_millis",
        "loop_pause_log_millis",
        "metrics_prom_exporter_port",
        "max_stats_items",
        "flush_disk_type",
        "default_topic_queue_nums",
        "trace_topic_enable",
        *TLS_PROPERTY_NAMES,
        *LIMIT_RANGES,
    }
)
"""Changing these needs a restart; a request to change one is refused by name."""


_JAVA_INT = (1 << 31) - 1
_DAY_MS = 86_400_000

RANGES = {
    "broker_id": (0, 0),
    "listen_port": (0, 65535),
    "metrics_prom_exporter_port": (0, 65535),
    "broker_permission": (0, 7),
    "default_topic_queue_nums": (1, 65536),
    "max_topic_nums": (100, 10_000_000),
    "max_subscription_group_nums": (100, 10_000_000),
    "max_message_size": (1, MAX_FRAME_BYTES - 64 * 1024),
    "short_polling_time_mills": (1, 60_000),
    "max_pull_msg_bytes": (1, 16_000_000),
    "max_pull_msg_nums": (1, 1_000_000),
    "max_stats_items": (100, 100_000_000),
    "register_name_server_period": (100, 3_600_000),
    "channel_expired_timeout": (1000, _DAY_MS),
    "flush_consumer_offset_interval": (1, 3_600_000),
    "flush_delay_offset_interval": (1, 3_600_000),
    "timer_max_delay_sec": (1, 10 * 365 * 86_400),
    "transaction_time_out": (1, _DAY_MS),
    "transaction_check_max": (0, 1_000_000),
    "transaction_check_interval": (100, _DAY_MS),
    "flush_interval_commit_log": (1, 60_000),
    "sync_flush_timeout": (1, 600_000),
    "mapped_file_size_commit_log": (4096, _JAVA_INT),
    "mapped_file_size_consume_queue": (20, _JAVA_INT),
    "max_hash_slot_num": (1, 100_000_000),
    "max_index_num": (2, 100_000_000),
    "file_reserved_time": (1, 100 * 365 * 24),
    "disk_max_used_space_ratio": (10, 95),
    "clean_resource_interval": (100, _DAY_MS),
    "loop_pause_warn_millis": (1, 60_000),
    "loop_pause_log_millis": (1, 3_600_000),
    **LIMIT_RANGES,
    "long_polling_max_time_mills": (1, 3_600_000),
    "max_parked_pulls": (1, 10_000_000),
    "max_parked_pulls_per_connection": (1, 10_000_000),
    "max_heartbeat_bytes": (1024, MAX_FRAME_BYTES),
    "max_groups_per_connection": (1, 1_000_000),
    "max_group_members": (1, 100_000_000),
    "max_subscription_bytes": (1024, 1 << 40),
    "max_consumer_offset_topics_per_group": (1, 10_000_000),
    "max_consumer_offset_bytes": (1024, 1 << 40),
    "max_queue_locks": (1, 100_000_000),
    "max_topics_created_per_connection": (0, 10_000_000),
    "max_groups_created_per_connection": (0, 10_000_000),
    "auto_create_topic_limit": (0, 10_000_000),
    "auto_create_subscription_group_limit": (0, 10_000_000),
}
"""The least and the most that each number may be.

A message of ``max_message_size`` has to fit into one frame, 16 MiB, together with its record's head, its properties and
the answer's header.
"""

_FRAME_ROOM = 64 * 1024
"""For what a frame has beside the message."""

_MAX_TEXT = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(TlsConfig):
    """Options of a Broker; defaults are Apache's unless the comment says why not."""

    broker_cluster_name: str = "DefaultCluster"
    broker_name: str = "broker-a"
    broker_id: int = 0
    broker_ip1: str = "127.0.0.1"
    broker_ip2: str = "127.0.0.1"
    bind_address: str = "127.0.0.1"
    """Loopback unless asked: a broker without passwords does not open itself to a network."""
    listen_port: int = 10911
    namesrv_addr: str = ""
    store_path_root_dir: str = ""
    broker_permission: int = 6

    auto_create_topic_enable: bool = True
    default_topic_queue_nums: int = 8
    auto_create_subscription_group: bool = True
    max_topic_nums: int = 100_000
    """Ours: topics altogether, made by whomever; so many are known to have sound costs."""
    max_subscription_group_nums: int = 100_000
    """Ours: groups altogether."""
    notify_consumer_ids_changed_enable: bool = True
    reject_transaction_message: bool = False
    trace_topic_enable: bool = False
    trace_on: bool = True
    region_id: str = "DefaultRegion"
    max_message_size: int = 4 * 1024 * 1024
    long_polling_enable: bool = True
    short_polling_time_mills: int = 1000
    max_pull_msg_bytes: int = 8 * 1024 * 1024
    """Ours: most that one pull with a ``maxMsgBytes`` of its own gets; others get Apache's 256 KB."""
    max_pull_msg_nums: int = 65_536
    """Ours: as many messages for such a pull; others get Apache's 32."""
    max_stats_items: int = 200_000
    """Ours: counters of topics and groups that are kept; a topic has two, a group on a topic two more."""

    # Of these only the idle time is Apache's; they are ServerLimits, which says what they mean.
    server_max_connections: int = 0
    max_connections_per_address: int = 0
    server_channel_max_idle_time_seconds: int = 120
    server_frame_timeout_millis: int = 30_000
    frame_max_length: int = MAX_FRAME_BYTES
    max_partial_frame_bytes: int = 64 * 1024 * 1024
    max_pending_write_bytes: int = 256 * 1024 * 1024
    max_pending_write_bytes_per_connection: int = 32 * 1024 * 1024
    max_requests_in_flight: int = 65_536
    max_requests_in_flight_per_connection: int = 4096

    # What clients may make the broker keep; all ours.
    long_polling_max_time_mills: int = 60_000
    max_parked_pulls: int = 100_000
    max_parked_pulls_per_connection: int = 10_000
    max_heartbeat_bytes: int = 1024 * 1024
    max_groups_per_connection: int = 2_000
    max_group_members: int = 200_000
    max_subscription_bytes: int = 64 * 1024 * 1024
    max_consumer_offset_topics_per_group: int = 20_000
    max_consumer_offset_bytes: int = 128 * 1024 * 1024
    max_queue_locks: int = 200_000
    max_topics_created_per_connection: int = 1_000
    max_groups_created_per_connection: int = 1_000
    # Below max_topic_nums and max_subscription_group_nums, so that operators may go on when clients may not.
    auto_create_topic_limit: int = 90_000
    auto_create_subscription_group_limit: int = 90_000

    register_name_server_period: int = 30_000
    force_register: bool = True
    channel_expired_timeout: int = 120_000
    flush_consumer_offset_interval: int = 5_000
    flush_delay_offset_interval: int = 10_000

    message_delay_level: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    timer_wheel_enable: bool = True
    timer_max_delay_sec: int = 3 * 24 * 3600
    transaction_time_out: int = 6_000
    transaction_check_max: int = 15
    transaction_check_interval: int = 30_000

    flush_disk_type: str = "ASYNC_FLUSH"
    flush_interval_commit_log: int = 500
    sync_flush_timeout: int = 5_000
    mapped_file_size_commit_log: int = 1 << 30
    mapped_file_size_consume_queue: int = 6_000_000
    max_hash_slot_num: int = 5_000_000
    max_index_num: int = 20_000_000
    message_index_enable: bool = True
    delete_when: str = "04"
    file_reserved_time: int = 72
    disk_max_used_space_ratio: int = 75
    clean_resource_interval: int = 10_000
    clean_file_forcibly_enable: bool = True

    loop_pause_warn_millis: int = 20
    """Ours: turns of the event loop from so long on are counted."""
    loop_pause_log_millis: int = 100
    """Ours: from so long on they are logged, with the stack."""
    metrics_prom_exporter_port: int = 0
    """0 means no metrics port."""

    def __post_init__(self) -> None:
        TlsConfig.__post_init__(self)
        for name in ("broker_cluster_name", "broker_name"):
            problem = topics.broker_problem(getattr(self, name))
            if problem is not None:
                raise ConfigError(property_name(name), getattr(self, name), problem)
        for name in ("broker_ip1", "broker_ip2"):
            try:
                ipaddress.ip_address(getattr(self, name))
            except ValueError:
                raise ConfigError(property_name(name), getattr(self, name), "use an IP address") from None
        if self.flush_disk_type not in ("ASYNC_FLUSH", "SYNC_FLUSH"):
            raise ConfigError("flushDiskType", self.flush_disk_type, "use ASYNC_FLUSH or SYNC_FLUSH")
        if self.broker_id != 0:
            raise ConfigError("brokerId", self.broker_id, "this broker is always a master, whose id is 0")
        for name, (low, high) in RANGES.items():
            if not low <= getattr(self, name) <= high:
                raise ConfigError(property_name(name), getattr(self, name), f"use {low} to {high}")
        if self.max_message_size > self.frame_max_length - _FRAME_ROOM:
            raise ConfigError(
                "maxMessageSize",
                self.max_message_size,
                f"such a message fits into no frame of frameMaxLength={self.frame_max_length}: use at most "
                f"{self.frame_max_length - _FRAME_ROOM}, or a larger frameMaxLength",
            )
        for field in dataclasses.fields(self):
            text = getattr(self, field.name)
            if isinstance(text, str) and (len(text) > _MAX_TEXT or not text.isprintable()):
                raise ConfigError(
                    property_name(field.name), text[:40], f"use at most {_MAX_TEXT} printable characters"
                )
        parse_delay_levels(self.message_delay_level)
        self.delete_hours()

    @property
    def namesrv_addresses(self) -> list[str]:
        return [address.strip() for address in self.namesrv_addr.split(";") if address.strip()]

    @property
    def sync_flush(self) -> bool:
        return self.flush_disk_type == "SYNC_FLUSH"

    def delete_hours(self) -> frozenset[int]:
        try:
            hours = frozenset(int(hour) for hour in self.delete_when.split(";") if hour.strip())
        except ValueError:
            hours = frozenset()
        if not hours or not all(0 <= hour <= 23 for hour in hours):
            raise ConfigError("deleteWhen", self.delete_when, "use hours from 00 to 23, like 04 or 02;14")
        return hours

    def server_limits(self) -> ServerLimits:
        return ServerLimits(**{name: getattr(self, name) for name in LIMIT_RANGES})

    def store_config(self, port: int, descriptors: DescriptorBudget) -> StoreConfig:
        """What the store needs of it; ``port`` is the one really listened on."""
        return StoreConfig(
            root=Path(self.store_path_root_dir),
            store_host=pack_host(self.broker_ip1, port),
            commitlog_file_bytes=self.mapped_file_size_commit_log,
            queue_file_bytes=self.mapped_file_size_consume_queue // 20 * 20,
            message_index_enable=self.message_index_enable,
            index_slots=self.max_hash_slot_num,
            index_entries=self.max_index_num,
            delay_levels_ms=parse_delay_levels(self.message_delay_level),
            queue_file_descriptors=descriptors.queue_files,
            log_files_open=descriptors.log_files,
            sync_flush=self.sync_flush,
            delete_when_hours=self.delete_hours(),
            file_reserved_hours=self.file_reserved_time,
            disk_max_used_ratio=self.disk_max_used_space_ratio / 100,
            clean_forcibly=self.clean_file_forcibly_enable,
        )

    @staticmethod
    def from_properties(
        properties: Mapping[str, str], base: BrokerConfig | None = None
    ) -> tuple[BrokerConfig, list[str]]:
        """Reads RocketMQ's keys over ``base``; also returns the keys that mean nothing here.

        Raises:
            ConfigError: a value is not of its key's type or out of range.
        """
        changes: dict[str, object] = {}
        unknown: list[str] = []
        for key, text in properties.items():
            field = _FIELD_BY_PROPERTY.get(key)
            if field is None:
                unknown.append(key)
            else:
                changes[field] = _parse(key, text.strip(), _TYPES[field])
        return dataclasses.replace(base or BrokerConfig(), **changes), unknown  # type: ignore[arg-type]

    def to_properties(self) -> dict[str, str]:
        """All options as RocketMQ's properties text has them; passwords are left out."""
        found: dict[str, str] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None and field.repr:
                text = str(value).lower() if isinstance(value, bool) else str(value)
                found[property_name(field.name)] = text
        return found


def property_name(field: str) -> str:
    """RocketMQ's key of a field."""
    if field in _PROPERTY_NAMES:
        return _PROPERTY_NAMES[field]
    head, *rest = field.split("_")
    return head + "".join(part.capitalize() for part in rest)


def _parse(key: str, text: str, kind: object) -> object:
    if kind == bool | None and not text:
        return None
    if kind is bool or kind == bool | None:
        if text.lower() not in ("true", "false"):
            raise ConfigError(key, text, "use true or false")
        return text.lower() == "true"
    try:
        if kind is int:
            return int(text)
        if kind is float:
            return float(text)
    except ValueError:
        raise ConfigError(key, text, "use a number") from None
    return text


_TYPES = get_type_hints(BrokerConfig)
_FIELD_BY_PROPERTY = {property_name(name): name for name in BrokerConfig.__dataclass_fields__}


class LiveConfig:
    """The configuration in force; ``now`` is read afresh wherever a value matters."""

    def __init__(self, config: BrokerConfig) -> None:
        self.now = config
        self.version = 0

    def update(self, properties: Mapping[str, str]) -> list[str]:
        """Takes changes at run time; returns keys that mean nothing here.

        Raises:
            ConfigError: a value is wrong, or the key can only be set at start.
        """
        current = self.now.to_properties()
        for key, text in properties.items():
            if _FIELD_BY_PROPERTY.get(key) in _FIXED_AT_START and current.get(key) != text.strip():
                raise ConfigError(key, text, "can only be set when the broker starts")
        self.now, unknown = BrokerConfig.from_properties(properties, self.now)
        self.version += 1
        return unknown
