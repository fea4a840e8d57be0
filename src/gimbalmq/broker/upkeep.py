"""The store's housekeeping: queue files, key index, checkpoints, expired files, questions by key.

What the store's own thread must do is done on the loop in short turns; what may take the disk long is done in threads
that nobody else waits for: a send under SYNC_FLUSH has a thread of its own (flush.py).

A thread cannot be cancelled. So work that has begun is owned here and comes to its end, also if the one who asked for
it hangs up: what is locked stays locked until the thread is through.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from gimbalmq._clock import Clock
from gimbalmq.broker.config import LiveConfig
from gimbalmq.broker.flush import GroupCommit
from gimbalmq.errors import StoreError, SystemBusyError
from gimbalmq.store.message_store import MessageStore
from gimbalmq.store.results import QueryResult
from gimbalmq.transport.turns import Turns

T = TypeVar("T")

log = logging.getLogger(__name__)

_QUERIES_AT_ONCE = 2
_MOST_QUERIES = 256
_THREADS = _QUERIES_AT_ONCE + 6
"""One checkpoint, one removal, one of deleted topics, one writing of queues, one new index file and one reservation for
the log at a time, and the questions."""
_MANY_QUEUES = 1000
_LARGE_TAIL = 64
"""If more than 1000 queues have entries in memory, those with fewer than 64 wait for the next checkpoint: a write costs
the same whatever it writes, and the loop has to give the interpreter away for each."""
_QUIET_SECONDS = 10.0
"""Between two lines about a store that refuses messages; the log may lie on the same full disk."""


def _import_numpy() -> None:
    """Takes a tenth of a second, so nobody is to do it on the loop when the first large request comes."""
    import numpy  # noqa: F401

    from gimbalmq.store import append_vectors, read_vectors  # noqa: F401


class Upkeep:
    """Java: the services of DefaultMessageStore, and what QueryMessageProcessor's threads do."""

    def __init__(
        self, store: MessageStore, commit: GroupCommit, turns: Turns, live: LiveConfig, clock: Clock
    ) -> None:
        self._store = store
        self._commit = commit
        self._live = live
        self._clock = clock
        self._turns = turns
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="upkeep")
        self._checkpointing = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._preparing = asyncio.Lock()
        self._cleaning = asyncio.Lock()
        self._asking = asyncio.Semaphore(_QUERIES_AT_ONCE)
        self._queries = 0
        self._works: set[asyncio.Task[Any]] = set()
        self._is_warm = False
        self._is_told = False
        self._told_at = -_QUIET_SECONDS

    async def _own(self, work: Coroutine[Any, Any, T]) -> T:
        """Waits for the work, which goes on if the waiting is cancelled."""
        task = asyncio.ensure_future(work)
        self._works.add(task)
        task.add_done_callback(self._works.discard)
        return await asyncio.shield(task)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def sync_log(self) -> None:
        """The periodic sync of the log, and room for what comes next; first looks whether trouble has passed."""
        store = self._store
        reason = store.read_only_reason
        if reason is not None:
            self._tell(reason)
            store.probe_writable()
        self._tell(store.read_only_reason)
        if store.flushed_offset < store.max_commitlog_offset and store.can_sync:
            await self._commit.flush()
        if store.wants_room and store.read_only_reason is None:
            await self._own(self._in_thread(store.reserve_room))

    def _tell(self, reason: str | None) -> None:
        """Logs when the store begins to refuse messages, and when it takes them again."""
        now = self._clock.monotonic()
        if reason is None and self._is_told:
            log.warning("the store takes messages again")
            self._is_told = False
        elif reason is not None and not self._is_told and now - self._told_at >= _QUIET_SECONDS:
            ending = "ends by itself" if self._store.trouble_passes else "ends with a restart"
            log.error("the store takes no messages: %s; this %s when the cause is gone", reason, ending)
            self._is_told, self._told_at = True, now

    async def write_behind(self) -> None:
        """Queue entries and keys that are only in memory."""
        await self._own(self._write_behind())

    async def _write_behind(self) -> None:
        if not self._is_warm:
            await self._in_thread(_import_numpy)
            self._is_warm = True
        try:
            async with self._writing:
                many = self._store.queues_in_memory > _MANY_QUEUES
                await self._write_queues(_LARGE_TAIL if many else 1)
        finally:  # each has its own trouble with the disk
            await self._index()

    async def _write_queues(self, least: int = 1) -> None:
        copies = await self._turns.run(self._store.copy_tails(least))
        if len(copies):
            await self._in_thread(copies.write)
            await self._turns.run(self._store.tails_written(copies))

    async def _index(self) -> None:
        async with self._preparing:
            prepare = self._store.prepare_index()
            if prepare is not None:
                await self._in_thread(prepare)
        await self._turns.run(self._store.index_waiting())

    async def checkpoint(self) -> None:
        """Returns when all that is committed now is durable and noted so."""
        await self._own(self._write_checkpoint())

    async def _write_checkpoint(self) -> None:
        async with self._checkpointing:
            await self._index()
            async with self._writing:
                begun = self._store.begin_checkpoint()
                await self._write_queues()
                finish = await self._turns.run(self._store.checkpoint_steps(begun))
            await self._in_thread(finish)

    async def clean(self, *, manual: bool = False) -> None:
        """Removes expired files, and refuses writes on an overfull disk."""
        await self._own(self._clean(manual))

    async def _clean(self, manual: bool) -> None:
        store, config = self._store, self._live.now
        async with self._cleaning:
            store.config = dataclasses.replace(
                store.config,
                delete_when_hours=config.delete_hours(),
                file_reserved_hours=config.file_reserved_time,
                disk_max_used_ratio=config.disk_max_used_space_ratio / 100,
                clean_forcibly=config.clean_file_forcibly_enable,
            )
            if manual and store.can_sync:
                await self._commit.flush()  # a file that is not synced is not deleted
            _, remove = await self._turns.run(store.expire_steps(self._clock.wall_ms(), manual=manual))
            if remove is not None:
                await self._in_thread(remove)
            store.judge_disk()

    async def empty_trash(self) -> None:
        """Removes the files of deleted topics."""
        if self._store.has_trash:
            await self._own(self._in_thread(self._store.empty_trash))

    async def query(self, topic: str, key: str, most: int, begin_ms: int, end_ms: int) -> QueryResult:
        """Records by key.

        Raises:
            SystemBusyError: too many ask already.
        """
        if self._queries >= _MOST_QUERIES:
            raise SystemBusyError(f"{_MOST_QUERIES} queries by key are waiting; try again later")
        self._queries += 1
        given_up = asyncio.Event()
        try:
            return await self._own(self._query(given_up, topic, key, most, begin_ms, end_ms))
        except asyncio.CancelledError:
            given_up.set()
            raise

    async def _query(
        self, given_up: asyncio.Event, topic: str, key: str, most: int, begin_ms: int, end_ms: int
    ) -> QueryResult:
        try:
            async with self._asking:
                if given_up.is_set():
                    return QueryResult([], 0, 0)
                try:
                    await self._index()
                except StoreError:
                    pass  # noted where it happened; what was indexed before is found
                query = await self._turns.run(self._store.query(topic, key, most, begin_ms, end_ms))
                while not query.done and not given_up.is_set():
                    await self._in_thread(query.search)
                    await self._turns.run(query.check())
                return self._store.answered(query)
        finally:
            self._queries -= 1

    async def close(self) -> None:
        """Waits for all that has begun; nothing is to be asked for any more."""
        while self._works:
            await asyncio.wait(self._works)
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)
