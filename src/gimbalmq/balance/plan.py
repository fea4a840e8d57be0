"""What a member has to do when its share of one topic changes.

A plan is a plain difference of sets (RebalanceImpl.updateProcessQueueTableInRebalance), but for one
case: a queue that is still ours but has not been pulled for too long is dropped and taken again, so
that whatever hangs is thrown away. Pull consumers leave such a queue alone: they pass no expired queues.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from gimbalmq.model.queues import MessageQueue, sort_queues


@dataclass(frozen=True, slots=True)
class Plan:
    """Queues to keep untouched, to drop first, and then to take; each list sorted.

    A queue in both ``drop`` and ``take`` is to be restarted.
    """

    keep: tuple[MessageQueue, ...] = ()
    drop: tuple[MessageQueue, ...] = ()
    take: tuple[MessageQueue, ...] = ()

    @property
    def changes(self) -> bool:
        return bool(self.drop or self.take)


def plan(
    held: Collection[MessageQueue],
    allotted: Collection[MessageQueue],
    expired: Collection[MessageQueue] = (),
) -> Plan:
    """Compare what a member holds of a topic with what it should hold.

    Held q0,q1,q2, allotted q1,q2,q3, expired q2: keep q1, drop q0 and q2, take q2 and q3.

    Args:
        held: queues in the member's table, dropped ones that could not be removed yet included.
        allotted: the result of the strategy; its order and duplicates do not matter.
        expired: held queues with no pull for too long (120 s in Java); others are ignored.
    """
    have, want = set(held), set(allotted)
    keep = (have & want) - set(expired)
    return Plan(
        keep=tuple(sort_queues(keep)),
        drop=tuple(sort_queues(have - keep)),
        take=tuple(sort_queues(want - keep)),
    )
