"""Connections by address: made on first use, made again after a loss."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

from gimbalmq.errors import StateError
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.signing import Signer
from gimbalmq.transport.channel import Channel, Handlers
from gimbalmq.transport.network import AsyncioNetwork, Network, split_address

CONNECT_SECONDS = 3.0
GIVE_UP_SECONDS = 8.0
"""For a server's connections to other servers: what it wrote into one is taken by then, or the connection is over."""
CLOSE_SECONDS = 1.0
"""How long connections may take to end by themselves."""


class ChannelPool:
    """One connection per address (Java: NettyRemotingClient)."""

    def __init__(
        self,
        handlers: Handlers | None = None,
        *,
        network: Network | None = None,
        tls: ssl.SSLContext | None = None,
        connect_timeout: float = CONNECT_SECONDS,
        signer: Signer | None = None,
        give_up_seconds: float | None = None,
    ) -> None:
        """A pool without connections.

        Args:
            signer: signs what ``call`` and ``oneway`` send; requests on a ``channel`` are the caller's to sign.
            give_up_seconds: a connection ends on which the peer's system has taken nothing for so long of what was
                written; without it the system tries for a quarter of an hour. Not every system can do that.
        """
        self._handlers = handlers or Handlers(answer_unknown=False)
        self._network = network or AsyncioNetwork()
        self.tls = tls
        """Of connections made from now on; None is plain."""
        self._connect_timeout = connect_timeout
        self._signer = signer
        self._give_up_seconds = give_up_seconds
        self._channels: dict[str, Channel] = {}
        self._connecting: dict[str, asyncio.Task[Channel]] = {}
        self._closed = False

    def existing(self, address: str) -> Channel | None:
        """The live connection to an address, if there is one."""
        channel = self._channels.get(address)
        return channel if channel is not None and not channel.closed else None

    def address_of(self, channel: Channel) -> str | None:
        """What a connection was made to, as it was asked for; None if it has been replaced."""
        return next((address for address, known in self._channels.items() if known is channel), None)

    async def channel(self, address: str) -> Channel:
        """The connection to ``host:port``; callers that ask together share one attempt.

        Raises:
            ConnectError: nobody accepts there.
        """
        live = self.existing(address)
        if live is not None:
            return live
        if self._closed:
            raise StateError("the connection pool is closed")
        attempt = self._connecting.get(address)
        # One that failed in this very turn of the loop is over: whoever asks again and again would meet it for ever.
        if attempt is None or attempt.done():
            attempt = asyncio.get_running_loop().create_task(self._connect(address))
            self._connecting[address] = attempt
            attempt.add_done_callback(lambda task: self._connected(address, task))
        # One caller giving up must not fail the others who wait for the same connection.
        try:
            return await asyncio.shield(attempt)
        except asyncio.CancelledError:
            if self._closed and attempt.cancelled():
                raise StateError("the connection pool was closed while it connected") from None
            raise

    def _connected(self, address: str, attempt: asyncio.Task[Channel]) -> None:
        if self._connecting.get(address) is attempt:
            del self._connecting[address]
        if not attempt.cancelled():
            attempt.exception()  # seen, even if every caller has given up

    async def _connect(self, address: str) -> Channel:
        host, port = split_address(address)

        def make() -> Channel:
            return Channel(
                self._handlers,
                client_tls=self.tls,
                tls_host=host,
                give_up_seconds=self._give_up_seconds,
            )

        channel = await self._network.connect(make, host, port, self._connect_timeout)
        assert isinstance(channel, Channel)
        await channel.secured(self._connect_timeout)
        if self._closed:
            channel.abort()
            raise StateError("the connection pool is closed")
        self._channels[address] = channel
        return channel

    async def call(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        channel = await self.channel(address)
        if self._signer is not None:
            self._signer.sign(command)
        return await channel.call(command, timeout)

    async def oneway(self, address: str, command: RemotingCommand) -> None:
        channel = await self.channel(address)
        if self._signer is not None:
            self._signer.sign(command)
        channel.oneway(command)

    def drop(self, address: str) -> None:
        """Closes the connection to an address; the next call makes a new one."""
        channel = self._channels.pop(address, None)
        if channel is not None:
            channel.close()

    async def close(self) -> None:
        self._closed = True
        for attempt in list(self._connecting.values()):
            attempt.cancel()
        channels = [channel for channel in self._channels.values() if not channel.closed]
        self._channels.clear()
        for channel in channels:
            channel.close()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    for channel in channels:
                        await channel.wait_closed()
        finally:
            # One that does not end in time; or all, if whoever closes them does not want to wait.
            for channel in channels:
                if not channel.closed:
                    channel.abort()
