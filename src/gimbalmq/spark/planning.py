"""Ranges of offsets into input partitions.

A task costs Spark and its Python worker about as much as reading ten thousand messages. So short ranges share a task:
few tasks with many messages each, as long as there are enough tasks for the cores to share. Ranges are split if that is
asked for.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from gimbalmq.model.queues import MessageQueue, sort_queues
from gimbalmq.spark.offsets import Positions

LEAST_ROWS: Final = 4000
"""Messages that are worth a task, if there are few in all."""
FULL_ROWS: Final = 250_000
"""Messages of a task whose cost no longer matters."""
FEWEST_CORES: Final = 4
"""So many cores are counted on at least: a batch has a task for each before tasks grow beyond LEAST_ROWS."""


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
    min_records: int | None = None,
    cores: int = FEWEST_CORES,
) -> list[Partition]:
    """Partitions that cover the ranges exactly, in order.

    Args:
        min_partitions: at least so many, if there are as many messages.
        max_records: messages of one partition at most.
        min_records: messages that a partition should have, about, before there is another; 0 never joins. If it is
            None, that follows from how many there are.
        cores: that probably share the partitions: each should get one before they grow.
    """
    pieces = [piece for piece in ranges if piece.length]
    counts = [1 if max_records is None else -(-piece.length // max_records) for piece in pieces]
    if min_partitions is not None:
        _raise_counts(pieces, counts, min_partitions)
    parts = [part for piece, count in zip(pieces, counts, strict=True) for part in _split(piece, count)]
    if min_records is None:
        total = sum(part.length for part in parts)
        min_records = min(max(LEAST_ROWS, total // max(cores, FEWEST_CORES)), FULL_ROWS)
    joined = _join(parts, min_records, min_partitions or 1, max_records)
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
    parts: Sequence[QueueRange], min_records: int, min_partitions: int, max_records: int | None
) -> list[Partition]:
    """Neighbours share partitions of about one size: each goes to the one that its middle falls into."""
    if min_records == 0:
        return [(part,) for part in parts]
    total = sum(part.length for part in parts)
    size = total / max(1, -(-total // min_records), min_partitions)
    partitions: list[list[QueueRange]] = []
    place, held, before = -1, 0, 0
    for part in parts:
        mine = int((before + part.length / 2) / size)
        before += part.length
        if mine > place or (max_records is not None and held + part.length > max_records):
            partitions.append([])
            place, held = mine, 0
        partitions[-1].append(part)
        held += part.length
    return [tuple(partition) for partition in partitions]
