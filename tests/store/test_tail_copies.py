"""Queue entries written by another thread."""

from __future__ import annotations

from pathlib import Path

import pytest

from gimbalmq._steps import run_through
from gimbalmq.store.consumequeue import _FILES_AT_ONCE
from tests.store.helpers import FailingFiles, open_store, put


def test_the_thread_that_writes_many_files_leaves_the_interpreter_to_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path, files=FailingFiles(), message_index_enable=False)
    queues = 3 * _FILES_AT_ONCE
    for number in range(queues):
        put(store, f"T{number}", 0, b"m")
    copies = run_through(store.copy_tails())
    rests: list[int] = []
    monkeypatch.setattr(copies._pause, "wait", lambda seconds: rests.append(copies._done))
    copies.write()
    assert rests == [_FILES_AT_ONCE, 2 * _FILES_AT_ONCE]  # not at the begin, and not when all is done
    run_through(store.tails_written(copies))
    assert store.queues_in_memory == 0
    store.close()
