"""A network in memory: hosts by name, seeded delays and losses, cables that can be cut.

It behaves as TCP does. Bytes arrive in order or not at all; a lost segment shows as a pause (it
is sent again after 0.2 s, 0.4 s, ...), a cut cable as silence until it is mended. Every choice
comes from seeded generators, one for each direction between two hosts, so equal seeds give equal
runs; ``trace`` records them. What happens on one line does not change the luck of another: a
schedule of faults can be cut down, and things done at the same instant in any order.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from typing import Any

from gimbalmq.errors import ConnectError, ListenError

RESEND_SECONDS = 0.2
LONGEST_RESEND_SECONDS = 3.2
HIGH_WATER_BYTES = 256 * 1024
_NOBODY = Context()
"""Segments travel in it: what is under way belongs to neither end."""


class MemoryNetwork:
    """Wires between named hosts.

    Args:
        seed: of all random choices.
        delay: seconds a segment travels, from and to.
        loss: chance that a segment is lost and has to be sent again.

    Attributes:
        slow: seconds that a segment travels on single lines, by (from, to), instead of ``delay``.
        trace: (time, from, to, what) of everything that arrived.
    """

    def __init__(
        self, seed: int = 0, *, delay: tuple[float, float] = (0.0002, 0.001), loss: float = 0.0
    ) -> None:
        self.seed = seed
        self.delay = delay
        self.loss = loss
        self.slow: dict[tuple[str, str], tuple[float, float]] = {}
        self.trace: list[tuple[float, str, str, str]] = []
        self._random: dict[tuple[str, str], random.Random] = {}
        self._listeners: dict[tuple[str, int], _MemoryListener] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._tears: dict[str, float] = {}
        self._stopped: set[str] = set()
        self._wires: dict[_Wire, None] = {}  # a set that keeps its order
        self._next_port = 40_000

    def host(self, name: str) -> HostNetwork:
        """The network as one host sees it; give it to the servers and clients that live there."""
        return HostNetwork(self, name)

    def cut(self, one: Iterable[str] | str, other: Iterable[str] | str, *, one_way: bool = False) -> None:
        """Parts two hosts (or two sets of them): what is sent waits, connecting times out.

        Args:
            one_way: only what ``one`` sends does not arrive.
        """
        for source, target in _pairs(one, other):
            self._cuts.add((source, target))
            if not one_way:
                self._cuts.add((target, source))

    def mend(self) -> None:
        """Removes all cuts; what waited goes on its way."""
        self._cuts.clear()
        for wire in list(self._wires):
            wire.wake()

    def reset(self, host: str) -> None:
        """Breaks every connection of a host, as a crash of it would."""
        for wire in list(self._wires):
            if host in (wire.source, wire.target):
                wire.sender.break_now()

    def vanish(self, host: str) -> None:
        """Ends every connection of a host as a loss of power does: whoever sends something there hears of it."""
        for wire in list(self._wires):
            if wire.source == host:
                wire.sender.has_vanished = True
                wire.sender.break_now()

    def tear(self, host: str, share: float = 0.5) -> None:
        """Breaks the connection on which the next bytes to or from a host arrive, after this share of them."""
        self._tears[host] = share

    def stop(self, host: str) -> None:
        """A host takes nothing in, as one whose process was stopped: what is sent to it waits."""
        self._stopped.add(host)

    def go_on(self, host: str) -> None:
        self._stopped.discard(host)
        for wire in list(self._wires):
            if wire.target == host:
                wire.wake()

    def is_stopped(self, host: str) -> bool:
        return host in self._stopped

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cuts

    # -- for the parts below ---------------------------------------------------------

    def travel_seconds(self, source: str, target: str) -> float:
        line = (source, target)
        rng = self._random.get(line)
        if rng is None:
            rng = self._random[line] = random.Random(f"{self.seed} {source} {target}")
        seconds = rng.uniform(*self.slow.get(line, self.delay))
        pause = RESEND_SECONDS
        while self.loss and rng.random() < self.loss:
            seconds += pause
            pause = min(2 * pause, LONGEST_RESEND_SECONDS)
        return seconds

    def torn(self, source: str, target: str) -> float | None:
        """The share of a segment that arrives if its connection is to break now."""
        for host in (source, target):
            if host in self._tears:
                return self._tears.pop(host)
        return None

    def note(self, source: str, target: str, what: str) -> None:
        self.trace.append((asyncio.get_running_loop().time(), source, target, what))

    def free_port(self) -> int:
        self._next_port += 1
        return self._next_port


class HostNetwork:
    """A ``transport.network.Network`` for one host of a MemoryNetwork."""

    def __init__(self, whole: MemoryNetwork, name: str) -> None:
        self._whole = whole
        self.name = name

    async def connect(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int, timeout: float
    ) -> asyncio.Protocol:
        whole = self._whole
        if whole.is_cut(self.name, host) or whole.is_cut(host, self.name):
            await asyncio.sleep(timeout)
            raise ConnectError(f"{host}:{port} did not accept a connection within {timeout:g} s")
        seconds = whole.travel_seconds(self.name, host)
        await asyncio.sleep(min(seconds, timeout))
        if seconds > timeout:
            raise ConnectError(f"{host}:{port} did not accept a connection within {timeout:g} s")
        listener = whole._listeners.get((host, port))
        if listener is None:
            whole.note(self.name, host, f"refused {port}")
            raise ConnectError(f"cannot connect to {host}:{port}: connection refused")
        whole.note(self.name, host, f"connected {port}")
        here, there = factory(), listener.factory()
        mine = (self.name, whole.free_port())
        near = MemoryTransport(here, mine, (host, port), copy_context())
        far = MemoryTransport(there, (host, port), mine, listener.context.copy())
        near.join(_Wire(whole, near, far, self.name, host))
        far.join(_Wire(whole, far, near, host, self.name))
        far.run(there.connection_made, far)
        here.connection_made(near)
        return here

    async def listen(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> _MemoryListener:
        port = port or self._whole.free_port()
        address = (self.name, port)
        if address in self._whole._listeners:
            raise ListenError(f"cannot listen on {self.name}:{port}: address already in use")
        listener = _MemoryListener(self._whole, address, factory)
        self._whole._listeners[address] = listener
        return listener


class _MemoryListener:
    def __init__(
        self, whole: MemoryNetwork, address: tuple[str, int], factory: Callable[[], asyncio.Protocol]
    ) -> None:
        self._whole = whole
        self._address = address
        self.factory = factory
        self.context = copy_context()

    @property
    def port(self) -> int:
        return self._address[1]

    def close(self) -> None:
        self._whole._listeners.pop(self._address, None)


class _Wire:
    """One direction of a connection: segments under way, in order."""

    def __init__(
        self,
        whole: MemoryNetwork,
        sender: MemoryTransport,
        receiver: MemoryTransport,
        source: str,
        target: str,
    ) -> None:
        self.whole = whole
        self.sender = sender
        self.receiver = receiver
        self.source = source
        self.target = target
        self.bytes_under_way = 0
        self._segments: deque[tuple[float, bytes | Exception | None]] = deque()
        self._last_due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        whole._wires[self] = None

    def put(self, segment: bytes | Exception | None) -> None:
        """Sends bytes, the end of the stream (None) or its breaking (an exception)."""
        loop = asyncio.get_running_loop()
        self._last_due = max(
            self._last_due, loop.time() + self.whole.travel_seconds(self.source, self.target)
        )
        self._segments.append((self._last_due, segment))
        if isinstance(segment, bytes):
            self.bytes_under_way += len(segment)
        if self._timer is None:
            self._timer = loop.call_at(self._last_due, self._arrive, context=_NOBODY)

    def wake(self) -> None:
        if self._segments and self._timer is None:
            loop = asyncio.get_running_loop()
            due = max(loop.time(), self._segments[0][0])
            self._timer = loop.call_at(due, self._arrive, context=_NOBODY)

    def drop_all(self) -> None:
        self._segments.clear()
        self.bytes_under_way = 0

    def _arrive(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        while (
            self._segments
            and self._segments[0][0] <= now
            and not self.whole.is_cut(self.source, self.target)
            and not self.whole.is_stopped(self.target)
            and (self.receiver.is_reading() or self.receiver.is_closing())
        ):
            segment = self._segments.popleft()[1]
            if isinstance(segment, bytes):
                self.bytes_under_way -= len(segment)
                if self.receiver.has_vanished:
                    self.whole.note(self.target, self.source, "unknown connection")
                    self.sender.break_now()
                    return
                share = self.whole.torn(self.source, self.target) if self.whole._tears else None
                if share is not None:
                    self._tear(segment[: int(share * len(segment))])
                    return
                self.whole.note(self.source, self.target, f"{len(segment)} bytes")
                self.receiver.receive(segment)
                self.sender.drained(self.bytes_under_way)
            else:
                self.whole.note(self.source, self.target, "end" if segment is None else "broken")
                self.receiver.ended(segment)
                self.drop_all()
                self.whole._wires.pop(self, None)
        if self._segments and self._segments[0][0] > now:
            self.wake()

    def _tear(self, part: bytes) -> None:
        self.whole.note(self.source, self.target, f"torn after {len(part)} bytes")
        if part:
            self.receiver.receive(part)
        self.sender.break_now()
        self.receiver.break_now()


class MemoryTransport(asyncio.Transport):
    """One end of a connection in memory.

    Args:
        context: what the protocol is called in: that of whoever connected or listened, not of the other end.
    """

    def __init__(
        self,
        protocol: asyncio.Protocol,
        here: tuple[str, int],
        peer: tuple[str, int],
        context: Context,
    ) -> None:
        super().__init__({"sockname": here, "peername": peer})
        self._protocol = protocol
        self._context = context
        self._wire: _Wire | None = None
        self._reading = True
        self._closing = False
        self._lost = False
        self._paused_writer = False
        self.has_vanished = False
        self._high, self._low = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4

    def join(self, wire: _Wire) -> None:
        self._wire = wire

    def run(self, callback: Callable[..., object], *args: object) -> object:
        return self._context.copy().run(callback, *args)

    def _lose_soon(self, error: Exception | None) -> None:
        asyncio.get_running_loop().call_soon(self._lose, error, context=self._context)

    # -- asyncio.Transport -----------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._closing or not data:
            return
        assert self._wire is not None
        self._wire.put(bytes(data))
        if self._wire.bytes_under_way > self._high and not self._paused_writer:
            self._paused_writer = True
            self._protocol.pause_writing()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._send_last(None)
            self._wake_peer()
            self._lose_soon(None)

    def abort(self) -> None:
        if not self._lost:
            if not self._closing:
                self._closing = True
                if self._wire is not None:
                    self._wire.drop_all()
                self._send_last(ConnectionResetError("reset by the peer"))
                self._wake_peer()
            self._lose_soon(None)

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._wake_peer()

    def _wake_peer(self) -> None:
        """What the peer has sent goes on: it is read now, or falls into the void of a connection that is closed."""
        back = None if self._wire is None else self._wire.receiver._wire
        if back is not None:
            back.wake()

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def get_write_buffer_size(self) -> int:
        return 0 if self._wire is None else self._wire.bytes_under_way

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        # The system's own buffers take so much before a byte has to be kept here.
        self._high = HIGH_WATER_BYTES + (high or 0)
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def can_write_eof(self) -> bool:
        return False

    # -- the wire's side -------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        if not self._closing:
            self.run(self._protocol.data_received, data)

    def ended(self, error: Exception | None) -> None:
        if error is None and not self._closing and self.run(self._protocol.eof_received):
            return
        if not self._closing:
            self._closing = True
            self._send_last(None)
        self.run(self._lose, error)

    def drained(self, bytes_under_way: int) -> None:
        if self._paused_writer and bytes_under_way <= self._low:
            self._paused_writer = False
            if not self._closing:
                self.run(self._protocol.resume_writing)

    def break_now(self) -> None:
        """Ends this side with a reset that nobody sent."""
        if not self._lost:
            self._closing = True
            if self._wire is not None:
                self._wire.drop_all()
                self._wire.whole._wires.pop(self._wire, None)
            self._lose_soon(ConnectionResetError("the connection broke"))

    def _send_last(self, segment: Exception | None) -> None:
        if self._wire is not None:
            self._wire.put(segment)

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            self._protocol.connection_lost(error)


def _pairs(one: Iterable[str] | str, other: Iterable[str] | str) -> list[tuple[str, str]]:
    left = [one] if isinstance(one, str) else list(one)
    right = [other] if isinstance(other, str) else list(other)
    return [(a, b) for a in left for b in right if a != b]
