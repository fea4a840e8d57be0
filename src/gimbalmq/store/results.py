"""The values a store answers with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

Buffer = bytes | memoryview


class GetStatus(IntEnum):
    """Outcome of a read by queue offset; the names are Java's ``GetMessageStatus``."""

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MATCHED_LOGIC_QUEUE = 7
    NO_MESSAGE_IN_QUEUE = 8


@dataclass(slots=True)
class GetResult:
    """What ``MessageStore.get`` found.

    Attributes:
        next_offset: where the next pull of this queue begins.
        count, size: records found, and their bytes.
        parts: the stored records one after the other, as a pull answer carries them. Let go of them soon:
            a part may be a view of the log's file, which cannot be unmapped meanwhile.
        on_disk: the last entry looked at, wanted or not, lies further behind the log's end than the part of memory
            that holds it reaches.
    """

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    count: int = 0
    size: int = 0
    parts: Sequence[Buffer] = ()
    on_disk: bool = False

    @property
    def body(self) -> bytes:
        """All parts as one copy."""
        return b"".join(self.parts)


class QueryResult(NamedTuple):
    """Records found by key, and how far the index reaches."""

    records: list[bytes]
    index_last_update_timestamp: int
    index_last_update_phyoffset: int


@dataclass(slots=True)
class RecoveryReport:
    """What ``MessageStore.load`` had to do.

    Attributes:
        clean: the folder was closed properly (or is new).
        scan_start: commit-log offset from which records were checked.
        records_scanned: valid records met from there on.
        redispatched: queue entries that had been missing.
        truncated_bytes: bytes behind the last valid record that were thrown away.
        is_shorter: the log ends before what the checkpoint says was on the disk, at this start or at an earlier one of
            which nobody has noted it (``MessageStore.forget_shorter``).
        end_reason: why the scan ended where it ended.
        notes: what an operator should know (adopted sizes, ignored files).
    """

    clean: bool = True
    scan_start: int = 0
    records_scanned: int = 0
    redispatched: int = 0
    truncated_bytes: int = 0
    is_shorter: bool = False
    end_reason: str = ""
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class CleanReport:
    """What ``MessageStore.delete_expired`` removed."""

    commitlog_files: int = 0
    queue_files: int = 0
    index_files: int = 0
