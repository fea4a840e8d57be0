"""Waits for the disk: told in one turn of the loop, together, and not for ever."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.broker.flush import GroupCommit
from gimbalmq.errors import StoreIOError
from gimbalmq.store import MessageStore
from tests.store.helpers import config_for, put
from tests.support import run


class Disk(MessageStore):
    """A store whose syncs wait for the test."""

    refuses = False

    def __init__(self, folder: Path) -> None:
        super().__init__(config_for(folder), SYSTEM_CLOCK)
        self.syncs = 0
        self.go_on = threading.Semaphore(0)
        self.load()

    def flush(self) -> int:
        self.syncs += 1
        assert self.go_on.acquire(timeout=30)
        if self.refuses:
            raise StoreIOError("the disk is gone")
        return super().flush()


def end(store: Disk) -> None:
    store.go_on.release(100)
    store.close()


def test_who_waits_for_what_was_cut_away_is_told_so(tmp_path: Path) -> None:
    async def work() -> None:
        store = Disk(tmp_path)
        put(store, "T", 0, b"kept")
        kept = store.max_commitlog_offset
        put(store, "T", 0, b"cut")
        commit = GroupCommit(store)
        both = [commit.wait(kept), commit.wait(store.max_commitlog_offset)]
        store.follow()
        store.cut(kept)
        store.go_on.release(2)
        assert [await wait for wait in both] == [True, False]
        await commit.close()
        end(store)

    run(work())


def test_sends_that_gather_during_a_sync_share_the_next(tmp_path: Path) -> None:
    async def work() -> None:
        store = Disk(tmp_path)
        commit = GroupCommit(store)
        waits = []
        for number in range(10):
            put(store, "T", 0, b"%d" % number)
            waits.append(commit.wait(store.max_commitlog_offset))
        store.go_on.release(2)
        assert all([await wait for wait in waits])
        assert store.syncs <= 2
        assert commit.wait(store.max_commitlog_offset).result
        await commit.close()
        end(store)

    run(work())


def test_who_asks_while_others_are_told_begins_no_second_sync(tmp_path: Path) -> None:
    async def work() -> None:
        store = Disk(tmp_path)
        commit = GroupCommit(store)
        later: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def more(_: bool) -> None:
            put(store, "T", 0, b"more")
            put(store, "T", 0, b"still more")
            commit.wait(store.max_commitlog_offset - 1)
            commit.wait(store.max_commitlog_offset).then(later.set_result)

        put(store, "T", 0, b"first")
        commit.wait(store.max_commitlog_offset).then(more)
        store.go_on.release(100)
        assert await later and store.syncs == 2
        await commit.close()
        end(store)

    run(work())


def test_refused_by_the_disk_all_are_told_so(tmp_path: Path) -> None:
    async def work() -> None:
        store = Disk(tmp_path)
        commit = GroupCommit(store)
        put(store, "T", 0, b"lost")
        waits = [commit.wait(store.max_commitlog_offset), commit.wait(store.max_commitlog_offset + 1000)]
        store.refuses = True
        store.go_on.release()
        assert [await wait for wait in waits] == [False, False]
        # The disk is asked anew for the next one.
        store.refuses = False
        store.go_on.release(100)
        assert await commit.wait(store.max_commitlog_offset)
        await commit.close()
        end(store)

    run(work())


def test_closing_waits_for_those_who_wait(tmp_path: Path) -> None:
    async def work() -> None:
        store = Disk(tmp_path)
        commit = GroupCommit(store)
        put(store, "T", 0, b"x")
        wait = commit.wait(store.max_commitlog_offset)
        asyncio.get_running_loop().call_later(0.01, store.go_on.release)
        await commit.close()
        assert wait.ended and wait.result
        end(store)

    run(work())


@pytest.mark.timeout(10)
def test_closing_after_a_wait_that_ended_too_early_lets_the_loop_go_on(tmp_path: Path) -> None:
    async def work() -> None:
        store = Disk(tmp_path)
        commit = GroupCommit(store)
        put(store, "T", 0, b"x")
        wait = commit.wait(store.max_commitlog_offset)
        wait.end(False)  # as its time limit does while the disk is slow
        asyncio.get_running_loop().call_later(0.01, store.go_on.release)
        await commit.close()
        assert store.flushed_offset == store.max_commitlog_offset
        end(store)

    run(work())
