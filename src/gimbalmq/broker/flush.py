"""Durability off the loop: one thread syncs the log and does nothing else; any number of sends wait for it together.

A sync takes milliseconds and covers everything written before it began. So while one runs,
the sends that arrive gather, and the next one serves them all (group commit).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from gimbalmq.broker.waits import Wait, ended
from gimbalmq.errors import StoreError
from gimbalmq.store.message_store import MessageStore

log = logging.getLogger(__name__)


class GroupCommit:
    """Waits for the commit log to be on disk."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="flush")
        self._waiters: deque[tuple[int, Wait[bool]]] = deque()
        self._running: asyncio.Future[None] | None = None

    def wait(self, commitlog_offset: int) -> Wait[bool]:
        """Ends when everything before the offset is durable; with False if the disk refused."""
        if self._store.flushed_offset >= commitlog_offset:
            return ended(True)
        wait: Wait[bool] = Wait()
        self._waiters.append((commitlog_offset, wait))
        if self._running is None:
            self._begin()
        return wait

    def _begin(self) -> None:
        """Has the thread sync; what it found out comes back in one turn of the loop, however busy the loop is."""
        loop = asyncio.get_running_loop()

        def sync() -> None:
            durable: int | None = None
            try:
                durable = self._store.flush()
            except StoreError as error:
                log.error("the commit log cannot be flushed: %s", error)
            except Exception:
                log.exception("the commit log cannot be flushed")
            with suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits any more
                loop.call_soon_threadsafe(self._synced, durable)

        self._running = loop.run_in_executor(self._executor, sync)

    def _synced(self, durable: int | None) -> None:
        # What is told now may come to wait itself, and must not begin a second sync.
        self._release(durable)
        self._release_cut()
        if self._waiters:
            self._begin()
        else:
            self._running = None

    def _release(self, durable: int | None) -> None:
        """Ends the waits up to there; all those there are if there is no telling what is durable."""
        if durable is None:
            given_up, self._waiters = self._waiters, deque()
            for _, wait in given_up:
                wait.end(False)
            return
        waiters = self._waiters
        while waiters and waiters[0][0] <= durable:
            waiters.popleft()[1].end(True)

    def _release_cut(self) -> None:
        """Who waits for what a slave has cut away would wait for ever, and have the disk synced for ever."""
        waiters, end = self._waiters, self._store.max_commitlog_offset
        while waiters and waiters[0][0] > end:
            waiters.popleft()[1].end(False)

    async def flush(self) -> None:
        """The periodic sync of asynchronous flushing."""
        await asyncio.get_running_loop().run_in_executor(self._executor, self._store.flush)

    async def close(self) -> None:
        """Waits until nobody waits for the disk any more."""
        # Not for the waits themselves: one that has ended by its time limit is among them until the sync is over.
        while self._running is not None:
            await asyncio.wait((self._running,))
        self._executor.shutdown(wait=True)
