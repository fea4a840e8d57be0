"""Logins as the cluster decides them, without a browser: whom it knows, and when it cannot be believed."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gimbalmq.admin.connection import AdminConnection
from gimbalmq.client.config import ClientConfig
from gimbalmq.errors import ConnectError, NoPermissionError
from gimbalmq.protocol.access_bodies import UserBody
from gimbalmq.rpc import access
from gimbalmq.testing import LocalCluster
from tests.dashboard.guarded import PROPERTIES, SECRETS, keys, make_users
from tests.support import run

pytest.importorskip("nicegui", reason="the extra gimbalmq[dashboard] is not installed")

from gimbalmq.dashboard.accounts import NotCheckedError, WrongLoginError, asks_for_users, verify
from gimbalmq.dashboard.site import Door, Site


@asynccontextmanager
async def guarded_cluster(**more: str) -> AsyncIterator[LocalCluster]:
    properties = {**PROPERTIES, **more}
    async with LocalCluster(properties=properties, namesrv_properties=properties) as cluster:
        await make_users(cluster.namesrv, (cluster.namesrv, cluster.broker.address))
        yield cluster


async def change(cluster: LocalCluster, user: UserBody) -> None:
    connection = AdminConnection(ClientConfig.of(namesrv=cluster.namesrv, **keys("root")))
    for address in (cluster.namesrv, cluster.broker.address):
        await access.update_user(connection.caller, address, user)
    await connection.close()


def test_the_cluster_decides_who_may_log_in_and_who_may_act() -> None:
    async def work() -> None:
        async with guarded_cluster() as cluster:
            namesrv = cluster.namesrv
            assert await asks_for_users(namesrv, {}) is True
            assert await verify(namesrv, {}, "root", SECRETS["root"]) is True
            assert await verify(namesrv, {}, "alice", SECRETS["alice"]) is False
            assert await verify(namesrv, {}, "eve", SECRETS["eve"]) is False, (
                "one without any right may log in"
            )
            site = Site(namesrv, {"access_key": "root", "secret_key": "not for others"}, door=Door.USERS)
            for user, secret in (
                ("alice", "wrong"),
                ("alice", SECRETS["eve"]),
                ("nobody", "wrong"),
                ("ghost", SECRETS["ghost"]),
                ("", "x"),
                ("alice", ""),
                ("alice\n", SECRETS["alice"]),
                ("a" * 300, "x"),
            ):
                with pytest.raises(WrongLoginError) as refused:
                    await site.log_in(user, secret)
                assert str(refused.value) == "", "whatever is wrong, the answer is the same"
            first, second = [await site.log_in("alice", SECRETS["alice"]) for _ in range(2)]
            root = await site.log_in("root", SECRETS["root"])
            assert first.account is second.account is not root.account
            assert root.account.may_act and not first.account.may_act
            viewer = site.viewer_of(first.token)
            with pytest.raises(PermissionError, match="alice may look only"):
                viewer.must_be_writable()
            site.viewer_of(root.token).must_be_writable()
            assert await site.viewer_of(root.token).admin.groups.names() == []
            with pytest.raises(NoPermissionError):
                await viewer.admin.groups.names()
            site.sessions.end(first)
            assert len(site.accounts) == 2
            site.sessions.end(second)
            assert len(site.accounts) == 1, "the last session takes connections and secret along"
            await site.close()

    run(work())


def test_users_that_the_cluster_takes_no_more_are_logged_out() -> None:
    async def work() -> None:
        async with guarded_cluster() as cluster:
            site = Site(cluster.namesrv, {}, door=Door.USERS)
            alice, eve, root, boss = [
                await site.log_in(name, SECRETS[name]) for name in ("alice", "eve", "root", "boss")
            ]
            await site.recheck()
            assert list(site.sessions) == [alice, eve, root, boss]
            assert boss.account.may_act
            await change(cluster, UserBody(username="alice", password="another-secret"))
            await change(cluster, UserBody(username="boss", user_type="Normal"))
            await site.recheck()
            assert list(site.sessions) == [eve, root, boss]
            assert root.account.may_act and not boss.account.may_act
            await change(cluster, UserBody(username="eve", user_status="disable"))
            await site.recheck()
            assert list(site.sessions) == [root, boss]
            await cluster.close()
            await site.recheck()
            assert list(site.sessions) == [root, boss], "a cluster that is away says nothing about its users"
            await site.close()

    run(work())


@pytest.mark.parametrize(
    "more",
    [{"authenticationEnabled": "false", "authorizationEnabled": "false"}, {"accessMode": "permissive"}],
)
def test_a_cluster_that_checks_nobody_lets_nobody_in(more: dict[str, str]) -> None:
    """It would take any secret of anybody."""

    async def work() -> None:
        async with LocalCluster(properties={**PROPERTIES, **more}) as cluster:
            for secret in (SECRETS["root"], secrets.token_urlsafe()):
                with pytest.raises(NotCheckedError, match="does not check secrets"):
                    await verify(cluster.namesrv, {}, "root", secret)
            assert await asks_for_users(cluster.namesrv, {}) is False

    run(work())


PLAIN = """
accounts:
- {accessKey: operator, secretKey: operator-secret, admin: true}
- {accessKey: reader-1, secretKey: reader-1-secret, topicPerms: [orders=SUB]}
- {accessKey: homebody, secretKey: homebody-secret, admin: true, whiteRemoteAddress: 127.0.0.1}
"""


def test_accounts_of_4x_log_in_unless_a_white_list_lets_in_everybody_as_them(tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(PLAIN)

    async def work() -> None:
        properties = {"aclEnable": "true", "aclConfigPath": str(file), "authFailureDelayMillis": "0"}
        async with LocalCluster(properties=properties) as cluster:
            assert await verify(cluster.namesrv, {}, "operator", "operator-secret") is True
            assert await verify(cluster.namesrv, {}, "reader-1", "reader-1-secret") is False
            with pytest.raises(WrongLoginError):
                await verify(cluster.namesrv, {}, "reader-1", "operator-secret")
            with pytest.raises(NotCheckedError):
                await verify(cluster.namesrv, {}, "homebody", "homebody-secret")

    run(work())


def test_a_cluster_that_is_away_is_no_wrong_login() -> None:
    async def work() -> None:
        quick = {"api_timeout": 1.0, "connect_timeout": 1.0}
        with pytest.raises(ConnectError):
            await verify("127.0.0.1:1", quick, "root", "x")
        assert await asks_for_users("127.0.0.1:1", quick) is None

    run(work())


def test_an_open_dashboard_asks_for_users_once_the_cluster_does() -> None:
    async def work() -> None:
        async with guarded_cluster() as cluster:
            site = Site(cluster.namesrv, {})
            viewer = site.viewer_of(None)
            assert viewer.is_there
            assert "username cannot be null" in await viewer.problem_of(lambda: viewer.admin.groups.names())
            assert site.door is Door.USERS and not viewer.is_there
            await site.close()
        async with LocalCluster() as cluster:
            site = Site(cluster.namesrv, {})
            viewer = site.viewer_of(None)

            async def forbidden() -> None:
                raise NoPermissionError("the topic may not be read")

            assert "the topic may not be read" in await viewer.problem_of(forbidden)
            assert site.door is Door.OPEN, "a broker says the same of a topic that nobody may read"
            await site.close()

    run(work())
