"""What a source can be told: the frozen settings, whose fields are the options.

Names are those of Spark's Kafka source if it has such an option, in RocketMQ's words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from gimbalmq.errors import ConfigError
from gimbalmq.model.queues import MessageQueue, sort_queues
from gimbalmq.spark import columns
from gimbalmq.spark.connection import Connection
from gimbalmq.spark.declared import Given, Option, made_of, nested, option, options_of, read_values
from gimbalmq.spark.offsets import EARLIEST, LATEST
from gimbalmq.spark.option_values import (
    BOOLEAN,
    GROUP,
    PATTERN,
    TAGS,
    TEXT,
    TIME_MS,
    TOPICS,
    Kind,
    choice,
    duration,
    integer,
    json_object,
    read_time_ms,
    size,
)
from gimbalmq.spark.planning import FEWEST_CORES, FULL_ROWS, LEAST_ROWS

if TYPE_CHECKING:
    from gimbalmq.spark.decode import OnError  # only tasks load what decodes

MAX_PULL_BYTES: Final = 8 << 20

ON_ERROR: Final[Kind[OnError]] = choice({"fail": "fail", "skip": "skip", "keep": "keep"})


# --- what is read, and from where ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicChoice:
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
        """The number for a queue; None if the table has none."""
        if self.everywhere is not None:
            return self.everywhere
        found: Any = self.table
        for key in (queue.topic, queue.broker_name, str(queue.queue_id)):
            if not isinstance(found, Mapping):
                break
            found = found.get(key)
        return found if isinstance(found, int) else None


# --- options that become a setting together ------------------------------------------------------

_SUBSCRIBE: Final = Option(
    "subscribe",
    TOPICS,
    "topics, separated by commas; `topic` and the argument of `load` do the same",
    aliases=("topic", "path"),
)
_PATTERN: Final = Option(
    "subscribePattern", PATTERN, "topics whose whole name matches this regular expression"
)
_ASSIGN: Final = Option("assign", TEXT, 'queues, `{"topic": {"broker": [0, 1]}}`')

_STARTING_OFFSETS: Final = Option(
    "startingOffsets",
    TEXT,
    "where a new query begins: `earliest`, `latest`, `group` (where `consumerGroup` is; queues it has not "
    'read begin at the earliest), or `{"topic": {"broker": {"queueId": n}}}`, -2 for earliest and -1 for '
    "latest; a number may stand for all queues of a broker, or all brokers of a topic",
    said_default="batch: earliest, stream: latest",
)
_ENDING_OFFSETS: Final = Option(
    "endingOffsets", TEXT, "where the query ends: as above", said_default="latest", use="batch"
)
_STARTING_TIME: Final = Option(
    "startingTimestamp", TIME_MS, "begin at messages stored at or after this time: ms since 1970, or ISO"
)
_ENDING_TIME: Final = Option(
    "endingTimestamp", TIME_MS, "end before messages stored at or after this time", use="batch"
)
_STARTING_TIMES: Final = Option(
    "startingOffsetsByTimestamp", TEXT, "the same for each queue: JSON as above, of times"
)
_ENDING_TIMES: Final = Option(
    "endingOffsetsByTimestamp", TEXT, "the same for each queue: JSON as above, of times", use="batch"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """A source's options, checked. Travels to executors."""

    topics: TopicChoice = made_of(_SUBSCRIBE, _PATTERN, _ASSIGN)
    starting: Place | None = made_of(_STARTING_OFFSETS, _STARTING_TIME, _STARTING_TIMES, otherwise=None)
    """None: earliest in a batch, latest in a stream."""
    ending: Place | None = made_of(_ENDING_OFFSETS, _ENDING_TIME, _ENDING_TIMES, otherwise=None)
    no_later_message: Literal["error", "latest"] = option(
        choice({"error": "error", "latest": "latest"}),
        "when a queue has no message that late: `error`, or `latest` to begin at its end",
        default="error",
        name="startingOffsetsByTimestampStrategy",
    )
    fail_on_data_loss: bool = option(
        BOOLEAN,
        "fail when messages were removed before they were read, or a topic was deleted; `false` logs the gap "
        "and goes on from the earliest",
        default="true",
    )
    max_offsets_per_trigger: int | None = option(
        integer(1), "messages of one micro-batch at most, shared out by backlog", use="stream"
    )
    min_offsets_per_trigger: int | None = option(
        integer(1), "messages that must wait before there is a micro-batch", use="stream"
    )
    max_trigger_delay: float = option(
        duration(0.0, 31 * 86_400.0), "but no longer than this", default="15m", use="stream"
    )
    max_bytes_per_trigger: int | None = option(
        size(1),
        "bytes of one micro-batch, about: by the mean size of the next messages of each queue",
        use="stream",
    )
    min_partitions: int | None = option(integer(1, 1_000_000), "partitions at least: long ranges are split")
    max_records_per_partition: int | None = option(integer(1), "messages of one partition at most")
    min_records_per_partition: int | None = option(
        integer(0),
        "queues share a partition until it has about this many messages; 0 gives each its own. Unset: "
        f"as many partitions as the driver's machine has cores, {FEWEST_CORES} at least, if they have at least "
        f"{LEAST_ROWS} and at most {FULL_ROWS} messages each, else fewer or more",
    )
    consumer_group: str | None = option(
        GROUP,
        "consumer group that a stream's progress is committed to, for tools that watch lag; the checkpoint "
        "stays the truth",
    )
    group_id_prefix: str = option(
        GROUP, "consumer group that messages are pulled under without one", default="spark-rocketmq-source"
    )
    include_properties: bool = option(
        BOOLEAN, "add the column `properties`, a map of all message properties", default="false"
    )
    tags: str = option(TAGS, "only messages with these tags, `A || B`; filtered by the broker", default="*")
    on_decode_error: OnError = option(
        ON_ERROR,
        "a message that cannot be decoded: `fail`, `skip`, or `keep` it with what is readable and the reason "
        "in the column `decodeError`",
        default="fail",
    )
    check_crc: bool = option(
        BOOLEAN, "compare each body with the checksum the broker stored", default="false"
    )
    drop_duplicates: bool = option(
        BOOLEAN, "drop rows our sink has written twice (column `rowId`)", default="false"
    )
    duplicate_lookback: int = option(
        integer(0, 1_000_000_000),
        "how many messages of others may lie between two copies of a row in a queue; a query fails if it would have "
        "to look back further",
        default="100000",
    )
    fetch_retries: int = option(
        integer(0, 1000),
        "further attempts when a broker or name server does not answer",
        default="10",
        aliases=("fetchOffset.numRetries",),
    )
    retry_interval: float = option(
        duration(0.0, 600.0),
        "pause before the second attempt; doubled each time, up to 5 s",
        default="200ms",
        aliases=("fetchOffset.retryIntervalMs",),
    )
    pull_timeout: float = option(duration(), "how long one pull may take", default="30s")
    request_timeout: float = option(duration(), "how long any other request may take", default="5s")
    metadata_ttl: float = option(
        duration(0.0),
        "how long routes are believed; new queues are found that late",
        default="5s",
        use="stream",
    )
    pull_bytes: int = option(
        size(1024, MAX_PULL_BYTES),
        "bytes asked for with one pull, and about the size of an Arrow batch",
        default="4m",
    )
    pulls_in_flight: int = option(
        integer(1, 1024),
        "pulls of one task under way at most; Apache's broker gives 32 messages each",
        default="32",
    )
    connection: Connection = nested(Connection)

    @classmethod
    def read(cls, options: Mapping[str, str], *, streaming: bool | None) -> SourceSettings:
        """Raises ConfigError naming the option, its value and what would do.

        Args:
            streaming: None while Spark asks for the columns and has not said which kind of query it is.
        """
        given = Given(options, options_of(cls), what="the source")
        if streaming:
            _refuse_in_streams(given)
        starting = _place(given, "starting", _STARTING_TIME, _STARTING_TIMES, _STARTING_OFFSETS)
        if starting is not None and starting.kind == "latest" and streaming is False:
            raise ConfigError("startingOffsets", "latest", "a batch that begins at the end is empty")
        ending = _place(given, "ending", _ENDING_TIME, _ENDING_TIMES, _ENDING_OFFSETS)
        if ending is not None and ending.kind == "earliest":
            raise ConfigError("endingOffsets", "earliest", "a batch that ends at the beginning is empty")
        settings = cls(
            connection=Connection.read(given),
            topics=_topics(given),
            starting=starting,
            ending=ending,
            **read_values(cls, given),
        )
        for place in (starting, ending):
            if place is not None and place.kind == "group" and settings.consumer_group is None:
                raise ConfigError(place.option, "group", "say which group with consumerGroup")
        least, most = settings.min_offsets_per_trigger, settings.max_offsets_per_trigger
        if least is not None and most is not None and least > most:
            raise ConfigError(
                "minOffsetsPerTrigger", least, f"it must not exceed maxOffsetsPerTrigger, {most}"
            )
        return settings

    @property
    def pull_group(self) -> str:
        """The group that messages are pulled under."""
        return self.consumer_group or self.group_id_prefix

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns of a reader that was given no schema."""
        return columns.names_for(
            properties=self.include_properties, decode_error=self.on_decode_error == "keep"
        )


def _refuse_in_streams(given: Given) -> None:
    for declared in options_of(SourceSettings):
        if declared.use == "batch" and declared in given:
            raise ConfigError(
                declared.name, given.text(declared), "a stream has no end; use it with spark.read"
            )


# --- topics --------------------------------------------------------------------------------------


def _topics(given: Given) -> TopicChoice:
    said = [each.name for each in (_SUBSCRIBE, _PATTERN, _ASSIGN) if given.text(each) is not None]
    if len(said) != 1:
        raise ConfigError(
            "subscribe",
            ", ".join(said) or None,
            "say what to read with exactly one of subscribe (or load('topic')), subscribePattern and assign",
        )
    text = given.text(_ASSIGN)
    if text is not None:
        return TopicChoice(assigned=_assigned(text))
    return TopicChoice(named=given.value(_SUBSCRIBE) or (), pattern=given.value(_PATTERN))


def _assigned(text: str) -> tuple[MessageQueue, ...]:
    shape = 'use {"topic": {"broker": [0, 1]}}'
    queues: set[MessageQueue] = set()
    for topic, brokers in json_object("assign", text, shape).items():
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


# --- places --------------------------------------------------------------------------------------


def _place(
    given: Given,
    edge: Literal["starting", "ending"],
    time: Option[int],
    times: Option[str],
    offsets: Option[str],
) -> Place | None:
    """Time for all queues before times by queue before offsets, as in the Kafka source."""
    everywhere = given.value(time)
    if everywhere is not None:
        return Place(time.name, "times", everywhere=everywhere)
    text = given.text(times)
    if text is not None:
        return Place(times.name, "times", _table(times.name, text, _time))
    text = given.text(offsets)
    if text is None:
        return None
    match text.lower():
        case "earliest":
            return Place(offsets.name, "earliest")
        case "latest":
            return Place(offsets.name, "latest")
        case "group":
            return Place(offsets.name, "group")
    lowest = EARLIEST if edge == "starting" else LATEST

    def offset(name: str, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
            raise ConfigError(
                name,
                value,
                f"use offsets from {lowest} on" + (", -2 is the earliest" if lowest == -2 else ""),
            )
        return value

    return Place(offsets.name, "offsets", _table(offsets.name, text, offset))


def _time(name: str, value: object) -> int:
    if isinstance(value, str):
        return read_time_ms(name, value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(name, value, "use milliseconds since 1970 or an ISO time")
    return value


def _table(name: str, text: str, number: Any) -> dict[str, Any]:
    words = "earliest, latest, group or " if name.endswith("Offsets") else ""
    shape = f'use {words}{{"topic": {{"broker": {{"queueId": n}}}}}}'

    def level(found: dict[str, Any], depth: int) -> dict[str, Any]:
        return {
            key: level(value, depth + 1) if isinstance(value, dict) and depth < 3 else number(name, value)
            for key, value in found.items()
        }

    return level(json_object(name, text, shape), 1)
