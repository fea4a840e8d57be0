"""Connections by address."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from gimbalmq.errors import (
    ConfigError,
    ConnectError,
    ConnectionLostError,
    RequestTimeoutError,
    StateError,
)
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.transport.network import AsyncioNetwork, Listener, split_address
from gimbalmq.transport.pool import ChannelPool
from tests.support import run, until
from tests.transport.wiring import ECHO, wire


class GatedNetwork(AsyncioNetwork):
    """Connects when the test says so."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.attempts = 0

    async def connect(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int, timeout: float
    ) -> asyncio.Protocol:
        self.attempts += 1
        await self.gate.wait()
        return await super().connect(factory, host, port, timeout)


def test_callers_that_ask_together_share_one_connection() -> None:
    async def work() -> None:
        async with wire() as line:
            network = GatedNetwork()
            pool = ChannelPool(network=network)
            waiting = [asyncio.create_task(pool.channel(line.address)) for _ in range(5)]
            await until(lambda: network.attempts)
            waiting[0].cancel()
            network.gate.set()
            channels = await asyncio.gather(*waiting[1:])
            assert len(set(channels)) == 1
            assert network.attempts == 1
            assert await pool.channel(line.address) is channels[0]
            assert pool.existing(line.address) is channels[0]
            with pytest.raises(asyncio.CancelledError):
                await waiting[0]
            await pool.close()

    run(work())


def test_closing_a_pool_that_connects_is_an_error_for_the_caller_not_a_cancellation() -> None:
    async def work() -> None:
        network = GatedNetwork()
        pool = ChannelPool(network=network)
        waiting = asyncio.create_task(pool.channel("127.0.0.1:1"))
        await until(lambda: network.attempts)
        await pool.close()
        with pytest.raises(StateError, match="closed"):
            await waiting
        with pytest.raises(StateError, match="closed"):
            await pool.channel("127.0.0.1:1")

    run(work())


def test_nobody_at_the_address_is_a_connect_error_that_names_it() -> None:
    async def work() -> None:
        async with wire() as line:
            port = line.server.port
            await line.server.close()
            with pytest.raises(ConnectError, match=str(port)):
                await line.pool.call(line.address, RemotingCommand(ECHO), 5.0)

    run(work())


def test_failed_attempt_nobody_waits_for_makes_no_noise() -> None:
    async def work() -> None:
        network = GatedNetwork()
        pool = ChannelPool(network=network)
        waiting = asyncio.create_task(pool.channel("127.0.0.1:1"))
        await until(lambda: network.attempts)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        network.gate.set()
        await until(lambda: not pool._connecting)
        await pool.close()

    run(work())


def test_connect_that_takes_too_long_is_a_connect_error() -> None:
    class Deaf(asyncio.Protocol):
        pass

    async def work() -> None:
        listener: Listener = await AsyncioNetwork().listen(Deaf, "127.0.0.1", 0)
        with pytest.raises(ConnectError, match="within"):
            await AsyncioNetwork().connect(Deaf, "127.0.0.1", listener.port, 0.0)
        listener.close()

    run(work())


def test_dropped_connection_is_made_again() -> None:
    async def work() -> None:
        async with wire() as line:
            first = await line.client()
            line.pool.drop(line.address)
            await first.wait_closed()
            second = await line.client()
            assert second is not first
            assert (await line.pool.call(line.address, RemotingCommand(ECHO), 5.0)).code == 0

    run(work())


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("10.0.0.1:9876", ("10.0.0.1", 9876)),
        ("localhost:0", ("localhost", 0)),
        ("::1:9876", ("::1", 9876)),
        ("[fe80::1]:10911", ("fe80::1", 10911)),
    ],
)
def test_address_is_split_at_the_last_colon(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts


@pytest.mark.parametrize("address", ["", "host", ":9876", "host:", "host:port", "host:65536", "host:-1"])
def test_address_without_host_or_port_is_refused_by_value(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        split_address(address)
    assert caught.value.value == address


class RefusingNetwork(AsyncioNetwork):
    """Nobody listens anywhere."""

    def __init__(self) -> None:
        self.attempts = 0

    async def connect(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int, timeout: float
    ) -> asyncio.Protocol:
        self.attempts += 1
        raise ConnectError("refused")


def test_whoever_asks_in_the_turn_of_a_failure_gets_a_new_attempt() -> None:
    """One that asked again and again met the failed one for ever, and the loop stood still."""

    async def work() -> None:
        network = RefusingNetwork()
        pool = ChannelPool(network=network)

        async def ask_a_turn_later() -> None:
            await asyncio.sleep(0)
            await pool.channel("127.0.0.1:1")

        asked = await asyncio.gather(pool.channel("127.0.0.1:1"), ask_a_turn_later(), return_exceptions=True)
        assert [type(error) for error in asked] == [ConnectError, ConnectError]
        assert network.attempts == 2
        await pool.close()

    run(work())


@contextmanager
def deaf_listener() -> Iterator[str]:
    """Accepts connections and never reads, so that the sender's kernel hears of no byte that was taken."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        listening.bind(("127.0.0.1", 0))
        listening.listen(8)
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system has no such option")
def test_a_connection_on_which_nothing_gets_on_is_given_up_in_time() -> None:
    """What was written into it must not arrive later, and the next request needs another one."""

    async def work() -> None:
        with deaf_listener() as address:
            pool = ChannelPool(give_up_seconds=0.5)
            before = await pool.channel(address)
            with pytest.raises(ConnectionLostError):
                await pool.call(address, RemotingCommand(ECHO, body=bytes(8 << 20)), 8.0)
            assert before.closed and await pool.channel(address) is not before
            await pool.close()

    run(work())


def test_a_client_goes_on_with_a_peer_that_takes_nothing_for_a_while() -> None:
    async def work() -> None:
        with deaf_listener() as address:
            pool = ChannelPool()
            before = await pool.channel(address)
            with pytest.raises(RequestTimeoutError):
                await pool.call(address, RemotingCommand(ECHO, body=bytes(8 << 20)), 2.0)
            assert await pool.channel(address) is before
            await pool.close()

    run(work())
