"""What Spark gets instead of a stream reader that cannot be made.

Spark's runner of Python streams stops a reader at its end even if there never was one, and the error of that buries the
reason. So the reason is raised by a reader's first method.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from gimbalmq.errors import ConfigError
from gimbalmq.spark.worker import leave_if_spark_hung_up


class RefusedReader(DataSourceStreamReader):
    """Raises what was wrong as soon as it is asked for anything."""

    def __init__(self, error: ConfigError) -> None:
        self.error = error

    def initialOffset(self) -> dict[str, Any]:
        raise self.error

    def latestOffset(self, *_: object) -> dict[str, Any]:
        raise self.error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        raise self.error

    def read(self, partition: InputPartition) -> Any:
        raise self.error

    def stop(self) -> None:
        leave_if_spark_hung_up()


def or_refused(make: Callable[[], DataSourceStreamReader]) -> DataSourceStreamReader:
    """The reader, or one that says why there is none."""
    try:
        return make()
    except ConfigError as error:
        return RefusedReader(error)
