"""A consumer that calls your handler (Java: DefaultMQPushConsumer).

"Push" is pull underneath: one loop per held queue asks the broker, which keeps the question until there is
something; what comes goes to the consume part, and the next question leaves at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, overload

from gimbalmq.client import events
from gimbalmq.client.config import check_options
from gimbalmq.client.consume import ConsumeContext, ConsumeResult, Handler, Listener
from gimbalmq.client.consume_concurrently import ConcurrentConsumption
from gimbalmq.client.consume_in_order import OrderedConsumption
from gimbalmq.client.consumer import Consumer
from gimbalmq.client.consumer_config import TAG, PushConsumerConfig, subscription_for
from gimbalmq.client.handler_threads import HandlerThreads
from gimbalmq.client.offsets import OffsetStore
from gimbalmq.client.process_queue import ProcessQueue
from gimbalmq.client.rates import SAMPLE_SECONDS, Rates
from gimbalmq.errors import ConfigError, ResponseError, RocketMQError, StateError
from gimbalmq.model import properties as names
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.results import PullResult, PullStatus
from gimbalmq.model.route import publish_queues
from gimbalmq.model.topics import AUTO_CREATE_TOPIC, RETRY_PREFIX, retry_topic
from gimbalmq.protocol.bodies import Subscription
from gimbalmq.protocol.codes import ResponseCode
from gimbalmq.protocol.headers.messages import SendBack, SendMessageV2
from gimbalmq.protocol.status_bodies import ConsumeDirectlyResult, ConsumeRates
from gimbalmq.rpc import messages as message_calls

log = logging.getLogger(__name__)

INNER_PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"
_UNLIMITED = 0x7FFFFFFF
_RESEND_TRIES = 3

Consumption = ConcurrentConsumption | OrderedConsumption


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
        options: any field of ``PushConsumerConfig``.
    """

    consume_type = "CONSUME_PASSIVELY"

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
            check_options(PushConsumerConfig, options)
            config = PushConsumerConfig(group=group, namesrv=namesrv, **options)
        elif options:
            config = config.with_options(**options)
        super().__init__(config, offset_store)
        self._listeners: dict[str, Listener] = {}
        self._ordered: bool | None = None
        self._threads: HandlerThreads | None = None
        self._consumption: Consumption | None = None
        self._pulls: dict[ProcessQueue, asyncio.Task[None]] = {}
        self._finished: dict[MessageQueue, int] = {}
        self._counts: Rates | None = None
        self.pull_threshold_for_queue = config.pull_threshold_for_queue
        """Messages a queue may have cached; shared out anew with the queues when a topic limit is set."""
        self.pull_threshold_size_for_queue = config.pull_threshold_size_for_queue

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
        self._listeners[topic] = listener
        self._set_subscription(topic, expression, expression_type)
        return handler

    def unsubscribe(self, topic: str) -> None:
        self._listeners.pop(topic, None)
        super().unsubscribe(topic)

    def suspend(self) -> None:
        """Stops pulling and balancing; what is cached is still consumed."""
        self._suspended = True

    def resume(self) -> None:
        """Goes on; a round is run at once."""
        self._suspended = False
        self.wake("resumed")

    @property
    def suspended(self) -> bool:
        return self._suspended

    # -- life ------------------------------------------------------------------------

    def _check_start(self) -> None:
        if not self._listeners:
            raise StateError(
                f"consumer {self.group} has nothing to do: subscribe a topic with a handler first"
            )

    def _add_own_subscriptions(self) -> None:
        now = self.clock.wall_ms()
        if not self.config.broadcasting:
            topic = retry_topic(self.group)
            self._subscriptions[topic] = subscription_for(topic, "*", now)
        for data in self._subscriptions.values():
            data.sub_version = data.sub_version or now

    async def _start_parts(self) -> None:
        self._threads = HandlerThreads(self.config.consume_threads, f"consume-{self.group}")
        kind = OrderedConsumption if self.ordered else ConcurrentConsumption
        self._consumption = kind(self, self._tasks, self._threads)
        self._consumption.start()
        counts = self._counts = Rates(self.clock.monotonic())
        self._tasks.every(SAMPLE_SECONDS, lambda: counts.sample(self.clock.monotonic()), "sample rates")

    async def _stop_consuming(self) -> None:
        for task in list(self._pulls.values()):
            task.cancel()
        if self._consumption is not None:
            await self._consumption.close()

    def _hurry(self) -> None:
        if self._consumption is not None:
            self._consumption.hurry()

    async def _close_parts(self) -> None:
        if self._threads is not None:
            self._threads.close()

    @property
    def consumption(self) -> Consumption:
        assert self._consumption is not None
        return self._consumption

    # -- host of the consume part ----------------------------------------------------

    @property
    def ordered(self) -> bool:
        return bool(self._ordered)

    @property
    def drops_idle(self) -> bool:
        return True

    @property
    def max_reconsume_times(self) -> int:
        if self.config.max_reconsume_times == -1:
            return _UNLIMITED if self.ordered else 16
        return self.config.max_reconsume_times

    def listener_for(self, message: MessageView) -> Listener | None:
        listener = self._listeners.get(message.topic)
        if listener is None and len(self._listeners) == 1:
            return next(iter(self._listeners.values()))
        return listener

    def process_queues(self) -> Collection[ProcessQueue]:
        return list(self.balance.table.values())

    def _thread_count(self) -> int:
        return self.config.consume_threads

    def count_consumed(self, topic: str, ok: int, failed: int, seconds: float) -> None:
        if self._counts is not None:
            self._counts.consumed(topic, ok, failed, seconds)

    def _rates(self, topic: str) -> ConsumeRates:
        assert self._counts is not None
        return self._counts.of(topic, self.clock.monotonic())

    async def send_back(self, message: MessageView, delay_level: int, queue: MessageQueue) -> bool:
        """36 to the broker that has the message; where that fails, a send to the retry topic."""
        header = SendBack(
            offset=message.commitlog_offset,
            group=self.group,
            delay_level=delay_level,
            origin_msg_id=message.msg_id,
            origin_topic=message.topic,
            unit_mode=self.config.unit_mode,
            max_reconsume_times=self.max_reconsume_times,
            bname=queue.broker_name,
        )
        host, port = message.store_host
        address = self.instance.master_address(queue.broker_name) or f"{host}:{port}"
        try:
            await message_calls.send_back(self.instance, address, header)
            return True
        except RocketMQError as error:
            log.warning(
                "message %s could not be sent back, it goes to the retry topic: %s", message.msg_id, error
            )
        return await self._send_to_retry(message, message.reconsume_times + 1)

    async def resend(self, message: MessageView) -> bool:
        return await self._send_to_retry(message, message.reconsume_times)

    async def _send_to_retry(self, message: MessageView, times: int) -> bool:
        """A plain send to ``%RETRY%group``; whoever sends there names the times himself."""
        topic = retry_topic(self.group)
        properties = dict(message.all_properties)
        properties[names.RETRY_TOPIC] = message.topic
        properties[names.DELAY] = str(3 + message.reconsume_times)
        properties.setdefault(names.ORIGIN_MESSAGE_ID, message.msg_id)
        properties.pop(names.TRAN_MSG, None)
        properties.pop(names.WAIT, None)
        instance = self.instance
        for attempt in range(_RESEND_TRIES):
            route = instance.route(topic)
            queues = publish_queues(topic, route) if route is not None else ()
            if not queues:
                try:
                    await instance.refresh_route(topic)
                except RocketMQError as error:
                    log.warning("no route for %s: %s", topic, error)
                continue
            queue = queues[(instance.rng.randrange(len(queues)) + attempt) % len(queues)]
            address = instance.master_address(queue.broker_name)
            header = SendMessageV2(
                producer_group=INNER_PRODUCER_GROUP,
                topic=topic,
                default_topic=AUTO_CREATE_TOPIC,
                default_topic_queue_nums=4,
                queue_id=queue.queue_id,
                sys_flag=0,
                born_timestamp=message.born_timestamp,
                flag=message.flag,
                properties=names.dump(properties),
                reconsume_times=times,
                unit_mode=self.config.unit_mode,
                max_reconsume_times=self.max_reconsume_times,
                batch=False,
                bname=queue.broker_name,
            )
            try:
                if address is not None:
                    await message_calls.send(instance, address, header, message.body)
                    return True
            except RocketMQError as error:
                log.warning("message %s could not be sent to %s: %s", message.msg_id, topic, error)
        return False

    def _resume(self, item: ProcessQueue) -> None:
        self.consumption.resume(item)

    # -- removing queues -------------------------------------------------------------

    async def remove(self, process_queue: ProcessQueue) -> bool:
        if not await super().remove(process_queue):
            return False
        queue = process_queue.queue
        self._finished[queue] = max(self._finished.get(queue, 0), self._done_until(process_queue))
        if not self.needs_lock:
            return True
        if not self.ordered:
            await self.locks.unlock(queue)
            return True
        try:
            await asyncio.wait_for(process_queue.consume_lock.acquire(), self.config.remove_wait)
        except TimeoutError:
            process_queue.try_unlock_times += 1
            log.warning(
                "%s is still being consumed; it is given up in a later round (try %d)",
                queue,
                process_queue.try_unlock_times,
            )
            return False
        try:
            if process_queue.count:
                self._unlocks_due.add(queue)
                self._tasks.spawn(self._unlock_later(queue), "unlock later")
            else:
                await self.locks.unlock(queue)
        finally:
            process_queue.consume_lock.release()
        return True

    async def _unlock_later(self, queue: MessageQueue) -> None:
        await asyncio.sleep(self.config.unlock_delay)
        self._unlocks_due.discard(queue)
        if queue not in self.balance.table:
            await self.locks.unlock(queue)

    @staticmethod
    def _done_until(item: ProcessQueue) -> int:
        oldest = item.min_offset
        return item.queue_offset_max + 1 if oldest is None else oldest

    # -- pulling ---------------------------------------------------------------------

    def begin(self, process_queue: ProcessQueue, offset: int) -> None:
        task = self._tasks.spawn(self._pull_loop(process_queue, offset), f"pull {process_queue.queue}")
        self._pulls[process_queue] = task
        task.add_done_callback(lambda _: self._pulls.pop(process_queue, None))

    def stop(self, process_queue: ProcessQueue) -> None:
        task = self._pulls.get(process_queue)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    async def _pull_loop(self, item: ProcessQueue, next_offset: int) -> None:
        """The one pull request of this queue in this process, again and again."""
        if self.config.first_pull_delay:
            await asyncio.sleep(self.config.first_pull_delay)
        paused = self.clock.monotonic() - item.acquired_at
        self.emit(events.QueueStarted(group=self.group, queue=item.queue, paused=paused))
        while not (item.dropped or item.draining):
            item.last_pull = self.clock.monotonic()
            pause = self._reason_to_wait(item)
            data = self._subscriptions.get(item.queue.topic)
            if pause is None and data is not None:
                try:
                    result = await self._pull_step(item, data, next_offset)
                except ResponseError as error:
                    log.warning("pull of %s at %d: %s", item.queue, next_offset, error)
                    busy = error.code == ResponseCode.FLOW_CONTROL
                    pause = self.config.busy_delay if busy else self.config.exception_delay
                except RocketMQError as error:
                    log.warning("pull of %s at %d: %s", item.queue, next_offset, error)
                    pause = self.config.exception_delay
                else:
                    if item.dropped or item.draining:
                        return
                    if result.messages and self._counts is not None:
                        took = self.clock.monotonic() - item.last_pull
                        self._counts.pulled(item.queue.topic, len(result.messages), took)
                    next_offset = result.next_begin_offset
                    pause = self._take_result(item, result)
            elif pause is None:
                pause = self.config.exception_delay
            if pause:
                await asyncio.sleep(pause)

    def _reason_to_wait(self, item: ProcessQueue) -> float | None:
        """How long this queue is not to be pulled; None where it may."""
        config = self.config
        if self._suspended:
            return config.suspend_delay
        share = self._ramp(item)
        if item.count > self.pull_threshold_for_queue * share:
            return config.flow_control_delay
        if item.body_bytes >> 20 > self.pull_threshold_size_for_queue:
            return config.flow_control_delay
        if not self.ordered:
            if item.span > config.max_span:
                return config.flow_control_delay
        elif not item.locked and not config.broadcasting:
            return config.exception_delay
        return None

    def _ramp(self, item: ProcessQueue) -> float:
        """Share of the full pull size, growing after a take."""
        ramp = self.config.ramp_up
        if not ramp:
            return 1.0
        return min(1.0, max(0.03, (self.clock.monotonic() - item.acquired_at) / ramp))

    async def _pull_step(self, item: ProcessQueue, data: Subscription, offset: int) -> PullResult:
        config = self.config
        sys_flag = message_calls.PULL_SUSPEND
        commit_offset = 0
        if not config.broadcasting:
            commit_offset = self.offsets.remembered(item.queue) or 0
            if commit_offset > 0:
                sys_flag |= message_calls.PULL_COMMIT_OFFSET
        if config.post_subscription_when_pull:
            sys_flag |= message_calls.PULL_SUBSCRIPTION
        count = config.pull_batch_size
        if config.ramp_up:
            count = max(1, round(count * self._ramp(item)))
        return await self._pull(
            item.queue,
            data,
            offset,
            count=count,
            sys_flag=sys_flag,
            commit_offset=commit_offset,
            max_bytes=config.pull_batch_bytes,
        )

    def _take_result(self, item: ProcessQueue, result: PullResult) -> float:
        """Hands messages on; how long to wait before the next pull."""
        if result.status is PullStatus.FOUND:
            if result.messages:
                if self._finished:
                    self._look_for_duplicates(item.queue, result.messages)
                dispatch = item.put(result.messages)
                self.consumption.submit(item, result.messages, dispatch)
                return self.config.pull_interval
            return 0.0
        if result.status is PullStatus.OFFSET_ILLEGAL:
            self._offset_illegal(item, result.next_begin_offset)
            return 0.0
        # Nothing new, or nothing that passed the filter: with nothing pending, progress is here.
        if not item.count:
            self.offsets.update(item.queue, result.next_begin_offset, increase_only=True)
        return 0.0

    def _look_for_duplicates(self, queue: MessageQueue, messages: list[MessageView]) -> None:
        done = self._finished.get(queue)
        if done is None or messages[0].queue_offset >= done:
            return
        again = [message.queue_offset for message in messages if message.queue_offset < done]
        self.emit(
            events.DuplicatesSeen(
                group=self.group, queue=queue, count=len(again), first=again[0], last=again[-1]
            )
        )

    def _offset_illegal(self, item: ProcessQueue, next_offset: int) -> None:
        log.warning("%s: the broker has no such offset; it goes on at %d", item.queue, next_offset)
        item.dropped = True
        self.emit(
            events.OffsetReset(
                group=self.group, queue=item.queue, offset=next_offset, reason="offset illegal"
            )
        )
        self._tasks.spawn(self._correct_offset(item, next_offset), "correct offset")

    async def _correct_offset(self, item: ProcessQueue, next_offset: int) -> None:
        if self.config.offset_illegal_delay:
            await asyncio.sleep(self.config.offset_illegal_delay)
        self.offsets.update(item.queue, next_offset, increase_only=False)
        await self.balance.discard(item.queue, "its offset was illegal")
        self.wake("an illegal offset was corrected")

    def _adjust_limits(self) -> None:
        held = len(self._held_queues())
        if not held:
            return
        config = self.config
        if config.pull_threshold_for_topic != -1:
            self.pull_threshold_for_queue = max(1, config.pull_threshold_for_topic // held)
        if config.pull_threshold_size_for_topic != -1:
            self.pull_threshold_size_for_queue = max(1, config.pull_threshold_size_for_topic // held)

    # -- requests from brokers -------------------------------------------------------

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """220: stops, waits for what runs, sets the offsets, goes on."""
        self.suspend()
        try:
            concerned = [
                item
                for queue, item in self.balance.table.items()
                if queue.topic == topic and queue in offsets
            ]
            for item in concerned:
                self.balance.mark_dropped(item, "its offset is being reset")
                item.draining, item.dropped = False, True
                item.clear()
            await asyncio.sleep(self.config.reset_delay)
            for item in concerned:
                offset = offsets[item.queue]
                self.offsets.update(item.queue, offset, increase_only=False)
                self.emit(
                    events.OffsetReset(
                        group=self.group, queue=item.queue, offset=offset, reason="reset by request"
                    )
                )
                self._finished.pop(item.queue, None)
                await self.balance.discard(item.queue, "its offset was reset")
                self._finished.pop(item.queue, None)
        finally:
            self.resume()

    async def consume_directly(self, message: MessageView, broker_name: str | None) -> ConsumeDirectlyResult:
        """309: runs the handler on one message and tells what it said; progress is not touched."""
        if message.topic.startswith(RETRY_PREFIX):
            message.topic = message.original_topic
        listener = self.listener_for(message)
        if listener is None:
            raise ResponseError(f"no handler for topic {message.topic} in this consumer")
        context = ConsumeContext(MessageQueue(message.topic, broker_name or "", message.queue_id))
        began = self.clock.monotonic()
        assert self._threads is not None
        outcome = await self._threads.handle(listener, [message], context)
        return ConsumeDirectlyResult(
            auto_commit=context.auto_commit,
            consume_result="CR_THROW_EXCEPTION" if outcome.error else _DIRECT_RESULTS[outcome.result],
            order=self.ordered,
            remark=outcome.error,
            spent_time_mills=int((self.clock.monotonic() - began) * 1000),
        )


_DIRECT_RESULTS = {
    ConsumeResult.SUCCESS: "CR_SUCCESS",
    ConsumeResult.LATER: "CR_LATER",
    ConsumeResult.COMMIT: "CR_COMMIT",
    ConsumeResult.ROLLBACK: "CR_ROLLBACK",
}
