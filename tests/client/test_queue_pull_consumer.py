"""The consumer whose caller names queue and offset: against scripted brokers, then against our own."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from gimbalmq import (
    ConsumeFromWhere,
    Message,
    MessageModel,
    MessageQueue,
    Producer,
    PullResult,
    PullStatus,
    QueuePullConsumer,
    QueuePullConsumerConfig,
)
from gimbalmq.client.events import OffsetReset, QueueTaken
from gimbalmq.errors import (
    ConfigError,
    RequestTimeoutError,
    ResponseError,
    RocketMQError,
    StateError,
    TopicRouteNotFoundError,
)
from gimbalmq.model.message import MessageView
from gimbalmq.model.topics import retry_topic
from gimbalmq.protocol.bodies import Heartbeat
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.status_bodies import QueueOffsets
from gimbalmq.testing import LocalCluster
from tests.client.group_peers import GroupCluster, in_virtual_time, until
from tests.support import run

HEARTBEAT = RequestCode.HEART_BEAT
PULL = RequestCode.PULL_MESSAGE
UPDATE = RequestCode.UPDATE_CONSUMER_OFFSET
QUERY = RequestCode.QUERY_CONSUMER_OFFSET
BACK = RequestCode.CONSUMER_SEND_MSG_BACK
NAMESRV = "127.0.0.1:9876"
Q0 = MessageQueue("T", "broker-a", 0)
Q1 = MessageQueue("T", "broker-a", 1)


async def started(
    cluster: GroupCluster, name: str = "c1#1", *, topic: str | None = None, **options: Any
) -> QueuePullConsumer:
    """A running consumer; with ``topic`` one that shares that topic's queues."""
    if "T" not in cluster.topics:
        cluster.topic("T", 2)
    consumer = cluster.queue_pull(name, **options)
    if topic is not None:
        consumer.subscribe(topic)
    await cluster.launch(consumer)
    return consumer


def bodies(result: PullResult) -> list[str]:
    return [message.body.decode() for message in result.messages]


# -- options -------------------------------------------------------------------------


def test_defaults_are_javas_and_options_of_readers_are_refused() -> None:
    config = QueuePullConsumer("g", NAMESRV).config
    assert (config.pull_timeout, config.max_reconsume_times, config.persist_interval) == (10.0, 16, 5.0)
    assert (config.strategy, config.message_model) == ("AVG", MessageModel.CLUSTERING)
    of_readers: dict[str, Any] = {
        "pull_batch_size": 10,
        "handover": "lease",
        "consume_from_where": ConsumeFromWhere.FIRST_OFFSET,
        "broker_suspend": 20.0,
    }
    for option, value in of_readers.items():
        with pytest.raises(ConfigError, match=rf"{option}=.*reads nothing by itself.*PullConsumer"):
            QueuePullConsumer("g", NAMESRV, **{option: value})
    with pytest.raises(ConfigError, match="no such option"):
        QueuePullConsumer("g", NAMESRV, auto_commit=True)
    with pytest.raises(ConfigError, match="max_reconsume_times"):
        QueuePullConsumerConfig(namesrv=NAMESRV, group="g", max_reconsume_times=-1)
    assert QueuePullConsumer(config=config, persist_interval=2.0).config.persist_interval == 2.0
    assert QueuePullConsumer("g", NAMESRV, profile="4.9").config.liveness_interval == 0.0


def test_every_option_does_something_or_is_refused() -> None:
    """An option that all consumers get is to be used here, or to be added to those that are refused."""
    config = QueuePullConsumer("g", NAMESRV).config
    taken = set()
    for item in fields(config):
        if isinstance(item.default, float):
            try:
                config.with_options(**{item.name: item.default + 0.5})
            except ConfigError:
                continue
            taken.add(item.name)
    assert taken == {
        *(
            "poll_namesrv_interval",
            "heartbeat_interval",
            "heartbeat_timeout",
            "api_timeout",
            "connect_timeout",
        ),
        *("liveness_interval", "member_grace", "rebalance_interval", "rebalance_min_interval"),
        *("unbalanced_delay", "check_group_interval", "persist_interval", "pull_timeout"),
    }


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"queue": "T"}, "queue='T' cannot be used: a MessageQueue"),
        ({"offset": -1}, "offset=-1 cannot be used: a number of 0"),
        ({"offset": None}, "offset=None"),
        ({"max_messages": 0}, "max_messages=0 cannot be used: a number of 1"),
        ({"wait": -1}, "wait=-1 cannot be used: seconds, 0 to 3600"),
        ({"wait": float("inf")}, "wait=inf"),
        ({"expression": " || "}, "expression=' || ' cannot be used: tags"),
        ({"expression_type": "XPATH"}, "expression_type='XPATH' cannot be used: use TAG or SQL92"),
    ],
)
def test_pull_says_which_argument_is_wrong(wrong: dict[str, Any], said: str) -> None:
    async def scenario(cluster: GroupCluster) -> None:
        consumer = await started(cluster)
        arguments: dict[str, Any] = {"queue": Q0, "offset": 0} | wrong
        with pytest.raises(ConfigError, match=said.replace("|", r"\|")):
            await consumer.pull(**arguments)
        assert cluster.broker.of(PULL) == []

    in_virtual_time(scenario)


def test_wrong_progress_and_levels_are_refused() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        consumer = await started(cluster)
        cluster.broker.put("T", 0, "a")
        await consumer.queues("T")
        (message,) = (await consumer.pull(Q0, 0)).messages
        wrong: Any = "T"
        with pytest.raises(ConfigError, match="queue="):
            await consumer.commit(wrong, 1)
        with pytest.raises(ConfigError, match="offset=-1"):
            await consumer.commit(Q0, -1)
        with pytest.raises(ConfigError, match="queue="):
            await consumer.committed(wrong)
        with pytest.raises(ConfigError, match="delay_level=-2"):
            await consumer.send_back(message, -2)

    in_virtual_time(scenario)


def test_not_running_and_unknown_places_are_said() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        consumer = cluster.queue_pull()
        cluster.topic("T", 2)
        for call in (
            consumer.pull(Q0, 0),
            consumer.commit(Q0, 1),
            consumer.committed(Q0),
            consumer.queues("T"),
        ):
            with pytest.raises(StateError, match="not running"):
                await call
        await cluster.launch(consumer)
        with pytest.raises(TopicRouteNotFoundError):
            await consumer.queues("unknown")
        with pytest.raises(TopicRouteNotFoundError, match="broker-z"):
            await consumer.pull(MessageQueue("T", "broker-z", 0), 0)

    in_virtual_time(scenario)


# -- pulling -------------------------------------------------------------------------


def test_a_pull_asks_for_what_the_caller_names_and_keeps_nothing() -> None:
    """S3-15, S3-16: queue, offset and number as told; subscription in the header, nothing committed, no waiting."""

    async def scenario(cluster: GroupCluster) -> None:
        consumer = await started(cluster)
        cluster.broker.put("T", 1, *"abcdef")
        assert await consumer.queues("T") == (Q0, Q1)
        result = await consumer.pull(Q1, 2, max_messages=3, expression="x || *")
        fields = cluster.broker.of(PULL)[0].fields
        assert (fields["queueId"], fields["queueOffset"], fields["maxMsgNums"]) == ("1", "2", "3")
        assert (fields["sysFlag"], fields["suspendTimeoutMillis"], fields["commitOffset"]) == ("4", "0", "0")
        assert (fields["consumerGroup"], fields["subscription"]) == ("g", "x || *")
        assert (result.next_offset, result.min_offset, result.max_offset) == (5, 0, 6)
        again = [bodies(await consumer.pull(Q1, 2, max_messages=3)) for _ in range(2)]
        assert again == [["c", "d", "e"], ["c", "d", "e"]]
        assert consumer.assignment == {}
        await asyncio.sleep(60)
        assert len(cluster.broker.of(PULL)) == 3
        assert cluster.broker.offsets == {}

    in_virtual_time(scenario)


def test_every_status_says_where_to_go_on() -> None:
    """S3-17: found, at the end, before the beginning, behind the end."""

    async def scenario(cluster: GroupCluster) -> None:
        consumer = await started(cluster)
        cluster.broker.first[("T", 0)] = 10
        cluster.broker.put("T", 0, "a", "b")
        await consumer.queues("T")

        async def told(offset: int) -> tuple[PullStatus, int, int, int, int]:
            result = await consumer.pull(Q0, offset)
            ends = result.min_offset, result.max_offset
            return result.status, result.next_offset, len(result.messages), *ends

        assert await told(10) == (PullStatus.FOUND, 12, 2, 10, 12)
        assert await told(12) == (PullStatus.NO_NEW_MSG, 12, 0, 10, 12)
        assert await told(0) == (PullStatus.OFFSET_ILLEGAL, 10, 0, 10, 12)
        assert await told(99) == (PullStatus.OFFSET_ILLEGAL, 12, 0, 10, 12)
        assert (await consumer.min_offset(Q0), await consumer.max_offset(Q0)) == (10, 12)

    in_virtual_time(scenario)


def test_messages_whose_tags_only_share_a_hash_are_not_found() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        consumer = await started(cluster)
        cluster.broker.put("T", 0, "wanted", tags="Aa")
        cluster.broker.put("T", 0, "same hash", tags="BB")
        await consumer.queues("T")
        assert bodies(await consumer.pull(Q0, 0, expression="Aa")) == ["wanted"]
        other = await consumer.pull(Q0, 1, expression="Aa")
        assert (other.status, other.messages, other.next_offset) == (PullStatus.NO_MATCHED_MSG, [], 2)

    in_virtual_time(scenario)


def test_a_pull_that_waits_is_kept_by_the_broker() -> None:
    """S3-01: Java's pullBlockIfNotFound; answered when a message comes, or when the time is up."""

    async def scenario(cluster: GroupCluster) -> None:
        consumer = await started(cluster)
        await consumer.queues("T")
        began = cluster.clock.monotonic()
        result = await consumer.pull(Q0, 0, wait=20)
        assert result.status is PullStatus.NO_NEW_MSG
        assert cluster.clock.monotonic() - began == pytest.approx(20, abs=0.1)
        fields = cluster.broker.of(PULL)[0].fields
        assert (fields["sysFlag"], fields["suspendTimeoutMillis"]) == ("6", "20000")
        waiting = asyncio.ensure_future(consumer.pull(Q0, 0, wait=20))
        await until(lambda: cluster.broker.waiting)
        cluster.broker.put("T", 0, "late")
        began = cluster.clock.monotonic()
        assert bodies(await waiting) == ["late"]
        assert cluster.clock.monotonic() - began < 1

    in_virtual_time(scenario)


def test_a_silent_broker_is_waited_for_ten_seconds_longer_than_it_may_wait() -> None:
    """Java's 10 s without blocking, and 30 s with its 20 s."""

    async def scenario(cluster: GroupCluster) -> None:
        consumer = await started(cluster, topic="T")
        never = asyncio.Event()

        async def silent(channel: object, request: RemotingCommand) -> None:
            await never.wait()

        cluster.broker.handlers.by_code.pop(PULL)
        cluster.broker.handlers.add(PULL, silent)
        for wait, limit in ((0, 10), (20, 30)):
            began = cluster.clock.monotonic()
            with pytest.raises(RequestTimeoutError):
                await consumer.pull(Q0, 0, wait=wait)
            assert cluster.clock.monotonic() - began == pytest.approx(limit, abs=0.1)

    in_virtual_time(scenario)


def test_closing_ends_pulls_that_wait_and_cancelling_one_ends_only_that() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        consumer = await started(cluster)
        await consumer.queues("T")
        first, second = (asyncio.ensure_future(consumer.pull(queue, 0, wait=600)) for queue in (Q0, Q1))
        await until(lambda: len(cluster.broker.waiting) == 2)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert not first.done()
        began = cluster.clock.monotonic()
        await consumer.close()
        with pytest.raises(StateError, match="was closed during a pull"):
            await first
        assert cluster.clock.monotonic() - began < 5
        with pytest.raises(StateError, match="not running"):
            await consumer.pull(Q0, 0)

    in_virtual_time(scenario)


def test_a_broker_at_a_new_address_is_found_by_the_routes() -> None:
    """Topics that are only pulled have their routes polled too."""

    async def scenario(cluster: GroupCluster) -> None:
        consumer = await started(cluster)
        await consumer.queues("T")
        await consumer.pull(Q0, 0)
        await cluster.broker.close()
        moved = await cluster.add_broker("broker-a")
        moved.put("T", 0, "there")
        with pytest.raises(RocketMQError):
            await consumer.pull(Q0, 0)
        await asyncio.sleep(61)
        assert bodies(await consumer.pull(Q0, 0)) == ["there"]

    in_virtual_time(scenario)


# -- sharing -------------------------------------------------------------------------


def test_rounds_take_queues_at_zero_and_pull_nothing() -> None:
    """S2-20: a round's start offset is 0, whatever the group's progress; S2-22, S2-23: its pulls are discarded."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        for number in (0, 1):
            cluster.broker.put("T", number, *"abcdef")
        cluster.broker.offsets[("g", "T", 0)] = 4
        taken: list[QueueTaken] = []
        consumer = cluster.queue_pull()
        consumer.subscribe("T")
        consumer.on_event(lambda event: taken.append(event) if isinstance(event, QueueTaken) else None)
        await cluster.launch(consumer)
        assert [(event.queue, event.offset) for event in taken] == [(Q0, 0), (Q1, 0)]
        assert consumer.assignment == {"T": [Q0, Q1]}
        await asyncio.sleep(300)
        asked = set(cluster.broker.codes())
        assert not asked & {PULL, QUERY, UPDATE, RequestCode.GET_MAX_OFFSET, RequestCode.LOCK_BATCH_MQ}
        assert len(taken) == 2  # S2-17: a queue that nobody pulls is left alone
        assert bodies(await consumer.pull(Q0, 0)) == list("abcdef")

    in_virtual_time(scenario)


def test_members_share_what_they_subscribe_and_hear_of_changes() -> None:
    """S1-39: topic, all queues, own queues; S1-27, S0-30: CONSUME_ACTIVELY, no order, no retry topic."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        told: list[tuple[str, list[MessageQueue], list[MessageQueue], str]] = []

        def listener(
            topic: str, queues: Collection[MessageQueue], mine: Collection[MessageQueue], reason: str
        ) -> None:
            told.append((topic, list(queues), list(mine), reason))

        first = cluster.queue_pull("c1#1")
        first.on_queues_changed(listener)
        first.subscribe("T")
        await cluster.launch(first)
        second = await started(cluster, "c2#1", topic="T")
        await asyncio.sleep(0.3)
        assert (first.assignment, second.assignment) == ({"T": [Q0]}, {"T": [Q1]})
        assert told == [
            ("T", [Q0, Q1], [Q0, Q1], "start"),
            ("T", [Q0, Q1], [Q0], "a broker said that members changed"),
        ]
        assert sorted(second.members) == sorted([first.client_id, second.client_id])
        data = Heartbeat.parse(cluster.broker.of(HEARTBEAT)[0].body).consumer_data_set[0]
        assert (data.group_name, data.consume_type) == ("g", "CONSUME_ACTIVELY")
        assert [item.topic for item in data.subscription_data_set] == ["T"]
        first.unsubscribe("T")
        await until(lambda: not first.assignment)
        assert first.subscriptions == {}

    in_virtual_time(scenario)


def test_a_consumer_without_subscriptions_is_a_member_all_the_same() -> None:
    """Brokers hear of it as soon as it has asked for the queues of a topic."""

    async def scenario(cluster: GroupCluster) -> None:
        consumer = await started(cluster)
        await consumer.queues("T")
        await asyncio.sleep(0.5)
        assert cluster.broker.clients("g") == [consumer.client_id]
        await consumer.close()
        assert cluster.broker.clients("g") == []

    in_virtual_time(scenario)


# -- progress ------------------------------------------------------------------------


def test_noted_progress_is_written_by_the_timer_and_at_close() -> None:
    """S3-25, S3-26, S1-25: memory first, 5 s, answered at the end; a smaller offset counts too."""

    async def scenario(cluster: GroupCluster) -> None:
        consumer = await started(cluster, topic="T")
        assert await consumer.committed(Q0) is None
        await consumer.commit(Q0, 4)
        assert (await consumer.committed(Q0), cluster.broker.committed(Q0)) == (4, None)
        await asyncio.sleep(5.5)
        assert cluster.broker.committed(Q0) == 4
        await consumer.commit(Q0, 2)
        assert await consumer.committed(Q0) == 2
        await consumer.close()
        assert (cluster.broker.committed(Q0), cluster.broker.committed(Q1)) == (2, None)
        assert not cluster.broker.of(UPDATE)[-1].oneway

    in_virtual_time(scenario)


def test_progress_can_be_written_now() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        consumer = await started(cluster, topic="T", persist_interval=1000.0)
        await consumer.commit(Q0, 4)
        await consumer.persist_offsets()
        await until(lambda: cluster.broker.committed(Q0) == 4)

    in_virtual_time(scenario)


def test_a_queue_that_moves_takes_its_progress_along() -> None:
    """S2-24: written and forgotten; S2-19: the next owner asks the broker, not its memory."""

    async def scenario(cluster: GroupCluster) -> None:
        first = await started(cluster, "c1#1", topic="T", persist_interval=1000.0)
        await first.commit(Q1, 7)
        second = await started(cluster, "c2#1", topic="T", persist_interval=1000.0)
        await until(lambda: second.assignment == {"T": [Q1]} and first.assignment == {"T": [Q0]})
        assert cluster.broker.committed(Q1) == 7
        assert await second.committed(Q1) == 7
        with pytest.raises(StateError, match=r"queueId=1\] is not among the queues.*on_queues_changed"):
            await first.commit(Q1, 8)
        await second.commit(Q1, 9)
        await second.close()
        assert await first.committed(Q1) == 9

    in_virtual_time(scenario)


def test_progress_of_a_topic_that_is_not_shared_is_written_at_once() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        consumer = await started(cluster)
        await consumer.queues("T")
        await consumer.commit(Q0, 3)
        assert cluster.broker.committed(Q0) == 3
        assert not cluster.broker.of(UPDATE)[-1].oneway
        cluster.broker.offsets[("g", "T", 0)] = 5  # somebody else's
        assert await consumer.committed(Q0) == 5
        assert consumer.offsets.remembered(Q0) is None  # brokers that ask (221) hear of our own queues only
        await consumer.close()
        assert cluster.broker.committed(Q0) == 5
        assert len(cluster.broker.of(UPDATE)) == 1

    in_virtual_time(scenario)


def test_progress_that_could_not_be_written_is_an_error() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        consumer = await started(cluster)
        await consumer.queues("T")
        cluster.broker.overrides[UPDATE] = lambda request: request.reply(1, "not now")
        with pytest.raises(ResponseError, match="not now"):
            await consumer.commit(Q0, 3)
        assert await consumer.committed(Q0) is None

    in_virtual_time(scenario)


def test_reading_the_store_does_not_undo_what_was_noted() -> None:
    """S2-32: by store and by memory first; in Java the first kind replaces what is in memory."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.broker.offsets[("g", "T", 0)] = 2
        consumer = await started(cluster, topic="T", persist_interval=1000.0)
        await consumer.commit(Q0, 6)
        assert await consumer.committed(Q0, from_store=True) == 2
        assert await consumer.committed(Q0) == 6
        assert await consumer.committed(Q1, from_store=True) is None
        await consumer.close()
        assert cluster.broker.committed(Q0) == 6

    in_virtual_time(scenario)


def test_progress_that_was_only_read_is_not_written() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.broker.offsets[("g", "T", 0)] = 2
        consumer = await started(cluster, topic="T")
        assert await consumer.committed(Q0) == 2
        await asyncio.sleep(20)
        await consumer.close()
        assert cluster.broker.of(UPDATE) == []

    in_virtual_time(scenario)


def test_lag_counts_from_progress_or_from_the_beginning() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.broker.first[("T", 1)] = 10
        for number in (0, 1):
            cluster.broker.put("T", number, *"abcdef")
        consumer = await started(cluster, topic="T")
        await consumer.commit(Q0, 4)
        assert await consumer.lag() == {Q0: 2, Q1: 6}

    in_virtual_time(scenario)


def test_broadcasting_members_have_all_queues_and_keep_progress_in_a_file(tmp_path: Path) -> None:
    """S2-02, S3-09."""

    async def scenario(cluster: GroupCluster) -> None:
        def options(name: str) -> dict[str, Any]:
            return {"message_model": MessageModel.BROADCASTING, "local_offset_folder": tmp_path / name}

        cluster.broker.put("T", 0, "a")
        first = await started(cluster, "c1", topic="T", **options("1"))
        second = await started(cluster, "c2", topic="T", **options("2"))
        assert first.assignment == second.assignment == {"T": [Q0, Q1]}
        await first.commit(Q0, 1)
        (message,) = (await first.pull(Q0, 0)).messages
        with pytest.raises(StateError, match="no retry topic"):
            await first.send_back(message)
        await first.close()
        again = await started(cluster, "c1", topic="T", **options("1"))
        assert (await again.committed(Q0), await second.committed(Q0)) == (1, None)
        assert cluster.broker.offsets == {}

    in_virtual_time(scenario)


def test_a_reset_by_request_becomes_the_progress() -> None:
    """S1-23 (220) for a consumer that does not read; a handler to run (309) it has none."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.broker.put("T", 0, *"abcd")
        consumer = await started(cluster, topic="T")
        told: list[OffsetReset] = []
        consumer.on_event(lambda event: told.append(event) if isinstance(event, OffsetReset) else None)
        await consumer.commit(Q0, 4)
        fields = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true"}
        body = QueueOffsets.of_queues({Q0: 2}).dump()
        cluster.broker.tell("g", RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body)
        await until(lambda: cluster.broker.committed(Q0) == 2)
        assert (await consumer.committed(Q0), [event.queue for event in told]) == (2, [Q0])
        answer = await cluster.broker.ask(
            "g",
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            {"consumerGroup": "g"},
            cluster.broker.queues[("T", 0)][0],
        )
        assert "no handler" in (answer.remark or "")

    in_virtual_time(scenario)


# -- sending back --------------------------------------------------------------------


async def one_message(cluster: GroupCluster, **options: Any) -> tuple[QueuePullConsumer, MessageView]:
    consumer = await started(cluster, **options)
    cluster.broker.put("T", 0, "a", "b")
    await consumer.queues("T")
    return consumer, (await consumer.pull(Q0, 1)).messages[0]


def test_a_message_is_sent_back_to_its_broker() -> None:
    """S3-23, S3-33."""

    async def scenario(cluster: GroupCluster) -> None:
        consumer, message = await one_message(cluster)
        await consumer.send_back(message)
        await consumer.send_back(message, 5)
        fields = [asked.fields for asked in cluster.broker.of(BACK)]
        assert [one["delayLevel"] for one in fields] == ["0", "5"]
        assert (fields[0]["group"], fields[0]["offset"], fields[0]["maxReconsumeTimes"]) == ("g", "1", "16")
        assert (fields[0]["originTopic"], fields[0]["originMsgId"]) == ("T", message.msg_id)

    in_virtual_time(scenario)


def test_a_message_that_its_broker_refuses_goes_to_the_retry_topic_or_raises() -> None:
    """S3-32 for a caller: who cannot send back hears of it. The first topic of a message is not forgotten."""

    async def scenario(cluster: GroupCluster) -> None:
        consumer, message = await one_message(cluster)
        cluster.broker.overrides[BACK] = lambda request: request.reply(1, "not now")
        cluster.topic(retry_topic("g"), 1)
        await consumer.send_back(message)
        cluster.broker.put(retry_topic("g"), 0, "again", RETRY_TOPIC="T")
        (retried,) = (await consumer.pull(MessageQueue(retry_topic("g"), "broker-a", 0), 0)).messages
        await consumer.send_back(retried)
        for sent in cluster.broker.of(RequestCode.SEND_MESSAGE_V2):
            assert "RETRY_TOPIC\x01T\x02" in sent.fields["i"]
        cluster.broker.overrides[RequestCode.SEND_MESSAGE_V2] = lambda request: request.reply(1, "never")
        with pytest.raises(RocketMQError, match="never"):
            await consumer.send_back(message)

    in_virtual_time(scenario)


# -- with our own servers ------------------------------------------------------------


def test_queues_are_read_by_hand_in_a_cluster() -> None:
    """S2-23, S3-01: any queue, any offset, any tag; a waiting pull is answered by a send; progress outlives us."""

    async def scenario() -> None:
        async with (
            LocalCluster() as cluster,
            Producer("p", cluster.namesrv) as producer,
            QueuePullConsumer("reader", cluster.namesrv) as consumer,
        ):
            for number in range(20):
                await producer.send(Message("orders", f"{number}", tags="odd" if number % 2 else "even"))
            read: list[str] = []
            for queue in await consumer.queues("orders"):
                offset = await consumer.committed(queue) or 0
                while True:
                    result = await consumer.pull(queue, offset, max_messages=2, expression="odd")
                    read += bodies(result)
                    offset = result.next_offset
                    if result.status is PullStatus.NO_NEW_MSG:
                        break
                assert offset == await consumer.max_offset(queue)
                await consumer.commit(queue, offset)
            assert sorted(map(int, read)) == list(range(1, 20, 2))

            waiting = asyncio.ensure_future(consumer.pull(queue, offset, wait=20))
            sent = await producer.send(Message("orders", "late", tags="odd"), queue=queue)
            late = await waiting
            assert (bodies(late), sent.queue_offset, late.next_offset) == (["late"], offset, offset + 1)
            found = await consumer.offset_for_time(queue, late.messages[0].store_timestamp)
            assert found <= offset
            await consumer.close()
            async with QueuePullConsumer("reader", cluster.namesrv) as again:
                assert await again.committed(queue) == offset

    run(scenario())


def test_members_share_in_a_cluster_and_a_message_comes_back() -> None:
    """S1-39, S3-33, S3-34: the share moves; what was sent back lies in the group's retry topic, once it is due."""

    async def scenario() -> None:
        async with (
            LocalCluster(properties={"messageDelayLevel": "1s 1s"}) as cluster,
            Producer("p", cluster.namesrv) as producer,
        ):
            await producer.send(Message("orders", "difficult"))
            first = QueuePullConsumer("reader", cluster.namesrv)
            first.subscribe("orders")
            second = QueuePullConsumer("reader", cluster.namesrv)
            second.subscribe("orders")
            async with first:
                assert len(first.assignment["orders"]) == 4
                async with second:
                    await until(
                        lambda: (
                            len(first.assignment["orders"]) == len(second.assignment.get("orders", ())) == 2
                        )
                    )
                await until(lambda: len(first.assignment["orders"]) == 4)
                for queue in first.assignment["orders"]:
                    for message in (await first.pull(queue, 0)).messages:
                        await first.send_back(message, 1)
                (retries,) = await first.queues(retry_topic("reader"))
                again = await first.pull(retries, 0, wait=20)
                assert bodies(again) == ["difficult"]
                assert (again.messages[0].original_topic, again.messages[0].reconsume_times) == ("orders", 1)

    run(scenario())
