"""The epoch file in Apache's format, and up to where two logs agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from gimbalmq.broker.replication.epochs import Epochs, common_end, with_ends
from gimbalmq.errors import StoreIOError
from gimbalmq.protocol.ha_epochs import MOST_EPOCHS, Epoch
from gimbalmq.testing.disk import RecordedDisk

APACHES = b"2\n773307083\n7-7000\n8-8000\n"


def loaded(path: Path, end: int = 10**9) -> Epochs:
    epochs = Epochs(path)
    epochs.load(end)
    return epochs


def test_the_file_is_apaches(tmp_path: Path) -> None:
    path = tmp_path / "epochFileCheckpoint"
    path.write_bytes(APACHES)
    epochs = loaded(path)
    assert epochs.entries == (Epoch(7, 7000), Epoch(8, 8000))
    again = Epochs(tmp_path / "other")
    for entry in epochs.entries:
        assert again.append(entry)
    again.save()
    assert again.path.read_bytes() == APACHES


def test_what_the_file_said_before_is_its_backup(tmp_path: Path) -> None:
    path = tmp_path / "epochFileCheckpoint"
    path.write_bytes(APACHES)
    epochs = loaded(path)
    epochs.append(Epoch(9, 9000))
    epochs.save()
    assert path.with_name("epochFileCheckpoint.bak").read_bytes() == APACHES
    assert loaded(path).last == Epoch(9, 9000)


@pytest.mark.parametrize(
    "text",
    [b"", b"x\n1\n", b"2\n773307083\n7-7000\n", b"2\n773307084\n7-7000\n8-8000\n", b"1\n0\n77000\n"],
    ids=["empty", "no number", "a line short", "another sum", "no dash"],
)
def test_a_damaged_file_is_read_from_its_backup(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "epochFileCheckpoint"
    path.write_bytes(text)
    path.with_name("epochFileCheckpoint.bak").write_bytes(APACHES)
    epochs = loaded(path)
    assert epochs.last_epoch == 8
    epochs.append(Epoch(9, 9000))
    epochs.save()
    # The damaged text must not take the place of the good backup.
    assert path.with_name("epochFileCheckpoint.bak").read_bytes() == APACHES


def test_a_file_and_a_backup_that_are_damaged_stop_the_start(tmp_path: Path) -> None:
    path = tmp_path / "epochFileCheckpoint"
    path.write_bytes(b"1\n5\n1-0\n")
    with pytest.raises(
        StoreIOError, match=r"check sum.*and so is its \.bak; if this is not the only replica"
    ):
        loaded(path)


def test_a_sum_of_0_is_not_checked(tmp_path: Path) -> None:
    path = tmp_path / "epochFileCheckpoint"
    path.write_bytes(b"1\n0\n4-100\n")
    assert loaded(path).entries == (Epoch(4, 100),)


def test_epochs_behind_the_logs_end_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "epochFileCheckpoint"
    path.write_bytes(APACHES)
    assert loaded(path, 7999).entries == (Epoch(7, 7000),)
    assert loaded(path, 8000).last_epoch == 8


def test_an_entry_continues_in_epoch_and_in_start(tmp_path: Path) -> None:
    epochs = Epochs(tmp_path / "e")
    assert epochs.append(Epoch(1, 0))
    assert not epochs.append(Epoch(1, 10))
    assert epochs.append(Epoch(2, 0)), "the oldest may be empty, and is kept"
    assert not epochs.append(Epoch(3, 0))
    assert epochs.at(0) == Epoch(2, 0)
    assert epochs.append(Epoch(3, 10))
    assert epochs.entries == (Epoch(1, 0), Epoch(2, 0), Epoch(3, 10))
    epochs.save()
    assert loaded(epochs.path).entries == epochs.entries
    assert not epochs.append(Epoch(3, 20)), "the same term, which its slaves know by its start"
    for number in range(4, MOST_EPOCHS + 10):
        assert epochs.append(Epoch(number, number * 10))
    assert len(epochs.entries) == MOST_EPOCHS


def test_cut_and_trim(tmp_path: Path) -> None:
    epochs = Epochs(tmp_path / "e")
    for entry in ((1, 0), (2, 100), (5, 200)):
        epochs.append(Epoch(*entry))
    assert epochs.at(99) == (1, 0)
    assert epochs.at(100) == epochs.at(199) == (2, 100)
    assert epochs.at(10**9) == (5, 200)
    assert epochs.after(2) == (5, 200) and epochs.after(5) is None
    epochs.trim(100)
    assert epochs.entries[0] == (1, 0)
    epochs.trim(101)
    assert epochs.entries[0] == (2, 100)
    epochs.cut(200)
    assert epochs.entries == ((2, 100),)
    epochs.trim(10**9)
    assert epochs.entries == ((2, 100),)


def test_an_oldest_epoch_without_bytes_is_not_old(tmp_path: Path) -> None:
    epochs = Epochs(tmp_path / "e")
    epochs.append(Epoch(1, 0))
    epochs.append(Epoch(2, 0))
    epochs.trim(0)
    assert epochs.entries == ((1, 0), (2, 0))


def test_no_epochs_are_no_file(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "e"
    epochs = Epochs(path)
    epochs.save()
    assert not path.exists()
    epochs.append(Epoch(1, 0))
    epochs.save()
    epochs.append(Epoch(2, 5))
    epochs.save()
    epochs.cut(0)
    epochs.save()
    assert loaded(path).entries == ()


@pytest.mark.parametrize(
    ("ours", "our_end", "theirs", "their_end", "expected"),
    [
        ([(1, 0)], 100, [(1, 0)], 100, ((1, 0), 100)),
        ([(1, 0)], 80, [(1, 0)], 100, ((1, 0), 80)),
        ([(1, 0)], 120, [(1, 0)], 100, ((1, 0), 100)),
        # The old master wrote more than its successor had.
        ([(1, 0)], 150, [(1, 0), (2, 100)], 400, ((1, 0), 100)),
        # Two terms ago; the terms in between were somebody else's.
        ([(1, 0), (2, 100)], 150, [(1, 0), (3, 90)], 400, ((1, 0), 90)),
        ([(1, 0), (2, 100), (4, 300)], 350, [(1, 0), (2, 100), (3, 200)], 250, ((2, 100), 200)),
        # The same number is another term if it began elsewhere.
        ([(1, 0), (2, 100)], 150, [(1, 0), (2, 120)], 400, ((1, 0), 100)),
        ([(5, 0)], 100, [(6, 0)], 100, None),
        ([], 0, [(6, 0)], 100, None),
    ],
)
def test_up_to_where_two_logs_agree(
    ours: list[tuple[int, int]],
    our_end: int,
    theirs: list[tuple[int, int]],
    their_end: int,
    expected: tuple[tuple[int, int], int] | None,
) -> None:
    mine = with_ends([Epoch(*entry) for entry in ours], our_end)
    other = with_ends([Epoch(*entry) for entry in theirs], their_end)
    assert common_end(mine, other) == expected


def test_every_crash_while_saving_leaves_the_old_list_or_the_new(tmp_path: Path) -> None:
    disk = RecordedDisk(tmp_path / "disk")
    epochs = Epochs(disk.root / "e", disk)
    lists: list[tuple[Epoch, ...]] = [(Epoch(1, 0),)]
    epochs.append(Epoch(1, 0))
    epochs.save()
    first = disk.now
    for entry in (Epoch(2, 100), Epoch(3, 200)):
        epochs.append(entry)
        lists.append(epochs.entries)
        epochs.save()
    for crash in range(first, disk.now + 1):
        for seed in range(4):
            folder = tmp_path / f"{crash}-{seed}"
            disk.power_lost(crash, folder, seed=seed)
            assert loaded(folder / "e").entries in lists
    folder = tmp_path / "end"
    disk.power_lost(disk.now, folder, seed=0)
    assert loaded(folder / "e").entries == lists[-1]
