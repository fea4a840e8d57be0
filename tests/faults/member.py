"""A group member for tests: ``python -m tests.faults.member NAMESRV HANDOVER``; tells each thing on a line."""

from __future__ import annotations

import asyncio
import signal
import sys

from gimbalmq.client.consumer_config import ConsumeFromWhere
from gimbalmq.client.events import BalanceEvent, QueueDropped, QueueTaken
from gimbalmq.client.push_consumer import PushConsumer
from gimbalmq.model.message import MessageView
from tests.faults.ground import TOPIC


def tell(text: str) -> None:
    print(text, flush=True)


def changed(event: BalanceEvent) -> None:
    if isinstance(event, QueueTaken | QueueDropped) and event.queue.topic == TOPIC:
        word = "taken" if isinstance(event, QueueTaken) else "dropped"
        tell(f"{word} {event.queue.broker_name}/{event.queue.queue_id}")


async def found(message: MessageView) -> None:
    await asyncio.sleep(0.005)
    tell(f"found {message.body.decode()}")


async def main(namesrv: str, handover: str) -> None:
    consumer = PushConsumer(
        "faults",
        namesrv,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        handover="lease" if handover == "lease" else "java",
        liveness_interval=1.0,
    )
    consumer.subscribe(TOPIC, "*", found)
    consumer.on_event(changed)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with consumer:
        tell("ready")
        await ended.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
