"""What peers make a server keep is bounded: connections, frames, answers nobody reads, requests in flight."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from gimbalmq.errors import ConnectError, ConnectionLostError, RequestTimeoutError
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.frames import MAX_FRAME_BYTES, Frame, FrameReader
from gimbalmq.protocol.serializers import encode_frame
from gimbalmq.testing.network import MemoryNetwork
from gimbalmq.transport.channel import Channel, Handlers
from gimbalmq.transport.limits import LOOPBACK_RESERVE, MAX_HEADER_BYTES, Load, ServerLimits
from gimbalmq.transport.pool import ChannelPool
from gimbalmq.transport.server import RemotingServer
from tests.support import ManualClock, run, until
from tests.transport.wiring import ECHO, HOST, RawPeer, echo_handlers, raw_peer, wire

MIB = 1024 * 1024


@asynccontextmanager
async def served(
    limits: ServerLimits, handlers: Handlers | None = None, clock: Any = None
) -> AsyncIterator[tuple[RemotingServer, Load]]:
    load = Load(limits) if clock is None else Load(limits, clock=clock)
    server = RemotingServer(handlers or echo_handlers(), load=load)
    await server.start(HOST, 0)
    try:
        yield server, load
    finally:
        await server.close()
    await until(lambda: load.kept() == 0)  # nothing stays of connections that are gone
    assert load.partial_bytes == load.waiting_bytes == 0


# -- connections -------------------------------------------------------------------------


def test_connections_from_one_address_and_altogether_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """Others still get in when one machine has its share, and nobody but this machine when there are too many."""

    async def work() -> None:
        network = MemoryNetwork()
        load = Load(ServerLimits(server_max_connections=10, max_connections_per_address=4))
        server = RemotingServer(echo_handlers(), network=network.host("10.0.0.1"), load=load)
        await server.start("10.0.0.1", 9)
        pools: list[ChannelPool] = []

        async def connect(host: str, count: int) -> int:
            """How many of so many connections are served."""
            served = 0
            for _ in range(count):
                pool = ChannelPool(network=network.host(host))
                pools.append(pool)
                try:
                    await pool.call("10.0.0.1:9", RemotingCommand(ECHO), 5.0)
                    served += 1
                except (ConnectionLostError, RequestTimeoutError):
                    pass
            return served

        assert await connect("10.0.0.2", 6) == 4
        assert await connect("10.0.0.3", 6) == 4
        assert await connect("10.0.0.4", 6) == 2
        assert await connect("127.0.0.1", LOOPBACK_RESERVE + 3) == LOOPBACK_RESERVE
        await pools[0].close()
        await until(lambda: load.connections == 10 + LOOPBACK_RESERVE - 1)
        assert await connect("10.0.0.4", 1) == 0, "the reserve is not for others"
        for pool in pools:
            await pool.close()
        await server.close()
        assert load.kept() == 0

    with caplog.at_level("WARNING", "gimbalmq.transport.limits"):
        run(work())
    lines = [text for text in caplog.messages if "refused" in text]
    assert len(lines) == 1 and "maxConnectionsPerAddress" in lines[0], "one line, however many are refused"


def test_no_address_has_more_than_half_of_all_unless_told_and_a_v6_network_is_one_address() -> None:
    load = Load(ServerLimits(server_max_connections=8))
    assert [load.admit("10.0.0.1") for _ in range(6)] == [True] * 4 + [False] * 2
    assert [load.admit(f"2001:db8::{n}") for n in range(1, 7)] == [True] * 4 + [False] * 2
    for _ in range(4):
        load.left("10.0.0.1")
    for n in range(1, 5):
        load.left(f"2001:db8::{n}")
    assert load.kept() == 0
    assert all(load.admit("::1") for _ in range(8 + LOOPBACK_RESERVE)) and not load.admit("127.0.0.1")


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_running_out_of_files_neither_spins_nor_stops_the_server(loop: str) -> None:
    script = f"""
    import asyncio, logging, os, resource, socket, time
    import uvloop
    from gimbalmq.transport.server import RemotingServer
    from gimbalmq.transport.channel import Handlers
    logging.disable(logging.CRITICAL)

    async def main():
        server = RemotingServer(Handlers())
        await server.start("127.0.0.1", 0)
        children = [socket.socket() for _ in range(40)]
        for child in children:
            child.setblocking(False)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (children[-1].fileno() + 10, hard))
        for child in children:
            child.connect_ex(("127.0.0.1", server.port))
        began, used = time.monotonic(), time.process_time()
        await asyncio.sleep(1.5)
        used = time.process_time() - used
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for child in children:
            child.close()
        await asyncio.sleep(1.2)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        while not server.channels:
            await asyncio.sleep(0.01)
        writer.close()
        await server.close()
        print("served again, share of a core", round(used / 1.5, 2))
        assert used < 0.75, used

    {"uvloop" if loop == "uvloop" else "asyncio"}.run(main())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=50,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == 0 and "served again" in done.stdout, done.stderr


# -- frames ------------------------------------------------------------------------------


def test_a_connection_that_says_nothing_or_stops_within_a_frame_is_closed() -> None:
    async def work() -> None:
        frame = encode_frame(RemotingCommand(ECHO, None, b"x" * 100))
        limits = ServerLimits(server_frame_timeout_millis=100)
        async with (
            served(limits) as (server, _),
            raw_peer(server.port) as silent,
            raw_peer(server.port) as cut,
            raw_peer(server.port) as good,
        ):
            cut.writer.write(frame + frame[:50])
            good.writer.write(frame)
            assert (await cut.receive()).code == 0
            assert (await good.receive()).code == 0
            assert await silent.ended()
            assert await cut.ended()
            good.writer.write(frame)
            assert (await good.receive()).code == 0, "whoever is merely quiet stays"

    run(work())


def test_a_frame_that_comes_by_drops_is_closed_however_steadily() -> None:
    async def work() -> None:
        limits = ServerLimits(server_frame_timeout_millis=150)
        async with served(limits) as (server, _), raw_peer(server.port) as peer:
            frame = encode_frame(RemotingCommand(ECHO, None, b"x" * 100_000))

            async def drip() -> None:
                for byte in frame:
                    peer.writer.write(bytes((byte,)))
                    await asyncio.sleep(0.01)

            dripping = asyncio.ensure_future(drip())
            assert await peer.ended()
            dripping.cancel()
            await asyncio.gather(dripping, return_exceptions=True)

    run(work())


def test_large_frames_side_by_side_wait_for_each_other_and_all_come_through() -> None:
    """Of forty producers that sent 4 MB each at the same time twenty-four were cut off, as if they were slow."""

    async def work() -> None:
        frame = encode_frame(RemotingCommand(ECHO, None, bytes(2 * MIB)))
        limits = ServerLimits(max_partial_frame_bytes=MAX_FRAME_BYTES)
        async with served(limits) as (server, load):
            contexts = [raw_peer(server.port) for _ in range(16)]
            peers = [await context.__aenter__() for context in contexts]
            most = 0

            async def side_by_side(peer: RawPeer) -> int:
                nonlocal most
                for _ in range(2):  # the second frame begins with the end of the first
                    for start in range(0, len(frame), 65536):
                        peer.writer.write(frame[start : start + 65536])
                        await asyncio.sleep(0)
                        most = max(most, load.partial_bytes)
                return sum([len((await peer.receive()).body) for _ in range(2)])

            assert set(await asyncio.gather(*map(side_by_side, peers))) == {4 * MIB}
            assert MAX_FRAME_BYTES < most < MAX_FRAME_BYTES + 16 * 300_000
            for context in contexts:
                await context.__aexit__(None, None, None)

    run(work())


def test_whoever_stands_still_within_a_large_frame_is_closed_when_others_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A thousand that announce 16 MB and send nearly all of it would be 16 GB."""
    for name, seconds in (("_LOOK_SECONDS", 0.02), ("_STILL_SECONDS", 0.2), ("_GRACE_SECONDS", 0.1)):
        monkeypatch.setattr(f"gimbalmq.transport.limits.{name}", seconds)

    async def work() -> None:
        frame = encode_frame(RemotingCommand(ECHO, None, bytes(2 * MIB)))
        limits = ServerLimits(max_partial_frame_bytes=MAX_FRAME_BYTES)
        async with served(limits) as (server, load):
            contexts = [raw_peer(server.port) for _ in range(13)]
            *still, last = [await context.__aenter__() for context in contexts]
            for peer in still:
                peer.writer.write(frame[:-1])
            await until(lambda: load.partial_bytes > MAX_FRAME_BYTES)
            last.writer.write(frame)
            assert len((await last.receive()).body) == 2 * MIB
            await until(lambda: not load._slowed)
            assert load.partial_bytes <= MAX_FRAME_BYTES
            assert 0 < load.connections < 13
            last.writer.write(frame)
            assert len((await last.receive()).body) == 2 * MIB
            for context in contexts:
                await context.__aexit__(None, None, None)

    with caplog.at_level("WARNING", "gimbalmq.transport.channel"):
        run(work())
    assert any("does not get on" in text and "maxPartialFrameBytes" in text for text in caplog.messages)


def test_small_pieces_count_with_what_they_cost() -> None:
    reader = FrameReader()
    frame = encode_frame(RemotingCommand(ECHO, None, bytes(1000)))
    for start in range(0, 1000, 2):
        assert not reader.feed(frame[start : start + 2])
    assert reader.held_bytes > 20 * 1000
    assert len(reader.feed(frame[1000:])) == 1 and reader.held_bytes == 0


def test_an_announced_frame_takes_no_memory_before_it_comes() -> None:
    reader = FrameReader()
    reader.feed((MAX_FRAME_BYTES - 4).to_bytes(4, "big") + bytes(100))
    assert reader.held_bytes < 1000


def test_frames_and_headers_beyond_their_limits_end_the_connection() -> None:
    async def work() -> None:
        limits = ServerLimits(frame_max_length=65_536)
        async with served(limits) as (server, _):
            async with raw_peer(server.port) as peer:
                peer.writer.write((65_536 - 3).to_bytes(4, "big") + bytes(4))
                assert await peer.ended()
            async with raw_peer(server.port) as peer:
                peer.send(RemotingCommand(ECHO, None, bytes(60_000)))
                assert len((await peer.receive()).body) == 60_000
        async with served(ServerLimits()) as (server, _), raw_peer(server.port) as peer:
            long = RemotingCommand(ECHO, {"a": "x" * MAX_HEADER_BYTES})
            peer.send(long)
            assert await peer.ended()

    run(work())


# -- answers nobody reads ----------------------------------------------------------------


def test_a_peer_that_does_not_read_is_closed_when_too_much_waits_for_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One-way requests and other people's answers come unasked: to read no more of its requests is not enough."""

    async def work() -> None:
        limits = ServerLimits(max_pending_write_bytes_per_connection=MAX_FRAME_BYTES)
        async with served(limits) as (server, load), raw_peer(server.port) as peer:
            await until(lambda: server.channels)
            (channel,) = server.channels
            for _ in range(100):
                if channel.closed:
                    break
                channel.oneway(RemotingCommand(40, None, bytes(MIB)))
                await asyncio.sleep(0)
                assert load.waiting_bytes <= MAX_FRAME_BYTES + 2 * MIB
            await channel.wait_closed()
            assert load.waiting_bytes == 0
            peer.writer.close()

    with caplog.at_level("WARNING", "gimbalmq.transport.channel"):
        run(work())
    assert any("maxPendingWriteBytesPerConnection" in text for text in caplog.messages)


def test_what_waits_for_all_slow_readers_is_bounded_and_the_first_to_stop_goes() -> None:
    async def work() -> None:
        limits = ServerLimits(max_pending_write_bytes=MAX_FRAME_BYTES)
        async with served(limits) as (server, load):
            contexts = [raw_peer(server.port) for _ in range(6)]
            channels: list[Channel] = []
            for context in contexts:
                await context.__aenter__()
                await until(lambda: server.channels.keys() - channels)
                (channel,) = server.channels.keys() - channels
                channels.append(channel)
                channel.send_bytes(bytes(12 * MIB))  # the kernel takes some of it
                await asyncio.sleep(0)
                assert load.waiting_bytes <= MAX_FRAME_BYTES + 12 * MIB
            await until(lambda: channels[0].closed and load.waiting_bytes <= MAX_FRAME_BYTES)
            assert not channels[-1].closed
            assert load.crowded == (load.waiting_bytes > MAX_FRAME_BYTES // 2)
            for context in contexts:
                await context.__aexit__(None, None, None)

    run(work())


def test_whoever_reads_slowly_outlives_those_who_do_not_read() -> None:
    """The first whose line was full was closed, also if it had gone on reading ever since."""

    async def work() -> None:
        limits = ServerLimits(max_pending_write_bytes=MAX_FRAME_BYTES)
        async with served(limits) as (server, _load):
            contexts = [raw_peer(server.port) for _ in range(3)]
            channels: list[Channel] = []
            peers: list[RawPeer] = []
            for context in contexts:
                peers.append(await context.__aenter__())
                await until(lambda: server.channels.keys() - channels)
                (channel,) = server.channels.keys() - channels
                channels.append(channel)
            for channel in channels[:2]:
                channel.send_bytes(bytes(11 * MIB))
                await asyncio.sleep(0)
            unread = channels[0].unwritten_bytes
            while channels[0].unwritten_bytes == unread:
                await peers[0].reader.readexactly(65536)
            channels[2].send_bytes(bytes(11 * MIB))
            await until(lambda: channels[1].closed)
            assert not channels[0].closed and not channels[2].closed
            for context in contexts:
                await context.__aexit__(None, None, None)

    run(work())


def test_an_answer_asked_for_long_ago_waits_until_the_peer_reads() -> None:
    async def work() -> None:
        async with served(ServerLimits()) as (server, _), raw_peer(server.port) as peer:
            await until(lambda: server.channels)
            (channel,) = server.channels
            made: list[int] = []

            def answer() -> None:
                made.append(1)
                channel.send(RemotingCommand(7, None, bytes(MIB), flag=2))

            for _ in range(200):
                channel.when_writable(answer)
            few = len(made)
            assert few < 50, "some MB fill the line"
            for _ in range(200):
                assert (await peer.receive()).code == 7
            assert len(made) == 200

    run(work())


def test_a_slow_reader_that_goes_on_reading_is_not_idle() -> None:
    async def work() -> None:
        limits = ServerLimits(server_channel_max_idle_time_seconds=100)
        async with served(limits) as (server, _), raw_peer(server.port) as peer:
            peer.send(RemotingCommand(ECHO, None, b"q"))
            await peer.receive()
            (channel,) = server.channels
            channel.send_bytes(bytes(14 * MIB))
            await until(lambda: channel.unwritten_bytes > 0)

            def closed_after_a_long_time() -> bool:
                channel.last_active -= 200
                server._close_idle()
                return channel.closed

            for _ in range(4):
                left = channel.unwritten_bytes
                assert not closed_after_a_long_time(), "some of it has left since the last look"
                while channel.unwritten_bytes == left:
                    await peer.reader.readexactly(MIB)
            await until(closed_after_a_long_time)  # it reads no more

    run(work())


# -- requests ----------------------------------------------------------------------------


def _waiting_handlers(release: asyncio.Event, begun: list[int]) -> Handlers:
    handlers = echo_handlers()

    async def slow(_channel: Channel, request: RemotingCommand) -> RemotingCommand:
        begun.append(request.opaque)
        await release.wait()
        return request.reply()

    handlers.add(50, slow)
    return handlers


def test_bytes_of_requests_in_flight_are_bounded_by_reading_no_more() -> None:
    """Sixty requests of 8 MB that wait for somebody silent were 500 MB; 4,096 of them were allowed."""

    async def work() -> None:
        release, begun = asyncio.Event(), list[int]()
        limits = ServerLimits(max_partial_frame_bytes=2 * MAX_FRAME_BYTES)
        handlers = _waiting_handlers(release, begun)
        async with served(limits, handlers) as (server, load):
            contexts = [raw_peer(server.port) for _ in range(4)]
            peers = [await context.__aenter__() for context in contexts]
            *many, last = peers
            for peer in many:
                peer.send(*(RemotingCommand(50, None, bytes(4 * MIB), opaque=n) for n in range(8)))
            await until(lambda: load.is_full)
            last.send(RemotingCommand(50, None, bytes(4 * MIB), opaque=5), RemotingCommand(ECHO, opaque=6))
            await until(lambda: load._need_room)
            assert load.in_flight_bytes <= 2 * MAX_FRAME_BYTES + 4 * MIB
            assert len(begun) == load.in_flight_bytes // (4 * MIB)
            async with raw_peer(server.port) as bystander:
                bystander.send(RemotingCommand(ECHO, opaque=1))
                assert (await bystander.receive()).opaque == 1, "small ones pass"
            release.set()
            for peer in many:
                assert [(await peer.receive()).opaque for _ in range(8)] == [*range(8)]
            assert {(await last.receive()).opaque for _ in range(2)} == {5, 6}
            assert load.in_flight_bytes == 0
            for context in contexts:
                await context.__aexit__(None, None, None)

    run(work())


def test_a_connection_has_one_large_answer_made_at_a_time_and_only_when_it_has_read_the_last() -> None:
    """Four hundred small requests made four hundred answers of 6 MB, all at once."""

    async def work() -> None:
        handlers = echo_handlers()
        making: list[Channel] = []
        most = made = 0

        async def large(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            nonlocal most, made
            assert channel not in making
            making.append(channel)
            most = max(most, len(making))
            for _ in range(5):
                await asyncio.sleep(0)
            making.remove(channel)
            made += 1
            return request.reply(body=bytes(4 * MIB))

        handlers.add(60, large, large=True)
        async with served(ServerLimits(), handlers) as (server, load), raw_peer(server.port) as peer:
            peer.send(*(RemotingCommand(60, opaque=n) for n in range(100)))
            await until(lambda: load.waiting_bytes)
            for _ in range(200):
                await asyncio.sleep(0)
            assert made <= 8, "the lines between the two take some MB"
            peer.send(RemotingCommand(ECHO, opaque=7))
            assert {(await peer.receive()).opaque for _ in range(20)} <= {*range(20)}
            others = [raw_peer(server.port) for _ in range(20)]
            peers = [await other.__aenter__() for other in others]
            for one in peers:
                one.send(RemotingCommand(60))
            for one in peers:
                assert len((await one.receive()).body) == 4 * MIB
            assert 1 < most <= 8
            for other in others:
                await other.__aexit__(None, None, None)

    run(work())


@pytest.mark.parametrize("option", ["max_requests_in_flight_per_connection", "max_requests_in_flight"])
def test_requests_in_flight_are_bounded_by_reading_no_more(option: str) -> None:
    async def work() -> None:
        release = asyncio.Event()
        begun: list[int] = []
        limits = ServerLimits(**{option: 10})
        async with served(limits, _waiting_handlers(release, begun)) as (server, load):  # noqa: SIM117
            async with raw_peer(server.port) as peer, raw_peer(server.port) as other:
                peer.send(*(RemotingCommand(50, opaque=n) for n in range(1000)))
                await until(lambda: load.in_flight == 10)
                other.send(RemotingCommand(ECHO))
                assert (await other.receive()).code == 0, "whoever has none under way gets in"
                assert load.in_flight == 10
                release.set()
                answers = [(await peer.receive()).opaque for _ in range(1000)]
                assert begun == sorted(answers) == list(range(1000))
                assert load.in_flight == 0

    run(work())


def test_many_requests_of_one_read_leave_turns_to_others_and_keep_their_order() -> None:
    async def work() -> None:
        clock = ManualClock()
        handlers = echo_handlers()
        seen: list[str] = []

        def costly(_channel: Channel, request: RemotingCommand) -> RemotingCommand:
            clock.advance(0.001)
            seen.append(f"a{request.opaque}")
            return request.reply()

        def other(_channel: Channel, request: RemotingCommand) -> RemotingCommand:
            seen.append("other")
            return request.reply()

        handlers.add(60, costly)
        handlers.add(61, other)
        async with served(ServerLimits(), handlers, clock) as (server, _):  # noqa: SIM117
            async with raw_peer(server.port) as peer, raw_peer(server.port) as neighbour:
                peer.send(*(RemotingCommand(60, opaque=n) for n in range(300)))
                await until(lambda: seen)
                neighbour.send(RemotingCommand(61))
                assert (await neighbour.receive()).code == 0
                assert len(seen) < 200, "it did not wait for all of them"
                assert [(await peer.receive()).opaque for _ in range(300)] == list(range(300))
                assert [item for item in seen if item != "other"] == [f"a{n}" for n in range(300)]

    run(work())


def test_runs_of_a_batch_handler_are_cut_and_nothing_is_lost() -> None:
    async def work() -> None:
        handlers = echo_handlers()
        sizes: list[int] = []

        def batch(channel: Channel, frames: list[Frame]) -> int:
            sizes.append(len(frames))
            for frame in frames[:100]:
                channel.handle_frame(frame)
            return min(100, len(frames))

        handlers.add(310, lambda _channel, request: request.reply())
        handlers.add_batch(310, batch)
        async with served(ServerLimits(), handlers) as (server, _), raw_peer(server.port) as peer:
            peer.send(*(RemotingCommand(310, opaque=n) for n in range(1000)))
            assert [(await peer.receive()).opaque for _ in range(1000)] == list(range(1000))
            assert max(sizes) <= 512

    run(work())


def test_a_client_has_no_such_limits() -> None:
    """Two ends that both stopped reading until the other reads would wait for ever."""

    async def work() -> None:
        async with wire() as line:
            client = await line.client()
            answers = await asyncio.gather(
                *(client.call(RemotingCommand(ECHO, None, bytes(100_000)), 20.0) for _ in range(300))
            )
            assert all(len(answer.body) == 100_000 for answer in answers)

    run(work())


def test_hundreds_of_connections_come_and_go_and_leave_nothing() -> None:
    async def work() -> None:
        network = MemoryNetwork()
        load = Load()
        release = asyncio.Event()
        server = RemotingServer(_waiting_handlers(release, []), network=network.host("10.0.0.1"), load=load)
        await server.start("10.0.0.1", 9)

        async def visit(number: int) -> None:
            pool = ChannelPool(network=network.host(f"10.1.{number % 7}.{number % 200}"))
            try:
                channel = await pool.channel("10.0.0.1:9")
                await channel.call(RemotingCommand(ECHO), 30.0)
                channel.start_call(RemotingCommand(50), 30.0).add_done_callback(lambda call: call.exception())
                channel.send_bytes(encode_frame(RemotingCommand(ECHO, None, bytes(5000)))[:3000])
                await asyncio.sleep(0.01)
                channel.abort() if number % 2 else channel.close()
            except ConnectError:
                pytest.fail("refused")
            finally:
                await pool.close()

        for start in range(0, 200, 100):
            await asyncio.gather(*(visit(number) for number in range(start, start + 100)))
        await until(lambda: load.kept() == 0)
        assert not server.channels and load.partial_bytes == load.waiting_bytes == 0
        await server.close()

    run(work())


def test_a_crowd_that_speaks_at_once_is_served_in_several_turns_of_the_loop() -> None:
    async def work() -> None:
        clock = ManualClock()
        handled: list[bytes] = []

        def slow(_channel: Channel, request: RemotingCommand) -> RemotingCommand:
            clock.advance(0.001)
            handled.append(bytes(request.body))
            return request.reply(0, None, None, request.body)

        handlers = Handlers()
        handlers.add(ECHO, slow)
        crowd = 100
        async with served(ServerLimits(), handlers, clock) as (server, _), AsyncExitStack() as stack:
            peers = [await stack.enter_async_context(raw_peer(server.port)) for _ in range(crowd)]
            await until(lambda: len(server.channels) == crowd)
            channels = sorted(server.channels, key=lambda channel: channel.address)
            turns: list[int] = []

            def count() -> None:
                turns.append(len(handled))
                if len(handled) < 2 * crowd:
                    loop.call_soon(count)

            loop = asyncio.get_running_loop()
            for channel in channels:  # as a loop does that finds all of them readable
                for word in (b"first", b"second"):
                    body = f"{channel.address} ".encode() + word
                    channel.data_received(encode_frame(RemotingCommand(ECHO, None, body)))
            count()
            await until(lambda: len(handled) == 2 * crowd)
            assert turns[0] < 10  # the first without a look at the clock, and 5 ms
            assert (
                max(after - before for before, after in pairwise(turns)) < 30
            )  # those have both their words
            for channel in channels:  # each in its order
                mine = [body for body in handled if body.startswith(f"{channel.address} ".encode())]
                assert [body.split()[-1] for body in mine] == [b"first", b"second"]
            for peer in peers:
                assert (await peer.receive()).code == (await peer.receive()).code == 0

    run(work())


def test_a_crowd_that_waits_for_its_turn_does_not_keep_more_than_it_may() -> None:
    async def work() -> None:
        clock = ManualClock()

        def slow(_channel: Channel, _request: RemotingCommand) -> None:
            clock.advance(0.01)

        handlers = Handlers()
        handlers.add(ECHO, slow)
        limits = ServerLimits(max_partial_frame_bytes=MAX_FRAME_BYTES)
        frame = encode_frame(RemotingCommand(ECHO, None, bytes(240_000)))
        async with served(limits, handlers, clock) as (server, load), AsyncExitStack() as stack:
            for _ in range(100):
                await stack.enter_async_context(raw_peer(server.port))
            await until(lambda: len(server.channels) == 100)
            for channel in server.channels:
                channel.data_received(frame[:100])
                channel.data_received(frame[100:])
            kept = sum(len(held[2]) for channel in server.channels for held in channel._held)
            assert MAX_FRAME_BYTES // 2 < kept < MAX_FRAME_BYTES + len(frame)
            assert kept <= load.held_bytes < MAX_FRAME_BYTES + 2 * len(frame)
            for channel in list(server.channels)[50:60]:
                channel.abort()
            await until(lambda: load.held_bytes == 0)

    run(work())
