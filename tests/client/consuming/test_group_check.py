"""Members that subscribe differently hear of it, whoever came first."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from gimbalmq import Admin, MessageView, PushConsumer
from gimbalmq.client.events import UnequalSubscriptions
from gimbalmq.testing import LocalCluster, MemoryNetwork, VirtualClock, run_virtual


async def _ignore(message: MessageView) -> None:
    pass


def test_the_second_member_hears_that_its_group_has_another_subscription(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker's table equals the subscription of the newest member, so the table alone tells that one nothing."""

    async def main(clock: VirtualClock) -> None:
        network = MemoryNetwork(seed=1)
        async with LocalCluster(network=network, clock=clock, store=tmp_path) as cluster:
            async with Admin(cluster.namesrv, network=network.host("10.0.0.90")) as admin:
                await admin.topics.create("orders", queues=4)
            heard: dict[str, list[UnequalSubscriptions]] = {"ada": [], "ben": []}

            def member(name: str, host: str, expression: str) -> PushConsumer:
                consumer = PushConsumer(
                    "billing", cluster.namesrv, member_name=name, network=network.host(host)
                )
                consumer.subscribe("orders", expression, _ignore)
                consumer.on_event(
                    lambda event: (
                        heard[name].append(event) if isinstance(event, UnequalSubscriptions) else None
                    )
                )
                return consumer

            async with member("ada", "10.0.0.91", "*"):
                await asyncio.sleep(30)
                async with member("ben", "10.0.0.92", "new || paid"):
                    await asyncio.sleep(3)
                    (event,) = heard["ben"]
                    assert event.ours == {"orders": "new || paid"} and event.theirs == {"orders": "*"}
                    await asyncio.sleep(100)
                    (event,) = heard["ada"]
                    assert event.ours == {"orders": "*"} and event.theirs == {"orders": "new || paid"}
                    assert len(heard["ben"]) == 1, "nobody is told twice"

    with caplog.at_level(logging.ERROR):
        run_virtual(main)
    told = [record.getMessage() for record in caplog.records if "another subscription" in record.getMessage()]
    assert len(told) == 2
    assert "of group billing has another subscription: {'orders': '*'}, where this one has" in told[0]
    assert "a group of their own" in told[0]


def test_members_that_subscribe_alike_hear_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main(clock: VirtualClock) -> None:
        network = MemoryNetwork(seed=1)
        async with LocalCluster(network=network, clock=clock, store=tmp_path) as cluster:
            async with Admin(cluster.namesrv, network=network.host("10.0.0.90")) as admin:
                await admin.topics.create("orders", queues=4)
            consumers = []
            for number, expression in enumerate(("new || paid", "paid||new", "new  || paid")):
                consumer = PushConsumer(
                    "billing",
                    cluster.namesrv,
                    member_name=f"member-{number}",
                    network=network.host(f"10.0.0.9{number + 1}"),
                )
                consumer.subscribe("orders", expression, _ignore)
                await consumer.start()
                consumers.append(consumer)
            await asyncio.sleep(100)
            for consumer in consumers:
                await consumer.close()

    with caplog.at_level(logging.ERROR):
        run_virtual(main)
    assert caplog.records == []
