"""Random policies and questions, for hypothesis; names are few and alike, so that patterns meet them."""

from __future__ import annotations

from hypothesis import strategies as st

from gimbalmq.access.policies import (
    ANYTHING,
    Acl,
    Action,
    Asked,
    Decision,
    Entry,
    Pattern,
    Policy,
    PolicyType,
    Resource,
    ResourceKind,
)

SOURCES = ("10.0.0.1", "10.0.0.2", "10.1.0.1", "192.168.0.1", "::1", "2001:db8::7")
RANGES = ("10.0.0.1", "10.0.0.0/24", "10.0.0.0/8", "0.0.0.0/0", "::1", "2001:DB8:0::/32", "::/0")

names = st.text("ab", min_size=1, max_size=3)
kinds = st.sampled_from([kind for kind in ResourceKind if kind != ResourceKind.ANY])
granted_actions = st.sampled_from([action for action in Action if action != Action.ANY])
asked_actions = st.sampled_from([action for action in Action if action != Action.ALL])

resources = st.one_of(
    st.just(ANYTHING),
    st.builds(Resource, kinds, st.just(""), st.just(Pattern.ANY)),
    st.builds(Resource, kinds, names, st.sampled_from([Pattern.LITERAL, Pattern.PREFIXED])),
)
entries = st.builds(
    Entry,
    resources,
    st.frozensets(granted_actions, min_size=1, max_size=3),
    st.sampled_from(Decision),
    st.lists(st.sampled_from(RANGES), unique=True, max_size=2).map(tuple),
)
_entry_lists = st.lists(entries, max_size=5).map(tuple)


def _policies(custom: tuple[Entry, ...], default: tuple[Entry, ...]) -> tuple[Policy, ...]:
    both = (Policy(PolicyType.CUSTOM, custom), Policy(PolicyType.DEFAULT, default))
    return tuple(policy for policy in both if policy.entries)


policies = st.builds(_policies, _entry_lists, _entry_lists).filter(bool)
acls = st.builds(Acl, st.just("u"), policies)
questions = st.builds(
    Asked,
    st.builds(Resource.literal, kinds, names),
    st.frozensets(asked_actions, min_size=1, max_size=2),
)
