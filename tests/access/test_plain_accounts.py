"""Accounts that a server keeps: which files count, what a look at them changes, and what requests write."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from functools import partial
from pathlib import Path

import pytest

from gimbalmq.access.access import Access
from gimbalmq.access.config import AccessConfig
from gimbalmq.access.plain_accounts import Place, PlainAccounts
from gimbalmq.access.plain_acl import Account, Perm
from gimbalmq.access.plain_addresses import read_pattern
from gimbalmq.errors import ConfigError
from gimbalmq.store.files import Files
from tests.access.test_plain_acl import SAMPLE, SECRET
from tests.support import run


def one(key: str = "somebody", *lines: str, head: str = "") -> str:
    """The text of a file with one account."""
    return "\n".join(
        (head, "accounts:", f"- accessKey: {key}", f"  secretKey: {SECRET}", *(f"  {line}" for line in lines))
    )


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    folder = tmp_path / "conf"
    folder.mkdir()
    return folder


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def _made(key: str, before: Account | None) -> Account:
    return before or Account(key, SECRET)


# -- files -----------------------------------------------------------------------------------------------------------


def test_a_place_is_a_folder_like_apaches_conf_or_the_main_file_itself(conf: Path) -> None:
    assert Place.of(conf) == Place(conf / "plain_acl.yml", conf / "acl")
    assert Place.of(conf / "other.yml") == Place(conf / "other.yml", conf / "acl")


def test_accounts_are_looked_for_in_the_named_place_then_in_apaches_home_then_beside_the_data(
    tmp_path: Path,
) -> None:
    named, home, data = (tmp_path / name for name in ("named", "home", "data"))
    for key, folder in (("named000", named), ("home0000", home / "conf"), ("data0000", data / "conf")):
        put(folder / "plain_acl.yml", one(key))

    def found(**options: str) -> list[str]:
        access = Access(AccessConfig(acl_enable=True, **options), data / "config")  # type: ignore[arg-type]
        access.load()
        assert access.accounts is not None
        return [account.access_key for account in access.accounts.accounts()]

    assert found(acl_config_path=str(named), rocketmq_home=str(home)) == ["named000"]
    assert found(acl_config_path=str(named / "plain_acl.yml")) == ["named000"]
    assert found(rocketmq_home=str(home)) == ["home0000"]
    assert found() == ["data0000"]
    with pytest.raises(ConfigError, match="aclConfigPath"):
        Access(AccessConfig(acl_enable=True), None).load()


def test_every_yaml_file_below_acl_counts_and_the_main_file_is_the_last(conf: Path) -> None:
    for name in (
        "plain_acl.yml",
        "acl/b.yaml",
        "acl/a/c.yml",
        "acl/d.txt",
        "acl/.hidden/e.yml",
        "acl/.f.yml",
    ):
        put(conf / name, one())
    assert Place.of(conf).paths() == [conf / "acl/a/c.yml", conf / "acl/b.yaml", conf / "plain_acl.yml"]


def test_the_first_file_with_a_key_counts_and_the_log_says_so(
    conf: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(conf / "plain_acl.yml", one("somebody", "admin: true", head="globalWhiteRemoteAddresses: [1.1.1.1]"))
    put(
        conf / "acl/a.yml",
        one("somebody", head="globalWhiteRemoteAddresses: [2.2.2.2]") + "\n" + one("twice00")[10:],
    )
    accounts = PlainAccounts(conf)
    user = accounts.user("somebody")
    assert user is not None and not user.is_super
    assert f"{conf}/plain_acl.yml: account somebody counts as {conf}/acl/a.yml has it" in caplog.text
    # Lists of all files are joined.
    assert accounts.trusts("1.1.1.1", None) and accounts.trusts("2.2.2.2", None)


def test_without_any_file_nobody_is_known_and_the_log_says_so(
    conf: Path, caplog: pytest.LogCaptureFixture
) -> None:
    accounts = PlainAccounts(conf)
    assert accounts.accounts() == [] and not accounts.trusts("127.0.0.1", None)
    assert f"neither {conf}/plain_acl.yml nor a file below" in caplog.text


def test_a_broken_file_refuses_the_start(conf: Path) -> None:
    put(conf / "plain_acl.yml", one("somebody", "defaultTopicPerm: ALLOW"))
    with pytest.raises(ConfigError, match=r"defaultTopicPerm of .*plain_acl\.yml line 5='ALLOW'"):
        PlainAccounts(conf)


# -- white lists (steps 1 and 4 of 4.x's order of checks) ------------------------------------------------------------


def test_white_lists_trust_addresses_and_the_log_says_so_loudly(
    conf: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (conf / "plain_acl.yml").write_bytes(SAMPLE)
    accounts = PlainAccounts(conf)
    assert accounts.trusts("10.10.103.9", None)  # 1: no key needed
    assert accounts.trusts("10.10.103.9", "RocketMQ") and accounts.trusts("10.10.103.9", "nobody-known")
    assert accounts.trusts("192.168.1.9", "rocketmq2")  # 4: the account's own list, no signature needed
    assert not accounts.trusts("192.168.1.9", None)
    assert not accounts.trusts("192.168.1.9", "RocketMQ")
    assert not accounts.trusts("192.168.1.9", "nobody-known")
    assert not accounts.trusts("192.168.2.9", "rocketmq2")
    assert "requests from 10.10.103.*, 192.168.0.* are allowed without a key" in caplog.text
    assert "requests from 192.168.1.* as rocketmq2 are allowed without a signature" in caplog.text


def test_what_is_remembered_of_addresses_is_bounded(conf: Path) -> None:
    put(conf / "plain_acl.yml", one("somebody", "whiteRemoteAddress: 10.0.0.*"))
    accounts = PlainAccounts(conf)
    for number in range(10_000):
        accounts.trusts(f"1.1.{number >> 8}.{number & 255}", f"stranger{number}")
    assert len(accounts._trusted) <= 4096
    assert accounts.trusts("10.0.0.1", "somebody")


def test_a_white_list_that_is_long_to_compare_is_refused(conf: Path) -> None:
    addresses = ",".join(f"10.0.{number >> 8}.{number & 255}" for number in range(300))
    lines = "\n".join(f"- {addresses}" for _ in range(40))
    put(conf / "plain_acl.yml", f"globalWhiteRemoteAddresses:\n{lines}\n")
    with pytest.raises(ConfigError, match="12000 addresses"):
        PlainAccounts(conf)


# -- looks at the files ----------------------------------------------------------------------------------------------


def test_a_change_counts_with_the_next_look_and_a_touched_file_changes_nothing(conf: Path) -> None:
    main = put(conf / "plain_acl.yml", one("somebody"))

    async def work() -> None:
        accounts = PlainAccounts(conf)
        before = accounts.revision
        os.utime(main, (1, 1))
        assert not await accounts.refresh() and accounts.revision == before
        times = main.stat()
        put(main, one("somebody", "admin: true"))
        # A copy that keeps times, and a disk whose times are coarse, look as if nothing had changed.
        os.utime(main, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert await accounts.refresh() and accounts.revision > before
        user = accounts.user("somebody")
        assert user is not None and user.is_super

    run(work())


def test_files_may_come_and_go(conf: Path) -> None:
    put(conf / "plain_acl.yml", one("somebody"))

    async def work() -> None:
        accounts = PlainAccounts(conf)
        added = put(conf / "acl/more.yml", one("another0", "whiteRemoteAddress: 9.9.9.9"))
        assert await accounts.refresh()
        assert accounts.user("another0") is not None and accounts.trusts("9.9.9.9", "another0")
        added.unlink()
        assert await accounts.refresh()
        assert accounts.user("another0") is None and accounts.acl("another0") is None
        assert not accounts.trusts("9.9.9.9", "another0")
        (conf / "plain_acl.yml").unlink()
        assert await accounts.refresh() and accounts.accounts() == []

    run(work())


@pytest.mark.parametrize("text", ["accounts: [", "", "# gone\n", "accounts: [{accessKey: short}]"])
def test_a_broken_or_emptied_file_leaves_everything_as_it_was_and_is_told_once(
    conf: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    main = put(conf / "plain_acl.yml", one("somebody"))
    more = put(conf / "acl/more.yml", one("another0"))

    async def work() -> None:
        accounts = PlainAccounts(conf)
        before = accounts.revision
        put(main, text)
        put(more, one("another0", "admin: true"))
        for _ in range(3):
            assert not await accounts.refresh()
        assert accounts.revision == before
        assert accounts.user("somebody") is not None
        user = accounts.user("another0")
        assert user is not None and not user.is_super
        assert caplog.text.count("the old ones stay") == 1
        put(main, one("somebody", "admin: true"))
        assert await accounts.refresh()
        put(main, text)
        assert not await accounts.refresh()
        assert caplog.text.count("the old ones stay") == 2

    run(work())


def test_a_file_that_cannot_be_read_leaves_everything_as_it_was(conf: Path) -> None:
    main = put(conf / "plain_acl.yml", one("somebody"))

    async def work() -> None:
        accounts = PlainAccounts(conf)
        main.unlink()
        main.mkdir()
        assert not await accounts.refresh()
        assert accounts.user("somebody") is not None

    run(work())


def test_a_look_does_not_hold_the_loop(conf: Path) -> None:
    rights = "\n".join(f"  - topic{number}=PUB" for number in range(2_000))
    main = put(conf / "plain_acl.yml", one("somebody") + f"\n  topicPerms:\n{rights}\n")

    async def work() -> None:
        accounts = PlainAccounts(conf)
        put(main, one("somebody", "admin: false") + f"\n  topicPerms:\n{rights}\n")
        look = asyncio.create_task(accounts.refresh())
        turns = 0
        while not look.done():
            turns += 1
            await asyncio.sleep(0)
        assert look.result() and turns > 3

    run(work())


# -- changes ---------------------------------------------------------------------------------------------------------


def test_a_new_account_goes_to_the_main_file_and_an_old_one_stays_in_its_file(conf: Path) -> None:
    main = put(conf / "plain_acl.yml", f"# a comment\n{one('somebody')}\n")
    more = put(conf / "acl/more.yml", one("another0"))
    os.chmod(main, 0o644)

    async def work() -> None:
        accounts = PlainAccounts(conf)
        untouched = more.read_bytes()
        before = accounts.revision
        await accounts.put("newcomer", lambda old: Account("newcomer", SECRET, default_topic=Perm.PUB))
        assert accounts.revision > before
        assert accounts.user("newcomer") is not None
        assert more.read_bytes() == untouched
        assert stat.S_IMODE(main.stat().st_mode) == 0o600
        assert "# a comment" not in main.read_text()
        assert sorted(path.name for path in conf.iterdir()) == ["acl", "plain_acl.yml"]
        await accounts.put("another0", lambda old: Account("another0", SECRET, admin=True))
        assert "admin: true" in more.read_text()
        assert accounts.versions()[str(main)][0] == 1 and accounts.versions()[str(more)][0] == 1
        # The files are the truth: another server reads the same.
        assert {found.access_key for found in PlainAccounts(conf).accounts()} == {
            "somebody",
            "another0",
            "newcomer",
        }
        assert not await accounts.refresh()

    run(work())


def test_without_files_the_main_file_is_made(conf: Path) -> None:
    async def work() -> None:
        accounts = PlainAccounts(conf / "deep" / "conf")
        await accounts.put("newcomer", lambda old: Account("newcomer", SECRET))
        main = conf / "deep" / "conf" / "plain_acl.yml"
        assert stat.S_IMODE(main.stat().st_mode) == 0o600
        assert accounts.user("newcomer") is not None

    run(work())


def test_an_edit_that_no_look_has_seen_is_not_lost(conf: Path) -> None:
    main = put(conf / "plain_acl.yml", one("somebody"))

    async def work() -> None:
        accounts = PlainAccounts(conf)
        put(main, one("edited00"))
        await accounts.put("newcomer", lambda old: Account("newcomer", SECRET))
        assert [found.access_key for found in accounts.accounts()] == ["edited00", "newcomer"]

    run(work())


def test_a_removed_account_goes_from_every_file(conf: Path) -> None:
    put(conf / "plain_acl.yml", one("somebody"))
    put(conf / "acl/more.yml", one("somebody"))

    async def work() -> None:
        accounts = PlainAccounts(conf)
        assert await accounts.remove("somebody")
        assert accounts.user("somebody") is None and PlainAccounts(conf).user("somebody") is None
        assert not await accounts.remove("somebody")

    run(work())


def test_the_global_white_list_of_a_file_is_replaced(conf: Path) -> None:
    put(conf / "plain_acl.yml", one("somebody", head="globalWhiteRemoteAddresses: [1.1.1.1]"))
    more = put(conf / "acl/more.yml", one("another0", head="globalWhiteRemoteAddresses: [2.2.2.2]"))

    async def work() -> None:
        accounts = PlainAccounts(conf)
        assert accounts.trusts("1.1.1.1", None)
        await accounts.set_white((read_pattern("3.3.3.*"),))
        assert accounts.white_texts() == ["2.2.2.2", "3.3.3.*"]
        assert accounts.trusts("3.3.3.3", None) and not accounts.trusts("1.1.1.1", None)
        await accounts.set_white((), more.parent / ".." / "acl" / "more.yml")
        assert accounts.white_texts() == ["3.3.3.*"]
        assert accounts.user("another0") is not None and accounts.user("somebody") is not None
        for path in (conf / "other.yml", Path("/etc/passwd"), conf / "acl"):
            with pytest.raises(ConfigError, match="aclFileFullPath"):
                await accounts.set_white((), path)

    run(work())


def test_a_broken_file_is_not_written_over(conf: Path) -> None:
    main = put(conf / "plain_acl.yml", one("somebody"))

    async def work() -> None:
        accounts = PlainAccounts(conf)
        put(main, "accounts: [")
        with pytest.raises(ConfigError, match=r"plain_acl\.yml"):
            await accounts.put("newcomer", lambda old: Account("newcomer", SECRET))
        assert main.read_text() == "accounts: ["
        assert accounts.user("somebody") is not None and accounts.user("newcomer") is None

    run(work())


class FullDisk(Files):
    def sync(self, fd: int) -> None:
        raise OSError(28, "No space left on device")


def test_a_change_that_the_disk_refuses_has_not_happened(conf: Path) -> None:
    main = put(conf / "plain_acl.yml", one("somebody"))
    before = main.read_bytes()

    async def work() -> None:
        accounts = PlainAccounts(conf, files=FullDisk())
        with pytest.raises(OSError, match="No space left"):
            await accounts.put("newcomer", lambda old: Account("newcomer", SECRET))
        assert main.read_bytes() == before and accounts.user("newcomer") is None
        assert PlainAccounts(conf).user("newcomer") is None

    run(work())


def test_a_link_is_written_through(conf: Path, tmp_path: Path) -> None:
    real = put(tmp_path / "elsewhere" / "real.yml", one("somebody"))
    (conf / "plain_acl.yml").symlink_to(real)

    async def work() -> None:
        accounts = PlainAccounts(conf)
        await accounts.put("newcomer", lambda old: Account("newcomer", SECRET))
        assert (conf / "plain_acl.yml").is_symlink() and "newcomer" in real.read_text()

    run(work())


def test_changes_at_once_follow_one_another_and_a_cancelled_caller_stops_none(conf: Path) -> None:
    put(conf / "plain_acl.yml", one("somebody"))

    async def work() -> None:
        accounts = PlainAccounts(conf)
        adds = [
            asyncio.create_task(accounts.put(key, partial(_made, key)))
            for key in (f"account{number}" for number in range(8))
        ]
        await asyncio.sleep(0)
        adds[0].cancel()
        await asyncio.gather(*adds, return_exceptions=True)
        assert {f"account{n}" for n in range(8)} <= {found.access_key for found in accounts.accounts()}
        assert accounts.versions()[str(conf / "plain_acl.yml")][0] == 8

    run(work())


def test_no_log_line_tells_a_secret(conf: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    main = put(conf / "plain_acl.yml", one("somebody", "whiteRemoteAddress: 1.2.3.4"))

    async def work() -> None:
        accounts = PlainAccounts(conf)
        put(main, one("somebody") + "\n  x: [\n")
        await accounts.refresh()
        put(main, one("somebody", "admin: maybe"))
        await accounts.refresh()

    run(work())
    assert caplog.text and SECRET not in caplog.text
