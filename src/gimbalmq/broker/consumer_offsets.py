"""How far groups have consumed: a table in memory, and config/consumerOffset.json."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import Any

from gimbalmq._clock import SYSTEM_CLOCK, Clock
from gimbalmq._steps import Steps
from gimbalmq.broker.config import BrokerConfig, LiveConfig
from gimbalmq.broker.json_file import Document, Saving, TableThread
from gimbalmq.broker.pairs import Pairs, bytes_of
from gimbalmq.broker.versions import History, next_version
from gimbalmq.errors import TableFullError
from gimbalmq.model import topics as names
from gimbalmq.protocol.bodies import DataVersion
from gimbalmq.protocol.fastjson import Rows

log = logging.getLogger(__name__)

MAX_QUEUE_OFFSET = (1 << 63) - 1
_MOVES_LOGGED = 20
_PAIRS_AT_ONCE = 256
_NONE: dict[int, int] = {}
_UNASKED_SAVES = 20
"""After so many saves without a slave's question nobody notes which offsets change."""


def _read_offsets(document: Any) -> tuple[dict[tuple[str, str], dict[int, int]], DataVersion]:
    table = {}
    for key, offsets in (document.get("offsetTable") or {}).items():
        topic, _, group = key.partition("@")
        table[topic, group] = {int(queue): int(offset) for queue, offset in offsets.items()}
    return table, DataVersion.of(document.get("dataVersion") or {})


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
