"""Metadata files that survive a crash as the old text or the new one, never as half of either.

Written aside, synced, renamed; the text before stays beside it as ``.bak``, as Apache's
broker keeps it and as it reads back when the file itself is missing or empty.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from gimbalmq.errors import ProtocolError, StoreIOError
from gimbalmq.protocol import fastjson

log = logging.getLogger(__name__)

_RETRY_SECONDS = 5.0

T = TypeVar("T")


class JsonFile:
    """One document under ``config/``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._backup = path.with_name(path.name + ".bak")
        self._last: bytes | None = None

    def load(self, read: Callable[[Any], T]) -> T | None:
        """What ``read`` makes of the document, or of its backup, or None where there is neither.

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
                document = read(fastjson.loads(text))
            except (ProtocolError, ValueError, TypeError, AttributeError) as error:
                problem = problem or error
                continue
            self._last = text
            return document
        if problem is not None:
            raise StoreIOError(
                f"{self.path} is damaged ({problem}) and so is its .bak; mend it or move it away"
            ) from problem
        return None

    def save(self, document: object) -> None:
        """Raises StoreIOError; the old file is still whole then."""
        text = fastjson.dumps_pretty(document)
        if text == self._last:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self._last is not None:
                _write(self._backup, self._last)
            _write(self.path, text)
        except OSError as error:
            raise StoreIOError(f"{self.path} cannot be written: {error.strerror}") from error
        self._last = text


def _write(path: Path, text: bytes) -> None:
    aside = path.with_name(path.name + ".tmp")
    with aside.open("wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


class CoalescedSave:
    """Many changes, one write: a thousand topics made at once cost one file, not a thousand."""

    def __init__(self, file: JsonFile, document: Callable[[], object], delay: float = 0.02) -> None:
        self._file = file
        self._document = document
        self._delay = delay
        self._scheduled: asyncio.TimerHandle | None = None
        self._failed = False
        self._waiters: list[asyncio.Future[None]] = []

    def soon(self) -> None:
        """The change will be in the file shortly."""
        if self._scheduled is not None and self._failed:
            # Whoever asks now need not wait for the next try of the last failure.
            self._scheduled.cancel()
            self._scheduled = None
        if self._scheduled is None:
            self._failed = False
            self._scheduled = asyncio.get_running_loop().call_later(self._delay, self._run)

    async def saved(self) -> None:
        """Returns when the change is in the file; raises StoreIOError where it cannot be."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self.soon()
        await waiter

    def now(self) -> None:
        """Writes at once, for shutdown; raises StoreIOError."""
        if self._scheduled is not None:
            self._scheduled.cancel()
            self._scheduled = None
        self._file.save(self._document())
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    def abandon(self) -> None:
        """Forgets what was to be written."""
        if self._scheduled is not None:
            self._scheduled.cancel()
            self._scheduled = None

    def _run(self) -> None:
        self._scheduled = None
        waiters, self._waiters = self._waiters, []
        try:
            self._file.save(self._document())
        except StoreIOError as error:
            log.error("%s; tried again in %g s", error, _RETRY_SECONDS)
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(error)
            self._failed = True
            self._scheduled = asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._run)
            return
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
