"""Found by Spark through its name: makes ``format("rocketmq-store")`` known without registration."""

try:
    from gimbalmq.spark.store_source import StoreDataSource as DefaultSource
except ImportError:  # pragma: no cover - without the extra gimbalmq[spark]
    pass
else:
    __all__ = ["DefaultSource"]
