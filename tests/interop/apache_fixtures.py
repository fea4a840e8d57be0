"""Fixtures of our clients' interop tests: one Apache name server and broker per version for the whole session.

A test module names this file in `pytest_plugins`. The Java clients are those of `conftest.java_clients`, told
another name server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop import conftest
from tests.interop.apache_access import start_guarded
from tests.interop.apache_cluster import NEWEST, OLDEST, ApacheServer, start_servers
from tests.peers.apache import ApacheBroker, ApacheNameServer
from tests.peers.driver import JavaClient

Start = Callable[[str, Path], tuple[ApacheServer, tuple[ApacheNameServer, ApacheBroker]]]


def _when_asked_for(
    start: Start, name: str, folders: pytest.TempPathFactory
) -> Iterator[Callable[[str], ApacheServer]]:
    """Starts a version when it is first asked for, and ends them all."""
    started: dict[str, ApacheServer] = {}
    processes: list[ApacheNameServer | ApacheBroker] = []

    def get(version: str) -> ApacheServer:
        if version not in started:
            started[version], pair = start(version, folders.mktemp(f"{name}-{version}"))
            processes.extend(pair)
            conftest._running.extend((process.name, process.log) for process in pair)
        return started[version]

    yield get
    for process in reversed(processes):
        process.kill()


@pytest.fixture(scope="session")
def apache_servers(
    java_is_here: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], ApacheServer]]:
    yield from _when_asked_for(start_servers, "apache", tmp_path_factory)


@pytest.fixture(scope="session")
def guarded_servers(
    java_is_here: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], ApacheServer]]:
    """With access control; `apache_access` says whom they let in."""
    yield from _when_asked_for(start_guarded, "guarded", tmp_path_factory)


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
