"""Messages that are bound to a queue leave in the order in which they were sent, also if one has to wait."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable


class PlaceInLine:
    """One message's place in its line."""

    __slots__ = ("_before", "_left", "_lines", "_name")

    def __init__(self, lines: Lines, name: Hashable, before: asyncio.Future[None] | None) -> None:
        self._lines = lines
        self._name = name
        self._before = before
        self._left: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def left(self) -> asyncio.Future[None]:
        return self._left

    async def come_first(self, timeout: float | None = None) -> bool:
        """Returns when all that were sent before have left, or after so many seconds; whether they have."""
        if self._before is None or self._before.done():
            return True
        await asyncio.wait((self._before,), timeout=timeout)
        return self._before.done()

    def leave(self, _: object = None) -> None:
        """The message is on its way in this turn of the loop, or never will be; a second call does nothing."""
        before = self._before
        if before is not None and not before.done():
            before.add_done_callback(self._go)  # given up early: those behind still wait for those in front
        else:
            self._go()

    def _go(self, _: object = None) -> None:
        if not self._left.done():
            self._left.set_result(None)
            self._lines.ended(self._name, self._left)


class Lines:
    """By topic or queue, what could not leave at once: for want of a route, a connection, a turn or an answer."""

    def __init__(self) -> None:
        self._last: dict[Hashable, asyncio.Future[None]] = {}

    def __bool__(self) -> bool:
        return bool(self._last)

    def __contains__(self, name: Hashable) -> bool:
        return name in self._last

    def join(self, name: Hashable) -> PlaceInLine:
        """A place behind all others."""
        place = PlaceInLine(self, name, self._last.get(name))
        self._last[name] = place.left
        return place

    def ended(self, name: Hashable, left: asyncio.Future[None]) -> None:
        if self._last.get(name) is left:
            del self._last[name]
