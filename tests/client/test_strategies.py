"""Every strategy at work in members of a group: who holds what, and that nothing is left unread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from gimbalmq import RoomsByPrefix, strategy_by_name
from gimbalmq.balance.allocate import AllocateStrategy
from gimbalmq.client.consumer_config import PushConsumerConfig
from gimbalmq.errors import ConfigError
from gimbalmq.model.message import Message, MessageView
from gimbalmq.model.queues import MessageQueue
from tests.client.test_consumer_cluster import World, in_world

BROKERS = ("bj@c", "hz@a", "sh@b")
ROOMS = RoomsByPrefix(
    {"hz@": "hz", "10.3.0.2": "hz", "sh@": "sh", "bj@": "bj", "10.3.0.3": "bj", "10.3.0.4": "hz"}
)
"""Members are 10.3.0.2 to 10.3.0.4: two stand in hz, one in bj, nobody in sh."""


def queues_of(*brokers: str) -> list[MessageQueue]:
    return [MessageQueue("T", broker, number) for broker in brokers for number in range(4)]


def listed(member: int) -> AllocateStrategy:
    return strategy_by_name("CONFIG", queues=[*queues_of(BROKERS[member]), MessageQueue("other", "x", 7)])


AVG_BLOCKS = [queues_of("bj@c"), queues_of("hz@a"), queues_of("sh@b")]
DEALT = [queues_of(*BROKERS)[member::3] for member in range(3)]
HZ_ONLY = [
    [MessageQueue("T", "hz@a", 0), MessageQueue("T", "hz@a", 3)],
    [MessageQueue("T", "hz@a", 1)],
    [MessageQueue("T", "hz@a", 2)],
]
NEARBY = [
    [*queues_of("hz@a")[:2], *queues_of("sh@b")[:2]],
    [*queues_of("bj@c"), queues_of("sh@b")[2]],
    [*queues_of("hz@a")[2:], queues_of("sh@b")[3]],
]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        pytest.param(lambda _: "AVG", AVG_BLOCKS, id="AVG"),
        pytest.param(lambda _: "AVG_BY_CIRCLE", DEALT, id="AVG_BY_CIRCLE"),
        pytest.param(lambda _: "CONSISTENT_HASH", None, id="CONSISTENT_HASH"),
        pytest.param(lambda _: "STICKY", None, id="STICKY"),
        pytest.param(listed, AVG_BLOCKS, id="CONFIG"),
        pytest.param(lambda _: strategy_by_name("MACHINE_ROOM", rooms=["hz"]), HZ_ONLY, id="MACHINE_ROOM"),
        pytest.param(
            lambda _: strategy_by_name("MACHINE_ROOM_NEARBY-AVG", resolver=ROOMS),
            NEARBY,
            id="MACHINE_ROOM_NEARBY",
        ),
    ],
)
def test_members_hold_what_the_strategy_says(
    strategy: Callable[[int], str | AllocateStrategy], expected: list[list[MessageQueue]] | None
) -> None:
    """S1-33: the six of Java and STICKY, each in three running members on three brokers."""

    async def scenario(world: World) -> None:
        producer = await world.producer()
        await world.topic("T", 4, producer)
        got: list[MessageQueue] = []

        async def handler(message: MessageView) -> None:
            got.append(MessageQueue(message.topic, message.broker_name, message.queue_id))

        members = [await world.push(handler, strategy=strategy(number)) for number in range(3)]
        await asyncio.sleep(25)  # a round of everybody with everybody there
        parts = [sorted(member.assignment.get("T", [])) for member in members]
        taken = [queue for part in parts for queue in part]
        if expected is not None:
            assert parts == [sorted(part) for part in expected]
        else:
            assert sorted(taken) == sorted(queues_of(*BROKERS))
        for queue in queues_of(*BROKERS):
            await producer.send(Message("T", b"x"), queue=queue)
        await asyncio.sleep(20)
        assert sorted(got) == sorted(taken)

    in_world(scenario, brokers=BROKERS)


@pytest.mark.parametrize("name", ["CONFIG", "MACHINE_ROOM", "MACHINE_ROOM_NEARBY-AVG", "ROUND_ROBIN"])
def test_a_name_that_is_not_enough_is_refused_when_the_consumer_is_made(name: str) -> None:
    """S1-33: by its name alone such a member would take nothing, and say nothing."""
    with pytest.raises(ConfigError, match=name):
        PushConsumerConfig(namesrv="127.0.0.1:9876", group="g", strategy=name)
