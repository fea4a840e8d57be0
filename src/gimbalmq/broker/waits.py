"""Waits that cost no turn of the event loop: who asked is told in the turn in which the wait ends.

The callbacks of an asyncio future run one turn after its result. The wait of a send is a chain of such steps (the disk
or a slave has it, so the send is settled, so it is answered), and on a busy loop each turn costs milliseconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Generator
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


class Wait(Generic[T]):
    """Something that ends once, with a result. Only for use on the loop's own thread."""

    __slots__ = ("_callbacks", "_ended", "_result")

    def __init__(self) -> None:
        self._ended = False
        self._callbacks: list[Callable[[T], object]] = []

    @property
    def ended(self) -> bool:
        return self._ended

    @property
    def result(self) -> T:
        """Only after the end."""
        return self._result

    def end(self, result: T) -> None:
        """Tells everybody who asked, at once; the first result stays."""
        if self._ended:
            return
        self._ended = True
        self._result: T = result
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(result)
            except Exception:
                # Whoever ends a wait ends those of others with it; one that fails must not keep the others waiting.
                log.exception("what waited for the end of a wait failed")

    def then(self, callback: Callable[[T], object]) -> None:
        """Calls back with the result: when the wait ends, or now if it has ended."""
        if self._ended:
            callback(self._result)
        else:
            self._callbacks.append(callback)

    def __await__(self) -> Generator[object, None, T]:
        if not self._ended:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._callbacks.append(lambda _: None if future.done() else future.set_result(None))
            yield from future
        return self._result


def ended(result: T) -> Wait[T]:
    """A wait that was over before it began."""
    wait: Wait[T] = Wait()
    wait.end(result)
    return wait


class TimeLimits:
    """Has waits end in time. Those with the same limit end in their order, so one timer serves all of them."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._limited: dict[int, deque[tuple[float, Wait[bool]]]] = {}
        """By their limit: deadlines, and what ends then with False."""

    def limit(self, wait: Wait[bool], milliseconds: int) -> Wait[bool]:
        """The wait, which ends with False after so long."""
        if wait.ended:
            return wait
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        deadline = loop.time() + milliseconds / 1000
        limited = self._limited.get(milliseconds)
        if limited is None:
            limited = self._limited[milliseconds] = deque()
            loop.call_at(deadline, self._expire, loop, milliseconds, deadline)
        while limited and limited[0][1].ended:
            limited.popleft()
        limited.append((deadline, wait))
        return wait

    def _expire(self, loop: asyncio.AbstractEventLoop, milliseconds: int, due: float) -> None:
        limited = self._limited[milliseconds]
        now = max(due, loop.time())  # the loop may call a hair before the time it was given
        while limited and (limited[0][0] <= now or limited[0][1].ended):
            limited.popleft()[1].end(False)
        if limited:
            due = limited[0][0]
            loop.call_at(due, self._expire, loop, milliseconds, due)
        else:
            del self._limited[milliseconds]
