"""JSON bodies of statistics, consumer status and the requests a broker makes of its clients.

Many are tables keyed by a queue. Such a key travels as an object's text (protocol.fastjson); the
structs keep the text and offer the table by ``MessageQueue``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec import field

from gimbalmq.model.queues import MessageQueue
from gimbalmq.protocol.bodies import Body, Subscription
from gimbalmq.protocol.fastjson import queue_key, queue_text


class TopicOffset(Body):
    last_update_timestamp: int = 0
    max_offset: int = 0
    min_offset: int = 0


class TopicStats(Body):
    """202's answer (Java: TopicStatsTable)."""

    queue_keys: ClassVar[bool] = True
    offset_table: dict[str, TopicOffset] = field(default_factory=dict)
    topic_put_tps: float = 0.0

    @property
    def queues(self) -> dict[MessageQueue, TopicOffset]:
        return {queue_key(key): value for key, value in self.offset_table.items()}


class OffsetPair(Body):
    """A group's place in one queue (Java: OffsetWrapper)."""

    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0
    pull_offset: int = 0


class ConsumeStats(Body):
    """208's answer."""

    queue_keys: ClassVar[bool] = True
    consume_tps: float = 0.0
    offset_table: dict[str, OffsetPair] = field(default_factory=dict)

    @property
    def queues(self) -> dict[MessageQueue, OffsetPair]:
        return {queue_key(key): value for key, value in self.offset_table.items()}


class QueueOffsets(Body):
    """Offsets by queue: 222's answer and 220's body (Java: ResetOffsetBody)."""

    queue_keys: ClassVar[bool] = True
    offset_table: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def of_queues(offsets: Mapping[MessageQueue, int]) -> QueueOffsets:
        return QueueOffsets(offset_table={queue_text(queue): value for queue, value in offsets.items()})

    @property
    def queues(self) -> dict[MessageQueue, int]:
        return {queue_key(key): value for key, value in self.offset_table.items()}


class ConsumerStatusBody(Body):
    """221's and 223's answer (Java: GetConsumerStatusBody)."""

    queue_keys: ClassVar[bool] = True
    consumer_table: dict[str, dict[str, int]] = field(default_factory=dict)
    message_queue_table: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def of_queues(offsets: Mapping[MessageQueue, int]) -> ConsumerStatusBody:
        return ConsumerStatusBody(
            message_queue_table={queue_text(queue): value for queue, value in offsets.items()}
        )

    @property
    def queues(self) -> dict[MessageQueue, int]:
        return {queue_key(key): value for key, value in self.message_queue_table.items()}

    @property
    def clients(self) -> dict[str, dict[MessageQueue, int]]:
        return {
            client: {queue_key(key): value for key, value in table.items()}
            for client, table in self.consumer_table.items()
        }


class ProcessQueueInfo(Body):
    """A process queue as 307 shows it; ``droped`` is Java's spelling."""

    cached_msg_count: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_size_in_mib: int = field(name="cachedMsgSizeInMiB", default=0)
    commit_offset: int = 0
    dropped: bool = field(name="droped", default=False)
    last_consume_timestamp: int = 0
    last_lock_timestamp: int = 0
    last_pull_timestamp: int = 0
    locked: bool = False
    transaction_msg_count: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_min_offset: int = 0
    try_unlock_times: int = 0


class ConsumeRates(Body):
    """A topic's rates in one member (Java: ConsumeStatus)."""

    consume_failed_msgs: int = 0
    consume_failed_tps: float = field(name="consumeFailedTPS", default=0.0)
    consume_ok_tps: float = field(name="consumeOKTPS", default=0.0)
    consume_rt: float = field(name="consumeRT", default=0.0)
    pull_rt: float = field(name="pullRT", default=0.0)
    pull_tps: float = field(name="pullTPS", default=0.0)


class ConsumerRunningInfo(Body):
    """307's answer."""

    queue_keys: ClassVar[bool] = True
    jstack: str | None = None
    mq_table: dict[str, ProcessQueueInfo] = field(default_factory=dict)
    mq_pop_table: dict[str, Any] = field(default_factory=dict)
    properties: dict[str, str] = field(default_factory=dict)
    status_table: dict[str, ConsumeRates] = field(default_factory=dict)
    subscription_set: list[Subscription] = field(default_factory=list)
    user_consumer_info: dict[str, str] = field(default_factory=dict)

    @property
    def queues(self) -> dict[MessageQueue, ProcessQueueInfo]:
        return {queue_key(key): value for key, value in self.mq_table.items()}


class ConsumeDirectlyResult(Body):
    """309's answer; consume_result is CR_SUCCESS, CR_LATER, CR_ROLLBACK, CR_COMMIT and so on."""

    auto_commit: bool = True
    consume_result: str | None = None
    order: bool = False
    remark: str | None = None
    spent_time_mills: int = 0


class GroupList(Body):
    """300's answer."""

    group_list: list[str] = field(default_factory=list)
