"""Trouble that passes: the store says what it is, and is back when it is over."""

from __future__ import annotations

import errno
import mmap
import os
import resource
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from gimbalmq._steps import run_through
from gimbalmq.errors import DiskFullError, ResourceShortageError, StoreError, StoreIOError
from gimbalmq.store import MessageStore
from gimbalmq.store.files import Files, store_error
from tests.store.helpers import NOON, FailingFiles, FakeClock, bodies, config_for, open_store, put

SHORT = [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN]
FULL = [errno.ENOSPC, errno.EDQUOT]
WAYS = ["open", "pwrite", "truncate", "allocate", "map", "remove"]


class TroubledFiles(FailingFiles):
    """Real files; while ``number`` is set, the ways named fail with it."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.ways: set[str] = set()
        self.spared: Path | None = None
        """Files under this folder can be read as ever."""
        self._paths: dict[int, str] = {}

    def _meet(self, way: str) -> None:
        if self.number and way in self.ways:
            raise OSError(self.number, os.strerror(self.number))

    def open(self, path: Path | str, *, create: bool = False) -> int:
        self._meet("open")
        if create:
            self._meet("create")
        fd = super().open(path, create=create)
        self._paths[fd] = str(path)
        return fd

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        self._meet("pwrite")
        return super().pwrite(fd, data, position)

    def truncate(self, fd: int, size: int) -> None:
        self._meet("truncate")
        super().truncate(fd, size)

    def allocate(self, fd: int, start: int, size: int) -> None:
        self._meet("allocate")
        super().allocate(fd, start, size)

    def map(self, fd: int, size: int, *, writable: bool = False) -> mmap.mmap:
        if self.spared is None or not self._paths[fd].startswith(str(self.spared)):
            self._meet("map")
        return super().map(fd, size, writable=writable)

    def sync(self, fd: int) -> None:
        self._meet("sync")
        super().sync(fd)


def kind_of(number: int) -> type[StoreError]:
    return DiskFullError if number in FULL else ResourceShortageError


@pytest.mark.parametrize("number", SHORT + FULL)
def test_an_error_is_what_it_is(number: int) -> None:
    assert type(store_error(OSError(number, "x"), "y")) is kind_of(number)


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.EACCES, errno.EBADF])
def test_a_failing_disk_does_not_pass(number: int) -> None:
    assert type(store_error(OSError(number, "x"), "y")) is StoreIOError


@pytest.mark.parametrize("number", SHORT + FULL)
@pytest.mark.parametrize("way", ["open", "pwrite", "truncate", "allocate", "map"])
def test_the_store_comes_back(tmp_path: Path, number: int, way: str) -> None:
    files = TroubledFiles()
    store = open_store(tmp_path, files=files, queue_file_descriptors=1)
    sent = [b"%d" % n for n in range(5)]
    for body in sent:
        put(store, "t", 0, body, KEYS="k")
    files.number, files.ways = number, {way}
    refused = 0
    for n in range(40):  # over the end of a log file, into new queues
        for step in (
            partial(put, store, "t", n % 4, bytes(300), KEYS="k"),
            store.flush_queues,
            store.build_index,
            store.checkpoint,
        ):
            try:
                step()
            except StoreError as error:
                assert type(error) is kind_of(number), error
                refused += 1
        if store.read_only_reason is not None:
            with pytest.raises(kind_of(number)):
                store.group()
    assert refused
    assert store.read_only_reason is not None
    files.number = 0
    assert store.probe_writable()
    put(store, "t", 1, b"after")
    store.checkpoint()
    assert bodies(store, "t", 0)[:5] == sent
    assert bodies(store, "t", 1)[-1] == b"after"
    kept = {n: bodies(store, "t", n) for n in range(4)}
    store.close()
    assert not (tmp_path / "abort").exists()
    store = open_store(tmp_path)
    assert {n: bodies(store, "t", n) for n in range(4)} == kept
    store.close()


@pytest.fixture
def few_descriptors() -> Iterator[list[int]]:
    """All descriptors but those the test closes are taken; as by clients that only connect."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 64, hard))
    try:
        yield taken
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def take_all(taken: list[int]) -> None:
    while True:
        try:
            taken.append(os.dup(0))
        except OSError:
            return


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_descriptors_eaten_by_clients_are_not_the_end(tmp_path: Path, few_descriptors: list[int]) -> None:
    store = open_store(tmp_path, message_index_enable=False)
    put(store, "orders", 0, b"a")
    store.flush_queues()
    assert bodies(store, "orders", 0) == [b"a"]
    put(store, "orders", 1, b"b")
    take_all(few_descriptors)
    store.flush_queues()  # one that the store has open already does it, too
    assert store.read_only_reason is None
    assert bodies(store, "orders", 0) == [b"a"]
    store._queue_files.close()
    take_all(few_descriptors)
    put(store, "orders", 2, b"c")
    with pytest.raises(ResourceShortageError, match="Too many open files"):
        store.flush_queues()
    with pytest.raises(ResourceShortageError, match="read-only"):
        store.group()
    assert not store.probe_writable()
    while few_descriptors:
        os.close(few_descriptors.pop())
    assert store.probe_writable()
    put(store, "orders", 1, b"d")
    assert bodies(store, "orders", 1) == [b"b", b"d"]
    store.close()


def test_a_sync_that_fails_is_no_trouble_that_passes(tmp_path: Path) -> None:
    files = TroubledFiles()
    store = open_store(tmp_path, files=files)
    put(store, "t", 0, b"x")
    files.number, files.ways = errno.ENOSPC, {"sync"}  # a disk that allocates late
    with pytest.raises(StoreIOError):
        store.flush()
    files.number = 0
    with pytest.raises(StoreIOError):  # a second sync would falsely succeed
        store.flush()
    assert not store.can_sync
    assert not store.probe_writable()
    with pytest.raises(StoreIOError):
        store.close()
    assert (tmp_path / "abort").exists()


def test_no_descriptor_for_a_sync_is_trouble_that_passes(tmp_path: Path) -> None:
    files = TroubledFiles()
    store = open_store(tmp_path, files=files)
    put(store, "t", 0, b"x", KEYS="k")
    files.number, files.ways = errno.EMFILE, {"open"}
    with pytest.raises(ResourceShortageError):
        store.checkpoint()
    assert store.can_sync
    files.number = 0
    assert store.probe_writable()
    syncs = files.synced
    store.checkpoint()
    assert files.synced >= syncs + 3  # what the failed one took, too: queue, index, checkpoint
    store.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("number", FULL)
def test_a_start_on_a_full_disk_reads_and_later_writes(tmp_path: Path, clean: bool, number: int) -> None:
    store = open_store(tmp_path)
    for n in range(30):
        put(store, "t", n % 3, b"%d" % n, KEYS=f"k{n}")
    if clean:
        store.close()
    else:
        store.flush()
        store.abandon()  # no queue file, no index: recovery has everything to write
    files = TroubledFiles()
    files.number, files.ways = number, {"create", "pwrite", "allocate"}
    store = MessageStore(config_for(tmp_path), FakeClock(), files)
    report = store.load()
    assert any("read-only" in note for note in report.notes)
    with pytest.raises(DiskFullError, match="read-only"):
        store.group()
    expected = {q: [b"%d" % n for n in range(q, 30, 3)] for q in range(3)}
    assert {q: bodies(store, "t", q) for q in range(3)} == expected
    assert not store.probe_writable()
    files.number = 0
    assert store.probe_writable()
    assert (tmp_path / "abort").exists()  # or a crash would pass for a clean end
    put(store, "t", 0, b"new")
    store.abandon()
    store = open_store(tmp_path)
    assert bodies(store, "t", 0) == [*expected[0], b"new"]
    assert len(store.query_by_key("t", "k7", 9, 0, NOON).records) == 1
    store.close()


def found(store: MessageStore, key: str) -> int:
    """How many records the index finds; those that wait for it are not asked for."""
    query = run_through(store.query("t", key, 9, 0, NOON))
    while not query.done:
        query.search()
        run_through(query.check())
    return len(query.records)


@pytest.mark.parametrize("number", FULL)
@pytest.mark.parametrize("way", ["allocate", "map"])
@pytest.mark.parametrize("lost", [False, True])
def test_an_index_file_that_a_crash_left_ahead_does_not_stop_a_start_on_a_full_disk(
    tmp_path: Path, number: int, way: str, lost: bool
) -> None:
    store = open_store(tmp_path)
    for n in range(10):
        put(store, "t", 0, b"%d" % n, KEYS=f"k{n}")
    store.checkpoint()
    durable = store.max_commitlog_offset
    for n in range(10, 20):
        put(store, "t", 0, b"%d" % n, KEYS=f"k{n}")
    store.build_index()  # the file has more entries now than the checkpoint speaks of
    store.flush()
    store.abandon()
    if lost:  # the messages never reached the disk, their keys did
        log = tmp_path / "commitlog" / f"{0:020d}"
        data = log.read_bytes()
        log.write_bytes(data[:durable].ljust(len(data), b"\0"))
    left = 10 if lost else 20
    files = TroubledFiles()
    files.number, files.ways = number, {"create", "pwrite", way}
    store = MessageStore(config_for(tmp_path), FakeClock(), files)
    files.spared = tmp_path / "commitlog"
    report = store.load()
    assert any("read-only" in note for note in report.notes)
    assert len(bodies(store, "t", 0)) == left
    assert [found(store, f"k{n}") for n in range(20)] == [1] * 10 + [0] * 10
    with pytest.raises(StoreError):
        store.checkpoint()  # it would say that the file is as it should be
    files.number = 0
    assert store.probe_writable()
    store.build_index()
    put(store, "t", 0, b"new", KEYS="new")
    store.close()
    store = open_store(tmp_path)
    assert [found(store, f"k{n}") for n in range(20)] == [1] * left + [0] * (20 - left)
    assert found(store, "new") == 1
    store.close()


def test_the_probe_of_a_nearly_full_disk_waits_for_the_ratio(tmp_path: Path) -> None:
    files = TroubledFiles()
    usage = [0.99]
    store = open_store(tmp_path, files=files, disk_usage=lambda: usage[0], message_index_enable=False)
    files.number, files.ways = errno.ENOSPC, {"pwrite"}
    with pytest.raises(DiskFullError):
        put(store, "t", 0, b"x")
    files.number = 0
    assert not store.probe_writable()
    usage[0] = 0.5
    assert store.probe_writable()
    store.close()


def test_the_index_is_synced_without_the_interpreters_lock(tmp_path: Path) -> None:
    class Map(mmap.mmap):
        def flush(self, *args: int) -> None:
            raise AssertionError("msync holds the lock for as long as the disk takes")

    class MapFiles(Files):
        def map(self, fd: int, size: int, *, writable: bool = False) -> mmap.mmap:
            protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
            return Map(fd, size, flags=mmap.MAP_SHARED, prot=protection)

    store = open_store(tmp_path, files=MapFiles())
    for n in range(100):
        put(store, "t", 0, b"", KEYS=f"k{n}")
    store.checkpoint()
    store.close()


def test_a_failed_sync_beside_a_probe_is_not_forgotten(tmp_path: Path) -> None:
    class ProbedFiles(TroubledFiles):
        def allocate(self, fd: int, start: int, size: int) -> None:
            self.number, self.ways = errno.EIO, {"sync"}
            with pytest.raises(StoreIOError):  # in another thread
                store.flush()
            super().allocate(fd, start, size)

    files = ProbedFiles()
    store = open_store(tmp_path, files=files, message_index_enable=False)
    put(store, "t", 0, b"x")
    store.trouble.write_failed(DiskFullError("full"))
    assert not store.probe_writable() and not store.trouble_passes
    with pytest.raises(StoreIOError):
        store.group()
    store.abandon()


def test_a_failed_sync_that_is_told_often_takes_no_memory(tmp_path: Path) -> None:
    files = FailingFiles()
    store = open_store(tmp_path, files=files)
    put(store, "t", 0, b"x")
    files.sync_fails = True
    told: list[StoreIOError] = []
    for step in (store.flush, store.flush, store.flush, store.checkpoint, store.checkpoint):
        with pytest.raises(StoreIOError, match="sync of") as failed:
            step()
        told.append(failed.value)
    assert len(set(map(id, told))) == len(told)  # the same one would carry every place that it was raised at
    store.abandon()


def test_a_disk_that_ran_full_and_is_too_full_takes_what_makes_room(tmp_path: Path) -> None:
    files = TroubledFiles()
    usage = [0.99]
    store = open_store(tmp_path, files=files, disk_usage=lambda: usage[0], message_index_enable=False)
    files.number, files.ways = errno.ENOSPC, {"pwrite"}
    with pytest.raises(DiskFullError):
        put(store, "t", 0, b"x")
    assert not store.probe_writable()
    with pytest.raises(DiskFullError):
        store.group(making_room=True)
    files.number, usage[0] = 0, 0.93  # somebody else has removed something
    assert not store.probe_writable()
    store.group(making_room=True).abort()
    with pytest.raises(DiskFullError, match="93% full"):
        store.group()
    usage[0] = 0.5
    assert store.probe_writable()
    put(store, "t", 0, b"x")
    store.close()
