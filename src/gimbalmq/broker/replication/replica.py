"""One slave, as its master sees it: a connection that the log is sent on and reports come back on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from gimbalmq._clock import Clock
from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.replication.dialects import SourceDialect
from gimbalmq.broker.replication.meter import Meter, Pace
from gimbalmq.errors import RemoteProtocolError, ReplicaRefusedError, StoreError
from gimbalmq.store.message_store import MessageStore
from gimbalmq.transport.tls import HANDSHAKE_BYTE

log = logging.getLogger(__name__)

_WRITE_BYTES = 256 * 1024
"""Written at once. For a slave that reads slowly no more than this and one packet is kept."""
_TURN_BYTES = 1 << 20
_TURN_SECONDS = 0.003
"""Then others have their turn: what is sent may have to come from the disk."""


class Replica(asyncio.Protocol):
    """Sends the log as it grows.

    Args:
        admits: asked with the slave's host whether it may copy the log.
        reported: called after each report of the slave.
        left: called when the connection has ended.

    Attributes:
        address: the slave's end of the connection.
        slave_id: which broker it is, if its dialect tells.
        acked: where the slave's log ends, as it reported; -1 before its first report.
        sent: what is sent next begins there; -1 before that is known.
        is_sure: False after another connection from the same host, until this one reports again. A slave that comes
            again after a cut of the network leaves a connection behind, which must not count as a second slave.
        caught_up_at: when it last had all that we had, in the clock's seconds.
    """

    def __init__(
        self,
        store: MessageStore,
        live: LiveConfig,
        clock: Clock,
        dialect: SourceDialect,
        *,
        admits: Callable[[Replica, str], bool],
        reported: Callable[[Replica], None],
        left: Callable[[Replica], None],
    ) -> None:
        self._store = store
        self._live = live
        self._now = clock.monotonic
        self.dialect = dialect
        self._admits = admits
        self._reported = reported
        self._left = left
        self._transport: asyncio.Transport | None = None
        self._meter = Meter(clock)
        self._pace = Pace(clock)
        self._writable = True
        self._is_new = True
        self._again: asyncio.Handle | None = None
        self._last_read = self._last_write = self.caught_up_at = self._now()
        self.address = ""
        self.slave_id: int | None = None
        self.acked = -1
        self.sent = -1
        self.is_sure = True

    @property
    def host(self) -> str:
        """The slave's machine."""
        return self.address.rpartition(":")[0]

    @property
    def bytes_per_second(self) -> int:
        return self._meter.per_second

    @property
    def behind(self) -> int:
        """Bytes of our log that it has not reported."""
        return max(0, self._store.max_commitlog_offset - max(0, self.acked))

    @property
    def is_idle(self) -> bool:
        """Whether it has reported all that it was sent, so that it waits for more."""
        return 0 <= self.sent <= self.acked

    @property
    def in_sync(self) -> bool:
        return self.acked >= 0 and self.behind < self._live.now.ha_max_gap_not_in_sync

    # -- asyncio.Protocol --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # What is written leaves at once; uvloop would keep it until all that came in this turn is served.
        self._transport.set_write_buffer_limits(0)
        host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
        self.address = f"{host}:{port}"
        self._last_read = self._last_write = self._now()
        if not self._admits(self, str(host)):
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._last_read = self._now()
        try:
            if self._is_new and data[0] == HANDSHAKE_BYTE:  # no log is so long that a report would begin so
                raise ReplicaRefusedError(
                    "it speaks TLS, and this broker does not: haTlsEnable must be the same"
                )
            self._is_new = False
            report = self.dialect.take(self, data)
            if report is not None:
                self._take(report)
        except (RemoteProtocolError, ReplicaRefusedError) as error:
            self.refuse(str(error))

    def eof_received(self) -> None:
        return None  # the transport closes itself

    def connection_lost(self, exc: Exception | None) -> None:
        self._writable = False
        if self._again is not None:
            self._again.cancel()
        self._left(self)

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._pump_soon()

    # -- what the slave says -----------------------------------------------------------------

    def _take(self, report: int) -> None:
        end, begin = self._store.max_commitlog_offset, self._store.min_commitlog_offset
        if report > end:
            raise ReplicaRefusedError(
                f"its log ends at {report}, ours at {end}: it has {report - end} bytes that this master does not have. "
                "Either it is the one to be master, or its log is to be cut (gimbalmq broker rejoin --store DIR --cut)"
            )
        first = self.acked < 0
        if first:
            if 0 < report < begin:
                raise ReplicaRefusedError(
                    f"its log ends at {report}, ours begins at {begin}: what lies between was deleted here. "
                    "Empty its folder, and it copies everything anew"
                )
        elif report > self.sent >= 0:
            raise ReplicaRefusedError(
                f"its log ends at {report}, and we have sent it up to {self.sent} only: somebody else writes there. "
                "Let each slave have one master, and empty its folder"
            )
        elif report < self.acked:
            raise ReplicaRefusedError(
                f"its log ends at {report} and ended at {self.acked} before: it has lost what it had confirmed"
            )
        self.acked = report
        self.is_sure = True
        if report >= end:
            self.caught_up_at = self._now()
        if self.sent < 0:
            self._begin()
        self._reported(self)

    def _begin(self) -> None:
        self.sent = start = self.dialect.begin(self.acked)
        log.info("slave %s copies our log from %d on, which ends at %d", self.address, start, self._end)
        if start >= self._end:
            self.heartbeat()  # so that it knows at once that it has everything
        else:
            self.pump()

    @property
    def _end(self) -> int:
        return self._store.max_commitlog_offset

    def refuse(self, why: str) -> None:
        """Ends the connection, and says why in the log."""
        log.error("slave %s is refused: %s", self.address, why)
        self.drop()

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # -- what it is sent ---------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """For the dialect: what is said besides the log."""
        assert self._transport is not None
        self._last_write = self._now()
        self._transport.write(data)

    def pump(self) -> None:
        """Sends what there is, as long as it is this slave's turn and the slave reads it."""
        transport = self._transport
        if self.sent < 0 or transport is None or self._again is not None:
            return
        config, store, dialect = self._live.now, self._store, self.dialect
        most, limit = config.ha_transfer_batch_size, None
        if config.ha_flow_control_enable:
            limit = config.max_ha_transfer_byte_in_second
        begun, left = self._now(), _TURN_BYTES
        end = store.max_commitlog_offset
        try:
            while self._writable and self.sent < end and not transport.is_closing():
                start = self.sent
                packets: list[bytes | memoryview] = []
                while self.sent < end and self.sent - start < _WRITE_BYTES:
                    size = min(most, dialect.packet_end(self.sent) - self.sent)
                    if limit is not None:
                        size = min(size, self._pace.allowed(limit))
                        if size <= 0:
                            break
                    data = store.log_bytes(self.sent, size)
                    packets += (dialect.head(self.sent, len(data)), data)
                    self.sent += len(data)
                    self._pace.used(len(data))
                if not packets:
                    self._pump_later(self._pace.wait_seconds())
                    return
                transport.writelines(packets)
                self._meter.add(self.sent - start)
                left -= self.sent - start
                self._last_write = self._now()
                if left <= 0 or self._last_write - begun >= _TURN_SECONDS:
                    self._pump_soon()
                    return
        except Exception as error:  # whoever stores messages calls this, and must not suffer from it
            if not isinstance(error, StoreError | MemoryError):
                log.exception("a slave could not be sent our log")
            self.refuse(f"our log cannot be sent from {self.sent} on: {error!r}")

    def _pump_soon(self) -> None:
        if self._again is None:
            self._again = asyncio.get_running_loop().call_soon(self._pump_again)

    def _pump_later(self, seconds: float) -> None:
        self._again = asyncio.get_running_loop().call_later(seconds, self._pump_again)

    def _pump_again(self) -> None:
        self._again = None
        self.pump()

    def heartbeat(self) -> None:
        """Says where we are, without a byte of the log."""
        self.write(self.dialect.head(self.sent, 0))

    def tick(self) -> None:
        """Heartbeats, and the end of a connection that nothing came on for long."""
        config, now = self._live.now, self._now()
        if now - self._last_read > config.ha_housekeeping_interval / 1000:
            log.warning(
                "slave %s said nothing for %d ms (haHousekeepingInterval): its connection ends",
                self.address,
                config.ha_housekeeping_interval,
            )
            self.drop()
            return
        if (
            self.acked >= 0
            and self._writable
            and now - self._last_write >= config.ha_send_heartbeat_interval / 1000
        ):
            self.heartbeat()
