"""What a sink can be told, and which of a table's columns it sends as what.

Both are settled on the driver, before any task runs: a misspelt option or a column of the wrong type
fails the query at once, not on an executor an hour later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from gimbalmq.errors import ConfigError, MessageIllegalError
from gimbalmq.model.compression import Compression
from gimbalmq.model.message import MAX_BODY_BYTES
from gimbalmq.model.topics import FORBIDDEN_TO_SEND, topic_problem
from gimbalmq.spark import columns
from gimbalmq.spark.connection import Connection
from gimbalmq.spark.declared import Given, nested, option, options_of, read_values
from gimbalmq.spark.option_values import BOOLEAN, GROUP, Kind, choice, duration, integer, nearest, size

NEVER: Final = 2**31 - 1
"""As ``compressOver``: no body is compressed."""

_LARGEST_FRAME_BODY: Final = 15 << 20


def _topic(name: str, text: str) -> str:
    check_topic(name, text)
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """A sink's options, checked. Travels to executors."""

    topic: str | None = option(
        Kind("topic", _topic), "where rows go that have no column `topic`, or a null in it"
    )
    producer_group: str = option(GROUP, "producer group of the tasks", default="spark_sink")
    batch_size: int = option(
        integer(1, 1_000_000),
        "rows of one request at most",
        default="8000",
    )
    batch_bytes: int = option(size(1024, _LARGEST_FRAME_BODY), "bytes of one request at most", default="1m")
    # A slice of rows makes a request for each queue: if they are more than this, encoding waits for the broker.
    sends_in_flight: int = option(
        integer(1, 1000), "requests of one task that wait for their answer at a time", default="16"
    )
    max_rows_per_second: int | None = option(
        integer(1, 1_000_000_000),
        "rows a second that each task sends at most; `coalesce(1)` makes it the rate of the whole write",
    )
    compress_over: int = option(
        size(1, NEVER, off=NEVER),
        "compress bodies of this many bytes and more; `off` for none",
        default="4096",
    )
    compression: Compression = option(
        Kind("choice", lambda _name, text: Compression.named(text)),
        "`zlib`, `lz4` or `zstd`",
        default="zlib",
    )
    compression_level: int = option(integer(0, 9), "0 to 9", default="5")
    max_message_size: int = option(
        size(1, _LARGEST_FRAME_BODY),
        "bytes of a body at most, before compression; the broker has the same limit",
        default=f"{MAX_BODY_BYTES >> 20}m",
    )
    send_timeout: float = option(duration(), "how long each attempt of a request may take", default="10s")
    retries: int = option(
        integer(0, 1000),
        "further attempts of a request that failed, at another broker if its rows are not bound to a queue",
        default="5",
    )
    wait_store: bool = option(
        BOOLEAN, "answers wait for the flush and replication the broker is set to", default="true"
    )
    retry_not_store_ok: bool = option(
        BOOLEAN,
        "send again what was stored, but not flushed or replicated in the broker's time",
        default="false",
    )
    unique_keys: bool = option(
        BOOLEAN, "give each message a UNIQ_KEY too; without, its id is its place", default="false"
    )
    drop_reserved: bool = option(
        choice({"fail": False, "drop": True}),
        "a row whose `properties` have names RocketMQ keeps for itself: `fail`, or `drop` these properties",
        default="fail",
        name="reservedProperties",
    )
    connection: Connection = nested(Connection)

    @classmethod
    def read(cls, options: Mapping[str, str]) -> SinkSettings:
        """Raises ConfigError naming the option, its value and what would do."""
        # Spark adds `path` when save() or start() is given one.
        path = next((value for name, value in options.items() if name.lower() == "path"), None)
        if path is not None:
            raise ConfigError("path", path, "a topic is written with option('topic', NAME).save()")
        given = Given(options, options_of(cls), what="the sink")
        settings = cls(connection=Connection.read(given), **read_values(cls, given))
        rate = settings.max_rows_per_second
        if rate is None:
            return settings
        # A rate is kept in steps of a tenth of a second's rows.
        return replace(settings, batch_size=min(settings.batch_size, max(1, rate // 10)))


def check_topic(option: str, topic: str) -> None:
    problem = topic_problem(topic)
    if problem is None and topic in FORBIDDEN_TO_SEND:
        problem = "only the broker itself writes this topic; choose another"
    if problem is not None:
        raise ConfigError(option, topic, problem)


# --- columns -------------------------------------------------------------------------------------

_TEXT: Final = (StringType,)
_WHOLE: Final = (ByteType, ShortType, IntegerType, LongType)
_ROLES: Final[dict[str, tuple[type[DataType], ...]]] = {
    "body": (BinaryType, StringType),
    "topic": _TEXT,
    "key": _TEXT,
    "tags": _TEXT,
    "properties": (MapType,),
    "delayLevel": _WHOLE,
    "deliverTimestamp": (TimestampType, TimestampNTZType, LongType),
    "delayMs": _WHOLE,
    "shardingKey": _TEXT,
    "queueId": _WHOLE,
    "flag": _WHOLE,
}
_ALIASES: Final = {"value": "body"}
_IGNORED: Final = frozenset(name.lower() for name in columns.TYPES) - {name.lower() for name in _ROLES}
"""What the source tells of a message and nobody can choose: a table that was read can be written."""


def find_roles(schema: StructType, settings: SinkSettings) -> dict[str, int]:
    """Role to index of the column that plays it.

    Raises:
        MessageIllegalError: a column is unknown, twice there or of the wrong type, or one is missing.
    """
    spelt = {name.lower(): name for name in _ROLES} | _ALIASES
    roles: dict[str, int] = {}
    for index, field in enumerate(schema.fields):
        role = spelt.get(field.name.lower())
        if role is None:
            if field.name.lower() in _IGNORED:
                continue
            close = nearest(field.name, [*_ROLES, *_ALIASES])
            hint = f"did you mean {close}?" if close else f"there are {', '.join([*_ROLES, *_ALIASES])}"
            raise MessageIllegalError(f"the sink has no use for column {field.name!r}: {hint} Or drop() it")
        if role in roles:
            raise MessageIllegalError(f"two columns are the message's {role}: drop() one of them")
        _check_type(role, field.name, field.dataType)
        roles[role] = index
    if "body" not in roles:
        raise MessageIllegalError(
            f"the table has no column body (or value), only {', '.join(schema.fieldNames())}: "
            "select one, e.g. to_json(struct('*')).alias('body')"
        )
    if "topic" not in roles and settings.topic is None:
        raise ConfigError("topic", None, "give option('topic', NAME), or a column topic")
    if "deliverTimestamp" in roles and "delayMs" in roles:
        raise MessageIllegalError("columns deliverTimestamp and delayMs exclude each other: drop() one")
    return roles


def _check_type(role: str, name: str, found: DataType) -> None:
    allowed = _ROLES[role]
    fits = isinstance(found, allowed)
    if fits and isinstance(found, MapType):
        fits = isinstance(found.keyType, StringType) and isinstance(found.valueType, StringType)
    if not fits:
        wanted = (
            "map<string,string>" if MapType in allowed else " or ".join(_simple(kind) for kind in allowed)
        )
        raise MessageIllegalError(
            f"column {name} is {found.simpleString()}; {role} has to be {wanted}: cast it, e.g. "
            f"df.withColumn('{name}', col('{name}').cast('{wanted.partition(' or ')[0]}'))"
        )


def _simple(kind: type[DataType]) -> str:
    return kind().simpleString()
