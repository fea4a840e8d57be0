"""Topics in Spark: source, sink and the commit-log source (extra ``gimbalmq[spark]``).

Spark finds ``format("rocketmq")`` and ``format("rocketmq-store")`` by the top-level modules
``pyspark_gimbalmq`` and ``pyspark_gimbalmq_store``; nothing has to be registered. Where another, broken
``pyspark_*`` module hides them, ``register(spark)`` does it by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gimbalmq.spark.java import ensure_java as ensure_java

__all__ = ["ensure_java", "register"]


def __getattr__(name: str) -> object:
    if name == "ensure_java":  # on demand: workers import this package, too, and start no Java
        from gimbalmq.spark.java import ensure_java

        return ensure_java
    raise AttributeError(f"module 'gimbalmq.spark' has no attribute {name!r}")


def register(spark: SparkSession) -> None:
    """Makes ``format("rocketmq")`` and ``format("rocketmq-store")`` known to a session by hand."""
    from gimbalmq.spark.source import RocketMQDataSource
    from gimbalmq.spark.store_source import StoreDataSource

    spark.dataSource.register(RocketMQDataSource)
    spark.dataSource.register(StoreDataSource)
