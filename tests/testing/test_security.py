"""Clusters with users and TLS, made in one word."""

from __future__ import annotations

import logging
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gimbalmq import Message, sync
from gimbalmq.admin.admin import Admin
from gimbalmq.errors import ConfigError, NoPermissionError, RocketMQError, StateError, TransportError
from gimbalmq.testing import LocalCluster, MemoryNetwork
from gimbalmq.testing.cluster import ThreadCluster
from tests.support import run

USERS = {"shop": {"Topic:orders": "Pub"}, "nobody": {}}


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadCluster]:
    with LocalCluster.in_thread(secure=True, users=USERS, brokers=2) as cluster:
        with sync.Admin(**cluster.client_options()) as admin:
            admin.topics.create("orders", queues=1)
            admin.topics.create("wages", queues=1)
        yield cluster


def test_users_may_do_what_they_were_made_for(
    cluster: ThreadCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    options = cluster.client_options("shop")
    with sync.Producer("shop", **options) as producer:
        producer.send(Message("orders", b"hello"))
        with pytest.raises(RocketMQError, match="wages"):
            producer.send(Message("wages", b"hello"))
    with (
        sync.Producer("nobody", **cluster.client_options("nobody")) as producer,
        pytest.raises(RocketMQError),
    ):
        producer.send(Message("orders", b"hello"))
    # Every broker has the same users.
    assert len(cluster.brokers) == 2
    assert caplog.records and options["secret_key"] not in caplog.text


def test_nobody_else_is_let_in(cluster: ThreadCluster) -> None:
    options = cluster.client_options()
    with sync.Admin(options["namesrv"]) as plain, pytest.raises(TransportError, match="does it want TLS"):
        plain.topics.names()
    with sync.Admin(options["namesrv"], tls=options["tls"]) as unsigned, pytest.raises(NoPermissionError):
        unsigned.topics.create("mine", queues=1)
    with sync.Admin(**{**options, "secret_key": "guessed"}) as wrong, pytest.raises(NoPermissionError):
        wrong.topics.create("mine", queues=1)


def test_a_client_file_is_private_and_serves_every_client(cluster: ThreadCluster) -> None:
    path = cluster.client_file()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with sync.Admin(client_file=path) as admin:
        assert "orders" in admin.topics.names()
    with pytest.raises(ConfigError, match="the cluster was made with admin, shop, nobody"):
        cluster.client_file("stranger")
    with pytest.raises(ConfigError):
        cluster.client_file("servers")


def test_a_broker_that_comes_back_has_the_users_still() -> None:
    with LocalCluster.in_thread(secure=True) as cluster:
        cluster.kill_broker()
        cluster.start_broker()
        with sync.Admin(**cluster.client_options()) as admin:
            admin.topics.create("T", queues=1)


def test_it_works_in_memory_too() -> None:
    async def work() -> None:
        network = MemoryNetwork()
        async with LocalCluster(secure=True, network=network) as cluster:
            options = cluster.client_options()
            async with Admin(**options, network=network.host("10.0.0.99")) as admin:
                await admin.topics.create("T", queues=1)

    run(work())


@pytest.mark.parametrize(
    ("users", "told"),
    [
        ({"shop": {"Tpoic:orders": "Pub"}}, "Tpoic"),
        ({"shop": {"Topic:orders": "Publish"}}, "Publish"),
        ({"a b": {}}, "a b"),
        ({"admin": {}}, "choose another"),
    ],
)
def test_a_wrong_user_is_refused(users: dict[str, dict[str, str]], told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=told):
        LocalCluster.in_thread(secure=True, users=users).start()


def test_users_belong_to_secure_clusters() -> None:
    with pytest.raises(ConfigError, match="say secure=True"):
        LocalCluster(users={"shop": {}})
    with LocalCluster.in_thread() as plain:
        assert plain.client_options() == {"namesrv": plain.namesrv}
        with pytest.raises(StateError, match="secure=True"):
            plain.client_file()
