"""What a store can be told. Sizes are Apache's defaults; tests make them small."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gimbalmq.errors import ConfigError

_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_delay_levels(text: str) -> dict[int, int]:
    """Reads RocketMQ's ``messageDelayLevel``: ``"1s 5s 1m"`` gives ``{1: 1000, 2: 5000, 3: 60000}``."""
    levels: dict[int, int] = {}
    for number, item in enumerate(text.split(), start=1):
        unit, digits = _UNIT_MS.get(item[-1:]), item[:-1]
        if unit is None or not digits.isdigit():
            raise ConfigError("messageDelayLevel", text, "numbers followed by s, m, h or d")
        levels[number] = int(digits) * unit
    return levels


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Options of a MessageStore.

    Attributes:
        root: the store folder (Java's ``storePathRootDir``).
        store_host: our address as records carry it: ip (4 or 16 bytes) and int32 port.
        commitlog_file_bytes: size of one commit-log file (``mappedFileSizeCommitLog``).
        queue_file_bytes: size of one consume-queue file, a multiple of 20.
        message_index_enable: whether the key index is kept (``messageIndexEnable``).
        index_slots, index_entries: ``maxHashSlotNum`` and ``maxIndexNum``.
        delay_levels_ms: level to delay, for rebuilding the schedule topic's queue entries.
        physical_memory_bytes: None asks the machine.
        queue_file_descriptors: how many consume-queue files stay open.
        log_files_open: how many commit-log files stay open for reading, at least.
        queue_tail_bytes: a queue's unwritten entries are written when they grow past this.
        queue_tails_total_bytes: all queues' are when their sum grows past this.
        index_pending_limit: a commit builds the index itself when more records wait.
        sync_flush: readers get only what is on the disk (``flushDiskType=SYNC_FLUSH``).
        delete_when_hours: local hours in which expired files go (``deleteWhen``).
        file_reserved_hours: age from which a file is expired (``fileReservedTime``).
        disk_usage: current use of the disk as 0..1; None asks the file system.
    """

    root: Path
    store_host: bytes = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
    commitlog_file_bytes: int = 1 << 30
    queue_file_bytes: int = 6_000_000
    message_index_enable: bool = True
    index_slots: int = 5_000_000
    index_entries: int = 20_000_000
    delay_levels_ms: Mapping[int, int] = field(default_factory=lambda: parse_delay_levels(_LEVELS))
    physical_memory_bytes: int | None = None
    memory_ratio: float = 0.4
    queue_file_descriptors: int = 512
    log_files_open: int = 32
    queue_tail_bytes: int = 64 * 1024
    queue_tails_total_bytes: int = 32 * 1024 * 1024
    index_pending_limit: int = 4096
    max_transfer_count_memory: int = 32
    max_transfer_bytes_memory: int = 262_144
    max_transfer_count_disk: int = 8
    max_transfer_bytes_disk: int = 65_536
    max_query_records: int = 64
    sync_flush: bool = False
    delete_when_hours: frozenset[int] = frozenset({4})
    file_reserved_hours: float = 72.0
    disk_max_used_ratio: float = 0.75
    disk_force_clean_ratio: float = 0.85
    disk_reject_ratio: float = 0.90
    clean_forcibly: bool = True
    delete_files_per_round: int = 10
    disk_usage: Callable[[], float] | None = None

    def __post_init__(self) -> None:
        if len(self.store_host) not in (8, 20):
            raise ConfigError("store_host", self.store_host, "4 or 16 address bytes and an int32 port")
        if self.commitlog_file_bytes < 256:
            raise ConfigError("commitlog_file_bytes", self.commitlog_file_bytes, "at least 256")
        if self.queue_file_bytes < 20 or self.queue_file_bytes % 20:
            raise ConfigError("queue_file_bytes", self.queue_file_bytes, "a positive multiple of 20")
        if self.index_slots < 1 or self.index_entries < 2:
            raise ConfigError(
                "index_slots", (self.index_slots, self.index_entries), "at least 1 slot, 2 entries"
            )
        if self.log_files_open < 2:
            raise ConfigError("log_files_open", self.log_files_open, "at least 2")
        if self.queue_file_descriptors < 1:
            raise ConfigError("queue_file_descriptors", self.queue_file_descriptors, "at least 1")
