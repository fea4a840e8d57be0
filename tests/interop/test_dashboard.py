"""What the dashboard knows of groups whose members are Java's, which tell neither reasons nor pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

import pytest

pytest.importorskip("nicegui", reason="the extra gimbalmq[dashboard] is not installed")

from gimbalmq.dashboard.groups import change_rows, queue_rows
from gimbalmq.dashboard.observer import EVERY_MEMBER, GroupHistory
from gimbalmq.dashboard.preview import preview
from gimbalmq.dashboard.site import Site
from gimbalmq.errors import ConfigError
from tests.interop.conftest import MakeGroup, MakeTopic
from tests.peers.driver import PATIENCE, JavaClient, JavaPushConsumer
from tests.peers.subject import Cluster

pytestmark = pytest.mark.interop


class Looking:
    """A dashboard's observer on the cluster, and the Java members it looks at."""

    def __init__(self, namesrv: str, group: str, topic: str) -> None:
        self._site = Site(namesrv)
        self.viewer = self._site.viewer_of(None)
        self.group = group
        self._topic = topic

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._site.close()

    @property
    def history(self) -> GroupHistory:
        return self.viewer.observer.history(self.group)

    async def join(self, java: JavaClient, *, broadcasting: bool = False) -> JavaPushConsumer:
        name = f"{self.group}-{java.version}"  # the last test's may still be shutting down
        return await asyncio.to_thread(
            lambda: java.push(self.group, self._topic, instance=name, broadcasting=broadcasting)
        )

    async def until(self, good: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not good():
                await self.viewer.observer.look(self.group)
                await asyncio.sleep(0.1)
        assert self.history.problem == ""


def test_moves_of_java_members_are_seen_and_guessed_at(
    cluster: Cluster, both: list[JavaClient], make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    topic, group = make_topic(4), make_group()

    async def work() -> None:
        async with Looking(cluster.namesrv, group, topic) as looking:
            history = looking.history
            first = await looking.join(both[0])
            await looking.until(lambda: len(history.last.owners) == 4)
            second = await looking.join(both[1])
            await looking.until(lambda: len(set(history.last.owners.values())) == 2)
            ids = {first.client_id, second.client_id}
            assert set(history.last.members) == ids and not history.last.silent
            joined = change_rows(history)[0]
            assert joined["members"] == f"+ {second.client_id}"
            assert (joined["moved"], joined["reasons"], joined["paused"]) == (2, "a member joined", "-")

            found = await preview(looking.viewer, group, "AVG", ["third"], ())
            assert found.in_use == "AVG", "Java tells the class of its strategy, not the name"
            assert set(found.change.before) == ids and len(found.change.moves) >= found.change.minimum == 1

            await asyncio.to_thread(second.shutdown)
            await looking.until(lambda: set(history.last.owners.values()) == {first.client_id})
            left = change_rows(history)[0]
            assert (left["members"], left["reasons"]) == (f"− {second.client_id}", "a member left")

    asyncio.run(work())


def test_queues_of_java_members_that_broadcast_are_everybodys(
    cluster: Cluster, both: list[JavaClient], make_topic: MakeTopic, make_group: MakeGroup
) -> None:
    topic, group = make_topic(2), make_group()

    async def work() -> None:
        async with Looking(cluster.namesrv, group, topic) as looking:
            history = looking.history
            for java in both:
                await looking.join(java, broadcasting=True)
            await looking.until(lambda: len(history.last.members) == len(history.last.owners) == 2)
            assert set(history.last.owners.values()) == {EVERY_MEMBER}
            assert all(row["lag"] == row["done"] == "-" for row in queue_rows(history))
            with pytest.raises(ConfigError, match="broadcast"):
                await preview(looking.viewer, group, "AVG", [], ())

    asyncio.run(work())
