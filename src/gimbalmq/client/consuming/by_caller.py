"""Queues that the caller reads himself: each question is one pull, and nothing is kept here."""

from __future__ import annotations

import asyncio

from gimbalmq.client.consuming.ground import Ground
from gimbalmq.client.consuming.held_queue import HeldQueue
from gimbalmq.client.consuming.pulls import Pulls
from gimbalmq.errors import StateError
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.results import PullResult, PullStatus
from gimbalmq.protocol.bodies import Subscription
from gimbalmq.transport.tasks import ends_task


class ByCaller:
    """Pulls that callers wait for."""

    def __init__(self, ground: Ground) -> None:
        self._group = ground.group
        self._pulls = Pulls(ground)
        self._under_way: set[asyncio.Task[PullResult]] = set()
        self._closed = False

    async def pull(
        self,
        queue: MessageQueue,
        data: Subscription,
        offset: int,
        *,
        count: int,
        wait: float | None,
        timeout: float,
    ) -> PullResult:
        """One pull; FOUND means that there are messages.

        Raises:
            StateError: the consumer was closed meanwhile.
            RocketMQError: the pull failed.
        """
        work = self._one(queue, data, offset, count, wait, timeout)
        task = asyncio.get_running_loop().create_task(work, name=f"pull {queue}")
        self._under_way.add(task)
        try:
            return await task
        except asyncio.CancelledError as error:
            if self._closed and not ends_task(error):
                raise StateError(f"consumer {self._group} was closed during a pull of {queue}") from None
            raise
        finally:
            self._under_way.discard(task)

    async def _one(
        self,
        queue: MessageQueue,
        data: Subscription,
        offset: int,
        count: int,
        wait: float | None,
        timeout: float,
    ) -> PullResult:
        found = await self._pulls.replica(queue)
        result = await self._pulls.ask(
            found, queue, data, offset, count=count, wait=wait, timeout=timeout, with_subscription=True
        )
        if result.status is PullStatus.FOUND and not result.messages:
            result.status = PullStatus.NO_MATCHED_MSG  # other tags with the same hash
        return result

    def submit(self, held: HeldQueue, messages: list[MessageView], dispatch: bool = True) -> None:
        raise AssertionError(f"{held} is read by its caller; nothing else pulls it")

    def close(self) -> None:
        """Ends the pulls under way: whoever waits for one hears that the consumer is closed."""
        self._closed = True
        for task in self._under_way:
            task.cancel()
