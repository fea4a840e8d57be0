"""A whole cluster in virtual time: servers, producers and members, each on its own host, and what befalls them.

Everything is real but the clock and the cables. ``run_world(seed, settings)`` draws a schedule of faults,
runs it under load, heals everything, waits until the group is at rest and reports what became of every
message. Equal seeds give equal runs.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import random
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from gimbalmq.balance.allocate import shares
from gimbalmq.balance.by_name import strategy_by_name
from gimbalmq.client.consumer_config import ConsumeFromWhere, PushConsumerConfig
from gimbalmq.client.consuming.handlers import ConsumeContext
from gimbalmq.client.consuming.held_queue import READING
from gimbalmq.client.events import BalanceEvent, LeaseLost, LeaseOverridden, QueueTaken
from gimbalmq.client.instance import ClientInstance
from gimbalmq.client.producer import Producer
from gimbalmq.client.push_consumer import PushConsumer
from gimbalmq.errors import RocketMQError, StoreError
from gimbalmq.model.message import Message, MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.record import decode_record
from gimbalmq.model.results import SendStatus
from gimbalmq.model.topics import dlq_topic, retry_topic
from gimbalmq.nameserver.server import NameServer
from gimbalmq.protocol.bodies import TopicConfig
from gimbalmq.rpc import management
from gimbalmq.store.message_store import MessageStore
from gimbalmq.testing import MemoryNetwork, VirtualClock
from gimbalmq.testing.cluster import NAMESERVER_HOST
from gimbalmq.transport.pool import ChannelPool
from tests.sim.account import Account, Delivery
from tests.sim.cluster import SimCluster, WallClock
from tests.sim.processes import Process, ProcessLoop
from tests.sim.schedule import KINDS, SERVER_KINDS, Fault, Kind, draw
from tests.sim.strangers import pull_and_not_read, send_garbage
from tests.sim.tables import left_in_broker, left_in_nameserver
from tests.sim.traffic import RECREATED, Delayed, Recreated, Traffic, Transactional
from tests.sim.work import Desk
from tests.support import memory_folder

GROUP = "g"
FEWEST_MEMBERS, MOST_MEMBERS = 1, 6
MOST_QUEUES = 8
QUIET_DELAY = (0.0002, 0.001)
STABLE_SECONDS = 25.0
"""At rest means: as the strategy says for longer than the 20 s between two rounds."""
CLOSING_SECONDS = 300.0
EXPIRY_SECONDS = 270.0
"""After it a broker has closed the connections of hosts that fell silent, with an answer unread: twice 120 s."""


@dataclass(frozen=True)
class Settings:
    """What kind of world it is; times are virtual seconds.

    Attributes:
        kinds: what may happen.
        faults: how often something does.
        span: over how long.
        work: how long a handler takes, from and to.
        failing: share of first deliveries that a handler refuses.
        patience: by when after the last fault everything must be consumed and at rest.
        options: of the consumers, by name.
        sync_flush: brokers answer when a message is on the disk; without it a loss of power loses messages.
        delays, transactions: whether somebody sends such.
        recreated: whether somebody sends to a topic that is deleted now and then.
        special_pause: between two of those.
        longest_timer: seconds a message may wait for its moment.
        broker_options, nameserver_options: properties of the servers.
        work_limit: how long a handler may be at work before the world stops waiting for it: another member may
            then begin its queue.
        as_apache: brokers know of locks and members what Apache's do, and no more.
        sleep_counts: members' clocks count the time their machine is asleep.
    """

    handover: Literal["java", "lease"] = "java"
    strategy: str = "AVG"
    ordered: bool = False
    kinds: tuple[Kind, ...] = KINDS
    faults: int = 10
    span: float = 200.0
    brokers: int = 2
    members: int = 4
    producers: int = 2
    topics: tuple[str, ...] = ("T", "U")
    queues: int = 3
    pause: tuple[float, float] = (0.1, 0.5)
    work: tuple[float, float] = (0.01, 0.3)
    failing: float = 0.0
    patience: float = 500.0
    options: tuple[tuple[str, Any], ...] = ()
    sync_flush: bool = False
    delays: bool = False
    transactions: bool = False
    recreated: bool = False
    special_pause: tuple[float, float] = (0.3, 2.0)
    longest_timer: float = 30.0
    broker_options: tuple[tuple[str, Any], ...] = ()
    nameserver_options: tuple[tuple[str, Any], ...] = ()
    work_limit: float = 2.0
    sleep_counts: bool = True
    as_apache: bool = False

    @property
    def subscribed(self) -> tuple[str, ...]:
        return (*self.topics, RECREATED) if self.recreated else self.topics


@dataclass
class Report:
    """What became of a run.

    Attributes:
        settled: seconds from the last change until each queue had one owner and stayed with it; None where
            that did not happen in time.
        wrong_owners: what the owners were instead, where it did not.
        errors: what the package logged as an error with a traceback, and what the loop complained of.
        desk: handlers that were at work side by side.
        taken, overridden, leases_lost: events of all members.
        digest: of everything that happened; equal for equal seeds.
        passed: bodies that were not consumed and lie in the store, where consumers will not look again.
        dead: bodies among the dead letters. Handlers fail at the first delivery only, so there must be none.
    """

    seed: int
    settings: Settings
    schedule: list[Fault]
    account: Account
    desk: Desk
    settled: float | None = None
    wrong_owners: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    taken: int = 0
    overridden: int = 0
    leases_lost: int = 0
    happened: list[str] = field(default_factory=list)
    digest: str = ""
    seconds: float = 0.0
    passed: set[bytes] = field(default_factory=set)
    dead: set[bytes] = field(default_factory=set)

    @property
    def problems(self) -> list[str]:
        """Which promises were broken; every kind of world makes these."""
        found = []
        account = self.account
        gone = account.lost - self.passed
        if gone:
            found.append(f"{len(gone)} acknowledged messages are gone: {some(gone)}")
        if self.passed:
            found.append(
                f"{len(self.passed)} acknowledged messages are in the store, but the group has passed them: "
                f"{some(self.passed)}"
            )
        if self.dead:
            found.append(f"{len(self.dead)} messages that failed once are dead letters: {some(self.dead)}")
        if account.seen_though_forbidden:
            found.append(
                f"{len(account.seen_though_forbidden)} messages of transactions that were not committed were "
                f"delivered: {some(account.seen_though_forbidden)}"
            )
        if account.early:
            found.append(
                f"{len(account.early)} delayed messages came too early: {', '.join(account.early[:5])}"
            )
        if account.returned:
            found.append(
                f"{len(account.returned)} messages of a deleted topic came back: {some(account.returned)}"
            )
        if self.settled is None:
            found.append(f"the group is not at rest: {'; '.join(self.wrong_owners)}")
        if self.settings.ordered and account.skipped:
            found.append(f"{len(account.skipped)} messages came after a later one of their queue")
        found.extend(self.errors)
        return found

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {self.account}",
            f"  {self.settings}",
            f"  {self.seconds:.0f} s, settled after {self.settled}, {self.taken} queues taken, "
            f"{self.leases_lost} leases lost, {self.overridden} overridden, {len(self.desk.overlaps)} overlaps, "
            f"{len(self.desk.claims)} claims, {len(self.desk.excused)} excused",
            *(f"  problem: {problem}" for problem in self.problems),
            *(f"  {overlap}" for overlap in [*self.desk.overlaps, *self.desk.claims][:10]),
            *(f"  {line}" for line in self.happened),
        ]
        return "\n".join(lines)


def some(bodies: Iterable[bytes]) -> str:
    return ", ".join(body.decode() for body in sorted(bodies)[:5])


class MemberClock(WallClock):
    """The clock of one member's machine.

    Args:
        sleep_counts: it goes on while the machine is asleep, as CLOCK_BOOTTIME does and CLOCK_MONOTONIC does not.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, process: Process, *, sleep_counts: bool) -> None:
        super().__init__(loop)
        self._process = process
        self._sleep_counts = sleep_counts

    def monotonic(self) -> float:
        now = super().monotonic()
        return now if self._sleep_counts else now - self._process.slept


class Member:
    """A consumer on a host of its own, and its handler."""

    def __init__(self, world: World, name: str, host: str) -> None:
        self.world = world
        self.name = name
        self.host = host
        self.client_id = f"{host}@{name}"
        self.process = Process(world.loop, world.network, host)
        self.clock = MemberClock(world.loop, self.process, sleep_counts=world.settings.sleep_counts)
        self.leaving = False
        self.alive = False
        self.hung_until = 0.0
        self.rng = random.Random(f"{world.seed} {name}")
        settings = world.settings
        options: dict[str, Any] = {
            "consume_from_where": ConsumeFromWhere.FIRST_OFFSET,
            **dict(settings.options),
        }
        self.consumer = PushConsumer(
            config=PushConsumerConfig(
                group=GROUP,
                namesrv=world.namesrv,
                client_ip=host,
                instance_name=name,
                network=world.network.host(host),
                handover=settings.handover,
                strategy=settings.strategy,
                **options,
            )
        )
        self.consumer.on_event(world.saw)
        for topic in settings.subscribed:
            self.consumer.subscribe(topic, "*", self.handle, ordered=settings.ordered)

    @property
    def held(self) -> list[MessageQueue]:
        assigned = self.consumer.assignment if self.alive else {}
        return [queue for queues in assigned.values() for queue in queues]

    def claims(self, queue: MessageQueue) -> bool:
        """Whether it takes itself for the owner, and would begin a message of the queue now."""
        if not self.alive or self.process.stopped or not self.consumer.running:
            return False
        item = self.consumer.holdings.table.get(queue)
        return item is not None and item.state is READING and not item.in_doubt

    async def start(self) -> None:
        config = self.consumer.config
        instance = ClientInstance.shared(config, clock=self.clock, rng=random.Random(self.name))
        self.alive = True
        await self.process.do(self.consumer.start(instance=instance))

    async def leave(self) -> None:
        self.leaving = True
        await self.process.do(self.consumer.close())
        self.alive = False

    async def die(self) -> None:
        """The process ends: no goodbye, no commit; the system closes its connections."""
        self.alive = False
        instance = self.consumer.instance
        self.consumer._closed = True
        await self.consumer._tasks.close()
        await instance.close()
        self.consumer._member = None

    async def handle(self, message: MessageView, context: ConsumeContext) -> bool:
        world, queue, offset = self.world, context.queue, message.queue_offset
        body = message.body
        world.account.begin(queue, offset)
        work = world.desk.begin(world.now, self, queue, offset, world.members)
        try:
            await asyncio.sleep(self.rng.uniform(*world.settings.work))
            if self.hung_until > world.now:
                await asyncio.sleep(self.hung_until - world.now)
        finally:
            world.desk.end(work)
        if not message.reconsume_times and self.rng.random() < world.settings.failing:
            return False
        world.delivered(Delivery(world.now, self.name, queue, offset, body), message)
        return True


class Sender:
    """A producer that numbers its messages."""

    def __init__(self, world: World, name: str, host: str) -> None:
        self.world = world
        self.name = name
        self.host = host
        self.clock = WallClock(world.loop)
        self.rng = random.Random(f"{world.seed} {name}")
        self.stopping = self.ended = False
        self.producer = Producer(
            f"p-{name}",
            world.namesrv,
            client_ip=host,
            instance_name=name,
            network=world.network.host(host),
        )

    async def start(self) -> None:
        instance = ClientInstance.shared(
            self.producer.config, clock=self.clock, rng=random.Random(f"{self.world.seed} {self.name}")
        )
        await self.producer.start(instance=instance)

    async def run(self) -> None:
        account = self.world.account
        settings = self.world.settings
        number = 0
        while not self.stopping:
            await asyncio.sleep(self.rng.uniform(*settings.pause))
            number += 1
            body = f"{self.name}-{number:05d}".encode()
            account.sent.add(body)
            try:
                result = await self.producer.send(Message(self.rng.choice(settings.topics), body))
            except RocketMQError:
                account.refused += 1
            else:
                if result.status is SendStatus.SEND_OK:
                    account.acknowledged.add(body)
        self.ended = True


class World:
    """The cluster, its clients and the hand of fate."""

    def __init__(self, seed: int, settings: Settings, folder: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.seed = seed
        self.settings = settings
        self.loop = loop
        self.network = MemoryNetwork(seed, delay=QUIET_DELAY)
        self.server_clock = WallClock(loop)
        self.cluster = SimCluster(seed, settings, folder, self.network, self.server_clock, loop)
        self.account = Account()
        self.desk = Desk(settings.work_limit, alone=settings.ordered)
        self.members: list[Member] = []
        self.senders: list[Sender | Traffic] = []
        self.counts = {
            (topic, index): settings.queues for topic in settings.topics for index in range(settings.brokers)
        }
        if settings.recreated:
            self.counts |= {(RECREATED, index): 2 for index in range(settings.brokers)}
        self.namesrv = ""
        self.happened: list[str] = []
        self.errors: list[str] = []
        self.taken = self.overridden = self.leases_lost = 0
        self.events: list[tuple[float, BalanceEvent]] = []
        self.admin = ChannelPool(network=self.network.host("10.0.0.99"))
        self._joined = 0
        self._cuts: set[str] = set()
        self._vanished: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._down: set[int] = set()
        self._nameserver_down = False
        self._changed = 0.0
        self._steady: float | None = None
        self._silent = False
        self._strangers = 0
        self._troubled: set[int] = set()

    @property
    def now(self) -> float:
        return self.loop.time()

    def note(self, text: str) -> None:
        self.happened.append(f"{self.now:9.3f} {text}")

    def saw(self, event: BalanceEvent) -> None:
        self.events.append((self.now, event))
        if isinstance(event, QueueTaken):
            self.taken += 1
        elif isinstance(event, LeaseOverridden):
            self.overridden += 1
        elif isinstance(event, LeaseLost):
            self.leases_lost += 1

    # -- life ------------------------------------------------------------------------

    async def start(self) -> None:
        await self.cluster.start()
        self.namesrv = self.cluster.namesrv
        for (topic, index), count in self.counts.items():
            await self._set_queues(topic, index, count)
        for _ in range(self.settings.members):
            await self.join()
        for number in range(self.settings.producers):
            sender = Sender(self, f"p{number}", f"10.3.0.{number + 1}")
            await sender.start()
            self.senders.append(sender)
            self.spawn(sender.run())
        for traffic in self._special():
            await traffic.start()
            self.senders.append(traffic)
            self.spawn(traffic.run())
        await asyncio.sleep(5)

    def _special(self) -> list[Traffic]:
        settings = self.settings
        made: list[Traffic] = []
        if settings.delays:
            made.append(Delayed(self, "later", "10.4.0.1"))
        if settings.transactions:
            made.append(Transactional(self, "both", "10.4.0.2"))
        if settings.recreated:
            made.append(Recreated(self, "again", "10.4.0.3"))
        return made

    @property
    def sending(self) -> bool:
        """Whether anything is still sent; one that was told to stop may have a message on its way."""
        return any(not sender.ended for sender in self.senders)

    def stop_sending(self) -> None:
        for sender in self.senders:
            sender.stopping = True

    async def close_clients(self) -> None:
        self.stop_sending()
        for member in self.members:
            if member.alive:
                await member.leave()
        for sender in self.senders:
            await sender.producer.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.admin.close()

    async def left_in_tables(self) -> list[str]:
        """What servers still keep for clients that are gone."""
        if self._silent:
            await asyncio.sleep(EXPIRY_SECONDS)
        end = self.now + 30
        while True:
            found = [line for broker in self.cluster.brokers for line in left_in_broker(broker)]
            found += left_in_nameserver(self.cluster.nameserver, len(self.cluster.brokers))
            if not found or self.now > end:
                return found
            await asyncio.sleep(1.0)

    async def close(self) -> None:
        await self.close_clients()
        await self.cluster.close()
        self.errors += [
            f"broker {index} left {disk.open_files} files open"
            for index, disk in enumerate(self.cluster.disks)
            if disk.open_files
        ]

    def spawn(self, work: Any) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.errors.append(f"a part of the world failed: {task.exception()!r}")

    async def join(self) -> Member:
        self._joined += 1
        member = Member(self, f"c{self._joined:02d}#1", f"10.2.0.{self._joined}")
        self.members.append(member)
        await member.start()
        return member

    @property
    def living(self) -> list[Member]:
        return [member for member in self.members if member.alive]

    @staticmethod
    def topic_config(topic: str, count: int) -> TopicConfig:
        return TopicConfig(topic_name=topic, read_queue_nums=count, write_queue_nums=count)

    def true_wall_ms(self) -> int:
        """Wall time as every clock shows it that was not set."""
        return VirtualClock(self.loop).wall_ms()

    def delivered(self, delivery: Delivery, message: MessageView) -> None:
        self.account.done(delivery)
        due = self.account.due.get(delivery.body)
        if due is not None:
            clock = self.cluster.clocks[self.cluster.index_of(delivery.queue.broker_name)]
            # A second that the clock had begun before it was set back counts as reached.
            if message.store_timestamp < due.wall_ms and clock.highest_ms < due.wall_ms - 1000:
                self.account.early.append(
                    f"{delivery.body.decode()} stored {due.wall_ms - message.store_timestamp} ms before its time"
                )
            elif clock.set_at is None and delivery.at < due.at - 0.01:
                self.account.early.append(f"{delivery.body.decode()} came {due.at - delivery.at:.3f} s early")

    async def _set_queues(self, topic: str, index: int, count: int) -> None:
        broker = self.cluster.broker_at(index)
        if broker is None:
            return
        try:
            await management.create_topic(self.admin, broker.address, self.topic_config(topic, count))
            self.counts[(topic, index)] = count
        except RocketMQError as error:
            self.note(f"resize failed: {error}")

    # -- what befalls it ---------------------------------------------------------------

    async def suffer(self, schedule: Sequence[Fault]) -> None:
        begun = self.now
        for fault in schedule:
            await asyncio.sleep(max(0.0, begun + fault.at - self.now))
            await self.strike(fault)

    async def strike(self, fault: Fault) -> None:
        """Does one fault; what must be undone later is left to a task."""
        self._changed = self.now
        kind, seconds = fault.kind, fault.seconds
        if kind == "join":
            if len(self.living) < MOST_MEMBERS:
                self.note(f"join c{self._joined + 1:02d}")
                self.spawn(self._quietly(self.join()))
        elif kind in ("leave", "crash", "vanish", "hang", "stop", "sleep"):
            await self._strike_member(fault)
        elif kind == "loss":
            self.note(f"loss for {seconds} s")
            self.network.loss = 0.05 + 0.25 * fault.pick
            self.loop.call_later(seconds, self._calm)
        elif kind == "late":
            self.note(f"late for {seconds} s")
            self.network.delay = (0.01, 0.1 + 0.9 * fault.pick)
            self.loop.call_later(seconds, self._calm)
        elif kind == "reset":
            host = _picked(self._hosts(), fault.pick)
            self.note(f"reset {host}")
            self.network.reset(host)
        elif kind == "tear":
            host = _picked(self._hosts(), fault.pick)
            self.note(f"tear {host}")
            self.network.tear(host)
        elif kind == "partition":
            host = _picked(self._hosts(), fault.pick)
            self.note(f"partition {host} for {seconds} s")
            self._silent = True
            self._cut(host)
            self.loop.call_later(seconds, self._mend, host)
        elif kind in ("broker kill", "broker restart", "broker move"):
            self._strike_broker(fault)
        elif kind == "name server":
            if not self._nameserver_down:
                self.note(f"name server away for {seconds} s")
                self._nameserver_down = True
                self.spawn(self._without_nameserver(seconds))
        elif kind == "resize":
            topic, index = _picked(sorted(self.counts), fault.pick)
            count = min(MOST_QUEUES, self.counts[(topic, index)] + 2)
            self.note(f"resize {topic} at {index} to {count}")
            self.spawn(self._set_queues(topic, index, count))
        elif kind in SERVER_KINDS:
            self._strike_server(fault)
        else:
            clocks = [self.server_clock]
            clocks += [member.clock for member in self.living]
            clocks += [sender.clock for sender in self.senders if isinstance(sender, Sender)]
            self.note(f"a clock jumps {seconds} s")
            _picked(clocks, fault.pick).offset_ms += int(seconds * 1000)

    async def _strike_member(self, fault: Fault) -> None:
        # A process that is stopped neither closes nor dies: signals but one wait until it goes on.
        # One that is about to leave is none of those who stay.
        able = [member for member in self.living if not (member.process.stopped or member.leaving)]
        lasting = fault.kind in ("hang", "stop", "sleep")
        if not able or (not lasting and len(able) <= FEWEST_MEMBERS):
            return
        member = _picked(able, fault.pick)
        self.note(f"{fault.kind} {member.name} {fault.seconds or ''}")
        if fault.kind == "hang":
            member.hung_until = self.now + fault.seconds
        elif fault.kind in ("stop", "sleep"):
            member.process.stop(asleep=fault.kind == "sleep")
            self.loop.call_later(fault.seconds, self._wake, member)
        elif fault.kind == "leave":
            self.spawn(self._quietly(member.leave()))
            await asyncio.sleep(0)
        else:
            if fault.kind == "vanish":
                self._silent = True
                self._vanished.add(member.host)
                self._cut(member.host)
            await member.die()

    def _wake(self, member: Member) -> None:
        if member.process.stopped:
            member.process.go_on()
            self._changed = self.now
            self.note(f"{member.name} goes on")

    async def _quietly(self, work: Any) -> None:
        try:
            await work
        except RocketMQError as error:
            self.note(f"failed: {error}")

    def _strike_broker(self, fault: Fault) -> None:
        index = int(fault.pick * self.settings.brokers)
        if index not in self._down:
            self.note(f"{fault.kind} {index} for {fault.seconds} s")
            self._down.add(index)
            self.spawn(self._without_broker(index, fault))

    async def _without_broker(self, index: int, fault: Fault) -> None:
        if fault.kind == "broker restart":
            try:
                await self.cluster.stop_broker(index)
            except StoreError as error:
                self.note(f"broker {index} could not save everything: {error}")
        else:
            await self.cluster.kill_broker(index)
        if fault.kind == "power loss":
            self.cluster.disks[index].lose_power()
        elif fault.kind == "broker move":
            self.cluster.move_broker(index)
            self._part_again()
        await asyncio.sleep(fault.seconds)
        while True:  # as whoever supervises it would
            try:
                await self.cluster.start_broker(index)
                break
            except RocketMQError as error:
                self.note(f"broker {index} does not start: {error}")
                self._changed = self.now
                await asyncio.sleep(5.0)
        self._down.discard(index)
        self.note(f"broker {index} is back")

    def _strike_server(self, fault: Fault) -> None:
        kind, seconds = fault.kind, fault.seconds
        index = int(fault.pick * self.settings.brokers)
        disk = self.cluster.disks[index]
        if kind == "power loss":
            self._strike_broker(fault)
            return
        self.note(f"{kind} {index} {seconds} s")
        if kind == "broker clock":
            self.cluster.clocks[index].set_by(int(seconds * 1000), self.now)
        elif kind == "delete topic":
            for sender in self.senders:
                if isinstance(sender, Recreated):
                    self.spawn(sender.recreate(seconds))
        elif kind in ("hostile", "stopped reader"):
            self._strangers += 1
            name = f"10.9.0.{self._strangers}"
            self.spawn(self._quietly(self._visit(kind, index, name, fault)))
        elif index not in self._troubled:
            self._troubled.add(index)
            if kind == "disk full":
                disk.full = True
            elif kind == "no descriptors":
                disk.no_descriptors = True
            elif kind == "slow disk":
                disk.sync_seconds = 0.05 + 3.0 * (fault.pick * 7 % 1) ** 3
            else:
                self.account.excuse_unconsumed(self.account.acknowledged - self.account.due.keys())
                self.cluster.usage[index] = 0.86
            self.loop.call_later(seconds, self._ease, index)

    def _ease(self, index: int) -> None:
        disk = self.cluster.disks[index]
        if self.cluster.usage[index] > 0.5:
            # What was acknowledged meanwhile may have gone with its file as well.
            self.account.excuse_unconsumed(self.account.acknowledged - self.account.due.keys())
        disk.full = disk.no_descriptors = False
        disk.sync_seconds = 0.0
        self.cluster.usage[index] = 0.1
        if index in self._troubled:
            self._troubled.discard(index)
            self._changed = self.now
            self.note(f"the disk of broker {index} is well again")

    async def _visit(self, kind: Kind, index: int, host: str, fault: Fault) -> None:
        broker = self.cluster.broker_at(index)
        network = self.network.host(host)
        if broker is None:
            return
        if kind == "stopped reader":
            await pull_and_not_read(network, broker.address, self.settings.topics[0], fault.seconds)
            return
        address = broker.address if fault.pick * 10 % 1 < 0.7 else self.namesrv
        await send_garbage(network, address, random.Random(f"{self.seed} {fault.at}"), fault.seconds)

    async def _without_nameserver(self, seconds: float) -> None:
        old = self.cluster.nameserver
        await old.close()
        await asyncio.sleep(seconds)
        network = self.network.host(NAMESERVER_HOST)
        fresh = NameServer(replace(old.config), network=network, clock=self.server_clock)
        await fresh.start()
        self.cluster._nameserver = fresh
        self._nameserver_down = False
        self.note("name server is back")

    def _calm(self) -> None:
        self.network.loss = 0.0
        self.network.delay = QUIET_DELAY

    def _hosts(self) -> list[str]:
        servers = [NAMESERVER_HOST, *self.cluster.hosts]
        return servers + [member.host for member in self.living] + [sender.host for sender in self.senders]

    def _everybody(self) -> set[str]:
        return {*self._hosts(), *self._vanished, "10.0.0.99", f"10.2.0.{self._joined + 1}"}

    def _cut(self, host: str) -> None:
        self._cuts.add(host)
        self.network.cut(host, self._everybody() - {host})

    def _mend(self, host: str) -> None:
        self._cuts.discard(host)
        self.network.mend()
        self._part_again()

    def _part_again(self) -> None:
        for host in sorted(self._cuts | self._vanished):
            self.network.cut(host, self._everybody() - {host})

    # -- rest ------------------------------------------------------------------------

    async def heal(self) -> None:
        """Ends every fault; what was away comes back."""
        self._calm()
        for host in sorted(self._cuts - self._vanished):
            self._changed = self.now
            self._mend(host)
        for index in sorted(self._troubled):
            self._ease(index)
        for member in self.living:
            self._wake(member)
        while self._down or self._nameserver_down or any(item.hung_until > self.now for item in self.living):
            self._changed = self.now
            await asyncio.sleep(0.25)
        self.note("healed")

    def owners(self) -> dict[MessageQueue, list[str]]:
        found: dict[MessageQueue, list[str]] = {}
        for member in self.living:
            for queue in member.held:
                found.setdefault(queue, []).append(member.client_id)
        return found

    def wanted_owners(self) -> dict[MessageQueue, list[str]]:
        """One owner for each queue, by the strategy."""
        queues = []
        for broker in self.cluster.brokers:
            name = broker.live.now.broker_name
            for config in broker.topics.all():
                if config.topic_name in (*self.settings.subscribed, retry_topic(GROUP)):
                    queues += [
                        MessageQueue(config.topic_name, name, n) for n in range(config.read_queue_nums)
                    ]
        ids = [member.client_id for member in self.living]
        parts = shares(strategy_by_name(self.settings.strategy), GROUP, queues, ids)
        return {queue: [client_id] for client_id, part in parts.items() for queue in part}

    def still_stored(self, bodies: set[bytes]) -> set[bytes]:
        """Those of the bodies that lie in a queue that members read."""
        found = {
            body
            for broker in (self.cluster.brokers if bodies else ())
            for topic in self.settings.subscribed
            for body in _bodies(broker.store, topic)
        }
        return bodies & found

    def dead_letters(self) -> set[bytes]:
        return {body for broker in self.cluster.brokers for body in _bodies(broker.store, dlq_topic(GROUP))}

    async def watch(self) -> None:
        """Notes since when owners are as they should be."""
        while True:
            if self.owners() != self.wanted_owners():
                self._steady = None
            elif self._steady is None:
                self._steady = self.now
            await asyncio.sleep(0.25)

    async def rest(self) -> float | None:
        """Waits until owners are as they should be and stay so; seconds that took from the last change."""
        end = self.now + self.settings.patience
        while self.now < end:
            await asyncio.sleep(0.5)
            quiet = 0.0 if self._steady is None else self.now - max(self._steady, self._changed)
            if quiet > STABLE_SECONDS and not self.account.lost and not self.sending:
                break
        return None if self._steady is None else max(0.0, self._steady - self._changed)

    def wrong_owners(self) -> list[str]:
        have, wanted = self.owners(), self.wanted_owners()
        return [
            f"{queue.topic}/{queue.broker_name}/{queue.queue_id} owned by {have.get(queue)}, not "
            f"{wanted.get(queue)}"
            for queue in sorted({*have, *wanted})
            if have.get(queue) != wanted.get(queue)
        ]


class _Errors(logging.Handler):
    """Keeps what the package says of itself that must not happen."""

    def __init__(self, disks_fail: bool) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []
        self._disks_fail = disks_fail

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            if not (self._disks_fail and isinstance(error, StoreError)):
                self.found.append(f"logged: {text}: {error!r}")
        elif "this is a bug" in text:
            self.found.append(f"logged: {text}")


def run_world(seed: int, settings: Settings | None = None, schedule: Sequence[Fault] | None = None) -> Report:
    """Runs one world to its end.

    Args:
        schedule: instead of the one drawn from the seed.
    """
    settings = settings or Settings()
    faults = (
        draw(seed, settings.kinds, settings.faults, settings.span) if schedule is None else list(schedule)
    )
    errors = _Errors(bool(set(settings.kinds) & set(SERVER_KINDS)))
    logger = logging.getLogger("gimbalmq")
    level, spread = logger.level, logger.propagate
    logger.addHandler(errors)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    try:
        with tempfile.TemporaryDirectory(prefix="gimbalmq-sim-", dir=memory_folder()) as folder:
            with asyncio.Runner(loop_factory=ProcessLoop) as runner:
                report = runner.run(_run(seed, settings, faults, Path(folder), errors.found))
            gc.collect()  # a task's error that nobody fetched shows now
    finally:
        logger.removeHandler(errors)
        logger.setLevel(level)
        logger.propagate = spread
    report.errors = list(errors.found)
    return report


async def _run(seed: int, settings: Settings, faults: list[Fault], folder: Path, errors: list[str]) -> Report:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(
        lambda _, context: errors.append(f"loop: {context.get('message')}: {context.get('exception')!r}")
    )
    world = World(seed, settings, folder, loop)
    report = Report(seed, settings, faults, world.account, world.desk, happened=world.happened)
    await world.start()
    try:
        await world.suffer(faults)
        world.spawn(world.watch())
        await asyncio.sleep(5)
        async with asyncio.timeout(settings.patience):
            await world.heal()
        loop.call_later(10.0, world.stop_sending)
        report.settled = await world.rest()
        report.wrong_owners = world.wrong_owners()
        report.passed = world.still_stored(world.account.lost)
        report.dead = world.dead_letters()
        report.seconds = world.now
        report.digest = _digest(world)
        await world.close_clients()
        errors.extend(await world.left_in_tables())
    except TimeoutError:
        errors.append("the world did not heal: " + "; ".join(world.happened[-3:]))
    finally:
        try:
            async with asyncio.timeout(CLOSING_SECONDS):
                await world.close()
        except TimeoutError:
            errors.append(f"closing did not end within {CLOSING_SECONDS:g} s")
        except Exception as error:
            errors.append(f"closing failed: {error!r}")
        errors.extend(world.errors)
    report.taken, report.overridden, report.leases_lost = world.taken, world.overridden, world.leases_lost
    return report


def _digest(world: World) -> str:
    whole = hashlib.blake2b(digest_size=8)
    for entry in world.network.trace:
        whole.update(repr(entry).encode())
    for delivery in world.account.deliveries:
        whole.update(repr(delivery).encode())
    whole.update("\n".join(world.happened).encode())
    return whole.hexdigest()


def _bodies(store: MessageStore, topic: str) -> Iterator[bytes]:
    """All messages of a topic that a store has."""
    for queue_id in store.queue_ids(topic):
        queue = store.find_queue(topic, queue_id)
        assert queue is not None
        for offset in range(queue.min_offset, queue.max_offset):
            raw = store.record_at_queue(topic, queue_id, offset)
            if raw is not None:
                yield decode_record(raw).body


def _picked(things: Sequence[Any], pick: float) -> Any:
    return things[min(int(pick * len(things)), len(things) - 1)]
