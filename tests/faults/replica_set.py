"""Replicas of one broker as processes of their own, with cables that can be cut, under numbered sends.

Each replica listens on 127.0.0.1 and says that it is at 127.0.0.2, where proxies pass on what comes to its port and to
its replication port. So slaves and name servers go through cables; senders reach a replica directly, as clients on its
side of a broken network would.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gimbalmq.admin.admin import Admin
from gimbalmq.admin.replica_views import ReplicaView
from gimbalmq.errors import RocketMQError
from gimbalmq.protocol.bodies import TopicConfig
from gimbalmq.rpc import management
from gimbalmq.transport.pool import ChannelPool
from tests.faults.ground import ROOT, happens, name_server
from tests.faults.proxy import Proxy
from tests.peers.folders import Log, same
from tests.peers.ours import OurBroker
from tests.robustness.load import send_request

NAME = "replicated"
TOPIC = "Failover"
NEAR, FAR = "127.0.0.1", "127.0.0.2"
QUEUES = 4
SLOTS = 1000

SETTINGS: dict[str, object] = {
    "brokerName": NAME,
    "bindAddress": NEAR,
    "brokerIP1": FAR,
    "brokerIP2": FAR,
    "mappedFileSizeCommitLog": 128 * 1024,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": SLOTS,
    "maxIndexNum": 4000,
    "haSendHeartbeatInterval": 200,
    "haHousekeepingInterval": 1500,
    "haTransferBatchSize": 4096,
    "slaveTimeout": 1000,
}


@dataclass
class Account:
    """What was sent to each queue, and what was acknowledged.

    Attributes:
        acknowledged: numbers by queue.
        codes: how often each answer came; -1 counts sends without one.
    """

    acknowledged: dict[int, set[int]] = field(
        default_factory=lambda: {queue: set() for queue in range(QUEUES)}
    )
    codes: dict[int, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(map(len, self.acknowledged.values()))


def body_of(queue: int, number: int) -> bytes:
    return (b"%d-%08d-" % (queue, number)).ljust(60 + number % 400, b"x")


def number_of(body: bytes) -> int:
    return int(body.split(b"-")[1])


class Senders:
    """For each queue one sender with a few messages in flight, whose numbers only grow; nothing is sent twice.

    Attributes:
        target: where they send.
        stale: queues whose senders still send to another address.
    """

    def __init__(self, account: Account, window: int = 4) -> None:
        self.account = account
        self.target = ""
        self.stale: dict[int, str] = {}
        self._window = window
        self._pool = ChannelPool()
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Senders:
        self._tasks = [asyncio.create_task(self._work(queue)) for queue in range(QUEUES)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping = True
        await asyncio.gather(*self._tasks)
        await self._pool.close()

    async def _work(self, queue: int) -> None:
        """All of a window goes to one address, and all of it is answered before the next one goes."""
        numbers = itertools.count(1)
        while not self._stopping:
            address = self.stale.get(queue, self.target)
            window = itertools.islice(numbers, self._window)
            codes = await asyncio.gather(*(self._send(address, queue, number) for number in window))
            if any(codes):
                await asyncio.sleep(0.02)

    async def _send(self, address: str, queue: int, number: int) -> int:
        try:
            answer = await self._pool.call(address, send_request(body_of(queue, number), queue, TOPIC), 5.0)
            code = int(answer.code)
        except RocketMQError:
            code = -1
        self.account.codes[code] = self.account.codes.get(code, 0) + 1
        if code == 0:
            self.account.acknowledged[queue].add(number)
        return code

    async def more(self, count: int, what: str, seconds: float = 60.0) -> None:
        """Waits until so many more messages are acknowledged."""
        wanted = self.account.total + count
        await happens(
            lambda: self.account.total >= wanted, f"{count} messages were acknowledged {what}", seconds
        )

    async def some_fail(self, count: int, what: str) -> None:
        """Waits until so many more sends were not acknowledged."""

        def failed() -> int:
            return sum(times for code, times in self.account.codes.items() if code)

        wanted = failed() + count
        await happens(lambda: failed() >= wanted, f"{count} sends were not acknowledged {what}")


class Member:
    """One replica: a process, its folder, and the two cables to it."""

    def __init__(self, folder: Path, namesrv: str, number: int) -> None:
        self.number = number
        self._folder = folder
        self._namesrv = namesrv
        self._starts = 0
        self.store = folder / f"store-{number}"
        self.process = OurBroker(folder / f"member-{number}", namesrv=namesrv, store=self.store)
        self.port = self.process.port
        self.proxies = [Proxy(FAR, port, (NEAR, port)) for port in (self.port, self.port + 1)]
        self.configuration = folder
        self.is_master = False

    @property
    def near(self) -> str:
        """Where senders reach it."""
        return f"{NEAR}:{self.port}"

    @property
    def far(self) -> str:
        """Where slaves, name servers and tools see it."""
        return f"{FAR}:{self.port}"

    async def start(self, *, master: bool) -> None:
        """Starts it as master or slave on its folder."""
        self._starts += 1
        role = (
            {"brokerRole": "SYNC_MASTER", "brokerId": 0}
            if master
            else {"brokerRole": "SLAVE", "brokerId": self.number + 1}
        )
        folder = self._folder / f"member-{self.number}-{self._starts}"
        self.configuration = folder / "broker.properties"
        process = OurBroker(
            folder,
            namesrv=self._namesrv,
            store=self.store,
            port=self.port,
            extra={**SETTINGS, **role},
        )
        process.address = self.far
        self.process = process
        await asyncio.to_thread(process.start)
        self.is_master = master

    async def kill(self) -> None:
        await asyncio.to_thread(self.process.kill)

    def cut(self) -> None:
        for proxy in self.proxies:
            proxy.cut()

    def stall(self) -> None:
        for proxy in self.proxies:
            proxy.stall()

    def resume(self) -> None:
        for proxy in self.proxies:
            proxy.resume()


class ReplicaProcesses:
    """All replicas of one broker, and what an operator does with them."""

    def __init__(self, members: list[Member], namesrv: str, admin: Admin) -> None:
        self.members = members
        self.namesrv = namesrv
        self.admin = admin
        self.account = Account()
        self.senders = Senders(self.account)

    @property
    def master(self) -> Member:
        (found,) = [member for member in self.members if member.is_master]
        return found

    @property
    def slaves(self) -> list[Member]:
        return [member for member in self.members if not member.is_master and member.process.running]

    async def promote(self, *, force: bool = False) -> Member:
        """What `gimbalmq broker promote` does for the fullest slave."""
        old = self.master
        found = await self.admin.replication.promotion(NAME)
        tries = 0
        while found.dangers and not force:  # such as a connection whose end the slave has not noticed yet
            assert tries < 50, found.dangers
            tries += 1
            await asyncio.sleep(0.2)
            found = await self.admin.replication.promotion(NAME)
        await self.admin.replication.promote(found, force=force)
        new = next(member for member in self.members if member.far == found.slave.address)
        old.is_master, new.is_master = False, True
        self.senders.target = new.near
        return new

    async def rejoin(self, member: Member) -> str:
        """Makes a slave of a stopped replica that was the master, by the command line; what it printed."""
        words = ["broker", "rejoin", "--store", str(member.store), "-c", str(member.configuration)]
        said = await command(*words, "-n", self.namesrv, "--id", str(member.number + 1), "--cut", "--yes")
        await member.start(master=False)
        return said

    async def refused(self, member: Member, why: str, seconds: float = 30.0) -> None:
        """Waits until a slave says that it copies nothing, and why."""
        views: list[ReplicaView] = []

        async def tells() -> bool:
            nonlocal views
            views = await self.admin.replication.status(NAME)
            return any(view.address == member.far and why in view.trouble for view in views)

        try:
            await until(tells, f"a slave says {why!r}", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}: {views}") from None

    async def followed(self, seconds: float = 30.0) -> None:
        """Waits until every slave that runs copies from the master."""
        views: list[ReplicaView] = []

        async def follow() -> bool:
            nonlocal views
            try:
                views = await self.admin.replication.status(NAME)
            except RocketMQError:
                return False
            states = {view.address: view.state for view in views if view.is_slave}
            return all(states.get(member.far) == "following" for member in self.slaves)

        try:
            await until(follow, "every slave follows the master", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}: {views}") from None

    async def at_work(self, count: int) -> None:
        """Waits until the new master has taken messages: they are acknowledged if a slave is left, else only stored."""
        if len(self.members) > 2:
            await self.senders.more(count, "by the new master")
        else:
            await self.senders.some_fail(count, "by the new master, which has no slave")

    async def level(self, seconds: float = 30.0) -> None:
        """Waits until the logs of all replicas end at the same place."""

        async def equal() -> bool:
            views = await self.admin.replication.status(NAME)
            ends = {view.log_end for view in views}
            return len(views) == len(self.members) and len(ends) == 1 and None not in ends

        await until(equal, "all logs end at the same place", seconds)


async def until(condition: Callable[[], Awaitable[bool]], what: str, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            while not await condition():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"within {seconds:g} s it did not happen that {what}") from None


async def command(*words: str, code: int = 0) -> str:
    """Runs `gimbalmq` with these words; what it printed, if it ended as it should."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gimbalmq",
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    said = (await process.communicate())[0].decode()
    assert process.returncode == code, f"gimbalmq {' '.join(words)} ended with {process.returncode}:\n{said}"
    return said


@asynccontextmanager
async def replica_processes(folder: Path, count: int) -> AsyncIterator[ReplicaProcesses]:
    """A master and its slaves, all of them following, with a topic."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(name_server())
        members = [Member(folder, server.address, number) for number in range(count)]
        for member in members:
            for proxy in member.proxies:
                await stack.enter_async_context(proxy)
        admin = await stack.enter_async_context(Admin(server.address))
        group = ReplicaProcesses(members, server.address, admin)
        try:
            await members[0].start(master=True)
            await asyncio.gather(*(member.start(master=False) for member in members[1:]))
            pool = ChannelPool()
            config = TopicConfig(topic_name=TOPIC, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
            await management.create_topic(pool, members[0].near, config)
            await pool.close()
            group.senders.target = members[0].near
            await group.followed()
            yield group
        finally:
            for member in members:
                await member.kill()


def check(group: ReplicaProcesses, master: Path, copies: list[Path]) -> str:
    """Everything acknowledged is in the master's log, in order and once; the copies are equal to it.

    Nothing was sent twice and numbers only grew, so each queue's numbers grow.
    """
    log = Log.read(master)
    found = log.bodies(TOPIC)
    for queue, acknowledged in group.account.acknowledged.items():
        numbers = [number_of(body) for body in found.get(queue, [])]
        lost = acknowledged - set(numbers)
        assert not lost, f"queue {queue} lost {len(lost)} acknowledged messages, the first is {min(lost)}"
        wrong = [(one, other) for one, other in itertools.pairwise(numbers) if one >= other]
        assert not wrong, f"queue {queue}: {wrong[0][1]} lies behind {wrong[0][0]}"
        bodies = [body_of(queue, number) for number in numbers]
        assert bodies == found.get(queue, []), f"queue {queue} holds a body that nobody sent"
    for copy in copies:
        same(master, copy, seconds=0, slots=SLOTS, least=group.account.total)
    codes = json.dumps(dict(sorted(group.account.codes.items())))
    return f"acknowledged {group.account.total}, stored {sum(map(len, found.values()))}, answers {codes}"
