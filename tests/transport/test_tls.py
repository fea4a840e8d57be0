"""TLS and plain peers on one port; who believes whom; peers that misbehave in or around a handshake."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import socket
import ssl
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
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
from gimbalmq.protocol.command import ONEWAY_FLAG, RemotingCommand
from gimbalmq.protocol.serializers import encode_frame
from gimbalmq.transport import channel as channel_module
from gimbalmq.transport import tls as tls_module
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
    for client, expected in ((None, plain), (client_tls(verify=False), tls)):
        told = run(trouble(server_tls(mode, certificate), client))
        assert told == expected if not expected else expected in told


def test_both_directions_and_large_bodies_pass_through_tls(certificate: Certificate) -> None:
    async def work() -> None:
        tls = server_tls("enforcing", certificate)
        async with wire(
            tls=tls, client_handlers=echo_handlers(), client_tls=client_tls(verify=False)
        ) as line:
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


def test_a_client_verifies_unless_it_says_otherwise(certificate: Certificate) -> None:
    context = client_tls()
    assert context.verify_mode is ssl.CERT_REQUIRED and context.check_hostname
    assert "not believed: self-signed certificate" in run(
        trouble(server_tls("enforcing", certificate), context)
    )
    with pytest.raises(ConfigError, match="any certificate is believed"):
        client_tls(certificate.cert_path, verify=False)


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
def test_a_required_certificate_is_required_of_plain_peers_too(
    mode: str, certificate: Certificate, caplog: pytest.LogCaptureFixture
) -> None:
    keys = dataclasses.replace(
        config(mode, certificate),
        tls_server_need_client_auth="require",
        tls_server_trust_cert_path=certificate.cert_path,
    )
    tls = ServerTls(keys)
    assert "want TLS" in run(trouble(tls, None))
    if mode == "permissive":
        assert "asks for a certificate, which a plain peer cannot show" in caplog.text
    assert "certificate required (the peer wants a certificate; show one" in run(
        trouble(tls, client_tls(certificate.cert_path))
    )
    assert run(trouble(tls, tls.client)) == ""  # servers of one process reach each other


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
        return run(trouble(ServerTls(tls), client_tls(None, *paths, verify=False)))

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


def test_a_servers_own_connections_compare_addresses_if_told(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    elsewhere = authority.sign("elsewhere", "10.9.9.9")
    keys = TlsConfig(tls_enable=True, tls_client_trust_cert_path=authority.certificate.cert_path)
    peer = server_tls("enforcing", elsewhere)
    assert run(trouble(peer, ServerTls(keys).client)) == ""
    checking = dataclasses.replace(keys, tls_client_check_host=True)
    assert "IP address mismatch" in run(trouble(peer, ServerTls(checking).client))


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


def test_changed_authorities_of_clients_are_loaded(certificate: Certificate, tmp_path: Path) -> None:
    """And a certificate without its key is not: the pair before it stays, however long that lasts."""
    before, after = (Authority(folder(tmp_path, name), name) for name in ("before", "after"))
    trusted, cert, key = (tmp_path / name for name in ("trusted.pem", "cert.pem", "key.pem"))
    trusted.write_bytes(Path(before.certificate.cert_path).read_bytes())
    cert.write_bytes(Path(certificate.cert_path).read_bytes())
    key.write_bytes(Path(certificate.key_path).read_bytes())
    old, new = (authority.sign("client") for authority in (before, after))

    async def work() -> None:
        tls = ServerTls(
            dataclasses.replace(
                config("enforcing", Certificate(str(cert), str(key))),
                tls_server_need_client_auth="require",
                tls_server_trust_cert_path=str(trusted),
            )
        )

        async def told(shown: Certificate) -> str:
            return await trouble(tls, client_tls(certificate.cert_path, shown.cert_path, shown.key_path))

        assert await told(old) == "" and "unknown ca" in await told(new)
        trusted.write_bytes(Path(after.certificate.cert_path).read_bytes())
        assert not await tls.reload() and await tls.reload()
        assert await told(new) == "" and "unknown ca" in await told(old)
        cert.write_bytes(Path(old.cert_path).read_bytes())
        for _ in range(4):
            assert not await tls.reload()
        assert await told(new) == ""

    run(work())


def folder(parent: Path, name: str) -> Path:
    made = parent / name
    made.mkdir()
    return made


# -- certificates and their dates ------------------------------------------------------


def test_an_expired_certificate_is_told_on_both_sides(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    ca = authority.certificate.cert_path
    good, expired = authority.sign("good"), authority.sign("expired", days=30)

    told = run(trouble(server_tls("enforcing", expired), client_tls(ca)))
    assert "certificate is not believed: certificate has expired" in told
    assert "has to be renewed" in told and "authority" not in told
    said = [record.message for record in caplog.records]
    assert any(
        f"tls.server.certPath={expired.cert_path} expired on 2020-01-31 00:00 UTC" in text for text in said
    )
    assert any("the certificate that was shown to the peer has expired; renew it" in text for text in said)

    caplog.clear()
    asking = dataclasses.replace(
        config("enforcing", good), tls_server_need_client_auth="require", tls_server_trust_cert_path=ca
    )
    told = run(trouble(ServerTls(asking), client_tls(ca, expired.cert_path, expired.key_path)))
    assert "the certificate that was shown to the peer has expired; renew it" in told
    assert "certificate has expired; it has to be renewed" in caplog.text


class _At:
    """A clock that shows one moment."""

    def __init__(self, moment: datetime) -> None:
        self.moment = moment

    def wall_ms(self) -> int:
        return int(self.moment.timestamp() * 1000)

    def monotonic(self) -> float:
        raise AssertionError("nobody asks for it")


def test_a_certificate_that_soon_expires_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shown = Authority(tmp_path).sign("server", days=30)
    clock = _At(datetime(2020, 1, 10, tzinfo=UTC))

    async def work() -> None:
        tls = ServerTls(config("enforcing", shown), clock=clock)
        await tls.reload()
        assert not caplog.records
        clock.moment = datetime(2020, 1, 20, tzinfo=UTC)
        await tls.reload()
        await tls.reload()
        assert [record.message.partition(" expire")[2] for record in caplog.records] == [
            "s on 2020-01-31 00:00 UTC; renew it, the new one is read without a restart"
        ]
        clock.moment = datetime(2020, 2, 1, tzinfo=UTC)
        await tls.reload()
        assert "expired on 2020-01-31" in caplog.text and len(caplog.records) == 2

    run(work())
    ServerTls(config("enforcing", shown), clock=_At(datetime(2019, 12, 31, tzinfo=UTC)))
    assert "is not valid before 2020-01-01" in caplog.text


# -- versions and ciphers --------------------------------------------------------------


def allow(
    context: ssl.SSLContext,
    ciphers: str,
    oldest: ssl.TLSVersion,
    newest: ssl.TLSVersion = ssl.TLSVersion.MAXIMUM_SUPPORTED,
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # those versions are why we are here
        context.set_ciphers(ciphers)
        context.minimum_version = oldest
        context.maximum_version = newest


@contextmanager
def lax_system() -> Iterator[None]:
    """Contexts begin as on a system whose settings allow everything."""
    restrict = tls_module._restrict

    def lax_at_first(context: ssl.SSLContext) -> None:
        allow(context, "ALL:@SECLEVEL=0", ssl.TLSVersion.MINIMUM_SUPPORTED)
        restrict(context)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tls_module, "_restrict", lax_at_first)
        yield


OLD = [
    pytest.param("ALL:@SECLEVEL=0", ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1, id="TLS 1.1"),
    pytest.param(
        "ECDHE-ECDSA-AES128-SHA256:@SECLEVEL=0",
        ssl.TLSVersion.TLSv1_2,
        ssl.TLSVersion.TLSv1_2,
        id="no authenticated encryption",
    ),
    pytest.param(
        "AECDH-AES128-SHA:ADH-AES128-GCM-SHA256:@SECLEVEL=0",
        ssl.TLSVersion.TLSv1_2,
        ssl.TLSVersion.TLSv1_2,
        id="no certificate",
    ),
]


@pytest.mark.parametrize(("ciphers", "oldest", "newest"), OLD)
def test_old_versions_and_weak_ciphers_are_refused_by_servers(
    ciphers: str, oldest: ssl.TLSVersion, newest: ssl.TLSVersion, certificate: Certificate
) -> None:
    """Whatever the system allows; what a peer gets that offers nothing else, and one that offers better, too."""
    with lax_system():
        tls = server_tls("enforcing", certificate)
    assert tls.context is not None and tls.context.minimum_version == ssl.TLSVersion.TLSv1_2
    weak = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    weak.check_hostname, weak.verify_mode = False, ssl.CERT_NONE
    allow(weak, ciphers, oldest, newest)
    assert "TLS with" in run(trouble(tls, weak))
    allow(weak, "ECDHE-ECDSA-AES128-GCM-SHA256:" + ciphers, oldest, ssl.TLSVersion.TLSv1_2)
    assert run(trouble(tls, weak)) == ""


@pytest.mark.parametrize(("ciphers", "oldest", "newest"), OLD)
def test_old_versions_and_weak_ciphers_are_refused_by_clients(
    ciphers: str, oldest: ssl.TLSVersion, newest: ssl.TLSVersion, certificate: Certificate
) -> None:
    with lax_system():
        client = client_tls(verify=False)
    assert client.minimum_version == ssl.TLSVersion.TLSv1_2
    tls = server_tls("enforcing", certificate)
    assert tls.context is not None
    assert run(trouble(tls, client)) == ""
    allow(tls.context, ciphers, oldest, newest)
    assert "TLS with" in run(trouble(tls, client))


# -- peers that misbehave --------------------------------------------------------------


def established(certificate: Certificate) -> tuple[TlsPipe, ssl.SSLObject, ssl.MemoryBIO]:
    """A server's pipe after its handshake, its client, and what the client has written."""
    context = server_tls("enforcing", certificate).context
    assert context is not None
    server = TlsPipe(context, server_side=True)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_tls(verify=False).wrap_bio(incoming, outgoing)
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
            raw_peer(line.server.port, client_tls(verify=False)) as peer,
        ):
            peer.send(RemotingCommand(ECHO, opaque=1))
            await peer.receive()
            peer.writer.close()
            await until(lambda: not line.server.channels)

    run(work())


def test_requests_that_came_with_a_goodbye_and_have_to_wait_are_handled_before_the_end(
    certificate: Certificate,
) -> None:
    """A crowd that leaves at once is served in several turns of the loop, and its last words count."""

    async def work() -> None:
        handled: list[int] = []
        handlers = Handlers()
        handlers.add(ECHO, lambda _channel, request: handled.append(request.opaque))
        async with (
            wire(handlers, tls=server_tls("enforcing", certificate)) as line,
            raw_peer(line.server.port, client_tls(verify=False)) as peer,
        ):
            await until(lambda: any(channel._tls is not None for channel in line.server.channels))
            (channel,) = line.server.channels
            load = channel.load
            assert load is not None
            over = iter([True, True, True])
            load.turn_is_over = lambda: next(over, False)  # type: ignore[method-assign]
            for opaque in (1, 2):
                peer.send(RemotingCommand(ECHO, opaque=opaque, flag=ONEWAY_FLAG))
            peer.writer.close()
            await until(lambda: not line.server.channels)
            assert handled == [1, 2] and next(over, None) is None

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
        async with wire(
            tls=server_tls("permissive", certificate), client_tls=client_tls(verify=False)
        ) as line:
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
            hello = TlsPipe(client_tls(verify=False), server_side=False).start()
            begins.writer.write(hello[: len(hello) // 2])
            assert await begins.ended()
            await until(lambda: not line.server.channels)

    run(work())
    assert "no TLS handshake within 0.05 s" in caplog.text


def test_a_client_waits_for_a_handshake_only_so_long() -> None:
    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            make = partial(Channel, Handlers(), client_tls=client_tls(verify=False), tls_host="127.0.0.1")
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
        async with wire(
            tls=server_tls("enforcing", certificate), client_tls=client_tls(verify=False)
        ) as line:
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
    assert "speak TLS" in run(trouble(tls, client_tls(verify=False)))


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
        (
            {"tls_server_need_client_auth": "require", "tls_server_trust_cert_path": "/ca.pem"},
            "tls.server.certPath",
        ),
        (
            {
                "tls_server_mode": "disabled",
                "tls_server_need_client_auth": "require",
                "tls_server_trust_cert_path": "/ca.pem",
                "tls_server_cert_path": "/cert.pem",
            },
            "tls.server.need.client.auth",
        ),
        (
            {
                "tls_server_need_client_auth": "require",
                "tls_server_trust_cert_path": "/ca.pem",
                "tls_server_cert_path": "/cert.pem",
                "tls_server_auth_client": False,
            },
            "tls.server.authClient",
        ),
        ({"tls_test_mode_enable": True}, "tls.test.mode.enable"),
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


# -- Apache's tls.properties -----------------------------------------------------------


def test_a_certificate_that_would_not_be_checked_is_not_asked_for(certificate: Certificate) -> None:
    keys = dataclasses.replace(
        config("enforcing", certificate), tls_server_need_client_auth="optional", tls_server_auth_client=False
    )
    tls = ServerTls(keys)
    assert tls.context is not None and tls.context.verify_mode is ssl.CERT_NONE
    assert run(trouble(tls, client_tls(certificate.cert_path))) == ""


def test_apaches_file_of_tls_is_read(certificate: Certificate, tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text(
        "# as Apache's documentation has it\n"
        "tls.test.mode.enable=false\n"
        f"tls.server.certPath={certificate.cert_path}\n"
        f"tls.server.keyPath={certificate.key_path}\n"
        "tls.server.keyPassword=sesame\n"
        "tls.server.need.client.auth=require\n"
        "tls.server.authClient=true\n"
        f"tls.server.trustCertPath={certificate.cert_path}\n"
        "tls.client.authServer=true\n"
    )
    told = {"tls.server.mode": "enforcing", "tls.config.file": str(file)}
    for kind in (BrokerConfig, NameServerConfig):
        found, unknown = kind.from_properties(told)
        assert unknown == [] and found.enforcing and found.tls_server_key_password == "sesame"
        assert found.client_certificates == "require" and found.tls_server_cert_path == certificate.cert_path
        assert "sesame" not in repr(found) and "sesame" not in str(found.to_properties())
        # A running server that is sent its own keys again does not look at the file, which may have changed.
        file.rename(tmp_path / "moved")
        assert found.changed(found.to_properties())[0] == found
        (tmp_path / "moved").rename(file)


@pytest.mark.parametrize(
    ("line", "beside", "told"),
    [
        ("tls.server.mode=disabled", {}, "do not read tls.server.mode"),
        ("tls.enable=true", {}, "do not read tls.enable"),
        ("tls.server.keyPasword=sesame", {}, "did you mean tls.server.keyPassword"),
        ("tls.server.certPath=/a.pem", {"tls.server.certPath": "/b.pem"}, "say it in one place"),
        ("tls.server.keyPassword=sesame", {"tls.server.keyPassword": "barley"}, "say it in one place"),
        ("tls.server.authClient=perhaps", {}, "true or false"),
        ("tls.server.certPath=\\uXYZ", {}, "is no file of properties"),
        (None, {}, "cannot be read: No such file"),
    ],
)
def test_what_apaches_file_of_tls_may_not_say(
    line: str | None, beside: dict[str, str], told: str, tmp_path: Path
) -> None:
    file = tmp_path / "tls.properties"
    if line is not None:
        file.write_text(line)
    with pytest.raises(ConfigError, match=told) as caught:
        BrokerConfig.from_properties({**beside, "tls.config.file": str(file)})
    assert "sesame" not in str(caught.value) and "barley" not in str(caught.value)
