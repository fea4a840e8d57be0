"""What the page remembers: samples of groups over time, and what changed between two of them.

There is no page code here: the observer asks ``Admin`` again and again and keeps a bounded history, the pages
draw it. Groups somebody looks at are asked more than once a second, the others now and then, so that
a page has something to show when it is opened.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gimbalmq._clock import SYSTEM_CLOCK, Clock
from gimbalmq.admin.admin import Admin
from gimbalmq.balance.compare import Move
from gimbalmq.client.events import RECENT_KEY
from gimbalmq.errors import NoPermissionError, RocketMQError
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.topics import RETRY_PREFIX
from gimbalmq.protocol.status_bodies import ConsumerRunningInfo

log = logging.getLogger(__name__)

SAMPLES = 600
SAMPLE_MS = 2000
"""Samples nearer than this to the last but one replace the last one: 20 minutes of a group looked at."""
CHANGES = 200
SETTLING_MS = 10_000
"""What members tell so long after a change still belongs to it."""
LOOK_EVERY = 0.6
PASS_EVERY = 15.0
"""Seconds between looks at a group that somebody looks at, and at the others."""
REFUSED_EVERY = 60.0
"""Seconds until the cluster is asked again for what it has refused, because it notes every refusal."""
ANSWER_WITHIN = 1.5
"""Seconds a member has to say what it holds, or one that hangs would hide what the others do."""
MOST_GROUPS = 200
"""Groups asked though nobody looks."""

EVERY_MEMBER = "every member"
"""The owner of queues that are not shared out, because the group broadcasts."""

Event = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Sample:
    """A group at one moment.

    Attributes:
        owners: member by queue; queues nobody holds are left out.
        ends: the last offset of each queue at the broker.
        done: the group's offset in each queue.
        silent: members that did not answer; they hold what they held.
    """

    at_ms: int
    members: tuple[str, ...] = ()
    owners: Mapping[MessageQueue, str] = field(default_factory=dict)
    ends: Mapping[MessageQueue, int] = field(default_factory=dict)
    done: Mapping[MessageQueue, int] = field(default_factory=dict)
    silent: tuple[str, ...] = ()

    @property
    def queues(self) -> list[MessageQueue]:
        return sorted({*self.owners, *self.ends})

    @property
    def lag(self) -> int:
        return sum(self.lag_of(queue) for queue in self.done)

    def lag_of(self, queue: MessageQueue) -> int:
        done = self.done.get(queue)
        return 0 if done is None else max(0, self.ends.get(queue, 0) - done)


@dataclass(frozen=True, slots=True)
class Change:
    """Who came, who left, and which queues changed hands.

    Attributes:
        at_ms: when it was first seen.
        until_ms: when its last part was seen.
        reasons: what the members say about it (our clients only).
        paused: longest time a moved queue stood still, in seconds, as its new owner says.
    """

    at_ms: int
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    moves: tuple[Move, ...] = ()
    reasons: tuple[str, ...] = ()
    paused: float | None = None
    until_ms: int = 0

    @property
    def last_ms(self) -> int:
        return max(self.at_ms, self.until_ms)


def change_between(before: Sample, after: Sample) -> Change | None:
    """What happened from one sample to the next; None if nothing did."""
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


def belongs_to(later: Change, first: Change) -> bool:
    """Whether a change is the rest of the one before: queues follow members, and a queue that is handed
    over is for a moment nobody's.

    A look takes time: queues may be seen let go before the member is seen for whom they were.
    """
    if later.at_ms - first.last_ms > SETTLING_MS:
        return False
    if not (later.joined or later.left) or not first.moves:
        return True
    return not (first.joined or first.left) and all(not move.after for move in first.moves)


def together(first: Change, later: Change) -> Change:
    """Two parts of one change as one; a queue that is back where it was has not moved."""
    moves = {move.queue: move for move in first.moves}
    for move in later.moves:
        before = moves[move.queue].before if move.queue in moves else move.before
        moves[move.queue] = Move(move.queue, before, move.after)
    pauses = [paused for paused in (first.paused, later.paused) if paused is not None]
    joined, left = {*first.joined, *later.joined}, {*first.left, *later.left}
    return Change(
        first.at_ms,
        tuple(sorted(joined - left)),
        tuple(sorted(left - joined)),
        tuple(move for _, move in sorted(moves.items()) if move.before != move.after),
        tuple(dict.fromkeys((*first.reasons, *later.reasons))),
        max(pauses, default=None),
        later.last_ms,
    )


def explained(change: Change, events: Iterable[Event]) -> Change:
    """The change with what members said of it: the reasons of their rounds, the longest pause."""
    told = list(events)
    counted = Counter(
        str(event["reason"])
        for event in told
        if event.get("type") in ("RoundFinished", "QueueTaken", "QueueDropped") and event.get("reason")
    )
    said = (*change.reasons, *(reason for reason, _ in counted.most_common(3)))
    pauses = [_number(event.get("paused")) for event in told if event.get("type") == "QueueStarted"]
    if change.paused is not None:
        pauses.append(change.paused)
    return replace(change, reasons=tuple(dict.fromkeys(said))[:5], paused=max(pauses, default=None))


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


class GroupHistory:
    """One group's samples and changes.

    Attributes:
        numbers: a small number for each member, the same as long as it is there: its colour.
        problem: why the last look failed.
        lookers: open pages that show it.
        not_before: when it may be asked for again, by the observer's clock; the cluster has refused it until then.
    """

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=SAMPLES)
        self.changes: deque[Change] = deque(maxlen=CHANGES)
        self.numbers: dict[str, int] = {}
        self.problem = ""
        self.lookers = 0
        self.version = 0
        self.not_before = 0.0
        self._told: set[str] = set()

    @property
    def last(self) -> Sample:
        return self.samples[-1] if self.samples else Sample(0)

    def take(self, sample: Sample, events: Sequence[Event] = ()) -> None:
        """Adds a sample; what the members told since the last one explains the change.

        What was told before is known by having been told, not by its time: clocks differ.
        """
        texts = {json.dumps(event, sort_keys=True, default=str): event for event in events}
        fresh = [event for text, event in texts.items() if text not in self._told]
        self._told = set(texts)
        if self.samples:
            self._take_change(change_between(self.last, sample), fresh)
        if len(self.samples) > 1 and sample.at_ms - self.samples[-2].at_ms < SAMPLE_MS:
            self.samples.pop()
        self.samples.append(_sharing(self.last, sample))
        self._number(sample.members)
        self.version += 1

    def forget(self) -> None:
        """Drops what is known: whose it was may not know it any more."""
        self.samples.clear()
        self.changes.clear()
        self.numbers = {}
        self._told = set()
        self.version += 1

    def _take_change(self, change: Change | None, fresh: list[Event]) -> None:
        last = self.changes[-1] if self.changes else None
        if change is None:
            if last is not None and fresh and self.last.at_ms - last.last_ms <= SETTLING_MS:
                self.changes[-1] = explained(last, fresh)
            return
        change = explained(change, fresh)
        if last is not None and belongs_to(change, last):
            self.changes[-1] = together(last, change)
        else:
            self.changes.append(change)

    def _number(self, members: Iterable[str]) -> None:
        kept = {member: self.numbers[member] for member in members if member in self.numbers}
        for member in members:
            if member not in kept:
                taken = set(kept.values())
                kept[member] = next(number for number in range(len(kept) + 1) if number not in taken)
        self.numbers = kept

    def rates(self) -> dict[MessageQueue, float]:
        """Messages a second that each queue was consumed at, over the last ten seconds or so."""
        last = self.last
        recent = [sample for sample in self.samples if sample.at_ms >= last.at_ms - 10_000]
        if len(self.samples) > 1 and len(recent) < 2:
            recent = list(self.samples)[-2:]
        if len(recent) < 2:
            return {}
        first = recent[0]
        seconds = max(0.001, (last.at_ms - first.at_ms) / 1000)
        return {
            queue: max(0, place - first.done[queue]) / seconds
            for queue, place in last.done.items()
            if queue in first.done
        }


def _sharing(last: Sample, sample: Sample) -> Sample:
    """The sample with the last one's own dicts where they are equal: a quiet group costs no memory."""
    return replace(
        sample,
        owners=last.owners if last.owners == sample.owners else sample.owners,
        ends=last.ends if last.ends == sample.ends else sample.ends,
        done=last.done if last.done == sample.done else sample.done,
    )


def not_allowed(user: str, error: NoPermissionError) -> str:
    """What a page says of something that the cluster refuses its viewer."""
    return f"not allowed for {user}: {error.remark}" if user else str(error)


class Observer:
    """Asks and remembers, for all pages of one user at once.

    Args:
        user: with whose rights ``admin`` asks; "" if the cluster has no users.
    """

    def __init__(
        self,
        admin: Admin,
        *,
        user: str = "",
        clock: Clock = SYSTEM_CLOCK,
        every: float = LOOK_EVERY,
        pass_every: float = PASS_EVERY,
    ) -> None:
        self.admin = admin
        self._user = user
        self._clock = clock
        self._every = every
        self._pass_every = pass_every
        self._groups: dict[str, GroupHistory] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def history(self, group: str) -> GroupHistory:
        return self._groups.setdefault(group, GroupHistory())

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._watch()), loop.create_task(self._pass())]

    async def close(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self) -> None:
        """Groups somebody looks at; a group that is slow to ask is asked less often."""
        while True:
            began = self._clock.monotonic()
            watched = [
                group
                for group, history in self._groups.items()
                if history.lookers and history.not_before <= began
            ]
            await asyncio.gather(*map(self.look, watched))
            await asyncio.sleep(max(self._every, self._clock.monotonic() - began))

    async def _pass(self) -> None:
        """All other groups, one after the other."""
        while True:
            pause = self._pass_every
            try:
                names = (await self.admin.groups.names())[:MOST_GROUPS]
            except NoPermissionError as error:
                log.debug("groups may not be listed: %s", error)
                pause = max(pause, REFUSED_EVERY)
            except RocketMQError as error:
                log.debug("groups cannot be listed: %s", error)
            except Exception:
                log.exception("groups cannot be listed")
            else:
                for group in names:
                    history = self.history(group)
                    if not history.lookers and history.not_before <= self._clock.monotonic():
                        await self.look(group)
                for group in [name for name in self._groups if name not in names]:
                    if not self._groups[group].lookers:
                        del self._groups[group]
            await asyncio.sleep(pause)

    async def look(self, group: str) -> None:
        """Takes one sample of a group; what goes wrong is kept for the page to show."""
        history = self.history(group)
        try:
            sample, events = await self._sample(group)
        except NoPermissionError as error:
            problem = not_allowed(self._user, error)
            history.not_before = self._clock.monotonic() + REFUSED_EVERY
            history.forget()
        except RocketMQError as error:
            problem = str(error)
        except Exception as error:  # the next look may go well, and the others must
            log.exception("group %s cannot be looked at", group)
            problem = f"{type(error).__name__}: {error}"
        else:
            problem = ""
            history.take(sample, events)
        if problem != history.problem:
            history.problem = problem
            history.version += 1

    async def _sample(self, group: str) -> tuple[Sample, list[Event]]:
        groups = self.admin.groups
        members = await groups.member_ids(group)
        told, progress = await asyncio.gather(
            asyncio.gather(*(self._ask(group, member) for member in members)), groups.progress(group)
        )
        silent = tuple(member for member, info in zip(members, told, strict=True) if info is None)
        owners = {queue: owner for queue, owner in self.history(group).last.owners.items() if owner in silent}
        events: list[Event] = []
        for member, info in zip(members, told, strict=True):
            if info is not None:
                broadcasts = info.properties.get("messageModel") == "BROADCASTING"
                owners |= {
                    queue: EVERY_MEMBER if broadcasts else member
                    for queue, state in info.queues.items()
                    if not state.dropped and not queue.topic.startswith(RETRY_PREFIX)
                }
                events += ({**event, "member": member} for event in _events_of(info.user_consumer_info))
        shown = [item for item in progress.queues if not item.queue.topic.startswith(RETRY_PREFIX)]
        return (
            Sample(
                self._clock.wall_ms(),
                tuple(members),
                owners,
                {item.queue: item.broker_offset for item in shown},
                {item.queue: item.consumer_offset for item in shown},
                silent,
            ),
            events,
        )

    async def _ask(self, group: str, member: str) -> ConsumerRunningInfo | None:
        """What a member says of itself; None if it does not, or not in time."""
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                return await self.admin.groups.running_info(group, member)
        except (RocketMQError, TimeoutError):
            return None


def _events_of(told: Mapping[str, str]) -> list[dict[str, object]]:
    try:
        listed = json.loads(told.get(RECENT_KEY, "[]"))
    except ValueError:
        return []
    return [event for event in listed if isinstance(event, dict)] if isinstance(listed, list) else []
