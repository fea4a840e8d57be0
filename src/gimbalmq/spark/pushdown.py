"""Filters that Spark hands over: what they say of one column, and whether this process may take any."""

from __future__ import annotations

import sys
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from gimbalmq.spark.planning import QueueRange

_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


def filters_may_be_pushed() -> bool:
    """Whether this process plans with filters: if it does not, Spark refuses a reader that takes them."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHDOWN_WORKER in sys.modules or getattr(main, "name", None) == _PUSHDOWN_WORKER


class Limit:
    """What filters on one column let through: a closed range, and maybe only these values."""

    def __init__(self, low: Any = None, high: Any = None, values: frozenset[Any] | None = None) -> None:
        self.low = low
        self.high = high
        self.values = values

    def and_also(self, other: Limit) -> Limit:
        lows = [low for low in (self.low, other.low) if low is not None]
        highs = [high for high in (self.high, other.high) if high is not None]
        sets = [values for values in (self.values, other.values) if values is not None]
        return Limit(
            max(lows, default=None), min(highs, default=None), frozenset.intersection(*sets) if sets else None
        )

    def allows(self, value: Any) -> bool:
        return (
            (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.values is None or value in self.values)
        )

    def cut(self, wanted: QueueRange) -> list[QueueRange]:
        """The parts of a range whose offsets pass; an empty one does not begin behind the range."""
        queue, start, end = wanted
        if self.low is not None:
            start = min(max(start, self.low), end)
        if self.high is not None:
            end = min(end, self.high + 1)
        if self.values is None:
            return [QueueRange(queue, start, end)]
        return [QueueRange(queue, one, one + 1) for one in sorted(self.values) if start <= one < end]


_ORDERED: Final = frozenset({"queueId", "offset", "storeTimestamp"})
_EQUAL: Final = frozenset({"topic", "broker"}) | _ORDERED


def limit_of(pushed: Filter) -> tuple[str, Limit] | None:
    """A filter as a limit of one column; None if it is not for us."""
    attribute: tuple[str, ...] = getattr(pushed, "attribute", ())
    name = attribute[0] if len(attribute) == 1 else ""
    value = getattr(pushed, "value", None)
    if name not in _EQUAL or isinstance(pushed, IsNotNull) or value is None:
        return None
    whole = name in ("queueId", "offset")
    if isinstance(pushed, EqualTo):
        if name == "storeTimestamp":
            return name, Limit(value, value)
        return name, Limit(values=frozenset({value}))
    if isinstance(pushed, In) and name != "storeTimestamp" and None not in pushed.value:
        return name, Limit(values=frozenset(pushed.value))
    if name in _ORDERED:
        if isinstance(pushed, GreaterThan):
            return name, Limit(low=value + 1 if whole else value)
        if isinstance(pushed, GreaterThanOrEqual):
            return name, Limit(low=value)
        if isinstance(pushed, LessThan):
            return name, Limit(high=value - 1 if whole else value)
        if isinstance(pushed, LessThanOrEqual):
            return name, Limit(high=value)
    return None
