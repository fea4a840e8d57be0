"""Works queues off in any order, many messages at a time.

Every pulled run of messages is cut into batches. Batches of ``async def`` handlers are worked off by at most
``consume_threads`` tasks, those of plain functions by as many threads; there is never a task per message, and
results of threads come back to the loop many at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable

from gimbalmq._clock import Clock
from gimbalmq.client.consumer_config import PushConsumerConfig
from gimbalmq.client.consuming.handlers import (
    Batch,
    ConsumeContext,
    Listener,
    Listeners,
    Outcome,
    Unfinished,
)
from gimbalmq.client.consuming.held_queue import READING, HeldQueue
from gimbalmq.client.consuming.send_back import Returns
from gimbalmq.client.consuming.threads import HandlerThreads
from gimbalmq.client.rates import Rates
from gimbalmq.model.message import MessageView
from gimbalmq.model.topics import RETRY_PREFIX
from gimbalmq.transport.tasks import Tasks

log = logging.getLogger(__name__)

EXPIRED_LEVEL = 3
EXPIRED_LIMIT = 16
CUT_SHORT_PAUSE = 1.0
"""Seconds after which a batch whose handler was cut short is begun again."""
_YIELD_AFTER = 64


class Concurrent:
    """Batches in any order (Java: ConsumeMessageConcurrentlyService)."""

    def __init__(
        self,
        config: PushConsumerConfig,
        clock: Clock,
        listeners: Listeners,
        returns: Returns,
        rates: Rates,
        threads: HandlerThreads,
        tasks: Tasks,
    ) -> None:
        self._config = config
        self._listeners = listeners
        self._returns = returns
        self._rates = rates
        self._threads = threads
        self._tasks = tasks
        self._limit = config.consume_threads
        self._batch_size = config.consume_message_batch_max_size
        self._monotonic = clock.monotonic
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Batch] = deque()
        self._workers = 0
        self._hiring = False
        self._finished: deque[tuple[Batch, Outcome]] = deque()
        self._closed = False

    def submit(self, held: HeldQueue, messages: list[MessageView], dispatch: bool = True) -> None:
        """Cuts pulled messages into batches and has them consumed."""
        if held.queue.topic.startswith(RETRY_PREFIX):
            for listener, run in self._listeners.runs(messages):
                self._submit_run(held, run, listener)
        elif messages:
            self._submit_run(held, messages, self._listeners.of(messages[0]))

    def _submit_run(self, held: HeldQueue, messages: list[MessageView], listener: Listener | None) -> None:
        if listener is None:
            log.error(
                "no handler for messages of topic %s; they are sent back. Subscribe the topic again, or read "
                "them from the dead letters",
                messages[0].topic,
            )
            batch = Batch(held, messages)
            batch.started = batch.ended = self._monotonic()
            held.begin(batch)
            self._settle([batch], messages)
            return
        size = self._batch_size if listener.batch else 1
        shared = None if listener.wants_context else ConsumeContext(held.queue)
        batches = [
            Batch(held, messages[start : start + size], listener=listener, context=shared)
            for start in range(0, len(messages), size)
        ]
        self._enqueue(batches, listener)

    def _enqueue(self, batches: list[Batch], listener: Listener) -> None:
        if not listener.is_async:
            for batch in batches:
                self._threads.submit(self._thread_done, self._run_in_thread, batch)
            return
        self._wait(batches)

    def _wait(self, batches: list[Batch]) -> None:
        self._waiting.extend(batches)
        if not self._hiring:
            self._hire()

    def _hire(self) -> None:
        """One more worker, and another in the next turn while batches wait: quick handlers need but one."""
        self._hiring = bool(self._waiting) and self._workers < self._limit
        if self._hiring:
            self._workers += 1
            self._tasks.spawn(self._work(), "consume")
            self._loop.call_soon(self._hire)

    # -- running ---------------------------------------------------------------------

    def _shelve(self, batch: Batch) -> None:
        """Holds a batch back until the queue's lease is sure again."""
        shelved = batch.held.shelved
        shelved.append(batch)
        if len(shelved) == 1:
            self._tasks.spawn(self._unshelve(batch.held), "wait for a lease")

    async def _unshelve(self, held: HeldQueue) -> None:
        await held.until_sure()
        shelved, held.shelved = held.shelved, []
        for batch in shelved:
            assert isinstance(batch, Batch)
            self._begin_again(batch)

    def _begin_again(self, batch: Batch) -> None:
        if batch.unfinished is None:
            self._enqueue([batch], batch.listener)
        else:
            self._wait([batch])

    async def _work(self) -> None:
        waiting = self._waiting
        monotonic = self._monotonic
        now = monotonic()
        turns = 0
        try:
            while waiting:
                batch = waiting.popleft()
                held = batch.held
                if held.state is not READING:
                    batch.leave()
                    continue
                if now > held.holds_until:
                    self._shelve(batch)
                    continue
                batch.started = now
                held.begin(batch)
                outcome = None
                try:
                    if batch.unfinished is None:
                        outcome = await batch.listener.run_async(batch.messages, batch.own_context())
                    else:
                        outcome = await batch.listener.finish(
                            batch.unfinished, batch.messages, batch.own_context()
                        )
                finally:
                    if outcome is None:
                        self._cut_short(batch)
                now = batch.ended = monotonic()
                self._done(batch, outcome)
                turns += 1
                if turns % _YIELD_AFTER == 0:
                    await asyncio.sleep(0)
                    now = monotonic()
        finally:
            self._workers -= 1

    def _cut_short(self, batch: Batch) -> None:
        """The task that ran a handler was cancelled: by close(), at the loop's end, or by the handler itself.

        No task is begun for that now, for the loop may be ending. If it goes on, the next batch that comes brings
        this one along, or a timer does.
        """
        batch.held.end(batch)
        batch.unfinished = batch.context = None
        if not self._closed:
            self._waiting.appendleft(batch)
            self._loop.call_later(CUT_SHORT_PAUSE, self._go_on)

    def _go_on(self) -> None:
        if not self._hiring:
            self._hire()

    def _run_in_thread(self, batch: Batch) -> tuple[Batch, Outcome | None]:
        batch.started = self._monotonic()
        batch.held.begin(batch)
        # After begin(), and again here: a handover that saw no running batch must not be followed by one.
        if batch.held.state is not READING or batch.started > batch.held.holds_until:
            return batch, None
        outcome = batch.listener.run(batch.messages, batch.own_context())
        batch.ended = self._monotonic()
        return batch, outcome

    def _thread_done(self, done: tuple[Batch, Outcome | None]) -> None:
        batch, outcome = done
        if outcome is not None and not isinstance(outcome, Unfinished):
            self._done(batch, outcome)
            return
        held = batch.held
        held.end(batch)
        batch.unfinished = outcome
        if held.state is not READING:
            batch.leave()
        elif self._monotonic() > held.holds_until:
            self._shelve(batch)
        else:  # its awaitable is to be awaited, or the lease was confirmed meanwhile
            self._begin_again(batch)

    # -- settling --------------------------------------------------------------------

    def _done(self, batch: Batch, outcome: Outcome) -> None:
        """A handler is through with a batch, which counts as running until it is settled, later in this turn."""
        if not self._finished:
            self._loop.call_soon(self._settle_finished)
        self._finished.append((batch, outcome))

    def _settle_finished(self) -> None:
        """Settles what ended in this turn, neighbours of one queue together: often all of a pull."""
        finished = self._finished
        try:
            while finished:
                batch, outcome = finished.popleft()
                run = [batch]
                while (
                    finished
                    and finished[0][0].held is batch.held
                    and finished[0][0].listener is batch.listener
                    and not (outcome.failed or finished[0][1].failed)
                ):
                    run.append(finished.popleft()[0])
                self._settle(run, outcome.failed)
        finally:
            if finished:  # an offset store of the user's has raised; the others are settled all the same
                self._loop.call_soon(self._settle_finished)

    def _settle(self, batches: list[Batch], failed: list[MessageView]) -> None:
        """Settles batches of one queue and handler; where messages failed, it is one batch."""
        held = batches[0].held
        held.last_consume = batches[-1].ended
        messages = [message for batch in batches for message in batch.messages]
        seconds = sum([batch.ended - batch.started for batch in batches])
        self._rates.consumed(messages[0].topic, len(messages) - len(failed), len(failed), seconds)
        if failed and not held.dropped:
            self._tasks.spawn(self._settle_failed(batches[0], failed), "send back")
            return
        try:
            if held.dropped:
                log.debug("result of %d messages of %s ignored: it was dropped", len(messages), held.queue)
            else:
                held.settle(messages)
        finally:  # an offset store of the user's may raise
            held.end(*batches)

    async def _settle_failed(self, batch: Batch, failed: list[MessageView]) -> None:
        held = batch.held
        context = batch.own_context()
        again: list[MessageView] = []
        try:
            for message in failed:
                if self._config.broadcasting:
                    log.warning("broadcasting: message %s failed and is dropped", message.msg_id)
                # One that has left the window was sent back by the expiry already.
                elif message in held.window and not await self._sent_back(held, message, context.delay_level):
                    message.reconsume_times += 1
                    again.append(message)
            if again:
                offsets = {message.queue_offset for message in again}
                done = [message for message in batch.messages if message.queue_offset not in offsets]
                self._tasks.spawn(self._submit_later(held, again), "consume again")
            else:
                done = batch.messages
            held.settle(done)
        finally:
            held.end(batch)

    async def _sent_back(self, held: HeldQueue, message: MessageView, delay_level: int) -> bool:
        """False if the message has to be consumed again here."""
        try:
            return await self._returns.send_back(message, delay_level, held.queue)
        except Exception:
            # Whatever it is, the message must neither be lost nor stay in the window for ever.
            log.exception("message %s could not be sent back", message.msg_id)
            return False

    async def _submit_later(self, held: HeldQueue, messages: list[MessageView]) -> None:
        await asyncio.sleep(self._config.resubmit_delay)
        self.submit(held, messages)

    async def send_back_expired(self, queues: Iterable[HeldQueue]) -> None:
        """Messages a handler has had for longer than the consume timeout go back to the broker."""
        if self._config.broadcasting:
            return
        for held in queues:
            await self._send_back_expired_of(held)

    async def _send_back_expired_of(self, held: HeldQueue) -> None:
        oldest = self._monotonic() - self._config.consume_timeout
        started = {
            message.queue_offset: batch.started
            for batch in list(held.running.values())
            for message in batch.messages
        }
        for message in held.window.oldest(EXPIRED_LIMIT):
            if started.get(message.queue_offset, oldest) >= oldest or held.dropped:
                return
            if not await self._sent_back(held, message, EXPIRED_LEVEL):
                return
            log.warning("message %s was in work for too long and is sent back", message.msg_id)
            # As in Java the offset moves on only with the next batch that is settled.
            held.window.remove([message])

    def close(self) -> None:
        """Settles what has ended; the queues are draining, so nothing more is begun."""
        self._closed = True
        while self._waiting:
            self._waiting.popleft().leave()
        self._settle_finished()
