"""Rows into the files of an archive: a file for each task and partition, all of a batch in one step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from gimbalmq.spark.archive.log import ArchiveLog, DataFile, Piece, Span, staged_name
from gimbalmq.spark.worker import settle

_QUERY_ID: Final = "sql.streaming.queryId"
_MOST_OPEN: Final = 64
"""Files that a task writes at a time; each holds a row group in memory."""
_GROUP_BYTES: Final = 32 << 20
_PLACE: Final = ("topic", "broker", "queueId", "offset")
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"


@dataclass(slots=True)
class Written(WriterCommitMessage):
    """The staged files of one task, and the query that it belongs to."""

    query: str | None
    files: list[DataFile] = field(default_factory=list)


class _Writing:
    """What tasks of both kinds of query do."""

    def __init__(self, root: Path, partition_by: tuple[str, ...]) -> None:
        self.root = root
        self.partition_by = partition_by

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        settle()
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(_QUERY_ID)
        log = ArchiveLog(self.root)
        log.prepare()
        files = TaskFiles(log, self.partition_by)
        try:
            for batch in iterator:
                files.write(batch)
            return Written(query, files.close())
        except BaseException:
            files.discard()
            raise


class ArchiveWriter(_Writing, DataSourceArrowWriter):
    """Writes a table into an archive."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        ArchiveLog(self.root).add(_files(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        ArchiveLog(self.root).discard(_files(messages))


class ArchiveStreamWriter(_Writing, DataSourceStreamArrowWriter):
    """Writes a stream into an archive, each batch once, however often Spark repeats it."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        queries = [message.query for message in messages if isinstance(message, Written)]
        if queries:
            ArchiveLog(self.root).add(_files(messages), query=queries[0], batch=batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        ArchiveLog(self.root).discard(_files(messages))


def _files(messages: Sequence[WriterCommitMessage | None]) -> list[DataFile]:
    return [file for message in messages if isinstance(message, Written) for file in message.files]


class TaskFiles:
    """The files that one task writes, staged."""

    def __init__(self, log: ArchiveLog, partition_by: Sequence[str]) -> None:
        self._log = log
        self._by = list(partition_by)
        self._open: dict[str, _OpenFile] = {}
        self._done: list[DataFile] = []

    def write(self, batch: pa.RecordBatch) -> None:
        for folder, rows in self._split(batch):
            if folder not in self._open and len(self._open) >= _MOST_OPEN:
                self._close_all()
            if folder not in self._open:
                self._open[folder] = _OpenFile(self._log, folder, batch.schema)
            self._open[folder].write(rows)

    def _split(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Rows by the folder they belong to, in their order."""
        if not batch.num_rows:
            return
        if not self._by:
            yield "", batch
            return
        names = [_folder_part(name, batch.column(batch.schema.get_field_index(name))) for name in self._by]
        folders = pc.binary_join_element_wise(*names, "/").dictionary_encode()
        for code, folder in enumerate(folders.dictionary.to_pylist()):
            if len(folders.dictionary) == 1:
                yield folder, batch
            else:
                yield folder, batch.filter(pc.equal(folders.indices, code))

    def _close_all(self) -> None:
        self._done += [file.close() for file in self._open.values()]
        self._open.clear()

    def close(self) -> list[DataFile]:
        self._close_all()
        return self._done

    def discard(self) -> None:
        for file in self._open.values():
            file.abandon()
        self._log.discard(self._done)


def _folder_part(name: str, column: pa.Array) -> pa.Array:
    """``name=value`` as Hive writes it; each value is put into words once."""
    encoded = column.dictionary_encode()  # nulls are no part of the dictionary
    words = [f"{name}={quote(str(value))}" for value in encoded.dictionary.to_pylist()]
    words.append(f"{name}={_NULL}")
    return pa.array(words, pa.string()).take(encoded.indices.fill_null(len(words) - 1))


class _OpenFile:
    """One file: its row groups grow in memory until they are worth writing."""

    def __init__(self, log: ArchiveLog, folder: str, schema: pa.Schema) -> None:
        self._name = staged_name()
        self._folder = folder
        self._path = log.staged / self._name
        self._writer = parquet.ParquetWriter(self._path, schema)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._rows = 0
        self._spans: dict[tuple[str, str, int], tuple[int, int]] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        self._rows += batch.num_rows
        self._note(batch)
        if self._waiting_bytes >= _GROUP_BYTES:
            self._flush()

    def _note(self, batch: pa.RecordBatch) -> None:
        """Which offsets of which queues these rows are; a damaged row that does not know has none."""
        if not set(_PLACE) <= set(batch.schema.names):
            return
        places = pa.Table.from_batches([batch]).select(list(_PLACE)).drop_null()
        found = places.group_by(list(_PLACE[:3])).aggregate([("offset", "min"), ("offset", "max")])
        for row in found.to_pylist():
            queue = (row["topic"], row["broker"], row["queueId"])
            first, last = self._spans.get(queue, (row["offset_min"], row["offset_max"]))
            self._spans[queue] = (min(first, row["offset_min"]), max(last, row["offset_max"]))

    def _flush(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting)
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._waiting, self._waiting_bytes = [], 0

    def close(self) -> DataFile:
        self._flush()
        self._writer.close()
        spans = tuple(Span(*queue, *bounds) for queue, bounds in self._spans.items())
        path = f"{self._folder}/{self._name}" if self._folder else self._name
        return DataFile(path, self._path.stat().st_size, (Piece(0, 0, self._rows, spans),))

    def abandon(self) -> None:
        self._writer.close()
        self._path.unlink(missing_ok=True)
