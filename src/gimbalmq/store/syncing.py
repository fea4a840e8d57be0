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
_OPEN, _SYNC, _DONE = b"open", b"sync", b"done"

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

    if not sys.executable or getattr(sys, "frozen", False):  # a frozen program would start itself once more
        return False
    names = [os.fsencode(path) for path in paths]
    try:
        # Descriptors need not be closed: none of ours is inheritable, and there may be thousands.
        told = subprocess.run(
            (sys.executable, "-I", "-S", os.path.abspath(__file__)),
            input=b"\0".join(names),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            check=False,
        ).stdout
    except (OSError, MemoryError):
        return False
    # Only what it says counts. Its exit code is 0 also if SIGCHLD is ignored, as some who start us leave it, and it was
    # killed; and a failure it has told of must be heard even then: the kernel reports it once.
    step, _, rest = told.partition(b"\0")
    if step == _DONE:
        return rest == b"%d" % len(names)
    number, _, path = rest.partition(b"\0")
    if step in (_OPEN, _SYNC) and number.isdigit():
        raise SyncFailed(os.fsdecode(path), int(number), opened=step == _SYNC)
    return False


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
    """Syncs the paths that come in; tells the first failure at once, or how many are done if all are."""
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the one who waits for us
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICENESS)
    paths = sys.stdin.buffer.read().split(b"\0")
    left = iter(paths)
    done: list[bytes] = []
    first = threading.Lock()

    def sync_some() -> None:
        for path in left:
            if first.locked():
                return
            try:
                _sync_path(path)
            except SyncFailed as failure:
                if first.acquire(blocking=False):
                    step = _SYNC if failure.opened else _OPEN
                    os.write(1, b"%b\0%d\0%b" % (step, failure.error.errno or 0, path))
                return
            done.append(path)

    threads = [threading.Thread(target=sync_some) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(done) == len(paths):  # else one has failed, or its thread: that of lacking memory, say
        os.write(1, b"%b\0%d" % (_DONE, len(done)))


if __name__ == "__main__":
    main()
