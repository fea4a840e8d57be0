"""A private authority in a folder, and the certificates that it has vouched for.

``ca.pem`` is what everybody is told to believe, ``ca.key`` what nobody but the folder's owner may have. Each name has
``NAME.pem`` and ``NAME.key``. Keys have the mode 0600, and a renewed certificate takes the place of the old one, for
servers to see and load.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gimbalmq._clock import SYSTEM_CLOCK, Clock
from gimbalmq.errors import ConfigError
from gimbalmq.transport.certificates import Facts, Maker, Pair, check_host, find_maker
from gimbalmq.transport.whole_files import PRIVATE, PUBLIC, write_whole

AUTHORITY = "ca"
AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 397
"""No longer than public authorities may: some programs refuse more."""

OWN_HOSTS = ("localhost", "127.0.0.1", "::1")
"""Names of this machine that only reach itself."""

_MARGIN = timedelta(minutes=1)
"""So much sooner than its authority a certificate ends."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate in the folder."""

    name: str
    certificate: Path
    key: Path
    hosts: tuple[str, ...]
    until: datetime


class Authority:
    """The authority of one folder; opened, or made if the folder has none.

    Attributes:
        certificate: the file of what to believe.
        made: whether it was made now.
    """

    def __init__(
        self,
        folder: Path,
        *,
        clock: Clock = SYSTEM_CLOCK,
        maker: Maker | None = None,
        days: int = AUTHORITY_DAYS,
    ) -> None:
        """Raises ConfigError if it can be neither opened nor made."""
        self._folder = folder
        self._clock = clock
        self._maker = maker or find_maker()
        self.certificate = folder / f"{AUTHORITY}.pem"
        self.made = not self.certificate.exists()
        self._pair = self._make(days) if self.made else self._open()
        self.until = self._maker.read(self._pair.certificate).until
        if self.until <= self._now():
            raise ConfigError(
                "DIR",
                str(folder),
                f"its authority ended on {self.until:%Y-%m-%d}; make another in a new folder",
            )

    def _make(self, days: int) -> Pair:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                "DIR", str(self._folder), f"cannot be made: {error.strerror or error}"
            ) from error
        key = self._folder / f"{AUTHORITY}.key"
        if key.exists():
            raise ConfigError(
                "DIR", str(self._folder), f"it has {key.name} without {self.certificate.name}; move it"
            )
        now = self._now()
        # A name of its own, so that two authorities are never taken for one another.
        pair = self._maker.authority(f"gimbalmq-{os.urandom(4).hex()}", now, now + timedelta(days=days))
        self._write(AUTHORITY, pair)
        return pair

    def _open(self) -> Pair:
        pair = Pair(_text(self.certificate), _text(self._folder / f"{AUTHORITY}.key"))
        if not self._read(self.certificate).authority:
            raise ConfigError(
                "DIR", str(self._folder), f"{self.certificate.name} is no authority's certificate"
            )
        return pair

    def _read(self, path: Path) -> Facts:
        try:
            return self._maker.read(_text(path))
        except ValueError as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError("DIR", str(self._folder), f"{path.name} is no certificate") from error

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC).replace(microsecond=0)

    # -- certificates ------------------------------------------------------------------

    def found(self, name: str) -> Issued | None:
        """What the folder has under a name."""
        path = self._folder / f"{check_name(name)}.pem"
        if not path.exists():
            return None
        facts = self._read(path)
        return Issued(name, path, path.with_suffix(".key"), facts.hosts, facts.until)

    def all(self) -> list[Issued]:
        """Every certificate of the folder but the authority's own."""
        names = sorted(path.stem for path in self._folder.glob("*.pem") if path.stem != AUTHORITY)
        return [issued for name in names if (issued := self.found(name)) is not None]

    def issue(self, name: str, hosts: Iterable[str] = (), *, days: int = CERTIFICATE_DAYS) -> Issued:
        """Makes a certificate with a new key, in place of one that may be there.

        Args:
            hosts: what a server is reached by; a certificate without hosts is a client's.
            days: how long it counts; not longer than the authority does.
        """
        wanted = tuple(dict.fromkeys(check_host(host) for host in hosts))
        now = self._now()
        # A maker may look at the clock by itself, and begin to count a few seconds later.
        until = min(now + timedelta(days=days), self.until - _MARGIN)
        try:
            pair = self._maker.issue(self._pair, Facts(check_name(name), wanted, until), now)
        except ValueError as error:
            raise ConfigError("DIR", str(self._folder), f"its authority cannot sign: {error}") from error
        self._write(name, pair)
        made = self.found(name)
        assert made is not None, "it was written just now"
        return made

    def _write(self, name: str, pair: Pair) -> None:
        # The key first: a server that looks in between has the old certificate and waits until nothing moves.
        _write(self._folder / f"{name}.key", pair.key, PRIVATE)
        _write(self._folder / f"{name}.pem", pair.certificate, PUBLIC)


def check_name(name: str) -> str:
    """A name that can be a file's and a certificate's; raises ConfigError."""
    if not _NAME.fullmatch(name) or name == AUTHORITY:
        raise ConfigError("NAME", name, "use up to 63 letters, digits, '.', '-' and '_', and not ca")
    return name


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no PEM"
        raise ConfigError("DIR", str(path.parent), f"{path.name} cannot be read: {why}") from error


def _write(path: Path, text: str, mode: int) -> None:
    try:
        write_whole(path, text, mode)
    except OSError as error:
        raise ConfigError(
            "DIR", str(path.parent), f"{path.name} cannot be written: {error.strerror or error}"
        ) from error
