"""Servers from start to end: ready lines, signals, exit codes, errors a person can act on."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from gimbalmq import Message
from gimbalmq.broker.config import BrokerConfig
from gimbalmq.cli.serve import ServePlan, share_connections
from gimbalmq.errors import NoPermissionError, SendFailedError
from gimbalmq.nameserver.config import NameServerConfig
from gimbalmq.sync import Admin, Producer
from gimbalmq.transport.descriptors import budget
from tests.cli.commands import gimbalmq, serving
from tests.peers.process import free_port


def _accepts(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 5):
        return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_name_server_says_ready_and_ends_cleanly(number: signal.Signals, tmp_path: Path) -> None:
    with serving("namesrv", "--port", 0, "--data", tmp_path) as server:
        assert _accepts(server.ready_address())
        assert server.end(number) == 0
        assert f"{number.name}: shutting down" in server.errors


def test_second_signal_ends_a_server_that_hangs(tmp_path: Path) -> None:
    hanging = (
        "import sys, time\n"
        "from gimbalmq.nameserver.server import NameServer\n"
        "async def close(self):\n"
        "    print('closing and ready to hang', flush=True)\n"
        "    while True: time.sleep(0.01)\n"
        "NameServer.close = close\n"
        "from gimbalmq.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    with serving("namesrv", "--port", 0, "--data", tmp_path, code=hanging) as server:
        server.ready()
        server.process.send_signal(signal.SIGTERM)
        server.ready()
        assert server.end() == 1
        assert "ending at once" in server.errors


def test_port_in_use_is_exit_code_1_with_a_remedy(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = gimbalmq("namesrv", "--port", port, "--data", tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        f"gimbalmq: cannot listen on 127.0.0.1:{port}: address already in use; "
        "choose another port or stop the process that has it\n"
    )
    assert "Traceback" not in done.stderr


def test_unknown_keys_are_named_and_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.properties"
    file.write_text("clusterTestXyz=1\nserverWorkerThreads=8\n")
    with serving("namesrv", "--port", 0, "--data", tmp_path, "-c", file) as server:
        server.ready()
        server.end()
        assert "clusterTestXyz is not an option here; passed over" in server.errors


def test_logs_go_to_a_file_when_told(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with serving("namesrv", "--port", 0, "--data", tmp_path, "--log-file", log) as server:
        server.ready()
        server.end()
        assert server.errors == ""
    assert "nameserver.server: name server listens on" in log.read_text()


def test_log_level_leaves_only_what_matters(tmp_path: Path) -> None:
    with serving("namesrv", "--port", 0, "--data", tmp_path, "--log-level", "warning") as server:
        server.ready()
        assert server.end() == 0
        assert server.errors == ""


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = gimbalmq("namesrv", "--set", "listenPort=x", "--debug", "--data", tmp_path)
    assert done.returncode == 2
    assert "Traceback" in done.stderr


# -- with a broker -------------------------------------------------------------------


def test_server_says_ready_twice_and_ends_cleanly(tmp_path: Path) -> None:
    with serving("server", "--namesrv-port", 0, "--port", 0, "--store", tmp_path / "store") as server:
        first, second = server.ready(), server.ready()
        assert first.startswith("name server ready on 127.0.0.1:")
        assert second.startswith("broker broker-a ready on 127.0.0.1:")
        assert f"store {tmp_path / 'store'}" in second
        assert _accepts(second.split()[4].rstrip(","))
        assert (tmp_path / "store" / "abort").exists()
        assert server.end() == 0
        assert not (tmp_path / "store" / "abort").exists()
        assert "Traceback" not in server.errors and "ERROR" not in server.errors


def test_server_without_folder_uses_its_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with serving("server", "--namesrv-port", 0, "--port", 0, home=home) as server:
        server.ready()
        assert f"store {home / 'store'}" in server.ready()
        assert server.end() == 0


def test_a_store_in_use_is_refused_with_its_owner(tmp_path: Path) -> None:
    with serving("server", "--namesrv-port", 0, "--port", 0, "--store", tmp_path) as server:
        server.ready()
        server.ready()
        done = gimbalmq("broker", "--port", 0, "--store", tmp_path)
        assert done.returncode == 1
        assert str(tmp_path) in done.stderr and f"process {server.process.pid}" in done.stderr
        assert "stop that process, or give this one a folder of its own: --store DIR" in done.stderr
        assert "Traceback" not in done.stderr
        assert (tmp_path / "abort").exists(), "the refused broker must not touch the other one's files"
        assert server.end() == 0


def test_broker_port_in_use_leaves_a_clean_store(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = gimbalmq("broker", "--port", port, "--store", tmp_path)
        assert done.returncode == 1
        assert f"127.0.0.1:{port}" in done.stderr and "choose another port" in done.stderr
    assert not (tmp_path / "abort").exists()


@pytest.mark.parametrize("words", [("--namesrv-port", 0), ("--namesrv-port", 0, "--brokers", 2), None])
def test_metrics_port_in_use_names_the_flag_and_the_key(
    tmp_path: Path, words: tuple[object, ...] | None
) -> None:
    command = ("broker",) if words is None else ("server", *words)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        own = free_port(groups=3)
        done = gimbalmq(*command, "--port", own, "--store", tmp_path, "--metrics-port", port)
    assert done.returncode == 1
    told = done.stderr.splitlines()[-1]
    assert told.startswith(f"gimbalmq: the metrics cannot be served on 127.0.0.1:{port}: ")
    assert told.endswith("; choose another --metrics-port (metricsPromExporterPort) or metricsBindAddress")
    assert "Traceback" not in done.stderr


def test_broker_registers_with_a_name_server_elsewhere(tmp_path: Path) -> None:
    with serving("namesrv", "--port", 0, "--data", tmp_path / "ns") as namesrv:
        address = namesrv.ready_address()
        words = ("broker", "--port", 0, "--namesrv", address, "--store", tmp_path / "s", "--name", "b7")
        with serving(*words) as broker:
            assert broker.ready().startswith("broker b7 ready on ")
            assert broker.end() == 0
        namesrv.end()
        assert "b7" in namesrv.errors


def test_a_killed_server_recovers_and_says_so(tmp_path: Path) -> None:
    words = ("server", "--namesrv-port", 0, "--port", 0, "--store", tmp_path)
    with serving(*words) as server:
        server.ready()
        server.ready()
        assert server.end(signal.SIGKILL) == -signal.SIGKILL
    assert (tmp_path / "abort").exists()
    with serving(*words) as server:
        server.ready()
        assert "after an unclean end" in server.ready()
        assert server.end() == 0


def test_an_idle_server_is_small(tmp_path: Path) -> None:
    with serving("server", "--namesrv-port", 0, "--port", 0, "--store", tmp_path) as server:
        server.ready()
        server.ready()
        assert server.memory_mb() < 65
        assert server.end() == 0


def test_a_start_warns_of_nothing_and_says_what_there_is_room_for(tmp_path: Path) -> None:
    with serving("server", "--namesrv-port", 0, "--port", 0, "--store", tmp_path) as server:
        server.ready()
        server.ready()
        assert server.end() == 0
        start, _, room = server.errors.partition("can hold up to ")
        assert "WARNING" not in start and "limit of open files" in room


def test_few_open_files_are_told_with_a_remedy(tmp_path: Path) -> None:
    limited = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "from gimbalmq.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    with serving("server", "--namesrv-port", 0, "--port", 0, "--store", tmp_path, code=limited) as server:
        server.ready()
        server.ready()
        assert server.end() == 0
        assert "can only hold up to 1 connections" in server.errors
        assert "raise the limit of open files (ulimit -n), which is 64" in server.errors


@pytest.mark.parametrize("asked", [0, 7, 1_000_000])
def test_two_servers_of_one_process_share_its_connections(asked: int) -> None:
    plan = share_connections(
        ServePlan(
            nameserver=NameServerConfig(server_max_connections=asked),
            broker=BrokerConfig(server_max_connections=asked),
        )
    )
    assert plan.nameserver is not None and plan.broker is not None
    parts = plan.nameserver.server_max_connections, plan.broker.server_max_connections
    assert min(parts) >= 1 and sum(parts) <= max(2, budget().connections)
    assert asked != 7 or parts == (7, 7)


def test_apaches_conf_folder_with_accounts_is_served_as_it_is(tmp_path: Path) -> None:
    """Nothing but aclEnable: the name server of the same process believes its broker, and nobody else."""
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "broker.conf").write_text("aclEnable=true\n")
    (conf / "plain_acl.yml").write_text(
        "accounts:\n"
        "- {accessKey: administrator, secretKey: 12345678, admin: true}\n"
        "- {accessKey: sender-only, secretKey: 12345678, topicPerms: [orders=PUB]}\n"
    )
    words = ("--namesrv-port", 0, "--port", 0, "--store", tmp_path / "store", "-c", conf / "broker.conf")
    with serving("server", *words) as server:
        namesrv = server.ready_address()
        server.ready()
        with Admin(namesrv, access_key="administrator", secret_key="12345678") as admin:
            assert [broker.broker for broker in admin.clusters.brokers()] == ["broker-a"]
            admin.topics.create("orders")
        with Producer("senders", namesrv=namesrv, access_key="sender-only", secret_key="12345678") as sender:
            assert sender.send(Message("orders", b"hello")).status.name == "SEND_OK"
            with pytest.raises(SendFailedError, match="no permission to access Topic:other"):
                sender.send(Message("other", b"hello"))
        with Admin(namesrv) as stranger, pytest.raises(NoPermissionError, match="username cannot be null"):
            stranger.topics.create("mine")
        assert server.end() == 0
    # The key of the process is no user.
    assert not (tmp_path / "store" / "config" / "users.json").exists()
