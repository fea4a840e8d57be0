"""``df.write.format("rocketmq")`` and ``writeStream``: rows in Arrow batches out as batched sends.

At least once, in a way that can be seen through: every message carries the property SPARK_ROW_ID,
``<query>-<batch>-<partition>-<row>``, and a row without sharding key goes to a queue that follows from
its index. A micro-batch that Spark writes again therefore brings the same ids to the same queues, where
the source's ``dropDuplicates`` recognises them.

A task keeps several requests in flight on one connection for each broker and returns when all of them
are acknowledged. Connections stay with the worker process a while for the next task.

UNIQ_KEY is not written unless asked for (option ``uniqueKeys``): for a batch nobody needs it, it would
be a third of a small message and an index entry for each. Without it a consumer's message id is the
offset id, and a row is found again by its key or its row id.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.client.config import ProducerConfig
from gimbalmq.client.producer import RETRY_CODES, Producer
from gimbalmq.errors import (
    ConfigError,
    MessageIllegalError,
    NoPermissionError,
    ResponseError,
    RocketMQError,
    RouteError,
    SendFailedError,
    TopicNotExistError,
    TopicRouteNotFoundError,
    TransportError,
)
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.results import SendStatus
from gimbalmq.protocol.headers.messages import SendMessageV2
from gimbalmq.rpc import messages as calls
from gimbalmq.spark.sink_encode import Request, RowEncoder
from gimbalmq.spark.sink_options import SinkSettings, find_roles
from gimbalmq.spark.worker import settle
from gimbalmq.sync.loop import loop_thread

log = logging.getLogger(__name__)

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0

IDLE_SECONDS: Final = 60.0
"""How long connections wait for another task."""


def writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
    """The writer of one batch query.

    Raises:
        ConfigError, MessageIllegalError: an option or a column cannot be used.
    """
    if overwrite:
        raise ConfigError("mode", "overwrite", "a topic cannot be overwritten; use mode('append')")
    settings = SinkSettings.read(options)
    return SinkWriter(settings, find_roles(schema, settings), uuid.uuid4().hex)


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """The writer of one streaming query; in complete mode every result is sent whole, as Kafka's sink does.

    Raises:
        ConfigError, MessageIllegalError: an option or a column cannot be used.
    """
    settings = SinkSettings.read(options)
    return SinkStreamWriter(settings, find_roles(schema, settings))


@dataclass(slots=True)
class Sent(WriterCommitMessage):
    """What one task sent.

    Attributes:
        rows: acknowledged messages.
        requests: sends it took.
        resent: requests that took more than one attempt; their rows may be there twice.
        not_flushed: rows stored, but not flushed or replicated in the broker's time.
    """

    rows: int = 0
    requests: int = 0
    resent: int = 0
    not_flushed: int = 0


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
            row_prefix=f"{query}-{batch}-{partition}-",
            # Small batches would otherwise all begin with queue 0.
            turn=partition + batch,
            queues=sender.queues,
            unique_id=sender.unique_id,
        )
        flight = Flight(sender, encoder)
        pace = None if settings.max_rows_per_second is None else Pace(settings.max_rows_per_second)
        try:
            for rows in batches:
                for request in encoder.encode(rows):
                    if pace is not None:
                        pace.wait_for(len(request.rows))
                    flight.put(request)
        finally:
            # Also after an error: nothing may still be on its way when Spark starts the task again.
            flight.wait()
        flight.check()
        return flight.sent


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


# --- sending -------------------------------------------------------------------------------------


class Sender:
    """The connections of a worker process for one sink; tasks come and go.

    Spark keeps its workers for the session's life, so a sender that no task has asked for in a while says
    goodbye: brokers are not told of it for ever, nor does it complain of a cluster that has gone.
    """

    _shared: dict[SinkSettings, Sender] = {}  # noqa: RUF012 - one process, one table
    _lock = threading.Lock()

    def __init__(self, settings: SinkSettings) -> None:
        self.settings = settings
        self._thread = loop_thread()
        self.loop = self._thread.loop
        self._producer = self._thread.run(self._start())
        self._tasks = 0
        self._leaving: asyncio.TimerHandle | None = None
        self._goodbye: asyncio.Task[None] | None = None

    @classmethod
    @contextmanager
    def lent(cls, settings: SinkSettings) -> Iterator[Sender]:
        """The sender of these settings for one task; made on first use."""
        with cls._lock:
            found = cls._shared.get(settings)
            if found is None or found._thread is not loop_thread():
                found = cls._shared[settings] = cls(settings)
            found._tasks += 1
        try:
            yield found
        finally:
            with cls._lock:
                found._tasks -= 1
            found.loop.call_soon_threadsafe(found._wait_for_tasks)

    def _wait_for_tasks(self) -> None:
        if self._leaving is not None:
            self._leaving.cancel()
        self._leaving = self.loop.call_later(IDLE_SECONDS, self._leave)

    def _leave(self) -> None:
        with self._lock:
            if self._tasks or self._shared.get(self.settings) is not self:
                return
            del self._shared[self.settings]
        self._goodbye = self.loop.create_task(self._producer.close())

    async def _start(self) -> Producer:
        settings = self.settings
        producer = Producer(
            config=ProducerConfig(
                group=settings.producer_group,
                send_timeout=settings.send_timeout,
                max_message_size=settings.max_message_size,
                **settings.connection.client_options(),
            )
        )
        await producer.start()
        return producer

    def close(self) -> None:
        with self._lock:
            if self._shared.get(self.settings) is self:
                del self._shared[self.settings]
        self._thread.run(self._producer.close())

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """The queues of a topic, in the order of its route."""
        return self._thread.run(self._queues(topic))

    async def _queues(self, topic: str) -> Sequence[MessageQueue]:
        pause = _FIRST_PAUSE
        for attempt in itertools.count():
            try:
                try:
                    await self._producer.instance.refresh_route(topic)
                except TopicRouteNotFoundError:
                    pass  # a topic the broker will create with its first message
                queues = await self._producer.publish_queues(topic)
                await self._connect({queue.broker_name for queue in queues})
                return queues
            except (TransportError, RouteError):
                # A broker that starts anew is in no route for a moment.
                if attempt >= self.settings.retries:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        raise AssertionError("counting does not end")

    async def _connect(self, brokers: set[str]) -> None:
        """Before the first request: those that wait for a connection could be overtaken by one that finds it."""
        instance = self._producer.instance
        for name in brokers:
            address = instance.send_address(name)
            if address is not None:
                with contextlib.suppress(TransportError):  # the request itself will say so
                    await instance.channel(address, instance.config.connect_timeout)

    def unique_id(self) -> str:
        instance = self._producer.instance
        return instance.unique_ids.next(instance.clock.wall_ms())

    async def deliver(self, request: Request) -> tuple[int, list[tuple[MessageQueue, Exception]]]:
        """Sends until a broker has stored it: the answer's code, and the attempts that failed.

        A request that no row is bound to by goes to another broker after a failure, if there is one.

        Raises:
            SendFailedError: no attempt succeeded.
        """
        failures: list[tuple[MessageQueue, Exception]] = []
        queue = request.queue
        pause = _FIRST_PAUSE
        for attempt in range(1 + self.settings.retries):
            if attempt:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                await self._look_again(queue.topic)
                if not request.bound:
                    queue = await self._elsewhere(queue)
            try:
                code = await self._attempt(request, queue)
            except (TransportError, RouteError) as error:
                failures.append((queue, error))
            except ResponseError as error:
                failures.append((queue, error))
                if not error.retriable and error.code not in RETRY_CODES:
                    break
            else:
                if code == SendStatus.SEND_OK or not self.settings.retry_not_store_ok:
                    return code, failures
                failures.append((queue, ResponseError(f"stored as {SendStatus(code).name}", code=code)))
        raise SendFailedError(request.queue.topic, list(failures))

    async def _look_again(self, topic: str) -> None:
        try:
            await self._producer.instance.refresh_route(topic)
        except RocketMQError as error:
            log.info("the route of %s could not be asked for: %s", topic, error)

    async def _elsewhere(self, failed: MessageQueue) -> MessageQueue:
        """A queue of another broker, else the same one again."""
        try:
            queues = await self._producer.publish_queues(failed.topic)
        except RocketMQError:
            return failed
        others = [queue for queue in queues if queue.broker_name != failed.broker_name]
        return others[failed.queue_id % len(others)] if others else failed

    async def _attempt(self, request: Request, queue: MessageQueue) -> int:
        instance = self._producer.instance
        address = instance.send_address(queue.broker_name)
        if address is None:
            raise TopicRouteNotFoundError(
                f"broker {queue.broker_name} is in no route of topic {queue.topic} any more"
            )
        config = self._producer.config
        header = SendMessageV2(
            producer_group=config.group,
            topic=queue.topic,
            default_topic=config.create_topic_key,
            default_topic_queue_nums=config.default_topic_queue_nums,
            queue_id=queue.queue_id,
            sys_flag=request.sys_flag,
            born_timestamp=instance.clock.wall_ms(),
            flag=request.flag,
            properties=request.properties,
            reconsume_times=0,
            unit_mode=False,
            batch=request.batch,
            bname=queue.broker_name,
        )
        timeout = self.settings.send_timeout
        # The body is a view into Arrow's buffer; it is copied once, into the frame.
        body: Any = request.body
        return (await calls.send(instance, address, header, body, timeout=timeout)).code


class Flight:
    """The requests of one task that wait for their answers."""

    def __init__(self, sender: Sender, encoder: RowEncoder) -> None:
        self.sent = Sent()
        self._sender = sender
        self._encoder = encoder
        self._limit = sender.settings.sends_in_flight
        self._changed = threading.Condition()
        self._out = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: tuple[Request, RocketMQError] | None = None
        self._broken: BaseException | None = None

    def put(self, request: Request) -> None:
        """Starts a request, waiting for its turn; raises as ``check`` does."""
        with self._changed:
            self._changed.wait_for(lambda: self._out < self._limit or self._ended)
            self._out += not self._ended
        self.check()
        self._sender.loop.call_soon_threadsafe(self._begin, request)

    def wait(self) -> None:
        """Until every request has its answer, or none will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._out == 0)

    def check(self) -> None:
        """Raises what went wrong.

        Raises:
            SendFailedError: rows were not acknowledged; says which, where and why.
        """
        if self._broken is not None:
            raise self._broken
        if self._failure is not None:
            request, error = self._failure
            raise _not_sent(self._encoder.name_rows(request.rows), request, error) from error

    @property
    def _ended(self) -> bool:
        return self._failure is not None or self._broken is not None

    # --- on the loop ---------------------------------------------------------------------------

    def _begin(self, request: Request) -> None:
        # Tasks take their first step in the order they were made, up to the write: queues keep the order.
        task = self._sender.loop.create_task(self._run(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, request: Request) -> None:
        sent = self.sent
        failure: tuple[Request, RocketMQError] | None = None
        broken: BaseException | None = None
        try:
            code, failures = await self._sender.deliver(request)
            sent.rows += len(request.rows)
            sent.requests += 1
            sent.resent += bool(failures)
            sent.not_flushed += len(request.rows) if code != SendStatus.SEND_OK else 0
        except RocketMQError as error:
            failure = (request, error)
        except BaseException as error:
            broken = error
        with self._changed:
            self._out -= 1
            self._failure = self._failure or failure
            self._broken = self._broken or broken
            self._changed.notify_all()


def _not_sent(rows: str, request: Request, error: RocketMQError) -> SendFailedError:
    attempts = error.attempts if isinstance(error, SendFailedError) else [(request.queue, error)]
    last = attempts[-1][1] if attempts else error
    told = [(f"{rows} to {queue}", cause) for queue, cause in attempts]
    failed = SendFailedError(request.queue.topic, list(told))
    failed.args = (f"{failed}. {_remedy(last)}",)
    return failed


def _remedy(error: Exception) -> str:
    if isinstance(error, MessageIllegalError):
        return (
            "The broker does not take these messages: compare maxMessageSize and batchBytes with its "
            "maxMessageSize, and delays with what it supports"
        )
    if isinstance(error, NoPermissionError):
        return "Give the topic and this client the permission to write"
    if isinstance(error, TopicNotExistError | TopicRouteNotFoundError):
        return "Create the topic, or set autoCreateTopicEnable=true in the broker"
    if isinstance(error, TransportError):
        return (
            "Check that the broker is reachable from the executors; raise sendTimeout or retries if it is "
            "slow. Written again, the rows keep their ids"
        )
    return "Mend the cause and run the query again; a stream goes on with this batch, its rows keep their ids"
