"""``gimbalmq acl import``: the preview, the question, and users and policies on every server."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest

from gimbalmq.errors import NoPermissionError
from gimbalmq.sync import Admin
from gimbalmq.testing.cluster import ThreadCluster
from tests.guarded_cluster import SECRET, Run, servers

pytest_plugins = ["tests.guarded_fixtures"]

FILE = """
globalWhiteRemoteAddresses: [10.10.103.*]
accounts:
- accessKey: KEY-sender
  secretKey: the-hidden-words
  whiteRemoteAddress: 127.0.0.*
  defaultTopicPerm: SUB
  topicPerms: [orders=PUB]
- {accessKey: KEY-admin, secretKey: the-hidden-words, admin: true}
"""

_numbers = iter(range(1000))


@pytest.fixture
def run(run_as_root: Run) -> Run:
    return partial(run_as_root, never="the-hidden-words")


@pytest.fixture
def key() -> str:
    return f"account{next(_numbers)}"


@pytest.fixture
def file(tmp_path: Path, key: str) -> Path:
    path = tmp_path / "plain_acl.yml"
    path.write_text(FILE.replace("KEY", key))
    return path


def test_it_shows_what_it_would_make_and_changes_nothing(run: Run, file: Path, key: str) -> None:
    for words, code in ((("--dry-run",), 0), ((), 4)):  # nobody is at the terminal
        shown = run("acl", "import", file, *words, code=code)
        assert re.search(rf"{key}-sender +Normal +-", shown) and re.search(rf"{key}-admin +Super", shown)
        assert re.search(rf"{key}-sender +Custom +Topic:orders +Allow +Pub\n", shown)
        assert re.search(rf"{key}-sender +Custom +Topic:orders +Deny +Sub,Get\n", shown)
        assert re.search(rf"{key}-sender +Default +Topic:\* +Allow +Sub,Get\n", shown)
        assert "Not carried over:" in shown and "requests from 10.10.103.* needed no key" in shown
        assert "Nothing was changed." in shown
    assert key not in run("user", "list")


def test_it_makes_users_and_policies_on_every_server_and_can_be_run_again(
    run: Run, file: Path, key: str, guarded_cluster: ThreadCluster
) -> None:
    shown = json.loads(run("acl", "import", file.parent, "--yes", "--json"))
    assert shown["changed"] and len(shown["policies"]) == 4
    for result in shown["results"]:
        assert result["servers"] == dict.fromkeys(servers(guarded_cluster), "made") and not result["problems"]
    with Admin(guarded_cluster.namesrv, access_key=f"{key}-admin", secret_key="the-hidden-words") as admin:
        for server in servers(guarded_cluster):
            assert {user.name for user in admin.users.all(key, broker=server)} == {
                f"{key}-sender",
                f"{key}-admin",
            }
            policies = admin.acls.get(f"{key}-sender", broker=server)
            assert policies is not None and len(policies.entries) == 4
    with Admin(guarded_cluster.namesrv, access_key="root", secret_key=SECRET) as admin:
        admin.topics.create("orders")
    # The account can do what it could, signed with its old key.
    with Admin(guarded_cluster.namesrv, access_key=f"{key}-sender", secret_key="the-hidden-words") as admin:
        with pytest.raises(NoPermissionError):
            admin.topics.create("orders")
        with pytest.raises(NoPermissionError, match="Topic:orders"):
            admin.messages.by_key("orders", "k")
    again = json.loads(run("acl", "import", file, "--yes", "--json"))
    for result in again["results"]:
        assert set(result["servers"].values()) == {"there already"}


def test_what_is_there_and_differs_is_left_alone_and_told(
    run: Run, file: Path, key: str, guarded_cluster: ThreadCluster
) -> None:
    with Admin(guarded_cluster.namesrv, access_key="root", secret_key=SECRET) as admin:
        first, second = (broker.address for broker in guarded_cluster.brokers)
        admin.users.create(f"{key}-admin", "another-secret", broker=first)
        admin.users.create(f"{key}-sender", "the-hidden-words", broker=second)
        admin.acls.create(f"{key}-sender", ["Topic:mine"], ["Pub"], broker=second)
        shown = run("acl", "import", file, "--yes", code=1)
        assert re.search(rf"{key}-admin +{first} +another user", shown)
        assert re.search(rf"{key}-sender +{second} +other policies", shown)
        assert re.search(rf"{key}-sender +{first} +made", shown)
        user = admin.users.get(f"{key}-admin", broker=first)
        assert user is not None and (user.type, user.password) == ("Normal", "another-secret")
        policies = admin.acls.get(f"{key}-sender", broker=second)
        assert policies is not None and [entry.resource for entry in policies.entries] == ["Topic:mine"]


def test_users_can_be_bound_to_their_white_addresses(run: Run, file: Path, key: str) -> None:
    shown = run("acl", "import", file, "--yes", "--bind-sources")
    assert re.search(rf"{key}-sender +Normal +127.0.0.0/24", shown)
    found = json.loads(run("user", "show", f"{key}-sender", "--json"))
    assert found["source_ips"] == ["127.0.0.0/24"]


def test_a_file_that_cannot_be_understood_imports_nothing(run: Run, file: Path, key: str) -> None:
    file.write_text(file.read_text().replace("orders=PUB", "orders=EVERYTHING"))
    run(
        "acl",
        "import",
        file,
        "--yes",
        code=2,
        error=r"topicPerms of .*plain_acl\.yml line 8='orders=EVERYTHING'",
    )
    assert key not in run("user", "list")
    run("acl", "import", file, "--broker", "a", "--cluster", "b", code=2, error="not both")
    file.write_text("accounts: []")
    assert "no account to import" in run("acl", "import", file)
