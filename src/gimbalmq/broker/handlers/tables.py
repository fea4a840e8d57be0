"""The tables that slaves copy, as their master answers them: 21, 201, 43, 45, 60, 61 and 402.

Apache's slaves ask for whole tables; those of 5.x for topics and groups in pages. A slave of this library says which
version it has, and gets what has changed since. Large tables are written in steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from gimbalmq.broker.consumer_offsets import ConsumerOffsets
from gimbalmq.broker.delay_levels import DelayLevels
from gimbalmq.broker.groups import Groups
from gimbalmq.broker.request_modes import RequestModes
from gimbalmq.broker.tables_text import json_object
from gimbalmq.broker.timers import Timers
from gimbalmq.broker.topics import Topics
from gimbalmq.broker.versions import version_of
from gimbalmq.protocol import fastjson
from gimbalmq.protocol.bodies import DataVersion, GroupConfig
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.replication import (
    GetGroupTable,
    GetOffsetTable,
    GetTopicTable,
    GroupTableReply,
    OffsetTableReply,
    TimerCheckpointReply,
    TopicTableReply,
)
from gimbalmq.protocol.replication_bodies import TimerCheckpoint
from gimbalmq.store.message_store import MessageStore
from gimbalmq.transport.channel import Answer, Channel, Handlers
from gimbalmq.transport.turns import Turns

_PAGE_ROWS = 2000
"""Most rows of a page, as with Apache's splitMetadataSize."""


class TableHandlers:
    """Java: the part of AdminBrokerProcessor that SlaveSynchronize asks."""

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        delays: DelayLevels,
        timers: Timers,
        modes: RequestModes,
        turns: Turns,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._delays = delays
        self._timers = timers
        self._modes = modes
        self._turns = turns
        self._topic_names = _SortedNames()
        self._group_names = _SortedNames()

    def register(self, handlers: Handlers) -> None:
        handlers.add(RequestCode.GET_ALL_TOPIC_CONFIG, self.topics, large=True)
        handlers.add(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, self.groups, large=True)
        handlers.add(RequestCode.GET_ALL_CONSUMER_OFFSET, self.consumer_offsets, large=True)
        handlers.add(RequestCode.GET_ALL_DELAY_OFFSET, self.delay_offsets)
        handlers.add(RequestCode.GET_TIMER_CHECK_POINT, self.timer_checkpoint)
        handlers.add(RequestCode.GET_TIMER_METRICS, self.timer_metrics, large=True)
        handlers.add(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, self.request_modes, large=True)

    # -- topics and groups -------------------------------------------------------------

    async def topics(self, channel: Channel, request: RemotingCommand) -> Answer:
        header = GetTopicTable.from_ext(request.ext_fields)
        version, known = self._topics.version, version_of(header.data_version)
        reply = TopicTableReply(total_topic_num=None if header.topic_seq is None else len(self._topics))
        if header.changes_only:
            changes = None if known is None else self._topics.history.since(known, version)
            reply.changes_only = changes is not None
            if changes is not None:
                removed = [topic for topic in changes if topic not in self._topics]
                body = await self._topic_body(version, changes, removed)
                return request.reply(ext_fields=reply.to_ext(), body=body)
        names: Iterable[str] = [config.topic_name for config in self._topics.all()]
        if header.topic_seq is not None:
            start = header.topic_seq if known == version else 0
            names = _page(self._topic_names.of(version, names), start, header.max_topic_num)
        return request.reply(ext_fields=reply.to_ext(), body=await self._topic_body(version, names))

    async def _topic_body(
        self, version: DataVersion, names: Iterable[str], removed: list[str] | None = None
    ) -> bytes:
        find = self._topics.find
        rows = ((name, config) for name in names if (config := find(name)) is not None)
        table = await self._turns.run(json_object(rows))
        gone = b"" if removed is None else b',"removed":%b' % fastjson.dumps(removed)
        return b'{"dataVersion":%b,"topicConfigTable":%b%b}' % (version.dump(), table, gone)

    async def groups(self, channel: Channel, request: RemotingCommand) -> Answer:
        header = GetGroupTable.from_ext(request.ext_fields)
        version, known = self._groups.version, version_of(header.data_version)
        reply = GroupTableReply(total_group_num=None if header.group_seq is None else len(self._groups))
        if header.changes_only:
            changes = None if known is None else self._groups.history.since(known, version)
            reply.changes_only = changes is not None
            if changes is not None:
                removed = [group for group in changes if self._groups.known(group) is None]
                body = await self._group_body(version, changes, changes, removed)
                return request.reply(ext_fields=reply.to_ext(), body=body)
        names: Iterable[str] = list(self._groups.table().subscription_group_table)
        if header.group_seq is not None:
            start = header.group_seq if known == version else 0
            shut = names = _page(self._group_names.of(version, names), start, header.max_group_num)
        else:
            shut = list(self._groups.table().forbidden_table)
        return request.reply(ext_fields=reply.to_ext(), body=await self._group_body(version, names, shut))

    async def _group_body(
        self,
        version: DataVersion,
        names: Iterable[str],
        shut: Iterable[str],
        removed: list[str] | None = None,
    ) -> bytes:
        known, masks = self._groups.known, self._groups.forbidden
        shut_rows = ((name, dict(found)) for name in shut if (found := masks(name)))
        shut_table = await self._turns.run(json_object(shut_rows))
        rows = ((name, _settings(config)) for name in names if (config := known(name)) is not None)
        table = await self._turns.run(json_object(rows))
        gone = b"" if removed is None else b',"removed":%b' % fastjson.dumps(removed)
        return b'{"dataVersion":%b,"forbiddenTable":%b,"subscriptionGroupTable":%b%b}' % (
            version.dump(),
            shut_table,
            table,
            gone,
        )

    # -- progress ----------------------------------------------------------------------

    async def consumer_offsets(self, channel: Channel, request: RemotingCommand) -> Answer:
        header = GetOffsetTable.from_ext(request.ext_fields)
        known, changes = version_of(header.data_version), None
        if header.data_version is not None:
            changes = self._offsets.changes_since(known or DataVersion(counter=-1))
        version = self._offsets.version
        rows: Iterable[tuple[str, dict[str, int]]] = self._offsets.rows()
        if changes is not None:
            rows = ((f"{topic}@{group}", self._offsets.row(topic, group)) for topic, group in changes)
        table = await self._turns.run(json_object(rows))
        return request.reply(
            ext_fields=self._reply(header, changes is not None),
            body=b'{"dataVersion":%b,"offsetTable":%b}' % (version.dump(), table),
        )

    def delay_offsets(self, channel: Channel, request: RemotingCommand) -> Answer:
        header = GetOffsetTable.from_ext(request.ext_fields)
        body = fastjson.dumps(self._delays.document())
        return request.reply(ext_fields=self._reply(header, False), body=body)

    def _reply(self, header: GetOffsetTable, changes_only: bool) -> dict[str, str] | None:
        """For a slave of this library; to be called after all rows were read."""
        if header.data_version is None:
            return None
        return OffsetTableReply(
            changes_only=changes_only, log_offset=self._store.max_commitlog_offset
        ).to_ext()

    # -- timers and request modes ------------------------------------------------------

    def timer_checkpoint(self, channel: Channel, request: RemotingCommand) -> Answer:
        header = GetOffsetTable.from_ext(request.ext_fields)
        check = self._timers.progress()
        # A slave fills its wheel when it becomes the master, and tells how far its own master had come.
        offset = max(check.queue_offset, check.fill_until) if self._timers.is_resting else check.queue_offset
        checkpoint = TimerCheckpoint(
            last_read_time_ms=check.read_ms,
            last_timer_log_flush_pos=max(0, check.log_end),
            last_timer_queue_offset=offset,
            master_timer_queue_offset=offset,
            version=self._timers.version,
        )
        fields = None
        if header.data_version is not None:
            fields = TimerCheckpointReply(
                log_offset=self._store.max_commitlog_offset,
                log_begin=self._store.min_commitlog_offset,
                marks_from=check.marks_from,
                moved_below=check.moved_below,
                fill_until=check.fill_until,
                filled_from_ms=check.filled_from_ms,
            ).to_ext()
        return request.reply(ext_fields=fields, body=checkpoint.encode())

    async def timer_metrics(self, channel: Channel, request: RemotingCommand) -> Answer:
        names = [config.topic_name for config in self._topics.all()]
        counts = await self._turns.run(self._timers.waiting_by_topic(names))
        now = self._timers.version.timestamp
        table = {topic: {"count": count, "timeStamp": now} for topic, count in counts.items()}
        version = self._timers.version.dump()
        return request.reply(body=b'{"dataVersion":%b,"timingCount":%b}' % (version, fastjson.dumps(table)))

    async def request_modes(self, channel: Channel, request: RemotingCommand) -> Answer:
        rows = list(self._modes.table().message_request_mode_map.items())
        table = await self._turns.run(json_object(rows))
        return request.reply(body=b'{"messageRequestModeMap":%b}' % table)


class _SortedNames:
    """Names of a table in order, for its pages; sorted once for a version."""

    def __init__(self) -> None:
        self._version: DataVersion | None = None
        self._names: list[str] = []

    def of(self, version: DataVersion, names: Iterable[str]) -> list[str]:
        if self._version != version:
            self._version, self._names = version, sorted(names)
        return self._names


def _page(names: Sequence[str], start: int, most: int | None) -> Sequence[str]:
    """A page of a table.

    Apache's slaves stop one row before the end, so a page never leaves a single row to the next one.
    """
    start = max(0, start)
    end = start + max(1, min(_PAGE_ROWS if most is None else most, _PAGE_ROWS))
    return names[start : end + 1 if len(names) - end == 1 else end]


def _settings(group: GroupConfig) -> dict[str, object]:
    """Without what is None, as Java writes it."""
    return {name: value for name, value in msgspec.to_builtins(group).items() if value is not None}
