"""One queue that this member of a group has, from its claim to its end.

::

    CLAIMED --start--> READING --drain--> DRAINING --drop--> DROPPED --give_up--> GIVEN_UP
       |                  |                                     ^
       +-------drop-------+-------------------------------------+

All transitions are methods of ``HeldQueue``; nothing else writes its state. A transition that leaves READING
stops the reader. Progress is noted by ``settle``, ``settle_work``, ``done_to`` and ``advance`` only, and only
before the queue is dropped, so that a message that no handler has finished is never committed.
"""

from __future__ import annotations

import asyncio
import math
from enum import Enum

import msgspec

from gimbalmq._clock import Clock
from gimbalmq.client.consuming.offsets import OffsetStore
from gimbalmq.client.consuming.window import Window
from gimbalmq.errors import StateError
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue

PULL_IDLE_SECONDS = 120.0
"""No pull begun for longer: the reader is taken for dead (rocketmq.client.pull.pullMaxIdleTime)."""

LOCK_LIVE_SECONDS = 30.0
"""A broker lock counts as lost this long after its last renewal (rebalanceLockMaxLiveTime)."""


class State(Enum):
    """What a member may do with a queue."""

    CLAIMED = "claimed"
    """It is ours by the strategy; its lock or its start offset is not known yet."""
    READING = "reading"
    """It is read, and handlers begin its messages."""
    DRAINING = "draining"
    """It is to be given up: nothing new is begun, what handlers have begun may still be settled and committed."""
    DROPPED = "dropped"
    """Nothing of it is begun or committed any more; its lock may still be ours until handlers are through."""
    GIVEN_UP = "given up"
    """It is out of the table, and its lock is given back."""


CLAIMED, READING, DRAINING = State.CLAIMED, State.READING, State.DRAINING
DROPPED, GIVEN_UP = State.DROPPED, State.GIVEN_UP


class Work(msgspec.Struct, eq=False):
    """Messages of one queue that somebody is at work on.

    Attributes:
        started, ended: monotonic times.
    """

    held: HeldQueue
    messages: list[MessageView]
    started: float = 0.0
    ended: float = 0.0

    def leave(self) -> None:
        """Nobody will be at work on it here."""


class HeldQueue:
    """A queue's state, its window of messages, its progress, its lock and its reader.

    Attributes:
        queue: which one.
        state: written by the transitions alone.
        window: what was pulled and is not settled.
        paused: the user asked for no deliveries from it.
        progressed: progress was noted since it was claimed; what is remembered is not only what a broker once said.
        position: pull consumers: the offset after what was handed out; None before anything was.
        locked: the broker's queue lock is ours.
        leased: it is held by lease: ``holds_until`` counts.
        holds_until: monotonic time up to which the lock is surely ours; nothing is begun or committed after it.
        fenced: that time has passed, and the consumer has said so.
        overridden: it counts as ours, but the broker still keeps it for a member that is gone.
        override_ends: monotonic time by which the broker has surely ended that member's lock.
        gone_since: claimed: since when the holder of its lock has been missing at the queue's broker.
        running: what handlers are at work on, by identity.
        shelved: batches that were not begun because the lease was in doubt.
        give_up_tries: how often a handler at work has put off the end.
        claimed_at, dropped_at, last_lock, last_pull, last_consume: monotonic times.
    """

    __slots__ = (
        "_changed",
        "_clock",
        "_offsets",
        "_reader",
        "claimed_at",
        "dropped_at",
        "fenced",
        "give_up_tries",
        "gone_since",
        "holds_until",
        "last_consume",
        "last_lock",
        "last_pull",
        "leased",
        "locked",
        "overridden",
        "override_ends",
        "paused",
        "position",
        "progressed",
        "queue",
        "running",
        "shelved",
        "state",
        "window",
    )

    def __init__(self, queue: MessageQueue, clock: Clock, offsets: OffsetStore) -> None:
        self.queue = queue
        self._clock = clock
        self._offsets = offsets
        self._reader: asyncio.Task[None] | None = None
        self._changed: asyncio.Event | None = None
        self.state = CLAIMED
        self.window = Window()
        self.paused = False
        self.position: int | None = None
        self.progressed = False
        self.locked = False
        self.leased = False
        self.holds_until = math.inf
        self.fenced = False
        self.overridden = False
        self.override_ends = 0.0
        self.gone_since: float | None = None
        self.running: dict[int, Work] = {}
        self.shelved: list[Work] = []
        self.give_up_tries = 0
        now = clock.monotonic()
        self.claimed_at = self.dropped_at = self.last_lock = self.last_pull = self.last_consume = now

    def __repr__(self) -> str:
        return f"<HeldQueue {self.queue} {self.state.value} cached={self.window.count} locked={self.locked}>"

    # -- transitions -----------------------------------------------------------------

    def start(self) -> None:
        """Its lock is in our hand, if it needs one, and it is read from now on."""
        assert self.state is CLAIMED, f"{self} cannot be started"
        self.last_pull = self._clock.monotonic()
        self._move(READING)

    def drain(self) -> None:
        """It is to be given up, but what runs may still settle."""
        assert self.state is READING, f"{self} cannot be drained"
        self._move(DRAINING)

    def drop(self) -> None:
        """From here on nothing of it is begun or committed."""
        assert self.state in (CLAIMED, READING, DRAINING), f"{self} cannot be dropped"
        self.dropped_at = self._clock.monotonic()
        self._move(DROPPED)

    def give_up(self) -> None:
        """The end; whoever calls this has given the lock back, or left it to end by itself."""
        assert self.state is DROPPED, f"{self} cannot be given up"
        self.locked = False
        self._move(GIVEN_UP)

    def _move(self, state: State) -> None:
        self.state = state
        if state is not READING:
            self._stop_reader()
            self._leave_shelved()
        self._tell()

    @property
    def dropped(self) -> bool:
        return self.state is DROPPED or self.state is GIVEN_UP

    @property
    def draining(self) -> bool:
        return self.state is DRAINING

    # -- reading ---------------------------------------------------------------------

    def read_by(self, reader: asyncio.Task[None]) -> None:
        """This task fills the window from now on; one before it is stopped."""
        assert self.state is READING, f"{self} cannot be read"
        self._stop_reader()
        self._reader = reader

    def empty(self) -> None:
        """Stops reading and forgets what was read: it is to be read from another place."""
        self._stop_reader()
        self.window.clear()
        self._leave_shelved()

    def _leave_shelved(self) -> None:
        shelved, self.shelved = self.shelved, []
        for work in shelved:
            work.leave()

    def _stop_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None and reader is not asyncio.current_task():
            reader.cancel()

    def pull_expired(self, now: float, idle_seconds: float = PULL_IDLE_SECONDS) -> bool:
        return now - self.last_pull > idle_seconds

    # -- progress --------------------------------------------------------------------

    def settle(self, messages: list[MessageView]) -> None:
        """These are done with; progress goes up to the oldest that is not."""
        offset = self.window.remove(messages)
        if offset >= 0:
            self._note(offset, increase_only=True)

    def settle_work(self) -> None:
        """Ordered: all that is in work is done with."""
        offset = self.window.commit()
        if offset >= 0:
            self._note(offset, increase_only=False)

    def advance(self, offset: int) -> None:
        """Nothing to deliver lies before this offset; that is progress if nothing is pending."""
        if not self.window.count:
            self._note(offset, increase_only=True)

    def done_to(self, offset: int) -> None:
        """Everything before this offset is done with, as whoever was given the messages says."""
        self._note(offset, increase_only=False)

    def _note(self, offset: int, *, increase_only: bool) -> None:
        if self.state is READING or self.state is DRAINING:
            self.progressed = True
            self._offsets.update(self.queue, offset, increase_only=increase_only)

    async def commit(self, *, wait: bool = False) -> None:
        """Writes the noted progress away.

        Raises:
            StateError: whether the queue is still ours is not known.
            RocketMQError: the store could not be reached.
        """
        if self.in_doubt:
            raise StateError(f"the lease of {self.queue} is in doubt; it is committed once it is ours")
        await self._offsets.persist(self.queue, wait=wait)

    # -- its lock --------------------------------------------------------------------

    @property
    def in_doubt(self) -> bool:
        """Whether the lease may be another's by now."""
        return self.leased and self._clock.monotonic() > self.holds_until

    def lock_granted(self, sent: float) -> None:
        """The broker says that the lock is ours; it was asked at ``sent``."""
        self.locked = True
        self.overridden = False
        if sent > self.last_lock:
            self.last_lock = sent

    def lock_refused(self) -> None:
        self.locked = False

    def override(self, ends: float) -> None:
        """It counts as ours, though the broker may keep its lock for a member that is gone until ``ends``."""
        self.overridden = True
        self.override_ends = ends

    def lock_expired(self, now: float, live_seconds: float = LOCK_LIVE_SECONDS) -> bool:
        return now - self.last_lock > live_seconds

    def lease(self, sent: float, until: float) -> None:
        """It is surely ours until then; the lock was last asked for at ``sent``."""
        if not self.leased:
            self.leased = True
            self.last_lock, self.holds_until = sent, until
        else:
            self.last_lock = max(self.last_lock, sent)
            self.holds_until = max(self.holds_until, until)
        if self._clock.monotonic() <= self.holds_until:
            self.fenced = False
            self._tell()

    def fence(self) -> None:
        """Nothing of it is begun or committed until the lease is renewed."""
        assert self.leased, f"{self} is not held by lease"
        self.fenced = True
        self.holds_until = -math.inf

    async def until_sure(self) -> None:
        """Returns when the lease is ours for certain, or the queue is not read any more."""
        while self.state is READING and self.in_doubt:
            await self._next_change()

    # -- what runs -------------------------------------------------------------------

    def begin(self, work: Work) -> None:
        self.running[id(work)] = work

    def end(self, *works: Work) -> None:
        for work in works:
            self.running.pop(id(work), None)
        if not self.running:
            self._tell()

    async def quiet(self) -> None:
        """Returns when nobody is at work on this queue."""
        while self.running:
            await self._next_change()

    async def _next_change(self) -> None:
        if self._changed is None:
            self._changed = asyncio.Event()
        self._changed.clear()
        await self._changed.wait()

    def _tell(self) -> None:
        if self._changed is not None:
            self._changed.set()
