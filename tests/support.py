"""What many tests need: running a coroutine strictly, and a clock that stands still."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

_MEMORY_BYTES = 4 << 30


def run(work: Coroutine[Any, Any, T], seconds: float = 60.0) -> T:
    """Runs a coroutine in asyncio's debug mode, with a time limit that says "never" even on a busy machine.

    What the loop would only log (an error in a callback, a task's error that nobody fetched)
    fails the test.
    """
    reported: list[dict[str, Any]] = []

    async def limited() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        async with asyncio.timeout(seconds):
            result = await work
        gc.collect()
        return result

    result = asyncio.run(limited(), debug=True)
    if reported:
        context = reported[0]
        raise AssertionError(f"the loop reported: {context.get('message')}") from context.get("exception")
    return result


def freeze_what_is_there() -> None:
    """Takes all that lives now from the garbage collector's walks; what was taken before and is garbage by now goes."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def memory_folder() -> str | None:
    """Where files lie in memory, if the system has such a place, with room, and programs may be run from there."""
    folder = "/dev/shm"
    if not os.access(folder, os.W_OK):
        return None
    room = os.statvfs(folder)
    roomy = room.f_bavail * room.f_frsize >= _MEMORY_BYTES and not room.f_flag & os.ST_NOEXEC
    return folder if roomy else None


async def until(condition: Callable[[], object]) -> None:
    """Lets the loop turn until the condition holds; the time limit of ``run`` ends a vain wait."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)


class Unwalked(dict[K, V]):
    """A table that answers questions about one key, and fails who walks over all of them."""

    def _walked(self, *_: object) -> NoReturn:
        raise AssertionError("somebody walked over the whole table")

    __iter__ = keys = values = items = copy = _walked


class ManualClock:
    """A clock that only the test moves."""

    def __init__(self, now: float = 1000.0, wall_ms: int = 1_700_000_000_000) -> None:
        self.now = now
        self.wall = wall_ms

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return self.wall

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.wall += round(seconds * 1000)


class SlowClock(ManualClock):
    """Every look at it costs a millisecond, so that work by the piece ends after a few looks."""

    def monotonic(self) -> float:
        self.now += 0.001
        return self.now
