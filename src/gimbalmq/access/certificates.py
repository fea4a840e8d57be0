"""Whether the certificate that a peer has shown is the one that a user is bound to, or that a server is trusted for.

It is named by its subject's CN, ``CN=name``, or by its SHA-256 fingerprint. Every authority that the server believes can
give a name to anybody; a fingerprint is one certificate only.
"""

from __future__ import annotations

import hmac

from gimbalmq.transport.tls import PeerCertificate

NAME = "CN="


def certificate_matches(wanted: str, shown: PeerCertificate | None) -> bool:
    """Whether a peer has shown, and the server has verified, the certificate of this name.

    >>> certificate_matches("CN=orders", PeerCertificate("orders", "00" * 32))
    True
    """
    if shown is None:
        return False
    if wanted.startswith(NAME):
        return bool(shown.name) and wanted.removeprefix(NAME).strip() == shown.name
    fingerprint = wanted.replace(":", "").lower()
    return hmac.compare_digest(fingerprint.encode(), shown.fingerprint.encode())
