"""Our command line beside Java's mqadmin on the same cluster: equal facts, on Apache's servers and on ours."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from gimbalmq.cli.main import main
from tests.interop.apache_cluster import NEWEST, OLDEST, ApacheServer
from tests.interop.test_mqadmin import fastjson, fields, rows
from tests.peers.apache import CLIENT_VERSIONS
from tests.peers.driver import JavaClient, Outgoing, eventually
from tests.peers.subject import Cluster

pytestmark = pytest.mark.interop
pytest_plugins = ["tests.interop.apache_fixtures"]


@dataclass(frozen=True)
class Place:
    """A cluster both tools are asked about."""

    namesrv: str
    broker: str
    broker_name: str
    cluster_name: str
    java: JavaClient

    def ours(self, *words: object, code: int = 0) -> str:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            found = main([*map(str, words), "-n", self.namesrv])
        assert found == code, out.getvalue()
        return out.getvalue()

    def data(self, *words: object) -> Any:
        return json.loads(self.ours(*words, "--json"))

    def mqadmin(self, *words: str) -> str:
        return self.java.try_admin(*words, "-n", self.namesrv) or ""


@pytest.fixture(params=["ours", NEWEST, OLDEST])
def place(
    request: pytest.FixtureRequest,
    java_clients: dict[str, JavaClient],
    apache_servers: Callable[[str], ApacheServer],
) -> Iterator[Place]:
    """Each cluster with an mqadmin of its age: the new one cannot read an old broker's topicStatus."""
    old, new = java_clients[CLIENT_VERSIONS[0]], java_clients[CLIENT_VERSIONS[-1]]
    java = old if request.param == OLDEST else new
    server: Cluster | ApacheServer = (
        request.getfixturevalue("cluster") if request.param == "ours" else apache_servers(request.param)
    )
    yield Place(server.namesrv, server.broker, server.broker_name, server.cluster_name, java)
    java.abandon_all()


def test_both_tools_tell_the_same_of_topics_and_groups(place: Place) -> None:
    """S1-14 S1-18 S1-19 S1-37"""
    topic, group = (
        f"tools-{place.broker_name.replace('.', '-')}",
        f"readers-{place.broker_name.replace('.', '-')}",
    )
    place.ours("topic", "create", topic, "--queues", 4)
    eventually(lambda: place.mqadmin("topicRoute", "-t", topic), bool, "mqadmin sees our topic")
    for number in range(12):
        place.ours("message", "send", topic, f"body-{number}", "--key", f"{topic}-{number}", "--queue",
                   f"{place.broker_name}/{number % 4}")  # fmt: skip

    def ends_by_mqadmin() -> dict[int, list[int]]:
        printed = place.mqadmin("topicStatus", "-t", topic)
        return {int(words[1]): [int(words[2]), int(words[3])] for words in rows(printed, place.broker_name)}

    expected_ends = {number: [0, 3] for number in range(4)}
    eventually(ends_by_mqadmin, lambda found: found == expected_ends, "mqadmin shows the ends", every=0.3)
    shown_ends = place.data("topicStatus", "-t", topic)
    assert {item["queueId"]: [item["minOffset"], item["maxOffset"]] for item in shown_ends} == expected_ends

    consumer = place.java.push(group, topic, namesrv=place.namesrv)
    consumer.wait_for(12)

    def progress_of_theirs() -> dict[int, list[int]]:
        printed = place.mqadmin("consumerProgress", "-g", group)
        return {int(words[2]): [int(word) for word in words[3:6]] for words in rows(printed, topic)}

    expected = {number: [3, 3, 0] for number in range(4)}
    eventually(progress_of_theirs, lambda found: found == expected, "mqadmin shows the progress", every=0.3)
    shown = place.data("consumerProgress", "-g", group)
    told = {
        item["queueId"]: [item["brokerOffset"], item["consumerOffset"], item["lag"]]
        for item in shown["queues"]
        if item["topic"] == topic
    }
    assert told == expected
    owners = {item["owner"] for item in shown["queues"] if item["topic"] == topic}
    assert owners == {consumer.client_id}

    connection = place.mqadmin("consumerConnection", "-g", group)
    found = place.data("consumerConnection", "-g", group)
    (member,) = found["members"]
    (line,) = [line.split() for line in connection.splitlines() if consumer.client_id in line]
    assert line[-4:] == [member["client_id"], member["address"], member["language"], member["version"]]
    assert fields(connection)["ConsumeType"] == found["consume_type"]
    assert fields(connection)["MessageModel"] == found["message_model"]
    assert found["subscriptions"][topic] == "*"

    ips = "10.0.0.1,10.0.0.2,10.0.0.3"
    our_shares, their_shares = (
        {ip: len(queues) for ip, queues in fastjson(printed)["result"].items()}
        for printed in (
            place.ours("allocateMQ", "-t", topic, "-i", ips),
            place.mqadmin("allocateMQ", "-t", topic, "-i", ips),
        )
    )
    # Which queues they are differs: mqadmin shares out a hash set as it comes, consumers (and we) sort it first.
    assert our_shares == their_shares == {"10.0.0.1": 2, "10.0.0.2": 1, "10.0.0.3": 1}
    consumer.abandon()


def test_our_tools_change_what_mqadmin_then_shows(place: Place) -> None:
    topic, group = (
        f"changed-{place.broker_name.replace('.', '-')}",
        f"changed-{place.broker_name.replace('.', '-')}",
    )
    assert any(view["broker"] == place.broker_name for view in place.data("cluster", "list"))
    place.ours("topic", "create", topic, "--queues", 2, "--broker", place.broker_name)
    producer = place.java.producer(f"p-{group}", namesrv=place.namesrv)
    eventually(lambda: producer.queues(topic), bool, "the route")
    sent = producer.send(*(Outgoing(topic, f"m{number}".encode(), keys=f"k{number}") for number in range(6)))

    assert place.data("message", "id", sent[2].message_id, "--topic", topic)["body"] == "m2"
    assert place.data("message", "id", sent[2].offset_id)["body"] == "m2"
    found = eventually(
        lambda: place.ours("message", "key", topic, "k4", code=0) if _indexed(place, topic) else "",
        bool,
        "the index",
    )
    assert "m4" in found
    assert len(place.ours("message", "print", topic).splitlines()) == 6
    exported = place.ours("message", "export", topic).splitlines()
    assert sorted(json.loads(line)["body"] for line in exported) == [f"m{number}" for number in range(6)]

    place.ours("group", "create", group, "--retries", 3)
    assert place.data("group", "show", group)[place.broker_name]["retryMaxTimes"] == 3
    place.ours("group", "reset", group, topic, "--to", "earliest", "--yes")
    assert place.data("group", "progress", group, "-t", topic)["lag"] == 6
    place.ours("group", "reset", group, topic, "--to", "latest", "--yes")
    assert place.data("group", "progress", group, "-t", topic)["lag"] == 0

    place.ours("topic", "resize", topic, 4)
    eventually(
        lambda: fastjson(place.mqadmin("topicRoute", "-t", topic) or "{}"),
        lambda route: bool(route) and route["queueDatas"][0]["writeQueueNums"] == 4,
        "mqadmin sees the new size",
    )
    place.ours("topic", "delete", topic, "--yes")
    eventually(lambda: topic in place.mqadmin("topicList").split(), lambda there: not there, "it is gone")
    producer.abandon()


def _indexed(place: Place, topic: str) -> bool:
    from gimbalmq import Admin

    async def ask() -> bool:
        async with Admin(place.namesrv) as admin:
            return bool(await admin.messages.by_key(topic, "k4"))

    return asyncio.run(ask())


def test_a_broker_is_closed_to_producers_and_opened_again(place: Place) -> None:
    topic = f"closed-{place.broker_name.replace('.', '-')}"
    place.ours("topic", "create", topic, "--queues", 1)

    def perm() -> int:
        """As mqadmin has it; 0 before the name server knows the topic."""
        route = fastjson(place.mqadmin("topicRoute", "-t", topic) or "{}")
        return int(route["queueDatas"][0]["perm"]) if route else 0

    eventually(perm, lambda found: found == 6, "the topic is open")
    try:
        counts = place.data("wipeWritePerm", "-b", place.broker_name)["nameservers"]
        assert list(counts) == [place.namesrv] and counts[place.namesrv] >= 1
        assert perm() == 4
    finally:
        place.ours("addWritePerm", "-b", place.broker_name)
    assert perm() == 6


def test_dead_letters_of_a_java_consumer_are_driven_back_to_it(place: Place) -> None:
    topic, group = (
        f"dead-{place.broker_name.replace('.', '-')}",
        f"dead-{place.broker_name.replace('.', '-')}",
    )
    place.ours("topic", "create", topic, "--queues", 1)
    place.ours("group", "create", group)
    eventually(lambda: place.mqadmin("topicRoute", "-t", topic), bool, "the route")
    failing = place.java.push(group, topic, namesrv=place.namesrv, failures=-1, max_reconsume_times=0)
    place.ours("message", "send", topic, "poor thing", "--tags", "T")
    failing.wait_for(1)
    listed = eventually(
        lambda: [item for item in place.data("deadletter", "list") if item["group"] == group],
        bool,
        "the dead letter",
    )
    assert listed[0]["count"] == 1
    failing.abandon()
    place.ours("deadletter", "redrive", group, "--yes")
    healthy = place.java.push(group, topic, namesrv=place.namesrv)
    (again,) = healthy.wait_for(1)
    assert (again.topic, again.body, again.tags) == (topic, b"poor thing", "T")
    healthy.abandon()
