"""Who holds what before a change and after it, and what has to move between the two.

Moved means: the queue is there before and after, has an owner, and its owner changes. The minimum is
what any assignment with counts differing by at most one must move, given who holds what now. So an
uneven strategy can move less than the minimum; look at its spread too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gimbalmq.balance.allocate import AllocateStrategy, shares
from gimbalmq.model.queues import MessageQueue

Parts = Mapping[str, Sequence[MessageQueue]]


@dataclass(frozen=True, slots=True)
class Move:
    """A queue that changes hands; "" is nobody."""

    queue: MessageQueue
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two states of a group.

    Attributes:
        before, after: every member's queues.
        moves: what passes from one member to another, sorted.
        minimum: the fewest that had to.
    """

    before: Parts
    after: Parts
    moves: tuple[Move, ...]
    minimum: int

    @property
    def spread(self) -> int:
        """Largest share minus smallest, after the change."""
        counts = [len(part) for part in self.after.values()]
        return max(counts, default=0) - min(counts, default=0)

    @property
    def idle(self) -> int:
        """Members without a queue, after the change."""
        return sum(not part for part in self.after.values())


def compare(
    strategy: AllocateStrategy,
    group: str,
    before: Parts,
    queues: Iterable[MessageQueue],
    members: Iterable[str],
) -> Comparison:
    """What a strategy gives these members of these queues, beside what they hold now."""
    queues, members = list(queues), list(members)
    after = shares(strategy, group, queues, members)
    owners = owners_of(before)
    return Comparison(
        before, after, moves_between(owners, owners_of(after)), minimum_moves(owners, queues, members)
    )


def owners_of(parts: Parts) -> dict[MessageQueue, str]:
    return {queue: member for member, part in parts.items() for queue in part}


def moves_between(before: Mapping[MessageQueue, str], after: Mapping[MessageQueue, str]) -> tuple[Move, ...]:
    """Queues owned before and after by different members."""
    return tuple(
        Move(queue, owner, after[queue])
        for queue, owner in sorted(before.items())
        if after.get(queue, owner) != owner
    )


def minimum_moves(
    owners: Mapping[MessageQueue, str], queues: Iterable[MessageQueue], members: Iterable[str]
) -> int:
    """The fewest owned queues that must change owner until counts differ by at most one.

    8 queues held 4 and 4, a third member joins: 2 (shares become 3, 3, 2).
    """
    wanted, present = set(queues), set(members)
    if not present:
        return 0
    share, extras = divmod(len(wanted), len(present))
    held = dict.fromkeys(present, 0)
    owned = 0
    for queue, owner in owners.items():
        if queue in wanted:
            owned += 1
            if owner in held:
                held[owner] += 1
    kept = sum(min(count, share) for count in held.values())
    kept += min(extras, sum(count > share for count in held.values()))
    return owned - kept
