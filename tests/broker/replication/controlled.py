"""A set of replicas with a scripted controller; in virtual time, over a network in memory."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from gimbalmq.broker.broker import Broker
from gimbalmq.broker.config import BrokerConfig
from gimbalmq.errors import RocketMQError
from gimbalmq.nameserver import NameServer, NameServerConfig
from gimbalmq.protocol.bodies import TopicConfig
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.controller import RoleChange
from gimbalmq.rpc import management
from gimbalmq.store.files import Files
from gimbalmq.testing import MemoryNetwork
from gimbalmq.testing.loop import VirtualClock
from gimbalmq.transport.pool import ChannelPool
from tests.broker.desk import send_fields
from tests.broker.replication.controller_double import ControllerDouble

NAME = "broker-a"
TOPIC = "T"


class Machine(Files):
    """Files of a machine that was started so often.

    Attributes:
        is_full: its disk has no room for another file; what is there can be written in place.
    """

    def __init__(self) -> None:
        self.boots = 0
        self.is_full = False

    def open(self, path: Path | str, *, create: bool = False) -> int:
        if self.is_full and create and not Path(path).exists():
            raise OSError(errno.ENOSPC, "no space left")
        return super().open(path, create=create)

    def boot_id(self) -> str:
        return str(self.boots)


class Set:
    """A name server, a controller, and replicas by number; what is sent is noted by its answer."""

    def __init__(self, folder: Path, clock: VirtualClock, seed: int = 0) -> None:
        self.folder = folder
        self.clock = clock
        self.network = MemoryNetwork(seed)
        self.namesrv = NameServer(
            NameServerConfig(listen_port=9876, bind_address="10.0.0.100"),
            network=self.network.host("10.0.0.100"),
            clock=clock,
        )
        self.controller = ControllerDouble(self.network.host("10.0.0.101"))
        self.controller.notify = self._notify
        self.pool = ChannelPool(network=self.network.host("10.0.0.99"))
        self.brokers: dict[int, Broker] = {}
        self.machines: dict[int, Machine] = {}
        self.accepted: list[bytes] = []
        self.notices: set[asyncio.Future[None]] = set()
        self._sent = 0

    async def begin(self, number: int, **options: object) -> Broker:
        """Starts a replica; it may have no role for long."""
        host = f"10.0.0.{number}"
        config, unknown = BrokerConfig.from_properties(
            {
                "storePathRootDir": str(self.folder / str(number)),
                "brokerName": NAME,
                "bindAddress": host,
                "brokerIP1": host,
                "brokerIP2": host,
                "listenPort": "10911",
                "namesrvAddr": "10.0.0.100:9876",
                "enableControllerMode": "true",
                "controllerAddr": self.controller.address,
                "brokerRole": "SLAVE",
                "brokerId": "-1",
                "allAckInSyncStateSet": "true",
                "mappedFileSizeCommitLog": "65536",
                "slaveTimeout": "1500",
                **{key: str(value) for key, value in options.items()},
            }
        )
        assert not unknown
        files = self.machines.setdefault(number, Machine())
        broker = Broker(config, network=self.network.host(host), clock=self.clock, files=files)
        await broker.start()
        self.brokers[number] = broker
        return broker

    async def start(self, number: int, **options: object) -> Broker:
        """Starts a replica; it has a role when this returns."""
        broker = await self.begin(number, **options)
        assert broker.controller_mode is not None
        await broker.controller_mode.elections.joined()
        return broker

    async def kill(self, number: int) -> None:
        broker = self.brokers.pop(number)
        self.network.reset(f"10.0.0.{number}")
        await broker.abandon()

    def image(self, number: int) -> Path:
        """What the disk of a machine has now; what is written later may be lost."""
        image = self.folder / f"{number} at {self.clock.wall_ms()}"
        return shutil.copytree(self.folder / str(number), image)

    async def cut_power(self, number: int, image: Path) -> None:
        """A machine goes dark, and nobody is told. Its disk has what it had before."""
        broker = self.brokers.pop(number)
        self.network.vanish(f"10.0.0.{number}")
        await broker.abandon()
        shutil.rmtree(self.folder / str(number))
        image.rename(self.folder / str(number))
        self.machines[number].boots += 1

    def _notify(self, name: str) -> None:
        """What Apache's controller does after an election."""
        for address in self.controller.replicas[name].addresses.values():
            notice = asyncio.ensure_future(self._tell(address))
            self.notices.add(notice)
            notice.add_done_callback(self.notices.discard)

    async def _tell(self, address: str) -> None:
        notice = RemotingCommand(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, RoleChange().to_ext())
        try:
            await self.pool.oneway(address, notice)
        except RocketMQError:
            pass  # it is dead

    @property
    def master(self) -> Broker:
        return next(broker for broker in self.brokers.values() if broker.roles.is_master)

    async def in_sync(self, *ids: int) -> None:
        await until(lambda: self.controller.replicas[NAME].in_sync == set(ids))
        mode = self.master.controller_mode
        assert mode is not None and mode.sync_set is not None
        sync_set = mode.sync_set
        await until(lambda: sync_set.members == set(ids))

    async def send(self, broker: Broker, count: int = 1, size: int = 100) -> list[int]:
        """Sends messages one after the other; answers their codes."""
        return [await self.send_to(broker.address, size) for _ in range(count)]

    async def send_to(self, address: str, size: int = 100) -> int:
        self._sent += 1
        body = f"#{self._sent:08}#".encode().ljust(size, b".")
        request = RemotingCommand(
            RequestCode.SEND_MESSAGE_V2, send_fields(topic=TOPIC, queue_id=self._sent % 4), body
        )
        answer = await self.pool.call(address, request, 5.0)
        if answer.code == ResponseCode.SUCCESS:
            self.accepted.append(body)
        return answer.code

    async def topic(self) -> None:
        config = TopicConfig(topic_name=TOPIC, read_queue_nums=4, write_queue_nums=4)
        await management.create_topic(self.pool, self.master.address, config)

    async def close(self) -> None:
        for broker in self.brokers.values():
            await broker.close()
        await asyncio.gather(*self.notices)
        await self.pool.close()
        await self.controller.close()
        await self.namesrv.close()


@asynccontextmanager
async def replicas(
    folder: Path, clock: VirtualClock, *numbers: int, seed: int = 0, **options: object
) -> AsyncIterator[Set]:
    made = Set(folder, clock, seed)
    await made.namesrv.start()
    await made.controller.start("10.0.0.101", 9878)
    try:
        for number in numbers:
            await made.start(number, **options)
        await made.topic()
        yield made
    finally:
        await made.close()


async def until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def stored(broker: Broker) -> list[bytes]:
    """Bodies of all messages that readers of this broker see."""
    bodies = []
    for queue_id in broker.store.queue_ids(TOPIC):
        queue = broker.store.find_queue(TOPIC, queue_id)
        assert queue is not None
        for offset, _, _ in broker.store.entries(TOPIC, queue_id, 0, queue.max_offset):
            record = broker.store.record_at(offset)
            assert record is not None
            bodies.append(bytes(record))
    return bodies


def has_all(broker: Broker, bodies: list[bytes]) -> bool:
    records = b"".join(stored(broker))
    return all(body in records for body in bodies)


def log_of(broker: Broker) -> bytes:
    store = broker.store
    at, data = store.min_commitlog_offset, b""
    while at < store.max_commitlog_offset:
        piece = bytes(store.log_bytes(at, 1 << 20))
        data += piece
        at += len(piece)
    return data


def trouble(broker: Broker) -> str:
    return broker.replication.status().trouble or ""
