"""Bodies about users and policies; the texts are those of Java's UserInfo and AclInfo, 5.5.0."""

from __future__ import annotations

import pytest

from gimbalmq.errors import InvalidParameterError, RemoteProtocolError
from gimbalmq.protocol.access_bodies import (
    REQUEST_BYTES,
    AclBody,
    EntryBody,
    PolicyBody,
    UserBody,
    acl_of_request,
    user_of_request,
)

USER = b'{"password":"p","userStatus":"enable","userType":"Normal","username":"u"}'
NEW_USER = b'{"password":"p","username":"u"}'
ACL = (
    b'{"policies":[{"entries":[{"actions":["Pub","Sub"],"decision":"Allow","resource":"Topic:t*",'
    b'"sourceIps":["10.0.0.0/8"]},{"actions":["Pub","Sub"],"decision":"Allow","resource":"Group:g"}],'
    b'"policyType":"Custom"}],"subject":"User:u"}'
)
NEW_ACL = ACL.replace(b',"policyType":"Custom"', b"")


def test_a_user_of_javas_is_read_and_written_back_alike() -> None:
    user = user_of_request(USER)
    assert user == UserBody(username="u", password="p", user_type="Normal", user_status="enable")
    assert user.dump() == USER
    assert user_of_request(NEW_USER).dump() == NEW_USER
    assert UserBody.parse(USER) == user


def test_an_acl_of_javas_is_read_and_written_back_alike() -> None:
    entries = [
        EntryBody(resource="Topic:t*", actions=["Pub", "Sub"], decision="Allow", source_ips=["10.0.0.0/8"]),
        EntryBody(resource="Group:g", actions=["Pub", "Sub"], decision="Allow"),
    ]
    acl = acl_of_request(ACL)
    assert acl == AclBody(subject="User:u", policies=[PolicyBody(entries=entries, policy_type="Custom")])
    assert acl.dump() == ACL
    assert acl_of_request(NEW_ACL).dump() == NEW_ACL


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the body is no JSON"),
        (b'{"password":"hidden"', "the body is no JSON"),
        (b"[]", "the user is no JSON object"),
        (
            b'{"password":"hidden","admin":true}',
            "the user has a field 'admin', which is unknown: use certificate",
        ),
        (b" " * (REQUEST_BYTES + 1), f"may have {REQUEST_BYTES}"),
    ],
)
def test_a_user_that_is_none_is_refused_without_showing_it(data: bytes, said: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        user_of_request(data)
    assert said in caught.value.remark
    assert "hidden" not in caught.value.remark


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"null", "the Acl is no JSON object"),
        (b'{"policies":[1]}', "the policy is no JSON object"),
        (b'{"policies":[{"entries":[null]}]}', "the policy's entry is no JSON object"),
        (b'{"policys":[]}', "the Acl has a field 'policys'"),
        (b'{"policies":[{"type":"Custom"}]}', "the policy has a field 'type'"),
        (b'{"policies":[{"entries":[{"sourceIp":"::1"}]}]}', "the policy's entry has a field 'sourceIp'"),
    ],
)
def test_an_acl_with_a_word_that_nobody_knows_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        acl_of_request(data)
    assert said in caught.value.remark


def test_references_of_older_tools_are_followed() -> None:
    shared = b'{"$ref":"$.policies[0].entries[0].actions"}'
    data = ACL.replace(
        b'["Pub","Sub"],"decision":"Allow","resource":"Group:g"',
        b'%b,"decision":"Allow","resource":"Group:g"',
    )
    assert acl_of_request(data % shared) == acl_of_request(ACL)


def test_a_short_text_that_stands_for_many_entries_is_refused_before_they_are_made() -> None:
    data = b'{"policies":[{"entries":[%b]}%b]}'
    entry, again = b'{"resource":"Topic:a"}', b',{"entries":{"$ref":"$.policies[0].entries"}}'
    with pytest.raises(InvalidParameterError, match="1800 policy entries and may have 1000"):
        acl_of_request(data % (b",".join([entry] * 900), again * 9))
    with pytest.raises(InvalidParameterError, match="more than 10 policies"):
        acl_of_request(data % (entry, again * 10))


def test_an_entry_has_bounds() -> None:
    data = b'{"policies":[{"entries":[{"%b":[%b]}]}]}'
    with pytest.raises(InvalidParameterError, match="more than 50 actions"):
        acl_of_request(data % (b"actions", b",".join([b'"Pub"'] * 51)))
    assert acl_of_request(data % (b"actions", b",".join([b'"Pub"'] * 50))).policies is not None
    with pytest.raises(InvalidParameterError, match="1001 source addresses and may have 1000"):
        acl_of_request(data % (b"sourceIps", b",".join([b'"::1"'] * 1001)))


@pytest.mark.parametrize(
    "data", [b'{"policies":{}}', b'{"policies":[{"entries":3}]}', b'{"subject":["User:u"]}']
)
def test_an_acl_of_other_types_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="the body is no AclBody"):
        acl_of_request(data)


def test_a_password_is_not_shown() -> None:
    assert "hidden" not in repr(UserBody(username="u", password="hidden"))
