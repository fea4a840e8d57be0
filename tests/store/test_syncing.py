"""Many files synced by a process of their own."""

from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path

import pytest

from gimbalmq.errors import ResourceShortageError, StoreIOError
from gimbalmq.store import MessageStore, syncing
from gimbalmq.store.consumequeue import _MANY_SYNCS
from gimbalmq.store.files import Files
from gimbalmq.store.syncing import SyncFailed, sync_elsewhere
from tests.store.helpers import FailingFiles, open_store, put


def test_files_and_folders_are_synced_and_what_is_gone_is_no_error(tmp_path: Path) -> None:
    names = [str(tmp_path / f"{number}\n é") for number in range(20)]
    for name in names:
        Path(name).write_bytes(b"x")
    assert sync_elsewhere([*names, f"{tmp_path}/", str(tmp_path / "gone"), f"{tmp_path}/gone/"])


def test_a_failed_sync_is_told_with_its_reason(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # can be opened, and has nothing to sync
    file = tmp_path / "file"
    file.write_bytes(b"x")
    with pytest.raises(SyncFailed) as caught:
        sync_elsewhere([str(file), str(pipe)])
    assert caught.value.opened
    assert (caught.value.error.errno, caught.value.error.filename) == (errno.EINVAL, str(pipe))


def test_what_cannot_be_opened_is_told_apart_from_a_failed_sync(tmp_path: Path) -> None:
    with pytest.raises(SyncFailed) as caught:
        sync_elsewhere([str(tmp_path)])  # without the slash, so as a file
    assert not caught.value.opened and caught.value.error.errno == errno.EISDIR


def test_a_process_that_cannot_be_had_or_ends_early_has_synced_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for program in ("", str(tmp_path / "none"), "/bin/false"):
        monkeypatch.setattr(sys, "executable", program)
        assert not sync_elsewhere([f"{tmp_path}/"])


@pytest.mark.parametrize("how", ["kills", "loses a thread", "another program"])
def test_only_what_the_process_says_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """If SIGCHLD is ignored, every process seems to have ended well; and one thread that ends does not end it."""
    program = tmp_path / "syncing.py"
    text = Path(syncing.__file__).read_text()
    if how == "kills":
        text = text.replace("os.nice(_NICENESS)", "os.kill(os.getpid(), signal.SIGKILL)")
    elif how == "loses a thread":
        text = text.replace("is_folder = path", "if b'lost' in path: raise MemoryError\n    is_folder = path")
    else:
        text = "print('hello')"
    assert text != Path(syncing.__file__).read_text()
    program.write_text(text)
    monkeypatch.setattr(syncing, "__file__", str(program))
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert not sync_elsewhere([f"{tmp_path}/", str(tmp_path / "lost")])
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_failure_is_heard_of_a_process_that_is_killed_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel tells a failed sync once: a second one of the same file would succeed."""
    os.mkfifo(tmp_path / "pipe")
    program = tmp_path / "syncing.py"
    text = Path(syncing.__file__).read_text()
    killed = "    for thread in threads:\n        thread.join()\n"
    assert killed in text
    program.write_text(text.replace(killed, f"{killed}    os.kill(os.getpid(), signal.SIGKILL)\n"))
    monkeypatch.setattr(syncing, "__file__", str(program))
    with pytest.raises(SyncFailed):
        sync_elsewhere([str(tmp_path / "pipe")])


def test_a_frozen_program_is_not_started_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("started"))
    assert not sync_elsewhere([f"{tmp_path}/"])


def many_queues(root: Path, files: Files) -> tuple[MessageStore, set[str]]:
    store = open_store(root, files=files, message_index_enable=False)
    for number in range(_MANY_SYNCS // 2):
        put(store, f"T{number}", 0, b"m")
    store.flush_queues()
    return store, set(store._queue_files.unsynced)


class Elsewhere(FailingFiles):
    """Files whose syncs many at a time end as told."""

    def __init__(self, end: bool | SyncFailed) -> None:
        super().__init__()
        self.end = end
        self.asked: set[str] = set()

    def sync_many(self, paths: object) -> bool:
        assert isinstance(paths, set)
        self.asked = set(paths)
        if isinstance(self.end, SyncFailed):
            raise self.end
        return self.end


def test_a_checkpoint_of_many_queues_leaves_them_to_the_process(tmp_path: Path) -> None:
    files = Elsewhere(True)
    store, unsynced = many_queues(tmp_path, files)
    before = files.synced
    store.checkpoint()
    assert len(unsynced) >= _MANY_SYNCS and files.asked == unsynced
    assert files.synced - before < 10  # files of the log, and the checkpoint itself
    assert not store._queue_files.unsynced
    store.close()


def test_without_the_process_each_is_synced_here(tmp_path: Path) -> None:
    files = Elsewhere(False)
    store, _ = many_queues(tmp_path, files)
    before = files.synced
    store.checkpoint()
    assert files.synced - before >= _MANY_SYNCS // 2
    store.close()


@pytest.mark.parametrize(
    ("number", "opened", "kind"),
    [
        (errno.EIO, True, StoreIOError),
        (errno.ENOSPC, True, StoreIOError),  # the kernel may have dropped what did not fit
        (errno.EMFILE, False, ResourceShortageError),
    ],
)
def test_after_a_failure_there_is_no_checkpoint_and_all_is_to_be_synced_again(
    tmp_path: Path, number: int, opened: bool, kind: type[Exception]
) -> None:
    files = Elsewhere(SyncFailed("queue", number, opened=opened))
    store, unsynced = many_queues(tmp_path, files)
    noted = store._checkpoints.saved
    with pytest.raises(kind):
        store.checkpoint()
    assert store._checkpoints.saved is noted
    assert store._queue_files.unsynced >= unsynced
    assert store.can_sync is not opened
    store.abandon()


def test_a_layer_with_syncs_of_its_own_sees_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gimbalmq.store.files.sync_elsewhere", lambda _: pytest.fail("not asked"))
    assert not FailingFiles().sync_many([str(tmp_path)])


def test_the_program_needs_nothing_of_the_package() -> None:
    text = Path(syncing.__file__).read_text()
    assert "import gimbalmq" not in text and "from gimbalmq" not in text
