"""Servers that need no signature: brokers of Apache's which do not sign their calls to a name server.

They are known by their address or, better, by the client certificate that they show. An address is only worth as much as
the network that it is used in.
"""

from __future__ import annotations

from collections.abc import Iterable

from gimbalmq.access.certificates import certificate_matches
from gimbalmq.access.sources import check_source, matches
from gimbalmq.access.users import check_certificate
from gimbalmq.errors import InvalidParameterError
from gimbalmq.transport.tls import PeerCertificate


class TrustedServers:
    """Raises InvalidParameterError, which names the first text that is no address and no certificate."""

    __slots__ = ("_addresses", "_certificates")

    def __init__(self, texts: Iterable[str]) -> None:
        addresses: list[str] = []
        certificates: list[str] = []
        for text in texts:
            try:
                certificate = check_certificate(text)
            except InvalidParameterError:
                certificate = None
            if certificate is None:
                addresses.append(check_source(text))
            else:
                certificates.append(certificate)
        self._addresses, self._certificates = tuple(addresses), tuple(certificates)

    def __bool__(self) -> bool:
        return bool(self._addresses or self._certificates)

    def includes(self, host: str, certificate: PeerCertificate | None) -> bool:
        """Whether a peer with this address and this certificate, which was verified, is one of them."""
        if any(certificate_matches(wanted, certificate) for wanted in self._certificates):
            return True
        return bool(self._addresses) and matches(self._addresses, host)
