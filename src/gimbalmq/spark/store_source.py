"""``format("rocketmq-store")``: a broker's store folder as a table, without the broker.

A task maps a piece of a commit-log file and decodes it where it lies. The folder may be ours or
Apache's, closed, crashed or in use; what is read ends at the last record that was whole when the query
was planned.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from gimbalmq.errors import ConfigError
from gimbalmq.filter.tags import parse_tags
from gimbalmq.model.topics import (
    DLQ_PREFIX,
    OFFSET_MOVED_TOPIC,
    RETRY_PREFIX,
    TRANS_CHECK_MAX_TOPIC,
    is_system_topic,
)
from gimbalmq.spark import columns
from gimbalmq.spark.declared import Given, Option, made_of, option, options_of, read_values
from gimbalmq.spark.decode import OnError, decode
from gimbalmq.spark.log_ranges import (
    QUEUES_BELOW,
    EntryRange,
    LogFile,
    MappedFile,
    ScanRange,
    StoreFolder,
    read_entries,
    split_scans,
    steps,
)
from gimbalmq.spark.option_values import (
    BOOLEAN,
    LISTED,
    PATTERN,
    TAGS,
    TIME_MS,
    Kind,
    integer,
    size,
    word,
)
from gimbalmq.spark.options import ON_ERROR
from gimbalmq.spark.pushdown import Limit, filters_may_be_pushed, limit_of
from gimbalmq.spark.source import checked_schema
from gimbalmq.spark.worker import settle, while_spark_listens
from gimbalmq.store.vectors import gather

_STEP_BYTES: Final = 2 << 20
"""About what is decoded at a time: the best RecordBatch has some thousand rows."""

_CONFIG_PLACES: Final = ("broker.conf", "config/broker.conf", "../conf/broker.conf", "../broker.conf")
_BROKER_NAME: Final = re.compile(r"^\s*brokerName\s*=\s*(\S+)", re.MULTILINE)


def _tag_set(name: str, text: str) -> frozenset[str] | None:
    return parse_tags(TAGS.read(name, text)).tags


_PATH: Final = Option(
    "path",
    LISTED,
    "store folders (`storePathRootDir`), separated by commas; the argument of `load`",
    needed="a broker's storePathRootDir",
)
_BROKER_NAMES: Final = Option(
    "brokerName",
    LISTED,
    "for the column `broker`, one for each path; else from a broker.conf, or the folder's name",
)
_SUBSCRIBE: Final = Option(
    "subscribe",
    LISTED,
    "topics, separated by commas; `topic` does the same; without it, all",
    aliases=("topic",),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """Options of the store source, checked."""

    paths: tuple[str, ...] = made_of(_PATH)
    brokers: tuple[str, ...] = made_of(_BROKER_NAMES)
    topics: frozenset[str] | None = made_of(_SUBSCRIBE, otherwise=None)
    """None means by pattern, or all."""
    pattern: str | None = option(
        PATTERN, "topics whose whole name matches this regular expression", name="subscribePattern"
    )
    include_internal: bool = option(
        BOOLEAN,
        "read what brokers keep for themselves too: retries, dead letters, delays, transactions; a topic that "
        "is named is read in any case",
        default="false",
    )
    low_ms: int | None = option(
        TIME_MS, "messages stored at or after this time: ms since 1970, or ISO", name="startingTimestamp"
    )
    high_ms: int | None = option(TIME_MS, "messages stored before this time", name="endingTimestamp")
    tags: frozenset[str] | None = option(
        Kind("tags", _tag_set), "only messages with these tags, `A || B`", default="*"
    )
    include_properties: bool = option(
        BOOLEAN, "add the column `properties`, a map of all message properties", default="false"
    )
    on_error: OnError = option(
        ON_ERROR,
        "a record that is damaged: `fail`, `skip`, or `keep` it with what is readable and the reason in the "
        "column `decodeError`; a torn end is none",
        default="fail",
        name="onDecodeError",
    )
    check_crc: bool = option(
        BOOLEAN, "compare each body with the checksum the broker stored", default="false"
    )
    min_partitions: int | None = option(integer(1, 1_000_000), "partitions at least")
    max_bytes: int = option(
        size(4096, 1 << 40),
        "bytes of the log for one partition at most",
        default="64m",
        name="maxBytesPerPartition",
    )
    read_through: str = option(
        word("auto", "log", "queues"),
        "`log` scans the commit log, `queues` follows the topics' queue entries; `auto` does the cheaper one",
        default="auto",
    )

    @classmethod
    def read(cls, options: Mapping[str, str]) -> StoreSettings:
        """Raises ConfigError naming the option, its value and what would do."""
        given = Given(options, options_of(cls), what="the store source")
        paths = given.value(_PATH) or ()
        brokers = given.value(_BROKER_NAMES) or ()
        named = given.value(_SUBSCRIBE) or ()
        if brokers and len(brokers) != len(paths):
            raise ConfigError(
                "brokerName", ", ".join(brokers), f"give one name for each of {len(paths)} paths"
            )
        settings = cls(
            paths=paths,
            brokers=brokers or tuple(_broker_name(path) for path in paths),
            topics=frozenset(named) or None,
            **read_values(cls, given),
        )
        if settings.topics and settings.pattern is not None:
            raise ConfigError("subscribePattern", settings.pattern, "give either topics or a pattern")
        return settings

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns of a reader that was given no schema."""
        return columns.names_for(properties=self.include_properties, decode_error=self.on_error == "keep")

    def takes(self, topic: str) -> bool:
        """Whether a topic is asked for."""
        if self.topics is not None:
            return topic in self.topics
        if not self.include_internal and is_internal(topic):
            return False
        return self.pattern is None or re.fullmatch(self.pattern, topic) is not None


def is_internal(topic: str) -> bool:
    """Whether brokers keep it for themselves, or for a group."""
    return (
        is_system_topic(topic)
        or topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        or topic in (TRANS_CHECK_MAX_TOPIC, OFFSET_MOVED_TOPIC)
    )


def _broker_name(path: str) -> str:
    """From a broker.conf beside the store, else the folder's own name."""
    for place in _CONFIG_PLACES:
        try:
            found = _BROKER_NAME.search((Path(path) / place).read_text("utf-8", "replace"))
        except OSError:
            continue
        if found is not None:
            return found[1]
    return Path(path).resolve().name


class StoreDataSource(DataSource):
    """Spark's way into store folders."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq-store"

    def schema(self) -> StructType:
        settle()
        return from_arrow_schema(columns.table_schema(StoreSettings.read(self.options).column_names))

    def reader(self, schema: StructType) -> DataSourceReader:
        settle()
        settings = StoreSettings.read(self.options)
        # Spark refuses a reader that takes filters if it does not push any.
        kind = PushdownStoreReader if filters_may_be_pushed() else StoreReader
        return kind(settings, checked_schema(schema))


class StorePartition(InputPartition):
    """What one task reads of one folder.

    Attributes:
        topics: exact names to read; None where every topic of the log is met with ``takes``.
    """

    def __init__(
        self,
        broker: str,
        scans: tuple[ScanRange, ...] = (),
        entries: tuple[EntryRange, ...] = (),
        files: tuple[LogFile, ...] = (),
        topics: frozenset[str] | None = None,
    ) -> None:
        self.broker = broker
        self.scans = scans
        self.entries = entries
        self.files = files
        self.topics = topics


class StoreReader(DataSourceReader):
    """Plans on the driver, reads on executors."""

    def __init__(self, settings: StoreSettings, schema: pa.Schema) -> None:
        self.settings = settings
        self.arrow_schema = schema
        self.queue_ids: Limit | None = None
        self.low: int | None = None
        self.high: int | None = None

    # --- planning ------------------------------------------------------------------------------

    def partitions(self) -> Sequence[InputPartition]:
        plans = [
            self._plan(StoreFolder(path), broker)
            for path, broker in zip(self.settings.paths, self.settings.brokers, strict=True)
        ]
        total = sum(plan.size for plan in plans)
        piece = self.settings.max_bytes
        if self.settings.min_partitions is not None:
            piece = max(1, min(piece, -(-total // self.settings.min_partitions)))
        return [part for plan in plans for part in plan.cut(piece)]

    def _plan(self, folder: StoreFolder, broker: str) -> _Plan:
        settings = self.settings
        scans = folder.scans(settings.low_ms, settings.high_ms)
        if not scans or (settings.topics is not None and not settings.topics):
            return _Plan(broker, [], [], [], None)
        known = folder.topics()
        topics = settings.topics
        if topics is None and known is not None:
            # What is in no queue any more was deleted; it is read only when it is named.
            topics = frozenset(topic for topic in known if settings.takes(topic))
            unwritten = folder.queues_end() < folder.end
            if unwritten:
                topics = None  # a topic may be so new that its queue has not reached the disk
        plan = _Plan(broker, scans, [], [], topics)
        if topics is not None and settings.read_through != "log":
            return self._through_queues(folder, plan, topics) or plan
        return plan

    def _through_queues(self, folder: StoreFolder, plan: _Plan, topics: frozenset[str]) -> _Plan | None:
        """The plan that follows queue entries, if it is the cheaper one."""
        log_bytes = sum(scan.high - scan.low for scan in plan.scans)
        first = plan.scans[0].base + plan.scans[0].low
        last = min(plan.scans[-1].base + plan.scans[-1].high, folder.queues_end())
        found: list[tuple[EntryRange, float]] = []
        wanted_bytes = 0.0
        for topic in sorted(topics):
            queues = folder.queues(topic)
            if not queues:
                return None  # deleted, or never written: only the log knows
            for queue in queues:
                if self.queue_ids is not None and not self.queue_ids.allows(queue.queue_id):
                    continue
                entries = queue.between(first, max(first, last))
                if entries.first < entries.last:
                    size = queue.mean_size(entries)
                    found.append((entries, size))
                    wanted_bytes += size * (entries.last - entries.first)
        if self.settings.read_through != "queues" and wanted_bytes > QUEUES_BELOW * log_bytes:
            return None
        # Behind the part whose entries are sure to be there, the log itself is read.
        rest = [
            replace(scan, low=max(scan.low, last - scan.base))
            for scan in plan.scans
            if scan.base + scan.high > last
        ]
        return _Plan(plan.broker, rest, found, folder.files, topics)

    # --- reading -------------------------------------------------------------------------------

    @while_spark_listens
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, StorePartition):
            return  # Spark's stand-in for a plan without partitions
        settle()
        for scan in partition.scans:
            yield from self._scan(partition, scan)
        if partition.entries:
            yield from self._follow(partition)

    def _scan(self, partition: StorePartition, scan: ScanRange) -> Iterator[pa.RecordBatch]:
        mapped = MappedFile(scan.path)
        try:
            for low, high in steps(mapped.view, scan, _STEP_BYTES):
                yield from self._decode(mapped.view[low:high], partition, scan.base + low)
        finally:
            mapped.close()

    def _follow(self, partition: StorePartition) -> Iterator[pa.RecordBatch]:
        """Reads the records that queue entries point to, in the order they lie in the log."""
        pairs = [read_entries(wanted) for wanted in partition.entries]
        places = np.concatenate([place for place, _ in pairs])
        sizes = np.concatenate([size for _, size in pairs])
        order = np.argsort(places, kind="stable")
        places, sizes = places[order], sizes[order]
        for path, base, length in partition.files:
            low, high = np.searchsorted(places, [base, base + length]).tolist()
            if low == high:
                continue
            mapped = MappedFile(path)
            try:
                ends = np.cumsum(sizes[low:high])
                at = 0
                while at < high - low:
                    before = int(ends[at - 1]) if at else 0
                    to = max(at + 1, int(np.searchsorted(ends, before + _STEP_BYTES, "right")))
                    part = slice(low + at, low + to)
                    data = gather(mapped.map, places[part] - base, sizes[part])
                    yield from self._decode(memoryview(data), partition, None)
                    at = to
            finally:
                mapped.close()

    def _decode(
        self, data: memoryview, partition: StorePartition, base: int | None
    ) -> Iterator[pa.RecordBatch]:
        settings = self.settings
        names: list[str] = self.arrow_schema.names
        judged = partition.topics is None
        batch = decode(
            data,
            [*names, "topic"] if judged else names,
            broker=partition.broker,
            low=self.low,
            high=self.high,
            topics=partition.topics,
            tags=settings.tags,
            store_low_ms=settings.low_ms,
            store_high_ms=settings.high_ms,
            on_error=settings.on_error,
            check_crc=settings.check_crc,
            skip_unborn=True,
            base=base,
        )
        if judged:
            batch = _of_topics(batch, settings.takes)
        if batch.num_rows:
            yield pa.RecordBatch.from_arrays(batch.columns[: len(names)], schema=self.arrow_schema)


def _of_topics(batch: pa.RecordBatch, takes: Callable[[str], bool]) -> pa.RecordBatch:
    """The rows whose topic, the last column, is asked for; each topic is judged once."""
    encoded = batch.column(batch.num_columns - 1).dictionary_encode()
    judged = [takes(topic) for topic in encoded.dictionary.to_pylist()]
    if all(judged):
        return batch
    # A damaged row that has no topic is kept: nobody can say that it was not asked for.
    table = np.array([*judged, True])
    codes = np.asarray(encoded.indices.fill_null(len(judged)))
    return batch.filter(pa.array(table[codes]))


class PushdownStoreReader(StoreReader):
    """As its parent, leaving out what filters on topic, queue, offset and store time exclude."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        limits: dict[str, Limit] = {}
        for pushed in filters:
            found = limit_of(pushed)
            if found is None:
                yield pushed
                continue
            name, limit = found
            limits[name] = limit if name not in limits else limits[name].and_also(limit)
            # Rows are filtered by topic and offset to the letter, by the others only about.
            exact = name == "topic" or (name == "offset" and limit.values is None)
            if not exact or self.settings.on_error == "keep":
                yield pushed
        self._take(limits)

    def _take(self, limits: dict[str, Limit]) -> None:
        settings = self.settings
        topic = limits.get("topic")
        if topic is not None and topic.values is not None:
            named = frozenset(value for value in topic.values if settings.takes(value))
            settings = replace(settings, topics=named, pattern=None)
        times = limits.get("storeTimestamp")
        if times is not None:
            low, high = _milliseconds(times.low), _milliseconds(times.high)
            if low is not None:
                settings = replace(settings, low_ms=max(low, settings.low_ms or low))
            if high is not None:
                bound = high + 1
                settings = replace(
                    settings, high_ms=bound if settings.high_ms is None else min(bound, settings.high_ms)
                )
        offsets = limits.get("offset")
        if offsets is not None:
            self.low = offsets.low
            self.high = None if offsets.high is None else offsets.high + 1
            if offsets.values:
                self.low = max(min(offsets.values), min(offsets.values) if self.low is None else self.low)
                most = max(offsets.values) + 1
                self.high = most if self.high is None else min(self.high, most)
        self.queue_ids = limits.get("queueId")
        self.settings = settings


def _milliseconds(moment: Any) -> int | None:
    """Whole milliseconds at or before a filter's time."""
    return None if moment is None else int(np.datetime64(_utc(moment), "ms").astype(np.int64))


def _utc(moment: Any) -> Any:
    return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)


class _Plan:
    """What is read of one folder, before it is cut into partitions."""

    def __init__(
        self,
        broker: str,
        scans: list[ScanRange],
        entries: list[tuple[EntryRange, float]],
        files: list[LogFile],
        topics: frozenset[str] | None,
    ) -> None:
        self.broker = broker
        self.scans = scans
        self.entries = entries
        self.files = files
        self.topics = topics

    @property
    def size(self) -> int:
        """Bytes of the log to look at."""
        return sum(scan.high - scan.low for scan in self.scans) + round(
            sum((wanted.last - wanted.first) * size for wanted, size in self.entries)
        )

    def cut(self, piece_bytes: int) -> Iterator[StorePartition]:
        for scan in split_scans(self.scans, piece_bytes):
            yield StorePartition(self.broker, scans=(scan,), topics=self.topics)
        gathered: list[EntryRange] = []
        room = float(piece_bytes)
        for wanted, mean in self.entries:
            first = wanted.first
            while first < wanted.last:
                count = max(1, int(room / max(mean, 1.0)))
                last = min(wanted.last, first + count)
                gathered.append(replace(wanted, first=first, last=last))
                room -= (last - first) * mean
                first = last
                if room < mean:
                    yield self._following(gathered)
                    gathered, room = [], float(piece_bytes)
        if gathered:
            yield self._following(gathered)

    def _following(self, entries: list[EntryRange]) -> StorePartition:
        return StorePartition(
            self.broker, entries=tuple(entries), files=tuple(self.files), topics=self.topics
        )
