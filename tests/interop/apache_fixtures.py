"""Fixtures of our clients' interop tests: one Apache name server and broker per version for the whole session.

A test module names this file in `pytest_plugins`. The Java clients are those of `conftest.java_clients`, told
another name server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.interop import conftest
from tests.interop.apache_access import start_guarded
from tests.interop.apache_cluster import NEWEST, OLDEST, ApacheServer, start_servers
from tests.peers.apache import ApacheBroker, ApacheNameServer
from tests.peers.driver import JavaClient


@pytest.fixture(scope="session")
def apache_servers(
    java_is_here: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], ApacheServer]]:
    """Starts a version when it is first asked for."""
    started: dict[str, ApacheServer] = {}
    processes: list[ApacheNameServer | ApacheBroker] = []

    def get(version: str) -> ApacheServer:
        if version not in started:
            started[version], pair = start_servers(version, tmp_path_factory.mktemp(f"apache-{version}"))
            processes.extend(pair)
            conftest._running.extend((process.name, process.log) for process in pair)
        return started[version]

    yield get
    for process in reversed(processes):
        process.kill()


@pytest.fixture(scope="session")
def guarded_servers(
    java_is_here: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], ApacheServer]]:
    """Starts a version with access control when it is first asked for; `apache_access` says whom it lets in."""
    started: dict[str, ApacheServer] = {}
    processes: list[ApacheNameServer | ApacheBroker] = []

    def get(version: str) -> ApacheServer:
        if version not in started:
            started[version], pair = start_guarded(version, tmp_path_factory.mktemp(f"guarded-{version}"))
            processes.extend(pair)
            conftest._running.extend((process.name, process.log) for process in pair)
        return started[version]

    yield get
    for process in reversed(processes):
        process.kill()


@pytest.fixture(params=[NEWEST, OLDEST])
def apache(request: pytest.FixtureRequest, apache_servers: Callable[[str], ApacheServer]) -> ApacheServer:
    """Apache's servers, of both versions in turn."""
    return apache_servers(request.param)


@pytest.fixture
def newest(apache_servers: Callable[[str], ApacheServer]) -> ApacheServer:
    return apache_servers(NEWEST)


@pytest.fixture
def java_550(java_clients: dict[str, JavaClient]) -> Iterator[JavaClient]:
    """Java clients of 5.5.0; give them the name server. What a test leaves running is shut down."""
    yield java_clients[NEWEST]
    java_clients[NEWEST].abandon_all()
