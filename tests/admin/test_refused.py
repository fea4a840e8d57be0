"""What a user is told who may see only a part of the cluster: that part, and what is refused by its name."""

from __future__ import annotations

import pytest

from gimbalmq import Admin, Message, Producer
from gimbalmq.errors import NoPermissionError
from gimbalmq.model.topics import dlq_topic
from gimbalmq.testing import LocalCluster
from tests.support import run

READER = {
    "Topic:orders": "Get",
    "Topic:%DLQ%billing": "Get",
    "Group:billing": "Get",
    "Group:ledger": "Sub",  # where it is, but not how far
    "Cluster:*": "Get",
}


def test_lists_have_what_the_user_may_see_and_nothing_refused_looks_like_nothing_there() -> None:
    async def work() -> None:
        users = {"reader": READER, "stranger": {}}
        keys = {"authFailureDelayMillis": "0"}
        closed = {**keys, "routesPublic": "false"}
        async with LocalCluster(
            secure=True, users=users, properties=keys, namesrv_properties=closed
        ) as cluster:
            async with Admin(**cluster.client_options()) as root:
                for topic in ("orders", "salaries", *map(dlq_topic, ("billing", "payroll"))):
                    await root.topics.create(topic, queues=1)
                for group in ("billing", "payroll", "ledger"):
                    await root.groups.create(group)
                assert {view.topic for view in await root.topics.all()} == {"orders", "salaries"}
            async with Producer("shop", **cluster.client_options()) as producer:
                for group in ("billing", "payroll"):
                    await producer.send(Message(dlq_topic(group), b"dead"))
            async with Admin(**cluster.client_options("reader")) as reader:
                assert [view.topic for view in await reader.topics.all()] == ["orders"]
                summaries = {item.group: item.problem for item in await reader.groups.all()}
                assert summaries == {"billing": "", "payroll": "not allowed", "ledger": "not allowed"}
                assert [item.group for item in await reader.dead_letters.groups()] == ["billing"]
                assert (await reader.groups.progress("billing")).queues == ()
                for group in ("payroll", "ledger"):
                    with pytest.raises(NoPermissionError, match=f"Group:{group}"):
                        await reader.groups.progress(group)
                (broker,) = await reader.clusters.brokers()
                assert not broker.refused and broker.version
            async with Admin(**cluster.client_options("stranger")) as stranger:
                (broker,) = await stranger.clusters.brokers()
                assert broker.refused and "User:stranger has no permission" in broker.problem
                assert not broker.version and not broker.runtime
                assert await stranger.topics.all() == []
                with pytest.raises(NoPermissionError):
                    await stranger.groups.all()

    run(work())
