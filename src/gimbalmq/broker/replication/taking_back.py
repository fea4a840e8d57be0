"""What a slave has learned while its master was gone: consumed offsets, progress of delayed messages and timers.

A master that comes back asks each slave for them before it serves (Java: BrokerPreOnlineService). What is older than
its own it does not take.
"""

from __future__ import annotations

import msgspec

from gimbalmq.broker.consumer_offsets import ConsumerOffsets
from gimbalmq.broker.delay_levels import DelayLevels
from gimbalmq.broker.replication.table_rows import offsets_in, pairs_of, parts_of, version_in
from gimbalmq.broker.timers import Timers
from gimbalmq.broker.versions import is_as_new
from gimbalmq.errors import ResponseError
from gimbalmq.model import topics as names
from gimbalmq.protocol.bodies import without_nulls
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.headers.replication import GetOffsetTable, TimerCheckpointReply
from gimbalmq.protocol.replication_bodies import DelayOffsetTable, TimerCheckpoint
from gimbalmq.rpc.call import Caller, ask
from gimbalmq.store.timer_files import TimerCheck
from gimbalmq.transport.turns import Turns

_SECONDS = 10.0


class TakingBack:
    """Asks a slave; the parts of this broker rest meanwhile."""

    def __init__(
        self, offsets: ConsumerOffsets, delays: DelayLevels, timers: Timers, turns: Turns, caller: Caller
    ) -> None:
        self._offsets = offsets
        self._delays = delays
        self._timers = timers
        self._turns = turns
        self._caller = caller

    async def take(self, slave: str) -> None:
        """Raises RocketMQError if the slave could not be asked for all of it."""
        await self._take_offsets(slave)
        await self._take_delays(slave)
        await self._take_timers(slave)

    async def _take_offsets(self, slave: str) -> None:
        answer = await ask(self._caller, slave, RequestCode.GET_ALL_CONSUMER_OFFSET, timeout=_SECONDS)
        parts = await parts_of(answer.body, self._turns)
        version = version_in(parts)
        if version is None or not is_as_new(version, self._offsets.version):
            return
        rows = await self._turns.run(offsets_in(parts))
        for topic in (names.HALF_TOPIC, names.OP_HALF_TOPIC):
            # What either of us has passed is over: a slave that stood in has given open transactions to other brokers.
            done = rows.get((topic, names.TRANS_GROUP), {})
            for queue_id, own in self._offsets.queues(names.TRANS_GROUP, topic).items():
                done[queue_id] = max(own, done.get(queue_id, 0))
            if done:
                rows[topic, names.TRANS_GROUP] = done
        self._offsets.replace(await self._turns.run(pairs_of(rows)), version)

    async def _take_delays(self, slave: str) -> None:
        header = GetOffsetTable(data_version="")
        answer = await ask(self._caller, slave, RequestCode.GET_ALL_DELAY_OFFSET, header, timeout=_SECONDS)
        table = DelayOffsetTable.parse(answer.body)
        if table.data_version is not None and is_as_new(table.data_version, self._delays.version):
            self._delays.copy(without_nulls(msgspec.to_builtins(table)))

    async def _take_timers(self, slave: str) -> None:
        header = GetOffsetTable(data_version="")
        try:
            answer = await ask(
                self._caller, slave, RequestCode.GET_TIMER_CHECK_POINT, header, timeout=_SECONDS
            )
        except ResponseError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return
            raise
        found = TimerCheckpoint.decode(answer.body)
        if not is_as_new(found.version, self._timers.version):
            return
        reply = TimerCheckpointReply.from_ext(answer.ext_fields)
        self._timers.copy(
            TimerCheck(
                read_ms=found.last_read_time_ms,
                queue_offset=found.last_timer_queue_offset,
                marks_from=-1 if reply.marks_from is None else reply.marks_from,
                moved_below=reply.moved_below or 0,
                fill_until=reply.fill_until or 0,
                filled_from_ms=reply.filled_from_ms or 0,
            )
        )
