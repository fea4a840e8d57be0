"""Commands about replicas and controllers, against servers that answer what Apache's and ours do."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator

import pytest

from gimbalmq.admin import replication
from gimbalmq.cli.main import main
from gimbalmq.errors import NoPermissionError, ResponseError
from gimbalmq.protocol import properties_text
from gimbalmq.protocol.bodies import KvTable
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.replication_bodies import (
    EpochEntry,
    EpochTable,
    HaConnection,
    ReplicaIdentity,
    ReplicasInfo,
    ReplicasTable,
)
from tests.cli.scripted import Scripted, ScriptedCluster, as_master, as_slave

Run = Callable[..., str]


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster() as cluster:
        yield cluster


@pytest.fixture
def run(cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process; its output, and the exit code checked."""
    monkeypatch.setenv("NAMESRV_ADDR", cluster.namesrv)
    monkeypatch.setattr(replication, "_SECOND_LOOK_SECONDS", 0.01)

    def run(*words: object, code: int = 0, error: str | None = None) -> str:
        found = main([str(word) for word in words])
        shown = capsys.readouterr()
        assert found == code, shown.out + shown.err
        if error is not None:
            assert re.search(error, shown.err), shown.err
        return shown.out

    return run


# -- who copies whom ------------------------------------------------------------------


def _connection(end: int) -> HaConnection:
    return HaConnection(
        addr="10.0.0.2:5050", slave_ack_offset=end, diff=1000 - end, in_sync=True, transfer_from_where=end
    )


def test_every_replica_is_shown_with_what_it_lacks(cluster: ScriptedCluster, run: Run) -> None:
    master = cluster.broker(
        "broker-a", 0, as_master(1000, ha_connection_info=[_connection(940)], in_sync_slave_nums=1)
    )
    slave = cluster.broker("broker-a", 1, as_slave(940, "following", master_addr="10.0.0.1:10912"))
    shown = run("broker", "ha-status")
    assert re.search(rf"broker-a +0 +master +{master.address} +1000 +1 of 1 in sync", shown), shown
    assert re.search(rf"broker-a +1 +slave +{slave.address} +940 +60 +following", shown), shown
    (first, second) = json.loads(run("haStatus", "-c", "DefaultCluster", "--json"))
    assert first["slaves"][0]["behind"] == 60 and second["behind"] == 60
    # One by its address: the master is asked all the same, for the lag follows from both.
    shown = run("haStatus", "-b", slave.address)
    assert "copies from" in shown and "10.0.0.1:10912" in shown and re.search(r"940 +60", shown)
    assert "10.0.0.2:5050" in run("broker", "ha-status", "broker-a")


def test_a_limit_of_bytes_behind_is_an_exit_code(cluster: ScriptedCluster, run: Run) -> None:
    cluster.broker("broker-a", 0, as_master(1000))
    cluster.broker("broker-a", 1, as_slave(940, "following"))
    run("broker", "ha-status", "--max-behind", 60)
    run("broker", "ha-status", "--max-behind", 59, code=4)


def test_a_slave_that_does_not_copy_says_why(cluster: ScriptedCluster, run: Run) -> None:
    cluster.broker("broker-a", 0, as_master(1000))
    cluster.broker("broker-a", 1, as_slave(2000, "refused", trouble="our log ends at 2000"))
    shown = run("broker", "ha-status", code=1)
    assert "refused" in shown and "our log ends at 2000" in shown


def test_brokers_of_4_9_which_do_not_know_the_request_are_asked_otherwise(
    cluster: ScriptedCluster, run: Run
) -> None:
    for broker_id, end in ((0, 1000), (1, 900)):
        table = KvTable(table={"commitLogMaxOffset": str(end)}).dump()
        cluster.broker("broker-a", broker_id, {RequestCode.GET_BROKER_RUNTIME_INFO: table})
    shown = run("broker", "ha-status", "broker-a")
    assert re.search(r"master .* 1000 +-\n", shown) and re.search(r"slave .* 900 +100 +-\n", shown), shown
    assert "no slave" not in shown.lower() and "copies from" not in shown, "nobody knows"


def test_a_broker_that_does_not_answer_is_named(cluster: ScriptedCluster, run: Run) -> None:
    cluster.broker("broker-a", 0, as_master(1000))
    cluster.register("broker-a", 1, "127.0.0.1:1")
    shown = run("broker", "ha-status", code=1)
    assert "cannot be asked" in shown and "127.0.0.1:1" in shown
    run("broker", "ha-status", "broker-x", code=2, error="no such broker is registered; there is broker-a")
    run("broker", "ha-status", "-c", "other", code=2, error="no such cluster is registered")


def test_the_masters_flushed_offset_is_set_at_a_slave_only(cluster: ScriptedCluster, run: Run) -> None:
    master = cluster.broker("broker-a", 0, as_master(1000))
    slave = cluster.broker("broker-a", 1, as_slave(900) | {RequestCode.RESET_MASTER_FLUSH_OFFSET: b""})
    run("resetMasterFlushOffset", "-b", slave.address, "-o", 17)
    assert slave.of(RequestCode.RESET_MASTER_FLUSH_OFFSET) == [({"masterFlushOffset": "17"}, b"")]
    run("broker", "reset-master-flush-offset", master.address, "-o", 17, code=2, error="name a slave")
    run(
        "broker",
        "reset-master-flush-offset",
        "10.9.9.9:1",
        "-o",
        17,
        code=2,
        error="there is broker-a",
    )


# -- promoting by hand ----------------------------------------------------------------


def _asked_to_lead(slave: Scripted) -> list[dict[str, str]]:
    return [properties_text.loads(body.decode()) for _, body in slave.of(RequestCode.UPDATE_BROKER_CONFIG)]


def test_a_slave_of_a_living_master_is_not_promoted(cluster: ScriptedCluster, run: Run) -> None:
    master = cluster.broker("broker-a", 0, as_master(1000))
    slave = cluster.broker("broker-a", 1, as_slave(900, "following"))
    shown = run("broker", "promote", slave.address, "--yes", code=4)
    assert f"the master at {master.address} is up" in shown and "lacks 100 bytes" in shown
    assert not _asked_to_lead(slave)
    assert json.loads(run("broker", "promote", "broker-a", "--yes", "--json", code=4))["promoted"] is False
    run("broker", "promote", "broker-a", "--dry-run", code=4)


def test_a_slave_that_is_listed_a_moment_later_may_have_more(
    cluster: ScriptedCluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection to the name server had just broken."""
    cluster.broker("broker-a", 1, as_slave(900))
    sleep = asyncio.sleep

    async def listed_meanwhile(seconds: float) -> None:
        if seconds == replication._SECOND_LOOK_SECONDS:
            cluster.broker("broker-a", 2, as_slave(950))
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", listed_meanwhile)
    shown = run("broker", "promote", "broker-a", "--dry-run")
    assert "slave 2" in shown and "950" in shown, shown


def test_a_slave_that_has_more_and_goes_a_moment_later_is_not_forgotten(
    cluster: ScriptedCluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.broker("broker-a", 1, as_slave(900))
    full = cluster.broker("broker-a", 2, as_slave(950))
    sleep = asyncio.sleep

    async def gone_meanwhile(seconds: float) -> None:
        if seconds == replication._SECOND_LOOK_SECONDS:
            cluster.unregister("broker-a", 2, full.address)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", gone_meanwhile)
    shown = run("broker", "promote", "broker-a", "--yes", code=4)
    assert f"slave 2 at {full.address} had 50 bytes more a moment ago" in shown, shown


def test_the_slave_with_the_longest_log_is_promoted(cluster: ScriptedCluster, run: Run) -> None:
    short = cluster.broker("broker-a", 1, as_slave(900))
    long = cluster.broker("broker-a", 2, as_slave(1000, master_role="ASYNC_MASTER"))
    shown = run("broker", "promote", short.address, "--yes", code=4)
    assert "has 100 bytes more" in shown and f"gimbalmq broker promote {long.address}" in shown
    assert "Nothing speaks against it" in run("broker", "promote", "broker-a", "--dry-run")
    assert "Nothing was changed" in run("broker", "promote", "broker-a", code=4, error="say --yes")
    assert not _asked_to_lead(long) and not _asked_to_lead(short)

    async def leads() -> bytes:
        long.answers |= as_master(1000)
        await cluster.registers("broker-a", 0, long.address)
        return b""

    long.answers[RequestCode.UPDATE_BROKER_CONFIG] = leads
    assert f"broker-a at {long.address} is the master now, as SYNC_MASTER" in run(
        "broker", "promote", "broker-a", "--sync", "--yes"
    )
    assert long.of(RequestCode.UPDATE_BROKER_CONFIG)[0][0] == {}, "nothing is forced"
    assert _asked_to_lead(long) == [{"brokerRole": "SYNC_MASTER", "brokerId": "0"}]


@pytest.mark.parametrize(
    ("heard", "words", "role"),
    [
        ({"master_role": "SYNC_MASTER"}, [], "SYNC_MASTER"),
        ({"master_role": "ASYNC_MASTER"}, [], "ASYNC_MASTER"),
        ({"master_role": "SYNC_MASTER"}, ["--async"], "ASYNC_MASTER"),
        ({}, [], None),
    ],
)
def test_the_new_master_promises_what_the_old_one_did(
    cluster: ScriptedCluster, run: Run, heard: dict[str, str], words: list[str], role: str | None
) -> None:
    slave = cluster.broker("broker-a", 1, as_slave(900, **heard))
    if role is None:
        run("broker", "promote", "broker-a", "--yes", code=2, error="say --sync .* or --async")
        assert not _asked_to_lead(slave)
        return

    async def leads() -> bytes:
        slave.answers |= as_master(900)
        await cluster.registers("broker-a", 0, slave.address)
        return b""

    slave.answers[RequestCode.UPDATE_BROKER_CONFIG] = leads
    shown = run("broker", "promote", "broker-a", *words, "--yes")
    assert f"as {role}" in shown and ("wait for no slave" in shown) == (role == "ASYNC_MASTER")
    assert _asked_to_lead(slave) == [{"brokerRole": role, "brokerId": "0"}]


def test_a_slave_that_is_not_registered_may_have_more(cluster: ScriptedCluster, run: Run) -> None:
    cluster.broker("broker-a", 1, as_slave(900, master_slaves=2))
    assert "the master had 2 slaves" in run("broker", "promote", "broker-a", "--dry-run", code=4)
    cluster.broker("broker-a", 2, as_slave(900, master_slaves=2))
    assert "Nothing speaks against it" in run("broker", "promote", "broker-a", "--dry-run")


def test_a_masters_trouble_is_shown(cluster: ScriptedCluster, run: Run) -> None:
    cluster.broker("broker-a", 0, as_master(1000, trouble="no controller answers"))
    assert "no controller answers" in run("broker", "ha-status", code=1)


def test_of_slaves_with_the_same_log_one_of_ours_is_promoted(cluster: ScriptedCluster, run: Run) -> None:
    cluster.broker("broker-a", 1, as_slave(900, None))
    ours = cluster.broker("broker-a", 2, as_slave(900))
    assert f"slave 2 at {ours.address}" in run("broker", "promote", "broker-a", "--dry-run")


def test_a_slave_is_promoted_by_force(cluster: ScriptedCluster, run: Run) -> None:
    """Its master has stopped for good, but nobody can ask the other slave."""
    slave = cluster.broker("broker-a", 1, as_slave(900, master_role="ASYNC_MASTER"))
    cluster.register("broker-a", 2, "127.0.0.1:1")

    async def leads() -> bytes:
        slave.answers |= as_master(900)
        await cluster.registers("broker-a", 0, slave.address)
        return b""

    slave.answers[RequestCode.UPDATE_BROKER_CONFIG] = leads
    assert "In spite of this" in run("broker", "promote", slave.address, "--force", "--yes")
    assert slave.of(RequestCode.UPDATE_BROKER_CONFIG)[0][0] == {"forcesRole": "true"}
    assert _asked_to_lead(slave) == [{"brokerRole": "ASYNC_MASTER", "brokerId": "0"}]


def test_a_slave_that_still_copies_has_a_master(cluster: ScriptedCluster, run: Run) -> None:
    """One that the name servers have lost from sight, but that takes messages from others."""
    slave = cluster.broker("broker-a", 1, as_slave(900, "following", master_addr="10.0.0.1:10912"))
    assert "still copies from its master at 10.0.0.1:10912" in run(
        "broker", "promote", slave.address, "--yes", code=4
    )


def test_what_the_slave_last_heard_of_its_master_counts(cluster: ScriptedCluster, run: Run) -> None:
    slave = cluster.broker("broker-a", 1, as_slave(900, lag=100))
    assert re.search(r"900 +100 +seeking", run("broker", "ha-status"))
    shown = run("broker", "promote", slave.address, "--yes", code=4)
    assert "the master's log was 100 bytes longer when the slave last heard of it" in shown


def test_a_slave_that_cannot_be_asked_may_have_more(cluster: ScriptedCluster, run: Run) -> None:
    slave = cluster.broker("broker-a", 1, as_slave(900))
    cluster.register("broker-a", 2, "127.0.0.1:1")
    assert "cannot be asked whether it has more" in run("broker", "promote", slave.address, "--yes", code=4)


def test_a_slave_whose_log_is_another_one_is_not_promoted(cluster: ScriptedCluster, run: Run) -> None:
    slave = cluster.broker("broker-a", 1, as_slave(900, "refused", trouble="different records at 700"))
    shown = run("broker", "promote", slave.address, "--yes", code=4)
    assert "does not continue its master's log: different records at 700" in shown


def test_apaches_slaves_and_those_of_a_controller_are_not_promoted(
    cluster: ScriptedCluster, run: Run
) -> None:
    slave = cluster.broker("broker-a", 1, as_slave(900, None))
    run("broker", "promote", slave.address, "--yes", "--force", code=1, error="brokerRole=ASYNC_MASTER")
    controlled = properties_text.dumps({"enableControllerMode": "true"})
    slave.answers |= as_slave(900) | {RequestCode.GET_BROKER_CONFIG: controlled}
    run("broker", "promote", slave.address, "--yes", "--force", code=1, error="gimbalmq broker elect")


def test_who_may_not_know_is_told_that(cluster: ScriptedCluster, run: Run) -> None:
    refusal = NoPermissionError("User:shop has no permission to access Cluster:DefaultCluster")
    slave = cluster.broker("broker-a", 1, {RequestCode.GET_BROKER_HA_STATUS: refusal})
    assert "no permission" in run("broker", "ha-status", code=1)
    run("broker", "promote", slave.address, "--yes", code=1, error="User:shop has no permission .*[^e]$")


def test_what_is_no_slave_is_named_with_those_there_are(cluster: ScriptedCluster, run: Run) -> None:
    master = cluster.broker("broker-a", 0, as_master(1000))
    run("broker", "promote", master.address, code=2, error="is the master already")
    run("broker", "promote", "10.9.9.9:1", code=2, error="no such slave is registered; there is none")
    run("broker", "promote", code=2, error="give the address of a slave")


# -- with a controller ----------------------------------------------------------------


@pytest.fixture
def controller(cluster: ScriptedCluster) -> Scripted:
    made = cluster.server({})
    leader = {
        "group": "group1",
        "controllerLeaderId": "n0",
        "controllerLeaderAddress": made.address,
        "isLeader": "true",
        "peers": f"n0:{made.address};n1:10.0.0.9:9878;",
    }
    made.answers[RequestCode.CONTROLLER_GET_METADATA_INFO] = (leader, b"")
    return made


def test_controllers_are_shown(run: Run, controller: Scripted) -> None:
    shown = run("controller", "show", "-a", f"127.0.0.1:1;{controller.address}")
    assert "led by n0" in shown and re.search(r"n1 +10.0.0.9:9878 +no", shown)
    assert run("getControllerMetaData", "-a", controller.address) == shown


def test_controllers_are_found_through_brokers(
    cluster: ScriptedCluster, run: Run, controller: Scripted
) -> None:
    run("controller", "show", code=2, error="no broker names a controller")
    config = properties_text.dumps({"controllerAddr": controller.address})
    cluster.broker("broker-a", 0, {RequestCode.GET_BROKER_CONFIG: config})
    assert "led by n0" in run("controller", "show")


def test_what_is_no_controller_is_told(cluster: ScriptedCluster, run: Run) -> None:
    run("controller", "show", "-a", cluster.namesrv, code=2, error="this is no controller")
    run("controller", "show", "-a", "here", code=2, error="use host:port")
    run("controller", "show", "-a", "127.0.0.1:1", code=1, error="127.0.0.1:1")


def test_the_set_of_replicas_is_shown(cluster: ScriptedCluster, run: Run, controller: Scripted) -> None:
    def member(broker_id: int, alive: bool) -> ReplicaIdentity:
        return ReplicaIdentity(alive=alive, broker_address=f"10.0.0.{broker_id}:10911", broker_id=broker_id)

    info = ReplicasInfo(
        master_broker_id=1,
        master_address="10.0.0.1:10911",
        master_epoch=4,
        sync_state_set_epoch=7,
        in_sync_replicas=[member(1, True)],
        not_in_sync_replicas=[member(2, False)],
    )
    table = ReplicasTable(replicas_info_table={"broker-a": info})
    controller.answers[RequestCode.CONTROLLER_GET_SYNC_STATE_DATA] = table.dump()
    shown = run("getSyncStateSet", "-a", controller.address, "-b", "broker-a")
    assert "master 1 at 10.0.0.1:10911, epoch 4, set epoch 7" in shown
    assert re.search(r"1 +10.0.0.1:10911 +yes +yes", shown) and re.search(r"2 +10.0.0.2:10911 +no +no", shown)
    assert controller.of(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA)[0][1] == b'["broker-a"]'
    cluster.broker("broker-b", 0, {})
    run("broker", "sync-state", "-a", controller.address)
    assert controller.of(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA)[1][1] == b'["broker-b"]'


def test_epochs_of_every_replica_are_shown(cluster: ScriptedCluster, run: Run) -> None:
    entries = [EpochEntry(epoch=1, start_offset=0, end_offset=500), EpochEntry(epoch=3, start_offset=500)]
    table = EpochTable(epoch_list=entries, max_offset=900)
    cluster.broker("broker-a", 0, {RequestCode.GET_BROKER_EPOCH_CACHE: table.dump()})
    shown = run("getBrokerEpoch", "-b", "broker-a")
    assert re.search(r"1 +0 +500\n +3 +500 +900", shown), shown
    no_controller = ResponseError("this broker has no controller")
    cluster.broker("broker-a", 1, {RequestCode.GET_BROKER_EPOCH_CACHE: no_controller})
    assert "this broker has no controller" in run("broker", "epochs", "broker-a", code=1)
    run("broker", "epochs", "broker-x", code=2, error="no such broker is registered")


def test_a_master_is_elected(cluster: ScriptedCluster, run: Run, controller: Scripted) -> None:
    cluster.broker("broker-a", 0, {})
    elected = {
        "masterBrokerId": "2",
        "masterAddress": "10.0.0.2:10911",
        "masterEpoch": "5",
        "syncStateSetEpoch": "8",
    }
    controller.answers[RequestCode.CONTROLLER_ELECT_MASTER] = (elected, b"")
    words = ("electMaster", "-a", controller.address, "-b", 2, "-bn", "broker-a")
    assert "replica 2 at 10.0.0.2:10911 is the master now, epoch 5" in run(*words)
    ((asked, _),) = controller.of(RequestCode.CONTROLLER_ELECT_MASTER)
    assert (asked["brokerId"], asked["designateElect"], asked["clusterName"]) == (
        "2",
        "true",
        "DefaultCluster",
    )
    run("broker", "elect", "broker-a", 2, "-a", controller.address, code=4, error="say --yes")
    assert len(controller.of(RequestCode.CONTROLLER_ELECT_MASTER)) == 1
    failed = ResponseError("failed to elect master", code=2012)
    controller.answers[RequestCode.CONTROLLER_ELECT_MASTER] = failed
    run(
        "broker",
        "elect",
        "broker-a",
        2,
        "-y",
        "-a",
        controller.address,
        code=1,
        error="failed to elect master; gimbalmq broker sync-state shows",
    )


def test_settings_of_controllers_are_read_and_changed(run: Run, controller: Scripted) -> None:
    controller.answers[RequestCode.GET_CONTROLLER_CONFIG] = b"scanNotActiveBrokerInterval=5000\nother=1\n"
    controller.answers[RequestCode.UPDATE_CONTROLLER_CONFIG] = b""
    at = ("-a", controller.address)
    assert run("controller", "config", "other", *at) == "other=1\n"
    assert "scanNotActiveBrokerInterval=5000" in run("getControllerConfig", *at)
    run("controller", "config", "another", *at, code=2, error="there is no such setting")
    run("controller", "set", "other=2", *at)
    run("updateControllerConfig", "-k", "other", "-v", 3, *at)
    bodies = [body for _, body in controller.of(RequestCode.UPDATE_CONTROLLER_CONFIG)]
    assert [properties_text.loads(body.decode()) for body in bodies] == [{"other": "2"}, {"other": "3"}]
    with pytest.raises(SystemExit) as stopped:
        run("controller", "set", "other", *at)
    assert stopped.value.code == 2


def test_replicas_are_forgotten(run: Run, controller: Scripted) -> None:
    controller.answers[RequestCode.CLEAN_BROKER_DATA] = b""
    at = ("-a", controller.address)
    run("controller", "clean", "broker-a", *at, code=4, error="say --yes")
    assert not controller.of(RequestCode.CLEAN_BROKER_DATA)
    run("cleanBrokerMetadata", *at, "-bn", "broker-a", "-b", "2;3", "-l")
    ((asked, _),) = controller.of(RequestCode.CLEAN_BROKER_DATA)
    assert (asked["brokerControllerIdsToClean"], asked["isCleanLivingBroker"]) == ("2;3", "true")
    run("controller", "clean", "broker-a", "--ids", "x", *at, code=2, error="separated by ;")
