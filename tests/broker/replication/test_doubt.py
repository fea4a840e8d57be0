"""Replicas that lost the end of their log in a power cut, and a controller that does not know it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from gimbalmq.broker.broker import Broker
from gimbalmq.broker.replication.doubt import log_end
from gimbalmq.errors import DiskFullError, ListenError, StoreIOError
from gimbalmq.protocol.bodies import TopicConfig
from gimbalmq.protocol.codes import ResponseCode
from gimbalmq.protocol.replication_bodies import EpochTable
from gimbalmq.rpc import management, replication
from gimbalmq.rpc.call import Caller
from gimbalmq.store.checkpoint import Checkpoint
from gimbalmq.testing.loop import VirtualClock, run_virtual
from tests.broker.replication.controlled import NAME, TOPIC, Set, has_all, replicas, trouble, until

CONTROLLER = "10.0.0.101"
LONG = 60.0
"""Six times as long as the controller takes to miss somebody."""


async def lost_tail(made: Set, number: int) -> None:
    """Has a machine lose its last messages, which were answered with success, in a power cut."""
    image = made.image(number)
    assert await made.send(made.master, 5) == [ResponseCode.SUCCESS] * 5
    await made.cut_power(number, image)


async def scans(made: Set, seconds: float) -> None:
    """The controller looks who is silent, as Apache's does every 5 s."""
    end = made.clock.monotonic() + seconds
    while made.clock.monotonic() < end:
        await asyncio.sleep(5.0)
        made.controller.scan()


def in_doubt(broker: Broker) -> bool:
    assert broker.controller_mode is not None
    return broker.controller_mode._wholeness.in_doubt


async def leads(made: Set, *numbers: int) -> Broker:
    """Returns the master when it is one of these, and all that was answered is there."""
    await until(lambda: any(made.brokers[number].roles.is_master for number in numbers))
    master = made.master
    assert has_all(master, made.accepted)
    return master


def test_who_was_elected_in_the_dark_has_the_fullest_elected_instead(tmp_path: Path) -> None:
    """The controller does not hear the master, and takes a slave without power for alive."""

    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2, 3) as made:
            await made.in_sync(1, 2, 3)
            await lost_tail(made, 2)
            made.network.cut("10.0.0.1", CONTROLLER)
            made.controller.missed(NAME, 1)
            known = made.controller.replicas[NAME]
            assert (known.master, known.in_sync) == (2, {2})
            second = await made.begin(2)
            await leads(made, 3)
            made.network.mend()
            await made.in_sync(1, 2, 3)
            await until(lambda: not in_doubt(second))
            assert has_all(second, made.accepted)
            assert await made.send(made.brokers[3]) == [ResponseCode.SUCCESS]

    run_virtual(work)


def test_who_was_elected_in_the_dark_waits_for_all_that_may_have_more(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2, 3) as made:
            await made.in_sync(1, 2, 3)
            await lost_tail(made, 2)
            await made.kill(3)
            made.network.cut("10.0.0.1", CONTROLLER)
            made.network.cut("10.0.0.1", "10.0.0.2")
            made.controller.missed(NAME, 1)
            assert made.controller.replicas[NAME].in_sync == {2}
            second = await made.begin(2)
            await scans(made, LONG)
            assert not second.roles.is_master
            assert "1 at 10.0.0.1:10911" in trouble(second) and "3 at 10.0.0.3:10911" in trouble(second)
            assert "haLeadInDoubt" in trouble(second)
            await made.begin(3)
            await until(lambda: "3 at" not in trouble(second))
            assert "1 at 10.0.0.1:10911" in trouble(second) and not second.roles.is_master
            made.network.mend()
            await leads(made, 1, 3)
            await made.in_sync(1, 2, 3)
            assert has_all(second, made.accepted)

    run_virtual(work)


def test_what_a_first_master_wrote_alone_is_not_more_than_what_its_successor_answered(tmp_path: Path) -> None:
    """Its successor's term begins where its own did, because nothing was written before it was cut off."""

    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2, 3) as made:
            await made.in_sync(1, 2, 3)
            first, second = made.brokers[1], made.brokers[2]
            for other in ("10.0.0.2", "10.0.0.3", CONTROLLER):
                made.network.cut("10.0.0.1", other)
            assert await made.send(first, 5, size=900) == [ResponseCode.FLUSH_SLAVE_TIMEOUT] * 5
            made.controller.missed(NAME, 1)
            await until(lambda: second.roles.is_master)
            mode = second.controller_mode
            assert mode is not None and mode.sync_set is not None
            sync_set = mode.sync_set
            await until(lambda: sync_set.members == {2, 3})
            image = made.image(3)
            assert await made.send(second, 5) == [ResponseCode.SUCCESS] * 5
            assert first.store.max_commitlog_offset > second.store.max_commitlog_offset
            await made.cut_power(3, image)
            made.network.mend()
            made.network.cut("10.0.0.2", CONTROLLER)
            made.controller.missed(NAME, 2)
            assert made.controller.replicas[NAME].in_sync == {3}
            third = await made.begin(3)
            await until(lambda: "2 has epoch 2" in trouble(third))
            made.network.mend()
            await made.in_sync(1, 2, 3)
            assert all(has_all(broker, made.accepted) for broker in made.brokers.values())

    run_virtual(work)


def test_whose_machine_is_gone_for_good_lets_another_be_elected_from_an_empty_folder(tmp_path: Path) -> None:
    """The controller elects nobody else: only this one is in the set."""

    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2, 3) as made:
            await made.in_sync(1, 2, 3)
            await made.send(made.master, 5)
            empty = tmp_path / "empty"
            empty.mkdir()
            (empty / "brokerIdentity").write_text(f"DefaultCluster#{NAME}#2")
            await made.cut_power(2, empty)
            made.network.cut("10.0.0.1", CONTROLLER)
            made.controller.missed(NAME, 1)
            assert made.controller.replicas[NAME].in_sync == {2}
            second = await made.begin(2)
            await leads(made, 3)
            made.network.mend()
            await made.in_sync(1, 2, 3)
            assert has_all(second, made.accepted)

    run_virtual(work)


def test_a_slave_that_is_not_level_yet_is_not_elected_when_the_master_dies(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            await lost_tail(made, 2)
            made.controller.missed(NAME, 2)
            made.network.cut("10.0.0.1", "10.0.0.2")
            second = await made.start(2)
            assert not second.roles.is_master and in_doubt(second)
            await asyncio.sleep(2.0)  # heartbeats would have come
            assert not made.controller.lives(NAME, 2)
            made.controller.replicas[NAME].in_sync = {1, 2}  # the master had no time to say otherwise
            await made.kill(1)
            await scans(made, LONG)
            assert made.controller.replicas[NAME].master is None
            assert not second.roles.is_master and "1 at 10.0.0.1:10911" in trouble(second)
            made.network.mend()
            await made.begin(1)
            await leads(made, 1)
            await made.in_sync(1, 2)
            await until(lambda: not in_doubt(second))
            assert has_all(second, made.accepted)
            # From now on it is like any other.
            await made.kill(1)
            await leads(made, 2)

    run_virtual(work)


def test_a_slave_that_the_controller_takes_for_alive_does_not_lead_when_the_master_dies(
    tmp_path: Path,
) -> None:
    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            await lost_tail(made, 2)
            made.network.cut("10.0.0.1", "10.0.0.2")
            second = await made.start(2)
            made.controller.replicas[NAME].in_sync = {1, 2}
            await made.kill(1)
            assert made.controller.replicas[NAME].master == 2
            await scans(made, LONG)
            assert not second.roles.is_master
            made.network.mend()
            await made.begin(1)
            await leads(made, 1)
            await made.in_sync(1, 2)

    run_virtual(work)


@pytest.mark.parametrize("table", ["whole", "damaged"])
def test_a_start_that_fails_does_not_end_the_doubt(tmp_path: Path, table: str) -> None:
    """The folder is closed properly then, and the note of the doubt has not been written yet."""

    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            await lost_tail(made, 2)
            made.network.cut("10.0.0.1", "10.0.0.2")
            topics = tmp_path / "2" / "config" / "topics.json"
            assert not topics.exists()  # the power was cut before
            if table == "damaged":
                topics.write_bytes(b"{")
            with pytest.raises((ListenError, StoreIOError)):
                await made.begin(2, haListenPort=10911)
            topics.unlink(missing_ok=True)
            assert in_doubt(await made.begin(2))

    run_virtual(work)


WITHOUT = {"enableControllerMode": "false", "brokerId": 1}
AS_MASTER = {"enableControllerMode": "false", "brokerId": 0, "brokerRole": "ASYNC_MASTER"}


async def run_without_controller(made: Set, number: int, **options: object) -> None:
    broker = await made.begin(number, **{**WITHOUT, **options})
    await broker.close()
    del made.brokers[number]


@pytest.mark.parametrize("lost", ["end", "log", "all", "note"])
def test_a_run_without_a_controller_does_not_end_the_doubt(tmp_path: Path, lost: str) -> None:
    """The folder is closed properly then, and what was lost is still lost."""

    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            folder = tmp_path / "2"
            if lost == "log":
                await made.send(made.master, 5)
                await made.brokers.pop(2).close()
                shutil.rmtree(folder / "commitlog")
            elif lost == "all":
                empty = tmp_path / "empty"
                empty.mkdir()
                shutil.copy(folder / "brokerIdentity", empty)
                await made.cut_power(2, empty)
            else:
                await lost_tail(made, 2)
            if lost == "note":  # a full disk may have kept it from being written
                for note in (folder / "config").glob("wholeness.json*"):
                    note.unlink()
            made.network.cut("10.0.0.1", "10.0.0.2")
            if lost == "all":  # it is not empty any more when the controller is back
                broker = await made.begin(2, **AS_MASTER)
                topic = TopicConfig(topic_name=TOPIC, read_queue_nums=4, write_queue_nums=4)
                await management.create_topic(made.pool, broker.address, topic)
                assert await made.send(broker, 1) == [ResponseCode.SUCCESS]
                await made.brokers.pop(2).close()
            else:
                await run_without_controller(made, 2)
            assert in_doubt(await made.begin(2))

    run_virtual(work)


@pytest.mark.parametrize("without", [False, True])
@pytest.mark.parametrize("lost", ["end", "log"])
def test_neither_does_a_start_that_fails_early(tmp_path: Path, lost: str, without: bool) -> None:
    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            if lost == "end":
                await lost_tail(made, 2)
            else:
                await made.send(made.master, 5)
                await made.brokers.pop(2).close()
                shutil.rmtree(tmp_path / "2" / "commitlog")
            made.network.cut("10.0.0.1", "10.0.0.2")
            topics = tmp_path / "2" / "config" / "topics.json"
            topics.with_name("topics.json.bak").unlink(missing_ok=True)
            topics.write_bytes(b"{")
            with pytest.raises(StoreIOError):
                await made.begin(2, **(WITHOUT if without else {}))
            topics.unlink()
            assert in_doubt(await made.begin(2))

    run_virtual(work)


@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize("without", [False, True])
@pytest.mark.parametrize("lost", ["log", "last file"])
def test_neither_does_a_start_whose_disk_has_no_room_for_the_note(
    tmp_path: Path, lost: str, without: bool, end: str
) -> None:
    """The machine runs on, and the checkpoint is written in place: the log looks whole at the next start."""

    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            await made.send(made.master, 5, size=20_000)
            await made.brokers.pop(2).close()
            first, *later = sorted((tmp_path / "2" / "commitlog").iterdir())
            assert later
            for path in [first, *later] if lost == "log" else later:
                path.unlink()
            made.network.cut("10.0.0.1", "10.0.0.2")
            made.machines[2].is_full = True
            broker = await made.begin(2, **(AS_MASTER if without else {}))
            if not without:
                await until(lambda: "no space left" in trouble(broker))
            else:
                made.machines[2].is_full = False
                await until(lambda: broker.store.read_only_reason is None)
                topic = TopicConfig(topic_name=TOPIC, read_queue_nums=4, write_queue_nums=4)
                await management.create_topic(made.pool, broker.address, topic)
                assert await made.send(broker, 1) == [ResponseCode.SUCCESS]
                broker.store.checkpoint()
            if end == "closed":
                await made.brokers.pop(2).close()
            else:
                await made.kill(2)
            made.machines[2].is_full = False
            assert in_doubt(await made.begin(2))

    run_virtual(work)


@pytest.mark.parametrize(
    "had_room", [True, False], ids=["noted at once", "had no room for its note at first"]
)
@pytest.mark.parametrize("end", ["killed", "closed"])
def test_a_doubt_that_was_noted_and_is_over_does_not_come_back(
    tmp_path: Path, end: str, had_room: bool
) -> None:
    """Also if the process is killed before another checkpoint is due."""

    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            await made.send(made.master, 5)
            await made.brokers.pop(2).close()
            shutil.rmtree(tmp_path / "2" / "commitlog")
            made.machines[2].is_full = not had_room
            second = await made.begin(2)
            if not had_room:
                await until(lambda: "no space left" in trouble(second))
                made.machines[2].is_full = False
            await until(lambda: not in_doubt(second))
            await until(lambda: not checkpoint(made, 2).is_end_lost)
            if end == "killed":
                await killed_now(made, 2)
            else:
                await made.brokers.pop(2).close()
            made.network.cut("10.0.0.1", "10.0.0.2")
            assert not in_doubt(await made.begin(2))

    run_virtual(work)


def test_a_doubt_whose_note_found_room_late_is_kept_by_the_note(tmp_path: Path) -> None:
    """The mark that told of it is gone then."""

    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            await made.send(made.master, 5)
            await made.brokers.pop(2).close()
            shutil.rmtree(tmp_path / "2" / "commitlog")
            made.network.cut("10.0.0.1", "10.0.0.2")
            made.machines[2].is_full = True
            await until(lambda: not made.controller.lives(NAME, 2))
            second = await made.begin(2)
            await until(lambda: "no space left" in trouble(second))
            await asyncio.sleep(5.0)
            assert checkpoint(made, 2).is_end_lost
            made.machines[2].is_full = False
            await until(lambda: not checkpoint(made, 2).is_end_lost)
            assert in_doubt(second)
            await killed_now(made, 2)
            assert in_doubt(await made.begin(2))

    run_virtual(work)


def test_a_run_of_a_moment_that_was_closed_properly_begins_no_doubt(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            await made.kill(2)
            await made.begin(2)
            await made.brokers.pop(2).close()
            made.machines[2].boots += 1
            made.network.cut("10.0.0.1", "10.0.0.2")
            assert not in_doubt(await made.begin(2))

    run_virtual(work)


def checkpoint(made: Set, number: int) -> Checkpoint:
    """As the disk has it."""
    return Checkpoint.load(made.folder / str(number) / "checkpoint")


async def killed_now(made: Set, number: int) -> None:
    """What is on the disk now stays; ``kill`` ends tasks in order, and they write something yet."""
    image = made.image(number)
    await made.kill(number)
    shutil.rmtree(made.folder / str(number))
    image.rename(made.folder / str(number))


@pytest.mark.parametrize("rebooted", [False, True])
def test_a_run_without_a_controller_begins_no_doubt(tmp_path: Path, rebooted: bool) -> None:
    """Only processes are killed; the machine is started again while nothing runs on it."""

    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            if rebooted:
                await made.brokers.pop(2).close()
                made.machines[2].boots += 1
                await made.begin(2, **WITHOUT)
            await made.kill(2)
            await run_without_controller(made, 2)
            assert not in_doubt(await made.begin(2))

    run_virtual(work)


def test_a_folder_that_was_never_a_controllers_gets_no_note(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1) as made:
            broker = await made.begin(5, brokerName="other", **AS_MASTER)
            topic = TopicConfig(topic_name=TOPIC, read_queue_nums=4, write_queue_nums=4)
            await management.create_topic(made.pool, broker.address, topic)
            assert await made.send(broker, 5) == [ResponseCode.SUCCESS] * 5
            await made.brokers.pop(5).close()
            shutil.rmtree(tmp_path / "5" / "commitlog")
            again = await made.begin(5, brokerName="other", **AS_MASTER)
            assert again.recovery is not None and again.recovery.is_shorter
            assert not (tmp_path / "5" / "config" / "wholeness.json").exists()

    run_virtual(work)


def test_who_is_level_again_can_be_elected_at_once(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            await lost_tail(made, 2)
            begun = clock.monotonic()
            second = await made.begin(2)
            await until(lambda: not in_doubt(second))
            assert has_all(second, made.accepted)
            assert clock.monotonic() - begun < 2.0, "it does not wait until it asks the controller again"

    run_virtual(work)


def test_a_master_that_comes_back_before_it_is_missed_hands_over(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            await lost_tail(made, 1)
            begun = clock.monotonic()
            first = await made.begin(1)
            await leads(made, 2)
            assert clock.monotonic() - begun < 5.0, "nobody had to wait until the first one was missed"
            await made.in_sync(1, 2)
            assert has_all(first, made.accepted)

    run_virtual(work)


def test_who_has_lost_nothing_goes_on(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            await made.send(made.master, 3)
            await made.cut_power(1, made.image(1))
            first = await made.begin(1)
            await until(lambda: first.roles.is_master)
            assert not in_doubt(first)
            await made.in_sync(1, 2)
            assert has_all(first, made.accepted)

    run_virtual(work)


def test_after_a_power_cut_of_all_the_fullest_leads(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            poor = made.image(1)
            assert await made.send(made.master, 5) == [ResponseCode.SUCCESS] * 5
            await made.cut_power(2, made.image(2))
            await made.cut_power(1, poor)
            await made.controller.crash()
            await made.controller.start(CONTROLLER, 9878)
            first = await made.begin(1)
            await scans(made, LONG)
            assert not first.roles.is_master
            await made.begin(2)
            await leads(made, 2)
            await made.in_sync(1, 2)

    run_virtual(work)


def test_an_operator_has_it_lead_without_those_who_are_lost(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            await lost_tail(made, 2)
            await made.kill(1)
            second = await made.begin(2)
            await until(lambda: "haLeadInDoubt" in trouble(second))
            await management.update_broker_config(made.pool, second.address, {"haLeadInDoubt": "true"})
            await until(lambda: second.roles.is_master)
            assert not in_doubt(second)
            moment = clock.monotonic()
            while await made.send(second) != [ResponseCode.SUCCESS]:
                assert clock.monotonic() - moment < 12.0, "a question of the process before counts for ever"

    run_virtual(work)


def test_an_operator_has_it_live_though_a_controller_that_forgot_who_lives_names_another(
    tmp_path: Path,
) -> None:
    """While nobody of the set is heard the controller elects nobody, and names the old master for ever."""

    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            await lost_tail(made, 2)
            await made.controller.crash()
            await made.kill(1)
            await made.controller.start(CONTROLLER, 9878)
            known = made.controller.replicas[NAME]
            known.in_sync = {1, 2}
            second = await made.begin(2)
            await scans(made, LONG)
            assert known.master == 1 and "haLeadInDoubt" in trouble(second)
            await management.update_broker_config(made.pool, second.address, {"haLeadInDoubt": "true"})
            await scans(made, LONG)
            assert second.roles.is_master and trouble(second) == ""

    run_virtual(work)


def test_a_master_that_was_alone_waits_for_nobody(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2, flushIntervalCommitLog=60_000) as made:
            await made.in_sync(1, 2)
            await made.send(made.master, 3)
            await made.kill(2)
            await made.in_sync(1)
            first = made.brokers[1]
            assert first.controller_mode is not None
            wholeness = first.controller_mode._wholeness
            await until(lambda: wholeness.alone_in == made.controller.replicas[NAME].set_epoch)
            assert first.store.flushed_offset == first.store.max_commitlog_offset
            image = made.image(1)
            await made.send(first, 5)
            kept = made.accepted[:-5]
            await made.cut_power(1, image)
            first = await made.begin(1)
            await until(lambda: made.brokers[1].roles.is_master)
            assert has_all(first, kept), "nobody else could have given it more"

    run_virtual(work)


def test_who_stands_at_a_replicas_address_must_be_a_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address of a machine that is gone may be another broker's by now."""

    async def epochs(caller: Caller, address: str, *, timeout: float) -> EpochTable:
        return EpochTable(broker_name="broker-b", max_offset=0)

    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            await lost_tail(made, 2)
            await made.kill(1)
            monkeypatch.setattr(replication, "epochs", epochs)
            second = await made.begin(2)
            await until(lambda: "broker-b is there now" in trouble(second))
            assert not second.roles.is_master

    run_virtual(work)


def test_the_address_of_one_that_is_gone_may_be_our_own(tmp_path: Path) -> None:
    """A container gets the address that another one had."""

    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            await lost_tail(made, 2)
            await made.kill(1)
            made.controller.replicas[NAME].addresses[1] = "10.0.0.2:10911"
            second = await made.begin(2)
            await until(lambda: "replica 2 is there now" in trouble(second))
            assert not second.roles.is_master

    run_virtual(work)


def test_a_term_without_bytes_does_not_make_a_log_fuller() -> None:
    """A master notes its term before the first byte of it, and may lose what it wrote before."""
    entries = [(6, 0), (7, 1000)]
    assert log_end(entries, 1000) == (6, 1000) < log_end([(6, 0)], 1200) < log_end(entries, 1001)
    assert log_end([], 0) == (-1, 0)


def test_bytes_of_a_new_term_are_reported_when_the_file_names_the_term(tmp_path: Path) -> None:
    """Else a slave that is killed between both comes back with bytes of the term before, and seems to have less."""

    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            second = made.brokers[2]
            mode = second.controller_mode
            assert mode is not None
            gate, save, fails = asyncio.Event(), mode._save_epochs, [DiskFullError("full")]

            async def slow() -> None:
                await gate.wait()
                if fails:
                    raise fails.pop()
                await save()

            mode._save_epochs = slow  # type: ignore[method-assign]
            mode._noted()
            sending = asyncio.ensure_future(made.send(made.master))
            end = second.store.max_commitlog_offset
            await until(lambda: second.store.max_commitlog_offset > end)
            await asyncio.sleep(0.1)
            assert not sending.done()
            gate.set()
            await asyncio.sleep(0.1)
            assert not sending.done(), "the disk was full, and it is tried again"
            assert await sending == [ResponseCode.SUCCESS]

    run_virtual(work)


def test_an_operators_word_counts_for_those_who_are_silent_only(tmp_path: Path) -> None:
    """Somebody who is not in the set may have what the silent ones are known to have."""

    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2, 3) as made:
            await made.in_sync(1, 2, 3)
            await lost_tail(made, 2)
            made.controller.missed(NAME, 2)
            made.controller.replicas[NAME].in_sync = {1, 2}
            await made.kill(1)
            assert made.controller.replicas[NAME].master is None
            await made.begin(2, haLeadInDoubt="true")
            await leads(made, 3)

    run_virtual(work)


def test_a_master_that_was_alone_has_who_can_be_elected_and_has_more_elected(tmp_path: Path) -> None:
    """One that is about to join the set has nearly everything."""

    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            await lost_tail(made, 1)
            known = made.controller.replicas[NAME]
            known.in_sync = {1}
            (tmp_path / "1" / "config" / "wholeness.json").write_text(
                f'{{"aloneInSetEpoch": {known.set_epoch}, "boot": "0", "inDoubt": false}}'
            )
            await made.begin(1)
            await leads(made, 2)

    run_virtual(work)


def test_the_fullest_tells_whom_it_waits_for_after_a_power_cut_of_all(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2, 3) as made:
            await made.in_sync(1, 2, 3)
            poor = made.image(1)
            assert await made.send(made.master, 5) == [ResponseCode.SUCCESS] * 5
            await made.cut_power(3, made.image(3))
            await made.cut_power(2, made.image(2))
            await made.cut_power(1, poor)
            first, second = await made.begin(1), await made.begin(2)
            await until(lambda: "No answer from 3 at" in trouble(first))
            await until(lambda: "No answer from 3 at" in trouble(second))
            made.network.reset("10.0.0.99")  # connections to those who were there before
            await asyncio.sleep(0.1)
            for broker in (first, second):
                await management.update_broker_config(made.pool, broker.address, {"haLeadInDoubt": "true"})
            await leads(made, 2)

    run_virtual(work)


def test_a_log_that_is_gone_while_the_rest_of_the_folder_is_there(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            await made.send(made.master, 5)
            await made.brokers.pop(2).close()
            shutil.rmtree(tmp_path / "2" / "commitlog")
            made.controller.replicas[NAME].in_sync = {1, 2}
            made.network.cut("10.0.0.1", "10.0.0.2")
            second = await made.begin(2)
            assert in_doubt(second)

    run_virtual(work)


def test_a_broker_whose_disk_refused_a_sync_is_in_doubt_when_it_starts_again(tmp_path: Path) -> None:
    async def work(clock: VirtualClock) -> None:
        async with replicas(tmp_path, clock, 1, 2) as made:
            await made.in_sync(1, 2)
            second = made.brokers[2]
            second.store.trouble.sync_failed(StoreIOError("the disk is failing"))
            assert second.controller_mode is not None
            await until(lambda: '"inDoubt": true' in (tmp_path / "2/config/wholeness.json").read_text())
            await made.kill(2)
            made.network.cut("10.0.0.1", "10.0.0.2")
            assert in_doubt(await made.begin(2))

    run_virtual(work)
