"""A listening port: accepts connections, closes idle ones, ends gracefully."""

from __future__ import annotations

import asyncio
from typing import cast

from gimbalmq.transport.channel import Channel, Handlers
from gimbalmq.transport.limits import Load
from gimbalmq.transport.network import AsyncioNetwork, Listener, Network
from gimbalmq.transport.tasks import Tasks
from gimbalmq.transport.tls import ServerTls

_PATIENCE_SECONDS = 3.0
"""So long a server that closes waits for what must complete."""


class RemotingServer:
    """Serves one set of handlers on one port (Java: NettyRemotingServer)."""

    def __init__(
        self,
        handlers: Handlers,
        *,
        tls: ServerTls | None = None,
        network: Network | None = None,
        load: Load | None = None,
    ) -> None:
        """Servers that share a ``load`` share its limits."""
        self._handlers = handlers
        self._tls = tls or ServerTls()
        self._network = network or AsyncioNetwork()
        self._load = load or Load()
        self._listener: Listener | None = None
        self._tasks = Tasks("server")
        self.channels: dict[Channel, None] = {}
        """A set that keeps its order, so that connections are closed in the order in which they came."""

    @property
    def port(self) -> int:
        assert self._listener is not None, "the server has not been started"
        return self._listener.port

    async def start(self, host: str, port: int) -> None:
        self._listener = await self._network.listen(self._accept, host, port)
        shortest = min(self._idle_seconds, self._frame_seconds)
        self._tasks.every(min(10.0, shortest / 2), self._close_idle, "idle connections")

    @property
    def _idle_seconds(self) -> float:
        return self._load.limits.server_channel_max_idle_time_seconds

    @property
    def _frame_seconds(self) -> float:
        return self._load.limits.server_frame_timeout_millis / 1000

    def _accept(self) -> Channel:
        return _ServerChannel(self._handlers, self.channels, self._tls, self._load)

    def _close_idle(self) -> None:
        idle, frame = self._idle_seconds, self._frame_seconds
        for channel in list(self.channels):
            if channel.is_idle(idle):
                channel.give_up(f"idle for {idle:g} s (serverChannelMaxIdleTimeSeconds)")
            elif channel.frame_overdue(frame):
                channel.give_up(f"no whole frame came within {frame:g} s (serverFrameTimeoutMillis)")

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
        await self._handlers.complete(_PATIENCE_SECONDS)


class _ServerChannel(Channel):
    def __init__(self, handlers: Handlers, channels: dict[Channel, None], tls: ServerTls, load: Load) -> None:
        super().__init__(handlers, server_tls=tls, load=load)
        self._channels = channels
        self._counts = load
        self._counted_host: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")
        host = str(peer[0]).partition("%")[0].removeprefix("::ffff:") if isinstance(peer, tuple) else ""
        if not self._counts.admit(host):
            self.closed = True
            cast(asyncio.Transport, transport).abort()
            return
        self._counted_host = host
        self._channels[self] = None
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._counted_host is None:
            self._counts.forget(self)
            return
        self._counts.left(self._counted_host)
        self._channels.pop(self, None)
        super().connection_lost(exc)
