"""The pull consumer against scripted brokers: subscribe or assign, poll, commit, seek, pause."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from gimbalmq.client.consumer_config import PullConsumerConfig
from gimbalmq.client.events import OffsetReset, QueueTaken
from gimbalmq.client.pull_consumer import PullConsumer
from gimbalmq.errors import ConfigError, ResponseError, StateError
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.protocol.bodies import Heartbeat
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.status_bodies import QueueOffsets
from tests.client.group_peers import GroupCluster, in_virtual_time, on_sockets, until
from tests.support import run

HEARTBEAT = RequestCode.HEART_BEAT
PULL = RequestCode.PULL_MESSAGE
UPDATE = RequestCode.UPDATE_CONSUMER_OFFSET
QUERY = RequestCode.QUERY_CONSUMER_OFFSET
Q0 = MessageQueue("T", "broker-a", 0)
Q1 = MessageQueue("T", "broker-a", 1)


async def subscribed(cluster: GroupCluster, name: str = "c1#1", **options: Any) -> PullConsumer:
    """A consumer of topic T that reads from the start."""
    if "T" not in cluster.topics:
        cluster.topic("T", 1)
    for number in range(cluster.topics["T"]["broker-a"]):
        cluster.broker.offsets.setdefault(("g", "T", number), 0)
    consumer = cluster.pull(name, **options)
    consumer.subscribe("T")
    await cluster.launch(consumer)
    return consumer


def bodies(messages: list[MessageView]) -> list[str]:
    return [message.body.decode() for message in messages]


async def drain(consumer: PullConsumer, count: int) -> list[str]:
    got: list[str] = []
    while len(got) < count:
        got += bodies(await consumer.poll(1.0))
    return got


def test_defaults_are_javas() -> None:
    config = PullConsumerConfig(namesrv="localhost:9876", group="g")
    assert (config.pull_batch_size, config.broker_suspend, config.poll_timeout) == (10, 20.0, 5.0)
    assert (config.auto_commit, config.auto_commit_interval) == (True, 5.0)
    with pytest.raises(ConfigError):
        PullConsumerConfig(namesrv="localhost:9876", group="g", auto_commit_interval=0.5)
    with pytest.raises(ConfigError):
        PullConsumer("g", "localhost:9876", consume_threads=3)


def test_poll_gives_batches_over_sockets() -> None:
    """S3-15: messages are pulled ahead and handed out a batch at a time."""

    async def scenario() -> None:
        async def inner(cluster: GroupCluster) -> None:
            cluster.topic("T", 1)
            cluster.broker.put("T", 0, *(str(number) for number in range(25)))
            consumer = await subscribed(cluster)
            sizes = [len(await consumer.poll(5.0)) for _ in range(3)]
            assert sizes == [10, 10, 5]
            assert await consumer.poll(0) == []
            waiting = asyncio.ensure_future(consumer.poll(5.0))
            await until(lambda: cluster.broker.waiting)
            cluster.broker.put("T", 0, "late")
            assert bodies(await waiting) == ["late"]

        await on_sockets(inner)

    run(scenario())


def test_poll_comes_back_empty_when_its_time_is_up() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        consumer = await subscribed(cluster)
        began = cluster.clock.monotonic()
        assert await consumer.poll() == []
        assert cluster.clock.monotonic() - began == pytest.approx(5.0, abs=0.01)

    in_virtual_time(scenario)


def test_the_group_shares_the_queues_without_order_or_retry() -> None:
    """S1-27, S0-30: CONSUME_ACTIVELY, no retry topic, no locks; subscription in the pull's header."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        first = await subscribed(cluster, "c1#1")
        second = await subscribed(cluster, "c2#1")
        await asyncio.sleep(0.3)
        assert (first.assignment, second.assignment) == ({"T": [Q0]}, {"T": [Q1]})
        data = Heartbeat.parse(cluster.broker.of(HEARTBEAT)[0].body).consumer_data_set[0]
        assert data.consume_type == "CONSUME_ACTIVELY"
        assert [item.topic for item in data.subscription_data_set] == ["T"]
        assert cluster.broker.of(RequestCode.LOCK_BATCH_MQ) == []
        fields = cluster.broker.of(PULL)[0].fields
        assert (fields["sysFlag"], fields["subscription"], fields["suspendTimeoutMillis"]) == (
            "6",
            "*",
            "20000",
        )

    in_virtual_time(scenario)


def test_the_queue_listener_hears_topic_all_and_own_queues() -> None:
    """S1-39."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        told: list[tuple[str, list[MessageQueue], list[MessageQueue], str]] = []

        def listener(
            topic: str, queues: Collection[MessageQueue], mine: Collection[MessageQueue], reason: str
        ) -> None:
            told.append((topic, list(queues), list(mine), reason))

        consumer = cluster.pull("c1#1")
        consumer.on_queues_changed(listener)
        consumer.subscribe("T")
        await cluster.launch(consumer)
        assert told == [("T", [Q0, Q1], [Q0, Q1], "start")]
        await subscribed(cluster, "c2#1")
        await asyncio.sleep(0.3)
        assert told[1:] == [("T", [Q0, Q1], [Q0], "a broker said that members changed")]

    in_virtual_time(scenario)


def test_a_queue_that_is_not_pulled_is_left_alone() -> None:
    """S2-17: only push consumers drop it."""

    async def scenario(cluster: GroupCluster) -> None:
        consumer = await subscribed(cluster)
        item = consumer.holdings.table[Q0]
        item.empty()
        await asyncio.sleep(300)
        assert consumer.holdings.table[Q0] is item

    in_virtual_time(scenario)


def test_a_balanced_queue_has_no_start_offset_from_the_round() -> None:
    """S2-20, S2-23: the round says 0 and asks for nothing; the queue's own loop finds out where to begin."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        for number in (0, 1):
            cluster.broker.put("T", number, *"abcdef")
        cluster.broker.offsets[("g", "T", 0)] = 4
        cluster.broker.overrides[QUERY] = lambda request: request.reply(1, "busy")
        told: list[QueueTaken] = []
        consumer = cluster.pull()
        consumer.subscribe("T")
        consumer.on_event(lambda event: told.append(event) if isinstance(event, QueueTaken) else None)
        await cluster.launch(consumer)
        assert [(event.queue, event.offset) for event in told] == [(Q0, 0), (Q1, 0)]
        assert consumer.assignment["T"] == [Q0, Q1]
        del cluster.broker.overrides[QUERY]
        assert await drain(consumer, 2) == ["e", "f"]
        await asyncio.sleep(1)
        begun: dict[str, str] = {}
        for request in cluster.broker.of(PULL):
            begun.setdefault(request.fields["queueId"], request.fields["queueOffset"])
        assert begun == {
            "0": "4",
            "1": "6",
        }  # in the other queue there is no progress, so it begins at the end

    in_virtual_time(scenario)


def test_an_offset_of_a_queue_that_is_not_held_does_not_decide_where_it_begins() -> None:
    """S2-19: what is remembered of a queue is cleared when it is taken."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        for number in (0, 1):
            cluster.broker.put("T", number, *"abcdef")
        first = await subscribed(cluster, "c1#1", persist_interval=1000.0)
        second = await subscribed(cluster, "c2#1", persist_interval=1000.0)
        await asyncio.sleep(0.5)
        assert first.assignment["T"] == [Q0]
        assert await drain(second, 6) == list("abcdef")
        await second.commit({Q0: 4, Q1: 6})
        assert (cluster.broker.committed(Q0), cluster.broker.committed(Q1)) == (0, 6)
        second.offsets.update(Q0, 4, increase_only=False)
        cluster.broker.offsets[("g", "T", 0)] = 2
        cluster.broker.overrides[UPDATE] = lambda request: request.reply()
        await first.close()
        await asyncio.sleep(0.5)
        assert second.assignment["T"] == [Q0, Q1]
        assert await drain(second, 4) == list("cdef")

    in_virtual_time(scenario)


def test_auto_commit_happens_inside_poll() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.put("T", 0, *(str(number) for number in range(25)))
        consumer = await subscribed(cluster, persist_interval=1000.0)
        await consumer.poll()
        await asyncio.sleep(20)
        assert cluster.broker.committed(Q0) == 0  # nothing is done until the next is asked for
        await consumer.poll()
        await asyncio.sleep(0.1)
        assert cluster.broker.committed(Q0) == 10

    in_virtual_time(scenario)


def test_commit_by_hand() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.put("T", 0, *(str(number) for number in range(25)))
        consumer = await subscribed(cluster, auto_commit=False)
        await consumer.poll()
        await consumer.poll()
        await asyncio.sleep(30)
        assert cluster.broker.committed(Q0) == 0
        assert consumer.position(Q0) == 20
        await consumer.commit()
        assert cluster.broker.committed(Q0) == 20
        assert not cluster.broker.of(UPDATE)[-1].oneway
        await consumer.commit({Q0: 7})
        assert cluster.broker.committed(Q0) == 7
        assert await consumer.committed(Q0) == 7
        await consumer.close()
        assert cluster.broker.committed(Q0) == 7

    in_virtual_time(scenario)


def test_closing_commits_what_was_handed_out() -> None:
    """S3-31 for auto commit."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.put("T", 0, *(str(number) for number in range(25)))
        consumer = await subscribed(cluster)
        await consumer.poll()
        await consumer.close()
        assert cluster.broker.committed(Q0) == 10
        again = await subscribed(cluster, "c2#1")
        assert bodies(await again.poll())[0] == "10"
        with pytest.raises(StateError):
            await consumer.poll()

    in_virtual_time(scenario)


def test_iteration_commits_message_by_message() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.put("T", 0, *(str(number) for number in range(25)))
        consumer = await subscribed(cluster)
        got: list[str] = []
        async for message in consumer:
            got.append(message.body.decode())
            if len(got) == 13:
                break
        assert got == [str(number) for number in range(13)]
        await consumer.close()
        assert cluster.broker.committed(Q0) == 12  # the last one was not asked past

    in_virtual_time(scenario)


def test_a_loop_that_is_left_loses_nothing() -> None:
    """What a pull brought and the loop was not given comes in the next loop, or to the next poll."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.put("T", 0, *(str(number) for number in range(25)))
        consumer = await subscribed(cluster)
        got: list[str] = []
        for end in (1, 5):
            async for message in consumer:
                got.append(message.body.decode())
                if len(got) == end:
                    break
        got += await drain(consumer, 20)
        assert got == [str(number) for number in range(25)]
        await consumer.close()
        assert cluster.broker.committed(Q0) == 25

    in_virtual_time(scenario)


def test_iteration_heeds_a_pause_in_the_middle_of_what_was_pulled() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.put("T", 0, *"abc")
        consumer = await subscribed(cluster)
        messages = aiter(consumer)
        assert (await anext(messages)).body == b"a"
        consumer.pause(Q0)
        second = asyncio.ensure_future(anext(messages))
        await asyncio.sleep(5)
        assert not second.done()
        consumer.resume(Q0)
        assert (await second).body == b"b"

    in_virtual_time(scenario)


def test_iteration_ends_with_the_consumer() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        consumer = await subscribed(cluster)

        async def read() -> list[MessageView]:
            return [message async for message in consumer]

        reading = asyncio.ensure_future(read())
        await asyncio.sleep(1)
        await consumer.close()
        assert await reading == []

    in_virtual_time(scenario)


def test_assigned_queues_are_read_whoever_else_does() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        for number in (0, 1):
            cluster.broker.put("T", number, *(f"{number}{letter}" for letter in "abc"))
            cluster.broker.offsets[("g", "T", number)] = 0
        one, two = cluster.pull("c1#1"), cluster.pull("c2#1")
        for consumer in (one, two):
            consumer.assign([Q0])
            await cluster.launch(consumer)
            assert await drain(consumer, 3) == ["0a", "0b", "0c"]
        assert cluster.broker.of(RequestCode.GET_CONSUMER_LIST_BY_GROUP) == []
        assert cluster.broker.of(HEARTBEAT)
        one.assign([Q1])
        assert await drain(one, 3) == ["1a", "1b", "1c"]
        assert one.assignment == {"T": [Q1]}
        with pytest.raises(StateError):
            one.subscribe("T")
        other = await subscribed(cluster, "c3#1", group="h")
        with pytest.raises(StateError):
            other.assign([Q0])

    in_virtual_time(scenario)


def test_what_is_assigned_to_a_running_consumer_is_held_at_once() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        cluster.broker.put("T", 0, *(str(number) for number in range(9)))
        cluster.broker.put("T", 1, *(str(number) for number in range(9)))
        consumer = cluster.pull()
        await cluster.launch(consumer)
        consumer.assign([Q0])
        assert consumer.assignment == {"T": [Q0]}
        await consumer.seek(Q0, 4)
        assert [message.queue_offset for message in await consumer.poll()] == [4, 5, 6, 7, 8]
        consumer.assign([Q1])
        assert consumer.assignment == {"T": [Q1]}
        consumer.assign([Q0, Q1])
        await consumer.seek_to_begin(Q1)
        consumer.pause(Q1)
        assert await consumer.poll(0.5) == []  # of the first queue everything was handed out before
        consumer.resume(Q1)
        assert [message.queue_offset for message in await consumer.poll()] == list(range(9))
        assert (consumer.position(Q0), consumer.position(Q1)) == (9, 9)

    in_virtual_time(scenario)


def test_a_round_takes_nothing_away_that_was_assigned() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        consumer = cluster.pull()
        consumer.assign([Q0, Q1])
        await cluster.launch(consumer)
        assert await consumer.rebalance()
        assert consumer.assignment == {"T": [Q0, Q1]}

    in_virtual_time(scenario)


def test_assigned_queues_can_be_filtered() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.put("T", 0, "a", tags="A")
        cluster.broker.put("T", 0, "b", tags="B")
        cluster.broker.from_start(Q0)
        consumer = cluster.pull()
        consumer.assign([Q0], "A")
        await cluster.launch(consumer)
        assert await drain(consumer, 1) == ["a"]
        assert cluster.broker.of(PULL)[0].fields["subscription"] == "A"

    in_virtual_time(scenario)


def test_seek_goes_anywhere_in_the_queue() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.put("T", 0, *"abcdef")
        consumer = await subscribed(cluster)
        assert await drain(consumer, 6) == list("abcdef")
        await consumer.seek(Q0, 4)
        assert await drain(consumer, 2) == ["e", "f"]
        await consumer.seek_to_begin(Q0)
        assert (await drain(consumer, 6))[0] == "a"
        await consumer.seek_to_end(Q0)
        assert await consumer.poll(0.5) == []
        await consumer.seek_to_time(Q0, 1_700_000_000_000)  # the scripted broker says 2
        assert bodies(await consumer.poll(1.0)) == ["c", "d", "e", "f"]
        with pytest.raises(ConfigError, match="from 0 to 6"):
            await consumer.seek(Q0, 7)
        with pytest.raises(StateError):
            await consumer.seek(Q1, 0)
        await consumer.seek(Q0, 1)
        await consumer.commit()
        assert cluster.broker.committed(Q0) == 1

    in_virtual_time(scenario)


def test_offsets_by_timestamp_and_ends_can_be_asked() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        cluster.broker.put("T", 0, *"abc")
        consumer = await subscribed(cluster)
        assert await consumer.offset_for_time(Q0, 5) == 2
        assert (await consumer.min_offset(Q0), await consumer.max_offset(Q0)) == (0, 3)
        assert await consumer.queues("T") == (Q0, Q1)
        assert (await consumer.lag())[Q0] == 3

    in_virtual_time(scenario)


def test_a_paused_queue_is_held_but_hands_out_nothing() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        consumer = await subscribed(cluster)
        consumer.pause(Q0)
        cluster.broker.put("T", 0, "held")
        cluster.broker.put("T", 1, "free")
        assert bodies(await consumer.poll()) == ["free"]
        assert await consumer.poll() == []
        assert consumer.assignment["T"] == [Q0, Q1]
        consumer.resume(Q0)
        assert bodies(await consumer.poll()) == ["held"]

    in_virtual_time(scenario)


def test_reading_ahead_is_bounded() -> None:
    """S3-36 for pull consumers, and the limit over all queues."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        for number in (0, 1):
            cluster.broker.put("T", number, *(["x"] * 100))
        consumer = await subscribed(cluster, pull_threshold_for_queue=15)
        await asyncio.sleep(3)
        assert {item.window.count for item in consumer.holdings.table.values()} == {20}
        await consumer.close()
        other = await subscribed(cluster, "c2#1", pull_threshold_for_all=25)
        await asyncio.sleep(3)
        assert 25 < sum(item.window.count for item in other.holdings.table.values()) <= 40

    in_virtual_time(scenario)


def test_a_lost_queue_is_not_handed_out_any_more() -> None:
    """S3-41."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        for number in (0, 1):
            cluster.broker.put("T", number, *(f"{number}-{item}" for item in range(10)))
        first = await subscribed(cluster, "c1#1")
        await asyncio.sleep(0.3)
        second = await subscribed(cluster, "c2#1")
        await asyncio.sleep(0.3)
        assert all(body.startswith("0-") for body in await drain(first, 10))
        assert all(body.startswith("1-") for body in await drain(second, 10))
        assert await first.poll(1.0) == []

    in_virtual_time(scenario)


def test_a_place_to_begin_that_cannot_be_asked_is_asked_again() -> None:
    """S2-33 for pull consumers: 3 s later."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.put("T", 0, "a")
        cluster.broker.overrides[RequestCode.QUERY_CONSUMER_OFFSET] = lambda request: request.reply(1, "no")
        consumer = await subscribed(cluster)
        await asyncio.sleep(2.5)
        assert cluster.broker.of(PULL) == []
        del cluster.broker.overrides[RequestCode.QUERY_CONSUMER_OFFSET]
        assert bodies(await consumer.poll()) == ["a"]

    in_virtual_time(scenario)


def test_an_illegal_offset_is_passed_over() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.first[("T", 0)] = 50
        cluster.broker.put("T", 0, "a")
        consumer = await subscribed(cluster)
        assert bodies(await consumer.poll()) == ["a"]

    in_virtual_time(scenario)


@pytest.mark.parametrize("by_loop", [False, True])
def test_progress_in_a_queue_that_was_made_anew_starts_anew(by_loop: bool) -> None:
    """Else the offset of the old queue is committed, and what the new one gets up to there is passed over."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.put("T", 0, *(str(number) for number in range(20)))
        consumer = await subscribed(cluster)
        reset: list[OffsetReset] = []
        consumer.on_event(lambda event: reset.append(event) if isinstance(event, OffsetReset) else None)
        await drain(consumer, 20)
        assert await consumer.poll(0.1) == []
        cluster.broker.queues[("T", 0)].clear()
        cluster.broker.put("T", 0, "passed over")
        while not reset:
            assert await consumer.poll(0.1) == []
        cluster.broker.put("T", 0, "new")
        if by_loop:
            async for message in consumer:
                assert message.body == b"new"
                assert consumer.position(Q0) == 1
                break
        else:
            assert await drain(consumer, 1) == ["new"]
            assert consumer.position(Q0) == 2
        await consumer.close()
        assert cluster.broker.committed(Q0) == (1 if by_loop else 2)

    in_virtual_time(scenario)


def test_what_was_read_ahead_of_a_queue_that_was_made_anew_is_handed_out_and_is_no_progress() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.put("T", 0, *(str(number) for number in range(20)))
        consumer = await subscribed(cluster)
        reset: list[OffsetReset] = []
        consumer.on_event(lambda event: reset.append(event) if isinstance(event, OffsetReset) else None)
        assert len(await consumer.poll(1.0)) == 10
        await until(lambda: cluster.broker.waiting)
        cluster.broker.queues[("T", 0)].clear()
        cluster.broker.put("T", 0, "passed over")
        await until(lambda: reset)
        assert await drain(consumer, 10) == [str(number) for number in range(10, 20)]
        assert consumer.position(Q0) is None
        cluster.broker.put("T", 0, "new")
        assert await drain(consumer, 1) == ["new"]
        assert consumer.position(Q0) == 2
        await consumer.close()
        assert cluster.broker.committed(Q0) == 2

    in_virtual_time(scenario)


def test_errors_of_a_pull_delay_it() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.broker.overrides[PULL] = lambda request: request.reply(1, "no")
        await subscribed(cluster)
        await asyncio.sleep(3.5)
        times = [request.at for request in cluster.broker.of(PULL)]
        assert len(times) == 4

    in_virtual_time(scenario)


def test_a_reset_by_request_seeks() -> None:
    """S1-23 (220) for pull consumers; a handler to run (309) they have none."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.put("T", 0, *"abcd")
        consumer = await subscribed(cluster)
        await drain(consumer, 4)
        fields = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true"}
        body = QueueOffsets.of_queues({Q0: 2}).dump()
        cluster.broker.tell("g", RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body)
        assert await drain(consumer, 2) == ["c", "d"]
        answer = await cluster.broker.ask(
            "g",
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            {"consumerGroup": "g"},
            cluster.broker.queues[("T", 0)][0],
        )
        with pytest.raises(ResponseError, match="no handler"):
            raise ResponseError.for_code(answer.code, answer.remark)

    in_virtual_time(scenario)
