"""Key index: Apache's hash-table files, filled behind the append in batches.

Only the newest file is kept open: the others are read when somebody asks for a key.

A new file is hundreds of megabytes, and reserving its slots may take long, so it can be made ahead, in another
thread and outside the folder, because Java would take it for an index file there; it is moved in when it is needed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gimbalmq.store.append import IndexItem, KeyRun
from gimbalmq.store.files import Files, sync_names, translated
from gimbalmq.store.index_file import IndexFile
from gimbalmq.store.index_keys import hashed_keys, key_hash
from gimbalmq.store.key_search import KeySearch, SearchedFile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_BYTES_AT_ONCE = 256 * 1024
"""Of properties: so many are looked at together. Those of usual messages are a tenth of it."""


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

        With a limit it stops early if their properties are large: it is to take a few milliseconds.

        Raises:
            OSError: what was not indexed still waits.
        """
        done = 0
        if self.files and self.files[-1].is_stale:
            self.files[-1].mend()
            self.unsynced.append(self.files[-1])
            self._pass_mark()
        while self.pending:
            items = self._first_of(limit if limit is not None else len(self.pending))
            # A mark is where a group ended, so no run lies on both sides of it.
            if self._mark is not None and _place(items[-1]) >= self._mark:
                items = items[: bisect_left(items, self._mark, key=_place)]
            batch = hashed_keys(items, self.end_offset, has_runs=self._runs > 0)
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
            if limit is not None:
                break
        return done

    def _first_of(self, limit: int) -> list[IndexItem | KeyRun]:
        """The first that wait, so many of them, or fewer if their properties are large; a run is taken as a whole."""
        taken: list[IndexItem | KeyRun] = []
        room = _BYTES_AT_ONCE
        for item in self.pending:
            taken.append(item)
            if isinstance(item, KeyRun):
                limit -= len(item)
            else:
                limit -= 1
                room -= len(item[1])
            if limit <= 0 or room <= 0:
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
        newest = self.files[-1] if self.files else None
        return KeySearch(
            [
                SearchedFile(file.path, file.slots, file.count, file.begin_ms, file is newest)
                for file in reversed(self.files)
                # entries keep whole seconds; the record itself is asked for the exact time
                if file.count > 1 and file.begin_ms <= end_ms and file.end_ms >= begin_ms - 1000
            ],
            key_hash(topic, key),
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
