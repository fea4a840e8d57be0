"""TLS as a pipe of bytes, so that one port can serve plain and TLS peers.

A server learns which of the two it has from the first byte a peer sends (0x16 opens a TLS
handshake; a frame begins with 0x00 or 0x01). By then asyncio has read it, and its own
start_tls cannot be given bytes back; an SSLObject over two memory buffers can.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any

from gimbalmq._clock import SYSTEM_CLOCK, Clock
from gimbalmq.errors import ConfigError, RemoteProtocolError
from gimbalmq.transport.certificate_dates import FIRST_CERTIFICATE, dates_of, trouble_with_dates
from gimbalmq.transport.tls_config import TlsConfig
from gimbalmq.transport.whole_files import Stamp, stamp_of

log = logging.getLogger(__name__)

HANDSHAKE_BYTE = 0x16

HANDSHAKE_SECONDS = 10.0
"""A peer that has not finished its handshake by then is closed."""

RELOAD_SECONDS = 5.0
"""Between two looks at the files of a server's certificates."""

SYSTEM = "system"
"""In place of a file of authorities: those that the operating system trusts."""

_MAX_HANDSHAKE_BYTES = 262_144
"""A handshake longer than this is no handshake; OpenSSL takes certificates of 100 KB."""

CIPHERS = "@SECLEVEL=2:ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2: forward secrecy and authenticated encryption only, which every Java since 8 has. Those of TLS 1.3 are
all of this kind. The level refuses short keys and signatures by SHA-1, whatever the system's own settings say."""

_WARN_BEFORE = timedelta(days=14)
"""So long before a server's certificate expires its log says so."""

_EXPIRED = 10
_NOT_YET_VALID = 9
_HOST_MISMATCHES = frozenset({62, 63, 64})
"""OpenSSL's codes for a certificate of another host name, mail address or IP address."""
_HOST_REMEDY = (
    "; have it made for this address, or say check_host=False, --tls-any-host or tlsCheckHost=false"
)
_TRUST_REMEDY = (
    "; name its authority by client_tls(ca), tls_ca in the client file, --tls-ca, tlsTrustFile or "
    "tls.client.trustCertPath"
)
_DATE_REMEDY = "; it has to be renewed, unless a clock is wrong"

_REMEDIES = {
    "alert certificate expired": "the certificate that was shown to the peer has expired; renew it",
    "alert certificate required": (
        "the peer wants a certificate; show one by client_tls(ca, cert, key), --tls-cert, tlsCertFile or "
        "tls.client.certPath"
    ),
    "alert unknown ca": "the peer does not know the authority of the certificate that was shown to it",
    "alert protocol version": "TLS 1.2 is the oldest that is spoken here",
    "unsupported protocol": "TLS 1.2 is the oldest that is spoken here",
    "no shared cipher": "the peer offers no cipher of TLS 1.2 with forward secrecy and authenticated encryption",
    "alert handshake failure": "the peer accepts none of the ciphers of TLS 1.2 and 1.3 that are spoken here",
}
"""What the ends of OpenSSL's reasons mean."""


class TlsMode(Enum):
    """Who is served (Java: tls.server.mode)."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ServerTls:
    """What a server does about TLS.

    Attributes:
        mode: who is served.
        context: for peers that connect to it; without one every TLS peer is closed.
        client: for connections the server makes itself; None if those are plain.
        plain_trouble: why a plain peer is refused; "" if it is served.
    """

    __slots__ = (
        "_clock",
        "_complained",
        "_config",
        "_dates",
        "_dates_told",
        "_loaded",
        "_seen",
        "client",
        "context",
        "mode",
        "plain_trouble",
    )

    def __init__(self, config: TlsConfig | None = None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """Reads the files; raises ConfigError naming the key that is wrong."""
        self._config = config = config or TlsConfig()
        self._clock = clock
        self.mode = TlsMode(config.tls_server_mode)
        self.plain_trouble = (
            "this server serves TLS peers only"
            if config.enforcing
            else "this server asks for a certificate, which a plain peer cannot show"
            if config.refuses_plain
            else ""
        )
        self._loaded = self._seen = self._stamps()
        self._complained: tuple[Stamp | None, ...] | None = None
        self.context, self.client = _contexts(config)
        self._dates = self._read_dates()
        self._dates_told = ""
        self._tell_dates()

    async def reload(self) -> bool:
        """Reads the files again if they have changed; whether they had. To be called every RELOAD_SECONDS.

        Connections made from then on use what was read. Files that cannot be used are logged, and
        the server goes on with what it has.
        """
        if not self._loaded:
            return False
        # In threads, because a disk may be slow, and the password of a key is made expensive to check.
        stamps = await asyncio.to_thread(self._stamps)
        # A certificate and its key are replaced one after the other: wait until nothing moves.
        seen, self._seen = self._seen, stamps
        if stamps == self._loaded or stamps != seen:
            self._tell_dates()
            return False
        try:
            self.context, self.client = await asyncio.to_thread(_contexts, self._config)
        except ConfigError as error:
            # Tried again at each look: what was missing may have been a descriptor. It is said once.
            if stamps != self._complained:
                self._complained = stamps
                log.error("changed certificates are not used, the old ones stay: %s", error)
            return False
        self._loaded = stamps
        log.info("changed certificates were loaded; new connections use them")
        self._dates = await asyncio.to_thread(self._read_dates)
        self._tell_dates()
        return True

    def _read_dates(self) -> tuple[datetime, datetime] | None:
        try:
            return dates_of(Path(self._config.tls_server_cert_path or "").read_text("ascii", "replace"))
        except OSError:
            return None

    def _tell_dates(self) -> None:
        """Says once what is wrong with the dates of the server's certificate, or soon will be."""
        now = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC)
        trouble = trouble_with_dates(self._dates, now, _WARN_BEFORE)
        if trouble and trouble != self._dates_told:
            log.warning(
                "the certificate tls.server.certPath=%s %s", self._config.tls_server_cert_path, trouble
            )
        self._dates_told = trouble

    def _stamps(self) -> tuple[Stamp | None, ...]:
        config = self._config
        return tuple(
            stamp_of(path)
            for path in (
                config.tls_server_cert_path,
                config.tls_server_key_path,
                config.tls_server_trust_cert_path,
                config.tls_client_trust_cert_path,
                config.tls_client_cert_path,
                config.tls_client_key_path,
            )
            if path
        )


def _contexts(config: TlsConfig) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    return _server_context(config), _own_client_context(config) if config.connects_by_tls else None


def _server_context(config: TlsConfig) -> ssl.SSLContext | None:
    if not config.tls_server_cert_path:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _restrict(context)
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    _load_chain(
        context,
        config.tls_server_cert_path,
        config.tls_server_key_path,
        config.tls_server_key_password,
        "tls.server.certPath",
        "tls.server.keyPassword",
    )
    if config.tls_server_trust_cert_path:
        _trust(context, config.tls_server_trust_cert_path, "tls.server.trustCertPath")
        # The servers of one process reach each other, whoever else may come in.
        own = config.tls_client_cert_path or config.tls_server_cert_path
        _trust_first_of(context, own)
    context.verify_mode = {
        "none": ssl.CERT_NONE,
        "optional": ssl.CERT_OPTIONAL,
        "require": ssl.CERT_REQUIRED,
    }[config.client_certificates]
    return context


def _restrict(context: ssl.SSLContext) -> None:
    """What both sides refuse, said here because the system's own settings may allow it."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION


def _own_client_context(config: TlsConfig) -> ssl.SSLContext:
    """For the connections of a server: it believes its own certificate and the authorities it was told.

    As with Apache's servers the names in certificates are not compared, because brokers and name
    servers are known by addresses; only if nothing but the system's authorities vouches for a
    server is its name compared, or everybody with any certificate would be believed.
    """
    own, trusted = config.tls_server_cert_path, config.tls_client_trust_cert_path
    shown = (
        (config.tls_client_cert_path, config.tls_client_key_path, config.tls_client_key_password)
        if config.tls_client_cert_path
        else (own, config.tls_server_key_path, config.tls_server_key_password)
    )
    verify = config.tls_client_auth_server is not False
    checks = config.tls_client_check_host
    context = _client_context(
        # A server with a certificate and no authorities believes its own and no other.
        trusted or (None if own else SYSTEM),
        *shown,
        verify=verify,
        check_host=not (trusted or own) if checks is None else checks,
        options=("tls.client.trustCertPath", "tls.client.certPath", "tls.client.keyPassword"),
    )
    if own and verify:
        _trust_first_of(context, own)
    return context


def client_tls(
    ca: str | None = None,
    cert: str | None = None,
    key: str | None = None,
    key_password: str | None = None,
    *,
    verify: bool = True,
    check_host: bool = True,
    options: tuple[str, str, str] = ("ca", "cert", "key_password"),
) -> ssl.SSLContext:
    """A client's context; raises ConfigError for a file that cannot be used.

    Args:
        ca: authorities of the servers to believe, a file of PEM; ``system``, or none, for those that the operating
            system trusts.
        cert, key, key_password: the client's own, for servers that ask for one.
        verify: ``False`` believes any certificate, as RocketMQ's Java client does by default: whoever can redirect a
            connection then reads and changes everything.
        check_host: whether the certificate must be for the name or address that was connected to.
        options: what ``ca``, ``cert`` and ``key_password`` are called in errors.
    """
    if ca is not None and not verify:
        raise ConfigError(options[0], ca, "there is nothing to check it for if any certificate is believed")
    return _client_context(
        ca or SYSTEM, cert, key, key_password, verify=verify, check_host=check_host, options=options
    )


def _client_context(
    ca: str | None,
    cert: str | None,
    key: str | None,
    key_password: str | None,
    *,
    verify: bool,
    check_host: bool,
    options: tuple[str, str, str],
) -> ssl.SSLContext:
    """As ``client_tls``; without ``ca`` nobody is believed yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _restrict(context)
    context.check_hostname = verify and check_host
    if not verify:
        context.verify_mode = ssl.CERT_NONE
    elif ca == SYSTEM:
        context.load_default_certs()
    elif ca is not None:
        _trust(context, ca, options[0])
    if cert:
        _load_chain(context, cert, key, key_password, options[1], options[2])
    return context


def _load_chain(
    context: ssl.SSLContext,
    cert: str,
    key: str | None,
    password: str | None,
    cert_option: str,
    password_option: str,
) -> None:
    def given() -> str:
        # Without this OpenSSL would ask on the terminal.
        if password is None:
            raise ConfigError(password_option, None, f"the key of {cert} is encrypted; give its password")
        return password

    try:
        context.load_cert_chain(cert, key or None, given)
    except (OSError, ssl.SSLError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        named = cert if not key else f"{cert} with key {key}"
        raise ConfigError(cert_option, named, f"cannot be loaded: {_reason(error)}") from error


def _trust(context: ssl.SSLContext, path: str, option: str) -> None:
    # A server's own certificate, or one in the middle, may be given in place of an authority's.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(path)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(option, path, f"cannot be loaded: {_reason(error)}") from error


def _trust_first_of(context: ssl.SSLContext, path: str) -> None:
    """Believes one certificate; not those behind it in the file, which would vouch for strangers too."""
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        found = FIRST_CERTIFICATE.search(Path(path).read_text("ascii", "replace"))
        if found is not None:
            context.load_verify_locations(cadata=found[0])
    except (OSError, ssl.SSLError) as error:
        raise ConfigError("tls.server.certPath", path, f"cannot be loaded: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return str(getattr(error, "strerror", None) or error)


def tls_trouble(error: Exception, *, server_side: bool = False) -> str:
    """What went wrong with TLS, and what helps, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = f"the peer's certificate is not believed: {error.verify_message}"
        if error.verify_code in (_EXPIRED, _NOT_YET_VALID):
            return why + _DATE_REMEDY
        if server_side:
            return why
        return why + (_HOST_REMEDY if error.verify_code in _HOST_MISMATCHES else _TRUST_REMEDY)
    reason = _reason(error)
    meaning = next((words for end, words in _REMEDIES.items() if reason.endswith(end)), "")
    return f"TLS failed: {reason} ({meaning})" if meaning else f"TLS failed: {reason}"


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """The certificate of a peer, verified by the handshake.

    Attributes:
        name: its subject's CN; "" if it has none, or more than one.
        fingerprint: SHA-256 of the whole certificate, as hexadecimal digits.
    """

    name: str
    fingerprint: str


class TlsPipe:
    """One TLS session without a socket.

    Attributes:
        established: the handshake is over.
        ended: the peer has said goodbye; whatever else it sends is not read.
    """

    __slots__ = ("_handshaken", "_incoming", "_object", "_outgoing", "ended", "established")

    def __init__(self, context: ssl.SSLContext, *, server_side: bool, host: str | None = None) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=host
        )
        self._handshaken = 0
        self.established = False
        self.ended = False

    def start(self) -> bytes:
        """Bytes a client sends first."""
        self._handshake()
        return self._outgoing.read()

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """Cipher text in; (plain text, cipher text to send) out.

        Raises:
            RemoteProtocolError: the peer is to be told ``farewell`` and closed.
        """
        if self.ended:
            return b"", b""
        self._incoming.write(data)
        if not self.established:
            self._handshake()
            if not self.established:
                self._handshaken += len(data)
                if self._handshaken > _MAX_HANDSHAKE_BYTES:
                    raise RemoteProtocolError(f"a TLS handshake of more than {_MAX_HANDSHAKE_BYTES} bytes")
                return b"", self._outgoing.read()
        plain = []
        try:
            while chunk := self._object.read(262_144):
                plain.append(chunk)
            self.ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise RemoteProtocolError(self._trouble(error)) from error
        return plain[0] if len(plain) == 1 else b"".join(plain), self._outgoing.read()

    def send(self, data: bytes | memoryview) -> bytes:
        """Plain text in, cipher text out, once the handshake is over."""
        assert self.established, "nothing is sent before the handshake is over"
        try:
            sent = self._object.write(data)
        except ssl.SSLError as error:
            raise RemoteProtocolError(self._trouble(error)) from error
        assert sent == len(data), "a memory buffer takes everything"
        return self._outgoing.read()

    def farewell(self) -> bytes:
        """Bytes to send last: what OpenSSL has to say of an error, or a goodbye."""
        if self.established:
            try:
                self._object.unwrap()
            except (ssl.SSLError, ValueError):
                pass  # written all the same; the peer's goodbye is not waited for
        return self._outgoing.read()

    def peer_certificate(self) -> PeerCertificate | None:
        """What the peer has proved to hold; None if it showed none, or if nobody verified it."""
        if not self.established:
            return None
        # Only a verified certificate is told in words: of any other this is an empty dictionary.
        words = self._object.getpeercert()
        raw = self._object.getpeercert(binary_form=True)
        if not words or raw is None:
            return None
        parts: Any = words.get("subject", ())
        names = [value for part in parts for kind, value in part if kind == "commonName"]
        return PeerCertificate(names[0] if len(names) == 1 else "", hashlib.sha256(raw).hexdigest())

    def _handshake(self) -> None:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise RemoteProtocolError(self._trouble(error)) from error
        self.established = True

    def _trouble(self, error: ssl.SSLError) -> str:
        return tls_trouble(error, server_side=bool(self._object.server_side))
