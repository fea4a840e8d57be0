"""A master and slaves of ours, as processes: what tests/interop/test_replication.py does in pairs with Apache's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.peers.folders import Log
from tests.peers.ours import OurNameServer
from tests.peers.replicas import FILE_BYTES, OURS, ReplicaSet, copied, keep, traffic
from tests.peers.traffic import Load, log_end
from tests.replication.scenes import STATUSES, Scene, file_of, fill_file, goes_on, statuses


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with OurNameServer(tmp_path_factory.mktemp("namesrv")) as server:
        yield server.address


def test_slaves_come_and_go_and_stay_copies(namesrv: str, tmp_path: Path) -> None:
    with ReplicaSet(tmp_path, "ours", namesrv=namesrv) as replicas:
        master = replicas.master(OURS)
        scene = Scene(replicas, master, traffic(master, "Pairs"))
        # Empty and empty; every kind of record.
        first = scene.join("first", OURS)
        scene.sender.every_kind()
        (seen,) = scene.compare()
        assert seen.copy[0] == 0
        # The master is in its fourth file: an empty slave copies all of them.
        fill_file(master, scene.sender, 3)
        scene.join("late", OURS)
        for seen in scene.compare():
            assert seen.copy[0] == 0
        # A slave was killed, and is more than a file behind; another joins under load while files roll.
        first.kill()
        fill_file(master, scene.sender, file_of(log_end(master.address)) + 2)
        with Load(scene.sender) as load:
            first.start()
            scene.join("joined", OURS)
            load.wait_for_bytes(2 * FILE_BYTES)
        for seen in scene.compare():
            assert seen.copy[0] == 0
        # The master is killed under load, and comes back: slaves go on where they were.
        with pytest.raises((AssertionError, OSError)), Load(scene.sender) as load:
            load.wait_for_bytes(FILE_BYTES)
            master.kill()
            raise ConnectionError
        master.start()
        scene.sender.every_kind()
        for seen in scene.compare():
            assert seen.copy[0] == 0
        # A slave's folder goes on as a master's.
        first.stop()
        before = Log.read(first.store)
        with ReplicaSet(tmp_path / "promoted", "promoted", namesrv=namesrv) as others:
            promoted = others.master(OURS, store=keep(first.store, tmp_path / "kept"))
            goes_on(promoted, before)
            copied(promoted, others.slave(OURS, store=first.store))


@pytest.mark.parametrize(
    ("rule", "replicas"),
    [
        pytest.param(*case, marks=() if case in (("safe", 1), ("4.9", 1), ("5.x", 2)) else pytest.mark.soak)
        for case in STATUSES
    ],
)
def test_a_sync_master_answers_as_the_table_says(
    rule: str, replicas: int, namesrv: str, tmp_path: Path
) -> None:
    options = {"replicaRule": rule, "inSyncReplicas": replicas, "slaveTimeout": 1000}
    with ReplicaSet(tmp_path, f"statuses-{rule}-{replicas}", namesrv=namesrv) as ours:
        master = ours.master(OURS, role="SYNC_MASTER", extra=options)
        scene = Scene(ours, master, traffic(master, "Pairs"))
        slave = ours.replica(OURS, 1)
        assert statuses(scene, slave, replicas) == STATUSES[rule, replicas]
