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
from gimbalmq.store.files import Files, translated


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

    def __len__(self) -> int:
        return len(self._list)

    def __getitem__(self, index: int) -> Segment:
        return self._list[index]

    @property
    def end(self) -> int:
        """First offset behind the last file."""
        return self.first_base + len(self._list) * self.size

    def load(self) -> list[str]:
        """Finds the files; notes for the operator.

        Raises:
            StoreError: sizes differ among the files, or one is missing in between.
        """
        notes: list[str] = []
        with translated(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            found = sorted(p for p in self.folder.iterdir() if p.name.isdigit() and len(p.name) == 20)
            # a file is created and then given its size; a crash in between leaves an empty last one
            while found and found[-1].stat().st_size == 0:
                notes.append(f"removed empty {found[-1].name}")
                self._files.remove(found.pop())
            sizes = {p.stat().st_size for p in found}
        if len(sizes) > 1:
            raise StoreError(f"{self.folder}: files of different sizes {sorted(sizes)}; all must be equal")
        if sizes and self.size not in sizes:
            adopted = sizes.pop()
            notes.append(f"commit-log files have {adopted} bytes, not {self.size}: the folder's size is used")
            self.size = adopted
        self.first_base = int(found[0].name) if found else 0
        for number, path in enumerate(found):
            base = self.first_base + number * self.size
            if int(path.name) != base:
                raise StoreError(f"{self.folder}: {base:020d} is missing before {path.name}")
            self._list.append(Segment(path, base, self.size, -1))
        self.keep_from = self.end  # nothing is written before the store is loaded
        return notes

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
        except OSError:
            self._files.close(fd)
            self._files.remove(path)
            raise
        segment = Segment(path, base, self.size, fd)
        self._list.append(segment)
        self._opened[segment] = None
        self._close_some()
        return segment

    def at(self, offset: int) -> Segment:
        return self._list[(offset - self.first_base) // self.size]

    def descriptor(self, segment: Segment) -> int:
        if segment.fd < 0:
            with translated(segment.path):
                segment.fd = self._files.open(segment.path)
            self._opened[segment] = None
        return segment.fd

    def sync(self, segment: Segment) -> None:
        """Makes what was written to the file durable. Any thread: a file that is not open is closed again here."""
        if segment.fd >= 0:
            self._files.sync(segment.fd)
            return
        fd = self._files.open(segment.path)
        try:
            self._files.sync(fd)
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
                self._release(segment)

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

        Cutting the file and growing it again is the cheap way: the blocks are dropped.
        """
        while self._list and self._list[-1].base > offset:
            self.drop(len(self._list) - 1)
        if self._list and offset < self.end:
            segment = self._list[-1]
            fd = self.descriptor(segment)
            self._files.truncate(fd, offset - segment.base)
            self._files.truncate(fd, self.size)

    def drop(self, index: int) -> None:
        """Deletes the first or the last file."""
        assert index in (0, len(self._list) - 1)
        segment = self._list.pop(index)
        self._release(segment)
        self._files.remove(segment.path)
        if index == 0:
            self.first_base = self._list[0].base if self._list else segment.base + self.size

    def modified_ms(self) -> list[int]:
        """Last modification of each file."""
        return [os.stat(segment.path).st_mtime_ns // 1_000_000 for segment in self._list]

    def close(self) -> None:
        for segment in self._list:
            self._release(segment)
        self._list.clear()

    def _release(self, segment: Segment) -> None:
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
