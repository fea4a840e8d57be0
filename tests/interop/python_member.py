"""One of our push consumers as a process of its own: a member that can be killed.

    python -m tests.interop.python_member NAMESRV GROUP TOPIC [option=value ...]

Prints a JSON line for every change of its queues and for every message its handler was given.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Collection
from typing import Any

from gimbalmq.client.consumer_config import ConsumeFromWhere
from gimbalmq.client.push_consumer import PushConsumer
from gimbalmq.model.message import MessageView
from gimbalmq.model.queues import MessageQueue


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


async def main(namesrv: str, group: str, topic: str, *options: str) -> None:
    settings: dict[str, Any] = dict(option.split("=", 1) for option in options)
    consumer = PushConsumer(group, namesrv, consume_from_where=ConsumeFromWhere.FIRST_OFFSET, **settings)

    async def handle(message: MessageView) -> None:
        say(body=message.body.decode(), queue=message.queue_id)

    def changed(
        of: str, every: Collection[MessageQueue], mine: Collection[MessageQueue], reason: str
    ) -> None:
        if of == topic:
            say(queues=sorted(queue.queue_id for queue in mine))

    consumer.on_queues_changed(changed)
    consumer.subscribe(topic, "*", handle)
    async with consumer:
        say(client_id=consumer.client_id)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
