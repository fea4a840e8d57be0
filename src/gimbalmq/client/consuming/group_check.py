"""Whether the members of a group subscribe alike."""

from __future__ import annotations

import logging

from gimbalmq.client import events
from gimbalmq.client.consuming.ground import Ground
from gimbalmq.client.consuming.subscriptions import expressions
from gimbalmq.errors import RocketMQError
from gimbalmq.rpc import management as management_calls

log = logging.getLogger(__name__)


class GroupCheck:
    """Compares the group's subscriptions at a broker with ours; says so loudly if they differ."""

    def __init__(self, ground: Ground) -> None:
        self._instance = ground.instance
        self._group = ground.group
        self._subscriptions = ground.subscriptions
        self._events = ground.events
        self._told: dict[str, str] | None = None

    async def run(self) -> None:
        topic = next(iter(self._subscriptions.texts()), None)
        if topic is None:
            return
        try:
            address = await self._instance.any_broker_of(topic)
            found = await management_calls.consumer_connections(self._instance, address, self._group)
        except RocketMQError as error:
            log.debug("the group's connections could not be read: %s", error)
            return
        ours = expressions(self._subscriptions.by_topic)
        theirs = expressions(found.subscription_table)
        if theirs == ours or not theirs:
            self._told = None
            return
        if theirs != self._told:
            log.error(
                "members of group %s subscribe differently: here %s, elsewhere %s. Queues are shared out "
                "among all members, so some will be read by nobody. Give all members the same subscriptions, "
                "or those with others another group",
                self._group,
                ours,
                theirs,
            )
            self._events.emit(events.UnequalSubscriptions(group=self._group, ours=ours, theirs=theirs))
        self._told = theirs
