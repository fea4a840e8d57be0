"""What only a master does: it delivers delayed messages and timers, asks about transactions, and corrects tables.

A slave's parts rest. When it becomes the master they go on from what is in its log and in the tables it has copied; so
does a broker that starts as a master from the folder of a slave.
"""

from __future__ import annotations

import logging

from gimbalmq._steps import Steps
from gimbalmq.broker.consumer_offsets import ConsumerOffsets
from gimbalmq.broker.delay_levels import DelayLevels
from gimbalmq.broker.groups import Groups
from gimbalmq.broker.locks import QueueLocks
from gimbalmq.broker.redelivery import Deliverer
from gimbalmq.broker.replication.escape import Escape
from gimbalmq.broker.timers import Timers
from gimbalmq.broker.topics import Topics
from gimbalmq.broker.transactions import Transactions
from gimbalmq.model import properties as prop
from gimbalmq.model import topics as topic_names
from gimbalmq.model.record import decode_record
from gimbalmq.protocol.bodies import TopicConfig
from gimbalmq.store.consumequeue import MAX_QUEUES
from gimbalmq.store.message_store import MessageStore
from gimbalmq.store.timer_files import TimerCheck

log = logging.getLogger(__name__)

_TOPICS_AT_ONCE = 64
_RECORDS_AT_ONCE = 64
_TABLES_LATE_MS = 120_000
"""A copied table may be so much older than the log."""
_MOST_LOOKED_AT = 4096
"""Of a queue's newest messages."""


class MasterServices:
    """The parts that rest at a slave."""

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        offsets: ConsumerOffsets,
        locks: QueueLocks,
        deliverer: Deliverer,
        delays: DelayLevels,
        timers: Timers,
        transactions: Transactions,
        groups: Groups,
        escape: Escape,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._escape = escape
        self._offsets = offsets
        self._locks = locks
        self._deliverer = deliverer
        self._delays = delays
        self._timers = timers
        self._transactions = transactions

    def go_on(self, *, promoted: bool = False) -> Steps[None]:
        """Has all of them go on, in steps. The store takes messages already, but nobody may send any yet.

        Args:
            promoted: this broker was a slave until now.
        """
        yield from self._adopt_orphans()
        yield from self._adopt_awaited()
        yield from self._offsets.clamp(self._end_of)
        yield from self._delays.go_on(promoted=promoted)
        yield from self._timers.go_on(promoted=promoted)
        yield from self._transactions.go_on()

    def rest(self) -> None:
        """Somebody else is the master from now on."""
        self._rest()
        self._locks.forget_all()

    def stand_in(self) -> Steps[None]:
        """For a slave that stands in: messages that fall due, and open transactions, go to other brokers."""
        self._deliverer.elsewhere = self._escape.put
        yield from self._delays.go_on(promoted=True)
        yield from self._timers.go_on(promoted=True)
        yield from self._transactions.go_on(self._escape.move)

    async def stop_standing_in(self) -> None:
        self._rest()
        await self._escape.close()

    def _rest(self) -> None:
        self._delays.rest()
        self._timers.rest()
        self._transactions.rest()
        self._deliverer.elsewhere = None

    async def close(self) -> None:
        await self._escape.close()

    def work_on_copies(self, copies: bool) -> None:
        """Whether the tables of topics and groups are copies of a master's, which nobody changes here."""
        self._topics.is_copy = self._groups.is_copy = copies

    def new_term(self, epoch: int) -> None:
        """Another master's term begins with us; ``epoch`` is 0 if nobody counts the terms."""
        self._topics.new_term(epoch or self._topics.version.state_version + 1)

    def forget_locks(self) -> None:
        """Somebody else gives locks from now on."""
        self._locks.forget_all()

    def distrust(self) -> None:
        """For a slave whose log was cut: the progress that is noted may tell of records that are gone.

        If this broker goes on before a master has told its progress, it goes by the log alone.
        """
        self._delays.copy({"marksFrom": 0})
        self._timers.copy(TimerCheck(marks_from=0))
        for topic in (topic_names.HALF_TOPIC, topic_names.OP_HALF_TOPIC):
            if self._offsets.get(topic_names.TRANS_GROUP, topic, 0) > 0:
                self._offsets.commit(topic_names.TRANS_GROUP, topic, 0, 0)

    def _end_of(self, topic: str, queue_id: int) -> int:
        queue = self._store.find_queue(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def _adopt_orphans(self) -> Steps[None]:
        """A topic with messages but no configuration gets one.

        There was a crash just after it was made, or the last table that a slave has copied is older than it.
        """
        for number, topic in enumerate(self._store.topics(), 1):
            if topic not in self._topics:
                self._adopt(topic, max(self._store.queue_ids(topic), default=0) + 1)
            if number % _TOPICS_AT_ONCE == 0:
                yield

    def _adopt_awaited(self) -> Steps[None]:
        """A topic that delayed or undecided messages are for gets one, too, if they were stored a moment ago.

        None of its own messages need be in the log yet, and without a topic the delayed ones would be passed over.
        Older messages are for topics that were deleted: our slaves copy tables every second or every 10 s, Apache's
        every minute at least.
        """
        last = self._store.last_record()
        if last is None:
            return
        since = decode_record(last[1]).store_timestamp - _TABLES_LATE_MS
        awaited: dict[str, int] = {}
        for holder in (topic_names.SCHEDULE_TOPIC, topic_names.TIMER_TOPIC, topic_names.HALF_TOPIC):
            for queue_id in self._store.queue_ids(holder):
                yield from self._look_back(holder, queue_id, since, awaited)
        for topic, count in awaited.items():
            self._adopt(topic, count)

    def _look_back(self, holder: str, queue_id: int, since_ms: int, awaited: dict[str, int]) -> Steps[None]:
        """Notes how many queues each unknown topic needs, from a queue's newest messages."""
        queue = self._store.find_queue(holder, queue_id)
        if queue is None:
            return
        least = max(queue.min_offset, queue.max_offset - _MOST_LOOKED_AT)
        for offset in range(queue.max_offset - 1, least - 1, -1):
            raw = self._store.record_at_queue(holder, queue_id, offset)
            if raw is None:
                continue
            record = decode_record(raw)
            if record.store_timestamp < since_ms:
                return
            topic = record.properties.get(prop.REAL_TOPIC, "")
            number = record.properties.get(prop.REAL_QUEUE_ID, "")
            if topic not in self._topics and topic_names.topic_problem(topic) is None and number.isdecimal():
                awaited[topic] = max(awaited.get(topic, 0), int(number) + 1)
            if offset % _RECORDS_AT_ONCE == 0:
                yield

    def _adopt(self, topic: str, count: int) -> None:
        count = min(count, MAX_QUEUES)
        log.warning("topic %s has messages but no configuration; given %d queues", topic, count)
        self._topics.adopt(TopicConfig(topic_name=topic, read_queue_nums=count, write_queue_nums=count))
