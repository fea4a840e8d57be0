"""Users: name, secret, rank, and where their requests may come from.

A user's password is the key of the signatures, so servers keep it as it is; nothing here shows it. Source addresses
and the certificate are ours: a signature has no time in it, so whoever saw one may send it again, unless the user is
bound to one of these.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum

from gimbalmq.access.policies import read_word, shown
from gimbalmq.access.sources import check_sources, matches
from gimbalmq.errors import InvalidParameterError, NoPermissionError
from gimbalmq.protocol.access_bodies import UserBody
from gimbalmq.transport.tls import PeerCertificate

MAX_NAME_LETTERS = 255
MAX_PASSWORD_LETTERS = 1024
MAX_SOURCES = 100

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_HEXADECIMAL = re.compile(r"[0-9a-fA-F]{32,}")


class UserType(StrEnum):
    SUPER = "Super"
    NORMAL = "Normal"


class UserStatus(StrEnum):
    ENABLE = "enable"
    DISABLE = "disable"


@dataclass(frozen=True, slots=True)
class User:
    """One user.

    Attributes:
        source_ips: addresses and ranges that the user's requests may come from; empty means every address.
        certificate: of the client that makes them: the common name of its subject, or its SHA-256 fingerprint in lower
            case without colons. None means that none is needed.
    """

    name: str
    password: str = field(repr=False)
    type: UserType = UserType.NORMAL
    status: UserStatus = UserStatus.ENABLE
    source_ips: tuple[str, ...] = ()
    certificate: str | None = None

    @property
    def is_super(self) -> bool:
        return self.type == UserType.SUPER

    @property
    def is_enabled(self) -> bool:
        return self.status == UserStatus.ENABLE

    @classmethod
    def of(cls, body: UserBody, name: str | None = None) -> User:
        """A new user; ``name``, the header's, counts before the body's.

        Raises:
            NoPermissionError: name or password is blank (Apache's code for that).
            InvalidParameterError: another value cannot be used.
        """
        return cls(check_name(name or body.username or ""), check_password(body.password or "")).changed(body)

    def changed(self, body: UserBody) -> User:
        """With the parts that the body has. A blank part of Apache's stays as it was; blank sources or a blank
        certificate end the binding.

        Raises:
            InvalidParameterError: a value cannot be used.
        """
        user = self
        if body.password and body.password.strip():
            user = replace(user, password=check_password(body.password))
        if body.user_type and body.user_type.strip():
            user = replace(user, type=read_word(UserType, body.user_type, "the user's type"))
        if body.user_status and body.user_status.strip():
            user = replace(user, status=read_word(UserStatus, body.user_status, "the user's status"))
        if body.source_ips is not None:
            if len(body.source_ips) > MAX_SOURCES:
                raise InvalidParameterError(
                    f"the user would have {len(body.source_ips)} source addresses and may have {MAX_SOURCES}: "
                    "use ranges such as 10.0.0.0/8"
                )
            user = replace(user, source_ips=check_sources(body.source_ips))
        if body.certificate is not None:
            user = replace(user, certificate=check_certificate(body.certificate))
        return user

    def body(self, *, with_password: bool) -> UserBody:
        return UserBody(
            certificate=self.certificate,
            password=self.password if with_password else None,
            source_ips=list(self.source_ips) or None,
            user_status=self.status.value,
            user_type=self.type.value,
            username=self.name,
        )

    def may_come_from(self, ip: str) -> bool:
        """Whether the user is bound to no address, or to this one."""
        return not self.source_ips or matches(self.source_ips, ip)

    def may_present(self, certificate: PeerCertificate | None) -> bool:
        """Whether the user is bound to no certificate, or to the one that the peer has shown."""
        return self.certificate is None or (
            certificate is not None and is_certificate(self.certificate, certificate)
        )


def check_name(name: str) -> str:
    """Raises an error if nobody can be named so."""
    if not name.strip():
        raise NoPermissionError("username can not be blank")
    if len(name) > MAX_NAME_LETTERS:
        raise InvalidParameterError(
            f"the user name {shown(name)} has {len(name)} letters and may have {MAX_NAME_LETTERS}"
        )
    if not name.isprintable() or any(letter.isspace() or letter == "," for letter in name):
        raise InvalidParameterError(
            f"the user name {shown(name)} has a blank, a comma or an unprintable letter in it; leave that out"
        )
    return name


def check_password(password: str) -> str:
    """Raises an error, which does not show it, if it cannot be a password."""
    if not password.strip():
        raise NoPermissionError("password can not be blank")
    if len(password) > MAX_PASSWORD_LETTERS:
        raise InvalidParameterError(
            f"the password has {len(password)} letters and may have {MAX_PASSWORD_LETTERS}"
        )
    try:
        password.encode()
    except UnicodeEncodeError:
        raise InvalidParameterError("the password has letters that UTF-8 cannot write; use others") from None
    return password


def check_certificate(text: str) -> str | None:
    """The certificate as it is kept; None if the text is blank.

    Raises:
        InvalidParameterError: it names no certificate.
    """
    stripped = text.strip()
    if not stripped:
        return None
    plain = _plain_fingerprint(stripped)
    if _FINGERPRINT.fullmatch(plain):
        return plain
    name = stripped.removeprefix("CN=").strip()
    # A fingerprint that lacks a digit must not be kept as a name that nobody has.
    looks_like_one = ":" in name or _HEXADECIMAL.fullmatch(plain)
    if not name or not name.isprintable() or len(name) > MAX_NAME_LETTERS or looks_like_one:
        raise InvalidParameterError(
            f"the certificate {shown(text)} names none: use the common name of its subject, or its SHA-256 "
            "fingerprint, 64 hexadecimal digits"
        )
    return name


def is_certificate(kept: str, certificate: PeerCertificate) -> bool:
    """Whether a certificate that was verified is the one that ``check_certificate`` made this text for."""
    # A name that looks like a fingerprint is none; its owner may have chosen it.
    return kept == (certificate.fingerprint if is_fingerprint(kept) else certificate.name)


def is_fingerprint(text: str) -> bool:
    """Whether it is a SHA-256 fingerprint, in any spelling."""
    return _FINGERPRINT.fullmatch(_plain_fingerprint(text)) is not None


def _plain_fingerprint(text: str) -> str:
    digits = text.removeprefix("sha256:").replace(":", "")
    return digits.lower() if _HEXADECIMAL.fullmatch(digits) else text
