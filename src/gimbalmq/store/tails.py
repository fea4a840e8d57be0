"""Queue entries that are only in memory: which queues have some, how many there are, how they reach the files."""

from __future__ import annotations

from collections.abc import Iterable

from gimbalmq._steps import Steps
from gimbalmq.errors import StoreError
from gimbalmq.store.consumequeue import QueueFiles, QueueLog, TailCopies, entries_mark
from gimbalmq.store.files import store_error
from gimbalmq.store.trouble import Trouble


class QueueTails:
    """The tails of all queues of a store.

    Attributes:
        dirty: queues with entries that are only in memory.
        unwritten: how many such entries there are.
        mark: of all queues and their ends (see ``entries_mark``).
    """

    def __init__(self, files: QueueFiles, trouble: Trouble) -> None:
        self._files = files
        self._trouble = trouble
        self.dirty: set[QueueLog] = set()
        self.unwritten = 0
        self.mark = 0

    def count(self, queues: Iterable[QueueLog], dirty: set[QueueLog]) -> None:
        """Begins with queues as recovery has left them."""
        self.dirty = dirty
        self.unwritten = sum(queue.max_offset - queue.written for queue in dirty)
        self.mark = sum(entries_mark(queue, queue.max_offset) for queue in queues)

    def forget(self, queue: QueueLog) -> None:
        """Takes a queue's entries from the sums: it is deleted, or ``add`` is to follow when it has changed."""
        self.unwritten -= queue.max_offset - queue.written
        self.mark -= entries_mark(queue, queue.max_offset)
        self.dirty.discard(queue)

    def add(self, queue: QueueLog) -> None:
        """Takes a queue's entries into the sums."""
        waiting = queue.max_offset - queue.written
        self.unwritten += waiting
        self.mark += entries_mark(queue, queue.max_offset)
        if waiting:
            self.dirty.add(queue)

    def write(self, queue: QueueLog) -> None:
        """Writes a queue's entries; raises StoreError, and then they stay in memory, and the store is read-only."""
        before = queue.written
        try:
            self._files.write_tail(queue)
        except OSError as error:
            failure = store_error(error, f"consume queue of {queue.topic}-{queue.queue_id}")
            self._trouble.write_failed(failure)
            raise failure from error
        self.unwritten -= queue.written - before
        self.dirty.discard(queue)

    def write_some(self, max_queues: int | None) -> int:
        """Writes the entries of so many queues (None: of all); how many had some. Raises StoreError."""
        done = 0
        while self.dirty and done != max_queues:
            queue = self.dirty.pop()  # not next(iter()), which would step over all that went before
            try:
                self.write(queue)
            except StoreError:
                self.dirty.add(queue)
                raise
            done += 1
        return done

    def copies(self, least: int) -> Steps[TailCopies]:
        """Copies for another thread to write, of queues with so many entries; then ``written``."""
        copies = TailCopies(self._files)
        for number, queue in enumerate(list(self.dirty)):
            if queue.max_offset - queue.written >= least:
                copies.add(queue)
            if number % 64 == 0:
                yield
        return copies

    def written(self, copies: TailCopies) -> Steps[None]:
        """Forgets from memory what the copies brought to the files; raises StoreError if that is not all of it."""
        for number, (queue, count) in enumerate(copies.written()):
            self.unwritten -= count
            if queue.written == queue.max_offset:
                self.dirty.discard(queue)
            if number % 64 == 0:
                yield
        if copies.failure is not None:
            self._trouble.write_failed(copies.failure)
            raise copies.failure
