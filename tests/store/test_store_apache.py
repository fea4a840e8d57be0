"""Folders that Apache's brokers wrote, down to the byte: what we derive from their log is what they did."""

from __future__ import annotations

import json
import shutil
import struct
import tarfile
from pathlib import Path
from typing import Any

import pytest

from gimbalmq.model.javahash import java_hash
from gimbalmq.model.record import decode_record
from gimbalmq.store import MessageStore, StoreConfig
from tests.store.helpers import FakeClock, index_content, put, read_all

GOLDEN = Path(__file__).parent.parent / "golden"
VERSIONS = ["4_9_7", "5_5_0"]
SLOTS, ENTRIES = 100, 400


@pytest.fixture(params=VERSIONS)
def apache(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    with tarfile.open(GOLDEN / f"store_{request.param}.tar.xz") as archive:
        archive.extractall(tmp_path / "store", filter="data")
    return tmp_path / "store", json.loads((GOLDEN / f"store_{request.param}.json").read_text())


def open_folder(root: Path) -> MessageStore:
    config = StoreConfig(
        root=root, commitlog_file_bytes=65536, queue_file_bytes=2000, index_slots=SLOTS, index_entries=ENTRIES
    )
    store = MessageStore(config, FakeClock(1_794_740_000_000))
    store.load()
    return store


def queue_files(root: Path) -> dict[str, bytes]:
    folder = root / "consumequeue"
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_every_message_java_received_is_read(apache: tuple[Path, dict[str, Any]]) -> None:
    root, told = apache
    before = queue_files(root)
    store = open_folder(root)
    assert told["received"]
    for message in told["received"]:
        data = store.record_at_queue(message["topic"], message["queue_id"], message["queue_offset"])
        assert data is not None and data == store.record_at(message["commitlog_offset"])
        record = decode_record(data, check_crc=True)
        assert record.store_timestamp == message["store_timestamp"]
        for key in [*(message["keys"] or "").split(), record.properties["UNIQ_KEY"]]:
            found = store.query_by_key(message["topic"], key, 64, 0, 1 << 62).records
            assert data in found
    store.close()
    assert queue_files(root) == before


def test_rebuilt_queues_and_index_equal_javas(apache: tuple[Path, dict[str, Any]]) -> None:
    root, told = apache
    queues = queue_files(root)
    indexes = [index_content(p, SLOTS, ENTRIES) for p in sorted((root / "index").iterdir())]
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    store = open_folder(root)
    records = [
        r for topic in store.topics() for q in store.queue_ids(topic) for r in read_all(store, topic, q)
    ]
    store.close()
    assert queue_files(root) == queues
    rebuilt = [index_content(p, SLOTS, ENTRIES) for p in sorted((root / "index").iterdir())]
    if told["broker_version"].startswith("4"):
        assert rebuilt == indexes
        return
    # 5.5 also indexes tags, under topic#T#tag; without those it is the same list of keys
    tags = {
        (abs(java_hash(f"{r.topic}#T#{r.properties['TAGS']}")), r.commitlog_offset)
        for r in records
        if "TAGS" in r.properties
    }
    javas = [entry[:2] for _, _, entries in indexes for entry in entries if entry[:2] not in tags]
    assert [entry[:2] for _, _, entries in rebuilt for entry in entries] == javas


def test_a_crashed_folder_of_javas(apache: tuple[Path, dict[str, Any]]) -> None:
    root, told = apache
    queues = queue_files(root)
    (root / "abort").write_text("")
    store = open_folder(root)
    assert len(told["received"]) <= sum(
        len(read_all(store, t, q)) for t in store.topics() for q in store.queue_ids(t)
    )
    end = store.max_commitlog_offset
    offset, _ = put(store, "golden-orders", 0, b"ours", KEYS="mine")
    assert offset == end
    store.close()
    changed = queue_files(root)
    assert changed.keys() == queues.keys()
    different = [name for name in queues if queues[name] != changed[name]]
    assert different == ["golden-orders/0/00000000000000000000"]
    assert struct.unpack_from(">q", changed[different[0]], 60)[0] == end
