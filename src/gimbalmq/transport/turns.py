"""Runs long work (``_steps``) on the event loop, a few milliseconds at a time.

The pieces of work take turns: between two turns of the loop one slice of one piece runs, however many pieces wait. So
the longest pause of the loop is one slice, not the sum of all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TypeVar

from gimbalmq._clock import Clock
from gimbalmq._steps import Steps

T = TypeVar("T")

_SLICE_SECONDS = 0.003
_MOST_STEPS = 256
"""A slice has no more steps than these, because the clock of a test may stand still."""


class Turns:
    """Runs steps in the order in which they ask."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._busy = False

    async def run(self, steps: Steps[T]) -> T:
        """Runs the steps and returns their result."""
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
        """Returns when nobody else has a slice in this turn of the loop."""
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
