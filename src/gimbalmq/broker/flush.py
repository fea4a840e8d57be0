"""Durability off the loop: one thread syncs the log and does nothing else; any number of sends wait for it together.

A sync takes milliseconds and covers everything written before it began. So while one runs,
the sends that arrive gather, and the next one serves them all (group commit).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from gimbalmq.errors import StoreError
from gimbalmq.store.message_store import MessageStore

log = logging.getLogger(__name__)


class GroupCommit:
    """Waits for the commit log to be on disk."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="flush")
        self._waiters: deque[tuple[int, asyncio.Future[bool]]] = deque()
        self._running: asyncio.Task[None] | None = None

    def wait(self, commitlog_offset: int) -> asyncio.Future[bool]:
        """Done when everything before the offset is durable; False if the disk refused."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if self._store.flushed_offset >= commitlog_offset:
            future.set_result(True)
            return future
        self._waiters.append((commitlog_offset, future))
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._serve())
        return future

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiters:
                try:
                    durable = await loop.run_in_executor(self._executor, self._store.flush)
                except StoreError as error:
                    log.error("the commit log cannot be flushed: %s", error)
                    self._release(None)
                    return
                self._release(durable)
                self._release_cut()
        finally:
            self._running = None

    def _release(self, durable: int | None) -> None:
        waiters = self._waiters
        while waiters and (durable is None or waiters[0][0] <= durable):
            future = waiters.popleft()[1]
            if not future.done():
                future.set_result(durable is not None)

    def _release_cut(self) -> None:
        """Who waits for what a slave has cut away would wait for ever, and have the disk synced for ever."""
        waiters, end = self._waiters, self._store.max_commitlog_offset
        while waiters and waiters[0][0] > end:
            future = waiters.popleft()[1]
            if not future.done():
                future.set_result(False)

    async def flush(self) -> None:
        """The periodic sync of asynchronous flushing."""
        await asyncio.get_running_loop().run_in_executor(self._executor, self._store.flush)

    async def close(self) -> None:
        if self._running is not None:
            await asyncio.gather(self._running, return_exceptions=True)
        self._executor.shutdown(wait=True)
