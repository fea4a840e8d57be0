"""What the pages decide without a browser: who may do what, where a login leads."""

from __future__ import annotations

from typing import Any

import pytest

from gimbalmq.errors import ConfigError, ConnectError
from tests.support import run

pytest.importorskip("nicegui", reason="the extra gimbalmq[dashboard] is not installed")

from gimbalmq.dashboard.accounts import WrongLoginError
from gimbalmq.dashboard.messages import redrive
from gimbalmq.dashboard.parts import link_to
from gimbalmq.dashboard.site import Door, Site, Viewer


def site(**options: Any) -> Site:
    return Site("127.0.0.1:1", {"api_timeout": 1.0, "connect_timeout": 1.0}, **options)


def test_read_only_stands_before_the_redrive_itself() -> None:
    async def work() -> None:
        with pytest.raises(PermissionError, match="read-only"):
            await redrive(site(read_only=True).viewer_of(None), "billing", to_topic=False)
        with pytest.raises(ConnectError):
            await redrive(site().viewer_of(None), "billing", to_topic=False)

    run(work())


def test_only_the_right_name_with_the_right_password_is_known() -> None:
    guarded = site(door=Door.PASSWORD, user="admin", password="sécret")
    assert guarded.knows("admin", "sécret")
    assert not guarded.knows("admin", "secret")
    assert not guarded.knows("Admin", "sécret")
    assert not guarded.knows("admin", "")
    assert not site(door=Door.PASSWORD).knows("admin", "")


def test_a_page_whose_login_has_ended_asks_nothing_more() -> None:
    """Its timers and buttons live on in the server until the browser has gone elsewhere."""

    async def work() -> None:
        guarded = site(door=Door.PASSWORD, password="x")
        with pytest.raises(WrongLoginError):
            await guarded.log_in("admin", "y")
        session = await guarded.log_in("admin", "x")
        viewer = guarded.viewer_of(session.token)
        assert viewer.is_there and viewer.user == "admin" and viewer.admin and viewer.observer
        guarded.sessions.end(session)
        assert not viewer.is_there
        for asked in (lambda: viewer.admin, lambda: viewer.observer, viewer.must_be_writable):
            with pytest.raises(PermissionError, match="has ended"):
                asked()
        with pytest.raises(PermissionError, match="has ended"):
            await redrive(viewer, "billing", to_topic=False)
        for nobody in (None, "", session.token, "made up"):
            assert not guarded.viewer_of(nobody).is_there
        await guarded.close()

    run(work())


def test_without_a_login_no_key_is_used() -> None:
    """Whoever reaches the port would act with the rights of whoever started the dashboard."""
    keys = {"access_key": "root", "secret_key": "hidden"}
    assert Site("127.0.0.1:1", keys).options == {}
    asked_by_all = Site("127.0.0.1:1", keys, door=Door.PASSWORD, password="x")
    assert asked_by_all.house is not None and asked_by_all.options == keys
    assert Site("127.0.0.1:1", keys, door=Door.USERS).house is None


def test_problems_are_told_and_bugs_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def refuse() -> None:
        raise ConfigError("Join", "a", "it is a member already")

    async def stumble() -> None:
        raise KeyError("a bug")

    async def do_well() -> None:
        pass

    async def work() -> None:
        viewer = Viewer(site(), None)
        assert "a member already" in await viewer.problem_of(refuse)
        assert not caplog.records
        assert await viewer.problem_of(stumble) == "KeyError: 'a bug'"
        assert "nobody expected" in caplog.text
        assert await viewer.problem_of(do_well) == ""

    run(work())


def test_links_stay_within_the_site() -> None:
    assert link_to("group", "//example.org") == "/group/%2F%2Fexample.org"
    assert link_to("topic", "%RETRY%g") == "/topic/%25RETRY%25g"
