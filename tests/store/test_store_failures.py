from __future__ import annotations

import errno
from pathlib import Path

import pytest

from gimbalmq.errors import DiskFullError, ResourceShortageError, StoreIOError
from gimbalmq.store.index_file import IndexFile
from tests.store.helpers import NOON, FailingFiles, FakeClock, add, bodies, open_store, put, snapshot


@pytest.mark.parametrize("room", [0, 1, 50, 150, 400, 2000, 4500, 9000])
def test_a_full_disk_takes_a_group_wholly_or_not_at_all(tmp_path: Path, room: int) -> None:
    files = FailingFiles()
    store = open_store(tmp_path / "live", files=files)
    put(store, "t", 0, b"before")
    end = store.max_commitlog_offset
    files.room = room
    group = store.group()
    for n in range(14):
        add(group, store, "t", n % 2, bytes(700))
    with pytest.raises(DiskFullError):
        group.commit()
    assert store.max_commitlog_offset == end
    assert (store.queue("t", 0).max_offset, store.queue("t", 1).max_offset) == (1, 0)
    assert bodies(store, "t", 0) == [b"before"]
    assert store.read_only_reason is not None and "injected" in store.read_only_reason
    with pytest.raises(DiskFullError, match="read-only"):
        store.group()
    assert not store.probe_writable()
    files.room = None
    assert store.probe_writable() and store.read_only_reason is None
    # a record in place of the first one that failed: none of the others may come to life behind it
    assert put(store, "t", 0, bytes(700)) == (end, 1)
    dead = snapshot(tmp_path / "live", tmp_path / "dead")
    store.close()
    for root in (dead, tmp_path / "live"):
        store = open_store(root)
        assert bodies(store, "t", 0) == [b"before", bytes(700)]
        assert bodies(store, "t", 1) == []
        store.close()


def test_short_writes_are_continued(tmp_path: Path) -> None:
    files = FailingFiles()
    files.bite = 7
    store = open_store(tmp_path, files=files)
    for n in range(30):
        put(store, "t", 0, b"%d" % n, KEYS=f"k{n}")
    store.close()
    store = open_store(tmp_path)
    assert bodies(store, "t", 0) == [b"%d" % n for n in range(30)]
    assert len(store.query_by_key("t", "k5", 9, 0, NOON).records) == 1
    store.close()


def test_other_errors_of_the_disk_are_final(tmp_path: Path) -> None:
    files = FailingFiles()
    store = open_store(tmp_path, files=files)
    put(store, "t", 0, b"before")
    files.room, files.error = 0, errno.EIO
    with pytest.raises(StoreIOError):
        put(store, "t", 0, b"lost")
    files.room = None
    assert not store.probe_writable()
    with pytest.raises(StoreIOError):
        store.group()
    assert bodies(store, "t", 0) == [b"before"]
    store.close()
    assert (tmp_path / "abort").exists()  # not closed properly: the next start looks closely
    store = open_store(tmp_path)
    assert bodies(store, "t", 0) == [b"before"]
    store.close()


def test_entries_that_cannot_be_written_wait_in_memory(tmp_path: Path) -> None:
    files = FailingFiles()
    store = open_store(tmp_path, files=files)
    for n in range(15):
        put(store, "t", 0, b"%d" % n, KEYS=f"k{n}")
    files.room = 250
    with pytest.raises(DiskFullError):
        store.flush_queues()
    assert store.read_only_reason is not None
    assert bodies(store, "t", 0) == [b"%d" % n for n in range(15)]
    files.room = 0
    with pytest.raises(DiskFullError):
        store.build_index()
    files.room = None
    assert store.probe_writable()
    assert store.queue("t", 0).written == 15
    assert len(store.query_by_key("t", "k14", 9, 0, NOON).records) == 1
    store.close()


def test_a_commit_succeeds_although_its_entries_cannot_be_written_yet(tmp_path: Path) -> None:
    files = FailingFiles()
    store = open_store(tmp_path / "live", files=files, queue_tail_bytes=20, message_index_enable=False)
    put(store, "t", 0, b"zero")
    size = store.max_commitlog_offset
    files.room = size + 5
    put(store, "t", 0, b"once")  # the record fits, its queue entries do not
    assert bodies(store, "t", 0) == [b"zero", b"once"]
    assert store.read_only_reason is not None
    dead = snapshot(tmp_path / "live", tmp_path / "dead")
    files.room = None
    store.close()
    for root in (dead, tmp_path / "live"):
        store = open_store(root)
        assert bodies(store, "t", 0) == [b"zero", b"once"]
        store.close()


def test_a_failed_sync_ends_writing(tmp_path: Path) -> None:
    files = FailingFiles()
    store = open_store(tmp_path, files=files)
    put(store, "t", 0, b"x")
    assert store.flushed_offset == 0
    assert store.flush() == store.flushed_offset == store.max_commitlog_offset
    syncs = files.synced
    store.flush()
    assert files.synced == syncs  # nothing new, nothing to do
    put(store, "t", 0, b"y")
    files.sync_fails = True
    with pytest.raises(StoreIOError):
        store.flush()
    assert store.flushed_offset < store.max_commitlog_offset
    with pytest.raises(StoreIOError):
        store.group()
    with pytest.raises(StoreIOError):
        store.close()
    store = open_store(tmp_path, FakeClock())  # and the folder is free again
    assert bodies(store, "t", 0) == [b"x", b"y"]
    store.close()


def test_a_sync_over_several_files(tmp_path: Path) -> None:
    files = FailingFiles()
    store = open_store(tmp_path, files=files)
    with store.group() as group:
        for _ in range(12):
            add(group, store, "t", 0, bytes(900))
    count = len(list((tmp_path / "commitlog").iterdir()))
    before = files.synced
    assert store.flush() == store.max_commitlog_offset
    assert files.synced - before == count == 3
    store.close()


def test_a_store_whose_index_could_not_be_written_closes(tmp_path: Path) -> None:
    """The error kept a view of the index file's map, which could not be closed then: the folder stayed locked."""
    files = FailingFiles()
    store = open_store(tmp_path, files=files)
    put(store, "t", 0, b"first", KEYS="k1")
    store.build_index()
    put(store, "t", 0, b"second", KEYS="k2")
    files.room = 0
    with pytest.raises(DiskFullError):
        store.build_index()
    with pytest.raises(DiskFullError):
        store.close()
    store = open_store(tmp_path)
    assert len(store.query_by_key("t", "k2", 9, 0, NOON).records) == 1
    store.close()


def test_a_start_that_fails_leaves_no_file_open(tmp_path: Path) -> None:
    class Counting(FailingFiles):
        def __init__(self) -> None:
            super().__init__()
            self.fds: set[int] = set()

        def open(self, path: Path | str, *, create: bool = False) -> int:
            fd = super().open(path, create=create)
            self.fds.add(fd)
            return fd

        def close(self, fd: int) -> None:
            super().close(fd)
            self.fds.discard(fd)

    store = open_store(tmp_path)
    put(store, "t", 0, b"first", KEYS="k1")
    store.close()
    files = Counting()
    files.room, files.error = 0, errno.EIO
    with pytest.raises(StoreIOError):
        open_store(tmp_path, files=files)
    assert not files.fds
    files.room = None
    open_store(tmp_path, files=files).close()
    assert not files.fds


class WorseFiles(FailingFiles):
    """Real files; the next write raises ``worse``, once."""

    worse: BaseException | None = None

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        if self.worse is not None:
            error, self.worse = self.worse, None
            raise error
        return super().pwrite(fd, data, position)


@pytest.mark.parametrize("worse", [MemoryError(), RuntimeError(), KeyboardInterrupt()])
def test_a_commit_that_fails_for_whatever_reason_ends_its_group(tmp_path: Path, worse: BaseException) -> None:
    files = WorseFiles()
    store = open_store(tmp_path, files=files)
    put(store, "t", 0, b"before")
    files.worse = worse
    with pytest.raises(ResourceShortageError if isinstance(worse, MemoryError) else type(worse)):
        put(store, "t", 0, b"lost")
    assert store.probe_writable()
    put(store, "t", 0, b"after")
    assert bodies(store, "t", 0) == [b"before", b"after"]
    store.close()


def test_a_lack_of_memory_behind_a_commit_does_not_deny_its_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = FailingFiles()
    store = open_store(tmp_path, files=files, index_pending_limit=1)
    put(store, "t", 0, b"first", KEYS="k")
    store.build_index()

    def no_memory(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(IndexFile, "put", no_memory)
        for n in range(2):
            put(store, "t", 0, b"%d" % n, KEYS="k")
        with pytest.raises(ResourceShortageError, match="memory"):
            store.group()
    assert store.probe_writable()
    assert bodies(store, "t", 0) == [b"first", b"0", b"1"]
    assert len(store.query_by_key("t", "k", 9, 0, NOON).records) == 3
    store.close()
