"""Slaves that stand in for their master, Apache's and ours under each other's masters, with either name server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from gimbalmq.errors import ResponseError
from gimbalmq.model.flags import PERM_WRITE
from gimbalmq.model.queues import MessageQueue
from gimbalmq.protocol.bodies import GroupConfig, GroupTable, TopicRoute, TopicTable
from gimbalmq.rpc import groups, management, nameserver
from gimbalmq.rpc.call import Caller
from gimbalmq.transport.pool import ChannelPool
from tests.interop.test_replication import watch
from tests.peers.apache import ApacheNameServer
from tests.peers.ours import OurNameServer
from tests.peers.replicas import NEW, OURS, Kind, Replica, ReplicaSet, caught_up, copied, traffic

pytestmark = [pytest.mark.interop, pytest.mark.soak, pytest.mark.timeout(360)]

T = TypeVar("T")

TOPIC, GROUP = "Acting", "readers"
ACTING = {"enableSlaveActingMaster": "true", "totalReplicas": 2}


def ask(call: Callable[[Caller], Awaitable[T]]) -> T:
    async def once() -> T:
        pool = ChannelPool()
        try:
            return await call(pool)
        finally:
            await pool.close()

    return asyncio.run(once())


def shown(namesrv: str, name: str, expected: dict[int, str], *, writable: bool) -> None:
    """Returns when the route of the topic has these replicas."""
    deadline = time.monotonic() + 60.0
    while True:
        route: TopicRoute = ask(lambda caller: nameserver.route(caller, namesrv, TOPIC))
        found = {
            broker_id: address
            for broker in route.broker_datas
            if broker.broker_name == name
            for broker_id, address in broker.broker_addrs.items()
        }
        perms = [bool(queue.perm & PERM_WRITE) for queue in route.queue_datas if queue.broker_name == name]
        if found == expected and perms == [writable]:
            return
        assert time.monotonic() < deadline, (found, perms)
        time.sleep(0.2)


def locks(replica: Replica, name: str) -> set[MessageQueue]:
    """What a replica locks for a consumer; nothing if it is a slave that does not stand in, or not yet."""
    queue = MessageQueue(TOPIC, name, 0)
    try:
        return set(ask(lambda caller: groups.lock_queues(caller, replica.address, GROUP, "me", [queue])))
    except ResponseError:
        return set()


def group_known(replica: Replica) -> None:
    """Returns when a slave has the topic and the group from its master: ours locks only what it knows."""

    async def tables(caller: Caller) -> tuple[TopicTable, GroupTable]:
        return (
            await management.all_topic_configs(caller, replica.address),
            await management.all_group_configs(caller, replica.address),
        )

    deadline = time.monotonic() + 60.0
    while True:
        topics, known = ask(tables)
        if TOPIC in topics.topic_config_table and GROUP in known.subscription_group_table:
            return
        assert time.monotonic() < deadline, "the slave has no copy of its master's tables"
        time.sleep(0.2)


def stands_in(replica: Replica, name: str) -> None:
    """Returns when a slave locks queues; it hears of its part a little after name servers show it."""
    deadline = time.monotonic() + 30.0
    while locks(replica, name) != {MessageQueue(TOPIC, name, 0)}:
        assert time.monotonic() < deadline, "the slave locks nothing"
        time.sleep(0.2)


@pytest.mark.parametrize(
    ("master_kind", "slave_kind", "names"),
    [(NEW, OURS, NEW), (NEW, OURS, OURS), (OURS, NEW, NEW), (OURS, NEW, OURS), (OURS, OURS, NEW)],
)
def test_a_slave_stands_in_until_its_master_is_back(
    master_kind: Kind, slave_kind: Kind, names: Kind, java_is_here: None, tmp_path: Path
) -> None:
    folder, extra = tmp_path / "namesrv", {"supportActingMaster": "true"}
    server = (
        OurNameServer(folder, extra=extra) if names == OURS else ApacheNameServer(NEW, folder, extra=extra)
    )
    name = f"acting-{master_kind[0]}-{slave_kind[0]}"
    watch(server)
    with server, ReplicaSet(tmp_path, name, namesrv=server.address, extra=ACTING) as replicas:
        master = replicas.master(master_kind)
        watch(master)
        slave = replicas.replica(slave_kind, 1)
        watch(slave)
        slave.start()
        sender = traffic(master, TOPIC)
        sender.plain(20)
        shown(server.address, name, {0: master.address, 1: slave.address}, writable=True)
        ask(lambda caller: management.update_group(caller, master.address, GroupConfig(group_name=GROUP)))
        group_known(slave)
        caught_up(master, slave)
        master.kill()
        shown(server.address, name, {0: slave.address}, writable=False)
        stands_in(slave, name)
        # The master asks its slave what it has learned, and the slave copies it again, before it is shown.
        master.start()
        shown(server.address, name, {0: master.address, 1: slave.address}, writable=True)
        sender.plain(20)
        copied(master, slave)
