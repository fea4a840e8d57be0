"""Epochs: which part of the log was written under which master, in memory and in Apache's file.

The file is text, and Apache 5.x reads and writes the same: the number of entries, a check sum, then lines of
``epoch-start``. What it said before is in ``.bak``.

An entry counts only if both its epoch and its start are greater than those of the last one, as at Apache's. There, data
that follow a term in which nothing was written count to that term. Two replicas can then agree in their epochs and
differ in bytes, which is why a slave also compares its last record (see ``switching``). Ours drops the entry of a term
without bytes when it becomes the master, or has agreed with one. The oldest one stays, because it tells from where on
logs may differ: so the next one may begin where it does.

A file that lags behind the log is safe as long as nobody was told of the bytes: they then count to an older epoch,
whose end at the master is where the newer one begins; a slave cuts them off and copies them again. So a slave reports
bytes of a new epoch when the file names it (see ``switching``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from zlib import crc32

from gimbalmq.errors import StoreIOError
from gimbalmq.protocol.ha_epochs import MOST_EPOCHS, Epoch
from gimbalmq.store.files import Files, store_error

log = logging.getLogger(__name__)


class Epochs:
    """The epochs of one log, oldest first. Changes are in memory at once, and in the file after ``save``."""

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self.path = path
        self._files = files or Files()
        self._entries: list[Epoch] = []
        self._written: bytes = b""
        """What is in the file; empty if there is none that may become the backup."""

    @property
    def entries(self) -> tuple[Epoch, ...]:
        return tuple(self._entries)

    @property
    def last(self) -> Epoch | None:
        return self._entries[-1] if self._entries else None

    @property
    def last_epoch(self) -> int:
        """-1 if there is none, as Apache's brokers say."""
        return self._entries[-1].epoch if self._entries else -1

    def at(self, offset: int) -> Epoch | None:
        """The epoch to which the byte at ``offset`` belongs."""
        return next((entry for entry in reversed(self._entries) if entry.start <= offset), None)

    def after(self, epoch: int) -> Epoch | None:
        """The epoch that followed."""
        return next((entry for entry in self._entries if entry.epoch > epoch), None)

    # --- changes -----------------------------------------------------------------------------

    def append(self, entry: Epoch) -> bool:
        """Notes a new epoch; False if it does not continue the others.

        A master that starts again in the epoch it has keeps the entry: it is the same term, and its slaves know it so.
        """
        last = self.last
        if last is not None:
            least = last.start if len(self._entries) == 1 else last.start + 1
            if entry.epoch <= last.epoch or entry.start < least:
                return False
        self._entries.append(entry)
        del self._entries[:-MOST_EPOCHS]
        return True

    def cut(self, offset: int) -> None:
        """The log now ends at ``offset``: epochs that begin there or later are gone."""
        self._entries = [entry for entry in self._entries if entry.start < offset]

    def drop_empty(self, end: int) -> None:
        """The log ends at ``end``: terms without bytes are gone, except the oldest, which others may share."""
        self._entries = [*self._entries[:1], *(entry for entry in self._entries[1:] if entry.start < end)]

    def trim(self, offset: int) -> None:
        """The log now begins at ``offset``: epochs that ended before are gone."""
        while len(self._entries) > 1 and self._entries[1].start < offset:
            del self._entries[0]

    # --- the file ----------------------------------------------------------------------------

    def load(self, end: int) -> None:
        """Reads the file, or its backup; epochs that begin behind the log's ``end`` are left out.

        Raises:
            StoreIOError: there is text, but none of it can be read.
        """
        problem: ValueError | None = None
        for path in (self.path, _backup(self.path)):
            try:
                text = path.read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise store_error(error, f"{path} cannot be read") from error
            try:
                entries = _parse(text)
            except ValueError as error:
                problem = problem or error
                log.warning("%s is damaged: %s", path, error)
                continue
            if path is self.path:
                self._written = text
            self._entries = [entry for entry in entries if entry.start <= end]
            return
        if problem is not None:
            raise StoreIOError(
                f"{self.path} is damaged ({problem}) and so is its .bak; if this is not the only replica, move both "
                "away together with the log, and it is copied anew"
            ) from problem

    def save(self) -> None:
        """Durable when it returns; may run in any thread, one at a time. As at Apache's, no epochs are no file.

        Raises:
            StoreError: the disk refused; the file or its backup is still whole.
        """
        entries = self.entries
        text = _text(entries)
        if text == self._written:
            return
        files, aside = self._files, self.path.with_name(self.path.name + ".tmp")
        try:
            if not entries:
                self._remove()
                return
            if not self.path.parent.exists():
                files.make_folder(self.path.parent)
                files.sync_folder(self.path.parent.parent)
            fd = files.open(aside, create=True)
            try:
                files.truncate(fd, 0)
                files.write_at(fd, text, 0)
                files.sync(fd)
            finally:
                files.close(fd)
            if self._written:
                self._written = b""
                files.replace(self.path, _backup(self.path))
            files.replace(aside, self.path)
            files.sync_folder(self.path.parent)
        except OSError as error:
            raise store_error(error, f"{self.path} cannot be written") from error
        self._written = text

    def _remove(self) -> None:
        if not self.path.parent.exists():
            return
        self._written = b""
        # The backup first: if it were left alone, it would count.
        self._files.remove(_backup(self.path))
        self._files.remove(self.path)
        self._files.sync_folder(self.path.parent)


def common_end(
    ours: Sequence[tuple[Epoch, int]], theirs: Sequence[tuple[Epoch, int]]
) -> tuple[Epoch, int] | None:
    """Up to where two logs agree by their epochs, and the epoch in which that is; None if they share no epoch.

    Both lists have every epoch with its end (``with_ends``).
    """
    known = {entry.epoch: (entry.start, end) for entry, end in theirs}
    for entry, end in reversed(ours):
        start, their_end = known.get(entry.epoch, (-1, -1))
        if start == entry.start:
            return entry, min(end, their_end)
    return None


def with_ends(entries: Sequence[Epoch], end: int) -> list[tuple[Epoch, int]]:
    """Epochs of somebody whose log ends at ``end``, each with its own end."""
    starts = [entry.start for entry in entries[1:]]
    return list(zip(entries, [*starts, end], strict=True)) if entries else []


def _backup(path: Path) -> Path:
    return path.with_name(path.name + ".bak")


def _text(entries: Iterable[Epoch]) -> bytes:
    lines = [f"{entry.epoch}-{entry.start}\n" for entry in entries]
    body = "".join(lines).encode()
    return f"{len(lines)}\n{crc32(body) & 0x7FFFFFFF}\n".encode() + body


def _parse(text: bytes) -> list[Epoch]:
    """Raises ValueError with what is wrong."""
    lines = text.decode("ascii").splitlines()
    if len(lines) < 2:
        raise ValueError("it has no head")
    count, told, rows = int(lines[0]), int(lines[1]), lines[2:]
    if count != len(rows):
        raise ValueError(f"it announces {count} epochs and has {len(rows)}")
    body = "".join(f"{row}\n" for row in rows).encode()
    if told and told != crc32(body) & 0x7FFFFFFF:
        raise ValueError("its check sum is another")
    entries: list[Epoch] = []
    for row in rows:
        epoch, dash, start = row.partition("-")
        if not dash:
            raise ValueError(f"line {row!r} is no epoch-start")
        entry = Epoch(int(epoch), int(start))
        if entries and (entry.epoch <= entries[-1].epoch or entry.start < entries[-1].start):
            raise ValueError(f"line {row!r} does not follow the one before")
        entries.append(entry)
    return entries
