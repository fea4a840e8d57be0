"""A slave's copies of its master's tables (Java: SlaveSynchronize).

Topics, groups, consumed offsets, the progress of delayed messages, timers and transactions, request modes, users and
policies: each is replaced by the master's. A master of this library is asked every second and answers with what has
changed since; Apache's answers with whole tables and is asked every 10 s. A table that cannot be had is tried again in
the next round, and the others go on.

Progress that tells of deliveries is handed to ``CopiedProgress``, which takes it when the log has come so far.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec

from gimbalmq._clock import Clock
from gimbalmq._steps import for_each
from gimbalmq.access.access import Access
from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.consumer_offsets import ConsumerOffsets
from gimbalmq.broker.groups import Groups
from gimbalmq.broker.replication import agreement
from gimbalmq.broker.replication.progress import CopiedProgress, Copy
from gimbalmq.broker.replication.table_rows import (
    Offsets,
    Parts,
    masks_in,
    names_in,
    offsets_in,
    pairs_of,
    parts_of,
    rows_in,
    version_in,
)
from gimbalmq.broker.replication.users import UserCopies
from gimbalmq.broker.request_modes import RequestModes
from gimbalmq.broker.stats import Stats
from gimbalmq.broker.topics import Topics, is_reserved_topic
from gimbalmq.broker.values import mend_group, mend_topic
from gimbalmq.errors import RemoteProtocolError, ResponseError, RocketMQError, TransportError
from gimbalmq.model import topics as names
from gimbalmq.protocol.bodies import DataVersion, GroupConfig, TopicConfig, without_nulls
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.base import Header
from gimbalmq.protocol.headers.replication import (
    GetGroupTable,
    GetOffsetTable,
    GetTopicTable,
    GroupTableReply,
    OffsetTableReply,
    TimerCheckpointReply,
    TopicTableReply,
)
from gimbalmq.protocol.replication_bodies import DelayOffsetTable, RequestModeTable, TimerCheckpoint
from gimbalmq.rpc.call import Caller, ask
from gimbalmq.store.message_store import MessageStore
from gimbalmq.store.timer_files import TimerCheck
from gimbalmq.transport.tasks import Tasks
from gimbalmq.transport.turns import Turns

log = logging.getLogger(__name__)

_OURS_SECONDS = 0.75
_APACHES_SECONDS = 10.0
_TIMERS_SECONDS = 5.0
_SELDOM_SECONDS = 10.0
_ASK_SECONDS = 10.0
_PAGE_ROWS = 500
_ATTEMPTS = 10
_TIMERS_LATE_SECONDS = 10.0
"""A timer that came late is delivered after its second. So what a master says of timers is believed so much later."""


@dataclass(slots=True)
class _Seen:
    """What is known of one master.

    Attributes:
        is_ours: it is a broker of this library; None before its first answer.
        topics, groups, offsets: versions of the tables that were taken from it.
        listed: topics that it has named; for Apache's masters only.
        timers: what it said of timers, and when.
        asked: when tables were last asked for that are not asked for in every round.
    """

    is_ours: bool | None = None
    topics: DataVersion | None = None
    groups: DataVersion | None = None
    offsets: DataVersion | None = None
    listed: set[str] = field(default_factory=set)
    timers: deque[tuple[float, TimerCheck]] = field(default_factory=deque)
    asked: dict[str, float] = field(default_factory=dict)


class _Pages(NamedTuple):
    """How a table is asked for that comes in pages.

    Attributes:
        header: of the question for the rows from one on: that one's number, the version we have, and whether what has
            changed since is enough.
        totals: of an answer: how many rows there are, and whether only those came that have changed.
    """

    code: RequestCode
    header: Callable[[int, str, bool | None], Header]
    totals: Callable[[Mapping[str, str] | None], tuple[int | None, bool | None]]


_TOPIC_PAGES = _Pages(
    RequestCode.GET_ALL_TOPIC_CONFIG,
    lambda start, version, changes: GetTopicTable(
        topic_seq=start, max_topic_num=_PAGE_ROWS, data_version=version, changes_only=changes
    ),
    lambda fields: ((reply := TopicTableReply.from_ext(fields)).total_topic_num, reply.changes_only),
)
_GROUP_PAGES = _Pages(
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    lambda start, version, changes: GetGroupTable(
        group_seq=start, max_group_num=_PAGE_ROWS, data_version=version, changes_only=changes
    ),
    lambda fields: ((reply := GroupTableReply.from_ext(fields)).total_group_num, reply.changes_only),
)


class TableCopies:
    """Runs while the broker is a slave.

    Attributes:
        troubles: by table, why its last copy failed.
        master: whose tables are copied; None if nobody's are.
        rounds: how often the master was asked for what was due.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        modes: RequestModes,
        progress: CopiedProgress,
        access: Access,
        stats: Stats,
        caller: Caller,
        turns: Turns,
        live: LiveConfig,
        clock: Clock,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._modes = modes
        self._progress = progress
        self._stats = stats
        self._caller = caller
        self._turns = turns
        self._live = live
        self._clock = clock
        self._users = UserCopies(access, live.now, caller, turns)
        self._tasks = Tasks("tables")
        self._task: asyncio.Task[object] | None = None
        self.master: str | None = None
        self.troubles: dict[str, str] = {}
        self.rounds = 0

    def aim(self, master: str | None) -> None:
        """Copies the tables of the broker at this address from now on; None ends that."""
        if master == self.master and self._task is not None:
            return
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self.master = master or None
        self.troubles.clear()
        if self.master is None:
            self._users.end()
        else:
            self._users.begin()
            self._task = self._tasks.spawn(self._follow(self.master), f"copies of {self.master}")

    async def close(self) -> None:
        await self._tasks.close()

    @property
    def trouble(self) -> str | None:
        """Why a table is not copied now; None if all of them are."""
        for what, why in self.troubles.items():
            return f"the master's {what} cannot be copied: {why}"
        return None

    # -- rounds ------------------------------------------------------------------------

    async def _follow(self, master: str) -> None:
        seen = _Seen()
        while True:
            try:
                await self.round(master, seen)
            except RocketMQError as error:  # such as a master of 4.9 in its first second
                self._note("tables", str(error))
            else:
                self._note("tables", None)
            self.rounds += 1
            await asyncio.sleep(_OURS_SECONDS if seen.is_ours is not False else _APACHES_SECONDS)

    async def round(self, master: str, seen: _Seen) -> None:
        """Asks for every table that is due; raises TransportError if the master cannot be reached."""
        copy = self._progress.begin()
        ours = self._store.max_commitlog_offset
        await self._try("topics", self._copy_topics(master, seen))
        if seen.is_ours is False and seen.topics == self._topics.version:
            await self._drop_queues(ours, seen)
        await self._try("groups", self._copy_groups(master, seen))
        ends = [
            await self._try("consumer offsets", self._copy_offsets(master, seen, copy)),
            await self._try("delay offsets", self._copy_delays(master, copy)),
        ]
        if self._is_due(seen, "timers", _TIMERS_SECONDS):
            ends.append(await self._try("timers", self._copy_timers(master, seen, copy)))
        if self._is_due(seen, "request modes", _SELDOM_SECONDS):
            await self._try("request modes", self._copy_modes(master))
        await self._try("users", self._users.copy(master, is_ours=bool(seen.is_ours)))
        known = [end for end in ends if end is not None]
        if not seen.is_ours:
            # It does not say where its log ended when it answered, so it is asked for that afterwards.
            known = [(await agreement.bounds(self._caller, master))[1]]
        if known:
            self._progress.end(copy, max(known))

    def _is_due(self, seen: _Seen, what: str, seconds: float) -> bool:
        now = self._clock.monotonic()
        if now - seen.asked.get(what, -seconds) < seconds:
            return False
        seen.asked[what] = now
        return True

    async def _try(self, what: str, work: Awaitable[int | None]) -> int | None:
        """A table that cannot be copied leaves the others alone; a master that is gone ends the round."""
        try:
            result = await work
        except TransportError:
            raise
        except RocketMQError as error:
            self._note(what, str(error))
            return None
        self._note(what, None)
        return result

    def _note(self, what: str, trouble: str | None) -> None:
        before = self.troubles.pop(what, None)
        if trouble is not None:
            self.troubles[what] = trouble
            if before != trouble:
                log.warning("the master's %s cannot be copied: %s; tried again", what, trouble)
        elif before is not None:
            log.info("the master's %s are copied again", what)

    async def _ask(self, master: str, code: RequestCode, header: Header | None = None) -> RemotingCommand:
        return await ask(self._caller, master, code, header, timeout=_ASK_SECONDS)

    # -- topics and groups -------------------------------------------------------------

    async def _copy_topics(self, master: str, seen: _Seen) -> None:
        had = self._topics.version
        table: dict[str, TopicConfig] = {}

        async def take(parts: Parts) -> int:
            rows = await self._turns.run(rows_in(parts, "topicConfigTable", TopicConfig))
            await self._turns.run(for_each(lambda row: mend_topic(*row), list(rows.items())))
            table.update(rows)
            return len(rows)

        known = had if had == seen.topics else None
        found = await self._pages(master, _TOPIC_PAGES, take, table.clear, known, seen)
        if found is None:
            return
        version, removed = found
        if removed is None:
            if not table:
                raise RemoteProtocolError(
                    "the master has no topics at all, not even its own; that is not believed"
                )
            gone = self._topics.replace(table, version)
            if seen.is_ours is False:
                seen.listed.update(table)
        elif self._topics.version == had:
            self._topics.follow(table, removed, version)
            gone = removed
        else:
            return  # it was changed here meanwhile: the next round takes the whole table
        seen.topics = version
        for topic in gone:
            self._stats.forget_topic(topic)

    async def _drop_queues(self, before: int, seen: _Seen) -> None:
        """Forgets the queues of topics that an Apache master has deleted: its log does not tell of that.

        A master makes a topic before it takes its first message. So a topic whose messages we had all before we asked
        for the topics, and that is not among them, is gone there. But one that this master has never named may be
        one it does not know yet: it was a slave a moment ago, and had not copied its topics when it became the master.
        """
        store = self._store

        def look(topic: str) -> None:
            if topic not in seen.listed or topic in self._topics or is_reserved_topic(topic, self._live.now):
                return
            for queue_id in store.queue_ids(topic):
                queue = store.find_queue(topic, queue_id)
                last = [] if queue is None else store.entries(topic, queue_id, queue.max_offset - 1, 1)
                if last and last[0][0] >= before:
                    return
            log.info("topic %s is gone at the master; its queues are dropped", topic)
            store.drop_queues(topic)
            seen.listed.discard(topic)

        await self._turns.run(for_each(look, store.topics(), at_once=1))

    async def _copy_groups(self, master: str, seen: _Seen) -> None:
        had = self._groups.version
        table: dict[str, GroupConfig] = {}
        forbidden: dict[str, dict[str, int]] = {}

        async def take(parts: Parts) -> int:
            rows = await self._turns.run(rows_in(parts, "subscriptionGroupTable", GroupConfig))
            await self._turns.run(for_each(lambda row: mend_group(*row), list(rows.items())))
            table.update(rows)
            forbidden.update(await self._turns.run(masks_in(parts, "forbiddenTable")))
            return len(rows)

        def clear() -> None:
            table.clear()
            forbidden.clear()

        known = had if had == seen.groups else None
        found = await self._pages(master, _GROUP_PAGES, take, clear, known, seen)
        if found is None:
            return
        version, removed = found
        if removed is None:
            self._groups.replace(table, forbidden, version)
        elif self._groups.version == had:
            self._groups.follow(table, forbidden, removed, version)
        else:
            return
        seen.groups = version

    async def _pages(
        self,
        master: str,
        pages: _Pages,
        take: Callable[[Parts], Awaitable[int]],
        clear: Callable[[], None],
        known: DataVersion | None,
        seen: _Seen,
    ) -> tuple[DataVersion, list[str] | None] | None:
        """Gathers a table, or what has changed since the version we have.

        Returns:
            The version, and the names that are gone if only changes came. None if nothing has changed.
        """

        async def page(start: int, version: DataVersion | None) -> tuple[Parts, int | None, bool | None]:
            header = pages.header(start, _text(version), None if start else True)
            answer = await self._ask(master, pages.code, header)
            return (await parts_of(answer.body, self._turns), *pages.totals(answer.ext_fields))

        for _ in range(_ATTEMPTS):
            clear()
            parts, total, changes_only = await page(0, known)
            seen.is_ours = changes_only is not None
            version = version_in(parts)
            if version is None:
                raise RemoteProtocolError("the master's table has no version")
            if version == known:
                return None
            got = await take(parts)
            if changes_only:
                return version, names_in(parts, "removed")
            while total is not None and got < total:
                parts, total, _ = await page(got, version)
                if version_in(parts) != version:
                    break
                more = await take(parts)
                if not more:
                    break
                got += more
            else:
                return version, None
            known = None
        raise RemoteProtocolError(f"the master's table has changed {_ATTEMPTS} times while it was read")

    # -- progress ----------------------------------------------------------------------

    async def _copy_offsets(self, master: str, seen: _Seen, copy: Copy) -> int | None:
        had = self._offsets.version
        header = GetOffsetTable(data_version=_text(had if had == seen.offsets else None))
        answer = await self._ask(master, RequestCode.GET_ALL_CONSUMER_OFFSET, header)
        reply = OffsetTableReply.from_ext(answer.ext_fields)
        parts = await parts_of(answer.body, self._turns)
        version = version_in(parts)
        rows = await self._turns.run(offsets_in(parts))
        copy.transactions = _transactions(rows)
        if version is None:
            version = had  # 4.9 has none
        if not reply.changes_only:
            pairs = await self._turns.run(pairs_of(self._with_own(rows)))
            self._offsets.replace(pairs, version)
        elif self._offsets.version != had:
            return reply.log_offset  # commits came here meanwhile: the next round takes the whole table
        elif version != had:
            self._offsets.follow(rows, version)
        seen.offsets = version
        return reply.log_offset

    def _with_own(self, rows: Offsets) -> Offsets:
        """A whole table with our own progress of transactions: the master's is taken when the log has come so far."""
        for topic in (names.HALF_TOPIC, names.OP_HALF_TOPIC):
            own = self._offsets.queues(names.TRANS_GROUP, topic)
            if own:
                rows[topic, names.TRANS_GROUP] = own
        return rows

    async def _copy_delays(self, master: str, copy: Copy) -> int | None:
        answer = await self._ask(master, RequestCode.GET_ALL_DELAY_OFFSET, GetOffsetTable(data_version=""))
        table = DelayOffsetTable.parse(answer.body)
        copy.delays = without_nulls(msgspec.to_builtins(table))
        return OffsetTableReply.from_ext(answer.ext_fields).log_offset

    async def _copy_timers(self, master: str, seen: _Seen, copy: Copy) -> int | None:
        try:
            answer = await self._ask(
                master, RequestCode.GET_TIMER_CHECK_POINT, GetOffsetTable(data_version="")
            )
        except ResponseError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return None  # 4.9 has no timers
            raise
        found = TimerCheckpoint.decode(answer.body)
        reply = TimerCheckpointReply.from_ext(answer.ext_fields)
        check = TimerCheck(
            read_ms=found.last_read_time_ms,
            queue_offset=min(found.last_timer_queue_offset, found.master_timer_queue_offset),
            marks_from=-1 if reply.marks_from is None else reply.marks_from,
            moved_below=reply.moved_below or 0,
            fill_until=reply.fill_until or 0,
            filled_from_ms=reply.filled_from_ms or 0,
        )
        copy.timers = self._aged(seen.timers, check)
        return reply.log_offset

    def _aged(self, timers: deque[tuple[float, TimerCheck]], check: TimerCheck) -> TimerCheck:
        """What is to be believed of timers: what the master said a while ago, or about then."""
        now = self._clock.monotonic()
        timers.append((now, check))
        while len(timers) > 1 and now - timers[1][0] >= _TIMERS_LATE_SECONDS:
            timers.popleft()
        told, oldest = timers[0]
        if now - told >= _TIMERS_LATE_SECONDS:
            return oldest
        return replace(oldest, read_ms=max(0, oldest.read_ms - round(_TIMERS_LATE_SECONDS * 1000)))

    async def _copy_modes(self, master: str) -> None:
        try:
            answer = await self._ask(master, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        except ResponseError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return  # 4.9 knows pull only
            raise
        self._modes.replace(RequestModeTable.parse(answer.body))


def _text(version: DataVersion | None) -> str:
    return "" if version is None else version.dump().decode()


def _transactions(rows: Offsets) -> dict[str, int]:
    """Takes how far transactions have come out of a table of offsets."""
    found: dict[str, int] = {}
    for topic in (names.HALF_TOPIC, names.OP_HALF_TOPIC):
        offsets = rows.pop((topic, names.TRANS_GROUP), {})
        if 0 in offsets:
            found[topic] = offsets[0]
    return found
