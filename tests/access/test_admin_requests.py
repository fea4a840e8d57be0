"""Requests 3001 to 3010: Apache's answers, whom passwords are told, and what is refused that Apache's broker takes."""

from __future__ import annotations

import inspect
import json
from itertools import product
from typing import Any

import pytest

from gimbalmq.access.admin_requests import AccessRequests
from gimbalmq.access.table import AccessTable
from gimbalmq.access.users import User, UserType
from gimbalmq.errors import InvalidParameterError, NoPermissionError, ProtocolError, ResponseError
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.transport.channel import Channel, Handlers
from gimbalmq.transport.tls import PeerCertificate
from tests.access.peers import Peer
from tests.support import run

_CHANNEL = Peer("10.0.0.7", PeerCertificate("desk", "ab" * 32)).channel


class Senders:
    """As the gate: a request with an access key comes from that user."""

    def __init__(self, table: AccessTable) -> None:
        self._table = table

    def who(self, channel: Channel, command: RemotingCommand) -> User | None:
        return self._table.user((command.ext_fields or {}).get("AccessKey", ""))


class Desk:
    """Asks the handlers; answers with the JSON of the body, None if there is none."""

    def __init__(self, *, checks: bool = True) -> None:
        self.table = AccessTable(None)
        self._handlers = Handlers()
        AccessRequests(self.table, Senders(self.table) if checks else None).install(self._handlers)

    async def ask(self, code: int, body: Any = None, *, by: str = "admin", **fields: str | None) -> Any:
        known = {name: value for name, value in fields.items() if value is not None}
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        request = RemotingCommand(code, {**known, **({"AccessKey": by} if by else {})}, data, opaque=7)
        answer: Any = self._handlers.by_code[code](_CHANNEL, request)
        if inspect.isawaitable(answer):
            answer = await answer
        assert isinstance(answer, RemotingCommand)
        assert answer.code == 0
        return json.loads(bytes(answer.body)) if answer.body else None

    async def refusal(self, code: int, body: Any = None, **fields: Any) -> tuple[int, str]:
        with pytest.raises(ResponseError) as caught:
            await self.ask(code, body, **fields)
        return caught.value.code, caught.value.remark


async def _desk(*, checks: bool = True) -> Desk:
    desk = Desk(checks=checks)
    await desk.table.create_user(User("admin", "secret-a", UserType.SUPER))
    await desk.table.create_user(User("clerk", "secret-c"))
    return desk


def _user(name: str, **parts: Any) -> dict[str, Any]:
    return {"username": name, "password": "secret-u", **parts}


def _acl(user: str, resource: str = "Topic:t*", **parts: Any) -> dict[str, Any]:
    entry = {
        "resource": resource,
        "actions": ["Pub"],
        "sourceIps": ["10.0.0.0/8"],
        "decision": "Allow",
        **parts,
    }
    return {"subject": f"User:{user}", "policies": [{"policyType": "Custom", "entries": [entry]}]}


def test_users_come_and_go_as_with_apaches_broker() -> None:
    async def scenario() -> None:
        desk = await _desk()
        assert await desk.ask(3001, _user("ignored", userType="Normal"), username="u") is None
        assert await desk.refusal(3001, _user("u"), username="u") == (16, "The user is existed")
        whole = {"username": "u", "password": "secret-u", "userType": "Normal", "userStatus": "enable"}
        assert await desk.ask(3004, username="u") == whole
        await desk.ask(3002, {"userStatus": "disable"}, username="u")
        assert await desk.ask(3004, username="u") == {**whole, "userStatus": "disable"}
        await desk.ask(
            3002, {"username": "u", "password": "", "userType": "Super", "userStatus": None}, username="u"
        )
        assert await desk.ask(3004, username="u") == {**whole, "userStatus": "disable", "userType": "Super"}
        assert await desk.refusal(3002, {"password": "x"}, username="nobody") == (16, "The user is not exist")
        assert [user["username"] for user in await desk.ask(3005)] == ["admin", "clerk", "u"]
        assert [user["username"] for user in await desk.ask(3005, filter="e")] == ["clerk"]
        assert await desk.ask(3005, filter="zz") is None
        await desk.ask(3006, _acl("u"), subject="User:u")
        assert await desk.ask(3003, username="u") is None
        assert await desk.ask(3003, username="u") is None
        assert await desk.ask(3004, username="u") is None
        assert await desk.ask(3010) is None
        assert await desk.refusal(3001, {"username": "v"}, username="v") == (16, "password can not be blank")

    run(scenario())


def test_a_blank_name_is_refused() -> None:
    async def scenario() -> None:
        desk = await _desk()
        for code, name in product((3001, 3002, 3003, 3004), (None, "", "  ")):
            assert await desk.refusal(code, _user("u"), username=name) == (29, "The username is blank")

    run(scenario())


def test_policies_come_and_go_as_with_apaches_broker() -> None:
    async def scenario() -> None:
        desk = await _desk()
        assert await desk.ask(3009, subject="User:clerk") is None
        await desk.ask(3006, _acl("clerk"), subject="User:clerk")
        assert await desk.ask(3009, subject="User:clerk") == _acl("clerk")
        body = _acl("clerk", "Group:g")
        body["policies"][0]["policyType"] = None  # as mqadmin sends it
        del body["policies"][0]["entries"][0]["sourceIps"]
        await desk.ask(3007, body, subject="User:clerk")
        entries = (await desk.ask(3009, subject="User:clerk"))["policies"][0]["entries"]
        assert [entry["resource"] for entry in entries] == ["Topic:t*", "Group:g"]
        assert "sourceIps" not in entries[1]
        await desk.ask(3007, _acl("clerk", decision="Deny"), subject="User:clerk")
        await desk.ask(3008, subject="User:clerk", resource="Group:g")
        assert await desk.ask(3009, subject="User:clerk") == _acl("clerk", decision="Deny")
        await desk.ask(3006, _acl("admin", "Group:g"), subject="User:admin")
        everything = await desk.ask(3010)
        assert everything == [_acl("admin", "Group:g"), _acl("clerk", decision="Deny")]
        assert await desk.ask(3010, subjectFilter="User:c") == everything[1:]
        assert await desk.ask(3010, resourceFilter="Group") == everything[:1]
        assert await desk.ask(3010, subjectFilter="clerk", resourceFilter="Group") is None
        await desk.ask(3008, subject="User:clerk", policyType="Custom", resource="Topic:t*")
        assert await desk.ask(3009, subject="User:clerk") is None
        await desk.ask(3008, subject="User:admin")
        assert await desk.ask(3010) is None

    run(scenario())


def test_who_has_no_policies_is_said() -> None:
    async def scenario() -> None:
        desk = await _desk()
        body = _acl("nobody")
        missing = (16, "The subject of User:nobody is not exist.")
        assert await desk.refusal(3006, body, subject="User:nobody") == missing
        assert await desk.refusal(3008, subject="User:nobody") == (16, "The subject is not exist.")
        assert await desk.refusal(3008, subject="User:admin") == (16, "The acl is not exist.")
        assert await desk.refusal(3009, subject="User:nobody") == (16, "The subject is not exist.")
        assert await desk.refusal(3009) == (29, "the subject None is no user: use User:name")
        assert await desk.refusal(3008, subject="clerk") == (
            29,
            "the subject 'clerk' is no user: use User:name",
        )

    run(scenario())


def test_an_unreadable_resource_deletes_nothing() -> None:
    async def scenario() -> None:
        desk = await _desk()
        await desk.ask(3006, _acl("clerk"), subject="User:clerk")
        for resource in ("Topik:t*", "t", "", " ", "Topic:a*b*"):
            code, remark = await desk.refusal(3008, subject="User:clerk", resource=resource)
            assert code == 29
            assert resource.strip() or "leave the field out to delete all policies of User:clerk" in remark
        code, remark = await desk.refusal(3008, subject="User:clerk", policyType="Costum")
        assert (code, "'Costum' is unknown" in remark) == (29, True)
        assert await desk.ask(3009, subject="User:clerk") == _acl("clerk")

    run(scenario())


def test_only_super_users_change_super_users() -> None:
    async def scenario() -> None:
        desk = await _desk()
        await desk.ask(3001, _user("second", userType="Super"), username="second")
        for by in ("clerk", "", "nobody"):
            assert await desk.refusal(3001, _user("x", userType="super"), username="x", by=by) == (
                1,
                "The super user can only be create by super user",
            )
            assert await desk.refusal(3002, {"userType": "Super"}, username="clerk", by=by) == (
                1,
                "The super user can only be update by super user",
            )
            for parts in ({"password": "mine"}, {"userType": "Normal"}, {"userStatus": "disable"}):
                assert await desk.refusal(3002, parts, username="admin", by=by) == (
                    16,
                    "The super user can only be update by super user",
                )
            assert await desk.refusal(3003, username="second", by=by) == (
                16,
                "The super user can only be update by super user",
            )
        assert desk.table.user("second") == User("second", "secret-u", UserType.SUPER)
        await desk.ask(3001, _user("x"), username="x", by="clerk")
        await desk.ask(3002, {"password": "other"}, username="x", by="clerk")
        await desk.ask(3003, username="x", by="clerk")
        await desk.ask(3003, username="second")

    run(scenario())


def test_only_super_users_are_told_passwords() -> None:
    async def scenario() -> None:
        desk = await _desk()
        for by in ("clerk", "", "nobody"):
            assert "password" not in await desk.ask(3004, username="admin", by=by)
            assert "password" not in await desk.ask(3004, username="clerk", by=by)
            assert not any("password" in user for user in await desk.ask(3005, by=by))
        assert (await desk.ask(3004, username="clerk"))["password"] == "secret-c"
        assert all("password" in user for user in await desk.ask(3005))

    run(scenario())


def test_a_server_that_checks_nothing_takes_everybody_for_a_super_user() -> None:
    async def scenario() -> None:
        desk = await _desk(checks=False)
        await desk.ask(3001, _user("second", userType="Super"), username="second", by="")
        assert (await desk.ask(3004, username="admin", by=""))["password"] == "secret-a"
        await desk.ask(3003, username="second", by="")
        code, remark = await desk.refusal(3003, username="admin", by="")
        assert (code, "last enabled SUPER user" in remark) == (16, True)

    run(scenario())


def test_the_last_super_user_cannot_shut_himself_out() -> None:
    async def scenario() -> None:
        desk = await _desk()
        for code, body in ((3003, None), (3002, {"userStatus": "disable"}), (3002, {"userType": "Normal"})):
            assert (await desk.refusal(code, body, username="admin"))[0] == 16
        await desk.ask(3002, {"password": "renewed"}, username="admin")
        assert desk.table.user("admin") == User("admin", "renewed", UserType.SUPER)

    run(scenario())


@pytest.mark.parametrize(
    ("bad", "good"),
    [
        ({"sourceIps": ["10.0.1.0/24"]}, {"sourceIps": ["10.0.1.0/24", "10.0.0.7"]}),
        ({"certificate": "another"}, {"certificate": "desk"}),
    ],
)
def test_nobody_binds_himself_to_where_he_is_not(bad: dict[str, object], good: dict[str, object]) -> None:
    async def scenario() -> None:
        desk = await _desk()
        code, remark = await desk.refusal(3002, bad, username="admin")
        assert code == 29 and "let in no more" in remark
        assert desk.table.user("admin") == User("admin", "secret-a", UserType.SUPER)
        await desk.ask(3002, bad, username="clerk")
        await desk.ask(3002, good, username="admin")

    run(scenario())


def test_header_and_body_speak_of_one_subject() -> None:
    async def scenario() -> None:
        desk = await _desk()
        code, remark = await desk.refusal(3006, _acl("admin"), subject="User:clerk")
        assert (code, remark) == (
            29,
            "the header is about User:clerk and the body about User:admin: send one request for each",
        )
        await desk.ask(3006, _acl("clerk"))
        body = _acl("clerk", "*")
        del body["subject"]
        await desk.ask(3006, body, subject="user:clerk")
        assert len((await desk.ask(3009, subject="User:clerk"))["policies"][0]["entries"]) == 2

    run(scenario())


_NO_BODIES = (b"", b"{", b"[]", b'"secret-x"', b'{"password":"secret-x"', b'{"pasword":"secret-x"}', b"\xff")


def test_a_body_that_is_none_is_refused_and_not_shown() -> None:
    async def scenario() -> None:
        desk = await _desk()
        for code, body in product((3001, 3002, 3006, 3007), _NO_BODIES):
            with pytest.raises((InvalidParameterError, NoPermissionError, ProtocolError)) as caught:
                await desk.ask(code, body, username="clerk", subject="User:clerk")
            assert "secret-x" not in str(caught.value)
        assert desk.table.user("clerk") == User("clerk", "secret-c")

    run(scenario())


def test_a_user_is_bound_to_addresses_and_a_certificate() -> None:
    async def scenario() -> None:
        desk = await _desk()
        bound = {"sourceIps": ["10.0.0.0/8"], "certificate": "orders"}
        await desk.ask(3002, bound, username="clerk")
        assert (await desk.ask(3004, username="clerk")).items() >= bound.items()
        await desk.ask(3002, {"password": "new"}, username="clerk")
        assert (await desk.ask(3004, username="clerk")).items() >= bound.items()
        await desk.ask(3002, {"sourceIps": [], "certificate": ""}, username="clerk")
        assert desk.table.user("clerk") == User("clerk", "new")

    run(scenario())


def test_every_request_of_the_family_has_a_handler() -> None:
    handlers = Handlers()
    AccessRequests(AccessTable(None), None).install(handlers)
    assert sorted(handlers.by_code) == [code for code in RequestCode if 3001 <= code <= 3010]
