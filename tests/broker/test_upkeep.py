"""The store's housekeeping beside the loop: nobody waits for the disk who need not."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.broker.config import BrokerConfig, LiveConfig
from gimbalmq.broker.flush import GroupCommit
from gimbalmq.broker.upkeep import Upkeep
from gimbalmq.errors import DiskFullError, SystemBusyError
from gimbalmq.store import MessageStore
from gimbalmq.store.files import Files
from gimbalmq.store.log_room import LogRoom
from gimbalmq.transport.turns import Turns
from tests.store.helpers import FailingFiles, FakeClock, bodies, config_for, put
from tests.support import run, until


class SlowFiles(Files):
    """Real files; what is slow waits for ``go``."""

    def __init__(self, slow: Callable[[str], bool], way: str) -> None:
        self.go = threading.Event()
        self.reached = threading.Event()
        self._slow = slow
        self._way = way

    def _wait(self, way: str, path: str) -> None:
        if way == self._way and self._slow(path):
            self.reached.set()
            assert self.go.wait(30)

    def sync(self, fd: int) -> None:
        self._wait("sync", os.readlink(f"/proc/self/fd/{fd}"))

    def remove(self, path: Path | str) -> None:
        self._wait("remove", str(path))
        super().remove(path)

    def allocate(self, fd: int, start: int, size: int) -> None:
        self._wait("allocate", os.readlink(f"/proc/self/fd/{fd}"))
        super().allocate(fd, start, size)

    def reserve(self, fd: int, start: int, size: int) -> None:
        self._wait("reserve", os.readlink(f"/proc/self/fd/{fd}"))
        super().reserve(fd, start, size)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        self._wait("write", os.readlink(f"/proc/self/fd/{fd}"))
        return super().pwrite(fd, data, position)

    def read_at(self, fd: int, size: int, position: int) -> bytes:
        self._wait("read", os.readlink(f"/proc/self/fd/{fd}"))
        return super().read_at(fd, size, position)

    def make_folder(self, folder: Path | str) -> None:
        self._wait("folder", str(folder))
        super().make_folder(folder)


pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")


@asynccontextmanager
async def kept(
    root: Path, files: Files, clock: FakeClock | None = None, **options: object
) -> AsyncIterator[tuple[MessageStore, Upkeep, GroupCommit]]:
    store = MessageStore(config_for(root, **options), clock or FakeClock(), files)
    store.load()
    live = LiveConfig(BrokerConfig(store_path_root_dir=str(root)))
    commit = GroupCommit(store)
    upkeep = Upkeep(store, commit, Turns(clock or SYSTEM_CLOCK), live, clock or SYSTEM_CLOCK)
    try:
        yield store, upkeep, commit
    finally:
        if isinstance(files, SlowFiles):
            files.go.set()
        await upkeep.close()
        await commit.close()
        store.close()


def test_a_send_that_waits_for_the_disk_does_not_wait_for_a_checkpoint(tmp_path: Path) -> None:
    async def work() -> None:
        files = SlowFiles(lambda path: "/consumequeue/" in path, "sync")
        async with kept(tmp_path, files) as (store, upkeep, commit):
            put(store, "t", 0, b"first")
            point = asyncio.ensure_future(upkeep.checkpoint())
            await until(files.reached.is_set)
            put(store, "t", 0, b"second")
            assert await asyncio.wait_for(commit.wait(store.max_commitlog_offset), 10)
            assert not point.done()
            files.go.set()
            await point

    run(work())


@pytest.mark.parametrize(
    ("way", "where"),
    [
        ("sync", "/commitlog/"),
        ("sync", "/index"),
        ("sync", "/consumequeue/"),
        ("folder", "/consumequeue/"),
        ("write", "/consumequeue/"),
        ("allocate", "index"),
        ("reserve", "/commitlog/"),
    ],
)
def test_the_loop_goes_on_while_the_disk_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, where: str
) -> None:
    monkeypatch.setattr("gimbalmq.store.message_store.LogRoom", partial(LogRoom, unused=1, free=0))

    async def work() -> None:
        files = SlowFiles(lambda path: where in path, way)
        async with kept(tmp_path, files) as (store, upkeep, _):
            put(store, "t", 0, b"first", KEYS="k")

            async def keep() -> None:
                await upkeep.sync_log()
                await upkeep.write_behind()
                await upkeep.checkpoint()

            keeping = asyncio.ensure_future(keep())
            await until(files.reached.is_set)
            put(store, "t", 0, b"second", KEYS="k")  # the loop is not held: this is it, working
            assert bodies(store, "t", 0) == [b"first", b"second"]
            assert not keeping.done()
            files.go.set()
            await keeping

    run(work())


def test_of_many_queues_those_with_few_new_entries_wait_for_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gimbalmq.broker.upkeep._MANY_QUEUES", 3)
    monkeypatch.setattr("gimbalmq.broker.upkeep._LARGE_TAIL", 4)

    async def work() -> None:
        async with kept(tmp_path, FailingFiles()) as (store, upkeep, _):

            def written() -> list[int]:
                return [store.queue("t", queue_id).written for queue_id in range(5)]

            for queue_id in range(3):
                put(store, "t", queue_id, b"x")
            await upkeep.write_behind()
            assert written() == [1, 1, 1, 0, 0]  # three are not many
            for queue_id in (0, 1, 2, 3, 4, 4, 4, 4):
                put(store, "t", queue_id, b"y")
            await upkeep.write_behind()
            assert written() == [1, 1, 1, 0, 4]
            assert bodies(store, "t", 3) == [b"y"]  # read from memory
            await upkeep.checkpoint()
            assert written() == [2, 2, 2, 1, 4]

    run(work())


def test_expired_files_are_deleted_off_the_loop(tmp_path: Path) -> None:
    async def work() -> None:
        files = SlowFiles(lambda path: "/commitlog/" in path, "remove")
        clock = FakeClock()
        async with kept(tmp_path, files, clock) as (store, upkeep, _):
            for _ in range(30):
                put(store, "t", 0, bytes(1000), KEYS="k")
            await upkeep.write_behind()
            store.flush()
            for path in (tmp_path / "commitlog").iterdir():
                os.utime(path, (1, 1))
            cleaning = asyncio.ensure_future(upkeep.clean(manual=True))
            await until(files.reached.is_set)
            queue = store.queue("t", 0)
            assert queue.min_offset > 0  # forgotten already
            put(store, "t", 0, b"meanwhile")
            assert bodies(store, "t", 0)[-1] == b"meanwhile"
            files.go.set()
            await cleaning
            left = sorted(path.name for path in (tmp_path / "commitlog").iterdir())
            assert int(left[0]) == store.min_commitlog_offset > 0

    run(work())


def test_a_query_reads_the_index_off_the_loop_and_their_number_is_bounded(tmp_path: Path) -> None:
    async def work() -> None:
        files = SlowFiles(lambda path: "/index/" in path, "read")
        async with kept(tmp_path, files) as (store, upkeep, _):
            files.go.set()
            for n in range(20):
                put(store, "t", 0, b"%d" % n, KEYS=f"k{n}")
            await upkeep.write_behind()
            files.go.clear()
            files.reached.clear()
            asked = [
                asyncio.ensure_future(upkeep.query("t", f"k{n % 20}", 9, 0, 1 << 62)) for n in range(256)
            ]
            await until(files.reached.is_set)
            with pytest.raises(SystemBusyError, match="256"):
                await upkeep.query("t", "k1", 9, 0, 1 << 62)
            files.go.set()
            for n, found in enumerate(await asyncio.gather(*asked)):
                assert len(found.records) == 1, n

    run(work())


def test_trouble_with_the_disk_ends_and_nothing_is_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class FullFiles(Files):
        full = False

        def open(self, path: Path | str, *, create: bool = False) -> int:
            if create and self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().open(path, create=create)

        def sync(self, fd: int) -> None:
            pass

    async def work() -> None:
        files = FullFiles()
        async with kept(tmp_path, files) as (store, upkeep, _):
            put(store, "t", 0, b"a", KEYS="k")
            files.full = True
            for step in (upkeep.write_behind, upkeep.checkpoint):
                with pytest.raises(DiskFullError):
                    await step()
            assert (await upkeep.query("t", "k", 9, 0, 1 << 62)).records == []  # a read is not refused
            await upkeep.sync_log()
            assert "the store takes no messages: " in caplog.text and "ends by itself when" in caplog.text
            assert (
                store.flushed_offset == store.max_commitlog_offset
            )  # nor is what was accepted left unsynced
            files.full = False
            await upkeep.sync_log()
            assert store.read_only_reason is None and "the store takes messages again" in caplog.text
            await upkeep.write_behind()
            await upkeep.checkpoint()
            assert len((await upkeep.query("t", "k", 9, 0, 1 << 62)).records) == 1
            assert store.queue("t", 0).written == 1

    run(work())


def test_a_topic_deleted_while_its_files_are_made_leaves_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        files = SlowFiles(lambda path: path.endswith("/consumequeue/gone/0"), "folder")
        async with kept(tmp_path, files) as (store, upkeep, _):
            put(store, "gone", 0, b"x")
            put(store, "stays", 0, b"y")
            writing = asyncio.ensure_future(upkeep.write_behind())
            await until(files.reached.is_set)
            threading.Timer(0.05, files.go.set).start()  # the delete waits for the write that is under way
            store.delete_topic("gone")
            await writing
            assert sorted(path.name for path in (tmp_path / "consumequeue").iterdir()) == ["stays"]
            assert bodies(store, "stays", 0) == [b"y"]

    run(work())


def test_a_queue_written_by_others_meanwhile_is_written_once(tmp_path: Path) -> None:
    async def work() -> None:
        files = SlowFiles(lambda path: "/consumequeue/" in path, "write")
        async with kept(tmp_path, files, queue_tail_bytes=100) as (store, upkeep, _):
            put(store, "t", 0, b"0")
            writing = asyncio.ensure_future(upkeep.write_behind())
            await until(files.reached.is_set)
            files.go.set()
            for n in range(1, 30):  # tails that grow too long are written at once
                put(store, "t", 0, b"%d" % n)
            await writing
            assert bodies(store, "t", 0) == [b"%d" % n for n in range(30)]
            await upkeep.checkpoint()
            queue = store.queue("t", 0)
            assert (queue.written, len(queue.tail), store._tails.unwritten, store._tails.dirty) == (
                30,
                0,
                0,
                set(),
            )

    run(work())


def test_a_topic_made_anew_gets_nothing_of_the_old_one(tmp_path: Path) -> None:
    async def work() -> None:
        files = SlowFiles(lambda path: path.endswith("/first/0/00000000000000000000"), "write")
        async with kept(tmp_path, files) as (store, upkeep, _):
            put(store, "first", 0, b"x")
            for n in range(5):
                put(store, "second", 0, b"%d" % n)
            writing = asyncio.ensure_future(upkeep.write_behind())
            await until(files.reached.is_set)
            for topic in ("second",):  # on its way to the file, or just written
                store.delete_topic(topic)
                put(store, topic, 0, b"new")
            files.go.set()
            await writing
            await upkeep.checkpoint()
            assert bodies(store, "second", 0) == [b"new"]
        store = MessageStore(config_for(tmp_path), FakeClock())
        store.load()
        assert bodies(store, "second", 0) == [b"new"]
        store.close()

    run(work())


def test_files_of_deleted_topics_are_removed_by_a_thread(tmp_path: Path) -> None:
    threads = set()

    class Watched(Files):
        def remove_folder(self, folder: Path | str) -> None:
            threads.add(threading.current_thread())
            super().remove_folder(folder)

    async def work() -> None:
        async with kept(tmp_path, Watched()) as (store, upkeep, _):
            put(store, "gone", 0, b"x")
            await upkeep.write_behind()
            store.delete_topic("gone")
            await upkeep.empty_trash()
            await upkeep.empty_trash()
            assert len(threads) == 1 and threading.main_thread() not in threads
            assert list((tmp_path / "consumequeue.deleted").iterdir()) == []

    run(work())


_STARTS = """
import asyncio, sys, threading
from gimbalmq.broker.broker import Broker
from gimbalmq.broker.config import BrokerConfig

class Watch:
    def find_spec(self, name, *_):
        if name == "numpy":
            print(threading.current_thread() is threading.main_thread())

async def main():
    broker = Broker(BrokerConfig(listen_port=0, store_path_root_dir=sys.argv[1]))
    await broker.start()
    assert "numpy" not in sys.modules, "readiness must not wait for it"
    try:
        async with asyncio.timeout(10):
            while "gimbalmq.store.append_vectors" not in sys.modules:
                await asyncio.sleep(0.01)
    finally:
        await broker.close()

sys.meta_path.insert(0, Watch())
asyncio.run(main())
"""


def test_an_empty_broker_imports_numpy_in_a_thread_before_the_first_message(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _STARTS, tmp_path], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


async def hang_up(asked: asyncio.Future[Any]) -> None:
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked


def test_an_index_file_is_made_once_though_the_asker_hangs_up(tmp_path: Path) -> None:
    async def work() -> None:
        made = 0

        def slow(path: str) -> bool:
            nonlocal made
            made += ".next-index" in path
            return ".next-index" in path

        files = SlowFiles(slow, "allocate")
        async with kept(tmp_path, files, index_entries=200) as (store, upkeep, _):
            for n in range(50):
                put(store, "t", 0, b"x", KEYS=f"k{n}")
            asked = asyncio.ensure_future(upkeep.query("t", "k1", 9, 0, 1 << 62))
            await until(files.reached.is_set)
            await hang_up(asked)
            writing = asyncio.ensure_future(upkeep.write_behind())
            await asyncio.sleep(0.05)  # a second maker would begin now
            assert made == 1
            files.go.set()
            await writing
            assert all([(await upkeep.query("t", f"k{n}", 9, 0, 1 << 62)).records for n in range(50)])
            assert store.read_only_reason is None and made == 1

    run(work())


def test_questions_whose_askers_hang_up_take_no_more_threads_than_others(tmp_path: Path) -> None:
    async def work() -> None:
        files = SlowFiles(lambda path: "/index/" in path, "read")
        async with kept(tmp_path, files) as (store, upkeep, _):
            put(store, "t", 0, b"x", KEYS="k")
            files.go.set()
            await upkeep.write_behind()
            files.go.clear()
            files.reached.clear()
            for _ in range(10):
                asked = asyncio.ensure_future(upkeep.query("t", "k", 9, 0, 1 << 62))
                await until(files.reached.is_set)
                for _ in range(20):
                    await asyncio.sleep(0)
                await hang_up(asked)
            put(store, "t", 0, b"y")
            await asyncio.wait_for(upkeep.checkpoint(), 10)  # finds a thread
            files.go.set()
            assert len((await upkeep.query("t", "k", 9, 0, 1 << 62)).records) == 1

    run(work())


def test_files_of_a_cleaning_whose_asker_hangs_up_are_removed(tmp_path: Path) -> None:
    async def work() -> None:
        clock = FakeClock()
        async with kept(tmp_path, FailingFiles(), clock, disk_usage=lambda: 0.8) as (store, upkeep, _):
            for n in range(300):
                put(store, "t", n, b"x")
            files = len(store.log.segments)
            clock.now_ms = 4_000_000_000_000
            asked = asyncio.ensure_future(upkeep.clean(manual=True))
            await until(lambda: len(store.log.segments) < files)  # but its queues are not through
            await hang_up(asked)
            await upkeep.clean()
            assert len(list((tmp_path / "commitlog").iterdir())) == len(store.log.segments) == 1

    run(work())


def test_a_checkpoint_that_has_begun_ends_before_upkeep_does(tmp_path: Path) -> None:
    async def work() -> None:
        files = SlowFiles(lambda path: "/consumequeue/" in path, "sync")
        async with kept(tmp_path, files) as (store, upkeep, _):
            put(store, "t", 0, b"x")
            asked = asyncio.ensure_future(upkeep.checkpoint())
            await until(files.reached.is_set)
            await hang_up(asked)
            closing = asyncio.ensure_future(upkeep.close())
            files.go.set()
            await closing
            assert store._queue_files.unsynced == set() and (tmp_path / "checkpoint").exists()

    run(work())
