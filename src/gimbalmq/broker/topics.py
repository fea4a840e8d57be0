"""The broker's topics: a table in memory, and config/topics.json."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec.structs import replace

from gimbalmq._clock import Clock
from gimbalmq.broker.config import BrokerConfig, LiveConfig
from gimbalmq.broker.json_file import Document, Saving, TableThread, rows_of
from gimbalmq.broker.values import check_topic, mend_topic
from gimbalmq.broker.versions import History, next_version
from gimbalmq.errors import InvalidParameterError, TableFullError
from gimbalmq.model import topics as names
from gimbalmq.model.flags import PERM_INHERIT, PERM_READ, PERM_WRITE
from gimbalmq.protocol.bodies import DataVersion, TopicConfig, TopicTable

UNIT_FLAG = 1
UNIT_SUB_FLAG = 2
_READ_WRITE = PERM_READ | PERM_WRITE


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
        return {"dataVersion": self.version, "topicConfigTable": rows_of(self._table)}

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
