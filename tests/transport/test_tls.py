"""TLS and plain peers on one port."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from gimbalmq.errors import ConfigError, ConnectionLostError
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.serializers import encode_frame
from gimbalmq.transport.tls import ServerTls, TlsMode, TlsPipe, trusting_client_context
from tests.support import run
from tests.transport.wiring import ECHO, Certificate, echo_handlers, raw_peer, self_signed, wire


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return self_signed(tmp_path_factory.mktemp("tls"))


def server_tls(mode: str, certificate: Certificate) -> ServerTls:
    return ServerTls.load(mode, certificate.cert_path, certificate.key_path)


@pytest.mark.parametrize(
    ("mode", "plain_served", "tls_served"),
    [("disabled", True, False), ("permissive", True, True), ("enforcing", False, True)],
)
def test_mode_decides_who_is_served(
    mode: str, plain_served: bool, tls_served: bool, certificate: Certificate
) -> None:
    async def ask(client_tls: ssl.SSLContext | None) -> bool:
        async with wire(tls=server_tls(mode, certificate), client_tls=client_tls) as line:
            client = await line.client()
            try:
                answer = await client.call(RemotingCommand(ECHO, {"a": "b"}, b"secret"), 5.0)
            except ConnectionLostError:
                return False
            assert answer.body == b"secret"
            return True

    assert run(ask(None)) is plain_served
    assert run(ask(trusting_client_context())) is tls_served


def test_both_directions_and_large_bodies_pass_through_tls(certificate: Certificate) -> None:
    async def work() -> None:
        tls = server_tls("enforcing", certificate)
        async with wire(
            tls=tls, client_handlers=echo_handlers(), client_tls=trusting_client_context()
        ) as line:
            client, server = await line.client(), await line.peer()
            body = bytes(range(256)) * 12_000
            calls = [
                end.start_call(RemotingCommand(ECHO, {"n": str(number)}, body), 20.0)
                for number in range(4)
                for end in (client, server)
            ]
            answers = await asyncio.gather(*calls)
            assert all(answer.body == body for answer in answers)

    run(work(), seconds=40.0)


def test_foreign_tls_client_is_served_and_may_verify(certificate: Certificate) -> None:
    async def work() -> None:
        context = ssl.create_default_context(cafile=certificate.cert_path)
        async with (
            wire(tls=server_tls("permissive", certificate)) as line,
            raw_peer(line.server.port, context) as peer,
        ):
            peer.send(RemotingCommand(ECHO, opaque=3))
            assert (await peer.receive()).opaque == 3

    run(work())


def test_client_that_verifies_refuses_a_stranger(certificate: Certificate) -> None:
    async def work() -> None:
        context = ssl.create_default_context()
        async with wire(tls=server_tls("permissive", certificate), client_tls=context) as line:
            with pytest.raises(ConnectionLostError):
                await (await line.client()).call(RemotingCommand(ECHO), 5.0)

    run(work())


def test_client_certificate_may_be_required(certificate: Certificate, tmp_path: Path) -> None:
    async def ask(context: ssl.SSLContext) -> bool:
        tls = ServerTls.load(
            "enforcing", certificate.cert_path, certificate.key_path, known.cert_path, "require"
        )
        async with wire(tls=tls, client_tls=context) as line:
            try:
                await (await line.client()).call(RemotingCommand(ECHO), 5.0)
            except ConnectionLostError:
                return False
            return True

    known = self_signed(tmp_path, "client")
    named = trusting_client_context()
    named.load_cert_chain(known.cert_path, known.key_path)
    assert run(ask(named))
    assert not run(ask(trusting_client_context()))


def test_request_that_arrives_with_the_goodbye_is_still_read(certificate: Certificate) -> None:
    server = TlsPipe(
        server_tls("enforcing", certificate).context or ssl.create_default_context(), server_side=True
    )
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting_client_context().wrap_bio(incoming, outgoing)
    while not server.established:
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            pass
        incoming.write(server.receive(outgoing.read())[1])
    frame = encode_frame(RemotingCommand(ECHO))
    client.write(frame)
    with pytest.raises(ssl.SSLWantReadError):
        client.unwrap()
    plain, _ = server.receive(outgoing.read())
    assert plain == frame


def test_handshake_byte_followed_by_nonsense_closes_the_connection(certificate: Certificate) -> None:
    async def work() -> None:
        async with (
            wire(tls=server_tls("permissive", certificate)) as line,
            raw_peer(line.server.port) as peer,
        ):
            peer.writer.write(b"\x16" + b"nonsense" * 10)
            assert await peer.ended()

    run(work())


def test_permissive_server_without_certificate_closes_tls_peers() -> None:
    async def work() -> None:
        async with wire(client_tls=trusting_client_context()) as line:
            with pytest.raises(ConnectionLostError):
                await (await line.client()).call(RemotingCommand(ECHO), 5.0)

    assert ServerTls.load("permissive", None, None) == ServerTls(TlsMode.PERMISSIVE, None)
    run(work())


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("sometimes", None, None), "tls.server.mode"),
        (("enforcing", None, None), "tls.server.certPath"),
        (("permissive", "/nowhere/cert.pem", "/nowhere/key.pem"), "tls.server.certPath"),
    ],
)
def test_wrong_option_is_refused_by_name(arguments: tuple[str, str | None, str | None], option: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerTls.load(*arguments)
    assert caught.value.option == option


def test_wrong_trust_and_client_auth_are_refused_by_name(certificate: Certificate) -> None:
    paths = (certificate.cert_path, certificate.key_path)
    with pytest.raises(ConfigError) as caught:
        ServerTls.load("permissive", *paths, None, "perhaps")
    assert caught.value.option == "tls.server.need.client.auth"
    with pytest.raises(ConfigError) as caught:
        ServerTls.load("permissive", *paths, "/nowhere/ca.pem", "require")
    assert caught.value.option == "tls.server.trustCertPath"
