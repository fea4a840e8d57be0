"""Fixtures for projects that use RocketMQ; registered with pytest when the package is installed.

Nothing but pytest itself is imported until a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gimbalmq.testing.cluster import ThreadCluster


@pytest.fixture(scope="session")
def gimbalmq_options() -> dict[str, Any]:
    """Arguments of LocalCluster for both fixtures; override it in your conftest.py."""
    return {}


@pytest.fixture(scope="session")
def gimbalmq_server(gimbalmq_options: dict[str, Any]) -> Iterator[ThreadCluster]:
    """One name server and broker for the whole test run."""
    from gimbalmq.testing.cluster import LocalCluster

    with LocalCluster.in_thread(**gimbalmq_options) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def gimbalmq_users() -> dict[str, dict[str, str]]:
    """Users of gimbalmq_secure_server and what each may do; override it in your conftest.py."""
    return {}


@pytest.fixture(scope="session")
def gimbalmq_secure_server(
    gimbalmq_options: dict[str, Any], gimbalmq_users: dict[str, dict[str, str]]
) -> Iterator[ThreadCluster]:
    """The same with users and TLS; its client_options() and client_file() let clients in."""
    from gimbalmq.testing.cluster import LocalCluster

    with LocalCluster.in_thread(**gimbalmq_options | {"secure": True, "users": gimbalmq_users}) as cluster:
        yield cluster


@pytest.fixture
def gimbalmq_replicated_cluster(gimbalmq_options: dict[str, Any]) -> Iterator[ThreadCluster]:
    """The same with a slave for every broker (``replicas=2``, unless gimbalmq_options says another number)."""
    from gimbalmq.testing.cluster import LocalCluster

    with LocalCluster.in_thread(**{"replicas": 2} | gimbalmq_options) as cluster:
        yield cluster


@pytest.fixture
def gimbalmq_cluster(gimbalmq_options: dict[str, Any]) -> Iterator[ThreadCluster]:
    """A name server and broker of this test's own; it may stop, kill and restart them."""
    from gimbalmq.testing.cluster import LocalCluster

    with LocalCluster.in_thread(**gimbalmq_options) as cluster:
        yield cluster
