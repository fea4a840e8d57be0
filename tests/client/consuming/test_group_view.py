"""Members that a restarted master does not know yet."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gimbalmq.client.consuming.group_view import ABSENT_SECONDS, GroupView
from gimbalmq.rpc import groups

MASTER, SLAVE = "10.0.0.1:10911", "10.0.0.2:10911"


class Lists:
    """What each broker lists, and a clock set by hand."""

    def __init__(self) -> None:
        self.listed = {MASTER: ["a", "b"], SLAVE: ["a", "b"]}
        self.asked: list[str] = []
        self.now = 1000.0
        self.client_id = "a"
        self.clock = SimpleNamespace(monotonic=lambda: self.now)

    async def any_broker_of(self, _topic: str) -> str:
        return MASTER

    def replicas_beside(self, _address: str) -> list[str]:
        return [SLAVE]

    async def member_ids(self, _instance: Any, address: str, _group: str, *, timeout: float) -> list[str]:
        del timeout
        self.asked.append(address)
        return self.listed[address]


@pytest.fixture
def lists(monkeypatch: pytest.MonkeyPatch) -> Lists:
    found = Lists()
    monkeypatch.setattr(groups, "member_ids", found.member_ids)
    return found


def view_of(lists: Lists) -> GroupView:
    config = SimpleNamespace(group="g", api_timeout=1.0, member_grace=0.0)
    ground: Any = SimpleNamespace(instance=lists, config=config, events=None, wakes=None)
    return GroupView(ground)


def test_a_member_that_only_a_slave_lists_stays_for_a_minute(lists: Lists) -> None:
    async def scenario() -> None:
        view = view_of(lists)
        assert await view.ask("t") == ["a", "b"]
        assert lists.asked == [MASTER], "nobody is missing: one question is enough"
        lists.listed[MASTER] = ["a"]
        assert await view.ask("t") == ["a", "b"]
        lists.now += ABSENT_SECONDS - 1
        assert await view.ask("t") == ["a", "b"]
        lists.now += 1
        assert await view.ask("t") == ["a"], (
            "a slave that is told of nobody's leaving must not keep it for good"
        )

    asyncio.run(scenario())


def test_a_member_that_no_broker_lists_is_gone_at_once(lists: Lists) -> None:
    async def scenario() -> None:
        view = view_of(lists)
        await view.ask("t")
        lists.listed = {MASTER: ["a"], SLAVE: ["a"]}
        assert await view.ask("t") == ["a"]

    asyncio.run(scenario())


def test_the_minute_begins_anew_if_the_master_listed_it_meanwhile(lists: Lists) -> None:
    async def scenario() -> None:
        view = view_of(lists)
        await view.ask("t")
        for _ in range(3):
            lists.listed[MASTER] = ["a"]
            assert await view.ask("t") == ["a", "b"]
            lists.now += ABSENT_SECONDS - 1
            lists.listed[MASTER] = ["a", "b"]
            assert await view.ask("t") == ["a", "b"]

    asyncio.run(scenario())
