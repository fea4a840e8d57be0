"""Our commands about users and policies against Apache's broker of 5.x, with Apache's own file of keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gimbalmq import Message, sync
from gimbalmq.cli import passwords
from gimbalmq.cli.main import main
from gimbalmq.errors import SendFailedError
from tests.interop.apache_access import CLOSED, ROOT
from tests.interop.apache_cluster import NEWEST, SEND_SECONDS, ApacheServer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]
pytest_plugins = ["tests.interop.apache_fixtures"]

Run = Callable[..., str]


@pytest.fixture
def server(guarded_servers: Callable[[str], ApacheServer]) -> ApacheServer:
    return guarded_servers(NEWEST)


@pytest.fixture
def run(
    server: ApacheServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """Runs a command as the administrator; its output, and the exit code checked."""
    file = tmp_path / "tools.yml"
    file.write_text(f"accessKey: {ROOT.access}\nsecretKey: {ROOT.secret}\n")
    file.chmod(0o600)
    monkeypatch.setenv("GIMBALMQ_CLIENT_FILE", str(file))
    monkeypatch.setenv("NAMESRV_ADDR", server.namesrv)
    monkeypatch.setenv(passwords.VARIABLE, "alice-secret-1")

    def run(*words: str, code: int = 0, error: str = "") -> str:
        found = main([*words])
        shown = capsys.readouterr()
        assert found == code and error in shown.err, shown.out + shown.err
        return shown.out

    return run


def test_users_and_policies_are_managed_and_count(run: Run, server: ApacheServer) -> None:
    def send() -> None:
        keys: dict[str, Any] = {
            "access_key": "alice",
            "secret_key": "alice-secret-1",
            "send_timeout": SEND_SECONDS,
        }
        with sync.Producer("alices", server.namesrv, **keys) as producer:
            producer.send(Message(CLOSED, b"by alice"))

    assert server.broker in run("user", "create", "alice")
    run("user", "create", "alice", code=1, error="existed")
    with pytest.raises(SendFailedError, match="no matched policies"):
        send()
    run(
        "acl",
        "allow",
        "alice",
        f"Topic:{CLOSED}",
        "Group:a*",
        "--actions",
        "Pub,Sub",
        "--sources",
        "127.0.0.1",
    )
    send()
    run("createAcl", "-b", server.broker, "-s", "User:alice", "-r", "Topic:clo*", "-a", "All", "-d", "Deny")
    run("acl", "allow", "alice", "Group:*", "--actions", "Sub", "--default")
    shown = json.loads(run("acl", "show", "alice", "--json"))
    assert {(entry["policy_type"], entry["resource"], entry["decision"]) for entry in shown["entries"]} == {
        ("Custom", f"Topic:{CLOSED}", "Allow"),
        ("Custom", "Group:a*", "Allow"),
        ("Custom", "Topic:clo*", "Deny"),
        ("Default", "Group:*", "Allow"),
    }
    run("acl", "delete", "alice", f"Topic:{CLOSED}", "--yes")
    run("acl", "delete", "alice", "Group:*", "--default", "--yes")
    assert run("acl", "list", "alice").count("alice") == 2
    with pytest.raises(SendFailedError, match="decision is deny"):
        send()
    run("updateUser", "-c", "InteropCluster", "-u", "alice", "-s", "disable")
    assert "disable" in run("user", "show", "alice")
    assert "alice-secret-1" in run("getUser", "-b", server.broker, "-u", "alice", "--show-secrets")
    run("acl", "delete", "alice", "--yes")
    run("acl", "show", "alice", code=3)
    run("user", "delete", "alice", "--yes")
    run("user", "show", "alice", code=3)


def test_a_binding_that_apaches_broker_does_not_know_leaves_no_user_behind(run: Run) -> None:
    run("user", "create", "bound", "--sources", "10.0.0.0/8", code=1, error="does not bind bound")
    run("user", "show", "bound", code=3)
