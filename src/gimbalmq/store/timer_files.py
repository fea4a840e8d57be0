"""Timers on disk: wheel, log and the note of how far both were saved (``config/timercheck``).

The three are Apache 5.x's own files, so that either broker goes on where the other stopped. A save writes the
log, then the wheel, then the note, each synced before the next: after a crash the wheel points at nothing that is
not in the log, and timers behind the note are found again, in the log or in the timer topic's queue.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from zlib import crc32

from gimbalmq.store.files import Files, store_error, translated
from gimbalmq.store.timer_log import TimerLog
from gimbalmq.store.timer_wheel import SLOTS, Slot, TimerWheel

log = logging.getLogger(__name__)

_FIELDS = struct.Struct(">7q")
# Ours, behind what Java reads: valid while the fields before it are those it repeats, which no longer holds
# once a Java broker has worked in the folder.
_OURS = struct.Struct(">8s7q")
_OURS_AT = 64
_MAGIC = b"GIMBALMQ"
_CHECK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class TimerCheck:
    """How far timers have come.

    Attributes:
        read_ms: the first second not yet delivered in full.
        log_end: up to here the timer log is saved.
        queue_offset: the first record of the timer topic that is not in the timer log.
        marks_from: deliveries made for seconds from ``read_ms`` on lie in the commit log from here on; -1 if
            nobody knows, because Apache's broker was here.
        moved_below: timers for records before this commit-log offset have been put again further on.
        fill_until: wheel and log were lost; records before this queue offset are being entered again,
        filled_from_ms: but for those due before this moment, which had been delivered.
    """

    read_ms: int = 0
    log_end: int = 0
    queue_offset: int = 0
    marks_from: int = -1
    moved_below: int = 0
    fill_until: int = 0
    filled_from_ms: int = 0

    @classmethod
    def load(cls, path: Path) -> TimerCheck | None:
        with translated(path):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                return None
        if len(data) < _FIELDS.size:
            return None
        read_ms, log_end, queue_offset, _, _, _, _ = _FIELDS.unpack_from(data)
        found = cls(max(0, read_ms), max(0, log_end), max(0, queue_offset))
        if len(data) >= _OURS_AT + _OURS.size + 4:
            magic, *rest = _OURS.unpack_from(data, _OURS_AT)
            end = _OURS_AT + _OURS.size
            whole = data[end : end + 4] == crc32(data[_OURS_AT:end]).to_bytes(4, "big")
            if magic == _MAGIC and whole and rest[:3] == [read_ms, log_end, queue_offset]:
                return cls(*rest)
        return found

    def save(self, path: Path, files: Files) -> None:
        """Writes in place, one sector, as Java does: it keeps the file mapped. Raises OSError."""
        data = bytearray(_CHECK_BYTES)
        _FIELDS.pack_into(
            data, 0, self.read_ms, self.log_end, self.queue_offset, self.queue_offset, 0, self.read_ms, 0
        )
        _OURS.pack_into(data, _OURS_AT, _MAGIC, *astuple(self))
        end = _OURS_AT + _OURS.size
        data[end : end + 4] = crc32(data[_OURS_AT:end]).to_bytes(4, "big")
        new = not path.exists()
        if new and not path.parent.exists():
            files.make_folder(path.parent)
            files.sync_folder(path.parent.parent)
        fd = files.open(path, create=True)
        try:
            files.write_at(fd, data, 0)
            files.sync(fd)
        finally:
            files.close(fd)
        if new:
            files.sync_folder(path.parent)


class TimerFiles:
    """All of them together."""

    def __init__(self, root: Path, files: Files) -> None:
        self._path = root / "config" / "timercheck"
        self._files = files
        self.wheel = TimerWheel(root / "timerwheel", files)
        self.log = TimerLog(root / "timerlog", files)
        self.saved = TimerCheck()
        self._busy = False

    def load(self) -> tuple[TimerCheck | None, int]:
        """Opens what is there.

        Returns:
            The note, or None if there is none, and how many timers wait. If wheel or log do not fit the note,
            both are empty then and ``log_end`` of the note is -1: they must be filled again from the queue.

        Raises:
            StoreError: a file cannot be read.
        """
        check = TimerCheck.load(self._path)
        if check is None:
            self._wipe()
            return None, 0
        self.saved = check
        pending = self._open(check)
        if pending is None:
            log.error(
                "timerwheel and timerlog do not agree with timercheck: filled again from the timer queue"
            )
            self._wipe()
            self.saved = replace(check, log_end=-1)
            return self.saved, 0
        return check, pending

    def _open(self, check: TimerCheck) -> int | None:
        """How many timers wait; None if the files do not fit each other."""
        if not self.log.load(check.log_end) or not self.wheel.load():
            return None
        if not self.wheel.exists and check.log_end > 0:
            return None
        late = self.log.extend()
        pending = 0
        # Apache leaves what was delivered; it must not come again if the clock is set back.
        for slot in self.wheel.pending(check.read_ms // 1000):
            if not self.log.first <= slot.last < self.log.end:
                return None
            pending += slot.number
        for position, unit in late:
            second = unit.due_ms // 1000
            found = self.wheel.at(second)
            if found is None or found.second != second:
                self.wheel.put(Slot(second, position, position, 1, 0))
                pending += 1
            elif found.last < position:
                self.wheel.put(found._replace(last=position, number=found.number + 1))
                pending += 1
        return pending

    def _wipe(self) -> None:
        self.wheel.wipe()
        self.log.wipe()

    @property
    def is_saving(self) -> bool:
        """Whether somebody writes what ``prepare_save`` gave."""
        return self._busy

    def empty(self) -> None:
        """Forgets all timers; not while somebody saves. Raises StoreError.

        After a crash the note does not fit the empty files, and they are filled again from the queue.
        """
        assert not self._busy
        self._wipe()

    def prepare_save(self, check: TimerCheck) -> Callable[[], None] | None:
        """The part of a save for the owner's thread; the function returned runs in any one, then ``ended``.

        None if nothing has changed, or a save is under way.
        """
        check = replace(check, log_end=self.log.end)
        if self._busy or (check == self.saved and not self.wheel.changes):
            return None
        self._busy = True
        data, slots = self.log.begin_save(), self.wheel.begin_save()
        self._ending = (check, len(data))

        def write() -> None:
            try:
                self.log.write(data)
                self.wheel.write(slots)
                check.save(self._path, self._files)
            except OSError as error:
                raise store_error(error, "timers cannot be saved") from error
            self.log.remove_dropped()

        return write

    def ended(self, done: bool) -> None:
        """In the owner's thread: whether what ``prepare_save`` gave has been written."""
        check, size = self._ending
        self._busy = False
        self.wheel.end_save(done)
        if done:
            self.log.end_save(size)
            self.saved = check

    def close(self) -> None:
        self.wheel.close()
        self.log.close()


assert SLOTS * 32 == 38_707_200
