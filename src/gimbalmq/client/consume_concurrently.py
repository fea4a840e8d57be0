"""Messages consumed in any order, many at a time.

Every pulled run of messages is cut into batches. Batches of ``async def`` handlers are worked off by at most
``consume_threads`` tasks, those of plain functions by as many threads; there is never a task per message, and
results of threads come back to the loop many at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from gimbalmq.client.consume import ConsumeContext, Listener, Outcome, Unfinished
from gimbalmq.client.consumption import NOBODY, Batch, ConsumeHost, by_listener, wait_quiet
from gimbalmq.client.handler_threads import HandlerThreads
from gimbalmq.client.process_queue import ProcessQueue
from gimbalmq.model.message import MessageView
from gimbalmq.model.topics import RETRY_PREFIX
from gimbalmq.transport.tasks import Tasks

log = logging.getLogger(__name__)

EXPIRED_LEVEL = 3
EXPIRED_LIMIT = 16
_YIELD_AFTER = 64


class ConcurrentConsumption:
    """Batches in any order (Java: ConsumeMessageConcurrentlyService)."""

    ordered = False

    def __init__(self, host: ConsumeHost, tasks: Tasks, threads: HandlerThreads) -> None:
        self._host = host
        self._tasks = tasks
        self._threads = threads
        self._limit = host.config.consume_threads
        self._batch_size = host.config.consume_message_batch_max_size
        self._monotonic = host.clock.monotonic
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Batch] = deque()
        self._workers = 0
        self._hiring = False
        self._finished: deque[tuple[Batch, Outcome]] = deque()
        self._closed = False
        self._hurried = asyncio.Event()

    def start(self) -> None:
        self._tasks.every(self._host.config.consume_timeout, self.send_back_expired, "expired messages")

    def submit(self, process_queue: ProcessQueue, messages: list[MessageView], dispatch: bool = True) -> None:
        """Cuts pulled messages into batches and has them consumed."""
        if process_queue.queue.topic.startswith(RETRY_PREFIX):
            for listener, run in by_listener(self._host, messages):
                self._submit_run(process_queue, run, listener)
        elif messages:
            self._submit_run(process_queue, messages, self._host.listener_for(messages[0]))

    def _submit_run(
        self, process_queue: ProcessQueue, messages: list[MessageView], listener: Listener | None
    ) -> None:
        if listener is None:
            log.error(
                "no handler for messages of topic %s; they are sent back. Subscribe the topic again, or read "
                "them from the dead letters",
                messages[0].topic,
            )
            batch = Batch(process_queue, messages, NOBODY)
            batch.started = batch.ended = self._monotonic()
            process_queue.begin(batch)
            self._settle([batch], messages)
            return
        size = self._batch_size if listener.batch else 1
        shared = None if listener.wants_context else ConsumeContext(process_queue.queue)
        batches = [
            Batch(process_queue, messages[start : start + size], listener, shared)
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

    def _may_begin(self, batch: Batch) -> bool:
        process_queue = batch.process_queue
        return not (
            process_queue.dropped
            or process_queue.draining
            or batch.started > process_queue.holds_until
            or self._closed
        )

    def resume(self, process_queue: ProcessQueue) -> None:
        """Begins what was held back while the queue's lease was in doubt."""
        shelved, process_queue.shelved = process_queue.shelved, []
        for batch in shelved:
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
                process_queue = batch.process_queue
                if process_queue.dropped or process_queue.draining or self._closed:
                    batch.give_up()
                    continue
                if now > process_queue.holds_until:
                    process_queue.shelved.append(batch)
                    continue
                batch.started = now
                process_queue.begin(batch)
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

        Nothing new is begun for that, for the loop may be ending. If it goes on, the next batch that comes
        brings this one along.
        """
        batch.process_queue.end(batch)
        batch.unfinished = batch.context = None
        if not self._closed:
            self._waiting.appendleft(batch)

    def _run_in_thread(self, batch: Batch) -> tuple[Batch, Outcome | None]:
        batch.started = self._monotonic()
        batch.process_queue.begin(batch)
        # After begin(), and again here: a handover that saw no running batch must not be followed by one.
        if not self._may_begin(batch):
            return batch, None
        outcome = batch.listener.run(batch.messages, batch.own_context())
        batch.ended = self._monotonic()
        return batch, outcome

    def _thread_done(self, done: tuple[Batch, Outcome | None]) -> None:
        batch, outcome = done
        if outcome is not None and not isinstance(outcome, Unfinished):
            self._done(batch, outcome)
            return
        process_queue = batch.process_queue
        process_queue.end(batch)
        batch.unfinished = outcome
        if process_queue.dropped or process_queue.draining or self._closed:
            batch.give_up()
        elif self._monotonic() > process_queue.holds_until:
            process_queue.shelved.append(batch)
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
                    and finished[0][0].process_queue is batch.process_queue
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
        process_queue = batches[0].process_queue
        process_queue.last_consume = batches[-1].ended
        messages = [message for batch in batches for message in batch.messages]
        seconds = sum([batch.ended - batch.started for batch in batches])
        host = self._host
        host.count_consumed(messages[0].topic, len(messages) - len(failed), len(failed), seconds)
        if process_queue.dropped:
            log.debug(
                "result of %d messages of %s ignored: it was dropped", len(messages), process_queue.queue
            )
        elif failed:
            self._tasks.spawn(self._settle_failed(batches[0], failed), "send back")
            return
        else:
            self._finish(process_queue, messages)
        process_queue.end(*batches)

    def _finish(self, process_queue: ProcessQueue, messages: Sequence[MessageView]) -> None:
        offset = process_queue.remove(messages)
        if offset >= 0 and not process_queue.dropped:
            self._host.offsets.update(process_queue.queue, offset, increase_only=True)

    async def _settle_failed(self, batch: Batch, failed: list[MessageView]) -> None:
        process_queue = batch.process_queue
        context = batch.own_context()
        again: list[MessageView] = []
        try:
            if self._host.config.broadcasting:
                for message in failed:
                    log.warning("broadcasting: message %s failed and is dropped", message.msg_id)
            else:
                for message in failed:
                    # One that has left the window was sent back by the expiry already.
                    if message in process_queue and not await self._host.send_back(
                        message, context.delay_level, process_queue.queue
                    ):
                        message.reconsume_times += 1
                        again.append(message)
            if again:
                offsets = {message.queue_offset for message in again}
                done = [message for message in batch.messages if message.queue_offset not in offsets]
                self._tasks.spawn(self._submit_later(process_queue, again), "consume again")
            else:
                done = batch.messages
            self._finish(process_queue, done)
        finally:
            process_queue.end(batch)

    async def _submit_later(self, process_queue: ProcessQueue, messages: list[MessageView]) -> None:
        await asyncio.sleep(self._host.config.resubmit_delay)
        self.submit(process_queue, messages)

    async def send_back_expired(self) -> None:
        """Messages a handler has had for longer than the consume timeout go back to the broker."""
        if self._host.config.broadcasting:
            return
        for process_queue in list(self._host.process_queues()):
            await self._send_back_expired_of(process_queue)

    async def _send_back_expired_of(self, process_queue: ProcessQueue) -> None:
        oldest = self._host.clock.monotonic() - self._host.config.consume_timeout
        started = {
            message.queue_offset: batch.started
            for batch in list(process_queue.running.values())
            for message in batch.messages
        }
        for message in process_queue.oldest(EXPIRED_LIMIT):
            if started.get(message.queue_offset, oldest) >= oldest or process_queue.dropped:
                return
            if not await self._host.send_back(message, EXPIRED_LEVEL, process_queue.queue):
                return
            log.warning("message %s was in work for too long and is sent back", message.msg_id)
            # As in Java the offset moves on only with the next batch that is settled.
            process_queue.remove([message])

    async def close(self) -> None:
        """Begins nothing more and waits a while for what runs."""
        self._closed = True
        while self._waiting:
            self._waiting.popleft().give_up()
        self._settle_finished()
        await wait_quiet(self._host, self._hurried)

    def hurry(self) -> None:
        """What runs is not waited for any longer."""
        self._hurried.set()
