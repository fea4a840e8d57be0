"""Looking for a key in the files of the index."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gimbalmq.store.files import Files
from gimbalmq.store.index_file import ENTRY, ENTRY_FIELDS, HEADER, SLOT

_CHAIN_STEPS = 4096
"""So many entries of a chain are followed one by one; a longer chain is looked for in whole blocks."""
_BLOCK_ENTRIES = 65_536
_MOST_ENTRIES = 64_000_000
"""So many entries are looked at for one question: more than three files of Apache's size."""


@dataclass(frozen=True, slots=True)
class SearchedFile:
    """A file as it was when somebody asked: what is below ``count`` never changes."""

    path: Path
    slots: int
    count: int
    begin_ms: int
    grows: bool


class KeySearch:
    """Commit-log offsets of records that may have a key, newest first. Iterate in any one thread.

    It opens the files anew and reads what no longer changes, so it minds neither the thread that fills the index
    nor one that removes old files. A short chain is followed; of a long one (a key that repeats, or others with the
    same hash) nobody knows where it enters the time asked for, so the entries are compared in blocks, which is
    far faster than following it.
    """

    def __init__(
        self, found: list[SearchedFile], key_hash: int, begin_ms: int, end_ms: int, files: Files
    ) -> None:
        self._found = found
        self._hash = key_hash
        self._begin_ms = begin_ms
        self._end_ms = end_ms
        self._files = files
        self._left = _MOST_ENTRIES

    def __iter__(self) -> Iterator[int]:
        for file in self._found:
            if self._left <= 0:
                return
            try:
                fd = self._files.open(file.path)
            except FileNotFoundError:  # expired meanwhile
                continue
            try:
                yield from self._search(fd, file)
            finally:
                self._files.close(fd)

    def _search(self, fd: int, file: SearchedFile) -> Iterator[int]:
        entries_at = HEADER.size + file.slots * SLOT.size
        read_at, begin_ms = self._files.read_at, file.begin_ms
        slot_at = HEADER.size + self._hash % file.slots * SLOT.size
        number = SLOT.unpack(read_at(fd, SLOT.size, slot_at))[0]
        if number >= file.count and file.grows:
            # A newer entry hides where the chain went on when we were asked.
            yield from self._scan(fd, file, entries_at, file.count)
            return
        limit = file.count
        for _ in range(_CHAIN_STEPS):
            if not 0 < number < limit:
                return
            raw = read_at(fd, ENTRY.size, entries_at + number * ENTRY.size)
            found, offset, seconds, previous = ENTRY.unpack(raw)
            time_ms = begin_ms + seconds * 1000
            if time_ms <= self._begin_ms - 1000:
                return
            if found == self._hash and time_ms <= self._end_ms:
                yield offset
            limit, number = number, previous  # links only lead to smaller numbers: no endless chain
        if 0 < number < limit:
            yield from self._scan(fd, file, entries_at, number + 1)

    def _scan(self, fd: int, file: SearchedFile, entries_at: int, end: int) -> Iterator[int]:
        """The same for all entries below number ``end``, block by block."""
        import numpy as np

        earliest = (self._begin_ms - 1000 - file.begin_ms) / 1000  # seconds of an entry are whole ones
        latest = (self._end_ms - file.begin_ms) / 1000
        while end > 1 and self._left > 0:
            start = max(1, end - _BLOCK_ENTRIES)
            raw = self._files.read_at(fd, (end - start) * ENTRY.size, entries_at + start * ENTRY.size)
            block = np.frombuffer(raw, dtype=ENTRY_FIELDS, count=len(raw) // ENTRY.size)
            self._left -= end - start
            hits = block[block["hash"] == self._hash]
            if len(hits):
                seconds = hits["seconds"]
                hits = hits[(seconds > earliest) & (seconds <= latest)]
                yield from hits["offset"][::-1].tolist()
            if not len(block) or block["seconds"].max() <= earliest:
                return
            end = start
