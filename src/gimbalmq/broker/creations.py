"""How many topics and groups clients may make the broker create: for each connection, and altogether.

What an operator creates is not counted; neither are the retry and dead-letter topics of a group, of which each
group has one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.groups import Groups
from gimbalmq.broker.topics import Topics
from gimbalmq.errors import SubscriptionGroupNotExistError, TopicNotExistError
from gimbalmq.protocol.bodies import GroupConfig, TopicConfig
from gimbalmq.transport.channel import Channel

_REMEDY = "create it with an admin tool, or raise the limit"


@dataclass(slots=True)
class _Made:
    """What one connection has created."""

    topics: int = 0
    groups: int = 0


class Creations:
    def __init__(self, topics: Topics, groups: Groups, live: LiveConfig) -> None:
        self._topics = topics
        self._groups = groups
        self._live = live

    def topic(
        self, channel: Channel, topic: str, make: Callable[[], TopicConfig | None]
    ) -> TopicConfig | None:
        """A topic that does not exist, if ``make`` makes it; raises TopicNotExistError at a limit."""
        config, made = self._live.now, _made(channel)
        if made.topics >= config.max_topics_created_per_connection:
            raise TopicNotExistError(
                f"topic[{topic}] not exist, and this connection has created {made.topics} already "
                f"(maxTopicsCreatedPerConnection): {_REMEDY}"
            )
        if len(self._topics) >= config.auto_create_topic_limit:
            raise TopicNotExistError(
                f"topic[{topic}] not exist, and the broker has {len(self._topics)} already "
                f"(autoCreateTopicLimit): {_REMEDY}"
            )
        found = make()
        if found is not None:
            made.topics += 1
        return found

    def group(self, channel: Channel, group: str) -> GroupConfig | None:
        """A group's settings; an unknown group gets the defaults if that is allowed, None if not.

        Raises:
            SubscriptionGroupNotExistError: it would be one too many.
        """
        found = self._groups.known(group)
        if found is not None:
            return found
        config, made = self._live.now, _made(channel)
        if made.groups >= config.max_groups_created_per_connection:
            raise SubscriptionGroupNotExistError(
                f"subscription group [{group}] does not exist, and this connection has created {made.groups} "
                f"already (maxGroupsCreatedPerConnection): {_REMEDY}"
            )
        if len(self._groups) >= config.auto_create_subscription_group_limit:
            raise SubscriptionGroupNotExistError(
                f"subscription group [{group}] does not exist, and the broker has {len(self._groups)} already "
                f"(autoCreateSubscriptionGroupLimit): {_REMEDY}"
            )
        found = self._groups.find(group)
        if found is not None:
            made.groups += 1
        return found

    def require(self, channel: Channel, group: str) -> GroupConfig:
        """As ``group``, but raises SubscriptionGroupNotExistError for None, too."""
        return self.group(channel, group) or self._groups.require(group)


def _made(channel: Channel) -> _Made:
    if channel.state is None:
        channel.state = _Made()
    assert isinstance(channel.state, _Made)
    return channel.state
