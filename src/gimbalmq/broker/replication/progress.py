"""How far the master had come with delayed messages, timers and transactions, as far as its slave may rely on it.

A slave asks its master for these numbers again and again, and goes on from them if it becomes the master. Such a number
is ahead of the slave's log if that has not received yet what the number tells of: a message that counts as delivered,
but whose delivery went down with the master, would never be delivered. So numbers are only taken when the log has come
to where the master's log ended after it had answered. What the master did after it had answered is found in the log
(``store/marks``).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from gimbalmq.broker.consumer_offsets import ConsumerOffsets
from gimbalmq.broker.delay_levels import DelayLevels
from gimbalmq.broker.timers import Timers
from gimbalmq.model import topics
from gimbalmq.store.message_store import MessageStore
from gimbalmq.store.timer_files import TimerCheck

log = logging.getLogger(__name__)

_WAITING = 64
"""So many rounds may wait for the log. If there are more, the newest ones are joined into one."""


@dataclass(slots=True)
class Copy:
    """What one round of questions brought.

    Attributes:
        since: where our log ended when the round began; the master's ended there or later.
        until: where the master's log ended when it had answered; -1 during the round.
        delays: the progress of delay levels, as ``DelayLevels.copy`` takes it.
        timers: how far timers had come.
        transactions: how far the queues of half messages and of their ends had been walked.
    """

    since: int
    until: int = -1
    delays: Mapping[str, object] | None = None
    timers: TimerCheck | None = None
    transactions: dict[str, int] | None = None

    def then(self, later: Copy) -> Copy:
        """Both as one: what the later one does not tell is as the earlier one said."""
        return Copy(
            later.since,
            later.until,
            self.delays if later.delays is None else later.delays,
            self.timers if later.timers is None else later.timers,
            {**(self.transactions or {}), **(later.transactions or {})},
        )


class CopiedProgress:
    """Keeps what rounds bring until the log has come so far, then gives it to those who would go on from it."""

    def __init__(
        self, store: MessageStore, offsets: ConsumerOffsets, delays: DelayLevels, timers: Timers
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._delays = delays
        self._timers = timers
        self._waiting: deque[Copy] = deque()

    def begin(self) -> Copy:
        """A round begins: to be called before the master is asked."""
        return Copy(self._store.max_commitlog_offset)

    def end(self, copy: Copy, master_end: int) -> None:
        """The round is over: ``master_end`` is where the master's log ended then."""
        copy.until = master_end
        if copy.delays is not None:
            # Apache's masters leave no marks; those of an earlier one of ours are looked for from here on.
            copy.delays = {"marksFrom": copy.since, **copy.delays}
        if len(self._waiting) == _WAITING:
            copy = self._waiting.pop().then(copy)
        self._waiting.append(copy)
        self.settle()

    def settle(self) -> None:
        """Takes what the log has caught up with."""
        reached = self._store.max_commitlog_offset
        taken: Copy | None = None
        while self._waiting and self._waiting[0].until <= reached:
            oldest = self._waiting.popleft()
            taken = oldest if taken is None else taken.then(oldest)
        if taken is None:
            return
        if taken.delays is not None:
            self._delays.copy(taken.delays)
        if taken.timers is not None:
            self._timers.copy(taken.timers)
        for topic, offset in (taken.transactions or {}).items():
            self._offsets.take(topics.TRANS_GROUP, topic, 0, offset)

    def forget(self) -> None:
        """Answers that still wait are of no use any more: the role or the master has changed."""
        self._waiting.clear()
