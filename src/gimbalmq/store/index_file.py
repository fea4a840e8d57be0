"""One file of the key index, in Apache's layout: a header, a table of slots and a list of entries.

A slot holds the number of the newest entry whose hash falls into it, each entry the number of the one before it:
chains, newest first. Putting keys in one by one would cost microseconds each. So a batch is sorted by slot; within a
run of one slot each entry links to its neighbour, the first to what the slot held, and the slot gets the last: a
handful of numpy calls for thousands of keys.

The slots are written through a map, whose blocks are reserved beforehand so that a full disk cannot
turn into a SIGBUS; entries are appended with a plain write.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from gimbalmq.store.files import Files, sync_file, translated

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

HEADER = struct.Struct(">qqqqii")
ENTRY = struct.Struct(">iqii")
SLOT = struct.Struct(">i")
ENTRY_FIELDS = [("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")]

_CHUNK = 1 << 20


class IndexFile:
    """One file; ``count`` is the number the next entry gets (it starts at 1)."""

    def __init__(self, path: Path, slots: int, entries: int, files: Files) -> None:
        self.path = path
        self.slots = slots
        self.entries = entries
        self._files = files
        self._entries_at = HEADER.size + slots * SLOT.size
        self._fd = -1
        self._map: mmap.mmap | None = None
        self.begin_ms = self.end_ms = self.begin_offset = self.end_offset = 0
        self.used_slots = 0
        self.count = 1
        self.is_stale = False
        """Whether slots and header still know of entries that were given up."""

    @staticmethod
    def size(slots: int, entries: int) -> int:
        return HEADER.size + slots * SLOT.size + entries * ENTRY.size

    def create(self) -> None:
        """Makes the file, whole and empty. Any thread, as long as nobody else knows the file."""
        fd = self._files.open(self.path, create=True)
        try:
            self._files.truncate(fd, 0)  # what a crash may have left
            self._files.truncate(fd, self.size(self.slots, self.entries))
            self._files.allocate(fd, 0, self._entries_at)
            # Zeros that are in memory already: the map would fetch each of its pages when it is first touched.
            for position in range(0, self._entries_at, _CHUNK):
                self._files.write_at(fd, bytes(min(_CHUNK, self._entries_at - position)), position)
            self._files.write_at(fd, self._header(), 0)
        except OSError:
            self._files.remove(self.path)
            raise
        finally:
            self._files.close(fd)

    def read_header(self) -> None:
        fd = self._files.open(self.path)
        try:
            raw = self._files.read_at(fd, HEADER.size, 0)
        finally:
            self._files.close(fd)
        fields = HEADER.unpack(raw)
        self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.used_slots, count = fields
        self.count = min(max(count, 1), self.entries)

    def warm(self) -> None:
        """Brings the slots into the system's cache. Any thread."""
        with translated(self.path):
            fd = self._files.open(self.path)
            try:
                for position in range(0, self._entries_at, _CHUNK):
                    self._files.read_at(fd, _CHUNK, position)
            finally:
                self._files.close(fd)

    def _opened(self) -> mmap.mmap:
        """The header and the slots; opens the file for writing if it is not."""
        if self._map is None:
            fd = self._files.open(self.path)
            try:
                self._files.allocate(fd, 0, self._entries_at)  # a file of Java's may be sparse
                self._map = self._files.map(fd, self._entries_at, writable=True)
                self._map.madvise(mmap.MADV_RANDOM)  # keys are all over it: what is beside one is not wanted
            except OSError:
                self._files.close(fd)
                raise
            self._fd = fd
        return self._map

    @property
    def room(self) -> int:
        return self.entries - self.count

    def put(self, hashes: NDArray[np.int32], offsets: NDArray[np.int64], times: NDArray[np.int64]) -> None:
        """Adds keys; there must be room. Entries reach the file before the slots that lead to them."""
        import numpy as np

        slots = self._opened()
        added = len(hashes)
        if self.count == 1:
            self.begin_ms, self.begin_offset = int(times[0]), int(offsets[0])
        numbers = np.arange(self.count, self.count + added, dtype=np.int32)
        slot_of = hashes % np.int32(self.slots)
        order = np.argsort(slot_of, kind="stable")
        sorted_slots = slot_of[order]
        starts = np.empty(added, dtype=bool)
        starts[0] = True
        np.not_equal(sorted_slots[1:], sorted_slots[:-1], out=starts[1:])
        sorted_numbers = numbers[order]
        previous = np.empty(added, dtype=np.int32)
        previous[1:] = sorted_numbers[:-1]
        run_slots = sorted_slots[starts]
        table = np.frombuffer(slots, dtype=">i4", count=self.slots, offset=HEADER.size)
        held = table[run_slots].astype(np.int32)
        held[(held < 0) | (held >= self.count)] = 0  # Java ignores such values, too
        previous[starts] = held
        batch = np.empty(added, dtype=ENTRY_FIELDS)
        batch["hash"] = hashes
        batch["offset"] = offsets
        batch["seconds"] = np.clip((times - self.begin_ms) // 1000, 0, 0x7FFFFFFF)
        batch["previous"][order] = previous
        self._files.write_at(self._fd, batch.tobytes(), self._entries_at + self.count * ENTRY.size)
        ends = np.empty(added, dtype=bool)
        ends[:-1] = starts[1:]
        ends[-1] = True
        table[run_slots] = sorted_numbers[ends]
        self.used_slots += int(np.count_nonzero(held == 0))
        self.count += added
        self.end_ms, self.end_offset = int(times[-1]), int(offsets[-1])
        self._write_header()

    def _header(self) -> bytes:
        return HEADER.pack(
            self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.used_slots, self.count
        )

    def _write_header(self) -> None:
        self._opened()[: HEADER.size] = self._header()

    def keep(self, count: int) -> None:
        """Goes back to the first entries, below number ``count``; ``mend`` is to follow.

        Nothing is written here, so that it can be done on a full disk. Keys are found meanwhile, because who searches
        does not trust slots that lead behind the last entry.
        """
        fd = self._files.open(self.path)
        try:
            raw = self._files.read_at(fd, ENTRY.size, self._entries_at + (count - 1) * ENTRY.size)
        finally:
            self._files.close(fd)
        _, self.end_offset, seconds, _ = ENTRY.unpack(raw)
        self.end_ms = self.begin_ms + seconds * 1000
        self.count = count
        self.is_stale = True

    def first_from(self, log_offset: int) -> int:
        """The number of the first entry that speaks of the log from this offset on; ``count`` if none does."""
        low, high = 1, self.count
        fd = self._files.open(self.path)
        try:
            while low < high:
                middle = (low + high) // 2
                raw = self._files.read_at(fd, ENTRY.size, self._entries_at + middle * ENTRY.size)
                if ENTRY.unpack(raw)[1] >= log_offset:
                    high = middle
                else:
                    low = middle + 1
        finally:
            self._files.close(fd)
        return low

    def mend(self) -> None:
        """Builds the slots anew if they know of entries that were given up; raises OSError."""
        if not self.is_stale:
            return
        import numpy as np

        slots = self._opened()
        raw = self._files.read_at(self._fd, (self.count - 1) * ENTRY.size, self._entries_at + ENTRY.size)
        entries = np.frombuffer(raw, dtype=ENTRY_FIELDS)
        table = np.frombuffer(slots, dtype=">i4", count=self.slots, offset=HEADER.size)
        table[:] = 0
        numbers = np.arange(1, self.count, dtype=np.int32)
        table[entries["hash"] % np.int32(self.slots)] = numbers  # the last wins
        self.used_slots = int(np.count_nonzero(table))
        self._write_header()
        self.is_stale = False

    def sync(self) -> None:
        """Any thread: by name, because the owner may close the file meanwhile.

        Syncing the file covers what was written through the map. ``mmap.flush`` would hold the interpreter's
        lock, and with it every other thread, for as long as the disk takes.
        """
        try:
            fd = self._files.open(self.path)
        except FileNotFoundError:  # expired
            return
        try:
            sync_file(self._files, fd, self.path)
        finally:
            self._files.close(fd)

    def close(self) -> None:
        if self._map is not None:
            try:
                self._map.close()
            except BufferError:
                pass  # the error of a write that failed still holds a view; the map goes with it
            self._files.close(self._fd)
            self._map, self._fd = None, -1

    def remove(self) -> None:
        self.close()
        self._files.remove(self.path)
