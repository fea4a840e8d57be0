"""Key index: Apache's hash-table files, filled behind the append in batches.

A file is a header, a table of slots and a list of entries. A slot holds the number of the newest
entry whose hash falls into it, each entry the number of the one before it: chains, newest first.
Putting keys in one by one would cost microseconds each. So a batch is sorted by slot; within a run
of one slot each entry links to its neighbour, the first to what the slot held, and the slot gets the
last: a handful of numpy calls for thousands of keys.

The slots are written through a map, whose blocks are reserved beforehand so that a full disk cannot
turn into a SIGBUS; entries are appended with a plain write.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gimbalmq.model.javahash import hash_and_power_utf8, java_hash
from gimbalmq.store.append import IndexItem
from gimbalmq.store.files import Files, translated

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Batch = tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]

_HEADER = struct.Struct(">qqqqii")
_ENTRY = struct.Struct(">iqii")
_SLOT = struct.Struct(">i")
_ENTRY_FIELDS = [("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")]


class IndexFile:
    """One file; ``count`` is the number the next entry gets (it starts at 1)."""

    def __init__(self, path: Path, slots: int, entries: int, files: Files) -> None:
        self.path = path
        self.slots = slots
        self.entries = entries
        self._files = files
        self._entries_at = _HEADER.size + slots * _SLOT.size
        self._fd = -1
        self._map: mmap.mmap
        self.begin_ms = self.end_ms = self.begin_offset = self.end_offset = 0
        self.used_slots = 0
        self.count = 1

    @staticmethod
    def size(slots: int, entries: int) -> int:
        return _HEADER.size + slots * _SLOT.size + entries * _ENTRY.size

    def create(self) -> None:
        self._fd = self._files.open(self.path, create=True)
        try:
            self._files.truncate(self._fd, self.size(self.slots, self.entries))
            self._reserve()
        except OSError:
            self._files.close(self._fd)
            self._files.remove(self.path)
            raise
        self._write_header()

    def open(self) -> None:
        self._fd = self._files.open(self.path)
        try:
            self._reserve()
        except OSError:
            self._files.close(self._fd)
            raise
        fields = _HEADER.unpack_from(self._map, 0)
        self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.used_slots, count = fields
        self.count = min(max(count, 1), self.entries)

    def _reserve(self) -> None:
        self._files.allocate(self._fd, 0, self._entries_at)  # a file of Java's may be sparse as well
        self._map = self._files.map(self._fd, self._entries_at, writable=True)

    @property
    def room(self) -> int:
        return self.entries - self.count

    def put(self, hashes: NDArray[np.int32], offsets: NDArray[np.int64], times: NDArray[np.int64]) -> None:
        """Adds keys; there must be room. Entries reach the file before the slots that lead to them."""
        import numpy as np

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
        table = np.frombuffer(self._map, dtype=">i4", count=self.slots, offset=_HEADER.size)
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

    def _write_header(self) -> None:
        fields = (self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.used_slots, self.count)
        _HEADER.pack_into(self._map, 0, *fields)

    def walk(self, key_hash: int) -> Iterator[tuple[int, int]]:
        """(commit-log offset, about when in ms) of entries with this hash, newest first."""
        number = _SLOT.unpack_from(self._map, _HEADER.size + key_hash % self.slots * _SLOT.size)[0]
        limit = self.count
        while 0 < number < limit:
            raw = self._files.read_at(self._fd, _ENTRY.size, self._entries_at + number * _ENTRY.size)
            found, offset, seconds, previous = _ENTRY.unpack(raw)
            if found == key_hash:
                yield offset, self.begin_ms + seconds * 1000
            limit, number = number, previous  # links only lead to smaller numbers: no endless chain

    def keep(self, count: int) -> None:
        """Goes back to the first entries, below number ``count``, and builds the slots anew."""
        import numpy as np

        raw = self._files.read_at(self._fd, (count - 1) * _ENTRY.size, self._entries_at + _ENTRY.size)
        entries = np.frombuffer(raw, dtype=_ENTRY_FIELDS)
        table = np.frombuffer(self._map, dtype=">i4", count=self.slots, offset=_HEADER.size)
        table[:] = 0
        table[entries["hash"] % np.int32(self.slots)] = np.arange(1, count, dtype=np.int32)  # the last wins
        self.used_slots = int(np.count_nonzero(table))
        self.count = count
        self.end_offset = int(entries["offset"][-1])
        self.end_ms = self.begin_ms + int(entries["seconds"][-1]) * 1000
        self._write_header()

    def sync(self) -> None:
        self._map.flush()
        self._files.sync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            try:
                self._map.close()
            except BufferError:
                pass  # the error of a write that failed still holds a view; the map goes with it
            self._files.close(self._fd)
            self._fd = -1

    def remove(self) -> None:
        self.close()
        self._files.remove(self.path)


class KeyIndex:
    """All index files of a store, and the records that wait to be indexed."""

    def __init__(
        self, folder: Path, slots: int, entries: int, files: Files, now_ms: Callable[[], int]
    ) -> None:
        self._folder = folder
        self._slots = slots
        self._entries = entries
        self._files = files
        self._now_ms = now_ms
        self.files: list[IndexFile] = []
        self.pending: list[IndexItem] = []
        self._prefixes: dict[str, int] = {}

    def load(self, notes: list[str]) -> None:
        wanted = IndexFile.size(self._slots, self._entries)
        with translated(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(p for p in self._folder.iterdir() if p.name.isdigit()):
                size = path.stat().st_size
                if size == wanted:
                    file = IndexFile(path, self._slots, self._entries, self._files)
                    file.open()
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

    def build(self, limit: int | None = None) -> int:
        """Indexes waiting records, oldest first; how many.

        Raises:
            OSError: what was not indexed still waits.
        """
        if not self.pending:
            return 0
        items = self.pending if limit is None else self.pending[:limit]
        batch = self._keys(items)
        if batch is not None:
            self._put(*batch)
        if len(items) == len(self.pending):
            self.pending = []
        else:
            del self.pending[: len(items)]
        return len(items)

    def _put(self, hashes: NDArray[np.int32], offsets: NDArray[np.int64], times: NDArray[np.int64]) -> None:
        start = 0
        while start < len(hashes):
            if not self.files or self.files[-1].room <= 0:
                self._add_file()
            file = self.files[-1]
            stop = start + file.room
            file.put(hashes[start:stop], offsets[start:stop], times[start:stop])
            start = stop

    def _keys(self, items: list[IndexItem]) -> Batch | None:
        """Hashes of all keys with their records' offsets and times: UNIQ_KEY first, then each of KEYS."""
        indexed = self.end_offset
        if items[0][2] <= indexed:  # indexed before a restart
            items = [item for item in items if item[2] > indexed]
            if not items:
                return None
        topics, datas, places, stored = zip(*items, strict=True)
        keys: list[bytes] = []
        ends: list[int] = []  # how many keys there were after each record
        for data in datas:
            # Of the ways to find two names in a few bytes this one measured fastest, by far. Of a name that is there
            # twice the last counts, as it does for readers.
            data = b"\x02" + data
            _, found, rest = data.rpartition(b"\x02UNIQ_KEY\x01")
            if found and (key := rest.partition(b"\x02")[0]):
                keys.append(key)
            _, found, rest = data.rpartition(b"\x02KEYS\x01")
            if found and (key := rest.partition(b"\x02")[0]):
                if b" " in key:
                    keys += filter(None, key.split(b" "))
                else:
                    keys.append(key)
            ends.append(len(keys))
        if not keys:
            return None
        import numpy as np

        known = self._prefixes
        if len(known) > 100_000:
            known.clear()
        for topic in set(topics):
            if topic not in known:
                known[topic] = java_hash(topic + "#") & 0xFFFFFFFF
        prefixes = np.array([known[topic] for topic in topics], dtype=np.uint32)
        counts = np.array(ends, dtype=np.int32)
        counts[1:] -= counts[:-1].copy()
        hashes, powers = hash_and_power_utf8(keys)
        # hash("topic#key") from the two halves; see hash_and_power
        powers = powers * np.repeat(prefixes, counts)
        powers += hashes.view(np.uint32)
        whole = np.abs(powers.view(np.int32))
        whole[whole < 0] = 0  # abs(-2**31) overflows in Java, too
        offsets = np.repeat(np.array(places, dtype=np.int64), counts)
        times = np.repeat(np.array(stored, dtype=np.int64), counts)
        return whole, offsets, times

    def _add_file(self) -> None:
        now = datetime.fromtimestamp(self._now_ms() / 1000, UTC).astimezone()
        name = int(f"{now:%Y%m%d%H%M%S}{now.microsecond // 1000:03d}")
        if self.files:  # names are the order of the files, also when the clock steps back
            name = max(name, int(self.files[-1].path.name) + 1)
            self.files[-1].sync()
        file = IndexFile(self._folder / f"{name:017d}", self._slots, self._entries, self._files)
        file.create()
        self.files.append(file)

    def find(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Commit-log offsets of records that may have the key, newest first."""
        key_hash = abs(java_hash(f"{topic}#{key}"))
        if key_hash > 0x7FFFFFFF:
            key_hash = 0
        for file in reversed(self.files):
            if file.count > 1 and file.begin_ms <= end_ms and file.end_ms >= begin_ms - 1000:
                for offset, time_ms in file.walk(key_hash):
                    # entries keep whole seconds; the record itself is asked for the exact time
                    if begin_ms - 1000 < time_ms <= end_ms:
                        yield offset

    def drop_expired(self, log_min: int) -> int:
        dropped = 0
        while len(self.files) > 1 and self.files[0].end_offset < log_min:
            self.files.pop(0).remove()
            dropped += 1
        return dropped

    def rewind(self, safe_ms: int, name: int, count: int) -> None:
        """After a crash: keeps what was synced by the last checkpoint.

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

    def forget_behind(self, log_end: int) -> None:
        """Drops files that speak of records the log no longer has."""
        while self.files and (self.files[-1].count == 1 or self.files[-1].end_offset >= log_end):
            self.files.pop().remove()

    def close(self) -> None:
        for file in self.files:
            file.close()
        self.files.clear()
