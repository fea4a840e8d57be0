"""Dead letters: what a group gave up on, counted, shown, and driven back.

A message is driven back to the group's retry topic, as if it failed for the first time: only the
group that gave it up sees it again. What has been driven back is remembered as the progress of the
group ``GIMBALMQ_REDRIVE`` in the dead-letter topic, so a second run goes on where the first ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from gimbalmq.admin.connection import AdminConnection
from gimbalmq.admin.groups import GroupAdmin
from gimbalmq.admin.messages import MessageAdmin
from gimbalmq.admin.topics import DEAD_LETTER, TopicAdmin, kind_of
from gimbalmq.admin.views import DeadLetterGroup
from gimbalmq.errors import NoPermissionError, TopicRouteNotFoundError
from gimbalmq.model import properties as names
from gimbalmq.model.flags import PERM_READ, PERM_WRITE
from gimbalmq.model.message import SYSTEM_PROPERTIES, Message, MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.topics import DLQ_PREFIX, dlq_topic, retry_topic
from gimbalmq.rpc import groups as group_calls

REDRIVE_GROUP = "GIMBALMQ_REDRIVE"


@dataclass(frozen=True, slots=True)
class Redriven:
    """Outcome of a redrive."""

    sent: int
    skipped: int


class DeadLetterAdmin:
    """``admin.dead_letters``."""

    def __init__(
        self, connection: AdminConnection, topics: TopicAdmin, groups: GroupAdmin, messages: MessageAdmin
    ) -> None:
        self._at = connection
        self._topics = topics
        self._groups = groups
        self._messages = messages

    async def groups(self) -> list[DeadLetterGroup]:
        """Groups that have dead letters, with how many; those whose topic the user may not see are left out."""

        async def one(topic: str) -> DeadLetterGroup | None:
            try:
                stats = await self._topics.stats(topic)
            except (TopicRouteNotFoundError, NoPermissionError):  # gone since, or not for us
                return None
            last = max((queue.last_update_ms for queue in stats), default=0)
            return DeadLetterGroup(
                topic.removeprefix(DLQ_PREFIX), topic, sum(queue.count for queue in stats), last
            )

        topics = [topic for topic in await self._topics.names() if kind_of(topic) == DEAD_LETTER]
        found = await asyncio.gather(*(one(topic) for topic in topics))
        return [item for item in found if item is not None and item.count]

    async def ranges(
        self, group: str, *, everything: bool = True, unlock: bool = True
    ) -> dict[MessageQueue, tuple[int, int]]:
        """Offsets of the group's dead letters: all of them, or those never driven back.

        Args:
            unlock: make the topic readable first, which older brokers do not.
        """
        topic = dlq_topic(group)
        if unlock:
            await self._make_readable(topic)
        ranges = await self._messages.ranges(topic)
        if everything:
            return ranges
        done = await asyncio.gather(
            *(
                group_calls.query_offset(self._at.caller, address, REDRIVE_GROUP, queue)
                for queue, address in (await self._at.queues_of(topic)).items()
            )
        )
        return {
            queue: (min(max(first, offset or 0), end), end)
            for (queue, (first, end)), offset in zip(ranges.items(), done, strict=True)
        }

    async def _make_readable(self, topic: str) -> None:
        """Older brokers make dead-letter topics that nobody may read."""
        route = await self._at.route(topic)
        for data in route.queue_datas:
            if not data.perm & PERM_READ:
                await self._topics.create(
                    topic,
                    queues=max(1, data.read_queue_nums, data.write_queue_nums),
                    perm=PERM_READ | PERM_WRITE,
                    broker=data.broker_name,
                )

    async def read(
        self, group: str, *, everything: bool = True, unlock: bool = True
    ) -> AsyncIterator[MessageView]:
        """The group's dead letters; the arguments are those of ``ranges``."""
        ranges = await self.ranges(group, everything=everything, unlock=unlock)
        async for view in self._messages.read(dlq_topic(group), dict(ranges)):
            yield view

    async def redrive(
        self,
        group: str,
        *,
        keep: Callable[[MessageView], bool] = lambda view: True,
        to_topic: bool = False,
        everything: bool = False,
        limit: int | None = None,
        rate: float | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Redriven:
        """Sends dead letters back to be consumed again.

        Args:
            keep: which of them.
            to_topic: to the topic they came from, where every group sees them, instead of to this group only.
            everything: also those driven back before.
            limit: at most so many.
            rate: messages a second.
            on_progress: called with messages looked at and all there are.
        """
        ranges = await self.ranges(group, everything=everything)
        total = sum(end - first for first, end in ranges.values())
        addresses = await self._at.queues_of(dlq_topic(group))
        await self._groups.create(REDRIVE_GROUP)
        sent = skipped = 0
        pause = 1 / rate if rate else 0.0
        for queue, span in ranges.items():
            done = span[0]
            try:
                async for view in self._messages.read(queue.topic, {queue: span}):
                    if limit is not None and sent >= limit:
                        break
                    wanted = keep(view)
                    if wanted:
                        # One after the other: letters of one sharding key stay in their order.
                        await self._messages.send(revived(view, group, to_topic=to_topic))
                        sent += 1
                    else:
                        skipped += 1
                    done = view.queue_offset + 1
                    if on_progress is not None:
                        on_progress(sent + skipped, total)
                    if pause and wanted:
                        await asyncio.sleep(pause)
            finally:
                # Also if the run ends here, by an error or by Ctrl-C: what was sent must not be sent again.
                if done > span[0]:
                    await group_calls.update_offset(
                        self._at.caller, addresses[queue], REDRIVE_GROUP, queue, done
                    )
        return Redriven(sent, skipped)


def revived(view: MessageView, group: str, *, to_topic: bool = False) -> Message:
    """A new message with a dead one's content, addressed to its group or its first topic."""
    origin = view.get(names.DLQ_ORIGIN_TOPIC) or view.original_topic
    own = {name: value for name, value in view.all_properties.items() if name not in SYSTEM_PROPERTIES}
    own.pop(names.DLQ_ORIGIN_TOPIC, None)
    own.pop(names.DLQ_ORIGIN_MESSAGE_ID, None)
    message = Message(
        origin if to_topic else retry_topic(group),
        view.body,
        tags=view.tags,
        keys=list(view.keys) or None,
        properties=own,
        sharding_key=view.sharding_key,
        flag=view.flag,
    )
    if not to_topic:
        # What consumers of the retry topic look at to show the message under its own topic.
        message.system_properties[names.RETRY_TOPIC] = origin
        message.system_properties[names.ORIGIN_MESSAGE_ID] = (
            view.get(names.DLQ_ORIGIN_MESSAGE_ID) or view.msg_id
        )
    return message
