"""A server and a client on the loopback, and certificates for them."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.frames import FrameReader
from gimbalmq.protocol.serializers import decode_command, encode_frame
from gimbalmq.transport.channel import Channel, Handlers
from gimbalmq.transport.limits import Load, ServerLimits
from gimbalmq.transport.pool import ChannelPool
from gimbalmq.transport.server import RemotingServer
from gimbalmq.transport.tls import ServerTls

HOST = "127.0.0.1"
ECHO = 1
SILENT = 2


def echo(_channel: Channel, request: RemotingCommand) -> RemotingCommand:
    return request.reply(0, None, request.ext_fields, request.body)


def echo_handlers() -> Handlers:
    handlers = Handlers()
    handlers.add(ECHO, echo)
    handlers.add(SILENT, lambda _channel, _request: None)
    return handlers


@dataclass
class Wire:
    server: RemotingServer
    pool: ChannelPool

    @property
    def address(self) -> str:
        return f"{HOST}:{self.server.port}"

    async def client(self) -> Channel:
        return await self.pool.channel(self.address)

    async def peer(self) -> Channel:
        """The server's end of the client's connection."""
        await self.client()
        while not self.server.channels:  # noqa: ASYNC110
            await asyncio.sleep(0)
        (channel,) = self.server.channels
        return channel


@asynccontextmanager
async def wire(
    handlers: Handlers | None = None,
    *,
    client_handlers: Handlers | None = None,
    tls: ServerTls | None = None,
    client_tls: ssl.SSLContext | None = None,
    limits: ServerLimits | None = None,
) -> AsyncIterator[Wire]:
    server = RemotingServer(handlers or echo_handlers(), tls=tls, load=Load(limits))
    await server.start(HOST, 0)
    pool = ChannelPool(client_handlers, tls=client_tls)
    try:
        yield Wire(server, pool)
    finally:
        await pool.close()
        await server.close()


class RawPeer:
    """A peer that writes and reads bytes as it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._frames = FrameReader()
        self._waiting: list[RemotingCommand] = []

    def send(self, *commands: RemotingCommand) -> None:
        """All in one write."""
        self.writer.write(b"".join(map(encode_frame, commands)))

    async def receive(self) -> RemotingCommand:
        while not self._waiting:
            data = await self.reader.read(65536)
            if not data:
                raise EOFError
            self._waiting += [decode_command(*frame) for frame in self._frames.feed(data)]
        return self._waiting.pop(0)

    async def ended(self) -> bool:
        """Waits for the other side to close; False where it says something first."""
        try:
            return await self.reader.read(1) == b""
        except (ConnectionError, ssl.SSLError):
            return True


@asynccontextmanager
async def raw_peer(port: int, context: ssl.SSLContext | None = None) -> AsyncIterator[RawPeer]:
    reader, writer = await asyncio.open_connection(HOST, port, ssl=context)
    try:
        yield RawPeer(reader, writer)
    finally:
        writer.transport.abort()
        try:
            await writer.wait_closed()
        except (ConnectionError, ssl.SSLError):
            pass


@dataclass(frozen=True)
class Certificate:
    cert_path: str
    key_path: str


def self_signed(folder: Path, name: str = "server", *, password: bytes | None = None) -> Certificate:
    """A certificate for the loopback address that nobody else trusts; its key is encrypted if a password is given."""
    return Authority(folder, name, password=password).certificate


class Authority:
    """A self-signed certificate that signs others."""

    def __init__(self, folder: Path, name: str = "authority", *, password: bytes | None = None) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = self._sign(name, self._name, self._key, HOST, ca=True, password=password)

    def sign(self, name: str, host: str = HOST, *, days: int = 36500) -> Certificate:
        """A certificate for an address, valid for so many days from 2020 on."""
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        return self._sign(name, subject, ec.generate_private_key(ec.SECP256R1()), host, ca=False, days=days)

    def _sign(
        self,
        name: str,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        host: str,
        *,
        ca: bool,
        password: bytes | None = None,
        days: int = 36500,
    ) -> Certificate:
        start = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(start + datetime.timedelta(days=days))
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]), False)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), True)
            .sign(self._key, hashes.SHA256())
        )
        cert_path, key_path = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        cert_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption(),
            )
        )
        return Certificate(str(cert_path), str(key_path))
