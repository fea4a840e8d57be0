"""What a consumer tells about itself: the answer to request 307."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable

from gimbalmq.client.consumer_config import ConsumerConfig
from gimbalmq.client.consuming.held_queue import HeldQueue
from gimbalmq.protocol.codes import OUR_VERSION, version_name
from gimbalmq.protocol.status_bodies import ProcessQueueInfo


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


def row_of(held: HeldQueue, commit_offset: int, now: float, wall_ms: int) -> ProcessQueueInfo:
    """One row of 307's ``mqTable``."""

    def wall(moment: float) -> int:
        return wall_ms - int((now - moment) * 1000)

    window, work = held.window, held.window.work_offsets
    return ProcessQueueInfo(
        cached_msg_count=window.count - len(work),
        cached_msg_max_offset=window.max_offset or 0,
        cached_msg_min_offset=window.min_offset or 0,
        cached_msg_size_in_mib=window.body_bytes >> 20,
        commit_offset=commit_offset,
        dropped=held.dropped,
        last_consume_timestamp=wall(held.last_consume),
        last_lock_timestamp=wall(held.last_lock),
        last_pull_timestamp=wall(held.last_pull),
        locked=held.locked,
        transaction_msg_count=len(work),
        transaction_msg_max_offset=max(work, default=0),
        transaction_msg_min_offset=min(work, default=0),
        try_unlock_times=held.give_up_tries,
    )


def stacks() -> str:
    """What every thread is doing, as 307's jstack field."""
    parts = []
    for number, frame in sys._current_frames().items():
        parts.append(f"thread {number}\n{''.join(traceback.format_stack(frame))}")
    return "\n".join(parts)
