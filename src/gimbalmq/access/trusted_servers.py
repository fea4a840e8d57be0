"""Servers that need no signature: brokers of Apache's which do not sign their calls to a name server.

They are known by their address or, better, by the client certificate that they show. An address is only worth as much as
the network that it is used in.
"""

from __future__ import annotations

from collections.abc import Iterable

from gimbalmq.access.sources import check_source, matches
from gimbalmq.access.users import check_certificate
from gimbalmq.errors import InvalidParameterError
from gimbalmq.transport.tls import PeerCertificate

_NAME = "CN="
_FINGERPRINT_LETTERS = 64


class TrustedServers:
    """Raises InvalidParameterError, which names the first text that is no address and no certificate."""

    __slots__ = ("_addresses", "_fingerprints", "_names")

    def __init__(self, texts: Iterable[str]) -> None:
        addresses: list[str] = []
        self._names: set[str] = set()
        self._fingerprints: set[str] = set()
        for text in texts:
            if text.startswith(_NAME):
                name = text.removeprefix(_NAME).strip()
                if check_certificate(name) != name:
                    raise InvalidParameterError(f"{text!r} names no certificate: use CN= and its subject's name")
                self._names.add(name)
            elif (fingerprint := _fingerprint(text)) is not None:
                self._fingerprints.add(fingerprint)
            else:
                addresses.append(check_source(text))
        self._addresses = tuple(addresses)

    def __bool__(self) -> bool:
        return bool(self._addresses or self._names or self._fingerprints)

    def includes(self, host: str, certificate: PeerCertificate | None) -> bool:
        """Whether a peer with this address and this certificate, which was verified, is one of them."""
        if certificate is not None and (
            certificate.name in self._names or certificate.fingerprint in self._fingerprints
        ):
            return True
        return bool(self._addresses) and matches(self._addresses, host)


def _fingerprint(text: str) -> str | None:
    try:
        plain = check_certificate(text)
    except InvalidParameterError:
        return None
    # Anything else that it lets pass is a name, which has to be written with CN= here.
    is_one = plain is not None and len(plain) == _FINGERPRINT_LETTERS and set(plain) <= set("0123456789abcdef")
    return plain if is_one else None
