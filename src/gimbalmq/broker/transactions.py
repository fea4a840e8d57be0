"""Half messages, their ends, and asking producers about those without one.

A half message waits in its own topic. Commit stores the real message, and commit and rollback
both leave an *op* message that names the half's queue offset. So a half is open as long as
no op names it. The check walks the half queue from the first offset not yet settled: an open
half that is old enough is stored anew (its old place counts as settled) and its producer is
asked about the new one.

State in memory: the offset the walk has reached and the ops seen ahead of it. Both are
rebuilt from the op queue, whose own progress is kept as the offsets of a system group.
"""

from __future__ import annotations

import logging
from collections import deque

from gimbalmq._clock import Clock
from gimbalmq.broker.clients import Producers
from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.delay import redelivery
from gimbalmq.broker.metadata import ConsumerOffsets
from gimbalmq.broker.writer import Draft, Placed, Writer
from gimbalmq.errors import MessageIllegalError, ResponseError
from gimbalmq.model import properties as prop
from gimbalmq.model import topics
from gimbalmq.model.flags import TRANSACTION_COMMIT, TRANSACTION_MASK
from gimbalmq.model.ids import offset_id, pack_host
from gimbalmq.model.record import Record, decode_record, encode_record
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.messages import CheckTransactionState, EndTransaction
from gimbalmq.store.message_store import MessageStore

log = logging.getLogger(__name__)

COMMIT = 8
ROLLBACK = 12
_OP_TAG = "d"


class Transactions:
    """Java: TransactionalMessageServiceImpl."""

    def __init__(
        self,
        store: MessageStore,
        writer: Writer,
        producers: Producers,
        offsets: ConsumerOffsets,
        live: LiveConfig,
        store_host: bytes,
        clock: Clock,
    ) -> None:
        self._store = store
        self._writer = writer
        self._producers = producers
        self._offsets = offsets
        self._live = live
        self._store_host = store_host
        self._clock = clock
        self._settled: set[int] = set()
        """Half offsets named by an op, at or ahead of the walk."""
        self._ops: deque[tuple[int, frozenset[int]]] = deque()
        """Ops read, oldest first, as (op offset, half offsets it names)."""
        self._op_read_to = 0
        self._walked_to = 0

    def load(self) -> None:
        self._walked_to = max(0, self._offsets.get(topics.TRANS_GROUP, topics.HALF_TOPIC, 0))
        self._op_read_to = max(0, self._offsets.get(topics.TRANS_GROUP, topics.OP_HALF_TOPIC, 0))
        self._read_ops()

    # -- what clients ask --------------------------------------------------------------

    def prepare(self, draft: Draft) -> Placed:
        """Stores a half message instead of the message itself."""
        for name in (prop.DELAY, prop.TIMER_DELAY_SEC, prop.TIMER_DELAY_MS, prop.TIMER_DELIVER_MS):
            if draft.properties.get(name, "0") != "0":
                raise MessageIllegalError(
                    f"a transactional message cannot be delayed: send it without property {name}"
                )
        draft.properties[prop.REAL_TOPIC] = draft.topic
        draft.properties[prop.REAL_QUEUE_ID] = str(draft.queue_id)
        draft.topic, draft.queue_id = topics.HALF_TOPIC, 0
        draft.sys_flag &= ~TRANSACTION_MASK
        return self._writer.put(draft)[0]

    def end(self, header: EndTransaction) -> None:
        """Commits or rolls back; raises ResponseError where the half does not fit the request."""
        raw = self._store.record_at(header.commit_log_offset)
        half = None if raw is None else decode_record(raw)
        if half is None or half.topic != topics.HALF_TOPIC:
            raise ResponseError("Find prepared transaction message failed")
        if half.properties.get(prop.PRODUCER_GROUP) != header.producer_group:
            raise ResponseError("The producer group wrong")
        if half.queue_offset != header.tran_state_table_offset:
            raise ResponseError("The transaction state table offset wrong")
        if half.queue_offset in self._settled or half.queue_offset < self._walked_to:
            # Settled already, or stored anew since: a repeated answer changes nothing twice.
            if half.queue_offset in self._settled:
                return
            log.info("transaction at half offset %d ended after it was checked", half.queue_offset)
        drafts = []
        if header.commit_or_rollback == COMMIT:
            draft = redelivery(half)
            if draft is None:
                raise ResponseError("the prepared message names no real topic")
            for name in (prop.TRAN_MSG, prop.CHECK_TIMES, prop.TRAN_PREPARED_QUEUE_OFFSET):
                draft.properties.pop(name, None)
            draft.sys_flag = draft.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT
            draft.prepared_offset = half.commitlog_offset
            drafts.append(draft)
        drafts.append(self._op(half.queue_offset))
        # Message and op become visible together or not at all.
        self._writer.put(*drafts)
        self._settled.add(half.queue_offset)

    def _op(self, half_offset: int) -> Draft:
        return Draft(
            topic=topics.OP_HALF_TOPIC,
            queue_id=0,
            body=str(half_offset).encode(),
            properties={prop.TAGS: _OP_TAG},
            flag=0,
            sys_flag=0,
            born_timestamp=self._clock.wall_ms(),
            born_host=self._store_host,
        )

    # -- the check ---------------------------------------------------------------------

    def check(self) -> None:
        """One round over the open halves."""
        self._read_ops()
        queue = self._store.find_queue(topics.HALF_TOPIC, 0)
        if queue is None:
            return
        began = self._clock.wall_ms()
        self._walked_to = max(self._walked_to, queue.min_offset)
        while self._walked_to < queue.max_offset:
            offset = self._walked_to
            if offset not in self._settled:
                raw = self._store.record_at_queue(topics.HALF_TOPIC, 0, offset)
                if raw is not None and not self._check_one(decode_record(raw), began):
                    break
            self._settled.discard(offset)
            self._walked_to += 1
        while self._ops and all(half < self._walked_to for half in self._ops[0][1]):
            self._ops.popleft()
        op_done = self._ops[0][0] if self._ops else self._op_read_to
        self._offsets.commit(topics.TRANS_GROUP, topics.HALF_TOPIC, 0, self._walked_to)
        self._offsets.commit(topics.TRANS_GROUP, topics.OP_HALF_TOPIC, 0, op_done)

    def _read_ops(self) -> None:
        queue = self._store.find_queue(topics.OP_HALF_TOPIC, 0)
        if queue is None:
            return
        self._op_read_to = max(self._op_read_to, queue.min_offset)
        while self._op_read_to < queue.max_offset:
            raw = self._store.record_at_queue(topics.OP_HALF_TOPIC, 0, self._op_read_to)
            if raw is not None:
                # Apache 5.x names several halves in one op, separated by commas.
                text = decode_record(raw).body.decode("ascii", "replace")
                halves = frozenset(int(part) for part in text.split(",") if part.strip().isdigit())
                self._settled.update(half for half in halves if half >= self._walked_to)
                self._ops.append((self._op_read_to, halves))
            self._op_read_to += 1

    def _check_one(self, half: Record, began: int) -> bool:
        """True where the walk may go on behind this open half."""
        if half.store_timestamp >= began:
            return False
        config = self._live.now
        checked = _int(half.properties.get(prop.CHECK_TIMES), 0)
        age_ms = began - half.born_timestamp
        if checked >= config.transaction_check_max or age_ms > config.file_reserved_time * 3_600_000:
            log.warning("transaction of %s given up after %d checks", half.properties, checked)
            self._writer.put(self._again(half, topics.TRANS_CHECK_MAX_TOPIC))
            return True
        immunity = _int(half.properties.get(prop.CHECK_IMMUNITY_SECONDS), 0) * 1000
        # A client whose clock is ahead is asked at once: waiting would hold up all behind it.
        if 0 <= age_ms <= (immunity or config.transaction_time_out):
            # One that asked for more time must not hold up those behind it.
            if immunity and half.store_timestamp < began - config.transaction_time_out:
                self._writer.put(self._again(half, topics.HALF_TOPIC))
                return True
            return False
        renewed = self._again(half, topics.HALF_TOPIC)
        renewed.properties[prop.CHECK_TIMES] = str(checked + 1)
        place = self._writer.put(renewed)[0]
        self._ask(half, renewed, place)
        return True

    def _again(self, half: Record, topic: str) -> Draft:
        return Draft(
            topic=topic,
            queue_id=0,
            body=half.body,
            properties=dict(half.properties),
            flag=half.flag,
            sys_flag=half.sys_flag,
            born_timestamp=half.born_timestamp,
            born_host=pack_host(*half.born_host),
            reconsume_times=half.reconsume_times,
        )

    def _ask(self, half: Record, renewed: Draft, place: Placed) -> None:
        """Request 39 to one producer of the group; the record carries its real topic."""
        group = half.properties.get(prop.PRODUCER_GROUP, "")
        channel = self._producers.pick(group)
        if channel is None:
            log.info("no producer of group %s is connected to be asked about a transaction", group)
            return
        properties = dict(renewed.properties)
        topic = properties.get(prop.REAL_TOPIC, half.topic)
        unique = properties.get(prop.UNIQ_KEY)
        header = CheckTransactionState(
            tran_state_table_offset=place.queue_offset,
            commit_log_offset=place.commitlog_offset,
            msg_id=unique,
            transaction_id=unique,
            offset_msg_id=offset_id(self._store_host, place.commitlog_offset),
            topic=topic,
            bname=self._live.now.broker_name,
        )
        record = encode_record(
            topic=topic,
            body=half.body,
            properties=prop.dump(properties).encode(),
            queue_id=_int(properties.get(prop.REAL_QUEUE_ID), 0),
            flag=half.flag,
            queue_offset=place.queue_offset,
            commitlog_offset=place.commitlog_offset,
            sys_flag=half.sys_flag,
            born_timestamp=half.born_timestamp,
            born_host=half.born_host,
            store_timestamp=half.store_timestamp,
            store_host=half.store_host,
            reconsume_times=half.reconsume_times,
        )
        channel.oneway(RemotingCommand(RequestCode.CHECK_TRANSACTION_STATE, header.to_ext(), record))


def _int(text: str | None, default: int) -> int:
    try:
        return int(text) if text else default
    except ValueError:
        return default
