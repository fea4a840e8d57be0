"""Fixtures: a cluster that asks who is there, and commands that its administrator runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before the servers' thread runs: Python 3.11 fails if two threads import modules that pytest rewrites.
from gimbalmq.admin import accounts as _accounts  # noqa: F401
from gimbalmq.cli import acls as _acls  # noqa: F401
from gimbalmq.cli import users as _users  # noqa: F401
from gimbalmq.cli.main import main
from gimbalmq.testing import LocalCluster
from gimbalmq.testing.cluster import ThreadCluster
from tests.guarded_cluster import KEYS, SECRET, Run


@pytest.fixture(scope="module")
def guarded_cluster() -> Iterator[ThreadCluster]:
    """Two brokers and a name server, each with users of its own."""
    with LocalCluster.in_thread(brokers=2, properties=KEYS, namesrv_properties=KEYS) as cluster:
        yield cluster


@pytest.fixture
def run_as_root(
    guarded_cluster: ThreadCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """Runs a command in this process as the administrator; its output, and the exit code checked."""
    file = tmp_path / "root.toml"
    file.write_text(f'namesrv = "{guarded_cluster.namesrv}"\naccess_key = "root"\nsecret_key = "{SECRET}"\n')
    file.chmod(0o600)
    monkeypatch.setenv("GIMBALMQ_CLIENT_FILE", str(file))

    def run(*words: object, code: int = 0, error: str = "", never: str | None = None) -> str:
        found = main([str(word) for word in words])
        shown = capsys.readouterr()
        assert found == code, shown.out + shown.err
        assert re.search(error, shown.err), shown.err
        assert never is None or never not in shown.out + shown.err
        return shown.out

    return run
