"""A consumer that calls your handler (Java: DefaultMQPushConsumer).

"Push" is pull underneath: one reader per held queue (``consuming.puller``) fills the queue's window, and
``consuming.concurrent`` or ``consuming.ordered`` has it worked off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from gimbalmq.client.consumer import Consumer
from gimbalmq.client.consumer_config import TAG, PushConsumerConfig, subscription_for
from gimbalmq.client.consuming.concurrent import Concurrent
from gimbalmq.client.consuming.duplicates import Duplicates
from gimbalmq.client.consuming.engine import Engine
from gimbalmq.client.consuming.ground import Ground
from gimbalmq.client.consuming.handlers import Handler, Listener, Listeners
from gimbalmq.client.consuming.member import Member
from gimbalmq.client.consuming.offsets import OffsetStore
from gimbalmq.client.consuming.ordered import Ordered
from gimbalmq.client.consuming.puller import Manner
from gimbalmq.client.consuming.requests import PushRequests
from gimbalmq.client.consuming.send_back import Returns, max_times
from gimbalmq.client.consuming.threads import HandlerThreads
from gimbalmq.client.instance import ClientInstance
from gimbalmq.errors import ConfigError, StateError
from gimbalmq.model.topics import retry_topic


class PushConsumer(Consumer[PushConsumerConfig]):
    """Calls handlers with the messages of its share of the queues.

    >>> consumer = PushConsumer("orders", "127.0.0.1:9876")                   # doctest: +SKIP
    >>> @consumer.subscribe("TopicTest", "TagA || TagB")                      # doctest: +SKIP
    ... async def on_order(message: MessageView) -> None:
    ...     print(message.body)
    >>> async with consumer:                                                  # doctest: +SKIP
    ...     await asyncio.Event().wait()

    A handler is ``async def`` or a plain function, which then runs in a thread. Returning None or True is
    success; False, ``ConsumeResult.LATER`` or an exception has the message delivered again after a while.

    Args:
        group: the consumer group's name.
        namesrv: name servers, ``host:port;host:port``.
        config: a whole configuration instead of the two and the options.
        offset_store: where progress is kept, instead of the broker or the local file.
        options: any field of ``PushConsumerConfig``; ``profile="4.9"`` for RocketMQ 4.9's defaults.
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
        if config is None:
            config = PushConsumerConfig.of(group=group, namesrv=namesrv, **options)
        elif options:
            config = config.with_options(**options)
        super().__init__(config, offset_store)
        self._listeners = Listeners()
        self._ordered: bool | None = None
        self._threads: HandlerThreads | None = None
        self._returns: Returns | None = None
        self._suspended = False

    # -- subscribing -----------------------------------------------------------------

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

        Before start this only notes the subscription; afterwards brokers are told at once.

        Args:
            expression: ``*`` for all, or tags: ``TagA || TagB``.
            ordered: each queue's messages one after the other; the same for all topics of a consumer.
            batch: the handler takes a list of up to ``consume_message_batch_max_size`` messages; left out, it
                does when that is more than 1.
            expression_type: ``SQL92`` for conditions on properties, where brokers allow them.
        """
        if handler is None:
            return lambda function: self.subscribe(
                topic, expression, function, ordered=ordered, batch=batch, expression_type=expression_type
            )
        wanted = bool(ordered) if self._ordered is None or ordered is not None else self._ordered
        if self._ordered is not None and wanted != self._ordered:
            raise ConfigError("ordered", ordered, "all handlers of one consumer are ordered, or none")
        as_batch = self.config.consume_message_batch_max_size > 1 if batch is None else batch
        listener = Listener(handler, batch=as_batch, ordered=wanted)
        subscription_for(topic, expression, 0, expression_type)  # raises before anything is noted
        self._ordered = wanted
        self._listeners.set(topic, listener)
        self._subscribe(topic, expression, expression_type)
        return handler

    def unsubscribe(self, topic: str) -> None:
        self._listeners.remove(topic)
        super().unsubscribe(topic)

    def suspend(self) -> None:
        """Stops pulling and balancing; what is cached is still consumed."""
        self._suspended = True
        if self._member is not None:
            self._member.engine.suspend()

    def resume(self) -> None:
        """Goes on; a round is run at once."""
        self._suspended = False
        if self._member is not None:
            self._member.engine.resume()

    @property
    def suspended(self) -> bool:
        return self._suspended if self._member is None else self._member.engine.puller.suspended

    @property
    def ordered(self) -> bool:
        return bool(self._ordered)

    @property
    def pull_threshold_for_queue(self) -> int:
        """Messages a queue may have cached; shared out anew with the queues if a topic limit is set."""
        member = self._member
        return self.config.pull_threshold_for_queue if member is None else member.engine.puller.queue_messages

    @property
    def pull_threshold_size_for_queue(self) -> int:
        """MiB a queue may have cached; shared out as the messages are."""
        member = self._member
        if member is None:
            return self.config.pull_threshold_size_for_queue
        return member.engine.puller.queue_mebibytes

    # -- composing -------------------------------------------------------------------

    def _check_start(self) -> None:
        if not self._listeners:
            raise StateError(
                f"consumer {self.group} has nothing to do: subscribe a topic with a handler first"
            )

    def _compose(self, instance: ClientInstance) -> Member:
        config, ordered = self.config, self.ordered
        if not config.broadcasting:
            self._subscriptions.set(retry_topic(self.group), "*", 0)
        ground = Ground(
            instance,
            config,
            self._subscriptions,
            self._events,
            self._tasks,
            self._offset_store,
            ordered=ordered,
        )
        threads = HandlerThreads(config.consume_threads, f"consume-{self.group}")
        times = max_times(config.max_reconsume_times, ordered=ordered)
        returns = Returns(instance, config, max_times=times, ordered=ordered)
        duplicates = Duplicates(self.group, self._events)
        parts = (config, ground.clock, self._listeners, returns, ground.rates, threads, self._tasks)
        worker = Ordered(*parts, ground.locks) if ordered else Concurrent(*parts)
        manner = Manner(
            ordered=ordered,
            needs_lock=ground.locks is not None,
            with_subscription=config.post_subscription_when_pull,
            carries_progress=not config.broadcasting,
            empty_is_progress=True,
            illegal_starts_anew=True,
            max_bytes=config.pull_batch_bytes,
            first_delay=config.first_pull_delay,
            interval=config.pull_interval,
            illegal_delay=config.offset_illegal_delay,
            topic_messages=config.pull_threshold_for_topic,
            topic_mebibytes=config.pull_threshold_size_for_topic,
        )
        engine = Engine(
            ground,
            manner,
            worker,
            duplicates,
            self._queue_listeners,
            pushes=True,
            handler_wait=config.remove_wait,
        )
        if self._suspended:
            engine.suspend()
        if isinstance(worker, Concurrent):
            self._tasks.every(
                config.consume_timeout,
                lambda: worker.send_back_expired(engine.holdings.all()),
                "expired messages",
            )
        self._threads, self._returns = threads, returns
        requests = PushRequests(engine, config, self._listeners, threads, duplicates, ordered=ordered)
        return Member(engine, requests, close_wait=config.await_termination, threads=config.consume_threads)

    def _decompose(self) -> None:
        if self._threads is not None:
            self._threads.close()
        if self._returns is not None:
            self._returns.close()
