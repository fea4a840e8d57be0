"""Blocking producers, consumers and administration, for programs without an event loop of their own.

Each class has the name, the arguments and the methods of the async one, which does the work: on one event
loop, in one daemon thread that all of them share. The methods are made from the async ones (``_blocking``),
so signatures and docstrings cannot drift apart.

    with Producer("shop", "127.0.0.1:9876") as producer:
        producer.send(Message("orders", b"hello"))

Threads may share an object. A blocking call from inside the loop itself (an ``async def`` handler) would
wait for itself; it raises StateError. Handlers that are plain functions run in threads and may call anything.
Ctrl-C ends a waiting call: the work is cancelled, except a ``close``, which goes on behind your back.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import functools
import os
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from gimbalmq.admin import admin as admins
from gimbalmq.admin.clusters import Clusters
from gimbalmq.admin.dead_letters import DeadLetters
from gimbalmq.admin.groups import Groups
from gimbalmq.admin.messages import Messages
from gimbalmq.admin.topics import Topics
from gimbalmq.client import producer as producers
from gimbalmq.client import pull_consumer as pull_consumers
from gimbalmq.client import push_consumer as push_consumers
from gimbalmq.client import request_reply
from gimbalmq.client import transaction as transactions
from gimbalmq.client.config import ProducerConfig
from gimbalmq.client.consume import Handler
from gimbalmq.client.consumer import Consumer as AsyncConsumer
from gimbalmq.client.consumer_config import TAG, PullConsumerConfig, PushConsumerConfig
from gimbalmq.client.events import BalanceEvent
from gimbalmq.client.offsets import OffsetStore
from gimbalmq.errors import StateError
from gimbalmq.model.message import Message, MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.results import SendResult

__all__ = ["Admin", "Producer", "PullConsumer", "PushConsumer", "TransactionProducer", "reply", "request"]

P = ParamSpec("P")
T = TypeVar("T")

_EXIT_SECONDS = 10.0
"""How long the end of the program waits for objects that nobody has closed."""


# -- the loop ------------------------------------------------------------------------


class _LoopThread:
    """An event loop that runs in a daemon thread until the program ends."""

    def __init__(self) -> None:
        self.loop = _new_loop()
        self.started: set[_Blocking[Any]] = set()
        self._thread = threading.Thread(target=self._serve, name="gimbalmq-sync", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def begin(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if threading.current_thread() is self._thread:
            work.close()
            raise StateError(
                "a blocking call on the event loop would wait for itself: in an `async def` handler use the "
                "async classes of gimbalmq, or make the handler a plain function"
            )
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Does the work on the loop and waits for it; Ctrl-C cancels it."""
        future = self.begin(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # nothing, unless this thread was interrupted
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Calls a plain function on the loop, where nothing changes under its hands."""

        async def work() -> T:
            return function()

        return self.run(work())

    def end(self) -> None:
        """Closes what is still open, then the loop: for the end of the program."""
        closing = [self.begin(item._async.close()) for item in list(self.started)]
        concurrent.futures.wait(closing, _EXIT_SECONDS)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_EXIT_SECONDS)
        if not self._thread.is_alive():
            self.loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


_lock = threading.Lock()
_current: _LoopThread | None = None


def _loop_thread() -> _LoopThread:
    global _current
    with _lock:
        if _current is None:
            _current = _LoopThread()
        return _current


def _forget_after_fork() -> None:
    """A child process has the memory of the loop but not its thread; it starts one of its own."""
    global _lock, _current
    _lock, _current = threading.Lock(), None


def _end_with_program() -> None:
    if _current is not None:
        _current.end()


os.register_at_fork(after_in_child=_forget_after_fork)
atexit.register(_end_with_program)


# -- from async to blocking ----------------------------------------------------------


def _blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """A method that runs the async one to its end."""

    def wait(self: _Blocking[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._running().run(method(self._async, *args, **kwargs))

    functools.update_wrapper(wait, method)
    return wait


def _on_loop(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """A method that calls the plain one of the async class: on the loop, or at once before the start."""

    def call(self: _Blocking[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._do(lambda: method(self._async, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


A = TypeVar("A", bound="producers.Producer | AsyncConsumer[Any]")


class _Blocking(Generic[A]):
    """What all four share: the async object, and a life in the shared loop."""

    _kind = ""

    def __init__(self, wrapped: A) -> None:
        self._async = wrapped
        self._thread: _LoopThread | None = None
        self._closed = False

    @property
    def group(self) -> str:
        return self._async.group

    @property
    def client_id(self) -> str:
        """``ip@pid#number``, or as the instance name says."""
        return self._running().call(lambda: self._async.client_id)

    def start(self) -> None:
        """Starts the async object on the shared loop; see its ``start`` for what can go wrong."""
        if self._thread is not None:
            raise StateError(f"{self._kind} {self.group} has been started before")
        thread = self._thread = _loop_thread()
        try:
            thread.run(self._async.start())
        except BaseException as error:
            self._thread = None
            closing = thread.begin(self._async.close())
            if isinstance(error, Exception):  # else interrupted: leave at once, and let the loop tidy up
                closing.result()
            raise
        self._closed = False
        thread.started.add(self)

    def close(self) -> None:
        """Ends it as the async object's ``close`` does; a second call does nothing."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._closed = True
        if thread is _current:  # else this is a forked child, and the connections are its parent's
            thread.started.discard(self)
            thread.begin(self._async.close()).result()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _running(self) -> _LoopThread:
        thread = self._thread
        if thread is None:
            if self._closed:
                raise StateError(f"{self._kind} {self.group} has been closed")
            raise StateError(
                f"{self._kind} {self.group} has not been started: use it in `with`, or call start()"
            )
        if thread is not _current:
            raise StateError(f"{self._kind} {self.group} was started before a fork; make one in each process")
        return thread

    def _do(self, function: Callable[[], T]) -> T:
        if self._thread is None and not self._closed:
            return function()
        return self._running().call(function)

    def _iterate(self, begin: Callable[[], AsyncIterator[T]]) -> Iterator[T]:
        thread = self._running()
        return _items(thread, thread.call(begin))


def _items(thread: _LoopThread, items: AsyncIterator[T]) -> Iterator[T]:
    async def following() -> tuple[T] | None:
        try:
            return (await anext(items),)
        except StopAsyncIteration:
            return None

    try:
        while (found := thread.run(following())) is not None:
            yield found[0]
    finally:
        # Not waited for: a generator may be ended by the garbage collector, in any thread.
        if isinstance(items, AsyncGenerator) and thread is _current:
            asyncio.run_coroutine_threadsafe(_end(items), thread.loop)


async def _end(items: AsyncGenerator[Any, None]) -> None:
    await items.aclose()


# -- producers -----------------------------------------------------------------------


class Producer(_Blocking[producers.Producer]):
    """Sends messages: ``gimbalmq.Producer``, blocking.

    Args:
        group: the producer group's name.
        namesrv: name servers, ``host:port;host:port``.
        config: a whole configuration instead of the two and the options.
        options: any field of ``ProducerConfig``.
    """

    _kind = "producer"

    def __init__(
        self,
        group: str = "",
        namesrv: str | list[str] | tuple[str, ...] = "",
        *,
        config: ProducerConfig | None = None,
        **options: Any,
    ) -> None:
        self._wrap(producers.Producer(group, namesrv, config=config, **options))

    def _wrap(self, wrapped: producers.Producer) -> None:
        super().__init__(wrapped)
        self._slots = threading.BoundedSemaphore(wrapped.config.max_in_flight)
        self._submitted: deque[tuple[Message, dict[str, Any], concurrent.futures.Future[SendResult]]] = (
            deque()
        )
        self._armed = False

    @property
    def config(self) -> ProducerConfig:
        return self._async.config

    send = _blocking(producers.Producer.send)
    send_oneway = _blocking(producers.Producer.send_oneway)
    send_batch = _blocking(producers.Producer.send_batch)
    publish_queues = _blocking(producers.Producer.publish_queues)

    def send_soon(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: producers.Selector | None = None,
        argument: Any = None,
        timeout: float | None = None,
    ) -> concurrent.futures.Future[SendResult]:
        """Sends one message without waiting; the future has its result, or any error.

        The quickest way to send many. It waits only while ``max_in_flight`` messages are without answer.
        """
        thread = self._running()
        future: concurrent.futures.Future[SendResult] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()  # what is on its way cannot be cancelled
        self._slots.acquire()
        how = {"queue": queue, "selector": selector, "argument": argument, "timeout": timeout}
        self._submitted.append((message, how, future))
        if not self._armed:
            self._armed = True
            thread.loop.call_soon_threadsafe(self._send_submitted)
        return future

    def _send_submitted(self) -> None:
        """On the loop: starts all sends that have come, so that a burst wakes the loop once."""
        self._armed = False  # first: what comes from here on arms anew
        while self._submitted:
            message, how, future = self._submitted.popleft()
            try:
                sent = self._async.send_soon(message, **how)
            except Exception as error:
                self._slots.release()
                future.set_exception(error)
            else:
                sent.add_done_callback(functools.partial(self._answered, future))

    def _answered(
        self, future: concurrent.futures.Future[SendResult], sent: asyncio.Future[SendResult]
    ) -> None:
        self._slots.release()
        if sent.cancelled():
            future.set_exception(StateError(f"producer {self.group} was closed before the answer came"))
        elif (error := sent.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(sent.result())


class TransactionProducer(Producer):
    """Sends messages that take effect only if a local transaction does; see the async class.

    Args:
        check: what became of the transaction of this message? Runs in a thread, as the local one does.
        check_concurrency: how many such questions are worked on at a time.
    """

    _async: transactions.TransactionProducer

    def __init__(
        self,
        group: str = "",
        namesrv: str | list[str] | tuple[str, ...] = "",
        *,
        check: transactions.Check,
        check_concurrency: int = 1,
        config: ProducerConfig | None = None,
        **options: Any,
    ) -> None:
        self._wrap(
            transactions.TransactionProducer(
                group,
                namesrv,
                check=check,
                check_concurrency=check_concurrency,
                config=config,
                **options,
            )
        )

    send_in_transaction = _blocking(transactions.TransactionProducer.send_in_transaction)


def request(
    producer: Producer,
    message: Message,
    *,
    timeout: float = 3.0,
    queue: MessageQueue | None = None,
    selector: producers.Selector | None = None,
    argument: Any = None,
) -> MessageView:
    """Sends a message and waits for the reply to it.

    Raises:
        RequestTimeoutError: nobody replied in time.
    """
    work = request_reply.request(
        producer._async, message, timeout=timeout, queue=queue, selector=selector, argument=argument
    )
    return _run_for(producer, work)


def reply(producer: Producer, request_message: MessageView, body: bytes | str) -> SendResult:
    """Replies to a request that was received."""
    return _run_for(producer, request_reply.reply(producer._async, request_message, body))


def _run_for(item: _Blocking[Any], work: Coroutine[Any, Any, T]) -> T:
    try:
        thread = item._running()
    except StateError:
        work.close()
        raise
    return thread.run(work)


# -- consumers -----------------------------------------------------------------------

C = TypeVar("C", bound=AsyncConsumer[Any])


class _Consumer(_Blocking[C]):
    """What both kinds of consumer share."""

    _kind = "consumer"

    def __init__(self, wrapped: C) -> None:
        super().__init__(wrapped)
        self._callbacks: concurrent.futures.ThreadPoolExecutor | None = None

    lag = _blocking(AsyncConsumer.lag)
    rebalance = _blocking(AsyncConsumer.rebalance)
    persist_offsets = _blocking(AsyncConsumer.persist_offsets)
    check_group = _blocking(AsyncConsumer.check_group)
    max_offset = _blocking(AsyncConsumer.max_offset)
    min_offset = _blocking(AsyncConsumer.min_offset)
    offset_for_time = _blocking(AsyncConsumer.offset_for_time)
    unsubscribe = _on_loop(AsyncConsumer.unsubscribe)

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread is _current and self._async.running

    @property
    def ordered(self) -> bool:
        """Whether each queue's messages are consumed one after the other."""
        return self._async.ordered

    @property
    def assignment(self) -> dict[str, list[MessageQueue]]:
        """The queues held now, by topic."""
        return self._do(lambda: self._async.assignment)

    @property
    def members(self) -> list[str]:
        """Client ids of the group as of the last round."""
        return self._running().call(lambda: self._async.members)

    @property
    def subscriptions(self) -> dict[str, str]:
        """Topic to expression; the retry topic left out."""
        return self._do(lambda: self._async.subscriptions)

    def events(self) -> Iterator[BalanceEvent]:
        """Balance events from the first ``next`` on; waits for each, ends with the consumer."""
        return self._iterate(self._async.events)

    def on_event(self, callback: Callable[[BalanceEvent], object]) -> Callable[[], None]:
        """Calls back with every balance event, one after the other in a thread; the result ends that."""
        pool = self._callback_thread()

        async def tell(event: BalanceEvent) -> None:
            await asyncio.get_running_loop().run_in_executor(pool, callback, event)

        stop = self._do(lambda: self._async.on_event(tell))
        return lambda: self._do(stop)

    def on_queues_changed(
        self, listener: Callable[[str, Collection[MessageQueue], Collection[MessageQueue], str], object]
    ) -> None:
        """Calls back, in a thread, when the held queues of a topic changed (Java: MessageQueueListener)."""
        pool = self._callback_thread()

        async def tell(
            topic: str, queues: Collection[MessageQueue], mine: Collection[MessageQueue], reason: str
        ) -> None:
            await asyncio.get_running_loop().run_in_executor(pool, listener, topic, queues, mine, reason)

        self._do(lambda: self._async.on_queues_changed(tell))

    def close(self) -> None:
        """Lets running handlers finish, commits, leaves the group."""
        super().close()
        if self._callbacks is not None:
            self._callbacks.shutdown(wait=False)

    def _callback_thread(self) -> concurrent.futures.ThreadPoolExecutor:
        if self._callbacks is None:
            self._callbacks = concurrent.futures.ThreadPoolExecutor(1, f"gimbalmq-events-{self.group}")
        return self._callbacks


class PushConsumer(_Consumer[push_consumers.PushConsumer]):
    """Calls handlers with the messages of its share of the queues: ``gimbalmq.PushConsumer``, blocking.

    >>> consumer = PushConsumer("billing", "127.0.0.1:9876")                  # doctest: +SKIP
    >>> @consumer.subscribe("orders", "new || paid")                          # doctest: +SKIP
    ... def on_order(message: MessageView) -> None:
    ...     print(message.body)
    >>> with consumer:                                                        # doctest: +SKIP
    ...     threading.Event().wait()

    Args:
        group: the consumer group's name.
        namesrv: name servers, ``host:port;host:port``.
        config: a whole configuration instead of the two and the options.
        offset_store: where progress is kept, instead of the broker or the local file.
        options: any field of ``PushConsumerConfig``.
    """

    def __init__(
        self,
        group: str = "",
        namesrv: str | list[str] | tuple[str, ...] = "",
        *,
        config: PushConsumerConfig | None = None,
        offset_store: OffsetStore | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            push_consumers.PushConsumer(group, namesrv, config=config, offset_store=offset_store, **options)
        )

    @property
    def config(self) -> PushConsumerConfig:
        return self._async.config

    @property
    def suspended(self) -> bool:
        return self._async.suspended

    suspend = _on_loop(push_consumers.PushConsumer.suspend)
    resume = _on_loop(push_consumers.PushConsumer.resume)

    @overload
    def subscribe(
        self,
        topic: str,
        expression: str = "*",
        handler: None = None,
        *,
        ordered: bool | None = None,
        batch: bool | None = None,
        expression_type: str = TAG,
    ) -> Callable[[Handler], Handler]: ...

    @overload
    def subscribe(
        self,
        topic: str,
        expression: str = "*",
        *,
        handler: Handler,
        ordered: bool | None = None,
        batch: bool | None = None,
        expression_type: str = TAG,
    ) -> Handler: ...

    @overload
    def subscribe(
        self,
        topic: str,
        expression: str,
        handler: Handler,
        *,
        ordered: bool | None = None,
        batch: bool | None = None,
        expression_type: str = TAG,
    ) -> Handler: ...

    def subscribe(
        self,
        topic: str,
        expression: str = "*",
        handler: Handler | None = None,
        *,
        ordered: bool | None = None,
        batch: bool | None = None,
        expression_type: str = TAG,
    ) -> Any:
        """Has a handler called with a topic's messages; without a handler it is a decorator.

        A plain function runs in a pool of ``consume_threads``; ``async def`` runs on the shared loop. For the
        arguments see the async class.
        """

        def note(function: Handler) -> Handler:
            return self._do(
                lambda: self._async.subscribe(
                    topic,
                    expression,
                    function,
                    ordered=ordered,
                    batch=batch,
                    expression_type=expression_type,
                )
            )

        return note if handler is None else note(handler)


class PullConsumer(_Consumer[pull_consumers.PullConsumer]):
    """Hands out the messages of its queues when asked: ``gimbalmq.PullConsumer``, blocking.

    >>> with PullConsumer("billing", "127.0.0.1:9876") as consumer:           # doctest: +SKIP
    ...     consumer.subscribe("orders")
    ...     for message in consumer:
    ...         print(message.body)

    Args:
        group: the consumer group's name.
        namesrv: name servers, ``host:port;host:port``.
        config: a whole configuration instead of the two and the options.
        offset_store: where progress is kept, instead of the broker or the local file.
        options: any field of ``PullConsumerConfig``.
    """

    def __init__(
        self,
        group: str = "",
        namesrv: str | list[str] | tuple[str, ...] = "",
        *,
        config: PullConsumerConfig | None = None,
        offset_store: OffsetStore | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            pull_consumers.PullConsumer(group, namesrv, config=config, offset_store=offset_store, **options)
        )

    @property
    def config(self) -> PullConsumerConfig:
        return self._async.config

    subscribe = _on_loop(pull_consumers.PullConsumer.subscribe)
    assign = _on_loop(pull_consumers.PullConsumer.assign)
    queues = _blocking(pull_consumers.PullConsumer.queues)
    poll = _blocking(pull_consumers.PullConsumer.poll)
    commit = _blocking(pull_consumers.PullConsumer.commit)
    committed = _blocking(pull_consumers.PullConsumer.committed)
    position = _on_loop(pull_consumers.PullConsumer.position)
    seek = _blocking(pull_consumers.PullConsumer.seek)
    seek_to_begin = _blocking(pull_consumers.PullConsumer.seek_to_begin)
    seek_to_end = _blocking(pull_consumers.PullConsumer.seek_to_end)
    seek_to_time = _blocking(pull_consumers.PullConsumer.seek_to_time)
    pause = _on_loop(pull_consumers.PullConsumer.pause)
    resume = _on_loop(pull_consumers.PullConsumer.resume)

    def __iter__(self) -> Iterator[MessageView]:
        """Messages one by one, until the consumer is closed."""
        return self._iterate(lambda: aiter(self._async))


# -- administration ------------------------------------------------------------------


class _Part:
    """One noun of the admin object, blocking."""

    def __init__(self, wrapped: Any) -> None:
        self._async = wrapped

    def _running(self) -> _LoopThread:
        return _loop_thread()


def _reading(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """A method that iterates over what the async one yields."""

    def items(self: _Part, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return _items(self._running(), method(self._async, *args, **kwargs))

    functools.update_wrapper(items, method)
    return items


class _Clusters(_Part):
    brokers = _blocking(Clusters.brokers)
    broker = _blocking(Clusters.broker)
    config = _blocking(Clusters.config)
    set_config = _blocking(Clusters.set_config)
    nameserver_config = _blocking(Clusters.nameserver_config)
    set_nameserver_config = _blocking(Clusters.set_nameserver_config)
    set_writable = _blocking(Clusters.set_writable)


class _Topics(_Part):
    names = _blocking(Topics.names)
    all = _blocking(Topics.all)
    route = _blocking(Topics.route)
    stats = _blocking(Topics.stats)
    groups = _blocking(Topics.groups)
    create = _blocking(Topics.create)
    resize = _blocking(Topics.resize)
    delete = _blocking(Topics.delete)
    queues = _blocking(Topics.queues)


class _Groups(_Part):
    names = _blocking(Groups.names)
    all = _blocking(Groups.all)
    connections = _blocking(Groups.connections)
    producers = _blocking(Groups.producers)
    running_info = _blocking(Groups.running_info)
    member_ids = _blocking(Groups.member_ids)
    told_by = _blocking(Groups.told_by)
    owners = _blocking(Groups.owners)
    progress = _blocking(Groups.progress)
    config = _blocking(Groups.config)
    create = _blocking(Groups.create)
    delete = _blocking(Groups.delete)
    plan_reset = _blocking(Groups.plan_reset)
    reset = _blocking(Groups.reset)
    clone_offsets = _blocking(Groups.clone_offsets)
    topics = _blocking(Groups.topics)


class _Messages(_Part):
    by_id = _blocking(Messages.by_id)
    by_unique_key = _blocking(Messages.by_unique_key)
    by_key = _blocking(Messages.by_key)
    by_offset = _blocking(Messages.by_offset)
    ranges = _blocking(Messages.ranges)
    read = _reading(Messages.read)
    send = _blocking(Messages.send)


class _DeadLetters(_Part):
    groups = _blocking(DeadLetters.groups)
    ranges = _blocking(DeadLetters.ranges)
    read = _reading(DeadLetters.read)
    redrive = _blocking(DeadLetters.redrive)


class Admin:
    """Administration without an event loop; see ``gimbalmq.admin.admin.Admin``.

    >>> with Admin("127.0.0.1:9876") as admin:  # doctest: +SKIP
    ...     print(admin.groups.progress("billing").lag)
    """

    def __init__(self, namesrv: str | list[str] | tuple[str, ...], **options: Any) -> None:
        self._async = admins.Admin(namesrv, **options)
        self.clusters = _Clusters(self._async.clusters)
        self.topics = _Topics(self._async.topics)
        self.groups = _Groups(self._async.groups)
        self.messages = _Messages(self._async.messages)
        self.dead_letters = _DeadLetters(self._async.dead_letters)

    def close(self) -> None:
        _loop_thread().run(self._async.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
