"""Topics in Spark: source, sink, archives and the commit-log source (extra ``gimbalmq[spark]``).

Spark finds ``format("rocketmq")``, ``format("rocketmq-archive")`` and ``format("rocketmq-store")`` by the top-level
modules ``pyspark_gimbalmq``, ``pyspark_gimbalmq_archive`` and ``pyspark_gimbalmq_store``; nothing has to be registered.
If another, broken ``pyspark_*`` module hides them, ``register(spark)`` does it by hand.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gimbalmq.spark.java import ensure_java as ensure_java

__all__ = ["ensure_java", "missing_module", "need_extra", "register"]

_FORMATS: Final = ("pyspark", "pyarrow")
_PIPELINES: Final = (*_FORMATS, "yaml", "grpc")


def missing_module(*, pipelines: bool = False) -> str | None:
    """The first module of the extra ``gimbalmq[spark]`` that is not installed.

    Args:
        pipelines: whether pipelines are to be run, which need more than the formats.
    """
    return next((name for name in (_PIPELINES if pipelines else _FORMATS) if find_spec(name) is None), None)


def need_extra() -> None:
    """Raises ModuleNotFoundError with what to install, if the extra is not there."""
    missing = missing_module()
    if missing is not None:
        raise ModuleNotFoundError(
            f"gimbalmq.spark needs {missing}, which is not installed: pip install 'gimbalmq[spark]'",
            name=missing,
        )


def __getattr__(name: str) -> object:
    if name == "ensure_java":  # on demand: workers import this package, too, and start no Java
        from gimbalmq.spark.java import ensure_java

        return ensure_java
    raise AttributeError(f"module 'gimbalmq.spark' has no attribute {name!r}")


def register(spark: SparkSession) -> None:
    """Makes all formats known to a session by hand."""
    need_extra()
    from gimbalmq.spark.archive.source import ArchiveDataSource
    from gimbalmq.spark.source import RocketMQDataSource
    from gimbalmq.spark.store_source import StoreDataSource

    for source in (RocketMQDataSource, ArchiveDataSource, StoreDataSource):
        spark.dataSource.register(source)
