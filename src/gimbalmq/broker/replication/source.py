"""The replication port of a master: slaves connect, and the log goes to each of them as it grows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from gimbalmq._clock import Clock
from gimbalmq.access.sources import address_of, matches
from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.replication.acks import ReplicaAcks
from gimbalmq.broker.replication.dialects import SourceDialect
from gimbalmq.broker.replication.headcount import Headcount
from gimbalmq.broker.replication.plain import PlainSource
from gimbalmq.broker.replication.replica import Replica
from gimbalmq.store.message_store import MessageStore
from gimbalmq.transport.network import Listener, Network
from gimbalmq.transport.tasks import Tasks
from gimbalmq.transport.tls import ServerTls
from gimbalmq.transport.tls_stream import TlsStream

log = logging.getLogger(__name__)

_MOST_REPLICAS = 64
_TICKS = 4
"""How often the clock is looked at in the shorter of the two intervals."""


class HaSource:
    """Java: DefaultHAService, AutoSwitchHAService and their HAConnection, at a master.

    Attributes:
        dialect: makes the dialect of a new connection; the plain one unless it is replaced.
        replicas: connections of slaves, those that have not reported yet among them.
        acks: how far they have come.
        headcount: of slaves that have gone.
        on_report, on_leave: called with a slave that has reported, or whose connection has ended.
    """

    def __init__(
        self,
        store: MessageStore,
        live: LiveConfig,
        network: Network,
        clock: Clock,
        tls: ServerTls | None = None,
    ) -> None:
        self._store = store
        self._live = live
        self._network = network
        self._clock = clock
        self._tls = tls
        self.dialect: Callable[[], SourceDialect] = lambda: PlainSource(store)
        self._tasks = Tasks("replication source")
        self._listener: Listener | None = None
        self._pump: asyncio.Handle | None = None
        self._shaking = 0
        self.replicas: list[Replica] = []
        self.acks = ReplicaAcks(self.replicas, lambda: store.max_commitlog_offset)
        self.headcount = Headcount(clock)
        self.on_report: list[Callable[[Replica], None]] = []
        self.on_leave: list[Callable[[Replica], None]] = []

    @property
    def port(self) -> int:
        assert self._listener is not None, "the replication port is not open"
        return self._listener.port

    @property
    def slaves(self) -> int:
        """How many slaves there are for certain, or were a minute ago; one that comes again is one."""
        return max(sum(replica.is_sure for replica in self.replicas), self.headcount.most)

    @property
    def now(self) -> float:
        """The clock's seconds, by which replicas note when something happened."""
        return self._clock.monotonic()

    async def start(self, host: str, port: int) -> None:
        """Raises ListenError."""
        self._listener = await self._network.listen(self._accept, host, port)
        self._tasks.every(self._tick_seconds, self._tick, "heartbeats")

    def _tick_seconds(self) -> float:
        config = self._live.now
        shortest = min(config.ha_send_heartbeat_interval, config.ha_housekeeping_interval) / 1000
        return min(1.0, max(0.005, shortest / _TICKS))

    def _tick(self) -> None:
        for replica in list(self.replicas):
            replica.tick()

    def _accept(self) -> asyncio.Protocol:
        replica = self._new_replica()
        if not self._live.now.ha_tls_enable:
            return replica
        assert self._tls is not None and self._tls.context is not None, "the configuration was checked"
        stream = TlsStream(replica, self._tls.context, welcome=lambda host: self._welcome(host, stream))
        return stream

    def _welcome(self, host: str, stream: TlsStream) -> bool:
        """Whether a connection may shake hands: strangers must not cost more than they do without TLS."""
        allowed = self._live.now.ha_allowed_addresses
        if allowed and not matches(allowed, host):
            log.error("%s may not copy the log: it is not in haAllowedAddresses", host)
            return False
        if self._shaking >= _MOST_REPLICAS:
            log.error("%s may not copy the log: %d others are shaking hands", host, _MOST_REPLICAS)
            return False
        self._shaking += 1
        stream.opened.add_done_callback(self._shaken)
        return True

    def _shaken(self, _: object) -> None:
        self._shaking -= 1

    def _new_replica(self) -> Replica:
        return Replica(
            self._store,
            self._live,
            self._clock,
            self.dialect(),
            admits=self._admits,
            reported=self._reported,
            left=self._left,
        )

    def _admits(self, replica: Replica, host: str) -> bool:
        """Whether a connection may be a slave's; the stream knows no passwords."""
        config = self._live.now
        allowed = config.ha_allowed_addresses
        address = address_of(host)
        if allowed and not matches(allowed, host):
            log.error("%s may not copy the log: it is not in haAllowedAddresses", replica.address)
            return False
        proven = config.ha_tls_enable and config.client_certificates == "require"
        guarded = config.guards_log and not proven
        if not allowed and guarded and (address is None or not address.is_loopback):
            log.error(
                "%s may not copy the log: with authentication on, or with TLS required, only addresses in "
                "haAllowedAddresses may, and it is empty",
                replica.address,
            )
            return False
        if len(self.replicas) >= _MOST_REPLICAS:
            log.error("%s may not copy the log: %d slaves are connected", replica.address, _MOST_REPLICAS)
            return False
        for other in self.replicas:
            if other.host == replica.host:
                other.is_sure = False
        self.replicas.append(replica)
        self._store.appended = self._appended
        return True

    def _appended(self) -> None:
        """A slave that waits for it gets it at once. For others all that is stored in one turn leaves together."""
        for replica in list(self.replicas):
            if replica.is_idle:
                replica.pump()
            elif self._pump is None:
                self._pump = asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        self._pump = None
        for replica in list(self.replicas):
            replica.pump()

    def _reported(self, replica: Replica) -> None:
        self.acks.changed()
        for hear in self.on_report:
            hear(replica)

    def _left(self, replica: Replica) -> None:
        if replica not in self.replicas:  # it was not let in
            return
        if replica.acked >= 0:  # it was a slave, and no stranger
            self.headcount.note(sum(other.is_sure and other.acked >= 0 for other in self.replicas))
        self.replicas.remove(replica)
        if not self.replicas:
            self._store.appended = None
        log.info("slave %s has gone; its log ended at %d", replica.address, replica.acked)
        self.acks.changed()
        for hear in self.on_leave:
            hear(replica)

    def drop_all(self) -> None:
        """Ends every connection; slaves come again if they are still to copy from us."""
        for replica in list(self.replicas):
            replica.drop()

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self.drop_all()
        self._store.appended = None
        if self._pump is not None:
            self._pump.cancel()
            self._pump = None
        self.acks.give_up()
        await self._tasks.close()
