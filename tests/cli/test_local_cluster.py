"""``gimbalmq cluster local``: what it starts, and what it says if it cannot; test_docs_typed.py runs a whole one."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
from pathlib import Path
from typing import cast

import pytest

from gimbalmq.cli import local_cluster
from gimbalmq.cli.command_line import build_parser
from gimbalmq.cli.main import main
from tests.cli.commands import gimbalmq
from tests.peers.process import free_port


def _args(*words: object) -> argparse.Namespace:
    return build_parser("cluster").parse_args(["cluster", "local", *map(str, words)])


def test_every_replica_has_ports_and_a_folder_of_its_own(tmp_path: Path) -> None:
    args = _args("--brokers", 2, "--replicas", 3, "--sync", "--set", "slaveTimeout=100")
    nameserver, brokers = local_cluster.children(args, tmp_path)
    assert nameserver.address == "127.0.0.1:9876"
    ports = [int(child.address.rpartition(":")[2]) for child in brokers]
    assert sorted(ports) == [10911, 10921, 10931, 10941, 10951, 10961]
    assert [child.title for child in brokers][:3] == [
        "broker-a master",
        "broker-b master",
        "broker-a slave 1",
    ]
    assert len({word for child in brokers for word in child.words if word.startswith(str(tmp_path))}) == 6
    for child in brokers:
        assert ("--slave" in child.words) == ("slave" in child.title)
        assert ("--sync-master" in child.words) == ("master" in child.title)
        assert "slaveTimeout=100" in child.words


def test_who_was_promoted_in_a_kept_folder_is_the_master(tmp_path: Path) -> None:
    """It has the configuration of a slave still, which it knows better; its old master takes its id."""
    for replica, given in ((1, "SLAVE"), (2, "ASYNC_MASTER")):
        config = tmp_path / f"broker-a-{replica}" / "config"
        config.mkdir(parents=True)
        (config / "role.json").write_text(json.dumps({"given": {"brokerRole": given, "brokerId": 0}}))
    _, brokers = local_cluster.children(_args("--brokers", 1, "--replicas", 3, "--sync"), tmp_path)
    assert [(child.title, child.address[-5:], child.words[-2:]) for child in brokers] == [
        ("broker-a master", "10931", ["--slave", "2"]),
        ("broker-a slave 2", "10911", ["--slave", "2"]),
        ("broker-a slave 1", "10921", ["--slave", "1"]),
    ]
    (tmp_path / "broker-a-2" / "config" / "role.json").write_text("{")
    _, brokers = local_cluster.children(_args("--brokers", 1, "--replicas", 3), tmp_path)
    assert (brokers[0].title, brokers[0].address) == ("broker-a master", "127.0.0.1:10911")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--sync", "--replicas", 1), "there is no slave to wait for; use --replicas 2 or more"),
        (("--port", 65000, "--brokers", 26, "--replicas", 3), "the last port would be 65771; use 64764"),
        (("--store", "/dev/null/x"), "--store='/dev/null/x' cannot be used: "),
    ],
)
def test_wrong_options_are_told(
    words: tuple[object, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cluster", "local", *map(str, words)]) == 2
    assert told in capsys.readouterr().err


def test_a_broker_that_refuses_a_key_ends_with_the_code_of_a_wrong_value(tmp_path: Path) -> None:
    words = ("--port", free_port(), "--namesrv-port", free_port(), "--set", "replicaRule=7")
    done = gimbalmq("cluster", "local", *words, "--store", tmp_path)
    assert done.stderr == "gimbalmq: broker-a master: replicaRule='7' cannot be used: use safe, 4.9 or 5.x\n"
    assert done.returncode == 2


def test_a_server_that_does_not_start_says_why_and_all_others_end(tmp_path: Path) -> None:
    port, namesrv = free_port(), free_port()
    with socket.create_server(("127.0.0.1", port)):
        words = ("--brokers", 1, "--replicas", 1, "--port", port, "--namesrv-port", namesrv)
        done = gimbalmq("cluster", "local", *words, "--store", tmp_path)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith(f"gimbalmq: broker-a master: cannot listen on 127.0.0.1:{port}: "), (
        done.stderr
    )
    assert done.stderr.count("\n") == 1
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", namesrv)):
        pass
    assert os.listdir(tmp_path)


def test_a_broker_that_ends_is_called_what_it_was_by_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slave that was promoted has no master to fear; the old one would be refused as the master that it was."""

    class Ended:
        async def wait(self) -> int:
            return -9

    args = _args("--brokers", 1, "--namesrv-port", 9999)
    _, (master, slave) = local_cluster.children(args, tmp_path)
    config = tmp_path / "broker-a-1" / "config"
    config.mkdir(parents=True)
    (config / "role.json").write_text(json.dumps({"given": {"brokerRole": "ASYNC_MASTER", "brokerId": 0}}))
    for child, says, promotes in ((master, "broker-a slave 1", False), (slave, "broker-a master", True)):
        child.process = cast("asyncio.subprocess.Process", Ended())
        asyncio.run(local_cluster._watch(child, args, tmp_path, asyncio.Event()))
        shown = capsys.readouterr().out
        assert shown.startswith(f"{says} at {child.address} has ended (SIGKILL).")
        assert ("gimbalmq -n 127.0.0.1:9999 broker promote broker-a" in shown) is promotes
        assert "--slave 1" in shown.splitlines()[-1]
