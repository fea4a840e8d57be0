"""Whether the other members of a group subscribe as this one does.

A broker keeps one table of subscriptions for a group, with the newest for each topic. That table differs from what an
older member wants, but equals what the newest member wants, which would never hear of the difference. Therefore each
look also asks one of the other members for its own subscriptions, and the next look asks the next.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from gimbalmq.client import events
from gimbalmq.client.consuming.ground import Ground
from gimbalmq.client.consuming.subscriptions import expressions
from gimbalmq.errors import RocketMQError
from gimbalmq.rpc import management as management_calls

log = logging.getLogger(__name__)

FIRST_LOOK = 1.0
"""Seconds after the start: by then the member is known to the brokers, and a person still watches."""


class GroupCheck:
    """Compares subscriptions, and says so loudly if they differ; once for each that does."""

    def __init__(self, ground: Ground) -> None:
        self._instance = ground.instance
        self._group = ground.group
        self._subscriptions = ground.subscriptions
        self._events = ground.events
        self._told: list[Mapping[str, str]] = []
        self._looks = 0
        self._equal_looks = 0

    async def run(self) -> None:
        ours = expressions(self._subscriptions.by_topic.values())
        topic = next(iter(ours), None)
        if topic is None:
            return
        try:
            address = await self._instance.any_broker_of(topic)
            found = await management_calls.consumer_connections(self._instance, address, self._group)
            members = {connection.client_id for connection in found.connection_set}
            theirs = expressions(found.subscription_table.values())
            who = "a member"
            if theirs in ({}, ours):
                who, theirs = await self._of_another(address, sorted(members))
        except RocketMQError as error:
            log.debug("the group's subscriptions could not be read: %s", error)
            return
        if theirs in ({}, ours):
            self._equal_looks += 1
            if self._equal_looks >= len(members):  # all have been asked
                self._told.clear()
            return
        self._equal_looks = 0
        if theirs in self._told:
            return
        self._told.append(theirs)
        log.error(
            "%s of group %s has another subscription: %s, where this one has %s. All members of a group share out its "
            "queues, so this one will not get all messages it wants, and some queues may be read by nobody. Give all "
            "members the same subscriptions, or those with another subscription a group of their own",
            who,
            self._group,
            theirs,
            ours,
        )
        self._events.emit(events.UnequalSubscriptions(group=self._group, ours=ours, theirs=theirs))

    async def _of_another(self, address: str, members: list[str]) -> tuple[str, dict[str, str]]:
        """What one of the others says: first the one that follows us in the list, then the next, and so on."""
        own = self._instance.client_id
        others = [name for name in members if name > own] + [name for name in members if name < own]
        if not others:
            return "", {}
        name = others[self._looks % len(others)]
        self._looks += 1
        info = await management_calls.running_info(
            self._instance, address, self._group, name, timeout=self._instance.config.api_timeout
        )
        return f"member {name}", expressions(info.subscription_set)
