"""A topic's deletion as a record of the commit log.

A deleted topic's records stay in the log until it rolls, and a topic made again under the same name counts its
queue offsets from 0 anew. So whoever reads the log from before the deletion must learn of it between the old
records and the new ones. A record at that place says so: it becomes durable with the log, before anything that
follows it, and it goes when the log's file goes, after all that it speaks of.

For Apache's broker it is a rolled-back message: it enters no queue and no index. Clients cannot forge it, because
no topic of theirs may have a dot in its name.
"""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

from gimbalmq.model.flags import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from gimbalmq.model.record import find_property
from gimbalmq.store.append import AppendGroup
from gimbalmq.store.consumequeue import QueueLog

DELETION_TOPIC = "gimbalmq.deleted"


class Deletion(NamedTuple):
    """What the record says.

    Attributes:
        entries_mark: what the topic's queues added to the store's mark (see ``entries_mark``) when they went.
    """

    topic: str
    entries_mark: int


def encode_deletion(deletion: Deletion) -> bytes:
    """The properties of the record; with a check sum, because the record's covers the body only."""
    data = f"{deletion.topic}\x03{deletion.entries_mark}".encode()
    return b"DELETED\x01%b\x02CRC\x01%d\x02" % (data, crc32(data))


def decode_deletion(topic: str, sys_flag: int, properties: bytes) -> Deletion | None:
    """None if the record is no deletion, or a damaged one."""
    if topic != DELETION_TOPIC or sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK:
        return None
    data = find_property(properties, b"DELETED")
    if data is None or find_property(properties, b"CRC") != b"%d" % crc32(data):
        return None
    name, _, mark = data.decode().partition("\x03")
    return Deletion(name, int(mark))


def add_deletion(group: AppendGroup, deletion: Deletion) -> None:
    """Adds the record to a group."""
    place, now, host = QueueLog(DELETION_TOPIC, 0), group.store_timestamp, group.store_host
    group.add(place, b"", encode_deletion(deletion), 0, 0, TRANSACTION_ROLLBACK, now, host, 0, 0)
