"""What a run must not lose: every message by its number, every delivery by its place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from gimbalmq.model.queues import MessageQueue

Place = tuple[MessageQueue, int]
"""A stored message: its queue and its offset there."""


class Delivery(NamedTuple):
    """A handler that came to an end with success."""

    at: float
    member: str
    queue: MessageQueue
    offset: int
    body: bytes


class Due(NamedTuple):
    """When a delayed message may be delivered.

    Attributes:
        wall_ms: not before, by its broker's clock.
        at: not before, by the world's; holds as long as that clock is not set.
    """

    wall_ms: int
    at: float


@dataclass
class Account:
    """Messages sent and consumed.

    Attributes:
        sent: bodies that left a producer, acknowledged or not.
        acknowledged: bodies a broker has answered for: none of these may be lost.
        deliveries: successful deliveries, in their order.
        repeated: deliveries of a stored message that had been consumed before.
        stored_twice: bodies found in more than one place: a send whose answer was lost was sent again.
        skipped: stored messages that were first begun after a later one of their queue was done. For ordered
            groups that is a breach.
        excused: acknowledged bodies that may be missing: somebody deleted their topic, or a full disk their file.
        forbidden: bodies that nobody may see: their transactions were not committed.
        due: delayed bodies; each was sent once, and so has one place.
        early: what was delivered too early, and by how much.
        committed: bodies of committed transactions; each was sent once.
        gone: bodies of a deleted topic, from when everybody knows of that.
        returned: those of them that were delivered all the same.
    """

    sent: set[bytes] = field(default_factory=set)
    acknowledged: set[bytes] = field(default_factory=set)
    deliveries: list[Delivery] = field(default_factory=list)
    repeated: list[Delivery] = field(default_factory=list)
    skipped: list[Place] = field(default_factory=list)
    excused: set[bytes] = field(default_factory=set)
    forbidden: set[bytes] = field(default_factory=set)
    due: dict[bytes, Due] = field(default_factory=dict)
    early: list[str] = field(default_factory=list)
    committed: set[bytes] = field(default_factory=set)
    returned: set[bytes] = field(default_factory=set)
    refused: int = 0
    gone: set[bytes] = field(default_factory=set)
    _begun: set[Place] = field(default_factory=set)
    _done: set[Place] = field(default_factory=set)
    _furthest: dict[MessageQueue, int] = field(default_factory=dict)
    _places: dict[bytes, set[Place]] = field(default_factory=dict)

    def begin(self, queue: MessageQueue, offset: int) -> None:
        place = (queue, offset)
        if place not in self._begun:
            self._begun.add(place)
            if offset < self._furthest.get(queue, -1):
                self.skipped.append(place)

    def done(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)
        if delivery.body in self.gone:
            self.returned.add(delivery.body)
        place = (delivery.queue, delivery.offset)
        if place in self._done:
            self.repeated.append(delivery)
        self._done.add(place)
        self._furthest[delivery.queue] = max(self._furthest.get(delivery.queue, -1), delivery.offset)
        self._places.setdefault(delivery.body, set()).add(place)

    @property
    def consumed(self) -> set[bytes]:
        return set(self._places)

    @property
    def lost(self) -> set[bytes]:
        return self.acknowledged - self._places.keys() - self.excused

    @property
    def seen_though_forbidden(self) -> set[bytes]:
        return self.forbidden & self._places.keys()

    def in_several_places(self, bodies: Iterable[bytes]) -> set[bytes]:
        """Those that were stored for consumers more than once."""
        return {body for body in bodies if len(self._places.get(body, ())) > 1}

    def excuse_unconsumed(self, bodies: Iterable[bytes]) -> None:
        self.excused.update(body for body in bodies if body not in self._places)

    @property
    def stored_twice(self) -> int:
        return sum(len(places) > 1 for places in self._places.values())

    def __str__(self) -> str:
        return (
            f"sent {len(self.sent)}, acknowledged {len(self.acknowledged)}, consumed {len(self._places)}, "
            f"lost {len(self.lost)}, repeated {len(self.repeated)}, stored twice {self.stored_twice}, "
            f"delayed {len(self.due)}, committed {len(self.committed)}"
        )
