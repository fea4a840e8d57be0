"""The fixtures as another project gets them."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

from tests.cli.commands import environment

_SUITE = """
import socket

import pytest


@pytest.fixture(scope="session")
def gimbalmq_options():
    return {"properties": {"brokerClusterName": "mine"}}


def _reach(address):
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), 5).close()


seen = []


@pytest.mark.parametrize("turn", [1, 2])
def test_session(gimbalmq_server, turn):
    _reach(gimbalmq_server.namesrv)
    assert gimbalmq_server.broker.live.now.broker_cluster_name == "mine"
    seen.append(gimbalmq_server)
    assert len(set(map(id, seen))) == 1


@pytest.fixture(scope="session")
def gimbalmq_users():
    return {"shop": {"Topic:orders": "Pub"}}


def test_secure(gimbalmq_secure_server):
    from gimbalmq import sync

    assert gimbalmq_secure_server.broker.live.now.broker_cluster_name == "mine"
    with sync.Admin(**gimbalmq_secure_server.client_options()) as admin:
        assert admin.topics.names()
    assert gimbalmq_secure_server.client_options("shop")["access_key"] == "shop"


def test_replicas(gimbalmq_replicated_cluster):
    gimbalmq_replicated_cluster.in_step()
    assert [broker.roles.now.broker_id for broker in gimbalmq_replicated_cluster.brokers] == [0, 1]
    gimbalmq_replicated_cluster.kill_broker()
    gimbalmq_replicated_cluster.promote_broker(("broker-a", 1))
    assert gimbalmq_replicated_cluster.broker.roles.is_master


def test_own(gimbalmq_cluster, gimbalmq_server):
    assert gimbalmq_cluster.namesrv != gimbalmq_server.namesrv
    gimbalmq_cluster.kill_broker()
    gimbalmq_cluster.start_broker()
    _reach(gimbalmq_cluster.broker.address)
"""

_IDLE = """
import sys


def test_plugin_costs_nothing():
    heavy = ("asyncio", "msgspec", "numpy", "gimbalmq.broker", "gimbalmq.nameserver", "gimbalmq.errors")
    assert "gimbalmq.testing.pytest_plugin" in sys.modules
    assert not [name for name in heavy if name in sys.modules and name.startswith(("gimbalmq", "msgspec"))]
"""


def _pytest(folder: Path, text: str) -> str:
    (folder / "test_suite.py").write_text(text)
    installed = any(
        found.value == "gimbalmq.testing.pytest_plugin" for found in entry_points(group="pytest11")
    )
    plugin = [] if installed else ["-p", "gimbalmq.testing.pytest_plugin"]
    command = [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment(), timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_fixtures_serve_a_foreign_suite(tmp_path: Path) -> None:
    assert "5 passed" in _pytest(tmp_path, _SUITE)


def test_plugin_imports_nothing_until_asked(tmp_path: Path) -> None:
    assert "1 passed" in _pytest(tmp_path, _IDLE)
