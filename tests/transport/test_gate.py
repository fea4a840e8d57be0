"""The gate of a server: nothing reaches a handler past it."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from pathlib import Path

import pytest

from gimbalmq.errors import AccessRefusedError, InvalidParameterError, NoPermissionError
from gimbalmq.protocol.codes import ResponseCode
from gimbalmq.protocol.command import BINARY_HEADER, ONEWAY_FLAG, RemotingCommand
from gimbalmq.protocol.frames import Frame
from gimbalmq.transport.channel import Channel, Handlers
from gimbalmq.transport.tls import PeerCertificate, ServerTls, client_tls
from gimbalmq.transport.tls_config import TlsConfig
from tests.support import run, until
from tests.transport.wiring import ECHO, Authority, echo_handlers, raw_peer, wire

BATCHED = 310
UNKNOWN = 999


class Doorman:
    """Refuses what says so in its field ``refuse``, after so many seconds; fails if it is to."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.certificates: list[PeerCertificate | None] = []
        self.told: list[str] = []

    def refused(self, channel: Channel, command: RemotingCommand, remark: str) -> None:
        self.told.append(f"{command.code} {remark}")

    def check(self, channel: Channel, command: RemotingCommand) -> None:
        self.seen.append(command.code)
        self.certificates.append(channel.peer_certificate)
        fields = command.ext_fields or {}
        if "fail" in fields:
            raise RuntimeError("the gate has a fault")
        if "odd" in fields:
            raise InvalidParameterError("what is it about?")
        if "refuse" in fields:
            raise AccessRefusedError("no", delay=float(fields["refuse"]), holds="holds" in fields)


def guarded(handlers: Handlers | None = None) -> tuple[Handlers, Doorman]:
    handlers, doorman = handlers or echo_handlers(), Doorman()
    handlers.gate = doorman
    return handlers, doorman


def test_every_request_is_asked_about_also_one_that_nobody_knows() -> None:
    async def work() -> None:
        handlers, doorman = guarded()
        async with wire(handlers) as line:
            client = await line.client()
            for encoding in (0, BINARY_HEADER):
                for code in (ECHO, UNKNOWN):
                    refused = RemotingCommand(code, {"refuse": "0"}, serialize_type=encoding)
                    answer = await client.call(refused, 5)
                    assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "no")
            assert (await client.call(RemotingCommand(ECHO, None, b"x"), 5)).body == b"x"
            unknown = await client.call(RemotingCommand(UNKNOWN), 5)
            assert unknown.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert doorman.seen == [ECHO, UNKNOWN, ECHO, UNKNOWN, ECHO, UNKNOWN]

    run(work())


def test_a_gate_that_fails_stays_shut() -> None:
    async def work() -> None:
        handlers, _ = guarded()
        async with wire(handlers) as line:
            client = await line.client()
            failed = await client.call(RemotingCommand(ECHO, {"fail": ""}, b"x"), 5)
            assert failed.code == ResponseCode.SYSTEM_ERROR and not failed.body
            odd = await client.call(RemotingCommand(ECHO, {"odd": ""}, b"x"), 5)
            assert (odd.code, odd.remark, odd.body) == (29, "what is it about?", b"")

    run(work())


@pytest.mark.parametrize("checks", [False, True])
def test_a_batch_handler_gets_frames_only_if_it_asks_the_gate_itself(checks: bool) -> None:
    async def work() -> None:
        runs: list[int] = []

        def batch(channel: Channel, frames: list[Frame]) -> int:
            runs.append(len(frames))
            for frame in frames:
                channel.handle_frame(frame)
            return len(frames)

        handlers = Handlers()
        handlers.add(BATCHED, lambda _channel, request: request.reply(0, "served"))
        handlers.add_batch(BATCHED, batch, checks=checks)
        handlers, doorman = guarded(handlers)
        async with wire(handlers) as line, raw_peer(line.server.port) as peer:
            refused = RemotingCommand(BATCHED, {"refuse": "0"}, opaque=2)
            peer.send(RemotingCommand(BATCHED, opaque=1), refused, RemotingCommand(BATCHED, opaque=3))
            remarks = [(await peer.receive()).remark for _ in range(3)]
        assert remarks == ["served", "no", "served"]
        assert doorman.seen == [BATCHED] * 3
        assert bool(runs) == checks

    run(work())


def test_a_refusal_may_come_late_and_holds_nobody_who_is_known() -> None:
    async def work() -> None:
        handlers, _ = guarded()
        async with wire(handlers) as line:
            client, peer = await line.client(), await line.peer()
            late = client.start_call(RemotingCommand(ECHO, {"refuse": "30"}, b"x" * 1000), 60)
            assert (await client.call(RemotingCommand(ECHO), 5)).code == 0
            assert not late.done()
            load = peer.load
            assert load is not None and load.in_flight == 1 and load.in_flight_bytes == 0
            late.cancel()
            client.abort()
            await until(lambda: load.in_flight == 0)

    run(work())


def test_a_stranger_waits_for_a_late_refusal_with_everything_else_he_sends() -> None:
    async def work() -> None:
        handlers, doorman = guarded()
        async with wire(handlers) as line, raw_peer(line.server.port) as peer:
            guess = {"refuse": "0.05", "holds": ""}
            peer.send(*(RemotingCommand(ECHO, guess, opaque=number) for number in range(3)))
            first = await peer.receive()
            assert first.remark == "no"
            assert len(doorman.seen) <= 2, "one guess at a time"
            # Another connection from the same address is served meanwhile.
            client = await line.client()
            assert (await client.call(RemotingCommand(ECHO), 5)).code == 0
            assert [(await peer.receive()).opaque for _ in range(2)] == [1, 2]
            peer.send(RemotingCommand(ECHO, None, b"x", opaque=9))
            assert (await peer.receive()).body == b"x"

    run(work())


def test_who_is_refused_again_and_again_does_not_use_up_what_a_server_works_on_at_once() -> None:
    async def work() -> None:
        handlers, doorman = guarded()
        async with wire(handlers) as line, raw_peer(line.server.port) as peer:
            peer.send(*(RemotingCommand(ECHO, {"refuse": "30"}, opaque=number) for number in range(200)))
            await until(lambda: len(doorman.seen) >= 16)
            await asyncio.sleep(0.05)
            (channel,) = line.server.channels
            assert channel.load is not None
            assert channel.load.in_flight == len(doorman.seen) == 16
            client = await line.client()
            assert (await client.call(RemotingCommand(ECHO), 5)).code == 0

    run(work())


def test_what_a_handler_refuses_is_told_to_the_gate() -> None:
    async def later(_channel: Channel, _request: RemotingCommand) -> RemotingCommand:
        raise NoPermissionError("not later")

    def at_once(_channel: Channel, request: RemotingCommand) -> RemotingCommand:
        raise InvalidParameterError("odd") if request.ext_fields else NoPermissionError("not now")

    async def work() -> None:
        handlers = Handlers()
        handlers.add(1, at_once)
        handlers.add(2, later)
        handlers.add(3, lambda _channel, request: request.reply(ResponseCode.NO_PERMISSION, "not so"))
        handlers, doorman = guarded(handlers)
        async with wire(handlers) as line:
            client = await line.client()
            by_itself = ({"refuse": "0"}, {"refuse": "0.001"}, {"refuse": "0.001", "holds": ""})
            for code, fields in (
                (1, None),
                (2, None),
                (3, None),
                (1, {"a": "b"}),
                *((1, own) for own in by_itself),
            ):
                await client.call(RemotingCommand(code, fields), 5)
        assert doorman.told == ["1 not now", "2 not later", "3 not so"]

    run(work())


def test_a_refused_one_way_request_is_not_answered() -> None:
    async def work() -> None:
        handlers, doorman = guarded()
        async with wire(handlers) as line, raw_peer(line.server.port) as peer:
            for delay in ("0", "0.001"):
                peer.send(RemotingCommand(ECHO, {"refuse": delay}, flag=ONEWAY_FLAG, opaque=1))
            await until(lambda: len(doorman.seen) == 2)
            await asyncio.sleep(0.01)
            peer.send(RemotingCommand(ECHO, opaque=2))
            assert (await peer.receive()).opaque == 2

    run(work())


def test_the_certificate_of_a_peer_is_known_if_it_was_verified(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, client = authority.sign("server"), authority.sign("orders")
    raw = ssl.PEM_cert_to_DER_cert(Path(client.cert_path).read_text())

    async def shown(need: str, cert: str | None = None, key: str | None = None) -> PeerCertificate | None:
        handlers, doorman = guarded()
        config = TlsConfig(
            tls_server_cert_path=server.cert_path,
            tls_server_key_path=server.key_path,
            tls_server_trust_cert_path=authority.certificate.cert_path,
            tls_server_need_client_auth=need,
        )
        context = client_tls(authority.certificate.cert_path, cert, key)
        async with wire(handlers, tls=ServerTls(config), client_tls=context) as line:
            channel = await line.client()
            for _ in range(2):
                assert (await channel.call(RemotingCommand(ECHO), 5)).code == 0
        assert doorman.certificates[0] == doorman.certificates[1]
        return doorman.certificates[0]

    own = client.cert_path, client.key_path
    assert run(shown("require", *own)) == PeerCertificate("orders", hashlib.sha256(raw).hexdigest())
    assert run(shown("optional")) is None
    assert run(shown("none", *own)) is None


def test_a_certificate_that_nobody_verified_is_none(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = authority.sign("server")
    config = TlsConfig(tls_server_cert_path=server.cert_path, tls_server_key_path=server.key_path)

    async def seen(ca: str | None) -> PeerCertificate | None:
        async with wire(tls=ServerTls(config), client_tls=client_tls(ca, verify=ca is not None)) as line:
            return (await line.client()).peer_certificate

    believed = run(seen(authority.certificate.cert_path))
    assert believed is not None and believed.name == "server"
    assert run(seen(None)) is None


def test_a_plain_connection_has_no_certificate_and_its_host_is_its_address() -> None:
    async def work() -> None:
        handlers, doorman = guarded()
        async with wire(handlers) as line:
            peer = await line.peer()
            await (await line.client()).call(RemotingCommand(ECHO), 5)
            assert doorman.certificates == [None]
            assert peer.host == "127.0.0.1" and peer.address.startswith("127.0.0.1:")

    run(work())
