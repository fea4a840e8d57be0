"""Replication as metrics: what a scrape of a master and of its slave shows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from gimbalmq import Message, Producer
from gimbalmq.broker.broker import Broker
from gimbalmq.broker.replication.figures import figures
from gimbalmq.broker.replication.role import Kind, Role
from gimbalmq.broker.replication.status import ReplicationStatus, SlaveStatus
from gimbalmq.store.consumequeue import QueueLog
from gimbalmq.testing import LocalCluster

Shown = dict[str, dict[tuple[str, ...], float]]


async def shown(broker: Broker) -> Shown:
    return {
        family.name.removeprefix("replication_"): dict(family.rows)
        for family in await broker.metrics.read()
        if family.name.startswith("replication_")
    }


def test_a_pair_shows_its_roles_and_what_is_between_them() -> None:
    async def work() -> None:
        properties = {"brokerRole": "SYNC_MASTER", "slaveTimeout": 60_000}
        async with (
            LocalCluster(replicas=2, properties=properties) as cluster,
            Producer("senders", cluster.namesrv) as producer,
        ):
            await producer.send(Message("orders", b"x" * 1000))
            await cluster.in_step()
            master, slave = cluster.replica(0, 0), cluster.replica(0, 1)
            found = await shown(master)
            assert found["master"] == {(): 1} and found["broker_id"] == {(): 0}
            assert found["slaves"] == found["slaves_in_sync"] == {(): 1}
            assert found["slave_behind_bytes"] == {("127.0.0.1",): 0}
            assert found["waiting_sends"] == {(): 0} and "state" not in found
            found = await shown(slave)
            assert found["master"] == {(): 0} and found["broker_id"] == {(): 1}
            assert found["state"][("following",)] == 1 and sum(found["state"].values()) == 1
            assert found["trouble"] == found["behind_bytes"] == {(): 0}
            # A send that waits, because its slave takes nothing any more.
            slave.store.receive = _take_nothing  # type: ignore[method-assign]
            sending = asyncio.ensure_future(producer.send(Message("orders", b"y")))
            await _until(master, lambda found: found["waiting_sends"][()] == 1)
            assert (await shown(master))["slave_behind_bytes"][("127.0.0.1",)] > 0
            sending.cancel()
            await asyncio.wait([sending])
            del slave.store.receive  # one that takes nothing hears of its master's end by heartbeats only
            await cluster.kill_broker(0)
            await _until(slave, lambda found: found["state"][("seeking",)] == 1)
            assert (await shown(slave))["trouble"] == {(): 1}

    asyncio.run(work())


async def _until(broker: Broker, is_so: Callable[[Shown], bool]) -> None:
    async with asyncio.timeout(10):
        while True:
            if is_so(await shown(broker)):
                return
            await asyncio.sleep(0.01)


def _take_nothing(offset: int, data: object, written: object = None) -> list[QueueLog]:
    return []


def test_slaves_are_named_by_id_or_host_and_by_port_only_if_they_must_be() -> None:
    slave = SlaveStatus(
        "10.0.0.2:5000",
        None,
        acked=90,
        sent=100,
        behind=10,
        bytes_per_second=0,
        in_sync=True,
        seconds_behind=2.5,
    )
    status = ReplicationStatus(Role(Kind.MASTER, 0), 100, slaves=(slave,))

    def names(*slaves: SlaveStatus) -> list[tuple[tuple[str, ...], float]]:
        found = figures(replace(status, slaves=slaves), 0)
        return next(figure.rows for figure in found if figure.name == "replication_slave_behind_seconds")

    assert names(slave) == [(("10.0.0.2",), 2.5)]
    other = replace(slave, address="10.0.0.2:6000")
    assert [labels for labels, _ in names(slave, other)] == [("10.0.0.2:5000",), ("10.0.0.2:6000",)]
    assert [labels for labels, _ in names(replace(slave, slave_id=2), other)] == [("2",), ("10.0.0.2:6000",)]
