"""Sending messages.

The parts are in ``sending``; a producer puts them together. ``send`` follows Java's synchronous rules: it waits
for the answer and tries another broker after most failures. ``send_soon`` follows Java's asynchronous ones:
the request is on its way when it returns, and only a missing answer is tried again. Messages that are bound to
a queue are tried once. No send needs a thread: thousands may be in flight, their requests leaving in one write
per turn of the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final, Literal, Self, cast, overload

from gimbalmq.client.config import ProducerConfig
from gimbalmq.client.instance import ClientInstance
from gimbalmq.client.sending.batch import Many, raise_first
from gimbalmq.client.sending.batches import Batches, item_bytes
from gimbalmq.client.sending.lines import PlaceInLine
from gimbalmq.client.sending.loop import Sending
from gimbalmq.client.sending.prepare import Prepared, items_of, prepare, prepare_batches, refusal
from gimbalmq.client.sending.rules import ONCE, Rules, awaited_rules, soon_rules
from gimbalmq.client.sending.targets import Selector as Selector
from gimbalmq.client.trace import Tracer
from gimbalmq.errors import (
    MessageIllegalError,
    ResponseError,
    RocketMQError,
    RouteError,
    StateError,
    TransportError,
)
from gimbalmq.model.message import Message, MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.results import SendResult
from gimbalmq.protocol.headers.messages import CheckTransactionState
from gimbalmq.transport.tasks import Ending

log = logging.getLogger(__name__)

Choice = MessageQueue | None | Callable[[], Coroutine[Any, Any, MessageQueue]]
"""The queue that a message goes to, if it matters, or how it is found once the topic's queues are known."""

_TURN: Final = 32
"""After so many messages of one call that go the long way, others have their turn."""


class Producer:
    """Sends messages (Java: DefaultMQProducer).

    >>> async with Producer("orders", "127.0.0.1:9876") as producer:        # doctest: +SKIP
    ...     result = await producer.send(Message("TopicTest", b"hello", tags="TagA"))

    Args:
        group: the producer group's name.
        namesrv: name servers, ``host:port;host:port``.
        config: a whole configuration instead of the two and the options.
        options: any field of ``ProducerConfig``; ``profile="4.9"`` for RocketMQ 4.9's defaults.

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
        config = ProducerConfig.given(config, group=group, namesrv=namesrv, **options)
        self.config = config
        self.group = config.group
        self._instance: ClientInstance | None = None
        self._tracer: Tracer | None = None
        self._batches: Batches | None = None
        self._rules = awaited_rules(config)
        self._soon_rules = soon_rules(config)
        self._ending = Ending()

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
        self.sending = Sending(joined, self.config)
        self._publish = self.sending.targets.known
        self._gathering = Batches(
            self.sending, joined, self.config, awaited=self._rules, soon=self._soon_rules
        )
        if self.config.auto_batch:
            self._batches = self._gathering
        try:
            await joined.start()
            if self.config.trace:
                self._tracer = Tracer(self, joined, self.config.trace_topic)
            await joined.heartbeat()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Lets batches and traces leave, takes leave of the brokers; the last of an instance closes it."""
        await self._ending.run(self._leave)

    async def _leave(self) -> None:
        instance = self._instance
        if instance is None:
            return
        try:
            await self._gathering.close()
            if self._tracer is not None:
                await self._tracer.close()
        finally:
            self._tracer = self._batches = None
            self.sending.close()
        await instance.unregister_producer(self.group)
        self._instance = None

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
        try:
            batches = self._batches
            if batches is not None:
                gathered = None
                if queue is None and selector is None and timeout is None:
                    gathered = batches.take(message, True)  # the short way, for most
                if gathered is None:
                    gathered = self._gather(
                        batches, message, queue, selector, argument, timeout, awaited=True
                    )
                if gathered is not None:
                    return await gathered
            prepared = prepare(message, self._instance or self.instance, self.config, self._publish)
        except AttributeError as error:
            raise refusal(message, error) from None
        limit = self.config.send_timeout if timeout is None else timeout
        bound = queue is not None or selector is not None or message.sharding_key is not None
        started = self._loop.time()
        sending = self.sending
        attempts = sending.attempts
        remaining = limit
        if attempts.count < attempts.most:
            attempts.count += 1
        else:
            await attempts.wait_turn(limit)
            remaining = attempts.remaining(limit, started)
        try:
            publish = self._publish.get(message.topic)
            if bound:
                chosen = await self._choose(message, queue, selector, argument, limit, started)
                result = await sending.deliver(prepared, ONCE, limit, started=started, chosen=chosen)
            elif publish is None or self._rules.not_safe:
                result = await sending.deliver(prepared, self._rules, limit, started=started)
            else:
                # Most sends are done after one attempt: it is made here, which saves a coroutine.
                chosen = sending.targets.next(publish, None)
                try:
                    result = await attempts.attempt(prepared, chosen, remaining)
                except (TransportError, RouteError, ResponseError) as error:
                    result = await sending.deliver_again(
                        prepared, self._rules, limit, started=started, chosen=chosen, error=error
                    )
        except RocketMQError:
            if self._tracer is not None:
                self._trace(message, prepared, None, started)
            raise
        finally:
            attempts.landed()
        if self._tracer is not None:
            self._trace(message, prepared, result, started)
        return result

    async def _choose(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        argument: Any,
        limit: float,
        started: float,
    ) -> MessageQueue:
        """The queue a message is bound to, or the next one; the topic's queues are asked for if they are unknown."""
        targets = self.sending.targets
        publish = self._publish.get(message.topic)
        if publish is None:
            publish = await targets.find(message.topic, self.sending.attempts.remaining(limit, started))
        return targets.choose(publish, message, queue, selector, argument)

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

        The quickest way to send many. An error answer is final. If no answer comes, the message is sent again,
        to another broker if there is one; a message that is bound to a queue is not. Those that are bound leave in the
        order of the calls.

        Raises:
            MessageIllegalError, StateError: at once. All else comes through the future.
        """
        try:
            batches = self._batches
            if batches is not None:
                gathered = None
                if queue is None and selector is None and timeout is None:
                    gathered = batches.take(message, False)  # the short way, for most
                if gathered is None:
                    gathered = self._gather(
                        batches, message, queue, selector, argument, timeout, awaited=False
                    )
                if gathered is not None:
                    return gathered
            instance = self._instance or self.instance
            prepared = prepare(message, instance, self.config, self._publish)
        except AttributeError as error:
            raise refusal(message, error) from None
        limit = self.config.send_timeout if timeout is None else timeout
        started = self._loop.time()
        bound = queue is not None or selector is not None or message.sharding_key is not None
        rules = ONCE if bound else self._soon_rules
        publish = self._publish.get(message.topic)
        sending = self.sending
        attempts = sending.attempts
        choice: Choice
        if publish is None:
            choice = partial(self._choose, message, queue, selector, argument, limit, started)
        else:
            choice = chosen = sending.targets.choose(publish, message, queue, selector, argument)
            waits = bound and message.topic in sending.lines
            if attempts.count < attempts.most and self._tracer is None and not waits:
                address = instance.send_address(chosen.broker_name)
                channel = None if address is None else instance.pool.existing(address)
                if channel is not None:
                    return attempts.start(prepared, chosen, channel, limit, started, rules)
        place = sending.lines.join(message.topic) if bound else None
        task = sending.own(self._send_later(message, prepared, choice, limit, started, rules, place))
        if place is not None:
            task.add_done_callback(place.leave)
        return task

    async def _send_later(
        self,
        message: Message,
        prepared: Prepared,
        choice: Choice,
        limit: float,
        started: float,
        rules: Rules,
        place: PlaceInLine | None,
    ) -> SendResult:
        """``send_soon`` if a route, a connection or a turn has to be waited for."""
        attempts = self.sending.attempts
        result: SendResult | None = None
        try:
            if place is not None:
                await place.come_first()
            chosen = await choice() if callable(choice) else choice
            assert chosen is not None, "the queue is chosen, or found"
            if attempts.count < attempts.most:
                attempts.count += 1
            else:
                await attempts.wait_turn(
                    limit if place is None else self.sending.attempts.remaining(limit, started)
                )
            try:
                if place is not None:
                    await attempts.connect(chosen, self.sending.attempts.remaining(limit, started))
                    place.leave()
                result = await self.sending.deliver(prepared, rules, limit, started=started, chosen=chosen)
            finally:
                attempts.landed()
            return result
        finally:
            if self._tracer is not None:
                self._trace(message, prepared, result, started)

    def _gather(
        self,
        batches: Batches,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        argument: Any,
        timeout: float | None,
        *,
        awaited: bool,
    ) -> asyncio.Future[SendResult] | None:
        """Has a message wait for others of its queue, to leave with them.

        Returns:
            None if it need neither wait for others nor go behind those of its queue that do.
        """
        bound = queue is not None or selector is not None or message.sharding_key is not None
        fits = timeout is None and batches.fits(message)
        if not fits and not bound:
            if batches.full:
                batches.flush()  # it would wait for those that wait for company
            return None
        sending = self.sending
        prepared = prepare(message, self._instance or self.instance, self.config, self._publish)
        size, small = item_bytes(prepared)
        fits = fits and small
        if not fits and not bound:
            return None
        topic = message.topic
        limit = self.config.send_timeout if timeout is None else timeout
        started = self._loop.time()
        wait = message.wait_store_ok
        choice: Choice = None
        if bound:
            publish = self._publish.get(topic)
            if publish is None:
                choice = partial(self._choose, message, queue, selector, argument, limit, started)
            else:
                choice = sending.targets.choose(publish, message, queue, selector, argument)
        future: asyncio.Future[SendResult]
        if batches.full or callable(choice) or (bound and topic in sending.lines):
            if fits:
                put = partial(batches.put, prepared, size=size, wait=wait, awaited=awaited)
            else:
                put = partial(batches.put_alone, prepared, size=size, limit=limit)
            place = sending.lines.join(topic) if bound else None
            future = task = batches.own(self._gather_later(batches, choice, put, limit, started, place))
            if place is not None:
                task.add_done_callback(place.leave)
        else:
            sending.attempts.count += 1
            if fits:
                future = batches.put(prepared, choice, size=size, wait=wait, awaited=awaited)
            else:
                future = batches.put_alone(prepared, choice, size=size, limit=limit)
        if self._tracer is not None:
            future.add_done_callback(partial(self._trace_gathered, message, prepared, started))
        return future

    async def _gather_later(
        self,
        batches: Batches,
        choice: Choice,
        put: Callable[[MessageQueue | None], asyncio.Future[SendResult]],
        limit: float,
        started: float,
        place: PlaceInLine | None,
    ) -> SendResult:
        """``_gather`` if a route, room or a turn has to be waited for."""
        attempts = self.sending.attempts
        try:
            if place is not None:
                await place.come_first()
            chosen = await choice() if callable(choice) else choice
            await batches.wait_room(attempts.remaining(limit, started))
            future = put(chosen)
            if place is not None:
                place.leave()
            return await future
        except asyncio.CancelledError:
            if attempts.closed:  # it was the producer that ended this, not who awaits it
                raise StateError(f"producer {self.group} was closed before the answer came") from None
            raise

    def _trace_gathered(
        self, message: Message, prepared: Prepared, started: float, sent: asyncio.Future[SendResult]
    ) -> None:
        failed = sent.cancelled() or sent.exception() is not None
        self._trace(message, prepared, None if failed else sent.result(), started)

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        argument: Any = None,
    ) -> None:
        """Sends one message that no broker answers for; it may be lost without a word."""
        try:
            prepared = prepare(message, self._instance or self.instance, self.config, self._publish)
        except AttributeError as error:
            raise refusal(message, error) from None
        limit = self.config.send_timeout
        started = self._loop.time()
        chosen = await self._choose(message, queue, selector, argument, limit, started)
        await self.sending.attempts.send_oneway(prepared, chosen, limit)

    async def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
    ) -> list[SendResult]:
        """Sends messages of one topic together, in as few requests as their size allows.

        Each request is stored as a whole in one queue. Messages with a sharding key go to the queue of their key, so
        each such queue gets a request of its own. Retries are those of ``send``.

        Args:
            queue: send all of them to this queue; one attempt.

        Returns:
            One result per request; its ids are joined by commas.

        Raises:
            MessageIllegalError: there are none, they differ in topic or waiting, are delayed, or go to a retry topic.
        """
        limit = self.config.send_timeout if timeout is None else timeout
        given = list(items_of(messages))
        requests: list[tuple[Prepared, MessageQueue | None]] = [
            (prepared, queue) for prepared in prepare_batches(given, self.instance, self.config)
        ]
        if queue is None and any(message.sharding_key is not None for message in given):
            requests = await self._batches_by_key(given, limit)
        results: list[SendResult] = []
        for prepared, chosen in requests:
            rules = self._rules if chosen is None else ONCE
            started = self._loop.time()
            results.append(await self.sending.deliver(prepared, rules, limit, started=started, chosen=chosen))
        return results

    async def _batches_by_key(
        self, messages: list[Message], limit: float
    ) -> list[tuple[Prepared, MessageQueue | None]]:
        topic, targets = messages[0].topic, self.sending.targets
        publish = self._publish.get(topic) or await targets.find(topic, limit)
        parts: dict[MessageQueue | None, list[Message]] = {}
        for message in messages:
            bound = message.sharding_key is not None
            chosen = targets.choose(publish, message, None, None, None) if bound else None
            parts.setdefault(chosen, []).append(message)
        return [
            (prepared, chosen)
            for chosen, part in parts.items()
            for prepared in prepare_batches(part, self.instance, self.config)
        ]

    @overload
    async def send_many(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        return_exceptions: Literal[False] = False,
    ) -> list[SendResult]: ...

    @overload
    async def send_many(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        return_exceptions: Literal[True],
    ) -> list[SendResult | Exception]: ...

    async def send_many(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        return_exceptions: bool = False,
    ) -> list[SendResult] | list[SendResult | Exception]:
        """Sends messages of any kind and waits until brokers have stored all of them: the quickest way to send many.

        They leave in batches, by the rules of ``auto_batch``, whether that is set or not, and are tried again by those
        of ``send``. Each has its own result or error. A long iterable is read as fast as brokers answer.

        Args:
            queue: send all of them to this queue, in this order; one attempt.
            return_exceptions: whether errors are returned in the places of their results, as ``asyncio.gather`` does.

        Returns:
            One result per message, in the order of the messages; of no messages an empty list.

        Raises:
            Exception: the first error that ``send`` would have raised for a message, when all have their outcomes.
            StateError: the producer was closed before all messages were read.
        """
        _ = self.instance  # raises if it is not running
        batches = self._gathering
        many = Many()
        given = items_of(messages)
        try:
            while (message := batches.take_many(given, many)) is not None:
                await self._send_of_many(batches, message, queue, many)
            batches.flush_many(many)
            await many.complete()
        except BaseException:
            many.give_up()
            raise
        outcomes = cast("list[SendResult | Exception]", many.outcomes)
        if not return_exceptions:
            raise_first(outcomes)
        return outcomes

    async def _send_of_many(
        self, batches: Batches, message: Message, queue: MessageQueue | None, many: Many
    ) -> None:
        """Sends one of many the long way: the first of a batch, one that is bound, or one that no batch can carry."""
        most, most_bytes = self.sending.attempts.most, self.config.total_batch_max_bytes
        if many.has_alone(most, most_bytes):  # those that wait for their topic's queues hold no room yet
            batches.flush()
            await many.fewer_alone(most, most_bytes)
        if self.sending.attempts.closed:  # if not here, all that is to come would be read, and fail
            raise StateError(f"producer {self.group} was closed before all messages were read")
        place = many.add()
        last = many.batch
        await batches.wait_room(
            None
        )  # as long as brokers answer; if they do not, those that are on their way fail
        try:
            self._start_of_many(batches, message, queue, many, place)
        except (MessageIllegalError, UnicodeError) as error:
            many.tell(place, error)
        if place % _TURN == 0 or many.batch is not last:
            await asyncio.sleep(0)  # what is full leaves, and others have their turn

    def _start_of_many(
        self, batches: Batches, message: Message, queue: MessageQueue | None, many: Many, place: int
    ) -> None:
        """Puts one of many, which is counted as under way, into its batch, or sends it as ``send`` does."""
        bound = queue is not None or message.sharding_key is not None
        try:
            if not bound and self._tracer is None and batches.fits(message):
                prepared = prepare(message, self.instance, self.config, self._publish)
                size, fits = item_bytes(prepared)
                if fits:
                    batches.put_of_many(prepared, many, place, size=size, wait=message.wait_store_ok)
                    return
        except BaseException:
            batches.give_back()
            raise
        batches.give_back()  # it is counted anew
        future = self._gather(batches, message, queue, None, None, None, awaited=True)
        if future is None:
            future = self.sending.own(self.send(message, queue=queue))
            batches.hold(len(message.body), future)
        many.follow(place, len(message.body), future)

    async def publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues a topic can be sent to (Java: fetchPublishMessageQueues)."""
        _ = self.instance  # raises if it is not running
        found = self._publish.get(topic) or await self.sending.targets.find(topic, self.config.send_timeout)
        return found.queues

    # -- what its instance asks -------------------------------------------------------

    def publish_topics(self) -> Iterable[str]:
        return [*self._publish, *self.sending.targets.unwritable]

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
