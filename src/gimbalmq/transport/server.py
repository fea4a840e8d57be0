"""A listening port: accepts connections, closes idle ones, ends gracefully."""

from __future__ import annotations

import asyncio
import logging

from gimbalmq.transport.channel import Channel, Handlers
from gimbalmq.transport.network import AsyncioNetwork, Listener, Network
from gimbalmq.transport.tasks import Tasks
from gimbalmq.transport.tls import ServerTls

log = logging.getLogger(__name__)

IDLE_SECONDS = 120.0
"""No byte either way for this long closes a connection (Java: serverChannelMaxIdleTimeSeconds)."""


class RemotingServer:
    """Serves one set of handlers on one port (Java: NettyRemotingServer)."""

    def __init__(
        self,
        handlers: Handlers,
        *,
        tls: ServerTls | None = None,
        network: Network | None = None,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._handlers = handlers
        self._tls = tls or ServerTls()
        self._network = network or AsyncioNetwork()
        self._idle_seconds = idle_seconds
        self._listener: Listener | None = None
        self._tasks = Tasks("server")
        self.channels: set[Channel] = set()

    @property
    def port(self) -> int:
        assert self._listener is not None, "the server has not been started"
        return self._listener.port

    async def start(self, host: str, port: int) -> None:
        self._listener = await self._network.listen(self._accept, host, port)
        self._tasks.every(min(10.0, self._idle_seconds / 2), self._close_idle, "idle connections")

    def _accept(self) -> Channel:
        return _ServerChannel(self._handlers, self.channels, self._tls)

    def _close_idle(self) -> None:
        oldest = asyncio.get_running_loop().time() - self._idle_seconds
        for channel in list(self.channels):
            if channel.last_active < oldest:
                log.info("closing %s: idle for %.0f s", channel.address, self._idle_seconds)
                channel.abort()

    def abort_all(self) -> None:
        """Breaks every connection at once."""
        for channel in list(self.channels):
            channel.abort()

    async def close(self) -> None:
        """Stops accepting, lets written answers leave, closes every connection."""
        if self._listener is not None:
            self._listener.close()
        await self._tasks.close()
        channels = list(self.channels)
        for channel in channels:
            channel.close()
        if channels:
            _, stuck = await asyncio.wait(
                [asyncio.ensure_future(channel.wait_closed()) for channel in channels], timeout=1.0
            )
            for waiter in stuck:
                waiter.cancel()
            self.abort_all()


class _ServerChannel(Channel):
    def __init__(self, handlers: Handlers, channels: set[Channel], tls: ServerTls) -> None:
        super().__init__(handlers, server_tls=tls)
        self._channels = channels

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._channels.add(self)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._channels.discard(self)
        super().connection_lost(exc)
