"""The disk of one simulated broker: it fills up, runs out of descriptors, gets slow, and loses power.

What was written and not synced is remembered as it was before. When the power goes, a part of that comes back,
drawn from a seed: all of it, what was written last, or scattered writes of one file. Names of files go by
the order in which they were made, as in a journal; ``sync_folder`` makes them durable.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gimbalmq.store.files import Files, sparse_data_end


class _Write(NamedTuple):
    position: int
    before: bytes


class _Resize(NamedTuple):
    size: int
    position: int
    before: bytes


class _Name(NamedTuple):
    path: Path
    aside: Path | None
    """Where a removed file still is; None for one that was created."""


class Disk(Files):
    """Files of one broker.

    Args:
        folder: for files that are removed and may come back.
        now_ms: what a file's time of change is set to, which the system would take from the real clock.
        stall: loses time; called while the disk is slow.

    Attributes:
        full, no_descriptors: errors to give, as long as they are set.
        sync_seconds: how long a sync takes.
        open_files: descriptors in use.
    """

    def __init__(
        self, folder: Path, seed: str, now_ms: Callable[[], int], stall: Callable[[float], None]
    ) -> None:
        self.full = False
        self.no_descriptors = False
        self.sync_seconds = 0.0
        self.open_files: set[int] = set()
        self._folder = folder
        self._rng = random.Random(seed)
        self._now_ms = now_ms
        self._stall = stall
        self._undo: dict[int, list[_Write | _Resize]] = {}
        self._paths: dict[int, Path] = {}
        self._names: list[_Name] = []
        self._removed = 0
        folder.mkdir(parents=True, exist_ok=True)

    # -- Files -----------------------------------------------------------------------

    def open(self, path: Path | str, *, create: bool = False) -> int:
        if self.no_descriptors:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        fresh = create and not os.path.exists(path)
        if fresh and self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        fd = super().open(path, create=create)
        self.open_files.add(fd)
        self._paths[os.fstat(fd).st_ino] = Path(path)
        if fresh:
            self._names.append(_Name(Path(path), None))
        return fd

    def close(self, fd: int) -> None:
        super().close(fd)
        self.open_files.discard(fd)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        before = os.pread(fd, len(data), position).ljust(len(data), b"\0")
        self._undo.setdefault(os.fstat(fd).st_ino, []).append(_Write(position, before))
        written = super().pwrite(fd, data, position)
        os.utime(fd, ns=(0, self._now_ms() * 1_000_000))
        return written

    def allocate(self, fd: int, start: int, size: int) -> None:
        if self.full and os.fstat(fd).st_blocks * 512 < start + size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().allocate(fd, start, size)

    def truncate(self, fd: int, size: int) -> None:
        stat = os.fstat(fd)
        end = sparse_data_end(fd, size, stat.st_size) if size < stat.st_size else size
        self._undo.setdefault(stat.st_ino, []).append(
            _Resize(stat.st_size, size, os.pread(fd, end - size, size))
        )
        super().truncate(fd, size)

    def sync(self, fd: int) -> None:
        self._slow()
        self._undo.pop(os.fstat(fd).st_ino, None)

    def sync_folder(self, folder: Path | str) -> None:
        self._slow()
        self._forget_names()

    def replace(self, source: Path | str, target: Path | str) -> None:
        inode = os.stat(source).st_ino
        super().replace(source, target)
        self._paths[inode] = Path(target)

    def remove(self, path: Path | str) -> None:
        path = Path(path)
        if not path.exists():
            return
        self._undo.pop(path.stat().st_ino, None)
        self._removed += 1
        aside = self._folder / f"removed-{self._removed}"
        os.rename(path, aside)
        self._names.append(_Name(path, aside))

    # -- fate ------------------------------------------------------------------------

    def lose_power(self) -> int:
        """Takes back some of what was not synced; how many writes. The files must be closed."""
        assert not self.open_files, f"{len(self.open_files)} files are open"
        lost = 0
        keep = self._rng.randint(0, len(self._names))
        for name in reversed(self._names[keep:]):
            lost += 1
            if name.aside is None:
                name.path.unlink(missing_ok=True)
            elif name.path.parent.exists():
                os.rename(name.aside, name.path)
        del self._names[keep:]
        self._forget_names()
        for inode, changes in sorted(self._undo.items(), key=lambda item: str(self._paths[item[0]])):
            path = self._paths[inode]
            if path.exists() and path.stat().st_ino == inode:
                lost += self._take_back(path, changes)
        self._undo.clear()
        return lost

    def _take_back(self, path: Path, changes: list[_Write | _Resize]) -> int:
        scattered = self._rng.random() < 0.3 and all(isinstance(change, _Write) for change in changes)
        keep = self._rng.choice((0, len(changes), self._rng.randint(0, len(changes))))
        taken = [
            change
            for index, change in enumerate(changes)
            if (self._rng.random() < 0.5 if scattered else index >= keep)
        ]
        fd = os.open(path, os.O_RDWR)
        try:
            for change in reversed(taken):
                if isinstance(change, _Resize):
                    os.ftruncate(fd, change.size)
                    os.pwrite(fd, change.before, change.position)
                else:
                    # The last write that was under way may have got half its way.
                    half = len(change.before) // 2 if change is taken[0] and self._rng.random() < 0.3 else 0
                    os.pwrite(fd, change.before[half:], change.position + half)
        finally:
            os.close(fd)
        return len(taken)

    def _forget_names(self) -> None:
        for name in self._names:
            if name.aside is not None:
                name.aside.unlink(missing_ok=True)
        self._names.clear()

    def _slow(self) -> None:
        if self.sync_seconds:
            self._stall(self.sync_seconds)
