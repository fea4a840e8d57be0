"""What the fault tests stand on: a numbered stream of messages, a consumer that counts, processes to kill."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gimbalmq.client.consumer_config import ConsumeFromWhere
from gimbalmq.client.producer import Producer
from gimbalmq.client.push_consumer import PushConsumer
from gimbalmq.errors import RocketMQError
from gimbalmq.model.message import Message, MessageView
from gimbalmq.nameserver.config import NameServerConfig
from gimbalmq.nameserver.server import NameServer
from gimbalmq.protocol.bodies import TopicConfig
from gimbalmq.rpc import management
from gimbalmq.transport.pool import ChannelPool
from tests.robustness.load import Account

TOPIC = "Faults"
SEND_SECONDS = 20.0
"""For sends that must succeed, and once: the default of 3 s may end on a busy machine, and a send that is made again
for want of an answer may be there twice."""
WORK_SECONDS = 240.0
"""For a whole test: processes that start several times on a starved core need minutes. Below ``LIMIT``, so that a test
ends with an error that says where."""
LIMIT = WORK_SECONDS + 60
"""For pytest."""
ROOT = Path(__file__).resolve().parents[2]


class Stream:
    """Sends numbered messages until it is told to stop, whatever happens meanwhile."""

    def __init__(self, producer: Producer, account: Account, name: str = "m") -> None:
        self._producer = producer
        self._account = account
        self._name = name
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        self.failed = 0

    async def __aenter__(self) -> Stream:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        self._stopping = True
        assert self._task is not None
        await self._task

    async def _run(self) -> None:
        number = 0
        while not self._stopping:
            number += 1
            body = b"%s-%06d" % (self._name.encode(), number)
            try:
                await self._producer.send(Message(TOPIC, body))
            except RocketMQError:
                self.failed += 1
            else:
                self._account.acknowledged.add(body)
            await asyncio.sleep(0.001)


@asynccontextmanager
async def consuming(
    namesrv: str, account: Account, group: str = "faults", **options: Any
) -> AsyncIterator[PushConsumer]:
    consumer = PushConsumer(group, namesrv, consume_from_where=ConsumeFromWhere.FIRST_OFFSET, **options)

    async def note(message: MessageView) -> None:
        account.found.append(message.body)

    consumer.subscribe(TOPIC, "*", note)
    async with consumer:
        yield consumer


async def happens(condition: Callable[[], object], what: str, seconds: float = 120.0) -> None:
    """Waits for something; says what did not come."""
    try:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"within {seconds:g} s it did not happen that {what}") from None


async def more(account: Account, count: int, what: str) -> None:
    """Waits until so many more messages are acknowledged."""
    wanted = len(account.acknowledged) + count
    await happens(lambda: len(account.acknowledged) >= wanted, f"{count} messages were acknowledged {what}")


async def all_found(account: Account) -> None:
    await happens(lambda: not account.lost, f"everything acknowledged was consumed: {account}")
    print(f"\n{account}")


async def make_topic(*addresses: str, queues: int = 4) -> None:
    pool = ChannelPool()
    for address in addresses:
        config = TopicConfig(topic_name=TOPIC, read_queue_nums=queues, write_queue_nums=queues)
        await management.create_topic(pool, address, config)
    await pool.close()


@asynccontextmanager
async def name_server(port: int = 0) -> AsyncIterator[NameServer]:
    async with NameServer(NameServerConfig(listen_port=port)) as server:
        yield server


class MemberProcess:
    """A consumer in a process of its own; what it says is in ``said``, line by line."""

    def __init__(self, namesrv: str, *, handover: str = "java") -> None:
        self._arguments = [namesrv, handover]
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self.said: list[str] = []

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.faults.member",
            *self._arguments,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
        self._reading = asyncio.create_task(self._read())
        await happens(lambda: "ready" in self.said, "a consumer process was ready")

    async def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        async for line in self._process.stdout:
            if line.endswith(b"\n"):  # the last line of a killed process may be half a line
                self.said.append(line.decode().strip())

    def found(self) -> list[bytes]:
        return [line.split()[1].encode() for line in self.said if line.startswith("found")]

    def queues(self) -> set[str]:
        """The queues it holds, as far as it has told."""
        held: set[str] = set()
        for line in self.said:
            word, _, rest = line.partition(" ")
            if word == "taken":
                held.add(rest)
            elif word == "dropped":
                held.discard(rest)
        return held

    def send(self, what: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(what)

    async def end(self, how: signal.Signals) -> None:
        assert self._process is not None and self._reading is not None
        if self._process.returncode is None:
            self._process.send_signal(how)
        await self._process.wait()
        await self._reading
