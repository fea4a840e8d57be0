"""Policies: what a user may do with which resources, from which addresses.

The words are Apache's (ACL 2.0), on the wire and in files alike. Their letter case does not matter, and an unknown word
is an error that names it: a policy that was understood in part would allow or refuse something else than it says.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import NamedTuple, TypeVar

from gimbalmq.access.sources import check_sources
from gimbalmq.errors import InvalidParameterError
from gimbalmq.protocol.access_bodies import AclBody, EntryBody, PolicyBody, check_count

E = TypeVar("E", bound=StrEnum)

MAX_NAME_LETTERS = 255
_SHOWN_LETTERS = 80


class Rules(StrEnum):
    """Whose rules count for requests that Apache's broker leaves open (option ``authorizationRules``)."""

    STRICT = "strict"
    APACHE = "apache"


class Action(StrEnum):
    """What is done with a resource. ``ALL`` is only granted, ``ANY`` only asked for."""

    ALL = "All"
    ANY = "Any"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class ResourceKind(StrEnum):
    ANY = "Any"
    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


class Pattern(StrEnum):
    LITERAL = "LITERAL"
    PREFIXED = "PREFIXED"
    ANY = "ANY"


class Decision(StrEnum):
    ALLOW = "Allow"
    DENY = "Deny"


class PolicyType(StrEnum):
    """Default policies count for what no custom policy of the user matches."""

    CUSTOM = "Custom"
    DEFAULT = "Default"


def shown(text: object) -> str:
    """A value of a request as an error may show it."""
    whole = repr(text)
    return whole if len(whole) <= _SHOWN_LETTERS else f"{whole[:_SHOWN_LETTERS]}..."


def read_word(kind: type[E], text: str, what: str) -> E:
    """The word that a text stands for, whose letter case does not matter.

    Raises:
        InvalidParameterError: there is no such word.
    """
    found: E | None = _words(kind).get(text.strip().lower())
    if found is None:
        raise InvalidParameterError(f"{what} {shown(text)} is unknown: use {', '.join(kind)}")
    return found


@cache
def _words(kind: type[E]) -> dict[str, E]:
    return {word.value.lower(): word for word in kind}


class Resource(NamedTuple):
    """Something that requests need, or a pattern for many: ``Topic:orders``, ``Topic:ord*``, ``Topic:*``, ``*``."""

    kind: ResourceKind
    name: str = ""
    pattern: Pattern = Pattern.LITERAL

    @classmethod
    def literal(cls, kind: ResourceKind, name: str) -> Resource:
        """What a request names, whatever is in the name: a ``*`` there is a letter like any other."""
        return cls(kind, name, Pattern.LITERAL)

    @classmethod
    def parse(cls, text: str) -> Resource:
        """Reads the resource of a policy.

        Raises:
            InvalidParameterError: it is none. Apache's tools take ``T:a*b*`` for ``T:a*`` and ``Any:a`` for everything;
                both say less than they would allow, so they are refused here.
        """
        stripped = text.strip()
        if stripped == "*":
            return ANYTHING
        word, colon, name = stripped.partition(":")
        if not colon:
            raise InvalidParameterError(
                f"The resource is null. {shown(text)} has no kind: use for instance Topic:{stripped[:20] or 'name'}, "
                "Group:prefix*, Cluster:* or *"
            )
        kind = read_word(ResourceKind, word, "the resource's kind")
        if name == "*":
            return ANYTHING if kind == ResourceKind.ANY else cls(kind, "", Pattern.ANY)
        if kind == ResourceKind.ANY:
            raise InvalidParameterError(
                f"the resource {shown(text)} has a name but no kind: use * for everything, or name the kind"
            )
        pattern = Pattern.LITERAL
        if name.endswith("*"):
            name, pattern = name[:-1], Pattern.PREFIXED
        if not name or len(name) > MAX_NAME_LETTERS:
            raise InvalidParameterError(
                f"the resource {shown(text)} has a name of {len(name)} letters; use 1 to {MAX_NAME_LETTERS}"
            )
        if "*" in name:
            raise InvalidParameterError(
                f"the resource {shown(text)} has a * before its end; only the last letter may be *"
            )
        if not name.isprintable() or name.split() != [name]:
            raise InvalidParameterError(
                f"the resource {shown(text)} has blanks or unprintable letters in its name"
            )
        return cls(kind, name, pattern)

    def __str__(self) -> str:
        if self.kind == ResourceKind.ANY:
            return "*"
        if self.pattern == Pattern.ANY:
            return f"{self.kind}:*"
        return f"{self.kind}:{self.name}*" if self.pattern == Pattern.PREFIXED else f"{self.kind}:{self.name}"

    def covers(self, asked: Resource) -> bool:
        """Whether this pattern holds for a resource that a request needs, which is always a literal one."""
        if self.kind == ResourceKind.ANY:
            return True
        if self.kind != asked.kind:
            return False
        if self.pattern == Pattern.LITERAL:
            return self.name == asked.name
        return self.pattern == Pattern.ANY or asked.name.startswith(self.name)


ANYTHING = Resource(ResourceKind.ANY, "", Pattern.ANY)


class Asked(NamedTuple):
    """What one request wants of one resource; any one of the actions is enough."""

    resource: Resource
    actions: frozenset[Action]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a policy.

    Attributes:
        sources: addresses and ranges that it holds for; empty means every address.
    """

    resource: Resource
    actions: frozenset[Action]
    decision: Decision
    sources: tuple[str, ...] = ()

    @classmethod
    def of(cls, body: EntryBody) -> Entry:
        """Reads the wire form; raises InvalidParameterError."""
        if body.resource is None:
            raise InvalidParameterError(
                "The resource is null. Each entry needs one, such as Topic:orders or Group:*"
            )
        resource = Resource.parse(body.resource)
        if not body.actions:
            raise InvalidParameterError(
                f"The actions is empty. The entry for {resource} needs at least one, such as Pub"
            )
        actions = frozenset(read_word(Action, word, "the action") for word in body.actions)
        if Action.ANY in actions:
            raise InvalidParameterError(f"The actions can not be Any. Use All in the entry for {resource}")
        if not body.decision:
            raise InvalidParameterError(
                f"The decision is null or illegal. The entry for {resource} needs Allow or Deny"
            )
        decision = read_word(Decision, body.decision, "The decision is null or illegal:")
        return cls(resource, actions, decision, check_sources(body.source_ips or ()))

    def body(self) -> EntryBody:
        return EntryBody(
            actions=[action.value for action in Action if action in self.actions],
            decision=self.decision.value,
            resource=str(self.resource),
            source_ips=list(self.sources) or None,
        )


@dataclass(frozen=True, slots=True)
class Policy:
    type: PolicyType
    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, body: PolicyBody) -> Policy:
        """Reads the wire form; raises InvalidParameterError."""
        kind = PolicyType.CUSTOM
        if body.policy_type:
            kind = read_word(PolicyType, body.policy_type, "the policy's type")
        if not body.entries:
            raise InvalidParameterError(f"The policies is empty. The {kind} policy has no entries")
        return cls(kind, tuple(Entry.of(entry) for entry in body.entries))

    def merged(self, entries: tuple[Entry, ...]) -> Policy:
        """With these entries in the place of all those for the same resources, and new ones behind them."""
        new: dict[Resource, list[Entry]] = {}
        for entry in entries:
            new.setdefault(entry.resource, []).append(entry)
        merged: dict[Resource, list[Entry]] = {}
        for entry in self.entries:
            if entry.resource in new:
                merged[entry.resource] = new[entry.resource]
            else:
                merged.setdefault(entry.resource, []).append(entry)
        merged |= new
        return replace(self, entries=tuple(entry for group in merged.values() for entry in group))

    def body(self) -> PolicyBody:
        return PolicyBody(entries=[entry.body() for entry in self.entries], policy_type=self.type.value)


@dataclass(frozen=True, slots=True)
class Acl:
    """All policies of one user, at most one of each type."""

    user: str
    policies: tuple[Policy, ...] = ()

    @classmethod
    def of(cls, body: AclBody, subject: str | None = None) -> Acl:
        """Reads the wire form; the body's own subject counts before the one of the header.

        Raises:
            InvalidParameterError: something in it is wrong, or it is too long.
        """
        user = user_of_subject(body.subject or subject)
        if not body.policies:
            raise InvalidParameterError("The policies is empty. Give at least one with an entry")
        return cls(user).merged(Policy.of(policy) for policy in body.policies)

    @property
    def subject(self) -> str:
        return subject_of_user(self.user)

    def entries(self, kind: PolicyType) -> tuple[Entry, ...]:
        for policy in self.policies:
            if policy.type == kind:
                return policy.entries
        return ()

    @property
    def entry_count(self) -> int:
        return sum(len(policy.entries) for policy in self.policies)

    def merged(self, policies: Iterable[Policy]) -> Acl:
        """With these policies over its own: an entry replaces those for the same resource.

        Raises:
            InvalidParameterError: there would be too many.
        """
        by_type = {policy.type: policy for policy in self.policies}
        for policy in policies:
            before = by_type.get(policy.type)
            by_type[policy.type] = policy if before is None else before.merged(policy.entries)
        merged = replace(self, policies=tuple(by_type[kind] for kind in PolicyType if kind in by_type))
        sources = sum(len(entry.sources) for policy in merged.policies for entry in policy.entries)
        check_count(merged.entry_count, sources)
        return merged

    def without(self, kind: PolicyType, resource: Resource) -> Acl | None:
        """Without the entries for exactly this resource in the policy of this type; None if nothing is left."""
        policies = []
        for policy in self.policies:
            if policy.type == kind:
                kept = tuple(entry for entry in policy.entries if entry.resource != resource)
                policy = replace(policy, entries=kept)
            if policy.entries:
                policies.append(policy)
        return replace(self, policies=tuple(policies)) if policies else None

    def filtered(self, resource_text: str) -> Acl | None:
        """With the entries only whose resources contain this text; None if there are none."""
        if not resource_text.strip():
            return self
        policies = []
        for policy in self.policies:
            kept = tuple(entry for entry in policy.entries if resource_text in str(entry.resource))
            if kept:
                policies.append(replace(policy, entries=kept))
        return replace(self, policies=tuple(policies)) if policies else None

    def body(self) -> AclBody:
        return AclBody(policies=[policy.body() for policy in self.policies], subject=self.subject)


def subject_of_user(name: str) -> str:
    return f"User:{name}"


def user_of_subject(subject: str | None) -> str:
    """The name in ``User:name``.

    Raises:
        InvalidParameterError: it is no such text.
    """
    word, colon, name = (subject or "").strip().partition(":")
    if not name or not colon or word.lower() != "user":
        raise InvalidParameterError(f"the subject {shown(subject)} is no user: use User:name")
    return name
