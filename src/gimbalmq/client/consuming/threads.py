"""Threads for handlers that are plain functions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from gimbalmq.client.consuming.handlers import ConsumeContext, Listener, Outcome, Unfinished
from gimbalmq.model.message import MessageView

log = logging.getLogger(__name__)

START_PAUSE = 1.0
"""Seconds after which the first thread is asked for again, if the system had none."""


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
        self._short = False

    @property
    def count(self) -> int:
        """Threads started so far."""
        return self._count

    def submit(self, done: Callable[[Any], None], function: Callable[..., Any], *arguments: Any) -> None:
        """Calls ``function`` in a thread and ``done`` with its result on the loop; it must not raise."""
        self._open += 1
        self._jobs.put((function, arguments, done))
        self._grow()

    def _grow(self) -> None:
        if self._open <= self._count or self._count >= self._limit or self._closed:
            return
        # Daemons: a handler that never returns must not keep the interpreter from ending.
        thread = threading.Thread(target=self._work, name=f"{self._name}-{self._count + 1}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system has none to spare now; those there are do the work
            if not self._short:
                self._short = True
                log.warning("no further thread for handlers could be started: %s", error)
            if not self._count:
                self._loop.call_later(START_PAUSE, self._grow)
        else:
            self._short = False
            self._count += 1

    async def handle(
        self, listener: Listener, messages: list[MessageView], context: ConsumeContext
    ) -> Outcome:
        """Runs a handler to its end: on the loop if it is async, else in a thread."""
        if listener.is_async:
            return await listener.run_async(messages, context)
        outcome: Outcome = await self.run(listener.run, messages, context)
        if isinstance(outcome, Unfinished):
            outcome = await listener.finish(outcome, messages, context)
        return outcome

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls ``function`` in a thread; if this is cancelled before a thread was free, it is not called."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def work() -> Any:
            return None if future.cancelled() else function(*arguments)

        def done(value: Any) -> None:
            if not future.done():
                future.set_result(value)

        self.submit(done, work)
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
            try:
                results.append((done, function(*arguments)))
            except BaseException:
                # The thread must live on whatever happens: nobody would start another in its place.
                log.exception("the work of a handler thread ended by an error that nobody expected")
                results.append((_forget, None))
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


def _forget(value: Any) -> None:
    return None
