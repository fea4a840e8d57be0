"""Ranges of offsets into input partitions.

A task costs about as much as reading some thousand messages. So ranges that are too long are split, and
ranges that are very short share a task.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from gimbalmq.model.queues import MessageQueue, sort_queues
from gimbalmq.spark.offsets import Positions

JOIN_BELOW: Final = 4000
"""Ranges share a partition until it has this many messages (option minRecordsPerPartition)."""


class QueueRange(NamedTuple):
    """Messages of a queue from ``start`` to before ``end``."""

    queue: MessageQueue
    start: int
    end: int

    @property
    def length(self) -> int:
        return max(0, self.end - self.start)


Partition = tuple[QueueRange, ...]


def ranges_between(start: Positions, end: Positions, new_at: Mapping[MessageQueue, int]) -> list[QueueRange]:
    """What lies between two positions, in the order of the queues.

    Args:
        new_at: where queues begin that ``start`` does not know, or that begin anew below it.
    """
    found: list[QueueRange] = []
    for queue in sort_queues(end):
        first = start.get(queue)
        if first is None or first > end[queue]:
            first = new_at.get(queue, 0)
        if first < end[queue]:
            found.append(QueueRange(queue, first, end[queue]))
    return found


def plan(
    ranges: Iterable[QueueRange],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
    join_below: int = JOIN_BELOW,
) -> list[Partition]:
    """Partitions that cover the ranges exactly, in order.

    Args:
        min_partitions: at least so many, where there are as many messages.
        max_records: messages of one partition at most.
        join_below: messages a partition should have before it gets a task of its own; 0 never joins.
    """
    pieces = [piece for piece in ranges if piece.length]
    counts = [1 if max_records is None else -(-piece.length // max_records) for piece in pieces]
    if min_partitions is not None:
        _raise_counts(pieces, counts, min_partitions)
    parts = [part for piece, count in zip(pieces, counts, strict=True) for part in _split(piece, count)]
    joined = _join(parts, join_below, min_partitions, max_records)
    if min_partitions is not None and len(joined) < min(min_partitions, len(parts)):
        return [(part,) for part in parts]
    return joined


def plan_by_number(ranges: Iterable[QueueRange]) -> list[Partition]:
    """One partition for the queues of one topic and number, on all brokers: all copies of a row lie in them.

    Empty ranges stay in it: copies may lie before them.
    """
    found: dict[tuple[str, int], list[QueueRange]] = {}
    for piece in ranges:
        found.setdefault((piece.queue.topic, piece.queue.queue_id), []).append(piece)
    return [tuple(pieces) for pieces in found.values() if any(piece.length for piece in pieces)]


def _raise_counts(pieces: Sequence[QueueRange], counts: list[int], wanted: int) -> None:
    """Splits whichever range has the longest parts until there are enough of them."""
    heap = [(-piece.length / counts[index], index) for index, piece in enumerate(pieces)]
    heapq.heapify(heap)
    missing = wanted - sum(counts)
    while missing > 0 and heap:
        _, index = heapq.heappop(heap)
        if counts[index] >= pieces[index].length:
            continue
        counts[index] += 1
        missing -= 1
        heapq.heappush(heap, (-pieces[index].length / counts[index], index))


def _split(piece: QueueRange, parts: int) -> list[QueueRange]:
    edges = [piece.start + piece.length * index // parts for index in range(parts + 1)]
    return [QueueRange(piece.queue, edges[index], edges[index + 1]) for index in range(parts)]


def _join(
    parts: Sequence[QueueRange], below: int, min_partitions: int | None, max_records: int | None
) -> list[Partition]:
    if min_partitions is not None:
        below = min(below, -(-sum(part.length for part in parts) // min_partitions))
    most = below if max_records is None else min(max_records, below)
    partitions: list[Partition] = []
    current: list[QueueRange] = []
    held = 0
    for part in parts:
        if current and held + part.length > most:
            partitions.append(tuple(current))
            current, held = [], 0
        current.append(part)
        held += part.length
    if current:
        partitions.append(tuple(current))
    return partitions
