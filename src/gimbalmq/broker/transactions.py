"""Half messages and their ends.

A half message waits in its own topic. Commit stores the real message, and commit and rollback
both leave an *op* message that names the half's queue offset. So a half is open as long as
no op names it (``half_ledger``). Producers are asked about those that stay open (``half_check``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from gimbalmq._clock import Clock
from gimbalmq._steps import Steps
from gimbalmq.broker.clients import Member, Producers
from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.consumer_offsets import ConsumerOffsets
from gimbalmq.broker.half_check import Elsewhere, HalfCheck
from gimbalmq.broker.half_ledger import HalfLedger, origin_of
from gimbalmq.broker.producer_questions import ProducerQuestions
from gimbalmq.broker.redelivery import redelivery
from gimbalmq.broker.stored import stored_record
from gimbalmq.broker.writer import Draft, Placed, Writer
from gimbalmq.errors import MessageIllegalError, ResponseError
from gimbalmq.model import properties as prop
from gimbalmq.model import topics
from gimbalmq.model.flags import TRANSACTION_COMMIT, TRANSACTION_MASK
from gimbalmq.model.record import MAX_PROPERTIES, decode_record
from gimbalmq.protocol.headers.messages import EndTransaction
from gimbalmq.store.message_store import MessageStore
from gimbalmq.transport.turns import Turns

log = logging.getLogger(__name__)

COMMIT = 8
ROLLBACK = 12
_OP_TAG = "d"
_CHECK_ROOM = len(prop.CHECK_TIMES) + 2 + 10
"""Bytes that the count of checks may add to a half's properties."""


class Transactions:
    """Java: TransactionalMessageServiceImpl."""

    def __init__(
        self,
        store: MessageStore,
        writer: Writer,
        producers: Producers,
        offsets: ConsumerOffsets,
        turns: Turns,
        live: LiveConfig,
        store_host: bytes,
        clock: Clock,
    ) -> None:
        self._store = store
        self._writer = writer
        self._store_host = store_host
        self._clock = clock
        self._ledger = HalfLedger(store, offsets)
        self._questions = ProducerQuestions(producers, live, store_host, clock)
        self._check = HalfCheck(store, writer, self._ledger, self._questions, turns, live, clock)

    def show_only_if(self, may_see: Callable[[str, Member], bool]) -> None:
        """Producers are shown a message to a topic only if this lets them: anybody can name himself after a group."""
        self._questions.may_see = may_see

    def go_on(self, elsewhere: Elsewhere | None = None) -> Steps[None]:
        """Takes up the check where the consumer offsets say it was, in steps; then transactions can be ended.

        Args:
            elsewhere: takes open halves instead of our own store; for a slave that stands in.
        """
        yield from self._ledger.go_on()
        self._check.elsewhere = elsewhere

    def rest(self) -> None:
        """Asks nobody and notes no progress from now on; somebody else may."""
        self._ledger.rest()
        self._check.elsewhere = None

    async def check(self) -> None:
        """One round over the open halves, in steps; others have their turn between two."""
        await self._check.round()

    def note_durable_progress(self) -> None:
        """Commits how far the check has come, as far as the log is durable."""
        self._ledger.note_durable_progress()

    def prepare(self, draft: Draft) -> Placed:
        """Stores a half message instead of the message itself."""
        for name in prop.DELAYS:
            if draft.properties.get(name, "0") != "0":
                raise MessageIllegalError(
                    f"a transactional message cannot be delayed: send it without property {name}"
                )
        draft.properties.pop(prop.CHECK_TIMES, None)
        draft.properties[prop.REAL_TOPIC] = draft.topic
        draft.properties[prop.REAL_QUEUE_ID] = str(draft.queue_id)
        size = len(prop.dump(draft.properties).encode())
        if size > MAX_PROPERTIES - _CHECK_ROOM:
            raise MessageIllegalError(
                f"the properties of the half message are {size} bytes with its real topic; at most "
                f"{MAX_PROPERTIES - _CHECK_ROOM} leave room for the count of checks: use shorter ones"
            )
        draft.topic, draft.queue_id = topics.HALF_TOPIC, 0
        draft.sys_flag &= ~TRANSACTION_MASK
        return self._writer.put(draft)[0]

    def end(self, header: EndTransaction) -> None:
        """Commits or rolls back; raises ResponseError if the half does not fit the request."""
        raw = stored_record(self._store, header.commit_log_offset)
        half = None if raw is None else decode_record(raw)
        if half is None or half.topic != topics.HALF_TOPIC:
            raise ResponseError("Find prepared transaction message failed")
        if half.properties.get(prop.PRODUCER_GROUP) != header.producer_group:
            raise ResponseError("The producer group wrong")
        if half.queue_offset != header.tran_state_table_offset:
            raise ResponseError("The transaction state table offset wrong")
        origin = origin_of(half)
        newest = self._ledger.newest.get(origin, half.queue_offset)
        commits = header.commit_or_rollback == COMMIT
        ended = self._ledger.has_ended(half.queue_offset, newest)
        # A producer that is asked before its own work is done may say "rollback"; what it says in the end counts.
        if ended and not (commits and origin in self._ledger.rolled_back):
            return
        if newest < self._ledger.walked_to:
            log.info("transaction at half offset %d ended after it was given up", newest)
        drafts = []
        if commits:
            draft = redelivery(half)
            if draft is None:
                raise ResponseError("the prepared message names no real topic")
            for name in (prop.TRAN_MSG, prop.CHECK_TIMES, prop.TRAN_PREPARED_QUEUE_OFFSET):
                draft.properties.pop(name, None)
            draft.sys_flag = draft.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT
            draft.prepared_offset = half.commitlog_offset
            drafts.append(draft)
        drafts.append(self._op(newest))
        # Message and op become visible together or not at all.
        op = self._writer.put(*drafts)[-1]
        self._ledger.note_end(newest, origin, op.queue_offset, rolled_back=not commits)

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
