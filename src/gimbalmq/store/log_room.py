"""Room on the disk for what the log will hold next, reserved ahead of its end.

The log's files are sparse. ext4 looks for the blocks of new bytes only when it writes them out, and keeps the file's
block map locked meanwhile. A write that meets a page without a block waits for the lock: for milliseconds while queue
files are written out, too, and as long as the disk pleases if it is slow. That is the event loop, standing still in
``pwrite``. A page whose block is reserved asks for no lock. So another thread reserves blocks before the writes come.

Whatever goes wrong here does no harm: the log is sparse then, as it was.
"""

from __future__ import annotations

import errno
import os

from gimbalmq.store.commitlog import CommitLog
from gimbalmq.store.files import Files

AHEAD_BYTES = 64 << 20
"""More than a broker writes between two looks, which are half a second apart."""
UNUSED_BYTES = 1 << 20
"""A log that has not grown by so much since the start takes no room for more."""
FREE_BYTES = 1 << 30
"""A disk with less room than this needs it for other things."""

_MISSING = frozenset({errno.EOPNOTSUPP, errno.ENOSYS})


class LogRoom:
    """Reserves room for one log. ``wanted`` is for the thread that appends, ``reserve`` for any, one at a time."""

    def __init__(
        self,
        log: CommitLog,
        files: Files,
        *,
        ahead: int = AHEAD_BYTES,
        unused: int = UNUSED_BYTES,
        free: int = FREE_BYTES,
    ) -> None:
        self._log = log
        self._files = files
        self._ahead = ahead
        self._unused = unused
        self._free = free
        self._begin = -1
        self._seen = 0
        self._reserved = 0
        self._possible = True

    def begin(self) -> None:
        """The log is loaded."""
        self._begin = self._seen = self._reserved = self._log.position

    @property
    def wanted(self) -> bool:
        """Whether writes will soon come to blocks that are not reserved."""
        position = self._log.position
        if position < self._seen:  # a cut gives the blocks behind it back
            self._reserved = position
            self._begin = min(self._begin, position)
        self._seen = position
        if not self._possible or position - self._begin < self._unused:
            return False
        return self._reserved < min(position + self._ahead, self._log.file_end(position))

    def reserve(self) -> None:
        """Reserves up to twice as far ahead as is wanted, within the file that is being written."""
        position = self._seen = self._log.position
        file_end = self._log.file_end(position)
        base = file_end - self._log.segments.size
        start, end = max(position, self._reserved, base), min(position + 2 * self._ahead, file_end)
        folder = self._log.segments.folder
        try:
            disk = os.statvfs(folder)
            if disk.f_bavail * disk.f_frsize < self._free:
                return
            # By a descriptor of our own: the one that is written may be closed while this one waits for the disk.
            fd = self._files.open(f"{folder}/{base:020d}")
            try:
                self._files.reserve(fd, start - base, end - start)
            finally:
                self._files.close(fd)
        except OSError as error:  # such as a file that comes with the next write
            self._possible = error.errno not in _MISSING
            return
        self._reserved = end
