"""Masters and slaves, Apache's and ours, in every pair: the copy is equal byte by byte, entry by entry, key by key.

Servers are shared: an Apache master of each version has slaves of ours, which come, go and come back, and one master of
ours has two Apache slaves. Each test says what it adds to the log and compares all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.interop import conftest
from tests.peers.driver import eventually
from tests.peers.folders import Log
from tests.peers.ours import OurNameServer
from tests.peers.process import Process
from tests.peers.replicas import (
    FILE_BYTES,
    NEW,
    OLD,
    OURS,
    Kind,
    ReplicaSet,
    copied,
    keep,
    killed,
    start_all,
    traffic,
)
from tests.peers.traffic import Load, Traffic, configure, log_end
from tests.replication.scenes import STATUSES, Scene, file_of, fill_file, goes_on, statuses

pytestmark = [pytest.mark.interop, pytest.mark.apart, pytest.mark.timeout(360)]

PAIR = [pytest.param(OLD, id="4.9.7"), pytest.param(NEW, id="5.5.0")]


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
        scene = Scene(replicas, master, Traffic(master.address, "Pairs"), watch=watch)
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


def test_an_empty_slave_of_ours_copies_all_files_of_an_apache_master_in_its_fourth(
    apache_master: Scene,
) -> None:
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
        scene = Scene(replicas, master, traffic(master, "Pairs"), watch=watch)
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
    with Load(scene.sender, pause=0.1):
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
    with killed(*late):
        with Load(scene.sender, pause=0.1):
            start_all(*late)
        for seen in copied(scene.master, *late):
            assert file_of(seen.copy[0]) >= began >= 3


# --- folders change hands ----------------------------------------------------------------------


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
    with (
        killed(slave),
        ReplicaSet(tmp_path / "set", f"promoted-{version[0]}", namesrv=namesrv) as others,
    ):
        master = others.replica(version, store=keep(ours.store, tmp_path / "master"))
        watch(slave, master)
        start_all(slave, master)
        (seen,) = copied(scene.master, slave)
        assert seen.copy[0] == 0
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
    with killed(slave):
        # The Apache broker was killed and started again before, so its index has gaps.
        (seen,) = copied(scene.master, slave, index=False)
        assert seen.copy[0] == 0
    with ReplicaSet(tmp_path / "set", f"promoted-{version[0]}", namesrv=namesrv) as others:
        master = others.master(OURS, store=keep(theirs.store, tmp_path / "master"))
        watch(slave, master)
        goes_on(master, before)
        again = others.slave(OURS, store=keep(theirs.store, tmp_path / "again"))
        (seen,) = copied(master, again, index=False)
        assert seen.copy[0] == 0


# --- statuses ----------------------------------------------------------------------------------


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


def test_what_an_apache_sync_master_answered_before_it_was_killed_is_on_our_slave(
    apache_master: Scene,
) -> None:
    """The last test of this master, which is not started again."""
    scene = apache_master
    slave = scene.replicas.replica(OURS, 10)
    senders = [Traffic(scene.master.address, scene.sender.topic) for _ in range(6)]

    def send_until_it_breaks(sender: Traffic) -> None:
        with suppress(OSError):
            while True:
                sender.plain(1)

    with killed(slave), ThreadPoolExecutor(len(senders)) as pool:
        slave.start()
        copied(scene.master, slave)
        assert configure(scene.master.address, brokerRole="SYNC_MASTER", inSyncReplicas=2).code == 0
        sending = [pool.submit(send_until_it_breaks, sender) for sender in senders]
        eventually(
            lambda: sum(len(sender.accepted) for sender in senders),
            lambda count: count >= 500,
            "answered sends",
        )
        scene.master.kill()
        for each in sending:
            each.result()
        slave.kill()
        held = {found.record.body for found in Log.read(slave.store).records}
        answered = [body for sender in senders for body in sender.accepted]
        assert [body for body in answered if body not in held] == []


# --- the long form -----------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("slave_kind", [OLD, NEW, OURS])
@pytest.mark.parametrize("master_kind", [OLD, NEW, OURS])
def test_a_pair_goes_through_everything(
    master_kind: Kind, slave_kind: Kind, namesrv: str, tmp_path: Path
) -> None:
    """Each pair by itself, Apache's among themselves too: the comparison asks nothing but what holds for them."""
    with ReplicaSet(tmp_path, f"pair-{master_kind}-{slave_kind}", namesrv=namesrv) as replicas:
        master = replicas.master(master_kind)
        scene = Scene(replicas, master, traffic(master, "Pairs"), watch=watch)
        first = scene.join("first", slave_kind)
        scene.sender.every_kind()
        if master_kind != OURS:
            scene.sender.from_v6()
        (seen,) = scene.compare("first")
        assert seen.copy[0] == 0
        fill_file(master, scene.sender, 3)
        began = file_of(log_end(master.address))
        scene.join("late", slave_kind)
        scene.sender.every_kind()
        _, late = scene.compare("first", "late")
        assert late.copy[0] == 0 if slave_kind == OURS else file_of(late.copy[0]) >= began >= 3
        for round_number in range(2):
            first.kill()
            fill_file(master, scene.sender, file_of(log_end(master.address)) + 2)
            with Load(scene.sender, pause=0.1) as load:
                first.start()
                load.wait_for_bytes(FILE_BYTES)
            # A Java broker that opens a killed broker's folder fills its newest index file only in part.
            copied(master, first, index=slave_kind == OURS)
            if round_number == 0:
                master.kill()
                master.start()
                scene.sender.every_kind()
                copied(master, first, index=slave_kind == master_kind == OURS)
