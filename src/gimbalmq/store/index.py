"""Key index: Apache's hash-table files, filled behind the append in batches.

A file is a header, a table of slots and a list of entries. A slot holds the number of the newest
entry whose hash falls into it, each entry the number of the one before it: chains, newest first.
Putting keys in one by one would cost microseconds each. So a batch is sorted by slot; within a run
of one slot each entry links to its neighbour, the first to what the slot held, and the slot gets the
last: a handful of numpy calls for thousands of keys.

The slots are written through a map, whose blocks are reserved beforehand so that a full disk cannot
turn into a SIGBUS; entries are appended with a plain write. Only the newest file is kept open: the others are
read when somebody asks for a key.

A new file is hundreds of megabytes, and reserving its slots may take long, so it can be made ahead, in another
thread and outside the folder, because Java would take it for an index file there; it is moved in when it is needed.
"""

from __future__ import annotations

import mmap
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gimbalmq.model.javahash import java_hash, key_prefix
from gimbalmq.store.append import IndexItem, KeyRun
from gimbalmq.store.files import Files, sync_file, sync_names, translated

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Batch = tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]

_HEADER = struct.Struct(">qqqqii")
_ENTRY = struct.Struct(">iqii")
_SLOT = struct.Struct(">i")
_ENTRY_FIELDS = [("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")]


_CHAIN_STEPS = 4096
"""So many entries of a chain are followed one by one; a longer chain is looked for in whole blocks."""
_BLOCK_ENTRIES = 65_536
_CHUNK = 1 << 20
_MOST_ENTRIES = 64_000_000
"""So many entries are looked at for one question: more than three files of Apache's size."""


class IndexFile:
    """One file; ``count`` is the number the next entry gets (it starts at 1)."""

    def __init__(self, path: Path, slots: int, entries: int, files: Files) -> None:
        self.path = path
        self.slots = slots
        self.entries = entries
        self._files = files
        self._entries_at = _HEADER.size + slots * _SLOT.size
        self._fd = -1
        self._map: mmap.mmap | None = None
        self.begin_ms = self.end_ms = self.begin_offset = self.end_offset = 0
        self.used_slots = 0
        self.count = 1
        self.is_stale = False
        """Whether slots and header still know of entries that were given up."""

    @staticmethod
    def size(slots: int, entries: int) -> int:
        return _HEADER.size + slots * _SLOT.size + entries * _ENTRY.size

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
            raw = self._files.read_at(fd, _HEADER.size, 0)
        finally:
            self._files.close(fd)
        fields = _HEADER.unpack(raw)
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
        table = np.frombuffer(slots, dtype=">i4", count=self.slots, offset=_HEADER.size)
        held = table[run_slots].astype(np.int32)
        held[(held < 0) | (held >= self.count)] = 0  # Java ignores such values, too
        previous[starts] = held
        batch = np.empty(added, dtype=_ENTRY_FIELDS)
        batch["hash"] = hashes
        batch["offset"] = offsets
        batch["seconds"] = np.clip((times - self.begin_ms) // 1000, 0, 0x7FFFFFFF)
        batch["previous"][order] = previous
        self._files.write_at(self._fd, batch.tobytes(), self._entries_at + self.count * _ENTRY.size)
        ends = np.empty(added, dtype=bool)
        ends[:-1] = starts[1:]
        ends[-1] = True
        table[run_slots] = sorted_numbers[ends]
        self.used_slots += int(np.count_nonzero(held == 0))
        self.count += added
        self.end_ms, self.end_offset = int(times[-1]), int(offsets[-1])
        self._write_header()

    def _header(self) -> bytes:
        return _HEADER.pack(
            self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.used_slots, self.count
        )

    def _write_header(self) -> None:
        self._opened()[: _HEADER.size] = self._header()

    def keep(self, count: int) -> None:
        """Goes back to the first entries, below number ``count``; ``mend`` is to follow.

        Nothing is written here, so that it can be done on a full disk. Keys are found meanwhile, because who searches
        does not trust slots that lead behind the last entry.
        """
        fd = self._files.open(self.path)
        try:
            raw = self._files.read_at(fd, _ENTRY.size, self._entries_at + (count - 1) * _ENTRY.size)
        finally:
            self._files.close(fd)
        _, self.end_offset, seconds, _ = _ENTRY.unpack(raw)
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
                raw = self._files.read_at(fd, _ENTRY.size, self._entries_at + middle * _ENTRY.size)
                if _ENTRY.unpack(raw)[1] >= log_offset:
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
        raw = self._files.read_at(self._fd, (self.count - 1) * _ENTRY.size, self._entries_at + _ENTRY.size)
        entries = np.frombuffer(raw, dtype=_ENTRY_FIELDS)
        table = np.frombuffer(slots, dtype=">i4", count=self.slots, offset=_HEADER.size)
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


@dataclass(frozen=True, slots=True)
class _Searched:
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
        self, found: list[_Searched], key_hash: int, begin_ms: int, end_ms: int, files: Files
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

    def _search(self, fd: int, file: _Searched) -> Iterator[int]:
        entries_at = _HEADER.size + file.slots * _SLOT.size
        read_at, begin_ms = self._files.read_at, file.begin_ms
        slot_at = _HEADER.size + self._hash % file.slots * _SLOT.size
        number = _SLOT.unpack(read_at(fd, _SLOT.size, slot_at))[0]
        if (
            number >= file.count and file.grows
        ):  # a newer entry hides where the chain went on when we were asked
            yield from self._scan(fd, file, entries_at, file.count)
            return
        limit = file.count
        for _ in range(_CHAIN_STEPS):
            if not 0 < number < limit:
                return
            raw = read_at(fd, _ENTRY.size, entries_at + number * _ENTRY.size)
            found, offset, seconds, previous = _ENTRY.unpack(raw)
            time_ms = begin_ms + seconds * 1000
            if time_ms <= self._begin_ms - 1000:
                return
            if found == self._hash and time_ms <= self._end_ms:
                yield offset
            limit, number = number, previous  # links only lead to smaller numbers: no endless chain
        if 0 < number < limit:
            yield from self._scan(fd, file, entries_at, number + 1)

    def _scan(self, fd: int, file: _Searched, entries_at: int, end: int) -> Iterator[int]:
        """The same for all entries below number ``end``, block by block."""
        import numpy as np

        earliest = (self._begin_ms - 1000 - file.begin_ms) / 1000  # seconds of an entry are whole ones
        latest = (self._end_ms - file.begin_ms) / 1000
        while end > 1 and self._left > 0:
            start = max(1, end - _BLOCK_ENTRIES)
            raw = self._files.read_at(fd, (end - start) * _ENTRY.size, entries_at + start * _ENTRY.size)
            block = np.frombuffer(raw, dtype=_ENTRY_FIELDS, count=len(raw) // _ENTRY.size)
            self._left -= end - start
            hits = block[block["hash"] == self._hash]
            if len(hits):
                seconds = hits["seconds"]
                hits = hits[(seconds > earliest) & (seconds <= latest)]
                yield from hits["offset"][::-1].tolist()
            if not len(block) or block["seconds"].max() <= earliest:
                return
            end = start


class KeyIndex:
    """All index files of a store, and the records that wait to be indexed.

    Attributes:
        marked: name, count and end of the newest file when all records before ``mark`` were indexed and no other;
            None before that, zeros if there was no file.
        unsynced: files written since they were last taken from here to be synced.
    """

    def __init__(
        self, folder: Path, slots: int, entries: int, files: Files, now_ms: Callable[[], int]
    ) -> None:
        self._folder = folder
        self._slots = slots
        self._entries = entries
        self._files = files
        self._now_ms = now_ms
        self.files: list[IndexFile] = []
        self.pending: list[IndexItem | KeyRun] = []
        self._runs = self._keys_in_runs = 0  # how many runs are in there, and how many keys they have
        self._mark: int | None = None
        self.marked: tuple[int, int, int] | None = None
        self.unsynced: list[IndexFile] = []
        self._ahead = IndexFile(folder.parent / ".next-index", slots, entries, files)
        self._is_ahead = False
        self._is_warm = False

    def load(self, notes: list[str]) -> None:
        wanted = IndexFile.size(self._slots, self._entries)
        with translated(self._folder):
            self._files.make_folder(self._folder)
            self._files.remove(self._ahead.path)
            for path in sorted(p for p in self._folder.iterdir() if p.name.isdigit()):
                size = path.stat().st_size
                if size == wanted:
                    file = IndexFile(path, self._slots, self._entries, self._files)
                    file.read_header()
                    self.files.append(file)
                elif size == 0:
                    self._files.remove(path)
                else:
                    notes.append(
                        f"index file {path.name} has {size} bytes, not {wanted}: left alone, not searched"
                    )

    @property
    def end_offset(self) -> int:
        """Commit-log offset of the last record indexed, -1 if none."""
        return next((f.end_offset for f in reversed(self.files) if f.count > 1), -1)

    @property
    def end_ms(self) -> int:
        return next((f.end_ms for f in reversed(self.files) if f.count > 1), 0)

    def add(self, items: list[IndexItem | KeyRun]) -> None:
        """Has the keys of these records wait for ``build``; they follow those that wait already."""
        self.pending += items
        runs = [len(item) for item in items if type(item) is KeyRun]
        self._runs += len(runs)
        self._keys_in_runs += sum(runs)

    @property
    def waiting(self) -> int:
        """How many records wait; of those in runs, how many keys."""
        return len(self.pending) - self._runs + self._keys_in_runs

    @property
    def first_waiting(self) -> int | None:
        """Commit-log offset of the first record that waits."""
        return _place(self.pending[0]) if self.pending else None

    def mark(self, log_offset: int) -> None:
        """Has ``marked`` say where the index stands when all records before the offset are in it, and no other."""
        self._mark, self.marked = log_offset, None
        self._pass_mark()

    def _pass_mark(self) -> None:
        if self.files and self.files[-1].is_stale:
            return
        first = self.first_waiting
        if self._mark is not None and (first is None or first >= self._mark):
            file = next((f for f in reversed(self.files) if f.count > 1), None)
            self.marked = (int(file.path.name), file.count, file.end_ms) if file is not None else (0, 0, 0)
            self._mark = None

    def build(self, limit: int | None = None) -> int:
        """Indexes waiting records, oldest first; how many, counted as ``waiting`` does.

        Raises:
            OSError: what was not indexed still waits.
        """
        done = 0
        if self.files and self.files[-1].is_stale:
            self.files[-1].mend()
            self.unsynced.append(self.files[-1])
            self._pass_mark()
        while self.pending and (limit is None or done < limit):
            items = self.pending if limit is None else self._first_of(limit - done)
            # A mark is where a group ended, so no run lies on both sides of it.
            if self._mark is not None and _place(items[-1]) >= self._mark:
                items = items[: bisect_left(items, self._mark, key=_place)]
            batch = self._keys(items)
            if batch is not None:
                self._put(*batch)
            runs = [len(item) for item in items if type(item) is KeyRun] if self._runs else []
            done += len(items) - len(runs) + sum(runs)
            self._runs -= len(runs)
            self._keys_in_runs -= sum(runs)
            if len(items) == len(self.pending):
                self.pending = []
            else:
                del self.pending[: len(items)]
            self._pass_mark()
        return done

    def _first_of(self, limit: int) -> list[IndexItem | KeyRun]:
        """The first that wait, so many of them; a run is taken as a whole."""
        if not self._runs:
            return self.pending[:limit]
        taken: list[IndexItem | KeyRun] = []
        for item in self.pending:
            taken.append(item)
            limit -= len(item) if type(item) is KeyRun else 1
            if limit <= 0:
                break
        return taken

    def _put(self, hashes: NDArray[np.int32], offsets: NDArray[np.int64], times: NDArray[np.int64]) -> None:
        start = 0
        while start < len(hashes):
            if not self.files or self.files[-1].room <= 0:
                self._add_file()
            file = self.files[-1]
            stop = start + file.room
            file.put(hashes[start:stop], offsets[start:stop], times[start:stop])
            if file not in self.unsynced:
                self.unsynced.append(file)
            start = stop

    @property
    def waits_for_file(self) -> bool:
        """Whether the next key needs a file that nobody has made yet."""
        return not self._is_ahead and (not self.files or self.files[-1].room <= 0)

    def prepare_file(self) -> Callable[[], None] | None:
        """A function for another thread that makes the next file, if it is time to; call it before asking again.

        The first time, it reads the newest file's slots: the keys to come are all over them.
        """
        if self.files and self.pending and not self._is_warm:
            self._is_warm = True
            return self.files[-1].warm
        soon = not self.files or self.files[-1].room <= self._entries // 16
        if self._is_ahead or not soon or not (self.pending or self.files):
            return None

        def make() -> None:
            with translated("a new index file"):
                self._ahead.create()
            self._is_ahead = True
            self._is_warm = True

        return make

    def _keys(self, items: list[IndexItem | KeyRun]) -> Batch | None:
        """Hashes of all keys with their records' offsets and times: UNIQ_KEY first, then each of KEYS."""
        indexed = self.end_offset
        batches: list[Batch] = []
        singles: list[IndexItem] = []
        for item in items if self._runs else ():
            if type(item) is KeyRun:
                batches += filter(None, (self._single_keys(singles, indexed), _run_keys(item, indexed)))
                singles = []
            else:
                singles.append(item)  # type: ignore[arg-type]
        last = self._single_keys(singles if self._runs else items, indexed)  # type: ignore[arg-type]
        batches += [last] if last is not None else []
        if len(batches) < 2:
            return batches[0] if batches else None
        import numpy as np

        hashes, offsets, times = map(np.concatenate, zip(*batches, strict=True))
        return hashes, offsets, times

    def _single_keys(self, items: list[IndexItem], indexed: int) -> Batch | None:
        if items and items[0][2] <= indexed:  # indexed before a restart
            items = [item for item in items if item[2] > indexed]
        if not items:
            return None
        import numpy as np

        from gimbalmq.store.property_vectors import texts_of

        topics, properties, places, stored = zip(*items, strict=True)
        texts = texts_of(properties)
        keys = texts.keys()
        if not len(keys.records):
            return None
        prefixes = np.fromiter(map(key_prefix, topics), np.int64, len(items))
        hashes = _entry_hashes(texts.hashes(keys, prefixes))
        return hashes, np.array(places, np.int64)[keys.records], np.array(stored, np.int64)[keys.records]

    def _add_file(self) -> None:
        now = datetime.fromtimestamp(self._now_ms() / 1000, UTC).astimezone()
        name = int(f"{now:%Y%m%d%H%M%S}{now.microsecond // 1000:03d}")
        if self.files:  # names are the order of the files, also when the clock steps back
            name = max(name, int(self.files[-1].path.name) + 1)
        file = IndexFile(self._folder / f"{name:017d}", self._slots, self._entries, self._files)
        if self._is_ahead:
            self._files.replace(self._ahead.path, file.path)
            self._is_ahead = False
        else:
            file.create()
        if self.files:
            self.files[-1].close()
        self.files.append(file)

    def search(self, topic: str, key: str, begin_ms: int, end_ms: int) -> KeySearch:
        """Commit-log offsets of records that may have the key, newest first; to be iterated in any thread."""
        key_hash = abs(java_hash(f"{topic}#{key}"))
        if key_hash > 0x7FFFFFFF:
            key_hash = 0
        newest = self.files[-1] if self.files else None
        return KeySearch(
            [
                _Searched(file.path, file.slots, file.count, file.begin_ms, file is newest)
                for file in reversed(self.files)
                # entries keep whole seconds; the record itself is asked for the exact time
                if file.count > 1 and file.begin_ms <= end_ms and file.end_ms >= begin_ms - 1000
            ],
            key_hash,
            begin_ms,
            end_ms,
            self._files,
        )

    def take_unsynced(self) -> list[IndexFile]:
        taken, self.unsynced = self.unsynced, []
        return taken

    def sync(self, taken: list[IndexFile]) -> None:
        """Makes files durable, their names too. Any thread."""
        for file in taken:
            file.sync()
        if taken:
            sync_names(self._files, self._folder)

    def drop_expired(self, log_min: int) -> list[IndexFile]:
        """Forgets files that only speak of records before ``log_min``; the caller removes them, in any thread."""
        dropped: list[IndexFile] = []
        while len(self.files) > 1 and self.files[0].end_offset < log_min:
            dropped.append(self.files.pop(0))
        return dropped

    def rewind(self, safe_ms: int, name: int, count: int) -> None:
        """After a crash: keeps what was synced by the last checkpoint. ``build`` writes what has to be written for it.

        Args:
            safe_ms: files that end later than this cannot be trusted as they are ...
            name, count: ... except that this one may be kept up to this entry (0: none).
        """
        kept: list[IndexFile] = []
        for file in self.files:
            if name and int(file.path.name) == name and 1 < count <= file.count:
                file.keep(count)
                kept.append(file)
            elif file.end_ms <= safe_ms and file.count > 1 and (not name or int(file.path.name) < name):
                kept.append(file)
            else:
                file.remove()
        self.files = kept

    def place_before(self, log_offset: int) -> tuple[int, int, int]:
        """As ``marked``, of the entries that speak of the log before this offset."""
        with translated(self._folder):
            for file in reversed(self.files):
                count = file.first_from(log_offset) if file.count > 1 else 1
                if count > 1:
                    return int(file.path.name), count, file.end_ms
        return 0, 0, 0

    def cut(self, log_offset: int) -> None:
        """Forgets the keys of records from this offset on, those that wait too."""
        kept = [item for item in self.pending if _place(item) < log_offset]
        if kept and type(last := kept[-1]) is KeyRun:
            kept[-1] = last.before(log_offset)
        self.pending, self._runs, self._keys_in_runs = [], 0, 0
        self.add(kept)
        with translated(self._folder):
            while self.files:
                file = self.files[-1]
                count = file.first_from(log_offset)
                if count > 1:
                    if count < file.count:
                        file.keep(count)  # ``build`` mends it
                    break
                file.remove()
                self.files.pop()
        self._pass_mark()

    def forget_behind(self, log_end: int) -> None:
        """Drops files that speak of records the log no longer has."""
        while self.files and (self.files[-1].count == 1 or self.files[-1].end_offset >= log_end):
            self.files.pop().remove()

    def close(self) -> None:
        for file in self.files:
            file.close()
        self.files.clear()
        if self._is_ahead:
            self._files.remove(self._ahead.path)
            self._is_ahead = False


def _place(item: IndexItem | KeyRun) -> int:
    """Where the first of its records lies."""
    return int(item.places[0]) if type(item) is KeyRun else item[2]  # type: ignore[index]


def _run_keys(run: KeyRun, indexed: int) -> Batch | None:
    first = int(run.places.searchsorted(indexed, "right"))  # an attempt that failed may have come so far
    if first == len(run):
        return None
    return _entry_hashes(run.hashes[first:]), run.places[first:], run.times[first:]


def _entry_hashes(hashes: NDArray[np.int32]) -> NDArray[np.int32]:
    """Hashes as entries have them: without a sign."""
    import numpy as np

    whole = np.abs(hashes)
    whole[whole < 0] = 0  # abs(-2**31) overflows in Java, too
    return whole
