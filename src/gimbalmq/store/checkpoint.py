"""The file ``checkpoint``: from where on recovery has to look at the log, and how that is brought to the disk."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from gimbalmq._steps import Steps
from gimbalmq.errors import StoreError
from gimbalmq.store.commitlog import CommitLog
from gimbalmq.store.consumequeue import QueueFiles, QueueLog
from gimbalmq.store.files import Files, store_error, sync_file, sync_names, translated
from gimbalmq.store.index import KeyIndex
from gimbalmq.store.tails import QueueTails
from gimbalmq.store.trouble import Trouble

CHECKPOINT_BYTES = 4096
_FIELDS = struct.Struct(">5q")
# Ours, in the part of the file Java leaves alone: valid while the times before it are those it repeats,
# which no longer holds once a Java broker has worked in the folder.
_OURS = struct.Struct(">8s9q")
_OURS_AT = 64
_LOST_AT = _OURS_AT + _OURS.size + 4
_LOST = b"LOST"
_MAGIC = b"GIMBALM2"
_SAFETY_MS = 3000
MARK_BITS = 0x7FFFFFFFFFFFFFFF


@dataclass(slots=True)
class Checkpoint:
    """The file ``checkpoint``: up to when, and in ours up to where, everything is on the disk.

    Attributes:
        safe_offset: below it all of the log, the queues and the index is durable; -1 if nobody knows.
        index_name, index_count: the newest index file then, and the number its next entry would have had.
        mark: of all queue entries that point below ``safe_offset`` (see ``entries_mark``).
        log_file_bytes, queue_file_bytes: sizes of this folder's files.
        is_end_lost: an earlier checkpoint spoke of more log than was found, and nobody has noted that yet.
    """

    log_ms: int = 0
    queues_ms: int = 0
    index_ms: int = 0
    master_flushed: int = 0
    confirm: int = 0
    safe_offset: int = -1
    index_name: int = 0
    index_count: int = 0
    mark: int = 0
    log_file_bytes: int = 0
    queue_file_bytes: int = 0
    is_end_lost: bool = False

    @property
    def min_ms(self) -> int:
        return max(0, min(self.log_ms, self.queues_ms) - _SAFETY_MS)

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise store_error(
                error, f"{path}; if it cannot be mended, move it away: the whole log is read then"
            ) from error
        if len(data) < _FIELDS.size:
            return cls()
        found = cls(*_FIELDS.unpack_from(data))
        if len(data) >= _OURS_AT + _OURS.size + 4:
            magic, log_ms, queues_ms, index_ms, *ours = _OURS.unpack_from(data, _OURS_AT)
            whole = crc32(data[_OURS_AT : _OURS_AT + _OURS.size]).to_bytes(4, "big")
            same = (log_ms, queues_ms, index_ms) == (found.log_ms, found.queues_ms, found.index_ms)
            if magic == _MAGIC and same and data[_OURS_AT + _OURS.size :][:4] == whole:
                found.safe_offset, found.index_name, found.index_count = ours[:3]
                found.mark, found.log_file_bytes, found.queue_file_bytes = ours[3:]
        found.is_end_lost = data[_LOST_AT:].startswith(_LOST)
        return found

    def save(self, path: Path, files: Files) -> None:
        """Writes in place, as Java does: it keeps the file mapped."""
        data = bytearray(CHECKPOINT_BYTES)
        times = (self.log_ms, self.queues_ms, self.index_ms)
        _FIELDS.pack_into(data, 0, *times, self.master_flushed, self.confirm)
        ours = (self.safe_offset, self.index_name, self.index_count)
        sizes = (self.log_file_bytes, self.queue_file_bytes)
        _OURS.pack_into(data, _OURS_AT, _MAGIC, *times, *ours, self.mark & MARK_BITS, *sizes)
        end = _OURS_AT + _OURS.size
        data[end : end + 4] = crc32(data[_OURS_AT:end]).to_bytes(4, "big")
        if self.is_end_lost:
            data[_LOST_AT : _LOST_AT + len(_LOST)] = _LOST
        with translated(path):
            fd = files.open(path, create=True)
            try:
                files.write_at(fd, data, 0)
                sync_file(files, fd, path)
            finally:
                files.close(fd)
            sync_names(files, path.parent)


class BegunCheckpoint(NamedTuple):
    """What a checkpoint will speak of."""

    offset: int
    timestamp: int
    mark: int
    tails: list[tuple[QueueLog, int]]
    cuts: int


class Checkpoints:
    """The checkpoints of an open store: each brings everything to the disk and then says so.

    Attributes:
        saved: what the file says.
        confirm, master_flushed: what the next checkpoint will say of these; the store keeps them for the broker.
        half_cut: where a cut has begun that has not ended, because it goes on or the disk failed; None if there is
            none. Queues and log do not fit each other then, so no checkpoint is saved.
        is_end_lost: what every checkpoint says of that.
    """

    def __init__(
        self,
        path: Path,
        files: Files,
        log: CommitLog,
        queue_files: QueueFiles,
        tails: QueueTails,
        index: KeyIndex | None,
        trouble: Trouble,
    ) -> None:
        self._path = path
        self._files = files
        self._log = log
        self._queue_files = queue_files
        self._tails = tails
        self._index = index
        self._trouble = trouble
        self._saving = threading.Lock()  # a checkpoint that began before a cut must not be saved behind it
        self._cuts = 0
        self.saved = Checkpoint()
        self.confirm = self.master_flushed = 0
        self.half_cut: int | None = None
        self.is_end_lost = False

    def load(self) -> Checkpoint:
        self.saved = found = Checkpoint.load(self._path)
        self.confirm, self.master_flushed = found.confirm, found.master_flushed
        return found

    def begin(self, timestamp: int) -> BegunCheckpoint:
        if self._index is not None:
            self._index.mark(self._log.position)
        tails = [(queue, queue.max_offset) for queue in self._tails.dirty]
        return BegunCheckpoint(self._log.position, timestamp, self._tails.mark, tails, self._cuts)

    def steps(
        self, begun: BegunCheckpoint, build_index: Callable[[], object], flush: Callable[[], object]
    ) -> Steps[Callable[[], None]]:
        """Writes whatever tails nobody has written since it began; the function returned does the rest, in any thread.

        Args:
            build_index: puts some more keys into the index.
            flush: syncs the log; any thread.
        """
        index = self._index
        for number, (queue, end) in enumerate(begun.tails):
            if queue.written < end and queue in self._tails.dirty:
                self._tails.write(queue)
                yield
            elif number % 64 == 0:
                yield
        while index is not None and index.marked is None:
            build_index()
            yield
        nothing = (0, 0, self.saved.index_ms)
        name, count, index_ms = (index.marked if index is not None else None) or nothing
        point = Checkpoint(
            log_ms=begun.timestamp,
            queues_ms=begun.timestamp,
            index_ms=index_ms,
            master_flushed=self.master_flushed,
            confirm=self.confirm,
            safe_offset=begun.offset,
            index_name=name,
            index_count=count,
            mark=begun.mark,
            log_file_bytes=self._log.segments.size,
            queue_file_bytes=self._queue_files.file_bytes,
        )
        queue_paths = self._queue_files.take_unsynced()
        index_files = index.take_unsynced() if index is not None else []

        def finish() -> None:
            try:
                if self._log.flushed < begun.offset:
                    flush()
                with translated("checkpoint"):
                    self._queue_files.sync(queue_paths)
                    if index is not None:
                        index.sync(index_files)
                self._save(point, begun.cuts)
            except BaseException as error:
                # What was not synced is for the next checkpoint, or that would claim too much.
                self._queue_files.unsynced.update(queue_paths)
                if index is not None:
                    index.unsynced += index_files
                if isinstance(error, StoreError):
                    self._trouble.sync_failed(error)
                raise

        return finish

    def _save(self, point: Checkpoint, cuts: int) -> None:
        with self._saving:
            if cuts == self._cuts and self.half_cut is None:
                self._write(point)

    def _write(self, point: Checkpoint) -> None:
        point.is_end_lost = self.is_end_lost
        point.save(self._path, self._files)
        self.saved = point

    def forget_end_lost(self) -> None:
        """Somebody has noted it; raises StoreError if only the next checkpoint can say so."""
        with self._saving:
            self.is_end_lost = False
            if self.saved.is_end_lost:
                self._write(replace(self.saved))

    def lower(self, offset: int, point: Checkpoint | None) -> None:
        """For a log that is about to be cut at an offset: checkpoints begun before are void.

        Args:
            point: what holds for the part that stays; None if the last one speaks of no more than that.
        """
        with self._saving:
            self._cuts += 1
            if point is not None:
                self._write(point)
            self.half_cut = offset if self.half_cut is None else min(self.half_cut, offset)

    def cut_done(self, offset: int) -> None:
        """The cut at an offset has ended: checkpoints begun meanwhile are void.

        If an earlier one, at a lower offset, has not, queues still lack what the log has.
        """
        with self._saving:
            self._cuts += 1
            if self.half_cut is not None and offset <= self.half_cut:
                self.half_cut = None
