"""What a source can be told: every option once, with its meaning, and the frozen settings made of them.

Names are those of Spark's Kafka source where there is one, in RocketMQ's words. ``OPTIONS`` is what the
documentation is made from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from gimbalmq.errors import ConfigError
from gimbalmq.filter.tags import parse_tags
from gimbalmq.model.queues import MessageQueue, sort_queues
from gimbalmq.model.topics import group_problem, topic_problem
from gimbalmq.spark import columns
from gimbalmq.spark.decode import OnError
from gimbalmq.spark.offsets import EARLIEST, LATEST
from gimbalmq.spark.option_values import Connection, OptionReader, check_names, read_time_ms
from gimbalmq.spark.planning import JOIN_BELOW

DEFAULT_GROUP: Final = "spark-rocketmq-source"
MAX_PULL_BYTES: Final = 8 << 20

Use = Literal["", "batch", "stream"]


@dataclass(frozen=True, slots=True)
class Option:
    """One line of the table of options.

    Attributes:
        default: as a user would write it; empty where there is none.
        use: the kind of query it is for; empty means both.
    """

    name: str
    default: str
    meaning: str
    use: Use = ""


OPTIONS: Final = (
    Option("namesrv", "", "name servers, `host:port;host:port`; needed"),
    Option("subscribe", "", "topics, separated by commas; `topic` and the argument of `load` do the same"),
    Option("subscribePattern", "", "topics whose whole name matches this regular expression"),
    Option("assign", "", 'queues, `{"topic": {"broker": [0, 1]}}`'),
    Option(
        "startingOffsets",
        "batch: earliest, stream: latest",
        "where a new query begins: `earliest`, `latest`, `group` (where `consumerGroup` is; queues it has not "
        'read begin at the earliest), or `{"topic": {"broker": {"queueId": n}}}`, -2 for earliest and -1 for '
        "latest; a number may stand for all queues of a broker, or all brokers of a topic",
    ),
    Option("endingOffsets", "latest", "where the query ends: as above", "batch"),
    Option("startingTimestamp", "", "begin at messages stored at or after this time: ms since 1970, or ISO"),
    Option("endingTimestamp", "", "end before messages stored at or after this time", "batch"),
    Option("startingOffsetsByTimestamp", "", "the same for each queue: JSON as above, of times"),
    Option("endingOffsetsByTimestamp", "", "the same for each queue: JSON as above, of times", "batch"),
    Option(
        "startingOffsetsByTimestampStrategy",
        "error",
        "when a queue has no message that late: `error`, or `latest` to begin at its end",
    ),
    Option(
        "failOnDataLoss",
        "true",
        "fail when messages were removed before they were read, or a topic was deleted; `false` logs the gap "
        "and goes on from the earliest",
    ),
    Option(
        "maxOffsetsPerTrigger", "", "messages of one micro-batch at most, shared out by backlog", "stream"
    ),
    Option("minOffsetsPerTrigger", "", "messages that must wait before there is a micro-batch", "stream"),
    Option("maxTriggerDelay", "15m", "but no longer than this", "stream"),
    Option(
        "maxBytesPerTrigger",
        "",
        "bytes of one micro-batch, about: by the mean size of the next messages of each queue",
        "stream",
    ),
    Option("minPartitions", "", "partitions at least: long ranges are split"),
    Option("maxRecordsPerPartition", "", "messages of one partition at most"),
    Option(
        "minRecordsPerPartition",
        str(JOIN_BELOW),
        "queues share a partition until it has this many messages; 0 gives each its own",
    ),
    Option(
        "consumerGroup",
        "",
        "consumer group that a stream's progress is committed to, for tools that watch lag; the checkpoint "
        "stays the truth",
    ),
    Option("groupIdPrefix", DEFAULT_GROUP, "consumer group that messages are pulled under without one"),
    Option("includeProperties", "false", "add the column `properties`, a map of all message properties"),
    Option("tags", "*", "only messages with these tags, `A || B`; filtered by the broker"),
    Option(
        "onDecodeError",
        "fail",
        "a message that cannot be decoded: `fail`, `skip`, or `keep` it with what is readable and the reason "
        "in the column `decodeError`",
    ),
    Option("checkCrc", "false", "compare each body with the checksum the broker stored"),
    Option("dropDuplicates", "false", "drop rows our sink has written twice (column `rowId`)"),
    Option(
        "duplicateLookback",
        "100000",
        "how many messages of others may lie between two copies of a row in a queue; a query fails if it would have "
        "to look back further",
    ),
    Option("fetchRetries", "10", "further attempts when a broker or name server does not answer"),
    Option("retryInterval", "200ms", "pause before the second attempt; doubled each time, up to 5 s"),
    Option("pullTimeout", "30s", "how long one pull may take"),
    Option("requestTimeout", "5s", "how long any other request may take"),
    Option("metadataTtl", "5s", "how long routes are believed; new queues are found that late", "stream"),
    Option("pullBytes", "2m", "bytes asked for with one pull, and about the size of an Arrow batch"),
    Option(
        "pullsInFlight", "32", "pulls of one task under way at most; Apache's broker gives 32 messages each"
    ),
    Option("connectTimeout", "3s", "how long making a connection may take"),
    Option("accessKey", "", "ACL user; with `secretKey`"),
    Option("secretKey", "", "ACL password"),
    Option("securityToken", "", "ACL token of temporary keys"),
    Option("tls", "off", "`off`, `verify` (or true), or `trust` to believe any certificate"),
    Option("tlsTrustFile", "", "certificates to believe instead of the system's"),
    Option("tlsCertFile", "", "our own certificate, where brokers ask for one"),
    Option("tlsKeyFile", "", "its key"),
    Option("tlsKeyPassword", "", "password of an encrypted key"),
    Option("tlsCheckHost", "true", "with `verify`: a certificate must be for the address it is met at"),
)

_ALIASES: Final = {
    "topic": "subscribe",
    "path": "subscribe",
    "fetchoffset.numretries": "fetchRetries",
    "fetchoffset.retryintervalms": "retryInterval",
}
"""Other names of options: what `load` calls its argument, and the Kafka source's own."""


# --- what is read, and from where ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Topics:
    """Which topics: named, by pattern, or down to the queue; exactly one of the three."""

    named: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[MessageQueue, ...] = ()

    @property
    def known(self) -> tuple[str, ...]:
        """Topics that do not have to be looked up."""
        return self.named or tuple(dict.fromkeys(queue.topic for queue in self.assigned))


@dataclass(frozen=True, slots=True)
class Place:
    """A place in each queue.

    Attributes:
        option: the option that said so, for errors.
        kind: ``offsets`` and ``times`` have a table.
        table: by topic, by broker, by queue id; a number at any level holds for all below it.
        everywhere: a time for all queues.
    """

    option: str
    kind: Literal["earliest", "latest", "group", "offsets", "times"]
    table: Mapping[str, Any] = field(default_factory=dict)
    everywhere: int | None = None

    def of(self, queue: MessageQueue) -> int | None:
        """The number for a queue; None where the table has none."""
        if self.everywhere is not None:
            return self.everywhere
        found: Any = self.table
        for key in (queue.topic, queue.broker_name, str(queue.queue_id)):
            if not isinstance(found, Mapping):
                break
            found = found.get(key)
        return found if isinstance(found, int) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """A source's options, checked; the user's names are their camelCase. Travels to executors."""

    connection: Connection
    topics: Topics
    starting: Place | None = None
    """None: earliest in a batch, latest in a stream."""
    ending: Place | None = None
    no_later_message: Literal["error", "latest"] = "error"
    fail_on_data_loss: bool = True
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay: float = 900.0
    max_bytes_per_trigger: int | None = None
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    min_records_per_partition: int = JOIN_BELOW
    consumer_group: str | None = None
    pull_group: str = DEFAULT_GROUP
    include_properties: bool = False
    tags: str = "*"
    on_decode_error: OnError = "fail"
    check_crc: bool = False
    drop_duplicates: bool = False
    duplicate_lookback: int = 100_000
    fetch_retries: int = 10
    retry_interval: float = 0.2
    pull_timeout: float = 30.0
    request_timeout: float = 5.0
    metadata_ttl: float = 5.0
    pull_bytes: int = 2 << 20
    pulls_in_flight: int = 32

    @classmethod
    def read(cls, options: Mapping[str, str], *, streaming: bool | None) -> SourceSettings:
        """Raises ConfigError naming the option, its value and what would do.

        Args:
            streaming: None while Spark asks for the columns and has not said which kind of query it is.
        """
        options = _under_own_names(options)
        check_names(options, [option.name for option in OPTIONS], what="the source")
        reader = OptionReader(options)
        if streaming:
            _refuse_in_streams(reader)
        group = reader.text("consumerGroup")
        starting = _place(reader, "starting")
        if starting is not None and starting.kind == "latest" and streaming is False:
            raise ConfigError("startingOffsets", "latest", "a batch that begins at the end is empty")
        ending = _place(reader, "ending")
        if ending is not None and ending.kind == "earliest":
            raise ConfigError("endingOffsets", "earliest", "a batch that ends at the beginning is empty")
        for place in (starting, ending):
            if place is not None and place.kind == "group" and group is None:
                raise ConfigError(place.option, "group", "say which group with consumerGroup")
        prefix = reader.text("groupIdPrefix", DEFAULT_GROUP) or DEFAULT_GROUP
        for name, value in (("consumerGroup", group), ("groupIdPrefix", prefix)):
            problem = None if value is None else group_problem(value)
            if problem is not None:
                raise ConfigError(name, value, problem)
        least = reader.optional_integer("minOffsetsPerTrigger", 1, 2**63 - 1)
        most = reader.optional_integer("maxOffsetsPerTrigger", 1, 2**63 - 1)
        if least is not None and most is not None and least > most:
            raise ConfigError(
                "minOffsetsPerTrigger", least, f"it must not exceed maxOffsetsPerTrigger, {most}"
            )
        byte_limit = None
        if "maxBytesPerTrigger" in reader:
            byte_limit = reader.size("maxBytesPerTrigger", 0, 1, 2**63 - 1)
        strategy = reader.choice("startingOffsetsByTimestampStrategy", "error", ("error", "latest"))
        on_error = reader.choice("onDecodeError", "fail", ("fail", "skip", "keep"))
        return cls(
            connection=Connection.read(reader),
            topics=_topics(reader),
            starting=starting,
            ending=ending,
            no_later_message="latest" if strategy == "latest" else "error",
            fail_on_data_loss=reader.boolean("failOnDataLoss", True),
            max_offsets_per_trigger=most,
            min_offsets_per_trigger=least,
            max_trigger_delay=reader.duration("maxTriggerDelay", 900.0, 0.0, 31 * 86_400.0),
            max_bytes_per_trigger=byte_limit,
            min_partitions=reader.optional_integer("minPartitions", 1, 1_000_000),
            max_records_per_partition=reader.optional_integer("maxRecordsPerPartition", 1, 2**63 - 1),
            min_records_per_partition=reader.integer("minRecordsPerPartition", JOIN_BELOW, 0, 2**63 - 1),
            consumer_group=group,
            pull_group=group or prefix,
            include_properties=reader.boolean("includeProperties", False),
            tags=_tags(reader.text("tags", "*") or "*"),
            on_decode_error="fail" if on_error == "fail" else "skip" if on_error == "skip" else "keep",
            check_crc=reader.boolean("checkCrc", False),
            drop_duplicates=reader.boolean("dropDuplicates", False),
            duplicate_lookback=reader.integer("duplicateLookback", 100_000, 0, 1_000_000_000),
            fetch_retries=reader.integer("fetchRetries", 10, 0, 1000),
            retry_interval=reader.duration("retryInterval", 0.2, 0.0, 600.0),
            pull_timeout=reader.duration("pullTimeout", 30.0),
            request_timeout=reader.duration("requestTimeout", 5.0),
            metadata_ttl=reader.duration("metadataTtl", 5.0, 0.0),
            pull_bytes=reader.size("pullBytes", 2 << 20, 1024, MAX_PULL_BYTES),
            pulls_in_flight=reader.integer("pullsInFlight", 32, 1, 1024),
        )

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns of a reader that was given no schema."""
        names = columns.DEFAULT
        if self.include_properties:
            names += ("properties",)
        if self.on_decode_error == "keep":
            names += ("decodeError",)
        return names


def _under_own_names(options: Mapping[str, str]) -> dict[str, str]:
    """Options with aliases replaced; two names for one thing are refused."""
    named: dict[str, str] = {}
    said: dict[str, str] = {}
    for name, value in options.items():
        own = _ALIASES.get(name.lower(), name).lower()
        if own in named and named[own] != value:
            raise ConfigError(
                name, value, f"{said[own]}={named[own]!r} says the same thing; give one of them"
            )
        named[own], said[own] = value, name
    return named


def _refuse_in_streams(reader: OptionReader) -> None:
    for option in OPTIONS:
        if option.use == "batch" and option.name in reader:
            raise ConfigError(
                option.name, reader.text(option.name), "a stream has no end; use it with spark.read"
            )


def _tags(expression: str) -> str:
    try:
        parse_tags(expression)
    except ValueError as error:
        raise ConfigError("tags", expression, str(error)) from None
    return expression


# --- topics --------------------------------------------------------------------------------------


def _topics(reader: OptionReader) -> Topics:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if reader.text(name) is not None]
    if len(given) != 1:
        raise ConfigError(
            "subscribe",
            ", ".join(given) or None,
            "say what to read with exactly one of subscribe (or load('topic')), subscribePattern and assign",
        )
    pattern = reader.text("subscribePattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError("subscribePattern", pattern, f"no regular expression: {error}") from None
        return Topics(pattern=pattern)
    if given == ["assign"]:
        return Topics(assigned=_assigned(reader.needed("assign", "")))
    named = reader.listed("subscribe")
    for topic in named:
        problem = topic_problem(topic)
        if problem is not None:
            raise ConfigError("subscribe", topic, problem)
    if not named:
        raise ConfigError("subscribe", reader.text("subscribe"), "name at least one topic")
    return Topics(named=named)


def _assigned(text: str) -> tuple[MessageQueue, ...]:
    shape = 'use {"topic": {"broker": [0, 1]}}'
    queues: set[MessageQueue] = set()
    for topic, brokers in _json_object("assign", text, shape).items():
        if not isinstance(brokers, dict):
            raise ConfigError("assign", text, shape)
        for broker, ids in brokers.items():
            if not isinstance(ids, list) or not all(_is_count(number) for number in ids):
                raise ConfigError("assign", text, shape)
            queues.update(MessageQueue(topic, broker, number) for number in ids)
    if not queues:
        raise ConfigError("assign", text, f"it names no queue; {shape}")
    return tuple(sort_queues(queues))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _json_object(option: str, text: str, shape: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        raise ConfigError(option, text, shape) from None
    if not isinstance(found, dict):
        raise ConfigError(option, text, shape)
    return found


# --- places --------------------------------------------------------------------------------------


def _place(reader: OptionReader, edge: Literal["starting", "ending"]) -> Place | None:
    """Time for all queues before times by queue before offsets, as in the Kafka source."""
    option = f"{edge}Timestamp"
    text = reader.text(option)
    if text is not None:
        return Place(option, "times", everywhere=read_time_ms(option, text))
    option = f"{edge}OffsetsByTimestamp"
    text = reader.text(option)
    if text is not None:
        return Place(option, "times", _table(option, text, _time))
    option = f"{edge}Offsets"
    text = reader.text(option)
    if text is None:
        return None
    match text.lower():
        case "earliest":
            return Place(option, "earliest")
        case "latest":
            return Place(option, "latest")
        case "group":
            return Place(option, "group")
    lowest = EARLIEST if edge == "starting" else LATEST

    def offset(name: str, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
            raise ConfigError(
                name,
                value,
                f"use offsets from {lowest} on" + (", -2 is the earliest" if lowest == -2 else ""),
            )
        return value

    return Place(option, "offsets", _table(option, text, offset))


def _time(option: str, value: object) -> int:
    if isinstance(value, str):
        return read_time_ms(option, value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(option, value, "use milliseconds since 1970 or an ISO time")
    return value


def _table(option: str, text: str, number: Any) -> dict[str, Any]:
    words = "earliest, latest, group or " if option.endswith("Offsets") else ""
    shape = f'use {words}{{"topic": {{"broker": {{"queueId": n}}}}}}'

    def level(found: dict[str, Any], depth: int) -> dict[str, Any]:
        return {
            key: level(value, depth + 1) if isinstance(value, dict) and depth < 3 else number(option, value)
            for key, value in found.items()
        }

    return level(_json_object(option, text, shape), 1)
