"""Consumers for blocking callers."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Collection, Coroutine, Iterator
from typing import Any, TypeVar, overload

from gimbalmq.client import pull_consumer as pull_consumers
from gimbalmq.client import push_consumer as push_consumers
from gimbalmq.client import queue_pull_consumer as queue_pull_consumers
from gimbalmq.client.consumer import Consumer as AsyncConsumer
from gimbalmq.client.consumer_config import (
    TAG,
    PullConsumerConfig,
    PushConsumerConfig,
    QueuePullConsumerConfig,
)
from gimbalmq.client.consuming.handlers import Handler
from gimbalmq.client.consuming.offsets import OffsetStore
from gimbalmq.client.events import BalanceEvent
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.sync.bridge import blocking
from gimbalmq.sync.client import BlockingClient, on_loop

C = TypeVar("C", bound=AsyncConsumer[Any])


class _Consumer(BlockingClient[C]):
    """What all kinds of consumer share."""

    _kind = "consumer"

    def __init__(self, wrapped: C) -> None:
        super().__init__(wrapped)
        self._callbacks: concurrent.futures.ThreadPoolExecutor | None = None

    lag = blocking(AsyncConsumer.lag)
    rebalance = blocking(AsyncConsumer.rebalance)
    persist_offsets = blocking(AsyncConsumer.persist_offsets)
    check_group = blocking(AsyncConsumer.check_group)
    max_offset = blocking(AsyncConsumer.max_offset)
    min_offset = blocking(AsyncConsumer.min_offset)
    offset_for_time = blocking(AsyncConsumer.offset_for_time)
    unsubscribe = on_loop(AsyncConsumer.unsubscribe)

    @property
    def running(self) -> bool:
        return self._thread is not None and not self._thread.forked and self._async.running

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

    def _end(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        super()._end(work)
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

    suspend = on_loop(push_consumers.PushConsumer.suspend)
    resume = on_loop(push_consumers.PushConsumer.resume)

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

    subscribe = on_loop(pull_consumers.PullConsumer.subscribe)
    assign = on_loop(pull_consumers.PullConsumer.assign)
    queues = blocking(pull_consumers.PullConsumer.queues)

    def poll(self, timeout: float | None = None) -> list[MessageView]:
        """The next messages of one queue; an empty list when none came in time.

        Asking again means that what was returned before is done, and so does close(). Leaving ``with`` by an exception
        does not: these messages come again, and so do those of a call that Ctrl-C has interrupted.

        Args:
            timeout: seconds to wait; left out, it is the config's ``poll_timeout``.
        """
        thread = self._running()
        taken: list[list[MessageView]] = []

        async def work() -> list[MessageView]:
            taken.append(await self._async.poll(timeout))
            return taken[0]

        def take_back() -> None:
            for messages in taken:
                self._async.take_back(messages)

        try:
            return thread.run(work())
        except BaseException:
            # Ctrl-C may come in the same moment as messages. Nobody has seen them: close() must not commit them.
            thread.loop.call_soon_threadsafe(take_back)
            raise

    commit = blocking(pull_consumers.PullConsumer.commit)
    committed = blocking(pull_consumers.PullConsumer.committed)
    position = on_loop(pull_consumers.PullConsumer.position)
    seek = blocking(pull_consumers.PullConsumer.seek)
    seek_to_begin = blocking(pull_consumers.PullConsumer.seek_to_begin)
    seek_to_end = blocking(pull_consumers.PullConsumer.seek_to_end)
    seek_to_time = blocking(pull_consumers.PullConsumer.seek_to_time)
    pause = on_loop(pull_consumers.PullConsumer.pause)
    resume = on_loop(pull_consumers.PullConsumer.resume)

    def __iter__(self) -> Iterator[MessageView]:
        """Messages one by one, until the consumer is closed."""
        return self._iterate(lambda: aiter(self._async))


class QueuePullConsumer(_Consumer[queue_pull_consumers.QueuePullConsumer]):
    """Pulls what it is asked for: ``gimbalmq.QueuePullConsumer``, blocking.

    >>> with QueuePullConsumer("audit", "127.0.0.1:9876") as consumer:        # doctest: +SKIP
    ...     queue = consumer.queues("orders")[0]
    ...     result = consumer.pull(queue, consumer.committed(queue) or 0)
    ...     consumer.commit(queue, result.next_offset)

    Args:
        group: the consumer group's name.
        namesrv: name servers, ``host:port;host:port``.
        config: a whole configuration instead of the two and the options.
        offset_store: where progress is kept, instead of the broker or the local file.
        options: any field of ``QueuePullConsumerConfig``.
    """

    def __init__(
        self,
        group: str = "",
        namesrv: str | list[str] | tuple[str, ...] = "",
        *,
        config: QueuePullConsumerConfig | None = None,
        offset_store: OffsetStore | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            queue_pull_consumers.QueuePullConsumer(
                group, namesrv, config=config, offset_store=offset_store, **options
            )
        )

    @property
    def config(self) -> QueuePullConsumerConfig:
        return self._async.config

    subscribe = on_loop(queue_pull_consumers.QueuePullConsumer.subscribe)
    queues = blocking(queue_pull_consumers.QueuePullConsumer.queues)
    pull = blocking(queue_pull_consumers.QueuePullConsumer.pull)
    send_back = blocking(queue_pull_consumers.QueuePullConsumer.send_back)
    commit = blocking(queue_pull_consumers.QueuePullConsumer.commit)
    committed = blocking(queue_pull_consumers.QueuePullConsumer.committed)
