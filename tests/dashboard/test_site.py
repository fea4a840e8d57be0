"""What the pages decide without a browser: who may do what, where a login leads."""

from __future__ import annotations

import pytest

from gimbalmq.errors import ConfigError, ConnectError
from tests.support import run

pytest.importorskip("nicegui", reason="the extra gimbalmq[dashboard] is not installed")

from gimbalmq.admin.admin import Admin
from gimbalmq.dashboard.messages import redrive
from gimbalmq.dashboard.observer import Observer
from gimbalmq.dashboard.site import MOST_LOGINS, Site, link_to, problem_of


def site(**options: object) -> Site:
    admin = Admin("127.0.0.1:1", api_timeout=1.0, connect_timeout=1.0)
    return Site(admin, Observer(admin), "127.0.0.1:1", **options)  # type: ignore[arg-type]


def test_read_only_stands_before_the_redrive_itself() -> None:
    async def work() -> None:
        with pytest.raises(PermissionError, match="read-only"):
            await redrive(site(read_only=True), "billing", to_topic=False)
        with pytest.raises(ConnectError):
            await redrive(site(), "billing", to_topic=False)

    run(work())


def test_only_the_right_name_with_the_right_password_is_known() -> None:
    guarded = site(user="admin", password="sécret")
    assert guarded.knows("admin", "sécret")
    assert not guarded.knows("admin", "secret")
    assert not guarded.knows("Admin", "sécret")
    assert not guarded.knows("admin", "")


def test_logins_are_bounded_and_the_oldest_go_first() -> None:
    guarded = site(password="x")
    first = guarded.new_login()
    tokens = [guarded.new_login() for _ in range(MOST_LOGINS)]
    assert first not in guarded.logins
    assert len(guarded.logins) == MOST_LOGINS
    assert tokens[-1] in guarded.logins
    assert len(set(tokens)) == MOST_LOGINS


def test_problems_are_told_and_bugs_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def refuse() -> None:
        raise ConfigError("Join", "a", "it is a member already")

    async def stumble() -> None:
        raise KeyError("a bug")

    async def do_well() -> None:
        pass

    async def work() -> None:
        assert "a member already" in await problem_of(refuse)
        assert not caplog.records
        assert await problem_of(stumble) == "KeyError: 'a bug'"
        assert "nobody expected" in caplog.text
        assert await problem_of(do_well) == ""

    run(work())


def test_links_stay_within_the_site() -> None:
    assert link_to("group", "//example.org") == "/group/%2F%2Fexample.org"
    assert link_to("topic", "%RETRY%g") == "/topic/%25RETRY%25g"
