"""Handlers at work: which member has one on which queue, and whether another began beside it.

Two things are looked at whenever a handler begins. The hard one is whether a handler of another member is at work
on the same queue. The early one is whether another member would begin messages of this queue now, if there were
any: that is the same breach, only that no message has shown it yet.

A handler that takes very long cannot be waited for without end, so every kind of world has a limit
(``Settings.work_limit``): one that has been at work for longer than that is excused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from gimbalmq.model.queues import MessageQueue


class Worker(Protocol):
    """A member, as the check needs it."""

    name: str

    def claims(self, queue: MessageQueue) -> bool:
        """Whether it would begin a message of the queue now."""


@dataclass(eq=False)
class Work:
    """A handler at work on one message."""

    at: float
    member: str
    queue: MessageQueue
    offset: int


class Overlap(NamedTuple):
    """A handler that began a message beside another member.

    Attributes:
        at: when it began.
        other: the other member.
        since: since when the other one's handler has been at work; None if it has none, and only takes itself
            for the owner.
    """

    at: float
    queue: MessageQueue
    offset: int
    member: str
    other: str
    since: float | None

    def __str__(self) -> str:
        queue = f"{self.queue.topic}/{self.queue.broker_name}/{self.queue.queue_id}"
        begun = f"{self.at:.3f} s: {self.member} began {queue} at {self.offset} while {self.other} "
        if self.since is None:
            return begun + "took itself for the owner"
        return begun + f"had a handler at work on it since {self.since:.3f} s"


@dataclass
class Desk:
    """All handlers of a world that are at work.

    Args:
        limit: seconds after which a handler at work is excused.
        alone: a member has at most one handler at work on a queue (ordered consumers).

    Attributes:
        overlaps: handlers that began while another was at work.
        claims: handlers that began while another member would have begun the queue too.
        excused: overlaps with handlers that had been at work for longer than the limit.
    """

    limit: float
    alone: bool
    overlaps: list[Overlap] = field(default_factory=list)
    claims: list[Overlap] = field(default_factory=list)
    excused: list[Overlap] = field(default_factory=list)
    _at_work: dict[MessageQueue, list[Work]] = field(default_factory=dict)

    def begin(
        self, now: float, member: Worker, queue: MessageQueue, offset: int, others: Iterable[Worker]
    ) -> Work:
        """Notes that a member's handler begins."""
        present = self._at_work.setdefault(queue, [])
        busy = set()
        for work in present:
            if work.member == member.name and not self.alone:
                continue
            busy.add(work.member)
            found = Overlap(now, queue, offset, member.name, work.member, work.at)
            (self.overlaps if now - work.at <= self.limit else self.excused).append(found)
        for other in others:
            if other is not member and other.name not in busy and other.claims(queue):
                self.claims.append(Overlap(now, queue, offset, member.name, other.name, None))
        work = Work(now, member.name, queue, offset)
        present.append(work)
        return work

    def end(self, work: Work) -> None:
        """The handler has returned, or its process is gone."""
        self._at_work[work.queue].remove(work)
