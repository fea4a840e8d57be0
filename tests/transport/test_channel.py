"""One connection, both roles, over a real loopback socket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gimbalmq.errors import (
    ConnectionLostError,
    LocalProtocolError,
    OverloadedError,
    RequestTimeoutError,
    StoreIOError,
    TopicNotExistError,
)
from gimbalmq.protocol.codes import OUR_VERSION
from gimbalmq.protocol.command import BINARY_HEADER, JSON_HEADER, RemotingCommand
from gimbalmq.protocol.frames import MAX_FRAME_BYTES, Frame
from gimbalmq.protocol.serializers import decode_command, encode_frame
from gimbalmq.transport import channel as channel_module
from gimbalmq.transport import server
from gimbalmq.transport.channel import Channel, Handlers
from tests.support import run, until
from tests.transport.wiring import ECHO, SILENT, echo, echo_handlers, raw_peer, wire


def test_call_brings_the_answer_back() -> None:
    async def work() -> None:
        async with wire() as line:
            answer = await (await line.client()).call(RemotingCommand(ECHO, {"a": "b"}, b"body"), 5.0)
            assert answer.is_response
            assert (answer.code, answer.ext_fields, answer.body) == (0, {"a": "b"}, b"body")
            assert answer.version == OUR_VERSION

    run(work())


def test_pipelined_calls_get_their_own_answers_in_any_order() -> None:
    async def work() -> None:
        held: list[tuple[RemotingCommand, asyncio.Future[RemotingCommand | None]]] = []

        def hold(_channel: Channel, request: RemotingCommand) -> asyncio.Future[RemotingCommand | None]:
            future: asyncio.Future[RemotingCommand | None] = asyncio.get_running_loop().create_future()
            held.append((request, future))
            return future

        handlers = Handlers()
        handlers.add(ECHO, hold)
        async with wire(handlers) as line:
            client = await line.client()
            calls = [client.start_call(RemotingCommand(ECHO, None, str(n).encode()), 5.0) for n in range(100)]
            await until(lambda: len(held) == 100)
            for request, future in reversed(held):
                future.set_result(echo(client, request))
            answers = await asyncio.gather(*calls)
            assert [answer.body for answer in answers] == [str(n).encode() for n in range(100)]

    run(work())


def test_both_ends_ask_and_answer_on_one_connection_at_once() -> None:
    async def work() -> None:
        async with wire(client_handlers=echo_handlers()) as line:
            client, server = await line.client(), await line.peer()
            calls = [
                end.start_call(RemotingCommand(ECHO, {"from": name}, str(n).encode()), 5.0)
                for n in range(200)
                for name, end in (("client", client), ("server", server))
            ]
            answers = await asyncio.gather(*calls)
            assert [(answer.ext_fields, answer.body) for answer in answers] == [
                ({"from": name}, str(n).encode()) for n in range(200) for name in ("client", "server")
            ]
            assert len(line.server.channels) == 1

    run(work())


def test_one_way_request_is_served_but_gets_no_answer() -> None:
    async def work() -> None:
        served: list[int] = []

        def note(_channel: Channel, request: RemotingCommand) -> RemotingCommand:
            served.append(request.flag)
            return request.reply()

        def fail(_channel: Channel, request: RemotingCommand) -> RemotingCommand:
            served.append(request.flag)
            raise TopicNotExistError("no")

        handlers = echo_handlers()
        handlers.add(7, note)
        handlers.add(8, fail)
        async with wire(handlers) as line, raw_peer(line.server.port) as peer:
            peer.send(
                RemotingCommand(7, opaque=1, flag=2),
                RemotingCommand(8, opaque=2, flag=2),
                RemotingCommand(999, opaque=3, flag=2),
                RemotingCommand(ECHO, opaque=4),
            )
            assert (await peer.receive()).opaque == 4
            assert served == [2, 2]
            client = await line.client()
            client.oneway(RemotingCommand(7))
            await line.pool.oneway(line.address, RemotingCommand(7))
            await until(lambda: len(served) == 4)
            assert served == [2, 2, 2, 2]

    run(work())


def test_coroutine_handler_answers_when_it_is_done() -> None:
    async def work() -> None:
        gate = asyncio.Event()

        async def slow(_channel: Channel, request: RemotingCommand) -> RemotingCommand:
            await gate.wait()
            return request.reply(0, "late")

        async def silent(_channel: Channel, _request: RemotingCommand) -> None:
            return None

        handlers = echo_handlers()
        handlers.add(7, slow)
        handlers.add(8, silent)
        async with wire(handlers) as line:
            client = await line.client()
            late = client.start_call(RemotingCommand(7), 5.0)
            never = client.start_call(RemotingCommand(8), 5.0)
            assert (await client.call(RemotingCommand(ECHO), 5.0)).remark is None
            assert not late.done()
            gate.set()
            assert (await late).remark == "late"
            assert not never.done()
            never.cancel()

    run(work())


async def _fail_late(_channel: Channel, _request: RemotingCommand) -> RemotingCommand:
    raise StoreIOError("the disk is gone")


def _fail_at_once(_channel: Channel, request: RemotingCommand) -> RemotingCommand:
    if request.ext_fields is None:
        raise ValueError("nobody expected this")
    raise TopicNotExistError("topic T is unknown")


def test_errors_of_handlers_become_answers(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        handlers = Handlers()
        handlers.add(7, _fail_at_once)
        handlers.add(8, _fail_late)
        async with wire(handlers) as line:
            client = await line.client()
            known = await client.call(RemotingCommand(7, {}), 5.0)
            assert (known.code, known.remark) == (17, "topic T is unknown")
            store = await client.call(RemotingCommand(8), 5.0)
            assert (store.code, store.remark) == (14, "the disk is gone")
            surprise = await client.call(RemotingCommand(7), 5.0)
            assert (surprise.code, surprise.remark) == (1, "ValueError: nobody expected this")
            unknown = await client.call(RemotingCommand(555), 5.0)
            assert (unknown.code, unknown.remark) == (3, " request type 555 not supported")

    with caplog.at_level(logging.ERROR):
        run(work())
    assert [record.getMessage() for record in caplog.records] == ["request 7 failed"]


def test_clients_pass_over_unknown_requests_in_silence() -> None:
    async def work() -> None:
        handlers = Handlers(answer_unknown=False)
        handlers.add(ECHO, echo)
        async with wire(client_handlers=handlers) as line:
            server = await line.peer()
            unanswered = server.start_call(RemotingCommand(555), 5.0)
            await server.call(RemotingCommand(ECHO), 5.0)
            assert not unanswered.done()
            unanswered.cancel()

    run(work())


def test_call_without_answer_times_out_and_its_late_answer_is_dropped() -> None:
    async def work() -> None:
        held: list[RemotingCommand] = []
        handlers = echo_handlers()
        handlers.add(7, lambda _channel, request: held.append(request))
        async with wire(handlers) as line:
            client = await line.client()
            with pytest.raises(RequestTimeoutError, match="outcome is unknown"):
                await client.call(RemotingCommand(7), 0.02)
            server = await line.peer()
            server.send(held[0].reply())
            assert (await client.call(RemotingCommand(ECHO), 5.0)).code == 0

    run(work())


def test_short_timeout_is_kept_behind_a_long_one() -> None:
    async def work() -> None:
        async with wire() as line:
            client = await line.client()
            long = client.start_call(RemotingCommand(SILENT), 60.0)
            with pytest.raises(RequestTimeoutError):
                await client.call(RemotingCommand(SILENT), 0.02)
            with pytest.raises(RequestTimeoutError):
                await client.call(RemotingCommand(SILENT), 0.01)
            assert not long.done()
            long.cancel()

    run(work(), seconds=30.0)


def test_lost_connection_fails_all_calls_at_once() -> None:
    async def work() -> None:
        closed: list[Channel] = []
        client_handlers = Handlers(answer_unknown=False)
        client_handlers.closed = closed.append
        async with wire(client_handlers=client_handlers) as line:
            client = await line.client()
            calls = [client.start_call(RemotingCommand(SILENT), 600.0) for _ in range(3)]
            (await line.peer()).abort()
            for call in calls:
                with pytest.raises(ConnectionLostError, match="outcome is unknown"):
                    await call
            assert client.closed
            assert closed == [client]
            with pytest.raises(ConnectionLostError, match="is closed"):
                await client.call(RemotingCommand(ECHO), 5.0)
            again = await line.client()
            assert again is not client
            assert (await again.call(RemotingCommand(ECHO), 5.0)).code == 0

    run(work())


class Note:
    """A waiter that is no future."""

    def __init__(self) -> None:
        self.told: list[RemotingCommand | Exception] = []

    def done(self) -> bool:
        return False

    def set_result(self, result: RemotingCommand) -> None:
        self.told.append(result)

    def set_exception(self, exception: Exception) -> None:
        self.told.append(exception)


def test_a_waiter_of_ones_own_hears_of_the_answer_or_why_there_is_none() -> None:
    async def work() -> None:
        async with wire() as line:
            client = await line.client()

            def start(code: int, timeout: float) -> Note:
                note = Note()
                opaque = client.next_opaque()
                frame = encode_frame(RemotingCommand(code, None, b"x", opaque=opaque))
                client.start_frame(opaque, frame, timeout, note)
                return note

            answered, late, lost = start(ECHO, 5.0), start(SILENT, 0.02), start(SILENT, 5.0)
            await until(lambda: bool(answered.told and late.told))
            (await line.peer()).abort()
            await until(lambda: client.closed)
            told = [type(note.told[0]) for note in (late, lost, start(ECHO, 5.0))]
            assert told == [RequestTimeoutError, ConnectionLostError, ConnectionLostError]
            (answer,) = answered.told
            assert isinstance(answer, RemotingCommand) and answer.body == b"x"

    run(work())


def test_many_calls_of_one_turn_do_not_wait_for_its_end() -> None:
    async def work() -> None:
        async with wire() as line:
            client = await line.client()
            body = bytes(channel_module.REQUEST_BYTES)
            call = client.start_call(RemotingCommand(ECHO, None, body), 5.0)
            assert not client._out
            assert (await call).body == body

    run(work())


def test_few_calls_leave_by_halves_and_many_gather(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with wire() as line:
            client = await line.client()
            left: list[int] = []
            flush = client.flush

            def note() -> None:
                if client._out:
                    left.append(len(client._out))
                flush()

            monkeypatch.setattr(client, "flush", note)

            async def writes(calls: int) -> list[int]:
                """How many calls each write has if so many begin in one turn, and how many there are in that turn."""
                left.clear()
                begun = [client.start_call(RemotingCommand(ECHO), 5.0) for _ in range(calls)]
                at_once = left.copy()
                await asyncio.gather(*begun)
                assert sum(left) == calls
                return at_once

            assert await writes(1) == [], "it may be the first of many"
            assert await writes(1) == [1], "nothing was there to gather with"
            assert await writes(8) == [1, 1, 2, 4]
            many = channel_module._FEW_FRAMES * 8
            await writes(many)
            assert left[-1] > channel_module._FEW_FRAMES
            assert await writes(many) == [], "there were many the last time"
            assert left == [many]

    run(work())


def test_handler_still_at_work_is_cancelled_when_its_peer_goes() -> None:
    async def work() -> None:
        ended = asyncio.Event()
        begun = asyncio.Event()

        async def forever(_channel: Channel, request: RemotingCommand) -> RemotingCommand:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            return request.reply()

        handlers = Handlers()
        handlers.add(7, forever)
        async with wire(handlers) as line:
            client = await line.client()
            client.oneway(RemotingCommand(7))
            await begun.wait()
            client.abort()
            await ended.wait()

    run(work())


def test_handler_that_completes_is_not_cancelled_when_its_peer_goes() -> None:
    async def work() -> None:
        begun, go_on, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def change(_channel: Channel, request: RemotingCommand) -> RemotingCommand:
            begun.set()
            await go_on.wait()
            done.set()
            return request.reply()

        handlers = Handlers()
        handlers.add(7, change, completes=True)
        async with wire(handlers) as line:
            client = await line.client()
            client.oneway(RemotingCommand(7))
            await begun.wait()
            client.abort()
            await until(lambda: not line.server.channels)
            go_on.set()
            await done.wait()

    run(work())


def test_server_that_closes_waits_for_what_completes_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "_PATIENCE_SECONDS", 0.2)

    async def work() -> None:
        begun, ended = 0, []

        async def change(_channel: Channel, request: RemotingCommand) -> RemotingCommand:
            nonlocal begun
            begun += 1
            try:
                await asyncio.sleep(0.05 if request.body else 3600)
                ended.append("done")
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise
            return request.reply()

        handlers = Handlers()
        handlers.add(7, change, completes=True)
        async with wire(handlers) as line:
            client = await line.client()
            client.oneway(RemotingCommand(7, body=b"soon"))
            client.oneway(RemotingCommand(7))
            await until(lambda: begun == 2)
        assert ended == ["done", "cancelled"]

    run(work())


def test_too_many_calls_in_flight_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with wire() as line:
            client = await line.client()
            calls = [client.start_call(RemotingCommand(SILENT), 600.0) for _ in range(2)]
            with pytest.raises(OverloadedError):
                await client.call(RemotingCommand(SILENT), 5.0)
            for call in calls:
                call.cancel()

    monkeypatch.setattr(channel_module, "MAX_CALLS_IN_FLIGHT", 2)
    run(work())


def test_too_many_handlers_at_work_answer_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        gate = asyncio.Event()

        async def slow(_channel: Channel, request: RemotingCommand) -> RemotingCommand:
            await gate.wait()
            return request.reply()

        handlers = Handlers()
        handlers.add(7, slow)
        async with wire(handlers) as line, raw_peer(line.server.port) as peer:
            peer.send(*(RemotingCommand(7, opaque=number) for number in range(3)))
            refused = await peer.receive()
            assert (refused.opaque, refused.code) == (2, 2)
            assert refused.remark is not None
            assert refused.remark.startswith("[OVERLOAD]system busy")
            gate.set()
            assert {(await peer.receive()).opaque for _ in range(2)} == {0, 1}

    monkeypatch.setattr(channel_module, "MAX_CALLS_IN_FLIGHT", 2)
    run(work())


def test_binary_request_is_answered_in_binary() -> None:
    async def work() -> None:
        async with wire() as line, raw_peer(line.server.port) as peer:
            peer.send(RemotingCommand(ECHO, {"a": "b"}, b"x", opaque=5, serialize_type=BINARY_HEADER))
            answer = await peer.receive()
            assert (answer.serialize_type, answer.opaque, answer.ext_fields) == (BINARY_HEADER, 5, {"a": "b"})
            peer.send(RemotingCommand(999, opaque=6, serialize_type=BINARY_HEADER))
            refused = await peer.receive()
            assert (refused.serialize_type, refused.code) == (BINARY_HEADER, 3)
            peer.send(RemotingCommand(ECHO, opaque=7))
            assert (await peer.receive()).serialize_type == JSON_HEADER

    run(work())


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="a browser"),
        pytest.param(bytes(8), id="length zero"),
        pytest.param(b"\xff" * 8, id="negative length"),
        pytest.param(b"\0\0\0\6\2\0\0\2{}", id="unknown encoding"),
        pytest.param(b"\0\0\0\6\0\0\0\2[]", id="header is no object"),
    ],
)
def test_peer_that_talks_nonsense_is_closed_and_others_are_served(garbage: bytes) -> None:
    async def work() -> None:
        async with wire() as line, raw_peer(line.server.port) as peer:
            client = await line.client()
            peer.send(RemotingCommand(ECHO, opaque=1))
            assert (await peer.receive()).opaque == 1
            peer.writer.write(garbage)
            assert await peer.ended()
            assert (await client.call(RemotingCommand(ECHO), 5.0)).code == 0

    run(work())


def test_requests_before_the_nonsense_in_one_read_are_answered() -> None:
    async def work() -> None:
        served: list[int] = []

        def note(_channel: Channel, request: RemotingCommand) -> RemotingCommand:
            served.append(request.opaque)
            return request.reply()

        handlers = Handlers()
        handlers.add(7, note)
        async with wire(handlers) as line, raw_peer(line.server.port) as peer:
            peer.writer.write(encode_frame(RemotingCommand(7, opaque=1)) + b"\0\0\0\6\0\0\0\2[]")
            await until(lambda: served)
            with pytest.raises((EOFError, ConnectionError)):
                while True:
                    await peer.receive()

    run(work())


def test_runs_of_a_code_reach_its_batch_handler_in_order() -> None:
    async def work() -> None:
        seen: list[tuple[str, list[int]]] = []

        def batch(channel: Channel, frames: list[Frame]) -> int:
            requests = [decode_command(*frame) for frame in frames]
            seen.append(("batch", [request.opaque for request in requests]))
            channel.send_bytes(b"".join(encode_frame(request.reply()) for request in requests))
            return len(frames)

        def plain(_channel: Channel, request: RemotingCommand) -> RemotingCommand:
            seen.append(("plain", [request.opaque]))
            return request.reply()

        handlers = Handlers()
        handlers.add(310, plain)
        handlers.add(ECHO, plain)
        handlers.add_batch(310, batch)
        async with wire(handlers) as line, raw_peer(line.server.port) as peer:
            peer.send(
                *(RemotingCommand(310, opaque=number) for number in (1, 2, 3)),
                RemotingCommand(ECHO, opaque=4),
                RemotingCommand(310, opaque=5, serialize_type=BINARY_HEADER),
                *(RemotingCommand(310, opaque=number) for number in (6, 7)),
            )
            assert [(await peer.receive()).opaque for _ in range(7)] == [1, 2, 3, 4, 5, 6, 7]
            assert seen == [("batch", [1, 2, 3]), ("plain", [4]), ("plain", [5]), ("batch", [6, 7])]

    run(work())


@asynccontextmanager
async def noted_runs() -> AsyncIterator[tuple[Channel, list[int]]]:
    """A server's end of a connection, and how many frames its batch handler was given each time."""
    runs: list[int] = []

    def batch(_channel: Channel, frames: list[Frame]) -> int:
        runs.append(len(frames))
        return len(frames)

    handlers = Handlers()
    handlers.add_batch(310, batch)
    async with wire(handlers) as line, raw_peer(line.server.port):
        await until(lambda: line.server.channels)
        (channel,) = line.server.channels
        yield channel, runs


def full_reads(body: int, count: int) -> tuple[list[bytes], int]:
    """So many reads that fill their buffer with requests, the begin of one more request, and how many are whole."""
    one = encode_frame(RemotingCommand(310, body=bytes(body)))
    size = channel_module._FULL_READ
    whole = size * count // len(one)
    data = one * (whole + 1)
    return [data[size * n : size * (n + 1)] for n in range(count)], whole


def test_requests_of_reads_that_follow_at_once_are_one_run() -> None:
    async def work() -> None:
        async with noted_runs() as (channel, runs):
            reads, whole = full_reads(1024, 2)
            channel.data_received(reads[0])
            assert runs == []
            channel.data_received(reads[1][:-5000])
            assert len(runs) == 1 and whole - 6 <= runs[0] < whole
            assert channel.load is not None and channel.load.held_bytes == 0

    run(work())


def test_requests_of_a_full_read_are_handled_in_the_next_turn_if_nothing_follows() -> None:
    async def work() -> None:
        async with noted_runs() as (channel, runs):
            (read,), whole = full_reads(1024, 1)
            channel.data_received(read)
            assert runs == []
            await asyncio.sleep(0)
            assert runs == [whole]
            channel.data_received(read[-1000:])
            assert channel.load is not None and channel.load.held_bytes == 0

    run(work())


def test_requests_of_a_full_read_are_handled_before_its_peer_is_gone() -> None:
    async def work() -> None:
        async with noted_runs() as (channel, runs):
            (read,), whole = full_reads(1024, 1)
            channel.data_received(read)
            channel.eof_received()
            assert runs == [whole]

    run(work())


def test_requests_of_a_full_read_are_handled_although_the_next_one_is_illegal() -> None:
    async def work() -> None:
        async with noted_runs() as (channel, runs):
            one = encode_frame(
                RemotingCommand(310, body=bytes(1016 - len(encode_frame(RemotingCommand(310)))))
            )
            whole = channel_module._FULL_READ // len(one) + 1
            channel.data_received(one * whole)
            assert runs == []
            channel.data_received(b"\xff" * 8)
            assert runs == [whole]

    run(work())


def test_requests_that_make_a_run_wait_for_no_other_read() -> None:
    async def work() -> None:
        async with noted_runs() as (channel, runs):
            (read,), whole = full_reads(100, 1)
            channel.data_received(read)
            assert sum(runs) == whole and runs[0] == channel_module._RUN_FRAMES

    run(work())


def test_requests_that_keep_much_memory_wait_for_no_other_read() -> None:
    async def work() -> None:
        async with noted_runs() as (channel, runs):
            reads, _ = full_reads(20_000, 4)
            for read in reads[:-1]:
                channel.data_received(read)
                assert runs == []
            channel.data_received(reads[-1])
            assert len(runs) == 1

    run(work())


def test_batch_codes_of_two_digits_do_not_catch_longer_ones() -> None:
    handlers = Handlers()
    handlers.add_batch(10, lambda _channel, frames: len(frames))
    for code, caught in ((10, True), (100, False), (101, False), (1, False), (310, False)):
        frame = encode_frame(RemotingCommand(code))
        assert (frame[8:][8:11] in handlers.batches) is caught


def test_peer_that_does_not_read_is_not_read_either_and_memory_stays_bounded() -> None:
    async def work() -> None:
        served = 0

        def big(_channel: Channel, request: RemotingCommand) -> RemotingCommand:
            nonlocal served
            served += 1
            return request.reply(body=bytes(65536))

        count = 2000
        handlers = Handlers()
        handlers.add(7, big)
        async with wire(handlers) as line, raw_peer(line.server.port) as peer:
            peer.send(*(RemotingCommand(7, opaque=number) for number in range(count)))
            await until(lambda: line.server.channels)
            (server,) = line.server.channels
            await until(lambda: server._write_paused)
            for _ in range(100):
                await asyncio.sleep(0)
            assert served < count / 2
            transport = server._transport
            assert transport is not None
            assert transport.get_write_buffer_size() < 2_000_000
            for number in range(count):
                assert (await peer.receive()).opaque == number
            assert served == count

    run(work(), seconds=60.0)


def test_two_ends_that_flood_each_other_do_not_lock_up() -> None:
    async def work() -> None:
        async with wire(client_handlers=echo_handlers()) as line:
            client, server = await line.client(), await line.peer()
            calls = [
                end.start_call(RemotingCommand(ECHO, None, bytes(16_384)), 50.0)
                for _ in range(1500)
                for end in (client, server)
            ]
            answers = await asyncio.gather(*calls)
            assert all(len(answer.body) == 16_384 for answer in answers)

    run(work(), seconds=60.0)


def test_command_too_large_for_the_wire_fails_alone() -> None:
    async def work() -> None:
        def huge(_channel: Channel, request: RemotingCommand) -> RemotingCommand:
            return request.reply(body=bytes(MAX_FRAME_BYTES))

        handlers = echo_handlers()
        handlers.add(7, huge)
        async with wire(handlers) as line:
            client = await line.client()
            other = client.start_call(RemotingCommand(ECHO), 5.0)
            with pytest.raises(LocalProtocolError):
                await client.call(RemotingCommand(ECHO, None, bytes(MAX_FRAME_BYTES)), 5.0)
            answer = await client.call(RemotingCommand(7), 5.0)
            assert answer.code == 1
            assert answer.remark is not None
            assert "largest frame" in answer.remark
            assert (await other).code == 0
            assert len(client._pending) == 0

    run(work())


def test_frame_of_many_reads_arrives_whole() -> None:
    async def work() -> None:
        body = bytes(range(256)) * 16_000
        async with wire() as line:
            answer = await (await line.client()).call(RemotingCommand(ECHO, None, body), 10.0)
            assert answer.body == body

    run(work())


def test_addresses_of_the_peer_are_known() -> None:
    async def work() -> None:
        async with wire() as line:
            client, server = await line.client(), await line.peer()
            assert client.address == line.address
            host, _, port = server.address.rpartition(":")
            assert host == "127.0.0.1"
            assert server.peer_bytes == bytes([127, 0, 0, 1]) + int(port).to_bytes(4, "big")

    run(work())
