"""Which queue a row belongs to that nothing binds to one.

It follows from the row's hash, so a row that is written again goes where it went before, in whatever order the rows
come. The hash says the number of the queue; among the brokers that have it, each slot of rows prefers one. If a broker
is missing, its rows go to the queues of the same number at other brokers, and all other rows stay where they
are: copies of a row are always in queues of one number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gimbalmq.model.queues import MessageQueue
from gimbalmq.spark.row_hash import RowHashes, hash_rows, mixed

SLOTS: Final = 4096


def slots_of(hashes: RowHashes) -> NDArray[np.int64]:
    """Rows of one slot share a queue."""
    return (hashes.low & np.uint64(SLOTS - 1)).astype(np.int64)


class Homes:
    """The queues of one topic by slot.

    Attributes:
        queues: in the order of the route.
        lanes: for each slot, the index of its queue.
    """

    def __init__(self, queues: Sequence[MessageQueue]) -> None:
        self.queues = queues
        self._by_id: dict[int, list[int]] = {}
        for index, queue in enumerate(queues):
            self._by_id.setdefault(queue.queue_id, []).append(index)
        brokers = pa.array([queue.broker_name for queue in queues]).cast(pa.binary())
        self._seeds = hash_rows([brokers], len(queues)).high
        ids = sorted(self._by_id)
        slots = np.arange(SLOTS)
        self.lanes: NDArray[np.int64] = np.empty(SLOTS, np.int64)
        for place, queue_id in enumerate(ids):
            mine = slots[slots % len(ids) == place]
            self.lanes[mine] = self._preferred(self._by_id[queue_id], mine)

    def lanes_with(self, queue_id: int) -> NDArray[np.int64] | None:
        """For each slot, the index of its queue with this id; None if no broker has one."""
        found = self._by_id.get(queue_id)
        return None if found is None else self._preferred(found, np.arange(SLOTS))

    def _preferred(self, queues: list[int], slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of these queues, the one whose broker each slot likes best: no other broker has a say in it."""
        keys = mixed(slots.astype(np.uint64))
        liking = np.stack([mixed(keys + self._seeds[queue]) for queue in queues])
        chosen: NDArray[np.int64] = np.asarray(queues, np.int64)[liking.argmax(axis=0)]
        return chosen
