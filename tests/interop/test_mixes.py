"""Mixed clusters: Java brokers on our name server, our broker on Java's name server, Java clients in both."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from gimbalmq.broker.broker import Broker
from gimbalmq.broker.config import BrokerConfig
from gimbalmq.errors import TopicRouteNotFoundError
from gimbalmq.protocol.bodies import TopicConfig
from gimbalmq.rpc import nameserver as rpc
from gimbalmq.transport.pool import ChannelPool
from tests.interop.apache_cluster import NEWEST, run
from tests.interop.conftest import MakeGroup, MakeTopic, create_topic
from tests.peers import subject
from tests.peers.apache import BROKER_VERSIONS, ApacheBroker, ApacheNameServer
from tests.peers.driver import JavaClient, Outgoing, Queue, eventually
from tests.peers.process import Process
from tests.peers.subject import Cluster

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("version", BROKER_VERSIONS)
def test_java_broker_registers_with_our_name_server_and_shares_a_topic_with_our_broker(
    version: str,
    both: list[JavaClient],
    cluster: Cluster,
    make_topic: MakeTopic,
    make_group: MakeGroup,
    watch: Callable[[Process], None],
    tmp_path: Path,
) -> None:
    """S1-06, part of S1-09: queues of both brokers while both live, of ours alone when Java's dies."""
    name = f"java-{version}"
    topic, groups = make_topic(queues=2), [make_group() for _ in both]
    extra = {"brokerName": name}
    with ApacheBroker(version, tmp_path, namesrv=cluster.namesrv, extra=extra) as java_broker:
        watch(java_broker)
        create_topic(both[0], java_broker.address, topic, 2)
        expected = sorted(Queue(topic, broker, i) for broker in (cluster.broker_name, name) for i in range(2))
        consumers = []
        for java, group in zip(both, groups, strict=True):
            producer = java.producer(make_group())
            eventually(partial(producer.queues, topic), lambda queues: queues == expected, "queues of both")
            sent = producer.send(
                *(Outgoing(topic, f"{java.version} {i}".encode(), tags="t") for i in range(8))
            )
            assert {result.status for result in sent} == {"SEND_OK"}
            assert {(result.broker, result.queue_id) for result in sent} == {
                (q.broker, q.queue_id) for q in expected
            }
            consumers.append(java.push(group, topic))
        wanted = sorted(f"{java.version} {i}".encode() for java in both for i in range(8))
        for consumer in consumers:
            got = eventually(consumer.received, lambda messages: len(messages) >= 16, "all messages")
            assert sorted(message.body for message in got) == wanted
            assert {message.broker for message in got} == {cluster.broker_name, name}
            assert consumer.queues(topic) == expected
        listed = both[0].admin("clusterList", tolerant=True)
        assert java_broker.address in listed
        assert cluster.broker in listed

    ours = [queue for queue in expected if queue.broker == cluster.broker_name]
    producer = both[0].producer(make_group())
    eventually(partial(producer.queues, topic), lambda queues: queues == ours, "only our queues")
    producer.send(*(Outgoing(topic, f"after {i}".encode()) for i in range(4)))
    for consumer in consumers:
        eventually(consumer.received, lambda messages: len(messages) >= 20, "what came after")
        eventually(partial(consumer.queues, topic), lambda queues: queues == ours, "only our queues")


@pytest.mark.parametrize("version", BROKER_VERSIONS)
def test_our_broker_serves_under_a_java_name_server(
    version: str,
    both: list[JavaClient],
    make_group: MakeGroup,
    watch: Callable[[Process], None],
    tmp_path: Path,
) -> None:
    with (
        ApacheNameServer(version, tmp_path / "namesrv") as namesrv,
        subject.broker(tmp_path / "broker", namesrv=namesrv.address) as broker,
    ):
        watch(namesrv)
        watch(broker)
        for java in both:
            # The tool of the other version would do as well; the name server is given with each command.
            topic, group = f"under-java-{java.version.replace('.', '-')}", make_group()
            update = ["updateTopic", "-c", "InteropCluster", "-t", topic, "-r", "4", "-w", "4"]
            assert f"create topic to {broker.address} success" in java.admin(*update, namesrv=namesrv.address)
            producer = java.producer(make_group(), namesrv=namesrv.address)
            queues = eventually(partial(producer.queues, topic), lambda known: len(known) == 4, "a route")
            assert {queue.broker for queue in queues} == {broker.name_of_broker}
            messages = [Outgoing(topic, f"{i}".encode(), keys=f"k{i}") for i in range(20)]
            producer.send(*messages)
            producer.send_batch(*(Outgoing(topic, f"batch {i}".encode()) for i in range(5)))
            consumer = java.push(group, topic, namesrv=namesrv.address)
            wanted = sorted(
                [message.body for message in messages] + [f"batch {i}".encode() for i in range(5)]
            )
            assert sorted(message.body for message in consumer.wait_for(25)) == wanted
            java.shutdown(producer, consumer)


@pytest.mark.parametrize("version", BROKER_VERSIONS)
def test_changes_deletions_and_parts_of_our_table_wipe_nothing_at_a_java_name_server(
    version: str, watch: Callable[[Process], None], tmp_path: Path
) -> None:
    """Apache's name server in this mode forgets what a registration does not list, unless the registration says that
    it is a part; 4.9 has no such mode and must take parts all the same."""

    async def scenario(namesrv: str) -> None:
        config = BrokerConfig(
            listen_port=0, namesrv_addr=namesrv, store_path_root_dir=str(tmp_path / "store")
        )
        broker, pool = Broker(config), ChannelPool()

        async def queues() -> dict[str, int]:
            found = {}
            for topic in ("TBW102", "A", "B", "topic-0", "topic-2999"):
                try:
                    found[topic] = (await rpc.route(pool, namesrv, topic)).queue_datas[0].write_queue_nums
                except TopicRouteNotFoundError:
                    pass
            return found

        await broker.start()
        topics, registration = broker.topics, broker._registration
        topics.put(TopicConfig(topic_name="A"), TopicConfig(topic_name="B"))
        await registration.announced()
        assert await queues() == {"TBW102": 8, "A": 16, "B": 16}
        topics.remove("A")
        await registration.register_all()
        left = {"TBW102": 8, "B": 16}
        assert await queues() == (left if version == NEWEST else left | {"A": 16})
        registration.announcements.part_bytes = 200_000
        topics.put(*(TopicConfig(topic_name=f"topic-{number}") for number in range(3_000)))
        await registration.announced()
        topics.changed = None
        topics.put(
            *(TopicConfig(topic_name=topic, write_queue_nums=3) for topic in ("topic-0", "topic-2999"))
        )
        await registration.register_all()
        found = await queues()
        assert {topic: found[topic] for topic in ("TBW102", "B", "topic-0", "topic-2999")} == {
            "TBW102": 8,
            "B": 16,
            "topic-0": 3,
            "topic-2999": 3,
        }
        listed = await rpc.all_topics(pool, namesrv)
        assert {config.topic_name for config in topics.all()} <= {*listed.topic_list}
        await pool.close()
        await broker.close()

    extra = {"deleteTopicWithBrokerRegistration": "true"}
    with ApacheNameServer(version, tmp_path / "namesrv", extra=extra) as namesrv:
        watch(namesrv)
        run(scenario(namesrv.address))
