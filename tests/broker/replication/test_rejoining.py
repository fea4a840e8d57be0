"""Where the records of a file begin, by their sizes alone; and folders of stopped brokers that are looked at or cut."""

from __future__ import annotations

import errno
import os
import shutil
from itertools import islice
from pathlib import Path

import pytest

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq._steps import run_through
from gimbalmq.broker.config import BrokerConfig
from gimbalmq.broker.replication import rejoining
from gimbalmq.cli.rejoin import _opened
from gimbalmq.store import MessageStore, message_store
from gimbalmq.store.dispatcher import LogScanner
from gimbalmq.store.files import Files
from gimbalmq.store.results import RecoveryReport
from gimbalmq.testing import RecordedDisk
from gimbalmq.transport.descriptors import budget
from tests.store.following_helpers import fill_all_kinds
from tests.store.helpers import open_store, put

FILE = 4096


@pytest.mark.parametrize("damage", [None, "size", "magic", "far"])
def test_the_places_are_those_that_a_scanner_finds(tmp_path: Path, damage: str | None) -> None:
    store = open_store(tmp_path / "store", commitlog_file_bytes=FILE)
    fill_all_kinds(store, 12)
    end = store.max_commitlog_offset
    assert end > 3 * FILE
    found = [(one.commitlog_offset, one.size) for one in LogScanner(store.log.segments, 0, end)]
    at = -1
    if damage is not None:
        at = [place for place, _ in found if FILE <= place < 2 * FILE][3]
        store.close()
        path = tmp_path / "store" / "commitlog" / f"{FILE:020d}"
        bytes_ = bytearray(path.read_bytes())
        word = {"size": 0, "magic": 4, "far": 0}[damage]
        bytes_[at - FILE + word : at - FILE + word + 4] = b"\0\0\7\0" if damage == "far" else b"\0\0\0\1"
        path.write_bytes(bytes_)
        store = open_store(tmp_path / "store", commitlog_file_bytes=FILE)
    for base in range(0, end, FILE):
        stop = min(base + FILE, end)
        scanned = [
            (one.commitlog_offset, one.size)
            for one in LogScanner(store.log.segments, base, stop)
            if one.commitlog_offset < stop
        ]
        places, behind = run_through(rejoining._records(store, base))
        if damage == "far":  # by its size it ends among others, and the one behind them is found
            wanted = [place for place, _ in found if base <= place < stop and not at < place < at + 0x700]
        else:
            wanted = [place for place, _ in scanned]
        assert places.tolist() == wanted
        assert behind == sum(scanned[-1])
    store.close()


class FullDisk(RecordedDisk):
    """A disk that, while it is full, has no room for another file; what is there can be written in place."""

    is_full = False

    def open(self, path: Path | str, *, create: bool = False) -> int:
        if self.is_full and create and not Path(path).exists():
            raise OSError(errno.ENOSPC, "no space left")
        return super().open(path, create=create)

    def allocate(self, fd: int, start: int, size: int) -> None:
        if self.is_full and start + size > os.fstat(fd).st_size:
            raise OSError(errno.ENOSPC, "no space left")
        super().allocate(fd, start, size)


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("was_closed", [False, True])
def test_a_folder_that_lost_its_logs_end_says_so_whenever_the_command_ends(
    was_closed: bool, is_cut: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker has to hear of it at its next start, because it may lack what it had confirmed. Here the disk is full,
    and the process is killed or the power cut at any step of the command."""
    disk, store_of = FullDisk(tmp_path / "live"), MessageStore

    def config(root: Path) -> BrokerConfig:
        small = {"mappedFileSizeConsumeQueue": "2000", "maxHashSlotNum": "16", "maxIndexNum": "64"}
        keys = {"storePathRootDir": str(root), "mappedFileSizeCommitLog": str(FILE), **small}
        return BrokerConfig.from_properties(keys)[0]

    def opened(root: Path, files: Files | None = None) -> tuple[MessageStore, RecoveryReport]:
        store = store_of(config(root).store_config(10911, budget()), SYSTEM_CLOCK, files)
        return store, store.load()

    store, _ = opened(disk.root, disk)
    for number in range(12):
        put(store, "T", number % 2, bytes(900), KEYS=f"k{number}")
    store.checkpoint()
    store.close() if was_closed else store.abandon()
    *_, last = sorted((disk.root / "commitlog").iterdir())
    disk.remove(last)
    disk.sync_folder(last.parent)
    begin, disk.is_full = disk.now, True
    with monkeypatch.context() as patch:
        patch.setattr(message_store, "MessageStore", lambda config, clock: store_of(config, clock, disk))
        with _opened(config(disk.root), SYSTEM_CLOCK) as store:
            if is_cut:
                store.follow()
                fourth, *_ = islice(LogScanner(store.log.segments, 0, FILE), 3, None)
                store.cut(fourth.commitlog_offset)
    for moment in range(begin, disk.now + 1):
        for kind in ("killed", "power"):
            folder = tmp_path / f"{kind}-{moment}"
            disk.killed(moment, folder) if kind == "killed" else disk.power_lost(moment, folder, 1)
            store, report = opened(folder)
            assert report.is_shorter, (kind, moment - begin)
            assert was_closed or not report.clean, (kind, moment - begin)
            store.abandon()
            shutil.rmtree(folder)
