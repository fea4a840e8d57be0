"""Listening, idle connections, closing."""

from __future__ import annotations

import asyncio

import pytest

from gimbalmq.errors import ConnectError, ConnectionLostError, ListenError
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.transport.channel import Channel, Handlers
from gimbalmq.transport.limits import ServerLimits
from gimbalmq.transport.server import RemotingServer
from tests.support import run, until
from tests.transport.wiring import ECHO, HOST, SILENT, echo_handlers, raw_peer, wire


def test_taken_port_is_refused_by_name() -> None:
    async def work() -> None:
        async with wire() as line:
            other = RemotingServer(Handlers())
            with pytest.raises(ListenError, match=str(line.server.port)):
                await other.start(HOST, line.server.port)
            await other.close()

    run(work())


def test_hooks_see_connections_come_and_go() -> None:
    async def work() -> None:
        events: list[tuple[str, Channel]] = []
        handlers = echo_handlers()
        handlers.opened = lambda channel: events.append(("opened", channel))
        handlers.closed = lambda channel: events.append(("closed", channel))
        async with wire(handlers) as line:
            async with raw_peer(line.server.port):
                await until(lambda: len(events) == 1)
                (channel,) = line.server.channels
            await until(lambda: len(events) == 2)
            assert events == [("opened", channel), ("closed", channel)]
            assert not line.server.channels

    run(work())


def test_idle_connection_is_closed() -> None:
    async def work() -> None:
        async with wire(limits=ServerLimits(server_channel_max_idle_time_seconds=1)) as line:
            client = await line.client()
            await client.call(RemotingCommand(ECHO), 5.0)
            await client.wait_closed()
            assert client.closed

    run(work())


def test_close_lets_written_answers_leave_and_fails_the_rest() -> None:
    async def work() -> None:
        async with wire() as line:
            client = await line.client()
            answered = client.start_call(RemotingCommand(ECHO, None, bytes(1_000_000)), 5.0)
            waiting = client.start_call(RemotingCommand(SILENT), 60.0)
            server = await line.peer()
            await answered
            server.send(RemotingCommand(999, opaque=1, flag=2))
            await line.server.close()
            with pytest.raises(ConnectionLostError):
                await waiting
            with pytest.raises(ConnectError):
                await line.client()

    run(work())


def test_close_does_not_wait_for_peers_that_do_not_read() -> None:
    async def work() -> None:
        async with wire() as line, raw_peer(line.server.port) as peer:
            peer.send(*(RemotingCommand(ECHO, None, bytes(60_000), opaque=n) for n in range(200)))
            await until(lambda: line.server.channels)
            (server,) = line.server.channels
            await until(lambda: server._write_paused)
            async with asyncio.timeout(20.0):
                await line.server.close()
                await until(lambda: not line.server.channels)

    run(work())
