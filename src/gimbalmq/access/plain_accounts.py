"""The accounts of 4.x as a server keeps them: read from their files, read again when those change, changed by requests.

The files stay the truth. Every look reads them and compares what they say, so a file that was only touched changes
nothing, and one that was changed and has its old time is seen. A look happens in a thread. If a file cannot be
understood, everything stays as it was, and the log says so once.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gimbalmq._clock import SYSTEM_CLOCK, Clock
from gimbalmq.access import plain_yaml
from gimbalmq.access.plain_acl import Account, AccountFile, read_file
from gimbalmq.access.plain_addresses import AddressPattern
from gimbalmq.access.plain_rights import acl_of, user_of
from gimbalmq.access.policies import Acl
from gimbalmq.access.private_file import write_private
from gimbalmq.access.users import User
from gimbalmq.errors import ConfigError
from gimbalmq.store.files import Files
from gimbalmq.transport.tasks import uninterrupted

log = logging.getLogger(__name__)

RELOAD_SECONDS = 5.0
"""Between two looks at the files, as in 4.x."""

MAIN_FILE = "plain_acl.yml"
FOLDER = "acl"

_SUFFIXES = (".yml", ".yaml")
_MOST_FILES = 256
_MOST_REMEMBERED = 4096
_MOST_ADDRESSES = 10_000
"""Of the global white list: each peer is compared with all of them once, on the event loop."""
_TOLD = 20


@dataclass(frozen=True, slots=True)
class Place:
    """Where the files are: the main file, and a folder with any number of others."""

    main: Path
    folder: Path

    @classmethod
    def of(cls, path: Path) -> Place:
        """From the main file, or from the folder with ``plain_acl.yml`` and ``acl`` in it, as Apache's ``conf``."""
        if path.suffix in _SUFFIXES:
            return cls(path, path.parent / FOLDER)
        return cls(path / MAIN_FILE, path / FOLDER)

    def paths(self) -> list[Path]:
        """All files there are, in the order in which they are read: the main file is the last.

        Raises:
            ConfigError: there are too many.
            OSError: a folder cannot be read.
        """
        found = sorted(_yaml_files(self.folder))
        if len(found) > _MOST_FILES:
            raise ConfigError(
                "aclConfigPath", str(self.folder), f"it holds {len(found)} files and may hold {_MOST_FILES}"
            )
        return [*found, self.main] if self.main.exists() else found


def _yaml_files(folder: Path) -> Iterator[Path]:
    # Hidden folders are passed over: a mounted configuration has each file in one of those once more.
    for entry in os.scandir(folder) if folder.is_dir() else ():
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _yaml_files(Path(entry.path))
        elif entry.name.endswith(_SUFFIXES):
            yield Path(entry.path)


@dataclass(frozen=True, slots=True)
class _Read:
    """What all files say.

    Attributes:
        texts: the files by path, as they were read.
        accounts: by key, each with the file it stands in.
    """

    texts: Mapping[Path, bytes] = field(default_factory=dict)
    files: Mapping[Path, AccountFile] = field(default_factory=dict)
    accounts: Mapping[str, Account] = field(default_factory=dict)
    homes: Mapping[str, Path] = field(default_factory=dict)
    users: Mapping[str, User] = field(default_factory=dict)
    acls: Mapping[str, Acl | None] = field(default_factory=dict)
    white: tuple[AddressPattern, ...] = ()
    warnings: tuple[str, ...] = ()


class PlainAccounts:
    """The accounts of all files, as a ``Directory``.

    Args:
        path: the main file or the folder that it is in, see ``Place.of``.

    Raises:
        ConfigError: a file cannot be understood. A server does not start with half of its accounts.
    """

    def __init__(self, path: Path, *, clock: Clock = SYSTEM_CLOCK, files: Files | None = None) -> None:
        self.place = Place.of(path)
        self._clock = clock
        self._files = files or Files()
        self._revision = 1
        self._complained = ""
        self._lock = asyncio.Lock()
        self._trusted: dict[tuple[str, str | None], bool] = {}
        self._now = self._read(_Read())
        if not self._now.files:
            log.warning(
                "aclEnable=true, but there is neither %s nor a file below %s; until there is, nobody has an account",
                self.place.main,
                self.place.folder,
            )
        self._tell()

    # -- what the gate asks ----------------------------------------------------------

    @property
    def revision(self) -> int:
        return self._revision

    def user(self, name: str) -> User | None:
        return self._now.users.get(name)

    def acl(self, name: str) -> Acl | None:
        return self._now.acls.get(name)

    def trusts(self, source: str, user: str | None) -> bool:
        """Whether a white list has this address: the global one, or that of the account.

        As in 4.x the request is then allowed: from the global list without a key, from an account's list without a
        signature and whatever the account's rights are.
        """
        asked = source, user if user in self._now.accounts else None
        known = self._trusted.get(asked)
        if known is None:
            if len(self._trusted) >= _MOST_REMEMBERED:
                self._trusted.clear()
            known = self._trusted[asked] = self._trusts(*asked)
        return known

    def _trusts(self, source: str, user: str | None) -> bool:
        if any(pattern.matches(source) for pattern in self._now.white):
            return True
        return user is not None and self._now.accounts[user].white.matches(source)

    # -- what administrators ask -----------------------------------------------------

    def account(self, access_key: str) -> Account | None:
        return self._now.accounts.get(access_key)

    def accounts(self) -> list[Account]:
        return list(self._now.accounts.values())

    def white_texts(self) -> list[str]:
        """The global white list of all files."""
        return [pattern.text for pattern in self._now.white]

    def versions(self) -> dict[str, tuple[int, int]]:
        """Counter and time of every file's last change by a request."""
        files = self._now.files
        return {str(path): (found.counter, found.timestamp) for path, found in files.items()}

    # -- changes ---------------------------------------------------------------------

    async def refresh(self) -> bool:
        """Looks at the files; whether they say something else than before. To be called every ``RELOAD_SECONDS``."""
        async with self._lock:
            try:
                return self._take(await asyncio.to_thread(self._read, self._now))
            except (ConfigError, OSError) as error:
                if str(error) != self._complained:
                    self._complained = str(error)
                    log.error("changed accounts are not used, the old ones stay: %s", error)
                return False

    async def put(self, access_key: str, change: Callable[[Account | None], Account]) -> None:
        """Writes an account to the file that it stands in, a new one to the main file.

        Args:
            change: makes the account from the one that there is.

        Raises:
            ConfigError: the account cannot be used, or a file cannot be understood.
            OSError: a file cannot be read or written.
        """

        def changed(read: _Read) -> dict[Path, AccountFile]:
            home = read.homes.get(access_key, self.place.main)
            file = read.files.get(home, AccountFile())
            return {home: file.with_account(change(read.accounts.get(access_key)))}

        await self._change(changed)

    async def remove(self, access_key: str) -> bool:
        """Removes an account from every file that has it; whether there was one. Raises as ``put`` does."""
        found: list[Path] = []

        def changed(read: _Read) -> dict[Path, AccountFile]:
            found.extend(path for path, file in read.files.items() if file.find(access_key) is not None)
            return {path: read.files[path].without_account(access_key) for path in found}

        await self._change(changed)
        return bool(found)

    async def set_white(self, patterns: tuple[AddressPattern, ...], path: Path | None = None) -> None:
        """Replaces the global white list of a file, the main file unless one is named; raises as ``put`` does."""

        def changed(read: _Read) -> dict[Path, AccountFile]:
            target = self.place.main
            if path is not None:
                known = {found.resolve(): found for found in read.files}
                target = known.get(path.resolve(), path)
                if target not in read.files:
                    raise ConfigError(
                        "aclFileFullPath", str(path), f"use one of {', '.join(map(str, read.files))}"
                    )
            old = read.files.get(target, AccountFile())
            return {target: AccountFile(patterns, old.accounts, counter=old.counter, timestamp=old.timestamp)}

        await self._change(changed)

    async def _change(self, change: Callable[[_Read], dict[Path, AccountFile]]) -> None:
        await uninterrupted(self._changed(change))

    async def _changed(self, change: Callable[[_Read], dict[Path, AccountFile]]) -> None:
        async with self._lock:
            self._take(await asyncio.to_thread(self._rewrite, self._now, change))

    def _rewrite(self, before: _Read, change: Callable[[_Read], dict[Path, AccountFile]]) -> _Read:
        """In a thread: reads the files as they are now, so that nobody's edit is lost, changes and reads them again."""
        read = self._read(before)
        now_ms = self._clock.wall_ms()
        texts = {path: file.next_version(now_ms).text() for path, file in change(read).items()}
        for path, text in texts.items():
            if len(text) > plain_yaml.MOST_BYTES:
                raise ConfigError(
                    "aclConfigPath",
                    str(path),
                    f"it would have {len(text)} bytes and may have {plain_yaml.MOST_BYTES}",
                )
            read_file(text, str(path))  # what could not be read back is not written
        for path, text in texts.items():
            write_private(self._files, path, (text,))
        return self._read(read)

    def _read(self, before: _Read) -> _Read:
        """What the files say; ``before`` itself if they say what they said.

        Raises:
            ConfigError: a file cannot be understood, or has been emptied.
            OSError: a file cannot be read.
        """
        texts = {path: _content(path) for path in self.place.paths()}
        if texts == before.texts and list(texts) == list(before.texts):
            return before
        files: dict[Path, AccountFile] = {}
        for path, text in texts.items():
            if before.texts.get(path) == text and path in before.files:
                files[path] = before.files[path]
                continue
            found = read_file(text, str(path))
            if found is None and path in before.files:
                # As in 4.x. An editor empties a file for a moment before it writes it.
                raise ConfigError(
                    "aclConfigPath",
                    str(path),
                    "the file is empty; to remove all its accounts write accounts: []",
                )
            files[path] = found or AccountFile()
        return _joined(texts, files)

    def _take(self, read: _Read) -> bool:
        """Makes what was read the truth; whether anything changed."""
        self._complained = ""
        if read is self._now:
            return False
        self._now = read
        self._trusted.clear()
        self._revision += 1
        log.info("%d accounts of %d files are known now", len(read.accounts), len(read.files))
        self._tell()
        return True

    def _tell(self) -> None:
        for text in self._now.warnings[:_TOLD]:
            log.warning("%s", text)


def _warnings(read: _Read) -> Iterator[str]:
    """What an operator should know of files that are in order."""
    for path, file in read.files.items():
        for key, count in Counter(account.access_key for account in file.accounts).items():
            if read.homes[key] != path:
                yield f"{path}: account {key} counts as {read.homes[key]} has it, which was read first"
            elif count > 1:
                yield f"{path}: account {key} is there {count} times; the first counts"
    if read.white:
        addresses = _some([pattern.text for pattern in read.white])
        yield f"requests from {addresses} are allowed without a key (globalWhiteRemoteAddresses)"
    white = [f"{account.white.text} as {key}" for key, account in read.accounts.items() if account.white.text]
    if white:
        yield f"requests from {_some(white)} are allowed without a signature (whiteRemoteAddress)"


def _some(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _TOLD} others" if len(texts) > _TOLD else ""
    return ", ".join(text[:80] for text in texts[:_TOLD]) + more


def _joined(texts: Mapping[Path, bytes], files: Mapping[Path, AccountFile]) -> _Read:
    accounts: dict[str, Account] = {}
    homes: dict[str, Path] = {}
    for path, file in files.items():
        for account in file.accounts:
            if account.access_key not in accounts:
                accounts[account.access_key] = account
                homes[account.access_key] = path
    white = tuple(pattern for file in files.values() for pattern in file.white if pattern.text)
    addresses = sum(len(pattern.alternatives) for pattern in white)
    if addresses > _MOST_ADDRESSES:
        raise ConfigError(
            "globalWhiteRemoteAddresses",
            f"{addresses} addresses",
            f"use ranges; {_MOST_ADDRESSES} are allowed",
        )
    read = _Read(
        texts,
        files,
        accounts,
        homes,
        {key: user_of(account) for key, account in accounts.items()},
        {key: acl_of(account) for key, account in accounts.items()},
        white,
    )
    return replace(read, warnings=tuple(_warnings(read)))


def _content(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(plain_yaml.MOST_BYTES + 1)
