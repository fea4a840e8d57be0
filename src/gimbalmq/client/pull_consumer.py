"""A consumer you ask for messages (Java: DefaultLitePullConsumer).

Either subscribe topics, and the group shares out their queues, or assign queues by hand. One loop per queue
reads ahead into a window of bounded size; ``poll`` takes from there. A message counts as done when the next
one is asked for: what ``poll`` returned last is committed no earlier than in the next call.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from typing import Any

from gimbalmq.client import events
from gimbalmq.client.config import check_options
from gimbalmq.client.consume import Listener
from gimbalmq.client.consumer import Consumer
from gimbalmq.client.consumer_config import TAG, PullConsumerConfig, subscription_for
from gimbalmq.client.consumption import Batch
from gimbalmq.client.offsets import OffsetStore, ReadFrom
from gimbalmq.client.process_queue import ProcessQueue
from gimbalmq.errors import ConfigError, ResponseError, RocketMQError, StateError
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue, sort_queues
from gimbalmq.model.results import PullStatus
from gimbalmq.protocol.bodies import Subscription
from gimbalmq.protocol.codes import ResponseCode
from gimbalmq.protocol.status_bodies import ConsumeDirectlyResult
from gimbalmq.rpc.messages import PULL_SUBSCRIPTION, PULL_SUSPEND

log = logging.getLogger(__name__)

_POLLED = Listener(lambda message: None, batch=False)


class PullConsumer(Consumer[PullConsumerConfig]):
    """Hands out the messages of its queues when asked.

    >>> async with PullConsumer("orders", "127.0.0.1:9876") as consumer:      # doctest: +SKIP
    ...     consumer.subscribe("TopicTest")
    ...     async for message in consumer:
    ...         print(message.body)

    Args:
        group: the consumer group's name.
        namesrv: name servers, ``host:port;host:port``.
        config: a whole configuration instead of the two and the options.
        offset_store: where progress is kept, instead of the broker or the local file.
        options: any field of ``PullConsumerConfig``.
    """

    consume_type = "CONSUME_ACTIVELY"

    def __init__(
        self,
        group: str = "",
        namesrv: str | list[str] | tuple[str, ...] = "",
        *,
        config: PullConsumerConfig | None = None,
        offset_store: OffsetStore | None = None,
        **options: Any,
    ) -> None:
        if config is None:
            check_options(PullConsumerConfig, options)
            config = PullConsumerConfig(group=group, namesrv=namesrv, **options)
        elif options:
            config = config.with_options(**options)
        super().__init__(config, offset_store)
        self._by_hand: dict[MessageQueue, Subscription] | None = None
        self._pulls: dict[ProcessQueue, asyncio.Task[None]] = {}
        self._fetched: deque[tuple[ProcessQueue, list[MessageView]]] = deque()
        self._arrived: asyncio.Event | None = None
        self._handed: list[Batch] = []
        self._unconfirmed: dict[MessageQueue, int] = {}
        self._positions: dict[MessageQueue, int] = {}
        self._seeks: dict[MessageQueue, int] = {}
        self._giving_up: set[MessageQueue] = set()
        self._next_commit: float | None = None

    # -- which queues ----------------------------------------------------------------

    def subscribe(self, topic: str, expression: str = "*", *, expression_type: str = TAG) -> None:
        """Joins the group's sharing of a topic's queues.

        Raises:
            StateError: queues have been assigned by hand.
        """
        if self._by_hand is not None:
            raise StateError("queues have been assigned by hand; a consumer either subscribes or is assigned")
        self._set_subscription(topic, expression, expression_type)

    def assign(self, queues: Iterable[MessageQueue], expression: str = "*") -> None:
        """Takes exactly these queues, whoever else reads them; a later call replaces them.

        Raises:
            StateError: a topic has been subscribed.
        """
        if self._subscriptions:
            raise StateError("topics have been subscribed; a consumer either subscribes or is assigned")
        first_time = self._by_hand is None
        self._by_hand = {queue: subscription_for(queue.topic, expression, 0) for queue in queues}
        if self._ready and self.running:
            if first_time and self._loop is not None:
                self._loop.leave(self)
            self._tasks.spawn(self._settle_assignment(self._apply_assignment()), "assign")

    def _apply_assignment(self) -> list[ProcessQueue]:
        """Holds what is assigned, from now on; answers what is still to be given up."""
        wanted = self._by_hand or {}
        table = self.balance.table
        dropped = []
        for queue, item in list(table.items()):
            if queue not in wanted:
                self.balance.mark_dropped(item, "no longer assigned")
                item.draining, item.dropped = False, True
            if item.dropped:
                del table[queue]
                dropped.append(item)
                self._giving_up.add(queue)
        for queue in sort_queues(wanted):
            if queue not in table:
                if queue not in self._giving_up:  # else its progress here is newer than the broker's
                    self.offsets.forget(queue)
                table[queue] = item = ProcessQueue(queue, now=self.clock.monotonic())
                self.emit(events.QueueTaken(group=self.group, queue=queue, offset=-1, reason="assigned"))
                self.begin(item, 0)
        return dropped

    async def _settle_assignment(self, dropped: Iterable[ProcessQueue]) -> None:
        for item in dropped:
            if item.queue not in self.balance.table:
                await self.remove(item)
            self._giving_up.discard(item.queue)
        await self._refresh_routes()
        await self._announce()

    @property
    def is_balanced_by_group(self) -> bool:
        return self._by_hand is None

    def subscribed_topics(self) -> Iterable[str]:
        topics = set(self._subscriptions)
        topics.update(queue.topic for queue in self._by_hand or ())
        return sorted(topics)

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """All readable queues of a topic, asked of a name server now."""
        return await self.instance.fetch_subscribe_queues(topic)

    # -- life ------------------------------------------------------------------------

    def _add_own_subscriptions(self) -> None:
        now = self.clock.wall_ms()
        for data in self._subscriptions.values():
            data.sub_version = data.sub_version or now

    async def _start_parts(self) -> None:
        self._arrived = asyncio.Event()

    async def _after_start(self) -> None:
        if self._by_hand is not None:
            await self._settle_assignment(self._apply_assignment())

    async def _stop_consuming(self) -> None:
        for task in list(self._pulls.values()):
            task.cancel()
        if self._arrived is not None:
            self._arrived.set()
        if self._left_by_error:
            # What poll() returned last may be what could not be processed.
            self._positions.update(self._unconfirmed)
        self._finish_handed()
        if self.config.auto_commit:
            self._positions_to_offsets()

    # -- host of the rebalancer ------------------------------------------------------

    async def start_offset(self, queue: MessageQueue) -> int:
        """The rebalance knows none for pull consumers; the queue's own loop finds it out."""
        return 0

    def begin(self, process_queue: ProcessQueue, offset: int) -> None:
        task = self._tasks.spawn(self._pull_loop(process_queue), f"pull {process_queue.queue}")
        self._pulls[process_queue] = task
        task.add_done_callback(lambda _: self._forget_pull(process_queue, task))

    def _forget_pull(self, item: ProcessQueue, task: asyncio.Task[None]) -> None:
        if self._pulls.get(item) is task:
            del self._pulls[item]

    def stop(self, process_queue: ProcessQueue) -> None:
        task = self._pulls.pop(process_queue, None)
        if task is not None:
            task.cancel()
        self._fetched = deque(entry for entry in self._fetched if entry[0] is not process_queue)

    async def remove(self, process_queue: ProcessQueue) -> bool:
        queue = process_queue.queue
        if process_queue.dropped and self.config.auto_commit and not process_queue.running:
            position = self._positions.get(queue)
            if position is not None:
                self.offsets.update(queue, position, increase_only=False)
        if not await super().remove(process_queue):
            return False
        if self.balance.table.get(queue) in (None, process_queue):
            self._positions.pop(queue, None)
        if self.needs_lock and self.is_balanced_by_group:
            await self.locks.unlock(queue)
        return True

    # -- reading ahead ---------------------------------------------------------------

    async def _pull_loop(self, item: ProcessQueue) -> None:
        config = self.config
        queue = item.queue
        next_offset = await self._first_offset(item)
        paused = self.clock.monotonic() - item.acquired_at
        self.emit(events.QueueStarted(group=self.group, queue=queue, paused=paused))
        while not (item.dropped or item.draining):
            item.last_pull = self.clock.monotonic()
            pause = self._reason_to_wait(item)
            data = self._data_of(queue)
            if pause is None and data is not None:
                try:
                    result = await self._pull(
                        queue,
                        data,
                        next_offset,
                        count=config.pull_batch_size,
                        sys_flag=PULL_SUSPEND | PULL_SUBSCRIPTION,
                    )
                except ResponseError as error:
                    log.warning("pull of %s at %d: %s", queue, next_offset, error)
                    busy = error.code == ResponseCode.FLOW_CONTROL
                    pause = config.busy_delay if busy else config.exception_delay
                except RocketMQError as error:
                    log.warning("pull of %s at %d: %s", queue, next_offset, error)
                    pause = config.exception_delay
                else:
                    if item.dropped or item.draining:
                        return
                    next_offset = result.next_begin_offset
                    pause = 0.0
                    if result.status is PullStatus.OFFSET_ILLEGAL:
                        self.emit(
                            events.OffsetReset(
                                group=self.group, queue=queue, offset=next_offset, reason="offset illegal"
                            )
                        )
                    if result.messages:
                        item.put(result.messages)
                        self._fetched.append((item, result.messages))
                        self._wake_poll()
            elif pause is None:
                pause = config.exception_delay
            if pause:
                await asyncio.sleep(pause)

    def _data_of(self, queue: MessageQueue) -> Subscription | None:
        if self._by_hand is not None:
            return self._by_hand.get(queue)
        return self._subscriptions.get(queue.topic)

    async def _first_offset(self, item: ProcessQueue) -> int:
        queue = item.queue
        while True:
            if queue in self._seeks:
                offset = self._seeks.pop(queue)
                self._positions[queue] = offset
                return offset
            try:
                return await self.computed_start(queue, ReadFrom.MEMORY_FIRST_THEN_STORE)
            except RocketMQError as error:
                log.warning("where to begin in %s is not known, asked again soon: %s", queue, error)
            await asyncio.sleep(self.config.offset_failure_delay)

    def _reason_to_wait(self, item: ProcessQueue) -> float | None:
        config = self.config
        if item.paused:
            return config.pause_delay
        cached = sum(other.count for other in self.balance.table.values())
        if (
            cached > config.pull_threshold_for_all
            or item.count > config.pull_threshold_for_queue
            or item.body_bytes >> 20 > config.pull_threshold_size_for_queue
            or item.span > config.max_span
        ):
            return config.flow_control_delay
        return None

    # -- polling ---------------------------------------------------------------------

    async def poll(self, timeout: float | None = None) -> list[MessageView]:
        """The next messages of one queue; an empty list when none came in time.

        Asking again means that what was returned before is done, and so does close(). Leaving ``async with``
        by an exception does not: these messages come again.

        Args:
            timeout: seconds to wait; left out, it is the config's ``poll_timeout``.
        """
        batch = await self._next_batch(self.config.poll_timeout if timeout is None else timeout)
        if batch is None:
            return []
        item, messages = batch.process_queue, batch.messages
        self._unconfirmed[item.queue] = messages[0].queue_offset
        self._positions[item.queue] = item.remove(messages)
        return messages

    async def __aiter__(self) -> AsyncIterator[MessageView]:
        """Messages one by one, until the consumer is closed."""
        while self.running:
            batch = await self._next_batch(None)
            if batch is None:
                continue
            item, messages = batch.process_queue, batch.messages
            following = item.remove(messages)
            positions = self._positions
            queue = item.queue
            for message in messages:
                # Fenced: another may have the queue.
                while self.clock.monotonic() > item.holds_until and not (item.dropped or self._closed):  # noqa: ASYNC110
                    await asyncio.sleep(self.config.flow_control_delay)
                if item.dropped or batch not in self._handed:
                    break
                positions[queue] = message.queue_offset
                yield message
                if batch not in self._handed:
                    break  # a seek has moved the queue elsewhere meanwhile
                positions[queue] = message.queue_offset + 1
            if not item.dropped and batch in self._handed:
                positions[queue] = following

    async def _next_batch(self, timeout: float | None) -> Batch | None:
        if not self.running or self._arrived is None:
            raise StateError(f"consumer {self.group} is not running: use it in `async with`, or call start()")
        self._finish_handed()
        await self._commit_when_due()
        entry = self._take_ready()
        if entry is None and (timeout is None or timeout > 0):
            deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
            try:
                async with asyncio.timeout_at(deadline):
                    while entry is None and not self._closed:
                        self._arrived.clear()
                        await self._arrived.wait()
                        entry = self._take_ready()
            except TimeoutError:
                return None
        if entry is None:
            return None
        batch = Batch(entry[0], entry[1], _POLLED)
        batch.started = entry[0].last_consume = self.clock.monotonic()
        entry[0].begin(batch)
        self._handed.append(batch)
        return batch

    def _take_ready(self) -> tuple[ProcessQueue, list[MessageView]] | None:
        now = self.clock.monotonic()
        for index, entry in enumerate(self._fetched):
            item = entry[0]
            if not (item.paused or item.dropped or item.draining or now > item.holds_until):
                del self._fetched[index]
                return entry
        return None

    def _resume(self, item: ProcessQueue) -> None:
        self._wake_poll()

    def _wake_poll(self) -> None:
        if self._arrived is not None:
            self._arrived.set()

    def _finish_handed(self) -> None:
        for batch in self._handed:
            item = batch.process_queue
            if item.draining and not item.dropped and self.config.auto_commit:
                # It is being handed over and waits for exactly this.
                position = self._positions.get(item.queue)
                if position is not None:
                    self.offsets.update(item.queue, position, increase_only=False)
            item.end(batch)
        self._handed.clear()
        self._unconfirmed.clear()

    def _let_go(self, item: ProcessQueue) -> None:
        """What was handed out of a queue does not count any more: the queue goes on elsewhere."""
        for batch in [batch for batch in self._handed if batch.process_queue is item]:
            self._handed.remove(batch)
            item.end(batch)
        self._unconfirmed.pop(item.queue, None)

    # -- progress --------------------------------------------------------------------

    async def _commit_when_due(self) -> None:
        if not self.config.auto_commit:
            return
        now = self.clock.monotonic()
        if self._next_commit is None:
            self._next_commit = now + self.config.auto_commit_interval
        elif now >= self._next_commit:
            self._next_commit = now + self.config.auto_commit_interval
            try:
                await self.commit(wait=False)
            except RocketMQError as error:
                log.warning("progress of %s could not be committed, next try soon: %s", self.group, error)

    def _positions_to_offsets(self) -> None:
        for queue, position in self._positions.items():
            item = self.balance.table.get(queue)
            if position >= 0 and item is not None and not item.dropped:
                self.offsets.update(queue, position, increase_only=False)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None, *, wait: bool = True) -> None:
        """Writes progress away.

        Args:
            offsets: these, instead of everything handed out so far.
            wait: until the brokers have answered.
        """
        if offsets is None:
            self._unconfirmed.clear()
            self._positions_to_offsets()
            queues: Collection[MessageQueue] = [
                queue for queue in self._positions if not self._in_doubt(queue)
            ]
        else:
            for queue, offset in offsets.items():
                self.offsets.update(queue, offset, increase_only=False)
                if queue in self._unconfirmed:
                    self._unconfirmed[queue] = offset
            queues = offsets.keys()
        held = self.balance.table
        await asyncio.gather(*(self.offsets.persist(queue, wait=wait) for queue in queues if queue in held))

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's progress in a queue; None where it has none."""
        return await self.offsets.read(queue, ReadFrom.MEMORY_FIRST_THEN_STORE)

    def position(self, queue: MessageQueue) -> int | None:
        """The offset that ``commit`` would write for a queue; None where nothing has been handed out yet."""
        return self._positions.get(queue)

    async def _lag_of(self, queue: MessageQueue) -> int:
        position = self._positions.get(queue)
        if position is None:
            return await super()._lag_of(queue)
        return max(0, await self.max_offset(queue) - position)

    # -- moving and holding ----------------------------------------------------------

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Goes on from another offset of a held queue.

        Raises:
            StateError: the queue is not held.
            ConfigError: the queue does not reach there.
        """
        item = self.balance.table.get(queue)
        if item is None or item.dropped:
            raise StateError(f"{queue} is not among the queues of this consumer")
        low, high = await asyncio.gather(self.min_offset(queue), self.max_offset(queue))
        if not low <= offset <= high:
            raise ConfigError("offset", offset, f"{queue} reaches from {low} to {high}")
        self.stop(item)
        self._let_go(item)
        item.clear()
        self._seeks[queue] = offset
        self._positions[queue] = offset
        self.begin(item, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        await self.seek(queue, await self.min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        await self.seek(queue, await self.max_offset(queue))

    async def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Goes on from the first message stored at or after a time, ms since 1970."""
        await self.seek(queue, await self.offset_for_time(queue, timestamp_ms))

    def pause(self, *queues: MessageQueue) -> None:
        """Hands out nothing of these queues until they are resumed; they stay ours."""
        for queue in queues:
            item = self.balance.table.get(queue)
            if item is not None:
                item.paused = True

    def resume(self, *queues: MessageQueue) -> None:
        for queue in queues:
            item = self.balance.table.get(queue)
            if item is not None:
                item.paused = False
        self._wake_poll()

    # -- requests from brokers -------------------------------------------------------

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """220: seeks to the offsets and commits them."""
        for queue, offset in offsets.items():
            item = self.balance.table.get(queue)
            if item is None or queue.topic != topic:
                continue
            self.stop(item)
            self._let_go(item)
            item.clear()
            self._seeks[queue] = self._positions[queue] = offset
            self.emit(
                events.OffsetReset(group=self.group, queue=queue, offset=offset, reason="reset by request")
            )
            self.begin(item, offset)
        await self.commit(
            {queue: offset for queue, offset in offsets.items() if queue.topic == topic}, wait=False
        )

    async def consume_directly(self, message: MessageView, broker_name: str | None) -> ConsumeDirectlyResult:
        raise ResponseError("a pull consumer has no handler to run")
