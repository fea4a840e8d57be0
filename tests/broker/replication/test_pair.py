"""Two brokers of one name: the slave is a copy, refuses what a slave must, becomes the master, and the old one comes back.

Everything runs in virtual time, over a network in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path


from gimbalmq.broker.broker import Broker
from gimbalmq.broker.replication.follower import State
from gimbalmq.client.producer import Producer
from gimbalmq.model.message import Message
from gimbalmq.model.record import decode_record
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.rpc import management, nameserver
from gimbalmq.testing import LocalCluster, MemoryNetwork
from gimbalmq.testing.loop import VirtualClock, run_virtual
from gimbalmq.transport.pool import ChannelPool

FILE = 32 * 1024
SMALL = {"mappedFileSizeCommitLog": FILE, "transactionCheckInterval": 1000, "transactionTimeOut": 1000}

Body = Callable[["Pair"], Awaitable[None]]


class Pair:
    """The cluster, a producer, and what tests ask."""

    def __init__(self, cluster: LocalCluster, network: MemoryNetwork, producer: Producer) -> None:
        self.cluster = cluster
        self.producer = producer
        self.pool = ChannelPool(network=network.host("10.0.0.99"))

    @property
    def master(self) -> Broker:
        return self.cluster.find(0)

    @property
    def slave(self) -> Broker:
        return self.cluster.find(1)

    async def send(self, *bodies: str, topic: str = "T", **properties: str) -> None:
        for body in bodies:
            message = Message(topic, body.encode())
            message.properties.update(properties)
            await self.producer.send(message)

    async def copied(self) -> None:
        """Waits until the slave has all that the master has."""
        await self.until(lambda: self.slave.store.received_offset == self.master.store.max_commitlog_offset)

    async def until(self, condition: Callable[[], object], seconds: float = 120.0) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.05)

    async def ask(
        self, broker: Broker, code: int, ext: dict[str, str] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        return await self.pool.call(broker.address, RemotingCommand(code, ext or {}, body), 5.0)

    async def set(self, broker: Broker, **properties: object) -> None:
        await management.update_broker_config(
            self.pool, broker.address, {key: str(value) for key, value in properties.items()}
        )

    async def addresses(self) -> dict[int, str]:
        info = await nameserver.cluster_info(self.pool, self.cluster.namesrv)
        return dict(info.broker_addr_table["broker-a"].broker_addrs)


def bodies(broker: Broker, topic: str) -> list[str]:
    """What lies in a topic's queues, in the order of the log."""
    found = []
    for queue_id in broker.store.queue_ids(topic):
        queue = broker.store.find_queue(topic, queue_id)
        assert queue is not None
        for offset in range(queue.min_offset, queue.max_offset):
            raw = broker.store.record_at_queue(topic, queue_id, offset)
            assert raw is not None
            found.append(decode_record(raw))
    return [record.body.decode() for record in sorted(found, key=lambda record: record.commitlog_offset)]


def log_of(broker: Broker) -> bytes:
    store = broker.store
    return b"".join(
        bytes(store.log_bytes(offset, FILE))
        for offset in range(store.min_commitlog_offset, store.max_commitlog_offset, FILE)
    )


def pair(body: Body, *, store: Path | None = None, **properties: object) -> None:
    """Runs a test with a master and a slave that have found each other."""

    async def main(clock: VirtualClock) -> None:
        network = MemoryNetwork()
        async with LocalCluster(
            replicas=2, properties=SMALL | properties, network=network, clock=clock, store=store
        ) as cluster:
            producer = Producer(
                "producers", namesrv=cluster.namesrv, network=network.host("10.0.0.98"), clock=clock
            )
            async with producer:
                tried = Pair(cluster, network, producer)
                try:
                    await tried.until(lambda: tried.slave.replication.follower.state is State.FOLLOWING)
                    await body(tried)
                finally:
                    await tried.pool.close()

    run_virtual(main)


def test_a_slave_is_a_copy_of_its_master_byte_by_byte() -> None:
    async def body(pair: Pair) -> None:
        await pair.send(*(f"{number}" * 200 for number in range(200)))
        await pair.copied()
        assert pair.master.store.max_commitlog_offset > 3 * FILE
        assert log_of(pair.slave) == log_of(pair.master)
        assert bodies(pair.slave, "T") == bodies(pair.master, "T") != []
        assert await pair.addresses() == {0: pair.master.address, 1: pair.slave.address}
        status = pair.slave.replication.status()
        assert (status.master, status.master_ha) == (
            pair.master.address,
            pair.master.replication.ha_address,
        )
        assert (status.lag, status.trouble, status.state) == (0, None, "following")
        [slave] = pair.master.replication.status().slaves
        assert (slave.acked, slave.behind, slave.in_sync) == (pair.master.store.max_commitlog_offset, 0, True)

    pair(body)
