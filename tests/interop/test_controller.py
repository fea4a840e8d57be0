"""Apache's controller elects our brokers, alone and in one set with Apache's: nothing that was answered 0 is lost."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gimbalmq.cli.main import main
from tests.interop import conftest
from tests.peers.apache import ApacheController, mqadmin
from tests.peers.controlled import ControlledSet, Pursuit, epoch_file, epochs
from tests.peers.folders import Log, same
from tests.peers.ours import OurNameServer
from tests.peers.process import Process, free_port
from tests.peers.replicas import NEW, OURS, SLOTS, Kind, Replica, caught_up, paused, start_all
from tests.peers.traffic import Traffic, log_end

pytestmark = [pytest.mark.interop, pytest.mark.apart, pytest.mark.timeout(360)]


KILLS = int(os.environ.get("GIMBALMQ_CONTROLLER_KILLS", "6"))
"""Of masters of three replicas, in the long form."""


def watch(*processes: Process) -> None:
    """A failed test shows their last words."""
    conftest._running.extend((process.name, process.log) for process in processes)


@pytest.fixture(scope="module")
def namesrv(java_is_here: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    before = list(conftest._running)
    server = OurNameServer(tmp_path_factory.mktemp("controlled-namesrv"))
    watch(server)
    with server:
        yield server.address
    conftest._running[:] = before


@pytest.fixture(scope="module")
def controller(namesrv: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheController]:
    made = ApacheController(tmp_path_factory.mktemp("controller"))
    watch(made)
    with made:
        yield made


def bodies(replica: Replica, topic: str) -> dict[int, list[bytes]]:
    return Log.read(replica.store).bodies(topic)


def equal(master: Replica, *slaves: Replica) -> None:
    """Logs byte by byte, queue entries and keys, and the epochs, told and in the files."""
    caught_up(master, *slaves)
    for slave in slaves:
        # A broker of Apache's that was killed has lost part of its newest index file.
        same(master.store, slave.store, slots=SLOTS, index=False)
        assert epochs(slave) == epochs(master)
        assert epoch_file(slave) == epoch_file(master)


def ready(replicas: ControlledSet, master: Replica, topic: str) -> None:
    Traffic(master.address, topic, queues=8).ready()


def kill_under_load(replicas: ControlledSet, topic: str, master: Replica, heir: Replica) -> float:
    """Kills the master while messages come; how long nobody took one. All that was accepted is at the heir."""
    replicas.wait_for_set(master, heir)
    with Pursuit(topic, master, heir) as pursuit:
        pursuit.wait_for(200)
        moment = time.monotonic()
        master.kill()
        seconds = pursuit.first_at(heir, moment)
        pursuit.wait_for(200)
    replicas.wait_for_master(heir)
    pursuit.check(bodies(heir, topic))
    return seconds


def test_our_brokers_alone(controller: ApacheController, namesrv: str, tmp_path: Path) -> None:
    with ControlledSet(tmp_path, "ours-alone", controller, namesrv=namesrv) as replicas:
        first, second = replicas.member(OURS), replicas.member(OURS)
        watch(first, second)
        first.start()
        second.start()
        ids = replicas.wait_for_set(first, second)
        assert replicas.standing()["masterAddress"] == first.address
        ready(replicas, first, "Alone")
        Traffic(first.address, "Alone").every_kind()
        equal(first, second)

        # A slave that comes again has the id it had.
        second.stop()
        replicas.wait_for_set(first)
        second.start()
        assert replicas.wait_for_set(first, second) == ids

        # By hand, to and fro.
        assert replicas.elect(second).code == 0
        replicas.wait_for_set(first, second)
        Traffic(second.address, "Alone").plain(20)
        assert replicas.elect(first).code == 0
        replicas.wait_for_set(first, second)
        Traffic(first.address, "Alone").plain(20)
        equal(first, second)
        assert [epoch for epoch, _ in epochs(first)] == [1, 2, 3]

        seconds = kill_under_load(replicas, "Alone", first, second)
        print(f"kill to first accepted send, ours: {seconds:.3f} s")
        assert seconds < 5
        # Old master: what nobody else had is cut off.
        first.start()
        replicas.wait_for_set(first, second)
        equal(second, first)

        # And without the controller everything goes on.
        end = log_end(second.address)
        controller.kill()
        try:
            traffic = Traffic(second.address, "Alone")
            traffic.plain(50)
            assert traffic.answers == {0: 50} and log_end(first.address) > end
        finally:
            controller.start()
        replicas.wait_for_set(first, second)


def test_one_set_with_apaches_broker(controller: ApacheController, namesrv: str, tmp_path: Path) -> None:
    with ControlledSet(tmp_path, "mixed", controller, namesrv=namesrv) as replicas:
        apache, ours = replicas.member(NEW), replicas.member(OURS)
        watch(apache, ours)
        apache.start()
        ours.start()
        replicas.wait_for_set(apache, ours)
        ready(replicas, apache, "Mixed")
        Traffic(apache.address, "Mixed").every_kind()
        equal(apache, ours)
        assert replicas.elect(ours).code == 0
        replicas.wait_for_set(apache, ours)
        Traffic(ours.address, "Mixed").plain(20)
        assert replicas.elect(apache).code == 0

        for victim, heir in ((apache, ours), (ours, apache)):
            seconds = kill_under_load(replicas, "Mixed", victim, heir)
            print(f"kill of {victim.name} to first accepted send at {heir.name}: {seconds:.3f} s")
            victim.start()
            replicas.wait_for_set(apache, ours)
            equal(heir, victim)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", [OURS, NEW])
def test_how_long_nobody_takes_a_message(
    controller: ApacheController, namesrv: str, tmp_path: Path, kind: Kind
) -> None:
    """The figure of docs/performance.md; nothing is asserted of it but that it is a figure."""
    with ControlledSet(tmp_path, f"timed-{kind}", controller, namesrv=namesrv) as replicas:
        first, second = replicas.member(kind), replicas.member(kind)
        watch(first, second)
        start_all(first, second)
        master = first
        replicas.wait_for_set(first, second)
        if replicas.standing()["masterAddress"] != first.address:
            master = second
        ready(replicas, master, "Timed")
        figures = []
        for _ in range(5):
            heir = second if master is first else first
            figures.append(kill_under_load(replicas, "Timed", master, heir))
            master.start()
            replicas.wait_for_set(first, second)
            equal(heir, master)
            master = heir
        print(f"kill to first accepted send, {kind}: " + ", ".join(f"{each:.3f}" for each in figures))


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_three_replicas_of_both_kinds(controller: ApacheController, namesrv: str, tmp_path: Path) -> None:
    with ControlledSet(tmp_path, "three", controller, namesrv=namesrv) as replicas:
        members = [replicas.member(kind) for kind in (OURS, NEW, OURS)]
        watch(*members)
        for member in members:
            member.start()
        replicas.wait_for_set(*members)
        ready(replicas, members[0], "Three")
        for _ in range(KILLS):
            with Pursuit("Three", *members) as pursuit:
                pursuit.wait_for(200)
                victim = next(
                    member for member in members if member.address == replicas.standing()["masterAddress"]
                )
                victim.kill()
                pursuit.wait_for(200)
            others = [member for member in members if member is not victim]
            replicas.wait_for_set(*others)
            master = next(
                member for member in others if member.address == replicas.standing()["masterAddress"]
            )
            pursuit.check(bodies(master, "Three"))
            victim.start()
            replicas.wait_for_set(*members)
            equal(master, *(member for member in members if member is not master))


@pytest.mark.soak
def test_apaches_tools_see_the_set(controller: ApacheController, namesrv: str, tmp_path: Path) -> None:
    with ControlledSet(tmp_path, "tooled", controller, namesrv=namesrv) as replicas:
        first, second = replicas.member(OURS), replicas.member(OURS)
        watch(first, second)
        first.start()
        second.start()
        ids = replicas.wait_for_set(first, second)
        status, text = mqadmin(
            NEW, "getSyncStateSet", "-a", controller.address, "-b", "tooled", folder=tmp_path / "tools"
        )
        assert status == 0 and first.address in text and second.address in text, text
        status, text = mqadmin(
            NEW, "getBrokerEpoch", "-n", namesrv, "-b", "tooled", folder=tmp_path / "tools"
        )
        assert status == 0 and "epoch=1" in text.replace(" ", ""), text
        cluster = str(first.properties["brokerClusterName"])
        status, text = mqadmin(
            NEW,
            *("electMaster", "-a", controller.address, "-b", str(ids[second.address])),
            *("-bn", "tooled", "-c", cluster),
            folder=tmp_path / "tools",
        )
        assert status == 0, text
        replicas.wait_for_master(second)
        status, text = mqadmin(
            NEW, "haStatus", "-n", namesrv, "-b", second.address, folder=tmp_path / "tools"
        )
        assert status == 0, text


def test_our_commands_see_and_change_the_set(
    controller: ApacheController,
    namesrv: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", namesrv)

    def told(words: str, code: int = 0) -> str:
        found = main(words.split())
        shown = capsys.readouterr()
        assert found == code, shown
        return shown.out + shown.err

    with ControlledSet(tmp_path, "commanded", controller, namesrv=namesrv) as replicas:
        first, second = replicas.member(OURS), replicas.member(OURS)
        watch(first, second)
        first.start()
        second.start()
        ids = replicas.wait_for_set(first, second)
        # Brokers say where the controller is.
        assert "led by n0" in told("controller show") and controller.address in told("controller show")
        shown = told("broker sync-state commanded")
        assert f"master {ids[first.address]} at {first.address}, epoch 1" in shown
        assert all(re.search(rf"{ids[address]} +{address} +yes +yes", shown) for address in ids), shown
        assert told("broker epochs commanded").count("EPOCH") == 2
        assert re.search(
            rf"commanded +0 +master +{first.address} .* 1 of 1 in sync", told("broker ha-status")
        )
        assert "gimbalmq broker elect asks it to" in told("broker promote commanded --force --yes", code=1)
        assert "shows the replicas that can be elected" in told("broker elect commanded 9 --yes", code=1)
        assert second.address in told(f"broker elect commanded {ids[second.address]} --yes")
        replicas.wait_for_master(second)
        told("controller set scanNotActiveBrokerInterval=4500")
        assert "=4500" in told("controller config scanNotActiveBrokerInterval")
        told("controller set scanNotActiveBrokerInterval=5000")
        living = f"controller clean commanded --ids {ids[first.address]} --yes"
        assert "stop it first" in told(living, code=1)
        replicas.wait_for_set(first, second)
        first.stop()
        replicas.wait_for_set(second)
        told(living)
        assert first.address not in told("broker sync-state commanded")


@pytest.mark.soak
def test_folders_go_from_one_to_the_other(controller: ApacheController, namesrv: str, tmp_path: Path) -> None:
    """Log, queues, epochs and identity of a replica, opened by a broker of the other kind, which has the same id."""
    with ControlledSet(tmp_path, "folders", controller, namesrv=namesrv) as replicas:
        first, second = replicas.member(OURS), replicas.member(OURS)
        watch(first, second)
        first.start()
        second.start()
        ids = replicas.wait_for_set(first, second)
        ready(replicas, first, "Folders")
        Traffic(first.address, "Folders").every_kind()
        assert replicas.elect(second).code == 0
        replicas.wait_for_set(first, second)
        Traffic(second.address, "Folders").plain(20)
        equal(second, first)
        first.stop()
        apache = replicas.member(NEW, store=first.store, port=first.port)
        watch(apache)
        apache.start()
        assert replicas.wait_for_set(apache, second) == ids
        Traffic(second.address, "Folders").plain(20)
        equal(second, apache)
        assert replicas.elect(apache).code == 0
        replicas.wait_for_set(apache, second)
        Traffic(apache.address, "Folders").plain(20)
        apache.stop()
        replicas.wait_for_master(second)
        first.start()
        assert replicas.wait_for_set(first, second) == ids
        equal(second, first)


@pytest.mark.soak
def test_three_controllers_of_which_the_leader_dies(namesrv: str, tmp_path: Path) -> None:
    ports = [free_port() for _ in range(3)]
    controllers = [
        ApacheController(tmp_path / f"controller-{number}", ports=ports, number=number) for number in range(3)
    ]
    watch(*controllers)
    try:
        start_all(*controllers)
        with ControlledSet(tmp_path, "quorum", *controllers, namesrv=namesrv) as replicas:
            first, second = replicas.member(OURS), replicas.member(OURS)
            watch(first, second)
            first.start()
            second.start()
            replicas.wait_for_set(first, second)
            ready(replicas, first, "Quorum")
            replicas.controller.kill()
            with Pursuit("Quorum", first, second) as pursuit:
                pursuit.wait_for(100)
                assert set(pursuit.codes) == {0}, "no leader, and sends go on"
            # A new leader elects as the old one did.
            replicas.wait_for_set(first, second)
            kill_under_load(replicas, "Quorum", first, second)
            first.start()
            replicas.wait_for_set(first, second)
            equal(second, first)
    finally:
        for controller in controllers:
            controller.kill()


@pytest.mark.soak
@pytest.mark.parametrize("kind", [OURS, NEW])
def test_a_master_that_was_away_takes_nothing_more(
    controller: ApacheController, namesrv: str, tmp_path: Path, kind: Kind
) -> None:
    """It stood still while its slave was elected, and does not know that when it goes on."""
    with ControlledSet(tmp_path, f"away-{kind}", controller, namesrv=namesrv) as replicas:
        first, second = replicas.member(OURS), replicas.member(kind)
        watch(first, second)
        first.start()
        second.start()
        replicas.wait_for_set(first, second)
        ready(replicas, first, "Away")
        with Pursuit("Away", first, second) as pursuit:
            pursuit.wait_for(100)
            with paused(first):
                replicas.wait_for_master(second)
                with Pursuit("Away", first) as late:
                    pursuit.first_at(second, time.monotonic())
                    os.kill(first.pid, signal.SIGCONT)
                    replicas.wait_for_set(first, second)
        equal(second, first)
        pursuit.check(bodies(second, "Away"))
        late.check(bodies(second, "Away"))


@pytest.mark.parametrize("kind", [OURS, NEW])
def test_who_lost_its_log_has_the_fullest_elected(
    controller: ApacheController, namesrv: str, tmp_path: Path, kind: Kind
) -> None:
    """Only the one with nothing is in the set, so the controller elects nobody else by itself."""
    with ControlledSet(tmp_path, f"doubt-{kind}", controller, namesrv=namesrv) as replicas:
        first, second = replicas.member(OURS), replicas.member(kind)
        watch(first, second)
        first.start()
        second.start()
        replicas.wait_for_set(first, second)
        ready(replicas, first, "Doubt")
        traffic = Traffic(first.address, "Doubt")
        traffic.plain(50)
        assert traffic.answers == {0: 50}
        second.stop()
        replicas.wait_for_set(first)
        first.kill()
        for entry in first.store.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name != "brokerIdentity":
                entry.unlink()
        start_all(first, second)
        replicas.wait_for_master(second)
        assert sum(map(len, bodies(second, "Doubt").values())) >= 50
        replicas.wait_for_set(first, second)
        Traffic(second.address, "Doubt").plain(5)
        equal(second, first)
