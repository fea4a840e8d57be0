"""A master's and a slave's end of the stream, each with a store of its own and without a broker around it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from gimbalmq._clock import Clock
from gimbalmq.broker.config import BrokerConfig, LiveConfig
from gimbalmq.broker.replication.follower import Follower, State
from gimbalmq.broker.replication.source import HaSource
from gimbalmq.errors import ResponseError
from gimbalmq.protocol.bodies import KvTable
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.messages import ViewMessage
from gimbalmq.store import MessageStore
from gimbalmq.store.consumequeue import QueueLog
from gimbalmq.testing.loop import VirtualClock, run_virtual
from gimbalmq.testing.network import HostNetwork, MemoryNetwork
from gimbalmq.transport.channel import Answer, Channel, Handlers
from gimbalmq.transport.network import Listener, Network
from gimbalmq.transport.pool import ChannelPool
from gimbalmq.transport.server import RemotingServer
from tests.store.helpers import FailingFiles, config_for, put

FILE = 4096
PACKET = 700
"""Bytes of a packet: smaller than the largest records here, and no divisor of a file."""


def live_config(**properties: object) -> LiveConfig:
    texts = {key: str(value) for key, value in properties.items()}
    config, unknown = BrokerConfig.from_properties({"haTransferBatchSize": str(PACKET), **texts})
    assert not unknown, unknown
    return LiveConfig(config)


def fill(store: MessageStore, count: int, *, start: int = 0, most: int = 900) -> None:
    """Messages of many sizes, some larger than a packet, to two topics with several queues."""
    for number in range(start, start + count):
        body = bytes([number % 251]) * (1 + number * 37 % most)
        put(
            store, ("orders", "bills")[number % 2], number % 3, body, KEYS=f"k{number}", TAGS=f"t{number % 4}"
        )


def log_of(store: MessageStore, begin: int, end: int) -> bytes:
    found = b""
    while begin + len(found) < end:
        found += store.log_bytes(begin + len(found), end - begin - len(found))
    return found


def assert_same(master: MessageStore, slave: MessageStore) -> None:
    """Equal logs as far as both reach, and the same entries and keys."""
    begin, end = slave.min_commitlog_offset, min(master.max_commitlog_offset, slave.max_commitlog_offset)
    assert log_of(slave, begin, end) == log_of(master, begin, end)
    assert begin > 0 or sorted(slave.topics()) == sorted(master.topics())
    for topic in slave.topics():
        for queue_id in slave.queue_ids(topic):
            ours, theirs = slave.find_queue(topic, queue_id), master.find_queue(topic, queue_id)
            assert ours is not None and theirs is not None
            first, last = max(ours.min_offset, theirs.min_offset), min(ours.max_offset, theirs.max_offset)
            copied = slave.entries(topic, queue_id, first, last - first)
            whole = master.entries(topic, queue_id, first, last - first)
            # Of messages before the slave's first file it has numbers only.
            assert [entry for entry, other in zip(copied, whole, strict=True) if other[0] >= begin] == [
                other for other in whole if other[0] >= begin
            ]


class MasterEnd:
    """A store that leads, its replication port, and an ordinary port that answers 28 and 33."""

    def __init__(
        self,
        folder: Path,
        network: Network,
        clock: Clock,
        properties: Mapping[str, object] | None = None,
        *,
        file_bytes: int = FILE,
    ) -> None:
        self.folder = folder
        self.file_bytes = file_bytes
        self.network = network
        self.clock = clock
        self.live = live_config(**(properties or {}))
        self.open()

    def open(self) -> None:
        config = config_for(self.folder, commitlog_file_bytes=self.file_bytes)
        self.store = MessageStore(config, self.clock, FailingFiles())
        self.store.load()
        self.source = HaSource(self.store, self.live, self.network, self.clock)
        self.asked: list[int] = []
        handlers = Handlers()
        handlers.add(RequestCode.GET_BROKER_RUNTIME_INFO, self._bounds)
        handlers.add(RequestCode.VIEW_MESSAGE_BY_ID, self._view)
        self.server = RemotingServer(handlers, network=self.network)

    def _bounds(self, _: Channel, request: RemotingCommand) -> Answer:
        self.asked.append(request.code)
        table = {
            "commitLogMinOffset": str(self.store.min_commitlog_offset),
            "commitLogMaxOffset": str(self.store.max_commitlog_offset),
        }
        return request.reply(body=KvTable(table=table).dump())

    def _view(self, _: Channel, request: RemotingCommand) -> Answer:
        self.asked.append(request.code)
        record = self.store.record_at(ViewMessage.from_ext(request.ext_fields).offset)
        if record is None:
            raise ResponseError("can not find message by the offset")
        return request.reply(body=record)

    async def start(self, port: int = 0, ha_port: int = 0) -> None:
        await self.server.start("127.0.0.1", port)
        await self.source.start("127.0.0.1", ha_port)
        host = getattr(self.network, "name", "127.0.0.1")
        self.address, self.ha_address = f"{host}:{self.server.port}", f"{host}:{self.source.port}"

    async def stop(self) -> None:
        await self.source.close()
        await self.server.close()
        self.store.close()


class SlaveEnd:
    """A store that follows."""

    def __init__(
        self, folder: Path, network: Network, clock: Clock, properties: Mapping[str, object] | None = None
    ) -> None:
        self.folder = folder
        self.network = network
        self.clock = clock
        self.live = live_config(**(properties or {}))
        self.open()

    def open(self) -> None:
        self.store = MessageStore(config_for(self.folder), self.clock, FailingFiles())
        self.store.load()
        self.store.follow()
        self.pool = ChannelPool(network=self.network)
        self.grown: list[QueueLog] = []
        self.states: list[State] = []
        self.follower = Follower(self.store, self.live, self.network, self.pool, self.clock, self._arrived)

    def _arrived(self, queues: Sequence[QueueLog]) -> None:
        self.grown += queues

    async def follow(self, master: MasterEnd) -> None:
        self.follower.aim(master.ha_address, master.address)
        await self.follower.start()

    async def stop(self) -> None:
        await self.follower.close()
        await self.pool.close()
        self.store.close()

    async def kill(self) -> None:
        """Ends as a crash would."""
        await self.follower.close()
        await self.pool.close()
        self.store.abandon()

    async def caught_up(self, master: MasterEnd) -> None:
        await until(lambda: self.store.max_commitlog_offset == master.store.max_commitlog_offset)


def cut_back(master: MasterEnd, offset: int, *, running: bool = False) -> None:
    """A master that has lost the end of its log, as after a power cut."""
    if not running:
        master.open()
    master.store.follow()
    master.store.cut(offset)
    master.store.lead()


def drop_files(store: MessageStore, count: int) -> None:
    """The oldest files of a log go."""
    for segment in store.log.drop_first(count):
        store.log.segments.discard(segment)


def memory_of(network: Network) -> MemoryNetwork:
    assert isinstance(network, HostNetwork)
    return network._whole


async def until(condition: Callable[[], object]) -> None:
    """Waits in steps of a millisecond, of whichever time the loop has."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


@asynccontextmanager
async def pair(
    folder: Path,
    clock: Clock,
    *,
    count: int = 0,
    line: Callable[[Network], Network] | None = None,
    master_properties: dict[str, object] | None = None,
    slave_properties: dict[str, object] | None = None,
) -> AsyncIterator[tuple[MasterEnd, SlaveEnd]]:
    """A master with ``count`` messages and an empty slave that follows it, in memory.

    Args:
        line: puts something between the slave and its network.
    """
    whole = MemoryNetwork()
    network: Network = whole.host("10.0.0.12")
    master = MasterEnd(folder / "master", whole.host("10.0.0.11"), clock, master_properties)
    slave = SlaveEnd(
        folder / "slave", line(network) if line is not None else network, clock, slave_properties
    )
    fill(master.store, count)
    await master.start()
    try:
        await slave.follow(master)
        yield master, slave
    finally:
        await slave.stop()
        await master.stop()


def virtual(work: Callable[[VirtualClock], Any]) -> None:
    async def main(clock: VirtualClock) -> None:
        async with asyncio.timeout(100):
            await work(clock)

    run_virtual(main)


class Line:
    """A network whose connections break after so many bytes, either way; each number is for one connection.

    Args:
        to_slave, to_master: bytes that get through; the connections behind the last number have no limit.
        piece: how many bytes the slave gets at a time.
    """

    def __init__(
        self,
        inner: Network,
        *,
        to_slave: Iterable[int] = (),
        to_master: Iterable[int] = (),
        piece: int | None = None,
    ) -> None:
        self._inner = inner
        self._to_slave = iter(to_slave)
        self._to_master = iter(to_master)
        self._piece = piece
        self.made: list[BrokenLine] = []

    async def connect(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int, timeout: float
    ) -> asyncio.Protocol:
        protocol = factory()
        if isinstance(protocol, Channel):
            return await self._inner.connect(lambda: protocol, host, port, timeout)
        line = BrokenLine(protocol, next(self._to_slave, None), next(self._to_master, None), self._piece)
        self.made.append(line)
        await self._inner.connect(lambda: line, host, port, timeout)
        return protocol

    async def listen(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> Listener:
        return await self._inner.listen(factory, host, port)


class BrokenLine(asyncio.Protocol):
    """One connection of a ``Line``."""

    def __init__(
        self, inner: asyncio.Protocol, to_slave: int | None, to_master: int | None, piece: int | None
    ) -> None:
        self._inner = inner
        self._to_slave = to_slave
        self._to_master = to_master
        self._piece = piece
        self.heard = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._inner.connection_made(_CountedTransport(self._transport, self._to_master))

    def data_received(self, data: bytes) -> None:
        if self._to_slave is not None:
            data, self._to_slave = data[: self._to_slave], self._to_slave - len(data)
        self.heard += data
        for begin in range(0, len(data), self._piece or max(1, len(data))):
            self._inner.data_received(data[begin : begin + self._piece] if self._piece else data)
        if self._to_slave is not None and self._to_slave <= 0:
            self._transport.abort()

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()


class _CountedTransport(asyncio.Transport):
    def __init__(self, inner: asyncio.Transport, left: int | None) -> None:
        super().__init__()
        self._inner = inner
        self._left = left

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._left is None:
            self._inner.write(data)
            return
        data, self._left = bytes(data)[: self._left], self._left - len(data)
        self._inner.write(data)
        if self._left <= 0:
            self._inner.close()  # what was written still leaves

    def __getattribute__(self, name: str) -> Any:
        if name in ("write", "_inner", "_left", "__class__"):
            return object.__getattribute__(self, name)
        return getattr(object.__getattribute__(self, "_inner"), name)
