"""Where the log of a slave and that of its master part, for a slave that has a tail which its master does not have.

Up to some place both logs are the same byte for byte, and behind it no record is. So it is found by halving: first the
file, then the record, with one question to the master each (``agreement``).
"""

from __future__ import annotations

from array import array

from gimbalmq._steps import Steps
from gimbalmq.broker.replication import agreement
from gimbalmq.errors import CopyRefusedError
from gimbalmq.model.record import MAGIC_V1, MAGIC_V2, MIN_RECORD, START
from gimbalmq.rpc.call import Caller
from gimbalmq.store.dispatcher import LogScanner
from gimbalmq.store.message_store import MessageStore
from gimbalmq.transport.turns import Turns

_STEP = 4096
_SCANNED_STEP = 256
_MAGICS = (MAGIC_V1, MAGIC_V2)


async def last_common(store: MessageStore, caller: Caller, master: str, turns: Turns) -> int:
    """The offset behind the last record that both logs have.

    Raises:
        CopyRefusedError: the master no longer has what would have to be compared.
        TransportError, ResponseError, RemoteProtocolError: it could not be asked.
    """
    begin, end = await agreement.bounds(caller, master)

    async def same(offset: int) -> bool:
        ours = store.record_at(offset)
        if ours is None or offset >= end:
            return False
        return await agreement.record_of(caller, master, offset) == bytes(ours)

    segments = store.log.segments
    bases = [base for base in (segments[index].base for index in range(len(segments))) if base >= begin]
    low, high = 0, len(bases)
    while low < high:  # files before ``low`` begin as the master's, those from ``high`` on do not
        middle = (low + high) // 2
        if await same(bases[middle]):
            low = middle + 1
        else:
            high = middle
    if low == 0:
        if bases and bases[0] == begin == store.min_commitlog_offset:
            return begin
        raise CopyRefusedError(
            f"no file of our log begins as one of the master {master}, whose log begins at {begin}: nothing of ours "
            "can be kept; stop this slave, empty its store folder and start it: it copies everything anew"
        )
    places, behind = await turns.run(_records(store, bases[low - 1]))
    low, high = 1, len(places)
    while low < high:
        middle = (low + high) // 2
        if await same(places[middle]):
            low = middle + 1
        else:
            high = middle
    return places[low] if low < len(places) else behind


def _records(store: MessageStore, base: int) -> Steps[tuple[array[int], int]]:
    """Where the records of one file begin, and where the last of them ends.

    Only their sizes are read: a file may have millions of them, and the master waits. Behind a place that is damaged a
    scanner finds the next record.
    """
    segments = store.log.segments
    places = array("q")
    behind, end = base, min(base + segments.size, store.max_commitlog_offset)
    with memoryview(segments.map(segments.at(base))) as view:
        while behind + MIN_RECORD <= end:
            size, magic = START.unpack_from(view, behind - base)
            if magic not in _MAGICS or size < MIN_RECORD or behind + size > end:
                break
            places.append(behind)
            behind += size
            if len(places) % _STEP == 0:
                yield
    for number, found in enumerate(LogScanner(segments, behind, end)):
        if found.commitlog_offset >= end:
            break
        places.append(found.commitlog_offset)
        behind = found.commitlog_offset + found.size
        if number % _SCANNED_STEP == 0:
            yield
    return places, behind
