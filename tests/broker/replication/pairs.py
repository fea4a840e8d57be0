"""A master and its slave in virtual time, over a network in memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from gimbalmq.broker.broker import Broker
from gimbalmq.broker.replication.follower import State
from gimbalmq.model import properties as prop
from gimbalmq.model.record import decode_record
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.rpc import management, nameserver
from gimbalmq.testing import LocalCluster, MemoryNetwork
from gimbalmq.testing.loop import VirtualClock, run_virtual
from gimbalmq.transport.pool import ChannelPool
from tests.broker.desk import send_fields

FILE = 32 * 1024
SMALL = {"mappedFileSizeCommitLog": FILE, "transactionCheckInterval": 1000, "transactionTimeOut": 1000}

Body = Callable[["Pair"], Awaitable[None]]


class Pair:
    """The cluster, and what tests ask."""

    def __init__(self, cluster: LocalCluster, network: MemoryNetwork, clock: VirtualClock) -> None:
        self.cluster = cluster
        self.network = network
        self.clock = clock
        self.pool = ChannelPool(network=network.host("10.0.0.99"))

    @property
    def master(self) -> Broker:
        return self.cluster.find(0)

    @property
    def slave(self) -> Broker:
        return self.cluster.find(1)

    async def send(
        self,
        *bodies: str,
        to: Broker | None = None,
        topic: str = "T",
        sys_flag: int = 0,
        properties: Mapping[str, str] | None = None,
    ) -> Mapping[str, str]:
        """Messages to queue 0 of a topic; all of them are taken. The fields of the last answer."""
        for body in bodies:
            fields = send_fields(
                topic,
                0,
                {prop.UNIQ_KEY: body[:40], **(properties or {})},
                sysFlag=sys_flag,
                bornTimestamp=self.clock.wall_ms(),
            )
            answer = await self.ask(to or self.master, RequestCode.SEND_MESSAGE_V2, fields, body.encode())
            assert answer.code == ResponseCode.SUCCESS, answer
        return answer.ext_fields or {}

    async def copied(self) -> None:
        """Waits until the slave has all that the master has."""
        await self.until(lambda: self.slave.store.received_offset == self.master.store.max_commitlog_offset)

    async def until(self, condition: Callable[[], object], seconds: float = 120.0) -> None:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def ask(
        self, broker: Broker, code: int, ext: dict[str, str] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        return await self.pool.call(broker.address, RemotingCommand(code, ext or {}, body), 5.0)

    async def end(self, broker: Broker, half: Mapping[str, str], decision: int) -> None:
        """Ends a transaction of the group p, whose half was stored as ``half`` says: the fields of its answer."""
        await self.ask(
            broker,
            RequestCode.END_TRANSACTION,
            {
                "producerGroup": "p",
                "tranStateTableOffset": half["queueOffset"],
                "commitLogOffset": str(int(half["msgId"][-16:], 16)),
                "commitOrRollback": str(decision),
                "fromTransactionCheck": "false",
                "msgId": "",
                "transactionId": "",
            },
        )

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


def half(number: int) -> dict[str, str]:
    """Properties of a half message of the group p."""
    return {prop.TRAN_MSG: "true", prop.PRODUCER_GROUP: "p", "number": str(number)}


def log_of(broker: Broker) -> bytes:
    store = broker.store
    return b"".join(
        bytes(store.log_bytes(offset, FILE))
        for offset in range(store.min_commitlog_offset, store.max_commitlog_offset, FILE)
    )


def pair(
    body: Body,
    *,
    brokers: int = 1,
    store: Path | None = None,
    namesrv: Mapping[str, object] | None = None,
    properties: Mapping[str, object] | None = None,
) -> None:
    """Runs a test with a master and a slave that have found each other."""

    async def main(clock: VirtualClock) -> None:
        network = MemoryNetwork()
        async with LocalCluster(
            brokers=brokers,
            replicas=2,
            properties=SMALL | dict(properties or {}),
            namesrv_properties=namesrv,
            network=network,
            clock=clock,
            store=store,
        ) as cluster:
            tried = Pair(cluster, network, clock)
            try:
                await tried.until(lambda: tried.slave.replication.follower.state is State.FOLLOWING)
                await body(tried)
            finally:
                await tried.pool.close()

    run_virtual(main)


def delivered(broker: Broker, topic: str = "T") -> Counter[str]:
    """How often each body lies in a topic."""
    return Counter(bodies(broker, topic))
