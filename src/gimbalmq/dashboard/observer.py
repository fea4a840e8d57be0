"""What the page remembers: samples of groups over time, and what changed between two of them.

No page code here: the observer asks ``Admin`` again and again and keeps a bounded history, the pages
draw it. Groups somebody looks at are asked every second, the others now and then.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from gimbalmq._clock import SYSTEM_CLOCK, Clock
from gimbalmq.admin.admin import Admin
from gimbalmq.errors import RocketMQError
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.topics import RETRY_PREFIX

log = logging.getLogger(__name__)

SAMPLES = 900
CHANGES = 500
LOOK_EVERY = 1.0
EVENTS_KEY = "gimbalmq.events"
"""Where our consumers put their last balance events into what they tell of themselves."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A group at one moment.

    Attributes:
        owners: member by queue; queues nobody holds are left out.
        ends: the last offset of each queue at the broker.
        done: the group's offset in each queue.
    """

    at_ms: int
    members: tuple[str, ...] = ()
    owners: Mapping[MessageQueue, str] = field(default_factory=dict)
    ends: Mapping[MessageQueue, int] = field(default_factory=dict)
    done: Mapping[MessageQueue, int] = field(default_factory=dict)

    @property
    def lag(self) -> int:
        return sum(self.ends[queue] - place for queue, place in self.done.items() if queue in self.ends)


@dataclass(frozen=True, slots=True)
class Move:
    queue: MessageQueue
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Change:
    """Who came, who left, and which queues changed hands.

    Attributes:
        reasons: what the members say about it (our clients only).
        paused: longest time a moved queue stood still, in seconds, as its new owner says.
    """

    at_ms: int
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    moves: tuple[Move, ...] = ()
    reasons: tuple[str, ...] = ()
    paused: float | None = None


def change_between(before: Sample, after: Sample) -> Change | None:
    """What happened from one sample to the next; None where nothing did."""
    joined = tuple(sorted(set(after.members) - set(before.members)))
    left = tuple(sorted(set(before.members) - set(after.members)))
    moves = tuple(
        Move(queue, before.owners.get(queue, ""), after.owners.get(queue, ""))
        for queue in sorted({*before.owners, *after.owners})
        if before.owners.get(queue, "") != after.owners.get(queue, "")
    )
    if not (joined or left or moves):
        return None
    return Change(after.at_ms, joined, left, moves)


class GroupHistory:
    """One group's samples and changes."""

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=SAMPLES)
        self.changes: deque[Change] = deque(maxlen=CHANGES)
        self.problem = ""
        self.lookers = 0
        self.looked_ms = 0

    @property
    def last(self) -> Sample:
        return self.samples[-1] if self.samples else Sample(0)

    def take(self, sample: Sample, events: list[Mapping[str, object]]) -> None:
        """Adds a sample; what the members told since the last one explains the change."""
        change = change_between(self.last, sample) if self.samples else None
        if change is not None:
            self.changes.append(explained(change, events, since_ms=self.last.at_ms))
        self.samples.append(sample)

    def rates(self) -> dict[MessageQueue, float]:
        """Messages a second that each queue was consumed at, over the last ten samples."""
        if len(self.samples) < 2:
            return {}
        recent = list(self.samples)[-10:]
        first, last = recent[0], recent[-1]
        seconds = max(0.001, (last.at_ms - first.at_ms) / 1000)
        return {
            queue: max(0, place - first.done[queue]) / seconds
            for queue, place in last.done.items()
            if queue in first.done
        }


def explained(change: Change, events: list[Mapping[str, object]], *, since_ms: int) -> Change:
    """The change with what members said of it: the reasons of their rounds, the longest pause."""
    fresh = [event for event in events if _number(event.get("at_ms")) > since_ms - 1500]
    counted = Counter(
        str(event["reason"])
        for event in fresh
        if event.get("type") in ("RoundStarted", "QueueTaken", "QueueDropped") and event.get("reason")
    )
    pauses = [_number(event.get("paused")) for event in fresh if event.get("type") == "QueueStarted"]
    return Change(
        change.at_ms,
        change.joined,
        change.left,
        change.moves,
        tuple(reason for reason, _ in counted.most_common(3)),
        max(pauses, default=None),
    )


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


class Observer:
    """Asks and remembers, for all pages at once."""

    def __init__(self, admin: Admin, *, clock: Clock = SYSTEM_CLOCK, every: float = LOOK_EVERY) -> None:
        self.admin = admin
        self._clock = clock
        self._every = every
        self._groups: dict[str, GroupHistory] = {}
        self._task: asyncio.Task[None] | None = None

    def history(self, group: str) -> GroupHistory:
        return self._groups.setdefault(group, GroupHistory())

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            watched = [group for group, history in self._groups.items() if history.lookers]
            await asyncio.gather(*(self.look(group) for group in watched))
            await asyncio.sleep(self._every)

    async def look(self, group: str) -> GroupHistory:
        """Takes one sample of a group; what goes wrong is kept for the page to show."""
        history = self.history(group)
        try:
            sample, events = await self._sample(group)
        except RocketMQError as error:
            history.problem = str(error)
            return history
        history.problem = ""
        history.take(sample, events)
        return history

    async def _sample(self, group: str) -> tuple[Sample, list[Mapping[str, object]]]:
        groups = self.admin.groups
        members = await groups.member_ids(group)
        told, progress = await asyncio.gather(groups.told_by(group, members), groups.progress(group))
        owners: dict[MessageQueue, str] = {}
        events: list[Mapping[str, object]] = []
        for member, info in told.items():
            owners |= {
                queue: member
                for queue, state in info.queues.items()
                if not state.dropped and not queue.topic.startswith(RETRY_PREFIX)
            }
            events += _events_of(info.user_consumer_info)
        shown = [item for item in progress.queues if not item.queue.topic.startswith(RETRY_PREFIX)]
        return (
            Sample(
                self._clock.wall_ms(),
                tuple(members),
                owners,
                {item.queue: item.broker_offset for item in shown},
                {item.queue: item.consumer_offset for item in shown},
            ),
            events,
        )


def _events_of(told: Mapping[str, str]) -> list[Mapping[str, object]]:
    try:
        listed = json.loads(told.get(EVENTS_KEY, "[]"))
    except ValueError:
        return []
    return [event for event in listed if isinstance(event, dict)] if isinstance(listed, list) else []
