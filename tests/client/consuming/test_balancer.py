"""Rounds: when they run, what they ask, which queues come and go. Scripted servers, virtual time."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from gimbalmq.balance.allocate import Averagely
from gimbalmq.client.consumer_config import ConsumeFromWhere, MessageModel
from gimbalmq.client.consuming.offsets import ReadFrom
from gimbalmq.client.events import (
    BalanceEvent,
    EqualClientIds,
    QueueDropped,
    QueueSkipped,
    QueueTaken,
    RoundFinished,
    RoundStarted,
    TopicSkipped,
    UnequalSubscriptions,
)
from gimbalmq.client.push_consumer import PushConsumer
from gimbalmq.errors import RequestTimeoutError, RouteError, StateError
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue
from gimbalmq.protocol.bodies import BrokerData, ConsumerIdList, Heartbeat
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.protocol.fastjson import queue_text
from gimbalmq.transport.channel import Channel
from tests.client.group_peers import GroupCluster, Peer, in_virtual_time

HEARTBEAT = RequestCode.HEART_BEAT
MEMBERS = RequestCode.GET_CONSUMER_LIST_BY_GROUP
PULL = RequestCode.PULL_MESSAGE
UPDATE = RequestCode.UPDATE_CONSUMER_OFFSET
QUERY = RequestCode.QUERY_CONSUMER_OFFSET
LOCK = RequestCode.LOCK_BATCH_MQ
CHECK = RequestCode.CHECK_CLIENT_CONFIG
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
UNLOCK = RequestCode.UNLOCK_BATCH_MQ


async def nothing(message: MessageView) -> None:
    return None


class Log:
    """A consumer's events."""

    def __init__(self, consumer: PushConsumer) -> None:
        self.events: list[BalanceEvent] = []
        consumer.on_event(self.events.append)

    def reasons(self) -> list[str]:
        return [event.reason for event in self.events if isinstance(event, RoundStarted)]

    def of(self, kind: type[BalanceEvent]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def held(consumer: PushConsumer, topic: str = "T") -> list[int]:
    return [queue.queue_id for queue in consumer.assignment.get(topic, [])]


async def joined(cluster: GroupCluster, name: str, *topics: str, **options: Any) -> PushConsumer:
    consumer = cluster.push(name, **options)
    for topic in topics or ("T",):
        consumer.subscribe(topic, "*", nothing)
    await cluster.launch(consumer)
    return consumer


# --- triggers --------------------------------------------------------------------------------------


def test_start_refreshes_routes_checks_subscriptions_heartbeats_and_balances() -> None:
    """S1-20, S1-22, S0-28: the routes of all topics, the check of what is no tag with one broker, a heartbeat to
    all, then the first round, which finds routes and members."""

    async def scenario(cluster: GroupCluster) -> None:
        journal: list[tuple[str, str]] = []

        def note(peer: Peer, name: str, code: int, what: str) -> None:
            def override(request: RemotingCommand) -> None:
                journal.append((name, what.format_map(request.ext_fields or {})))

            peer.overrides[code] = override

        cluster.topic("T", 1)
        cluster.topic("U", 2)
        note(cluster.nameserver, "nameserver", RequestCode.GET_ROUTEINFO_BY_TOPIC, "route of {topic}")
        for name, broker in cluster.brokers.items():
            note(broker, name, CHECK, "check")
            note(broker, name, HEARTBEAT, "heartbeat")
            note(broker, name, MEMBERS, "members")
            note(broker, name, QUERY, "offset")
        consumer = cluster.push("c1#1")
        consumer.subscribe("T", "A || B", nothing)
        consumer.subscribe("U", "price > 10", nothing, expression_type="SQL92")
        assert journal == []
        await cluster.launch(consumer)
        assert [len(consumer.assignment[topic]) for topic in ("T", "U")] == [2, 4]
        steps = [what for _, what in journal]
        beats = [journal.index((name, "heartbeat")) for name in cluster.brokers]
        order = [
            max(steps.index(f"route of {topic}") for topic in ("T", "U", "%RETRY%g")),
            steps.index("check"),
            min(beats),
            max(beats),
            steps.index("members"),
            steps.index("offset"),
        ]
        assert order == sorted(order)
        assert steps.count("check") == 1
        (checked,) = (asked for broker in cluster.brokers.values() for asked in broker.of(CHECK))
        assert b"price > 10" in checked.body

    in_virtual_time(scenario, "broker-a", "broker-b")


def test_the_timer_runs_a_round_20_seconds_after_the_end_of_the_one_before() -> None:
    """S0-51, S3-39, S1-16: also without any notice a member rebalances within 20 s."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        cluster.broker.notify_changes = False
        consumer = await joined(cluster, "c1#1")
        log = Log(consumer)
        cluster.broker.members["g"][next(iter(cluster.broker.server.channels))] = consumer.client_id  # type: ignore[union-attr]
        before = len(cluster.broker.of(MEMBERS))
        await asyncio.sleep(19.5)
        assert log.reasons() == []
        await asyncio.sleep(1)
        assert log.reasons() == ["timer"]
        assert len(cluster.broker.of(MEMBERS)) == before + 1
        await asyncio.sleep(60)
        assert log.reasons() == ["timer"] * 4

    in_virtual_time(scenario)


def test_a_missed_notice_costs_no_more_than_the_timer() -> None:
    """S1-16, S3-43."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 4)
        cluster.broker.notify_changes = False
        first = await joined(cluster, "c1#1")
        second = await joined(cluster, "c2#1")
        assert held(first) == [0, 1, 2, 3]
        assert held(second) == [2, 3]
        await asyncio.sleep(20.5)
        assert held(first) == [0, 1]

    in_virtual_time(scenario)


def test_a_notice_starts_a_round_at_once_and_gets_no_answer() -> None:
    """S0-50."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        consumer = await joined(cluster, "c1#1")
        await asyncio.sleep(1)
        log = Log(consumer)
        channel = next(iter(cluster.broker.members["g"]))
        answered = channel.start_call(RemotingCommand(40, {"consumerGroup": "g"}), 2.0)
        await asyncio.sleep(0.1)
        assert log.reasons() == ["a broker said that members changed"]
        await asyncio.sleep(3)
        assert answered.exception() is not None

    in_virtual_time(scenario)


def test_one_groups_notice_balances_every_group_of_the_instance() -> None:
    """S0-52, S1-26, S2-01: all consumers of the process, and one that fails does not stop the others."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        first = await joined(cluster, "c1#1", group="g")
        second = await joined(cluster, "c1#1", group="h")
        assert first.instance is second.instance
        await asyncio.sleep(1)
        one, two = Log(first), Log(second)

        async def fails(reason: str) -> bool:
            raise RuntimeError("this consumer is broken")

        cluster.broker.notify("h")
        await asyncio.sleep(0.1)
        assert one.reasons() and two.reasons()
        before = len(two.reasons())
        first.rebalance = fails  # type: ignore[method-assign, assignment]
        cluster.broker.notify("g")
        await asyncio.sleep(0.1)
        assert len(two.reasons()) == before + 1

    in_virtual_time(scenario)


def test_a_second_consumer_of_a_group_in_one_instance_is_refused() -> None:
    """S3-07."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        await joined(cluster, "c1#1")
        with pytest.raises(StateError, match="created before"):
            await joined(cluster, "c1#1")

    in_virtual_time(scenario)


def test_a_suspended_consumer_does_not_balance_and_resume_does_at_once() -> None:
    """S0-53."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        consumer = await joined(cluster, "c1#1")
        await asyncio.sleep(1)
        log = Log(consumer)
        consumer.suspend()
        cluster.broker.notify("g")
        await asyncio.sleep(60)
        assert log.reasons() == []
        consumer.resume()
        await asyncio.sleep(0.1)
        assert log.reasons() == ["resumed"]

    in_virtual_time(scenario)


def test_rounds_keep_the_minimum_interval_where_one_is_set() -> None:
    """5.2+ timing by option: not twice within a second."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        consumer = await joined(cluster, "c1#1", rebalance_min_interval=1.0)
        await asyncio.sleep(2.5)
        times: list[float] = []
        consumer.on_event(
            lambda event: times.append(cluster.clock.monotonic()) if isinstance(event, RoundStarted) else None
        )
        for _ in range(20):
            cluster.broker.notify("g")
            await asyncio.sleep(0.1)
        assert 2 <= len(times) <= 3
        assert all(later - earlier >= 0.99 for earlier, later in pairwise(times))

    in_virtual_time(scenario)


def test_a_changed_queue_set_starts_a_round_at_once() -> None:
    """S1-06: more queues, no change of membership. Java waits for its timer; by option we do too."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        eager = await joined(cluster, "c1#1", poll_namesrv_interval=5.0)
        patient = await joined(
            cluster, "d1#1", group="h", poll_namesrv_interval=5.0, rebalance_on_route_change=False
        )
        await asyncio.sleep(6)
        cluster.topic("T", 4)
        await asyncio.sleep(5.5)
        assert held(eager) == [0, 1, 2, 3]
        assert held(patient) == [0, 1]
        await asyncio.sleep(20)
        assert held(patient) == [0, 1, 2, 3]
        cluster.topic("T", 1)
        await asyncio.sleep(5.5)
        assert held(eager) == [0]

    in_virtual_time(scenario)


# --- inputs ----------------------------------------------------------------------------------------


def test_shares_are_disjoint_and_complete_whatever_order_the_broker_lists_members_in() -> None:
    """S1-32, S1-31, S0-54, S1-15, S3-40 (AVG): both lists are sorted; every member allocates for itself."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 8)
        consumers = [await joined(cluster, f"c{number}#1") for number in (3, 1, 2)]
        await asyncio.sleep(0.5)
        assert [held(consumer) for consumer in consumers] == [[6, 7], [0, 1, 2], [3, 4, 5]]
        assert not [code for code in cluster.broker.codes() if code == RequestCode.QUERY_ASSIGNMENT]

    in_virtual_time(scenario)


def test_five_queues_for_one_two_and_six_members() -> None:
    """S1-01, S1-02, S4-15: 5; then 3 and 2; of six members one has none, until another leaves."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 5)
        consumers = [await joined(cluster, "c1#1")]
        assert held(consumers[0]) == [0, 1, 2, 3, 4]
        consumers.append(await joined(cluster, "c2#1"))
        await asyncio.sleep(0.2)
        assert [held(consumer) for consumer in consumers] == [[0, 1, 2], [3, 4]]
        consumers += [await joined(cluster, f"c{number}#1") for number in range(3, 7)]
        await asyncio.sleep(0.2)
        assert [held(consumer) for consumer in consumers] == [[0], [1], [2], [3], [4], []]
        await consumers[0].close()
        await asyncio.sleep(0.2)
        assert [held(consumer) for consumer in consumers[1:]] == [[0], [1], [2], [3], [4]]

    in_virtual_time(scenario)


def test_eight_queues_dealt_like_cards() -> None:
    """S3-40 (AVG_BY_CIRCLE)."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 8)
        consumers = [await joined(cluster, f"c{number}#1", strategy="AVG_BY_CIRCLE") for number in range(3)]
        await asyncio.sleep(0.2)
        assert [held(consumer) for consumer in consumers] == [[0, 3, 6], [1, 4, 7], [2, 5]]

    in_virtual_time(scenario)


def test_a_leaving_member_hands_its_queues_to_the_others_at_once() -> None:
    """S1-07: start, clean stop and lost connection each lead to a round."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 4)
        first = await joined(cluster, "c1#1")
        second = await joined(cluster, "c2#1")
        await asyncio.sleep(0.2)
        assert (held(first), held(second)) == ([0, 1], [2, 3])
        await second.close()
        await asyncio.sleep(0.2)
        assert held(first) == [0, 1, 2, 3]
        third = await joined(cluster, "c3#1")
        await asyncio.sleep(0.2)
        assert held(third) == [2, 3]
        assert cluster.network is not None
        cluster.network.reset(cluster.client_host("c3#1"))
        cluster.network.cut(cluster.client_host("c3#1"), cluster.broker.address.split(":")[0])
        await asyncio.sleep(0.2)
        assert held(first) == [0, 1, 2, 3]
        cluster.network.mend()

    in_virtual_time(scenario)


def test_topics_are_balanced_one_by_one_from_the_front_of_the_member_list() -> None:
    """S1-30: 4 members, two topics of 2 queues: the first two get one of each, the others nothing."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("X", 2)
        cluster.topic("Y", 2)
        consumers = [await joined(cluster, f"c{number}#1", "X", "Y") for number in range(4)]
        await asyncio.sleep(0.5)
        shares = [(held(consumer, "X"), held(consumer, "Y")) for consumer in consumers]
        assert shares == [([0], [0]), ([1], [1]), ([], []), ([], [])]

    in_virtual_time(scenario)


def test_sticky_balances_all_topics_at_once() -> None:
    """Ours: the same group as S1-30, and every member has one queue of X and Y."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("X", 2)
        cluster.topic("Y", 2)
        consumers = [
            await joined(cluster, f"c{number}#1", "X", "Y", strategy="STICKY") for number in range(4)
        ]
        await asyncio.sleep(0.5)
        counts = [len(held(consumer, "X")) + len(held(consumer, "Y")) for consumer in consumers]
        assert counts == [1, 1, 1, 1]

    in_virtual_time(scenario)


def test_sticky_skips_what_cannot_be_known() -> None:
    """S2-04 for all topics at once: a missing route leaves out its topic, a failed member query the round."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("X", 2)
        consumer = await joined(cluster, "c1#1", "X", "Missing", strategy="STICKY")
        log = Log(consumer)
        assert held(consumer, "X") == [0, 1]
        cluster.broker.overrides[MEMBERS] = lambda request: request.reply(1, "no")
        assert not await consumer.rebalance("test")
        assert held(consumer, "X") == [0, 1]
        assert {event.topic for event in log.of(TopicSkipped)} == {"Missing", "%RETRY%g", "X"}

    in_virtual_time(scenario)


def test_the_route_gives_readable_queues_only() -> None:
    """S3-02: read queues of readable brokers."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        cluster.perms[("T", "broker-b")] = 2
        consumer = await joined(cluster, "c1#1")
        assert {queue.broker_name for queue in consumer.assignment["T"]} == {"broker-a"}

    in_virtual_time(scenario, "broker-a", "broker-b")


def test_members_are_asked_of_a_random_broker_of_the_topic() -> None:
    """S2-05: of its brokers, by chance; a broker that has only other topics is not asked."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1, "broker-a", "broker-b")
        cluster.topic("U", 1, "broker-c")
        consumer = await joined(cluster, "c1#1")
        other = await joined(cluster, "c1#1", "U", group="h")
        assert other.instance is consumer.instance
        for broker in cluster.brokers.values():
            broker.asked.clear()
        for _ in range(200):
            await consumer.rebalance("test")
        asked = sorted(
            (request.at, name)
            for name, broker in cluster.brokers.items()
            for request in broker.of(MEMBERS)
            if request.fields["consumerGroup"] == "g"
        )
        names = [name for _, name in asked]
        assert len(names) >= 200
        assert set(names) == {"broker-a", "broker-b"}
        again = sum(one == following for one, following in pairwise(names))
        assert 60 < again < len(names) - 60
        assert 60 < names.count("broker-a") < len(names) - 60

    in_virtual_time(scenario, "broker-a", "broker-b", "broker-c")


def test_members_are_asked_of_the_master_or_else_of_any_replica() -> None:
    """S2-05."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1, "broker-a")
        master, *slaves = cluster.brokers.values()
        cluster.replicas["broker-a"] = {0: master.address, 1: slaves[0].address, 2: slaves[1].address}
        consumer = await joined(cluster, "c1#1")

        async def asked(rounds: int) -> list[int]:
            before = [len(broker.of(MEMBERS)) for broker in cluster.brokers.values()]
            for _ in range(rounds):
                await consumer.rebalance("test")
            after = [len(broker.of(MEMBERS)) for broker in cluster.brokers.values()]
            return [there - here for here, there in zip(before, after, strict=True)]

        counts = await asked(30)
        assert counts[0] >= 30
        assert counts[1:] == [0, 0]
        del cluster.replicas["broker-a"][0]
        await consumer.instance.refresh_route("T")
        counts = await asked(60)
        assert counts[0] == 0
        assert min(counts[1:]) > 5

    in_virtual_time(scenario, "broker-a", "broker-s", "broker-t")


def test_a_topic_without_an_address_is_looked_up_once_before_the_members_are_asked() -> None:
    """S2-05."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        consumer = await joined(cluster, "c1#1", unbalanced_delay=None)
        await asyncio.sleep(1)
        route = consumer.instance.route("T")
        assert route is not None
        nowhere = msgspec.structs.replace(
            route, broker_datas=[BrokerData(broker_name="broker-a", broker_addrs={}, cluster="C")]
        )
        cluster.nameserver.overrides[ROUTE] = lambda request: request.reply(body=nowhere.dump())
        await consumer.instance.refresh_route("T")
        log = Log(consumer)

        async def round_and_lookups() -> int:
            before = len(cluster.nameserver.asked)
            await consumer.rebalance("test")
            return sum(request.fields["topic"] == "T" for request in cluster.nameserver.asked[before:])

        members = len(cluster.broker.of(MEMBERS))
        assert await round_and_lookups() == 1
        assert len(cluster.broker.of(MEMBERS)) == members
        assert log.of(TopicSkipped)[0].topic == "T"
        assert held(consumer) == [0]
        del cluster.nameserver.overrides[ROUTE]
        assert await round_and_lookups() == 1
        assert len(cluster.broker.of(MEMBERS)) == members + 1
        assert await round_and_lookups() == 0

    in_virtual_time(scenario)


def test_an_unknown_topic_or_a_failed_member_query_skips_the_topic() -> None:
    """S2-04, S1-28: nothing of it changes this round, and the other topics are balanced all the same."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        consumer = await joined(cluster, "c1#1", "Missing", "T")
        log = Log(consumer)
        assert held(consumer) == [0, 1]
        cluster.broker.overrides[MEMBERS] = lambda request: request.reply(1, "no consumer for this group, g")
        await consumer.rebalance("test")
        assert held(consumer) == [0, 1]
        assert {event.topic for event in log.of(TopicSkipped)} >= {"Missing", "T"}

    in_virtual_time(scenario)


def test_retry_topic_failures_are_not_warnings(caplog: pytest.LogCaptureFixture) -> None:
    """S1-28."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        await joined(cluster, "c1#1")

    with caplog.at_level(logging.WARNING):
        in_virtual_time(scenario)
    assert "%RETRY%" not in caplog.text


class Picky:
    """A strategy that can be made to fail."""

    name = "PICKY"

    def __init__(self) -> None:
        self.fails = False

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        if self.fails and queues[0].topic == "T":
            raise RuntimeError("no idea")
        return Averagely().allocate(group, client_id, queues, client_ids)


def test_a_failing_strategy_leaves_the_topic_as_it_is_and_goes_on_with_the_next() -> None:
    """S1-36, S1-28, S4-18: an own strategy is plugged in as an object."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        cluster.topic("U", 1)
        strategy = Picky()
        consumer = await joined(cluster, "c1#1", "T", "U", strategy=strategy)
        await asyncio.sleep(1)
        strategy.fails = True
        cluster.topic("U", 3)
        await consumer.instance.refresh_route("U")
        await consumer.rebalance("test")
        assert held(consumer) == [0, 1]
        assert held(consumer, "U") == [0, 1, 2]

    in_virtual_time(scenario)


def test_own_id_not_among_the_members_gives_up_everything() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        consumer = await joined(cluster, "c1#1")
        body = ConsumerIdList(consumer_id_list=["somebody-else"]).dump()
        cluster.broker.overrides[MEMBERS] = lambda request: request.reply(body=body)
        await consumer.rebalance("test")
        assert held(consumer) == []

    in_virtual_time(scenario)


# --- broadcasting ----------------------------------------------------------------------------------


def test_broadcasting_members_hold_all_queues_and_ask_nobody(tmp_path: Any) -> None:
    """S2-02, S3-09: every member all queues, told to the listener as (topic, all, all)."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 3)
        told: list[tuple[str, int, int]] = []
        consumers = []
        for name in ("c1", "c2"):
            consumer = cluster.push(
                name, message_model=MessageModel.BROADCASTING, local_offset_folder=tmp_path / name
            )
            consumer.subscribe("T", "*", nothing)
            consumer.on_queues_changed(
                lambda topic, every, mine, why: told.append((topic, len(every), len(mine)))
            )
            await cluster.launch(consumer)
            consumers.append(consumer)
        assert [held(consumer) for consumer in consumers] == [[0, 1, 2]] * 2
        assert told == [("T", 3, 3)] * 2
        assert cluster.broker.of(MEMBERS) == []
        assert "%RETRY%g" not in consumers[0].subscriptions

    in_virtual_time(scenario)


def test_broadcasting_without_a_route_changes_nothing() -> None:
    """S2-03."""

    async def scenario(cluster: GroupCluster) -> None:
        consumer = await joined(cluster, "c1", message_model=MessageModel.BROADCASTING)
        log = Log(consumer)
        await consumer.rebalance("test")
        assert [event.topic for event in log.of(TopicSkipped)] == ["T"]
        assert consumer.assignment == {}

    in_virtual_time(scenario)


# --- taking ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "topic", "expected"),
    [
        (ConsumeFromWhere.LAST_OFFSET, "T", 5),
        (ConsumeFromWhere.MIN_OFFSET, "T", 5),
        (ConsumeFromWhere.MAX_OFFSET, "T", 5),
        (ConsumeFromWhere.LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST, "T", 5),
        (ConsumeFromWhere.FIRST_OFFSET, "T", 0),
        (ConsumeFromWhere.TIMESTAMP, "T", 2),
        (ConsumeFromWhere.LAST_OFFSET, "%RETRY%g", 0),
        (ConsumeFromWhere.FIRST_OFFSET, "%RETRY%g", 0),
        (ConsumeFromWhere.TIMESTAMP, "%RETRY%g", 5),
    ],
)
def test_a_group_without_progress_begins_where_it_is_told(
    where: ConsumeFromWhere, topic: str, expected: int
) -> None:
    """S2-29, S2-30, S2-31, S2-20, S1-38: by consume-from-where; the retry topic has its own rule."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.topic("%RETRY%g", 1)
        cluster.broker.put("T", 0, *"abcde")
        cluster.broker.put("%RETRY%g", 0, *"abcde", RETRY_TOPIC="T")
        consumer = await joined(cluster, "c1#1", consume_from_where=where, consume_timestamp="20260101000000")
        await asyncio.sleep(0.1)
        assert consumer.running
        begun = [request for request in cluster.broker.of(PULL) if request.fields["topic"] == topic]
        assert int(begun[0].fields["queueOffset"]) == expected

    in_virtual_time(scenario)


def test_kept_progress_wins() -> None:
    """S2-29 to S2-31: a stored offset is used whatever consume-from-where says; 0 counts as stored."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        for number in (0, 1):
            cluster.broker.put("T", number, *"abcde")
        cluster.broker.offsets[("g", "T", 0)] = 3
        cluster.broker.offsets[("g", "T", 1)] = 0
        await joined(cluster, "c1#1")
        await asyncio.sleep(0.1)
        begun = {
            request.fields["queueId"]: request.fields["queueOffset"]
            for request in cluster.broker.of(PULL)[:2]
        }
        assert begun == {"0": "3", "1": "0"}

    in_virtual_time(scenario)


def test_the_timestamp_is_sent_in_milliseconds() -> None:
    """S2-31."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        await joined(cluster, "c1#1", consume_from_where=ConsumeFromWhere.TIMESTAMP)
        asked = cluster.broker.of(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)[0]
        half_an_hour_ago = cluster.clock.wall_ms() - 30 * 60 * 1000
        assert abs(int(asked.fields["timestamp"]) - half_an_hour_ago) < 1000

    in_virtual_time(scenario)


def test_a_queue_whose_offset_cannot_be_read_is_not_taken_this_round() -> None:
    """S2-21, S2-33: any failure but "not found"; the next round takes it."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.overrides[QUERY] = lambda request: request.reply(1, "broken")
        consumer = await joined(cluster, "c1#1", unbalanced_delay=None)
        log = Log(consumer)
        assert consumer.assignment == {}
        assert cluster.broker.of(PULL) == []
        del cluster.broker.overrides[QUERY]
        await asyncio.sleep(20.5)
        assert held(consumer) == [0]
        assert [event.reason for event in log.of(QueueTaken)] == ["timer"]

    in_virtual_time(scenario)


def test_progress_is_read_from_the_master_or_any_replica_with_a_timeout_of_5_seconds() -> None:
    """S2-34."""

    async def scenario(cluster: GroupCluster) -> None:
        (queue,) = cluster.topic("T", 1, "broker-a")
        master, slave = cluster.brokers["broker-a"], cluster.brokers["broker-s"]
        cluster.replicas["broker-a"] = {0: master.address, 1: slave.address}
        consumer = await joined(cluster, "c1#1")
        assert master.of(QUERY) and not slave.of(QUERY)
        cluster.replicas["broker-a"] = {1: slave.address}
        await consumer.instance.refresh_route("T")
        slave.offsets[("g", "T", 0)] = 77
        assert await consumer.offsets.read(queue, ReadFrom.STORE) == 77
        assert cluster.network is not None
        cluster.network.cut(cluster.client_host("c1#1"), slave.address.split(":")[0])
        began = cluster.clock.monotonic()
        with pytest.raises(RequestTimeoutError):
            await consumer.offsets.read(queue, ReadFrom.STORE)
        assert cluster.clock.monotonic() - began == pytest.approx(5.0, abs=0.01)
        cluster.network.mend()
        with pytest.raises(RouteError):
            await consumer.offsets.read(MessageQueue("T", "nobody", 0), ReadFrom.STORE)

    in_virtual_time(scenario, "broker-a", "broker-s")


def test_the_cached_offset_is_cleared_before_the_start_offset_is_read() -> None:
    """S2-19: a queue that comes back begins where the broker says, and nothing of its earlier life here is
    committed."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.put("T", 0, *"abcde")
        cluster.broker.offsets[("g", "T", 0)] = 2
        consumer = await joined(cluster, "c1#1", persist_interval=1000.0)
        await asyncio.sleep(0.1)
        (queue,) = consumer.assignment["T"]
        assert await consumer.member.consumer_status("T") == {queue: 5}

        async def first_pull_after_coming_back() -> tuple[str, str, int]:
            consumer.unsubscribe("T")
            await asyncio.sleep(0.2)
            assert "T" not in consumer.assignment
            consumer.offsets.update(queue, 5, increase_only=False)
            cluster.broker.offsets[("g", "T", 0)] = 1  # an operator has set it back
            pulls = len(cluster.broker.of(PULL))
            consumer.subscribe("T", "*", nothing)
            await asyncio.sleep(0.2)
            fields = cluster.broker.of(PULL)[pulls].fields
            return fields["queueOffset"], fields["commitOffset"], int(fields["sysFlag"]) & 1

        assert await first_pull_after_coming_back() == ("1", "0", 0)
        cluster.broker.put("T", 0, *"fgh")
        await asyncio.sleep(0.1)
        cluster.broker.overrides[QUERY] = lambda request: request.reply(22, "Not found")
        assert await first_pull_after_coming_back() == ("8", "0", 0)

    in_virtual_time(scenario)


def test_one_window_and_one_pull_per_queue() -> None:
    """S3-03, S3-42, S2-22, S3-10: however many rounds run, each queue has one pull under way."""

    async def scenario(cluster: GroupCluster) -> None:
        queues = cluster.topic("T", 3)
        cluster.topic("%RETRY%g", 1)
        consumer = await joined(cluster, "c1#1")
        for _ in range(5):
            await consumer.rebalance("test")
        await asyncio.sleep(1)
        assert set(consumer.holdings.table) == {*queues, MessageQueue("%RETRY%g", "broker-a", 0)}
        waiting = {key: len(found) for key, found in cluster.broker.waiting.items()}
        assert waiting == {("T", 0): 1, ("T", 1): 1, ("T", 2): 1, ("%RETRY%g", 0): 1}

    in_virtual_time(scenario)


def test_one_thread_has_the_pulls_of_all_groups_under_way_at_once() -> None:
    """S3-12: pulls are asynchronous; one that gets no answer holds no other up, of whatever group."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 8, "broker-a")
        cluster.topic("U", 1, "broker-b")
        got: list[tuple[str, float]] = []
        threads = threading.active_count()

        async def note(message: MessageView) -> None:
            got.append((message.body.decode(), cluster.clock.monotonic()))

        members = []
        for group in ("g", "h"):
            consumer = cluster.push("c1#1", group=group)
            consumer.subscribe("T", "*", note)
            consumer.subscribe("U", "*", note)
            await cluster.launch(consumer)
            members.append(consumer)
        assert members[0].instance is members[1].instance
        cluster.brokers["broker-b"].handlers.by_code[PULL] = lambda channel, request: None
        cluster.brokers["broker-b"].put("U", 0, "wakes pulls that will then get no answer")
        await asyncio.sleep(1)
        got.clear()
        a = cluster.brokers["broker-a"]
        assert {key: len(found) for key, found in a.waiting.items()} == {("T", n): 2 for n in range(8)}
        assert threading.active_count() == threads
        began = cluster.clock.monotonic()
        for number in range(8):
            a.put("T", number, str(number))
        await asyncio.sleep(1)
        assert sorted(body for body, _ in got) == sorted([str(number) for number in range(8)] * 2)
        assert max(at for _, at in got) - began < 0.02

    in_virtual_time(scenario, "broker-a", "broker-b")


# --- dropping --------------------------------------------------------------------------------------


def test_a_lost_queue_is_committed_and_forgotten_and_its_pull_ends() -> None:
    """S2-16, S2-24, S2-25, S3-29, S1-38: dropped, offset persisted and removed from memory."""

    async def scenario(cluster: GroupCluster) -> None:
        queues = cluster.topic("T", 2)
        for number in (0, 1):
            cluster.broker.put("T", number, *"abc")
        cluster.broker.offsets.update({("g", "T", 0): 0, ("g", "T", 1): 0})
        first = await joined(cluster, "c1#1", persist_interval=1000.0)
        log = Log(first)
        await asyncio.sleep(0.5)
        window = first.holdings.table[queues[1]]
        await joined(cluster, "c2#1")
        await asyncio.sleep(0.2)
        assert held(first) == [0]
        assert window.dropped
        commits = [request for request in cluster.broker.of(UPDATE) if request.fields["queueId"] == "1"]
        assert [(request.fields["commitOffset"], request.oneway) for request in commits] == [("3", False)]
        assert first.offsets.remembered(queues[1]) is None
        assert [event.queue for event in log.of(QueueDropped)] == [queues[1]]
        pulls = len(cluster.broker.of(PULL))
        cluster.broker.put("T", 1, "d")
        await asyncio.sleep(0.1)
        assert len(cluster.broker.of(PULL)) == pulls + 1  # only the new owner asks on

    in_virtual_time(scenario)


def test_the_new_owner_does_not_wait_and_starts_at_what_was_committed() -> None:
    """S1-04, S1-05: consumed to 10, committed 8: the new owner starts at 8; two duplicates, no loss."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.put("T", 0, *"0123456789")
        cluster.broker.offsets[("g", "T", 0)] = 0
        seen: dict[str, list[str]] = {"c2#1": [], "c1#1": []}
        consumers = {}
        for name, got in seen.items():
            consumer = cluster.push(name, persist_interval=1000.0)

            async def handler(message: MessageView, got: list[str] = got) -> None:
                got.append(message.body.decode())

            consumer.subscribe("T", "*", handler)
            consumers[name] = consumer
        await cluster.launch(consumers["c2#1"])
        await asyncio.sleep(1)
        assert len(seen["c2#1"]) == 10
        cluster.broker.offsets[("g", "T", 0)] = 8
        # The old owner's commit is held up on its way.
        cluster.broker.overrides[UPDATE] = lambda request: request.reply()
        await cluster.launch(consumers["c1#1"])
        await asyncio.sleep(1)
        assert seen["c1#1"] == ["8", "9"]
        assert seen["c2#1"] == list("0123456789")

    in_virtual_time(scenario)


def test_queues_of_topics_no_longer_subscribed_are_dropped() -> None:
    """S1-29."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.topic("U", 1)
        consumer = await joined(cluster, "c1#1", "T", "U")
        window = consumer.holdings.table[MessageQueue("U", "broker-a", 0)]
        consumer.unsubscribe("U")
        await asyncio.sleep(0.2)
        assert window.dropped
        assert consumer.assignment == {"T": [MessageQueue("T", "broker-a", 0)]}
        assert set(cluster.broker.subscriptions["g"]) == {"T", "%RETRY%g"}

    in_virtual_time(scenario)


def test_a_push_queue_without_a_pull_for_120_seconds_is_dropped_and_taken_again() -> None:
    """S2-17."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        consumer = await joined(cluster, "c1#1", unbalanced_delay=None)
        queue = consumer.assignment["T"][0]
        window = consumer.holdings.table[queue]
        window.empty()  # its loop dies
        await asyncio.sleep(0.1)
        stuck_at = window.last_pull
        while consumer.holdings.table.get(queue) is window:  # noqa: ASYNC110
            await asyncio.sleep(1)
        assert 120 < cluster.clock.monotonic() - stuck_at < 145
        assert window.dropped
        assert held(consumer) == [0]
        pulls = len(cluster.broker.of(PULL))
        await asyncio.sleep(20)
        assert len(cluster.broker.of(PULL)) > pulls

    in_virtual_time(scenario)


# --- ordered ---------------------------------------------------------------------------------------


async def ordered(cluster: GroupCluster, name: str, handler: Any = nothing, **options: Any) -> PushConsumer:
    consumer = cluster.push(name, **options)
    consumer.subscribe("T", "*", handler, ordered=True)
    await cluster.launch(consumer)
    return consumer


def test_an_ordered_queue_is_only_taken_with_its_lock() -> None:
    """S2-18, S2-28: refused: no window and no pull for it; asked again, it is taken as soon as it is free."""

    async def scenario(cluster: GroupCluster) -> None:
        queues = cluster.topic("T", 2)
        cluster.broker.locks[("g", "T", 1)] = "somebody"
        consumer = await ordered(cluster, "c1#1")
        log = Log(consumer)
        assert held(consumer) == [0]
        assert queues[1] not in consumer.holdings.table
        assert {request.fields["queueId"] for request in cluster.broker.of(PULL)} <= {"0"}
        body = cluster.broker.of(LOCK)[0].body
        assert b'"consumerGroup":"g"' in body
        assert consumer.client_id.encode() in body
        assert consumer.holdings.table[queues[0]].locked
        await asyncio.sleep(0.7)
        assert log.of(QueueSkipped)
        del cluster.broker.locks[("g", "T", 1)]
        await asyncio.sleep(0.6)
        assert held(consumer) == [0, 1]

    in_virtual_time(scenario)


def test_a_lock_is_waited_for_one_second() -> None:
    """S2-28: synchronous, 1 s; no answer counts as refused."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        cluster.broker.handlers.by_code[LOCK] = lambda channel, request: None
        began = cluster.clock.monotonic()
        consumer = await ordered(cluster, "c1#1")
        assert 1.0 <= cluster.clock.monotonic() - began < 1.1
        assert consumer.assignment == {}

    in_virtual_time(scenario)


def test_concurrent_consumers_take_no_locks() -> None:
    """S1-27, S2-25."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        await joined(cluster, "c1#1")
        await asyncio.sleep(60)
        assert cluster.broker.of(LOCK) == []

    in_virtual_time(scenario)


def test_locks_are_renewed_every_20_seconds_in_one_request_per_broker() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 3)
        await ordered(cluster, "c1#1")
        taken = len(cluster.broker.of(LOCK))
        assert taken == 3
        await asyncio.sleep(62)
        assert len(cluster.broker.of(LOCK)) == taken + 4  # after 1 s, then every 20

    in_virtual_time(scenario)


def test_a_lost_ordered_queue_is_unlocked_at_once_when_nothing_is_cached() -> None:
    """S2-27."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        first = await ordered(cluster, "c1#1")
        second = await ordered(cluster, "c2#1")
        await asyncio.sleep(1.0)
        assert (held(first), held(second)) == ([0], [1])
        assert cluster.broker.of(UNLOCK)[0].oneway

    in_virtual_time(scenario)


def test_a_lost_ordered_queue_with_cached_messages_is_unlocked_20_seconds_later() -> None:
    """S2-27."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        cluster.broker.put("T", 1, *"abc")
        cluster.broker.offsets[("g", "T", 1)] = 0

        async def never_ready(message: MessageView) -> bool:
            return False

        first = await ordered(cluster, "c1#1", never_ready)
        await asyncio.sleep(0.5)
        second = await ordered(cluster, "c2#1")
        await asyncio.sleep(15)
        assert held(first) == [0]
        assert held(second) == []
        await asyncio.sleep(8)
        assert held(second) == [1]

    in_virtual_time(scenario)


def test_an_ordered_queue_at_work_stays_until_a_later_round() -> None:
    """S2-26: the removal waits 1 s for the handler; if it is still at work, a later round tries again."""

    async def scenario(cluster: GroupCluster) -> None:
        queues = cluster.topic("T", 2)
        cluster.broker.notify_changes = False
        cluster.broker.put("T", 1, "slow")
        cluster.broker.offsets[("g", "T", 1)] = 0
        finish = asyncio.Event()

        async def slow(message: MessageView) -> None:
            await finish.wait()

        first = await ordered(cluster, "c1#1", slow, unbalanced_delay=None, rebalance_interval=1000.0)
        await asyncio.sleep(0.5)
        second = await ordered(cluster, "c2#1")

        async def round_seconds() -> float:
            began = cluster.clock.monotonic()
            await first.rebalance("test")
            return cluster.clock.monotonic() - began

        for tries in (1, 2):
            assert await round_seconds() == pytest.approx(1.0, abs=0.02)
            row = (await first.member.running_info(False)).mq_table[queue_text(queues[1])]
            assert (row.dropped, row.try_unlock_times) == (True, tries)
            assert cluster.broker.locks[("g", "T", 1)] == first.client_id
            assert held(second) == []
        assert cluster.broker.of(UNLOCK) == []
        asyncio.get_running_loop().call_later(0.4, finish.set)
        assert await round_seconds() == pytest.approx(0.4, abs=0.02)
        assert queue_text(queues[1]) not in (await first.member.running_info(False)).mq_table
        await asyncio.sleep(0.01)
        assert len(cluster.broker.of(UNLOCK)) == 1
        await asyncio.sleep(0.6)
        assert held(second) == [1]

    in_virtual_time(scenario)


# --- after a change --------------------------------------------------------------------------------


def test_after_a_change_the_subscription_version_grows_and_a_heartbeat_tells_it() -> None:
    """S2-39, S2-42."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 1)
        consumer = await joined(cluster, "c1#1")
        await asyncio.sleep(5)
        before = cluster.broker.subscriptions["g"]["T"].sub_version
        beats = len(cluster.broker.of(HEARTBEAT))
        cluster.topic("T", 2)
        await consumer.instance.refresh_route("T")
        await asyncio.sleep(0.2)
        after = cluster.broker.subscriptions["g"]["T"].sub_version
        assert after >= before + 5000
        assert len(cluster.broker.of(HEARTBEAT)) > beats
        await asyncio.sleep(20)
        # No pull names a version the broker has not heard of: it would be refused with code 25.
        told = 0
        for request in cluster.broker.asked:
            if request.code == HEARTBEAT:
                for data in Heartbeat.parse(request.body).consumer_data_set[0].subscription_data_set:
                    told = max(told, data.sub_version)
            elif request.code == PULL:
                assert int(request.fields["subVersion"]) <= told

    in_virtual_time(scenario)


def test_a_broker_that_does_not_answer_heartbeats_holds_up_no_round() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2, "broker-a")
        cluster.topic("U", 1, "broker-b")
        consumer = await joined(cluster, "c1#1", "T")
        other = await joined(cluster, "c1#1", "U", group="h")
        assert other.instance is consumer.instance
        await asyncio.sleep(2)
        cluster.brokers["broker-b"].handlers.by_code[HEARTBEAT] = lambda channel, request: None
        cluster.topic("T", 4, "broker-a")
        await consumer.instance.refresh_route("T")
        began = cluster.clock.monotonic()
        await consumer.rebalance("test")
        assert held(consumer) == [0, 1, 2, 3]
        assert cluster.clock.monotonic() - began < 0.1

    in_virtual_time(scenario, "broker-a", "broker-b")


async def _never(message: MessageView) -> None:
    await asyncio.Event().wait()


def pulls_by_queue(cluster: GroupCluster) -> dict[str, int]:
    return dict(Counter(request.fields["queueId"] for request in cluster.broker.of(PULL)))


@pytest.mark.parametrize(
    ("limit", "queues", "pulls"),
    [
        (1000, 3, 11),  # 333 each: 10 pulls of 32 are 320, 11 are 352
        (2, 5, 1),  # 1 each
        (1000, 1, 32),
        (-1, 3, 32),  # the limit of a queue, 1000
    ],
)
def test_a_topics_message_limit_is_shared_by_the_held_queues(limit: int, queues: int, pulls: int) -> None:
    """S2-40, S1-39."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", queues)
        for number in range(queues):
            cluster.broker.put("T", number, *(["x"] * 1100))
            cluster.broker.offsets[("g", "T", number)] = 0
        consumer = cluster.push("c1#1", pull_threshold_for_topic=limit, await_termination=0.0)
        consumer.subscribe("T", "*", _never)
        await cluster.launch(consumer)
        await asyncio.sleep(3)
        assert pulls_by_queue(cluster) == {str(number): pulls for number in range(queues)}

    in_virtual_time(scenario)


@pytest.mark.parametrize(
    ("limit", "queues", "pulls"),
    [
        (10, 3, 4),  # 3 MiB each, passed with 4: a pull of 32 brings 1 MiB
        (2, 5, 2),  # 1 MiB each
        (2, 1, 3),
    ],
)
def test_a_topics_size_limit_is_shared_by_the_held_queues(limit: int, queues: int, pulls: int) -> None:
    """S2-41."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", queues)
        for number in range(queues):
            cluster.broker.put("T", number, *([bytes(32 * 1024)] * 160))
            cluster.broker.offsets[("g", "T", number)] = 0
        consumer = cluster.push("c1#1", pull_threshold_size_for_topic=limit, await_termination=0.0)
        consumer.subscribe("T", "*", _never)
        await cluster.launch(consumer)
        await asyncio.sleep(3)
        assert pulls_by_queue(cluster) == {str(number): pulls for number in range(queues)}

    in_virtual_time(scenario)


def test_topic_limits_are_shared_anew_when_the_held_queues_change() -> None:
    """S2-40, S2-41: 1000 messages over 3 queues are 333 each, over 2 they are 500."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 3)
        for number in range(3):
            cluster.broker.put("T", number, *(["x"] * 1100))
            cluster.broker.offsets[("g", "T", number)] = 0
        consumer = cluster.push("c1#1", pull_threshold_for_topic=1000, await_termination=0.0)
        consumer.subscribe("T", "*", _never)
        await cluster.launch(consumer)
        await asyncio.sleep(3)
        await joined(cluster, "c2#1", pull_threshold_for_topic=1000)
        await asyncio.sleep(3)
        assert held(consumer) == [0, 1]
        counts = pulls_by_queue(cluster)
        assert (counts["0"], counts["1"]) == (16, 16)  # 512 messages

    in_virtual_time(scenario)


def test_events_tell_every_change_with_its_reason() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        queues = cluster.topic("T", 2)
        consumer = cluster.push("c1#1")
        consumer.subscribe("T", "*", nothing)
        log = Log(consumer)
        stream = consumer.events()
        await cluster.launch(consumer)
        assert [(event.queue, event.reason) for event in log.of(QueueTaken)] == [(q, "start") for q in queues]
        finished = log.of(RoundFinished)[0]
        assert (finished.balanced, finished.changed) == (True, ("T",))
        assert isinstance(await anext(stream), RoundStarted)
        await joined(cluster, "c2#1")
        await asyncio.sleep(0.2)
        dropped = log.of(QueueDropped)
        assert [(event.queue, event.reason) for event in dropped] == [
            (queues[1], "a broker said that members changed")
        ]
        assert log.of(RoundFinished)[-1].kept == (queues[0],)

    in_virtual_time(scenario)


# --- harms made loud -------------------------------------------------------------------------------


def test_equal_client_ids_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    """Two processes with one client id both take the same queues; Java says nothing."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        consumer = await joined(cluster, "c1#1")
        log = Log(consumer)
        body = ConsumerIdList(consumer_id_list=[consumer.client_id] * 2).dump()
        cluster.broker.overrides[MEMBERS] = lambda request: request.reply(body=body)
        cluster.broker.notify("g")
        await asyncio.sleep(2)
        event = log.of(EqualClientIds)[0]
        assert (event.client_id, event.count) == (consumer.client_id, 2)

    with caplog.at_level(logging.ERROR):
        in_virtual_time(scenario)
    assert "instance_name or member_name" in caplog.text


def test_unequal_subscriptions_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    """S2-06, S1-07: a member with other topics replaces the group's set; both sides hear of it."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        cluster.topic("U", 2)
        first = await joined(cluster, "c1#1", "T")
        log = Log(first)
        await joined(cluster, "c2#1", "U")
        await asyncio.sleep(25)
        event = log.of(UnequalSubscriptions)[0]
        assert (event.ours, event.theirs) == ({"T": "*"}, {"U": "*"})

    with caplog.at_level(logging.ERROR):
        in_virtual_time(scenario)
    assert "Give all members the same subscriptions" in caplog.text


def test_a_named_member_that_restarts_within_the_grace_time_moves_nothing() -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 4)
        options: dict[str, Any] = {"member_grace": 10.0}
        first = await joined(cluster, "alpha", **options)
        second = await joined(cluster, "beta", **options)
        await asyncio.sleep(0.2)
        assert (held(first), held(second)) == ([0, 1], [2, 3])
        log = Log(first)
        await second.close()
        await asyncio.sleep(5)
        again = await joined(cluster, "beta", **options)
        await asyncio.sleep(0.2)
        assert (held(first), held(again)) == ([0, 1], [2, 3])
        await asyncio.sleep(30)
        assert log.of(QueueTaken) == log.of(QueueDropped) == []
        await again.close()
        await asyncio.sleep(11)
        assert held(first) == [0, 1, 2, 3]

    in_virtual_time(scenario)


def test_a_lock_that_was_granted_without_our_hearing_of_it_is_given_back_with_the_queue() -> None:
    """Else the next owner of an ordered queue has to wait until the lock ends by itself."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        lock = cluster.broker.handlers.by_code[LOCK]
        first = cluster.push("c1#1", lock_first_delay=1000.0, relock_delay=1000.0)
        first.subscribe("T", "*", nothing, ordered=True)
        await cluster.launch(first)

        def unheard(channel: Channel, request: RemotingCommand) -> None:
            lock(channel, request)

        cluster.broker.handlers.by_code[LOCK] = unheard
        first.holdings.table[MessageQueue("T", "broker-a", 1)].lock_refused()
        cluster.broker.put("T", 1, "x")
        await asyncio.sleep(10)
        assert not first.holdings.table[MessageQueue("T", "broker-a", 1)].locked
        cluster.broker.handlers.by_code[LOCK] = lock
        second = cluster.push("c2#1")
        second.subscribe("T", "*", nothing, ordered=True)
        await cluster.launch(second)
        await asyncio.sleep(30)
        assert (held(first), held(second)) == ([0], [1])

    in_virtual_time(scenario)


# --- an offset store of the application's ------------------------------------------------------------


class AppOffsets:
    """Progress in memory; one queue's cannot be read or written, another's is read slowly."""

    def __init__(self) -> None:
        self.table: dict[MessageQueue, int] = {}
        self.unreadable: set[int] = set()
        self.unwritable: set[int] = set()
        self.slow: set[int] = set()

    async def load(self) -> None:
        pass

    async def read(self, queue: MessageQueue, source: ReadFrom) -> int | None:
        if queue.queue_id in self.unreadable:
            raise LookupError("no such row")
        if queue.queue_id in self.slow:
            await asyncio.sleep(5)
        return self.table.get(queue, 0)

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> None:
        self.table[queue] = offset

    def remembered(self, queue: MessageQueue) -> int | None:
        return self.table.get(queue)

    async def persist(self, queue: MessageQueue, *, wait: bool = False) -> None:
        if queue.queue_id in self.unwritable:
            raise LookupError("no such table")

    async def persist_all(self, queues: Collection[MessageQueue]) -> None:
        pass

    def forget(self, queue: MessageQueue) -> None:
        pass

    def clone(self, topic: str) -> dict[MessageQueue, int]:
        return dict(self.table)


async def with_store(cluster: GroupCluster, store: AppOffsets, **options: Any) -> PushConsumer:
    consumer = cluster.push("c1#1", offset_store=store, **options)
    consumer.subscribe("T", "*", nothing)
    await cluster.launch(consumer)
    return consumer


def test_a_start_that_cannot_be_read_leaves_no_other_claim_behind_the_rounds_back() -> None:
    """Two claims of one queue side by side would end the rounds of all consumers for good."""

    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        store = AppOffsets()
        store.unreadable, store.slow = {0}, {1}
        consumer = await with_store(cluster, store)
        store.unreadable.clear()
        await asyncio.sleep(30)
        assert held(consumer) == [0, 1]
        await joined(cluster, "c2#1")
        await asyncio.sleep(1)
        assert held(consumer) == [0]

    in_virtual_time(scenario)


@pytest.mark.parametrize("handover", ["java", "lease"])
def test_a_queue_whose_progress_cannot_be_written_gets_free_all_the_same(handover: str) -> None:
    async def scenario(cluster: GroupCluster) -> None:
        cluster.topic("T", 2)
        store = AppOffsets()
        store.unwritable = {1}
        first = await with_store(cluster, store, handover=handover)
        second = await joined(cluster, "c2#1", handover=handover)
        await asyncio.sleep(5)
        assert (held(first), held(second)) == ([0], [1])
        await second.close()
        await asyncio.sleep(25)
        assert held(first) == [0, 1], "it can be taken again"

    in_virtual_time(scenario)
