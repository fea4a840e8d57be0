"""Whether messages come again that this consumer had finished before."""

from __future__ import annotations

from gimbalmq.client import events
from gimbalmq.client.consuming.held_queue import HeldQueue
from gimbalmq.client.events import Events
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue


class Duplicates:
    """How far queues were finished when they were given up."""

    def __init__(self, group: str, sink: Events) -> None:
        self._group = group
        self._events = sink
        self._finished: dict[MessageQueue, int] = {}

    def left(self, held: HeldQueue) -> None:
        queue = held.queue
        self._finished[queue] = max(self._finished.get(queue, 0), held.window.done_until)

    def forget(self, queue: MessageQueue) -> None:
        """The queue is to be read again, because somebody wants it so."""
        self._finished.pop(queue, None)

    def look(self, queue: MessageQueue, messages: list[MessageView]) -> None:
        """Says so if some of these were finished before."""
        done = self._finished.get(queue) if self._finished else None
        if done is None or messages[0].queue_offset >= done:
            return
        again = [message.queue_offset for message in messages if message.queue_offset < done]
        self._events.emit(
            events.DuplicatesSeen(
                group=self._group, queue=queue, count=len(again), first=again[0], last=again[-1]
            )
        )
