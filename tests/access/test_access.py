"""The parts put together: what is read at the start, what is made, and what is left behind if a start fails."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from gimbalmq.access.access import Access
from gimbalmq.access.config import AccessConfig
from gimbalmq.access.needs import NeedTable
from gimbalmq.access.plain_requests import ServerNames
from gimbalmq.errors import ConfigError, ListenError
from gimbalmq.nameserver.config import NameServerConfig
from gimbalmq.nameserver.server import NameServer
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.transport.channel import Handlers
from tests.access.peers import Peer, request
from tests.support import run

ROOT = '{"username":"root","password":"root-secret"}'
ACCOUNTS = """
globalWhiteRemoteAddresses: [10.9.9.9]
accounts:
  - {accessKey: accounts-admin, secretKey: accounts-secret, admin: true}
"""


def audits() -> int:
    return sum(thread.name == "audit" for thread in threading.enumerate())


def test_the_first_users_are_made_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    inner = '{"accessKey":"servers","secretKey":"servers-secret"}'
    config = AccessConfig(
        authentication_enabled=True,
        init_authentication_user=ROOT,
        inner_client_authentication_credentials=inner,
    )

    async def started() -> tuple[list[str], int]:
        access = Access(config, tmp_path)
        access.load()
        assert access.table is not None
        before = access.table.revision
        await access.start()
        await access.start()
        names, changes = sorted(access.table.users()), access.table.revision - before
        assert all(user.is_super for user in access.table.users().values())
        await access.close()
        return names, changes

    with caplog.at_level(logging.WARNING):
        assert run(started()) == (["root", "servers"], 2)
        assert run(started()) == (["root", "servers"], 0)
    assert not [record for record in caplog.records if "gimbalmq" in record.name]


@pytest.mark.parametrize(
    ("options", "folder", "said"),
    [
        ({"authentication_enabled": True}, True, "there is no user yet"),
        ({"authentication_enabled": True, "init_authentication_user": ROOT}, False, "kept in memory only"),
        ({"authentication_metadata_provider": "any"}, True, "anybody may make users"),
        ({"authentication_enabled": True, "access_mode": "permissive"}, True, "are served and noted"),
    ],
)
def test_what_is_half_open_is_said(
    options: dict[str, object], folder: bool, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        access = Access(AccessConfig(**options), tmp_path if folder else None)  # type: ignore[arg-type]
        access.load()
        await access.start()
        await access.close()

    with caplog.at_level(logging.WARNING):
        run(work())
    assert said in caplog.text


def test_accounts_of_4x_count_beside_users(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    config = AccessConfig(acl_enable=True, init_authentication_user=ROOT)

    async def work() -> None:
        access = Access(config, tmp_path / "config")
        access.load()
        await access.start()
        needs = NeedTable.of_broker()
        gate = access.gate(needs, config)
        assert gate is not None
        delete = RequestCode.DELETE_TOPIC_IN_BROKER
        gate.check(Peer().channel, request(delete, "accounts-admin", "accounts-secret", topic="T"))
        gate.check(Peer().channel, request(delete, "root", topic="T"))
        gate.check(Peer("10.9.9.9").channel, request(delete, topic="T"))
        handlers = Handlers()
        access.guard(handlers, gate, needs, lambda: ServerNames("b", "10.0.0.1:10911", "c"))
        assert handlers.gate is gate
        assert {RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, RequestCode.AUTH_CREATE_USER} <= set(
            handlers.by_code
        )
        await access.close()

    run(work())


def test_accounts_that_nobody_can_find_refuse_the_start() -> None:
    with pytest.raises(ConfigError, match="aclConfigPath"):
        Access(AccessConfig(acl_enable=True), None).load()


def test_a_handler_without_a_row_is_found_at_the_start(tmp_path: Path) -> None:
    access = Access(AccessConfig(), tmp_path)
    handlers = Handlers()
    handlers.add(9999, lambda _channel, asked: asked.reply())
    with pytest.raises(AssertionError, match="9999"):
        access.guard(handlers, None, NeedTable.of_broker())


def test_a_server_cannot_check_users_that_it_does_not_share(tmp_path: Path) -> None:
    shared = Access(AccessConfig(), tmp_path)
    with pytest.raises(ConfigError, match="authenticationEnabled"):
        shared.gate(NeedTable.of_broker(), AccessConfig(authentication_enabled=True))


def test_a_start_that_fails_leaves_no_thread(tmp_path: Path) -> None:
    log = str(tmp_path / "audit.log")
    (tmp_path / "users.json").write_text("{")
    broken = AccessConfig(authentication_enabled=True, audit_log_path=log)
    with pytest.raises(ConfigError, match=r"users\.json"):
        Access(broken, tmp_path).load()
    assert audits() == 0

    async def work() -> None:
        async with NameServer(NameServerConfig(listen_port=0)) as first:
            second = NameServer(NameServerConfig(listen_port=first.port, audit_log_path=log))
            with pytest.raises(ListenError):
                await second.start()
            assert audits() == 0
        async with NameServer(NameServerConfig(listen_port=0, audit_log_path=log)):
            assert audits() == 1
        assert audits() == 0

    run(work())
