"""Runs handlers on pulled messages, at once or in order, and settles what they say.

Concurrent: every pulled run of messages is cut into batches. Batches of ``async def`` handlers are worked off
by at most ``consume_threads`` tasks, those of plain functions by as many threads; there is never a task per
message, and results of threads come back to the loop many at a time.

Orderly: one run per queue at a time takes the oldest messages, and only while the broker's lock on the queue
is ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
import traceback
from collections import deque
from collections.abc import Callable, Collection, Sequence
from enum import Enum
from queue import SimpleQueue
from typing import Any, Protocol

import msgspec

from gimbalmq._clock import Clock
from gimbalmq.client.consumer_config import PushConsumerConfig
from gimbalmq.client.offsets import OffsetStore
from gimbalmq.client.process_queue import ProcessQueue
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.topics import RETRY_PREFIX
from gimbalmq.transport.tasks import Tasks

log = logging.getLogger(__name__)

EXPIRED_LEVEL = 3
EXPIRED_LIMIT = 16
_YIELD_AFTER = 64


class ConsumeResult(Enum):
    """What a handler may return. None and True mean SUCCESS, False and an exception mean LATER."""

    SUCCESS = "success"
    LATER = "later"
    SUSPEND = "later"  # noqa: PIE796 - the same verdict, in the words of ordered handlers
    """Ordered handlers: the queue waits a moment and the same messages come again."""
    COMMIT = "commit"
    """Ordered handlers without auto commit: everything up to here is done."""
    ROLLBACK = "rollback"
    """Ordered handlers without auto commit: everything since the last commit comes again."""


class ConsumeContext:
    """What a handler with a second parameter gets (Java: ConsumeConcurrentlyContext, ConsumeOrderlyContext).

    Attributes:
        queue: where the messages come from.
        delay_level: when failed messages come again: 0 the broker's choice, -1 never (dead letters), a level.
        ack_index: of a batch that succeeded, the last message that did; those after it come again.
        auto_commit: ordered: success commits.
        suspend: ordered: seconds to wait before another try; None is the consumer's setting.
    """

    __slots__ = ("ack_index", "auto_commit", "delay_level", "queue", "suspend")

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.delay_level = 0
        self.ack_index: int | None = None
        self.auto_commit = True
        self.suspend: float | None = None


Handler = Callable[..., Any]


class Listener:
    """A user's function and how to call it.

    Args:
        function: ``f(message)``, or ``f(messages)`` for a batch; a second parameter gets the context.
        batch: whether it takes a list.
        ordered: whether it wants each queue's messages one after the other.
    """

    __slots__ = ("batch", "function", "is_async", "ordered", "wants_context")

    def __init__(self, function: Handler, *, batch: bool, ordered: bool = False) -> None:
        self.function = function
        self.batch = batch
        self.ordered = ordered
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an object whose call is async, not "callable?"
        )
        self.wants_context = _positional_parameters(function) >= 2

    def run(self, messages: list[MessageView], context: ConsumeContext) -> Outcome:
        """Calls a plain function; in a thread of the pool."""
        outcome: Outcome | None = None
        function, extra = self.function, (context,) if self.wants_context else ()
        if self.batch:
            try:
                result = function(messages, *extra)
            except Exception:
                outcome = Outcome()
                outcome.failed_by_exception(messages, context)
            else:
                if result is not None or extra:
                    outcome = Outcome()
                    outcome.add(result, messages, context)
            return outcome or _ALL_WELL
        for message in messages:
            try:
                result = function(message, *extra)
            except Exception:
                outcome = outcome or Outcome()
                outcome.failed_by_exception([message], context)
            else:
                if result is not None:
                    outcome = outcome or Outcome()
                    outcome.add(result, [message], context)
        return outcome or _ALL_WELL

    async def run_async(self, messages: list[MessageView], context: ConsumeContext) -> Outcome:
        """Awaits an ``async def`` function."""
        outcome: Outcome | None = None
        function, extra = self.function, (context,) if self.wants_context else ()
        if self.batch:
            try:
                result = await function(messages, *extra)
            except Exception:
                outcome = Outcome()
                outcome.failed_by_exception(messages, context)
            else:
                if result is not None or extra:
                    outcome = Outcome()
                    outcome.add(result, messages, context)
            return outcome or _ALL_WELL
        for message in messages:
            try:
                result = await function(message, *extra)
            except Exception:
                outcome = outcome or Outcome()
                outcome.failed_by_exception([message], context)
            else:
                if result is not None:
                    outcome = outcome or Outcome()
                    outcome.add(result, [message], context)
        return outcome or _ALL_WELL


def _positional_parameters(function: Handler) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(parameter.kind in kinds and parameter.default is parameter.empty for parameter in parameters)


class Outcome:
    """What became of one batch: which messages failed, and the last word of the handler."""

    __slots__ = ("error", "failed", "result")

    def __init__(self) -> None:
        self.failed: list[MessageView] = []
        self.result = ConsumeResult.SUCCESS
        self.error: str | None = None

    def add(self, result: Any, messages: Sequence[MessageView], context: ConsumeContext) -> None:
        verdict = _RESULTS.get(result) if isinstance(result, ConsumeResult | bool | None) else None
        if verdict is None:
            log.error(
                "a handler of %s returned %r, taken as success; return None, True, False or a ConsumeResult",
                context.queue,
                result,
            )
            verdict = ConsumeResult.SUCCESS
        if verdict is ConsumeResult.LATER:
            self.failed += messages
        elif context.ack_index is not None and context.ack_index < len(messages) - 1:
            self.failed += messages[context.ack_index + 1 :]
        if self.result is not ConsumeResult.LATER:
            self.result = verdict

    def failed_by_exception(self, messages: Sequence[MessageView], context: ConsumeContext) -> None:
        self.error = traceback.format_exc()
        log.warning(
            "the handler of %s raised; %d message(s) from offset %d come again:\n%s",
            context.queue,
            len(messages),
            messages[0].queue_offset,
            self.error,
        )
        self.failed += messages
        self.result = ConsumeResult.LATER


_ALL_WELL = Outcome()
"""Nothing failed and nothing was said: the outcome of nearly every batch, never changed."""

_RESULTS: dict[object, ConsumeResult] = {
    None: ConsumeResult.SUCCESS,
    True: ConsumeResult.SUCCESS,
    False: ConsumeResult.LATER,
    **{result: result for result in ConsumeResult},
}


class Batch(msgspec.Struct, eq=False):
    """Messages one handler call gets.

    Attributes:
        context: the call's own; one that no handler sees stays as it was made, and many batches share it.
        started, ended: monotonic times of the call.
    """

    process_queue: ProcessQueue
    messages: list[MessageView]
    listener: Listener
    context: ConsumeContext | None = None
    started: float = 0.0
    ended: float = 0.0

    def own_context(self) -> ConsumeContext:
        if self.context is None:
            self.context = ConsumeContext(self.process_queue.queue)
        return self.context


class ConsumeHost(Protocol):
    """What consuming needs of its consumer."""

    @property
    def config(self) -> PushConsumerConfig: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def offsets(self) -> OffsetStore: ...
    @property
    def max_reconsume_times(self) -> int: ...
    @property
    def running(self) -> bool: ...

    def listener_for(self, message: MessageView) -> Listener | None:
        """Whose message it is, by its original topic."""

    def process_queues(self) -> Collection[ProcessQueue]: ...

    async def send_back(self, message: MessageView, delay_level: int, queue: MessageQueue) -> bool:
        """Gives a message to the broker for another try; False where even the detour failed."""

    async def resend(self, message: MessageView) -> bool:
        """Sends an ordered message to the retry topic, from where the broker moves it to the dead letters."""

    async def lock_queue(self, queue: MessageQueue) -> bool: ...

    def count_consumed(self, topic: str, ok: int, failed: int, seconds: float) -> None:
        """Notes how a batch went."""


class HandlerThreads:
    """Threads for plain functions: grown on demand, results delivered to the loop in heaps."""

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._jobs: SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...], Callable[[Any], None]] | None] = (
            SimpleQueue()
        )
        self._results: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._loop = asyncio.get_running_loop()
        self._armed = False
        self._open = 0
        self._count = 0
        self._closed = False

    @property
    def count(self) -> int:
        """Threads started so far."""
        return self._count

    def submit(self, done: Callable[[Any], None], function: Callable[..., Any], *arguments: Any) -> None:
        """Calls ``function`` in a thread and ``done`` with its result on the loop; it must not raise."""
        self._open += 1
        self._jobs.put((function, arguments, done))
        if self._open > self._count and self._count < self._limit:
            self._count += 1
            # Daemons: a handler that never returns must not keep the interpreter from ending.
            threading.Thread(target=self._work, name=f"{self._name}-{self._count}", daemon=True).start()

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        future: asyncio.Future[Any] = self._loop.create_future()

        def done(value: Any) -> None:
            if not future.done():
                future.set_result(value)

        self.submit(done, function, *arguments)
        return await future

    def close(self) -> None:
        self._closed = True
        for _ in range(self._count):
            self._jobs.put(None)

    def _work(self) -> None:
        get = self._jobs.get
        results = self._results
        while (job := get()) is not None:
            function, arguments, done = job
            results.append((done, function(*arguments)))
            if not self._armed:
                self._armed = True
                # The loop may have ended while the handler ran; nobody waits for the result then.
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._armed = False  # first: a result that comes from here on arms anew
        results = self._results
        while results:
            done, value = results.popleft()
            self._open -= 1
            done(value)


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

    def start(self) -> None:
        self._tasks.every(self._host.config.consume_timeout, self.send_back_expired, "expired messages")

    def submit(self, process_queue: ProcessQueue, messages: list[MessageView], dispatch: bool = True) -> None:
        """Cuts pulled messages into batches and has them consumed."""
        if process_queue.queue.topic.startswith(RETRY_PREFIX):
            for listener, run in _by_listener(self._host, messages):
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
            batch = Batch(process_queue, messages, _NOBODY)
            batch.started = batch.ended = self._monotonic()
            process_queue.begin(batch)
            self._settle([batch], messages)
            return
        size = self._batch_size
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
            self._enqueue([batch], batch.listener)

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
                    continue
                if now > process_queue.holds_until:
                    process_queue.shelved.append(batch)
                    continue
                batch.started = now
                process_queue.begin(batch)
                outcome = None
                try:
                    outcome = await batch.listener.run_async(batch.messages, batch.own_context())
                finally:
                    if outcome is None:  # cancelled
                        process_queue.end(batch)
                now = batch.ended = monotonic()
                self._done(batch, outcome)
                turns += 1
                if turns % _YIELD_AFTER == 0:
                    await asyncio.sleep(0)
                    now = monotonic()
        finally:
            self._workers -= 1

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
        if outcome is not None:
            self._done(batch, outcome)
            return
        process_queue = batch.process_queue
        process_queue.end(batch)
        if process_queue.dropped or process_queue.draining or self._closed:
            return
        if self._monotonic() > process_queue.holds_until:
            process_queue.shelved.append(batch)
        else:  # the lease was confirmed meanwhile
            self._enqueue([batch], batch.listener)

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
        self._waiting.clear()
        self._settle_finished()
        await _wait_quiet(self._host)


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
            listener, _ = _by_listener(self._host, [message])[0]
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
        listener, run = _by_listener(self._host, messages)[0]
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
            batch = Batch(process_queue, messages, listener or _NOBODY)
            batch.started = self._host.clock.monotonic()
            process_queue.begin(batch)
            try:
                if listener is None:
                    outcome = Outcome()
                    outcome.result = ConsumeResult.LATER
                elif listener.is_async:
                    outcome = await listener.run_async(messages, context)
                else:
                    outcome = await self._threads.run(listener.run, messages, context)
                now = process_queue.last_consume = self._host.clock.monotonic()
                failed = len(outcome.failed)
                self._host.count_consumed(
                    messages[0].topic, len(messages) - failed, failed, now - batch.started
                )
                # Settled before the consume lock is free: a removal waiting for it finds the progress noted.
                return await self._settle(process_queue, messages, outcome, context)
            finally:
                process_queue.end(batch)

    async def _settle(
        self,
        process_queue: ProcessQueue,
        messages: list[MessageView],
        outcome: Outcome,
        context: ConsumeContext,
    ) -> bool:
        go_on = True
        offset = -1
        result = outcome.result
        if result is ConsumeResult.LATER:
            remaining = await self._count_again(messages)
            if remaining:
                process_queue.put_back(messages)
                self._spawn(process_queue, self._suspend_seconds(context))
                go_on = False
            elif context.auto_commit:
                offset = process_queue.commit()
        elif context.auto_commit or result is ConsumeResult.COMMIT:
            offset = process_queue.commit()
        elif result is ConsumeResult.ROLLBACK:
            process_queue.rollback()
            self._spawn(process_queue, self._suspend_seconds(context))
            go_on = False
        if offset >= 0 and not process_queue.dropped:
            self._host.offsets.update(process_queue.queue, offset, increase_only=False)
        return go_on

    async def _count_again(self, messages: list[MessageView]) -> bool:
        """Counts a failure of each message; whether any of them must come again here."""
        remaining = False
        for message in messages:
            if message.reconsume_times >= self._host.max_reconsume_times and await self._host.resend(message):
                continue
            message.reconsume_times += 1
            remaining = True
        return remaining

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
        self._closed = True
        await _wait_quiet(self._host)


Consumption = ConcurrentConsumption | OrderedConsumption


def _by_listener(
    host: ConsumeHost, messages: list[MessageView]
) -> list[tuple[Listener | None, list[MessageView]]]:
    """Runs of messages with one handler; retried ones get their own topic back."""
    runs: list[tuple[Listener | None, list[MessageView]]] = []
    for message in messages:
        if message.topic.startswith(RETRY_PREFIX):
            message.topic = message.original_topic
        listener = host.listener_for(message)
        if runs and runs[-1][0] is listener:
            runs[-1][1].append(message)
        else:
            runs.append((listener, [message]))
    return runs


async def _wait_quiet(host: ConsumeHost) -> None:
    waiting = [asyncio.ensure_future(process_queue.quiet()) for process_queue in host.process_queues()]
    if not waiting or host.config.await_termination <= 0:
        for waiter in waiting:
            waiter.cancel()
        return
    _, unfinished = await asyncio.wait(waiting, timeout=host.config.await_termination)
    for waiter in unfinished:
        waiter.cancel()


def _nobody(message: MessageView) -> ConsumeResult:
    return ConsumeResult.LATER


_NOBODY = Listener(_nobody, batch=False)
