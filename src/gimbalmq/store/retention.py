"""How many commit-log files may go: a plain function of their ages and of the disk's use.

The oldest files go first, and the last one never goes. Normally a file must have expired, and besides the hour must
have come, or the disk be filling up, or an operator have asked. If the disk is fuller still, files go whatever their
age.
"""

from __future__ import annotations

from datetime import UTC, datetime

from gimbalmq.store.config import StoreConfig


def files_to_drop(
    modified_ms: list[int], now_ms: int, usage: float, config: StoreConfig, *, manual: bool = False
) -> int:
    """How many go now, of files that are given by their last modification, oldest file first."""
    forced = config.clean_forcibly and usage > config.disk_force_clean_ratio
    hour = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone().hour
    due = manual or usage > config.disk_max_used_ratio or hour in config.delete_when_hours
    if not (due or forced):
        return 0
    expired_before = now_ms - config.file_reserved_hours * 3_600_000
    drop = 0
    for modified in modified_ms[:-1][: config.delete_files_per_round]:
        if not forced and modified > expired_before:
            break
        drop += 1
    return drop
