"""What a name server can be told, under RocketMQ's own names."""

from __future__ import annotations

from dataclasses import dataclass

from gimbalmq._options import JAVA_INT, option
from gimbalmq.access.config import AccessConfig
from gimbalmq.transport.server_config import ServerConfig

ALWAYS_BLACK_LISTED = ("configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome")
"""Properties that a request may never change."""


@dataclass(frozen=True, kw_only=True)
class NameServerConfig(ServerConfig, AccessConfig):
    """Options of a name server (Java: NamesrvConfig and the part of NettyServerConfig we use).

    It makes no connections, but believes the certificate of a broker that was given the same ``tls.*`` keys.
    """

    listen_port: int = option(9876, "port to listen on; 0 takes a free one", between=(0, 65535), fixed=True)
    kv_config_path: str | None = option(
        None, "file of the KV table; without one it is kept in memory only", fixed=True
    )
    config_store_path: str | None = option(
        None,
        "file that changes made by request are written to; without one they are kept in memory",
        fixed=True,
    )
    order_message_enable: bool = option(False, "routes carry the order configuration of their topic")
    return_order_topic_config_to_broker: bool = option(
        True, "registrations are answered with the whole of it"
    )
    scan_not_active_broker_interval: int = option(
        5_000, "ms between two looks for silent brokers", between=(1, JAVA_INT)
    )
    broker_channel_expired_time: int = option(
        120_000,
        "ms of silence after which a broker is dropped, unless it names its own; a constant in Java",
        between=(1, JAVA_INT),
    )
    enable_all_topic_list: bool = option(True, "whether request 206 is answered")
    enable_topic_list: bool = option(True, "whether requests 224, 311, 312 and 313 are answered")
    delete_topic_with_broker_registration: bool = option(
        False, "topics missing from a full registration are removed"
    )
    support_acting_master: bool = option(
        False, "the living slave with the smallest id is shown in the place of a master that is gone"
    )
    need_wait_for_service: bool = option(False, "refuse routes until brokers had time to register")
    wait_seconds_for_service: int = option(45, "s that takes", between=(0, JAVA_INT))
    config_black_list: tuple[str, ...] = option(
        (), "further properties that a request may not change, separated by `;`", fixed=True
    )

    max_broker_nums: int = option(
        1_000, "ours: addresses of brokers altogether; more are refused", between=(1, 100_000)
    )
    max_topic_nums: int = option(
        200_000,
        "ours: topics altogether, and in one registration; more are refused",
        between=(100, 10_000_000),
    )
    max_route_nums: int = option(
        1_000_000,
        "ours: topics of brokers altogether, a topic on two brokers counted twice; more are refused",
        between=(100, 100_000_000),
    )
    max_inflated_registration_size: int = option(
        32 * 1024 * 1024,
        "ours: bytes that a compressed registration may unpack to",
        between=(65_536, 1 << 30),
    )
    max_kv_config_nums: int = option(
        10_000, "ours: entries of the KV table; more are refused", between=(1, 1_000_000)
    )
    max_kv_config_size: int = option(
        4 * 1024 * 1024, "ours: characters of the KV table; more are refused", between=(1024, 15_000_000)
    )
