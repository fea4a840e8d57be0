"""Batches of an archive as slices of its files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.errors import RemoteProtocolError
from gimbalmq.spark.archive.log import ArchiveLog, DataFile, Piece, State
from gimbalmq.spark.worker import leave_if_spark_hung_up, settle, while_spark_listens

_STEP_ROWS: Final = 10_000
_RESTS_MS: Final = 2000
_PLACE: Final = ("topic", "broker", "queueId", "offset")


class Slice(NamedTuple):
    """A piece of a file to read."""

    file: DataFile
    piece: Piece


class ArchivePartition(InputPartition):
    """What one task reads.

    Attributes:
        sort: whether the slices overlap, so that only sorting gives each queue's order.
    """

    def __init__(self, slices: Sequence[Slice], *, sort: bool = False) -> None:
        self.slices = tuple(slices)
        self.sort = sort


# --- planning ------------------------------------------------------------------------------------


def slices_of(state: State, after: int, up_to: int) -> list[Slice]:
    """The rows of the batches ``after < batch <= up_to``, batch by batch."""
    found = [
        Slice(file, piece)
        for file in state.files.values()
        for piece in file.pieces
        if after < piece.batch <= up_to
    ]
    return sorted(
        found, key=lambda each: (each.piece.batch, each.file.folder, each.file.name, each.piece.first)
    )


def in_order(slices: Iterable[Slice]) -> list[ArchivePartition]:
    """Partitions that have all rows of a queue in one task, in the order of their offsets."""
    parts: list[ArchivePartition] = []
    for group in _sharing_queues(slices):
        ordered = sorted(group, key=lambda each: min((span.first for span in each.piece.spans), default=0))
        ordered.sort(key=lambda each: (each.piece.batch, each.file.folder))
        parts.append(ArchivePartition(ordered, sort=_overlap(ordered)))
    return parts


def _sharing_queues(slices: Iterable[Slice]) -> list[list[Slice]]:
    """Slices in groups, so that no queue lies in two groups."""
    groups: dict[int, list[Slice]] = {}
    group_of: dict[tuple[str, str, int], int] = {}
    for number, each in enumerate(slices):
        queues = [span[:3] for span in each.piece.spans]
        joined = {group_of[queue] for queue in queues if queue in group_of}
        merged = [one for other in sorted(joined) for one in groups.pop(other)]
        groups[number] = [*merged, each]
        for one in groups[number]:
            for span in one.piece.spans:
                group_of[span[:3]] = number
    return list(groups.values())


def _overlap(slices: Sequence[Slice]) -> bool:
    """Whether a queue's offsets do not simply go on from one slice to the next."""
    reached: dict[tuple[str, str, int], int] = {}
    for each in slices:
        for topic, broker, queue_id, first, last in each.piece.spans:
            if first <= reached.get((topic, broker, queue_id), -1):
                return True
            reached[topic, broker, queue_id] = last
    return False


# --- reading -------------------------------------------------------------------------------------


class _Reading:
    """What both kinds of reader do on executors."""

    def __init__(self, root: Path, schema: pa.Schema, *, ordered: bool) -> None:
        self.root = root
        self.arrow_schema = schema
        self.ordered = ordered

    @while_spark_listens
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, ArchivePartition):
            return  # Spark's stand-in for a plan without partitions
        settle()
        log = ArchiveLog(self.root)
        if partition.sort:
            yield from self._sorted(log, partition.slices)
            return
        for each in partition.slices:
            yield from read_slice(log, each, self.arrow_schema)

    def _sorted(self, log: ArchiveLog, slices: Sequence[Slice]) -> Iterator[pa.RecordBatch]:
        names = self.arrow_schema.names
        wanted = self.arrow_schema
        for name, kind in zip(_PLACE, (pa.string(), pa.string(), pa.int32(), pa.int64()), strict=True):
            if name not in names:
                wanted = wanted.append(pa.field(name, kind))
        batches = [batch for each in slices for batch in read_slice(log, each, wanted)]
        table = pa.Table.from_batches(batches, wanted).sort_by([(name, "ascending") for name in _PLACE])
        for batch in table.select(names).combine_chunks().to_batches(max_chunksize=_STEP_ROWS):
            yield pa.RecordBatch.from_arrays(batch.columns, schema=self.arrow_schema)

    def _planned(self, slices: list[Slice]) -> list[ArchivePartition]:
        return in_order(slices) if self.ordered else [ArchivePartition([each]) for each in slices]


def read_slice(log: ArchiveLog, wanted: Slice, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of one slice under the given schema; a column that the file does not have is null."""
    low, high = wanted.piece.first, wanted.piece.first + wanted.piece.rows
    with open(log.find(wanted.file), "rb") as opened, parquet.ParquetFile(opened) as file:
        present = [name for name in schema.names if name in file.schema_arrow.names]
        position = 0
        for number in range(file.num_row_groups):
            rows = file.metadata.row_group(number).num_rows
            start, position = position, position + rows
            if position <= low or start >= high:
                continue
            at = start
            for batch in file.iter_batches(_STEP_ROWS, row_groups=[number], columns=present):
                first, last = max(low - at, 0), min(high - at, batch.num_rows)
                at += batch.num_rows
                if first < last:
                    yield conform(batch.slice(first, last - first), schema)


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same rows with the columns and types of a schema."""
    columns = []
    for item in schema:
        index = batch.schema.get_field_index(item.name)
        if index < 0:
            columns.append(pa.nulls(batch.num_rows, item.type))
            continue
        column = batch.column(index)
        columns.append(column if column.type == item.type else column.cast(item.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class ArchiveReader(_Reading, DataSourceReader):
    """An archive as a table."""

    def partitions(self) -> Sequence[InputPartition]:
        log = ArchiveLog(self.root)
        if not log.exists():
            return []  # a table of the catalog that nothing was written to yet
        state = log.state()
        return self._planned(slices_of(state, 0, state.version))


class ArchiveStreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An archive as a stream: a position is the number of the last batch that was read."""

    def __init__(self, root: Path, schema: pa.Schema, *, ordered: bool, batches: int | None) -> None:
        super().__init__(root, schema, ordered=ordered)
        self.batches = batches
        self._target: int | None = None
        self._known: tuple[int, list[int]] = (0, [])

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_known": (0, [])}  # executors only read

    def initialOffset(self) -> dict[str, Any]:
        return {"batch": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = max(self._there(), default=0)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        done = _batch(start)
        ahead = [
            batch
            for batch in self._there()
            if batch > done and (self._target is None or batch <= self._target)
        ]
        if not ahead:
            return start
        return {"batch": ahead[-1] if self.batches is None else ahead[: self.batches][-1]}

    def _there(self) -> list[int]:
        """The batches there are. Spark asks a hundred times a second, so a log that rests is not read again."""
        log = ArchiveLog(self.root)
        if not log.exists():
            return []
        changed = log.changed_at()
        if changed != self._known[0]:
            batches = log.state().batches
            # What changed a moment ago may change once more without a sign of it.
            rests = SYSTEM_CLOCK.wall_ms() - changed // 10**6 > _RESTS_MS
            self._known = (changed if rests else 0, batches)
        return self._known[1]

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self._planned(slices_of(ArchiveLog(self.root).state(), _batch(start), _batch(end)))

    def stop(self) -> None:
        leave_if_spark_hung_up()


def _batch(position: dict[str, Any]) -> int:
    try:
        return int(position["batch"])
    except (KeyError, TypeError, ValueError):
        raise RemoteProtocolError(
            f"the checkpoint holds {position!r}, which is no position in an archive; "
            "was the checkpoint written by another source?"
        ) from None
