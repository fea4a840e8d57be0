"""Small files of an archive into large ones, folder by folder, while others read and write.

Rows are copied batch by batch as they are, so a joined file is its parts one behind the other, and the log
knows which rows of it each batch brought. A stream that reads the archive does not notice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import pyarrow as pa
from pyarrow import parquet

from gimbalmq.errors import DataLossError
from gimbalmq.spark.archive.log import ArchiveLog, DataFile, Piece, State, staged_name
from gimbalmq.spark.archive.reader import conform

_STEP_ROWS: Final = 10_000
_GROUP_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Join:
    """Files of one folder that become one."""

    folder: str
    files: tuple[DataFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def plan(state: State, target_bytes: int) -> list[Join]:
    """What is worth joining: in each folder the files below half the target, up to the target together."""
    small = [file for file in state.files.values() if file.size < target_bytes / 2]
    small.sort(key=lambda file: (file.folder, file.pieces[0].batch, file.name))
    joins: list[Join] = []
    for folder, files in groupby(small, key=lambda file: file.folder):
        taken: list[DataFile] = []
        total = 0
        for file in files:
            if taken and total + file.size > target_bytes:
                joins.append(Join(folder, tuple(taken)))
                taken, total = [], 0
            taken.append(file)
            total += file.size
        joins.append(Join(folder, tuple(taken)))
    return [join for join in joins if len(join.files) > 1]


def do(log: ArchiveLog, join: Join, on_bytes: Callable[[int], None] = lambda done: None) -> bool:
    """Joins files.

    Args:
        on_bytes: called after each file with its size.

    Returns:
        False if they were left as they are: somebody else has joined them, or their columns do not fit
        together.
    """
    schemas = [parquet.read_schema(log.find(file)) for file in join.files]
    try:
        schema = pa.unify_schemas(schemas)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return False
    name = staged_name()
    path = log.staged / name
    pieces: list[Piece] = []
    rows = 0
    try:
        with parquet.ParquetWriter(path, schema) as writer:
            for file in join.files:
                pieces += [piece._replace(first=piece.first + rows) for piece in file.pieces]
                before = rows
                for table in _groups(log, file, schema):
                    writer.write_table(table, row_group_size=max(1, table.num_rows))
                    rows += table.num_rows
                if rows - before != file.rows:
                    raise DataLossError(
                        f"{log.find(file)} has {rows - before} rows, and the archive's log says {file.rows}; nothing "
                        "was changed: restore the file"
                    )
                on_bytes(file.size)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    folder = "" if join.folder == "." else f"{join.folder}/"
    return log.swap(DataFile(f"{folder}{name}", path.stat().st_size, tuple(pieces)), join.files)


def _groups(log: ArchiveLog, file: DataFile, schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of a file in tables that make good row groups."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    with open(log.find(file), "rb") as opened, parquet.ParquetFile(opened) as source:
        for batch in source.iter_batches(_STEP_ROWS):
            waiting.append(conform(batch, schema))
            size += waiting[-1].nbytes
            if size >= _GROUP_BYTES:
                yield pa.Table.from_batches(waiting, schema)
                waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting, schema)
