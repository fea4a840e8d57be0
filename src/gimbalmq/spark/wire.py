"""Blocking connections for Spark's processes: many requests out, then their answers in.

A planner or a task has one thread and waits for nothing but brokers, so an event loop would only add its
turns to each request. The typed calls of ``rpc`` are coroutines; ``Wire`` runs any number of them at once
over plain sockets: it sends what they ask and wakes each when its answer is read. Large answers are read
straight into the memory they are decoded from, and that memory is used again: fresh pages cost about as
much as the copy into them.
"""

from __future__ import annotations

import atexit
import os
import socket
import ssl
import struct
from collections import deque
from collections.abc import Coroutine, Generator, Iterable
from typing import Any, Final, TypeVar

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.errors import (
    ConnectError,
    ConnectionLostError,
    RemoteProtocolError,
    RequestTimeoutError,
    RocketMQError,
)
from gimbalmq.protocol.command import ONEWAY_FLAG, RemotingCommand
from gimbalmq.protocol.frames import MAX_FRAME_BYTES
from gimbalmq.protocol.serializers import decode_command, encode_frame
from gimbalmq.protocol.signing import Signer
from gimbalmq.spark.connection import Connection
from gimbalmq.transport.network import split_address
from gimbalmq.transport.tls import tls_trouble

T = TypeVar("T")

_WORDS: Final = struct.Struct(">iI")
_TIMEVAL: Final = struct.Struct("@ll")
_READ_BYTES: Final = 65_536
_SEND_SECONDS: Final = 30.0
_LOOK_AFTER: Final = 0.05
_IDLE_TLS: Final = 60.0

MAX_REQUESTS_OUT: Final = 256
"""Requests of one ``gather`` without an answer: their bytes fit the sockets' buffers, so that neither side
waits for the other to read."""


_KEPT_BUFFERS: Final = 4
_LARGEST_KEPT: Final = 8 << 20
_ROUNDED: Final = 1 << 18


class Buffers:
    """Memory for large answers, given back when they are decoded."""

    def __init__(self) -> None:
        self._free: list[bytearray] = []

    def take(self, count: int) -> memoryview:
        for index, buffer in enumerate(self._free):
            if len(buffer) >= count:
                return memoryview(self._free.pop(index))[:count]
        return memoryview(bytearray(-(-count // _ROUNDED) * _ROUNDED))[:count]

    def give_back(self, body: bytes | bytearray | memoryview) -> None:
        """Nobody may look at the body after this."""
        buffer = body.obj if isinstance(body, memoryview) else None
        if isinstance(buffer, bytearray) and len(buffer) <= _LARGEST_KEPT:
            if len(self._free) >= _KEPT_BUFFERS:
                self._free.pop(0)
            self._free.append(buffer)


class Link:
    """One connection: whole frames out, whole answers in, in whatever order they come."""

    def __init__(
        self, address: str, connection: Connection, context: ssl.SSLContext | None, buffers: Buffers
    ) -> None:
        host, port = split_address(address)
        self._buffers = buffers
        self.address = address
        self._seconds = -1.0
        self._heard = False
        self._buffer = bytearray(_READ_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        try:
            plain = socket.create_connection((host, port), connection.connect_timeout)
        except OSError as error:
            raise ConnectError(f"cannot connect to {address}: {error.strerror or error}") from error
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = plain
        if context is not None:
            try:
                self._socket = context.wrap_socket(plain, server_hostname=host)
            except OSError as error:
                plain.close()
                raise ConnectError(f"TLS with {address} failed: {_why(error)}") from error
        # The kernel keeps the time limits, so that one call waits for a whole answer.
        self._plain = context is None
        self._whole = socket.MSG_WAITALL if self._plain else 0
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(int(_SEND_SECONDS), 0))
        self._used = SYSTEM_CLOCK.monotonic()

    @property
    def is_stale(self) -> bool:
        """Whether the peer has hung up since the link was last used: brokers do so after two idle minutes."""
        idle = SYSTEM_CLOCK.monotonic() - self._used
        if idle < _LOOK_AFTER or not self._plain:
            return idle > _IDLE_TLS
        try:
            return not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def send(self, data: bytes) -> None:
        self._used = SYSTEM_CLOCK.monotonic()
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise ConnectionLostError(f"the connection to {self.address} broke: {_why(error)}") from error

    def receive(self, deadline: float) -> RemotingCommand:
        """The next answer; what the peer asks of us meanwhile is passed over.

        Raises:
            RequestTimeoutError: no whole answer until the deadline; the link is of no use any more.
            ConnectionLostError: the peer is gone.
        """
        while True:
            command = self._frame(deadline)
            if command.is_response:
                return command

    def _frame(self, deadline: float) -> RemotingCommand:
        self._need(8, deadline)
        length, word = _WORDS.unpack_from(self._buffer, self._start)
        header_bytes = word & 0xFFFFFF
        body_bytes = length - 4 - header_bytes
        if not 4 <= length <= MAX_FRAME_BYTES - 4 or body_bytes < 0:
            raise RemoteProtocolError(
                f"{self.address} sent a frame of {length} with {header_bytes} of header"
            )
        self._need(8 + header_bytes, deadline)
        at = self._start + 8
        header = bytes(self._view[at : at + header_bytes])
        self._start = at + header_bytes
        command = decode_command(word >> 24, header)
        command.body = self._body(body_bytes, deadline)
        return command

    def _body(self, count: int, deadline: float) -> bytes | memoryview:
        have = min(self._end - self._start, count)
        if have == count:
            body = bytes(self._view[self._start : self._start + count])
            self._start += count
            return body
        whole = self._buffers.take(count)
        whole[:have] = self._view[self._start : self._start + have]
        self._start += have
        rest = whole[have:]
        while rest:
            rest = rest[self._read(rest, self._whole, deadline) :]
        return whole

    def _need(self, count: int, deadline: float) -> None:
        """Has this many bytes in the buffer, from ``_start`` on."""
        if self._end - self._start >= count:
            return
        if self._start + count > len(self._buffer):
            left = bytes(self._view[self._start : self._end])
            if count > len(self._buffer):
                self._buffer = bytearray(count)
                self._view = memoryview(self._buffer)
            self._view[: len(left)] = left
            self._start, self._end = 0, len(left)
        while self._end - self._start < count:
            self._end += self._read(self._view[self._end :], 0, deadline)

    def _read(self, into: memoryview, flags: int, deadline: float) -> int:
        # At least a moment, so that what has come already is read however late it is.
        self._limit(max(deadline - SYSTEM_CLOCK.monotonic(), 0.001))
        try:
            count = self._socket.recv_into(into, 0, flags)
        except (BlockingIOError, TimeoutError, ssl.SSLWantReadError):
            raise RequestTimeoutError(f"{self.address} gave no answer in time") from None
        except OSError as error:
            raise ConnectionLostError(f"the connection to {self.address} broke: {_why(error)}") from error
        if count == 0:
            hint = "" if self._heard or not self._plain else " without a word; does it want TLS?"
            raise ConnectionLostError(f"{self.address} closed the connection{hint}")
        self._heard = True
        return count

    def _limit(self, seconds: float) -> None:
        # Setting it is a system call; a limit that is right within a second or so will do.
        if seconds <= self._seconds <= seconds + 1.0:
            return
        self._seconds = seconds + 0.5 if seconds > 1.0 else seconds
        whole, part = divmod(self._seconds, 1.0)
        self._socket.setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(int(whole), max(1, int(part * 1e6)))
        )

    def close(self) -> None:
        self._socket.close()


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLEOFError):
        return "it hung up in the middle; does it speak TLS?"
    return tls_trouble(error) if isinstance(error, ssl.SSLError) else str(error)


class _Asked:
    """One request under way: a coroutine awaits it, the wire answers."""

    __slots__ = ("address", "command", "timeout")

    def __init__(self, address: str, command: RemotingCommand, timeout: float) -> None:
        self.address = address
        self.command = command
        self.timeout = timeout

    def __await__(self) -> Generator[_Asked, RemotingCommand, RemotingCommand]:
        return (yield self)


class Wire:
    """The connections of one process; a ``rpc.call.Caller`` for coroutines that ``gather`` runs."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        told = connection.client_options()
        self._tls: ssl.SSLContext | None = told["tls"]
        access, secret = told["access_key"], told["secret_key"]
        self._signer = (
            Signer(access, secret, told["security_token"])
            if access is not None and secret is not None
            else None
        )
        self.buffers = Buffers()
        self._links: dict[str, Link] = {}
        self._opaque = 0

    # -- links -----------------------------------------------------------------------

    def link(self, address: str) -> Link:
        """The connection to an address, made if there is none; raises ConnectError."""
        link = self._links.get(address)
        if link is not None and link.is_stale:
            self.drop(address)
            link = None
        if link is None:
            link = self._links[address] = Link(address, self.connection, self._tls, self.buffers)
        return link

    def receive(self, address: str, deadline: float) -> RemotingCommand:
        """The next answer to what was sent there."""
        link = self._links.get(address)
        if link is None:
            raise ConnectionLostError(f"the connection to {address} is gone")
        return link.receive(deadline)

    def drop(self, address: str) -> None:
        link = self._links.pop(address, None)
        if link is not None:
            link.close()

    def close(self) -> None:
        for address in list(self._links):
            self.drop(address)

    def frame(self, command: RemotingCommand) -> bytes:
        """A request as bytes: numbered, and signed if there are keys."""
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        command.opaque = self._opaque
        if self._signer is not None:
            self._signer.sign(command)
        return encode_frame(command)

    # -- as rpc sees it --------------------------------------------------------------

    async def call(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        return await _Asked(address, command, timeout)

    async def oneway(self, address: str, command: RemotingCommand) -> None:
        command.flag |= ONEWAY_FLAG
        self.link(address).send(self.frame(command))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """One coroutine to its end."""
        (outcome,) = self.gather([work])
        if isinstance(outcome, RocketMQError):
            raise outcome
        return outcome

    def gather(self, works: Iterable[Coroutine[Any, Any, T]]) -> list[T | RocketMQError]:
        """Runs coroutines that await nothing but calls of ours; each one's result or error, in order."""
        return _Gathering(self, list(works)).run()


class _Gathering:
    def __init__(self, wire: Wire, works: list[Coroutine[Any, Any, Any]]) -> None:
        self._wire = wire
        self._works = works
        self._outcomes: list[Any] = [None] * len(works)
        self._unsent: dict[str, list[bytes]] = {}
        self._pending: dict[str, dict[int, tuple[int, float]]] = {}
        """By address and opaque: whose request it is, and until when it may be answered."""

    def run(self) -> list[Any]:
        waiting = deque(range(len(self._works)))
        while waiting or self._pending:
            while waiting and sum(map(len, self._pending.values())) < MAX_REQUESTS_OUT:
                self._resume(waiting.popleft(), None)
            self._flush()
            if self._pending:
                self._receive(next(iter(self._pending)))
        return self._outcomes

    def _resume(self, index: int, answer: RemotingCommand | None) -> None:
        work = self._works[index]
        try:
            self._ask(index, work.send(answer))
        except StopIteration as end:
            self._outcomes[index] = end.value
        except RocketMQError as error:
            self._outcomes[index] = error

    def _throw(self, index: int, error: RocketMQError) -> None:
        try:
            self._ask(index, self._works[index].throw(error))
        except StopIteration as end:
            self._outcomes[index] = end.value
        except RocketMQError as raised:
            self._outcomes[index] = raised

    def _ask(self, index: int, asked: _Asked) -> None:
        try:
            self._wire.link(asked.address)
        except ConnectError as error:
            self._throw(index, error)
            return
        self._unsent.setdefault(asked.address, []).append(self._wire.frame(asked.command))
        deadline = SYSTEM_CLOCK.monotonic() + asked.timeout
        self._pending.setdefault(asked.address, {})[asked.command.opaque] = (index, deadline)

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, {}
        for address, frames in unsent.items():
            try:
                self._wire.link(address).send(b"".join(frames))
            except RocketMQError as error:
                self._fail(address, error)

    def _receive(self, address: str) -> None:
        pending = self._pending[address]
        try:
            answer = self._wire.receive(address, max(deadline for _, deadline in pending.values()))
        except RocketMQError as error:
            self._fail(address, error)
            return
        found = pending.pop(answer.opaque, None)
        if not pending:
            del self._pending[address]
        if found is not None:
            self._resume(found[0], answer)

    def _fail(self, address: str, error: RocketMQError) -> None:
        """A link that broke or kept silent: its requests fail, the next one makes a new link."""
        self._wire.drop(address)
        for index, _ in self._pending.pop(address, {}).values():
            self._throw(index, error)


_wires: dict[tuple[int, Connection], tuple[object, Wire]] = {}


def process_wire(connection: Connection) -> Wire:
    """The wire of this process for these settings: Spark uses a Python worker for many tasks."""
    key = (os.getpid(), connection)  # a forked child must not speak on its parent's sockets
    stamp = connection.stamp()  # a secret that was changed counts from the next task on
    known, wire = _wires.get(key, (None, None))
    if wire is None or known != stamp:
        if wire is not None:
            wire.close()
        wire = Wire(connection)
        _wires[key] = stamp, wire
    return wire


@atexit.register
def close_process_wires() -> None:
    """Closes what ``process_wire`` made; the next task makes new connections."""
    for (process, _), (_, wire) in list(_wires.items()):
        if process == os.getpid():
            wire.close()
    _wires.clear()
