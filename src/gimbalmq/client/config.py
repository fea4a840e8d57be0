"""Settings of clients: frozen, checked when built.

The environment is asked for one thing, by one kind of client: a client that was told no name server takes the client
file that ``GIMBALMQ_CLIENT_FILE`` names.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, Final, Literal, Self, TypeVar, get_args, get_origin, get_type_hints

from gimbalmq.balance.latency import DEFAULT_RULE, RULES
from gimbalmq.client.profiles import profile_options
from gimbalmq.errors import ConfigError
from gimbalmq.model.compression import Compression
from gimbalmq.model.message import MAX_BODY_BYTES
from gimbalmq.model.topics import AUTO_CREATE_TOPIC, TRACE_TOPIC, group_problem
from gimbalmq.transport.network import Network, split_address

C = TypeVar("C", bound="ClientConfig")

DEFAULT_INSTANCE = "DEFAULT"
DEFAULT_PRODUCER_GROUP = "DEFAULT_PRODUCER"


Limits = tuple[float, float]
"""The least and the most that a number may be."""

SECONDS: Final[Limits] = (0, 2**31 - 1)
"""What an option in seconds may be unless it is told otherwise: 68 years are as good as no end."""

_SOME_TIME: Final[Limits] = (0.001, 86_400)
_WORDS: Final[Mapping[object, str]] = {
    bool: "True or False",
    str: "a text",
    NoneType: "None",
    os.PathLike: "a path",
    ssl.SSLContext: "a context, which gimbalmq.client_tls() makes",
}


def check_value(option: str, value: Any, declared: Any, limits: Limits = SECONDS) -> None:
    """Raises ConfigError for a value that is not of the declared type, and for a number beyond its limits.

    A bool is no number and a number is no bool; nan and the infinite are beyond all limits.

    >>> check_value("batch_max_delay", "x", float, (0, 30))
    Traceback (most recent call last):
    gimbalmq.errors.ConfigError: batch_max_delay='x' cannot be used: use a number, 0 to 30
    """
    kinds = _kinds(declared)
    if not any(_is_a(value, kind, limits) for kind in kinds):
        raise ConfigError(option, value, f"use {' or '.join(_in_words(kind, limits) for kind in kinds)}")


@cache
def _kinds(declared: Any) -> tuple[Any, ...]:
    """The types of a union, each without its parameters, but for Literal."""
    kinds = get_args(declared) if isinstance(declared, UnionType) else (declared,)
    return tuple(kind if get_origin(kind) in (None, Literal) else get_origin(kind) for kind in kinds)


def _is_a(value: Any, kind: Any, limits: Limits) -> bool:
    if kind in (int, float):
        numbers = int if kind is int else (int, float)
        return isinstance(value, numbers) and not isinstance(value, bool) and limits[0] <= value <= limits[1]
    if get_origin(kind) is Literal:
        return any(value is choice or (type(value) is str and value == choice) for choice in get_args(kind))
    if _is_shape(kind):
        return not isinstance(value, type) and all(hasattr(value, name) for name in _members(kind))
    return isinstance(value, kind)


def _is_shape(kind: Any) -> bool:
    """Whether it is a Protocol, which any object of this shape is of."""
    return getattr(kind, "_is_protocol", False)


def _members(kind: Any) -> list[str]:
    return [name for name in vars(kind) if not name.startswith("_")]


def _in_words(kind: Any, limits: Limits) -> str:
    if kind in (int, float):
        number = "whole number" if kind is int else "number"
        return f"a {number}, {_number(limits[0])} to {_number(limits[1])}"
    if get_origin(kind) is Literal:
        return " or ".join(f'"{choice}"' for choice in get_args(kind))
    if kind in _WORDS:
        return _WORDS[kind]
    if issubclass(kind, Enum):
        return f"a {kind.__name__}: {', '.join(choice.name for choice in kind)}"
    if _is_shape(kind):
        return f"an object with {' and '.join(_members(kind))}"
    return f"a {kind.__name__}"


def _number(value: float) -> str:
    """A limit in full.

    >>> _number(16_777_216), _number(0.001), _number(86_400.0)
    ('16,777,216', '0.001', '86,400')
    """
    return f"{int(value) if value == int(value) else value:,}"


@cache
def _declared(config: Any) -> dict[str, Any]:
    """Types of the options by name."""
    hints = get_type_hints(config)
    return {item.name: hints[item.name] for item in fields(config)}


def parse_addresses(namesrv: str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """``a:9876;b:9876``, or a list of such; raises ConfigError."""
    several = isinstance(namesrv, list | tuple) and all(isinstance(item, str) for item in namesrv)
    if namesrv is not None and not isinstance(namesrv, str) and not several:
        raise ConfigError("namesrv", namesrv, 'use a text, "host:port;host:port", or a list of texts')
    text = namesrv if isinstance(namesrv, str) else ";".join(namesrv or ())
    addresses = tuple(
        dict.fromkeys(part.strip() for part in text.replace(",", ";").split(";") if part.strip())
    )
    if not addresses:
        raise ConfigError(
            "namesrv", namesrv, "give at least one name server as host:port, or a client file that names one"
        )
    for address in addresses:
        split_address(address)
    return addresses


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """What producers, consumers and admin objects have in common (Java: ClientConfig).

    Attributes:
        namesrv: name servers, ``host:port;host:port``.
        instance_name: equal names in one process share one client instance; ``DEFAULT`` is replaced
            by process id and a number of its own when a producer or clustering consumer starts.
        unit_name: last part of the client id, where given.
        client_ip: first part of the client id; found by itself where not given.
        poll_namesrv_interval: seconds between looks for changed routes.
        heartbeat_interval: seconds between heartbeats to all brokers.
        api_timeout: seconds a call may take that has no timeout of its own.
        connect_timeout: seconds for making a connection.
        access_key, secret_key, security_token: ACL; both keys or none.
        tls: a context, if the servers want TLS: ``gimbalmq.client_tls()`` makes one.
        vip_channel: whether calls that may use the broker's fast port (main port - 2) do so.
        unit_mode: for groups of RocketMQ's unit deployments.
        network: where connections come from; tests give one in memory.
    """

    namesrv: str | list[str] | tuple[str, ...]
    instance_name: str = DEFAULT_INSTANCE
    unit_name: str | None = None
    client_ip: str | None = None
    poll_namesrv_interval: float = 30.0
    heartbeat_interval: float = 30.0
    heartbeat_timeout: float = 3.0
    api_timeout: float = 3.0
    connect_timeout: float = 3.0
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    security_token: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    vip_channel: bool = False
    unit_mode: bool = False
    network: Network | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "namesrv", ";".join(parse_addresses(self.namesrv)))
        own_class: Any = type(self)
        for option, declared in _declared(own_class).items():
            check_value(option, getattr(self, option), declared, self.limits.get(option, SECONDS))
        if not self.instance_name or "@" in self.instance_name:
            raise ConfigError("instance_name", self.instance_name, "use a name without @")
        if (self.access_key is None) != (self.secret_key is None):
            raise ConfigError("access_key", self.access_key, "give access_key and secret_key together")

    @property
    def addresses(self) -> tuple[str, ...]:
        """The name servers, in the order given."""
        return parse_addresses(self.namesrv)

    kind: ClassVar[str] = ""
    """Which of a profile's settings count for this client."""

    limits: ClassVar[Mapping[str, Limits]] = dict.fromkeys(
        (
            "poll_namesrv_interval",
            "heartbeat_interval",
            "heartbeat_timeout",
            "api_timeout",
            "connect_timeout",
        ),
        _SOME_TIME,
    )
    """Of every option that is a whole number, and of those in seconds that have others than ``SECONDS``."""

    @classmethod
    def of(
        cls, *, profile: str | None = None, client_file: str | os.PathLike[str] | None = None, **options: Any
    ) -> Self:
        """What an application asks for; raises ConfigError for an option there is none of.

        Args:
            profile: whose defaults count: ``4.9`` for RocketMQ 4.9's, None for ours.
            client_file: file that says what the options leave open of name servers, credentials and TLS; if no name
                server is told either, ``GIMBALMQ_CLIENT_FILE`` may name it.
        """
        check_options(cls, options)
        options = _with_client_file(options, client_file)
        if profile is not None:
            options = profile_options(profile, cls.kind, {item.name for item in fields(cls)}) | options
        return cls(**options)

    @classmethod
    def given(cls, config: Self | None, *, group: str, namesrv: object, **options: Any) -> Self:
        """What a client is made with: its whole configuration with the options changed, or else a new one.

        Args:
            group, namesrv: of a new one; a whole configuration has its own.
        """
        if config is not None and not isinstance(config, cls):
            raise ConfigError("config", config, f"use a {cls.__name__}")
        if config is None:
            return cls.of(group=group, namesrv=namesrv, **options)
        return config.with_options(**options) if options else config

    def with_options(self: C, **options: Any) -> C:
        """A copy with some options changed; raises ConfigError for a name there is none of.

        ``client_file`` stands for the options that the file has.
        """
        named = options.pop("client_file", None)
        check_options(type(self), options)
        if named is not None:
            options = _with_client_file(options, named)
        return replace(self, **options)


def _with_client_file(options: dict[str, Any], named: str | os.PathLike[str] | None) -> dict[str, Any]:
    from gimbalmq.client.client_file import with_client_file  # most clients have none

    return with_client_file(options, named)


def check_options(config: type[ClientConfig], options: dict[str, Any]) -> None:
    """Raises ConfigError for the first name that is no option, saying which there are."""
    known = {item.name for item in fields(config)}
    for name, value in options.items():
        if name not in known:
            close = get_close_matches(name, {*known, "client_file", "profile"}, 1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(known))}"
            raise ConfigError(name, value, f"no such option; {hint}")


@dataclass(frozen=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """A producer's settings (Java: DefaultMQProducer's fields).

    Attributes:
        group: the producer group; brokers ask any member of it about open transactions.
        send_timeout: seconds for one send, retries included.
        retry_times: further attempts of an awaited send that failed.
        retry_times_async: further attempts of ``send_soon`` if no answer came.
        retry_another_broker_when_not_store_ok: whether a stored but not flushed or replicated
            message counts as a failed attempt.
        compress_over: bodies of this many bytes or more are compressed.
        compression: ``zlib``, ``lz4`` or ``zstd``.
        compression_level: 0 to 9.
        max_message_size: bytes of a body, before compression.
        create_topic_key, default_topic_queue_nums: how an unknown topic is created by the broker.
        latency_fault: whether slow and failing brokers are avoided for a while.
        fault_rule: whose rule that is: ``seed`` (up to 4.7.1), ``4.8`` (to 5.1.3) or ``5.1.4``.
        max_in_flight: sends without an answer at a time; further ones wait their turn.
        auto_batch: whether messages wait a moment for others, and then leave together in one request.
        batch_max_delay: seconds that a message waits for others at most; 0 gathers those of one turn of the loop.
        batch_max_bytes: bytes of a batch, at most ``max_message_size``; a message that is larger leaves alone.
        total_batch_max_bytes: bytes of messages without an answer; further ones wait for room.
        trace: whether each send leaves a record in ``trace_topic``.
    """

    kind: ClassVar[str] = "producer"
    limits: ClassVar[Mapping[str, Limits]] = {
        **ClientConfig.limits,
        "send_timeout": _SOME_TIME,
        "retry_times": (0, 1000),
        "retry_times_async": (0, 1000),
        "compress_over": (0, 2**31 - 1),
        "compression_level": (0, 9),
        "max_message_size": (1, 16_000_000),
        "default_topic_queue_nums": (1, 65_536),
        "max_in_flight": (1, 65_535),
        "batch_max_delay": (0, 30),
        "batch_max_bytes": (1, 16_000_000),
        "total_batch_max_bytes": (1, 2**40),
    }

    group: str = ""
    send_timeout: float = 3.0
    retry_times: int = 2
    retry_times_async: int = 2
    retry_another_broker_when_not_store_ok: bool = False
    compress_over: int = 4096
    compression: str | Compression = "zlib"
    compression_level: int = 5
    max_message_size: int = MAX_BODY_BYTES
    create_topic_key: str = AUTO_CREATE_TOPIC
    default_topic_queue_nums: int = 4
    latency_fault: bool = False
    fault_rule: str = DEFAULT_RULE
    max_in_flight: int = 10_000
    auto_batch: bool = False
    batch_max_delay: float = 0.01
    batch_max_bytes: int = 128 * 1024
    total_batch_max_bytes: int = 32 * 1024 * 1024
    trace: bool = False
    trace_topic: str = TRACE_TOPIC

    def __post_init__(self) -> None:
        super().__post_init__()
        problem = group_problem(self.group)
        if problem is not None:
            raise ConfigError("group", self.group, problem)
        if self.group == DEFAULT_PRODUCER_GROUP:
            raise ConfigError("group", self.group, "this name is reserved; choose one of your own")
        object.__setattr__(self, "compression", Compression.named(self.compression))
        if self.total_batch_max_bytes < self.batch_max_bytes:
            raise ConfigError(
                "total_batch_max_bytes",
                self.total_batch_max_bytes,
                f"use at least batch_max_bytes, which is {self.batch_max_bytes:,}",
            )
        if self.fault_rule not in RULES:
            raise ConfigError("fault_rule", self.fault_rule, f"use one of {', '.join(RULES)}")
