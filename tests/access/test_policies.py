"""The policy language: what is read is what is written, and nothing that is not understood is taken."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gimbalmq.access.policies import (
    ANYTHING,
    Acl,
    Action,
    Decision,
    Entry,
    Pattern,
    Policy,
    PolicyType,
    Resource,
    ResourceKind,
    user_of_subject,
)
from gimbalmq.errors import InvalidParameterError, RemoteProtocolError
from gimbalmq.protocol.access_bodies import MAX_ENTRIES, MAX_SOURCES, AclBody, acl_of, acl_of_request
from tests.access import strategies


@pytest.mark.parametrize(
    ("text", "resource"),
    [
        ("*", ANYTHING),
        ("Any:*", ANYTHING),
        (" * ", ANYTHING),
        ("Topic:*", Resource(ResourceKind.TOPIC, "", Pattern.ANY)),
        ("topic:orders", Resource(ResourceKind.TOPIC, "orders")),
        ("GROUP:or*", Resource(ResourceKind.GROUP, "or", Pattern.PREFIXED)),
        ("Cluster:a:b", Resource(ResourceKind.CLUSTER, "a:b")),
        ("Namespace:n", Resource(ResourceKind.NAMESPACE, "n")),
    ],
)
def test_a_resource_is_read_without_regard_to_case(text: str, resource: Resource) -> None:
    assert Resource.parse(text) == resource


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no kind"),
        ("orders", "use for instance Topic:orders"),
        ("Queue:orders", "the resource's kind 'Queue' is unknown: use Any, Cluster, Namespace, Topic, Group"),
        ("Unknown:orders", "is unknown"),
        (":orders", "is unknown"),
        ("Topic:", "has a name of 0 letters"),
        ("Topic:a*b*", r"has a \* before its end"),
        ("Topic:a*b", r"has a \* before its end"),
        ("Topic:**", r"has a \* before its end"),
        ("Any:orders", r"use \* for everything"),
        ("Any:or*", r"use \* for everything"),
        ("Topic:a b", "blanks or unprintable"),
        ("Topic:a\nb", "blanks or unprintable"),
        ("Topic:" + "a" * 256, "256 letters; use 1 to 255"),
    ],
)
def test_a_resource_that_says_something_else_than_it_seems_to_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidParameterError, match=said) as caught:
        Resource.parse(text)
    assert caught.value.code == 29
    assert len(caught.value.remark) < 300


@given(st.text() | st.from_regex(r"(Topic|group|Cluster|Any|\*)?:?[ab*]{0,4}", fullmatch=True))
@example("Topic:a**")
def test_whatever_is_read_as_a_resource_is_written_as_it_was_meant(text: str) -> None:
    try:
        resource = Resource.parse(text)
    except InvalidParameterError:
        return
    assert Resource.parse(str(resource)) == resource
    stripped = text.strip()
    assert str(resource).lower() == ("*" if stripped.lower() == "any:*" else stripped.lower())


def test_a_pattern_covers_whole_names_beginnings_or_all() -> None:
    asked = ["Topic:a", "Topic:ab", "Topic:b", "Group:a"]
    covered = {
        pattern: [text for text in asked if Resource.parse(pattern).covers(Resource.parse(text))]
        for pattern in ("Topic:a", "Topic:a*", "Topic:*", "*", "Cluster:*")
    }
    assert covered == {
        "Topic:a": ["Topic:a"],
        "Topic:a*": ["Topic:a", "Topic:ab"],
        "Topic:*": ["Topic:a", "Topic:ab", "Topic:b"],
        "*": asked,
        "Cluster:*": [],
    }


@given(strategies.resources, strategies.questions)
def test_a_pattern_covers_what_its_text_says(pattern: Resource, question: Any) -> None:
    text, asked = str(pattern), str(question.resource)
    by_text = asked.startswith(text[:-1]) if text.endswith("*") else asked == text
    assert pattern.covers(question.resource) == by_text


def test_a_star_in_the_name_that_a_request_has_is_no_pattern() -> None:
    asked = Resource.literal(ResourceKind.TOPIC, "or*")
    assert not asked.covers(Resource.literal(ResourceKind.TOPIC, "orders"))
    assert not Resource.parse("Topic:orders").covers(asked)
    assert Resource.parse("Topic:o*").covers(asked)


def _acl(**changes: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {"resource": "Topic:t*", "actions": ["Pub"], "decision": "Allow"}
    entry |= {name: value for name, value in changes.items() if value is not ...}
    for name in [name for name, value in changes.items() if value is ...]:
        del entry[name]
    return {"subject": "User:u", "policies": [{"entries": [entry]}]}


def _read(raw: Any) -> Acl:
    return Acl.of(acl_of(raw))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"resource": ...}, "The resource is null."),
        ({"resource": None}, "The resource is null."),
        ({"actions": ...}, "The actions is empty."),
        ({"actions": []}, "The actions is empty."),
        ({"actions": ["Any"]}, "The actions can not be Any."),
        ({"actions": ["Pub", "any"]}, "The actions can not be Any."),
        ({"actions": ["Pub", "Read"]}, "the action 'Read' is unknown: use All, Any, Pub, Sub"),
        ({"actions": ["Unknown"]}, "is unknown"),
        ({"decision": ...}, "The decision is null or illegal."),
        ({"decision": "Permit"}, "The decision is null or illegal: 'Permit' is unknown: use Allow, Deny"),
        ({"sourceIps": ["10.0.0.0/33"]}, "The source ip is invalid."),
        ({"sourceIps": ["*"]}, "leave sources out to allow every address"),
        ({"sourceIp": ["10.0.0.1"]}, "has a field 'sourceIp', which is unknown"),
    ],
)
def test_what_an_entry_lacks_or_misspells_is_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        _read(_acl(**changes))
    assert said in caught.value.remark


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"subject": "User:u"}, "The policies is empty."),
        ({"subject": "User:u", "policies": []}, "The policies is empty."),
        ({"subject": "User:u", "policies": [{"entries": []}]}, "The policies is empty."),
        ({"subject": "Group:u", "policies": [{}]}, "the subject 'Group:u' is no user: use User:name"),
        ({"subject": "User:", "policies": [{}]}, "is no user"),
        ({"policies": [{}]}, "is no user"),
        ({"subject": "User:u", "policies": [{"entries": [{}], "policyType": "Mine"}]}, "'Mine' is unknown"),
        ({"subject": "User:u", "policies": [{"entries": [{}], "type": "Default"}]}, "a field 'type'"),
        ({"subject": "User:u", "policy": []}, "a field 'policy'"),
        ([], "no JSON object"),
    ],
)
def test_what_an_acl_lacks_or_misspells_is_named(raw: Any, said: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        _read(raw)
    assert said in caught.value.remark


def test_words_are_read_without_regard_to_case_and_written_as_apache_does() -> None:
    raw = {
        "subject": "user:u",
        "policies": [
            {
                "policyType": "CUSTOM",
                "entries": [
                    {
                        "resource": "TOPIC:t*",
                        "actions": ["sub", "PUB"],
                        "sourceIps": [" 10.0.0.0/8 "],
                        "decision": "ALLOW",
                    }
                ],
            }
        ],
    }
    assert json.loads(_read(raw).body().dump()) == {
        "subject": "User:u",
        "policies": [
            {
                "policyType": "Custom",
                "entries": [
                    {
                        "resource": "Topic:t*",
                        "actions": ["Pub", "Sub"],
                        "sourceIps": ["10.0.0.0/8"],
                        "decision": "Allow",
                    }
                ],
            }
        ],
    }


@given(strategies.acls)
def test_policies_survive_the_wire(acl: Acl) -> None:
    assert Acl.of(acl_of_request(acl.body().dump())) == acl


_words = st.sampled_from(
    [
        "User:u",
        "Topic:a",
        "Topic:*",
        "*",
        "Pub",
        "All",
        "Any",
        "Allow",
        "Deny",
        "Custom",
        "10.0.0.1",
        "::/0",
        "",
    ]
)
_keys = st.sampled_from(
    ["subject", "policies", "policyType", "entries", "resource", "actions", "sourceIps", "decision", "extra"]
)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | _words,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(_keys | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)
_nearly_an_acl = st.fixed_dictionaries(
    {
        "subject": _words | _json,
        "policies": st.lists(
            st.fixed_dictionaries(
                {
                    "entries": st.lists(
                        st.dictionaries(_keys, st.lists(_words, max_size=2) | _words), max_size=3
                    )
                },
                optional={"policyType": _words},
            ),
            max_size=2,
        )
        | _json,
    }
)


@given(st.binary(max_size=60) | (_json | _nearly_an_acl).map(lambda value: json.dumps(value).encode()))
def test_any_body_is_read_whole_or_refused(data: bytes) -> None:
    try:
        acl = Acl.of(acl_of_request(data))
    except (InvalidParameterError, RemoteProtocolError):
        return
    said = json.loads(data)
    # Nothing was dropped: as many entries, actions and sources as were written, each of them known.
    written = [entry for policy in said["policies"] for entry in policy["entries"]]
    if len({policy.get("policyType") or "Custom" for policy in said["policies"]}) == len(said["policies"]):
        read = [entry for policy in acl.policies for entry in policy.entries]
        assert len(read) == len(written)
    for entry in written:
        assert all(action in set(Action) for action in entry["actions"])
        assert "extra" not in entry


def test_an_acl_has_bounds() -> None:
    many = [{"resource": f"Topic:t{n}", "actions": ["Pub"], "decision": "Allow"} for n in range(MAX_ENTRIES)]
    raw = {"subject": "User:u", "policies": [{"entries": many}]}
    acl = _read(raw)
    assert acl.entry_count == MAX_ENTRIES
    with pytest.raises(InvalidParameterError, match="1001 policy entries and may have 1000"):
        acl.merged([Policy(PolicyType.DEFAULT, (_entry("Topic:*"),))])
    many.append(many[0])
    with pytest.raises(InvalidParameterError, match="1001 policy entries"):
        _read(raw)
    with pytest.raises(InvalidParameterError, match="1001 source addresses and may have 1000"):
        _read(_acl(sourceIps=[f"10.0.{n // 256}.{n % 256}" for n in range(MAX_SOURCES + 1)]))
    with pytest.raises(InvalidParameterError, match="may have 262144"):
        acl_of_request(b" " * (256 * 1024 + 1))


def _entry(resource: str, decision: Decision = Decision.ALLOW, action: Action = Action.PUB) -> Entry:
    return Entry(Resource.parse(resource), frozenset({action}), decision)


def test_an_entry_replaces_those_for_the_same_resource_and_no_other() -> None:
    before = Acl(
        "u",
        (
            Policy(
                PolicyType.CUSTOM, (_entry("Topic:a"), _entry("Topic:a", Decision.DENY), _entry("Topic:a*"))
            ),
            Policy(PolicyType.DEFAULT, (_entry("Topic:a"),)),
        ),
    )
    after = before.merged([Policy(PolicyType.CUSTOM, (_entry("Topic:a", action=Action.SUB),))])
    assert after.entries(PolicyType.CUSTOM) == (_entry("Topic:a", action=Action.SUB), _entry("Topic:a*"))
    assert after.entries(PolicyType.DEFAULT) == (_entry("Topic:a"),)
    both = (_entry("Group:b"), _entry("Topic:a*", Decision.DENY), _entry("Topic:a*"))
    more = after.merged([Policy(PolicyType.CUSTOM, both)])
    assert more.entries(PolicyType.CUSTOM) == (
        _entry("Topic:a", action=Action.SUB),
        both[1],
        both[2],
        both[0],
    )
    assert more.merged(more.policies) == more


def test_the_entries_of_one_resource_are_taken_away_from_one_policy() -> None:
    custom, default = (
        Policy(kind, (_entry("Topic:a"), _entry("Topic:a*")))
        for kind in (PolicyType.CUSTOM, PolicyType.DEFAULT)
    )
    acl = Acl("u", (custom, default))
    less = acl.without(PolicyType.CUSTOM, Resource.parse("Topic:a"))
    assert less == Acl("u", (Policy(PolicyType.CUSTOM, (_entry("Topic:a*"),)), default))
    none = less.without(PolicyType.CUSTOM, Resource.parse("Topic:a*")) if less is not None else None
    assert none == Acl("u", (default,))
    assert Acl("u", (custom,)).without(PolicyType.DEFAULT, Resource.parse("Topic:a")) == Acl("u", (custom,))
    assert Acl("u", (Policy(PolicyType.CUSTOM, (_entry("*"),)),)).without(PolicyType.CUSTOM, ANYTHING) is None


def test_a_filter_keeps_entries_whose_resources_contain_it() -> None:
    acl = Acl("u", (Policy(PolicyType.CUSTOM, (_entry("Topic:ab"), _entry("Group:b"))),))
    assert acl.filtered("") is acl
    assert acl.filtered("Topic:a") == Acl("u", (Policy(PolicyType.CUSTOM, (_entry("Topic:ab"),)),))
    assert acl.filtered("Cluster") is None


def test_a_subject_is_a_user() -> None:
    assert user_of_subject("user:a:b") == "a:b"


def test_answers_of_servers_may_have_fields_that_we_do_not_know() -> None:
    assert AclBody.parse(b'{"subject":"User:u","newer":1}').subject == "User:u"
