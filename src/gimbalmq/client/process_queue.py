"""The window of pulled messages of one queue.

Messages enter in the order of their offsets and leave when they are settled, in any order. What may be
committed is bound by the oldest one still inside: ``remove`` answers it. All methods run on the event loop's
thread, so there is nothing to lock.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from gimbalmq.protocol.status_bodies import ProcessQueueInfo

if TYPE_CHECKING:
    from gimbalmq.client.consumption import Batch
    from gimbalmq.model.message import MessageView
    from gimbalmq.model.queues import MessageQueue

PULL_IDLE_SECONDS = 120.0
"""No pull begun for longer: the pull loop is taken for dead (rocketmq.client.pull.pullMaxIdleTime)."""

LOCK_LIVE_SECONDS = 30.0
"""A broker lock counts as lost this long after its last renewal (rebalanceLockMaxLiveTime)."""


class ProcessQueue:
    """What one held queue has pulled and not yet settled (Java: ProcessQueue).

    Attributes:
        queue: the queue it belongs to.
        dropped: the queue was given up; nothing of it is begun or committed any more.
        draining: the queue is being handed over: nothing new is begun, what runs may still settle.
        paused: the user asked for no deliveries from it.
        locked: the broker's queue lock is ours.
        overridden: it counts as ours, but the broker still keeps it for a member that is gone.
        override_ends: monotonic time by which the broker has surely ended that member's lock.
        holds_until: leases: monotonic time up to which the lock is surely ours; nothing is begun after it.
        fenced: that time has passed, and the consumer has said so.
        shelved: batches that were not begun because of it.
        count, body_bytes: cached messages, those in work included.
        queue_offset_max: largest offset ever put.
        running: batches a handler is at work on, by identity.
    """

    __slots__ = (
        "_in_work",
        "_messages",
        "_quiet",
        "acquired_at",
        "body_bytes",
        "consume_lock",
        "consuming",
        "count",
        "draining",
        "dropped",
        "fenced",
        "holds_until",
        "last_consume",
        "last_lock",
        "last_pull",
        "locked",
        "overridden",
        "override_ends",
        "paused",
        "queue",
        "queue_offset_max",
        "running",
        "shelved",
        "try_unlock_times",
    )

    def __init__(self, queue: MessageQueue, *, now: float = 0.0, locked: bool = True) -> None:
        self.queue = queue
        self._messages: dict[int, MessageView] = {}
        self._in_work: dict[int, MessageView] = {}
        self._quiet: asyncio.Event | None = None
        self.running: dict[int, Batch] = {}
        self.count = 0
        self.body_bytes = 0
        self.queue_offset_max = -1
        self.dropped = False
        self.draining = False
        self.paused = False
        self.locked = locked
        self.overridden = False
        self.override_ends = 0.0
        self.fenced = False
        self.holds_until = math.inf
        self.shelved: list[Batch] = []
        self.consuming = False
        self.consume_lock = asyncio.Lock()
        self.try_unlock_times = 0
        self.acquired_at = self.last_lock = self.last_pull = self.last_consume = now

    def __repr__(self) -> str:
        state = "dropped" if self.dropped else "draining" if self.draining else "held"
        return f"<ProcessQueue {self.queue} {state} cached={self.count} locked={self.locked}>"

    # -- concurrent ------------------------------------------------------------------

    def put(self, messages: Iterable[MessageView]) -> bool:
        """Adds messages whose offsets are not there yet.

        Returns:
            Whether an idle queue has become busy, so that an orderly run must be started.
        """
        window = self._messages
        last = next(reversed(window)) if window else -1
        ordered = True
        added = size = 0
        for message in messages:
            offset = message.queue_offset
            if offset <= last:
                if offset in window:
                    continue
                ordered = False
            else:
                last = offset
            window[offset] = message
            added += 1
            size += message.body_size
        self.count += added
        self.body_bytes += size
        if last > self.queue_offset_max:
            self.queue_offset_max = last
        if not ordered:
            self._messages = dict(sorted(window.items()))
        if window and not self.consuming:
            self.consuming = True
            return True
        return False

    def remove(self, messages: Iterable[MessageView]) -> int:
        """Takes settled messages out.

        Returns:
            The offset that may be committed: the smallest one left, or one after the largest ever put when
            none is left; -1 when the window was empty before.
        """
        window = self._messages
        if not window:
            return -1
        pop = window.pop
        removed = size = 0
        for message in messages:
            if pop(message.queue_offset, None) is not None:
                removed += 1
                size += message.body_size
        self.count -= removed
        self.body_bytes = self.body_bytes - size if self.count else 0
        return next(iter(window)) if window else self.queue_offset_max + 1

    def __contains__(self, message: MessageView) -> bool:
        return message.queue_offset in self._messages

    # -- orderly ---------------------------------------------------------------------

    def take(self, limit: int) -> list[MessageView]:
        """Moves the ``limit`` smallest messages into work; none left means the queue goes idle."""
        taken = list(islice(self._messages.items(), limit))
        for offset, message in taken:
            del self._messages[offset]
            self._in_work[offset] = message
        if not taken:
            self.consuming = False
        return [message for _, message in taken]

    def commit(self) -> int:
        """Settles what is in work; answers the offset after it, -1 when nothing was."""
        if not self._in_work:
            return -1
        work = self._in_work
        self.count -= len(work)
        size = sum(message.body_size for message in work.values())
        self.body_bytes = self.body_bytes - size if self.count else 0
        self._in_work = {}
        return max(work) + 1

    def rollback(self) -> None:
        """Puts everything in work back."""
        self.put_back(list(self._in_work.values()))

    def put_back(self, messages: Sequence[MessageView]) -> None:
        """Puts these back into the window, so that they are taken again (makeMessageToConsumeAgain)."""
        for message in messages:
            self._in_work.pop(message.queue_offset, None)
            self._messages[message.queue_offset] = message
        self._messages = dict(sorted(self._messages.items()))

    # -- state -----------------------------------------------------------------------

    def clear(self) -> None:
        """Forgets every message; the queue was dropped or its offset was set anew."""
        self._messages = {}
        self.shelved = []
        self._in_work = {}
        self.count = self.body_bytes = 0
        self.queue_offset_max = -1
        self.consuming = False

    @property
    def span(self) -> int:
        """Distance between the oldest and the newest cached offset."""
        window = self._messages
        return next(reversed(window)) - next(iter(window)) if window else 0

    @property
    def min_offset(self) -> int | None:
        return next(iter(self._messages), None)

    @property
    def max_offset(self) -> int | None:
        return next(reversed(self._messages), None)

    @property
    def is_empty(self) -> bool:
        return not self._messages

    @property
    def in_work(self) -> int:
        return len(self._in_work)

    def oldest(self, limit: int) -> list[MessageView]:
        return list(islice(self._messages.values(), limit))

    def pull_expired(self, now: float, idle_seconds: float = PULL_IDLE_SECONDS) -> bool:
        return now - self.last_pull > idle_seconds

    def lock_expired(self, now: float, live_seconds: float = LOCK_LIVE_SECONDS) -> bool:
        return now - self.last_lock > live_seconds

    # -- what runs -------------------------------------------------------------------

    def begin(self, batch: Batch) -> None:
        self.running[id(batch)] = batch

    def end(self, *batches: Batch) -> None:
        for batch in batches:
            self.running.pop(id(batch), None)
        if not self.running and self._quiet is not None:
            self._quiet.set()

    async def quiet(self) -> None:
        """Returns when no handler is at work on this queue."""
        while self.running:
            if self._quiet is None:
                self._quiet = asyncio.Event()
            self._quiet.clear()
            await self._quiet.wait()

    def info(self, commit_offset: int, now: float, wall_ms: int) -> ProcessQueueInfo:
        """One row of 307's ``mqTable``."""

        def wall(moment: float) -> int:
            return wall_ms - int((now - moment) * 1000)

        work = self._in_work
        return ProcessQueueInfo(
            cached_msg_count=len(self._messages),
            cached_msg_max_offset=self.max_offset or 0,
            cached_msg_min_offset=self.min_offset or 0,
            cached_msg_size_in_mib=self.body_bytes >> 20,
            commit_offset=commit_offset,
            dropped=self.dropped,
            last_consume_timestamp=wall(self.last_consume),
            last_lock_timestamp=wall(self.last_lock),
            last_pull_timestamp=wall(self.last_pull),
            locked=self.locked,
            transaction_msg_count=len(work),
            transaction_msg_max_offset=max(work, default=0),
            transaction_msg_min_offset=min(work, default=0),
            try_unlock_times=self.try_unlock_times,
        )
