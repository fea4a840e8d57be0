"""Opening a folder: find the true end of the log, cut what is torn, make queues and index agree.

The log is the truth; queues and index are derived from it. While a store is open a file ``abort``
lies in the folder; if it is there at the next start, the last run ended without closing.

* Closed properly: the queues' last entries lead to the last record; from there the log is checked
  and anything not yet in a queue is dispatched (also after somebody deleted ``consumequeue/``).
* Crashed: nothing written after the last checkpoint is trusted. Every queue is cut to what lay
  before it, the index likewise, and all valid records behind are dispatched anew: no gap and no
  entry twice, whatever had or had not reached the disk. Our checkpoint says exactly where that is;
  Java's only says when, so after a crash of Java's broker whole files are scanned, as Java does.

The scan ends at the first record that is not whole. Everything behind is wiped, so that a torn tail
cannot become readable once new records have been written up to it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from gimbalmq.model.record import check_record
from gimbalmq.store.commitlog import CommitLog
from gimbalmq.store.consumequeue import QueueFiles, QueueLog
from gimbalmq.store.dispatcher import Dispatcher, LogScanner, read_found
from gimbalmq.store.files import Files, sparse_data_end, translated
from gimbalmq.store.index import KeyIndex
from gimbalmq.store.results import RecoveryReport

CHECKPOINT_BYTES = 4096
_FIELDS = struct.Struct(">5q")
# Ours, in the part of the file Java leaves alone: valid while the times before it are those it repeats,
# which no longer holds once a Java broker has worked in the folder.
_OURS = struct.Struct(">8s6q")
_OURS_AT = 64
_MAGIC = b"GIMBALMQ"
_SAFETY_MS = 3000


@dataclass(slots=True)
class Checkpoint:
    """The file ``checkpoint``: up to when, and in ours up to where, everything is on the disk."""

    log_ms: int = 0
    queues_ms: int = 0
    index_ms: int = 0
    master_flushed: int = 0
    confirm: int = 0
    safe_offset: int = -1
    index_name: int = 0
    index_count: int = 0

    @property
    def min_ms(self) -> int:
        return max(0, min(self.log_ms, self.queues_ms) - _SAFETY_MS)

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return cls()
        if len(data) < _FIELDS.size:
            return cls()
        found = cls(*_FIELDS.unpack_from(data))
        if len(data) >= _OURS_AT + _OURS.size + 4:
            magic, log_ms, queues_ms, index_ms, safe, name, count = _OURS.unpack_from(data, _OURS_AT)
            whole = crc32(data[_OURS_AT : _OURS_AT + _OURS.size]).to_bytes(4, "big")
            same = (log_ms, queues_ms, index_ms) == (found.log_ms, found.queues_ms, found.index_ms)
            if magic == _MAGIC and same and data[_OURS_AT + _OURS.size :][:4] == whole:
                found.safe_offset, found.index_name, found.index_count = safe, name, count
        return found

    def save(self, path: Path, files: Files) -> None:
        """Writes in place, as Java does: it keeps the file mapped."""
        data = bytearray(CHECKPOINT_BYTES)
        times = (self.log_ms, self.queues_ms, self.index_ms)
        _FIELDS.pack_into(data, 0, *times, self.master_flushed, self.confirm)
        _OURS.pack_into(data, _OURS_AT, _MAGIC, *times, self.safe_offset, self.index_name, self.index_count)
        end = _OURS_AT + _OURS.size
        data[end : end + 4] = crc32(data[_OURS_AT:end]).to_bytes(4, "big")
        with translated(path):
            fd = files.open(path, create=True)
            try:
                files.write_at(fd, data, 0)
                files.sync(fd)
            finally:
                files.close(fd)


class Recovery:
    """One start. ``run`` leaves log, queues and index in agreement."""

    def __init__(
        self,
        log: CommitLog,
        queue_files: QueueFiles,
        index: KeyIndex | None,
        checkpoint: Checkpoint,
        report: RecoveryReport,
    ) -> None:
        self._log = log
        self._queue_files = queue_files
        self._index = index
        self._checkpoint = checkpoint
        self._report = report
        self.last_timestamp = 0

    def run(self, queues: Callable[[], Iterable[QueueLog]], dispatcher: Dispatcher) -> None:
        """Recovers.

        Args:
            queues: all queues known at the time of the call.
            dispatcher: where valid records go.
        """
        log, report = self._log, self._report
        segments = log.segments
        start = self._start_of_clean() if report.clean else self._start_after_crash()
        if not report.clean:
            for queue in queues():
                self._cut_to(queue, start)
        report.scan_start = start
        scanner = LogScanner(segments, start)
        for found in scanner:
            dispatcher.dispatch(found)
        report.records_scanned = scanner.records
        report.end_reason = scanner.reason
        end = scanner.end
        report.truncated_bytes = self._garbage_behind(end)
        log.flushed = end if report.clean else start
        if report.truncated_bytes or segments.end > end + segments.size:
            log.wipe_behind(end)
        log.position = end
        for queue in queues():
            if report.clean:
                self._cut_overhang(queue, end)
            self._queue_files.correct_min(queue, log.min_offset)
        self._queue_files.last_entries.clear()
        dispatcher.write()
        if self._index is not None:
            self._index.build()
            self._index.forget_behind(end)
        report.redispatched = dispatcher.added
        self.last_timestamp = dispatcher.last_timestamp or self._checkpoint.log_ms

    # --- where to begin ----------------------------------------------------------------------

    def _start_of_clean(self) -> int:
        """Behind the last record any queue knows, if that record is there."""
        segments = self._log.segments
        last = (-1, 0)
        for entry in self._queue_files.last_entries.values():
            if entry[0] > last[0]:
                last = (entry[0], entry[1])
        if last[0] < segments.first_base:
            return segments.first_base
        if last[0] < segments.end:
            segment = segments.at(last[0])
            with memoryview(segments.map(segment)) as view:
                if check_record(view, last[0] - segment.base, commitlog_offset=last[0]) is None:
                    # what lies between is in no queue any more because its topic was deleted
                    safe = self._checkpoint.safe_offset
                    return max(last[0] + last[1], safe if safe <= segments.end else 0)
        self._report.notes.append(f"the queues end at {last[0]}, where the log has no record")
        return segments[max(0, len(segments) - 3)].base

    def _start_after_crash(self) -> int:
        segments, checkpoint = self._log.segments, self._checkpoint
        if self._index is not None:
            self._index.rewind(checkpoint.index_ms, checkpoint.index_name, checkpoint.index_count)
        if segments.first_base <= checkpoint.safe_offset <= segments.end:
            return checkpoint.safe_offset
        indexed = self._index.end_offset if self._index is not None else segments.end
        for number in range(len(segments) - 1, -1, -1):
            segment = segments[number]
            with memoryview(segments.map(segment)) as view:
                if check_record(view, 0, commitlog_offset=segment.base) is None:
                    stored = read_found(view, 0, segment.base).store_timestamp
                    if 0 < stored <= checkpoint.min_ms and segment.base <= indexed:
                        return segment.base
        return segments.first_base

    # --- cutting -----------------------------------------------------------------------------

    def _cut_to(self, queue: QueueLog, start: int) -> None:
        """Leaves the entries that point below ``start``; unsynced ones may be anything, also zeros."""
        queue.written = self._queue_files.file_end(queue)
        first = self._queue_files.first_where(
            queue, queue.first, queue.written, lambda e: not (0 <= e[0] < start and e[1] > 0)
        )
        self._queue_files.cut(queue, first)

    def _cut_overhang(self, queue: QueueLog, end: int) -> None:
        entry = self._queue_files.last_entries.get(queue)
        if entry is not None and entry[0] + entry[1] > end and entry[0] > 0:
            first = self._queue_files.first_where(
                queue, queue.first, queue.max_offset, lambda e: e[0] + e[1] > end and e[0] > 0
            )
            self._queue_files.cut(queue, first)

    def _garbage_behind(self, end: int) -> int:
        segments = self._log.segments
        total = 0
        for number in range(len(segments)):
            segment = segments[number]
            start = max(end - segment.base, 0)
            if start < segments.size:
                total += sparse_data_end(segments.descriptor(segment), start, segments.size) - start
        return total
