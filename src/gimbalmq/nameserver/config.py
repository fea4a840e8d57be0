"""Options of a name server, checked when built, and RocketMQ's names for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

from gimbalmq.errors import ConfigError
from gimbalmq.protocol.frames import MAX_FRAME_BYTES
from gimbalmq.transport.limits import ServerLimits, check_limit
from gimbalmq.transport.tls_config import TLS_PROPERTY_NAMES, TlsConfig

_LIMITS = {
    "serverMaxConnections": "server_max_connections",
    "maxConnectionsPerAddress": "max_connections_per_address",
    "serverFrameTimeoutMillis": "server_frame_timeout_millis",
    "frameMaxLength": "frame_max_length",
    "maxPartialFrameBytes": "max_partial_frame_bytes",
    "maxPendingWriteBytes": "max_pending_write_bytes",
    "maxPendingWriteBytesPerConnection": "max_pending_write_bytes_per_connection",
    "maxRequestsInFlight": "max_requests_in_flight",
    "maxRequestsInFlightPerConnection": "max_requests_in_flight_per_connection",
}
"""Limits of the server, by RocketMQ-like name; the idle time, which is Apache's, is apart."""

ALWAYS_BLACK_LISTED = ("configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome")
"""Properties that a request may never change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig(TlsConfig):
    """Options of a name server (Java: NamesrvConfig and the part of NettyServerConfig we use).

    Attributes:
        host: address to listen on.
        port: port to listen on; 0 takes a free one.
        kv_config_path: file of the KV table; None keeps it in memory only.
        config_store_path: file that changes made by request are written to; None keeps them in memory.
        order_message_enable: routes carry the order configuration of their topic.
        return_order_topic_config_to_broker: registrations are answered with the whole of it.
        scan_interval: seconds between two looks for silent brokers.
        broker_expiry: seconds of silence after which a broker is dropped, unless it names its own.
        enable_all_topic_list: whether request 206 is answered.
        enable_topic_list: whether requests 224, 311, 312 and 313 are answered.
        delete_topic_with_broker_registration: topics missing from a full registration are removed.
        support_acting_master: a master's smallest living slave is shown in its place.
        need_wait_for_service: refuse routes until brokers had time to register.
        wait_for_service: seconds that takes.
        idle_timeout: seconds without a byte either way after which a connection is closed.
        config_black_list: further properties that a request may not change.
        max_broker_nums: addresses of brokers altogether; more are refused.
        max_topic_nums: topics altogether, and in one registration; more are refused.
        max_route_nums: topics of brokers altogether, a topic on two brokers counted twice; more are refused.
        max_inflated_registration_size: bytes that a compressed registration may unpack to.
        max_kv_config_nums: entries of the KV table; more are refused.
        max_kv_config_size: characters of the KV table; more are refused.

    Those of ``TlsConfig`` besides; it makes no connections, but believes the certificate of a broker that was
    given the same keys.
    The others are ServerLimits, which says what they mean.
    """

    host: str = "127.0.0.1"
    port: int = 9876
    kv_config_path: str | None = None
    config_store_path: str | None = None
    order_message_enable: bool = False
    return_order_topic_config_to_broker: bool = True
    scan_interval: float = 5.0
    broker_expiry: float = 120.0
    enable_all_topic_list: bool = True
    enable_topic_list: bool = True
    delete_topic_with_broker_registration: bool = False
    support_acting_master: bool = False
    need_wait_for_service: bool = False
    wait_for_service: float = 45.0
    idle_timeout: float = 120.0
    config_black_list: tuple[str, ...] = ()
    max_broker_nums: int = 1_000
    max_topic_nums: int = 200_000
    max_route_nums: int = 1_000_000
    max_inflated_registration_size: int = 32 * 1024 * 1024
    max_kv_config_nums: int = 10_000
    max_kv_config_size: int = 4 * 1024 * 1024
    server_max_connections: int = 0
    max_connections_per_address: int = 0
    server_frame_timeout_millis: int = 30_000
    frame_max_length: int = MAX_FRAME_BYTES
    max_partial_frame_bytes: int = 64 * 1024 * 1024
    max_pending_write_bytes: int = 256 * 1024 * 1024
    max_pending_write_bytes_per_connection: int = 32 * 1024 * 1024
    max_requests_in_flight: int = 65_536
    max_requests_in_flight_per_connection: int = 4096

    def __post_init__(self) -> None:
        TlsConfig.__post_init__(self)
        for option in ("scan_interval", "broker_expiry", "idle_timeout"):
            seconds = getattr(self, option)
            if not seconds > 0:
                raise ConfigError(property_name(option), seconds, "use a time above 0")
        for option, low, high in (
            ("port", 0, 65535),
            ("max_broker_nums", 1, 100_000),
            ("max_topic_nums", 100, 10_000_000),
            ("max_route_nums", 100, 100_000_000),
            ("max_inflated_registration_size", 65_536, 1 << 30),
            ("max_kv_config_nums", 1, 1_000_000),
            ("max_kv_config_size", 1024, 15_000_000),
        ):
            if not low <= getattr(self, option) <= high:
                raise ConfigError(property_name(option), getattr(self, option), f"use {low} to {high}")
        if not self.wait_for_service >= 0:
            raise ConfigError(
                property_name("wait_for_service"), self.wait_for_service, "use 0 or more seconds"
            )
        for key, option in _LIMITS.items():
            check_limit(option, key, getattr(self, option))
        for option in ("kv_config_path", "config_store_path"):
            if getattr(self, option) == "":
                raise ConfigError(property_name(option), "", "name a file, or leave the option out")

    def server_limits(self) -> ServerLimits:
        return ServerLimits(
            server_channel_max_idle_time_seconds=self.idle_timeout,
            **{option: getattr(self, option) for option in _LIMITS.values()},
        )


@dataclass(frozen=True, slots=True)
class _Property:
    """How one option is spelt in a properties file."""

    option: str
    read: Callable[[str, str], object]
    write: Callable[[object], str]


def _text(_key: str, value: str) -> str:
    return value


def _optional_text(_key: str, value: str) -> str | None:
    return value or None


def _boolean(key: str, value: str) -> bool:
    lowered = value.lower()
    if lowered not in ("true", "false"):
        raise ConfigError(key, value, "use true or false")
    return lowered == "true"


def _optional_boolean(key: str, value: str) -> bool | None:
    return _boolean(key, value) if value else None


def _integer(key: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ConfigError(key, value, "use a whole number") from None


def _millis(key: str, value: str) -> float:
    return _integer(key, value) / 1000


def _names(_key: str, value: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in value.split(";") if name.strip())


def _write_text(value: object) -> str:
    return "" if value is None else str(value)


def _write_boolean(value: object) -> str:
    return "true" if value else "false"


def _write_optional_boolean(value: object) -> str:
    return "" if value is None else _write_boolean(value)


def _write_seconds(value: object) -> str:
    assert isinstance(value, int | float)
    return str(round(value))


def _write_millis(value: object) -> str:
    assert isinstance(value, int | float)
    return str(round(value * 1000))


def _write_names(value: object) -> str:
    assert isinstance(value, tuple)
    return ";".join(value)


_PROPERTIES: dict[str, _Property] = {
    "bindAddress": _Property("host", _text, _write_text),
    "listenPort": _Property("port", _integer, _write_text),
    "kvConfigPath": _Property("kv_config_path", _optional_text, _write_text),
    "configStorePath": _Property("config_store_path", _optional_text, _write_text),
    "orderMessageEnable": _Property("order_message_enable", _boolean, _write_boolean),
    "returnOrderTopicConfigToBroker": _Property(
        "return_order_topic_config_to_broker", _boolean, _write_boolean
    ),
    "scanNotActiveBrokerInterval": _Property("scan_interval", _millis, _write_millis),
    "brokerChannelExpiredTime": _Property("broker_expiry", _millis, _write_millis),
    "enableAllTopicList": _Property("enable_all_topic_list", _boolean, _write_boolean),
    "enableTopicList": _Property("enable_topic_list", _boolean, _write_boolean),
    "deleteTopicWithBrokerRegistration": _Property(
        "delete_topic_with_broker_registration", _boolean, _write_boolean
    ),
    "supportActingMaster": _Property("support_acting_master", _boolean, _write_boolean),
    "needWaitForService": _Property("need_wait_for_service", _boolean, _write_boolean),
    "waitSecondsForService": _Property("wait_for_service", _integer, _write_seconds),
    "serverChannelMaxIdleTimeSeconds": _Property("idle_timeout", _integer, _write_seconds),
    **{key: _Property(option, _integer, _write_text) for key, option in _LIMITS.items()},
    "configBlackList": _Property("config_black_list", _names, _write_names),
    **{
        key: _Property(option, _optional_boolean, _write_optional_boolean)
        if option in ("tls_enable", "tls_client_auth_server")
        else _Property(option, _text, _write_text)
        if option in ("tls_server_mode", "tls_server_need_client_auth")
        else _Property(option, _optional_text, _write_text)
        for option, key in TLS_PROPERTY_NAMES.items()
    },
    "maxBrokerNums": _Property("max_broker_nums", _integer, _write_text),
    "maxTopicNums": _Property("max_topic_nums", _integer, _write_text),
    "maxRouteNums": _Property("max_route_nums", _integer, _write_text),
    "maxInflatedRegistrationSize": _Property("max_inflated_registration_size", _integer, _write_text),
    "maxKvConfigNums": _Property("max_kv_config_nums", _integer, _write_text),
    "maxKvConfigSize": _Property("max_kv_config_size", _integer, _write_text),
}
"""RocketMQ's name of each option. Ours are brokerChannelExpiredTime, in Java a constant, and the limits."""

assert {known.option for known in _PROPERTIES.values()} == {field.name for field in fields(NameServerConfig)}


def property_name(option: str) -> str:
    """RocketMQ's name of an option."""
    return next(key for key, known in _PROPERTIES.items() if known.option == option)


FIXED_WHILE_RUNNING = (
    "bindAddress",
    "listenPort",
    "serverChannelMaxIdleTimeSeconds",
    *_LIMITS,
    *TLS_PROPERTY_NAMES.values(),
)
"""Properties that are read once, at the start."""


def from_properties(
    properties: Mapping[str, str], base: NameServerConfig | None = None
) -> tuple[NameServerConfig, list[str]]:
    """A configuration from RocketMQ's property names, and the keys that mean nothing to us.

    Raises:
        ConfigError: a value cannot be used.
    """
    base = base or NameServerConfig()
    options: dict[str, object] = {field.name: getattr(base, field.name) for field in fields(base)}
    unknown: list[str] = []
    for key, value in properties.items():
        known = _PROPERTIES.get(key)
        if known is None:
            unknown.append(key)
        else:
            options[known.option] = known.read(key, value.strip())
    return NameServerConfig(**options), unknown  # type: ignore[arg-type]


def to_properties(config: NameServerConfig) -> dict[str, str]:
    """The configuration under RocketMQ's property names; passwords are left out."""
    hidden = {field.name for field in fields(config) if not field.repr}
    return {
        key: known.write(getattr(config, known.option))
        for key, known in _PROPERTIES.items()
        if known.option not in hidden
    }
