"""From the log to queues and index: how a record found on disk gets its entries again.

A running store does this as part of the commit, with what the sender gave. Here the same is derived
from the record alone, for recovery and for whatever else reads the log in order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from gimbalmq.errors import StoreError
from gimbalmq.model import properties as prop
from gimbalmq.model.crc import crc32
from gimbalmq.model.flags import HOST_BITS, INNER_BATCH, enters_index, enters_queue
from gimbalmq.model.queue_entry import tags_code
from gimbalmq.model.record import (
    BLANK_BYTES,
    BODY_SIZE_AT,
    CRC_MASK,
    HEAD_BYTES,
    HEADS,
    HOST_BITS_AT,
    MAGIC_AT,
    MAGIC_BLANK,
    MAGIC_START,
    MAGIC_V1,
    MIN_RECORD,
    Head,
    check_record,
    find_property,
)
from gimbalmq.model.topics import SCHEDULE_TOPIC
from gimbalmq.store.append import IndexItem
from gimbalmq.store.consumequeue import QueueFiles, QueueLog
from gimbalmq.store.deletions import DELETION_TOPIC, decode_deletion
from gimbalmq.store.files import passes, store_error
from gimbalmq.store.index import KeyIndex
from gimbalmq.store.segments import Segments

_FLUSH_EVERY = 100_000
_DELAY = prop.DELAY.encode()
_BLANK = MAGIC_BLANK.to_bytes(4, "big")
_PLAIN_HEAD = HEADS[0].unpack_from
LIKELY_TIMES = (0, 4_102_444_800_000)
"""A store time lies between these (the last is in the year 2100), or it is damaged."""
_SECTOR = 512
_SMALL_HOLE = 1024
_MOST_FILLERS = 100_000
_NOTES = 20


class Found(NamedTuple):
    """What the dispatcher needs to know of a record."""

    commitlog_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp: int
    properties: bytes


class LogScanner:
    """Walks the log from an offset to its end: the first place that holds no valid record.

    Below ``durable`` everything was whole and synced once, so what is not valid there was damaged later: it costs
    that record, not the rest of the log. Behind it, such a place is where a crash stopped the writing.

    Attributes:
        end: after the walk, the first offset behind the valid records.
        reason: after the walk, why it ended there.
        damaged: offsets below ``durable`` at which no valid record was found, with the reason.
    """

    def __init__(self, segments: Segments, start: int, durable: int = 0) -> None:
        self._segments = segments
        self._durable = durable
        self.end = start
        self.reason = ""
        self.records = 0
        self.damaged: list[tuple[int, str]] = []

    def __iter__(self) -> Iterator[Found]:
        segments = self._segments
        while self.end < segments.end:
            segment = segments.at(self.end)
            with memoryview(segments.map(segment)) as view:
                if not (yield from self._scan_file(view, segment.base)):
                    return
            self.end = segment.base + segments.size
        self.reason = "end of the last file"

    def _scan_file(self, view: memoryview, base: int) -> Generator[Found, None, bool]:
        """Yields the file's records; True if a blank mark ended it."""
        position = self.end - base
        room = len(view)
        while position + BLANK_BYTES <= room:
            offset = base + position
            if view[position + MAGIC_AT : position + BLANK_BYTES] == _BLANK:
                return True
            found = read_plain(view, position, offset) if position + HEAD_BYTES < room else None
            if found is None:
                why = check_record(view, position, commitlog_offset=offset)
                if why is not None:
                    if offset < self._durable:
                        self.damaged.append((offset, why))
                        position = self._behind_damage(view, base, position)
                        self.end = base + position
                        continue
                    self.reason = why
                    return False
                found = read_found(view, position, offset)
            position += found.size
            if offset >= self._durable:
                if _fades_out(found) and not any(view[position : position + 64]):
                    self.reason = "the last record ends in zeros"
                    return False
                if _lacks_sector(view, position, len(found.properties)):
                    self.reason = f"a sector of the record at {offset} is zeros"
                    return False
            self.records += 1
            yield found
            self.end = base + position
        return True

    def _behind_damage(self, view: memoryview, base: int, position: int) -> int:
        """Where the next valid record begins, or what is behind ``durable``, or the next file.

        The damaged record's own sizes are tried before the bytes behind its start are searched: a body may hold
        what looks like a record.
        """
        limit = min(len(view), self._durable - base)
        size, body_size = (
            int.from_bytes(view[position + at : position + at + 4], "big") for at in (0, BODY_SIZE_AT[0])
        )
        topic_at = position + HEAD_BYTES + body_size
        candidates = [position + size]
        if topic_at + 1 <= limit:
            lengths_at = topic_at + 1 + view[topic_at]
            candidates.append(lengths_at + 2 + int.from_bytes(view[lengths_at : lengths_at + 2], "big"))
        for at in candidates:
            if position < at < limit and self._starts_at(view, base, at):
                return at
        data = self._segments.map(self._segments.at(base))
        at = data.find(MAGIC_START, position + 5, limit)
        while at >= 0:
            if check_record(view, at - 4, commitlog_offset=base + at - 4) is None:
                return at - 4
            at = data.find(MAGIC_START, at + 1, limit)
        return limit

    @staticmethod
    def _starts_at(view: memoryview, base: int, at: int) -> bool:
        return (
            view[at + MAGIC_AT : at + BLANK_BYTES] == _BLANK
            or check_record(view, at, commitlog_offset=base + at) is None
        )


def _fades_out(found: Found) -> bool:
    """Whether the record's end is zeros, where text is expected.

    The crc covers the body only, so a record torn in its topic or properties passes every check. No
    sender ends a property with NUL; if nothing follows either, the rest never reached the disk.
    """
    return found.properties.endswith(b"\0") or found.topic.endswith("\0")


def _lacks_sector(view: memoryview, end: int, size: int) -> bool:
    """Whether a disk's sector was never written that holds some of the properties, which are the record's last bytes.

    The sectors behind it may have been, with further records. Zeros from one sector's begin to its end, or the
    record's, are no text.
    """
    start = -(-(end - size) // _SECTOR) * _SECTOR
    while start < end:
        stop = min(start + _SECTOR, end)
        if not bytes(view[start:stop]).strip(b"\0"):
            return True
        start = stop
    return False


def read_plain(view: memoryview, position: int, offset: int) -> Found | None:
    """Checks and reads the usual record (V1, IPv4 hosts) in one go; None if it is not one, or not valid.

    A scan is as long as the log written since the last checkpoint: this makes it twice as fast.
    """
    (size, magic, crc, queue_id, _, queue_offset, says, sys_flag, _, _, stored, _, _, _, body_size) = (
        _PLAIN_HEAD(view, position)
    )
    end = position + size
    topic_at = position + HEAD_BYTES + body_size
    if magic != MAGIC_V1 or says != offset or sys_flag & HOST_BITS or body_size < 0 or end > len(view):
        return None
    if topic_at + 3 > end:
        return None
    topic_end = topic_at + 1 + view[topic_at]
    if topic_end + 2 > end or topic_end + 2 + (view[topic_end] << 8 | view[topic_end + 1]) != end:
        return None
    if crc32(view[position + HEAD_BYTES : topic_at]) & CRC_MASK != crc:
        return None
    topic = str(view[topic_at + 1 : topic_end], "utf-8", "replace")
    properties = bytes(view[topic_end + 2 : end])
    return Found(offset, size, topic, queue_id, queue_offset, sys_flag, stored, properties)


def read_found(view: bytes | memoryview, position: int, offset: int) -> Found:
    """The fields of a record that was checked before."""
    form = HEADS[view[position + HOST_BITS_AT] & HOST_BITS]
    head = Head._make(form.unpack_from(view, position))
    topic_at = position + form.size + head.body_size
    width = 1 if head.magic == MAGIC_V1 else 2
    topic_start = topic_at + width
    topic_end = topic_start + int.from_bytes(view[topic_at:topic_start], "big")
    return Found(
        offset,
        head.total_size,
        str(view[topic_start:topic_end], "utf-8", "replace"),
        head.queue_id,
        head.queue_offset,
        head.sys_flag,
        head.store_timestamp,
        bytes(view[topic_end + 2 : position + head.total_size]),
    )


def entry_code(
    topic: str, properties: bytes, store_timestamp: int, delay_levels_ms: Mapping[int, int]
) -> int:
    """The last field of a queue entry: hash of the tag, or in the schedule topic the delivery time."""
    if topic == SCHEDULE_TOPIC:
        level = find_property(properties, _DELAY)
        if level is not None and level.isdigit() and len(level) < 10 and int(level) > 0 and delay_levels_ms:
            number = min(int(level), max(delay_levels_ms))
            return store_timestamp + delay_levels_ms.get(number, 1000)
    return tags_code(properties)


Place = tuple[int, int, int, int]
"""Queue offset, commit-log offset, size, tags code."""


class Dispatcher:
    """Gives records their queue entries and index keys; doing it twice changes nothing.

    Only a record's body has a check sum, so any other field may be damaged. Such a record loses its queue entry,
    and is noted, but must not harm the others: a queue offset that does not follow the one before it is believed
    only if the queue's next record follows it.

    Args:
        queue: the queue of a topic; StoreError if there cannot be one.
        forget: drops a deleted topic's queues and returns them.

    Attributes:
        begins_late: whether older parts of the log are gone, so that queues may begin at any offset.
    """

    def __init__(
        self,
        queue: Callable[[str, int], QueueLog],
        forget: Callable[[str], Iterable[QueueLog]],
        queue_files: QueueFiles,
        index: KeyIndex | None,
        delay_levels_ms: Mapping[int, int],
        *,
        index_batch: int,
    ) -> None:
        self._queue = queue
        self._forget = forget
        self._queue_files = queue_files
        self._index = index
        self._levels = delay_levels_ms
        self._index_batch = index_batch
        self.unwritten: set[QueueLog] = set()
        self._parked: dict[QueueLog, Place] = {}
        self._anew: dict[QueueLog, Place] = {}
        self._count = 0
        self._damaged = 0
        self.begins_late = False
        self.notes: list[str] = []
        self.added = 0
        self.failure: StoreError | None = None
        self.last_timestamp = 0

    def dispatch(self, found: Found) -> None:
        if LIKELY_TIMES[0] < found.store_timestamp < LIKELY_TIMES[1]:
            self.last_timestamp = found.store_timestamp
        if enters_queue(found.sys_flag):
            if found.sys_flag & INNER_BATCH:
                self._note(
                    found.commitlog_offset,
                    f"{found.topic} has batch queues, which only Apache's brokers read",
                )
                return
            try:
                queue = self._queue(found.topic, found.queue_id)
            except StoreError as error:
                self._note(found.commitlog_offset, str(error))
                return
            code = entry_code(found.topic, found.properties, found.store_timestamp, self._levels)
            self._enter(queue, (found.queue_offset, found.commitlog_offset, found.size, code))
        elif found.topic == DELETION_TOPIC:
            self._delete(found)
            return
        if self._index is not None and enters_index(found.sys_flag):
            self._index_later(
                (found.topic, found.properties, found.commitlog_offset, self.last_timestamp), self._index
            )

    def _enter(self, queue: QueueLog, place: Place) -> None:
        if place[0] == queue.next_offset and not self._parked and not self._anew:
            self._append(queue, place)
        else:
            self._out_of_order(queue, place)

    def _index_later(self, item: IndexItem, index: KeyIndex) -> None:
        index.pending.append(item)
        if len(index.pending) >= self._index_batch:
            self.build_index()

    def _append(self, queue: QueueLog, place: Place) -> None:
        if self._queue_files.append(queue, *place):
            self.added += 1
            self.unwritten.add(queue)
            self._count += 1
            if self._count > _FLUSH_EVERY:
                self.write()

    def _out_of_order(self, queue: QueueLog, place: Place) -> None:
        gap = place[0] - queue.next_offset
        if gap < 0:
            self._again(queue, place)
            return
        odd = self._anew.pop(queue, None)
        if odd is not None:
            self._note(odd[1], f"queue offset 0 is taken, {queue.next_offset} would follow")
        parked = self._parked.pop(queue, None)
        if parked is None:
            if gap == 0:
                self._append(queue, place)
            else:
                self._parked[queue] = place
        elif place[0] == parked[0] + 1:
            self._jump(queue, parked)
            self._append(queue, place)
        else:
            self._note(parked[1], f"queue offset {parked[0]} does not follow {queue.next_offset - 1}")
            if gap <= 1:  # of 1, if the record noted should have been between
                self._append(queue, place)
            else:
                self._parked[queue] = place

    def _again(self, queue: QueueLog, place: Place) -> None:
        """A number that the queue has already: mostly the record is there, and nothing is to be done.

        But a topic that was deleted at Apache's broker, which leaves no record of that, and made again counts anew.
        It is believed when the second of its records follows the first.
        """
        first = self._anew.pop(queue, None)
        if place[0] == 0:
            entry = self._queue_files.entry(queue, 0)
            if entry is None or entry[0] < place[1]:
                self._anew[queue] = place
        elif first is not None and place[0] == 1:
            self.notes.append(f"queue {queue.topic}-{queue.queue_id} begins anew: its topic was deleted")
            self._clear(queue)
            self._append(queue, first)
            self._append(queue, place)

    def _jump(self, queue: QueueLog, place: Place) -> None:
        """Goes on behind a hole, or begins late."""
        if queue.next_offset and place[0] - queue.next_offset > _MOST_FILLERS:
            self.notes.append(
                f"queue {queue.topic}-{queue.queue_id} goes on at {place[0]} after {queue.next_offset - 1}: "
                "what was before the hole is dropped"
            )
            self._clear(queue)
        self._append(queue, place)

    def _clear(self, queue: QueueLog) -> None:
        self._queue_files.clear(queue)

    def settle(self) -> None:
        """Believes records that no other one has followed yet, if their numbers are likely."""
        for queue, place in list(self._parked.items()):
            begins = self.begins_late and not queue.next_offset and place[0] <= place[1] // MIN_RECORD
            if queue.gone or begins or place[0] - queue.next_offset <= _SMALL_HOLE:
                del self._parked[queue]
                if not queue.gone:
                    self._append(queue, place)

    def finish(self) -> None:
        """Decides about records that no other one followed; brings everything to the files."""
        self.settle()
        for queue, place in self._parked.items():
            self._note(place[1], f"queue offset {place[0]} does not follow {queue.next_offset - 1}")
        for queue, place in self._anew.items():
            self._note(place[1], f"queue offset 0 is taken, {queue.next_offset} would follow")
        self._parked.clear()
        self._anew.clear()
        self.write()
        if self._damaged > _NOTES:
            self.notes.append(f"and {self._damaged - _NOTES} more records like these")

    def _delete(self, found: Found) -> None:
        deletion = decode_deletion(found.topic, found.sys_flag, found.properties)
        if deletion is None:
            self._note(found.commitlog_offset, "the deletion of a topic cannot be read")
            return
        for queue in self._forget(deletion.topic):
            self.unwritten.discard(queue)
            self._parked.pop(queue, None)
            self._anew.pop(queue, None)

    def _note(self, offset: int, why: str) -> None:
        self._damaged += 1
        if self._damaged <= _NOTES:
            self.notes.append(f"the record at commit-log offset {offset} has no queue entry: {why}")

    def write(self) -> None:
        """Brings the queues' tails to their files; on a full disk they stay in memory."""
        self._count = 0
        for queue in list(self.unwritten):
            if not self._tried(partial(self._queue_files.write_tail, queue), "consume queues"):
                return
            self.unwritten.discard(queue)

    def build_index(self) -> None:
        """Puts waiting keys into the index; on a full disk they go on waiting."""
        if self._index is not None:
            self._tried(self._index.build, "key index")

    def _tried(self, step: Callable[[], object], what: str) -> bool:
        if self.failure is not None:
            return False
        try:
            step()
        except OSError as error:
            failure = store_error(error, what)
            if not passes(failure):
                raise
            self.failure = failure
            return False
        return True
