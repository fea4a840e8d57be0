"""Sending messages.

A send is prepared once (id, compression, property text) and attempted up to three times, each time
at a queue the selection rule picks. ``send`` follows Java's synchronous rules: it waits for the
answer and tries another broker after most failures. ``send_soon`` follows Java's asynchronous ones:
the request is on its way when it returns, and only a missing answer is tried again. Neither needs a
thread per send: thousands may be in flight, their requests leaving in one write per turn of the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Self, TypeVar

import msgspec

from gimbalmq.balance.latency import FaultStrategy, FaultTable
from gimbalmq.balance.select import PublishQueues, Rotation, select_by_function, select_by_hash
from gimbalmq.client.config import ProducerConfig, check_options
from gimbalmq.client.instance import ClientInstance
from gimbalmq.client.trace import Tracer
from gimbalmq.errors import (
    MessageIllegalError,
    NoWritableQueueError,
    RemoteProtocolError,
    RequestTimeoutError,
    ResponseError,
    RocketMQError,
    RouteError,
    SendFailedError,
    StateError,
    TopicRouteNotFoundError,
    TransportError,
)
from gimbalmq.model import properties as names
from gimbalmq.model.batch import encode_batch
from gimbalmq.model.compression import Compression, compress
from gimbalmq.model.flags import COMPRESSED, TRANSACTION_PREPARED
from gimbalmq.model.message import Message, MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.results import SendResult, SendStatus
from gimbalmq.model.route import publish_queues, write_queue_counts
from gimbalmq.model.topics import DLQ_PREFIX, FORBIDDEN_TO_SEND, RETRY_PREFIX, topic_problem
from gimbalmq.protocol.bodies import TopicRoute
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import ONEWAY_FLAG, RemotingCommand
from gimbalmq.protocol.headers import messages as headers
from gimbalmq.protocol.serializers import NUMBER, TEXT, encode_frame, header_template, join_frame
from gimbalmq.rpc.messages import STORED
from gimbalmq.transport.channel import Channel

log = logging.getLogger(__name__)

_T = TypeVar("_T")
Selector = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue]

RETRY_CODES = frozenset(
    {
        int(ResponseCode.TOPIC_NOT_EXIST),
        int(ResponseCode.SERVICE_NOT_AVAILABLE),
        int(ResponseCode.SYSTEM_ERROR),
        int(ResponseCode.SYSTEM_BUSY),
        int(ResponseCode.NO_PERMISSION),
        204,  # NO_BUYER_ID
        205,  # NOT_IN_CURRENT_UNIT
        int(ResponseCode.GO_AWAY),
    }
)
"""Answers after which another attempt is made (Java: retryResponseCodes)."""

_SEND = int(RequestCode.SEND_MESSAGE_V2)
_SEND_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)
_SEND_REPLY = int(RequestCode.SEND_REPLY_MESSAGE_V2)

_encode = msgspec.json.Encoder().encode
_STATUS = {code: SendStatus(code) for code in STORED}
_BATCH_ITEM_BYTES = 22
_TICK = 0.001
"""Less than this is no time left: Java counts in milliseconds."""


class _Prepared(msgspec.Struct, gc=False):
    """One message as all its attempts send it."""

    code: int
    topic: str
    body: bytes
    properties: str
    sys_flag: int
    flag: int
    msg_id: str
    born_ms: int
    reconsume: int = 0
    max_reconsume: int | None = None


class _Flight(msgspec.Struct, eq=False):
    """One attempt on its way: hears from the channel what came of it and tells its future.

    Attributes:
        soon: a ``send_soon``, which counts as in flight by itself and is sent again where no answer comes.
    """

    producer: Producer
    prepared: _Prepared
    chosen: MessageQueue
    address: str
    limit: float
    started: float
    future: asyncio.Future[SendResult]
    soon: bool

    def done(self) -> bool:
        return not self.soon and self.future.done()

    def set_result(self, answer: RemotingCommand) -> None:
        producer = self.producer
        try:
            result = producer._result(self.prepared, self.chosen, answer, self.address)
        except RocketMQError as refused:
            self.set_exception(refused)
            return
        if self.soon:
            producer._landed()
        if producer._records:
            producer._record(self.chosen.broker_name, self.started, failed=False)
        if not self.future.done():
            self.future.set_result(result)

    def set_exception(self, error: RocketMQError) -> None:
        producer = self.producer
        if self.soon:
            producer._landed()
        unanswered = isinstance(error, TransportError)
        producer._record(self.chosen.broker_name, self.started, failed=True, reachable=unanswered)
        if self.future.done():
            return
        if self.soon and unanswered and producer._instance is not None:
            remaining = self.limit - (producer._loop.time() - self.started)
            producer._own(producer._resend(self.future, self.prepared, self.chosen, error, remaining))
        else:
            self.future.set_exception(error)


class Producer:
    """Sends messages (Java: DefaultMQProducer).

    >>> async with Producer("orders", "127.0.0.1:9876") as producer:        # doctest: +SKIP
    ...     result = await producer.send(Message("TopicTest", b"hello", tags="TagA"))

    Args:
        group: the producer group's name.
        namesrv: name servers, ``host:port;host:port``.
        config: a whole configuration instead of the two and the options.
        options: any field of ``ProducerConfig``.

    Raises:
        ConfigError: an option cannot be used.
    """

    def __init__(
        self,
        group: str = "",
        namesrv: str | list[str] | tuple[str, ...] = "",
        *,
        config: ProducerConfig | None = None,
        **options: Any,
    ) -> None:
        if config is None:
            check_options(ProducerConfig, options)
            config = ProducerConfig(group=group, namesrv=namesrv, **options)
        elif options:
            config = config.with_options(**options)
        self.config = config
        self.group = config.group
        self._instance: ClientInstance | None = None
        self._publish: dict[str, PublishQueues] = {}
        self._searches: dict[str, asyncio.Task[PublishQueues]] = {}
        self._templates: dict[MessageQueue, bytes] = {}
        self._faults: FaultStrategy | None = None
        self._records = config.latency_fault
        self._tracer: Tracer | None = None
        self._in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._tasks: set[asyncio.Task[Any]] = set()
        assert isinstance(config.compression, Compression)
        self._compression = config.compression

    # -- life -------------------------------------------------------------------------

    async def start(self, *, instance: ClientInstance | None = None) -> None:
        """Joins its client instance and tells the brokers known so far.

        Args:
            instance: join this one (a consumer does so for the producer inside it).

        Raises:
            StateError: started before, or the group is taken in this instance.
        """
        if self._instance is not None:
            raise StateError(f"producer {self.group} has been started before")
        joined = instance or ClientInstance.shared(self.config)
        joined.register_producer(self.group, self)
        self._instance = joined
        self._loop = asyncio.get_running_loop()
        self._faults = FaultStrategy(
            FaultTable(joined.rng), enabled=self.config.latency_fault, rule=self.config.fault_rule
        )
        try:
            await joined.start()
            if self.config.trace:
                self._tracer = Tracer(self, joined, self.config.trace_topic)
            await joined.heartbeat()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Lets traces leave, takes leave of the brokers; the last of an instance closes it."""
        instance, self._instance = self._instance, None
        if instance is None:
            return
        if self._tracer is not None:
            self._instance = instance
            await self._tracer.close()
            self._instance = None
        for task in list(self._tasks):
            task.cancel()
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(
                    StateError(f"producer {self.group} was closed; this message was not sent")
                )
        self._waiting.clear()
        await instance.unregister_producer(self.group)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @property
    def instance(self) -> ClientInstance:
        """The client instance; raises StateError before start and after close."""
        if self._instance is None:
            raise StateError(f"producer {self.group} is not running: use it in `async with`, or call start()")
        return self._instance

    @property
    def client_id(self) -> str:
        return self.instance.client_id

    # -- sending ----------------------------------------------------------------------

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        argument: Any = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Sends one message and waits until a broker has stored it.

        Args:
            queue: send to this queue; one attempt.
            selector: chooses among the topic's queues, called with them, the message and
                ``argument``; one attempt. A message with a sharding key is placed by its hash.
            timeout: seconds for the whole call, retries included; the config's ``send_timeout``.

        Raises:
            MessageIllegalError: no topic, no body, too long.
            TopicRouteNotFoundError: no name server knows the topic, nor how to create it.
            RequestTimeoutError: the time is up; the outcome is unknown.
            ResponseError: a broker refused in a way no other broker would mend.
            SendFailedError: every attempt failed.
        """
        prepared = self._prepare(message)
        limit = self.config.send_timeout if timeout is None else timeout
        bound = queue is not None or selector is not None or message.sharding_key is not None
        started = self._loop.time()
        if self._in_flight >= self.config.max_in_flight:
            await self._wait_turn(limit)
        self._in_flight += 1
        try:
            publish = self._publish.get(message.topic) or await self._find_publish(message.topic, limit)
            if bound:
                chosen = self._bind(publish, message, queue, selector, argument)
                remaining = limit - (self._loop.time() - started)
                result = await self._attempt(prepared, chosen, max(_TICK, remaining))
            else:
                result = await self._send_anywhere(prepared, publish, limit, started)
        except RocketMQError:
            if self._tracer is not None:
                self._trace(message, prepared, None, started)
            raise
        finally:
            self._in_flight -= 1
            if self._waiting:
                self._next_turn()
        if self._tracer is not None:
            self._trace(message, prepared, result, started)
        return result

    async def _send_anywhere(
        self, prepared: _Prepared, publish: PublishQueues, limit: float, started: float
    ) -> SendResult:
        failures: list[tuple[object, Exception]] = []
        last_broker: str | None = None
        unsafe: SendResult | None = None
        remaining = limit
        for _ in range(1 + self.config.retry_times):
            chosen = self._select(publish, last_broker)
            last_broker = chosen.broker_name
            elapsed = self._loop.time() - started
            # The common case keeps the round number: calls of equal timeouts share one deadline queue.
            remaining = limit - elapsed if elapsed > _TICK else limit
            if remaining < _TICK:
                break
            try:
                result = await self._attempt(prepared, chosen, remaining)
            except (TransportError, RouteError) as error:
                failures.append((chosen, error))
            except ResponseError as error:
                if error.code not in RETRY_CODES:
                    raise
                failures.append((chosen, error))
            else:
                if (
                    result.status is SendStatus.SEND_OK
                    or not self.config.retry_another_broker_when_not_store_ok
                ):
                    return result
                unsafe = result
        if unsafe is not None:
            return unsafe
        failed = SendFailedError(prepared.topic, failures)
        if self._loop.time() - started >= limit - _TICK:
            raise RequestTimeoutError(f"the time of {limit:g} s is up: {failed}") from failed
        raise failed

    def send_soon(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        argument: Any = None,
        timeout: float | None = None,
    ) -> asyncio.Future[SendResult]:
        """Sends one message now and returns the future of its result (Java: send with a callback).

        The quickest way to send many. An error answer is final; where no answer comes the message is
        sent again, to another broker if there is one.

        Raises:
            MessageIllegalError, StateError: at once. All else comes through the future.
        """
        prepared = self._prepare(message)
        limit = self.config.send_timeout if timeout is None else timeout
        publish = self._publish.get(message.topic)
        instance = self._instance
        assert instance is not None
        if publish is not None and self._in_flight < self.config.max_in_flight and self._tracer is None:
            if queue is None and selector is None and message.sharding_key is None:
                chosen = self._select(publish, None)
            else:
                chosen = self._bind(publish, message, queue, selector, argument)
            address = instance.send_address(chosen.broker_name)
            channel = None if address is None else instance.pool.existing(address)
            if channel is not None:
                return self._start(prepared, chosen, channel, limit, self._loop.time(), soon=True)
        return self._own(self._send_later(message, prepared, queue, selector, argument, limit))

    def _own(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """A task that ends with the producer; its error is its awaiter's affair."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _start(
        self,
        prepared: _Prepared,
        chosen: MessageQueue,
        channel: Channel,
        limit: float,
        started: float,
        soon: bool = False,
    ) -> asyncio.Future[SendResult]:
        """Puts one attempt on its way."""
        opaque = channel.next_opaque()
        frame = self._frame(prepared, chosen, opaque)
        future: asyncio.Future[SendResult] = self._loop.create_future()
        self._in_flight += soon
        flight = _Flight(self, prepared, chosen, channel.address, limit, started, future, soon)
        channel.start_frame(opaque, frame, limit, flight)
        return future

    def _landed(self) -> None:
        """A ``send_soon`` has its answer, or none will come."""
        self._in_flight -= 1
        if self._waiting:
            self._next_turn()

    async def _resend(
        self,
        future: asyncio.Future[SendResult],
        prepared: _Prepared,
        chosen: MessageQueue,
        error: Exception,
        remaining: float,
    ) -> None:
        try:
            result = await self._again(prepared, chosen, error, remaining)
        except RocketMQError as failure:
            if not future.done():
                future.set_exception(failure)
        except asyncio.CancelledError:
            if not future.done():
                future.set_exception(error)
            raise
        else:
            if not future.done():
                future.set_result(result)

    async def _again(
        self, prepared: _Prepared, chosen: MessageQueue, error: Exception, remaining: float
    ) -> SendResult:
        """Java's asynchronous retries: another broker, the queue id of the first choice."""
        failures: list[tuple[object, Exception]] = [(chosen, error)]
        deadline = self._loop.time() + remaining
        publish = self._publish.get(prepared.topic)
        for _ in range(self.config.retry_times_async):
            remaining = deadline - self._loop.time()
            if remaining < _TICK or publish is None:
                break
            other = self._select(publish, chosen.broker_name)
            chosen = MessageQueue(chosen.topic, other.broker_name, chosen.queue_id)
            try:
                return await self._attempt(prepared, chosen, remaining)
            except (TransportError, RouteError) as failure:
                failures.append((chosen, failure))
        if len(failures) == 1:
            raise error
        raise SendFailedError(prepared.topic, failures)

    async def _send_later(
        self,
        message: Message,
        prepared: _Prepared,
        queue: MessageQueue | None,
        selector: Selector | None,
        argument: Any,
        limit: float,
    ) -> SendResult:
        """``send_soon`` where a route, a connection or a turn has to be waited for."""
        started = self._loop.time()
        if self._in_flight >= self.config.max_in_flight:
            await self._wait_turn(limit)
        self._in_flight += 1
        result: SendResult | None = None
        try:
            publish = self._publish.get(message.topic) or await self._find_publish(message.topic, limit)
            if queue is None and selector is None and message.sharding_key is None:
                chosen = self._select(publish, None)
            else:
                chosen = self._bind(publish, message, queue, selector, argument)
            remaining = limit - (self._loop.time() - started)
            try:
                result = await self._attempt(prepared, chosen, max(_TICK, remaining))
            except TransportError as error:
                remaining = limit - (self._loop.time() - started)
                result = await self._again(prepared, chosen, error, remaining)
            return result
        finally:
            self._in_flight -= 1
            if self._waiting:
                self._next_turn()
            if self._tracer is not None:
                self._trace(message, prepared, result, started)

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        argument: Any = None,
    ) -> None:
        """Sends one message that no broker answers for; it may be lost without a word."""
        prepared = self._prepare(message)
        limit = self.config.send_timeout
        publish = self._publish.get(message.topic) or await self._find_publish(message.topic, limit)
        if queue is None and selector is None and message.sharding_key is None:
            chosen = self._select(publish, None)
        else:
            chosen = self._bind(publish, message, queue, selector, argument)
        channel = await self._channel_of(chosen, limit)
        channel.send_bytes(self._frame(prepared, chosen, channel.next_opaque(), ONEWAY_FLAG))

    async def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
    ) -> list[SendResult]:
        """Sends messages of one topic together, in as few requests as their size allows.

        Each request is stored as a whole in one queue. Retries are those of ``send``.

        Returns:
            One result per request; its ids are joined by commas.

        Raises:
            MessageIllegalError: they differ in topic or in waiting, are delayed, or go to a retry topic.
        """
        limit = self.config.send_timeout if timeout is None else timeout
        results: list[SendResult] = []
        for prepared in self._prepare_batches(list(messages)):
            started = self._loop.time()
            publish = self._publish.get(prepared.topic) or await self._find_publish(prepared.topic, limit)
            if queue is not None:
                results.append(await self._attempt(prepared, queue, limit))
            else:
                results.append(await self._send_anywhere(prepared, publish, limit, started))
        return results

    async def publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues a topic can be sent to (Java: fetchPublishMessageQueues)."""
        self._running()
        publish = self._publish.get(topic) or await self._find_publish(topic, self.config.send_timeout)
        return publish.queues

    # -- preparing --------------------------------------------------------------------

    def _running(self) -> ClientInstance:
        return self.instance

    def _prepare(self, message: Message) -> _Prepared:
        """Checks a message, stamps it and puts it into the form that travels."""
        instance = self._instance
        if instance is None:
            raise StateError(f"producer {self.group} is not running: use it in `async with`, or call start()")
        body = message.body
        if message.topic not in self._publish:
            _check_topic(message.topic)
        if not 0 < len(body) <= self.config.max_message_size:
            raise _wrong_size(len(body), self.config.max_message_size)
        known = message.system_properties
        now_ms = instance.clock.wall_ms()
        # The id goes first, as in Java's sends: what follows repeats, and our broker reads it only once.
        msg_id = known.pop(names.UNIQ_KEY, None) or instance.unique_ids.next(now_ms)
        properties = f"{names.UNIQ_KEY}\x01{msg_id}\x02{message.properties_text()}"
        known[names.UNIQ_KEY] = msg_id
        sys_flag = 0
        if len(body) >= self.config.compress_over:
            body = compress(body, self._compression, self.config.compression_level)
            sys_flag = COMPRESSED | self._compression
        if names.TRAN_MSG in known:
            sys_flag |= TRANSACTION_PREPARED
        code = _SEND if known.get(names.MESSAGE_TYPE) != "reply" else _SEND_REPLY
        prepared = _Prepared(code, message.topic, body, properties, sys_flag, message.flag, msg_id, now_ms)
        if message.topic.startswith(RETRY_PREFIX):
            self._move_retry_fields(message, prepared)
        return prepared

    @staticmethod
    def _move_retry_fields(message: Message, prepared: _Prepared) -> None:
        """A consumer's own resend tells its counts in the header, not in the properties."""
        told = message.all_properties()
        prepared.reconsume = int(told.pop(names.RECONSUME_TIME, "0"))
        most = told.pop(names.MAX_RECONSUME_TIMES, None)
        prepared.max_reconsume = None if most is None else int(most)
        prepared.properties = names.dump(told)

    def _prepare_batches(self, messages: list[Message]) -> list[_Prepared]:
        if not messages:
            raise MessageIllegalError("a batch needs at least one message")
        instance = self.instance
        first = messages[0]
        _check_topic(first.topic)
        if first.topic.startswith(RETRY_PREFIX):
            raise MessageIllegalError("Retry Group is not supported for batching")
        limit = self.config.max_message_size
        pieces: list[list[tuple[int, bytes, bytes]]] = [[]]
        ids: list[list[str]] = [[]]
        size = 0
        now_ms = instance.clock.wall_ms()
        for message in messages:
            known = message.system_properties
            if message.topic != first.topic:
                raise MessageIllegalError("The topic of the messages in one batch should be the same")
            if message.wait_store_ok != first.wait_store_ok:
                raise MessageIllegalError("The waitStoreMsgOK of the messages in one batch should the same")
            if known.keys() & _NOT_IN_BATCHES:
                raise MessageIllegalError("TimeDelayLevel is not supported for batching")
            msg_id = known.get(names.UNIQ_KEY)
            if msg_id is None:
                msg_id = known[names.UNIQ_KEY] = instance.unique_ids.next(now_ms)
            properties = message.properties_text().encode()
            item_bytes = _BATCH_ITEM_BYTES + len(message.body) + len(properties)
            if not message.body or item_bytes > limit:
                raise _wrong_size(item_bytes if message.body else 0, limit)
            if size + item_bytes > limit:
                pieces.append([])
                ids.append([])
                size = 0
            pieces[-1].append((message.flag, message.body, properties))
            ids[-1].append(msg_id)
            size += item_bytes
        # No id of the batch's own: a 4.9 broker appends these properties to those of every message.
        properties_text = f"WAIT\x01{'true' if first.wait_store_ok else 'false'}\x02"
        return [
            _Prepared(
                _SEND_BATCH,
                first.topic,
                encode_batch(items),
                properties_text,
                0,
                0,
                ",".join(item_ids),
                now_ms,
            )
            for items, item_ids in zip(pieces, ids, strict=True)
        ]

    # -- queues -----------------------------------------------------------------------

    def publish_topics(self) -> Iterable[str]:
        return list(self._publish)

    def route_changed(self, topic: str, route: TopicRoute) -> None:
        if topic in self._publish:
            self._take_route(topic, route)

    def _take_route(self, topic: str, route: TopicRoute) -> PublishQueues | None:
        queues = publish_queues(topic, route)
        instance = self._instance
        if not queues or instance is None:
            # The next send asks again.
            log.warning("the route of %s has no queue that may be written", topic)
            self._publish.pop(topic, None)
            return None
        made = PublishQueues(
            topic, queues, Rotation(instance.rng), write_queue_counts=write_queue_counts(route)
        )
        self._publish[topic] = made
        return made

    async def _find_publish(self, topic: str, limit: float) -> PublishQueues:
        """The topic's queues: known, or asked for, or those of the topic that new ones are made after.

        A thousand first sends of a topic wait for one search.
        """
        searching = self._searches.get(topic)
        if searching is None:
            searching = self._searches[topic] = self._own(self._search(topic))
            searching.add_done_callback(lambda task: self._searched(topic, task))
        done, _ = await asyncio.wait((searching,), timeout=limit)
        if not done:
            raise RequestTimeoutError(
                f"no name server told the route of {topic} within {limit:g} s; this message was not sent"
            )
        if searching.cancelled():
            raise StateError(f"producer {self.group} was closed; this message was not sent")
        return searching.result()

    def _searched(self, topic: str, task: asyncio.Task[PublishQueues]) -> None:
        self._searches.pop(topic, None)
        if not task.cancelled():
            task.exception()  # every sender may have given up; asyncio would complain of an unread error

    async def _search(self, topic: str) -> PublishQueues:
        instance = self.instance
        try:
            await instance.refresh_route(topic)
        except TopicRouteNotFoundError:
            if instance.route(topic) is None:
                await self._use_default_route(instance, topic)
        route = instance.route(topic)
        found = None if route is None else self._take_route(topic, route)
        if found is None:
            raise NoWritableQueueError(f"topic {topic} has no queue that may be written")
        return found

    async def _use_default_route(self, instance: ClientInstance, topic: str) -> None:
        try:
            await instance.refresh_route(
                topic,
                default_topic=self.config.create_topic_key,
                default_queue_nums=self.config.default_topic_queue_nums,
            )
        except TopicRouteNotFoundError as error:
            raise TopicRouteNotFoundError(
                f"no route info of topic {topic}: create it, or let the broker create topics by itself"
            ) from error

    def _select(self, publish: PublishQueues, last_broker: str | None) -> MessageQueue:
        if not self._records:
            return publish.next_queue() if last_broker is None else publish.next_queue_avoiding(last_broker)
        assert self._faults is not None
        return self._faults.select(
            publish, now_ms=self._loop.time() * 1000, rng=self.instance.rng, last_broker=last_broker
        )

    def _bind(
        self,
        publish: PublishQueues,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        argument: Any,
    ) -> MessageQueue:
        if queue is not None:
            if queue.topic != message.topic:
                raise MessageIllegalError(
                    f"the message's topic {message.topic} is not the queue's, {queue.topic}"
                )
            return queue
        if selector is not None:
            return select_by_function(publish.queues, selector, message, argument)
        assert message.sharding_key is not None
        return select_by_hash(publish.queues, message.sharding_key)

    def _record(self, broker_name: str, started: float, *, failed: bool, reachable: bool = True) -> None:
        if self._records and self._faults is not None:
            now = self._loop.time()
            self._faults.record(
                broker_name,
                (now - started) * 1000,
                failed=failed,
                now_ms=now * 1000,
                reachable=reachable,
            )

    # -- one attempt ------------------------------------------------------------------

    def _attempt(self, prepared: _Prepared, chosen: MessageQueue, timeout: float) -> Awaitable[SendResult]:
        """Sends once and notes how it went."""
        instance = self.instance
        address = instance.send_address(chosen.broker_name)
        channel = None if address is None else instance.pool.existing(address)
        if channel is None:
            return self._connect_and_attempt(prepared, chosen, timeout)
        return self._start(prepared, chosen, channel, timeout, self._loop.time())

    async def _connect_and_attempt(
        self, prepared: _Prepared, chosen: MessageQueue, timeout: float
    ) -> SendResult:
        started = self._loop.time()
        try:
            channel = await self._channel_of(chosen, timeout)
        except ResponseError:
            self._record(chosen.broker_name, started, failed=True, reachable=False)
            raise
        except TransportError:
            self._record(chosen.broker_name, started, failed=True)
            raise
        except RouteError:
            self._record(chosen.broker_name, started, failed=False)
            raise
        timeout = max(_TICK, timeout - (self._loop.time() - started))
        return await self._start(prepared, chosen, channel, timeout, started)

    async def _channel_of(self, chosen: MessageQueue, timeout: float) -> Channel:
        """The connection to a queue's master; the route is looked at once more where it has none."""
        instance = self.instance
        address = instance.send_address(chosen.broker_name)
        if address is None:
            await instance.refresh_route(chosen.topic)
            address = instance.send_address(chosen.broker_name)
        if address is None:
            raise TopicRouteNotFoundError(f"The broker[{chosen.broker_name}] not exist")
        return await instance.channel(address, timeout)

    def _frame(self, prepared: _Prepared, chosen: MessageQueue, opaque: int, flag: int = 0) -> bytes:
        """The request as it leaves. Of fourteen fields a plain send changes five: those fill a template."""
        instance = self._instance
        if instance is None:
            raise StateError(f"producer {self.group} is closed")
        if prepared.code == _SEND and prepared.max_reconsume is None and instance.signer is None:
            template = self._templates.get(chosen)
            if template is None:
                template = self._template(prepared, chosen)
            header = template % (
                prepared.sys_flag,
                prepared.born_ms,
                prepared.flag,
                _encode(prepared.properties),
                prepared.reconsume,
                flag,
                opaque,
            )
            return join_frame(_SEND, header, prepared.body)
        fields = self._fields(prepared, chosen)
        command = RemotingCommand(prepared.code, fields, prepared.body, opaque=opaque, flag=flag)
        if instance.signer is not None:
            instance.signer.sign(command)
        return encode_frame(command)

    def _template(self, prepared: _Prepared, chosen: MessageQueue) -> bytes:
        if len(self._templates) > 10_000:
            self._templates.clear()
        own = {"f": NUMBER, "g": NUMBER, "h": NUMBER, "i": TEXT, "j": NUMBER}
        made = self._templates[chosen] = header_template(_SEND, self._fields(prepared, chosen) | own)
        return made

    def _fields(self, prepared: _Prepared, chosen: MessageQueue) -> dict[str, str]:
        return headers.SendMessageV2(
            producer_group=self.group,
            topic=prepared.topic,
            default_topic=self.config.create_topic_key,
            default_topic_queue_nums=self.config.default_topic_queue_nums,
            queue_id=chosen.queue_id,
            sys_flag=prepared.sys_flag,
            born_timestamp=prepared.born_ms,
            flag=prepared.flag,
            properties=prepared.properties,
            reconsume_times=prepared.reconsume,
            unit_mode=self.config.unit_mode,
            max_reconsume_times=prepared.max_reconsume,
            batch=prepared.code == _SEND_BATCH,
            bname=chosen.broker_name,
        ).to_ext()

    def _result(
        self, prepared: _Prepared, chosen: MessageQueue, answer: RemotingCommand, address: str
    ) -> SendResult:
        status = _STATUS.get(answer.code)
        if status is None:
            raise ResponseError.for_code(answer.code, answer.remark, address)
        fields = answer.ext_fields or {}
        try:
            queue_id = int(fields.get("queueId", chosen.queue_id))
            queue_offset = int(fields.get("queueOffset", -1))
        except ValueError as error:
            raise RemoteProtocolError(f"{address} answered a send with {error}") from error
        if queue_id != chosen.queue_id:
            chosen = MessageQueue(chosen.topic, chosen.broker_name, queue_id)
        return SendResult(
            status,
            prepared.msg_id,
            chosen,
            queue_offset,
            fields.get("msgId", ""),
            fields.get("transactionId"),
            fields.get("MSG_REGION", "DefaultRegion"),
            fields.get("TRACE_ON", "true") != "false",
        )

    # -- limits -----------------------------------------------------------------------

    async def _wait_turn(self, limit: float) -> None:
        """Waits until fewer than ``max_in_flight`` sends are out."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(limit):
                await waiter
        except TimeoutError as error:
            raise RequestTimeoutError(
                f"{self.config.max_in_flight} sends are in flight and none ended within {limit:g} s; "
                "this message was not sent"
            ) from error

    def _next_turn(self) -> None:
        while self._waiting and self._in_flight < self.config.max_in_flight:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    # -- transactions and traces ------------------------------------------------------

    async def check_transaction(
        self, address: str, message: MessageView, header: headers.CheckTransactionState
    ) -> None:
        log.warning(
            "%s asks about transaction %s, but producer group %s is no TransactionProducer",
            address,
            message.msg_id,
            self.group,
        )

    def _trace(
        self, message: Message, prepared: _Prepared, result: SendResult | None, started: float
    ) -> None:
        tracer = self._tracer
        if tracer is not None and message.topic != self.config.trace_topic:
            tracer.sent(
                message,
                prepared.msg_id,
                len(prepared.body),
                result,
                round((self._loop.time() - started) * 1000),
            )


_NOT_IN_BATCHES = frozenset(
    {names.DELAY, names.TIMER_DELAY_MS, names.TIMER_DELAY_SEC, names.TIMER_DELIVER_MS, names.TRAN_MSG}
)


def _check_topic(topic: str) -> None:
    problem = topic_problem(topic)
    if problem is not None:
        raise MessageIllegalError(problem)
    if topic in FORBIDDEN_TO_SEND:
        raise MessageIllegalError(f"Sending message to topic[{topic}] is forbidden.")
    if topic.startswith(DLQ_PREFIX):
        log.debug("sending to the dead-letter topic %s", topic)


def _wrong_size(size: int, limit: int) -> MessageIllegalError:
    if size == 0:
        return MessageIllegalError("the message body length is zero")
    return MessageIllegalError(f"the message body size over max value, MAX: {limit}, this one has {size}")
