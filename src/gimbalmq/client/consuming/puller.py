"""Reading: one loop for each held queue asks the broker and fills the queue's window.

The broker keeps a question until there is something; what comes goes to whoever works the queue off, and the next
question leaves at once. Push and pull consumers read in the same loop; ``Manner`` says what differs, and that a
consumer whose caller reads the queues has no loop at all.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Protocol

from gimbalmq.client import events
from gimbalmq.client.consuming.duplicates import Duplicates
from gimbalmq.client.consuming.ground import Ground
from gimbalmq.client.consuming.held_queue import READING, HeldQueue
from gimbalmq.client.consuming.offsets import ReadFrom
from gimbalmq.client.consuming.pulls import Pulls
from gimbalmq.errors import ResponseError, RocketMQError
from gimbalmq.model.message import MessageView
from gimbalmq.model.results import PullResult, PullStatus
from gimbalmq.protocol.bodies import Subscription
from gimbalmq.protocol.codes import ResponseCode

log = logging.getLogger(__name__)

_SMALLEST_RAMP = 0.03

_VAIN_SECONDS = (0.0, 0.1, 0.2, 0.4, 0.8, 1.0)
"""How long a pull takes at least, pause included, if it and so many before it have brought nothing new.

A broker that has nothing is to keep the question. Apache's 5.x slaves do not: they answer at once that the master is
to be asked, also while it is dead.
"""


class Worker(Protocol):
    """Works queues off: ``Concurrent``, ``Ordered``, ``Polled`` or ``ByCaller``."""

    def submit(self, held: HeldQueue, messages: list[MessageView], dispatch: bool = True) -> None:
        """These have come; ``dispatch`` says that the queue was idle before."""

    def close(self) -> None:
        """Settles what has ended; the queues are draining, so nothing more is begun."""


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How a kind of consumer reads.

    Attributes:
        by_itself: held queues are read by a loop; else the caller reads them, and what a round says of where to begin
            is thrown away.
        ordered: no limit on the span of offsets, and no pull without the queue's lock.
        needs_lock: whether that lock is wanted at all; broadcasting has none.
        with_subscription: every pull carries the expression; else the broker knows it by heartbeat.
        carries_progress: pulls carry what was settled.
        empty_is_progress: an answer without messages moves progress on, if nothing is pending.
        illegal_starts_anew: an offset that the broker does not have is noted and the queue taken anew; else
            the loop goes on at the offset that the broker names.
        max_bytes: of one answer.
        first_delay, interval: pauses before the first pull and after one that brought messages.
        illegal_delay: pause before a queue whose offset was illegal is taken anew.
        pause_delay: how often a paused queue is looked at.
        start_delay: pause if the place to begin could not be found out.
        all_messages: messages that all queues together may have cached; None is no limit.
        topic_messages, topic_mebibytes: limits shared by all held queues; -1 is none.
    """

    by_itself: bool = True
    ordered: bool = False
    needs_lock: bool = False
    with_subscription: bool = False
    carries_progress: bool = False
    empty_is_progress: bool = False
    illegal_starts_anew: bool = False
    max_bytes: int | None = None
    first_delay: float = 0.0
    interval: float = 0.0
    illegal_delay: float = 0.0
    pause_delay: float = 1.0
    start_delay: float = 3.0
    all_messages: int | None = None
    topic_messages: int = -1
    topic_mebibytes: int = -1


class Puller:
    """Fills the windows of held queues (Java: PullMessageService and the pull half of the consumers).

    Attributes:
        suspended: nothing is asked for.
        queue_messages, queue_mebibytes: what a queue may have cached; shared out anew with the queues if a topic
            limit is set.
    """

    def __init__(self, ground: Ground, manner: Manner, worker: Worker, duplicates: Duplicates | None) -> None:
        self._clock = ground.clock
        self._config = config = ground.config
        self._subscriptions = ground.subscriptions
        self._offsets = ground.offsets
        self._starts = ground.starts
        self._rates = ground.rates
        self._wakes = ground.wakes
        self._events = ground.events
        self._tasks = ground.tasks
        self._manner = manner
        self._worker = worker
        self._duplicates = duplicates
        self._pulls = Pulls(ground)
        self._readers: dict[asyncio.Task[None], HeldQueue] = {}
        self.suspended = False
        self.queue_messages = config.pull_threshold_for_queue
        self.queue_mebibytes = config.pull_threshold_size_for_queue

    def start(self, held: HeldQueue, offset: int | None) -> None:
        """Reads a queue from an offset on; None is where its progress says."""
        if not self._manner.by_itself:
            return
        task = self._tasks.spawn(self._read(held, offset), f"pull {held.queue}")
        self._readers[task] = held
        task.add_done_callback(lambda done: self._readers.pop(done, None))
        held.read_by(task)

    def share_limits(self, queues: int) -> None:
        """Limits of a topic are shared out among so many queues."""
        manner = self._manner
        if not queues:
            return
        if manner.topic_messages != -1:
            self.queue_messages = max(1, manner.topic_messages // queues)
        if manner.topic_mebibytes != -1:
            self.queue_mebibytes = max(1, manner.topic_mebibytes // queues)

    # -- the loop --------------------------------------------------------------------

    async def _read(self, held: HeldQueue, start: int | None) -> None:
        """The one pull request of this queue in this process, again and again."""
        config, queue = self._config, held.queue
        next_offset = await self._find_start(held) if start is None else start
        if self._manner.first_delay:
            await asyncio.sleep(self._manner.first_delay)
        paused = self._clock.monotonic() - held.claimed_at
        self._events.emit(events.QueueStarted(group=config.group, queue=queue, paused=paused))
        vain = 0
        while held.state is READING:
            held.last_pull = self._clock.monotonic()
            pause = self._reason_to_wait(held)
            data = self._subscriptions.of(queue)
            if pause is None and data is not None:
                try:
                    result = await self._pull(held, data, next_offset)
                except RocketMQError as error:
                    log.warning("pull of %s at %d: %s", queue, next_offset, error)
                    busy = isinstance(error, ResponseError) and error.code == ResponseCode.FLOW_CONTROL
                    pause = config.busy_delay if busy else config.exception_delay
                else:
                    if held.state is not READING:
                        return
                    vain = 0 if result.messages or result.next_offset != next_offset else vain + 1
                    next_offset = result.next_offset
                    pause = await self._take_result(held, result) or self._vain_pause(held, vain)
            elif pause is None:
                pause = config.exception_delay
            if pause:
                await asyncio.sleep(pause)

    def _vain_pause(self, held: HeldQueue, vain: int) -> float:
        """The pause after so many pulls in a row that brought nothing new; none if the last was kept for a while."""
        if not vain:
            return 0.0
        least = _VAIN_SECONDS[min(vain, len(_VAIN_SECONDS)) - 1]
        return max(0.0, least - (self._clock.monotonic() - held.last_pull))

    async def _find_start(self, held: HeldQueue) -> int:
        while True:
            try:
                return await self._starts.of(held.queue, ReadFrom.MEMORY_FIRST_THEN_STORE)
            except RocketMQError as error:
                log.warning("where to begin in %s is not known, asked again soon: %s", held.queue, error)
            await asyncio.sleep(self._manner.start_delay)

    def _reason_to_wait(self, held: HeldQueue) -> float | None:
        """How long this queue is not to be pulled; None if it may be."""
        config, manner, window = self._config, self._manner, held.window
        if self.suspended:
            return config.suspend_delay
        if held.paused:
            return manner.pause_delay
        if (
            window.count > self.queue_messages * self._ramp(held)
            or window.body_bytes >> 20 > self.queue_mebibytes
            or (not manner.ordered and window.span > config.max_span)
            or (manner.all_messages is not None and self._cached() > manner.all_messages)
        ):
            return config.flow_control_delay
        if manner.ordered and manner.needs_lock and not (held.locked or held.overridden):
            return config.exception_delay
        return None

    def _ramp(self, held: HeldQueue) -> float:
        """Share of the full pull size, growing after a take."""
        ramp = self._config.ramp_up
        if not ramp:
            return 1.0
        return min(1.0, max(_SMALLEST_RAMP, (self._clock.monotonic() - held.claimed_at) / ramp))

    def _cached(self) -> int:
        return sum(held.window.count for held in set(self._readers.values()))

    async def _take_result(self, held: HeldQueue, result: PullResult) -> float:
        """Hands messages on; how long to wait before the next pull."""
        if result.messages:
            queue = held.queue
            took = self._clock.monotonic() - held.last_pull
            self._rates.pulled(queue.topic, len(result.messages), took)
            if self._duplicates is not None:
                self._duplicates.look(queue, result.messages)
            dispatch = held.window.put(result.messages)
            self._worker.submit(held, result.messages, dispatch)
            return self._manner.interval
        if result.status is PullStatus.OFFSET_ILLEGAL:
            await self._offset_illegal(held, result.next_offset)
        elif result.status is not PullStatus.FOUND and self._manner.empty_is_progress:
            # Nothing new, or nothing that passed the filter.
            held.advance(result.next_offset)
        return 0.0

    async def _offset_illegal(self, held: HeldQueue, offset: int) -> None:
        queue = held.queue
        log.warning("%s: the broker has no such offset; it goes on at %d", queue, offset)
        self._events.emit(
            events.OffsetReset(group=self._config.group, queue=queue, offset=offset, reason="offset illegal")
        )
        if not self._manner.illegal_starts_anew:
            if offset <= held.window.queue_offset_max:
                # The queue was made anew: progress follows what comes from here on, not the larger offsets before.
                held.window.clear()
            return
        # What was pulled before belongs to another past; the next round finds the queue dropped and takes it anew.
        held.drop()
        self._offsets.update(queue, offset, increase_only=False)
        try:
            # At once: progress of a queue that is not held is forgotten when that of the others is written away.
            await held.commit(wait=True)
        except (RocketMQError, OSError) as error:
            log.warning("the corrected offset of %s could not be committed: %s", queue, error)
        if self._manner.illegal_delay:
            await asyncio.sleep(self._manner.illegal_delay)
        self._wakes.wake("an illegal offset was corrected")

    async def _pull(self, held: HeldQueue, data: Subscription, offset: int) -> PullResult:
        """One pull for the loop, with the progress that it is to carry."""
        config, manner, queue = self._config, self._manner, held.queue
        found = await self._pulls.replica(queue)
        progress = 0
        if manner.carries_progress and held.progressed:
            progress = self._offsets.remembered(queue) or 0
        return await self._pulls.ask(
            found,
            queue,
            data,
            offset,
            count=max(1, round(config.pull_batch_size * self._ramp(held))),
            wait=config.broker_suspend,
            timeout=config.pull_timeout,
            with_subscription=manner.with_subscription,
            max_bytes=manner.max_bytes,
            progress=progress,
            commits=progress > 0 and not (found.is_slave or held.in_doubt),
        )
