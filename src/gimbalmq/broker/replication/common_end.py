"""Where two logs part: the end of the last record that a store and a master have in common.

Records hold when and where they were stored, so logs that have parted never agree again: up to some record all are the
same, behind it none is. That record is found by halving, first among files and then inside one, with a question to the
master for each step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

from gimbalmq.broker.replication.agreement import bounds, record_of
from gimbalmq.model.record import BLANK_BYTES, MAGIC_BLANK, START
from gimbalmq.rpc.call import Caller
from gimbalmq.store.dispatcher import read_found
from gimbalmq.store.message_store import MessageStore


@dataclass(frozen=True, slots=True)
class Tail:
    """What a store has and a master has not.

    Attributes:
        common_end: end of the last record that both have; None if they have none in common.
        end: end of the store's log.
        master_begin, master_end: of the master's log.
        records: how many records lie behind ``common_end``, by topic.
        record_bytes: their sizes, likewise.
    """

    common_end: int | None
    end: int
    master_begin: int
    master_end: int
    records: dict[str, int] = field(default_factory=dict)
    record_bytes: dict[str, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return 0 if self.common_end is None else self.end - self.common_end


async def find_tail(store: MessageStore, file_bytes: int, caller: Caller, master: str) -> Tail:
    """Compares a store that nobody writes with a master's log.

    Args:
        file_bytes: size of one file of the log, the same at both.

    Raises:
        TransportError, ResponseError, RemoteProtocolError: the master could not be asked.
    """
    begin, master_end = await bounds(caller, master)
    end = store.max_commitlog_offset
    if end <= store.min_commitlog_offset:
        return Tail(end, end, begin, master_end)

    async def is_common(place: int) -> bool:
        record = await record_of(caller, master, place)
        return record is not None and bytes(store.log_bytes(place, len(record))) == record

    first = max(store.min_commitlog_offset, begin)
    if first >= end:
        return Tail(None, end, begin, master_end)
    bases = [base for base in range(first - first % file_bytes, end, file_bytes) if base >= first]
    if first % file_bytes:
        bases.insert(0, first)
    index = await _last(bases, is_common)
    if index is None:
        return Tail(None, end, begin, master_end)
    places = list(_records(store, bases[index], file_bytes))
    last = await _last([place for place, _ in places], is_common)
    assert last is not None, "the first record of the file is common"
    common = sum(places[last])
    return Tail(common, end, begin, master_end, *_lost(store, common, end, file_bytes))


async def _last(places: Sequence[int], is_common: Callable[[int], Awaitable[bool]]) -> int | None:
    """Index of the last place that is common, of which none follows one that is not."""
    low, high = 0, len(places)
    while low < high:
        middle = (low + high) // 2
        if await is_common(places[middle]):
            low = middle + 1
        else:
            high = middle
    return low - 1 if low else None


def _records(store: MessageStore, begin: int, file_bytes: int) -> Iterator[tuple[int, int]]:
    """Place and size of each record from ``begin`` to the end of its file."""
    view = store.log_bytes(begin, file_bytes)
    position = 0
    while position + BLANK_BYTES <= len(view):
        size, magic = START.unpack_from(view, position)
        if magic == MAGIC_BLANK or size < BLANK_BYTES or position + size > len(view):
            return
        yield begin + position, size
        position += size


def _lost(
    store: MessageStore, begin: int, end: int, file_bytes: int
) -> tuple[dict[str, int], dict[str, int]]:
    """Records and their bytes by topic."""
    records: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    while begin < end:
        for place, size in _records(store, begin, file_bytes):
            found = read_found(store.log_bytes(place, size), 0, place)
            records[found.topic] += 1
            sizes[found.topic] += size
        begin += file_bytes - begin % file_bytes
    return dict(records), dict(sizes)
