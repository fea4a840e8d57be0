"""Settings of consumer groups: a table in memory, and config/subscriptionGroup.json."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gimbalmq._clock import Clock
from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.json_file import Document, Saving, TableThread, rows_of
from gimbalmq.broker.values import mend_group
from gimbalmq.broker.versions import History, next_version
from gimbalmq.errors import SubscriptionGroupNotExistError, TableFullError
from gimbalmq.model import topics as names
from gimbalmq.protocol.bodies import DataVersion, GroupConfig, GroupTable
from gimbalmq.protocol.fastjson import Rows


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
            "subscriptionGroupTable": rows_of(self._table),
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
