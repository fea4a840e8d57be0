"""With synchronous flush an answer means "on disk": what was never synced may vanish, no more.

Killing a process leaves its writes in the system's cache, so it cannot show this. Here the
file layer itself forgets: at the power cut every byte written since a file's last sync goes
back to what it was.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.model.record import decode_record
from gimbalmq.store.config import StoreConfig
from gimbalmq.store.files import Files
from gimbalmq.store.message_store import MessageStore


class ForgetfulFiles(Files):
    """Remembers what each unsynced write replaced, and can put it back."""

    def __init__(self) -> None:
        self._unsynced: dict[int, list[tuple[int, bytes]]] = {}

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        before = self.read_at(fd, len(data), position)
        written = super().pwrite(fd, data, position)
        self._unsynced.setdefault(fd, []).append((position, before))
        return written

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self._unsynced.pop(fd, None)

    def close(self, fd: int) -> None:
        # Writes of a closed descriptor would need its path to be undone; keeping it open is simpler.
        if fd not in self._unsynced:
            super().close(fd)

    def cut_power(self, rng: random.Random) -> None:
        """Undoes unsynced writes, newest first; some reach the disk all the same, in any order."""
        for fd, writes in self._unsynced.items():
            for position, before in reversed(writes):
                if rng.random() < 0.8:
                    super().pwrite(fd, before, position)


def config(folder: Path) -> StoreConfig:
    return StoreConfig(
        root=folder,
        commitlog_file_bytes=65536,
        queue_file_bytes=2000,
        index_slots=100,
        index_entries=400,
    )


@pytest.mark.parametrize("seed", range(20))
def test_what_was_synced_survives_a_power_cut(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    files = ForgetfulFiles()
    store = MessageStore(config(tmp_path), SYSTEM_CLOCK, files)
    store.load()
    promised: list[tuple[int, int, int, bytes]] = []
    waiting: list[tuple[int, int, int, bytes]] = []
    for number in range(300):
        queue = store.queue("T", rng.randrange(3))
        body = b"%d-" % number + rng.randbytes(rng.randrange(200))
        with store.group() as group:
            place = group.add(queue, body, b"KEYS\x01k\x02", 0, 0, 0, 1, bytes(8), 0, 0)
        waiting.append((*place, queue.queue_id, body))
        if rng.random() < 0.1:
            durable = store.flush()
            assert durable >= waiting[-1][0]
            promised += waiting
            waiting.clear()
        if rng.random() < 0.05:
            store.flush_queues()
    files.cut_power(rng)

    again = MessageStore(config(tmp_path), SYSTEM_CLOCK)
    store.abandon()
    again.load()
    lost = []
    for commitlog_offset, queue_offset, queue_id, body in promised:
        raw = again.record_at_queue("T", queue_id, queue_offset)
        if raw is None or decode_record(raw).body != body or again.record_at(commitlog_offset) != raw:
            lost.append(body)
    again.close()
    print(f"seed {seed}: acknowledged {len(promised)}, lost {len(lost)}")
    assert not lost
