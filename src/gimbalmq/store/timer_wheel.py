"""The wheel of timers, in Apache 5.x's file ``timerwheel``: one slot for each second of fourteen days.

A slot says which second it stands for and where in the timer log the last of its timers lies; each timer
there names the one before it. So a timer costs no memory, and a second costs one slot however many fall
due in it. Changes gather in memory until they are saved: what is in the file only ever points at timers
that are in the timer log durably.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gimbalmq.errors import DiskFullError
from gimbalmq.store.files import Files, translated

SLOTS = 2 * 7 * 86_400
"""Twice Apache's week, so that a slot of last week is not taken for one of the next."""
_SLOT = struct.Struct(">qqqii")
_EMPTY = bytes(_SLOT.size)
WHEEL_BYTES = SLOTS * _SLOT.size
_CHUNK = 1024


class Slot(NamedTuple):
    """The timers of one second."""

    second: int
    first: int
    last: int
    number: int
    magic: int


class TimerWheel:
    """One thread reads and changes it; ``write`` may run in another."""

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self._files = files
        self._fd = -1
        self._changed: dict[int, bytes] = {}
        self._saving: dict[int, bytes] = {}

    def load(self) -> bool:
        """Opens the file if there is one; False if it has a size that no wheel of Apache's or ours has."""
        with translated(self.path):
            if not self.path.exists():
                return True
            if self.path.stat().st_size != WHEEL_BYTES:
                return False
            self._fd = self._files.open(self.path)
        return True

    @property
    def exists(self) -> bool:
        return self._fd >= 0

    @property
    def changes(self) -> int:
        """How many slots wait to be saved."""
        return len(self._changed)

    def at(self, second: int) -> Slot | None:
        """What lies at the second's place: the second itself, one of another round, or nothing."""
        index = second % SLOTS
        raw = self._changed.get(index) or self._saving.get(index)
        if raw is None:
            if self._fd < 0:
                return None
            raw = self._files.read_at(self._fd, _SLOT.size, index * _SLOT.size)
        return _read(raw)

    def put(self, slot: Slot) -> None:
        self._changed[slot.second % SLOTS] = _SLOT.pack(*slot)

    def clear(self, second: int) -> None:
        """Nothing is due in that second any more, nor will be if the clock is set back."""
        self._changed[second % SLOTS] = _EMPTY

    def pending(self, second: int) -> Iterator[Slot]:
        """The slots of this second and later ones; those of earlier seconds are emptied.

        On file, because they may be many; in memory, until they can be saved, if the disk is full.
        """
        for start, data in self._chunks():
            slots = [Slot(*fields) for fields in _SLOT.iter_unpack(data)]
            if any(0 < slot.second < second for slot in slots):
                kept = b"".join(_SLOT.pack(*slot) if slot.second >= second else _EMPTY for slot in slots)
                try:
                    with translated(self.path):
                        self._files.write_at(self._fd, kept, start)
                except DiskFullError:
                    self._changed |= {
                        slot.second % SLOTS: _EMPTY for slot in slots if 0 < slot.second < second
                    }
            yield from (slot for slot in slots if slot.second > 0 and slot.second >= second)

    def _chunks(self) -> Iterator[tuple[int, bytes]]:
        """(position, slots) of the file, without stretches that are all zeros."""
        size = _CHUNK * _SLOT.size
        start = 0
        while self._fd >= 0 and start < WHEEL_BYTES:
            try:
                found = os.lseek(self._fd, start, os.SEEK_DATA)
            except OSError:  # ENXIO: only a hole from here on
                return
            start = max(start, found - found % size)
            data = self._files.read_at(self._fd, min(size, WHEEL_BYTES - start), start)
            if data.strip(b"\0"):
                yield start, data
            start += size

    def empty_until(self, second: int) -> int:
        """How many seconds from this one on surely have nothing; 0 if it must be looked at."""
        if self._fd < 0:
            return 0 if self._changed or self._saving else SLOTS
        index = second % SLOTS
        count = min(_CHUNK, SLOTS - index)
        if not self._changed.keys().isdisjoint(range(index, index + count)):
            return 0
        if not self._saving.keys().isdisjoint(range(index, index + count)):
            return 0
        data = self._files.read_at(self._fd, count * _SLOT.size, index * _SLOT.size)
        return 0 if data.strip(b"\0") else count

    # --- saving --------------------------------------------------------------------------------

    def begin_save(self) -> dict[int, bytes]:
        """What ``write`` is to write; until ``end_save`` it is still read from memory."""
        self._saving, self._changed = self._changed, {}
        return self._saving

    def write(self, slots: dict[int, bytes]) -> None:
        """Writes and syncs; any thread. Raises OSError."""
        if not slots:
            return
        if self._fd < 0:
            fd = self._files.open(self.path, create=True)
            try:
                self._files.truncate(fd, WHEEL_BYTES)
                self._files.sync_folder(self.path.parent)
            except OSError:
                self._files.close(fd)
                raise
            self._fd = fd
        run: list[bytes] = []
        start = 0
        for index in sorted(slots):
            if run and index != start + len(run):
                self._files.write_at(self._fd, b"".join(run), start * _SLOT.size)
                run = []
            if not run:
                start = index
            run.append(slots[index])
        self._files.write_at(self._fd, b"".join(run), start * _SLOT.size)
        self._files.sync(self._fd)

    def end_save(self, done: bool) -> None:
        if not done:
            self._changed = self._saving | self._changed
        self._saving = {}

    def wipe(self) -> None:
        """Forgets all of it, the file too."""
        self.close()
        self._changed.clear()
        with translated(self.path):
            self._files.remove(self.path)

    def close(self) -> None:
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1


def _read(raw: bytes) -> Slot | None:
    slot = Slot(*_SLOT.unpack(raw))
    return slot if slot.second > 0 and slot.last >= 0 else None
