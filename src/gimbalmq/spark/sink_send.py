"""How a task's requests reach brokers: connections of the worker process, and requests on their way.

The attempts and the retries are those of ``client.sending``, with the sink's own rules. Rows that are bound to a
queue are sent there one request after the other: a request that had to be sent again would otherwise come behind
later ones, and the rows of a sharding key would change their order.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from pyspark.sql.datasource import WriterCommitMessage

from gimbalmq.client.config import ProducerConfig
from gimbalmq.client.producer import Producer
from gimbalmq.client.sending.loop import Failures
from gimbalmq.client.sending.prepare import SEND, SEND_BATCH, Prepared
from gimbalmq.client.sending.rules import PATIENT_CODES, Place, Rules
from gimbalmq.errors import (
    MessageIllegalError,
    NoPermissionError,
    RocketMQError,
    RouteError,
    SendFailedError,
    TopicNotExistError,
    TopicRouteNotFoundError,
    TransportError,
)
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.results import SendStatus
from gimbalmq.spark.sink_encode import Request, RowEncoder
from gimbalmq.spark.sink_options import SinkSettings
from gimbalmq.sync.loop import loop_thread

HELD_BYTES: Final = 64 << 20
"""What requests on their way may keep in memory: a small one keeps all that was put together with it."""

IDLE_SECONDS: Final = 60.0
"""How long connections wait for another task."""


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


def rules_of(settings: SinkSettings, place: Place) -> Rules:
    """The sink is patient: it pauses, asks for the route again, and each attempt has its whole time."""
    return Rules(
        times=settings.retries,
        place=place,
        codes=PATIENT_CODES,
        not_safe=settings.retry_not_store_ok,
        limit_each=True,
        first_pause=0.1,
        longest_pause=2.0,
        look_again=True,
    )


class Sender:
    """The connections of a worker process for one sink; tasks come and go.

    Spark keeps its workers for the session's life, so a sender that no task has asked for in a while says
    goodbye: brokers are not told of it for ever, nor does it complain of a cluster that has gone.
    """

    _shared: dict[SinkSettings, Sender] = {}  # noqa: RUF012 - one process, one table
    _lock = threading.Lock()
    """Guards the table and the counts of tasks. The loop takes it too, so nobody waits for the loop with it."""

    def __init__(self, settings: SinkSettings) -> None:
        self.settings = settings
        self._stamp = settings.connection.stamp()
        self._thread = loop_thread()
        self.loop = self._thread.loop
        self._free_rules = rules_of(settings, Place.SAME_ID)
        self._bound_rules = rules_of(settings, Place.SAME_QUEUE)
        self._starting = threading.Lock()
        self._started: Producer | None = None
        self._tasks = 0
        self._leaving: asyncio.TimerHandle | None = None
        self._goodbye: asyncio.Task[None] | None = None

    @classmethod
    @contextmanager
    def lent(cls, settings: SinkSettings) -> Iterator[Sender]:
        """The sender of these settings for one task; made on first use."""
        with cls._lock:
            found = cls._shared.get(settings)
            if (
                found is None
                or found._thread is not loop_thread()
                or found._stamp != settings.connection.stamp()
            ):
                # One that was there before, with another secret, leaves when its tasks have ended.
                found = cls._shared[settings] = cls(settings)
            found._tasks += 1
        try:
            with found._starting:
                if found._started is None:
                    found._started = found._thread.run(found._start())
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
            if self._tasks:
                return
            if self._shared.get(self.settings) is self:
                del self._shared[self.settings]
        started, self._started = self._started, None
        if started is not None:
            self._goodbye = self.loop.create_task(started.close())

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

    @property
    def _producer(self) -> Producer:
        assert self._started is not None, "a sender that is lent has been started"
        return self._started

    def close(self) -> None:
        with self._lock:
            if self._shared.get(self.settings) is self:
                del self._shared[self.settings]
        started, self._started = self._started, None
        if started is not None:
            self._thread.run(started.close())

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """The queues of a topic, in the order of its route."""
        return self._thread.run(self._queues(topic))

    async def _queues(self, topic: str) -> Sequence[MessageQueue]:
        targets, rules = self._producer.sending.targets, self._free_rules
        for turn in range(1 + rules.times):
            if turn:
                await asyncio.sleep(rules.pause_before(turn))
            try:
                queues = (await targets.find(topic, self.settings.send_timeout)).queues
            except (TransportError, RouteError):
                # A broker that starts anew is in no route for a moment.
                if turn == rules.times:
                    raise
            else:
                await self._connect({queue.broker_name for queue in queues})
                return queues
        raise AssertionError("the last turn returns or raises")

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

    async def deliver(self, request: Request) -> tuple[SendStatus, Failures]:
        """Sends until a broker has stored it: how safely, and the attempts that failed.

        Rows that are not bound go to the queue of the same number of another broker after a failure, if there is one.

        Raises:
            SendFailedError: no attempt succeeded.
            RocketMQError: a broker refused for good.
        """
        prepared = Prepared(
            code=SEND_BATCH if request.batch else SEND,
            topic=request.queue.topic,
            body=request.body,  # a view into Arrow's buffer; it is copied once, into the frame
            properties=request.properties,
            sys_flag=request.sys_flag,
            flag=request.flag,
            msg_id="",
            born_ms=self._producer.instance.clock.wall_ms(),
            first_id_only=request.batch or None,
        )
        failures: Failures = []
        result = await self._producer.sending.deliver(
            prepared,
            self._bound_rules if request.bound else self._free_rules,
            self.settings.send_timeout,
            started=self.loop.time(),
            chosen=request.queue,
            failures=failures,
        )
        if self.settings.retry_not_store_ok and result.status is not SendStatus.SEND_OK:
            raise SendFailedError(prepared.topic, failures)
        return result.status, failures


class Flight:
    """The requests of one task that wait for their answers."""

    def __init__(self, sender: Sender, encoder: RowEncoder) -> None:
        self.sent = Sent()
        self._sender = sender
        self._encoder = encoder
        self._limit = sender.settings.sends_in_flight
        self._changed = threading.Condition()
        self._out = 0
        self._held = 0
        self._holders: Counter[int] = Counter()
        """By the memory that a body lies in: the requests on their way that keep it."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._last: dict[MessageQueue, asyncio.Task[None]] = {}
        """By queue: the newest request whose rows are bound to it."""
        self._failure: tuple[Request, RocketMQError] | None = None
        self._broken: BaseException | None = None

    def put(self, request: Request) -> None:
        """Starts a request, waiting for its turn; raises as ``check`` does."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_room_for(request) or self._ended)
            self.check()
            self._sender.loop.call_soon_threadsafe(self._begin, request)
            self._out += 1
            memory, size = _memory_of(request)
            self._held += 0 if self._holders[memory] else size
            self._holders[memory] += 1

    def _has_room_for(self, request: Request) -> bool:
        memory, size = _memory_of(request)
        more = 0 if memory in self._holders else size
        return self._out < self._limit and (self._out == 0 or self._held + more <= HELD_BYTES)

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
            raise _not_sent(self._encoder.name_rows(request.rows, request.row_ids), request, error) from error

    @property
    def _ended(self) -> bool:
        return self._failure is not None or self._broken is not None

    # --- on the loop ---------------------------------------------------------------------------

    def _begin(self, request: Request) -> None:
        task = self._sender.loop.create_task(
            self._run(request, self._last.get(request.queue) if request.bound else None)
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if request.bound:
            self._last[request.queue] = task

    async def _run(self, request: Request, before: asyncio.Task[None] | None) -> None:
        sent = self.sent
        failure: tuple[Request, RocketMQError] | None = None
        broken: BaseException | None = None
        try:
            if before is not None:
                await asyncio.wait((before,))
            # After a failure nothing more is sent: the rows behind those that failed would overtake them.
            if not self._ended:
                status, failures = await self._sender.deliver(request)
                sent.rows += len(request.rows)
                sent.requests += 1
                sent.resent += bool(failures)
                sent.not_flushed += len(request.rows) if status is not SendStatus.SEND_OK else 0
        except RocketMQError as error:
            failure = (request, error)
        except BaseException as error:
            broken = error
        with self._changed:
            self._out -= 1
            memory, size = _memory_of(request)
            self._holders[memory] -= 1
            if not self._holders[memory]:
                del self._holders[memory]
                self._held -= size
            self._failure = self._failure or failure
            self._broken = self._broken or broken
            self._changed.notify_all()


def _memory_of(request: Request) -> tuple[int, int]:
    """The id and the size of what a request's body keeps in memory."""
    body = request.body
    if isinstance(body, bytes):
        return id(body), len(body)
    return id(body.obj), memoryview(body.obj).nbytes


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
            "maxMessageSize, delays with what it supports, and shorten properties that are too long"
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
