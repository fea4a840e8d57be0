"""Room for the log, reserved before the writes come to it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gimbalmq.store import MessageStore
from gimbalmq.store.log_room import LogRoom
from tests.store.helpers import FailingFiles, bodies, open_store, put

FILE = 1 << 20
AHEAD = 256 << 10
UNUSED = 64 << 10


class ReservingFiles(FailingFiles):
    """Notes what is reserved, as parts of the file; ``number`` is the error it meets."""

    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self.number = number
        self.reserved: list[tuple[int, int]] = []

    def reserve(self, fd: int, start: int, size: int) -> None:
        if self.number:
            raise OSError(self.number, os.strerror(self.number))
        self.reserved.append((start, start + size))


def opened(root: Path, files: FailingFiles, free: int = 0) -> tuple[MessageStore, LogRoom]:
    store = open_store(root, files=files, commitlog_file_bytes=FILE)
    room = LogRoom(store.log, files, ahead=AHEAD, unused=UNUSED, free=free)
    room.begin()
    return store, room


def grow(store: MessageStore, size: int) -> None:
    end = store.log.position + size
    while store.log.position < end:
        put(store, "T", 0, b"x" * 4000)


def test_blocks_are_there_before_the_bytes_and_nothing_else_changes(tmp_path: Path) -> None:
    store, room = opened(tmp_path, FailingFiles())
    grow(store, 2 * UNUSED)
    path = store.log.segments[0].path
    before = path.read_bytes()
    room.reserve()
    if room.wanted:
        pytest.skip("this file system reserves nothing")
    assert path.read_bytes() == before
    blocks = path.stat().st_blocks * 512
    assert blocks >= 2 * AHEAD
    grow(store, AHEAD)
    assert path.stat().st_blocks * 512 == blocks
    assert bodies(store, "T", 0) == [b"x" * 4000] * store.queue("T", 0).max_offset
    store.close()


def test_a_log_that_hardly_grows_takes_no_room(tmp_path: Path) -> None:
    store, room = opened(tmp_path, ReservingFiles())
    assert not room.wanted
    grow(store, UNUSED // 2)
    assert not room.wanted
    grow(store, UNUSED)
    assert room.wanted
    store.close()


def test_room_is_reserved_in_large_pieces_and_within_the_file(tmp_path: Path) -> None:
    files = ReservingFiles()
    store, room = opened(tmp_path, files)
    while len(store.log.segments) < 2:
        grow(store, UNUSED)
        if room.wanted:
            room.reserve()
            assert not room.wanted
    starts, ends = zip(*files.reserved, strict=True)
    assert ends[-2] == FILE  # up to the end of the first file ...
    assert starts[1:-1] == ends[:-2]  # ... without gaps ...
    assert all(end - start >= AHEAD for start, end in files.reserved[:-2])
    base = store.log.segments[1].base
    assert (starts[-1], ends[-1]) == (store.log.position - base, store.log.position - base + 2 * AHEAD)
    store.close()


def test_what_a_cut_gave_back_is_reserved_again(tmp_path: Path) -> None:
    files = ReservingFiles()
    store, room = opened(tmp_path, files)
    grow(store, 2 * UNUSED)
    end = store.log.position
    room.reserve()
    store.log.wipe_behind(end - UNUSED)
    assert room.wanted
    room.reserve()
    assert files.reserved[-1][0] == end - UNUSED
    store.abandon()


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_that_cannot_is_asked_once(tmp_path: Path, number: int) -> None:
    store, room = opened(tmp_path, ReservingFiles(number))
    grow(store, 2 * UNUSED)
    assert room.wanted
    room.reserve()
    assert not room.wanted
    store.close()


def test_a_full_disk_is_asked_again_and_takes_messages_as_long_as_it_can(tmp_path: Path) -> None:
    files = ReservingFiles(errno.ENOSPC)
    store, room = opened(tmp_path, files)
    grow(store, 2 * UNUSED)
    room.reserve()
    assert room.wanted and store.read_only_reason is None
    files.number = 0
    room.reserve()
    assert files.reserved and not room.wanted
    store.close()


def test_a_disk_that_has_little_room_keeps_it(tmp_path: Path) -> None:
    files = ReservingFiles()
    store, room = opened(tmp_path, files, free=1 << 62)
    grow(store, 2 * UNUSED)
    room.reserve()
    assert files.reserved == []
    store.close()
