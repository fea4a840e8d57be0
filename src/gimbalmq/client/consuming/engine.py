"""The parts that work on held queues, put together: one set for each running consumer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gimbalmq.client.consuming.balancer import Balancer, QueueListener
from gimbalmq.client.consuming.duplicates import Duplicates
from gimbalmq.client.consuming.ground import Ground
from gimbalmq.client.consuming.holdings import Holdings
from gimbalmq.client.consuming.leases import Leases
from gimbalmq.client.consuming.puller import Manner, Puller, Worker


class Engine:
    """Reads queues, holds them, shares them out.

    Args:
        worker: works queues off.
        duplicates: looks for messages that come again; None for pull consumers.
        listeners: told when the held queues of a topic are others than before.
        pushes: the consumer calls handlers; else it is asked for messages.
        handler_wait: how long a handler at work may put off the end of a locked queue until a later round.

    Attributes:
        leases: None if queues are not held by lease.
    """

    def __init__(
        self,
        ground: Ground,
        manner: Manner,
        worker: Worker,
        duplicates: Duplicates | None,
        listeners: Sequence[QueueListener],
        *,
        pushes: bool,
        handler_wait: float = 0.0,
    ) -> None:
        self.ground = ground
        self.worker = worker
        self.pushes = pushes
        self.ordered = manner.ordered
        self.puller = Puller(ground, manner, worker, duplicates)
        self.holdings = Holdings(ground, self.puller, duplicates, handler_wait=handler_wait)
        self.balancer = Balancer(
            ground, self.holdings, self.puller, listeners, finds_starts=pushes, drops_idle=pushes
        )
        by_lease = ground.locks is not None and ground.locks.leased
        self.leases = Leases(ground, self.holdings) if by_lease else None
        self._suspended = False
        self._blocks = 0

    def suspend(self) -> None:
        """Neither pulls nor balances; what is cached is still consumed."""
        self._suspended = True
        self._apply_suspension()

    def resume(self) -> None:
        """Goes on; a round is run at once."""
        self._suspended = False
        self._apply_suspension()

    @contextmanager
    def suspension(self) -> Iterator[None]:
        """Suspended for the length of a block; after it, if the user wants it so."""
        self._blocks += 1
        self._apply_suspension()
        try:
            yield
        finally:
            self._blocks -= 1
            self._apply_suspension()

    def _apply_suspension(self) -> None:
        suspended = self._suspended or self._blocks > 0
        self.puller.suspended = self.balancer.suspended = suspended
        if not suspended:
            self.ground.wakes.wake("resumed")
