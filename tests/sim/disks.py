"""The disk of one simulated broker: it fills up, runs out of descriptors, gets slow, and loses power."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from gimbalmq.testing.disk import Operation, RecordedDisk


class Disk(RecordedDisk):
    """Files of one broker.

    Args:
        now_ms: what a file's time of change is set to, which the system would take from the real clock.
        stall: loses time; called while the disk is slow.

    Attributes:
        full, no_descriptors: errors to give, as long as they are set.
        sync_seconds: how long a sync takes.
    """

    def __init__(
        self, root: Path, seed: str, now_ms: Callable[[], int], stall: Callable[[float], None]
    ) -> None:
        super().__init__(root)
        self.full = False
        self.no_descriptors = False
        self.sync_seconds = 0.0
        self._boots = 0
        self._rng = random.Random(seed)
        self._now_ms = now_ms
        self._stall = stall

    @property
    def open_files(self) -> int:
        """Descriptors in use."""
        return len(self._descriptors)

    # -- Files -----------------------------------------------------------------------

    def open(self, path: Path | str, *, create: bool = False) -> int:
        if self.no_descriptors:
            raise _error(errno.EMFILE)
        if self.full and create and not os.path.exists(path):
            raise _error(errno.ENOSPC)
        return super().open(path, create=create)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        if self.full:
            raise _error(errno.ENOSPC)
        written = super().pwrite(fd, data, position)
        os.utime(fd, ns=(0, self._now_ms() * 1_000_000))
        return written

    def allocate(self, fd: int, start: int, size: int) -> None:
        if self.full and os.fstat(fd).st_blocks * 512 < start + size:
            raise _error(errno.ENOSPC)
        super().allocate(fd, start, size)

    def sync(self, fd: int) -> None:
        self._slow()
        super().sync(fd)

    def sync_folder(self, folder: Path | str) -> None:
        self._slow()
        super().sync_folder(folder)

    def boot_id(self) -> str:
        return str(self._boots)

    def _slow(self) -> None:
        if self.sync_seconds:
            self._stall(self.sync_seconds)

    # -- fate ------------------------------------------------------------------------

    def lose_power(self) -> None:
        """Leaves what a loss of power may leave, drawn from the seed. The files must be closed."""
        assert not self.open_files, f"{self.open_files} files are open"
        self._boots += 1
        after = self.root.with_name(f"{self.root.name}-after")
        self.power_lost(self.now, after, self._rng.randrange(1 << 30))
        shutil.rmtree(self.root)
        after.rename(self.root)
        self.begin_anew()

    def begin_anew(self) -> None:
        """What is there now is durable: the notes begin with it."""
        self.operations.clear()
        self._numbers.clear()
        folders = sorted(path for path in self.root.rglob("*") if path.is_dir())
        for folder in folders:
            self.operations.append(Operation("mkdir", self._relative(folder)))
        for path in sorted(path for path in self.root.rglob("*") if path.is_file()):
            self._last_number += 1
            name, number = self._relative(path), self._last_number
            self._numbers[name] = number
            self.operations.append(Operation("create", name, number))
            self.operations.append(Operation("write", name, number, 0, path.read_bytes()))
            self.operations.append(Operation("sync", name, number))
        for folder in [self.root, *folders]:
            self.operations.append(Operation("sync folder", self._relative(folder)))


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
