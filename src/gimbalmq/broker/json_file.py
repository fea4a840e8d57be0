"""Metadata files that survive a crash as the old text or the new one, never as half of either.

A text is written aside and synced; then the file becomes its own ``.bak``, and the new text takes
its name. At every moment the file or its ``.bak`` is whole, and both we and Apache's broker read
the ``.bak`` when the file is missing.

Nothing of that happens on the event loop: one thread writes all tables of a broker, a piece of a
table at a time, so that neither a slow disk nor a table of megabytes stops anybody.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from gimbalmq.errors import ProtocolError, StoreError, StoreIOError
from gimbalmq.protocol import fastjson
from gimbalmq.store.files import Files, store_error

log = logging.getLogger(__name__)

_RETRY_SECONDS = 5.0

T = TypeVar("T")
Document = Mapping[str, object]
"""What a file holds; large tables in it are ``fastjson.Rows``, which another thread can read."""


def rows_of(table: dict[str, T]) -> fastjson.Rows:
    """The table as it is now; two lists cost less than a pair for each row."""
    return fastjson.Rows(zip(list(table), list(table.values()), strict=True))


class JsonFile:
    """One document under ``config/``."""

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self.path = path
        self._files = files or Files()
        self._aside = path.with_name(path.name + ".tmp")
        self._backup = path.with_name(path.name + ".bak")
        self._digest: bytes | None = None
        """Of the text in the file; None if the file is missing or damaged, so that it must not become the backup."""

    def load(self, read: Callable[[Any], T]) -> T | None:
        """What ``read`` makes of the document, or of its backup, or None if there is neither.

        Raises:
            StoreIOError: there is text, but none of it can be read.
        """
        problem: Exception | None = None
        for path in (self.path, self._backup):
            try:
                text = path.read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StoreIOError(f"{path} cannot be read: {error.strerror}") from error
            if not text.strip():
                continue
            try:
                document = read(fastjson.loads(text, limit=None))
            except (ProtocolError, ValueError, TypeError, AttributeError) as error:
                problem = problem or error
                continue
            if path is self.path:
                self._digest = hashlib.blake2b(text).digest()
            return document
        if problem is not None:
            raise StoreIOError(
                f"{self.path} is damaged ({problem}) and so is its .bak; mend it or move it away"
            ) from problem
        return None

    def save(self, document: Document) -> None:
        """Durable when it returns; a text that is in the file already is not written again.

        Raises:
            StoreError: the disk refused; the file or its backup is still whole.
        """
        files = self._files
        try:
            if not self.path.parent.exists():
                files.make_folder(self.path.parent)
                files.sync_folder(self.path.parent.parent)
            digest = self._write_aside(document)
            if digest == self._digest:
                files.remove(self._aside)
                return
            if self._digest is not None:
                self._digest = None
                files.replace(self.path, self._backup)
            files.replace(self._aside, self.path)
            files.sync_folder(self.path.parent)
        except OSError as error:
            raise store_error(error, f"{self.path} cannot be written") from error
        self._digest = digest

    def _write_aside(self, document: Document) -> bytes:
        files = self._files
        digest = hashlib.blake2b()
        fd = files.open(self._aside, create=True)
        try:
            files.truncate(fd, 0)
            position = 0
            for piece in fastjson.pretty_pieces(document):
                # Each write lets other threads run, so the loop waits for one piece at most.
                files.write_at(fd, piece, position)
                position += len(piece)
                digest.update(piece)
            if digest.digest() != self._digest:
                files.sync(fd)
        finally:
            files.close(fd)
        return digest.digest()


class TableThread:
    """The one thread that writes the tables of a broker, one after the other."""

    def __init__(self, files: Files | None = None) -> None:
        self.files = files or Files()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="tables")

    async def run(self, work: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        """Ends the thread after what it was given."""
        self._executor.shutdown(wait=True)


class Saving:
    """Keeps a file up to date: many changes, one write; a thousand new topics cost one file, not a thousand."""

    def __init__(
        self,
        path: Path,
        document: Callable[[], Document],
        thread: TableThread | None = None,
        *,
        delay: float = 0.02,
    ) -> None:
        self.file = JsonFile(path, None if thread is None else thread.files)
        self._document = document
        self._thread = thread
        self._delay = delay
        self._changes = self._written = 0
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._wake: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._ending = False

    def soon(self) -> None:
        """The change will be in the file shortly."""
        self._changes += 1
        if self._task is None and not self._ending:
            self._wake = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(
                self._run(), name=f"save {self.file.path.name}"
            )
        elif self._wake is not None:
            # Whoever asks now need not wait for the next try of the last failure.
            self._wake.set()

    async def saved(self) -> None:
        """Returns when the change is durable; raises StoreError if it cannot be."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.soon()
        self._waiters.append((self._changes, waiter))
        await waiter

    async def finish(self) -> None:
        """Writes what is not in the file yet, for shutdown; raises StoreError."""
        await self._end()
        if self._written != self._changes:
            await self._write()

    async def abandon(self) -> None:
        """Forgets what was to be written; a write that has begun is waited for."""
        await self._end()

    async def _end(self) -> None:
        self._ending = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        assert self._wake is not None
        pause = self._delay
        try:
            while self._written != self._changes:
                if pause == self._delay:
                    await asyncio.sleep(pause)
                else:
                    try:
                        async with asyncio.timeout(pause):
                            await self._wake.wait()
                    except TimeoutError:
                        pass
                self._wake.clear()
                try:
                    await self._write()
                    pause = self._delay
                except StoreError as error:
                    pause = _RETRY_SECONDS
                    log.error("%s; tried again in %g s", error, pause)
        finally:
            self._task = None

    async def _write(self) -> None:
        covered = self._changes
        document = self._document()
        writing = asyncio.ensure_future(self._in_thread(document))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            # The thread cannot be stopped; two must never write one file.
            await asyncio.gather(writing, return_exceptions=True)
            raise
        except Exception as error:
            self._release(covered, error)
            raise
        self._written = covered
        self._release(covered, None)

    async def _in_thread(self, document: Document) -> None:
        if self._thread is None:
            await asyncio.to_thread(self.file.save, document)
        else:
            await self._thread.run(lambda: self.file.save(document))

    def _release(self, covered: int, error: Exception | None) -> None:
        waiting, self._waiters = self._waiters, []
        for change, waiter in waiting:
            if change > covered:
                self._waiters.append((change, waiter))
            elif not waiter.done():
                if error is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(error)
