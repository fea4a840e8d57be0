"""Pulls parked until data or deadline (Java: PullRequestHoldService).

A pull that finds nothing waits here under its queue. An append wakes those whose tags match, a reset of
offsets those of its group; the deadline wakes the rest. A woken pull is served again from scratch and may
not park twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gimbalmq.store.consumequeue import QueueLog


@dataclass(slots=True, eq=False)
class Parked:
    """One waiting pull."""

    key: tuple[str, int]
    group: str
    tags: frozenset[int] | None
    next_offset: int
    resume: Callable[[], None]
    timer: asyncio.TimerHandle | None = None


class LongPoll:
    """All waiting pulls, by (topic, queue id)."""

    def __init__(self, tags_since: Callable[[QueueLog, int], list[int]]) -> None:
        self._parked: dict[tuple[str, int], dict[Parked, None]] = {}
        self._tags_since = tags_since

    def __len__(self) -> int:
        return sum(map(len, self._parked.values()))

    def park(self, pull: Parked, seconds: float) -> None:
        pull.timer = asyncio.get_running_loop().call_later(seconds, self._wake, pull)
        self._parked.setdefault(pull.key, {})[pull] = None

    def arrived(self, queues: list[QueueLog]) -> None:
        """Queues that have just grown."""
        if not self._parked:
            return
        for queue in queues:
            waiting = self._parked.get((queue.topic, queue.queue_id))
            if waiting:
                for pull in list(waiting):
                    if self._matches(pull, queue):
                        self._wake(pull)

    def wake_group(self, group: str, topic: str, queue_id: int) -> None:
        """A group's offset of a queue has been reset: its pulls there look again.

        The youngest first: an older one may be left from a member that has lost the queue, and the reset
        is told only once.
        """
        waiting = self._parked.get((topic, queue_id), {})
        for pull in [pull for pull in reversed(waiting) if pull.group == group]:
            self._wake(pull)

    def _matches(self, pull: Parked, queue: QueueLog) -> bool:
        if queue.max_offset <= pull.next_offset:
            return False
        if pull.tags is None:
            return True
        tags = self._tags_since(queue, pull.next_offset)
        # What was looked at and did not match need not be looked at again.
        pull.next_offset += len(tags)
        return any(tag in pull.tags for tag in tags)

    def _wake(self, pull: Parked) -> None:
        waiting = self._parked.get(pull.key)
        if waiting is None or waiting.pop(pull, pull) is not None:
            return
        if not waiting:
            del self._parked[pull.key]
        if pull.timer is not None:
            pull.timer.cancel()
        pull.resume()

    def wake_all(self) -> None:
        """For shutdown: everybody gets the answer there is."""
        for waiting in list(self._parked.values()):
            for pull in list(waiting):
                self._wake(pull)
