"""TLS and plain peers on one port; who believes whom; peers that misbehave in or around a handshake."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import socket
import ssl
from functools import partial
from pathlib import Path

import pytest

from gimbalmq.broker.config import BrokerConfig, LiveConfig
from gimbalmq.errors import (
    ConfigError,
    ConnectError,
    ConnectionLostError,
    RemoteProtocolError,
    TransportError,
)
from gimbalmq.nameserver.config import NameServerConfig
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.serializers import encode_frame
from gimbalmq.transport import channel as channel_module
from gimbalmq.transport.channel import Channel, Handlers
from gimbalmq.transport.network import AsyncioNetwork
from gimbalmq.transport.tls import ServerTls, TlsMode, TlsPipe, client_tls
from gimbalmq.transport.tls_config import TlsConfig
from tests.support import run, until
from tests.transport.wiring import ECHO, Authority, Certificate, echo_handlers, raw_peer, self_signed, wire


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return self_signed(tmp_path_factory.mktemp("tls"), "other")


def config(mode: str, certificate: Certificate) -> TlsConfig:
    return TlsConfig(
        tls_server_mode=mode,
        tls_server_cert_path=certificate.cert_path,
        tls_server_key_path=certificate.key_path,
    )


def server_tls(mode: str, certificate: Certificate) -> ServerTls:
    return ServerTls(config(mode, certificate))


async def trouble(tls: ServerTls | None, client: ssl.SSLContext | None) -> str:
    """What a client is told that asks a server something; "" if it is answered."""
    async with wire(tls=tls, client_tls=client) as line:
        try:
            answer = await (await line.client()).call(RemotingCommand(ECHO, {"a": "b"}, b"secret"), 20.0)
        except TransportError as error:
            return str(error)
        assert answer.body == b"secret"
        return ""


@pytest.mark.parametrize(
    ("mode", "plain", "tls"),
    [
        ("disabled", "", "hung up without a word; does it speak TLS?"),
        ("permissive", "", ""),
        ("enforcing", "hung up without a word; does it want TLS?", ""),
        ("ENFORCING", "hung up without a word; does it want TLS?", ""),
    ],
)
def test_mode_decides_who_is_served(mode: str, plain: str, tls: str, certificate: Certificate) -> None:
    for client, expected in ((None, plain), (client_tls(), tls)):
        told = run(trouble(server_tls(mode, certificate), client))
        assert told == expected if not expected else expected in told


def test_both_directions_and_large_bodies_pass_through_tls(certificate: Certificate) -> None:
    async def work() -> None:
        tls = server_tls("enforcing", certificate)
        async with wire(tls=tls, client_handlers=echo_handlers(), client_tls=client_tls()) as line:
            client, peer = await line.client(), await line.peer()
            body = bytes(range(256)) * 12_000  # 3 MB
            answers = await asyncio.gather(
                *(client.call(RemotingCommand(ECHO, {"n": str(n)}, body), 20.0) for n in range(3)),
                *(peer.call(RemotingCommand(ECHO, {"n": str(n)}, body), 20.0) for n in range(3)),
            )
            assert all(answer.body == body for answer in answers)

    run(work())


def test_foreign_tls_client_is_served_and_may_verify(certificate: Certificate) -> None:
    async def work() -> None:
        context = ssl.create_default_context(cafile=certificate.cert_path)
        async with (
            wire(tls=server_tls("permissive", certificate)) as line,
            raw_peer(line.server.port, context) as peer,
        ):
            peer.send(RemotingCommand(ECHO, opaque=7))
            assert (await peer.receive()).opaque == 7

    run(work())


# -- who believes whom -----------------------------------------------------------------


def test_a_client_believes_the_authorities_it_was_told_and_for_their_addresses(
    certificate: Certificate, other: Certificate, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    ours, elsewhere = authority.sign("ours"), authority.sign("elsewhere", "10.9.9.9")
    ca = authority.certificate.cert_path

    def told(shown: Certificate, context: ssl.SSLContext) -> str:
        return run(trouble(server_tls("enforcing", shown), context))

    assert told(ours, client_tls(ca)) == ""
    assert told(ours, client_tls(ours.cert_path)) == ""  # the certificate itself in place of its authority
    assert told(elsewhere, client_tls(ca, check_host=False)) == ""
    assert "not believed: IP address mismatch" in told(elsewhere, client_tls(ca))
    assert "not believed: self-signed certificate" in told(other, client_tls(certificate.cert_path))
    assert "not believed: self-signed certificate" in told(certificate, client_tls("system"))


@pytest.mark.parametrize("auth", ["require", "optional"])
def test_a_client_certificate_that_is_shown_must_be_of_the_authorities(
    auth: str, certificate: Certificate, other: Certificate, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    tls = dataclasses.replace(
        config("enforcing", certificate),
        tls_server_need_client_auth=auth,
        tls_server_trust_cert_path=authority.certificate.cert_path,
    )

    def told(shown: Certificate | None) -> str:
        paths = () if shown is None else (shown.cert_path, shown.key_path)
        return run(trouble(ServerTls(tls), client_tls(None, *paths)))

    assert told(authority.sign("client")) == ""
    assert told(certificate) == ""  # the server's own: servers of one process reach each other
    assert "alert unknown ca" in told(other)
    assert told(None) == "" if auth == "optional" else "alert certificate required" in told(None)


def test_a_servers_own_connections_believe_its_certificate_and_those_it_was_told(
    certificate: Certificate, other: Certificate
) -> None:
    keys = config("enforcing", certificate)

    def told(peer: Certificate, **changes: object) -> str:
        own = ServerTls(dataclasses.replace(keys, **changes)).client  # type: ignore[arg-type]
        return run(trouble(server_tls("enforcing", peer), own))

    assert told(certificate) == ""
    assert "not believed" in told(other)
    assert told(other, tls_client_trust_cert_path=other.cert_path) == ""
    assert told(certificate, tls_client_trust_cert_path=other.cert_path) == ""
    assert told(other, tls_client_auth_server=False) == ""
    assert "want TLS" in told(certificate, tls_enable=False)
    assert ServerTls(config("permissive", certificate)).client is None
    stranger = ServerTls(TlsConfig(tls_enable=True)).client
    assert stranger is not None and stranger.check_hostname


def test_own_connections_believe_the_first_certificate_of_a_chain_only(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    ours, stranger = authority.sign("ours"), authority.sign("stranger")
    chain = tmp_path / "chain.pem"
    chain.write_text(Path(ours.cert_path).read_text() + Path(authority.certificate.cert_path).read_text())
    keys = config("enforcing", Certificate(str(chain), ours.key_path))
    assert run(trouble(ServerTls(keys), ServerTls(keys).client)) == ""
    assert "not believed" in run(trouble(server_tls("enforcing", stranger), ServerTls(keys).client))


def test_an_encrypted_key_needs_its_password(tmp_path: Path) -> None:
    locked = self_signed(tmp_path, "locked", password=b"open sesame")
    keys = dataclasses.replace(config("enforcing", locked), tls_server_key_password="open sesame")
    assert run(trouble(ServerTls(keys), ServerTls(keys).client)) == ""
    assert "sesame" not in repr(keys)
    for password, option in ((None, "tls.server.keyPassword"), ("wrong", "tls.server.certPath")):
        with pytest.raises(ConfigError) as caught:
            ServerTls(dataclasses.replace(keys, tls_server_key_password=password))
        assert caught.value.option == option
    with pytest.raises(ConfigError, match=r"tls\.client\.keyPassword"):
        ServerTls(
            dataclasses.replace(
                keys, tls_client_cert_path=locked.cert_path, tls_client_key_path=locked.key_path
            )
        )


# -- new certificates ------------------------------------------------------------------


def test_new_certificate_that_could_not_be_read_once_is_read_later(
    certificate: Certificate,
    other: Certificate,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """There may be no descriptor left for a moment."""

    async def work() -> None:
        tls = ServerTls(config("enforcing", Certificate(str(cert), str(key))))
        cert.write_bytes(Path(other.cert_path).read_bytes())
        key.write_bytes(Path(other.key_path).read_bytes())
        with monkeypatch.context() as patch:

            def refuse(*_: object) -> None:
                raise OSError(errno.EMFILE, "Too many open files")

            patch.setattr(ssl.SSLContext, "load_cert_chain", refuse)
            for _ in range(4):
                assert not await tls.reload()
        assert await tls.reload() and not await tls.reload()
        assert await trouble(tls, client_tls(other.cert_path)) == ""
        assert sum("Too many open files" in record.message for record in caplog.records) == 1

    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_bytes(Path(certificate.cert_path).read_bytes())
    key.write_bytes(Path(certificate.key_path).read_bytes())
    run(work())


def test_changed_files_are_loaded_when_they_have_settled(
    certificate: Certificate, other: Certificate, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def put(target: Path, source: str) -> None:
        target.with_suffix(".new").write_bytes(Path(source).read_bytes())
        os.replace(target.with_suffix(".new"), target)

    async def work() -> None:
        tls = ServerTls(config("enforcing", Certificate(str(cert), str(key))))
        assert await trouble(tls, client_tls(certificate.cert_path)) == ""
        assert not await tls.reload()
        put(cert, other.cert_path)
        assert not await tls.reload()  # the key may follow
        put(key, other.key_path)
        assert not await tls.reload()
        assert await tls.reload()
        assert await trouble(tls, client_tls(other.cert_path)) == ""
        assert await trouble(tls, tls.client) == ""
        cert.write_text("nonsense")
        for _ in range(4):
            assert not await tls.reload()
        assert await trouble(tls, client_tls(other.cert_path)) == ""
        cert.unlink()
        for _ in range(4):
            assert not await tls.reload()
        complaints = [record for record in caplog.records if "the old ones stay" in record.message]
        assert len(complaints) == 2  # once for each state of the files

    put(cert, certificate.cert_path)
    put(key, certificate.key_path)
    run(work())


# -- peers that misbehave --------------------------------------------------------------


def established(certificate: Certificate) -> tuple[TlsPipe, ssl.SSLObject, ssl.MemoryBIO]:
    """A server's pipe after its handshake, its client, and what the client has written."""
    context = server_tls("enforcing", certificate).context
    assert context is not None
    server = TlsPipe(context, server_side=True)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_tls().wrap_bio(incoming, outgoing)
    while not server.established:
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            pass
        incoming.write(server.receive(outgoing.read())[1])
    return server, client, outgoing


def test_request_that_arrives_with_the_goodbye_is_still_read(certificate: Certificate) -> None:
    server, client, outgoing = established(certificate)
    frame = encode_frame(RemotingCommand(ECHO))
    client.write(frame)
    with pytest.raises(ssl.SSLWantReadError):
        client.unwrap()
    plain, _ = server.receive(outgoing.read())
    assert plain == frame and server.ended


def test_what_follows_a_goodbye_is_not_kept(certificate: Certificate) -> None:
    server, client, outgoing = established(certificate)
    with pytest.raises(ssl.SSLWantReadError):
        client.unwrap()
    server.receive(outgoing.read())
    for _ in range(100):
        assert server.receive(bytes(65536)) == (b"", b"")
    assert server._incoming.pending == 0


def test_a_goodbye_is_answered_and_the_connection_closed(certificate: Certificate) -> None:
    async def work() -> None:
        async with (
            wire(tls=server_tls("enforcing", certificate)) as line,
            raw_peer(line.server.port, client_tls()) as peer,
        ):
            peer.send(RemotingCommand(ECHO, opaque=1))
            await peer.receive()
            peer.writer.close()
            await until(lambda: not line.server.channels)

    run(work())


def test_our_close_says_goodbye(certificate: Certificate) -> None:
    server, client, _ = established(certificate)
    assert server.farewell() != b""
    assert server.farewell() == b""
    assert client.version() is not None


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x16" + b"nonsense" * 10, id="garbage after the first byte"),
        pytest.param(b"\x16\x03\x01\x00\x05hello", id="a record that is no hello"),
        pytest.param(b"\x16\x03\x01\x40\x00\x01\xff\xff\xff" + bytes(16380), id="a hello of 16 MB"),
        pytest.param((b"\x16\x03\x01\x00\x01\x01" * 60_000), id="a hello by single bytes, without end"),
        pytest.param(b"\x16\x03\x01\x00\x02\x02\x28" * 1000, id="alerts in place of a hello"),
    ],
)
def test_a_handshake_that_is_none_closes_its_connection_and_no_other(
    data: bytes, certificate: Certificate, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with wire(tls=server_tls("permissive", certificate), client_tls=client_tls()) as line:
            client = await line.client()
            async with raw_peer(line.server.port) as peer:
                peer.writer.write(data)
                while True:
                    try:
                        if not await peer.reader.read(65536):
                            break
                    except ConnectionError:
                        break
            await client.call(RemotingCommand(ECHO), 20.0)

    run(work())
    ours = [record.levelname for record in caplog.records if record.name.startswith("gimbalmq")]
    assert ours == ["WARNING"], caplog.text


def test_a_handshake_is_bounded_in_bytes(certificate: Certificate) -> None:
    context = server_tls("enforcing", certificate).context
    assert context is not None
    pipe = TlsPipe(context, server_side=True)
    with pytest.raises(RemoteProtocolError):
        for _ in range(400):  # an unfinished hello, a byte to a record
            pipe.receive(b"\x16\x03\x01\x00\x01\x01" * 1000)


def test_a_handshake_that_is_never_finished_is_closed_in_time(
    certificate: Certificate, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "HANDSHAKE_SECONDS", 0.05)

    async def work() -> None:
        async with (
            wire(tls=server_tls("permissive", certificate)) as line,
            raw_peer(line.server.port) as begins,
        ):
            hello = TlsPipe(client_tls(), server_side=False).start()
            begins.writer.write(hello[: len(hello) // 2])
            assert await begins.ended()
            await until(lambda: not line.server.channels)

    run(work())
    assert "no TLS handshake within 0.05 s" in caplog.text


def test_a_client_waits_for_a_handshake_only_so_long() -> None:
    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            make = partial(Channel, Handlers(), client_tls=client_tls(), tls_host="127.0.0.1")
            channel = await AsyncioNetwork().connect(make, "127.0.0.1", silent.getsockname()[1], 20.0)
            assert isinstance(channel, Channel)
            with pytest.raises(ConnectError, match=r"did not finish a TLS handshake within 0\.05 s"):
                await channel.secured(0.05)
            await channel.wait_closed()

    run(work())


def test_garbage_after_the_handshake_closes_the_connection(
    certificate: Certificate, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with wire(tls=server_tls("enforcing", certificate), client_tls=client_tls()) as line:
            client = await line.client()
            assert client._transport is not None
            client._transport.write(b"\x17\x03\x03\x00\x20" + bytes(32))
            with pytest.raises(ConnectionLostError, match="bad record mac"):
                await client.call(RemotingCommand(ECHO), 20.0)

    run(work())
    assert "TLS failed" in caplog.text


def test_nobody_renegotiates(certificate: Certificate) -> None:
    context = server_tls("enforcing", certificate).context
    assert context is not None and context.options & ssl.OP_NO_RENEGOTIATION


def test_permissive_server_without_certificate_closes_tls_peers() -> None:
    tls = ServerTls()
    assert tls.mode is TlsMode.PERMISSIVE and tls.context is None and tls.client is None
    assert "speak TLS" in run(trouble(tls, client_tls()))


# -- wrong options ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tls_server_mode": "sometimes"}, "tls.server.mode"),
        ({"tls_server_mode": "enforcing"}, "tls.server.certPath"),
        ({"tls_server_key_path": "/key.pem"}, "tls.server.certPath"),
        ({"tls_client_key_path": "/key.pem"}, "tls.client.certPath"),
        ({"tls_server_need_client_auth": "perhaps"}, "tls.server.need.client.auth"),
        ({"tls_server_need_client_auth": "require"}, "tls.server.trustCertPath"),
        ({"tls_server_need_client_auth": "optional"}, "tls.server.trustCertPath"),
        ({"tls_server_cert_path": "/nowhere/cert.pem"}, "tls.server.certPath"),
        ({"tls_enable": True, "tls_client_trust_cert_path": "/nowhere/c.pem"}, "tls.client.trustCertPath"),
        ({"tls_enable": True, "tls_client_cert_path": "/nowhere/c.pem"}, "tls.client.certPath"),
    ],
)
def test_wrong_option_is_refused_by_name(options: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerTls(TlsConfig(**options))  # type: ignore[arg-type]
    assert caught.value.option == named


def test_wrong_trust_is_refused_by_name(certificate: Certificate) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerTls(
            dataclasses.replace(
                config("permissive", certificate),
                tls_server_trust_cert_path="/nowhere/ca.pem",
                tls_server_need_client_auth="require",
            )
        )
    assert caught.value.option == "tls.server.trustCertPath"


def test_both_servers_read_the_keys_and_show_no_password() -> None:
    keys = {
        "tls.server.certPath": "/cert.pem",
        "tls.server.keyPassword": "sesame",
        "tls.enable": "true",
        "tls.client.authServer": "",
        "tls.client.certPath": "/own.pem",
        "tls.client.keyPassword": "sesame",
    }
    broker, unknown = BrokerConfig.from_properties(keys)
    nameserver, unknown_too = NameServerConfig.from_properties(keys)
    assert unknown == unknown_too == []
    for config in (broker, nameserver):
        assert config.tls_server_key_password == config.tls_client_key_password == "sesame"
        assert config.connects_by_tls and config.tls_client_auth_server is None
    for shown in (broker.to_properties(), nameserver.to_properties()):
        assert shown["tls.client.certPath"] == "/own.pem" and shown["tls.enable"] == "true"
        assert "sesame" not in shown.values()
    with pytest.raises(ConfigError, match=r"tls\.server\.keyPassword"):
        LiveConfig(broker).update({"tls.server.keyPassword": "other"})
