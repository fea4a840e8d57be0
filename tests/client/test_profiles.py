"""Profiles: whose defaults count."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from gimbalmq import Producer, PullConsumer, PushConsumer
from gimbalmq.client.config import ClientConfig, ProducerConfig
from gimbalmq.client.consumer_config import PullConsumerConfig, PushConsumerConfig
from gimbalmq.client.profiles import PROFILES
from gimbalmq.errors import ConfigError

NAMESRV = "127.0.0.1:9876"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "balancing.md"
KINDS: dict[str, type[ClientConfig]] = {
    "push": PushConsumerConfig,
    "pull": PullConsumerConfig,
    "producer": ProducerConfig,
}


def test_clients_take_a_profile_and_what_is_set_beside_it_counts() -> None:
    push = PushConsumer("g", NAMESRV, profile="4.9", await_termination=7.0).config
    assert (push.exception_delay, push.offset_illegal_delay, push.await_termination) == (3.0, 10.0, 7.0)
    assert (push.unbalanced_delay, push.rebalance_on_route_change) == (None, False)
    pull = PullConsumer("g", NAMESRV, profile="4.9").config
    assert (pull.exception_delay, pull.liveness_interval) == (1.0, 0.0)
    assert Producer("g", NAMESRV, profile="4.9").config.fault_rule == "seed"


def test_seeds_own_numbers_are_the_defaults_or_the_profile() -> None:
    """S1-16, S2-17, S2-27: 20 s between rounds, 120 s without a pull, 20 s until an ordered queue is unlocked."""
    push = PushConsumer("g", NAMESRV, profile="4.9").config
    assert (push.rebalance_interval, push.pull_idle, push.unlock_delay) == (20.0, 120.0, 20.0)
    assert (push.heartbeat_interval, push.poll_namesrv_interval, push.persist_interval) == (30.0, 30.0, 5.0)
    assert (push.consume_threads, push.pull_batch_size, push.broker_suspend, push.pull_timeout) == (
        20,
        32,
        15.0,
        30.0,
    )


@pytest.mark.parametrize("wrong", ["5.5", "seed", ""])
def test_unknown_profiles_are_named_with_those_there_are(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"profile=.*4\.9"):
        PushConsumer("g", NAMESRV, profile=wrong)


def test_misspelt_option_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"did you mean rebalance_interval\?"):
        PushConsumer("g", NAMESRV, rebalance_intervall=1)


def test_page_lists_what_the_profile_changes() -> None:
    rows = re.findall(
        r"^\| `(\w+)`(?: of a (\w+)[^|]*)? \| `([^`]+)` \| `([^`]+)` \|", PAGE.read_text(), re.M
    )
    listed = {(f"{kind}." if kind == "push" else "") + name: value(new) for name, kind, new, _ in rows}
    assert listed == dict(PROFILES["4.9"])
    for name, kind, _, default in rows:
        config = KINDS[kind or "push"].of(namesrv=NAMESRV, group="g")
        assert getattr(config, name) == value(default)


def value(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
