"""Background work with an owner: a task group that outlives single failures."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from gimbalmq.errors import StoreError

log = logging.getLogger(__name__)

_CANCEL_AGAIN_SECONDS = 1.0


def ends_task(error: BaseException) -> bool:
    """Whether an error that came out of somebody's function is meant for the task that called the function.

    A task that is being cancelled ends, so does one whose coroutine is closed, and Ctrl-C reaches the program.
    Everything else is a failure of the function: sys.exit(), and the cancellation of something it awaited, too.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    if isinstance(error, KeyboardInterrupt):
        return threading.current_thread() is threading.main_thread()
    return isinstance(error, GeneratorExit)


async def uninterrupted(work: Coroutine[Any, Any, None]) -> None:
    """Awaits work of a thread, which nobody can stop; a cancellation is raised when the work is over.

    Else the lock that the caller holds would be free for the next change, and the older one could land last.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                pass  # raised below
        raise


class Ending:
    """A close that happens once, however often it is called, and that a cancelled caller does not stop half way."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._callers = 0

    async def run(
        self, work: Callable[[], Coroutine[Any, Any, None]], hurry: Callable[[], None] | None = None
    ) -> None:
        """Does the work; callers that come while it is done wait for the same end.

        Args:
            hurry: called if a caller is cancelled: nobody wants to wait any longer than necessary.
        """
        task = self._task
        if task is None or task.done():
            task = self._task = asyncio.get_running_loop().create_task(work())
            task.add_done_callback(self._ended)
        self._callers += 1
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if hurry is not None and not task.done():
                hurry()
            raise
        finally:
            self._callers -= 1

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None and not self._callers:
            log.error("an end that nobody waited for failed", exc_info=task.exception())


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
            except asyncio.CancelledError as error:
                if ends_task(error):
                    raise
                log.warning("%s: %s was cut short and goes on", self._name, name)
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

    async def close(self, limit: float | None = None) -> None:
        """Cancels everything and waits until it is gone.

        Args:
            limit: seconds after which tasks that take no notice of it are left alone, and named in the log.
        """
        tasks = {task for task in self._tasks if task is not asyncio.current_task()}
        loop = asyncio.get_running_loop()
        deadline = None if limit is None else loop.time() + limit
        while tasks:
            if deadline is not None and loop.time() >= deadline:
                names = ", ".join(sorted(task.get_name() for task in tasks))
                log.error("these take no notice of their cancellation and are left behind: %s", names)
                return
            for task in tasks:
                task.cancel()
            # Again after a moment: asyncio.wait_for of Python 3.11 may swallow a cancellation.
            _, tasks = await asyncio.wait(tasks, timeout=_CANCEL_AGAIN_SECONDS)
