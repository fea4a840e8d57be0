"""Worlds of replicas notice lines of the product that are broken on purpose, each within some dozens of worlds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partialmethod

import pytest

from gimbalmq.broker.replication import agreement
from gimbalmq.broker.replication.acks import Need, ReplicaAcks
from gimbalmq.broker.replication.agreement import Agreement, Verdict
from gimbalmq.broker.replication.doubt import Doubt
from gimbalmq.broker.replication.sync_set import SyncSet
from gimbalmq.broker.replication.wholeness import Wholeness
from gimbalmq.rpc.call import Caller
from gimbalmq.rpc.controller import Standing
from gimbalmq.store.message_store import MessageStore
from tests.sim.replica_promises import REPLICATED
from tests.sim.replica_world import run_replicas

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

MOST_SEEDS = 100

Break = Callable[[pytest.MonkeyPatch], None]


def a_slave_counts_twice(patch: pytest.MonkeyPatch) -> None:
    """An old connection of a slave counts besides its new one."""

    def reached(self: ReplicaAcks, need: Need) -> int:
        assert isinstance(need, int)
        acked = sorted((copy.acked for copy in self._copies), reverse=True)
        return acked[need - 1] if len(acked) >= need else -1

    patch.setattr(ReplicaAcks, "reached", reached)


def who_joins_does_not_count_yet(patch: pytest.MonkeyPatch) -> None:
    """Sends do not wait for a slave that the controller is about to be asked for."""
    patch.setattr(SyncSet, "counted", property(lambda self: self.members | self._asked))


def a_question_without_an_answer_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SyncSet, "asking", lambda self, wished: self._asked)


def a_loss_of_power_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    """A broker that lost power takes part in elections as if it had all that it ever had."""
    start = Wholeness.__init__

    def closed(self: Wholeness, *args: object, was_closed: bool, **options: object) -> None:
        start(self, *args, was_closed=True, **options)  # type: ignore[arg-type]

    patch.setattr(Wholeness, "__init__", closed)


def who_is_in_doubt_leads(patch: pytest.MonkeyPatch) -> None:
    """It sends no heartbeats until it has a role, and then nobody is asked."""

    async def end(self: Doubt, own_id: int) -> Standing:
        standing, _ = await self._known()
        await self._wholeness.is_whole()
        return standing

    patch.setattr(Doubt, "end", end)


def last_records_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    async def compare(store: MessageStore, caller: Caller, master: str) -> Agreement:
        begin, end = await agreement.bounds(caller, master)
        ours = store.received_offset
        empty = store.last_record() is None and ours == 0
        return Agreement(Verdict.EMPTY if empty else Verdict.CONTINUES, ours, begin, end)

    patch.setattr(agreement, "compare", compare)


def a_set_of_one_suffices(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SyncSet, "_suffices", partialmethod(lambda self: True))


@pytest.mark.parametrize(
    ("broken", "worlds"),
    [
        (a_slave_counts_twice, ["by hand, all of three"]),
        (who_joins_does_not_count_yet, ["all of three", "all of two"]),
        (a_question_without_an_answer_is_forgotten, ["all of three", "all of two"]),
        (a_loss_of_power_is_not_noticed, ["all of three, dark"]),
        (who_is_in_doubt_leads, ["all of three, dark"]),
        (last_records_are_not_compared, ["by hand", "by hand, two"]),
        (a_set_of_one_suffices, ["all of three", "all of two"]),
    ],
)
def test_broken_lines_are_noticed(
    broken: Break, worlds: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    assert any(
        run_replicas(seed, REPLICATED[name]).problems for seed in range(1, MOST_SEEDS + 1) for name in worlds
    )
