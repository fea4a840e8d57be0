"""A consumer's options. Most defaults are Java's, so members of both kinds can share a group.

``profiles`` has those that differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import Enum
from os import PathLike
from typing import ClassVar, Literal

from gimbalmq.balance.allocate import AllocateStrategy
from gimbalmq.balance.by_name import strategy_by_name
from gimbalmq.client.config import ClientConfig, Limits
from gimbalmq.errors import ConfigError
from gimbalmq.model.javahash import tag_hash
from gimbalmq.model.topics import group_problem
from gimbalmq.protocol.bodies import Subscription

TAG = "TAG"
SQL92 = "SQL92"

RESERVED_GROUPS = ("DEFAULT_CONSUMER", "TOOLS_CONSUMER")


class MessageModel(Enum):
    """Who gets a message: one member of the group, or every one."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class ConsumeFromWhere(Enum):
    """Where a group without progress begins. The last three are Java's deprecated twins of the first."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"
    LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """What all kinds of consumer share. Times are seconds.

    Attributes:
        group: the consumer group; its members must subscribe alike.
        strategy: a name ("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "STICKY"), or an object such as
            ``strategy_by_name`` makes of the names that need more: rooms, a resolver, a list of queues.
        consume_timestamp: for ``TIMESTAMP``: ``yyyyMMddHHmmss`` in the machine's own time zone as Java reads
            it, or a datetime; None means half an hour before the start.
        pull_batch_size: messages asked for at once.
        pull_threshold_for_queue, pull_threshold_size_for_queue: messages and MiB one queue may have cached.
        max_span: distance between the oldest and newest cached offset that still lets a queue be pulled.
        handover: "java" moves a queue at once, with some messages delivered twice; "lease" has the loser
            finish and commit before the gainer begins, by the broker's queue locks.
        lease_orphan_grace: how long a gainer waits for the lock of a member that has left without a word; the
            same in all members.
        lease_margin: a member that could not renew a queue's lock for so long begins nothing more of it, nor
            commits it, until it has the lock again; less than ``lease_orphan_grace``. Locks are renewed
            three times as often.
        handover_wait: with leases, how long the loser of a queue waits for handlers at work before it hands the
            queue over all the same; what they do then is not committed and comes again.
        liveness_interval: how often brokers of this library hear that the event loop still turns; one that
            hears nothing for three times as long takes the member for hung and tells the group. 0 leaves
            that to the broker's ``channelExpiredTimeout``, 120 s, as do Apache's brokers.
        ramp_up: after a queue was taken, pulls grow to their full size over this time; 0 is at once.
        member_name: a fixed name of this member. A restart keeps its client id, so nothing moves.
        member_grace: how long a vanished member with a fixed name still counts; the same in all members.
        rebalance_interval: rounds run at least this often.
        rebalance_min_interval: and at most this often (5.x: 1 s; 4.9: no limit).
        rebalance_on_route_change: a changed queue set starts a round at once (Java waits for the timer).
        unbalanced_delay: pause before another round where one left queues untaken (5.2+: 1 s); None waits for
            the timer, as 4.9 does.
        check_group_interval: how often the group's subscriptions are compared with ours; 0 is never.
        first_pull_delay: pause before a taken queue's first pull (5.x: 0.5 s; 4.9: none).
        pull_idle: a queue without a begun pull for longer is dropped and taken again.
        lock_interval, unlock_delay: renewal of queue locks; when a lost ordered queue with cached messages is
            unlocked.
        persist_interval: how often progress is written away.
        local_offset_folder: root of the local offset files; None is ``~/.rocketmq_offsets``.
    """

    limits: ClassVar[Mapping[str, Limits]] = {
        **ClientConfig.limits,
        "pull_batch_size": (1, 1024),
        "pull_threshold_for_queue": (1, 65_535),
        "pull_threshold_size_for_queue": (1, 1024),
        "max_span": (1, 65_535),
    }

    group: str = ""
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    consume_timestamp: str | datetime | None = None
    strategy: str | AllocateStrategy = "AVG"
    pull_batch_size: int = 32
    pull_threshold_for_queue: int = 1000
    pull_threshold_size_for_queue: int = 100
    max_span: int = 2000
    handover: Literal["java", "lease"] = "java"
    lease_orphan_grace: float = 5.0
    lease_margin: float = 3.0
    handover_wait: float = 60.0
    liveness_interval: float = 3.0
    ramp_up: float = 0.0
    member_name: str | None = None
    member_grace: float = 0.0
    rebalance_interval: float = 20.0
    rebalance_min_interval: float = 0.0
    rebalance_on_route_change: bool = True
    unbalanced_delay: float | None = 1.0
    check_group_interval: float = 20.0
    first_pull_delay: float = 0.0
    pull_idle: float = 120.0
    lock_interval: float = 20.0
    lock_first_delay: float = 1.0
    lock_live: float = 30.0
    unlock_delay: float = 20.0
    persist_interval: float = 5.0
    local_offset_folder: str | PathLike[str] | None = None
    broker_suspend: float = 15.0
    pull_timeout: float = 30.0
    exception_delay: float = 1.0
    busy_delay: float = 0.02
    flow_control_delay: float = 0.05
    suspend_delay: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        problem = group_problem(self.group)
        if problem is not None:
            raise ConfigError("group", self.group, problem)
        if self.group in RESERVED_GROUPS:
            raise ConfigError("group", self.group, "this name is reserved; choose one of your own")
        for name in ("rebalance_interval", "lock_interval", "persist_interval", "pull_timeout"):
            if getattr(self, name) <= 0:
                raise ConfigError(name, getattr(self, name), "must be more than 0")
        if self.handover == "lease" and not 0 < self.lease_margin < self.lease_orphan_grace:
            raise ConfigError(
                "lease_margin",
                self.lease_margin,
                f"more than 0 and less than lease_orphan_grace, which is {self.lease_orphan_grace:g}: a member "
                "must have stopped before another takes its queue",
            )
        if self.member_name is not None and (not self.member_name or set(self.member_name) & set("#@/")):
            raise ConfigError("member_name", self.member_name, "a name without '#', '@' and '/'")
        if isinstance(self.strategy, str):
            strategy_by_name(self.strategy)
        self.consume_timestamp_ms(0)

    @property
    def broadcasting(self) -> bool:
        return self.message_model is MessageModel.BROADCASTING

    def allocate_strategy(self) -> AllocateStrategy:
        return strategy_by_name(self.strategy) if isinstance(self.strategy, str) else self.strategy

    def consume_timestamp_ms(self, now_ms: int) -> int:
        """The moment to begin at; half an hour before ``now_ms`` where none is set."""
        given = self.consume_timestamp
        if given is None:
            return now_ms - 30 * 60 * 1000
        if isinstance(given, str):
            try:
                moment = datetime.strptime(given, "%Y%m%d%H%M%S").astimezone()
            except ValueError:
                raise ConfigError(
                    "consume_timestamp", given, "yyyyMMddHHmmss, such as 20260131235959"
                ) from None
        else:
            moment = given
        return int(moment.astimezone(UTC).timestamp() * 1000)


@dataclass(frozen=True, kw_only=True)
class PushConsumerConfig(ConsumerConfig):
    """Options of a push consumer.

    Attributes:
        consume_threads: batches that are consumed at the same time (Java: consumeThreadMin and Max).
        consume_message_batch_max_size: messages one handler call gets.
        max_reconsume_times: -1 is 16 for concurrent and without end for ordered handlers.
        consume_timeout: messages in work for longer are sent back for another try.
        pull_threshold_for_topic, pull_threshold_size_for_topic: limits shared by all held queues; -1 is off.
        await_termination: how long close() waits for handlers at work (Java: 0, and they come again).
    """

    kind: ClassVar[str] = "push"
    limits: ClassVar[Mapping[str, Limits]] = {
        **ConsumerConfig.limits,
        "consume_threads": (1, 1000),
        "consume_message_batch_max_size": (1, 1024),
        "pull_interval": (0, 65.535),
        "pull_batch_bytes": (1, 2**31 - 1),
        "pull_threshold_for_topic": (-1, 6_553_500),
        "pull_threshold_size_for_topic": (-1, 102_400),
        "max_reconsume_times": (-1, 2**31 - 1),
        "suspend_current_queue": (0.01, 30),
    }

    consume_threads: int = 20
    consume_message_batch_max_size: int = 1
    pull_interval: float = 0.0
    pull_batch_bytes: int = 262_144
    pull_threshold_for_topic: int = -1
    pull_threshold_size_for_topic: int = -1
    max_reconsume_times: int = -1
    consume_timeout: float = 15 * 60.0
    suspend_current_queue: float = 1.0
    post_subscription_when_pull: bool = False
    await_termination: float = 10.0
    resubmit_delay: float = 5.0
    offset_illegal_delay: float = 0.0
    reset_delay: float = 10.0
    relock_delay: float = 3.0
    remove_wait: float = 1.0
    continuous_limit: float = 60.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("pull_threshold_for_topic", "pull_threshold_size_for_topic"):
            if getattr(self, name) == 0:
                raise ConfigError(name, 0, f"use 1 to {self.limits[name][1]:,}, or -1 for no limit")


@dataclass(frozen=True, kw_only=True)
class PullConsumerConfig(ConsumerConfig):
    """Options of a pull consumer (Java: DefaultLitePullConsumer).

    Attributes:
        auto_commit: progress is written away inside poll(), every ``auto_commit_interval``.
        pull_threshold_for_all: messages all queues together may have cached.
        offset_failure_delay: pause where the place to begin could not be found out.
    """

    kind: ClassVar[str] = "pull"
    limits: ClassVar[Mapping[str, Limits]] = {
        **ConsumerConfig.limits,
        "pull_threshold_for_all": (1, 6_553_500),
    }

    pull_batch_size: int = 10
    broker_suspend: float = 20.0
    pull_timeout: float = 30.0
    auto_commit: bool = True
    auto_commit_interval: float = 5.0
    poll_timeout: float = 5.0
    pull_threshold_for_all: int = 10_000
    pause_delay: float = 1.0
    offset_failure_delay: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.auto_commit_interval < 1.0:
            raise ConfigError("auto_commit_interval", self.auto_commit_interval, "1 second or more")
        if self.broker_suspend >= self.pull_timeout:
            raise ConfigError("pull_timeout", self.pull_timeout, "must be longer than broker_suspend")


@dataclass(frozen=True, kw_only=True)
class QueuePullConsumerConfig(ConsumerConfig):
    """Options of a consumer whose caller names queue and offset (Java: DefaultMQPullConsumer).

    It does not read by itself, so the options of reading, of locks and of where to begin are refused.

    Attributes:
        pull_timeout: how long an answer may take, beyond the time that a pull lets the broker wait.
        max_reconsume_times: how often a message that was sent back is delivered again.
    """

    kind: ClassVar[str] = "pull"
    limits: ClassVar[Mapping[str, Limits]] = {**ConsumerConfig.limits, "max_reconsume_times": (0, 2**31 - 1)}

    pull_timeout: float = 10.0
    max_reconsume_times: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in _OF_READERS and value != item.default:
                raise ConfigError(
                    item.name,
                    value,
                    "a QueuePullConsumer reads nothing by itself, so this option does nothing; its pull() takes "
                    "queue, offset, number and waiting time, and PullConsumer has the option",
                )


_OF_READERS = frozenset(
    {
        "broker_suspend",
        "busy_delay",
        "consume_from_where",
        "consume_timestamp",
        "exception_delay",
        "first_pull_delay",
        "flow_control_delay",
        "handover",
        "handover_wait",
        "lease_margin",
        "lease_orphan_grace",
        "lock_first_delay",
        "lock_interval",
        "lock_live",
        "max_span",
        "pull_batch_size",
        "pull_idle",
        "pull_threshold_for_queue",
        "pull_threshold_size_for_queue",
        "ramp_up",
        "suspend_delay",
        "unlock_delay",
    }
)


def subscription_for(
    topic: str, expression: str | None, version: int, expression_type: str = TAG
) -> Subscription:
    """What a group tells brokers it wants of a topic (Java: FilterAPI.build).

    Args:
        expression: ``*`` or nothing for all, ``a || b`` for tags, or a condition where the type is SQL92.
        version: brokers take the newest; ms since 1970.
    """
    if expression_type not in (TAG, SQL92):
        raise ConfigError("expression_type", expression_type, f"use {TAG} or {SQL92}")
    text = (expression or "").strip()
    if expression_type == SQL92:
        if not text:
            raise ConfigError("expression", expression, "an SQL92 subscription needs a condition")
        return Subscription(topic=topic, sub_string=text, sub_version=version, expression_type=SQL92)
    if text in ("", "*"):
        return Subscription(topic=topic, sub_string="*", sub_version=version)
    tags = list(dict.fromkeys(tag for part in text.split("||") if (tag := part.strip())))
    if not tags:
        raise ConfigError("expression", expression, "tags separated by ||, or * for all")
    return Subscription(
        topic=topic,
        sub_string=text,
        sub_version=version,
        tags_set=tags,
        code_set=[tag_hash(tag) for tag in tags],
    )
