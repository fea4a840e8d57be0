"""Java and Python members in one group on Apache's broker: each queue has one owner, nothing is lost.

Members find their shares by themselves, so all must see the same members, sort alike and divide alike. The
deadlines are below the 20 s after which a member would look by itself: what is tested is that it is told.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gimbalmq.balance.sticky import Sticky
from gimbalmq.client.consumer_config import ConsumeFromWhere
from gimbalmq.client.events import BalanceEvent, LeaseOverridden, QueueReleased
from gimbalmq.client.pull_consumer import PullConsumer
from gimbalmq.client.push_consumer import PushConsumer
from gimbalmq.model.message import Message
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.topics import retry_topic
from gimbalmq.rpc import groups
from tests.interop.apache_cluster import NEWEST, ApacheServer, Inbox, off, run, until
from tests.peers.apache import ROOT
from tests.peers.driver import PATIENCE, JavaClient, JavaPushConsumer

pytestmark = pytest.mark.interop
pytest_plugins = ["tests.interop.apache_fixtures"]

NOTICED = 15.0  # seconds; below the 20 s after which a member looks by itself

Member = PushConsumer | JavaPushConsumer


def push(apache: ApacheServer, group: str, topic: str, inbox: Inbox, **options: Any) -> PushConsumer:
    ordered = options.pop("ordered", False)
    options.setdefault("consume_from_where", ConsumeFromWhere.FIRST_OFFSET)
    consumer = PushConsumer(group, apache.namesrv, **options)
    consumer.subscribe(topic, "*", inbox, ordered=ordered)
    return consumer


async def held(member: Member, topic: str) -> list[int]:
    if isinstance(member, PushConsumer):
        return [queue.queue_id for queue in member.assignment.get(topic, [])]
    return [queue.queue_id for queue in await off(member.queues, topic)]


async def settled(members: Sequence[Member], topic: str, queues: int, *, timeout: float = NOTICED) -> None:
    """Wait until each member holds just its share by AVG of the sorted client ids."""
    ids = sorted(member.client_id for member in members)
    size, more = divmod(queues, len(ids))
    wanted: dict[str, list[int]] = {}
    start = 0
    for index, client_id in enumerate(ids):
        count = size + (index < more)
        wanted[client_id] = list(range(start, start + count))
        start += count
    seen: dict[str, list[int]] = {}
    try:
        async with asyncio.timeout(timeout):
            while seen != wanted:
                await asyncio.sleep(0.02)
                seen = {member.client_id: await held(member, topic) for member in members}
    except TimeoutError:
        raise AssertionError(
            f"not settled within {timeout:.0f} s: wanted {wanted}, last seen {seen}"
        ) from None


class Source:
    """Numbered messages, a few a second more than anyone notices, to every queue in turn."""

    def __init__(self) -> None:
        self.count = 0

    @asynccontextmanager
    async def flowing(self, apache: ApacheServer, topic: str, pause: float = 0.004) -> AsyncIterator[None]:
        async with apache.producer() as producer:
            stopped = asyncio.Event()

            async def flow() -> None:
                while not stopped.is_set():
                    await producer.send(Message(topic, f"{self.count}"))
                    self.count += 1
                    await asyncio.sleep(pause)

            flowing = asyncio.create_task(flow())
            try:
                yield
            finally:
                stopped.set()
                await flowing


async def everything(
    source: Source, seen: Callable[[], list[str]], *, timeout: float = PATIENCE
) -> list[str]:
    """What was received, once that is all that was sent."""
    wanted = {f"{number}" for number in range(source.count)}
    deadline = time.monotonic() + timeout
    while missing := wanted - set(got := await off(seen)):
        assert time.monotonic() < deadline, (
            f"{len(missing)} of {source.count} never came: {sorted(missing)[:20]}"
        )
        await asyncio.sleep(0.1)
    return got


def bodies(inboxes: Sequence[Inbox], javas: Sequence[JavaPushConsumer] = ()) -> list[str]:
    ours = [body for inbox in inboxes for body in inbox.bodies]
    return ours + [message.body.decode() for java in javas for message in java.received()]


@contextmanager
def python_process(apache: ApacheServer, group: str, topic: str) -> Iterator[ProcessMember]:
    """A member of ours as a process; killed at the end, without a word to anyone."""
    command = [sys.executable, "-m", "tests.interop.python_member", apache.namesrv, group, topic]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment)
    member = ProcessMember(child)
    try:
        yield member
    finally:
        member.kill()


class ProcessMember:
    """What a member in another process has said."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self.bodies: list[str] = []
        self.queues: list[int] = []
        self.client_id = ""
        self._child = child
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.endswith("\n"):  # the last one of a killed process may be torn
                said = json.loads(line)
                if "body" in said:
                    self.bodies.append(said["body"])
                self.queues = said.get("queues", self.queues)
                self.client_id = said.get("client_id", self.client_id)

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()
        self._reader.join()
        assert self._child.stdout is not None
        self._child.stdout.close()


def test_java_and_python_members_join_and_leave(apache: ApacheServer, both: list[JavaClient]) -> None:
    """S0-54, S1-01, S1-10, S1-11, S1-13, S1-32, S2-08, S4-08, S4-12: 16 queues, both Java versions, under load."""

    async def scenario() -> None:
        topic, group = await apache.topic(16), apache.group()
        source, inboxes = Source(), [Inbox(), Inbox(), Inbox()]
        first, second, third = (push(apache, group, topic, inbox) for inbox in inboxes)
        old, new = both
        async with first:
            async with source.flowing(apache, topic):
                await settled([first], topic, 16)
                one = await off(new.push, group, topic, namesrv=apache.namesrv, instance=f"new-{group}")
                await settled([first, one], topic, 16)
                two = await off(old.push, group, topic, namesrv=apache.namesrv, instance=f"old-{group}")
                await settled([first, one, two], topic, 16)
                await second.start()
                members: list[Member] = [first, one, two, second]
                await settled(members, topic, 16)
                listed = await groups.member_ids(second.instance, apache.broker, group)
                assert sorted(listed) == sorted(member.client_id for member in members)
                for java in (one, two):
                    await off(java.wait_for, 1)
                await inboxes[1].wait_for(1)
            # A Java member takes the list of what it got with it, so it leaves when all is accounted for.
            await everything(source, lambda: bodies(inboxes, [one, two]))
            gone = await off(one.received)
            await off(one.shutdown)

            def all_seen() -> list[str]:
                return bodies(inboxes, [two]) + [message.body.decode() for message in gone]

            async with source.flowing(apache, topic):
                await settled([first, two, second], topic, 16)
                await third.start()
                await settled([first, two, second, third], topic, 16)
                await inboxes[2].wait_for(1)
                await second.close()
                await settled([first, two, third], topic, 16)
                await third.close()
                await settled([first, two], topic, 16)
            await everything(source, all_seen)
            assert all(inbox.messages for inbox in inboxes)

    run(scenario())


def test_killed_members_are_replaced(newest: ApacheServer, java_550: JavaClient, tmp_path: Path) -> None:
    """S1-12, S3-30: a process of ours and a JVM end without a word; nothing they had begun is lost."""

    async def scenario() -> None:
        topic, group = await newest.topic(8), newest.group()
        source, inbox = Source(), Inbox()
        survivor = push(newest, group, topic, inbox)
        other = await off(java_550.push, group, topic, namesrv=newest.namesrv)
        async with survivor:
            with python_process(newest, group, topic) as victim:
                async with source.flowing(newest, topic):
                    await until(lambda: victim.queues and victim.bodies, bool, "the member at work")
                    await off(victim.kill)
                    await settled([survivor, other], topic, 8)
                await everything(source, lambda: bodies([inbox], [other]) + victim.bodies)

            jvm = JavaClient(NEWEST, tmp_path, namesrv=newest.namesrv)
            await off(jvm.start)
            try:
                doomed = await off(jvm.push, group, topic, instance=f"doomed-{group}")
                await settled([survivor, other, doomed], topic, 8)
            finally:
                await off(jvm.stop)
            await settled([survivor, other], topic, 8)
            async with source.flowing(newest, topic):
                await asyncio.sleep(0.5)
            await everything(source, lambda: bodies([inbox], [other]) + victim.bodies)

    run(scenario())


def test_ordered_members_of_both_kinds_keep_each_queue_in_order(
    newest: ApacheServer, java_550: JavaClient
) -> None:
    """S2-18, S2-26, S2-27, S2-28: the broker's locks hold back whoever comes, Java or Python."""

    async def scenario() -> None:
        topic, group = await newest.topic(4), newest.group()
        source, inboxes = Source(), [Inbox(seconds=0.003), Inbox(seconds=0.003)]
        first, second = (
            push(newest, group, topic, inbox, ordered=True, unlock_delay=0.5) for inbox in inboxes
        )
        async with first:
            async with source.flowing(newest, topic):
                await settled([first], topic, 4)
                java = await off(java_550.push, group, topic, namesrv=newest.namesrv, orderly=True)
                await settled([first, java], topic, 4, timeout=40.0)
                async with second:
                    await settled([first, java, second], topic, 4, timeout=40.0)
                await settled([first, java], topic, 4, timeout=40.0)
            await everything(source, lambda: bodies(inboxes, [java]))
        visits: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for inbox in inboxes:
            for message, at in zip(inbox.messages, inbox.times, strict=True):
                visits[message.queue_id].append((at, message.queue_offset))
        for received in await off(java.received):
            visits[received.queue_id].append((received.at_nanos, received.queue_offset))
        for queue in range(4):
            offsets = [offset for _, offset in sorted(visits[queue])]
            assert list(dict.fromkeys(offsets)) == list(range(max(offsets) + 1))

    run(scenario())


def test_lease_handover_through_the_lock_requests_of_apaches_broker(apache: ApacheServer) -> None:
    """Joins and leaves under load: no message twice, none lost, no queue with two readers at a time."""

    async def scenario() -> None:
        topic, group = await apache.topic(8), apache.group()
        source, inboxes = Source(), [Inbox(seconds=0.02) for _ in range(4)]
        told: list[BalanceEvent] = []
        members = [
            push(apache, group, topic, inbox, handover="lease", persist_interval=600.0) for inbox in inboxes
        ]
        for member in members:
            member.on_event(told.append)
        async with AsyncExitStack() as last:
            async with source.flowing(apache, topic):
                await last.enter_async_context(members[0])
                await settled(members[:1], topic, 8)
                for count in (2, 3, 4):
                    await members[count - 1].start()
                    await settled(members[:count], topic, 8)
                for count in (3, 2):
                    await members[count].close()
                    await settled(members[:count], topic, 8)
            last.push_async_callback(members[1].close)
            seen = await everything(source, lambda: bodies(inboxes))
        assert len(seen) == source.count  # exactly once
        assert [event for event in told if isinstance(event, QueueReleased)]
        assert not [event for event in told if isinstance(event, LeaseOverridden)]
        stays: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for number, inbox in enumerate(inboxes):
            for message, at in zip(inbox.messages, inbox.times, strict=True):
                stays[message.queue_id].append((at, number))
        for visits in stays.values():
            changes = [
                later - earlier
                for (earlier, owner), (later, next_owner) in pairwise(sorted(visits))
                if owner != next_owner
            ]
            assert len(changes) <= 5  # an owner never comes back in between
            assert all(gap >= 20_000_000 for gap in changes)  # the last handler was done

    run(scenario())


def test_sticky_members_move_only_what_must_move(newest: ApacheServer) -> None:
    """A third member takes its share; the other two keep everything else.

    Names are given, the address in the client ids too: shares follow from hashes of them, and for every third
    choice of names a queue more than need be would move.
    """

    async def scenario() -> None:
        topic, group, count = "sticky-topic", "sticky-group", 12
        await newest.resize(topic, count)
        members = [
            push(
                *(newest, group, topic, Inbox()),
                strategy="STICKY",
                client_ip="10.0.0.1",
                instance_name=f"sticky-{i}",
            )
            for i in range(3)
        ]
        queues = [MessageQueue(topic, newest.broker_name, i) for i in range(count)]
        queues.append(
            MessageQueue(retry_topic(group), newest.broker_name, 0)
        )  # it is shared out with the others

        async def shares(of: Sequence[PushConsumer], timeout: float = NOTICED) -> list[set[int]]:
            """What the strategy gives these members, once each holds just that."""
            parts = Sticky().allocate_all(group, [member.client_id for member in of], queues)
            wanted = [
                {queue.queue_id for queue in parts[member.client_id] if queue.topic == topic} for member in of
            ]
            deadline = time.monotonic() + timeout
            while (found := [set(await held(member, topic)) for member in of]) != wanted:
                assert time.monotonic() < deadline, f"wanted {wanted}, last seen {found}"
                await asyncio.sleep(0.02)
            return wanted

        async with members[0], members[1]:
            # The first heartbeat makes the retry topic, whose route may be found late.
            before = await shares(members[:2], timeout=PATIENCE)
            async with members[2]:
                during = await shares(members)
                assert all(now <= then for now, then in zip(during, before, strict=False))
            assert await shares(members[:2]) == before

    run(scenario())


def test_pull_members_share_with_java_push_members(newest: ApacheServer, java_550: JavaClient) -> None:
    """A pull consumer of ours and Java's, of one group."""

    async def scenario() -> None:
        topic, group = await newest.topic(6), newest.group()
        theirs = await off(java_550.lite_pull, group, topic, namesrv=newest.namesrv)
        ours = PullConsumer(group, newest.namesrv, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
        ours.subscribe(topic)
        async with ours:
            async with asyncio.timeout(NOTICED):
                while True:
                    mine = {queue.queue_id for queue in ours.assignment.get(topic, [])}
                    other = {queue.queue_id for queue in await off(theirs.assignment)}
                    if len(mine) == len(other) == 3 and not mine & other:
                        break
                    await asyncio.sleep(0.05)
            await newest.send(topic, *(f"{i}" for i in range(24)))
            got: list[str] = []
            while len(got) < 12:
                got += [message.body.decode() for message in await ours.poll()]
            java = [message.body.decode() for message in await off(theirs.poll_for, 12)]
            assert sorted(got + java, key=int) == [f"{i}" for i in range(24)]

    run(scenario())
