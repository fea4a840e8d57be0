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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gimbalmq._clock import Clock
from gimbalmq.protocol.bodies import ClientConnection, ConsumerData, Subscription
from gimbalmq.protocol.command import RemotingCommand
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
    """Seconds without a heartbeat after which it is taken for hung; None if it did not say how often it sends them."""
    user: str | None = None
    """Who signed its heartbeat, if the broker checks that; known of producers only."""

    def view(self) -> ClientConnection:
        return ClientConnection(
            client_addr=self.channel.address,
            client_id=self.client_id,
            language=self.language,
            version=self.version,
        )


_Membership = tuple[str, Channel]


class _Registry:
    """Memberships, by connection and by age, so that neither an end nor a look for silent ones is a walk over all."""

    def __init__(self) -> None:
        self._by_channel: dict[Channel, dict[str, None]] = {}
        self._by_age: dict[float | None, dict[_Membership, Member]] = {}
        """By the silence that is allowed; who was heard last stands last."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def groups_of(self, channel: Channel) -> list[str]:
        return list(self._by_channel.get(channel, ()))

    def heard(self, group: str, member: Member, before: Member | None) -> None:
        if before is not None:
            self._drop_age(group, before)
        else:
            self._by_channel.setdefault(member.channel, {})[group] = None
            self._count += 1
        self._by_age.setdefault(member.silent_after, {})[group, member.channel] = member

    def left(self, group: str, member: Member) -> None:
        self._drop_age(group, member)
        groups = self._by_channel[member.channel]
        del groups[group]
        if not groups:
            del self._by_channel[member.channel]
        self._count -= 1

    def silent(self, now: float, longest: float | None = None) -> list[tuple[str, Member]]:
        """Members that have been silent for longer than they said, or than ``longest``."""
        found = []
        for allowed, members in self._by_age.items():
            seconds = allowed if longest is None else longest
            if seconds is None:
                continue
            for (group, _), member in members.items():
                if now - member.last_seen <= seconds:
                    break
                found.append((group, member))
        return found

    def _drop_age(self, group: str, member: Member) -> None:
        members = self._by_age[member.silent_after]
        del members[group, member.channel]
        if not members:
            del self._by_age[member.silent_after]


@dataclass(slots=True)
class ConsumerGroup:
    """A group while somebody of it is connected (Java: ConsumerGroupInfo)."""

    name: str
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    members: dict[Channel, Member] = field(default_factory=dict)
    size: int = 0
    """Memory of its subscriptions, roughly."""

    def heard(self, data: ConsumerData, member: Member) -> Member | None:
        """Takes in a heartbeat; the member as it was before."""
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
        return known

    def subscribe(self, wanted: Iterable[Subscription]) -> bool:
        """Replaces the group's topics by this heartbeat's; True if the set changed.

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


def size_of(subscriptions: Iterable[Subscription]) -> int:
    """Memory they take, roughly."""
    return sum(
        500
        + 2 * len(wanted.topic)
        + 2 * len(wanted.sub_string or "")
        + 40 * len(wanted.code_set)
        + 60 * len(wanted.tags_set)
        + len("".join(wanted.tags_set))
        for wanted in subscriptions
    )


class Consumers:
    """All consumer groups with connected members."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._groups: dict[str, ConsumerGroup] = {}
        self._registry = _Registry()
        self._expelled: dict[Channel, Counter[str]] = {}
        self._looked = clock.monotonic()
        self.size = 0
        """Memory of all subscriptions, roughly."""

    def __len__(self) -> int:
        """How many memberships there are."""
        return len(self._registry)

    def group(self, name: str) -> ConsumerGroup | None:
        return self._groups.get(name)

    def groups(self) -> list[ConsumerGroup]:
        return list(self._groups.values())

    def groups_of(self, channel: Channel) -> list[str]:
        return self._registry.groups_of(channel)

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
        """True if the others must be told.

        Args:
            liveness_millis: how often the client sends signs of life.
        """
        group = self._groups.get(data.group_name)
        if group is None:
            group = self._groups[data.group_name] = ConsumerGroup(data.group_name)
        member = Member(channel, client_id, request.language, request.version, self._clock.monotonic())
        if liveness_millis is not None:
            member.silent_after = MISSED_SIGNS * liveness_millis / 1000
        before = group.heard(data, member)
        self._registry.heard(group.name, member, before)
        changed = False
        if not keep_subscriptions:
            changed = group.subscribe(data.subscription_data_set)
            self._resize(group, size_of(group.subscriptions.values()))
        return before is None or changed

    def _resize(self, group: ConsumerGroup, size: int) -> None:
        self.size += size - group.size
        group.size = size

    def leave(self, name: str, channel: Channel) -> ConsumerGroup | None:
        """The group as it is without this connection."""
        group = self._groups.get(name)
        if group is None:
            return None
        member = group.members.pop(channel, None)
        if member is not None:
            self._registry.left(name, member)
        if not group.members:
            del self._groups[name]
            self._resize(group, 0)
        return group

    def disconnected(self, channel: Channel) -> list[ConsumerGroup]:
        """Groups that lost a member with this connection."""
        self._expelled.pop(channel, None)
        left = (self.leave(name, channel) for name in self._registry.groups_of(channel))
        return [group for group in left if group is not None]

    def expel_silent(self) -> list[ConsumerGroup]:
        """Takes out members that have missed their signs of life; their groups as they are without them.

        To be called every ``SIGNS_SCAN_SECONDS``.
        """
        now = self._clock.monotonic()
        looked, self._looked = self._looked, now
        silent = self._registry.silent(now)
        if not silent:
            return []
        if now - looked > 2 * SIGNS_SCAN_SECONDS:
            # We ourselves were busy or asleep; what was sent meanwhile has not been read yet.
            for name, member in silent:
                member.last_seen = now
                self._registry.heard(name, member, member)
            return []
        lost: dict[str, ConsumerGroup] = {}
        for name, member in silent:
            log.warning(
                "%s of group %s at %s is taken for hung: no sign of life for %.1f s",
                member.client_id,
                name,
                member.channel.address,
                now - member.last_seen,
            )
            self._expelled.setdefault(member.channel, Counter())[name] += 1
            group = self.leave(name, member.channel)
            assert group is not None, "it has members"
            lost[name] = group
        return list(lost.values())

    def expelled(self, channel: Channel) -> Mapping[str, int]:
        """Groups that the client of a connection has been taken out of, and how often."""
        return self._expelled.get(channel, {})

    def expire(self, older_than_seconds: float) -> list[Channel]:
        """Removes members that are silent too long; their connections should be closed.

        Nobody is told: the others notice at their own next rebalance, as with Apache's.
        """
        dead = self._registry.silent(self._clock.monotonic(), older_than_seconds)
        for name, member in dead:
            self.leave(name, member.channel)
        return [member.channel for _, member in dead]


class Producers:
    """All producer groups with connected members."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._groups: dict[str, dict[Channel, Member]] = {}
        self._registry = _Registry()
        self._by_client: dict[str, dict[_Membership, Member]] = {}

    def __len__(self) -> int:
        """How many memberships there are."""
        return len(self._registry)

    def group(self, name: str) -> list[Member]:
        return list(self._groups.get(name, {}).values())

    def groups(self) -> dict[str, list[Member]]:
        return {name: list(members.values()) for name, members in self._groups.items()}

    def groups_of(self, channel: Channel) -> list[str]:
        return self._registry.groups_of(channel)

    def heartbeat(
        self, name: str, channel: Channel, client_id: str, request: RemotingCommand, user: str | None = None
    ) -> None:
        members = self._groups.setdefault(name, {})
        before = members.get(channel)
        if before is not None and before.client_id != client_id:
            self._forget_client(name, before)
        member = Member(
            channel, client_id, request.language, request.version, self._clock.monotonic(), user=user
        )
        members[channel] = member
        self._registry.heard(name, member, before)
        self._by_client.setdefault(client_id, {})[name, channel] = member

    def leave(self, name: str, channel: Channel) -> None:
        members = self._groups.get(name)
        member = None if members is None else members.pop(channel, None)
        if members is None or member is None:
            return
        self._registry.left(name, member)
        self._forget_client(name, member)
        if not members:
            del self._groups[name]

    def _forget_client(self, name: str, member: Member) -> None:
        known = self._by_client[member.client_id]
        del known[name, member.channel]
        if not known:
            del self._by_client[member.client_id]

    def disconnected(self, channel: Channel) -> None:
        for name in self._registry.groups_of(channel):
            self.leave(name, channel)

    def expire(self, older_than_seconds: float) -> list[Channel]:
        dead = self._registry.silent(self._clock.monotonic(), older_than_seconds)
        for name, member in dead:
            self.leave(name, member.channel)
        return [member.channel for _, member in dead]

    def pick(self, name: str, may: Callable[[Member], bool] | None = None) -> Channel | None:
        """A connection of the group to ask about a transaction, each that ``may`` be asked in its turn."""
        members = self._groups.get(name, {})
        for _ in range(len(members)):
            channel = next(iter(members))
            member = members[channel] = members.pop(channel)  # behind all others
            if not channel.closed and (may is None or may(member)):
                return channel
        return None

    def find_client(self, client_id: str) -> Channel | None:
        known = self._by_client.get(client_id, {}).values()
        return next((member.channel for member in known if not member.channel.closed), None)

    def is_of_another(self, client_id: str, user: str | None) -> bool:
        """Whether another user's producers have this client id."""
        known = self._by_client.get(client_id, {}).values()
        return any(member.user != user and not member.channel.closed for member in known)
