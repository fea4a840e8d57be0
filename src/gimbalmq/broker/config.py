"""What a broker can be told, under RocketMQ's own names.

Configurations are frozen; ``LiveConfig`` holds the one in force, so that a change at run time
swaps the whole value and every part sees it at its next look.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gimbalmq._options import key_of, option
from gimbalmq.access.config import AccessConfig
from gimbalmq.broker.replication.config import ReplicationOptions
from gimbalmq.errors import ConfigError
from gimbalmq.model import topics
from gimbalmq.model.ids import pack_host
from gimbalmq.protocol.frames import MAX_FRAME_BYTES
from gimbalmq.store.config import StoreConfig, StoreOptions, parse_delay_levels
from gimbalmq.store.consumequeue import MAX_QUEUES
from gimbalmq.transport.descriptors import DescriptorBudget
from gimbalmq.transport.server_config import ServerConfig
from gimbalmq.transport.whole_files import read_secret

_DAY_MS = 86_400_000

_FRAME_ROOM = 64 * 1024
"""For what a frame has beside the message: its record's head, its properties and the answer's header."""

_TOKEN_LETTERS = 16
"""A shorter token could be found by trying."""


@dataclass(frozen=True, kw_only=True)
class BrokerConfig(ReplicationOptions, StoreOptions, ServerConfig, AccessConfig):
    """Options of a Broker; defaults are Apache's unless the meaning says "ours"."""

    broker_cluster_name: str = option("DefaultCluster", "cluster the broker belongs to", fixed=True)
    broker_name: str = option("broker-a", "name of the broker; unique in its cluster", fixed=True)
    broker_ip1: str = option("127.0.0.1", "address clients are told", key="brokerIP1", fixed=True)
    broker_ip2: str = option("127.0.0.1", "address slaves are told", key="brokerIP2", fixed=True)
    listen_port: int = option(
        10911,
        "port to listen on; 0 takes a free one. Port - 2 is opened too, for clients before 4.5.1",
        between=(0, 65535),
        fixed=True,
    )
    namesrv_addr: str = option("", "name servers to register with, `host:port;host:port`", fixed=True)
    broker_permission: int = option(6, "2 write + 4 read", between=(0, 7))

    auto_create_topic_enable: bool = option(True, "a send to an unknown topic creates it")
    default_topic_queue_nums: int = option(
        8, "most queues a topic created that way gets", between=(1, MAX_QUEUES), fixed=True
    )
    auto_create_subscription_group: bool = option(
        True, "an unknown consumer group is created when it appears"
    )
    max_topic_nums: int = option(
        100_000, "ours: topics of this broker altogether; more are refused", between=(100, 10_000_000)
    )
    max_subscription_group_nums: int = option(
        100_000,
        "ours: consumer groups of this broker altogether; more are refused",
        between=(100, 10_000_000),
    )
    notify_consumer_ids_changed_enable: bool = option(
        True, "tell consumers at once when members of their group come or go"
    )
    reject_transaction_message: bool = option(False, "refuse transaction messages")
    trace_topic_enable: bool = option(False, "create the system trace topic", fixed=True)
    trace_on: bool = option(True, "what clients are told about tracing")
    region_id: str = option("DefaultRegion", "region written into answers")
    max_message_size: int = option(
        4 * 1024 * 1024, "largest message in bytes", between=(1, MAX_FRAME_BYTES - _FRAME_ROOM)
    )
    long_polling_enable: bool = option(True, "keep a pull that finds nothing until something comes")
    short_polling_time_mills: int = option(
        1000, "how long such a pull is kept with long polling off, ms", between=(1, 60_000)
    )
    max_pull_msg_bytes: int = option(
        8 * 1024 * 1024,
        "ours: most bytes of messages in the answer to a pull that carries `maxMsgBytes`",
        between=(1, 16_000_000),
    )
    max_pull_msg_nums: int = option(
        65_536, "ours: most messages in the answer to such a pull", between=(1, 1_000_000)
    )
    max_stats_items: int = option(
        200_000,
        "ours: most counters that are kept for topics and groups, about 350 bytes each when idle; "
        "what comes then is counted in the totals only",
        between=(100, 100_000_000),
        fixed=True,
    )

    # What clients may make the broker keep.
    long_polling_max_time_mills: int = option(
        60_000,
        "ours: most ms a pull that finds nothing is kept, whatever the client asks for",
        between=(1, 3_600_000),
    )
    max_parked_pulls: int = option(
        100_000,
        "ours: most pulls that are kept so; beyond, pulls that find nothing are told SYSTEM_BUSY",
        between=(1, 10_000_000),
    )
    max_parked_pulls_per_connection: int = option(
        10_000, "ours: the same for one connection", between=(1, 10_000_000)
    )
    max_heartbeat_bytes: int = option(
        1024 * 1024, "ours: largest heartbeat in bytes", between=(1024, MAX_FRAME_BYTES)
    )
    max_groups_per_connection: int = option(
        2_000,
        "ours: groups, of consumers and producers, that one connection may be in",
        between=(1, 1_000_000),
    )
    max_group_members: int = option(200_000, "ours: members of all groups together", between=(1, 100_000_000))
    max_subscription_bytes: int = option(
        64 * 1024 * 1024, "ours: memory of all subscriptions together", between=(1024, 1 << 40)
    )
    max_consumer_offset_topics_per_group: int = option(
        20_000, "ours: topics for which one group may keep offsets", between=(1, 10_000_000)
    )
    max_consumer_offset_bytes: int = option(
        128 * 1024 * 1024,
        "ours: memory of all consumer offsets together, about 500 bytes for a topic and group "
        "and 100 for each further queue; beyond, offsets of new groups, topics and queues are refused",
        between=(1024, 1 << 40),
    )
    max_queue_locks: int = option(
        200_000,
        "ours: queues locked for ordered consumers, all groups together; beyond, no more are granted",
        between=(1, 100_000_000),
    )
    max_topics_created_per_connection: int = option(
        1_000, "ours: topics that the sends of one connection may create", between=(0, 10_000_000)
    )
    max_groups_created_per_connection: int = option(
        1_000, "ours: consumer groups that one connection may create by appearing", between=(0, 10_000_000)
    )
    # Below max_topic_nums and max_subscription_group_nums, so that operators may go on when clients may not, and
    # so low that a flood of names, each group with a retry topic of its own, stays below some 200 MB of memory.
    auto_create_topic_limit: int = option(
        15_000,
        "ours: a broker with so many topics creates none for clients; operators may go on",
        between=(0, 10_000_000),
    )
    auto_create_subscription_group_limit: int = option(
        15_000, "ours: the same for consumer groups", between=(0, 10_000_000)
    )

    register_name_server_period: int = option(30_000, "ms between registrations", between=(100, 3_600_000))
    force_register: bool = option(
        True, "send the whole table every period; `false` asks each name server first whether it has it"
    )
    channel_expired_timeout: int = option(
        120_000, "ms without a heartbeat after which a client is dropped", between=(1000, _DAY_MS)
    )
    flush_consumer_offset_interval: int = option(
        5_000, "ms between saves of consumer progress", between=(1, 3_600_000)
    )
    flush_delay_offset_interval: int = option(
        10_000, "ms between saves of the delay levels' progress", between=(1, 3_600_000)
    )

    timer_wheel_enable: bool = option(True, "accept messages with a delivery time of their own (5.x)")
    timer_max_delay_sec: int = option(3 * 24 * 3600, "longest such delay, s", between=(1, 10 * 365 * 86_400))
    transaction_time_out: int = option(
        6_000, "ms before an undecided transaction is first asked about", between=(1, _DAY_MS)
    )
    transaction_check_max: int = option(
        15, "how often it is asked about before it is dropped", between=(0, 1_000_000)
    )
    transaction_check_interval: int = option(
        30_000, "ms between looks for undecided transactions", between=(100, _DAY_MS)
    )

    flush_interval_commit_log: int = option(500, "ms between syncs with ASYNC_FLUSH", between=(1, 60_000))
    sync_flush_timeout: int = option(
        5_000, "ms a send waits for the disk with SYNC_FLUSH", between=(1, 600_000)
    )
    clean_resource_interval: int = option(
        10_000, "ms between looks for files to delete", between=(100, _DAY_MS)
    )

    loop_pause_warn_millis: int = option(
        20,
        "ours: turns of the event loop that take so many ms are counted (metrics, runtime table)",
        between=(1, 60_000),
        fixed=True,
    )
    loop_pause_log_millis: int = option(
        100, "ours: turns that take so many ms are logged, with the stack", between=(1, 3_600_000), fixed=True
    )
    metrics_prom_exporter_port: int = option(
        0, "port of Prometheus metrics; 0 is none", between=(0, 65535), fixed=True
    )
    metrics_bind_address: str = option(
        "127.0.0.1", "ours: address that the metrics are served on, whatever `bindAddress` is", fixed=True
    )
    metrics_token: str | None = option(
        None,
        "ours: what a scrape must send as `Authorization: Bearer TOKEN`, 16 letters or more; unset: nothing",
        fixed=True,
        secret=True,
    )
    metrics_token_file: str | None = option(
        None, "ours: file that holds this token; it is read at the start", fixed=True
    )

    def check(self) -> None:
        super().check()
        for name in ("broker_cluster_name", "broker_name"):
            problem = topics.broker_problem(getattr(self, name))
            if problem is not None:
                raise ConfigError(key_of(BrokerConfig, name), getattr(self, name), problem)
        for name in ("broker_ip1", "broker_ip2"):
            try:
                ipaddress.ip_address(getattr(self, name))
            except ValueError:
                raise ConfigError(
                    key_of(BrokerConfig, name), getattr(self, name), "use an IP address"
                ) from None
        if self.ha_tls_enable and not (self.tls_server_cert_path and self.connects_by_tls):
            raise ConfigError(
                "haTlsEnable",
                True,
                "it needs the certificate of the ordinary port, tls.server.certPath, and tls.enable=true",
            )
        if self.metrics_token is not None:
            check_token("metricsToken", self.metrics_token)
            if self.metrics_token_file is not None:
                raise ConfigError(
                    "metricsTokenFile", self.metrics_token_file, "leave it out, or metricsToken: give one"
                )
        if self.max_message_size > self.frame_max_length - _FRAME_ROOM:
            raise ConfigError(
                "maxMessageSize",
                self.max_message_size,
                f"such a message fits into no frame of frameMaxLength={self.frame_max_length}: use at most "
                f"{self.frame_max_length - _FRAME_ROOM}, or a larger frameMaxLength",
            )

    def read_metrics_token(self) -> str | None:
        """The token of the metrics, from its file if there is one; raises ConfigError, which does not show it."""
        path = self.metrics_token_file
        if path is None:
            return self.metrics_token
        token = read_secret(path, "metricsTokenFile")
        check_token("metricsTokenFile", token)
        return token

    @property
    def guards_log(self) -> bool:
        """Whether the log is not for everybody who can reach the broker."""
        return self.authenticates or self.refuses_plain

    @property
    def namesrv_addresses(self) -> list[str]:
        return [address.strip() for address in self.namesrv_addr.split(";") if address.strip()]

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
            memory_ratio=self.access_message_in_memory_max_ratio / 100,
            delay_levels_ms=parse_delay_levels(self.message_delay_level),
            queue_file_descriptors=descriptors.queue_files,
            log_files_open=descriptors.log_files,
            sync_flush=self.sync_flush,
            delete_when_hours=self.delete_hours(),
            file_reserved_hours=self.file_reserved_time,
            disk_max_used_ratio=self.disk_max_used_space_ratio / 100,
            clean_forcibly=self.clean_file_forcibly_enable,
        )


def check_token(option: str, token: str) -> None:
    """Raises ConfigError for a token that is easily guessed or that no HTTP header can carry; does not show it."""
    if len(token) < _TOKEN_LETTERS or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            option, "...", f"use {_TOKEN_LETTERS} or more letters, digits and signs of ASCII, without blanks"
        )


class LiveConfig:
    """The configuration in force; ``now`` is read afresh wherever a value matters."""

    def __init__(self, config: BrokerConfig) -> None:
        self.now = config
        self.version = 0

    def update(self, properties: Mapping[str, str]) -> list[str]:
        """Takes changes at run time; returns keys that mean nothing here.

        Raises:
            ConfigError: a value is wrong, or the key can only be set at the start.
        """
        config, unknown = self.now.changed(properties)
        self.swap(config)
        return unknown

    def swap(self, config: BrokerConfig) -> None:
        """Puts another configuration in force."""
        self.now = config
        self.version += 1
