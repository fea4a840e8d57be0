"""The decision: what a user's policies say about one thing that a request asks for.

The order is that of Apache 5.5. Entries that match resource, action and address are looked for in the custom policy,
and only if it has none, in the default policy. The narrowest resource decides: one with a kind before ``*``, a whole
name before a prefix, a longer prefix before a shorter one, a prefix before all names. So a Deny on a wide pattern loses
to an Allow on a narrower one.

If two entries for the very same resource match, which one request can bring about, Deny wins. (In Apache 5.3 Allow
wins, and a shorter prefix comes before a longer one.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gimbalmq.access.policies import (
    ANYTHING,
    Acl,
    Action,
    Asked,
    Decision,
    Entry,
    Pattern,
    PolicyType,
    Resource,
    ResourceKind,
)
from gimbalmq.access.sources import matches


class Verdict(NamedTuple):
    """Whether it is allowed, and if not, why, in Apache's words."""

    allowed: bool
    reason: str = ""


ALLOWED = Verdict(True)
NO_MATCHED_POLICIES = Verdict(False, "no matched policies")
DENIED = Verdict(False, "the decision is deny")

_WIDTH = {Pattern.LITERAL: 0, Pattern.PREFIXED: 1, Pattern.ANY: 2}


def decide(acl: Acl | None, asked: Asked, source: str) -> Verdict:
    """What the policies of a normal user say.

    Args:
        acl: the user's policies; None if there are none.
        source: the address that the request comes from, without a port.
    """
    return Decider(acl).decide(asked, source)


class Decider:
    """The policies of one user, ready for many decisions.

    Entries are found by name, so that a decision takes no longer the more of them there are: a heartbeat may ask for a
    thousand of a user who has a thousand.
    """

    __slots__ = ("_policies",)

    def __init__(self, acl: Acl | None) -> None:
        # Custom, then Default
        found = () if acl is None else (acl.entries(kind) for kind in PolicyType)
        self._policies = [_Entries(entries) for entries in found if entries]

    def decide(self, asked: Asked, source: str) -> Verdict:
        """As the function of this name."""
        for policy in self._policies:
            found = [entry for entry in policy.covering(asked.resource) if _applies(entry, asked, source)]
            if found:
                return ALLOWED if _narrowest(found) == Decision.ALLOW else DENIED
        return NO_MATCHED_POLICIES


class _Entries:
    """The entries of a policy by their resources."""

    __slots__ = ("_by_resource", "_lengths")

    def __init__(self, entries: tuple[Entry, ...]) -> None:
        self._by_resource: dict[Resource, list[Entry]] = {}
        lengths: dict[ResourceKind, set[int]] = {}
        for entry in entries:
            resource = entry.resource
            self._by_resource.setdefault(resource, []).append(entry)
            if resource.pattern == Pattern.PREFIXED:
                lengths.setdefault(resource.kind, set()).add(len(resource.name))
        self._lengths = {kind: sorted(found) for kind, found in lengths.items()}

    def covering(self, asked: Resource) -> Iterator[Entry]:
        """Entries whose resource holds for the one that is asked for."""
        kind, name, _ = asked
        by_resource = self._by_resource
        yield from by_resource.get(Resource(kind, name), ())
        for length in self._lengths.get(kind, ()):
            if length > len(name):
                break
            yield from by_resource.get(Resource(kind, name[:length], Pattern.PREFIXED), ())
        yield from by_resource.get(Resource(kind, "", Pattern.ANY), ())
        yield from by_resource.get(ANYTHING, ())


def _applies(entry: Entry, asked: Asked, source: str) -> bool:
    some_action = Action.ANY in asked.actions or Action.ALL in entry.actions
    if not some_action and entry.actions.isdisjoint(asked.actions):
        return False
    return not entry.sources or matches(entry.sources, source)


def _narrowest(entries: list[Entry]) -> Decision:
    return min(entries, key=_rank).decision


def _rank(entry: Entry) -> tuple[bool, int, int, bool]:
    """The smallest one decides."""
    resource = entry.resource
    length = len(resource.name) if resource.pattern == Pattern.PREFIXED else 0
    return (
        resource.kind == ResourceKind.ANY,
        _WIDTH[resource.pattern],
        -length,
        entry.decision == Decision.ALLOW,
    )
