"""Processes of either end that are killed at chosen steps of their disk, and started again on what is left."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gimbalmq.broker.broker import Broker
from gimbalmq.broker.replication.follower import State
from gimbalmq.model import properties as prop
from gimbalmq.protocol.bodies import GroupConfig, TopicConfig
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.replication_bodies import RequestModeTable
from gimbalmq.rpc import management
from gimbalmq.store import MessageStore
from gimbalmq.testing import MemoryNetwork, RecordedDisk
from gimbalmq.testing.loop import VirtualClock
from tests.broker.replication import scene
from tests.broker.replication.pairs import Pair, log_of, pair
from tests.broker.replication.scene import MasterEnd, SlaveEnd, fill, until, virtual
from tests.broker.replication.scene import log_of as log_of_store
from tests.store.helpers import FailingFiles, config_for

SMALL_FILE = 8192


# -- a slave ---------------------------------------------------------------------------------


async def change_everything(pair: Pair, word: str) -> None:
    """Every table that a slave keeps changes at the master, and its log rolls to the next files."""
    master = pair.master
    await management.create_topic(
        pair.pool, master.address, TopicConfig(topic_name=word, read_queue_nums=4, write_queue_nums=4)
    )
    await management.update_group(pair.pool, master.address, GroupConfig(group_name=word))
    modes = {"messageRequestModeMap": {word: {word: {"mode": "POP", "popShareQueueNum": 0}}}}
    master.request_modes.replace(RequestModeTable.parse(json.dumps(modes).encode()))
    for number in range(7):
        await pair.send(f"{word} {number} ".ljust(1500, "x"), topic=word)
    await pair.send(f"{word} later", topic=word, properties={prop.DELAY: "1"})
    await pair.send(f"{word} timer", topic=word, properties={prop.TIMER_DELAY_SEC: "1"})
    commit = {"consumerGroup": word, "topic": word, "queueId": "0", "commitOffset": "3"}
    assert (await pair.ask(master, RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == 0
    await asyncio.sleep(15.0)  # what is saved seldom is saved by then


def moments_of(disk: RecordedDisk) -> list[int]:
    """When the slave is killed: at every step of a table's saving and of the log, and before its first report."""
    at = [
        number
        for number, operation in enumerate(disk.operations)
        if operation.path.partition("/")[0] in ("config", "commitlog") and "sync" not in operation.kind
    ]
    return [at[0], *(number + 1 for number in at)]


def test_a_slave_killed_while_it_saves_a_table_or_begins_a_file_catches_up(tmp_path: Path) -> None:
    """It has all that it had reported, and its tables are whole. When its master is back its log has no gap, and its
    queues no entry twice."""

    async def body(pair: Pair) -> None:
        config, disk = pair.slave.live.now, RecordedDisk(tmp_path / "live")
        await pair.cluster.stop_broker(1)

        async def started(folder: Path, files: RecordedDisk | None = None) -> Broker:
            host = pair.network.host(config.bind_address)
            own = replace(config, store_path_root_dir=str(folder))
            broker = Broker(own, network=host, clock=pair.clock, files=files)
            await broker.start()
            return broker

        slave = await started(disk.root, disk)
        copied = [(0, 0)]
        pair.master.replication.source.on_report.append(
            lambda _: copied.append((disk.now, slave.store.max_commitlog_offset))
        )
        await change_everything(pair, "one")
        saved = disk.now
        await change_everything(pair, "two")
        await caught_up(pair, slave)
        moments = moments_of(disk)
        await slave.abandon()
        assert moments[0] < saved < moments[-1] and len(moments) > 50
        for moment in moments:
            folder, what = tmp_path / "again", f"{moment}: {disk.operations[moment - 1]}"
            disk.killed(moment, folder)
            pair.network.cut("10.0.0.12", "10.0.0.11")
            again = await started(folder)
            try:
                assert again.store.max_commitlog_offset >= max(end for at, end in copied if at <= moment), (
                    what
                )
                if moment >= saved:  # the master is not needed for that
                    assert "one" in again.topics and again.groups.known("one") is not None, what
                    assert again.offsets.get("one", "one", 0) == 3, what
                    assert again.delays.document()["offsetTable"], what
                    assert again.request_modes.table().message_request_mode_map, what
                pair.network.mend()
                await caught_up(pair, again)
                assert log_of(again) == log_of(pair.master), what
                assert entries(again) == entries(pair.master), what
            finally:
                await again.close()
            shutil.rmtree(folder)

    pair(body, properties={"mappedFileSizeCommitLog": SMALL_FILE})


async def caught_up(pair: Pair, slave: Broker) -> None:
    """Returns when the slave's log and tables are its master's."""
    master = pair.master

    def tables(broker: Broker) -> tuple[object, ...]:
        return (
            {one.topic_name: one for one in broker.topics.all()},
            broker.groups.table().subscription_group_table,
            sorted(broker.offsets.rows()),
            broker.request_modes.table(),
        )

    await pair.until(lambda: slave.store.received_offset == master.store.max_commitlog_offset)
    await pair.until(lambda: tables(slave) == tables(master))


def entries(broker: Broker) -> dict[tuple[str, int], list[tuple[int, int, int]]]:
    store = broker.store
    return {
        (topic, queue_id): store.entries(topic, queue_id, 0, 1 << 40)
        for topic in store.topics()
        for queue_id in store.queue_ids(topic)
    }


# -- a master --------------------------------------------------------------------------------


def test_a_master_killed_while_its_log_rolls_has_what_its_slave_has_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the blank end of a file: else its slave would have more than its master, and copy nothing any more."""

    async def work(clock: VirtualClock) -> None:
        network, disk = MemoryNetwork(), RecordedDisk(tmp_path / "master")
        with monkeypatch.context() as patch:
            patch.setattr(scene, "FailingFiles", lambda: disk)
            master = MasterEnd(disk.root, network.host("10.0.0.11"), clock)
        slave = SlaveEnd(tmp_path / "slave", network.host("10.0.0.12"), clock)
        reports = [(0, 0)]
        master.source.on_report.append(lambda replica: reports.append((disk.now, replica.acked)))
        await master.start()
        await slave.follow(master)
        await until(lambda: slave.follower.state is State.FOLLOWING)
        for number in range(30):
            fill(master.store, 1, start=number)
            await slave.caught_up(master)
            await until(lambda: reports[-1][1] == master.store.max_commitlog_offset)
        whole = log_of_store(master.store, 0, reports[-1][1])
        rolls = [
            number
            for number, operation in enumerate(disk.operations)
            if operation.kind == "create" and operation.path.startswith("commitlog")
        ]
        assert len(rolls) > 3
        for moment in range(rolls[0] + 1, disk.now + 1):
            reported = max(end for at, end in reports if at <= moment)
            folder = tmp_path / "again"
            disk.killed(moment, folder)
            again = MessageStore(config_for(folder), clock, FailingFiles())
            again.load()
            what = f"{moment}: {disk.operations[moment - 1]}"
            assert again.max_commitlog_offset >= reported, what
            assert log_of_store(again, 0, reported) == whole[:reported], what
            again.abandon()
            shutil.rmtree(folder)
        await slave.stop()
        await master.stop()

    virtual(work)
