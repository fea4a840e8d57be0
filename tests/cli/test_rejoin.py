"""A master that was replaced comes back: what it has that nobody else has is told, and cut only if that was said."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gimbalmq import Message
from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.broker.config import BrokerConfig
from gimbalmq.cli.main import main
from gimbalmq.cli.rejoin import _opened
from gimbalmq.store.message_store import MessageStore
from gimbalmq.sync import Admin, Producer
from gimbalmq.testing import LocalCluster
from gimbalmq.testing.cluster import ThreadCluster
from gimbalmq.transport.descriptors import budget
from tests.store.helpers import put

OLD, NEW = ("broker-a", 0), ("broker-a", 1)
FILE_BYTES = 4096


def send(cluster: ThreadCluster, topic: str, count: int) -> None:
    with Producer("senders", cluster.namesrv) as producer:
        for index in range(count):
            producer.send(Message(topic, f"{topic} {index}".encode()))


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    """A command sends logs to its standard error, which is this test's; the cluster's threads log later, too."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parted")


@pytest.fixture(scope="module")
def parted(folder: Path) -> Iterator[ThreadCluster]:
    """Messages that both had, some that only the old master took, some that only the new one did; in several files.

    The last test mends it.
    """
    small = {"mappedFileSizeCommitLog": FILE_BYTES}
    with LocalCluster.in_thread(replicas=2, store=folder, properties=small) as cluster:
        send(cluster, "common", 50)
        cluster.in_step()
        cluster.kill_broker(NEW)
        send(cluster, "lost", 30)
        cluster.kill_broker(OLD)
        cluster.start_broker(NEW)
        with Admin(cluster.namesrv) as admin:
            admin.replication.promote(admin.replication.promotion("broker-a"))
        send(cluster, "later", 20)
        yield cluster


def test_what_cannot_be_compared_is_told(
    parted: ThreadCluster, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", parted.namesrv)

    def told(*words: object, code: int) -> str:
        assert main(["broker", "rejoin", *map(str, words)]) == code
        return capsys.readouterr().err

    assert "is open in this process already" in told("--store", folder / "broker-a-1", code=1)  # it runs
    assert "there is no folder commitlog" in told("--store", folder, code=2)
    nobody = told("127.0.0.1:1", code=1)
    assert "cannot connect to 127.0.0.1:1" in nobody and "gimbalmq cluster list" in nobody
    assert "--namesrv" not in nobody, "the name server has answered, or was not asked"
    assert "no such broker has a master" in told("--store", folder / "broker-a", "--name", "b", code=2)
    assert "name the folder" in told(code=2)
    assert "haCutTailFrom" in told("127.0.0.1:1", "--cut", code=2)
    address = parted.replica(0, 1).address
    assert "promote a slave first" in told(address, "--yes", code=2)


def test_a_folder_that_was_a_masters_is_compared_and_cut_when_told_to(
    parted: ThreadCluster, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", parted.namesrv)
    log = folder / "broker-a" / "commitlog"
    before = _bytes(log)
    words = ["broker", "rejoin", "--store", str(folder / "broker-a"), "--id", "2"]
    assert main(words) == 4
    shown = capsys.readouterr().out
    assert re.search(r"has 30 messages that the master has not", shown), shown
    assert re.search(r"lost +30 +\d+\n", shown) and "later" not in shown and "common" not in shown
    assert "--cut cuts that off for good" in shown
    assert main([*words, "--yes"]) == 4, "nobody has said --cut"
    assert main([*words, "--cut"]) == 4, "nobody was there to answer"
    assert _bytes(log) == before
    assert (folder / "broker-a" / "abort").exists(), "the broker has to know that it was not closed"
    capsys.readouterr()
    assert main([*words, "--cut", "--yes", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["messages"] == {"lost": 30} and data["cut"] is True
    assert 2 * FILE_BYTES < data["begin"] < data["end"] - FILE_BYTES
    assert _bytes(log)[: data["begin"]] == before[: data["begin"]]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "The master has all of it" in shown
    assert f"gimbalmq broker --slave 2 --store {folder / 'broker-a'}" in shown
    parted.demote_broker(OLD, 2)
    parted.start_broker(OLD)
    parted.in_step()
    old, new = parted.replica(0, 0).store, parted.replica(0, 1).store
    assert _messages(old) == _messages(new) == {"common": 50, "later": 20}
    end = new.max_commitlog_offset
    assert old.max_commitlog_offset == end
    assert _bytes(log)[:end] == _bytes(folder / "broker-a-1" / "commitlog")[:end]


def test_a_folder_of_another_broker_is_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a name it would be compared with broker-a's master, which has none of it, and be cut as a whole."""
    with LocalCluster.in_thread(brokers=2, store=tmp_path) as cluster:
        monkeypatch.setenv("NAMESRV_ADDR", cluster.namesrv)
        with Admin(cluster.namesrv) as admin:
            admin.topics.create("orders", queues=1)
        send(cluster, "orders", 10)
        cluster.stop_broker(("broker-b", 0))
        log = tmp_path / "broker-b" / "commitlog"
        before = _bytes(log)
        assert main(["broker", "rejoin", "--store", str(tmp_path / "broker-b"), "--cut", "--yes"]) == 2
        assert "--name='broker-a' cannot be used: the folder" in capsys.readouterr().err
        assert _bytes(log) == before


def test_the_command_for_the_start_says_that_the_port_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder does not know the port; beside other brokers 10911 is taken."""
    with LocalCluster.in_thread(replicas=2, store=tmp_path) as cluster:
        monkeypatch.setenv("NAMESRV_ADDR", cluster.namesrv)
        cluster.stop_broker(NEW)
        words = ["broker", "rejoin", "--store", str(tmp_path / "broker-a-1")]
        assert main(words) == 0
        assert "--port" in capsys.readouterr().out.splitlines()[-1]
        assert main([*words, "--set", "listenPort=20911"]) == 0
        assert (
            "listenPort=20911" in (last := capsys.readouterr().out.splitlines()[-1]) and "--port" not in last
        )


def test_a_look_at_a_folder_does_not_hide_that_its_log_was_longer(tmp_path: Path) -> None:
    """The broker itself has to find that, and to note that it may lack what it had confirmed."""
    config = BrokerConfig(store_path_root_dir=str(tmp_path), mapped_file_size_commit_log=FILE_BYTES)
    store = MessageStore(config.store_config(10911, budget()), SYSTEM_CLOCK)
    store.load()
    for _ in range(3):
        put(store, "t", 0, bytes(FILE_BYTES // 2))
    store.close()
    *_, last = sorted((tmp_path / "commitlog").iterdir())
    last.unlink()
    for _ in range(2):
        with _opened(config, SYSTEM_CLOCK) as opened:
            assert opened.max_commitlog_offset <= 2 * FILE_BYTES
    assert store.load().is_shorter
    store.close()


def _bytes(log: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(log.iterdir()) if path.name.isdecimal())


def _messages(store: MessageStore) -> dict[str, int]:
    counts = {
        topic: sum(
            queue.max_offset
            for queue_id in store.queue_ids(topic)
            if (queue := store.find_queue(topic, queue_id))
        )
        for topic in store.topics()
    }
    return {topic: count for topic, count in counts.items() if count}
