"""What all consumers show alike: their life, their queues, their events."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Generic, Self, TypeVar

from gimbalmq._clock import Clock
from gimbalmq.client.config import DEFAULT_INSTANCE
from gimbalmq.client.consumer_config import ConsumerConfig
from gimbalmq.client.consuming import queue_ends
from gimbalmq.client.consuming.balancer import QueueListener
from gimbalmq.client.consuming.holdings import Holdings
from gimbalmq.client.consuming.member import Member
from gimbalmq.client.consuming.offsets import OffsetStore, ReadFrom
from gimbalmq.client.consuming.subscriptions import Subscriptions
from gimbalmq.client.events import BalanceEvent, Events
from gimbalmq.client.events import Callback as EventCallback
from gimbalmq.client.instance import ClientInstance
from gimbalmq.errors import StateError
from gimbalmq.model.queues import MessageQueue
from gimbalmq.transport.tasks import Ending, Tasks, ends_task

C = TypeVar("C", bound=ConsumerConfig)


class Consumer(ABC, Generic[C]):
    """Base of PushConsumer, PullConsumer and QueuePullConsumer; not for applications.

    Everything that runs is in a ``Member``, made of the parts in ``consuming``: there is one between start and
    close.
    """

    def __init__(self, config: C, offset_store: OffsetStore | None = None) -> None:
        if config.member_name is not None and config.instance_name == DEFAULT_INSTANCE:
            config = replace(config, instance_name=config.member_name)
        self.config: C = config
        self.group = config.group
        self._offset_store = offset_store
        self._subscriptions = Subscriptions()
        self._events = Events()
        self._tasks = Tasks(f"consumer {config.group}")
        self._queue_listeners: list[QueueListener] = []
        self._member: Member | None = None
        self._ending = Ending()
        self._joining: asyncio.Future[None] | None = None
        self._closed = False

    # -- life ------------------------------------------------------------------------

    async def start(self, *, instance: ClientInstance | None = None) -> None:
        """Joins the group and takes its share of the queues.

        Args:
            instance: join this client instance instead of the one of the config's client id.

        Raises:
            StateError: started before, or the group has a consumer in this instance already.
            ResponseError: a broker refuses a subscription (SQL92 is not enabled there).
        """
        if self._member is not None or self._closed:
            raise StateError(f"consumer {self.group} has been started before")
        self._check_start()
        joined = instance or ClientInstance.shared(self.config, keep_instance_name=self.config.broadcasting)
        self._events.clock = joined.clock
        try:
            self._member = self._compose(joined)
            self._member.register()
            self._joining = asyncio.ensure_future(self._join(self._member))
            await self._joining
        except BaseException as error:
            await self._ending.run(lambda: self._undo_start(joined), self._hurry)
            if self._closed and not ends_task(error):
                raise StateError(f"consumer {self.group} was closed while it started") from error
            raise
        finally:
            self._joining = None

    async def _undo_start(self, joined: ClientInstance) -> None:
        """Leaves nothing behind of a start that failed, so that it can be tried again."""
        if self._closed:
            return  # close() does it
        if self._member is None:
            await joined.close_if_unused()
        else:
            await self._leave(self._member)

    async def close(self) -> None:
        """Lets running handlers finish, commits, leaves the group; the next owner goes on exactly there.

        If it is cancelled, handlers are not waited for any longer, and the rest is done in the background; a
        repeated call waits for its end.
        """
        await self._ending.run(self._end, self._hurry)

    async def _end(self) -> None:
        if self._member is not None:
            self._closed = True
            if self._joining is not None:
                self._joining.cancel()
                await asyncio.wait([self._joining])
            await self._leave(self._member)
            self._events.close()

    def _hurry(self) -> None:
        if self._member is not None:
            self._member.hurry()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _leave(self, member: Member) -> None:
        await member.leave()
        self._decompose()
        self._member = None

    @abstractmethod
    def _check_start(self) -> None:
        """Raises StateError if there is nothing to do."""

    @abstractmethod
    def _compose(self, instance: ClientInstance) -> Member:
        """Makes the parts."""

    async def _join(self, member: Member) -> None:
        """Has them begin."""
        await member.join()

    @abstractmethod
    def _decompose(self) -> None:
        """Lets go of those parts that a member does not own."""

    # -- state -----------------------------------------------------------------------

    @property
    def member(self) -> Member:
        """The running parts; raises StateError before start and after close."""
        if self._member is None:
            raise StateError(f"consumer {self.group} is not running: use it in `async with`, or call start()")
        return self._member

    @property
    def instance(self) -> ClientInstance:
        """The client instance; raises StateError before start and after close."""
        return self.member.ground.instance

    @property
    def client_id(self) -> str:
        return self.instance.client_id

    @property
    def clock(self) -> Clock:
        return self.instance.clock

    @property
    def offsets(self) -> OffsetStore:
        return self.member.ground.offsets

    @property
    def holdings(self) -> Holdings:
        """The table of held queues."""
        return self.member.holdings

    @property
    def running(self) -> bool:
        return self._member is not None and not self._closed

    @property
    def ordered(self) -> bool:
        """Whether each queue's messages are consumed one after the other."""
        return False

    @property
    def assignment(self) -> dict[str, list[MessageQueue]]:
        """The queues held now, by topic."""
        held: dict[str, list[MessageQueue]] = {}
        for queue in self._member.holdings.held if self._member is not None else ():
            held.setdefault(queue.topic, []).append(queue)
        return held

    @property
    def members(self) -> list[str]:
        """Client ids of the group as of the last round."""
        return list(self.member.balancer.view.members)

    @property
    def subscriptions(self) -> dict[str, str]:
        """Topic to expression; the retry topic left out."""
        return self._subscriptions.texts()

    def unsubscribe(self, topic: str) -> None:
        """Ends a subscription; its queues are dropped in the next round, which comes at once."""
        self._subscriptions.by_topic.pop(topic, None)
        if self._member is not None:
            self._member.unsubscribed(topic)

    def _subscribe(self, topic: str, expression: str, expression_type: str) -> None:
        version = self.clock.wall_ms() if self._member is not None else 0
        self._subscriptions.set(topic, expression, version, expression_type)
        if self._member is not None:
            self._member.subscribed(topic)

    def events(self) -> AsyncIterator[BalanceEvent]:
        """Balance events from now on."""
        return self._events.stream()

    def on_event(self, callback: EventCallback) -> Callable[[], None]:
        """Calls back with every balance event; the result ends that."""
        return self._events.on_event(callback)

    def on_queues_changed(self, listener: QueueListener) -> None:
        """Calls back when the held queues of a topic changed (Java: MessageQueueListener)."""
        self._queue_listeners.append(listener)

    # -- asking ----------------------------------------------------------------------

    async def rebalance(self, reason: str = "asked for") -> bool:
        """One round now; True if every queue that is ours is held."""
        return self._member is not None and await self._member.balancer.run(reason)

    async def check_group(self) -> None:
        """Compares the group's subscriptions at a broker with ours; says so loudly if they differ."""
        await self.member.group_check.run()

    async def persist_offsets(self) -> None:
        """Writes progress of all held queues away."""
        await self.member.holdings.persist()

    async def max_offset(self, queue: MessageQueue) -> int:
        """One past the newest message of a queue."""
        return await queue_ends.max_offset(self.instance, queue)

    async def min_offset(self, queue: MessageQueue) -> int:
        """The oldest message of a queue that is still there."""
        return await queue_ends.min_offset(self.instance, queue)

    async def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first message stored at or after a time, ms since 1970."""
        return await queue_ends.offset_for_time(self.instance, queue, timestamp_ms)

    async def lag(self) -> dict[MessageQueue, int]:
        """Messages behind the newest, for every held queue."""
        queues = self._member.holdings.held if self._member is not None else []
        found = await asyncio.gather(*(self._lag_of(queue) for queue in queues))
        return dict(zip(queues, found, strict=True))

    async def _lag_of(self, queue: MessageQueue) -> int:
        newest = await self.max_offset(queue)
        offset = await self.offsets.read(queue, ReadFrom.MEMORY_FIRST_THEN_STORE)
        if offset is None:
            held = self.holdings.table.get(queue)
            oldest = held.window.min_offset if held is not None else None
            offset = newest if oldest is None else oldest
        return max(0, newest - offset)
