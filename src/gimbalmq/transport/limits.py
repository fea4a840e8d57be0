"""What a server takes from its peers, and what they have made it keep so far.

One ``Load`` counts for all connections of a server, however many ports it has. A limit that is reached slows a
peer down (nothing more is read from it) if that is enough. A connection is closed only if it cannot be slowed
down: one too many, one whose frame does not get on, one whose peer does not read what it is sent.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections import deque
from dataclasses import dataclass
from heapq import nsmallest
from typing import TYPE_CHECKING

from gimbalmq._clock import SYSTEM_CLOCK, Clock
from gimbalmq._options import Configuration, option
from gimbalmq.protocol.frames import MAX_FRAME_BYTES
from gimbalmq.transport.descriptors import budget

if TYPE_CHECKING:
    from gimbalmq.transport.channel import Channel

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 20_000
"""Unless told otherwise; each takes some 10 KB, however many files the process may open."""

LOOPBACK_RESERVE = 16
"""Connections beyond the limit that this machine still gets: whoever looks after a full server must get in."""

TURN_SECONDS = 0.005
"""Requests of one connection are handled for so long, then it is the others' turn; and if many connections have some
at once, those of all together, then it is the turn of everything else."""

_CROWD = 2
"""From this connection of a turn on the clock is looked at: a lone one must not pay for it. The first, those that the
clock allows and the last one take at most three times TURN_SECONDS together."""

SLOWEST_BYTES_PER_SECOND = 65_536
"""A large frame may take so much longer than a small one."""

MAX_HEADER_BYTES = 1_048_576
"""A header is decoded in one go on the loop; the longest of a real request (properties of 32 KB) is far below."""

SMALL_FRAME_BYTES = 65_536
"""A frame up to this size never waits for others."""

_AHEAD = 8
_LOOK_SECONDS = 1.0
_STILL_SECONDS = 5.0
_GRACE_SECONDS = 2.0
_PRESSED_BYTES_PER_SECOND = 262_144
"""While others wait for room, an unfinished frame gets on at this rate at least, and never stands still for long."""

_SMALL_ANSWER_BYTES = 32_768

_LARGE_AT_ONCE = 8
"""Large answers that are being made at a time; each may have some MB."""

_COMPLAIN_SECONDS = 10.0
_COMPLAIN_LINES = 20


@dataclass(frozen=True, kw_only=True)
class ServerLimits(Configuration):
    """Options of servers, name server and broker alike. Only the idle time and the frame's length are Apache's.

    One address gets half of all connections unless told otherwise: a thousand clients behind one router fit, and
    yet no single machine keeps all others out. The loopback is exempt, for proxies and for development.
    """

    server_max_connections: int = option(
        0,
        "most connections; 0 means 20,000. Never more than there are files to open",
        between=(0, 1_000_000),
        fixed=True,
    )
    max_connections_per_address: int = option(
        0,
        "connections from one address other than the loopback; 0 means half of all",
        between=(0, 1_000_000),
        fixed=True,
    )
    server_channel_max_idle_time_seconds: float = option(
        120,
        "s without a byte either way after which a connection is closed",
        between=(1, 86_400),
        fixed=True,
    )
    server_frame_timeout_millis: float = option(
        30_000,
        "ms for a connection's first frame, and for any; 64 KB of a frame get 1 s more",
        between=(100, 3_600_000),
        fixed=True,
    )
    frame_max_length: int = option(
        MAX_FRAME_BYTES,
        "largest frame in bytes; Apache's is a system property, com.rocketmq.remoting.frameMaxLength. A connection "
        "with as many bytes of requests being worked on has no more of them read",
        between=(65_536, MAX_FRAME_BYTES),
        fixed=True,
    )
    max_partial_frame_bytes: int = option(
        32 * 1024 * 1024,
        "bytes of all unfinished frames together, and as many of all requests being worked on; beyond, large ones "
        "wait, and who stands still within one is closed",
        between=(MAX_FRAME_BYTES, 1 << 40),
        fixed=True,
    )
    max_pending_write_bytes: int = option(
        96 * 1024 * 1024,
        "bytes that wait for all peers to read; from three quarters on, answers to pulls are small; beyond, who has "
        "not read for longest is closed",
        between=(MAX_FRAME_BYTES, 1 << 40),
        fixed=True,
    )
    max_pending_write_bytes_per_connection: int = option(
        32 * 1024 * 1024,
        "bytes that wait for one peer to read; beyond, it is closed",
        between=(MAX_FRAME_BYTES, 1 << 40),
        fixed=True,
    )
    max_requests_in_flight: int = option(
        65_536,
        "requests being worked on; beyond, nothing is read of whoever has some of them",
        between=(1, 10_000_000),
        fixed=True,
    )
    max_requests_in_flight_per_connection: int = option(
        4096,
        "the same for one connection",
        between=(1, 1_000_000),
        fixed=True,
    )


class Load:
    """What the peers of one server have made it keep.

    Attributes:
        limits: in force.
        connections: open now.
        partial_bytes: in unfinished frames.
        waiting_bytes: not yet taken by slow readers; never below the truth.
        in_flight: requests that are being worked on.
        in_flight_bytes: what they keep of what came.
        held_bytes: what was read of requests that wait for a turn of the loop.
        large: whoever makes a large answer holds it.
    """

    def __init__(
        self,
        limits: ServerLimits | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.limits = limits or ServerLimits()
        wanted = self.limits.server_max_connections or MOST_CONNECTIONS
        allowed = budget()
        self.most_connections = min(wanted, allowed.connections)
        self._remedy = (
            f"see serverMaxConnections, and the limit of open files (ulimit -n), which is {allowed.limit}"
        )
        self.most_per_address = self.limits.max_connections_per_address or max(1, self.most_connections // 2)
        self.now = clock.monotonic
        self.connections = 0
        self.partial_bytes = 0
        self.waiting_bytes = 0
        self.in_flight = 0
        self.in_flight_bytes = 0
        self.held_bytes = 0
        self.large = asyncio.Semaphore(_LARGE_AT_ONCE)
        self._by_address: dict[str, int] = {}
        self._partial: dict[Channel, int] = {}
        """Connections with an unfinished frame; the one that began first stands first."""
        self._slowed: dict[Channel, None] = {}
        """Those of them of which nothing is read."""
        self._ahead: dict[Channel, float] = {}
        """Those that go on although there are too many bytes, and until when."""
        self._seen: dict[Channel, tuple[int, float]] = {}
        """While some are slowed down: what the others had at the last look, and since when."""
        self._need_room: dict[Channel, None] = {}
        """Connections whose next request is large and whole, and waits until others are answered."""
        self._offering = False
        self._look: asyncio.Handle | None = None
        self._slow: dict[Channel, int] = {}
        """Connections whose peers do not read; the one that stopped first stands first."""
        self._unflushed: deque[Channel] = deque()
        self._served = 0
        self._turn_ends = 0.0
        self._refused = 0
        self._refusal_logged = -_COMPLAIN_SECONDS
        self._lines = 0
        self._lines_since = -_COMPLAIN_SECONDS

    # -- turns -------------------------------------------------------------------------

    def turn_is_over(self) -> bool:
        """Whether the connections that were served in this turn of the loop took long enough; the others wait.

        Asked before each is served. A crowd that connects and says hello at once would hold the loop for as long as
        it takes to answer them all.
        """
        self._served += 1
        if self._served < _CROWD:
            return False
        if self._turn_ends:
            # If those that wait keep too much already, a long turn is the lesser evil.
            return self.now() > self._turn_ends and self.held_bytes < self.limits.max_partial_frame_bytes
        self._turn_ends = self.now() + TURN_SECONDS
        asyncio.get_running_loop().call_soon(self._next_turn)
        return False

    def _next_turn(self) -> None:
        self._served, self._turn_ends = 0, 0.0

    def flush_soon(self, channel: Channel) -> None:
        """Has the connection write its answers at the end of the turn, if nobody calls ``flush`` before."""
        if not self._unflushed:
            asyncio.get_running_loop().call_soon(self.flush)
        self._unflushed.append(channel)

    def flush(self) -> None:
        """Writes the answers of all connections that have some: for whoever has ended the waits of many at once."""
        unflushed, self._unflushed = self._unflushed, deque()
        try:
            while unflushed:
                unflushed.popleft().flush()
        finally:  # whatever one of them has done, the others are answered
            for channel in unflushed:
                self.flush_soon(channel)

    # -- connections -------------------------------------------------------------------

    def admit(self, host: str) -> bool:
        """Whether another connection from this address is served; if so it is counted, and must be ``left``."""
        local, host = _whose(host)
        theirs = self._by_address.get(host, 0)
        if self.connections >= self.most_connections + (LOOPBACK_RESERVE if local else 0):
            self._refuse(f"there are {self.connections} already; {self._remedy}")
            return False
        if theirs >= self.most_per_address and not local:
            self._refuse(f"{host} has {theirs} already; see maxConnectionsPerAddress")
            return False
        self.connections += 1
        self._by_address[host] = theirs + 1
        return True

    def left(self, host: str) -> None:
        _, host = _whose(host)
        self.connections -= 1
        theirs = self._by_address.pop(host) - 1
        if theirs:
            self._by_address[host] = theirs

    def _refuse(self, why: str) -> None:
        self._refused += 1
        now = self.now()
        if now - self._refusal_logged >= _COMPLAIN_SECONDS:
            log.warning("%d connections refused since the last such line: %s", self._refused, why)
            self._refused = 0
            self._refusal_logged = now

    def may_log(self) -> bool:
        """Whether a connection that is closed for its peer's doing may have a line: many must not fill a disk."""
        now = self.now()
        if now - self._lines_since >= _COMPLAIN_SECONDS:
            if self._lines > _COMPLAIN_LINES:
                log.warning("%d more connections were closed so", self._lines - _COMPLAIN_LINES)
            self._lines, self._lines_since = 0, now
        self._lines += 1
        return self._lines <= _COMPLAIN_LINES

    # -- bytes -------------------------------------------------------------------------

    def partial(self, channel: Channel, size: int, *, anew: bool) -> None:
        """A connection's unfinished frame has so many bytes now.

        If all have too many, large ones wait: nothing is read of them until those nearer to their end are done.

        Args:
            anew: it is another frame than before.
        """
        self.partial_bytes += size - self._partial.get(channel, 0)
        if anew:
            self._partial.pop(channel, None)
            if self._ahead.pop(channel, None) is not None and self._look is not None:
                self._look.cancel()
                self._look = None  # below, at once: the next may go on
            if channel in self._slowed:
                del self._slowed[channel]
                channel.go_on()
        if size:
            self._partial[channel] = size
        if self.partial_bytes > self.limits.max_partial_frame_bytes:
            if size > SMALL_FRAME_BYTES and channel not in self._ahead and channel not in self._need_room:
                self._slowed[channel] = None
                channel.slow_down()
            while self.partial_bytes > 2 * self.limits.max_partial_frame_bytes:
                self._shed_partial()
        if self._slowed and self._look is None:
            self._look = asyncio.get_running_loop().call_soon(self._look_at_partial)

    def _shed_partial(self) -> None:
        """So many connections are slowed down that the little that each had sent before is too much."""
        average = self.partial_bytes / len(self._partial)
        first = next(channel for channel, held in self._partial.items() if held >= average)
        self._forget_partial(first)
        first.give_up(
            f"unfinished frames of all connections exceed {2 * self.limits.max_partial_frame_bytes} bytes "
            "(twice maxPartialFrameBytes), and its own is the oldest of the large ones"
        )

    def _look_at_partial(self) -> None:
        """Lets some go on who had to wait, and closes those who keep them waiting."""
        self._look = None
        if not self._slowed:
            self._seen.clear()
            return
        now = asyncio.get_running_loop().time()
        self._close_still(now)
        room = self.limits.max_partial_frame_bytes - self.partial_bytes
        room -= sum(channel.missing_bytes for channel in self._ahead)
        for channel in nsmallest(_AHEAD, self._slowed, key=lambda channel: channel.missing_bytes):
            missing = channel.missing_bytes
            if self._ahead and missing > room:
                break
            room -= missing
            del self._slowed[channel]
            self._ahead[channel] = now + _GRACE_SECONDS + missing / _PRESSED_BYTES_PER_SECOND
            channel.go_on()
        if self._slowed:
            self._look = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look_at_partial)

    def _close_still(self, now: float) -> None:
        seen, self._seen = self._seen, {}
        for channel, size in list(self._partial.items()):
            if channel in self._slowed or channel in self._need_room or size <= SMALL_FRAME_BYTES:
                continue
            before, since = seen.get(channel, (0, now))
            since = now if before != size else since
            self._seen[channel] = (size, since)
            if now - since > _STILL_SECONDS or now > self._ahead.get(channel, now):
                self._forget_partial(channel)
                channel.give_up(
                    "its unfinished frame does not get on, while others wait because those of all connections exceed "
                    f"{self.limits.max_partial_frame_bytes} bytes (maxPartialFrameBytes)"
                )

    def _forget_partial(self, channel: Channel) -> None:
        self.partial_bytes -= self._partial.pop(channel, 0)
        for table in (self._slowed, self._ahead, self._seen):
            table.pop(channel, None)

    @property
    def is_full(self) -> bool:
        """Requests that are being worked on keep so many bytes that a large one has to wait."""
        return self.in_flight_bytes >= self.limits.max_partial_frame_bytes

    def wait_for_room(self, channel: Channel) -> None:
        """Calls the channel's ``room`` when requests of others are answered; whoever came first is the first."""
        self._need_room[channel] = None

    def freed(self, size: int) -> None:
        """Requests that kept so many bytes are answered."""
        self.in_flight_bytes -= size
        if self._need_room and not self._offering:
            self._offering = True
            asyncio.get_running_loop().call_soon(self._offer_room)

    def _offer_room(self) -> None:
        self._offering = False
        if self._need_room and not self.is_full:
            first = next(iter(self._need_room))
            del self._need_room[first]
            first.room()
            self.freed(0)  # there may be room for the next when it has had its turn

    def waiting(self, channel: Channel, size: int) -> None:
        """So many bytes wait for a peer that does not read; who stopped first is closed if there are too many."""
        limits = self.limits
        self.waiting_bytes += size - self._slow.get(channel, 0)
        if size:
            self._slow[channel] = size
        else:
            self._slow.pop(channel, None)
        if size > limits.max_pending_write_bytes_per_connection:
            self._stop_waiting(channel)
            channel.give_up(
                f"{size} bytes wait for it to read, more than {limits.max_pending_write_bytes_per_connection} "
                "(maxPendingWriteBytesPerConnection)"
            )
        elif self.waiting_bytes > limits.max_pending_write_bytes:
            self._shed()

    def _shed(self) -> None:
        # What has left meanwhile is only counted here: asking each time would cost every writer.
        still: dict[Channel, int] = {}
        reading: dict[Channel, int] = {}
        for channel, before in self._slow.items():
            size = channel.unwritten_bytes
            (reading if size < before else still)[channel] = size
        # Whoever reads, however slowly, is the last to go.
        self._slow = still | reading
        self.waiting_bytes = sum(self._slow.values())
        while self.waiting_bytes > self.limits.max_pending_write_bytes:
            slowest = next(iter(self._slow))
            self._stop_waiting(slowest)
            slowest.give_up(
                f"more than {self.limits.max_pending_write_bytes} bytes (maxPendingWriteBytes) wait for peers that "
                "do not read, and it has not read for longest"
            )

    def _stop_waiting(self, channel: Channel) -> None:
        self.waiting_bytes -= self._slow.pop(channel, 0)

    @property
    def crowded(self) -> bool:
        """Half of what may wait to be written waits: large answers should be smaller now."""
        return self.waiting_bytes > self.limits.max_pending_write_bytes // 2

    @property
    def small_answer_bytes(self) -> int | None:
        """What an answer may have if a quarter is left of what may wait: about as much as the system takes at once."""
        if self.waiting_bytes <= self.limits.max_pending_write_bytes // 4 * 3:
            return None
        return _SMALL_ANSWER_BYTES

    def forget(self, channel: Channel) -> None:
        """A connection is gone."""
        self._forget_partial(channel)
        self._stop_waiting(channel)
        self._need_room.pop(channel, None)

    def kept(self) -> int:
        """Entries of all tables; 0 when no connection is left."""
        return (
            self.connections
            + len(self._by_address)
            + len(self._partial)
            + len(self._slowed)
            + len(self._ahead)
            + len(self._slow)
            + len(self._need_room)
            + self.in_flight
            + self.held_bytes
        )


def _whose(host: str) -> tuple[bool, str]:
    """Whether it is this machine, and as whom it counts: a peer with IPv6 may choose any address of its /64."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False, host
    if address.version == 6 and not address.is_loopback:
        return False, str(ipaddress.ip_network((host, 64), strict=False))
    return address.is_loopback, host
