"""A disk that remembers what was done to it, and can show what any crash would have left.

``RecordedDisk`` is the store's file layer on real files. It notes every change and every sync. From the notes it
writes the folder as it would lie there if the run had ended before any of them:

* ``killed``: the process ended. The system goes on, so everything done before is there.
* ``power_lost``: the machine ended. Only what was synced is certain: a file's bytes and size by a sync of the file, its
  name by a sync of the folder. Of the rest each change may be there or not, in any combination, and of a write any
  of its sectors.
"""

from __future__ import annotations

import mmap
import os
import random
import shutil
import threading
from pathlib import Path
from typing import NamedTuple

from gimbalmq.store.files import Files

SECTOR_BYTES = 512


class Operation(NamedTuple):
    """One change or sync.

    Attributes:
        kind: create, write, size, rename, unlink, mkdir, rmdir, move (of a folder), sync or sync folder.
        path: relative to the disk's root; of a rename or move the old one.
        file: number of the file concerned, 0 for folders.
        position: of a write where, of a size how long.
        target: of a rename or move the new path.
    """

    kind: str
    path: str
    file: int = 0
    position: int = 0
    data: bytes = b""
    target: str = ""


class RecordedDisk(Files):
    """Real files below ``root``, which must be empty or not there yet. Syncs are noted, not done."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.operations: list[Operation] = []
        self._lock = threading.RLock()
        self._numbers: dict[str, int] = {}
        self._descriptors: dict[int, tuple[int, str]] = {}
        self._maps: list[tuple[int, str, mmap.mmap, bytes]] = []
        self._last_number = 0
        root.mkdir(parents=True, exist_ok=True)

    @property
    def now(self) -> int:
        """How many operations there were so far; a crash at this number has them all."""
        with self._lock:
            self._look_at_maps()
            return len(self.operations)

    # --- what the store calls ------------------------------------------------------------------

    def open(self, path: Path | str, *, create: bool = False) -> int:
        with self._lock:
            new = create and not os.path.exists(path)
            return self._opened(super().open(path, create=create), path, new)

    def create_private(self, path: Path | str) -> int:
        with self._lock:
            return self._opened(super().create_private(path), path, True)

    def _opened(self, fd: int, path: Path | str, new: bool) -> int:
        name = self._relative(path)
        if new:
            self._last_number += 1
            self._numbers[name] = self._last_number
            self._note("create", name, self._last_number)
        self._descriptors[fd] = (self._numbers[name], name)
        return fd

    def close(self, fd: int) -> None:
        with self._lock:
            self._look_at_maps()
            self._descriptors.pop(fd)
            super().close(fd)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        with self._lock:
            written = super().pwrite(fd, data, position)
            number, path = self._descriptors[fd]
            self._note("write", path, number, position, bytes(memoryview(data)[:written]))
            return written

    def truncate(self, fd: int, size: int) -> None:
        with self._lock:
            super().truncate(fd, size)
            number, path = self._descriptors[fd]
            self._note("size", path, number, size)

    def allocate(self, fd: int, start: int, size: int) -> None:
        with self._lock:
            before = os.fstat(fd).st_size
            super().allocate(fd, start, size)
            if start + size > before:
                number, path = self._descriptors[fd]
                self._note("size", path, number, start + size)

    def sync(self, fd: int) -> None:
        with self._lock:
            number, path = self._descriptors[fd]
            self._note("sync", path, number)

    def sync_folder(self, folder: Path | str) -> None:
        with self._lock:
            if not os.path.isdir(folder):
                raise FileNotFoundError(folder)
            self._note("sync folder", self._relative(folder))

    def make_folder(self, folder: Path | str) -> None:
        with self._lock:
            missing = []
            level = Path(folder)
            while not level.exists():
                missing.append(level)
                level = level.parent
            for level in reversed(missing):
                level.mkdir()
                self._note("mkdir", self._relative(level))

    def remove(self, path: Path | str) -> None:
        with self._lock:
            if os.path.lexists(path):
                super().remove(path)
                name = self._relative(path)
                self._note("unlink", name, self._numbers.pop(name))

    def remove_folder(self, folder: Path | str) -> None:
        with self._lock:
            for parent, folders, files in os.walk(folder, topdown=False):
                for name in files:
                    self.remove(f"{parent}/{name}")
                for name in folders:
                    self._remove_empty(f"{parent}/{name}")
            if os.path.isdir(folder):
                self._remove_empty(folder)

    def _remove_empty(self, folder: Path | str) -> None:
        os.rmdir(folder)
        self._note("rmdir", self._relative(folder))

    def replace(self, source: Path | str, target: Path | str) -> None:
        with self._lock:
            super().replace(source, target)
            name, new = self._relative(source), self._relative(target)
            if os.path.isdir(target):
                self._numbers = {_moved(path, name, new): file for path, file in self._numbers.items()}
                self._note("move", name, target=new)
                return
            self._numbers[new] = self._numbers.pop(name)
            self._note("rename", name, self._numbers[new], target=new)

    def map(self, fd: int, size: int, *, writable: bool = False) -> mmap.mmap:
        with self._lock:
            found = super().map(fd, size, writable=writable)
            if writable:
                self._maps.append((*self._descriptors[fd], found, found[:]))
            return found

    # --- notes -----------------------------------------------------------------------------------

    def _relative(self, path: Path | str) -> str:
        return os.path.relpath(path, self.root)

    def _note(
        self, kind: str, path: str, file: int = 0, position: int = 0, data: bytes = b"", target: str = ""
    ) -> None:
        self._look_at_maps()
        self.operations.append(Operation(kind, path, file, position, data, target))

    def _look_at_maps(self) -> None:
        """What was written through a map since it was looked at last, sector by sector."""
        kept = []
        for number, path, found, before in self._maps:
            if found.closed:
                continue
            content = found[:]
            if content != before:
                for start in range(0, len(content), SECTOR_BYTES):
                    piece = content[start : start + SECTOR_BYTES]
                    if piece != before[start : start + SECTOR_BYTES]:
                        self.operations.append(Operation("write", path, number, start, piece))
            kept.append((number, path, found, content))
        self._maps = kept

    # --- crashes ---------------------------------------------------------------------------------

    def killed(self, moment: int, folder: Path) -> None:
        """Writes the root to ``folder`` as a process that ended before operation ``moment`` leaves it."""
        _write_down(self.operations[:moment], folder)

    def power_lost(self, moment: int, folder: Path, seed: int) -> None:
        """Writes the root to ``folder`` as it may be after the power went before operation ``moment``.

        Args:
            seed: of the choices what of the unsynced changes is there: nothing, all, or some at random.
        """
        rng = random.Random(f"{seed} {moment}")
        chance = rng.choice((0.0, 0.2, 0.5, 0.8, 1.0))
        synced_files: set[int] = set()
        synced_folders: set[str] = set()
        there: list[Operation] = []
        for operation in reversed(self.operations[:moment]):
            kind, file, folder_name = operation.kind, operation.file, os.path.dirname(operation.path) or "."
            if kind == "sync":
                synced_files.add(file)
            elif kind == "sync folder":
                synced_folders.add(operation.path)
            elif kind in ("write", "size"):
                if file in synced_files or rng.random() < chance:
                    there.append(operation)
                elif kind == "write" and rng.random() < chance:
                    there += _sectors(operation, rng)
            elif folder_name in synced_folders or rng.random() < chance:
                there.append(operation)
        _write_down(there[::-1], folder)


def _moved(path: str, old: str, new: str) -> str:
    """A path after the folder ``old`` was renamed to ``new``."""
    return new + path[len(old) :] if path == old or path.startswith(f"{old}/") else path


def _sectors(write: Operation, rng: random.Random) -> list[Operation]:
    """Some of the sectors of a write."""
    pieces = []
    start, end = write.position, write.position + len(write.data)
    while start < end:
        stop = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
        if rng.random() < 0.5:
            data = write.data[start - write.position : stop - write.position]
            pieces.append(write._replace(position=start, data=data))
        start = stop
    return pieces


def _write_down(operations: list[Operation], target: Path) -> None:
    """Makes a folder by doing the operations; those whose folder or file is not there do nothing."""
    folders = {"."}
    names: dict[str, int] = {}
    places: dict[int, Path] = {}
    target.mkdir(parents=True)

    for kind, path, file, position, data, new in operations:
        if kind in ("write", "size"):
            fd = os.open(places.setdefault(file, target / f".{file}"), os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                # Files stay sparse: a wheel of timers has 38 MB of which little is written.
                if kind == "write":
                    os.pwrite(fd, data, position)
                else:
                    os.ftruncate(fd, position)
            finally:
                os.close(fd)
        elif kind == "mkdir":
            folders.add(path)
        elif kind == "create":
            names[path] = file
        elif kind == "rename":
            names.pop(path, None)
            names[new] = file
        elif kind == "unlink":
            if names.get(path) == file:
                del names[path]
        elif kind == "rmdir":
            folders.discard(path)
        elif kind == "move":
            names = {_moved(name, path, new): number for name, number in names.items()}
            folders = {_moved(folder, path, new) for folder in folders}
    for folder in sorted(folders):
        if all(str(above) in folders for above in Path(folder).parents):
            (target / folder).mkdir(exist_ok=True)
    for path, file in names.items():
        if (target / path).parent.is_dir():
            if file not in places:
                (target / path).touch()
            elif places[file].name == f".{file}":
                places[file] = places[file].rename(target / path)
            else:
                # One of two renames is lost, so the file has both names.
                shutil.copyfile(places[file], target / path)
    for file, place in places.items():
        if place.name == f".{file}":
            place.unlink()
