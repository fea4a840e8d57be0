"""A master and a slave of ours in this process, with a cable between them that a test can damage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from gimbalmq.broker.broker import Broker
from gimbalmq.broker.config import BrokerConfig
from gimbalmq.nameserver.config import NameServerConfig
from gimbalmq.nameserver.server import NameServer
from gimbalmq.protocol.bodies import TopicConfig
from gimbalmq.rpc import management
from gimbalmq.transport.pool import ChannelPool
from tests.peers.folders import Comparison, same
from tests.peers.process import free_port
from tests.replication.cable import Cable
from tests.robustness.load import send_request

TOPIC = "Copied"
QUEUES = 4
FILE_BYTES = 16 * 1024
SLOTS = 100
PACKET = 1000
"""Most bytes of a packet: records of the tests are smaller and larger than that."""

SETTINGS: Mapping[str, object] = {
    "brokerName": "pair",
    "mappedFileSizeCommitLog": FILE_BYTES,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": SLOTS,
    "maxIndexNum": 400,
    "haTransferBatchSize": PACKET,
    "haSendHeartbeatInterval": 100,
    "haHousekeepingInterval": 1500,
    "slaveTimeout": 10_000,
    "slaveReadEnable": "true",
}
HA_DISTANCE = 1


async def happens(condition: Callable[[], object], what: str, seconds: float = 20.0) -> None:
    """Waits for something; says what did not come."""
    try:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"within {seconds:g} s it did not happen that {what}") from None


class Pair:
    """Both brokers; either may be stopped, killed and started again on its folder and port.

    Attributes:
        accepted: bodies that were answered with success, by queue and in the order of the sends.
    """

    def __init__(self, folder: Path, namesrv: str, extra: Mapping[str, object]) -> None:
        self._folder = folder
        self.namesrv = namesrv
        self._extra = dict(extra)
        self.ports = {"master": free_port(), "slave": free_port()}
        self.cable = Cable(("127.0.0.1", self.ports["master"] + HA_DISTANCE))
        self.brokers: dict[str, Broker] = {}
        self.pool = ChannelPool()
        self.accepted: list[bytes] = []
        self.codes: list[int] = []
        self._sent = 0

    def folder(self, name: str) -> Path:
        return self._folder / name

    @property
    def master(self) -> Broker:
        return self.brokers["master"]

    @property
    def slave(self) -> Broker:
        return self.brokers["slave"]

    async def start(self, name: str, **extra: object) -> Broker:
        """On the folder that it had; as what it began unless `extra` says otherwise."""
        keys: dict[str, object] = {
            **SETTINGS,
            "listenPort": self.ports[name],
            "namesrvAddr": self.namesrv,
            "storePathRootDir": self.folder(name),
            "brokerRole": "SYNC_MASTER" if name == "master" else "SLAVE",
            "brokerId": 0 if name == "master" else 1,
            **({} if name == "master" else {"haMasterAddress": self.cable.address}),
            **self._extra,
            **extra,
        }
        config, unknown = BrokerConfig.from_properties({key: str(value) for key, value in keys.items()})
        assert not unknown, unknown
        broker = Broker(config)
        await broker.start()
        self.brokers[name] = broker
        return broker

    async def stop(self, name: str) -> None:
        await self.brokers.pop(name).close()

    async def kill(self, name: str) -> None:
        await self.brokers.pop(name).abandon()

    async def make_topic(self) -> None:
        config = TopicConfig(topic_name=TOPIC, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
        await management.create_topic(self.pool, self.master.address, config)

    async def send(self, count: int = 1, *, size: int = 100, timeout: float = 20.0) -> list[int]:
        """All at once; the codes of the answers, in order."""

        async def one(number: int) -> int:
            body = (b"m%07d-" % number).ljust(size, b"x")
            request = send_request(body, number % QUEUES, TOPIC)
            answer = await self.pool.call(self.master.address, request, timeout)
            if answer.code == 0:
                self.accepted.append(body)
            return int(answer.code)

        numbers = range(self._sent + 1, self._sent + count + 1)
        self._sent += count
        codes = await asyncio.gather(*map(one, numbers))
        self.codes += codes
        return list(codes)

    async def followed(self) -> None:
        """Waits until the master knows its slave."""
        await happens(lambda: self.master.replication.source.acks.connected, "the slave reported")

    async def level(self, seconds: float = 20.0) -> None:
        """Waits until the slave has all that the master has."""
        await happens(
            lambda: self.slave.store.max_commitlog_offset == self.master.store.max_commitlog_offset,
            "the slave caught up",
            seconds,
        )

    async def end_and_compare(self, least: int = 1) -> Comparison:
        """Stops both, and compares their folders."""
        await self.level()
        for name in list(self.brokers):
            await self.stop(name)
        found = same(self.folder("master"), self.folder("slave"), seconds=0, least=least, slots=SLOTS)
        assert found.copy[0] == 0
        return found

    async def close(self) -> None:
        for name in list(self.brokers):
            await self.kill(name)
        await self.pool.close()


@asynccontextmanager
async def pair(folder: Path, **extra: object) -> AsyncIterator[Pair]:
    """A running pair whose slave follows, with a topic."""
    async with NameServer(NameServerConfig(listen_port=0)) as server:
        both = Pair(folder, server.address, extra)
        async with both.cable:
            try:
                await both.start("master")
                await both.start("slave")
                await both.make_topic()
                await both.followed()
                yield both
            finally:
                await both.close()
