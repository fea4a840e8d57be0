"""The end of a log taken back: what a store does whose master does not have its last records.

After a crash at any moment the folder opens as before the cut, as after it, or with the records before some place in
between; never with entries or keys of records that are gone. The checkpoint is lowered first, then everything behind it
may go in any order, because recovery trusts nothing there. If the disk stops a cut half-way, that is a crash for the
next start, also if the store is closed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from gimbalmq._steps import Steps
from gimbalmq.errors import OutOfStepError, StoreError
from gimbalmq.model.queue_entry import ENTRY_BYTES
from gimbalmq.model.record import BLANK_BYTES, MAGIC_BLANK, START, check_record
from gimbalmq.store.checkpoint import Checkpoint, Checkpoints
from gimbalmq.store.commitlog import CommitLog
from gimbalmq.store.consumequeue import QueueFiles, QueueLog, entries_mark
from gimbalmq.store.deletions import decode_deletion
from gimbalmq.store.dispatcher import Dispatcher, LogScanner
from gimbalmq.store.index import KeyIndex
from gimbalmq.store.tails import QueueTails

_STEP = 256


class CutReport(NamedTuple):
    """What was cut off a log.

    Attributes:
        begin, end: the offsets between which it lay.
        records: how many.
        topics: how many of each topic.
    """

    begin: int
    end: int
    records: int
    topics: Mapping[str, int]


class Cutting:
    """Cuts one store's log, queues, index and checkpoint.

    Args:
        queues: all queues known at the time of the call.
        queue: the queue of a topic, made if there is none.
        forget: drops a topic's queues and returns them.
    """

    def __init__(
        self,
        log: CommitLog,
        queue_files: QueueFiles,
        tails: QueueTails,
        index: KeyIndex | None,
        checkpoints: Checkpoints,
        queues: Callable[[], Iterable[QueueLog]],
        queue: Callable[[str, int], QueueLog],
        forget: Callable[[str], Iterable[QueueLog]],
        delay_levels_ms: Mapping[int, int],
    ) -> None:
        self._log = log
        self._queue_files = queue_files
        self._tails = tails
        self._index = index
        self._checkpoints = checkpoints
        self._queues = queues
        self._queue = queue
        self._forget = forget
        self._levels = delay_levels_ms

    def steps(self, offset: int) -> Steps[CutReport]:
        """Cuts; nobody may append meanwhile.

        Raises:
            OutOfStepError: the offset is outside the log.
            StoreError: no record begins there, or the disk failed; then it may be tried again.
        """
        self._check(offset)
        log = self._log
        end = log.position
        topics: Counter[str] = Counter()
        deleted: set[str] = set()
        for number, found in enumerate(LogScanner(log.segments, offset, end)):
            topics[found.topic] += 1
            deletion = decode_deletion(found.topic, found.sys_flag, found.properties)
            if deletion is not None:
                deleted.add(deletion.topic)
            if number % _STEP == 0:
                yield
        ends = yield from self._ends(offset)
        self._lower(offset, ends, whole=bool(deleted))
        self._queue_files.stop_copies()
        for number, (queue, stop) in enumerate(ends.items()):
            if stop < queue.max_offset:
                self._tails.forget(queue)
                try:
                    self._cut_queue(queue, stop)
                finally:
                    self._tails.add(queue)
            if number % 16 == 0:
                yield
        if self._index is not None:
            self._index.cut(offset)
        yield from log.cut_steps(offset)
        for topic in deleted:
            self._forget(topic)
        if deleted:
            yield from self._dispatch_again(deleted)
        self._checkpoints.cut_done(offset)
        return CutReport(offset, end, topics.total(), dict(topics))

    def _check(self, offset: int) -> None:
        log = self._log
        if not log.min_offset <= offset <= log.position:
            raise OutOfStepError(offset, log.min_offset, log.position, "a cut")
        if offset == log.position or log.record_at(offset) is not None:
            return
        room = log.file_end(offset) - offset
        if room < BLANK_BYTES or log.read(offset, BLANK_BYTES) != START.pack(room, MAGIC_BLANK):
            segment = log.segments.at(offset)
            with memoryview(log.segments.map(segment)) as view:
                why = check_record(view, offset - segment.base, commitlog_offset=offset)
            raise StoreError(f"a cut at commit-log offset {offset}: no record begins there ({why})")

    def _ends(self, offset: int) -> Steps[dict[QueueLog, int]]:
        """Where each queue will end."""
        files, log = self._queue_files, self._log
        log.hint = -1
        ends: dict[QueueLog, int] = {}
        for number, queue in enumerate(list(self._queues())):
            end = queue.max_offset
            last = files.entry(queue, end - 1) if end > queue.first else None
            if last is not None and last[0] >= offset:
                end = files.first_where(queue, queue.first, end, lambda entry: entry[0] >= offset)
                last = files.entry(queue, end - 1) if end > queue.first else None
            ends[queue] = end
            if last is not None:
                log.hint = max(log.hint, last[0])
            if number % 16 == 0:
                yield
        return ends

    def _lower(self, offset: int, ends: Mapping[QueueLog, int], *, whole: bool) -> None:
        """Sees to it that the checkpoint speaks of nothing that is about to go.

        Args:
            whole: queues of topics that were deleted come back, so after a crash the whole log is to be read.
        """
        checkpoints, log = self._checkpoints, self._log
        saved = checkpoints.saved
        checkpoints.confirm = min(checkpoints.confirm, offset)
        if saved.safe_offset < offset and not whole:
            checkpoints.lower(offset, None)
            return
        point = Checkpoint(
            master_flushed=checkpoints.master_flushed,
            confirm=checkpoints.confirm,
            log_file_bytes=log.segments.size,
            queue_file_bytes=self._queue_files.file_bytes,
        )
        if not whole:
            name, count, index_ms = (0, 0, saved.index_ms)
            if self._index is not None:
                name, count, index_ms = self._index.place_before(offset)
            point.log_ms = point.queues_ms = saved.log_ms
            point.index_ms, point.index_name, point.index_count = index_ms, name, count
            point.safe_offset = offset
            point.mark = sum(entries_mark(queue, end) for queue, end in ends.items())
        checkpoints.lower(offset, point)

    def _cut_queue(self, queue: QueueLog, end: int) -> None:
        kept = bytes(queue.tail[: max(0, end - queue.written) * ENTRY_BYTES])
        low = min(queue.min_offset, end)
        # Also if only the tail is cut: another thread may have written a copy of it that nobody has heard of yet.
        self._queue_files.cut(queue, min(end, queue.written))
        queue.tail += kept
        queue.next_offset = queue.max_offset = end
        queue.min_offset = low

    def _dispatch_again(self, topics: set[str]) -> Steps[None]:
        """Gives the records of topics, whose deletion was cut away, their queue entries again."""
        log = self._log
        dispatcher = Dispatcher(
            self._queue, self._forget, self._queue_files, None, self._levels, index_batch=0
        )
        dispatcher.begins_late = log.min_offset > 0
        for number, found in enumerate(LogScanner(log.segments, log.min_offset, log.position)):
            deletion = decode_deletion(found.topic, found.sys_flag, found.properties)
            if (found.topic if deletion is None else deletion.topic) in topics:
                dispatcher.dispatch(found)
            if number % _STEP == 0:
                yield
        dispatcher.finish()
        for queue in self._queues():
            if queue.topic in topics:
                self._queue_files.correct_min(queue, log.min_offset)
                self._tails.add(queue)
