"""One Spark for the whole session, and clusters of ours for it to read."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pip install 'gimbalmq[spark]'")

from pyspark.sql import SparkSession

from gimbalmq.testing import LocalCluster
from gimbalmq.testing.cluster import ThreadCluster

# Workers are started as `python3` from PATH unless told otherwise.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """local[2], set as the documentation advises; shuffles small because the data is."""
    folder = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[ThreadCluster]:
    """For tests that only need topics of their own."""
    with LocalCluster.in_thread() as cluster:
        yield cluster


@pytest.fixture
def cluster() -> Iterator[ThreadCluster]:
    """For tests that stop brokers or change settings."""
    with LocalCluster.in_thread() as cluster:
        yield cluster


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")
