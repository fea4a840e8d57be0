"""When the consumers of a client instance look at their share of the queues (Java: RebalanceService)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Protocol
from weakref import WeakKeyDictionary

from gimbalmq._clock import Clock
from gimbalmq.client.consumer_config import ConsumerConfig
from gimbalmq.client.instance import ClientInstance
from gimbalmq.transport.tasks import Tasks, ends_task

log = logging.getLogger(__name__)


class Balanced(Protocol):
    """Whose rounds are called: a ``Balancer``."""

    @property
    def group(self) -> str: ...
    @property
    def config(self) -> ConsumerConfig: ...

    async def run(self, reason: str) -> bool: ...


class Rounds:
    """Calls the rounds of every consumer of a client instance: by timer, and at once if something changed."""

    def __init__(self, tasks: Tasks, clock: Clock) -> None:
        self._tasks = tasks
        self._clock = clock
        self._balancers: list[Balanced] = []
        self._woken = asyncio.Event()
        self._reason = ""
        self._last_end: float | None = None
        self._started = False

    @staticmethod
    def of(instance: ClientInstance) -> Rounds:
        """The instance's rounds; the first to ask makes them."""
        found = _rounds.get(instance)
        if found is None:
            found = _rounds[instance] = Rounds(instance.tasks, instance.clock)
        return found

    def join(self, balancer: Balanced) -> None:
        self._balancers.append(balancer)
        if not self._started:
            self._started = True
            self._tasks.spawn(self._run(), "rebalance")
        else:
            self.wake(f"a consumer of group {balancer.group} joined")

    def leave(self, balancer: Balanced) -> None:
        if balancer in self._balancers:
            self._balancers.remove(balancer)

    def wake(self, reason: str) -> None:
        """A round of all consumers as soon as possible."""
        if not self._woken.is_set():
            self._reason = reason
            self._woken.set()

    async def _run(self) -> None:
        while True:
            configs = [balancer.config for balancer in self._balancers]
            with contextlib.suppress(TimeoutError):
                # Not wait_for: it loses a cancellation that comes together with the event.
                async with asyncio.timeout(min((one.rebalance_interval for one in configs), default=20.0)):
                    await self._woken.wait()
            configs = [balancer.config for balancer in self._balancers]
            pause = max((one.rebalance_min_interval for one in configs), default=0.0)
            if self._last_end is not None and self._last_end + pause > self._clock.monotonic():
                await asyncio.sleep(self._last_end + pause - self._clock.monotonic())
            reason = self._reason if self._woken.is_set() else "timer"
            self._woken.clear()
            self._reason = ""
            await self.round(reason)
            self._last_end = self._clock.monotonic()

    async def round(self, reason: str) -> None:
        """Every consumer's round; one that fails does not stop the others."""
        for balancer in list(self._balancers):
            try:
                await balancer.run(reason)
            except AssertionError:
                raise
            except BaseException as error:
                if ends_task(error):
                    raise
                log.exception("rebalance of group %s failed; the next round tries again", balancer.group)


_rounds: WeakKeyDictionary[ClientInstance, Rounds] = WeakKeyDictionary()
