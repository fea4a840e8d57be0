"""Live producers and consumers by connection (Java: ConsumerManager, ProducerManager).

A member is a connection, not a client id: one client that reaches the broker over two
connections is listed twice, as in Java. Whoever is told of a change gets request 40 on the
connection its heartbeat came by.

Clients of this library say how often they send signs of life. One that misses three of them hangs: it is taken
out of its groups, and they are told, but its connection stays. Its next heartbeat makes it a member again, and is
answered with the groups it has been taken out of, and how often. All others are given
``channelExpiredTimeout``, as in Java.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gimbalmq._clock import Clock
from gimbalmq.protocol.bodies import ClientConnection, ConsumerData, Subscription
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.groups import GroupOnly
from gimbalmq.transport.channel import Channel

log = logging.getLogger(__name__)

MISSED_SIGNS = 3
SIGNS_SCAN_SECONDS = 0.5
LIVENESS_MILLIS = (1000, 60_000)
"""The shortest and the longest interval between signs of life that is agreed to."""


@dataclass(slots=True)
class Member:
    """One connection in one group."""

    channel: Channel
    client_id: str
    language: str | None
    version: int
    last_seen: float
    silent_after: float | None = None
    """Seconds without a heartbeat after which it is taken for hung; where it said how often it sends them."""

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
        self._expelled: dict[Channel, Counter[str]] = {}
        self._looked = clock.monotonic()

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
        liveness_millis: int | None = None,
    ) -> bool:
        """True where the others must be told.

        Args:
            liveness_millis: how often the client sends signs of life.
        """
        group = self._groups.get(data.group_name)
        if group is None:
            group = self._groups[data.group_name] = ConsumerGroup(data.group_name)
        member = Member(channel, client_id, request.language, request.version, self._clock.monotonic())
        if liveness_millis is not None:
            member.silent_after = MISSED_SIGNS * liveness_millis / 1000
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
        self._expelled.pop(channel, None)
        lost = [group.name for group in self._groups.values() if channel in group.members]
        left = (self.leave(name, channel) for name in lost)
        return [group for group in left if group is not None]

    def expel_silent(self) -> list[ConsumerGroup]:
        """Takes out members that have missed their signs of life; their groups as they are without them.

        To be called every ``SIGNS_SCAN_SECONDS``.
        """
        now = self._clock.monotonic()
        looked, self._looked = self._looked, now
        silent = [
            (group, member)
            for group in self._groups.values()
            for member in group.members.values()
            if member.silent_after is not None and now - member.last_seen > member.silent_after
        ]
        if not silent:
            return []
        if now - looked > 2 * SIGNS_SCAN_SECONDS:
            # We ourselves were busy or asleep; what was sent meanwhile has not been read yet.
            for _, member in silent:
                member.last_seen = now
            return []
        for group, member in silent:
            log.warning(
                "%s of group %s at %s is taken for hung: no sign of life for %.1f s",
                member.client_id,
                group.name,
                member.channel.address,
                now - member.last_seen,
            )
            self._expelled.setdefault(member.channel, Counter())[group.name] += 1
            self.leave(group.name, member.channel)
        return list({group.name: group for group, _ in silent}.values())

    def expelled(self, channel: Channel) -> Mapping[str, int]:
        """Groups that the client of a connection has been taken out of, and how often."""
        return self._expelled.get(channel, {})

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
