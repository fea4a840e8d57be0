"""Accounts of 4.x as users and policies: the rights that an account has, in the words of 5.x.

========================  ==========================================================================
of the account            of the user
========================  ==========================================================================
``admin``, no lists       a Super user
``admin`` with lists      a Normal user: all of clusters; topics and groups may be created, changed
                          and deleted; sends and reads are checked like anybody's
``name=PUB``              Allow Pub
``name=SUB``              Allow Sub, Get
``name=PUB|SUB``          Allow Pub, Sub, Get
``name=DENY``             Deny All
``default...Perm``        the Default policy, for all names
========================  ==========================================================================

PUB does not become Get: that action also reads messages, by key and by offset, for which 4.x wants SUB.

In 4.x a listed right takes the place of the default. In 5.x the default policy also counts for actions of which the
custom policy says nothing. So a listed right that is narrower than the default has a second entry, for the rest: Deny.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gimbalmq.access.plain_acl import Account, Perm
from gimbalmq.access.policies import (
    Acl,
    Action,
    Decision,
    Entry,
    Pattern,
    Policy,
    PolicyType,
    Resource,
    ResourceKind,
)
from gimbalmq.access.users import User, UserType
from gimbalmq.model.topics import RETRY_PREFIX, TRACE_TOPIC

_PUB = frozenset({Action.PUB})
_SUB = frozenset({Action.SUB, Action.GET})
_MANAGED = frozenset({Action.CREATE, Action.UPDATE, Action.DELETE, Action.LIST})
_ALL = frozenset({Action.ALL})


def user_of(account: Account) -> User:
    """The user that an account is."""
    is_super = account.admin and not account.topics and not account.groups
    return User(account.access_key, account.secret_key, UserType.SUPER if is_super else UserType.NORMAL)


def acl_of(account: Account) -> Acl | None:
    """The policies that an account has; None for a Super user, who needs none."""
    if user_of(account).is_super:
        return None
    topics = {name: perm for name, perm in account.topics.items() if not name.startswith(RETRY_PREFIX)}
    # In 4.x the retry topic stands for the group, and a right in the list of groups takes its place.
    retried = {name: perm for name, perm in account.topics.items() if name.startswith(RETRY_PREFIX)}
    groups = {name.removeprefix(RETRY_PREFIX): perm for name, perm in retried.items()} | dict(account.groups)
    custom = [
        *_listed(ResourceKind.TOPIC, _with_traces(topics, account.default_topic), account.default_topic),
        *_listed(ResourceKind.GROUP, groups, account.default_group),
    ]
    default = [
        *_defaults(ResourceKind.TOPIC, account.default_topic, _MANAGED if account.admin else frozenset()),
        *_defaults(
            ResourceKind.GROUP,
            account.default_group,
            _MANAGED | {Action.GET} if account.admin else frozenset(),
        ),
    ]
    if account.admin:
        default.append(Entry(_all_of(ResourceKind.CLUSTER), _ALL, Decision.ALLOW))
    policies = [
        Policy(kind, tuple(entries))
        for kind, entries in ((PolicyType.CUSTOM, custom), (PolicyType.DEFAULT, default))
        if entries
    ]
    return Acl(account.access_key, tuple(policies))


def _with_traces(topics: Mapping[str, Perm], default: Perm) -> dict[str, Perm]:
    """Everybody may send traces, as in 4.x; here an account that is listed with another right may not."""
    traces = Perm.PUB_SUB if default.subscribes else Perm.PUB
    return dict(topics) if TRACE_TOPIC in topics else {**topics, TRACE_TOPIC: traces}


def _listed(kind: ResourceKind, rights: Mapping[str, Perm], default: Perm) -> Iterator[Entry]:
    for name, perm in rights.items():
        # Not Resource.parse: a name of 4.x is never a pattern.
        resource = Resource(kind, name, Pattern.LITERAL)
        allowed = _actions(perm)
        if not allowed:
            yield Entry(resource, _ALL, Decision.DENY)
            continue
        yield Entry(resource, allowed, Decision.ALLOW)
        rest = _actions(default) - allowed
        if rest:
            yield Entry(resource, rest, Decision.DENY)


def _defaults(kind: ResourceKind, default: Perm, managed: frozenset[Action]) -> Iterator[Entry]:
    allowed = _actions(default) | managed
    if allowed:
        yield Entry(_all_of(kind), allowed, Decision.ALLOW)


def _all_of(kind: ResourceKind) -> Resource:
    return Resource(kind, "", Pattern.ANY)


def _actions(perm: Perm) -> frozenset[Action]:
    pub = _PUB if perm.publishes else frozenset[Action]()
    return pub | _SUB if perm.subscribes else pub
