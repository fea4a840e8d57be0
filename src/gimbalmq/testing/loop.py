"""Virtual time: an event loop whose clock jumps to the next timer instead of waiting for it.

A selector is the only place in which asyncio's loop waits. Ours looks whether a file is ready, and
if none is, moves the loop's clock by the time it was asked to wait. An hour of heartbeats then
takes as long as the heartbeats themselves, and the order of events depends on nothing but the
program and its seeds.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import selectors
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor
from contextvars import Context
from functools import partial
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EPOCH_MS = 1_700_000_000_000
"""Wall time at which every virtual run begins."""


class _JumpingSelector(selectors.BaseSelector):
    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._real.select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("nothing will ever happen: every task waits and no timer is set")
            self.now += max(0.0, timeout)
        return ready

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


class _Timer(asyncio.TimerHandle):
    """One of several that are due at the same instant goes after those made before it.

    A heap alone leaves their order to what else lay in it, which a thread that wakes the loop may change.
    """

    _scheduled: bool

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[object, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
        number: int,
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self.place = (when, number)

    def __lt__(self, other: asyncio.TimerHandle) -> bool:
        assert isinstance(other, _Timer)
        return self.place < other.place


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time.

    Work for an executor runs at once and in place: threads would bring back the real clock.
    """

    _scheduled: list[asyncio.TimerHandle]

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        # Timers due within this many seconds fire together; the default is the real clock's grain.
        self._clock_resolution = 1e-9
        self._executing = False
        self._late = 0.0
        self._timers = itertools.count()

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context, next(self._timers))
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer

    def time(self) -> float:
        return self._jumping.now

    def stall(self, seconds: float) -> None:
        """For doubles that block, a slow disk for one: whoever calls loses this time.

        On the loop that is everybody. In an executor it is only the work at hand: its result comes later.
        """
        if self._executing:
            self._late += seconds
        else:
            self._jumping.now += seconds

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()
        self._executing, self._late = True, 0.0
        try:
            done = partial(_settle, future, func(*args), None)
        except Exception as error:
            done = partial(_settle, future, None, error)
        finally:
            self._executing = False
        if self._late:
            self.call_later(self._late, done)
        else:
            done()
        return future


def _settle(future: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


class VirtualClock:
    """The package's Clock on a loop's time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, epoch_ms: int = EPOCH_MS) -> None:
        self._loop = loop
        self._epoch_ms = epoch_ms

    def monotonic(self) -> float:
        return self._loop.time()

    def wall_ms(self) -> int:
        return self._epoch_ms + int(self._loop.time() * 1000)


def run_virtual(main: Callable[[VirtualClock], Coroutine[Any, Any, T]]) -> T:
    """Runs ``main`` on a new loop in virtual time, as asyncio.run would in real time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main(VirtualClock(runner.get_loop())))
