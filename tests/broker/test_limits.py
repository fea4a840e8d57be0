"""What clients make a broker keep is bounded, costs the others no time, and goes with them."""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from pathlib import Path

import pytest

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.broker.clients import Consumers, Producers
from gimbalmq.broker.config import BrokerConfig, LiveConfig
from gimbalmq.broker.longpoll import LONGEST_LOOK, PULLS_PER_TURN, LongPoll, Parked
from gimbalmq.broker.notices import GroupNotices
from gimbalmq.errors import ConfigError, SystemBusyError
from gimbalmq.filter.tags import MAX_EXPRESSION, MAX_TAGS, check_tags, parse_tags
from gimbalmq.protocol.bodies import (
    ConsumerData,
    Heartbeat,
    LockRequest,
    ProducerData,
    QueueObject,
    Subscription,
)
from gimbalmq.protocol.codes import RequestCode, ResponseCode
from gimbalmq.protocol.command import BINARY_HEADER, RemotingCommand
from gimbalmq.protocol.serializers import encode_frame
from gimbalmq.store.consumequeue import QueueLog
from gimbalmq.transport.channel import Channel, Handlers
from tests.broker.desk import Desk, fields, open_desk, pull_fields, pulled, send_fields, turns
from tests.support import ManualClock, run, until

SUSPEND = 2 | 4
FOREVER_MS = 10**12


def _poll(**limits: int) -> LongPoll:
    return LongPoll(lambda _queue, _offset: [], LiveConfig(BrokerConfig(**limits)))  # type: ignore[arg-type]


async def _park_many(desk: Desk, count: int, *, first: int = 0, **options: object) -> Channel:
    """So many pulls in one go, from one connection of their own."""
    channel = await desk.new_client().channel()
    settings = {"flags": SUSPEND, "suspend_ms": FOREVER_MS} | options
    for number in range(first, first + count):
        ext = pull_fields("T", 0, 0, **settings)  # type: ignore[arg-type]
        channel.send(RemotingCommand(RequestCode.PULL_MESSAGE, ext, opaque=number))
    return channel


# -- parked pulls --------------------------------------------------------------------------


def test_parked_pulls_go_with_their_connection(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            channel = await _park_many(desk, 300)
            other = await _park_many(desk, 5)
            await until(lambda: len(desk.broker.long_poll) == 305)
            channel.abort()
            await until(lambda: len(desk.broker.long_poll) == 5)
            other.abort()
            await until(lambda: not desk.broker.long_poll._by_owner and not desk.broker.long_poll._parked)

    run(work())


@pytest.mark.parametrize("option", ["maxParkedPulls", "maxParkedPullsPerConnection"])
def test_parked_pulls_are_bounded(tmp_path: Path, option: str) -> None:
    async def work() -> None:
        async with open_desk(tmp_path, SYSTEM_CLOCK, **{option: 20}) as desk:
            await desk.create("T")
            await _park_many(desk, 20)
            await until(lambda: len(desk.broker.long_poll) == 20)
            client = desk.clients[-1]
            answer = await client.pull(flags=SUSPEND, suspend_ms=15_000)
            assert answer.code == ResponseCode.SYSTEM_BUSY and option in (answer.remark or "")
            # Somebody else's is held, if only its connection is full; and a message is never refused.
            stranger = asyncio.ensure_future(desk.client.pull(flags=SUSPEND, suspend_ms=15_000))
            if option == "maxParkedPulls":
                assert (await stranger).code == ResponseCode.SYSTEM_BUSY
            else:
                await until(lambda: len(desk.broker.long_poll) == 21)
            await desk.new_client().send(body=b"news")
            assert (await client.pull(flags=SUSPEND, suspend_ms=15_000)).code == 0
            await stranger

    run(work())


@pytest.mark.parametrize("millis", [FOREVER_MS, 2**62, 60])
def test_the_time_a_client_wants_to_wait_is_capped(tmp_path: Path, millis: int) -> None:
    async def work() -> None:
        async with open_desk(tmp_path, longPollingMaxTimeMills=50) as desk:
            await desk.create("T")
            assert (await desk.client.pull(flags=SUSPEND, suspend_ms=millis)).code == 19

    run(work())


@pytest.mark.parametrize("millis", [0, -1, -(2**60)])
def test_no_time_to_wait_is_an_answer_at_once(tmp_path: Path, millis: int) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            assert (await desk.client.pull(flags=SUSPEND, suspend_ms=millis)).code == 19

    run(work())


def test_one_message_for_thousands_that_wait_is_told_in_steps() -> None:
    async def work() -> None:
        poll = _poll()
        queue = QueueLog("T", 0)
        woken: list[int] = []
        for number in range(1000):
            poll.park(Parked(("T", 0), "g", None, 0, number % 7, partial(woken.append, number)), 60)
        queue.max_offset = 1
        poll.arrived([queue])
        steps = [len(woken)]
        while len(woken) < 1000:
            await asyncio.sleep(0)
            steps.append(len(woken))
        assert max(later - earlier for earlier, later in itertools.pairwise([0, *steps])) <= PULLS_PER_TURN
        assert woken == list(range(1000)) and len(poll) == 0

    run(work())


def test_what_arrives_while_many_are_looked_at_is_seen_by_all() -> None:
    async def work() -> None:
        entries = [7, 3]
        queue = QueueLog("T", 0)
        poll = LongPoll(lambda _queue, offset: entries[offset : queue.max_offset], LiveConfig(BrokerConfig()))
        woken: list[int] = []
        for number in range(300):
            poll.park(Parked(("T", 0), "g", frozenset({3}), 0, "c", partial(woken.append, number)), 60)
        queue.max_offset = 1
        poll.arrived([queue])
        await asyncio.sleep(0)
        assert not woken
        queue.max_offset = 2  # in the middle of the look: some have looked at the first message only
        poll.arrived([queue])
        await until(lambda: len(woken) == 300)

    run(work())


def test_deadlines_that_come_together_are_met_in_steps() -> None:
    async def work() -> None:
        poll = _poll()
        woken: list[int] = []
        for number in range(500):
            poll.park(Parked(("T", number), "g", None, 0, "c", partial(woken.append, number)), 0.05)
        most = 0
        while len(woken) < 500:
            before = len(woken)
            await asyncio.sleep(0)
            most = max(most, len(woken) - before)
        assert most <= PULLS_PER_TURN
        assert len(poll) == 0 and not poll._by_tick and not poll._ticks

    run(work())


def test_a_pull_far_behind_looks_for_itself() -> None:
    async def work() -> None:
        poll = _poll()  # whose tags are never asked for: it knows none
        queue = QueueLog("T", 0)
        woken: list[str] = []
        poll.park(Parked(("T", 0), "g", frozenset({3}), 0, "c", lambda: woken.append("far")), 60)
        queue.max_offset = LONGEST_LOOK + 1
        poll.arrived([queue])
        assert woken == ["far"]

    run(work())


def test_a_full_broker_parks_no_more_and_says_which_option() -> None:
    async def work() -> None:
        poll = _poll(max_parked_pulls=1)
        poll.park(Parked(("T", 0), "g", None, 0, "c", lambda: None), 60)
        with pytest.raises(SystemBusyError, match="pull again later, or raise maxParkedPulls"):
            poll.park(Parked(("T", 0), "g", None, 0, "d", lambda: None), 60)
        poll.disconnected("c")
        assert len(poll) == 0 and not poll._by_owner

    run(work())


def test_a_parked_pull_keeps_nothing_of_what_came_with_it(tmp_path: Path) -> None:
    """A body or unknown fields of megabytes must not wait with it."""

    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            channel = await desk.client.channel()
            ext = pull_fields("T", 0, 0, flags=SUSPEND, suspend_ms=15_000) | {
                "bname": "x" * 9_999,
                "junk": "y" * 9_999,
            }
            request = RemotingCommand(
                RequestCode.PULL_MESSAGE, ext, b"z" * 9_999, serialize_type=BINARY_HEADER
            )
            answer = asyncio.ensure_future(channel.call(request, 20.0))
            await until(lambda: len(desk.broker.long_poll) == 1)
            (pull,) = itertools.chain(*desk.broker.long_poll._parked.values())
            kept = [cell.cell_contents for cell in pull.resume.__closure__ or ()]
            kept += [
                cell.cell_contents for inner in kept for cell in getattr(inner, "__closure__", None) or ()
            ]
            assert "xxx" not in repr(kept) and "yyy" not in repr(kept)
            assert all(not item.body for item in kept if isinstance(item, RemotingCommand))
            await desk.new_client().send(body=b"news")
            assert [record.body for record in pulled(await answer)] == [b"news"]

    run(work())


def test_woken_pulls_of_a_peer_that_does_not_read_wait(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            _, writer = await asyncio.open_connection("127.0.0.1", desk.broker.port)
            for number in range(400):
                ext = pull_fields("T", 0, 0, flags=SUSPEND, suspend_ms=50_000)
                writer.write(encode_frame(RemotingCommand(RequestCode.PULL_MESSAGE, ext, opaque=number)))
            await until(lambda: len(desk.broker.long_poll) == 400)
            await desk.client.send(body=bytes(200_000))
            await until(lambda: len(desk.broker.long_poll) == 0)
            await turns()
            # 80 MB would wait for it; the line takes some, then the answers are not even made.
            assert desk.broker.load.waiting_bytes < 4_000_000
            assert desk.broker.load.connections == 2, "it is not closed for being slow"
            writer.transport.abort()
            await until(lambda: desk.broker.load.connections == 1)
            assert desk.broker.load.waiting_bytes == 0

    run(work())


# -- heartbeats, groups, topics --------------------------------------------------------------


def _beat(
    *groups: str, producers: tuple[str, ...] = (), client_id: str = "c", expression: str = "*"
) -> bytes:
    return Heartbeat(
        client_id=client_id,
        consumer_data_set=[
            ConsumerData(
                group_name=group,
                subscription_data_set=[Subscription(topic="T", sub_string=expression, sub_version=1)],
            )
            for group in groups
        ],
        producer_data_set=[ProducerData(group_name=group) for group in producers],
    ).dump()


def test_heartbeats_are_bounded(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(
            tmp_path,
            maxGroupMembers=5,
            maxGroupsPerConnection=3,
            maxHeartbeatBytes=4096,
            maxSubscriptionBytes=3000,
        ) as desk:
            client = desk.client

            async def beats(body: bytes, by: object = None) -> tuple[int, str]:
                answer = await (by or client).ask(RequestCode.HEART_BEAT, None, body)  # type: ignore[attr-defined]
                return answer.code, answer.remark or ""

            assert (await beats(_beat("a", "b", producers=("p",))))[0] == 0
            assert (await beats(_beat("a", "b", producers=("p",))))[0] == 0, "the same again"
            before = len(desk.broker.topics)
            for body, name in (
                (_beat("c"), "maxGroupsPerConnection"),
                (_beat(producers=("q",)), "maxGroupsPerConnection"),
                (_beat("a", client_id="x" * 5000), "maxHeartbeatBytes"),
                (_beat("a", client_id="x" * 2000), "client id"),
                (_beat(producers=("x" * 1000,)), "producer group"),
            ):
                code, remark = await beats(body)
                assert code != 0 and name in remark, remark
            assert len(desk.broker.topics) == before, "refused before anything was made"
            other = desk.new_client()
            assert (await beats(_beat("a", "b"), other))[0] == 0
            code, remark = await beats(_beat("a"), desk.new_client())
            assert code == ResponseCode.SYSTEM_BUSY and "maxGroupMembers" in remark
            code, remark = await beats(_beat("a", expression="x" * 1500), other)
            assert code == ResponseCode.SYSTEM_BUSY and "maxSubscriptionBytes" in remark
            assert (await beats(_beat("a", "b"), other))[0] == 0, "what does not grow is always heard"

    run(work())


def test_groups_and_topics_that_one_connection_makes_are_bounded(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(
            tmp_path, maxGroupsCreatedPerConnection=2, maxTopicsCreatedPerConnection=2
        ) as desk:
            client = desk.client
            answer = await client.ask(RequestCode.HEART_BEAT, None, _beat("a", "b", "c", "a"))
            assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            assert "maxGroupsCreatedPerConnection" in (answer.remark or "")
            assert desk.broker.groups.known("c") is None and "%RETRY%c" not in desk.broker.topics
            assert await client.members("a") == await client.members("b") == ["c"], "the others are heard"
            for topic in ("X", "Y", "X"):
                await client.ok(RequestCode.SEND_MESSAGE_V2, send_fields(topic), b"x")
            answer = await client.ask(RequestCode.SEND_MESSAGE_V2, send_fields("Z"), b"x")
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST
            assert "maxTopicsCreatedPerConnection" in (answer.remark or "") and "Z" not in desk.broker.topics
            answer = await client.pull("X", group="other")
            assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            offset = {"consumerGroup": "other", "topic": "X", "queueId": "0", "commitOffset": "0"}
            answer = await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, offset)
            assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            assert desk.broker.groups.known("other") is None
            # An operator may go on, and so may others.
            await desk.create("Z")
            await client.ok(RequestCode.SEND_MESSAGE_V2, send_fields("Z"), b"x")
            assert (await desk.new_client().pull("X", group="other")).code == 0

    run(work())


def test_topics_and_groups_that_clients_make_are_bounded_altogether(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            limits = {
                "autoCreateTopicLimit": len(desk.broker.topics) + 1,
                "autoCreateSubscriptionGroupLimit": len(desk.broker.groups) + 1,
            }
            desk.broker.live.update({key: str(value) for key, value in limits.items()})
            await desk.new_client().ok(RequestCode.SEND_MESSAGE_V2, send_fields("X"), b"x")
            answer = await desk.new_client().ask(RequestCode.SEND_MESSAGE_V2, send_fields("Y"), b"x")
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST and "autoCreateTopicLimit" in (
                answer.remark or ""
            )
            assert (await desk.new_client().pull("T", group="g1")).code == 19
            answer = await desk.new_client().pull("T", group="g2")
            assert "autoCreateSubscriptionGroupLimit" in (answer.remark or "")

    run(work())


def test_expressions_are_bounded_where_they_come_in(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            too_long = "a" * (MAX_EXPRESSION + 1)
            answer = await desk.client.pull(expression=too_long)
            assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
            assert str(MAX_EXPRESSION) in (answer.remark or "")
            answer = await desk.client.ask(RequestCode.HEART_BEAT, None, _beat("g", "h", expression=too_long))
            assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
            assert desk.broker.consumers.group("g") is None
            tags = ["a"] * (MAX_TAGS + 1)
            for sets in ({"tags_set": tags}, {"code_set": list(range(MAX_TAGS + 1))}):
                wanted = Subscription(topic="T", sub_version=1, **sets)
                data = ConsumerData(group_name="g", subscription_data_set=[wanted])
                beat = Heartbeat(client_id="c", consumer_data_set=[data]).dump()
                answer = await desk.client.ask(RequestCode.HEART_BEAT, None, beat)
                assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED and str(MAX_TAGS) in (
                    answer.remark or ""
                )

    run(work())
    with pytest.raises(ValueError, match=str(MAX_TAGS)):
        parse_tags("||".join(map(str, range(MAX_TAGS + 1))))
    most = parse_tags("||".join(map(str, range(MAX_TAGS))))
    assert most.tags is not None and len(most.tags) == MAX_TAGS


@pytest.mark.parametrize("expression", ["", " ", "*", " * ", "a", "a||b", "||a", "|", "|||"])
def test_expressions_that_heartbeats_may_have(expression: str) -> None:
    check_tags(expression)
    parse_tags(expression)


@pytest.mark.parametrize("expression", ["||", " || ", "||||", "|| ||\t"])
def test_expressions_without_a_tag(expression: str) -> None:
    """Checked without being read: a heartbeat may have thousands, and the loop stands still meanwhile."""
    with pytest.raises(ValueError, match="names no tag"):
        check_tags(expression)


def test_queues_are_locked_only_where_they_exist(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock) as desk:
            await desk.create("T", queues=2)
            await desk.client.heartbeat(group="g")

            async def lock(
                group: str, topic: str, queue_id: int, broker: str = "broker-a", owner: str = "c"
            ) -> int:
                wanted = [QueueObject(topic=topic, broker_name=broker, queue_id=queue_id)]
                body = LockRequest(client_id=owner, consumer_group=group, mq_set=wanted).dump()
                answer = await desk.client.json(RequestCode.LOCK_BATCH_MQ, None, body)
                return len(answer["lockOKMQSet"])

            assert await lock("g", "T", 1) == 1
            for refused in (
                lock("g", "T", 2),
                lock("g", "T", -1),
                lock("g", "nowhere", 0),
                lock("unknown", "T", 0),
                lock("g", "T", 0, broker="other"),
                lock("g", "T", 0, owner="x" * 2000),
            ):
                assert await refused == 0
            assert len(desk.broker.locks) == 1
            clock.advance(61)
            desk.broker.locks.expire()
            assert len(desk.broker.locks) == 0 and not desk.broker.locks._held

    run(work())


# -- members ---------------------------------------------------------------------------------


def test_a_thousand_joins_of_one_group_are_not_a_million_notices() -> None:
    async def work() -> None:
        consumers = Consumers(ManualClock())
        notices = GroupNotices(consumers)
        sent = [0]

        class Line(Channel):
            def send_bytes(self, data: bytes | memoryview) -> None:
                sent[0] += 1

        request = RemotingCommand(34)
        lines = [Line(Handlers()) for _ in range(1000)]
        for number, line in enumerate(lines):
            consumers.heartbeat(ConsumerData(group_name="g"), line, f"c{number}", request)
            notices.tell("g")
            if number % 10 == 0:
                before = sent[0]
                await asyncio.sleep(0)
                assert sent[0] - before <= 64 + 16 * 10
        await until(lambda: len(notices) == 0)
        assert 1000 <= sent[0] < 30_000
        for line in lines:
            assert len(consumers.disconnected(line)) == 1
        assert len(consumers) == consumers.size == 0 and not consumers.groups()

    run(work())


def test_silent_members_are_found_without_a_look_at_the_others() -> None:
    async def work() -> None:
        clock = ManualClock()
        consumers, producers = Consumers(clock), Producers(clock)
        request = RemotingCommand(34)
        lines = [Channel(Handlers()) for _ in range(20)]
        for number, line in enumerate(lines):
            clock.advance(1)
            consumers.heartbeat(ConsumerData(group_name=f"g{number % 3}"), line, "c", request)
            producers.heartbeat("p", line, f"c{number}", request)
        consumers.heartbeat(ConsumerData(group_name="g0"), lines[0], "c", request)  # heard again
        assert producers.find_client("c5") is lines[5]
        assert set(consumers.expire(15)) == set(lines[1:4])
        assert set(producers.expire(15)) == set(lines[0:4])
        assert producers.find_client("c1") is None
        picked = [producers.pick("p") for _ in range(32)]
        assert picked == [*lines[4:], *lines[4:]], "each in its turn"
        for line in lines:
            consumers.disconnected(line)
            producers.disconnected(line)
        assert len(consumers) == len(producers) == 0 and not producers._by_client and not consumers.groups()

    run(work())


def test_everything_a_connection_made_the_broker_keep_goes_with_it(tmp_path: Path) -> None:
    async def work() -> None:
        clock = ManualClock()
        async with open_desk(tmp_path, clock, flushDiskType="SYNC_FLUSH") as desk:
            await desk.create("T")
            broker = desk.broker

            async def visit(number: int) -> None:
                client = desk.new_client()
                await client.heartbeat(f"c{number}", group=f"g{number % 5}", producer="p", liveness_ms=1000)
                await client.send(body=b"x")
                channel = await client.channel()
                for queue_id in range(4):
                    ext = pull_fields(
                        "T", queue_id, 10**6 if queue_id else 0, flags=SUSPEND, suspend_ms=FOREVER_MS
                    )
                    ext["queueOffset"] = "0"
                    channel.send(RemotingCommand(RequestCode.PULL_MESSAGE, ext, opaque=queue_id))
                wanted = [QueueObject(topic="T", broker_name="broker-a", queue_id=number % 4)]
                lock = LockRequest(client_id=f"c{number}", consumer_group=f"g{number % 5}", mq_set=wanted)
                await client.ok(RequestCode.LOCK_BATCH_MQ, None, lock.dump())
                channel.start_call(
                    RemotingCommand(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"y"), 5.0
                ).add_done_callback(lambda call: call.exception())
                await asyncio.sleep(0)
                await client.cut()

            for start in range(0, 200, 50):
                await asyncio.gather(*(visit(number) for number in range(start, start + 50)))
            await until(lambda: broker.load.connections == 1)
            await until(lambda: broker.load.in_flight == 0)
            clock.advance(61)
            broker.locks.expire()
            poll = broker.long_poll
            assert len(poll) == 0 and not poll._parked and not poll._by_owner
            assert not any(poll._by_tick.values()) and not poll._woken and not poll._grown
            assert len(broker.consumers) == len(broker.producers) == len(broker.locks) == 0
            assert (
                broker.consumers.size == 0
                and not broker.consumers.groups()
                and not broker.consumers._expelled
            )
            await until(lambda: len(broker.notices) == 0)
            assert broker.load.kept() == 2, "the desk's own connection, and its address"
            assert broker.load.partial_bytes == broker.load.waiting_bytes == 0

    run(work())


# -- options -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("serverMaxConnections", -1),
        ("frameMaxLength", 100),
        ("maxMessageSize", 16 * 1024 * 1024 - 1),
        ("frameMaxLength", 16_777_217),
        ("maxPendingWriteBytesPerConnection", 1),
        ("maxRequestsInFlight", 0),
        ("longPollingMaxTimeMills", 0),
        ("maxParkedPulls", 0),
        ("maxHeartbeatBytes", 10),
        ("autoCreateTopicLimit", -1),
    ],
)
def test_limits_have_ranges(key: str, value: int) -> None:
    with pytest.raises(ConfigError, match=key):
        BrokerConfig.from_properties({key: str(value)})


def test_idle_time_of_the_broker_is_an_option(tmp_path: Path) -> None:
    config, unknown = BrokerConfig.from_properties({"serverChannelMaxIdleTimeSeconds": "7"})
    assert not unknown and config.server_channel_max_idle_time_seconds == 7


def test_large_answers_are_small_while_much_waits(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_desk(tmp_path) as desk:
            await desk.create("T")
            for _ in range(6):
                await desk.client.send(body=bytes(100_000))
            assert len(pulled(await desk.client.pull(maxMsgBytes="8000000"))) == 6
            load = desk.broker.load
            much = load.limits.max_pending_write_bytes * 2 // 3
            load.waiting_bytes += much
            try:
                few = await desk.client.pull(maxMsgBytes="8000000")
            finally:
                load.waiting_bytes -= much
            assert len(pulled(few)) == 2 and fields(few)["nextBeginOffset"] == "2"

    run(work())


def test_the_largest_message_fits_into_a_frame() -> None:
    with pytest.raises(ConfigError, match="frameMaxLength=65536: use at most 0, or a larger frameMaxLength"):
        BrokerConfig(frame_max_length=65_536)
    assert BrokerConfig(frame_max_length=4 * 1024 * 1024 + 65_536).max_message_size == 4 * 1024 * 1024
