"""What balancing does, as a stream: every change of a consumer's queues with its reason.

``consumer.events()`` iterates over them, ``consumer.on_event(callback)`` calls back at once. The last few are
kept and told to whoever asks the consumer about itself (mqadmin consumerStatus, the dashboard).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from gimbalmq._clock import SYSTEM_CLOCK, Clock
from gimbalmq.model.queues import MessageQueue
from gimbalmq.transport.tasks import ends_task

log = logging.getLogger(__name__)

RECENT_KEY = "gimbalmq.events"
"""Under which name a consumer tells its recent events."""
_RECENT_ROUNDS, _RECENT_OTHERS, _RECENT_BYTES = 8, 24, 8192


class BalanceEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all events.

    Attributes:
        group: the consumer group.
        at_ms: when, ms since 1970.
    """

    group: str
    at_ms: int = 0


class RoundStarted(BalanceEvent, frozen=True, kw_only=True):
    """A round begins; ``reason`` is what asked for it."""

    reason: str


class RoundFinished(BalanceEvent, frozen=True, kw_only=True):
    """A round is over.

    Attributes:
        balanced: every queue that is ours by the strategy is held, and no other.
        changed: topics whose set of held queues is another now.
        kept: queues held before and after, untouched.
        seconds: how long the round took.
    """

    reason: str
    balanced: bool
    changed: tuple[str, ...] = ()
    kept: tuple[MessageQueue, ...] = ()
    seconds: float = 0.0


class TopicSkipped(BalanceEvent, frozen=True, kw_only=True):
    """A topic was left as it is this round."""

    topic: str
    reason: str


class QueueTaken(BalanceEvent, frozen=True, kw_only=True):
    """A queue is ours from now on; it is read from ``offset``."""

    queue: MessageQueue
    offset: int
    reason: str


class QueueSkipped(BalanceEvent, frozen=True, kw_only=True):
    """A queue is ours by the strategy but could not be taken this round."""

    queue: MessageQueue
    reason: str


class QueueDropped(BalanceEvent, frozen=True, kw_only=True):
    """A queue is given up; nothing of it is begun any more.

    Attributes:
        cached: messages that had been pulled and are thrown away.
        offset: progress when it was given up, None if there was none.
    """

    queue: MessageQueue
    reason: str
    cached: int = 0
    offset: int | None = None


class QueueReleased(BalanceEvent, frozen=True, kw_only=True):
    """Handover by lease: what had been started is done and committed, the broker's lock is free."""

    queue: MessageQueue
    offset: int | None
    seconds: float


class QueueStarted(BalanceEvent, frozen=True, kw_only=True):
    """The first pull of a taken queue left.

    Attributes:
        paused: seconds since this member first learned that the queue is its own.
    """

    queue: MessageQueue
    paused: float


class LeaseLost(BalanceEvent, frozen=True, kw_only=True):
    """A queue is dropped: its lock is somebody else's, or may have been while the broker could not be asked."""

    queue: MessageQueue


class LeaseFenced(BalanceEvent, frozen=True, kw_only=True):
    """Whether a queue's lock is still ours is not known: nothing of it is begun or committed until it is."""

    queue: MessageQueue
    reason: str


class LeaseConfirmed(BalanceEvent, frozen=True, kw_only=True):
    """The lock of a fenced queue is ours, and was all the time; its messages are handed out again.

    Attributes:
        seconds: how long it was in doubt.
    """

    queue: MessageQueue
    seconds: float


class LeaseOverridden(BalanceEvent, frozen=True, kw_only=True):
    """A queue was begun though its lock was not given back: its holder has left the group without a word."""

    queue: MessageQueue
    waited: float


class MemberExpelled(BalanceEvent, frozen=True, kw_only=True):
    """A broker had heard nothing of this member for too long and told the group that it is gone.

    It has joined again. The queues it held of that broker were dropped without a commit: others may have
    worked on them meanwhile.
    """

    broker_name: str


class DuplicatesSeen(BalanceEvent, frozen=True, kw_only=True):
    """Messages this consumer had finished before came again."""

    queue: MessageQueue
    count: int
    first: int
    last: int


class OffsetReset(BalanceEvent, frozen=True, kw_only=True):
    """A queue goes on from another place: the broker no longer had the old one, or an operator said so."""

    queue: MessageQueue
    offset: int
    reason: str


class UnequalSubscriptions(BalanceEvent, frozen=True, kw_only=True):
    """Another member of the group subscribes otherwise: queues will be left to nobody.

    Attributes:
        ours, theirs: topic to expression.
    """

    ours: dict[str, str]
    theirs: dict[str, str]


class EqualClientIds(BalanceEvent, frozen=True, kw_only=True):
    """Another connection uses our client id: both compute the same share and read the same queues."""

    client_id: str
    count: int


Callback = Callable[[BalanceEvent], Awaitable[None] | None]


class Events:
    """Hands events to callbacks and iterators.

    Attributes:
        clock: dates events that have no time yet; a consumer sets that of its client instance.
    """

    def __init__(self, backlog: int = 10_000, clock: Clock = SYSTEM_CLOCK) -> None:
        self.clock = clock
        self._backlog = backlog
        self._callbacks: list[Callback] = []
        self._streams: set[asyncio.Queue[BalanceEvent | None]] = set()
        self._running: set[asyncio.Future[None]] = set()
        # Apart, so that the many queues of one round do not push out why it was.
        self._rounds: deque[BalanceEvent] = deque(maxlen=_RECENT_ROUNDS)
        self._others: deque[BalanceEvent] = deque(maxlen=_RECENT_OTHERS)

    def recent_json(self) -> str:
        """The last events, oldest first, as a JSON list of at most 8 KB; rounds that changed nothing left out."""
        kept = sorted((*self._rounds, *self._others), key=lambda event: event.at_ms)
        texts = [
            msgspec.json.encode({"type": type(item).__name__, **msgspec.to_builtins(item)}) for item in kept
        ]
        while texts and sum(map(len, texts)) + len(texts) + 1 > _RECENT_BYTES:
            texts.pop(0)
        return f"[{b','.join(texts).decode()}]"

    def _remember(self, event: BalanceEvent) -> None:
        if isinstance(event, RoundFinished):
            if event.changed:
                self._rounds.append(msgspec.structs.replace(event, kept=()))
        elif not isinstance(event, RoundStarted):
            self._others.append(event)

    def on_event(self, callback: Callback) -> Callable[[], None]:
        """Calls back with every event; the result ends that."""
        self._callbacks.append(callback)

        def stop() -> None:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

        return stop

    def stream(self) -> AsyncIterator[BalanceEvent]:
        """Events from now on; a reader that falls behind by the backlog loses the oldest."""
        waiting: asyncio.Queue[BalanceEvent | None] = asyncio.Queue(self._backlog)
        self._streams.add(waiting)
        return self._read(waiting)

    async def _read(self, waiting: asyncio.Queue[BalanceEvent | None]) -> AsyncIterator[BalanceEvent]:
        try:
            while (event := await waiting.get()) is not None:
                yield event
        finally:
            self._streams.discard(waiting)

    def emit(self, event: BalanceEvent) -> None:
        if not event.at_ms:
            event = msgspec.structs.replace(event, at_ms=self.clock.wall_ms())
        self._remember(event)
        for waiting in self._streams:
            self._offer(waiting, event)
        for callback in list(self._callbacks):
            try:
                result = callback(event)
            except BaseException as error:
                if ends_task(error):
                    raise
                log.exception("an event callback failed on %s", event)
                continue
            if inspect.isawaitable(result):
                task = asyncio.ensure_future(_guard(result, event))
                self._running.add(task)
                task.add_done_callback(self._running.discard)

    def close(self) -> None:
        """Ends every iterator after what it has not read yet."""
        for waiting in self._streams:
            self._offer(waiting, None)

    @staticmethod
    def _offer(waiting: asyncio.Queue[BalanceEvent | None], event: BalanceEvent | None) -> None:
        if waiting.full():
            waiting.get_nowait()
        waiting.put_nowait(event)


async def _guard(work: Awaitable[None], event: BalanceEvent) -> None:
    try:
        await work
    except BaseException as error:
        if ends_task(error):
            raise
        log.exception("an event callback failed on %s", event)
