"""The comparison of two folders sees what it must see: on folders that Apache's brokers wrote."""

from __future__ import annotations

import shutil
import struct
import tarfile
from pathlib import Path

import pytest

from tests.peers.folders import Log, compare, same

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
SLOTS = 100
ROLL = "golden-roll"


@pytest.fixture(scope="module", params=["4_9_7", "5_5_0"])
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(f"recorded-{request.param}")
    with tarfile.open(GOLDEN / f"store_{request.param}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def copy(recorded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / "copy"))


def change(file: Path, at: int, data: bytes) -> None:
    with file.open("r+b") as handle:
        handle.seek(at)
        handle.write(data)


def test_a_folder_is_the_copy_of_itself(recorded: Path, copy: Path) -> None:
    seen = same(recorded, copy, seconds=0, slots=SLOTS, least=200)
    assert seen.level and seen.compared == seen.copy


def test_a_byte_of_the_log_differs(recorded: Path, copy: Path) -> None:
    """The last byte of a record's head, which no check sum covers."""
    log = Log.read(copy)
    record = log.records[7]
    change(copy / "commitlog" / f"{0:020d}", record.place + 75, b"\x55")
    seen = compare(recorded, copy, slots=SLOTS)
    assert f"the record at {record.place}" in seen.differences[0]


def test_a_byte_of_a_blank_tail_differs(recorded: Path, copy: Path) -> None:
    begin, end = Log.read(copy).blanks[0]
    assert end - begin > 16
    change(copy / "commitlog" / f"{0:020d}", end - 1, b"\x01")
    assert str(end - 1) in compare(recorded, copy, slots=SLOTS).differences[0]


def test_a_copy_that_began_at_a_later_file_is_compared_from_there(recorded: Path, copy: Path) -> None:
    (copy / "commitlog" / f"{0:020d}").unlink()
    seen = compare(recorded, copy, slots=SLOTS)
    assert not seen.differences
    assert seen.compared[0] == seen.copy[0] > seen.master[0]


def test_a_copy_that_is_behind_is_not_level(recorded: Path, copy: Path) -> None:
    log = Log.read(copy)
    last = log.records[-1]
    base = last.place - last.place % log.file_bytes
    change(copy / "commitlog" / f"{base:020d}", last.place - base + 4, bytes(4))
    assert not compare(recorded, copy, slots=SLOTS).level
    with pytest.raises(AssertionError, match="is not the copy"):
        same(recorded, copy, seconds=0, slots=SLOTS)


@pytest.mark.parametrize(
    ("number", "entry", "said"),
    [
        pytest.param(5, struct.pack(">qiq", 0, 0, 0), "entries are missing, the first at 5", id="missing"),
        pytest.param(5, struct.pack(">qiq", 0, 0x7FFFFFFF, 0), "1 of 220 entries are missing", id="filler"),
    ],
)
def test_a_queue_entry_differs(recorded: Path, copy: Path, number: int, entry: bytes, said: str) -> None:
    change(copy / "consumequeue" / ROLL / "0" / f"{0:020d}", number * 20, entry)
    found = compare(recorded, copy, slots=SLOTS).differences
    assert any(said in line for line in found), found


def test_an_entry_that_is_there_twice_is_seen(recorded: Path, copy: Path) -> None:
    file = sorted((copy / "consumequeue" / ROLL / "0").iterdir())[-1]
    entries = file.read_bytes()
    used = next(
        at for at in range(0, len(entries), 20) if not int.from_bytes(entries[at + 8 : at + 12], "big")
    )
    place, size, code = struct.unpack_from(">qiq", entries, used - 20)
    change(file, used, struct.pack(">qiq", place + 1, size - 1, code))
    found = compare(recorded, copy, slots=SLOTS).differences
    assert any("entries without a record" in line for line in found), found


def test_a_tags_code_differs(recorded: Path, copy: Path) -> None:
    change(copy / "consumequeue" / ROLL / "0" / f"{0:020d}", 3 * 20 + 12, struct.pack(">q", 99))
    found = compare(recorded, copy, slots=SLOTS).differences
    assert any("golden-roll-0 at 3" in line for line in found), found


def test_a_key_that_is_not_found_is_seen(recorded: Path, copy: Path) -> None:
    """All slots of the first file are emptied."""
    file = next(file for file in sorted((copy / "index").iterdir()) if file.name.isdigit())
    change(file, 40, bytes(4 * SLOTS))
    found = compare(recorded, copy, slots=SLOTS).differences
    assert any("copy's index" in line for line in found), found
