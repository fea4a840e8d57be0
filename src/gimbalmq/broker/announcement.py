"""Topics on their way to name servers: JSON rows, in parts that fit a frame, made once for all who hear the same."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from msgspec.structs import replace

from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.topics import Topics
from gimbalmq.protocol import fastjson
from gimbalmq.protocol.bodies import DataVersion, TopicConfig
from gimbalmq.protocol.headers.nameserver import PART_OF_A_TABLE

PART_BYTES = 8 * 1024 * 1024
"""Largest body of a registration; a name server takes frames of 16 MB."""
_ROWS_AT_ONCE = 250
_BYTES_AT_ONCE = 256 * 1024
_MAX_ROW_BYTES = 66 * 1024
"""Of a topic in a registration; a file that was edited may have more attributes than we take from anybody."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Announcement:
    """What name servers are told of the topics, as of one version of their table."""

    version: DataVersion
    topics: list[TopicConfig]
    whole: bool
    permission: int
    """Of the broker."""
    part_bytes: int
    _parts: list[bytes] | None = None
    _encoding: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def parts(self) -> list[bytes]:
        """Rows of the table in each part; who asks while somebody else makes them waits for those."""
        async with self._encoding:
            if self._parts is None:
                self._parts = await self._encoded()
            return self._parts

    async def _encoded(self) -> list[bytes]:
        """Everybody has a turn in between."""
        parts: list[bytes] = []
        rows: list[bytes] = []
        size = stepped = 0
        for number, topic in enumerate(self.topics):
            text = _row(self._masked(topic))
            if rows and size + len(text) > self.part_bytes:
                parts.append(b",".join(rows))
                rows, size = [], 0
            rows.append(text)
            size += len(text) + 1
            stepped += len(text)
            if number % _ROWS_AT_ONCE == _ROWS_AT_ONCE - 1 or stepped >= _BYTES_AT_ONCE:
                stepped = 0
                await asyncio.sleep(0)
        return [*parts, b",".join(rows)]

    def _masked(self, topic: TopicConfig) -> TopicConfig:
        """A broker without a permission has no topic with it."""
        return topic if self.permission & 6 == 6 else replace(topic, perm=topic.perm & self.permission)


class Announcements:
    """Those on their way now. One that is over is forgotten: a large table is not kept twice."""

    def __init__(self, topics: Topics, live: LiveConfig) -> None:
        self.part_bytes = PART_BYTES
        self._topics = topics
        self._live = live
        self._under_way: WeakValueDictionary[Hashable, Announcement] = WeakValueDictionary()

    def current(self, names: tuple[str, ...] | None) -> Announcement:
        """Of these topics as they are now, or of all."""
        topics, permission = self._topics, self._live.now.broker_permission
        # A table that was replaced by a master's may have a version that it had before.
        same = (topics.version, topics.generation, permission, self.part_bytes, names)
        found = self._under_way.get(same)
        if found is None:
            # A topic that is gone is left out: to a name server its row would say that it is there.
            chosen = topics.all() if names is None else [row for name in names if (row := topics.find(name))]
            found = Announcement(topics.version, chosen, names is None, permission, self.part_bytes)
            self._under_way[same] = found
        return found


def _row(topic: TopicConfig) -> bytes:
    text = fastjson.dumps({topic.topic_name: topic})[1:-1]
    if len(text) <= _MAX_ROW_BYTES:
        return text
    # No name server needs them.
    return fastjson.dumps({topic.topic_name: replace(topic, attributes={})})[1:-1]


def body(version: DataVersion, rows: bytes, broker_name: str, *, part: bool) -> bytes:
    """The JSON of a registration (Java: RegisterBrokerBody)."""
    mappings = {PART_OF_A_TABLE: {"bname": broker_name, "topic": PART_OF_A_TABLE}} if part else {}
    return b"".join(
        (
            b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":',
            version.dump(),
            b',"topicConfigTable":{',
            rows,
            b'},"topicQueueMappingInfoMap":',
            fastjson.dumps(mappings),
            b"}}",
        )
    )
