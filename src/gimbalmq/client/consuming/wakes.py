"""How the parts of one consumer ask for a round."""

from __future__ import annotations

import asyncio

from gimbalmq.client.consuming.rounds import Rounds
from gimbalmq.transport.tasks import Tasks


class Wakes:
    """Asks for a round of all consumers of the instance, as long as this one takes part in them."""

    def __init__(self, rounds: Rounds, tasks: Tasks) -> None:
        self._rounds = rounds
        self._tasks = tasks
        self.open = False

    def wake(self, reason: str, delay: float = 0.0) -> None:
        if not self.open:
            return
        if delay:
            self._tasks.spawn(self._later(reason, delay), "wake later")
        else:
            self._rounds.wake(reason)

    async def _later(self, reason: str, delay: float) -> None:
        await asyncio.sleep(delay)
        self.wake(reason)
