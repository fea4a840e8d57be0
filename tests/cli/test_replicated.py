"""Commands about replicas as a person types them, against a pair of ours: from the first look to a failover."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from gimbalmq.cli.main import main
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.messages import SendMessage
from gimbalmq.testing import LocalCluster
from gimbalmq.testing.cluster import ThreadCluster
from gimbalmq.transport.pool import ChannelPool

Run = Callable[..., str]


@pytest.fixture(scope="module")
def pair() -> Iterator[ThreadCluster]:
    """Tests use it one after the other, and the last one kills its master. It has one message."""
    with LocalCluster.in_thread(replicas=2, properties={"brokerRole": "SYNC_MASTER"}) as cluster:
        with logging_as_it_was():
            for words in ("topic create orders --queues 1", "message send orders first --queue broker-a/0"):
                assert main([*words.split(), "--namesrv", cluster.namesrv]) == 0
        cluster.in_step()
        yield cluster


@contextmanager
def logging_as_it_was() -> Iterator[None]:
    """A command sends logs to its standard error, which is a test's; the cluster's threads log later, too."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before


@pytest.fixture
def run(
    pair: ThreadCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    monkeypatch.setenv("NAMESRV_ADDR", pair.namesrv)

    def run(*words: object, code: int | None = 0, error: str | None = None) -> str:
        found = main([str(word) for word in words])
        shown = capsys.readouterr()
        assert code in (None, found), shown.out + shown.err
        if error is not None:
            assert re.search(error, shown.err), shown.err
        return shown.out

    with logging_as_it_was():
        yield run


def test_a_pair_is_shown(pair: ThreadCluster, run: Run) -> None:
    master, slave = pair.replica(0, 0), pair.replica(0, 1)
    end = master.store.max_commitlog_offset
    shown = run("broker", "ha-status", "--max-behind", 0)
    assert re.search(rf"broker-a +0 +master +{master.address} +{end} +1 of 1 in sync", shown), shown
    assert re.search(rf"broker-a +1 +slave +{slave.address} +{end} +0 +following", shown), shown
    (view,) = json.loads(run("haStatus", "-b", master.address, "--json"))
    assert [(item["acked"], item["in_sync"]) for item in view["slaves"]] == [(end, True)]
    assert master.replication.ha_address in run("broker", "ha-status", slave.address)


def test_a_slave_is_asked_and_set_by_its_address(pair: ThreadCluster, run: Run) -> None:
    slave = pair.replica(0, 1)
    assert run("config", "get", slave.address, "brokerRole") == "brokerRole=SLAVE\n"
    run("config", "set", slave.address, "slaveReadEnable=true")
    assert slave.live.now.slave_read_enable and not pair.replica(0, 0).live.now.slave_read_enable
    assert re.search(r"brokerRole +SLAVE", run("cluster", "status", slave.address))
    run("resetMasterFlushOffset", "-b", slave.address, "-o", 12)
    assert re.search(r"master flushed +12", run("broker", "ha-status", slave.address))


def test_brokers_without_a_controller_have_no_epochs(run: Run) -> None:
    assert "code" in run("getBrokerEpoch", "-b", "broker-a", code=1)
    run("broker", "sync-state", code=2, error="no broker names a controller")


def test_a_master_that_runs_becomes_a_slave(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """There were two for a while, because somebody insisted: what the old one took alone is cut only when told to."""
    with LocalCluster.in_thread(replicas=2) as cluster:
        monkeypatch.setenv("NAMESRV_ADDR", cluster.namesrv)
        old, new = cluster.replica(0, 0), cluster.replica(0, 1)
        run("topic", "create", "orders", "--queues", 1)
        run("message", "send", "orders", "common", "--queue", "broker-a/0")
        cluster.in_step()
        common = old.store.max_commitlog_offset
        run("broker", "rejoin", new.address, "--yes", code=2, error="it is a slave of broker-a already")
        run("broker", "rejoin", old.address, "--yes", code=2, error="promote a slave first")
        assert "In spite of this" in run("broker", "promote", new.address, "--force", "--yes")
        asyncio.run(_send_to(old.address))
        rejoin = ("broker", "rejoin", old.address, "--id", 2)
        assert "Nothing was changed" in run(*rejoin, code=4, error="say --yes")
        shown = run(*rejoin, "--yes", code=1)
        assert f"our log ends at {old.store.max_commitlog_offset}" in shown and "rejoin --store DIR" in shown
        assert "refused" in run("broker", "ha-status", code=1)
        run("config", "set", old.address, f"haCutTailFrom={common}")
        eventually(
            lambda: json.loads(run("broker", "ha-status", old.address, "--json", code=None))[0]["state"]
        )
        assert old.store.max_commitlog_offset == common == new.store.max_commitlog_offset


async def _send_to(address: str) -> None:
    """A message that one broker takes, whatever name servers say."""
    fields = SendMessage(
        producer_group="senders",
        topic="orders",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=0,
        flag=0,
    )
    pool = ChannelPool()
    answer = await pool.call(
        address, RemotingCommand(RequestCode.SEND_MESSAGE, fields.to_ext(), b"lost"), 5.0
    )
    await pool.close()
    assert answer.code == 0


def eventually(state: Callable[[], str]) -> None:
    deadline = time.monotonic() + 60
    while state() != "following":
        assert time.monotonic() < deadline


def test_a_slave_is_promoted_when_its_master_is_gone(pair: ThreadCluster, run: Run) -> None:
    master, slave = pair.replica(0, 0).address, pair.replica(0, 1).address
    assert f"the master at {master} is up" in run("broker", "promote", slave, "--yes", code=4)
    pair.kill_broker(("broker-a", 0))
    (view,) = json.loads(run("broker", "ha-status", "--json", code=None))
    assert view["behind"] == 0, "as last heard"
    assert "Nothing speaks against it" in run("broker", "promote", "broker-a", "--dry-run")
    shown = run("broker", "promote", "broker-a", "--yes")
    assert f"broker-a at {slave} is the master now, as SYNC_MASTER" in shown, "as the old one was"
    waited = run("message", "send", "orders", "second", "--queue", "broker-a/0")
    assert "is in broker-a/0 at 1 (SLAVE_NOT_AVAILABLE)" in waited
    assert re.search(rf"broker-a +0 +master +{slave}", run("broker", "ha-status"))
    run("config", "set", "broker-a", "brokerRole=ASYNC_MASTER")
    sent = run("message", "send", "orders", "third", "--queue", "broker-a/0")
    assert "at 2 (SEND_OK)" in sent
    run("broker", "promote", slave, code=2, error="is the master already")
