"""One attempt to send: its frame, its way out, and what comes of it; and how many sends may be under way."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import msgspec

from gimbalmq.client.config import ProducerConfig
from gimbalmq.client.instance import ClientInstance
from gimbalmq.client.sending.frames import SendFrames, read_answer
from gimbalmq.client.sending.prepare import Prepared
from gimbalmq.client.sending.rules import Rules
from gimbalmq.client.sending.targets import Targets
from gimbalmq.errors import (
    RequestTimeoutError,
    ResponseError,
    RocketMQError,
    RouteError,
    StateError,
    TopicRouteNotFoundError,
    TransportError,
)
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.results import SendResult
from gimbalmq.protocol.command import ONEWAY_FLAG, RemotingCommand
from gimbalmq.transport.channel import Channel

TICK = 0.001
"""Less than this is no time left: Java counts in milliseconds."""


class Attempt(msgspec.Struct, eq=False):
    """One attempt on its way: hears from the channel what came of it and tells its future.

    Attributes:
        rules: of a send that nobody awaits. It counts as under way by itself, and is sent again by these rules if
            no answer comes. None for one attempt of a loop that awaits it.
    """

    attempts: Attempts
    prepared: Prepared
    chosen: MessageQueue
    address: str
    limit: float
    started: float
    future: asyncio.Future[SendResult]
    rules: Rules | None

    def done(self) -> bool:
        return self.rules is None and self.future.done()

    def set_result(self, answer: RemotingCommand) -> None:
        try:
            result = read_answer(self.prepared, self.chosen, answer, self.address)
        except RocketMQError as refused:
            self.set_exception(refused)
            return
        attempts = self.attempts
        if self.rules is not None:
            attempts.landed()
        if attempts.records:
            attempts.targets.record(self.chosen.broker_name, self.started, failed=False)
        if not self.future.done():
            self.future.set_result(result)

    def set_exception(self, error: RocketMQError) -> None:
        attempts, rules = self.attempts, self.rules
        if rules is not None:
            attempts.landed()
        unanswered = isinstance(error, TransportError)
        attempts.targets.record(self.chosen.broker_name, self.started, failed=True, reachable=unanswered)
        if self.future.done():
            return
        if rules is not None and rules.times and unanswered and not attempts.closed:
            attempts.lost(self, error)
        else:
            self.future.set_exception(error)


class Attempts:
    """The attempts of one sender.

    Args:
        lost: called with each attempt that has rules and got no answer; it settles the attempt's future.

    Attributes:
        count: sends under way; one may take several attempts. Who sends counts it, and calls ``landed``.
        most: how many there may be.
    """

    def __init__(
        self,
        instance: ClientInstance,
        config: ProducerConfig,
        targets: Targets,
        lost: Callable[[Attempt, RocketMQError], None],
    ) -> None:
        self._instance = instance
        self._group = config.group
        self._frame = SendFrames(config, instance.signer).frame
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.targets = targets
        self.records = targets.records
        self.lost = lost
        self.count = 0
        self.most = config.max_in_flight
        self.closed = False

    def close(self) -> None:
        """Sends that wait for their turn fail; what is in the air ends with its connection."""
        self.closed = True
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(
                    StateError(f"producer {self._group} was closed; this message was not sent")
                )
        self._waiting.clear()

    # -- turns --------------------------------------------------------------------------

    async def wait_turn(self, limit: float | None) -> None:
        """Waits until fewer than ``most`` sends are under way; then the caller's is counted."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(limit):
                await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.landed()  # the turn came in the same moment: it is the next one's
            if isinstance(error, TimeoutError):
                raise RequestTimeoutError(
                    f"{self.most} sends are in flight and none ended within {limit:g} s; "
                    "this message was not sent"
                ) from error
            raise

    def landed(self, sends: int = 1) -> None:
        """So many sends have their answers, or none will come. Their places go to those who have waited longest."""
        while self._waiting and sends:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                sends -= 1
        self.count -= sends

    @property
    def crowded(self) -> bool:
        """Whether sends wait for their turn."""
        return bool(self._waiting)

    def remaining(self, limit: float, started: float) -> float:
        """Seconds that are left, and never none: who has no time left finds out when it waits."""
        return max(TICK, limit - (self._loop.time() - started))

    # -- attempts -----------------------------------------------------------------------

    def attempt(self, prepared: Prepared, chosen: MessageQueue, timeout: float) -> Awaitable[SendResult]:
        """Sends once and notes how it went."""
        if self.closed:
            raise self._is_closed()
        address = self._instance.send_address(chosen.broker_name)
        channel = None if address is None else self._instance.pool.existing(address)
        if channel is None:
            return self._connect_and_attempt(prepared, chosen, timeout)
        return self.start(prepared, chosen, channel, timeout, self._loop.time())

    async def _connect_and_attempt(
        self, prepared: Prepared, chosen: MessageQueue, timeout: float
    ) -> SendResult:
        started = self._loop.time()
        channel = await self.connect(chosen, timeout)
        timeout = max(TICK, timeout - (self._loop.time() - started))
        return await self.start(prepared, chosen, channel, timeout, started)

    async def connect(self, chosen: MessageQueue, timeout: float) -> Channel:
        """Finds or makes the connection to a queue's master, and notes how that went."""
        started = self._loop.time()
        try:
            return await self._connect(chosen, timeout)
        except ResponseError:
            self.targets.record(chosen.broker_name, started, failed=True, reachable=False)
            raise
        except TransportError:
            self.targets.record(chosen.broker_name, started, failed=True)
            raise
        except RouteError:
            self.targets.record(chosen.broker_name, started, failed=False)
            raise

    def start(
        self,
        prepared: Prepared,
        chosen: MessageQueue,
        channel: Channel,
        limit: float,
        started: float,
        rules: Rules | None = None,
    ) -> asyncio.Future[SendResult]:
        """Puts one attempt on its way."""
        opaque = channel.next_opaque()
        frame = self._frame(prepared, chosen, opaque)
        future: asyncio.Future[SendResult] = self._loop.create_future()
        self.count += rules is not None
        attempt = Attempt(self, prepared, chosen, channel.address, limit, started, future, rules)
        channel.start_frame(opaque, frame, limit, attempt)
        return future

    async def send_oneway(self, prepared: Prepared, chosen: MessageQueue, limit: float) -> None:
        """Sends what no broker answers for."""
        channel = await self._connect(chosen, limit)
        channel.send_bytes(self._frame(prepared, chosen, channel.next_opaque(), ONEWAY_FLAG))

    async def _connect(self, chosen: MessageQueue, timeout: float) -> Channel:
        """The connection to a queue's master; if the route has none, it is asked for once more."""
        instance = self._instance
        address = instance.send_address(chosen.broker_name)
        if address is None:
            await instance.refresh_route(chosen.topic)
            address = instance.send_address(chosen.broker_name)
        if address is None:
            raise TopicRouteNotFoundError(f"The broker[{chosen.broker_name}] not exist")
        channel = await instance.channel(address, timeout)
        if self.closed:
            raise self._is_closed()
        return channel

    def _is_closed(self) -> StateError:
        return StateError(f"producer {self._group} is closed")
