"""Which topics, groups and clusters a request is about: small pieces that the rows of the table of needs are made of.

A piece knows the field it looks at, what it wants of the resource named there, and how to say so in the documentation.
Bodies are read by the same functions as the handlers use, so that both see the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Protocol

from gimbalmq.access.policies import Action, Asked, Resource, ResourceKind
from gimbalmq.errors import InvalidParameterError
from gimbalmq.model.ids import parse_offset_id
from gimbalmq.model.topics import AUTO_CREATE_TOPIC, RETRY_PREFIX
from gimbalmq.protocol.bodies import GroupConfig, Heartbeat, LockRequest, TopicConfig
from gimbalmq.protocol.codes import ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.management import ConsumeDirectly
from gimbalmq.protocol.headers.messages import EndTransaction, SendBack, ViewMessage

MOST_ROWS = 200
"""A list of more topics or groups is not read row by row, because the event loop would wait for it."""

MOST_LIST_BYTES = 256 * 1024

MOST_NAMES = 1_000
"""Topics and groups of one heartbeat, list or request for locks; each may need a look at all policies of its user."""

_LONGEST_KEPT = 255

Actions = frozenset[Action]

_NONE: Actions = frozenset()
_PUB, _SUB, _CREATE, _UPDATE, _GET = (
    frozenset({action}) for action in (Action.PUB, Action.SUB, Action.CREATE, Action.UPDATE, Action.GET)
)


@dataclass(frozen=True, slots=True)
class About:
    """A request, and what is needed to understand it.

    Attributes:
        cluster: name of the cluster that the server belongs to.
        topic_at: the topic of the message that lies at an offset of the commit log; None if there is none.
    """

    command: RemotingCommand
    cluster: str
    topic_at: Callable[[int], str | None] | None = None

    def field(self, name: str) -> str | None:
        fields = self.command.ext_fields
        return None if fields is None else fields.get(name)


class Piece(Protocol):
    """One part of what a request needs."""

    @property
    def words(self) -> str: ...

    def asked(self, about: About) -> Iterator[Asked]: ...


def topic_asked(topic: str, actions: Actions, of_retry: Actions | None = None) -> Asked:
    """A topic; a group's retry topic counts as the group."""
    return _kept(ResourceKind.TOPIC, topic, actions, of_retry or actions)


def group_asked(group: str, actions: Actions) -> Asked:
    return _kept(ResourceKind.GROUP, group, actions, actions)


def cluster_asked(cluster: str, actions: Actions) -> Asked:
    return _kept(ResourceKind.CLUSTER, cluster, actions, actions)


def _make(kind: ResourceKind, name: str, actions: Actions, of_retry: Actions) -> Asked:
    if kind is ResourceKind.TOPIC and name.startswith(RETRY_PREFIX):
        return Asked(Resource(ResourceKind.GROUP, name.removeprefix(RETRY_PREFIX)), of_retry)
    return Asked(Resource(kind, name), actions)


_make_once = lru_cache(8192)(_make)


def _kept(kind: ResourceKind, name: str, actions: Actions, of_retry: Actions) -> Asked:
    # Names that no topic can have are not kept: they may be as long as a header.
    return (_make_once if len(name) <= _LONGEST_KEPT else _make)(kind, name, actions, of_retry)


def _listed(actions: Actions) -> str:
    return ", ".join(action.value for action in Action if action in actions)


def _required(about: About, field: str) -> str:
    value = about.field(field)
    if value is None:
        raise InvalidParameterError(
            f"request {about.command.code} has no field {field}, so nobody knows what it is about",
            code=ResponseCode.SYSTEM_ERROR,
        )
    return value


@dataclass(frozen=True, slots=True)
class Topic:
    """The topic in a field.

    Attributes:
        optional: the handler serves the request without it, and nothing is then asked for.
        of_retry: what is wanted of the group if the topic is a group's retry topic; as of a topic if empty.
        skip_retry: Apache's rule for requests that name their group besides: a retry topic is not looked at.
    """

    field: str
    actions: Actions
    optional: bool = False
    of_retry: Actions = _NONE
    skip_retry: bool = False

    @property
    def words(self) -> str:
        given = " if given" if self.optional else ""
        text = f"Topic `{self.field}`{given}: {_listed(self.actions)}"
        if self.skip_retry:
            return f"{text} (not a retry topic)"
        return f"{text} (retry topic: its Group: {_listed(self.of_retry)})" if self.of_retry else text

    def asked(self, about: About) -> Iterator[Asked]:
        if self.optional and not about.field(self.field):
            return
        topic = _required(about, self.field)
        if not (self.skip_retry and topic.startswith(RETRY_PREFIX)):
            yield topic_asked(topic, self.actions, self.of_retry or None)


@dataclass(frozen=True, slots=True)
class Group:
    """The group in a field."""

    field: str
    actions: Actions
    optional: bool = False

    @property
    def words(self) -> str:
        given = " if given" if self.optional else ""
        return f"Group `{self.field}`{given}: {_listed(self.actions)}"

    def asked(self, about: About) -> Iterator[Asked]:
        if self.optional and not about.field(self.field):
            return
        yield group_asked(_required(about, self.field), self.actions)


@dataclass(frozen=True, slots=True)
class Each:
    """Every topic or group of a field that holds a list."""

    kind: ResourceKind
    field: str
    separator: str
    actions: Actions

    @property
    def words(self) -> str:
        return f"each {self.kind.value} of `{self.field}`: {_listed(self.actions)}"

    def asked(self, about: About) -> Iterator[Asked]:
        listed = about.field(self.field) or ""
        if listed.count(self.separator) >= MOST_NAMES:
            raise InvalidParameterError(
                f"{self.field} of request {about.command.code} is a list of more than {MOST_NAMES}; a user without "
                "all rights may name so many at once: ask several times",
                code=ResponseCode.SYSTEM_ERROR,
            )
        make = topic_asked if self.kind is ResourceKind.TOPIC else group_asked
        for name in listed.split(self.separator):
            if name:
                yield make(name, self.actions)


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster of the server; by Apache's rule the one that the request names, if it does."""

    actions: Actions
    as_named: bool = False

    @property
    def words(self) -> str:
        return f"Cluster: {_listed(self.actions)}"

    def asked(self, about: About) -> Iterator[Asked]:
        named = about.field("clusterName") if self.as_named else None
        yield cluster_asked(named or about.cluster, self.actions)


@dataclass(frozen=True, slots=True)
class Unnamed:
    """All topics, because a field that would name one of them is not there."""

    field: str
    actions: Actions

    @property
    def words(self) -> str:
        return f"without `{self.field}` Cluster: {_listed(self.actions)}"

    def asked(self, about: About) -> Iterator[Asked]:
        if not about.field(self.field):
            yield cluster_asked(about.cluster, self.actions)


@dataclass(frozen=True, slots=True)
class WithField:
    """The cluster, because a field asks for what no topic's rights cover."""

    field: str
    actions: Actions

    @property
    def words(self) -> str:
        return f"with `{self.field}` Cluster: {_listed(self.actions)}"

    def asked(self, about: About) -> Iterator[Asked]:
        if about.field(self.field):
            yield cluster_asked(about.cluster, self.actions)


class Routed:
    """The topic whose route is asked for. Every producer asks for that of TBW102, so any user may."""

    words = "Topic `topic`: Pub, Sub, Get (retry topic: its Group: Sub, Get; `TBW102`: any user)"

    def asked(self, about: About) -> Iterator[Asked]:
        topic = _required(about, "topic")
        if topic != AUTO_CREATE_TOPIC:
            yield topic_asked(topic, _PUB | _SUB | _GET, _SUB | _GET)


@dataclass(frozen=True, slots=True)
class Heard:
    """What the consumers of a heartbeat say of themselves; short ones (heartbeat V2) have no subscriptions."""

    skip_retry: bool = False

    @property
    def words(self) -> str:
        return "each consumer: its Group and every Topic it subscribes: Sub; producers: nothing"

    def asked(self, about: About) -> Iterator[Asked]:
        consumers = Heartbeat.of_request(about.command.body).consumer_data_set
        groups = {consumer.group_name for consumer in consumers}
        topics = {wanted.topic for consumer in consumers for wanted in consumer.subscription_data_set}
        yield from _consumed(about, groups, topics, skip_retry=self.skip_retry)


@dataclass(frozen=True, slots=True)
class Locked:
    """The group and the queues of a lock request."""

    skip_retry: bool = False

    @property
    def words(self) -> str:
        return "Group and every Topic of the body: Sub"

    def asked(self, about: About) -> Iterator[Asked]:
        wanted = LockRequest.of_request(about.command.body)
        topics = {queue.topic for queue in wanted.mq_set}
        yield from _consumed(about, {wanted.consumer_group}, topics, skip_retry=self.skip_retry)


def _consumed(about: About, groups: set[str], topics: set[str], *, skip_retry: bool) -> Iterator[Asked]:
    if len(groups) + len(topics) > MOST_NAMES:
        raise InvalidParameterError(
            f"request {about.command.code} names {len(groups)} groups and {len(topics)} topics; a user without all "
            f"rights may name {MOST_NAMES} at once: use several clients",
            code=ResponseCode.SYSTEM_ERROR,
        )
    for group in sorted(groups):
        yield group_asked(group, _SUB)
    for topic in sorted(topics):
        if not (skip_retry and topic.startswith(RETRY_PREFIX)):
            yield topic_asked(topic, _SUB)


class GroupSettings:
    """The group whose settings are the body."""

    words = "Group: Create"

    def asked(self, about: About) -> Iterator[Asked]:
        yield group_asked(GroupConfig.of_request(about.command.body).group_name, _CREATE)


@dataclass(frozen=True, slots=True)
class Rows:
    """Every topic or group of a body that is a list of settings; a long list needs the right to change all."""

    kind: ResourceKind
    field: str

    @property
    def words(self) -> str:
        return f"each {self.kind.value}: Create; more than {MOST_ROWS} of them: Cluster: Update"

    def asked(self, about: About) -> Iterator[Asked]:
        body = about.command.body
        if len(body) > MOST_LIST_BYTES:
            yield cluster_asked(about.cluster, _UPDATE)
            return
        names: Iterable[str]
        if self.kind is ResourceKind.TOPIC:
            names = (row.topic_name for row in TopicConfig.rows_of_request(body, self.field))
        else:
            names = (row.group_name for row in GroupConfig.rows_of_request(body, self.field))
        found = list(islice(names, MOST_ROWS + 1))
        if len(found) > MOST_ROWS:
            yield cluster_asked(about.cluster, _UPDATE)
            return
        make = topic_asked if self.kind is ResourceKind.TOPIC else group_asked
        for name in found:
            yield make(name, _CREATE)


@dataclass(frozen=True, slots=True)
class Stored:
    """The topic of the stored message that a request names by its place, whatever topic the request names.

    If no message lies there, the handler says so, and nothing is asked for. It does so at once, before anything else
    can be stored there; a handler that takes its time is ``late``, and then the cluster is asked for instead.

    Attributes:
        place: the field, for the documentation.
        find: its value, read from the ext-fields as the handler reads it; None if there is no such place.
    """

    place: str
    find: Callable[[Mapping[str, str] | None], int | None]
    actions: Actions
    of_retry: Actions = _NONE
    late: bool = False

    @property
    def words(self) -> str:
        return f"Topic of the message stored at `{self.place}`: {_listed(self.actions)}"

    def asked(self, about: About) -> Iterator[Asked]:
        place = self.find(about.command.ext_fields)
        if place is None:
            return  # the handler refuses it
        topic = None if about.topic_at is None else about.topic_at(place)
        if topic is not None:
            yield topic_asked(topic, self.actions, self.of_retry or None)
        elif self.late or about.topic_at is None:
            yield cluster_asked(about.cluster, _GET)


def viewed(fields: Mapping[str, str] | None) -> int | None:
    return ViewMessage.from_ext(fields).offset


def sent_back(fields: Mapping[str, str] | None) -> int | None:
    return SendBack.from_ext(fields).offset


def ended(fields: Mapping[str, str] | None) -> int | None:
    return EndTransaction.from_ext(fields).commit_log_offset


def handed_over(fields: Mapping[str, str] | None) -> int | None:
    try:
        return parse_offset_id(ConsumeDirectly.from_ext(fields).msg_id or "").commitlog_offset
    except ValueError:
        return None
