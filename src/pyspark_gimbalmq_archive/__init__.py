"""Found by Spark through its name: makes ``format("rocketmq-archive")`` known without registration."""

try:
    from gimbalmq.spark.archive.source import ArchiveDataSource as DefaultSource
except ImportError:  # pragma: no cover - without the extra gimbalmq[spark]
    pass
else:
    __all__ = ["DefaultSource"]
