"""Where the records of a file begin, by their sizes alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from gimbalmq._steps import run_through
from gimbalmq.broker.replication import rejoining
from gimbalmq.store.dispatcher import LogScanner
from tests.store.following_helpers import fill_all_kinds
from tests.store.helpers import open_store

FILE = 4096


@pytest.mark.parametrize("damage", [None, "size", "magic", "far"])
def test_the_places_are_those_that_a_scanner_finds(tmp_path: Path, damage: str | None) -> None:
    store = open_store(tmp_path / "store", commitlog_file_bytes=FILE)
    fill_all_kinds(store, 12)
    end = store.max_commitlog_offset
    assert end > 3 * FILE
    found = [(one.commitlog_offset, one.size) for one in LogScanner(store.log.segments, 0, end)]
    at = -1
    if damage is not None:
        at = [place for place, _ in found if FILE <= place < 2 * FILE][3]
        store.close()
        path = tmp_path / "store" / "commitlog" / f"{FILE:020d}"
        bytes_ = bytearray(path.read_bytes())
        word = {"size": 0, "magic": 4, "far": 0}[damage]
        bytes_[at - FILE + word : at - FILE + word + 4] = b"\0\0\7\0" if damage == "far" else b"\0\0\0\1"
        path.write_bytes(bytes_)
        store = open_store(tmp_path / "store", commitlog_file_bytes=FILE)
    for base in range(0, end, FILE):
        stop = min(base + FILE, end)
        scanned = [
            (one.commitlog_offset, one.size)
            for one in LogScanner(store.log.segments, base, stop)
            if one.commitlog_offset < stop
        ]
        places, behind = run_through(rejoining._records(store, base))
        if damage == "far":  # by its size it ends among others, and the one behind them is found
            wanted = [place for place, _ in found if base <= place < stop and not at < place < at + 0x700]
        else:
            wanted = [place for place, _ in scanned]
        assert places.tolist() == wanted
        assert behind == sum(scanned[-1])
    store.close()
