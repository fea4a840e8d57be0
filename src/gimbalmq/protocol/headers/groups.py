"""Headers of group membership and offsets."""

from __future__ import annotations

from msgspec import field

from gimbalmq.protocol.headers.base import Header


class UnregisterClient(Header):
    """35 UNREGISTER_CLIENT."""

    client_id: str = field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class HeartbeatRequest(Header):
    """34 HEART_BEAT, from clients of this library; Apache's brokers look at the body only.

    Attributes:
        liveness_millis: how often the sender will be heard of; after three times as long it is gone.
    """

    liveness_millis: int | None = None


class HeartbeatReply(Header):
    """34's answer, from brokers of this library.

    Attributes:
        liveness_millis: the sender is watched for signs of life as often as this.
        expelled_groups: consumer groups the sender has been taken out of since it connected, and how often:
            ``g=2,h=1``. Answers may be lost, so it is told again and again.
        uptime_millis: since when the broker has been up, if it was restarted and knew a group of the sender before
            that: members of it may have had locks that the broker has forgotten.
    """

    liveness_millis: int | None = None
    expelled_groups: str | None = None
    uptime_millis: int | None = None


class LockQueues(Header):
    """41 LOCK_BATCH_MQ, from clients of this library; Apache's brokers look at the body only.

    Attributes:
        take_over: locks of clients that are no members of the group any more are to be given to the sender;
            in the answer: and that was looked at.
    """

    take_over: bool | None = None


class GroupOnly(Header):
    """38, 40, 203: a consumer group and nothing else."""

    consumer_group: str


class QueryConsumerOffset(Header):
    """14 QUERY_CONSUMER_OFFSET."""

    consumer_group: str
    topic: str
    queue_id: int
    set_zero_if_not_found: bool | None = None
    bname: str | None = None


class UpdateConsumerOffset(Header):
    """15 UPDATE_CONSUMER_OFFSET."""

    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: int
    bname: str | None = None


class QueueOnly(Header):
    """30, 31, 32: one queue."""

    topic: str
    queue_id: int
    bname: str | None = None


class SearchOffset(Header):
    """29 SEARCH_OFFSET_BY_TIMESTAMP."""

    topic: str
    queue_id: int
    timestamp: int
    boundary_type: str | None = None
    bname: str | None = None


class OffsetReply(Header):
    offset: int


class TimestampReply(Header):
    timestamp: int
