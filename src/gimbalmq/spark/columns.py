"""The columns of a topic in Spark: names, types, and which of them a reader was asked for.

Spark compares Arrow schemas exactly, so no other module names these types.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

_TIME: Final = pa.timestamp("us", tz="UTC")

# What every reader can give, in the order of the default schema.
TYPES: Final[dict[str, pa.DataType]] = {
    "topic": pa.string(),
    "broker": pa.string(),
    "queueId": pa.int32(),
    "offset": pa.int64(),
    "key": pa.string(),
    "tags": pa.string(),
    "body": pa.binary(),
    "bornTimestamp": _TIME,
    "storeTimestamp": _TIME,
    "msgId": pa.string(),
    "reconsumeTimes": pa.int32(),
    # Only when asked for: by option, or by name in a schema of the user's.
    "properties": pa.map_(pa.string(), pa.string()),
    "flag": pa.int32(),  # the application's own number, which travels outside the properties
    "rowId": pa.string(),  # what our sink wrote beside each row, the same when the row is written again
    "decodeError": pa.string(),
}

DEFAULT: Final = tuple(TYPES)[:11]


def names_for(*, properties: bool, decode_error: bool) -> tuple[str, ...]:
    """The columns of a reader that was given no schema."""
    return (*DEFAULT, *(["properties"] if properties else []), *(["decodeError"] if decode_error else []))


_ALWAYS_THERE: Final = frozenset(
    {"topic", "broker", "queueId", "offset", "body", "msgId", "reconsumeTimes", "flag"}
)
"""What every sound record has. Times are not among them: what has no microseconds in 64 bits is null."""

ROW_ID_PROPERTY: Final = "SPARK_ROW_ID"
"""Message property of the sink, see ``row_ids``."""


def arrow_schema(names: Iterable[str]) -> pa.Schema:
    return pa.schema([(name, TYPES[name]) for name in names])


def table_schema(names: Iterable[str]) -> pa.Schema:
    """The schema to tell Spark: what can never be null is said to be so, for Spark then asks no row about it.

    Where damaged records are kept, with their ``decodeError``, anything may be missing.
    """
    whole = arrow_schema(names)
    if "decodeError" in whole.names:
        return whole
    return pa.schema([field.with_nullable(field.name not in _ALWAYS_THERE) for field in whole])
