"""The name server with authentication on: who may speak for a broker, who may ask, and whom nobody replaces."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from gimbalmq._steps import run_through
from gimbalmq.access.policies import Acl, Action, Decision, Entry, Policy, PolicyType, Resource
from gimbalmq.access.users import User, UserType
from gimbalmq.errors import NoPermissionError
from gimbalmq.nameserver import NameServer, NameServerConfig
from gimbalmq.nameserver.route_table import RouteTable
from gimbalmq.protocol.codes import RequestCode as Code
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.signing import Signer
from gimbalmq.testing import LocalCluster, MemoryNetwork
from gimbalmq.transport.pool import ChannelPool
from tests.nameserver.broker_double import register_request, registration, topics
from tests.support import run, until

A, B = "10.0.0.11:10911", "10.0.0.12:10911"
HOST_A, HOST_B, FAR = "10.0.0.11", "10.0.0.12", "10.7.7.7"
INNER = json.dumps({"accessKey": "servers", "secretKey": "secret-of-servers"})
CLOSED = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "innerClientAuthenticationCredentials": INNER,
    "authFailureDelayMillis": "0",
}
TRUSTING = CLOSED | {"trustedServers": "10.0.0.0/24"}
REFUSED = 16


class World:
    """A name server, and peers on several hosts."""

    def __init__(self) -> None:
        self.network = MemoryNetwork()
        self._pools: list[ChannelPool] = []

    async def start(self, keys: dict[str, str]) -> None:
        config, unknown = NameServerConfig.from_properties(
            {"bindAddress": "10.0.0.1", "listenPort": "0", **keys}
        )
        assert not unknown
        self.server = NameServer(config, network=self.network.host("10.0.0.1"))
        await self.server.start()

    def pool(self, host: str, user: str | None = None) -> ChannelPool:
        signer = None if user is None else Signer(user, f"secret-of-{user}")
        self._pools.append(ChannelPool(network=self.network.host(host), signer=signer))
        return self._pools[-1]

    async def code(self, pool: ChannelPool, request: RemotingCommand) -> int:
        sent = RemotingCommand(request.code, request.ext_fields, request.body)  # signing changes it
        return (await pool.call(self.server.address, sent, 5.0)).code

    @property
    def addresses(self) -> dict[str, dict[int, str]]:
        table = self.server.table.cluster_info().broker_addr_table
        return {name: broker.broker_addrs for name, broker in table.items()}

    async def add(self, name: str, *allowed: str, **more: object) -> None:
        assert self.server.access is not None and self.server.access.table is not None
        table = self.server.access.table
        await table.create_user(User(name, f"secret-of-{name}", **more))  # type: ignore[arg-type]
        if allowed:
            actions = frozenset({Action.SUB, Action.GET})
            entries = tuple(Entry(Resource.parse(text), actions, Decision.ALLOW) for text in allowed)
            await table.merge_acl(Acl(name, (Policy(PolicyType.CUSTOM, entries),)))

    async def close(self) -> None:
        for pool in self._pools:
            await pool.close()
        await self.server.close()


@asynccontextmanager
async def world(keys: dict[str, str]) -> AsyncIterator[World]:
    made = World()
    await made.start(keys)
    try:
        yield made
    finally:
        await made.close()


def identity(address: str = A, name: str = "broker-a", cluster: str = "C") -> dict[str, str]:
    return {"brokerName": name, "brokerAddr": address, "clusterName": cluster, "brokerId": "0"}


def goodbye(address: str = A, name: str = "broker-a", cluster: str = "C") -> RemotingCommand:
    return RemotingCommand(Code.UNREGISTER_BROKER, identity(address, name, cluster))


def beat(address: str = A) -> RemotingCommand:
    return RemotingCommand(Code.BROKER_HEARTBEAT, identity(address))


def version_query(address: str = A) -> RemotingCommand:
    return RemotingCommand(Code.QUERY_DATA_VERSION, identity(address), b'{"counter":1,"timestamp":5}')


# -- the table ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "broker_id", "address", "cluster"),
    [
        ("broker-a", 0, B, "C"),
        ("broker-a", 0, B, "another"),
        ("broker-b", 0, A, "C"),
        ("broker-b", 0, A, "another"),
        ("broker-a", 1, A, "C"),
        ("broker-a", 0, A, "C"),
    ],
    ids=[
        "its name",
        "its name in another cluster",
        "its address",
        "its address elsewhere",
        "its id",
        "itself",
    ],
)
def test_a_stranger_takes_nothing_of_a_living_broker(
    name: str, broker_id: int, address: str, cluster: str
) -> None:
    table = RouteTable()
    table.register(registration("broker-a", 0, A), now=0.0, connection=1, owner=HOST_A)
    before = table.cluster_info().dump()
    with pytest.raises(NoPermissionError, match=r"registered by another peer.*credentials"):
        table.register(
            registration(name, broker_id, address, cluster=cluster, version=2, state_version=9),
            now=1.0,
            connection=2,
            owner=HOST_B,
            may_replace=False,
        )
    assert table.cluster_info().dump() == before
    assert not table.connection_lost(2)
    assert table.cluster_info().dump() == before


def test_a_stranger_cannot_move_his_own_broker_to_anothers_address() -> None:
    table = RouteTable()
    table.register(registration("broker-a", 0, A), now=0.0, connection=1, owner=HOST_A)
    table.register(registration("broker-b", 0, B), now=0.0, connection=2, owner=HOST_B, may_replace=False)
    with pytest.raises(NoPermissionError):
        table.register(registration("broker-b", 0, A), now=1.0, connection=2, owner=HOST_B, may_replace=False)
    assert table.members("broker-b") == {0: B}


def test_a_stranger_with_an_older_state_cannot_make_a_slave_forgotten() -> None:
    table = RouteTable()
    table.register(registration("broker-a", 0, A, state_version=5), now=0.0, connection=1, owner=HOST_A)
    table.register(registration("broker-a", 1, B, state_version=5), now=0.0, connection=2, owner=HOST_B)
    with pytest.raises(NoPermissionError):
        table.register(
            registration("broker-a", 0, B, state_version=1),
            now=1.0,
            connection=3,
            owner=FAR,
            may_replace=False,
        )
    assert table.touch("C", B, 2.0)


def test_who_registered_a_broker_may_move_it_and_others_may_when_it_is_gone() -> None:
    table = RouteTable()
    table.register(registration("broker-a", 0, A), now=0.0, connection=1, owner=HOST_A, may_replace=False)
    moved = "10.0.0.11:20911"
    table.register(
        registration("broker-a", 0, moved, version=2), now=1.0, connection=2, owner=HOST_A, may_replace=False
    )
    assert table.members("broker-a") == {0: moved}
    table.connection_lost(1)
    table.connection_lost(2)
    table.register(registration("broker-a", 0, B), now=2.0, connection=3, owner=HOST_B, may_replace=False)
    assert table.members("broker-a") == {0: B}


# -- over the wire -----------------------------------------------------------------


def test_strangers_register_nothing_and_a_servers_credentials_do() -> None:
    async def work() -> None:
        async with world(CLOSED) as at:
            await at.add("plain")
            for user in (None, "plain", "nobody"):
                for request in (register_request(address=A), goodbye(), beat(), version_query()):
                    assert await at.code(at.pool(HOST_A, user), request) == REFUSED, (user, request)
            assert at.addresses == {}
            servers = at.pool(HOST_A, "servers")
            for request in (register_request(address=A), beat(), version_query()):
                assert await at.code(servers, request) == 0
            assert at.addresses == {"broker-a": {0: A}}
            assert await at.code(servers, goodbye()) == 0
            assert at.addresses == {}

    run(work())


def test_trusted_servers_register_unsigned_but_not_in_each_others_place() -> None:
    async def work() -> None:
        async with world(TRUSTING) as at:
            own, other = at.pool(HOST_A), at.pool(HOST_B)
            assert await at.code(at.pool(FAR), register_request(address=A)) == REFUSED
            assert await at.code(own, register_request(address=A)) == 0
            for request in (
                register_request(address=B, version=9),
                register_request("broker-b", A),
                register_request(address=A, crc=1),  # one that cannot be read keeps its broker alive
                goodbye(),
                goodbye(cluster="another"),
                goodbye(name="broker-b"),
                beat(),
                version_query(),
            ):
                assert await at.code(other, request) == REFUSED, request
            assert at.addresses == {"broker-a": {0: A}}
            assert await at.code(other, register_request("broker-b", B)) == 0
            for request in (beat(), version_query(), register_request(address=A, version=2)):
                assert await at.code(own, request) == 0
            # An address is trusted for what brokers send, and for nothing else.
            pair = {"namespace": "n", "key": "k", "value": "v"}
            assert await at.code(own, RemotingCommand(Code.PUT_KV_CONFIG, pair)) == REFUSED
            wipe = RemotingCommand(Code.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-b"})
            assert await at.code(own, wipe) == REFUSED
            # Credentials replace a broker from anywhere.
            assert (
                await at.code(at.pool(FAR, "servers"), register_request(address=f"{FAR}:10911", version=3))
                == 0
            )
            assert at.addresses == {"broker-a": {0: f"{FAR}:10911"}, "broker-b": {0: B}}
            # When a broker is gone, its place is free.
            await other.close()
            await until(lambda: "broker-b" not in at.addresses)
            assert await at.code(own, register_request("broker-b", B)) == 0

    run(work())


def test_a_trusted_server_does_not_say_which_topics_anothers_master_has() -> None:
    async def work() -> None:
        async with world(TRUSTING) as at:
            own, other = at.pool(HOST_A), at.pool(HOST_B)
            assert await at.code(own, register_request(address=A, table=topics(orders=4))) == 0
            false = topics(orders=1, another=1)
            for broker_id, expected in ((-1, REFUSED), (1, 0)):
                request = register_request(
                    address=B, broker_id=broker_id, version=9, acting=True, table=false
                )
                assert await at.code(other, request) == expected
                route = at.server.table.route("orders")
                assert route is not None
                assert [(queue.perm, queue.write_queue_nums) for queue in route.queue_datas] == [(6, 4)]
                assert at.server.table.route("another") is None

    run(work())


def test_a_broker_without_credentials_places_no_queues_of_others() -> None:
    table = RouteTable()
    said = replace(registration(address=A), queue_mappings={"T": {"bname": "broker-b", "topic": "T"}})
    with pytest.raises(NoPermissionError, match="speaks for broker-b"):
        run_through(table.registering(said, now=0.0, owner=HOST_A, may_replace=False))
    own = replace(said, queue_mappings={"T": {"bname": "broker-a", "topic": "T"}})
    run_through(table.registering(own, now=0.0, owner=HOST_A, may_replace=False))


def test_a_signature_that_was_seen_elsewhere_replaces_nothing() -> None:
    """A trusted server needs no signature; one that it carries counts only if its user may come from there."""

    async def work() -> None:
        async with world(TRUSTING) as at:
            await at.add("bound", type=UserType.SUPER, source_ips=(FAR,))
            assert await at.code(at.pool(HOST_A), register_request(address=A)) == 0
            assert await at.code(at.pool(HOST_B, "bound"), register_request(address=B, version=2)) == REFUSED
            assert await at.code(at.pool(HOST_B, "nobody"), register_request(address=B, version=2)) == REFUSED
            assert at.addresses == {"broker-a": {0: A}}
            assert await at.code(at.pool(FAR, "bound"), register_request(address=B, version=2)) == 0

    run(work())


def test_without_authentication_only_who_registered_a_broker_takes_it_out() -> None:
    async def work() -> None:
        async with world({}) as at:
            own, other = at.pool(HOST_A), at.pool(HOST_B)
            assert await at.code(own, register_request(address=A)) == 0
            assert await at.code(other, goodbye()) == REFUSED
            assert await at.code(other, goodbye(cluster="another")) == REFUSED
            assert at.addresses == {"broker-a": {0: A}}
            # A promoted slave takes its master's place, as with Apache.
            assert await at.code(other, register_request(address=B, version=2)) == 0
            assert at.addresses == {"broker-a": {0: B}}
            assert await at.code(other, goodbye(B)) == 0
            assert at.addresses == {}

    run(work())


def test_brokers_that_do_not_sign_yet_stay_while_the_mode_is_permissive() -> None:
    async def work() -> None:
        async with world(CLOSED | {"accessMode": "permissive"}) as at:
            own, other = at.pool(HOST_A), at.pool(HOST_B)
            for request in (register_request(address=A), beat(), version_query()):
                assert await at.code(own, request) == 0
            assert await at.code(other, register_request(address=B, version=2)) == 0  # a promoted slave
            assert at.addresses == {"broker-a": {0: B}}
            pair = {"namespace": "n", "key": "k", "value": "v"}
            assert await at.code(own, RemotingCommand(Code.PUT_KV_CONFIG, pair)) == REFUSED

    run(work())


def test_routes_are_public_or_need_a_right() -> None:
    route = RemotingCommand(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "SELF_TEST_TOPIC"})
    default = RemotingCommand(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})
    clusters = RemotingCommand(Code.GET_BROKER_CLUSTER_INFO)
    names = RemotingCommand(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    members = RemotingCommand(Code.GET_BROKER_MEMBER_GROUP, {"brokerName": "broker-a"})

    async def codes(at: World, user: str | None) -> list[int]:
        pool = at.pool(FAR, user)
        found = [await at.code(pool, request) for request in (route, default, clusters, names, members)]
        await pool.close()
        return found

    async def work() -> None:
        for public in (True, False):
            async with world(TRUSTING | {"routesPublic": str(public).lower()}) as at:
                await at.add("plain")
                await at.add("reader", "Topic:SELF*")
                assert await at.code(at.pool(HOST_A), register_request(address=A)) == 0
                if public:
                    assert await codes(at, None) == [0, 0, 0, REFUSED, 0]
                    assert await codes(at, "plain") == [0, 0, 0, 0, 0]
                else:
                    assert await codes(at, None) == [REFUSED] * 5
                    assert await codes(at, "plain") == [REFUSED, 0, 0, 0, REFUSED]
                    assert await codes(at, "reader") == [0, 0, 0, 0, REFUSED]
                    assert await codes(at, "servers") == [0, 0, 0, 0, 0]
                    assert await at.code(at.pool(HOST_B), members) == 0  # a trusted server

    run(work())


def test_a_broker_without_the_servers_credentials_is_not_registered(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        with caplog.at_level(logging.WARNING, "gimbalmq.broker.registration"):
            async with LocalCluster(namesrv_properties=CLOSED) as cluster:
                assert cluster.nameserver.table.cluster_info().broker_addr_table == {}
        assert "cannot be told of this broker" in caplog.text and "secret" not in caplog.text
        keys = {"innerClientAuthenticationCredentials": INNER}
        async with LocalCluster(properties=keys, namesrv_properties=CLOSED) as cluster:
            assert list(cluster.nameserver.table.cluster_info().broker_addr_table) == ["broker-a"]
            table = cluster.nameserver.table
            await cluster.broker.close()
            assert table.cluster_info().broker_addr_table == {}

    run(work())
