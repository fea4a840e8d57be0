"""Long work on the loop, a few milliseconds at a time.

All of it takes turns: between two turns of the loop runs one slice of one piece of work, however many wait. So the
longest pause of the loop is one slice, not the sum of all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TypeVar

from gimbalmq._clock import Clock
from gimbalmq.store.steps import Steps

T = TypeVar("T")

_SLICE_SECONDS = 0.003
_MOST_STEPS = 256
"""Of a slice, for clocks that stand still."""


class Turns:
    """Runs steps in the order in which they ask."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._busy = False

    async def run(self, steps: Steps[T]) -> T:
        """What the steps return."""
        now = self._clock.monotonic
        try:
            while True:
                await self._turn()
                try:
                    until = now() + _SLICE_SECONDS
                    for _ in range(_MOST_STEPS):
                        next(steps)
                        if now() >= until:
                            break
                except StopIteration as end:
                    result: T = end.value
                    return result
                finally:
                    self._next()
        finally:
            steps.close()

    async def _turn(self) -> None:
        """Comes back in a later turn of the loop, when nobody else has a slice in the same."""
        if self._busy:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._next()
                raise
        else:
            self._busy = True

    def _next(self) -> None:
        """The turn goes to the next who waits, after the loop has looked at its connections."""
        asyncio.get_running_loop().call_soon(self._hand_on)

    def _hand_on(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._busy = False
