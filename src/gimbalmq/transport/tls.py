"""TLS as a pipe of bytes, so that one port can serve plain and TLS peers.

A server learns which of the two it has from the first byte a peer sends (0x16 opens a TLS
handshake; a frame begins with 0x00 or 0x01). By then asyncio has read it, and its own
start_tls cannot be given bytes back; an SSLObject over two memory buffers can.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from enum import Enum

from gimbalmq.errors import ConfigError, RemoteProtocolError

HANDSHAKE_BYTE = 0x16


class TlsMode(Enum):
    """Who is served (Java: tls.server.mode)."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


@dataclass(frozen=True, slots=True)
class ServerTls:
    """What a server does about TLS; without a context every TLS peer is closed."""

    mode: TlsMode = TlsMode.PERMISSIVE
    context: ssl.SSLContext | None = None

    @staticmethod
    def load(
        mode: str,
        cert_path: str | None,
        key_path: str | None,
        trust_cert_path: str | None = None,
        client_auth: str = "none",
    ) -> ServerTls:
        """From file names; raises ConfigError naming the one that is wrong."""
        try:
            chosen = TlsMode(mode.lower())
        except ValueError:
            raise ConfigError("tls.server.mode", mode, "use disabled, permissive or enforcing") from None
        if cert_path is None:
            if chosen is TlsMode.ENFORCING:
                raise ConfigError(
                    "tls.server.certPath", None, "enforcing mode needs a certificate and its key"
                )
            return ServerTls(chosen)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(cert_path, key_path)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError("tls.server.certPath", cert_path, f"cannot be loaded: {error}") from error
        if client_auth not in ("none", "optional", "require"):
            raise ConfigError("tls.server.need.client.auth", client_auth, "use none, optional or require")
        if trust_cert_path is not None:
            try:
                context.load_verify_locations(trust_cert_path)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(
                    "tls.server.trustCertPath", trust_cert_path, f"cannot be loaded: {error}"
                ) from error
        context.verify_mode = {
            "none": ssl.CERT_NONE,
            "optional": ssl.CERT_OPTIONAL,
            "require": ssl.CERT_REQUIRED,
        }[client_auth]
        return ServerTls(chosen, context)


def trusting_client_context() -> ssl.SSLContext:
    """Encrypts but believes any certificate, as RocketMQ's Java client does by default."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class TlsPipe:
    """One TLS session without a socket."""

    __slots__ = ("_early", "_incoming", "_object", "_outgoing", "established")

    def __init__(self, context: ssl.SSLContext, *, server_side: bool, host: str | None = None) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=host
        )
        self._early: list[bytes] = []
        self.established = False

    def start(self) -> bytes:
        """Bytes a client sends first."""
        self._handshake()
        return self._outgoing.read()

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """Cipher text in; (plain text, cipher text to send) out."""
        self._incoming.write(data)
        if not self.established:
            self._handshake()
        plain = bytearray()
        if self.established:
            try:
                while chunk := self._object.read(262_144):
                    plain += chunk
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                raise RemoteProtocolError(f"TLS failed: {error}") from error
        return bytes(plain), self._outgoing.read()

    def send(self, data: bytes) -> bytes:
        """Plain text in, cipher text out; what comes before the handshake is kept for it."""
        if not self.established:
            self._early.append(data)
            return b""
        self._object.write(data)
        return self._outgoing.read()

    def _handshake(self) -> None:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise RemoteProtocolError(f"TLS handshake failed: {error}") from error
        self.established = True
        for data in self._early:
            self._object.write(data)
        self._early.clear()
