"""One live connection, either role: bytes through frames to handlers and waiting calls.

Both ends of a RocketMQ connection may ask and answer, so client and server share this class
and differ only in the handlers they give it.

What makes it fast: all frames of one socket read, and of those that follow it at once, are
handled in one go, and their answers leave in one write. Requests of a code with a *batch
handler* are given to it as raw frames, a run at a time, so that a broker can append a hundred
sends with one system call; the code is read off the header's first bytes without decoding it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from functools import wraps
from operator import itemgetter
from typing import Any, Protocol, cast

from gimbalmq.errors import (
    AccessRefusedError,
    ConnectError,
    ConnectionLostError,
    LocalProtocolError,
    OverloadedError,
    ProtocolError,
    RemoteProtocolError,
    RequestTimeoutError,
    ResponseError,
    StoreError,
    TransportError,
)
from gimbalmq.protocol.codes import ResponseCode
from gimbalmq.protocol.command import JSON_HEADER, ONEWAY_FLAG, RESPONSE_FLAG, RemotingCommand
from gimbalmq.protocol.frames import Frame, FrameReader
from gimbalmq.protocol.pending import PendingCalls
from gimbalmq.protocol.serializers import decode_command, encode_frame
from gimbalmq.transport.limits import (
    MAX_HEADER_BYTES,
    SLOWEST_BYTES_PER_SECOND,
    SMALL_FRAME_BYTES,
    TURN_SECONDS,
    Load,
)
from gimbalmq.transport.network import give_up_after
from gimbalmq.transport.tls import (
    HANDSHAKE_BYTE,
    HANDSHAKE_SECONDS,
    PeerCertificate,
    ServerTls,
    TlsMode,
    TlsPipe,
)

log = logging.getLogger(__name__)

Answer = RemotingCommand | None
Handler = Callable[["Channel", RemotingCommand], Answer | Awaitable[Answer]]
BatchHandler = Callable[["Channel", list[Frame]], int]
"""Returns how many of the frames it has handled, at least one: what takes long may leave the rest for another turn."""

MAX_CALLS_IN_FLIGHT = 65_535
"""Unanswered calls of one connection, each direction (Java: clientAsyncSemaphoreValue)."""

FLUSH_BYTES = 262_144
"""Answers of one turn leave early once there are this many bytes of them."""

REQUEST_BYTES = 32_768
"""Calls of one turn leave early once there are this many bytes of them: the peer begins while more are made."""

GATHER_BYTES = 65_536
"""From so many bytes on the kernel is given the parts as they are: joining them would cost more."""

_FAREWELL_SECONDS = 1.0
"""A peer that is closed for its fault has so long to read why."""

_CANCEL_AGAIN_SECONDS = 1.0
"""asyncio.wait_for of Python 3.11 may swallow a cancellation."""

_RUN_FRAMES = 512
"""A batch handler gets so many frames at once: it must be done before the others' turn comes."""

_FULL_READ = 256_000
"""So many bytes uvloop reads at once, and asyncio a few more: there is more to read then, mostly."""

_GATHERED_BYTES = 1_000_000
"""So many bytes that were read in one go are handled together at most."""

_FEW_FRAMES = 16
"""Whoever writes no more of them at a time waits for their answers."""

_ANSWERS_PER_TURN = 64
"""So many answers that waited for a slow peer are made in one turn."""

_MOST_REFUSALS = 16
"""So many answers to requests that a known user may not send wait at a time; they must not use up what a server works
on at once."""

_BUSY = "[OVERLOAD]system busy, start flow control for a while"


class Waiter(Protocol):
    """Who waits for an answer; a future is one, and so is whoever wants it without a turn of the loop between."""

    def done(self) -> bool:
        """Whether the answer is no longer wanted."""

    def set_result(self, result: RemotingCommand, /) -> None: ...

    def set_exception(self, exception: TransportError, /) -> None: ...


class RequestGate(Protocol):
    """Who looks at every request of a server before anything else does."""

    def check(self, channel: Channel, command: RemotingCommand, /) -> None:
        """Returns if the request may go to its handler; raises what its peer is told if it may not."""

    def refused(self, channel: Channel, command: RemotingCommand, remark: str, /) -> None:
        """A handler has refused what the gate has let pass."""


class Handlers:
    """What a connection does with requests; shared by all connections of a server or client."""

    def __init__(self, *, answer_unknown: bool = True) -> None:
        self.by_code: dict[int, Handler] = {}
        self.batches: dict[bytes, BatchHandler] = {}
        """By the three bytes behind ``{"code":`` in a JSON header."""
        self.singles: set[bytes] = set()
        """Those of them whose handlers take one frame at a time."""
        self.gate: RequestGate | None = None
        """Asked before every request, also those of codes that nobody handles."""
        self.checking: dict[bytes, BatchHandler] = {}
        """Those batch handlers that ask the gate themselves. While there is a gate, no other one is given frames."""
        self.large: set[int] = set()
        """Codes whose requests a connection has one of at a time."""
        self.opened: Callable[[Channel], None] | None = None
        self.closed: Callable[[Channel], None] | None = None
        self.answer_unknown = answer_unknown
        """Servers refuse unknown codes; clients pass over them in silence."""
        self._completed: set[int] = set()
        self._unfinished: set[asyncio.Task[None]] = set()

    def add(self, code: int, handler: Handler, *, completes: bool = False, large: bool = False) -> None:
        """Requests of this code go to ``handler``.

        Args:
            completes: what the handler has begun to change is changed as a whole, even if the connection ends
                meanwhile. What only answers ends with the connection.
            large: its answer or its work is. A connection has one of them begun at a time, and only when the peer
                has read what came before; others of the server wait for their turn.
        """
        assert code not in self.by_code, f"request code {code} has a handler already"
        assert not (completes and large), "what waits for its peer to read may wait for ever"
        self.by_code[code] = handler
        if completes:
            self._completed.add(code)
        if large:
            self.large.add(code)

    def owner_of(self, code: int, connection: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
        """Who keeps the task that answers a request: all connections together, or the connection that asked."""
        return self._unfinished if code in self._completed else connection

    async def complete(self, seconds: float) -> None:
        """Waits so long for what must complete, and ends the rest; for servers that close."""
        left = set(self._unfinished)
        if left:
            _, left = await asyncio.wait(left, timeout=seconds)
        while left:
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=_CANCEL_AGAIN_SECONDS)

    def abandon(self) -> None:
        """Ends at once what must complete, as a crash does."""
        for task in self._unfinished:
            task.cancel()

    def add_batch(
        self, code: int, handler: BatchHandler, *, single: bool = False, checks: bool = False
    ) -> None:
        """Raw frames of this code (JSON header only) go to ``handler``, a run at a time.

        ``add`` a plain handler too: it serves the other header encoding.

        Args:
            single: one frame at a time; for large answers, of which a slow peer must not gather many.
            checks: it asks the gate for each frame. Frames of any other go the plain way while there is a gate.
        """
        mark = _mark(code)
        self.batches[mark] = handler
        if checks:
            self.checking[mark] = handler
        if single:
            self.singles.add(mark)

    def take_batches_if(self, code: int, allowed: Callable[[], bool]) -> None:
        """Frames of this code go the plain way as long as ``allowed`` says no."""
        for handlers in (self.batches, self.checking):
            handler = handlers.get(_mark(code))
            if handler is not None:
                handlers[_mark(code)] = _only_if(allowed, handler)


class Channel(asyncio.Protocol):
    """One connection (Java: a Netty channel).

    Attributes:
        address: the peer as ``ip:port``.
        host: the peer's ip alone.
        state: the owner's own notes on this connection.
        load: what the peers of this server have made it keep; None at clients.
        last_active: loop time of the last byte read or written.
    """

    def __init__(
        self,
        handlers: Handlers,
        *,
        server_tls: ServerTls | None = None,
        client_tls: ssl.SSLContext | None = None,
        tls_host: str | None = None,
        load: Load | None = None,
        give_up_seconds: float | None = None,
    ) -> None:
        self._handlers = handlers
        self._give_up_seconds = give_up_seconds
        self.load = load
        if load is None:
            self._reader = FrameReader()
            self._most_in_flight = MAX_CALLS_IN_FLIGHT
        else:
            self._reader = FrameReader(load.limits.frame_max_length, MAX_HEADER_BYTES)
            self._most_in_flight = load.limits.max_requests_in_flight_per_connection
        self._pending: PendingCalls[Waiter] = PendingCalls()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes | memoryview] = []
        self._out_bytes = 0
        self._flush_scheduled = False
        self._left_few = False
        """The last write was of few frames."""
        self._held: list[Frame] = []
        self._held_bytes = 0
        """Of these, if they only wait for a turn of the loop."""
        self._gathers = False
        """They wait for the next read, which is about to come."""
        self._turn_scheduled = False
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._needs_room = False
        """A whole, large frame waits until requests of others are answered."""
        self._reading = True
        self._write_paused = False
        self._unwritten_seen = 0
        self._when_writable: deque[Callable[[], None]] = deque()
        self._frame_since: float | None = None
        """Since when the peer owes us the rest of a frame, its first one included."""
        self._partial_bytes = 0
        self._slowed = False
        self._refusals_waiting = 0
        self._refusals_held = 0
        """Refusals that a peer who has not proved to be anybody waits for; meanwhile it is served nothing else."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._large: asyncio.Lock | None = None
        self._server_tls = server_tls
        self._client_tls = client_tls
        self._tls_host = tls_host
        self._tls: TlsPipe | None = None
        self._certificate: PeerCertificate | None = None
        self._certificate_known = False
        self._handshake_timer: asyncio.TimerHandle | None = None
        self._secured: asyncio.Future[None] | None = None
        self._heard = False
        self._trouble = ""
        self._first_read = server_tls is not None
        self._lost: asyncio.Future[None] | None = None
        self.closed = False
        self.address = "?"
        self.host = "?"
        self.peer_bytes = b"\0" * 8
        """Peer as stored in records: ip (4 or 16 bytes) and port (int32)."""
        self.state: Any = None
        self.last_active = self._opened = 0.0
        self._loop = asyncio.get_running_loop()
        self.next_opaque = self._pending.next_opaque

    # -- asyncio's side --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            host = str(peer[0]).partition("%")[0].removeprefix("::ffff:")
            self.host = host
            self.address = f"{host}:{peer[1]}"
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self.peer_bytes = socket.inet_pton(family, host) + int(peer[1]).to_bytes(4, "big")
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._give_up_seconds is not None:
                give_up_after(sock, self._give_up_seconds)
        if self.load is None:
            self._transport.set_write_buffer_limits(0)  # uvloop keeps less than this until the end of a turn
        self.last_active = self._frame_since = self._opened = self._loop.time()
        if self._client_tls is not None:
            self._start_tls(TlsPipe(self._client_tls, server_side=False, host=self._tls_host))
        if self._handlers.opened is not None:
            self._handlers.opened(self)

    def data_received(self, data: bytes) -> None:
        self.last_active = self._loop.time()
        self._heard = True
        read = len(data)
        try:
            if self._first_read:
                self._first_read = False
                self._detect_tls(data[0])
            if self._tls is not None:
                data = self._decrypt(self._tls, data)
                if not data:
                    return
            before = self._reader.held_bytes
            frames = self._reader.feed(data)
            if self.load is not None and (self._frame_since is not None or self._reader.held_bytes):
                self._note_partial(bool(frames))
            if self._held and not self._gathers:
                self._held += frames
            elif frames or self._held:
                self._gather(frames, before + len(data), read)
        except RemoteProtocolError as error:
            if self._gathers:  # the reads before this one had no fault
                self._turn()
            self._refuse(error)

    def eof_received(self) -> None:
        if self._gathers:
            self._turn()
        if not self._heard and not self._trouble:
            self._trouble = f"it hung up without a word; does it {'speak' if self._tls else 'want'} TLS?"

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
        if self._secured is not None and not self._secured.done():
            self._secured.set_exception(self._insecure())
        for waiter in self._pending.drain():
            if not waiter.done():
                waiter.set_exception(
                    ConnectionLostError(
                        f"the connection to {self.address} broke{self._why()}; the outcome is unknown"
                    )
                )
        for task in self._tasks:
            task.cancel()
        self._out.clear()
        self._held.clear()
        self._when_writable.clear()
        if self.load is not None:
            self.load.forget(self)
            self._note_held(self.load, 0)
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(None)
        if self._handlers.closed is not None:
            self._handlers.closed(self)

    def pause_writing(self) -> None:
        # A peer that does not read its answers gets no more of its requests read. Only servers
        # do this: two ends that both stopped reading until the other reads would wait forever.
        if self.load is None:
            return
        self._write_paused = True
        self._pause_reading()
        self.load.waiting(self, self.unwritten_bytes)

    def resume_writing(self) -> None:
        if not self._write_paused or self.load is None:
            return
        self._write_paused = False
        self.load.waiting(self, 0)
        self._turn()

    # -- our side --------------------------------------------------------------------

    def send(self, command: RemotingCommand) -> None:
        """Writes a command; with others of this turn of the loop if there are any."""
        self.send_bytes(encode_frame(command))

    def send_bytes(self, data: bytes | memoryview) -> None:
        """Writes whole frames that were encoded elsewhere; a frame may come in parts, one after the other."""
        if self.closed:
            return
        self._out.append(data)
        self._out_bytes += len(data)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            if self.load is None:
                self._loop.call_soon(self.flush)
            else:
                self.load.flush_soon(self)

    @property
    def unwritten_bytes(self) -> int:
        """What waits for the peer to read."""
        waiting = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return self._out_bytes + waiting

    def when_writable(self, answer: Callable[[], None]) -> None:
        """Calls ``answer`` now, or later if the peer has yet to read what is written.

        For answers to what was asked long ago: a peer that does not read must not gather them.
        """
        if self._out_bytes > FLUSH_BYTES:
            self.flush()
        if self._write_paused:
            self._when_writable.append(answer)
        else:
            answer()

    @property
    def is_behind(self) -> bool:
        """Whether the peer has yet to read much of what was written."""
        if self._out_bytes > FLUSH_BYTES:
            self.flush()
        return self._write_paused

    async def writable(self) -> None:
        """Returns when the peer has read most of what is written; never if the connection ends before."""
        free: asyncio.Future[None] = self._loop.create_future()
        self.when_writable(lambda: None if free.done() else free.set_result(None))
        await free

    def began(self, requests: int = 1, size: int = 0) -> None:
        """So many requests of this connection will be answered later; ``finished`` must follow.

        Args:
            size: bytes that they keep until then.
        """
        self._in_flight += requests
        self._in_flight_bytes += size
        if self.load is not None:
            self.load.in_flight += requests
            self.load.in_flight_bytes += size

    def finished(self, requests: int = 1, size: int = 0) -> None:
        self._in_flight -= requests
        self._in_flight_bytes -= size
        if self.load is not None:
            self.load.in_flight -= requests
            if size:
                self.load.freed(size)
            if not self._reading and not self._stalled():
                self._schedule_turn()

    async def call(self, command: RemotingCommand, timeout: float) -> RemotingCommand:
        """Sends a request and waits for its answer, whatever its code.

        Raises:
            RequestTimeoutError, ConnectionLostError, OverloadedError.
        """
        return await self.start_call(command, timeout)

    def start_call(self, command: RemotingCommand, timeout: float) -> asyncio.Future[RemotingCommand]:
        """As ``call``, but the request is on its way when this returns."""
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        command.opaque = self.next_opaque()
        self.start_frame(command.opaque, encode_frame(command), timeout, future)
        return future

    def start_frame(self, opaque: int, frame: bytes, timeout: float, waiter: Waiter) -> None:
        """As ``start_call``, with a request that was encoded elsewhere, under a number of ``next_opaque``.

        The waiter hears of the answer as it is read, or why there will be none.
        """
        if self.closed:
            waiter.set_exception(
                ConnectionLostError(f"the connection to {self.address} is closed{self._why()}")
            )
            return
        if len(self._pending) >= self._most_in_flight:
            waiter.set_exception(
                OverloadedError(f"{self._most_in_flight} calls to {self.address} wait for an answer already")
            )
            return
        now = self._loop.time()
        self._pending.add(opaque, waiter, now, timeout)
        if self._timer is None:
            self._set_timer(now + timeout)
        elif now + timeout < self._timer_at:
            self._timer.cancel()
            self._set_timer(now + timeout)
        self.send_bytes(frame)
        # A few callers that wait for their answers are woken together. If their next calls left together, too, the peer
        # would stand still while they are made, and they while it answers: so one half leaves before the other. Whoever
        # makes one call after the other need not wait for a turn of the loop.
        if self._out_bytes > REQUEST_BYTES or (self._left_few and len(self._pending) <= 2 * len(self._out)):
            self.flush()

    def oneway(self, command: RemotingCommand) -> None:
        """Sends a request nobody answers."""
        command.opaque = self.next_opaque()
        command.flag |= ONEWAY_FLAG
        self.send(command)

    def close(self) -> None:
        """Closes after what is written has left."""
        if self._transport is not None and not self.closed:
            self.flush()
            self._say_farewell()
            self._transport.close()

    def abort(self) -> None:
        """Closes at once."""
        if self._transport is not None:
            self._transport.abort()

    async def secured(self, timeout: float) -> None:
        """Returns when the TLS handshake of a connection we made is over; at once on a plain one.

        Raises:
            ConnectError: it failed; the connection is closed.
        """
        if self._tls is None or self._tls.established:
            return
        if self.closed:
            raise self._insecure()
        self._secured = self._loop.create_future()
        try:
            async with asyncio.timeout(timeout):
                await self._secured
        except TimeoutError:
            raise ConnectError(
                f"{self.address} did not finish a TLS handshake within {timeout:g} s; does it speak TLS?"
            ) from None
        finally:
            if not self._tls.established:
                self.abort()

    @property
    def age(self) -> float:
        """Seconds since the connection was made."""
        return self._loop.time() - self._opened

    @property
    def peer_certificate(self) -> PeerCertificate | None:
        """The certificate that the peer has shown and this side has verified; None on a plain connection."""
        if self._tls is None:
            return None
        if not self._certificate_known and self._tls.established:
            self._certificate = self._tls.peer_certificate()
            self._certificate_known = True
        return self._certificate

    @property
    def missing_bytes(self) -> int:
        """Of the unfinished frame, as far as it is known."""
        return self._reader.wanted_bytes

    def slow_down(self) -> None:
        """Nothing is read until ``go_on``."""
        self._slowed = True
        self._pause_reading()

    def go_on(self) -> None:
        self._slowed = False
        self._schedule_turn()

    def give_up(self, why: str) -> None:
        """Closes at once a connection that costs too much."""
        self._note_trouble(why)
        self.abort()

    def _note_trouble(self, why: str) -> None:
        self._trouble = why
        if self.load is None or self.load.may_log():
            log.warning("closing %s: %s", self.address, why)

    def is_idle(self, seconds: float) -> bool:
        """Whether nothing has come or gone for so long."""
        now = self._loop.time()
        if now - self.last_active <= seconds:
            return False
        # A large answer on a slow line leaves bit by bit, and nobody tells us.
        unwritten = self.unwritten_bytes
        if unwritten != self._unwritten_seen:
            self._unwritten_seen = unwritten
            self.last_active = now
            return False
        return True

    def frame_overdue(self, seconds: float) -> bool:
        """Whether the peer has been sending one frame, or nothing at all since it connected, for too long."""
        if self._frame_since is None or not self._reading:
            return False
        reader = self._reader
        longest = seconds + (reader.held_bytes + reader.wanted_bytes) / SLOWEST_BYTES_PER_SECOND
        return self._loop.time() - self._frame_since > longest

    async def wait_closed(self) -> None:
        if not self.closed:
            if self._lost is None:
                self._lost = self._loop.create_future()
            await asyncio.shield(self._lost)

    # -- inside ----------------------------------------------------------------------

    def _detect_tls(self, first_byte: int) -> None:
        assert self._server_tls is not None
        wanted = first_byte == HANDSHAKE_BYTE
        mode, context = self._server_tls.mode, self._server_tls.context
        if wanted and (mode is TlsMode.DISABLED or context is None):
            raise RemoteProtocolError("TLS is not enabled on this server")
        if not wanted and self._server_tls.plain_trouble:
            raise RemoteProtocolError(self._server_tls.plain_trouble)
        if wanted and context is not None:
            self._start_tls(TlsPipe(context, server_side=True))

    def _start_tls(self, pipe: TlsPipe) -> None:
        self._tls = pipe
        self._handshake_timer = self._loop.call_later(HANDSHAKE_SECONDS, self._handshake_overdue)
        if self._server_tls is None and self._transport is not None:
            self._transport.write(pipe.start())

    def _handshake_overdue(self) -> None:
        self._refuse(RemoteProtocolError(f"no TLS handshake within {HANDSHAKE_SECONDS:g} s"))

    def _why(self) -> str:
        return f" ({self._trouble})" if self._trouble else ""

    def _insecure(self) -> ConnectError:
        why = self._trouble or "the connection broke"
        return ConnectError(f"TLS with {self.address} failed: {why}")

    def _decrypt(self, pipe: TlsPipe, data: bytes) -> bytes:
        plain, answer = pipe.receive(data)
        if answer and self._transport is not None:
            self._transport.write(answer)
        if pipe.established and self._handshake_timer is not None:
            self._handshake_timer.cancel()
            self._handshake_timer = None
            if self._secured is not None and not self._secured.done():
                self._secured.set_result(None)
        if pipe.ended:
            # After the answers to what came with the goodbye.
            self._loop.call_soon(self._part)
        return plain

    def _part(self) -> None:
        """The peer has said goodbye. If some of its requests have to wait, the last turn of them closes."""
        if not self._held:
            self.close()

    def _refuse(self, error: RemoteProtocolError) -> None:
        """Closes because of what the peer did, and tells a TLS peer why."""
        if self.closed or self._transport is None or self._transport.is_closing():
            return
        self._note_trouble(str(error))
        if self._tls is None:
            self._transport.abort()
            return
        self._say_farewell()
        self._transport.close()
        self._loop.call_later(_FAREWELL_SECONDS, self._transport.abort)

    def _say_farewell(self) -> None:
        if self._tls is not None and self._transport is not None and not self._transport.is_closing():
            last = self._tls.farewell()
            if last:
                self._transport.write(last)

    def _gather(self, frames: list[Frame], size: int, read: int) -> None:
        """Handles frames, or keeps them for the read that follows at once, if the run that they begin may go on there.

        A run costs about as much as a hundred messages, however short it is, and messages of a kilobyte fill a read
        with fewer than two hundred.
        """
        if self._gathers:
            self._held += frames
            frames, size = self._held, size + self._held_bytes
        self._gathers = (
            self.load is not None
            and read >= _FULL_READ
            and len(frames) < _RUN_FRAMES
            and size < _GATHERED_BYTES
        )
        if self.load is not None and self._gathers:
            self._held = frames
            self._note_held(self.load, size)
            self._schedule_turn()
        else:
            self._handle(frames, size)

    def _handle(self, frames: list[Frame], size: int) -> None:
        """Frames that were read, and so many bytes with them."""
        load = self.load
        if load is not None:
            if load.turn_is_over():
                self._held = frames
                self._note_held(load, size)
                self._rest()
                return
            if self._held_bytes:
                self._note_held(load, 0)
        handlers = self._handlers
        batches = handlers.batches if handlers.gate is None else handlers.checking
        singles = handlers.singles
        # Answers given meanwhile gather in _out and leave together below.
        self._flush_scheduled = True
        self._held = []
        try:
            position, count = 0, len(frames)
            marks: list[bytes] = []
            ends = load.now() + TURN_SECONDS if load is not None and count > 1 else 0.0
            while position < count and not self.closed:
                if self._out_bytes > FLUSH_BYTES:
                    self.flush()
                    self._flush_scheduled = True
                # Most connections have nothing under way: they are not even asked whether they have to wait.
                waits = self._in_flight or self._write_paused or self._needs_room
                if load is not None and ((waits and self._stalled()) or (position and load.now() > ends)):
                    self._held = frames[position:]
                    break
                frame = frames[position]
                # The handler checks the code it decodes; this only guesses, without decoding.
                mark = frame[1][8:11] if batches and frame[0] == JSON_HEADER else b""
                batch = batches.get(mark) if mark else None
                if batch is None:
                    if (
                        load is not None
                        and len(frame[2]) > SMALL_FRAME_BYTES
                        and self._must_wait(load, frame)
                    ):
                        self._held = frames[position:]
                        break
                    self.handle_frame(frame)
                    position += 1
                    continue
                start = position
                position += 1
                if mark not in singles:
                    if not marks:
                        marks = list(map(_MARK_OF, map(_HEADER_OF, frames)))
                    alike = marks[start : start + _RUN_FRAMES]
                    position += len(alike) - 1
                    if alike.count(mark) < len(alike):
                        position = start + next(n for n, other in enumerate(alike) if other != mark)
                position = start + batch(self, frames[start:position] if position - start < count else frames)
        finally:
            self.flush()
            if load is not None and (self._held or self._in_flight or self._write_paused):
                self._rest()

    def _note_held(self, load: Load, size: int) -> None:
        load.held_bytes += size - self._held_bytes
        self._held_bytes = size

    def _note_partial(self, completed: bool) -> None:
        """Keeps the count of unfinished bytes, and since when they are."""
        load, held = self.load, self._reader.held_bytes
        assert load is not None
        if completed:
            self._frame_since = self.last_active if held else None
        elif self._frame_since is None:
            self._frame_since = self.last_active
        if held != self._partial_bytes:
            self._partial_bytes = held
            load.partial(self, held, anew=completed or not held)

    def _must_wait(self, load: Load, frame: Frame) -> bool:
        """Whether a large frame has to wait because requests that are being worked on keep too many bytes."""
        if not load.is_full or decode_command(frame[0], frame[1], b"").flag & RESPONSE_FLAG:
            return False
        self._needs_room = True
        load.wait_for_room(self)
        self._partial_bytes = self._reader.held_bytes + len(frame[2])
        load.partial(self, self._partial_bytes, anew=True)
        return True

    def room(self) -> None:
        """What ``Load.wait_for_room`` waits for."""
        self._needs_room = False
        if self.load is not None:
            self._partial_bytes = self._reader.held_bytes
            self.load.partial(self, self._partial_bytes, anew=True)
        self._schedule_turn()

    def _stalled(self) -> bool:
        """Whether no more requests of this peer may be begun until it reads, or until some are answered."""
        load, running = self.load, self._in_flight
        return (
            self._write_paused
            or self._needs_room
            or self._refusals_held > 0
            or self._refusals_waiting >= _MOST_REFUSALS
            or (
                running > 0
                and load is not None
                and (
                    running >= self._most_in_flight
                    or load.in_flight >= load.limits.max_requests_in_flight
                    or self._in_flight_bytes >= load.limits.frame_max_length
                    or load.is_full
                )
            )
        )

    def _rest(self) -> None:
        """After some requests: stop reading if more must wait, and see that their turn comes."""
        stalled = self._stalled()
        if stalled or self._held:
            self._pause_reading()
        if self._held and not stalled:
            self._schedule_turn()

    def _schedule_turn(self) -> None:
        if not self._turn_scheduled and not self.closed:
            self._turn_scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Goes on with what had to wait, in order, and reads on when nothing waits any more."""
        self._turn_scheduled = self._gathers = False
        for _ in range(min(_ANSWERS_PER_TURN, len(self._when_writable))):
            if self._write_paused:
                return
            self._when_writable.popleft()()
            if self._out_bytes > FLUSH_BYTES:
                self.flush()
        if self._when_writable:
            self._schedule_turn()
            return
        if self._held and not self._stalled():
            try:
                self._handle(self._held, self._held_bytes)
            except RemoteProtocolError as error:
                self._refuse(error)
        if not self._held and not self._stalled():
            if self._tls is not None and self._tls.ended:
                self.close()
            else:
                self._resume_reading()

    def _pause_reading(self) -> None:
        if self._reading and self._transport is not None and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._slowed or self._reading or self._transport is None:
            return
        if not self._transport.is_closing():
            self._reading = True
            if self._frame_since is not None:
                self._frame_since = self._loop.time()  # the pause was ours
            self._transport.resume_reading()

    def handle_frame(self, frame: Frame) -> None:
        """One frame, decoded and served by itself; batch handlers give back here what is not theirs."""
        kind, header, body = frame
        command = decode_command(kind, header, body)
        if command.flag & RESPONSE_FLAG:
            waiter = self._pending.take(command.opaque)
            if waiter is None:
                log.debug("%s answered %d, which nobody waits for", self.address, command.opaque)
            elif not waiter.done():
                waiter.set_result(command)
            return
        self.serve(command)

    def serve(self, request: RemotingCommand) -> None:
        """Runs the handler of a request and sends its answer, now or when it is there."""
        gate = self._handlers.gate
        if gate is not None and not self._passes(gate, request):
            return
        handler = self._handlers.by_code.get(request.code)
        if handler is None:
            if self._handlers.answer_unknown:
                unknown = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                self._reply(request, request.reply(unknown, f" request type {request.code} not supported"))
            return
        try:
            if request.code in self._handlers.large and self.load is not None:
                answer: Answer | Awaitable[Answer] = self._one_by_one(self.load, handler, request)
            else:
                answer = handler(self, request)
        except AssertionError:
            raise
        except Exception as error:
            self._answered(request, error_reply(request, error))
            return
        if answer is None:
            return
        if isinstance(answer, RemotingCommand):
            self._answered(request, answer)
            return
        if len(self._tasks) >= MAX_CALLS_IN_FLIGHT:
            if inspect.iscoroutine(answer):
                answer.close()
            self._reply(request, request.reply(ResponseCode.SYSTEM_BUSY, _BUSY))
            return
        self._answer_later(request, answer, self._handlers.owner_of(request.code, self._tasks))

    def _answer_later(
        self, request: RemotingCommand, answer: Awaitable[Answer], owner: set[asyncio.Task[None]]
    ) -> None:
        size = len(request.body)
        self.began(1, size)
        task = self._loop.create_task(self._finish(request, answer))
        owner.add(task)
        task.add_done_callback(lambda task: self._finished(task, answer, size, owner))

    def _passes(self, gate: RequestGate, request: RemotingCommand) -> bool:
        """Whether a request may go to its handler; if not, its peer is told, at once or later."""
        try:
            gate.check(self, request)
            return True
        except AssertionError:
            raise
        except AccessRefusedError as refusal:
            if refusal.delay > 0 and len(self._tasks) < MAX_CALLS_IN_FLIGHT:
                request.body = b""  # it is not kept for as long as its answer waits
                self._refusals_waiting += 1
                self._refusals_held += refusal.holds
                self._answer_later(request, self._refuse_later(refusal), self._tasks)
            else:
                self._reply(request, error_reply(request, refusal))
        except Exception as error:  # a fault of the gate does not open it
            self._reply(request, error_reply(request, error))
        return False

    async def _refuse_later(self, refusal: AccessRefusedError) -> Answer:
        try:
            await asyncio.sleep(refusal.delay)
        finally:
            self._refusals_waiting -= 1
            self._refusals_held -= refusal.holds
        raise refusal

    async def _one_by_one(self, load: Load, handler: Handler, request: RemotingCommand) -> Answer:
        """A large answer is made when the peer has read the one before, and when few others are being made."""
        if self._large is None:
            self._large = asyncio.Lock()
        async with self._large:
            await self.writable()
            async with load.large:
                answer = handler(self, request)
                return await answer if isinstance(answer, Awaitable) else answer

    def _finished(
        self, task: asyncio.Task[None], answer: Awaitable[Answer], size: int, owner: set[asyncio.Task[None]]
    ) -> None:
        owner.discard(task)
        self.finished(1, size)
        if inspect.iscoroutine(answer):
            answer.close()  # the connection may have ended before its first step

    async def _finish(self, request: RemotingCommand, answer: Awaitable[Answer]) -> None:
        try:
            done = await answer
        except AssertionError:
            raise
        except AccessRefusedError as error:
            self._reply(request, error_reply(request, error))
            return
        except Exception as error:
            done = error_reply(request, error)
        if done is not None:
            self._answered(request, done)

    def _answered(self, request: RemotingCommand, answer: RemotingCommand) -> None:
        """Sends a handler's answer."""
        gate = self._handlers.gate
        if gate is not None and answer.code == ResponseCode.NO_PERMISSION:
            gate.refused(self, request, answer.remark or "")
        self._reply(request, answer)

    def _reply(self, request: RemotingCommand, answer: RemotingCommand) -> None:
        if request.flag & ONEWAY_FLAG:
            return
        try:
            data = encode_frame(answer)
        except LocalProtocolError as error:
            data = encode_frame(error_reply(request, error))
        self.send_bytes(data)

    def flush(self) -> None:
        """Writes now what would leave at the end of the turn."""
        self._flush_scheduled = False
        if not self._out:
            return
        out, self._out = self._out, []
        size, self._out_bytes = self._out_bytes, 0
        self._left_few = len(out) <= _FEW_FRAMES
        if self._transport is not None and not self._transport.is_closing():
            if self._tls is not None:
                try:
                    self._transport.write(self._tls.send(b"".join(out)))
                except RemoteProtocolError as error:
                    self._refuse(error)
            elif len(out) == 1:
                self._transport.write(out[0])
            elif size < GATHER_BYTES:
                self._transport.write(b"".join(out))
            else:
                self._transport.writelines(out)
            self.last_active = self._loop.time()
            if self._write_paused and self.load is not None:
                self.load.waiting(self, self.unwritten_bytes)

    def _set_timer(self, deadline: float) -> None:
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        # The loop may call a hair before the deadline it was given.
        for waiter in self._pending.expire(max(self._loop.time(), self._timer_at)):
            if not waiter.done():
                waiter.set_exception(
                    RequestTimeoutError(f"{self.address} gave no answer in time; the outcome is unknown")
                )
        deadline = self._pending.next_deadline()
        if deadline is None:
            self._timer = None
        else:
            self._set_timer(deadline)


_HEADER_OF = itemgetter(1)
_MARK_OF = itemgetter(slice(8, 11))


def _mark(code: int) -> bytes:
    """What stands behind ``{"code":`` in a JSON header."""
    return f"{code},".encode()[:3]


def _only_if(allowed: Callable[[], bool], handler: BatchHandler) -> BatchHandler:
    @wraps(handler)
    def guarded(channel: Channel, frames: list[Frame]) -> int:
        if allowed():
            return handler(channel, frames)
        channel.handle_frame(frames[0])
        return 1

    return guarded


def error_reply(request: RemotingCommand, error: Exception) -> RemotingCommand:
    """The answer that tells a peer what went wrong; unexpected errors are logged here."""
    if isinstance(error, ResponseError):
        return request.reply(error.code, error.remark)
    if isinstance(error, ProtocolError):
        return request.reply(ResponseCode.SYSTEM_ERROR, str(error))
    if isinstance(error, StoreError):
        return request.reply(ResponseCode.SERVICE_NOT_AVAILABLE, str(error))
    log.error("request %d failed", request.code, exc_info=error)
    return request.reply(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
