"""Rows of an Arrow batch to the bytes of send requests, by whole columns.

A batch request's body is its messages one behind the other, each a head, the body, the length of the
properties and the properties (``model.batch``). Each of these parts is a column, and is copied for all rows
at once to where the rows' requests will lie, the rows of a queue one behind the other. So a row costs no
Python, unless it has to travel alone (a delay, a very large body) or its body is compressed.

Everything here is pure: rows and settings in, requests out. Which queues a topic has is asked through a
function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gimbalmq.balance.select import select_by_hash
from gimbalmq.errors import ConfigError, MessageIllegalError
from gimbalmq.model import properties as names
from gimbalmq.model.compression import compress
from gimbalmq.model.flags import COMPRESSED
from gimbalmq.model.message import SYSTEM_PROPERTIES
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.record import MAX_PROPERTIES, MIN_RECORD
from gimbalmq.model.topics import MAX_TOPIC_LENGTH, RETRY_PREFIX
from gimbalmq.spark.columns import ROW_ID_PROPERTY
from gimbalmq.spark.row_hash import RowHashes, hash_rows
from gimbalmq.spark.row_homes import Homes, slots_of
from gimbalmq.spark.row_ids import Ids, Part, RowIds, fixed_width
from gimbalmq.spark.sink_options import SinkSettings, check_topic
from gimbalmq.store.vectors import copy, overlapping

_HEAD_BYTES: Final = 20
_ITEM_BYTES: Final = _HEAD_BYTES + 2
_STORED_EXTRA: Final = MIN_RECORD + 64
"""What a broker adds to an item when it stores it, with some room for its own properties."""

_STORED_LIMIT: Final = 4 << 20
"""Apache's broker refuses a batch whose records together are larger than ``maxMessageSize``."""

_SLICE_BYTES: Final = 32 << 20
_ROW_BYTES: Final = 200
"""What a message has, at most but for a long query's name, besides what its row says: head, row id, UNIQ_KEY, names."""

_ADDED_BYTES: Final = 512
"""What may be added to a row's properties: whether to wait, the broker's cluster, where a delayed row belongs.

Apache's broker does not look whether they still fit a batch's message then.
"""

_MOST_PROPERTIES: Final = MAX_PROPERTIES - _ADDED_BYTES
_LEAST_RUN_BYTES: Final = 64 << 10
_EMPTY: Final = pa.scalar(b"", pa.binary())
_NO_QUEUE_ID: Final = np.full(1, -1, np.int64).view(np.uint64)
_NOTHING_TOLD: Final = pa.array([b""], pa.binary())
_NAMED_ROWS: Final = 10
_SHOWN_VALUES: Final = 3
_SHOWN_BYTES: Final = 40
_JOINED_ROWS: Final = 4096
_JOINED_BYTES: Final = 1 << 20
"""So many rows, or bytes of them, are put together at a time: they stay in the processor's cache."""

_COMPRESSED_KIND: Final = 1
_ALONE_KIND: Final = 2
_BOUND: Final = 4
_GROUPS: Final = 8
"""Of the rows of a queue: the kinds of those that are not bound, and all that are bound."""

Queues = Callable[[str], Sequence[MessageQueue]]


@dataclass(frozen=True, slots=True)
class Request:
    """One send: a batch of rows, or one row that travels alone.

    Attributes:
        rows: indices of the rows in their task, ascending.
        bound: whether it must not go to any other queue (sharding key, queue id).
        properties: of the request's header.
        row_ids: of the first and the last row.
        flag: the application's own number of a row that travels alone; those of a batch lie in its body.
    """

    queue: MessageQueue
    body: memoryview | bytes
    rows: NDArray[np.int64]
    batch: bool
    bound: bool
    sys_flag: int
    properties: str
    row_ids: tuple[str, str]
    flag: int = 0


class RowEncoder:
    """Encodes the rows of one task, in order.

    Args:
        roles: role to index of its column.
        task: ``<query>-<batch>-<partition>``: what stands in all row ids of the task.
        queues: a topic's queues in the order of its route; asked once for each topic.
        unique_id: makes a UNIQ_KEY, where they are wanted.
    """

    def __init__(
        self,
        settings: SinkSettings,
        roles: dict[str, int],
        *,
        task: str,
        queues: Queues,
        unique_id: Callable[[], str],
    ) -> None:
        self._settings = settings
        self._roles = roles
        self._task = task
        self._row_ids = RowIds(task)
        self._find_queues = queues
        self._unique_id = unique_id
        self._homes: dict[str, Homes] = {}
        self._lanes: dict[tuple[str, str], int] = {}
        self._wait = f"{names.WAIT}\x01{'true' if settings.wait_store else 'false'}\x02"
        self.row = 0
        """Index of the next row."""

    def encode(self, batch: pa.RecordBatch) -> Iterator[Request]:
        """The requests for these rows; those that are bound to one queue in the order of the rows.

        Raises:
            MessageIllegalError: rows cannot be messages; says which.
        """
        while batch.num_rows:
            # Joined columns are addressed with 32 bits, and memory is finite.
            part = batch
            while part.num_rows > 1 and (size := part.nbytes + part.num_rows * _ROW_BYTES) > _SLICE_BYTES:
                # In equal shares, lest the last has a few rows for each queue. The large rows may all be in the first.
                shares = -(-size // _SLICE_BYTES)
                part = part.slice(0, -(-part.num_rows // shares))
            batch = batch.slice(part.num_rows)
            first, self.row = self.row, self.row + part.num_rows
            yield from self._encode(part, first)

    # --- one slice -----------------------------------------------------------------------------

    def _encode(self, batch: pa.RecordBatch, first: int) -> Iterator[Request]:
        rows = batch.num_rows
        body = _binary(self._column(batch, "body"))
        lengths = self._check_bodies(body, first)
        sharding = self._text(batch, "shardingKey", names.SHARDING_KEY, first)
        told, alone = self._told(batch, first, sharding)
        topics, topic_of = self._topics(batch, first)
        queue_ids = self._queue_ids(batch)
        # A row is what it says; the body before it is compressed, which no two machines need do alike.
        # What all of them say is said once.
        said = [
            _text_hashes(topics) if len(topics) == 1 else _text_hashes(topics)[topic_of],
            queue_ids.view(np.uint64) if int(queue_ids.max()) >= 0 else _NO_QUEUE_ID,
            body,
        ]
        flags = self._flags(batch, first)
        if flags is not None:
            said.append(flags.view(np.uint64))
        # A row's hash must not depend on what others of its slice say: another order brings other neighbours.
        said.append(_NOTHING_TOLD if told is None else told)
        hashes = hash_rows(said, rows)
        ids = self._row_ids.of(hashes)
        properties = self._properties(ids, told)
        lanes = self._assign(batch, first, hashes, topics, topic_of, queue_ids, sharding is not None)
        kinds: NDArray[np.uint8] | None = None
        if self._settings.compress_over <= int(lengths.max()):
            body, packed = self._compress(body, self._to_compress(lengths, lanes))
            lengths = _lengths(body)
            kinds = np.where(packed, np.uint8(_COMPRESSED_KIND), np.uint8(0))
        property_bytes = np.zeros(rows, np.int64)
        for part in properties:
            property_bytes += len(part) if isinstance(part, bytes) else _lengths(part)
        self._check(
            property_bytes > _MOST_PROPERTIES,
            first,
            f"their properties are too large ({{}} bytes, at most {_MOST_PROPERTIES} fit): shorten keys or properties",
            property_bytes,
        )
        totals = property_bytes + lengths + _ITEM_BYTES
        large = totals > self._settings.batch_bytes
        if large.any():
            alone = large if alone is None else alone | large
        if alone is not None:
            kinds = np.zeros(rows, np.uint8) if kinds is None else kinds
            kinds[alone] |= _ALONE_KIND
        if lanes.retry is not None:
            kinds = np.zeros(rows, np.uint8) if kinds is None else kinds
            kinds[lanes.retry] |= _ALONE_KIND
        written = _Written(_heads(totals, lengths, flags), body, _sizes(property_bytes), properties, ids)
        yield from self._cut(written, totals, kinds, lanes, first, flags)

    def _flags(self, batch: pa.RecordBatch, first: int) -> NDArray[np.int64] | None:
        """The application's own number of each row; None if there is no such column."""
        column = self._column(batch, "flag")
        if column is None:
            return None
        numbers = np.asarray(column.cast(pa.int64()).fill_null(0))
        self._check(
            (numbers < -(2**31)) | (numbers >= 2**31),
            first,
            "their flag ({}) does not fit 32 bits: use a smaller number",
            numbers,
        )
        return numbers

    def _column(self, batch: pa.RecordBatch, role: str) -> pa.Array | None:
        index = self._roles.get(role)
        return None if index is None else batch.column(index)

    def _check_bodies(self, body: pa.Array, first: int) -> NDArray[np.int64]:
        lengths = _lengths(body)
        if body.null_count or not lengths.all():
            self._check(
                lengths == 0,
                first,
                "their body is null or empty, which RocketMQ does not carry: filter them out, or coalesce() it",
            )
        limit = self._settings.max_message_size
        self._check(
            lengths > limit,
            first,
            f"their bodies are too large ({{}} bytes, maxMessageSize is {limit}): make them smaller, or "
            "raise maxMessageSize here and in the broker",
            lengths,
        )
        return lengths

    def _to_compress(self, lengths: NDArray[np.int64], lanes: _Lanes) -> NDArray[np.bool_]:
        """Large bodies, unless that cuts rows that keep their order into crumbs: a request is compressed or not."""
        wanted: NDArray[np.bool_] = lengths >= self._settings.compress_over
        if lanes.bound is None or not lanes.bound.any():
            return wanted
        rows = np.flatnonzero(lanes.bound)
        rows = rows[np.argsort(lanes.lane[rows], kind="stable")]
        lane = lanes.lane[rows]
        begins = np.ones(len(rows), bool)
        begins[1:] = (lane[1:] != lane[:-1]) | (wanted[rows[1:]] != wanted[rows[:-1]])
        runs = np.bincount(lane[begins])
        crumbs = (runs > 1) & (np.bincount(lane, lengths[rows]) < runs * _LEAST_RUN_BYTES)
        wanted[rows[crumbs[lane]]] = False
        return wanted

    def _compress(self, body: pa.Array, wanted: NDArray[np.bool_]) -> tuple[pa.Array, NDArray[np.bool_]]:
        """The bodies, and which are compressed: one that would grow stays as it is."""
        settings = self._settings
        made: list[bytes] = []
        packed = np.zeros(len(body), bool)
        for row in np.flatnonzero(wanted).tolist():
            plain = body[row].as_py()
            smaller = compress(plain, settings.compression, settings.compression_level)
            if len(smaller) < len(plain):
                made.append(smaller)
                packed[row] = True
        return pc.replace_with_mask(body, pa.array(packed), pa.array(made, pa.binary())), packed

    # --- properties ----------------------------------------------------------------------------

    def _properties(self, ids: Ids, told: pa.Array | None) -> list[Part]:
        """What each row's properties are if they are joined: the id comes first, or behind UNIQ_KEY."""
        parts: list[Part] = [f"{ROW_ID_PROPERTY}\x01".encode(), *ids.parts(), b"\x02"]
        if self._settings.unique_keys:
            unique = pa.array([self._unique_id() for _ in ids.digits], pa.string()).cast(pa.binary())
            parts = [f"{names.UNIQ_KEY}\x01".encode(), unique, b"\x02", *parts]
        if told is not None:
            parts.append(told)
        return parts

    def _told(
        self, batch: pa.RecordBatch, first: int, sharding: pa.Array | None
    ) -> tuple[pa.Array | None, NDArray[np.bool_] | None]:
        """The properties that follow from what each row says (None if no row says any), and which rows are delayed."""
        rows = batch.num_rows
        pieces: list[pa.Array] = []
        for role, name in (("key", names.KEYS), ("tags", names.TAGS)):
            value = self._text(batch, role, name, first)
            if value is not None:
                pieces.append(value)
        if sharding is not None:
            pieces.append(sharding)
        own = self._column(batch, "properties")
        if own is not None and own.null_count < rows:
            pieces.append(self._map(own, first))
        delayed = self._delays(batch, first, pieces)
        if not pieces:
            return None, delayed
        return pieces[0] if len(pieces) == 1 else pc.binary_join_element_wise(*pieces, _EMPTY), delayed

    def _text(self, batch: pa.RecordBatch, role: str, name: str, first: int) -> pa.Array | None:
        """``name U+0001 value U+0002`` of each row, empty if the value is; None if all are."""
        column = self._column(batch, role)
        if column is None or column.null_count == len(column):
            return None
        value = _binary(column)
        lengths = _lengths(value)
        if not lengths.any():
            return None
        self._check_text(value, first, f"column {role}", np.arange(len(value)), len(value))
        joined = pc.binary_join_element_wise(_text(f"{name}\x01"), value, _text("\x02"), _EMPTY)
        if lengths.all():
            return joined
        return pc.if_else(pa.array(lengths > 0), joined, _EMPTY)

    def _map(self, column: pa.MapArray, first: int) -> pa.Array:
        """The rows' own properties: the map's entries are joined as one column, then cut into rows."""
        offsets = np.asarray(column.offsets)[: len(column) + 1].astype(np.int64)
        if column.null_count:
            # A null map may still span entries.
            sizes = np.diff(offsets)
            sizes[np.asarray(column.is_null())] = 0
            owner = np.repeat(np.arange(len(column)), np.diff(offsets))
            wanted = ~np.asarray(column.is_null())[owner]
        else:
            sizes = np.diff(offsets)
            owner = np.repeat(np.arange(len(column)), sizes)
            wanted = np.ones(len(owner), bool)
        low, high = int(offsets[0]), int(offsets[-1])
        keys = _binary(column.keys[low:high])
        values = _binary(column.items[low:high])
        wanted &= np.asarray(values.is_valid()) & (_lengths(values) > 0)
        reserved = np.asarray(pc.is_in(keys, value_set=_RESERVED))
        if reserved.any():
            # Ours replaces a row id that came with the row.
            foreign = reserved & ~np.asarray(pc.equal(keys, ROW_ID_PROPERTY.encode()))
            if foreign.any() and not self._settings.drop_reserved:
                names_found = sorted({key.as_py().decode() for key in keys.filter(pa.array(foreign))})
                self._check(
                    _any_of(foreign, owner, len(column)),
                    first,
                    f"their properties hold names RocketMQ keeps for itself ({', '.join(names_found[:5])}): use "
                    "the columns key, tags, shardingKey and delayLevel, or option reservedProperties=drop",
                )
            wanted &= ~reserved
        if not wanted.all():
            keys, values = keys.filter(pa.array(wanted)), values.filter(pa.array(wanted))
            owner = owner[wanted]
            sizes = np.bincount(owner, minlength=len(column))
        blank = _lengths(keys) == 0
        if blank.any():
            self._check(
                _any_of(blank, owner, len(column)), first, "a property has an empty name: give it one"
            )
        for part in (keys, values):
            self._check_text(part, first, "a property", owner, len(column))
        entries = pc.binary_join_element_wise(keys, _text("\x01"), values, _text("\x02"), _EMPTY)
        starts = np.zeros(len(column) + 1, np.int64)
        np.cumsum(sizes, out=starts[1:])
        places = _offsets(entries)[starts].astype(np.int32)
        return pa.Array.from_buffers(
            pa.binary(), len(column), [None, pa.py_buffer(places), entries.buffers()[2] or pa.py_buffer(b"")]
        )

    def _check_text(
        self, value: pa.Array, first: int, what: str, owner: NDArray[np.int64], rows: int
    ) -> None:
        """Refuses rows that own a value which other clients could not read."""
        if _holds_separator(value):
            wrong = _separator_rows(value)
            self._check(
                _any_of(wrong, owner, rows),
                first,
                f"{what} holds U+0001 or U+0002, which separate properties ({_few(value, wrong)}): remove them",
            )
        if not _is_utf8(value):
            wrong = _undecodable(value)
            self._check(
                _any_of(wrong, owner, rows),
                first,
                f"{what} is not UTF-8 ({_few(value, wrong)}): decode() bytes, or write them with base64()",
            )

    def _delays(self, batch: pa.RecordBatch, first: int, pieces: list[Any]) -> NDArray[np.bool_] | None:
        """Which rows are delayed; adds what says so to the pieces. Such rows are no part of batches."""
        given: list[tuple[str, NDArray[np.int64], NDArray[np.bool_]]] = []
        for role, name in (
            ("delayLevel", names.DELAY),
            ("deliverTimestamp", names.TIMER_DELIVER_MS),
            ("delayMs", names.TIMER_DELAY_MS),
        ):
            column = self._column(batch, role)
            if column is None or column.null_count == len(column):
                continue
            if pa.types.is_timestamp(column.type):
                column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
            numbers = np.asarray(column.cast(pa.int64()).fill_null(0))
            self._check(
                numbers < 0, first, f"their {role} is negative ({{}}): use null for no delay", numbers
            )
            if numbers.any():
                given.append((name, numbers, numbers > 0))
        if not given:
            return None
        delayed = given[0][2]
        for _, _, mask in given[1:]:
            self._check(delayed & mask, first, "they have both a delayLevel and a time: give one of them")
            delayed = delayed | mask
        for name, numbers, mask in given:
            digits = pa.array(numbers).cast(pa.string()).cast(pa.binary())
            joined = pc.binary_join_element_wise(_text(f"{name}\x01"), digits, _text("\x02"), _EMPTY)
            pieces.append(pc.if_else(pa.array(mask), joined, _EMPTY))
        return delayed

    # --- queues --------------------------------------------------------------------------------

    def _homes_of(self, topic: str) -> Homes:
        found = self._homes.get(topic)
        if found is None:
            found = self._homes[topic] = Homes(self._find_queues(topic))
        return found

    def _queue_ids(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """The queue id that each row asks for; -1 for a row that asks for none."""
        column = self._column(batch, "queueId")
        if column is None or column.null_count == len(column):
            return np.full(batch.num_rows, -1, np.int64)
        return np.asarray(column.cast(pa.int64()).fill_null(-1)).clip(min=-1)

    def _assign(
        self,
        batch: pa.RecordBatch,
        first: int,
        hashes: RowHashes,
        topics: list[str],
        topic_of: NDArray[np.int64],
        queue_ids: NDArray[np.int64],
        sharded: bool,
    ) -> _Lanes:
        """A queue for each row: by sharding key, by queue id, else by the row's hash."""
        retry = None
        if any(topic.startswith(RETRY_PREFIX) or len(topic) > MAX_TOPIC_LENGTH for topic in topics):
            flags = [topic.startswith(RETRY_PREFIX) or len(topic) > MAX_TOPIC_LENGTH for topic in topics]
            retry = np.asarray(flags)[topic_of]
        homes = [self._homes_of(topic) for topic in topics]
        starts = np.cumsum([0, *(len(home.queues) for home in homes)])
        slots = slots_of(hashes)
        lane = np.empty(batch.num_rows, np.int64)
        asking = queue_ids >= 0
        bound = asking if asking.any() else None
        if sharded and bound is not None:
            # Several brokers may have the queue id: the rows of a sharding key stay together, or they had no order.
            keys = _binary(self._column(batch, "shardingKey"))
            slots = np.where(asking & (_lengths(keys) > 0), slots_of(hash_rows([keys], len(keys))), slots)
        for index, (topic, home) in enumerate(zip(topics, homes, strict=True)):
            rows_of = topic_of == index
            lane[rows_of] = starts[index] + home.lanes[slots[rows_of]]
            if bound is None:
                continue
            for queue_id in np.unique(queue_ids[asking & rows_of]).tolist():
                wanting = rows_of & (queue_ids == queue_id)
                table = home.lanes_with(queue_id)
                if table is None:
                    most = max(queue.queue_id for queue in home.queues)
                    self._check(
                        wanting,
                        first,
                        f"topic {topic} has no queue {queue_id}: use queueId 0 to {most}, or null",
                    )
                else:
                    lane[wanting] = starts[index] + table[slots[wanting]]
        if sharded:
            keyed = self._shard(batch, topics, topic_of, starts, lane, bound)
            bound = keyed if bound is None else bound | keyed
        return _Lanes([queue for home in homes for queue in home.queues], lane, bound, retry)

    def _topics(self, batch: pa.RecordBatch, first: int) -> tuple[list[str], NDArray[np.int64]]:
        column = self._column(batch, "topic")
        rows = batch.num_rows
        default = self._settings.topic
        if column is None or column.null_count == rows:
            if default is None:
                self._check(np.ones(rows, bool), first, _NO_TOPIC)
            assert default is not None
            return [default], np.zeros(rows, np.int64)
        if column.null_count:
            if default is None:
                self._check(np.asarray(column.is_null()), first, _NO_TOPIC)
            column = column.fill_null(default)
        self._check_text(_binary(column), first, "column topic", np.arange(rows), rows)
        encoded = column.dictionary_encode()
        topics: list[str] = encoded.dictionary.to_pylist()
        codes = np.asarray(encoded.indices).astype(np.int64)
        for index, topic in enumerate(topics):
            if topic not in self._homes:
                try:
                    check_topic("topic", topic)
                except ConfigError as error:
                    self._check(codes == index, first, str(error))
        return topics, codes

    def _shard(
        self,
        batch: pa.RecordBatch,
        topics: list[str],
        topic_of: NDArray[np.int64],
        starts: NDArray[np.int64],
        lane: NDArray[np.int64],
        fixed: NDArray[np.bool_] | None,
    ) -> NDArray[np.bool_]:
        """Puts rows with a sharding key where every producer would put them; a queue id still wins."""
        column = self._column(batch, "shardingKey")
        assert column is not None
        keyed = np.asarray(pc.fill_null(pc.greater(pc.binary_length(column), 0), False))
        encoded = column.dictionary_encode()
        keys: list[str | None] = encoded.dictionary.to_pylist()
        codes = np.asarray(encoded.indices.fill_null(0)).astype(np.int64)
        free = keyed if fixed is None else keyed & ~fixed
        for topic_index, topic in enumerate(topics):
            queues = self._homes_of(topic).queues
            table = np.fromiter(
                (self._lane_of(topic, queues, key or "") for key in keys), np.int64, len(keys)
            )
            rows_of = free if len(topics) == 1 else free & (topic_of == topic_index)
            lane[rows_of] = starts[topic_index] + table[codes[rows_of]]
        return keyed

    def _lane_of(self, topic: str, queues: Sequence[MessageQueue], key: str) -> int:
        found = self._lanes.get((topic, key))
        if found is None:
            if len(self._lanes) >= 100_000:
                self._lanes.clear()
            found = self._lanes[topic, key] = queues.index(select_by_hash(queues, key))
        return found

    # --- requests ------------------------------------------------------------------------------

    def _cut(
        self,
        written: _Written,
        totals: NDArray[np.int64],
        kinds: NDArray[np.uint8] | None,
        lanes: _Lanes,
        first: int,
        flags: NDArray[np.int64] | None,
    ) -> Iterator[Request]:
        """Groups rows by queue and kind, and cuts the groups where a request is full."""
        ids, rows = written.ids, len(totals)
        order = _grouped(lanes, kinds)
        lane = lanes.lane[order]
        totals, numbers = totals[order], order + first
        changes = lane[1:] != lane[:-1]
        if kinds is not None:
            kinds = kinds[order]
            changes |= kinds[1:] != kinds[:-1]
        bound = lanes.bound
        if bound is not None:
            bound = bound[order]
            changes |= bound[1:] != bound[:-1]
        edges = [0, *(np.flatnonzero(changes) + 1).tolist(), rows]
        data, places = _joined(written.parts(), totals, order)
        for start, end in pairwise(edges):
            kind = 0 if kinds is None else int(kinds[start])
            queue = lanes.queues[int(lane[start])]
            held = bound is not None and bool(bound[start])
            sys_flag = COMPRESSED | self._settings.compression if kind & _COMPRESSED_KIND else 0
            if kind & _ALONE_KIND:
                for at in range(start, end):
                    source = int(order[at])
                    told = b"".join(_of_row(part, source) for part in written.properties)
                    text = told.decode() + self._wait
                    plain = written.body[source].as_py()
                    named = (ids.text(source),) * 2
                    flag = 0 if flags is None else int(flags[source])
                    yield Request(
                        queue, plain, numbers[at : at + 1], False, held, sys_flag, text, named, flag
                    )
                continue
            for low, high in self._full(places, start, end, len(queue.topic)):
                piece = data[int(places[low]) : int(places[high])]
                named = (ids.text(int(order[low])), ids.text(int(order[high - 1])))
                yield Request(queue, piece, numbers[low:high], True, held, sys_flag, self._wait, named)

    def _full(
        self, places: NDArray[np.int64], start: int, end: int, topic_bytes: int
    ) -> Iterator[tuple[int, int]]:
        """[start, end) in parts that fit a request: by rows, as sent and as stored."""
        extra = _STORED_EXTRA + topic_bytes
        most = self._settings.batch_size
        size = int(places[end]) - int(places[start])
        if (
            end - start <= most
            and size <= self._settings.batch_bytes
            and size + (end - start) * extra <= _STORED_LIMIT
        ):
            yield start, end
            return
        sent = places[start + 1 : end + 1] - places[start]
        stored = sent + np.arange(1, end - start + 1) * extra
        low = 0
        while low < end - start:
            before = int(sent[low - 1]) if low else 0
            before_stored = int(stored[low - 1]) if low else 0
            high = min(
                low + most,
                int(np.searchsorted(sent, before + self._settings.batch_bytes, "right")),
                int(np.searchsorted(stored, before_stored + _STORED_LIMIT, "right")),
            )
            high = min(max(high, low + 1), end - start)
            yield start + low, start + high
            low = high

    # --- errors --------------------------------------------------------------------------------

    def _check(
        self, wrong: NDArray[np.bool_], first: int, why: str, values: NDArray[np.int64] | None = None
    ) -> None:
        """Refuses these rows; the first of their values stand in the error in the place of ``{}``."""
        if wrong.any():
            found = np.flatnonzero(wrong) + first
            if values is not None:
                why = why.format(", ".join(str(value) for value in values[wrong][:_SHOWN_VALUES].tolist()))
            raise MessageIllegalError(f"{self.name_rows(found)} cannot be sent: {why}")

    def name_rows(self, rows: NDArray[np.int64], row_ids: tuple[str, str] | None = None) -> str:
        """``row 7 of query-3-1``, or the first few of many; with their ids if they have them already."""
        count = len(rows)
        low, last = int(rows[0]), int(rows[-1])
        if count == 1:
            told = f"row {low}"
        elif last - low == count - 1:
            told = f"rows {low} to {last}"
        else:
            listed = ", ".join(str(row) for row in rows[:_NAMED_ROWS].tolist())
            more = f" and {count - _NAMED_ROWS} more" if count > _NAMED_ROWS else ""
            told = f"rows {listed}{more}"
        if row_ids is None:
            return f"{told} of {self._task}"
        ids = row_ids[0] if count == 1 else f"{row_ids[0]} to {row_ids[1]}"
        return f"{told} of {self._task} ({ROW_ID_PROPERTY} {ids})"


class _Written(NamedTuple):
    """What the messages of a slice are made of: each of these for all rows."""

    head: Part
    body: pa.Array
    size: Part
    properties: list[Part]
    ids: Ids

    def parts(self) -> list[Part]:
        return [self.head, self.body, self.size, *self.properties]


@dataclass(frozen=True, slots=True)
class _Lanes:
    """Where the rows of a slice go: numbers in a list of queues."""

    queues: list[MessageQueue]
    lane: NDArray[np.int64]
    bound: NDArray[np.bool_] | None
    retry: NDArray[np.bool_] | None


def _grouped(lanes: _Lanes, kinds: NDArray[np.uint8] | None) -> NDArray[np.int64]:
    """The rows by queue: those that are bound to it in their order, the others by kind.

    A request ends wherever the kind changes, and rows that are not bound are promised no order.
    """
    key, most = lanes.lane, len(lanes.queues)
    if kinds is not None or lanes.bound is not None:
        group = np.zeros(len(key), np.uint8) if kinds is None else kinds
        group = group if lanes.bound is None else np.where(lanes.bound, np.uint8(_BOUND), group)
        key, most = key * _GROUPS + group, most * _GROUPS
    return np.argsort(key.astype(np.uint16) if most <= 1 << 16 else key, kind="stable")


_NO_TOPIC: Final = "they name no topic: fill the column topic, or give option('topic', NAME)"
_RESERVED: Final = pa.array(
    [name.encode() for name in sorted({*SYSTEM_PROPERTIES, ROW_ID_PROPERTY})], pa.binary()
)


# --- Arrow columns as numpy arrays ---------------------------------------------------------------


def _text(value: str) -> pa.Scalar:
    return pa.scalar(value.encode(), pa.binary())


def _binary(column: pa.Array | None) -> pa.Array:
    """Any text or bytes as 32-bit binary, nulls as empty ones."""
    assert column is not None
    if not pa.types.is_binary(column.type):
        column = column.cast(pa.binary())
    return column.fill_null(b"") if column.null_count else column


def _offsets(column: pa.Array) -> NDArray[np.int32]:
    """The offsets of a binary column, its slice respected."""
    found = np.frombuffer(column.buffers()[1], np.int32)
    return found[column.offset : column.offset + len(column) + 1]


def _lengths(column: pa.Array) -> NDArray[np.int64]:
    return np.diff(_offsets(column)).astype(np.int64) if len(column) else np.zeros(0, np.int64)


def _heads(totals: NDArray[np.int64], lengths: NDArray[np.int64], flags: NDArray[np.int64] | None) -> Part:
    """The head of each message; often they are all the same."""
    alike = flags is None and _all_equal(totals) and _all_equal(lengths)
    head = np.zeros((1 if alike else len(totals), _HEAD_BYTES // 4), ">i4")
    head[:, 0] = totals[:1] if alike else totals
    head[:, 4] = lengths[:1] if alike else lengths
    if flags is not None:
        head[:, 3] = flags
    return head.tobytes() if alike else fixed_width(head)


def _sizes(property_bytes: NDArray[np.int64]) -> Part:
    """The length of each message's properties."""
    alike = _all_equal(property_bytes)
    return property_bytes[:1].astype(">u2").tobytes() if alike else fixed_width(property_bytes.astype(">u2"))


def _all_equal(numbers: NDArray[np.int64]) -> bool:
    return int(numbers.min()) == int(numbers.max())


def _of_row(part: Part, row: int) -> bytes:
    value: bytes = part if isinstance(part, bytes) else part[row].as_py()
    return value


def _joined(
    parts: Sequence[Part], totals: NDArray[np.int64], order: NDArray[np.int64]
) -> tuple[memoryview, NDArray[np.int64]]:
    """The parts of each row one behind the other, the rows in this order; and where each row begins and ends."""
    places = np.zeros(len(totals) + 1, np.int64)
    np.cumsum(totals, out=places[1:])
    made = np.empty(int(places[-1]), np.uint8)
    pieces: list[bytes | _Column] = []
    for part in parts:
        if isinstance(part, bytes):
            pieces.append(part)
        elif (buffer := part.buffers()[2]) is not None:  # else no row has any of it
            pieces.append(_Column(np.frombuffer(buffer, np.uint8), _offsets(part), _lengths(part)))
    if all(isinstance(piece, bytes) or _all_equal(piece.lengths) for piece in pieces):
        _join_alike(pieces, order, made)
        return made.data, places
    for low in range(0, len(totals), _JOINED_ROWS):
        chosen = order[low : low + _JOINED_ROWS]
        at = places[low : low + len(chosen)].copy()
        for piece in pieces:
            if isinstance(piece, bytes):
                overlapping(made, len(piece))[at] = np.void(piece)
                at += len(piece)
            else:
                sizes = piece.lengths[chosen]
                copy(piece.data, piece.offsets[chosen].astype(np.int64), sizes, made, at)
                at += sizes
    return made.data, places


class _Column(NamedTuple):
    """A binary column as numpy sees it."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int32]
    lengths: NDArray[np.int64]


def _join_alike(pieces: Sequence[bytes | _Column], order: NDArray[np.int64], made: NDArray[np.uint8]) -> None:
    """For rows that are equally long in each part: a row is put together where it comes, and goes to its place whole.

    That is one jump for a row instead of one for each of its parts. What is the same in all rows is written once.
    """
    rows = len(order)
    places = np.empty(rows, np.int64)
    places[order] = np.arange(rows)
    widths = [len(piece) if isinstance(piece, bytes) else int(piece.lengths[0]) for piece in pieces]
    kind = np.dtype([(str(number), np.void, width) for number, width in enumerate(widths)])
    most = max(1, min(rows, _JOINED_ROWS, _JOINED_BYTES // kind.itemsize))
    some = np.empty(most, kind)
    columns: list[tuple[NDArray[np.void], NDArray[np.void]]] = []
    for number, (piece, width) in enumerate(zip(pieces, widths, strict=True)):
        goal = some[str(number)]
        if isinstance(piece, bytes):
            goal[:] = np.void(piece)
        elif width:
            data = piece.data[int(piece.offsets[0]) : int(piece.offsets[-1])]
            columns.append((goal, data.view(np.dtype((np.void, width)))))
    whole = np.dtype((np.void, kind.itemsize))
    lines, target = some.view(whole), made.view(whole)
    for low in range(0, rows, most):
        count = min(rows - low, most)
        for goal, column in columns:
            goal[:count] = column[low : low + count]
        target[places[low : low + count]] = lines[:count]


def _text_hashes(texts: list[str]) -> NDArray[np.uint64]:
    return hash_rows([pa.array(texts, pa.string()).cast(pa.binary())], len(texts)).high


def _holds_separator(column: pa.Array) -> bool:
    buffer = column.buffers()[2]
    if buffer is None or not len(column):
        return False
    places = _offsets(column)
    data = np.frombuffer(buffer, np.uint8)[int(places[0]) : int(places[-1])]
    return bool(((data == 1) | (data == 2)).any())


def _separator_rows(column: pa.Array) -> NDArray[np.bool_]:
    found = pc.or_(pc.match_substring(column, "\x01"), pc.match_substring(column, "\x02"))
    return np.asarray(found)


def _is_utf8(column: pa.Array) -> bool:
    """Spark's casts let any bytes be a string."""
    try:
        column.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _undecodable(column: pa.Array) -> NDArray[np.bool_]:
    return np.asarray([not _is_utf8(column[row : row + 1]) for row in range(len(column))])


def _few(column: pa.Array, wrong: NDArray[np.bool_]) -> str:
    """The first of these values, as an error shows them."""
    shown = []
    for row in np.flatnonzero(wrong)[:_SHOWN_VALUES].tolist():
        value: bytes = column[row].as_py()
        shown.append(repr(value[:_SHOWN_BYTES])[1:] + ("..." if len(value) > _SHOWN_BYTES else ""))
    return ", ".join(shown)


def _any_of(marked: NDArray[np.bool_], owner: NDArray[np.int64], rows: int) -> NDArray[np.bool_]:
    """Rows that own a marked entry."""
    found = np.zeros(rows, bool)
    found[owner[marked]] = True
    return found
