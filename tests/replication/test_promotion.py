"""A slave takes over from a master that is gone, and the old master comes back: what each of them has and does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.broker.broker import Broker
from gimbalmq.broker.config import BrokerConfig
from gimbalmq.client.transaction import TransactionProducer
from gimbalmq.errors import RocketMQError
from gimbalmq.model.message import Message, MessageView
from gimbalmq.model.record import Record, iter_records
from gimbalmq.model.results import TransactionState
from gimbalmq.protocol.bodies import TopicConfig
from gimbalmq.protocol.codes import ResponseCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.headers.messages import PullMessage
from gimbalmq.rpc import management
from gimbalmq.store import MessageStore
from gimbalmq.transport.descriptors import budget
from tests.peers.folders import Log, compare
from tests.replication.cable import HEAD_BYTES, Cut, Packet
from tests.replication.pair import HA_DISTANCE, QUEUES, SETTINGS, SLOTS, TOPIC, Pair, happens, pair
from tests.robustness.load import send_request
from tests.support import run

SECONDS = 60.0


async def promote(both: Pair, role: str = "ASYNC_MASTER") -> Broker:
    """What `gimbalmq broker promote` tells the slave."""
    await management.update_broker_config(
        both.pool, both.slave.address, {"brokerRole": role, "brokerId": "0"}
    )
    return both.slave


async def pulled(both: Pair, address: str, topic: str, queue: int, offset: int = 0) -> list[Record]:
    header = PullMessage(
        consumer_group="reader",
        topic=topic,
        queue_id=queue,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=4,
        subscription="*",
    )
    answer = await both.pool.call(address, RemotingCommand(11, header.to_ext()), 10.0)
    known = (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.TOPIC_NOT_EXIST)
    assert answer.code in known, answer.remark
    return list(iter_records(bytes(answer.body or b""), check_crc=True))


async def until(look: Callable[[], Awaitable[bool]], what: str) -> None:
    try:
        async with asyncio.timeout(20.0):
            while not await look():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"it did not happen that {what}") from None


async def send(both: Pair, address: str, count: int, label: bytes, size: int = 100) -> list[int]:
    """One after the other, so that two brokers that are sent the same get logs of the same length."""
    codes = []
    for number in range(count):
        body = (b"%b%05d" % (label, number)).ljust(size, b"y")
        answer = await both.pool.call(address, send_request(body, number % QUEUES, TOPIC), 10.0)
        codes.append(int(answer.code))
    return codes


def test_queues_go_on_without_a_gap_at_the_new_master(tmp_path: Path) -> None:
    async def work() -> None:
        async with pair(tmp_path) as both:
            assert set(await both.send(50)) == {0}
            await both.kill("master")
            new = await promote(both)
            assert set(await send(both, new.address, 40, b"new")) == {0}
            await both.stop("slave")
            found = Log.read(both.folder("slave")).bodies(TOPIC)
            assert {body for bodies in found.values() for body in bodies} >= set(both.accepted)
            assert sum(map(len, found.values())) == 90
            assert not compare(both.folder("slave"), both.folder("slave"), slots=SLOTS).differences

    run(work(), SECONDS)


def test_a_topic_made_just_before_the_master_died_is_served(tmp_path: Path) -> None:
    """The log is copied at once, tables once a second: a message may be there before its topic is."""

    async def work() -> None:
        async with pair(tmp_path) as both:
            config = TopicConfig(topic_name="Fresh", read_queue_nums=6, write_queue_nums=6)
            await management.create_topic(both.pool, both.master.address, config)
            request = send_request(b"fresh", 5, "Fresh")
            assert (await both.pool.call(both.master.address, request, 10.0)).code == 0
            await both.kill("master")
            new = await promote(both)
            assert [record.body for record in await pulled(both, new.address, "Fresh", 5)] == [b"fresh"]
            request = send_request(b"more", 5, "Fresh")
            answer = await both.pool.call(new.address, request, 10.0)
            assert answer.code == 0, answer.remark
            assert len(await pulled(both, new.address, "Fresh", 5)) == 2

    run(work(), SECONDS)


@pytest.mark.parametrize("topic", [TOPIC, "Fresh"])
@pytest.mark.parametrize("kind", ["level", "timer"])
def test_delayed_messages_are_delivered_by_the_new_master(kind: str, topic: str, tmp_path: Path) -> None:
    """Also those for a topic that was made so shortly before that the slave's table does not have it."""

    async def work() -> None:
        async with pair(tmp_path, messageDelayLevel="1s 2s") as both:
            assert set(await both.send(4)) == {0}
            config = TopicConfig(topic_name="Fresh", read_queue_nums=6, write_queue_nums=6)
            await management.create_topic(both.pool, both.master.address, config)
            request = send_request(b"later", 0, topic)
            added = "DELAY\x011\x02" if kind == "level" else "TIMER_DELAY_MS\x011200\x02"
            request.ext_fields = {**(request.ext_fields or {}), "i": (request.ext_fields or {})["i"] + added}
            answer = await both.pool.call(both.master.address, request, 10.0)
            assert answer.code == 0, answer.remark
            await both.kill("master")
            new = await promote(both)

            async def came() -> bool:
                found = await pulled(both, new.address, topic, 0)
                return b"later" in [record.body for record in found]

            await until(came, "the delayed message was delivered")

    run(work(), SECONDS)


def test_an_open_transaction_is_checked_and_committed_by_the_new_master(tmp_path: Path) -> None:
    async def work() -> None:
        options = {"transactionCheckInterval": 200, "transactionTimeOut": 300, "transactionCheckMax": 1000}
        async with pair(tmp_path, **options) as both:

            async def undecided(message: Message) -> TransactionState:
                return TransactionState.UNKNOWN

            async def commits(message: MessageView) -> TransactionState:
                return TransactionState.COMMIT

            async with TransactionProducer(
                "half", both.namesrv, check=commits, heartbeat_interval=0.3, poll_namesrv_interval=0.3
            ) as producer:
                await producer.send_in_transaction(Message(TOPIC, b"open"), undecided)
                await both.kill("master")
                new = await promote(both)

                async def came() -> bool:
                    bodies = []
                    for queue in new.store.queue_ids(TOPIC):
                        bodies += [record.body for record in await pulled(both, new.address, TOPIC, queue)]
                    return b"open" in bodies

                await until(came, "the transaction was committed")

    run(work(), SECONDS)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        pytest.param(0, 5, id="the new master wrote nothing"),
        pytest.param(2, 5, id="the new master's log is shorter"),
        pytest.param(5, 5, id="both logs are equally long"),
        pytest.param(40, 5, id="the new master's log is longer"),
    ],
)
def test_an_old_master_with_messages_of_its_own_is_refused(theirs: int, ours: int, tmp_path: Path) -> None:
    """Its log stays as it is, and it says which offsets there are and what to do."""

    async def work() -> None:
        async with pair(tmp_path) as both:
            assert set(await both.send(20)) == {0}
            await both.level()
            common = both.master.store.max_commitlog_offset
            both.cable.plugged = False
            both.cable.cut()
            await happens(lambda: not both.master.replication.source.replicas, "the slave was gone")
            assert set(await send(both, both.master.address, ours, b"old")) == {11}
            await both.kill("master")
            new = await promote(both)
            assert set(await send(both, new.address, theirs, b"new")) <= {0}
            ends = Log.read(both.folder("master")).end, new.store.max_commitlog_offset
            before = Log.read(both.folder("master")).raw(0, ends[0])
            address = f"127.0.0.1:{both.ports['slave'] + HA_DISTANCE}"
            old = await both.start("master", brokerRole="SLAVE", brokerId=2, haMasterAddress=address)
            follower = old.replication.follower
            await happens(lambda: str(follower.state) == "refused", "the old master was refused")
            said = follower.trouble or ""
            assert str(ends[0]) in said and str(ends[1]) in said, said
            await both.stop("master")
            assert Log.read(both.folder("master")).raw(0, ends[0]) == before
            log = Log.read(both.folder("master"))
            assert log.end == ends[0] > common

    run(work(), SECONDS)


def cut_off(both: Pair, offset: int) -> None:
    """Takes the end of the stopped master's log, as a power cut may."""
    keys = {key: str(value) for key, value in SETTINGS.items()}
    config, _ = BrokerConfig.from_properties({**keys, "storePathRootDir": str(both.folder("master"))})
    store = MessageStore(config.store_config(both.ports["master"], budget()), SYSTEM_CLOCK)
    store.load()
    store.follow()
    store.cut(offset)
    store.close()


def test_half_a_record_is_not_joined_with_half_of_another(tmp_path: Path) -> None:
    """The master dies while it sends a record, loses it, and stores another one at its place. Both have the same body,
    so no check sum would tell if the slave had the beginning of the one and the end of the other."""

    async def work() -> None:
        async with pair(tmp_path) as both:
            assert set(await both.send(10)) == {0}
            await both.level()
            end = both.master.store.max_commitlog_offset

            def half(packet: Packet) -> bytes:
                if not packet.data:
                    return packet.encoded()
                both.cable.plugged = False
                raise Cut(packet.encoded()[: HEAD_BYTES + 60], again=True)

            both.cable.on_packet = half
            sending = asyncio.create_task(send(both, both.master.address, 1, b"same"))
            await happens(lambda: both.cable.cuts, "half a record was sent")
            await both.stop("master")
            with contextlib.suppress(RocketMQError):
                await sending
            assert both.slave.store.max_commitlog_offset == end
            cut_off(both, end)
            await asyncio.sleep(0.005)  # the other record is stored at another millisecond
            await both.start("master")
            assert await send(both, both.master.address, 1, b"same") == [11]
            both.cable.pass_all()
            await both.end_and_compare(least=11)

    run(work(), SECONDS)


@pytest.mark.parametrize("more", [0, 3, 40])
def test_a_master_that_lost_its_end_does_not_get_its_slave_back(more: int, tmp_path: Path) -> None:
    """A power cut took records that were copied. Whether its log is shorter than the slave's or has passed it by then:
    the slave is refused, nothing of it changes, and nothing counts as copied."""

    async def work() -> None:
        async with pair(tmp_path) as both:
            assert set(await both.send(30)) == {0}
            await both.level()
            await both.stop("master")
            copy = Log.read(both.folder("slave"))
            cut_off(both, copy.records[-3].place)
            both.cable.plugged = False  # so that it comes when the log has grown
            await both.start("master")
            assert set(await send(both, both.master.address, more, b"new")) <= {11}
            both.cable.plugged = True
            follower = both.slave.replication.follower
            await happens(lambda: str(follower.state) == "refused", "the slave was refused")
            assert str(copy.end) in (follower.trouble or ""), follower.trouble
            assert set(await send(both, both.master.address, 5, b"new")) == {11}
            await both.stop("slave")
            after = Log.read(both.folder("slave"))
            assert (after.end, after.raw(0, after.end)) == (copy.end, copy.raw(0, copy.end))

    run(work(), SECONDS)


@pytest.mark.parametrize("when", ["before the transfer", "before the report", "before the answer"])
def test_a_master_killed_at_any_point_of_a_send_loses_nothing_acknowledged(when: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with pair(tmp_path) as both:
            assert set(await both.send(20)) == {0}
            await both.level()
            end = both.master.store.max_commitlog_offset
            if when == "before the transfer":
                both.cable.on_packet = lambda packet: b""
            elif when == "before the report":
                both.cable.on_report = lambda report: b""
            sending = asyncio.create_task(both.send(5))
            await happens(lambda: both.master.store.max_commitlog_offset > end, "the messages were stored")
            if when == "before the report":
                await both.level()
            elif when == "before the answer":
                await happens(lambda: both.slave.store.max_commitlog_offset > end, "the slave had them")
            await both.kill("master")
            with contextlib.suppress(RocketMQError):
                await sending
            new = await promote(both)
            assert set(await send(both, new.address, 8, b"new")) == {0}
            await both.stop("slave")
            found = {
                body for bodies in Log.read(both.folder("slave")).bodies(TOPIC).values() for body in bodies
            }
            assert found >= set(both.accepted)
            assert not compare(both.folder("slave"), both.folder("slave"), slots=SLOTS).differences

    run(work(), SECONDS)
