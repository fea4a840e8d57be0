"""A small store, a clock that stands still, and a disk that can be told to fail."""

from __future__ import annotations

import errno
import shutil
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

from gimbalmq.model.ids import pack_host
from gimbalmq.model.javahash import java_hash
from gimbalmq.model.record import Record, encode_properties, iter_records
from gimbalmq.store import MessageStore, StoreConfig
from gimbalmq.store.append import AppendGroup
from gimbalmq.store.files import Files
from gimbalmq.store.index_file import IndexFile

BORN = pack_host("10.1.2.3", 5555)
NOON = 1_700_000_000_000
LOG_FILE = 4096
QUEUE_FILE = 200  # ten entries


class FakeClock:
    def __init__(self, now_ms: int = NOON) -> None:
        self.now_ms = now_ms

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic(self) -> float:
        return self.now_ms / 1000


class FailingFiles(Files):
    """Real files whose disk has ``room`` bytes left and takes at most ``bite`` bytes a write.

    Syncs are counted, not done: no test here cuts the power, and a busy disk would slow all of them.
    """

    def __init__(self) -> None:
        self.room: int | None = None
        self.bite: int | None = None
        self.error = errno.ENOSPC
        self.sync_fails = False
        self.synced = 0

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        size = len(data)
        if self.bite is not None:
            size = min(size, self.bite)
        if self.room is not None:
            if self.room <= 0 and size:
                raise OSError(self.error, "injected")
            size = min(size, self.room)
            self.room -= size
        return super().pwrite(fd, memoryview(data)[:size], position)

    def allocate(self, fd: int, start: int, size: int) -> None:
        if self.room is not None and self.room < size:
            raise OSError(self.error, "injected")
        super().allocate(fd, start, size)

    def sync(self, fd: int) -> None:
        if self.sync_fails:
            raise OSError(errno.EIO, "injected")
        self.synced += 1

    def sync_folder(self, folder: Path | str) -> None:
        pass


def config_for(root: Path, **options: Any) -> StoreConfig:
    config = StoreConfig(
        root=root,
        commitlog_file_bytes=LOG_FILE,
        queue_file_bytes=QUEUE_FILE,
        index_slots=16,
        index_entries=64,
        physical_memory_bytes=1 << 30,
        disk_usage=lambda: 0.1,
    )
    return replace(config, **options)


def open_store(
    root: Path, clock: FakeClock | None = None, files: Files | None = None, **options: Any
) -> MessageStore:
    store = MessageStore(config_for(root, **options), clock or FakeClock(), files or FailingFiles())
    store.load()
    return store


def add(
    group: AppendGroup,
    store: MessageStore,
    topic: str,
    queue_id: int,
    body: bytes,
    *,
    sys_flag: int = 0,
    **properties: str,
) -> tuple[int, int]:
    tags_code = java_hash(properties.get("TAGS", ""))
    encoded = encode_properties(properties)
    queue = store.queue(topic, queue_id)
    return group.add(queue, body, encoded, tags_code, 0, sys_flag, NOON - 5, BORN, 0, 0)


def put(
    store: MessageStore, topic: str, queue_id: int, body: bytes, *, sys_flag: int = 0, **properties: str
) -> tuple[int, int]:
    """Appends one message in a group of its own."""
    group = store.group()
    places = add(group, store, topic, queue_id, body, sys_flag=sys_flag, **properties)
    group.commit()
    return places


def read_all(store: MessageStore, topic: str, queue_id: int) -> list[Record]:
    """Every message of a queue, by following next_offset as a consumer does."""
    queue = store.find_queue(topic, queue_id)
    if queue is None:
        return []
    records: list[Record] = []
    offset = queue.min_offset
    while offset < queue.max_offset:
        result = store.get(topic, queue_id, offset, 32)
        records += iter_records(result.body, check_crc=True)
        assert result.next_offset > offset
        offset = result.next_offset
    assert [r.queue_offset for r in records] == list(range(queue.max_offset - len(records), queue.max_offset))
    return records


def bodies(store: MessageStore, topic: str, queue_id: int) -> list[bytes]:
    return [record.body for record in read_all(store, topic, queue_id)]


def snapshot(store_root: Path, target: Path) -> Path:
    """The folder as a killed process would leave it."""
    shutil.copytree(store_root, target)
    return target


def index_content(
    path: Path, slots: int, entries: int
) -> tuple[tuple[int, ...], bytes, list[tuple[int, ...]]]:
    """Header, slot table and used entries of an index file."""
    data = path.read_bytes()
    assert len(data) == IndexFile.size(slots, entries)
    header = struct.unpack_from(">qqqqii", data)
    start = 40 + slots * 4
    used = data[start + 20 : start + 20 * header[5]]
    return header, data[40:start], list(struct.iter_unpack(">iqii", used))
