"""Wheel and log of timers on disk: what is over goes, and trouble that passes costs nothing."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gimbalmq.errors import ResourceShortageError
from gimbalmq.store import timer_log
from gimbalmq.store.files import Files
from gimbalmq.store.timer_files import TimerCheck, TimerFiles
from gimbalmq.store.timer_log import PLAIN, UNIT_BYTES
from gimbalmq.store.timer_wheel import Slot


class Troubled(Files):
    """Files of which one operation fails."""

    def __init__(self) -> None:
        self.failing = ""
        self.error = errno.ENOSPC
        self.failed = 0

    def _maybe(self, operation: str) -> None:
        if operation == self.failing:
            self.failed += 1
            raise OSError(self.error, os.strerror(self.error))

    def make_folder(self, folder: Path | str) -> None:
        self._maybe("make_folder")
        super().make_folder(folder)

    def remove(self, path: Path | str) -> None:
        self._maybe("remove")
        super().remove(path)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        self._maybe("write")
        return super().pwrite(fd, data, position)


def _save(timers: TimerFiles, check: TimerCheck) -> None:
    write = timers.prepare_save(check)
    assert write is not None
    write()
    timers.ended(True)


def _enter(timers: TimerFiles, second: int, offset: int) -> None:
    position = timers.log.append(-1, PLAIN, second * 1000 - 1, second * 1000, offset, 100, 0)
    timers.wheel.put(Slot(second, position, position, 1, 0))


def test_files_of_timers_that_are_over_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_log, "FILE_BYTES", 10 * UNIT_BYTES)
    files = Troubled()
    timers = TimerFiles(tmp_path, files)
    timers.load()
    for number in range(100):
        _enter(timers, 1000 + number, number * 100)
    _save(timers, TimerCheck(1000_000, 0, 100, 0))
    names = sorted(os.listdir(tmp_path / "timerlog"))
    assert len(names) > 10
    timers.log.drop_before(5000)
    files.failing = "remove"
    _enter(timers, 1200, 10_000)
    _save(timers, TimerCheck(1000_000, 0, 101, 0))  # what cannot be removed keeps no timer from being saved
    assert files.failed == 1 and sorted(os.listdir(tmp_path / "timerlog")) == names
    files.failing = ""
    _enter(timers, 1201, 10_100)
    _save(timers, TimerCheck(1000_000, 0, 102, 0))
    left = sorted(os.listdir(tmp_path / "timerlog"))
    assert left == names[-len(left) :] and len(left) == len(timers.log.segments) < len(names) - 4
    timers.close()
    opened = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_open(fd)]
    assert not [path for path in opened if str(tmp_path) in path]


def _is_open(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


def test_lack_of_descriptors_at_the_start_costs_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers = TimerFiles(tmp_path, Files())
    timers.load()
    _enter(timers, 1000, 0)
    _save(timers, TimerCheck(999_000, 0, 1, 0))
    timers.close()

    def refuse(path: Path) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", refuse)
        again = TimerFiles(tmp_path, Files())
        with pytest.raises(ResourceShortageError):
            again.load()
        again.close()
    timers = TimerFiles(tmp_path, Files())
    check, pending = timers.load()
    assert check is not None and check.log_end == UNIT_BYTES and pending == 1
    timers.close()


def test_start_on_a_full_disk(tmp_path: Path) -> None:
    timers = TimerFiles(tmp_path, Files())
    timers.load()
    for number in range(10):
        _enter(timers, 1000 + number, number * 100)
    _save(timers, TimerCheck(1005_000, 0, 10, 0))
    timers.close()
    files = Troubled()
    files.failing = "write"
    timers = TimerFiles(tmp_path, files)
    _, pending = timers.load()
    assert files.failed and pending == 5
    assert [timers.wheel.at(1000 + number) is None for number in range(10)] == [True] * 5 + [False] * 5
    files.failing = ""
    _save(timers, TimerCheck(1005_000, 0, 10, 0))
    timers.close()
    timers = TimerFiles(tmp_path, files)
    assert timers.load()[1] == 5 and timers.wheel.at(1000) is None
    timers.close()


@pytest.mark.parametrize("saved", [False, True])
def test_start_on_a_full_disk_without_a_folder(tmp_path: Path, saved: bool) -> None:
    if saved:
        (tmp_path / "config").mkdir()
        TimerCheck(1000, UNIT_BYTES, 1, 0).save(tmp_path / "config" / "timercheck", Files())
    files = Troubled()
    files.failing = "make_folder"
    timers = TimerFiles(tmp_path, files)
    check, pending = timers.load()
    assert pending == 0 and (check is None or check.log_end == -1)
    files.failing = ""
    _enter(timers, 1000, 0)
    _save(timers, TimerCheck(999_000, 0, 1, 0))
    timers.close()
    timers = TimerFiles(tmp_path, files)
    assert timers.load()[1] == 1
    timers.close()
