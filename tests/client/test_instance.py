"""The shared client instance: name servers, routes, heartbeats, requests from brokers, life."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from gimbalmq.client.config import ClientConfig
from gimbalmq.client.identity import client_id
from gimbalmq.client.instance import ClientInstance
from gimbalmq.client.producer import Producer
from gimbalmq.errors import (
    ConnectError,
    RequestTimeoutError,
    ResponseError,
    StateError,
    TopicRouteNotFoundError,
)
from gimbalmq.model.message import Message, MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.record import encode_record
from gimbalmq.protocol.bodies import BrokerData, ConsumerData, Subscription, TopicRoute
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.fastjson import loads
from gimbalmq.protocol.headers.groups import GroupOnly
from gimbalmq.protocol.headers.management import ConsumeDirectly, ConsumerStatus, ResetOffset, RunningInfo
from gimbalmq.protocol.status_bodies import (
    ConsumeDirectlyResult,
    ConsumerRunningInfo,
    ConsumerStatusBody,
    QueueOffsets,
)
from gimbalmq.rpc import groups
from gimbalmq.testing import MemoryNetwork, VirtualClock, run_virtual
from gimbalmq.transport.channel import Channel
from gimbalmq.transport.server import RemotingServer
from tests.client.scripted import ScriptedBroker, ScriptedCluster, ScriptedNameServer, until
from tests.support import run


class Member:
    """A consumer that notes what the instance asks of it."""

    def __init__(
        self, group: str = "g", topics: Iterable[str] = ("T",), liveness_interval: float = 0.0
    ) -> None:
        self.liveness_interval = liveness_interval
        self.told: list[str] = []
        self.group = group
        self.topics = list(topics)
        self.woken = 0
        self.routes: list[str] = []
        self.resets: list[tuple[str, Mapping[MessageQueue, int]]] = []
        self.direct: list[MessageView] = []

    def heartbeat_data(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            consume_type="CONSUME_PASSIVELY",
            message_model="CLUSTERING",
            consume_from_where="CONSUME_FROM_FIRST_OFFSET",
            subscription_data_set=[
                Subscription(
                    topic=topic, sub_string="TagA", tags_set=["TagA"], code_set=[2598919], sub_version=9
                )
                for topic in self.topics
            ],
            unit_mode=False,
        )

    def subscribed_topics(self) -> Iterable[str]:
        return self.topics

    def route_changed(self, topic: str, route: TopicRoute) -> None:
        self.routes.append(topic)

    def connection_lost(self, broker_name: str) -> None:
        self.told.append(f"{broker_name} lost")

    def connection_back(self, broker_name: str) -> None:
        self.told.append(f"{broker_name} back")

    def expelled(self, broker_name: str) -> None:
        self.told.append(f"expelled by {broker_name}")

    def wake_rebalance(self) -> None:
        self.woken += 1

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        self.resets.append((topic, offsets))

    async def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        return {MessageQueue(topic, "broker-a", 0): 42}

    async def running_info(self, jstack: bool) -> ConsumerRunningInfo:
        return ConsumerRunningInfo(
            properties={"PROP_CONSUMEORDERLY": "false"}, jstack="s" if jstack else None
        )

    async def consume_directly(self, message: MessageView, broker_name: str | None) -> ConsumeDirectlyResult:
        self.direct.append(message)
        return ConsumeDirectlyResult(consume_result="CR_SUCCESS")


async def joined(cluster: ScriptedCluster, *members: Member, **options: Any) -> ClientInstance:
    """A started instance with consumers in it, and the routes of their topics."""
    instance = ClientInstance.shared(ClientConfig(namesrv=cluster.namesrv, **options))
    for member in members:
        instance.register_consumer(member.group, member)
        for topic in member.topics:
            await instance.refresh_route(topic)
    await instance.start()
    return instance


# --- identity --------------------------------------------------------------------------------------


def test_client_id_is_ip_at_pid_and_nanoseconds() -> None:
    config = ClientConfig(namesrv="a:1", client_ip="10.0.0.5")
    assert re.fullmatch(rf"10\.0\.0\.5@{os.getpid()}#\d+", client_id(config))
    assert client_id(config) != client_id(config)
    assert client_id(config, keep_instance_name=True) == "10.0.0.5@DEFAULT"
    named = ClientConfig(namesrv="a:1", client_ip="10.0.0.5", instance_name="i", unit_name="u")
    assert client_id(named) == "10.0.0.5@i@u"


def test_equal_client_ids_share_an_instance_and_a_group_joins_once() -> None:
    """S3-07."""

    async def work() -> None:
        async with ScriptedCluster() as cluster:
            config = ClientConfig(namesrv=cluster.namesrv, instance_name="same")
            instance = ClientInstance.shared(config)
            assert ClientInstance.shared(config) is instance
            assert ClientInstance.shared(ClientConfig(namesrv=cluster.namesrv)) is not instance
            instance.register_consumer("g", Member())
            with pytest.raises(StateError, match="group g has been created before"):
                instance.register_consumer("g", Member())
            async with Producer("pg", cluster.namesrv, instance_name="same") as producer:
                assert producer.instance is instance
                with pytest.raises(StateError, match="producer group pg"):
                    await Producer("pg", cluster.namesrv, instance_name="same").start()
            assert not instance.closed
            await instance.unregister_consumer("g")
            assert instance.closed
            assert ClientInstance.shared(config) is not instance

    run(work())


# --- name servers ----------------------------------------------------------------------------------


def test_one_name_server_at_a_time_and_the_next_when_it_dies() -> None:
    """S0-36."""

    async def work() -> None:
        servers = [await ScriptedNameServer().start() for _ in range(3)]
        for server in servers:
            server.routes["T"] = TopicRoute()
        instance = ClientInstance.shared(ClientConfig(namesrv=[server.address for server in servers]))
        for _ in range(5):
            await instance.refresh_route("T")
        assert sorted(len(server.asked) for server in servers) == [0, 0, 5]
        used = next(server for server in servers if server.asked)
        await used.close()
        await until(lambda: instance.pool.existing(used.address) is None)
        await instance.refresh_route("T")
        assert sorted(len(server.asked) for server in servers) == [0, 1, 5]
        for server in servers:
            await server.close()
        await until(lambda: all(instance.pool.existing(server.address) is None for server in servers))
        with pytest.raises(ConnectError, match="no name server"):
            await instance.refresh_route("T")
        await instance.close()

    run(work())


def test_name_server_that_lets_a_call_time_out_is_left() -> None:
    async def work(clock: VirtualClock) -> None:
        network = MemoryNetwork(1).host("127.0.0.1")
        servers = [await ScriptedNameServer(network=network).start() for _ in range(2)]
        for server in servers:
            server.routes["T"] = TopicRoute()
        addresses = [server.address for server in servers]
        instance = ClientInstance.shared(ClientConfig(namesrv=addresses, network=network))
        await instance.refresh_route("T")
        used = next(server for server in servers if server.asked)
        used.silent = True
        with pytest.raises(RequestTimeoutError):
            await instance.refresh_route("T")
        await until(lambda: instance.pool.existing(used.address) is None)
        await instance.refresh_route("T")
        await instance.close()
        for server in servers:
            await server.close()

    run_virtual(work)


# --- routes ----------------------------------------------------------------------------------------


def test_route_changes_reach_members_and_listeners_within_a_poll() -> None:
    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T", write=4)
            member = Member()
            instance = await joined(cluster, member, poll_namesrv_interval=0.02)
            heard: list[tuple[str, int]] = []
            instance.route_listeners.append(
                lambda topic, route: heard.append((topic, len(route.queue_datas)))
            )
            queues = instance.subscribe_queues("T")
            assert queues is not None and len(queues) == 4 and member.routes == ["T"]
            await until(lambda: len(cluster.nameserver.asked) > 3)
            assert heard == []  # an equal route is no change
            cluster.add_topic("T", write=8)
            await until(lambda: heard)
            queues = instance.subscribe_queues("T")
            assert queues is not None and len(queues) == 8 and member.routes == ["T", "T"]
            # A name server that knows nothing any more leaves what is known in use.
            del cluster.nameserver.routes["T"]
            asked = len(cluster.nameserver.asked)
            await until(lambda: len(cluster.nameserver.asked) > asked + 2)
            assert instance.subscribe_queues("T") == queues
            await instance.close()

    run(work())


def test_questions_asked_together_are_one_question() -> None:
    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            instance = ClientInstance.shared(ClientConfig(namesrv=cluster.namesrv))
            assert (
                sorted(await asyncio.gather(*(instance.refresh_route("T") for _ in range(5)))) == [True] * 5
            )
            assert cluster.nameserver.asked == ["T"]
            with pytest.raises(TopicRouteNotFoundError):
                await instance.fetch_subscribe_queues("Nowhere")
            assert instance.subscribe_queues("Nowhere") is None
            await instance.close()

    run(work())


def test_broker_is_found_by_name_and_id() -> None:
    """S3-14: the suggested replica, the next one, or any; the master for writing."""

    async def work() -> None:
        async with ScriptedCluster() as cluster:
            route = cluster.add_topic("T")
            route.broker_datas = [
                BrokerData(broker_name="m", broker_addrs={0: "h:1", 1: "h:2", 3: "h:4"}),
                BrokerData(broker_name="s", broker_addrs={1: "h:9"}),
            ]
            instance = ClientInstance.shared(ClientConfig(namesrv=cluster.namesrv))
            assert instance.find_broker("m") is None
            assert await instance.locate_broker("T", "m") == ("h:1", False)
            assert instance.find_broker("m", 1) == ("h:2", True)
            assert instance.find_broker("m", 2) == ("h:4", True)
            assert instance.find_broker("m", 7) == ("h:1", False)
            assert instance.find_broker("m", 7, only_this=True) is None
            assert instance.find_broker("s") == ("h:9", True)
            assert (instance.master_address("m"), instance.master_address("s")) == ("h:1", None)
            with pytest.raises(TopicRouteNotFoundError, match="broker x"):
                await instance.locate_broker("T", "x")
            assert {await instance.any_broker_of("T") for _ in range(50)} == {"h:1", "h:9"}
            await instance.close()

    run(work())


# --- heartbeats ------------------------------------------------------------------------------------


def test_start_of_a_producer_tells_every_broker_known() -> None:
    """S0-28: and brokers found later hear at once, not after 30 s."""

    async def work() -> None:
        async with ScriptedCluster("a", "b") as cluster:
            cluster.add_topic("T")
            async with Producer("one", cluster.namesrv, instance_name="hb") as first:
                await first.send(Message("T", b"x"))
                await until(lambda: all(broker.heartbeats for broker in cluster.brokers.values()))
                for broker in cluster.brokers.values():
                    broker.requests.clear()
                async with Producer("two", cluster.namesrv, instance_name="hb"):
                    for broker in cluster.brokers.values():
                        await until(lambda broker=broker: broker.heartbeats)  # type: ignore[misc]
                        beat = broker.heartbeats[-1]
                        assert [data.group_name for data in beat.producer_data_set] == ["one", "two"]

    run(work())


def test_heartbeat_says_who_we_are_and_what_we_want() -> None:
    """S0-30."""

    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            instance = await joined(cluster, Member("g", ["T"]), Member("h", ["T"]))
            assert await instance.heartbeat()
            request = cluster.broker.of(RequestCode.HEART_BEAT)[0]
            assert request.ext_fields is None
            body = loads(bytes(request.body))
            assert body["clientID"] == instance.client_id
            assert body["producerDataSet"] == []
            assert [data["groupName"] for data in body["consumerDataSet"]] == ["g", "h"]
            assert body["consumerDataSet"][0] == {
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "consumeType": "CONSUME_PASSIVELY",
                "groupName": "g",
                "messageModel": "CLUSTERING",
                "subscriptionDataSet": [
                    {
                        "classFilterMode": False,
                        "codeSet": [2598919],
                        "expressionType": "TAG",
                        "subString": "TagA",
                        "subVersion": 9,
                        "tagsSet": ["TagA"],
                        "topic": "T",
                    }
                ],
                "unitMode": False,
            }
            await instance.close()

    run(work())


def test_second_heartbeat_returns_while_one_is_under_way() -> None:
    """S0-29."""

    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            instance = await joined(cluster, Member())
            first, second = await asyncio.gather(instance.heartbeat(), instance.heartbeat())
            assert (first, second) == (True, False)
            assert len(cluster.broker.heartbeats) == 1
            assert await instance.heartbeat()
            await instance.close()

    run(work())


def test_nobody_registered_sends_no_heartbeat() -> None:
    """S0-31."""

    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            instance = await joined(cluster)
            await instance.refresh_route("T")
            assert await instance.heartbeat() is False
            assert cluster.broker.requests == []
            await instance.close()

    run(work())


def test_slaves_hear_of_consumers_only() -> None:
    """S0-32, S0-33."""

    async def work() -> None:
        async with ScriptedCluster("m") as cluster:
            slave = await ScriptedBroker("m", 1).start()
            route = cluster.add_topic("T")
            route.broker_datas[0].broker_addrs[1] = slave.address
            async with Producer("pg", cluster.namesrv, instance_name="slaves") as producer:
                await producer.send(Message("T", b"x"))
                await producer.instance.heartbeat()
                assert cluster.broker.heartbeats and not slave.heartbeats
                producer.instance.register_consumer("g", Member())
                await producer.instance.heartbeat()
                assert slave.heartbeats
                await producer.instance.unregister_consumer("g")
            left = [request.ext_fields or {} for request in slave.of(RequestCode.UNREGISTER_CLIENT)]
            assert [fields["consumerGroup"] for fields in left if "consumerGroup" in fields] == ["g"]
            await slave.close()

    run(work())


def test_failing_broker_does_not_keep_heartbeats_from_others(caplog: pytest.LogCaptureFixture) -> None:
    """S0-34, S0-35: 3 s each; versions are kept by name and address. Every 20th round tells which brokers
    answered; a broker that failed is named in every round, once."""
    caplog.set_level(logging.INFO, "gimbalmq.client.heartbeats")

    def told(word: str) -> Counter[str]:
        found = (re.match(rf"heartbeat to broker (\w) at \S+ {word}", text) for text in caplog.messages)
        return Counter(match[1] for match in found if match)

    async def work(clock: VirtualClock) -> None:
        network = MemoryNetwork(1).host("127.0.0.1")
        async with ScriptedCluster("a", "b", "c", "d", network=network) as cluster:
            cluster.add_topic("T")
            cluster.brokers["a"].on_heartbeat = lambda channel, request: request.reply(1, "no")
            cluster.brokers["b"].on_heartbeat = lambda channel, request: None
            instance = await joined(cluster, Member(), network=network, heartbeat_interval=1000.0)
            started = clock.monotonic()
            await instance.heartbeat()
            assert clock.monotonic() - started == pytest.approx(3.0, abs=0.02)
            assert instance.broker_versions == {
                name: {cluster.brokers[name].address: 479} for name in ("c", "d")
            }
            for _ in range(40):
                await instance.heartbeat()
            rounds = len(cluster.brokers["a"].heartbeats)
            assert 41 <= rounds < 60
            assert [len(cluster.brokers[name].heartbeats) for name in "bcd"] == [rounds] * 3
            assert told("succeeded") == {"c": 3, "d": 3}
            assert told("failed") == {"a": rounds, "b": rounds}
            await instance.close()

    run_virtual(work)


def test_a_broker_that_is_gone_is_named_once_until_the_next_round(caplog: pytest.LogCaptureFixture) -> None:
    """S0-35: it is tried again and again, which is not told again and again."""

    async def work(clock: VirtualClock) -> None:
        network = MemoryNetwork(1).host("127.0.0.1")
        async with ScriptedCluster("a", network=network) as cluster:
            cluster.add_topic("T")
            instance = await joined(cluster, Member(), network=network, heartbeat_interval=1000.0)
            await instance.heartbeat()
            await asyncio.sleep(5)
            await cluster.broker.close()
            await asyncio.sleep(100)
            failures = [record for record in caplog.records if "failed" in record.message]
            assert len(failures) > 5
            assert [record.levelno for record in failures[:2]] == [logging.WARNING, logging.DEBUG]
            assert sum(record.levelno >= logging.WARNING for record in failures) == 1
            await instance.heartbeat()
            warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
            assert len(warnings) == 2
            await instance.close()

    with caplog.at_level(logging.DEBUG, "gimbalmq.client.heartbeats"):
        run_virtual(work)


def test_broken_connection_is_greeted_again_soon() -> None:
    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            instance = await joined(cluster, Member())
            await instance.heartbeat()
            assert len(cluster.broker.heartbeats) == 1
            cluster.broker.channels[0].abort()
            await until(lambda: len(cluster.broker.heartbeats) == 2)
            assert len(cluster.broker.channels) == 2
            await instance.close()

    run(work())


def test_a_connection_made_anew_begins_with_a_heartbeat() -> None:
    """Whoever makes it: the broker has forgotten us, and what follows would be refused."""

    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            member = Member()
            instance = await joined(cluster, member)
            await instance.heartbeat()
            await cluster.broker.server.close()
            await until(lambda: member.told)
            assert member.told == ["broker-a lost"]
            cluster.broker.requests.clear()
            port = cluster.broker.server.port
            cluster.broker.server = again = RemotingServer(cluster.broker.handlers)
            await again.start("127.0.0.1", port)
            while not cluster.broker.of(RequestCode.UNREGISTER_CLIENT):
                # An attempt to connect may be under way since before the server was back.
                with contextlib.suppress(ConnectError):
                    await groups.unregister(instance, cluster.broker.address, "somebody", consumer_group="g")
            assert cluster.broker.requests[0].code == RequestCode.HEART_BEAT
            await until(lambda: len(member.told) == 2)
            assert member.told == ["broker-a lost", "broker-a back"]
            await instance.close()

    run(work())


def test_a_broker_that_does_not_know_us_hears_of_us_at_once_and_once() -> None:
    async def work(clock: VirtualClock) -> None:
        network = MemoryNetwork(1).host("127.0.0.1")
        async with ScriptedCluster(network=network) as cluster:
            cluster.add_topic("T")
            instance = ClientInstance.shared(
                ClientConfig(namesrv=cluster.namesrv, network=network), clock=clock
            )
            instance.register_consumer("g", Member())
            await instance.refresh_route("T")
            await instance.start()
            await instance.heartbeat()
            await asyncio.sleep(2)
            cluster.broker.requests.clear()
            beats, address = instance.heartbeats, cluster.broker.address
            refused = clock.monotonic()
            assert await asyncio.gather(*(beats.introduce(address, refused) for _ in range(8))) == [True] * 8
            assert len(cluster.broker.heartbeats) == 1
            assert await beats.introduce(address, refused)  # it has heard of us after that refusal
            await asyncio.sleep(0.3)
            assert not await beats.introduce(address, clock.monotonic())
            assert len(cluster.broker.heartbeats) == 1
            await asyncio.sleep(0.8)
            assert await beats.introduce(address, clock.monotonic())
            assert len(cluster.broker.heartbeats) == 2
            await instance.close()

    run_virtual(work)


def test_pulls_name_the_version_that_their_broker_has_heard_of() -> None:
    """A newer one would be refused with code 25, and cost the pull a second."""

    async def work() -> None:
        async with ScriptedCluster("a", "b") as cluster:
            cluster.add_topic("T")
            cluster.brokers["b"].on_heartbeat = lambda channel, request: request.reply(1, "no")
            instance = await joined(cluster, Member())
            a, b = (cluster.brokers[name].address for name in "ab")
            await instance.heartbeat()
            known = instance.heartbeats.version_known
            assert (known(a, "g", "T"), known(b, "g", "T")) == (9, 0)
            assert (known(a, "g", "U"), known(a, "h", "T")) == (0, 0)
            await instance.close()

    run(work())


def test_signs_of_life_go_to_brokers_that_watch_for_them() -> None:
    """Apache's do not answer so, and are left alone."""

    async def work(clock: VirtualClock) -> None:
        network = MemoryNetwork(1).host("127.0.0.1")
        async with ScriptedCluster("ours", "apache", network=network) as cluster:
            cluster.add_topic("T")
            ours, apache = cluster.brokers["ours"], cluster.brokers["apache"]
            ours.on_heartbeat = lambda channel, request: request.reply(ext_fields={"livenessMillis": "2000"})
            member = Member(liveness_interval=2.0)
            instance = await joined(cluster, member, network=network)
            await instance.heartbeat()
            await asyncio.sleep(20)
            assert 9 <= len(ours.heartbeats) <= 13
            assert len(apache.heartbeats) <= 3
            assert ours.of(RequestCode.HEART_BEAT)[0].ext_fields == {"livenessMillis": "2000"}
            ours.on_heartbeat = lambda channel, request: request.reply(
                ext_fields={"livenessMillis": "2000", "expelledGroups": "g=1,other=3"}
            )
            await until(lambda: member.told)
            await asyncio.sleep(10)
            assert member.told == ["expelled by ours"]
            del cluster.nameserver.routes["T"].broker_datas[0], cluster.nameserver.routes["T"].queue_datas[0]
            await instance.refresh_route("T")
            instance._drop_offline_brokers()
            assert set(instance.brokers) == {"apache"}
            ours.requests.clear()
            await asyncio.sleep(5)
            assert ours.heartbeats, "a broker that is in no route still tells others who we are"
            await instance.close()

    run_virtual(work)


def test_broker_that_no_route_names_is_forgotten_with_the_heartbeat() -> None:
    async def work() -> None:
        async with ScriptedCluster("a", "b") as cluster:
            cluster.add_topic("T")
            instance = await joined(cluster, Member(), heartbeat_interval=0.02)
            assert set(instance.brokers) == {"a", "b"}
            route = cluster.add_topic("T")
            del route.broker_datas[0], route.queue_datas[0]
            await instance.refresh_route("T")
            assert set(instance.brokers) == {"a", "b"}
            instance._drop_offline_brokers()
            assert set(instance.brokers) == {"b"}
            await instance.close()

    run(work())


# --- requests from brokers ---------------------------------------------------------------------------


async def broker_channel(cluster: ScriptedCluster, instance: ClientInstance) -> Channel:
    """The broker's end of the client's connection."""
    await instance.heartbeat()
    return cluster.broker.channels[-1]


def test_members_changed_wakes_every_consumer_and_is_not_answered() -> None:
    """S0-50 (the client's part), S1-26."""

    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            one, two = Member("g"), Member("h")
            instance = await joined(cluster, one, two)
            channel = await broker_channel(cluster, instance)
            notice = RemotingCommand(
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, GroupOnly(consumer_group="g").to_ext()
            )
            with pytest.raises(RequestTimeoutError):
                await channel.call(notice, 0.1)
            assert (one.woken, two.woken) == (1, 1)
            await instance.close()

    run(work())


def test_requests_of_the_broker_reach_the_group_they_mean() -> None:
    """S1-23: 220, 221, 307, 309; others are passed over in silence."""

    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            member = Member("g")
            instance = await joined(cluster, member)
            channel = await broker_channel(cluster, instance)
            queue = MessageQueue("T", "broker-a", 0)

            channel.oneway(
                RemotingCommand(
                    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                    ResetOffset(topic="T", group="g", timestamp=0).to_ext(),
                    # as Java writes it: an object as a key
                    b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:7}}',
                )
            )
            await until(lambda: member.resets)
            assert member.resets == [("T", {queue: 7})]
            assert QueueOffsets.parse(QueueOffsets.of_queues({queue: 7}).dump()).queues == {queue: 7}

            status = ConsumerStatus(topic="T", group="g").to_ext()
            answer = await channel.call(
                RemotingCommand(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, status), 1.0
            )
            assert ConsumerStatusBody.parse(answer.body).queues == {queue: 42}

            info = RunningInfo(consumer_group="g", client_id=instance.client_id, jstack_enable=True).to_ext()
            answer = await channel.call(RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, info), 1.0)
            running = ConsumerRunningInfo.parse(answer.body)
            assert (running.jstack, running.properties) == ("s", {"PROP_CONSUMEORDERLY": "false"})

            direct = ConsumeDirectly(consumer_group="g", client_id=instance.client_id, broker_name="broker-a")
            record = encode_record(topic="T", body=b"hello", properties=b"TAGS\x01TagA\x02", queue_id=3)
            answer = await channel.call(
                RemotingCommand(RequestCode.CONSUME_MESSAGE_DIRECTLY, direct.to_ext(), record), 1.0
            )
            assert ConsumeDirectlyResult.parse(answer.body).consume_result == "CR_SUCCESS"
            assert member.direct[0].queue == MessageQueue("T", "broker-a", 3)

            info["consumerGroup"] = "other"
            answer = await channel.call(RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, info), 1.0)
            assert answer.code == 1
            assert answer.remark == "The Consumer Group <other> not exist in this consumer"

            with pytest.raises(RequestTimeoutError):
                await channel.call(RemotingCommand(4711), 0.1)
            await instance.close()

    run(work())


# --- life --------------------------------------------------------------------------------------------


def test_leaving_unregisters_everywhere_and_the_last_one_closes() -> None:
    async def work() -> None:
        async with ScriptedCluster("a", "b") as cluster:
            cluster.add_topic("T")
            one, two = Member("g"), Member("h")
            instance = await joined(cluster, one, two)
            await instance.heartbeat()
            await instance.unregister_consumer("g")
            assert not instance.closed
            await instance.unregister_consumer("h")
            assert instance.closed
            for broker in cluster.brokers.values():
                fields = [request.ext_fields or {} for request in broker.of(RequestCode.UNREGISTER_CLIENT)]
                assert [item["consumerGroup"] for item in fields] == ["g", "h"]
                assert {item["clientID"] for item in fields} == {instance.client_id}
            with pytest.raises(StateError, match="closed"):
                instance.register_consumer("g", one)

    run(work())


def test_a_goodbye_waits_for_the_heartbeat_before_it() -> None:
    """Handled the other way round, the heartbeat would make a member of one that has left."""

    async def work() -> None:
        async with ScriptedCluster("a") as cluster:
            cluster.add_topic("T")
            instance = await joined(cluster, Member("g"))
            (broker,) = cluster.brokers.values()
            release: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            async def slowly(channel: Channel, request: RemotingCommand) -> RemotingCommand:
                await release
                return request.reply()

            broker.on_heartbeat = slowly
            before = len(broker.heartbeats)
            beating = asyncio.ensure_future(instance.heartbeat())
            await until(lambda: len(broker.heartbeats) > before)
            leaving = asyncio.ensure_future(instance.unregister_consumer("g"))
            for _ in range(20):
                await asyncio.sleep(0)
            assert not broker.of(RequestCode.UNREGISTER_CLIENT)
            release.set_result(None)
            await leaving
            await asyncio.gather(beating, return_exceptions=True)
            assert len(broker.of(RequestCode.UNREGISTER_CLIENT)) == 1

    run(work())


def test_holder_keeps_the_instance_open() -> None:
    async def work() -> None:
        async with ScriptedCluster() as cluster:
            instance = ClientInstance.shared(ClientConfig(namesrv=cluster.namesrv))
            owner = object()
            instance.hold(owner)
            await instance.close_if_unused()
            assert not instance.closed
            await instance.release(owner)
            assert instance.closed

    run(work())


def test_vip_channel_uses_the_port_two_below() -> None:
    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            instance = ClientInstance.shared(ClientConfig(namesrv=cluster.namesrv, vip_channel=True))
            await instance.refresh_route("T")
            main = cluster.broker.server.port
            assert instance.send_address("broker-a") == f"127.0.0.1:{main - 2}"
            assert instance.master_address("broker-a") == f"127.0.0.1:{main}"
            await instance.close()

    run(work())


def test_error_answers_carry_the_brokers_words() -> None:
    async def work() -> None:
        async with ScriptedCluster() as cluster:
            cluster.add_topic("T")
            instance = ClientInstance.shared(ClientConfig(namesrv=cluster.namesrv))
            with pytest.raises(ResponseError, match="request type 38 not supported"):
                await groups.member_ids(instance, cluster.broker.address, "g")
            await instance.close()

    run(work())
