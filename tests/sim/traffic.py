"""Senders of what is more than a plain message: delays, timers, transactions, a topic that is deleted and made again.

Each body is sent once: a producer here does not try again, so that a body found in two places was stored twice by
the broker.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from gimbalmq.client.instance import ClientInstance
from gimbalmq.client.producer import Producer
from gimbalmq.client.transaction import TransactionProducer
from gimbalmq.errors import RocketMQError
from gimbalmq.model.message import Message, MessageView
from gimbalmq.model.results import SendStatus, TransactionState
from gimbalmq.rpc import management
from gimbalmq.rpc import nameserver as nameserver_calls
from tests.sim.account import Due

if TYPE_CHECKING:
    from tests.sim.world import World

LEVEL_SECONDS = {1: 1.0, 2: 5.0, 3: 10.0}
RECREATED = "D"
NOTICING_SECONDS = 45.0
"""By when members know that a topic was deleted and made again: routes are looked up every 30 s."""


class Traffic:
    """A producer on a host of its own that goes on until it is stopped."""

    def __init__(self, world: World, name: str, host: str) -> None:
        self.world = world
        self.name = name
        self.host = host
        self.rng = random.Random(f"{world.seed} {name}")
        self.stopping = self.ended = False
        self.number = 0
        self.producer = self._producer()

    def _producer(self) -> Producer:
        return Producer(f"p-{self.name}", self.world.namesrv, retry_times=0, **self._place())

    def _place(self) -> dict[str, Any]:
        return {
            "client_ip": self.host,
            "instance_name": self.name,
            "network": self.world.network.host(self.host),
        }

    async def start(self) -> None:
        rng = random.Random(f"{self.world.seed} {self.name}")
        instance = ClientInstance.shared(self.producer.config, clock=self.world.server_clock, rng=rng)
        await self.producer.start(instance=instance)

    async def run(self) -> None:
        while not self.stopping:
            await asyncio.sleep(self.rng.uniform(*self.world.settings.special_pause))
            self.number += 1
            body = f"{self.name}-{self.number:05d}".encode()
            self.world.account.sent.add(body)
            try:
                await self.send_one(body)
            except RocketMQError:
                self.world.account.refused += 1
        self.ended = True

    async def send_one(self, body: bytes) -> None:
        raise NotImplementedError

    @property
    def topic(self) -> str:
        return self.rng.choice(self.world.settings.topics)


class Delayed(Traffic):
    """Levels, and moments of the sender's choice."""

    async def send_one(self, body: bytes) -> None:
        world, account = self.world, self.world.account
        rng = self.rng
        if rng.random() < 0.5:
            level = rng.choice(list(LEVEL_SECONDS))
            message = Message(self.topic, body, delay_level=level)
            account.due[body] = Due(0, world.now + LEVEL_SECONDS[level])
        else:
            seconds = rng.uniform(0.5, world.settings.longest_timer)
            moment = world.true_wall_ms() + int(seconds * 1000)
            message = Message(self.topic, body, deliver_at=moment / 1000)
            account.due[body] = Due(moment, world.now + seconds)
        result = await self.producer.send(message)
        if result.status is SendStatus.SEND_OK:
            account.acknowledged.add(body)


class Transactional(Traffic):
    """Transactions that commit, roll back, or end only when the broker asks."""

    def _producer(self) -> Producer:
        self.decided: dict[bytes, TransactionState] = {}
        self.under_way: set[bytes] = set()
        return TransactionProducer(
            f"p-{self.name}", self.world.namesrv, check=self.check, retry_times=0, **self._place()
        )

    async def send_one(self, body: bytes) -> None:
        account = self.world.account
        assert isinstance(self.producer, TransactionProducer)
        account.forbidden.add(body)
        self.under_way.add(body)
        try:
            result = await self.producer.send_in_transaction(Message(self.topic, body), self.local)
        finally:
            self.under_way.discard(body)
        if result.send.status is SendStatus.SEND_OK and self.decided[body] is TransactionState.COMMIT:
            account.acknowledged.add(body)

    async def local(self, message: Message) -> TransactionState:
        account = self.world.account
        choice = self.rng.random()
        state = TransactionState.COMMIT if choice < 0.6 else TransactionState.ROLLBACK
        self.decided[message.body] = state
        if state is TransactionState.COMMIT:
            account.forbidden.discard(message.body)
            account.committed.add(message.body)
        return TransactionState.UNKNOWN if self.rng.random() < 0.4 else state

    async def check(self, message: MessageView) -> TransactionState:
        if self.rng.random() < 0.2:
            return TransactionState.UNKNOWN
        # A slow disk may keep the half's answer so long that the broker asks first.
        if message.body in self.under_way and message.body not in self.decided:
            return TransactionState.UNKNOWN
        # A transaction whose half was not acknowledged has not been run.
        return self.decided.get(message.body, TransactionState.ROLLBACK)


class Recreated(Traffic):
    """Sends to a topic that is now and then deleted and made again."""

    def __init__(self, world: World, name: str, host: str) -> None:
        super().__init__(world, name, host)
        self._deleting = False
        self._sending = asyncio.Lock()
        self._sent: set[bytes] = set()

    async def send_one(self, body: bytes) -> None:
        async with self._sending:
            self._sent.add(body)
            result = await self.producer.send(Message(RECREATED, body))
            if result.status is SendStatus.SEND_OK:
                self.world.account.acknowledged.add(body)

    async def recreate(self, seconds: float) -> None:
        """Deletes the topic everywhere and makes it again; nothing is sent until all members know."""
        if self._deleting:
            return
        self._deleting = True
        world = self.world
        async with self._sending:
            world.account.excuse_unconsumed(self._sent)
            for index in range(world.settings.brokers):
                await self._persist(index, self._delete)
            await asyncio.sleep(seconds)
            for index in range(world.settings.brokers):
                await self._persist(index, self._create)
            await self._noticed()
            world.account.gone |= self._sent
            self._sent = set()
            world.note(f"{RECREATED} is there again")
        self._deleting = False

    async def _noticed(self) -> None:
        """Members learn from a broker that their offsets are of a topic that is gone; not while it is down."""
        up_since = self.world.loop.time()
        while self.world.loop.time() - up_since < NOTICING_SECONDS:
            await asyncio.sleep(0.5)
            brokers = (self.world.cluster.broker_at(index) for index in range(self.world.settings.brokers))
            if any(broker is None for broker in brokers):
                up_since = self.world.loop.time()

    async def _persist(self, index: int, step: Callable[[str], Awaitable[None]]) -> None:
        """As an operator would: again and again until it is done."""
        while True:
            broker = self.world.cluster.broker_at(index)
            if broker is not None:
                try:
                    await step(broker.address)
                    return
                except RocketMQError as error:
                    self.world.note(f"{RECREATED}: {error}")
            await asyncio.sleep(2.0)

    async def _delete(self, address: str) -> None:
        await management.delete_topic(self.world.admin, address, RECREATED)
        await nameserver_calls.delete_topic(self.world.admin, self.world.namesrv, RECREATED)

    async def _create(self, address: str) -> None:
        await management.create_topic(self.world.admin, address, self.world.topic_config(RECREATED, 2))
