from __future__ import annotations

from pathlib import Path

import pytest

from gimbalmq.testing import RecordedDisk


@pytest.fixture
def disk(tmp_path: Path) -> RecordedDisk:
    return RecordedDisk(tmp_path / "disk")


def rewrite(disk: RecordedDisk, path: Path, data: bytes) -> None:
    """Gives a small file new content, durably, under a second name first."""
    aside = path.with_name(path.name + ".tmp")
    fd = disk.open(aside, create=True)
    disk.truncate(fd, 0)
    disk.write_at(fd, data, 0)
    disk.sync(fd)
    disk.close(fd)
    disk.replace(aside, path)
    disk.sync_folder(path.parent)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_kill_leaves_all_that_was_done(disk: RecordedDisk, tmp_path: Path) -> None:
    disk.make_folder(disk.root / "a" / "b")
    fd = disk.open(disk.root / "a" / "b" / "file", create=True)
    disk.truncate(fd, 10)
    disk.write_at(fd, b"xyz", 2)
    disk.close(fd)
    rewrite(disk, disk.root / "small", b"old")
    before = disk.now
    rewrite(disk, disk.root / "small", b"new")
    disk.remove_folder(disk.root / "a")
    for moment in range(disk.now + 1):
        disk.killed(moment, tmp_path / f"at{moment}")
    assert tree(tmp_path / f"at{disk.now}") == tree(disk.root) == {"small": b"new"}
    left = tree(tmp_path / f"at{before}")
    assert left == {"a/b/file": b"\0\0xyz\0\0\0\0\0", "small": b"old"}
    for moment in range(before, disk.now):
        left = tree(tmp_path / f"at{moment}")
        assert left["small"] in (b"old", b"new")


def test_a_loss_of_power_leaves_what_was_synced(disk: RecordedDisk, tmp_path: Path) -> None:
    fd = disk.open(disk.root / "file", create=True)
    disk.write_at(fd, b"a" * 1024, 0)
    disk.sync(fd)
    named_not = disk.now
    disk.sync_folder(disk.root)
    disk.write_at(fd, b"b" * 1024, 0)
    disk.close(fd)
    rewrite(disk, disk.root / "small", b"text")
    seen = set()
    for seed in range(200):
        disk.power_lost(disk.now, tmp_path / f"{seed}", seed)
        left = tree(tmp_path / f"{seed}")
        assert left["small"] == b"text"
        seen.add(left["file"])
    # each sector of the second write for itself
    assert seen == {x * 512 + y * 512 for x in (b"a", b"b") for y in (b"a", b"b")}
    names = set()
    for seed in range(50):
        disk.power_lost(named_not, tmp_path / f"named{seed}", seed)
        names.add("file" in tree(tmp_path / f"named{seed}"))
    assert names == {True, False}


def test_writes_through_a_map_are_noted(disk: RecordedDisk, tmp_path: Path) -> None:
    fd = disk.open(disk.root / "file", create=True)
    disk.allocate(fd, 0, 2048)
    found = disk.map(fd, 2048, writable=True)
    found[1000:1004] = b"here"
    disk.sync(fd)
    disk.sync_folder(disk.root)
    disk.power_lost(disk.now, tmp_path / "left", 0)
    assert tree(tmp_path / "left")["file"][1000:1004] == b"here"
    found.close()
    disk.close(fd)


def test_a_folder_that_is_renamed_takes_its_files_along(disk: RecordedDisk, tmp_path: Path) -> None:
    disk.make_folder(disk.root / "a" / "0")
    disk.make_folder(disk.root / "trash")
    fd = disk.open(disk.root / "a" / "0" / "file", create=True)
    disk.write_at(fd, b"old", 0)
    disk.sync(fd)
    disk.close(fd)
    for folder in ("a/0", "a", "."):
        disk.sync_folder(disk.root / folder)
    before = disk.now
    disk.replace(disk.root / "a", disk.root / "trash" / "1")
    moved = disk.now
    disk.make_folder(disk.root / "a" / "0")
    disk.remove_folder(disk.root / "trash" / "1")
    for moment, expected in (
        (before, {"a/0/file": b"old"}),
        (moved, {"trash/1/0/file": b"old"}),
        (disk.now, {}),
    ):
        disk.killed(moment, tmp_path / f"{moment}")
        assert tree(tmp_path / f"{moment}") == expected
    seen: set[str] = set()
    for seed in range(50):
        disk.power_lost(moved, tmp_path / f"lost{seed}", seed)
        seen.update(tree(tmp_path / f"lost{seed}"))
    assert seen == {"a/0/file", "trash/1/0/file"}
