"""Which commit-log files may go. A plain function of ages and disk use; the store does the deed.

The oldest files go first, never the last one. Normally a file must be expired, and it must be the
hour for it, or the disk filling up, or an operator asking. When the disk is fuller still, age no
longer protects; fuller yet, and the store also refuses new messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from gimbalmq.store.config import StoreConfig


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many of the oldest files go now, and whether new messages are to be refused."""

    drop: int
    reject_writes: bool


def decide(
    modified_ms: list[int], now_ms: int, usage: float, config: StoreConfig, *, manual: bool = False
) -> Verdict:
    """Decides for files given by their last modification, oldest file first."""
    reject = usage > config.disk_reject_ratio
    forced = config.clean_forcibly and usage > config.disk_force_clean_ratio
    hour = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone().hour
    due = manual or usage > config.disk_max_used_ratio or hour in config.delete_when_hours
    if not (due or forced):
        return Verdict(0, reject)
    expired_before = now_ms - config.file_reserved_hours * 3_600_000
    drop = 0
    for modified in modified_ms[:-1][: config.delete_files_per_round]:
        if not forced and modified > expired_before:
            break
        drop += 1
    return Verdict(drop, reject)
