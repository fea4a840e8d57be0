"""Options of clients: a value of another type, or beyond the limits, is refused by name, with what is allowed."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import gimbalmq
from gimbalmq import sync
from gimbalmq.client.config import ClientConfig, ProducerConfig
from gimbalmq.client.consumer_config import (
    ConsumeFromWhere,
    MessageModel,
    PullConsumerConfig,
    PushConsumerConfig,
    QueuePullConsumerConfig,
)
from gimbalmq.errors import ConfigError

CONFIGS: list[type[ClientConfig]] = [
    ProducerConfig,
    PushConsumerConfig,
    PullConsumerConfig,
    QueuePullConsumerConfig,
]

NOT_A: dict[object, tuple[object, ...]] = {
    int: ("x", "5", 1.5, True, None, math.nan, -2, 2**70, b"5", [5]),
    float: ("x", "5", True, None, math.nan, math.inf, -math.inf, -1, 10**400, [5.0]),
    bool: ("yes", 1, 0, None, 0.0, ""),
    str: (5, True, None, b"x", ["x"], math.nan),
}
"""Values that no option of the type may have."""


def every_option() -> list[tuple[type[ClientConfig], str, object]]:
    return [
        (config, item.name, declared)
        for config in CONFIGS
        for hints in [get_type_hints(config)]
        for item in fields(config)
        for declared in [hints[item.name]]
    ]


def made(config: type[ClientConfig], **options: Any) -> ClientConfig:
    return config.of(**{"group": "g", "namesrv": "127.0.0.1:9876", **options})


@pytest.mark.parametrize(("config", "name", "declared"), every_option())
def test_a_value_of_another_type_is_refused_by_name(
    config: type[ClientConfig], name: str, declared: object
) -> None:
    allows_none = "None" in str(declared)
    wrong = NOT_A.get(declared)
    if wrong is None:  # a union, a choice or an object
        wrong = (5j, object, object(), [5]) if allows_none else (5j, object, object(), [5], None)
    if "float" in str(declared):
        wrong = tuple(value for value in NOT_A[float] if not (allows_none and value is None))
    for value in wrong:
        with pytest.raises(ConfigError) as caught:
            made(config, **{name: value})
        assert caught.value.option == name, value
        told, _, remedy = str(caught.value).partition(" cannot be used: ")
        secret = name in ("secret_key", "security_token")
        assert told[:40] == f"{name}={'...' if secret and value is not None else value!r}"[:40] or secret
        assert remedy


@pytest.mark.parametrize("config", CONFIGS)
def test_every_whole_number_has_limits_and_every_default_is_within_its_own(
    config: type[ClientConfig],
) -> None:
    hints = get_type_hints(config)
    names = {item.name for item in fields(config)}
    assert {name for name in names if hints[name] is int} <= config.limits.keys() <= names
    made(config)


@pytest.mark.parametrize(
    ("kind", "options", "told"),
    [
        (
            gimbalmq.Producer,
            {"max_message_size": 0},
            "max_message_size=0 .*: use a whole number, 1 to 16,000,000",
        ),
        (gimbalmq.Producer, {"batch_max_bytes": 2**30}, "use a whole number, 1 to 16,000,000"),
        (gimbalmq.Producer, {"total_batch_max_bytes": 5}, "use at least batch_max_bytes, which is 131,072"),
        (gimbalmq.Producer, {"send_timeout": 0}, "send_timeout=0 .*: use a number, 0.001 to 86,400"),
        (gimbalmq.Producer, {"batch_max_delay": "x"}, "batch_max_delay='x' .*: use a number, 0 to 30"),
        (gimbalmq.Producer, {"auto_batch": "yes"}, "auto_batch='yes' .*: use True or False"),
        (
            gimbalmq.Producer,
            {"tls": True},
            r"tls=True .*: use a context, which gimbalmq\.client_tls\(\) makes",
        ),
        (gimbalmq.Producer, {"compression": 5}, "compression=5 .*: use a text or a Compression: "),
        (gimbalmq.Producer, {"namesrv": None}, "namesrv=None .*: give at least one name server"),
        (
            gimbalmq.Producer,
            {"namesrv": 9876},
            'namesrv=9876 .*: use a text, "host:port;host:port", or a list',
        ),
        (gimbalmq.Producer, {"namesrv": [9876]}, r"namesrv=\[9876\] .*: use a text"),
        (
            gimbalmq.Producer,
            {"network": "tcp"},
            "network='tcp' .*: use an object with connect and listen or None",
        ),
        (gimbalmq.Producer, {"client_file": 5}, "client_file=5 .*: use the path of a client file"),
        (gimbalmq.Producer, {"profile": ["4.9"]}, r"profile=\['4.9'\] .*: use one of 4.9"),
        (gimbalmq.Producer, {"config": 5}, "config=5 .*: use a ProducerConfig"),
        (sync.Producer, {"auto_batch": "yes"}, "auto_batch='yes' .*: use True or False"),
        (gimbalmq.PullConsumer, {"message_model": "x"}, "use a MessageModel: CLUSTERING, BROADCASTING"),
        (gimbalmq.PullConsumer, {"handover": "x"}, 'handover=\'x\' .*: use "java" or "lease"'),
        (
            gimbalmq.PullConsumer,
            {"strategy": 5},
            "strategy=5 .*: use a text or an object with name and allocate",
        ),
        (
            gimbalmq.PullConsumer,
            {"local_offset_folder": 5},
            "local_offset_folder=5 .*: use a text or a path or",
        ),
        (
            gimbalmq.PullConsumer,
            {"exception_delay": -1},
            "exception_delay=-1 .*: use a number, 0 to 2,147,483,647",
        ),
        (gimbalmq.PullConsumer, {"secret_key": 5}, r"secret_key='\.\.\.' .*: use a text or None"),
    ],
)
def test_the_error_says_what_is_allowed(kind: Any, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        kind(**{"group": "g", "namesrv": "127.0.0.1:9876", **options})


@pytest.mark.parametrize("name", ["pull_threshold_for_topic", "pull_threshold_size_for_topic"])
def test_a_threshold_of_a_topic_is_a_number_or_off(name: str) -> None:
    for allowed in (-1, 1):
        assert getattr(made(PushConsumerConfig, **{name: allowed}), name) == allowed
    with pytest.raises(ConfigError, match=rf"{name}=0 .*: use 1 to [0-9,]+, or -1 for no limit"):
        made(PushConsumerConfig, **{name: 0})


@pytest.mark.parametrize("number", ["x", 0, -1, True, 1.5, None])
def test_the_number_of_checks_at_a_time_is_checked(number: Any) -> None:
    with pytest.raises(ConfigError, match=r"check_concurrency=.*: use a whole number, 1 to 65,535"):
        gimbalmq.TransactionProducer("g", "127.0.0.1:9876", check=lambda _: None, check_concurrency=number)


def test_values_of_the_declared_types_are_taken() -> None:
    assert (
        made(ProducerConfig, send_timeout=3, batch_max_delay=0, namesrv=["h:1", "h:2"]).namesrv == "h:1;h:2"
    )
    made(ProducerConfig, compression="LZ4", latency_fault=True, secret_key="s", access_key="a")
    made(
        PushConsumerConfig,
        message_model=MessageModel.BROADCASTING,
        consume_from_where=ConsumeFromWhere.TIMESTAMP,
        consume_timestamp="20260131235959",
        local_offset_folder=Path("x"),
        unbalanced_delay=None,
        strategy="AVG_BY_CIRCLE",
    )
