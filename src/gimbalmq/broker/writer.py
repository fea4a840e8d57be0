"""Storing single messages: where each really goes, its tags code, who is told.

A message with a delay does not go to its topic yet: its topic and queue move into properties
and it is stored under the schedule topic (levels) or the timer topic (any time). Every message that may ask for more
than being stored passes through here: a send that goes the plain way, a retry, a delivery after a delay, a committed
transaction. Ordinary messages do not: handlers/send_fast, and handlers/send for large batches, fill groups of the
store themselves and come here only to tell those who wait (``arrived``).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gimbalmq._clock import Clock
from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.flush import GroupCommit
from gimbalmq.broker.longpoll import LongPoll
from gimbalmq.broker.stats import Stats
from gimbalmq.errors import MessageIllegalError
from gimbalmq.model import properties as prop
from gimbalmq.model import topics
from gimbalmq.model.flags import (
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NOT,
)
from gimbalmq.model.javahash import tag_hash
from gimbalmq.model.record import MAX_PROPERTIES
from gimbalmq.store.config import parse_delay_levels
from gimbalmq.store.consumequeue import QueueLog
from gimbalmq.store.message_store import MessageStore

_HEAD_ROOM = 512
"""More than a record takes beside body and properties, and the blank behind the last one of a file."""
_ROOM_TO_WAIT = 128
"""A delayed message may have to be stored again while it waits, with some more properties."""
_DELAYS = frozenset({topics.SCHEDULE_TOPIC, topics.TIMER_TOPIC})
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
"""What fits 64 bits whatever its digits are."""


@dataclass(slots=True)
class Draft:
    """A message on its way into the store."""

    topic: str
    queue_id: int
    body: bytes
    properties: dict[str, str]
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    reconsume_times: int = 0
    prepared_offset: int = 0


class Placed(NamedTuple):
    """Where it came to lie."""

    commitlog_offset: int
    queue_offset: int
    end: int
    """Commit-log offset from which on it is durable."""


class Writer:
    """Stores drafts and tells those who wait.

    Args:
        commit: with SYNC_FLUSH those who wait are told when the disk has it, because no reader gets it earlier.

    Attributes:
        hold: asked before those who wait are told of queues, which have grown up to an offset of the log. If it says
            True, it tells them itself when readers see that.
    """

    def __init__(
        self,
        store: MessageStore,
        live: LiveConfig,
        long_poll: LongPoll,
        stats: Stats,
        clock: Clock,
        commit: GroupCommit | None = None,
    ) -> None:
        self._store = store
        self._commit = commit if live.now.sync_flush else None
        self._live = live
        self._long_poll = long_poll
        self._stats = stats
        self._clock = clock
        self.hold: Callable[[Sequence[QueueLog], int], bool] | None = None
        self.delay_levels = parse_delay_levels(live.now.message_delay_level)
        self._max_level = max(self.delay_levels, default=0)

    def put(self, *drafts: Draft, making_room: bool = False) -> list[Placed]:
        """Stores all of them or, on an error, none.

        Args:
            making_room: old files can go when this is stored; see ``MessageStore.group``.

        Raises:
            MessageIllegalError: properties are too long, or a delay is wrong.
            StoreError: the disk refused.
        """
        encoded: list[bytes] = []
        for draft in drafts:
            self._redirect(draft)
            text = prop.dump(draft.properties).encode()
            limit = MAX_PROPERTIES
            if draft.topic in _DELAYS and draft.prepared_offset == 0:
                limit -= _ROOM_TO_WAIT
            if len(text) > limit:
                raise MessageIllegalError(
                    f"the message's properties are {len(text)} bytes; at most {limit} fit"
                )
            size, room = len(draft.body) + len(text) + _HEAD_ROOM, self._store.config.commitlog_file_bytes
            if size > room:
                raise MessageIllegalError(
                    f"the message takes {size} bytes; a commit-log file has {room}: "
                    "send smaller ones, or start on an empty folder with a larger mappedFileSizeCommitLog"
                )
            encoded.append(text)
        places: list[tuple[int, int]] = []
        group = self._store.group(making_room=making_room)
        try:
            for draft, text in zip(drafts, encoded, strict=True):
                places.append(
                    group.add(
                        self._store.queue(draft.topic, draft.queue_id),
                        draft.body,
                        text,
                        self._tags_code(draft, group.store_timestamp),
                        draft.flag,
                        draft.sys_flag,
                        draft.born_timestamp,
                        draft.born_host,
                        draft.reconsume_times,
                        draft.prepared_offset,
                    )
                )
        except struct.error as error:
            group.abort()
            raise MessageIllegalError(
                "a number of the message does not fit a record: flag, sysFlag and reconsumeTimes "
                f"have 32 bits, bornTimestamp 64 ({error})"
            ) from error
        except BaseException:
            group.abort()
            raise
        touched = group.commit()
        end = self._store.max_commitlog_offset
        for draft in drafts:
            self._stats.put(draft.topic, 1, len(draft.body))
        self.arrived(touched)
        return [Placed(offset, queue_offset, end) for offset, queue_offset in places]

    def arrived(self, queues: Sequence[QueueLog]) -> None:
        """Queues that have grown, by whichever way."""
        end = self._store.max_commitlog_offset
        if self._commit is None:
            self._show(queues, end)
            return
        self._commit.wait(end).then(lambda _: self._show(queues, end))

    def _show(self, queues: Sequence[QueueLog], end: int) -> None:
        if self.hold is None or not self.hold(queues, end):
            self._long_poll.arrived(queues)

    def _redirect(self, draft: Draft) -> None:
        if draft.sys_flag & TRANSACTION_MASK not in (TRANSACTION_NOT, TRANSACTION_COMMIT):
            return
        properties = draft.properties
        if prop.DELAY in properties:
            level = _number(prop.DELAY, properties[prop.DELAY])
            if level > 0 and self._max_level > 0:
                level = min(level, self._max_level)
                properties[prop.DELAY] = str(level)
                self._send_elsewhere(draft, topics.SCHEDULE_TOPIC, level - 1)
            return
        deliver_ms = self._timer(properties)
        if deliver_ms is not None and draft.topic != topics.TIMER_TOPIC:
            now = self._clock.wall_ms()
            longest = self._live.now.timer_max_delay_sec
            if deliver_ms - now > longest * 1000:
                raise MessageIllegalError(
                    "timer message illegal, the delay time should not be bigger than the max delay "
                    f"{longest}s; raise timerMaxDelaySec or deliver it sooner"
                )
            if not self._live.now.timer_wheel_enable:
                raise MessageIllegalError("timer messages are switched off: set timerWheelEnable=true")
            if deliver_ms > now:
                properties[prop.TIMER_OUT_MS] = str(deliver_ms)
                self._send_elsewhere(draft, topics.TIMER_TOPIC, 0)

    def _send_elsewhere(self, draft: Draft, topic: str, queue_id: int) -> None:
        draft.properties[prop.REAL_TOPIC] = draft.topic
        draft.properties[prop.REAL_QUEUE_ID] = str(draft.queue_id)
        draft.topic = topic
        draft.queue_id = queue_id

    def _timer(self, properties: dict[str, str]) -> int | None:
        """When the client wants it delivered; None if it does not say."""
        if prop.TIMER_DELIVER_MS in properties:
            return _number(prop.TIMER_DELIVER_MS, properties[prop.TIMER_DELIVER_MS])
        for name, unit in ((prop.TIMER_DELAY_SEC, 1000), (prop.TIMER_DELAY_MS, 1)):
            if name in properties:
                return self._clock.wall_ms() + _number(name, properties[name]) * unit
        return None

    def _tags_code(self, draft: Draft, store_timestamp: int) -> int:
        if draft.topic == topics.SCHEDULE_TOPIC:
            return store_timestamp + self.delay_levels[draft.queue_id + 1]
        tag = draft.properties.get(prop.TAGS)
        return tag_hash(tag) if tag else 0


def _number(name: str, text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise MessageIllegalError(
            f"property {name} is {text[:64]!r}; give a whole number of at most 18 digits"
        )
    return int(text)
