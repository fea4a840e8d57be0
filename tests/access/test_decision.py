"""The order of decision: Apache's own cases, and random policies against a second reading of its rules."""

from __future__ import annotations

import lzma
from functools import cmp_to_key
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gimbalmq.access import decision as decisions
from gimbalmq.access.decision import ALLOWED, DENIED, NO_MATCHED_POLICIES, Decider, decide
from gimbalmq.access.policies import (
    Acl,
    Action,
    Asked,
    Decision,
    Entry,
    Policy,
    PolicyType,
    Resource,
    ResourceKind,
)
from gimbalmq.protocol.access_bodies import acl_of_request
from tests.access import strategies

HERE = "192.168.0.1"
_RECORDED = Path(__file__).parents[1] / "golden" / "decisions_5_5_0.tsv.xz"


def _entries(*texts: str) -> tuple[Entry, ...]:
    """Each of the form ``Topic:t* Allow Pub,Sub``, for 192.168.0.0/24."""
    found = []
    for text in texts:
        resource, decision, actions = text.split()
        found.append(
            Entry(
                Resource.parse(resource),
                frozenset(Action(word) for word in actions.split(",")),
                Decision(decision),
                ("192.168.0.0/24",),
            )
        )
    return tuple(found)


def _custom(*texts: str) -> Acl:
    return Acl("test", (Policy(PolicyType.CUSTOM, _entries(*texts)),))


def _ask(acl: Acl | None, text: str, source: str = HERE) -> str:
    resource, actions = text.split()
    asked = Asked(Resource.parse(resource), frozenset(Action(word) for word in actions.split(",")))
    verdict = decide(acl, asked, source)
    return "allow" if verdict.allowed else verdict.reason


NOTHING = "no matched policies"
DENY = "the decision is deny"

_CASES: list[tuple[Acl, dict[str, str]]] = [
    (
        _custom("Topic:test* Allow Pub"),
        {"Topic:test Pub": "allow", "Topic:abc Pub": NOTHING, "Topic:test Sub": NOTHING},
    ),
    (
        _custom(
            "* Allow Pub,Sub",
            "Topic:* Deny Pub,Sub",
            "Topic:test* Allow Pub,Sub",
            "Topic:test-1 Deny Pub,Sub",
        ),
        {
            "Topic:test-1 Pub": DENY,
            "Topic:test-2 Pub": "allow",
            "Topic:abc Pub": DENY,
            "Group:test-2 Sub": "allow",
        },
    ),
    (
        Acl(
            "test",
            (
                Policy(PolicyType.CUSTOM, _entries("Topic:test* Deny Pub")),
                Policy(PolicyType.DEFAULT, _entries("Topic:* Allow Pub")),
            ),
        ),
        {"Topic:test Pub": DENY, "Topic:abc Pub": "allow"},
    ),
    (
        _custom(
            "* Allow Pub",
            "Topic:* Allow Pub",
            "Topic:test* Allow Pub",
            "Topic:test_* Deny Pub",
            "Topic:test_001 Deny Pub",
        ),
        {"Topic:test_001 Pub": DENY, "Topic:test_002 Pub": DENY, "Topic:test Pub": "allow"},
    ),
    (
        _custom("Cluster:c Allow All"),
        {"Cluster:c Update": "allow", "Cluster:c Any": "allow", "Cluster:d Update": NOTHING},
    ),
    # One action of several is enough, for a Deny too.
    (
        _custom("Topic:a Deny Sub", "Topic:* Allow Pub,Get"),
        {"Topic:a Sub,Get": DENY, "Topic:a Pub,Get": "allow", "Topic:b Sub,Get": "allow"},
    ),
]


@pytest.mark.parametrize(
    ("acl", "question", "answer"),
    [(acl, question, answer) for acl, answers in _CASES for question, answer in answers.items()],
)
def test_apaches_cases(acl: Acl, question: str, answer: str) -> None:
    assert _ask(acl, question) == answer
    backwards = Acl(acl.user, tuple(Policy(policy.type, policy.entries[::-1]) for policy in acl.policies))
    assert _ask(backwards, question) == answer
    assert _ask(acl, question, "10.10.0.1") == NOTHING


def test_apaches_classes_decide_alike() -> None:
    """See tests/peers/record_decisions.py."""
    text = lzma.decompress(_RECORDED.read_bytes()).decode()
    seen = set()
    for line in text.splitlines():
        body, kind, name, actions, source, decided = line.split("\t")
        asked = Asked(
            Resource.literal(ResourceKind(kind), name), frozenset(Action(word) for word in actions.split(","))
        )
        verdict = decide(Acl.of(acl_of_request(body.encode())), asked, source)
        refusal = f"User:u has no permission to access {asked.resource} from {source}, {verdict.reason}."
        assert ("allow" if verdict.allowed else refusal) == decided, line
        seen.add(verdict)
    assert seen == {ALLOWED, DENIED, NO_MATCHED_POLICIES}


def test_nobody_without_policies_may_do_anything() -> None:
    assert _ask(None, "Topic:t Pub") == NOTHING
    assert _ask(Acl("test"), "Topic:t Pub") == NOTHING


def test_deny_wins_on_the_very_same_resource() -> None:
    for order in (("Allow", "Deny"), ("Deny", "Allow")):
        acl = _custom(*(f"Topic:a {decision} Pub" for decision in order))
        assert _ask(acl, "Topic:a Pub") == DENY


def _compare(one: Entry, other: Entry) -> int:
    """Apache's comparison, by the texts of resources."""
    first, second = str(one.resource), str(other.resource)
    if (first == "*") != (second == "*"):
        return 1 if first == "*" else -1
    if first.endswith("*") != second.endswith("*"):
        return 1 if first.endswith("*") else -1
    if first.endswith("*") and len(first) != len(second):
        return len(second) - len(first)  # all names are the shortest prefix
    if one.decision != other.decision:
        return -1 if one.decision == Decision.DENY else 1
    return 0


@given(strategies.acls, strategies.questions, st.sampled_from(strategies.SOURCES))
def test_random_policies_decide_as_apaches_sort_does(acl: Acl, asked: Asked, source: str) -> None:
    expected = NO_MATCHED_POLICIES
    for kind in (PolicyType.DEFAULT, PolicyType.CUSTOM):
        matching = [
            entry
            for entry in acl.entries(kind)
            if decide(Acl("u", (Policy(kind, (entry,)),)), asked, source) != NO_MATCHED_POLICIES
        ]
        if matching:
            first = sorted(matching, key=cmp_to_key(_compare))[0]
            expected = ALLOWED if first.decision == Decision.ALLOW else DENIED
    assert decide(acl, asked, source) == expected


def test_a_user_with_many_policies_is_decided_upon_by_few_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Entry] = []

    def counted(entry: Entry, asked: Asked, source: str) -> bool:
        looked.append(entry)
        return applies(entry, asked, source)

    applies = decisions._applies
    monkeypatch.setattr(decisions, "_applies", counted)
    rows = [
        f"Topic:{kind}{number}{star} Allow Sub"
        for kind, star in (("l", ""), ("p", "*"))
        for number in range(400)
    ]
    decider = Decider(_custom("* Deny Sub", *rows))
    for name in ("l7", "p7", "p7-more", "p39-more"):
        looked.clear()
        asked = Asked(Resource.literal(ResourceKind.TOPIC, name), frozenset({Action.SUB}))
        assert decider.decide(asked, HERE) == ALLOWED
        assert 2 <= len(looked) <= 3


@given(strategies.entries, strategies.questions, st.sampled_from(strategies.SOURCES))
def test_one_entry_decides_only_what_all_its_parts_match(entry: Entry, asked: Asked, source: str) -> None:
    text, wanted = str(entry.resource), str(asked.resource)
    matches = wanted.startswith(text[:-1]) if text.endswith("*") else wanted == text
    if Action.ALL not in entry.actions and Action.ANY not in asked.actions:
        matches = matches and any(action in entry.actions for action in asked.actions)
    if entry.sources:
        matches = matches and any(_in_range(source, known) for known in entry.sources)
    decided = ALLOWED if entry.decision == Decision.ALLOW else DENIED
    found = decide(Acl("u", (Policy(PolicyType.CUSTOM, (entry,)),)), asked, source)
    assert found == (decided if matches else NO_MATCHED_POLICIES)


_INSIDE = {
    "10.0.0.1": {"10.0.0.1"},
    "10.0.0.0/24": {"10.0.0.1", "10.0.0.2"},
    "10.0.0.0/8": {"10.0.0.1", "10.0.0.2", "10.1.0.1"},
    "0.0.0.0/0": {"10.0.0.1", "10.0.0.2", "10.1.0.1", "192.168.0.1"},
    "::1": {"::1"},
    "2001:DB8:0::/32": {"2001:db8::7"},
    "::/0": set(strategies.SOURCES),
}


def _in_range(source: str, known: str) -> bool:
    return source in _INSIDE[known]
