"""What a consumer tells about itself: 307's answer, and whether its group agrees with it."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable

from gimbalmq.client.consumer_config import ConsumerConfig
from gimbalmq.model.topics import RETRY_PREFIX
from gimbalmq.protocol.bodies import Subscription
from gimbalmq.protocol.codes import OUR_VERSION, version_name


def running_properties(
    config: ConsumerConfig,
    *,
    ordered: bool,
    threads: int,
    started_ms: int,
    consume_type: str,
    nameservers: Iterable[str],
) -> dict[str, str]:
    """The properties of 307's answer, under Java's names where it has any."""
    return {
        "PROP_CONSUMEORDERLY": "true" if ordered else "false",
        "PROP_THREADPOOL_CORE_SIZE": str(threads),
        "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
        "PROP_NAMESERVER_ADDR": "".join(f"{address};" for address in nameservers),
        "PROP_CONSUME_TYPE": consume_type,
        "PROP_CLIENT_VERSION": version_name(OUR_VERSION),
        "allocateMessageQueueStrategy": config.allocate_strategy().name,
        "handover": config.handover,
        "messageModel": config.message_model.value,
    }


def expressions(subscriptions: Iterable[Subscription]) -> dict[str, str]:
    """Topic to expression, tags in one order, without the retry topic."""
    return {
        data.topic: " || ".join(sorted(data.tags_set)) or data.sub_string or "*"
        for data in subscriptions
        if not data.topic.startswith(RETRY_PREFIX)
    }


def stacks() -> str:
    """What every thread is doing, as 307's jstack field."""
    parts = []
    for number, frame in sys._current_frames().items():
        parts.append(f"thread {number}\n{''.join(traceback.format_stack(frame))}")
    return "\n".join(parts)
