"""Metadata files: whole after a crash, or the one before; never half of either."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from gimbalmq.broker.json_file import CoalescedSave, JsonFile
from gimbalmq.errors import StoreIOError
from tests.support import run


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


@pytest.mark.parametrize("crash_at", range(4))
def test_crash_at_any_step_leaves_the_old_or_the_new(
    path: Path, monkeypatch: pytest.MonkeyPatch, crash_at: int
) -> None:
    """Steps: sync and rename of the backup, sync and rename of the file."""
    file = JsonFile(path)
    file.save({"n": 0})
    file.save({"n": 1})
    steps = 0

    class Crash(BaseException):
        pass

    def step(real: Any) -> Any:
        def call(*arguments: Any) -> Any:
            nonlocal steps
            if steps == crash_at:
                raise Crash
            steps += 1
            return real(*arguments)

        return call

    monkeypatch.setattr(os, "fsync", step(lambda *_: None))
    monkeypatch.setattr(os, "replace", step(os.replace))
    with pytest.raises(Crash):
        file.save({"n": 2})
    monkeypatch.undo()
    assert JsonFile(path).load(_same) == {"n": 1}
    # What the crash left lying about is no hindrance.
    survivor = JsonFile(path)
    survivor.load(_same)
    survivor.save({"n": 3})
    assert JsonFile(path).load(_same) == {"n": 3}


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

        def document() -> object:
            nonlocal writes
            writes += 1
            return dict(state)

        saving = CoalescedSave(JsonFile(path), document, delay=0.001)
        for number in range(1000):
            state["n"] = number
            saving.soon()
        await asyncio.gather(saving.saved(), saving.saved())
        assert writes == 1
        assert json.loads(path.read_text()) == {"n": 999}
        state["n"] = 5
        saving.soon()
        saving.now()
        assert json.loads(path.read_text()) == {"n": 5}
        saving.now()

    run(work())


def test_those_who_wait_hear_of_a_failure_and_a_later_save_mends_it(path: Path) -> None:
    async def work() -> None:
        saving = CoalescedSave(JsonFile(path), lambda: {"n": 1}, delay=0.001)
        path.mkdir(parents=True)
        with pytest.raises(StoreIOError, match="cannot be written"):
            await saving.saved()
        path.rmdir()
        began = asyncio.get_running_loop().time()
        await saving.saved()
        assert asyncio.get_running_loop().time() - began < 4, "not only at the next try of the failed one"
        assert json.loads(path.read_text()) == {"n": 1}

    run(work())
