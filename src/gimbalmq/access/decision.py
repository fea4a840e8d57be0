"""The decision: what a user's policies say about one thing that a request asks for.

The order is that of Apache 5.5. Entries that match resource, action and address are looked for in the custom policy,
and only if it has none, in the default policy. The narrowest resource decides: one with a kind before ``*``, a whole
name before a prefix, a longer prefix before a shorter one, a prefix before all names. So a Deny on a wide pattern loses
to an Allow on a narrower one.

If two entries for the very same resource match, which one request can bring about, Deny wins. (In Apache 5.3 Allow
wins, and a shorter prefix comes before a longer one.)
"""

from __future__ import annotations

from typing import NamedTuple

from gimbalmq.access.policies import (
    Acl,
    Action,
    Asked,
    Decision,
    Entry,
    Pattern,
    PolicyType,
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
    if acl is None:
        return NO_MATCHED_POLICIES
    for kind in PolicyType:  # Custom, then Default
        found = [entry for entry in acl.entries(kind) if _applies(entry, asked, source)]
        if found:
            return ALLOWED if _narrowest(found) == Decision.ALLOW else DENIED
    return NO_MATCHED_POLICIES


def _applies(entry: Entry, asked: Asked, source: str) -> bool:
    if not entry.resource.covers(asked.resource):
        return False
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
