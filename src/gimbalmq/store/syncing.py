"""Syncs of thousands of files, by a process of its own.

A thread that syncs a file takes the interpreter three times: when open, sync and close return. Four such threads keep
the event loop from getting it back after each of its own writes: a fifth of the loop's time was waiting, and one write
in a hundred took milliseconds. A process has an interpreter of its own, and the loop does not notice it.

This file is also that process's program. It is run by its path, without the package, because it starts for each large
checkpoint: so it imports little, and nothing of the package.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import sys
import threading
from collections.abc import Iterable

_THREADS = 4
"""Files synced at once: the file system writes its journal once for all that wait."""
_NICENESS = 5
_OPEN, _SYNC = "open", "sync"

# macOS: fsync hands the data to the drive, whose cache loses it with the power; this waits for the platters.
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


class SyncFailed(Exception):
    """A file or folder could not be opened or synced.

    Attributes:
        error: what the system said.
        opened: whether it was opened; then the system may have dropped what it could not write.
    """

    def __init__(self, path: str, number: int, *, opened: bool) -> None:
        self.error = OSError(number, os.strerror(number), path)
        self.opened = opened
        super().__init__(str(self.error))


def sync_descriptor(fd: int) -> None:
    """Makes a file's bytes and size durable."""
    if _FULL_SYNC is not None:
        try:
            fcntl.fcntl(fd, _FULL_SYNC)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise  # only a file system that does not know it, such as a network's, may do with less
    if hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        os.fsync(fd)


def sync_elsewhere(paths: Iterable[str]) -> bool:
    """Has another process sync files, and folders (they end with a slash); those that are gone are no error.

    Returns:
        Whether all of them are durable; if not, the process could not be had or was killed, and nothing is known.

    Raises:
        SyncFailed: of one of them; nothing is known of the others.
    """
    import subprocess  # here: few stores have so many queues

    if not sys.executable:
        return False
    try:
        # Descriptors need not be closed: none of ours is inheritable, and there may be thousands.
        done = subprocess.run(
            (sys.executable, "-I", "-S", os.path.abspath(__file__)),
            input=b"\0".join(map(os.fsencode, paths)),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            check=False,
        )
    except (OSError, MemoryError):
        return False
    if done.returncode:
        return False
    if done.stdout:
        step, number, path = done.stdout.split(b"\0", 2)
        raise SyncFailed(os.fsdecode(path), int(number), opened=step == _SYNC.encode())
    return True


# --- the process -------------------------------------------------------------------------------


def _sync_path(path: bytes) -> None:
    is_folder = path.endswith(b"/")
    try:
        fd = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    except FileNotFoundError:  # its topic was deleted meanwhile
        return
    except OSError as error:
        raise SyncFailed(os.fsdecode(path), error.errno or 0, opened=False) from error
    try:
        if is_folder:
            os.fsync(fd)
        else:
            sync_descriptor(fd)
    except OSError as error:
        raise SyncFailed(os.fsdecode(path), error.errno or 0, opened=True) from error
    finally:
        os.close(fd)


def main() -> None:
    """Syncs the paths that come in, and tells the first failure."""
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the one who waits for us
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICENESS)
    paths = iter(sys.stdin.buffer.read().split(b"\0"))
    failures: list[SyncFailed] = []

    def sync_some() -> None:
        for path in paths:
            if failures:
                return
            try:
                _sync_path(path)
            except SyncFailed as failure:
                failures.append(failure)

    threads = [threading.Thread(target=sync_some) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        first = failures[0]
        told = (_SYNC if first.opened else _OPEN, str(first.error.errno), first.error.filename)
        sys.stdout.buffer.write(b"\0".join(map(os.fsencode, told)))


if __name__ == "__main__":
    main()
