"""Records that clients name by their place in the commit log."""

from __future__ import annotations

from gimbalmq.model import properties as prop
from gimbalmq.model import topics
from gimbalmq.model.record import decode_record
from gimbalmq.store.message_store import MessageStore


def stored_record(store: MessageStore, commitlog_offset: int) -> bytes | None:
    """The record that was stored there as a message; None if none was.

    A client chooses the offset, and a body may hold bytes that check as a record of that very place. So the queue has
    the last word: the record counts only if the queue entry that it claims to have names its place. Messages of a
    deleted topic have no entry any more.
    """
    raw = store.record_at(commitlog_offset)
    if raw is None:
        return None
    record = decode_record(raw)
    entries = store.entries(record.topic, record.queue_id, record.queue_offset, 1)
    return raw if entries and entries[0][:2] == (commitlog_offset, len(raw)) else None


def stored_topic(store: MessageStore, commitlog_offset: int) -> str | None:
    """The topic of the message that lies there; of one that waits under a system topic, the topic it was sent to."""
    raw = stored_record(store, commitlog_offset)
    if raw is None:
        return None
    record = decode_record(raw)
    # Only the broker writes these topics, and the property with them.
    return (
        record.properties.get(prop.REAL_TOPIC, record.topic)
        if record.topic in topics.HOLD_OTHERS
        else record.topic
    )
