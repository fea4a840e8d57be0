"""Half messages, their ends, and asking producers about those without one.

A half message waits in its own topic. Commit stores the real message, and commit and rollback
both leave an *op* message that names the half's queue offset. So a half is open as long as
no op names it. The check walks the half queue from the first offset not yet settled: an open
half that is old enough is stored anew (its old place counts as settled) and its producer is
asked about the new one. The new one names the first of its places (``store/marks``), so an end that names any of
them ends the one transaction, after a restart too.

State in memory: the offset the walk has reached and the ops seen ahead of it. Both are
rebuilt from the op queue, whose own progress is kept as the offsets of a system group.
The walk never waits longer than transactionTimeOut for one half, so what is ahead of it is what was
sent in that time: one number for each half and each op.

No half can stop the walk: one that cannot be read or stored anew is passed over, with a line in the log.

A slave that stands in for its master stores nothing. It gives open halves that are old enough to another broker, which
asks about them; they count as settled here when that has them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from gimbalmq._clock import Clock
from gimbalmq._steps import Steps
from gimbalmq.broker.clients import Member, Producers
from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.consumer_offsets import ConsumerOffsets
from gimbalmq.broker.redelivery import copied, redelivery
from gimbalmq.broker.stored import stored_record
from gimbalmq.broker.writer import Draft, Placed, Writer
from gimbalmq.errors import (
    CorruptRecordError,
    MessageIllegalError,
    ResponseError,
    RocketMQError,
    StoreError,
)
from gimbalmq.model import properties as prop
from gimbalmq.model import topics
from gimbalmq.model.flags import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_PREPARED
from gimbalmq.model.ids import offset_id
from gimbalmq.model.record import MAX_PROPERTIES, Record, decode_record, encode_record
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.messages import CheckTransactionState, EndTransaction
from gimbalmq.store.marks import mark_for, source_of
from gimbalmq.store.message_store import MessageStore
from gimbalmq.transport.channel import Channel
from gimbalmq.transport.turns import Turns

log = logging.getLogger(__name__)

Elsewhere = Callable[[list[Draft]], Awaitable[int]]
"""Takes halves, and says how many of them, from the first on, it has."""

COMMIT = 8
ROLLBACK = 12
_OP_TAG = "d"
_CHECK_ROOM = len(prop.CHECK_TIMES) + 2 + 10
"""Bytes that the count of checks may add to a half's properties."""
_ENDED_KEPT = 65_536
_LOOKED_BACK = 8192
"""So many halves and ops behind the walk are looked at again at the start: their ends may still come, once more."""
_UNFLUSHED_KEPT = 1024
_STEP = 256
_PIECES_OF_CHECK = 16
"""A half that is stored anew costs as much as so many that are only passed."""
_OPS_STEP = 256
_OFFSET_DIGITS = 19
_NAMES_LOGGED = 10
_PRODUCERS_TRIED = 8
_READ_SECONDS = 1.0
_ROUND_PATIENCE_SECONDS = 10.0
"""A round waits so long for one producer that reads slowly, and for all together."""


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
        self._producers = producers
        self.may_see: Callable[[str, Member], bool] | None = None
        """Whether a producer may be shown a message to a topic; anybody can name himself after a group."""
        self._offsets = offsets
        self._turns = turns
        self._live = live
        self._store_host = store_host
        self._clock = clock
        self._settled: set[int] = set()
        """Half offsets named by an op, or given to another broker, at or ahead of the walk."""
        self._rolled_back: dict[int, None] = {}
        """First places of halves that were rolled back, as many as of those that have ended."""
        self._ended: dict[int, None] = {}
        """Half offsets behind the walk that an op names, the last few: an end that comes twice is one end."""
        self._newest: dict[int, int] = {}
        """Halves that were stored anew: commit-log offset of the first place to queue offset of the newest, by the
        latter. Those behind the walk are kept as long as their ends."""
        self._ops: deque[int] = deque()
        """The last half that each op names, for the ops that were read and are not done, oldest first."""
        self._is_resting = True
        self._elsewhere: Elsewhere | None = None
        self._op_read_to = 0
        self._walked_to = 0
        self._unflushed: deque[tuple[int, int, int]] = deque()
        """Progress that may be noted when the log is durable up to an offset: (that, half offset, op offset)."""

    def go_on(self, elsewhere: Elsewhere | None = None) -> Steps[None]:
        """Takes up the walk where the consumer offsets say it was, in steps; then transactions can be ended.

        Args:
            elsewhere: takes open halves instead of our own store; for a slave that stands in.
        """
        for table in (
            self._settled,
            self._rolled_back,
            self._ended,
            self._newest,
            self._ops,
            self._unflushed,
        ):
            table.clear()
        self._walked_to = self._progress(topics.HALF_TOPIC)
        self._op_read_to = max(0, self._progress(topics.OP_HALF_TOPIC) - _LOOKED_BACK)
        yield from self._read_ops()
        yield from self._find_renewed()
        self._elsewhere = elsewhere
        self._is_resting = False

    def rest(self) -> None:
        """Asks nobody and notes no progress from now on; somebody else may."""
        self._is_resting = True
        self._elsewhere = None
        self._unflushed.clear()

    def _find_renewed(self) -> Steps[None]:
        queue = self._store.find_queue(topics.HALF_TOPIC, 0)
        if queue is None:
            return
        for offset in range(max(queue.min_offset, self._walked_to - _LOOKED_BACK), queue.max_offset):
            half = self._record(topics.HALF_TOPIC, offset)
            if half is not None and half.prepared_transaction_offset < 0:
                self._note_renewed(_origin(half), offset)
            if offset % _STEP == 0:
                yield

    def _note_renewed(self, origin: int, half_offset: int) -> None:
        self._newest.pop(origin, None)
        self._newest[origin] = half_offset
        while len(self._newest) > _ENDED_KEPT:
            oldest = next(iter(self._newest))
            if self._newest[oldest] >= self._walked_to:
                break
            del self._newest[oldest]

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

    # -- what clients ask --------------------------------------------------------------

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
        origin = _origin(half)
        newest = self._newest.get(origin, half.queue_offset)
        commits = header.commit_or_rollback == COMMIT
        ended = any(place in self._settled or place in self._ended for place in (half.queue_offset, newest))
        # A producer that is asked before its own work is done may say "rollback"; what it says in the end counts.
        if ended and not (commits and origin in self._rolled_back):
            return
        if newest < self._walked_to:
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
        self._settle(newest)
        self._rolled_back.pop(origin, None)
        if not commits:
            self._rolled_back[origin] = None
            if len(self._rolled_back) > _ENDED_KEPT:
                del self._rolled_back[next(iter(self._rolled_back))]
        if op.queue_offset == self._op_read_to:
            self._ops.append(newest)
            self._op_read_to += 1

    def _settle(self, half_offset: int) -> None:
        if half_offset >= self._walked_to:
            self._settled.add(half_offset)
        else:
            self._note_ended(half_offset)

    def _note_ended(self, half_offset: int) -> None:
        self._ended[half_offset] = None
        if len(self._ended) > _ENDED_KEPT:
            del self._ended[next(iter(self._ended))]

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

    async def check(self) -> None:
        """One round over the open halves, in steps; others have their turn between two."""
        if self._is_resting:
            return
        await self._turns.run(self._read_ops())
        queue = self._store.find_queue(topics.HALF_TOPIC, 0)
        if queue is None:
            return
        self._pass_deleted(queue.min_offset)
        now = self._clock.wall_ms()
        # Halves that this round stores anew are for the next one.
        end = queue.max_offset
        tally = _Tally()
        if self._elsewhere is not None:
            await self._move_open(end, now, self._elsewhere)
            return
        try:
            while (slow := await self._turns.run(self._walk(end, now, tally))) is not None:
                await self._until_read(slow, tally)
        except StoreError as error:
            log.warning("the check of transactions stops at half offset %d: %s", self._walked_to, error)
        finally:
            self._note_progress()
            tally.report()

    async def _move_open(self, end: int, now: int, elsewhere: Elsewhere) -> None:
        """A slave's round: gives open halves away, one after the other.

        One that nobody takes stays until the next round, with others of its topic, and does not hold up those behind
        it. If the master comes back meanwhile, it asks about those again: it only knows up to where all are gone.
        """
        refused: set[str] = set()
        offset = self._walked_to
        while offset < end and len(self._settled) < _ENDED_KEPT:
            if offset not in self._settled:
                half = self._record(topics.HALF_TOPIC, offset)
                draft = None
                if half is not None and self._newest.get(_origin(half), offset) == offset:
                    if self._is_young(half, now):
                        return
                    draft = _as_half(half)
                if draft is not None and (draft.topic in refused or not await elsewhere([draft])):
                    refused.add(draft.topic)
                else:
                    self._settled.add(offset)
            if self._elsewhere is not elsewhere:
                return
            if self._walked_to in self._settled:
                await self._turns.run(self._pass_settled(end))
            offset = max(offset + 1, self._walked_to)
            if offset % _STEP == 0:
                await asyncio.sleep(0)  # there may be many that are only passed

    def _pass_settled(self, end: int) -> Steps[None]:
        passed = 0
        while self._walked_to < end and self._walked_to in self._settled and not self._is_resting:
            self._settled.discard(self._walked_to)
            self._note_ended(self._walked_to)
            self._walked_to += 1
            passed += 1
            if passed % _STEP == 0:
                yield
        self._note_progress()

    def _is_young(self, half: Record, now: int) -> bool:
        """Whether its producer still has time to end it by itself."""
        # A client whose clock is ahead is asked at once: waiting would hold up all behind it.
        age_ms = now - half.born_timestamp
        return 0 <= age_ms <= (_immunity_ms(half) or self._live.now.transaction_time_out)

    async def _until_read(self, producer: Channel, tally: _Tally) -> None:
        """Waits a moment for a producer that is behind; in vain, it is asked no more in this round."""
        started = self._clock.monotonic()
        try:
            async with asyncio.timeout(min(_READ_SECONDS, tally.patience)):
                await producer.writable()
        except TimeoutError:
            tally.behind.add(producer)
        tally.patience -= self._clock.monotonic() - started

    def _walk(self, end: int, now: int, tally: _Tally) -> Steps[Channel | None]:
        """Returns when all is done, or a producer that has yet to read what it was asked."""
        passed = 0
        while self._walked_to < end and not self._is_resting:
            offset = self._walked_to
            if offset in self._settled:
                self._settled.discard(offset)
                self._note_ended(offset)
                passed += 1
            elif self._check_at(offset, now, tally):
                passed += _PIECES_OF_CHECK
            else:
                return None
            self._walked_to = offset + 1
            self._note_progress()
            asked, tally.asked = tally.asked, None
            if asked is not None and asked.is_behind and asked not in tally.behind:
                return asked
            if passed >= _STEP:
                passed = 0
                yield
        return None

    def _pass_deleted(self, first: int) -> None:
        """Halves that retention has deleted are over."""
        if first <= self._walked_to:
            return
        settled = {half for half in self._settled if half < first}
        lost = first - self._walked_to - len(settled)
        if lost:
            log.warning(
                "%d open transactions, half offsets %d to %d, were deleted with old files before they ended; "
                "raise fileReservedTime or free the disk",
                lost,
                self._walked_to,
                first - 1,
            )
        self._settled -= settled
        self._walked_to = first

    def _note_progress(self) -> None:
        if self._is_resting:
            return
        while self._ops and self._ops[0] < self._walked_to:
            self._ops.popleft()
        end = self._store.max_commitlog_offset
        waiting = self._unflushed
        if waiting and (waiting[-1][0] == end or len(waiting) >= _UNFLUSHED_KEPT):
            waiting.pop()
        waiting.append((end, self._walked_to, self._op_read_to - len(self._ops)))
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

    def _read_ops(self) -> Steps[None]:
        """Takes in the ops that are in the queue and not in memory: after a start all that are not done, then none."""
        queue = self._store.find_queue(topics.OP_HALF_TOPIC, 0)
        if queue is None:
            return
        if self._op_read_to < queue.min_offset:
            self._ops.clear()
            self._op_read_to = queue.min_offset
        read = 0
        while self._op_read_to < queue.max_offset:
            record = self._record(topics.OP_HALF_TOPIC, self._op_read_to)
            halves: list[int] = []
            if record is not None:
                # Apache 5.x names several halves in one op, separated by commas.
                parts = (part.strip() for part in record.body.decode("ascii", "replace").split(","))
                halves = [int(part) for part in parts if part.isdigit() and len(part) < _OFFSET_DIGITS]
            # A half that is not there yet is none of theirs: the message that comes to its place is another.
            halves = [half for half in halves if half < self._end_of_halves()]
            for half in halves:
                self._settle(half)
            self._ops.append(max(halves, default=-1))
            self._op_read_to += 1
            read += 1
            if read % _OPS_STEP == 0:
                yield

    def _end_of_halves(self) -> int:
        queue = self._store.find_queue(topics.HALF_TOPIC, 0)
        return 0 if queue is None else queue.max_offset

    def _record(self, topic: str, queue_offset: int) -> Record | None:
        """None if it cannot be read; the log says so."""
        raw = self._store.record_at_queue(topic, 0, queue_offset)
        if raw is not None:
            try:
                return decode_record(raw)
            except CorruptRecordError as error:
                log.error("queue offset %d of %s is passed over: %s", queue_offset, topic, error)
        return None

    def _check_at(self, offset: int, now: int, tally: _Tally) -> bool:
        """True if the walk may go on behind this open half."""
        half = self._record(topics.HALF_TOPIC, offset)
        if half is None:
            tally.unreadable += 1
            return True
        if self._newest.get(_origin(half), offset) > offset:
            return True  # it was stored anew before a crash
        config = self._live.now
        checked = max(0, _int(half.properties.get(prop.CHECK_TIMES), 0))
        age_ms = now - half.born_timestamp
        if checked >= config.transaction_check_max or age_ms > config.file_reserved_time * 3_600_000:
            self._give_up(half, tally)
            return True
        if self._is_young(half, now):
            # One that asked for more time must not hold up those behind it, nor may our clock when it is set back.
            if _immunity_ms(half) and not 0 <= now - half.store_timestamp <= config.transaction_time_out:
                self._renew(copied(half, topics.HALF_TOPIC, 0, dict(half.properties)), half, tally)
                return True
            return False
        renewed = copied(half, topics.HALF_TOPIC, 0, dict(half.properties))
        if tally.behind and self._producer_of(half, tally) in tally.behind:
            self._renew(renewed, half, tally)  # asked in another round; this one does not count
            return True
        renewed.properties[prop.CHECK_TIMES] = str(checked + 1)
        place = self._renew(renewed, half, tally)
        if place is not None:
            self._ask(half, renewed.properties, place.queue_offset, place.commitlog_offset, tally)
        return True

    def _renew(self, renewed: Draft, half: Record, tally: _Tally) -> Placed | None:
        origin = _origin(half)
        renewed.prepared_offset = mark_for(origin)
        try:
            place = self._writer.put(renewed)[0]
            self._note_renewed(origin, place.queue_offset)
            return place
        except MessageIllegalError as error:
            # Only one of another broker, or of an earlier version: here ``prepare`` leaves room. Its producer is asked
            # once, about its old place, and may end it there.
            log.error("half message at %d cannot be stored anew: %s", half.commitlog_offset, error)
            self._ask(half, half.properties, half.queue_offset, half.commitlog_offset, tally)
            self._give_up(half, tally)
            return None

    def _give_up(self, half: Record, tally: _Tally) -> None:
        tally.given_up.append(half.properties.get(prop.UNIQ_KEY) or f"at {half.commitlog_offset}")
        try:
            self._writer.put(copied(half, topics.TRANS_CHECK_MAX_TOPIC, 0, dict(half.properties)))
        except MessageIllegalError as error:
            log.error("half message at %d is only in the log: %s", half.commitlog_offset, error)

    def _producer_of(self, half: Record, tally: _Tally) -> Channel | None:
        """Who can be asked; one that is behind only if there is no other among the next few."""
        may = None
        if self.may_see is not None:
            may = partial(self.may_see, half.properties.get(prop.REAL_TOPIC, half.topic))
        for _ in range(_PRODUCERS_TRIED):
            channel = self._producers.pick(half.properties.get(prop.PRODUCER_GROUP, ""), may)
            if channel not in tally.behind:
                break
        return channel

    def _ask(
        self,
        half: Record,
        properties: Mapping[str, str],
        queue_offset: int,
        commitlog_offset: int,
        tally: _Tally,
    ) -> None:
        """Request 39 to one producer of the group; the record carries its real topic."""
        channel = self._producer_of(half, tally)
        if channel is None:
            tally.nobody[half.properties.get(prop.PRODUCER_GROUP, "")] += 1
            return
        tally.asked = channel
        topic = properties.get(prop.REAL_TOPIC, half.topic)
        unique = properties.get(prop.UNIQ_KEY)
        queue_id = _int(properties.get(prop.REAL_QUEUE_ID), 0)
        header = CheckTransactionState(
            tran_state_table_offset=queue_offset,
            commit_log_offset=commitlog_offset,
            msg_id=unique,
            transaction_id=unique,
            offset_msg_id=offset_id(self._store_host, commitlog_offset),
            topic=topic,
            bname=self._live.now.broker_name,
        )
        try:
            record = encode_record(
                topic=topic,
                body=half.body,
                properties=prop.dump(properties).encode(),
                queue_id=queue_id if 0 <= queue_id < 1 << 31 else 0,
                flag=half.flag,
                queue_offset=queue_offset,
                commitlog_offset=commitlog_offset,
                sys_flag=half.sys_flag,
                born_timestamp=half.born_timestamp,
                born_host=half.born_host,
                store_timestamp=half.store_timestamp,
                store_host=half.store_host,
                reconsume_times=half.reconsume_times,
            )
            channel.oneway(RemotingCommand(RequestCode.CHECK_TRANSACTION_STATE, header.to_ext(), record))
        except RocketMQError as error:
            log.error(
                "%s cannot be asked about the half message at %d: %s",
                channel.address,
                commitlog_offset,
                error,
            )


class _Tally:
    """What a round tells the log: a line for each kind of thing, however many there were."""

    def __init__(self) -> None:
        self.unreadable = 0
        self.given_up: list[str] = []
        self.nobody: Counter[str] = Counter()
        self.asked: Channel | None = None
        self.behind: set[Channel] = set()
        """Producers that do not read what they are asked."""
        self.patience = _ROUND_PATIENCE_SECONDS

    def report(self) -> None:
        if self.unreadable:
            log.error("%d half messages cannot be read and are passed over", self.unreadable)
        if self.given_up:
            log.warning(
                "%d transactions are given up, as too old or asked about too often, and kept in %s: %s",
                len(self.given_up),
                topics.TRANS_CHECK_MAX_TOPIC,
                ", ".join(self.given_up[:_NAMES_LOGGED]),
            )
        for channel in list(self.behind)[:_NAMES_LOGGED]:
            log.warning("producer %s does not read what it is asked about transactions", channel.address)
        for group, count in self.nobody.most_common(_NAMES_LOGGED):
            log.info("no producer of group %s is connected to be asked about %d transactions", group, count)


def _origin(half: Record) -> int:
    """Where in the commit log the transaction's half lay first."""
    offset = half.prepared_transaction_offset
    return source_of(offset) if offset < 0 else half.commitlog_offset


def _immunity_ms(half: Record) -> int:
    """How long it wants not to be asked about; 0 if it does not say."""
    return _int(half.properties.get(prop.CHECK_IMMUNITY_SECONDS), 0) * 1000


def _as_half(half: Record) -> Draft | None:
    """A stored half as its producer sent it; None if it does not say for which topic."""
    draft = redelivery(half)
    if draft is None:
        return None
    draft.properties[prop.TRAN_MSG] = "true"
    for name in (prop.WAIT, prop.CHECK_TIMES, prop.TRAN_PREPARED_QUEUE_OFFSET):
        draft.properties.pop(name, None)  # the other broker answers when it has it as safely as it promises
    draft.sys_flag = draft.sys_flag & ~TRANSACTION_MASK | TRANSACTION_PREPARED
    draft.prepared_offset = mark_for(half.commitlog_offset)
    return draft


def _int(text: str | None, default: int) -> int:
    try:
        return int(text) if text else default
    except ValueError:
        return default
