"""Works queues off in order: each queue's messages one after the other.

One run per queue at a time takes the oldest messages, and only while the broker's lock on the queue is ours.
"""

from __future__ import annotations

import asyncio
import logging

from gimbalmq._clock import Clock
from gimbalmq.client.consumer_config import PushConsumerConfig
from gimbalmq.client.consuming.handlers import (
    NOBODY,
    Batch,
    ConsumeContext,
    ConsumeResult,
    Listeners,
    Outcome,
)
from gimbalmq.client.consuming.held_queue import READING, HeldQueue
from gimbalmq.client.consuming.locks import Locks
from gimbalmq.client.consuming.send_back import Returns
from gimbalmq.client.consuming.threads import HandlerThreads
from gimbalmq.client.rates import Rates
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.transport.tasks import Tasks

log = logging.getLogger(__name__)


class Ordered:
    """Each queue's messages one after the other (Java: ConsumeMessageOrderlyService).

    Args:
        locks: None if every member has all queues (broadcasting).
    """

    def __init__(
        self,
        config: PushConsumerConfig,
        clock: Clock,
        listeners: Listeners,
        returns: Returns,
        rates: Rates,
        threads: HandlerThreads,
        tasks: Tasks,
        locks: Locks | None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._listeners = listeners
        self._returns = returns
        self._rates = rates
        self._threads = threads
        self._tasks = tasks
        self._locks = locks
        self._slots = asyncio.Semaphore(config.consume_threads)
        self._batch_size = config.consume_message_batch_max_size
        self._mutexes: dict[MessageQueue, asyncio.Lock] = {}
        self._closed = False

    def submit(self, held: HeldQueue, messages: list[MessageView], dispatch: bool = True) -> None:
        """Starts a run for a queue that was idle; a busy one finds the messages by itself."""
        if dispatch:
            self._spawn(held, 0.0)

    def _spawn(self, held: HeldQueue, delay: float) -> None:
        self._tasks.spawn(self._run(held, delay), "consume in order")

    async def _run(self, held: HeldQueue, delay: float) -> None:
        if delay:
            await asyncio.sleep(delay)
        if held.dropped:
            return
        # A queue that was dropped and taken again has a second window, but still one handler at a time.
        mutex = self._mutexes.setdefault(held.queue, asyncio.Lock())
        async with mutex:
            if not self._has_lock(held):
                self._go_on_with_lock(held, 0.1)
                return
            begun = self._clock.monotonic()
            while await self._step(held, begun):
                pass

    # -- the lock --------------------------------------------------------------------

    def _has_lock(self, held: HeldQueue) -> bool:
        if self._locks is None:
            return True
        if held.leased:
            return not held.in_doubt
        return held.locked and not held.lock_expired(self._clock.monotonic(), self._config.lock_live)

    def _go_on_with_lock(self, held: HeldQueue, delay: float) -> None:
        """Runs the queue again when its lock is ours again."""
        if held.state is READING:
            wait = self._lease_confirmed(held) if held.leased else self._locked_again(held, delay)
            self._tasks.spawn(wait, "lock again")

    async def _lease_confirmed(self, held: HeldQueue) -> None:
        await held.until_sure()
        if held.state is READING:
            self._spawn(held, 0.0)

    async def _locked_again(self, held: HeldQueue, delay: float) -> None:
        await asyncio.sleep(delay)
        if held.state is not READING:
            return
        assert self._locks is not None
        granted = await self._locks.lock(held)
        self._spawn(held, 0.01 if granted else self._config.relock_delay)

    # -- running ---------------------------------------------------------------------

    async def _step(self, held: HeldQueue, begun: float) -> bool:
        """Consumes one batch; whether the run goes on."""
        if not self._may_begin(held):
            return False
        if self._clock.monotonic() - begun > self._config.continuous_limit:
            self._spawn(held, 0.01)
            return False
        async with self._slots:
            if not self._may_begin(held):  # after a wait for the slot
                return False
            batch = self._next_batch(held)
            if batch is None:
                return False
            held.begin(batch)
            outcome: Outcome | None = None
            settled = False
            try:
                outcome = await self._call(batch)
                now = held.last_consume = self._clock.monotonic()
                failed = len(outcome.failed)
                ok = len(batch.messages) - failed
                self._rates.consumed(batch.messages[0].topic, ok, failed, now - batch.started)
                # Settled before the queue is quiet: whoever waits for that finds the progress noted.
                go_on = await self._settle(batch, outcome)
                settled = True
                return go_on
            except Exception:
                # An offset store of the user's has raised, or the broker could not be given what failed too often.
                log.exception(
                    "%s: what a handler has done could not be settled; what is still in work comes again",
                    held.queue,
                )
                self._spawn(held, self._suspend_seconds(batch.own_context()))
                return False
            finally:
                held.end(batch)
                if not settled and not self._closed:
                    held.window.put_back(batch.messages)
                if outcome is None and not self._closed:
                    # The handler has cancelled its own task, or the loop is ending. If the loop goes on, the next
                    # message that comes starts a new run, or a timer does.
                    held.window.consuming = False
                    pause = self._suspend_seconds(batch.own_context())
                    asyncio.get_running_loop().call_later(pause, self._go_on, held)

    def _go_on(self, held: HeldQueue) -> None:
        if held.state is READING and held.window.begins_again():
            self._spawn(held, 0.0)

    def _may_begin(self, held: HeldQueue) -> bool:
        if held.state is not READING:
            return False
        if not self._has_lock(held):
            self._go_on_with_lock(held, 0.01)
            return False
        return True

    def _next_batch(self, held: HeldQueue) -> Batch | None:
        """The oldest messages of one handler; None if there is none, and the queue is idle."""
        messages = held.window.take(self._next_size(held))
        if not messages:
            return None
        listener, run = self._listeners.runs(messages)[0]
        if len(run) < len(messages):
            held.window.put_back(messages[len(run) :])
        batch = Batch(held, run, listener=listener or NOBODY)
        batch.started = self._clock.monotonic()
        return batch

    def _next_size(self, held: HeldQueue) -> int:
        """A handler of single messages gets them one by one: each is settled before the next begins."""
        for message in held.window.oldest(1):
            listener, _ = self._listeners.runs([message])[0]
            if listener is not None and not listener.batch:
                return 1
        return self._batch_size

    async def _call(self, batch: Batch) -> Outcome:
        if batch.listener is NOBODY:
            return Outcome(ConsumeResult.LATER, batch.messages)
        return await self._threads.handle(batch.listener, batch.messages, batch.own_context())

    # -- settling --------------------------------------------------------------------

    async def _settle(self, batch: Batch, outcome: Outcome) -> bool:
        held, context = batch.held, batch.own_context()
        if outcome.result is ConsumeResult.ROLLBACK and not context.auto_commit:
            held.window.rollback()
            self._spawn(held, self._suspend_seconds(context))
            return False
        done = len(batch.messages) - len(outcome.failed)
        done += await self._resend_used_up(outcome.failed)
        again = batch.messages[done:]
        held.window.put_back(again)
        if done and (context.auto_commit or outcome.result is ConsumeResult.COMMIT):
            held.settle_work()
        if again:
            self._spawn(held, self._suspend_seconds(context))
        return not again

    async def _resend_used_up(self, failed: list[MessageView]) -> int:
        """Counts a failure of each message, and gives those to the broker that have failed too often.

        Returns:
            How many from the first on need not come again. Those behind one that must come again do so too:
            progress is an offset, it cannot leave out a message.
        """
        resent = 0
        for number, message in enumerate(failed):
            if message.reconsume_times >= self._returns.max_times and await self._returns.resend(message):
                resent += resent == number
            else:
                message.reconsume_times += 1
        return resent

    def _suspend_seconds(self, context: ConsumeContext) -> float:
        seconds = self._config.suspend_current_queue if context.suspend is None else context.suspend
        return min(30.0, max(0.01, seconds))

    def close(self) -> None:
        """The queues are draining, so nothing more is begun."""
        self._closed = True
