"""What a store can be told: by its users under Apache's names (``StoreOptions``), by its owner (``StoreConfig``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gimbalmq._options import JAVA_INT, Configuration, option
from gimbalmq.errors import ConfigError

ASYNC_FLUSH, SYNC_FLUSH = "ASYNC_FLUSH", "SYNC_FLUSH"
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


@dataclass(frozen=True, kw_only=True)
class StoreOptions(Configuration):
    """The part of a broker's options that is about its store; defaults are Apache's."""

    store_path_root_dir: str = option(
        "", "folder of all data; the command's default is `~/.gimbalmq/store`", fixed=True
    )
    flush_disk_type: str = option(
        ASYNC_FLUSH,
        "`ASYNC_FLUSH`, or `SYNC_FLUSH`: a send is answered when it is on disk",
        choices=(ASYNC_FLUSH, SYNC_FLUSH),
        fixed=True,
    )
    mapped_file_size_commit_log: int = option(
        1 << 30, "bytes of a commit log file", between=(4096, JAVA_INT), fixed=True
    )
    mapped_file_size_consume_queue: int = option(
        6_000_000, "bytes of a consume queue file", between=(20, JAVA_INT), fixed=True
    )
    max_hash_slot_num: int = option(
        5_000_000, "hash slots of an index file", between=(1, 100_000_000), fixed=True
    )
    max_index_num: int = option(20_000_000, "entries of an index file", between=(2, 100_000_000), fixed=True)
    message_index_enable: bool = option(True, "index messages by key", fixed=True)
    message_delay_level: str = option(
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h", "the delay levels", fixed=True
    )
    delete_when: str = option("04", "hours of the day at which expired files are deleted, `04` or `02;14`")
    file_reserved_time: int = option(72, "hours a commit log file is kept", between=(1, 100 * 365 * 24))
    disk_max_used_space_ratio: int = option(
        75, "percent of the disk in use above which old files go early", between=(10, 95)
    )
    clean_file_forcibly_enable: bool = option(True, "a nearly full disk deletes old files before their time")

    def check(self) -> None:
        super().check()
        parse_delay_levels(self.message_delay_level)
        self.delete_hours()

    @property
    def sync_flush(self) -> bool:
        return self.flush_disk_type == SYNC_FLUSH

    def delete_hours(self) -> frozenset[int]:
        try:
            hours = frozenset(int(hour) for hour in self.delete_when.split(";") if hour.strip())
        except ValueError:
            hours = frozenset()
        if not hours or not all(0 <= hour <= 23 for hour in hours):
            raise ConfigError("deleteWhen", self.delete_when, "use hours from 00 to 23, like 04 or 02;14")
        return hours


_DEFAULT = StoreOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """What a MessageStore is made with; defaults are those of ``StoreOptions``. Tests make sizes small.

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
    commitlog_file_bytes: int = _DEFAULT.mapped_file_size_commit_log
    queue_file_bytes: int = _DEFAULT.mapped_file_size_consume_queue
    message_index_enable: bool = _DEFAULT.message_index_enable
    index_slots: int = _DEFAULT.max_hash_slot_num
    index_entries: int = _DEFAULT.max_index_num
    delay_levels_ms: Mapping[int, int] = field(
        default_factory=lambda: parse_delay_levels(_DEFAULT.message_delay_level)
    )
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
    sync_flush: bool = _DEFAULT.sync_flush
    delete_when_hours: frozenset[int] = _DEFAULT.delete_hours()
    file_reserved_hours: float = _DEFAULT.file_reserved_time
    disk_max_used_ratio: float = _DEFAULT.disk_max_used_space_ratio / 100
    disk_force_clean_ratio: float = 0.85
    disk_reject_ratio: float = 0.90
    clean_forcibly: bool = _DEFAULT.clean_file_forcibly_enable
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
