"""A message kept under a system topic becomes the one it really is: delay levels, timers, transactions."""

from __future__ import annotations

import logging
from collections.abc import Callable

from gimbalmq.broker.writer import Draft, Writer
from gimbalmq.errors import DiskFullError, ResourceShortageError, ResponseError, StoreError, StoreIOError
from gimbalmq.model import properties as prop
from gimbalmq.model import topics
from gimbalmq.model.ids import pack_host
from gimbalmq.model.record import Record, decode_record
from gimbalmq.store.marks import mark_for, source_of
from gimbalmq.store.message_store import MessageStore

log = logging.getLogger(__name__)

TROUBLE = (DiskFullError, ResourceShortageError, StoreIOError)
"""What the store may get over; anything else is the message's own fault."""
_OF_DELAYS = (*prop.DELAYS, prop.TIMER_OUT_MS, prop.TIMER_ROLL_TIMES, prop.TIMER_DELETE_UNIQ_KEY)
_OF_BROKER = topics.FORBIDDEN_TO_SEND | {topics.TIMER_TOPIC}


def copied(record: Record, topic: str, queue_id: int, properties: dict[str, str]) -> Draft:
    """The record's message, to be stored elsewhere."""
    return Draft(
        topic=topic,
        queue_id=queue_id,
        body=record.body,
        properties=properties,
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_timestamp=record.born_timestamp,
        born_host=pack_host(*record.born_host),
        reconsume_times=record.reconsume_times,
    )


def redelivery(record: Record) -> Draft | None:
    """A delayed or half message as the one it really is; None if it does not say which."""
    properties = dict(record.properties)
    topic = properties.pop(prop.REAL_TOPIC, None)
    queue_id = properties.pop(prop.REAL_QUEUE_ID, None)
    if topic is None or queue_id is None or not (queue_id.isascii() and queue_id.isdigit()):
        return None
    properties[prop.WAIT] = "false"
    return copied(record, topic, int(queue_id), properties)


def waiting_copy(record: Record, due_ms: int) -> Draft:
    """A delayed message put again, as a timer, because its place in the log is about to be deleted."""
    properties = dict(record.properties)
    properties.pop(prop.DELAY, None)
    properties[prop.TIMER_OUT_MS] = str(due_ms)
    rolls = properties.get(prop.TIMER_ROLL_TIMES, "")
    properties[prop.TIMER_ROLL_TIMES] = str(int(rolls) + 1 if rolls.isascii() and rolls.isdigit() else 1)
    draft = copied(record, topics.TIMER_TOPIC, 0, properties)
    draft.prepared_offset = mark_for(record.commitlog_offset)
    return draft


class Deliverer:
    """Puts delayed messages where they belong; one that cannot be delivered costs itself only.

    Args:
        queues_of: how many queues a topic has; 0 if there is no such topic.
    """

    def __init__(self, store: MessageStore, writer: Writer, queues_of: Callable[[str], int]) -> None:
        self._store = store
        self._writer = writer
        self._queues_of = queues_of
        self._refused = False
        self.elsewhere: Callable[[list[Draft]], int] | None = None
        """Takes what is to be delivered instead of our own store, and says how many of these are settled; set while a
        slave stands in for its master."""

    def record(self, commitlog_offset: int, topic: str) -> Record | None:
        """The delayed message there; None, and a line in the log, if there is none of this topic."""
        raw = self._store.record_at(commitlog_offset)
        record = None if raw is None else decode_record(raw)
        if record is None or record.topic != topic:
            log.error(
                "no delayed message of %s lies at commit-log offset %d; passed over", topic, commitlog_offset
            )
            return None
        return record

    def draft(self, record: Record) -> Draft | None:
        """What to deliver for it; None, and a line in the log, if that is impossible."""
        draft = redelivery(record)
        where = record.commitlog_offset
        if draft is None:
            log.error("the delayed message at %d names no topic and queue of its own; passed over", where)
            return None
        queues = 0 if draft.topic in _OF_BROKER else self._queues_of(draft.topic)
        if not queues:
            log.error(
                "the delayed message at %d is for topic %.200s, which is gone; passed over",
                where,
                draft.topic,
            )
            return None
        if draft.queue_id >= queues:
            draft.queue_id %= queues  # the topic has fewer queues than when it was sent
        for name in _OF_DELAYS:
            draft.properties.pop(name, None)
        draft.prepared_offset = mark_for(where)
        return draft

    def put(self, drafts: list[Draft], *, making_room: bool = False) -> int:
        """Stores them in order; how many are settled: stored, or passed over because they never can be.

        Fewer than all: the store takes nothing now, try the rest again later.

        Args:
            making_room: old files can go when this is stored.
        """
        if self.elsewhere is not None:
            return 0 if making_room else self.elsewhere(drafts)
        try:
            self._writer.put(*drafts, making_room=making_room)
            self._refused = False
            return len(drafts)
        except TROUBLE as error:
            return self._trouble(error, 0)
        except (ResponseError, StoreError):
            pass  # one of them is to blame
        for number, draft in enumerate(drafts):
            try:
                self._writer.put(draft, making_room=making_room)
            except TROUBLE as error:
                return self._trouble(error, number)
            except (ResponseError, StoreError) as error:
                where = source_of(draft.prepared_offset)
                log.error("the delayed message at %d cannot be stored (%s); passed over", where, error)
        return len(drafts)

    def _trouble(self, error: StoreError, settled: int) -> int:
        if not self._refused:
            log.error("delayed messages wait until the store takes them again: %s", error)
        self._refused = True
        return settled
