"""The log of a master, taken over byte by byte: how a store follows another one.

What arrives is cut anywhere, also inside a record. Whole records are written, and get their queue entries and keys,
as soon as their last byte is there. The bytes of one that is not whole wait in memory: so no file ever holds half a
record because of where a packet ended, and a store that begins to lead has nothing to wipe.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from gimbalmq.errors import DamagedCopyError, OutOfStepError, StoreError
from gimbalmq.model.flags import INNER_BATCH, TRANSACTION_MASK
from gimbalmq.model.queue_entry import ENTRY, tags_code
from gimbalmq.model.record import (
    BLANK_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD,
    PHYSICAL_OFFSET_AT,
    START,
    check_record,
)
from gimbalmq.model.topics import SCHEDULE_TOPIC
from gimbalmq.store.append import IndexItem, KeyRun
from gimbalmq.store.commitlog import CommitLog
from gimbalmq.store.consumequeue import QueueFiles, QueueLog, entries_mark
from gimbalmq.store.dispatcher import LIKELY_TIMES, Dispatcher, Found, Place, read_found, read_plain
from gimbalmq.store.index import KeyIndex
from gimbalmq.store.tails import QueueTails
from gimbalmq.store.trouble import Trouble

if TYPE_CHECKING:
    from gimbalmq.store.receive_vectors import Run

logger = logging.getLogger(__name__)

_UNUSUAL_FLAGS = TRANSACTION_MASK | INNER_BATCH
_LOOKED_AT = PHYSICAL_OFFSET_AT + 8
"""So many bytes of a record tell whether it may be one."""
_VECTORS_FROM = 64
"""Up to so many records numpy's calls cost more than the records do."""
_SINGLES = 32
_MOST_STEPS = 2048
"""So much is taken in at once, which is a few milliseconds."""
_RUN_STEPS = 128
"""What a run costs beside its records, in records."""
_SINGLE_STEPS = 4
"""What a record costs that is looked at alone, in records of a run."""
_SIZES_DIFFER = (
    "is mappedFileSizeCommitLog the same at both brokers? It must be; then wipe this store's folder"
)
Committed = Callable[[list[QueueLog], "list[IndexItem | KeyRun] | None", int], None]


class _Whole(NamedTuple):
    """The whole records at the begin of some bytes.

    Attributes:
        size: bytes of all of them, blank ends of files included.
        damage: why what follows is no record, None if it may become one.
        last: where in the log the last one begins, -1 if there is none.
        is_all: False if what follows was not looked at.
    """

    size: int
    found: list[Found | Run]
    damage: DamagedCopyError | None
    last: int
    is_all: bool


class LiveDispatcher(Dispatcher):
    """Gives records their entries in a store that is open: as part of its commits, visible at once.

    If a record's queue offset does not follow the queue's last one, its entry waits for the next record only if that
    offset is unlikely (``Dispatcher.settle``).
    """

    def __init__(
        self,
        queue: Callable[[str, int], QueueLog],
        forget: Callable[[str], Iterable[QueueLog]],
        queue_files: QueueFiles,
        index: KeyIndex | None,
        delay_levels_ms: Mapping[int, int],
        tails: QueueTails,
        committed: Committed,
    ) -> None:
        super().__init__(queue, forget, queue_files, index, delay_levels_ms, index_batch=0)
        self._tails = tails
        self._committed = committed
        self._touched: dict[QueueLog, None] = {}
        self._items: list[IndexItem | KeyRun] = []
        self.grown: dict[QueueLog, None] = {}

    @property
    def has_parked(self) -> bool:
        return bool(self._parked)

    def dispatch(self, found: Found) -> None:
        place, size, topic, queue_id, queue_offset, sys_flag, stored, properties = found
        if (
            not sys_flag & _UNUSUAL_FLAGS
            and topic != SCHEDULE_TOPIC
            and LIKELY_TIMES[0] < stored < LIKELY_TIMES[1]
            and not self._parked
            and not self._anew
        ):
            # Nearly all are of this kind, and each call that is saved here counts.
            try:
                queue = self._queue(topic, queue_id)
            except StoreError:
                queue = None  # below it is noted why
            if queue is not None and queue.next_offset == queue_offset:
                self.last_timestamp = stored
                queue.tail += ENTRY.pack(place, size, tags_code(properties))
                queue.next_offset = queue_offset + 1
                self._touched[queue] = None
                if self._index is not None:
                    self._items.append((topic, properties, place, stored))
                return
        super().dispatch(found)

    def dispatch_run(self, run: Run) -> None:
        """``dispatch`` for all records of a run."""
        from gimbalmq.store import receive_vectors

        self.last_timestamp = int(run.times[-1])
        without: list[int] = []
        for part in receive_vectors.by_queue(run, self._levels):
            try:
                queue = self._queue(part.topic, part.queue_id)
            except StoreError as error:
                for place, _, _ in ENTRY.iter_unpack(part.entries):
                    self._note(place, str(error))
                    without.append(place)
                continue
            if part.follow and part.first == queue.next_offset and not self._parked and not self._anew:
                queue.tail += part.entries
                queue.next_offset += len(part.offsets)
                self._touched[queue] = None
                continue
            for number, entry in zip(part.offsets.tolist(), ENTRY.iter_unpack(part.entries), strict=True):
                self._enter(queue, (number, *entry))
        if self._index is not None and (keys := run.keys(without)) is not None:
            self._items.append(keys)

    def _append(self, queue: QueueLog, place: Place) -> None:
        begins_late = not queue.next_offset and place[0] > 0
        self._queue_files.place(queue, *place)
        if begins_late:
            self._tails.mark += entries_mark(queue, queue.first)  # as if the entries before had been there
            queue.min_offset, queue.min_place = place[:2]
        self._touched[queue] = None

    def _index_later(self, item: IndexItem, index: KeyIndex) -> None:
        self._items.append(item)

    def _clear(self, queue: QueueLog) -> None:
        self.commit()
        self._tails.forget(queue)
        super()._clear(queue)

    def _delete(self, found: Found) -> None:
        self.commit()
        super()._delete(found)

    def commit(self) -> None:
        """Shows what was dispatched so far."""
        touched, items = list(self._touched), self._items
        self.grown.update(self._touched)
        self._touched, self._items = {}, []
        self._committed(touched, items, self.last_timestamp)

    def take_notes(self) -> list[str]:
        taken, self.notes = self.notes, []
        return taken


class Following:
    """A store's state while it follows."""

    def __init__(self, log: CommitLog, dispatcher: LiveDispatcher, trouble: Trouble) -> None:
        self._log = log
        self._dispatcher = dispatcher
        self._trouble = trouble
        self._partial = bytearray()

    @property
    def received(self) -> int:
        """End of the bytes we have, which may lie inside a record."""
        return self._log.position + len(self._partial)

    def forget_partial(self) -> None:
        """Gives up the bytes of a record that is not whole."""
        self._partial = bytearray()
        if not len(self._log.segments):
            self._log.begin_at(0)  # nothing was written yet, so the log may begin anywhere

    def end(self) -> None:
        """Decides what waits for a decision: no more will come."""
        self.forget_partial()
        self._dispatcher.settle()
        self._dispatcher.commit()
        self._dispatcher.finish()
        self._tell()

    def receive(
        self, offset: int, data: bytes | bytearray | memoryview, written: Callable[[], None]
    ) -> list[QueueLog]:
        """See ``MessageStore.receive``."""
        log = self._log
        begins = not len(log.segments) and not self._partial
        if begins and offset % log.segments.size:
            whole_file = f"bytes for an empty log, which begins with a file of {log.segments.size} bytes,"
            raise OutOfStepError(offset, 0, 0, whole_file)
        if not begins and offset != self.received:
            raise OutOfStepError(offset, log.min_offset, self.received, "bytes came")
        if not len(data):
            return []
        self._trouble.check(making_room=True)
        if begins:
            log.begin_at(offset)
        if self._needs_more(len(data)):
            self._partial += data
            return []
        block = b"".join((self._partial, data)) if self._partial else bytes(data)
        whole = self._scan(block, log.position)
        if whole.size:
            self._write(memoryview(block)[: whole.size])
        # What was not looked at is not taken, and comes again.
        self._partial = bytearray(block[whole.size :]) if whole.is_all else bytearray()
        try:
            if whole.size and whole.damage is None:
                written()
        finally:  # whatever that does, what the log has gets its entries
            grown = self._dispatch(whole) if whole.size else []
        if whole.damage is not None:
            self.forget_partial()
            raise whole.damage
        return grown

    def _needs_more(self, size: int) -> bool:
        """Whether the record that has begun goes on behind so many further bytes: it was looked at when it began."""
        had = len(self._partial)
        if had < _LOOKED_AT:
            return False
        total, _ = START.unpack_from(self._partial)
        return had + size < int(total)

    def _scan(self, block: bytes, start: int) -> _Whole:
        log = self._log
        position, last = 0, -1
        view = memoryview(block)
        found: list[Found | Run] = []
        end = len(block)
        singly = steps = 0
        patience, most = _SINGLES, _MOST_STEPS
        file_end = log.file_end(start)
        why: str | None = None
        while end - position >= BLANK_BYTES and steps < _MOST_STEPS:
            offset = start + position
            if offset >= file_end:
                file_end = log.file_end(offset)
            room = file_end - offset
            total, magic = START.unpack_from(block, position)
            if magic == MAGIC_BLANK:
                if total != room:
                    why = f"the end of a file, {total} bytes before it ends; ours ends after {room}: {_SIZES_DIFFER}"
                    break
                if end - position < room:
                    break
                position += room
                continue
            if magic not in (MAGIC_V1, MAGIC_V2):
                why = f"magic {magic:#010x} is no message"
                break
            if total < MIN_RECORD:
                why = f"size {total} is less than the {MIN_RECORD} bytes of the smallest record"
                break
            if total + BLANK_BYTES > room:
                why = f"{total} bytes do not fit the {room} that are left of our file: {_SIZES_DIFFER}"
                break
            if end - position < total:
                if end - position >= _LOOKED_AT:
                    says = int.from_bytes(block[position + PHYSICAL_OFFSET_AT :][:8], "big", signed=True)
                    if says != offset:
                        why = f"it says that it lies at {says}"
                break
            if singly:
                singly -= 1
            elif end - position >= _VECTORS_FROM * total:
                from gimbalmq.store import receive_vectors

                most = min(most, _MOST_STEPS - steps)
                run = receive_vectors.read_run(block, position, offset, file_end, most)
                count = 0 if run is None else len(run.places)
                large = 0 if run is None else run.texts.units.size // receive_vectors.STEP_BYTES
                steps += _RUN_STEPS + max(count, large)
                # If another kind has ended this run, another one may end the next: all behind it is read in vain.
                most = max(_RUN_STEPS, 2 * count)
                if run is not None:
                    found.append(run)
                    position += run.size
                    last = run.last
                if count >= _SINGLES:
                    patience = _SINGLES
                else:  # records of all kinds: for a while one by one is quicker
                    singly, patience = patience, patience * 2
                if run is not None:
                    continue
            one = read_plain(view, position, offset)
            if one is None:
                why = check_record(view[: position + total], position, commitlog_offset=offset)
                if why is not None:
                    break
                one = read_found(view, position, offset)
            found.append(one)
            last = offset
            position += total
            steps += _SINGLE_STEPS
        damage = None if why is None else DamagedCopyError(start + position, why)
        return _Whole(position, found, damage, last, steps < _MOST_STEPS)

    def _write(self, block: memoryview) -> None:
        log = self._log
        start, position = log.position, 0
        chunks: list[tuple[int, list[bytes | memoryview]]] = []
        while position < len(block):
            stop = min(log.file_end(start + position) - start, len(block))
            chunks.append((start + position, [block[position:stop]]))
            position = stop
        try:
            log.write(chunks)
        except StoreError as error:
            self._trouble.write_failed(error)
            if not self._partial:
                self.forget_partial()
            raise

    def _dispatch(self, whole: _Whole) -> list[QueueLog]:
        dispatcher = self._dispatcher
        dispatcher.begins_late = self._log.min_offset > 0
        dispatcher.grown = {}
        for one in whole.found:
            if isinstance(one, Found):
                dispatcher.dispatch(one)
            else:
                dispatcher.dispatch_run(one)
        if whole.last >= 0:
            self._log.hint = whole.last
        if dispatcher.has_parked:
            dispatcher.settle()
        dispatcher.commit()
        self._tell()
        return list(dispatcher.grown)

    def _tell(self) -> None:
        for note in self._dispatcher.take_notes():
            logger.warning("%s", note)
