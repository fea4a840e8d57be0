"""Headers of group membership and offsets."""

from __future__ import annotations

from msgspec import field

from gimbalmq.protocol.headers.base import Header


class UnregisterClient(Header):
    """35 UNREGISTER_CLIENT."""

    client_id: str = field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


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
