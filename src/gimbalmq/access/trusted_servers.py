"""Servers that need no signature: brokers of Apache's which do not sign their calls to a name server.

They are known by their address or, better, by the client certificate that they show. An address is worth as much as the
network that it is used in.
"""

from __future__ import annotations

from collections.abc import Iterable

from gimbalmq.access.sources import check_source, matches
from gimbalmq.access.users import check_certificate, is_certificate, is_fingerprint
from gimbalmq.transport.tls import PeerCertificate

_NAME = "CN="


class TrustedServers:
    """Raises InvalidParameterError, which names the first text that is no address and no certificate."""

    __slots__ = ("_addresses", "_certificates")

    def __init__(self, texts: Iterable[str]) -> None:
        addresses: list[str] = []
        self._certificates: set[str] = set()
        for text in texts:
            if text.startswith(_NAME) or is_fingerprint(text):
                self._certificates.add(check_certificate(text) or text)
            else:
                addresses.append(check_source(text))
        self._addresses = tuple(addresses)

    def __bool__(self) -> bool:
        return bool(self._addresses or self._certificates)

    def includes(self, host: str, certificate: PeerCertificate | None) -> bool:
        """Whether a peer with this address and this certificate, which was verified, is one of them."""
        if certificate is not None and any(is_certificate(kept, certificate) for kept in self._certificates):
            return True
        return bool(self._addresses) and matches(self._addresses, host)
