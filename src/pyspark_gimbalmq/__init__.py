"""Found by Spark through its name: makes ``format("rocketmq")`` known without registration.

One ``pyspark_*`` module that fails to import hides all others, so a missing part keeps quiet here
and speaks when the format is used.
"""

try:
    from gimbalmq.spark.source import RocketMQDataSource as DefaultSource
except ImportError:  # pragma: no cover - without the extra gimbalmq[spark]
    pass
else:
    __all__ = ["DefaultSource"]
