"""When the message at a queue offset was stored; several reports show it."""

from __future__ import annotations

from gimbalmq.store.message_store import MessageStore


def message_time(store: MessageStore, topic: str, queue_id: int, queue_offset: int) -> int:
    """Store time in milliseconds, 0 if there is no such message (any more)."""
    queue = store.find_queue(topic, queue_id)
    if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
        return 0
    entry = store.entries(topic, queue_id, queue_offset, 1)
    return max(0, store.store_time(entry[0][0])) if entry else 0
