"""The removal of old files: of the log, then of what in queues and index pointed there.

``retention`` decides how many files may go. Whoever still needs something in them is asked first. Forgetting is done
by the store's thread, in steps; the removal from the disk in any thread, because giving a gigabyte back takes long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gimbalmq._steps import Steps
from gimbalmq.store.commitlog import CommitLog
from gimbalmq.store.consumequeue import QueueFiles, QueueLog
from gimbalmq.store.files import translated
from gimbalmq.store.index import KeyIndex
from gimbalmq.store.index_file import IndexFile
from gimbalmq.store.results import CleanReport
from gimbalmq.store.segments import Segment

Keeper = Callable[[int], int]
"""Asked before the log's files below an offset go: below which offset they may go already."""


class Expiry:
    """What has been forgotten of one store, and what of it is still on the disk.

    Attributes:
        trimmed_to: queues name no record before this offset.
    """

    def __init__(self, log: CommitLog, queue_files: QueueFiles, index: KeyIndex | None) -> None:
        self._log = log
        self._queue_files = queue_files
        self._index = index
        self._segments: list[Segment] = []
        self._index_files: list[IndexFile] = []
        self.trimmed_to = 0

    def may_go(self, count: int, keepers: Iterable[Keeper]) -> int:
        """How many of the log's first ``count`` files hold nothing that somebody still has to save."""
        if not count:
            return 0
        size, first = self._log.segments.size, self._log.min_offset
        limit = first + count * size
        for keeper in keepers:
            limit = min(limit, keeper(limit))
        return max(0, (limit - first) // size)

    def steps(self, drop: int, queues: Callable[[], Iterable[QueueLog]]) -> Steps[CleanReport]:
        """Forgets the log's first ``drop`` files; ``remove`` is to follow. What an error left undone is done next time.

        Args:
            queues: all queues known at the time of the call.
        """
        report = CleanReport()
        if drop:
            dropped = self._log.drop_first(drop)
            self._segments += dropped
            report.commitlog_files = len(dropped)
        log_min = self._log.min_offset
        if self.trimmed_to >= log_min:
            return report
        for number, queue in enumerate(list(queues())):
            if queue.min_place < log_min and not queue.gone:
                self._queue_files.correct_min(queue, log_min)
                yield
                while self._queue_files.drop_expired(queue):
                    report.queue_files += 1
                    yield
            elif number % 64 == 0:
                yield
        if self._index is not None:
            expired = self._index.drop_expired(log_min)
            self._index_files += expired
            report.index_files = len(expired)
        self.trimmed_to = log_min
        return report

    @property
    def has_forgotten(self) -> bool:
        """Whether forgotten files are still on the disk."""
        return bool(self._segments or self._index_files)

    def remove(self) -> None:
        """Removes what was forgotten; raises StoreError, and then the rest waits for the next time. Any thread."""
        with translated("removal of expired files"):
            while self._segments:
                self._log.segments.discard(self._segments[0])
                del self._segments[0]
            while self._index_files:
                self._index_files[0].remove()
                del self._index_files[0]

    def abandon(self) -> None:
        """Lets go of the files that are still open."""
        for segment in self._segments:
            self._log.segments.release(segment)
