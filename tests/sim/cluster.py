"""The servers of a simulated world: each broker has a clock and a disk of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gimbalmq.broker.broker import Broker
from gimbalmq.broker.config import BrokerConfig
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.testing import LocalCluster, MemoryNetwork, VirtualClock, VirtualLoop
from gimbalmq.testing.cluster import Which
from gimbalmq.transport.channel import Answer, Channel, Handler, Handlers
from tests.sim.disks import Disk

if TYPE_CHECKING:
    from tests.sim.world import Settings

_QUICK = {
    "transactionCheckInterval": 3000,
    "transactionTimeOut": 2000,
    "transactionCheckMax": 100_000,
}
"""Transactions are asked about soon, and never given up."""


class WallClock(VirtualClock):
    """A clock whose wall time can be set.

    Args:
        base: a clock that it follows.

    Attributes:
        set_at: when somebody last set it.
        highest_ms: what it had reached when it was set back.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, base: VirtualClock | None = None) -> None:
        super().__init__(loop)
        self.offset_ms = 0
        self.set_at: float | None = None
        self.highest_ms = 0
        self._base = base

    def wall_ms(self) -> int:
        base = super().wall_ms() if self._base is None else self._base.wall_ms()
        return base + self.offset_ms

    def set_by(self, millis: int, now: float) -> None:
        self.highest_ms = max(self.highest_ms, self.wall_ms())
        self.offset_ms += millis
        self.set_at = now


class ApacheHandlers(Handlers):
    """Passes over what clients of this library add to heartbeats and lock requests, as Apache's brokers do."""

    def add(self, code: int, handler: Handler, *, completes: bool = False, large: bool = False) -> None:
        if code in (RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ):
            handler = partial(self._bare, handler)
        super().add(code, handler, completes=completes, large=large)

    @staticmethod
    def _bare(known: Handler, channel: Channel, request: RemotingCommand) -> Answer | Awaitable[Answer]:
        request.ext_fields = None
        return known(channel, request)


class SimCluster(LocalCluster):
    """Attributes:
    clocks, disks: of each broker.
    usage: how full each broker believes its disk to be.
    """

    def __init__(
        self,
        seed: int,
        settings: Settings,
        folder: Path,
        network: MemoryNetwork,
        clock: WallClock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        assert isinstance(loop, VirtualLoop)
        small = 1 << (15 if "filling disk" in settings.kinds else 22)
        super().__init__(
            brokers=settings.brokers,
            network=network,
            clock=clock,
            store=folder,
            properties={
                "mappedFileSizeCommitLog": small,
                "mappedFileSizeConsumeQueue": 20 * 300,
                "maxHashSlotNum": 500,
                "maxIndexNum": 2000,
                "flushDiskType": "SYNC_FLUSH" if settings.sync_flush else "ASYNC_FLUSH",
                **(_QUICK if settings.transactions else {}),
                **dict(settings.broker_options),
            },
            namesrv_properties=dict(settings.nameserver_options),
        )
        self._as_apache = settings.as_apache
        indexes = range(settings.brokers)
        self.clocks = [WallClock(loop, clock) for _ in indexes]
        self.usage = [0.1 for _ in indexes]
        self.disks = [
            Disk(
                folder / f"broker-{chr(ord('a') + index)}",
                f"{seed} disk {index}",
                self.clocks[index].wall_ms,
                loop.stall,
            )
            for index in indexes
        ]

    def broker_at(self, index: int) -> Broker | None:
        return self._slots[index].broker

    @property
    def hosts(self) -> list[str]:
        """Where each broker is, or was and will be again."""
        return [slot.config.bind_address for slot in self._slots]

    def index_of(self, broker_name: str) -> int:
        return next(index for index, slot in enumerate(self._slots) if slot.config.broker_name == broker_name)

    def _new_broker(self, index: int, config: BrokerConfig) -> Broker:
        assert self._network is not None
        broker = Broker(
            config,
            network=self._network.host(config.bind_address),
            clock=self.clocks[index],
            files=self.disks[index],
        )
        if self._as_apache:
            broker.handlers.__class__ = ApacheHandlers  # the servers have them already
        return broker

    async def start_broker(self, index: Which = 0) -> Broker:
        index = self.number_of(index)
        broker = await super().start_broker(index)
        broker.store.config = replace(broker.store.config, disk_usage=lambda: self.usage[index])
        return broker
