"""The machines of a replicated cluster: each has a disk, a process that can be stopped, and what its log ever was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from gimbalmq._clock import Clock
from gimbalmq.broker.broker import Broker
from gimbalmq.broker.config import BrokerConfig
from gimbalmq.store.cutting import CutReport
from gimbalmq.store.files import Files
from gimbalmq.store.message_store import MessageStore
from gimbalmq.testing import MemoryNetwork, VirtualLoop
from gimbalmq.transport.network import Network
from tests.sim.disks import Disk
from tests.sim.processes import Process


class _Watched(Broker):
    """A broker; somebody looks at its parts before anybody uses them."""

    def __init__(
        self,
        config: BrokerConfig,
        network: Network,
        clock: Clock,
        files: Files,
        look: Callable[[Broker], None],
    ) -> None:
        super().__init__(config, network=network, clock=clock, files=files)
        self._look = look

    def _build(self, config: BrokerConfig) -> None:
        super()._build(config)
        self._look(self)


class Machine:
    """One replica and what it runs on.

    Attributes:
        number: 1, 2 ...; its host is ``10.0.0.<number>``.
        properties: of the broker that is started on it.
        broker: the one that runs; None while there is none.
        busy: somebody starts or ends it.
        past: what its log was before it was cut, or its process ended.
        look: called with every broker before it serves.
        cutting: called before its log is cut, with where from and where it ends.
    """

    def __init__(
        self,
        number: int,
        folder: Path,
        seed: int,
        network: MemoryNetwork,
        clock: Clock,
        properties: Mapping[str, str],
        *,
        can_lose_power: bool,
    ) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.number = number
        self.host = f"10.0.0.{number}"
        self.folder = folder / str(number)
        self.properties = dict(properties)
        self.broker: Broker | None = None
        self.busy = False
        self.past: list[bytes] = []
        self.look: Callable[[Broker], None] = lambda broker: None
        self.cutting: Callable[[int, int], None] = lambda begin, end: None
        self.process = Process(loop, network, self.host)
        self._network = network
        self._clock = clock
        self.disk: Disk | None = None
        if can_lose_power:
            self.disk = Disk(self.folder, f"{seed} machine {number}", clock.wall_ms, loop.stall)
        self._files = self.disk or Files()

    @property
    def address(self) -> str:
        return f"{self.host}:10911"

    @property
    def is_up(self) -> bool:
        return self.broker is not None and not self.busy

    @property
    def runs(self) -> bool:
        """Up, and not stopped."""
        return self.is_up and not self.process.stopped

    @property
    def own_id(self) -> int | None:
        """What the controller calls it."""
        mode = None if self.broker is None else self.broker.controller_mode
        return None if mode is None else mode.elections.own_id

    # --- its log -----------------------------------------------------------------------------

    @property
    def end(self) -> int:
        if self.broker is None:
            return len(self.past[-1]) if self.past else 0
        return self.broker.store.max_commitlog_offset

    def log(self, begin: int = 0, end: int | None = None) -> bytes:
        """Bytes of its log, whether it runs or not."""
        if self.broker is None:
            return self.past[-1][begin:end] if self.past else b""
        return log_of(self.broker.store, begin, end)

    def has_had(self, begin: int, data: bytes) -> bool:
        """Whether its log has, or had before a cut or an end, these bytes at this place."""
        end = begin + len(data)
        if self.broker is not None and self.end >= end and self.log(begin, end) == data:
            return True
        return any(image[begin:end] == data for image in reversed(self.past))

    def _keep(self, store: MessageStore) -> None:
        log = log_of(store)
        if not self.past or self.past[-1] != log:
            self.past.append(log)

    # --- life --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Raises what ``Broker.start`` raises."""
        config, unknown = BrokerConfig.from_properties(
            {"storePathRootDir": str(self.folder), "bindAddress": self.host, "listenPort": "10911"}
            | {"brokerIP1": self.host, "brokerIP2": self.host}
            | self.properties
        )
        assert not unknown, unknown
        broker = _Watched(config, self._network.host(self.host), self._clock, self._files, self._look)
        await self.process.do(broker.start())

    def _look(self, broker: Broker) -> None:
        store, cut, abandon = broker.store, broker.replication.cut, broker.store.abandon

        async def cut_noted(offset: int) -> CutReport:
            self._keep(store)
            self.cutting(offset, store.max_commitlog_offset)
            return await cut(offset)

        def abandon_noted() -> None:
            # Until now it may have taken in more.
            self._keep(store)
            self.broker = None
            abandon()

        broker.replication.cut = cut_noted  # type: ignore[method-assign]
        store.abandon = abandon_noted  # type: ignore[method-assign]
        self.broker = broker
        self.look(broker)

    async def stop(self) -> None:
        """Ends it properly."""
        assert self.broker is not None
        self.process.go_on()
        await self.process.do(self.broker.close())

    async def kill(self) -> None:
        """Ends its process; the system goes on, so all that was written stays."""
        assert self.broker is not None
        self._network.reset(self.host)
        self.process.go_on()
        await self.broker.abandon()

    async def lose_power(self) -> None:
        """Nobody is told; what was not synced may be gone."""
        assert self.disk is not None and self.broker is not None
        self._network.vanish(self.host)
        self.process.go_on()
        await self.broker.abandon()
        self.disk.lose_power()


def log_of(store: MessageStore, begin: int = 0, end: int | None = None) -> bytes:
    """A store's log, or a part of it; it may lie in several files."""
    end = store.max_commitlog_offset if end is None else min(end, store.max_commitlog_offset)
    found = []
    while begin < end:
        piece = bytes(store.log_bytes(begin, end - begin))
        found.append(piece)
        begin += len(piece)
    return b"".join(found)
