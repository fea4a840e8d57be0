"""One question for a key: candidates from the index, then a look at the records themselves.

The two halves take turns because they belong to different threads: the index's files are read from the disk and may
be large, the log belongs to the store's thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from gimbalmq._steps import Steps
from gimbalmq.store.consumequeue import QueueFiles, QueueLog
from gimbalmq.store.reader import Reader

_BATCH = 64
_MOST_CANDIDATES = 4096
"""Records looked at for one answer; Apache looks at as many as were asked for, and answers with fewer."""
_MOST_BYTES = 8 * 1024 * 1024
"""Of an answer, unless one record is larger; a frame holds 16 MB."""


class KeyQuery:
    """Call ``search`` (any thread) and ``check`` (the store's thread) in turns until ``done``.

    Attributes:
        records: found so far, newest first.
        done: nothing more will be found.
    """

    def __init__(
        self,
        places: Iterable[int],
        reader: Reader,
        topic: str,
        key: str,
        limit: int,
        begin_ms: int,
        end_ms: int,
        floor: int,
    ) -> None:
        self._found: Iterator[int] = iter(places)
        self._reader = reader
        self._wanted = (topic, key, begin_ms, end_ms)
        self._limit = limit
        self._floor = floor
        self._seen: set[int] = set()
        self._batch: list[int] = []
        self._bytes = 0
        self.records: list[bytes] = []
        self.done = limit <= 0

    def search(self) -> None:
        """Reads the index until there are some candidates."""
        batch = list(islice(self._found, _BATCH))
        # what is older belonged to a topic of the same name, which was deleted
        self.done = len(batch) < _BATCH or batch[-1] < self._floor
        self._batch = [
            place for place in dict.fromkeys(batch) if place >= self._floor and place not in self._seen
        ]
        self._seen.update(self._batch)  # the same key twice in one message

    def check(self) -> Steps[None]:
        """Looks at the candidates."""
        for data in self._reader.holders_of(self._batch, *self._wanted):
            if data is not None:
                self._bytes += len(data)
                if self.records and self._bytes > _MOST_BYTES:
                    self.done = True
                    return
                self.records.append(data)
                if len(self.records) >= self._limit:
                    self.done = True
                    return
            yield
        if len(self._seen) >= _MOST_CANDIDATES:
            self.done = True


def begin_of(queues: Iterable[QueueLog], files: QueueFiles, log_end: int) -> Steps[int]:
    """Where in the log the oldest message of a topic lies; the index also knows those of one deleted before."""
    begin = log_end
    for number, queue in enumerate(list(queues)):
        if queue.min_offset < queue.max_offset and not queue.gone:
            place = queue.min_place
            if place < 0:  # not looked for yet
                entry = files.entry(queue, queue.min_offset)
                if entry is not None:
                    place = queue.min_place = entry[0]
                yield
            if place >= 0:
                begin = min(begin, place)
        if number % 64 == 0:
            yield
    return begin
