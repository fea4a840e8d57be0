"""JSON bodies about users and policies, requests 3001 to 3010.

Java has them as UserInfo, AclInfo, PolicyInfo and PolicyEntryInfo. A user's source addresses and certificate are ours;
Java's tools pass over them. What a server is told must have no field that it does not know: a misspelt ``sourceIps``
would else allow every address.
"""

from __future__ import annotations

from typing import Any

from gimbalmq.errors import InvalidParameterError, RemoteProtocolError
from gimbalmq.protocol import fastjson
from gimbalmq.protocol.bodies import Body, check_length

REQUEST_BYTES = 256 * 1024
"""Most bytes of such a body in a request."""
MAX_ENTRIES = 1000
"""Of one user's policies; each decision that is not remembered looks at all of them."""
MAX_SOURCES = 1000
"""Of one user's policies together."""
_MAX_POLICIES = 10
_MAX_ACTIONS = 50


class UserBody(Body):
    """A user. None means: not said, so it stays as it is."""

    certificate: str | None = None
    password: str | None = None
    source_ips: list[str] | None = None
    user_status: str | None = None
    user_type: str | None = None
    username: str | None = None

    def __repr__(self) -> str:
        return f"UserBody(username={self.username!r}, user_type={self.user_type!r}, user_status={self.user_status!r})"


class EntryBody(Body):
    """One line of a policy."""

    actions: list[str] | None = None
    decision: str | None = None
    resource: str | None = None
    source_ips: list[str] | None = None


class PolicyBody(Body):
    entries: list[EntryBody] | None = None
    policy_type: str | None = None


class AclBody(Body):
    """All policies of one subject."""

    policies: list[PolicyBody] | None = None
    subject: str | None = None


def user_of_request(data: bytes | bytearray | memoryview) -> UserBody:
    """Reads the body of 3001 or 3002.

    Raises:
        InvalidParameterError: it is too long, no JSON, or has an unknown field.
        RemoteProtocolError: a field has another type than it should.
    """
    return user_of(_loaded(data))


def acl_of_request(data: bytes | bytearray | memoryview) -> AclBody:
    """Reads the body of 3006 or 3007; likewise."""
    return acl_of(_loaded(data))


def user_of(raw: Any) -> UserBody:
    """A user from JSON that was read already, without unknown fields."""
    _check_fields(raw, UserBody, "user")
    return UserBody.of(raw)


def acl_of(raw: Any) -> AclBody:
    """The same of an Acl.

    Its parts are counted before anything is made of them: by references (``$ref``), which the tools of 5.3 use, a short
    text can stand for millions of entries.
    """
    _check_fields(raw, AclBody, "Acl")
    if len(_items(raw, "policies")) > _MAX_POLICIES:
        raise InvalidParameterError(f"the Acl has more than {_MAX_POLICIES} policies; there are two types")
    entries = sources = 0
    for policy in _items(raw, "policies"):
        _check_fields(policy, PolicyBody, "policy")
        entries += len(_items(policy, "entries"))
        check_count(entries, sources)
        for entry in _items(policy, "entries"):
            _check_fields(entry, EntryBody, "policy's entry")
            if len(_items(entry, "actions")) > _MAX_ACTIONS:
                raise InvalidParameterError(f"the policy's entry has more than {_MAX_ACTIONS} actions")
            sources += len(_items(entry, "sourceIps"))
    check_count(entries, sources)
    return AclBody.of(raw)


def check_count(entries: int, sources: int) -> None:
    """Raises InvalidParameterError if a user cannot have so many entries and source addresses."""
    if entries > MAX_ENTRIES:
        raise InvalidParameterError(
            f"a user would have {entries} policy entries and may have {MAX_ENTRIES}: use prefixes such as Topic:a*"
        )
    if sources > MAX_SOURCES:
        raise InvalidParameterError(
            f"a user's policies would have {sources} source addresses and may have {MAX_SOURCES}: "
            "use ranges such as 10.0.0.0/8"
        )


def _loaded(data: bytes | bytearray | memoryview) -> Any:
    check_length(data, REQUEST_BYTES)
    try:
        return fastjson.loads(bytes(data))
    except RemoteProtocolError:
        # The reader's words would show what stands near the mistake, which may be a password.
        raise InvalidParameterError("the body is no JSON") from None


def _items(raw: Any, name: str) -> list[Any]:
    found = raw.get(name) if isinstance(raw, dict) else None
    return found if isinstance(found, list) else []


def _check_fields(raw: Any, cls: type[Body], what: str) -> None:
    if not isinstance(raw, dict):
        raise InvalidParameterError(f"the {what} is no JSON object")
    for key in raw:
        if key not in cls.__struct_encode_fields__:
            known = ", ".join(cls.__struct_encode_fields__)
            raise InvalidParameterError(
                f"the {what} has a field {str(key)[:80]!r}, which is unknown: use {known}"
            )
