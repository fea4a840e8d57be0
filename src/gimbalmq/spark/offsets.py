"""A position in every queue of every topic: as JSON, under a rate limit, and against what the broker has.

Spark compares positions as JSON text, so equal positions must be equal text: keys are always in one order.
A position is one past the last message read, as everywhere in RocketMQ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from gimbalmq.errors import DataLossError, RemoteProtocolError
from gimbalmq.model.queues import MessageQueue, sort_queues

Positions = Mapping[MessageQueue, int]

EARLIEST: Final = -2
LATEST: Final = -1

FROM: Final = "@from"
"""Beside the topics of a stream's first end: where the stream began. No topic may be called so."""


class Bounds(NamedTuple):
    """What a broker has of a queue: messages from ``low`` to before ``high``."""

    low: int
    high: int


# --- as JSON -------------------------------------------------------------------------------------


def to_json(positions: Positions, begun_at: Positions | None = None) -> dict[str, Any]:
    """``{topic: {broker: {queueId: position}}}``, in the order of the queues.

    Args:
        begun_at: written beside the first end of a stream. Spark asks for the initial position again when
            it repeats the first batch, and "latest" has moved by then; what the checkpoint says has not.

    >>> to_json({MessageQueue("t", "b", 1): 7, MessageQueue("t", "b", 0): 5})
    {'t': {'b': {'0': 5, '1': 7}}}
    """
    nested: dict[str, Any] = {} if begun_at is None else {FROM: to_json(begun_at)}
    for queue in sort_queues(positions):
        brokers = nested.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = positions[queue]
    return nested


def from_json(nested: Mapping[str, Any]) -> dict[MessageQueue, int]:
    """What ``to_json`` wrote; raises RemoteProtocolError for anything else a checkpoint may hold."""
    try:
        return {
            MessageQueue(topic, broker, int(queue_id)): int(position)
            for topic, brokers in nested.items()
            if topic != FROM
            for broker, queues in brokers.items()
            for queue_id, position in queues.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise RemoteProtocolError(
            f"the checkpoint holds {nested!r}, which is no position of this source; "
            "was the checkpoint written by another source?"
        ) from None


def begun_at(nested: Mapping[str, Any]) -> dict[MessageQueue, int] | None:
    """Where the stream began, if this end says so."""
    found = nested.get(FROM)
    return None if found is None else from_json(found)


# --- rate limits ---------------------------------------------------------------------------------


def count_between(start: Positions, end: Positions) -> int:
    return sum(max(0, high - start.get(queue, high)) for queue, high in end.items())


def limit_rows(start: Positions, end: Positions, rows: int) -> dict[MessageQueue, int]:
    """An end at most this many messages away, each queue by its share of what waits.

    A queue with anything at all gets at least one message, even where that is more than ``rows`` in sum: a
    small queue beside a large one must not wait for ever.
    """
    waiting = {queue: high - start.get(queue, high) for queue, high in end.items()}
    shares = proportional(waiting, rows)
    return {queue: high - waiting[queue] + shares.get(queue, 0) for queue, high in end.items()}


def limit_bytes(
    start: Positions, end: Positions, total_bytes: int, message_bytes: Mapping[MessageQueue, float]
) -> dict[MessageQueue, int]:
    """As ``limit_rows``, by bytes: each queue's messages are taken to have the given mean size."""
    sizes = {queue: max(1.0, message_bytes.get(queue, 1.0)) for queue in end}
    waiting = {queue: high - start.get(queue, high) for queue, high in end.items()}
    shares = proportional(
        {queue: round(count * sizes[queue]) for queue, count in waiting.items()}, total_bytes
    )
    return {
        queue: end[queue] - waiting[queue] + max(1, min(waiting[queue], int(shares[queue] / sizes[queue])))
        if queue in shares
        else end[queue]
        for queue in end
    }


def proportional(sizes: Mapping[MessageQueue, int], total: int) -> dict[MessageQueue, int]:
    """Shares of ``total`` by size, each at least 1 and at most its size; empty ones are left out."""
    wanted = {queue: size for queue, size in sizes.items() if size > 0}
    everything = sum(wanted.values())
    if everything <= max(total, len(wanted)):
        return wanted
    # One for each, and the rest by what waits beyond that one.
    extra, beyond = max(0, total - len(wanted)), everything - len(wanted)
    shares = {queue: 1 + (size - 1) * extra // beyond for queue, size in wanted.items()}
    left = extra - sum(shares.values()) + len(wanted)
    # What rounding left over goes to the largest fractions; ties by the queue's order, to be repeatable.
    by_fraction = sorted(wanted, key=lambda queue: (-((wanted[queue] - 1) * extra % beyond), queue))
    for queue in by_fraction[:left]:
        shares[queue] += 1
    return shares


# --- what is lost --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loss:
    """Messages a reader should have got and never will."""

    queue: MessageQueue
    wanted: int
    bounds: Bounds | None

    def __str__(self) -> str:
        queue = f"{self.queue.topic} at {self.queue.broker_name}, queue {self.queue.queue_id}"
        if self.bounds is None:
            return f"{queue}: the next offset is {self.wanted}, but the topic or queue was deleted"
        low, high = self.bounds
        if self.wanted >= high:
            return (
                f"{queue}: the next offset is {self.wanted}, but the broker ends at {high}; "
                "the topic was deleted and created again, or the broker lost its end"
            )
        return (
            f"{queue}: the next offset is {self.wanted}, but the broker begins at {low}; "
            f"{low - self.wanted} messages were removed by retention before they were read"
        )


def losses(start: Positions, bounds: Mapping[MessageQueue, Bounds]) -> list[Loss]:
    """Positions that lie outside what the broker has."""
    return [
        Loss(queue, position, found)
        for queue, position in start.items()
        if (found := bounds.get(queue)) is not None and not found.low <= position <= found.high
    ]


LOSS_REMEDY: Final = (
    "to go on with what is there, set failOnDataLoss=false (the gap is logged); "
    "to lose less, read more often or keep messages longer (fileReservedTime of the broker)"
)


def loss_error(found: Iterable[Loss]) -> DataLossError:
    return DataLossError(f"{'; '.join(map(str, found))}. {LOSS_REMEDY}")


def after_losses(start: Positions, bounds: Mapping[MessageQueue, Bounds]) -> dict[MessageQueue, int]:
    """Positions moved to the oldest message if they lie outside what the broker has."""
    moved = dict(start)
    for loss in losses(start, bounds):
        assert loss.bounds is not None
        moved[loss.queue] = loss.bounds.low
    return moved
