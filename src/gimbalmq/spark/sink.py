"""``df.write.format("rocketmq")`` and ``writeStream``: rows in Arrow batches go out as batched sends.

A row is written at least once, and its copies can be recognised: every message carries the property SPARK_ROW_ID
(``row_ids``), which follows from what the row says, and a row that nothing binds to a queue goes to one that follows
from the same (``row_homes``). A task or a micro-batch that Spark runs again therefore brings the same ids to the same
queues, in whatever order its rows come, and the source's ``dropDuplicates`` recognises them.

A task keeps several requests in flight on one connection for each broker and returns when all of them
are acknowledged. Connections stay with the worker process a while for the next task.

UNIQ_KEY is not written unless asked for (option ``uniqueKeys``): nobody needs it for a batch, and it would
be a third of a small message and an index entry for each. Without it a consumer's message id is the
offset id, and a row is found again by its key or its row id.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.errors import ConfigError
from gimbalmq.spark.row_ids import batch_query_id
from gimbalmq.spark.sink_encode import RowEncoder
from gimbalmq.spark.sink_options import SinkSettings, find_roles
from gimbalmq.spark.sink_send import Flight, Sender, Sent
from gimbalmq.spark.worker import settle

log = logging.getLogger(__name__)

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"

_GATHERED_ROWS: Final = 65_536
_GATHERED_BYTES: Final = 16 << 20
_GATHERING_SECONDS: Final = 0.2


def writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
    """The writer of one batch query.

    Raises:
        ConfigError, MessageIllegalError: an option or a column cannot be used.
    """
    if overwrite:
        raise ConfigError("mode", "overwrite", "a topic cannot be overwritten; use mode('append')")
    settings = SinkSettings.read(options)
    return SinkWriter(settings, find_roles(schema, settings), _new_query())


def _new_query() -> str:
    return batch_query_id(SYSTEM_CLOCK.wall_ms(), secrets.randbits(64))


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """The writer of one streaming query; in complete mode every result is sent whole, as Kafka's sink does.

    Raises:
        ConfigError, MessageIllegalError: an option or a column cannot be used.
    """
    settings = SinkSettings.read(options)
    return SinkStreamWriter(settings, find_roles(schema, settings))


class SinkWriter(DataSourceArrowWriter):
    """Writes a table into topics. Made on the driver, copied to the executors."""

    def __init__(self, settings: SinkSettings, roles: dict[str, int], query: str) -> None:
        self._settings = settings
        self._roles = roles
        self._query = query

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(self._settings, self._roles, iterator, query=self._query, batch=0)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _report(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was sent stays; a second run has other row ids, because nobody can tell it is the same."""


class SinkStreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream into topics."""

    def __init__(self, settings: SinkSettings, roles: dict[str, int]) -> None:
        self._settings = settings
        self._roles = roles

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty(_QUERY_ID)
        batch = context.getLocalProperty(_BATCH_ID)
        assert query is not None and batch is not None, (
            "Spark names query and batch to every task of a stream"
        )
        return _write(self._settings, self._roles, iterator, query=query, batch=int(batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _report(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was sent stays; the batch comes again with the same row ids."""


def _report(messages: Sequence[WriterCommitMessage | None]) -> None:
    settle()
    late = sum(message.not_flushed for message in messages if isinstance(message, Sent))
    if late:
        log.warning(
            "%d rows are stored but were not flushed or replicated in time: see the broker's flush and "
            "replication settings, or set retryNotStoreOk=true",
            late,
        )


def _write(
    settings: SinkSettings,
    roles: dict[str, int],
    batches: Iterator[pa.RecordBatch],
    *,
    query: str,
    batch: int,
) -> Sent:
    """One task, from its first row to its last answer."""
    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    settle()
    with Sender.lent(settings) as sender:
        encoder = RowEncoder(
            settings,
            roles,
            task=f"{query}-{batch}-{partition}",
            queues=sender.queues,
            unique_id=sender.unique_id,
        )
        flight = Flight(sender, encoder)
        pace = None if settings.max_rows_per_second is None else Pace(settings.max_rows_per_second)
        try:
            for rows in gathered(batches):
                for request in encoder.encode(rows):
                    if pace is not None:
                        pace.wait_for(len(request.rows))
                    flight.put(request)
        finally:
            # Also after an error: nothing may still be on its way when Spark starts the task again.
            flight.wait()
        flight.check()
        return flight.sent


def gathered(
    batches: Iterable[pa.RecordBatch], now: Callable[[], float] = SYSTEM_CLOCK.monotonic
) -> Iterator[pa.RecordBatch]:
    """Batches joined to larger ones: of Spark's 10,000 rows each queue would get a request of a few hundred.

    Rows that have waited for a while when more come go on with these.
    """
    held: list[pa.RecordBatch] = []
    rows = size = 0
    since = 0.0
    for batch in batches:
        since = since if held else now()
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _GATHERED_ROWS or size >= _GATHERED_BYTES or now() - since >= _GATHERING_SECONDS:
            yield from _as_one(held)
            held, rows, size = [], 0, 0
    yield from _as_one(held)


def _as_one(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2:
        return batches
    found: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return found


class Pace:
    """Lets rows through at a rate; time that went by unused is not made up for."""

    def __init__(self, rate: int, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._rate = rate
        self._sleep = sleep
        self._due = 0.0

    def wait_for(self, rows: int) -> None:
        now = SYSTEM_CLOCK.monotonic()
        self._due = max(self._due, now)
        if self._due > now:
            self._sleep(self._due - now)
        self._due += rows / self._rate
