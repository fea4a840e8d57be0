"""TLS around a protocol that knows nothing of it, for ports on which nobody speaks plain text.

The protocol inside is told of its connection when the handshake is over, and has a transport that seals what it writes.
It works on every ``Network``, the one in memory too.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterable
from typing import Any, cast

from gimbalmq.errors import ConnectError, ConnectionLostError, RemoteProtocolError
from gimbalmq.transport.network import Network
from gimbalmq.transport.tls import HANDSHAKE_SECONDS, TlsPipe

log = logging.getLogger(__name__)


async def connect_tls(
    network: Network,
    factory: Callable[[], asyncio.Protocol],
    host: str,
    port: int,
    timeout: float,
    context: ssl.SSLContext,
) -> asyncio.Protocol:
    """A connection whose handshake is over; raises ConnectError."""
    stream = await network.connect(lambda: TlsStream(factory(), context, host=host), host, port, timeout)
    assert isinstance(stream, TlsStream)
    try:
        problem = await asyncio.shield(stream.opened)
    except asyncio.CancelledError:
        stream.abort()  # nobody would ever end it
        raise
    if problem is not None:
        raise ConnectError(f"no TLS with {host}:{port}: {problem}")
    return stream.inner


class TlsStream(asyncio.Protocol):
    """One end of a connection.

    Args:
        host: whom a client wants to reach; None at the end that was connected to.
        welcome: asked with the peer's host whether it is worth a handshake.

    Attributes:
        inner: what is said inside.
        opened: done after the handshake; a text says why there was none.
    """

    def __init__(
        self,
        inner: asyncio.Protocol,
        context: ssl.SSLContext,
        *,
        host: str | None = None,
        welcome: Callable[[str], bool] = lambda host: True,
    ) -> None:
        self.inner = inner
        self._welcome = welcome
        self.opened: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._pipe = TlsPipe(context, server_side=host is None, host=host)
        self._is_client = host is not None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._problem = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._welcome(str((transport.get_extra_info("peername") or ("", 0))[0])):
            self._transport.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(
            HANDSHAKE_SECONDS, self._fail, f"the peer did not shake hands within {HANDSHAKE_SECONDS:g} s"
        )
        if self._is_client:
            self._transport.write(self._pipe.start())

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        try:
            plain, sealed = self._pipe.receive(data)
        except RemoteProtocolError as error:
            self._transport.write(self._pipe.farewell())
            self._fail(str(error))
            return
        if sealed:
            self._transport.write(sealed)
        if self._pipe.established and not self.opened.done():
            self._end_handshake(None)
            self.inner.connection_made(_Sealing(self._transport, self._pipe))
        if plain and not self._transport.is_closing():
            self.inner.data_received(plain)
        if self._pipe.ended:
            self._transport.close()

    def _end_handshake(self, problem: str | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.opened.done():
            self.opened.set_result(problem)

    def _fail(self, problem: str) -> None:
        assert self._transport is not None
        if not self._is_client:
            peer = (self._transport.get_extra_info("peername") or ("", 0))[:2]
            log.error("no TLS with %s:%s: %s", *peer, problem)
        self._problem = problem
        self._end_handshake(problem)
        self._transport.close()

    def abort(self) -> None:
        """Ends the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def _is_open(self) -> bool:
        return self.opened.done() and self.opened.result() is None

    def eof_received(self) -> None:
        return None  # the transport closes itself

    def connection_lost(self, exc: Exception | None) -> None:
        was_open = self._is_open
        self._end_handshake("the peer ended the connection during the handshake")
        if was_open:
            # With TLS 1.3 a server refuses a client's certificate when the client's handshake is over.
            self.inner.connection_lost(exc or (ConnectionLostError(self._problem) if self._problem else None))

    def pause_writing(self) -> None:
        if self._is_open:
            self.inner.pause_writing()

    def resume_writing(self) -> None:
        if self._is_open:
            self.inner.resume_writing()


class _Sealing(asyncio.Transport):
    """What the protocol inside writes to."""

    def __init__(self, raw: asyncio.Transport, pipe: TlsPipe) -> None:
        super().__init__()
        self._raw = raw
        self._pipe = pipe

    def write(self, data: Any) -> None:
        if not self._raw.is_closing():
            self._raw.write(self._pipe.send(data))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        if not self._raw.is_closing():
            self._raw.writelines([self._pipe.send(data) for data in list_of_data])

    def abort(self) -> None:
        self._raw.abort()

    def close(self) -> None:
        self._raw.close()

    def is_closing(self) -> bool:
        return self._raw.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._raw.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def pause_reading(self) -> None:
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._raw.resume_reading()

    def is_reading(self) -> bool:
        return self._raw.is_reading()
