"""The table of users and policies: what it refuses, what survives, and that the loop never waits for its disk."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gimbalmq.access.policies import ANYTHING, Acl, Action, Decision, Entry, Policy, PolicyType, Resource
from gimbalmq.access.table import AccessTable
from gimbalmq.access.users import User, UserStatus, UserType
from gimbalmq.errors import (
    ConfigError,
    DiskFullError,
    InvalidParameterError,
    NoPermissionError,
    RocketMQError,
    TableFullError,
)
from gimbalmq.store.files import Files
from gimbalmq.testing.disk import RecordedDisk
from tests.support import run

ADMIN = User("admin", "secret-a", UserType.SUPER)
ALICE = User("alice", "secret-b", source_ips=("10.0.0.0/8",), certificate="alice")


def _acl(user: str, *resources: str, kind: PolicyType = PolicyType.CUSTOM) -> Acl:
    entries = tuple(
        Entry(Resource.parse(text), frozenset({Action.PUB, Action.SUB}), Decision.ALLOW, ("10.0.0.0/8",))
        for text in resources
    )
    return Acl(user, (Policy(kind, entries),))


def _opened(folder: Path | None, **options: Any) -> AccessTable:
    table = AccessTable(folder, **options)
    table.load()
    return table


async def _filled(folder: Path | None, **options: Any) -> AccessTable:
    table = _opened(folder, **options)
    await table.create_user(ADMIN)
    await table.create_user(ALICE)
    await table.merge_acl(_acl("alice", "Topic:a", "Group:g*"))
    return table


def test_what_was_changed_is_there_after_a_restart(tmp_path: Path) -> None:
    table = run(_filled(tmp_path / "config"))
    run(table.merge_acl(_acl("admin", "*", kind=PolicyType.DEFAULT)))
    again = _opened(tmp_path / "config")
    assert again.users() == table.users() == {"admin": ADMIN, "alice": ALICE}
    everything = _acl("admin", "*", kind=PolicyType.DEFAULT)
    assert (
        again.acls() == table.acls() == {"alice": _acl("alice", "Topic:a", "Group:g*"), "admin": everything}
    )
    assert again.user("bob") is None
    assert again.acl("bob") is None
    assert not again.trusts("127.0.0.1", "admin")


def test_the_files_are_for_people_and_for_their_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "config"
    mask = os.umask(0)
    try:
        run(_filled(folder))
    finally:
        os.umask(mask)
    assert sorted(path.name for path in folder.iterdir()) == ["acls.json", "users.json"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert (folder / "users.json").read_text() == (
        "{\n"
        '  "users": {\n'
        '    "admin": {\n'
        '      "password": "secret-a",\n'
        '      "userStatus": "enable",\n'
        '      "userType": "Super"\n'
        "    },\n"
        '    "alice": {\n'
        '      "certificate": "alice",\n'
        '      "password": "secret-b",\n'
        '      "sourceIps": [\n'
        '        "10.0.0.0/8"\n'
        "      ],\n"
        '      "userStatus": "enable",\n'
        '      "userType": "Normal"\n'
        "    }\n"
        "  }\n"
        "}\n"
    )
    entries = json.loads((folder / "acls.json").read_text())["acls"]["User:alice"]["policies"][0]["entries"]
    assert entries[1] == {
        "resource": "Group:g*",
        "actions": ["Pub", "Sub"],
        "sourceIps": ["10.0.0.0/8"],
        "decision": "Allow",
    }


def test_a_file_that_others_could_read_is_closed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(_filled(tmp_path))
    (tmp_path / "users.json").chmod(0o644)
    _opened(tmp_path)
    assert stat.S_IMODE((tmp_path / "users.json").stat().st_mode) == 0o600
    assert "had mode 644 and holds secrets" in caplog.text


def test_a_file_that_others_can_read_and_nobody_can_close_stops_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(_filled(tmp_path))
    (tmp_path / "acls.json").chmod(0o640)

    def refused(path: Path, mode: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "chmod", refused)
    with pytest.raises(
        ConfigError, match=r"has mode 640.*cannot be changed: Operation not permitted; .*to 600"
    ):
        _opened(tmp_path)


def test_what_a_crash_left_aside_is_replaced_and_not_written_into(tmp_path: Path) -> None:
    aside = tmp_path / "users.json.tmp"
    aside.write_text("x" * 5000)
    aside.chmod(0o644)
    run(_filled(tmp_path))
    assert _opened(tmp_path).user("admin") == ADMIN
    assert stat.S_IMODE((tmp_path / "users.json").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("users.json", '{"users": {"a": {"password": "hidden-1"', "is no JSON"),
        ("users.json", "", "is no JSON"),
        ("users.json", "[]", 'is no object with "users" and nothing else'),
        ("users.json", '{"users": {}, "acls": {}}', 'is no object with "users" and nothing else'),
        ("users.json", '{"users": []}', 'is no object with "users" and nothing else'),
        ("users.json", '{"users": {"a": {}}}', "is wrong at 'a': password can not be blank"),
        ("users.json", '{"users": {"a": {"password": 12345678}}}', "is wrong at 'a'"),
        ("users.json", '{"users": {"a": {"password": "hidden-1", "userTyp": "Super"}}}', "a field 'userTyp'"),
        (
            "users.json",
            '{"users": {"a": {"password": "hidden-1", "userType": "Boss"}}}',
            "type 'Boss' is unknown",
        ),
        ("acls.json", '{"acls": {"alice": {"policies": []}}}', "is wrong at 'alice'"),
        ("acls.json", '{"acls": {"User:a": {"subject": "User:b", "policies": []}}}', "is wrong at 'User:a'"),
        (
            "acls.json",
            '{"acls": {"User:a": {"subject": "User:b", "policies": [{"entries": [{"resource": "*", "actions": '
            '["All"], "decision": "Allow"}]}]}}}',
            "another subject, User:b",
        ),
    ],
)
def test_a_broken_file_refuses_the_start_and_is_named(
    tmp_path: Path, file: str, text: str, said: str
) -> None:
    (tmp_path / file).write_text(text)
    with pytest.raises(ConfigError) as caught:
        _opened(tmp_path)
    assert said in str(caught.value)
    assert str(tmp_path / file) in str(caught.value)
    assert "hidden-1" not in str(caught.value)


def test_policies_of_nobody_are_not_kept_for_the_next_of_that_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(_filled(tmp_path))
    users = json.loads((tmp_path / "users.json").read_text())
    del users["users"]["alice"]
    (tmp_path / "users.json").write_text(json.dumps(users))
    table = _opened(tmp_path)
    assert table.acl("alice") is None
    assert "the user alice, who does not exist" in caplog.text
    run(table.create_user(User("alice", "another")))
    again = _opened(tmp_path)
    assert again.user("alice") == User("alice", "another")
    assert again.acl("alice") is None


def test_users_are_created_changed_and_deleted_with_their_policies() -> None:
    async def scenario() -> None:
        table = await _filled(None)
        seen = [table.revision]

        async def grows(change: Any) -> None:
            await change
            assert table.revision > seen[-1]
            seen.append(table.revision)

        with pytest.raises(NoPermissionError, match="The user is existed"):
            await table.create_user(User("alice", "x"))
        with pytest.raises(NoPermissionError, match="The user is not exist"):
            await table.change_user("bob", lambda user: user)
        await table.change_user("alice", lambda user: user)
        assert table.revision == seen[-1]
        await grows(table.change_user("alice", lambda user: User("alice", "new")))
        assert table.user("alice") == User("alice", "new")
        assert table.acl("alice") is not None
        await grows(table.merge_acl(_acl("alice", "Topic:b")))
        await grows(table.delete_acl("alice", PolicyType.CUSTOM, Resource.parse("Topic:b")))
        assert await table.delete_user("alice")
        assert not await table.delete_user("alice")
        assert table.acl("alice") is None
        with pytest.raises(NoPermissionError, match=r"The subject of User:alice is not exist\."):
            await table.merge_acl(_acl("alice", "Topic:a"))
        await table.create_user(User("alice", "x"))
        assert table.acl("alice") is None

    run(scenario())


def test_policies_are_merged_and_taken_away() -> None:
    async def scenario() -> None:
        table = await _filled(None)
        revision = table.revision
        await table.merge_acl(_acl("alice", "Group:g*"))
        await table.merge_acl(_acl("alice", "*", kind=PolicyType.DEFAULT))
        await table.delete_acl("alice", PolicyType.CUSTOM, ANYTHING)
        await table.delete_acl("alice", PolicyType.CUSTOM, Resource.parse("Topic:a"))
        await table.delete_acl("alice", PolicyType.CUSTOM, Resource.parse("Group:g*"))
        assert table.acl("alice") == _acl("alice", "*", kind=PolicyType.DEFAULT)
        assert table.revision == revision + 3  # the first merge and the first deletion changed nothing
        await table.delete_acl("alice", PolicyType.DEFAULT, ANYTHING)
        assert table.acl("alice") is None
        with pytest.raises(NoPermissionError, match=r"The acl is not exist\."):
            await table.delete_acl("alice", PolicyType.CUSTOM, None)
        with pytest.raises(NoPermissionError, match=r"The subject is not exist\."):
            await table.delete_acl("bob", PolicyType.CUSTOM, None)
        await table.merge_acl(_acl("alice", "Topic:a"))
        await table.delete_acl("alice", PolicyType.CUSTOM, None)
        assert table.acl("alice") is None

    run(scenario())


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.delete_user("admin"),
        lambda table: table.change_user("admin", lambda user: User("admin", "p", UserType.NORMAL)),
        lambda table: table.change_user(
            "admin", lambda user: User("admin", "p", UserType.SUPER, UserStatus.DISABLE)
        ),
    ],
)
def test_the_last_enabled_super_user_stays(change: Callable[[AccessTable], Any]) -> None:
    async def scenario() -> None:
        table = await _filled(None)
        await table.create_user(User("off", "p", UserType.SUPER, UserStatus.DISABLE))
        with pytest.raises(NoPermissionError, match="admin is the last enabled SUPER user"):
            await change(table)
        assert table.user("admin") == ADMIN
        await table.change_user("admin", lambda user: User("admin", "other", UserType.SUPER))
        await table.delete_user("off")
        await table.create_user(User("second", "p", UserType.SUPER))
        await change(table)
        assert table.user("admin") != ADMIN

    run(scenario())


def test_the_servers_own_user_is_no_administrator() -> None:
    async def scenario() -> None:
        table = await _filled(None)
        await table.create_user(User("server-1", "p", UserType.SUPER))
        table.servers_own = "server-1"
        with pytest.raises(NoPermissionError, match=r"admin is the last .*server-1 is the servers' own"):
            await table.delete_user("admin")
        await table.delete_user("server-1")
        assert table.user("admin") is not None and table.user("server-1") is None

    run(scenario())


def test_the_users_of_the_options_are_made_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        table = AccessTable(None)
        assert await table.ensure_super("root", "secret-1", "initAuthenticationUser")
        assert table.user("root") == User("root", "secret-1", UserType.SUPER)
        assert not await table.ensure_super("root", "secret-1", "initAuthenticationUser")
        assert not caplog.records
        assert not await table.ensure_super("root", "secret-2", "initAuthenticationUser")
        assert table.user("root") == User("root", "secret-1", UserType.SUPER)
        assert "the user root of initAuthenticationUser exists with another password" in caplog.text
        assert "secret" not in caplog.text
        with pytest.raises(RocketMQError, match="password can not be blank"):
            await table.ensure_super("root2", "", "initAuthenticationUser")

    with caplog.at_level(logging.INFO):
        run(scenario())


def test_the_table_has_bounds() -> None:
    async def scenario() -> None:
        table = await _filled(None, max_users=2, max_entries=3)
        with pytest.raises(TableFullError, match="carol is not created: there are 2 users"):
            await table.create_user(User("carol", "p"))
        with pytest.raises(TableFullError, match="there would be 4 entries in all, and 3 are allowed"):
            await table.merge_acl(_acl("admin", "Topic:a", "Topic:b"))
        await table.merge_acl(_acl("admin", "Topic:a"))
        await table.merge_acl(_acl("alice", "Topic:a"))
        with pytest.raises(InvalidParameterError, match="1002 policy entries"):
            await table.merge_acl(_acl("alice", *(f"Topic:t{n}" for n in range(1000))))

    run(scenario())


class FullDisk(Files):
    """Takes nothing under this name."""

    name = ""

    def sync(self, fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if self.name and path.endswith(f"/{self.name}.json.tmp"):
            raise OSError(errno.ENOSPC, "No space left on device")


def test_a_change_that_the_disk_refuses_has_not_happened(tmp_path: Path) -> None:
    async def scenario() -> None:
        files = FullDisk()
        table = await _filled(tmp_path, files=files)
        users, acls, revision = dict(table.users()), dict(table.acls()), table.revision
        files.name = "users"
        with pytest.raises(DiskFullError, match=r"users\.json cannot be written: No space left"):
            await table.create_user(User("bob", "p"))
        with pytest.raises(DiskFullError):
            await table.change_user("alice", lambda user: User("alice", "new"))
        files.name = "acls"
        for change in (
            table.merge_acl(_acl("alice", "Topic:b")),
            table.delete_acl("alice", PolicyType.CUSTOM, None),
            table.delete_user("alice"),
        ):
            with pytest.raises(DiskFullError, match=r"acls\.json cannot be written"):
                await change
        assert (table.users(), table.acls(), table.revision) == (users, acls, revision)
        # Its policies are gone, the user is not: memory says what the disk says.
        files.name = "users"
        with pytest.raises(DiskFullError):
            await table.delete_user("alice")
        again = _opened(tmp_path)
        assert (again.users(), again.acls()) == (table.users(), table.acls()) == (users, {})
        files.name = ""
        await table.delete_user("alice")
        assert _opened(tmp_path).users() == {"admin": ADMIN}

    run(scenario())


def _states(disk: RecordedDisk, root: Path) -> list[tuple[int, dict[str, User], dict[str, Acl]]]:
    """The table after each change, with the number of operations by then."""
    found: list[tuple[int, dict[str, User], dict[str, Acl]]] = [(0, {}, {})]

    async def scenario() -> None:
        table = _opened(root / "config", files=disk)
        changes: list[Callable[[], Any]] = [
            lambda: table.create_user(ADMIN),
            lambda: table.create_user(ALICE),
            lambda: table.merge_acl(_acl("alice", "Topic:a", "Group:g*")),
            lambda: table.delete_user("alice"),
            lambda: table.create_user(User("alice", "other")),
        ]
        for change in changes:
            await change()
            found.append((disk.now, dict(table.users()), dict(table.acls())))

    run(scenario())
    return found


def test_a_crash_at_any_moment_leaves_the_last_change_or_the_one_before(tmp_path: Path) -> None:
    disk = RecordedDisk(tmp_path / "live")
    states = _states(disk, tmp_path / "live")
    last = states[-1][0]
    for moment in range(last + 1):
        for seed in range(3):
            folder = tmp_path / f"{moment}-{seed}"
            disk.power_lost(moment, folder, seed)
            table = _opened(folder / "config")
            done = max(number for number, (at, *_) in enumerate(states) if at <= moment)
            allowed = [states[number][1:] for number in (done, done + 1) if number < len(states)]
            if done + 1 < len(states) and "alice" not in states[done + 1][1]:
                allowed.append((states[done][1], {}))  # a user who is being deleted loses the policies first
            assert (table.users(), table.acls()) in allowed, (moment, seed)


def test_a_copied_table_is_whole_and_mixes_no_users_whenever_a_crash_comes(tmp_path: Path) -> None:
    disk = RecordedDisk(tmp_path / "live")
    bob, other = User("bob", "secret-c"), User("alice", "another secret")
    before = {"admin": ADMIN, "alice": ALICE}, {"alice": _acl("alice", "Topic:a", "Group:g*")}
    after = (
        {"admin": ADMIN, "alice": other, "bob": bob},
        {"alice": _acl("alice", "*"), "bob": _acl("bob", "Topic:b"), "admin": _acl("admin", "*")},
    )

    async def scenario() -> int:
        table = await _filled(tmp_path / "live" / "config", files=disk)
        begun, revision, version = disk.now, table.revision, table.version
        assert await table.replace(*after)
        assert (table.users(), table.acls()) == after
        assert table.revision == revision + 1 and table.version != version
        assert not await table.replace(dict(after[0]), dict(after[1])), "equal tables are not written"
        assert table.revision == revision + 1
        return begun

    begun = run(scenario())
    seen = set()
    for moment in range(begun, disk.now + 1):
        for seed in range(4):
            folder = tmp_path / f"{moment}-{seed}"
            disk.power_lost(moment, folder, seed)
            table = _opened(folder / "config")
            assert table.users() in (before[0], after[0]), moment
            for name, acl in table.acls().items():
                # Nobody has another user's policies, not even one of the same name.
                which = before if table.user(name) == before[0].get(name) else after
                assert acl == which[1].get(name) or (name == "admin" and acl == after[1][name]), moment
            seen.add(len(table.users()))
    assert seen == {2, 3}
    assert (_opened(tmp_path / "live" / "config").users(), table.acls()) == after


def test_a_table_that_could_not_be_replaced_is_the_old_one_and_is_mended_by_the_next_change(
    tmp_path: Path,
) -> None:
    class Refusing(Files):
        left = 1000

        def sync(self, fd: int) -> None:
            self.left -= 1
            if self.left < 0:
                raise OSError(errno.ENOSPC, "no space")

    async def scenario(allowed: int) -> None:
        disk, folder = Refusing(), tmp_path / f"{allowed}"
        table = await _filled(folder, files=disk)
        users, acls = dict(table.users()), dict(table.acls())
        disk.left = allowed
        with pytest.raises(DiskFullError):
            await table.replace({"admin": ADMIN, "bob": User("bob", "c")}, {"bob": _acl("bob", "*")})
        assert (table.users(), table.acls()) == (users, acls)
        disk.left = 1000
        await table.merge_acl(_acl("admin", "Topic:x"))
        again = _opened(folder)
        assert (again.users(), again.acls()) == (users, acls | {"admin": _acl("admin", "Topic:x")})

    for allowed in range(3):
        run(scenario(allowed))


def test_a_copy_takes_a_user_that_has_come_already_for_done() -> None:
    async def scenario() -> None:
        table = await _filled(None)
        with pytest.raises(NoPermissionError, match="existed"):
            await table.create_user(ALICE)
        table.is_copy = True
        await table.create_user(ALICE)
        with pytest.raises(NoPermissionError, match="existed"):
            await table.create_user(User("alice", "other"))

    run(scenario())


def test_the_loop_turns_while_the_disk_is_slow(tmp_path: Path) -> None:
    class SlowDisk(Files):
        def __init__(self) -> None:
            self.begun, self.go_on = threading.Event(), threading.Event()

        def sync(self, fd: int) -> None:
            self.begun.set()
            assert self.go_on.wait(30)

    async def scenario() -> None:
        disk = SlowDisk()
        table = _opened(tmp_path, files=disk)
        first = asyncio.ensure_future(table.create_user(ADMIN))
        second = asyncio.ensure_future(table.create_user(ALICE))
        await asyncio.to_thread(disk.begun.wait, 30)
        assert table.user("admin") is None  # it counts when it is durable
        first.cancel()  # whoever asked is gone; the change is not
        await asyncio.sleep(0)
        assert not first.done()
        disk.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await first
        await second
        assert table.users() == {"admin": ADMIN, "alice": ALICE}
        assert _opened(tmp_path).users() == table.users()

    run(scenario())
