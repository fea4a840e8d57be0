"""What becomes of a stream of TLS that nobody waits for, that is not welcome, or that ends with a reason."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gimbalmq.errors import RemoteProtocolError
from gimbalmq.transport.tls_stream import TlsStream, connect_tls
from tests.support import run


class Wire:
    """A transport, and the network that it belongs to."""

    def __init__(self) -> None:
        self.is_aborted = False
        self.protocol: Any = None
        self.made = asyncio.Event()

    async def connect(self, factory: Callable[[], asyncio.Protocol], *_: object) -> asyncio.Protocol:
        self.protocol = factory()
        self.protocol.connection_made(self)
        self.made.set()
        return self.protocol  # type: ignore[no-any-return]

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("10.0.0.7", 1234)

    def write(self, data: bytes) -> None:
        assert not self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True

    def close(self) -> None:
        self.protocol.connection_lost(None)

    def is_closing(self) -> bool:
        return self.is_aborted


class Inner(asyncio.Protocol):
    lost: Exception | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = exc


def test_a_connection_that_is_given_up_during_the_handshake_ends() -> None:
    async def work() -> None:
        wire: Any = Wire()
        context = ssl.create_default_context()
        connecting = asyncio.ensure_future(connect_tls(wire, Inner, "localhost", 1, 1.0, context))
        await wire.made.wait()
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        assert wire.is_aborted
        wire.protocol.connection_lost(None)

    run(work())


def test_who_is_not_welcome_shakes_no_hands() -> None:
    async def work() -> None:
        wire: Any = Wire()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        stream = TlsStream(Inner(), context, welcome=lambda host: host != "10.0.0.7")
        stream.connection_made(wire)
        assert wire.is_aborted and stream._timer is None

    run(work())


def test_the_reason_of_the_end_is_told_inside() -> None:
    async def work() -> None:
        wire: Any = Wire()
        inner = Inner()
        stream = await wire.connect(lambda: TlsStream(inner, ssl.create_default_context(), host="localhost"))

        def refused(data: bytes) -> tuple[bytes, bytes]:
            raise RemoteProtocolError("certificate required")

        pipe = SimpleNamespace(established=True, ended=False, receive=lambda data: (b"", b""))
        stream._pipe = pipe
        stream.data_received(b"the last of the handshake")
        assert await stream.opened is None
        assert stream._timer is not None and stream._timer.cancelled(), "it outlives the time for a handshake"
        pipe.receive, pipe.farewell = refused, lambda: b""
        stream.data_received(b"an alert")
        assert "certificate required" in str(inner.lost)

    run(work())
