"""The experiments of seed document 004, as its author made them: one machine, the same program started
once, twice and three times, a server beside it, and the queue number of the topic changed under way."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import IO, Any

import pytest

from gimbalmq import Message, MessageQueue, sync
from gimbalmq.model.queues import sort_client_ids
from gimbalmq.protocol.bodies import TopicConfig
from gimbalmq.rpc import management
from gimbalmq.transport.pool import ChannelPool
from tests.cli.commands import ROOT, environment, serving

SECONDS = 60.0  # for what must come; nobody waits so long unless something is wrong


class Member:
    """A running copy of the consumer program."""

    def __init__(self, namesrv: str, group: str, topic: str, told: threading.Condition) -> None:
        self._told = told
        self.facts: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.experiments.member", namesrv, group, topic],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment(),
        )
        assert self.process.stdout is not None
        self._thread = threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True)
        self._thread.start()

    def _read(self, out: IO[str]) -> None:
        for line in out:
            with self._told:
                self.facts.append(json.loads(line))
                self._told.notify_all()

    def last(self, name: str) -> Any:
        return next((fact[name] for fact in reversed(self.facts) if name in fact), None)

    @property
    def client_id(self) -> str | None:
        found: str | None = self.last("client_id")
        return found

    @property
    def holds(self) -> list[int]:
        return self.last("holds") or []

    @property
    def got(self) -> list[tuple[str, int]]:
        """(body, queue) of each message, as they came."""
        return [(fact["got"], fact["queue"]) for fact in list(self.facts) if "got" in fact]

    def end(self) -> None:
        """Ends it cleanly, as Ctrl-C would."""
        assert self.process.stdin is not None and self.process.stdout is not None
        if not self.process.stdin.closed:
            self.process.stdin.close()
        assert self.process.wait(SECONDS) == 0
        self._thread.join(SECONDS)
        self.process.stdout.close()


class Lab:
    """A server and members of one group around one topic."""

    def __init__(self, namesrv: str, broker: str, topic: str) -> None:
        self.namesrv, self.broker, self.topic, self.group = namesrv, broker, topic, f"{topic}-group"
        self.told = threading.Condition()
        self.running: list[Member] = []

    def resize(self, queues: int, topic: str | None = None) -> None:
        """Gives the topic so many read and write queues, as the console of the document does."""

        async def change() -> None:
            pool = ChannelPool()
            config = TopicConfig(
                topic_name=topic or self.topic, read_queue_nums=queues, write_queue_nums=queues
            )
            await management.create_topic(pool, self.broker, config)
            await pool.close()

        asyncio.run(change())

    def send(self, queues: Iterable[int]) -> list[tuple[str, int]]:
        """One message to each of the queues; (body, queue) of each."""
        sent: list[tuple[str, int]] = []
        with sync.Producer(f"{self.topic}-producer", self.namesrv) as producer:
            for number, queue in enumerate(queues):
                body = f"{id(sent)}-{number}"
                place = MessageQueue(self.topic, "broker-a", queue)
                assert producer.send(Message(self.topic, body), queue=place).status.name == "SEND_OK"
                sent.append((body, queue))
        return sent

    def start(self, count: int = 1, topic: str | None = None) -> None:
        """Starts further copies of the program; members are kept in the order of their client ids."""
        new = [Member(self.namesrv, self.group, topic or self.topic, self.told) for _ in range(count)]
        self.running += new
        self.wait(lambda: all(member.client_id for member in new), "the members start")
        order = sort_client_ids(str(member.client_id) for member in self.running)
        self.running.sort(key=lambda member: order.index(str(member.client_id)))

    def wait(self, true: Callable[[], object], what: str) -> None:
        with self.told:
            assert self.told.wait_for(true, SECONDS), f"{what}: {[member.facts for member in self.running]}"

    def wait_shares(self, *shares: Iterable[int]) -> None:
        expected = [list(share) for share in shares]
        self.wait(lambda: [member.holds for member in self.running] == expected, f"shares {expected}")

    def wait_received(self, count: int) -> None:
        self.wait(lambda: sum(len(member.got) for member in self.running) >= count, f"{count} messages")

    def close(self) -> None:
        for member in self.running:
            if member.process.poll() is None:
                member.end()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    store = tmp_path_factory.mktemp("seed-004")
    with serving("server", "--namesrv-port", 0, "--port", 0, "--store", store) as running:
        yield running.ready_address(), running.ready_address()
        assert running.end() == 0


@pytest.fixture
def lab(server: tuple[str, str], request: pytest.FixtureRequest) -> Iterator[Lab]:
    name = request.node.name.removeprefix("test_")[:40]
    made = Lab(*server, topic=name)
    with ExitStack() as stack:
        stack.callback(made.close)
        yield made


def test_one_consumer_receives_everything(lab: Lab) -> None:
    """S4-01 and S4-16: 16 read and 16 write queues, one consumer: 6 messages sent, 6 received."""
    lab.resize(16)
    sent = lab.send(range(6))
    lab.start()
    lab.wait_shares(range(16))
    lab.wait_received(6)
    assert sorted(lab.running[0].got) == sorted(sent)
    assert lab.running[0].last("strategy") == "AVG", "S4-16: what nobody chose"


def test_two_copies_split_the_queues(lab: Lab) -> None:
    """S4-02, S4-03, S4-04: the program started twice is two members, 0-7 and 8-15 are theirs, and who receives
    a message depends on its queue alone."""
    lab.resize(16)
    lab.start(2)
    first, second = lab.running
    assert first.client_id != second.client_id, "S4-02: one group, two client ids"
    assert [str(member.client_id).partition("#")[0].partition("@")[2] for member in lab.running] == [
        str(member.process.pid) for member in lab.running
    ]
    lab.wait_shares(range(8), range(8, 16))

    six = lab.send([8, 9, 10, 11, 12, 13])  # all in queues of one member
    lab.wait_received(6)
    assert (first.got, sorted(second.got)) == ([], sorted(six)), "S4-04: six reach one of them only"

    twelve = lab.send(range(12))
    lab.wait_received(18)
    assert sorted(first.got) == sorted(twelve[:8]), "S4-03: queues 0-7"
    assert sorted(second.got) == sorted(six + twelve[8:]), "S4-03: queues 8-15; S4-04: twelve reach both"


def test_three_copies_hold_six_five_and_five(lab: Lab) -> None:
    """S4-13: 32 messages over 16 queues reach three members from queues 0-5, 6-10 and 11-15."""
    lab.resize(16)
    lab.start(3)
    lab.wait_shares(range(6), range(6, 11), range(11, 16))
    sent = lab.send([*range(16), *range(16)])
    lab.wait_received(32)
    queues = [{queue for _, queue in member.got} for member in lab.running]
    assert queues == [set(range(6)), set(range(6, 11)), set(range(11, 16))]
    assert sorted(pair for member in lab.running for pair in member.got) == sorted(sent)


def test_one_queue_goes_to_one_member_always(lab: Lab) -> None:
    """S4-05: the topic is reduced to 1 queue under the running members: one gets all, twice in a row."""
    lab.resize(16)
    lab.start(2)
    lab.wait_shares(range(8), range(8, 16))
    lab.resize(1)
    lab.wait_shares([0], [])
    for turn in (1, 2):
        lab.send([0] * 6)
        lab.wait_received(6 * turn)
        assert [len(member.got) for member in lab.running] == [6 * turn, 0]


def test_two_queues_are_one_each_and_in_order(lab: Lab) -> None:
    """S4-06: 2 queues, 2 members: one queue each, half of the messages each, in order within a queue."""
    lab.resize(2)
    lab.start(2)
    lab.wait_shares([0], [1])
    lab.send([0, 1] * 10)
    lab.wait_received(20)
    for number, member in enumerate(lab.running):
        offsets = [fact["offset"] for fact in member.facts if "got" in fact]
        assert {queue for _, queue in member.got} == {number}
        assert offsets == list(range(10))


def test_members_with_different_topics_leave_queues_to_nobody(lab: Lab) -> None:
    """S4-07: a group's members must subscribe the same topic. One that does not still counts as a member, so
    queues are allotted to it that it never reads, and it is said loudly. When it leaves, nothing is lost."""
    lab.resize(4)
    lab.resize(4, topic=f"{lab.topic}-other")
    lab.start()
    lab.wait_shares(range(4))
    (right,) = lab.running
    lab.start(topic=f"{lab.topic}-other")
    wrong = next(member for member in lab.running if member is not right)
    lab.wait(lambda: len(right.holds) == 2 and len(wrong.holds) == 2, "each holds half of its own topic")
    lab.wait(lambda: any("unequal" in fact for member in lab.running for fact in member.facts), "a complaint")
    mine = set(right.holds)
    sent = lab.send([*range(4), *range(4)])
    lab.wait_received(4)
    assert {queue for _, queue in right.got} == mine and not wrong.got, "two queues have no reader"
    wrong.end()
    lab.wait(lambda: right.holds == [0, 1, 2, 3], "the right one takes over")
    lab.wait(lambda: sorted(right.got) == sorted(sent), "the rest arrives")


def test_the_idle_member_takes_over(lab: Lab) -> None:
    """S4-15, and S4-09 before it: of 3 members of 2 queues one idles; when another stops, it gets a queue."""
    lab.resize(2)
    lab.start(3)
    lab.wait_shares([0], [1], [])
    lab.running[0].end()
    del lab.running[0]
    lab.wait_shares([0], [1])
    lab.send([0, 1])
    lab.wait_received(2)
    assert [len(member.got) for member in lab.running] == [1, 1]


def test_a_resize_redistributes_without_a_restart(lab: Lab) -> None:
    """S4-17: the queue number changes at run time, up and down; the members follow, the same processes."""
    lab.resize(4)
    lab.start(2)
    lab.wait_shares([0, 1], [2, 3])
    lab.resize(8)
    lab.wait_shares(range(4), range(4, 8))
    sent = lab.send(range(8))
    lab.wait_received(8)
    assert sorted(pair for member in lab.running for pair in member.got) == sorted(sent)
    lab.resize(2)
    lab.wait_shares([0], [1])
    assert all(member.process.poll() is None for member in lab.running)
