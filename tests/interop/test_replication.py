"""Masters and slaves, Apache's and ours, in every pair: the copy is equal byte by byte, entry by entry, key by key.

Servers are shared: an Apache master of each version has slaves of ours, which come, go and come back, and one master of
ours has two Apache slaves. Each test says what it adds to the log and compares all of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.interop import conftest
from tests.peers.folders import Comparison, Log
from tests.peers.ours import OurBroker, OurNameServer
from tests.peers.process import Process
from tests.peers.replicas import (
    FILE_BYTES,
    NEW,
    OLD,
    OURS,
    Kind,
    Replica,
    ReplicaSet,
    copied,
    keep,
    paused,
    start_all,
    traffic,
)
from tests.peers.traffic import Load, Traffic, configure, log_end

pytestmark = [pytest.mark.interop, pytest.mark.timeout(360)]

PAIR = [pytest.param(OLD, id="4.9.7"), pytest.param(NEW, id="5.5.0")]


def fill_file(master: Replica, sender: Traffic, file: int) -> None:
    """Writes until the log is somewhere in file number `file`, the first being 0."""
    while (end := log_end(master.address)) <= file * FILE_BYTES + FILE_BYTES // 8:
        sender.bytes(min(FILE_BYTES // 2, file * FILE_BYTES + FILE_BYTES // 4 - end))


def file_of(offset: int) -> int:
    return offset // FILE_BYTES


@dataclass
class Scene:
    """A replica set with a running master, and its slaves by name."""

    replicas: ReplicaSet
    master: Replica
    sender: Traffic
    slaves: dict[str, Replica] = field(default_factory=dict)

    def compare(self, *names: str) -> list[Comparison]:
        """The named slaves, or all that run."""
        running = [self.slaves[name] for name in names or self.slaves if self.slaves[name].running]
        return copied(self.master, *running)

    def next_id(self) -> int:
        return len(self.slaves) + 1

    def join(self, name: str, kind: Kind, **options: object) -> Replica:
        slave = self.replicas.slave(kind, self.next_id(), **options)
        watch(slave)
        self.slaves[name] = slave
        return slave


def watch(*processes: Process) -> None:
    """A failed test shows their last words."""
    conftest._running.extend((process.name, process.log) for process in processes)


@pytest.fixture(scope="module")
def namesrv(java_is_here: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    before = list(conftest._running)
    server = OurNameServer(tmp_path_factory.mktemp("replication-namesrv"))
    watch(server)
    with server:
        yield server.address
    conftest._running[:] = before


# --- Apache's master, our slaves ---------------------------------------------------------------


@pytest.fixture(scope="module", params=PAIR)
def apache_master(
    request: pytest.FixtureRequest, namesrv: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    """An Apache master and a slave of ours that was there from its first byte on."""
    version: Kind = request.param
    folder = tmp_path_factory.mktemp(f"master-{version}")
    with ReplicaSet(folder, f"apache-master-{version[0]}", namesrv=namesrv) as replicas:
        master = replicas.replica(version)
        watch(master)
        master.start()
        scene = Scene(replicas, master, Traffic(master.address, "Pairs"))
        scene.join("first", OURS)
        scene.sender.ready()
        yield scene


def test_our_slave_of_an_empty_apache_master_has_every_kind_of_record(apache_master: Scene) -> None:
    scene = apache_master
    scene.sender.every_kind()
    scene.sender.from_v6()
    (seen,) = scene.compare("first")
    assert seen.copy[0] == 0
    topics = {found.record.topic for found in Log.read(scene.slaves["first"].store).records}
    assert topics >= {"Pairs", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"}


def test_an_empty_slave_of_ours_copies_all_files_of_an_apache_master_in_its_fourth(apache_master: Scene) -> None:
    """An Apache slave would get the last file only: the stream begins there for a slave that reports 0."""
    scene = apache_master
    fill_file(scene.master, scene.sender, 3)
    scene.join("late", OURS)
    scene.sender.every_kind()
    first, late = scene.compare("first", "late")
    assert first.copy[0] == late.copy[0] == 0


def test_our_slave_that_was_killed_catches_up_a_file_of_an_apache_master(apache_master: Scene) -> None:
    scene = apache_master
    first = scene.slaves["first"]
    first.kill()
    fill_file(scene.master, scene.sender, file_of(log_end(scene.master.address)) + 2)
    first.start()
    (seen,) = scene.compare("first")
    assert seen.copy[0] == 0


def test_our_slave_joins_an_apache_master_under_load_that_rolls(apache_master: Scene) -> None:
    scene = apache_master
    with Load(scene.sender) as load:
        load.wait_for_bytes(FILE_BYTES // 2)
        scene.join("joined", OURS)
        load.wait_for_bytes(2 * FILE_BYTES)
    scene.compare()


# --- our master, Apache's slaves ---------------------------------------------------------------


@pytest.fixture(scope="module")
def our_master(namesrv: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A master of ours with a slave of each Apache version, there from the first byte on."""
    with ReplicaSet(tmp_path_factory.mktemp("our-master"), "our-master", namesrv=namesrv) as replicas:
        master = replicas.master(OURS)
        watch(master)
        scene = Scene(replicas, master, traffic(master, "Pairs"))
        for number, version in enumerate((OLD, NEW), 1):
            scene.slaves[version] = replicas.replica(version, number)
        watch(*scene.slaves.values())
        start_all(*scene.slaves.values())
        yield scene


def test_two_apache_slaves_of_an_empty_master_of_ours_have_every_kind_of_record(our_master: Scene) -> None:
    scene = our_master
    scene.sender.every_kind()
    for seen in scene.compare():
        assert seen.copy[0] == 0
    with Load(scene.sender) as load:
        load.wait_for_bytes(2 * FILE_BYTES)
    scene.compare()


def test_apache_slaves_that_were_killed_catch_up_under_load(our_master: Scene) -> None:
    scene = our_master
    both = [scene.slaves[OLD], scene.slaves[NEW]]
    for slave in both:
        slave.kill()
    fill_file(scene.master, scene.sender, file_of(log_end(scene.master.address)) + 2)
    with Load(scene.sender, chunk=8):
        start_all(*both)
    for slave in both:
        # A Java broker that opens a killed broker's folder fills its newest index file only in part.
        (seen,) = copied(scene.master, slave, index=False)
        assert seen.copy[0] == 0


def test_empty_apache_slaves_begin_at_our_masters_last_file(our_master: Scene) -> None:
    scene = our_master
    fill_file(scene.master, scene.sender, max(3, file_of(log_end(scene.master.address))))
    began = file_of(log_end(scene.master.address))
    late = [scene.replicas.replica(version, number) for number, version in enumerate((OLD, NEW), 3)]
    watch(*late)
    for slave in (scene.slaves[OLD], scene.slaves[NEW]):
        slave.kill()
    with Load(scene.sender, chunk=8):
        start_all(*late)
    for seen in copied(scene.master, *late):
        assert file_of(seen.copy[0]) >= began >= 3


# --- folders change hands ----------------------------------------------------------------------


def goes_on(master: Replica, before: Log) -> None:
    """A new master takes messages, and each queue's numbers go on without a gap."""
    sender = traffic(master, "Pairs")
    sender.plain(40)
    assert len(sender.accepted) == 40
    log = Log.read(master.store)
    assert log.end > before.end
    assert log.bytes(before.begin, before.records[-1].end) == before.bytes(
        before.begin, before.records[-1].end
    )
    numbers: dict[tuple[str, int], int] = {}
    for found in log.records:
        if found.record.topic == "Pairs":
            assert found.record.queue_offset == numbers.get(found.queue, found.record.queue_offset)
            numbers[found.queue] = found.record.queue_offset + 1


def test_apaches_broker_opens_our_slaves_folder_as_slave_and_as_master(
    apache_master: Scene, namesrv: str, tmp_path: Path
) -> None:
    scene = apache_master
    ours = scene.slaves["first"]
    copied(scene.master, ours)
    ours.stop()
    version: Kind = OLD if scene.replicas.name.endswith("4") else NEW
    before = Log.read(ours.store)
    fill_file(scene.master, scene.sender, file_of(log_end(scene.master.address)) + 1)
    slave = scene.replicas.replica(version, 8, store=keep(ours.store, tmp_path / "slave"))
    with ReplicaSet(tmp_path / "set", f"promoted-{version[0]}", namesrv=namesrv) as others:
        master = others.replica(version, store=keep(ours.store, tmp_path / "master"))
        watch(slave, master)
        start_all(slave, master)
        (seen,) = copied(scene.master, slave)
        assert seen.copy[0] == 0
        slave.kill()
        goes_on(master, before)
        again = others.slave(OURS, store=keep(ours.store, tmp_path / "again"))
        (seen,) = copied(master, again)
        assert seen.copy[0] == 0


@pytest.mark.parametrize("version", PAIR)
def test_our_broker_opens_an_apache_slaves_folder_as_slave_and_as_master(
    version: Kind, our_master: Scene, namesrv: str, tmp_path: Path
) -> None:
    scene = our_master
    theirs = scene.slaves[version]
    theirs.kill()
    before = Log.read(theirs.store)
    fill_file(scene.master, scene.sender, file_of(log_end(scene.master.address)) + 1)
    slave = scene.replicas.slave(OURS, 8, store=keep(theirs.store, tmp_path / "slave"))
    (seen,) = copied(scene.master, slave)
    assert seen.copy[0] == 0
    slave.kill()
    with ReplicaSet(tmp_path / "set", f"promoted-{version[0]}", namesrv=namesrv) as others:
        master = others.master(OURS, store=keep(theirs.store, tmp_path / "master"))
        watch(slave, master)
        goes_on(master, before)
        again = others.slave(OURS, store=keep(theirs.store, tmp_path / "again"))
        (seen,) = copied(master, again)
        assert seen.copy[0] == 0


# --- statuses ----------------------------------------------------------------------------------

NO_SLAVE, SLAVE, STALLED = "no slave", "a slave", "a slave that stands still"
SLAVE_TIMEOUT = 1.0

# What a SYNC_MASTER answers: by rule and `inSyncReplicas`, what there is besides the master, and whether the sender
# waits.
STATUSES: dict[tuple[str, int], dict[tuple[str, bool], int]] = {
    ("4.9", 1): {
        (NO_SLAVE, True): 11,
        (NO_SLAVE, False): 0,
        (SLAVE, True): 0,
        (STALLED, True): 12,
        (STALLED, False): 0,
    },
    ("5.x", 1): {
        (NO_SLAVE, True): 0,
        (NO_SLAVE, False): 0,
        (SLAVE, True): 0,
        (STALLED, True): 0,
        (STALLED, False): 0,
    },
    ("5.x", 2): {
        (NO_SLAVE, True): 12,
        (NO_SLAVE, False): 0,
        (SLAVE, True): 0,
        (STALLED, True): 12,
        (STALLED, False): 0,
    },
    ("safe", 1): {
        (NO_SLAVE, True): 11,
        (NO_SLAVE, False): 0,
        (SLAVE, True): 0,
        (STALLED, True): 12,
        (STALLED, False): 0,
    },
    ("safe", 2): {
        (NO_SLAVE, True): 11,
        (NO_SLAVE, False): 0,
        (SLAVE, True): 0,
        (STALLED, True): 12,
        (STALLED, False): 0,
    },
}


def answered(sender: Traffic, waits: bool) -> tuple[int, float]:
    """A send's status and how long that took."""
    begun = time.monotonic()
    (answer,) = sender.plain(1, WAIT="true" if waits else "false")
    return answer.code, time.monotonic() - begun


def statuses(scene: Scene, slave: Replica, replicas: int) -> dict[tuple[str, bool], int]:
    """The row of the table for a running master; its slave is not running, and is killed at the end."""
    if not isinstance(scene.master, OurBroker):
        limit = int(SLAVE_TIMEOUT * 1000)
        settings = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": replicas, "slaveTimeout": limit}
        assert configure(scene.master.address, **settings).code == 0
    found: dict[tuple[str, bool], int] = {}
    times: dict[tuple[str, bool], float] = {}

    def look(what: str, *waits: bool) -> None:
        for waiting in waits:
            found[what, waiting], times[what, waiting] = answered(scene.sender, waiting)

    look(NO_SLAVE, True, False)
    slave.start()
    copied(scene.master, slave)
    look(SLAVE, True)
    with paused(slave):
        look(STALLED, True, False)
    copied(scene.master, slave)
    slave.kill()
    for case, code in found.items():
        if code == 12:
            assert SLAVE_TIMEOUT * 0.9 <= times[case] < SLAVE_TIMEOUT + 2.0, (case, times[case])
        else:
            assert times[case] < SLAVE_TIMEOUT * 0.9, (case, times[case])
    return found


def test_an_apache_sync_master_answers_as_the_table_says(apache_master: Scene) -> None:
    """The table is what Apache's own brokers do; ours is compared with it by its rules."""
    scene = apache_master
    for slave in scene.slaves.values():
        slave.kill()
    rule = "4.9" if scene.replicas.name.endswith("4") else "5.x"
    slave = scene.replicas.replica(OURS, 9)
    for (name, replicas), expected in STATUSES.items():
        if name == rule:
            assert statuses(scene, slave, replicas) == expected
    assert configure(scene.master.address, brokerRole="ASYNC_MASTER").code == 0


@pytest.mark.parametrize(("rule", "replicas"), STATUSES)
def test_our_sync_master_answers_as_the_table_says(
    rule: str, replicas: int, namesrv: str, tmp_path: Path
) -> None:
    options = {
        "brokerRole": "SYNC_MASTER",
        "replicaRule": rule,
        "inSyncReplicas": replicas,
        "slaveTimeout": 1000,
    }
    with ReplicaSet(tmp_path, f"statuses-{rule}-{replicas}", namesrv=namesrv) as ours:
        master = ours.master(OURS, role="SYNC_MASTER", extra=options)
        scene = Scene(ours, master, traffic(master, "Pairs"))
        slave = ours.replica(OURS, 1)
        watch(master, slave)
        assert statuses(scene, slave, replicas) == STATUSES[rule, replicas]
