"""Whether a replica is in doubt, from one start to the next."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gimbalmq.broker.json_file import TableThread
from gimbalmq.broker.replication.wholeness import Wholeness
from gimbalmq.errors import DiskFullError
from gimbalmq.store.files import Files
from tests.support import run


class Booted(Files):
    def __init__(self, boot: str | None) -> None:
        self.boot = boot

    def boot_id(self) -> str | None:
        return self.boot


@pytest.fixture
def thread() -> TableThread:
    return TableThread()


def started(folder: Path, thread: TableThread, boot: str | None, *, was_closed: bool) -> Wholeness:
    made = Wholeness(folder, Booted(boot), thread, was_closed=was_closed)
    run(made.begin())
    return made


def test_only_a_start_of_the_machine_takes_what_a_crashed_process_had(
    tmp_path: Path, thread: TableThread
) -> None:
    assert not started(tmp_path, thread, "one", was_closed=True).in_doubt
    assert not started(tmp_path, thread, "one", was_closed=False).in_doubt
    assert not started(tmp_path, thread, "two", was_closed=True).in_doubt
    assert started(tmp_path, thread, "three", was_closed=False).in_doubt


def test_a_crash_before_the_start_is_noted_leaves_the_doubt(tmp_path: Path, thread: TableThread) -> None:
    started(tmp_path, thread, "one", was_closed=True)
    assert Wholeness(tmp_path, Booted("two"), thread, was_closed=False).in_doubt
    assert started(tmp_path, thread, "two", was_closed=False).in_doubt


def test_a_folder_of_which_nothing_is_known_is_in_doubt_after_a_crash(
    tmp_path: Path, thread: TableThread
) -> None:
    assert not started(tmp_path / "new", thread, "one", was_closed=True).in_doubt
    assert started(tmp_path / "old", thread, "one", was_closed=False).in_doubt


def test_a_folder_that_was_emptied_is_in_doubt(tmp_path: Path, thread: TableThread) -> None:
    emptied = Wholeness(tmp_path, Booted("one"), thread, was_closed=True, is_empty=True)
    assert emptied.in_doubt
    run(emptied.begin())
    run(emptied.is_whole())
    again = Wholeness(tmp_path, Booted("one"), thread, was_closed=True, is_empty=True)
    assert not again.in_doubt, "nothing was ever sent"


def test_without_a_number_of_the_boot_every_crash_is_one_of_the_machine(
    tmp_path: Path, thread: TableThread
) -> None:
    assert not started(tmp_path, thread, None, was_closed=True).in_doubt
    assert started(tmp_path, thread, None, was_closed=False).in_doubt


def test_the_doubt_lasts_until_it_is_over(tmp_path: Path, thread: TableThread) -> None:
    assert started(tmp_path, thread, "one", was_closed=False).in_doubt
    doubtful = started(tmp_path, thread, "one", was_closed=True)
    assert doubtful.in_doubt, "a proper end gives nothing back"
    run(doubtful.is_whole())
    assert not doubtful.in_doubt
    whole = started(tmp_path, thread, "one", was_closed=False)
    assert not whole.in_doubt and whole.alone_in is None
    run(whole.is_alone(7))
    assert started(tmp_path, thread, "two", was_closed=False).alone_in == 7


def test_a_doubt_whose_end_cannot_be_kept_is_not_over(tmp_path: Path) -> None:
    thread = TableThread()
    doubtful = started(tmp_path, thread, "one", was_closed=False)
    files = doubtful._file._files

    def refuse(path: object, *, create: bool = False) -> int:
        raise OSError(28, "no space")

    files.open = refuse  # type: ignore[method-assign]
    with pytest.raises(DiskFullError):
        run(doubtful.is_whole())
    assert doubtful.in_doubt


def test_a_machines_boot_has_a_number_on_linux() -> None:
    boot = Files().boot_id()
    assert boot == Files().boot_id() and boot != ""


def test_a_file_that_cannot_be_read_is_a_doubt(tmp_path: Path, thread: TableThread) -> None:
    (tmp_path / "wholeness.json").write_text("{")
    damaged = started(tmp_path, thread, "one", was_closed=True)
    assert damaged.in_doubt
    assert started(tmp_path, thread, "one", was_closed=True).in_doubt
    run(damaged.is_whole())
    assert not started(tmp_path, thread, "one", was_closed=True).in_doubt


def test_a_full_disk_keeps_only_those_in_doubt_from_their_role(tmp_path: Path, thread: TableThread) -> None:
    class Full(Booted):
        def open(self, path: Path | str, *, create: bool = False) -> int:
            raise OSError(28, "no space")

    run(Wholeness(tmp_path, Full("one"), thread, was_closed=True).begin())
    with pytest.raises(DiskFullError):
        run(Wholeness(tmp_path, Full("one"), thread, was_closed=False).begin())


def test_a_shorter_log_is_a_doubt_that_the_next_start_still_has(tmp_path: Path, thread: TableThread) -> None:
    run(started(tmp_path, thread, "one", was_closed=True).is_alone(3))
    shorter = Wholeness(tmp_path, Booted("one"), thread, was_closed=True, is_shorter=True)
    shorter.keep()
    assert shorter.in_doubt
    again = started(tmp_path, thread, "one", was_closed=True)
    assert again.in_doubt and again.alone_in is None


def test_sets_of_another_controller_tell_nothing(tmp_path: Path, thread: TableThread) -> None:
    run(started(tmp_path, thread, "one", was_closed=True).is_alone(3))
    assert Wholeness(tmp_path, Booted("one"), thread, was_closed=True, is_known=False).alone_in is None


def test_after_a_sync_that_failed_the_next_start_is_in_doubt(tmp_path: Path, thread: TableThread) -> None:
    failing = started(tmp_path, thread, "one", was_closed=True)
    run(failing.may_lose())
    run(failing.is_alone(3))
    assert not failing.in_doubt, "what it has can still be read"
    assert started(tmp_path, thread, "one", was_closed=False).in_doubt


def test_a_sync_that_fails_while_the_doubt_ends_is_not_forgotten(tmp_path: Path, thread: TableThread) -> None:
    made = started(tmp_path, thread, "one", was_closed=False)

    async def both() -> None:
        await asyncio.gather(made.may_lose(), made.is_whole())

    run(both())
    assert started(tmp_path, thread, "one", was_closed=False).in_doubt
