"""The slave's end of the stream: connects to the master, stores what comes, reports how far it is.

A connection is used only after the dialect has made sure that our log continues the master's. Whatever goes wrong ends
the connection; the next one begins with that check again, and goes on where our log ends.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import ssl
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gimbalmq._clock import Clock
from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.replication import agreement
from gimbalmq.broker.replication.dialects import CopyDialect
from gimbalmq.broker.replication.link import MasterLink
from gimbalmq.broker.replication.meter import Meter
from gimbalmq.broker.replication.plain import PlainCopy
from gimbalmq.errors import (
    ConfigError,
    ConnectionLostError,
    CopyRefusedError,
    DamagedCopyError,
    RemoteProtocolError,
    RequestTimeoutError,
    RocketMQError,
)
from gimbalmq.protocol.ha import LogPiece
from gimbalmq.rpc.call import Caller
from gimbalmq.store.consumequeue import QueueLog
from gimbalmq.store.message_store import MessageStore
from gimbalmq.transport.network import Network, split_address
from gimbalmq.transport.tasks import Tasks
from gimbalmq.transport.tls_stream import connect_tls

log = logging.getLogger(__name__)

_CONNECT_SECONDS = 5.0
_OPEN_SECONDS = 15.0
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
_TICKS = 4
"""How often the clock is looked at in the shorter of the two intervals."""
_LOOK_SECONDS = 5.0
"""Between looks where the master's log begins and ends."""
_PIECE_BYTES = 1 << 20
"""Taken in at once: a few milliseconds."""


class State(enum.StrEnum):
    """What a slave is doing."""

    STOPPED = "stopped"
    SEEKING = "seeking"
    """It has no connection to its master, or does not know it."""
    REFUSED = "refused"
    """Its log does not continue the master's."""
    CATCHING_UP = "catching up"
    FOLLOWING = "following"


class Target(NamedTuple):
    """Whom to copy."""

    ha_address: str
    master_address: str


class Follower:
    """Java: DefaultHAClient, AutoSwitchHAClient.

    Args:
        pool: asks the master's ordinary port.
        arrived: called with the queues that have grown.
        tls: what a new connection is sealed with; it is plain if there is nothing.

    Attributes:
        dialect: makes the dialect of a new connection; the plain one unless it is replaced.
        state: what it is doing.
        trouble: why it has no connection, or may use none; None while all is well.
        target: whom it copies.
        master_end: where the master's log ended when that was last heard.
        last_read_ms, last_write_ms: wall time of the last bytes from and to the master; 0 before the first.
    """

    def __init__(
        self,
        store: MessageStore,
        live: LiveConfig,
        network: Network,
        pool: Caller,
        clock: Clock,
        arrived: Callable[[Sequence[QueueLog]], None],
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        self._tls = tls
        self._store = store
        self._live = live
        self._network = network
        self._pool = pool
        self._clock = clock
        self._arrived = arrived
        self.dialect: Callable[[], CopyDialect] = lambda: PlainCopy(
            self._agree, last_file_only=live.now.sync_from_last_file
        )
        self._tasks = Tasks("replication copy")
        self._aimed = asyncio.Event()
        self._link: MasterLink | None = None
        self._meter = Meter(clock)
        self.target: Target | None = None
        self.state = State.STOPPED
        self.trouble: str | None = None
        self.master_end = 0
        self.last_read_ms = 0
        self.last_write_ms = 0

    @property
    def bytes_per_second(self) -> int:
        return self._meter.per_second

    @property
    def lag(self) -> int:
        """Bytes of the master's log that we do not have, as far as we know."""
        return max(0, self.master_end - self._store.received_offset)

    @property
    def is_connected(self) -> bool:
        """Whether the log comes in."""
        return self._link is not None and self._link.is_open

    def aim(self, ha_address: str | None, master_address: str | None) -> None:
        """Says whom to copy; nobody without an address. A connection to somebody else ends.

        Args:
            ha_address: the master's replication port, ``host:port``.
            master_address: its ordinary port. Without it the usual one is taken, the number before the other.
        """
        target = Target(ha_address, master_address or _usual_address(ha_address)) if ha_address else None
        if target == self.target:
            return
        self.target = target
        self._aimed.set()
        if self._link is not None:
            self._link.end(ConnectionLostError("there is another master to copy now"))

    async def start(self) -> None:
        if self.state is not State.STOPPED:
            return
        self.state = State.SEEKING
        self._tasks.spawn(self._run(), "connection")
        self._tasks.every(self._tick_seconds, self._tick, "heartbeats")
        self._tasks.every(_LOOK_SECONDS, self._look, "the master's end")

    async def close(self) -> None:
        """Ends the connection; ``start`` begins again."""
        await self._tasks.close()
        if self._link is not None:
            self._link.end(None)
            self._link = None
        self.state = State.STOPPED
        self.trouble = None

    # -- from one connection to the next -----------------------------------------------------

    async def _run(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while True:
            self._aimed.clear()
            if self.target is None:
                self._note(
                    State.SEEKING, "no name server has said where the master's log can be copied from yet"
                )
                await self._aimed.wait()
                continue
            before = self._meter.total
            try:
                await self._follow(self.target)
            except (CopyRefusedError, DamagedCopyError) as error:
                self._note(State.REFUSED, str(error))
                pause = _LONGEST_PAUSE_SECONDS
            except RocketMQError as error:
                self._note(State.SEEKING, str(error))
            except AssertionError:
                raise
            except Exception as error:
                log.exception("copying the log failed and goes on")
                self._note(State.SEEKING, repr(error))
                pause = _LONGEST_PAUSE_SECONDS
            if self._meter.total > before and self.state is not State.REFUSED:
                pause = _FIRST_PAUSE_SECONDS
            try:
                async with asyncio.timeout(pause):
                    await self._aimed.wait()
                pause = _FIRST_PAUSE_SECONDS
            except TimeoutError:
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _note(self, state: State, trouble: str | None) -> None:
        if trouble is not None and trouble != self.trouble:
            log.log(logging.ERROR if state is State.REFUSED else logging.WARNING, "%s: %s", state, trouble)
        self.state, self.trouble = state, trouble

    async def _follow(self, target: Target) -> None:
        """One connection, from its beginning to its end; always raises what ended it."""
        host, port = split_address(target.ha_address)
        dialect = self.dialect()
        link: asyncio.Protocol
        if (context := self._tls()) is None:
            link = await self._network.connect(
                lambda: MasterLink(self, dialect), host, port, _CONNECT_SECONDS
            )
        else:
            link = await connect_tls(
                self._network, lambda: MasterLink(self, dialect), host, port, _CONNECT_SECONDS, context
            )
        assert isinstance(link, MasterLink)
        if self.target != target:  # connecting takes its time, and `aim` could not end what was not there yet
            link.end(None)
            raise ConnectionLostError("there is another master to copy now")
        self._link = link
        # Half a record is given up: from another master its rest may be that of another record.
        self._store.forget_partial()
        opening = asyncio.ensure_future(dialect.open(link))
        try:
            waits: list[asyncio.Future[Any]] = [opening, link.ended]
            await asyncio.wait(waits, timeout=_OPEN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                await opening
                link.is_open = True
                self._note(State.CATCHING_UP, None)
                log.info(
                    "copying the log of %s (%s) from %d on, which ends at %d",
                    target.master_address,
                    target.ha_address,
                    self._store.received_offset,
                    self.master_end,
                )
                self.took(link)  # what came before we were told that it may
            elif not link.ended.done():
                raise RequestTimeoutError(
                    f"{target.ha_address} and {target.master_address} did not say within {_OPEN_SECONDS:g} s "
                    "whether our log continues theirs"
                )
            raise await link.ended
        finally:
            opening.cancel()
            link.end(None)
            if self._link is link:
                self._link = None

    async def _agree(self) -> int:
        assert self.target is not None
        report, found = await agreement.agree(
            self._store,
            self._pool,
            self.target.master_address,
            last_file_only=self._live.now.sync_from_last_file,
        )
        self.master_end = found.end
        return report

    # -- what comes --------------------------------------------------------------------------

    def take(self, piece: LogPiece) -> int:
        """Stores the first bytes of a piece of the log, as many as are done in a few milliseconds; for a link.

        Raises:
            StoreError: it does not fit, is damaged, or the disk refused it.
            RemoteProtocolError: the master speaks of another place than the end of our log.
        """
        offset, data = piece
        if not data:
            received = self._store.received_offset
            if received and offset != received:
                raise RemoteProtocolError(
                    f"the master would go on at {offset}, and our log ends at {received}: the next connection looks why"
                )
            return 0
        grown = self._store.receive(offset, data[:_PIECE_BYTES], self.report)
        if grown:
            self._arrived(grown)
        taken = self._store.received_offset - offset
        self._meter.add(taken)
        return taken

    def took(self, link: MasterLink) -> None:
        """A turn of taking in is over; for a link."""
        if link.is_open:
            received = self._store.received_offset
            link.report(received)
            self._judge(received)

    def report(self) -> None:
        """The log has what came: the master hears of it before queue entries are made, because sends wait for it."""
        if self._link is not None and self._link.is_open:
            self._link.report(self._store.received_offset)

    def _judge(self, received: int) -> None:
        if received > self.master_end:
            self.master_end = received
        state = State.FOLLOWING if received >= self.master_end else State.CATCHING_UP
        # Whoever has caught up once stays so: the master's end is known a little late.
        if state is State.FOLLOWING or self.state is not State.FOLLOWING:
            self.state = state

    def read_some(self) -> None:
        self.last_read_ms = self._clock.wall_ms()

    def wrote_some(self) -> None:
        self.last_write_ms = self._clock.wall_ms()

    @property
    def now(self) -> float:
        return self._clock.monotonic()

    # -- what the clock does -----------------------------------------------------------------

    def _tick_seconds(self) -> float:
        config = self._live.now
        shortest = min(config.ha_send_heartbeat_interval, config.ha_housekeeping_interval) / 1000
        return min(1.0, max(0.005, shortest / _TICKS))

    def _tick(self) -> None:
        link, config = self._link, self._live.now
        if link is None or not link.is_open:
            return
        silent = config.ha_housekeeping_interval / 1000
        if self.now - link.last_read > silent:
            link.end(
                ConnectionLostError(
                    f"the master said nothing for {config.ha_housekeeping_interval} ms (haHousekeepingInterval)"
                )
            )
        elif self.now - link.last_write >= config.ha_send_heartbeat_interval / 1000:
            link.report(self._store.received_offset, again=True)

    async def _look(self) -> None:
        """Looks whether our log still continues the master's.

        Apache's masters never say that they have deleted what we need, or that they have less than we have.
        What comes may also be another log than the one that was asked about: haMasterAddress may name one broker, and
        the name servers another as the master. So our last record is compared from time to time.
        """
        link, target = self._link, self.target
        if link is None or not link.is_open or target is None:
            return
        before, last = self._store.received_offset, self._store.last_record()
        same = True
        try:
            begin, end = await agreement.bounds(self._pool, target.master_address)
            if last is not None and last[0] != link.compared and begin <= last[0] and before <= end:
                same = await agreement.record_of(self._pool, target.master_address, last[0]) == last[1]
                link.compared = last[0]
        except RocketMQError:
            return  # the stream itself shows whether it lives
        if link is not self._link or not link.is_open:
            return
        self.master_end = max(end, self._store.received_offset)
        verdict = None
        if not same:
            verdict = agreement.Verdict.DIFFERENT
        elif before > end:
            verdict = agreement.Verdict.AHEAD
        elif 0 < self._store.received_offset < begin:
            verdict = agreement.Verdict.BEHIND
        if verdict is not None:
            place = last[0] if last is not None and not same else None
            problem = agreement.Agreement(verdict, before, begin, end, place).problem(target.master_address)
            link.end(CopyRefusedError(problem or ""))
        elif self.lag > self._live.now.ha_max_gap_not_in_sync:
            self.state = State.CATCHING_UP


def _usual_address(ha_address: str) -> str:
    """The ordinary port that belongs to a replication port; nothing if that is no address, as connecting will say."""
    try:
        host, port = split_address(ha_address)
    except ConfigError:
        return ""
    return f"{host}:{port - 1}"
