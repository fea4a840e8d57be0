"""What certificates say, and who makes them: the package ``cryptography`` if it is installed, else ``openssl``.

Both make the same kind: keys on the curve P-256, which Java 8 and everything since knows, written as PKCS #8, which
Netty reads.
"""

from __future__ import annotations

import ipaddress
import re
import shutil
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from gimbalmq.errors import ConfigError

EARLY = timedelta(hours=1)
"""The package's certificates count from so long ago, because clocks of machines differ. Those of ``openssl``, which
learned that in 3.4 only, count from now."""

_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST_NAME = re.compile(rf"(\*\.)?({_LABEL}\.)*{_LABEL}")


@dataclass(frozen=True, slots=True)
class Facts:
    """What a certificate says.

    Attributes:
        name: the common name of its subject.
        hosts: names and addresses that it is for; a client's has none.
        until: when it ends.
        authority: whether it may vouch for others.
    """

    name: str
    hosts: tuple[str, ...]
    until: datetime
    authority: bool = False


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as PEM."""

    certificate: str
    key: str = field(repr=False)


class Maker(Protocol):
    """Who makes certificates."""

    def authority(self, name: str, now: datetime, until: datetime) -> Pair:
        """One that vouches for others, and for itself."""
        ...

    def issue(self, by: Pair, facts: Facts, now: datetime) -> Pair:
        """One that an authority vouches for: a server's for its hosts, or a client's if there are none."""
        ...

    def read(self, certificate: str) -> Facts:
        """Raises ValueError if it is no certificate."""
        ...


def find_maker() -> Maker:
    """Raises ConfigError if neither the package nor the program is there."""
    try:
        from gimbalmq.transport.certificates_package import PackageMaker
    except ImportError:
        program = shutil.which("openssl")
        if program is None:
            raise ConfigError(
                "openssl", None, "certificates need it; install it, or say pip install 'gimbalmq[tls]'"
            ) from None
        from gimbalmq.transport.certificates_openssl import OpenSslMaker

        return OpenSslMaker(program)
    return PackageMaker()


def check_host(text: str) -> str:
    """A host name or an address, as certificates have it; raises ConfigError."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if is_address(bare):
        return str(ipaddress.ip_address(bare))
    if len(text) > 253 or not _HOST_NAME.fullmatch(text) or text.replace(".", "").isdigit():
        raise ConfigError("HOST", text, "use a host name, or an address of IPv4 or IPv6, without a port")
    return text.lower()


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
