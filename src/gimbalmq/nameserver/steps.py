"""Long work in small steps, so that the event loop turns in between.

Such work is a generator that yields after every millisecond or two and returns its result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]


def at_once(work: Steps[T]) -> T:
    """The result, without a pause."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]


async def in_steps(work: Steps[T]) -> T:
    """The result; everybody else on the loop has a turn after each step."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        await asyncio.sleep(0)
