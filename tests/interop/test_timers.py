"""Timers in one store folder that our broker and Apache's 5.5.0 open in turn: each comes once, whoever delivers it."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gimbalmq import Message
from gimbalmq.sync import Producer
from tests.interop.conftest import create_topic
from tests.interop.test_store_folder import Broker, Scene, Watch, end
from tests.peers.driver import JavaClient, eventually
from tests.peers.subject import Cluster

pytestmark = pytest.mark.interop

VERSION = "5.5.0"
NOTED_SECONDS = 2.5
"""Both brokers note their progress every second."""


@pytest.mark.timeout(600)
def test_timers_come_once_through_both_brokers(
    cluster: Cluster, java_clients: dict[str, JavaClient], watch: Watch, tmp_path: Path
) -> None:
    """Ours first, and Apache's first: side by side, because nearly all of it is waiting."""
    with ThreadPoolExecutor(2) as pool:
        both = [
            pool.submit(
                go_through,
                Scene(name, tmp_path / name, cluster, java_clients[version], watch),
                ours_first=ours_first,
            )
            for name, version, ours_first in (("timers-o", "4.9.8", True), ("timers-j", "5.5.0", False))
        ]
    for each in both:
        each.result()


def go_through(scene: Scene, *, ours_first: bool) -> None:
    """The first broker is killed, the second stopped."""
    java = scene.java

    def broker(ours: bool) -> Broker:
        return scene.ours() if ours else scene.apache(VERSION)

    def send(*delays: tuple[str, float]) -> None:
        with Producer(f"{scene.name}-producers", scene.cluster.namesrv) as producer:
            for body, seconds in delays:
                producer.send(Message(scene.topic, body.encode(), delay=seconds))

    with broker(ours_first) as first:
        create_topic(java, first.address, scene.topic, 1)
        consumer = java.push(f"{scene.name}-readers", scene.topic)

        def got() -> Counter[str]:
            return Counter(message.body.decode() for message in consumer.received())

        send(("one", 1), ("two", 2), ("both", 12), ("both", 12), ("far", 3600), ("farther", 200_000))
        eventually(got, lambda found: {"one", "two"} <= found.keys(), "the near timers")
        time.sleep(NOTED_SECONDS)
        end(first, "killed")
    with broker(not ours_first) as second:
        eventually(got, lambda found: found["both"] == 2, "the timers that were pending")
        send(("three", 1), ("last", 10))
        eventually(got, lambda found: "three" in found, "a near timer again")
        time.sleep(NOTED_SECONDS)
        end(second, "stopped")
    with broker(ours_first):
        eventually(got, lambda found: "last" in found, "the timer that was pending again")
        time.sleep(NOTED_SECONDS)
        assert got() == Counter({"one": 1, "two": 1, "both": 2, "three": 1, "last": 1})
    java.shutdown(consumer, background=True)
