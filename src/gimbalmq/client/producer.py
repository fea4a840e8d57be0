"""Sending messages.

A send is prepared once (``prepare``) and attempted up to three times (``flights``, ``send_retries``), each
time at a queue the selection rule picks (``targets``). ``send`` follows Java's synchronous rules: it waits for the
answer and tries another broker after most failures. ``send_soon`` follows Java's asynchronous ones:
the request is on its way when it returns, and only a missing answer is tried again. Neither needs a
thread per send: thousands may be in flight, their requests leaving in one write per turn of the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any, Self, TypeVar

from gimbalmq.client.config import ProducerConfig, check_options
from gimbalmq.client.flights import TICK, Flight, Flights
from gimbalmq.client.instance import ClientInstance
from gimbalmq.client.prepare import Prepared, prepare, prepare_batches
from gimbalmq.client.send_retries import RETRY_CODES as RETRY_CODES
from gimbalmq.client.send_retries import Retries
from gimbalmq.client.targets import Selector as Selector
from gimbalmq.client.targets import Targets
from gimbalmq.client.trace import Tracer
from gimbalmq.errors import RocketMQError, StateError, TransportError
from gimbalmq.model.message import Message, MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.results import SendResult
from gimbalmq.protocol.bodies import TopicRoute
from gimbalmq.protocol.headers.messages import CheckTransactionState
from gimbalmq.transport.tasks import Ending

log = logging.getLogger(__name__)

_T = TypeVar("_T")


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
        self._tracer: Tracer | None = None
        self._ending = Ending()
        self._tasks: set[asyncio.Task[Any]] = set()

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
        self._targets = Targets(joined, self.config)
        self._publish = self._targets.known
        self._flights = Flights(joined, self.config, self._targets, self._lost)
        self._retries = Retries(self.config, self._targets, self._flights)
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
        await self._ending.run(self._leave)

    async def _leave(self) -> None:
        instance = self._instance
        if instance is None:
            return
        if self._tracer is not None:
            await self._tracer.close()
            self._tracer = None
        self._instance = None
        for task in list(self._tasks):
            task.cancel()
        self._targets.close()
        self._flights.close()
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
        prepared = prepare(message, self._instance or self.instance, self.config, self._publish)
        limit = self.config.send_timeout if timeout is None else timeout
        bound = queue is not None or selector is not None or message.sharding_key is not None
        started = self._loop.time()
        flights = self._flights
        if flights.count >= flights.most:
            await flights.wait_turn(limit)
        flights.count += 1
        try:
            publish = self._publish.get(message.topic) or await self._targets.find(message.topic, limit)
            if bound:
                chosen = self._targets.choose(publish, message, queue, selector, argument)
                remaining = limit - (self._loop.time() - started)
                result = await flights.attempt(prepared, chosen, max(TICK, remaining))
            else:
                result = await self._retries.anywhere(prepared, publish, limit, started)
        except RocketMQError:
            if self._tracer is not None:
                self._trace(message, prepared, None, started)
            raise
        finally:
            flights.landed()
        if self._tracer is not None:
            self._trace(message, prepared, result, started)
        return result

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
        instance = self._instance or self.instance
        prepared = prepare(message, instance, self.config, self._publish)
        limit = self.config.send_timeout if timeout is None else timeout
        publish = self._publish.get(message.topic)
        flights = self._flights
        if publish is not None and flights.count < flights.most and self._tracer is None:
            chosen = self._targets.choose(publish, message, queue, selector, argument)
            address = instance.send_address(chosen.broker_name)
            channel = None if address is None else instance.pool.existing(address)
            if channel is not None:
                return flights.start(prepared, chosen, channel, limit, self._loop.time(), soon=True)
        return self._own(self._send_later(message, prepared, queue, selector, argument, limit))

    def _own(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """A task that ends with the producer; its error is its awaiter's affair."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _lost(self, flight: Flight, error: RocketMQError) -> None:
        """A ``send_soon`` got no answer."""
        self._own(self._resend(flight, error))

    async def _resend(self, flight: Flight, error: RocketMQError) -> None:
        future = flight.future
        remaining = flight.limit - (self._loop.time() - flight.started)
        try:
            result = await self._retries.elsewhere(flight.prepared, flight.chosen, error, remaining)
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

    async def _send_later(
        self,
        message: Message,
        prepared: Prepared,
        queue: MessageQueue | None,
        selector: Selector | None,
        argument: Any,
        limit: float,
    ) -> SendResult:
        """``send_soon`` where a route, a connection or a turn has to be waited for."""
        started = self._loop.time()
        flights = self._flights
        if flights.count >= flights.most:
            await flights.wait_turn(limit)
        flights.count += 1
        result: SendResult | None = None
        try:
            publish = self._publish.get(message.topic) or await self._targets.find(message.topic, limit)
            chosen = self._targets.choose(publish, message, queue, selector, argument)
            remaining = limit - (self._loop.time() - started)
            try:
                result = await flights.attempt(prepared, chosen, max(TICK, remaining))
            except TransportError as error:
                remaining = limit - (self._loop.time() - started)
                result = await self._retries.elsewhere(prepared, chosen, error, remaining)
            return result
        finally:
            flights.landed()
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
        prepared = prepare(message, self._instance or self.instance, self.config, self._publish)
        limit = self.config.send_timeout
        publish = self._publish.get(message.topic) or await self._targets.find(message.topic, limit)
        chosen = self._targets.choose(publish, message, queue, selector, argument)
        await self._flights.send_oneway(prepared, chosen, limit)

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
        for prepared in prepare_batches(list(messages), self.instance, self.config):
            started = self._loop.time()
            publish = self._publish.get(prepared.topic) or await self._targets.find(prepared.topic, limit)
            if queue is not None:
                results.append(await self._flights.attempt(prepared, queue, limit))
            else:
                results.append(await self._retries.anywhere(prepared, publish, limit, started))
        return results

    async def publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues a topic can be sent to (Java: fetchPublishMessageQueues)."""
        _ = self.instance  # raises where it is not running
        publish = self._publish.get(topic) or await self._targets.find(topic, self.config.send_timeout)
        return publish.queues

    # -- what its instance asks -------------------------------------------------------

    def publish_topics(self) -> Iterable[str]:
        return list(self._publish)

    def route_changed(self, topic: str, route: TopicRoute) -> None:
        self._targets.route_changed(topic, route)

    async def check_transaction(
        self, address: str, message: MessageView, header: CheckTransactionState
    ) -> None:
        log.warning(
            "%s asks about transaction %s, but producer group %s is no TransactionProducer",
            address,
            message.msg_id,
            self.group,
        )

    def _trace(self, message: Message, prepared: Prepared, result: SendResult | None, started: float) -> None:
        tracer = self._tracer
        if tracer is not None and message.topic != self.config.trace_topic:
            tracer.sent(
                message,
                prepared.msg_id,
                len(prepared.body),
                result,
                round((self._loop.time() - started) * 1000),
            )
