"""Appending, record by record: all that arrived in one go is built in memory, written with one call, and shows at once.

``append_vectors`` fills the same groups with thousands of records at a time.

``add`` is the hottest function of a broker. It packs the head with one struct call, keeps body and
properties as they are, and leaves the rest to the commit: places in the log and in the queues are
known beforehand, because there is one writer. Nothing is visible until then: readers go by
``QueueLog.max_offset`` and the log's position, which only ``commit`` moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING

from gimbalmq.errors import StateError, StoreError
from gimbalmq.model.crc import crc32
from gimbalmq.model.flags import (
    HOST_BITS,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from gimbalmq.model.ids import V4_HOST_BYTES
from gimbalmq.model.queue_entry import ENTRY, ENTRY_BYTES
from gimbalmq.model.record import (
    BLANK_BYTES,
    CRC_MASK,
    HEADS,
    MAGIC_BLANK,
    MAX_PROPERTIES,
    START,
    host_bits,
)
from gimbalmq.store.consumequeue import QueueLog

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gimbalmq.store.message_store import MessageStore

_NOT_HOST_BITS = ~HOST_BITS
_LENGTHS = [n.to_bytes(2, "big") for n in range(1024)]  # most properties are short
_ENTRY_PACK = ENTRY.pack

IndexItem = tuple[str, bytes, int, int]
"""Topic, properties, commit-log offset and store timestamp of a record whose keys are wanted."""


class KeyRun:
    """Keys of many records that were stored together, hashed already.

    Attributes:
        hashes: of ``topic#key``.
        places: commit-log offset of the record of each, ascending.
        times: when that was stored.
    """

    __slots__ = ("hashes", "places", "times")

    def __init__(
        self, hashes: NDArray[np.int32], places: NDArray[np.int64], times: NDArray[np.int64]
    ) -> None:
        self.hashes = hashes
        self.places = places
        self.times = times

    def __len__(self) -> int:
        return len(self.places)

    def before(self, place: int) -> KeyRun:
        """Those of records that lie before a place."""
        kept = int(self.places.searchsorted(place))
        return KeyRun(self.hashes[:kept], self.places[:kept], self.times[:kept])


class AppendGroup:
    """Records that are written and become visible together; made by ``MessageStore.group``.

    ``with store.group() as g:`` commits at the end and aborts on an exception.

    Attributes:
        store_timestamp: milliseconds that every record of the group carries.
        store_host: the host that every record names.
        position, file_end: where the next record goes in the log, and where its file ends.
    """

    __slots__ = (
        "_bits4",
        "_chunks",
        "_fixed4",
        "_index",
        "_open",
        "_pack4",
        "_parts",
        "_store",
        "_touched",
        "file_end",
        "position",
        "store_host",
        "store_timestamp",
    )

    def __init__(self, store: MessageStore, store_timestamp: int) -> None:
        log = store.log
        size = log.segments.size
        self._store = store
        self.store_host = host = store.config.store_host
        self._bits4 = host_bits(bytes(V4_HOST_BYTES), host)
        head = HEADS[self._bits4]
        self._pack4: Callable[..., bytes] = head.pack
        self._fixed4 = head.size + 2
        self.store_timestamp = store_timestamp
        self.position = position = log.position
        base = log.segments.first_base
        self.file_end = base + ((position - base) // size + 1) * size
        self._parts: list[bytes | memoryview] = []
        self._chunks: list[tuple[int, list[bytes | memoryview]]] = [(position, self._parts)]
        self._touched: list[QueueLog] = []
        self._index: list[IndexItem | KeyRun] | None = [] if store.config.message_index_enable else None
        self._open = True

    def add(
        self,
        queue: QueueLog,
        body: bytes | memoryview,
        properties: bytes,
        tags_code: int,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int,
        prepared_offset: int,
        /,
    ) -> tuple[int, int]:
        """Adds one record.

        Args:
            properties: encoded, at most 32767 bytes.
            tags_code: Java hash of the tag, or the delivery time in the schedule topic.
            sys_flag: the host bits are set here, from the hosts' lengths.
            born_host: 4 or 16 address bytes and an int32 port.

        Returns:
            The commit-log offset and the queue offset the record will have.

        Raises:
            StoreError: larger than a commit-log file; the group is as before.
        """
        topic = queue.topic_field
        body_size = len(body)
        properties_size = len(properties)
        if len(born_host) == V4_HOST_BYTES:
            pack = self._pack4
            size = self._fixed4 + body_size + len(topic) + properties_size
            sys_flag = sys_flag & _NOT_HOST_BITS | self._bits4
        else:
            bits = host_bits(born_host, self.store_host)
            head = HEADS[bits]
            pack = head.pack
            size = head.size + 2 + body_size + len(topic) + properties_size
            sys_flag = sys_flag & _NOT_HOST_BITS | bits
        position = self.position
        if position + size + BLANK_BYTES > self.file_end:
            position = self._roll(size)
        # As flags.enters_queue says; a call would cost more than the question.
        unqueued = sys_flag & TRANSACTION_PREPARED
        queue_offset = 0 if unqueued else queue.next_offset
        record_head = pack(
            size,
            queue.magic,
            crc32(body) & CRC_MASK,
            queue.queue_id,
            flag,
            queue_offset,
            position,
            sys_flag,
            born_timestamp,
            born_host,
            self.store_timestamp,
            self.store_host,
            reconsume_times,
            prepared_offset,
            body_size,
        )
        if properties_size < 1024:
            length = _LENGTHS[properties_size]
        elif properties_size <= MAX_PROPERTIES:
            length = properties_size.to_bytes(2, "big")
        else:
            raise StoreError(f"properties of {properties_size} bytes; at most {MAX_PROPERTIES} fit a record")
        if not unqueued:
            if queue_offset == queue.max_offset:
                self._touched.append(queue)  # first: an abort cuts the tails of these
            queue.tail += _ENTRY_PACK(position, size, tags_code)
            queue.next_offset = queue_offset + 1
        self._parts += (record_head, body, topic, length, properties)
        if self._index is not None and sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK:
            self._index.append((queue.topic, properties, position, self.store_timestamp))
        self.position = position + size
        return position, queue_offset

    @property
    def file_bytes(self) -> int:
        return self._store.log.segments.size

    @property
    def indexes(self) -> bool:
        """Whether keys are wanted at all."""
        return self._index is not None

    def add_made(
        self,
        queues: Iterable[tuple[QueueLog, bytes]],
        records: list[memoryview],
        index: Iterable[IndexItem | KeyRun],
    ) -> None:
        """Adds records that somebody else made for the places they get.

        Args:
            queues: with the entries of the records that go there.
            records: one piece for each commit-log file; the first goes to where the group is, maybe nothing.
        """
        for number, piece in enumerate(records):
            if number:
                self._roll(0)
            self._parts.append(piece)
            self.position += len(piece)
        for queue, entries in queues:
            if queue.next_offset == queue.max_offset:
                self._touched.append(queue)
            queue.tail += entries
            queue.next_offset += len(entries) // ENTRY_BYTES
        if self._index is not None:
            self._index += index

    def _roll(self, size: int) -> int:
        """Ends the file with a blank mark; where the record goes instead."""
        file_bytes = self.file_bytes
        if size + BLANK_BYTES > file_bytes:
            raise StoreError(f"a record of {size} bytes does not fit a commit-log file of {file_bytes}")
        room = self.file_end - self.position
        self._parts.append(START.pack(room, MAGIC_BLANK))
        position = self.position = self.file_end
        self._parts = []
        self._chunks.append((position, self._parts))
        self.file_end += file_bytes
        return position

    def commit(self) -> list[QueueLog]:
        """Writes the group and makes it visible; the queues that grew.

        Raises:
            DiskFullError, ResourceShortageError, StoreIOError: nothing of the group happened; the store is
                read-only.
        """
        if not self._open:
            raise StateError("the group is committed or aborted already")
        store = self._store
        if self.position != store.log.position:
            try:
                store.log.write(self._chunks)
            except BaseException as error:
                self.abort()
                if isinstance(error, StoreError):
                    store.trouble.write_failed(error)
                raise
        self._open = False
        store.committed(self._touched, self._index, self.store_timestamp)
        return self._touched

    def abort(self) -> None:
        """Forgets the group; harmless after commit."""
        if self._open:
            self._open = False
            for queue in self._touched:
                queue.next_offset = queue.max_offset
                del queue.tail[(queue.max_offset - queue.written) * ENTRY_BYTES :]
            self._store.group_closed()

    def __enter__(self) -> AppendGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        elif self._open:
            self.commit()
