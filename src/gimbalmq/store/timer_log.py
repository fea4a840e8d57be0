"""The timers in the order they came, in Apache 5.x's files ``timerlog/``: 52 bytes each.

A timer names the commit-log record it stands for and the timer before it in the same slot of the wheel.
The newest ones are in memory until they are saved; a position is the same in memory and on file.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from pathlib import Path
from typing import NamedTuple

from gimbalmq.errors import DiskFullError, ResourceShortageError, StoreError, StoreIOError
from gimbalmq.store.files import Files, translated
from gimbalmq.store.segments import Segment, Segments

log = logging.getLogger(__name__)

FILE_BYTES = 100 << 20
"""Apache's mappedFileSizeTimerLog; a folder's own size wins."""
UNIT_BYTES = 52
PLAIN, ROLL, DELETE = 1, 2, 4
_UNIT = struct.Struct(">iqiqiqiiq")
_BLANK = struct.Struct(">iqi")
_BLANK_MAGIC = -875_286_124
_MAGICS = 15


class Unit(NamedTuple):
    """One timer; ``topic`` is the hash of its message's topic."""

    previous: int
    magic: int
    due_ms: int
    offset: int
    size: int
    topic: int = 0


class TimerLog:
    """One thread appends and reads; ``write`` may run in another."""

    def __init__(self, folder: Path, files: Files) -> None:
        self._files = files
        self.segments = Segments(folder, FILE_BYTES, files)
        self.end = 0
        """Where the next timer goes."""
        self._written = 0
        self._tail = bytearray()
        self._dropped: deque[Segment] = deque()
        self._kept_told = False

    def load(self, position: int) -> bool:
        """Finds the files; False if they do not reach from somewhere to ``position``, where they were saved to.

        Raises:
            StoreError: the disk does not let them be read now, which says nothing about them.
        """
        segments = self.segments
        if segments.folder.exists():
            try:
                segments.load()
            except (DiskFullError, ResourceShortageError, StoreIOError):
                raise
            except StoreError:
                return False
        self.end = self._written = position
        return position == 0 if not len(segments) else segments.first_base <= position <= segments.end

    @property
    def first(self) -> int:
        return self.segments.first_base

    @property
    def waiting(self) -> int:
        """Bytes that wait to be saved."""
        return len(self._tail)

    def append(
        self, previous: int, magic: int, now_ms: int, due_ms: int, offset: int, size: int, topic: int
    ) -> int:
        """Adds a timer; its position."""
        room = self.segments.size - self.end % self.segments.size
        if room < UNIT_BYTES + _BLANK.size:
            self._tail += _BLANK.pack(room, 0, _BLANK_MAGIC).ljust(room, b"\0")[:room]
            self.end += room
        position = self.end
        self._tail += _UNIT.pack(UNIT_BYTES, previous, magic, now_ms, due_ms - now_ms, offset, size, topic, 0)
        self.end += UNIT_BYTES
        return position

    def unit(self, position: int) -> Unit | None:
        """The timer there; None if there is none."""
        if not self.first <= position <= self.end - UNIT_BYTES:
            return None
        if position >= self._written:
            fields = _UNIT.unpack_from(self._tail, position - self._written)
        else:
            if self.segments.size - position % self.segments.size < UNIT_BYTES:
                return None
            fields = _UNIT.unpack(self.segments.read(position, UNIT_BYTES))
        length, previous, magic, then, delay, offset, size, topic, _ = fields
        if length != UNIT_BYTES or magic | _MAGICS != _MAGICS:
            return None
        return Unit(previous, magic, then + delay, offset, size, topic)

    def newest(self) -> Unit | None:
        """The last timer of all."""
        size = self.segments.size
        if self.end and self.end % size == 0:
            return self.unit(self.end - size + (_per_file(size) - 1) * UNIT_BYTES)
        return self.unit(self.end - UNIT_BYTES)

    def after(self, position: int) -> int:
        """The position of the timer that follows: behind this one, or in the next file."""
        position += UNIT_BYTES
        return self.skip_blank(position)

    def skip_blank(self, position: int) -> int:
        room = self.segments.size - position % self.segments.size
        return position + room if room < UNIT_BYTES + _BLANK.size else position

    def extend(self) -> list[tuple[int, Unit]]:
        """Takes in timers that are on file behind the saved end: whoever wrote them ended before noting it."""
        found: list[tuple[int, Unit]] = []
        end = self.end
        limit = self.segments.end if len(self.segments) else 0
        while (position := self.skip_blank(end)) + UNIT_BYTES <= limit:
            self.end = self._written = position + UNIT_BYTES
            unit = self.unit(position)
            if unit is None:
                break
            found.append((position, unit))
            end = self.end
        self.end = self._written = end
        return found

    def drop_before(self, commitlog_offset: int) -> None:
        """Forgets leading files all of whose timers stand for records before that offset; never the last file.

        ``remove_dropped`` removes them.
        """
        segments = self.segments
        while len(segments) > 1:
            last = self.unit(segments.first_base + (_per_file(segments.size) - 1) * UNIT_BYTES)
            if last is None or last.offset >= commitlog_offset:
                return
            self._dropped.append(segments.drop(0))

    def remove_dropped(self) -> None:
        """Removes the files that ``drop_before`` forgot, oldest first, or else there might be a gap; any thread.

        What cannot be removed now is tried again the next time: nobody needs it, and it is found again at the start.
        """
        while self._dropped:
            try:
                self.segments.discard(self._dropped[0])
            except OSError as error:
                if not self._kept_told:
                    log.error("%s cannot be removed: %s; tried again", self._dropped[0].path, error)
                self._kept_told = True
                return
            self._dropped.popleft()
            self._kept_told = False

    # --- saving --------------------------------------------------------------------------------

    def begin_save(self) -> bytes:
        return bytes(self._tail)

    def write(self, data: bytes) -> None:
        """Writes and syncs what ``begin_save`` gave; any thread. Raises OSError."""
        segments = self.segments
        position, at = self._written, 0
        if data and not segments.folder.exists():
            self._files.make_folder(segments.folder)
            self._files.sync_folder(segments.folder.parent)
        while at < len(data):
            made = False
            while position >= segments.end:
                segments.add()
                made = True
            segment = segments.at(position)
            piece = data[at : at + segment.base + segments.size - position]
            fd = segments.descriptor(segment)
            self._files.write_at(fd, piece, position - segment.base)
            self._files.sync(fd)
            if made:
                self._files.sync_folder(segments.folder)
            position += len(piece)
            at += len(piece)

    def end_save(self, size: int) -> None:
        """So many bytes are on file."""
        self._written += size
        del self._tail[:size]

    def wipe(self) -> None:
        """Forgets all of it, the files too."""
        self.segments.close()
        self.segments.first_base = 0
        folder = self.segments.folder
        with translated(folder):
            for path in folder.iterdir() if folder.exists() else ():
                if path.name.isdigit():
                    self._files.remove(path)
        self.end = self._written = 0
        self._tail.clear()

    def close(self) -> None:
        self.segments.close()
        for segment in self._dropped:
            self.segments.release(segment)


def _per_file(size: int) -> int:
    return (size - _BLANK.size) // UNIT_BYTES
