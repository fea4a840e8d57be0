"""``gimbalmq user`` and ``gimbalmq acl``, ours and mqadmin's names, against servers that ask who is there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gimbalmq.cli import passwords
from gimbalmq.cli.main import main
from gimbalmq.client.client_file import read_client_file
from gimbalmq.testing.cluster import ThreadCluster
from tests.guarded_cluster import Run, servers

pytest_plugins = ["tests.guarded_fixtures"]

_numbers = iter(range(10_000))


@pytest.fixture
def run(run_as_root: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv(passwords.VARIABLE, "from-variable")
    return run_as_root


@pytest.fixture
def name() -> str:
    return f"user-{next(_numbers)}"


def secret_of(run: Run, name: str) -> str:
    found = json.loads(run("user", "show", name, "--show-secrets", "--json"))
    return str(found["password"])


# -- users -----------------------------------------------------------------------------


def test_users_by_our_names(run: Run, name: str, guarded_cluster: ThreadCluster) -> None:
    out = run("user", "create", name, "--sources", "10.0.0.0/8, fd00::/8")
    assert all(server in out for server in servers(guarded_cluster))
    assert secret_of(run, name) == "from-variable"
    run("user", "update", name, "--status", "disable", "--type", "Super", "--sources", "")
    shown = json.loads(run("user", "show", name, "--json"))
    assert shown == {
        "name": name,
        "type": "Super",
        "status": "disable",
        "source_ips": [],
        "certificate": None,
    }
    assert name in run("user", "list", name[:-1])
    assert name not in run("user", "list", "nobody")
    run("user", "delete", name, code=4)  # nobody is at the terminal
    run("user", "delete", name, "--yes")
    assert f"no user {name}" in run("user", "show", name, code=3)


def test_users_by_mqadmin_s_names_and_flags(run: Run, name: str, guarded_cluster: ThreadCluster) -> None:
    place = ("-n", guarded_cluster.namesrv, "-c", "DefaultCluster")
    address = guarded_cluster.brokers[0].address
    run("createUser", *place, "-u", name, "-p", "by-argument", "-t", "Normal", error="list of processes")
    run("updateUser", *place, "-u", name, "-s", "disable")
    run("updateUser", *place, "--username", name, "--userType", "Super")
    assert name in run("getUser", "-b", address, "-u", name)
    listed = run("listUser", "-c", "DefaultCluster", "-f", name)
    assert "Super" in listed and "disable" in listed
    run("deleteUser", "--brokerAddr", address, "-u", name)
    run("copyUser", "-f", guarded_cluster.brokers[1].address, "-t", address, "-u", name)
    assert secret_of(run, name) == "by-argument"
    run("deleteUser", *place, "-u", name)


def test_passwords_are_shown_only_if_that_is_asked_for(run: Run, name: str) -> None:
    run("user", "create", name)
    for words in (("user", "show", name), ("getUser", "-u", name), ("user", "list"), ("listUser",)):
        for more in ((), ("--json",)):
            assert "from-variable" not in run(*words, *more)
        assert "from-variable" in run(*words, "--show-secrets")


def test_a_client_file_lets_a_new_user_in(
    run: Run, name: str, tmp_path: Path, guarded_cluster: ThreadCluster
) -> None:
    file = tmp_path / "alice.toml"
    out = run("user", "create", name, "--new-client-file", file)
    made = read_client_file(file)
    assert (made.namesrv, made.access_key) == (guarded_cluster.namesrv, name)
    assert made.secret_key is not None and len(made.secret_key) >= 32 and made.secret_key not in out
    assert file.stat().st_mode & 0o777 == 0o600
    mine = ("--client-file", file)
    run("topic", "create", "orders", "--queues", "1")
    allow = f"gimbalmq acl allow {name} Topic:orders --actions"
    run("message", "send", "orders", "hi", *mine, code=1, error=re.escape(allow))
    run("acl", "allow", name, "Topic:orders", "--actions", "Pub")
    run("message", "send", "orders", "hi", *mine)
    run("topic", "delete", "orders", "--yes", *mine, code=1, error="no permission")
    run("user", "create", "another", "--new-client-file", file, code=2, error="there is such a file")


def test_refusals_tell_what_to_do(run: Run, guarded_cluster: ThreadCluster, tmp_path: Path) -> None:
    (tmp_path / "plain.toml").write_text(f'namesrv = "{guarded_cluster.namesrv}"\n')
    wrong = tmp_path / "wrong"
    wrong.write_text("not-the-secret")
    run("user", "list", "--client-file", tmp_path / "plain.toml", code=1, error="it asks who you are")
    run("user", "list", "--access-key", "root", "--secret-key-file", wrong, code=1, error="not that user's")
    run("user", "create", "root", code=1, error="existed; gimbalmq user update")
    run("acl", "allow", "nobody", "Topic:a", "--actions", "Pub", code=1, error="gimbalmq user list shows")
    run("user", "show", code=2, error="name a user")
    run("user", "update", "root", "--type", "King", code=2, error="King")
    run("user", "list", "-b", "broker-a", "-c", "DefaultCluster", code=2, error="not both")


def test_a_server_that_did_not_follow_is_told_of(run: Run, name: str, guarded_cluster: ThreadCluster) -> None:
    run("user", "create", name, "-b", "broker-b", "-p", "another")
    run("user", "create", name, code=1, error=f"not at {guarded_cluster.brokers[1].address}: .*existed")


# -- policies --------------------------------------------------------------------------


def test_policies_by_our_names(run: Run, name: str) -> None:
    run("user", "create", name)
    run("acl", "show", name, code=3)
    run("acl", "allow", name, "Topic:a*", "Group:g", "--actions", "Sub,Get", "--sources", "10.0.0.1")
    run("acl", "deny", name, "Topic:a-secret", "--actions", "all")
    run("acl", "allow", name, "Group:*", "--actions", "Get", "--default")
    shown = json.loads(run("acl", "show", name, "--json"))
    assert [(entry["policy_type"], entry["resource"], entry["decision"]) for entry in shown["entries"]] == [
        ("Custom", "Topic:a*", "Allow"),
        ("Custom", "Group:g", "Allow"),
        ("Custom", "Topic:a-secret", "Deny"),
        ("Default", "Group:*", "Allow"),
    ]
    assert run("acl", "list", name, "--resource", "secret").count(name) == 1
    run("acl", "delete", name, "Topic:a*", "--yes")
    run("acl", "delete", name, "Group:*", "--default", "--yes")
    assert run("acl", "list", name).count(name) == 2
    run("acl", "delete", name, code=4)
    run("acl", "delete", name, "--yes")
    assert "No policies." in run("acl", "list", name)


def test_allow_adds_and_says_what_no_longer_counts(run: Run, name: str) -> None:
    run("user", "create", name)
    assert f"{name}: Allow Pub on Topic:a at" in run("acl", "allow", name, "Topic:a", "--actions", "pub")
    more = run("acl", "allow", name, "Topic:a", "Group:g", "--actions", "Sub,Get")
    assert "Allow Pub,Sub,Get on Topic:a; Allow Sub,Get on Group:g at" in more
    assert "no longer" not in more
    assert "nothing new" in run("acl", "allow", name, "Topic:a", "--actions", "Get")
    denied = run("acl", "deny", name, "Topic:a", "--actions", "Pub")
    assert "This no longer counts: Allow Pub,Sub,Get on Topic:a" in denied


def test_policies_by_mqadmin_s_names_and_flags(run: Run, name: str, guarded_cluster: ThreadCluster) -> None:
    place = ("-c", "DefaultCluster")
    run("user", "create", name)
    subject = ("-s", f"User:{name}")
    entry = ("-r", "Topic:a,Group:g", "-a", "Pub,Sub", "-d", "Allow", "-i", "10.0.0.1,10.0.1.0/24")
    run("createAcl", *place, *subject, *entry)
    run("updateAcl", *place, *subject, "--resources", "Topic:a", "--actions", "Pub", "--decision", "Deny")
    out = run("getAcl", *place, *subject)
    assert re.search(r"Topic:a +Deny +Pub +-", out)
    assert re.search(r"Group:g +Allow +Pub,Sub +10.0.0.1,10.0.1.0/24", out)
    assert "Group:g" in run("listAcl", *place, "-s", name, "-r", "Group")
    address, other = (broker.address for broker in guarded_cluster.brokers)
    run("deleteAcl", "-b", other, *subject)
    run("copyAcl", "-f", address, "-t", other, *subject)
    assert "Group:g" in run("getAcl", "-b", other, *subject)
    run("deleteAcl", *place, *subject, "-r", "Topic:a")
    run("deleteAcl", *place, *subject)
    run("createAcl", *place, *subject, "-r", "Thing:a", "-a", "Pub", "-d", "Allow", code=2, error="Thing")


# -- where passwords come from ---------------------------------------------------------


def test_a_password_from_a_file_or_standard_input(
    run: Run, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    (tmp_path / "password").write_text("of file \nsecond line\n")
    run("user", "create", name, "--password-file", tmp_path / "password")
    assert secret_of(run, name) == "of file "
    monkeypatch.setattr("sys.stdin", io.StringIO("of-input\n"))
    run("user", "update", name, "--password-file", "-")
    assert secret_of(run, name) == "of-input"
    (tmp_path / "password").write_text("\n")
    run("user", "update", name, "--password-file", tmp_path / "password", code=2, error="first line is empty")
    run("user", "update", name, "--password-file", tmp_path / "no", code=2, error="No such file")


def test_a_password_from_a_prompt(run: Run, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = iter(["typed", "typed", "one", "other"])
    monkeypatch.setattr("getpass.getpass", lambda _prompt: next(typed))
    run("user", "create", name, "--ask-password")
    assert secret_of(run, name) == "typed"
    run("user", "update", name, "--ask-password", code=2, error="differ")


def test_a_variable_changes_a_password_only_if_that_is_said(
    run: Run, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("user", "create", name, "-p", "first")
    run("user", "update", name, "--status", "disable")
    assert secret_of(run, name) == "first"
    run("user", "update", name, "--password-env")
    assert secret_of(run, name) == "from-variable"
    monkeypatch.delenv(passwords.VARIABLE)
    run("user", "update", name, "--password-env", code=2, error=passwords.VARIABLE)


def test_without_a_password_the_ways_are_told(
    run: Run, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(passwords.VARIABLE)
    run("user", "create", name, code=2, error="name the file of the password")
    two = ("-p", "secret-word", "--password-file", tmp_path / "x")
    assert "secret-word" not in run("user", "create", name, *two, code=2, error="give one of them")


def test_help_and_errors_never_show_a_password(
    run: Run, capsys: pytest.CaptureFixture[str], guarded_cluster: ThreadCluster
) -> None:
    for command in ("createUser", "updateUser", "getUser"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert "from-variable" not in capsys.readouterr().out
    assert main(["user", "create", "x y", "-p", "secret-word", "--debug"]) == 2
    shown = capsys.readouterr()
    assert "secret-word" not in shown.out + shown.err
