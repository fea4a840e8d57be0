"""Metadata files: whole after a crash, or the one before; never half of either."""

from __future__ import annotations

import asyncio
import errno
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from gimbalmq.broker.json_file import JsonFile, Saving, TableThread
from gimbalmq.errors import DiskFullError, StoreIOError
from gimbalmq.store.files import Files
from gimbalmq.testing.loop import run_virtual
from tests.support import run, until


def _same(document: Any) -> Any:
    return document


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "topics.json"


def test_saved_document_is_loaded_and_the_one_before_is_kept(path: Path) -> None:
    file = JsonFile(path)
    assert file.load(_same) is None
    for number in (1, 2, 3):
        file.save({"n": number})
    assert JsonFile(path).load(_same) == {"n": 3}
    assert json.loads(path.with_name("topics.json.bak").read_text()) == {"n": 2}
    assert sorted(p.name for p in path.parent.iterdir()) == ["topics.json", "topics.json.bak"]


def test_unchanged_document_is_not_written(path: Path) -> None:
    file = JsonFile(path)
    file.save({"n": 1})
    before = path.stat().st_ino
    file.save({"n": 1})
    assert path.stat().st_ino == before
    again = JsonFile(path)
    again.load(_same)
    again.save({"n": 1})
    assert path.stat().st_ino == before


class Crash(BaseException):
    pass


class FailingFiles(Files):
    """Counts what changes the disk, and fails at one such step."""

    def __init__(self, at: int, error: BaseException) -> None:
        self.steps = 0
        self._at = at
        self._error = error

    def _step(self) -> None:
        self.steps += 1
        if self.steps == self._at:
            raise self._error

    def write_at(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        self._step()
        super().write_at(fd, data, position)

    def truncate(self, fd: int, size: int) -> None:
        self._step()
        super().truncate(fd, size)

    def sync(self, fd: int) -> None:
        self._step()
        super().sync(fd)

    def sync_folder(self, folder: Path | str) -> None:
        self._step()
        super().sync_folder(Path(folder))

    def replace(self, source: Path | str, target: Path | str) -> None:
        self._step()
        super().replace(source, target)


_STEPS = 7  # truncate, two writes, sync, two renames, sync of the folder


@pytest.mark.parametrize("crash_at", range(1, _STEPS + 2))
def test_crash_at_any_step_leaves_the_old_or_the_new(path: Path, crash_at: int) -> None:
    file = JsonFile(path)
    file.save({"n": 0})
    file.save({"n": 1})
    crashing = JsonFile(path, FailingFiles(crash_at, Crash()))
    assert crashing.load(_same) == {"n": 1}
    try:
        crashing.save({"n": 2})
        assert crash_at == _STEPS + 1
    except Crash:
        pass
    assert JsonFile(path).load(_same) == {"n": 1 if crash_at < _STEPS else 2}
    # What the crash left lying about is no hindrance.
    survivor = JsonFile(path)
    survivor.load(_same)
    survivor.save({"n": 3})
    assert JsonFile(path).load(_same) == {"n": 3}


@pytest.mark.parametrize("fail_at", range(1, _STEPS + 1))
def test_refusal_of_the_disk_at_any_step_is_mended_by_the_next_save(path: Path, fail_at: int) -> None:
    file = JsonFile(path)
    file.save({"n": 0})
    file.save({"n": 1})
    failing = JsonFile(path, FailingFiles(fail_at, OSError(errno.ENOSPC, "No space left on device")))
    failing.load(_same)
    with pytest.raises(DiskFullError, match=r"topics\.json cannot be written: No space left"):
        failing.save({"n": 2})
    assert JsonFile(path).load(_same) in ({"n": 1}, {"n": 2})
    failing.save({"n": 3})
    assert JsonFile(path).load(_same) == {"n": 3}
    failing.save({"n": 4})
    assert json.loads(path.with_name("topics.json.bak").read_text()) == {"n": 3}


@pytest.mark.parametrize("crash_at", range(1, _STEPS + 1))
def test_damaged_file_never_becomes_the_backup(path: Path, crash_at: int) -> None:
    file = JsonFile(path)
    file.save({"n": 1})
    file.save({"n": 2})
    path.write_text("{")
    crashing = JsonFile(path, FailingFiles(crash_at, Crash()))
    assert crashing.load(_same) == {"n": 1}
    try:
        crashing.save({"n": 3})
    except Crash:
        pass
    assert JsonFile(path).load(_same) in ({"n": 1}, {"n": 3})


@pytest.mark.parametrize("damage", [b"", b"  \n", b'{"n": ', b"\xff\xfe", b"[1, 2]", None])
def test_backup_stands_in_for_a_file_that_is_gone_or_damaged(path: Path, damage: bytes | None) -> None:
    file = JsonFile(path)
    file.save({"n": 1})
    file.save({"n": 2})
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    again = JsonFile(path)
    assert again.load(lambda document: document.get("n")) == 1
    again.save({"n": 5})
    assert JsonFile(path).load(_same) == {"n": 5}


def test_both_damaged_says_which_file_and_what_to_do(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"n": 1')
    with pytest.raises(StoreIOError) as caught:
        JsonFile(path).load(_same)
    assert str(path) in str(caught.value)
    assert "character 7" in str(caught.value) and "mend it or move it away" in str(caught.value)


def test_document_of_another_shape_counts_as_damaged(path: Path) -> None:
    path.parent.mkdir()
    for text in ("[]", '{"n": "x"}', "5"):
        path.write_text(text)
        with pytest.raises(StoreIOError, match=r"topics\.json is damaged"):
            JsonFile(path).load(lambda document: int(document.get("n")))


def test_file_that_cannot_be_read_or_written(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(StoreIOError, match=r"topics\.json cannot be read: Is a directory"):
        JsonFile(path).load(_same)
    with pytest.raises(StoreIOError, match=r"topics\.json cannot be written"):
        JsonFile(path).save({})


def test_many_changes_cost_one_write(path: Path) -> None:
    async def work() -> None:
        writes = 0
        state = {"n": 0}

        def document() -> dict[str, object]:
            nonlocal writes
            writes += 1
            return dict(state)

        saving = Saving(path, document, delay=0.001)
        for number in range(1000):
            state["n"] = number
            saving.soon()
        await asyncio.gather(saving.saved(), saving.saved())
        assert writes == 1
        assert json.loads(path.read_text()) == {"n": 999}
        state["n"] = 5
        saving.soon()
        await saving.finish()
        assert json.loads(path.read_text()) == {"n": 5}
        await saving.finish()
        assert writes == 2

    run(work())


def test_those_who_wait_hear_of_a_failure_and_a_later_save_mends_it(path: Path) -> None:
    async def work() -> None:
        saving = Saving(path, lambda: {"n": 1}, delay=0.001)
        path.mkdir(parents=True)
        with pytest.raises(StoreIOError, match="cannot be written"):
            await saving.saved()
        path.rmdir()
        began = asyncio.get_running_loop().time()
        await saving.saved()
        assert asyncio.get_running_loop().time() - began < 4, "not only at the next try of the failed one"
        assert json.loads(path.read_text()) == {"n": 1}

    run(work())


def test_failed_save_is_tried_again_by_itself(path: Path) -> None:
    async def work(_clock: object) -> None:
        failing = TableThread(
            FailingFiles(4, OSError(errno.EIO, "Input/output error"))
        )  # the sync of the file
        saving = Saving(path, lambda: {"n": 1}, failing)
        with pytest.raises(StoreIOError, match="Input/output error"):
            await saving.saved()
        assert not path.exists()
        await asyncio.sleep(6)
        assert json.loads(path.read_text()) == {"n": 1}
        failing.close()

    run_virtual(work)


class GatedFiles(Files):
    """A disk whose sync takes until the test lets it go."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.syncing = threading.Event()

    def sync(self, fd: int) -> None:
        self.syncing.set()
        assert self.gate.wait(30)


def test_disk_that_does_not_answer_does_not_stop_the_loop(path: Path) -> None:
    """Once each save was two syncs on the event loop."""

    async def work() -> None:
        files = GatedFiles()
        thread = TableThread(files)
        state = {"n": 1}
        saving = Saving(path, lambda: dict(state), thread, delay=0)
        first = asyncio.ensure_future(saving.saved())
        await until(files.syncing.is_set)
        # The loop turns although the disk stands still; what changes now is for the next write.
        state["n"] = 2
        second = asyncio.ensure_future(saving.saved())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not first.done() and not second.done()
        files.gate.set()
        await asyncio.gather(first, second)
        assert json.loads(path.read_text()) == {"n": 2}
        assert json.loads(path.with_name("topics.json.bak").read_text()) == {"n": 1}
        thread.close()

    run(work())


def test_shutdown_during_a_write_waits_for_it_and_saves_the_rest(path: Path) -> None:
    async def work() -> None:
        files = GatedFiles()
        thread = TableThread(files)
        state = {"n": 1}
        saving = Saving(path, lambda: dict(state), thread, delay=0)
        saving.soon()
        await until(files.syncing.is_set)
        state["n"] = 2
        saving.soon()
        ending = asyncio.ensure_future(saving.finish())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not ending.done()
        files.gate.set()
        await ending
        assert json.loads(path.read_text()) == {"n": 2}
        thread.close()

    run(work())
