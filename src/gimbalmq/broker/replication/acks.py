"""How far slaves have come, and who waits for that.

Waits for the same number of slaves, or for the same ones, are in the order of the log, so one report of a slave frees
all of them that it reaches, and looks at no other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from gimbalmq.broker.waits import Wait, ended

Need = int | frozenset[int]
"""So many slaves, whichever; or these, by their ids."""


class SlaveLog(Protocol):
    """What is known of one slave's log (``replica.Replica``)."""

    @property
    def acked(self) -> int:
        """Where it ends, as the slave reported; -1 before its first report."""
        ...

    @property
    def slave_id(self) -> int | None: ...

    @property
    def is_sure(self) -> bool:
        """False if the same slave may have a newer connection, and so be counted twice."""
        ...


class ReplicaAcks:
    """Waits for slaves.

    Args:
        copies: the logs of the slaves that are connected; whoever changes them calls ``changed``.
        end: where our own log ends.
    """

    def __init__(self, copies: Iterable[SlaveLog], end: Callable[[], int]) -> None:
        self._copies = copies
        self._end = end
        self._waits: dict[Need, deque[tuple[int, Wait[bool]]]] = {}

    @property
    def connected(self) -> int:
        """Slaves that have said where their log ends."""
        return sum([copy.acked >= 0 for copy in self._copies])

    @property
    def waiting(self) -> int:
        """Waits that are not over."""
        return sum(not wait.ended for waits in self._waits.values() for _, wait in waits)

    def in_sync(self, gap: int) -> int:
        """Slaves that are less than ``gap`` bytes behind."""
        least = self._end() - gap
        return sum([copy.acked >= 0 and copy.acked > least for copy in self._copies])

    def reached(self, need: Need) -> int:
        """The end of what so many slaves, or all of these, have; -1 if there are too few."""
        if need == 1:
            return max([copy.acked for copy in self._copies], default=-1)
        if isinstance(need, int):
            # Two connections of one slave must not count as two slaves. If one slave is enough, each of them counts.
            acked = sorted([copy.acked for copy in self._copies if copy.is_sure], reverse=True)
            return acked[need - 1] if len(acked) >= need else -1
        by_id = dict.fromkeys(need, -1)
        for copy in self._copies:
            if copy.slave_id in by_id:
                by_id[copy.slave_id] = max(by_id[copy.slave_id], copy.acked)
        return min(by_id.values())

    def wait(self, end: int, need: Need) -> Wait[bool]:
        """Ends when enough slaves have the log up to ``end``; with False if nobody listens to slaves any more.

        Whoever waits no longer ends the wait itself.
        """
        if self.reached(need) >= end:
            return ended(True)
        waits = self._waits.get(need)
        if waits is None:
            waits = self._waits[need] = deque()
        while waits and waits[0][1].ended:
            waits.popleft()
        wait: Wait[bool] = Wait()
        waits.append((end, wait))
        return wait

    def changed(self) -> None:
        """A slave has come further, has come or has gone."""
        for need, waits in list(self._waits.items()):
            reached = self.reached(need)
            while waits and (waits[0][0] <= reached or waits[0][1].ended):
                waits.popleft()[1].end(True)
            if not waits:
                self._waits.pop(need, None)

    def give_up(self) -> None:
        """Nobody's wait will be over: there will be no more reports."""
        given_up, self._waits = self._waits, {}
        for waits in given_up.values():
            for _, wait in waits:
                wait.end(False)
