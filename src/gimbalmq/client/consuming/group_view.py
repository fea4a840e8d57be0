"""Who is in the group: as brokers say now, and as it was a while ago."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Collection

from gimbalmq.balance.allocate import AllocateStrategy, shares
from gimbalmq.client import events
from gimbalmq.client.consuming.ground import Ground
from gimbalmq.errors import RocketMQError
from gimbalmq.model.queues import MessageQueue, sort_client_ids, sort_queues
from gimbalmq.rpc import groups as group_calls

log = logging.getLogger(__name__)

PRESENT_SECONDS = 0.15
"""How long a broker's list of members serves for all queues that wait for somebody's lock."""
ABSENT_SECONDS = 60.0
"""Members find a broker that was restarted within the 30 s between two looks at routes, and say so within 30 more."""
_HISTORY = 16


class GroupView:
    """The members of one group, and the queues they share.

    Attributes:
        members: the group as of the last round, sorted.
        queues: all readable queues of each topic, sorted.
    """

    def __init__(self, ground: Ground) -> None:
        self._instance = ground.instance
        self._config = ground.config
        self._events = ground.events
        self._wakes = ground.wakes
        self.members: list[str] = []
        self.queues: dict[str, tuple[MessageQueue, ...]] = {}
        self._former: deque[tuple[list[str], dict[str, tuple[MessageQueue, ...]]]] = deque(maxlen=_HISTORY)
        self._vanished: dict[str, float] = {}
        self._absent: dict[str, float] = {}
        """Since when members are missing at a master that a slave of it still lists."""
        self._twins_seen = False
        self._present: dict[str, tuple[float, list[str] | None]] = {}
        self._asking = asyncio.Lock()

    # -- now -------------------------------------------------------------------------

    async def ask(self, topic: str) -> list[str] | None:
        """Client ids of the group, from one broker of the topic; None if nobody could be asked."""
        config = self._config
        try:
            address = await self._instance.any_broker_of(topic)
            found = await group_calls.member_ids(
                self._instance, address, config.group, timeout=config.api_timeout
            )
        except RocketMQError as error:
            log.debug("members of %s: %s", config.group, error)
            return None
        if not found:
            return None
        found = self._with_vanished(await self._with_absent(address, found))
        self._look_for_twins(found)
        ordered = sort_client_ids(found)
        if ordered != self.members:
            self._remember()
            self.members = ordered
        return found

    def note_queues(self, topic: str, queues: Collection[MessageQueue]) -> None:
        ordered = tuple(sort_queues(queues))
        if self.queues.get(topic) != ordered:
            self._remember()
            self.queues[topic] = ordered

    def forget(self, topic: str) -> None:
        self.queues.pop(topic, None)

    def _remember(self) -> None:
        """Keeps the group and its queues as they are, before one of them changes."""
        if self.members and self.queues:
            self._former.append((self.members, dict(self.queues)))

    async def _with_absent(self, address: str, found: list[str]) -> list[str]:
        """Adds members that have yet to find a master which was restarted: its slaves have known them all the time.

        Without them, whoever finds it first would take the queues of the others, who still read them.
        """
        missing = set(self.members).difference(found)
        now = self._instance.clock.monotonic()
        self._absent = {client_id: self._absent.get(client_id, now) for client_id in missing}
        waited_for = {client_id for client_id in missing if now - self._absent[client_id] < ABSENT_SECONDS}
        for replica in self._instance.replicas_beside(address) if waited_for else ():
            try:
                listed = await group_calls.member_ids(
                    self._instance, replica, self._config.group, timeout=self._config.api_timeout
                )
            except RocketMQError as error:
                log.debug("members of %s at a slave: %s", self._config.group, error)
                continue
            if here := waited_for.intersection(listed or ()):
                return [*found, *here]
        return found

    def _with_vanished(self, found: list[str]) -> list[str]:
        """Adds members with a fixed name that are gone for less than the grace time: they are restarting."""
        grace = self._config.member_grace
        if not grace:
            return found
        now = self._instance.clock.monotonic()
        for client_id in found:
            self._vanished.pop(client_id, None)
        for client_id in self.members:
            if client_id not in found and "#" not in client_id and client_id not in self._vanished:
                self._vanished[client_id] = now + grace
                self._wakes.wake(f"{client_id} did not come back", grace + 0.05)
        self._vanished = {client_id: end for client_id, end in self._vanished.items() if end > now}
        return [*found, *self._vanished]

    def _look_for_twins(self, found: list[str]) -> None:
        """Our id listed twice, twice in a row: once may be our own connection that was made anew."""
        group, client_id = self._config.group, self._instance.client_id
        count = found.count(client_id)
        if count > 1 and self._twins_seen:
            log.error(
                "group %s: %d connections use the client id %s, so both members read the same queues. Give "
                "each process its own instance_name or member_name",
                group,
                count,
                client_id,
            )
            self._events.emit(events.EqualClientIds(group=group, client_id=client_id, count=count))
        elif count > 1:
            self._wakes.wake("our client id is listed twice", 1.0)
        self._twins_seen = count > 1

    # -- a while ago -----------------------------------------------------------------

    async def holder_is_gone(
        self, queue: MessageQueue, strategy: AllocateStrategy, *, over_all_topics: bool, fresh: bool
    ) -> bool:
        """Whether the member that has the lock of a queue is missing at the queue's broker.

        A broker does not say who holds a lock. But shares can be computed for the members and queues of a
        while ago too: the last one before us who had the queue is its holder.

        Args:
            fresh: the broker is asked from now on; else an answer of a moment ago serves.
        """
        own = self._instance.client_id
        present = await self._members_at(queue, fresh=fresh)
        if not present:
            return False
        if set(present) == {own}:
            return True
        here = {*present, *self.members}
        if all(here.issuperset(members) for members, _ in self._former):
            return False
        for members, listed in reversed(self._former):
            queues = listed.get(queue.topic, ())
            if queue not in queues:
                continue
            if over_all_topics:
                queues = tuple(other for part in listed.values() for other in part)
            try:
                parts = shares(strategy, self._config.group, queues, members)
            except Exception as error:
                log.debug("former shares could not be computed: %s", error)
                return False
            holder = next((client_id for client_id, part in parts.items() if queue in part), None)
            if holder is not None and holder != own:
                return holder not in here
        return False

    async def _members_at(self, queue: MessageQueue, *, fresh: bool) -> list[str] | None:
        """Who the queue's own broker knows of. Queues of a broker share answers."""
        clock = self._instance.clock
        now = clock.monotonic()
        oldest = now if fresh else now - PRESENT_SECONDS
        async with self._asking:
            asked, present = self._present.get(queue.broker_name, (-math.inf, None))
            if asked >= oldest:
                return present
            asked = clock.monotonic()
            try:
                found = await self._instance.locate_broker(queue.topic, queue.broker_name)
                present = await group_calls.member_ids(
                    self._instance, found.address, self._config.group, timeout=self._config.api_timeout
                )
            except RocketMQError as error:
                log.debug("members at the broker of %s: %s", queue, error)
                present = None
            self._present[queue.broker_name] = (asked, present)
            return present
