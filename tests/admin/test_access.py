"""Users and policies over all servers of a cluster that asks who is there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gimbalmq.admin import admin as admins
from gimbalmq.errors import ConfigError, NoPermissionError, QueryNotFoundError, RequestCodeNotSupportedError
from gimbalmq.protocol.access_bodies import UserBody
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.sync import Admin
from gimbalmq.testing import LocalCluster
from gimbalmq.testing.cluster import ThreadCluster
from gimbalmq.transport.channel import Channel, Handlers
from tests.guarded_cluster import SECRET, servers
from tests.support import run
from tests.transport.wiring import wire

pytest_plugins = ["tests.guarded_fixtures"]

_numbers = iter(range(10_000))


@pytest.fixture(scope="module")
def admin(guarded_cluster: ThreadCluster) -> Iterator[Admin]:
    with Admin(guarded_cluster.namesrv, access_key="root", secret_key=SECRET) as admin:
        yield admin


@pytest.fixture
def name() -> str:
    return f"user-{next(_numbers)}"


def everywhere(guarded_cluster: ThreadCluster, admin: Admin, name: str) -> list[tuple[object, ...] | None]:
    found = [admin.users.get(name, broker=server) for server in servers(guarded_cluster)]
    return [None if user is None else (user.password, user.status, user.source_ips) for user in found]


def test_a_user_is_made_changed_and_deleted_on_every_server(
    guarded_cluster: ThreadCluster, admin: Admin, name: str
) -> None:
    done = admin.users.create(name, "one", source_ips=["10.0.0.0/8"])
    assert sorted(done.servers) == sorted(servers(guarded_cluster))
    assert not done.problems and not done.without
    assert everywhere(guarded_cluster, admin, name) == [("one", "enable", ("10.0.0.0/8",))] * 3
    admin.users.update(name, password="two", status="disable", source_ips=[])
    assert everywhere(guarded_cluster, admin, name) == [("two", "disable", ())] * 3
    admin.users.delete(name)
    assert everywhere(guarded_cluster, admin, name) == [None] * 3


def test_a_user_of_one_broker_only(guarded_cluster: ThreadCluster, admin: Admin, name: str) -> None:
    assert admin.users.create(name, "one", broker="broker-b").servers == (guarded_cluster.brokers[1].address,)
    assert admin.users.get(name) is None
    assert admin.users.get(name, broker="broker-b") is not None
    done = admin.users.create(
        name, "one", broker=guarded_cluster.namesrv
    )  # an address need not be a broker's
    assert done.servers == (guarded_cluster.namesrv,)


def test_a_user_that_is_there_already_is_not_made_again(
    guarded_cluster: ThreadCluster, admin: Admin, name: str
) -> None:
    admin.users.create(name, "one", broker="broker-a")
    with pytest.raises(NoPermissionError, match="existed"):
        admin.users.create(name, "two")
    assert admin.users.get(name, broker="broker-b") is None


def test_what_later_servers_say_is_gathered(guarded_cluster: ThreadCluster, admin: Admin, name: str) -> None:
    other = guarded_cluster.brokers[1].address
    admin.users.create(name, "another", broker="broker-b")
    done = admin.users.create(name, "one")
    assert list(done.problems) == [other] and "existed" in done.problems[other]
    assert sorted(done.servers) == sorted({*servers(guarded_cluster)} - {other})


def test_a_server_that_has_the_very_user_is_no_problem(
    guarded_cluster: ThreadCluster, admin: Admin, name: str
) -> None:
    """So it is with the name server and the broker of one process, which share their users."""
    admin.users.create(name, "one", broker="broker-b")
    done = admin.users.create(name, "one")
    assert not done.problems and len(done.servers) == 3


def test_passwords_are_told_to_super_users_only(
    guarded_cluster: ThreadCluster, admin: Admin, name: str
) -> None:
    admin.users.create(name, "one")
    admin.acls.create(name, ["Cluster:*"], ["Get"])
    found = admin.users.get(name)
    assert found is not None and found.password == "one" and repr("one") not in repr(found)
    with Admin(guarded_cluster.namesrv, access_key=name, secret_key="one") as normal:
        (seen,) = normal.users.all(name)
        assert (seen.name, seen.password) == (name, None)
        with pytest.raises(NoPermissionError, match="rank Super only"):
            normal.users.copy("broker-a", "broker-b", [name])
        with pytest.raises(NoPermissionError, match="no permission"):
            normal.users.delete(name)


def test_users_and_policies_are_copied(guarded_cluster: ThreadCluster, admin: Admin, name: str) -> None:
    admin.users.create(name, "one", broker="broker-a", certificate="CN=me")
    admin.acls.create(name, ["Topic:a*", "Group:g"], ["Sub", "Get"], broker="broker-a")
    assert admin.users.copy("broker-a", "broker-b", [name]) == [name]
    assert admin.acls.copy("broker-a", guarded_cluster.brokers[1].address, [name]) == [name]
    table = guarded_cluster.brokers[1].access.table
    assert table is not None
    user, acl = table.user(name), table.acl(name)
    assert user is not None and user.password == "one" and (user.certificate or "").endswith("me")
    assert acl is not None and acl.entry_count == 2
    admin.users.update(name, password="two", broker="broker-a")
    assert admin.users.copy("broker-a", "broker-b", [name]) == [name]  # over the one that is there
    user = table.user(name)
    assert user is not None and user.password == "two"
    for copy in (admin.users.copy, admin.acls.copy):
        with pytest.raises(QueryNotFoundError, match="nobody"):
            copy("broker-a", "broker-b", ["nobody"])


def test_policies_are_made_replaced_and_deleted(
    guarded_cluster: ThreadCluster, admin: Admin, name: str
) -> None:
    admin.users.create(name, "one")
    done = admin.acls.create(f"User:{name}", ["Topic:a", "topic:B*"], ["pub"], source_ips=["10.0.0.1"])
    assert len(done.servers) == 3
    admin.acls.update(name, ["Topic:a"], ["All"], decision="deny")
    admin.acls.create(name, ["Group:*"], ["Sub"], policy_type="Default")
    found = admin.acls.get(name)
    assert found is not None and found.user == name
    assert [
        (entry.policy_type, entry.resource, entry.actions, entry.decision) for entry in found.entries
    ] == [
        ("Custom", "Topic:a", ("All",), "Deny"),
        ("Custom", "Topic:B*", ("Pub",), "Allow"),
        ("Default", "Group:*", ("Sub",), "Allow"),
    ]
    assert found.entries[1].source_ips == ("10.0.0.1",)
    assert [len(view.entries) for view in admin.acls.all(name, "Topic:")] == [2]
    admin.acls.delete(name, "Topic:a")
    admin.acls.delete(name, "Group:*", policy_type="Default")
    found = admin.acls.get(name)
    assert found is not None and [entry.resource for entry in found.entries] == ["Topic:B*"]
    assert not admin.acls.delete(name).problems
    assert admin.acls.get(name) is None


def test_actions_that_are_added_join_those_that_are_there(admin: Admin, name: str) -> None:
    def entries() -> list[tuple[str, ...]]:
        found = admin.acls.get(name)
        assert found is not None
        return [(e.policy_type, e.resource, *e.actions, e.decision, *e.source_ips) for e in found.entries]

    admin.users.create(name, "one")
    admin.acls.add(name, ["Topic:a"], ["Pub"])
    admin.acls.add(name, ["topic:a", "Group:g"], ["sub", "Get"])
    assert entries() == [
        ("Custom", "Topic:a", "Pub", "Sub", "Get", "Allow"),
        ("Custom", "Group:g", "Sub", "Get", "Allow"),
    ]
    admin.acls.add(name, ["Group:g"], ["Update"], policy_type="Default")
    admin.acls.add(name, ["Group:g"], ["All"])
    assert entries()[1:] == [
        ("Custom", "Group:g", "All", "Allow"),
        ("Default", "Group:g", "Update", "Allow"),
    ]
    admin.acls.add(name, ["Topic:a"], ["Pub"], source_ips=["10.0.0.1"])  # it must not widen to Sub and Get
    assert entries()[0] == ("Custom", "Topic:a", "Pub", "Allow", "10.0.0.1")
    admin.acls.add(name, ["Topic:a"], ["Sub"], decision="Deny", source_ips=["10.0.0.1"])
    assert entries()[0] == ("Custom", "Topic:a", "Sub", "Deny", "10.0.0.1")


def test_policies_that_are_gone_at_a_later_server_are_no_problem(admin: Admin, name: str) -> None:
    admin.users.create(name, "one")
    admin.acls.create(name, ["Topic:a"], ["Pub"])
    admin.acls.delete(name, broker="broker-b")
    assert not admin.acls.delete(name).problems


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda admin: admin.users.create("x", "y", type="King"), "King"),
        (lambda admin: admin.users.create("x y", "y"), "blank"),
        (lambda admin: admin.users.create("x", ""), "password can not be blank"),
        (lambda admin: admin.users.update("x"), "say what is to be changed"),
        (lambda admin: admin.users.update("x", source_ips=["10.0.0.0/99"]), "10.0.0.0/99"),
        (lambda admin: admin.acls.create("x", ["Thing:a"], ["Pub"]), "Thing"),
        (lambda admin: admin.acls.create("x", ["Topic:a"], ["Publish"]), "Publish"),
        (lambda admin: admin.acls.create("x", ["Topic:a"], ["Any"]), "can not be Any"),
        (lambda admin: admin.acls.create("x", ["Topic:a"], ["Pub"], decision="Perhaps"), "Perhaps"),
        (lambda admin: admin.acls.delete("x", "Thing:a"), "Thing"),
        (lambda admin: admin.users.get("x", broker="broker-z"), "there is broker-a, broker-b"),
        (lambda admin: admin.users.get("x", cluster="Other"), "there is DefaultCluster"),
    ],
)
def test_wrong_words_are_refused_before_anybody_is_asked(admin: Admin, change: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        change(admin)


def test_servers_that_keep_no_users_say_so() -> None:
    with (
        LocalCluster.in_thread() as plain,
        Admin(plain.namesrv) as admin,
        pytest.raises(RequestCodeNotSupportedError, match="authenticationEnabled=true"),
    ):
        admin.users.create("x", "y")
    keeps = {"authenticationMetadataProvider": "any"}
    with LocalCluster.in_thread(properties=keeps) as half, Admin(half.namesrv) as admin:
        done = admin.users.create("x", "y")
        assert (done.servers, done.without) == ((half.broker.address,), (half.namesrv,))


def forgetful(told: list[int]) -> Handlers:
    """A server as Apache's, which passes over what it does not know of a user."""

    def answer(_channel: Channel, request: RemotingCommand) -> RemotingCommand:
        told.append(request.code)
        if request.code != RequestCode.AUTH_GET_USER:
            return request.reply()
        return request.reply(body=UserBody(username="x", user_type="Normal").dump())

    handlers = Handlers()
    for code in (RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_UPDATE_USER, RequestCode.AUTH_DELETE_USER):
        handlers.add(code, answer)
    handlers.add(RequestCode.AUTH_GET_USER, answer)
    return handlers


@pytest.mark.parametrize("binding", [{"source_ips": ["10.0.0.1"]}, {"certificate": "CN=x"}])
def test_a_user_that_a_server_does_not_bind_does_not_stay(binding: dict[str, Any]) -> None:
    told: list[int] = []

    async def work() -> None:
        async with wire(forgetful(told)) as line, admins.Admin(line.address) as admin:
            for change in (admin.users.create("x", "y", broker=line.address, **binding),
                           admin.users.update("x", broker=line.address, **binding)):  # fmt: skip
                with pytest.raises(NoPermissionError, match="does not bind x"):
                    await change
            await admin.users.update("x", broker=line.address, source_ips=[])

    run(work())
    assert told == [3001, 3004, 3003, 3002, 3004, 3002]
