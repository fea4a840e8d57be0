"""The blocking admin object has every method of the async one."""

from __future__ import annotations

import inspect

import pytest

from gimbalmq import Message, sync
from gimbalmq.admin.admin import Admin
from gimbalmq.testing import LocalCluster

PARTS = ("clusters", "replication", "topics", "groups", "messages", "dead_letters")
NOT_FOR_BLOCKING_CALLERS = {"caller", "close", "producer"}


@pytest.mark.parametrize("part", PARTS)
def test_every_method_has_its_blocking_twin(part: str) -> None:
    def public(item: object) -> set[str]:
        return {name for name, _ in inspect.getmembers(item, callable) if not name.startswith("_")}

    ours = public(getattr(sync.Admin("127.0.0.1:1"), part))
    assert ours == public(getattr(Admin("127.0.0.1:1"), part)) - NOT_FOR_BLOCKING_CALLERS


def test_topics_are_made_and_messages_read_without_a_loop() -> None:
    with LocalCluster.in_thread() as cluster, sync.Admin(cluster.namesrv) as admin:
        admin.topics.create("orders", queues=2)
        for index in range(4):
            admin.messages.send(Message("orders", str(index)))
        assert sorted(view.body for view in admin.messages.read("orders")) == [b"0", b"1", b"2", b"3"]
        assert sum(queue.count for queue in admin.topics.stats("orders")) == 4
