"""Queues that were assigned by hand: a consumer holds exactly these, whoever else reads them."""

from __future__ import annotations

from collections.abc import Iterable

from gimbalmq.client.consuming.engine import Engine
from gimbalmq.client.consuming.held_queue import HeldQueue
from gimbalmq.model.queues import MessageQueue, sort_queues


class Assigned:
    """Makes a consumer hold the queues that were assigned."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._giving_up: dict[MessageQueue, HeldQueue] = {}

    def apply(self) -> list[HeldQueue]:
        """Holds what is assigned, from now on; answers what is still to be given up."""
        ground, holdings = self._engine.ground, self._engine.holdings
        wanted = ground.subscriptions.by_hand or {}
        dropped = []
        for queue, item in list(holdings.table.items()):
            if queue not in wanted and not item.dropped:
                holdings.drop(item, "no longer assigned")
            if item.dropped:
                del holdings.table[queue]
                dropped.append(item)
                self._giving_up[queue] = item
        for queue in sort_queues(wanted):
            if queue not in holdings.table:
                before = self._giving_up.get(queue)
                held = holdings.claim(queue)
                if before is None:
                    ground.offsets.forget(queue)
                else:  # its progress here is newer than the broker's
                    held.position = before.position
                holdings.take(held, held.position, "assigned", unknown=-1)
        return dropped

    async def settle(self, dropped: Iterable[HeldQueue]) -> None:
        """Gives up what is not assigned any more, and has brokers hear of the rest."""
        engine = self._engine
        for item in dropped:
            if item.queue not in engine.holdings.table:
                await engine.holdings.give_up(item)
            self._giving_up.pop(item.queue, None)
        await engine.ground.announcer.refresh_routes()
        await engine.ground.announcer.announce()
