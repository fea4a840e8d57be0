"""What a group's changes would move: the strategies run through a day in virtual time.

There is no network and no clock, only a heap of events, each with its second. A change becomes visible to the group
after a delay that depends on its kind (a closed connection is noticed at once, a vanished host after
the broker's 120 s), then the members rebalance and the new shares are compared with the old ones.
What "moved" and "minimum" mean is said in ``compare``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop
from random import Random
from typing import Literal

from gimbalmq.balance.allocate import AllocateStrategy, shares
from gimbalmq.balance.compare import Parts, compare
from gimbalmq.errors import ConfigError
from gimbalmq.model.queues import MessageQueue, sort_client_ids

EventKind = Literal["join", "leave", "crash", "lost", "resize"]

NOTICED_AFTER: Mapping[EventKind, float] = {"join": 0, "leave": 0, "crash": 0, "resize": 30, "lost": 120}
"""Seconds until the group reacts: ``crash`` closes its connections, ``lost`` is a host that falls
silent (broker's channel expiry), ``resize`` waits for the next route poll."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens to the group at a second of the day.

    Attributes:
        member: who joins, leaves, crashes or is lost.
        queues: all queues from now on, for ``resize``.
    """

    at: float
    kind: EventKind
    member: str = ""
    queues: tuple[MessageQueue, ...] = ()


@dataclass(frozen=True, slots=True)
class Rebalance:
    """One rebalance.

    Attributes:
        at: second of the rebalance.
        moved: queues that changed owner.
        minimum: queues that had to.
        spread: largest minus smallest count after it.
        idle: members without a queue after it.
        waited: seconds from the event to the rebalance.
        unserved: queues that had no live owner in that time.
    """

    at: float
    event: Event
    members: int
    queues: int
    moved: int
    minimum: int
    spread: int
    idle: int
    waited: float
    unserved: int


@dataclass(frozen=True, slots=True)
class Report:
    strategy: str
    outcomes: tuple[Rebalance, ...]

    @property
    def moved(self) -> int:
        return sum(outcome.moved for outcome in self.outcomes)

    @property
    def minimum(self) -> int:
        return sum(outcome.minimum for outcome in self.outcomes)

    @property
    def ratio(self) -> float:
        """Moved over minimum for the whole run; 1.0 if nothing had to move and nothing did."""
        if self.minimum:
            return self.moved / self.minimum
        return float("inf") if self.moved else 1.0

    @property
    def worst_spread(self) -> int:
        return max((outcome.spread for outcome in self.outcomes), default=0)

    @property
    def unserved_seconds(self) -> float:
        """Queue-seconds without a live owner."""
        return sum(outcome.unserved * outcome.waited for outcome in self.outcomes)


def simulate(
    strategy: AllocateStrategy,
    queues: Sequence[MessageQueue],
    schedule: Iterable[Event],
    *,
    members: Iterable[str] = (),
    group: str = "simulated",
) -> Report:
    """Run a schedule and report every rebalance.

    Args:
        queues: of all topics, at the start.
        schedule: events in any order.
        members: client ids at the start; they hold their shares before the first event.
    """
    present = set(members)
    state = _Group(strategy, group, list(queues), present, shares(strategy, group, queues, present))
    pending = [
        (event.at + NOTICED_AFTER[event.kind], order, event)
        for order, event in enumerate(sorted(schedule, key=lambda event: event.at))
    ]
    heapify(pending)
    outcomes = []
    while pending:
        now, _, event = heappop(pending)
        outcomes.append(state.apply(now, event))
    return Report(strategy.name, tuple(outcomes))


@dataclass(slots=True)
class _Group:
    strategy: AllocateStrategy
    name: str
    queues: list[MessageQueue]
    members: set[str]
    parts: Parts

    def apply(self, now: float, event: Event) -> Rebalance:
        unserved = 0
        if event.kind == "resize":
            self.queues = list(event.queues)
        elif event.kind == "join":
            self.members.add(event.member)
        elif event.member in self.members:
            self.members.discard(event.member)
            unserved = len(self.parts.get(event.member, ()))
        else:
            raise ConfigError("schedule", event, "a member that leaves must have joined")
        change = compare(self.strategy, self.name, self.parts, self.queues, self.members)
        self.parts = change.after
        return Rebalance(
            at=now,
            event=event,
            members=len(self.members),
            queues=len(self.queues),
            moved=len(change.moves),
            minimum=change.minimum,
            spread=change.spread,
            idle=change.idle,
            waited=now - event.at,
            unserved=unserved,
        )


def day_of_changes(
    seed: int,
    queues: Sequence[MessageQueue],
    members: Iterable[str],
    *,
    events: int = 100,
    largest_group: int = 64,
    resizes: bool = True,
) -> list[Event]:
    """A day of joins, clean stops, crashes, lost hosts and topic resizes; equal seeds, equal days.

    Args:
        queues: at the start. A resize adds or removes a quarter of one topic's queues.
        members: client ids at the start.
        largest_group: no joins beyond so many members.
        resizes: whether topics change their size.
    """
    rng = Random(seed)
    present = sort_client_ids(members)
    current = list(queues)
    schedule: list[Event] = []
    gap = 86_400 / (events + 1)
    for number in range(events):
        at = round(gap * (number + rng.random() * 0.5), 3)
        draw = rng.random()
        if resizes and draw < 0.05:
            current = _resized(rng, current)
            schedule.append(Event(at, "resize", queues=tuple(current)))
        elif len(present) < 2 or (len(present) < largest_group and draw < 0.525):
            host, process = rng.randrange(1, 255), rng.randrange(1000, 65536)
            client_id = f"10.0.{number % 256}.{host}@{process}#{rng.getrandbits(47)}"
            present.append(client_id)
            schedule.append(Event(at, "join", client_id))
        else:
            client_id = present.pop(rng.randrange(len(present)))
            kind: EventKind = rng.choices(("leave", "crash", "lost"), (6, 3, 1))[0]
            schedule.append(Event(at, kind, client_id))
    return schedule


def _resized(rng: Random, queues: list[MessageQueue]) -> list[MessageQueue]:
    topic, broker, _ = rng.choice(queues)
    ids = [queue.queue_id for queue in queues if queue[:2] == (topic, broker)]
    step = max(1, len(ids) // 4)
    if rng.random() < 0.5 or len(ids) <= step:
        return queues + [MessageQueue(topic, broker, max(ids) + 1 + extra) for extra in range(step)]
    gone = set(sorted(ids)[-step:])
    return [queue for queue in queues if queue[:2] != (topic, broker) or queue.queue_id not in gone]
