"""Each queue's messages consumed one after the other.

One run per queue at a time takes the oldest messages, and only while the broker's lock on the queue is ours.
"""

from __future__ import annotations

import asyncio

from gimbalmq.client.consume import ConsumeContext, ConsumeResult, Outcome
from gimbalmq.client.consumption import NOBODY, Batch, ConsumeHost, by_listener, wait_quiet
from gimbalmq.client.handler_threads import HandlerThreads
from gimbalmq.client.process_queue import ProcessQueue
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.transport.tasks import Tasks


class OrderedConsumption:
    """Each queue's messages one after the other (Java: ConsumeMessageOrderlyService)."""

    ordered = True

    def __init__(self, host: ConsumeHost, tasks: Tasks, threads: HandlerThreads) -> None:
        self._host = host
        self._tasks = tasks
        self._threads = threads
        self._slots = asyncio.Semaphore(host.config.consume_threads)
        self._batch_size = host.config.consume_message_batch_max_size
        self._mutexes: dict[MessageQueue, asyncio.Lock] = {}
        self._closed = False
        self._hurried = asyncio.Event()

    def start(self) -> None:
        pass

    def submit(self, process_queue: ProcessQueue, messages: list[MessageView], dispatch: bool = True) -> None:
        """Starts a run for a queue that was idle; a busy one finds the messages by itself."""
        if dispatch:
            self._spawn(process_queue, 0.0)

    def _spawn(self, process_queue: ProcessQueue, delay: float) -> None:
        self._tasks.spawn(self._run(process_queue, delay), "consume in order")

    async def _run(self, process_queue: ProcessQueue, delay: float) -> None:
        if delay:
            await asyncio.sleep(delay)
        if process_queue.dropped:
            return
        # A queue that was dropped and taken again has a second window, but still one handler at a time.
        mutex = self._mutexes.setdefault(process_queue.queue, asyncio.Lock())
        async with mutex:
            if not self._has_lock(process_queue):
                if not process_queue.dropped:
                    self._relock_later(process_queue, 0.1)
                return
            begun = self._host.clock.monotonic()
            while await self._step(process_queue, begun):
                pass

    def _next_size(self, process_queue: ProcessQueue) -> int:
        """A handler of single messages gets them one by one: each is settled before the next begins."""
        for message in process_queue.oldest(1):
            listener, _ = by_listener(self._host, [message])[0]
            if listener is not None and not listener.batch:
                return 1
        return self._batch_size

    def _has_lock(self, process_queue: ProcessQueue) -> bool:
        config = self._host.config
        if config.broadcasting:
            return True
        now = self._host.clock.monotonic()
        return (
            process_queue.locked
            and now <= process_queue.holds_until
            and not process_queue.lock_expired(now, config.lock_live)
        )

    def resume(self, process_queue: ProcessQueue) -> None:
        """Goes on with a queue that stood still while its lease was in doubt."""
        if process_queue.consuming:
            self._spawn(process_queue, 0.0)

    async def _step(self, process_queue: ProcessQueue, begun: float) -> bool:
        """Consumes one batch; whether the run goes on."""
        if process_queue.dropped or process_queue.draining or self._closed:
            return False
        if not self._has_lock(process_queue):
            self._relock_later(process_queue, 0.01)
            return False
        if self._host.clock.monotonic() - begun > self._host.config.continuous_limit:
            self._spawn(process_queue, 0.01)
            return False
        messages = process_queue.take(self._next_size(process_queue))
        if not messages:
            return False
        listener, run = by_listener(self._host, messages)[0]
        if len(run) < len(messages):
            process_queue.put_back(messages[len(run) :])
            messages = run
        context = ConsumeContext(process_queue.queue)
        async with self._slots, process_queue.consume_lock:
            if process_queue.dropped or process_queue.draining or self._closed:
                process_queue.put_back(messages)
                process_queue.consuming = False
                return False
            if self._host.clock.monotonic() > process_queue.holds_until:
                process_queue.put_back(messages)
                self._relock_later(process_queue, 0.01)
                return False
            batch = Batch(process_queue, messages, listener or NOBODY)
            batch.started = self._host.clock.monotonic()
            process_queue.begin(batch)
            outcome: Outcome | None = None
            try:
                if listener is None:
                    outcome = Outcome(ConsumeResult.LATER, messages)
                else:
                    outcome = await self._threads.handle(listener, messages, context)
                now = process_queue.last_consume = self._host.clock.monotonic()
                failed = len(outcome.failed)
                self._host.count_consumed(
                    messages[0].topic, len(messages) - failed, failed, now - batch.started
                )
                # Settled before the consume lock is free: a removal waiting for it finds the progress noted.
                return await self._settle(process_queue, messages, outcome, context)
            finally:
                process_queue.end(batch)
                if outcome is None and not self._closed:
                    # The handler has cancelled its own task, or the loop is ending. If the loop goes on, the next
                    # message that comes starts a new run.
                    process_queue.put_back(messages)
                    process_queue.consuming = False

    async def _settle(
        self,
        process_queue: ProcessQueue,
        messages: list[MessageView],
        outcome: Outcome,
        context: ConsumeContext,
    ) -> bool:
        if outcome.result is ConsumeResult.ROLLBACK and not context.auto_commit:
            process_queue.rollback()
            self._spawn(process_queue, self._suspend_seconds(context))
            return False
        done = len(messages) - len(outcome.failed)
        done += await self._resend_used_up(outcome.failed)
        again = messages[done:]
        process_queue.put_back(again)
        if done and (context.auto_commit or outcome.result is ConsumeResult.COMMIT):
            offset = process_queue.commit()
            if offset >= 0 and not process_queue.dropped:
                self._host.offsets.update(process_queue.queue, offset, increase_only=False)
        if again:
            self._spawn(process_queue, self._suspend_seconds(context))
        return not again

    async def _resend_used_up(self, failed: list[MessageView]) -> int:
        """Counts a failure of each message, and gives those to the broker that have failed too often.

        Returns:
            How many from the first on need not come again. Those behind one that must come again do so too:
            progress is an offset, it cannot leave out a message.
        """
        resent = 0
        for number, message in enumerate(failed):
            if message.reconsume_times >= self._host.max_reconsume_times and await self._host.resend(message):
                resent += resent == number
            else:
                message.reconsume_times += 1
        return resent

    def _suspend_seconds(self, context: ConsumeContext) -> float:
        seconds = self._host.config.suspend_current_queue if context.suspend is None else context.suspend
        return min(30.0, max(0.01, seconds))

    def _relock_later(self, process_queue: ProcessQueue, delay: float) -> None:
        self._tasks.spawn(self._relock(process_queue, delay), "lock again")

    async def _relock(self, process_queue: ProcessQueue, delay: float) -> None:
        await asyncio.sleep(delay)
        if process_queue.dropped or self._closed:
            return
        if await self._host.lock_queue(process_queue.queue):
            self._spawn(process_queue, 0.01)
        else:
            self._spawn(process_queue, self._host.config.relock_delay)

    async def close(self) -> None:
        """Begins nothing more and waits a while for what runs."""
        self._closed = True
        await wait_quiet(self._host, self._hurried)

    def hurry(self) -> None:
        """What runs is not waited for any longer."""
        self._hurried.set()
