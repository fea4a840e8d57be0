"""What Spark is told of an archive: its options and columns, readers and writers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import DataFrame
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_type
from pyspark.sql.types import StructType

from gimbalmq.errors import ConfigError
from gimbalmq.spark.archive.log import ArchiveLog, local_folder
from gimbalmq.spark.archive.reader import ArchiveReader, ArchiveStreamReader
from gimbalmq.spark.archive.writer import ArchiveStreamWriter, ArchiveWriter
from gimbalmq.spark.declared import Given, option, options_of, read_values
from gimbalmq.spark.option_values import BOOLEAN, LISTED, Kind, integer
from gimbalmq.spark.refusal import or_refused
from gimbalmq.spark.worker import settle


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings:
    """Options of an archive, checked."""

    path: Path = option(
        Kind("path", lambda name, text: local_folder(text, name)),
        "the archive's folder, which all workers see; the argument of `load` and `save`",
        needed="the archive's folder",
    )
    partition_by: tuple[str, ...] | None = option(
        LISTED, "writing: columns whose values make folders, such as `topic,date`; without it there are none"
    )
    ordered: bool = option(
        BOOLEAN,
        "reading: all rows of a queue in one task and in the order of their offsets; otherwise each file is a "
        "task of its own",
        default="false",
    )
    max_batches_per_trigger: int | None = option(
        integer(1), "reading a stream: batches of the archive in one micro-batch; without it, all there are"
    )

    @classmethod
    def read(cls, options: Mapping[str, str], schema: StructType | None = None) -> ArchiveSettings:
        """Raises ConfigError naming the option, its value and what would do.

        Args:
            schema: of a table in a catalog, which says where the archive is (``archived_at``).
        """
        kept = {} if schema is None else _kept_in(schema)
        given = {name: value for name, value in options.items() if name.lower() not in kept}
        return cls(**read_values(cls, Given(kept | given, options_of(cls), what="the archive")))


_KEPT: Final = "rocketmq-archive"
"""Metadata of a column: options of the archive that a table of a catalog is."""


def archived_at(
    rows: DataFrame, path: str, *, partition_by: Sequence[str] = (), column: str = "topic"
) -> DataFrame:
    """Rows for a table whose format is ``rocketmq-archive``; says where the archive is.

    A catalog hands none of a table's options to sources in Python, only its columns. So what must be known of
    the archive rides in the metadata of a column.
    """
    kept = {"path": path, "partitionBy": ",".join(partition_by)}
    return rows.withMetadata(column, {_KEPT: {name: value for name, value in kept.items() if value}})


def _kept_in(schema: StructType) -> dict[str, str]:
    found = [field.metadata[_KEPT] for field in schema.fields if _KEPT in field.metadata]
    return {name.lower(): value for name, value in found[0].items()} if found else {}


class ArchiveDataSource(DataSource):
    """Spark's way into archives."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq-archive"

    def schema(self) -> StructType:
        settle()
        log = ArchiveLog(ArchiveSettings.read(self.options).path).needed()
        state = log.state()
        if not state.files:
            raise ConfigError("path", str(log.root), "the archive is empty, so that it has no columns yet")
        newest = max(state.files.values(), key=lambda file: file.pieces[-1].batch)
        return from_arrow_schema(parquet.read_schema(log.find(newest)))

    def reader(self, schema: StructType) -> DataSourceReader:
        settle()
        settings = ArchiveSettings.read(self.options, schema)
        return ArchiveReader(settings.path, _arrow(schema), ordered=settings.ordered)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        settle()

        def make() -> DataSourceStreamReader:
            settings = ArchiveSettings.read(self.options, schema)
            return ArchiveStreamReader(
                settings.path,
                _arrow(schema),
                ordered=settings.ordered,
                batches=settings.max_batches_per_trigger,
            )

        return or_refused(make)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        settle()
        return ArchiveWriter(*self._writing(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        settle()
        return ArchiveStreamWriter(*self._writing(schema, overwrite))

    def _writing(self, schema: StructType, overwrite: bool) -> tuple[Path, tuple[str, ...]]:
        settings = ArchiveSettings.read(self.options, schema)
        if overwrite:
            raise ConfigError("mode", "overwrite", "an archive only grows; use mode('append')")
        by = settings.partition_by or ()
        for name in by:
            if name not in schema.fieldNames():
                raise ConfigError(
                    "partitionBy", name, f"there is no such column; there are {schema.fieldNames()}"
                )
        return settings.path, by


def _arrow(schema: StructType) -> pa.Schema:
    return pa.schema(
        [
            pa.field(field.name, to_arrow_type(field.dataType, timezone="UTC"), field.nullable)
            for field in schema.fields
        ]
    )
