"""Topics, groups, offsets and the rest at a slave, if the other broker is Apache's: each side copies the other's.

Apache's 4.9 copies 3 s after its start and every 10 s, its 5.5 only 60 s after its start: so all that its slave has to
show is in one test.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.access.access import Access
from gimbalmq.access.table import AccessTable
from gimbalmq.broker.config import BrokerConfig
from gimbalmq.broker.replication.users import UserCopies
from gimbalmq.protocol import fastjson
from gimbalmq.protocol.replication_bodies import TimerCheckpoint
from gimbalmq.protocol.signing import Signer
from gimbalmq.transport.pool import ChannelPool
from gimbalmq.transport.turns import Turns
from tests.interop import conftest
from tests.interop.apache_access import ACCESS_CONTROL, READER, ROOT, WORKER
from tests.interop.apache_cluster import ApacheServer
from tests.peers.frames import Answer, Frame, ask, one
from tests.peers.ours import OurNameServer
from tests.peers.process import Process
from tests.peers.replicas import NEW, OLD, OURS, Kind, Replica, ReplicaSet, start_all, traffic
from tests.peers.traffic import create_topic

pytest_plugins = ["tests.interop.apache_fixtures"]
pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

PAIR = [pytest.param(OLD, id="4.9.7"), pytest.param(NEW, id="5.5.0")]
PAGE = 2000
"""Rows that Apache's 5.5 asks for, and gives, at a time."""


def watch(*processes: Process) -> None:
    """A failed test shows their last words."""
    conftest._running.extend((process.name, process.log) for process in processes)


@pytest.fixture(scope="module")
def namesrv(java_is_here: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    before = list(conftest._running)
    server = OurNameServer(tmp_path_factory.mktemp("tables-namesrv"))
    watch(server)
    with server:
        yield server.address
    conftest._running[:] = before


def told(
    broker: Replica, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"", code_: int = 0
) -> Answer:
    answer = one(broker.address, Frame(code, dict(fields or {}), body), timeout=30.0)
    assert answer.code == code_, answer
    return answer


def table(broker: Replica, code: int, name: str) -> dict[str, Any]:
    body = fastjson.loads(told(broker, code).body, limit=None)
    found: dict[str, Any] = body.get(name, {})
    return found


def topics(broker: Replica) -> set[str]:
    return set(table(broker, 21, "topicConfigTable"))


def groups(broker: Replica) -> set[str]:
    return set(table(broker, 201, "subscriptionGroupTable"))


def until(what: str, condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"after {seconds:.0f} s: {what}"
        time.sleep(0.25)


def make(broker: Replica, kind: Kind, count: int, prefix: str) -> None:
    """So many topics and groups; 4.9 takes them one by one only."""
    names = [f"{prefix}{number:05}" for number in range(count)]
    if kind == OLD:
        for name in names:
            assert create_topic(broker.address, name).code == 0
        frames = [Frame(200, {}, json.dumps({"groupName": name}).encode()) for name in names]
        assert all(answer.code == 0 for answer in ask(broker.address, frames))
        return
    for start in range(0, count, 500):
        some = names[start : start + 500]
        rows = [{"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6} for name in some]
        told(broker, 18, {"force": "true"}, json.dumps({"topicConfigList": rows}).encode())
        settings = [{"groupName": name} for name in some]
        told(broker, 225, {}, json.dumps({"groupConfigList": settings}).encode())


def commit(broker: Replica, group: str, topic: str, offset: int) -> None:
    fields = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": f"{offset}"}
    told(broker, 15, fields)


@pytest.mark.apart
@pytest.mark.parametrize("version", PAIR)
def test_our_slave_has_the_tables_of_an_apache_master(
    version: Kind, namesrv: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp(f"tables-of-{version}")
    with ReplicaSet(folder, f"tables-{version[0]}", namesrv=namesrv) as replicas:
        master, slave = replicas.replica(version), replicas.replica(OURS, 1)
        watch(master, slave)
        start_all(master, slave)
        make(master, version, 20 if version == OLD else PAGE + 100, "T")
        sender = traffic(master, "Delayed")
        sender.delayed(3, level=1)
        sender.plain(5)
        commit(master, "T00001", "Delayed", 2)
        if version == NEW:
            mode = {"topic": "Delayed", "consumerGroup": "T00001", "mode": "POP", "popShareQueueNum": 0}
            told(master, 401, {}, json.dumps(mode).encode())
        until("delayed messages", lambda: table(master, 45, "offsetTable").get("1") == 3)
        until("topics", lambda: topics(master) <= topics(slave))
        until("groups", lambda: groups(master) <= groups(slave))
        rows = table(master, 43, "offsetTable")
        assert rows["Delayed@T00001"] == {"0": 2}
        until("offsets", lambda: rows.items() <= table(slave, 43, "offsetTable").items())
        until("delay offsets", lambda: table(slave, 45, "offsetTable").get("1") == 3)
        if version == NEW:
            modes = table(master, 402, "messageRequestModeMap")
            assert modes["Delayed"]["T00001"]["mode"] == "POP"
            until("request modes", lambda: table(slave, 402, "messageRequestModeMap") == modes)
        # Its log does not tell of deletions. The slave drops topic and queues when the table lacks the topic.
        assert (slave.store / "consumequeue" / "Delayed").exists()
        told(master, 215, {"topic": "Delayed"})
        told(master, 207, {"groupName": "T00002", "removeOffset": "true", "cleanOffset": "true"})
        until("deleted topic", lambda: "Delayed" not in topics(slave))
        until("deleted group", lambda: "T00002" not in groups(slave))
        until("its queues", lambda: not (slave.store / "consumequeue" / "Delayed").exists())
        # 4.9 keeps offsets of deleted topics, and so does its slave.
        until("its offsets", lambda: table(slave, 43, "offsetTable") == table(master, 43, "offsetTable"))


@pytest.mark.soak  # a slave of 5.5.0 copies tables a minute after its start, and nothing can hurry it
def test_apaches_slaves_have_the_tables_of_our_master(
    namesrv: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with ReplicaSet(tmp_path_factory.mktemp("our-tables"), "our-tables", namesrv=namesrv) as replicas:
        master = replicas.master(OURS)
        watch(master)
        # One row more than a page: Apache's slaves would not ask for it.
        make(master, OURS, PAGE + 1 - max(len(topics(master)), len(groups(master))) - 1, "T")
        sender = traffic(master, "zLast")
        sender.delayed(3, level=1)
        sender.plain(5)
        for number in range(PAGE + 1 - len(topics(master))):
            assert create_topic(master.address, f"z{number:05}").code == 0
        for number in range(PAGE + 1 - len(groups(master))):
            told(master, 200, {}, json.dumps({"groupName": f"z{number:05}"}).encode())
        assert len(topics(master)) == len(groups(master)) == PAGE + 1
        commit(master, "T00001", "zLast", 2)
        until("delayed messages", lambda: table(master, 45, "offsetTable").get("1") == 3)
        slaves = [replicas.replica(version, number) for number, version in enumerate((OLD, NEW), 1)]
        watch(*slaves)
        start_all(*slaves)
        for slave, seconds in zip(slaves, (60.0, 120.0), strict=True):
            until(f"{slave.name}: topics", lambda s=slave: topics(s) == topics(master), seconds)  # type: ignore[misc]
            until(f"{slave.name}: groups", lambda s=slave: groups(s) == groups(master))  # type: ignore[misc]
            until(
                f"{slave.name}: offsets",
                lambda s=slave: table(s, 43, "offsetTable").get("zLast@T00001") == {"0": 2},  # type: ignore[misc]
            )
            until(
                f"{slave.name}: delay offsets",
                lambda s=slave: (
                    table_of(s.store / "config" / "delayOffset.json").get("1")  # type: ignore[misc]
                    == 3
                ),
            )
        new = slaves[1]
        # 43 with a version, so that a slave of 5.x saves what it has merged.
        until(
            "saved offsets",
            lambda: "zLast@T00001" in table_of(new.store / "config" / "consumerOffset.json"),
        )
        ours, theirs = (TimerCheckpoint.decode(told(broker, 60).body) for broker in (master, new))
        assert (
            theirs.last_read_time_ms > 0 and abs(ours.last_read_time_ms - theirs.last_read_time_ms) < 30_000
        )
        assert told(slaves[0], 60, code_=3).code == 3, "4.9 does not know timers"
        told(master, 215, {"topic": "T00001"})
        told(master, 207, {"groupName": "T00002", "removeOffset": "true", "cleanOffset": "true"})
        for slave in slaves:
            until(f"{slave.name}: deleted topic", lambda s=slave: "T00001" not in topics(s))  # type: ignore[misc]
            until(f"{slave.name}: deleted group", lambda s=slave: "T00002" not in groups(s))  # type: ignore[misc]


@pytest.mark.parametrize("version", PAIR)
def test_users_and_policies_of_an_apache_master_are_copied(
    version: Kind, guarded_servers: Callable[[str], ApacheServer], tmp_path: Path
) -> None:
    """4.9 has accounts in a file of its own, and says that it does not know the request."""
    server = guarded_servers(version)
    config, _ = BrokerConfig.from_properties({key: str(text) for key, text in ACCESS_CONTROL.items()})

    async def work() -> tuple[AccessTable, AccessTable]:
        access = Access(config, tmp_path / "config")
        access.load()
        await access.start()
        pool = ChannelPool(signer=Signer(ROOT.access, ROOT.secret))
        try:
            copies = UserCopies(access, config, pool, Turns(SYSTEM_CLOCK))
            await copies.copy(server.broker, is_ours=False)
            assert access.table is not None
            revision = access.table.revision
            await copies.copy(server.broker, is_ours=False)
            assert access.table.revision == revision, "equal tables are not written again"
            return access.table, await reopened(config)
        finally:
            await pool.close()
            await access.close()

    async def reopened(config: BrokerConfig) -> AccessTable:
        found = AccessTable(tmp_path / "config")
        found.load()
        return found

    table, on_disk = asyncio.run(work())
    if version == OLD:
        assert table.users().keys() == {ROOT.access}
        return
    assert table.users().keys() >= {ROOT.access, WORKER.access, READER.access}
    worker = table.user(WORKER.access)
    assert worker is not None and worker.password == WORKER.secret and not worker.is_super
    assert table.acl(WORKER.access) is not None
    assert (on_disk.users(), on_disk.acls()) == (table.users(), table.acls())


def table_of(path: Any) -> dict[str, Any]:
    """The offsets in a broker's file."""
    if not path.exists():
        return {}
    found: dict[str, Any] = fastjson.loads(path.read_bytes(), limit=None).get("offsetTable", {})
    return found
