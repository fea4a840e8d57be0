"""The push consumer against scripted brokers: pulling, flow control, retry, broker requests, stopping."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gimbalmq.client.consumer_config import MessageModel, PushConsumerConfig
from gimbalmq.client.consuming.handlers import ConsumeContext, ConsumeResult
from gimbalmq.client.consuming.offsets import LocalOffsets, RemoteOffsets
from gimbalmq.client.events import DuplicatesSeen, OffsetReset, QueueStarted, RoundStarted
from gimbalmq.client.push_consumer import PushConsumer
from gimbalmq.errors import ConfigError, ResponseError, StateError
from gimbalmq.model.message import MessageView
from gimbalmq.model.properties import parse
from gimbalmq.model.queues import MessageQueue
from gimbalmq.protocol.bodies import Heartbeat
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.fastjson import queue_text
from gimbalmq.protocol.status_bodies import (
    ConsumeDirectlyResult,
    ConsumerRunningInfo,
    ConsumerStatusBody,
    QueueOffsets,
)
from tests.client.group_peers import GroupCluster, in_virtual_time, on_sockets, until
from tests.support import run

HEARTBEAT = RequestCode.HEART_BEAT
PULL = RequestCode.PULL_MESSAGE
UPDATE = RequestCode.UPDATE_CONSUMER_OFFSET
UNREGISTER = RequestCode.UNREGISTER_CLIENT
SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK
SEND = RequestCode.SEND_MESSAGE_V2
Q0 = MessageQueue("T", "broker-a", 0)


class Bodies(list[str]):
    """A handler that keeps the bodies."""

    async def __call__(self, message: MessageView) -> Any:
        self.append(message.body.decode())


async def started(
    cluster: GroupCluster, handler: Any, name: str = "c1#1", expression: str = "*", **options: Any
) -> PushConsumer:
    """A consumer of topic T that reads from the start."""
    ordered = options.pop("ordered", None)
    batch = options.pop("batch", None)
    if "T" not in cluster.topics:
        cluster.topic("T", 1)
    group = options.get("group", "g")
    for broker in cluster.brokers.values():
        for number in range(cluster.topics["T"].get(broker.name, 0)):
            broker.offsets.setdefault((group, "T", number), 0)
    consumer = cluster.push(name, **options)
    consumer.subscribe("T", expression, handler, ordered=ordered, batch=batch)
    await cluster.launch(consumer)
    return consumer


# --- options and subscriptions ---------------------------------------------------------------------


def test_defaults_are_javas() -> None:
    """S3-08, S4-16: 20 consume threads, pull interval 0, consume batch 1, pull batch 32, AVG."""
    config = PushConsumerConfig(namesrv="localhost:9876", group="g")
    assert (config.consume_threads, config.pull_interval) == (20, 0.0)
    assert (config.consume_message_batch_max_size, config.pull_batch_size) == (1, 32)
    assert config.allocate_strategy().name == "AVG"
    assert (config.pull_threshold_for_queue, config.pull_threshold_size_for_queue, config.max_span) == (
        1000,
        100,
        2000,
    )
    assert config.message_model is MessageModel.CLUSTERING


@pytest.mark.parametrize(
    "options",
    [
        {"consume_threads": 0},
        {"consume_message_batch_max_size": 1025},
        {"pull_batch_size": 0},
        {"pull_threshold_for_queue": 65536},
        {"pull_threshold_for_topic": 0},
        {"strategy": "NONE"},
        {"handover": "maybe"},
        {"consume_timestamp": "yesterday"},
        {"member_name": "a#b"},
        {"suspend_current_queue": 31.0},
        {"no_such_option": 1},
        {"group": "TOOLS_CONSUMER"},
        {"group": "a b"},
    ],
)
def test_options_that_cannot_be_used_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        PushConsumer(**{"group": "g", "namesrv": "localhost:9876", **options})


def test_a_consumer_without_a_subscription_does_not_start() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        with pytest.raises(StateError, match="subscribe"):
            await cluster.launch(cluster.push())

    in_virtual_time(scenario)


def test_ordered_and_concurrent_handlers_do_not_mix() -> None:
    """S3-06: the kind of handler chooses the kind of consumption, for the whole consumer."""
    consumer = PushConsumer("g", "localhost:9876")
    consumer.subscribe("T", "*", Bodies(), ordered=True)
    with pytest.raises(ConfigError):
        consumer.subscribe("U", "*", Bodies(), ordered=False)
    consumer.subscribe("V", "*", Bodies())
    assert consumer.ordered


def test_subscribing_after_start_tells_the_brokers_at_once() -> None:
    """S0-27: before start it is only noted; afterwards a heartbeat leaves at once."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.topic("U", 1)
        consumer = cluster.push()
        consumer.subscribe("T", "*", Bodies())
        assert cluster.broker.asked == []
        await cluster.launch(consumer)
        await asyncio.sleep(3)
        beats = len(cluster.broker.of(HEARTBEAT))
        consumer.subscribe("U", "A || B", Bodies())
        await asyncio.sleep(0.1)
        beat = Heartbeat.parse(cluster.broker.of(HEARTBEAT)[beats].body)
        told = {data.topic: data for data in beat.consumer_data_set[0].subscription_data_set}
        assert set(told) == {"T", "U", "%RETRY%g"}
        assert (told["U"].tags_set, told["U"].code_set) == (["A", "B"], [65, 66])
        await asyncio.sleep(0.1)
        assert consumer.assignment["U"] == [MessageQueue("U", "broker-a", 0)]

    in_virtual_time(scenario)


def test_the_heartbeat_tells_what_the_group_is() -> None:
    """S0-30 (consumer part), S3-04: the retry topic is subscribed by itself."""

    async def scenario(cluster: GroupCluster) -> None:
        await started(cluster, Bodies())
        data = Heartbeat.parse(cluster.broker.of(HEARTBEAT)[0].body).consumer_data_set[0]
        assert (data.group_name, data.consume_type, data.message_model) == (
            "g",
            "CONSUME_PASSIVELY",
            "CLUSTERING",
        )
        assert data.consume_from_where == "CONSUME_FROM_LAST_OFFSET"
        assert {item.topic for item in data.subscription_data_set} == {"T", "%RETRY%g"}

    in_virtual_time(scenario)


def test_sql_subscriptions_are_checked_with_a_broker_and_may_fail_the_start() -> None:
    """S1-21: the broker's own words; tags are not asked about."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        refusal = "The broker does not support consumer to filter message by SQL92"
        cluster.broker.overrides[RequestCode.CHECK_CLIENT_CONFIG] = lambda request: request.reply(1, refusal)
        consumer = cluster.push("c1#1", group="h")
        consumer.subscribe("T", "a > 1", Bodies(), expression_type="SQL92")
        with pytest.raises(ResponseError, match="SQL92"):
            await cluster.launch(consumer)
        assert not consumer.running
        await started(cluster, Bodies(), name="c2#1", expression="TagA")
        assert len(cluster.broker.of(RequestCode.CHECK_CLIENT_CONFIG)) == 1

    in_virtual_time(scenario)


def test_a_start_that_failed_leaves_nothing_behind_and_can_be_repeated() -> None:
    """Refused by a broker, or cancelled half way: no member, no task, no lock; then it works."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.from_start(Q0)
        overrides = cluster.broker.overrides
        overrides[RequestCode.CHECK_CLIENT_CONFIG] = lambda request: request.reply(1, "no")
        seen = Bodies()
        consumer = cluster.push("c1#1", handover="lease")
        consumer.subscribe("T", "a > 1", seen, expression_type="SQL92")
        events = consumer.events()
        with pytest.raises(ResponseError, match="no"):
            await cluster.launch(consumer)
        assert not consumer.running and not consumer._tasks._tasks
        assert not cluster.broker.clients("g")
        del overrides[RequestCode.CHECK_CLIENT_CONFIG]

        asked = asyncio.Event()

        def silent(request: RemotingCommand) -> None:
            asked.set()
            raise ResponseError("later", code=1)

        overrides[RequestCode.QUERY_CONSUMER_OFFSET] = silent
        starting = asyncio.ensure_future(cluster.launch(consumer))
        await asked.wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not consumer.running and not consumer._tasks._tasks
        assert not cluster.broker.clients("g") and not cluster.broker.locks
        del overrides[RequestCode.QUERY_CONSUMER_OFFSET]

        await cluster.launch(consumer)
        cluster.broker.put("T", 0, "a")
        await until(lambda: seen == ["a"])
        assert isinstance(await anext(events), RoundStarted)

    in_virtual_time(scenario)


def test_the_kind_of_group_chooses_the_offset_store(tmp_path: Path) -> None:
    """S3-05: a given store is used; else the broker for clustering, a file for broadcasting."""

    async def scenario(cluster: GroupCluster) -> None:
        one = await started(cluster, Bodies(), group="g")
        assert isinstance(one.offsets, RemoteOffsets)
        two = await started(
            cluster,
            Bodies(),
            name="c2",
            group="h",
            message_model=MessageModel.BROADCASTING,
            local_offset_folder=tmp_path,
        )
        assert isinstance(two.offsets, LocalOffsets)
        given = LocalOffsets(tmp_path / "own")
        three = PushConsumer(
            "i", cluster.nameserver.address, offset_store=given, **cluster.client_options("c3#1")
        )
        three.subscribe("T", "*", Bodies())
        await cluster.launch(three)
        assert three.offsets is given

    in_virtual_time(scenario)


# --- pulling ---------------------------------------------------------------------------------------


def test_push_is_pull_and_the_next_pull_leaves_at_once() -> None:
    """S0-26, S3-10, S3-16: after a batch the next pull starts at nextBeginOffset; else it waits."""

    async def scenario() -> None:
        async def inner(cluster: GroupCluster) -> None:
            cluster.topic("T", 1)
            cluster.broker.put("T", 0, *(str(number) for number in range(70)))
            bodies = Bodies()
            await started(cluster, bodies)
            await until(lambda: len(bodies) == 70 and cluster.broker.waiting)
            assert sorted(bodies, key=int) == [str(number) for number in range(70)]
            asked = [int(request.fields["queueOffset"]) for request in cluster.broker.of(PULL)]
            assert asked == [0, 32, 64, 70]
            cluster.broker.put("T", 0, "70")
            await until(lambda: len(bodies) == 71)
            first = cluster.broker.of(PULL)[0].fields
            assert (first["maxMsgNums"], first["suspendTimeoutMillis"]) == ("32", "15000")
            assert int(first["sysFlag"]) & 2

        await on_sockets(inner)

    run(scenario())


def test_a_pull_that_waited_in_vain_is_made_again() -> None:
    """S0-26: the broker holds it for 15 s, then it is asked again from the same place."""

    async def scenario(cluster: GroupCluster) -> None:
        await started(cluster, Bodies())
        await asyncio.sleep(46)
        times = [request.at for request in cluster.broker.of(PULL)]
        assert len(times) == 4
        assert all(14.9 < later - earlier < 15.1 for earlier, later in pairwise(times))

    in_virtual_time(scenario)


def test_progress_rides_on_pulls() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.put("T", 0, *"abc")
        await started(cluster, Bodies(), persist_interval=1000.0)
        await asyncio.sleep(1)
        assert cluster.broker.of(PULL)[0].fields["sysFlag"] == "2"
        cluster.broker.put("T", 0, "d")
        await asyncio.sleep(1)
        cluster.broker.put("T", 0, "e")
        await asyncio.sleep(1)
        last = cluster.broker.of(PULL)[-1].fields
        assert int(last["sysFlag"]) & 1
        assert int(last["commitOffset"]) >= 3

    in_virtual_time(scenario)


@pytest.mark.parametrize(
    ("answer", "pause"),
    [((215, "flow control"), 0.02), ((1, "system error"), 1.0), ((16, "no permission"), 1.0)],
)
def test_a_failed_pull_is_made_again_after_its_delay(answer: tuple[int, str], pause: float) -> None:
    """S3-10, S3-11: requeued on failure too: 1 s after an error, 20 ms after flow control (215)."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.broker.overrides[PULL] = lambda request: request.reply(*answer)
        await started(cluster, Bodies())
        await asyncio.sleep(pause * 5.5)
        times = [request.at for request in cluster.broker.of(PULL)]
        assert len(times) >= 4
        assert all(pause <= later - earlier < pause + 0.02 for earlier, later in pairwise(times))

    in_virtual_time(scenario)


@pytest.mark.parametrize("code", [24, 25])
def test_a_broker_that_lost_our_subscription_hears_of_it_and_the_pulls_go_on(code: int) -> None:
    """After its restart, all queues' pulls are refused together: one heartbeat, and no second of waiting."""

    async def scenario(cluster: GroupCluster) -> None:
        broker = cluster.broker
        cluster.topic("T", 4)
        consumer = cluster.push()
        consumer.subscribe("T", "*", Bodies())
        await cluster.launch(consumer)
        await asyncio.sleep(20)
        heard = len(broker.of(RequestCode.HEART_BEAT))

        def refuse(request: RemotingCommand) -> RemotingCommand | None:
            known = len(broker.of(RequestCode.HEART_BEAT)) > heard
            return None if known else request.reply(code, "the consumer's subscription not exist")

        broker.overrides[PULL] = refuse
        began = cluster.clock.monotonic()
        broker.asked.clear()
        heard = 0
        for number in range(4):
            broker.put("T", number, "x")  # the pulls that wait are answered, and made again
        await until(lambda: broker.of(RequestCode.HEART_BEAT))
        await asyncio.sleep(0.05)
        pulls = [request.at - began for request in broker.of(PULL)]
        assert len(pulls) == 8 and max(pulls) < 0.05
        assert len(broker.of(RequestCode.HEART_BEAT)) == 1

    in_virtual_time(scenario)


def test_missing_subscription_data_delays_the_pull() -> None:
    """S3-13: again after the exception delay; an option, 1 s since 4.6, 3 s in the seed."""

    async def scenario(cluster: GroupCluster) -> None:
        consumer = await started(cluster, Bodies(), exception_delay=3.0)
        await asyncio.sleep(0.1)
        data = consumer._subscriptions.by_topic.pop("T")
        cluster.broker.put("T", 0, "a")
        await asyncio.sleep(0.1)
        pulls = len(cluster.broker.of(PULL))
        consumer._subscriptions.by_topic["T"] = data
        await asyncio.sleep(2.5)
        assert len(cluster.broker.of(PULL)) == pulls
        await asyncio.sleep(1)
        assert len(cluster.broker.of(PULL)) == pulls + 1

    in_virtual_time(scenario)


def test_the_suggested_replica_is_asked_next() -> None:
    """S3-14, S3-18, S3-19 (client side): by broker name and suggested id; a slave is not given the commit."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1, "broker-a")
        master, slave = cluster.brokers["broker-a"], cluster.brokers["broker-s"]
        cluster.replicas["broker-a"] = {0: master.address, 1: slave.address}
        for broker in (master, slave):
            broker.put("T", 0, *"abc")
        master.suggest_broker_id = slave.suggest_broker_id = 1
        bodies = Bodies()
        await started(cluster, bodies, persist_interval=1000.0)
        await asyncio.sleep(0.5)
        for broker in (master, slave):
            broker.put("T", 0, "d")
        await asyncio.sleep(0.5)
        assert bodies == list("abcd")
        assert len(master.of(PULL)) == 1
        assert slave.of(PULL)
        assert not any(int(request.fields["sysFlag"]) & 1 for request in slave.of(PULL))

    in_virtual_time(scenario, "broker-a", "broker-s")


def test_tags_are_compared_again_exactly() -> None:
    """The broker compares hashes; "Aa" and "BB" share one, and only the wanted tag reaches the handler."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.put("T", 0, "yes", tags="Aa")
        cluster.broker.put("T", 0, "no", tags="BB")
        cluster.broker.put("T", 0, "none")
        bodies = Bodies()
        consumer = await started(cluster, bodies, expression="Aa || C")
        await asyncio.sleep(0.5)
        assert bodies == ["yes"]
        # What was filtered out is passed over, not left behind.
        await asyncio.sleep(16)
        assert consumer.offsets.remembered(Q0) == 3

    in_virtual_time(scenario)


def test_an_illegal_offset_is_corrected_and_consumption_goes_on() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.first[("T", 0)] = 100
        cluster.broker.put("T", 0, "a", "b")
        bodies = Bodies()
        told: list[OffsetReset] = []
        consumer = cluster.push()
        consumer.on_event(lambda event: told.append(event) if isinstance(event, OffsetReset) else None)
        cluster.broker.offsets[("g", "T", 0)] = 3
        consumer.subscribe("T", "*", bodies)
        await cluster.launch(consumer)
        await asyncio.sleep(1)
        assert bodies == ["a", "b"]
        assert [(event.queue, event.offset) for event in told] == [(Q0, 100)]
        commits = [request.fields["commitOffset"] for request in cluster.broker.of(UPDATE)]
        assert commits[0] == "100"

    in_virtual_time(scenario)


def test_a_corrected_offset_is_not_forgotten_before_the_queue_is_taken_anew() -> None:
    """With 4.9's ten seconds between the two, the progress of other queues is written away meanwhile."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        cluster.broker.first[("T", 0)] = 100
        cluster.broker.put("T", 0, "a", "b")
        bodies = Bodies()
        told: list[OffsetReset] = []
        consumer = cluster.push(profile="4.9")
        consumer.on_event(lambda event: told.append(event) if isinstance(event, OffsetReset) else None)
        cluster.broker.offsets[("g", "T", 0)] = 3
        cluster.broker.offsets[("g", "T", 1)] = 0
        consumer.subscribe("T", "*", bodies)
        await cluster.launch(consumer)
        await asyncio.sleep(40)
        assert bodies == ["a", "b"]
        assert [(event.queue, event.offset) for event in told] == [(Q0, 100)]

    in_virtual_time(scenario)


# --- flow control ----------------------------------------------------------------------------------


async def _stuck(message: MessageView) -> None:
    await asyncio.Event().wait()


def only_every_32nd_is_wanted(cluster: GroupCluster) -> None:
    for _ in range(100):
        cluster.broker.put("T", 0, "wanted", tags="A")
        cluster.broker.put("T", 0, *(["passed over"] * 31), tags="B")


def plenty(cluster: GroupCluster) -> None:
    cluster.broker.put("T", 0, *([b"x"] * 3000))


def large(cluster: GroupCluster) -> None:
    cluster.broker.put("T", 0, *([b"x" * 40 * 1024] * 200))


@pytest.mark.parametrize(
    ("fill", "options", "pulls"),
    [
        (plenty, {}, 32),  # S3-36: 1024 messages are cached
        (plenty, {"pull_batch_size": 40}, 26),  # 25 pulls bring 1000, and that is not more than 1000
        # S3-38, S3-28: with the 64th pull the newest cached offset is 2016, the oldest 0.
        (only_every_32nd_is_wanted, {"expression": "A"}, 64),
        (plenty, {"pull_threshold_for_queue": 65535}, 63),  # from 0 to 2015
        (plenty, {"pull_threshold_for_queue": 65535, "pull_batch_size": 29}, 70),  # 69 bring 0 to 2000
        (large, {"pull_threshold_size_for_queue": 1}, 2),  # S3-37: 64 bodies of 40 KiB are more than 1 MiB
    ],
)
def test_too_much_cached_postpones_the_pull_by_50_ms(
    fill: Callable[[GroupCluster], None], options: dict[str, Any], pulls: int
) -> None:
    """S3-36, S3-37, S3-38, S3-28: no pull while more than 1000 messages or a span of more than 2000 are cached;
    a look every 50 ms."""

    async def scenario(cluster: GroupCluster) -> None:
        finish = asyncio.Event()

        async def stuck(message: MessageView) -> None:
            await finish.wait()

        cluster.topic("T", 1)
        fill(cluster)
        consumer = await started(cluster, stuck, await_termination=0.0, **options)
        await asyncio.sleep(5)
        assert len(cluster.broker.of(PULL)) == pulls
        looks = []
        for _ in range(100):
            looks.append(
                (await consumer.member.running_info(False)).mq_table[queue_text(Q0)].last_pull_timestamp
            )
            await asyncio.sleep(0.01)
        assert {later - earlier for earlier, later in pairwise(sorted(set(looks)))} <= {49, 50, 51}
        assert len(set(looks)) in (19, 20, 21)
        assert len(cluster.broker.of(PULL)) == pulls
        finish.set()
        await asyncio.sleep(0.06)
        assert len(cluster.broker.of(PULL)) > pulls

    in_virtual_time(scenario)


def test_a_stuck_message_slows_the_pulls_behind_it_down() -> None:
    """S3-38, S3-28: once the span is more than 2000, there are at least 50 ms between two pulls, although all
    the messages behind it are consumed at once."""

    async def scenario(cluster: GroupCluster) -> None:
        async def first_is_stuck(message: MessageView) -> None:
            if message.queue_offset == 0:
                await asyncio.Event().wait()

        cluster.topic("T", 1)
        plenty(cluster)
        await started(cluster, first_is_stuck, await_termination=0.0)
        await asyncio.sleep(1)
        at = [request.at for request in cluster.broker.of(PULL)]
        assert max(later - earlier for earlier, later in pairwise(at[:63])) < 0.01
        assert min(later - earlier for earlier, later in pairwise(at[62:])) > 0.049
        assert len(at) > 65

    in_virtual_time(scenario)


def test_the_span_does_not_hold_ordered_consumers_up() -> None:
    """S3-38: concurrent consumers only."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        plenty(cluster)
        await started(cluster, _stuck, ordered=True, pull_threshold_for_queue=65535, await_termination=0.0)
        await asyncio.sleep(1)
        assert [int(request.fields["queueOffset"]) for request in cluster.broker.of(PULL)] == [
            *range(0, 3000, 32),
            3000,
        ]

    in_virtual_time(scenario)


def test_a_suspended_consumer_does_not_pull() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        bodies = Bodies()
        consumer = await started(cluster, bodies)
        await asyncio.sleep(0.1)
        consumer.suspend()
        cluster.broker.put("T", 0, "a")
        await asyncio.sleep(0.1)
        cluster.broker.put("T", 0, "b")
        await asyncio.sleep(30)
        assert bodies == ["a"]  # its pull was out already
        consumer.resume()
        await asyncio.sleep(1.1)
        assert bodies == ["a", "b"]

    in_virtual_time(scenario)


def test_pulls_ramp_up_after_a_take() -> None:
    """Ours: no burst from a queue that was just taken."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.put("T", 0, *(["x"] * 3000))

        async def slow(message: MessageView) -> None:
            await asyncio.sleep(0.05)

        await started(cluster, slow, ramp_up=4.0)
        await asyncio.sleep(6)
        sizes = [int(request.fields["maxMsgNums"]) for request in cluster.broker.of(PULL)]
        assert sizes[0] == 1
        assert sizes == sorted(sizes)
        assert sizes[-1] == 32

    in_virtual_time(scenario)


def test_a_result_after_the_consume_timeout_is_still_judged_by_its_value() -> None:
    """S3-21: a handler that needs longer than 15 minutes has succeeded if it says so, and failed if it says so;
    what had been sent back while it was at work is not sent back a second time."""

    async def scenario(cluster: GroupCluster) -> None:
        minutes = {"well": 16, "badly": 17, "too late": 40, "too late and badly": 41}
        ended: list[str] = []

        async def slow(message: MessageView, context: ConsumeContext) -> bool:
            body = message.body.decode()
            context.delay_level = 5
            await asyncio.sleep(minutes[body] * 60)
            ended.append(body)
            return "badly" not in body

        cluster.topic("T", 4)
        for number, body in enumerate(minutes):
            cluster.broker.put("T", number, body)
        consumer = await started(cluster, slow)

        def sent_back() -> list[tuple[str, str]]:
            return [
                (request.fields["originMsgId"], request.fields["delayLevel"])
                for request in cluster.broker.of(SEND_BACK)
            ]

        await asyncio.sleep(15.5 * 60)
        assert (ended, sent_back()) == ([], [])
        await asyncio.sleep(1 * 60)
        assert (ended, sent_back()) == (["well"], [])
        await asyncio.sleep(1 * 60)
        assert (ended, sent_back()) == (["well", "badly"], [("ID-T-1-0", "5")])
        await asyncio.sleep(14 * 60)  # at half an hour the two others are sent back, by the timer
        expired = [("ID-T-2-0", "3"), ("ID-T-3-0", "3")]
        assert sorted(sent_back()[1:]) == expired
        await asyncio.sleep(15 * 60)
        assert ended == list(minutes)
        assert sorted(sent_back()[1:]) == expired
        await consumer.close()
        committed = {number: cluster.broker.offsets[("g", "T", number)] for number in range(4)}
        assert (committed[0], committed[1]) == (1, 1)

    in_virtual_time(scenario)


# --- progress and stopping -------------------------------------------------------------------------


def test_offsets_are_sent_every_5_seconds() -> None:
    """S3-26, S3-30: a crash repeats at most what was done since the last commit."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.put("T", 0, *"abc")
        await started(cluster, Bodies())
        await asyncio.sleep(4.9)
        assert cluster.broker.of(UPDATE) == []
        await asyncio.sleep(0.2)
        commit = cluster.broker.of(UPDATE)[0]
        assert (commit.fields["commitOffset"], commit.oneway) == ("3", True)
        await asyncio.sleep(5)
        assert len(cluster.broker.of(UPDATE)) == 2

    in_virtual_time(scenario)


def test_stopping_finishes_commits_and_only_then_unregisters() -> None:
    """S1-24, S1-25, S3-31: handlers, offsets, 35, instance, cached messages, in this order."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.put("T", 0, *(str(number) for number in range(30)))
        done: list[str] = []

        async def slow(message: MessageView) -> None:
            await asyncio.sleep(0.3)
            done.append(message.body.decode())

        consumer = await started(cluster, slow, consume_threads=1, persist_interval=1000.0)
        await asyncio.sleep(1)
        item = consumer.holdings.table[Q0]
        instance = consumer.instance
        await consumer.close()
        assert cluster.broker.committed(Q0) == len(done) == 4
        codes = cluster.broker.codes()
        assert max(i for i, code in enumerate(codes) if code == UPDATE) < codes.index(UNREGISTER)
        assert not cluster.broker.of(UPDATE)[-1].oneway  # stored before the others hear of our leaving
        assert instance.closed
        assert item.dropped
        again = Bodies()
        await started(cluster, again, name="c2#1")
        await asyncio.sleep(0.2)
        assert again == [str(number) for number in range(4, 30)]
        await consumer.close()  # a second close does nothing

    in_virtual_time(scenario)


def test_an_instance_lives_as_long_as_one_of_its_members() -> None:
    """S1-24, S3-07."""

    async def scenario(cluster: GroupCluster) -> None:
        first = await started(cluster, Bodies(), group="g")
        second = await started(cluster, Bodies(), group="h")
        instance = first.instance
        await first.close()
        assert not instance.closed
        await second.close()
        assert instance.closed

    in_virtual_time(scenario)


def test_broadcasting_members_each_get_everything_and_keep_their_own_progress(tmp_path: Path) -> None:
    """S3-09."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        options: dict[str, Any] = {
            "message_model": MessageModel.BROADCASTING,
            "local_offset_folder": tmp_path,
        }
        one, two = Bodies(), Bodies()
        first = await started(cluster, one, name="m1", **options)
        await started(cluster, two, name="m2", **options)
        cluster.broker.put("T", 0, *"abc")
        await asyncio.sleep(0.2)
        assert one == two == list("abc")
        await first.close()
        cluster.broker.put("T", 0, "d")
        await asyncio.sleep(0.1)
        again = Bodies()
        await started(cluster, again, name="m1", **options)
        await asyncio.sleep(0.2)
        assert again == ["d"]
        assert cluster.broker.of(UPDATE) == []

    in_virtual_time(scenario)


# --- retry -----------------------------------------------------------------------------------------


def test_a_failed_message_is_sent_back_with_what_the_broker_needs() -> None:
    """S3-23."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.put("T", 0, "a", "b")

        async def handler(message: MessageView, context: ConsumeContext) -> ConsumeResult:
            context.delay_level = 5
            return ConsumeResult.LATER

        consumer = await started(cluster, handler)
        await asyncio.sleep(0.2)
        asked = [request.fields for request in cluster.broker.of(SEND_BACK)]
        assert [(item["offset"], item["group"], item["delayLevel"]) for item in asked] == [
            ("0", "g", "5"),
            ("1", "g", "5"),
        ]
        assert asked[0]["originMsgId"] == "ID-T-0-0"
        assert (asked[0]["originTopic"], asked[0]["maxReconsumeTimes"]) == ("T", "16")
        assert consumer.offsets.remembered(Q0) == 2

    in_virtual_time(scenario)


def test_where_send_back_fails_the_message_is_sent_to_the_retry_topic() -> None:
    """S3-32: the detour, with the same properties, one more time counted and a delay level of 3 + times."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.topic("%RETRY%g", 1)
        cluster.broker.put("T", 0, "a", colour="red")
        cluster.broker.overrides[SEND_BACK] = lambda request: request.reply(1, "no")

        async def handler(message: MessageView) -> bool:
            return False

        consumer = await started(cluster, handler)
        await asyncio.sleep(0.2)
        sent = cluster.broker.of(SEND)[0]
        assert (sent.fields["b"], sent.fields["j"], sent.fields["l"]) == ("%RETRY%g", "1", "16")
        assert sent.body == b"a"
        properties = parse(sent.fields["i"])
        assert (properties["RETRY_TOPIC"], properties["DELAY"], properties["colour"]) == ("T", "3", "red")
        assert consumer.offsets.remembered(Q0) == 1

    in_virtual_time(scenario)


def test_where_everything_fails_the_message_stays_and_comes_again() -> None:
    """S3-32: 5 s later, locally; nothing is lost and progress stays before it."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.topic("%RETRY%g", 1)
        cluster.broker.put("T", 0, "a", "b")
        cluster.broker.overrides[SEND_BACK] = lambda request: request.reply(1, "no")
        cluster.broker.overrides[SEND] = lambda request: request.reply(1, "no")
        times: list[float] = []

        async def handler(message: MessageView) -> bool:
            if message.body == b"a":
                times.append(cluster.clock.monotonic())
            return message.body != b"a" or len(times) > 2

        consumer = await started(cluster, handler)
        await asyncio.sleep(4)
        assert consumer.offsets.remembered(Q0) == 0
        await asyncio.sleep(10)
        assert len(times) == 3
        assert 5.0 <= times[1] - times[0] < 5.2
        assert consumer.offsets.remembered(Q0) == 2

    in_virtual_time(scenario)


def test_messages_of_the_retry_topic_reach_the_handler_of_their_own_topic() -> None:
    """S3-34 (client side)."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.topic("%RETRY%g", 1)
        seen: list[tuple[str, str]] = []

        async def handler(message: MessageView) -> None:
            seen.append((message.topic, message.body.decode()))

        await started(cluster, handler)
        cluster.broker.put("%RETRY%g", 0, "again", RETRY_TOPIC="T")
        await asyncio.sleep(0.2)
        assert seen == [("T", "again")]

    in_virtual_time(scenario)


# --- requests from brokers -------------------------------------------------------------------------


def test_a_reset_moves_the_group_to_the_told_offsets() -> None:
    """S1-23 (220): suspended, queues dropped and cleared, 10 s, offsets set and sent, resumed."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        for number in (0, 1):
            cluster.broker.put("T", number, *"abcde")
        bodies = Bodies()
        consumer = await started(cluster, bodies)
        await asyncio.sleep(1)
        assert len(bodies) == 10
        bodies.clear()
        body = QueueOffsets.of_queues({Q0: 2}).dump()
        fields = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true"}
        cluster.broker.tell("g", RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body)
        await asyncio.sleep(9)
        assert consumer.suspended
        assert bodies == []
        await asyncio.sleep(2)
        assert not consumer.suspended
        assert bodies == ["c", "d", "e"]
        assert [queue.queue_id for queue in consumer.assignment["T"]] == [0, 1]

    in_virtual_time(scenario)


def test_a_reset_does_not_wake_a_consumer_that_was_suspended() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.put("T", 0, *"abcde")
        bodies = Bodies()
        consumer = await started(cluster, bodies)
        await asyncio.sleep(1)
        bodies.clear()
        consumer.suspend()
        body = QueueOffsets.of_queues({Q0: 2}).dump()
        fields = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true"}
        cluster.broker.tell("g", RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body)
        await asyncio.sleep(30)
        assert consumer.suspended and bodies == []
        consumer.resume()
        await asyncio.sleep(1)
        assert bodies == ["c", "d", "e"]

    in_virtual_time(scenario)


def test_status_and_running_info_are_answered() -> None:
    """S1-23 (221, 307)."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.put("T", 0, *"abc")
        consumer = await started(cluster, Bodies())
        await asyncio.sleep(0.5)
        answer = await cluster.broker.ask(
            "g", RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": "T", "group": "g"}
        )
        assert ConsumerStatusBody.parse(answer.body).queues == {Q0: 3}
        fields = {"consumerGroup": "g", "clientId": consumer.client_id, "jstackEnable": "true"}
        answer = await cluster.broker.ask("g", RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
        info = ConsumerRunningInfo.parse(answer.body)
        assert info.queues[Q0].commit_offset == 3
        assert info.properties["PROP_CONSUMEORDERLY"] == "false"
        assert info.properties["PROP_NAMESERVER_ADDR"] == cluster.nameserver.address + ";"
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert {data.topic for data in info.subscription_set} == {"T", "%RETRY%g"}
        assert info.jstack
        rates = info.status_table["T"]
        assert rates.consume_ok_tps > 0
        assert rates.pull_tps > 0
        assert rates.consume_failed_msgs == 0
        unknown = {"consumerGroup": "other", "clientId": "x"}
        answer = await cluster.broker.ask("g", RequestCode.GET_CONSUMER_RUNNING_INFO, unknown)
        assert (answer.code, "not exist in this consumer" in (answer.remark or "")) == (1, True)

    in_virtual_time(scenario)


@pytest.mark.parametrize(
    ("ordered", "result", "told"),
    [
        (False, None, "CR_SUCCESS"),
        (False, False, "CR_LATER"),
        (False, "raise", "CR_THROW_EXCEPTION"),
        (True, ConsumeResult.COMMIT, "CR_COMMIT"),
        (True, ConsumeResult.ROLLBACK, "CR_ROLLBACK"),
        (True, ConsumeResult.SUSPEND, "CR_LATER"),
    ],
)
def test_a_message_is_consumed_directly(ordered: bool, result: Any, told: str) -> None:
    """S1-23 (309): the handler runs on it and its word is told; progress is not touched."""

    async def scenario(cluster: GroupCluster) -> None:
        async def handler(message: MessageView) -> Any:
            if result == "raise":
                raise ValueError("no")
            return result

        consumer = await started(cluster, handler, ordered=ordered)
        cluster.broker.put("U", 0, "x", RETRY_TOPIC="T")
        record = cluster.broker.queues[("U", 0)][0]
        fields = {"consumerGroup": "g", "brokerName": "broker-a"}
        answer = await cluster.broker.ask("g", RequestCode.CONSUME_MESSAGE_DIRECTLY, fields, record)
        said = ConsumeDirectlyResult.parse(answer.body)
        assert (said.consume_result, said.order) == (told, ordered)
        assert ("ValueError" in (said.remark or "")) == (result == "raise")
        assert consumer.offsets.remembered(Q0) in (None, 0)

    in_virtual_time(scenario)


def test_unknown_requests_are_passed_over() -> None:
    """S1-23."""

    async def scenario(cluster: GroupCluster) -> None:
        await started(cluster, Bodies())
        with pytest.raises(TimeoutError):
            await cluster.broker.ask("g", 9999, {})

    in_virtual_time(scenario)


# --- what is reported ------------------------------------------------------------------------------


def test_duplicates_after_a_move_back_are_noticed() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.put("T", 0, *"abcde")
        consumer = await started(cluster, Bodies())
        told: list[DuplicatesSeen] = []
        consumer.on_event(lambda event: told.append(event) if isinstance(event, DuplicatesSeen) else None)
        await asyncio.sleep(0.5)
        await consumer.holdings.discard(Q0, "test")
        await asyncio.sleep(0.1)
        cluster.broker.offsets[("g", "T", 0)] = 3
        await consumer.rebalance("test")
        await asyncio.sleep(0.2)
        assert [(event.count, event.first, event.last) for event in told] == [(2, 3, 4)]

    in_virtual_time(scenario)


def test_lag_and_assignment_and_pause_are_told() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.put("T", 0, *"abcde")
        consumer = cluster.push(await_termination=0.0)
        paused: list[float] = []
        consumer.on_event(
            lambda event: paused.append(event.paused) if isinstance(event, QueueStarted) else None
        )
        consumer.subscribe("T", "*", _stuck)
        cluster.broker.offsets[("g", "T", 0)] = 1
        await cluster.launch(consumer)
        await asyncio.sleep(0.2)
        assert consumer.assignment == {"T": [Q0]}
        assert await consumer.lag() == {Q0: 4}
        assert paused and paused[0] < 0.1
        assert consumer.members == [consumer.client_id]

    in_virtual_time(scenario)


def test_a_failing_handler_of_events_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: GroupCluster) -> None:
        consumer = cluster.push()

        def broken(event: object) -> None:
            raise RuntimeError("listener")

        async def broken_later(event: object) -> None:
            raise RuntimeError("later")

        consumer.on_event(broken)
        stop = consumer.on_event(broken_later)
        consumer.on_queues_changed(lambda *told: broken(told))
        consumer.subscribe("T", "*", Bodies())
        cluster.topic("T", 1)
        await cluster.launch(consumer)
        stop()
        await asyncio.sleep(0.1)
        assert consumer.assignment

    with caplog.at_level(logging.ERROR):
        in_virtual_time(scenario)
    assert "an event callback failed" in caplog.text
    assert "a queue listener failed" in caplog.text


def test_plain_functions_consume_batches_over_sockets() -> None:
    """S3-15, S3-20: a plain batch handler in threads, real sockets."""

    async def scenario() -> None:
        async def inner(cluster: GroupCluster) -> None:
            cluster.topic("T", 2)
            for number in (0, 1):
                cluster.broker.put("T", number, *(f"{number}-{item}" for item in range(100)))
            got: list[str] = []
            sizes: list[int] = []

            def handler(messages: list[MessageView]) -> None:
                sizes.append(len(messages))
                got.extend(message.body.decode() for message in messages)

            consumer = await started(cluster, handler, consume_message_batch_max_size=16, consume_threads=3)
            await until(lambda: len(got) == 200)
            assert max(sizes) == 16
            await until(lambda: consumer.offsets.remembered(Q0) == 100)

        await on_sockets(inner)

    run(scenario())
