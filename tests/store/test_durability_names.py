"""Names of files that a killed process had made, and that no sync has reached yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from gimbalmq.testing import RecordedDisk
from tests.store.helpers import bodies, open_store, put

FILE = 1024


@pytest.mark.parametrize("seed", range(8))
def test_what_a_start_after_a_kill_makes_durable_includes_the_names_of_files(
    tmp_path: Path, seed: int
) -> None:
    """The file is there for the next process, from the system's cache, and not for the start after a power cut."""
    disk = RecordedDisk(tmp_path / "live")
    store = open_store(tmp_path / "live", files=disk, commitlog_file_bytes=FILE)
    put(store, "A", 0, b"0" * 100)
    store.flush()
    sent = [b"%d" % number * 100 for number in range(1, 20)]
    for body in sent:
        put(store, "A", 0, body)
    assert store.max_commitlog_offset > 3 * FILE
    store.abandon()  # killed
    store = open_store(tmp_path / "live", files=disk, commitlog_file_bytes=FILE)
    store.checkpoint()
    end = store.max_commitlog_offset
    disk.power_lost(disk.now, tmp_path / "after", seed)
    store.abandon()
    again = open_store(tmp_path / "after", commitlog_file_bytes=FILE)
    assert again.max_commitlog_offset == end
    assert bodies(again, "A", 0) == [b"0" * 100, *sent]
    again.close()
