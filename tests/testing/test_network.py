"""The network in memory behaves as TCP between hosts, and repeats by its seed."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from gimbalmq.errors import ConnectError, ConnectionLostError, ListenError, RequestTimeoutError
from gimbalmq.nameserver.config import NameServerConfig
from gimbalmq.nameserver.server import NameServer
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.nameserver import KvConfig
from gimbalmq.protocol.serializers import encode_frame
from gimbalmq.rpc.call import ask
from gimbalmq.testing.loop import VirtualClock, run_virtual
from gimbalmq.testing.network import MemoryNetwork
from gimbalmq.transport.channel import Channel, Handlers
from gimbalmq.transport.pool import ChannelPool
from gimbalmq.transport.server import RemotingServer

SERVER, CLIENT, OTHER = "10.0.0.1", "10.0.0.2", "10.0.0.3"


def _echo(_: Channel, request: RemotingCommand) -> RemotingCommand:
    answer = request.reply(0)
    answer.body = request.body
    return answer


class _Pair:
    """An echo server and a client on two hosts."""

    def __init__(self, network: MemoryNetwork, client: str = CLIENT) -> None:
        handlers = Handlers()
        handlers.add(1, _echo)
        self.server = RemotingServer(handlers, network=network.host(SERVER))
        self.pool = ChannelPool(network=network.host(client))

    async def __aenter__(self) -> _Pair:
        await self.server.start(SERVER, 9000)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.pool.close()
        await self.server.close()

    async def echo(self, body: bytes, timeout: float = 3.0) -> bytes:
        command = RemotingCommand(1, None, body)
        return bytes((await self.pool.call(f"{SERVER}:9000", command, timeout)).body)


def test_calls_arrive_and_time_is_the_wires() -> None:
    async def main(clock: VirtualClock) -> float:
        async with _Pair(MemoryNetwork(delay=(0.01, 0.01))) as pair:
            assert await pair.echo(b"hello") == b"hello"
            return clock.monotonic()

    assert run_virtual(main) == pytest.approx(0.03)  # connect, there, back


def test_big_bodies_pass_through_flow_control_in_order() -> None:
    body = bytes(range(256)) * 8000

    async def main(_: VirtualClock) -> None:
        async with _Pair(MemoryNetwork(seed=3, loss=0.2)) as pair:
            answers = await asyncio.gather(*(pair.echo(body + bytes([n]), 60.0) for n in range(5)))
            assert [answer[-1] for answer in answers] == list(range(5))
            assert all(answer[:-1] == body for answer in answers)

    run_virtual(main)


def test_loss_is_a_pause_not_a_gap() -> None:
    async def main(clock: VirtualClock) -> float:
        async with _Pair(MemoryNetwork(seed=1, loss=0.5)) as pair:
            for number in range(20):
                assert await pair.echo(bytes([number]), 60.0) == bytes([number])
            return clock.monotonic()

    assert run_virtual(main) > 0.2


def test_cut_cable_times_calls_out_and_mending_delivers() -> None:
    async def main(_: VirtualClock) -> None:
        network = MemoryNetwork()
        async with _Pair(network) as pair:
            await pair.echo(b"first")
            network.cut(SERVER, CLIENT)
            with pytest.raises(RequestTimeoutError):
                await pair.echo(b"lost?")
            network.mend()
            assert await pair.echo(b"again") == b"again"

    run_virtual(main)


def test_a_stopped_host_answers_when_it_goes_on() -> None:
    async def main(clock: VirtualClock) -> None:
        network = MemoryNetwork()
        async with _Pair(network) as pair:
            assert await pair.echo(b"one") == b"one"
            network.stop(SERVER)
            asyncio.get_running_loop().call_later(2.0, network.go_on, SERVER)
            begun = clock.monotonic()
            assert await pair.echo(b"two") == b"two"
            assert 2.0 <= clock.monotonic() - begun < 2.1

    run_virtual(main)


def test_connecting_over_a_cut_cable_takes_the_whole_timeout() -> None:
    async def main(clock: VirtualClock) -> float:
        network = MemoryNetwork()
        network.cut([SERVER], [CLIENT, OTHER])
        async with _Pair(network) as pair:
            with pytest.raises(ConnectError, match="did not accept"):
                await pair.echo(b"x")
        return clock.monotonic()

    assert run_virtual(main) == pytest.approx(3.0)


def test_nobody_listening_is_refused() -> None:
    async def main(_: VirtualClock) -> None:
        pool = ChannelPool(network=MemoryNetwork().host(CLIENT))
        with pytest.raises(ConnectError, match="refused"):
            await pool.channel("10.0.0.9:1")

    run_virtual(main)


def test_a_port_is_taken_once() -> None:
    async def main(_: VirtualClock) -> None:
        network = MemoryNetwork()
        async with _Pair(network):
            with pytest.raises(ListenError, match="in use"):
                await network.host(SERVER).listen(asyncio.Protocol, SERVER, 9000)
            other = await network.host(OTHER).listen(asyncio.Protocol, OTHER, 9000)
            other.close()

    run_virtual(main)


def test_reset_breaks_calls_on_both_sides() -> None:
    async def main(_: VirtualClock) -> None:
        network = MemoryNetwork(delay=(0.1, 0.1))
        async with _Pair(network) as pair:
            await pair.echo(b"up")
            call = asyncio.ensure_future(pair.echo(b"under way"))
            await asyncio.sleep(0.05)
            network.reset(SERVER)
            with pytest.raises(ConnectionLostError):
                await call
            await asyncio.sleep(1)
            assert not pair.server.channels

    run_virtual(main)


def test_a_cut_one_way_lets_the_other_direction_through() -> None:
    async def main(clock: VirtualClock) -> None:
        network = MemoryNetwork()
        heard: list[bytes] = []
        async with _Pair(network) as pair:
            await pair.echo(b"hello")
            network.cut(SERVER, CLIENT, one_way=True)
            handlers = pair.server._handlers
            handlers.add(2, lambda _, request: heard.append(bytes(request.body)))
            await pair.pool.oneway(f"{SERVER}:9000", RemotingCommand(2, None, b"there"))
            with pytest.raises(RequestTimeoutError):
                await pair.echo(b"and back")
            assert heard == [b"there"]
            with pytest.raises(ConnectError):
                await ChannelPool(network=network.host(CLIENT)).channel(f"{SERVER}:9000")
            network.mend()
            assert await pair.echo(b"again") == b"again"

    run_virtual(main)


def test_a_slow_line_is_slow_in_its_direction_only() -> None:
    async def main(clock: VirtualClock) -> None:
        network = MemoryNetwork(delay=(0.01, 0.01))
        async with _Pair(network) as pair:
            await pair.echo(b"hello")
            network.slow[SERVER, CLIENT] = (0.5, 0.5)
            begun = clock.monotonic()
            await pair.echo(b"slowly")
            assert clock.monotonic() - begun == pytest.approx(0.51)

    run_virtual(main)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_torn_connection_delivers_a_part_and_breaks_on_both_sides(share: float) -> None:
    async def main(clock: VirtualClock) -> None:
        network = MemoryNetwork()
        async with _Pair(network) as pair:
            await pair.echo(b"hello")
            network.tear(CLIENT, share)
            begun = clock.monotonic()
            with pytest.raises(ConnectionLostError):
                await pair.echo(b"x" * 1000)
            assert clock.monotonic() - begun < 0.1 and not pair.server.channels
            told = [what for _, _, _, what in network.trace if what.startswith("torn")]
            assert len(told) == 1 and 1000 * share <= int(told[0].split()[2]) <= 1200 * share
            assert await pair.echo(b"again") == b"again"

    run_virtual(main)


def test_peers_of_a_host_that_vanished_hear_of_it_when_they_send_something() -> None:
    async def main(clock: VirtualClock) -> None:
        network = MemoryNetwork()
        async with _Pair(network) as pair:
            await pair.echo(b"hello")
            network.cut(SERVER, CLIENT)
            network.vanish(SERVER)
            with pytest.raises(RequestTimeoutError):
                await pair.echo(b"anybody?", 2.0)
            assert clock.monotonic() >= 2.0 and not pair.server.channels
            network.mend()
            with pytest.raises(ConnectionLostError):
                await pair.echo(b"and now?")
            assert await pair.echo(b"again") == b"again"

    run_virtual(main)


def test_close_lets_written_answers_leave() -> None:
    async def main(_: VirtualClock) -> None:
        network = MemoryNetwork(delay=(0.1, 0.1))
        async with _Pair(network) as pair:
            await pair.echo(b"up")
            call = asyncio.ensure_future(pair.echo(b"last"))
            await asyncio.sleep(0.15)  # the server has answered, the answer is on its way
            await pair.server.close()
            assert await call == b"last"

    run_virtual(main)


def _chatter(seed: int) -> list[tuple[float, str, str, str]]:
    network = MemoryNetwork(seed=seed, delay=(0.001, 0.2), loss=0.1)

    async def main(_: VirtualClock) -> None:
        async with _Pair(network) as pair:
            for number in range(30):
                with contextlib.suppress(RequestTimeoutError):
                    await pair.echo(bytes(number + 1), 0.5)

    run_virtual(main)
    return network.trace


def test_equal_seeds_give_equal_network_traces() -> None:
    assert _chatter(11) == _chatter(11)
    assert _chatter(11) != _chatter(12)


def test_name_server_runs_in_virtual_time() -> None:
    async def main(clock: VirtualClock) -> None:
        network = MemoryNetwork(seed=5)
        config = NameServerConfig(bind_address=SERVER, listen_port=9876)
        async with NameServer(config, network=network.host(SERVER), clock=clock) as server:
            pool = ChannelPool(network=network.host(CLIENT))
            header = KvConfig(namespace="ns", key="key", value="value")
            await ask(pool, server.address, RequestCode.PUT_KV_CONFIG, header)
            answer = await ask(pool, server.address, RequestCode.GET_KV_CONFIG, header)
            assert answer.ext_fields == {"value": "value"}
            await asyncio.sleep(3600)  # the idle connection is closed meanwhile, a new one is made
            answer = await ask(pool, server.address, RequestCode.GET_KV_CONFIG, header)
            assert answer.ext_fields == {"value": "value"}
            await pool.close()

    run_virtual(main)


def test_a_server_notices_that_a_client_it_waits_for_is_gone() -> None:
    """It writes to a client that does not read, so it does not read either; the reset must reach it all the same."""

    class Silent(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            self.transport = transport
            transport.pause_reading()

    async def main(_: VirtualClock) -> int:
        network = MemoryNetwork()
        async with _Pair(network) as pair:
            silent = await network.host(OTHER).connect(Silent, SERVER, 9000, 3.0)
            assert isinstance(silent, Silent)
            request = RemotingCommand(1, body=bytes(400_000))
            silent.transport.write(4 * encode_frame(request))
            await asyncio.sleep(5)
            assert len(pair.server.channels) == 1
            silent.transport.abort()
            await asyncio.sleep(5)
            return len(pair.server.channels)

    assert run_virtual(main) == 0
