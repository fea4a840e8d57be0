"""``format("rocketmq")``: topics as tables and streams, tables and streams as topics."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_type
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.errors import ConfigError
from gimbalmq.model.queues import MessageQueue
from gimbalmq.spark import columns, offsets
from gimbalmq.spark.cluster import MAX_PAUSE, Cluster
from gimbalmq.spark.offsets import Bounds
from gimbalmq.spark.option_values import nearest
from gimbalmq.spark.options import Place, SourceSettings
from gimbalmq.spark.planning import Partition, QueueRange, plan, plan_by_number, ranges_between
from gimbalmq.spark.pushdown import Limit, filters_may_be_pushed, limit_of
from gimbalmq.spark.refusal import or_refused
from gimbalmq.spark.wire import Wire
from gimbalmq.spark.worker import leave_if_spark_hung_up, settle, while_spark_listens

log = logging.getLogger(__name__)


class RocketMQDataSource(DataSource):
    """Spark's way in: readers and writers of topics."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> StructType:
        settle()
        settings = SourceSettings.read(self.options, streaming=None)
        return from_arrow_schema(columns.table_schema(settings.column_names))

    def reader(self, schema: StructType) -> DataSourceReader:
        settle()
        settings = SourceSettings.read(self.options, streaming=False)
        kind = PushdownReader if filters_may_be_pushed() else BatchReader
        return kind(settings, checked_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        settle()
        return or_refused(
            lambda: StreamReader(SourceSettings.read(self.options, streaming=True), checked_schema(schema))
        )

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from gimbalmq.spark import sink

        settle()
        return sink.writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from gimbalmq.spark import sink

        settle()
        return sink.stream_writer(self.options, schema, overwrite)


def checked_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema rows must have; any choice of our columns, in any order.

    Raises:
        ConfigError: a column we do not have, or of another type.
    """
    fields: list[pa.Field] = []
    for field in schema.fields:
        known = columns.TYPES.get(field.name)
        if known is None:
            close = nearest(field.name, columns.TYPES)
            hint = f"did you mean {close}?" if close else f"there are {', '.join(columns.TYPES)}"
            raise ConfigError("schema", field.name, f"a topic has no such column; {hint}")
        wanted = to_arrow_type(field.dataType, timezone="UTC")
        if wanted != known:
            own = from_arrow_schema(columns.arrow_schema([field.name])).fields[0].dataType
            raise ConfigError(
                "schema",
                f"{field.name} {field.dataType.simpleString()}",
                f"the column is {own.simpleString()}; read it as that and cast it afterwards",
            )
        fields.append(pa.field(field.name, wanted, field.nullable))
    return pa.schema(fields)


class TopicPartition(InputPartition):
    """Ranges that one task reads, and where their brokers were when they were planned."""

    def __init__(self, ranges: Partition, addresses: dict[str, str]) -> None:
        self.ranges = ranges
        self.addresses = addresses


class _Reading:
    """What both kinds of reader do on executors, and the planning they share."""

    def __init__(self, settings: SourceSettings, schema: pa.Schema) -> None:
        self.settings = settings
        self.arrow_schema = schema

    @while_spark_listens
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, TopicPartition):
            return  # Spark's stand-in for a plan without partitions
        # Only tasks need it, and a planner starts quicker without it.
        from gimbalmq.spark.fetch import read_partition

        settle()
        names = self.arrow_schema.names
        for batch in read_partition(self.settings, partition.ranges, partition.addresses, names):
            if batch.schema.equals(self.arrow_schema):
                yield batch
            else:  # the same columns, some of them said never to be null
                yield pa.RecordBatch.from_arrays(batch.columns, schema=self.arrow_schema)

    def _partitions(self, ranges: Iterable[QueueRange], cluster: Cluster) -> list[TopicPartition]:
        settings = self.settings
        if settings.drop_duplicates:
            planned = plan_by_number(ranges)
        else:
            planned = plan(
                ranges,
                min_partitions=settings.min_partitions,
                max_records=settings.max_records_per_partition,
                min_records=settings.min_records_per_partition,
                # Those of the driver's machine: as many as local[*] has, a guess with local[n] and on a cluster.
                cores=os.cpu_count() or 1,
            )
        return [TopicPartition(part, cluster.addresses(wanted.queue for wanted in part)) for part in planned]


# --- batch ---------------------------------------------------------------------------------------


class BatchReader(_Reading, DataSourceReader):
    """A topic from one place to another, both fixed when the query is planned."""

    def partitions(self) -> Sequence[InputPartition]:
        wire = Wire(self.settings.connection)
        try:
            cluster = Cluster(self.settings, wire)
            return self._partitions(self._ranges(cluster), cluster)
        finally:
            wire.close()

    def _queues(self, cluster: Cluster) -> list[MessageQueue]:
        return cluster.needed_queues()

    def _ranges(self, cluster: Cluster) -> list[QueueRange]:
        settings = self.settings
        bounds = cluster.bounds(self._queues(cluster))
        start = cluster.positions(settings.starting or Place("startingOffsets", "earliest"), bounds)
        end = cluster.positions(settings.ending or Place("endingOffsets", "latest"), bounds)
        found: list[QueueRange] = []
        lost: list[offsets.Loss] = []
        for queue, (low, high) in bounds.items():
            first, last = start[queue], min(end[queue], high)
            if not low <= first <= high:
                lost.append(offsets.Loss(queue, first, Bounds(low, high)))
                first = min(max(low, first), high)
            found.append(QueueRange(queue, first, last))
        if lost:
            _say_lost(lost, settings)
        return found


def _say_lost(lost: Iterable[offsets.Loss], settings: SourceSettings) -> None:
    if settings.fail_on_data_loss:
        raise offsets.loss_error(lost)
    for loss in lost:
        log.warning("%s; going on with what is there", loss)


class PushdownReader(BatchReader):
    """As its parent, leaving out what filters on topic, broker, queue, offset and store time exclude."""

    def __init__(self, settings: SourceSettings, schema: pa.Schema) -> None:
        super().__init__(settings, schema)
        self.limits: dict[str, Limit] = {}

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for pushed in filters:
            limit = limit_of(pushed)
            if limit is None:
                yield pushed
                continue
            name, allowed = limit
            if name == "offset" and self.settings.drop_duplicates and len(allowed.values or ()) > 1:
                # Several ranges of a queue: what one of them reads would be met on the way back from the next.
                yield pushed
                continue
            self.limits[name] = allowed if name not in self.limits else self.limits[name].and_also(allowed)
            if name == "storeTimestamp":
                yield pushed  # offsets follow the store time only about: Spark looks at the rows again

    def _queues(self, cluster: Cluster) -> list[MessageQueue]:
        return [
            queue
            for queue in super()._queues(cluster)
            if self._allows("topic", queue.topic)
            and self._allows("broker", queue.broker_name)
            and self._allows("queueId", queue.queue_id)
        ]

    def _allows(self, name: str, value: object) -> bool:
        limit = self.limits.get(name)
        return limit is None or limit.allows(value)

    def _ranges(self, cluster: Cluster) -> list[QueueRange]:
        ranges = super()._ranges(cluster)
        limit = self.limits.get("offset")
        if limit is not None:
            ranges = [piece for wanted in ranges for piece in limit.cut(wanted)]
        limit = self.limits.get("storeTimestamp")
        return ranges if limit is None else self._within_times(ranges, limit, cluster)

    def _within_times(self, ranges: list[QueueRange], limit: Limit, cluster: Cluster) -> list[QueueRange]:
        # A millisecond to spare on either side: stored times have whole ones, filters microseconds.
        queues = {wanted.queue for wanted in ranges if wanted.length}
        first: Mapping[MessageQueue, int | None] = {}
        last: Mapping[MessageQueue, int | None] = {}
        if limit.low is not None:
            first = cluster.offsets_at(dict.fromkeys(queues, _milliseconds(limit.low)))
        if limit.high is not None:
            last = cluster.offsets_at(dict.fromkeys(queues, _milliseconds(limit.high) + 1))
        cut: list[QueueRange] = []
        for queue, start, end in ranges:
            earliest = first.get(queue, start)
            latest = last.get(queue)
            cut.append(
                QueueRange(
                    queue,
                    end if earliest is None else min(max(start, earliest), end),
                    end if latest is None else min(end, latest),
                )
            )
        return cut


def _milliseconds(moment: datetime) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


# --- stream --------------------------------------------------------------------------------------


class StreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A topic from where the checkpoint is, one micro-batch after the other.

    Spark keeps one of these in a process of its own for as long as the query runs; copies of it are sent
    to executors, which only ``read``.
    """

    def __init__(self, settings: SourceSettings, schema: pa.Schema) -> None:
        super().__init__(settings, schema)
        self._cluster: Cluster | None = None
        self._wire: Wire | None = None
        self._initial: dict[str, Any] | None = None
        self._bounds: dict[MessageQueue, Bounds] = {}
        self._target: dict[MessageQueue, int] | None = None
        self._committed: dict[MessageQueue, int] = {}
        self._tried: dict[MessageQueue, int] = {}
        self._commit_again = float("-inf")
        self._last_batch = float("-inf")
        self._missing: frozenset[MessageQueue] = frozenset()
        self._deleted: frozenset[MessageQueue] = frozenset()
        self._missed_at = float("-inf")

    def __getstate__(self) -> dict[str, Any]:
        return {"settings": self.settings, "arrow_schema": self.arrow_schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["settings"], state["arrow_schema"])  # type: ignore[misc]

    @property
    def cluster(self) -> Cluster:
        if self._cluster is None:
            self._wire = Wire(self.settings.connection)
            self._cluster = Cluster(self.settings, self._wire)
        return self._cluster

    # -- where to begin ----------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        if self._initial is None:
            bounds = self.cluster.bounds(self.cluster.needed_queues())
            place = self.settings.starting or Place("startingOffsets", "latest")
            self._initial = offsets.to_json(self.cluster.positions(place, bounds))
        return self._initial

    # -- how far -----------------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark knows one limit at a time; ``latestOffset`` combines all of ours when it is given any."""
        settings = self.settings
        if settings.max_offsets_per_trigger is not None:
            return ReadMaxRows(settings.max_offsets_per_trigger)
        if settings.max_bytes_per_trigger is not None:
            return ReadMaxBytes(settings.max_bytes_per_trigger)
        if settings.min_offsets_per_trigger is not None:
            return ReadMinRows(settings.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        bounds = self.cluster.bounds(self.cluster.queues())
        self._target = {queue: found.high for queue, found in bounds.items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begun = offsets.from_json(start)
        self._tell_progress(begun)
        bounds = self._look(begun)
        self._bounds = bounds
        begin = self._begin(begun, bounds)
        end = {queue: found.high for queue, found in bounds.items()}
        if self._target is not None:
            end = {
                queue: max(begin[queue], min(high, self._target.get(queue, begin[queue])))
                for queue, high in end.items()
                if queue in begun or queue in self._target
            }
        end = self._limited(begin, end, limit)
        # A new queue enters with its first messages: an empty one is no reason for a batch.
        end = {queue: high for queue, high in end.items() if queue in begun or high > begin[queue]}
        # Queues whose broker is away keep their place.
        end.update((queue, place) for queue, place in begun.items() if queue not in end)
        if end != begun:
            self._last_batch = SYSTEM_CLOCK.monotonic()
        elif start != self._initial:
            return start
        # The first end also says where the stream began, and is told even if nothing has come yet. An empty batch is
        # its price. Without it the checkpoint would hold nothing, and a restart would begin at another "latest".
        return offsets.to_json(end, begun if start == self._initial else None)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        if not self._bounds:
            return None
        return offsets.to_json({queue: found.high for queue, found in self._bounds.items()})

    def _look(self, begun: Mapping[MessageQueue, int]) -> dict[MessageQueue, Bounds]:
        """The bounds of all queues there are; who has gone is told apart from who is away."""
        queues = self.cluster.queues()
        missing = frozenset(begun).difference(queues)
        now = SYSTEM_CLOCK.monotonic()
        if missing != self._missing or (missing and now - self._missed_at >= self.settings.metadata_ttl):
            # A broker that is down takes its routes with it, for a while; a deleted topic is another matter, and so is
            # a broker that comes back without the topic.
            self._missed_at = now
            alive = self.cluster.brokers_alive() if missing else set()
            deleted = sorted(queue for queue in missing if queue.broker_name in alive)
            if deleted:
                self.cluster.forget_routes()
                deleted = [queue for queue in deleted if queue not in self.cluster.queues()]
            lost = [
                offsets.Loss(queue, begun[queue], None) for queue in deleted if queue not in self._deleted
            ]
            if lost:
                _say_lost(lost, self.settings)
            self._deleted = frozenset(deleted)
            for queue in sorted(missing.difference(deleted, self._missing)):
                log.warning(
                    "broker %s is away; queue %d of %s waits for it",
                    queue.broker_name,
                    queue.queue_id,
                    queue.topic,
                )
            self._missing = missing
        bounds = self.cluster.bounds(queues, exact=False)
        for queue, place in begun.items():
            found = bounds.get(queue)
            if found is not None and place > found.high and self.cluster.may_be_behind(queue):
                bounds[queue] = Bounds(found.low, place)  # nothing new, and nothing lost
        return bounds

    def _begin(
        self, begun: Mapping[MessageQueue, int], bounds: Mapping[MessageQueue, Bounds]
    ) -> dict[MessageQueue, int]:
        """Where the next batch begins in each queue: new ones at their oldest message."""
        known = {queue: place for queue, place in begun.items() if queue in bounds}
        lost = offsets.losses(known, bounds)
        if lost:
            _say_lost(lost, self.settings)
        return {queue: found.low for queue, found in bounds.items()} | offsets.after_losses(known, bounds)

    def _limited(
        self, begin: Mapping[MessageQueue, int], end: dict[MessageQueue, int], limit: ReadLimit
    ) -> dict[MessageQueue, int]:
        settings = self.settings
        if isinstance(limit, ReadAllAvailable):
            return end
        waiting = offsets.count_between(begin, end)
        least = settings.min_offsets_per_trigger
        if (
            least is not None
            and self._target is None  # else the query would never end
            and waiting < least
            and SYSTEM_CLOCK.monotonic() - self._last_batch < settings.max_trigger_delay
        ):
            return {queue: begin[queue] for queue in end}
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else settings.max_offsets_per_trigger
        if rows is not None:
            end = offsets.limit_rows(begin, end, rows)
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else settings.max_bytes_per_trigger
        if size is not None:
            nonempty = {queue: begin[queue] for queue in end if begin[queue] < end[queue]}
            end = offsets.limit_bytes(begin, end, size, self.cluster.message_bytes(nonempty))
        return end

    def _tell_progress(self, done: dict[MessageQueue, int]) -> None:
        """What Spark begins the next batch with is what it has done with."""
        group = self.settings.consumer_group
        if group is None:
            return
        changed = {queue: place for queue, place in done.items() if self._committed.get(queue) != place}
        now = SYSTEM_CLOCK.monotonic()
        if changed and now >= self._commit_again:
            self.cluster.queues()  # the first time, nobody's address is known yet
            if self.cluster.commit(group, changed):
                self._committed = done
            elif done == self._tried:
                self._commit_again = now + MAX_PAUSE  # Spark asks a hundred times a second
            self._tried = done

    # -- partitions --------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        # A repeated first batch begins where the checkpoint says it began, not where "latest" is by now.
        begun = offsets.begun_at(end)
        if begun is None:
            begun = offsets.from_json(start)
        reached = offsets.from_json(end)
        bounds = self._bounds
        if any(queue not in bounds for queue in reached):
            # After a restart Spark plans the unfinished batch without asking for a new end.
            queues = self.cluster.queues()
            bounds = self._bounds = self.cluster.bounds(queue for queue in queues if queue in reached)
        known = {queue: place for queue, place in begun.items() if queue in bounds and queue in reached}
        lost = [loss for loss in offsets.losses(known, bounds) if known[loss.queue] != reached[loss.queue]]
        if lost:
            _say_lost(lost, self.settings)
        begin = begun | offsets.after_losses(known, bounds)
        oldest = {queue: found.low for queue, found in bounds.items()}
        ranges = ranges_between(begin, reached, oldest)
        if self.settings.drop_duplicates:
            moving = {wanted.queue for wanted in ranges}
            ranges += [QueueRange(queue, at, at) for queue, at in reached.items() if queue not in moving]
        return self._partitions(ranges, self.cluster)

    def stop(self) -> None:
        leave_if_spark_hung_up()
        if self._wire is not None:
            self._wire.close()
