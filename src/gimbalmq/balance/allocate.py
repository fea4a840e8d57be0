"""Which queues of a topic one consumer takes: the strategies of Apache RocketMQ, result for result.

Nobody hands out assignments. Every member of a group sorts the same two lists (queues, client ids),
runs the same strategy and keeps its own part. The parts fit together only because every member,
Java clients included, computes exactly the same; so these functions are bound to Java's arithmetic
and hash, and are checked against vectors taken from it.

Strategies use the lists in the order given, as Java's do. Callers sort: see ``share``.
Duplicate client ids are kept. They change everyone's share, and must do so in all members alike.
"""

from __future__ import annotations

import hashlib
import logging
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from gimbalmq.errors import ConfigError
from gimbalmq.model.queues import MessageQueue, sort_client_ids, sort_queues

log = logging.getLogger(__name__)


class AllocateStrategy(Protocol):
    """What a strategy is (AllocateMessageQueueStrategy). Any object of this shape can be plugged in."""

    @property
    def name(self) -> str:
        """The name that configuration and QUERY_ASSIGNMENT use."""

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """The part of ``queues`` that ``client_id`` takes; both lists are sorted."""


@runtime_checkable
class AllocatesAll(Protocol):
    """A strategy that computes every member's part at once, over all topics of the group."""

    def allocate_all(
        self, group: str, client_ids: Sequence[str], queues: Sequence[MessageQueue]
    ) -> dict[str, list[MessageQueue]]:
        """The queues of each client id."""


def is_member(
    group: str, client_id: str, queues: Collection[MessageQueue], client_ids: Collection[str]
) -> bool:
    """The check all strategies but CONFIG begin with.

    Returns:
        False, with a log line, when ``client_id`` is not among the members: it then takes nothing.

    Raises:
        ConfigError: an argument is empty; the error names it.
    """
    if not client_id:
        raise ConfigError("client_id", client_id, "must not be empty")
    if not queues:
        raise ConfigError("queues", list(queues), "must not be empty")
    if not client_ids:
        raise ConfigError("client_ids", list(client_ids), "must not be empty")
    if client_id not in client_ids:
        log.warning("group %s: own id %s is not among the members %s", group, client_id, list(client_ids))
        return False
    return True


@dataclass(frozen=True, slots=True)
class Averagely:
    """AVG, the default (AllocateMessageQueueAveragely): contiguous blocks, the longer ones first.

    10 queues, 3 members: 0-3, 4-6, 7-9. With 2 queues and 3 members the third member's block would
    begin at 4 and have length -2: it takes nothing.
    """

    name: str = "AVG"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        if not is_member(group, client_id, queues, client_ids):
            return []
        start, count = average_block(len(queues), len(client_ids), client_ids.index(client_id))
        return list(queues[start : start + count]) if count > 0 else []


def average_block(queue_count: int, member_count: int, index: int) -> tuple[int, int]:
    """Start and length of a member's AVG block; a length of 0 or less means nothing."""
    quotient, remainder = divmod(queue_count, member_count)
    longer = index < remainder
    size = 1 if queue_count <= member_count else quotient + longer
    start = index * size if longer else index * size + remainder
    return start, min(size, queue_count - start)


@dataclass(frozen=True, slots=True)
class AveragelyByCircle:
    """AVG_BY_CIRCLE (AllocateMessageQueueAveragelyByCircle): queues dealt out like cards.

    5 queues, 2 members: 0,2,4 and 1,3.
    """

    name: str = "AVG_BY_CIRCLE"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        if not is_member(group, client_id, queues, client_ids):
            return []
        return list(queues[client_ids.index(client_id) :: len(client_ids)])


@dataclass(frozen=True, slots=True)
class ByConfig:
    """CONFIG (AllocateMessageQueueByConfig): exactly the configured queues, whatever the inputs.

    ByConfig([q3]) takes q3, also if the topic has no q3 and the group no such member.
    """

    queues: Sequence[MessageQueue] | None = None
    name: str = "CONFIG"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        return list(self.queues or ())


def md5_ring_hash(text: str) -> int:
    """The ring's hash: first 4 bytes of MD5, big endian, unsigned.

    >>> md5_ring_hash("c1-0")
    3886541579
    """
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


@dataclass(frozen=True, slots=True)
class ConsistentHash:
    """CONSISTENT_HASH (AllocateMessageQueueConsistentHash): the nearest member clockwise on a ring.

    Each member stands at ``virtual_nodes`` places of the ring, a queue at the hash of its text form.
    Few queues move when a member joins, but shares are uneven: 8 queues of TopicA on broker-a over
    c1, c2, c3 give 0, 1-6 and 7.
    """

    virtual_nodes: int = 10
    hash: Callable[[str], int] = md5_ring_hash
    name: str = "CONSISTENT_HASH"

    def __post_init__(self) -> None:
        if self.virtual_nodes < 0:
            raise ConfigError("virtual_nodes", self.virtual_nodes, "must be 0 or more")

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        if not is_member(group, client_id, queues, client_ids):
            return []
        return self.allocate_all(group, client_ids, queues)[client_id]

    def allocate_all(
        self, group: str, client_ids: Sequence[str], queues: Sequence[MessageQueue]
    ) -> dict[str, list[MessageQueue]]:
        parts: dict[str, list[MessageQueue]] = {client_id: [] for client_id in client_ids}
        ring = self._ring(client_ids)
        if ring:
            places = sorted(ring)
            for queue in queues:
                place = bisect_left(places, self.hash(str(queue)))
                parts[ring[places[place % len(places)]]].append(queue)
        return parts

    def _ring(self, client_ids: Sequence[str]) -> dict[int, str]:
        ring: dict[int, str] = {}
        standing: dict[str, int] = {}
        for client_id in client_ids:
            first = standing.get(client_id, 0)  # an id listed twice stands at twice as many places
            standing[client_id] = first + self.virtual_nodes
            for replica in range(first, first + self.virtual_nodes):
                ring[self.hash(f"{client_id}-{replica}")] = client_id  # a collision overwrites
        return ring


def share(
    strategy: AllocateStrategy,
    group: str,
    client_id: str,
    queues: Iterable[MessageQueue],
    client_ids: Iterable[str],
) -> list[MessageQueue]:
    """Sort both lists, then allocate: what a member does for one topic in each rebalance round."""
    return strategy.allocate(group, client_id, sort_queues(queues), sort_client_ids(client_ids))


def shares(
    strategy: AllocateStrategy, group: str, queues: Iterable[MessageQueue], client_ids: Iterable[str]
) -> dict[str, list[MessageQueue]]:
    """Every member's queues over all topics: what the group as a whole arrives at.

    Topics are allocated one by one, as Java does, unless the strategy takes all of them at once.
    """
    ids = sort_client_ids(client_ids)
    ordered = sort_queues(queues)
    if not ids or not ordered:
        return {client_id: [] for client_id in ids}
    if isinstance(strategy, AllocatesAll):
        return strategy.allocate_all(group, ids, ordered)
    topics: dict[str, list[MessageQueue]] = {}
    for queue in ordered:
        topics.setdefault(queue.topic, []).append(queue)
    return {
        client_id: [
            queue for listed in topics.values() for queue in strategy.allocate(group, client_id, listed, ids)
        ]
        for client_id in ids
    }
