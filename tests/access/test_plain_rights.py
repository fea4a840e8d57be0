"""Accounts of 4.x as users and policies: each line of 4.x's order of checks, and its whole table of rights."""

from __future__ import annotations

from itertools import product

import pytest

from gimbalmq.access.decision import decide
from gimbalmq.access.plain_acl import Account, Perm
from gimbalmq.access.plain_rights import acl_of, user_of
from gimbalmq.access.policies import Action, Asked, Resource, ResourceKind
from gimbalmq.access.users import UserType

TOPIC, GROUP, CLUSTER = ResourceKind.TOPIC, ResourceKind.GROUP, ResourceKind.CLUSTER


def may(account: Account, kind: ResourceKind, name: str, *actions: Action) -> bool:
    if user_of(account).is_super:
        return True
    return decide(acl_of(account), Asked(Resource(kind, name), frozenset(actions)), "10.0.0.1").allowed


def account(**fields: object) -> Account:
    return Account("somebody", "the-hidden-words", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [TOPIC, GROUP])
@pytest.mark.parametrize(("default", "listed"), list(product(Perm, [None, *Perm])))
def test_a_listed_right_takes_the_place_of_the_default(
    kind: ResourceKind, default: Perm, listed: Perm | None
) -> None:
    rights = {} if listed is None else {"known": listed}
    some = (
        account(default_topic=default, topics=rights)
        if kind is TOPIC
        else account(default_group=default, groups=rights)
    )
    counts = default if listed is None else listed
    assert may(some, kind, "known", Action.SUB) == counts.subscribes
    assert may(some, kind, "known", Action.SUB, Action.GET) == counts.subscribes
    assert may(some, kind, "known", Action.SUB, Action.UPDATE) == counts.subscribes
    assert may(some, kind, "known", Action.PUB) == counts.publishes
    # Names are whole, and nobody but an administrator manages anything.
    assert may(some, kind, "known2", Action.SUB) == default.subscribes
    assert may(some, kind, "known2", Action.PUB) == default.publishes
    other = GROUP if kind is TOPIC else TOPIC
    for action in (Action.PUB, Action.SUB, Action.GET):
        assert not may(some, other, "known", action)
    for action in (Action.CREATE, Action.UPDATE, Action.DELETE, Action.LIST):
        assert not may(some, kind, "known", action)


def test_who_may_only_send_does_not_read_messages_by_key_or_place() -> None:
    sender = account(topics={"known": Perm.PUB})
    assert not may(sender, TOPIC, "known", Action.GET)
    assert not may(sender, TOPIC, "known", Action.SUB, Action.GET)


def test_an_administrator_without_lists_is_a_super_user() -> None:
    assert user_of(account(admin=True)).type == UserType.SUPER
    assert acl_of(account(admin=True)) is None
    assert user_of(account(admin=True, default_topic=Perm.PUB)).type == UserType.SUPER


def test_an_administrator_with_lists_is_checked_like_anybody_and_manages_everything() -> None:
    for lists in ({"topics": {"known": Perm.PUB}}, {"groups": {"known": Perm.SUB}}):
        some = account(admin=True, **lists)
        assert user_of(some).type == UserType.NORMAL
        for kind, action in product((TOPIC, GROUP), (Action.CREATE, Action.UPDATE, Action.DELETE)):
            assert may(some, kind, "any", action)
        assert may(some, CLUSTER, "DefaultCluster", Action.UPDATE)
        assert not may(some, TOPIC, "any", Action.PUB)
        assert not may(some, TOPIC, "any", Action.SUB, Action.GET)
    assert not may(account(topics={"known": Perm.PUB}), CLUSTER, "DefaultCluster", Action.GET)


def test_a_name_is_never_a_pattern() -> None:
    acl = acl_of(account(topics={"some": Perm.PUB_SUB}, groups={"some": Perm.SUB}))
    assert acl is not None
    assert not may(account(topics={"some": Perm.PUB}), TOPIC, "some-other", Action.PUB)


def test_everybody_may_send_traces_unless_another_right_is_listed() -> None:
    traces = "RMQ_SYS_TRACE_TOPIC"
    for default in Perm:
        some = account(default_topic=default)
        assert may(some, TOPIC, traces, Action.PUB)
        assert may(some, TOPIC, traces, Action.SUB) == default.subscribes
    assert not may(account(topics={traces: Perm.DENY}), TOPIC, traces, Action.PUB)


def test_the_retry_topic_of_a_group_stands_for_the_group() -> None:
    some = account(topics={"%RETRY%billing": Perm.SUB, "%RETRY%both": Perm.DENY}, groups={"both": Perm.SUB})
    assert may(some, GROUP, "billing", Action.SUB)
    assert may(some, GROUP, "both", Action.SUB)
    assert not may(some, TOPIC, "%RETRY%billing", Action.SUB)
