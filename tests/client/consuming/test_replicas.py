"""Consumers of a broker with a slave: which replica is asked for what, while the master is there, dead, and back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from gimbalmq.client.consuming.handlers import ConsumeResult
from gimbalmq.client.consuming.offsets import ReadFrom
from gimbalmq.client.events import LeaseFenced, OffsetReset
from gimbalmq.client.push_consumer import PushConsumer
from gimbalmq.errors import QueryNotFoundError
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.model.results import PullStatus
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from tests.client.group_peers import GroupBroker, GroupCluster, Override, in_virtual_time

PULL = RequestCode.PULL_MESSAGE
QUERY = RequestCode.QUERY_CONSUMER_OFFSET
UPDATE = RequestCode.UPDATE_CONSUMER_OFFSET
LOCK = RequestCode.LOCK_BATCH_MQ
MEMBERS = RequestCode.GET_CONSUMER_LIST_BY_GROUP
Q0 = MessageQueue("T", "broker-a", 0)


class Bodies(list[str]):
    async def __call__(self, message: MessageView) -> None:
        self.append(message.body.decode())


class Pair:
    """broker-a, a master with one slave; what is put into one is put into the other."""

    def __init__(self, cluster: GroupCluster) -> None:
        self.cluster = cluster
        self.master = cluster.brokers["broker-a"]
        self.slave = cluster.brokers["slave"]
        cluster.topic("T", 1, "broker-a")
        self.route(self.master, self.slave)
        for broker in (self.master, self.slave):
            broker.from_start(Q0)

    def route(self, master: GroupBroker | None, slave: GroupBroker) -> None:
        """What the name server says from now on."""
        replicas = {} if master is None else {0: master.address}
        self.cluster.replicas["broker-a"] = {**replicas, 1: slave.address}

    def put(self, *bodies: str) -> None:
        for broker in (self.master, self.slave):
            broker.put("T", 0, *bodies)

    async def kill_master(self, *, noticed: bool = True) -> None:
        """Ends the master; if not ``noticed``, the name server goes on naming it."""
        await self.master.close()
        if noticed:
            self.route(None, self.slave)

    async def restart_master(self) -> GroupBroker:
        """The master is back, with its messages and the offsets it had, and without locks."""
        old, new = self.master, await self.cluster.add_broker("broker-a")
        new.queues, new.first, new.offsets = old.queues, old.first, old.offsets
        self.master = new
        self.route(new, self.slave)
        return new

    async def reader(self, handler: Any, name: str = "c1#1", **options: Any) -> PushConsumer:
        consumer = self.cluster.push(name, **options)
        consumer.subscribe("T", "*", handler)
        await self.cluster.launch(consumer)
        return consumer


def with_pair(scenario: Callable[[Pair], Coroutine[Any, Any, None]]) -> None:
    async def work(cluster: GroupCluster) -> None:
        await scenario(Pair(cluster))

    in_virtual_time(work, "broker-a", "slave")


def answers(code: int, remark: str = "", *, suggest: int = 0) -> Override:
    """A slave that answers every pull in the same way, at once."""

    def answer(request: RemotingCommand) -> RemotingCommand:
        at = (request.ext_fields or {})["queueOffset"]
        ends = {
            "suggestWhichBrokerId": str(suggest),
            "nextBeginOffset": at,
            "minOffset": "0",
            "maxOffset": at,
        }
        return request.reply(code, remark, ends)

    return answer


# --- there and back --------------------------------------------------------------------------------


def test_readers_go_to_the_slave_and_come_back() -> None:
    """S3-14, S3-18: each pull goes to the replica that the answer before it has named."""

    async def scenario(pair: Pair) -> None:
        pair.put(*"abcdef")
        pair.master.suggest_broker_id, pair.slave.suggest_broker_id = 1, 0
        bodies = Bodies()
        await pair.reader(bodies, pull_batch_size=2)
        await asyncio.sleep(1)
        assert bodies == list("abcdef")
        order = sorted(
            (asked.at, broker.name) for broker in (pair.master, pair.slave) for asked in broker.of(PULL)
        )
        assert [name for _, name in order] == ["broker-a", "slave", "broker-a", "slave"]

    with_pair(scenario)


@pytest.mark.parametrize("ends", ["refuses", "dies"])
def test_slave_that_cannot_be_read_is_not_asked_for_ever(ends: str) -> None:
    """Apache's 5.x slaves refuse every pull with code 2 unless slaveReadEnable is set; Java's readers stay there."""

    async def scenario(pair: Pair) -> None:
        pair.put("a")
        pair.master.suggest_broker_id = 1
        if ends == "refuses":
            pair.slave.overrides[PULL] = answers(2, "[REJECTREQUEST] the broker is not readable")
        else:
            await pair.slave.close()
        bodies = Bodies()
        consumer = await pair.reader(bodies)
        await asyncio.sleep(1)
        pair.master.suggest_broker_id = 0
        pair.master.put("T", 0, "b")
        await asyncio.sleep(consumer.config.exception_delay + 4)
        assert bodies == ["a", "b"]

    with_pair(scenario)


@pytest.mark.parametrize("late", [True, False])
def test_master_that_shows_a_message_later_than_its_slave_does_not_set_readers_back(late: bool) -> None:
    """Seen with 5.5.0: a slave gives a message before the master has it in its queue, and the master then says that
    there is no such offset. If the master still says so after a while, it is believed."""

    async def scenario(pair: Pair) -> None:
        pair.put("a")
        pair.master.suggest_broker_id = 1
        bodies, told = Bodies(), list[OffsetReset]()
        consumer = pair.cluster.push()
        consumer.on_event(lambda event: told.append(event) if isinstance(event, OffsetReset) else None)
        consumer.subscribe("T", "*", bodies)
        await pair.cluster.launch(consumer)
        await asyncio.sleep(0.5)
        pair.master.suggest_broker_id = 0
        pair.slave.put("T", 0, "b")
        await asyncio.sleep(0.7)
        if late:
            pair.master.put("T", 0, "b", "c")
        await asyncio.sleep(20)
        assert bodies[:2] == ["a", "b"]
        if late:
            assert (bodies[2:], told) == (["c"], [])
        else:
            assert [event.offset for event in told] == [1]

    with_pair(scenario)


# --- the master is dead ----------------------------------------------------------------------------


@pytest.mark.parametrize("noticed", [True, False])
def test_reading_goes_on_at_the_slave_and_back_at_the_master(noticed: bool) -> None:
    """Whether the name server knows it already, or goes on naming a machine that is gone."""

    async def scenario(pair: Pair) -> None:
        pair.put("a")
        bodies = Bodies()
        await pair.reader(bodies)
        await asyncio.sleep(1)
        await pair.kill_master(noticed=noticed)
        pair.slave.put("T", 0, "b")
        await asyncio.sleep(3)
        assert bodies == ["a", "b"], "at the slave, long before the next poll of routes"
        await asyncio.sleep(5)
        assert pair.slave.committed(Q0) == (2 if noticed else 0), "progress goes by the route"
        pair.master.queues = {key: list(log) for key, log in pair.slave.queues.items()}
        new = await pair.restart_master()
        await asyncio.sleep(10 if noticed else 25)
        assert new.of(RequestCode.HEART_BEAT), (
            "a master that is back is found in about the time that it was away"
        )
        pair.put("c")
        await asyncio.sleep(20)
        assert bodies == ["a", "b", "c"], "nothing again"
        assert new.of(PULL)

    with_pair(scenario)


def test_master_that_was_cut_off_is_read_again() -> None:
    """The name server has never missed it, and its address is the same: the next heartbeat finds it."""

    async def scenario(pair: Pair) -> None:
        pair.put("a")
        bodies = Bodies()
        await pair.reader(bodies)
        await asyncio.sleep(1)
        network = pair.cluster.network
        assert network is not None
        here, there = pair.cluster.client_host("c1#1"), pair.master.address.partition(":")[0]
        network.cut(here, there)
        network.reset(there)
        await asyncio.sleep(5)
        pair.put("b")
        await asyncio.sleep(5)
        assert bodies == ["a", "b"]
        network.mend()
        await asyncio.sleep(31)
        before = len(pair.slave.of(PULL))
        pair.put("c")
        await asyncio.sleep(40)
        assert bodies == ["a", "b", "c"]
        assert len(pair.slave.of(PULL)) <= before + 1

    with_pair(scenario)


def test_broker_without_a_slave_is_left_to_the_poll() -> None:
    """If it is only restarted, its queues need not move: nobody asks where they are before the poll does."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.from_start(Q0)
        consumer = cluster.push()
        consumer.subscribe("T", "*", Bodies())
        await cluster.launch(consumer)
        await asyncio.sleep(1)

        def asked() -> int:
            return sum(one.fields["topic"] == "T" for one in cluster.nameserver.asked)

        before = asked()
        await cluster.broker.close()
        await asyncio.sleep(20)
        assert asked() == before

    in_virtual_time(scenario)


def test_no_busy_loop_at_a_slave_that_answers_at_once() -> None:
    """Apache's 5.x slaves say "ask again, ask 0" at the queue's end, also while nobody has the id 0."""

    async def scenario(pair: Pair) -> None:
        pair.slave.put("T", 0, "a")
        at_the_end = answers(20, "OFFSET_OVERFLOW_ONE")

        def as_5x(request: RemotingCommand) -> RemotingCommand | None:
            end = int((request.ext_fields or {})["queueOffset"]) == pair.slave.max_offset("T", 0)
            return at_the_end(request) if end else None

        pair.slave.overrides[PULL] = as_5x
        pair.route(None, pair.slave)
        bodies = Bodies()
        await pair.reader(bodies)
        await asyncio.sleep(10)
        assert bodies == ["a"]
        before = len(pair.slave.of(PULL))
        await asyncio.sleep(60)
        assert 50 <= len(pair.slave.of(PULL)) - before <= 65, "about one a second"
        pair.slave.put("T", 0, "b")
        await asyncio.sleep(1.1)
        assert bodies == ["a", "b"]

    with_pair(scenario)


def test_kept_questions_are_asked_anew_at_once() -> None:
    """The pause is for brokers that do not keep a question: one that was kept for a while is asked again without."""

    async def scenario(pair: Pair) -> None:
        consumer = await pair.reader(Bodies(), broker_suspend=2.0)
        await asyncio.sleep(60)
        assert len(pair.master.of(PULL)) == pytest.approx(60 / consumer.config.broker_suspend, abs=2)

    with_pair(scenario)


def test_end_at_a_slave_is_the_end() -> None:
    """Who pulls until there is nothing new comes to an end at Apache's slaves, too; progress is not guessed there."""

    async def scenario(pair: Pair) -> None:
        pair.slave.overrides[PULL] = answers(20, "OFFSET_OVERFLOW_ONE")
        pair.route(None, pair.slave)
        consumer = pair.cluster.queue_pull()
        await pair.cluster.launch(consumer)
        result = await consumer.pull(Q0, 7)
        assert (result.status, result.next_offset) == (PullStatus.NO_NEW_MSG, 7)
        pair.slave.overrides[PULL] = lambda request: request.reply(
            20, "", {"suggestWhichBrokerId": "0", "nextBeginOffset": "7", "minOffset": "0", "maxOffset": "9"}
        )
        assert (await consumer.pull(Q0, 7)).status is PullStatus.NO_MATCHED_MSG

    with_pair(scenario)


# --- progress --------------------------------------------------------------------------------------


def test_progress_goes_to_the_slave_and_to_the_master_as_soon_as_it_is_back() -> None:
    """S2-34, S3-19: to the master, without one to the slave, never by a pull there; what the master missed it hears
    before the timer of commits, for whoever takes the queue over asks it."""

    async def scenario(pair: Pair) -> None:
        pair.put("a")
        await pair.reader(Bodies(), persist_interval=40.0)
        await asyncio.sleep(41)
        assert pair.master.committed(Q0) == 1
        assert pair.slave.committed(Q0) == 0
        await pair.kill_master()
        pair.slave.put("T", 0, "b", "c")
        await asyncio.sleep(42)
        assert pair.slave.committed(Q0) == 3
        assert not any(int(asked.fields["sysFlag"]) & 1 for asked in pair.slave.of(PULL))
        pair.master.queues = pair.slave.queues
        new = await pair.restart_master()
        assert new.committed(Q0) == 1
        await asyncio.sleep(33)
        assert new.committed(Q0) == 3
        (commit, *_) = new.of(UPDATE)
        (first, *_) = new.of(RequestCode.HEART_BEAT)
        assert commit.at - first.at < 0.1

    with_pair(scenario)


def test_who_was_cut_off_itself_tells_the_master_nothing_at_once() -> None:
    """Others may have its queue by now, and be further."""

    async def scenario(pair: Pair) -> None:
        pair.put("a")
        await pair.reader(Bodies(), persist_interval=40.0)
        await asyncio.sleep(1)
        network = pair.cluster.network
        assert network is not None
        network.reset(pair.master.address.partition(":")[0])
        await asyncio.sleep(20)
        assert len(pair.master.of(RequestCode.HEART_BEAT)) > 1, "it is back"
        assert not pair.master.of(UPDATE)

    with_pair(scenario)


def test_who_joins_while_the_master_is_dead_goes_on_from_the_slaves_offset() -> None:
    """S2-05, S2-34: members and offset from any replica."""

    async def scenario(pair: Pair) -> None:
        pair.put(*"abc")
        pair.slave.offsets[("g", "T", 0)] = 2
        await pair.kill_master()
        bodies = Bodies()
        await pair.reader(bodies)
        await asyncio.sleep(1)
        assert bodies == ["c"]
        assert pair.slave.of(MEMBERS) and pair.slave.of(QUERY)

    with_pair(scenario)


def test_progress_that_a_slave_does_not_know_is_not_taken_for_none() -> None:
    """It copies offsets now and then. A group that it has not heard of may have been anywhere: it would begin at the
    end, and miss what it has not read. So the queue waits for the master."""

    async def scenario(pair: Pair) -> None:
        pair.put(*"abc")
        pair.master.offsets[("g", "T", 0)] = 1
        del pair.slave.offsets[("g", "T", 0)]
        await pair.kill_master()
        bodies = Bodies()
        consumer = await pair.reader(bodies)
        await asyncio.sleep(5)
        assert bodies == [] and not consumer.assignment.get("T")
        with pytest.raises(QueryNotFoundError, match="broker-a is gone and its slave"):
            await consumer.offsets.read(Q0, ReadFrom.STORE)
        await pair.restart_master()
        await asyncio.sleep(40)
        assert bodies == ["b", "c"]

    with_pair(scenario)


def test_failed_messages_are_kept_until_a_master_takes_them() -> None:
    """36 needs a master, and there is no other broker for the retry topic: the message comes again here."""

    async def scenario(pair: Pair) -> None:
        pair.put("a")
        tries: list[float] = []

        async def fails(message: MessageView) -> ConsumeResult:
            tries.append(asyncio.get_running_loop().time())
            return ConsumeResult.LATER

        await pair.kill_master()
        await pair.reader(fails)
        await asyncio.sleep(30)
        assert len(tries) > 2
        assert not pair.slave.of(RequestCode.CONSUMER_SEND_MSG_BACK)
        new = await pair.restart_master()
        await asyncio.sleep(60)
        assert len(new.of(RequestCode.CONSUMER_SEND_MSG_BACK)) == 1
        assert new.committed(Q0) == 1

    with_pair(scenario)


# --- locks -----------------------------------------------------------------------------------------


def test_ordered_consumers_stop_when_the_lock_expires() -> None:
    """S2-28: locks are the master's; nobody else is asked for one, and what was begun in time is finished."""

    async def scenario(pair: Pair) -> None:
        pair.put("a")
        bodies = Bodies()
        consumer = pair.cluster.push()
        consumer.subscribe("T", "*", bodies, ordered=True)
        await pair.cluster.launch(consumer)
        await asyncio.sleep(1)
        assert bodies == ["a"]
        await pair.kill_master()
        await asyncio.sleep(5)
        pair.slave.put("T", 0, "b")
        await asyncio.sleep(2)
        assert bodies == ["a", "b"], "the lock still counts"
        await asyncio.sleep(consumer.config.lock_live)
        pair.slave.put("T", 0, "c")
        await asyncio.sleep(60)
        assert bodies == ["a", "b"]
        assert not pair.slave.of(LOCK)
        pair.master.queues = pair.slave.queues
        await pair.restart_master()
        await asyncio.sleep(40)
        assert bodies == ["a", "b", "c"]

    with_pair(scenario)


def test_leased_queues_are_begun_by_nobody_while_there_is_no_master() -> None:
    """A lease is the master's word: without it nothing is begun after the margin, and when it is back, the queue goes
    on where it was."""

    async def scenario(pair: Pair) -> None:
        pair.put("a")
        bodies, fenced = Bodies(), list[object]()
        consumer = pair.cluster.push(handover="lease")
        consumer.on_event(lambda event: fenced.append(event) if isinstance(event, LeaseFenced) else None)
        consumer.subscribe("T", "*", bodies)
        await pair.cluster.launch(consumer)
        await asyncio.sleep(6)
        assert bodies == ["a"] and pair.master.committed(Q0) == 1
        await pair.kill_master()
        await asyncio.sleep(consumer.config.lease_margin)
        pair.slave.put("T", 0, "b")
        await asyncio.sleep(60)
        assert bodies == ["a"] and fenced
        assert not pair.slave.of(LOCK)
        pair.master.queues = pair.slave.queues
        await pair.restart_master()
        await asyncio.sleep(60)
        assert bodies == ["a", "b"]

    with_pair(scenario)


def test_acting_master_keeps_ordered_consumers_going() -> None:
    """The name server shows the slave that stands in as id 0; it is a master for all that concerns reading."""

    async def scenario(pair: Pair) -> None:
        pair.put("a")
        bodies = Bodies()
        consumer = pair.cluster.push()
        consumer.subscribe("T", "*", bodies, ordered=True)
        await pair.cluster.launch(consumer)
        await asyncio.sleep(1)
        await pair.master.close()
        pair.cluster.stand_ins_allowed = True
        pair.cluster.perms["T", "broker-a"] = 4
        pair.cluster.replicas["broker-a"] = {0: pair.slave.address}
        await asyncio.sleep(61)
        pair.slave.put("T", 0, "b")
        await asyncio.sleep(5)
        assert bodies == ["a", "b"]
        assert pair.slave.of(LOCK) and pair.slave.committed(Q0) == 2

    with_pair(scenario)


def test_master_is_found_soon_behind_a_slave_that_stood_in_for_a_moment() -> None:
    async def scenario(pair: Pair) -> None:
        pair.cluster.stand_ins_allowed = True
        pair.put("a")
        await pair.reader(Bodies())
        await asyncio.sleep(1)
        await pair.kill_master()
        pair.cluster.perms["T", "broker-a"] = 4
        pair.cluster.replicas["broker-a"] = {0: pair.slave.address}
        await asyncio.sleep(3)
        del pair.cluster.perms["T", "broker-a"]
        new = await pair.restart_master()
        await asyncio.sleep(6)
        assert new.of(RequestCode.HEART_BEAT), "long before the next poll of routes"

    with_pair(scenario)
