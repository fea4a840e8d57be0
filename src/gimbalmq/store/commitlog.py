"""The commit log: one sequence of records for all topics.

The write position is what makes a record exist. A group is written behind the position and the
position moves only when all of it is on the file; if the write fails, what it left is wiped, so that
no later crash can bring back a record whose sender was told "no".
"""

from __future__ import annotations

import threading
from pathlib import Path

from gimbalmq._steps import Steps
from gimbalmq.errors import OutOfStepError, ResourceShortageError, StoreError, StoreIOError
from gimbalmq.model.record import (
    BLANK_BYTES,
    MAGIC_AT,
    MAGIC_BLANK,
    MAGIC_START,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD,
    START,
    check_record,
)
from gimbalmq.store.files import Files, store_error, sync_names, translated
from gimbalmq.store.segments import Segment, Segments


class CommitLog:
    """Appends, reads and syncs. One thread appends; ``flush`` may run in another."""

    def __init__(self, folder: Path, file_bytes: int, files: Files, files_open: int = 32) -> None:
        self.segments = Segments(folder, file_bytes, files, files_open)
        self.position = 0
        self.flushed = 0
        self._files = files
        self._lock = threading.Lock()  # for moments: the list of files, position and flushed go together
        self._syncing = threading.Lock()  # for as long as a sync takes
        self._synced_names = 0
        self._sync_failure: str | None = None
        self.hint = -1
        """Where a record begins that is not far from the last one; -1 if nobody knows."""
        self._noted = -1

    @property
    def min_offset(self) -> int:
        return self.segments.first_base

    def write(self, chunks: list[tuple[int, list[bytes | memoryview]]]) -> int:
        """Writes (offset, parts) chunks, each within one file; moves and returns the position.

        Raises:
            DiskFullError, ResourceShortageError, StoreIOError: and then nothing of it exists.
        """
        segments = self.segments
        end = self.position
        try:
            for offset, parts in chunks:
                while offset >= segments.end:
                    segments.add()
                segment = segments.at(offset)
                # one join and one call: writev over five parts a record costs more than the copy
                data = parts[0] if len(parts) == 1 else b"".join(parts)
                fd = segment.fd if segment.fd >= 0 else segments.descriptor(segment)
                self._files.write_at(fd, data, offset - segment.base)
                end = offset + len(data)
        except OSError as error:
            self._undo()
            raise store_error(error, f"append at commit-log offset {self.position}") from error
        except MemoryError as error:
            self._undo()
            raise ResourceShortageError(
                f"append at commit-log offset {self.position}: out of memory"
            ) from error
        except BaseException:  # such as a file that could not be opened
            self._undo()
            raise
        self.position = end
        return end

    def _undo(self) -> None:
        try:
            self.wipe_behind(self.position)
        except (OSError, StoreError, MemoryError):
            pass  # recovery checks records anyway; the first error is the one to tell

    def wipe_behind(self, offset: int) -> None:
        """Cuts the log to ``offset``."""
        with self._lock:
            self.segments.wipe_behind(offset)
            self.position = offset
            self._noted = min(self._noted, offset)
            if self.hint >= offset:
                self.hint = -1
            self.flushed = min(self.flushed, offset)
            self.segments.keep_from = self.flushed

    def cut_steps(self, offset: int) -> Steps[None]:
        """Cuts the log to ``offset``, durably, when no other thread syncs it."""
        while not self._syncing.acquire(blocking=False):
            yield
        try:
            with translated(f"cut of the commit log at {offset}"):
                self.wipe_behind(offset)
                if len(self.segments):
                    self.segments.sync(self.segments[-1])
        finally:
            self._syncing.release()

    def begin_at(self, offset: int) -> None:
        """Has an empty log begin at an offset, at which a file would begin."""
        with self._lock:
            self.segments.begin_at(offset)
            self.position = self.flushed = offset

    def file_end(self, offset: int) -> int:
        """Where the file ends in which this offset lies or will lie."""
        base, size = self.segments.first_base, self.segments.size
        return base + ((offset - base) // size + 1) * size

    def bytes_at(self, offset: int, most: int) -> memoryview:
        """What is written from ``offset`` on, at most so much and within one file; nothing at the end.

        Raises:
            OutOfStepError: the log begins behind the offset, or ends before it.
        """
        if not self.min_offset <= offset <= self.position:
            raise OutOfStepError(offset, self.min_offset, self.position, "bytes were asked for")
        size = min(most, self.position - offset, self.file_end(offset) - offset)
        return self.segments.view(offset, size) if size > 0 else memoryview(b"")

    def read(self, offset: int, size: int) -> bytes:
        return self.segments.read(offset, size)

    def record_at(self, offset: int) -> bytes | None:
        """The valid record that starts at ``offset``, else None."""
        if not self.min_offset <= offset <= self.position - BLANK_BYTES:
            return None
        segment = self.segments.at(offset)
        limit = min(segment.base + self.segments.size, self.position)
        size = int.from_bytes(self.segments.read(offset, 4), "big", signed=True)
        if not 0 < size <= limit - offset:
            return None
        data = self.segments.read(offset, size)
        return None if check_record(data, commitlog_offset=offset) else data

    def note_end(self) -> None:
        """To be called now and then, so that ``last_place`` need not go far back."""
        if self.position > self._noted:
            self.hint, self._noted = self._noted, self.position

    def last_place(self) -> int:
        """Where the last record begins; -1 if there is none."""
        end = self.position
        first = self.min_offset
        start = self.hint if first <= self.hint < end else self._file_start(end - 1)
        while start >= first and end > first:
            found = self._walk(start, end)
            if found >= 0:
                self.hint = found
                return found
            start = self._file_start(start - 1)
        return -1

    def _file_start(self, offset: int) -> int:
        return self.file_end(offset) - self.segments.size

    def _walk(self, at: int, end: int) -> int:
        """The last record from ``at`` on; those between are believed what they say of their sizes."""
        segments = self.segments
        found = -1
        while at < end:
            segment = segments.at(at)
            view, base = segments.map(segment), segment.base
            stop = min(base + segments.size, end)
            while at + BLANK_BYTES <= stop:
                size, magic = START.unpack_from(view, at - base)
                if magic == MAGIC_BLANK:
                    break
                if magic not in (MAGIC_V1, MAGIC_V2) or not MIN_RECORD <= size <= stop - at:
                    return self._last_behind(at, end, found)
                found = at
                at += size
            at = base + segments.size
        return found

    def _last_behind(self, at: int, end: int, found: int) -> int:
        """The same if the log is damaged at ``at``: any place behind it may begin the last record."""
        segments = self.segments
        segment = segments.at(at)
        view, base = segments.map(segment), segment.base
        stop = min(base + segments.size, end) - base
        where = view.find(MAGIC_START, at - base + MAGIC_AT, stop)
        while where >= 0:
            place = base + where - MAGIC_AT
            if place > at and self.record_at(place) is not None:
                return max(found, self._walk(place, end))
            where = view.find(MAGIC_START, where + 1, stop)
        behind = self._walk(base + segments.size, end) if base + segments.size < end else -1
        return max(found, behind)

    def flush(self) -> int:
        """Makes what was written so far durable; the offset up to which that holds. Any thread.

        Raises:
            StoreIOError: the kernel may have dropped the data. A later sync would not say so again, so none is
                believed any more until the store is opened anew.
            ResourceShortageError: nothing was synced yet; try again.
        """
        with self._syncing:
            if self._sync_failure is not None:
                raise StoreIOError(self._sync_failure)
            segments = self.segments
            with self._lock:
                target, start = self.position, self.flushed
                unsynced = segments.between(start, target)
                names = segments.names_changed
            # Without the lock: a sync takes as long as the disk pleases, and the thread that appends
            # must not wait for it.
            try:
                with translated(f"sync of the commit log at {start}"):
                    for segment in unsynced:
                        segments.sync(segment)
                    if unsynced and names != self._synced_names:
                        sync_names(self._files, segments.folder)
                        self._synced_names = names
            except StoreIOError as error:
                self._sync_failure = str(error)
                raise
            with self._lock:
                if self.position >= target:  # else it was cut meanwhile, and the next sync looks again
                    self.flushed = segments.keep_from = target
            return self.flushed

    def drop_first(self, count: int) -> list[Segment]:
        """Forgets the oldest files, never one that may be written or synced just now; the caller discards them."""
        segments = self.segments
        dropped: list[Segment] = []
        with self._lock:
            while len(dropped) < count and len(segments) > 1 and segments[1].base <= self.flushed:
                dropped.append(segments.drop(0))
        return dropped

    def close(self) -> None:
        with self._syncing, self._lock:
            self.segments.close()
