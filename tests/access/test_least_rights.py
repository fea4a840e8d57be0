"""Clients of ours with the least rights that the documentation names: enough for every kind of work."""

from __future__ import annotations

from typing import Any

import pytest

from gimbalmq.client.consumer_config import ConsumeFromWhere
from gimbalmq.client.producer import Producer
from gimbalmq.client.pull_consumer import PullConsumer
from gimbalmq.client.push_consumer import PushConsumer
from gimbalmq.client.request_reply import reply, request
from gimbalmq.client.transaction import TransactionProducer
from gimbalmq.model.message import Message, MessageView
from gimbalmq.model.results import TransactionState
from gimbalmq.testing import LocalCluster
from tests.support import run, until

USERS = {
    "seller": {"Topic:orders": "Pub", "Topic:questions": "Pub"},
    "buyer": {"Topic:orders": "Sub,Get", "Group:buyers": "Sub"},
    "clerk": {
        "Topic:questions": "Sub,Get",
        "Group:clerks": "Sub",
        "Topic:DefaultCluster_REPLY_TOPIC": "Pub",
    },
}


@pytest.mark.parametrize("public", ["true", "false"], ids=["public routes", "private routes"])
def test_least_rights_are_enough(public: str) -> None:
    async def work() -> None:
        async with LocalCluster(
            secure=True,
            users=USERS,
            properties={"messageDelayLevel": "1s 1s 1s 1s"},
            namesrv_properties={"routesPublic": public},
        ) as cluster:
            options = cluster.client_options
            first: dict[str, Any] = {"consume_from_where": ConsumeFromWhere.FIRST_OFFSET}

            def push(group: str, user: str, topic: str, handler: Any, **more: Any) -> PushConsumer:
                consumer = PushConsumer(group, **first, **options(user))
                consumer.subscribe(topic, "*", handler, **more)
                return consumer

            # Sent, sent back, and read once more by the retry topic.
            taken: list[bytes] = []

            async def take(message: MessageView) -> None:
                taken.append(message.body)
                if len(taken) == 1:
                    raise ValueError("not yet")

            async with (
                Producer("sellers", **options("seller")) as seller,
                push("buyers", "buyer", "orders", take),
            ):
                await seller.send(Message("orders", b"one"))
                await until(lambda: taken == [b"one", b"one"])

            # With locks.
            kept: list[bytes] = []

            async def keep(message: MessageView) -> None:
                kept.append(message.body)

            async with (
                Producer("sellers", **options("seller")) as seller,
                push("buyers", "buyer", "orders", keep, ordered=True),
            ):
                await seller.send(Message("orders", b"two"))
                await until(lambda: kept == [b"two"])

            # In a transaction, and by polls.
            check = lambda message: TransactionState.COMMIT  # noqa: E731
            async with TransactionProducer("sellers", check=check, **options("seller")) as teller:
                await teller.send_in_transaction(Message("orders", b"three"), check)
            polled = PullConsumer("buyers", **first, **options("buyer"))
            polled.subscribe("orders")
            async with polled:
                got: list[bytes] = []
                while b"three" not in got:
                    got += [message.body for message in await polled.poll(5.0)]

            # A question and its answer.
            async with (
                Producer("sellers", **options("seller")) as asker,
                Producer("clerks", **options("clerk")) as answerer,
            ):

                async def answer(message: MessageView) -> None:
                    await reply(answerer, message, b"pong")

                async with push("clerks", "clerk", "questions", answer):
                    answered = await request(asker, Message("questions", b"ping"), timeout=30.0)
                    assert answered.body == b"pong"

    run(work())
