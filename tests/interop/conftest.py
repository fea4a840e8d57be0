"""Fixtures of the interop suite: one cluster and one JVM per client version serve the whole session."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest

from tests.peers import apache, subject
from tests.peers.driver import JavaClient, Queue, eventually
from tests.peers.process import Process, tail
from tests.peers.subject import Cluster

_numbers = itertools.count(1)
_running: list[tuple[str, Path]] = []


class MakeTopic(Protocol):
    def __call__(self, queues: int = 4, *, broker: str | None = None) -> str: ...


class MakeGroup(Protocol):
    def __call__(self, *, retrying: bool = False) -> str: ...


# Seconds for a test that names no limit: whichever runs first also starts the servers and JVMs it shares.
TEST_LIMIT = 360.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _is_interop(item) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_LIMIT))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fetch Apache RocketMQ before the first test's clock runs: cold, that is a minute."""
    if not session.config.option.collectonly and any(map(_is_interop, session.items)):
        apache.available()


def _is_interop(item: pytest.Item) -> bool:
    return item.get_closest_marker("interop") is not None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed interop test shows what the servers and the Java clients said last."""
    report = yield
    if report.failed and _is_interop(item):
        report.sections += [(f"end of {name}", tail(log, 25)) for name, log in _running]
    return report


@pytest.fixture(scope="session", autouse=True)
def java_is_here() -> None:
    reason = apache.available()
    if reason is not None:
        pytest.skip(f"no Apache RocketMQ: {reason}")


@pytest.fixture
def watch() -> Iterator[Callable[[Process], None]]:
    """Takes servers of one test, whose last words a failure shows too."""
    shared = list(_running)
    yield lambda process: _running.append((process.name, process.log))
    _running[:] = shared


@pytest.fixture(scope="session")
def cluster(java_is_here: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster under test."""
    running = subject.cluster(tmp_path_factory.mktemp("subject"))
    _running.extend((process.name, process.log) for process in running.processes)
    yield running
    running.kill()


@pytest.fixture(scope="session")
def java_clients(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, JavaClient]]:
    """A JVM for each client version, connected to the cluster under test."""
    clients = {
        version: JavaClient(version, tmp_path_factory.mktemp("java"), namesrv=cluster.namesrv)
        for version in apache.CLIENT_VERSIONS
    }
    for client in clients.values():
        client.start()
        _running.extend([(f"Java client {client.version}", client.log), ("its log", client.library_log)])
    yield clients
    for client in clients.values():
        client.stop()


@pytest.fixture(params=apache.CLIENT_VERSIONS)
def java(request: pytest.FixtureRequest, java_clients: dict[str, JavaClient]) -> Iterator[JavaClient]:
    """The Java clients of one version; what a test leaves running is shut down."""
    client = java_clients[request.param]
    yield client
    client.abandon_all()


@pytest.fixture
def both(java_clients: dict[str, JavaClient]) -> Iterator[list[JavaClient]]:
    """The Java clients of every version, for tests that mix them."""
    yield list(java_clients.values())
    for client in java_clients.values():
        client.abandon_all()


@pytest.fixture
def make_topic(cluster: Cluster, java_clients: dict[str, JavaClient]) -> MakeTopic:
    """Creates a topic with a new name and waits until the name server knows it."""
    admin = java_clients[apache.CLIENT_VERSIONS[0]]

    def make(queues: int = 4, *, broker: str | None = None) -> str:
        topic = f"topic-{next(_numbers)}"
        create_topic(admin, broker or cluster.broker, topic, queues)
        return topic

    return make


@pytest.fixture
def make_group(cluster: Cluster, java_clients: dict[str, JavaClient]) -> MakeGroup:
    """Names a new group.

    Its retry topic is made by its first heartbeat; a Java consumer looks for that topic's queues only at its next
    rebalance, 20 s later. For a test of retries it is made beforehand.
    """
    admin = java_clients[apache.CLIENT_VERSIONS[0]]

    def make(*, retrying: bool = False) -> str:
        group = f"group-{next(_numbers)}"
        if retrying:
            create_topic(admin, cluster.broker, f"%RETRY%{group}", 1)
        return group

    return make


def create_topic(java: JavaClient, broker: str, topic: str, queues: int) -> None:
    """mqadmin updateTopic on one broker, and its route."""
    java.admin("updateTopic", "-b", broker, "-t", topic, "-r", str(queues), "-w", str(queues))
    wait_for_route(java, topic)


def wait_for_route(java: JavaClient, topic: str, *, namesrv: str | None = None) -> None:
    ask = partial(java.try_admin, "topicRoute", "-t", topic, namesrv=namesrv)
    eventually(ask, bool, f"route of {topic}")


def queue_ids(queues: list[Queue]) -> list[int]:
    return [queue.queue_id for queue in queues]
