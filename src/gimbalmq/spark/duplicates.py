"""Which rows of a topic the sink wrote twice.

All copies of a row lie in queues of one number, on whichever brokers. So a task that reads the queues of one number
together sees them all: it remembers the ids it has met in its ranges, and looks back from where the ranges begin.
It reads the ranges side by side, by store time. One after the other, it would have to remember the whole of the first.

How far it looks back: until ``lookback`` messages in a row belong to none of the batches it reads; earlier, if it has
met an older batch of each of their queries, because a stream writes its batches one after the other (or a message
stored before a batch write began). If an older batch has to exist and was not met that far back, a first copy
may lie even further back, and that is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gimbalmq.errors import RocketMQError
from gimbalmq.model.queues import MessageQueue
from gimbalmq.spark.planning import QueueRange
from gimbalmq.spark.row_hash import Met, hash_rows
from gimbalmq.spark.row_ids import Group, groups_of

REMEMBERED: Final = 2_000_000
"""Ids in one table; what is older is forgotten when nothing can repeat it."""

_AT_LEAST: Final = 10_000
"""Messages looked back over even if an older batch is met at once: tasks that Spark gave up may write late."""

_CLOCKS_DIFFER_MS: Final = 600_000

Look = Callable[[QueueRange], tuple[list[pa.RecordBatch], int]]


class LookbackError(RocketMQError):
    """What lies before a range may hold first copies, further back than was looked."""


class Duplicates:
    """Finds them in the ranges of one task.

    Args:
        ranges: what the task reads.
        look: gives the columns ``rowId`` and ``storeTimestamp`` of a range, and the first offset of it that the
            broker still has.
        lookback: messages of other batches that may lie between two copies of a row.
    """

    def __init__(self, ranges: Iterable[QueueRange], look: Look, lookback: int) -> None:
        self._seen = _Seen(lookback)
        self._backs = [_Back(wanted, look, lookback, self._seen) for wanted in ranges]
        self._groups: set[Group | None] = set()

    def first_copies(self, row_ids: pa.Array) -> NDArray[np.bool_]:
        """Which of the next rows have not come before; a row without id is always one."""
        found, _ = groups_of(row_ids)
        if not self._groups.issuperset(found):
            self._groups.update(found)
            for back in self._backs:
                back.look_for(self._groups)
        return self._seen.take(row_ids, found)


class _Seen:
    """Ids that came before, in tables that are forgotten one after the other."""

    def __init__(self, lookback: int) -> None:
        self._lookback = lookback
        self._tables: list[Met] = [Met()]
        self._rows = 0
        self._last_row: list[dict[Group | None, int]] = [{}]
        """For each table: its batches, and the row at which it met each of them last."""
        self._last: dict[Group, int] = {}
        """The row at which any table met a batch last."""
        self._newest: dict[str, int] = {}

    def take(self, row_ids: pa.Array, groups: Iterable[Group | None]) -> NDArray[np.bool_]:
        """Adds ids; which of them are new."""
        self._rows += len(row_ids)
        for group in groups:
            self._last_row[-1][group] = self._rows
            if group is not None:
                self._last[group] = self._rows
                self._newest[group.query] = max(self._newest.get(group.query, 0), group.batch)
        valid = np.asarray(row_ids.is_valid())
        ids = row_ids if row_ids.null_count == 0 else row_ids.drop_null()
        hashes = hash_rows([ids.cast(pa.binary())], len(ids))
        new = self._tables[-1].are_new(hashes)
        for table in self._tables[:-1]:
            new &= ~table.have(hashes)
        result = np.ones(len(row_ids), bool)
        result[valid] = new
        if self._tables[-1].size > REMEMBERED:
            self._turn_over()
        return result

    def _turn_over(self) -> None:
        kept = [index for index, met in enumerate(self._last_row) if self._may_come_again(met)]
        self._tables = [*(self._tables[index] for index in kept), Met()]
        self._last_row = [*(self._last_row[index] for index in kept), {}]

    def _may_come_again(self, met: dict[Group | None, int]) -> bool:
        """Whether a batch of a table is the newest of its query, or was met not too long ago by any table.

        The rows of one batch may fill several tables, and when they come again they begin with those of the first.
        """
        return any(
            self._rows - (row if group is None else self._last[group]) <= max(self._lookback, _AT_LEAST)
            or (group is not None and group.since_ms is None and self._newest[group.query] == group.batch)
            for group, row in met.items()
        )


class _Back:
    """The way back from the beginning of one range."""

    def __init__(self, wanted: QueueRange, look: Look, lookback: int, seen: _Seen) -> None:
        self._queue: MessageQueue = wanted.queue
        self._look = look
        self._lookback = lookback
        self._seen = seen
        self._start = self._at = wanted.start
        self._lowest: dict[Group | None, int] = {}
        """The lowest offset, about, at which each batch was met."""
        self._oldest: dict[str, int] = {}
        self._stored_ms: int | None = None

    def look_for(self, groups: set[Group | None]) -> None:
        """Goes back as far as copies of these batches may lie.

        Raises:
            LookbackError: it would have to go further than ``lookback``.
        """
        step = min(_AT_LEAST, max(1, self._lookback))
        while self._at > 0 and self._must_go_on(groups):
            low = max(0, self._at - step)
            batches, begins = self._look(QueueRange(self._queue, low, self._at))
            for batch in batches:
                self._note(batch, low)
            self._at = 0 if begins > low else low  # what retention has taken is no first copy any more
            step = min(2 * step, 16 * _AT_LEAST)

    def _note(self, batch: pa.RecordBatch, low: int) -> None:
        row_ids, stored = batch.column(0), batch.column(1)
        found, _ = groups_of(row_ids)
        self._seen.take(row_ids, found)
        for group in found:
            self._lowest[group] = low
            if group is not None:
                self._oldest[group.query] = min(self._oldest.get(group.query, group.batch), group.batch)
        if len(stored) > stored.null_count:
            first = int(np.asarray(stored.drop_null().cast(pa.int64())).min()) // 1000
            self._stored_ms = first if self._stored_ms is None else min(first, self._stored_ms)

    def _must_go_on(self, groups: set[Group | None]) -> bool:
        quiet = (
            min((self._lowest.get(group, self._start) for group in groups), default=self._start) - self._at
        )
        unproved = [group for group in groups if not self._has_seen_before(group)]
        if quiet < min(_AT_LEAST, self._lookback):
            return True
        if not unproved:
            return False
        if quiet < self._lookback:
            return True
        certain = [
            group for group in unproved if group is not None and group.since_ms is None and group.batch
        ]
        if certain:
            raise LookbackError(
                f"{self._queue}: the {quiet} messages before offset {self._start} hold no older batch of the query "
                f"{certain[0].query}, whose batch {certain[0].batch} is read: a row of it may have been written "
                f"before them, too; raise duplicateLookback, which is {self._lookback}"
            )
        return False

    def _has_seen_before(self, group: Group | None) -> bool:
        """Whether something was met that is older than every copy of a batch."""
        if group is None:
            return False
        if group.since_ms is not None:
            return self._stored_ms is not None and self._stored_ms < group.since_ms - _CLOCKS_DIFFER_MS
        return self._oldest.get(group.query, group.batch) < group.batch
