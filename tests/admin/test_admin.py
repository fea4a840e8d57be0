"""The admin API against a running cluster of ours; interop asks the same of Apache's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from gimbalmq import (
    ConsumeFromWhere,
    ConsumeResult,
    Message,
    MessageQueue,
    MessageView,
    Producer,
    PullConsumer,
    PushConsumer,
)
from gimbalmq.admin.admin import Admin
from gimbalmq.admin.groups import EARLIEST, LATEST, strategy_of
from gimbalmq.errors import ConfigError, ConsumerNotOnlineError, QueryNotFoundError, TopicRouteNotFoundError
from gimbalmq.protocol.status_bodies import ConsumerRunningInfo
from gimbalmq.testing import LocalCluster

T = TypeVar("T")
FIRST = ConsumeFromWhere.FIRST_OFFSET


def run(work: Callable[[LocalCluster, Admin], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with LocalCluster(**options) as cluster, Admin(cluster.namesrv) as admin:
            await work(cluster, admin)

    asyncio.run(main())


async def ignore(message: MessageView) -> None:
    pass


async def eventually(ask: Callable[[], Awaitable[T]], good: Callable[[T], bool]) -> T:
    """Asks until the answer is good; the test's own time limit ends it."""
    while not good(answer := await ask()):  # noqa: ASYNC110 - a broker's state has no event
        await asyncio.sleep(0.05)
    return answer


async def until(good: Callable[[], bool]) -> None:
    while not good():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def consumer_of(
    namesrv: str, group: str, handler: Callable[[MessageView], object], **options: Any
) -> PushConsumer:
    consumer = PushConsumer(group, namesrv, consume_from_where=FIRST, persist_interval=0.1, **options)
    consumer.subscribe("orders", "*", handler)
    return consumer


async def send(namesrv: str, topic: str, count: int, **fields: Any) -> None:
    async with Producer("senders", namesrv) as producer:
        for index in range(count):
            await producer.send(Message(topic, f"body-{index}", keys=f"key-{index}", **fields))


def test_brokers_show_themselves_and_their_settings() -> None:
    async def work(cluster: LocalCluster, admin: Admin) -> None:
        brokers = await admin.clusters.brokers()
        assert [(view.cluster, view.broker, view.broker_id) for view in brokers] == [
            ("DefaultCluster", "broker-a", 0),
            ("DefaultCluster", "broker-b", 0),
        ]
        assert all(view.version and view.boot_ms and not view.problem for view in brokers)
        assert (await admin.clusters.config("broker-a"))["brokerName"] == "broker-a"
        assert await admin.clusters.set_config({"fileReservedTime": "31"}, broker="broker-b") == ["broker-b"]
        assert (await admin.clusters.config("broker-b"))["fileReservedTime"] == "31"
        assert (await admin.clusters.config("broker-a"))["fileReservedTime"] != "31"
        with pytest.raises(ConfigError, match=r"broker-z.*broker-a, broker-b"):
            await admin.clusters.config("broker-z")
        with pytest.raises(ConfigError, match="DefaultCluster"):
            await admin.topics.create("t", cluster="nowhere")

    run(work, brokers=2)


def test_a_broker_that_is_down_is_listed_with_its_problem() -> None:
    async def work(cluster: LocalCluster, admin: Admin) -> None:
        await cluster.kill_broker(1)
        views = {view.broker: view for view in await admin.clusters.brokers()}
        assert not views["broker-a"].problem
        assert "broker-b" not in views or views["broker-b"].problem

    run(work, brokers=2)


def test_topics_are_made_resized_and_deleted() -> None:
    """S1-14"""

    async def work(cluster: LocalCluster, admin: Admin) -> None:
        assert await admin.topics.create("orders", queues=4) == ["broker-a", "broker-b"]
        (view,) = await admin.topics.all()
        assert (view.topic, view.kind, view.read_queues, view.write_queues, view.perm) == (
            "orders",
            "normal",
            8,
            8,
            "RW",
        )
        assert len(await admin.topics.queues("orders")) == 8
        await admin.topics.resize("orders", 2)
        (view,) = await admin.topics.all()
        assert (view.read_queues, view.write_queues) == (8, 4)
        await admin.topics.resize("orders", 2, safely=False)
        (view,) = await admin.topics.all()
        assert (view.read_queues, view.write_queues) == (4, 4)
        await send(cluster.namesrv, "orders", 8)
        stats = await admin.topics.stats("orders")
        assert sum(queue.count for queue in stats) == 8
        assert await admin.topics.delete("orders") == ["broker-a", "broker-b"]
        with pytest.raises(TopicRouteNotFoundError):
            await admin.topics.stats("orders")
        assert "orders" not in await admin.topics.names()
        with pytest.raises(ConfigError, match="illegal"):
            await admin.topics.create("no good")

    run(work, brokers=2)


def test_a_group_shows_members_progress_and_owners() -> None:
    """S1-18 S1-19"""

    async def work(cluster: LocalCluster, admin: Admin) -> None:
        await admin.topics.create("orders", queues=4)
        await send(cluster.namesrv, "orders", 8)
        with pytest.raises(ConsumerNotOnlineError):
            await admin.groups.connections("billing")
        async with (
            consumer_of(cluster.namesrv, "billing", ignore, instance_name="one") as first,
            consumer_of(cluster.namesrv, "billing", ignore, instance_name="two") as second,
        ):
            connections = await eventually(
                lambda: admin.groups.connections("billing"), lambda found: len(found.members) == 2
            )
            assert [member.client_id for member in connections.members] == sorted(
                [first.client_id, second.client_id]
            )
            assert connections.subscriptions["orders"] == "*"
            assert connections.members[0].language
            owners = await eventually(
                lambda: admin.groups.owners("billing"),
                lambda found: (
                    sorted(queue.queue_id for queue in found if queue.topic == "orders") == [0, 1, 2, 3]
                    and len(set(found.values())) == 2
                ),
            )
            progress = await eventually(
                lambda: admin.groups.progress("billing", topic="orders", owners=True),
                lambda found: len(found.queues) == 4 and found.lag == 0,
            )
            assert {item.queue: item.owner for item in progress.queues} == {
                queue: owner for queue, owner in owners.items() if queue.topic == "orders"
            }
            (summary,) = [item for item in await admin.groups.all() if item.group == "billing"]
            assert (summary.members, summary.topics, summary.lag) == (2, ("orders",), 0)
            assert await admin.topics.groups("orders") == ["billing"]

    run(work)


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ("STICKY", "STICKY"),
        ("MACHINE_ROOM_NEARBY-AVG", "MACHINE_ROOM_NEARBY-AVG"),
        ("org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely@22ce3ff9", "AVG"),
        (
            "org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby@1",
            "AllocateMachineRoomNearby",
        ),
        (None, ""),
    ],
)
def test_a_members_strategy_is_known_by_name_java_or_not(told: str | None, name: str) -> None:
    properties = {} if told is None else {"allocateMessageQueueStrategy": told}
    assert strategy_of(ConsumerRunningInfo(properties=properties)) == name


def test_offsets_of_a_stopped_group_are_previewed_and_reset() -> None:
    async def work(cluster: LocalCluster, admin: Admin) -> None:
        await admin.topics.create("orders", queues=2)
        await send(cluster.namesrv, "orders", 6)
        async with PullConsumer("billing", cluster.namesrv, consume_from_where=FIRST) as consumer:
            consumer.subscribe("orders")
            got = 0
            while got < 6:
                got += len(await consumer.poll(1.0))
            await consumer.commit()
        plan = await admin.groups.plan_reset("billing", "orders", EARLIEST)
        assert [(change.before, change.after, change.lag) for change in plan] == [(3, 0, 3), (3, 0, 3)]
        assert (await admin.groups.progress("billing", topic="orders")).lag == 0, "a plan changes nothing"
        await admin.groups.reset("billing", "orders", EARLIEST)
        assert (await admin.groups.progress("billing", topic="orders")).lag == 6
        await admin.groups.reset("billing", "orders", LATEST)
        assert (await admin.groups.progress("billing", topic="orders")).lag == 0
        queue = MessageQueue("orders", "broker-a", 1)
        await admin.groups.reset("billing", "orders", {queue: 1})
        progress = await admin.groups.progress("billing", topic="orders")
        assert {item.queue.queue_id: item.consumer_offset for item in progress.queues} == {0: 3, 1: 1}
        await admin.groups.reset("billing", "orders", int(time.time() * 1000) - 3_600_000)
        assert (await admin.groups.progress("billing", topic="orders")).lag == 6
        with pytest.raises(ConfigError, match="holds 0 to 3"):
            await admin.groups.plan_reset("billing", "orders", {queue: 4})
        with pytest.raises(ConfigError, match="yesterday"):
            await admin.groups.plan_reset("billing", "orders", "yesterday")

    run(work)


def test_offsets_are_reset_under_a_running_group() -> None:
    async def work(cluster: LocalCluster, admin: Admin) -> None:
        await admin.topics.create("orders", queues=2)
        await send(cluster.namesrv, "orders", 6)
        seen: list[str] = []

        async def note(message: MessageView) -> None:
            seen.append(message.msg_id)

        async with consumer_of(cluster.namesrv, "billing", note, reset_delay=0.1):
            await eventually(
                lambda: admin.groups.progress("billing", topic="orders"),
                lambda p: len(p.queues) == 2 and p.lag == 0,
            )
            await admin.groups.reset("billing", "orders", {MessageQueue("orders", "broker-a", 0): 0})
            await until(lambda: len(seen) >= 9)
        assert len(set(seen)) == 6

    run(work)


def test_messages_are_found_by_id_key_place_and_time() -> None:
    async def work(cluster: LocalCluster, admin: Admin) -> None:
        await admin.topics.create("orders", queues=2)
        before = int(time.time() * 1000)
        await send(cluster.namesrv, "orders", 6, tags="A")
        await send(cluster.namesrv, "orders", 2, tags="B")
        everything = [view async for view in admin.messages.read("orders")]
        assert sorted(view.body for view in everything)[-1] == b"body-5"
        assert len(everything) == 8
        view = everything[3]
        assert (await admin.messages.by_id(view.offset_msg_id)).body == view.body
        assert (await admin.messages.by_id(view.msg_id, topic="orders")).queue_offset == view.queue_offset
        found = await eventually(
            lambda: admin.messages.by_key("orders", "key-5"), lambda views: len(views) == 1
        )
        assert found[0].body == b"body-5"
        queue = MessageQueue("orders", "broker-a", view.queue_id)
        assert (await admin.messages.by_offset(queue, view.queue_offset)).msg_id == view.msg_id
        with pytest.raises(QueryNotFoundError, match="holds offsets 0 to"):
            await admin.messages.by_offset(queue, 100)
        with pytest.raises(ConfigError, match="give the topic"):
            await admin.messages.by_id("nonsense")
        assert len([v async for v in admin.messages.read("orders", tags="B")]) == 2
        early = await admin.messages.ranges("orders", end_ms=before)
        assert [v async for v in admin.messages.read("orders", dict(early))] == []
        late = await admin.messages.ranges("orders", begin_ms=before)
        assert len([v async for v in admin.messages.read("orders", dict(late))]) == 8
        newest = await admin.messages.ranges("orders", newest=1)
        assert len([v async for v in admin.messages.read("orders", dict(newest))]) == 2

    run(work)


def test_a_topic_is_followed_live() -> None:
    async def work(cluster: LocalCluster, admin: Admin) -> None:
        await admin.topics.create("orders", queues=2)
        now = await admin.messages.ranges("orders")
        live = admin.messages.read("orders", {queue: (end, None) for queue, (_, end) in now.items()})
        following = asyncio.ensure_future(anext(live))
        await admin.messages.send(Message("orders", b"new"))
        assert (await following).body == b"new"
        await live.aclose()  # type: ignore[attr-defined]

    run(work)


def test_dead_letters_are_counted_shown_and_driven_back_to_their_group_only() -> None:
    async def work(cluster: LocalCluster, admin: Admin) -> None:
        await admin.topics.create("orders", queues=1)
        await admin.groups.create("billing", {"retry_max_times": 0})
        await admin.groups.create("audit")
        healthy = False
        billed: list[tuple[str, bytes, str | None, str | None]] = []
        audited: list[bytes] = []

        def bill(message: MessageView) -> ConsumeResult:
            if not healthy:
                return ConsumeResult.LATER
            billed.append((message.topic, message.body, message.tags, message.get("colour")))
            return ConsumeResult.SUCCESS

        def audit(message: MessageView) -> None:
            audited.append(message.body)

        async with (
            consumer_of(cluster.namesrv, "billing", bill, max_reconsume_times=0),
            consumer_of(cluster.namesrv, "audit", audit),
        ):
            for index in range(3):
                await admin.messages.send(
                    Message("orders", f"m{index}", tags="T", keys=f"k{index}", properties={"colour": "red"})
                )
            (group,) = await eventually(
                admin.dead_letters.groups, lambda found: bool(found) and found[0].count == 3
            )
            assert (group.group, group.topic) == ("billing", "%DLQ%billing")
            assert sorted([view.body async for view in admin.dead_letters.read("billing")]) == [
                b"m0",
                b"m1",
                b"m2",
            ]
            healthy = True
            outcome = await admin.dead_letters.redrive("billing", keep=lambda view: view.body != b"m1")
            assert (outcome.sent, outcome.skipped) == (2, 1)
            await until(lambda: len(billed) >= 2)
            assert sorted(billed) == [("orders", b"m0", "T", "red"), ("orders", b"m2", "T", "red")]
            again = await admin.dead_letters.redrive("billing")
            assert (again.sent, again.skipped) == (0, 0), "progress is kept"
            await admin.dead_letters.redrive("billing", everything=True, to_topic=True, limit=1)
            await until(lambda: len(audited) >= 4)
            assert audited[3] == b"m0"

    run(work)


async def bury(admin: Admin, count: int) -> None:
    """Dead letters of the group billing, as a broker leaves them: three sharding keys, one after the other."""
    await admin.topics.create("orders", queues=8)
    await admin.topics.create("%DLQ%billing", queues=1)
    for number in range(count):
        letter = Message(
            "%DLQ%billing", f"{number}", keys=f"k{number}", sharding_key=f"key-{number % 3}", flag=7
        )
        letter.system_properties["DLQ_ORIGIN_TOPIC"] = "orders"
        await admin.messages.send(letter)


async def read_by_key(admin: Admin, topic: str) -> dict[str | None, list[tuple[int, int]]]:
    """Queue and number of each message, by sharding key, in the order they were stored."""
    found: dict[str | None, list[tuple[int, int]]] = {}
    views = [view async for view in admin.messages.read(topic, dict(await admin.messages.ranges(topic)))]
    for view in sorted(views, key=lambda view: view.commitlog_offset):
        assert view.flag == 7
        found.setdefault(view.sharding_key, []).append((view.queue_id, int(view.body)))
    return found


def test_a_redrive_keeps_the_sharding_key_and_the_order_of_each_key() -> None:
    async def work(cluster: LocalCluster, admin: Admin) -> None:
        await bury(admin, 30)
        outcome = await admin.dead_letters.redrive("billing", to_topic=True)
        assert outcome.sent == 30
        by_key = await read_by_key(admin, "orders")
        assert set(by_key) == {"key-0", "key-1", "key-2"}
        for remainder in range(3):
            places = by_key[f"key-{remainder}"]
            assert len({queue for queue, _ in places}) == 1, "one queue for each key"
            assert [number for _, number in places] == list(range(remainder, 30, 3))
        # To the group itself: the key travels along.
        await admin.dead_letters.redrive("billing", everything=True)
        retried = await read_by_key(admin, "%RETRY%billing")
        assert {key: [number for _, number in places] for key, places in retried.items()} == {
            f"key-{remainder}": list(range(remainder, 30, 3)) for remainder in range(3)
        }

    run(work)


@pytest.mark.parametrize("ends_by", ["an error", "Ctrl-C"])
def test_a_redrive_that_was_broken_off_goes_on_where_it_was(ends_by: str) -> None:
    async def work(cluster: LocalCluster, admin: Admin) -> None:
        await bury(admin, 10)
        seen = 0
        task = asyncio.current_task()
        assert task is not None

        def keep(view: MessageView) -> bool:
            nonlocal seen
            seen += 1
            if seen == 5 and ends_by == "an error":
                raise ConfigError("where", "x", "cannot be judged")
            if seen == 5:
                task.cancel()
            return True

        with pytest.raises((ConfigError, asyncio.CancelledError)):
            await admin.dead_letters.redrive("billing", to_topic=True, keep=keep)
        task.uncancel()
        rest = await admin.dead_letters.redrive("billing", to_topic=True)
        assert rest.sent == 6, "what was sent is not sent again"
        numbers = [number for places in (await read_by_key(admin, "orders")).values() for _, number in places]
        assert sorted(set(numbers)) == list(range(10))

    run(work)
