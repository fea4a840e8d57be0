"""Background work with an owner: a task group that outlives single failures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from gimbalmq.errors import StoreError

log = logging.getLogger(__name__)

_CANCEL_AGAIN_SECONDS = 1.0


class Tasks:
    """Holds every task its owner started; ``close`` ends them all.

    A loop whose step raises logs it and goes on: a daemon must not lose its heartbeat to
    one bad answer. Broken invariants (AssertionError) do end the loop, loudly.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name=f"{self._name}:{name}")
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def every(
        self,
        seconds: float | Callable[[], float],
        step: Callable[[], Awaitable[object] | object],
        name: str,
        *,
        first: float | None = None,
    ) -> asyncio.Task[Any]:
        """Calls ``step`` again and again; the pause counts from the end of the call before."""
        return self.spawn(self._loop(seconds, step, name, first), name)

    async def _loop(
        self,
        seconds: float | Callable[[], float],
        step: Callable[[], Awaitable[object] | object],
        name: str,
        first: float | None,
    ) -> None:
        pause = first
        told = ""
        while True:
            if pause is None:
                pause = seconds() if callable(seconds) else seconds
            await asyncio.sleep(pause)
            pause = None
            try:
                result = step()
                if isinstance(result, Awaitable):
                    await result
                told = ""
            except AssertionError:
                raise
            except StoreError as error:
                if str(error) != told:  # a full disk is full every second; once is enough
                    told = str(error)
                    log.error("%s: %s: %s; tried again", self._name, name, told)
            except Exception:
                log.exception("%s: %s failed and goes on", self._name, name)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("%s ended by an error", task.get_name(), exc_info=task.exception())

    async def close(self) -> None:
        """Cancels everything and waits until it is gone."""
        tasks = {task for task in self._tasks if task is not asyncio.current_task()}
        while tasks:
            for task in tasks:
                task.cancel()
            # Again after a moment: asyncio.wait_for of Python 3.11 may swallow a cancellation.
            _, tasks = await asyncio.wait(tasks, timeout=_CANCEL_AGAIN_SECONDS)
