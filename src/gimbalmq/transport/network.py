"""Connections are made here: the one seam between our protocol objects and real sockets.

Everything above asks a ``Network``; the system's is asyncio's, tests have one in memory.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Protocol

from gimbalmq.errors import ConfigError, ConnectError, ListenError


class Listener(Protocol):
    """A bound port."""

    @property
    def port(self) -> int: ...

    def close(self) -> None:
        """Stops accepting; open connections stay."""
        ...


class Network(Protocol):
    async def connect(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int, timeout: float
    ) -> asyncio.Protocol:
        """One connection; raises ConnectError."""
        ...

    async def listen(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> Listener:
        """Accepts connections; port 0 takes a free one; raises ListenError."""
        ...


def split_address(address: str) -> tuple[str, int]:
    """``host:port`` at the last colon, so that bare IPv6 works too."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError("address", address, "use host:port with a port of 0 to 65535")
    return host.strip("[]"), int(port)


def give_up_after(sock: socket.socket, seconds: float) -> None:
    """Has the system end a connection on which the peer's system takes nothing for so long, where that can be had.

    A line that drops packets says so to nobody. The system's own patience is a quarter of an hour, and then what was
    written at its begin may still arrive. A process that stands still is something else: its system goes on to take
    what comes, until its buffers are full.
    """
    option = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux has it
    if option is not None:
        sock.setsockopt(socket.IPPROTO_TCP, option, int(seconds * 1000))


def _reason(error: OSError) -> str:
    """The system's words; event loops put words of their own around them."""
    if error.errno is not None and error.errno > 0:  # a name that cannot be resolved has a negative number
        return os.strerror(error.errno).lower()
    return error.strerror or str(error)


class _AsyncioListener:
    def __init__(self, server: asyncio.AbstractServer, port: int) -> None:
        self._server = server
        self._port = port

    @property
    def port(self) -> int:
        return self._port

    def close(self) -> None:
        self._server.close()


class AsyncioNetwork:
    """TCP by the running event loop."""

    async def connect(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int, timeout: float
    ) -> asyncio.Protocol:
        loop = asyncio.get_running_loop()
        try:
            _, protocol = await asyncio.wait_for(loop.create_connection(factory, host, port), timeout)
        except TimeoutError as error:
            raise ConnectError(f"{host}:{port} did not accept a connection within {timeout:g} s") from error
        except OSError as error:
            raise ConnectError(f"cannot connect to {host}:{port}: {_reason(error)}") from error
        return protocol

    async def listen(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> Listener:
        loop = asyncio.get_running_loop()
        # asyncio's own loop tries as often to accept while there are no files left, with an error for each.
        backlog = 128 if isinstance(loop, asyncio.BaseEventLoop) else 1024
        try:
            server = await loop.create_server(
                factory, host or None, port, backlog=backlog, reuse_address=True
            )
        except OSError as error:
            raise ListenError(
                f"cannot listen on {host}:{port}: {_reason(error)}; "
                "choose another port or stop the process that has it"
            ) from error
        return _AsyncioListener(server, server.sockets[0].getsockname()[1])
