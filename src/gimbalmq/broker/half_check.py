"""The check of transactions: a walk over the half queue that settles what nobody has ended.

The walk begins at the first offset that is not settled. An open half that is old enough is stored anew (its old place
counts as settled), and its producer is asked about the new one. The new one names the first of its places
(``store/marks``), so an end that names any of them ends the one transaction, after a restart too.

No half can stop the walk: one that cannot be read or stored anew is passed over, with a line in the log.

A slave that stands in for its master stores nothing. It gives open halves that are old enough to another broker, which
asks about them; they count as settled here when that has them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from gimbalmq._clock import Clock
from gimbalmq._steps import Steps
from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.half_ledger import ENDED_KEPT, STEP, HalfLedger, origin_of
from gimbalmq.broker.producer_questions import ProducerQuestions, Tally, number_of
from gimbalmq.broker.redelivery import copied, redelivery
from gimbalmq.broker.writer import Draft, Placed, Writer
from gimbalmq.errors import MessageIllegalError, StoreError
from gimbalmq.model import properties as prop
from gimbalmq.model import topics
from gimbalmq.model.flags import TRANSACTION_MASK, TRANSACTION_PREPARED
from gimbalmq.model.record import Record
from gimbalmq.store.marks import mark_for
from gimbalmq.store.message_store import MessageStore
from gimbalmq.transport.channel import Channel
from gimbalmq.transport.turns import Turns

log = logging.getLogger(__name__)

Elsewhere = Callable[[list[Draft]], Awaitable[int]]
"""Takes halves, and says how many of them, from the first on, it has."""

_PIECES_OF_CHECK = 16
"""A half that is stored anew costs as much as so many that are only passed."""


class HalfCheck:
    """Rounds over the open halves of one broker.

    Attributes:
        elsewhere: takes open halves instead of our own store; for a slave that stands in.
    """

    def __init__(
        self,
        store: MessageStore,
        writer: Writer,
        ledger: HalfLedger,
        questions: ProducerQuestions,
        turns: Turns,
        live: LiveConfig,
        clock: Clock,
    ) -> None:
        self._store = store
        self._writer = writer
        self._ledger = ledger
        self._questions = questions
        self._turns = turns
        self._live = live
        self._clock = clock
        self.elsewhere: Elsewhere | None = None

    async def round(self) -> None:
        """One round over the open halves, in steps; others have their turn between two."""
        ledger = self._ledger
        if ledger.is_resting:
            return
        await self._turns.run(ledger.read_ops())
        queue = self._store.find_queue(topics.HALF_TOPIC, 0)
        if queue is None:
            return
        ledger.pass_deleted(queue.min_offset)
        now = self._clock.wall_ms()
        # Halves that this round stores anew are for the next one.
        end = queue.max_offset
        tally = Tally()
        if self.elsewhere is not None:
            await self._move_open(end, now, self.elsewhere)
            return
        try:
            while (slow := await self._turns.run(self._walk(end, now, tally))) is not None:
                await self._questions.until_read(slow, tally)
        except StoreError as error:
            log.warning("the check of transactions stops at half offset %d: %s", ledger.walked_to, error)
        finally:
            ledger.note_progress()
            tally.report()

    async def _move_open(self, end: int, now: int, elsewhere: Elsewhere) -> None:
        """A slave's round: gives open halves away, one after the other.

        One that nobody takes stays until the next round, with others of its topic, and does not hold up those behind
        it. If the master comes back meanwhile, it asks about those again: it only knows up to where all are gone.
        """
        ledger = self._ledger
        refused: set[str] = set()
        offset = ledger.walked_to
        # Not by how many are settled: after a start all are that have ended since the last round of the master.
        while offset < min(end, ledger.walked_to + ENDED_KEPT):
            if offset not in ledger.settled:
                half = ledger.record(topics.HALF_TOPIC, offset)
                draft = None
                if half is not None and ledger.newest.get(origin_of(half), offset) == offset:
                    if self._is_young(half, now):
                        return
                    draft = _as_half(half)
                if draft is not None and (draft.topic in refused or not await elsewhere([draft])):
                    refused.add(draft.topic)
                else:
                    ledger.settled.add(offset)
            if self.elsewhere is not elsewhere:
                return
            if ledger.walked_to in ledger.settled:
                await self._turns.run(self._pass_settled(end))
            offset = max(offset + 1, ledger.walked_to)
            if offset % STEP == 0:
                await asyncio.sleep(0)  # there may be many that are only passed

    def _pass_settled(self, end: int) -> Steps[None]:
        ledger = self._ledger
        passed = 0
        while ledger.walked_to < end and ledger.walked_to in ledger.settled and not ledger.is_resting:
            ledger.pass_settled()
            passed += 1
            if passed % STEP == 0:
                yield
        ledger.note_progress()

    def _is_young(self, half: Record, now: int) -> bool:
        """Whether its producer still has time to end it by itself."""
        # A client whose clock is ahead is asked at once: waiting would hold up all behind it.
        age_ms = now - half.born_timestamp
        return 0 <= age_ms <= (_immunity_ms(half) or self._live.now.transaction_time_out)

    def _walk(self, end: int, now: int, tally: Tally) -> Steps[Channel | None]:
        """Returns when all is done, or a producer that has yet to read what it was asked."""
        ledger = self._ledger
        passed = 0
        while ledger.walked_to < end and not ledger.is_resting:
            offset = ledger.walked_to
            if offset in ledger.settled:
                ledger.pass_settled()
                passed += 1
            elif self._check_at(offset, now, tally):
                ledger.walked_to = offset + 1
                passed += _PIECES_OF_CHECK
            else:
                return None
            ledger.note_progress()
            asked, tally.asked = tally.asked, None
            if asked is not None and asked.is_behind and asked not in tally.behind:
                return asked
            if passed >= STEP:
                passed = 0
                yield
        return None

    def _check_at(self, offset: int, now: int, tally: Tally) -> bool:
        """True if the walk may go on behind this open half."""
        half = self._ledger.record(topics.HALF_TOPIC, offset)
        if half is None:
            tally.unreadable += 1
            return True
        if self._ledger.newest.get(origin_of(half), offset) > offset:
            return True  # it was stored anew before a crash
        config = self._live.now
        checked = max(0, number_of(half.properties.get(prop.CHECK_TIMES), 0))
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
        if tally.behind and self._questions.producer_of(half, tally) in tally.behind:
            self._renew(renewed, half, tally)  # asked in another round; this one does not count
            return True
        renewed.properties[prop.CHECK_TIMES] = str(checked + 1)
        place = self._renew(renewed, half, tally)
        if place is not None:
            self._questions.ask(half, renewed.properties, place.queue_offset, place.commitlog_offset, tally)
        return True

    def _renew(self, renewed: Draft, half: Record, tally: Tally) -> Placed | None:
        origin = origin_of(half)
        renewed.prepared_offset = mark_for(origin)
        try:
            place = self._writer.put(renewed)[0]
            self._ledger.note_renewed(origin, place.queue_offset)
            return place
        except MessageIllegalError as error:
            # Only one of another broker, or of an earlier version: here ``prepare`` leaves room. Its producer is asked
            # once, about its old place, and may end it there.
            log.error("half message at %d cannot be stored anew: %s", half.commitlog_offset, error)
            self._questions.ask(half, half.properties, half.queue_offset, half.commitlog_offset, tally)
            self._give_up(half, tally)
            return None

    def _give_up(self, half: Record, tally: Tally) -> None:
        tally.given_up.append(half.properties.get(prop.UNIQ_KEY) or f"at {half.commitlog_offset}")
        try:
            self._writer.put(copied(half, topics.TRANS_CHECK_MAX_TOPIC, 0, dict(half.properties)))
        except MessageIllegalError as error:
            log.error("half message at %d is only in the log: %s", half.commitlog_offset, error)


def _immunity_ms(half: Record) -> int:
    """How long it wants not to be asked about; 0 if it does not say."""
    return number_of(half.properties.get(prop.CHECK_IMMUNITY_SECONDS), 0) * 1000


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
