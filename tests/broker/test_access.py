"""A broker that checks everybody: the fast ways are gated as the plain ones are, and stay fast."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gimbalmq.access.policies import Acl
from gimbalmq.access.table import AccessTable
from gimbalmq.access.users import User, UserStatus, UserType
from gimbalmq.broker.handlers.send_fast import FastSendHandlers
from gimbalmq.errors import ConfigError
from gimbalmq.protocol.access_bodies import AclBody, EntryBody, PolicyBody
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import BINARY_HEADER, RemotingCommand
from gimbalmq.protocol.signing import Signer
from gimbalmq.transport.pool import ChannelPool
from gimbalmq.transport.tls import client_tls
from tests.broker.desk import SECONDS, Desk, open_desk, pull_fields, send_fields, topic_fields
from tests.support import run, until
from tests.transport.wiring import Authority, raw_peer

ROOT, ANN = Signer("root", "root-secret"), Signer("ann", "ann-secret")
SEND = RequestCode.SEND_MESSAGE_V2
REFUSED = ResponseCode.NO_PERMISSION
BORN = "1700000000000"

KEYS: dict[str, Any] = {
    "authenticationEnabled": True,
    "authorizationEnabled": True,
    "initAuthenticationUser": json.dumps({"username": "root", "password": "root-secret"}),
    "authFailureDelayMillis": 0,
}


class Secured:
    """A broker with a topic T, which ann may send to and, as group g, read."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        assert desk.broker.access.table is not None
        self.table: AccessTable = desk.broker.access.table

    async def ask(
        self, code: int, fields: dict[str, str], signer: Signer | None = ROOT, **more: Any
    ) -> RemotingCommand:
        command = RemotingCommand(code, fields, **more)
        if signer is not None:
            signer.sign(command)
        return await self.desk.client.call(command, SECONDS)

    async def allow(self, *grants: tuple[str, str], decision: str = "Allow") -> None:
        entries = [
            EntryBody(resource=resource, actions=[action], decision=decision) for resource, action in grants
        ]
        body = AclBody(subject="User:ann", policies=[PolicyBody(entries=entries)])
        await self.table.merge_acl(Acl.of(body))


@asynccontextmanager
async def secured(folder: Path, **more: Any) -> AsyncIterator[Secured]:
    async with open_desk(folder, **(KEYS | more)) as desk:
        found = Secured(desk)
        await found.table.create_user(User("ann", "ann-secret"))
        await found.allow(("Topic:T", "Pub"), ("Topic:T", "Sub"), ("Group:g", "Sub"))
        assert (await found.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T"))).code == 0
        yield found


def signed_send(
    signer: Signer | None = ANN, body: bytes = b"body", encoding: int = 0, **fields: Any
) -> RemotingCommand:
    command = RemotingCommand(SEND, send_fields("T") | {"g": BORN} | fields, body, serialize_type=encoding)
    if signer is not None:
        signer.sign(command)
    return command


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The messages of each group that went the fast way."""
    finished: list[int] = []
    finish = FastSendHandlers._finish

    def counted(self: FastSendHandlers, channel: Any, group: Any, done: list[Any], counts: Any) -> None:
        finished.append(len(done))
        finish(self, channel, group, done, counts)

    monkeypatch.setattr(FastSendHandlers, "_finish", counted)
    return finished


def test_a_run_of_signed_sends_is_one_group(tmp_path: Path, groups: list[int]) -> None:
    async def work() -> None:
        async with secured(tmp_path) as found, raw_peer(found.desk.broker.port) as peer:
            # The first is looked at by the gate itself; from then on only signatures are.
            peer.send(signed_send())
            assert (await peer.receive()).code == 0
            groups.clear()
            commands = [signed_send(body=b"%d" % number) for number in range(50)]
            for number, command in enumerate(commands):
                command.opaque = number
            peer.send(*commands)
            answers = [await peer.receive() for _ in commands]
            assert [answer.code for answer in answers] == [0] * 50
            assert groups == [50]
            assert found.desk.bodies("T")[1:] == [b"%d" % number for number in range(50)]

    run(work())


@pytest.mark.parametrize("encoding", [0, BINARY_HEADER], ids=["JSON", "binary"])
def test_no_send_passes_that_is_not_signed_or_not_allowed(tmp_path: Path, encoding: int) -> None:
    async def work() -> None:
        async with secured(tmp_path) as found, raw_peer(found.desk.broker.port) as peer:
            good = signed_send(encoding=encoding)
            peer.send(good, good)
            assert [(await peer.receive()).code for _ in range(2)] == [0, 0]
            stolen = signed_send(encoding=encoding)
            moved = dict(stolen.ext_fields or {}) | {"e": "1"}
            other_body = dict(stolen.ext_fields or {})
            bad = [
                signed_send(None, encoding=encoding),
                signed_send(Signer("ann", "guess"), encoding=encoding),
                signed_send(Signer("eve", "ann-secret"), encoding=encoding),
                RemotingCommand(SEND, moved, b"body", serialize_type=encoding),
                RemotingCommand(SEND, other_body, b"bodY", serialize_type=encoding),
                RemotingCommand(SEND, other_body | {"z": "1"}, b"body", serialize_type=encoding),
                RemotingCommand(SEND, {**other_body, "Signature": ""}, b"body", serialize_type=encoding),
                signed_send(b="U", encoding=encoding),
            ]
            for number, command in enumerate(bad):
                command.opaque = number
            # In one write, among good ones: a run has both.
            peer.send(good, *bad, good)
            answers = [await peer.receive() for _ in range(len(bad) + 2)]
            assert sorted(answer.code for answer in answers) == [0, 0, *[REFUSED] * len(bad)]
            assert len(found.desk.bodies("T")) == 4
            assert found.desk.messages("T", 1) == []

    run(work())


def test_fields_that_are_missing_or_new_change_nothing_about_the_signature(
    tmp_path: Path, groups: list[int]
) -> None:
    async def work() -> None:
        async with secured(tmp_path) as found:
            call = found.desk.client.call
            assert (await call(signed_send())).code == 0
            groups.clear()
            # As Java's client sends it, with all it has; and with as little as there may be.
            everything: dict[str, Any] = dict.fromkeys(
                ("c", "d", "j", "l", "ns", "nsd", "oway", "bname"), "1"
            )
            everything |= {"k": "false", "m": "false", "n": "broker-a"}
            assert (await call(signed_send(**everything))).code == 0
            few = {name: send_fields("T")[name] for name in ("a", "b", "c", "d", "e", "f", "h", "i")}
            least = RemotingCommand(SEND, few | {"g": BORN}, b"least")
            Signer("ann", "ann-secret", "token").sign(least)
            assert (await call(least)).code == 0
            assert groups == [1, 1], "both went the fast way"
            # What the fast way does not know goes the plain way, and is signed all the same.
            assert (await call(signed_send(someField="1"))).code == 0
            assert groups == [1, 1]
            assert len(found.desk.bodies("T")) == 4

    run(work())


def test_a_right_that_is_taken_away_ends_the_fast_way_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with secured(tmp_path) as found:
            call = found.desk.client.call
            for _ in range(2):
                assert (await call(signed_send())).code == 0
            await found.allow(("Topic:T", "Pub"), decision="Deny")
            assert (await call(signed_send())).code == REFUSED
            await found.allow(("Topic:T", "Pub"))
            for _ in range(2):
                assert (await call(signed_send())).code == 0

            def disabled(user: User) -> User:
                return User(user.name, user.password, user.type, UserStatus.DISABLE)

            await found.table.change_user("ann", disabled)
            assert (await call(signed_send())).remark == "User:ann is disabled."

    run(work())


def test_pulls_are_gated_in_both_encodings(tmp_path: Path) -> None:
    async def work() -> None:
        async with secured(tmp_path) as found:
            await found.desk.client.call(signed_send())
            for encoding in (0, BINARY_HEADER):
                for code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
                    fields = pull_fields("T", 0, 0)
                    for _ in range(2):
                        answer = await found.ask(code, fields, ANN, serialize_type=encoding)
                        assert answer.code == 0 and answer.body, answer
                    for wrong in (None, Signer("ann", "guess")):
                        answer = await found.ask(code, fields, wrong, serialize_type=encoding)
                        assert answer.code == REFUSED and not answer.body, answer
                    other = pull_fields("T", 0, 0, group="h")
                    assert (await found.ask(code, other, ANN, serialize_type=encoding)).code == REFUSED

    run(work())


def test_signed_pulls_that_were_allowed_before_are_read_in_one_go(tmp_path: Path) -> None:
    async def work() -> None:
        async with secured(tmp_path) as found:
            fields = pull_fields("T", 0, 0)
            assert (
                await found.ask(RequestCode.PULL_MESSAGE, fields, ANN)
            ).code == ResponseCode.PULL_NOT_FOUND
            plain: list[RemotingCommand] = []
            found.desk.broker.handlers.by_code[RequestCode.PULL_MESSAGE] = lambda _, request: plain.append(
                request
            )
            answer = await found.ask(RequestCode.PULL_MESSAGE, fields, ANN)
            assert answer.code == ResponseCode.PULL_NOT_FOUND and not plain

    run(work())


def test_a_pull_that_waited_gets_nothing_if_rights_have_changed_meanwhile(tmp_path: Path) -> None:
    async def work() -> None:
        async with secured(tmp_path) as found:
            channel = await found.desk.client.channel()

            def waiting() -> RemotingCommand:
                command = RemotingCommand(
                    RequestCode.PULL_MESSAGE, pull_fields("T", 0, 0, flags=6, suspend_ms=20_000)
                )
                ANN.sign(command)
                return command

            long_poll = found.desk.broker.long_poll
            pull = channel.start_call(waiting(), 30)
            await until(lambda: len(long_poll) == 1)
            await found.allow(("Topic:T", "Sub"), decision="Deny")
            assert (await found.ask(SEND, send_fields("T"), body=b"for others")).code == 0
            answer = await pull
            assert answer.code == ResponseCode.PULL_NOT_FOUND and not answer.body
            assert (await channel.call(waiting(), 5)).code == REFUSED

    run(work())


def test_a_user_who_is_bound_to_a_certificate_or_address_comes_with_it_only(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, orders, others = (authority.sign(name) for name in ("server", "orders", "others"))
    keys = {
        "tls.server.certPath": server.cert_path,
        "tls.server.keyPath": server.key_path,
        "tls.server.trustCertPath": authority.certificate.cert_path,
        "tls.server.need.client.auth": "optional",
    }

    async def told(desk: Desk, signer: Signer, context: ssl.SSLContext | None) -> str | None:
        pool = ChannelPool(tls=context)
        try:
            for _ in range(2):  # the second time by what is remembered
                answer = await pool.call(desk.broker.address, signed_send(signer), SECONDS)
            return answer.remark
        finally:
            await pool.close()

    async def work() -> None:
        async with secured(tmp_path / "store", **keys) as found:
            bound, away = Signer("bound", "bound-secret"), Signer("away", "away-secret")
            await found.table.create_user(User("bound", "bound-secret", UserType.SUPER, certificate="orders"))
            await found.table.create_user(
                User("away", "away-secret", UserType.SUPER, source_ips=("10.0.0.0/8",))
            )
            ca = authority.certificate.cert_path
            right = client_tls(ca, orders.cert_path, orders.key_path)
            wrong = client_tls(ca, others.cert_path, others.key_path)
            refused = "User:bound needs its client certificate."
            for context, expected in (
                (right, None),
                (wrong, refused),
                (None, refused),
                (client_tls(ca), refused),
            ):
                assert await told(found.desk, bound, context) == expected
            assert await told(found.desk, away, right) == "User:away is not allowed from 127.0.0.1."
            # Who is not bound may come from anywhere, with what somebody has copied, too.
            assert await told(found.desk, ANN, None) is None

    run(work())


def test_the_first_users_are_made_and_kept(tmp_path: Path) -> None:
    inner = json.dumps({"accessKey": "servers", "secretKey": "servers-secret"})

    async def work() -> None:
        async with secured(tmp_path, innerClientAuthenticationCredentials=inner) as found:
            assert sorted(found.table.users()) == ["ann", "root", "servers"]
            path = tmp_path / "config" / "users.json"
            assert path.stat().st_mode & 0o777 == 0o600
            desk = found.desk
            await desk.restart(initAuthenticationUser=json.dumps({"username": "root", "password": "other"}))
            # The option makes the first user; it does not change it.
            create = RequestCode.UPDATE_AND_CREATE_TOPIC
            again = Secured(desk)
            assert (await again.ask(create, topic_fields("U"), Signer("root", "other"))).code == REFUSED
            assert (await again.ask(create, topic_fields("U"))).code == 0
            assert (await desk.client.call(signed_send())).code == 0

    run(work())


def test_a_broken_table_refuses_the_start_and_leaves_the_folder_free(tmp_path: Path) -> None:
    async def work() -> None:
        async with secured(tmp_path):
            pass
        path = tmp_path / "config" / "users.json"
        good = path.read_text()
        path.write_text("{")
        with pytest.raises(ConfigError, match=r"users\.json"):
            async with open_desk(tmp_path, **KEYS):
                pass
        path.write_text(good)
        async with open_desk(tmp_path, **KEYS):
            pass

    run(work())


def test_secrets_are_in_no_answer_and_no_option_opens_the_gate_at_run_time(tmp_path: Path) -> None:
    async def work() -> None:
        async with secured(tmp_path) as found:
            told = bytes((await found.ask(RequestCode.GET_BROKER_CONFIG, {})).body)
            assert b"authenticationEnabled=true" in told
            assert b"root-secret" not in told and b"initAuthenticationUser" not in told
            for change in (
                "authenticationEnabled=false",
                "authorizationEnabled=false",
                "accessMode=permissive",
                "authenticationWhitelist=310",
                "authorizationRules=apache",
            ):
                answer = await found.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, body=change.encode())
                assert answer.code != 0, change
            assert (await found.desk.client.call(signed_send(None))).code == REFUSED

    run(work())


def test_what_a_handler_refuses_is_in_the_audit_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with secured(tmp_path) as found:
            read_only = topic_fields("R", perm=4)
            assert (await found.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, read_only)).code == 0
            caplog.clear()
            assert (await found.ask(SEND, send_fields("R"), body=b"x")).code == REFUSED
            (line,) = [record.getMessage() for record in caplog.records if record.name == "gimbalmq.audit"]
            assert "decision=refused user=root" in line and "request=310" in line

    run(work())


def test_without_authentication_nobody_is_asked_and_there_are_no_users(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            assert desk.broker.handlers.gate is None
            assert (await desk.client.send()).code == 0
            created = await desk.client.ask(RequestCode.AUTH_CREATE_USER, {"username": "u"}, b"{}")
            assert created.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert not (tmp_path / "config" / "users.json").exists()

    run(work())
