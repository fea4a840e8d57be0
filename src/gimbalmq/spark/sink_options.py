"""What a sink can be told, and which of a table's columns it sends as what.

Both are settled on the driver, before any task runs: a misspelt option or a column of the wrong type
fails the query at once, not on an executor an hour later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
from gimbalmq.model.topics import FORBIDDEN_TO_SEND, group_problem, topic_problem
from gimbalmq.spark import columns
from gimbalmq.spark.option_values import (
    CONNECTION_OPTIONS,
    Connection,
    OptionReader,
    check_names,
    is_sparks_own,
    nearest,
)
from gimbalmq.spark.options import OPTIONS as SOURCE_OPTIONS
from gimbalmq.spark.options import Option

TABLE: Final = (
    *(option for option in SOURCE_OPTIONS if option.name in CONNECTION_OPTIONS),
    Option("topic", "", "where rows go that have no column `topic`, or a null in it"),
    Option("producerGroup", "spark_sink", "producer group of the tasks"),
    Option(
        "batchSize",
        "4000",
        "rows of one request at most",
    ),
    Option("batchBytes", "1m", "bytes of one request at most"),
    Option("sendsInFlight", "8", "requests of one task that wait for their answer at a time"),
    Option(
        "maxRowsPerSecond",
        "",
        "rows a second that each task sends at most; `coalesce(1)` makes it the rate of the whole write",
    ),
    Option("compressOver", "4096", "compress bodies of this many bytes and more; `off` for none"),
    Option("compression", "zlib", "`zlib`, `lz4` or `zstd`"),
    Option("compressionLevel", "5", "0 to 9"),
    Option(
        "maxMessageSize", "4m", "bytes of a body at most, before compression; the broker has the same limit"
    ),
    Option("sendTimeout", "10s", "how long each attempt of a request may take"),
    Option(
        "retries",
        "5",
        "further attempts of a request that failed, at another broker if its rows are not bound to a queue",
    ),
    Option("waitStore", "true", "answers wait for the flush and replication the broker is set to"),
    Option(
        "retryNotStoreOk",
        "false",
        "send again what was stored, but not flushed or replicated in the broker's time",
    ),
    Option("uniqueKeys", "false", "give each message a UNIQ_KEY too; without, its id is its place"),
    Option(
        "reservedProperties",
        "fail",
        "a row whose `properties` have names RocketMQ keeps for itself: `fail`, or `drop` these properties",
    ),
)

OPTIONS: Final = tuple(option.name for option in TABLE)

NEVER: Final = 2**31 - 1
"""As ``compressOver``: no body is compressed."""

_LARGEST_FRAME_BODY: Final = 15 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """A sink's options (the user's names are their camelCase).

    Attributes:
        topic: where rows go that name no topic of their own.
        producer_group: the group the tasks' producers belong to.
        batch_size: rows of one request at most.
        batch_bytes: bytes of one request at most.
        sends_in_flight: requests of a task that wait for their answer at a time.
        max_rows_per_second: of each task; None is as fast as it goes.
        compress_over: bodies of this many bytes or more are compressed.
        max_message_size: bytes of a body, before compression.
        send_timeout: seconds for each attempt of a request.
        retries: further attempts of a request that failed.
        wait_store: whether answers wait for the flush and replication the broker is set to.
        retry_not_store_ok: whether "stored, but not flushed or replicated in time" is a failure.
        unique_keys: whether each message also gets a UNIQ_KEY.
        drop_reserved: whether properties under RocketMQ's own names are left out instead of refused.
    """

    connection: Connection
    topic: str | None = None
    producer_group: str = "spark_sink"
    batch_size: int = 4000
    batch_bytes: int = 1 << 20
    sends_in_flight: int = 8
    max_rows_per_second: int | None = None
    compress_over: int = 4096
    compression: Compression = Compression.ZLIB
    compression_level: int = 5
    max_message_size: int = MAX_BODY_BYTES
    send_timeout: float = 10.0
    retries: int = 5
    wait_store: bool = True
    retry_not_store_ok: bool = False
    unique_keys: bool = False
    drop_reserved: bool = False

    @classmethod
    def read(cls, options: Mapping[str, str]) -> SinkSettings:
        """Raises ConfigError naming the option, its value and what would do."""
        # Spark adds `path` when save() or start() is given one.
        if any(name.lower() == "path" for name in options):
            raise ConfigError("path", options["path"], "a topic is written with option('topic', NAME).save()")
        own = [name for name in options if not is_sparks_own(name)]
        check_names(own, OPTIONS, what="the sink")
        reader = OptionReader(options)
        topic = reader.text("topic")
        if topic is not None:
            check_topic("topic", topic)
        group = reader.text("producerGroup", "spark_sink") or "spark_sink"
        problem = group_problem(group)
        if problem is not None:
            raise ConfigError("producerGroup", group, problem)
        rate = reader.optional_integer("maxRowsPerSecond", 1, 1_000_000_000)
        batch_size = reader.integer("batchSize", 4000, 1, 1_000_000)
        off = (reader.text("compressOver") or "").lower() in ("off", "never", "none")
        return cls(
            connection=Connection.read(reader),
            topic=topic,
            producer_group=group,
            # A rate is kept in steps of a tenth of a second's rows.
            batch_size=batch_size if rate is None else min(batch_size, max(1, rate // 10)),
            batch_bytes=reader.size("batchBytes", 1 << 20, 1024, _LARGEST_FRAME_BODY),
            sends_in_flight=reader.integer("sendsInFlight", 8, 1, 1000),
            max_rows_per_second=rate,
            compress_over=NEVER if off else reader.size("compressOver", 4096, 1, NEVER),
            compression=Compression.named(reader.text("compression", "zlib") or "zlib"),
            compression_level=reader.integer("compressionLevel", 5, 0, 9),
            max_message_size=reader.size("maxMessageSize", MAX_BODY_BYTES, 1, _LARGEST_FRAME_BODY),
            send_timeout=reader.duration("sendTimeout", 10.0),
            retries=reader.integer("retries", 5, 0, 1000),
            wait_store=reader.boolean("waitStore", True),
            retry_not_store_ok=reader.boolean("retryNotStoreOk", False),
            unique_keys=reader.boolean("uniqueKeys", False),
            drop_reserved=reader.choice("reservedProperties", "fail", ("fail", "drop")) == "drop",
        )


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
