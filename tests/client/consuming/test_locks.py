"""Locks that are asked for and given back at the same time."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from gimbalmq._clock import SYSTEM_CLOCK
from gimbalmq.client.consuming.held_queue import HeldQueue
from gimbalmq.client.consuming.locks import Locks
from gimbalmq.model.queues import MessageQueue
from gimbalmq.protocol.codes import RequestCode
from gimbalmq.protocol.command import RemotingCommand
from gimbalmq.transport.tasks import Tasks

Q0 = MessageQueue("T", "broker-a", 0)


class SlowBroker:
    """Grants every lock, but only when it is told to."""

    client_id = "c1#1"
    clock = SYSTEM_CLOCK

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.answers = asyncio.Event()
        self.unlocked: list[int] = []

    def master_address(self, broker_name: str) -> str:
        return "127.0.0.1:10911"

    async def call(self, address: str, command: RemotingCommand, timeout: float) -> RemotingCommand:
        self.asked.set()
        await self.answers.wait()
        return command.reply(body=b'{"lockOKMQSet":[{"topic":"T","brokerName":"broker-a","queueId":0}]}')

    async def oneway(self, address: str, command: RemotingCommand) -> None:
        assert command.code == RequestCode.UNLOCK_BATCH_MQ
        self.unlocked.append(command.code)


def test_a_lock_that_is_asked_for_again_is_not_given_back_meanwhile() -> None:
    """The broker would grant it and then take it back, and we would not know."""

    async def scenario() -> None:
        broker, tasks = SlowBroker(), Tasks("test")
        locks = Locks(cast(Any, broker), "g", tasks)
        held = HeldQueue(Q0, SYSTEM_CLOCK, cast(Any, None))
        held.start()
        locks.give_back_later(Q0, 0.01)
        asking = asyncio.ensure_future(locks.lock(held))
        async with asyncio.timeout(5):
            await broker.asked.wait()
        await asyncio.sleep(0.03)
        broker.answers.set()
        assert await asking
        assert broker.unlocked == []
        await tasks.close()

    asyncio.run(scenario())


def test_a_lock_is_given_back_only_after_the_question_for_it_is_answered() -> None:
    """Apache's brokers work off requests of one connection in any order: the lock would stay ours."""

    async def scenario() -> None:
        broker, tasks = SlowBroker(), Tasks("test")
        locks = Locks(cast(Any, broker), "g", tasks)
        renewing = asyncio.ensure_future(locks.ask_again("broker-a", [Q0]))
        async with asyncio.timeout(5):
            await broker.asked.wait()
        giving_back = asyncio.ensure_future(locks.give_back(Q0))
        await asyncio.sleep(0.03)
        assert locks.is_returning(Q0) and not broker.unlocked
        broker.answers.set()
        assert await renewing == {Q0}
        await giving_back
        assert len(broker.unlocked) == 1 and not locks.is_returning(Q0) and not locks.may_be_ours(Q0)
        await tasks.close()

    asyncio.run(scenario())
