"""What a broker knows of half messages: which have ended, where they lie now, how far the check has come.

State in memory: the offset that the walk over the half queue has reached, and the ops seen ahead of it. Both are
rebuilt from the op queue, whose own progress is kept as the offsets of a system group.
The walk never waits longer than transactionTimeOut for one half, so what is ahead of it is what was
sent in that time: one number for each half and each op.
"""

from __future__ import annotations

import logging
from collections import deque

from gimbalmq._steps import Steps
from gimbalmq.broker.consumer_offsets import ConsumerOffsets
from gimbalmq.errors import CorruptRecordError
from gimbalmq.model import topics
from gimbalmq.model.record import Record, decode_record
from gimbalmq.store.marks import source_of
from gimbalmq.store.message_store import MessageStore

log = logging.getLogger(__name__)

STEP = 256
"""So many halves are passed in one step."""
ENDED_KEPT = 65_536
_LOOKED_BACK = 8192
"""So many halves and ops behind the walk are looked at again at the start: their ends may still come, once more."""
_UNFLUSHED_KEPT = 1024
_OPS_STEP = 256
_OFFSET_DIGITS = 19


class HalfLedger:
    """The halves of one broker.

    Attributes:
        settled: half offsets named by an op, or given to another broker, at or ahead of the walk.
        ended: half offsets behind the walk that an op names, the last few: an end that comes twice is one end.
        rolled_back: first places of halves that were rolled back, as many as of those that have ended.
        newest: halves that were stored anew: commit-log offset of the first place to queue offset of the newest, by
            the latter. Those behind the walk are kept as long as their ends.
        walked_to: every half before this offset has ended, was stored anew or was given up.
        is_resting: nobody walks, and no progress is noted.
    """

    def __init__(self, store: MessageStore, offsets: ConsumerOffsets) -> None:
        self._store = store
        self._offsets = offsets
        self.settled: set[int] = set()
        self.rolled_back: dict[int, None] = {}
        self.ended: dict[int, None] = {}
        self.newest: dict[int, int] = {}
        self._ops: deque[int] = deque()
        """The last half that each op names, for the ops that were read and are not done, oldest first."""
        self.is_resting = True
        self._op_read_to = 0
        self.walked_to = 0
        self._unflushed: deque[tuple[int, int, int]] = deque()
        """Progress that may be noted when the log is durable up to an offset: (that, half offset, op offset)."""

    def go_on(self) -> Steps[None]:
        """Takes up the walk where the consumer offsets say it was, in steps."""
        for table in (self.settled, self.rolled_back, self.ended, self.newest, self._ops, self._unflushed):
            table.clear()
        self.walked_to = self._progress(topics.HALF_TOPIC)
        self._op_read_to = max(0, self._progress(topics.OP_HALF_TOPIC) - _LOOKED_BACK)
        yield from self.read_ops()
        yield from self._find_renewed()
        self.is_resting = False

    def rest(self) -> None:
        """Notes no progress from now on."""
        self.is_resting = True
        self._unflushed.clear()

    def _progress(self, topic: str) -> int:
        """How far a queue was walked. The log may have lost its end since: what comes there anew is not passed over."""
        noted = max(0, self._offsets.get(topics.TRANS_GROUP, topic, 0))
        queue = self._store.find_queue(topic, 0)
        end = 0 if queue is None else queue.max_offset
        if noted > end:
            log.warning(
                "%s was walked up to %d and now ends at %d; the walk goes on from there", topic, noted, end
            )
        return min(noted, end)

    def _find_renewed(self) -> Steps[None]:
        queue = self._store.find_queue(topics.HALF_TOPIC, 0)
        if queue is None:
            return
        for offset in range(max(queue.min_offset, self.walked_to - _LOOKED_BACK), queue.max_offset):
            half = self.record(topics.HALF_TOPIC, offset)
            if half is not None and half.prepared_transaction_offset < 0:
                self.note_renewed(origin_of(half), offset)
            if offset % STEP == 0:
                yield

    # -- ends --------------------------------------------------------------------------

    def has_ended(self, *places: int) -> bool:
        """Whether an op names one of these offsets; not of those that ended long ago."""
        return any(place in self.settled or place in self.ended for place in places)

    def settle(self, half_offset: int) -> None:
        """An op names the half."""
        if half_offset >= self.walked_to:
            self.settled.add(half_offset)
        else:
            self._note_ended(half_offset)

    def note_end(self, half_offset: int, origin: int, op_offset: int, *, rolled_back: bool) -> None:
        """A half was ended now; its op lies at ``op_offset``."""
        self.settle(half_offset)
        self.rolled_back.pop(origin, None)
        if rolled_back:
            self.rolled_back[origin] = None
            if len(self.rolled_back) > ENDED_KEPT:
                del self.rolled_back[next(iter(self.rolled_back))]
        if op_offset == self._op_read_to:
            self._ops.append(half_offset)
            self._op_read_to += 1

    def _note_ended(self, half_offset: int) -> None:
        self.ended[half_offset] = None
        if len(self.ended) > ENDED_KEPT:
            del self.ended[next(iter(self.ended))]

    def note_renewed(self, origin: int, half_offset: int) -> None:
        """The half that lay first at ``origin`` of the log was stored anew."""
        self.newest.pop(origin, None)
        self.newest[origin] = half_offset
        while len(self.newest) > ENDED_KEPT:
            oldest = next(iter(self.newest))
            if self.newest[oldest] >= self.walked_to:
                break
            del self.newest[oldest]

    def read_ops(self) -> Steps[None]:
        """Takes in the ops that are in the queue and not in memory: after a start all that are not done, then none."""
        queue = self._store.find_queue(topics.OP_HALF_TOPIC, 0)
        if queue is None:
            return
        if self._op_read_to < queue.min_offset:
            self._ops.clear()
            self._op_read_to = queue.min_offset
        read = 0
        while self._op_read_to < queue.max_offset:
            record = self.record(topics.OP_HALF_TOPIC, self._op_read_to)
            halves: list[int] = []
            if record is not None:
                # Apache 5.x names several halves in one op, separated by commas.
                parts = (part.strip() for part in record.body.decode("ascii", "replace").split(","))
                halves = [int(part) for part in parts if part.isdigit() and len(part) < _OFFSET_DIGITS]
            # A half that is not there yet is none of theirs: the message that comes to its place is another.
            halves = [half for half in halves if half < self._end_of_halves()]
            for half in halves:
                self.settle(half)
            self._ops.append(max(halves, default=-1))
            self._op_read_to += 1
            read += 1
            if read % _OPS_STEP == 0:
                yield

    def _end_of_halves(self) -> int:
        queue = self._store.find_queue(topics.HALF_TOPIC, 0)
        return 0 if queue is None else queue.max_offset

    # -- the walk ----------------------------------------------------------------------

    def pass_settled(self) -> None:
        """Goes on behind a half that has ended."""
        self.settled.discard(self.walked_to)
        self._note_ended(self.walked_to)
        self.walked_to += 1

    def pass_deleted(self, first: int) -> None:
        """Halves that retention has deleted are over."""
        if first <= self.walked_to:
            return
        settled = {half for half in self.settled if half < first}
        lost = first - self.walked_to - len(settled)
        if lost:
            log.warning(
                "%d open transactions, half offsets %d to %d, were deleted with old files before they ended; "
                "raise fileReservedTime or free the disk",
                lost,
                self.walked_to,
                first - 1,
            )
        self.settled -= settled
        self.walked_to = first

    def note_progress(self) -> None:
        """Of the walk; it is committed when what it rests on is durable."""
        if self.is_resting:
            return
        while self._ops and self._ops[0] < self.walked_to:
            self._ops.popleft()
        end = self._store.max_commitlog_offset
        waiting = self._unflushed
        if waiting and (waiting[-1][0] == end or len(waiting) >= _UNFLUSHED_KEPT):
            waiting.pop()
        waiting.append((end, self.walked_to, self._op_read_to - len(self._ops)))
        self.note_durable_progress()

    def note_durable_progress(self) -> None:
        """Commits how far the walk has come, as far as the log is durable.

        Offsets are saved whenever their time comes. If they were ahead of the log, a power loss would leave a half
        as passed whose new place is gone.
        """
        flushed = self._store.flushed_offset
        durable = None
        while self._unflushed and self._unflushed[0][0] <= flushed:
            durable = self._unflushed.popleft()
        if durable is not None:
            _, half, op = durable
            self._offsets.commit(topics.TRANS_GROUP, topics.HALF_TOPIC, 0, half)
            self._offsets.commit(topics.TRANS_GROUP, topics.OP_HALF_TOPIC, 0, op)

    def record(self, topic: str, queue_offset: int) -> Record | None:
        """None if it cannot be read; the log says so."""
        raw = self._store.record_at_queue(topic, 0, queue_offset)
        if raw is not None:
            try:
                return decode_record(raw)
            except CorruptRecordError as error:
                log.error("queue offset %d of %s is passed over: %s", queue_offset, topic, error)
        return None


def origin_of(half: Record) -> int:
    """Where in the commit log the transaction's half lay first."""
    offset = half.prepared_transaction_offset
    return source_of(offset) if offset < 0 else half.commitlog_offset
