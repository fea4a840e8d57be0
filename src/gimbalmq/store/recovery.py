"""Opening a folder: find the true end of the log, cut what is torn, make queues and index agree.

The log is the truth; queues and index are derived from it. While a store is open a file ``abort``
lies in the folder; if it is there at the next start, the last run ended without closing.

* Closed properly: the checkpoint leads to the log's end. A folder of Java's has no such mark: there the
  queues' last entries lead to the last record, and anything behind is checked and dispatched.
* Crashed: nothing written after the last checkpoint is trusted. Every queue is cut to what lay
  before it, the index likewise, and all valid records behind are dispatched anew: no gap and no
  entry twice, whatever had or had not reached the disk. Our checkpoint says exactly where that is;
  Java's only says when, so after a crash of Java's broker whole files are scanned, as Java does.

A checkpoint is believed as far as the folder bears it out: if queues or index files it speaks of are gone, or
shorter, the whole log is read and what is missing is made again. Deletions of topics are records of the log
themselves (see ``deletions``), so that reading from any place gives the same queues.

The scan ends at the first record that is not whole. Everything behind is wiped, so that a torn tail
cannot become readable once new records have been written up to it. Below the checkpoint nothing is cut: what is
not whole there was damaged later, and costs that record only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from zlib import crc32

from gimbalmq.model.flags import enters_queue
from gimbalmq.model.record import check_record
from gimbalmq.store.checkpoint import MARK_BITS, Checkpoint
from gimbalmq.store.commitlog import CommitLog
from gimbalmq.store.consumequeue import QueueFiles, QueueLog, entries_mark
from gimbalmq.store.deletions import decode_deletion
from gimbalmq.store.dispatcher import Dispatcher, LogScanner, read_found
from gimbalmq.store.files import sparse_data_end
from gimbalmq.store.index import KeyIndex
from gimbalmq.store.results import RecoveryReport

_NOTES = 20


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
        durable = self._checkpoint.safe_offset
        if not segments.first_base <= durable <= segments.end:
            durable = -1
        start = self._find_start(list(queues()), durable)
        dispatcher.build_index()  # nothing waits yet, but what a crash left of it may need mending
        report.scan_start = start
        dispatcher.begins_late = segments.first_base > 0 or durable < 0
        scanner = LogScanner(segments, start, durable)
        for found in scanner:
            dispatcher.dispatch(found)
        report.records_scanned = scanner.records
        report.end_reason = scanner.reason
        end = scanner.end
        report.truncated_bytes = self._garbage_behind(end)
        log.flushed = end if report.clean else max(start, min(durable, end))
        if report.truncated_bytes or segments.end > end + segments.size:
            log.wipe_behind(end)
        log.position = end
        dispatcher.finish()
        for queue in queues():
            if report.clean:
                self._cut_overhang(queue, end)
            self._queue_files.correct_min(queue, log.min_offset)
        log.hint = max((entry[0] for entry in self._queue_files.last_entries.values()), default=-1)
        self._queue_files.last_entries.clear()
        if self._index is not None:
            dispatcher.build_index()
            self._index.forget_behind(end)
        report.redispatched = dispatcher.added
        for offset, why in scanner.damaged[:_NOTES]:
            report.notes.append(f"the commit log is damaged at {offset}: {why}; passed over")
        if len(scanner.damaged) > _NOTES:
            report.notes.append(f"and at {len(scanner.damaged) - _NOTES} more places")
        report.notes += dispatcher.notes
        self.last_timestamp = dispatcher.last_timestamp or self._checkpoint.log_ms

    # --- where to begin ----------------------------------------------------------------------

    def _find_start(self, queues: list[QueueLog], durable: int) -> int:
        report, checkpoint = self._report, self._checkpoint
        if not report.clean:
            if self._index is not None:
                self._index.rewind(checkpoint.index_ms, checkpoint.index_name, checkpoint.index_count)
            start = durable if durable >= 0 else self._start_after_crash()
            for queue in queues:
                self._cut_to(queue, start)
        else:
            start = durable if durable >= 0 else self._start_of_clean()
        missing = self._missing(queues, durable)
        if missing is not None:
            report.notes.append(f"{missing}: the whole log is read to make them again")
            return self._log.segments.first_base
        return start

    def _missing(self, queues: list[QueueLog], durable: int) -> str | None:
        """What is gone of the things the checkpoint speaks of."""
        checkpoint, index = self._checkpoint, self._index
        if self._queue_files.damaged:
            return "queue files are damaged"
        if durable < 0:
            return None if queues else "there are no queues"
        if not self._bears_out(queues, durable):
            return "queues are gone, or entries of theirs"
        if index is not None and checkpoint.index_name:
            newest = index.files[-1] if index.files else None
            place = (0, 0) if newest is None else (int(newest.path.name), newest.count)
            if place < (checkpoint.index_name, checkpoint.index_count):
                return "index files are gone"
        return None

    def _bears_out(self, queues: list[QueueLog], durable: int) -> bool:
        """Whether the queues are those of the checkpoint, but for topics that were deleted since."""
        wanted = self._checkpoint.mark
        if sum(entries_mark(queue, queue.max_offset) for queue in queues) & MARK_BITS == wanted:
            return True
        since: dict[str, int] = {}  # what topics' queues got behind the checkpoint
        gone: dict[str, int] = {}  # and what those of deleted topics had before it
        for found in LogScanner(self._log.segments, durable):
            deletion = decode_deletion(found.topic, found.sys_flag, found.properties)
            if deletion is not None:
                name = deletion.topic
                gone[name] = gone.get(name, 0) + deletion.entries_mark - since.pop(name, 0)
            elif enters_queue(found.sys_flag):
                queue_mark = crc32(found.topic.encode(), found.queue_id & 0xFFFFFFFF)
                since[found.topic] = since.get(found.topic, 0) + queue_mark
        kept = sum(entries_mark(queue, queue.max_offset) for queue in queues if queue.topic not in gone)
        return (kept + sum(gone.values())) & MARK_BITS == wanted

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
                    return last[0] + last[1]
        self._report.notes.append(f"the queues end at {last[0]}, where the log has no record")
        return segments[max(0, len(segments) - 3)].base

    def _start_after_crash(self) -> int:
        """By Java's checkpoint, which says when, not where."""
        segments, checkpoint = self._log.segments, self._checkpoint
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
