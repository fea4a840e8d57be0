"""Topics, consumer groups and consumed offsets: tables in memory, JSON files under config/."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Set
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from gimbalmq._clock import SYSTEM_CLOCK, Clock
from gimbalmq._steps import Steps
from gimbalmq.broker.config import BrokerConfig, LiveConfig
from gimbalmq.broker.json_file import Document, Saving, TableThread
from gimbalmq.broker.pairs import Pairs, bytes_of
from gimbalmq.broker.values import check_topic, mend_group, mend_topic
from gimbalmq.broker.versions import History, next_version
from gimbalmq.errors import InvalidParameterError, SubscriptionGroupNotExistError, TableFullError
from gimbalmq.model import topics as names
from gimbalmq.model.flags import PERM_INHERIT, PERM_READ, PERM_WRITE
from gimbalmq.protocol.bodies import DataVersion, GroupConfig, GroupTable, TopicConfig, TopicTable
from gimbalmq.protocol.fastjson import Rows

T = TypeVar("T")

log = logging.getLogger(__name__)

UNIT_FLAG = 1
UNIT_SUB_FLAG = 2
_READ_WRITE = PERM_READ | PERM_WRITE
MAX_QUEUE_OFFSET = (1 << 63) - 1
_MOVES_LOGGED = 20
_PAIRS_AT_ONCE = 256
_NONE: dict[int, int] = {}


def _view(table: dict[str, T]) -> Rows:
    """The table as it is now; two lists cost less than a pair for each row."""
    return Rows(zip(list(table), list(table.values()), strict=True))


class Topics:
    """The broker's topics (Java: TopicConfigManager).

    A configuration in the table is never changed, only replaced: the thread that writes the file
    and registrations on their way read it meanwhile.

    Attributes:
        generation: grows with every change, so that caches of others know when to forget.
        history: which topics changed with the last versions.
        is_copy: the table is a master's, and only ``replace`` and ``follow`` change it. What clients would have created
            here they have created there, too.
    """

    def __init__(
        self, folder: Path, live: LiveConfig, clock: Clock, thread: TableThread | None = None
    ) -> None:
        self._live = live
        self._clock = clock
        self.saving = Saving(folder / "topics.json", self._document, thread)
        self._table: dict[str, TopicConfig] = {}
        self.version = DataVersion(timestamp=clock.wall_ms())
        self.generation = 0
        self.history: History[str] = History()
        self.is_copy = False
        self.changed: Callable[[list[TopicConfig]], None] | None = None
        """Told of every change, so that the name servers learn of it at once."""

    def load(self) -> None:
        loaded = self.saving.file.load(TopicTable.of)
        if loaded is not None:
            self._table = loaded.topic_config_table
            for name, config in self._table.items():
                mend_topic(name, config)
            self.version = loaded.data_version
        for config in _system_topics(self._live.now):
            self._table.setdefault(config.topic_name, config)

    def _document(self) -> Document:
        return {"dataVersion": self.version, "topicConfigTable": _view(self._table)}

    def table(self) -> TopicTable:
        return TopicTable(data_version=self.version, topic_config_table=self._table)

    def __contains__(self, topic: str) -> bool:
        return topic in self._table

    def all(self) -> list[TopicConfig]:
        return list(self._table.values())

    def __len__(self) -> int:
        return len(self._table)

    def find(self, topic: str) -> TopicConfig | None:
        return self._table.get(topic)

    def put(self, *configs: TopicConfig) -> None:
        """Creates or changes topics; the files and the name servers follow by themselves.

        Raises:
            TableFullError: there are maxTopicNums already; then none of these was taken.
        """
        new = {config.topic_name for config in configs if config.topic_name not in self._table}
        limit = self._live.now.max_topic_nums
        if new and len(self._table) + len(new) > limit:
            raise TableFullError(
                f"topic {min(new)} is not created: this broker has {len(self._table)} topics and maxTopicNums "
                f"is {limit}; delete topics that nobody needs or raise it"
            )
        self._take(configs)

    def adopt(self, config: TopicConfig) -> None:
        """Takes a topic of which there are messages, however many there are."""
        self._take([config])

    def _take(self, configs: Iterable[TopicConfig]) -> None:
        for config in configs:
            self._table[config.topic_name] = config
        self._touch(list(configs))

    def remove(self, topic: str) -> bool:
        if self._table.pop(topic, None) is None:
            return False
        self._touch([], removed=[topic])
        return True

    def replace(self, table: dict[str, TopicConfig], version: DataVersion) -> list[str]:
        """Takes another broker's table in the place of this one, with its version; the topics that are gone by that."""
        for config in _system_topics(self._live.now):
            table.setdefault(config.topic_name, config)
        gone = [topic for topic in self._table if topic not in table]
        before, self._table = self._table, table
        self.history.clear()
        self._became(version, [new for name, new in table.items() if before.get(name) != new], bool(gone))
        return gone

    def follow(self, changed: dict[str, TopicConfig], removed: Iterable[str], version: DataVersion) -> None:
        """Takes the changes that led another broker's table from this one's version to the given one."""
        gone = [topic for topic in removed if self._table.pop(topic, None) is not None]
        self._table.update(changed)
        self.history.note(self.version, [*changed, *gone])
        self._became(version, list(changed.values()), bool(gone))

    def _became(self, version: DataVersion, changed: list[TopicConfig], some_gone: bool) -> None:
        self.version = version
        self.generation += 1
        self.saving.soon()
        if self.changed is not None:
            if changed:
                self.changed(changed)
            if some_gone:
                self.changed([])

    def ensure(self, topic: str, queue_count: int, perm: int = _READ_WRITE, sys_flag: int = 0) -> TopicConfig:
        """The topic as it is, or a new one of this shape.

        Raises:
            InvalidParameterError: no topic can have that name, or that many queues; nothing has changed then.
            TableFullError: there are maxTopicNums already.
        """
        problem = names.topic_problem(topic)
        if problem is not None:
            # Also if it is known: tables of other brokers have names that no folder can have.
            raise InvalidParameterError(problem)
        found = self._table.get(topic)
        if found is None:
            found = TopicConfig(
                topic_name=topic,
                read_queue_nums=queue_count,
                write_queue_nums=queue_count,
                perm=perm,
                topic_sys_flag=sys_flag,
            )
            check_topic(found)
            if not self.is_copy:
                self.put(found)
        return found

    def create_for_send(
        self, topic: str, template_name: str, queue_count: int, sys_flag: int = 0
    ) -> TopicConfig | None:
        """Auto-creation: by the template the sender names, if that one lets others inherit."""
        template = self._table.get(template_name)
        if template is None or not template.perm & PERM_INHERIT:
            return None
        if template_name == names.AUTO_CREATE_TOPIC and not self._live.now.auto_create_topic_enable:
            return None
        count = max(1, min(queue_count, template.write_queue_nums))
        return self.ensure(topic, count, template.perm & ~PERM_INHERIT, sys_flag)

    def mark_ordered(self, ordered: Iterable[str]) -> None:
        """Topics the name servers' order configuration lists."""
        if self.is_copy:
            return  # its master is told the same
        changed = []
        for topic in ordered:
            config = self._table.get(topic)
            if config is not None and not config.order:
                changed.append(replace(config, order=True))
        if changed:
            self._take(changed)

    def new_term(self, state_version: int) -> None:
        """The broker was made master by a controller: from here on its table is newer than that of any before it."""
        before, self.version = self.version, next_version(self.version, self._clock, state_version)
        self.history.note(before, ())
        self.saving.soon()

    def _touch(self, configs: list[TopicConfig], removed: Iterable[str] = ()) -> None:
        before, self.version = self.version, next_version(self.version, self._clock)
        self.history.note(before, [*(config.topic_name for config in configs), *removed])
        self.generation += 1
        self.saving.soon()
        if self.changed is not None:
            self.changed(configs)


def _system_topics(config: BrokerConfig) -> list[TopicConfig]:
    def topic(name: str, queues: int, perm: int = _READ_WRITE) -> TopicConfig:
        return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)

    inherit = _READ_WRITE | PERM_INHERIT
    cluster, broker = config.broker_cluster_name, config.broker_name
    found = [
        topic(names.SELF_TEST_TOPIC, 1),
        topic(names.OFFSET_MOVED_TOPIC, 1),
        topic(names.BENCHMARK_TOPIC, 1024),
        topic(cluster, 16, inherit),
        topic(broker, 1, inherit),
        topic(names.SCHEDULE_TOPIC, len(config.message_delay_level.split())),
        topic(f"{cluster}_REPLY_TOPIC", 1),
        topic(names.HALF_TOPIC, 1),
        topic(names.OP_HALF_TOPIC, 1),
        topic(names.TIMER_TOPIC, 1),
        topic(names.TRANS_CHECK_MAX_TOPIC, 1),
    ]
    if config.auto_create_topic_enable:
        found.append(topic(names.AUTO_CREATE_TOPIC, config.default_topic_queue_nums, inherit))
    if config.enable_slave_acting_master:
        found.append(topic(names.SYNC_MEMBERS_PREFIX + broker, 1, PERM_INHERIT))
    if config.trace_topic_enable:
        found.append(topic(names.TRACE_TOPIC, 1))
    return found


def is_reserved_topic(topic: str, config: BrokerConfig) -> bool:
    return (
        names.is_system_topic(topic)
        or topic in (config.broker_cluster_name, config.broker_name)
        or topic == f"{config.broker_cluster_name}_REPLY_TOPIC"
    )


class Groups:
    """Settings of consumer groups (Java: SubscriptionGroupManager).

    As in ``Topics``, settings in the table are replaced, never changed; ``history`` and ``is_copy`` are as there.
    """

    def __init__(
        self, folder: Path, live: LiveConfig, clock: Clock, thread: TableThread | None = None
    ) -> None:
        self._live = live
        self._clock = clock
        self.saving = Saving(folder / "subscriptionGroup.json", self._document, thread)
        self._table: dict[str, GroupConfig] = {}
        self._loaded: frozenset[str] = frozenset()
        self._forbidden: dict[str, dict[str, int]] = {}
        self.version = DataVersion(timestamp=clock.wall_ms())
        self.history: History[str] = History()
        self.is_copy = False

    def load(self) -> None:
        loaded = self.saving.file.load(GroupTable.of)
        if loaded is not None:
            self._table = loaded.subscription_group_table
            self._loaded = frozenset(self._table)
            for name, settings in self._table.items():
                mend_group(name, settings)
            self._forbidden = loaded.forbidden_table
            self.version = loaded.data_version
        for group in names.BUILT_IN_GROUPS:
            self._table.setdefault(group, GroupConfig(group_name=group))

    def _document(self) -> Document:
        return {
            "dataVersion": self.version,
            "forbiddenTable": Rows([(group, dict(masks)) for group, masks in self._forbidden.items()]),
            "subscriptionGroupTable": _view(self._table),
        }

    def table(self) -> GroupTable:
        return GroupTable(
            data_version=self.version,
            subscription_group_table=self._table,
            forbidden_table=self._forbidden,
        )

    def find(self, group: str) -> GroupConfig | None:
        """A group's settings; an unknown group gets the defaults if that is allowed.

        Raises:
            TableFullError: it would be, but there are maxSubscriptionGroupNums already.
        """
        found = self._table.get(group)
        if found is None and names.group_problem(group) is None:
            allowed = self._live.now.auto_create_subscription_group
            if allowed or group.startswith(names.SYSTEM_GROUP_PREFIX):
                found = GroupConfig(group_name=group)
                if not self.is_copy:
                    self.put(found)
        return found

    def require(self, group: str) -> GroupConfig:
        found = self.find(group)
        if found is None:
            raise SubscriptionGroupNotExistError(
                names.group_problem(group)
                or f"subscription group [{group}] does not exist; create it, "
                "or set autoCreateSubscriptionGroup=true"
            )
        return found

    def __len__(self) -> int:
        return len(self._table)

    def known(self, group: str) -> GroupConfig | None:
        """As ``find``, but never creates."""
        return self._table.get(group)

    def was_there_before(self, group: str) -> bool:
        """Whether the group is older than this run of the broker."""
        return group in self._loaded

    def put(self, *configs: GroupConfig) -> None:
        """Creates or changes groups.

        Raises:
            TableFullError: there are maxSubscriptionGroupNums already; then none of these was taken.
        """
        new = {config.group_name for config in configs if config.group_name not in self._table}
        limit = self._live.now.max_subscription_group_nums
        if new and len(self._table) + len(new) > limit:
            raise TableFullError(
                f"group {min(new)} is not created: this broker has {len(self._table)} groups and "
                f"maxSubscriptionGroupNums is {limit}; delete groups that nobody needs or raise it"
            )
        for config in configs:
            self._table[config.group_name] = config
        self._touch(*(config.group_name for config in configs))

    def remove(self, group: str) -> bool:
        removed = self._table.pop(group, None) is not None
        self._forbidden.pop(group, None)
        if removed:
            self._touch(group)
        return removed

    def forbidden(self, group: str) -> dict[str, int] | None:
        """The topics that the group may not read; None if there is none."""
        return self._forbidden.get(group)

    def replace(
        self, table: dict[str, GroupConfig], forbidden: dict[str, dict[str, int]], version: DataVersion
    ) -> None:
        """Takes another broker's table in the place of this one, with its version."""
        for group in names.BUILT_IN_GROUPS:
            table.setdefault(group, GroupConfig(group_name=group))
        self._table, self._forbidden = table, forbidden
        self.history.clear()
        self.version = version
        self.saving.soon()

    def follow(
        self,
        changed: dict[str, GroupConfig],
        forbidden: dict[str, dict[str, int]],
        removed: Iterable[str],
        version: DataVersion,
    ) -> None:
        """Takes the changes that led another broker's table from this one's version to the given one."""
        gone = list(removed)
        for group in (*changed, *gone):
            self._forbidden.pop(group, None)
        for group in gone:
            self._table.pop(group, None)
        self._table.update(changed)
        self._forbidden.update(forbidden)
        self.history.note(self.version, [*changed, *gone])
        self.version = version
        self.saving.soon()

    def set_readable(self, group: str, topic: str, readable: bool) -> None:
        """Opens or shuts a topic for one group (bit 0 of its forbidden mask)."""
        if readable:
            masks = self._forbidden.get(group, {})
            masks.pop(topic, None)
            if not masks:
                self._forbidden.pop(group, None)
        else:
            self._forbidden.setdefault(group, {})[topic] = 1
        self._touch(group)

    def may_read(self, group: str, topic: str) -> bool:
        return not self._forbidden.get(group, {}).get(topic, 0) & 1

    def new_term(self, state_version: int) -> None:
        """As of ``Topics``."""
        before, self.version = self.version, next_version(self.version, self._clock, state_version)
        self.history.note(before, ())
        self.saving.soon()

    def _touch(self, *groups: str) -> None:
        before, self.version = self.version, next_version(self.version, self._clock)
        self.history.note(before, groups)
        self.saving.soon()


def _read_offsets(document: Any) -> tuple[dict[tuple[str, str], dict[int, int]], DataVersion]:
    table = {}
    for key, offsets in (document.get("offsetTable") or {}).items():
        topic, _, group = key.partition("@")
        table[topic, group] = {int(queue): int(offset) for queue, offset in offsets.items()}
    return table, DataVersion.of(document.get("dataVersion") or {})


_UNASKED_SAVES = 20
"""After so many saves without a slave's question nobody notes which offsets change."""


class ConsumerOffsets:
    """How far each group has consumed each queue (Java: ConsumerOffsetManager).

    Last writer wins. A reset leaves a mark: until the queue's next pull, commits are
    accepted but change nothing, and that pull is sent to the reset place.

    The version grows when somebody asks for it and offsets have changed since, not with each of them.
    """

    def __init__(
        self,
        folder: Path,
        thread: TableThread | None = None,
        live: LiveConfig | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._live = live or LiveConfig(BrokerConfig())
        self._clock = clock
        self._version = DataVersion(timestamp=clock.wall_ms())
        self._has_moved = False
        """Something has changed since the version."""
        self._moved: set[tuple[str, str]] | None = None
        """What has; None if no slave follows these changes."""
        self._history: History[tuple[str, str]] = History(200_000)
        self._unasked = 0
        self._saving = Saving(folder / "consumerOffset.json", self._rows, thread, delay=0)
        self._committed = Pairs()
        self._pulled = Pairs()
        self._resets = Pairs()
        self._dirty = False
        self._is_full = False

    def load(self) -> None:
        loaded = self._saving.file.load(_read_offsets)
        if loaded is None:
            return
        table, self._version = loaded
        for (topic, group), offsets in table.items():
            self._committed.put_all(topic, group, offsets)

    @property
    def version(self) -> DataVersion:
        """Of the table as it is now."""
        if self._has_moved:
            self._has_moved = False
            before, self._version = self._version, next_version(self._version, self._clock)
            if self._moved is not None:
                self._history.note(before, self._moved)
                self._moved = set()
        return self._version

    def new_term(self, state_version: int) -> None:
        """As of ``Topics``."""
        before = self.version
        self._version = next_version(before, self._clock, state_version)
        self._history.note(before, ())
        self._dirty = True

    def changes_since(self, version: DataVersion) -> Set[tuple[str, str]] | None:
        """Topics and groups whose offsets have changed up to the present version; None if nobody has noted which.

        From now on that is noted, as long as somebody asks now and then.
        """
        now = self.version
        self._unasked = 0
        if self._moved is None:
            self._moved = set()
        return self._history.since(version, now)

    def row(self, topic: str, group: str) -> dict[str, int]:
        """Offsets by queue, as they are written; empty if there are none."""
        offsets = self._committed.table.get((topic, group), _NONE)
        return {str(queue): offset for queue, offset in sorted(offsets.items())}

    def replace(self, table: Pairs, version: DataVersion) -> None:
        """Takes another broker's table in the place of this one, with its version. Marks of resets go with it."""
        self._committed = table
        self._resets = Pairs()
        self._history.clear()
        self._became(version)

    def follow(self, rows: dict[tuple[str, str], dict[int, int]], version: DataVersion) -> None:
        """Takes the rows that differ between another broker's version and this one's; one without offsets is gone."""
        for (topic, group), offsets in rows.items():
            if offsets:
                self._committed.put_all(topic, group, offsets)
            else:
                self._committed.drop(topic, group)
        self._history.note(self.version, rows)
        self._became(version)

    def take(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Notes an offset of the master's table that had to wait; that makes this table no other one."""
        self._committed.put(topic, group, queue_id, offset)
        self._dirty = True

    def _became(self, version: DataVersion) -> None:
        self._version = version
        self._has_moved = False
        if self._moved is not None:
            self._moved = set()
        self._dirty = True

    @property
    def size(self) -> int:
        """About how many bytes of memory all offsets and marks take."""
        return self._committed.size + self._pulled.size + self._resets.size

    def save(self) -> None:
        """What was committed so far will be in the file shortly."""
        if self._moved is not None:
            self._unasked += 1
            if self._unasked > _UNASKED_SAVES:
                self._moved = None
                self._history.clear()
        if self._dirty:
            self._dirty = False
            self._saving.soon()

    async def finish(self) -> None:
        """Saves for the last time; raises StoreError."""
        self.save()
        await self._saving.finish()

    async def abandon(self) -> None:
        await self._saving.abandon()

    def _rows(self) -> Document:
        # The thread copies each inner table, in one step of the interpreter, when it comes to it.
        table = self._committed.table
        tables = zip(list(table), list(table.values()), strict=True)
        return {
            "dataVersion": self.version,
            "offsetTable": Rows(
                (f"{topic}@{group}", dict(sorted(offsets.copy().items())))
                for (topic, group), offsets in tables
            ),
        }

    def document(self) -> dict[str, object]:
        return {"offsetTable": dict(self.rows())}

    def rows(self) -> Iterator[tuple[str, dict[str, int]]]:
        """The table as it is written; it may change between two rows."""
        for topic, group, offsets in self._committed.rows():
            yield f"{topic}@{group}", {str(queue): offset for queue, offset in sorted(offsets.items())}

    def clamp(self, newest: Callable[[str, int], int]) -> Steps[None]:
        """Moves offsets that are ahead of their queues back, in steps, so that nothing is skipped.

        After a loss of power the log may lack its last messages, while the offsets of those who had consumed them are
        on disk: new messages get the same offsets again.

        Args:
            newest: the offset behind a queue's last message, by topic and queue id.
        """
        moved = 0
        for number, ((topic, group), offsets) in enumerate(list(self._committed.table.items()), 1):
            if number % _PAIRS_AT_ONCE == 0:
                yield
            for queue_id, offset in offsets.items():
                end = newest(topic, queue_id)
                if offset <= end:
                    continue
                offsets[queue_id] = end
                self._note((topic, group))
                moved += 1
                if moved <= _MOVES_LOGGED:
                    log.warning(
                        "group %s had consumed queue %d of %s up to %d, which now ends at %d; moved back to there",
                        group,
                        queue_id,
                        topic,
                        offset,
                        end,
                    )
        if moved > _MOVES_LOGGED:
            log.warning("offsets of %d queues in all were ahead of the log and have been moved back", moved)

    def get(self, group: str, topic: str, queue_id: int) -> int:
        """The stored offset, -1 if there is none."""
        return self._committed.table.get((topic, group), _NONE).get(queue_id, -1)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Takes an offset. One that no queue can have changes nothing, nor does any until a reset has been heard of.

        Raises:
            TableFullError: it would be the first of its queue, and there are too many.
        """
        if not 0 <= offset <= MAX_QUEUE_OFFSET:
            return
        if self._resets.size and queue_id in self._resets.table.get((topic, group), _NONE):
            return
        pair = (topic, group)
        offsets = self._committed.table.get(pair)
        if offsets is not None and queue_id in offsets:
            offsets[queue_id] = offset
        else:
            self._check_room(topic, group, self._committed.needs(topic, group, queue_id))
            self._committed.put(topic, group, queue_id, offset)
        self._note(pair)

    def _note(self, pair: tuple[str, str]) -> None:
        self._dirty = self._has_moved = True
        if self._moved is not None:
            self._moved.add(pair)

    def _check_room(self, topic: str, group: str, needed: int) -> None:
        if group in names.BUILT_IN_GROUPS and names.is_system_topic(topic):
            return  # few, and the broker's own
        config = self._live.now
        most = config.max_consumer_offset_topics_per_group
        if (topic, group) not in self._committed.table and self._committed.topic_count(group) >= most:
            raise TableFullError(
                f"no offset of group {group} for topic {topic} is kept: the group has offsets for {most} topics "
                "already (maxConsumerOffsetTopicsPerGroup); use several groups or raise it"
            )
        if needed and self.size + needed > config.max_consumer_offset_bytes:
            if not self._is_full:  # clients mostly commit without waiting for an answer
                self._is_full = True
                log.warning("consumer offsets take all of maxConsumerOffsetBytes; new ones are refused")
            raise TableFullError(
                f"no offset of group {group} for topic {topic} is kept: all offsets together take {self.size} of "
                f"{config.max_consumer_offset_bytes} bytes (maxConsumerOffsetBytes); delete groups that nobody needs, "
                "with their offsets, or raise it"
            )
        self._is_full = False

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Moves a group, and leaves a mark; raises TableFullError as ``commit`` does."""
        needed = self._committed.needs(topic, group, queue_id) + self._resets.needs(topic, group, queue_id)
        self._check_room(topic, group, needed)
        self._resets.take(topic, group, queue_id)
        self.commit(group, topic, queue_id, offset)
        self._resets.put(topic, group, queue_id, offset)

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The place a pull must go to instead, once."""
        return self._resets.take(topic, group, queue_id) if self._resets.size else None

    def note_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """How far a group has asked, which is ahead of what it has committed.

        Only for reports, so it leaves half of the room to what is committed.
        """
        offsets = self._pulled.table.get((topic, group))
        if offsets is not None and queue_id in offsets:
            offsets[queue_id] = offset
        elif self.size < self._live.now.max_consumer_offset_bytes // 2:
            self._pulled.put(topic, group, queue_id, offset)

    def pulled(self, group: str, topic: str, queue_id: int) -> int:
        return self._pulled.table.get((topic, group), _NONE).get(queue_id, -1)

    def topics_of(self, group: str) -> set[str]:
        return self._committed.topics_of(group)

    def groups_of(self, topic: str) -> set[str]:
        return self._committed.groups_of(topic)

    def all_groups(self) -> set[str]:
        return self._committed.all_groups()

    def queues(self, group: str, topic: str) -> dict[int, int]:
        return dict(self._committed.table.get((topic, group), _NONE))

    def clone(self, source: str, target: str, topic: str) -> None:
        """Gives a group the offsets of another; raises TableFullError as ``commit`` does."""
        offsets = self._committed.table.get((topic, source))
        if offsets is None:
            return
        self._check_room(topic, target, bytes_of(offsets))
        self._committed.put_all(topic, target, dict(offsets))
        self._note((topic, target))

    def forget_group(self, group: str) -> None:
        for topic in self._committed.topics_of(group):
            self._note((topic, group))
        self._committed.forget_group(group)
        self._pulled.forget_group(group)
        self._resets.forget_group(group)

    def forget_topic(self, topic: str) -> None:
        for group in self._committed.groups_of(topic):
            self._note((topic, group))
        self._committed.forget_topic(topic)
        self._pulled.forget_topic(topic)
        self._resets.forget_topic(topic)
