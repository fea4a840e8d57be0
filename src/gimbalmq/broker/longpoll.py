"""Pulls parked until data or deadline (Java: PullRequestHoldService).

A pull that finds nothing waits here under its queue. An append wakes those whose tags match, a reset of
offsets those of its group; the deadline wakes the rest, and the end of its connection removes it. A woken pull
is served again from scratch and may not park twice.

However many wait, few are looked at in one turn of the loop: the first at once, the others in the turns that follow.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush

from gimbalmq.broker.config import LiveConfig
from gimbalmq.errors import SystemBusyError
from gimbalmq.store.consumequeue import QueueLog

PULLS_PER_TURN = 64
"""So many pulls are looked at or woken in one turn of the loop; each costs some 20 microseconds."""

LONGEST_LOOK = 256
"""A pull that is further behind is woken without looking at tags: it looks itself, and says how far it came."""

_TICKS_PER_SECOND = 20
"""Deadlines are kept to a 20th of a second; Apache's broker looks every five seconds."""


@dataclass(slots=True, eq=False)
class Parked:
    """One waiting pull."""

    key: tuple[str, int]
    group: str
    tags: frozenset[int] | None
    next_offset: int
    owner: object
    """The connection it came by."""
    resume: Callable[[], None]
    tick: int = 0


class LongPoll:
    """All waiting pulls, by (topic, queue id)."""

    def __init__(self, tags_since: Callable[[QueueLog, int], list[int]], live: LiveConfig) -> None:
        self._parked: dict[tuple[str, int], dict[Parked, None]] = {}
        self._tags_since = tags_since
        self._live = live
        self._count = 0
        self._by_owner: dict[object, dict[Parked, None]] = {}
        self._by_tick: dict[int, dict[Parked, None]] = {}
        self._ticks: list[int] = []
        """A heap of the keys of ``_by_tick``."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_tick = 0
        self._woken: deque[Parked] = deque()
        self._grown: dict[tuple[str, int], QueueLog] = {}
        """Queues that have more waiting than one turn can look at."""
        self._looking: deque[Parked] = deque()
        """Of ``_looked_at``, one of them: who is still to be looked at."""
        self._looked_at: tuple[str, int] | None = None
        self._look_again = False
        self._step_scheduled = False

    def __len__(self) -> int:
        return self._count

    def park(self, pull: Parked, seconds: float) -> None:
        """Keeps a pull for so long.

        Raises:
            SystemBusyError: clients try again in a moment; the connection or the broker holds too many.
        """
        config = self._live.now
        own = self._by_owner.get(pull.owner)
        if self._count >= config.max_parked_pulls:
            raise _busy(
                f"{self._count} pulls wait at this broker already: pull again later, or raise maxParkedPulls"
            )
        if own is not None and len(own) >= config.max_parked_pulls_per_connection:
            raise _busy(
                f"{len(own)} pulls of this connection wait already: use another one, or raise "
                "maxParkedPullsPerConnection"
            )
        if own is None:
            own = self._by_owner[pull.owner] = {}
        own[pull] = None
        self._parked.setdefault(pull.key, {})[pull] = None
        self._count += 1
        loop = asyncio.get_running_loop()
        pull.tick = tick = int((loop.time() + seconds) * _TICKS_PER_SECOND) + 1
        due = self._by_tick.get(tick)
        if due is None:
            due = self._by_tick[tick] = {}
            heappush(self._ticks, tick)
            if self._timer is None or tick < self._timer_tick:
                self._set_timer(loop)
        due[pull] = None

    def arrived(self, queues: Iterable[QueueLog]) -> None:
        """Queues that have just grown."""
        if not self._parked:
            return
        looked = 0
        for queue in queues:
            key = (queue.topic, queue.queue_id)
            waiting = self._parked.get(key)
            if not waiting:
                continue
            looked += len(waiting)
            if looked <= PULLS_PER_TURN and key not in self._grown:
                for pull in list(waiting):
                    if self._matches(pull, queue):
                        self._wake(pull)
            else:
                self._grown[key] = queue
                self._look_again |= key == self._looked_at
                self._step_soon()

    def wake_group(self, group: str, topic: str, queue_id: int) -> None:
        """A group's offset of a queue has been reset: its pulls there look again.

        The youngest first: an older one may be left from a member that has lost the queue, and the reset
        is told only once.
        """
        waiting = self._parked.get((topic, queue_id), {})
        self._wake_some([pull for pull in reversed(waiting) if pull.group == group])

    def wake_all(self) -> None:
        """For shutdown: everybody gets the answer there is."""
        self._wake_some([pull for waiting in self._parked.values() for pull in waiting])

    async def all_woken(self) -> None:
        """Returns when everybody who is to be woken has been."""
        while self._woken:
            self._step()
            await asyncio.sleep(0)

    def disconnected(self, owner: object) -> None:
        """The connection has ended: nobody waits for these answers."""
        for pull in list(self._by_owner.get(owner, ())):
            self._remove(pull)

    # -- inside ------------------------------------------------------------------------

    def _matches(self, pull: Parked, queue: QueueLog) -> bool:
        behind = queue.max_offset - pull.next_offset
        if behind <= 0:
            return False
        if pull.tags is None or behind > LONGEST_LOOK:
            return True
        tags = self._tags_since(queue, pull.next_offset)
        # What was looked at and did not match need not be looked at again.
        pull.next_offset += len(tags)
        return any(tag in pull.tags for tag in tags)

    def _wake(self, pull: Parked) -> None:
        if self._remove(pull):
            pull.resume()

    def _remove(self, pull: Parked) -> bool:
        waiting = self._parked.get(pull.key)
        if waiting is None or waiting.pop(pull, pull) is not None:
            return False
        if not waiting:
            del self._parked[pull.key]
        own = self._by_owner[pull.owner]
        del own[pull]
        if not own:
            del self._by_owner[pull.owner]
        # An empty tick stays until its time comes: there are few.
        due = self._by_tick.get(pull.tick)
        if due is not None:
            due.pop(pull, None)
        self._count -= 1
        return True

    def _wake_some(self, pulls: list[Parked]) -> None:
        """The first now, the others in later turns."""
        for pull in pulls[:PULLS_PER_TURN]:
            self._wake(pull)
        if len(pulls) > PULLS_PER_TURN:
            self._woken.extend(pulls[PULLS_PER_TURN:])
            self._step_soon()

    def _step_soon(self) -> None:
        if not self._step_scheduled:
            self._step_scheduled = True
            asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        """One turn's share of what is still to be woken or looked at."""
        self._step_scheduled = False
        left = PULLS_PER_TURN
        while left and self._woken:
            self._wake(self._woken.popleft())
            left -= 1
        while left and self._grown:
            key, queue = next(iter(self._grown.items()))
            if self._looked_at is None:
                # Whoever parks from here on has seen the queue as it is now.
                self._looked_at, self._look_again = key, False
                self._looking.extend(self._parked.get(key, ()))
            while left and self._looking:
                pull = self._looking.popleft()
                if self._is_parked(pull) and self._matches(pull, queue):
                    self._wake(pull)
                left -= 1
            if not self._looking:
                self._looked_at = None
                del self._grown[key]
                if self._look_again:
                    self._grown[key] = queue
        if self._woken or self._grown:
            self._step_soon()

    def _is_parked(self, pull: Parked) -> bool:
        return pull in self._parked.get(pull.key, ())

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_tick = self._ticks[0]
        self._timer = loop.call_at(self._timer_tick / _TICKS_PER_SECOND, self._expire)

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        # The loop may call a hair before the time it was given.
        now = max(self._timer_tick, int(loop.time() * _TICKS_PER_SECOND))
        due: list[Parked] = []
        while self._ticks and self._ticks[0] <= now:
            due.extend(self._by_tick.pop(heappop(self._ticks)))
        if self._ticks:
            self._set_timer(loop)
        self._wake_some(due)


def _busy(why: str) -> SystemBusyError:
    return SystemBusyError(f"[OVERLOAD]{why}")
