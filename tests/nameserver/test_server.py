"""The name server over real sockets: every request it answers."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gimbalmq._clock import SYSTEM_CLOCK, Clock
from gimbalmq._steps import run_through
from gimbalmq.errors import ConfigError, ListenError, ResponseError, StateError, TopicRouteNotFoundError
from gimbalmq.nameserver import NameServer, NameServerConfig
from gimbalmq.protocol import fastjson
from gimbalmq.protocol.bodies import DataVersion, KvTable, RegisterBrokerBody, TopicConfig, TopicTable
from gimbalmq.protocol.codes import OUR_VERSION, RequestCode, ResponseCode
from gimbalmq.protocol.command import BINARY_HEADER, RemotingCommand
from gimbalmq.protocol.headers import nameserver as headers
from gimbalmq.rpc import nameserver as rpc
from gimbalmq.transport.channel import Channel
from gimbalmq.transport.pool import ChannelPool
from gimbalmq.transport.tls import client_tls
from tests.nameserver.broker_double import one_topic, register_request, topics
from tests.support import ManualClock, SlowClock, run, until
from tests.transport.wiring import self_signed

A = "10.0.0.1:10911"
IDENTITY = {"brokerName": "broker-a", "brokerAddr": A, "clusterName": "C", "brokerId": "0"}


class Desk:
    """A name server and a client of it."""

    def __init__(self, server: NameServer) -> None:
        self.server = server
        self.pool = ChannelPool()

    async def ask(
        self,
        code: int,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        version: int = OUR_VERSION,
        pool: ChannelPool | None = None,
    ) -> RemotingCommand:
        request = RemotingCommand(code, ext, body, version=version)
        return await (pool or self.pool).call(self.server.address, request, 5.0)

    async def register(
        self,
        name: str = "broker-a",
        address: str = A,
        *,
        pool: ChannelPool | None = None,
        broker_id: int = 0,
        version: int = 1,
        table: dict[str, TopicConfig] | None = None,
        zone: str | None = None,
        acting: bool | None = False,
    ) -> RemotingCommand:
        request = register_request(
            name, address, broker_id=broker_id, version=version, table=table, zone=zone, acting=acting
        )
        return await (pool or self.pool).call(self.server.address, request, 5.0)

    async def order(self, topic: str, value: str) -> None:
        ext = {"namespace": "ORDER_TOPIC_CONFIG", "key": topic, "value": value}
        assert (await self.ask(RequestCode.PUT_KV_CONFIG, ext)).code == 0

    async def route(self, topic: str, **ext: str) -> RemotingCommand:
        return await self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, **ext})

    async def queues(self, topic: str) -> dict[str, int]:
        try:
            route = await rpc.route(self.pool, self.server.address, topic)
        except TopicRouteNotFoundError:
            return {}
        return {queue.broker_name: queue.write_queue_nums for queue in route.queue_datas}


@asynccontextmanager
async def desk(config: NameServerConfig | None = None, clock: Clock = SYSTEM_CLOCK) -> AsyncIterator[Desk]:
    async with NameServer(config or NameServerConfig(listen_port=0), clock=clock) as server:
        made = Desk(server)
        try:
            yield made
        finally:
            await made.pool.close()


def names(answer: RemotingCommand) -> list[str]:
    assert answer.code == 0, answer
    found = json.loads(bytes(answer.body))["topicList"]
    assert isinstance(found, list)
    return sorted(found)


# -- registration --------------------------------------------------------------------


def test_registered_topics_are_routed_and_changes_show_at_the_next_poll() -> None:
    """S1-08: reported at once and periodically; the route follows; pollers see it."""

    async def work() -> None:
        async with desk() as at:
            answer = await at.register(table=topics(T=4))
            assert (answer.code, answer.ext_fields, answer.body) == (0, {}, b"")
            assert await at.queues("T") == {"broker-a": 4}
            await at.register(version=2, table=one_topic("New", 2))
            assert await at.queues("New") == {"broker-a": 2}
            await at.register(version=3, table=topics(T=16, New=2))
            assert await at.queues("T") == {"broker-a": 16}

    run(work())


def test_broker_that_dies_takes_its_queues_and_brings_them_back() -> None:
    """S1-09 (name server's part): two masters with 8 queues each, 8 when one dies, 16 again."""

    async def work() -> None:
        async with desk() as at:
            dying, living = ChannelPool(), ChannelPool()
            await at.register("broker-a", A, pool=dying, table=topics(T=8))
            await at.register("broker-b", "10.0.0.2:10911", pool=living, table=topics(T=8))
            assert await at.queues("T") == {"broker-a": 8, "broker-b": 8}
            (await dying.channel(at.server.address)).abort()
            await until(lambda: len(at.server.table.cluster_info().broker_addr_table) == 1)
            assert await at.queues("T") == {"broker-b": 8}
            await at.register("broker-a", A, pool=dying, table=topics(T=8))
            assert await at.queues("T") == {"broker-a": 8, "broker-b": 8}
            await dying.close()
            await living.close()

    run(work())


def test_silent_broker_is_dropped_and_its_connection_closed() -> None:
    async def work() -> None:
        clock = ManualClock()
        async with desk(clock=clock) as at:
            broker = ChannelPool()
            await at.register(pool=broker, table=topics(T=4))
            channel = await broker.channel(at.server.address)
            clock.advance(119.0)
            for code in (RequestCode.QUERY_DATA_VERSION, RequestCode.BROKER_HEARTBEAT):
                body = DataVersion(counter=1, timestamp=5).dump()
                assert (await at.ask(code, IDENTITY, body)).code == 0
                clock.advance(119.0)
                at.server.drop_silent_brokers()
                assert await at.queues("T") == {"broker-a": 4}
            clock.advance(1.1)
            at.server.drop_silent_brokers()
            await channel.wait_closed()
            assert await at.queues("T") == {}
            await broker.close()

    run(work())


def test_expiry_loop_looks_by_itself() -> None:
    async def work() -> None:
        clock = ManualClock()
        async with desk(NameServerConfig(listen_port=0, scan_not_active_broker_interval=10), clock) as at:
            await at.register(table=topics(T=4))
            clock.advance(121.0)
            await until(lambda: not run_through(at.server.table.all_topics()))

    run(work())


def test_broker_may_name_its_own_expiry() -> None:
    async def work() -> None:
        clock = ManualClock()
        async with desk(clock=clock) as at:
            request = register_request()
            request.ext_fields = {**(request.ext_fields or {}), "heartbeatTimeoutMillis": "3000"}
            broker = ChannelPool()
            assert (await broker.call(at.server.address, request, 5.0)).code == 0
            clock.advance(3.1)
            at.server.drop_silent_brokers()
            assert names(await at.ask(206)) == []
            await broker.close()

    run(work())


def test_connection_used_before_a_new_one_may_break_without_harm() -> None:
    async def work() -> None:
        async with desk() as at:
            old, new = ChannelPool(), ChannelPool()
            await at.register(pool=old, table=topics(T=4))
            await at.register(pool=new, table=topics(T=4))
            await old.close()
            await until(lambda: len(at.server._remoting.channels) == 1 if at.server._remoting else False)
            assert await at.queues("T") == {"broker-a": 4}
            await new.close()

    run(work())


def test_slave_is_told_its_master() -> None:
    async def work() -> None:
        async with desk() as at:
            assert (await at.register(broker_id=1, address="10.0.0.9:1", acting=None)).ext_fields == {}
            await at.register()
            answer = await at.register(broker_id=1, address="10.0.0.9:1", acting=None)
            assert answer.ext_fields == {"masterAddr": A, "haServerAddr": "10.0.0.1:10912"}
            members = await at.ask(901, {"clusterName": "C", "brokerName": "broker-a"})
            assert bytes(members.body) == (
                b'{"brokerMemberGroup":{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.9:1"},'
                b'"brokerName":"broker-a","cluster":"C"}}'
            )
            nobody = await at.ask(901, {"clusterName": "C", "brokerName": "ghost"})
            assert fastjson.loads(bytes(nobody.body))["brokerMemberGroup"]["brokerAddrs"] == {}

    run(work())


def test_typed_calls_of_our_own_broker_fit() -> None:
    async def work() -> None:
        async with desk() as at:
            address = at.server.address
            version = DataVersion(counter=1, timestamp=5)
            header = headers.RegisterBroker(
                broker_name="broker-a", broker_addr=A, cluster_name="C", ha_server_addr="10.0.0.1:10912"
            )
            body = RegisterBrokerBody(
                topic_config_serialize_wrapper=TopicTable(
                    data_version=version, topic_config_table=topics(T=4)
                )
            )
            await at.order("T", "broker-a:4")
            reply, order = await rpc.register_broker(at.pool, address, header, body)
            assert reply == headers.RegisterBrokerReply()
            assert order == KvTable(table={"T": "broker-a:4"})
            identity = headers.BrokerIdentity(broker_name="broker-a", broker_addr=A, cluster_name="C")
            assert not await rpc.query_data_version(at.pool, address, identity, version)
            assert await rpc.query_data_version(at.pool, address, identity, DataVersion(counter=2))
            info = await rpc.cluster_info(at.pool, address)
            assert info.broker_addr_table["broker-a"].broker_addrs == {0: A}
            assert sorted((await rpc.all_topics(at.pool, address)).topic_list) == [
                "SELF_TEST_TOPIC",
                "T",
                "TBW102",
            ]
            name = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"}
            assert (await at.ask(RequestCode.GET_KV_CONFIG, name)).ext_fields == {"value": "broker-a:4"}
            assert (await at.ask(RequestCode.DELETE_KV_CONFIG, name)).code == 0
            assert (await at.ask(RequestCode.GET_KV_CONFIG, name)).code == ResponseCode.QUERY_NOT_FOUND
            await rpc.delete_topic(at.pool, address, "T")
            with pytest.raises(TopicRouteNotFoundError, match="topic T"):
                await rpc.route(at.pool, address, "T")
            await rpc.unregister_broker(at.pool, address, identity)
            assert (await rpc.cluster_info(at.pool, address)).broker_addr_table == {}
            header.cluster_name = " "
            with pytest.raises(ResponseError, match="clusterName ' ' is blank"):
                await rpc.register_broker(at.pool, address, header, body)

    run(work())


@pytest.mark.parametrize(
    ("request_", "remark"),
    [
        (register_request(crc=5), "crc32 not match"),
        (register_request(table=one_topic("T")), "register broker failed"),
        (register_request(address="nowhere"), "brokerAddr 'nowhere' is not of the form ip:port"),
        (RemotingCommand(103, IDENTITY, b"nonsense"), "JSON"),
        (RemotingCommand(103, {"brokerName": "b"}), "brokerAddr"),
        (RemotingCommand(103, {**IDENTITY, "compressed": "true"}, b"nonsense"), "inflated"),
        (RemotingCommand(105), "topic"),
        (RemotingCommand(322, IDENTITY), "no body"),
        (RemotingCommand(322, IDENTITY, b"[]"), "DataVersion"),
        (RemotingCommand(100, {"namespace": "n"}), "namespace or key is null"),
        (RemotingCommand(217, {"topic": "T"}, b'{"queueDatas":[{"brokerName":"ghost"}]}'), "'ghost'"),
        (RemotingCommand(318, None, b"\xff"), "UTF-8"),
        (RemotingCommand(318, None, b"a=\\uXYZW"), "line 1"),
    ],
)
def test_wrong_request_is_answered_with_what_is_wrong(request_: RemotingCommand, remark: str) -> None:
    async def work() -> None:
        async with desk() as at:
            answer = await at.pool.call(at.server.address, request_, 5.0)
            assert answer.code == 1
            assert answer.remark is not None
            assert remark in answer.remark
            assert names(await at.ask(206)) == []

    run(work())


def test_data_version_query_tells_what_was_registered_last() -> None:
    async def work() -> None:
        async with desk() as at:
            body = DataVersion(counter=1, timestamp=5).dump()
            stranger = await at.ask(322, IDENTITY, body)
            assert (stranger.ext_fields, stranger.body) == ({"changed": "true"}, b"")
            await at.register()
            same = await at.ask(322, IDENTITY, body)
            assert (same.ext_fields, bytes(same.body)) == ({"changed": "false"}, body)

    run(work())


# -- routes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "ext", "keys"),
    [
        (409, {}, b'{"0":"'),
        (401, {}, b'{"0":"'),
        (399, {}, b'{0:"'),
        (0, {}, b'{0:"'),
        (0, {"acceptStandardJsonOnly": "true"}, b'{"0":"'),
        (399, {"acceptStandardJsonOnly": "false"}, b'{0:"'),
    ],
)
def test_route_is_standard_json_for_those_who_need_it(version: int, ext: dict[str, str], keys: bytes) -> None:
    async def work() -> None:
        async with desk() as at:
            await at.register(table=topics(T=4))
            answer = await at.ask(105, {"topic": "T", **ext}, version=version)
            assert bytes(answer.body) == (
                b'{"brokerDatas":[{"brokerAddrs":' + keys + b'10.0.0.1:10911"},"brokerName":"broker-a",'
                b'"cluster":"C","enableActingMaster":false}],"filterServerTable":{},"queueDatas":['
                b'{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
            )

    run(work())


def test_names_beyond_ascii_are_escaped_in_standard_routes_only() -> None:
    async def work() -> None:
        async with desk() as at:
            await at.register("仓库", table=topics(T=4))
            standard = bytes((await at.ask(105, {"topic": "T"})).body)
            bare = bytes((await at.ask(105, {"topic": "T"}, version=0)).body)
            assert standard.isascii()
            assert "仓库".encode() in bare
            assert fastjson.loads(standard) == fastjson.loads(bare)

    run(work())


def test_unknown_topic_is_answered_17_with_java_s_words() -> None:
    async def work() -> None:
        async with desk() as at:
            answer = await at.route("T")
            assert answer.code == 17
            assert answer.remark is not None
            assert answer.remark.startswith("No topic route info in name server for the topic: T")

    run(work())


@pytest.mark.parametrize("enabled", [True, False])
def test_order_configuration_is_in_the_route_where_enabled(enabled: bool) -> None:
    async def work() -> None:
        async with desk(NameServerConfig(listen_port=0, order_message_enable=enabled)) as at:
            await at.order("T", "broker-a:4")
            answer = await at.register(table=topics(T=4, U=4))
            assert json.loads(bytes(answer.body)) == {"table": {"T": "broker-a:4"}}
            ordered = json.loads(bytes((await at.route("T")).body))
            assert ordered.get("orderTopicConf") == ("broker-a:4" if enabled else None)
            assert "orderTopicConf" not in json.loads(bytes((await at.route("U")).body))

    run(work())


def test_brokers_are_not_told_the_order_configuration_where_that_is_off() -> None:
    async def work() -> None:
        async with desk(NameServerConfig(listen_port=0, return_order_topic_config_to_broker=False)) as at:
            await at.order("T", "broker-a:4")
            assert (await at.register()).body == b""

    run(work())


def test_routes_are_refused_until_brokers_had_time_to_register() -> None:
    async def work() -> None:
        clock = ManualClock()
        async with desk(NameServerConfig(listen_port=0, need_wait_for_service=True), clock) as at:
            await at.register(table=topics(T=4))
            early = await at.route("T")
            assert (early.code, early.remark) == (1, "name server not ready")
            clock.advance(44.9)
            assert (await at.route("T")).code == 1
            clock.advance(0.1)
            assert (await at.route("T")).code == 0

    run(work())


def test_zone_of_the_client_narrows_the_route_where_it_asks_for_that() -> None:
    async def work() -> None:
        async with desk() as at:
            await at.register("near", "10.0.0.1:1", zone="east", table=topics(T=4))
            await at.register("far", "10.0.0.2:1", zone="west", table=topics(T=4))

            async def brokers(**ext: str) -> list[str]:
                raw = json.loads(bytes((await at.route("T", **ext)).body))
                return [broker["brokerName"] for broker in raw["brokerDatas"]]

            assert await brokers(__ZONE_NAME="EAST", __ZONE_MODE="true") == ["near"]
            assert await brokers(__ZONE_NAME="east", __ZONE_MODE="false") == ["far", "near"]
            assert await brokers(__ZONE_NAME=" ", __ZONE_MODE="true") == ["far", "near"]
            assert await brokers(__ZONE_MODE="true") == ["far", "near"]

    run(work())


def test_acting_master_is_shown_where_supported() -> None:
    async def work() -> None:
        async with desk(NameServerConfig(listen_port=0, support_acting_master=True)) as at:
            await at.register(table=topics(T=4), acting=True)
            await at.register(broker_id=1, address="10.0.0.9:1", acting=True)
            await at.ask(104, IDENTITY)
            raw = json.loads(bytes((await at.route("T")).body))
            assert raw["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.9:1"}
            assert raw["brokerDatas"][0]["enableActingMaster"] is True
            assert raw["queueDatas"][0]["perm"] == 4

    run(work())


def test_cluster_info_has_bare_keys_for_everybody() -> None:
    async def work() -> None:
        async with desk() as at:
            await at.register()
            answer = await at.ask(106, None)
            assert bytes(answer.body) == (
                b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"broker-a",'
                b'"cluster":"C","enableActingMaster":false}},"clusterAddrTable":{"C":["broker-a"]}}'
            )

    run(work())


def test_binary_header_is_answered_in_binary() -> None:
    async def work() -> None:
        async with desk() as at:
            await at.register(table=topics(T=4))
            request = RemotingCommand(105, {"topic": "T"}, serialize_type=BINARY_HEADER)
            answer = await at.pool.call(at.server.address, request, 5.0)
            assert (answer.code, answer.serialize_type) == (0, BINARY_HEADER)

    run(work())


# -- topics, permissions -------------------------------------------------------------


def test_topic_lists() -> None:
    async def work() -> None:
        async with desk() as at:
            flagged = {
                name: TopicConfig(topic_name=name, topic_sys_flag=flag)
                for name, flag in {"plain": 0, "unit": 1, "sub": 2, "both": 3}.items()
            }
            await at.register(table=flagged)
            assert names(await at.ask(206)) == ["both", "plain", "sub", "unit"]
            assert names(await at.ask(224, {"cluster": "C"})) == ["both", "plain", "sub", "unit"]
            assert names(await at.ask(224, {"cluster": "D"})) == []
            system = await at.ask(304)
            assert json.loads(bytes(system.body)) == {"brokerAddr": A, "topicList": ["C", "broker-a"]}
            assert names(await at.ask(311)) == ["both", "unit"]
            assert names(await at.ask(312)) == ["both", "sub"]
            assert names(await at.ask(313)) == ["sub"]

    run(work())


def test_topic_lists_can_be_disabled() -> None:
    async def work() -> None:
        async with desk(
            NameServerConfig(listen_port=0, enable_all_topic_list=False, enable_topic_list=False)
        ) as at:
            for code in (206, 224, 311, 312, 313):
                answer = await at.ask(code, {"cluster": "C"})
                assert (answer.code, answer.remark) == (1, "disable")
            assert names(await at.ask(304)) == []

    run(work())


def test_topics_are_registered_and_deleted_by_request() -> None:
    async def work() -> None:
        async with desk() as at:
            await at.register(table=topics(T=4))
            body = b'{"queueDatas":[{"brokerName":"broker-a","readQueueNums":2,"writeQueueNums":2,"perm":6}]}'
            assert (await at.ask(217, {"topic": "N"}, body)).code == 0
            assert (await at.ask(217, {"topic": "M"})).code == 0
            assert await at.queues("N") == {"broker-a": 2}
            assert (await at.ask(216, {"topic": "N", "clusterName": "elsewhere"})).code == 0
            assert await at.queues("N") == {"broker-a": 2}
            assert (await at.ask(216, {"topic": "N", "clusterName": "C"})).code == 0
            assert (await at.ask(216, {"topic": "T"})).code == 0
            assert await at.queues("N") == await at.queues("T") == {}

    run(work())


def test_missing_topics_are_deleted_where_configured() -> None:
    async def work() -> None:
        async with desk(NameServerConfig(listen_port=0, delete_topic_with_broker_registration=True)) as at:
            await at.register(table=topics(T=4, U=4))
            await at.register(version=2, table=topics(U=4))
            assert await at.queues("T") == {}
            assert await at.queues("U") == {"broker-a": 4}

    run(work())


def test_write_permission_is_wiped_and_added() -> None:
    async def work() -> None:
        async with desk() as at:
            await at.register(table=topics(T=4))

            async def perm() -> int:
                raw = json.loads(bytes((await at.route("T")).body))
                found = raw["queueDatas"][0]["perm"]
                assert isinstance(found, int)
                return found

            wiped = await at.ask(205, {"brokerName": "broker-a"})
            assert (wiped.ext_fields, await perm()) == ({"wipeTopicCount": "3"}, 4)
            await at.register(table=topics(T=4))
            assert await perm() == 4
            added = await at.ask(327, {"brokerName": "broker-a"})
            assert (added.ext_fields, await perm()) == ({"addTopicCount": "3"}, 6)
            assert (await at.ask(205, {"brokerName": "ghost"})).ext_fields == {"wipeTopicCount": "0"}

    run(work())


# -- KV and configuration ------------------------------------------------------------


def test_kv_table_is_kept_over_a_restart(tmp_path: Path) -> None:
    async def first() -> None:
        async with desk(config) as at:
            put = await at.ask(100, {"namespace": "n", "key": "k", "value": "v"})
            assert put.code == 0
            await at.ask(100, {"namespace": "n", "key": "gone", "value": "v"})
            await at.ask(102, {"namespace": "n", "key": "gone"})

    async def second() -> None:
        async with desk(config) as at:
            assert (await at.ask(101, {"namespace": "n", "key": "k"})).ext_fields == {"value": "v"}
            absent = await at.ask(101, {"namespace": "n", "key": "gone"})
            assert (absent.code, absent.remark) == (22, "No config item, Namespace: n Key: gone")
            assert json.loads(bytes((await at.ask(219, {"namespace": "n"})).body)) == {"table": {"k": "v"}}
            nothing = await at.ask(219, {"namespace": "m"})
            assert (nothing.code, nothing.remark) == (22, "No config item, Namespace: m")

    config = NameServerConfig(listen_port=0, kv_config_path=str(tmp_path / "kvConfig.json"))
    run(first())
    run(second())


def test_kv_file_that_cannot_be_written_is_answered_as_an_error(tmp_path: Path) -> None:
    async def work() -> None:
        async with desk(NameServerConfig(listen_port=0, kv_config_path=str(blocked / "kvConfig.json"))) as at:
            blocked.write_text("no folder")
            answer = await at.ask(100, {"namespace": "n", "key": "k", "value": "v"})
            assert answer.code == 14
            assert (await at.ask(101, {"namespace": "n", "key": "k"})).code == 22

    blocked = tmp_path / "blocked"
    run(work())


def test_broken_kv_file_stops_the_start_by_name(tmp_path: Path) -> None:
    async def work() -> None:
        server = NameServer(NameServerConfig(listen_port=0, kv_config_path=str(path)))
        with pytest.raises(ConfigError, match=r"kvConfig\.json"):
            await server.start()
        await server.close()

    path = tmp_path / "kvConfig.json"
    path.write_text("{")
    run(work())


def test_configuration_is_told_and_changed(tmp_path: Path) -> None:
    async def work() -> None:
        async with desk(NameServerConfig(listen_port=0, config_store_path=str(stored))) as at:
            text = bytes((await at.ask(319)).body).decode()
            assert "orderMessageEnable=false\n" in text
            assert f"listenPort={at.server.port}\n" in text
            assert (
                await at.ask(318, None, b"orderMessageEnable=true\nscanNotActiveBrokerInterval=9000")
            ).code == 0
            assert at.server.config.order_message_enable
            assert at.server.config.scan_not_active_broker_interval == 9000
            assert "orderMessageEnable=true\n" in bytes((await at.ask(319)).body).decode()
            assert "orderMessageEnable=true\n" in stored.read_text()
            assert (await at.ask(318)).code == 0

    stored = tmp_path / "namesrv.properties"
    run(work())


@pytest.mark.parametrize(
    ("text", "code", "remark"),
    [
        ("kvConfigPath=/x", 16, "black list"),
        ("configStorePath=/x", 16, "black list"),
        ("rocketmqHome=/x", 16, "black list"),
        ("configBlackList=x", 16, "black list"),
        ("orderMessageEnable=true\nenableTopicList=false", 16, "black list"),
        ("listenPort=1", 1, "listenPort='1' cannot be used: it can only be set when the server starts"),
        ("nonsense=1", 1, "nonsense is no option"),
        ("orderMessageEnabel=true", 1, "did you mean orderMessageEnable?"),
        ("orderMessageEnable=maybe", 1, "orderMessageEnable='maybe'"),
        ("scanNotActiveBrokerInterval=0", 1, "scanNotActiveBrokerInterval=0"),
    ],
)
def test_change_that_may_not_be_is_refused_whole(text: str, code: int, remark: str) -> None:
    async def work() -> None:
        async with desk(NameServerConfig(listen_port=0, config_black_list=("enableTopicList",))) as at:
            before = at.server.config
            answer = await at.ask(318, None, text.encode())
            assert answer.code == code
            assert answer.remark is not None
            assert remark in answer.remark
            assert at.server.config == before

    run(work())


def test_unknown_request_is_answered_3() -> None:
    async def work() -> None:
        async with desk() as at:
            answer = await at.ask(10)
            assert (answer.code, answer.remark) == (3, " request type 10 not supported")

    run(work())


# -- life of a server ----------------------------------------------------------------


def test_two_name_servers_side_by_side_know_nothing_of_each_other() -> None:
    async def work() -> None:
        async with desk() as one, desk() as two:
            await one.register(table=topics(T=4))
            await two.register(table=topics(T=4, U=4))
            await two.register("broker-b", "10.0.0.2:1", table=topics(T=4))
            assert await one.queues("T") == {"broker-a": 4}
            assert await two.queues("T") == {"broker-a": 4, "broker-b": 4}
            assert await one.queues("U") == {}
            await one.server.close()
            assert await two.queues("U") == {"broker-a": 4}

    run(work())


def test_two_name_servers_cannot_share_a_port() -> None:
    async def work() -> None:
        async with desk() as at:
            other = NameServer(NameServerConfig(listen_port=at.server.port))
            with pytest.raises(ListenError, match=str(at.server.port)):
                await other.start()
            await other.close()

    run(work())


def test_port_and_address_exist_only_after_the_start() -> None:
    async def work() -> None:
        server = NameServer(NameServerConfig(listen_port=0, bind_address="0.0.0.0"))
        with pytest.raises(StateError):
            _ = server.port
        await server.start()
        assert server.address == f"127.0.0.1:{server.port}"
        with pytest.raises(StateError):
            await server.start()
        await server.close()
        await server.close()
        with pytest.raises(StateError):
            await server.start()

    run(work())


def test_closing_ends_connections_and_work() -> None:
    async def work() -> None:
        async with desk() as at:
            channel: Channel = await at.pool.channel(at.server.address)
            await at.server.close()
            await channel.wait_closed()
            assert len(asyncio.all_tasks()) == 1

    run(work())


def test_name_server_serves_tls_and_plain_peers_on_one_port(tmp_path: Path) -> None:
    async def work() -> None:
        config = NameServerConfig(
            listen_port=0,
            tls_server_cert_path=certificate.cert_path,
            tls_server_key_path=certificate.key_path,
        )
        async with NameServer(config) as server:
            for context in (None, client_tls(verify=False)):
                pool = ChannelPool(tls=context)
                assert (await rpc.all_topics(pool, server.address)).topic_list == []
                await pool.close()

    certificate = self_signed(tmp_path)
    run(work())


def test_many_clients_poll_while_brokers_report() -> None:
    async def work() -> None:
        async with desk() as at:
            await at.register(table=topics(T=4))

            async def poll() -> None:
                pool = ChannelPool()
                for _ in range(20):
                    route = await rpc.route(pool, at.server.address, "T")
                    assert len(route.queue_datas) == 1
                await pool.close()

            async def report() -> None:
                for version in range(2, 40):
                    await at.register(version=version, table=topics(T=version))

            await asyncio.gather(report(), *(poll() for _ in range(20)))
            assert await at.queues("T") == {"broker-a": 39}

    run(work())


# -- many and malicious --------------------------------------------------------------


def test_large_registration_lets_others_have_their_turn() -> None:
    async def work() -> None:
        async with desk(clock=SlowClock()) as at:
            await at.register()
            crowd = {f"topic-{n}": TopicConfig(topic_name=f"topic-{n}") for n in range(10_000)}
            other = ChannelPool()
            registering = asyncio.ensure_future(
                at.register("broker-b", "10.0.0.2:1", table=topics() | crowd, pool=other)
            )
            turns = 0
            while not registering.done():
                assert (await at.route("TBW102")).code == 0
                turns += 1
            assert (await registering).code == 0
            assert turns > 5, "the small requests did not wait for the large one"
            assert await at.queues("topic-9999") == {"broker-b": 16}
            # Over one connection they are taken in the order they came.
            first = asyncio.ensure_future(
                at.register("broker-b", "10.0.0.2:1", version=2, table=topics() | crowd, pool=other)
            )
            second = asyncio.ensure_future(
                at.register("broker-b", "10.0.0.2:1", version=3, table=one_topic("topic-9999", 3), pool=other)
            )
            assert [(await answer).code for answer in (first, second)] == [0, 0]
            assert await at.queues("topic-9999") == {"broker-b": 3}
            await other.close()
            while await at.queues("topic-9999"):
                pass
            await until(lambda: len(run_through(at.server.table.all_topics())) == 2)

    run(work())


def test_goodbye_does_not_overtake_the_registration_before_it() -> None:
    async def work() -> None:
        async with desk() as at:
            await at.register("other", "10.0.0.2:1", pool=at.pool)
            crowd = {f"topic-{n}": TopicConfig(topic_name=f"topic-{n}") for n in range(3_000)}
            registering = asyncio.ensure_future(at.register(table=topics() | crowd))
            leaving = asyncio.ensure_future(at.ask(RequestCode.UNREGISTER_BROKER, IDENTITY))
            assert [(await answer).code for answer in (registering, leaving)] == [0, 0]
            assert await at.queues("topic-1") == {} and await at.queues("TBW102") == {"other": 1}

    run(work())


def test_broker_whose_word_is_refused_lives_on() -> None:
    async def work() -> None:
        clock = ManualClock()
        config = NameServerConfig(listen_port=0, max_topic_nums=100, max_inflated_registration_size=100_000)
        async with desk(config, clock) as at:
            await at.register(table=topics(T=4))
            crowd = {f"topic-{n}": TopicConfig(topic_name=f"topic-{n}") for n in range(120)}
            for version, refused in enumerate(("maxTopicNums is 100", "maxInflatedRegistrationSize") * 3):
                clock.advance(50)
                at.server.drop_silent_brokers()
                assert await at.queues("T") == {"broker-a": 4 if not version else 5}
                if version % 2:
                    bomb = register_request(crc=0)
                    bomb.body = zlib.compress(bytes(200_000))
                    answer = await at.pool.call(at.server.address, bomb, 5.0)
                else:
                    answer = await at.register(version=version + 2, table=topics(T=5) | crowd)
                assert answer.code == 1 and refused in (answer.remark or "")

    run(work())


def test_what_fills_the_name_server_is_refused_with_the_option_to_raise() -> None:
    async def work() -> None:
        config = NameServerConfig(listen_port=0, max_topic_nums=100, max_broker_nums=1, max_kv_config_nums=1)
        async with desk(config) as at:
            await at.register()
            crowd = {f"topic-{n}": TopicConfig(topic_name=f"topic-{n}") for n in range(200)}
            refused = await at.register(version=2, table=crowd)
            assert refused.code == 1 and "maxTopicNums is 100" in (refused.remark or "")
            refused = await at.register("b", "10.0.0.2:1")
            assert refused.code == 1 and "maxBrokerNums is 1" in (refused.remark or "")
            put = {"namespace": "n", "key": "k", "value": "v"}
            assert (await at.ask(100, put)).code == 0
            refused = await at.ask(100, put | {"key": "l"})
            assert refused.code == 1 and "maxKvConfigNums is 1" in (refused.remark or "")
            refused = await at.ask(217, {"topic": "T"}, b"{" + b"1:1," * 100_000)
            assert refused.code == 1 and "may have 65536" in (refused.remark or "")
            assert (await at.ask(318, {}, b"maxBrokerNums=2")).code == 0
            assert (await at.register("b", "10.0.0.2:1")).code == 0

    run(work())
