"""Live producers and consumers by connection (Java: ConsumerManager, ProducerManager).

A member is a connection, not a client id: one client that reaches the broker over two
connections is listed twice, as in Java. Whoever is told of a change gets request 40 on the
connection its heartbeat came by.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from gimbalmq._clock import Clock
from gimbalmq.protocol.bodies import ClientConnection, ConsumerData, Subscription
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.groups import GroupOnly
from gimbalmq.transport.channel import Channel

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Member:
    """One connection in one group."""

    channel: Channel
    client_id: str
    language: str | None
    version: int
    last_seen: float

    def view(self) -> ClientConnection:
        return ClientConnection(
            client_addr=self.channel.address,
            client_id=self.client_id,
            language=self.language,
            version=self.version,
        )


@dataclass(slots=True)
class ConsumerGroup:
    """A group while somebody of it is connected (Java: ConsumerGroupInfo)."""

    name: str
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    members: dict[Channel, Member] = field(default_factory=dict)

    def heard(self, data: ConsumerData, member: Member) -> bool:
        """Takes in a heartbeat; True where membership or topics changed."""
        self.consume_type = data.consume_type
        self.message_model = data.message_model
        self.consume_from_where = data.consume_from_where
        known = self.members.get(member.channel)
        if known is not None and known.client_id != member.client_id:
            log.warning(
                "%s of group %s was client %s and is %s now",
                member.channel.address,
                self.name,
                known.client_id,
                member.client_id,
            )
        self.members[member.channel] = member
        return known is None

    def subscribe(self, wanted: Iterable[Subscription]) -> bool:
        """Replaces the group's topics by this heartbeat's; True where the set changed.

        A newer version of a known topic is stored but is no change of the set.
        """
        changed = False
        topics = set()
        for subscription in wanted:
            topics.add(subscription.topic)
            known = self.subscriptions.get(subscription.topic)
            if known is None:
                self.subscriptions[subscription.topic] = subscription
                changed = True
            elif subscription.sub_version > known.sub_version:
                self.subscriptions[subscription.topic] = subscription
        for topic in [topic for topic in self.subscriptions if topic not in topics]:
            del self.subscriptions[topic]
            changed = True
        return changed


class Consumers:
    """All consumer groups with connected members."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._groups: dict[str, ConsumerGroup] = {}

    def group(self, name: str) -> ConsumerGroup | None:
        return self._groups.get(name)

    def groups(self) -> list[ConsumerGroup]:
        return list(self._groups.values())

    def subscribers_of(self, topic: str) -> set[str]:
        return {group.name for group in self._groups.values() if topic in group.subscriptions}

    def heartbeat(
        self,
        data: ConsumerData,
        channel: Channel,
        client_id: str,
        request: RemotingCommand,
        *,
        keep_subscriptions: bool = False,
    ) -> bool:
        """True where the others must be told."""
        group = self._groups.get(data.group_name)
        if group is None:
            group = self._groups[data.group_name] = ConsumerGroup(data.group_name)
        member = Member(channel, client_id, request.language, request.version, self._clock.monotonic())
        joined = group.heard(data, member)
        changed = False if keep_subscriptions else group.subscribe(data.subscription_data_set)
        return joined or changed

    def leave(self, name: str, channel: Channel) -> ConsumerGroup | None:
        """The group as it is without this connection."""
        group = self._groups.get(name)
        if group is None:
            return None
        group.members.pop(channel, None)
        if not group.members:
            del self._groups[name]
        return group

    def disconnected(self, channel: Channel) -> list[ConsumerGroup]:
        """Groups that lost a member with this connection."""
        lost = [group.name for group in self._groups.values() if channel in group.members]
        left = (self.leave(name, channel) for name in lost)
        return [group for group in left if group is not None]

    def expire(self, older_than_seconds: float) -> list[Channel]:
        """Removes members that are silent too long; their connections should be closed.

        Nobody is told: the others notice at their own next rebalance, as with Apache's.
        """
        limit = self._clock.monotonic() - older_than_seconds
        dead = [
            (group.name, member.channel)
            for group in self._groups.values()
            for member in group.members.values()
            if member.last_seen < limit
        ]
        for name, channel in dead:
            self.leave(name, channel)
        return [channel for _, channel in dead]


def notify_changed(group: ConsumerGroup) -> None:
    """Tells every connection of a group that its membership or topics changed."""
    header = GroupOnly(consumer_group=group.name).to_ext()
    for channel in list(group.members):
        channel.oneway(RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header))


class Producers:
    """All producer groups with connected members."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._groups: dict[str, dict[Channel, Member]] = {}
        self._turn = 0

    def group(self, name: str) -> list[Member]:
        return list(self._groups.get(name, {}).values())

    def groups(self) -> dict[str, list[Member]]:
        return {name: list(members.values()) for name, members in self._groups.items()}

    def heartbeat(self, name: str, channel: Channel, client_id: str, request: RemotingCommand) -> None:
        self._groups.setdefault(name, {})[channel] = Member(
            channel, client_id, request.language, request.version, self._clock.monotonic()
        )

    def leave(self, name: str, channel: Channel) -> None:
        members = self._groups.get(name)
        if members is not None:
            members.pop(channel, None)
            if not members:
                del self._groups[name]

    def disconnected(self, channel: Channel) -> None:
        for name in [name for name, members in self._groups.items() if channel in members]:
            self.leave(name, channel)

    def expire(self, older_than_seconds: float) -> list[Channel]:
        limit = self._clock.monotonic() - older_than_seconds
        dead = [
            (name, channel)
            for name, members in self._groups.items()
            for channel, member in members.items()
            if member.last_seen < limit
        ]
        for name, channel in dead:
            self.leave(name, channel)
        return [channel for _, channel in dead]

    def pick(self, name: str) -> Channel | None:
        """A connection of the group to ask about a transaction, each in its turn."""
        channels = [channel for channel in self._groups.get(name, {}) if not channel.closed]
        if not channels:
            return None
        self._turn += 1
        return channels[self._turn % len(channels)]

    def find_client(self, client_id: str) -> Channel | None:
        for members in self._groups.values():
            for channel, member in members.items():
                if member.client_id == client_id and not channel.closed:
                    return channel
        return None
