"""The commit log's fixed-size files seen as one address space.

File k holds the offsets [base, base + size) and is named by its base. Files are made sparse at full
size, because Java refuses a folder in which any has another size. Each is mapped for reading when
read; writes go through the descriptor. Offset -> file is one division. A log may have thousands of files,
so only those read last stay open.
"""

from __future__ import annotations

import mmap
import os
from collections import OrderedDict
from pathlib import Path

from gimbalmq.errors import StoreError
from gimbalmq.model.record import MAGIC_V1, MAGIC_V2, MIN_RECORD, START
from gimbalmq.store.files import Files, is_number, sync_file, translated


class Segment:
    """One file of the log."""

    __slots__ = ("_map", "base", "fd", "path", "size")

    def __init__(self, path: Path, base: int, size: int, fd: int) -> None:
        self.path = path
        self.base = base
        self.size = size
        self.fd = fd
        self._map: mmap.mmap | None = None


class Segments:
    """All files of one folder, ascending and without gaps.

    Attributes:
        names_changed: grows when a file is made or found; the folder needs a sync when it differs from the last time.
        keep_from: files that reach behind this offset are never closed: they may be written or synced just now.
    """

    def __init__(self, folder: Path, size: int, files: Files, most_open: int = 32) -> None:
        self.folder = folder
        self.size = size
        self._files = files
        self._list: list[Segment] = []
        self._most_open = most_open
        self._opened: OrderedDict[Segment, None] = OrderedDict()  # the one opened last comes last
        self.first_base = 0
        self.keep_from = 0
        self.names_changed = 0

    def __len__(self) -> int:
        return len(self._list)

    def __getitem__(self, index: int) -> Segment:
        return self._list[index]

    @property
    def end(self) -> int:
        """First offset behind the last file."""
        return self.first_base + len(self._list) * self.size

    def load(self, recorded: int = 0, durable: int | None = None) -> list[str]:
        """Finds the files and mends what a crash left half done; notes for the operator.

        A file is made, then given its size; a cut makes it short, then long again; names and sizes that nobody
        synced may be lost. So after a crash a file behind ``durable`` may be short or missing. What lies behind
        a missing one was never acknowledged, because a flush makes all files before its end durable.

        Args:
            recorded: the files' size as the checkpoint noted it; 0 if it did not.
            durable: after a crash: offset below which everything was durable. None: no crash, or nobody knows.

        Raises:
            StoreError: sizes differ among the files, or one is missing in between.
        """
        notes: list[str] = []
        with translated(self.folder):
            self._files.make_folder(self.folder)
            paths = sorted(p for p in self.folder.iterdir() if is_number(p.name) and len(p.name) == 20)
            found = [(path, path.stat().st_size) for path in paths]
            while found and found[-1][1] == 0:
                notes.append(f"removed empty {found[-1][0].name}")
                self._discard(found.pop()[0])
            if not found:
                return notes
            self._choose_size(found, recorded, notes)
            self.first_base = int(found[0][0].name)
            for number, (path, size) in enumerate(found):
                base = self.end
                if int(path.name) != base:
                    if durable is None or base < durable:
                        raise StoreError(
                            f"{self.folder}: {base:020d} is missing before {path.name}; bring it back from a copy, "
                            "or move the files before the gap away to go on without their messages"
                        )
                    notes.append(
                        f"removed {path.name} and later files: {base:020d} before them was never whole"
                    )
                    for late, _ in reversed(found[number:]):
                        self._discard(late)
                    break
                if size != self.size:
                    last = number == len(found) - 1
                    if size > self.size or not (last or (durable is not None and base + self.size > durable)):
                        sizes = sorted({size for _, size in found})
                        raise StoreError(
                            f"{self.folder}: files of different sizes {sizes}; all must be equal: "
                            f"bring {path.name} back from a copy"
                        )
                    notes.append(
                        f"{path.name} has {size} bytes, as a crash may leave it: grown to {self.size}"
                    )
                    self._grow(path)
                self._list.append(Segment(path, base, self.size, -1))
        self.keep_from = self.end  # nothing is written before the store is loaded
        # Whoever made these files may have been killed before their names were synced.
        self.names_changed += 1
        return notes

    def _choose_size(self, found: list[tuple[Path, int]], recorded: int, notes: list[str]) -> None:
        """The size of this folder's files, which counts more than the configured one.

        With several files it is the first one's: only the last may be short. A single file may be the short one:
        then the checkpoint knows; without it a file whose last record ends with the file was cut, because a whole
        file ends with a blank mark or with room for one.
        """
        path, size = found[0]
        if len(found) == 1 and size < self.size:
            if recorded > size:
                size = recorded
            elif not recorded and self._records_end(path, size) == size:
                return
        elif len(found) > 1 and size < int(found[1][0].name) - int(path.name) == recorded:
            size = recorded
        if size != self.size:
            notes.append(f"commit-log files have {size} bytes, not {self.size}: the folder's size is used")
            self.size = size

    def _records_end(self, path: Path, end: int) -> int:
        """Where the records end that follow each other from the file's start; their sizes are believed."""
        fd = self._files.open(path)
        try:
            position = 0
            while position + MIN_RECORD <= end:
                size, magic = START.unpack(self._files.read_at(fd, START.size, position))
                if magic not in (MAGIC_V1, MAGIC_V2) or size < MIN_RECORD:
                    break
                position += size
            return position
        finally:
            self._files.close(fd)

    def _grow(self, path: Path) -> None:
        fd = self._files.open(path)
        try:
            self._files.truncate(fd, self.size)
            self._files.sync(fd)
        finally:
            self._files.close(fd)

    def _discard(self, path: Path) -> None:
        self._files.remove(path)
        self._files.sync_folder(self.folder)

    def begin_at(self, base: int) -> None:
        """Has the first file begin at this offset; only while there is none."""
        assert not self._list
        self.first_base = self.keep_from = base

    def add(self) -> Segment:
        """Creates the next file.

        Raises:
            OSError: and then nothing is left behind.
        """
        base = self.end
        path = self.folder / f"{base:020d}"
        fd = self._files.open(path, create=True)
        try:
            self._files.truncate(fd, self.size)
            if not self._list:
                # If the power took this name and left the next one, the log would seem to begin there.
                self._files.sync_folder(self.folder)
        except OSError:
            self._files.close(fd)
            self._files.remove(path)
            raise
        segment = Segment(path, base, self.size, fd)
        self._list.append(segment)
        self._opened[segment] = None
        self._close_some()
        self.names_changed += 1
        return segment

    def at(self, offset: int) -> Segment:
        return self._list[(offset - self.first_base) // self.size]

    def between(self, start: int, end: int) -> list[Segment]:
        """The files that hold any of these offsets."""
        first = max(0, start - self.first_base) // self.size
        return self._list[first : -(-(end - self.first_base) // self.size)] if end > start else []

    def descriptor(self, segment: Segment) -> int:
        if segment.fd < 0:
            with translated(segment.path):
                segment.fd = self._files.open(segment.path)
            self._opened[segment] = None
        return segment.fd

    def sync(self, segment: Segment) -> None:
        """Makes what was written to the file durable. Any thread: a file that is not open is closed again here."""
        if segment.fd >= 0:
            sync_file(self._files, segment.fd, segment.path)
            return
        fd = self._files.open(segment.path)
        try:
            sync_file(self._files, fd, segment.path)
        finally:
            self._files.close(fd)

    def map(self, segment: Segment) -> mmap.mmap:
        """The whole file for reading; what is written later shows through."""
        found = segment._map
        if found is None:
            with translated(segment.path):
                found = segment._map = self._files.map(self.descriptor(segment), self.size)
            self._opened[segment] = None
            self._opened.move_to_end(segment)
            self._close_some()
        return found

    def _close_some(self) -> None:
        """Closes files that were opened long ago (a map takes a descriptor of its own). Only for the store's thread."""
        for segment in list(self._opened)[: -self._most_open]:
            if segment.base + self.size <= self.keep_from:
                self.release(segment)

    def read(self, offset: int, size: int) -> bytes:
        """Bytes that lie in one file."""
        segment = self._list[(offset - self.first_base) // self.size]
        start = offset - segment.base
        view = segment._map
        if view is None:
            view = self.map(segment)
        return view[start : start + size]

    def view(self, offset: int, size: int) -> memoryview:
        """As ``read``, without a copy; the file stays mapped for as long as somebody keeps it."""
        segment = self._list[(offset - self.first_base) // self.size]
        start = offset - segment.base
        return memoryview(self.map(segment))[start : start + size]

    def wipe_behind(self, offset: int) -> None:
        """Makes everything from ``offset`` on zero, so that no stale record can ever be read again.

        Cutting the file and growing it again is the cheap way: the blocks are dropped. A crash in between leaves
        a short file, which ``load`` mends.
        """
        while self._list and self._list[-1].base > offset:
            self.discard(self.drop(len(self._list) - 1))
        if self._list and offset < self.end:
            segment = self._list[-1]
            fd = self.descriptor(segment)
            self._files.truncate(fd, offset - segment.base)
            self._files.truncate(fd, self.size)

    def drop(self, index: int) -> Segment:
        """Forgets the first or the last file; ``discard`` deletes it."""
        assert index in (0, len(self._list) - 1)
        segment = self._list.pop(index)
        self._opened.pop(segment, None)
        if index == 0:
            self.first_base = self._list[0].base if self._list else segment.base + self.size
        return segment

    def discard(self, segment: Segment) -> None:
        """Deletes a file that was dropped. Any thread: giving a gigabyte back may take the disk long.

        Durably, before another one goes: if of two files only the second were gone after a power loss, the log
        would have a gap; and a file that came back would bring its records with it.
        """
        self.release(segment)
        self._discard(segment.path)

    def modified_ms(self, count: int) -> list[int]:
        """Last modification of the oldest files."""
        return [os.stat(segment.path).st_mtime_ns // 1_000_000 for segment in self._list[:count]]

    def close(self) -> None:
        for segment in self._list:
            self.release(segment)
        self._list.clear()

    def release(self, segment: Segment) -> None:
        """Closes a file; it is opened again when it is needed."""
        self._opened.pop(segment, None)
        if segment._map is not None:
            try:
                segment._map.close()
            except BufferError:
                pass  # an answer on its way holds a view; the map goes when that has left
            segment._map = None
        if segment.fd >= 0:
            self._files.close(segment.fd)
            segment.fd = -1
