"""What both ways of consuming share: batches, and what is asked of the consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Protocol

import msgspec

from gimbalmq._clock import Clock
from gimbalmq.client.consume import ConsumeContext, ConsumeResult, Listener, Unfinished
from gimbalmq.client.consumer_config import PushConsumerConfig
from gimbalmq.client.offsets import OffsetStore
from gimbalmq.client.process_queue import ProcessQueue
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.topics import RETRY_PREFIX


class Batch(msgspec.Struct, eq=False):
    """Messages one handler call gets.

    Attributes:
        context: the call's own; one that no handler sees stays as it was made, and many batches share it.
        started, ended: monotonic times of the call.
        unfinished: an awaitable that the handler, a plain function, has returned; it waits to be awaited.
    """

    process_queue: ProcessQueue
    messages: list[MessageView]
    listener: Listener
    context: ConsumeContext | None = None
    started: float = 0.0
    ended: float = 0.0
    unfinished: Unfinished | None = None

    def own_context(self) -> ConsumeContext:
        if self.context is None:
            self.context = ConsumeContext(self.process_queue.queue)
        return self.context

    def give_up(self) -> None:
        """The batch will not be consumed here."""
        if self.unfinished is not None:
            self.unfinished.give_up()


class ConsumeHost(Protocol):
    """What consuming needs of its consumer."""

    @property
    def config(self) -> PushConsumerConfig: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def offsets(self) -> OffsetStore: ...
    @property
    def max_reconsume_times(self) -> int: ...
    @property
    def running(self) -> bool: ...

    def listener_for(self, message: MessageView) -> Listener | None:
        """Whose message it is, by its original topic."""

    def process_queues(self) -> Collection[ProcessQueue]: ...

    async def send_back(self, message: MessageView, delay_level: int, queue: MessageQueue) -> bool:
        """Gives a message to the broker for another try; False where even the detour failed."""

    async def resend(self, message: MessageView) -> bool:
        """Sends an ordered message to the retry topic, from where the broker moves it to the dead letters."""

    async def lock_queue(self, queue: MessageQueue) -> bool: ...

    def count_consumed(self, topic: str, ok: int, failed: int, seconds: float) -> None:
        """Notes how a batch went."""


def by_listener(
    host: ConsumeHost, messages: list[MessageView]
) -> list[tuple[Listener | None, list[MessageView]]]:
    """Runs of messages with one handler; retried ones get their own topic back."""
    runs: list[tuple[Listener | None, list[MessageView]]] = []
    for message in messages:
        if message.topic.startswith(RETRY_PREFIX):
            message.topic = message.original_topic
        listener = host.listener_for(message)
        if runs and runs[-1][0] is listener:
            runs[-1][1].append(message)
        else:
            runs.append((listener, [message]))
    return runs


async def wait_quiet(host: ConsumeHost, hurried: asyncio.Event) -> None:
    """Waits until no handler is at work, but no longer than the user wants to."""

    async def all_quiet() -> None:
        for process_queue in host.process_queues():
            await process_queue.quiet()

    waiting = [asyncio.ensure_future(all_quiet()), asyncio.ensure_future(hurried.wait())]
    try:
        await asyncio.wait(
            waiting, timeout=max(0.0, host.config.await_termination), return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        for waiter in waiting:
            waiter.cancel()


def _nobody(message: MessageView) -> ConsumeResult:
    return ConsumeResult.LATER


NOBODY = Listener(_nobody, batch=False)
