"""Open files are bounded, however many there are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.store.helpers import LOG_FILE, bodies, open_store, put

FILES = 60


def open_files(folder: Path) -> int:
    """Descriptors of this process that lie under the folder, those of maps included."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{fd}").startswith(f"{folder}/")
        except FileNotFoundError:
            pass
    return count


pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")


def test_many_log_files_take_few_descriptors(tmp_path: Path) -> None:
    store = open_store(tmp_path, log_files_open=4, message_index_enable=False)
    folder = tmp_path / "commitlog"
    for n in range(FILES):
        put(store, "t", 0, bytes([n]) * (LOG_FILE - 200))
        store.flush()
        assert open_files(folder) <= 9
    assert len(os.listdir(folder)) == FILES
    expected = [bytes([n]) * (LOG_FILE - 200) for n in range(FILES)]
    assert bodies(store, "t", 0) == expected
    assert open_files(folder) <= 9
    store.abandon()  # the start after a crash looks at every file
    (tmp_path / "checkpoint").unlink(missing_ok=True)
    store = open_store(tmp_path, log_files_open=4, message_index_enable=False)
    assert open_files(folder) <= 9
    assert bodies(store, "t", 0) == expected
    put(store, "t", 0, b"more")
    store.flush()
    store.close()


def test_files_that_are_not_synced_stay_open(tmp_path: Path) -> None:
    store = open_store(tmp_path, log_files_open=2, message_index_enable=False)
    for n in range(10):
        put(store, "t", 0, bytes([n]) * (LOG_FILE - 200))
    assert len(bodies(store, "t", 0)) == 10
    assert open_files(tmp_path / "commitlog") >= 10
    store.flush()
    for n in range(3):
        put(store, "t", 0, bytes([n]) * (LOG_FILE - 200))
    assert open_files(tmp_path / "commitlog") <= 10
    store.close()


def test_an_answer_keeps_what_it_reads_although_its_file_was_closed(tmp_path: Path) -> None:
    store = open_store(tmp_path, commitlog_file_bytes=1 << 18, log_files_open=2, message_index_enable=False)
    for n in range(8):
        put(store, "t", 0, bytes([n]) * 200_000)
        store.flush()
    answers = [store.get("t", 0, n, 1) for n in range(8)]
    for n, answer in enumerate(answers):
        assert bytes([n]) * 200_000 in answer.body
    store.close()
