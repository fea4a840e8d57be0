"""Apache's name server and broker for our clients, and what tests of those share. Fixtures: `apache_fixtures`."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from gimbalmq.client.config import ClientConfig
from gimbalmq.client.instance import ClientInstance
from gimbalmq.client.producer import Producer
from gimbalmq.errors import RocketMQError
from gimbalmq.model.message import Message, MessageView
from gimbalmq.model.results import SendResult
from gimbalmq.protocol.bodies import TopicConfig
from gimbalmq.rpc import management
from tests.peers.apache import ApacheBroker, ApacheNameServer
from tests.peers.driver import PATIENCE
from tests.peers.frames import Keys
from tests.peers.probe import UPDATE_BROKER_CONFIG, request
from tests.peers.subject import SETTINGS

P = ParamSpec("P")
T = TypeVar("T")

NEWEST, OLDEST = "5.5.0", "4.9.7"
TEST_SECONDS = 240.0
SEND_SECONDS = 20.0

_numbers = itertools.count(1)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine; it is cancelled when it takes longer than any test should."""

    async def limited() -> None:
        async with asyncio.timeout(TEST_SECONDS):
            await scenario

    asyncio.run(limited())


async def off(function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """A blocking call, such as one to a Java client, while our own clients go on."""
    return await asyncio.to_thread(function, *arguments, **options)


async def until(
    probe: Callable[[], T], good: Callable[[T], object], what: str, *, timeout: float = PATIENCE
) -> T:
    """Look until `good` says yes and return what was seen; fail with the last value after the deadline."""
    deadline = time.monotonic() + timeout
    while not good(value := probe()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout:.0f} s; last seen {value!r}")
        await asyncio.sleep(0.02)
    return value


class Inbox:
    """A handler that keeps what it is given and fails as often as it is told to."""

    def __init__(self, *, failures: int = 0, seconds: float = 0.0) -> None:
        self.messages: list[MessageView] = []
        self.times: list[int] = []
        self._attempts: dict[str, int] = {}
        self._failures = failures
        self._seconds = seconds

    async def __call__(self, message: MessageView) -> bool:
        self.messages.append(message)
        self.times.append(time.monotonic_ns())
        tried = self._attempts[message.msg_id] = self._attempts.get(message.msg_id, 0) + 1
        if self._seconds:
            await asyncio.sleep(self._seconds)
        return tried > self._failures

    @property
    def bodies(self) -> list[str]:
        return [message.body.decode() for message in self.messages]

    async def wait_for(self, count: int, *, timeout: float = PATIENCE) -> list[MessageView]:
        """Every message so far, once there are at least so many."""
        await until(
            lambda: len(self.messages), lambda seen: seen >= count, f"{count} messages", timeout=timeout
        )
        return list(self.messages)


@dataclass(frozen=True)
class ApacheServer:
    """A running Apache name server with one broker."""

    version: str
    namesrv: str
    broker: str
    broker_name: str
    cluster_name: str

    @property
    def is_new(self) -> bool:
        return self.version == NEWEST

    def group(self) -> str:
        return f"python-group-{next(_numbers)}"

    async def topic(self, queues: int = 4) -> str:
        """A topic with a new name, known to the name server."""
        name = f"python-topic-{next(_numbers)}"
        await self.resize(name, queues)
        return name

    async def resize(self, topic: str, queues: int) -> None:
        """Create a topic, or give it another number of queues."""
        instance = ClientInstance.shared(ClientConfig(namesrv=self.namesrv, instance_name="topic-maker"))
        instance.hold(self)
        try:
            config = TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues)
            await management.create_topic(instance, self.broker, config)
            deadline = time.monotonic() + PATIENCE
            while True:
                try:
                    if len(await instance.fetch_subscribe_queues(topic)) == queues:
                        return
                except RocketMQError:
                    pass
                assert time.monotonic() < deadline, f"no route of {topic} with {queues} queues"
                await asyncio.sleep(0.05)
        finally:
            await instance.release(self)

    def producer(self, **options: Any) -> Producer:
        """A producer of ours that waits long for an answer: a message sent again for want of one may be there twice,
        and the tests count messages. Not started."""
        return Producer(self.group(), self.namesrv, send_timeout=SEND_SECONDS, **options)

    async def send(self, topic: str, *bodies: str, **options: Any) -> list[SendResult]:
        """Messages of our producer, one after the other."""
        async with self.producer() as producer:
            return [await producer.send(Message(topic, body, **options)) for body in bodies]

    async def configure(self, **settings: object) -> None:
        """Change settings of the running broker."""
        lines = "".join(f"{name}={value}\n" for name, value in settings.items())
        await off(request, self.broker, UPDATE_BROKER_CONFIG, lines.encode())


def start_servers(
    version: str, folder: Path, *, extra: Mapping[str, object] | None = None, keys: Keys | None = None
) -> tuple[ApacheServer, tuple[ApacheNameServer, ApacheBroker]]:
    """Both at once: the broker registers when the name server is there.

    Args:
        extra: further settings of the broker.
        keys: an administrator's, if the settings let in nobody else.
    """
    namesrv = ApacheNameServer(version, folder / "namesrv")
    settings = {
        **SETTINGS,
        "traceTopicEnable": True,
        "brokerName": f"apache-{version}",
        # Each flush writes the whole wheel of 38 MB; after it is killed, this broker is not started again.
        "timerFlushIntervalMs": 10_000,
        **(extra or {}),
    }
    broker = ApacheBroker(version, folder / "broker", namesrv=namesrv.address, extra=settings, keys=keys)
    try:
        with ThreadPoolExecutor(2) as pool:
            first, second = pool.submit(namesrv.start), pool.submit(broker.start)
            first.result()
            second.result()
    except BaseException:
        broker.kill()
        namesrv.kill()
        raise
    cluster_name = str(broker.properties["brokerClusterName"])
    server = ApacheServer(version, namesrv.address, broker.address, broker.name_of_broker, cluster_name)
    return server, (namesrv, broker)
