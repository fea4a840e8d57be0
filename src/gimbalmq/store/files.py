"""The file system as the store sees it: the one place in which an OSError becomes a store error.

Everything that changes a file goes through a ``Files`` object, so tests hand in one that runs out
of space, writes short or loses what was not synced. Reads of the log do not: they are slices of a
read-only map. Writes never go through a map, because a full disk would then be a SIGBUS that kills
the process instead of an error that can be answered.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from gimbalmq.errors import (
    DiskFullError,
    ResourceShortageError,
    StoreError,
    StoreIOError,
    StoreLockedError,
)
from gimbalmq.store.syncing import sync_descriptor, sync_elsewhere

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EINTR, errno.EAGAIN})
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE
OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


def store_error(error: OSError, what: str) -> StoreError:
    """The error of ours for an OSError: one that passes, or a failure of the disk, which does not."""
    kind: type[StoreError] = StoreIOError
    if error.errno in _FULL:
        kind = DiskFullError
    elif error.errno in _SHORT:
        kind = ResourceShortageError
    return kind(f"{what}: {error.strerror or error}")


def passes(error: BaseException | None) -> bool:
    """Whether the trouble ends without a restart."""
    return isinstance(error, DiskFullError | ResourceShortageError)


@contextmanager
def translated(what: object) -> Iterator[None]:
    """Turns any OSError inside into the store error it is."""
    try:
        yield
    except OSError as error:
        raise store_error(error, str(what)) from error


def is_number(name: str) -> bool:
    """Whether a file's name is a number as the store writes them; ``str.isdigit`` takes more than ``int`` reads."""
    return name.isascii() and name.isdigit() and len(name) <= 20


class Files:
    """Real files. Methods raise OSError; callers translate it with their own words."""

    def open(self, path: Path | str, *, create: bool = False) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return os.open(path, flags, 0o644)

    def create_private(self, path: Path | str) -> int:
        """Makes and opens a file that nobody but its owner ever can read; there must be none of its name."""
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, 0o600)

    def close(self, fd: int) -> None:
        os.close(fd)

    def write_at(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        """Writes all of ``data``; the kernel may take it in several bites."""
        written = self.pwrite(fd, data, position)
        if written != len(data):
            rest = memoryview(data)
            while written < len(data):
                written += self.pwrite(fd, rest[written:], position + written)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        return os.pwrite(fd, data, position)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def allocate(self, fd: int, start: int, size: int) -> None:
        """Reserves blocks, so that a map of them can be written without fear of a full disk."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, start, size)
            return
        zeros = bytes(1 << 20)
        for position in range(start, start + size, len(zeros)):
            self.write_at(fd, zeros[: min(len(zeros), start + size - position)], position)

    def reserve(self, fd: int, start: int, size: int) -> None:
        """Reserves blocks beside whoever writes the file: its bytes and its size stay as they are.

        Raises:
            OSError: EOPNOTSUPP or ENOSYS if this file system or this system cannot.
        """
        # Not ``allocate``: if the file system cannot, glibc reads and writes each block instead, and a write of
        # another thread in between would be lost.
        call = _fallocate()
        if call is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        number = call(fd, start, size)
        if number:
            raise OSError(number, os.strerror(number))

    def sync(self, fd: int) -> None:
        """Makes a file's bytes and size durable; its name is not, see ``sync_folder``."""
        sync_descriptor(fd)

    def sync_many(self, paths: Iterable[str]) -> bool:
        """Syncs files, and folders (they end with a slash), beside this process; as ``syncing.sync_elsewhere``."""
        if type(self).sync is not Files.sync or type(self).sync_folder is not Files.sync_folder:
            return False  # a layer that has its own way wants to see each sync
        return sync_elsewhere(paths)

    def sync_folder(self, folder: Path | str) -> None:
        """Makes names created in, renamed in or removed from the folder durable."""
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def make_folder(self, folder: Path | str) -> None:
        """Makes the folder and those above it, if they are missing; see ``sync_folder``."""
        os.makedirs(folder, exist_ok=True)

    def boot_id(self) -> str | None:
        """Another one after each start of the machine, on which what was not synced is gone; None if nobody knows."""
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip() or None
        except (OSError, ValueError):
            return None  # not a Linux

    def remove(self, path: Path | str) -> None:
        """Removes a file; one that is gone already is no error."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass

    def remove_folder(self, folder: Path | str) -> None:
        """Removes a folder with all that is in it; one that is gone already is no error."""
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            pass

    def replace(self, source: Path | str, target: Path | str) -> None:
        """Renames a file, over another one if there is one; see ``sync_folder``."""
        os.replace(source, target)

    def read_at(self, fd: int, size: int, position: int) -> bytes:
        return os.pread(fd, size, position)

    def map(self, fd: int, size: int, *, writable: bool = False) -> mmap.mmap:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        return mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=protection)


@cache
def _fallocate() -> Callable[[int, int, int], int] | None:
    """Linux's call of that name, which Python does not have; it returns the error's number, 0 if there was none."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    found = getattr(library, "fallocate64", None) or getattr(
        library, "fallocate", None
    )  # musl has the latter
    if found is None:
        return None
    found.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return lambda fd, start, size: ctypes.get_errno() if found(fd, _KEEP_SIZE, start, size) else 0


def sync_file(files: Files, fd: int, what: object) -> None:
    """Syncs a file that is open.

    Raises:
        StoreIOError: whatever the reason. The kernel may have dropped what it could not write, so even a full disk
            is no trouble that passes here.
    """
    try:
        files.sync(fd)
    except OSError as error:
        raise StoreIOError(f"sync of {what}: {error.strerror or error}") from error


def sync_names(files: Files, folder: Path | str) -> None:
    """Syncs a folder; likewise, except that it has to be opened first, and that trouble may pass."""
    try:
        files.sync_folder(folder)
    except OSError as error:
        if error.errno in _FULL:
            raise StoreIOError(f"sync of {folder}: {error.strerror or error}") from error
        raise


def disk_usage(folder: Path) -> float:
    """Used part of the folder's disk, 0..1, counted as ``df`` does."""
    stat = os.statvfs(folder)
    used = stat.f_blocks - stat.f_bfree
    total = used + stat.f_bavail
    return used / total if total else 0.0


def physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def sparse_data_end(fd: int, start: int, size: int) -> int:
    """Position behind the last byte that is not zero in [start, size), or ``start``."""
    end = start
    position = start
    while position < size:
        try:
            position = os.lseek(fd, position, os.SEEK_DATA)
        except OSError:  # ENXIO: only a hole from here on
            break
        chunk = os.pread(fd, min(1 << 20, size - position), position)
        if not chunk:
            break
        used = len(chunk.rstrip(b"\0"))
        if used:
            end = max(end, position + used)
        position += len(chunk)
    return end


_held: set[tuple[int, int]] = set()  # POSIX locks do not stop a second store in the same process


class FolderLock:
    """Exclusive ownership of a store folder; the same lock Java's broker takes on ``lock``."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._fd = -1
        self._key = (0, 0)

    def acquire(self) -> None:
        """Takes the lock.

        Raises:
            StoreLockedError: another process, or another store of this one, has the folder.
        """
        # An fd of a locked file must not be opened and closed by its owner: that would drop the lock.
        path = self._root / "lock"
        with translated(path):
            if path.exists():
                self._key = _identity(path)
                if self._key in _held:
                    raise StoreLockedError(f"{self._root} is open in this process already")
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
        except OSError as error:
            os.close(fd)
            raise StoreLockedError(f"{self._root} is in use by {_owner(self._root)}") from error
        self._fd = fd
        self._key = _identity(path)
        _held.add(self._key)
        try:
            os.pwrite(fd, b"lock", 0)
        except OSError:
            pass  # a full disk; what is in the file does not matter, only who has it locked

    def release(self) -> None:
        if self._fd >= 0:
            _held.discard(self._key)
            os.close(self._fd)
            self._fd = -1


def _identity(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_dev, stat.st_ino


def _owner(root: Path) -> str:
    try:
        pid = (root / "abort").read_bytes().strip().decode("ascii", "replace")
    except OSError:
        pid = ""
    return f"process {pid}" if is_number(pid) else "another process"
