"""A cable with a switch: a TCP proxy that cuts, delays and stalls what goes through it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Literal, Self

Way = Literal["to server", "to client"]

_CHUNK = 64 * 1024


class Proxy:
    """Forwards connections to a server.

    Clients must be told the proxy's address: a broker that listens on 127.0.0.1 advertises 127.0.0.2, where
    its proxy listens on the same port.

    Attributes:
        delay: seconds every piece of data waits, each way.
        accepted: connections so far.
        cuts: connections that were broken in the middle of a frame by ``cut_inside``.
    """

    def __init__(self, host: str, port: int, server: tuple[str, int]) -> None:
        self._host = host
        self._port = port
        self._server = server
        self._listener: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._inside: tuple[Way, int] | None = None
        self.delay = 0.0
        self.accepted = 0
        self.cuts = 0

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, self._host, self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        self._listener.close()
        self.cut()
        self._open.set()
        for link in list(self._links):
            await link.ended.wait()

    def cut(self) -> None:
        """Resets every connection, now."""
        for link in list(self._links):
            link.abort()

    def cut_inside(self, way: Way, size: int) -> None:
        """The next piece of data that way is cut: ``size`` bytes of it pass, then the connection is reset."""
        self._inside = (way, size)

    def stall(self) -> None:
        """Nothing passes any more, and nothing is lost."""
        self._open.clear()

    def resume(self) -> None:
        self._open.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        link = _Link(writer)
        self._links.add(link)
        try:
            far_reader, link.far = await asyncio.open_connection(*self._server)
            await asyncio.gather(
                self._pump("to server", reader, link.far, link),
                self._pump("to client", far_reader, writer, link),
            )
        except OSError:
            pass  # the server is away, or a side has gone
        finally:
            link.abort()
            for side in (writer, link.far):
                if side is not None:
                    with contextlib.suppress(OSError):
                        await side.wait_closed()
            self._links.discard(link)
            link.ended.set()

    async def _pump(
        self, way: Way, source: asyncio.StreamReader, target: asyncio.StreamWriter, link: _Link
    ) -> None:
        while data := await source.read(_CHUNK):
            if self.delay:
                await asyncio.sleep(self.delay)
            await self._open.wait()
            if self._inside is not None and self._inside[0] == way and len(data) > self._inside[1]:
                size, self._inside = self._inside[1], None
                target.write(data[:size])
                await target.drain()
                self.cuts += 1
                link.abort()
                return
            target.write(data)
            await target.drain()
        link.abort()


class _Link:
    """One connection through the proxy."""

    def __init__(self, near: asyncio.StreamWriter) -> None:
        self.near = near
        self.far: asyncio.StreamWriter | None = None
        self.ended = asyncio.Event()

    def abort(self) -> None:
        self.near.transport.abort()
        if self.far is not None:
            self.far.transport.abort()
