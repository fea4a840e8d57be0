"""From when to when a certificate is valid, read off its bytes: Python's ssl tells it of peers' certificates only."""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime, timedelta

FIRST_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)

_VERSION = 0xA0
_SEQUENCE = 0x30
_UTC_TIME = 0x17


def dates_of(pem: str) -> tuple[datetime, datetime] | None:
    """The first and the last moment of a text's first certificate; None if it cannot be told."""
    found = FIRST_CERTIFICATE.search(pem)
    if found is None:
        return None
    try:
        return _dates(ssl.PEM_cert_to_DER_cert(found[0]))
    except (ValueError, IndexError):
        return None


def _dates(der: bytes) -> tuple[datetime, datetime]:
    # Certificate ::= SEQUENCE { TBSCertificate ::= SEQUENCE { [0] version, serial, algorithm, issuer, validity, ...
    _, certificate, _ = _value(der, _SEQUENCE)
    _, rest, _ = _value(certificate, _SEQUENCE)
    if rest[0] == _VERSION:
        _, _, rest = _value(rest)
    for _ in range(3):
        _, _, rest = _value(rest)
    _, validity, _ = _value(rest, _SEQUENCE)
    kind, first, validity = _value(validity)
    start = _moment(kind, first)
    kind, last, _ = _value(validity)
    return start, _moment(kind, last)


def _value(der: bytes, wanted: int | None = None) -> tuple[int, bytes, bytes]:
    """The first value: its tag, its content, and what follows it."""
    tag, length, begin = der[0], der[1], 2
    if wanted is not None and tag != wanted:
        raise ValueError("no certificate")
    if length & 0x80:
        begin += length & 0x7F
        length = int.from_bytes(der[2:begin], "big")
    if begin + length > len(der):
        raise ValueError("cut off")
    return tag, der[begin : begin + length], der[begin + length :]


def _moment(kind: int, text: bytes) -> datetime:
    written = text.decode("ascii")
    if kind == _UTC_TIME:  # two digits of the year: 50 to 99 are of the last century
        written = ("19" if written[:2] >= "50" else "20") + written
    return datetime.strptime(written, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def trouble_with_dates(dates: tuple[datetime, datetime] | None, now: datetime, warn_before: timedelta) -> str:
    """What a person should know about a certificate's dates, in one sentence; "" if nothing."""
    if dates is None:
        return ""
    start, end = dates
    if now > end:
        return f"expired on {end:%Y-%m-%d %H:%M} UTC; peers that check it refuse it, renew it"
    if now < start:
        return f"is not valid before {start:%Y-%m-%d %H:%M} UTC; peers that check it refuse it until then"
    if end - now < warn_before:
        return f"expires on {end:%Y-%m-%d %H:%M} UTC; renew it, the new one is read without a restart"
    return ""
