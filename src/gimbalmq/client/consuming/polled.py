"""Messages that wait for ``poll``, and what is known of those that were handed out.

A message counts as done when the next one is asked for: what was handed out last is noted as progress no earlier
than in the next call.
"""

from __future__ import annotations

import asyncio
from collections import deque

from gimbalmq._clock import Clock
from gimbalmq.client.consuming.held_queue import READING, HeldQueue, Work
from gimbalmq.model.message import MessageView
from gimbalmq.transport.tasks import Tasks


class Polled:
    """Hands out pulled messages, a pull's at a time.

    Args:
        notes: whether what is done counts as progress by itself (``auto_commit``).
    """

    def __init__(self, clock: Clock, tasks: Tasks, *, notes: bool) -> None:
        self._clock = clock
        self._tasks = tasks
        self._notes = notes
        self._fetched: deque[Work] = deque()
        self._arrived = asyncio.Event()
        self._handed: list[Work] = []
        self._watched: set[HeldQueue] = set()
        self._closed = False

    def submit(self, held: HeldQueue, messages: list[MessageView], dispatch: bool = True) -> None:
        self._fetched.append(Work(held, messages))
        self._arrived.set()

    def forget(self, held: HeldQueue) -> None:
        """Throws away what was fetched of a queue: it is read from another place, or not ours any more."""
        self._fetched = deque(work for work in self._fetched if work.held is not held)

    def move(self, held: HeldQueue, offset: int) -> None:
        """Forgets what was read of a queue, and what was handed out of it: it is to be read from this offset."""
        held.empty()
        self.forget(held)
        for work in [work for work in self._handed if work.held is held]:
            self._handed.remove(work)
            held.end(work)
        held.position = offset
        self.note(held)

    def wake(self) -> None:
        """Has a waiting ``next`` look again."""
        self._arrived.set()

    async def next(self, timeout: float | None, *, single: bool = False) -> Work | None:
        """The oldest messages of one queue, or the oldest one; what was handed out before is done."""
        work = self._take_ready(single)
        if work is None and (timeout is None or timeout > 0):
            deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
            try:
                async with asyncio.timeout_at(deadline):
                    while work is None and not self._closed:
                        self._arrived.clear()
                        await self._arrived.wait()
                        work = self._take_ready(single)
            except TimeoutError:
                return None
        if work is not None:
            work.started = work.held.last_consume = self._clock.monotonic()
            work.held.begin(work)
            self._handed.append(work)
        return work

    def _take_ready(self, single: bool) -> Work | None:
        fetched = self._fetched
        index = 0
        while index < len(fetched):
            work = fetched[index]
            held = work.held
            if held.state is not READING:
                del fetched[index]
                continue
            if not held.paused and not held.in_doubt:
                if single and len(work.messages) > 1:
                    return Work(held, [work.messages.pop(0)])
                del fetched[index]
                return work
            if held.in_doubt:
                self._watch(held)
            index += 1
        return None

    def _watch(self, held: HeldQueue) -> None:
        if held not in self._watched:
            self._watched.add(held)
            self._tasks.spawn(self._wake_when_sure(held), "wait for a lease")

    async def _wake_when_sure(self, held: HeldQueue) -> None:
        try:
            await held.until_sure()
        finally:
            self._watched.discard(held)
        self._arrived.set()

    # -- progress --------------------------------------------------------------------

    def finish_handed(self) -> None:
        """What was handed out is done; a queue that is being handed over waits for exactly this."""
        for work in self._handed:
            self.note(work.held)
            work.held.end(work)
        self._handed.clear()

    def note(self, held: HeldQueue) -> None:
        """Notes the position of a queue as its progress, if that goes by itself."""
        if self._notes and held.position is not None and held.position >= 0:
            held.done_to(held.position)

    def take_back(self, messages: list[MessageView]) -> HeldQueue | None:
        """Makes void that these were handed out; the queue if it is to be read again from the first of them."""
        for work in self._handed:
            if work.messages is messages:
                held = work.held
                if held.state is READING:
                    self.move(held, messages[0].queue_offset)
                    return held
                self._handed.remove(work)
                held.position = None
                held.end(work)
                break
        return None

    def is_out(self, work: Work) -> bool:
        """Whether it was handed out, and is neither done nor made void by a seek."""
        return work in self._handed

    def let_go_handed(self) -> None:
        """What was handed out was not finished; it comes again."""
        for work in self._handed:
            work.held.position = None
            work.held.end(work)
        self._handed.clear()

    def close(self) -> None:
        self._closed = True
        self._arrived.set()
        self.finish_handed()
