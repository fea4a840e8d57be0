"""Processes of a simulated world that can be stopped: nothing of them runs until they go on.

All members of a world share one event loop. Whatever a member does is done in a context that names its process:
tasks and timers inherit it from whoever made them. ``ProcessLoop`` looks there before it runs a step, and keeps the
steps of a stopped process for later.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar, TypeVarTuple

from gimbalmq.testing import MemoryNetwork, VirtualLoop

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_process: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Process:
    """One process on a host of its own.

    Attributes:
        stopped: by a signal (SIGSTOP), or with its whole machine, which is asleep.
        slept: seconds its machine has been asleep: the event loop's timers did not count them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, network: MemoryNetwork, host: str) -> None:
        self.host = host
        self.stopped = False
        self.slept = 0.0
        self._loop = loop
        self._network = network
        self._since = 0.0
        self._asleep = False
        self._held: list[tuple[_Step, tuple[Any, ...]]] = []
        self._context = contextvars.Context()
        self._context.run(_process.set, self)

    async def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs something as a part of this process."""
        return await self._loop.create_task(work, context=self._context.copy())

    def stop(self, *, asleep: bool) -> None:
        """Args:
        asleep: the whole machine is suspended.
        """
        assert not self.stopped
        self.stopped = True
        self._asleep = asleep
        self._since = self._loop.time()
        self._network.stop(self.host)

    def go_on(self) -> None:
        if not self.stopped:
            return
        self.stopped = False
        if self._asleep:
            self.slept += self._loop.time() - self._since
        held, self._held = self._held, []
        for step, args in held:
            self._loop.call_soon(step.again, *args, context=step.context)
        self._network.go_on(self.host)

    def hold(self, step: _Step, args: tuple[Any, ...]) -> None:
        self._held.append((step, args))


class _Step:
    """A callback of a process; it waits while the process is stopped."""

    __slots__ = ("callback", "context", "due", "handle", "process", "slept")

    def __init__(
        self,
        process: Process,
        callback: Callable[..., object],
        context: contextvars.Context | None,
        due: float | None,
    ) -> None:
        self.process = process
        self.callback = callback
        self.context = context if context is not None else contextvars.copy_context()
        self.due = due
        self.slept = process.slept
        self.handle: asyncio.Handle | None = None

    def run(self, *args: Any) -> None:
        process = self.process
        if process.stopped:
            process.hold(self, args)
            return
        if self.due is not None and process.slept > self.slept:
            self.due += process.slept - self.slept
            self.slept = process.slept
            if self.due > process._loop.time():
                process._loop.call_at(self.due, self.again, *args, context=self.context)
                return
        self.callback(*args)

    def again(self, *args: Any) -> None:
        if self.handle is None or not self.handle.cancelled():
            self.run(*args)


class _Task(asyncio.Task[Any]):
    """Sets of tasks are in an order that does not depend on where in memory the tasks lie."""

    def __init__(self, number: int, *args: Any, **options: Any) -> None:
        self._number = number
        super().__init__(*args, **options)

    def __hash__(self) -> int:
        return self._number


class ProcessLoop(VirtualLoop):
    """Virtual time for a world with processes in it."""

    def __init__(self) -> None:
        super().__init__()
        numbers = itertools.count()
        self.set_task_factory(lambda loop, work, **options: _Task(next(numbers), work, loop=loop, **options))

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        process = _process.get() if context is None else context.get(_process)
        if process is None:
            return super().call_soon(callback, *args, context=context)
        step = _Step(process, callback, context, None)
        step.handle = super().call_soon(partial(step.run, *args), context=step.context)
        return step.handle

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        process = _process.get() if context is None else context.get(_process)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        step = _Step(process, callback, context, when)
        handle = super().call_at(when, partial(step.run, *args), context=step.context)
        step.handle = handle
        return handle
